"""Print and write the tables of a sweep, and name the cells that are missing."""

import shlex
import sys
from pathlib import Path

import pandas as pd

from pe_lab.experiment.job import Job
from pe_lab.experiment.measurement import load_model
from pe_lab.experiment.study_cells import StudyCell, earlier_cells, failed_cells, kept_cells
from pe_lab.ledger.run import DIVERGED
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.results import measurement_tables, study
from pe_lab.results.cell_rows import rows_of, settings_of
from pe_lab.results.columns import checkpoint_target, setting_columns
from pe_lab.results.frame import Results
from pe_lab.results.from_ledger import failure_rows, read_ledger_cells, summary_and_environment

EVALUATION_FOLDER = "evaluation"  # the folder in a ledger for what was measured on cells of no study
FIGURE_FILES = ("lengths.svg", "layers-*.svg", "attention-*.svg")  # that an evaluation writes
MAX_MAPS = 8  # cells whose attention is drawn


class CellsMissingError(RuntimeError):
    """Some requested cells are not in the ledger."""


def report_jobs(jobs: list[Job], evaluated: bool = False, tuned: bool = False, adds: bool = True) -> None:
    """Print the tables of the cells that are there, write them beside the study's rows, and name what is missing.

    Args:
        evaluated: whether to print a summary of what was measured on trained cells instead, with figures in files.
        tuned: whether each seed has chosen its learning rate.
        adds: whether the study keeps the cells of earlier commands with its name.

    Raises:
        CellsMissingError: cells are missing.
        OSError: the tables cannot be written.
        LedgerError: a checkpoint is damaged.
    """
    present = [job for job in jobs if job.is_trained]
    try:
        if present:
            lost = [job for job in jobs if not job.is_trained and job.failure]
            _write_tables(present, lost, evaluated and bool(present[0].cell.requests), tuned, adds)
    finally:  # also when the tables cannot be made
        absent = _print_missing([job for job in jobs if job.missing])
    if absent:
        raise _missing_error(absent, jobs)


def require_complete(jobs: list[Job]) -> None:
    """Raise CellsMissingError, and name the cells, if some are neither in the ledger nor failed."""
    if absent := _print_missing([job for job in jobs if job.missing and job.failure is None]):
        raise _missing_error(absent, jobs)


def _print_missing(absent: list[Job]) -> list[Job]:
    """Print why cells are missing, and return them."""
    for job in absent:
        failure = job.failure
        reason = failure["reason"] if failure else "not reached"
        trace = f" (traceback: {failure['file']})" if failure and "file" in failure else ""
        print(f"missing: {job.cell.name()}: {reason}{trace}", file=sys.stderr)
    return absent


def _missing_error(absent: list[Job], jobs: list[Job]) -> CellsMissingError:
    """Return the error; of cells that diverged it does not say that training them again helps."""
    line = f"{len(absent)} of {len(jobs)} cells are missing"
    lost = sum((job.failure or {}).get("kind") == DIVERGED for job in absent)
    if lost:
        line += f", {lost} of which diverged: they would do so again"
    if lost < len(absent):
        line += f"; the same command, run again, trains {'the others' if lost else 'what is missing'}"
    return CellsMissingError(line)


def _write_tables(present: list[Job], failed: list[Job], evaluated: bool, tuned: bool, adds: bool) -> None:
    """Print the tables of cells, write them into the study's folder, and print where results are and what comes next.

    Raises:
        OSError: they cannot be written.
        LedgerError: a checkpoint is damaged.
    """
    cfg = present[0].cell.cfg
    ledger, name = Path(cfg.ledger), cfg.study_name
    settings, of_failed = (
        [settings_of(job.cell.cfg) | job.cell.lengths() for job in jobs] for jobs in (present, failed)
    )
    rows = rows_of(settings, [summary_and_environment(job.run, job.cell.target) for job in present])
    lost = failure_rows(settings, of_failed, [(job.failure or {}) | {"run": job.run.name} for job in failed])
    measured = [
        measurement_tables.CellMeasurements(job_settings, job.run, job.cell.target, job.cell.requests)
        for job_settings, job in zip(settings, present, strict=True)
    ]
    records = measurement_tables.gather_records(measured)
    figures: dict[str, str] = {}
    texts, files = study.study_tables(Results(ledger, name, rows, lost), records)
    earlier = earlier_cells(ledger, name)
    whole = _whole_study(ledger, name, earlier, present, failed) if adds and name else None
    if whole:
        files = study.study_tables(whole, whole.records)[1]
    if evaluated and len(records):
        print(study.summary_text(records))
        drawn_records = whole.records if whole else records
        figures = study.study_figures(drawn_records) | _attention_figures(_best_first(present, rows))
        files |= figures
    elif not tuned:
        print("\n\n".join(texts.values()))
    else:  # losses of seeds that stopped where they solved the task, at rates of their own, are no comparison
        files = {file: content for file, content in files.items() if not file.startswith("table.")}
    folder = ledger / "studies" / name if name else ledger / EVALUATION_FOLDER
    if name or evaluated:
        try:
            if evaluated:  # figures of an earlier evaluation show other rows than those of records.csv
                for stale in {path.name for pattern in FIGURE_FILES for path in folder.glob(pattern)} - set(figures):
                    LedgerFiles(ledger).remove(folder / stale)
            for file, content in files.items():
                LedgerFiles(ledger).write(folder / file, content)
        except OSError as error:
            what = f"study_name={name}" if name else "the evaluation"
            line = f"the tables of {what} must be written to {folder}, got {error.strerror or error}"
            raise OSError(f"{line}: the same command, run again, writes them") from None
    if evaluated:
        cells = f"{len(present)} cell{'s' * (len(present) > 1)}"
        drawn = f", figures ({', '.join(figures)})" * bool(figures)
        content = f"all rows of {cells} (records.csv), tables{drawn}"
    elif name:
        content = "the tables of the study"
    elif len(present) == 1:
        folder, content = present[0].run.checkpoint(present[0].cell.target), "the trained cell"
    else:
        folder, content = ledger, f"{len(present)} trained cells"
    if name and earlier:
        content += _size_in_words(name, set(earlier), _named_cells(whole.cells if whole else rows))
    print(f"\n{folder}: {content}; next: {_report_command(ledger, name)}")


