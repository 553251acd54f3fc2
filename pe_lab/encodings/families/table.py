"""Encodings that look up a row of a table per position."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import UnfitError
from pe_lab.encodings.families.absolute import Absolute, CombineMethod, Place, sinusoid
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import NonNegative, OptionError, PositionCount, Positive
from pe_lab.encodings.sizes import Sizes


class Table(Absolute):
    """Base of tables with a row per position; positions without a row are refused.

    Args:
        max_len: the number of rows, >= the training length.
        at, combine: the options of `Absolute`.
        share: which layers share a table. "layers": one table for all layers; "none": a table per layer, which excludes
            at="input".

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    neutral = {"at": "input", "combine": "add", "share": "layers"}
    start_scale: ClassVar[str | None] = None
    table: Tensor

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        max_len: PositionCount = 512,
        at: Place = "input",
        combine: CombineMethod = "add",
        share: Literal["layers", "none"] = "layers",
    ) -> None:
        super().__init__(sizes, name, at, combine)
        require_enough_rows(max_len, sizes.length)
        self.per_layer = share == "none"
        if self.per_layer and at == "input":
            raise OptionError("share=none needs at=every_layer or query_key, got at=input: it is added once")
        self.make(torch.empty(max_len, sizes.width))
        self.reset_parameters()

    def make(self, table: Tensor) -> None:
        """Register the table [max_len, D], as a parameter."""
        self.table = nn.Parameter(table)

    def locate(self, layout: Layout) -> Layout:
        layout = super().locate(layout)
        require_in_table(self.name, layout, len(self.table))
        return layout

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        require_in_table(self.name, layout, len(self.table))
        # padding may have any position: its rows are not used, but must exist
        return self.rows(layout.pos.clamp(0, len(self.table) - 1))

    def rows(self, pos: Tensor) -> Tensor:
        """Return the rows of positions in 0 ... max_len - 1, [B|1, T, D]."""
        return nn.functional.embedding(pos, self.table)


class UnfitTableError(UnfitError, OptionError):
    """Raised if a table has fewer rows than training has positions."""


def require_enough_rows(max_len: int, length: int) -> None:
    """Raise UnfitTableError if the table has fewer rows than training needs."""
    if max_len < length:
        raise UnfitTableError(
            f"max_len must be at least the length of the sequences, got max_len={max_len}, length={length}"
        )


def require_in_table(name: str, layout: Layout, max_len: int) -> None:
    """Raise ValueError if the position of a token is outside of 0 ... max_len - 1."""
    low, high = layout.pos_range
    if low < 0 or high >= max_len:
        raise ValueError(
            f"{name} has positions 0 to {max_len - 1}: position {low if low < 0 else high} is beyond "
            f"its table (raise max_len and train again)"
        )


class Learnable(Table):
    """A trained vector per position (Devlin et al. 2019, arXiv:1810.04805).

    Positions beyond the table have no vector. `learnable_per_layer` is the same with a table in every layer, added to
    the input of queries, keys and values.

    Args:
        max_len, at, combine, share: the options of `Table`.
        std: the initial standard deviation, >= 0: the table starts as N(0, std^2). In the source token embeddings have
            the same 0.02; next to token embeddings of standard deviation 1, a short training does not make the table
            large enough to matter.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    neutral = {**Table.neutral, "std": 0.02}
    start_scale = "std"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "learnable",
        max_len: PositionCount = 512,
        at: Place = "input",
        combine: CombineMethod = "add",
        share: Literal["layers", "none"] = "layers",
        std: NonNegative = 0.02,
    ) -> None:
        self.std = std
        super().__init__(sizes, name, max_len, at, combine, share)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)


class SinInit(Table):
    """A trained table that starts as `sinusoidal`.

    Args:
        theta: the base of the initial sinusoids' frequencies, > 0.
        max_len, at, combine, share: the options of `Table`.
        size: a factor on the initial sinusoids, > 0.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    revision = 2
    neutral = {**Table.neutral, "size": 1.0}
    start_scale = "size"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "sininit",
        theta: Positive = 10_000.0,
        max_len: PositionCount = 512,
        at: Place = "input",
        combine: CombineMethod = "add",
        share: Literal["layers", "none"] = "layers",
        size: Positive = 1.0,
    ) -> None:
        self.theta = theta
        self.start_size = size
        super().__init__(sizes, name, max_len, at, combine, share)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            pos = torch.arange(len(self.table))
            self.table.copy_(self.start_size * sinusoid(pos, self.sizes.width, self.theta, torch.float32))


class Random(Table):
    """A fixed random vector per position, U(-size, size), drawn with the initial weights and never trained: a baseline.

    Vectors of near positions are no more similar than those of distant ones.

    Args:
        max_len, at, combine: the options of `Table`.
        size: half the width of the uniform distribution, > 0.

    Raises:
        ValueError: an option out of range; later, a position < 0 or >= max_len.
    """

    neutral = Absolute.neutral
    start_scale = "size"

    def __init__(
        self,
        sizes: Sizes,
        name: str = "random",
        max_len: PositionCount = 512,
        at: Place = "input",
        combine: CombineMethod = "add",
        size: Positive = 1.0,
    ) -> None:
        self.start_size = size
        super().__init__(sizes, name, max_len, at, combine)

    def make(self, table: Tensor) -> None:
        self.register_buffer("table", table)

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.table, -self.start_size, self.start_size)
