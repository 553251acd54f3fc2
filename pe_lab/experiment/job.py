"""Bring one cell into the ledger: request it, train it or wait for the process that does, measure it."""

import time
from collections.abc import Callable
from enum import Enum, auto
from functools import cached_property, wraps
from typing import Any

from omegaconf import DictConfig

from pe_lab.experiment import distributed
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.memory_errors import explain_memory_errors
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.results.from_ledger import validation_by_step
from pe_lab.system.allocator import return_freed_memory
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import LedgerError
from pe_lab.tracking.wandb_agent import agent_run

POLL_SECONDS = 0.3  # seconds between two checks of a run that another process serves


class _Turn(Enum):
    """What came of an attempt to train or to measure."""

    TAKEN = auto()  # this process did it
    BUSY = auto()  # another process has the lease
    UNWANTED = auto()  # no live process requests the cell


def _refusing(method: Callable[["Job"], None]) -> Callable[["Job"], None]:
    """Turn an entry of the ledger that cannot be used into this job's refusal, and leave other jobs alone."""

    @wraps(method)
    def unless_refused(job: "Job") -> None:
        if job.refused is None:
            try:
                method(job)
            except (LedgerError, OSError) as error:
                job.refused = in_one_line(error)

    return unless_refused


class Job:
    """A cell and its run in the ledger.

    Attributes:
        logged: whether this process logged the cell, and W&B took everything.
        refused: the reason why the ledger cannot be used for this cell, or None. The cell then counts as missing.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.logged = False
        self.refused: str | None = None

    @classmethod
    def from_config(cls, cfg: DictConfig) -> "Job":
        """Make the job of the cell that a config describes; raises as `Cell.from_config`."""
        return cls(Cell.from_config(cfg))

    @cached_property
    def run(self) -> Run:
        """The cell's training run, whether it is in the ledger or not."""
        return self.cell.run

    @property
    def records(self) -> Records:
        """What was measured on the trained cell."""
        return Records(self.run, self.cell.target)

    @property
    def is_trained(self) -> bool:
        """Whether the cell is in the ledger."""
        return self.refused is None and self.run.done(self.cell.target)

    @property
    def missing(self) -> bool:
        """Whether the cell, or a measurement that it asks for, is not in the ledger."""
        return not self.is_trained or not all(map(self.records.has, self.cell.requests))

    @property
    def validation_loss(self) -> float:
        """The validation loss of the trained cell at its end."""
        by_step = validation_by_step(self.run.checkpoint(self.cell.target))
        return by_step[max(by_step)]["loss"]

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why the cell is not trained, or why all its missing measurements failed; None otherwise."""
        if self.refused is not None:
            return {"reason": self.refused}
        if not self.is_trained:
            return self.run.failure(self.cell.target)
        records = self.records
        failures = [records.failure(request) for request in self.cell.requests if not records.has(request)]
        return failures[0] if failures and all(failures) else None

    @_refusing
    def set_aside_if_damaged(self) -> None:
        """Set aside damaged entries of the cell."""
        self._make_run()
        self.run.set_aside_if_damaged(self.cell.target)
        if self.is_trained:
            for request in self.cell.requests:
                self.records.set_aside_if_damaged(request)

    @_refusing
    def request(self) -> None:
        """Record that this process requests the cell, and clear records of earlier failures."""
        self._make_run()
        self.run.request(self.cell.target)
        if self.is_trained:
            for request in self.cell.requests:
                self.records.clear_failure(request)

    def _make_run(self) -> None:
        """Make the folder of the cell's run, if it is missing, before anything is written there."""
        Ledger(self.cell.cfg.ledger).run(self.cell.identity)

    @_refusing
    def withdraw(self) -> None:
        """Remove this process's request."""
        self.run.withdraw(self.cell.target)

    def fail(self, reason: str) -> None:
        """Record why the cell is not trained, or why its missing measurements failed."""
        if not self.is_trained:
            self._make_run()
            self.run.fail(self.cell.target, reason, None)
            return
        for request in self.cell.requests:
            if not self.records.has(request):
                self.records.fail(request, reason)

    def complete(self, wait: bool) -> None:
        """Train and measure the cell, if a live process requests it.

        The process with the lease of a run trains all of its requested checkpoints. A request that is made before
        trying to take the lease is therefore never lost.

        Args:
            wait: whether to wait while another process holds the lease; otherwise return at once.

        Raises:
            Exception: the error that ended the training. It is recorded for all checkpoints that were not reached.
        """
        if self.refused is not None:
            return
        if not self.is_trained and self.failure is None:
            self._make_run()
        while self._is_unfinished:
            turn = self._try_to_measure() if self.is_trained else self._try_to_train()
            if turn == _Turn.UNWANTED:
                return
            if turn == _Turn.BUSY and self._is_unfinished:
                if not wait:
                    return
                time.sleep(POLL_SECONDS)
        if self.is_trained and self._agent_waits:
            from pe_lab.experiment.checkpoint_loggers import replay_logs

            replay_logs(self.cell, self.run)
            self.logged = True

    @property
    def _is_unfinished(self) -> bool:
        """Whether something is missing that has not failed."""
        return self.missing and self.failure is None

    def _try_to_train(self) -> _Turn:
        """Train the run, unless another process does."""
        with self.run.lease() as mine:
            if not mine:
                return _Turn.BUSY
            if self.is_trained:  # meanwhile, by another process
                return _Turn.TAKEN
            if self.cell.target not in self.run.requested():
                return _Turn.UNWANTED
            self._train()
            return _Turn.TAKEN

    def _try_to_measure(self) -> _Turn:
        """Measure what is missing, unless another process does."""
        from pe_lab.experiment.checkpoint_loggers import measure_trained

        with explain_memory_errors(self.cell.cfg, self.cell.dataset.task.length):
            mine = measure_trained(self.cell, self.run, log=not self._agent_waits)
        return _Turn.TAKEN if mine else _Turn.BUSY

    def _train(self) -> None:
        """Train all requested checkpoints of the run, whose lease this process owns."""
        if self.cell.devices > 1:
            self.logged = distributed.train_run(self.cell, self.run) or self.logged
            return
        from pe_lab.experiment.executor import Executor  # loads Lightning, which takes seconds

        executor = Executor(self.cell, self.run)
        try:
            executor.train_requested()
        finally:
            self.logged = self.logged or executor.logs.delivered
            return_freed_memory()

    @property
    def _agent_waits(self) -> bool:
        """Whether a W&B agent waits for this cell's W&B run, and it was not opened, or was lost."""
        return not self.logged and "wandb" in self.cell.cfg.logger and agent_run() is not None
