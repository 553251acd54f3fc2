"""A row has the command that makes its cell, to the hash of its identity."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import fabricated
from pe_lab import config
from pe_lab.benchmark.results import Results
from pe_lab.benchmark.rows import COLUMNS, anchor, command, tables
from pe_lab.benchmark.task_results import Settings, TaskResults
from pe_lab.benchmark.tasks import STUDY, tasks
from pe_lab.config import flatten, resolved
from pe_lab.experiment.cell import Cell
from pe_lab.results.columns import ENVIRONMENT
from pe_lab.system.files import digest


def trained(study: str, *words: str) -> Cell:
    """The cell that the words of a command line ask for."""
    (cfg,) = config.expand(config.of_jobs([f"+study={study}", *words]), multirun=True)
    return Cell.from_config(cfg)


@pytest.mark.parametrize(
    "words",
    [
        ["pe=rope", "seed=2"],
        ["pe=alibi", "pe.slopes=harmonic", "optimizer.lr=0.0123", "seed=0"],
        ["pe=learnable", "pe.std=0.14", "optimizer.lr=3e-4", "seed=1"],
        ["pe=heads", "seed=1"],
    ],
    ids=lambda words: words[0],
)
def test_the_command_of_a_row_makes_its_cell(words: list[str]) -> None:
    alone = ["search=none", "decide.baseline=null", "decide.seeds=5..12"]
    study = f"{STUDY}_copy"
    cell = trained(study, *words, *alone)
    shipped = replace(fabricated.cell("copy", "rope", 0, 0.5), identity=cell.identity)
    (defaults,) = config.expand([words[0]], multirun=False)
    found = shlex.split(command(study, shipped, flatten(resolved(defaults.pe))))
    assert found[:4] == ["python", "-m", "pe_lab.run", "-m"]
    assert "shipped=false" in found
    again = trained(study, *(word for word in found[4:] if not word.startswith("+study")))
    assert digest(again.identity) == digest(cell.identity)
    assert again.target == 2


def test_options_of_conf_pe_are_not_given_again() -> None:
    cell = fabricated.cell("copy", "alibi", 3, 0.5, slopes="harmonic", revision=1)
    given = command(f"{STUDY}_copy", cell, {"name": "alibi", "slopes": "harmonic"})
    assert given.startswith("python -m pe_lab.run -m +study=pe_bench_1_copy pe=alibi seed=3 optimizer.lr=0.003 ")
    other = command(f"{STUDY}_copy", cell, {"name": "alibi", "slopes": "geometric"})
    assert " pe.slopes=harmonic seed=3 " in other
    cell = fabricated.cell("copy", "nape", 0, 0.5, shares=None, deep=True)
    given = command(f"{STUDY}_copy", cell, {"name": "nape", "shares": 0.5, "deep": False})
    assert " pe=nape pe.shares=null pe.deep=true seed=0 " in given


def test_words_of_a_command_are_quoted_and_rates_are_whole() -> None:
    cell = fabricated.cell("copy", "sum", 0, 0.5, parts=["alibi", "none"], layers=[1, 3])
    cell.identity["optimizer"]["lr"] = 0.00123456789
    given = command(f"{STUDY}_copy", cell, {"name": "sum", "parts": ["rope", "alibi"], "layers": None})
    assert "pe.layers=[1, 3]" in shlex.split(given)
    assert "optimizer.lr=0.00123456789" in shlex.split(given)


def test_a_row_has_the_settings_and_the_command_of_its_cell(results: Path) -> None:
    found = tables(Results.read(results).tasks)
    assert tuple(found) == COLUMNS
    assert found["task"].unique().tolist() == ["place", "copy", "recall"]
    assert found.groupby("task", sort=False)["epochs"].unique().str[0].to_dict() == {"place": 2, "copy": 2, "recall": 4}
    assert (found["seed"].dtype, found["epochs"].dtype, set(found["torch"])) == (int, int, {"2.13.0"})
    for line in found.itertuples():
        begins = f"python -m pe_lab.run -m +study=pe_bench_1_{line.task} pe={line.pe} seed={line.seed} "
        assert line.command.startswith(begins)
    assert tuple(tables([])) == COLUMNS


def test_environment_is_that_in_which_a_cell_was_trained() -> None:
    environment = {name: f"the {name}" for name in ENVIRONMENT.values()} | {"threads": 3}
    task = next(one for one in tasks() if one.name == "copy")
    cells = [replace(fabricated.cell("copy", "rope", seed, 0.5), environment=environment) for seed in (0, 1)]
    found = tables([TaskResults.of(task, Settings.of(task), cells)])
    for column, name in ENVIRONMENT.items():
        assert set(found[column]) == {environment[name]}


def test_anchors_are_different_and_have_no_spaces() -> None:
    names = [
        anchor(pe, length, seed)
        for pe in ("rope", "rope theta=100", "rope theta=10")
        for length in (1, 2, 0.5)
        for seed in (None, 0, 1)
    ]
    assert len(set(names)) == len(names)
    assert all(" " not in name and "=" not in name for name in names)
    assert anchor("rope", 2.0, 3) == "rope-x2-s3"
