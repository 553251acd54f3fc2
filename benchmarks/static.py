"""Count the machine instructions of the attention kernels, compiled for GPUs that need not be present.

Every key of blocks.json is compiled for its architecture and disassembled. The innermost loops over tiles are found by
their backward branches. What they hold, times the threads of a program, over the pairs of a tile, is the number of
instructions that one pair of positions costs. A tile that is computed by two sets of threads shows in its exponentials.
"""

import csv
import re
import sys
from argparse import Namespace
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch

from benchmarks import run_benchmark
from benchmarks.ahead import KernelCase, build, disassemble, resources
from pe_lab.attention.triton import launch_parameters
from pe_lab.attention.triton.launch_parameters import INTERPRETER, Blocks
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message

LOADS = {"plain": (), "table": ("BIAS",), "mixed": ("BIAS", "GATE", "DECAY", "DROPOUT")}
STICK = ("DOWN", "SELF")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", re.MULTILINE)
BRANCH = re.compile(r"BRA\b.*?(0x[0-9a-f]+)")
ATOMIC = re.compile(r"\b(atom|red)\.")  # in PTX; machine code allocates the memory of tensor cores by atomics
LOCAL = re.compile(r"(LDL|STL)\b")
EXPONENTIAL = "MUFU.EX2"


@dataclass(frozen=True)
class Count:
    """What a compiled kernel uses.

    Args:
        registers: the number of registers per thread.
        spilled: bytes of stack per thread.
        local: the number of instructions that read or write local memory.
        shared: bytes of shared memory per program.
        products: the instruction of the matrix products.
        atomics: the number of atomic instructions.
        exponentials, instructions: the number per pair of positions, in tiles without a mask where there are such
            tiles.
        masked: the number of instructions per pair in tiles with a mask.
    """

    registers: int
    spilled: int
    local: int
    shared: int
    products: str
    atomics: int
    exponentials: float
    instructions: float
    masked: float


COLUMNS = ("architecture", "key", "m", "n", "warps", "stages", *(field.name for field in fields(Count)))


def main() -> None:
    """Read the arguments and list the counts, or choose blocks by them."""
    parser = Parser("benchmarks static", description=__doc__)
    parser.add_argument("--architecture", nargs="+", default=[], help="only these architectures")
    parser.add_argument("--keys", default="", metavar="PATTERN", help="only keys that match, as 'forward bfloat16 64'")
    parser.add_argument("--packed", action="store_true", help="kernels for packed documents")
    parser.add_argument("--processes", type=int, default=1, help="that compile at a time (%(default)s)")
    parser.add_argument("--choose", action="store_true", help="keep the blocks of least cost in the package's table")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table there too, as CSV")
    run_benchmark(parser, _count)


def _count(arguments: Namespace) -> None:
    for name in arguments.architecture:
        if name not in launch_parameters.load_blocks():
            raise ValueError(unknown_name_message("--architecture", launch_parameters.load_blocks(), name))
    if arguments.choose:
        from benchmarks.choosing import choose_blocks  # which counts by this module

        choose_blocks(arguments.architecture, arguments.keys, arguments.processes)
    else:
        list_counts(arguments.architecture, arguments.keys, arguments.packed, arguments.processes, arguments.to)


def count(case: KernelCase, blocks: Blocks | None = None) -> Count:
    """Compile a kernel, with its own blocks or with these, and count its instructions."""
    chosen = blocks or case.blocks
    if chosen is None:
        raise ValueError(f"instructions per pair are counted for attention kernels, got {case.kernel}")
    compiled = build(case, blocks)
    listing = disassemble(compiled.asm["cubin"])
    used = resources(compiled, listing)
    code = [(int(address, 16), text) for address, text in INSTRUCTION.findall(listing)]
    threads_per_pair = 32 * chosen.warps / (chosen.m * chosen.n)
    tiles = [body for body in innermost_loops(code) if any(EXPONENTIAL in text for text in body)]
    costs = sorted(
        (len(body) * threads_per_pair, sum(EXPONENTIAL in text for text in body) * threads_per_pair) for body in tiles
    )
    return Count(
        used.registers,
        used.spilled,
        sum(bool(LOCAL.match(text)) for _, text in code),
        used.shared,
        used.products,
        len(ATOMIC.findall(compiled.asm["ptx"])),
        round(costs[0][1], 3),
        round(costs[0][0], 2),
        round(costs[-1][0], 2),
    )


def innermost_loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """Return the instructions of every loop that contains no other, given addresses and instructions.

    A loop reaches from the target of a backward branch to that branch.
    """
    indices = {address: index for index, (address, _) in enumerate(code)}
    loops = set()
    for index, (_, text) in enumerate(code):
        branch = BRANCH.match(text)
        target = indices.get(int(branch[1], 16)) if branch else None
        if target is not None and target < index:
            loops.add((target, index))
    return [
        [text for _, text in code[first : last + 1]]
        for first, last in sorted(loops)
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in loops)
    ]


def case_of(architecture: str, key: str, packed: bool = False) -> KernelCase:
    """Return the case that a key of blocks.json stands for: causal, with the terms of its load."""
    kernel, dtype, head_dim, load = key.split()
    packing = ("SEGMENTED",) if packed else ()
    options = frozenset((*LOADS[load], *packing, *(STICK if kernel.startswith("stick") else ())))
    return KernelCase(kernel, architecture, getattr(torch, dtype), int(head_dim), True, options)


def keys(architectures: Collection[str], pattern: str = "") -> Iterator[tuple[str, str]]:
    """Yield architectures and keys of blocks.json whose key matches a regular expression."""
    for architecture, part in launch_parameters.load_blocks().items():
        if architecture != INTERPRETER and (not architectures or architecture in architectures):
            yield from ((architecture, key) for key in part if re.search(pattern, key))


def list_counts(architectures: list[str], pattern: str, packed: bool, processes: int, to: Path | None) -> None:
    """Print a row per key of blocks.json, and write them to a CSV file.

    Args:
        packed: whether to count kernels for packed documents.

    Raises:
        ValueError: no key matches.
    """
    chosen = list(keys(architectures, pattern))
    if not chosen:
        raise ValueError(f"--keys must match keys of blocks.json, got {pattern!r}")
    if to:
        to.parent.mkdir(parents=True, exist_ok=True)
    file = to.open("w", newline="", encoding="utf-8") if to else sys.stdout
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    with ProcessPoolExecutor(processes) as pool:
        for (architecture, key), counted in zip(chosen, pool.map(partial(_of_key, packed), chosen), strict=True):
            row = {
                "architecture": architecture,
                "key": key,
                **asdict(launch_parameters.load_blocks()[architecture][key]),
            }
            writer.writerow(row | asdict(counted))
            file.flush()
            if to:
                print(architecture, key, *asdict(counted).values(), flush=True)
    if to:
        file.close()


def _of_key(packed: bool, entry: tuple[str, str]) -> Count:
    return count(case_of(*entry, packed))
