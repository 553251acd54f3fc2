"""Log the checkpoints of a run to the loggers of its config, while it trains or from the ledger."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger

from pe_lab.experiment.cell import Cell
from pe_lab.experiment.measurement import Datasets, load_model, measure_cell, prepare_cpu
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.model.transformer import Transformer
from pe_lab.system.files import digest
from pe_lab.system.termination import no_exit, sigterm_raises
from pe_lab.tracking.cell_logs import log_records, log_stored
from pe_lab.tracking.loggers import close_at_end, import_loggers
from pe_lab.tracking.wandb_pictures import MAX_DRAWN_TOKENS, Picture, attention_picture, encoding_picture, log_pictures


class CheckpointLoggers:
    """Makes the loggers of a run's checkpoints, and logs to them what was measured and drawn.

    Attributes:
        delivered: whether the checkpoint that the cell asks for was logged, and W&B took everything.
    """

    def __init__(self, cell: Cell, run: Run, datasets: Datasets) -> None:
        import_loggers(cell.cfg)
        self.cell, self.run, self.datasets = cell, run, datasets
        self.delivered = False

    def make(self, target: int, names: Collection[str] | None = None, **options: Any) -> list[Logger]:
        """Return the loggers that the config names, for one checkpoint.

        Args:
            names: the names of the loggers to make; None: all.
        """
        loggers: list[Logger] = []
        try:
            for name, settings in self.cell.cfg.logger.items():
                if names is None or name in names:
                    loggers += instantiate(settings)(checkpoint=self.cell.checkpoint_info(target), **options)
        except BaseException:
            for logger in loggers:
                logger.finalize("failed")
            raise
        return loggers

    def log_measurements(self, loggers: list[Logger], target: int) -> None:
        """Log the records that the cell asks for and has."""
        if loggers and self.cell.requests:
            summary, records = self.run.summary(target), Records(self.run, target)
            log_records(loggers, summary, records, self.cell.requests, self.cell.dataset.task.length)

    def log_pictures(self, loggers: list[Logger], target: int, model: Transformer | None = None) -> None:
        """Log pictures of the encoding and of attention.

        Args:
            model: the trained model; None: it is loaded if a picture needs it.
        """
        cell = self.cell

        def draw() -> dict[str, Picture]:
            pictures: dict[str, Picture] = {
                "encoding": encoding_picture(
                    Path(cell.cfg.ledger), cell.cfg.pe.name, cell.identity["pe"], cell.encoding
                )
            }
            if cell.dataset.task.length <= MAX_DRAWN_TOKENS:
                shown = load_model(cell, self.run) if model is None else model
                pictures["attention"] = attention_picture(shown, self.datasets.at(), cell.cfg.seed)
            return pictures

        log_pictures(loggers, cell.name(target), draw, cell.steps_to(target), cell.epochs_to(target))


def replay_logs(cell: Cell, run: Run) -> None:
    """Open the W&B run of a cell that is in the ledger, and log it from there. Delivery is not retried."""
    prepare_cpu(cell.device)
    logs = CheckpointLoggers(cell, run, Datasets(cell))
    with sigterm_raises(), close_at_end(logs.make(cell.target, names=["wandb"])) as loggers:
        log_stored(loggers, run, cell.target, cell.dataset.task.length, cell.requests)
        logs.log_pictures(loggers, cell.target)


@no_exit()
def measure_trained(cell: Cell, run: Run, log: bool) -> bool:
    """Measure what is missing on a cell that is in the ledger. What fails is recorded.

    Args:
        log: whether to log to a separate W&B run.

    Returns:
        Whether all is measured or recorded as failed; False: another process is measuring.
    """
    prepare_cpu(cell.device)
    with sigterm_raises():
        logs = CheckpointLoggers(cell, run, datasets := Datasets(cell))
        if not measure_cell(cell, run, cell.target, lambda: load_model(cell, run), datasets):
            return False
        if log:
            job_type = f"evaluation-{digest({'requests': cell.requests})}"
            with close_at_end(logs.make(cell.target, job_type=job_type)) as loggers:
                logs.log_measurements(loggers, cell.target)
    return True
