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
from pe_lab.results.files import write_text
from pe_lab.results.ledger import Ledger
from pe_lab.wandb_mode import settle_wandb

LOOKING = 0.01  # the part of a core that watching may take
SILENT = 60  # seconds after which a holder that says nothing is no longer shown, and a log is told how far it is


class CellsMissingError(RuntimeError):
    """Some cells that were asked for are not in the ledger."""


def run_job(cfg: DictConfig) -> None:
    """A cell as a job of a sweep: its failure is recorded, and the sweep goes on."""
    try:
        Cell(cfg).serve(wait=False)
    except Exception as error:
        print(
            f"{cfg.pe.name}, {cfg.data.name}, {cfg.model.depth} layers, seed {cfg.seed}: {in_one_line(error)}",
            file=sys.stderr,
        )


def run(cfgs: list[DictConfig], launch: Callable[[], None] | None = None, train: bool = True) -> None:
    """Bring cells into the ledger, with all that is to be measured on them, and print their tables.

    Args:
        cfgs: composed and tested.
        launch: runs them as jobs in other processes; None: here.
        train: the cells that are missing; otherwise they are an error.

    Raises:
        ValueError: a cell cannot be built, or is not trained and shall not be; nothing has been trained.
        LedgerError: an entry of the ledger is not what it says it is.
        CellsMissingError: what failed or was not reached.
    """
    cells = [Cell(cfg) for cfg in cfgs]
    if not train:
        _require_trained(cells)
    for cell in cells:
        if cell.road.stop(cell.epochs).exists():
            cell.road.verify(cell.epochs)
    for road in {cell.road.name: cell.road for cell in cells if cell.missing}.values():
        road.newest_state()
    settle_wandb(cfgs[0])
    try:
        for cell in cells:
            if cell.missing:
                cell.want()
        with Watch(cells):
            if launch and any(cell.missing for cell in cells):
                try:
                    launch()
                except Exception as error:  # a worker died, and its pool with it: what it left is served below
                    print(f"the launcher stopped: {in_one_line(error)}", file=sys.stderr)
            for cell in cells:
                with suppress(Exception) if launch else nullcontext():
                    cell.serve(wait=True)
    finally:
        for cell in cells:
            cell.unwant()
    _report(cells)


def _require_trained(cells: list[Cell]) -> None:
    """Raises ValueError if a cell is not in the ledger; writes nothing."""
    ledger = Ledger(cells[0].cfg.ledger)
    untrained = [cell.name() for cell in cells if not ledger.find(cell.identity).done(cell.epochs)]
    if untrained:
        raise ValueError(
            f"{len(untrained)} of {len(cells)} cells are not in the ledger {ledger.folder}, as {untrained[0]}: "
            f"train them with python -m pe_lab.run and the same words"
        )


def _report(cells: list[Cell]) -> None:
    """Print the tables of what is there, keep them beside the study's rows, and name what is missing."""
    present = [cell for cell in cells if cell.trained]
    if present:
        from pe_lab.results import curves, rates
        from pe_lab.results.frame import Results, failures
        from pe_lab.results.table import as_markdown, by_task, markdown, place, render, settings_of, tabulate

        rows, table = tabulate([(cell.cfg, cell.road.summary(cell.epochs)) for cell in present])
        texts, files = {"table": render(table)}, {"table.md": markdown(table) + "\n"}
        files |= {"rows.csv": rows.to_csv(index=False), "table.csv": table.to_csv(index=False)}
        results = Results(Path(cells[0].cfg.ledger), cells[0].cfg.study_name, rows)
        files["curves.csv"] = results.curves.to_csv(index=False)
        failed = [cell for cell in cells if not cell.trained and cell.failure]
        told = ([settings_of(cell.cfg) for cell in of] for of in (present, failed))
        lost = failures(*told, [cell.failure or {} for cell in failed])
        files["failed.csv"] = lost.to_csv(index=False)
        wide = {"tasks": by_task(table)} if "data" in table else {}
        if rates.LR in place(rows):
            wide["rates"] = rates.tuned(results).rates
            files["rates.csv"] = wide["rates"].to_csv(index=False)
        measured = curves.gather(present)
        if len(measured):
            files["records.csv"] = measured.to_csv(index=False)
            wide |= {"lengths": curves.lengths(measured), "layers": curves.layers(measured)}
        for name, of in wide.items():
            if len(of):
                texts[name] = of.to_string(index=False)
                files[f"{name}.md"] = as_markdown(of) + "\n"
        print("\n\n".join(texts.values()))
        study = cells[0].cfg.study_name
        if study:
            folder = Path(cells[0].cfg.ledger) / "studies" / study
            for name, content in (files | {f"{name}.txt": text + "\n" for name, text in texts.items()}).items():
                write_text(folder / name, content)
    absent = [cell for cell in cells if cell.missing]
    if absent:
        for cell in absent:
            failure = cell.failure
            print(f"missing: {cell.name()}: {failure['reason'] if failure else 'not reached'}", file=sys.stderr)
        raise CellsMissingError(
            f"{len(absent)} of {len(cells)} cells are missing; the same command, run again, trains what is missing"
        )


