"""Refuse a cell that the device's memory cannot hold, before anything large is made."""

from pe_lab.experiment.cell import Cell
from pe_lab.experiment.memory_budget import MemoryBudget
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records


def require_memory(cell: Cell) -> None:
    """Raise ValueError if the memory cannot hold what is missing of a cell: its training, its records."""
    cfg, pairs = cell.cfg, f"in attention of pe={cell.cfg.pe.name}"
    run = Ledger(cfg.ledger).find(cell.identity)
    if not (trained := run.done(cell.target)):
        budget = MemoryBudget(cell.device)
        budget.need_training(cfg, cell.dataset)
        budget.need(cell.encoding_bytes, f"pe={cfg.pe.name}")
        tokens, batch = cell.dataset.task.length, cfg.trainer.batch_size
        budget.need(
            cell.pair_bytes["training"] * tokens**2,
            f"trainer.batch_size={batch} with the pairs of {tokens} tokens {pairs}",
        )
    for request in cell.requests:
        factor = request.get("length", 1)
        if factor != 1 and not (trained and Records(run, cell.target).has(request)):
            budget, longer = MemoryBudget(cell.device), cell.dataset.longer(factor)
            budget.need_sequences(cfg, longer, "test")
            budget.need(
                cell.pair_bytes["trained" if trained else "evaluation"] * longer.task.length**2,
                f"evaluate.lengths={factor:g} with the pairs of {longer.task.length} tokens {pairs}",
            )
