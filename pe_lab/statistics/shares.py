"""Shares of runs that solve a task: exact intervals, and an exact unconditional test of two shares."""

from functools import cache

import numpy as np
import pandas as pd
from scipy import special

from pe_lab.statistics.correction import benjamini_hochberg
from pe_lab.statistics.pairs import all_pairs, split_by_task
from pe_lab.statistics.verdicts import LEVEL, Verdict


def share_interval(
    solved: np.ndarray | int, runs: np.ndarray | int, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact interval of a share (Clopper and Pearson 1934): it contains the share with 1 - level or more.

    Raises:
        ValueError: fewer than 0 or more than all runs are solved, or there are no runs.
    """
    solved, runs = np.broadcast_arrays(solved, runs)
    if (runs < 1).any() or (solved < 0).any() or (solved > runs).any():
        raise ValueError(f"solved runs must be between 0 and the number of runs, got {solved} of {runs}")
    low = special.betaincinv(np.maximum(solved, 1), runs - solved + 1, level / 2)
    high = special.betaincinv(solved + 1, np.maximum(runs - solved, 1), 1 - level / 2)
    return np.where(solved > 0, low, 0.0), np.where(solved < runs, high, 1.0)


def share_p(solved: int, runs: int, other_solved: int, other_runs: int) -> float:
    """Return the two-sided p value of equal shares: twice the smaller one-sided value of Boschloo's exact test.

    Fisher's test conditions on the number of solved runs; this one does not, and has more power (Boschloo 1970).
    """
    if solved * other_runs < other_solved * runs:
        return share_p(other_solved, other_runs, solved, runs)
    if runs == other_runs and solved + other_solved > runs:  # the same question about unsolved runs
        solved, other_solved = runs - other_solved, runs - solved
    return _share_p(int(solved), int(runs), int(other_solved), int(other_runs))


@cache
def _share_p(solved: int, runs: int, other_solved: int, other_runs: int) -> float:
    if solved * other_runs == other_solved * runs:
        return 1.0
    from scipy import stats

    table = [[solved, other_solved], [runs - solved, other_runs - other_solved]]
    return min(1.0, 2 * float(stats.boschloo_exact(table, alternative="greater").pvalue))


def compare_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare the shares of solved runs of every two encodings of a task, or of each task.

    Args:
        frame: a line per run: pe, solved; task, if there are several. Each task is a family.

    Returns:
        A line per task and pair: pe, baseline; solved, runs, share, low, high (exact 95 % interval), and the same of
        the other with the prefix baseline_; p, p_corrected (Benjamini and Hochberg), verdict (on `pe`: more, fewer
        or undecided).

    Raises:
        ValueError: a column or a value is missing, solved is not true or false, or a task has one encoding.
    """
    lines = []
    for task, part in split_by_task(frame, "pe", "solved"):
        counts = part.groupby("pe", sort=False)["solved"].agg(["sum", "count"]).astype(int)
        solved, runs, names = counts["sum"].to_numpy(), counts["count"].to_numpy(), counts.index.to_numpy()
        low, high = share_interval(solved, runs)
        table: dict[str, np.ndarray] = {}
        for prefix, side in zip(("", "baseline_"), all_pairs(len(names)), strict=True):
            table[prefix.rstrip("_") or "pe"] = names[side]
            table |= {f"{prefix}solved": solved[side], f"{prefix}runs": runs[side]}
            table |= {
                f"{prefix}share": solved[side] / runs[side],
                f"{prefix}low": low[side],
                f"{prefix}high": high[side],
            }
        counted = [table[name] for name in ("solved", "runs", "baseline_solved", "baseline_runs")]
        p = np.array([share_p(*map(int, each)) for each in zip(*counted, strict=True)])
        corrected = benjamini_hochberg(p)
        more = table["share"] > table["baseline_share"]
        verdict = np.where(corrected < LEVEL, np.where(more, "more", "fewer"), str(Verdict.UNDECIDED))
        comparisons = pd.DataFrame(table | {"p": p, "p_corrected": corrected, "verdict": verdict})
        lines.append(comparisons if task is None else comparisons.assign(task=task))
    return pd.concat(lines, ignore_index=True)
