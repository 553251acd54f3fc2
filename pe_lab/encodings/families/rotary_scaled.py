"""RoPE for sequences longer than in training.

Each lowers RoPE's frequencies and equals RoPE bit for bit if its factor is 1 (rope_dynamic_ntk: up to its original
length, with any factor). None has parameters, so weights trained with `rope` can be evaluated without changes.
"""

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from pe_lab.encodings.angles import angles
from pe_lab.encodings.base import at_least_float32
from pe_lab.encodings.families.rotary import RoPE, frequencies, rotary_tables
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import (
    POSITIVE_NUMBERS,
    AtLeastOne,
    Dimensions,
    OptionError,
    PositionCount,
    Positive,
    integers,
)
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary


class InterpolatedRoPE(RoPE):
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595, section 2.3): RoPE at positions divided by a factor.

    All frequencies are divided alike, so that neighbouring positions become more similar.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        factor: the divisor of every frequency, s >= 1: test length / training length.

    Raises:
        ValueError: the cases of `RoPE`; factor out of range.
    """

    float_positions = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope_pi",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: AtLeastOne = 4.0,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        self.factor = factor

    def omega(self, device: torch.device) -> Tensor:
        omega = frequencies(self.rotary_dim, self.theta, device)
        return (omega / self.factor)[None]


class NTKRoPE(RoPE):
    """NTK-aware interpolation (Peng et al. 2023, arXiv:2309.00071, definition 1): RoPE with a larger base.

    base = theta * factor ** (d / (d - 2)) divides the lowest frequency by the factor and keeps the highest.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        factor: the divisor of the lowest frequency, alpha >= 1.

    Raises:
        ValueError: the cases of `RoPE`; factor out of range; head_dim below 4.
    """

    float_positions = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope_ntk",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: AtLeastOne = 4.0,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        self.factor = factor
        self.power = ntk_power(self)

    def omega(self, device: torch.device) -> Tensor:
        return frequencies(self.rotary_dim, self.theta * self.factor**self.power, device)[None]


class DynamicNTKRoPE(RoPE):
    """Dynamic NTK (Peng et al. 2023, arXiv:2309.00071, section 3.3): a base that grows with the document.

    base = theta * (s * max(L, L0) / L0 - (s - 1)) ** (d / (d - 2)) for a document whose largest position is L - 1: RoPE
    up to length L0, NTK-aware interpolation beyond. Every document has its own base, independent of the rest of the
    batch; nothing is kept between calls. s = 1 is the paper's scale, max(1, L / L0); other s are those of transformers.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        factor: the growth of the scale relative to that of L / L0, s >= 1.
        original_length: the original length L0 in positions, >= 1; None: the training length.

    Raises:
        ValueError: the cases of `RoPE`; factor or original_length out of range; head_dim below 4.
    """

    absolute = True
    whole_sequence = "its frequencies depend on the length of the sequence"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope_dynamic_ntk",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: AtLeastOne = 1.0,
        original_length: PositionCount | None = None,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        self.factor = factor
        self.original_length = original_length or sizes.length
        self.power = ntk_power(self)

    def frequencies_of_length(self, length: Tensor) -> Tensor:
        """Return the angular frequencies of documents of length [...], [..., d/2]."""
        growth = length.clamp(min=self.original_length).double() / self.original_length
        base = self.theta * (self.factor * growth - (self.factor - 1)) ** self.power
        return frequencies(self.rotary_dim, base[..., None], length.device)

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        if torch.compiler.is_compiling():  # which lengths there are cannot be read
            omega = self.frequencies_of_length(document_lengths(layout))
        elif layout.pos_range[1] < self.original_length:
            return super().rotation(h, layout)
        else:
            length, document = document_lengths(layout).unique(return_inverse=True)
            omega = self.frequencies_of_length(length)[document]  # [B|1, T|1, d/2]
        angle = angles(layout.pos[..., None], omega, at_least_float32(h))[:, None]
        return Rotary(angle.cos(), angle.sin(), self.pairing)


class Yarn(RoPE):
    """YaRN (Peng et al. 2023, arXiv:2309.00071, definitions 2 and 3): interpolates the pairs of low frequency.

    A pair that rotates more than beta_fast times in L0 positions keeps its frequency; one that rotates less than
    beta_slow times has it divided by s; in between the two are mixed linearly. Cosine and sine are multiplied by
    0.1 ln s + 1, for queries and for keys, which sharpens the softmax.

    Without that factor, with beta_fast = 4 and beta_slow = 1, it is the scaling of Llama 3.1 to 3.3 (arXiv:2407.21783,
    in its released configurations): `llama3`.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        factor: the ratio of test length to training length, s >= 1.
        original_length: the original length L0 in positions, >= 1; None: the training length.
        beta_fast, beta_slow: the numbers of rotations in L0 where the mixture begins and ends, beta_fast > beta_slow >
            0.
        ramp: the shape of the mixture. "paper": linear in the number of rotations; "code": linear in c between the
            pairs that rotate beta_fast and beta_slow times, rounded outwards, as in the authors' code and transformers.
        attention_factor: a factor on cosine and sine, > 0; None: 0.1 ln s + 1, or the factor of mscale and
            mscale_all_dim.
        mscale, mscale_all_dim: positive numbers, both or neither: the factor is (0.1 mscale ln s + 1) divided by (0.1
            mscale_all_dim ln s + 1), as in DeepSeek's models.
        truncate: whether the ends of the ramp "code" are rounded; false in gpt-oss.

    Raises:
        ValueError: the cases of `RoPE`; an option out of range; beta_slow >= beta_fast; ramp "code" with theta <= 1, or
            with an L0 for which the ramp would run backwards; truncate=False with ramp "paper"; one of mscale and
            mscale_all_dim without the other, or beside an attention_factor.
    """

    float_positions = True
    neutral = {
        **RoPE.neutral,
        "attention_factor": None,
        "mscale": None,
        "mscale_all_dim": None,
        "truncate": True,
    }

    def __init__(
        self,
        sizes: Sizes,
        name: str = "yarn",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: AtLeastOne = 4.0,
        original_length: PositionCount | None = None,
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
        ramp: Literal["paper", "code"] = "paper",
        rotary_dim: Dimensions | None = None,
        attention_factor: Positive | None = None,
        mscale: Positive | None = None,
        mscale_all_dim: Positive | None = None,
        truncate: bool = True,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        self.factor = factor
        self.original_length = original_length or sizes.length
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.ramp = ramp
        self.truncate = truncate
        if (mscale is None) is not (mscale_all_dim is None):
            raise OptionError(f"mscale={mscale} and mscale_all_dim={mscale_all_dim} must both be given, or neither")
        if mscale is not None and attention_factor is not None:
            raise OptionError(f"attention_factor must be null beside mscale={mscale}, got {attention_factor}")
        if not truncate and ramp == "paper":
            raise OptionError("truncate must be true for ramp=paper, which rounds nothing, got False")
        if attention_factor is None:
            attention_factor = self._size(mscale or 1.0) / (self._size(mscale_all_dim) if mscale_all_dim else 1.0)
        self.attention_factor = attention_factor
        if beta_slow >= beta_fast:
            raise OptionError(f"beta_fast must be above beta_slow={beta_slow:g}, got {beta_fast:g}")
        if ramp == "code":
            self.low, self.high = self._ramp_ends()

    def _size(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1

    def _ramp_ends(self) -> tuple[float, float]:
        """Return the pairs at which the ramp of the code begins and ends, as in transformers."""
        d, theta = self.rotary_dim, self.theta
        if theta <= 1:
            raise OptionError(f"theta must be above 1 for ramp=code, got {theta:g}: use ramp=paper")

        def pair(rotations: float) -> float:
            return d * math.log(self.original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        if high < low:
            raise OptionError(
                f"ramp=code has a ramp from pair {low:g} to pair {high:g} at an original length of "
                f"{self.original_length}: use ramp=paper"
            )
        return low, max(high, low + 0.001)  # a step, where the ramp has no width

    def kept_share(self, omega: Tensor) -> Tensor:
        """Return gamma [d/2], the share of each of RoPE's frequencies omega [d/2] that is kept."""
        if self.ramp == "code":
            pair = torch.arange(len(omega), dtype=omega.dtype, device=omega.device)
            return 1 - ((pair - self.low) / (self.high - self.low)).clamp(0, 1)
        rotations = self.original_length * omega / (2 * math.pi)
        return ((rotations - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)

    def omega(self, device: torch.device) -> Tensor:
        omega = frequencies(self.rotary_dim, self.theta, device)
        share = self.kept_share(omega)
        return (omega * (share + (1 - share) / self.factor))[None]

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        return scale_tables(super().rotation(h, layout), self.attention_factor)


class LongRoPE(RoPE):
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753, eq. 2; Phi-3 and transformers): a factor for each pair.

    The frequency of pair c is divided by short_factors[c] in documents of up to L0 positions, and by long_factors[c] in
    longer ones, all of whose positions have the same. Cosine and sine are multiplied by sqrt(1 + ln s / ln L0). The
    factors of a released model come from a search; without any, those of long documents are those of `rope_ntk`. Every
    document has its own length, independent of the rest of the batch (in transformers, the batch has one).

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        factor: the ratio of test length to training length, s >= 1.
        original_length: the original length L0 in positions, >= 2; None: the training length.
        short_factors, long_factors: positive divisors of the frequencies, one for each rotated pair; None: all 1, and s
            ** (2c / (d - 2)).
        attention_factor: a factor on cosine and sine, > 0; None: sqrt(1 + ln s / ln L0).

    Raises:
        ValueError: the cases of `RoPE`; an option out of range; not a factor for each rotated pair.
    """

    absolute = True
    whole_sequence = "its frequencies depend on the length of the sequence"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "longrope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        factor: AtLeastOne = 4.0,
        original_length: Annotated[int, integers(2, most=2**25)] | None = None,
        short_factors: Annotated[list[float], POSITIVE_NUMBERS] | None = None,
        long_factors: Annotated[list[float], POSITIVE_NUMBERS] | None = None,
        attention_factor: Positive | None = None,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        self.factor = factor
        self.original_length = original_length or max(2, sizes.length)
        pairs = self.rotary_dim // 2
        for option, factors in (("short_factors", short_factors), ("long_factors", long_factors)):
            if factors is not None and len(factors) != pairs:
                raise OptionError(f"{option} must have {pairs} numbers, one for each rotated pair, got {len(factors)}")
        self.short_factors = [1.0] * pairs if short_factors is None else list(map(float, short_factors))
        if long_factors is None:
            power = ntk_power(self) / pairs
            self.long_factors = [factor ** (power * c) for c in range(pairs)]
        else:
            self.long_factors = list(map(float, long_factors))
        if attention_factor is None:
            attention_factor = math.sqrt(1 + math.log(factor) / math.log(self.original_length))
        self.attention_factor = attention_factor

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        omega = frequencies(self.rotary_dim, self.theta, h.device)
        short, long = (omega / on_device(factors, h.device) for factors in (self.short_factors, self.long_factors))
        if not torch.compiler.is_compiling() and layout.pos_range[1] < self.original_length:
            return scale_tables(
                rotary_tables(layout.pos, short[None], self.pairing, at_least_float32(h)), self.attention_factor
            )
        beyond = (document_lengths(layout) > self.original_length)[..., None]  # [B|1, T|1, 1]
        angle = angles(layout.pos[..., None], torch.where(beyond, long, short), at_least_float32(h))[:, None]
        return scale_tables(Rotary(angle.cos(), angle.sin(), self.pairing), self.attention_factor)


def on_device(numbers: list[float], device: torch.device) -> Tensor:
    """Return numbers in float64 [N], made on the device: nothing is copied there."""
    return torch.cat([torch.full((1,), number, dtype=torch.float64, device=device) for number in numbers])


def scale_tables(rotary: Rotary, size: float) -> Rotary:
    """Return tables whose cosine and sine are multiplied by a number."""
    return Rotary(rotary.cos * size, rotary.sin * size, rotary.pairing)


# options of Yarn that make it the scaling of Llama 3.1 to 3.3
LLAMA3: dict[str, Any] = {"beta_fast": 4.0, "beta_slow": 1.0, "attention_factor": 1.0}


def ntk_power(encoding: RoPE) -> float:
    """Return d / (d - 2), the exponent of the factor, d being the rotated dimensions."""
    d, sizes = encoding.rotary_dim, encoding.sizes
    if d < 4:
        option = "head_dim" if d == sizes.head_dim else "rotary_dim"
        raise ValueError(
            f"{encoding.name} raises to the power d / (d - 2): {option} must be at least 4, got {d}"
            f"{sizes.head_dim_source if d == sizes.head_dim else ''}"
        )
    return d / (d - 2)


def document_lengths(layout: Layout) -> Tensor:
    """Return the largest position in the document of each token, plus one, [B|1, T|1]."""
    if layout.one_segment:
        return layout.pos.amax(1, keepdim=True) + 1
    if torch.compiler.is_compiling():  # which documents there are cannot be read
        same_document = layout.segment[:, :, None] == layout.segment[:, None, :]
        return layout.pos[:, None, :].where(same_document, torch.iinfo(torch.long).min).amax(-1) + 1
    ids, document = layout.segment.unique(return_inverse=True)
    pos = layout.pos.expand_as(layout.segment)
    last = pos.new_zeros(len(pos), len(ids)).scatter_reduce(1, document, pos, "amax", include_self=False)
    return last.gather(1, document) + 1
