"""Time attention with every encoding's terms: Triton, FlexAttention, PyTorch's fused attention, plain PyTorch.

Needs only torch, triton and PyYAML, so that it runs where the rest of the lab is not installed.
"""

import csv
import gc
import math
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import CONFIGS, RESULTS, run_benchmark
from benchmarks.implementations import implementations
from benchmarks.presets import presets
from benchmarks.subject import LENGTHS, AttentionInputs, AttentionSizes, make_subject
from pe_lab.encodings.terms import Terms
from pe_lab.system.arguments import Parser

HEAD_START, MAX_HEAD_START = 2**22, 2**30  # cycles: 2 ms to 0.6 s at 1.8 GHz
ROUNDS = 7  # repetitions of each timing
COLUMNS = ("encoding", "terms", "length", "implementation", "pass", "ms", "memory_mb", "tflops", "error", "note")


def main() -> None:
    """Read the arguments and time the kernels."""
    parser = Parser("benchmarks kernels", description=__doc__)
    parser.add_argument("encodings", nargs="*", help="names in conf/pe; by default all that act on attention")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="sequence lengths, in this order")
    parser.add_argument("--seconds", type=float, default=420, help="start no further row after this time")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FOLDER", help="for the tables (%(default)s)")
    run_benchmark(parser, _compare)


def _compare(arguments: Namespace) -> None:
    lengths = tuple(arguments.lengths)
    if min(lengths) < 1:
        raise ValueError(f"--lengths must be at least 1, got {min(lengths)}")
    setting = AttentionSizes(gpu("kernels"), lengths=lengths, seconds=arguments.seconds)
    compare_kernels(setting, arguments.to, CONFIGS / "pe", arguments.encodings)


def gpu(benchmark: str) -> torch.device:
    """Return the CUDA device.

    Raises:
        ValueError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ValueError(f"{benchmark} needs a CUDA device, got none")
    return torch.device("cuda")


def compare_kernels(setting: AttentionSizes, folder: Path, configs: Path, names: list[str]) -> list[dict[str, Any]]:
    """Measure every encoding and length, print the rows and write kernels-<device>.csv and .md into `folder`.

    Args:
        configs: the folder conf/pe.
        names: encodings to measure; none: all that add something to attention.

    Raises:
        ValueError: there is no such encoding.
    """
    began = time.perf_counter()
    device_name = torch.cuda.get_device_name(setting.device) if setting.device.type == "cuda" else "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"kernels-{device_name.replace(' ', '-').lower()}.csv"
    rate = _matrix_rate(setting)
    encodings = presets(configs, names)
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for length in setting.lengths:
            for name, make in encodings.items():
                if time.perf_counter() - began > setting.seconds:
                    left_out[f"{name} at {length}"] = "not reached in time"
                    continue
                subject = make_subject(name, make, length, setting)
                if isinstance(subject, str):
                    left_out[name] = subject
                    continue
                for row in _measure(subject, setting):
                    rows.append(row)
                    writer.writerow(row)
                    file.flush()
                    print("  ".join(f"{row[column]!s:>12}" for column in COLUMNS), flush=True)
    path.with_suffix(".md").write_text(_page(rows, left_out, setting, device_name, rate), encoding="utf-8")
    return rows


def _measure(subject: AttentionInputs, setting: AttentionSizes) -> list[dict[str, Any]]:
    """Return a row per implementation and pass, all timed in turns."""
    used = [f.name for f in fields(Terms) if getattr(subject.terms, f.name) != getattr(Terms(), f.name)]
    terms = ("+".join(used) or "nothing") + (" (trained)" if subject.leaves else "")
    rows: list[dict[str, Any]] = []
    timed: list[tuple[dict[str, Any], Callable[[], Tensor], list[float]]] = []
    first: Tensor | None = None
    for name, call in implementations(subject, setting).items():
        passes: dict[str, Callable[[], Tensor]] = {
            "forward": torch.no_grad()(call),
            "both": partial(_both, call, subject),
        }
        for which, run in passes.items():
            row = dict.fromkeys(COLUMNS, "") | {"encoding": subject.name, "terms": terms, "length": subject.length}
            row |= {"implementation": name, "pass": which}
            rows.append(row)
            try:
                out, memory = _once(run, setting.device)
            except (RuntimeError, ValueError, torch.cuda.OutOfMemoryError) as error:
                row["note"] = " ".join(str(error).split())[:120] or type(error).__name__
                continue
            row["memory_mb"] = round(memory / 2**20, 1)
            if which == "forward":
                first = out.float() if first is None else first
                row["error"] = f"{(out.float() - first).norm() / first.norm():.1e}"
            timed.append((row, run, []))
            del out
            gc.collect()
    for _ in range(ROUNDS):
        for _, run, taken in timed:
            taken.append(_seconds(run, setting.device))
    B, H, T, d = subject.q.shape
    for row, _, taken in timed:
        row["ms"] = round(1000 * median(taken), 4)
        work = 2 * B * H * T * T * d * (1 if row["pass"] == "forward" else 3.5)  # causal: half of 4 T^2 d
        row["tflops"] = round(work / median(taken) / 1e12, 1)
    return rows


def _both(call: Callable[[], Tensor], subject: AttentionInputs) -> Tensor:
    """Compute all gradients; return that of q."""
    return torch.autograd.grad(call(), subject.inputs, subject.upstream)[0]


def _once(run: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, int]:
    """Return the result of a call, and the peak memory in bytes that it added."""
    run()  # compiles the kernels
    if device.type != "cuda":
        return run(), 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run()
    torch.cuda.synchronize()
    return out, torch.cuda.max_memory_allocated() - before


def _seconds(run: Callable[[], Tensor], device: torch.device) -> float:
    """Return the seconds that one call takes on a device."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    return device_seconds(run)