def _whole_study(
    ledger: Path, name: str, earlier: list[StudyCell], present: list[Job], failed: list[Job]
) -> Results | None:
    """Return the cells of a command with those of earlier commands, in the order of the study; None: there are none."""
    own = [(job.run.name, job.cell.target) for job in present]
    lost = [(job.run.name, job.cell.target) for job in failed]
    kept = [cell for cell in kept_cells(earlier, [*present, *failed]) if cell not in lost]
    if not kept:
        return None
    order = dict.fromkeys([*(cell for cell in earlier if cell in {*own, *kept}), *own])
    lost_earlier = kept_cells(failed_cells(ledger, name), [*present, *failed])
    cells, failures, refused = read_ledger_cells(
        ledger, {cell: at for at, cell in enumerate(order)}, [*lost_earlier, *lost]
    )
    for line in refused:
        print(f"not in the tables of {name}: {line}", file=sys.stderr)
    return Results(ledger, name, cells, failures)


def _named_cells(rows: pd.DataFrame) -> set[StudyCell]:
    return {(row["run"], checkpoint_target(row)) for row in rows.to_dict("records")}


def _size_in_words(study: str, earlier: set[StudyCell], cells: set[StudyCell]) -> str:
    """Return how many cells a study has now, and how many this command added and left out."""
    left_out = f", {len(earlier - cells)} earlier ones left out" if earlier - cells else ""
    return (
        f"; {study}: {len(cells)} cell{'s' * (len(cells) != 1)}, {len(cells - earlier) or 'none'} of them new{left_out}"
    )


def _report_command(ledger: Path, study: str | None) -> str:
    """Return the command that writes the report of a study, or of a ledger."""
    elsewhere = [] if ledger == Path("ledger") else ["--ledger", str(ledger)]
    return shlex.join(["pe-lab", "report", *([study, *elsewhere] if study else [str(ledger)])])


def _best_first(jobs: list[Job], rows: pd.DataFrame) -> list[Job]:
    """Return jobs by seed, the encodings with the lowest mean loss in their setting first.

    Args:
        rows: of the cells of the jobs.
    """
    names = setting_columns(rows)
    setting = rows.groupby(names, sort=False, dropna=False).ngroup()
    cells = rows.groupby([setting, rows["pe"]], sort=False)
    rank = cells["test_loss"].transform("mean").groupby(setting).rank(method="dense")
    ordered = rows.assign(place=cells.cumcount(), rank=rank).sort_values(["place", "rank"], kind="stable")
    places = {(row["run"], checkpoint_target(row)): place for place, row in enumerate(ordered.to_dict("records"))}
    return sorted(jobs, key=lambda job: places[job.run.name, job.cell.target])


def _attention_figures(jobs: list[Job]) -> dict[str, str]:
    """Return the attention maps of the first cells as SVG by the name of the file, if attention was measured."""
    if "attention" not in jobs[0].cell.cfg.probe:
        return {}
    from pe_lab.probes.figures import MAX_DRAWN_TOKENS, attention_heads  # loads matplotlib
    from pe_lab.system.drawing import svg

    figures = {}
    for job in jobs[:MAX_MAPS]:
        cell = job.cell
        if cell.dataset.task.length <= MAX_DRAWN_TOKENS:
            title = f"Attention of {cell.name()} on the first test sequence"
            figure = attention_heads(load_model(cell, job.run), cell.make_dataset(), cell.cfg.seed, title=title)
            figures[f"attention-{cell.name()}.svg"] = svg(figure, cell.name())
    return figures
