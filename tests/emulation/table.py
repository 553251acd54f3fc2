"""The table of emulated cases: `python -m emulation.table FILE [--every]` runs them and writes it.

With `tests` on the path and without TRITON_INTERPRET.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from emulation.cases import FAMILIES, Case, Outcome, check
from emulation.driver import MAX_SHARED_BYTES

DTYPES = (torch.bfloat16, torch.float32)
LENGTHS = (1, 2, 17, 63, 64, 65, 129, 150)
HEAD_DIMS = (128, 1, 24, 80, 6, 10, 48, 32, 128, 40)  # of the families, in their order: the second head size of a row
HEADER = "| architecture | family | dtype | cases | largest error / bound | hazards | remarks | launches | seconds |"


def cases(architecture: str, family: str, dtype: torch.dtype, every: bool) -> list[Case]:
    """Return the cases of a row: lengths at one head size; another head size with packed sequences and dropout.

    Args:
        every: add all head sizes, masks and options, which takes many compilations.
    """
    batch = 2 if family == "rotation of sequences" else 1
    base = Case(family, architecture, dtype, batch=batch, head_dim=64 if dtype == torch.bfloat16 else 16)
    made = [replace(base, length=length) for length in LENGTHS]
    dropout = 0.0 if family.startswith("stick") else 0.3
    other = HEAD_DIMS[list(FAMILIES).index(family)]
    mixed = replace(base, causal=False, packed=True, dropout=dropout, head_dim=other)
    made += [replace(mixed, length=length) for length in (37, 131)]
    if every:
        made += [replace(base, length=97, head_dim=dims) for dims in (2, 16, 24, 32, 64, 80, 128)]
        made += [replace(base, length=131, causal=causal, packed=True, batch=2) for causal in (True, False)]
        made += [replace(base, length=70, causal=False, heads=3, strided=False)]
        made += [replace(base, length=99, causal=causal, dropout=dropout) for causal in (True, False) if dropout]
    return made


def row(architecture: str, family: str, dtype: torch.dtype, every: bool = False) -> tuple[str, list[str]]:
    """Run the cases of a row; return it, and what is wrong."""
    start = time.process_time()
    made = cases(architecture, family, dtype, every)
    outcomes = [check(case) for case in made]
    wrong = [f"{case}: {text}" for case, outcome in zip(made, outcomes, strict=True) for text in outcome.wrong]
    error, bound = max((pair for outcome in outcomes for pair in outcome.errors.values()), key=lambda p: p[0] / p[1])
    name = str(dtype).removeprefix("torch.")
    cells = [architecture, family, name, str(len(made)), f"{error:.1e} / {bound:.1e}", *_counts(outcomes)]
    return f"| {' | '.join([*cells, f'{time.process_time() - start:.0f}'])} |", wrong


def _counts(outcomes: list[Outcome]) -> Iterator[str]:
    yield str(sum(sum(outcome.hazards.values()) for outcome in outcomes))
    yield str(sum(sum(outcome.remarks.values()) for outcome in outcomes))
    yield str(sum(outcome.launches for outcome in outcomes))


def main() -> None:
    """Write the table, row by row; rows that the file has are kept."""
    path, *options = Path(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(1)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else [HEADER, "|---" * 9 + "|"]
    first = [("sm_90", DTYPES[0]), ("sm_80", DTYPES[1])]
    second = [(architecture, dtype) for architecture in MAX_SHARED_BYTES for dtype in DTYPES]
    for family, (architecture, dtype) in (*product(FAMILIES, first), *product(FAMILIES, second)):
        if any(
            line.startswith(f"| {architecture} | {family} | {str(dtype).removeprefix('torch.')} ") for line in lines
        ):
            continue
        line, wrong = row(architecture, family, dtype, "--every" in options)
        lines += [line, *(f"- wrong: {text}" for text in wrong)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(line, *wrong, sep="\n", flush=True)


if __name__ == "__main__":
    main()
