"""Execute a kernel's PTX on numpy: all threads of many programs at once, every instruction one operation on arrays.

Threads that diverge wait for each other by the least program counter: those that are furthest behind go on, and join
others where they meet them. Whatever is found wrong is counted as a hazard, with the line of the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulation.effects import EFFECTS, NOTHING, Product, unknown
from emulation.memory import Global, Hazards, Shared
from emulation.ptx import SPECIAL, STORAGE, Instruction, Kernel, constant, members
from emulation.scalar import compile_scalar

Array = np.ndarray
Mask = Array | None  # of threads; None: all
NEVER = 1 << 60  # in place of a program counter


@dataclass(frozen=True)
class Step:
    """An instruction made ready to run.

    Args:
        run: returns the result's new array, given the register file; or has an effect on the machine.
        target: the slot of the result; None for an effect.
        goal: where a branch goes; NEVER for ret; None for others.
        guard: the slot of the predicate, or None.
        used, written: the slots of all its registers, and of those it writes.
        instruction: as read.
    """

    run: Any
    target: int | None
    goal: int | None
    guard: int | None
    used: frozenset[int]
    written: frozenset[int]
    instruction: Instruction


class Code:
    """A kernel made ready to run.

    Raises:
        NotImplementedError: an instruction is not known, with its text.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.slots = {name: index for index, name in enumerate(kernel.registers)}
        self.types = [STORAGE[bits] for bits in kernel.registers.values()]  # of the slots
        self.constants: dict[tuple[int, int], int] = {}  # the slot, by bits and value
        self.steps = [self._step(instruction) for instruction in kernel.code]

    def slot(self, operand: str, bits: int) -> int:
        """Return the slot of a register, of any width if `bits` is 0, or of a number with so many bits."""
        if operand in self.slots:
            if bits and self.kernel.registers[operand] != bits:
                raise NotImplementedError(f"{operand} where {bits} bits are meant")
            return self.slots[operand]
        if not bits:
            raise NotImplementedError(f"{operand} where a register is meant")
        key = (bits, int(constant(operand, bits)))
        return self.constants.setdefault(key, len(self.slots) + len(self.constants))

    def _step(self, instruction: Instruction) -> Step:
        family = instruction.op.partition(".")[0]
        guard = None if instruction.guard is None else self.slots[instruction.guard]
        names = [members(operand.replace("[", "{").replace("]", "}")) for operand in instruction.operands]
        slots = [{self.slots[n.split()[0]] for n in part if n.split()[0] in self.slots} for part in names]
        used = frozenset().union(*slots)
        written = frozenset(slots[0]) if slots and family not in ("st", "stmatrix", "cp") else frozenset[int]()
        run, target, goal = None, None, None
        try:
            if family == "bra":
                goal = self.kernel.labels[instruction.operands[0]]
            elif family == "ret":
                goal = NEVER
            elif family in EFFECTS:
                run = EFFECTS[family](instruction, self.slot)
            elif family not in NOTHING:
                run, target = compile_scalar(instruction, self.slot), self.slots[instruction.operands[0]]
                if run is None:
                    raise unknown(instruction)
        except (KeyError, ValueError, NotImplementedError) as error:
            raise NotImplementedError(f"PTX is not emulated: {instruction}: {error!r}") from error
        return Step(run, target, goal, guard, used, written, instruction)


class Groups:
    """What is committed in groups and waited for by the number of groups that may remain: copies, products."""

    def __init__(self, programs: int) -> None:
        self.count = programs
        self.open: list[Any] = []
        self.committed: list[tuple[Array, list[Any]]] = []  # programs that have not waited, and the parts

    def add(self, part: Any) -> None:
        self.open.append(part)

    def commit(self, programs: Array) -> None:
        """End a group of these programs."""
        mask = np.zeros(self.count, bool)
        mask[programs] = True
        self.committed.append((mask, self.open))
        self.open = []

    def wait(self, keep: int, programs: Array) -> Iterator[tuple[Any, Array]]:
        """Yield every part that is waited for, with the mask of the programs that do."""
        later = np.zeros(self.count, int)
        asked = np.zeros(self.count, bool)
        asked[programs] = True
        for mask, parts in reversed(self.committed):
            done = mask & asked & (later >= keep)
            later += mask
            mask &= ~done
            if done.any():
                yield from ((part, done) for part in parts)
        self.committed = [(mask, parts) for mask, parts in self.committed if mask.any()]


