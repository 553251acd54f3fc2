"""Instructions that do more than compute a thread's result: memory, barriers, copies, exchanges, tensor cores.

Each function takes an instruction and the slots of its registers, and returns what executes it, given the machine and
the mask of the threads that take part (None: all).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulation import matrix
from emulation.memory import BYTES
from emulation.ptx import STORAGE, Instruction, address, constant, members
from emulation.scalar import TYPES, Slot

if TYPE_CHECKING:
    from emulation.machine import Machine

Array = np.ndarray
Effect = Callable[["Machine", Array | None], None]
SIZES = {"b8": 1, "u8": 1, "b16": 2, "u16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8}
NONE = np.False_
REDUCTIONS = {
    "min": np.minimum, "max": np.maximum, "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
COUNTS = {"x1": 1, "x2": 2, "x4": 4}


@dataclass(frozen=True)
class Product:
    """A wgmma that was not waited for.

    Args:
        results, sources: the slots that it writes and reads.
        words: of shared memory that it reads, [programs, all].
        programs: that execute it.
    """

    results: frozenset[int]
    sources: frozenset[int]
    words: Array
    programs: Array


def unknown(instruction: Instruction) -> NotImplementedError:
    """Return the error for what is not emulated."""
    return NotImplementedError(f"PTX is not emulated: {instruction}")


def _address(operand: str, slot: Slot) -> tuple[int, int]:
    base, offset = address(operand)
    return slot(base, 0 if base.startswith("%") else 32), offset


def load(instruction: Instruction, slot: Slot) -> Effect:
    """ld: of a parameter, from global or from shared memory."""
    _, space, *_, kind = instruction.op.split(".")
    size = SIZES[kind]
    targets = [slot(name, 0) for name in members(instruction.operands[0])]
    if space == "param":
        name, _ = address(instruction.operands[1])
        return lambda machine, mask: machine.put_parameter(targets[0], name, kind)
    if not space.startswith(("global", "shared")):
        raise unknown(instruction)
    base, offset = _address(instruction.operands[1], slot)
    total = size * len(targets)

    def run(machine: "Machine", mask: Array | None) -> None:
        lanes = machine.lanes(mask)
        where = machine.get(base)[lanes].astype("i8") + offset
        if space.startswith("global"):
            data = machine.memory.read(where, total, machine.numbers[lanes])
        else:
            data = machine.shared.read(where, total, lanes)
        parts = data.view(BYTES[size]).reshape(len(lanes), len(targets))
        for index, target in enumerate(targets):
            machine.put_at(target, lanes, parts[:, index])

    return run


def store(instruction: Instruction, slot: Slot) -> Effect:
    """st: to global or to shared memory."""
    _, space, *_, kind = instruction.op.split(".")
    size = SIZES[kind]
    names = members(instruction.operands[1])
    sources = [slot(name, 0 if name.startswith("%") else 8 * size) for name in names]
    if not space.startswith(("global", "shared")):
        raise unknown(instruction)
    base, offset = _address(instruction.operands[0], slot)

    def run(machine: "Machine", mask: Array | None) -> None:
        lanes = machine.lanes(mask)
        where = machine.get(base)[lanes].astype("i8") + offset
        parts = [machine.get(source)[lanes].astype(BYTES[size]) for source in sources]
        data = np.stack(parts, 1).view(BYTES[size * len(parts)])[:, 0]
        if space.startswith("global"):
            machine.memory.write(where, data, machine.numbers[lanes])
        else:
            machine.shared.write(where, data, lanes)

    return run


def copy(instruction: Instruction, slot: Slot) -> Effect:
    """cp.async: 4 to 16 bytes from global to shared memory, in groups that are waited for."""
    _, _, kind, *_ = instruction.op.split(".")
    if kind == "commit_group":
        return lambda machine, mask: machine.copies.commit(machine.programs(mask))
    if kind in ("wait_group", "wait_all"):
        keep = int(instruction.operands[0]) if kind == "wait_group" else 0
        return lambda machine, mask: _wait_for_copies(machine, keep, mask)
    if kind not in ("ca", "cg"):
        raise unknown(instruction)
    (to, to_offset), (source, offset) = (_address(operand, slot) for operand in instruction.operands[:2])
    size = constant(instruction.operands[2], 32)
    given = slot(instruction.operands[3], 32) if len(instruction.operands) > 3 else None

    def run(machine: "Machine", mask: Array | None) -> None:
        lanes = machine.lanes(mask)
        filled = np.full(len(lanes), size) if given is None else machine.get(given)[lanes]
        if not ((filled == 0) | (filled == size)).all():
            raise unknown(instruction)
        data, real = np.zeros(len(lanes), BYTES[size]), filled > 0
        where = machine.get(source)[lanes].astype("i8") + offset
        if real.any():
            data[real] = machine.memory.read(where[real], size, machine.numbers[lanes][real])
        where = machine.get(to)[lanes].astype("i8") + to_offset
        machine.copies.add((machine.shared.write(where, data, lanes, copying=True), lanes))

    return run


def _wait_for_copies(machine: "Machine", keep: int, mask: Array | None) -> None:
    for (words, lanes), done in machine.copies.wait(keep, machine.programs(mask)):
        chosen = done[machine.shared.program[lanes]]
        machine.shared.copied(words[chosen], lanes[chosen])


def barrier(instruction: Instruction, slot: Slot) -> Effect:
    """bar.sync of all threads of a program."""
    if instruction.op == "bar.warp.sync":
        return lambda machine, mask: None
    if instruction.op != "bar.sync" or instruction.operands != ("0",):
        raise unknown(instruction)
    return lambda machine, mask: machine.shared.barrier(machine.programs(mask))


def fence(instruction: Instruction, slot: Slot) -> Effect:
    """fence.proxy.async."""
    if not instruction.op.startswith("fence.proxy.async"):
        raise unknown(instruction)
    return lambda machine, mask: machine.shared.fence(machine.programs(mask))


def shuffle(instruction: Instruction, slot: Slot) -> Effect:
    """shfl.sync of whole warps."""
    _, _, kind, _ = instruction.op.split(".")
    target, source, index, bounds, warp = instruction.operands
    if kind not in ("idx", "bfly") or constant(bounds, 32) != 31 or constant(warp, 32) != 0xFFFFFFFF:
        raise unknown(instruction)
    to, origin, which = slot(target, 32), slot(source, 32), slot(index, 32)

    def run(machine: "Machine", mask: Array | None) -> None:
        by = machine.get(which) & np.uint32(31)
        lane = machine.all % 32
        partner = machine.all - lane + (by if kind == "idx" else lane ^ by)
        machine.hazards.note(
            mask & ~mask[partner] if mask is not None else NONE, "shfl from a thread that is not active"
        )
        machine.put(to, machine.get(origin)[partner], mask)

    return run


def reduce_warp(instruction: Instruction, slot: Slot) -> Effect:
    """redux.sync: a reduction of integers over the threads of whole warps."""
    _, _, name, kind = instruction.op.split(".")
    target, source, warp = instruction.operands
    if name not in REDUCTIONS:
        raise unknown(instruction)
    to, origin, taking = slot(target, 32), slot(source, 32), slot(warp, 32)

    def run(machine: "Machine", mask: Array | None) -> None:
        lanes, _ = _whole_warps(machine, mask, 0)
        machine.hazards.note(machine.get(taking)[lanes] != 0xFFFFFFFF, "redux of some threads of a warp")
        values = machine.get(origin)[lanes].view(TYPES[kind]).reshape(-1, 32)
        machine.put_at(to, lanes, REDUCTIONS[name].reduce(values, 1).repeat(32).astype(values.dtype).view("u4"))

    return run


def vote(instruction: Instruction, slot: Slot) -> Effect:
    """vote.sync.ballot of whole warps: the bits of their predicates."""
    _, _, kind, _ = instruction.op.split(".")
    target, source, warp = instruction.operands
    if kind != "ballot":
        raise unknown(instruction)
    to, origin, taking = slot(target, 32), slot(source, 1), slot(warp, 32)

    def run(machine: "Machine", mask: Array | None) -> None:
        lanes, _ = _whole_warps(machine, mask, 0)
        machine.hazards.note(machine.get(taking)[lanes] != 0xFFFFFFFF, "vote of some threads of a warp")
        bits = machine.get(origin)[lanes].reshape(-1, 32).astype("u4") << np.arange(32, dtype="u4")
        machine.put_at(to, lanes, np.bitwise_or.reduce(bits, 1).repeat(32))

    return run


def _whole_warps(machine: "Machine", mask: Array | None, matrices: int) -> tuple[Array, Array]:
    """Return the threads of active warps, and among them those that hold the address of a row."""
    lanes = machine.lanes(mask)
    machine.hazards.note(np.bool_(len(lanes) % 32), "a warp takes part with some of its threads")
    return lanes, lanes[lanes % 32 < 8 * matrices]


def load_matrix(instruction: Instruction, slot: Slot) -> Effect:
    """ldmatrix."""
    matrices = next((COUNTS[part] for part in instruction.op.split(".") if part in COUNTS), 0)
    transposed = "trans" in instruction.op.split(".")
    targets = [slot(name, 32) for name in members(instruction.operands[0])]
    base, offset = _address(instruction.operands[1], slot)
    if len(targets) != matrices or ".m8n8." not in instruction.op:
        raise unknown(instruction)

    def run(machine: "Machine", mask: Array | None) -> None:
        lanes, holders = _whole_warps(machine, mask, matrices)
        rows = machine.shared.read(machine.get(base)[holders].astype("i8") + offset, 16, holders)
        for target, value in zip(targets, matrix.loaded(rows.reshape(-1, matrices, 8), transposed), strict=True):
            machine.put_at(target, lanes, value)

    return run


def store_matrix(instruction: Instruction, slot: Slot) -> Effect:
    """stmatrix."""
    transposed = "trans" in instruction.op.split(".")
    sources = [slot(name, 32) for name in members(instruction.operands[1])]
    base, offset = _address(instruction.operands[0], slot)
    if ".m8n8." not in instruction.op:
        raise unknown(instruction)

    def run(machine: "Machine", mask: Array | None) -> None:
        lanes, holders = _whole_warps(machine, mask, len(sources))
        rows = matrix.stored(np.array([machine.get(source)[lanes] for source in sources]), transposed)
        machine.shared.write(machine.get(base)[holders].astype("i8") + offset, rows.reshape(-1), holders)

    return run


def multiply(instruction: Instruction, slot: Slot) -> Effect:
    """mma.sync of bfloat16 or tf32."""
    kinds = {"m16n8k16.row.col.f32.bf16.bf16.f32": False, "m16n8k8.row.col.f32.tf32.tf32.f32": True}
    shape = instruction.op.removeprefix("mma.sync.aligned.")
    if shape not in kinds:
        raise unknown(instruction)
    targets, *sources = ([slot(name, 32) for name in members(operand)] for operand in instruction.operands)

    def run(machine: "Machine", mask: Array | None) -> None:
        result = matrix.mma(*([machine.get(s) for s in source] for source in sources), kinds[shape])
        for target, value in zip(targets, result, strict=True):
            machine.put(target, value, mask)

    return run


def multiply_group(instruction: Instruction, slot: Slot) -> Effect:
    """wgmma: products of warp groups with operands in shared memory, and what orders them."""
    _, kind, *rest = instruction.op.split(".")
    if kind == "fence":
        return lambda machine, mask: machine.fence_registers()
    if kind == "commit_group":
        return lambda machine, mask: machine.products.commit(machine.programs(mask))
    if kind == "wait_group":
        keep = int(instruction.operands[0])
        return lambda machine, mask: _wait_for_products(machine, keep, mask)
    shape, types = rest[2], rest[3:]
    tf32 = types == ["f32", "tf32", "tf32"]
    operands, numbers = instruction.operands[:4], [constant(x, 32) for x in instruction.operands[4:]]
    if kind != "mma_async" or not (tf32 or types == ["f32", "bf16", "bf16"]) or numbers[:2] != [1, 1]:
        raise unknown(instruction)
    in_registers = operands[1].startswith("{")
    turned = [False] * in_registers + [bool(x) for x in numbers[2:]] if not tf32 else [False, False]
    columns = int(shape.removeprefix("m64n").partition("k")[0])
    results = [slot(name, 32) for name in members(operands[0])]
    lefts = [slot(name, 32 if in_registers else 64) for name in members(operands[1])]
    right, adds = slot(operands[2], 64), slot(operands[3], 1)
    sources = frozenset(lefts if in_registers else ())

    def run(machine: "Machine", mask: Array | None) -> None:
        programs = machine.programs(mask)
        lanes = (programs[:, None] * machine.threads + np.arange(machine.threads)).reshape(-1)
        machine.check_fenced(results, sources, lanes)
        words = []
        if in_registers:
            left = matrix.wgmma_left([machine.get(s)[lanes] for s in lefts], tf32)
        else:
            left, read = _from_shared(machine, machine.get(lefts[0])[lanes], programs, 64, turned[0], tf32)
            words.append(read)
        other, read = _from_shared(machine, machine.get(right)[lanes], programs, columns, turned[1], tf32)
        words.append(read)
        product = left.astype("f8") @ np.swapaxes(other.astype("f8"), 1, 2)
        before = np.array([machine.get(s, STORAGE[32])[lanes] for s in results]).view("f4")
        after = np.where(machine.get(adds)[lanes], before, np.float32(0)) + matrix.wgmma_registers(product)
        for target, value in zip(results, after.astype("f4").view("u4"), strict=True):
            machine.put_at(target, lanes, value)
        made = Product(frozenset(results), sources, np.concatenate(words, 1), programs)
        machine.shared.reading[made.words] += 1  # a word that occurs twice counts once, also when the product ends
        machine.products.add(made)
        machine.note_flying((*results, *sources))

    return run


def _from_shared(
    machine: "Machine", descriptors: Array, programs: Array, rows: int, transposed: bool, tf32: bool
) -> tuple[Array, Array]:
    """Return operands [warp groups, rows, k] that are described by threads, and the words that were read."""
    descriptors = descriptors.reshape(len(programs), -1, 128)
    machine.hazards.note(descriptors != descriptors[..., :1], "threads of a warp group have different descriptors")
    places = matrix.wgmma_places(descriptors[..., 0], rows, transposed)
    pieces, words = machine.shared.chunks(places, programs)
    return matrix.wgmma_operand(pieces.reshape(-1, *places.shape[2:]), transposed, tf32), words


def _wait_for_products(machine: "Machine", keep: int, mask: Array | None) -> None:
    for product, done in machine.products.wait(keep, machine.programs(mask)):
        chosen = done[product.programs]
        machine.shared.reads_end(product.words[chosen], product.programs[chosen])
    machine.note_flying(())


EFFECTS: dict[str, Callable[[Instruction, Slot], Effect]] = {
    "ld": load, "st": store, "cp": copy, "bar": barrier, "fence": fence, "shfl": shuffle, "redux": reduce_warp,
    "vote": vote, "ldmatrix": load_matrix, "stmatrix": store_matrix, "mma": multiply, "wgmma": multiply_group,
}  # fmt: skip
NOTHING = {"griddepcontrol", "membar"}  # orders launches and programs, which are compared as a whole
