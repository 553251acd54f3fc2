"""List registers, spills and shared memory of the attention kernels, compiled for GPUs that need not be present.

Every combination of two options, shapes and architectures is compiled, rotations included, and a limit that a kernel
exceeds is an error; static.py counts what a pair of positions costs, for the causal case of each key of blocks.json.
"""

import csv
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, product
from os import cpu_count
from pathlib import Path
from typing import Any

import torch

from benchmarks import CONFIGS, run_benchmark
from benchmarks.ahead import SHARED_MEMORY, STICK, KernelCase, Resources, compile_ahead
from benchmarks.presets import presets, terms_of
from pe_lab.attention.triton.operators import OPTIONAL_TERMS
from pe_lab.encodings.terms import Softmax
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message

ARCHITECTURES = tuple(SHARED_MEMORY)
COLUMNS = (
    *("kernel", "architecture", "dtype", "head_dim", "causal", "options", "m", "n", "warps", "stages"),
    *("registers", "spilled", "shared", "limit", "products", "fault"),
)
PRESET = {"dtype": torch.bfloat16, "head_dim": 64, "causal": True}
SOFTMAX = ("forward", "backward_keys", "backward_queries", "backward_tables")
FACTORS: dict[str, tuple[Any, ...]] = {
    "architecture": ARCHITECTURES,
    "dtype": (torch.bfloat16, torch.float32),
    "head_dim": (64, 128, 80, 32, 16),
    "causal": (True, False),
    **dict.fromkeys(OPTIONAL_TERMS, (False, True)),
}
Choice = dict[str, Any]  # a value of each factor
Pair = tuple[tuple[str, Any], tuple[str, Any]]  # two factors, each with a value


def main() -> None:
    """Read the arguments and list what the kernels use; exit with status 1 if one exceeds a limit."""
    parser = Parser("benchmarks resources", description=__doc__)
    parser.add_argument("--architecture", nargs="+", default=ARCHITECTURES, help="only these architectures")
    parser.add_argument("--full", action="store_true", help="every option with every other, not each pair of them")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as CSV")
    run_benchmark(parser, _list)


def _list(arguments: Namespace) -> int:
    for name in arguments.architecture:
        if name not in ARCHITECTURES:
            raise ValueError(unknown_name_message("--architecture", ARCHITECTURES, name))
    return 0 if list_resources(arguments.architecture, CONFIGS / "pe", arguments.full, arguments.to) else 1


def list_resources(architectures: Sequence[str], configs: Path, full: bool, to: Path | None) -> bool:
    """Print a row per case, write them to a CSV file, and return whether none exceeds a limit.

    Args:
        configs: the folder conf/pe; the terms of each encoding there are cases as well.
        full: whether to compile all combinations of options, about 7,000, instead of every pair of values.
    """
    distinct = dict.fromkeys((*(every_case() if full else covering_cases()), *preset_cases(configs)))
    cases = [case for case in distinct if case.architecture in architectures]
    faults = 0
    file = to.open("w", newline="", encoding="utf-8") if to else None
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
        print(
            f"error: {faults} of {len(cases)} kernels exceed the registers or shared memory of their GPU",
            file=sys.stderr,
        )
    return not faults


def exceeded_limit(case: KernelCase, taken: Resources) -> str:
    """Return the limit that a kernel exceeds: shared memory, or registers (spills) in bfloat16; empty for none."""
    if taken.shared > SHARED_MEMORY[case.architecture]:
        return "shared memory"
    return "spills" if taken.spilled and case.dtype == torch.bfloat16 else ""


def covering_cases() -> list[KernelCase]:
    """Return cases that contain every pair of values of any two FACTORS, chosen by a greedy search for few cases."""
    names = list(FACTORS)
    missing = {((a, x), (b, y)) for a, b in combinations(names, 2) for x, y in product(FACTORS[a], FACTORS[b])}
    chosen = []
    while missing:
        first = min(missing, key=str)
        choice = dict(first)
        for name in names:
            if name not in choice:
                covered = [_covered(choice | {name: value}, missing) for value in FACTORS[name]]
                choice[name] = FACTORS[name][covered.index(max(covered))]
        missing -= _pairs(choice, names)
        chosen.append(choice)
    return [case for choice in chosen for case in _cases(choice)] + [*_rotations(), *_sticks()]


