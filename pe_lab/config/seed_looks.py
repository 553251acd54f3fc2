"""Numbers of seeds at which a study that adds seeds looks at its results. Only Python's own library is imported."""

import re
from collections.abc import Sequence
from itertools import pairwise

USUAL_LOOKS = (2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200, 300, 450, 675)
MAX_SEEDS = 1000
_SEEDS = re.compile(r"([0-9]{1,4})\.\.([0-9]{1,4})")


def looks_between(first: int, most: int) -> tuple[int, ...]:
    """Return the usual looks from the first to the largest number of seeds."""
    return tuple(dict.fromkeys([first, *(look for look in USUAL_LOOKS if first < look < most), most]))


def parse_seeds(text: str) -> tuple[int, int]:
    """Read the first and the largest number of seeds from text such as `5..12`.

    Raises:
        ValueError: the text is not a..b with 2 <= a <= b.
    """
    match = _SEEDS.fullmatch(str(text))
    first, most = map(int, match.groups()) if match else (0, 0)
    if not 2 <= first <= most <= MAX_SEEDS:
        raise ValueError(
            f"decide.seeds must be first..most with 2 <= first <= most <= {MAX_SEEDS}, as 5..12, got {text!r}"
        )
    return first, most


def study_looks(seeds: str, looks: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the looks of a study.

    Args:
        seeds: the first and the largest number of seeds, as `5..12`.
        looks: the numbers of seeds to look at, ascending from the first to the largest; None: the usual ones.

    Raises:
        ValueError: `seeds` is not a..b with 2 <= a <= b, or `looks` does not ascend from a to b.
    """
    first, most = parse_seeds(seeds)
    if looks is None:
        return looks_between(first, most)
    counts = tuple(looks)
    ascending = all(a < b for a, b in pairwise(counts))
    if not counts or not ascending or (counts[0], counts[-1]) != (first, most):
        raise ValueError(
            f"decide.looks must ascend from {first} to {most}, as decide.seeds={seeds} says, got {list(counts)}"
        )
    return counts
