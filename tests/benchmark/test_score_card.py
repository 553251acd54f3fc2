"""The program that writes score cards, and what it refuses before anything is trained."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

import fabricated
from paged import text_of
from pe_lab import config
from pe_lab.benchmark import score_card as program_of_cards
from pe_lab.benchmark.results import Results
from pe_lab.benchmark.rows import tables
from pe_lab.benchmark.score_card import Asked, properties, score_card, trained
from pe_lab.benchmark.tasks import Task, tasks
from pe_lab.benchmark.undefined import unfit
from pe_lab.experiment import sweep
from pe_lab.experiment.shipped import gathered
from pe_lab.ledger.ledger import Ledger
from pe_lab.results import shipped
from pe_lab.results.shipped import Shipped
from scored import rows

NAMES = [task.name for task in tasks()]


def asked(*words: str, names: str | None = None, seeds: int = 3, workers: int | None = None) -> Asked:
    return Asked.of(words, names, seeds, "ledger", None, workers, ["theirs.csv"])


def test_what_is_asked_for_becomes_a_command_for_each_task() -> None:
    found = asked("pe=rope", "pe.theta=500", names="copy,bag", seeds=5, workers=1)
    assert [task.name for task in found.tasks] == ["copy", "bag"]
    assert (found.out, found.beside) == (Path("score_card/rope"), (Path("theirs.csv"),))
    command = found.command(found.tasks[0])
    assert command == [
        *("-m", "+study=pe_bench_1_copy", "pe=rope", "pe.theta=500", "seed=range(5)"),
        *("decide.baseline=null", "decide.seeds=5..12", "ledger=ledger", "logger=none", "workers=1"),
    ]
    assert [task.name for task in asked("pe=rope", names="all").tasks] == NAMES


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["pe=rope,alibi"], {}, r"pe must be one encoding, as pe=rope, got pe=rope,alibi"),
        (["pe=glob(*)"], {}, r"pe must be one encoding"),
        (["pe.theta=3"], {}, r"pe must be one encoding, as pe=rope, got pe.theta=3"),
        (["pe=rope", "epochs=3"], {}, r"only pe and its options can be chosen, .*, got epochs=3"),
        (["pe=rope", "pe.theta=1,2"], {}, r"an option must have one value, got pe.theta=1,2"),
        (["pe=rope"], {"names": "copy,cpy"}, r"--tasks must be all, or among place, .*, got 'cpy'"),
        (["pe=rope"], {"seeds": 2}, r"--seeds must be at least 3, .*, got 2"),
        (["pe=rope"], {"workers": 0}, r"--workers must be at least 1, got 0"),
        (["pe=nope"], {}, r"pe='nope': did you mean .* pe must be one of abacus, "),
        (["pe=rope", "pe.theta=-1"], {}, r"theta"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(words: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(*words, **options)  # type: ignore[arg-type]


def test_tasks_are_those_that_are_shipped_unless_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "studies", lambda: ["pe_bench_1_copy", "pe_bench_1_sort"])
    assert [task.name for task in asked("pe=rope").tasks] == ["copy", "sort"]
    assert [task.name for task in asked("pe=rope", names="addition,copy").tasks] == ["addition", "copy"]
    assert len(asked("pe=rope", names="all").tasks) == len(tasks())


def test_an_encoding_that_does_not_fit_a_task_is_left_out_with_the_reason(tmp_path: Path) -> None:
    found = asked("pe=forgetting", names="place,copy")
    place, copy = found.tasks
    assert unfit(found.cell(place)).startswith("forgetting is defined for causal attention only, this is bidirectional")
    assert unfit(found.cell(copy)) == ""
    both = asked("pe=sum", "pe.parts=[rope,forgetting]", names="place")
    assert "forgetting is defined for causal" in unfit(both.cell(place))
    alone = Asked.of(["pe=forgetting"], "place", 3, str(tmp_path / "ledger"), str(tmp_path / "out"), None)
    with pytest.raises(ValueError, match=r"pe=forgetting must fit one of the tasks, got forgetting is defined for"):
        score_card(alone)
    assert list(tmp_path.iterdir()) == []


def test_properties_are_measured_with_the_options_given() -> None:
    found = properties("mine", ["pe=alibi"], ["alibi", "none", "alibi slopes=harmonic"])
    assert set(found) == {"mine", "alibi", "none"}
    assert found["mine"] == found["alibi"] != found["none"]
    assert properties("mine", ["pe=alibi", "pe.slopes=harmonic"], [])["mine"] != found["mine"]


def test_a_card_has_what_was_trained_what_is_shipped_and_other_peoples_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Of an encoding with shipped cells on tasks that it fits, and one that it does not fit; nothing is trained."""
    names = ("rope", "drope", "none", "alibi", "fire")
    monkeypatch.setattr(shipped, "FOLDER", fabricated.write(tmp_path / "results", names))
    rows("new", [0.3, 0.2, 0.25]).to_csv(tmp_path / "theirs.csv", index=False)
    given: dict[str, Any] = {}

    def train(_: Asked, task: Task) -> list[Shipped]:
        return [fabricated.cell(task.name, "drope", seed, 0.9 - 0.7 * number[task.name] / 5) for seed in range(6)]

    def measured(pe: str, words: Sequence[str], others: Sequence[str]) -> dict[str, dict[str, float]]:
        given.update(pe=pe, words=words, others=set(others))
        return {}

    number = {"copy": 3, "recall": 4}  # the qualities of the shipped ones
    monkeypatch.setattr(program_of_cards, "trained", train)
    monkeypatch.setattr(program_of_cards, "properties", measured)
    monkeypatch.setattr(program_of_cards, "time", SimpleNamespace(perf_counter=iter([10.0, 100.0]).__next__))
    words, out = ["pe=drope", "pe.theta=500"], str(tmp_path / "out")
    chosen = Asked.of(words, "place,copy,recall", 3, "ledger", out, None, [str(tmp_path / "theirs.csv")])
    assert score_card(chosen) == tmp_path / "out" / "card.html"
    assert capsys.readouterr().err == "task 1 of 2: copy\ntask 2 of 2: recall\n"
    lines = pd.read_csv(tmp_path / "out" / "card.csv")
    assert list(lines)[:6] == ["task", "length", "pe", "other", "seeds", "difference"]
    assert set(lines["pe"]) == {"drope"}
    others = {task: set(part["other"]) for task, part in lines.groupby("task")}
    assert others == {"copy": {"rope", "none", "alibi", "fire", "new (theirs)"}, "recall": {"rope", "none", "alibi"}}
    assert given == {"pe": "drope", "words": tuple(words), "others": others["copy"]}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"card.html", "card.csv"}
    text = text_of((tmp_path / "out" / "card.html").read_text())
    assert "**Note.** place is left out: drope is defined for causal attention only" in text
    assert text.count("is left out") == 1
    assert "took 1.5 minutes" in text
    assert re.search(r"^\| copy \|[^|]+\| 1(\.0)? \| 6 \|", text, re.MULTILINE)
    assert re.search(r"^\| none \|[^|]*\| 4 \|", text, re.MULTILINE)  # two tasks at two lengths are compared


