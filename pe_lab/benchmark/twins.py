"""Twins, the placebo of the benchmark: encodings that train alike at the training length, under different names.

Twins have equal outputs and gradients at step 0, their parameters get the same updates, so that trainings with the same
seed agree up to rounding, and they are tuned by the same tries. Near-twins begin alike and move apart slowly. A verdict
that twins differ is wrong.

Which they are was measured on the benchmark's model: after four steps, logits of twins are 1e-5 apart or less, those of
near-twins 1.5e-3, relative to their size. `integer` and `normalized` add the same number to all features of a token,
which the normalization takes out again: they train as `none` does, and so does `temperature`, whose factor is 1.
"""

from collections.abc import Mapping
from itertools import combinations

import pandas as pd

from pe_lab.benchmark.task_statistics import compare_pairs, task_runs
from pe_lab.benchmark.tasks import task_named
from pe_lab.statistics import DIFFERENT_VERDICTS, share_interval

TWINS: tuple[tuple[str, ...], ...] = (("none", "integer", "normalized", "temperature"), ("rope", "rope_dynamic_ntk"))
NEAR_TWINS: tuple[tuple[str, str], ...] = (
    *(("rope", pe) for pe in ("carope", "clipped_rope", "lerope", "lrope", "p_rope", "tape", "xpos")),
    *(("none", pe) for pe in ("cope", "selective_rope", "urpe", "wall")),
    ("alibi", "bam"),
)


def twin_pairs() -> list[tuple[str, str]]:
    """Return every two twins."""
    return [pair for group in TWINS for pair in combinations(group, 2)]


def placebo(results: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a line per task and two twins that are both measured there, or near-twins.

    Args:
        results: the published rows of each task, by its name.

    Returns:
        The columns kind (twins or near), task, pe, baseline; seeds (shared); apart: the largest difference of y with
        the same seed; same: the verdict with the same seeds; shifted: the verdict where each seed of one is compared
        with the next seed of the other, as of two encodings that have nothing in common but their law.
    """
    lines = []
    for name, rows in results.items():
        task = task_named(name)
        outcomes = task_runs(rows, task)
        both = [("twins", *pair) for pair in twin_pairs()] + [("near", *pair) for pair in NEAR_TWINS]
        present = set(outcomes["pe"])
        verdicts = compare_pairs(rows, task)
        for kind, pe, other in both:
            if {pe, other} <= present:
                y = outcomes.set_index(["seed", "pe"])["y"].unstack()[[pe, other]].dropna()
                line = {"kind": kind, "task": name, "pe": pe, "baseline": other, "seeds": len(y)}
                line |= {"apart": (y[pe] - y[other]).abs().max(), "same": _verdict_of_pair(verdicts, pe, other)}
                lines.append(
                    line | {"shifted": _verdict_of_pair(compare_pairs(shift_seeds(rows, other), task), pe, other)}
                )
    return pd.DataFrame(lines, columns=["kind", "task", "pe", "baseline", "seeds", "apart", "same", "shifted"])


def shift_seeds(rows: pd.DataFrame, pe: str) -> pd.DataFrame:
    """Return rows in which each seed of an encoding has the number of the one before it, and the first the last."""
    seeds = sorted(rows.loc[rows["pe"] == pe, "seed"])
    before = dict(zip(seeds, [seeds[-1], *seeds[:-1]], strict=True))
    selected = rows["pe"] == pe
    return rows.assign(seed=rows["seed"].where(~selected, rows["seed"].map(before)).astype(int))


def _verdict_of_pair(verdicts: pd.DataFrame, pe: str, other: str) -> str:
    here = verdicts[verdicts["pe"].isin([pe, other]) & verdicts["baseline"].isin([pe, other])]
    return str(here["verdict"].iloc[0])


def count_false_positives(lines: pd.DataFrame, column: str) -> tuple[int, int, float, float]:
    """Return how many of the lines of twins say *different* in a column, of how many, with the exact interval."""
    words = lines.loc[lines["kind"] == "twins", column]
    wrong = int(words.isin(DIFFERENT_VERDICTS).sum())
    low, high = share_interval(wrong, len(words)) if len(words) else (0.0, 1.0)
    return wrong, len(words), float(low), float(high)
