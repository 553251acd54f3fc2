"""Statistics of the rows of a task: steps to solve, shares solved, sensitivity to the rate, verdicts on all pairs."""

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from pe_lab.benchmark import task_rows
from pe_lab.benchmark.tasks import BenchmarkTask, benchmark_tasks
from pe_lab.benchmark.undefined_encodings import defined_encodings
from pe_lab.results.tuned_outcomes import MAX_AT_EDGE, endpoint_of
from pe_lab.statistics import (
    COMPARISON_COLUMNS,
    DIFFERENT_VERDICTS,
    MIN_SEEDS,
    Endpoint,
    Verdict,
    compare,
    compare_shares,
    interval,
    rank_ranges,
    share_interval,
)

FRESH_SEEDS = range(100, 105)  # fresh seeds; all others are published


@cache
def endpoint_of_task(task: BenchmarkTask) -> Endpoint:
    """Return what is compared on a task."""
    return endpoint_of(task.cfg)


def margin_in_words(task: BenchmarkTask) -> str:
    """Return the smallest difference that matters on a task, with its unit."""
    scale = endpoint_of_task(task)
    return f"a factor of {2**scale.margin:g} in steps" if scale.kind == "steps" else f"{scale.margin:g} {scale.unit}s"


def published_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without those of fresh seeds."""
    return rows[~rows["seed"].isin(FRESH_SEEDS)]


def fresh_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of fresh seeds."""
    return rows[rows["seed"].isin(FRESH_SEEDS)]


def task_runs(rows: pd.DataFrame, task: BenchmarkTask) -> pd.DataFrame:
    """Return pe, seed, y, and solved where the task has a level; without seeds of which all tries diverged."""
    measured = rows[rows["y"].notna()]
    outcomes = pd.DataFrame({"pe": measured["pe"], "seed": measured["seed"], "y": measured["y"].astype(float)})
    return outcomes.assign(solved=measured["solved"].astype(bool)) if task.solvable else outcomes


def is_complete(rows: pd.DataFrame) -> bool:
    """Return whether most encodings that have rows have enough seeds: a few of your own may have fewer."""
    return bool((rows.groupby("pe")["seed"].nunique() >= MIN_SEEDS).mean() > 0.5)


def compare_pairs(rows: pd.DataFrame, task: BenchmarkTask) -> pd.DataFrame:
    """Return the verdicts on all pairs of encodings, as `compare`; no line where there are fewer than two.

    Encodings whose runs have the same bits are equal, without a test. With fewer than MIN_SEEDS seeds there is no
    verdict (TOO_FEW_SEEDS).
    """
    outcomes = task_runs(rows, task)
    if outcomes["pe"].nunique() < 2:
        return pd.DataFrame(columns=COMPARISON_COLUMNS)
    comparisons = compare(outcomes, endpoint_of_task(task))
    words = comparisons["verdict"].astype(object).mask(_are_equal(rows, comparisons), str(Verdict.EQUAL))
    return comparisons.assign(verdict=words.where(comparisons["seeds"] >= MIN_SEEDS, str(Verdict.TOO_FEW_SEEDS)))


def _are_equal(rows: pd.DataFrame, pairs: pd.DataFrame) -> np.ndarray:
    """Return of each pair whether its test losses and what is compared have the same bits in every shared seed.

    Pairs of which neither solved the task in any seed are left to their verdict.

    Args:
        rows: the rows of the task, one per encoding and seed.
        pairs: the comparisons of all pairs of encodings, from `compare`.
    """
    wide = rows[rows["y"].notna()].pivot(index="seed", columns="pe", values=["y", "loss_x1"]).astype(float)
    equal = (pairs["difference"] == 0) & (pairs["verdict"] != Verdict.BOTH_UNSOLVED)
    for line in pairs[equal].itertuples():
        first, other = (wide.xs(pe, axis=1, level="pe") for pe in (line.pe, line.baseline))
        both = first["y"].notna() & other["y"].notna()
        equal.loc[line.Index] = first[both].equals(other[both])
    return np.asarray(equal, dtype=bool)


