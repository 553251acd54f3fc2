"""Encodings that rotate queries and keys."""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.angles import FULL_TURN, angles
from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import AtLeastOne, Dimensions, OptionError, Positive, integers, number_range
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary, Terms


def frequencies(head_dim: int, theta: float | Tensor, device: torch.device | None = None) -> Tensor:
    """Return the angular frequencies theta ** (-2c / d) in float64, [d/2], or [..., d/2] for theta [..., 1].

    Source: arXiv:2104.09864, eq. 15.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    return theta**-exponent


def rotary_tables(pos: Tensor, omega: Tensor, pairing: Pairing, dtype: torch.dtype) -> Rotary:
    """Return cosine and sine of pos * omega.

    Args:
        pos: [B|1, T] positions, integers or float64.
        omega: [H|1, d/2] angular frequencies.
        dtype: the dtype of the tables, float32 or float64.
    """
    angle = angles(pos[:, None, :, None], omega[None, :, None, :], dtype)
    return Rotary(angle.cos(), angle.sin(), pairing)


def require_pairs(name: str, sizes: Sizes) -> None:
    """Raise ValueError unless the dimensions of a head make pairs."""
    if sizes.head_dim % 2:
        raise ValueError(f"{name} rotates pairs: head_dim must be even, got {sizes.head_dim}{sizes.head_dim_source}")


class RoPE(PositionalEncoding):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864, eq. 34 and section 3.4.2).

    Pair c of every query and key is rotated by pos * theta ** (-2c / d), so that q . k depends on position through
    pos_i - pos_j only. Nothing is learned. It has no absolute position.

    Args:
        theta: the base of the frequencies, > 0.
        pairing: the pairing of dimensions. "interleaved" rotates (2c, 2c+1), as the paper; "half" rotates (c, c + d/2),
            as most code. They are equal up to a fixed permutation of the dimensions.
        rotary_dim: the number of dimensions of a head that are rotated, the first ones, as in GPT-NeoX and Phi; even,
            <= d. It takes the place of d in the formula. None: all.

    Raises:
        ValueError: head_dim is odd; an option out of range; rotary_dim > head_dim.
    """

    revision = 2
    neutral = {"rotary_dim": None}
    float_positions = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name)
        if rotary_dim is None:
            require_pairs(name, sizes)
        elif rotary_dim > sizes.head_dim:
            raise OptionError(f"rotary_dim must be at most head_dim={sizes.head_dim}, got {rotary_dim}")
        self.theta = theta
        self.pairing = pairing
        self.rotary_dim = rotary_dim or sizes.head_dim

    def omega(self, device: torch.device) -> Tensor:
        """Return the angular frequencies in float64, [H|1, r/2] for the rotary_dim r."""
        return frequencies(self.rotary_dim, self.theta, device)[None]

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        """Return the tables that rotate queries and keys."""
        return rotary_tables(layout.pos, self.omega(h.device), self.pairing, at_least_float32(h))

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        rotary = self.rotation(h, layout)
        return Terms(rotary_q=rotary, rotary_k=rotary)


