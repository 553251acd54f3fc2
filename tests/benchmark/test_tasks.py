"""The tasks of pe-bench 2 are studies that differ in their data, their budget and their endpoint alone."""

import re

import pandas as pd
import pytest

from pe_lab import config
from pe_lab.benchmark.task_statistics import endpoint_of_task
from pe_lab.benchmark.tasks import COMBINATIONS, STUDY, benchmark_tasks, task_named
from pe_lab.benchmark.undefined_encodings import UNDEFINED_FILE, measure_undefined, undefined_reasons
from pe_lab.encodings.named import encodings
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.tuning import TunedSeed

OF_TASKS = ("data", "trainer.batch_size", "trainer.fresh", "steps", "solve.level", "tune.margin", "study_name")
STUDIES = sorted(path.stem for path in (config.config_folder() / "study").glob(f"{STUDY}_*.yaml"))
UNCHANGED = ("drope",)  # encodings whose rates cannot be tuned: they change in the course of training


def test_every_file_of_the_benchmark_is_a_task_and_every_task_a_file() -> None:
    assert sorted(one.study for one in benchmark_tasks()) == STUDIES


@pytest.mark.parametrize("study", STUDIES)
def test_a_task_says_what_it_asks_and_its_cells_make_a_race(study: str) -> None:
    task = task_named(study.removeprefix(f"{STUDY}_"))
    assert re.fullmatch(r"[a-z][\w ,:-]{3,30}", task.asks), task.asks
    assert task.question.count("?") == 1
    assert task.cfg.study_name == task.study == f"{STUDY}_{task.name}"
    seed = TunedSeed.from_config(task.cfg)
    assert len(seed.plan.tries["none"]) == len(task.cfg.tune.rates) >= 3
    assert endpoint_of_task(task).kind == ("steps" if task.solvable else "loss")
    cell = Cell.from_config(task.cfg)
    assert task.cfg.trainer.fresh or task.name == "causal_text" or cell.steps_per_epoch >= cell.target
    assert list(task.cfg.evaluate.lengths) == [1, 2, 4]


def test_tasks_have_one_model_one_training_and_one_ladder() -> None:
    flat = [config.flatten_settings(config.resolve_config(one.cfg)) for one in benchmark_tasks()]
    shared = [{key: value for key, value in one.items() if not key.startswith(OF_TASKS)} for one in flat]
    assert all(one == shared[0] for one in shared)
    assert shared[0]["trainer.device"] == "cpu"


def test_one_task_is_for_every_encoding_that_is_no_combination_and_the_others_share_a_list() -> None:
    every = set(encodings()) - set(COMBINATIONS)
    assert set(task_named("flip_flop").encodings) == every
    shared = task_named("causal_text").encodings
    assert len(set(shared)) == len(shared) == 12
    assert set(shared) < every
    assert all(one.encodings == shared for one in benchmark_tasks() if one.name not in ("flip_flop", "bag"))
    assert len(task_named("bag").encodings) == 10


@pytest.mark.long
def test_cells_of_a_study_are_of_the_encodings_of_its_task() -> None:
    for name in ("induction", "bag"):
        cfgs = config.expand_overrides(config.sweep_overrides([f"+study={STUDY}_{name}"]), multirun=True)
        assert [cfg.pe.name for cfg in cfgs] == list(task_named(name).encodings)


@pytest.mark.slow  # it composes a config for each
def test_a_study_without_pe_has_every_encoding_that_can_tune() -> None:
    cfgs = config.expand_overrides(config.sweep_overrides([f"+study={STUDY}_flip_flop"]), multirun=True)
    assert {cfg.pe.name for cfg in cfgs} == set(encodings()) - {*COMBINATIONS, *UNCHANGED}


def test_what_is_not_measured_has_a_reason_and_trying_says_the_same() -> None:
    found = undefined_reasons()
    assert all(
        pe in task_named(name).encodings and reason and "\n" not in reason for (pe, name), reason in found.items()
    )
    assert {name for pe, name in found if pe == "drope"} == {"flip_flop"}
    assert ("forgetting", "place") in found
    names = ["drope", "abacus", "rope"]
    made = set(measure_undefined(names).itertuples(index=False, name=None))
    assert made == {(*pair, reason) for pair, reason in found.items() if pair[0] in names}


@pytest.mark.slow
def test_the_file_is_what_trying_all_says() -> None:
    """Otherwise `python .ci/update.py --only undefined` writes it."""
    pd.testing.assert_frame_equal(measure_undefined(), pd.read_csv(UNDEFINED_FILE, keep_default_na=False))
