"""Studies in rounds that add seeds to what is undecided: tiny, trained for real, killed, continued, replayed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from helpers.configs import in_ledger
from helpers.power_cut import PowerCutError
from pe_lab import config, run, status
from pe_lab.experiment import sweep, sweep_report
from pe_lab.experiment.added_seeds import add_seeds
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.experiment.rounds import Outcome, Round, cost_by_run, drive_stage, read_outcome, with_settings
from pe_lab.ledger.run import DIVERGED
from pe_lab.results.frame import load

STUDY = [
    *("data=bag", "data.train=128", "data.validation=32", "data.test=32", "data.demo=1", "epochs=1", "model.depth=1"),
    *("model.width=8", "model.num_heads=2", "trainer.device=cpu", "trainer.batch_size=32", "logger=none"),
    *("pe=none,rope,sinusoidal", "decide.baseline=none", "decide.seeds=3..6", "margin=0.02 nats", "study_name=s"),
]


def cells_of(ledger: Path) -> list[Path]:
    return sorted(ledger.glob("*/checkpoints/*/checksums.json"))


def start(ledger: Path, *words: str) -> None:
    sweep.run_cells(in_ledger(ledger, *STUDY, *words), ["-m", *STUDY, *words])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of the study, undisturbed."""
    ledger = tmp_path_factory.mktemp("decided")
    start(ledger)
    return ledger


@pytest.mark.long
def test_seeds_are_added_to_the_undecided_only_and_the_folder_says_what_was_decided(done):
    folder = done / "studies" / "s"
    found = pd.read_csv(folder / "decisions.csv")
    assert list(found["pe"]) == ["rope", "sinusoidal"]
    assert list(found["verdict"]) == ["equivalent", "undecided"]
    assert list(found["seeds"]) == [5, 6]
    assert list(found["look"]) == [2, 3]
    assert (found["margin"] == 0.02).all()
    counts = load(folder).cells.groupby("pe")["seed"].apply(list)
    assert {pe: sorted(seeds) for pe, seeds in counts.items()} == {
        "none": [*range(6)],
        "rope": [*range(5)],
        "sinusoidal": [*range(6)],
    }
    assert json.loads((folder / "declared.json").read_text()) == {
        "margin": {"loss": "0.02 nats"},
        "baseline": "none",
        "decide": {"baseline": "none", "seeds": "3..6", "looks": None, "best": None},
        "search": None,
    }
    words = (folder / "decisions.md").read_text()
    assert "Ended at look 3 of 3: 1 of 2 comparisons decided; undecided: pe sinusoidal; 17 cells on 17 runs" in words
    assert "core-hours" in words


def test_the_intervals_of_the_table_are_those_of_the_rows(done):
    from scipy import stats

    losses = load(done / "studies" / "s").cells.pivot(index="seed", columns="pe", values="test_loss")
    sample = losses["sinusoidal"] - losses["none"]
    line = pd.read_csv(done / "studies" / "s" / "decisions.csv").set_index("pe").loc["sinusoidal"]
    error = (sample.var() + 2 * (0.03 * 0.02) ** 2) / 6  # with the measurement error of both runs, in margins
    low, high = stats.t.interval(0.95, 5, sample.mean(), error**0.5)
    assert (line["difference"], line["low"], line["high"]) == pytest.approx((sample.mean(), low, high))


def test_status_says_the_look_and_what_is_undecided(done, program):
    code, out, _ = program(status.main, done, "--all")
    assert code == 0
    assert "  17 done of 17 cells; 100 % of the work" in out
    (line,) = [line for line in out if "look" in line]
    assert line.strip().startswith("ended at look 3 of 3: 1 of 2 comparisons decided; undecided: pe sinusoidal; 17 ")


def test_a_finished_study_is_replayed_without_training(done, no_training, capsys):
    no_training()
    before = (done / "studies" / "s" / "decisions.csv").read_text()
    sweep.run_cells(in_ledger(done, *STUDY), train=False)
    assert (done / "studies" / "s" / "decisions.csv").read_text() == before
    assert "look 1 of 3 (3 seeds)" not in capsys.readouterr().err


def test_nothing_is_trained_where_training_is_not_wanted(tmp_path):
    with pytest.raises(ValueError, match="9 of 9 cells are not in the ledger"):
        sweep.run_cells(in_ledger(tmp_path, *STUDY), train=False)
    assert not cells_of(tmp_path)


