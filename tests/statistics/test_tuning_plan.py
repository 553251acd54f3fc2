"""The study as ask and tell: whatever is trained in whatever order, it needs the same tries and ends the same."""

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks import simulated_runs as simulation
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

GRID = (100, 200, 300, 400, 600, 800)
COPY = TunedTask("copy", 800, 0.9, GRID, 0.5)
TEXT = TunedTask("text", 800, None, GRID, 0.5)
LADDER = (Try(1e-3), Try(3e-3), Try(1e-2))


def ask(study: TuningPlan, progress: dict[TryOfSeed, TryProgress]) -> list[NeededTry]:
    """Return the tries that are needed next, in order of seeds, each with the steps it must reach."""
    return [need for outcome in plan_outcomes(study, progress) for need in outcome.needs]


def plan(task: TunedTask = COPY, seeds: tuple[int, ...] = (0,)) -> TuningPlan:
    return TuningPlan({"rope": LADDER}, [task], seeds)


def run(
    study: TuningPlan,
    curves: dict[Try, list[float]],
    rng: np.random.Generator | None = None,
    fails: dict[Try, int] | None = None,
) -> tuple[list[TunedOutcome], dict[TryOfSeed, TryProgress]]:
    """Train what is asked for, one evaluation of one try at a time, in a random order."""
    progress: dict[TryOfSeed, TryProgress] = {}
    tasks = {task.name: task for task in study.tasks}
    for _ in range(10_000):
        needs = ask(study, progress)
        if not needs:
            break
        try_of_seed, steps = needs[rng.integers(len(needs))] if rng else needs[0]
        state = progress.get(try_of_seed, TryProgress())
        grid, number = tasks[try_of_seed.task].evaluations, len(state.scores)
        if number < len(grid) and grid[number] <= steps:
            failed = fails is not None and fails.get(try_of_seed.try_, 99) <= number
            more = [] if failed else [curves[try_of_seed.try_][number]]
            progress[try_of_seed] = TryProgress([*state.scores, *more], failed)
        else:
            progress[try_of_seed] = TryProgress(state.scores, test=-curves[try_of_seed.try_][-1])
    else:
        pytest.fail("the study does not end")
    return plan_outcomes(study, progress), progress


def flat(value: float) -> list[float]:
    return [value] * len(GRID)


def test_a_try_that_failed_was_trained_to_the_step_where_it_did() -> None:
    slow, good, bad = (TryOfSeed("rope", "copy", 0, try_) for try_ in LADDER)
    failed = TryProgress(failed=True, failed_at=50)
    progress = {slow: TryProgress(flat(0.1)[:4]), good: TryProgress(flat(0.2)[:4]), bad: failed}
    (found,) = plan_outcomes(plan(), progress)
    assert found.steps == 400 + 400 + 50
    (found,) = plan_outcomes(plan(), progress | {good: TryProgress(flat(0.2)[:4], failed=True, failed_at=550)})
    assert found.steps == 400 + 550 + 50
    (found,) = plan_outcomes(plan(), progress | {bad: TryProgress([0.3], failed=True, failed_at=150)})
    assert found.steps == 400 + 400 + 150
    (found,) = plan_outcomes(plan(), progress | {bad: TryProgress([0.3], failed=True)})
    assert found.steps == 400 + 400 + 100
    # all stop where the second passes, before the third failed
    passed, late = TryProgress([0.95, 0.95]), TryProgress([0.3, 0.3], failed=True, failed_at=250)
    (found,) = plan_outcomes(plan(), progress | {good: passed, bad: late})
    assert (found.solved, found.steps) == (True, 3 * 200)


def test_all_stop_when_one_passes() -> None:
    passing = [0.0, 0.8, 1.0, 1.0, 1.0, 1.0]
    (found,), progress = run(plan(), dict(zip(LADDER, (flat(0.1), passing, flat(0.2)), strict=True)))
    assert found.finished
    assert found.solved
    assert found.chosen == LADDER[1]
    assert not found.edge
    np.testing.assert_allclose(found.y, np.log2(200) + 0.5 * np.log2(1.5))
    assert found.steps == 3 * 400
    assert max(len(state.scores) for state in progress.values()) == 4


def test_the_earliest_pass_wins_and_a_tie_goes_to_the_shorter_time() -> None:
    later, earlier = [0.0, 0.1, 0.95, 0.95, 1, 1], [0.0, 0.8, 0.95, 0.95, 1, 1]
    (found,), _ = run(plan(), dict(zip(LADDER, (later, flat(0.99)[:1] + later[1:], earlier), strict=True)))
    assert found.chosen == LADDER[2]
    assert found.edge


