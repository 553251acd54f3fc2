"""The digits are scikit-learn's, no image is in two splits, and levels equal those of independent code."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from pe_lab.data.digits import Digits

SPLITS = ("train", "validation", "test")
SEEDS = (0, 1, 7, 12345)


@cache
def dataset(seed: int = 0) -> Digits:
    return Digits(seed)


def rows(seed: int, split: str) -> list[tuple[int, ...]]:
    batch = dataset(seed).whole(split)
    return [tuple(row) for row in torch.cat((batch.tokens, batch.targets), 1).tolist()]


@cache
def images() -> list[tuple[int, ...]]:
    pixels, labels = load_digits(return_X_y=True)
    return [(*row, label) for row, label in zip(pixels.astype(int).tolist(), labels.tolist(), strict=True)]


def test_no_two_images_are_equal() -> None:
    """So no image is in two splits."""
    assert len(images()) == 1797
    assert len({image[:64] for image in images()}) == 1797


@pytest.mark.parametrize("seed", SEEDS)
def test_the_splits_are_together_all_images_each_once(seed: int) -> None:
    found = [row for split in SPLITS for row in rows(seed, split)]
    assert sorted(found) == sorted(images())
    assert [len(rows(seed, split)) for split in SPLITS] == [dataset(seed).size(split) for split in SPLITS]
    assert [dataset(seed).size(split) for split in SPLITS] == [round(share * 1797) for share in (0.6, 0.2)] + [360]


def test_the_split_depends_on_the_seed_and_has_every_class() -> None:
    assert len({frozenset(rows(seed, "test")) for seed in SEEDS}) == len(SEEDS)
    for seed in SEEDS:
        for split in SPLITS:
            assert min(torch.tensor(rows(seed, split))[:, 64].bincount(minlength=10)) >= 20


def test_the_drawn_example_is_the_first_image() -> None:
    drawn = [line.split() for line in Digits.__doc__.split("of class 0:\n\n")[1].split("\n\n")[0].splitlines()]
    assert tuple(int(token) for line in drawn for token in line) == images()[0][:64]
    assert images()[0][64] == 0


def test_positions_have_a_row_and_a_column() -> None:
    batch = dataset().batch("test", torch.tensor([3, 5]))
    assert batch.layout.pos.shape == (1, 64, 2)
    assert batch.layout.pos[0, 8 * 3 + 5].tolist() == [3, 5]
    assert (batch.layout.segment == torch.zeros(2, 64)).all()
    assert torch.equal(batch.tokens, dataset().whole("test").tokens[[3, 5]])
    assert torch.equal(batch.targets, dataset().whole("test").targets[[3, 5]])


def test_the_levels_are_named_for_what_they_are_and_rebuilt_by_other_code() -> None:
    levels = dataset().floors("test")
    assert levels.keys() == {"prior", "histogram"}
    train, test = (np.array(rows(0, split)) for split in ("train", "test"))
    share = (np.bincount(train[:, 64], minlength=10) + 1) / (len(train) + 10)
    assert levels["prior"]["loss"] == pytest.approx(-np.log(share[test[:, 64]]).mean(), rel=1e-9)
    assert levels["prior"]["accuracy"] == pytest.approx((test[:, 64] == share.argmax()).mean(), rel=1e-9)

    def histogram(split: np.ndarray) -> np.ndarray:
        often = np.array([[(row == level).sum() for level in range(17)] for row in split[:, :64]])
        base = np.array([[(row == level).sum() for level in range(17)] for row in train[:, :64]])
        return (often - base.mean(0)) / base.std(0)

    model = LogisticRegression(max_iter=10_000).fit(histogram(train), train[:, 64])
    p = (len(train) * model.predict_proba(histogram(test)) + 1) / (len(train) + 10)
    assert levels["histogram"]["loss"] == pytest.approx(-np.log(p[range(360), test[:, 64]]).mean(), rel=1e-3)
    assert levels["histogram"]["accuracy"] == pytest.approx((p.argmax(1) == test[:, 64]).mean(), abs=0.006)
    assert 0.2 < levels["histogram"]["accuracy"] < 0.9
    assert levels["histogram"]["loss"] < levels["prior"]["loss"] < math.log(10) + 0.01


def test_digits_have_one_length() -> None:
    with pytest.raises(ValueError, match=r"^evaluate\.lengths must be 1 for data=digits, which has one length, got 2$"):
        dataset().longer(2)
