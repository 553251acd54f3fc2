"""Many cells: wanted before the first starts, watched while they train, collected at the end."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from omegaconf import DictConfig
from tqdm import tqdm

from pe_lab.cell import Cell
from pe_lab.config import in_one_line
from pe_lab.results.ledger import Ledger
from pe_lab.results.table import render, tabulate


class CellsMissing(RuntimeError):
    """Some cells that were asked for are not in the ledger."""


def run_job(cfg: DictConfig) -> None:
    """A cell as a job of a sweep: its failure is recorded, and the sweep goes on."""
    with suppress(Exception, SystemExit):
        cell = Cell(cfg)
        if not cell.road.done(cell.epochs) and cell.road.failure(cell.epochs) is None:
            cell.serve(wait=False)


def run(cfgs: list[DictConfig], launch: Callable[[], None] | None = None) -> None:
    """Bring cells into the ledger and print their table.

    Args:
        cfgs: composed and tested.
        launch: runs them as jobs in other processes; None: here.

    Raises:
        ValueError: a cell cannot be built; nothing has been trained.
        LedgerError: an entry of the ledger is not what it says it is.
        CellsMissing: what failed or was not reached.
    """
    Ledger(cfgs[0].ledger).prepare()
    cells = [Cell(cfg) for cfg in cfgs]
    for cell in cells:
        if cell.road.done(cell.epochs):
            cell.road.verify(cell.epochs)
        else:
            cell.road.newest_state()
    try:
        for cell in cells:
            cell.want()
        with Watch(cells):
            if launch and any(_missing(cell) for cell in cells):
                try:
                    launch()
                except Exception as error:  # a worker died, and its pool with it: what it left is served below
                    print(f"the launcher stopped: {in_one_line(error)}", file=sys.stderr)
            for cell in cells:
                with suppress(Exception, SystemExit) if launch else nullcontext():
                    cell.serve(wait=True)
    finally:
        for cell in cells:
            cell.unwant()
    _report(cells)


def _missing(cell: Cell) -> bool:
    return not cell.road.done(cell.epochs)


def _report(cells: list[Cell]) -> None:
    """Print the table of what is there, keep it beside the study's rows, and name what is missing."""
    present = [cell for cell in cells if not _missing(cell)]
    if present:
        rows, table = tabulate([(cell.cfg, cell.road.summary(cell.epochs)) for cell in present])
        print(render(table))
        study = cells[0].cfg.study
        if study:
            folder = Path(cells[0].cfg.ledger) / "studies" / study
            folder.mkdir(parents=True, exist_ok=True)
            rows.to_csv(folder / "rows.csv", index=False)
            table.to_csv(folder / "table.csv", index=False)
            (folder / "table.txt").write_text(render(table) + "\n")
    absent = [cell for cell in cells if _missing(cell)]
    if absent:
        for cell in absent:
            failure = cell.road.failure(cell.epochs)
            print(f"missing: {cell.name()}: {failure['reason'] if failure else 'not reached'}", file=sys.stderr)
        raise CellsMissing(
            f"{len(absent)} of {len(cells)} cells are missing; the same command, run again, trains what is missing"
        )


class Watch:
    """Shows how far cells are, by looking at the ledger: whoever trains them, here or elsewhere."""

    def __init__(self, cells: list[Cell]) -> None:
        self.cells = cells
        self.open = {id(cell): cell for cell in cells if _missing(cell)}
        self.found = len(cells) - len(self.open)
        longest: dict[str, Cell] = {}
        for cell in self.open.values():
            if cell.epochs > (longest[cell.road.name].epochs if cell.road.name in longest else 0):
                longest[cell.road.name] = cell
        self.longest = longest
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        if self.found:
            print(f"{self.found} of {len(self.cells)} cells are in the ledger already", file=sys.stderr)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join()

    def _watch(self) -> None:
        if not self.open:
            return
        interval = 0.5 if sys.stderr.isatty() else 30
        with tqdm(
            total=sum(self._work(cell, cell.epochs) for cell in self.longest.values()),
            file=sys.stderr,
            mininterval=interval,
            maxinterval=interval,
            bar_format="{percentage:3.0f}%|{bar:20}| {elapsed} passed, {remaining} left{postfix}",
        ) as bar:
            start = None
            while True:
                last = self.stopping.wait(1.0)
                running, done = self._look(bar)
                start = done if start is None else start
                bar.initial = start
                bar.set_postfix_str(
                    f" {len(self.cells) - len(self.open)}/{len(self.cells)} cells" + running, refresh=False
                )
                bar.update(done - bar.n)
                if last:
                    return

    def _look(self, bar: tqdm) -> tuple[str, float]:
        """What runs, in words, and the work that is done; cells that are newly done are told."""
        for key, cell in list(self.open.items()):
            if not _missing(cell):
                del self.open[key]
                summary = cell.road.summary(cell.epochs)
                bar.write(f"{cell.name():28} loss {summary['test']['loss']:.4f}", file=sys.stderr)
        running, done = [], 0.0
        now = time.time()
        for cell in self.longest.values():
            holder = cell.road.holder()
            reached = max([0, *(e for e in cell.road.stops() if e <= cell.epochs)])
            if holder and now - holder["beat"] < 60:
                running.append(f"{cell.name(holder['target'])} at {holder['epoch']:.1f}")
                reached = max(reached, holder["epoch"])
            done += self._work(cell, min(reached, cell.epochs))
        return "".join(f"; {name}" for name in running[:4]), done

    @staticmethod
    def _work(cell: Cell, epochs: float) -> float:
        """In units of a layer's epoch, near enough to tell the time that is left."""
        return epochs * (cell.cfg.model.depth + 0.3)
