"""The benchmark of kernels compares equal computations, and its tables list all measurements."""

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from benchmarks import ROOT, kernels
from benchmarks.__main__ import main
from benchmarks.implementations import implementations
from benchmarks.kernels import COLUMNS, compare_kernels
from benchmarks.presets import presets
from benchmarks.subject import AttentionSizes, make_subject

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")

CONFIGS = ROOT / "conf" / "pe"
PRESETS = presets(CONFIGS)
SMALL = AttentionSizes(torch.device("cpu"), torch.float32, tokens=64, num_heads=2, head_dim=16, lengths=(32,))
KINDS = ["none", "rope", "lrope", "xpos", "alibi", "t5", "kerple_log", "exposb", "exposb_literal", "forgetting", "rse"]
KINDS += ["window", "hard_alibi"]


@pytest.mark.parametrize("name", KINDS)
def test_all_implementations_compute_the_same(name: str) -> None:
    """Compare Triton in the interpreter, and FlexAttention as plain PyTorch, with the reference."""
    subject = make_subject(name, PRESETS[name], 32, SMALL)
    bare = replace(subject, q=subject.q.detach(), k=subject.k.detach(), v=subject.v.detach())
    with torch.no_grad():
        out = {which: call() for which, call in implementations(bare, SMALL).items()}
    assert set(out) == {"triton", "reference"} | ({"flex"} if name != "rse" else set())
    for found in out.values():
        assert_close(found, out["reference"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_tables_have_a_row_per_pass_and_list_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "ROUNDS", 1)
    rows = compare_kernels(SMALL, tmp_path, CONFIGS, ["none", "t5", "learnable", "deberta"])
    assert len(rows) == 2 * 3 * 2  # encodings, implementations, passes
    with (tmp_path / "kernels-cpu.csv").open(encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [row["implementation"] for row in written] == [row["implementation"] for row in rows]
    assert tuple(written[0]) == COLUMNS
    timed = [row for row in rows if row["ms"] != ""]
    assert {(row["implementation"], row["pass"]) for row in timed} >= {("triton", "both"), ("reference", "both")}
    assert all(row["note"] for row in rows if row["ms"] == "")
    page = (tmp_path / "kernels-cpu.md").read_text()
    assert "- learnable: adds nothing to attention" in page
    assert "- deberta: attention=triton cannot compute this" in page
    assert "| t5 | distance_bias+clip (trained) | 32 |" in page


def test_measurements_not_reached_in_time_are_named(tmp_path: Path) -> None:
    assert compare_kernels(replace(SMALL, seconds=0), tmp_path, CONFIGS, ["none"]) == []
    assert "- none at 32: not reached in time" in (tmp_path / "kernels-cpu.md").read_text()


# -- the time of a call, on a made-up GPU ------------------------------------------------------------------------------


class Clock:
    """A GPU that sleeps for so many cycles, and events that it reaches in order; the host's launches take some too."""

    def __init__(self, launching: int, waits: bool = False) -> None:
        self.slept: list[int] = []
        self.launching, self.waits = launching, waits

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None: ...

            def synchronize(self) -> None: ...

            def query(self) -> bool:
                return clock.waits or clock.slept[-1] < clock.launching

            def elapsed_time(self, end: object) -> float:
                return 5.0 if clock.slept[-1] >= clock.launching else 1000.0

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.slept.append)


@pytest.mark.parametrize("launching", [1, 2**22, 2**22 + 1, 2**29])
def test_the_gpu_sleeps_until_all_launches_are_queued(launching: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(launching)
    clock.install(monkeypatch)
    assert kernels.device_seconds(lambda: None) == 0.005
    assert clock.slept[-1] >= launching
    assert all(cycles < launching for cycles in clock.slept[:-1])


def test_a_call_that_waits_for_the_gpu_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1, waits=True)
    clock.install(monkeypatch)
    assert kernels.device_seconds(lambda: None) == 0.005
    assert len(clock.slept) < 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["kernels"], "error: kernels needs a CUDA device, got none"),
        (["tune"], "error: tune needs a CUDA device, got none"),
        (
            ["resources", "--architecture", "sm_70"],
            "error: --architecture='sm_70': did you mean sm_90? --architecture must be one of sm_80, sm_90, sm_100",
        ),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_impossible_requests_are_refused_in_one_line(words: list[str], says: str, program: Callable) -> None:
    status, _, err = program(main, *words)
    assert (status, err.strip()) == (1, says)


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hydra", "omegaconf", "wandb", "lightning", "pandas"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import pe_lab.attention.triton.operators, benchmarks.__main__, benchmarks.kernels, benchmarks.resources
import benchmarks.gpu, benchmarks.static, benchmarks.tune
"""


def test_kernels_and_their_benches_need_neither_hydra_nor_wandb() -> None:
    subprocess.run([sys.executable, "-c", BLOCK], check=True, cwd=ROOT)