def device_seconds(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes on the GPU, without those that the host needs to launch its kernels.

    The GPU sleeps while the kernels are queued, and longer if it woke before all were. A call that waits for the GPU
    itself always finds it awake: its time includes the host.
    """
    cycles = HEAD_START
    while True:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)
        start.record()
        run()
        end.record()
        asleep = not start.query()
        end.synchronize()
        if asleep or cycles >= MAX_HEAD_START:
            milliseconds: float = start.elapsed_time(end)
            return milliseconds / 1000
        cycles *= 4


def _matrix_rate(setting: AttentionSizes) -> float:
    """Return the TFLOP/s of a large matrix product in this dtype."""
    size = 8192 if setting.device.type == "cuda" else 256
    a, b = (torch.randn(size, size, device=setting.device).to(setting.dtype) for _ in range(2))
    taken = [_seconds(lambda: a @ b, setting.device) for _ in range(10)]
    return 2 * size**3 / median(taken) / 1e12


def _page(
    rows: list[dict[str, Any]], left_out: dict[str, str], setting: AttentionSizes, device: str, rate: float
) -> str:
    """Return the results in Markdown: milliseconds of forward and backward, and how triton compares."""
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = [
        f"# Attention with every encoding's terms on {device}",
        "",
        f"torch {torch.__version__}, {str(setting.dtype).removeprefix('torch.')}, d = {setting.head_dim}, "
        f"H = {setting.num_heads}, B T = {setting.tokens}, causal. Milliseconds forward + backward, medians of "
        f"{ROUNDS} rounds in turn; TFLOP/s of triton; matrix rate {rate:.0f} TFLOP/s. Rotation is included everywhere.",
        "",
        f"| encoding | terms | T | {' | '.join(names)} | TFLOP/s | flex / triton | flash / triton |",
        f"|{'---|' * (6 + len(names))}",
    ]
    by_case: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["pass"] == "both":
            by_case.setdefault((row["encoding"], row["terms"], row["length"]), {})[row["implementation"]] = row
    for (encoding, terms, length), by_name in sorted(by_case.items(), key=lambda item: (item[0][2], item[0][0])):
        ms = {name: by_name[name]["ms"] if name in by_name else "" for name in names}
        ratios = [_ratio(ms.get(name), ms.get("triton")) for name in ("flex", "sdpa flash")]
        cells = [encoding, terms, length, *ms.values(), by_name["triton"]["tflops"], *ratios]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "Not measured:", *(f"- {name}: {reason}" for name, reason in left_out.items())] if left_out else []
    return "\n".join(lines) + "\n"


def _ratio(other: Any, baseline: Any) -> str:
    """Return the ratio of two times as text; empty where one is missing."""
    return f"{other / baseline:.2f}" if other and baseline and math.isfinite(baseline) else ""
