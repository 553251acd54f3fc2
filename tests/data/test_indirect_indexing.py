"""The answer stands at the shift from the source, all pairs are equally likely, and floors follow from that."""

import math
import re
from collections import Counter
from functools import cache
from itertools import product

import pytest
import torch

from pe_lab.data.indexing import IndirectIndexing

WIDE = {"letters": 52, "shortest": 8, "longest": 12, "reach": 4}


@cache
def wide() -> IndirectIndexing:
    return IndirectIndexing(0, **WIDE)


def parsed(data: IndirectIndexing, split: str = "test") -> list[tuple[list[int], int, int, int]]:
    """Return letters, source, shift and answer, parsed from the sequences."""
    start, sep, end, pad = range(data.letters + 2 * data.reach + 1, data.task.vocabulary)
    found = []
    for row in data.whole(split).tokens.tolist():
        at_sep = row.index(sep)
        assert row[0] == start
        assert row[at_sep + 2] == end
        assert set(row[at_sep + 3 :]) <= {pad}
        found.append(
            (row[1 : at_sep - 2], row[at_sep - 2], row[at_sep - 1] - data.letters - data.reach, row[at_sep + 1])
        )
    return found


def test_the_worked_example_is_written() -> None:
    data = IndirectIndexing(0, letters=26, shortest=5, longest=8, reach=3)
    letters = ["abcdefghijklmnopqrstuvwxyz".index(letter) for letter in "qcxbhc"]
    batch = data.write(torch.tensor([5]), torch.tensor([[*letters, 26 + 3 + 2, 0, 0, 0]]))
    assert batch.tokens[0, 8:12].tolist() == [34, 1, 35, 36]
    assert batch.targets[0, 8:10].tolist() == [1, 35]
    assert batch.headline[0].nonzero()[:, 0].tolist() == [8, 9]


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_answer_stands_at_the_shift_from_the_source(factor: int) -> None:
    data = wide() if factor == 1 else wide().longer(factor)
    sizes = set()
    for letters, source, shift, answer in parsed(data):
        assert len(set(letters)) == len(letters)
        assert set(letters) <= set(range(52))
        assert abs(shift) <= 4
        place = letters.index(source) + shift
        assert 0 <= place < len(letters)
        assert answer == letters[place]
        sizes.add(len(letters))
    assert sizes == (set(range(8, 13)) if factor == 1 else {12 * factor})
    assert data.task.length == 12 * factor + 6


def test_all_pairs_of_a_source_and_a_shift_are_equally_likely() -> None:
    """24 pairs in a row of six letters with shifts of at most 2: 6,000 draws, four and a half deviations."""
    data = IndirectIndexing(0, letters=9, shortest=4, longest=6, reach=2)
    prompt = data.draw(torch.full((6000,), 6), torch.Generator().manual_seed(3))
    places = Counter((row.index(row[6]), row[7] - 9 - 2) for row in prompt.tolist())
    expected = [(i, shift) for i, shift in product(range(6), range(-2, 3)) if 0 <= i + shift < 6]
    assert sorted(places) == sorted(expected)
    assert len(expected) == data.pairs(6) == 24
    assert max(abs(count - 250) for count in places.values()) < 4.5 * math.sqrt(250)
    first = Counter(prompt[:, 0].tolist())
    assert max(abs(first[letter] - 6000 / 9) for letter in range(9)) < 4.5 * math.sqrt(6000 / 9)


@pytest.mark.parametrize(("n", "reach"), [(2, 1), (2, 5), (7, 3), (7, 6), (7, 9), (40, 15)])
def test_pairs_are_counted(n: int, reach: int) -> None:
    data = wide()
    assert IndirectIndexing(0, letters=52, shortest=20, longest=40, reach=reach).pairs(n) == sum(
        abs(i - j) <= reach for i in range(n) for j in range(n)
    )
    assert data.count_prompts(8) == math.perm(52, 8) * data.pairs(8)


@pytest.mark.parametrize("factor", [1, 2])
def test_floors_are_those_of_the_letters_that_are_possible(factor: int) -> None:
    """Each is recomputed from the sequences: what is possible with the letters known, with the source, with nothing."""
    data = wide() if factor == 1 else wide().longer(factor)
    rows, floors = parsed(data), data.floors("test")
    blind = [0.0 if shift == 0 else math.log(len(letters) - 1) for letters, _, shift, _ in rows]
    assert floors["position_blind"]["loss_answer"] == pytest.approx(sum(blind) / 1000, rel=1e-12)
    assert floors["position_blind"]["exact_match"] == pytest.approx(sum(map(math.exp, (-x for x in blind))) / 1000)
    assert floors["uniform"]["loss_answer"] == pytest.approx(math.log(52), rel=1e-12)
    assert floors["uniform"]["exact_match"] == pytest.approx(1 / 52)
    zero = sum(len(letters) / data.pairs(len(letters)) for letters, *_ in rows) / 1000
    still = sum(source == answer for _, source, _, answer in rows) / 1000
    loss = -still * math.log(zero) - (1 - still) * math.log((1 - zero) / 51)
    assert floors["source"]["loss_answer"] == pytest.approx(loss, rel=1e-12)
    assert floors["source"]["exact_match"] == pytest.approx(still)
    assert floors["bayes"]["loss"] == 0
    assert floors["bayes"]["exact_match"] == 1
    assert all(floors[level]["loss_end"] == 0 for level in ("bayes", "position_blind", "uniform", "source"))


def test_the_published_protocol_has_its_floors() -> None:
    """Uniform 0.019 and copying the source 0.044: the mean over 20 ... 40 letters of the share of shifts that are 0."""
    data = IndirectIndexing(0, letters=52, shortest=20, longest=40, reach=15, train=5, validation=5, test=1000)
    floors = data.floors("test")
    assert floors["uniform"]["exact_match"] == pytest.approx(1 / 52)
    expected = sum(n / data.pairs(n) for n in range(20, 41)) / 21
    assert expected == pytest.approx(0.04444, abs=1e-5)
    assert floors["source"]["exact_match"] == pytest.approx(expected, abs=4 * math.sqrt(expected / 1000))
    assert data.task.vocabulary == 52 + 31 + 4


def test_a_size_beyond_the_letters_is_refused() -> None:
    message = (
        "evaluate.lengths must lead to a size of at most data.letters, 52, for data=indirect_indexing, got 4.5, which"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)} leads to 54$"):
        wide().longer(4.5)
    with pytest.raises(ValueError, match=r"^evaluate\.lengths must lead to a size above data\.longest, 12, for"):
        wide().longer(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"longest": 53}, "longest must be at most letters, 52, since no letter comes twice, got 53"),
        ({"shortest": 1}, "shortest must be an integer of at least 2, got 1"),
        ({"shortest": 13}, "shortest must be at most longest, 12, got 13"),
        ({"reach": 0}, "reach must be an integer of at least 1, got 0"),
        ({"letters": 1025}, "letters must be at most 1024, got 1025"),
        (
            {"letters": 5, "shortest": 2, "longest": 3},
            "validation must be at most 31, a twentieth of the 620 problems of indirect_indexing, so that none comes "
            "twice, got 1000",
        ),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        IndirectIndexing(0, **WIDE | options)
