"""What is measured on a trained cell: other lengths, length policies, moved positions, probes. Never trains."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from torch import nn

from pe_lab.data.base import flat_floors
from pe_lab.encodings.policies import under
from pe_lab.ledger.records import Records
from pe_lab.model.transformer import Transformer
from pe_lab.probes import Probe
from pe_lab.system.environment import environment
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import digest
from pe_lab.system.termination import TerminatedError
from pe_lab.tracking.events import log_records, log_stored
from pe_lab.tracking.loggers import closing
from pe_lab.tracking.pictures import log_pictures
from pe_lab.training.metrics import evaluate
from pe_lab.training.state import load_weights

if TYPE_CHECKING:
    from pe_lab.experiment.cell import Cell


def measure(cell: "Cell", epochs: int, model: Transformer) -> None:
    """Answer what the cell's config asks for and has no record yet; what fails is recorded, and the others go on.

    Args:
        epochs: the checkpoint that the model's weights are of.
        model: on the cell's device; comes back as it was.
    """
    records = Records(cell.run, epochs)
    for request in cell.requests:
        records.mend(request)
    missing = [request for request in cell.requests if not records.has(request)]
    if not missing:
        return
    with records.lease() as mine:
        for request in missing if mine else []:
            if records.has(request):
                continue
            try:
                rows = _answer(cell, model, request)
            except TerminatedError:
                raise
            except Exception as error:
                records.fail(request, in_one_line(error))
            else:
                records.add(request, pd.DataFrame(rows), environment(cell.device))


def _answer(cell: "Cell", model: Transformer, request: dict[str, Any]) -> list[Any]:
    """The rows that answer a request."""
    if request["kind"] == "probe":
        probe: Probe = instantiate(cell.cfg.probe[request["probe"]])
        return probe(model, cell.dataset_at(request.get("length", 1)), cell.cfg.seed)
    factor = request["length"]
    dataset = cell.dataset_at(factor)
    with policy(model, request["policy"], factor):
        metrics = evaluate(model, dataset, "test", cell.autocast(), request["offset"])
    metrics |= flat_floors(cell.floors(factor))
    return [{"tokens": dataset.task.length, "metric": name, "value": value} for name, value in metrics.items()]


def measure_finished(cell: "Cell") -> None:
    """The same for a cell that is in the ledger, from its weights; told to loggers of its own.

    A W&B agent's run is told later, and all of the cell: see `replay`.
    """
    measure(cell, cell.epochs, trained(cell))
    if cell.wants_agent_run:
        return
    job = f"evaluation-{digest({'requests': cell.requests})}"
    with closing(instantiate(cell.cfg.logger)(cell=cell, epochs=cell.epochs, job=job)) as loggers:
        log_measurements(cell, cell.epochs, loggers)


def log_measurements(cell: "Cell", epochs: int, loggers: list[Logger]) -> None:
    """Tell loggers all that the cell asked for and has."""
    if loggers and cell.requests:
        summary, records = cell.run.summary(epochs), Records(cell.run, epochs)
        log_records(loggers, summary, records, cell.requests, cell.dataset.task.length)


def replay(cell: "Cell") -> None:
    """Open the run of a cell that is in the ledger, and tell it from there. What is lost now stays lost."""
    with closing(instantiate(cell.cfg.logger)(cell=cell, epochs=cell.epochs)) as loggers:
        log_stored(loggers, cell.run, cell.epochs, cell.dataset.task.length, cell.requests)
        log_pictures(cell, cell.epochs, loggers, lambda: trained(cell))
    cell.logged = True


def trained(cell: "Cell") -> Transformer:
    """The model of a cell that is in the ledger.

    Raises:
        LedgerError: its files are not what was written.
    """
    cell.run.verify(cell.epochs)
    asked = cell.cfg.attention.implementation  # auto chooses again where a length or a policy needs it
    model = Transformer(cell.cfg.model, cell.encoding, cell.dataset.task, asked)
    load_weights(model, cell.run.checkpoint(cell.epochs) / "weights.safetensors")
    return model.to(cell.device)


@contextmanager
def policy(model: Transformer, name: str, factor: float) -> Iterator[None]:
    """A trained model with its encodings under a length policy."""
    trained_encodings = model.encodings
    device = model.tokens.weight.device
    model.encodings = nn.ModuleList(under(name, encoding, factor) for encoding in trained_encodings).to(device)
    try:
        yield
    finally:
        model.encodings = trained_encodings
