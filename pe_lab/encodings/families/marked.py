"""Encodings that add a vector for the mark of a token, such as the place of a digit, given by the dataset."""

from abc import abstractmethod
from typing import Annotated

import torch
from torch import Tensor, nn

from pe_lab.encodings.families.absolute import Absolute
from pe_lab.encodings.families.table import UnfitTableError
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import NonNegative, PositionCount, integers
from pe_lab.encodings.sizes import Sizes

Shift = Annotated[int, integers(0, most=2**25)]


class Marked(Absolute):
    """Base of learned tables whose row depends on a token's mark and, in training, a random shift.

    Vectors are added to the token embeddings, once. Attention sees no positions.

    Args:
        rows: the number of rows of the table.
        std: the initial standard deviation, >= 0: the table starts as N(0, std^2).

    Raises:
        ValueError: an option out of range; tokens have no marks, or larger ones than the table has rows for; later, a
            cache in training mode, where each pass would have other shifts.
    """

    neutral = {}
    start_scale = "std"
    reads_marks = True
    reads_positions = False
    absolute = False
    draws_each_pass = True

    def __init__(self, sizes: Sizes, name: str, rows: int, std: float) -> None:
        super().__init__(sizes, name)
        assert sizes.marks is not None  # or it would have been refused
        if rows <= sizes.marks + self.shift:
            raise UnfitTableError(
                f"rows must be at least {sizes.marks + self.shift + 1} for marks up to {sizes.marks} and a shift of "
                f"{self.shift}, got {rows}"
            )
        self.std = std
        self.table = nn.Parameter(torch.empty(rows, sizes.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def fix_draws(self) -> None:
        """Take the smallest shifts."""
        self.draw = lambda count, seed=None: torch.zeros(count).long()  # type: ignore[method-assign]

    @property
    @abstractmethod
    def shift(self) -> int:
        """The largest shift that must fit into the table."""

    @abstractmethod
    def draw(self, count: int, seed: int | None = None) -> Tensor:
        """Draw what `index` makes the shifts of [count], from the seed; None: from torch's global generator."""

    @abstractmethod
    def index(self, marks: Tensor, shifts: Tensor | None) -> Tensor:
        """Return the rows [B, T] of tokens with these marks.

        Args:
            shifts: the result of `draw`; None in evaluation.
        """

    def locate(self, layout: Layout) -> Layout:
        layout = super().locate(layout)
        # a compiled model reads no numbers: there, the table itself refuses a row that it does not have
        most = len(self.table) - 1 - self.shift
        if not torch.compiler.is_compiling() and layout.largest_mark > most:
            raise ValueError(
                f"{self.name} has rows for marks up to {most}: mark {layout.largest_mark} is beyond its table (raise "
                f"rows and train again)"
            )
        return layout

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        assert layout.marks is not None  # `locate` refuses a layout without
        if layout.memory is not None and self.training:
            raise ValueError(f"{self.name} draws shifts in training: call eval() before decoding with a cache")
        shifts = self.draw(len(layout.marks), layout.seed).to(layout.marks.device) if self.training else None
        return nn.functional.embedding(self.index(layout.marks.long(), shifts), self.table)


class Abacus(Marked):
    """Abacus embeddings (McLeish et al. 2024, arXiv:2405.17399, section 3, and its released code).

    A digit at place p of its number, 1, 2, 3, ..., has row p + k of a trained table, and all other tokens have row 0.
    In training k is drawn once per batch from 0 ... max_shift, both included, from the layout's seed, or without a seed
    from torch's global generator; in evaluation, as after `eval()`, k = 0. So rows up to the longest number of training
    + max_shift are trained. Marks of the dataset are the places: those of data=addition are by significance, which is
    the order of reading, as in the released code, where data.order=little. The source adds it to `none`, to `rope` and
    to `fire`, as pe=sum pe.parts=[abacus,rope] does.

    Args:
        rows: the number of rows of the table, 1,024 in the source; above the longest number + max_shift.
        max_shift: the largest shift in training, >= 0.
        std: the initial standard deviation, >= 0: the table starts as N(0, std^2): 1 in the released class, 1 / sqrt(D)
            in the released model.

    Raises:
        ValueError: the cases of `Marked`.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "abacus",
        rows: PositionCount = 1024,
        max_shift: Shift = 99,
        std: NonNegative = 1.0,
    ) -> None:
        self.max_shift = max_shift
        super().__init__(sizes, name, rows, std)

    @property
    def shift(self) -> int:
        return self.max_shift if self.training else 0

    def draw(self, count: int, seed: int | None = None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return torch.randint(self.max_shift + 1, (1,), generator=generator).expand(count)

    def index(self, marks: Tensor, shifts: Tensor | None) -> Tensor:
        place = marks.clamp(min=0)
        return place if shifts is None else (place + shifts[:, None]).where(place > 0, 0)


class Coupled(Marked):
    """Position coupling (Cho et al. 2024, arXiv:2405.20671, and its released code).

    Tokens that belong together share a row of a trained table: a token with mark m has row s + m, as the digits of one
    significance in both numbers and in the sum, and the signs between them, m = 0; tokens outside, UNMARKED, have row
    0. In training s is drawn for each sequence from 1 ... rows - 1 - its largest mark, from the layout's seed, or
    without a seed from torch's global generator; in evaluation, as after `eval()`, s = 1.

    Of data=addition the rows are those of the released code since October 2024 where data.order=little: signs have the
    lowest row, the ones the next. In its first release, of May 2024, they are mirrored: signs have the highest row, the
    ones the one below, and in evaluation the most significant digit of the sum has row 1. Where the sum begins with its
    most significant digit, the later code gives = the row above it, and here it has that of +, below the ones.

    Args:
        rows: the number of rows of the table, the released max_position + 1; at least the largest mark + 2.
        std: the initial standard deviation, >= 0: the table starts as N(0, std^2).

    Raises:
        ValueError: the cases of `Marked`.
    """

    def __init__(self, sizes: Sizes, name: str = "coupled", rows: PositionCount = 151, std: NonNegative = 1.0) -> None:
        super().__init__(sizes, name, rows, std)

    @property
    def shift(self) -> int:
        return 1

    def draw(self, count: int, seed: int | None = None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return torch.rand(count, dtype=torch.float64, generator=generator)

    def index(self, marks: Tensor, shifts: Tensor | None) -> Tensor:
        if shifts is None:
            start = torch.ones_like(marks[:, :1])
        else:
            room = len(self.table) - 1 - marks.amax(1).clamp(min=0)
            start = 1 + (shifts * room).long()[:, None]
        return (marks + start).where(marks >= 0, 0)
