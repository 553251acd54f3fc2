"""The lab against a plain loop; each benchmark has a help, and a wrong name is refused in one line."""

import subprocess
import sys

import pytest

from benchmarks import ROOT
from helpers.configs import TINY_MODEL

pytestmark = pytest.mark.slow


def bench(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_lab_and_the_plain_loop_end_with_the_same_losses():
    status, out, err = bench("study", "pe=rope", "epochs=1,2", *TINY_MODEL, "trainer.batch_size=512")
    assert status == 0, err
    assert "2 cells" in out
    assert "median ratio" in out
    difference = float(out.partition("largest difference of a test loss")[2].split()[0])
    assert difference < 1e-3


def test_another_task_is_compared_alike():
    few = ["data.train=64", "data.validation=16", "data.test=16", "trainer.batch_size=32", "epochs=2"]
    status, out, err = bench("study", "data=pattern", "pe=none", *few, *TINY_MODEL)
    assert status == 0, err
    assert float(out.partition("largest difference of a test loss")[2].split()[0]) < 1e-3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study", "--repeat", "x"], "error: argument --repeat: invalid int value: 'x'"),
        (["study", "data=weather"], "error: data must be one of addition, "),
        (["study", "data=copy", "data.longest=0"], "error: data.longest must be"),
        (["study", "model.dropout=0.5", "trainer.clip=1"], "error: trainer.clip must be null in this benchmark, got 1"),
        (["study", "--repeat", "0"], "error: --repeat must be at least 1, got 0"),
    ],
)
def test_cells_that_cannot_be_timed_are_refused_in_one_line(words, expected):
    status, out, err = bench(*words)
    assert (status, out) == (1, "")
    assert err.startswith(expected)
    assert len(err.splitlines()) == 1
