"""Sums and parities are right in either order of digits."""

import math
from itertools import product

import pytest
import torch

from pe_lab.data.arithmetic import PLUS_SYMBOL, Addition, Parity

START, SEP, END = 11, 12, 13
FEW = {"validation": 9, "test": 500}  # of numbers of 2 digits


def test_the_worked_example_is_58_plus_67() -> None:
    little, big = Addition(0, longest=2, **FEW), Addition(0, longest=2, order="big", **FEW)
    n = torch.tensor([2])
    assert little.write(n, torch.tensor([[8, 5, PLUS_SYMBOL, 7, 6]])).tokens.tolist() == [
        [START, 8, 5, PLUS_SYMBOL, 7, 6, SEP, 5, 2, 1, END]
    ]
    assert big.write(n, torch.tensor([[5, 8, PLUS_SYMBOL, 6, 7]])).tokens.tolist() == [
        [START, 5, 8, PLUS_SYMBOL, 6, 7, SEP, 1, 2, 5, END]
    ]


def test_the_marks_of_the_worked_example() -> None:
    """A digit of the ones has 1, of the tens 2, of the hundreds 3; the signs 0; what is outside, and padding, -1."""
    n = torch.tensor([2])
    for order, prompt, a, total in (
        ("little", [8, 5, PLUS_SYMBOL, 7, 6, 0, 0], [1, 2], [1, 2, 3]),
        ("big", [5, 8, PLUS_SYMBOL, 6, 7, 0, 0], [2, 1], [3, 2, 1]),
    ):
        batch = Addition(0, longest=3, order=order).write(n, torch.tensor([prompt]))
        assert batch.layout.marks.tolist() == [[-1, *a, 0, *a, 0, *total, -1, -1, -1, -1]]
        assert batch.tokens[0, 10].item() == END


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_mark_is_the_significance_of_a_digit(order: str) -> None:
    """Of every sequence, also of longer ones: by reading its tokens one by one."""
    data = Addition(0, order=order, longest=5, test=300)
    for given, most in ((data, 6), (data.longer(3), 16)):
        batch = given.batch("test", torch.arange(299, -1, -1))
        assert batch.layout.largest_mark == given.task.marks == most
        assert given.task.example(9).marks.tolist() == [[most] * 9]
        for row, marks in zip(batch.tokens.tolist(), batch.layout.marks.tolist(), strict=True):
            expected, number = [], []
            for token in [*row, START]:
                if token < PLUS_SYMBOL:
                    number.append(token)
                    continue
                places = range(1, len(number) + 1)
                expected += [*places] if order == "little" else [*places][::-1]
                expected.append(0 if token in (PLUS_SYMBOL, SEP) else -1)
                number = []
            assert marks == expected[:-1]


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("factor", [1, 7])
def test_sums_are_right_in_either_order(order: str, factor: int) -> None:
    """Including numbers of 35 digits, which no machine integer holds."""
    data = Addition(0, order=order, longest=5, test=300)
    data = data if factor == 1 else data.longer(factor)
    turn = -1 if order == "little" else 1
    carried = 0
    for row in data.batch("test", torch.arange(300)).tokens.tolist():
        plus, sep, end = row.index(PLUS_SYMBOL), row.index(SEP), row.index(END)
        parts = row[1:plus], row[plus + 1 : sep], row[sep + 1 : end]
        a, b, total = (int("".join(map(str, part[::turn]))) for part in parts)
        assert a + b == total
        assert len(parts[0]) == len(parts[1]) == len(parts[2]) - 1
        carried += total >= 10 ** len(parts[0])
    assert 100 < carried < 200


def test_numbers_are_uniform_with_leading_zeros() -> None:
    data = Addition(0, test=4000)
    tokens = data.batch("test", torch.arange(4000)).tokens
    three = tokens[(tokens == SEP).long().argmax(1) == 8]
    digits = three[:, [1, 2, 3, 5, 6, 7]]
    for column in digits.T:
        share = len(column) / 10
        assert (column.bincount(minlength=10) - share).abs().max() < 4.5 * math.sqrt(share)


