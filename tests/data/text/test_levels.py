"""Reference levels of text equal independent estimates on the questions of the split."""

import lzma
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from pe_lab.data.base import IGNORE, Batch
from pe_lab.data.text import base as text_module
from pe_lab.data.text import clm as clm_module
from pe_lab.data.text import levels as levels_module
from pe_lab.data.text import mlm as mlm_module
from pe_lab.data.text.base import Text
from pe_lab.data.text.clm import CLM
from pe_lab.data.text.levels import Neighbours, neighbours, ngram, unigram, xz
from pe_lab.data.text.mlm import MLM
from pe_lab.training.metrics import batch_metrics

END, MASK = 255, 254
LENGTH = 24
TASKS = {"clm": CLM, "mlm": MLM}


class Slow:
    """Modified Kneser-Ney with dictionaries: P(w | h) of one order, from the counts of (h, w) and the order below."""

    def __init__(self, counts: dict[tuple[tuple[int, ...], int], int]) -> None:
        self.after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for (history, token), count in counts.items():
            self.after[history][token] += count
        having = Counter(count for counts in self.after.values() for count in counts.values())
        n = {count: max(1, having[count]) for count in (1, 2, 3, 4)}
        y = n[1] / (n[1] + 2 * n[2])
        self.discount = {
            count: min(max(count - (count + 1) * y * n[count + 1] / n[count], 0.1), count) for count in (1, 2, 3)
        }
        self.discount[0] = 0.0

    def p(self, history: tuple[int, ...], token: int, below: float) -> float:
        follow = self.after.get(history)
        if not follow:
            return below
        taken = sum(self.discount[min(count, 3)] for count in follow.values())
        own = follow[token] - self.discount[min(follow[token], 3)]
        return (own + taken * below) / follow.total()


def slow_ngram(train: list[list[int]], row: list[int], slot: int, end: int, vocabulary: int, longest: int) -> float:
    """Compute P(row[slot + 1] | tokens before it)."""

    def history(tokens: list[int], slot: int) -> tuple[int, ...]:
        known: list[int] = []
        while slot >= 0 and tokens[slot] != end and len(known) < longest:
            known.insert(0, tokens[slot])
            slot -= 1
        return tuple(known)

    seen = Counter()
    for tokens in train:
        for at in range(len(tokens) - 1):
            if tokens[at] != end:
                seen[(history(tokens, at), tokens[at + 1])] += 1
    orders: dict[int, Slow] = {}
    counts = {key: count for key, count in seen.items() if len(key[0]) == longest}
    for order in range(longest, -1, -1):
        orders[order] = Slow(counts)
        shorter: Counter[tuple[tuple[int, ...], int]] = Counter()
        for past, token in counts:
            shorter[(past[1:], token)] += 1
        for (past, token), count in seen.items():
            if len(past) == order - 1:
                shorter[(past, token)] += count
        counts = dict(shorter)
    own = history(row, slot)
    p = 1 / vocabulary
    for order in range(len(own) + 1):
        p = orders[order].p(own[len(own) - order :], row[slot + 1], p)
    return p


def some_rows(number: int, length: int, symbols: int, end: int, seed: int) -> np.ndarray:
    """Return windows of tokens that depend on the previous token, with some END."""
    draw = np.random.default_rng(seed)
    rows = np.zeros((number, length), np.int64)
    for slot in range(length):
        before = rows[:, slot - 1] if slot else draw.integers(0, symbols, number)
        rows[:, slot] = np.where(
            draw.random(number) < 0.6, (before * 3 + 1) % symbols, draw.integers(0, symbols, number)
        )
        rows[:, slot] = np.where(draw.random(number) < 0.08, end, rows[:, slot])
    return rows


