"""Encodings that limit how far a query sees."""

from typing import Annotated

from torch import Tensor

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Length, OptionError, integers
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms


class Window(PositionalEncoding):
    """A sliding window: a query sees only keys within this distance (Mistral 7B, arXiv:2310.06825, section 2).

    Key j counts for query i if |i - j| < window: `window` keys at most in causal attention, the query's own among them,
    and 2 window - 1 in bidirectional attention. Nothing is learned. A layer does not tell the keys within the window
    apart, so it is for sums with a rotation or a bias, and for some layers or heads of a model.

    Args:
        window: the size of the window in positions, >= 1.

    Raises:
        ValueError: window out of range.
    """

    def __init__(self, sizes: Sizes, name: str = "window", window: Length = 8) -> None:
        super().__init__(sizes, name)
        self.window = window

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(window=(self.window,))


class HardAlibi(PositionalEncoding):
    """Hard-ALiBi: heads with windows of 1, 2, 3 ... positions (Jelassi et al. 2024, arXiv:2402.01032; its code).

    The first M heads see the last 1, 2, ..., M keys, the query's own among them; the others see all keys and have no
    position. Every layer is the same, and nothing is learned. The source is causal; in bidirectional attention head m
    sees the keys with |i - j| < m.

    Args:
        windows: the number of heads with a window, M, 0 ... H; None: half of them, as the code has it, rounded down.

    Raises:
        ValueError: windows out of range.
    """

    def __init__(
        self, sizes: Sizes, name: str = "hard_alibi", windows: Annotated[int, integers(0)] | None = None
    ) -> None:
        super().__init__(sizes, name)
        self.windows = sizes.num_heads // 2 if windows is None else windows
        if self.windows > sizes.num_heads:
            raise OptionError(f"windows must be at most the {sizes.num_heads} heads, got {windows}")

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        free = self.sizes.num_heads - self.windows
        return Terms(window=(*range(1, self.windows + 1), *[None] * free))
