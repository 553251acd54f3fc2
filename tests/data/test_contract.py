"""The contract of datasets, checked for every file in conf/data."""

import hashlib
import json
import math
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from functools import cache
from itertools import combinations, permutations, product
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from helpers.everything import FEW, Everything, assignments, haystacks, lists, sums
from pe_lab.check.datasets import BATCH_FIELDS, PROMISES, DatasetCase, count_tokens, same_batch, whole_split
from pe_lab.check.promise import check_promise
from pe_lab.config import config_folder, expand_overrides
from pe_lab.data.alternation import Alternation
from pe_lab.data.bag import Bag
from pe_lab.data.base import IGNORE, Batch, Dataset
from pe_lab.data.flip_flop import FlipFlop
from pe_lab.data.induction import Induction
from pe_lab.data.mqar import MQAR
from pe_lab.data.problem import Problems
from pe_lab.data.structured import Structured, StructuredHeldout
from pe_lab.data.words import CommonWords, FrequentWords

NAMES = sorted(path.stem for path in (config_folder() / "data").glob("*.yaml"))
# wherever a dataset has one of these options
SIZES = {"train": 300, "validation": 50, "test": 50, "demo": 20, "train_sequences": 100, "test_sequences": 30}
ONE_LENGTH = {"digits"}  # a picture has as many pixels as it has
OF_TEXT = {"clm", "mlm"}  # tests/data/text has their sequences

# the beginning of the digest of all sequences with seed 0
SEQUENCES = {
    "addition": "7687f79ab3de1479",
    "alternation": "81f2c7d448e902e0",
    "bag": "e66dc7b7330fb5c3",
    "binary_majority": "37fa2de95726826f",
    "common_words": "715632625381ae62",
    "copy": "a3483809752a434c",
    "digits": "e707475b22cadd5a",
    "flip_flop": "e28fecfe463c79bb",
    "frequent_words": "08a4626ebc37c0a7",
    "indirect_indexing": "1d7dea44817f9e2e",
    "induction": "1f254aef692b4357",
    "interleaved_majority": "e383a51d4cc8b67f",
    "majority": "9c9efa3de637fb43",
    "mqar": "6aa3bb0f12bcfd16",
    "needle": "17683ec903d1c728",
    "parity": "5f8232e0f6317ec1",
    "passkey": "ce618a9e7505c43d",
    "pattern": "d2bb416fb92d8b7c",
    "pattern_hard": "0d672e9d9db3e658",
    "posgen": "9b1d92b75f027bfc",
    "repeat": "bd6d2f0a16230657",
    "reverse": "4c07d978026b932b",
    "selective_copy": "b8b0ab489eede21c",
    "sort": "9ba208a31391c305",
    "structured": "47c98df00b2f5929",
    "structured_heldout": "46dd7396dc3bc878",
    "unique_copy": "30974e24137f0f39",
    "unique_sort": "d0eec789b447cb4b",
    "variable_tracking": "1da4319323d53a7c",
}

every_dataset = pytest.mark.parametrize("name", NAMES)


@cache
def settings(name: str, place: Path | None = None) -> DictConfig:
    """Return the options of a dataset; with a folder, options that make it small, and the text of the folder."""
    if place is None:
        return expand_overrides([f"data={name}"], False)[0].data
    options = settings(name)
    small = {option: size for option, size in SIZES.items() if option in options}
    if "corpus" in options:
        small |= {"path": str(place / "text.txt"), "cache": str(place / "cache"), "length": 32}
    return OmegaConf.merge(options, small)


def make(name: str, place: Path, seed: int = 0) -> Dataset:
    return hydra.utils.instantiate(settings(name, place))(seed=seed)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("contract")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(1, 8))) for _ in range(400)]
    (made / "text.txt").write_text("".join(f"{' '.join(draw.choices(words, k=9))}\n" for _ in range(800)))
    return made


@cache
def shared(name: str, place: Path) -> Dataset:
    return make(name, place)


