"""Cells, curves and records of a small study, and its report."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from pe_lab.report.__main__ import main
from pe_lab.report.parts import Collapsible, Part
from pe_lab.report.report_subject import ReportSubject
from pe_lab.results import frame

PES = {"rope": 0.5, "alibi": 0.3, "none": 0.9, "learnable": 0.5}
SEEDS = 5


def made_cells(pes: dict[str, float] = PES, seeds: int = SEEDS) -> pd.DataFrame:
    """Return a grid of cells: losses depend on the encoding, fall with depth and epochs, and share noise per seed."""
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 0.2, seeds)
    rows = []
    for depth in (1, 4):
        for epochs in (1, 4):
            for pe, loss in pes.items():
                for seed in range(seeds):
                    value = loss / depth**0.5 + 1 / epochs + shared[seed] + rng.normal(0, 0.01)
                    rows.append(
                        {"pe": pe, "depth": depth, "epochs": epochs, "seed": seed}
                        | {"test_loss": value, "test_accuracy": 1 / (1 + value)}
                        | {"floor_bayes_loss": 0.0, "floor_position_blind_loss": 0.43, "floor_prior_loss": 2.0}
                        | {"parameters": 1000, "positional_parameters": 64 * (pe == "learnable")}
                        | {"flops_per_token": 1e5, "seconds": 2.0 * epochs, "attention": "sdpa", "device": "cpu"}
                        | {"run": f"{pe}-{depth}-{seed}", "torch": "2.13.0", "commit": "abc"}
                    )
    return pd.DataFrame(rows)


def learned(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with floors above all losses: all use position, and the gap, and so a margin, is the same."""
    return cells.assign(floor_bayes_loss=4.6, floor_position_blind_loss=5.0)


def made_curves(cells: pd.DataFrame) -> pd.DataFrame:
    longest = cells[cells["epochs"] == 4][["pe", "depth", "epochs", "seed", "test_loss"]]
    parts = [longest.assign(epoch=e, metric="loss", value=longest["test_loss"] + 1 / e) for e in (1.0, 2.0, 4.0)]
    return pd.concat(parts).drop(columns="test_loss")


def made_records(cells: pd.DataFrame) -> pd.DataFrame:
    longest = cells[cells["epochs"] == 4][["pe", "depth", "epochs", "seed", "test_loss"]]
    parts = [
        longest.assign(
            kind="length", length=factor, policy="raw", offset=0, metric="loss", value=longest["test_loss"] * factor
        )
        for factor in (1.0, 2.0, 4.0)
    ]
    parts += [
        longest.assign(kind="probe", probe="position", length=1.0, layer=layer, metric="r2", value=1 / (1 + layer))
        for layer in range(3)
    ]
    measured = ["kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    return pd.concat(parts, ignore_index=True).reindex(columns=["pe", "depth", "epochs", "seed", *measured])


def store(folder: Path, cells: pd.DataFrame, **more: pd.DataFrame) -> Path:
    """Write the tables of a study into a folder and return it."""
    folder.mkdir(parents=True)
    for name, table in {"rows": cells, **more}.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def question(
    results: frame.Results, load: str = "", baseline: str = "rope", audit: pd.DataFrame | None = None
) -> ReportSubject:
    return ReportSubject(results, load, "", baseline, "loss", pd.DataFrame() if audit is None else audit)


def run(monkeypatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pe_lab.report", *map(str, words)])
    main()


def unfolded(parts: list[Part]) -> list[Part]:
    """Return parts, with those of folded ones in their place."""
    return [inner for part in parts for inner in (unfolded(part.parts) if isinstance(part, Collapsible) else [part])]
