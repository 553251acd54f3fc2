"""The benchmarks run as documented, and refuse what they cannot time."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

TINY = ["model.depth=1", "model.width=16", "model.num_heads=2"]
BENCHES = "study, data, kernels, resources, static, tune, ledger, faults, export, speed, gpu"


def bench(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pe_lab.bench", *words], capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def test_loading_is_timed_beside_a_step_for_every_dataset_that_is_named():
    status, out, err = bench("data", "data=copy,pattern", *TINY)
    assert status == 0, err
    header, *lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["copy", "pattern"]
    for line in lines:
        size, first, batch, step, share, peak = line.split()[1:]
        assert int(size) in (10_000, 5_000)
        assert 0 < float(batch) < float(step)
        assert 0 < float(share.rstrip("%")) < 50
        assert float(first) > 0 < float(peak)
    assert len(header.split()) > len(lines[0].split())


def test_the_lab_and_the_plain_loop_end_with_the_same_losses():
    status, out, err = bench("study", "pe=rope", "epochs=1,2", *TINY, "trainer.batch_size=512")
    assert status == 0, err
    assert "2 cells" in out
    assert "median ratio" in out
    difference = float(out.partition("largest difference of a test loss")[2].split()[0])
    assert difference < 1e-3


def test_another_task_is_compared_alike():
    few = ["data.train=64", "data.validation=16", "data.test=16", "trainer.batch_size=32", "epochs=2"]
    status, out, err = bench("study", "data=pattern", "pe=none", *few, *TINY)
    assert status == 0, err
    assert float(out.partition("largest difference of a test loss")[2].split()[0]) < 1e-3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], f"error: BENCH must be one of {BENCHES}, got nothing"),
        (["study", "--repeat", "x"], "error: argument --repeat: invalid int value: 'x'"),
        (["data", "data=weather"], "error: data must be one of addition, "),
        (["data", "data=copy", "data.longest=0"], "error: data.longest must be"),
        (["study", "model.dropout=0.5", "trainer.clip=1"], "error: trainer.clip must be null in this benchmark, got 1"),
        (["study", "--repeat", "0"], "error: --repeat must be at least 1, got 0"),
    ],
)
def test_cells_that_cannot_be_timed_are_refused_in_one_line(words, expected):
    status, out, err = bench(*words)
    assert (status, out) == (1, "")
    assert err.startswith(expected)
    assert len(err.splitlines()) == 1
