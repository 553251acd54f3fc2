"""The score card of an encoding: its results on every task, compared with those of all others, paired by seed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from pe_lab.benchmark.score import rows, scores
from pe_lab.benchmark.tasks import Task
from pe_lab.results.shipped import Key, Shipped
from pe_lab.results.statistics import add_equivalence, interval, seeds_needed, wide
from pe_lab.results.statistics.correction import ALIKE, BETTER, UNDECIDED, WORSE, add_verdicts
from pe_lab.results.statistics.paired import differences

_SETTING = {"depth": 0, "epochs": 0}  # columns of a table of cells that have one value here


@dataclass(frozen=True)
class Card:
    """What one encoding did on the benchmark, beside all others.

    Attributes:
        pe: its name, with the options in which it differs from a shipped encoding of that name.
        scores: of all encodings: task, and the columns of `scores`.
        lines: a line per task, length and other encoding: task, length, pe, other, seeds (shared), difference (in loss,
            that of `pe` minus that of the other), low, high, margin, verdict on `pe`, seeds_needed, and more columns
            of `compare`. Each task is a family, corrected by Holm's method.
        costs: by encoding: positional_parameters, parameters, flops_per_token, seconds (of training steps, median over
            tasks of a cell's).
        left_out: tasks that the encoding does not fit, and why.
    """

    pe: str
    scores: pd.DataFrame
    lines: pd.DataFrame
    costs: pd.DataFrame
    left_out: Mapping[str, str]

    @property
    def others(self) -> list[str]:
        return [pe for pe in self.scores["pe"].unique() if pe != self.pe]

    def tasks(self) -> list[tuple[str, float]]:
        """Return the tasks and lengths on which the encoding was measured."""
        own = self.scores[self.scores["pe"] == self.pe]
        return list(dict.fromkeys(zip(own["task"], own["length"], strict=True)))

    def summary(self) -> pd.DataFrame:
        """Return a line per task and length: score with interval, its parts, rank of the mean, and verdicts counted."""
        found = []
        for task, length in self.tasks():
            here = self.scores[(self.scores["task"] == task) & (self.scores["length"] == length)]
            own, means = here[here["pe"] == self.pe], here.groupby("pe", sort=False)["score"].mean()
            low, high = interval(own["score"])
            lines = self.lines[(self.lines["task"] == task) & (self.lines["length"] == length)]
            found.append(
                {"task": task, "length": length, "seeds": len(own), "score": own["score"].mean()}
                | {"low": low, "high": high, "loss": own["loss"].mean()}
                | {"level": own["level"].mean(), "best": own["best"].mean()}
                | {"rank of mean": f"{int((means > means[self.pe]).sum()) + 1} of {len(means)}"}
                | count_verdicts(lines["verdict"])
            )
        return pd.DataFrame(found)


def count_verdicts(verdicts: pd.Series) -> dict[str, int]:
    """Return how many verdicts say better, worse, equivalent (within the margin, or equal to the bit) and undecided."""
    alike = verdicts.isin(ALIKE)
    counts = {BETTER: verdicts == BETTER, WORSE: verdicts == WORSE, "equivalent": alike}
    counts[UNDECIDED] = ~(alike | verdicts.isin([BETTER, WORSE]))
    return {word: int(found.sum()) for word, found in counts.items()}


def card(
    own: Mapping[Task, Iterable[Shipped]], others: Mapping[Task, Iterable[Shipped]], left_out: Mapping[str, str]
) -> Card:
    """Compare the cells of an encoding with those of others.

    Args:
        own: its cells by task.
        others: those of other encodings, and perhaps of itself, which are left out here.
        left_out: tasks without cells of its own, and why.

    Raises:
        ValueError: it has no cell, or cells of several encodings are given as its own.
    """
    parts, lines, costs, names = [], [], [], set()
    for task, cells in own.items():
        mine = list(cells)
        keys = {cell.key for cell in mine}
        together = [*mine, *(cell for cell in others.get(task, ()) if cell.key not in keys)]
        name, together = _named(together, keys)
        names.add(name)
        found = scores(together).assign(task=task.name)
        parts.append(found)
        lines.append(_lines(found, name, task))
        costs.append(rows(together))
    if len(names) != 1:
        raise ValueError(f"a score card must be of one encoding, got {', '.join(sorted(names)) or 'no cell'}")
    (pe,) = names
    return Card(pe, pd.concat(parts, ignore_index=True), pd.concat(lines, ignore_index=True), _costs(costs), left_out)


def _named(cells: list[Shipped], own: set[Key]) -> tuple[str, list[Shipped]]:
    """Return the name of the cells with these keys, and all cells but others of that name."""
    names = rows(cells)["pe"]
    (name,) = {name for name, cell in zip(names, cells, strict=True) if cell.key in own}
    return name, [cell for other, cell in zip(names, cells, strict=True) if other != name or cell.key in own]


def _lines(found: pd.DataFrame, pe: str, task: Task) -> pd.DataFrame:
    """Return the comparisons of an encoding with all others on a task, as one family over its lengths."""
    parts = []
    for length, here in found.groupby("length"):
        table = wide(comparable(here))
        pairs = [(pe, other) for other in table.columns if other != pe]
        tested = add_equivalence(differences(table, pairs), comparable(here), margin=task.margin)
        parts.append(tested.assign(length=length))
    lines = seeds_needed(add_verdicts(pd.concat(parts, ignore_index=True), "loss"))
    lines = lines.rename(columns={"baseline": "other"}).assign(task=task.name)
    first = ["task", "length", "pe", "other"]
    return lines[[*first, *(name for name in lines if name not in (*first, *_SETTING, "data"))]]


def comparable(found: pd.DataFrame) -> pd.DataFrame:
    """Return scores of one task and length as rows of cells, with loss and floors."""
    return pd.DataFrame(
        {"pe": found["pe"], "data": "task"}
        | _SETTING
        | {"seed": found["seed"], "test_loss": found["loss"]}
        | {"floor_bayes_loss": found["best"], "floor_position_blind_loss": found["level"]}
    )


def _costs(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the median costs of each encoding over its cells."""
    names = ["positional_parameters", "parameters", "flops_per_token", "seconds"]
    return pd.concat(tables, ignore_index=True).groupby("pe", sort=False)[names].median()