def equal_encodings(comparisons: pd.DataFrame, pe: str) -> list[str]:
    """Return the encodings to which one is equal bit for bit.

    Args:
        comparisons: the table of verdicts, from `compare_pairs`.
        pe: the name of the encoding.
    """
    equal = comparisons[comparisons["verdict"] == Verdict.EQUAL]
    ahead, behind = equal.loc[equal["pe"] == pe, "baseline"], equal.loc[equal["baseline"] == pe, "pe"]
    return [*ahead, *behind]


def share_pairs(rows: pd.DataFrame, task: BenchmarkTask) -> pd.DataFrame:
    """Return the verdicts on the shares of solved runs of all pairs, as `compare_shares`; no line without a level."""
    outcomes = task_runs(rows, task)
    if not task.solvable or outcomes["pe"].nunique() < 2:
        return pd.DataFrame(columns=["pe", "baseline", "solved", "baseline_solved", "verdict"])
    return compare_shares(outcomes)


def endpoints(rows: pd.DataFrame, task: BenchmarkTask) -> pd.DataFrame:
    """Return a line per encoding, the best mean first.

    Returns:
        The columns pe, runs, diverged (seeds of which all tries did); solved, share_low, share_high (exact, 95 %);
        mean, low, high: the geometric mean of the steps to solve, censored at the cap, or the mean loss, with a 95 % t
        interval; first, last: the range of ranks, in which encodings that are equal bit for bit count once; rates: how
        often each was best, of solved seeds; edge: see `edge_shares`; lost_RATE: how many octaves that rate alone would
        have cost, on average over solved seeds, at least, as tries stop when one has passed; or how many nats at the
        choice.
    """
    outcomes, verdicts = task_runs(rows, task), compare_pairs(rows, task)
    names = list(outcomes["pe"].unique())
    same = {pe: equal_encodings(verdicts, pe) for pe in names}
    distinct = [pe for place, pe in enumerate(names) if not set(same[pe]) & set(names[:place])]
    pairs = verdicts[verdicts["pe"].isin(distinct) & verdicts["baseline"].isin(distinct)]
    ranges = rank_ranges(pairs["verdict"].to_numpy(str), len(distinct))
    ranks = dict(zip(distinct, zip(*ranges, strict=True), strict=True))
    ranks |= {pe: ranks[next(other for other in same[pe] if other in ranks)] for pe in names if pe not in ranks}
    lines = []
    for pe in names:
        group, all_ = outcomes[outcomes["pe"] == pe], rows[rows["pe"] == pe]
        low, high = interval(group["y"])
        line = {"pe": pe, "runs": len(group), "diverged": int(all_["lr"].isna().sum())}
        mean = float(group["y"].mean())
        if task.solvable:
            solved = int(group["solved"].sum())
            share = share_interval(solved, len(group))
            line |= {"solved": solved, "share_low": float(share[0]), "share_high": float(share[1])}
            mean, low, high = (float(2**value) for value in (mean, low, high))
        line |= {"mean": mean, "low": low, "high": high, "first": int(ranks[pe][0]), "last": int(ranks[pe][1])}
        lines.append(line | rate_sensitivity(all_, task))
    table = pd.DataFrame(lines)
    return table.sort_values("mean", kind="stable", ignore_index=True) if len(table) else table


def edge_shares(rows: pd.DataFrame) -> pd.Series:
    """Return the share of the seeds of each encoding in which the lowest or the highest learning rate was best.

    All seeds count, whether they solved the task or not, but those of which all tries diverged.
    """
    used = rows[rows["lr"].notna()]
    return used["edge"].astype(float).groupby(used["pe"], sort=False).mean()


