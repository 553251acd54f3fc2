"""RoPE for sequences longer than in training.

Each lowers RoPE's frequencies and equals RoPE bit for bit if its factor is 1 (rope_dynamic_ntk: up to its original
length, with any factor). None has parameters, so weights trained with `rope` can be evaluated without changes.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from pe_lab.encodings.angles import angles
from pe_lab.encodings.base import at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Factor, OptionError, Positions, Positive
from pe_lab.encodings.rotary import RoPE, frequencies
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary


class InterpolatedRoPE(RoPE):
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595, section 2.3): RoPE at positions divided by a factor.

    All frequencies are divided alike, so that neighbouring positions become more similar.

    Args:
        theta, pairing: as RoPE.
        factor: s >= 1, by which every frequency is divided: test length / training length.

    Raises:
        ValueError: as RoPE; factor out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope_pi",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: Factor = 4.0,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.factor = factor

    def omega(self, device: torch.device) -> Tensor:
        omega = frequencies(self.sizes.head_dim, self.theta, device)
        return (omega / self.factor)[None]


class NTKRoPE(RoPE):
    """NTK-aware interpolation (Peng et al. 2023, arXiv:2309.00071, definition 1): RoPE with a larger base.

    base = theta * factor ** (d / (d - 2)) divides the lowest frequency by the factor and keeps the highest.

    Args:
        theta, pairing: as RoPE.
        factor: alpha >= 1, by which the lowest frequency is divided.

    Raises:
        ValueError: as RoPE; factor out of range; head_dim below 4.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope_ntk",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: Factor = 4.0,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.factor = factor
        self.power = ntk_power(name, sizes)

    def omega(self, device: torch.device) -> Tensor:
        return frequencies(self.sizes.head_dim, self.theta * self.factor**self.power, device)[None]


class DynamicNTKRoPE(RoPE):
    """Dynamic NTK (Peng et al. 2023, arXiv:2309.00071, section 3.3): a base that grows with the document.

    base = theta * (s * max(L, L0) / L0 - (s - 1)) ** (d / (d - 2)) for a document whose largest position is L - 1: RoPE
    up to length L0, NTK-aware interpolation beyond. Every document has its own base, independent of the rest of the
    batch; nothing is kept between calls. s = 1 is the paper's scale, max(1, L / L0); other s are those of transformers.

    Args:
        theta, pairing: as RoPE.
        factor: s >= 1, how much faster than L / L0 the scale grows.
        original_length: L0 in positions, >= 1; None: the training length.

    Raises:
        ValueError: as RoPE; factor or original_length out of range; head_dim below 4.
    """

    whole_sequence = "its frequencies depend on the length of the sequence"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope_dynamic_ntk",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: Factor = 1.0,
        original_length: Positions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.factor = factor
        self.original_length = original_length or sizes.length
        self.power = ntk_power(name, sizes)

    def of_length(self, length: Tensor) -> Tensor:
        """Return the angular frequencies of documents of length [...], [..., d/2]."""
        growth = length.clamp(min=self.original_length).double() / self.original_length
        base = self.theta * (self.factor * growth - (self.factor - 1)) ** self.power
        return frequencies(self.sizes.head_dim, base[..., None], length.device)

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        if torch.compiler.is_compiling():  # which lengths there are cannot be read
            omega = self.of_length(document_lengths(layout))
        elif layout.pos_range[1] < self.original_length:
            return super().rotation(h, layout)
        else:
            length, which = document_lengths(layout).unique(return_inverse=True)
            omega = self.of_length(length)[which]  # [B|1, T|1, d/2]
        angle = angles(layout.pos[..., None], omega, at_least_float32(h))[:, None]
        return Rotary(angle.cos(), angle.sin(), self.pairing)


