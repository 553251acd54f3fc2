"""Small sweeps that something is to happen to: run again until they are whole, and compared with what they must be."""

import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pe_lab.bench.programs import Program
from pe_lab.ledger.ledger import Ledger

TINY = [
    *("model.depth=1", "model.width=16", "model.num_heads=2", "trainer.device=cpu", "trainer.save_every=0.05"),
    *("data=pattern", "data.train=256", "data.validation=32", "data.test=32", "data.demo=1"),
]
SWEEP = [*TINY, "-m", "pe=rope,learnable", "epochs=16,4,1", "seed=0,1", "hydra/launcher=basic"]
AGAIN = 8  # runs of the same command after which it counts as not finishing


@dataclass
class Sweep:
    """A sweep that something happens to.

    Args:
        folder: a new one, for its ledger and what it prints.
        sound: a ledger in which the same sweep was run and nothing happened.
        rng: decides when and where.
        words: that ask for it.
    """

    folder: Path
    sound: Path
    rng: random.Random
    words: list[str] = field(default_factory=lambda: list(SWEEP))
    lost: int = 0
    differing: int = 0

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def start(self, *words: str, **options: Any) -> Program:
        """The sweep, in a process of its own; further words as overrides."""
        logger = [] if any(word.startswith("logger") for word in words) else ["logger=none"]
        given = [*self.words, *logger, *words, f"ledger={self.ledger}"]
        return Program(given, self.folder / "printed", **options)

    def some_time(self) -> None:
        """Wait as long as a part of the sweep takes, sometimes all of it."""
        time.sleep(self.rng.uniform(0, 1.5))

    def owner(self) -> dict[str, Any] | None:
        """Who serves a run at this moment."""
        return next((owner for run in Ledger(self.ledger).runs() if (owner := run.owner())), None)

    def finish(self) -> None:
        """Run the same command until it ends with status 0, and compare what it left with what it should be.

        Raises:
            RuntimeError: it does not come to that; it prints a trace.
        """
        for _ in range(AGAIN):
            status, _, errors = self.start().wait()
            require_no_trace(errors)
            if status == 0:
                break
        else:
            raise RuntimeError(f"the command did not finish in {AGAIN} runs: {errors}")
        self.compare()

    def compare(self) -> None:
        """Count cells that are lost, and cells that differ."""
        found, expected = cells(self.ledger), cells(self.sound)
        self.lost += len(expected.keys() - found.keys())
        self.differing += sum(found[name] != expected[name] for name in found.keys() & expected.keys())


def undisturbed(folder: Path) -> Path:
    """A ledger in which the sweep was run and nothing happened."""
    sweep = Sweep(folder, folder / "ledger", random.Random(0))
    sweep.finish()
    if len(cells(sweep.ledger)) != 12:
        raise RuntimeError("the sweep must have 12 cells")
    return sweep.ledger


def cells(ledger: Path) -> dict[str, tuple[bytes, list[Any]]]:
    """All cells of a ledger by name: weights, and metric rows but for speed.

    Raises:
        LedgerError: an entry is not what was written.
        RuntimeError: there are two of a name.
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
    """Raises RuntimeError if what a program printed has a trace."""
    if "Traceback" in errors:
        raise RuntimeError(f"a trace was printed: {errors}")


@dataclass
class Many:
    """What came of many cells and four workers.

    Attributes:
        cells: that are there in the end, each of them once.
        kills: SIGKILLs; every one was followed by the same command again.
        repeated: checkpoints that were recorded a second time, and states that were behind an earlier one.
    """

    cells: int = 0
    kills: int = 0
    repeated: int = 0


def many_cells(folder: Path, seeds: int, pause: float, rng: random.Random) -> Many:
    """Six cells a seed, by four processes with the same command, of which a random one is killed again and again.

    Between two kills something is recorded: who has to look through all cells first must come to train one.

    Args:
        pause: seconds between two kills, on average.

    Raises:
        RuntimeError: a trace is printed, or there are two cells of a name.
    """
    grid = ["-m", "pe=rope,none,alibi", f"seed=range({seeds})", "epochs=3,1", "hydra/launcher=basic"]
    words = [*TINY, *grid, f"ledger={folder / 'ledger'}", "logger=none"]
    programs: list[Program | None] = [Program(words, folder / str(number)) for number in range(4)]
    came, recorded, steps, before = Many(), {}, {}, 0
    while any(programs):
        time.sleep(rng.uniform(0, 2 * pause))
        victim = rng.choice([program for program in programs if program])
        if not victim.ended and len(recorded) > before:
            victim.kill(signal.SIGKILL)
            came.kills, before = came.kills + 1, len(recorded)
        for number, program in enumerate(programs):
            if program and program.ended:
                status, _, errors = program.wait()
                require_no_trace(errors)
                programs[number] = Program(words, folder / str(number)) if status else None
        for run in Ledger(folder / "ledger").runs():
            for epochs in run.checkpoints():
                made = run.checkpoint(epochs).stat().st_ino
                came.repeated += recorded.setdefault((run.name, epochs), made) != made
            for step, _ in run.states():
                came.repeated += step < steps.get(run.name, 0)
                steps[run.name] = step
    came.cells = len(cells(folder / "ledger"))
    return came
