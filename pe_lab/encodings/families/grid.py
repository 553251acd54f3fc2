"""Encodings of positions on a grid: (row, column)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.angles import FULL_TURN, round_angles
from pe_lab.encodings.base import at_least_float32
from pe_lab.encodings.families.absolute import CombineMethod, Place, Sinusoidal, sinusoid
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.families.table import Learnable
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import NonNegative, OptionError, PositionCount, Positive
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary


class Sinusoidal2D(Sinusoidal):
    """Fixed sinusoids: of the row in the first D/2 dimensions, of the column in the rest (after arXiv:1706.03762).

    Args:
        theta, at, combine, size: the options of `Sinusoidal`.

    Raises:
        ValueError: an option out of range; the width is odd; positions without a grid.
    """

    on_grid = True
    fallback = "sinusoidal"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "sinusoidal_2d",
        theta: Positive = 10_000.0,
        at: Place = "input",
        combine: CombineMethod = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, theta, at, combine, size)
        require_halves(name, sizes)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        return sinusoid(layout.pos, self.sizes.width // 2, self.theta, dtype).flatten(-2)


class Learnable2D(Learnable):
    """A learned vector per row and per column, D/2 each, concatenated (Carion et al. 2020, arXiv:2005.12872).

    Args:
        max_len: the number of rows and of columns.
        at, combine, share, std: the options of `Learnable`; the source starts from U(0, 1).

    Raises:
        ValueError: the cases of `Learnable`; the width is odd; positions without a grid.
    """

    on_grid = True
    fallback = "learnable"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "learnable_2d",
        max_len: PositionCount = 512,
        at: Place = "input",
        combine: CombineMethod = "add",
        share: Literal["layers", "none"] = "layers",
        std: NonNegative = 0.02,
    ) -> None:
        super().__init__(sizes, name, max_len, at, combine, share, std)
        require_halves(name, sizes)

    def rows(self, pos: Tensor) -> Tensor:
        parts = zip(pos.unbind(-1), self.table.chunk(2, -1), strict=True)
        return torch.cat([nn.functional.embedding(along, table) for along, table in parts], -1)


def require_halves(name: str, sizes: Sizes) -> None:
    """Raise ValueError if the width cannot be split between two axes."""
    if sizes.width % 2:
        raise ValueError(f"{name} gives each axis half of the dimensions: width must be even, got {sizes.width}")


def grid_tables(pos: Tensor, omega: Tensor, pairing: Pairing, dtype: torch.dtype) -> Rotary:
    """Return cosine and sine of row * omega_row + column * omega_column.

    Args:
        pos: [B|1, T, 2] positions, integers or float64.
        omega: [2, H|1, d/2] angular frequencies in float64.
        dtype: the dtype of the tables, float32 or float64.
    """
    row, column = pos[:, None, :, :, None].double().unbind(3)
    angle = round_angles(row * omega[0, None, :, None] + column * omega[1, None, :, None], dtype)
    return Rotary(angle.cos(), angle.sin(), pairing)


def axis_frequencies(head_dim: int, theta: float, device: torch.device | None = None) -> Tensor:
    """Return the angular frequencies theta ** (-4c / d) in float64, c < d/4, [d/4] (arXiv:2403.13298, eq. 11)."""
    exponent = torch.arange(0, head_dim, 4, dtype=torch.float64, device=device) / head_dim
    return theta**-exponent


class AxialRoPE(RoPE):
    """Axial rotary position embedding: half of the pairs are rotated by the row, half by the column
    (Heo et al. 2024, arXiv:2403.13298, section 3.2).

    Args:
        theta: the base of the frequencies, > 0; smaller than for sequences, since grids have few rows.
        pairing: the pairing of dimensions, see `RoPE`.
        coordinates: the unit of positions. "index" takes rows and columns as they are, integers or float64. "unit"
            takes 2 pi times the centre of a cell, in -1 ... 1 from the first to the last row or column of its document,
            so that angles do not depend on the size of a picture (DINOv3, Simeoni et al. 2025, arXiv:2508.10104, its
            released code, with pairing=half).

    Raises:
        ValueError: the cases of `RoPE`; head_dim is not a multiple of 4; positions without a grid; "unit" with causal
            attention, in which the size of the grid is not known.
    """

    float_positions = True
    on_grid = True
    fallback = "rope"
    neutral = {"coordinates": "index"}

    def __init__(
        self,
        sizes: Sizes,
        name: str = "rope_2d",
        theta: Positive = 100.0,
        pairing: Pairing = "interleaved",
        coordinates: Literal["index", "unit"] = "index",
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        if coordinates == "unit" and sizes.causal:
            raise OptionError(f"coordinates of {name} must be index with causal attention, got unit")
        self.coordinates = coordinates
        self.float_positions = coordinates == "index"
        if sizes.head_dim % 4:
            raise ValueError(
                f"{name} rotates pairs on two axes: head_dim must be a multiple of 4, got "
                f"{sizes.head_dim}{sizes.head_dim_source}"
            )

    def omega(self, device: torch.device) -> Tensor:
        """Return the angular frequencies of row and column in float64, [2, H|1, d/2]."""
        along = axis_frequencies(self.sizes.head_dim, self.theta, device)
        none = torch.zeros_like(along)
        return torch.stack((torch.cat((along, none)), torch.cat((none, along))))[:, None]

    def rotation(self, h: Tensor, layout: Layout) -> Rotary:
        pos = layout.pos if self.coordinates == "index" else FULL_TURN * centres(layout)
        return grid_tables(pos, self.omega(h.device), self.pairing, at_least_float32(h))


def centres(layout: Layout) -> Tensor:
    """Return the centres of cells [B, T, 2] in float64, in -1 ... 1 over the rows and columns of their document."""
    same_document = (layout.segment[:, :, None] == layout.segment[:, None, :])[..., None]
    pos, most = layout.pos[:, None], torch.iinfo(torch.long).max
    low, high = pos.where(same_document, most).amin(2), pos.where(same_document, -most).amax(2)
    return (2 * (layout.pos - low) + 1) / (high - low + 1).double() - 1


class MixedRoPE(AxialRoPE):
    """Rotary position embedding with learned two-dimensional frequencies, per layer and head
    (Heo et al. 2024, arXiv:2403.13298, eq. 13).

    They start as the axial frequencies, rotated by a random angle in each head; no weight decay.

    Args:
        theta: the base of the frequencies at the start, > 0.
        pairing: the pairing of dimensions, see `RoPE`.

    Raises:
        ValueError: the cases of `AxialRoPE`.
    """

    float_positions = True
    neutral = {}
    fallback = "lrope"
    per_layer = True
    weight_decay = False

    def __init__(
        self, sizes: Sizes, name: str = "rope_mixed", theta: Positive = 10.0, pairing: Pairing = "interleaved"
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.frequency = nn.Parameter(torch.empty(2, sizes.num_heads, sizes.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        size = axis_frequencies(self.sizes.head_dim, self.theta)
        rotation = 2 * math.pi * torch.rand(self.sizes.num_heads, 1, dtype=torch.float64)
        angle = torch.cat((rotation.expand(-1, len(size)), rotation.expand(-1, len(size)) + math.pi / 2), 1)
        with torch.no_grad():
            self.frequency.copy_(size.repeat(2) * torch.stack((angle.cos(), angle.sin())))

    def omega(self, device: torch.device) -> Tensor:
        return self.frequency.double()
