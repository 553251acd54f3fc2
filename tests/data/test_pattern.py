"""Sequences follow the specification, and a slow enumeration and a simulation confirm the floors."""

import math
import re
import time
from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from pe_lab.data.pattern import Pattern, PatternHard
from pe_lab.training.metrics import batch_metrics

SPLITS = ("train", "validation", "test", "demo")
# by class, as the specification has it: (token, position)
PAIRS = [((5, 3), (8, 7)), ((3, 5), (9, 10)), ((7, 15), (4, 20))]
MARKED = [5, 8, 3, 9, 7, 4]
PLACE = dict(place for pair in PAIRS for place in pair)
EXACT = {"rel": 0, "abs": 1e-12}


@cache
def dataset(kind: type[Pattern], seed: int = 0, train: int = 5000) -> Pattern:
    return kind(seed, train=train)


def pairs_in(row: list[int]) -> list[int]:
    return [label for label, pair in enumerate(PAIRS) if all(row[place] == token for token, place in pair)]


def both() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", [Pattern, PatternHard])


@both()
@pytest.mark.parametrize("length", [32, 21, 45])
def test_the_pair_of_the_class_is_in_place_and_no_other(kind: type[Pattern], length: int) -> None:
    data = kind(3, length=length, train=300)
    for split in SPLITS:
        batch = data.whole(split)
        assert batch.tokens.shape == (data.size(split), length)
        for row, (label,) in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            assert pairs_in(row) == [label]
            assert all(0 <= token < 20 for token in row)


@both()
def test_classes_are_equally_likely(kind: type[Pattern]) -> None:
    labels = dataset(kind, 0, 50_000).whole("train").targets[:, 0]
    assert stats.chisquare(labels.bincount(minlength=3)).pvalue > 1e-3


def test_all_other_tokens_are_uniform_with_0_and_the_marked_ones_among_them() -> None:
    batch = dataset(Pattern, 0, 50_000).whole("train")
    for label, pair in enumerate(PAIRS):
        rows = batch.tokens[batch.targets[:, 0] == label]
        free = [place for place in range(32) if place not in dict(place[::-1] for place in pair)]
        for place in free:
            found = rows[:, place].bincount(minlength=20)
            # at another pair's place its token is rarer by the sequences that were rejected: 1 / 400 of them
            assert stats.chisquare(found).pvalue > 1e-5, (label, place)


def test_a_marked_token_elsewhere_does_not_make_the_class() -> None:
    """In one of twenty sequences of another class, one token of a pair is in its place."""
    batch = dataset(Pattern).whole("train")
    others = batch.tokens[batch.targets[:, 0] != 0]
    assert (others[:, 3] == 5).double().mean().item() == pytest.approx(1 / 20, abs=0.012)


@both()
def test_making_5000_takes_well_under_a_second(kind: type[Pattern]) -> None:
    began = time.process_time()
    kind(99).whole("train")
    assert time.process_time() - began < 0.5


@both()
def test_a_perfect_predictor_reaches_the_bayes_floor_exactly(kind: type[Pattern]) -> None:
    data = dataset(kind)
    for split in ("test", "validation"):
        batch = data.whole(split)
        certain = torch.full((len(batch), 1, 3), -torch.inf)
        for index, row in enumerate(batch.tokens.tolist()):
            certain[index, 0, pairs_in(row)] = 0
        assert batch_metrics(certain, batch, data.roles) == data.floors(split)["bayes"]
        assert data.floors(split)["bayes"]["loss"] == 0
        assert data.floors(split)["bayes"]["accuracy"] == 1


@both()
def test_the_prior_is_chance(kind: type[Pattern]) -> None:
    prior = dataset(kind).floors("test")["prior"]
    assert prior == pytest.approx(
        {**dict.fromkeys(("loss", "loss_all", "loss_label"), math.log(3)),
         **dict.fromkeys(("accuracy", "accuracy_all", "exact_match"), 1 / 3)}, **EXACT
    )  # fmt: skip


@cache
def assignments() -> tuple[np.ndarray, np.ndarray]:
    """Return the possible tokens at the six places (a marked token by number, or 6 for others) and the class, or -1."""
    there = np.array(list(product(range(7), repeat=6)))
    here = [(there[:, 2 * label] == 2 * label) & (there[:, 2 * label + 1] == 2 * label + 1) for label in range(3)]
    matched = np.stack(here, 1)
    return there, np.where(matched.sum(1) == 1, matched.argmax(1), -1)


def slow_posterior(row: list[int]) -> list[float]:
    """Compute the posterior by summing over all tokens at the six places, weighted by their frequency when shuffled."""
    there, label = assignments()
    count = Counter(row)
    left = np.array([*(count[token] for token in MARKED), len(row) - sum(count[token] for token in MARKED)])
    left = np.tile(left, (len(there), 1))
    orders = np.ones(len(there))
    for place in range(6):
        orders *= left[np.arange(len(there)), there[:, place]]
        left[np.arange(len(there)), there[:, place]] -= 1
    total = [orders[label == c].sum() for c in range(3)]
    return [one / sum(total) for one in total]


