"""Sequences follow the specification, splits share nothing, and floors are exact."""

import math
from collections import Counter, defaultdict
from functools import cache

import hydra
import pytest
import torch
from torch import Tensor

from helpers.configs import compose_config
from pe_lab.data.base import IGNORE, Batch, epoch_order, in_batches
from pe_lab.data.structured import END, MID, NUM_VALUES, PAD, START, Structured, StructuredHeldout, term_pairs
from pe_lab.encodings.layout import PADDING

TASKS = {"structured": Structured, "structured_heldout": StructuredHeldout}
SPLITS = ("train", "validation", "test")
SEEDS = (0, 1, 7, 12345)
ROLES = ("first", "second", "middle", "continuation", "end")
every_task = pytest.mark.parametrize("name", TASKS)
# float64 sums of at most 1e5 numbers below 10
EXACT = {"rel": 0, "abs": 1e-12}


@cache
def population() -> dict[tuple[int, ...], tuple[int, int, int]]:
    """Return every allowed sequence without padding, with its (a, s, terms after MID)."""
    sequences = {}
    for step in [*range(-8, 0), *range(1, 9)]:
        for first in range(128):
            terms = [first + n * step for n in range(12)]
            if min(terms) < 0 or max(terms) > 127:
                continue
            for tail in (4, 5, 6, 7, 8):
                sequences[(START, *terms[:4], MID, *terms[4 : 4 + tail], END)] = (first, step, tail)
    return sequences


@cache
def continuations(ordered: bool) -> dict[tuple[int, ...], Counter[int]]:
    """Count the next tokens after each prefix, or each bag of tokens, over all sequences."""
    found = defaultdict(Counter)
    for sequence in population():
        for known in range(1, len(sequence)):
            found[key(sequence[:known], ordered)][sequence[known]] += 1
    return found


def key(prefix: tuple[int, ...], ordered: bool) -> tuple[int, ...]:
    return prefix if ordered else tuple(sorted(prefix))


def role_of(number: int, token: int) -> str:
    """Return the role of the token with this index in the sequence; START has index 0."""
    if token in (MID, END):
        return "middle" if token == MID else "end"
    return {1: "first", 2: "second"}.get(number, "continuation")


@cache
def dataset(seed: int, name: str) -> Structured:
    return TASKS[name](seed)


def whole_split(data: Structured, split: str) -> Batch:
    return data.batch(split, torch.arange(data.size(split)))


def unpadded(tokens: Tensor) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token != PAD) for row in tokens.tolist()]


@cache
def chosen_pairs(seed: int, split: str, name: str = "structured_heldout") -> frozenset[tuple[int, int]]:
    """Return the (a, s) of sequences."""
    return frozenset((row[1], row[2] - row[1]) for row in whole_split(dataset(seed, name), split).tokens.tolist())


@every_task
def test_there_are_1256_pairs_and_6280_sequences(name: str) -> None:
    assert len(population()) == 6280
    assert {(a, s) for a, s, _ in population().values()} == set(term_pairs())
    assert len(term_pairs()) == 1256
    assert sum(dataset(0, name).size(split) for split in SPLITS) == 6280


def test_the_vocabulary_is_128_terms_and_four_marks() -> None:
    assert NUM_VALUES == 128
    assert {START, MID, END, PAD} == {128, 129, 130, 131}
    assert dataset(0, "structured_heldout").task.vocabulary == 132


@pytest.mark.parametrize(
    ("name", "sizes"), [("structured", [4522, 502, 1256]), ("structured_heldout", [4525, 500, 1255])]
)
def test_the_config_is_the_task_of_the_specification(name: str, sizes: list[int]) -> None:
    cfg = compose_config(f"data={name}")
    data = hydra.utils.instantiate(cfg.data)(seed=0)
    assert type(data) is TASKS[name]
    assert (data.name, data.task.length, data.task.causal, data.roles) == (name, 16, True, ROLES)
    assert [data.size(split) for split in SPLITS] == sizes
    assert whole_split(data, "test").tokens.shape == (sizes[2], 16)
    assert (cfg.model.width, cfg.model.num_heads, cfg.model.mlp_ratio, cfg.trainer.batch_size) == (64, 4, 4, 64)


@every_task
@pytest.mark.parametrize("seed", SEEDS)
def test_the_splits_are_together_all_sequences_each_once(name: str, seed: int) -> None:
    sequences = [row for split in SPLITS for row in unpadded(whole_split(dataset(seed, name), split).tokens)]
    assert sorted(sequences) == sorted(population())


