"""Counter-based dropout of attention weights: (seed, batch, head, i, j) determines whether a weight is dropped.

The kernels compute the same mask as the reference, tile by tile, and again in the backward pass; no mask is stored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ROW, COLUMN = 0x9E3779B1, 0x85EBCA77  # odd: 2^32 / golden ratio, and a prime of xxHash
MIX_MULTIPLIERS = (0x7FEB352D, 0x846CA68B)  # the multipliers of lowbias32, github.com/skeeto/hash-prospector
WORD_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Dropout:
    """Dropout of attention weights; kept weights are divided by 1 - p.

    Args:
        p: the probability that a weight is dropped, in (0, 1).
        seed: the seed of the random numbers, [] int64 on the device of the weights.

    Raises:
        ValueError: p outside (0, 1).
    """

    p: float
    seed: Tensor

    def __post_init__(self) -> None:
        if not 0 < self.p < 1:
            raise ValueError(f"dropout of attention weights must be in (0, 1), got {self.p}")

    @property
    def threshold(self) -> int:
        """The bound below which a weight's 32-bit number drops it."""
        return round(self.p * 2**32)

    def keys(self, batch: int, heads: int) -> Tensor:
        """Return the key of every head's random numbers, [B, H] int64 in [0, 2^32)."""
        row = _mix((self.seed & WORD_MASK) + torch.arange(batch, device=self.seed.device) * ROW)
        return _mix(row[:, None] + torch.arange(heads, device=self.seed.device) * COLUMN)

    def apply(self, weight: Tensor, start: int = 0) -> Tensor:
        """Return weights [B, H, T, S] with some dropped and the others enlarged.

        Args:
            start: index of the first query; the first key has index 0.
        """
        B, H, T, S = weight.shape
        query, key = (torch.arange(start, start + T, device=weight.device), torch.arange(S, device=weight.device))
        rows = _mix(self.keys(B, H)[..., None] + query * ROW)
        numbers = _mix(rows[..., None] + key * COLUMN)
        return weight.masked_fill(numbers < self.threshold, 0) / (1 - self.p)


def _mix(x: Tensor) -> Tensor:
    """Return lowbias32, an invertible hash of 32-bit words, in int64; of larger numbers, the low 32 bits are used."""
    x = x & WORD_MASK
    x = ((x ^ (x >> 16)) * MIX_MULTIPLIERS[0]) & WORD_MASK
    x = ((x ^ (x >> 15)) * MIX_MULTIPLIERS[1]) & WORD_MASK
    return x ^ (x >> 16)