@pytest.mark.parametrize("length", [32, 21, 64])
def test_the_position_blind_posterior_is_that_of_a_slow_enumeration(length: int) -> None:
    data = Pattern(5, length=length, train=10)
    tokens = data.whole("test").tokens[:12]
    found = data.position_blind(tokens).exp()
    expected = torch.tensor([slow_posterior(row) for row in tokens.tolist()], dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=1e-12, atol=0)
    assert found.std() > 0.1


def test_the_position_blind_posterior_looks_at_no_position() -> None:
    data = dataset(Pattern)
    tokens = data.whole("test").tokens
    shuffled = tokens[:, torch.randperm(32)]
    assert torch.equal(data.position_blind(tokens), data.position_blind(shuffled))


def test_the_position_blind_posterior_is_calibrated() -> None:
    """Of the sequences with a probability near p of a class, a share of p has that class."""
    data = dataset(Pattern, 0, 50_000)
    batch = data.whole("train")
    p = data.position_blind(batch.tokens).exp()
    hit = torch.nn.functional.one_hot(batch.targets[:, 0], 3).double()
    for low in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7):
        inside = (p >= low) & (p < low + (0.1 if low < 0.5 else 0.2))
        error = math.sqrt((p[inside] * (1 - p[inside])).sum()) / inside.sum()
        assert inside.sum() > 500
        assert hit[inside].mean().item() == pytest.approx(p[inside].mean().item(), abs=4 * float(error))


@cache
def enumerated() -> tuple[float, float]:
    """Compute accuracy and loss of the best position-blind predictor over all counts of the six marked tokens."""
    counts = np.zeros((1, 0), dtype=np.int8)
    for _ in MARKED:
        rest = 32 - counts.sum(1)
        more = [np.column_stack((counts[rest >= n], np.full((rest >= n).sum(), n, np.int8))) for n in range(33)]
        counts = np.concatenate(more)
    assert len(counts) == math.comb(38, 6)
    log_factorial = np.array([math.lgamma(n + 1) for n in range(33)])
    others = 32 - counts.sum(1)
    weight = np.exp(log_factorial[32] - sum(log_factorial[counts[:, k]] for k in range(6)) - log_factorial[others]
                    + others * math.log(14) - 32 * math.log(20))  # fmt: skip
    a, b, c = (counts[:, 2 * k].astype(float) * counts[:, 2 * k + 1] for k in range(3))
    two, four, six = (math.perm(32, n) for n in (2, 4, 6))
    only = [x / two - (x * y + x * z) / four + a * b * c / six for x, y, z in ((a, b, c), (b, a, c), (c, a, b))]
    joint = weight[:, None] * np.stack(only, 1)
    total = joint.sum()
    # of all sequences, those with one pair in place: 3 (1/400) (399/400)^2
    assert total == pytest.approx(3 / 400 * (399 / 400) ** 2, rel=1e-9)
    p = np.stack(only, 1) / np.maximum(np.stack(only, 1).sum(1, keepdims=True), 1e-300)
    loss = -(joint * np.log(np.where(p > 0, p, 1))).sum() / total
    return joint.max(1).sum() / total, loss


def test_a_bag_of_tokens_reaches_0_690() -> None:
    assert enumerated()[0] == pytest.approx(0.690, abs=5e-4)


def test_a_simulation_reaches_what_was_enumerated() -> None:
    data = dataset(Pattern, 0, 50_000)
    floor = data.floors("train")["position_blind"]
    accuracy, loss = enumerated()
    assert floor["accuracy"] == pytest.approx(accuracy, abs=3 * math.sqrt(0.69 * 0.31 / 50_000))
    assert floor["loss"] == pytest.approx(loss, abs=3 * 0.6 / math.sqrt(50_000))


@both()
def test_the_position_blind_predictor_reaches_its_floor(kind: type[Pattern]) -> None:
    data = dataset(kind)
    batch = data.whole("test")
    metrics = batch_metrics(data.position_blind(batch.tokens)[:, None].float(), batch, data.roles)
    floor = data.floors("test")["position_blind"]
    assert metrics.keys() == floor.keys()
    assert {name: value for name, value in metrics.items() if "loss" in name} == pytest.approx(
        {name: value for name, value in floor.items() if "loss" in name}, rel=1e-5
    )
    # ties go to the first class here, and are shared there
    assert metrics["accuracy"] == pytest.approx(floor["accuracy"], abs=0.05)


def test_every_hard_sequence_has_each_marked_token_once() -> None:
    for split in SPLITS:
        tokens = dataset(PatternHard).whole(split).tokens
        for token in MARKED:
            assert ((tokens == token).sum(1) == 1).all()


