"""Blocks alternate and the last one is marked, switches are equally likely, and floors are those of a slow count."""

import math
import re
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache
from itertools import combinations, groupby

import pytest
import torch

from pe_lab.data.alternation import Alternation
from pe_lab.data.base import IGNORE
from pe_lab.encodings.layout import PADDING

SPLITS = ("train", "validation", "test")


@cache
def default() -> Alternation:
    return Alternation(0)


def words(data: Alternation, split: str = "test") -> list[str]:
    """Return the sequences in letters; S is START, P is padding."""
    return ["".join("abSP"[token] for token in row) for row in data.whole(split).tokens.tolist()]


def test_the_worked_example_is_marked() -> None:
    data = Alternation(0, blocks=3, shortest=9, longest=25, validation=9, test=9)
    tokens = torch.full((1, 26), 3)
    tokens[0, :10] = torch.tensor([2, 0, 0, 0, 1, 1, 0, 0, 0, 0])
    batch = data.write(tokens)
    assert batch.targets[0].tolist() == [IGNORE, 0, 0, 0, 0, 0, 1, 1, 1, 1] + [IGNORE] * 16
    assert batch.role[0, :10].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(("blocks", "factor"), [(2, 1), (3, 1), (8, 1), (8, 2), (5, 1.5)])
def test_blocks_alternate_and_the_last_is_marked(blocks: int, factor: float) -> None:
    data = Alternation(0, blocks=blocks, shortest=32, longest=64, train=900, validation=9, test=9)
    if factor > 1:
        data = data.longer(factor)
    lengths = set()
    for split in SPLITS:
        batch = data.whole(split)
        lengths |= set((batch.layout.segment != PADDING).sum(1).tolist())
        for word, targets in zip(words(data, split), batch.targets.tolist(), strict=True):
            assert re.fullmatch("S[ab]+P*", word)
            parts = ["".join(part) for _, part in groupby(word.strip("SP"))]
            assert len(parts) == blocks
            assert parts[0][0] == "a"
            asked = [target for target in targets if target != IGNORE]
            assert asked == [0] * sum(map(len, parts[:-1])) + [1] * len(parts[-1])
            assert targets[0] == IGNORE
            assert targets[1] != IGNORE
    assert lengths <= (set(range(33, 66)) if factor == 1 else {round(factor * 64) + 1})
    assert factor > 1 or len(lengths) == 33


def test_all_places_of_the_switches_are_equally_likely() -> None:
    """15 words of seven letters in three blocks, and seven lengths: 16 draws of 4,096."""
    data = Alternation(0, blocks=3, shortest=7, longest=30, validation=9, test=9)
    source = torch.Generator().manual_seed(2)
    drawn = torch.cat([data.draw(source) for _ in range(16)])
    length = (drawn < 2).sum(1)
    expected = 16 * 4096 / 24
    assert (length.bincount()[7:] - expected).abs().max() < 4.5 * math.sqrt(expected)
    found = Counter(map(tuple, drawn[length == 7].tolist()))
    assert len(found) == 15
    each = found.total() / 15
    assert max(abs(count - each) for count in found.values()) < 4.5 * math.sqrt(each)


@pytest.mark.parametrize("blocks", [2, 3, 4, 5])
def test_what_the_numbers_of_a_and_b_say_is_that_of_all_sequences(blocks: int) -> None:
    """All words of 6, 7 and 9 letters; lengths with shares 1/2, 1/3 and 1/6."""
    data = Alternation(0, blocks=blocks, shortest=32, longest=64, validation=9, test=9)
    share = {6: Fraction(1, 2), 7: Fraction(1, 3), 9: Fraction(1, 6)}
    found: dict[tuple[int, int], list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    for n, of_length in share.items():
        for switches in combinations(range(1, n), blocks - 1):
            letters = [sum(place <= slot for place in switches) % 2 for slot in range(n)]
            for slot in range(n):
                ones = sum(letters[: slot + 1])
                weight = of_length / math.comb(n - 1, blocks - 1)
                found[slot + 1 - ones, ones][slot >= switches[-1]] += weight
    shares = torch.tensor([float(share.get(n, 0)) for n in range(10)], dtype=torch.float64)
    expected = [float(last / (before + last)) for before, last in found.values()]
    assert data.blind_last(torch.tensor(list(found)), shares).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("factor", [1, 2])
def test_floors_are_means_over_all_tokens(factor: int) -> None:
    data = Alternation(0, blocks=3, shortest=20, longest=40, validation=9, test=100)
    data = data if factor == 1 else data.longer(2)
    sequences = [word.strip("SP") for word in words(data)]
    shares = torch.tensor([len(word) for word in sequences]).bincount().double() / 100
    losses, hits, last = [], [], 0
    for word in sequences:
        start = [match.start() for match in re.finditer("(?<=a)b|(?<=b)a", word)][-1]
        counts = [[word[: slot + 1].count(letter) for letter in "ab"] for slot in range(len(word))]
        for slot, p in enumerate(data.blind_last(torch.tensor(counts), shares).tolist()):
            right = p if slot >= start else 1 - p
            losses.append(-math.log(right))
            hits.append(0.5 if abs(right - 0.5) < 1e-12 else float(right > 0.5))
            last += slot >= start
    floors = data.floors("test")
    assert floors["position_blind"]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert floors["position_blind"]["accuracy"] == pytest.approx(sum(hits) / len(hits), rel=1e-12)
    marked = last / len(losses)
    assert floors["prior"]["loss"] == pytest.approx(-marked * math.log(1 / 3) - (1 - marked) * math.log(2 / 3))
    assert floors["bayes"]["loss"] == 0
    assert floors["bayes"]["exact_match"] == 1


def test_a_token_in_k_is_of_the_last_block() -> None:
    """What "prior" assumes, over all words of 8 letters in 3 blocks."""
    ends = [switches[-1] for switches in combinations(range(1, 8), 2)]
    assert Fraction(sum(8 - end for end in ends), 8 * len(ends)) == Fraction(1, 3)


def test_the_published_protocol_can_be_made() -> None:
    for blocks in (3, 12):
        data = Alternation(0, blocks=blocks, shortest=201, longest=250, train=20, validation=20, test=20)
        assert data.whole("test").tokens.shape == (20, 251)
        longer = data.longer(1.6)
        assert longer.task.length == 401
        level = longer.floors("test")["position_blind"]
        assert 0 < level["loss"] < 1
        assert level["accuracy"] > 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 1}, "blocks must be an integer of at least 2, got 1"),
        ({"blocks": 65, "shortest": 99, "longest": 99}, "blocks must be at most 64, got 65"),
        ({"shortest": 50, "longest": 49}, "shortest must be at most longest, 49, got 50"),
        ({"shortest": 7, "blocks": 8}, "shortest must be at least blocks, 8, got 7"),
        (
            {"blocks": 2, "shortest": 101, "longest": 150},
            "validation must be at most 311, a twentieth of the 6,225 sequences of alternation, so that none comes "
            "twice, got 1000",
        ),
        (
            {"blocks": 3, "shortest": 5, "longest": 9},
            "longest must leave at least 500 different sequences to split, got 9",
        ),
        ({"test": 0}, "test must be an integer of at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Alternation(0, **options)


@pytest.mark.parametrize("factor", [1, 1.001])
def test_a_factor_that_leads_to_no_longer_task_is_refused(factor: float) -> None:
    with pytest.raises(
        ValueError, match=r"^evaluate.lengths must lead to sequences longer than data.longest, \d\d, for"
    ):
        default().longer(factor)