def test_a_fraction_of_one_trains_all_tries_to_the_cap() -> None:
    task = TunedTask("text", 800, None, GRID, 1.0)
    (found,), progress = run(plan(task), dict(zip(LADDER, (flat(-3), flat(-1), flat(-2)), strict=True)))
    assert (found.finished, found.chosen, found.y, found.steps) == (True, LADDER[1], 1, 3 * 800)
    assert [len(progress[TryOfSeed("rope", "text", 0, each)].scores) for each in LADDER] == [6, 6, 6]
    late = [0.0, 0.1, 0.2, 0.3, 0.95, 0.95]
    (found,), _ = run(
        plan(TunedTask("copy", 800, 0.9, GRID, 1.0)), dict(zip(LADDER, (late, *[flat(0.5)] * 2), strict=True))
    )
    assert (found.solved, found.chosen, found.steps) == (True, LADDER[0], 3 * 800)


def test_without_a_level_one_evaluation_at_the_cap_is_enough() -> None:
    task = TunedTask("text", 100, None, (100,), 1.0)
    study = plan(task)
    asked = ask(study, {})
    assert [need.steps for need in asked] == [100] * 3
    done = {need.try_of_seed: TryProgress([-k], test=float(k)) for k, need in enumerate(asked)}
    assert plan_outcomes(study, done)[0].y == 0.0


def test_without_a_pass_only_the_best_by_validation_goes_on() -> None:
    late = [0.0, 0.1, 0.2, 0.5, 0.95, 0.95]
    better_later = [0.0, 0.1, 0.2, 0.3, 1.0, 1.0]
    (found,), progress = run(plan(), dict(zip(LADDER, (better_later, late, flat(0.4)), strict=True)))
    assert found.chosen == LADDER[1]
    assert found.solved
    assert found.steps == 2 * 400 + 800
    assert [len(progress[TryOfSeed("rope", "copy", 0, each)].scores) for each in LADDER] == [4, 6, 4]


def test_no_pass_by_the_cap_is_censored() -> None:
    (found,), _ = run(plan(), dict(zip(LADDER, (flat(0.1), flat(0.5), flat(0.4)), strict=True)))
    assert found.finished
    assert found.solved is False
    assert found.y == np.log2(800)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_a_pass_at_the_cap_alone_solves_the_task_there(fraction: float) -> None:
    task = TunedTask("copy", 800, 0.9, GRID, fraction)
    curves = {try_: [0.1, 0.2, 0.3, 0.4 + number / 100, 0.8, 0.91] for number, try_ in enumerate(LADDER)}
    (outcome,), _ = run(plan(task), curves)
    assert (outcome.y, outcome.solved) == (np.log2(800), True)
    assert outcome.steps == (3 * 400 + 400 if fraction < 1 else 3 * 800)


def test_a_pass_that_the_choice_cuts_in_two_counts_for_the_one_that_goes_on() -> None:
    cut = [0.0, 0.1, 0.2, 0.95, 0.95, 0.95]
    (found,), _ = run(plan(), dict(zip(LADDER, (flat(0.1), cut, flat(0.4)), strict=True)))
    assert found.solved
    assert np.log2(300) < found.y < np.log2(400)
    assert found.steps == 2 * 400 + 600


def test_a_task_without_a_level_ends_at_the_cap_with_the_test_value_of_the_best() -> None:
    curves = dict(zip(LADDER, (flat(0.99), [0.1, 0.2, 0.3, 1.5, 1.6, 1.7], flat(0.4)), strict=True))
    (found,), _ = run(plan(TEXT), curves)
    assert found.finished
    assert found.solved is None
    assert found.chosen == LADDER[1]
    assert found.y == -1.7
    assert found.steps == 2 * 400 + 800


def test_what_fails_is_out_and_when_all_fail_nothing_is_solved() -> None:
    curves = dict(zip(LADDER, (flat(0.8), flat(0.5), flat(0.4)), strict=True))
    (found,), _ = run(plan(), curves, fails={LADDER[0]: 2})
    assert found.chosen == LADDER[1]
    (found,), _ = run(plan(), curves, fails=dict.fromkeys(LADDER, 1))
    assert found.finished
    assert found.chosen is None
    assert found.solved is False
    assert found.y == np.log2(800)
    assert found.steps == 300
    (found,), _ = run(plan(), curves, fails={LADDER[0]: 5})
    assert found.finished
    assert (found.solved, found.y) == (False, np.log2(800))
    (found,), _ = run(plan(TEXT), curves, fails={LADDER[0]: 5})
    assert found.finished
    assert np.isnan(found.y)


@pytest.mark.parametrize("seed", range(30))
def test_the_order_of_training_does_not_change_the_outcome(seed: int) -> None:
    rng = np.random.default_rng(seed)
    curves = {each: list(np.sort(rng.uniform(size=len(GRID)) ** rng.choice([0.1, 1, 3]))) for each in LADDER}
    fails = {each: int(rng.integers(3, 12)) for each in LADDER}
    task = TEXT if seed % 5 == 0 else COPY
    expected, _ = run(plan(task, (0, 1)), curves, fails=fails)
    found, _ = run(plan(task, (0, 1)), curves, rng, fails)
    assert repr(found) == repr(expected)


