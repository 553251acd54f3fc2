"""Shipped results that nobody trained: losses that a rule makes, the same each time."""

from collections.abc import Sequence
from math import sin
from pathlib import Path
from typing import Any

from pe_lab.benchmark.tasks import STUDY
from pe_lab.results import shipped
from pe_lab.results.shipped import Shipped
from pe_lab.system.files import digest

NAMES = ("none", "rope", "alibi", "learnable", "sinusoidal", "t5", "fire")
DATA = {"place": ("pattern", 2), "copy": ("copy", 2), "recall": ("mqar", 4), "bag": ("bag", 2)}
FLOORS = {"bayes": {"loss": 0.25, "accuracy": 1.0}, "position_blind": {"loss": 1.25}, "prior": {"loss": 2.0}}


def cell(
    task: str, pe: str, seed: int, quality: float, longer: bool = True, gap: float = 1.0, **options: Any
) -> Shipped:
    """Return a cell of a task of the benchmark.

    Args:
        quality: the score about which the seeds of an encoding lie.
        longer: whether it was measured at twice the training length too.
        gap: between the level and the best loss, which is 0.25.
        options: of the encoding.
    """
    data, epochs = DATA.get(task, (task, 4))
    identity = {"pe": {"name": pe, **options}, "data": {"name": data}, "model": {"depth": 2}, "seed": seed}
    identity |= {"optimizer": {"name": "adam", "lr": 0.003}}
    loss = 1.25 - quality + 0.02 * sin(7 * seed + len(pe) + 3 * len(task))
    test = {"loss": loss, "accuracy": min(1.0, 0.5 + quality / 2), "exact_match": min(1.0, max(0.0, quality))}
    level = {"position_blind": {"loss": 0.25 + gap}}
    summary = {"run": digest(identity), "epochs": epochs, "steps": 9, "test": test, "floors": FLOORS | level}
    summary |= {"parameters": 9000 + len(pe), "positional_parameters": len(pe) % 4, "flops_per_token": 2000.0 + len(pe)}
    summary |= {"seconds": 3.5, "attention": "sdpa", "device": "cpu", "tokens_per_sequence": 35, "name": f"{pe}-{seed}"}
    request = {"kind": "length", "length": 2.0, "policy": "raw", "offset": 0}
    metrics = {"loss": loss + 0.4, "accuracy": 0.5, "bayes/loss": 0.25, "position_blind/loss": 0.25 + gap}
    rows = [{"tokens": 70, "metric": name, "value": value} for name, value in metrics.items()]
    records = [{"request": request, "rows": rows}] if longer else []
    return Shipped(identity, epochs, summary, {"torch": "2.13.0"}, {"loss": loss}, "f" * 64, records)


def write(
    folder: Path, names: Sequence[str] = NAMES, tasks: Sequence[str] = ("place", "copy", "recall"), seeds: int = 4
) -> Path:
    """Write results of encodings on tasks into a folder, and return it.

    The first task has one length only. The last encoding has one seed on the second task, and none on the third.
    """
    for number, task in enumerate(tasks):
        cells = []
        for place, pe in enumerate(names):
            count = seeds if pe != names[-1] else (seeds, 1, 0)[min(number, 2)]
            quality = 0.1 if pe == "none" else 0.9 - 0.7 * ((place * (number + 2)) % len(names)) / len(names)
            cells += [cell(task, pe, seed, quality, longer=number > 0) for seed in range(count)]
        shipped.write(f"{STUDY}_{task}", cells, folder)
    return folder
