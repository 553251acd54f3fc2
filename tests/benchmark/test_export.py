"""Rows go out as CSV and JSON, and other people's come in, if they are rows of this benchmark."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pe_lab.benchmark.coverage import coverage, covered, decided, table
from pe_lab.benchmark.export import MEANING, read, schema, write
from pe_lab.benchmark.results import Results
from pe_lab.benchmark.rows import COLUMNS
from pe_lab.benchmark.tasks import tasks
from pe_lab.benchmark.undefined import defined
from scored import rows

ALL_PAIRS = sum(len(defined(task.name)) for task in tasks())


@pytest.fixture(scope="module")
def shipped(results: Path) -> pd.DataFrame:
    """Shipped rows of seven encodings on three tasks."""
    return table(folder=results)


def test_every_column_has_a_meaning_and_a_type() -> None:
    assert set(MEANING) == set(COLUMNS)
    assert set(schema()["properties"]["rows"]["items"]["properties"]) == set(COLUMNS)


def test_csv_and_json_have_the_same_rows_and_come_back(shipped: pd.DataFrame, tmp_path: Path) -> None:
    files = write(shipped, tmp_path)
    assert [path.name for path in files] == ["pe-bench-1.csv", "pe-bench-1.json", "pe-bench-1.schema.json"]
    first, second = read(files[0]), read(files[1])
    pd.testing.assert_frame_equal(first, second, check_dtype=False)
    assert len(first) == len(shipped) > 100
    assert first["loss"].tolist() == shipped["loss"].tolist()
    assert set(first["pe"]) == {f"{pe} (pe-bench-1)" for pe in shipped["pe"]}
    assert json.loads(files[2].read_text()) == schema()
    assert first["name"].isna().all()  # a page of the gallery is of an encoding that is ours
    for back in (first, second):
        assert {type(value) for value in back["commit"]} == {type(None)}
    lines = json.loads(files[1].read_text())["rows"]
    assert all(isinstance(line[column], int) for line in lines for column in ("seed", "tokens", "epochs"))


def test_versions_are_texts(tmp_path: Path) -> None:
    """2.10 is not 2.1, and a commit of digits has its zeros."""
    path = tmp_path / "theirs.csv"
    rows("new", [0.1, 0.2]).assign(torch="2.10", commit="0012345").to_csv(path, index=False)
    assert read(path)[["torch", "commit"]].to_numpy().tolist() == [["2.10", "0012345"]] * 2


def test_the_json_fits_the_schema(shipped: pd.DataFrame, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = write(shipped, tmp_path)[1].read_text()
    jsonschema.validate(json.loads(text), schema())
    for name, value in (
        *(("loss", None), ("loss", "low"), ("seed", 0.5), ("tokens", 35.5), ("pe", 1)),
        *(("benchmark", "pe-bench 2"), ("task", "copies"), ("speed", 1.0)),
    ):
        content = json.loads(text)
        content["rows"][0][name] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content, schema())
    del content["rows"][0]["speed"], content["rows"][0]["loss"]
    with pytest.raises(jsonschema.ValidationError, match="'loss' is a required property"):
        jsonschema.validate(content, schema())


def test_other_peoples_rows_stand_beside_ours(shipped: pd.DataFrame, results: Path, tmp_path: Path) -> None:
    path = tmp_path / "paper.csv"
    rows("new", [0.1, 0.2, 0.15]).to_csv(path, index=False)
    both = table([path], results)
    assert len(both) == len(shipped) + 3
    text = coverage(both, ["copy"])
    assert "new (paper)" in text
    assert "rope" in text
    assert both["hardware"].iloc[-1] == "the machine of new"


def changed(**columns: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table.assign(**columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="level"), "must have the columns of pe-bench-1.schema.json, got no level"),
        (changed(speed=1), "must have the columns of pe-bench-1.schema.json, got speed"),
        (changed(benchmark="pe-bench 2"), "must have one of pe-bench 1 in benchmark, got 'pe-bench 2' in row 1"),
        (changed(task="copies"), "must have one of place, .* in task, got 'copies' in row 1"),
        (changed(loss=["0.1", "low", "0.2"]), "must have a finite number of at least 0 in loss, got 'low' in row 2"),
        (
            changed(level=[1.0, float("inf"), 1.0], score=None),
            "must have a finite number of at least 0 in level, got inf in row 2",
        ),
        (
            changed(best=[0.0, float("-inf"), 0.0], score=None),
            "must have a finite number of at least 0 in best, got -inf in row 2",
        ),
        (changed(length=float("inf")), "must have a positive number in length, got inf in row 1"),
        (changed(loss=[0.1, None, 0.2], score=None), "must have a value in loss, got none in row 2"),
        (changed(seed=[0, 1, 1.5]), "must have an integer from 0 to 9007199254740992 in seed, got 1.5 in row 3"),
        (changed(seed=[0, 1, -1]), "must have an integer from 0 to 9007199254740992 in seed, got -1 in row 3"),
        (
            changed(seed=[0, 1, 1e30]),
            "must have an integer .* in seed, got 10+19884624838656 in row 3",
        ),
        (changed(seed=[0, 1, 1]), "must have each cell once: task, pe, seed and length, got 'new' in row 3"),
        (changed(length=0), "must have a positive number in length, got 0 in row 1"),
        (changed(score=0.99), "must have scores of their parts in score, got 0.99 in row 1"),
        (changed(score=[0.9, 0.79, 0.85]), "must have scores of their parts in score, got 0.79 in row 2"),
        (changed(score=[0.9, 0.8, 0.85001]), "must have scores of their parts in score, got 0.85001 in row 3"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    change: Callable[[pd.DataFrame], pd.DataFrame], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.csv"
    change(rows("new", [0.1, 0.2, 0.15])).to_csv(path, index=False)
    with pytest.raises(ValueError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pe", ["new"], r"must have a text of .* in pe, got \['new'\] in row 2"),
        ("task", {"copy": 1}, r"must have one of place, .* in task, got \{'copy': 1\} in row 2"),
        ("hardware", 3, "must have a text of .* in hardware, got 3 in row 2"),
        ("seed", True, "must have an integer from .* in seed, got True in row 2"),
        ("loss", [0.1], r"must have a finite number of at least 0 in loss, got \[0.1\] in row 2"),
    ],
)
def test_values_of_another_type_in_json_are_refused(name: str, value: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    lines = json.loads(rows("new", [0.1, 0.2, 0.15]).to_json(orient="records"))
    lines[1][name] = value
    path.write_text(json.dumps({"rows": lines}))
    with pytest.raises(ValueError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "[1]"),
        ("a.json", "{"),
        ("a.json", '{"rows": [1]}'),
        ("a.csv", ""),
        ("b.csv", None),
        ("c.csv", "\x00"),
    ],
)
def test_files_that_are_no_tables_are_refused(name: str, content: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"must (be a table of pe-bench 1|have the columns)") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_scores_are_computed_where_they_are_not_given(tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    rows("new", [0.1, 0.2]).drop(columns="score").to_csv(path, index=False)
    assert read(path)["score"].tolist() == pytest.approx([0.9, 0.8])


def test_where_the_level_is_no_worse_than_the_best_there_is_no_score(tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    rows("new", [0.1, 0.2]).assign(level=0.0, score=None).to_csv(path, index=False)
    assert read(path)["score"].isna().all()


def test_coverage_is_of_the_training_length_and_the_best_mean_rank_comes_first() -> None:
    """Tasks in the order of the benchmark."""
    given = [
        *(rows("first", [0.1, 0.3, 0.2], [1.9] * 3, "copy"), rows("second", [0.3, 0.3], [0.0] * 2, "copy")),
        *(rows("second", [0.4] * 4, task="place"), rows("first", [0.45] * 3, task="place")),
        *(rows("third", [0.9] * 3, task="place"), rows("third", [0.25] * 3, task="copy")),
        rows("fourth", [0.1] * 3, task="sort"),  # hardly any other: it counts for nothing
        rows("fifth", [0.01] * 3, task="copy"),  # it lacks the other task
        *(rows(f"{number}", [0.95] * 3, task=task) for number in range(4) for task in ("copy", "place")),
    ]
    table = pd.concat(given, ignore_index=True)
    first, *lines, _, order, last = coverage(table, ["place", "copy", "recall"]).splitlines()
    assert first.split() == ["task", "place", "copy", "sort"]
    found = [line.split() for line in lines[1:]]
    assert found[:3] == [["first", "0.55", "0.80"], ["second", "0.60", "0.70"], ["third", "0.10", "0.75"]]
    assert sorted(found[-2:]) == [["fifth", "0.99"], ["fourth", "0.9"]]
    assert "place, copy" in order
    pairs = f"{ALL_PAIRS} pairs of encoding and task that are defined"
    assert last == f"pe-bench 1: 48 cells; 0 of {pairs} have 3 seeds or more"


def test_what_is_covered_are_encodings_of_the_package_with_three_seeds_where_they_are_defined() -> None:
    given = [
        *(
            rows("rope", [0.1] * 4, task="copy"),
            rows("alibi", [0.2] * 3, task="copy"),
            rows("t5", [0.3] * 2, task="copy"),
        ),
        *(rows("mine", [0.3] * 3, task="copy"), rows("rope", [0.3] * 2, task="place")),
        rows("forgetting", [0.3] * 3, task="place"),  # causal: not defined there
    ]
    table = pd.concat(given, ignore_index=True)
    found = covered(pd.concat([table, table.assign(length=2.0, seed=table["seed"] + 9)])).set_index("task")
    assert found.loc["copy"].tolist() == [len(defined("copy")), 2, 3]
    assert found.loc["place"].tolist() == [len(defined("place")), 0, 0]
    assert found[["encodings", "seeds"]].sum().tolist() == [2, 3]
    assert coverage(table, []).splitlines()[-2] == "In no order."
    assert coverage(table, []).splitlines()[-1].startswith(f"pe-bench 1: 17 cells; 2 of {ALL_PAIRS} pairs ")


def test_decided_pairs_are_listed_by_task_and_length(results: Path, tmp_path: Path) -> None:
    measured = Results.read(results).measured
    title, head, *lines = decided(measured).splitlines()
    assert title.startswith("Pairs of encodings with 3 seeds or more, by task and length: decided at a false discovery")
    counted = "{0} decided {0} differ {0} equivalent"
    assert " ".join(head.split()) == f"task length encodings pairs {counted.format('FDR')} {counted.format('FWER')}"
    pairs = {(found.task.name, length): found.pairs[length] for found in measured for length in found.pairs}
    assert [line.split() for line in lines] == [
        [
            *(task, f"{length:g}", "x", str(one.encodings), str(one.all)),
            *(f"{one.share(one.discovered):.0%}", str(one.discovered.differ), str(one.discovered.equivalent)),
            *(f"{one.share(one.certain):.0%}", str(one.certain.differ), str(one.certain.equivalent)),
        ]
        for (task, length), one in pairs.items()
    ]
    assert ("copy", 2.0) in pairs
    assert decided([]) == ""


def test_texts_of_others_become_no_formulas_and_come_back(tmp_path: Path) -> None:
    given = rows("=1+1", [0.1, 0.2]).assign(hardware=[" @SUM(A1)", "a;=2"], run="-1")
    path = write(given.reindex(columns=list(COLUMNS)), tmp_path)[0]
    for line in csv.reader(io.StringIO(path.read_bytes().decode(), newline="")):
        assert not any(field.strip().startswith(("=", "@")) for field in line)
        assert "-1" not in line
    back = read(path)
    assert back["pe"].tolist() == ["=1+1 (pe-bench-1)"] * 2
    assert back["hardware"].tolist() == given["hardware"].tolist()
    assert back["loss"].tolist() == given["loss"].tolist()
