"""Each encoding's own learning rate: what is trained for it, what is read of it, and what the study's cells become."""

import inspect
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from configs import in_ledger, pe_settings
from faults.sweeps import TINY
from pe_lab import config
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.table import Learnable
from pe_lab.experiment import chosen_rates, sweep
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.chosen_rates import FILE, edges, print_costs, table
from pe_lab.experiment.fair_rates import fair_rates
from pe_lab.experiment.job import Job
from pe_lab.experiment.rounds import Outcome, Round, drive, with_settings
from pe_lab.experiment.search import NoRateError
from pe_lab.experiment.searches import searches_of, starting_scale
from pe_lab.experiment.tables import CellsMissingError
from pe_lab.ledger.ledger import Ledger
from pe_lab.ledger.run import ERROR
from pe_lab.ledger.tree import Tree
from pe_lab.results.frame import load
from pe_lab.results.from_ledger import validation
from pe_lab.results.rows import describe, settings_of
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import LedgerError

FILES = sorted((config.folder() / "pe").glob("*.yaml"))
SMALL = [*TINY, "logger=none", "study_name=mine", "search=fair", "search.rates=[1e-3,1e-2,1e-1]", "search.seeds=1"]


def cells(*overrides: str, search: str = "search=fair") -> list[DictConfig]:
    return in_ledger(None, *config.of_jobs([*TINY, "logger=none", search, "epochs=4", *overrides]))


class Unread(dict[str, float]):
    """Test metrics that must not be looked at."""

    def refuse(self, *given: object) -> Any:
        raise AssertionError("the search reads the test split")

    __getitem__ = __iter__ = __len__ = __bool__ = get = items = keys = values = refuse


class Served:
    """Stands for training: every cell has the validation loss of a rule, and a test loss that orders rates otherwise.

    Args:
        folder: for checkpoints.
        best: by encoding, the rate and the scale with the lowest validation loss.
        diverges: the lowest rate at which training ends with a loss that is not finite.
    """

    def __init__(self, folder: Path, best: dict[str, tuple[float, float]], diverges: float = math.inf) -> None:
        self.folder, self.best, self.diverges = folder, best, diverges
        self.rounds: list[Round] = []

    def __call__(self, current: Round) -> list[Outcome]:
        self.rounds.append(current)
        return [self.outcome(cfg) for cfg in current.cfgs]

    def outcome(self, cfg: DictConfig) -> Outcome:
        rate, scale = cfg.optimizer.lr, starting_scale(cfg.pe)
        off = abs(math.log(rate / self.best[cfg.pe.name][0]))
        run = f"{cfg.pe.name}-{rate}-{cfg.seed}"
        if scale is not None:
            off += abs(math.log(OmegaConf.select(cfg, scale) / self.best[cfg.pe.name][1]))
            run += f"-{OmegaConf.select(cfg, scale)}"
        if rate >= self.diverges:
            return Outcome(cfg, run, self.folder / "none", "no number", Unread(), {}, 0.5, diverged=True)
        validated = [epoch for epoch in range(1, cfg.epochs + 1) if epoch in (1, 2, 4, 8, 16, cfg.epochs)]
        lines = [f"validation,{4 * epoch},{epoch},loss,{off + 1 / epoch}" for epoch in validated]
        lines += [f"validation,{4 * cfg.epochs},{cfg.epochs},accuracy,{-off}", f"test,4,{cfg.epochs},loss,{-off}"]
        lines.insert(0, f"train,{4 * cfg.epochs},{cfg.epochs},loss,{-off}")
        checkpoint = self.folder / f"{run}-{cfg.epochs}"
        if not checkpoint.exists():
            with Tree(self.folder).new_folder(checkpoint, self.folder) as new:
                (new / "metrics.csv").write_text("\n".join(["split,step,epoch,metric,value", *lines, ""]))
        return Outcome(cfg, run, checkpoint, None, Unread(), {}, 1.5 * cfg.epochs)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path, {"rope": (1e-2, 1.0), "learnable": (3e-3, 1.0), "alibi": (3e-4, 1.0)})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_starting_scale_is_an_option_of_the_class_and_of_its_file(path: Path) -> None:
    leaf = pe_settings(path.stem)
    option = get_class(leaf._target_).start_scale
    if option is not None:
        assert option in inspect.signature(get_class(leaf._target_)).parameters
        assert option in leaf
        assert leaf[option] > 0
    setting = starting_scale(leaf)
    assert setting is None or OmegaConf.select(OmegaConf.create({"pe": leaf}), setting) > 0


