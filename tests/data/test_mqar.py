"""Every pair occurs once and is asked once, splits share nothing, and floors are exact."""

import math
import re
from collections import defaultdict
from functools import cache
from itertools import permutations

import pytest
import torch

from pe_lab.data.base import IGNORE, Batch
from pe_lab.data.mqar import MQAR
from pe_lab.encodings.layout import PADDING
from pe_lab.training.metrics import batch_metrics


@cache
def default() -> MQAR:
    return MQAR(0)


def whole_split(data: MQAR, split: str) -> Batch:
    return data.batch(split, torch.arange(data.size(split)))


def test_the_worked_example_is_written_as_drawn() -> None:
    data = MQAR(0, length=16, pairs=2, vocabulary=12, test=1)
    batch = data.write(torch.tensor([[2, 4]]), torch.tensor([[8, 7]]), torch.tensor([[4, 1]]))
    assert batch.tokens.tolist() == [[2, 8, 4, 7, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0, 0, 0]]
    asked = {slot: target for slot, target in enumerate(batch.targets[0].tolist()) if target != IGNORE}
    assert asked == {6: 7, 12: 8}


@pytest.mark.parametrize(("factor", "length", "pairs"), [(1, 64, 4), (2, 128, 8), (4, 256, 16), (1.25, 80, 5)])
def test_every_key_is_value_of_once_and_asked_once_for_its_value(factor: float, length: int, pairs: int) -> None:
    data = default() if factor == 1 else default().longer(factor)
    batch = whole_split(data, "test")
    assert batch.tokens.shape == (1000, length)
    assert data.task.length == length
    assert data.task.causal
    assert data.task.vocabulary == data.task.outputs == 256
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        value_of = dict(zip(tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len(value_of) == len(set(value_of.values())) == pairs
        assert all(1 <= key < 128 <= value < 256 for key, value in value_of.items())
        asked = {slot: token for slot, token in enumerate(tokens) if slot >= 2 * pairs and token}
        assert sorted(asked.values()) == sorted(value_of)
        assert all(slot % 2 == 0 for slot in asked)
        expected = [value_of[asked[slot]] if slot in asked else IGNORE for slot in range(length)]
        assert targets == expected
    assert torch.equal(batch.headline, batch.targets != IGNORE)
    assert (batch.role == 0).all()
    assert batch.layout.segment.shape == (len(batch), length)
    assert (batch.layout.segment != PADDING).all()


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_gaps_follow_the_power_law(power: float) -> None:
    """The gap of the first key is its first draw; that of the second is drawn among the others."""
    size = 4000
    data = MQAR(0, length=24, pairs=2, power=power, train=size)
    batch = whole_split(data, "train")
    weights = [(g + 1) ** (power - 1) for g in range(10)]
    first = [weight / sum(weights) for weight in weights]
    second = [
        sum(first[before] * weights[g] / (sum(weights) - weights[before]) for before in range(10) if before != g)
        for g in range(10)
    ]
    for key, expected in enumerate((first, second)):
        slot = (batch.tokens[:, 4:] == batch.tokens[:, 2 * key, None]).long().argmax(1)
        found = (slot // 2).bincount(minlength=10)
        assert len(found) == 10
        for g, p in enumerate(expected):
            assert abs(found[g] - size * p) < 4.5 * math.sqrt(size * p * (1 - p))


def test_keys_and_values_are_uniform() -> None:
    batch = whole_split(default(), "train")
    for column, low in ((0, 1), (6, 1), (1, 128), (7, 128)):
        found = batch.tokens[:, column].bincount(minlength=256)[low:]
        count = 127 if low == 1 else 128
        assert (found[:count] - 10_000 / count).abs().max() < 5 * math.sqrt(10_000 / count)


@pytest.mark.parametrize(("pairs", "length"), [(1, 6), (2, 8), (2, 10), (3, 12)])
def test_without_order_every_value_of_the_prompt_is_equally_likely(pairs: int, length: int) -> None:
    """Of all sequences with 4 keys and 3 values, weighted by their gaps: so the loss is ln(pairs)."""
    keys, values = range(1, 5), range(5, 8)
    gaps = range((length - 2 * pairs) // 2)
    weights = [(g + 1) ** -0.99 for g in gaps]
    follows: dict[tuple[int, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for places in permutations(gaps, pairs):
        left, weight = sum(weights), 1.0
        for place in places:
            weight *= weights[place] / left
            left -= weights[place]
        for asked in permutations(keys, pairs):
            for answers in permutations(values, pairs):
                sequence = [token for pair in zip(asked, answers, strict=True) for token in pair] + [0] * 2 * len(gaps)
                for key, place in zip(asked, places, strict=True):
                    sequence[2 * pairs + 2 * place] = key
                for value, place in zip(answers, places, strict=True):
                    known = sequence[: 2 * pairs + 2 * place + 1]
                    follows[tuple(sorted(known))][value] += weight
    assert len(follows) > pairs
    for follow in follows.values():
        assert len(follow) == pairs
        assert [weight / sum(follow.values()) for weight in follow.values()] == pytest.approx([1 / pairs] * pairs)


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_floors_are_0_and_ln_pairs(factor: int) -> None:
    data = MQAR(0, test=50) if factor == 1 else MQAR(0, test=50).longer(factor)
    pairs = 4 * factor
    floors = data.floors("test")
    losses = {"bayes": 0.0, "position_blind": math.log(pairs), "prior": math.log(128)}
    assert floors.keys() == losses.keys()
    for level, loss in losses.items():
        for name in ("loss", "loss_all", "loss_value"):
            assert floors[level][name] == pytest.approx(loss, rel=1e-14, abs=0)
        for name in ("accuracy", "accuracy_all"):
            assert floors[level][name] == pytest.approx(math.exp(-loss), rel=1e-14)
    assert floors["bayes"]["exact_match"] == 1
    assert floors["position_blind"]["exact_match"] == 1 / math.factorial(pairs)


def test_perfect_predictors_reach_the_floors() -> None:
    """Without order, the predictor takes the values of the prompt in ascending order."""
    data = MQAR(0, length=16, pairs=2)
    batch = whole_split(data, "test")
    floors = data.floors("test")
    one_hot = torch.nn.functional.one_hot(batch.targets.clamp(min=0), 256)
    assert batch_metrics(one_hot.double().log(), batch, data.roles) == floors["bayes"]

    shown = torch.nn.functional.one_hot(batch.tokens[:, [1, 3]], 256).sum(1)[:, None].expand(-1, 16, -1)
    reached = batch_metrics(shown.double().log(), batch, data.roles)
    losses = {name: value for name, value in floors["position_blind"].items() if name.startswith("loss")}
    assert {name: reached[name] for name in losses} == pytest.approx(losses, rel=1e-6)

    order = batch.tokens[:, [1, 3]].sort(1).values
    rank = ((batch.targets != IGNORE).cumsum(1) - 1).clamp(0, 1)
    guess = torch.nn.functional.one_hot(order.gather(1, rank), 256).double()
    share = batch_metrics(guess, batch, data.roles)
    for name in ("accuracy", "exact_match"):
        assert share[name] == pytest.approx(floors["position_blind"][name], abs=4 * 0.5 / math.sqrt(1000))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 63}, "length must be even and at least 4 x pairs, 16, got 63"),
        ({"pairs": 17}, "length must be even and at least 4 x pairs, 68, got 64"),
        ({"pairs": 0}, "pairs must be an integer of at least 1, got 0"),
        ({"vocabulary": 8}, "vocabulary must be even and at least 2 x pairs + 2, 10, got 8"),
        ({"vocabulary": 255}, "vocabulary must be even and at least 2 x pairs + 2, 10, got 255"),
        ({"pairs": 1, "vocabulary": 44}, "vocabulary must leave at least 500 lists of pairs to split, got 44"),
        ({"power": 0}, "power must be in (0, 1], got 0"),
        ({"power": 1.5}, "power must be in (0, 1], got 1.5"),
        ({"train": 0}, "train must be an integer of at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MQAR(0, **options)


@pytest.mark.parametrize(
    ("options", "factor", "message"),
    [
        ({}, 1.001, "sequences longer than data.length, 64, for data=mqar, got 1.001, which leads to 64"),
        ({}, 32, "at most 127 pairs, the number of keys, for data=mqar, got 32, which leads to 128"),
        (
            {"length": 16},
            1.15,
            "at least 4 slots per pair for data=mqar, got 1.15, which leads to 18 slots and 5 pairs",
        ),
    ],
)
def test_a_factor_that_leads_to_no_longer_task_is_refused(options: dict[str, int], factor: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^evaluate.lengths must lead to {re.escape(message)}$"):
        MQAR(0, **options).longer(factor)
