"""A read gives the last bit that was written, splits share nothing, and floors are exact."""

import re
from collections import defaultdict
from functools import cache

import pytest
import torch

from pe_lab.data.base import IGNORE
from pe_lab.data.flip_flop import FlipFlop, blind_one


@cache
def default() -> FlipFlop:
    return FlipFlop(0)


def test_the_worked_example_asks_for_the_bits_that_are_read() -> None:
    letters = {"w": 0, "r": 1, "i": 2, "0": 3, "1": 4}
    words = "w 1 i 0 r 1 i 0 w 0 i 1 i 1 r 0"
    tokens = torch.tensor([[letters[letter] for letter in words.replace(" ", "")]])
    batch = FlipFlop(0, length=16, test=1).write(tokens)
    asked = {slot: target for slot, target in enumerate(batch.targets[0].tolist()) if target != IGNORE}
    assert asked == {4: letters["1"], 14: letters["0"]}
    assert torch.equal(batch.headline, batch.targets != IGNORE)


@pytest.mark.parametrize(("factor", "length"), [(1, 64), (2, 128), (1.5, 96)])
def test_every_read_gives_the_bit_written_last(factor: float, length: int) -> None:
    data = default() if factor == 1 else default().longer(factor)
    batch = data.whole("test")
    assert batch.tokens.shape == (1000, length)
    assert data.task.length == length
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        pairs = list(zip(row[::2], row[1::2], strict=True))
        assert pairs[0][0] == 0
        assert pairs[-1][0] == 1
        written = None
        for index, (kind, bit) in enumerate(pairs):
            assert kind in (0, 1, 2)
            assert bit in (3, 4)
            written = bit if kind == 0 else written
            assert targets[2 * index] == (written if kind == 1 else IGNORE)
            assert kind != 1 or bit == written
            assert targets[2 * index + 1] == IGNORE


def test_instructions_have_their_probabilities() -> None:
    """10,000 sequences of 30 free instructions: 300,000 draws, four standard deviations."""
    for ignore in (0.8, 0.1):
        tokens = FlipFlop(3, ignore=ignore).whole("train").tokens
        kinds, bits = tokens[:, 2:-2:2], tokens[:, 3:-2:2]
        for kind, p in ((0, (1 - ignore) / 2), (1, (1 - ignore) / 2), (2, ignore)):
            assert (kinds == kind).double().mean().item() == pytest.approx(p, abs=4 * (p * (1 - p) / 300_000) ** 0.5)
        assert (bits[kinds != 1] == 4).double().mean().item() == pytest.approx(0.5, abs=0.006)


# -- floors ------------------------------------------------------------------------------------------------------------


def posterior(instructions: int, ignore: float) -> dict[tuple[str, ...], list[float]]:
    """Return the probability of each bit to be read with each multiset of tokens up to an r, by writing out all."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    usual = {"w": (1 - ignore) / 2, "r": (1 - ignore) / 2, "i": ignore}

    def go(prefix: tuple[str, ...], p: float, last: int, index: int) -> None:
        kinds = {"w": 1.0} if index == 0 else {"r": 1.0} if index == instructions - 1 else usual
        for kind, chance in kinds.items():
            if kind == "r":
                found[tuple(sorted((*prefix, "r")))][last] += p * chance
            if index < instructions - 1:
                for bit in (last,) if kind == "r" else (0, 1):
                    share = 1.0 if kind == "r" else 0.5
                    go((*prefix, kind, str(bit)), p * chance * share, bit if kind == "w" else last, index + 1)

    go((), 1.0, -1, 0)
    return found


@pytest.mark.parametrize("ignore", [0.0, 0.3, 0.8])
def test_what_unordered_tokens_say_is_that_of_all_sequences(ignore: float) -> None:
    """Six instructions. How often instructions are ignored cancels: it is the same for all orders."""
    for bag, (zero, one) in posterior(6, ignore).items():
        found = blind_one(bag.count("w"), bag.count("r"), bag.count("i"), bag.count("1"))
        if zero + one:
            assert found == pytest.approx(one / (zero + one), abs=1e-12), bag


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"length": 13}, "length must be even and at least 12, so that sequences can be split, got 13"),
        ({"length": 10}, "length must be even and at least 12, so that sequences can be split, got 10"),
        ({"ignore": 1.0}, "ignore must be in [0, 1), got 1.0"),
        ({"ignore": -0.1}, "ignore must be in [0, 1), got -0.1"),
        ({"test": 0}, "test must be an integer of at least 1, got 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        FlipFlop(0, **options)


def test_more_sequences_than_there_are_and_shorter_ones_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^data.test must be at most \d+, the different sequences found for data=fl"):
        FlipFlop(0, length=12, test=600).whole("test")
    with pytest.raises(ValueError, match="^evaluate.lengths must lead to sequences longer than data.length, 64, for"):
        default().longer(1.01)


def test_the_published_tests_have_a_sparse_and_a_dense_part() -> None:
    """The first part is the usual test, and so are all other splits; parts ignore as often as they are named for."""
    sizes = {"length": 64, "train": 100, "validation": 100, "test": 100}
    usual, data = FlipFlop(0, **sizes), FlipFlop(0, **sizes, published_tests=True)
    batch = data.whole("test")
    assert torch.equal(batch.tokens[:100], usual.whole("test").tokens)
    for split in ("train", "validation"):
        assert torch.equal(data.with_epoch(2).whole(split).tokens, usual.with_epoch(2).whole(split).tokens)
    assert data.size("test") == len(batch) == 300
    ignored = (batch.tokens[:, 2:-2:2] == 2).double().mean(1).view(3, 100).mean(1)
    assert ignored.tolist() == pytest.approx([0.8, 0.98, 0.1], abs=0.03)
    asked = batch.targets != IGNORE
    assert all(asked[part * 100 : part * 100 + 100].any(1).all() for part in range(3))
    assert not (batch.headline[100:] & asked[100:]).any()
    assert batch.headline[:100][asked[:100]].all()
    assert data.longer(2).size("test") == 300


def test_errors_of_the_parts_are_shares_of_their_reads() -> None:
    data = FlipFlop(0, length=64, train=100, validation=100, test=100, published_tests=True)
    batch = data.whole("test")
    losses = torch.zeros(batch.targets.shape)
    assert data.metrics(losses, batch) == {"error": 0, "error_sparse": 0, "error_dense": 0}
    losses[150:200] = 0.7  # above ln 2: half of the sparse sequences
    asked = batch.targets != IGNORE
    expected = asked[150:200].sum().item() / asked[100:200].sum().item()
    assert data.metrics(losses, batch) == {"error": 0, "error_sparse": pytest.approx(expected), "error_dense": 0}
    assert set(data.metrics(losses[:100], batch[torch.arange(100)])) == {"error"}
    assert FlipFlop(0, length=64, train=100, validation=100, test=100).metrics(losses, batch) == {}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_floors_of_the_parts_are_those_of_their_own_reads(split: str) -> None:
    data = FlipFlop(0, length=64, train=100, validation=100, test=100, published_tests=True)
    usual = FlipFlop(0, length=64, train=100, validation=100, test=100).floors(split)
    for level, metrics in data.floors(split).items():
        assert metrics["loss"] == usual[level]["loss"]
        assert metrics["loss_read"] == usual[level]["loss_read"]
    assert ("loss_read_sparse" in data.floors(split)["bayes"]) == (split == "test")