def test_the_scale_is_that_of_vectors_that_are_added_to_token_embeddings() -> None:
    found = {path.stem: starting_scale(pe_settings(path.stem)) for path in FILES}
    assert {name: setting for name, setting in found.items() if setting} == {
        **dict.fromkeys(("abacus", "coupled", "learnable", "learnable_2d", "learnable_per_layer"), "pe.std"),
        **dict.fromkeys(("sinusoidal", "sinusoidal_2d", "sinusoidal_qk", "sininit", "random"), "pe.size"),
        **dict.fromkeys(("integer", "normalized", "continuous", "fourier"), "pe.size"),
        "randomized_learnable": "pe.encoding.std",
        "randomized_sinusoidal": "pe.encoding.size",
        "shape": "pe.encoding.size",
    }


def test_each_encoding_gets_its_own_rate_and_scale(served: Served) -> None:
    cfgs = cells("pe=rope,learnable", "seed=0,1")
    chosen = drive(fair_rates(cfgs), served)
    assert [(cfg.pe.name, cfg.seed, cfg.optimizer.lr, cfg.pe.get("std")) for cfg in chosen] == [
        *(("rope", seed, 1e-2, None) for seed in (0, 1)),
        *(("learnable", seed, 3e-3, 1.0) for seed in (0, 1)),
    ]
    # the cells are otherwise those of the study
    for before, after in zip(cfgs, chosen, strict=True):
        settings = {"optimizer.lr": after.optimizer.lr} | ({"pe.std": 1.0} if "std" in after.pe else {})
        assert settings_of(after) == settings_of(before) | settings
        assert before.optimizer.lr == 1e-3


def test_rounds_have_the_rungs_of_all_searches_on_seeds_of_their_own(served: Served) -> None:
    drive(fair_rates(cells("pe=rope,learnable", "seed=0,1,2")), served)
    first, second, third, *_ = served.rounds
    assert [len(current.cfgs) for current in served.rounds[:3]] == [2 * (5 + 15), 2 * (3 + 8), 2 * (2 + 4)]
    assert [{cfg.epochs for cfg in current.cfgs} for current in (first, second, third)] == [{1}, {2}, {4}]
    assert {cfg.seed for current in served.rounds for cfg in current.cfgs} == {1000, 1001}
    assert first.text.startswith("learning rates, round 1: 40 cells for 2 of 2 searches; 86 epochs of training in all")
    assert second.text == "learning rates, round 2: 22 cells for 2 of 2 searches"


def test_cells_of_the_search_are_not_measured_and_not_in_the_study(served: Served) -> None:
    drive(fair_rates(cells("pe=rope", "evaluate.lengths=[1,2]", "evaluate.offset=[0,8]", "probe=[rank]")), served)
    for cfg in served.rounds[0].cfgs:
        assert (cfg.study_name, cfg.search, dict(cfg.probe)) == (None, None, {})
        assert Cell.from_config(cfg).requests == []
    drive(fair_rates(cells("pe=rope", "study_name=mine")), served)
    assert {cfg.study_name for cfg in served.rounds[-1].cfgs} == {"mine-search"}


def test_the_test_split_is_not_read(served: Served) -> None:
    """Outcomes raise when their test metrics are read, and checkpoints name another rate as the best on it."""
    (chosen,) = drive(fair_rates(cells("pe=alibi")), served)
    assert chosen.optimizer.lr == 3e-4


def test_a_search_is_one_per_setting_and_not_per_seed(served: Served) -> None:
    cfgs = cells("pe=rope,learnable", "model.depth=1,2", "epochs=4,8", "seed=0,1")
    searches = searches_of(cfgs)
    assert len(searches) == len(cfgs) == 16
    assert len(set(searches)) == 8
    for cfg, found in zip(cfgs, searches, strict=True):
        assert (found.cfg.pe.name, found.cfg.model.depth, found.cfg.epochs) == (
            cfg.pe.name,
            cfg.model.depth,
            cfg.epochs,
        )


