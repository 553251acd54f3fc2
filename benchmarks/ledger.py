"""Time a ledger of made-up cells: to load it, report it, read its progress and record one more cell."""

import tempfile
import time
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks import run_benchmark
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.progress import Progress, RequestedCell
from pe_lab.ledger.run import Run
from pe_lab.system.arguments import Parser
from pe_lab.system.files import write_json

CHECKPOINTS = (1, 2, 4, 8, 16)
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ENCODINGS = ("rope", "alibi", "none", "learnable", "sinusoidal")
COLUMNS = "split,step,epoch,metric,value"


def main() -> None:
    """Read the arguments and time the ledger."""
    parser = Parser("benchmarks ledger", description=__doc__)
    parser.add_argument("--cells", type=int, default=2000, help="number of cells (%(default)s)")
    run_benchmark(parser, lambda arguments: time_ledger(arguments.cells))


def identity(pe: dict[str, Any], depth: int = 1, seed: int = 0, **others: Any) -> dict[str, Any]:
    """Return the identity of a made-up training; `others` replace entries."""
    return {
        "pe": {"revision": 1} | pe,
        "data": {"name": "structured", "length": 16, "revision": 1},
        "model": {"depth": depth, "width": 16, "num_heads": 2, "norm": "pre", "dropout": 0, "revision": 1},
        "optimizer": {"name": "adam", "lr": 0.001, "betas": [0.9, 0.999], "schedule": "constant", "revision": 1},
        "batch_size": 128,
        "clip": None,
        "seed": seed,
        "device": "cpu",
        "attention": "sdpa",
        "precision": "32",
    } | others


def record_checkpoint(run: Run, epochs: int, loss: float, **others: Any) -> Path:
    """Record a checkpoint without weights; `others` replace entries of its summary or environment."""
    environment = {"torch": "2.9.0", "commit": "0" * 40}
    summary = {
        "run": run.name,
        "epochs": epochs,
        "test": {"loss": loss, "loss_all": 1 + loss, "accuracy": 1 / (1 + loss)},
        "floors": {"bayes": {"loss": 0.0}, "position_blind": {"loss": 1.5}},
        "parameters": 1000,
        "positional_parameters": 0,
        "flops_per_token": 2000.0,
        "seconds": 0.5 * epochs,
        "attention": "sdpa",
        "device": "cpu",
    }
    rows = [
        f"validation,{9 * at},{at},{name},{loss / at}"
        for at in CHECKPOINTS
        if at <= epochs
        for name in ("loss", "other")
    ]
    with run.recording(epochs) as folder:
        write_json(folder / "summary.json", summary | {name: others[name] for name in others if name in summary})
        write_json(
            folder / "environment.json", environment | {name: others[name] for name in others if name not in summary}
        )
        (folder / "metrics.csv").write_text(
            "\n".join([COLUMNS, *rows, f"test,{9 * epochs},{epochs},loss,{loss}", ""]), encoding="utf-8"
        )
        (folder / "config.yaml").write_text("", encoding="utf-8")
        save_file({}, folder / "weights.safetensors", metadata={"of": f"{run.name} {epochs}"})
    return run.checkpoint(epochs)


def make(folder: Path, cells: int) -> None:
    """Make a ledger of so many cells: encodings, depths and seeds, with five checkpoints per run."""
    ledger, rng = Ledger(folder), np.random.default_rng(0)
    seeds = range(-(-cells // (len(CHECKPOINTS) * len(DEPTHS) * len(ENCODINGS))))
    checkpoints = product(seeds, DEPTHS, ENCODINGS, CHECKPOINTS)
    for seed, depth, pe, epochs in islice(checkpoints, cells):
        record_checkpoint(ledger.run(identity({"name": pe}, depth, seed)), epochs, rng.gamma(2) / epochs)


def claim_and_record(ledger: Ledger, seed: int) -> float:
    """Return the seconds that the ledger takes for one cell: request, lease, heartbeat, checkpoint and cost.

    Neither training nor a training state is included.
    """
    began = time.perf_counter()
    run = ledger.run(identity({"name": "rope"}, seed=seed))
    run.set_aside_if_damaged(4)
    run.request(4)
    with run.lease() as mine:
        if not mine or run.states.newest() or run.requested() != [4]:
            raise RuntimeError(f"{run.folder} must be a new run that no other process owns")
        run.heartbeat(0.0, 4)
        record_checkpoint(run, 4, 1.0)
        run.account({"total": 1.0, "steps": 1.0, "evaluation": 0.0, "checkpoints": 1})
    run.withdraw(4)
    run.summary(4)
    return time.perf_counter() - began


def time_ledger(cells: int) -> None:
    """Print the seconds to load, report and read the progress of a made-up ledger, and to record one more cell.

    Raises:
        ValueError: cells is not positive.
    """
    import pandas as pd

    from pe_lab.report.page import html
    from pe_lab.report.report_subject import ReportSubject
    from pe_lab.report.sections import sections
    from pe_lab.results.frame import load

    if cells < 1:
        raise ValueError(f"--cells must be at least 1, got {cells}")
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), cells)
        began = time.perf_counter()
        results = load(folder)
        loaded = time.perf_counter()
        report_sections = sections(ReportSubject(results, "", "", results.cells["pe"].iloc[0], "loss", pd.DataFrame()))
        size = len(html("made up", report_sections))
        reported = time.perf_counter()
        requested = [
            RequestedCell(cell.run, int(cell.epochs), "made up", int(cell.depth)) for cell in results.cells.itertuples()
        ]
        Progress(Path(folder), requested).snapshot()
        watched = time.perf_counter()
        one_more = sorted(claim_and_record(Ledger(folder), seed) for seed in range(10**6, 10**6 + 51))
        print(
            f"{len(results.cells)} cells: load {loaded - began:.2f} s, report {reported - loaded:.1f} s "
            f"({size / 1e6:.1f} MB), progress {watched - reported:.2f} s; to claim and record one more "
            f"{1e3 * one_more[25]:.1f} ms (median; at most {1e3 * one_more[-1]:.1f} ms)"
        )
