"""How large the tiles of a kernel are, and with how many warps and stages it runs: measured once, kept in blocks.json.

Not tuned at run time, so that a first step does not take minutes. `python -m pe_lab.bench tune` measures on the GPU at
hand and writes its part of the table. For a GPU that is not in it, the nearest older architecture counts.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import triton

TABLE = Path(__file__).with_name("blocks.json")
INTERPRETER = "interpreter"


@dataclass(frozen=True)
class Blocks:
    """Args:
    m, n: queries and keys of a tile, powers of two, at least 16.
    warps, stages: of a program.
    """

    m: int
    n: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """As a launch takes them."""
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "num_warps": self.warps, "num_stages": self.stages}


def lanes(head_dim: int) -> int:
    """Lanes of a row in a tile: the power of two that holds the head dimension, at least 16."""
    return max(16, triton.next_power_of_2(head_dim))


def load_class(there: Collection[str]) -> str:
    """How much a kernel holds besides its tiles, from the options that are on: plain, table or mixed."""
    read = [name for name in there if name in ("BIAS", "GATE", "DECAY")]
    if "DROPOUT" in there or len(read) > 1:
        return "mixed"
    return "table" if read else "plain"


def key(kernel: str, dtype: torch.dtype, head_dim: int, there: Collection[str]) -> str:
    """What a choice depends on besides the architecture."""
    return f"{kernel} {str(dtype).removeprefix('torch.')} {lanes(head_dim)} {load_class(there)}"


def architecture(device: torch.device) -> str:
    """sm_90 and the like; "interpreter" for a CPU."""
    return INTERPRETER if device.type == "cpu" else "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def nearest(architecture: str) -> str:
    """The newest architecture of the table that is not newer than this one; the oldest, if all are."""
    known = [name for name in load() if name != INTERPRETER]
    older = [name for name in known if _number(name) <= _number(architecture)]
    return max(older, key=_number) if older else min(known, key=_number)


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


def choose(architecture: str, kernel: str, dtype: torch.dtype, head_dim: int, there: Collection[str]) -> Blocks:
    """The blocks for one launch with these options on (BIAS, GATE, DECAY, SEGMENTED, DROPOUT)."""
    if architecture == INTERPRETER:
        return load()[INTERPRETER][kernel]
    part = load().get(architecture) or load()[nearest(architecture)]
    return part[key(kernel, dtype, head_dim, there)]


@cache  # of a file that the package ships
def load() -> dict[str, dict[str, Blocks]]:
    """Per architecture and key, the blocks."""
    table = json.loads(TABLE.read_text())
    return {name: {key: Blocks(*entry) for key, entry in part.items()} for name, part in table.items()}


def write(architecture: str, part: dict[str, Blocks]) -> None:
    """Put an architecture's part into the table."""
    table = json.loads(TABLE.read_text())
    table[architecture] = {key: list(asdict(blocks).values()) for key, blocks in part.items()}
    lines = (
        f'  "{name}": {{\n' + ",\n".join(f'    "{key}": {json.dumps(e)}' for key, e in entries.items()) + "\n  }"
        for name, entries in table.items()
    )
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    load.cache_clear()
