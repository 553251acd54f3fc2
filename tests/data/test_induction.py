"""The answer is what followed the token before, splits share nothing, and floors are those of a slow count."""

import math
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import product

import pytest
import torch

from pe_lab.data.base import IGNORE
from pe_lab.data.induction import Induction


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


def test_floors_of_one_question_are_those_of_a_slow_count_of_all_sequences() -> None:
    data = Induction(0, length=6, vocabulary=5, asked="last", test=30, validation=30)
    size, length = data.task.vocabulary, data.task.length
    everything = [
        row
        for row in product(range(size), repeat=length)
        if row.count(size - 1) == 2 and row[-1] == size - 1 and row[-2] != size - 1
    ]
    bags: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for row in everything:
        bags[tuple(sorted(row))][followers(list(row))[-1]] += 1
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
    assert floors["prior"]["loss"] == pytest.approx(math.log(size - 1), rel=1e-12)
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
