"""The data of a task of the benchmark: what a sequence is, its sizes, and one of its sequences."""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate

from pe_lab import config
from pe_lab.benchmark.tasks import BenchmarkTask, task_named
from pe_lab.config import reference
from pe_lab.data.base import IGNORE, Dataset
from pe_lab.encodings.layout import PADDING
from pe_lab.system.files import digest, is_writable, parse_json, read_bytes, write_json
from pe_lab.system.plain import has_type

MAX_LOOKED_AT = 4  # validation sequences of which the longest is shown


def sentence(group: str, name: str) -> str:
    """Return what a choice of the configuration is, as a sentence: docs/encodings.md and docs/tasks.md have it too."""
    return f"{reference.first_comment(config.config_folder() / group / f'{name}.yaml').removesuffix('.')}."


@dataclass(frozen=True)
class TaskData:
    """The data of a task, from the settings of its cells.

    Attributes:
        what: what a sequence is: the first comment of its file in conf/data.
        options: of `data`, those that have an effect.
        lengths: tokens of a test sequence, by multiple of the training length.
        vocabulary: number of different tokens.
        rates: the learning rates that are tried.
        training: number of training sequences, of one epoch if they are drawn anew in each.
        tokens: the longest of the first validation sequences of seed 0, without padding.
        answers: of that sequence: for each token what is asked there, empty where nothing is; or the one class.
        pooled: whether a sequence has one answer, its class.
    """

    what: str
    options: dict[str, Any]
    lengths: dict[float, int]
    vocabulary: int
    rates: list[float]
    training: int
    tokens: list[str]
    answers: list[str]
    pooled: bool


def load_data(task: BenchmarkTask) -> TaskData:
    """Return the data of a task; its validation sequences are made at the first call, in less than a second."""
    return _data(task.name)


@cache
def blind_accuracy(name: str, folder: Path) -> dict[float, float]:
    """Return the share of answers that the best model blind to position has right on the test set, by length.

    They are read from the folder, or computed, which takes up to half a minute, and kept there.

    Args:
        name: of a task with a level; the test set is that of seed 0.
    """
    cfg = task_named(name).cfg
    dataset: Dataset = instantiate(cfg.data)(seed=0)
    revisions = [dataset.revision, dataset.floors_revision]
    identity = {"data": config.resolve_config(cfg.data), "lengths": list(cfg.evaluate.lengths), "revisions": revisions}
    path = folder / f"blind-{name}-{digest(identity)}.json"
    if (kept := _read_accuracies(path)) is None:
        kept = _compute_accuracies(dataset, cfg.evaluate.lengths)
        if is_writable(folder):
            write_json(path, kept)
    return {float(length): accuracy for length, accuracy in kept.items()}


def _read_accuracies(path: Path) -> dict[str, float] | None:
    """Return what a file has, or None, with a message if it is damaged."""
    try:
        kept: dict[str, float] = parse_json(read_bytes(path))
        if has_type(kept, dict[str, float]) and all(re.fullmatch(r"\d+\.\d+", length) for length in kept):
            return kept
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        pass
    print(f"--cache: {path} does not have what was written; it is made again", file=sys.stderr)
    return None


def _compute_accuracies(dataset: Dataset, lengths: Iterable[float]) -> dict[str, float]:
    tests = {float(factor): dataset if factor == 1 else dataset.longer(factor) for factor in lengths}
    floors = {length: each.floors("test").get("position_blind", {}) for length, each in tests.items()}
    return {str(length): each["accuracy"] for length, each in floors.items() if "accuracy" in each}


@cache
def _data(name: str) -> TaskData:
    cfg = task_named(name).cfg
    dataset: Dataset = instantiate(cfg.data)(seed=0)
    first = dataset.batch("validation", torch.arange(MAX_LOOKED_AT))
    batch = first[(first.layout.segment != PADDING).sum(1).argmax()[None]]
    there = batch.layout.segment[0] != PADDING
    targets = batch.targets[0] if dataset.task.pooled else batch.targets[0][there]
    words = dataset.token_texts(targets.clamp(min=0)) if not dataset.task.pooled else list(map(str, targets.tolist()))
    lengths = {
        float(factor): (dataset if factor == 1 else dataset.longer(factor)).task.length
        for factor in cfg.evaluate.lengths
    }
    options = {key: value for key, value in config.resolve_config(cfg.data).items() if key[0] != "_" and key != "name"}
    return TaskData(
        what=sentence("data", cfg.data.name),
        options={key: value for key, value in options.items() if dataset.content().get(key, value) is not None},
        lengths=lengths,
        vocabulary=dataset.task.vocabulary,
        rates=sorted(float(rate) for rate in cfg.tune.rates),
        training=dataset.size("train"),
        tokens=dataset.token_texts(batch.tokens[0][there]),
        answers=["" if target == IGNORE else word for target, word in zip(targets.tolist(), words, strict=True)],
        pooled=dataset.task.pooled,
    )
