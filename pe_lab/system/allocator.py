"""Keep freed memory in the process. Nothing here imports torch."""

import ctypes
import os

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of malloc.h
MAX_THRESHOLD = 32 << 20  # bytes: the largest threshold that glibc takes


def keep_freed_memory() -> bool:
    """Let glibc keep the memory that a training step frees, for the next step.

    By default it returns memory to the system and gets it back page by page, which costs up to 45 % of the time of a
    step whose tensors have megabytes (`dape`). Results do not change. Blocks above 32 MB are returned still. It holds
    for the whole process, whatever runs in it later. Where a variable MALLOC_* or GLIBC_TUNABLES is set, nothing is
    changed: that is the user's choice.

    Returns:
        Whether glibc keeps it: False with another C library and where the user has chosen.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or not _is_glibc():
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(MMAP_THRESHOLD, MAX_THRESHOLD) and libc.mallopt(TRIM_THRESHOLD, -1))


def return_freed_memory() -> None:
    """Return all freed memory to the system, after a run: the next one may be in another process."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_glibc() -> bool:
    name = "CS_GNU_LIBC_VERSION"
    try:
        return name in getattr(os, "confstr_names", {}) and bool(os.confstr(name))
    except OSError:  # of musl, which has the name and not the value
        return False