class Machine:
    """Some programs of a launch.

    Args:
        code: of the kernel.
        parameters: the bits of its arguments, by name.
        grid: programs along three axes.
        programs: the numbers of those that run, with the first axis counting fastest.
        shared: bytes of shared memory of a program.
        memory: the tensors of the launch.
        hazards: where they are counted.
    """

    def __init__(
        self, code: Code, parameters: dict[str, int], grid: tuple[int, int, int], programs: Array, shared: int,
        memory: Global, hazards: Hazards,
    ) -> None:  # fmt: skip
        self.code, self.parameters, self.memory, self.hazards = code, parameters, memory, hazards
        self.threads = code.kernel.threads
        self.count = len(programs)
        self.all = np.arange(self.count * self.threads)
        self.shared = Shared(self.count, self.threads, shared, hazards)
        self.numbers = np.repeat(programs, self.threads)  # of the program of each thread, in the launch
        self.values: list[Any] = [None] * (len(code.slots) + len(code.constants))
        for (bits, value), slot in code.constants.items():
            self.values[slot] = np.full(len(self.all), value, STORAGE[bits])
        place = np.unravel_index(self.numbers, grid, order="F")
        known = {"%tid.x": self.all % self.threads, "%laneid": self.all % 32}
        known |= {f"%ctaid.{axis}": at for axis, at in zip("xyz", place, strict=True)}
        known |= {f"%nctaid.{axis}": np.full(len(self.all), size) for axis, size in zip("xyz", grid, strict=True)}
        for name in SPECIAL:
            self.values[code.slots[name]] = known[name].astype("u4")
        self.copies, self.products = Groups(self.count), Groups(self.count)
        self.fenced: list[Any] = [NEVER] * len(self.values)  # the register file at the last wgmma.fence
        self.flying: frozenset[int] = frozenset()  # slots of products that were not waited for
        self.steps = 0

    def lanes(self, mask: Mask) -> Array:
        """Return the indices of the threads of a mask."""
        return self.all if mask is None else np.flatnonzero(mask)

    def programs(self, mask: Mask) -> Array:
        """Return the indices of the programs of a mask, all of whose threads must be in it."""
        if mask is None:
            return np.arange(self.count)
        by_program = mask.reshape(self.count, self.threads)
        some = by_program.any(1)
        self.hazards.note(some & ~by_program.all(1), "some threads of a program do not arrive")
        return np.flatnonzero(some)

    def get(self, slot: int, missing: Any = None) -> Array:
        """Return a register; of one that was never written, zeros, which is a hazard unless `missing` is its type."""
        value = self.values[slot]
        if value is None:
            self.hazards.note(np.bool_(missing is None), "register read before it is written")
            value = np.zeros(len(self.all), missing or self.code.types[slot])
        return value

    def put(self, slot: int, value: Array, mask: Mask) -> None:
        """Write a register of the threads of a mask."""
        if mask is not None:
            before = self.values[slot]
            value = np.where(mask, value, value.dtype.type(0) if before is None else before)
        self.values[slot] = value

    def put_at(self, slot: int, lanes: Array, value: Array) -> None:
        """Write a register of some threads."""
        stored = self.code.types[slot]
        if len(lanes) == len(self.all):
            self.values[slot] = value.astype(stored)
            return
        before = self.values[slot]
        new = np.zeros(len(self.all), stored) if before is None else before.copy()
        new[lanes] = value
        self.values[slot] = new

    def put_parameter(self, slot: int, name: str, kind: str) -> None:
        """Write a parameter into a register, extended by its sign if its type has one."""
        stored = self.code.types[slot]
        value = self.parameters[name] & (1 << int(kind[1:])) - 1
        if kind[0] == "s" and value >> int(kind[1:]) - 1:
            value -= 1 << int(kind[1:])
        self.values[slot] = np.full(len(self.all), value & (1 << 8 * stored.itemsize) - 1, stored)

    def fence_registers(self) -> None:
        """Remember the register file: what changes from now on is not ordered before a wgmma."""
        self.fenced = list(self.values)

    def check_fenced(self, results: list[int], sources: frozenset[int], lanes: Array) -> None:
        """Look for registers of a wgmma that were written after the last wgmma.fence.

        In what Triton writes, LLVM moves conversions of operands and copies of sums past the fence: those are remarks.
        """
        text = "wgmma without wgmma.fence after a change of its "
        changed = [slot for slot in results if self.values[slot] is not self.fenced[slot]]
        copied = [slot for slot in changed if self._is_copy(slot, lanes)]
        self.hazards.note(np.bool_(len(changed) > len(copied)), text + "results")
        if copied or any(self.values[slot] is not self.fenced[slot] for slot in sources):
            self.hazards.remarks[text + "registers", self.hazards.line] += 1

    def _is_copy(self, slot: int, lanes: Array) -> bool:
        """Return whether a register holds what some register held at the last wgmma.fence."""
        value = self.get(slot)
        held = [x for x in self.fenced if isinstance(x, np.ndarray) and x.dtype == value.dtype]
        return any(x is value for x in held) or any(np.array_equal(x[lanes], value[lanes]) for x in held)

    def note_flying(self, changed: tuple[int, ...]) -> None:
        """Note that a wgmma has written these slots, or that some were waited for."""
        for slot in changed:
            self.fenced[slot] = self.values[slot]
        self.flying = frozenset().union(*(part.results | part.sources for _, part in self._outstanding()))

    def _outstanding(self) -> Iterator[tuple[Array, Product]]:
        """Yield every product that was not waited for, and the programs that have not."""
        yield from ((product.programs, product) for product in self.products.open)
        for mask, parts in self.products.committed:
            yield from ((np.flatnonzero(mask), product) for product in parts)

    def check_flying(self, step: Step, mask: Mask) -> None:
        """Look for products whose registers a step uses before they are waited for."""
        active = np.ones(self.count, bool) if mask is None else mask.reshape(self.count, self.threads).any(1)
        product = step.instruction.op.startswith("wgmma.")
        used = step.used - step.written if product else step.used  # products may add to results in order
        for programs, flying in self._outstanding():
            if active[programs].any():
                self.hazards.note(np.bool_(used & flying.results), "wgmma result used before it was waited for")
                overwritten = step.written & flying.sources
                if overwritten and product:  # ptxas copies operands to neighbouring registers
                    self.hazards.remarks["wgmma operand is a later result", self.hazards.line] += 1
                else:
                    self.hazards.note(np.bool_(overwritten), "wgmma operand overwritten in flight")

    def run(self, most: int = 10**6) -> None:
        """Run the programs to their end.

        Raises:
            RuntimeError: after so many steps they had not ended.
        """
        steps, values = self.code.steps, self.values
        waiting: dict[int, Array] = {}  # masks of threads, by the instruction that they have reached
        at, mask, wake = 0, None, NEVER
        while at < NEVER or waiting:
            if at >= wake:
                at, mask, wake = _meet(waiting, at, mask, wake)
            step = steps[at]
            at += 1
            self.steps += 1
            act = mask
            if step.guard is not None:
                held = values[step.guard] != step.instruction.negated
                act = held if mask is None else held & mask
                if not act.any():
                    continue
            if step.goal is None:
                self._execute(step, act)
                continue
            if self.steps > most:
                raise RuntimeError(f"programs have not ended after {most} steps, at {step.instruction}")
            stay = None if step.guard is None else ~act if mask is None else mask & ~act
            if stay is None or not stay.any():
                at = step.goal
                continue
            if step.goal < NEVER:
                waiting[step.goal] = waiting.get(step.goal, False) | act
            mask, wake = stay, min(waiting, default=NEVER)
        self.hazards.note(np.bool_(any(True for _ in self._outstanding())), "wgmma was not waited for")

    def _execute(self, step: Step, mask: Mask) -> None:
        """Execute a step that is no branch, for the threads of a mask."""
        self.hazards.line = step.instruction.line
        if self.flying and not self.flying.isdisjoint(step.used):
            self.check_flying(step, mask)
        if step.target is None:
            if step.run is not None:
                step.run(self, mask)
            return
        try:
            result = step.run(self.values)
        except (AttributeError, TypeError):  # of None
            for slot in step.used - step.written:
                self.values[slot] = self.get(slot)
            result = step.run(self.values)
        self.put(step.target, result, mask)


def _meet(waiting: dict[int, Array], at: int, mask: Mask, first: int) -> tuple[int, Mask, int]:
    """Return where those who wait first go on, with those who have come there; and where others wait."""
    joined = waiting.pop(first)
    if at == first:
        joined = joined | mask
    elif at < NEVER:
        waiting[at] = waiting.get(at, False) | mask
    return first, None if joined.all() else joined, min(waiting, default=NEVER)
