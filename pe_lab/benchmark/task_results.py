"""What shipped results say of one task: scores with intervals, ranks, verdicts, and what may be the best.

All seeds are used, and each pair is tested once (`Families`). The comparisons of each encoding with all others are a
family of their own, those with the baseline too: a range of ranks has 95 % confidence, as the interval of a score has.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from pe_lab import config, statistics
from pe_lab.benchmark import score
from pe_lab.benchmark.pairs import Pairs
from pe_lab.benchmark.sound import complaint_of
from pe_lab.benchmark.tasks import Task
from pe_lab.report.standing import Standing
from pe_lab.results.columns import REMAINING, setting_columns
from pe_lab.results.shipped import Shipped
from pe_lab.statistics import GRID, Families, Margin

LOSS = "loss"
ENOUGH = 3  # seeds of an encoding on a task that counts as measured, and is ranked
TRAINED = 1.0  # the training length, in training lengths
COSTS = ("positional_parameters", "parameters", "flops_per_token", "seconds")
VALUES = ("score", "loss", "level", "best", "accuracy", "exact_match", *COSTS)
SHARE = f"test_{REMAINING}"
_OF_LINES = {"difference": "difference", "difference_low": "low", "difference_high": "high", "margin": "margin"}


@dataclass(frozen=True)
class Settings:
    """What a task's study declared.

    Attributes:
        epochs: of its cells.
        baseline: the encoding that all others are compared with; None: there is none.
    """

    epochs: int
    baseline: str | None

    @classmethod
    def of(cls, task: Task) -> "Settings":
        """Read the settings of a task's study from its file."""
        cfg = OmegaConf.load(config.folder() / "study" / f"{task.study}.yaml")
        return cls(cfg.epochs, cfg.decide.baseline)


