"""The cells that earlier commands brought into a study, and what becomes of them when another has the same name."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from pe_lab.config import LR, flatten_settings
from pe_lab.experiment.job import Job
from pe_lab.ledger.run import Run
from pe_lab.ledger.studies import read_study_cells
from pe_lab.results import frame
from pe_lab.results.cell_rows import NOT_TRAINING, STARTING_SCALES, Settings, settings_of
from pe_lab.results.columns import checkpoint_target
from pe_lab.results.stored_checkpoint import read_checkpoint_settings
from pe_lab.system.files import LedgerError, canonical_form, is_file

StudyCell = tuple[str, int]  # a run and the target of its checkpoint


def is_declared(overrides: Sequence[str]) -> bool:
    """Return whether a command line names a study of conf/study, whose cells are those of its file."""
    return any(word.lstrip("+").startswith("study=") for word in overrides)


def earlier_cells(ledger: Path, study: str | None) -> list[StudyCell]:
    """Return the cells in the table of a study; none where there is no such table, or a damaged one."""
    if not study or not is_file(ledger / "studies" / study / "rows.csv"):
        return []
    try:
        return list(dict.fromkeys(read_study_cells(ledger, study)))
    except LedgerError:  # pe-lab status says so, and this command writes it anew
        return []


def failed_cells(ledger: Path, study: str) -> list[StudyCell]:
    """Return the failed cells in the tables of a study; none where they cannot be read."""
    try:
        failed = frame.load(ledger / "studies" / study).failed
    except ValueError:
        return []
    return [(row["run"], checkpoint_target(row)) for row in failed.to_dict("records")]


def kept_cells(earlier: Sequence[StudyCell], jobs: list[Job]) -> list[StudyCell]:
    """Return those earlier cells of a study that are kept beside the cells of a command.

    A cell with the settings of one of the command is replaced by it, as when the class of an encoding has changed.
    """
    ledger, requested = Path(jobs[0].cell.cfg.ledger), {(job.run.name, job.cell.target) for job in jobs}
    settings = {_key(settings_of(job.cell.cfg)) for job in jobs}
    stored = {cell: _stored_settings(ledger, cell) for cell in earlier if cell not in requested}
    return [cell for cell, of_cell in stored.items() if of_cell is None or _key(of_cell) not in settings]


def require_earlier_cells(cfgs: list[DictConfig], seeds: bool) -> None:
    """Check that the cells of a study that tunes or adds seeds are among those of a command with its name.

    Its verdicts are of all its cells, and the command would write those of its own alone.

    Args:
        cfgs: the configs of the command.
        seeds: whether the command chooses the seeds itself.

    Raises:
        ValueError: an earlier cell of the study is not among them.
    """
    ledger, study = Path(cfgs[0].ledger), cfgs[0].study_name
    asked = {_question(settings_of(cfg), seeds) for cfg in cfgs}
    earlier = earlier_cells(ledger, study)
    stored = [settings for cell in earlier if (settings := _stored_settings(ledger, cell))]
    lacking = [settings for settings in stored if _question(settings, seeds) not in asked]
    if lacking:
        first = f"pe={lacking[0]['pe.name']} data={lacking[0]['data.name']}"
        raise ValueError(
            f"study_name={study} has {len(stored)} cells, {len(lacking)} of which this command leaves out, as {first} "
            f"model.depth={lacking[0]['model.depth']} seed={lacking[0]['seed']}: name them too, or use another "
            f"study_name"
        )


def _stored_settings(ledger: Path, cell: StudyCell) -> Settings | None:
    """Return the settings of a cell of the ledger, or None if they cannot be read."""
    run, target = cell
    try:
        return flatten_settings(read_checkpoint_settings(Run(ledger / run), target))
    except LedgerError:
        return None


def _key(settings: Settings) -> frozenset[tuple[str, object]]:
    """Return the settings that matter to a training."""
    return frozenset(
        (name, value) for name, value in canonical_form(settings).items() if not name.startswith(NOT_TRAINING)
    )


def _question(settings: Settings, seeds: bool) -> frozenset[tuple[str, object]]:
    """Return the settings that say which cell of a question it is, without what is tuned."""
    chosen = (LR, *(("seed",) if seeds else ()))
    return frozenset(
        (name, value)
        for name, value in _key(settings)
        if name.startswith(("pe.", "data.", "model.", "seed", "steps", "epochs"))
        and name not in chosen
        and not (name.startswith("pe.") and name.rpartition(".")[2] in STARTING_SCALES)
    )
