"""Start `python -m pe_lab.run` quickly: fork it from a process that has all modules loaded."""

import atexit
import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pe_lab.run", "pe_lab.status", "pe_lab.experiment.executor", "pe_lab.results.swept_rates", "pe_lab.probes"]
)


class Program:
    """A process, with a session of its own, that runs pe_lab.run.

    Args:
        overrides: the command line of `python -m pe_lab.run`.
        folder: where its output is written; also its working directory, unless `cwd` is given.
        env: variables added to this process's environment.
        before: called in the new process before the program starts.
        train: False runs `python -m pe_lab.evaluate`.
    """

    def __init__(
        self,
        overrides: list[str],
        folder: Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
        train: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.printed = folder / f"{time.monotonic_ns()}.out", folder / f"{time.monotonic_ns()}.err"
        paths = tuple(map(str, self.printed))
        given = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | (env or {})
        self.process = FORKS.Process(target=_main, args=(overrides, str(cwd or folder), paths, given, before, train))
        self.process.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return not self.process.is_alive()

    def kill(self, signum: int, session: bool = False) -> None:
        """Wait until the process has opened its output files, then send it, or its whole session, a signal."""
        wait_for(lambda: self.ended or self.printed[1].exists())
        with suppress(ProcessLookupError):
            if session:
                with suppress(ProcessLookupError):  # it has no session of its own yet
                    os.killpg(self.pid, signum)
            os.kill(self.pid, signum)

    def wait(self, seconds: float = 300) -> tuple[int, str, str]:
        """Return the exit status (negative: the signal that ended it), stdout and stderr.

        Raises:
            TimeoutError: it did not end in time, and was killed.
        """
        self.process.join(seconds)
        if self.process.is_alive():
            self.kill(signal.SIGKILL, session=True)
            self.process.join()
            raise TimeoutError(
                f"the process must end within {seconds} s, got: {' '.join(path.read_text() for path in self.printed)}"
            )
        out, err = (path.read_text() if path.exists() else "" for path in self.printed)
        return self.process.exitcode, out, err


def _main(
    overrides: list[str],
    cwd: str,
    printed: tuple[str, str],
    env: dict[str, str],
    before: Callable[[], None] | None,
    train: bool,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the program sets its own handler
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["pe_lab.run", *overrides]
    from pe_lab import run

    if before:
        before()
    status: Any = 0
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run.main(train)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    # a forked process skips these steps of an interpreter's exit, and would wait for its workers instead
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def limit_memory(megabytes: float) -> None:
    """Limit this process to so many MiB more memory than it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = int(pages * resource.getpagesize() + megabytes * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_files(size: int) -> None:
    """Make writes fail that would make a file larger than `size` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def drop_rights() -> None:
    """Give up CAP_DAC_OVERRIDE, so that file permissions apply to root too."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()  # version 3; three sets of 64 bits
        failed = libc.capget(header, sets)
        for number in (0, 1):  # the effective and the permitted
            sets[number] &= ~(1 << 1)
        if failed or libc.capset(header, sets):
            raise OSError(ctypes.get_errno(), "capset failed")


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> Any:
    """Return the value of a condition as soon as it is true.

    Raises:
        TimeoutError: it did not become true in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.005)
    raise TimeoutError(f"the condition must become true within {seconds} s")


def wandb_services(program: int) -> list[int]:
    """Return the ids of W&B service processes that a process or its children started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if b"wandb-core" in command and _is_descendant(int(path.name), program):
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _is_descendant(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return False
