"""Faults, on purpose: real processes are killed, files damaged, disks filled, and the same command is run again.

Each fault is injected into sweeps of tiny cells; then the same command runs until it ends with status 0. Counted are
cells that are lost, and cells whose weights or metrics are not those of a sweep that nothing happened to. A function
of a fault lets it happen to a sweep, and says how often it did.
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from pe_lab.bench.programs import Program, drop_rights, limit_files, limit_memory, wait_for, wandb_services
from pe_lab.bench.sweeps import Sweep, many_cells, require_no_trace, undisturbed
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import OWNER
from pe_lab.system.files import ASIDE, write_json


def signalled(sweep: Sweep, signum: int, twice: bool = False) -> int:
    """A signal at a random time; twice: and again, at any time while it ends."""
    program = sweep.start()
    sweep.some_time()
    there = not program.ended
    program.kill(signum)
    if twice:
        time.sleep(sweep.rng.uniform(0, 0.2))
        program.kill(signum)
    status, _, errors = program.wait()
    require_no_trace(errors)
    if signum == signal.SIGINT and there and status not in (0, 130, -signal.SIGINT):
        raise RuntimeError(f"Ctrl-C must end it with 130, got {status}: {errors}")
    return int(there)


def worker_killed(sweep: Sweep) -> int:
    """SIGKILL for one of two workers, while it trains."""
    program = sweep.start("hydra/launcher=cores", "workers=2")
    wait_for(lambda: sweep.owner() or program.ended)
    time.sleep(sweep.rng.uniform(0, 1.0))
    owner = sweep.owner()
    killed = 0
    if owner and owner["pid"] != program.pid and not program.ended:
        with suppress(ProcessLookupError):
            os.kill(owner["pid"], signal.SIGKILL)
            killed = 1
    require_no_trace(program.wait()[2])
    return killed


def disk_full(sweep: Sweep) -> int:
    """Whatever would make a file larger than a random size fails, as on a full disk."""
    size = int(10 ** sweep.rng.uniform(1, 5.3))
    status, _, errors = sweep.start(before=partial(limit_files, size)).wait()
    require_no_trace(errors)
    return int(status != 0)


def memory_short(sweep: Sweep) -> int:
    """The sweep gets little more memory than it has when it begins."""
    status, _, errors = sweep.start(before=partial(limit_memory, sweep.rng.uniform(0, 30))).wait()
    require_no_trace(errors)
    return int(status != 0)


def damaged(sweep: Sweep) -> int:
    """A random file of the ledger, of a sweep that is done or was killed, has a bit flipped or is cut."""
    if sweep.rng.random() < 0.5:
        shutil.copytree(sweep.sound, sweep.ledger, dirs_exist_ok=True)
    elif not sweep.ledger.exists():
        signalled(sweep, signal.SIGKILL)
    kinds: dict[str, list[Path]] = {}
    for path in sorted(sweep.ledger.rglob("*")):
        relative = path.relative_to(sweep.ledger)
        if path.is_file() and path.stat().st_size and relative.parts[0] not in (ASIDE, "studies", "commands"):
            kinds.setdefault("state" if path.name.startswith("state") else path.name, []).append(path)
    if not kinds:
        return 0
    damage(sweep.rng.choice(kinds[sweep.rng.choice(sorted(kinds))]), sweep.rng)
    return 1


def damage(path: Path, rng: random.Random) -> None:
    """Flip a bit of a file, or cut it short."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        content[at] ^= 1 << rng.randrange(8)
    else:
        del content[at:]
    path.write_bytes(content)


def read_only(sweep: Sweep) -> int:
    """The ledger must not be written to, before it began or in the middle."""
    if sweep.rng.random() < 0.5:
        signalled(sweep, signal.SIGKILL)
    sweep.ledger.mkdir(parents=True, exist_ok=True)
    with locked(sweep.ledger):
        status, _, errors = sweep.start(before=drop_rights).wait()
    require_no_trace(errors)
    if status != 1 or len(errors.strip().splitlines()) != 1 or "ledger must be a folder that can" not in errors:
        raise RuntimeError(f"a ledger that cannot be written to must be one line and status 1, got {status}: {errors}")
    return 1


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody may write to a folder, or what is in it."""
    modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
    try:
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def holder_gone(sweep: Sweep) -> int:
    """Leases, requests and signs of life of a machine that is gone, on every run."""
    signalled(sweep, signal.SIGKILL)
    for run in Ledger(sweep.ledger).runs():
        gone = f"{sweep.rng.getrandbits(128):032x}"
        words = {"host": "gone", "pid": 1, "who": gone, "since": time.time(), "from": 0, "epoch": 1.0, "target": 16}
        write_json(run.folder / OWNER, words | {"heartbeat": time.time()})
        write_json(run.folder / "requested" / f"16.{gone}", {"host": "gone", "pid": 1, "since": time.time()})
        write_json(run.folder / "requested" / f"1000.{gone}", {"host": "gone", "pid": 1, "since": time.time()})
        (run.folder / "lock").touch()
        (run.folder / ".s-gone").mkdir(exist_ok=True)
        if sweep.rng.random() < 0.5:
            (sweep.ledger / ".processes" / gone).touch()
    return 1


def wandb_killed(sweep: Sweep) -> int:
    """W&B's service is killed while it is told."""
    program = sweep.start("logger=wandb", "logger.images=false", env={"WANDB_MODE": "offline"})
    wait_for(lambda: wandb_services(program.pid) or program.ended)
    time.sleep(sweep.rng.uniform(0, 1.0))
    services = wandb_services(program.pid)
    for pid in services:
        os.kill(pid, signal.SIGKILL)
    require_no_trace(program.wait()[2])
    return int(bool(services))