class Yarn(RoPE):
    """YaRN (Peng et al. 2023, arXiv:2309.00071, definitions 2 and 3): interpolates the pairs of low frequency.

    A pair that rotates more than beta_fast times in L0 positions keeps its frequency; one that rotates less than
    beta_slow times has it divided by s; in between the two are mixed linearly. Cosine and sine are multiplied by
    0.1 ln s + 1, for queries and for keys, which sharpens the softmax.

    Args:
        theta, pairing: as RoPE.
        factor: s >= 1: test length / training length.
        original_length: L0 in positions, >= 1; None: the training length.
        beta_fast, beta_slow: rotations in L0 where the mixture begins and ends, beta_fast > beta_slow > 0.
        ramp: "paper": linear in the number of rotations; "code": linear in c between the pairs that rotate beta_fast
            and beta_slow times, rounded outwards, as in the authors' code and transformers.

    Raises:
        ValueError: as RoPE; an option out of range; beta_slow >= beta_fast; ramp "code" with theta <= 1, or with an L0
            for which the ramp would run backwards.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "yarn",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: Factor = 4.0,
        original_length: Positions | None = None,
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
        ramp: Literal["paper", "code"] = "paper",
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.factor = factor
        self.original_length = original_length or sizes.length
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.ramp = ramp
        if beta_slow >= beta_fast:
            raise OptionError(f"beta_fast must be above beta_slow={beta_slow:g}, got {beta_fast:g}")
        if ramp == "code":
            self.low, self.high = self._ends()

    def _ends(self) -> tuple[int, int]:
        """Return the pairs at which the ramp of the code begins and ends, as in transformers."""
        d, theta = self.sizes.head_dim, self.theta
        if theta <= 1:
            raise OptionError(f"theta must be above 1 for ramp=code, got {theta:g}: use ramp=paper")

        def pair(rotations: float) -> float:
            return d * math.log(self.original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(pair(self.beta_fast)), 0), min(math.ceil(pair(self.beta_slow)), d - 1)
        if high < low:
            raise OptionError(
                f"ramp=code has a ramp from pair {low} to pair {high} at an original length of "
                f"{self.original_length}: use ramp=paper"
            )
        return low, max(high, low + 1)

    def kept(self, omega: Tensor) -> Tensor:
        """Return gamma [d/2], the share of each of RoPE's frequencies omega [d/2] that is kept."""
        if self.ramp == "code":
            pair = torch.arange(len(omega), dtype=omega.dtype, device=omega.device)
            return 1 - ((pair - self.low) / (self.high - self.low)).clamp(0, 1)
        rotations = self.original_length * omega / (2 * math.pi)
        return ((rotations - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)

    def omega(self, device: torch.device) -> Tensor:
        omega = frequencies(self.sizes.head_dim, self.theta, device)
        kept = self.kept(omega)
        return (omega * (kept + (1 - kept) / self.factor))[None]

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        rotary, size = super().rotation(h, layout), 0.1 * math.log(self.factor) + 1
        return Rotary(rotary.cos * size, rotary.sin * size, self.pairing)


def ntk_power(name: str, sizes: Sizes) -> float:
    """Return d / (d - 2), the exponent of the factor."""
    if sizes.head_dim < 4:
        raise ValueError(
            f"{name} raises to the power d / (d - 2): head_dim must be at least 4, got {sizes.head_dim} "
            f"(width={sizes.width}, num_heads={sizes.num_heads})"
        )
    return sizes.head_dim / (sizes.head_dim - 2)


def document_lengths(layout: Layout) -> Tensor:
    """Return the largest position in the document of each token, plus one, [B|1, T|1]."""
    if layout.one_segment:
        return layout.pos.amax(1, keepdim=True) + 1
    if torch.compiler.is_compiling():  # which documents there are cannot be read
        same = layout.segment[:, :, None] == layout.segment[:, None, :]
        return layout.pos[:, None, :].where(same, torch.iinfo(torch.long).min).amax(-1) + 1
    ids, document = layout.segment.unique(return_inverse=True)
    pos = layout.pos.expand_as(layout.segment)
    last = pos.new_zeros(len(pos), len(ids)).scatter_reduce(1, document, pos, "amax", include_self=False)
    return last.gather(1, document) + 1