@cache
def placements() -> list[np.ndarray]:
    """Return for each class all places of the six marked tokens, in the order of MARKED."""
    found = []
    for label, pair in enumerate(PAIRS):
        fixed = [place for _, place in pair]
        free = [place for place in range(32) if place not in fixed]
        others = np.array(free)[np.stack(np.indices((30, 30, 30, 30), np.int8)).reshape(4, -1).T]
        others = others[np.diff(np.sort(others, 1)).all(1)]
        rest = [k for k in range(6) if k // 2 != label]
        whole = np.empty((len(others), 6), dtype=int)
        whole[:, 2 * label : 2 * label + 2] = fixed
        whole[:, rest] = others
        right = whole == [PLACE[token] for token in MARKED]
        found.append(whole[(right[:, ::2] & right[:, 1::2]).sum(1) == 1])
    return found


def test_each_class_can_be_made_of_hard_tokens_in_equally_many_orders() -> None:
    """Filler is independent of the class, so this is all of P(multiset | class)."""
    assert len({len(of_class) for of_class in placements()}) == 1
    assert len(placements()[0]) == math.perm(30, 4) - 2 * math.perm(28, 2) + 1


def test_hard_placements_are_uniform_over_those_enumerated() -> None:
    batch = dataset(PatternHard, 0, 50_000).whole("train")
    for label, possible in enumerate(placements()):
        rows = batch.tokens[batch.targets[:, 0] == label]
        for number, token in enumerate(MARKED):
            found = (rows == token).long().argmax(1).bincount(minlength=32).numpy()
            expected = np.bincount(possible[:, number], minlength=32) / len(possible) * len(rows)
            assert (found[expected == 0] == 0).all()
            if (expected > 0).sum() > 1:
                inside = expected > 0
                assert stats.chisquare(found[inside], expected[inside]).pvalue > 1e-4, (label, token)


def test_hard_filler_is_uniform_over_the_other_14_tokens_whatever_the_class() -> None:
    batch = dataset(PatternHard, 0, 50_000).whole("train")
    fillers = [token for token in range(20) if token not in MARKED]
    table = np.array([
        [(batch.tokens[batch.targets[:, 0] == label] == token).sum().item() for token in fillers] for label in range(3)
    ])  # fmt: skip
    assert stats.chisquare(table.sum(0)).pvalue > 1e-3
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_unordered_hard_tokens_are_at_chance() -> None:
    floor = dataset(PatternHard).floors("test")
    assert floor["position_blind"] == floor["prior"]


@both()
def test_longer_sequences_have_the_same_pairs_at_the_same_places_and_more_filler(kind: type[Pattern]) -> None:
    data = kind(2, train=50, test=400)
    for factor, length in ((2, 64), (1.5, 48), (16, 512)):
        longer = data.longer(factor)
        assert type(longer) is kind
        assert (longer.name, longer.task.length, longer.task.outputs) == (data.name, length, 3)
        assert longer.size("test") == 400
        batch = longer.whole("test")
        assert batch.tokens.shape == (400, length)
        assert [pairs_in(row) for row in batch.tokens.tolist()] == batch.targets.tolist()
        assert batch.tokens[:, 32:].unique().tolist() == sorted(
            range(20) if kind is Pattern else set(batch.tokens[:, 32:].flatten().tolist())
        )
        floors = longer.floors("test")
        assert floors["bayes"]["loss"] == 0
        assert floors["position_blind"]["loss"] <= floors["prior"]["loss"] + 1e-12
        if kind is PatternHard:
            assert all(((batch.tokens == token).sum(1) == 1).all() for token in MARKED)


@both()
def test_a_longer_sequence_does_not_begin_as_one_of_training(kind: type[Pattern]) -> None:
    data = dataset(kind)
    seen = {tuple(row) for row in data.whole("train").tokens.tolist()}
    assert not seen & {tuple(row) for row in data.longer(2).whole("test").tokens[:, :32].tolist()}


def test_longer_sequences_say_less_without_order() -> None:
    data = Pattern(0, train=10, test=4000)
    losses = [data.longer(factor).floors("test")["position_blind"]["loss"] for factor in (1, 2, 8)]
    assert losses == sorted(losses)
    assert losses[-1] < math.log(3)


@both()
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"length": 20}, "length must be at least 21, to hold every pair, got 20"),
        ({"length": 31.5}, "length must be an integer of at least 1, got 31.5"),
        ({"train": 0}, "train must be an integer of at least 1, got 0"),
        ({"demo": -1}, "demo must be an integer of at least 1, got -1"),
        ({"test": True}, "test must be an integer of at least 1, got True"),
    ],
)
def test_wrong_options_are_refused_in_one_line(kind: type[Pattern], option: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        kind(0, **option)
