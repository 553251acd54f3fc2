"""Faults that are injected into real sweeps: killed processes, damaged files, full disks.

After a fault the same command runs until it ends with status 0. Then the cells that are lost are counted, and those
whose weights or metrics differ from an undisturbed sweep. The function of a fault takes a sweep and returns how often
it injected the fault.
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

from faults.programs import Program, drop_rights, limit_files, limit_memory, wait_for, wandb_services
from faults.sweeps import Sweep, many_cells, require_no_trace, undisturbed
from pe_lab.ledger.lease import OWNER_FILE
from pe_lab.ledger.ledger import Ledger
from pe_lab.system.files import ASIDE_FOLDER, write_json
from pe_lab.system.names import unknown_name_message


def signalled(sweep: Sweep, signum: int, twice: bool = False) -> int:
    """Send a signal at a random time; with `twice`, once more while the process ends."""
    program = sweep.start()
    sweep.wait_a_while()
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
    """Kill one of two workers while it trains."""
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
    """Make writes beyond a random file size fail, as on a full disk."""
    size = int(10 ** sweep.rng.uniform(1, 5.3))
    status, _, errors = sweep.start(before=partial(limit_files, size)).wait()
    require_no_trace(errors)
    return int(status != 0)


def memory_short(sweep: Sweep) -> int:
    """Limit the sweep to at most 30 MiB more memory than it has at its start."""
    status, _, errors = sweep.start(before=partial(limit_memory, sweep.rng.uniform(0, 30))).wait()
    require_no_trace(errors)
    return int(status != 0)


def damaged(sweep: Sweep) -> int:
    """Damage a random file in the ledger of a finished or killed sweep."""
    if sweep.rng.random() < 0.5:
        shutil.copytree(sweep.sound, sweep.ledger, dirs_exist_ok=True)
    elif not sweep.ledger.exists():
        signalled(sweep, signal.SIGKILL)
    # without a checksum, or refused until the user repairs it
    unchecked = (ASIDE_FOLDER, "studies", "commands", "format.json")
    kinds: dict[str, list[Path]] = {}
    for path in sorted(sweep.ledger.rglob("*")):
        relative = path.relative_to(sweep.ledger)
        if path.is_file() and path.stat().st_size and relative.parts[0] not in unchecked:
            kinds.setdefault("state" if path.name.startswith("state") else path.name, []).append(path)
    if not kinds:
        return 0
    damage(sweep.rng.choice(kinds[sweep.rng.choice(sorted(kinds))]), sweep.rng)
    return 1


def damage(path: Path, rng: random.Random) -> None:
    """Flip one bit of a file, or truncate it."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        content[at] ^= 1 << rng.randrange(8)
    else:
        del content[at:]
    path.write_bytes(content)


def read_only(sweep: Sweep) -> int:
    """Run on a read-only ledger, empty or with a part of the sweep."""
    if sweep.rng.random() < 0.5:
        signalled(sweep, signal.SIGKILL)
    sweep.ledger.mkdir(parents=True, exist_ok=True)
    with write_protected(sweep.ledger):
        status, _, errors = sweep.start(before=drop_rights).wait()
    require_no_trace(errors)
    if status != 1 or len(errors.strip().splitlines()) != 1 or "ledger must be a folder that can" not in errors:
        raise RuntimeError(f"a read-only ledger must give one line and status 1, got {status}: {errors}")
    return 1


@contextmanager
def write_protected(folder: Path) -> Iterator[None]:
    """Remove the write permissions of a folder and everything in it, until the block ends."""
    modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
    try:
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def owner_gone(sweep: Sweep) -> int:
    """Leave the owner files, requests and process files of a vanished machine in every run."""
    signalled(sweep, signal.SIGKILL)
    for run in Ledger(sweep.ledger).runs():
        gone = f"{sweep.rng.getrandbits(128):032x}"
        owner = {"host": "gone", "pid": 1, "process": gone, "heartbeat": time.time()}
        owner |= {"since": time.time(), "from": 0, "epoch": 1.0, "target": 16}
        write_json(run.folder / OWNER_FILE, owner)
        write_json(run.folder / "requested" / f"16.{gone}", {"host": "gone", "pid": 1, "since": time.time()})
        write_json(run.folder / "requested" / f"1000.{gone}", {"host": "gone", "pid": 1, "since": time.time()})
        (run.folder / "lock").touch()
        (run.folder / ".s-gone").mkdir(exist_ok=True)
        if sweep.rng.random() < 0.5:
            (sweep.ledger / ".processes" / gone).touch()
    return 1


