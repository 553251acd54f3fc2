"""Take cells from the results that come with the package, instead of training them."""

import csv
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from pe_lab.experiment.job import Job
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.records import Records
from pe_lab.ledger.run import SHIPPED, Run
from pe_lab.results import shipped
from pe_lab.results.from_ledger import outcome, validation
from pe_lab.results.shipped import Shipped
from pe_lab.system.files import write_json
from pe_lab.tracking.wandb_mode import agent_run


def take(jobs: Sequence[Job]) -> int:
    """Put the shipped cells among these into the ledger, unless they are there, and return how many were put.

    A cell with `shipped=false`, or with a measurement that was not shipped, is trained: a shipped entry of it in the
    ledger is set aside. A W&B agent waits for a cell of its own, which is trained as well.

    Raises:
        LedgerError: the shipped results were changed.
    """
    wanted = jobs[0].cell.cfg.shipped and agent_run() is None if jobs else False
    known = shipped.index() if wanted else {}
    count = 0
    for job in jobs:
        if job.refused is not None:
            continue
        cell, epochs = job.cell, job.cell.target
        run = Ledger(cell.cfg.ledger).find(cell.identity)
        if run.is_shipped(epochs) and (job.missing or not wanted):
            reason = "a measurement needs its weights" if wanted else "shipped=false: it is trained"
            run.set_aside_shipped(epochs, f"{run.checkpoint(epochs)} is a shipped result without weights, and {reason}")
        found = known.get((run.name, epochs))
        if found is not None and not job.trained and all(found.record(one) is not None for one in cell.requests):
            _put(job, found)
            count += 1
    return count


def _put(job: Job, cell: Shipped) -> None:
    """Write a shipped cell into the ledger: a checkpoint without weights, and its records."""
    epochs, run = cell.epochs, job.run
    config = OmegaConf.merge(job.cell.cfg, {"epochs": epochs})
    with run.recording(epochs) as folder:
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
        (folder / "metrics.csv").write_text(_metrics(cell))
        write_json(folder / "summary.json", cell.summary)
        write_json(folder / "environment.json", cell.environment)
        write_json(folder / SHIPPED, {"weights": cell.weights})
    records = Records(run, epochs)
    for request in job.cell.requests:
        if not records.has(request):
            records.add(request, pd.DataFrame(cell.record(request)), cell.environment)


def _metrics(cell: Shipped) -> str:
    """Return the metrics at the end of training in the form of a checkpoint's metrics.csv."""
    text, step = StringIO(), cell.summary["steps"]
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["split", "step", "epoch", "metric", "value"])
    for split, metrics in (("validation", cell.validation), ("test", cell.summary["test"])):
        rows.writerows([split, step, float(cell.epochs), name, repr(value)] for name, value in metrics.items())
    return text.getvalue()


def gathered(run: Run, epochs: int) -> Shipped:
    """Return a checkpoint of a ledger as it is shipped.

    Raises:
        LedgerError: the checkpoint or a record of it is damaged.
    """
    run.verify(epochs)
    summary, records = outcome(run, epochs), Records(run, epochs)
    environment: dict[str, Any] = summary.pop("environment")
    ends = validation(run.checkpoint(epochs))
    measured = [{"request": request, "rows": records.get(request).to_dict("records")} for request in records.requests()]
    return Shipped(
        identity=run.identity(),
        epochs=epochs,
        summary=summary,
        environment=environment,
        validation={name: value for epoch, name, value in ends if epoch == epochs},
        weights=records.weights,
        records=measured,
    )
