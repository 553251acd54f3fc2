"""How often workers are started again, decided on what the ledger says; real workers die in test_run.py."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from pe_lab import config, sweep
from pe_lab.bench.sweeps import TINY
from pe_lab.cell import Cell


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    words = [*TINY, f"ledger={tmp_path}", "logger=none", "epochs=1"]
    found = [Cell(cfg) for cfg in config.expand([*words, "seed=0,1,2"], multirun=True)]
    for cell in found:
        cell.want()
    return found


def dies_on(cell: Cell, who: str) -> None:
    """As if a process of that name had held the lease of the cell when it died."""
    (cell.road.folder / "holder.json").write_text(json.dumps({"who": who}))


def launches(cells: list[Cell], each: Callable[[int, list[int]], None]) -> list[tuple[list[int], int]]:
    """The seeds that workers were started for, and how many workers, each time; `each` is what they come to."""
    told: list[tuple[list[int], int]] = []

    def launch(cfgs: list[DictConfig], workers: int) -> None:
        assert len(told) < 20, told
        told.append(([cfg.seed for cfg in cfgs], workers))
        each(len(told), told[-1][0])

    sweep._launch(cells, launch, 3, elsewhere=False)
    return told


def test_whoever_dies_twice_with_others_is_tried_alone(cells):
    """Two are in every pool that dies, and one of them kills it."""

    def each(number: int, seeds: list[int]) -> None:
        if 0 in seeds:
            for cell in [cell for cell in cells[:2] if cell.cfg.seed in seeds]:
                dies_on(cell, f"{number}-{cell.cfg.seed}")
            raise RuntimeError("a worker was terminated")
        for seed in seeds:
            cells[seed].road.fail(1, "as if done", None)

    assert launches(cells, each) == [([0, 1, 2], 3), ([0, 1, 2], 3), ([0], 2), ([1], 2), ([2], 2)]
    assert "killed, three times" in cells[0].failure["reason"]
    assert [cell.failure["reason"] for cell in cells[1:]] == ["as if done"] * 2


def test_workers_are_not_started_for_ever(cells):
    """Alone it does not kill, and comes to nothing: somebody else holds its lease."""

    def each(number: int, seeds: list[int]) -> None:
        if len(seeds) > 1:
            dies_on(cells[0], str(number))
            raise RuntimeError("a worker was terminated")

    assert [seeds for seeds, _ in launches(cells, each)] == [[0, 1, 2], [0, 1, 2], [0], [0, 1, 2]]
    assert [cell.failure for cell in cells] == [None] * 3


def test_what_starts_no_worker_is_not_tried_again(cells, capsys):
    def each(number: int, seeds: list[int]) -> None:
        raise RuntimeError("there is no such launcher. And more")

    assert len(launches(cells, each)) == 1
    assert capsys.readouterr().err == "the launcher stopped: there is no such launcher\n"
