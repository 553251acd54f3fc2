"""The answer has the symbols of the prompt without its blanks, and floors know n where blanks tell it."""

import math
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import product

import pytest
import torch

from helpers.prompts import parsed
from pe_lab.data.copying import SelectiveCopy

SPLITS = ("train", "validation", "test")


@cache
def default() -> SelectiveCopy:
    return SelectiveCopy(0)


def test_the_worked_example_is_written() -> None:
    batch = default().write(torch.tensor([3]), torch.tensor([[3, 10, 10, 1, 4, 10, 7, 7]]))
    assert batch.tokens[0, :13].tolist() == [11, 3, 10, 10, 1, 4, 10, 12, 3, 1, 4, 13, 14]
    assert batch.targets[0, 7:11].tolist() == [3, 1, 4, 13]


@pytest.mark.parametrize(("blanks", "extra"), [(1, 0), (2, 1), (0, 3)])
@pytest.mark.parametrize("factor", [1, 2])
def test_answers_are_the_prompts_without_blanks(factor: int, blanks: int, extra: int) -> None:
    data = SelectiveCopy(0, blanks=blanks, extra=extra, longest=9, train=300, validation=50, test=300)
    if factor > 1:
        data = data.longer(factor)
    for split in SPLITS[-1 if factor > 1 else 0 :]:
        sizes = set()
        for prompt, answer in parsed(data, split):
            n = len(answer)
            assert answer == [token for token in prompt if token != 10]
            assert prompt.count(10) == blanks * n + extra
            assert set(answer) <= set(range(10))
            sizes.add(n)
        assert sizes <= ({18} if factor > 1 else set(range(1, 10)))
    assert data.task.length == 3 + 9 * factor * (2 + blanks) + extra


def test_every_prompt_of_a_size_is_equally_likely() -> None:
    """8 symbols in 6 places: 2 of 2 symbols among 2 blanks, 24 prompts; 4,800 draws, four and a half deviations."""
    data = SelectiveCopy(0, symbols=2, shortest=1, longest=12, validation=50, test=50)
    drawn = data.draw(torch.full((4800,), 2), torch.Generator().manual_seed(5))
    found = Counter(tuple(row[:4]) for row in drawn.tolist())
    assert len(found) == data.count_prompts(2) == 24
    assert max(abs(count - 200) for count in found.values()) < 4.5 * math.sqrt(200)
    assert (drawn[:, 4:] == 2).all()


@pytest.mark.parametrize(("blanks", "extra"), [(1, 0), (2, 1), (0, 2)])
def test_what_follows_each_multiset_is_that_of_a_slow_enumeration(blanks: int, extra: int) -> None:
    """For all multisets of two symbols, n = 1 ... 3; where blanks do not tell n, sizes have equal shares."""
    data = SelectiveCopy(0, symbols=2, longest=12, blanks=blanks, extra=extra, validation=9, test=9)
    data.n = range(1, 4)
    follow: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for n in data.n:
        rows = [row for row in product(range(3), repeat=(1 + blanks) * n + extra) if row.count(2) == blanks * n + extra]
        assert len(rows) == data.count_prompts(n)
        for row in rows:
            answer = [token for token in row if token != 2]
            for slot in range(n + 1):
                bag = tuple(sorted((*row, *answer[:slot])))
                follow[bag][(*answer, 3)[slot]] += 1 / (3 * len(rows))
    counts = torch.tensor([[bag.count(symbol) for symbol in range(3)] for bag in follow])
    expected = [[found[token] / found.total() for token in range(4)] for found in follow.values()]
    share = torch.tensor([0, 1, 1, 1]).double() / 3
    torch.testing.assert_close(
        data.blind(counts, share), torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-13
    )


def test_floors_are_those_of_copying_where_no_blank_tells_n() -> None:
    """With 3 blanks in every prompt they say nothing; with as many as symbols END is certain."""
    told, untold = (SelectiveCopy(0, longest=9, blanks=b, extra=3 - 3 * b, test=300) for b in (1, 0))
    assert told.floors("test")["position_blind"]["loss_end"] == pytest.approx(0, abs=1e-12)
    assert untold.floors("test")["position_blind"]["loss_end"] > 0.1
    for data in (told, untold):
        floors = data.floors("test")
        assert floors["bayes"]["loss"] == 0
        assert floors["bayes"]["exact_match"] == 1
        assert 0 < floors["position_blind"]["loss"] < floors["prior"]["loss"]
        mean = sum(len(answer) for _, answer in parsed(data)) / 300
        assert floors["prior"]["loss_end"] == pytest.approx(math.log(1 + mean), rel=1e-12)
        assert floors["prior"]["loss_answer"] == pytest.approx(math.log((1 + mean) / mean * 10), rel=1e-12)


def test_the_position_blind_floor_is_left_out_where_it_is_too_much_to_count() -> None:
    data = SelectiveCopy(0, shortest=100, longest=128, test=3)
    assert "position_blind" in data.floors("test")
    assert data.longer(1.25).floors("test").keys() == {"bayes", "prior"}


def test_the_published_protocol_can_be_made() -> None:
    """128 symbols, with 128 blanks in training and 256 and 64 in tests."""
    for blanks, extra, total in ((1, 0, 128), (2, 0, 256), (0, 64, 64)):
        options = {"shortest": 128, "longest": 128, "train": 5, "validation": 5, "test": 5}
        data = SelectiveCopy(0, blanks=blanks, extra=extra, **options)
        for prompt, answer in parsed(data):
            assert (len(prompt), len(answer)) == (128 + total, 128)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blanks": 0}, "blanks must be at least 1 where extra is 0, got 0"),
        ({"blanks": -1}, "blanks must be an integer of at least 0, got -1"),
        ({"extra": -1}, "extra must be an integer of at least 0, got -1"),
        ({"symbols": 1}, "symbols must be an integer of at least 2, got 1"),
        ({"shortest": 17}, "shortest must be at most longest, 16, got 17"),
        ({"symbols": 2, "longest": 3}, "longest must leave at least 500 different problems to split, got 3"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SelectiveCopy(0, **options)
