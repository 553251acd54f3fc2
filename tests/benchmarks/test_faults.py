"""Sweeps with injected faults lose no cell and change none. All processes are real."""

import random
import shutil
from dataclasses import replace

import pytest

from faults import injection, sweeps
from faults.injection import FAULTS, inject_fault
from faults.sweeps import SWEEP, Sweep, many_cells
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import CHECKPOINT_FILES, WEIGHTS_FILE

pytestmark = pytest.mark.slow

# each is injected less often here than by `python -m benchmarks faults`
TIMES = {
    "SIGKILL at a random point": 5,
    "SIGTERM at a random point": 5,
    "SIGKILL for one of two workers": 1,
    "out of memory": 1,
    "a file is cut or a bit flipped": 6,
    "W&B's service is killed": 1,
    "W&B refuses": 1,
}


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost_and_nothing_differs(name, sound, tmp_path):
    outcome = inject_fault(FAULTS[name], sound, tmp_path, TIMES.get(name, 2), seed=1)
    assert outcome.injected >= TIMES.get(name, 2)
    assert (outcome.lost, outcome.differing) == (0, 0)


def test_what_is_lost_or_differs_is_counted(sound, tmp_path):
    sweep = Sweep(tmp_path, sound, random.Random(0))
    shutil.copytree(sound, sweep.ledger)
    runs = list(Ledger(sweep.ledger).runs())
    shutil.rmtree(runs[0].checkpoint(4))
    others = (runs[1].checkpoint(16) / "weights.safetensors").read_bytes()
    for path, content in (("weights.safetensors", others), ("metrics.csv", b"split,metric,value\ntest,loss,0\n")):
        run = runs.pop()
        before = tmp_path / run.name
        shutil.move(run.checkpoint(1), before)
        with run.recording(1) as folder:
            for file in (*CHECKPOINT_FILES, WEIGHTS_FILE):
                shutil.copy(before / file, folder)
            (folder / path).write_bytes(content)
    sweep.compare()
    assert (sweep.lost, sweep.differing) == (1, 2)


def test_a_sweep_that_does_not_finish_is_an_error(sound, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "MAX_RUNS", 2)
    sweep = Sweep(tmp_path, sound, random.Random(0), overrides=[*SWEEP, "optimizer.lr=1e30"])
    with pytest.raises(RuntimeError, match="did not finish in 2 runs"):
        sweep.finish()


def test_many_cells_trained_by_four_workers_with_one_killed_every_second_are_each_trained_once(tmp_path):
    counts = many_cells(tmp_path, seeds=8, pause=1.0, rng=random.Random(0))
    assert (counts.cells, counts.repeated) == (48, 0)
    assert counts.kills >= 2
    assert all(run.checkpoints() == [1, 3] for run in Ledger(tmp_path / "ledger").runs())


def test_a_fault_that_loses_a_cell_is_reported(sound, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(injection, "undisturbed", lambda folder: sound)
    outcome = injection.Outcome(injected=2, sweeps=1, lost=1, differing=0, seconds=0.0)
    monkeypatch.setattr(injection, "inject_fault", lambda *_: outcome)
    table = tmp_path / "faults.md"
    assert injection.print_faults(["Ctrl"], 1.0, table) is False
    assert "| Ctrl-C twice | 2 | 1 | 1 | 0 |" in table.read_text()
    monkeypatch.setattr(injection, "inject_fault", lambda *_: replace(outcome, lost=0))
    assert injection.print_faults(["Ctrl"], 1.0, None) is True
    assert "cells lost: 0" in capsys.readouterr().out
