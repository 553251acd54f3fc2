"""The benchmark gpu runs its parts one after the other within its budget; here, other commands stand for them."""

import csv
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import ROOT, gpu
from benchmarks.__main__ import main
from benchmarks.gpu import PARTS, GpuPart, PartOutcome, run_parts

DEVICE = "NVIDIA H100 80GB HBM3"


def shell(name: str, script: str, share: float = 1, **options: object) -> GpuPart:
    return GpuPart(name, ("/bin/sh", "-c", script), share, **options)


def table(to: Path) -> dict[str, dict[str, str]]:
    with (to / "nvidia-h100-80gb-hbm3" / "gpu.csv").open(encoding="utf-8") as file:
        return {row["part"]: row for row in csv.DictReader(file)}


def test_every_part_has_a_row_and_keeps_what_it_printed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made = tmp_path / "blocks.json"
    parts = [
        shell("first", "echo one; echo two >&2"),
        shell("second", "exit 3"),
        shell("third", "true", needs="a-program-that-is-not-there"),
        shell("fourth", f"echo tuned > {made}", needs="sh", makes=made),
    ]
    assert run_parts(DEVICE, tmp_path, 1, parts) is False
    rows, folder = table(tmp_path), tmp_path / "nvidia-h100-80gb-hbm3"
    assert [row["outcome"] for row in rows.values()] == [
        "passed",
        "failed with status 3",
        "left out: there is no a-program-that-is-not-there",
        "passed",
    ]
    assert (folder / "first.txt").read_text().split() == ["one", "two"]
    assert (folder / "blocks.json").read_text() == "tuned\n"
    page = (folder / "gpu.md").read_text()
    assert page.startswith(f"# {DEVICE}\n")
    assert "| second | failed with status 3 |" in page
    assert "fourth" in capsys.readouterr().out.splitlines()[-1]


def test_what_is_left_out_is_no_failure(tmp_path: Path) -> None:
    assert run_parts(DEVICE, tmp_path, 1, [shell("a", "true", needs="nothing-of-this-name"), shell("b", "true")])


def alive(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
            found += [path.parent.name] if int(number) == group and state != "Z" else []
    return found


def test_a_part_that_takes_too_long_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next part still runs."""
    groups: list[int] = []
    popen = subprocess.Popen

    def noted(*given: object, **options: object) -> subprocess.Popen:
        groups.append((process := popen(*given, **options)).pid)
        return process

    monkeypatch.setattr(gpu.subprocess, "Popen", noted)
    parts = [shell("long", "sleep 600 & sleep 600", 0.02), shell("next", "true", 1)]
    assert run_parts(DEVICE, tmp_path, 1, parts) is False
    rows = table(tmp_path)
    assert (rows["long"]["outcome"], rows["next"]["outcome"]) == ("not done in time", "passed")
    for _ in range(600):  # a signal is delivered when the processes run again
        if not alive(groups[0]):
            break
        time.sleep(0.05)
    assert alive(groups[0]) == []


def test_shares_divide_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part takes half of its time."""
    clock, limits = [0.0], []

    def run(part: GpuPart, limit: float, folder: Path) -> PartOutcome:
        clock[0] += limit / 2
        limits.append(limit)
        return PartOutcome(part, "passed")

    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(gpu, "_run", run)
    assert run_parts(DEVICE, tmp_path, 10, [shell("a", "", 3), shell("b", "", 1), shell("c", "", 2)])
    assert limits == [300, 150, 375]


@pytest.mark.long
def test_commands_of_parts_are_programs_that_take_these_words(tmp_path: Path) -> None:
    """Without a GPU they say so in one line."""
    words = {part.name: part.arguments(100, tmp_path) for part in PARTS}
    assert [part.name for part in PARTS] == list(dict.fromkeys(words))
    assert words["tune"][-2:] == ["--seconds", "70"]
    assert words["kernels"][-2:] == ["--to", str(tmp_path)]
    assert all(word[0] == sys.executable for name, word in words.items() if name != "sanitizer")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for name in ("selftest", "tune"):
        done = subprocess.run(words[name], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 1
        assert "needs a CUDA device, got none" in done.stderr


def test_the_sweep_of_the_study_is_made_of_cells_that_there_are() -> None:
    from pe_lab import config

    assert len(config.expand_overrides([*gpu.STUDY], multirun=True)) == 12


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(program: Callable[..., tuple[int, list[str], str]]) -> None:
    assert program(main, "gpu") == (1, [], "error: gpu needs a CUDA device, got none\n")


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_a_budget_is_a_number_of_minutes(minutes: str, program: Callable[..., tuple[int, list[str], str]]) -> None:
    status, lines, errors = program(main, "gpu", "--minutes", minutes)
    assert (status, lines) == (1, [])
    assert errors.startswith("error: --minutes must be more than 0, got ")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("passed", [True, False])
def test_the_exit_status_says_whether_a_part_failed(
    passed: bool, program: Callable[..., tuple[int, list[str], str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: DEVICE)
    monkeypatch.setattr(gpu, "run_parts", lambda *given: asked.append(given) or passed)
    status, _, _ = program(main, "gpu", "--minutes", "3", "--to", tmp_path)
    assert (status, asked) == (0 if passed else 1, [(DEVICE, tmp_path, 3.0)])
