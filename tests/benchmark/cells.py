"""Made-up shipped cells."""

from collections.abc import Mapping, Sequence
from typing import Any

from pe_lab.benchmark.tasks import Task
from pe_lab.results.shipped import Shipped
from pe_lab.results.statistics import Margin
from pe_lab.system.files import digest

TASK = Task("pe_bench_1_copy", "copying", "Which one copies?", Margin(0.05, "gap"))
OTHER = Task("pe_bench_1_bag", "nothing", "Which one counts?", Margin(0.02, "nats"))
COST = {"parameters": 9, "positional_parameters": 1, "flops_per_token": 2.0, "seconds": 3.0}


def made(pe: str, seed: int, loss: float, beyond: float | None = None, **options: object) -> Shipped:
    """Return a cell with floors 0 and 1, and a measurement at twice the length with floors 0 and 2."""
    identity: dict[str, Any] = {"pe": {"name": pe, **options}, "data": {"name": "copy"}, "model": {"depth": 2}}
    identity["seed"] = seed
    floors = {"bayes": {"loss": 0.0}, "position_blind": {"loss": 1.0}}
    summary = {
        "run": digest(identity),
        "epochs": 2,
        "test": {"loss": loss},
        "floors": floors,
        "tokens_per_sequence": 35,
    }
    summary |= COST | {"attention": "sdpa", "device": "cpu"}
    metrics = {"loss": beyond, "bayes/loss": 0.0, "position_blind/loss": 2.0}
    request = {"kind": "length", "length": 2, "policy": "raw", "offset": 0}
    rows = [{"tokens": 70, "metric": name, "value": value} for name, value in metrics.items()]
    records = [] if beyond is None else [{"request": request, "rows": rows}]
    return Shipped(identity, 2, summary, {"device": "a machine", "torch": "2"}, {}, "", records)


def seeds(pe: str, losses: Sequence[float], beyond: Sequence[float] = (), **options: object) -> list[Shipped]:
    """Return a cell per loss, for seeds 0, 1, 2, ..."""
    return [made(pe, seed, loss, beyond[seed] if beyond else None, **options) for seed, loss in enumerate(losses)]


def of(task: Task, *groups: Sequence[Shipped]) -> Mapping[Task, list[Shipped]]:
    """Return the cells of a task."""
    return {task: [cell for group in groups for cell in group]}