@dataclass(frozen=True)
class TaskResults:
    """The results of one task.

    Attributes:
        task: the task.
        settings: of its study.
        lines: a line per cell and length: name (in conf/pe), pe (with the options in which cells of a name differ),
            seed, length, tokens, score, loss, level, best, accuracy, exact_match, costs, run, lr.
        cells: the cells by encoding and seed.
    """

    task: Task
    settings: Settings
    lines: pd.DataFrame
    cells: dict[tuple[str, int], Shipped] = field(repr=False)

    @classmethod
    def of(cls, task: Task, settings: Settings, cells: Sequence[Shipped]) -> "TaskResults":
        """Compute the lines of a task's cells; cells of other numbers of epochs are left out.

        Raises:
            ValueError: two cells have the same encoding and seed; a value of a cell cannot be.
        """
        for cell in cells:
            if wrong := complaint_of(cell):
                raise ValueError(f"results of {task.study} {wrong} in the run {cell.key[0]}")
        cells = [cell for cell in cells if cell.epochs == settings.epochs]
        if not cells:
            return cls(task, settings, _no_lines(), {})
        by_seed = {
            (pe, int(cell.identity["seed"])): cell for pe, cell in zip(score.rows(cells)["pe"], cells, strict=True)
        }
        if len(by_seed) < len(cells):
            raise ValueError(
                f"results of {task.study} must have one cell per encoding and seed, got {len(cells)} cells of "
                f"{len(by_seed)}"
            )
        lines = score.scores(cells).drop_duplicates(["pe", "seed", "length"])
        owners = [by_seed[pe, seed] for pe, seed in zip(lines["pe"], lines["seed"], strict=True)]
        more: dict[str, Any] = {cost: [owner.summary.get(cost) for owner in owners] for cost in COSTS}
        more["name"] = [owner.identity["pe"]["name"] for owner in owners]
        more["run"] = [owner.key[0] for owner in owners]
        more["lr"] = [owner.identity.get("optimizer", {}).get("lr") for owner in owners]
        lines = lines.assign(**more).sort_values(["pe", "length", "seed"], kind="stable", ignore_index=True)
        return cls(task, settings, lines, by_seed)

    @property
    def lengths(self) -> list[float]:
        """The lengths that were measured, in training lengths."""
        return sorted(self.lines["length"].unique())

    @cached_property
    def table(self) -> pd.DataFrame:
        """A line per encoding and length, the best mean first: pe, name, length, tokens, seeds; means of the values of
        `lines`; low and high (95 % t interval of the score); order (the score, or minus the loss where there is none);
        rank_best and rank_worst (of those with three seeds or more); verdict, difference, difference_low,
        difference_high and margin (of the comparison with the baseline, at the training length)."""
        groups = self.lines.astype(dict.fromkeys(VALUES, float)).groupby(["pe", "length"], sort=False)
        table = groups.agg(
            **{name: (name, "first") for name in ("name", "tokens")},
            seeds=("seed", "nunique"),
            **{name: (name, "mean") for name in VALUES},
        ).reset_index()
        ends = [statistics.interval(part["score"].dropna()) for _, part in groups]
        table["low"], table["high"] = [low for low, _ in ends], [high for _, high in ends]
        table["order"] = table["score"].fillna(-table["loss"])  # without a score, the loss says what is better
        table = table.sort_values(["length", "order"], ascending=[True, False], kind="stable", ignore_index=True)
        keys = list(zip(table["pe"], table["length"], strict=True))
        ranks, compared = self._ranks, self.with_baseline
        for column in ("rank_best", "rank_worst"):
            table[column] = [ranks.get(key, {}).get(column) for key in keys]
        at = [compared.get(pe) if length == TRAINED else None for pe, length in keys]
        table["verdict"] = ["" if line is None else line.verdict for line in at]
        for column, attribute in _OF_LINES.items():
            table[column] = [None if line is None else getattr(line, attribute) for line in at]
        return table

    def at(self, length: float = TRAINED) -> pd.DataFrame:
        """Return the lines of `table` of one length, by encoding."""
        return self.table[self.table["length"] == length].set_index("pe", drop=False)

    @cached_property
    def ranked(self) -> dict[float, list[str]]:
        """The encodings with enough seeds to be ranked, by length."""
        counts = self.lines.groupby(["length", "pe"], sort=False)["seed"].nunique()
        return {length: [pe for pe, count in counts[length].items() if count >= ENOUGH] for length in self.lengths}

    @cached_property
    def families(self) -> dict[float, Families]:
        """The comparisons of every two encodings with enough seeds: a family for each length."""
        found = {}
        for length, names in self.ranked.items():
            if len(names) > 1:
                chosen = self.lines[(self.lines["length"] == length) & self.lines["pe"].isin(names)]
                baseline = self.settings.baseline if self.settings.baseline in names else None
                rows, metric, margin = self._compared(chosen, length)
                found[length] = Families.of({GRID: (rows, metric)}, baseline, margin)
        return found

    @cached_property
    def pairs(self) -> dict[float, Pairs]:
        """How many pairs of encodings are decided, by length; a length with fewer than two encodings has none."""
        found = {}
        for length, compared in self.families.items():
            found[length] = Pairs.of(len(self.ranked[length]), compared.lines[GRID])
        return found

    def _compared(self, lines: pd.DataFrame, length: float) -> tuple[pd.DataFrame, str, Margin | None]:
        """Return rows of cells, a metric and its margin: the loss as declared; beyond it, the share that remains.

        At a length without scores, the loss is compared, with the default margin.
        """
        if length == TRAINED:
            cells = [self.cells[pe, seed] for pe, seed in zip(lines["pe"], lines["seed"], strict=True)]
            rows = self._rows(cells, list(lines["pe"]))
            return rows, LOSS, self.task.margin
        if lines["score"].isna().all():
            rows = lines[["pe", "seed"]].assign(data=self.task.name, test_loss=lines["loss"])
            return rows[["pe", "data", "seed", "test_loss"]], LOSS, None
        rows = lines[["pe", "seed"]].assign(data=self.task.name, **{SHARE: 1 - lines["score"]})
        return rows[["pe", "data", "seed", SHARE]], REMAINING, None

    def _rows(self, cells: list[Shipped], names: list[str]) -> pd.DataFrame:
        """Return a row per cell, with the task as the only setting."""
        rows = score.rows(cells).assign(pe=names, data=self.task.name)
        return rows.drop(columns=[name for name in setting_columns(rows) if name != "data"])

    @cached_property
    def standings(self) -> dict[float, Standing]:
        """Which encodings may be the best, by length."""
        found = {}
        for length, compared in self.families.items():
            metric = compared.tables[GRID][1]
            what = "test loss" if metric == LOSS else "share of the gap in test loss that remains"
            where = "" if length == TRAINED else f"At {length:g} × the training length"
            ranked = self._ranked[length]
            if len(ranked) > 1:
                found[length] = Standing.of(ranked, compared.lines[GRID], metric, what, where, own=True)
        return found

    @cached_property
    def _ranked(self) -> dict[float, pd.DataFrame]:
        return {length: compared.ranks(own=True) for length, compared in self.families.items()}

    @cached_property
    def _ranks(self) -> dict[tuple[str, float], dict[str, int]]:
        return {
            (line.pe, length): {"rank_best": int(line.best), "rank_worst": int(line.worst)}
            for length, ranked in self._ranked.items()
            for line in ranked.itertuples()
        }

    @cached_property
    def with_baseline(self) -> dict[str, Any]:
        """The comparison of each encoding with the baseline at the training length, by encoding: of `Families`."""
        if TRAINED not in self.families or self.settings.baseline not in self.ranked[TRAINED]:
            return {}
        return {line.pe: line for line in self.families[TRAINED].compare().itertuples()}

    @property
    def seeds_added(self) -> bool:
        """Whether some encodings that are compared have more seeds than others: they got them where they decide."""
        counts = self.lines[self.lines["length"] == TRAINED].groupby("pe")["seed"].nunique()
        return len(set(counts[counts >= ENOUGH])) > 1


def _no_lines() -> pd.DataFrame:
    return pd.DataFrame(columns=[*score.COLUMNS, *COSTS, "name", "run", "lr"])