def wandb_killed(sweep: Sweep) -> int:
    """Kill W&B's service while it receives metrics."""
    program = sweep.start("logger=wandb", "logger.wandb.images=false", env={"WANDB_MODE": "offline"})
    wait_for(lambda: wandb_services(program.pid) or program.ended)
    time.sleep(sweep.rng.uniform(0, 1.0))
    services = wandb_services(program.pid)
    for pid in services:
        os.kill(pid, signal.SIGKILL)
    require_no_trace(program.wait()[2])
    return int(bool(services))


def wandb_refuses(sweep: Sweep) -> int:
    """Log to a W&B server that refuses connections."""
    env = {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    one_run = ["pe=rope", "seed=0", "logger=wandb", "logger.wandb.images=false"]
    _, _, errors = sweep.start(*one_run, env=env).wait()
    require_no_trace(errors)
    return 1


def four_at_once(sweep: Sweep) -> int:
    """Run the same command in four processes with working directories of their own; kill a random one."""
    programs = []
    for number in range(4):
        here = sweep.folder / f"machine{number}"
        here.mkdir(parents=True, exist_ok=True)
        if not (here / "shared").is_symlink():
            (here / "shared").symlink_to(sweep.folder, target_is_directory=True)
        overrides = [*sweep.overrides, "logger=none", "ledger=shared/ledger"]
        programs.append(Program(overrides, sweep.folder / "printed" / str(number), cwd=here))
    sweep.wait_a_while()
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
    """A fault and how often it is injected.

    Attributes:
        inject: injects it into a sweep, and returns how often it did.
        times: injections in total.
        each: injections into one sweep before that sweep is finished.
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
    "an owner and requests of a machine that is gone": Fault(owner_gone, 10),
    "W&B's service is killed": Fault(wandb_killed, 10),
    "W&B refuses": Fault(wandb_refuses, 2),
}


@dataclass(frozen=True)
class Outcome:
    """Counts for one fault: injections, sweeps, lost cells, differing cells, and seconds."""

    injected: int
    sweeps: int
    lost: int
    differing: int
    seconds: float


def inject_fault(fault: Fault, sound: Path, folder: Path, times: int, seed: int = 0) -> Outcome:
    """Inject a fault `times` times, into as many sweeps as that takes, and finish each sweep.

    Args:
        sound: the ledger of the undisturbed sweep.
        folder: for the sweeps; a sweep that lost nothing is removed from it.

    Raises:
        RuntimeError: a sweep did not finish; a trace was printed; too few faults could be injected.
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


def print_faults(only: list[str], factor: float, path: Path | None) -> bool:
    """Inject all faults and print the table; return whether nothing was lost and nothing differs.

    Args:
        only: prefixes of the faults to inject; empty: all.
        factor: multiplies how often each is injected.
        path: where the table is written as Markdown, or None.

    Raises:
        ValueError: no fault's name begins with one of these prefixes.
    """
    from pe_lab.results.summary_table import as_markdown

    for prefix in only:
        if not any(name.startswith(prefix) for name in FAULTS):
            raise ValueError(unknown_name_message("FAULT", FAULTS, prefix))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sound = undisturbed(Path(folder) / "sound")
        for name, fault in FAULTS.items():
            if only and not name.startswith(tuple(only)):
                continue
            times = max(1, round(fault.times * factor))
            outcome = inject_fault(fault, sound, Path(folder) / "sweeps", times)
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
    if path:
        path.write_text(text + "\n")
    return not table[["cells lost", "cells differing"]].to_numpy().any()