def fingerprint(data: Dataset) -> str:
    digest = hashlib.sha256()
    for split in data.splits:
        batch = whole_split(data, split)
        for part in (*(getattr(batch, part) for part in BATCH_FIELDS), batch.layout.pos, batch.layout.segment):
            digest.update(part.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


@every_dataset
@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_holds(promise: str, name: str, place: Path) -> None:
    """What python -m pe_lab.check data=<name> reports; the promises stand in pe_lab/check."""
    case = DatasetCase(name, hydra.utils.instantiate(settings(name, place)))
    case.data = shared(name, place)
    found = check_promise(promise, PROMISES[promise], case)
    inapplicable = {
        "longer sequences are of the same task, or refused in one line": name in ONE_LENGTH,
        "its own metrics are declared, finite, and better for lower losses": not case.data.own_metrics,
    }
    assert found.holds is (None if inapplicable.get(promise) else True), found.reason


@pytest.fixture(scope="module")
def elsewhere(place: Path) -> dict[str, str]:
    """Return the fingerprints of all datasets, computed in another process."""
    code = (
        "import sys, json, pathlib; sys.path[:0] = sys.argv[2:]; import test_contract as t;"
        "place = pathlib.Path(sys.argv[1]);"
        "print(json.dumps({name: t.fingerprint(t.make(name, place)) for name in t.NAMES}))"
    )
    command = [sys.executable, "-c", code, str(place), *map(str, Path(__file__).parents[:2])]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


@every_dataset
def test_a_seed_determines_every_number(name: str, place: Path, elsewhere: dict[str, str]) -> None:
    state = torch.random.get_rng_state()
    here = fingerprint(make(name, place))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert here == fingerprint(shared(name, place)) == elsewhere[name]
    other = make(name, place, seed=1)
    if other.seeded:
        assert not same_batch(whole_split(other, "test"), whole_split(shared(name, place), "test"))
    else:
        assert fingerprint(other) == here


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_TEXT])
def test_the_sequences_are_the_same_on_every_machine(name: str) -> None:
    """A change must be meant: results of before would be those of other sequences."""
    assert fingerprint(hydra.utils.instantiate(settings(name))(seed=0))[:16] == SEQUENCES[name]


def listed(data: Problems, n: int) -> list[tuple[int, ...]]:
    """Return every prompt of a size."""
    if data.name == "addition":
        digits = list(product(range(10), repeat=n))
        return [(*a, 10, *b) for a in digits for b in digits]
    if data.name == "repeat":
        return [(symbol,) * n for symbol in range(data.symbols)]
    if data.name in ("unique_copy", "unique_sort"):
        return list(permutations(range(data.symbols), n))
    if data.name == "selective_copy":  # as many blanks as symbols
        rows = product(range(data.symbols), repeat=2 * n)
        return [row for row in rows if row.count(data.symbols - 1) == n]
    if data.name == "indirect_indexing":
        pairs = [(i, shift) for i in range(n) for shift in range(-data.reach, data.reach + 1) if 0 <= i + shift < n]
        letters = list(permutations(range(data.letters), n))
        return [(*row, row[i], data.letters + data.reach + shift) for row in letters for i, shift in pairs]
    if data.name == "interleaved_majority":
        stream = [row for row in product((0, 1), repeat=n) if 2 * sum(row) != n]
        return [sum(zip(*rows, strict=True), ()) for rows in product(stream, repeat=data.streams)]
    rows = product(range(data.symbols), repeat=n)
    if data.name in ("majority", "binary_majority"):
        return [row for row in rows if sorted(map(row.count, {*row, -1}))[-2:][0] < max(map(row.count, row))]
    return list(rows)


def problems(name: str, **options: int) -> Everything:
    """Return all problems; those of a size are equally likely, and sizes have the shares of the test."""
    data: Problems = hydra.utils.instantiate(settings(name))(seed=0, **options)
    sizes, rows = [], []
    for n in data.n:
        everything = listed(data, n)
        rows += everything
        sizes += [n] * len(everything)
    longest = max(map(len, rows))
    n = torch.tensor(sizes)
    batch = data.write(n, torch.tensor([row + (0,) * (longest - len(row)) for row in rows]))
    return data, batch, as_drawn(data, batch) if name != "repeat" else torch.ones(len(n), dtype=torch.float64)


def bits() -> Everything:
    """Of each size, numbers of ones are equally likely, and so are the orders of a number."""
    data, batch, weights = problems("binary_majority", longest=10, **FEW_STRINGS)
    n = count_tokens(batch) - 4
    ones = (batch.tokens[:, :-1] == 1).cumsum(1).gather(1, n[:, None])[:, 0]
    orders = torch.tensor([math.comb(*pair) for pair in zip(n.tolist(), ones.tolist(), strict=True)])
    numbers = n + n % 2  # of ones
    of_size = count_tokens(batch).bincount()[count_tokens(batch)]
    return data, batch, weights * of_size / orders / numbers


def streams() -> Everything:
    """Of each stream, numbers of ones are equally likely, and so are the orders of a number."""
    data, batch, weights = problems("interleaved_majority", streams=2, longest=5, **FEW_STRINGS)
    size = (count_tokens(batch) - 5) // 2
    for index, (n, row) in enumerate(zip(size.tolist(), batch.tokens.tolist(), strict=True)):
        orders = [math.comb(n, sum(row[1 + first : 1 + 2 * n : 2])) for first in range(2)]
        weights[index] /= math.prod(orders) * (n + n % 2) ** 2  # numbers of ones
    return data, batch, weights * count_tokens(batch).bincount()[count_tokens(batch)]


