"""Faults planted into kernels, by changing their PTX, their source or an option: each must be found."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from emulation.cases import Case, check
from pe_lab.attention.triton import operators, softmax

Change = Callable[[str], str]


@dataclass(frozen=True)
class Fault:
    """A change of a kernel's code.

    Args:
        kernel: that is changed.
        change: of its PTX.
        found: a part of what must be reported.
    """

    kernel: str
    change: Change
    found: str

    def __call__(self, kernel: str, ptx: str) -> str:
        """Return the code of a kernel, changed if it is the one that is meant.

        Raises:
            ValueError: there is nothing to change.
        """
        if kernel != self.kernel:
            return ptx
        changed = self.change(ptx)
        if changed == ptx:
            raise ValueError(f"the fault finds nothing to change in {kernel}")
        return changed


def without(pattern: str, which: int | None = None) -> Change:
    """Return a change that leaves out an instruction, by its number, or all (None)."""
    return replaced(rf"^\s*(?:@!?%p\d+\s+)?{pattern}[^\n]*;", "", which)


def replaced(pattern: str, by: str, which: int | None = None) -> Change:
    """Return a change that replaces a pattern's occurrence, by its number, or all (None)."""

    def change(ptx: str) -> str:
        found = list(re.finditer(pattern, ptx, re.MULTILINE))
        for match in reversed(found if which is None else found[which:][:1]):
            ptx = ptx[: match.start()] + match.expand(by) + ptx[match.end() :]
        return ptx

    return change


HOPPER = Case("bias", "sm_90", length=150)
AMPERE = Case("bias", "sm_80", length=150, head_dim=32, packed=True, dropout=0.3)
SINGLE = Case("nothing", "sm_80", torch.float32, length=150, head_dim=16)
ADDRESS = r"(\[ %rd\d+ \+ )0( \])"
NEIGHBOUR = r"(shfl\.sync\.bfly\.b32 \s*%r\d+, %r\d+, )1,"
EXPONENTIAL = r"ex2\.approx\.ftz\.f32(\s+%r\d+, )(%r\d+)"
VALUES = "errs by"  # wrong numbers, beyond the bound

