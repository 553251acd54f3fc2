"""The answer is what followed the token before, splits share nothing, and floors are those of a slow count."""

import hashlib
import math
import re
from collections import Counter, defaultdict
from functools import cache
from inspect import signature
from itertools import product

import hydra
import pytest
import torch

from pe_lab.config import expand
from pe_lab.data.base import IGNORE, Batch
from pe_lab.data.induction import Induction

SPLITS = ("train", "validation", "test")


@cache
def default() -> Induction:
    return Induction(0)


def followers(row: list[int]) -> list[int]:
    """Return for each token the one after its previous occurrence, IGNORE where there is none."""
    found = []
    for slot, token in enumerate(row):
        before = [place for place in range(slot) if row[place] == token]
        found.append(row[before[-1] + 1] if before else IGNORE)
    return found


def test_the_config_is_the_class_with_its_defaults() -> None:
    cfg = expand(["data=induction"], False)[0]
    assert type(hydra.utils.instantiate(cfg.data)(seed=0)) is Induction
    defaults = {key: value.default for key, value in signature(Induction).parameters.items() if key != "seed"}
    assert {key: value for key, value in cfg.data.items() if key[0] != "_"} == defaults


def test_the_worked_example_is_answered() -> None:
    batch = Induction(0, length=8, vocabulary=6, test=5).write(torch.tensor([[2, 5, 1, 2, 5, 5, 1, 2]]))
    assert batch.targets.tolist() == [[IGNORE, IGNORE, IGNORE, 5, 1, 5, 2, 5]]
    assert torch.equal(batch.headline, batch.targets != IGNORE)


@pytest.mark.parametrize(("factor", "length"), [(1, 32), (2, 64), (1.4, 45)])
def test_every_token_that_came_before_asks_what_followed(factor: float, length: int) -> None:
    data = default() if factor == 1 else default().longer(factor)
    batch = data.whole("test")
    assert batch.tokens.shape == (1000, length)
    assert data.task.length == length
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert targets == followers(row)
    assert int(batch.tokens.max()) == 15


@pytest.mark.parametrize("factor", [1, 2])
def test_one_special_token_asks_at_the_end(factor: int) -> None:
    data = Induction(0, length=20, vocabulary=9, asked="last", train=3000)
    if factor == 2:
        data = data.longer(2)
    batch = data.whole("train")
    length, firsts = 20 * factor, Counter()
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        first = row.index(8)
        firsts[first] += 1
        assert row.count(8) == 2
        assert row[-1] == 8
        assert targets == [IGNORE] * (length - 1) + [row[first + 1]]
    assert set(firsts) == set(range(length - 2))
    expected = 3000 / (length - 2)
    assert max(abs(count - expected) for count in firsts.values()) < 4.5 * math.sqrt(expected)


def test_tokens_are_uniform() -> None:
    found = default().whole("train").tokens.flatten().bincount(minlength=16)
    assert (found - 20_000).abs().max() < 4.5 * math.sqrt(20_000)


def test_the_sequences_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(default().whole(split).tokens.numpy().astype("<i8").tobytes())
    assert digest.hexdigest() == "7a96acf527429e3f1a1c2d32e87bee9f5c3ece470299cb448fd86b2ba110beed"


@pytest.mark.parametrize("asked", ["repeated", "last"])
def test_no_sequence_is_in_two_splits_or_twice_in_a_test(asked: str) -> None:
    """Of 2,187 sequences, or 1,280."""
    data = Induction(3, length=7, vocabulary=3 if asked == "repeated" else 5, asked=asked, test=50, validation=50)
    rows = {split: [tuple(row) for row in data.whole(split).tokens.tolist()] for split in SPLITS}
    assert not set(rows["train"]) & {*rows["validation"], *rows["test"]}
    assert not set(rows["test"]) & set(rows["validation"])
    assert all(len(set(rows[split])) == len(rows[split]) == 50 for split in SPLITS[1:])


@pytest.mark.parametrize("asked", ["repeated", "last"])
def test_floors_are_those_of_a_slow_count_of_all_sequences(asked: str) -> None:
    special = asked == "last"
    options = {"length": 6, "vocabulary": 5, "asked": "last"} if special else {"length": 7, "vocabulary": 3}
    data = Induction(0, **options, test=30, validation=30)
    size, length = data.task.vocabulary, data.task.length
    everything = [
        row
        for row in product(range(size), repeat=length)
        if not special or (row.count(size - 1) == 2 and row[-1] == size - 1 and row[-2] != size - 1)
    ]
    bags: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for row in everything:
        for slot, target in enumerate(followers(list(row))):
            if target != IGNORE and (not special or slot == length - 1):
                bags[tuple(sorted(row[: slot + 1]))][target] += 1
    losses, hits = [], []
    batch = data.whole("test")
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        for slot, target in enumerate(targets):
            if target != IGNORE:
                found = bags[tuple(sorted(row[: slot + 1]))]
                best = [token for token in found if found[token] == max(found.values())]
                losses.append(-math.log(found[target] / found.total()))
                hits.append((target in best) / len(best))
    floors = data.floors("test")
    assert floors["position_blind"]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert floors["position_blind"]["accuracy"] == pytest.approx(sum(hits) / len(hits), rel=1e-12)
    assert floors["prior"]["loss"] == pytest.approx(math.log(size - special), rel=1e-12)
    assert floors["bayes"]["loss"] == 0
    assert floors["bayes"]["exact_match"] == 1


def test_the_published_protocol_can_be_made() -> None:
    data = Induction(0, length=256, vocabulary=16, asked="last", train=5, validation=5, test=5)
    assert data.whole("test").tokens.shape == (5, 256)
    assert data.longer(16).task.length == 4096


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 16}, "length must be above vocabulary, 16, so that tokens repeat, got 16"),
        ({"length": 3, "asked": "last"}, "length must be at least 4, so that one token can be asked for, got 3"),
        ({"length": 8, "vocabulary": 2}, "length must leave at least 500 different sequences to split, got 8"),
        (
            {"length": 9, "vocabulary": 2, "validation": 25, "test": 26},
            "test must be at most 25, a twentieth of the 512 sequences of induction, so that none comes twice, got 26",
        ),
        ({"vocabulary": 1}, "vocabulary must be an integer of at least 2, got 1"),
        ({"asked": "first"}, "asked must be one of repeated, last, got 'first'"),
        ({"train": 0}, "train must be an integer of at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Induction(0, **options)


@pytest.mark.parametrize(
    ("factor", "message"), [(1, "sequences longer than data.length, 32"), (5000, "at most 131072")]
)
def test_a_factor_that_leads_to_no_longer_task_is_refused(factor: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^evaluate.lengths must lead to {re.escape(message)}"):
        default().longer(factor)


def test_a_batch_is_part_of_the_whole() -> None:
    part: Batch = default().batch("test", torch.tensor([5, 3]))
    assert torch.equal(part.targets, default().whole("test").targets[torch.tensor([5, 3])])