def test_diverged_candidates_are_worse_than_all_others(tmp_path: Path) -> None:
    served = Served(tmp_path, {"rope": (1.0, 1.0)}, diverges=1e-2)
    (chosen,) = drive(fair_rates(cells("pe=rope")), served)
    assert chosen.optimizer.lr == 3e-3
    with pytest.raises(
        ValueError, match=r"search.rates must have a rate .*: pe=rope, data=pattern, model.depth=1, epochs=4$"
    ):
        drive(fair_rates(cells("pe=rope")), Served(tmp_path, {"rope": (1.0, 1.0)}, diverges=0))


def test_a_rate_at_which_one_of_three_seeds_diverged_is_not_chosen(tmp_path: Path) -> None:
    class OneDiverges(Served):
        def outcome(self, cfg: DictConfig) -> Outcome:
            self.diverges = 1e-2 if cfg.seed == 1001 else math.inf
            return super().outcome(cfg)

    served = OneDiverges(tmp_path, {"rope": (1e-2, 1.0)})
    (chosen,) = drive(fair_rates(cells("pe=rope", "search.seeds=3")), served)
    assert chosen.optimizer.lr == 3e-3


def test_another_failure_is_no_verdict_on_a_rate(tmp_path: Path) -> None:
    (cfg,) = cells("pe=rope")
    failed = Outcome(cfg, "run", tmp_path, "the process that trained or measured it was killed three times")
    with pytest.raises(CellsMissingError) as caught:
        searches_of([cfg])[0].validation_loss(failed)
    assert str(caught.value) == (
        "the search for pe=rope, data=pattern, model.depth=1, epochs=4 needs the cell with optimizer.lr=0.001, seed=0, "
        "epochs=4: the process that trained or measured it was killed three times"
    )
    (cfg,) = cells("pe=learnable")
    failed = Outcome(cfg, "run", tmp_path, "the process that trained or measured it was killed three times")
    with pytest.raises(CellsMissingError, match="needs the cell with optimizer.lr=0.001, pe.std=0.02, seed=0,"):
        searches_of([cfg])[0].validation_loss(failed)


def test_a_checkpoint_without_its_last_validation_is_refused(served: Served) -> None:
    (cfg,) = cells("pe=rope")
    outcome = served.outcome(cfg)
    cfg.epochs = 5
    with pytest.raises(LedgerError, match="must have the validation at its end, got none: with another ledger="):
        searches_of([cfg])[0].validation_loss(outcome)


def test_searches_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    cfgs = cells("pe=rope", "pe.theta=100,10000", "epochs=4,8", "model.width=32,64")
    assert {search.name for search in searches_of(cfgs)} == {
        f"pe=rope theta={theta}, data=pattern, model.depth=1, epochs={epochs}, model.width={width}"
        for theta in (100, 10000)
        for epochs in (4, 8)
        for width in (32, 64)
    }
    served = Served(tmp_path, {"rope": (1e3, 1.0)})
    searches = searches_of(cells("pe=rope", "pe.theta=100,10000", "epochs=4,8"))
    for search in searches:
        while search.rung is not None:
            search.take([served.outcome(cfg) for cfg in search.cells()])
    places = [f"rope theta={theta} (rate, epochs {epochs})" for epochs in (4, 8) for theta in (100, 10000)]
    assert edges(searches).endswith(f"beyond it, the best may lie further: {', '.join(places)}")


