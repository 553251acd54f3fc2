"""Compare a training step with the rate of matrix products, on one thread of a CPU.

    python -m benchmarks rate                                     # model=llama_15m, T = 512, 32,000 tokens
    python -m benchmarks rate --model llama_15m --length 512 --rounds 20

The step is a forward and a backward pass with `rope`. Its operations are those of its linear layers: 6 for each weight
and token, as PyTorch counts them, which leaves out those of attention on a CPU. The rate of the core is that of a
product of two matrices of 1,024 x 1,024 in float32. Both run in turn, and times are those of the thread, so that other
programs on the machine hardly count.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import CONFIGS, run_benchmark
from pe_lab.config import expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer
from pe_lab.system.allocator import keep_freed_memory
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message
from pe_lab.training.metrics import cross_entropy

SIZE = 1024  # of the matrices
WARM_UP = 2  # rounds that are not counted


def main() -> None:
    """Read the arguments and print the rates."""
    parser = Parser("benchmarks rate", description=__doc__)
    parser.add_argument("--model", default="llama_15m", help="a preset (%(default)s)")
    parser.add_argument("--length", type=int, default=512, help="T (%(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="of a step and products (%(default)s)")
    run_benchmark(parser, _compare)


def _compare(arguments: Namespace) -> None:
    models = sorted(path.stem for path in (CONFIGS / "model").glob("*.yaml"))
    if arguments.model not in models:
        raise ValueError(unknown_name_message("--model", models, arguments.model))
    for name, least in (("length", 2), ("batch", 1), ("vocabulary", 2), ("rounds", 2)):
        if vars(arguments)[name] < least:
            raise ValueError(f"--{name} must be at least {least}, got {vars(arguments)[name]}")
    torch.set_num_threads(1)
    keep_freed_memory()
    step = step_of(arguments.model, arguments.batch, arguments.length, arguments.vocabulary)
    with FlopCounterMode(display=False) as counter:
        step()
    a, b = torch.randn(2, SIZE, SIZE)
    operations = counter.get_total_flops()
    product = 2 * SIZE**3
    rates: list[tuple[float, float]] = []
    for number in range(arguments.rounds + WARM_UP):
        of_step, of_product = operations / seconds(step), product / seconds(lambda: a @ b)
        if number >= WARM_UP:
            rates.append((of_step, of_product))
    ours, core = (statistics.median(side) / 1e9 for side in zip(*rates, strict=True))
    low, median, high = statistics.quantiles((x / y for x, y in rates), n=4)
    print(f"{operations / 1e9:.1f} billion operations a step, {ours:.1f} in a second, {core:.1f} by the core alone")
    print(f"ratio {median:.2f}, quartiles {low:.2f} to {high:.2f}")


def step_of(preset: str, batch: int, length: int, vocabulary: int) -> Callable[[], None]:
    """Return a function that takes the forward and the backward pass of a model with `rope`."""
    cfg = expand_overrides(["pe=rope", f"model={preset}"], False)[0]
    model = Transformer(cfg.model, Cell.from_config(cfg).encoding, Task(vocabulary, length, vocabulary, causal=True))
    initialise_parameters(model, 0)
    tokens = torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))
    slot = torch.arange(batch * length)

    def step() -> None:
        layout = model.task.layout(torch.full((batch,), length), length)
        model.zero_grad()
        cross_entropy(model.answers(tokens, layout, slot), tokens.roll(-1, 1).flatten()).backward()

    return step


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of the thread that a call takes."""
    start = time.thread_time()
    call()
    return time.thread_time() - start
