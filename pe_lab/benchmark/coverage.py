"""What of the benchmark is measured: scores, and pairs of encoding and task with their number of seeds."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pe_lab.benchmark.export import read
from pe_lab.benchmark.leaderboard import mean_scores
from pe_lab.benchmark.pairs import Counts, Pairs
from pe_lab.benchmark.results import Results
from pe_lab.benchmark.rows import tables
from pe_lab.benchmark.task_results import ENOUGH, TRAINED, TaskResults
from pe_lab.benchmark.tasks import NAME, tasks
from pe_lab.benchmark.undefined import defined, named


def table(beside: Iterable[str | Path] = (), folder: Path | None = None) -> pd.DataFrame:
    """Return all shipped rows as `rows.tables` does, and after them those of other people's files.

    Args:
        folder: of the shipped results; None: that of the package.

    Raises:
        LedgerError: shipped results were changed.
        ValueError: a file cannot be read, see `export.read`.
    """
    return pd.concat([tables(Results.read(folder).tasks), *(read(Path(path)) for path in beside)], ignore_index=True)


def coverage(rows: pd.DataFrame, common: Iterable[str]) -> str:
    """Return a table: a line per encoding, its mean score on each task at the training length.

    Args:
        rows: from `table`.
        common: tasks: the best mean score over these comes first, as on the leaderboard of the gallery, and an encoding
            that lacks one of them last.
    """
    found = rows[rows["length"] == TRAINED]
    if found.empty:
        return f"{NAME}: no cell is shipped yet"
    means = found.pivot_table(index="pe", columns="task", values="score", aggfunc="mean", sort=False)
    means = means[[task.name for task in tasks() if task.name in means]]
    ordering = [task for task in means if task in set(common)]
    ranked = mean_scores(found[found["task"].isin(ordering)], len(ordering)).groupby("pe")["score"].mean()
    order = ranked.reindex(means.index).sort_values(ascending=False, kind="stable").index
    counts = covered(rows)
    pairs = f"{counts['encodings'].sum()} of {counts['defined'].sum()} pairs of encoding and task that are defined"
    line = f"{NAME}: {len(found)} cells; {pairs} have {ENOUGH} seeds or more"
    by = (
        f"The best mean score over {', '.join(ordering)} comes first, as in the gallery."
        if ordering
        else "In no order."
    )
    return f"{means.loc[order].round(3).to_string(na_rep='')}\n\n{by}\n{line}"


def covered(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line per task: how many encodings of the package are defined there, and have seeds enough.

    Args:
        rows: from `table`.

    Returns:
        Columns task, defined, encodings, and seeds: the fewest that one of these has, 0 without any.
    """
    names = named()
    lines = []
    for task in tasks():
        fitting = defined(task.name)
        here = rows[(rows["task"] == task.name) & (rows["length"] == TRAINED) & (rows["pe"].isin(names))]
        seeds = here.groupby("pe")["seed"].nunique()
        enough = seeds[(seeds >= ENOUGH) & seeds.index.isin(fitting)]
        fewest = int(enough.min()) if len(enough) else 0
        lines.append({"task": task.name, "defined": len(fitting), "encodings": len(enough), "seeds": fewest})
    return pd.DataFrame(lines)


def decided(measured: Iterable[TaskResults]) -> str:
    """Return a table: for each task and length, how many pairs of encodings are decided; "" without pairs."""
    lines = [
        {
            **{"task": found.task.name, "length": f"{length:g} x", "encodings": pairs.encodings, "pairs": pairs.all},
            **_counted("FDR", pairs, pairs.discovered),
            **_counted("FWER", pairs, pairs.certain),
        }
        for found in measured
        for length, pairs in found.pairs.items()
    ]
    if not lines:
        return ""
    table = pd.DataFrame(lines).to_string(index=False)
    return (
        f"Pairs of encodings with {ENOUGH} seeds or more, by task and length: decided at a false discovery rate of 5 % "
        "(FDR: at most about one in twenty of each is expected to be wrong) and with a family-wise error of 5 % (FWER: "
        f"of each, any wrong one is unlikely)\n{table}"
    )


def _counted(rate: str, pairs: Pairs, counts: Counts) -> dict[str, object]:
    """Return the columns of one error rate."""
    share = f"{pairs.share(counts):.0%}"
    return {f"{rate} decided": share, f"{rate} differ": counts.differ, f"{rate} equivalent": counts.equivalent}
