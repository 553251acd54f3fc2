"""Angles of rotations and sinusoids: formed in float64, rounded once.

A product of position and frequency in float32 is wrong by as much as a radian at angles of 2 ** 24. In float64 it is
exact to 2e-9 there, and without its whole turns it is at most pi, where float32 is exact to 2e-7. The device must have
float64: CPUs and CUDA have it, Apple's MPS has not.
"""

import math

import torch
from torch import Tensor

FULL_TURN = 2 * math.pi


def angles(pos: Tensor, omega: Tensor, dtype: torch.dtype) -> Tensor:
    """Return pos * omega; in float32 reduced by whole turns.

    Args:
        pos: the positions, integers or float64.
        omega: angular frequencies in any dtype, of a shape that can be multiplied with pos; gradients reach it.
        dtype: the dtype of the result, float32 or float64.
    """
    return round_angles(pos.double() * omega.double(), dtype)


def round_angles(angle: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float64 angles in `dtype`: as they are, or reduced by whole turns in float32."""
    if dtype == torch.float64:
        return angle
    turns = (angle.detach() / FULL_TURN).round()
    return torch.sub(angle, turns, alpha=FULL_TURN).to(dtype)
