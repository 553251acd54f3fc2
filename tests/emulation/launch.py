"""Launches of compiled kernels, executed: the driver stand-in hands them over."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from emulation.driver import Binary
from emulation.machine import Code, Machine
from emulation.memory import Global, Hazards
from emulation.ptx import parse

THREADS = 4096  # that run at once, about: numpy's cost per operation is then that of its elements


class Emulator:
    """Executes launches, and keeps what they did.

    Args:
        edit: changes the PTX of a kernel, given its name and its text, to plant a fault.

    Attributes:
        hazards: what went wrong.
        steps: instructions executed, each by many threads; threads: instructions times threads.
        launches: how many.
    """

    def __init__(self, edit: Callable[[str, str], str] | None = None) -> None:
        self.edit = edit
        self.hazards = Hazards()
        self.steps = self.threads = self.launches = 0
        self._codes: dict[str, Code] = {}

    def __call__(self, binary: Binary, grid: tuple[int, int, int], arguments: dict[str, Any]) -> None:
        """Execute a launch on its tensors."""
        code = self._code(binary)
        given = {name: x for name, x in arguments.items() if binary.types[name] != "constexpr"}
        memory = Global([x for x in given.values() if isinstance(x, Tensor)], self.hazards)
        bits = [memory.address(x) if isinstance(x, Tensor) else _bits(x, binary.types[n]) for n, x in given.items()]
        names = code.kernel.parameters
        parameters = dict(
            zip(names, bits + [0] * (len(names) - len(bits)), strict=True)
        )  # Triton adds two that it omits
        at_once = max(1, THREADS // code.kernel.threads)
        programs = np.arange(int(np.prod(grid)))
        with np.errstate(all="ignore"):
            for first in range(0, len(programs), at_once):
                some = programs[first : first + at_once]
                machine = Machine(code, parameters, grid, some, binary.shared, memory, self.hazards)
                machine.run()
                self.steps += machine.steps
                self.threads += machine.steps * len(machine.all)
        memory.finish()
        self.launches += 1

    def _code(self, binary: Binary) -> Code:
        text = binary.ptx if self.edit is None else self.edit(binary.name, binary.ptx)
        if text not in self._codes:
            self._codes[text] = Code(parse(text))
        return self._codes[text]


def _bits(number: float | bool, kind: str) -> int:
    """Return the bits of a number that is an argument."""
    return struct.unpack("<I", struct.pack("<f", number))[0] if kind == "fp32" else int(number) & (1 << 64) - 1