def test_the_table_has_a_row_per_search(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    cfgs = cells("pe=rope,learnable", "epochs=4,8", "seed=0,1", f"ledger={served.folder}", "study_name=mine")
    drive(fair_rates(cfgs), served)
    rates = pd.read_csv(served.folder / "studies" / "mine" / FILE).sort_values(
        ["pe", "epochs"], ascending=[False, True]
    )
    assert list(rates) == [
        *("pe", "data", "depth", "epochs", "optimizer.lr", "start_scale", "at_edge", "validation_loss", "seeds"),
        *("tried", "core_seconds"),
    ]
    assert rates["pe"].tolist() == ["rope", "rope", "learnable", "learnable"]
    assert rates["optimizer.lr"].tolist() == [1e-2, 1e-2, 3e-3, 3e-3]
    assert rates["start_scale"].isna().tolist() == [True, True, False, False]
    assert rates["validation_loss"].tolist() == pytest.approx([1 / 4, 1 / 8, 1 / 4, 1 / 8])
    assert (rates["seeds"].tolist(), rates["at_edge"].any()) == ([2] * 4, False)
    assert rates["tried"].tolist() == [5, 5, 16, 16]  # the best scale was the largest: one beyond it
    # rope, 4 epochs: 2 candidates for 1 epoch, 1 for 2, 2 for 4, each with two seeds
    assert rates["core_seconds"].iloc[0] == 2 * 1.5 * (2 * 1 + 1 * 2 + 2 * 4)
    assert "the choices of all 4 searches stand inside of what was tried" in capsys.readouterr().out


def test_an_edge_that_the_bound_leaves_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = Served(tmp_path, {"rope": (1e3, 1.0), "alibi": (1e-3, 1.0)})
    drive(fair_rates(cells("pe=rope,alibi", "search.extensions=2", f"ledger={tmp_path}", "study_name=mine")), served)
    said = "1 of 2 choices stand at the edge after search.extensions=2 steps beyond it, the best may lie further: rope"
    assert f"{said} (rate)" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "studies" / "mine" / FILE)["at_edge"].tolist() == [True, False]


def test_with_a_schedule_that_depends_on_the_end_rungs_are_trainings_of_their_own(served: Served) -> None:
    for schedule, epochs in (("constant", 10 * 1 + 6 * 1 + 4 * 2), ("cosine", 10 * 1 + 6 * 2 + 4 * 4)):
        drive(fair_rates(cells("pe=rope", f"optimizer.schedule={schedule}")), served)
        assert f"; {epochs} epochs of training in all" in served.rounds[-3].text
        last = served.rounds[-1].cfgs[0]
        assert ("epochs" in Cell.from_config(last).identity) == (schedule == "cosine")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=0,1000"], "seed must not be one of the search, 1000 ... 1001, got 1000"),
        (["seed=7", "search.first_seed=6"], "seed must not be one of the search, 6 ... 7, got 7"),
        (["decide.baseline=rope", "search.first_seed=8"], "seed must not be one of the search, 8 ... 9, got 8"),
        (["decide.baseline=rope", "search.first_seed=11"], "seed must not be one of the search, 11 ... 12, got 11"),
        (["optimizer.lr=1e-3,1e-2"], "optimizer.lr must be left to the search, got 0.001, 0.01: leave it out"),
        (["optimizer.lr=1e-3"], "optimizer.lr must be left to the search, got 0.001: leave it out"),
        (["pe=learnable", "pe.std=0.5"], "pe.std must be left to the search, got 0.5: leave it out"),
        (["pe=randomized_learnable", "pe.encoding.std=2"], "pe.encoding.std must be left to the search, got 2"),
        (["pe=learnable", "pe.std=0.02,1"], "pe.std must be left to the search, got a sweep over 0.02 and 1"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_trained(
    overrides: list[str], expected: str, served: Served
) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        next(fair_rates(cells(*overrides)))
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_scale_may_be_swept_if_it_is_not_searched(served: Served) -> None:
    chosen = drive(fair_rates(cells("pe=learnable", "pe.std=0.02,1", "search.scales=[]")), served)
    assert [(cfg.optimizer.lr, cfg.pe.std) for cfg in chosen] == [(3e-3, 0.02), (3e-3, 1)]
    assert len(set(searches_of(cells("pe=learnable", "pe.std=0.02,1", "search.scales=[]")))) == 2
    assert searches_of(cells("pe=learnable", "pe.std=0.5", "search.scales=[]"))


def test_a_rate_that_is_given_beside_the_search_is_refused_for_one_cell_too() -> None:
    for prefix in ("", "++"):
        with pytest.raises(ValueError, match="optimizer.lr must be left to the search, got 0.01: leave it out"):
            config.expand(["search=fair", f"{prefix}optimizer.lr=1e-2"], multirun=False)
    assert config.expand(["search=none", "optimizer.lr=1e-2"], multirun=False)[0].optimizer.lr == 1e-2


def test_what_cannot_be_searched_leaves_no_declaration(ledger: Path) -> None:
    with pytest.raises(ValueError, match="seed must not be one of the search"):
        searched(ledger, "pe=none", "seed=1000")
    assert not (ledger / "studies").exists()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("search.rates=[]", "search.rates must be a list of at least 3 positive numbers, ascending, got []"),
        ("search.rates=[1e-3,1e-2]", "search.rates must be a list of at least 3 positive numbers, ascending"),
        ("search.rates=[0,1e-3,1e-2]", "search.rates must be a list of at least 3 positive numbers, ascending"),
        ("search.rates=[1e-3,1e-2,1e-2]", "search.rates must be a list of at least 3 positive numbers, ascending"),
        ("search.rates=[1e-2,1e-3,1e-1]", "search.rates must be a list of at least 3 positive numbers, ascending"),
        ("search.rates=[1e-3,nan,1e-1]", "search.rates must be a list of at least 3 positive numbers, ascending"),
        ("search.rates=1e-3", "search.rates must be a list of at least 3 positive numbers, ascending, got 0.001"),
        ("search.scales=[1.0]", "search.scales must be a list of at least 2 positive numbers, ascending, or empty"),
        ("search.scales=[0,1]", "search.scales must be a list of at least 2 positive numbers, ascending, or empty"),
        ("search.rungs=1", "search.rungs must be an integer of at least 2, got 1"),
        ("search.factor=1", "search.factor must be an integer of at least 2, got 1"),
        ("search.seeds=0", "search.seeds must be an integer of at least 1, got 0"),
        ("search.extensions=-1", "search.extensions must be an integer of at least 0, got -1"),
        ("search.first_seed=-1", "search.first_seed must be at least 0, got -1"),
        ("+search.rate=[1]", "search has the settings extensions, factor, first_seed, rates, rungs, scales, seeds"),
        ("~search.rungs", "search.rungs must be set, got nothing"),
        ("search=wide", "search must be one of fair, none, pe_bench, pe_bench_2, got 'wide'"),
    ],
)
def test_a_wrong_search_is_named_in_one_line(override: str, expected: str) -> None:
    given = [] if override.startswith("search=") else ["search=fair"]
    with pytest.raises((ValueError, HydraException), match="search") as caught:
        config.expand([*given, override], multirun=False)
    assert expected in in_one_line(caught.value)


