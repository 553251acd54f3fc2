"""Rows of pe-bench 2 are made from ledgers, piece by piece, and say what the studies' own tables say."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omegaconf import DictConfig

from helpers.configs import in_ledger
from helpers.scores import put_scores
from pe_lab.benchmark import __main__ as program_of
from pe_lab.benchmark import pack as packing
from pe_lab.benchmark import task_rows
from pe_lab.benchmark.pack import pack_ledger
from pe_lab.benchmark.tasks import BenchmarkTask, benchmark_tasks
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.sweep import run_cells
from pe_lab.ledger.ledger import Ledger
from pe_lab.system.files import CHECKSUMS_FILE, file_digest, write_json

SMALL = ["model.depth=1", "model.width=16", "model.num_heads=2", "trainer.device=cpu", "logger=none"]
SMALL += ["data.validation=50", "data.test=50", "trainer.batch_size=32", "tune.rates=[1e-3,3e-3,1e-2]"]
SMALL += ["steps=32", "solve.first=2", "solve.per_doubling=1", "evaluate.lengths=[1,2]", "data.train=320"]
WORDS = {"one": [*SMALL, "data=induction", "solve.level=0.9"], "two": [*SMALL, "data=copy"]}


def cells(ledger: Path, name: str, *overrides: str) -> list[DictConfig]:
    return in_ledger(ledger, *WORDS[name], f"study_name=pe_bench_2_{name}", *overrides)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[BenchmarkTask]:
    """Two tasks: one with a level that is soon passed, and one without."""
    found = [
        BenchmarkTask(f"pe_bench_2_{name}", "order", "?", (), cells(Path("l"), name, "pe=none")[0]) for name in WORDS
    ]
    monkeypatch.setattr(packing, "benchmark_tasks", lambda: tuple(found))
    return found


@pytest.fixture(scope="module", autouse=True)
def _scores() -> Iterator[None]:
    """Let the score of a model depend on its steps and its rate; the middle one learns soonest, and rope alone."""

    def score(cfg: DictConfig, step: int) -> float:
        late = {1e-3: 8, 3e-3: 4, 1e-2: 2}.get(cfg.optimizer.lr, 64) * (1 if cfg.pe.name == "rope" else 16)
        return step / late - 0.01 * cfg.seed

    with pytest.MonkeyPatch.context() as patch:
        put_scores(patch, score)
        yield


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "ledger"
    run_cells(cells(folder, "one", "pe=rope,none", "seed=0,1"))
    run_cells(cells(folder, "two", "pe=rope", "seed=0"))
    return folder


@pytest.mark.long
def test_rows_say_what_the_tables_of_the_studies_say(ledger: Path, tmp_path: Path, made: list[BenchmarkTask]) -> None:
    lines = pack_ledger(ledger, tmp_path)
    assert lines == [f"one: 4 rows, 4 of them in {ledger}", f"two: 1 rows, 1 of them in {ledger}"]
    for task in made:
        found = task_rows.read_rows(task, tmp_path)
        table = pd.read_csv(ledger / "studies" / task.study / "outcomes.csv").sort_values(["pe", "seed"])
        for name in ("pe", "seed", "solved", "edge", "trained_steps", "core_seconds"):
            assert list(found[name].astype(object).fillna("")) == list(table[name].astype(object).fillna("")), name
        assert found["y"].to_numpy() == pytest.approx(table["y"].to_numpy())
        assert found["lr"].to_numpy() == pytest.approx(table["optimizer.lr"].to_numpy())
        tries = pd.read_csv(ledger / "studies" / task.study / "tries.csv")
        for own in found.to_dict("records"):
            tries_of_seed = tries[(tries["pe"] == own["pe"]) & (tries["seed"] == own["seed"])]
            for number, rate in enumerate((1e-3, 3e-3, 1e-2), 1):
                curve = tries_of_seed[tries_of_seed["optimizer.lr"] == rate].set_index("step")["value"]
                assert own[f"try{number}_lr"] == rate
                assert own[f"try{number}_steps"] == curve.index.max()
                assert own[f"try{number}_last"] == pytest.approx(curve.iloc[-1], rel=1e-7)
                assert own[f"try{number}_quarter"] == pytest.approx(curve.get(8, float("nan")), rel=1e-7, nan_ok=True)
            made_by = Ledger(ledger).named(own["run"])
            assert own["loss_x1"] == pytest.approx(made_by.summary(32)["test"]["loss"], rel=1e-7)
            assert own["steps"] == made_by.summary(32)["steps"]
            assert own["loss_x2"] > 0
    one = task_rows.read_rows(made[0], tmp_path)
    assert one["solved"].all()
    assert one["lr"].tolist() == [1e-2] * 4
    passed = one[["try1_pass", "try2_pass", "try3_pass"]].to_numpy()
    at_cap = [np.nan, np.nan, np.log2(32)]  # none passes at the last evaluation alone
    assert passed[:2] == pytest.approx(np.array([at_cap, at_cap]), nan_ok=True)
    assert passed[2] == pytest.approx([np.nan, 1.8, 1.0], nan_ok=True)  # the others were stopped
    assert one["y"].to_numpy() == pytest.approx([5, 5, 1, 1])
    assert one["steps"].tolist() == [32, 32, 4, 4]
    assert {"python", "torch", "pe_lab", "commit", "hardware", "threads", "attention"} <= set(one)


@pytest.mark.long
def test_pieces_are_put_together(ledger: Path, tmp_path: Path, made: list[BenchmarkTask]) -> None:
    package = tmp_path / "package"
    pack_ledger(ledger, package)
    before = {path.name: path.read_bytes() for path in package.iterdir()}
    assert pack_ledger(ledger, package)
    assert {path.name: path.read_bytes() for path in package.iterdir()} == before
    more = tmp_path / "more"
    run_cells(cells(more, "one", "pe=rope", "seed=1,2"))
    assert pack_ledger(more, package) == [f"one: 5 rows, 2 of them in {more}"]
    found = task_rows.read_rows(made[0], package)
    assert found[["pe", "seed"]].to_numpy().tolist() == [
        ["none", 0],
        ["none", 1],
        ["rope", 0],
        ["rope", 1],
        ["rope", 2],
    ]
    assert found["settings"].nunique() == 1
    assert (package / "pe_bench_2_two.csv").read_bytes() == before["pe_bench_2_two.csv"]


@pytest.mark.long
def test_what_has_not_ended_or_is_of_other_options_is_left_out_and_counted(ledger: Path, tmp_path: Path) -> None:
    here = tmp_path / "ledger"
    shutil.copytree(ledger, here)
    named = ["+study=pe_bench_2_one"]  # whose cells are those of the command
    run_cells(cells(here, "one", "pe=alibi", "seed=0", "evaluate.lengths=[1]"), named)  # not measured at all lengths
    run_cells(cells(here, "one", "pe=rope", "pe.theta=77", "seed=4"), named)
    (chosen,) = {one["run"] for one in pd.read_csv(here / "studies/pe_bench_2_two/rows.csv").to_dict("records")}
    shutil.rmtree(here / chosen / "checkpoints" / "32")
    package = tmp_path / "package"
    assert pack_ledger(here, package) == [
        f"one: 4 rows, 4 of them in {here}; 2 seeds not ended, or of other options or revisions, are left out",
        f"two: 0 rows, 0 of them in {here}; 1 seeds not ended, or of other options or revisions, are left out",
    ]
    assert not (package / "pe_bench_2_two.csv").exists()


def test_a_seed_of_which_all_tries_diverged_has_a_row(tmp_path: Path, made: list[BenchmarkTask]) -> None:
    for number, words in enumerate(WORDS.values()):
        cfgs = in_ledger(tmp_path, *words, "study_name=x", "pe=none", "tune.rates=[1e30,3e30,1e31]")
        made[number].cfg.tune.rates = [1e30, 3e30, 1e31]
        run_cells(cfgs)
    pack_ledger(tmp_path, tmp_path / "package")
    one, two = (task_rows.read_rows(task, tmp_path / "package").to_dict("records")[0] for task in made)
    assert (one["y"], one["solved"]) == (5.0, False)
    assert pd.isna(two["y"])
    assert pd.isna(one["lr"])


def test_settings_and_revisions_have_digests_of_their_own(
    ledger: Path, tmp_path: Path, made: list[BenchmarkTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests() -> tuple[Any, ...]:
        row = packing.read_task_row(made[0], cells(ledger, "one", "pe=rope", "seed=0")[0])
        assert row is not None
        return row["settings"], row["encoding"]

    settings, encoding = digests()
    made[0].cfg.tune.margin = "2 octaves"  # which says nothing about what is trained
    assert digests() == (settings, encoding)
    made[0].cfg.tune.rates = [1e-3, 3e-3]
    assert digests() == (digests()[0], encoding)
    assert digests()[0] != settings


def test_the_program_packs(program: Any, ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(packing, "pack_ledger", lambda *words: given.append(words) or ["one: 4 rows"])
    assert program(program_of.main, "--pack", ledger, "--replace")[:2] == (0, ["one: 4 rows"])
    assert program(program_of.main, "--pack", ledger)[0] == 0
    assert given == [(ledger, None, True), (ledger, None, False)]


def test_settings_of_a_task_are_without_seed_rate_and_encoding() -> None:
    shared = packing.compared_settings(Cell.from_config(benchmark_tasks()[0].cfg).identity)
    assert shared["batch_size"] == benchmark_tasks()[0].cfg.trainer.batch_size
    assert shared["optimizer.name"] == "adam"
    assert not {"seed", "optimizer.lr", "pe.name", "epochs"} & shared.keys()
    assert not any(name.startswith("attention") for name in shared)


def test_a_value_that_cannot_be_is_not_packed(ledger: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(ledger, tmp_path / "ledger"))
    (chosen,) = {one["run"] for one in pd.read_csv(here / "studies/pe_bench_2_two/rows.csv").to_dict("records")}
    checkpoint = here / chosen / "checkpoints" / "32"
    summary = json.loads((checkpoint / "summary.json").read_text())
    write_json(checkpoint / "summary.json", summary | {"test": summary["test"] | {"loss": -5}})
    sums = json.loads((checkpoint / CHECKSUMS_FILE).read_text())
    write_json(checkpoint / CHECKSUMS_FILE, {name: file_digest(checkpoint / name) for name in sums})
    with pytest.raises(ValueError, match=rf"{here} must have a finite number of at least 0 in y, got -5"):
        pack_ledger(here, tmp_path / "package")
    assert not (tmp_path / "package").exists()