@pytest.mark.long
def test_a_study_that_was_cut_short_goes_on_where_it_was_and_decides_the_same(done, tmp_path, monkeypatch):
    """After one of the six cells of the second look."""

    train = Job._train

    def cut(job: Job) -> None:
        train(job)
        if len(cells_of(tmp_path)) == 10:
            raise PowerCutError

    monkeypatch.setattr(Job, "_train", cut)
    with pytest.raises(PowerCutError):
        start(tmp_path)
    monkeypatch.setattr(Job, "_train", train)
    goes_on(done, tmp_path)


@pytest.mark.slow
def test_a_killed_study_goes_on_where_it_was_and_decides_the_same(done, tmp_path):
    command = [sys.executable, "-m", "pe_lab.run", "-m", *STUDY, f"ledger={tmp_path}", "hydra/launcher=basic"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        until = time.monotonic() + 100
        while len(cells_of(tmp_path)) < 10 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 10 <= len(cells_of(tmp_path)) <= 17
    goes_on(done, tmp_path)


def goes_on(done: Path, ledger: Path) -> None:
    """Continue a study: cells that are there stay as they are, and it decides what it decides undisturbed."""
    there = {path: path.stat().st_mtime_ns for path in cells_of(ledger)}
    start(ledger)
    assert len(cells_of(ledger)) > len(there)
    assert {path: path.stat().st_mtime_ns for path in there} == there
    decided = [(one / "studies" / "s" / "decisions.csv").read_text() for one in (done, ledger)]
    assert decided[0] == decided[1]


@pytest.mark.long
def test_cells_that_others_trained_are_used_up_to_the_look_that_decides(done, tmp_path, no_training):
    """As several machines on one ledger: what is there is not trained, and further seeds do not change a verdict."""
    more = [word for word in STUDY if not word.startswith(("decide.", "margin", "study_name"))]
    sweep.run_cells(config.expand_overrides([*more, f"ledger={tmp_path}", "seed=range(6)"], multirun=True))
    no_training()
    start(tmp_path)
    decided = [(ledger / "studies" / "s" / "decisions.csv").read_text() for ledger in (done, tmp_path)]
    assert decided[0] == decided[1]


@pytest.mark.long
def test_a_failed_cell_leaves_its_encoding_undecided_and_the_others_go_on(tmp_path, monkeypatch, no_training, capsys):
    train, reason = Job._train, "no number"

    def diverges(job: Job) -> None:
        if (job.cell.cfg.pe.name, job.cell.cfg.seed) == ("rope", 1):
            job.run.fail(job.cell.target, reason, 3, kind=DIVERGED)
            raise RuntimeError(reason)
        train(job)

    monkeypatch.setattr(Job, "_train", diverges)
    message = "^1 of 15 cells are missing, 1 of which diverged: they would do so again$"
    with pytest.raises(sweep_report.CellsMissingError, match=message):
        start(tmp_path)
    found = pd.read_csv(tmp_path / "studies" / "s" / "decisions.csv").set_index("pe")
    assert found.loc["rope", "verdict"] == "undecided"
    assert found.loc["rope", "note"] == f"seed 1 of rope failed: {reason}"
    assert found.loc["sinusoidal", "seeds"] == 6
    assert f"missing: rope-bag-d1-e1-s1: {reason}" in capsys.readouterr().err
    no_training()
    for train_missing in (True, False):  # that it diverged is its outcome
        with pytest.raises(sweep_report.CellsMissingError, match=message):
            sweep.run_cells(in_ledger(tmp_path, *STUDY), train=train_missing)
        assert pd.read_csv(tmp_path / "studies" / "s" / "decisions.csv").set_index("pe").equals(found)


def test_a_cell_that_was_not_reached_ends_the_study_before_anything_depends_on_it(tmp_path, monkeypatch, capsys):
    serve = Job.complete
    monkeypatch.setattr(Job, "complete", lambda job, wait: job.cell.cfg.seed == 2 or serve(job, wait))
    with pytest.raises(sweep_report.CellsMissingError, match="3 of 9 cells are missing; the same command, run again"):
        start(tmp_path)
    assert not (tmp_path / "studies" / "s" / "decisions.csv").exists()
    assert "missing: none-bag-d1-e1-s2: not reached" in capsys.readouterr().err


# -- the stage alone, with outcomes that are made up ------------------------------------------------------------------


def outcomes(losses: dict[str, float], hours: float = 0.1):
    """Return what serves rounds: losses by encoding, with a little noise by seed."""
    rounds: list[Round] = []

    def serve(current: Round) -> list[Outcome]:
        rounds.append(current)
        found = []
        for cfg in current.cfgs:
            loss = losses[cfg.pe.name] + 0.01 * ((cfg.seed * 37 + len(cfg.pe.name) * 11) % 7)
            run = f"{cfg.pe.name}{cfg.seed}"
            found.append(Outcome(cfg, run, Path(run), None, {"loss": loss}, {}, 3600 * hours))
        return found

    return serve, rounds


def expand(*words: str) -> list:
    return in_ledger(None, *(word for word in STUDY if not word.startswith("study_name")), *words)


def with_budget(core_hours: float) -> list:
    cfgs = expand("margin=0.001 nats")
    for cfg in cfgs:
        cfg.budget = core_hours
    return cfgs


def test_a_stage_asks_seed_by_seed_and_returns_all_cells(capsys):
    serve, rounds = outcomes({"none": 1.0, "rope": 5.0, "sinusoidal": 1.005})
    cfgs = drive_stage(add_seeds(expand("margin=0.001 nats")), serve)
    assert [(cfg.pe.name, cfg.seed) for cfg in rounds[0].cfgs] == [
        (pe, seed) for seed in (0, 1, 2) for pe in ("none", "rope", "sinusoidal")
    ]
    assert [(cfg.pe.name, cfg.seed) for cfg in rounds[1].cfgs] == [
        (pe, seed) for seed in (3, 4) for pe in ("none", "sinusoidal")
    ]
    assert rounds[1].text == "look 2 of 3 (5 seeds): 1 of 2 comparisons decided; undecided: pe sinusoidal"
    assert len(cfgs) == sum(len(one.cfgs) for one in rounds) == 15
    assert "worse" in capsys.readouterr().out


def test_the_budget_ends_a_study_before_a_look_that_it_does_not_suffice_for(capsys):
    losses = {"none": 1.0, "rope": 5.0, "sinusoidal": 1.005}
    for budget, looks in ((0.5, 1), (1.29, 1), (1.31, 2), (1.49, 2), (1.51, 3)):  # 0.9, 0.4 and 0.2 core-hours
        serve, rounds = outcomes(losses)
        drive_stage(add_seeds(with_budget(budget)), serve)
        assert len([one for one in rounds if one.cfgs]) == looks, budget
        ended = f"the budget of {budget:g} core-hours ended" in rounds[-1].text
        assert ended == (looks < 3)
    assert "the budget ended" in capsys.readouterr().out


def test_a_run_with_several_checkpoints_is_paid_once():
    serve, rounds = outcomes({"none": 1.0, "rope": 5.0, "sinusoidal": 1.005})
    drive_stage(add_seeds(expand("margin=0.001 nats", "epochs=1,2")), serve)
    assert "30 cells on 15 runs instead of 36 cells, 1.5 core-hours" in rounds[-1].text
    serve, rounds = outcomes({"none": 1.0, "rope": 5.0, "sinusoidal": 1.005})
    drive_stage(add_seeds(expand("margin=0.001 nats", "epochs=1,2", "budget=1.35")), serve)
    assert len([one for one in rounds if one.cfgs]) == 2  # 0.9 core-hours, and 0.4 for eight cells on four runs


def per_epoch(losses: dict[str, float], undecided: tuple[int, ...] = (16,)) -> tuple:
    """Serve cells at a core-hour per epoch, of runs that go on."""
    rounds = []

    def serve(current: Round) -> list[Outcome]:
        rounds.append(current)
        found = []
        for cfg in current.cfgs:
            noise = 0.1 * cfg.seed if cfg.epochs in undecided else 5 + 1e-4 * cfg.seed
            loss = losses[cfg.pe.name] + noise * (cfg.pe.name == "rope")
            run = f"{cfg.pe.name}{cfg.seed}"
            test = {"loss": loss}
            found.append(Outcome(cfg, run, Path(run), None, test, {}, 3600.0 * cfg.epochs))
        return found

    return serve, rounds


@pytest.mark.parametrize("undecided", [(16,), (1, 16)])
@pytest.mark.parametrize("epochs", ["epochs=16,4,1", "epochs=1,4,16"])
def test_a_look_costs_the_longest_checkpoint_that_it_needs_of_each_run(epochs, undecided):
    """After 16 epochs something is undecided: each new seed of two encodings costs 32 core-hours."""
    for budget, looks in ((159, 1), (160, 2), (191, 2), (192, 3)):
        serve, rounds = per_epoch({"none": 1.0, "rope": 1.0}, undecided=undecided)
        drive_stage(add_seeds(expand("pe=none,rope", "margin=0.01 nats", epochs, f"budget={budget}")), serve)
        asked = [one for one in rounds if one.cfgs]
        assert len(asked) == looks, budget
        assert {cfg.epochs for one in asked[1:] for cfg in one.cfgs} <= {*undecided}


def test_the_cost_of_a_run_is_that_of_its_last_checkpoint_in_any_order():
    (cfg,) = expand("pe=rope", "decide.baseline=null", "margin=null", "decide.seeds=5..12")
    one = [Outcome(cfg, "a", Path("a"), core_seconds=seconds) for seconds in (4.0, 16.0, 1.0)]
    two = [Outcome(cfg, "b", Path("b"), core_seconds=2.0)]
    assert cost_by_run([*one, *two]) == {"a": 16.0, "b": 2.0}


def test_the_cost_of_a_cell_is_that_of_all_threads_and_does_not_change_when_its_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # as beside a GPU

    def cost(epochs: int) -> float:
        words = [word for word in STUDY if not word.startswith(("decide", "margin", "study_name", "epochs", "pe="))]
        cfgs = in_ledger(tmp_path, *words, "pe=rope", "seed=0", f"epochs={epochs}")
        sweep.run_cells(cfgs, ["-m"])
        (job,) = (Job.from_config(with_settings(cfg, {"epochs": 1})) for cfg in cfgs)
        assert read_outcome(job).core_seconds == 3 * job.run.summary(1)["seconds"]
        return read_outcome(job).core_seconds

    first = cost(1)
    assert first > 0
    assert cost(3) == first
    (cfg,) = in_ledger(tmp_path, *(word for word in STUDY if not word.startswith(("decide", "pe="))), "pe=rope")
    monkeypatch.setattr(Cell, "devices", 2)
    assert read_outcome(Job.from_config(with_settings(cfg, {"epochs": 1}))).core_seconds == 2 * first


def test_a_cell_that_failed_costs_what_its_failure_says_and_one_that_was_killed_what_its_run_did(tmp_path, monkeypatch):
    (cfg,) = in_ledger(tmp_path, *(word for word in STUDY if not word.startswith(("decide", "pe="))), "pe=rope")
    job = Job.from_config(cfg)
    job.set_aside_if_damaged()
    job.run.account({"steps": 5.0})
    job.fail("the process that trained or measured it was killed three times")
    assert read_outcome(job).core_seconds == 5  # of one thread
    assert read_outcome(job).failed_at is None
    job.run.fail(1, "the training loss must be finite, got nan at step 3", 3, 2.0)
    assert read_outcome(job).core_seconds == 2
    assert read_outcome(job).failed_at == 3
    job.refused = "ledger entry cannot be read"
    assert read_outcome(job).core_seconds == 0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    on_gpu = Job(replace(job.cell, device=torch.device("cuda")))
    on_gpu.fail("the process that trained or measured it was killed three times")
    on_gpu.run.account({"steps": 5.0})
    assert read_outcome(on_gpu).core_seconds == 15


@pytest.mark.long
@pytest.mark.parametrize("more", ["", "random"])
def test_eight_undecided_encodings_are_named_and_others_are_counted(more):
    names = ["sinusoidal", "alibi", "lrope", "kerple_log", "kerple_power", "normalized", "sandwich", "carope"]
    chosen = [*names, *filter(None, [more])]
    serve, rounds = outcomes(dict.fromkeys(("none", *chosen), 1.0))
    drive_stage(add_seeds(expand(f"pe=none,{','.join(chosen)}", "margin=0.001 nats")), serve)
    end = f"undecided: pe {', '.join(names)}{' and 1 more' if more else ''}"
    assert rounds[1].text.endswith(end)


def test_cells_that_differ_in_measurements_alone_are_refused():
    message = (
        "evaluate.lengths must be the same for all cells of an encoding in a study that adds seeds, got [1.0] and "
        "[1.0, 2.0] for none"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        next(add_seeds(expand("evaluate.lengths=[1.0],[1.0,2.0]")))


def test_a_study_whose_cells_all_fail_ends_at_its_first_look_with_its_margin(capsys):
    def serve(current: Round) -> list[Outcome]:
        return [Outcome(cfg, "run", Path("none"), "the train loss must be finite") for cfg in current.cfgs]

    drive_stage(add_seeds(expand("margin=0.1 nats")), serve)
    assert "Margin: 0.1 nats. Ended at look 1 of 3: 0 of 2 comparisons decided" in capsys.readouterr().out


def test_a_race_writes_what_became_of_each_encoding(capsys):
    serve, _ = outcomes({"none": 1.0, "rope": 5.0, "sinusoidal": 1.005})
    drive_stage(add_seeds(expand("margin=0.5 nats", "decide.baseline=best")), serve)
    out = capsys.readouterr().out
    assert "tied for a place" in out
    assert "not the best" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["decide.baseline=alibi"],
            "decide.baseline must be one of none, rope, sinusoidal, all pairs, best, got 'alibi'",
        ),
        (["pe=none"], "decide needs at least two encodings, got none"),
        (["decide.baseline=best", "decide.best=3"], "decide.best must be in 1 ... 2, got 3"),
    ],
)
def test_a_study_that_cannot_decide_is_refused_before_anything_is_written(tmp_path, words, line):
    with pytest.raises(ValueError, match=re.escape(line)) as error:
        start(tmp_path, *words)
    assert str(error.value) == line
    assert not (tmp_path / "studies").exists()