@every_task
@pytest.mark.parametrize("length", [15, 16, 21])
def test_padding_fills_the_end_and_nothing_else(name: str, length: int) -> None:
    for split in SPLITS:
        batch = whole_split(TASKS[name](0, length=length), split)
        assert batch.tokens.shape[1] == length
        for row, segment in zip(batch.tokens.tolist(), batch.layout.segment.tolist(), strict=True):
            count = length - segment.count(PADDING)
            assert row[0] == START
            assert row[5] == MID
            assert row[count - 1] == END
            assert PAD not in row[:count]
            assert row[count:] == [PAD] * (length - count)
            assert PADDING not in segment[:count]
            assert segment[count:] == [PADDING] * (length - count)
        assert torch.equal(batch.layout.pos, torch.arange(length)[None])
        assert batch.layout.causal
        assert not batch.layout.packed
        assert unpadded(batch.tokens) == unpadded(whole_split(dataset(0, name), split).tokens)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_pair_is_in_two_splits(seed: int) -> None:
    train, validation, test = (chosen_pairs(seed, split) for split in SPLITS)
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert train | validation | test == set(term_pairs())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fifth_of_the_pairs_is_for_the_test_and_a_tenth_of_the_rest_for_validation(seed: int) -> None:
    train, validation, test = (len(chosen_pairs(seed, split)) for split in SPLITS)
    assert abs(test - 0.2 * 1256) <= 0.5
    assert abs(validation - 0.1 * (train + validation)) <= 0.5
    assert [dataset(seed, "structured_heldout").size(split) for split in SPLITS] == [
        5 * train,
        5 * validation,
        5 * test,
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pair_of_a_split_has_all_lengths(seed: int) -> None:
    for split in SPLITS:
        tails = Counter(
            population()[row][2] for row in unpadded(whole_split(dataset(seed, "structured_heldout"), split).tokens)
        )
        assert tails == dict.fromkeys((4, 5, 6, 7, 8), len(chosen_pairs(seed, split)))


@every_task
def test_the_split_depends_on_the_seed(name: str) -> None:
    for split in SPLITS:
        assert len({frozenset(unpadded(whole_split(dataset(seed, name), split).tokens)) for seed in SEEDS}) == len(
            SEEDS
        )


@every_task
def test_the_split_has_pairs_of_every_step(name: str) -> None:
    """A split in the order of enumeration would hold out whole steps; a random one does not."""
    for seed in SEEDS:
        for split in SPLITS:
            assert len({step for _, step in chosen_pairs(seed, split, name)}) == 16


@pytest.mark.parametrize(("seed", "shared"), [(0, 1247), (1, 1248), (2, 1250)])
def test_nearly_every_test_sequence_has_a_training_sequence_of_the_same_progression(seed: int, shared: int) -> None:
    """As the task's description says: the source's split measures memory of progressions as well."""
    train = chosen_pairs(seed, "train", "structured")
    test = unpadded(whole_split(dataset(seed, "structured"), "test").tokens)
    assert sum((row[1], row[2] - row[1]) in train for row in test) == shared
    assert shared / len(test) > 0.99


@every_task
@pytest.mark.parametrize("factor", [2, 4])
def test_a_longer_test_is_the_test_with_more_terms_as_far_as_they_stay_in_range(name: str, factor: int) -> None:
    more = 16 * factor - 16
    expected = set()
    for row in unpadded(whole_split(dataset(0, name), "test").tokens):
        first, step, tail = population()[row]
        if 0 <= first + (11 + more) * step <= 127:
            terms = [first + n * step for n in range(4 + tail + more)]
            expected.add((START, *terms[:4], MID, *terms[4:], END))
    longer = dataset(0, name).longer(factor)
    found = unpadded(whole_split(longer, "test").tokens)
    assert type(longer) is TASKS[name]
    assert set(found) == expected
    assert len(found) == len(expected) == longer.size("test")


@every_task
@pytest.mark.parametrize("length", [16, 19])
def test_every_slot_asks_for_the_next_token_in_its_role_and_padding_is_never_asked(name: str, length: int) -> None:
    data = TASKS[name](0, length=length)
    for split in SPLITS:
        batch = whole_split(data, split)
        rows = zip(unpadded(batch.tokens), batch.targets.tolist(), batch.role.tolist(), strict=True)
        for sequence, targets, roles in rows:
            asked = sequence[1:]
            assert targets == [*asked, *[IGNORE] * (length - len(asked))]
            names = [data.roles[number] for number in roles[: len(asked)]]
            assert names == [role_of(number, token) for number, token in enumerate(asked, 1)]


@every_task
def test_the_headline_is_the_slots_that_the_prefix_determines(name: str) -> None:
    seen = 0
    for split in SPLITS:
        batch = whole_split(dataset(0, name), split)
        for sequence, headline in zip(unpadded(batch.tokens), batch.headline.tolist(), strict=True):
            determined = [len(continuations(True)[sequence[:known]]) == 1 for known in range(1, len(sequence))]
            assert headline == [*determined, *[False] * (16 - len(determined))]
            seen += 1
    assert seen == 6280


@every_task
def test_end_is_in_the_headline_after_the_eighth_term_only(name: str) -> None:
    batch = whole_split(dataset(0, name), "train")
    asks_end = batch.targets == END
    assert torch.equal(asks_end.sum(1), torch.ones(len(batch), dtype=torch.long))
    tail = torch.tensor([population()[row][2] for row in unpadded(batch.tokens)])
    assert torch.equal((batch.headline & asks_end).any(1), tail == 8)


@cache
def floors(split: str, name: str) -> dict[str, dict[str, float]]:
    return dataset(0, name).floors(split)


@every_task
def test_the_bayes_loss_of_the_headline_is_zero(name: str) -> None:
    for split in SPLITS:
        assert floors(split, name)["bayes"]["loss"] == 0.0
        assert floors(split, name)["bayes"]["loss_middle"] == 0.0


@pytest.mark.parametrize(
    ("name", "seed", "loss"),
    [
        ("structured", 0, 0.230),
        ("structured", 1, 0.233),
        ("structured", 2, 0.231),
        ("structured_heldout", 0, 0.064),
        ("structured_heldout", 1, 0.075),
        ("structured_heldout", 2, 0.059),
    ],
)
def test_knowing_the_split_lowers_the_position_blind_loss(name: str, seed: int, loss: float) -> None:
    """Compare with the counts of next tokens after each bag of tokens in the test split."""
    data = dataset(seed, name)
    follow = defaultdict(Counter)
    asked = []
    for sequence in unpadded(whole_split(data, "test").tokens):
        for known in range(1, len(sequence)):
            bag = key(sequence[:known], ordered=False)
            follow[bag][sequence[known]] += 1
            if len(continuations(True)[sequence[:known]]) == 1:
                asked.append((bag, sequence[known]))
    losses = [-math.log(follow[bag][token] / follow[bag].total()) for bag, token in asked]
    found = data.floors("test")
    known = found["position_blind_split_known"]["loss"]
    assert known == pytest.approx(math.fsum(losses) / len(losses), **EXACT)
    assert known == pytest.approx(loss, abs=5e-4)
    assert known < found["position_blind"]["loss"]


@pytest.mark.parametrize(("name", "loss"), [("structured", 0.362), ("structured_heldout", 0.327)])
def test_the_position_blind_loss_is_that_of_the_description(name: str, loss: float) -> None:
    assert floors("test", name)["position_blind"]["loss"] == pytest.approx(loss, abs=5e-4)


def test_held_out_progressions_are_mostly_training_progressions_shifted_by_a_step() -> None:
    """As the task's description says: they hold out starting points more than transitions."""
    train, test = chosen_pairs(0, "train"), chosen_pairs(0, "test")
    moved = [(a, s) for a, s in test if {(a - s, s), (a + s, s)} & train]
    steps = {(a + n * s, s) for a, s in train for n in range(11)}
    needed = [(a + n * s, s) for a, s in test for n in range(11)]
    assert (len(moved), len(test)) == (222, 251)
    assert sum(step in steps for step in needed) / len(needed) == pytest.approx(0.971, abs=5e-4)


def test_without_positions_the_headline_costs_one_bit_where_the_reversed_progression_exists() -> None:
    """n >= 2 unordered terms are a, a+s, ... or, if its 12 terms are in range too, the reverse with step -s."""
    losses = []
    for a, s in chosen_pairs(0, "test"):
        fits = {n: 0 <= a + (n - 12) * s <= 127 for n in range(2, 8)}
        # the terms 3 to 8 after n others; MID, and END after the eighth of the second run, are sure
        bits = [float(fits[n]) for n in range(2, 8)] + [0.0]
        losses += (bits * 5) + [0.0]
    assert floors("test", "structured_heldout")["position_blind"]["loss"] == pytest.approx(
        math.log(2) * math.fsum(losses) / len(losses)
    )
    assert floors("test", "structured_heldout")["position_blind"]["loss"] > 0.3


@every_task
@pytest.mark.parametrize("length", [14, 1, 0, -3, 15.5])
def test_a_length_that_cannot_hold_the_longest_sequence_is_refused(name: str, length: float) -> None:
    with pytest.raises(ValueError, match=r"^length must be .*got " + str(length)) as caught:
        TASKS[name](0, length=length)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [1, 64, 4525])
def test_the_order_of_an_epoch_is_a_permutation(size: int) -> None:
    assert epoch_order(size, seed=2, epoch=5).sort().values.tolist() == list(range(size))


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    orders = {}
    for seed in range(3):
        for epoch in range(4):
            torch.manual_seed(100 * seed + epoch)
            order = epoch_order(4525, seed, epoch)
            torch.rand(1)
            state = torch.random.get_rng_state()
            assert torch.equal(epoch_order(4525, seed, epoch), order)
            assert torch.equal(torch.random.get_rng_state(), state)
            orders[tuple(order.tolist())] = seed, epoch
    assert len(orders) == 12


@pytest.mark.parametrize("batch_size", [64, 100, 500, 1000])
def test_batches_cover_every_index_once_with_the_rest_in_the_last(batch_size: int) -> None:
    data = dataset(0, "structured_heldout")
    order = epoch_order(data.size("validation"), seed=0, epoch=0)
    batches = list(in_batches(data, "validation", order, batch_size))
    full, rest = divmod(500, batch_size)
    assert [len(batch) for batch in batches] == [batch_size] * full + [rest] * (rest > 0)
    assert torch.equal(torch.cat([batch.tokens for batch in batches]), whole_split(data, "validation").tokens[order])