def test_a_search_is_the_same_for_all_cells_and_none_by_default() -> None:
    with pytest.raises(ValueError, match="search must be the same for all cells of a sweep, got None, {"):
        cells(search="search=none,fair")
    assert cells(search="search=none")[0].search is None
    assert config.expand([], multirun=False)[0].search is None


def test_one_scale_per_setting_does_not_make_another_encoding() -> None:
    """The scale that a search chose is no part of an encoding's name; one that the study sweeps is."""

    def labels(*scales: tuple[float, int]) -> set[str]:
        (cfg,) = cells("pe=learnable")
        settings = [settings_of(OmegaConf.merge(cfg, {"pe": {"std": s}, "model": {"depth": d}})) for s, d in scales]
        return set(describe(settings)["pe"])

    assert labels((0.02, 1), (1.0, 2)) == {"learnable"}
    assert labels((0.02, 1), (1.0, 1)) == {"learnable std=0.02", "learnable std=1"}
    assert labels((0.02, 1), (1.0, 1), (1.0, 2)) == {"learnable std=0.02", "learnable std=1"}


def test_the_scale_of_an_encoding_within_encodings_is_no_part_of_its_name_either() -> None:
    (cfg,) = cells("pe=randomized_learnable")
    cfg.pe.encoding = OmegaConf.merge(cfg.pe, {"name": "inner"})
    setting = starting_scale(cfg.pe)
    assert setting == "pe.encoding.encoding.std"
    chosen = [with_settings(cfg, {setting: scale, "model.depth": depth}) for scale, depth in ((0.02, 1), (1.0, 2))]
    assert set(describe([settings_of(one) for one in chosen])["pe"]) == {"randomized_learnable"}


