"""Rotation of half of the dimensions, where keys of the other half are those of the token before."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pe_lab.encodings.families.convolution import NO_SEGMENT
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import OptionError, Positive
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Terms


@dataclass(frozen=True)
class KeysBefore:
    """Takes the pairs of each key that are not rotated from the key of the token before; queries stay as they are.

    The first token of a document keeps its own.

    Args:
        head_dim: the dimension of a head, d.
        rotated: the number of pairs that are rotated, the first ones.
        pairing: the pairing of dimensions.
        layout: the layout of these tokens; with a memory, which then stores their keys for later tokens.
    """

    head_dim: int
    rotated: int
    pairing: Pairing
    layout: Layout

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        length, layout = k.shape[2], self.layout
        all_keys = k if layout.memory is None else layout.with_earlier("unshifted", k.transpose(1, 2)).transpose(1, 2)
        total = all_keys.shape[2]
        previous_keys = nn.functional.pad(all_keys, (0, 0, 1, 0))[:, :, total - length : total]
        segment = layout.of_keys.segment
        same_document = segment == nn.functional.pad(segment, (1, 0), value=NO_SEGMENT)[:, :total]
        is_fixed = torch.arange(self.head_dim // 2, device=k.device) >= self.rotated
        shifted = torch.cat((is_fixed, is_fixed)) if self.pairing == "half" else is_fixed.repeat_interleave(2)
        return q, previous_keys.where(same_document[:, None, total - length :, None] & shifted, k)


class KeyOffsetRoPE(RoPE):
    """Half-truncated RoPE with a partial key offset (github.com/KellerJordan/modded-nanogpt, `train_gpt.py`, 2025).

    The first d/4 pairs are rotated, pair c with the frequency theta ** (-c / (d/4 - 1)), from 1 to 1 / theta. In the
    other pairs, which carry content alone, a key has the values of the token before: its query finds what followed a
    token in one layer, not two. Nothing is learned. Without the offset this is `p_rope` with p = 1/2 and
    theta ** (2d / (d - 4)).

    In the source the offset is in layers of long windows only, and had the lowest loss in all, as here. It goes over
    the ends of packed documents there, but not here: a first token has its own key. Pairs turn the other way round
    there, which is equal up to the sign of dimensions.

    Causal only, as in the source, and for documents in one piece.

    Args:
        theta: the ratio of the highest to the lowest frequency, > 0.
        pairing: the pairing of dimensions, see `RoPE`; the source has had both.

    Raises:
        ValueError: head_dim is odd or below 4; an option out of range; bidirectional attention.
    """

    reads_content = True  # each layer keeps its keys of earlier tokens
    causal_only = True
    contiguous_only = True
    fallback = "p_rope"

    def __init__(
        self, sizes: Sizes, name: str = "key_offset", theta: Positive = 1024.0, pairing: Pairing = "interleaved"
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.rotated_pairs = sizes.head_dim // 4
        if not self.rotated_pairs:
            raise OptionError(f"{name} rotates head_dim / 4 pairs: head_dim must be at least 4, got {sizes.head_dim}")

    def omega(self, device: torch.device) -> Tensor:
        omega = torch.zeros(self.sizes.head_dim // 2, dtype=torch.float64, device=device)
        exponents = torch.linspace(0, 1, self.rotated_pairs, dtype=torch.float64, device=device)
        omega[: self.rotated_pairs] = self.theta**-exponents
        return omega[None]

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        rotary = self.rotation(h, layout)
        lift = KeysBefore(self.sizes.head_dim, self.rotated_pairs, self.pairing, layout)
        return Terms(lift=lift, rotary_q=rotary, rotary_k=rotary)
