"""The tasks of pe-bench 2 are studies that differ in their data, their budget and their endpoint alone."""

import re

import pytest

from pe_lab import config
from pe_lab.benchmark.tuned.tasks import STUDY, Task, tasks
from pe_lab.benchmark.undefined import COMBINATIONS
from pe_lab.encodings.named import encodings
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.tuning import Race, endpoint_of

OF_TASKS = ("data", "trainer.batch_size", "trainer.fresh", "steps", "solve.level", "tune.margin", "study_name")
UNCHANGED = ("drope",)  # encodings that no race can have: they change in the course of training


def test_every_file_of_the_benchmark_is_a_task_and_every_task_a_file() -> None:
    files = {path.stem for path in (config.folder() / "study").glob(f"{STUDY}_*.yaml")}
    assert {task.study for task in tasks()} == files


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.name)
def test_a_task_says_what_it_asks_and_its_cells_make_a_race(task: Task) -> None:
    assert re.fullmatch(r"[a-z][\w ,:-]{3,30}", task.asks), task.asks
    assert task.question.count("?") == 1
    assert task.cfg.study_name == task.study == f"{STUDY}_{task.name}"
    race = Race.of(task.cfg)
    assert len(race.plan.tries["none"]) == len(task.cfg.tune.rates) >= 3
    assert endpoint_of(task.cfg).kind == ("steps" if task.solvable else "loss")
    cell = Cell.from_config(task.cfg)
    assert task.cfg.trainer.fresh or task.name == "causal_text" or cell.steps_per_epoch >= cell.target
    assert list(task.cfg.evaluate.lengths) == [1, 2, 4]


def test_tasks_have_one_model_one_training_and_one_ladder() -> None:
    flat = [config.flatten(config.resolved(task.cfg)) for task in tasks()]
    shared = [{key: value for key, value in one.items() if not key.startswith(OF_TASKS)} for one in flat]
    assert all(one == shared[0] for one in shared)
    assert shared[0]["trainer.device"] == "cpu"


def test_all_tasks_but_the_control_are_for_every_encoding_that_is_no_combination() -> None:
    every = set(encodings()) - set(COMBINATIONS)
    assert {task.name for task in tasks() if set(task.encodings) != every} == {"bag"}
    (bag,) = (task for task in tasks() if task.name == "bag")
    assert len(bag.encodings) == 10
    assert set(bag.encodings) < every


@pytest.mark.slow  # it composes a config for each
def test_a_study_without_pe_has_every_encoding_that_can_tune() -> None:
    cfgs = config.expand(config.of_jobs([f"+study={tasks()[0].study}"]), multirun=True)
    assert {cfg.pe.name for cfg in cfgs} == set(encodings()) - {*COMBINATIONS, *UNCHANGED}