def test_a_carry_is_as_rare_as_the_prior_says() -> None:
    data = Addition(0, shortest=2, longest=2, **FEW)
    sums = [a + b for a in range(100) for b in range(100)]
    digits = [f"{total:03d}" for total in sums]
    expected = [sum(digit.count(str(value)) for digit in digits) / 10**4 for value in range(10)]
    assert data.marginal(torch.tensor([0.0, 0.0, 1.0])).tolist() == pytest.approx([*expected, 0])


def test_the_order_of_digits_changes_the_position_blind_floor() -> None:
    """With the least significant digit first, the prefix determines more of the next digit."""
    floors = {order: Addition(0, order=order, longest=2, **FEW).floors("test") for order in ("little", "big")}
    assert floors["little"]["position_blind"]["loss"] != floors["big"]["position_blind"]["loss"]
    assert floors["little"]["prior"] != floors["big"]["position_blind"]


def test_the_worked_example_of_parity() -> None:
    data = Parity(0, longest=9, validation=9, test=9)
    batch = data.write(torch.tensor([5]), torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1, 1]]))
    assert batch.tokens.tolist() == [[2, 1, 0, 1, 1, 0, 3, 1, 4, 5, 5, 5, 5]]


def test_uniform_numbers_of_ones_have_every_order() -> None:
    data = Parity(0, ones="uniform", longest=12, validation=20, test=20)
    drawn = data.draw(torch.full((6000,), 5), torch.Generator().manual_seed(5))
    assert not drawn[:, 5:].any()
    count = drawn.sum(1).bincount(minlength=6)
    assert (count - 1000).abs().max() < 4.5 * 1000**0.5
    assert (drawn[drawn.sum(1) == 1].sum(0)[:5] > 0).all()


def test_levels_of_uniform_numbers_of_ones_are_those_of_all_prompts() -> None:
    share = torch.tensor([0.0, 0.0, 0.2, 0.5, 0.3], dtype=torch.float64)
    weights: dict[tuple[int, int], list[float]] = {}
    answers = [0.0, 0.0]
    for n in (2, 3, 4):
        for bits in product((0, 1), repeat=n):
            chance = float(share[n]) / (n + 1) / math.comb(n, sum(bits))
            parity = sum(bits) % 2
            answers[parity] += chance
            for tokens, token in ((bits, parity), ((*bits, parity), 2)):
                weights.setdefault((tokens.count(0), tokens.count(1)), [0.0, 0.0, 0.0])[token] += chance
    data = Parity(0, ones="uniform", longest=12, validation=20, test=20)
    expected = torch.tensor(list(weights.values()), dtype=torch.float64)
    found = data.blind(torch.tensor(list(weights)), share)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=0, atol=1e-12)
    torch.testing.assert_close(data.marginal(share), torch.tensor(answers, dtype=torch.float64), rtol=0, atol=1e-12)


def test_parity_in_bands_has_all_sizes() -> None:
    longer = Parity(0, longest=12, validation=20, test=200, bands=True).longer(2)
    assert set(longer.problems("test")[0].tolist()) == set(range(13, 25))


def test_parity_is_blind_to_positions_only_in_when_it_ends() -> None:
    """An odd number of ones is always a prompt; an even one is an answered prompt twice as often as one to answer."""
    share = torch.tensor([0.0] + [1 / 16] * 16, dtype=torch.float64)
    p = Parity(0).blind(torch.tensor([[4, 2], [3, 3], [0, 1], [17, 0], [16, 0]]), share)
    torch.testing.assert_close(
        p,
        torch.tensor([[1 / 3, 0, 2 / 3], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 0, 2 / 3]], dtype=torch.float64),
        rtol=1e-15,
        atol=0,
    )


def test_a_size_that_is_rarer_is_less_likely_to_be_answered_already() -> None:
    """With half as many problems of 5 bits as of 6, both origins of 6 bits with even parity are equally likely."""
    p = Parity(0).blind(torch.tensor([[4, 2]]), torch.tensor([0, 0, 0, 0, 0, 1 / 3, 2 / 3], dtype=torch.float64))
    torch.testing.assert_close(p, torch.tensor([[0.5, 0, 0.5]], dtype=torch.float64), rtol=1e-15, atol=0)
