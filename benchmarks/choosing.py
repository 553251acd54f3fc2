"""Choose the blocks of the attention kernels by the instructions of their compiled code, without a GPU.

A key's candidates are compiled in two rounds: shapes in which no two warps compute the same pair, and narrower ones for
keys that spill registers with all of these. The cheapest that spills nothing is taken, with packed documents and
without. Where there is none, it is the cheapest that spills with packed documents only, and then the cheapest with its
accesses to local memory counted.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

from benchmarks.ahead import SHARED_MEMORY
from benchmarks.static import Count, case_of, count, keys
from pe_lab.attention.triton import launch_parameters
from pe_lab.attention.triton.launch_parameters import Blocks

LENGTH = 1024  # of the sequence whose cost is estimated
SHAPES = {  # warps of a program, rows of a tile per warp, columns
    "bfloat16": ((2, 16, 32), (4, 16, 32), (4, 16, 64), (8, 16, 64), (2, 32, 64), (4, 32, 64)),
    "float32": ((2, 16, 16), (2, 16, 32), (4, 16, 32), (4, 16, 64)),
}
# The second round, with stages. With one stage the next tile is not fetched in advance, which frees registers. Tiles
# with more columns than rows (8 or 4 rows per warp) have their warps side by side along the columns.
SPARE = (
    *((4, 16, 16, 1), (2, 16, 16, 1), (1, 16, 16, 1), (2, 16, 32, 1), (4, 16, 32, 1)),
    *((2, 8, 32, 2), (4, 4, 64, 2), (4, 8, 64, 2), (8, 4, 64, 2)),
)
BUSY = 8  # warps of a multiprocessor: with fewer, its four schedulers often wait
REGISTERS = 65536  # of a multiprocessor
LOCAL_COST = 8  # instructions that an access to local memory, which also takes time to arrive, stands for
WIDTHS = (16, 32, 64)  # keys of a tile that the backward kernels of a stick may share


class Counter(Protocol):
    """Compiles a key with each of these blocks; None where the compiler fails."""

    def __call__(
        self, architecture: str, key: str, tried: list[Blocks], packed: bool = False
    ) -> list[Count | None]: ...


@dataclass(frozen=True)
class BlockChoice:
    """Blocks of a key.

    Args:
        spills: whether the kernel spills registers, with packed documents or without.
        cost: estimated instructions per pair.
    """

    blocks: Blocks
    spills: bool
    cost: float


def cost(counted: Count, blocks: Blocks, architecture: str, spills: bool = False) -> float:
    """Return the estimated instructions per pair that a causal sequence of LENGTH tokens costs; infinite if it spills.

    Whole tiles and masked tiles have their own counts; a masked tile is computed whole. Fewer than BUSY warps that fit
    into a multiprocessor at a time raise the cost in proportion.

    Args:
        spills: whether kernels that spill get a cost too, as if all their accesses to local memory were made in every
            tile.
    """
    if counted.shared > SHARED_MEMORY[architecture] or ((counted.spilled or counted.local) and not spills):
        return float("inf")
    masked = 2 * max(blocks.m, blocks.n) / LENGTH
    per_pair = counted.instructions * (1 - blocks.m / LENGTH) + counted.masked * masked
    per_pair += LOCAL_COST * counted.local * 32 * blocks.warps / (blocks.m * blocks.n)
    per_program = (counted.registers + 7) // 8 * 8 * 32 * blocks.warps
    programs = min(REGISTERS // per_program, (SHARED_MEMORY[architecture] + 1024) // (counted.shared + 1024))
    return per_pair * max(1.0, BUSY / (programs * blocks.warps))


def candidate_blocks(kernel: str, dtype: str, head_dim: int, spare: bool = False) -> Iterator[Blocks]:
    """Yield blocks to compare, in which no two warps compute the same pair of a tile.

    The sums that a thread keeps, and its part of a tile, are limited to what 255 registers can hold.

    Args:
        spare: whether to yield the blocks of the second round.
    """
    shapes = SPARE if spare else [(*shape, 2) for shape in SHAPES[dtype]]
    for warps, rows_per_warp, columns, stages in shapes:
        rows = warps * rows_per_warp
        sums, tiles = rows_per_warp * head_dim // 32, rows_per_warp * columns // 32
        kept = sums * (2 if kernel.endswith("backward_keys") else 1) + tiles * (1 if "forward" in kernel else 2)
        if kept > 160 or (kernel.endswith("tables") and rows != columns):
            continue
        m, n = (columns, rows) if kernel.endswith("backward_keys") else (rows, columns)
        yield Blocks(m, n, warps, stages)


def choose_blocks(architectures: list[str], pattern: str, processes: int) -> None:
    """Compile candidates for every key, write the cheapest to blocks.json, and print what changed."""
    with ProcessPoolExecutor(processes) as pool:

        def counts(architecture: str, key: str, tried: list[Blocks], packed: bool = False) -> list[Count | None]:
            return list(pool.map(partial(_count_of, architecture, key, packed), tried))

        for architecture, group in groups(list(keys(architectures, pattern))):
            before = launch_parameters.load_blocks()[architecture]
            chosen = best_of_group(counts, architecture, group, before)
            for key, choice in chosen.items():
                spills = ", spills" if choice.spills else ""
                print(f"{architecture} {key}: {before[key]} -> {choice.blocks} {choice.cost:.1f}{spills}", flush=True)
            launch_parameters.write_blocks(
                architecture, before | {key: choice.blocks for key, choice in chosen.items()}
            )


def groups(items: list[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield architectures and keys that are chosen together: the backward kernels of a stick, or one key."""
    together: dict[tuple[str, str], list[str]] = {}
    for architecture, key in items:
        kernel, shared = key.split(maxsplit=1)
        together.setdefault((architecture, shared if kernel.startswith("stick_backward") else key), []).append(key)
    yield from ((architecture, group) for (architecture, _), group in together.items())


