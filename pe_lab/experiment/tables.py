"""Print and write the tables of a sweep, and name the cells that are missing."""

import sys
from pathlib import Path

from pe_lab.experiment.job import Job
from pe_lab.ledger.run import DIVERGED
from pe_lab.ledger.tree import Tree


class CellsMissingError(RuntimeError):
    """Some requested cells are not in the ledger."""


def report(jobs: list[Job]) -> None:
    """Print the tables of the cells that are there, write them beside the study's rows, and name what is missing.

    Raises:
        CellsMissingError: cells are missing.
        OSError: the tables cannot be written.
        LedgerError: a checkpoint is damaged.
    """
    present = [job for job in jobs if job.trained]
    try:
        if present:
            _write_tables(present, [job for job in jobs if not job.trained and job.failure])
    finally:  # also when the tables cannot be made
        absent = _name([job for job in jobs if job.missing])
    if absent:
        raise _missing(absent, jobs)


def require_complete(jobs: list[Job]) -> None:
    """Raise CellsMissingError, and name the cells, if some are neither in the ledger nor failed."""
    if absent := _name([job for job in jobs if job.missing and job.failure is None]):
        raise _missing(absent, jobs)


def _name(absent: list[Job]) -> list[Job]:
    """Print why cells are missing, and return them."""
    for job in absent:
        failure = job.failure
        reason = failure["reason"] if failure else "not reached"
        print(f"missing: {job.cell.name()}: {reason}", file=sys.stderr)
    return absent


def _missing(absent: list[Job], jobs: list[Job]) -> CellsMissingError:
    """Return the error; of cells that diverged it does not say that training them again helps."""
    line = f"{len(absent)} of {len(jobs)} cells are missing"
    lost = sum((job.failure or {}).get("kind") == DIVERGED for job in absent)
    if lost:
        line += f", {lost} of which diverged: they would do so again"
    if lost < len(absent):
        line += f"; the same command, run again, trains {'the others' if lost else 'what is missing'}"
    return CellsMissingError(line)


def _write_tables(present: list[Job], failed: list[Job]) -> None:
    """Print the tables of cells, and write them into the study's folder.

    Raises:
        OSError: they cannot be written.
        LedgerError: a checkpoint is damaged.
    """
    from pe_lab.results import curves, study  # loads statsmodels, which takes a second
    from pe_lab.results.frame import Results
    from pe_lab.results.from_ledger import failures, outcome
    from pe_lab.results.rows import rows_of, settings_of

    cfg = present[0].cell.cfg
    ledger, name = Path(cfg.ledger), cfg.study_name
    settings, of_failed = (
        [settings_of(job.cell.cfg) | job.cell.lengths() for job in jobs] for jobs in (present, failed)
    )
    rows = rows_of(settings, [outcome(job.run, job.cell.target) for job in present])
    lost = failures(settings, of_failed, [(job.failure or {}) | {"run": job.run.name} for job in failed])
    measured = [
        curves.Measured(own, job.run, job.cell.target, job.cell.requests)
        for own, job in zip(settings, present, strict=True)
    ]
    texts, files = study.tables(Results(ledger, name, rows, lost), curves.gather(measured))
    if cfg.tune.rates is None:
        print("\n\n".join(texts.values()))
    else:  # losses of seeds that stopped where they solved the task, at rates of their own, are no comparison
        files = {file: content for file, content in files.items() if not file.startswith("table.")}
    if name:
        folder = ledger / "studies" / name
        try:
            for file, content in files.items():
                Tree(ledger).write(folder / file, content)
        except OSError as error:
            line = f"the tables of study_name={name} must be written to {folder}, got {error.strerror or error}"
            raise OSError(f"{line}: the same command, run again, writes them") from None
