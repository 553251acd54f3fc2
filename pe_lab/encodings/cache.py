"""What a model keeps of the tokens it has seen, so that new tokens need not be computed with all earlier ones."""

from torch import Tensor

from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.memory import Memory


class Cache:
    """The tokens of a batch that a model has seen: their layout, and what its layers and its encoding keep of them.

    It starts empty; `Stack.cache` makes one, and every pass of the model adds its tokens. Attention keeps rotated keys
    and values of each layer; an encoding keeps what it asks for by `Layout.with_earlier`.

    Args:
        depth: layers of the model.

    Attributes:
        layout: of all tokens so far, as the encoding located them; None: there are none.
        embedding: what the encoding's `embed` keeps.
        layers: what each layer keeps.
    """

    def __init__(self, depth: int) -> None:
        self.layout: Layout | None = None
        self.embedding = Memory()
        self.layers = [Memory() for _ in range(depth)]

    def __len__(self) -> int:
        """Return the number of tokens of each sequence, padding included."""
        return 0 if self.layout is None else self.layout.segment.shape[1]

    def names(self) -> list[str]:
        """Return the names of what is kept, in alphabetical order."""
        return sorted({name for memory in (self.embedding, *self.layers) for name in memory.kept})

    def add(self, layout: Layout) -> Layout:
        """Add located tokens and return their layout, with all tokens as its keys.

        Raises:
            ValueError: another batch; padding behind a token.
        """
        if self.layout is not None and len(layout.segment) != len(self.layout.segment):
            raise ValueError(
                f"the cache must be that of this batch: it holds {len(self.layout.segment)} sequences, got "
                f"{len(layout.segment)}"
            )
        layout = layout.after(self.layout)
        if not layout.of_keys.one_segment:
            real = layout.of_keys.source.segment != PADDING
            if (real[:, :-1] & ~real[:, 1:]).any():
                raise ValueError("sequences in a cache must be padded on the left, got padding behind a token")
        self.layout = layout.of_keys
        return layout

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, [N] integers, in this order, as beam search does; one may be named more than once."""
        if self.layout is not None:
            pos = self.layout.pos.expand(len(self.layout.segment), *self.layout.pos.shape[1:])
            self.layout = Layout(pos[rows], self.layout.segment[rows], self.layout.causal, self.layout.seed)
        for memory in (self.embedding, *self.layers):
            memory.select(rows)
