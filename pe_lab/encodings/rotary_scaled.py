"""RoPE for sequences longer than those it was trained on.

Each slows RoPE's frequencies, and is RoPE bit for bit where its factor is 1 (rope_dynamic_ntk: up to its original
length, whatever the factor). None has parameters: weights trained with `rope` can be evaluated as they are.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from pe_lab.encodings.base import Pairing, Rotary, Sizes, Terms, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Factor, OptionError, Positions, Positive
from pe_lab.encodings.rotary import RoPE, frequencies


class InterpolatedRoPE(RoPE):
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595, section 2.3): RoPE at positions divided by a factor.

    All frequencies slow down alike, so that neighbours become harder to tell apart.

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

    def omega(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        omega = frequencies(self.sizes.head_dim, self.theta, torch.float64, device)
        return (omega / self.factor).to(dtype)[None]


class NTKRoPE(RoPE):
    """NTK-aware interpolation (Peng et al. 2023, arXiv:2309.00071, definition 1): RoPE with a larger base.

    base = theta * factor ** (d / (d - 2)) divides the lowest frequency by the factor and leaves the highest alone.

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

    def omega(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return frequencies(self.sizes.head_dim, self.theta * self.factor**self.power, dtype, device)[None]


class DynamicNTKRoPE(RoPE):
    """Dynamic NTK (Peng et al. 2023, arXiv:2309.00071, section 3.3): a base that grows with the document.

    base = theta * (s * max(L, L0) / L0 - (s - 1)) ** (d / (d - 2)) for a document whose largest position is L - 1: RoPE
    up to length L0, NTK-aware interpolation beyond. Every document has its own base, whatever it is batched or packed
    with; nothing is kept between calls. s = 1 is the paper's scale, max(1, L / L0); other s are transformers'.

    Args:
        theta, pairing: as RoPE.
        factor: s >= 1, how much faster than L / L0 the scale grows.
        original_length: L0 in positions, >= 1; None: the training length.

    Raises:
        ValueError: as RoPE; factor or original_length out of range; head_dim below 4.
    """

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

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        if layout.pos_range[1] < self.original_length:
            return super().terms(h, layout)
        dtype = at_least_float32(h)
        length, which = document_lengths(layout).unique(return_inverse=True)
        growth = length.clamp(min=self.original_length).double() / self.original_length
        base = self.theta * (self.factor * growth - (self.factor - 1)) ** self.power
        omega = frequencies(self.sizes.head_dim, base[:, None], dtype, h.device)[which]  # [B|1, T|1, d/2]
        angle = (layout.pos[..., None].to(dtype) * omega)[:, None]
        rotary = Rotary(angle.cos(), angle.sin(), self.pairing)
        return Terms(rotary_q=rotary, rotary_k=rotary)


class Yarn(RoPE):
    """YaRN (Peng et al. 2023, arXiv:2309.00071, definitions 2 and 3): interpolates the pairs that turn slowly.

    Pair c keeps its frequency where it turns more than beta_fast times in L0 positions, has it divided by s where it
    turns less than beta_slow times, and in between a linear mixture. Cosine and sine are multiplied by 0.1 ln s + 1, on
    queries and on keys, which sharpens the softmax.

    Args:
        theta, pairing: as RoPE.
        factor: s >= 1: test length / training length.
        original_length: L0 in positions, >= 1; None: the training length.
        beta_fast, beta_slow: rotations in L0 where the mixture begins and ends, beta_fast > beta_slow > 0.
        ramp: "paper": linear in the number of rotations; "code": linear in c between the pairs that turn beta_fast and
            beta_slow times, rounded outwards, as the authors' code and transformers have it.

    Raises:
        ValueError: as RoPE; a setting out of range; beta_slow >= beta_fast; ramp "code" with theta <= 1, or where L0 is
            such that its ramp would run backwards.
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
        """The pairs between which the code's ramp runs, as transformers has them."""
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
        """gamma [d/2]: the share of each of RoPE's frequencies omega that is kept."""
        if self.ramp == "code":
            pair = torch.arange(len(omega), dtype=omega.dtype, device=omega.device)
            return 1 - ((pair - self.low) / (self.high - self.low)).clamp(0, 1)
        rotations = self.original_length * omega / (2 * math.pi)
        return ((rotations - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)

    def omega(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        omega = frequencies(self.sizes.head_dim, self.theta, torch.float64, device)
        kept = self.kept(omega)
        return (omega * (kept + (1 - kept) / self.factor)).to(dtype)[None]

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        rotary, size = super().terms(h, layout).rotary_q, 0.1 * math.log(self.factor) + 1
        rotary = Rotary(rotary.cos * size, rotary.sin * size, self.pairing)
        return Terms(rotary_q=rotary, rotary_k=rotary)


def ntk_power(name: str, sizes: Sizes) -> float:
    """d / (d - 2), to which the factor of the base is raised."""
    if sizes.head_dim < 4:
        raise ValueError(
            f"{name} raises to the power d / (d - 2): head_dim must be at least 4, got {sizes.head_dim} "
            f"(width={sizes.width}, num_heads={sizes.num_heads})"
        )
    return sizes.head_dim / (sizes.head_dim - 2)


def document_lengths(layout: Layout) -> Tensor:
    """[B|1, T|1] the largest position of each token's own document, plus one."""
    if (layout.segment == layout.segment[:, :1]).all():
        return layout.pos.amax(1, keepdim=True) + 1
    ids, document = layout.segment.unique(return_inverse=True)
    pos = layout.pos.expand_as(layout.segment)
    last = pos.new_zeros(len(pos), len(ids)).scatter_reduce(1, document, pos, "amax", include_self=False)
    return last.gather(1, document) + 1
