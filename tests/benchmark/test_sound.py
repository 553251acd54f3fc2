"""No row has a value that cannot be: not ours, not one that is packed, not one of other people."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fabricated
from pe_lab.benchmark.export import read
from pe_lab.benchmark.sound import complaint, complaint_of
from pe_lab.benchmark.task_results import Settings, TaskResults
from pe_lab.benchmark.tasks import tasks
from pe_lab.results import shipped
from pe_lab.results.shipped import Shipped
from scored import rows

Change = Callable[[Shipped], Shipped]
CELL = fabricated.cell("copy", "rope", 0, 0.5)


def identity(**more: Any) -> Change:
    return lambda cell: replace(cell, identity=cell.identity | more)


def summary(**more: Any) -> Change:
    return lambda cell: replace(cell, summary=cell.summary | more)


def with_test(**more: Any) -> Change:
    return lambda cell: summary(test=cell.summary["test"] | more)(cell)


def recorded(**more: Any) -> Change:
    return lambda cell: replace(cell, records=[cell.records[0] | more])


IMPOSSIBLE: list[tuple[Change, str]] = [
    (identity(seed="x"), "seed"),
    (identity(seed=-1), "seed"),
    (identity(seed=True), "seed"),
    (identity(seed=1.5), "seed"),
    (identity(seed=10**400), "seed"),
    (identity(pe={"name": ["rope"]}), "name"),
    (identity(pe={"name": "x" * 10**4}), "name"),
    (identity(pe={"name": "a\nb"}), "name"),
    (identity(data="copy"), "data"),
    (identity(model={"depth": 0}), "depth"),
    (identity(optimizer={"lr": -0.1}), "lr"),
    (lambda cell: replace(cell, epochs=0), "epochs"),
    (with_test(loss=-5), "loss"),
    (with_test(loss=10**400), "loss"),
    (with_test(loss_end=-1e-3), "loss_end"),
    (with_test(accuracy=1.5), "accuracy"),
    (with_test(exact_match=-0.1), "exact_match"),
    (summary(test={"accuracy": 0.5}), "loss"),
    (summary(floors={"bayes": {"loss": -1.0}}), "bayes/loss"),
    (summary(seconds=-1), "seconds"),
    (summary(parameters=1.5), "parameters"),
    (summary(positional_parameters=None), "positional_parameters"),
    (summary(tokens_per_sequence=0), "tokens"),
    (lambda cell: replace(cell, environment={"torch": "\x1b[2J"}), "torch"),
    (lambda cell: replace(cell, environment={"threads": 0}), "threads"),
    (lambda cell: replace(cell, validation={"loss": -1.0}), "loss"),
    (recorded(rows=[{"tokens": 70, "metric": "loss", "value": -1}]), "loss"),
    (recorded(rows=[{"tokens": 70, "metric": "accuracy", "value": 0.5}]), "loss"),
    (recorded(rows=[{"metric": "loss", "value": 1.0}]), "tokens"),
    (recorded(request={"kind": "length", "length": 0}), "length"),
]
SHAPELESS: list[Change] = [
    with_test(loss="0.5"),
    with_test(loss=True),
    with_test(loss=None),
    summary(test=[0.5]),
    summary(floors=[1]),
    summary(floors={"bayes": 1}),
    lambda cell: replace(cell, identity=[1]),  # type: ignore[arg-type]
    lambda cell: replace(cell, weights=None),  # type: ignore[arg-type]
    lambda cell: replace(cell, validation={"loss": "x"}),  # type: ignore[dict-item]
    lambda cell: replace(cell, records={}),  # type: ignore[arg-type]
    lambda cell: replace(cell, records=[1]),  # type: ignore[list-item]
    recorded(rows=[]),
    recorded(rows=[{"metric": "loss"}]),
    recorded(request=None),
]


def test_all_cells_of_the_package_are_sound() -> None:
    cells = [cell for study in shipped.studies() for cell in shipped.read(study)]
    assert {complaint_of(cell) for cell in cells} == {None}
    assert len(cells) > 1000


@pytest.mark.parametrize(("change", "column"), IMPOSSIBLE)
def test_a_value_that_cannot_be_is_named_with_its_column(change: Change, column: str) -> None:
    assert complaint_of(CELL) is None
    found = complaint_of(change(CELL))
    assert found is not None
    assert f" in {column}, got " in found
    assert len(found) < 500
    assert found.isprintable()


@pytest.mark.parametrize("change", SHAPELESS)
def test_a_cell_of_another_form_is_refused(change: Change) -> None:
    assert complaint_of(change(CELL)) is not None


def test_results_of_a_task_are_checked_before_anything_is_computed() -> None:
    task = next(task for task in tasks() if task.name == "copy")
    settings = Settings(2, "rope")
    assert len(TaskResults.of(task, settings, [CELL]).lines) == 2
    for change in (identity(seed="x"), with_test(loss=-5)):
        with pytest.raises(ValueError, match=rf"results of {task.study} must have .*, got .* in the run \w{{16}}"):
            TaskResults.of(task, settings, [change(CELL)])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("loss", -5),
        ("loss", 10**400),
        ("level", -1),
        ("accuracy", 1.01),
        ("exact_match", "half"),
        ("seed", "x"),
        ("seed", 10**400),
        ("tokens", 0),
        ("tokens", 35.5),
        ("epochs", -1),
        ("seconds", -1),
        ("lr", 0),
        ("pe", ""),
        ("pe", "x" * 10**4),
        ("hardware", "a\tb"),
        ("command", "\r=1"),
        ("run", 3),
    ],
)
def test_rows_of_others_are_checked_alike(column: str, value: Any, tmp_path: Path) -> None:
    lines = json.loads(rows("new", [0.1, 0.2]).to_json(orient="records"))
    assert [complaint(line) for line in lines] == [None, None]
    lines[1][column] = value
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"rows": lines}))
    with pytest.raises(ValueError, match=rf"theirs.json must have .* in {column}, got .* in row 2$"):
        read(path)