def best_of_group(
    counts: Counter, architecture: str, group: list[str], before: dict[str, Blocks]
) -> dict[str, BlockChoice]:
    """Return the best choice of every key; backward kernels of a stick share the width of their tiles.

    The width is chosen with them if all that share it are in the group; otherwise it stays.

    Args:
        before: the blocks of all keys of the architecture.
    """
    widths: tuple[int | None, ...] = (None,)
    if group[0].startswith("stick_backward"):
        shared = group[0].split(maxsplit=1)[1]
        sharing = {key for key in before if key.startswith("stick_backward") and key.split(maxsplit=1)[1] == shared}
        widths = WIDTHS if sharing <= set(group) else (before[group[0]].n,)
    possible = []
    for width in widths:
        chosen = {key: best(counts, architecture, key, before[key], width) for key in group}
        complete = {key: choice for key, choice in chosen.items() if choice is not None}
        if len(complete) == len(group):
            possible.append(complete)
    return min(
        possible, key=lambda by_key: (sum(c.spills for c in by_key.values()), sum(c.cost for c in by_key.values()))
    )


def best(counts: Counter, architecture: str, key: str, before: Blocks, width: int | None = None) -> BlockChoice | None:
    """Return the cheapest blocks that spill nothing, or the cheapest if all spill; None if none can be compiled.

    Args:
        before: blocks that are compared too.
        width: the number of keys in a tile; None: any.
    """
    kernel, dtype, head_dim, _ = key.split()
    cached: dict[Blocks, Count] = {}

    @cache
    def spills_nothing_packed(blocks: Blocks) -> bool:
        (counted,) = counts(architecture, key, [blocks], packed=True)
        return counted is not None and not (counted.spilled or counted.local)

    for spare in (False, True):
        shapes = list(candidate_blocks(kernel, dtype, int(head_dim), spare))
        tried = [b for b in dict.fromkeys((before, *shapes)) if b not in cached and width in (None, b.n)]
        results = zip(tried, counts(architecture, key, tried), strict=True)
        cached |= {blocks: counted for blocks, counted in results if counted is not None}
        costs = {blocks: cost(counted, blocks, architecture) for blocks, counted in cached.items()}
        free = sorted((blocks for blocks in costs if costs[blocks] < float("inf")), key=costs.__getitem__)
        cheapest = next(filter(spills_nothing_packed, free), None)
        if cheapest is not None and (spare or cheapest in shapes):
            return BlockChoice(cheapest, False, costs[cheapest])
    if free:  # they spill with packed documents only
        return BlockChoice(free[0], True, costs[free[0]])
    costs = {blocks: cost(counted, blocks, architecture, spills=True) for blocks, counted in cached.items()}
    cheapest = min(costs, key=costs.__getitem__, default=None)
    return None if cheapest is None or costs[cheapest] == float("inf") else BlockChoice(cheapest, True, costs[cheapest])


def _count_of(architecture: str, key: str, packed: bool, blocks: Blocks) -> Count | None:
    try:
        return count(case_of(architecture, key, packed), blocks)
    except Exception as error:  # any error of the compiler: these blocks cannot be used
        print(f"  {architecture} {key} {blocks}: {' '.join(str(error).split())[:100]}", flush=True)
        return None
