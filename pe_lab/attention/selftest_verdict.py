"""Whether the Triton kernels are trusted on a GPU: the stored verdict of their self-test.

The file is $XDG_CACHE_HOME/pe_lab/selftest/<GPU>-<digest>.json. It counts for the GPU, driver, torch, triton and
kernels that it was made with. The self-test runs in processes of its own, so that a fault of the device ends those
only.
"""

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from pe_lab.attention import triton

TIME_LIMIT = 600  # seconds that the self-test may take
MAX_PROCESSES = 8  # most processes that compile kernels side by side
SPEED_MARGIN = 1.05  # times that sdpa must be slower for the kernels to be taken: a tie must not change with the noise
DRIVER_FILE = Path("/sys/module/nvidia/version")
SELFTEST_COMMAND = "python -m pe_lab.attention selftest"


@dataclass(frozen=True)
class SelftestResult:
    """The outcome of a self-test.

    Attributes:
        failed: the reason why the kernels are not trusted; None: they are.
        milliseconds: the times of triton and sdpa in milliseconds, by the kind of terms, see selftest.timing_kind.
        rows: the rows of the table, each with the fields of selftest.SelftestRow.
    """

    failed: str | None
    milliseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def faster(self, kind: str) -> str | None:
        """Return the faster of sdpa and triton for a kind of terms; None: not measured."""
        times = self.milliseconds.get(kind)
        return None if times is None else "sdpa" if times["sdpa"] <= SPEED_MARGIN * times["triton"] else "triton"


def selftest_result(device: torch.device) -> SelftestResult:
    """Return the result of the self-test on a GPU, from this process, from its file, or from a self-test run now."""
    return _selftest_result(_index(device), tuple(sorted(verdict_identity(device).items())))


@cache  # by all that a verdict depends on; a line is printed once per process
def _selftest_result(index: int, key: tuple[tuple[str, str], ...]) -> SelftestResult:
    made_with = dict(key)
    device = torch.device("cuda", index)
    try:
        result = _cached_result(device, made_with)
    except (OSError, NotImplementedError) as error:  # a folder that cannot be written, or that has no locks
        _say(f"the verdict on Triton's kernels cannot be kept, and every process makes it anew: {error}")
        result = run_selftest(device)
    if result.failed:
        _say(f"Triton's kernels are not used on {made_with['device']}: {result.failed} (again: {SELFTEST_COMMAND})")
    return result


def _cached_result(device: torch.device, made_with: dict[str, str]) -> SelftestResult:
    """Return the verdict of the file; if there is none, of a self-test, which is written there."""
    path = verdict_path(made_with)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # the workers of a sweep wait for the first
        result = read_verdict(path, made_with)
        if result is None:
            result = run_selftest(device)
            write_verdict(path, made_with, result)
        return result


def _say(line: str) -> None:
    logging.getLogger("pe_lab.attention").warning(line)


def verdict_identity(device: torch.device) -> dict[str, str]:
    """Return what a verdict depends on: the GPU, its driver, the compiler and the kernels."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": str(properties.name),
        "uuid": str(getattr(properties, "uuid", "")),
        "driver": DRIVER_FILE.read_text(encoding="utf-8").strip() if DRIVER_FILE.is_file() else "",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": str(triton.triton_version()),
        "ptxas": os.environ.get("TRITON_PTXAS_PATH", "of triton"),
        "revision": str(triton.revision),
        "kernels": _digest(),
    }


@cache  # the files are part of the package
def _digest() -> str:
    """Return the digest of the kernels' source and of their launch parameters."""
    sha256 = hashlib.sha256()
    for path in sorted(Path(triton.__file__).parent.glob("*.*")):
        if path.suffix in (".py", ".json"):
            sha256.update(path.name.encode() + path.read_bytes())
    return sha256.hexdigest()[:16]


