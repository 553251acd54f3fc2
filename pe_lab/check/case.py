"""An encoding under check, in the layouts and small models that its promises are about."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pe_lab.check.promise import largest_difference, require
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding, UnfitError
from pe_lab.encodings.layout import PADDING, UNMARKED, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms
from pe_lab.model.transformer import Transformer

B, T, VOCABULARY = 3, 9, 11
GRID_WIDTH = 3  # columns of the grid that T tokens make
MIN_DEPTH = 2  # layers of the models; more if the encoding has another in each of more layers
MAX_MARK = 3  # the largest mark of a token
LAYOUT_SEED = 4  # the seed of the layouts: what is drawn is the same in every pass


class EncodingCase:
    """An encoding under check.

    Args:
        name: the name of the encoding.
        make: a function that makes the encoding for given sizes, as conf/pe instantiates it.
        width, num_heads: D and H of the models.

    Attributes:
        on_grid, causal_only, contiguous_only, absolute, reads_marks, reads_content, reads_positions: what the encoding
            declares.
        cls: the class of the encoding.
        depth: the number of layers of the models.

    Raises:
        ValueError: it cannot be made for a causal sequence of 9 tokens, nor for a grid of 3 x 3.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., PositionalEncoding],
        width: int = 16,
        num_heads: int = 2,
    ) -> None:
        self.name, self.make = name, make
        self.width, self.num_heads = width, num_heads
        try:
            encoding = make(Sizes(width, num_heads, T, marks=MAX_MARK))
        except UnfitError:
            encoding = make(Sizes(width, num_heads, T, grid_width=GRID_WIDTH, marks=MAX_MARK))
        self.cls = type(encoding)
        self.depth = max(MIN_DEPTH, encoding.period)
        self.on_grid, self.causal_only, self.reads_marks = encoding.on_grid, encoding.causal_only, encoding.reads_marks
        self.contiguous_only, self.absolute = encoding.contiguous_only, encoding.absolute
        self.reads_content, self.reads_positions = encoding.reads_content, encoding.reads_positions

    @property
    def grid_width(self) -> int | None:
        """The columns of the grid that the encoding needs; None: it needs none."""
        return GRID_WIDTH if self.on_grid else None

    @property
    def masks(self) -> tuple[bool, ...]:
        """Whether attention is causal: in the layouts that the encoding is defined for."""
        return (True,) if self.causal_only else (True, False)

    def sizes(self, length: int = T, grid_width: int | None = None, causal: bool = True) -> Sizes:
        """Return the sizes of a model for training sequences of `length`."""
        return Sizes(self.width, self.num_heads, length, causal, grid_width, depth=self.depth, marks=MAX_MARK)

    def encoding(self, length: int = T) -> PositionalEncoding:
        """Return the encoding as it starts; it takes layouts on a line and draws no positions at random."""
        return on_a_line(self.started(self.sizes(length, self.grid_width)))

    def started(self, sizes: Sizes) -> PositionalEncoding:
        """Return the encoding with its initial parameters."""
        encoding = self.make(sizes)
        with suppress(ValueError):  # a class without reset_parameters is told so by a check of its own
            initialise_parameters(encoding, seed=0)
        return encoding

    def model(self, length: int = T, implementation: str = "auto", grid_width: int | None = None) -> Transformer:
        """Return a float64 model whose encoding takes layouts on a line, with parameters off their initial values.

        Args:
            grid_width: the number of columns of the sequences, for an encoding that needs no grid.
        """
        config = Model(
            depth=self.depth,
            width=self.width,
            num_heads=self.num_heads,
            mlp_ratio=2,
            norm="pre",
            dropout=0.0,
            embedding_std=1.0,
            scale_tokens=False,
        )
        task = Task(
            VOCABULARY, length, VOCABULARY, causal=True, grid_width=grid_width or self.grid_width, marks=MAX_MARK
        )
        model = Transformer(config, self.make, task, implementation)
        on_a_line(model.encodings.first)
        initialise_parameters(model, seed=0)
        with torch.no_grad():
            for parameter in model.encodings.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model.double()

    @cached_property
    def draws(self) -> bool:
        """Whether vectors or terms are drawn at random where positions are fixed."""
        return self.depends_on_the_seed(self.encoding(), whole_layout(B, T))

    def depends_on_the_seed(self, encoding: PositionalEncoding, layout: Layout) -> bool:
        """Return whether vectors or terms differ between layouts [B, T] with other seeds for random draws."""
        x = torch.randn(B, T, self.width)
        drawn = []
        for seed in range(4):
            located = encoding.locate(replace(layout, seed=seed))
            terms = dict(tensors_in(encoding.terms(x, located)))
            drawn.append([encoding.embed(x, located), *encoding.mix(x, located), *terms.values()])
        return any(len(other) != len(drawn[0]) or not all(map(torch.equal, drawn[0], other)) for other in drawn[1:])


