"""Time a training step with each encoding on one thread of a CPU, against a step with rope and with none.

    python benchmarks/encoding_steps.py                           # every encoding for causal sequences
    python benchmarks/encoding_steps.py --encodings path,dape_v2 --sizes 16x35,8x128 --rounds 200

A step is forward pass, backward pass, clipping, optimizer and `constrain` of the model and the optimizer of
`model=pe_bench`, on random tokens without padding. All encodings take a step in turn, in another order each round, and
times are those of the thread, so that other programs on the machine hardly count. Ratios are medians over rounds.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from pe_lab.config import expand, folder
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise
from pe_lab.encodings.base import UnfitError
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer
from pe_lab.system.allocator import keep_freed_memory
from pe_lab.training.metrics import cross_entropy
from pe_lab.training.optimization import Optimization

BASELINES = ("rope", "none")
VOCABULARY = 32
WARM_UP = 5  # rounds that are not counted


def step_of(name: str, batch: int, length: int) -> Callable[[int], None]:
    """Return a function that takes the training step of a number.

    Raises:
        UnfitError: the encoding is not defined for causal attention on a line, or needs more layers.
    """
    cfg = expand([f"pe={name}", "model=pe_bench"], False)[0]
    task = Task(VOCABULARY, length, VOCABULARY, causal=True)
    model = Transformer(cfg.model, Cell.from_config(cfg).encoding, task)
    initialise(model, 0)
    optimizer = Optimization(cfg.optimizer, 1).optimizer(model)
    tokens = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))
    slot = torch.arange(batch * length)
    made = task.layout(torch.full((batch,), length), length)

    def step(number: int) -> None:
        layout = replace(made, seed=number)  # a new one, whose facts are not known as yet
        loss = cross_entropy(model.answers(tokens, layout, slot), tokens.roll(-1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.trainer.clip)
        optimizer.step()
        model.encodings.constrain()

    return step


def seconds(steps: dict[str, Callable[[int], None]], rounds: int) -> dict[str, list[float]]:
    """Return the processor time of each step in each round."""
    order, taken = list(steps), {name: [] for name in steps}
    shuffle = random.Random(0)
    for number in range(WARM_UP + rounds):
        shuffle.shuffle(order)
        for name in order:
            start = time.thread_time()
            steps[name](number)
            if number >= WARM_UP:
                taken[name].append(time.thread_time() - start)
    return taken


def size(text: str) -> tuple[int, int]:
    """Return batch and length of "16x35".

    Raises:
        ValueError: they are not two integers of at least 1.
    """
    batch, length = map(int, text.split("x"))
    if min(batch, length) < 1:
        raise ValueError(text)
    return batch, length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", help="names, separated by commas; all by default")
    parser.add_argument("--sizes", default="16x35,8x128", help="sequences x tokens, separated by commas")
    parser.add_argument("--rounds", type=int, default=100, help="steps of each encoding, at least 2")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {arguments.rounds}")
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    every = sorted(path.stem for path in (Path(folder()) / "pe").glob("*.yaml"))
    asked = arguments.encodings.split(",") if arguments.encodings else every
    for batch, length in map(size, arguments.sizes.split(",")):
        steps = {}
        for name in dict.fromkeys((*BASELINES, *asked)):
            try:
                steps[name] = step_of(name, batch, length)
            except UnfitError:
                if arguments.encodings:
                    raise
        taken = seconds(steps, arguments.rounds)
        print(f"{batch} x {length}: encoding, ms, ratio to {' and to '.join(BASELINES)}")
        median = statistics.median
        for name in sorted(taken, key=lambda name: median(taken[name])):
            ratios = (median(a / b for a, b in zip(taken[name], taken[base], strict=True)) for base in BASELINES)
            print(f"{name:22}{1000 * median(taken[name]):8.2f}" + "".join(f"{ratio:7.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
