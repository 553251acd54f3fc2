"""The score card of an encoding: its results on every task, compared with those of all others, paired by seed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pandas as pd

from pe_lab.benchmark.tasks import tasks
from pe_lab.statistics import add_verdicts, differences, interval, seeds_needed
from pe_lab.statistics.comparisons import ALIKE, BETTER, UNDECIDED, WORSE

COSTS = ("positional_parameters", "parameters", "flops_per_token", "seconds")
_SETTING = {"depth": 0, "epochs": 0}  # columns of a table of cells that have one value here


@dataclass(frozen=True)
class Card:
    """What one encoding did on the benchmark, beside all others.

    Attributes:
        pe: its name, with the options in which it differs from a shipped encoding of that name.
        scores: of all encodings, a line per cell and length, as in `rows.table`.
        lines: a line per task, length and other encoding: task, length, pe, other, seeds (shared), difference (in loss,
            that of `pe` minus that of the other), low, high, margin, verdict on `pe`, seeds_needed, and more columns
            of `compare`. Each task is a family, corrected by Holm's method.
        left_out: tasks that the encoding does not fit, and why.
    """

    pe: str
    scores: pd.DataFrame
    lines: pd.DataFrame
    left_out: Mapping[str, str]

    @property
    def others(self) -> list[str]:
        return [pe for pe in self.scores["pe"].unique() if pe != self.pe]

    @property
    def baseline(self) -> str:
        """The encoding that it is first compared with: rope, and rope itself with none."""
        return "none" if self.pe == "rope" else "rope"

    def costs(self) -> pd.DataFrame:
        """Return positional_parameters, parameters, flops_per_token and seconds by encoding: medians over its cells."""
        trained = self.scores.drop_duplicates("run")
        return trained.groupby("pe", sort=False)[list(COSTS)].median()

    def tasks(self) -> list[tuple[str, float]]:
        """Return the tasks and lengths on which the encoding was measured."""
        own = self.scores[self.scores["pe"] == self.pe]
        return list(dict.fromkeys(zip(own["task"], own["length"], strict=True)))

    def summary(self) -> pd.DataFrame:
        """Return a line per task and length: score with interval, its parts, rank of the mean, and verdicts counted.

        The rank is among encodings with shared seeds, each compared over these.
        """
        found = []
        for task, length in self.tasks():
            here = self.scores[(self.scores["task"] == task) & (self.scores["length"] == length)]
            own = here[here["pe"] == self.pe]
            low, high = interval(own["score"])
            lines = self.lines[(self.lines["task"] == task) & (self.lines["length"] == length)]
            rank, of = int((lines["difference"] > 0).sum()) + 1, int((lines["seeds"] > 0).sum()) + 1
            found.append(
                {"task": task, "length": length, "seeds": len(own), "score": own["score"].mean()}
                | {"low": low, "high": high, "loss": own["loss"].mean()}
                | {"level": own["level"].mean(), "best": own["best"].mean()}
                | {"rank of mean": f"{rank} of {of}"}
                | count_verdicts(lines["verdict"])
            )
        return pd.DataFrame(found)


def count_verdicts(verdicts: pd.Series) -> dict[str, int]:
    """Return how many verdicts say better, worse, equivalent (within the margin, or equal to the bit) and undecided."""
    alike = verdicts.isin(ALIKE)
    counts = {BETTER: verdicts == BETTER, WORSE: verdicts == WORSE, "equivalent": alike}
    counts[UNDECIDED] = ~(alike | verdicts.isin([BETTER, WORSE]))
    return {word: int(found.sum()) for word, found in counts.items()}


def card(table: pd.DataFrame, own: Collection[str], left_out: Mapping[str, str]) -> Card:
    """Compare the cells of an encoding with those of others.

    Args:
        table: a line per cell and length, from `rows.table`.
        own: the runs of the encoding.
        left_out: tasks without cells of its own, and why.

    Raises:
        ValueError: it has no cell, or the runs are of several encodings.
    """
    names = list(table.loc[table["run"].isin(own), "pe"].unique())
    if len(names) != 1:
        raise ValueError(f"a score card must be of one encoding, got {', '.join(sorted(names)) or 'no cell'}")
    (pe,) = names
    tasks_measured = table.loc[table["run"].isin(own), "task"].unique()
    table = table[(table["run"].isin(own) | (table["pe"] != pe)) & table["task"].isin(tasks_measured)]
    lines = [_lines(found, pe, str(task)) for task, found in table.groupby("task", sort=False)]
    return Card(pe, table.reset_index(drop=True), pd.concat(lines, ignore_index=True), left_out)


def _lines(found: pd.DataFrame, pe: str, task: str) -> pd.DataFrame:
    """Return the comparisons of an encoding with all others on a task, as one family over its lengths."""
    margin = next(one.margin for one in tasks() if one.name == task)
    parts = []
    for length, here in found.groupby("length"):
        cells = comparable(here)
        pairs = [(pe, other) for other in cells["pe"].unique() if other != pe]
        apart = margin.unit != "gap" or (here["level"] > here["best"]).all()  # otherwise the default, in nats
        parts.append(differences(cells, pairs, margin=margin if apart else None).assign(length=length))
    lines = seeds_needed(add_verdicts(pd.concat(parts, ignore_index=True), "loss"))
    lines = lines.rename(columns={"baseline": "other"}).assign(task=task)
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
