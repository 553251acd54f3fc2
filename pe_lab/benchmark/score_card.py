"""Train one encoding on the benchmark, compare it with what is shipped, and write its score card."""

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from hydra.utils import instantiate
from joblib import Parallel, cpu_count, delayed
from omegaconf import DictConfig

from pe_lab import config
from pe_lab.audit.measures import measure
from pe_lab.audit.subject import Subject
from pe_lab.benchmark.card import Card, card
from pe_lab.benchmark.card_page import sections
from pe_lab.benchmark.export import read
from pe_lab.benchmark.resemblance import resemblance
from pe_lab.benchmark.rows import tables
from pe_lab.benchmark.task_results import Settings, TaskResults
from pe_lab.benchmark.tasks import Task, tasks
from pe_lab.benchmark.undefined import unfit
from pe_lab.experiment.shipped import gathered
from pe_lab.ledger.ledger import Ledger
from pe_lab.report.page import html
from pe_lab.results import frame, shipped
from pe_lab.results.shipped import Shipped
from pe_lab.system.files import write_text
from pe_lab.system.names import unknown_name
from pe_lab.system.paths import safe_path
from pe_lab.system.spreadsheet import to_csv

FEWEST = 3  # seeds, as many as every shipped encoding has at least


@dataclass(frozen=True)
class Asked:
    """What a score card is asked for.

    Attributes:
        words: `pe=NAME` and `pe.<option>=<value>`, as in pe_lab.run.
        tasks: the tasks to train on.
        seeds: their number; the first of those that are shipped.
        ledger: where its cells are kept.
        out: the folder of the card.
        workers: processes; None: one per core.
        beside: files of other people's rows.
    """

    words: tuple[str, ...]
    tasks: tuple[Task, ...]
    seeds: int
    ledger: Path
    out: Path
    workers: int | None = None
    beside: tuple[Path, ...] = ()

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        tasks_: str | None,
        seeds: int,
        ledger: str,
        out: str | None,
        workers: int | None,
        beside: Sequence[str] = (),
    ) -> "Asked":
        """Check what is asked for.

        Raises:
            ValueError: a word, task, number of seeds or of workers cannot be used.
        """
        chosen = [word.removeprefix("pe=") for word in words if word.startswith("pe=")]
        if len(chosen) != 1 or any(mark in chosen[0] for mark in ",*("):
            raise ValueError(f"pe must be one encoding, as pe=rope, got {' '.join(words)}")
        names = config.folders().names("pe")
        if chosen[0].partition("[")[0] not in names:
            raise ValueError(unknown_name("pe", names, chosen[0]))
        for word in words:
            if not word.startswith(("pe=", "pe.")):
                raise ValueError(f"only pe and its options can be chosen, all else is the benchmark's, got {word}")
            if "," in word and not word.startswith("pe.parts"):
                raise ValueError(f"an option must have one value, got {word}")
        known = {task.name: task for task in tasks()}
        measured = shipped.studies()
        default = [name for name, task in known.items() if task.study in measured]
        wanted = default if tasks_ is None else list(known) if tasks_ == "all" else tasks_.split(",")
        for name in wanted:
            if name not in known:
                raise ValueError(f"--tasks must be all, or among {', '.join(known)}, got {name!r}")
        if seeds < FEWEST:
            raise ValueError(f"--seeds must be at least {FEWEST}, so that differences have intervals, got {seeds}")
        if workers is not None and workers < 1:
            raise ValueError(f"--workers must be at least 1, got {workers}")
        config.expand(list(words), multirun=False)
        folder, files = Path(out) if out else Path("score_card") / chosen[0], tuple(map(Path, beside))
        return cls(tuple(words), tuple(known[name] for name in wanted), seeds, Path(ledger), folder, workers, files)

    def cell(self, task: Task) -> DictConfig:
        """Return the config of a cell of the encoding on a task."""
        (cfg,) = config.expand(config.of_jobs([f"+study={task.study}", *self.words]), multirun=True)
        return cfg

    def command(self, task: Task) -> list[str]:
        """Return the arguments of pe_lab.run that train the encoding on a task, with its search."""
        words = [f"+study={task.study}", *self.words, f"seed=range({self.seeds})"]
        words += ["decide.baseline=null", "decide.seeds=5..12", f"ledger={self.ledger}", "logger=none"]
        return [*config.flags(), "-m", *words, *([f"workers={self.workers}"] if self.workers else [])]


