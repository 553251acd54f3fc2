"""Problems and answers follow the definition of their task, splits share nothing, and floors are exact."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from pe_lab.data.arithmetic import Addition, Parity
from pe_lab.data.base import IGNORE, Batch
from pe_lab.data.problem import Problems, hash_split
from pe_lab.data.sequence import Copy, Repeat, Reverse, Sort, half_sorted, half_written
from pe_lab.encodings.layout import PADDING
from pe_lab.training.metrics import batch_metrics

SPLITS = ("train", "validation", "test")
CLASSES = {"copy": Copy, "reverse": Reverse, "sort": Sort, "repeat": Repeat, "addition": Addition, "parity": Parity}
DRAWN = ("copy", "reverse", "sort", "addition", "parity")
# float64 sums of at most 1e5 numbers below 10, of probabilities made from logarithms of factorials
EXACT = {"rel": 1e-11, "abs": 1e-11}

Prompt = tuple[int, ...]


def added(prompt: Prompt) -> Prompt:
    """Return the little-endian digits of the sum of little-endian digits a and b."""
    n = len(prompt) // 2
    assert prompt[n] == 10
    a, b = (sum(digit * 10**i for i, digit in enumerate(part)) for part in (prompt[:n], prompt[n + 1 :]))
    return tuple(int(digit) for digit in reversed(f"{a + b:0{n + 1}d}"))


ANSWERS: dict[str, Callable[[Prompt], Prompt]] = {
    "copy": lambda prompt: prompt,
    "reverse": lambda prompt: prompt[::-1],
    "sort": lambda prompt: tuple(sorted(prompt)),
    "repeat": lambda prompt: prompt,
    "addition": added,
    "parity": lambda prompt: (prompt.count(1) % 2,),
}
# the size of a problem by the length of its prompt
SIZE: dict[str, Callable[[int], int]] = {name: lambda length: length for name in CLASSES}
SIZE["addition"] = lambda length: (length - 1) // 2

# small enough to list all of their problems
LISTED: dict[str, dict[str, dict[str, int]]] = {
    "copy": {"copy": {"symbols": 3, "longest": 6}},
    "copy_some": {"copy": {"symbols": 4, "shortest": 3, "longest": 5}},
    "reverse": {"reverse": {"symbols": 3, "longest": 6}},
    "sort": {"sort": {"symbols": 9, "longest": 4}},
    "repeat": {"repeat": {"symbols": 7, "shortest": 2, "longest": 9}},
    "addition": {"addition": {"longest": 2}},
    "parity": {"parity": {"longest": 9}},
    "parity_some": {"parity": {"shortest": 4, "longest": 9}},
}


def equal(sizes: range) -> Tensor:
    """[n + 1] the shares of these sizes, all equal."""
    return torch.tensor([(n in sizes) / len(sizes) for n in range(sizes[-1] + 1)], dtype=torch.float64)


def prompts(data: Problems, n: int) -> list[Prompt]:
    """Return every prompt of a size."""
    if data.name == "addition":
        return [(*a, 10, *b) for a in product(range(10), repeat=n) for b in product(range(10), repeat=n)]
    if data.name == "repeat":
        return [(symbol,) * n for symbol in range(data.symbols)]
    return list(product(range(data.symbols), repeat=n))


Following = dict[Prompt, dict[int, Fraction]]


def following(data: Problems, share: dict[int, Fraction]) -> tuple[Following, dict[int, Fraction]]:
    """Count the next tokens after each bag of tokens, and all answers; END is the number of symbols.

    Problems of a size are equally likely.
    """
    bags: Following = defaultdict(lambda: defaultdict(Fraction))
    asked: dict[int, Fraction] = defaultdict(Fraction)
    for n in share:
        everything = prompts(data, n)
        weight = share[n] / len(everything)
        found = Counter()
        for prompt in everything:
            answer = (*ANSWERS[data.name](prompt), data.symbols)
            for slot, right in enumerate(answer):
                found[tuple(sorted(prompt + answer[:slot])), right] += 1
        for (bag, right), times in found.items():
            bags[bag][right] += times * weight
            asked[right] += times * weight
    return bags, asked


def whole_split(data: Problems, split: str) -> Batch:
    return data.batch(split, torch.arange(data.size(split)))


@cache
def default(name: str, seed: int = 0) -> Problems:
    return CLASSES[name](seed)


@cache
def small(name: str, seed: int) -> Problems:
    return CLASSES[name](seed) if name == "repeat" else CLASSES[name](seed, train=1500, validation=300, test=300)


def parsed(data: Problems, tokens: Tensor) -> list[tuple[Prompt, Prompt]]:
    """Return prompts and answers, parsed from the sequences."""
    start, sep, end, pad = range(data.symbols, data.symbols + 4)
    found = []
    for row in tokens.tolist():
        at_sep, at_end = row.index(sep), row.index(end)
        assert row[0] == start
        assert row[at_end + 1 :] == [pad] * (len(row) - at_end - 1)
        found.append((tuple(row[1:at_sep]), tuple(row[at_sep + 1 : at_end])))
        assert max(found[-1][0] + found[-1][1]) < data.symbols
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_every_sequence_is_a_problem_with_its_answer(name: str) -> None:
    data = default(name)
    longest = 3 if name == "addition" else 16
    for split in SPLITS:
        batch = whole_split(data, split)
        assert batch.tokens.shape == (data.size(split), data.task.length)
        sizes = set()
        for prompt, answer in parsed(data, batch.tokens):
            assert answer == ANSWERS[name](prompt)
            assert name != "repeat" or len(set(prompt)) == 1
            sizes.add(SIZE[name](len(prompt)))
        assert sizes <= set(range(1, longest + 1))
        # a split may have no problem of the smallest sizes
        assert {n for n in range(1, longest + 1) if name == "repeat" or data.different(n) >= 100} <= sizes
    most = {"addition": (7, 4), "parity": (16, 1)}.get(name, (16, 16))
    assert data.task.length == 3 + sum(most)
    assert data.task.vocabulary == data.task.outputs == data.symbols + 4
    assert data.task.causal


@pytest.mark.parametrize("name", CLASSES)
def test_the_answer_and_its_end_are_asked_and_nothing_else(name: str) -> None:
    data = default(name)
    end = data.symbols + 2
    batch = whole_split(data, "test")
    layout = batch.layout
    assert torch.equal(layout.pos, torch.arange(data.task.length)[None])
    rows = zip(*(part.tolist() for part in (batch.targets, batch.role, batch.headline, layout.segment)), strict=True)
    for (prompt, answer), length, (targets, roles, headline, segment) in zip(
        parsed(data, batch.tokens), (layout.segment != PADDING).sum(1).tolist(), rows, strict=True
    ):
        first, count = len(prompt) + 1, len(answer) + 1
        assert length == first + 1 + count
        assert segment == [0] * length + [PADDING] * (len(segment) - length)
        assert targets[first : first + count] == [*answer, end]
        assert headline == [first <= slot < first + count for slot in range(len(targets))]
        assert [target != IGNORE for target in targets] == headline
        assert [data.roles[role] for role in roles[first : first + count]] == ["answer"] * len(answer) + ["end"]


@pytest.mark.parametrize("case", ["copy", "parity"])
def test_drawn_splits_are_about_eight_one_and_one_tenths_of_all_problems(case: str) -> None:
    ((name, options),) = LISTED[case].items()
    data = CLASSES[name](3, **options, train=30_000, validation=50, test=50)
    everything = {prompt for n in data.n for prompt in prompts(data, n)}
    for split, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
        mine = {prompt for prompt in everything if hash_split(data.seed, data.name, data.key(list(prompt))) == split}
        found = {prompt for prompt, _ in parsed(data, whole_split(data, split).tokens)}
        assert found <= mine
        deviation = math.sqrt(share * (1 - share) / len(everything))
        assert len(mine) / len(everything) == pytest.approx(share, abs=4 * deviation)
        assert split != "train" or len(found) > 0.95 * len(mine)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_no_problem_is_held_out_twice_and_small_sizes_have_all_of_theirs(name: str, split: str) -> None:
    data = default(name)
    found = [prompt for prompt, _ in parsed(data, whole_split(data, split).tokens)]
    assert len(set(found)) == len(found) == 1000
    sizes = Counter(SIZE[name](len(prompt)) for prompt in found)
    few = [n for n in data.n if data.count_prompts(n) <= 100]
    for n in few:
        keys = [data.key(list(prompt)) for prompt in prompts(data, n)]
        assert sizes[n] == sum(hash_split(data.seed, data.name, key) == split for key in keys)
    many = [n for n in data.n if data.count_prompts(n) > 10_000 and name != "addition"]  # addition has one such size
    share = sum(sizes[n] for n in many) / max(1, len(many))
    for n in many:
        assert abs(sizes[n] - share) < 5 * math.sqrt(share)


def test_problems_that_run_out_are_refused_when_they_are_drawn() -> None:
    """For instance where many prompts have the same sorted symbols and so are in one split."""
    data = CLASSES["parity"](0, longest=9, validation=9, test=51)
    data.sizes["test"] = 200
    with pytest.raises(ValueError, match=r"^data\.test must be at most 1\d\d, the different .* data=parity, got 200$"):
        whole_split(data, "test")


def test_problems_with_the_same_answer_for_the_same_reason_are_in_the_same_split() -> None:
    """Sorted prompts for sort, unordered pairs for addition."""
    for name, key in (("sort", sorted), ("addition", lambda p: sorted((p[: len(p) // 2], p[len(p) // 2 + 1 :])))):
        data = small(name, 0)
        keys = [{str(key(prompt)) for prompt, _ in parsed(data, whole_split(data, split).tokens)} for split in SPLITS]
        assert not keys[0] & keys[1]
        assert not keys[0] & keys[2]
        assert not keys[1] & keys[2]


def test_repeat_has_every_symbol_and_size_in_one_split_once() -> None:
    data = Repeat(5, symbols=12, shortest=3, longest=9)
    found = [
        (prompt[0], len(prompt)) for split in SPLITS for prompt, _ in parsed(data, whole_split(data, split).tokens)
    ]
    assert sorted(found) == [(symbol, n) for symbol in range(12) for n in range(3, 10)]
    assert [data.size(split) for split in SPLITS] == [84 - 16, 8, 8]


@pytest.mark.parametrize("name", DRAWN)
def test_all_sizes_with_many_problems_are_equally_likely_in_training(name: str) -> None:
    data = default(name)
    sizes = Counter(SIZE[name](len(prompt)) for prompt, _ in parsed(data, whole_split(data, "train").tokens))
    many = [n for n in data.n if n >= 8 or (n >= 3 and name != "parity")]
    share = sum(sizes[n] for n in many) / len(many)
    for n in many:
        assert abs(sizes[n] - share) < 5 * math.sqrt(share) + 0.02 * share


@pytest.mark.parametrize("name", DRAWN)
def test_a_split_does_not_depend_on_the_number_of_problems(name: str) -> None:
    more, fewer = default(name), CLASSES[name](0, train=200, validation=100, test=100)
    for split in SPLITS:
        size = fewer.size(split)
        assert torch.equal(whole_split(more, split).tokens[:size], whole_split(fewer, split).tokens)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_knowing_the_split_of_repeat_gives_the_lowest_loss_from_unordered_tokens(split: str) -> None:
    """Compare with the counts of next tokens after each bag of tokens in the split."""
    data = default("repeat")
    follow: dict[Prompt, Counter[int]] = defaultdict(Counter)
    for prompt, answer in parsed(data, whole_split(data, split).tokens):
        for slot, right in enumerate((*answer, data.symbols)):
            follow[tuple(sorted(prompt + answer[:slot]))][right] += 1
    surprise = [-n * math.log(n / found.total()) for found in follow.values() for n in found.values()]
    floors = data.floors(split)
    known = floors["position_blind_split_known"]
    assert known["loss"] == pytest.approx(math.fsum(surprise) / sum(map(Counter.total, follow.values())), **EXACT)
    assert known["loss"] < 0.3 * floors["position_blind"]["loss"]


@pytest.mark.parametrize(("name", "order"), [*((name, "little") for name in CLASSES), ("addition", "big")])
def test_what_follows_each_multiset_is_that_of_a_slow_enumeration(name: str, order: str) -> None:
    """For all multisets, also those that a split does not have."""
    options = {"addition": {"longest": 2, "order": order}, "parity": {"shortest": 2, "longest": 9}}
    options = options.get(name, {"symbols": 3, "longest": 6} if name != "sort" else {"longest": 4})
    fewer = {} if name == "repeat" else {"validation": 9, "test": 9}
    data = CLASSES[name](0, **options, **fewer)
    if name == "sort":
        data.symbols = 4  # too few to be split, but not to be counted
    bags: Following = defaultdict(lambda: defaultdict(Fraction))
    for n in data.n:
        everything = prompts(data, n)
        for prompt in everything:
            turned = prompt[:n][::-1] + prompt[n : n + 1] + prompt[n + 1 :][::-1] if order == "big" else prompt
            answer = ANSWERS[name](turned)
            answer = (*(answer[::-1] if order == "big" else answer), data.symbols)
            for slot, right in enumerate(answer):
                bags[tuple(sorted(prompt + answer[:slot]))][right] += Fraction(1, len(everything))
    counts = torch.tensor([[bag.count(symbol) for symbol in range(data.symbols)] for bag in bags])
    expected = torch.tensor(
        [
            [float(follow[token] / sum(follow.values())) for token in range(data.symbols + 1)]
            for follow in bags.values()
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(data.blind(counts, equal(data.n)), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("sizes", [range(1, 2), range(4, 5), range(2, 6), range(1, 6)])
@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize(("name", "count"), [("copy", half_written), ("reverse", half_written), ("sort", half_sorted)])
def test_multisets_are_counted_right_for_one_size_and_for_several(
    name: str, count: Callable[[Tensor, Tensor], Tensor], unequal: bool, sizes: range
) -> None:
    data = default(name)
    three = type(data)(0, **({"symbols": 3} if name != "sort" else {"symbols": 3, "longest": 40}))
    share = [n % 3 * unequal if n in sizes else 0 for n in range(sizes[-1] + 1)]
    if not any(share):
        share = [int(n in sizes) for n in range(sizes[-1] + 1)]
    bags, _ = following(three, {n: Fraction(number, sum(share)) for n, number in enumerate(share) if number})
    counts = torch.tensor([[bag.count(symbol) for symbol in range(3)] for bag in bags])
    expected = [[float(follow[t] / sum(follow.values())) for t in range(4)] for follow in bags.values()]
    share = torch.tensor(share, dtype=torch.float64) / sum(share)
    torch.testing.assert_close(
        count(counts, share), torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-13
    )


def multiplied(left: list[int], right: list[int]) -> list[int]:
    out = [0] * (len(left) + len(right) - 1)
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            out[i + j] += x * y
    return out


def in_integers(counts: list[int], sizes: range) -> list[float]:
    """Compute half_written in integers of any size."""
    total, symbols = sum(counts), len(counts)

    def orders(counts: list[int]) -> list[int]:
        """Return, by the number written, the orders of both parts times the product of the factorials of counts."""
        ways = [1]
        for c in counts:
            factor = [math.factorial(c) // (math.factorial(i) * math.factorial(c - 2 * i)) for i in range(c // 2 + 1)]
            ways = multiplied(ways, factor)
        return ways

    everything, follows = orders(counts), []
    for s, c in enumerate(counts):
        less = orders([x - (i == s) for i, x in enumerate(counts)]) if c else []
        follow = Fraction(0)
        for a, ways in enumerate(less):
            n = total - a
            if n in sizes and n > a:
                # the factorials of the counts with one less of s, put back
                follow += Fraction(math.factorial(a) * math.factorial(n - a - 1) * ways * c, symbols**n)
        follows.append(follow)
    end = Fraction(0)
    if total % 2 == 0 and total // 2 in sizes and not any(c % 2 for c in counts):
        n = total // 2
        end = Fraction(math.factorial(n) * everything[n], symbols**n)
    return [float(x / sum([*follows, end])) for x in (*follows, end)]


@pytest.mark.parametrize(("symbols", "sizes"), [(10, range(1, 17)), (10, range(64, 65)), (2, range(1, 65))])
def test_many_symbols_are_counted_as_in_whole_numbers(symbols: int, sizes: range) -> None:
    draw = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(12):
        n = int(torch.randint(sizes[0], sizes[-1] + 1, (1,), generator=draw))
        prompt = torch.randint(symbols, (n,), generator=draw)
        written = int(torch.randint(n + 1, (1,), generator=draw))
        rows.append(torch.cat((prompt, prompt[:written])).bincount(minlength=symbols).tolist())
        rows.append((2 * prompt.bincount(minlength=symbols)).tolist())
    expected = torch.tensor([in_integers(row, sizes) for row in rows], dtype=torch.float64)
    counts = torch.tensor(rows)
    share = equal(sizes)
    torch.testing.assert_close(half_written(counts, share), expected, rtol=1e-9, atol=1e-13)
    alone = torch.cat([half_written(row, share) for row in counts[:, None]])
    torch.testing.assert_close(alone, expected, rtol=1e-9, atol=1e-13)


def test_symbols_that_come_once_have_not_been_written() -> None:
    p = half_written(torch.tensor([[1, 1, 1, 0, 0], [1, 0, 2, 1, 0]]), equal(range(3, 4)))
    expected = [[1 / 3, 1 / 3, 1 / 3, 0, 0, 0], [1 / 2, 0, 0, 1 / 2, 0, 0]]
    torch.testing.assert_close(p, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    alone = half_written(torch.ones(1, 3, dtype=torch.long), equal(range(3, 4)))
    torch.testing.assert_close(alone[0], torch.tensor([1, 1, 1, 0]).double() / 3, rtol=1e-12, atol=0)


def test_the_most_symbols_counted_are_within_the_range_of_floats() -> None:
    """Also where all symbols are equal, the least likely prompts."""
    draw = torch.Generator().manual_seed(2)
    prompt = torch.cat((torch.randint(10, (50, 128), generator=draw), torch.full((1, 128), 3)))
    counts = torch.stack([(prompt == symbol).sum(1) for symbol in range(10)], 1)
    for written in (0, 1, 64, 127, 128):
        so_far = counts + torch.stack([(prompt[:, :written] == symbol).sum(1) for symbol in range(10)], 1)
        for sizes in (range(128, 129), range(1, 129)):
            p = half_written(so_far, equal(sizes))
            assert p.isfinite().all()
            torch.testing.assert_close(p.sum(1), torch.ones(51, dtype=torch.float64), rtol=1e-10, atol=0)
    assert half_written(2 * counts, equal(range(128, 129)))[:, 10].eq(1).all()


@pytest.mark.parametrize("name", CLASSES)
def test_the_loss_of_the_position_blind_predictor_is_its_entropy(name: str) -> None:
    """On problems drawn from the generating distribution, at the sizes of the study: a simulation."""
    data = default(name)
    draw = torch.Generator().manual_seed(9)
    n = torch.randint(data.n[0], data.n[-1] + 1, (3000,), generator=draw)
    if name == "repeat":
        prompt = torch.randint(data.symbols, (3000, 1), generator=draw).expand(-1, 16)
    else:
        prompt = data.draw(n, draw)
    batch = data.write(n, prompt)
    p = data.blind(data.counts(batch), equal(data.n))
    torch.testing.assert_close(p.sum(1), torch.ones(len(p), dtype=torch.float64), rtol=1e-10, atol=0)
    asked = batch.targets != IGNORE
    right = batch.targets[asked].clamp(max=data.symbols)
    surprise = -p.gather(1, right[:, None])[:, 0].log()
    excess = surprise + torch.xlogy(p, p).sum(1)
    end = (right == data.symbols).double() - p[:, -1]
    row = asked.nonzero()[:, 0]
    for difference in (excess, end):
        by_sequence = torch.zeros(3000, dtype=torch.float64).index_add_(0, row, difference)
        assert abs(by_sequence.mean()) < 4 * by_sequence.std() / math.sqrt(3000) + 1e-12
    assert surprise.mean() > 0.1


@pytest.mark.parametrize("name", CLASSES)
def test_perfect_predictors_reach_the_floors(name: str) -> None:
    data = small(name, 0)
    batch = whole_split(data, "test")
    asked = batch.targets != IGNORE
    floors = data.floors("test")
    right = batch.targets[asked]
    sure = torch.full((len(right), data.task.outputs), -torch.inf).scatter(1, right[:, None], 0.0)
    blind = torch.zeros(len(right), data.task.outputs, dtype=torch.float64)
    blind[:, [*range(data.symbols), data.symbols + 2]] = data.blind(data.counts(batch), data.share(batch))
    for level, logits in (("bayes", sure), ("position_blind", blind.log().float())):
        everywhere = torch.zeros(*asked.shape, data.task.outputs)
        everywhere[asked] = logits
        reached = batch_metrics(everywhere, batch, data.roles)
        losses = {name: value for name, value in floors[level].items() if name.startswith("loss")}
        assert {name: reached[name] for name in losses} == pytest.approx(losses, rel=1e-5, abs=1e-7)
        if level == "bayes":
            assert {name: reached[name] for name in floors[level]} == floors[level]


@pytest.mark.covering
@pytest.mark.parametrize("factor", [1.25, 2, 4])
@pytest.mark.parametrize("name", CLASSES)
def test_longer_problems_have_one_size_and_are_right(name: str, factor: float) -> None:
    data = default(name)
    whole_split(data, "test")  # what is made of one size must not be taken for the other
    longer = data.longer(factor)
    n = {"addition": {1.25: 4, 2: 6, 4: 12}}.get(name, {1.25: 20, 2: 32, 4: 64})[factor]
    batch = whole_split(longer, "test")
    assert len(batch) == (100 if name == "repeat" else 1000)
    assert batch.tokens.shape[1] == longer.task.length == {"addition": 3 * n + 5, "parity": n + 4}.get(name, 2 * n + 3)
    found = parsed(longer, batch.tokens)
    for prompt, answer in found:
        assert SIZE[name](len(prompt)) == n
        assert answer == ANSWERS[name](prompt)
    assert len(set(found)) == len(found)
    trained = {prompt for split in SPLITS for prompt, _ in parsed(data, whole_split(data, split).tokens)}
    assert not trained & {prompt for prompt, _ in found}
    assert (longer.size("train"), longer.size("validation")) == (0, 0)
    assert torch.equal(whole_split(default(name), "test").tokens, whole_split(CLASSES[name](0), "test").tokens)


@pytest.mark.parametrize("name", CLASSES)
def test_longer_problems_have_floors_where_they_can_be_counted(name: str) -> None:
    longer = small(name, 0).longer(1.25 if name in ("addition", "parity") else 2)
    floors = longer.floors("test")
    assert floors["bayes"]["loss"] == 0
    n = longer.n[0]
    if name in ("copy", "reverse", "sort", "repeat"):
        share = 1 / (n + 1)
        entropy = -share * math.log(share) - (1 - share) * math.log((1 - share) / longer.symbols)
        assert floors["prior"]["loss"] == pytest.approx(entropy)
    if name == "addition":
        assert "position_blind" not in floors
    elif name in ("copy", "reverse"):
        assert 0.5 < floors["position_blind"]["loss"] < floors["prior"]["loss"]
        assert floors["position_blind"]["loss_end"] == 0
    else:
        assert floors["position_blind"]["loss"] == pytest.approx(0, abs=1e-12)


def test_the_position_blind_floor_is_left_out_where_it_is_too_much_to_count() -> None:
    data = Copy(0, test=5)
    assert data.longer(8).floors("test").keys() == {"bayes", "position_blind", "prior"}
    assert data.longer(8.0625).floors("test").keys() == {"bayes", "prior"}
    assert Addition(0, longest=4, test=5).floors("test").keys() == {"bayes", "prior"}


@pytest.mark.parametrize(("longest", "factor", "n"), [(10, 1.25, 12), (10, 1.35, 14), (9, 1.5, 14), (7, 1.5, 10)])
def test_longer_sizes_are_rounded_and_halves_to_even(longest: int, factor: float, n: int) -> None:
    assert list(Copy(0, longest=longest).longer(factor).n) == [n]


@pytest.mark.parametrize("factor", [1, 1.01, 0.5, 1.03125])
def test_a_factor_that_leads_to_no_longer_size_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match=r"^evaluate\.lengths must lead to a size above data\.longest, 16, .*copy"):
        Copy(0).longer(factor)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("copy", {"symbols": 1}, "symbols must be an integer of at least 2, got 1"),
        ("copy", {"symbols": 2.5}, "symbols must be an integer of at least 2, got 2.5"),
        ("copy", {"shortest": 0}, "shortest must be an integer of at least 1, got 0"),
        ("reverse", {"longest": 0}, "longest must be an integer of at least 1, got 0"),
        ("sort", {"shortest": 17}, "shortest must be at most longest, 16, got 17"),
        ("copy", {"train": 0}, "train must be an integer of at least 1, got 0"),
        ("parity", {"test": -1}, "test must be an integer of at least 1, got -1"),
        ("copy", {"longest": 2}, "longest must leave at least 500 different problems to split, got 2"),
        ("sort", {"longest": 3}, "longest must leave at least 500 different problems to split, got 3"),
        ("addition", {"longest": 1}, "longest must leave at least 500 different problems to split, got 1"),
        ("parity", {"longest": 7}, "longest must leave at least 500 different problems to split, got 7"),
        (
            "parity",
            {"longest": 9, "validation": 51},
            "test must be at most 51, a twentieth of the 1,022 problems of parity, so that none comes twice, got 1000",
        ),
        (
            "addition",
            {"longest": 2, "validation": 506, "test": 505},
            "validation must be at most 505, a twentieth of the 10,100 problems of addition, so that none "
            "comes twice, got 506",
        ),
        ("repeat", {"symbols": 3, "longest": 3}, "longest must leave at least 10 problems to split, got 3"),
        ("addition", {"order": "middle"}, "order must be one of little, big, got 'middle'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CLASSES[name](0, **options)


def test_a_dataset_of_millions_of_symbols_is_made_at_once() -> None:
    """Nothing is drawn or counted before it is used, here of 10 ** 1,000,000 problems."""
    assert Copy(0, longest=1_000_000, train=10**9).size("train") == 10**9


@pytest.mark.parametrize("kind", [Copy, Reverse, Sort])
def test_bands_have_all_sizes_up_to_the_longest(kind: type[Copy]) -> None:
    sizes = {"train": 300, "validation": 100, "test": 300}
    data = kind(0, longest=10, bands=True, **sizes)
    longer = data.longer(2)
    assert longer.n == range(11, 21)
    assert kind(0, longest=10, **sizes).longer(2).n == range(20, 21)
    lengths = (longer.whole("test").tokens != data.symbols + 3).sum(1)
    assert sorted(set(lengths.tolist())) == [2 * n + 3 for n in longer.n]
