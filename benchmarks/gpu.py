"""Run all that needs a GPU within a budget of time, each part in a process of its own, and keep what they print."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import RESULTS, ROOT, run_benchmark
from pe_lab.system.arguments import Parser

TESTS = ROOT / "tests"
BLOCKS = ROOT / "pe_lab/attention/triton/blocks.json"
COLUMNS = ("part", "outcome", "seconds", "limit", "command")
ENDING = 30  # seconds that a part with a clock of its own is given to write its tables


@dataclass(frozen=True)
class GpuPart:
    """A command that needs a GPU.

    Args:
        command: the arguments of the command, in which {python}, {seconds}, {folder} and {tests} are replaced.
        share: the share of the budget, relative to the shares of the other parts.
        needs: a program or a path that must be there; otherwise the part is left out.
        makes: a file that is copied to the folder when the command has ended.
    """

    name: str
    command: tuple[str, ...]
    share: float
    needs: str = ""
    makes: Path | None = None

    def arguments(self, seconds: float, folder: Path) -> list[str]:
        """Return the command, for a time limit and a folder."""
        values = {"python": sys.executable, "seconds": f"{max(1.0, seconds - ENDING):.0f}", "folder": str(folder)}
        return [argument.format(tests=TESTS, **values) for argument in self.command]


SELFTEST = ("{python}", "-m", "pe_lab.attention", "selftest")
BENCH = ("{python}", "-m", "benchmarks")
MEMCHECK = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1")
STUDY = ("pe=none,rope,alibi,t5,forgetting,stick_breaking", "epochs=1,4", "trainer.device=cuda", "logger=none")
SHARE = ("--share", "0/8", "{folder}/sanitizer.jsonl", "--device", "cuda")  # an eighth of the cases, in one process
PARTS = (
    GpuPart("selftest", SELFTEST, 2),
    GpuPart("tests", ("{python}", "-m", "pytest", "-q", "-m", "gpu", "{tests}"), 6, needs=str(TESTS)),
    GpuPart("sanitizer", (*MEMCHECK, *SELFTEST, *SHARE), 2, needs="compute-sanitizer"),
    GpuPart("tune", (*BENCH, "tune", "--seconds", "{seconds}"), 7, makes=BLOCKS),
    GpuPart("selftest_tuned", SELFTEST, 2),  # with the blocks that were found
    GpuPart("kernels", (*BENCH, "kernels", "--seconds", "{seconds}", "--to", "{folder}"), 4),
    GpuPart("study", ("{python}", "-m", "pe_lab.run", "-m", *STUDY, "ledger={folder}/ledger"), 2),
)


def main() -> None:
    """Read the arguments and run all parts; exit with status 1 if one fails."""
    parser = Parser("benchmarks gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25, help="budget of all parts (%(default)s)")
    parser.add_argument("--to", type=Path, default=RESULTS / "gpu", metavar="FOLDER", help="for tables (%(default)s)")
    run_benchmark(parser, _run_all)


def _run_all(arguments: Namespace) -> int:
    if not 0 < arguments.minutes < float("inf"):
        raise ValueError(f"--minutes must be more than 0, got {arguments.minutes}")
    import torch

    if not torch.cuda.is_available():
        raise ValueError("gpu needs a CUDA device, got none")
    return 0 if run_parts(torch.cuda.get_device_name(), arguments.to, arguments.minutes) else 1


@dataclass(frozen=True)
class PartOutcome:
    """What became of a part: "passed", or why it did not."""

    part: GpuPart
    outcome: str
    seconds: float = 0.0
    limit: float = 0.0
    command: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome != "passed" and not self.outcome.startswith("left out")


def run_parts(device: str, to: Path, minutes: float, parts: Sequence[GpuPart] = PARTS) -> bool:
    """Run parts one after the other, write their tables under to/<device>/, and return whether none failed.

    Args:
        device: the name of the GPU.
        minutes: the budget of all parts. What a part leaves of its share goes to those after it.
    """
    folder = to / re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * minutes
    outcomes: list[PartOutcome] = []
    for number, part in enumerate(parts):
        shares = sum(other.share for other in parts[number:])
        limit = max(0.0, ends - time.monotonic()) * part.share / shares
        outcomes.append(_run(part, limit, folder))
        last = outcomes[-1]
        print(f"{part.name:16} {last.seconds:7.1f} s of {limit:6.1f}  {last.outcome}", flush=True)
        _write(outcomes, device, folder)
    return not any(outcome.failed for outcome in outcomes)


def _run(part: GpuPart, limit: float, folder: Path) -> PartOutcome:
    """Run a part for at most `limit` seconds; all its processes are ended then."""
    if part.needs and not (shutil.which(part.needs) or Path(part.needs).exists()):
        return PartOutcome(part, f"left out: there is no {part.needs}")
    arguments = part.arguments(limit, folder)
    began = time.monotonic()
    with (folder / f"{part.name}.txt").open("w", encoding="utf-8") as file:
        process = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit)
            outcome = "passed" if status == 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            outcome = "not done in time"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if part.makes is not None and part.makes.is_file():
        shutil.copy(part.makes, folder)
    return PartOutcome(part, outcome, time.monotonic() - began, limit, " ".join(arguments))


def _write(outcomes: list[PartOutcome], device: str, folder: Path) -> None:
    """Write gpu.csv and gpu.md: a row per part."""
    rows = [
        {
            "part": outcome.part.name,
            "outcome": outcome.outcome,
            "seconds": f"{outcome.seconds:.1f}",
            "limit": f"{outcome.limit:.1f}",
            "command": outcome.command.replace(sys.executable, "python").replace(str(ROOT), "."),
        }
        for outcome in outcomes
    ]
    with (folder / "gpu.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    lines = [f"# {device}", "", f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(row.values())} |" for row in rows]
    (folder / "gpu.md").write_text(
        "\n".join([*lines, "", "What each part printed is in <part>.txt.", ""]), encoding="utf-8"
    )
