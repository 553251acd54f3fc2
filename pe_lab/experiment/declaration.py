"""What a study declares before its first cell is trained: its margin, how seeds are added, how they tune."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pe_lab.config import resolve_config, study_settings
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.measurement import Datasets
from pe_lab.experiment.memory_errors import explain_memory_errors
from pe_lab.ledger.studies import has_trained_cell
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.statistics.margins import MIN_GAP, Margin
from pe_lab.system.files import digest, is_file, read_json

DECLARATION_FILE = "declared.json"
DECIDING_METRIC = "loss"  # the metric on the test split that studies decide by


def make_declaration(cfg: DictConfig) -> dict[str, Any]:
    """Return what the settings of a study declare."""
    study = study_settings(cfg)
    decide = resolve_config(study.decide)
    return {
        "margin": {} if study.margin is None else {DECIDING_METRIC: " ".join(study.margin.split())},
        "baseline": decide["baseline"],
        "decide": None if decide["baseline"] is None else decide,
        "search": None,  # the search for learning rates, which earlier versions had
        **(
            {} if study.tune.rates is None else {"tune": resolve_config(study.tune), "solve": resolve_config(cfg.solve)}
        ),
    }


def require_margin(text: str | None, cells: list[Cell]) -> None:
    """Check that the margin of a study has a unit in which differences on its tasks can be given.

    For a margin in gap the floors of each task are computed, once for the whole ledger, and no model is trained.

    Args:
        text: the margin as it is written; None: each task has its own.
        cells: the cells of the study.

    Raises:
        ValueError: the loss has no such unit, or a task no such floors.
    """
    if text is None:
        return
    margin = Margin.parse(text)
    margin.require_metric(DECIDING_METRIC)
    tasks = {digest(resolve_config(cell.cfg.data)): cell for cell in reversed(cells)} if margin.unit == "gap" else {}
    for cell in tasks.values():
        with explain_memory_errors(cell.cfg, cell.dataset.task.length):
            floors = Datasets(cell).floors()
        bayes, blind = (
            floors.get(level, {}).get(DECIDING_METRIC, float("nan")) for level in ("bayes", "position_blind")
        )
        if not abs(blind - bayes) > MIN_GAP:
            raise ValueError(
                f"margin must be in nats for data={cell.cfg.data.name}, whose floors bayes and position_blind of "
                f"{DECIDING_METRIC} do not exist or do not differ, got {str(margin)!r}; without margin each task has "
                f"its default"
            )


def write_declaration(cfg: DictConfig) -> None:
    """Write the declaration of a study, unless it is there. A study without a name has none.

    Args:
        cfg: the config of one of the study's cells.

    Raises:
        ValueError: cells of the study are trained, and it declared something else.
        LedgerError: the file is damaged.
    """
    if not cfg.study_name:
        return
    ledger, wanted = Path(cfg.ledger), make_declaration(cfg)
    path = ledger / "studies" / cfg.study_name / DECLARATION_FILE
    nothing: dict[str, Any] = {"margin": {}, "baseline": None, "decide": None, "search": None}
    content = read_json(path) if is_file(path) else nothing
    if content == wanted:
        return
    if has_trained_cell(ledger, cfg.study_name):
        raise ValueError(
            f"study_name={cfg.study_name} declared {json.dumps(content)} before its first cell was trained, "
            f"got {json.dumps(wanted)}: use the same settings, or another study_name"
        )
    LedgerFiles(ledger).write_json(path, wanted)
