"""No symbol comes twice, the answer is the prompt, and floors are those of the symbols that are left."""

import math
import re
from collections import Counter
from functools import cache
from itertools import combinations

import pytest
import torch

from helpers.prompts import parsed
from pe_lab.data.copying import UniqueCopy, UniqueSort

SPLITS = ("train", "validation", "test")


@cache
def default() -> UniqueCopy:
    return UniqueCopy(0)


@pytest.mark.parametrize("split", SPLITS)
def test_prompts_have_different_symbols_and_are_copied(split: str) -> None:
    sizes = Counter()
    for prompt, answer in parsed(default(), split):
        assert prompt == answer
        assert len(set(prompt)) == len(prompt)
        assert set(prompt) <= set(range(64))
        sizes[len(prompt)] += 1
    assert set(sizes) <= set(range(1, 17))
    assert len(sizes) >= 15  # a split may have few of the 64 prompts of one symbol
    assert default().task.length == 35
    assert default().task.vocabulary == 68


def test_all_orders_of_few_symbols_are_equally_likely() -> None:
    """Of 4 symbols, 24 prompts of three: 3,000 draws, four and a half standard deviations."""
    data = UniqueCopy(0, symbols=40)
    data.symbols, data.n = 4, range(3, 4)
    drawn = data.draw(torch.full((3000,), 3), torch.Generator().manual_seed(5))
    found = Counter(map(tuple, drawn.tolist()))
    assert len(found) == 24
    assert max(abs(count - 125) for count in found.values()) < 4.5 * math.sqrt(125)


@pytest.mark.parametrize(("factor", "n"), [(2, 32), (4, 64), (1.25, 20)])
def test_longer_problems_have_one_size(factor: float, n: int) -> None:
    longer = default().longer(factor)
    found = parsed(longer)
    assert len(found) == 1000
    assert longer.task.length == 2 * n + 3
    for prompt, answer in found:
        assert prompt == answer
        assert len(prompt) == len(set(prompt)) == n


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_position_blind_loss_is_the_mean_of_the_logarithms_of_the_number_left(factor: int) -> None:
    data = default() if factor == 1 else default().longer(factor)
    floors = data.floors("test")
    sizes = [len(prompt) for prompt, _ in parsed(data)]
    asked = sum(sizes) + len(sizes)
    assert floors["position_blind"]["loss"] == pytest.approx(sum(math.lgamma(n + 1) for n in sizes) / asked, rel=1e-12)
    right = sum(1 + sum(1 / left for left in range(1, n + 1)) for n in sizes) / asked
    assert floors["position_blind"]["accuracy"] == pytest.approx(right, rel=1e-12)
    assert floors["position_blind"]["loss_end"] == 0
    assert floors["bayes"]["loss"] == 0
    assert floors["bayes"]["exact_match"] == 1


def test_the_published_protocol_can_be_made() -> None:
    """Lengths up to 50 of 150 symbols; tests reach 100 and 150, and no further."""
    data = UniqueCopy(0, symbols=150, longest=50, train=50, validation=50, test=50)
    assert data.whole("test").tokens.shape == (50, 103)
    assert [data.longer(factor).n[0] for factor in (2, 3)] == [100, 150]
    message = "evaluate.lengths must lead to a size of at most data.symbols, 150, for data=unique_copy, got 3.02, which"
    with pytest.raises(ValueError, match=f"^{re.escape(message)} leads to 151$"):
        data.longer(3.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"longest": 65}, "longest must be at most symbols, 64, since no symbol comes twice, got 65"),
        ({"symbols": 4097}, "symbols must be at most 4096, got 4097"),
        ({"symbols": 1}, "symbols must be an integer of at least 2, got 1"),
        ({"shortest": 17}, "shortest must be at most longest, 16, got 17"),
        ({"test": 0}, "test must be an integer of at least 1, got 0"),
        ({"symbols": 8, "longest": 3}, "longest must leave at least 500 different problems to split, got 3"),
        (
            {"symbols": 10, "longest": 3, "validation": 42},
            "validation must be at most 41, a twentieth of the 820 problems of unique_copy, so that none comes twice, "
            "got 42",
        ),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        UniqueCopy(0, **options)


def test_unique_sort_writes_different_symbols_in_ascending_order() -> None:
    data = UniqueSort(0, train=300, validation=100, test=300)
    for split in SPLITS:
        for prompt, answer in parsed(data, split):
            assert answer == sorted(prompt)
            assert len(set(prompt)) == len(prompt)


def test_unique_sort_keeps_orders_of_the_same_symbols_in_one_split() -> None:
    data = UniqueSort(0, symbols=20, longest=4, train=3000, validation=100, test=100)
    sets = [{frozenset(prompt) for prompt, _ in parsed(data, split)} for split in SPLITS]
    assert not any(one & other for one, other in combinations(sets, 2))


@pytest.mark.parametrize("factor", [1, 2])
def test_unique_sort_needs_no_order(factor: int) -> None:
    data = UniqueSort(0, train=300, validation=100, test=300)
    floors = (data if factor == 1 else data.longer(factor)).floors("test")
    assert floors["position_blind"]["loss"] == 0
    assert floors["position_blind"]["accuracy"] == 1


@pytest.mark.parametrize("kind", [UniqueCopy, UniqueSort])
def test_bands_have_all_sizes_up_to_the_longest(kind: type[UniqueCopy]) -> None:
    longer = kind(0, symbols=30, longest=10, train=300, validation=100, test=300, bands=True).longer(3)
    assert {len(prompt) for prompt, _ in parsed(longer)} == set(range(21, 31))
