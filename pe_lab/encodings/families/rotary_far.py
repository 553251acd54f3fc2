"""RoPE that rotates far pairs as if they were nearer, for sequences longer than in training.

Pairs nearer than a window are rotated by their distance, as in training; far ones by another, which grows slower, so
that angles stay among those of training. None has parameters: weights trained with `rope` are evaluated as they are.
The score rotates queries and keys of far pairs once more, so that the reference computes it and no kernel does.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_lab.encodings.angles import angles
from pe_lab.encodings.base import at_least_float32
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Count, Dimensions, Positive
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Terms


@dataclass(frozen=True)
class FarBias:
    """Replaces the logits of pairs at least a window apart by those at other positions.

    Args:
        encoding: the encoding that rotated queries and keys.
    """

    encoding: "FarRoPE"

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        encoding, queries, keys = self.encoding, layout.pos, layout.of_keys.pos
        is_far = layout.distance[:, None] >= encoding.window
        far_q = encoding.rotate_to(q, queries, encoding.far_queries(queries.double()))
        far_k = encoding.rotate_to(k, keys, encoding.far_keys(keys.double()))
        far_z: Tensor = far_q @ far_k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return (far_z - z).where(is_far, 0)


class FarRoPE(RoPE):
    """Base of RoPE that rotates pairs at least `window` apart as if they were at other positions.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        window: the smallest distance that is replaced, >= 1; nearer pairs are rotated by their distance.

    Raises:
        ValueError: the cases of `RoPE`; an option out of range; attention is bidirectional.
    """

    causal_only = True
    fallback = "rope"

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        theta: Positive,
        pairing: Pairing,
        window: Count,
        rotary_dim: Dimensions | None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        self.window = window

    @abstractmethod
    def far_queries(self, pos: Tensor) -> Tensor:
        """Return the positions used for queries of far pairs, in float64."""

    @abstractmethod
    def far_keys(self, pos: Tensor) -> Tensor:
        """Return the positions used for keys of far pairs, in float64."""

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        rotary = self.rotation(h, layout)
        return Terms(rotary_q=rotary, rotary_k=rotary, content_bias=FarBias(self))

    def rotate_to(self, x: Tensor, pos: Tensor, target: Tensor) -> Tensor:
        """Return rotated queries or keys [B, H, T, d] at other positions, in float32 or float64.

        Args:
            pos, target: [B|1, T] positions: the present ones, and the new ones.
        """
        dtype = at_least_float32(x)
        angle = angles((target - pos)[:, None, :, None], self.omega(x.device)[:, None], dtype)
        cos, sin = angle.cos(), angle.sin()
        x, unrotated_x = x.to(dtype).split((self.rotary_dim, x.shape[-1] - self.rotary_dim), -1)
        a, b = x.chunk(2, -1) if self.pairing == "half" else x.unflatten(-1, (-1, 2)).unbind(-1)
        rotated_pairs = a * cos - b * sin, a * sin + b * cos
        x = torch.cat(rotated_pairs, -1) if self.pairing == "half" else torch.stack(rotated_pairs, -1).flatten(-2)
        return torch.cat((x, unrotated_x), -1)


class SelfExtend(FarRoPE):
    """Self-Extend (Jin et al. 2024, arXiv:2401.01325, and its released code).

    Pairs at least `window` apart are rotated by floor(i / group) - floor(j / group) + window - floor(window / group),
    which is `window` where i - j is and grows by 1 in `group` tokens. The paper's rule is that the largest distance
    becomes 1/2 to 2/3 of the training length. Positions count from 0: others than multiples of `group` further on,
    distances are rounded otherwise. The released code also has a factor on queries, off by default, which is not here.

    Args:
        theta, pairing, window, rotary_dim: the options of `FarRoPE`.
        group: the number of tokens that share a position, >= 1.

    Raises:
        ValueError: the cases of `FarRoPE`.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "self_extend",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        group: Count = 8,
        window: Count = 1024,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, window, rotary_dim)
        self.group = group

    def far_queries(self, pos: Tensor) -> Tensor:
        return (pos / self.group).floor() + self.window - self.window // self.group

    def far_keys(self, pos: Tensor) -> Tensor:
        return (pos / self.group).floor()


class ReRoPE(FarRoPE):
    """ReRoPE (Su 2023, kexue.fm/archives/9708, and github.com/bojone/rerope): pairs further apart are rotated by w.

    The released code also multiplies queries by max(1, ln(i + 1) / ln L), which is not here.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        window: the largest distance by which pairs are rotated, w >= 1.

    Raises:
        ValueError: the cases of `FarRoPE`.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rerope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        window: Count = 512,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, window, rotary_dim)

    def far_queries(self, pos: Tensor) -> Tensor:
        return torch.full_like(pos, self.window)

    def far_keys(self, pos: Tensor) -> Tensor:
        return torch.zeros_like(pos)


class LeakyReRoPE(FarRoPE):
    """Leaky ReRoPE (Su 2023, kexue.fm/archives/9708): pairs further apart are rotated by w + (i - j - w) / k.

    k = 1 is RoPE; ReRoPE is its limit for large k. Without the factor on queries, as ReRoPE.

    Args:
        theta, pairing, window, rotary_dim: the options of `ReRoPE`.
        k: the divisor of distances beyond w, >= 1; 16 in the released code.

    Raises:
        ValueError: the cases of `FarRoPE`.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "leaky_rerope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        window: Count = 512,
        k: Count = 16,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, window, rotary_dim)
        self.k = k

    def far_queries(self, pos: Tensor) -> Tensor:
        return self.window + (pos - self.window) / self.k

    def far_keys(self, pos: Tensor) -> Tensor:
        return pos / self.k


def default_window(length: int) -> int:
    """Return half of the training length, at least 1."""
    return max(1, length // 2)


def default_group(length: int, factor: float) -> int:
    """Return the smallest group of `self_extend` whose largest distance is at most 2/3 of the training length.

    Args:
        length: the training length.
        factor: the ratio of test length to training length.
    """
    window = default_window(length)
    room = 2 * length - 3 * window  # three times what 2/3 of the training length leave beyond the window
    return max(1, math.ceil(3 * (factor * length - window) / room)) if room > 0 else 1
