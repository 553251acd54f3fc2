"""The program in processes of its own that start at once: forked from one that has all modules loaded."""

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
    ["pe_lab.run", "pe_lab.status", "pe_lab.experiment.executor", "pe_lab.results.rates", "pe_lab.probes"]
)


class Program:
    """A run of the program with these words, in a session of its own.

    Args:
        words: as for `python -m pe_lab.run`.
        folder: for what it prints; its working directory, unless `cwd` names another.
        env: changes to this process's environment.
        before: called in the new process, before the program begins.
        train: if not, as for `python -m pe_lab.evaluate`.
    """

    def __init__(
        self,
        words: list[str],
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
        self.process = FORKS.Process(target=_main, args=(words, str(cwd or folder), paths, given, before, train))
        self.process.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return not self.process.is_alive()

    def kill(self, signum: int, all_of_it: bool = False) -> None:
        """Send a signal to the process, or to all of its session, if it is still there; not before it is itself."""
        wait_for(lambda: self.ended or self.printed[1].exists())
        with suppress(ProcessLookupError):
            if all_of_it:
                with suppress(ProcessLookupError):  # it has not come to make a session of its own
                    os.killpg(self.pid, signum)
            os.kill(self.pid, signum)

    def wait(self, seconds: float = 300) -> tuple[int, str, str]:
        """Exit status (negative: the signal that ended it), what was printed, and the errors.

        Raises:
            TimeoutError: it hangs; it is killed.
        """
        self.process.join(seconds)
        if self.process.is_alive():
            self.kill(signal.SIGKILL, all_of_it=True)
            self.process.join()
            raise TimeoutError(f"it hangs for {seconds} s: {' '.join(path.read_text() for path in self.printed)}")
        out, err = (path.read_text() if path.exists() else "" for path in self.printed)
        return self.process.exitcode, out, err


def _main(
    words: list[str],
    cwd: str,
    printed: tuple[str, str],
    env: dict[str, str],
    before: Callable[[], None] | None,
    train: bool,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the program says what it means
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["pe_lab.run", *words]
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
    # what an interpreter does when it ends; a forked process leaves it out, and waits for workers instead
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def limit_memory(megabytes: float) -> None:
    """The process gets no more than so much beyond what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = int(pages * resource.getpagesize() + megabytes * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_files(size: int) -> None:
    """What would make a file larger than so many bytes fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def drop_rights() -> None:
    """Permissions of files hold for root too: the process gives up CAP_DAC_OVERRIDE."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header, sets = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()  # version 3; three sets of 64 bits
        failed = libc.capget(header, sets)
        for number in (0, 1):  # the effective and the permitted
            sets[number] &= ~(1 << 1)
        if failed or libc.capset(header, sets):
            raise OSError(ctypes.get_errno(), "rights cannot be given up")


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What the condition comes to, once that is true.

    Raises:
        TimeoutError: it does not become true.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.005)
    raise TimeoutError(f"still not so after {seconds} s")


def wandb_services(program: int) -> list[int]:
    """W&B's service processes that a program, or one that it started, has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if b"wandb-core" in command and _ancestor(int(path.name), program):
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _ancestor(pid: int, of: int) -> bool:
    while pid > 1:
        if pid == of:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
