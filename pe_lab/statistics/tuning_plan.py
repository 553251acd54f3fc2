"""Studies that tune the learning rate of every seed: which tries are needed next, and the outcomes.

For each encoding, task and seed, all tries are trained side by side to a fraction of the cap. When one passes the
level, all stop. If none has passed by then, only the best try by validation continues, to its pass or to the cap. On a
task without a level, the best try continues to the cap, a fixed number of steps.

Everything follows from the declared plan and the validation scores so far. The order in which tries are trained does
not matter, scores after the deciding step of a seed are not used, and a killed study can continue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pe_lab.statistics.steps import check_evaluations, check_level, first_pass, steps_to_solve


class Try(NamedTuple):
    """A learning rate, and the starting scale of an encoding that has one."""

    rate: float
    scale: float | None = None


class TryOfSeed(NamedTuple):
    """A try of one encoding on one task with one seed."""

    encoding: str
    task: str
    seed: int
    try_: Try


class NeededTry(NamedTuple):
    """A try that is needed, trained and evaluated up to so many steps."""

    try_of_seed: TryOfSeed
    steps: int


@dataclass(frozen=True)
class TunedTask:
    """A task with its budget.

    Args:
        name: the name of the task.
        cap: steps at which a run ends.
        level: the validation score that solves the task; None: it is not solved or unsolved, and y is a test value.
        evaluations: the steps of the evaluations, with fraction * cap and the cap among them.
        fraction: the fraction of the cap after which only the best try goes on; 1: no try is given up before the cap.

    Raises:
        ValueError: the level is not between 0 and 1, the cap is not beyond the first evaluation, or an evaluation is
            missing.
    """

    name: str
    cap: int
    level: float | None
    evaluations: tuple[int, ...]
    fraction: float

    def __post_init__(self) -> None:
        if self.level is not None:
            check_level(self.level)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction of {self.name} must be above 0 and at most 1, got {self.fraction:g}")
        check_evaluations(self.evaluations, self.cap, 1 if self.level is None else 2)
        if self.evaluations[-1] != self.cap or self.choice not in self.evaluations:
            raise ValueError(
                f"evaluations of {self.name} must have {self.choice} (fraction * cap) and end at the cap, {self.cap}, "
                f"got {', '.join(map(str, self.evaluations))}"
            )

    @property
    def choice(self) -> int:
        """The steps after which only the best try continues."""
        return round(self.fraction * self.cap)


@dataclass(frozen=True)
class TuningPlan:
    """The declared plan of a study.

    Args:
        tries: the ladder of each encoding. All have the same number of tries: for an encoding with a starting scale
            they are rates and scales.
        tasks: the tasks, with distinct names.
        seeds: distinct seeds.

    Raises:
        ValueError: a ladder has one try or the same one twice, ladders differ in their number of tries, or there is no
            task or seed.
    """

    tries: Mapping[str, Sequence[Try]]
    tasks: Sequence[TunedTask]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        if not self.tries or not self.tasks or not self.seeds:
            raise ValueError("a study must have encodings, tasks and seeds, got none of one of them")
        sizes = {encoding: len(tries) for encoding, tries in self.tries.items()}
        first, number = next(iter(sizes.items()))
        for encoding, tries in self.tries.items():
            if len(set(tries)) != len(tries) or any(not each.rate > 0 for each in tries):
                raise ValueError(f"tries of {encoding} must be distinct and their rates above 0, got {list(tries)}")
            if len({each.rate for each in tries}) < 2:
                raise ValueError(f"the ladder of {encoding} must have at least two rates, got {list(tries)}")
            if len(tries) != number:
                raise ValueError(
                    f"encodings must have the same number of tries, "
                    f"got {number} of {first} and {len(tries)} of {encoding}"
                )
        for what, values in (("tasks", [task.name for task in self.tasks]), ("seeds", list(self.seeds))):
            if len(set(values)) != len(values):
                raise ValueError(f"{what} must be distinct, got {', '.join(map(str, values))}")


@dataclass(frozen=True)
class TryProgress:
    """The progress of a try.

    Args:
        scores: validation scores at the first evaluations of its task, higher is better.
        failed: whether the run ended after these scores and cannot go on, as when it diverged.
        test: the test value at the cap, for a task without a level.
        failed_at: the step at which the run failed; None: it did not, or the step is not known.
    """

    scores: Sequence[float] = ()
    failed: bool = False
    test: float | None = None
    failed_at: int | None = None


@dataclass(frozen=True)
class TunedOutcome:
    """The outcome of an encoding, task and seed, or its progress.

    Attributes:
        finished: whether nothing more is needed. Otherwise y is NaN.
        y: log2 of the steps to solve; of a task without a level the test value, NaN if all tries failed.
        solved: whether a try passed; None for a task without a level.
        chosen: the try that passed or went on; None: not known yet, or all failed.
        edge: whether the chosen rate is the lowest or the highest of the ladder.
        steps: the number of steps trained in all tries, as far as they are needed; of a try that failed, up to its
            failure or its last score.
    """

    encoding: str
    task: str
    seed: int
    finished: bool
    y: float = np.nan
    solved: bool | None = None
    chosen: Try | None = None
    edge: bool = False
    steps: int = 0
    needs: tuple[NeededTry, ...] = field(default=(), repr=False)


def plan_outcomes(plan: TuningPlan, progress: Mapping[TryOfSeed, TryProgress]) -> list[TunedOutcome]:
    """Return the outcomes so far, ordered by seed, task and encoding.

    Raises:
        ValueError: progress has a try that is not planned, more scores than evaluations, or a score that is NaN.
    """
    _check_progress(plan, progress)
    return [
        _outcome_of_tries(plan, task, encoding, seed, progress)
        for seed in plan.seeds
        for task in plan.tasks
        for encoding in plan.tries
    ]


def _outcome_of_tries(
    plan: TuningPlan, task: TunedTask, encoding: str, seed: int, progress: Mapping[TryOfSeed, TryProgress]
) -> TunedOutcome:
    """Return what the tries of one encoding came to, on one task with one seed."""
    tries = plan.tries[encoding]
    tries_of_seed = [TryOfSeed(encoding, task.name, seed, try_) for try_ in tries]
    states = [progress.get(try_of_seed, TryProgress()) for try_of_seed in tries_of_seed]
    grid = task.evaluations
    choice = grid.index(task.choice) + 1  # number of evaluations up to it
    passes = [_index_of_pass(task, state.scores[:choice]) for state in states]
    confirmed = [index + 2 for index in passes if index >= 0]
    due = min([choice, *confirmed])  # all tries stop at the evaluation that confirms the first pass
    used = [list(state.scores[:due]) for state in states]
    ends = [grid[due - 1]] * len(tries)  # steps of each try that are needed

    def result(finished: bool, needs: Sequence[NeededTry] = (), **fields: object) -> TunedOutcome:
        reached = [
            max(state.failed_at or 0, grid[len(scores) - 1] if scores else 0)
            for state, scores in zip(states, used, strict=True)
        ]
        done = sum(map(min, reached, ends))
        chosen = fields.get("chosen")
        edge = isinstance(chosen, Try) and _is_at_edge(chosen, tries)
        return TunedOutcome(encoding, task.name, seed, finished, edge=edge, steps=done, needs=tuple(needs), **fields)  # type: ignore[arg-type]

    waiting = [
        NeededTry(try_of_seed, grid[due - 1])
        for try_of_seed, state in zip(tries_of_seed, states, strict=True)
        if len(state.scores) < due and not state.failed
    ]
    if waiting:
        return result(False, waiting)
    passed = {
        number: _steps_to_solve(task, scores)[0]
        for number, scores in enumerate(used)
        if _index_of_pass(task, scores) >= 0
    }
    if passed:
        best = min(passed, key=lambda number: passed[number])
        return result(True, y=passed[best], solved=True, chosen=tries[best])
    alive = [number for number, scores in enumerate(used) if len(scores) == due]
    if not alive:
        return result(True, y=np.nan if task.level is None else float(np.log2(task.cap)), solved=_or_none(task, False))
    best = max(alive, key=lambda number: used[number][-1])
    state = states[best]
    index = _index_of_pass(task, state.scores)
    end = len(grid) if index < 0 else index + 2
    used[best], ends[best] = list(state.scores[:end]), grid[end - 1]
    if len(used[best]) < end and not state.failed:
        return result(False, [NeededTry(tries_of_seed[best], grid[-1])], chosen=tries[best])
    if task.level is not None:
        y, solved = _steps_to_solve(task, used[best])
        return result(True, y=y, solved=solved, chosen=tries[best])
    if state.failed or state.test is not None:
        y = np.nan if state.failed or state.test is None else float(state.test)
        return result(True, y=y, chosen=tries[best])
    return result(False, [NeededTry(tries_of_seed[best], grid[-1])], chosen=tries[best])  # trained, not tested


def _or_none(task: TunedTask, solved: bool) -> bool | None:
    return None if task.level is None else solved


def _index_of_pass(task: TunedTask, scores: Sequence[float]) -> int:
    """Return the index of the first pass; -1: none."""
    if task.level is None or len(scores) < 2:
        return -1
    return int(first_pass(np.asarray(scores, float), task.level))


def _steps_to_solve(task: TunedTask, scores: Sequence[float]) -> tuple[float, bool]:
    """Return log2 of the steps to solve, and whether the task was solved."""
    assert task.level is not None
    padded = np.full(len(task.evaluations), np.nan)
    padded[: len(scores)] = scores
    y, solved = steps_to_solve(task.evaluations, padded, task.level, task.cap)
    return float(y), bool(solved)


def _is_at_edge(chosen: Try, tries: Sequence[Try]) -> bool:
    rates = [each.rate for each in tries]
    return chosen.rate in (min(rates), max(rates))


def _check_progress(plan: TuningPlan, progress: Mapping[TryOfSeed, TryProgress]) -> None:
    tasks = {task.name: task for task in plan.tasks}
    for try_of_seed, state in progress.items():
        tries = plan.tries.get(try_of_seed.encoding, ())
        if try_of_seed.try_ not in tries or try_of_seed.task not in tasks or try_of_seed.seed not in plan.seeds:
            raise ValueError(f"progress must be of tries of the plan, got {try_of_seed}")
        most = len(tasks[try_of_seed.task].evaluations)
        if len(state.scores) > most or not np.isfinite(state.scores).all():
            raise ValueError(f"scores of {try_of_seed} must be at most {most} finite numbers, got {list(state.scores)}")
