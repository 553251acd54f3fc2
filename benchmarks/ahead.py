"""Compile the kernels ahead of time for any architecture and report their resources.

Needs no GPU. Not available with TRITON_INTERPRET=1, where nothing is compiled.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pe_lab.attention.triton import rotation, softmax, stick, stick_operators, tiles
from pe_lab.attention.triton.launch_parameters import Blocks, choose_blocks, tile_dims
from pe_lab.attention.triton.operators import ENTRIES_PER_PROGRAM, switches

SHARED_MEMORY = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448}  # bytes per program
STICK = (stick.stick_forward, stick.stick_store_rests)
STICK_BACKWARD = (stick.stick_backward_queries, stick.stick_backward_keys, stick.stick_backward_tables)
SOFTMAX = (softmax.forward, softmax.backward_keys, softmax.backward_queries, softmax.backward_tables)
ROTATION = (rotation.rotate_forward, rotation.rotate_backward)
KERNELS = {
    kernel.__name__: kernel
    for kernel in (*SOFTMAX, *STICK, *STICK_BACKWARD, softmax.sums, *ROTATION, tiles.spread_table)
}
TERMS = {"BIAS": "bias", "GATE": "gate", "DECAY": "decay", "SEGMENTED": "segment", "DROPOUT": "seed"}
TERMS |= {"WINDOW": "window"}
ACTIVATIONS = {"q", "k", "v", "x", "out", "grad", "dq", "dk", "dv", "dx"}
TYPES = {"segment": "*i64", "seed": "*i64", "window": "*i32", "threshold": "i64"}
TYPES |= dict.fromkeys(("scale", "enlarge", "factor"), "fp32")


@dataclass(frozen=True)
class KernelCase:
    """A kernel with its options.

    Args:
        enabled: the options that are on; of softmax: BIAS, GATE, DECAY, SEGMENTED, DROPOUT, WINDOW; of rotation: HALF,
            GAIN, TABLES, STRIDED; of stick-breaking: BIAS, SEGMENTED, DOWN, SELF, OWN.
    """

    kernel: str
    architecture: str
    dtype: torch.dtype
    head_dim: int
    causal: bool
    enabled: frozenset[str]

    @property
    def blocks(self) -> Blocks | None:
        """The blocks that a launch would use; None for a kernel without a choice."""
        if self.kernel.startswith("rotate") or self.kernel in ("sums", "spread_table"):
            return None
        choose = stick_operators.stick_blocks if self.kernel.startswith("stick") else choose_blocks
        return choose(self.architecture, self.kernel, self.dtype, self.head_dim, self.enabled)


@dataclass(frozen=True)
class Resources:
    """Resources of one program: registers per thread, bytes of spilled registers, bytes of shared memory, tensor cores.

    Args:
        products: the instruction of the matrix products.
    """

    registers: int
    spilled: int
    shared: int
    products: str


def compile_ahead(case: KernelCase, blocks: Blocks | None = None) -> Resources:
    """Compile a kernel, with its own blocks or with these, and return its resources."""
    compiled = build(case, blocks)
    return resources(compiled, disassemble(compiled.asm["cubin"]))


def build(case: KernelCase, blocks: Blocks | None = None) -> Any:
    """Compile a kernel, with its own blocks or with these: code in `asm`, and `metadata`."""
    kernel = KERNELS[case.kernel]
    blocks = blocks or case.blocks
    constants = _constants(case, blocks)
    absent = {name for option, name in TERMS.items() if option not in case.enabled}
    absent |= set() if "GAIN" in case.enabled else {"gain"}
    number = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}[case.dtype]
    signature: dict[str, str] = {}
    constexprs: dict[tuple[int], Any] = {}
    divisible = {}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr or name in absent or name in constants:
            signature[name] = "constexpr"
            constexprs[(index,)] = constants.get(name)
            continue
        if name in ACTIVATIONS and not (name in ("dk", "dv") and case.kernel.startswith("stick")):
            signature[name] = number
        else:
            signature[name] = TYPES.get(name) or ("i32" if _is_size(name) else "*fp32")
        if signature[name].startswith("*") or name.endswith(("_batch", "_head", "_time")):
            divisible[(index,)] = [["tt.divisibility", 16]]
    target = GPUTarget("cuda", int(case.architecture.removeprefix("sm_")), 32)
    options = {} if blocks is None else {"num_warps": blocks.warps, "num_stages": blocks.stages}
    source = ASTSource(kernel, signature, constexprs, divisible)
    return triton.compile(source, target=target, options=options)


def resources(compiled: Any, listing: str) -> Resources:
    """Return the resources of a compiled kernel, given its listing by `disassemble`."""
    registers, stack = (int(re.findall(rf"{name}:(\d+)", listing)[0]) for name in ("REG", "STACK"))
    text = compiled.asm["ptx"]
    products = next((word for word in ("tcgen05.mma", "wgmma", "mma.sync") if word in text), "")
    return Resources(registers, stack, compiled.metadata.shared, products)


def disassemble(cubin: bytes) -> str:
    """Return the registers and the machine code of the only kernel in a cubin, as cuobjdump lists them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _constants(case: KernelCase, blocks: Blocks | None) -> dict[str, Any]:
    if case.kernel == "spread_table":
        return {"BLOCK": ENTRIES_PER_PROGRAM}
    if case.kernel.startswith("rotate"):
        sizes: dict[str, Any] = rotation.sizes(case.head_dim) | {"MEMBERS": rotation.MAX_MEMBERS}
        sizes |= {name: name in case.enabled for name in ("HALF", "GAIN", "TABLES")}
        return sizes if "STRIDED" in case.enabled else sizes | {"table_rows": 1}  # as Triton specialises a 1
    if blocks is None:
        return {"HEAD_DIM": case.head_dim, "BLOCK_D": tile_dims(case.head_dim), "BLOCK_M": 64}
    if case.kernel.startswith("stick"):
        down, include_self, to_itself = (name in case.enabled for name in ("DOWN", "SELF", "OWN"))
        side = -1 if case.causal else 0
        constants = stick_operators.stick_switches(case.dtype, case.head_dim, down, side, include_self, case.enabled)
        keys = case.kernel == "stick_backward_keys"
        choose_sections = stick_operators.sections_of_keys if keys else stick_operators.row_sections
        constants |= {"OWN": int(to_itself), **choose_sections(side, include_self, "SEGMENTED" in case.enabled)}
        return constants | {"BLOCK_M": blocks.m, "BLOCK_N": blocks.n}
    constants = switches(case.dtype, case.head_dim, case.causal, case.enabled)
    constants |= {"DBIAS": int("BIAS" in case.enabled), "DGATE": int("GATE" in case.enabled)}
    return constants | {"BLOCK_M": blocks.m, "BLOCK_N": blocks.n}


def _is_size(name: str) -> bool:
    """Return whether an argument is an integer: a stride, a length, a number of heads."""
    return name.endswith(
        ("_batch", "_head", "_time", "reach", "heads", "sharing", "chunks", "rows", "length", "first", "chunk", "tiles")
    )
