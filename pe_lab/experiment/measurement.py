"""Measure trained cells: other lengths, length policies, shifted positions, probes. Nothing here trains."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
from hydra.utils import instantiate

from pe_lab.data.base import Dataset, Floors, flat_floors
from pe_lab.encodings.policies import apply_policy
from pe_lab.encodings.stack import Stack
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.memory_errors import explain_memory_errors
from pe_lab.experiment.own_classes import naming_settings
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import Run
from pe_lab.model.transformer import Transformer
from pe_lab.probes import Probe
from pe_lab.system.allocator import keep_freed_memory
from pe_lab.system.environment import environment
from pe_lab.system.errors import in_one_line
from pe_lab.system.raised_places import raised_trace
from pe_lab.system.termination import TerminatedError, no_exit
from pe_lab.training.decoding import exact_match_generated
from pe_lab.training.metrics import evaluate
from pe_lab.training.weights import load_checkpoint


def prepare_cpu(device: torch.device) -> None:
    """Set up this process for computing a cell, if that is on a CPU: one thread, and freed memory kept."""
    if device.type == "cpu":
        torch.set_num_threads(1)  # two threads do not reproduce their own result
        keep_freed_memory()


class Datasets:
    """The datasets of a cell at its training length and other lengths, made on first use and freed together."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.datasets: dict[float, Dataset] = {1: cell.make_dataset()}

    def at(self, factor: float = 1) -> Dataset:
        """Return the dataset with `factor` times the training length."""
        if factor not in self.datasets:
            self.datasets[factor] = self.datasets[1].longer(factor)
        return self.datasets[factor]

    def floors(self, factor: float = 1, split: str = "test") -> Floors:
        """Return the floors of a split; the first cell that asks computes them for the whole ledger."""
        cell, dataset = self.cell, self.at(factor)
        identity = {"data": cell.identity["data"], "seed": cell.cfg.seed, "length": factor}
        identity |= {"revision": dataset.floors_revision} | ({} if split == "test" else {"split": split})
        floors: Floors = Ledger(cell.cfg.ledger).cached("floors", identity, lambda: dataset.floors(split))
        return floors


def measure_cell(
    cell: Cell, run: Run, target: int, trained_model: Callable[[], Transformer], datasets: Datasets
) -> bool:
    """Measure what the config asks for and has no record yet. What fails is recorded, and the others go on.

    Args:
        target: the epochs or steps of the checkpoint whose weights the model has.
        trained_model: returns the model, on the cell's device; it is unchanged afterwards. It is called only if this
            process measures.

    Returns:
        Whether all is measured or recorded as failed; False: another process is measuring.
    """
    records = Records(run, target)
    for request in cell.requests:
        records.set_aside_if_damaged(request)
    missing = [request for request in cell.requests if not records.has(request)]
    if not missing:
        return True
    with records.lease() as mine:
        if not mine:
            return False
        model = trained_model()
        for request in missing:
            if records.has(request):
                continue
            factor = request.get("length", 1)
            purpose = f"probe={request['probe']}" if request["kind"] == "probe" else f"evaluate.lengths={factor:g}"
            try:
                length = datasets.at(factor).task.length
                with naming_settings(cell.cfg), explain_memory_errors(cell.cfg, length, purpose):
                    rows = _measure_request(cell, model, request, datasets)
            except TerminatedError:
                raise
            except Exception as error:
                records.fail(request, in_one_line(error), raised_trace(error))
            else:
                records.add(request, pd.DataFrame(rows), environment(cell.device))
    return True


@no_exit()
def _measure_request(cell: Cell, model: Transformer, request: dict[str, Any], datasets: Datasets) -> list[Any]:
    """Return the rows that answer a request."""
    if request["kind"] == "probe":
        probe: Probe = instantiate(cell.cfg.probe[request["probe"]])
        return probe(model, datasets.at(request.get("length", 1)), cell.cfg.seed)
    factor = request["length"]
    dataset = datasets.at(factor)
    with use_policy(model, request["policy"], factor), configured_attention(model, cell):
        if request["kind"] == "decode":
            metrics = exact_match_generated(model, dataset, "test", cell.autocast(), request["offset"])
        elif request["kind"] == "stride":
            whole = evaluate(model, dataset.strided(request["stride"]), "test", cell.autocast(), request["offset"])
            metrics = {f"{name}_stride_{request['stride']}": whole[name] for name in ("loss", "bits_per_byte")}
            metrics[f"perplexity_stride_{request['stride']}"] = torch.tensor(whole["loss"]).exp().item()
        else:
            metrics = evaluate(model, dataset, "test", cell.autocast(), request["offset"])
            metrics |= flat_floors(datasets.floors(factor))
    return [{"tokens": dataset.task.length, "metric": name, "value": value} for name, value in metrics.items()]


def load_model(cell: Cell, run: Run) -> Transformer:
    """Return the model of a cell that is in the ledger, on its device.

    Raises:
        LedgerError: its files are damaged, or it has no weights.
    """
    implementation = cell.cfg.attention.implementation  # auto chooses again where a length or a policy needs it
    model = Transformer(cell.cfg.model, cell.encoding, cell.dataset.task, implementation)
    load_checkpoint(model, run, cell.target)
    return model.to(cell.device)


@contextmanager
def configured_attention(model: Transformer, cell: Cell) -> Iterator[None]:
    """Compute attention within the block as the config says: auto chooses again, for a length, a policy or a cache."""
    trained_implementation = model.implementation
    model.implementation = cell.cfg.attention.implementation
    try:
        yield
    finally:
        model.implementation = trained_implementation


@contextmanager
def use_policy(model: Transformer, name: str, factor: float) -> Iterator[None]:
    """Put a trained model's encodings under a length policy within the block."""
    trained_encodings = model.encodings
    device = model.tokens.weight.device
    members: Iterator[Any] = iter(trained_encodings)  # a ModuleList does not say that they are encodings
    replaced = [apply_policy(name, encoding, factor) for encoding in members]
    model.encodings = Stack(replaced, trained_encodings.depth).to(device)
    try:
        yield
    finally:
        model.encodings = trained_encodings