@pytest.mark.parametrize(("vocabulary", "length"), [(256, 13), (256, 4), (2000, 9), (65_536, 7), (300, 3)])
def test_the_ngram_is_that_of_a_slow_count(vocabulary: int, length: int) -> None:
    end = vocabulary - 1
    train, rows = some_rows(12, length, 6, end, 0), some_rows(9, length, 7, end, 1)
    longest = min(64 // (vocabulary - 1).bit_length(), length) - 1
    found = ngram(train.astype(np.uint16), rows.astype(np.uint16), end, vocabulary)
    compared = 0
    for row, estimates in zip(rows.tolist(), found, strict=True):
        for slot in range(length - 1):
            if row[slot] != end:
                expected = slow_ngram(train.tolist(), row, slot, end, vocabulary, longest)
                assert estimates[slot] == pytest.approx(expected, rel=1e-9)
                compared += 1
    assert compared > 10


def test_the_ngram_counts_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    train, rows = some_rows(50, 13, 6, END, 0), some_rows(9, 13, 7, END, 1)
    once = ngram(train, rows, END, 256)
    monkeypatch.setattr(levels_module, "BLOCK_WINDOWS", 7)
    assert np.array_equal(ngram(train, rows, END, 256), once)


def test_an_ngrams_probabilities_sum_to_one() -> None:
    train, row = some_rows(40, 13, 6, END, 0), some_rows(1, 13, 6, END, 3)
    row[0, 5] = END
    for slot in (0, 3, 4, 6, 11):
        rows = np.repeat(row, 256, 0)
        rows[:, slot + 1] = np.arange(256)
        assert ngram(train, rows, END, 256)[:, slot].sum() == pytest.approx(1, abs=1e-12)


def test_an_ngram_looks_no_further_than_its_document_and_its_window() -> None:
    train, rows = some_rows(200, 13, 6, END, 0), some_rows(1, 13, 6, END, 5)
    rows[0, :] = [0, 1, 2, 3, END, 4, 1, 2, 0, 3, 1, 4, 5]
    other = rows.copy()
    other[0, :4] = [5, 4, 3, 0]
    before, after = ngram(train, rows, END, 256), ngram(train, other, END, 256)
    assert np.array_equal(before[0, 5:], after[0, 5:])
    assert not np.allclose(before[0, :3], after[0, :3])
    other[0, 6] = 5
    after = ngram(train, other, END, 256)
    assert not np.isclose(before[0, 6:11], after[0, 6:11]).all()


def test_the_unigram_is_that_of_a_slow_count_and_sums_to_one() -> None:
    tokens = some_rows(30, 10, 9, END, 0).flatten()
    counts = Slow({((), token): count for token, count in Counter(tokens.tolist()).items()})
    found = unigram(tokens.astype(np.uint8), np.arange(256), 256)
    assert found == pytest.approx([counts.p((), token, 1 / 256) for token in range(256)], rel=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-12)


def test_neighbours_stay_in_the_window_and_the_document() -> None:
    left, right = neighbours(np.array([[1, 2, END, 3, MASK, 4]]), END, MASK)
    assert left.tolist() == [[MASK, 1, 2, MASK, 3, MASK]]
    assert right.tolist() == [[2, END, MASK, MASK, 4, MASK]]


def test_the_estimate_from_neighbours_is_that_of_a_slow_count() -> None:
    train = some_rows(60, 11, 5, END, 0)
    both, by_left, by_right, alone = (Counter() for _ in range(4))
    for row in train.tolist():
        for slot, token in enumerate(row):
            if token == END:
                continue
            left = row[slot - 1] if slot and row[slot - 1] != END else None
            right = row[slot + 1] if slot + 1 < len(row) else None
            alone[((), token)] += 1
            if left is not None:
                by_left[((left,), token)] += 1
            if right is not None:
                by_right[((right,), token)] += 1
            if left is not None and right is not None:
                both[((left, right), token)] += 1
    known = Neighbours(train, END, MASK, 256)
    symbols = [*range(6), MASK, END]
    left, right, token = (
        np.array(side) for side in zip(*[(a, b, c) for a in symbols for b in symbols for c in range(7)], strict=True)
    )
    orders = [Slow(counts) for counts in (alone, by_left, by_right, both)]
    expected = []
    for a, b, c in zip(left.tolist(), right.tolist(), token.tolist(), strict=True):
        p = orders[0].p((), c, 1 / 256)
        from_left = orders[1].p((a,), c, p)
        from_right = orders[2].p((b,), c, p)
        one = from_right if a == MASK else from_left if b == MASK else (from_left + from_right) / 2
        expected.append(orders[3].p((a, b), c, one))
    assert known.estimate(left, right, token) == pytest.approx(expected, rel=1e-9)
    for a, b in ((0, 1), (MASK, 2), (3, MASK), (MASK, MASK), (5, END)):
        every = np.arange(256)
        assert known.estimate(np.full(256, a), np.full(256, b), every).sum() == pytest.approx(1, abs=1e-12)


def test_xz_costs_nothing_for_what_is_known_and_eight_bits_for_noise() -> None:
    draw = random.Random(0)
    noise, other = draw.randbytes(50_000), draw.randbytes(20_000)
    assert xz(noise, noise) < 0.25  # a match is of 273 bytes at most, and costs some 30 bits
    assert xz(noise, other) == pytest.approx(8, abs=0.05)
    assert xz(noise + other, other) < 0.25


def test_xz_looks_back_to_the_last_window_only(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    noise, other = draw.randbytes(50_000), draw.randbytes(20_000)
    monkeypatch.setattr(levels_module, "XZ_WINDOW", 30_000)
    assert xz(noise, noise[:20_000]) == pytest.approx(8, abs=0.05)
    assert xz(noise, noise[-20_000:]) < 0.25
    assert xz(noise, other) == pytest.approx(8, abs=0.05)


# the levels of datasets


def markov(seed: int, length: int) -> str:
    """Draw symbols given the previous one: with these chances the next, the same, or any of four."""
    draw = random.Random(seed)
    symbols, now = [], 0
    for _ in range(length):
        now = draw.choices(range(4), [MOVES[now][symbol] for symbol in range(4)])[0]
        symbols.append("abcd"[now])
    return "".join(symbols)


MOVES = [[0.1, 0.7, 0.1, 0.1], [0.25, 0.05, 0.65, 0.05], [0.05, 0.05, 0.1, 0.8], [0.55, 0.15, 0.15, 0.15]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("levels")
    (made / "markov.txt").write_text(markov(0, 120_000))
    draw = random.Random(1)
    words = ["".join(draw.choice("aeioukln") for _ in range(draw.randint(1, 6))) for _ in range(50)]
    (made / "lines.txt").write_text("\n".join(" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(1500)))
    return made


def text(place: Path, task: str, kind: str = "lines", seed: int = 0, **options: object) -> Text:
    given = {"path": str(place / f"{kind}.txt"), "cache": str(place / "cache"), "length": LENGTH, "test_sequences": 40}
    given |= {"separator": "\n"} if kind == "lines" else {}
    return TASKS[task](seed, task, **(given | options))


def whole_split(data: Text, split: str) -> Batch:
    return data.batch(split, torch.arange(data.size(split)))


def stationary() -> np.ndarray:
    return np.linalg.matrix_power(np.array(MOVES), 200)[0]


def test_the_ngram_of_a_markov_chain_comes_near_its_entropy(place: Path) -> None:
    """The entropy of the chain is a lower bound, and estimates from a hundred thousand symbols come near it."""
    data = text(place, "clm", "markov", length=64, test_sequences=None)
    moves, often = np.array(MOVES), stationary()
    found = data.floors("test")
    answers = whole_split(data, "test")
    now, after = answers.tokens - ord("a"), answers.targets - ord("a")
    truth = -np.log(moves[now.numpy(), after.numpy()]).mean()
    assert truth == pytest.approx(-(often[:, None] * moves * np.log(moves)).sum(), rel=0.05)
    assert truth < found["ngram"]["loss"] < 1.06 * truth
    assert found["unigram"]["loss"] == pytest.approx(-np.log(often[after.numpy()]).mean(), rel=0.001)
    assert found["xz"]["loss"] > truth


def test_the_neighbours_of_a_markov_chain_come_near_what_they_can_tell(place: Path) -> None:
    data = text(place, "mlm", "markov", length=64, test_sequences=None)
    moves, often = np.array(MOVES), stationary()
    batch = whole_split(data, "test")
    losses = []
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        for slot, answer in enumerate(targets):
            if answer == IGNORE:
                continue
            weights = often.copy()
            if slot and row[slot - 1] != MASK:
                weights = moves[row[slot - 1] - ord("a")].copy()
            if slot + 1 < len(row) and row[slot + 1] != MASK:
                weights *= moves[:, row[slot + 1] - ord("a")]
            if row[slot] != MASK:
                weights *= 0.25 + np.eye(4)[row[slot] - ord("a")]
            losses.append(-math.log(weights[answer - ord("a")] / weights.sum()))
    found = data.floors("test")
    assert found["neighbours"]["loss"] == pytest.approx(np.mean(losses), rel=0.01)
    assert found["neighbours"]["loss"] < 0.9 * found["unigram"]["loss"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_a_model_with_the_predictions_of_a_level_has_its_metrics(task: str, tokenizer: str, place: Path) -> None:
    """Evaluate the unigram as logits with the metrics of models, on every split."""
    data = text(place, task, tokenizer=tokenizer, vocabulary_size=300)
    V = data.task.vocabulary
    counted = data.rows("train", np.arange(data.size("train")))
    seen = counted[:, 1:][counted[:, :-1] != data.text.end] if task == "clm" else counted[counted != data.text.end]
    logits = torch.from_numpy(np.log(unigram(seen, np.arange(V), V))).float()
    for split in ("validation", "test"):
        batch = whole_split(data, split)
        spread = logits.expand(*batch.targets.shape, V)
        metrics = batch_metrics(spread, batch, data.roles)
        level = data.floors(split)["unigram"]
        assert level == pytest.approx({name: metrics.get(name, level["bits_per_byte"]) for name in level}, rel=1e-5)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_xz_compresses_the_windows_of_the_split_after_those_of_training(tokenizer: str, place: Path) -> None:
    data = text(place, "clm", tokenizer=tokenizer, vocabulary_size=300)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]

    def size(content: bytes) -> int:
        return len(lzma.compress(content, lzma.FORMAT_RAW, filters=filters))

    def spelled(split: str) -> bytes:
        rows = data.rows(split, np.arange(data.size(split)))[:, :-1]
        return b"".join(data.text.spelling[token] for token in rows.flatten().tolist())

    train, test = spelled("train"), spelled("test")
    expected = 8 * (size(train + test) - size(train)) / len(test)
    found = data.floors("test")["xz"]
    assert found["bits_per_byte"] == pytest.approx(expected, rel=1e-12)
    answers = whole_split(data, "test").targets
    answers = answers[answers != IGNORE].tolist()
    length = sum(len(data.text.spelling[token]) for token in answers) / len(answers)
    assert found["loss"] == found["loss_all"] == pytest.approx(expected * math.log(2) * length, rel=1e-12)


def test_a_long_training_text_is_compressed_evenly(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(clm_module, "XZ_WINDOW", 5_000)
    monkeypatch.setattr(clm_module, "xz", lambda train, test: given.append(train) or 1.0)
    data = text(place, "clm", test_sequences=3)
    data.floors("test")
    train = data.text.stream("train").tobytes()
    assert 5_000 - LENGTH < len(given[0]) <= 5_000
    places = [train.find(given[0][at : at + LENGTH]) for at in range(0, len(given[0]), LENGTH)]
    assert places[0] == 0
    assert len(train) - places[-1] < 0.05 * len(train)


@pytest.mark.parametrize("task", TASKS)
def test_levels_know_more_the_more_they_look_at(task: str, place: Path) -> None:
    for split in ("validation", "test"):
        found = text(place, task).floors(split)
        assert list(found) == {"clm": ["unigram", "ngram", "xz"], "mlm": ["unigram", "neighbours"]}[task]
        assert all({"loss", "loss_all", "bits_per_byte"} <= metrics.keys() for metrics in found.values())
        best = found["ngram" if task == "clm" else "neighbours"]
        assert best["loss"] < 0.8 * found["unigram"]["loss"]


@pytest.mark.parametrize("task", TASKS)
def test_levels_count_the_sequences_of_training_and_no_others(
    task: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"clm": clm_module, "mlm": mlm_module}[task]
    given = []

    def spy(tokens: np.ndarray, *_: object) -> np.ndarray:
        given.append(tokens)
        return unigram(tokens, *_)

    monkeypatch.setattr(module, "unigram", spy)
    data = text(place, task, train_sequences=11, test_sequences=5)
    data.floors("test")
    asked = data.batch("train", torch.arange(11))
    if task == "clm":
        assert given[0].tolist() == asked.targets[asked.targets != IGNORE].tolist()
    else:
        rows = data.rows("train", np.arange(11))
        assert given[0].tolist() == rows[rows != END].tolist()
    monkeypatch.setattr(text_module, "MAX_COUNTED_TOKENS", 4 * LENGTH)
    data = text(place, task, train_sequences=12, test_sequences=6)
    data.floors("test")
    assert len(given[-1]) <= 4 * LENGTH


@pytest.mark.parametrize("task", TASKS)
def test_levels_are_computed_once_for_what_they_depend_on(
    task: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    compute = TASKS[task].levels

    def counting(data: Text, *arguments: object) -> object:
        computed.append(data)
        return compute(data, *arguments)

    monkeypatch.setattr(TASKS[task], "levels", counting)
    options = {"test_sequences": 7}
    first = text(place, task, **options).floors("test")
    assert text(place, task, **options).floors("test") == first
    assert len(computed) == 1
    text(place, task, seed=1, **options).floors("test")
    assert len(computed) == (1 if task == "clm" else 2)  # what is asked depends on the seed
    before = len(computed)
    text(place, task, **options).floors("validation")
    text(place, task, **options).longer(2).floors("test")
    text(place, task, **(options | {"train_sequences": 20})).floors("test")
    text(place, task, **(options | {"test_sequences": 8})).floors("test")
    text(place, task, **(options | {"length": 30})).floors("test")
    text(place, task, **(options | {"tokenizer": "bpe", "vocabulary_size": 300})).floors("test")
    text(place, task, "markov", **options).floors("test")
    assert len(computed) == before + 7


@pytest.mark.parametrize("task", TASKS)
def test_longer_windows_have_levels_of_their_own(task: str, place: Path) -> None:
    data = text(place, task, "markov", test_sequences=None)
    longer = data.longer(4)
    near, far = data.floors("test"), longer.floors("test")
    name = "ngram" if task == "clm" else "neighbours"
    # the same chain, counted in the same training sequences
    assert far[name]["loss"] == pytest.approx(near[name]["loss"], rel=0.05)
    assert far[name]["loss"] != near[name]["loss"]
