"""What an encoding declares, and what holds of it for an encoding that is made of others."""

from collections.abc import Callable, Iterable
from math import lcm
from typing import Annotated, Any, get_type_hints


def _common_multiple(periods: Iterable[int]) -> int:
    return lcm(*periods)


def _first_reason(reasons: Iterable[str | None]) -> str | None:
    return next(filter(None, reasons), None)


class Declarations:
    """What an encoding declares, as attributes of its class, or of the object where its options decide.

    The annotation has the rule for an encoding that is made of others, its parts: that one of them is enough, `any`, or
    that all are needed, `all`, say.

    Attributes:
        reads_content: whether `terms` depends on h; if not, layers that share an encoding call it once.
        reads_positions: whether positions matter; if not, only the order of the tokens does.
        absolute: whether it sees more of positions than distances, so that a shift of all of them changes attention.
        reads_marks: whether it needs the marks of tokens.
        per_layer: whether each layer has its own encoding, made with the layer's index in `sizes`.
        period: the number of layers after which its pattern repeats; a model needs at least so many.
        causal_only: whether it is defined for causal attention only.
        contiguous_only: whether it is defined only where the tokens of a document are next to each other, with neither
            padding nor another document between them; `Stack` refuses other layouts. Without it, a document counts as
            if it were alone, whatever stands between its tokens.
        whole_sequence: the reason why it needs all tokens of a sequence at once, so that a cache cannot serve it; None:
            it does not, and what it needs of earlier tokens it gets from `Layout.with_earlier`.
        draws_positions: whether `locate` returns other positions than those of the layout.
        draws_each_pass: whether it draws random numbers in every pass of training, which a graph cannot hold.
        on_grid: whether it needs positions with two axes; others read a grid row by row.
        three_axes: whether it takes positions with three axes, time, row and column, beside those on a line.
        float_positions: whether it takes positions in float64 beside integers. A subclass says so again, as it may read
            positions in another way.
        phased: whether `advance` changes it, so that it depends on when the training ends.
    """

    reads_content: Annotated[bool, any] = False
    reads_positions: Annotated[bool, any] = True
    absolute: Annotated[bool, any] = False
    reads_marks: Annotated[bool, any] = False
    per_layer: Annotated[bool, any] = False
    period: Annotated[int, _common_multiple] = 1
    causal_only: Annotated[bool, any] = False
    contiguous_only: Annotated[bool, any] = False
    whole_sequence: Annotated[str | None, _first_reason] = None
    draws_positions: Annotated[bool, any] = False
    draws_each_pass: Annotated[bool, any] = False
    on_grid: Annotated[bool, any] = False
    three_axes: Annotated[bool, all] = False
    float_positions: Annotated[bool, all] = False
    phased: Annotated[bool, any] = False


COMBINING_RULES: dict[str, Callable[[Iterable[Any]], Any]] = {
    name: annotation.__metadata__[0] for name, annotation in get_type_hints(Declarations, include_extras=True).items()
}
