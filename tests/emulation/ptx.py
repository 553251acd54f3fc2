"""Read PTX: the instructions of a kernel, its registers and its parameters."""

import re
from dataclasses import dataclass

import numpy as np

WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "f32": 32, "b64": 64, "f64": 64}  # of the registers' types, in bits
STORAGE = {1: np.dtype(bool), 8: np.dtype("u1"), 16: np.dtype("u2"), 32: np.dtype("u4"), 64: np.dtype("u8")}
SPECIAL = ("%tid.x", "%laneid", *(f"%{kind}.{axis}" for kind in ("ctaid", "nctaid") for axis in "xyz"))
SHARED_BASE = 1024  # the address where a program's shared memory starts: its swizzles ask for this alignment


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Args:
        op: with all modifiers, as add.s32.
        operands: as written.
        guard: the register of its predicate, or None.
        negated: whether it runs where the guard is false.
        line: of the kernel's source, as softmax.py:89.
    """

    op: str
    operands: tuple[str, ...]
    guard: str | None
    negated: bool
    line: str

    def __str__(self) -> str:
        return f"{self.op} {', '.join(self.operands)} (from {self.line})"


@dataclass(frozen=True)
class Kernel:
    """A kernel's code.

    Args:
        threads: of a program.
        parameters: their names, in order.
        registers: their widths in bits, by name.
        code: the instructions.
        labels: the index of the instruction that each stands before.
    """

    threads: int
    parameters: tuple[str, ...]
    registers: dict[str, int]
    code: tuple[Instruction, ...]
    labels: dict[str, int]


def parse(text: str) -> Kernel:
    """Return the only kernel of a PTX module."""
    head, _, body = text.partition(".reqntid")
    threads = int(body.split(None, 1)[0])
    parameters = tuple(re.findall(r"\.param [^,\n)]*?(\w+_param_\d+)", head))
    registers = dict.fromkeys(SPECIAL, 32)
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    line = ""
    for raw in body.split("{", 1)[1].splitlines():
        source = re.search(r"\.loc\b.*//\s*(\w+\.py:\d+)", raw)
        line = source[1] if source else line
        clean = raw.partition("//")[0].strip()
        if clean.startswith(".section"):
            break
        declared = re.match(r"\.reg \.(\w+)\s+(%[a-z]+)<(\d+)>", clean)
        if declared:
            registers |= {f"{declared[2]}{i}": WIDTHS[declared[1]] for i in range(int(declared[3]))}
            continue
        label = re.match(r"(\$\w+):", clean)
        if label:
            labels[label[1]] = len(code)
            clean = clean[label.end() :].strip()
        if not clean.startswith((".", "{", "}")):
            for statement in filter(None, map(str.strip, clean.split(";"))):
                code += _unpacked(_instruction(statement, line))
    return Kernel(threads, parameters, registers, tuple(code), labels)


def _instruction(statement: str, line: str) -> Instruction:
    guarded = re.match(r"@(!?)(%p\d+)\s+(.*)", statement)
    if guarded:
        statement = guarded[3]
    op, _, rest = statement.replace("\t", " ").partition(" ")
    guard, negated = (guarded[2], guarded[1] == "!") if guarded else (None, False)
    return Instruction(op, tuple(part.strip() for part in split(rest)), guard, negated, line)


def _unpacked(instruction: Instruction) -> list[Instruction]:
    """Write a move to or from a pair of registers as moves of halves."""
    if instruction.op.partition(".")[0] != "mov":
        return [instruction]
    to, source = instruction.operands
    rest = (instruction.guard, instruction.negated, instruction.line)
    kind = instruction.op.rpartition(".")[2]
    if to.startswith("{"):
        low, high = members(to)
        halves = (("low", low), ("high", high))
        return [Instruction(f"{half}.{kind}", (name, source), *rest) for half, name in halves if name != "_"]
    if source.startswith("{"):
        return [Instruction(f"pack.{kind}", (to, *members(source)), *rest)]
    return [instruction]


def split(text: str) -> list[str]:
    """Return what stands between the commas that are in no bracket."""
    return [part for part in re.split(r",(?![^{\[]*[}\]])", text) if part.strip()]


def members(operand: str) -> tuple[str, ...]:
    """Return the registers of an operand: those in braces, or itself."""
    return tuple(part.strip() for part in operand.strip("{} ").split(","))


def address(operand: str) -> tuple[str, int]:
    """Return the base of an address [base + offset], and its offset."""
    base, _, offset = operand.strip("[] ").partition("+")
    return base.strip(), int(offset.strip() or 0)


def constant(text: str, width: int) -> int:
    """Return the bits of a number as written."""
    if text == "global_smem":
        return SHARED_BASE
    if text[:2] in ("0f", "0F"):
        return int(text[2:], 16)
    value = int(text, 16 if text.lower().lstrip("-").startswith("0x") else 10)
    return (value != 0) if width == 1 else value & ((1 << width) - 1)
