"""All sequences of datasets at small options, listed one by one, to count them and to check floors."""

from itertools import combinations, permutations, product

import torch
from torch import Tensor

from pe_lab.data.base import Batch, Dataset
from pe_lab.data.posgen import PosGen
from pe_lab.data.retrieval import Needle, QuestionAnswering, VariableTracking
from pe_lab.data.words import CommonWords, FrequentWords

# a dataset with exact floors and small options, all its sequences, and their weights
Everything = tuple[Dataset, Batch, Tensor]
FEW = {"train": 300, "validation": 50, "test": 50}


def equally_likely(data: QuestionAnswering | PosGen, rows: set[tuple[int, ...]]) -> Everything:
    return data, data.write(torch.tensor(sorted(rows))), torch.ones(len(rows), dtype=torch.float64)


def texts(pieces: list[tuple[int, ...]], room: int, fillers: int) -> list[tuple[int, ...]]:
    """Return every text with these pieces in their order and fillers around them."""
    found = []
    for places in combinations(range(room + len(pieces)), len(pieces)):
        for fill in product(range(fillers), repeat=room):
            rest, order = iter((filler,) for filler in fill), iter(pieces)
            parts = [next(order) if place in places else next(rest) for place in range(room + len(pieces))]
            found.append(tuple(token for part in parts for token in part))
    return found


def haystacks(keys: int, values: int, queries: int, digits: int, names: int, symbols: int, room: int) -> Everything:
    """Return all sequences of Needle with one filler."""
    length = keys * values * (1 + digits) + room + 1 + queries + queries * values * digits
    options = {"keys": keys, "values": values, "queries": queries, "digits": digits, "names": names, **FEW}
    data = Needle(0, length=length, symbols=symbols, fillers=1, **options)
    rows = set()
    of_symbols = list(product(range(1 + names, 1 + names + symbols), repeat=digits))
    for chosen in combinations(range(1, 1 + names), keys):
        for order in set(permutations(chosen * values)):
            for written in product(of_symbols, repeat=len(order)):
                needles = [(key, *value) for key, value in zip(order, written, strict=True)]
                for asked in permutations(chosen, queries):
                    answer = [s for key in asked for needle in needles if needle[0] == key for s in needle[1:]]
                    rows |= {(*text, 1 + names + symbols, *asked, *answer) for text in texts(needles, room, 1)}
    return equally_likely(data, rows)


def assignments(chains: int, hops: int, names: int, values: int, room: int) -> Everything:
    """Return all sequences of VariableTracking with one filler."""
    number = chains * (hops + 1)
    options = {"chains": chains, "hops": hops, "names": names, "values": values, "fillers": 1, **FEW}
    data = VariableTracking(0, length=3 * number + room + 2 + hops + 1, **options)
    equals = 1 + names + values
    rows = set()
    for order in set(permutations([chain for chain in range(chains) for _ in range(hops + 1)])):
        for variables in permutations(range(1, 1 + names), number):
            for given in permutations(range(1 + names, equals), chains):
                left, written = iter(variables), [[value] for value in given]
                pieces = []
                for chain in order:
                    written[chain].append(next(left))
                    pieces.append((equals, *written[chain][:-3:-1]))
                rows |= {(*text, equals + 1, *written[0]) for text in texts(pieces, room, 1)}
    return equally_likely(data, rows)


def arrangements(times: list[int]) -> list[tuple[int, ...]]:
    """Return every order of numbers 0, 1 ... that occur so often."""
    if not any(times):
        return [()]
    rest = [(n, [t - (n == m) for m, t in enumerate(times)]) for n, left in enumerate(times) if left]
    return [(n, *others) for n, left in rest for others in arrangements(left)]


def lists(data: CommonWords | FrequentWords, times: list[int], noise: int) -> Everything:
    """Return all sequences with words that occur so often, among noise: a token before the words."""
    first = int(noise > 0)
    orders = arrangements([*times, noise])
    rows = set()
    for chosen in permutations(range(first, first + data.words), len(times)):
        answer = sorted(range(data.answer), key=lambda rank, chosen=chosen: (-times[rank], chosen[rank]))
        end = (first + data.words, *(chosen[rank] for rank in answer))
        rows |= {(*((*chosen, 0)[place] for place in order), *end) for order in orders}
    return equally_likely(data, rows)


def sums(**options: int) -> Everything:
    data = PosGen(0, **options, **FEW)
    first = torch.tensor(list(product(range(data.modulus), repeat=data.near + data.far)))
    return data, data.write(data.continued(first)), torch.ones(len(first), dtype=torch.float64)
