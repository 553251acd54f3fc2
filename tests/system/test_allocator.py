"""Tests of what the process does with freed memory."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from pe_lab.system import allocator

# steps that use 64 MB in pieces of SIZE MB; prints the page faults of all but the first, and pages in use at the end
STEPS = """
import ctypes, os, resource, sys
from pe_lab.system.allocator import keep_freed_memory, return_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
SIZE, libc = int(sys.argv[2]), ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def step():
    pieces = [libc.malloc(SIZE << 20) for _ in range(64 // SIZE)]
    for piece in pieces:
        ctypes.memset(piece, 1, SIZE << 20)
    for piece in pieces:
        libc.free(piece)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
if sys.argv[1] == "keep":
    return_freed_memory()
print(kept, faults, int(open("/proc/self/statm").read().split()[1]))
"""
PAGES = (64 << 20) // os.sysconf("SC_PAGE_SIZE")  # of a step

needs_glibc = pytest.mark.skipif(not allocator._is_glibc(), reason="another C library than glibc")


def steps(keep: bool, size: int = 4, **variables: str) -> tuple[str, int, int]:
    """Return whether memory is kept, page faults of 20 steps and pages in use after them."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", STEPS, "keep" if keep else "usual", str(size)]
    output = subprocess.run(command, env=usual | variables, check=True, capture_output=True, text=True).stdout.split()
    return output[0], int(output[1]), int(output[2])


@needs_glibc
@pytest.mark.parametrize("size", [4, 21])
def test_steps_reuse_the_memory_of_the_step_before(size: int) -> None:
    assert steps(keep=False, size=size)[1] > 10 * PAGES  # otherwise there is nothing to gain
    kept, faults, _ = steps(keep=True, size=size)
    assert kept == "True"
    assert faults < PAGES / 10


@needs_glibc
def test_memory_is_returned_after_the_last_step() -> None:
    assert steps(keep=True)[2] < PAGES / 2


@needs_glibc
@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_user_has_chosen_stays(variable: str) -> None:
    value = "131072" if variable.startswith("MALLOC") else "glibc.malloc.trim_threshold=131072"
    kept, faults, _ = steps(keep=True, **{variable: value})
    assert kept == "False"
    assert faults > PAGES


def nothing(name: str) -> str:
    return ""


def no_value(name: str) -> str:
    raise OSError(22, "Invalid argument")


@pytest.mark.parametrize("confstr", [None, nothing, no_value])  # without the name; without a value; musl
def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch, confstr: Callable[[str], str] | None) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    if confstr is None:
        monkeypatch.setattr(allocator.os, "confstr_names", {})
    else:
        monkeypatch.setattr(allocator.os, "confstr", confstr)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("it was called"))
    assert not allocator.keep_freed_memory()
    allocator.return_freed_memory()
