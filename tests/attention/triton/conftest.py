"""What the kernels' tests share."""

import inspect
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from benchmarks.ahead import KERNELS
from pe_lab.attention.triton import operators, stick_operators
from pe_lab.attention.triton.launch_parameters import Blocks, choose_blocks, load_blocks


@pytest.fixture
def rounding_to_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts where a GPU rounds."""
    usual = InterpreterBuilder.cast_impl

    def cast(self: InterpreterBuilder, x: TensorHandle, to: tl.dtype) -> TensorHandle:
        if (x.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
            return usual(self, x, to)
        return TensorHandle(torch.from_numpy(x.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast)


@dataclass
class Launch:
    """One launch of a kernel."""

    kernel: str
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    warps: int | None


class Recorded:
    """Stands for a kernel: notes its launches, whose arguments must be those of the kernel, and computes nothing."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.__name__ = kernel.__name__
        self.signature = inspect.signature(kernel.fn)
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*given: Any, num_warps: int | None = None, num_stages: int | None = None, **options: Any) -> None:
            arguments = self.signature.bind(*given, **options).arguments
            self.launches.append(Launch(self.__name__, grid, arguments, num_warps))

        return launch


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of all kernels, which are noted instead of run: what they would have written is left as it was."""
    made: list[Launch] = []
    for kernel in KERNELS.values():
        monkeypatch.setattr(sys.modules[kernel.fn.__module__], kernel.__name__, Recorded(kernel, made))
    return made


@pytest.fixture
def with_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Has kernels take tiles of m queries and n keys, or those of their name; returns the names of who asks."""

    def use(m: int, n: int, **of_kernels: tuple[int, int]) -> set[str]:
        kernels: set[str] = set()

        def choose(_: str, kernel: str, *rest: object) -> Blocks:
            kernels.add(kernel)
            return Blocks(*of_kernels.get(kernel, (m, n)), warps=4, stages=1)

        for module in (operators, stick_operators):
            monkeypatch.setattr(module, "choose_blocks", choose)
        return kernels

    return use


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Kernels whose blocks were looked up: with any head, on every GPU of the table and some that are not in it."""
    asked: set[str] = set()

    def everywhere(_: str, kernel: str, dtype: torch.dtype, head_dim: int, there: Collection[str]) -> Blocks:
        asked.add(kernel)
        for architecture, dims in product((*load_blocks(), "sm_86", "sm_89", "sm_120"), (16, 32, 64, 128)):
            choose_blocks(architecture, kernel, dtype, dims, there)
        blocks = choose_blocks("sm_90", kernel, dtype, head_dim, there)
        return replace(blocks, n=blocks.n // 2) if kernel == "stick_backward_keys" else blocks  # unlike its siblings

    for module in (operators, stick_operators):
        monkeypatch.setattr(module, "choose_blocks", everywhere)
    return asked
