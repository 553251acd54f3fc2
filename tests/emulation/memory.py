"""Memory of a launch, with every access checked: bounds, alignment, and the order in which threads see it.

Shared memory has one row of bytes per program. Its words remember when they were written and read, by which warp: two
warps may meet in a word only with a barrier in between. Warps are taken to run in step with themselves.
"""

import ctypes
from collections import Counter

import numpy as np
import torch
from torch import Tensor

from emulation.ptx import SHARED_BASE

Array = np.ndarray
BYTES = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}  # the numpy type that moves so many bytes at once
GLOBAL_BASE = 1 << 33
GAP = 512  # bytes between the tensors of a launch that belong to none
WRITTEN, COPYING, UNFENCED = 1, 2, 4  # flags of a word: has a value; cp.async not waited for; not fenced for wgmma
MANY = 255  # in place of a warp: several


class Hazards(Counter[tuple[str, str]]):
    """What went wrong, and on which line of the source, by how often.

    Attributes:
        line: of what is executed.
        remarks: what PTX forbids and ptxas is known to handle: Triton's own output has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line = ""
        self.remarks: Counter[tuple[str, str]] = Counter()

    def note(self, found: Array, text: str) -> None:
        """Count a hazard if an element is true."""
        if found.any():
            self[text, self.line] += 1


class Shared:
    """The shared memory of all programs.

    Args:
        programs, threads: how many, and threads of each.
        size: bytes of a program.
    """

    def __init__(self, programs: int, threads: int, size: int, hazards: Hazards) -> None:
        self.hazards = hazards
        self.size = size
        self.row = -(-max(size, 16) // 16) * 16
        lanes = np.arange(programs * threads)
        self.program = lanes // threads
        self.start = self.program * self.row - SHARED_BASE
        self.warp = lanes % threads // 32
        self.memory = np.full(programs * self.row, 0xFF, "u1")
        words = programs * self.row // 4
        self.flags = np.zeros(words, "u1")
        self.wrote, self.read_by = np.full(words, -1), np.full(words, -1)  # epoch * 256 + warp
        self.reading = np.zeros(words, "i2")  # wgmma instructions that read it and are not waited for
        self.epoch = np.zeros(programs, "i8")  # barriers so far
        self.stamp = self.warp.copy()

    def barrier(self, programs: Array) -> None:
        """Order all accesses before and after."""
        self.epoch[programs] += 1
        self.stamp = self.epoch[self.program] * 256 + self.warp

    def places(self, addresses: Array, size: int, lanes: Array) -> tuple[Array, Array]:
        """Return the indices of bytes, [lanes], and of words, [lanes, words], of accesses with so many bytes."""
        within = addresses - SHARED_BASE
        outside = (within < 0) | (within + size > self.size)
        self.hazards.note(outside, "shared access out of bounds")
        self.hazards.note(within % size, "shared access misaligned")
        at = np.where(outside, 0, within) // size * size + self.program[lanes] * self.row
        return at, (at >> 2)[:, None] + np.arange(max(size // 4, 1))

    def read(self, addresses: Array, size: int, lanes: Array) -> Array:
        """Return what threads read, [lanes] of numpy's type for the size."""
        at, words = self.places(addresses, size, lanes)
        stamp = self.stamp[lanes][:, None]
        flags = self.flags[words]
        self.hazards.note(flags & COPYING, "shared read before its cp.async was waited for")
        self.hazards.note(~flags & WRITTEN, "shared read of what was not written")
        self.hazards.note(_other(self.wrote[words], stamp), "shared read after another warp's write without a barrier")
        seen = np.where(_other(self.read_by[words], stamp), stamp | MANY, stamp)
        self.read_by[words] = seen
        clash = self.read_by[words] != seen
        if clash.any():
            self.read_by[words[clash]] = np.broadcast_to(stamp | MANY, words.shape)[clash]
        return self.memory.view(BYTES[size])[at // size]

    def write(self, addresses: Array, data: Array, lanes: Array, copying: bool = False) -> Array:
        """Store data [lanes] and return the words; `copying`: by cp.async, in place when that was waited for."""
        size = data.itemsize
        at, words = self.places(addresses, size, lanes)
        stamp = np.broadcast_to(self.stamp[lanes][:, None], words.shape)
        self.hazards.note(self.reading[words], "shared write while wgmma reads")
        self.hazards.note(self.flags[words] & COPYING, "shared write onto a cp.async that was not waited for")
        self.hazards.note(
            _other(self.read_by[words], stamp), "shared write after another warp's read without a barrier"
        )
        view, raw = self.memory.view(BYTES[size]), data.view(BYTES[size])
        twice = _other(self.wrote[words], stamp).any(1) & (size >= 4)  # half words may share a word
        different = _differ(view[at[twice] // size], raw[twice])
        self.hazards.note(different, "shared write after another warp's write without a barrier")
        view[at // size] = raw
        self.hazards.note(_differ(view[at // size], raw), "two threads store different values at the same address")
        self.wrote[words] = stamp
        self.flags[words] = WRITTEN | UNFENCED | (COPYING if copying else 0)
        return words

    def copied(self, words: Array, lanes: Array) -> None:
        """Make what cp.async stored visible to the threads that waited for it."""
        self.flags[words] &= 0xFF - COPYING
        self.wrote[words] = np.broadcast_to(self.stamp[lanes][:, None], words.shape)

    def fence(self, programs: Array) -> None:
        """Make all writes visible to wgmma."""
        self.flags.reshape(-1, self.row // 4)[programs] &= 0xFF - UNFENCED

    def chunks(self, addresses: Array, programs: Array) -> tuple[Array, Array]:
        """Return the 16 bytes at addresses [programs, ...] as wgmma reads them, and their words [programs, all]."""
        within = addresses.reshape(len(programs), -1) - SHARED_BASE
        outside = (within < 0) | (within + 16 > self.size)
        self.hazards.note(outside, "wgmma reads shared memory out of bounds")
        at = np.where(outside, 0, within) + programs[:, None] * self.row
        words = ((at >> 2)[:, :, None] + np.arange(4)).reshape(len(programs), -1)
        flags = self.flags[words]
        self.hazards.note(flags & COPYING, "wgmma reads before cp.async was waited for")
        self.hazards.note(flags & UNFENCED, "wgmma reads without fence.proxy.async")
        self.hazards.note(~flags & WRITTEN, "wgmma reads what was not written")
        self.hazards.note(self.wrote[words] >> 8 == self.epoch[programs][:, None], "wgmma reads without a barrier")
        return self.memory.view("c16")[at >> 4].reshape(addresses.shape), words

    def reads_end(self, words: Array, programs: Array) -> None:
        """Note that wgmma has read words [programs, all]."""
        self.reading[words] -= 1
        self.read_by[words] = self.epoch[programs][:, None] * 256 + MANY


def _other(before: Array, stamp: Array) -> Array:
    """Return where the same epoch has another warp."""
    apart = before ^ stamp
    return (apart > 0) & (apart < 256)


def _differ(a: Array, b: Array) -> Array:
    return a.view("u1") != b.view("u1")


class Global:
    """Copies of the tensors of a launch, at addresses of their own, with gaps in between.

    Only elements of the arguments may be accessed. What one program of the launch writes, no other may read or write.
    """

    def __init__(self, tensors: list[Tensor], hazards: Hazards) -> None:
        self.hazards = hazards
        self.storages: dict[int, tuple[int, int]] = {}  # where they are here, and their bytes
        end = GAP
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.storages:
                start = -(-end // 256) * 256 + storage.data_ptr() % 256  # of the same alignment
                self.storages[storage.data_ptr()] = start, storage.nbytes()
                end = start + storage.nbytes() + GAP
        self.memory = np.zeros(-(-end // 16) * 16, "u1")
        for base, (start, size) in self.storages.items():
            self.memory[start : start + size] = _bytes_at(base, size)
        self.inside = np.zeros(len(self.memory) // 2, bool)
        for tensor in tensors:
            self._admit(tensor)
        self.writer = np.full(len(self.inside), -1, "i4")
        self.reads: list[tuple[Array, Array, str]] = []

    def address(self, tensor: Tensor) -> int:
        """Return the address of a tensor's first element."""
        base = tensor.untyped_storage().data_ptr()
        return GLOBAL_BASE + self.storages[base][0] + tensor.data_ptr() - base

    def _admit(self, tensor: Tensor) -> None:
        if tensor.numel() == 0:
            return
        unit = tensor.element_size() // 2
        elements = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
        elements = elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().numpy()
        first = self.storages[tensor.untyped_storage().data_ptr()][0] // 2
        self.inside[(first + elements * unit)[:, None] + np.arange(unit)] = True

    def places(self, addresses: Array, size: int, what: str) -> tuple[Array, Array]:
        """Return the indices of bytes, [lanes], and of half words, [lanes, half words], of accesses."""
        within = addresses.astype("i8") - GLOBAL_BASE
        self.hazards.note(within % size, f"global {what} misaligned")
        outside = (within < 0) | (within + size > len(self.memory))
        at = np.where(outside, 0, within) // size * size
        halves = (at >> 1)[:, None] + np.arange(size // 2)
        self.hazards.note(outside | ~self.inside[halves].all(1), f"global {what} out of bounds")
        return at, halves

    def read(self, addresses: Array, size: int, programs: Array) -> Array:
        """Return what threads read, [lanes] of numpy's type for the size."""
        at, halves = self.places(addresses, size, "read")
        self.reads.append((halves, programs, self.hazards.line))
        return self.memory.view(BYTES[size])[at // size]

    def write(self, addresses: Array, data: Array, programs: Array) -> None:
        """Store data [lanes]."""
        size = data.itemsize
        at, halves = self.places(addresses, size, "write")
        here = np.broadcast_to(programs[:, None], halves.shape)
        before = self.writer[halves]
        self.writer[halves] = here
        other = ((before >= 0) & (before != here)) | (self.writer[halves] != here)
        self.hazards.note(other, "global write by two programs of a launch")
        self.memory.view(BYTES[size])[at // size] = data.view(BYTES[size])

    def finish(self) -> None:
        """Compare reads with writes, and copy back what was written."""
        for halves, programs, line in self.reads:
            writer = self.writer[halves]
            self.hazards.line = line
            self.hazards.note((writer >= 0) & (writer != programs[:, None]), "global read of another program's write")
        for base, (start, size) in self.storages.items():
            if (self.writer[start // 2 : (start + size) // 2] >= 0).any():
                _bytes_at(base, size)[:] = self.memory[start : start + size]


def _bytes_at(base: int, size: int) -> Array:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(base), "u1") if size else np.empty(0, "u1")
