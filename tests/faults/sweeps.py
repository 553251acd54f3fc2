"""Small sweeps that faults are injected into, rerun until they are complete, and compared with an undisturbed sweep."""

import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from faults.programs import Program
from pe_lab.ledger.ledger import Ledger

TINY = [
    *("model.depth=1", "model.width=16", "model.num_heads=2", "trainer.device=cpu", "trainer.save_every=0.05"),
    *("data=pattern", "data.train=256", "data.validation=32", "data.test=32", "data.demo=1"),
]
SWEEP = [*TINY, "-m", "pe=rope,learnable", "epochs=16,4,1", "seed=0,1", "hydra/launcher=basic"]
MAX_RUNS = 8  # of the same command, after which it counts as not finishing


@dataclass
class Sweep:
    """A sweep that faults are injected into.

    Args:
        folder: a new folder for its ledger and its output.
        sound: the ledger of the same sweep without faults.
        rng: decides when and where faults happen.
        overrides: its command line.

    Attributes:
        lost: cells that were missing at the end.
        differing: cells whose weights or metrics differ from the sound ledger's.
    """

    folder: Path
    sound: Path
    rng: random.Random
    overrides: list[str] = field(default_factory=lambda: list(SWEEP))
    lost: int = 0
    differing: int = 0

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def start(self, *overrides: str, **options: Any) -> Program:
        """Start the sweep in a process of its own, with further overrides."""
        logger = [] if any(override.startswith("logger") for override in overrides) else ["logger=none"]
        command = [*self.overrides, *logger, *overrides, f"ledger={self.ledger}"]
        return Program(command, self.folder / "printed", **options)

    def wait_a_while(self) -> None:
        """Sleep for a random time, about as long as the sweep at most."""
        time.sleep(self.rng.uniform(0, 1.5))

    def owner(self) -> dict[str, Any] | None:
        """Return the owner of a run that is being trained now, or None."""
        return next((owner for run in Ledger(self.ledger).runs() if (owner := run.owner())), None)

    def finish(self) -> None:
        """Run the same command until it ends with status 0, then compare its ledger with the sound one.

        Raises:
            RuntimeError: it did not finish in MAX_RUNS runs; it printed a trace.
        """
        for _ in range(MAX_RUNS):
            status, _, errors = self.start().wait()
            require_no_trace(errors)
            if status == 0:
                break
        else:
            raise RuntimeError(f"the command did not finish in {MAX_RUNS} runs: {errors}")
        self.compare()

    def compare(self) -> None:
        """Count cells that are missing, and cells that differ."""
        found, expected = cells(self.ledger), cells(self.sound)
        self.lost += len(expected.keys() - found.keys())
        self.differing += sum(found[name] != expected[name] for name in found.keys() & expected.keys())


def undisturbed(folder: Path) -> Path:
    """Run the sweep without faults and return its ledger."""
    sweep = Sweep(folder, folder / "ledger", random.Random(0))
    sweep.finish()
    if len(cells(sweep.ledger)) != 12:
        raise RuntimeError("the sweep must have 12 cells")
    return sweep.ledger


def cells(ledger: Path) -> dict[str, tuple[bytes, list[Any]]]:
    """Return all cells of a ledger by name: weights, and metric rows without speed.

    Raises:
        LedgerError: an entry is damaged.
        RuntimeError: two cells have the same name.
    """
    found: dict[str, tuple[bytes, list[Any]]] = {}
    for run in Ledger(ledger).runs():
        run.identity()
        for epochs in run.checkpoints():
            name = run.summary(epochs)["name"]
            rows = pd.read_csv(run.checkpoint(epochs) / "metrics.csv", dtype=str)
            rows = rows[rows["metric"] != "tokens_per_second"].to_numpy().tolist()
            if name in found:
                raise RuntimeError(f"{ledger} has two cells of the name {name}")
            found[name] = ((run.checkpoint(epochs) / "weights.safetensors").read_bytes(), rows)
    return found


def require_no_trace(errors: str) -> None:
    """Raise RuntimeError if a program printed a trace."""
    if "Traceback" in errors:
        raise RuntimeError(f"a trace was printed: {errors}")


@dataclass
class Many:
    """Counts of a sweep of many cells by four workers.

    Attributes:
        cells: in the ledger at the end.
        kills: SIGKILLs sent; the same command was started again after each.
        repeated: checkpoints recorded a second time, and states with fewer steps than an earlier one.
    """

    cells: int = 0
    kills: int = 0
    repeated: int = 0


def many_cells(folder: Path, seeds: int, pause: float, rng: random.Random) -> Many:
    """Train six cells per seed in four processes with the same command, and kill a random one again and again.

    At least one checkpoint is recorded between two kills, so that the sweep always advances.

    Args:
        pause: mean seconds between two kills.

    Raises:
        RuntimeError: a trace was printed, or two cells have the same name.
    """
    grid = ["-m", "pe=rope,none,alibi", f"seed=range({seeds})", "epochs=3,1", "hydra/launcher=basic"]
    overrides = [*TINY, *grid, f"ledger={folder / 'ledger'}", "logger=none"]
    programs: list[Program | None] = [Program(overrides, folder / str(number)) for number in range(4)]
    counts, recorded, steps, before = Many(), {}, {}, 0
    while any(programs):
        time.sleep(rng.uniform(0, 2 * pause))
        victim = rng.choice([program for program in programs if program])
        if not victim.ended and len(recorded) > before:
            victim.kill(signal.SIGKILL)
            counts.kills, before = counts.kills + 1, len(recorded)
        for number, program in enumerate(programs):
            if program and program.ended:
                status, _, errors = program.wait()
                require_no_trace(errors)
                programs[number] = Program(overrides, folder / str(number)) if status else None
        for run in Ledger(folder / "ledger").runs():
            for epochs in run.checkpoints():
                made = run.checkpoint(epochs).stat().st_ino
                counts.repeated += recorded.setdefault((run.name, epochs), made) != made
            for step, _ in run.states.files()[-1:]:  # an older one stays there if its owner is killed meanwhile
                counts.repeated += step < steps.get(run.name, 0)
                steps[run.name] = step
    counts.cells = len(cells(folder / "ledger"))
    return counts
