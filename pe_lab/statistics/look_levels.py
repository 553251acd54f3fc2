"""Looks at increasing numbers of seeds, 5, 8 and 12 by default: undecided encodings get more seeds.

Each look spends a declared part of the level, so that p / part is valid at whatever look a comparison stops
(Bonferroni over looks), and Holm's method over these is valid under any stopping rule and any dependence. There is no
look at three seeds: a quarter of all encodings whose runs are fast or slow by even chance have three that are alike.
"""

from itertools import pairwise

import numpy as np

LOOKS = (5, 8, 12)
SPENT_SHARES = (0.25, 0.35, 0.4)  # parts of the level


def check_looks(looks: tuple[int, ...]) -> None:
    """Raise ValueError unless looks ascend from 2."""
    if not looks or looks[0] < 2 or any(b <= a for a, b in pairwise(looks)):
        raise ValueError(f"looks must be ascending numbers of seeds from 2, got {list(looks)}")


def level_shares(looks: tuple[int, ...]) -> tuple[float, ...]:
    """Return the part of the level that each look spends.

    It is SPENT_SHARES at the looks LOOKS, and otherwise in proportion to the square root of the seeds of the look.
    """
    roots = np.sqrt(looks)
    return SPENT_SHARES if looks == LOOKS else tuple((roots / roots.sum()).tolist())