def as_drawn(data: Dataset, everything: Batch) -> Tensor:
    """Return weights for equally likely sequences of a length, where lengths have the shares of the test."""
    of_length = count_tokens(everything).bincount()
    drawn = count_tokens(whole_split(data, "test")).bincount(minlength=len(of_length)).double()
    return (drawn / of_length)[count_tokens(everything)]


def associations() -> Everything:
    data = MQAR(0, length=8, pairs=2, vocabulary=12, train=300, validation=50, test=50)
    weights = data.weights.double() / data.weights.sum()
    gaps = list(permutations(range(len(weights)), 2))
    rows = [(*k, *v, *g) for k in permutations(range(1, 6), 2) for v in permutations(range(6, 12), 2) for g in gaps]
    first, second = torch.tensor(rows)[:, 4], torch.tensor(rows)[:, 5]
    likely = weights[first] * weights[second] / (1 - weights[first])
    return data, data.write(*torch.tensor(rows).split(2, 1)), likely


def frequent() -> Everything:
    data = Bag(0, length=7, vocabulary=3, train=100, validation=50, test=50, demo=20)
    tokens = torch.tensor(list(product(range(3), repeat=7)))
    counts = (tokens[..., None] == torch.arange(3)).sum(1)
    most = counts.sort(1, descending=True)
    tokens, labels = (part[most.values[:, 0] > most.values[:, 1]] for part in (tokens, most.indices[:, :1]))
    layout = data.task.layout(torch.full((len(tokens),), 7), 7)
    batch = Batch(tokens, labels, torch.zeros_like(labels), torch.ones_like(labels, dtype=torch.bool), layout)
    return data, batch, torch.ones(len(tokens), dtype=torch.float64)


def progressions(kind: type[Structured]) -> Everything:
    data = kind(0)
    sequences = list(product(range(128), [s for s in range(-8, 9) if s], range(4, 9)))
    batch = data._write([(a, s, tail) for a, s, tail in sequences if 0 <= a + 11 * s < 128])
    return data, batch, torch.ones(len(batch), dtype=torch.float64)


def instructions() -> Everything:
    data = FlipFlop(0, length=12, ignore=0.3, train=300, validation=50, test=50)
    usual = {"w0": 0.175, "w1": 0.175, "r": 0.35, "i0": 0.15, "i1": 0.15}
    rows, weights = [], []
    for middle in product(usual, repeat=4):
        for first in ("w0", "w1"):
            row, last = [], ""
            for kind, *bit in (first, *middle, "r"):
                last = bit[0] if kind == "w" else last
                row += ["wri".index(kind), 3 + int(bit[0] if bit else last)]
            rows.append(row)
            weights.append(math.prod(usual[each] for each in middle))
    return data, data.write(torch.tensor(rows)), torch.tensor(weights, dtype=torch.float64)


def repeated() -> Everything:
    data = Induction(0, length=7, vocabulary=3, train=300, validation=50, test=50)
    return data, data.write(torch.tensor(list(product(range(3), repeat=7)))), torch.ones(3**7, dtype=torch.float64)


def blocks() -> Everything:
    data = Alternation(0, blocks=3, shortest=12, longest=21, train=300, validation=50, test=50)
    rows = []
    for n in data.n:
        for first, second in combinations(range(1, n), 2):
            rows.append([2] + [0] * first + [1] * (second - first) + [0] * (n - second) + [3] * (21 - n))
    batch = data.write(torch.tensor(rows))
    return data, batch, as_drawn(data, batch)


FEW_STRINGS = {"train": 300, "validation": 40, "test": 40}
EVERYTHING: dict[str, Callable[[], Everything]] = {
    "structured": lambda: progressions(Structured),
    "structured_heldout": lambda: progressions(StructuredHeldout),
    "copy": lambda: problems("copy", symbols=3, longest=6, **FEW),
    "reverse": lambda: problems("reverse", symbols=3, longest=6, **FEW),
    "sort": lambda: problems("sort", symbols=9, longest=4, **FEW),
    "repeat": lambda: problems("repeat", symbols=7, longest=9),
    "addition": lambda: problems("addition", longest=2, **FEW),
    "parity": lambda: problems("parity", longest=9, **FEW),
    "mqar": associations,
    "bag": frequent,
    "flip_flop": instructions,
    "unique_copy": lambda: problems("unique_copy", symbols=7, longest=4, **FEW),
    "unique_sort": lambda: problems("unique_sort", symbols=13, longest=4, **FEW),
    "majority": lambda: problems("majority", symbols=3, longest=7, **FEW),
    "binary_majority": bits,
    "interleaved_majority": streams,
    "selective_copy": lambda: problems("selective_copy", symbols=2, longest=4, **FEW),
    "indirect_indexing": lambda: problems("indirect_indexing", letters=5, shortest=3, longest=4, reach=2, **FEW),
    "induction": repeated,
    "alternation": blocks,
    "needle": lambda: haystacks(keys=2, values=2, queries=1, digits=1, names=2, symbols=3, room=1),
    "passkey": lambda: haystacks(keys=1, values=1, queries=1, digits=4, names=1, symbols=4, room=3),
    "variable_tracking": lambda: assignments(chains=2, hops=1, names=4, values=2, room=1),
    "common_words": lambda: lists(CommonWords(0, length=8, words=6, asked=2, common=2, **FEW), [2, 2, 1], 0),
    "frequent_words": lambda: lists(FrequentWords(0, length=19, words=3, asked=2, **FEW), [2, 1], 13),
    "posgen": lambda: sums(length=12, modulus=4, near=3, far=2),
}
# 20^21 sequences at least: there the orders of single multisets are counted, by these tests
COUNTED = {
    "pattern": "test_the_position_blind_posterior_is_that_of_a_slow_enumeration",
    "pattern_hard": "test_each_class_can_be_made_of_hard_tokens_in_equally_many_orders",
}