FIXED = ("decide.baseline=null", "decide.seeds=5..12", "seed=0,1")  # a study with a fixed number of seeds


@pytest.mark.parametrize("words", [(), FIXED])
def test_a_margin_in_another_unit_is_refused_in_one_line(tmp_path, words):
    with pytest.raises(ValueError, match="the margin of loss must be in gap or nats, got '0.05 share'"):
        start(tmp_path, "margin=0.05 share", *words)
    assert not (tmp_path / "studies").exists()


def test_a_margin_in_gap_is_refused_before_training_where_a_task_has_no_gap(tmp_path):
    for words in (["data=bag"], ["data=structured,bag"], ["data=digits"], ["data=bag", "decide.baseline=null"]):
        given = [*STUDY, f"ledger={tmp_path}", "margin=0.05 gap", *words]
        given = [word for word in given if not word.startswith("data.")]
        if words[-1] == "decide.baseline=null":
            given = [word for word in given if not word.startswith("decide.seeds")]
        with pytest.raises(ValueError, match="^margin must be in nats for data=(bag|digits), .* got '0.05 gap'"):
            sweep.run_cells(config.expand_overrides(given, multirun=True))
    assert not (tmp_path / "studies").exists()
    assert not cells_of(tmp_path)


def test_a_margin_in_another_unit_is_refused_without_decide_too(tmp_path):
    words = [word for word in STUDY if not word.startswith("decide.")]
    for margin, line in (("0.05 share", "must be in gap or nats, got '0.05 share'"), ("2 gap", "below 1, got 2")):
        with pytest.raises(ValueError, match=re.escape(line)):
            sweep.run_cells(config.expand_overrides([*words, f"ledger={tmp_path}", f"margin={margin}"], multirun=True))
    assert not (tmp_path / "studies").exists()