def rate_sensitivity(rows: pd.DataFrame, task: BenchmarkTask) -> dict[str, object]:
    """Return how often each rate was best, the share at an edge, and what each alone would have cost; of one encoding.

    Seeds that did not solve their task are left out, but for the share: see `edge_shares`.
    """
    used = rows[rows["lr"].notna() & (rows["solved"].eq(True) if task.solvable else True)]
    lost: dict[float, list[float]] = {}
    for row in used.to_dict("records"):
        numbers = {str(name): np.nan if pd.isna(value) else value for name, value in row.items()}
        tries = [
            {name: numbers[f"try{k}_{name}"] for name in task_rows.CANDIDATE_FIELDS}
            for k in range(1, task_rows.count_candidates(rows) + 1)
        ]
        best = row["y"] if task.solvable else pd.Series([candidate["quarter"] for candidate in tries]).max()
        for candidate in tries:
            if task.solvable:
                ended = np.log2(candidate["steps"]) if np.isnan(candidate["pass"]) else candidate["pass"]
                cost = float(np.maximum(0.0, ended - best))
            else:
                cost = float(best - candidate["quarter"])
            lost.setdefault(candidate["lr"], []).append(cost)
    ladder = list(lost) or [rows[f"try{k}_lr"].iloc[0] for k in range(1, task_rows.count_candidates(rows) + 1)]
    chosen = [int(np.isclose(used["lr"].astype(float), rate).sum()) for rate in ladder]
    summary: dict[str, object] = {"rates": "/".join(map(str, chosen)), "edge": edge_shares(rows).max()}
    means = {rate: float(pd.Series(lost.get(rate, []), dtype=float).mean()) for rate in ladder}
    return summary | {f"lost_{rate:g}": mean for rate, mean in means.items()}


def scores(rows: pd.DataFrame, task: BenchmarkTask) -> pd.DataFrame:
    """Return a line per encoding and length: pe, length, runs, and mean, low, high of the score, or of the loss."""
    lines = []
    for length in task_rows.measured_lengths(rows):
        loss = rows[f"loss_x{length:g}"]
        values = pd.Series(task_rows.score_at_length(rows, length), index=rows.index) if task.solvable else loss
        for pe, part in values[loss.notna()].groupby(rows["pe"]):
            low, high = interval(part)
            lines.append({"pe": pe, "length": length, "runs": len(part), "mean": part.mean(), "low": low, "high": high})
    return pd.DataFrame(lines, columns=["pe", "length", "runs", "mean", "low", "high"])


def count_verdicts(verdicts: pd.DataFrame) -> dict[str, int]:
    """Return how many pairs differ, are equivalent, equal, both unsolved or undecided, and have too few seeds."""
    words = verdicts["verdict"]
    other_verdicts = (
        *(Verdict.EQUIVALENT, Verdict.EQUAL, Verdict.BOTH_UNSOLVED, Verdict.UNDECIDED),
        Verdict.TOO_FEW_SEEDS,
    )
    counts = {"differ": words.isin(DIFFERENT_VERDICTS)} | {str(word): words == word for word in other_verdicts}
    return {word: int(mask.sum()) for word, mask in counts.items()}


def progress(results: Mapping[str, pd.DataFrame], seeds: int = MIN_SEEDS) -> pd.DataFrame:
    """Return a line per task: encodings that are defined, that have so many seeds, core-hours, and shares at an edge.

    Args:
        results: the published rows of each task, by its name.
    """
    lines = []
    for task in benchmark_tasks():
        rows, fitting = results.get(task.name, task_rows.rows_frame([])), defined_encodings(task)
        counts = rows[rows["pe"].isin(fitting)].groupby("pe")["seed"].nunique()
        used, wide = rows[rows["lr"].notna()], edge_shares(rows) > MAX_AT_EDGE
        line = {"task": task.name, "defined": len(fitting), "measured": int((counts >= seeds).sum())}
        line |= {"fewest seeds": int(counts.min()) if len(counts) else 0}
        line |= {"solved": float(rows["solved"].astype(float).mean()) if task.solvable and len(rows) else np.nan}
        line |= {"core-hours": float(rows["core_seconds"].sum()) / 3600}
        line |= {"edge": used["edge"].astype(float).mean(), f"edge above {100 * MAX_AT_EDGE:g} %": int(wide.sum())}
        lines.append(line)
    return pd.DataFrame(lines)