class LRoPE(RoPE):
    """Learnable RoPE: the logarithms of the angular frequencies are trained, starting at RoPE's.

    beta = ln omega is the parameter. No weight decay: it would pull every frequency towards 1.

    Args:
        theta: the base of the frequencies at the start, > 0.
        pairing: the pairing of dimensions, see `RoPE`.
        share: which layers and heads share frequencies. "none": frequencies per layer and head; "heads": the heads of a
            layer share; "layers": layers share; "all": one set.
        lr: the learning rate of beta, > 0; None: that of the optimizer.

    Raises:
        ValueError: the cases of `RoPE`; share or lr out of range.
    """

    float_positions = True
    weight_decay = False

    def __init__(
        self,
        sizes: Sizes,
        name: str = "lrope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        share: Literal["none", "heads", "layers", "all"] = "none",
        lr: Positive | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.per_layer = share in ("none", "heads")
        self.lr = lr
        heads = 1 if share in ("heads", "all") else sizes.num_heads
        self.beta = nn.Parameter(torch.empty(heads, sizes.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.beta.copy_(frequencies(self.sizes.head_dim, self.theta).log())

    def omega(self, device: torch.device) -> Tensor:
        return self.beta.double().exp()


class LeRoPE(RoPE):
    """LeRoPE: RoPE with a trained factor e^alpha_c on each frequency, for all layers and heads (arXiv:2607.10134,
    section 3.1, as others describe it).

    alpha, d/2 numbers in all, starts at 0: exactly RoPE. No weight decay. The gradient of alpha grows with the distance
    of tokens, so that its learning rate is its own; the paper also clips it by itself, which is not done here. `lrope`
    with share=all trains ln omega in place of alpha, which is the same up to rounding.

    Args:
        theta: the base of the frequencies at the start, > 0.
        pairing: the pairing of dimensions, see `RoPE`.
        lr: the learning rate of alpha, > 0; None: that of the optimizer.

    Raises:
        ValueError: the cases of `RoPE`; lr out of range.
    """

    float_positions = True
    weight_decay = False

    def __init__(
        self,
        sizes: Sizes,
        name: str = "lerope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        lr: Positive | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.lr = lr
        self.alpha = nn.Parameter(torch.empty(sizes.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.alpha)

    def omega(self, device: torch.device) -> Tensor:
        return self.alpha.double().exp() * super().omega(device)


class PRoPE(RoPE):
    """p-RoPE: RoPE without its lowest frequencies (Barbero et al. 2024, arXiv:2410.06205, section 6).

    The int(p * d / 2) pairs with the highest of RoPE's frequencies are rotated; the others are unchanged and carry
    content only. p = 1 is RoPE, p = 0 is NoPE.

    Args:
        theta, pairing: the options of `RoPE`; the exponent's denominator stays d.
        p: the share of the pairs that are rotated, in [0, 1].
        factor: the divisor of every frequency, >= 1, as in transformers' rope type "proportional".

    Raises:
        ValueError: the cases of `RoPE`; p out of range, or above 0 and too small for one pair; factor out of range.
    """

    float_positions = True
    neutral = {"factor": 1.0}

    def __init__(
        self,
        sizes: Sizes,
        name: str = "p_rope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        p: Annotated[float, number_range(0, 1)] = 0.75,
        factor: AtLeastOne = 1.0,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.factor = factor
        self.rotated_pairs = int(p * sizes.head_dim / 2)
        if p > 0 and not self.rotated_pairs:
            raise OptionError(
                f"p must be 0 or at least {2 / sizes.head_dim:g} for head_dim={sizes.head_dim}, got {p}: {name} "
                f"rotates int(p * head_dim / 2) pairs"
            )

    def omega(self, device: torch.device) -> Tensor:
        pair = torch.arange(self.sizes.head_dim // 2, device=device)
        return super().omega(device).where(pair < self.rotated_pairs, 0) / self.factor


class ClippedRoPE(RoPE):
    """Clipped RoPE (Li et al. 2026, arXiv:2602.05258, its released code, where it is called CoPE): low frequencies fade
    out.

    The frequencies of the last n of r/2 pairs are multiplied by (1 + cos(pi m / (n - 1))) / 2 for m = 0, ..., n - 1:
    the first of them stays, the last is 0. The paper argues that a cut at once, as that of `p_rope`, makes logits ring
    over distance. n = 0 and n = 1 are RoPE. Nothing is learned.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        clipped: the number of clipped pairs, n, from 0 to r/2; None: 5/16 of the pairs, rounded up, and at least 2; 20
            of 64, as in the source.

    Raises:
        ValueError: the cases of `RoPE`; clipped out of range.
    """

    float_positions = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "clipped_rope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        clipped: Annotated[int, integers(0)] | None = None,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        pairs = self.rotary_dim // 2
        self.clipped = max(math.ceil(5 * pairs / 16), min(2, pairs)) if clipped is None else clipped
        if self.clipped > pairs:
            raise OptionError(f"clipped must be at most {pairs}, the rotated pairs, got {clipped}")

    def omega(self, device: torch.device) -> Tensor:
        omega = super().omega(device)
        first = omega.shape[-1] - self.clipped
        share = torch.arange(self.clipped, dtype=torch.float64, device=device) / max(1, self.clipped - 1)
        faded = omega[:, first:] * (1 + (math.pi * share).cos()) / 2
        return torch.cat((omega[:, :first], faded), -1)


class ResonanceRoPE(RoPE):
    """Resonance RoPE (Wang et al. 2024, arXiv:2403.00071, its released code): wavelengths that are whole numbers.

    Pair c is rotated by 2 pi p / round(2 pi theta ** (2c / d)) at position p. A pair whose wavelength is below the
    training length then has, at any position beyond, an angle that it had in training: the same bits, since positions
    are first divided by the wavelength and the rest is taken. Longer wavelengths change little. Nothing is learned.

    Args:
        theta: the base of the frequencies before they are rounded, >= 1.
        pairing, rotary_dim: the options of `RoPE`.

    Raises:
        ValueError: the cases of `RoPE`; an option out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "resonance_rope",
        theta: AtLeastOne = 10_000.0,
        pairing: Pairing = "interleaved",
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)

    def wavelengths(self, device: torch.device) -> Tensor:
        """Return the wavelengths, integers [r/2]."""
        return (FULL_TURN / frequencies(self.rotary_dim, self.theta, device)).round().long()

    def omega(self, device: torch.device) -> Tensor:
        return (FULL_TURN / self.wavelengths(device).double())[None]

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        wavelength = self.wavelengths(h.device)
        turned = layout.pos[:, None, :, None] % wavelength
        angle = angles(turned, FULL_TURN / wavelength.double(), at_least_float32(h))
        return Rotary(angle.cos(), angle.sin(), self.pairing)


class XPos(RoPE):
    """Extrapolatable position embedding, xPos (Sun et al. 2022, arXiv:2212.10554, algorithm 1).

    RoPE whose pair c decays with distance, pairs of high frequency fastest: queries are scaled by zeta_c ** s and keys
    by zeta_c ** -s, so that their product carries zeta_c ** ((pos_i - pos_j) / scale_base), with
    zeta_c = (2c + 0.4 d) / (1.4 d) in [2/7, 1). Causal only: it would grow for keys after the query. The origin of s
    affects only the size of intermediate numbers; it is the middle of the positions, and 0 with a cache.

    Args:
        theta, pairing: the options of `RoPE`.
        scale_base: the distance over which pair c decays by zeta_c, > 0.

    Raises:
        ValueError: the cases of `RoPE`; scale_base out of range; attention is bidirectional; activations in float16, or
            positions so far apart that the scales would leave float32.
    """

    causal_only = True
    fallback = "rope"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "xpos",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        scale_base: Positive = 512.0,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.scale_base = scale_base

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        device = h.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h.dtype
        if torch.float16 in (h.dtype, autocast):
            raise ValueError(
                f"{self.name} scales queries and keys beyond the range of float16, got activations in float16: use "
                f"float32, bfloat16 or {self.fallback}"
            )
        low, high = layout.of_keys.pos_range
        if layout.keys is not None:  # keys that are kept were scaled before later positions were known
            low, high = min(low, 0), max(high, 0)
        reach = 60 * self.scale_base  # masked logits grow by up to 3.5 ** 60 = 4e32; float32 ends at 3e38
        if high - low > reach:
            raise ValueError(
                f"{self.name} covers distances up to {reach:g} at scale_base={self.scale_base:g}, got "
                f"{high - low}: raise scale_base or use {self.fallback}"
            )
        rotary = self.rotation(h, layout)
        d, dtype = self.sizes.head_dim, rotary.cos.dtype
        zeta = ((torch.arange(0, d, 2, dtype=torch.float64, device=h.device) + 0.4 * d) / (1.4 * d)).to(dtype)
        centre = 0 if layout.keys is not None else (low + high + 1) // 2
        pos = layout.pos.clamp(low, high)  # padding may have any position
        s = (pos - centre).to(dtype)[:, None, :, None] / self.scale_base
        q, k = (Rotary(rotary.cos * scale, rotary.sin * scale, self.pairing) for scale in (zeta**s, zeta**-s))
        return Terms(rotary_q=q, rotary_k=k)