def on_a_line(encoding: PositionalEncoding) -> PositionalEncoding:
    """Let an encoding on a grid take layouts on a line, and one that draws positions or shifts take fixed ones."""
    locate = encoding.locate

    def locate_on_a_line(layout: Layout) -> Layout:
        if encoding.on_grid:
            layout = replace(layout, pos=torch.stack((layout.pos // GRID_WIDTH, layout.pos % GRID_WIDTH), -1))
        return locate(layout)

    encoding.locate = locate_on_a_line  # type: ignore[method-assign]
    for module in encoding.modules():
        if isinstance(module, PositionalEncoding):
            module.fix_draws()
    return encoding


def tensors_in(terms: Terms, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of terms with their names, as rotary_q.cos; a layout that a part keeps is no term."""
    for field in fields(terms):
        value = getattr(terms, field.name)
        if isinstance(value, Tensor):
            yield prefix + field.name, value
        elif is_dataclass(value) and not isinstance(value, Layout):
            yield from tensors_in(value, f"{prefix}{field.name}.")  # type: ignore[arg-type]


def same_terms(terms: Terms, expected: Terms, when: str) -> float:
    """Return 0 if terms have the same bits; raises BrokenError if not."""
    actual, wanted = dict(tensors_in(terms)), dict(tensors_in(expected))
    require(actual.keys() == wanted.keys(), f"{when}: {sorted(actual)} in place of {sorted(wanted)}")
    require(
        terms.normalizer == expected.normalizer,
        f"{when}: weights by {terms.normalizer} in place of {expected.normalizer}",
    )
    return max((largest_difference(actual[name], wanted[name], f"{when}: {name}") for name in wanted), default=0.0)


def whole_layout(batch: int, length: int, causal: bool = True, grid_width: int | None = None) -> Layout:
    """Return the layout of sequences without padding."""
    return padded_layout([length] * batch, length, causal, grid_width)


def padded_layout(lengths: list[int], length: int, causal: bool, grid_width: int | None = None) -> Layout:
    """Return the layout of sequences that are padded on the right to `length`."""
    return marked_layout(
        replace(Layout.of_lengths(torch.tensor(lengths), length, causal, grid_width), seed=LAYOUT_SEED)
    )


def at_positions(pos: list[int], causal: bool = True) -> Layout:
    """Return the layout of one sequence at given positions."""
    return marked_layout(Layout(torch.tensor([pos]), torch.zeros(1, len(pos), dtype=torch.long), causal, LAYOUT_SEED))


def marked_layout(layout: Layout) -> Layout:
    """Return the layout with marks, which repeat in every document: outside, between, first place, second place, ..."""
    return replace(layout, marks=layout.rank % (MAX_MARK + 2) + UNMARKED)


def random_tokens(*shape: int) -> Tensor:
    """Return tokens drawn from torch's generator."""
    return torch.randint(VOCABULARY, shape)


def token_mask(layout: Layout) -> Tensor:
    """Return [B, T], which tokens are not padding."""
    return layout.segment != PADDING
