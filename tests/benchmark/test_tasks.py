"""The tasks of the benchmark are studies that differ in their data alone."""

import re

import pytest

from pe_lab import config
from pe_lab.benchmark.tasks import STUDY, Task, tasks
from pe_lab.encodings.named import encodings

OF_TASKS = ("data", "trainer.batch_size", "epochs", "evaluate", "margin", "study_name", "pe", "optimizer.lr")


def test_every_file_of_the_benchmark_is_a_task_and_every_task_a_file() -> None:
    files = {path.stem for path in (config.folder() / "study").glob(f"{STUDY}_*.yaml")}
    assert {task.study for task in tasks()} == files
    assert len(files) >= 12


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.name)
def test_a_task_says_what_it_asks_and_has_all_encodings(task: Task) -> None:
    assert re.fullmatch(r"[a-z][\w ,:-]{3,30}", task.asks), task.asks
    assert task.question.count("?") == 1
    assert "pe: glob(*)" in (config.folder() / "study" / f"{task.study}.yaml").read_text()
    assert task.study == f"{STUDY}_{task.name}"


def test_tasks_have_one_model_one_training_and_one_search() -> None:
    found = []
    for task in tasks():
        (cfg,) = config.expand(config.of_jobs([f"+study={task.study}", "pe=rope"]), multirun=True)
        assert cfg.study_name == task.study
        assert cfg.margin is not None
        flat = config.flatten(config.resolved(cfg))
        found.append({key: value for key, value in flat.items() if not key.startswith(OF_TASKS)})
    assert all(one == found[0] for one in found)
    assert found[0]["trainer.device"] == "cpu"


@pytest.mark.slow  # it composes a config for each
def test_glob_is_every_encoding_of_the_package() -> None:
    cfgs = config.expand(config.of_jobs([f"+study={tasks()[0].study}"]), multirun=True)
    assert {cfg.pe.name for cfg in cfgs} == set(encodings())
