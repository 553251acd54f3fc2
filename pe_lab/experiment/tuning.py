"""Tune the learning rate of every seed of a study, so that seeds repeat the choice of the rate too.

Each cell of the study is a seed with several tries: `pe_lab.statistics.tuning_plan` says which of them is trained
next, and how far. Try by try, so that a later one is not trained beyond the steps at which an earlier one solved the
task.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import LR, find_folders
from pe_lab.config.parts import inner_encodings
from pe_lab.experiment.cell import grid_of_steps
from pe_lab.experiment.rounds import Outcome, Round, Stage, with_settings
from pe_lab.experiment.sweep_report import CellsMissingError
from pe_lab.ledger.progress import Upcoming, unit_cost
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.results import tuned_outcomes
from pe_lab.results.cell_rows import STARTING_SCALES, describe_cells, settings_of
from pe_lab.results.from_ledger import validation_by_step
from pe_lab.results.learned import not_learned_note
from pe_lab.results.summary_table import as_text
from pe_lab.results.tuned_outcomes import endpoint_of
from pe_lab.statistics import (
    NeededTry,
    Try,
    TryOfSeed,
    TryProgress,
    TunedOutcome,
    TunedTask,
    TuningPlan,
    plan_outcomes,
)

# settings of the cells of tries: they are trained and validated, and nothing else
UNMEASURED_SETTINGS: dict[str, Any] = {
    "probe": {},
    "evaluate.lengths": [1.0],
    "evaluate.policy": ["raw"],
    "evaluate.offset": [0],
    "evaluate.decode": "none",
}


def starting_scale(leaf: DictConfig, path: str = "pe") -> str | None:
    """Return the setting that is the starting scale of an encoding, or of one that it is made of; or None.

    Of several, it is the first: the others keep the values that they are given.

    Args:
        leaf: the settings of the encoding; path: of them in the config.

    Raises:
        ValueError: the option has another name than those that tables leave out where it has one value per encoding.
    """
    option = getattr(get_class(leaf["_target_"]), "start_scale", None)
    if option is not None and option in leaf:
        if option not in STARTING_SCALES:
            names = " or ".join(STARTING_SCALES)
            raise ValueError(f"start_scale of {leaf['_target_']} must be {names} to be tuned, got {option!r}")
        return f"{path}.{option}"
    scales = (starting_scale(part, f"{path}.{key}") for key, part in inner_encodings(leaf))
    return next(filter(None, scales), None)


def is_phased(leaf: DictConfig) -> bool:
    """Return whether an encoding, or one that it is made of, changes in the course of the training."""
    return bool(getattr(get_class(leaf["_target_"]), "phased", False)) or any(
        is_phased(part) for _, part in inner_encodings(leaf)
    )


def _require_scale_unset(cfg: DictConfig, scale: str) -> None:
    """Raise ValueError if the starting scale is not that of the encoding's file: somebody wants another."""
    path, _, option = scale.rpartition(".")
    leaf = OmegaConf.select(cfg, path)
    written = find_folders().stated("pe", leaf.name)
    usual = written.get(option) if isinstance(written, DictConfig) else None
    if usual is not None and leaf[option] != usual:
        value = f"{leaf[option]:g}"
        raise ValueError(f"{scale} must be left to tune.scaled, got {value}: leave it out, or add tune.scaled=[]")


