"""Tile sizes, warps and stages of the kernels: chosen once and kept in blocks.json.

Nothing is tuned at run time, so that a first step does not take minutes. `python -m benchmarks static --choose` takes
the fewest instructions per pair in compiled code, without a GPU; `python -m benchmarks tune` measures on the current
GPU. Both write their part of the table. A GPU that is not in the table uses the nearest older architecture.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from functools import cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
import triton
from torch import Tensor

TABLE_FILE = Path(__file__).with_name("blocks.json")
INTERPRETER = "interpreter"
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Blocks:
    """Launch parameters of a kernel.

    Args:
        m, n: the numbers of queries and of keys in a tile, powers of two, at least 16.
        warps, stages: the numbers of warps and of pipeline stages of a program.
    """

    m: int
    n: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """Return them as keyword arguments of a launch."""
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "num_warps": self.warps, "num_stages": self.stages}


def tile_dims(head_dim: int) -> int:
    """Return the width of a tile's rows: the power of two that holds the head dimension, at least 16."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def load_class(optional_terms: Collection[str]) -> str:
    """Return what a kernel with these options reads besides its tiles: plain, table or mixed."""
    tables = [name for name in optional_terms if name in ("BIAS", "GATE", "DECAY")]
    if "DROPOUT" in optional_terms or len(tables) > 1:
        return "mixed"
    return "table" if tables else "plain"


def blocks_key(kernel: str, dtype: torch.dtype, head_dim: int, optional_terms: Collection[str]) -> str:
    """Return the key of the table's entries within an architecture."""
    return f"{kernel} {str(dtype).removeprefix('torch.')} {tile_dims(head_dim)} {load_class(optional_terms)}"


def device_architecture(device: torch.device) -> str:
    """Return the architecture of a device, as sm_90; "interpreter" for a CPU."""
    return INTERPRETER if device.type == "cpu" else "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def on_its_device(operator: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make an operator launch its kernels on the device of its first tensor."""

    @wraps(operator)
    def run(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        first = next(x for x in (*args, *options.values()) if isinstance(x, Tensor))
        with torch.cuda.device_of(first):
            return operator(*args, **options)

    return run


def nearest_architecture(architecture: str) -> str:
    """Return the newest architecture in the table up to this one; the oldest if all are newer."""
    architectures = [name for name in load_blocks() if name != INTERPRETER]
    older = [name for name in architectures if _number(name) <= _number(architecture)]
    return max(older, key=_number) if older else min(architectures, key=_number)


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


def choose_blocks(
    architecture: str, kernel: str, dtype: torch.dtype, head_dim: int, optional_terms: Collection[str]
) -> Blocks:
    """Return the blocks for a launch with these options on (BIAS, GATE, DECAY, SEGMENTED, DROPOUT, WINDOW)."""
    if architecture == INTERPRETER:
        return load_blocks()[INTERPRETER][kernel]
    part = load_blocks().get(architecture) or load_blocks()[nearest_architecture(architecture)]
    return part[blocks_key(kernel, dtype, head_dim, optional_terms)]


@cache  # the file is part of the package
def load_blocks() -> dict[str, dict[str, Blocks]]:
    """Return the blocks by architecture and key."""
    table = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return {name: {key: Blocks(*entry) for key, entry in part.items()} for name, part in table.items()}


def write_blocks(architecture: str, part: dict[str, Blocks]) -> None:
    """Write an architecture's part of the table."""
    table = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    table[architecture] = {key: list(asdict(blocks).values()) for key, blocks in part.items()}
    lines = (
        f'  "{name}": {{\n' + ",\n".join(f'    "{key}": {json.dumps(e)}' for key, e in entries.items()) + "\n  }"
        for name, entries in table.items()
    )
    TABLE_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    load_blocks.cache_clear()
