"""Tuning with a fake clock: kernels run with each candidate, the fastest is kept, unreached entries stay."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from benchmarks import tune
from pe_lab.attention.triton import launch_parameters, operators, stick_operators
from pe_lab.attention.triton.launch_parameters import Blocks

# inputs are random, and the interpreter's exp may overflow in pairs that are masked
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Tune one head dimension on short sequences in the interpreter, with a table of its own."""
    for name, value in {"HEADS": 1, "LENGTH": 17, "TOKENS": 17, "HEAD_DIMS": (16,), "SIZES": (16, 32)}.items():
        monkeypatch.setattr(tune, name, value)
    monkeypatch.setattr(tune, "DTYPES", (torch.float32,))
    table = tmp_path / "launch_parameters.json"
    shutil.copy(launch_parameters.TABLE_FILE, table)
    monkeypatch.setattr(launch_parameters, "TABLE_FILE", table)
    monkeypatch.setattr(launch_parameters, "device_architecture", lambda device: "sm_90")
    launch_parameters.load_blocks.cache_clear()
    yield table
    launch_parameters.load_blocks.cache_clear()


@pytest.mark.slow
def test_the_fastest_candidate_is_kept_for_every_kernel(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake clock makes smaller blocks faster."""
    ran: list[Blocks] = []
    choose = operators.choose_blocks

    def time(self: tune._Step, step: object, forward_only: bool) -> float:
        return ran[-1].m + ran[-1].n + ran[-1].warps + ran[-1].stages

    exchanged = tune._replaced

    def noted(chosen: object, name: str, given: Blocks) -> object:
        ran.append(given)
        return exchanged(chosen, name, given)

    monkeypatch.setattr(tune, "_replaced", noted)
    monkeypatch.setattr(tune._Step, "_time", time)
    monkeypatch.setattr(tune, "_candidates", lambda kernel, dtype: [Blocks(16, 16, 4, 1), Blocks(32, 32, 4, 1)])
    before = json.loads(small.read_text(encoding="utf-8"))
    tune.tune(CPU, seconds=1000)
    after = json.loads(small.read_text(encoding="utf-8"))
    changed = {key for key in after["sm_90"] if after["sm_90"][key] == [16, 16, 4, 1]}
    assert {key.split()[0] for key in changed} == {*tune.KERNELS, *tune.STICK}
    assert all(" float32 16 " in key for key in changed)
    assert {name: part for name, part in after.items() if name != "sm_90"} == {
        name: part for name, part in before.items() if name != "sm_90"
    }
    assert operators.choose_blocks is stick_operators.choose_blocks is choose


def test_blocks_not_reached_in_time_stay(small: Path) -> None:
    before = json.loads(small.read_text(encoding="utf-8"))
    tune.tune(CPU, seconds=0)
    assert json.loads(small.read_text(encoding="utf-8")) == before


def test_a_kernel_without_a_running_candidate_keeps_its_blocks(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The other kernels are still measured."""
    milliseconds = {"stick_forward": None}
    monkeypatch.setattr(tune._Step, "milliseconds", lambda self, kernel, blocks: milliseconds.get(kernel, blocks.m))
    monkeypatch.setattr(tune, "_candidates", lambda kernel, dtype: [Blocks(16, 16, 4, 1)])
    before = json.loads(small.read_text(encoding="utf-8"))["sm_90"]
    tune.tune(CPU, seconds=1000)
    after = json.loads(small.read_text(encoding="utf-8"))["sm_90"]
    changed = {key.split()[0] for key in after if after[key] != before[key]}
    assert changed == {*tune.KERNELS, *tune.STICK} - {"stick_forward"}
    assert "stick_forward float32 16 plain           keeps its blocks: none runs" in capsys.readouterr().out


@pytest.mark.parametrize("kernel", [*tune.KERNELS, *tune.STICK])
def test_candidates_are_blocks_that_a_kernel_can_have(kernel: str) -> None:
    found = list(tune._candidates(kernel, torch.bfloat16))
    assert len(found) == len(set(found)) > 3
    for candidate in found:
        assert candidate.m * candidate.n >= 256 * candidate.warps
        assert candidate.m == candidate.n or not kernel.endswith("tables")


def test_a_step_is_timed_without_the_time_of_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "device_seconds", lambda run: (run(), 0.002)[1])
    monkeypatch.setattr(tune, "TOKENS", 16)
    monkeypatch.setattr(tune, "LENGTH", 16)
    step = tune._Step(CPU, torch.float32, 16, ())
    runs: list[tuple] = []
    monkeypatch.setattr(step, "_run", lambda *given: runs.append(given))
    assert step._time(step._softmax, True) == 2.0
    assert runs == [(step._softmax, True)]
