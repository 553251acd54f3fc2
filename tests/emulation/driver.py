"""A stand-in for Triton's driver: kernels are specialised and compiled as on a GPU, and launches go to a function.

It needs a process without TRITON_INTERPRET, where kernels are defined for the compiler: see worker.py.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver
from triton.runtime import driver as active
from triton.runtime.jit import JITFunction

from pe_lab.attention.triton import launch_parameters

MAX_SHARED_BYTES = {"sm_80": 166_912, "sm_90": 232_448}  # bytes per program
KERNELS = "pe_lab.attention.triton"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Args:
        kernel: its name.
        grid: programs along three axes.
        arguments: by name, without tensors: numbers, and the options known when compiling.
        addresses: of the tensors among the arguments, by name.
        warps: of a program.
        shared: bytes of shared memory of a program; 0 if the kernel was not compiled.
    """

    kernel: str
    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    addresses: dict[str, int]
    warps: int
    shared: int


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Args:
        name: of the kernel.
        ptx: its code.
        warps: of a program.
        shared: bytes of shared memory of a program.
        types: Triton's type of every argument, "constexpr" for those that the code does not take.
    """

    name: str
    ptx: str
    warps: int
    shared: int
    types: dict[str, str]


Execute = Callable[[Binary, tuple[int, int, int], dict[str, Any]], None]


@contextmanager
def standing_in(
    architecture: str = "sm_90", *, compiles: bool = True, execute: Execute | None = None
) -> Iterator[list[Launch]]:
    """Take the place of a GPU's driver, so that kernels can be launched with CPU tensors; yield the launches made.

    Args:
        architecture: of the GPU, one of MAX_SHARED_BYTES.
        compiles: whether kernels are compiled to PTX; otherwise they are specialised only.
        execute: called for every launch with the compiled kernel, the grid and the arguments by name.

    Raises:
        RuntimeError: this process defines kernels for Triton's interpreter.
    """
    import benchmarks.ahead  # noqa: F401  every module of kernels

    if knobs.runtime.interpret or not isinstance(triton.language.sum, JITFunction):
        raise RuntimeError("the driver stand-in needs a process without TRITON_INTERPRET")
    made: list[Launch] = []

    def launched(binary: Binary, grid: tuple[int, int, int], arguments: dict[str, Any]) -> None:
        addresses = {name: x.data_ptr() for name, x in arguments.items() if isinstance(x, Tensor)}
        numbers = {name: x for name, x in arguments.items() if name not in addresses}
        made.append(Launch(binary.name, grid, numbers, addresses, binary.warps, binary.shared))
        if execute is not None:
            execute(binary, grid, arguments)

    with ExitStack() as stack:
        stack.enter_context(knobs.runtime.scope())
        stack.enter_context(mock.patch.dict(os.environ))
        knobs.runtime.interpret = False  # how Triton reads it; below is how the package does
        os.environ["TRITON_INTERPRET"] = "1"  # so that the kernels take tensors of a CPU
        knobs.runtime.add_stages_inspection_hook = _leave_out_ptxas
        stack.enter_context(mock.patch.object(active, "_active", _Driver(architecture, compiles, launched)))
        if not compiles:
            stack.enter_context(mock.patch.object(JITFunction, "_do_compile", _specialise))
        imported = launch_parameters.device_architecture
        for name, module in list(sys.modules.items()):
            if name.startswith(KERNELS) and getattr(module, "device_architecture", None) is imported:
                stack.enter_context(mock.patch.object(module, "device_architecture", return_value=architecture))
        yield made


def _leave_out_ptxas(*stages: Any) -> tuple[str, str] | None:
    """Make the PTX the binary; without arguments, return what this adds to the key and to the hash of a kernel."""
    if not stages:
        return "no ptxas", "'no ptxas'"
    stages[1]["cubin"] = lambda ptx, metadata: ptx.encode()
    return None


class _Driver(GPUDriver):
    """A driver of one GPU, whose launches call a function."""

    def __init__(self, architecture: str, compiles: bool, launched: Execute) -> None:
        self.number = int(architecture.removeprefix("sm_"))
        properties = {"max_shared_mem": MAX_SHARED_BYTES[architecture], "multiprocessor_count": 132, "warpSize": 32}
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: properties,
            load_binary=lambda name, kernel, shared, device: (kernel, kernel, 0, 0, 1024),
        )
        self.launcher_cls = _Launcher
        self.launched = launched
        self.get_current_device = lambda: (architecture, compiles)  # Triton keeps compiled kernels by device
        self.get_current_stream = lambda device: 0
        self.get_device_capability = lambda device=0: divmod(self.number, 10)
        self.set_current_device = lambda device: None

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.number, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return ty_to_cpp(ty)

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is measured without a GPU")


class _Launcher:
    """Call the function of the driver that is active when a kernel is launched."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.types, self.metadata = source.signature, metadata

    def __call__(self, x: int, y: int, z: int, stream: int, ptx: bytes, *rest: Any) -> None:
        metadata = self.metadata
        binary = Binary(metadata.name, ptx.decode(), metadata.num_warps, metadata.shared, self.types)
        active.active.launched(binary, (x, y, z), dict(zip(self.types, rest[4:], strict=True)))


def _specialise(
    self: JITFunction, key: str, types: dict[str, str], device: Any, _: Any, options: Any, *rest: Any
) -> Any:
    """Take the place of compiling: return a kernel that can be launched."""
    source = SimpleNamespace(signature=types)
    metadata = SimpleNamespace(name=self.fn.__name__, num_warps=options.num_warps, shared=0)
    launch_metadata = lambda *_: None  # noqa: E731
    kernel = SimpleNamespace(
        run=_Launcher(source, metadata), function=b"", packed_metadata=None, launch_metadata=launch_metadata
    )
    self.device_caches[device][0][key] = kernel
    return kernel
