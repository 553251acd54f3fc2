"""Rotations by positions with three axes: time, row and column."""

from typing import Annotated

import torch
from torch import Tensor

from pe_lab.encodings.angles import angles
from pe_lab.encodings.base import at_least_float32
from pe_lab.encodings.families.rotary import RoPE, frequencies
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Dimensions, OptionError, Positive, is_integer, list_where
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary

AXES = ("time", "row", "column")
Sections = Annotated[list[int], list_where("a list of 3 integers of at least 0", lambda x: is_integer(x) and x >= 0)]


class MRoPE(RoPE):
    """Multimodal rotary position embedding, M-RoPE (Wang et al. 2024, arXiv:2409.12191, and Qwen2-VL to Qwen3-VL in
    transformers).

    A position is (time, row, column), of which text has three equal ones: there it is RoPE, and positions on a line
    are taken as such. Every pair c of RoPE's frequencies is rotated by one of the three: by sections one after the
    other, or interleaved, c = 0, 3, 6, ... by time, 1, 4, ... by row and 2, 5, ... by column, as far as the sections of
    row and column reach, and the rest by time. Nothing is learned. Positions with two axes are read row by row.

    Args:
        theta, pairing, rotary_dim: the options of `RoPE`.
        sections: the numbers of pairs for time, row and column, as many in all as are rotated; None: three eighths for
            row and for column as in Qwen2-VL, and thirds if they alternate.
        interleaved: whether the pairs of the axes alternate, as in Qwen3-VL.

    Raises:
        ValueError: the cases of `RoPE`; sections that do not add up to the rotated pairs, or that leave no room to
            alternate.
    """

    float_positions = True
    three_axes = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "mrope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "half",
        sections: Sections | None = None,
        interleaved: bool = False,
        rotary_dim: Dimensions | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing, rotary_dim)
        pairs = self.rotary_dim // 2
        if sections is None:
            along = pairs // 3 if interleaved else 3 * pairs // 8
            sections = [pairs - 2 * along, along, along]
        if len(sections) != len(AXES) or sum(sections) != pairs:
            raise OptionError(
                f"sections must be pairs of {', '.join(AXES)} that add up to {pairs}, the rotated pairs, got "
                f"{list(sections)}, which add up to {sum(sections)}"
            )
        if interleaved and (3 * sections[1] - 1 > pairs or 3 * sections[2] > pairs):
            raise OptionError(
                f"sections of row and column must have at most {(pairs + 1) // 3} and {pairs // 3} pairs to alternate, "
                f"got {list(sections)}"
            )
        self.axis = [0] * pairs  # the axis of each pair
        for number in (1, 2):
            start = sum(sections[:number])
            turn = range(number, 3 * sections[number], 3) if interleaved else range(start, start + sections[number])
            for pair in turn:
                self.axis[pair] = number

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        if layout.pos.dim() == 2:
            return super().rotation(h, layout)
        omega = frequencies(self.rotary_dim, self.theta, h.device)
        pos = torch.stack([layout.pos[..., axis] for axis in self.axis], -1)  # [B|1, T, r/2]
        angle = angles(pos[:, None], omega, at_least_float32(h))
        return Rotary(angle.cos(), angle.sin(), self.pairing)