def score_card(asked: Asked) -> Path:
    """Train what is missing, and write card.html and card.csv; return the page.

    Raises:
        ValueError: nothing is shipped to compare with, the encoding fits no task, or others' rows cannot be read.
        ChildProcessError: the training of a task ended with an error, which was printed.
    """
    if not any(task.study in shipped.studies() for task in asked.tasks):
        raise ValueError("a score card needs shipped results of these tasks, got none in this installation")
    beside = [read(path) for path in asked.beside]
    began = time.perf_counter()
    reasons = {task: unfit(asked.cell(task)) for task in asked.tasks}
    left_out = {task.name: reason for task, reason in reasons.items() if reason}
    fitting = [task for task, reason in reasons.items() if not reason]
    if not fitting:
        raise ValueError(f"{asked.words[0]} must fit one of the tasks, got {next(iter(left_out.values()))}")
    own, found = set(), []
    for number, task in enumerate(fitting, 1):
        print(f"task {number} of {len(fitting)}: {task.name}", file=sys.stderr)
        cells = {cell.key: cell for cell in trained(asked, task)}
        own |= {run for run, _ in cells}
        known = shipped.read(task.study) if task.study in shipped.studies() else []
        together = [*cells.values(), *(cell for cell in known if cell.key not in cells)]
        found.append(TaskResults.of(task, Settings.of(task), together))
    minutes = (time.perf_counter() - began) / 60
    made = card(pd.concat([tables(found), *beside], ignore_index=True), own, left_out)
    like = resemblance(made.pe, made.scores, properties(made.pe, asked.words, made.others))
    return write(made, like, minutes, asked.out)


def trained(asked: Asked, task: Task) -> list[Shipped]:
    """Train the encoding on a task unless that is done, and return its cells.

    Raises:
        ChildProcessError: training ended with an error, which was printed.
    """
    command = asked.command(task)
    done = subprocess.run([sys.executable, "-m", "pe_lab.run", *command], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise ChildProcessError(f"{task.name} was not trained, see above: python -m pe_lab.run {shlex.join(command)}")
    cells, ledger = frame.load(asked.ledger, task.study).cells, Ledger(asked.ledger)
    return [gathered(ledger.named(run), epochs) for run, epochs in cells[["run", "epochs"]].to_numpy().tolist()]


def properties(pe: str, words: Sequence[str], others: Sequence[str]) -> dict[str, dict[str, float]]:
    """Measure the audit's properties of an encoding and of others by the names of their configs."""
    known = config.folders().names("pe")
    cfgs = {pe: config.expand(list(words), multirun=False)[0]}
    cfgs |= {name: config.expand([f"pe={name}"], multirun=False)[0] for name in others if name in known}
    workers = max(1, min(cpu_count(), len(cfgs) // 8))  # starting a process takes as long as measuring some encodings
    with safe_path():
        measured = Parallel(workers)(delayed(_measured)(cfg) for cfg in cfgs.values())
    return dict(zip(cfgs, measured, strict=True))


def _measured(cfg: DictConfig) -> dict[str, float]:
    try:
        return measure(Subject(cfg.pe.name, instantiate(cfg.pe)))[0]
    except ValueError:  # it cannot be measured without a task, as one that reads marks of tokens
        return {}


def write(found: Card, like: pd.DataFrame, minutes: float, out: Path) -> Path:
    """Write card.html and card.csv into a folder, and return the page."""
    parts = sections(found, like, minutes)
    title = f"pe_lab: score card of {found.pe}"
    write_text(out / "card.html", html(title, parts))
    write_text(out / "card.csv", to_csv(found.lines))
    return out / "card.html"
