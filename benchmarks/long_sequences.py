"""Measure the memory and the time of a training step on long sequences, on a CPU.

    python -m benchmarks long_sequences                                    # every encoding, T = 2048, 4096 and 8192
    python -m benchmarks long_sequences --encodings rope,t5 --lengths 2048 --implementations auto,before

A step is a forward and a backward pass of the model of `model=pe_bench` (2 layers, width 64) on one sequence of random
tokens, in a process of its own, after a step on 64 tokens. Memory is the largest that is resident in the step beyond
what was resident before. `before` is the implementation that `attention=auto` took before there was `blocked`.
"""

import multiprocessing
import resource
import time
from argparse import Namespace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks import CONFIGS, run_benchmark
from pe_lab.attention import IMPLEMENTATIONS, resolve, sdpa
from pe_lab.config import expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import UnfitError
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message
from pe_lab.training.metrics import cross_entropy

VOCABULARY = 32
WARM_UP = 64  # tokens of the step before the one that is measured
CHOICES = ("auto", "before", *IMPLEMENTATIONS)
LINUX = Path("/proc/self/status")


def main() -> None:
    """Read the arguments and measure."""
    parser = Parser("benchmarks long_sequences", description=__doc__)
    parser.add_argument("--encodings", help="names, separated by commas; all by default")
    parser.add_argument("--lengths", default="2048,4096,8192", help="tokens, separated by commas")
    parser.add_argument("--implementations", default="before,auto", help=f"some of {', '.join(CHOICES)}")
    parser.add_argument("--limit", type=float, default=4.0, help="GiB that a step may take, at most")
    run_benchmark(parser, _measure)


def _measure(arguments: Namespace) -> None:
    every = sorted(path.stem for path in (CONFIGS / "pe").glob("*.yaml"))
    names = arguments.encodings.split(",") if arguments.encodings else every
    for setting, values, allowed in (
        ("--encodings", names, every),
        ("--implementations", arguments.implementations.split(","), CHOICES),
    ):
        for name in values:
            if name not in allowed:
                raise ValueError(unknown_name_message(setting, allowed, name))
    lengths = arguments.lengths.split(",")
    if not all(length.isdecimal() and int(length) > WARM_UP for length in lengths):
        raise ValueError(f"--lengths must be integers above {WARM_UP}, got {arguments.lengths!r}")
    if not LINUX.exists():
        raise ValueError(f"--limit and memory need {LINUX}, which Linux alone has")
    torch.set_num_threads(1)  # a process with threads cannot be forked
    print("encoding, T, asked, implementation, MiB, seconds", flush=True)
    for name in names:
        for length in lengths:
            for implementation in arguments.implementations.split(","):
                row = _measure_in_process(name, length, implementation, arguments.limit)
                print(f"{name}, {length}, {implementation}, {row}", flush=True)


def _measure_in_process(name: str, length: str, implementation: str, limit: float) -> str:
    """Return a row of a step in a process of its own: implementation, MiB and seconds, or why there is none."""
    context = multiprocessing.get_context("fork")  # which has loaded all that this process has
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, name, int(length), implementation, limit))
    process.start()
    theirs.close()
    try:
        row: str = ours.recv()
    except EOFError:
        row = f"-, -, ended with status {process.exitcode}"
    process.join()
    return row


def _tell(pipe: Connection, *message: Any) -> None:
    try:
        row = measure_step(*message)
        pipe.send(f"{row['implementation']}, {row['mib']:.0f}, {row['seconds']:.2f}")
    except UnfitError as error:
        pipe.send(f"-, -, not defined here: {error}")
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        pipe.send(f"-, more than {1024 * message[-1]:.0f}, -")


def measure_step(name: str, length: int, implementation: str, limit: float) -> dict[str, object]:
    """Return the implementation, the memory and the seconds of a training step.

    Raises:
        UnfitError: the encoding is not defined for causal sequences on a line.
        RuntimeError: the step takes more memory than the limit, in GiB.
    """
    overrides = [f"pe={name}", "model=pe_bench"]
    if "\nmax_len:" in (CONFIGS / "pe" / f"{name}.yaml").read_text(encoding="utf-8"):
        overrides.append(f"pe.max_len={length}")
    cfg = expand_overrides(overrides, False)[0]
    task = Task(VOCABULARY, length, VOCABULARY, causal=True)
    model = Transformer(cfg.model, Cell.from_config(cfg).encoding, task)
    initialise_parameters(model, 0)
    model.implementation = taken = _resolved(model, length, implementation)
    _step(model, WARM_UP)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the largest resident memory is counted from here
    before = _status("VmRSS")
    most = int(limit * 2**30) + before
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    start = time.perf_counter()
    _step(model, length)
    return {
        "implementation": taken,
        "mib": (_status("VmHWM") - before) / 2**20,
        "seconds": time.perf_counter() - start,
    }


def _resolved(model: Transformer, length: int, implementation: str) -> str:
    """Return the name of the implementation that a run with this length takes."""
    if implementation not in ("auto", "before"):
        return implementation
    layout = model.task.layout(torch.full((1,), WARM_UP), WARM_UP)
    terms = model.encodings.first.terms(
        torch.zeros(1, WARM_UP, model.tokens.embedding_dim), model.encodings.locate(layout)
    )
    if implementation == "before":
        return "reference" if sdpa.refusal_reason(torch.zeros(1, 1, 1, 2), terms, layout) else "sdpa"
    q = torch.zeros(1, 1, 1, model.encodings.first.sizes.head_dim)
    return resolve("auto", q.expand(-1, -1, length, -1), terms, layout)


def _step(model: Transformer, length: int) -> None:
    tokens = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    layout = model.task.layout(torch.full((1,), length), length)
    cross_entropy(model.answers(tokens, layout, torch.arange(length)), tokens.roll(-1, 1).flatten()).backward()


def _status(name: str) -> int:
    """Return an entry of the status of this process, in bytes."""
    line = next(line for line in LINUX.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