def test_scores_beyond_the_end_of_a_race_are_not_used() -> None:
    passing = [0.0, 0.95, 0.95, 1.0, 1.0, 1.0]
    sooner = [0.0, 0.0, 0.9, 0.96, 1.0, 1.0]  # passes only after the other is confirmed
    progress = {
        TryOfSeed("rope", "copy", 0, each): TryProgress(scores)
        for each, scores in zip(LADDER, (passing, sooner, flat(0.0)), strict=True)
    }
    (found,) = plan_outcomes(plan(), progress)
    assert found.chosen == LADDER[0]
    assert found.steps == 3 * 300
    short = {try_of_seed: TryProgress(state.scores[:3]) for try_of_seed, state in progress.items()}
    assert plan_outcomes(plan(), short) == [found]


def test_a_study_asks_for_every_encoding_task_and_seed() -> None:
    scales = (Try(1e-3, 0.1), Try(3e-3, 0.1), Try(3e-3, 1.0))
    study = TuningPlan({"rope": LADDER, "learnable": scales}, [COPY, TEXT], [3, 4])
    needs = ask(study, {})
    assert len(needs) == 2 * 2 * 2 * 3
    assert {need.steps for need in needs} == {400}
    assert {need.try_of_seed.try_ for need in needs if need.try_of_seed.encoding == "learnable"} == set(scales)


def refused() -> Iterator[tuple[object, str]]:
    yield lambda: TuningPlan({"rope": LADDER[:1]}, [COPY], [0]), "at least two rates"
    yield lambda: TuningPlan({"rope": (Try(1e-3, 0.1), Try(1e-3, 1.0))}, [COPY], [0]), "at least two rates"
    yield lambda: TuningPlan({"rope": (LADDER[0], LADDER[0])}, [COPY], [0]), "distinct"
    yield lambda: TuningPlan({"rope": (Try(0.0), LADDER[0])}, [COPY], [0]), "above 0"
    yield (
        lambda: TuningPlan({"rope": LADDER, "alibi": LADDER[:2]}, [COPY], [0]),
        "same number of tries, got 3 of rope and 2",
    )
    yield lambda: TuningPlan({}, [COPY], [0]), "must have encodings, tasks and seeds"
    yield lambda: TuningPlan({"rope": LADDER}, [COPY], []), "must have encodings, tasks and seeds"
    yield lambda: TuningPlan({"rope": LADDER}, [COPY, COPY], [0]), "tasks must be distinct"
    yield lambda: TuningPlan({"rope": LADDER}, [COPY], [1, 1]), "seeds must be distinct"
    yield lambda: TunedTask("copy", 800, 1.0, GRID, 0.5), "level must be between 0 and 1"
    yield lambda: TunedTask("copy", 800, 0.0, GRID, 0.5), "level must be between 0 and 1"
    yield lambda: TunedTask("copy", 50, 0.9, (60, 120), 0.5), "cap must be at or beyond"
    yield lambda: TunedTask("copy", 800, 0.9, GRID[:-1], 0.5), "end at the cap, 800"
    yield lambda: TunedTask("copy", 800, 0.9, GRID, 0.3), "must have 240"
    yield lambda: TunedTask("copy", 800, 0.9, GRID, 1.5), "fraction of copy must be above 0 and at most 1"
    try_of_seed = TryOfSeed("rope", "copy", 0, LADDER[0])
    yield lambda: ask(plan(), {try_of_seed._replace(seed=7): TryProgress([0.1])}), "tries of the plan"
    yield lambda: ask(plan(), {try_of_seed: TryProgress([np.nan])}), "finite numbers"
    yield lambda: ask(plan(), {try_of_seed: TryProgress([-np.inf])}), "finite numbers"
    yield lambda: ask(plan(), {try_of_seed: TryProgress(flat(0.0) * 2)}), "at most 6 finite numbers"


@pytest.mark.parametrize(("make", "word"), list(refused()))
def test_plans_that_cannot_be_are_refused_in_one_line(make, word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        make()
    assert "\n" not in str(error.value)


def test_simulated_races_end_as_the_plan_says() -> None:
    design = simulation.Design(cap=4000)
    law = simulation.population_of_rows(np.random.default_rng(3), 40)
    rng = np.random.default_rng(0)
    passing = simulation.log_steps_to_level(law, 2, 3, rng, np.zeros(1))
    grid = simulation.evaluation_steps(design.cap, design.fraction)
    scores = simulation.curves(law, passing, grid, rng).astype(float)
    raced = simulation.judge_races(scores, grid, design)
    study = TuningPlan(
        {f"e{k}": LADDER for k in range(40)}, [TunedTask("task", 4000, 0.95, grid, design.fraction)], [0, 1]
    )
    progress = {
        TryOfSeed(f"e{k}", "task", seed, try_): TryProgress(scores[0, seed, k, number].tolist())
        for k in range(40)
        for seed in (0, 1)
        for number, try_ in enumerate(LADDER)
    }
    for outcome in plan_outcomes(study, progress):
        at = (0, outcome.seed, int(outcome.encoding[1:]))
        assert outcome.finished
        np.testing.assert_allclose(outcome.y, raced.y[at])
        assert (outcome.solved, outcome.steps, outcome.edge) == (raced.solved[at], raced.steps[at], raced.edge[at])
