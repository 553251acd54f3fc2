"""Claims on the rows of the benchmark: values by hand from the rows, verdicts without training, wrong names refused."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from helpers import tuned
from pe_lab.benchmark import task_rows
from pe_lab.benchmark.tasks import task_named
from pe_lab.replication import EntryVerdict, judge_entry, load_entries
from pe_lab.replication import __main__ as program
from pe_lab.replication.benchmark_rows import read_benchmark_values, shipped_values
from pe_lab.statistics import Agreement

LOSSES = {"rope": 2.0, "alibi": 1.5, "none": 3.0}
CLAIM: dict[str, Any] = {
    "title": "A paper",
    "paper": "https://arxiv.org/abs/0000.00000",
    "source": "abstract",
    "seen": True,
    "unit": "nats",
    "tolerance": 0.02,
    "seeds": 5,
    "tasks": ["causal_text", "copy"],
    "cells": {
        "one": {
            "says": "It is better.",
            "tests": [
                {
                    "says": "`{pe}` − `alibi` at {length} ×",
                    "each": {"pe": ["rope", "none"], "length": [1, 2, 4]},
                    "value": {"metric": "loss", "task": "causal_text"},
                    "minus": {"pe": "alibi"},
                    "above": 0,
                },
                {
                    "says": "`rope` at longer lengths − at 1",
                    "value": {"metric": "loss", "task": "causal_text", "pe": "rope", "length": "> 1"},
                    "minus": {"length": 1},
                    "below": 0.02,
                },
                {
                    "says": "accuracy, `rope` − `alibi`",
                    "value": {"metric": "accuracy", "task": "copy", "pe": "rope", "length": 2},
                    "minus": {"pe": "alibi"},
                    "above": 0,
                },
            ],
        }
    },
}


def claim_of(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
    table = yaml.safe_load(yaml.safe_dump(CLAIM))
    change(table)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.yaml").write_text(yaml.safe_dump(table))
    return load_entries(folder)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Rows whose loss is that of the encoding times the length, + seed / 100; fresh seeds are far off."""
    for name in ("causal_text", "copy"):
        task, rows = task_named(name), []
        for pe, loss in LOSSES.items():
            for seed in (0, 1, 2, 3, 4, 100):
                y = loss + (50.0 if seed == 100 else seed / 100) if name == "causal_text" else 7.0
                accuracy = {f"accuracy_x{length}": 0.9 if pe == "rope" else 0.6 for length in (1, 2, 4)}
                rows.append(tuned.row(task, pe, seed, y, **accuracy))
        task_rows.write_rows(task, task_rows.rows_frame(rows), tmp_path / "results")
    return tmp_path / "results"


def test_values_are_paired_by_seed_at_each_length_without_fresh_seeds(tmp_path: Path, results: Path) -> None:
    (entry,) = claim_of(tmp_path / "conf").values()
    assert entry.studies["pe_bench_2_copy"] == ("+study=pe_bench_2_copy", "pe=rope,alibi,none")
    values = read_benchmark_values(entry, 200, results)
    assert values.seeds == [0, 1, 2, 3, 4]
    for length in (1, 2, 4):
        assert values.by_label[f"`rope` − `alibi` at {length} ×"] == pytest.approx([0.5 * length] * 5)
        assert values.by_label[f"`none` − `alibi` at {length} ×"] == pytest.approx([1.5 * length] * 5)
    losses = [2.0 + seed / 100 for seed in range(5)]
    assert values.by_label["`rope` at longer lengths − at 1"] == pytest.approx([3 * x - x for x in losses])
    assert values.by_label["accuracy, `rope` − `alibi`"] == pytest.approx([0.3] * 5)
    assert read_benchmark_values(entry, 3, results).seeds == [0, 1, 2]
    found = judge_entry(entry, values.by_label)
    assert found.verdict is EntryVerdict.MIXED
    contradicted = [label for label, part in found.compared.items() if part.agreement == Agreement.NOT_REPRODUCED]
    assert contradicted == ["`rope` at longer lengths − at 1"]
    assert shipped_values({"mine/one": entry}, None, results)["mine/one"] == read_benchmark_values(entry, 5, results)