FAULTS: dict[str, tuple[Case, Fault]] = {
    "a barrier after the wait for copies is left out": (
        HOPPER,
        Fault("forward", replaced(r"(cp\.async\.wait_group[^\n]*;\s*)bar\.sync\s+0;", r"\1"), "without a barrier"),
    ),
    "all barriers are left out": (AMPERE, Fault("forward", without(r"bar\.sync"), "without a barrier")),
    "a wait for copies is left out": (
        HOPPER,
        Fault("forward", without(r"cp\.async\.wait_group"), "before cp.async was waited for"),
    ),
    "a wait for copies comes one group short": (
        AMPERE,
        Fault("forward", replaced(r"cp\.async\.wait_group\s+\d", "cp.async.wait_group 9"), "cp.async was waited for"),
    ),
    "copies are not committed": (
        HOPPER,
        Fault("forward", without(r"cp\.async\.commit_group"), "before cp.async was waited for"),
    ),
    "a wait for products is left out": (
        HOPPER,
        Fault("forward", without(r"wgmma\.wait_group"), "wgmma result used before it was waited for"),
    ),
    "products are not committed": (
        HOPPER,
        Fault("forward", without(r"wgmma\.commit_group"), "wgmma result used before it was waited for"),
    ),
    "the fence between writes and products is left out": (
        HOPPER,
        Fault("forward", without(r"fence\.proxy\.async"), "wgmma reads without fence.proxy.async"),
    ),
    "the fence of registers is left out": (
        HOPPER,
        Fault("forward", without(r"wgmma\.fence"), "wgmma without wgmma.fence"),
    ),
    "an offset beyond the tensor": (
        HOPPER,
        Fault(
            "forward", replaced(r"(st\.global\S* )" + ADDRESS, r"\g<1>\g<2>65536\g<3>"), "global write out of bounds"
        ),
    ),
    "a read in front of the tensor": (
        AMPERE,
        Fault(
            "forward", replaced(r"(cp\.async[^\[\n]*\[[^\]]*\], )" + ADDRESS, r"\g<1>\g<2>-65536\g<3>"), "out of bounds"
        ),
    ),
    "a vector access that is not aligned": (
        HOPPER,
        Fault("forward", replaced(r"(st\.global\.v4\S* )" + ADDRESS, r"\g<1>\g<2>4\g<3>"), "global write misaligned"),
    ),
    "rows beyond the sequence are read": (
        HOPPER,
        Fault("forward", replaced(r"(cp\.async\.c[ag][^\n]*0x10), %r\d+;", r"\1;"), "global read out of bounds"),
    ),
    "two programs compute the same block": (
        HOPPER,
        Fault("forward", replaced(r"%ctaid\.x", "0"), "global write by two programs"),
    ),
    "two heads write to the same place": (
        AMPERE,
        Fault("forward", replaced(r"%ctaid\.y", "0"), "global write by two programs"),
    ),
    "shared memory beyond what the program has": (
        HOPPER,
        Fault("forward", replaced(r"(cp\.async\S* \[ %r\d+ \+ )0", r"\g<1>1048576"), "shared access out of bounds"),
    ),
    "the swizzle of an operand is another": (
        HOPPER,
        Fault("forward", replaced(r"4611686293305294848", "9223372311732682752"), VALUES),
    ),
    "an operand is not transposed": (
        AMPERE,
        Fault("forward", replaced(r"ldmatrix(\S*)\.trans", r"ldmatrix\1"), VALUES),
    ),
    "a row's sum leaves out threads": (
        AMPERE,
        Fault("forward", replaced(NEIGHBOUR, r"\g<1>2,"), VALUES),
    ),
    "an exponential is left out": (
        AMPERE,
        Fault("forward", replaced(EXPONENTIAL, r"mov.b32\1\2"), VALUES),
    ),
    "an exponential of the backward pass is left out": (
        HOPPER,
        Fault("backward_keys", replaced(EXPONENTIAL, r"mov.b32\1\2", 0), VALUES),
    ),
    "a sum of output times gradient leaves out threads": (
        HOPPER,
        Fault("sums", replaced(NEIGHBOUR, r"\g<1>2,"), VALUES),
    ),
}


@contextmanager
def rewritten(function: Any, pattern: str, by: str) -> Iterator[None]:
    """Change the source of a function of the softmax kernels, for all kernels that call it.

    Raises:
        ValueError: there is nothing to change.
    """
    compiled = [x for x in vars(softmax).values() if hasattr(x, "_unsafe_update_src")]
    source = function.src
    changed = re.sub(pattern, by, source)
    if changed == source:
        raise ValueError(f"the fault finds nothing to change in {function.fn.__name__}")
    _update(function, changed, compiled)
    try:
        yield
    finally:
        _update(function, source, compiled)


def _update(function: Any, source: str, compiled: list[Any]) -> None:
    function._unsafe_update_src(source)
    for kernel in compiled:
        kernel.hash = None
        kernel.device_caches.clear()


REWRITTEN: dict[str, tuple[Case, Callable[[], AbstractContextManager[Any]]]] = {
    "a carry comes one tile late": (
        SINGLE,
        lambda: rewritten(
            softmax.forward,
            r"mixed = mixed \* shrink\[:, None\]\s+mixed = (dot\(weight.*\))",
            r"mixed = \1 * shrink[:, None]",
        ),
    ),
    "a causal cut is rounded up": (
        SINGLE,
        lambda: rewritten(
            softmax._key_tiles,
            r"tl\.minimum\(block \* BLOCK_M // BLOCK_N, whole_end\)",
            "tl.minimum(tl.cdiv((block + 1) * BLOCK_M, BLOCK_N), whole_end)",
        ),
    ),
    "plain tf32 where float32 was promised": (
        SINGLE,
        lambda: mock.patch.object(operators, "product_precision", return_value="tf32"),
    ),
}


def reported(name: str) -> tuple[str, list[str]]:
    """Return what must be reported for a fault, and what is."""
    if name in FAULTS:
        case, fault = FAULTS[name]
        return fault.found, check(case, fault, backward=fault.kernel != "forward").wrong
    case, planted = REWRITTEN[name]
    with planted():
        return VALUES, check(case, backward=False).wrong
