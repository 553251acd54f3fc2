"""One symbol is ahead, it is the answer, and floors are those of Bayes' rule over all prompts."""

import re
from collections import Counter
from itertools import product

import pytest
import torch

from helpers.prompts import parsed
from pe_lab.data.majority import BinaryMajority, InterleavedMajority, Majority, count_pluralities

SPLITS = ("train", "validation", "test")
SMALL = {"train": 300, "validation": 100, "test": 200}


def majority_of(prompt: tuple[int, ...] | list[int]) -> int | None:
    """Return the most frequent symbol; None if several are."""
    (first, most), *others = Counter(prompt).most_common(2)
    return None if others and others[0][1] == most else first


@pytest.mark.parametrize("kind", [Majority, BinaryMajority])
@pytest.mark.parametrize("split", SPLITS)
def test_the_answer_is_the_symbol_that_occurs_most_often(kind: type[Majority], split: str) -> None:
    data = kind(0, **SMALL)
    for prompt, answer in parsed(data, split):
        assert answer == [majority_of(prompt)]
        assert 1 <= len(prompt) <= 16


@pytest.mark.parametrize(("symbols", "n"), [(2, 5), (2, 6), (3, 1), (3, 4), (3, 5), (4, 5), (5, 4)])
def test_prompts_with_a_majority_are_counted(symbols: int, n: int) -> None:
    found = sum(majority_of(prompt) is not None for prompt in product(range(symbols), repeat=n))
    assert count_pluralities(symbols, n) == found


def test_prompts_with_a_majority_are_equally_likely() -> None:
    """Of 3 symbols and 4 places, 45 of 81 prompts: 4,500 draws, four and a half standard deviations."""
    data = Majority(0, symbols=3, shortest=4, longest=8, **SMALL)
    data.n = range(4, 5)
    drawn = Counter(map(tuple, data.draw(torch.full((4500,), 4), torch.Generator().manual_seed(5)).tolist()))
    assert set(drawn) == {p for p in product(range(3), repeat=4) if majority_of(p) is not None}
    assert max(abs(count - 4500 / len(drawn)) for count in drawn.values()) < 4.5 * (4500 / len(drawn)) ** 0.5


@pytest.mark.parametrize("n", [5, 6])
def test_the_number_of_ones_is_uniform_without_the_tie(n: int) -> None:
    data = BinaryMajority(0, shortest=n, longest=20, **SMALL)
    data.n = range(n, n + 1)
    drawn = data.draw(torch.full((6000,), n), torch.Generator().manual_seed(5))
    count = drawn.sum(1).bincount(minlength=n + 1)
    kept = [ones for ones in range(n + 1) if 2 * ones != n]
    assert count.sum() == count[kept].sum() == 6000
    assert (count[kept] - 6000 / len(kept)).abs().max() < 4.5 * (6000 / len(kept)) ** 0.5
    assert (drawn[drawn.sum(1) == 1].sum(0) > 0).all()  # in every order


@pytest.mark.parametrize("kind", [Majority, BinaryMajority])
def test_the_position_blind_floor_is_the_posterior_of_the_multiset(kind: type[Majority]) -> None:
    """Enumerate all prompts of up to five symbols: which token follows a multiset, weighted as they are drawn."""
    options = {"symbols": 3} if kind is Majority else {}
    data = kind(0, longest=12, **SMALL, **options)
    sizes, symbols = range(1, 6), data.symbols
    share = torch.zeros(6, dtype=torch.float64)
    share[1:] = 0.2
    follows: dict[tuple[int, ...], list[float]] = {}
    for n in sizes:
        prompts = [p for p in product(range(symbols), repeat=n) if majority_of(p) is not None]
        ones = Counter(sum(p) for p in prompts)
        for prompt in prompts:
            weight = 1 / len(prompts) if kind is Majority else 1 / len(ones) / ones[sum(prompt)]
            answer = majority_of(prompt)
            for written, token in ((prompt, answer), ((*prompt, answer), symbols)):
                counts = tuple(Counter(written)[s] for s in range(symbols))
                follows.setdefault(counts, [0.0] * (symbols + 1))[token] += weight
    counts = torch.tensor(list(follows))
    expected = torch.tensor(list(follows.values()), dtype=torch.float64)
    found = data.blind(counts, share)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("factor", "sizes"), [(2, range(11, 21)), (3, range(21, 31)), (1.5, range(11, 16))])