@dataclass
class TunedSeed:
    """The tries of one seed of an encoding in a setting.

    Attributes:
        cfg: the config of the cell, whose learning rate and starting scale are not used.
        scale: the setting of the initial scale, if the encoding has one.
        plan: the tuning plan of this seed alone.
        progress: the known progress of each try.
        curves: the validation score, or minus the loss, by step, for each try.
        seconds: the core-seconds of each run, up to where it was needed.
        losses: the test loss of each try where its training ended, and its floors, by name.
    """

    cfg: DictConfig
    scale: str | None
    plan: TuningPlan
    progress: dict[TryOfSeed, TryProgress] = field(default_factory=dict)
    curves: dict[TryOfSeed, dict[int, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    losses: dict[TryOfSeed, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def from_config(cls, cfg: DictConfig) -> "TunedSeed":
        """Return the seed that a cell describes, before any of its tries is trained.

        Raises:
            ValueError: the settings of `tune`, `solve` and `steps` do not make one.
        """
        if is_phased(cfg.pe):
            raise ValueError(
                f"tune.rates compares tries of several lengths, and pe={cfg.pe.name} changes in the course of its "
                f"training: give optimizer.lr"
            )
        scale = starting_scale(cfg.pe) if cfg.tune.scaled else None
        if scale is not None:
            _require_scale_unset(cfg, scale)
        tries = [Try(float(rate)) for rate in cfg.tune.rates]
        if scale:
            tries = [Try(float(rate), float(start)) for rate, start in cfg.tune.scaled]
        grid = evaluation_steps(cfg.steps, cfg.solve.first, cfg.solve.per_doubling)
        task = TunedTask(cfg.data.name, cfg.steps, cfg.solve.level, grid, _fraction_to_choice(cfg, grid))
        plan = TuningPlan({cfg.pe.name: tries}, [task], [cfg.seed])
        return cls(cfg, scale, plan)

    @property
    def outcome(self) -> TunedOutcome:
        """What came out so far."""
        (outcome,) = plan_outcomes(self.plan, self.progress)
        return outcome

    def result(self) -> dict[str, Any]:
        """Return what came out: y, solved, the rate and scale that were chosen, edge, trained_steps, core_seconds.

        y is log2 of the steps to solve, or the test loss of a task without a level. Rate and scale are NaN and None
        where all tries failed.
        """
        outcome = self.outcome
        chosen = outcome.chosen or Try(float("nan"))
        seconds = round(sum(self.seconds.values()), 1)
        return {
            **{
                "y": outcome.y,
                "solved": outcome.solved,
                LR: chosen.rate,
                "start_scale": chosen.scale,
                "edge": outcome.edge,
            },
            **{"trained_steps": outcome.steps, "core_seconds": seconds},
        }

    def next(self) -> NeededTry | None:
        """Return what to train next: the try nearest the middle of the ladder, which is mostly the fastest."""
        needs = self.outcome.needs
        tries = self.plan.tries[self.cfg.pe.name]
        return min(needs, key=lambda need: abs(2 * tries.index(need.try_of_seed.try_) - len(tries) + 1), default=None)

    def ahead(self) -> tuple[list[int], bool]:
        """Return the steps of each training that the seed may still need, the next one first, and whether all are sure.

        The best try goes on as the last, unless a try solves the task before.
        """
        outcome, task = self.outcome, self.plan.tasks[0]
        if outcome.chosen is not None:  # only the best is left, if any
            return [need.steps - task.choice for need in outcome.needs], True
        steps = [need.steps for need in outcome.needs]
        may_go_on = bool(steps) and steps[0] == task.choice < task.cap
        return [*steps, *([task.cap - task.choice] if may_go_on else [])], not may_go_on

    def cell(self, need: NeededTry, measured: bool = False) -> DictConfig:
        """Return the cell that a need stands for."""
        try_ = need.try_of_seed.try_
        settings = {LR: try_.rate, "steps": need.steps} | ({self.scale: try_.scale} if self.scale else {})
        name = self.cfg.study_name
        return with_settings(
            self.cfg, settings if measured else UNMEASURED_SETTINGS | settings | {"study_name": _study_of_tries(name)}
        )

    def winner(self) -> DictConfig | None:
        """Return the cell of the chosen try, with the measurements of the study; None: all tries failed.

        It has all steps of the study; where the task is solved, its training has stopped and goes on no more.
        """
        try_of_seed = self.chosen
        return None if try_of_seed is None else self.cell(NeededTry(try_of_seed, self.cfg.steps), measured=True)

    @property
    def chosen(self) -> TryOfSeed | None:
        """The chosen try; None: all tries failed, or no try is chosen yet."""
        outcome = self.outcome
        if outcome.chosen is None:
            return None
        return TryOfSeed(outcome.encoding, outcome.task, outcome.seed, outcome.chosen)

    def take(self, need: NeededTry, outcome: Outcome) -> None:
        """Take what became of a cell.

        Raises:
            CellsMissingError: it failed for another reason than a loss that is not finite.
        """
        self.seconds[outcome.run] = max(self.seconds.get(outcome.run, 0.0), outcome.core_seconds)
        curve = self.curves.setdefault(need.try_of_seed, {})
        if outcome.failure is not None:
            if not outcome.diverged:
                raise CellsMissingError(f"the study needs {need}: {outcome.failure}")
            self.progress[need.try_of_seed] = TryProgress(
                self._scores_of_curve(curve), True, failed_at=outcome.failed_at
            )
            return
        task = self.plan.tasks[0]
        measured = validation_by_step(outcome.checkpoint)
        floors = {f"floor_{name}_loss": values["loss"] for name, values in outcome.floors.items() if "loss" in values}
        self.losses[need.try_of_seed] = {"test_loss": outcome.test.get("loss", math.nan)} | floors
        curve |= {
            step: metrics["score"] if task.level is not None else -metrics["loss"] for step, metrics in measured.items()
        }
        test = outcome.test["loss"] if task.level is None and need.steps == task.cap else None
        self.progress[need.try_of_seed] = TryProgress(self._scores_of_curve(curve), test=test)

    def _scores_of_curve(self, curve: dict[int, float]) -> list[float]:
        """Return the values at the evaluations, without gaps."""
        grid = self.plan.tasks[0].evaluations
        measured = [step in curve for step in grid]
        return [curve[step] for step in grid[: measured.index(False) if False in measured else len(grid)]]


def _fraction_to_choice(cfg: DictConfig, grid: tuple[int, ...]) -> float:
    """Return the part of the steps of a cell after which only its best try continues.

    Raises:
        ValueError: no evaluation is made then.
    """
    steps, fraction, choice = cfg.steps, cfg.tune.fraction, cfg.tune.steps
    if choice is not None:
        if choice < steps and choice not in grid:
            raise ValueError(f"tune.steps must be a step of evaluation, one of {list(grid)}, got {choice}")
        return float(min(1.0, choice / steps))
    if (choice := round(fraction * steps)) not in grid:
        halvings = max(1, round(-math.log2(fraction)))
        usual = cfg.solve.first * 2 ** max(halvings, round(math.log2(steps / cfg.solve.first)))
        raise ValueError(
            f"steps={steps} x tune.fraction={fraction:g} must be a step of evaluation, got {choice}: with "
            f"solve.first={cfg.solve.first} choose steps={usual} tune.fraction={2.0**-halvings:g}"
        )
    return float(fraction)


def evaluation_steps(steps: int, first: int, per_doubling: int) -> tuple[int, ...]:
    """Return the steps at which a training of so many steps is evaluated, its last one among them."""
    return tuple(dict.fromkeys([*grid_of_steps(steps, first, per_doubling), steps]))


def _study_of_tries(study: str | None) -> str | None:
    return study and f"{study}-tries"


def tuned_seeds(cfgs: list[DictConfig]) -> list[TunedSeed]:
    """Return the seed of each cell, with the tries that it chooses from.

    Raises:
        ValueError: the settings do not make one, or set what the seeds choose.
    """
    endpoint_of(cfgs[0])
    return [TunedSeed.from_config(cfg) for cfg in cfgs]


def tune_cells(cfgs: list[DictConfig]) -> Stage:
    """Train the tries of every cell as far as they are needed, then measure the ones that were chosen.

    Returns:
        The cells of the chosen tries; those of which every try diverged have none.

    Raises:
        ValueError: see `tuned_seeds`.
        CellsMissingError: a try failed for another reason than a loss that is not finite.
    """
    seeds, number = tuned_seeds(cfgs), 0
    varied = (LR, *sorted({seed.scale for seed in seeds if seed.scale}))
    while waiting := [(seed, need) for seed in seeds if (need := seed.next()) is not None]:
        number += 1
        cells = [seed.cell(need) for seed, need in waiting]
        text, later = _describe_round(seeds, number)
        done = yield Round(cells, text, varied=varied, later=later)
        for (seed, need), outcome in zip(waiting, done, strict=True):
            seed.take(need, outcome)
    chosen = [winner for seed in seeds if (winner := seed.winner()) is not None]
    write_outcomes(seeds)
    text = f"tuning ended after {number} rounds: {len(chosen)} of {len(seeds)} cells have a learning rate"
    yield Round(chosen, text, varied=varied)
    return chosen


def _describe_round(seeds: list[TunedSeed], number: int) -> tuple[str, Upcoming]:
    """Return what a round does, in one line, and what later rounds may need.

    Args:
        number: the number of the round, from 1.
    """
    ahead = [(seed, *seed.ahead()) for seed in seeds]
    waiting = [(seed, steps, sure) for seed, steps, sure in ahead if steps]
    work = sum(sum(steps[1:]) * unit_cost(seed.cfg.model.depth) for seed, steps, _ in waiting)
    later = Upcoming(sum(len(steps) - 1 for _, steps, _ in waiting), work, all(sure for *_, sure in waiting))
    last = number - 1 + max(len(steps) for _, steps, _ in waiting)
    count, tries = f"{len(waiting)} cell{'s' * (len(waiting) > 1)}", len(seeds[0].cfg.tune.rates)
    what = f"learning rate {number} of {tries} of each" if number <= tries else "the best learning rate of each goes on"
    return f"tuning, round {number} of {'' if later.exact else 'at most '}{last}: {count}, {what}", later


# -- tables ------------------------------------------------------------------------------------------------------------


def outcome_table(seeds: list[TunedSeed]) -> pd.DataFrame:
    """Return a line per cell: its settings, and its result."""
    described = describe_cells([settings_of(seed.cfg) for seed in seeds]).drop(columns="epochs")
    lines = zip(described.to_dict("records"), seeds, strict=True)
    return pd.DataFrame([settings | seed.result() for settings, seed in lines])


def try_table(seeds: list[TunedSeed]) -> pd.DataFrame:
    """Return a line per evaluation of each try: settings, rate, scale, step, value (the score, or minus the loss)."""
    described = describe_cells([settings_of(seed.cfg) for seed in seeds]).drop(columns="epochs")
    return pd.DataFrame(
        settings | {LR: try_of_seed.try_.rate, "start_scale": try_of_seed.try_.scale, "step": step, "value": value}
        for seed, settings in zip(seeds, described.to_dict("records"), strict=True)
        for try_of_seed, curve in seed.curves.items()
        for step, value in sorted(curve.items())
    )


def loss_table(seeds: list[TunedSeed]) -> pd.DataFrame:
    """Return a line per cell that has a chosen try: its settings, the test loss of the try, and its floors."""
    described = describe_cells([settings_of(seed.cfg) for seed in seeds]).drop(columns="epochs").to_dict("records")
    pairs = [(seed, seed.chosen, settings) for seed, settings in zip(seeds, described, strict=True)]
    chosen = [
        (settings, seed.losses.get(try_of_seed)) for seed, try_of_seed, settings in pairs if try_of_seed is not None
    ]
    return pd.DataFrame([settings | losses for settings, losses in chosen if losses])


def write_outcomes(seeds: list[TunedSeed]) -> None:
    """Print what came out, and write its tables into the folder of the study, if it has one.

    They are outcomes.csv, tries.csv and, with a baseline, verdicts.csv.
    """
    outcomes, losses, cfg = outcome_table(seeds), loss_table(seeds), seeds[0].cfg
    tables = {"outcomes.csv": outcomes, "tries.csv": try_table(seeds)}
    if len(losses) and (warning := not_learned_note(losses)):
        print(warning)
    shown = tuned_outcomes.with_floors(outcomes, losses) if len(losses) else outcomes
    summary, names = (
        tuned_outcomes.summary(shown, endpoint_of(cfg), cfg.tune.baseline),
        tuned_outcomes.tuned_settings(shown),
    )
    for key, table in summary.groupby(names, sort=False, dropna=False):
        setting = ", ".join(f"{name} {value}" for name, value in zip(names, key, strict=True))
        print(f"{setting}\n{as_text(table.drop(columns=names).round(4), [])}\n")
    if cfg.tune.baseline is not None:
        tables["verdicts.csv"] = verdicts = tuned_outcomes.compare_with_baseline(
            outcomes, endpoint_of(cfg), cfg.tune.baseline
        )
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts["verdict"].value_counts().items())
        print(f"{len(verdicts)} comparisons with {cfg.tune.baseline} in one family: {counts}")
        if len(verdicts):
            unit = "octaves" if endpoint_of(cfg).kind == "steps" else "nats"
            shown = verdicts[[*tuned_outcomes.tuned_settings(outcomes), "pe", "difference", "low", "high", "verdict"]]
            shown = shown.rename(columns={"difference": f"difference, {unit}"})
            print(f"{as_text(shown.round(4), [])}\n")
    if note := tuned_outcomes.unsolved_note(outcomes):
        print(note)
    if note := tuned_outcomes.seed_note(outcomes):
        print(note)
    if note := tuned_outcomes.edge_note(outcomes, cfg.tune.rates):
        print(note)
    hours = outcomes["core_seconds"].sum() / 3600
    print(f"{hours:.2f} core-hours of training steps (wall time x threads) for {len(seeds)} cells and their tries")
    if cfg.study_name:
        ledger = Path(cfg.ledger)
        for file, table in tables.items():
            LedgerFiles(ledger).write(ledger / "studies" / cfg.study_name / file, table.to_csv(index=False))
