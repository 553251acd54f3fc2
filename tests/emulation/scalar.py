"""Instructions that compute every thread's result from its own registers, as numpy expressions over all threads.

`compile_scalar` returns a function from the register file, a list of arrays, to the destination's new array. Arrays are
never changed in place.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from emulation.ptx import STORAGE, Instruction

Array = np.ndarray
Values = list[Any]
Slot = Callable[[str, int], int]  # the index in the register file of a register, or of a number with so many bits
TYPES = {
    "pred": bool, "b16": "u2", "u16": "u2", "s16": "i2", "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4",
    "b64": "u8", "u64": "u8", "s64": "i8",
}  # fmt: skip
MIN_NORMAL = np.float32(2.0**-126)  # normal number: .ftz writes zero for smaller ones


def width(kind: str) -> int:
    """Return the bits of a type."""
    return 1 if kind == "pred" else int(kind[1:])


def bfloat16(x: Array) -> Array:
    """Return the bits of float32 numbers rounded to bfloat16, to nearest even."""
    u = x.view("u4").astype("u8")
    return np.where(np.isnan(x), 0x7FFF, (u + 0x7FFF + ((u >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(
        "u2"
    )


def _two_bfloat16(high: Array, low: Array) -> Array:
    return bfloat16(low.view("f4")).astype("u4") | bfloat16(high.view("f4")).astype("u4") << np.uint32(16)


def widened(bits: Array) -> Array:
    """Return the float32 numbers of bfloat16 bits."""
    return (bits.astype("u4") << np.uint32(16)).view("f4")


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a.astype("i8")) // np.maximum(np.abs(b.astype("i8")), 1)
    return (np.sign(a.astype("i8")) * np.sign(b.astype("i8")) * quotient).astype(a.dtype)


def _least(a: Array, b: Array) -> Array:
    return np.fmin(a, b) if a.dtype.kind == "f" else np.minimum(a, b)


def _most(a: Array, b: Array) -> Array:
    return np.fmax(a, b) if a.dtype.kind == "f" else np.maximum(a, b)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "mul.lo": np.multiply, "div": _divide, "div.full": _divide,
    "rem": lambda a, b: np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype)), "min": _least, "max": _most,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min.NaN": np.minimum, "max.NaN": np.maximum,
}  # fmt: skip


def _ones(a: Array) -> Array:
    return np.unpackbits(a.view("u1")).reshape(len(a), -1).sum(1).astype("u4")


UNARY: dict[str, Callable[[Array], Array]] = {
    "popc": _ones, "not": np.invert, "neg": np.negative, "abs": np.abs,
    "ex2.approx": np.exp2, "lg2.approx": np.log2, "rcp.approx": lambda a: (1 / a).astype("f4"),
    "rcp": lambda a: (1 / a).astype("f4"), "sqrt": np.sqrt, "sqrt.approx": np.sqrt,
    "rsqrt.approx": lambda a: (1 / np.sqrt(a)).astype("f4"),
}  # fmt: skip
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b) if a.dtype.kind == "f" else a != b,
    "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b), "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b), "equ": lambda a, b: ~((a < b) | (a > b)), "neu": np.not_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip
CONVERT: dict[str, tuple[int, int, Callable[..., Array]]] = {  # bits of the source, bits of the result
    "rn.bf16x2.f32": (32, 32, _two_bfloat16),
    "rn.bf16.f32": (32, 16, lambda a: bfloat16(a.view("f4"))),
    "f32.bf16": (16, 32, widened),
    "rna.tf32.f32": (32, 32, lambda a: (a + np.uint32(0x1000)) & np.uint32(0xFFFFE000)),
    "rn.f32.s32": (32, 32, lambda a: a.view("i4").astype("f4")),
    "rn.f32.u32": (32, 32, lambda a: a.astype("f4")),
    "rn.f32.s64": (64, 32, lambda a: a.view("i8").astype("f4")),
    "rzi.s32.f32": (32, 32, lambda a: np.trunc(a.view("f4")).astype("i4")),
    "rni.s32.f32": (32, 32, lambda a: np.rint(a.view("f4")).astype("i4")),
    "rni.f32.f32": (32, 32, lambda a: np.rint(a.view("f4"))),
    "rmi.f32.f32": (32, 32, lambda a: np.floor(a.view("f4"))),
}  # fmt: skip


def compile_scalar(instruction: Instruction, slot: Slot) -> Callable[[Values], Array] | None:
    """Return the function of an instruction; None if it is none of these.

    Raises:
        NotImplementedError: it is one of these with modifiers that are not known here.
    """
    op, rest = instruction.op, instruction.operands[1:]
    *names, kind = op.split(".")
    flush = "ftz" in names
    name = ".".join(part for part in names if part not in ("ftz", "rn", "uni"))
    if op.startswith("cvt."):
        return _conversion(op[4:], rest, slot)
    if kind in ("bf16", "bf16x2"):
        return _bfloat16_arithmetic(name, 16 if kind == "bf16" else 32, rest, slot)
    found = _by_name(name, kind, rest, slot)
    if found is None or not flush:
        return found
    return lambda values: _flushed(found(values))


def _bfloat16_arithmetic(name: str, bits: int, rest: tuple[str, ...], slot: Slot) -> Callable[[Values], Array] | None:
    """Return arithmetic of bfloat16 numbers, or of pairs of them, rounded once."""
    compute = {"fma": lambda a, b, c: a * b + c, **UNARY, **BINARY}.get(name)
    if compute is None:
        return None
    slots, stored = [slot(x, bits) for x in rest], STORAGE[bits]
    return lambda values: bfloat16(
        compute(*(widened(values[s].view("u2")).astype("f8") for s in slots)).astype("f4")
    ).view(stored)  # fmt: skip


def _flushed(result: Array) -> Array:
    numbers = result.view("f4")
    return np.where(np.abs(numbers) < MIN_NORMAL, np.copysign(np.float32(0), numbers), numbers).view("u4")


def _by_name(name: str, kind: str, rest: tuple[str, ...], slot: Slot) -> Callable[[Values], Array] | None:
    if kind not in TYPES:
        return None
    type_, bits = np.dtype(TYPES[kind]), width(kind)
    stored = STORAGE[bits]
    first, *_ = name.split(".")
    if name == "mov":
        (source,) = (slot(x, bits) for x in rest)
        return lambda values: values[source]
    if name in UNARY:
        (a,), one = (slot(x, bits) for x in rest), UNARY[name]
        return lambda values: one(values[a].view(type_)).view(stored)
    if name in BINARY:
        (a, b), two = (slot(x, bits) for x in rest), BINARY[name]
        return lambda values: two(values[a].view(type_), values[b].view(type_)).view(stored)
    if first == "setp" and name[5:] in COMPARE:
        (a, b), compare = (slot(x, bits) for x in rest), COMPARE[name[5:]]
        return lambda values: compare(values[a].view(type_), values[b].view(type_))
    if name in ("selp",):
        a, b, p = slot(rest[0], bits), slot(rest[1], bits), slot(rest[2], 1)
        return lambda values: np.where(values[p], values[a], values[b])
    if name == "fma":  # rounded once, up to the rare double rounding
        a, b, c = (slot(x, bits) for x in rest)
        return lambda values: (
            values[a].view("f4").astype("f8") * values[b].view("f4") + values[c].view("f4")
        ).astype("f4").view("u4")  # fmt: skip
    if first in ("mul", "mad") and name != first:
        return _product(name, type_, bits, rest, slot)
    return _bits(name, type_, bits, rest, slot)


def _product(
    name: str, type_: np.dtype, bits: int, rest: tuple[str, ...], slot: Slot
) -> Callable[[Values], Array] | None:
    """Return products of integers: low half, high half, or both (wide), plus a number (mad)."""
    a, b = slot(rest[0], bits), slot(rest[1], bits)
    wide = np.dtype(f"{type_.kind}{type_.itemsize * 2}") if bits < 64 else type_
    total = bits if name != f"{name[:3]}.wide" else 2 * bits
    c = slot(rest[2], total) if name.startswith("mad") else None

    def whole(values: Values) -> Array:
        return values[a].view(type_).astype(wide) * values[b].view(type_).astype(wide)

    if name == "mad.lo":
        return lambda values: values[a] * values[b] + values[c]
    if name == "mul.wide":
        return lambda values: whole(values).view(STORAGE[total])
    if name == "mad.wide":
        return lambda values: whole(values).view(STORAGE[total]) + values[c]
    if name == "mul.hi" and bits < 64:
        return lambda values: (whole(values) >> wide.type(bits)).astype(type_).view(STORAGE[bits])
    return None


def _bits(name: str, type_: np.dtype, bits: int, rest: tuple[str, ...], slot: Slot) -> Callable[[Values], Array] | None:
    """Return shifts, fields and permutations of bytes, and moves of halves."""
    stored, half = STORAGE[bits], STORAGE[bits // 2] if bits > 16 else None
    if name in ("shl", "shr"):
        a, count, shift = slot(rest[0], bits), slot(rest[1], 32), np.left_shift if name == "shl" else np.right_shift
        last = type_.type(bits - 1)

        def shifted(values: Values) -> Array:
            by = values[count]
            short = shift(values[a].view(type_), np.minimum(by, np.uint32(bits - 1)).astype(type_))
            gone = shift(short, last) if type_.kind == "i" and name == "shr" else type_.type(0)
            return np.where(by < bits, short, gone).astype(type_).view(stored)

        return shifted
    if name == "bfe":
        a, start, size = slot(rest[0], bits), int(rest[1]), int(rest[2])
        left, right = type_.type(bits - start - size), type_.type(bits - size)
        return lambda values: ((values[a].view(type_) << left) >> right).view(stored)
    if name in ("low", "high"):
        a, shift_by = slot(rest[0], bits), stored.type(0 if name == "low" else bits // 2)
        return lambda values: (values[a] >> shift_by).astype(half)
    if name == "pack":
        a, b = slot(rest[0], bits // 2), slot(rest[1], bits // 2)
        return lambda values: values[a].astype(stored) | (values[b].astype(stored) << stored.type(bits // 2))
    if name in ("shf.l.wrap", "shf.r.wrap"):
        a, b, count = (slot(x, 32) for x in rest)
        left_ = name == "shf.l.wrap"

        def funnel(values: Values) -> Array:
            both = values[a].astype("u8") | (values[b].astype("u8") << np.uint64(32))
            by = (values[count] & np.uint32(31)).astype("u8")
            return ((both << by) >> np.uint64(32) if left_ else both >> by).astype("u4")

        return funnel
    if name == "prmt":
        a, b, selector = (slot(x, 32) for x in rest)
        return lambda values: _permuted(values[a], values[b], values[selector])
    if name == "copysign":
        a, b = slot(rest[0], 32), slot(rest[1], 32)
        return lambda values: np.copysign(values[b].view("f4"), values[a].view("f4")).view("u4")
    return None


def _permuted(a: Array, b: Array, selector: Array) -> Array:
    """Return four bytes of eight; bit 3 of a selector repeats the byte's sign instead."""
    both = a.astype("u8") | (b.astype("u8") << np.uint64(32))
    result = np.zeros_like(a)
    for i in range(4):
        chosen = (selector >> np.uint32(4 * i)) & np.uint32(15)
        byte = (both >> ((chosen & np.uint32(7)).astype("u8") * np.uint64(8))).astype("u4") & np.uint32(255)
        byte = np.where(chosen & np.uint32(8), np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0)), byte)
        result |= byte << np.uint32(8 * i)
    return result


def _conversion(kinds: str, rest: tuple[str, ...], slot: Slot) -> Callable[[Values], Array] | None:
    if kinds in CONVERT:
        bits, result, convert = CONVERT[kinds]
        slots = [slot(x, bits) for x in rest]
        return lambda values: convert(*(values[s] for s in slots)).view(STORAGE[result])
    to, _, source = kinds.partition(".")
    if not (to[:1] in "su" and source[:1] in "su" and to[1:].isdigit() and source[1:].isdigit()):
        return None
    (a,) = (slot(x, 0) for x in rest)  # of any width: the low bits are taken
    narrow, given, wide = STORAGE[width(source)], np.dtype(TYPES[source]), np.dtype(TYPES[to])
    return lambda values: values[a].astype(narrow).view(given).astype(wide).view(STORAGE[width(to)])