def preset_cases(configs: Path) -> Iterator[KernelCase]:
    """Yield the cases that the encodings of conf/pe need, in bfloat16 with head dimension 64."""
    for make in presets(configs).values():
        try:
            terms, _ = terms_of(make, 1, 32, 4, 64, torch.device("cpu"))
        except ValueError:
            continue  # not defined for a causal sequence
        if not isinstance(terms.normalizer, Softmax) or terms.content_bias is not None or terms.pair_bias is not None:
            continue
        tables = {"BIAS": terms.distance_bias, "GATE": terms.logit_factors, "DECAY": terms.decay}
        enabled = frozenset(name for name, table in tables.items() if table is not None)
        for architecture in ARCHITECTURES:
            yield from _cases(
                {"architecture": architecture} | PRESET | {name: name in enabled for name in OPTIONAL_TERMS}
            )


def every_case() -> Iterator[KernelCase]:
    """Yield all combinations of FACTORS."""
    for values in product(*FACTORS.values()):
        yield from _cases(dict(zip(FACTORS, values, strict=True)))
    yield from (*_rotations(), *_sticks())


def _covered(choice: Choice, missing: set[Pair]) -> int:
    """Return how many missing pairs a choice contains."""
    return len(_pairs(choice, list(FACTORS)) & missing)


def _pairs(choice: Choice, names: list[str]) -> set[Pair]:
    """Return the pairs of values in a choice."""
    values = [(name, choice[name]) for name in names if name in choice]
    return set(combinations(values, 2))


def _cases(choice: Choice) -> Iterator[KernelCase]:
    """Yield a case per softmax kernel that a choice needs."""
    enabled = frozenset(option for option in OPTIONAL_TERMS if choice[option])
    for kernel in SOFTMAX:
        if kernel != "backward_tables" or enabled & {"BIAS", "GATE"}:
            yield KernelCase(
                kernel, choice["architecture"], choice["dtype"], choice["head_dim"], choice["causal"], enabled
            )


def _rotations() -> Iterator[KernelCase]:
    """Yield rotations in both pairings, with and without gain and gradients of the tables."""
    options: Iterable[frozenset[str]] = (frozenset(), frozenset({"GAIN", "TABLES"}), frozenset({"HALF", "TABLES"}))
    for architecture, dtype in product(ARCHITECTURES, FACTORS["dtype"]):
        yield KernelCase("sums", architecture, dtype, 64, True, frozenset())
        for enabled, kernel in product(options, ("rotate_forward", "rotate_backward")):
            yield KernelCase(kernel, architecture, dtype, 64, True, enabled)


def _sticks() -> Iterator[KernelCase]:
    """Yield the stick-breaking kernels of `rse` and `stick_breaking`, and one with the other options."""
    choices = (
        (torch.bfloat16, 64, True, frozenset({"DOWN", "SELF", "BIAS"})),
        (torch.bfloat16, 64, True, frozenset({"DOWN", "OWN", "SEGMENTED"})),
        (torch.float32, 80, False, frozenset({"SELF", "BIAS", "SEGMENTED"})),
    )
    for architecture, choice, kernel in product(ARCHITECTURES, choices, STICK):
        if kernel.__name__ != "stick_backward_tables" or "BIAS" in choice[-1]:
            yield KernelCase(kernel.__name__, architecture, *choice)


def _row(case: KernelCase, taken: Resources) -> dict[str, object]:
    """Return the row of a case."""
    blocks = case.blocks
    shape = ("", "", "", "") if blocks is None else (blocks.m, blocks.n, blocks.warps, blocks.stages)
    values = (
        *(case.kernel, case.architecture, str(case.dtype).removeprefix("torch."), case.head_dim, case.causal),
        *("+".join(sorted(case.enabled)).lower(), *shape, taken.registers, taken.spilled, taken.shared),
        *(SHARED_MEMORY[case.architecture], taken.products, exceeded_limit(case, taken)),
    )
    return dict(zip(COLUMNS, values, strict=True))