@every_dataset
def test_exact_floors_are_those_of_a_slow_count_of_everything(name: str, place: Path) -> None:
    floors = shared(name, place).floors("test")
    if "bayes" not in floors:
        pytest.skip("reference levels, which bound nothing")
    if name in COUNTED:
        assert f"def {COUNTED[name]}(" in (Path(__file__).parent / "test_pattern.py").read_text()
        pytest.skip(f"too many sequences; see test_pattern.py::{COUNTED[name]}")
    assert name in EVERYTHING, "exact floors need a listing of everything at small options"
    data, everything, weights = EVERYTHING[name]()
    test = whole_split(data, "test")
    each = torch.ones(len(test), dtype=torch.float64)
    ways: dict[str, tuple[Batch, Tensor, Known]] = {
        "bayes": (everything, weights, lambda seen, slot: (seen, slot)),
        "position_blind": (everything, weights, lambda seen, slot: tuple(sorted(seen))),
        "position_blind_split_known": (test, each, lambda seen, slot: tuple(sorted(seen))),
        "prior": (everything, weights, lambda seen, slot: ()),
        "uniform": (everything, weights, lambda seen, slot: at_sep(seen)),
        "source": (everything, weights, lambda seen, slot: seen[-3] if at_sep(seen) else "end"),
    }
    sep = getattr(data, "symbols", -1) + 1

    def at_sep(seen: tuple[int, ...]) -> bool:
        return seen[-1] == sep

    floors = data.floors("test")
    assert floors.keys() <= ways.keys()
    for level, metrics in floors.items():
        found, expected = dict(metrics), slow(data, test, *ways[level])
        found.pop("exact_match", None)
        if "accuracy" not in found:
            expected = {metric: value for metric, value in expected.items() if metric.startswith("loss")}
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), level


Known = Callable[[tuple[int, ...], int], Hashable]  # what is known of the tokens that may be seen, and the slot


def slow(data: Dataset, test: Batch, everything: Batch, weights: Tensor, known: Known) -> dict[str, float]:
    """Return metrics on a test of a predictor with `known` of a question and frequencies in everything.

    Of several most likely tokens each is its answer equally often.
    """
    follow: dict[Hashable, Counter[int]] = defaultdict(Counter)
    for row, weight in zip(asked(everything), weights.tolist(), strict=True):
        for seen, slot, target, _, _ in row:
            follow[known(seen, slot)][target] += weight
    metrics = defaultdict(list)
    for row in asked(test):
        for seen, slot, target, role, headline in row:
            likely = follow[known(seen, slot)]
            best = [token for token, weight in likely.items() if weight > (1 - 1e-9) * max(likely.values())]
            metrics[f"loss_{data.roles[role]}"].append(-math.log(likely[target] / likely.total()))
            for end in ("", "_all") if headline else ("_all",):
                metrics[f"loss{end}"].append(-math.log(likely[target] / likely.total()))
                metrics[f"accuracy{end}"].append((target in best) / len(best))
    return {metric: math.fsum(values) / len(values) for metric, values in metrics.items()}


def asked(batch: Batch) -> list[list[tuple[tuple[int, ...], int, int, int, bool]]]:
    """Yield for each answer: the visible tokens, slot, target, role, and whether it is in the headline."""
    found = []
    for tokens, *slots in zip(*(getattr(batch, part).tolist() for part in BATCH_FIELDS), strict=True):
        found.append(
            [
                (tuple(tokens[: slot + 1] if batch.layout.causal else tokens), slot, target, role, headline)
                for slot, (target, role, headline) in enumerate(zip(*slots, strict=True))
                if target != IGNORE
            ]
        )
    return found