def wandb_refuses(sweep: Sweep) -> int:
    """W&B is to be online, and nobody answers."""
    env = {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    one = ["pe=rope", "seed=0", "logger=wandb", "logger.images=false"]
    _, _, errors = sweep.start(*one, env=env).wait()
    require_no_trace(errors)
    return 1


def four_at_once(sweep: Sweep) -> int:
    """Four processes, each in a folder of its own, run the same command on one ledger; a random one is killed."""
    programs = []
    for number in range(4):
        here = sweep.folder / f"machine{number}"
        here.mkdir(parents=True, exist_ok=True)
        if not (here / "shared").is_symlink():
            (here / "shared").symlink_to(sweep.folder, target_is_directory=True)
        words = [*sweep.words, "logger=none", "ledger=shared/ledger"]
        programs.append(Program(words, sweep.folder / "printed" / str(number), cwd=here))
    sweep.some_time()
    victim = sweep.rng.choice(programs)
    there = not victim.ended
    victim.kill(signal.SIGKILL)
    for program in programs:
        status, _, errors = program.wait()
        require_no_trace(errors)
        if program is not victim and status:
            raise RuntimeError(f"the three that were not killed must finish, got status {status}: {errors}")
    return int(there)


@dataclass(frozen=True)
class Fault:
    """Something that happens to a sweep.

    Attributes:
        inject: does it to a sweep; says how often it did.
        times: that it is to be injected, in all.
        each: that it is injected into one sweep, before that is finished.
    """

    inject: Callable[[Sweep], int]
    times: int
    each: int = 1


FAULTS = {
    "SIGKILL at a random point": Fault(partial(signalled, signum=signal.SIGKILL), 50, each=5),
    "SIGTERM at a random point": Fault(partial(signalled, signum=signal.SIGTERM), 50, each=5),
    "Ctrl-C twice": Fault(partial(signalled, signum=signal.SIGINT, twice=True), 25, each=3),
    "SIGKILL for one of two workers": Fault(worker_killed, 5),
    "SIGKILL for one of four machines": Fault(four_at_once, 10),
    "a write fails, as on a full disk": Fault(disk_full, 25, each=2),
    "out of memory": Fault(memory_short, 15, each=2),
    "a file is cut or a bit flipped": Fault(damaged, 100, each=2),
    "the ledger is read-only": Fault(read_only, 5),
    "a owner and requests of a machine that is gone": Fault(holder_gone, 10),
    "W&B's service is killed": Fault(wandb_killed, 10),
    "W&B refuses": Fault(wandb_refuses, 2),
}


@dataclass(frozen=True)
class Outcome:
    """What a fault did: how often it was injected, into how many sweeps, and what it cost."""

    injected: int
    sweeps: int
    lost: int
    differing: int
    seconds: float


def put_to(fault: Fault, sound: Path, folder: Path, times: int, seed: int = 0) -> Outcome:
    """Inject a fault so often, into as many sweeps as it takes, and finish each.

    Args:
        sound: see `undisturbed`.
        folder: for the sweeps; what is in it is removed once they are found whole.

    Raises:
        RuntimeError: a sweep does not finish, or a trace is printed.
    """
    injected = sweeps = lost = differing = 0
    rng, began = random.Random(seed), time.monotonic()
    while injected < times:
        if sweeps > 10 * times:
            raise RuntimeError(f"the fault must be injected {times} times, got {injected} in {sweeps} sweeps")
        sweep = Sweep(folder / str(sweeps), sound, rng)
        for _ in range(fault.each):
            injected += fault.inject(sweep)
            if injected >= times:
                break
        sweep.finish()
        sweeps, lost, differing = sweeps + 1, lost + sweep.lost, differing + sweep.differing
        if not sweep.lost and not sweep.differing:
            shutil.rmtree(sweep.folder)
    return Outcome(injected, sweeps, lost, differing, time.monotonic() - began)


def tell_faults(only: list[str], factor: float, to: Path | None) -> bool:
    """Print the table of faults; returns whether nothing was lost.

    Args:
        only: names that a fault's name must begin with; all if none.
        factor: of how often each is injected.
        to: a file for the table, as Markdown.
    """
    from pe_lab.results.table import as_markdown

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sound = undisturbed(Path(folder) / "sound")
        for name, fault in FAULTS.items():
            if only and not name.startswith(tuple(only)):
                continue
            times = max(1, round(fault.times * factor))
            outcome = put_to(fault, sound, Path(folder) / "sweeps", times)
            row = {"fault": name, "times injected": outcome.injected, "sweeps": outcome.sweeps}
            rows.append(row | {"cells lost": outcome.lost, "cells differing": outcome.differing})
            print(
                " · ".join(f"{key}: {value}" for key, value in rows[-1].items()),
                f"({outcome.seconds:.0f} s)",
                flush=True,
            )
        if not only:
            began = time.monotonic()
            many = many_cells(Path(folder) / "many", max(1, round(50 * factor)), 3.0, random.Random(0))
            row = {"fault": f"{many.cells} cells, four workers, one killed every few seconds", "sweeps": 1}
            lost = 6 * max(1, round(50 * factor)) - many.cells
            rows.append(row | {"times injected": many.kills, "cells lost": lost, "cells differing": many.repeated})
            print(f"{rows[-1]} ({time.monotonic() - began:.0f} s)", flush=True)
    table = pd.DataFrame(rows)
    text = as_markdown(table)
    print(f"\n{text}")
    if to:
        to.write_text(text + "\n")
    return not table[["cells lost", "cells differing"]].to_numpy().any()