def test_an_encoding_without_rows_is_named_with_the_command_that_trains_it(tmp_path: Path, results: Path) -> None:
    (entry,) = claim_of(
        tmp_path / "conf", lambda table: table["cells"]["one"]["tests"][2]["value"].update(pe="yarn")
    ).values()
    values = read_benchmark_values(entry, 5, results)
    assert not values.by_label
    text = str(judge_entry(entry, values.by_label, values.why))
    for word in ("yarn", "copy", "pe-lab run -m +study=pe_bench_2_copy", "seed=0,1,2,3,4"):
        assert word in text
    assert "\n" not in text
    assert "pe-bench 2" in read_benchmark_values(entry, 5, tmp_path / "nothing").why


def first(table: dict[str, Any]) -> dict[str, Any]:
    test: dict[str, Any] = table["cells"]["one"]["tests"][1]
    return test


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda table: table.update(tasks=["causal_txt"]), "tasks='causal_txt': did you mean causal_text"),
        (lambda table: table.update(tasks="copy"), "must have tasks as a list"),
        (lambda table: first(table)["value"].update(pe="ropee"), "pe='ropee': did you mean rope"),
        (lambda table: first(table)["minus"].update(pe="alibbi"), "pe='alibbi': did you mean alibi"),
        (lambda table: first(table)["value"].update(task="recall"), "task must be one of causal_text, copy"),
        (lambda table: first(table)["value"].update(metric="los"), "metric='los': did you mean loss"),
        (lambda table: first(table)["value"].update(depth=2), "columns must be one of metric, task, pe, length"),
        (lambda table: first(table)["value"].pop("length"), "must have a length"),
        (lambda table: table["cells"]["one"].update(studies={"a": ["pe=rope"]}), "either tasks or studies"),
        (lambda table: table["cells"]["one"].update(universe={"epochs": [1, 2]}), "either tasks or universe"),
    ],
)
def test_what_the_benchmark_does_not_have_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    with pytest.raises(ValueError, match=r"^replication/mine\.yaml: one") as refused:
        claim_of(tmp_path, change)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_claims_are_judged_from_shipped_rows_and_nothing_is_trained_or_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "train_entry", lambda *_: pytest.fail("the rows are there"))

    def printed(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["pe-lab replicate", *words])
        with pytest.raises(SystemExit) as end:
            program.main()
        assert end.value.code == 0
        return capsys.readouterr().out

    text = printed("papers/dynamic_ntk", "--out", "out")
    assert "papers/dynamic_ntk: reproduced" in text
    assert text.count("5 seeds, shipped") == 2
    assert "pe-lab run -m +study=pe_bench_2_causal_text pe=rope,rope_dynamic_ntk seed=0,1,2,3,4" in text
    with (tmp_path / "out/values.csv").open(encoding="utf-8") as file:
        assert not list(csv.DictReader(file))  # the rows are where they were
    assert "papers/dynamic_ntk: reproduced" in printed("2309.00071", "--list")
    assert "papers/dynamic_ntk: not run" in printed("papers/dynamic_ntk", "--list", "attention=reference")


def test_claims_of_papers_are_those_of_the_rows_that_come_with_the_package() -> None:
    """Independent of the reader of values: columns of the CSV file, by pandas."""
    entries = {name: entry for name, entry in load_entries().items() if entry.tasks}
    values = shipped_values(entries)
    rows = pd.read_csv(Path(task_rows.__file__).with_name("results") / "pe_bench_2_causal_text.csv")
    wide = rows[rows["seed"] < 5].set_index(["pe", "seed"])
    expected = {
        ("alibi_longer", "`t5` − `alibi` at 4 ×"): wide.loc["t5", "loss_x4"] - wide.loc["alibi", "loss_x4"],
        ("stick_improves", "`stick_breaking` at 2 × − at the training length"): wide.loc["stick_breaking", "loss_x2"]
        - wide.loc["stick_breaking", "loss_x1"],
    }
    for (name, label), numbers in expected.items():
        assert values[f"papers/{name}"].by_label[label] == pytest.approx(numbers.tolist())
    for name, entry in entries.items():
        assert entry.paper.startswith("https://arxiv.org/abs/"), name
        assert len(entry.says.split()) <= 14, name
        assert entry.seeds == 5
        assert judge_entry(entry, values[name].by_label).compared, values[name].why
    assert {test.bound for entry in entries.values() for test in entry.values.values()} == {0.0, 0.02, -0.02}
