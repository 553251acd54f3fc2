"""The stage of a study that adds seeds, look by look, to encodings that are still undecided."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from pe_lab.config import flatten_settings, resolve_config
from pe_lab.config.seed_looks import study_looks
from pe_lab.experiment.declaration import DECIDING_METRIC
from pe_lab.experiment.rounds import Outcome, Round, Stage, cost_by_run, with_settings
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.results.cell_rows import describe_cells, settings_of
from pe_lab.results.columns import lower_is_better
from pe_lab.results.summary_table import as_markdown, as_text
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics.cells import keys_of
from pe_lab.statistics.margins import Margin, margins
from pe_lab.statistics.sequential import Arm, SequentialDesign, StudyDecision, decide_cells
from pe_lab.statistics.verdicts import Verdict

SECONDS_PER_HOUR = 3600.0
MAX_NAMED_ENCODINGS = 8  # undecided encodings that are named in a line


def require_question(cfgs: list[DictConfig]) -> None:
    """Check that a study can decide, before anything is trained or written; for errors see `add_seeds`."""
    _StudyState(cfgs)


def add_seeds(cfgs: list[DictConfig]) -> Stage:
    """Train the cells of a look, take verdicts, and repeat for undecided comparisons until the seeds or budget end.

    Args:
        cfgs: one config for each encoding in each setting; the seed in it is not used.

    Returns:
        The configs of all cells that were requested.

    Raises:
        ValueError: the baseline is not among the encodings, or there is only one.
    """
    study = _StudyState(cfgs)
    while (decision := study.decide()).needed:
        if study.exceeds_budget(decision):
            study.ended_before = decision.look
            decision = study.decide()
            break
        study.add_outcomes((yield Round(study.cells(decision), study.text(decision))))
    study.write(decision)
    yield Round([], study.text(decision))
    return list(study.requested.values())


class _StudyState:
    """The cells that a study has requested so far, and their outcomes.

    Attributes:
        requested: the config of each cell so far, by encoding, setting and seed.
        ended_before: the number of the look that the budget did not suffice for; None: it did.
    """

    def __init__(self, cfgs: list[DictConfig]) -> None:
        self.described = describe_cells([settings_of(with_settings(cfg, {"seed": 0})) for cfg in cfgs])
        self.names = [name for name in self.described if name not in ("pe", "seed")]
        keys = keys_of(self.described, self.names)
        self.cfgs: dict[Arm, DictConfig] = {
            (key, pe): cfg for key, pe, cfg in zip(keys, self.described["pe"], cfgs, strict=True)
        }
        self._require_one_cell_each(cfgs, keys)
        self.margin = None if cfgs[0].margin is None else Margin.parse(cfgs[0].margin)
        self.budget = cfgs[0].budget
        self.settings = resolve_config(cfgs[0].decide)
        self.design = SequentialDesign(
            list(self.cfgs), self.settings["baseline"], self.settings["best"], lower_is_better(DECIDING_METRIC)
        )
        self.looks = study_looks(self.settings["seeds"], self.settings["looks"])
        self.requested: dict[tuple[Arm, int], DictConfig] = {}
        self.outcomes: dict[tuple[Arm, int], Outcome] = {}
        self.values: dict[tuple[Arm, int], float | str] = {}
        self.margins: dict[tuple[Any, ...], float] = {}
        self.margin_in_words = ""
        self.ended_before: int | None = None

    def _require_one_cell_each(self, cfgs: list[DictConfig], keys: list[Any]) -> None:
        """Raise ValueError if two cells are one encoding in one setting: they differ in what is measured."""
        first: dict[Arm, DictConfig] = {}
        for key, pe, cfg in zip(keys, self.described["pe"], cfgs, strict=True):
            other = first.setdefault((key, pe), cfg)
            if other is cfg:
                continue
            mine, before = (flatten_settings(resolve_config(config)) for config in (cfg, other))
            for name in sorted(mine.keys() | before.keys()):
                if name != "seed" and mine.get(name) != before.get(name):
                    raise ValueError(
                        f"{name} must be the same for all cells of an encoding in a study that adds seeds, got "
                        f"{before.get(name)} and {mine.get(name)} for {pe}"
                    )

    def decide(self) -> StudyDecision:
        most = None if self.ended_before is None else self.ended_before - 1
        return decide_cells(self.design, self.looks, self.values, self.margins, most)

    def cells(self, decision: StudyDecision) -> list[DictConfig]:
        """Return the configs of the cells that a look needs, seed by seed."""
        needed = sorted(decision.needed, key=self._sort_key)
        self.requested |= {(cell, seed): with_settings(self.cfgs[cell], {"seed": seed}) for cell, seed in needed}
        return [self.requested[key] for key in needed]

    def _sort_key(self, key: tuple[Arm, int]) -> tuple[int, int]:
        """Return the position of a cell: by seed, then in the order of the study."""
        return key[1], list(self.cfgs).index(key[0])

    def add_outcomes(self, outcomes: list[Outcome]) -> None:
        """Add what became of the cells of a look; after the first, compute the margins."""
        new = sorted((key for key in self.requested if key not in self.outcomes), key=self._sort_key)
        for key, outcome in zip(new, outcomes, strict=True):
            self.outcomes[key] = outcome
            self.values[key] = (
                outcome.test.get(DECIDING_METRIC, float("nan")) if outcome.failure is None else outcome.failure
            )
        if not self.margins:
            self._set_margins()

    def _set_margins(self) -> None:
        """Compute the margin of each setting from the floors of the first look's cells."""
        lines = []
        for ((key, pe), seed), outcome in self.outcomes.items():
            if outcome.failure is None:
                floors = {
                    f"floor_{floor}_{DECIDING_METRIC}": values.get(DECIDING_METRIC)
                    for floor, values in outcome.floors.items()
                }
                line = dict(zip(self.names, key, strict=True)) | {"pe": pe, "seed": seed}
                lines.append(line | {f"test_{DECIDING_METRIC}": outcome.test.get(DECIDING_METRIC)} | floors)
        rows = pd.DataFrame(lines)
        if rows.empty:
            return
        table = margins(rows, DECIDING_METRIC, self.margin)
        self.margins = dict(zip(keys_of(table, self.names), table["margin"].astype(float), strict=True))
        self.margin_in_words = str(table.attrs["margin"])

    # -- cost ---------------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """The core-hours of training of all runs so far, each counted once."""
        return sum(cost_by_run(self.outcomes.values()).values()) / SECONDS_PER_HOUR

    def exceeds_budget(self, decision: StudyDecision) -> bool:
        """Return whether the next look would cost more than is left, at the cost of its encodings' seeds so far.

        Cells that are checkpoints of one run with one seed are with every seed: such a run costs what its last costs.
        """
        if self.budget is None or not self.outcomes:
            return False
        costs: dict[Arm, list[float]] = {}
        for (cell, _), outcome in self.outcomes.items():
            costs.setdefault(cell, []).append(outcome.core_seconds)
        mean = {cell: sum(of_seeds) / len(of_seeds) for cell, of_seeds in costs.items()}
        run = {cell: outcome.run for (cell, seed), outcome in self.outcomes.items() if seed == 0}
        ahead: dict[tuple[str, int], float] = {}  # core-seconds by run and seed; seeds of a look are new to all cells
        for cell, seed in decision.needed:
            ahead[run[cell], seed] = max(ahead.get((run[cell], seed), 0.0), mean[cell])
        return bool(self.spent + sum(ahead.values()) / SECONDS_PER_HOUR > self.budget)

    # -- what is shown and written ------------------------------------------------------------------------------------

    def text(self, decision: StudyDecision) -> str:
        """Describe how far the study is, in one line."""
        lines, looks = decision.lines, self.looks
        done = sum(line.verdict != Verdict.UNDECIDED for line in lines)
        text = f"{done} of {len(lines)} comparisons decided"
        if rest := decision.undecided:
            more = f" and {len(rest) - MAX_NAMED_ENCODINGS} more" if len(rest) > MAX_NAMED_ENCODINGS else ""
            text += f"; undecided: pe {', '.join(rest[:MAX_NAMED_ENCODINGS])}{more}"  # an encoding is named none
        if decision.needed:
            return f"look {decision.look} of {len(looks)} ({looks[decision.look - 1]} seeds): {text}"
        ended = f", the budget of {self.budget:g} core-hours ended" if self.ended_before else ""
        return f"ended at look {decision.look} of {len(looks)}{ended}: {text}; {self._describe_cost()}"

    def _describe_cost(self) -> str:
        runs = {outcome.run for outcome in self.outcomes.values()}
        fixed = len(self.cfgs) * self.looks[-1]
        cells = f"{len(self.requested)} cells on {len(runs)} runs instead of {fixed} cells"
        return f"{cells}, {self.spent:.3g} core-hours of training"

    def write(self, decision: StudyDecision) -> None:
        """Print the verdicts, and write them into the study's folder, if it has one."""
        text = self.text(decision)
        margin = self.margin_in_words or ("the default of the task" if self.margin is None else str(self.margin))
        note = f"Margin: {margin}. {text[0].upper()}{text[1:]}."
        names = {name for line in decision.lines for name in (line.pe, line.baseline)}
        seeds = [line.seeds for line in decision.lines if line.seeds]
        note = f"{note} {few_runs(len(names), min(seeds, default=0))}".strip()
        files, printed = decision_tables(decision, self.names, note)
        print(printed)
        cfg = next(iter(self.cfgs.values()))
        for name, content in files.items() if cfg.study_name else ():
            LedgerFiles(Path(cfg.ledger)).write(Path(cfg.ledger) / "studies" / cfg.study_name / name, content)


def decision_tables(decision: StudyDecision, names: list[str], note: str) -> tuple[dict[str, str], str]:
    """Return the files of a study's verdicts, by name, and the text for the terminal.

    Args:
        names: the names of the setting columns.
        note: a line below the tables.
    """
    lines = []
    for line in decision.lines:
        values = asdict(line)
        lines.append(dict(zip(names, values.pop("setting"), strict=True)) | values)
    table = pd.DataFrame(lines)
    shown = table.drop(columns=["p", "p_equivalent", "margin"])
    numbers = ["difference", "low", "high", "p_corrected", "p_equivalent_corrected"]
    shown[numbers] = shown[numbers].map(lambda value: f"{value:.4g}")
    parts, files = [shown], {"decisions.csv": table.to_csv(index=False)}
    if decision.places:
        race = [
            dict(zip(names, key, strict=True)) | {"pe": pe, "place": at} for (key, pe), at in decision.places.items()
        ]
        parts.insert(0, pd.DataFrame(race))
        files["race.csv"] = parts[0].to_csv(index=False)
    files["decisions.md"] = "\n\n".join([*(as_markdown(part, names=names) for part in parts), note]) + "\n"
    return files, "\n\n".join([*(as_text(part, names) for part in parts), note])
