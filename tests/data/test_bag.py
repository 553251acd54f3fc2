"""Bags have no ties and no repetitions, and the unordered tokens determine the class."""

import math
import re
from collections import Counter
from functools import cache
from itertools import product

import pytest
import torch
from scipy import stats

from pe_lab.data.bag import Bag, count_majorities
from pe_lab.training.metrics import batch_metrics

SPLITS = ("train", "validation", "test", "demo")


@cache
def dataset(seed: int = 0) -> Bag:
    return Bag(seed)


@pytest.mark.parametrize(("length", "vocabulary"), [(32, 10), (33, 5), (512, 10), (19, 3)])
def test_the_class_is_the_only_most_frequent_token(length: int, vocabulary: int) -> None:
    data = Bag(1, length=length, vocabulary=vocabulary, train=200, test=50, validation=50)
    for split in SPLITS:
        batch = data.whole(split)
        assert batch.tokens.shape == (data.size(split), length)
        for row, (label,) in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            (most, often), *rest = Counter(row).most_common()
            assert most == label
            assert all(less < often for _, less in rest)
            assert set(row) <= set(range(vocabulary))


def test_classes_are_equally_likely() -> None:
    labels = Bag(0, train=50_000).whole("train").targets[:, 0]
    assert stats.chisquare(labels.bincount(minlength=10)).pvalue > 1e-3


def test_every_sequence_without_a_tie_is_as_likely_as_another() -> None:
    """Many draws with 3 tokens and T = 7 find all allowed sequences and no others."""
    rows = product(range(3), repeat=7)
    allowed = {row for row in rows if list(Counter(row).values()).count(max(Counter(row).values())) == 1}
    data = Bag(0, length=7, vocabulary=3, train=100, validation=10, test=10, demo=10)
    tokens, labels = data.draw(200_000, torch.Generator().manual_seed(0))
    found = Counter(map(tuple, tokens.tolist()))
    assert found.keys() == allowed
    assert stats.chisquare(list(found.values())).pvalue > 1e-3
    assert stats.chisquare(labels.bincount()).pvalue > 1e-3


def test_without_order_the_loss_is_zero_and_the_prior_is_chance() -> None:
    floors = dataset().floors("test")
    assert floors.keys() == {"bayes", "position_blind", "prior"}
    assert floors["bayes"] == floors["position_blind"]
    assert (floors["bayes"]["loss"], floors["bayes"]["accuracy"]) == (0, 1)
    assert floors["prior"]["loss"] == pytest.approx(math.log(10), rel=1e-12)
    assert floors["prior"]["accuracy"] == pytest.approx(0.1, rel=1e-12)


def test_a_perfect_predictor_reaches_the_floor_exactly() -> None:
    data = dataset()
    batch = data.whole("test")
    certain = torch.full((len(batch), 1, 10), -torch.inf)
    for index, row in enumerate(batch.tokens.tolist()):
        certain[index, 0, Counter(row).most_common(1)[0][0]] = 0
    assert batch_metrics(certain, batch, data.roles) == data.floors("test")["bayes"]


def test_longer_sequences_ask_the_same() -> None:
    data = Bag(0, vocabulary=5, train=50, test=70)
    for factor, length in ((2, 64), (1.5, 48), (16, 512)):
        longer = data.longer(factor)
        assert (type(longer), longer.name, longer.task.vocabulary) == (Bag, "bag", 5)
        batch = longer.whole("test")
        assert batch.tokens.shape == (70, length)
        assert [Counter(row).most_common(1)[0][0] for row in batch.tokens.tolist()] == batch.targets[:, 0].tolist()
        assert longer.floors("test")["position_blind"]["loss"] == 0
        assert batch.tokens[0, :32].tolist() not in data.whole("train").tokens.tolist()


@pytest.mark.parametrize(("length", "vocabulary"), [(1, 5), (2, 5), (5, 3), (6, 3), (7, 2), (4, 1), (6, 4)])
def test_sequences_with_a_majority_are_counted(length: int, vocabulary: int) -> None:
    rows = product(range(vocabulary), repeat=length)
    there = sum(2 * Counter(row).most_common(1)[0][1] > length for row in rows)
    assert count_majorities(length, vocabulary, enough=10**9) == there
    assert count_majorities(length, vocabulary, enough=there) >= there


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"length": 4},
            "length and vocabulary must allow for 14,200 sequences with a majority, twice as many as are "
            "asked for, got 4 and 10, which allow for 370",
        ),
        (
            {"vocabulary": 1},
            "length and vocabulary must allow for 14,200 sequences with a majority, twice as many as are "
            "asked for, got 32 and 1, which allow for 1",
        ),
        ({"vocabulary": 0}, "vocabulary must be an integer of at least 1, got 0"),
        ({"length": 0}, "length must be an integer of at least 1, got 0"),
        ({"validation": 2.5}, "validation must be an integer of at least 1, got 2.5"),
    ],
)
def test_wrong_options_are_refused_in_one_line(option: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Bag(0, **option)


def test_the_shortest_that_is_allowed_comes_to_an_end() -> None:
    data = Bag(0, length=5, vocabulary=4, train=150, validation=20, test=20, demo=10)
    assert count_majorities(5, 4, 10**9) == 424
    rows = [tuple(row) for split in SPLITS for row in data.whole(split).tokens.tolist()]
    assert len(set(rows)) == 200