class Mine(Learnable):
    """An encoding of a user, whose starting scale has a name of its own."""

    start_scale = "beginning"

    def __init__(self, sizes: Sizes, *, beginning: float = 0.02, **options: Any) -> None:
        super().__init__(sizes, std=beginning, **options)


def test_a_starting_scale_that_tables_do_not_know_is_refused() -> None:
    """Tables would make an encoding of each scale that is chosen for it, which nothing else is compared with."""
    (cfg,) = cells("pe=learnable")
    cfg.pe = {"_target_": f"{__name__}.Mine", "_partial_": True, "name": "mine", "beginning": 0.02}
    line = f"start_scale of {__name__}.Mine must be std or size to be searched, got 'beginning'"
    with pytest.raises(ValueError, match="start_scale") as caught:
        next(fair_rates([cfg]))
    assert str(caught.value) == line
    cfg.search.scales = []
    next(fair_rates([cfg]))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def searched(ledger: Path, *overrides: str, train: bool = True) -> None:
    words = [*SMALL, "search.extensions=0", "pe=rope,learnable", "seed=0,1", "epochs=4"]
    sweep.run(in_ledger(ledger, *config.of_jobs([*words, *overrides])), train=train)


def test_a_study_is_trained_at_the_rates_that_its_search_chose(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(ledger)
    out = capsys.readouterr()
    rates = pd.read_csv(ledger / "studies" / "mine" / FILE).set_index("pe")
    found = load(ledger, "mine").cells
    assert sorted(found["pe"].unique()) == ["learnable", "rope"]
    assert len(found) == 4
    for pe, rate, scale in zip(rates.index, rates["optimizer.lr"], rates["start_scale"], strict=True):
        own = ["search=none", f"pe={pe}", f"optimizer.lr={rate}", *([f"pe.std={scale}"] if pe == "learnable" else [])]
        for seed in (0, 1):
            words = [word for word in SMALL if not word.startswith("search")]
            (cfg,) = in_ledger(ledger, *words, *own, "epochs=4", multirun=False)
            cfg.seed = seed
            # an ordinary cell with that rate: found in the ledger
            assert Ledger(ledger).find(Cell.from_config(cfg).identity).done(4)
    assert "cost of training steps: the search of learning rates " in out.out
    assert " core-seconds in 12 runs; the study " in out.out  # 3 rates, and 3 rates with 3 scales, one seed
    before = sorted(path for path in ledger.glob("*/checkpoints/*"))
    searched(ledger)
    searched(ledger, "evaluate.lengths=[1,2]", train=False)
    assert sorted(path for path in ledger.glob("*/checkpoints/*")) == before
    assert (pd.read_csv(ledger / "studies" / "mine" / FILE).set_index("pe") == rates).loc["learnable"].all()


def test_what_was_not_searched_cannot_be_evaluated(ledger: Path) -> None:
    with pytest.raises(ValueError, match=r"cells are not in the ledger .*: train them with python -m pe_lab.run"):
        searched(ledger, train=False)


def test_a_training_that_really_diverges_is_recognised(ledger: Path) -> None:
    searched(ledger, "pe=rope", "search.rates=[1e-3,1e-2,1e30]", "seed=0")
    (rate,) = pd.read_csv(ledger / "studies" / "mine" / FILE)["optimizer.lr"]
    assert rate in (1e-3, 1e-2)


def test_a_diverged_candidate_is_a_result_when_the_study_is_evaluated(
    ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("pe=rope", "search.rates=[1e-3,1e-2,1e30]", "seed=0")
    searched(ledger, *words)
    (failed,) = ledger.glob("*/failed/*.json")
    before, rates = failed.read_text(), (ledger / "studies" / "mine" / FILE).read_text()
    capsys.readouterr()
    monkeypatch.setattr(Job, "_train", lambda job: pytest.fail("trained"))
    searched(ledger, *words, "evaluate.lengths=[1,2]", train=False)
    assert "round 1" not in capsys.readouterr().err  # nothing of the search is asked for again
    assert failed.read_text() == before
    assert len(list(ledger.glob("*/records/4/*/rows.csv"))) == 1
    assert (ledger / "studies" / "mine" / FILE).read_text() == rates

    failed.write_text(json.dumps(json.loads(before) | {"kind": ERROR}))  # says nothing about the rate
    with pytest.raises(ValueError, match=r"1 of 3 cells are not in the ledger .*: train them with"):
        searched(ledger, *words, train=False)
    failed.unlink()
    with pytest.raises(ValueError, match=r"1 of 3 cells are not in the ledger .*: train them with"):
        searched(ledger, *words, train=False)


@pytest.mark.parametrize("given", [("epochs=3",), ("epochs=9", "search.factor=3")])
def test_rungs_may_end_at_any_epoch(given: tuple[str, ...], ledger: Path) -> None:
    searched(ledger, "pe=rope", "seed=0", *given)
    (chosen,) = pd.read_csv(ledger / "studies" / "mine" / FILE)["validation_loss"]
    epochs = int(given[0].rpartition("=")[2])
    losses = []
    for checkpoint in ledger.glob(f"*/checkpoints/{epochs}"):
        if OmegaConf.load(checkpoint / "config.yaml").seed == 1000:
            losses += [value for at, metric, value in validation(checkpoint) if (at, metric) == (epochs, "loss")]
    assert len(losses) >= 2
    assert chosen == pytest.approx(min(losses))


def test_what_diverged_is_not_trained_again_and_costs_the_same(
    ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study of which a candidate diverged says, decides and costs the same when it is run a second time."""
    given = ["search.rates=[1e-3,1e-2,1e30]", "decide.baseline=none", "decide.seeds=3..4", "budget=1"]
    words = [*SMALL, "search.extensions=0", "pe=rope,none", "epochs=4", *given]
    sweep.run(in_ledger(ledger, *config.of_jobs(words)))
    files = sorted((ledger / "studies" / "mine").glob("*.csv"))
    assert {path.name for path in files} >= {FILE, "decisions.csv"}
    first, contents = capsys.readouterr().out, [path.read_text() for path in files]
    failures = {path: path.read_text() for path in ledger.glob("*/failed/*.json")}
    assert len(failures) == 2
    for text in failures.values():
        assert json.loads(text)["core_seconds"] > 0
    for path in ledger.glob("*/cost.json"):  # of earlier attempts: no part of what a cell costs
        path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 1e9}))
    monkeypatch.setattr(Job, "_train", lambda job: pytest.fail("trained"))
    sweep.run(in_ledger(ledger, *config.of_jobs(words)))
    assert capsys.readouterr().out == first
    assert [path.read_text() for path in files] == contents
    assert {path: path.read_text() for path in failures} == failures


def test_where_every_candidate_diverged_evaluating_says_what_running_says(ledger: Path) -> None:
    words = ("pe=rope", "search.rates=[1e28,1e29,1e30]", "seed=0")
    for train in (True, False):
        with pytest.raises(NoRateError, match="pe=rope, data=pattern"):
            searched(ledger, *words, train=train)


def test_the_budget_of_a_study_that_decides_pays_for_its_search(tmp_path: Path) -> None:
    class Decided(Served):
        """Cells of the study itself have test metrics."""

        def outcome(self, cfg: DictConfig) -> Outcome:
            found = super().outcome(cfg)
            return found if cfg.seed >= 1000 else replace(found, test={"loss": math.sin(cfg.seed + cfg.optimizer.lr)})

    def looks(budget: float) -> tuple[int, str]:
        served = Decided(tmp_path, {"rope": (1e-2, 1.0), "alibi": (3e-3, 1.0)})
        more = ("decide.baseline=rope", "decide.seeds=3..6", "margin=1e-6 nats", f"budget={budget / 3600}")
        cfgs = drive(sweep.stages(cells("pe=rope,alibi", *more)), served)
        return len(cfgs), served.rounds[-1].text

    # search: for each of two encodings and seeds 1.5 * (2 * 1 + 1 * 2 + 2 * 4) core-seconds; a cell of the study: 6
    search, cell = 4 * 1.5 * 12, 6
    assert looks(search + 10 * cell - 1)[0] == 6
    assert looks(search + 10 * cell + 1)[0] == 10
    count, text = looks(search + 100 * cell)
    assert count == 12
    assert text.endswith("0.04 core-hours of training, 0.02 of them for the search of learning rates")


def test_searches_that_share_runs_cost_the_longest_in_any_order(tmp_path: Path) -> None:
    totals = []
    for epochs in ("epochs=16,4,1", "epochs=1,4,16"):
        cost: dict[str, float] = {}
        served = Served(tmp_path, {"rope": (1e-2, 1.0)})
        drive(fair_rates(cells("pe=rope", epochs), cost), served)
        longest: dict[str, int] = {}
        for one in served.rounds:
            for cfg in one.cfgs:
                run = f"{cfg.optimizer.lr}-{cfg.seed}"
                longest[run] = max(longest.get(run, 0), cfg.epochs)
        assert sum(cost.values()) == 1.5 * sum(longest.values())
        totals.append(sum(cost.values()))
    assert totals[0] == totals[1]


def test_a_phased_encoding_trains_each_rung_anew() -> None:
    epochs = {name: searches_of(cells(f"pe={name}"))[0].epochs for name in ("rope", "drope")}
    (both,) = searches_of(cells("pe=sum", "pe.parts=[drope,alibi]"))
    (within,) = searches_of(cells("pe=randomized_rope", "pe@pe.encoding=drope"))
    assert epochs["drope"] == both.epochs == within.epochs > epochs["rope"]


def test_a_starting_scale_of_a_part_is_refused_where_scales_are_searched() -> None:
    given = ("pe=sum", "pe.parts=[learnable,rope]")
    with pytest.raises(ValueError, match=r"search.scales must be \[\] where a part of pe=.* and pe.parts\[0\].std of"):
        searches_of(cells(*given))
    assert len(searches_of(cells(*given, "search.scales=[]"))) == 1


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (("pe=sum", "pe.parts=[rope,randomized_learnable]"), "pe.parts[1].encoding.std of randomized_learnable"),
        (("pe=dape", "pe@pe.encoding=sum", "pe.encoding.parts=[alibi,learnable]"), "pe.encoding.parts[1].std of"),
    ],
)
def test_a_starting_scale_is_found_at_any_depth(given: tuple[str, ...], path: str) -> None:
    with pytest.raises(ValueError, match="search.scales must be") as caught:
        searches_of(cells(*given))
    assert f"and {path}" in str(caught.value)


def test_a_starting_scale_of_a_part_of_a_part_is_found() -> None:
    (inner,) = cells("pe=heads", "pe.parts=[learnable,none]")
    (outer,) = cells("pe=sum", "pe.parts=[rope,alibi]")
    outer.pe.parts[0] = inner.pe
    with pytest.raises(ValueError, match=r"and pe.parts\[0\].parts\[0\].std of learnable"):
        searches_of([outer])


def test_choices_at_an_edge_are_named_with_their_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = Served(tmp_path, {"rope": (1e3, 1.0)})
    drive(fair_rates(cells("pe=rope", "model.depth=1,2", "search.extensions=1")), served)
    assert "rope (rate, depth 1), rope (rate, depth 2)" in capsys.readouterr().out


def test_a_run_of_which_a_part_was_trained_did_not_come_with_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (cfg,) = cells("pe=rope")
    first, part = (Outcome(cfg, run, Path(run), core_seconds=9.0, shipped=True) for run in "ab")
    rest = Outcome(cfg, "b", Path("b"), core_seconds=2.0)
    monkeypatch.setattr(chosen_rates, "outcome", lambda job: job)
    print_costs([first, part, rest], [first])  # type: ignore[list-item]
    assert capsys.readouterr().out.endswith(
        "the search of learning rates 2 core-seconds in 2 runs, 1 of which came with the package; "
        "the study 0 core-seconds in 1 runs, 1 of which came with the package\n"
    )


def test_edges_and_tables_need_ended_searches() -> None:
    cfgs = cells("pe=rope")
    for use in (edges, lambda searches: table(searches, cfgs)):
        with pytest.raises(AssertionError):
            use(searches_of(cfgs))