class Watch:
    """Shows how far cells are, by looking at the ledger: whoever trains them, here or elsewhere."""

    def __init__(self, cells: list[Cell]) -> None:
        self.total = len(cells)
        self.open = [cell for cell in cells if cell.missing]
        self.reached: dict[str, int] = {}  # epochs, by road
        self._reach([cell for cell in cells if cell.trained])
        longest: dict[str, Cell] = {}
        for cell in sorted(self.open, key=lambda cell: cell.epochs):
            longest[cell.road.name] = cell
        self.longest = list(longest.values())
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        if len(self.open) < self.total:
            print(f"{self.total - len(self.open)} of {self.total} cells are in the ledger already", file=sys.stderr)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join()

    def _watch(self) -> None:
        if not self.open:
            return
        work = sum(_work(cell, cell.epochs) for cell in self.longest)
        before = self._look()[1]
        began = told = time.monotonic()
        with tqdm(
            total=1.0, bar_format="{percentage:3.0f}%|{bar:20}| {elapsed}{postfix}", disable=not sys.stderr.isatty()
        ) as bar:
            stopping, pause = False, 1.0
            while not stopping:
                stopping = self.stopping.wait(pause)
                looked = time.monotonic()
                finished = [cell for cell in self.open if not cell.missing]
                self.open = [cell for cell in self.open if cell not in finished]
                self._reach(finished)
                running, done = self._look()
                pause = max(1.0, (time.monotonic() - looked) / LOOKING)
                left = "?"
                if done > before:
                    left = tqdm.format_interval((time.monotonic() - began) * (work - done) / (done - before))
                state = f"{self.total - len(self.open)}/{self.total} cells, {left} left"
                for cell in finished:
                    bar.write(f"{cell.name():28} done   {state}", file=sys.stderr)
                bar.n = done / work
                bar.set_postfix_str(f"{state}; {', '.join(running[:4])}")
                if bar.disable and time.monotonic() - told > SILENT:
                    told = time.monotonic()
                    print(f"{state}; {', '.join(running[:4])}", file=sys.stderr)

    def _reach(self, finished: list[Cell]) -> None:
        for cell in finished:
            self.reached[cell.road.name] = max(cell.epochs, self.reached.get(cell.road.name, 0))

    def _look(self) -> tuple[list[str], float]:
        """What runs, in words, and the work that is done."""
        running, done = [], 0.0
        waited_for = {cell.road.name for cell in self.open}
        for cell in self.longest:
            reached: float = min(self.reached.get(cell.road.name, 0), cell.epochs)
            holder = cell.road.holder() if cell.road.name in waited_for else None
            if holder and time.time() - holder["beat"] < SILENT:
                running.append(f"{cell.name(holder['target'])} at epoch {holder['epoch']:.1f}")
                reached = max(reached, min(holder["epoch"], cell.epochs))
            done += _work(cell, reached)
        return running, done


def _work(cell: Cell, epochs: float) -> float:
    """In epochs of a layer; the rest of the model counts as a third of one. Near enough to tell what is left."""
    return epochs * (cell.cfg.model.depth + 1 / 3)
