"""What the attention kernels take of a GPU, compiled ahead of time for GPUs that need not be here."""

import csv
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, product
from os import cpu_count
from pathlib import Path

import torch

from pe_lab.attention.triton.ahead import SHARED_MEMORY, STICK, Case, Resources, compile_ahead
from pe_lab.attention.triton.operators import OPTIONAL
from pe_lab.bench.presets import presets, terms_of
from pe_lab.encodings.base import Softmax

ARCHITECTURES = tuple(SHARED_MEMORY)
COLUMNS = ("kernel", "architecture", "dtype", "head_dim", "causal", "options", "m", "n", "warps", "stages")
COLUMNS += ("registers", "spilled", "shared", "limit", "products", "fault")
PRESET = {"dtype": torch.bfloat16, "head_dim": 64, "causal": True}
SOFTMAX = ("forward", "backward_keys", "backward_queries", "backward_tables")
FACTORS = {
    "architecture": ARCHITECTURES,
    "dtype": (torch.bfloat16, torch.float32),
    "head_dim": (64, 128, 80, 32, 16),
    "causal": (True, False),
    **dict.fromkeys(OPTIONAL, (False, True)),
}


def list_resources(architectures: list[str], configs: Path, full: bool, to: Path | None) -> None:
    """Print a row per case, write them to a CSV file, and exit with 1 if one of them is at fault.

    Args:
        configs: conf/pe, whose every encoding is in the table besides the pairs.
        full: all options with one another, some 7,000 compilations, instead of every pair of options.
    """
    cases = dict.fromkeys((*(every() if full else cover()), *of_presets(configs)))
    cases = [case for case in cases if case.architecture in architectures]
    faults = 0
    file = to.open("w", newline="") if to else None
    writer = csv.DictWriter(file or sys.stdout, COLUMNS)
    writer.writeheader()
    with ProcessPoolExecutor(cpu_count()) as processes:
        for case, taken in zip(cases, processes.map(compile_ahead, cases), strict=True):
            row = _row(case, taken)
            faults += bool(row["fault"])
            writer.writerow(row)
            if file:
                print(*(row[column] for column in COLUMNS), flush=True)
    if file:
        file.close()
    if faults:
        print(f"error: {faults} of {len(cases)} kernels take more than there is", file=sys.stderr)
        sys.exit(1)


def fault(case: Case, taken: Resources) -> str:
    """What a GPU cannot give, or should not have to: shared memory; registers, in bfloat16."""
    if taken.shared > SHARED_MEMORY[case.architecture]:
        return "shared memory"
    return "spills" if taken.spilled and case.dtype == torch.bfloat16 else ""


def cover() -> list[Case]:
    """Every pair of values of any two of FACTORS, in as few choices of all of them as a greedy search finds."""
    names = list(FACTORS)
    missing = {((a, x), (b, y)) for a, b in combinations(names, 2) for x, y in product(FACTORS[a], FACTORS[b])}
    chosen = []
    while missing:
        first = min(missing, key=str)
        choice = dict(first)
        for name in names:
            if name not in choice:
                choice[name] = max(
                    FACTORS[name], key=lambda value, name=name: _covered(choice | {name: value}, missing)
                )
        missing -= _pairs(choice, names)
        chosen.append(choice)
    return [case for choice in chosen for case in _cases(choice)] + [*_rotations(), *_sticks()]


def of_presets(configs: Path) -> Iterator[Case]:
    """What the encodings of conf/pe need, in bfloat16 with 64 lanes."""
    for make in presets(configs).values():
        try:
            terms, _ = terms_of(make, 1, 32, 4, 64, torch.device("cpu"))
        except ValueError:
            continue  # of another nature than a causal sequence
        if not isinstance(terms.weights, Softmax) or terms.score is not None or terms.bias_full is not None:
            continue
        there = frozenset(name for name in ("BIAS", "GATE", "DECAY") if getattr(terms, name.lower()) is not None)
        for architecture in ARCHITECTURES:
            yield from _cases({"architecture": architecture} | PRESET | {name: name in there for name in OPTIONAL})


def every() -> Iterator[Case]:
    """All choices of FACTORS."""
    for values in product(*FACTORS.values()):
        yield from _cases(dict(zip(FACTORS, values, strict=True)))
    yield from (*_rotations(), *_sticks())


def _covered(choice: dict, missing: set) -> int:
    return len(_pairs(choice, list(FACTORS)) & missing)


def _pairs(choice: dict, names: list[str]) -> set:
    there = [(name, choice[name]) for name in names if name in choice]
    return set(combinations(there, 2))


def _cases(choice: dict) -> Iterator[Case]:
    there = frozenset(option for option in OPTIONAL if choice[option])
    for kernel in SOFTMAX:
        if kernel != "backward_tables" or there & {"BIAS", "GATE"}:
            what = (choice["architecture"], choice["dtype"], choice["head_dim"], choice["causal"])
            yield Case(kernel, *what, there)


def _rotations() -> Iterator[Case]:
    """Both pairings, with and without gain and gradients of the tables."""
    options: Iterable[frozenset[str]] = (frozenset(), frozenset({"GAIN", "TABLES"}), frozenset({"HALF", "TABLES"}))
    for architecture, dtype in product(ARCHITECTURES, FACTORS["dtype"]):
        yield Case("sums", architecture, dtype, 64, True, frozenset())
        for there, kernel in product(options, ("rotate_forward", "rotate_backward")):
            yield Case(kernel, architecture, dtype, 64, True, there)


def _sticks() -> Iterator[Case]:
    """What `rse` and `stick_breaking` are, and the other options together."""
    choices = (
        (torch.bfloat16, 64, True, frozenset({"DOWN", "SELF", "BIAS"})),
        (torch.bfloat16, 64, True, frozenset({"DOWN", "OWN", "SEGMENTED"})),
        (torch.float32, 80, False, frozenset({"SELF", "BIAS", "SEGMENTED"})),
    )
    for architecture, choice, kernel in product(ARCHITECTURES, choices, STICK):
        if kernel.__name__ != "stick_backward_tables" or "BIAS" in choice[-1]:
            yield Case(kernel.__name__, architecture, *choice)


def _row(case: Case, taken: Resources) -> dict[str, object]:
    blocks = case.blocks
    shape = ("", "", "", "") if blocks is None else (blocks.m, blocks.n, blocks.warps, blocks.stages)
    values = (case.kernel, case.architecture, str(case.dtype).removeprefix("torch."), case.head_dim, case.causal)
    values += ("+".join(sorted(case.there)).lower(), *shape, taken.registers, taken.spilled, taken.shared)
    values += (SHARED_MEMORY[case.architecture], taken.products, fault(case, taken))
    return dict(zip(COLUMNS, values, strict=True))