def verdict_path(made_with: dict[str, str]) -> Path:
    """Return the file of a verdict."""
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:16]
    device = re.sub(r"[^a-z0-9]+", "-", made_with["device"].lower()).strip("-")
    return Path(cache_folder, "pe_lab", "selftest", f"{device}-{digest}.json")


def read_verdict(path: Path, made_with: dict[str, str]) -> SelftestResult | None:
    """Return the verdict in a file; None: it is missing, damaged, or for other software or hardware."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["made_with"] != made_with:
            return None
        result = SelftestResult(**content["verdict"])
        times = [ms for taken in result.milliseconds.values() for ms in (taken["triton"], taken["sdpa"])]
        sound = isinstance(result.failed, str | None) and all(isinstance(ms, float) for ms in times)
        return result if sound and (result.failed or result.rows) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_verdict(path: Path, made_with: dict[str, str], verdict: SelftestResult) -> None:
    """Write a verdict under a temporary name, then rename the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(
        json.dumps({"made_with": made_with, "verdict": asdict(verdict)}, indent=1) + "\n", encoding="utf-8"
    )
    os.replace(temporary, path)


def run_selftest(device: torch.device, processes: int | None = None, seconds: float = TIME_LIMIT) -> SelftestResult:
    """Run the self-test on a device, or with device cpu in Triton's interpreter, and return its verdict.

    Args:
        processes: the number of processes that share the cases; None: as many as there are cores, at most 8.
        seconds: the time limit in seconds, after which the processes are ended and the self-test has failed.
    """
    processes = processes or min(MAX_PROCESSES, os.cpu_count() or 1)
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        parts = [_Part(Path(folder, str(n)), device, f"{n}/{processes}") for n in range(processes)]
        try:
            outcomes = [part.wait(ends) for part in parts]
        finally:
            for part in parts:
                part.process.kill()
        rows = [row for part in parts for row in part.written("row")]
        failed = next(filter(None, outcomes), None) or _worst(rows)
        if failed or device.type == "cpu":
            return SelftestResult(failed, rows=rows)
        race = _Part(Path(folder, "race"), device, "race")  # alone, so that nothing disturbs the clock
        failed = race.wait(ends)
        return SelftestResult(failed, next(iter(race.written("milliseconds")), {}), rows)


def _worst(rows: list[dict[str, Any]]) -> str | None:
    """Return which case exceeds its bound most, or None."""
    over = [row for row in rows if not row["error"] <= row["bound"]]
    if not over:
        return None
    row = max(over, key=lambda row: float("inf") if row["error"] != row["error"] else row["error"] / row["bound"])
    return f"the {row['tensor']} errs by {row['error']:.1e} where {row['bound']:.1e} is allowed ({row['case']})"


class _Part:
    """A process that runs a share of the cases, and writes a line before and after each.

    Args:
        share: the part of the cases, "n/m", or "race" for the timings.
    """

    def __init__(self, path: Path, device: torch.device, share: str) -> None:
        self.path = path
        name = f"cuda:{_index(device)}" if device.type == "cuda" else "cpu"
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if name == "cpu" else {}
        root = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "pe_lab.attention", "selftest", "--share", share, str(path), "--device", name]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def wait(self, ends: float) -> str | None:
        """Return why the process failed, or None; it is ended at a time of the monotonic clock."""
        try:
            _, errors = self.process.communicate(timeout=max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return f"it was not done in time{self._place()}"
        if self.process.returncode == 0:
            return None
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        return f"it ended with status {self.process.returncode}{self._place()}: {' '.join(last.split())[:200]}"

    def _place(self) -> str:
        begun = list(self.written("begin"))
        return f" in the case {begun[-1]}" if begun else ""

    def written(self, entry: str) -> list[Any]:
        """Return the entries of a kind that the process has written."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        lines = (json.loads(line) for line in text.splitlines() if line.endswith("}"))
        return [line[entry] for line in lines if entry in line]


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