def test_without_shipped_results_there_is_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", fabricated.write(tmp_path, tasks=["place"]))
    with pytest.raises(ValueError, match="a score card needs shipped results of these tasks, got none"):
        score_card(asked("pe=rope", names="copy"))


def test_what_was_trained_is_read_from_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells of the task's study, also those that were there."""
    ran, loaded = [], []

    def load(ledger: Path, study: str) -> SimpleNamespace:
        loaded.append((ledger, study))
        return SimpleNamespace(cells=pd.DataFrame({"pe": "rope", "epochs": [2, 2], "run": ["a" * 16, "b" * 16]}))

    def run(command: list[str], **_: object) -> SimpleNamespace:
        ran.append(command[1:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(program_of_cards.subprocess, "run", run)
    monkeypatch.setattr(program_of_cards.frame, "load", load)
    monkeypatch.setattr(program_of_cards, "gathered", lambda run, epochs: (run.name, epochs))
    found = asked("pe=rope", names="copy")
    assert trained(found, found.tasks[0]) == [("a" * 16, 2), ("b" * 16, 2)]
    assert loaded == [(Path("ledger"), "pe_bench_1_copy")]
    assert ran == [["-m", "pe_lab.run", *found.command(found.tasks[0])]]


def test_a_training_that_ended_with_an_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_of_cards.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    found = asked("pe=rope", names="copy")
    with pytest.raises(ChildProcessError, match=r"copy was not trained, see above: python -m pe_lab.run -m \+study="):
        trained(found, found.tasks[0])


def program(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "pe_lab.benchmark", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_errors_are_one_line(tmp_path: Path) -> None:
    done = program("pe=rope", "--tasks=cpy", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: --tasks must be all, or among")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_card_of_a_shipped_encoding_needs_no_training(tmp_path: Path) -> None:
    """And all that `pe=alibi` asks for is there: its search, its seeds, its lengths."""
    done = program("pe=alibi", "--tasks=copy", "--workers=1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "score_card/alibi/card.html"
    folder = tmp_path / "score_card" / "alibi"
    lines = pd.read_csv(folder / "card.csv")
    assert set(lines["length"]) == {1, 2}
    assert set(lines["pe"]) == {"alibi"}
    assert {"none", "t5"} <= set(lines["other"])
    assert "What is alibi good for?" in (folder / "card.html").read_text()
    weights = list((tmp_path / "ledger").glob("*/*/*/weights.safetensors"))
    assert weights == []
    assert list((tmp_path / "ledger").glob("*/*/*/shipped.json"))


def test_shipped_results_are_whole() -> None:
    for study in shipped.studies():
        assert shipped.read(study)


@pytest.mark.exhaustive
def test_a_random_sample_of_shipped_cells_is_trained_again_to_the_same_bits(tmp_path: Path) -> None:
    """By the commands of their rows, on the processor and with the version of PyTorch that made them.

    `PE_LAB_RETRAIN=10` trains ten of them, `PE_LAB_RETRAIN_FROM=3` others.
    """
    count, draw = (int(os.environ.get(name, "2")) for name in ("PE_LAB_RETRAIN", "PE_LAB_RETRAIN_FROM"))
    known = Results.read()
    rows = tables(known.tasks)
    rows = rows[(rows["length"] == 1) & (rows["torch"] == torch.__version__)].drop_duplicates("run")
    chosen = rows.sample(count, random_state=draw)
    for line in chosen.itertuples():
        words = shlex.split(line.command)[4:]
        sweep.run(config.expand(config.of_jobs([*words, f"ledger={tmp_path}", "logger=none"]), multirun=True))
        again = gathered(Ledger(tmp_path).named(line.run), line.epochs)
        (found,) = (one for one in known.tasks if one.task.name == line.task)
        shipped_cell = found.cells[line.pe, line.seed]
        assert again.weights == shipped_cell.weights, line.command
        assert again.validation == shipped_cell.validation
        assert again.summary["test"] == shipped_cell.summary["test"]
        assert again.records == shipped_cell.records
