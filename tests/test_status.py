"""python -m pe_lab.status: how far commands and their cells are."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from faults.programs import Program, wait_for
from faults.sweeps import SWEEP
from pe_lab import status
from pe_lab.ledger.ledger import Ledger


def test_a_finished_sweep_takes_two_lines(ledger, program):
    code, lines, _ = program(status.main, ledger)
    assert code == 0
    assert len(lines) == 3  # these models are too small to learn anything
    assert lines[0].startswith("pe-lab run model.depth=1")
    assert "'epochs=16,4,1'" not in lines[0]
    assert "epochs=16,4,1" in lines[0]
    assert lines[0].endswith(", ended)")
    assert lines[1] == "  12 done of 12 cells; 100 % of the work"


def test_it_is_said_that_no_model_has_learned_until_one_has(ledger, program):
    run, *_ = Ledger(ledger).runs()
    before = program(status.main, ledger)[1]
    path = run.checkpoint(16) / "summary.json"
    summary = json.loads(path.read_text())
    summary["test"]["loss"] = summary["floors"]["position_blind"]["loss"] - 0.01
    path.write_text(json.dumps(summary))
    assert program(status.main, ledger)[1] == before[:2]
    assert len(before) == 3


def test_failed_and_missing_cells_are_listed_with_what_to_do(ledger, program):
    training_runs = list(Ledger(ledger).runs())
    shutil.rmtree(training_runs[0].checkpoint(16))
    shutil.rmtree(training_runs[1].checkpoint(16))
    training_runs[1].fail(16, "the training loss must be finite", 3)
    code, lines, _ = program(status.main, ledger)
    assert code == 1
    assert "10 done, 1 failed, 1 missing of 12 cells" in lines[1]
    assert [line.split()[0] for line in lines[3:]] == ["failed", "missing", "the"]
    assert lines[3].endswith("the training loss must be finite")
    assert "run again" in lines[-1]


def test_a_study_in_rounds_is_not_complete_before_its_last_round(ledger, program):
    (path,) = (ledger / "commands").glob("*.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"later": {"trainings": 6, "work": 64 * (1 + 1 / 3), "exact": False}}))
    code, lines, _ = program(status.main, ledger)
    assert code == 1
    assert lines[1].startswith("  12 done of 12 cells, at most 6 more later; ")
    assert not lines[1].endswith("100 % of the work")
    path.write_text(json.dumps(content | {"later": {"trainings": "6"}}))
    assert program(status.main, ledger)[1] == []


def test_only_ten_lines_of_a_kind_are_printed_without_all(ledger, program):
    for training_run in Ledger(ledger).runs():
        shutil.rmtree(training_run.folder / "checkpoints")
    _, lines, _ = program(status.main, ledger)
    assert len([line for line in lines if line.startswith("  missing")]) == 10 + 1
    assert "... and 2 more" in lines[-2]
    _, lines, _ = program(status.main, ledger, "--all")
    assert len([line for line in lines if line.startswith("  missing")]) == 12


def test_complete_commands_are_counted(ledger, program):
    (path,) = (ledger / "commands").iterdir()
    first = json.loads(path.read_text())
    cells = first["cells"][:3]
    (ledger / "commands" / "later.json").write_text(json.dumps(first | {"cells": cells, "study": "b", "since": 2e9}))
    code, lines, _ = program(status.main, ledger)
    assert (code, lines[0]) == (0, "1 earlier commands are complete (--all lists them)")
    assert "3 done of 3 cells" in lines[3]
    assert len([line for line in program(status.main, ledger, "--all")[1] if "of 12 cells" in line]) == 1
    assert "3 done of 3 cells" in program(status.main, ledger, "--study", "b")[1][1]
    code, _, err = program(status.main, ledger, "--study", "c")
    assert (code, err) == (1, f"error: --study must be one of b in {ledger}, got 'c'\n")


def test_a_ledger_without_commands_is_an_error_in_one_line(tmp_path, program):
    code, lines, err = program(status.main, tmp_path)
    assert (code, lines) == (1, [])
    assert err == f"error: LEDGER must be a folder in which cells were requested, got '{tmp_path}'\n"


@pytest.mark.parametrize(
    "change",
    [
        {"cells": [{"run": "../../etc", "epochs": 4, "name": "x", "depth": 1}]},
        {"cells": [{"run": "0" * 16, "epochs": "4", "name": "x", "depth": 1}]},
        {"cells": 3},
        {"since": None},
        {"since": 1e300},
        {"processes": 5},
        {"cells": [{"run": "0" * 16, "epochs": 4, "name": ["x"], "depth": 1}]},
        {"cells": [{"run": "0" * 16, "epochs": 4, "name": "x", "depth": 1, "measurements": [3]}]},
    ],
)
def test_a_damaged_command_is_skipped_in_one_line(ledger, program, change):
    (path,) = (ledger / "commands").iterdir()
    (ledger / "commands" / "other.json").write_text(json.dumps(json.loads(path.read_text()) | change))
    code, lines, err = program(status.main, ledger)
    assert (code, len(lines)) == (0, 3)
    assert err.startswith(f"skipped: {ledger / 'commands' / 'other.json'}")
    assert len(err.splitlines()) == 1


def test_damaged_entries_count_as_failed_and_hide_no_other_cell(ledger, program):
    first, second = list(Ledger(ledger).runs())[:2]
    (path,) = (ledger / "commands").iterdir()
    content = json.loads(path.read_text())
    for cell in content["cells"]:
        cell["measurements"] = [{"kind": "length"}] if (cell["run"], cell["epochs"]) == (first.name, 4) else []
    path.write_text(json.dumps(content))
    (first.checkpoint(4) / "checksums.json").write_text("{")
    shutil.rmtree(second.checkpoint(4))
    (second.folder / "failed").mkdir(exist_ok=True)
    (second.folder / "failed" / "4.json").write_text("[1]")
    code, lines, _ = program(status.main, ledger)
    assert code == 1
    assert "10 done, 2 failed of 12 cells" in lines[1]


def test_control_characters_are_not_printed(ledger, program):
    (path,) = (ledger / "commands").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"overrides": ["\x1b]0;mine\x07"]}))
    _, lines, _ = program(status.main, ledger)
    assert "\x1b" not in "".join(lines)


@pytest.mark.slow
def test_a_running_sweep_is_followed_to_its_end(tmp_path):
    ledger = tmp_path / "ledger"
    process = Program([*SWEEP, "epochs=60,4,1", f"ledger={ledger}", "logger=none"], tmp_path / "printed")
    wait_for(lambda: any((training_run.owner() or {}).get("epoch", 0) > 0 for training_run in Ledger(ledger).runs()))
    command = [sys.executable, "-m", "pe_lab.status", str(ledger)]
    now = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert now.returncode == 1
    assert ", running)" in now.stdout
    assert f"process {process.pid}, since " in now.stdout
    assert " left" in now.stdout
    followed = subprocess.run([*command, "--follow"], capture_output=True, text=True, timeout=200)
    assert process.wait()[0] == 0
    assert followed.returncode == 0
    assert followed.stdout.splitlines()[-1] == "  12 done of 12 cells; 100 % of the work"


@pytest.mark.long
def test_a_killed_sweep_is_listed_as_ended_and_its_cells_as_missing(tmp_path, program):
    ledger = tmp_path / "ledger"
    process = Program([*SWEEP, "epochs=60,4,1", f"ledger={ledger}", "logger=none"], tmp_path / "printed")
    wait_for(lambda: any((training_run.owner() or {}).get("epoch", 0) > 0 for training_run in Ledger(ledger).runs()))
    process.kill(signal.SIGKILL)
    process.wait()
    code, lines, _ = program(status.main, ledger)
    assert code == 1
    assert ", ended)" in lines[0]
    assert "running" not in lines[1]
    assert "missing of 12 cells" in lines[1]


def test_a_read_only_ledger_can_be_read(sound, tmp_path):
    from faults.injection import write_protected
    from faults.programs import drop_rights

    shutil.copytree(sound, tmp_path / "ledger")
    code = "import sys; from pe_lab import status; sys.argv[1:] = [{ledger!r}]; status.main()"
    with write_protected(tmp_path / "ledger"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(ledger=str(tmp_path / "ledger"))],
            preexec_fn=drop_rights,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "12 done of 12 cells" in done.stdout