def test_another_declaration_is_refused_once_cells_are_trained(done, tmp_path):
    before = (done / "studies" / "s" / "declared.json").read_text()
    with pytest.raises(
        ValueError, match=r'study_name=s declared .*"0.02 nats".* got .*"0.01 nats".*another study_name'
    ):
        start(done, "margin=0.01 nats")
    assert (done / "studies" / "s" / "declared.json").read_text() == before
    (tmp_path / "studies" / "s").mkdir(parents=True)
    (tmp_path / "studies" / "s" / "declared.json").write_text(before)
    with pytest.raises(ValueError, match="cells are not in the ledger"):  # nothing is trained yet: it is replaced
        sweep.run_cells(in_ledger(tmp_path, *STUDY, "margin=0.01 nats"), train=False)
    assert "0.01 nats" in (tmp_path / "studies" / "s" / "declared.json").read_text()


def test_an_agent_of_wandb_cannot_run_such_a_study(tmp_path, monkeypatch, program):
    monkeypatch.setattr(run, "agent_run", lambda: "abc")
    code, _, err = program(run.main, "-m", *STUDY, f"ledger={tmp_path}")
    assert code == 1
    assert err.startswith("error: decide.baseline=none cannot run under a W&B agent")
    assert not list(tmp_path.glob("*"))


def test_settings_are_changed_in_a_copy():
    (cfg, *_) = expand()
    changed = with_settings(cfg, {"seed": 7, "optimizer.lr": 0.5})
    assert (changed.seed, changed.optimizer.lr, cfg.seed) == (7, 0.5, 0)
