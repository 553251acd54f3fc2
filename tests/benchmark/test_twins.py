"""Twins are what training says they are: the same outputs and gradients at first, and the same after some steps."""

from collections.abc import Iterable
from copy import deepcopy
from itertools import combinations

import pytest
import torch
from torch import Tensor

from pe_lab import config
from pe_lab.benchmark.tasks import task_named
from pe_lab.benchmark.twins import NEAR_TWINS, TWINS, twin_pairs
from pe_lab.benchmark.undefined_encodings import undefined_reasons
from pe_lab.experiment.cell import Cell

STEPS = 4
EQUAL, ALIKE = 1e-5, 1.5e-3  # relative differences of logits after these steps

Trained = tuple[Tensor, Tensor]


def trained(names: Iterable[str]) -> dict[str, Trained]:
    """Return gradients at step 0 of all that encodings share, and logits of the first batch after some steps."""
    found = {}
    for name in names:
        cfg = deepcopy(task_named("induction").cfg)
        cfg.pe = config.expand_overrides([f"pe={name}"], multirun=False)[0].pe
        cfg.data.train, cfg.data.validation, cfg.data.test = 640, 32, 32
        cell = Cell.from_config(cfg)
        training = cell.lightning_module()
        batches, first, gradients = iter(cell.data_module().train_dataloader()), None, torch.empty(0)
        for _ in range(STEPS):
            batch = next(batches)
            loss = training.training_step(batch, 0)
            training.optimizer.zero_grad()
            loss.backward()
            if first is None:
                first, named = batch, sorted(training.model.named_parameters())
                shared = [p.grad.flatten() for n, p in named if not n.startswith("encodings") and p.grad is not None]
                gradients = torch.cat(shared)
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip)
            training.optimizer.step()
            training.constrain()
            training.step += 1
        with torch.no_grad():
            found[name] = gradients, training.evaluate_batch(first)[1].flatten()
    return found


def distances(found: dict[str, Trained]) -> dict[frozenset[str], float]:
    """Return how far the logits of every two encodings are apart, relative to their size."""
    apart = {}
    for one, other in combinations(found, 2):
        a, b = found[one][1], found[other][1]
        apart[frozenset((one, other))] = float((a - b).norm() / a.norm())
    return apart


def require(found: dict[str, Trained]) -> None:
    apart, names = distances(found), set(found)
    assert {pair for pair, far in apart.items() if far < EQUAL} == {
        frozenset(pair) for pair in twin_pairs() if set(pair) <= names
    }
    for one, other in twin_pairs():
        if {one, other} <= names:
            a, b = found[one][0], found[other][0]
            assert float((a - b).norm() / a.norm()) < EQUAL, (one, other)
    anchors = {pair[0] for pair in NEAR_TWINS}
    near = {pair for pair, far in apart.items() if EQUAL <= far < ALIKE and pair & anchors}
    members = [name for group in TWINS for name in group[1:]]
    assert {pair for pair in near if not pair & set(members)} == {
        frozenset(pair) for pair in NEAR_TWINS if set(pair) <= names
    }
    groups = {name: pair[0] for pair in NEAR_TWINS for name in pair} | {
        name: group[0] for group in TWINS for name in group
    }
    alike = [pair for pair, far in apart.items() if far < ALIKE]
    assert all(len({groups.get(name, name) for name in pair}) == 1 for pair in alike)


def test_listed_twins_and_some_near_ones_are_alike_and_others_are_not() -> None:
    require(trained(["none", "integer", "normalized", "rope", "rope_dynamic_ntk", "lrope", "tape", "alibi"]))


@pytest.mark.slow
def test_there_are_no_other_twins() -> None:
    every = task_named("flip_flop")  # the task of all encodings
    require(trained(name for name in every.encodings if (name, every.name) not in undefined_reasons()))