def test_bands_have_all_sizes_up_to_the_longest(factor: float, sizes: range) -> None:
    data = Majority(0, longest=10, **SMALL, bands=True)
    longer = data.longer(factor)
    found = parsed(longer)
    assert {len(prompt) for prompt, _ in found} == set(sizes)
    assert {len(prompt) for prompt, _ in parsed(data)} <= set(range(1, 11))
    assert longer.size("train") == 0
    assert longer.floors("test")["bayes"]["loss"] == 0


def test_without_bands_longer_problems_have_one_size() -> None:
    longer = Majority(0, longest=10, **SMALL).longer(2)
    assert {len(prompt) for prompt, _ in parsed(longer)} == {20}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Majority, {"symbols": 1}, "symbols must be an integer of at least 2, got 1"),
        (Majority, {"shortest": 17}, "shortest must be at most longest, 16, got 17"),
        (Majority, {"symbols": 2, "longest": 6}, "longest must leave at least 500 different problems to split, got 6"),
        (BinaryMajority, {"longest": 8}, "longest must leave at least 500 different problems to split, got 8"),
        (InterleavedMajority, {"streams": 1}, "streams must be an integer of at least 2, got 1"),
        (InterleavedMajority, {"streams": 9}, "streams must be at most 8, got 9"),
        (BinaryMajority, {"symbols": 2}, "got an unexpected keyword argument 'symbols'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(kind: type, options: dict[str, int], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        kind(0, **options)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("streams", [2, 3])
def test_answers_are_the_majorities_of_the_streams_in_turn(streams: int, split: str) -> None:
    data = InterleavedMajority(0, streams=streams, **SMALL)
    for prompt, answer in parsed(data, split):
        assert answer == [majority_of(prompt[first::streams]) for first in range(streams)]
        assert len(prompt) % streams == 0


def test_streams_are_drawn_independently_and_without_ties() -> None:
    data = InterleavedMajority(0, shortest=4, longest=8, **SMALL)
    data.n = range(4, 5)
    ones = data.draw(torch.full((6400,), 4), torch.Generator().manual_seed(5)).view(-1, 4, 3).sum(1)
    drawn = Counter(map(tuple, ones.tolist()))
    assert set(drawn) == set(product((0, 1, 3, 4), repeat=3))
    assert max(abs(count - 100) for count in drawn.values()) < 4.5 * 10


def test_the_blind_level_of_streams_is_that_of_all_their_prompts() -> None:
    """P(next token | how many ones and zeros) by a sum over every prompt of every size, and every prefix of answers."""
    data = InterleavedMajority(0, streams=2, shortest=1, longest=6, train=50, validation=10, test=10)
    share = torch.tensor([0.0, 0.3, 0.0, 0.4, 0.3, 0.0, 0.0], dtype=torch.float64)
    weights: dict[tuple[int, int], list[float]] = {}
    for n in (1, 3, 4):
        bits = [each for each in product((0, 1), repeat=n) if majority_of(each) is not None]
        kinds = n + n % 2  # numbers of ones that are equally likely
        chance = {each: 1 / kinds / sum(sum(other) == sum(each) for other in bits) for each in bits}
        for first, second in product(bits, repeat=2):
            answers = [majority_of(first), majority_of(second), 2]
            for told in range(3):
                tokens = [*first, *second, *answers[:told]]
                sums = weights.setdefault((tokens.count(0), tokens.count(1)), [0.0, 0.0, 0.0])
                sums[answers[told]] += float(share[n]) * chance[first] * chance[second]
    found = data.blind(torch.tensor(list(weights)), share)
    expected = torch.tensor(list(weights.values()), dtype=torch.float64)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=0, atol=1e-12)
