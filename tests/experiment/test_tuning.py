"""Studies in which every seed tunes for itself: which tries are trained, how far, and what their tables say."""

import math
import re
from collections.abc import Callable

import pandas as pd
import pytest

from helpers.configs import TINY_MODEL, in_ledger
from helpers.scores import put_scores
from pe_lab import config
from pe_lab.experiment import executor
from pe_lab.experiment.rounds import Outcome, drive_stage
from pe_lab.experiment.sweep import run_cells
from pe_lab.experiment.tuning import TunedSeed, evaluation_steps, tune_cells, tuned_seeds
from pe_lab.ledger.ledger import Ledger
from pe_lab.report.__main__ import main as report
from pe_lab.results.frame import load
from pe_lab.results.tuned_outcomes import compare_with_baseline
from pe_lab.statistics import Endpoint

TINY = [*TINY_MODEL, "trainer.device=cpu", "logger=none"]
TASK = ["data=induction", "data.train=320", "data.validation=50", "data.test=50", "trainer.batch_size=32"]
GRID = ["steps=32", "solve.first=2", "solve.per_doubling=1", "solve.level=0.9"]  # 2, 4, 8, 16, 32; choice at 8
LADDER = "tune.rates=[1e-3,3e-3,1e-2]"


def cells(ledger, *overrides: str, task: tuple[str, ...] = (*TASK, *GRID)) -> list:
    return in_ledger(ledger, *TINY, *task, LADDER, "study_name=tuned", *overrides)


def checkpoints(ledger) -> dict[tuple[str, int, float], list[int]]:
    """The checkpoints of each run, by encoding, seed and learning rate."""
    found = {}
    for one in Ledger(ledger).runs():
        identity = one.identity()
        found[identity["pe"]["name"], identity["seed"], identity["optimizer"]["lr"]] = one.checkpoints()
    return found


def run_of(ledger, rate: float):
    """The run of a learning rate."""
    (found,) = (one for one in Ledger(ledger).runs() if one.identity()["optimizer"]["lr"] == rate)
    return found


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[float, dict[int, float]]], None]:
    """Takes validation scores by rate and step; others are 0."""
    return lambda curves: put_scores(monkeypatch, lambda cfg, step: curves[cfg.optimizer.lr].get(step, 0.0))


def outcome_of(ledger) -> dict:
    table = pd.read_csv(ledger / "studies" / "tuned" / "outcomes.csv")
    assert len(table) == 1
    return table.iloc[0].to_dict()


def test_later_tries_stop_where_the_first_solved_it(tmp_path, scores):
    scores({3e-3: {2: 0.8, 4: 1.0, 8: 1.0}, 1e-3: {2: 0.1, 4: 0.95, 8: 0.95}, 1e-2: {}})
    run_cells(cells(tmp_path, "pe=rope"))
    assert checkpoints(tmp_path) == {("rope", 0, 3e-3): [8, 32], ("rope", 0, 1e-3): [8], ("rope", 0, 1e-2): [8]}
    assert run_of(tmp_path, 3e-3).summary(32)["steps"] == 8
    found = outcome_of(tmp_path)
    assert found["optimizer.lr"] == 3e-3
    assert found["y"] == pytest.approx(1 + (0.9 - 0.8) / (1.0 - 0.8))  # between 2 and 4 steps, as powers of two
    assert (found["solved"], found["edge"], found["trained_steps"]) == (True, False, 24)


def test_a_try_that_solves_it_sooner_stops_those_after_it(tmp_path, scores):
    scores({3e-3: {2: 0.95, 4: 0.95}, 1e-3: {2: 0.99}, 1e-2: {}})
    run_cells(cells(tmp_path, "pe=rope"))
    assert checkpoints(tmp_path) == {("rope", 0, 3e-3): [8, 32], ("rope", 0, 1e-3): [4], ("rope", 0, 1e-2): [4]}
    assert [run_of(tmp_path, 3e-3).summary(target)["steps"] for target in (8, 32)] == [4, 4]


def test_only_the_best_goes_on_where_none_solved_it_by_the_choice(tmp_path, scores):
    scores({3e-3: {8: 0.2}, 1e-3: {8: 0.5, 16: 0.95, 32: 0.95}, 1e-2: {8: 0.4, 4: 0.8}})
    run_cells(cells(tmp_path, "pe=rope"))
    assert checkpoints(tmp_path) == {("rope", 0, 3e-3): [8], ("rope", 0, 1e-3): [8, 32], ("rope", 0, 1e-2): [8]}
    found = outcome_of(tmp_path)
    assert (found["optimizer.lr"], found["solved"], found["edge"], found["trained_steps"]) == (1e-3, True, True, 48)
    assert found["y"] == pytest.approx(3 + (0.9 - 0.5) / (0.95 - 0.5))


@pytest.mark.long
@pytest.mark.parametrize(("last", "solved"), [(0.85, False), (0.95, True)])
def test_what_does_not_pass_before_the_last_step_counts_as_that_step(tmp_path, scores, last, solved):
    scores({3e-3: {8: 0.2}, 1e-3: {8: 0.5, 32: last}, 1e-2: {}})
    run_cells(cells(tmp_path, "pe=rope"))
    found = outcome_of(tmp_path)
    assert (found["y"], found["solved"]) == (5.0, solved)


@pytest.mark.long
def test_a_study_that_is_run_again_trains_nothing_and_writes_the_same(tmp_path, monkeypatch, scores):
    scores({3e-3: {8: 0.2}, 1e-3: {8: 0.5}, 1e-2: {}})
    run_cells(cells(tmp_path, "pe=rope,none", "seed=0,1"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "studies" / "tuned").glob("*.csv")}
    monkeypatch.setattr(executor.Executor, "_fit", lambda *_: pytest.fail("it was trained"))
    run_cells(cells(tmp_path, "pe=rope,none", "seed=0,1"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "studies" / "tuned").glob("*.csv")} == before


def test_the_chosen_cells_alone_are_measured_and_in_the_rows(tmp_path, scores):
    scores({3e-3: {2: 0.95, 4: 0.95}, 1e-3: {}, 1e-2: {}})
    run_cells(cells(tmp_path, "pe=rope,none", "evaluate.lengths=[1,2]"))
    results = load(tmp_path, "tuned")
    assert results.cells[["pe", "steps"]].to_numpy().tolist() == [["rope", 32], ["none", 32]]
    assert sorted(results.records.query("length == 2 and metric == 'loss'")["pe"]) == ["none", "rope"]
    assert len(list(tmp_path.glob("*/records/*/*/rows.csv"))) == 2


@pytest.mark.parametrize("failing", [1, 3])
def test_tries_that_diverge_are_passed_over_and_all_of_them_are_said(tmp_path, monkeypatch, failing):
    rates = [1e-3, 3e-3, 1e-2]

    def serve(current) -> list[Outcome]:
        done = []
        for cfg in current.cfgs:
            bad = cfg.optimizer.lr in rates[:failing]
            checkpoint = tmp_path / f"{cfg.optimizer.lr}-{cfg.steps}"
            failure = {"failure": "no number", "diverged": True, "failed_at": 5} if bad else {}
            done.append(Outcome(cfg, f"{cfg.optimizer.lr}", checkpoint, **failure))
        return done

    def validation(path) -> dict[int, dict[str, float]]:
        last = int(path.name.split("-")[-1])
        return {step: {"score": 0.1, "loss": 1.0} for step in (2, 4, 8, 16, 32) if step <= last}

    monkeypatch.setattr("pe_lab.experiment.tuning.validation_by_step", validation)
    chosen = drive_stage(tune_cells(cells(tmp_path, "pe=rope")), serve)
    assert [cfg.optimizer.lr for cfg in chosen] == ([3e-3] if failing == 1 else [])
    found = outcome_of(tmp_path)
    assert (found["y"], found["solved"]) == (5.0, False)
    assert math.isnan(found["optimizer.lr"]) == (failing == 3)
    assert found["trained_steps"] == (5 + 32 + 8 if failing == 1 else 3 * 5)


@pytest.mark.long
def test_a_task_without_a_level_compares_the_loss_of_the_best_after_all_steps(tmp_path):
    task = ("data=digits", "trainer.batch_size=512", "steps=8", "solve.first=1", "solve.per_doubling=1")
    run_cells(cells(tmp_path, "pe=rope", task=task))
    found, results = outcome_of(tmp_path), load(tmp_path, "tuned")
    assert found["y"] == pytest.approx(results.cells["test_loss"].item())
    tries = pd.read_csv(tmp_path / "studies" / "tuned" / "tries.csv")
    at_choice = tries[tries["step"] == 2].set_index("optimizer.lr")["value"]
    assert found["optimizer.lr"] == at_choice.idxmax()
    assert sorted(tries["step"].unique()) == [1, 2, 4, 8]
    assert (tries["value"] < 0).all()  # minus the loss


@pytest.mark.parametrize(
    ("level", "reached", "counts"),
    [
        (None, 0.0, [(2, 6), (2, 4), (2, 2), (2, 0)]),  # each rate to the choice, then the best of each
        (0.9, 0.0, [(2, 6), (2, 4), (2, 2), (2, 0)]),
        (0.9, 0.95, [(2, 6), (2, 3), (2, 1), (1, 0)]),  # rope solves it at the first evaluations
    ],
)
def test_rounds_say_how_much_the_study_may_still_need(tmp_path, monkeypatch, level, reached, counts):
    rounds, steps, scores = [], [], {}

    def serve(current) -> list[Outcome]:
        rounds.append((len(current.cfgs), current.later, current.text))
        steps.append(sum(cfg.steps for cfg in current.cfgs))
        done = []
        for cfg in current.cfgs:
            scores[path := tmp_path / f"{len(scores)}"] = {
                step: {"loss": 1.0, "score": reached * (cfg.pe.name == "rope")}
                for step in (2, 4, 8, 16, 32)
                if step <= cfg.steps
            }
            done.append(Outcome(cfg, path.name, path, None, {"loss": 1.0}))
        return done

    monkeypatch.setattr("pe_lab.experiment.tuning.validation_by_step", scores.__getitem__)
    task = (*TASK, *GRID[:3], f"solve.level={'null' if level is None else level}")
    drive_stage(tune_cells(cells(tmp_path, "pe=rope,none", task=task)), serve)
    *tuning, (_, none_later, _) = rounds
    assert none_later is None
    assert [(number, later.trainings) for number, later, _ in tuning] == counts
    assert [later.exact for _, later, _ in tuning] == [False] * 3 + [True]
    if not reached:  # what was announced at first is what was done; 8 of the 32 steps of those that go on were
        cost = 1 + 1 / 3
        assert tuning[0][1].work == pytest.approx(cost * (sum(steps[1:4]) - 2 * 8))
    assert all(f"round {number} of {'' if number == 4 else 'at most '}4" in tuning[number - 1][2] for number in (1, 4))


@pytest.mark.parametrize("blind", [2.0, 0.5])
def test_losses_are_printed_beside_their_floors_and_what_was_not_learned_before_them(
    tmp_path, monkeypatch, capsys, blind
):
    def serve(current) -> list[Outcome]:
        floors = {"bayes": {"loss": 0.125}, "position_blind": {"loss": blind}}
        return [
            Outcome(cfg, f"{cfg.optimizer.lr}", tmp_path / f"{cfg.steps}", None, {"loss": 1.0}, floors)
            for cfg in current.cfgs
        ]

    by_step = {step: {"loss": 1.0} for step in (1, 2, 4, 8)}
    monkeypatch.setattr("pe_lab.experiment.tuning.validation_by_step", lambda _: by_step)
    task = ("data=digits", "steps=8", "solve.first=1", "solve.per_doubling=1")
    drive_stage(tune_cells(cells(tmp_path, "pe=rope,none", task=task)), serve)
    printed = capsys.readouterr().out
    (head,) = [line for line in printed.splitlines() if "floor: bayes" in line]
    (line,) = [line for line in printed.splitlines() if line.split()[:1] == ["rope"]]
    assert "floor: position-blind" in head
    assert {f"{blind}", "0.125"} <= set(line.split())
    assert ("has learned the task" in printed.splitlines()[0]) == (blind < 1)


def test_an_encoding_with_a_starting_scale_has_as_many_tries_of_both(tmp_path):
    scaled = "tune.scaled=[[1e-3,0.14],[3e-3,0.14],[3e-3,1.0]]"
    seeds = tuned_seeds(cells(tmp_path, "pe=rope,sinusoidal", scaled))
    tries = {seed.cfg.pe.name: seed.plan.tries[seed.cfg.pe.name] for seed in seeds}
    assert [tuple(each) for each in tries["sinusoidal"]] == [(1e-3, 0.14), (3e-3, 0.14), (3e-3, 1.0)]
    assert [tuple(each) for each in tries["rope"]] == [(1e-3, None), (3e-3, None), (1e-2, None)]
    need = seeds[1].next()
    assert seeds[1].cell(need).pe.size == 0.14


def test_the_steps_of_evaluation_are_those_of_the_training_and_its_last():
    assert evaluation_steps(32, 2, 1) == (2, 4, 8, 16, 32)
    assert evaluation_steps(40, 2, 1) == (2, 4, 8, 16, 32, 40)
    assert evaluation_steps(3840, 60, 2) == (60, 85, 120, 170, 240, 339, 480, 679, 960, 1358, 1920, 2715, 3840)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["tune.rates=[1e-3]"], ["tune.rates", "[0.001]"]),
        (["tune.rates=[3e-3,1e-3]"], ["tune.rates", "ascending"]),
        (["optimizer.lr=1e-3"], ["optimizer.lr", "tune.rates"]),
        (["tune.scaled=[[1e-3,0.1]]"], ["tune.scaled", "3", "1"]),
        (["tune.scaled=[[1e-3]]"], ["tune.scaled"]),
        (["tune.fraction=1.5"], ["tune.fraction", "(0, 1]"]),
        (["tune.steps=0"], ["tune.steps", "0"]),
        (["tune.margin=0.1 nats"], ["tune.margin", "octave"]),
        (["tune.margin=0.1 gap"], ["tune.margin", "octave"]),
        (["steps=null", "epochs=4", "solve.level=null"], ["tune.rates", "steps", "epochs=4"]),
        (["decide.baseline=rope"], ["tune.rates", "decide.baseline"]),
        (["solve.level=1.5"], ["solve.level", "(0, 1)", "1.5"]),
        (["steps=50"], ["steps", "60", "50"]),
        (["optimizer.schedule=cosine"], ["optimizer.schedule", "tune.rates", "cosine"]),
    ],
)
def test_settings_that_make_no_study_are_refused(overrides, named):
    given = {word.split("=")[0]: word for word in ["steps=3840", "solve.level=0.95", LADDER]}
    given |= {word.split("=")[0]: word for word in overrides}
    with pytest.raises(ValueError) as error:  # noqa: PT011
        config.expand_overrides(["pe=rope,none", *given.values()], True)
    assert all(word in str(error.value) for word in named)
    assert "\n" not in str(error.value)


def test_one_cell_alone_does_not_tune():
    with pytest.raises(ValueError, match=r"tune\.rates=.*-m"):
        config.expand_overrides(["steps=3840", LADDER], False)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["pe=drope"], ["tune.rates", "pe=drope"]),
        (["pe=sinusoidal", "pe.size=0.5", "tune.scaled=[[1e-3,0.1],[3e-3,0.1],[1e-2,0.1]]"], ["pe.size", "0.5"]),
        (["pe=rope", "tune.margin='50 octaves'"], ["margin", "50"]),
        (["pe=rope", "tune.steps=5"], ["tune.steps", "[2, 4, 8, 16, 32]", "5"]),
        (["pe=rope,none", "tune.baseline=alibi"], ["tune.baseline", "rope, none", "alibi"]),
        (["pe=rope", "tune.baseline=rope"], ["tune.baseline", "two", "rope"]),
    ],
)
def test_what_makes_no_race_is_refused_before_anything_is_trained(tmp_path, overrides, named):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        run_cells(cells(tmp_path, *overrides))
    assert all(word in str(error.value) for word in named)
    assert not list(Ledger(tmp_path).runs())


@pytest.mark.long
def test_another_grid_on_the_same_ledger_is_another_study(tmp_path):
    """Without a level too: a stored curve with other steps would never be complete."""
    task = (*TASK, "steps=16", "solve.per_doubling=1")
    run_cells(cells(tmp_path, "pe=rope", "solve.first=2", task=task))
    again = cells(tmp_path, "pe=rope", "solve.first=1", task=task)
    for cfg in again:
        cfg.study_name = "finer"
    run_cells(again)
    tries = pd.read_csv(tmp_path / "studies" / "finer" / "tries.csv")
    assert sorted(tries["step"].unique()) == [1, 2, 4, 8, 16]


@pytest.mark.long
def test_no_losses_are_compared_where_steps_are(tmp_path, program, scores):
    scores({3e-3: {2: 0.95, 4: 0.95}, 1e-3: {}, 1e-2: {}})
    run_cells(cells(tmp_path, "pe=rope,none"))
    folder = tmp_path / "studies" / "tuned"
    assert {path.name for path in folder.glob("*.csv")} >= {"rows.csv", "outcomes.csv", "tries.csv"}
    assert not list(folder.glob("table.*"))
    assert program(report, folder)[0] == 0
    titles = re.findall("<h2[^>]*>([^<]*)</h2>", (folder / "report.html").read_text())
    assert "Values" in titles
    assert "During training" not in titles


def test_a_choice_between_two_evaluations_is_refused():
    (cfg,) = config.expand_overrides(["steps=3000", "solve.level=0.9", LADDER, "pe=rope"], True)
    with pytest.raises(ValueError, match=r"steps=3000 x tune\.fraction=0\.25.*got 750.*steps=3840"):
        TunedSeed.from_config(cfg)


def test_the_best_of_all_rates_up_to_the_steps_of_the_choice_and_beyond_the_one_that_was_best_there(
    tmp_path, monkeypatch
):
    """And a baseline is compared with every other encoding in one family over all settings."""
    best = {1: 1e-2, 2: 3e-3, 4: 1e-3, 8: 1e-3}  # rates change places: after 8 steps 1e-3 is ahead, but 3e-3 was at 2
    added = {"rope": 0.0, "none": 0.5, "alibi": 0.001}

    def loss(cfg, step: int) -> float:
        return added[cfg.pe.name] + 0.01 * cfg.seed * len(cfg.pe.name) + (cfg.optimizer.lr != best[step])

    asked: dict[float, set[int]] = {}

    def serve(current) -> list[Outcome]:
        done = []
        for cfg in current.cfgs:
            asked.setdefault(cfg.optimizer.lr, set()).add(cfg.steps)
            curves[path := tmp_path / f"{len(curves)}"] = {
                step: {"loss": loss(cfg, step)} for step in best if step <= cfg.steps
            }
            done.append(Outcome(cfg, path.name, path, test={"loss": loss(cfg, cfg.steps)}))
        return done

    curves: dict = {}
    monkeypatch.setattr("pe_lab.experiment.tuning.validation_by_step", curves.__getitem__)
    settings = ("tune.steps=2", "tune.baseline=rope", "tune.margin='0.01 nats'", "seed=0,1,2", "steps=8,2,1")
    task = ("data=digits", "solve.first=1", "solve.per_doubling=1")
    cfgs = drive_stage(tune_cells(cells(tmp_path, "pe=rope,alibi,none", *settings, task=task)), serve)
    assert {(cfg.steps, cfg.optimizer.lr) for cfg in cfgs} == {(1, 1e-2), (2, 3e-3), (8, 3e-3)}
    assert asked == {1e-3: {1, 2}, 3e-3: {1, 2, 8}, 1e-2: {1, 2}}
    verdicts = pd.read_csv(tmp_path / "studies" / "tuned" / "verdicts.csv")
    assert verdicts[["steps", "pe", "baseline"]].to_numpy().tolist() == [
        [steps, name, "rope"] for steps in (8, 2, 1) for name in ("alibi", "none")
    ]
    smallest = verdicts.loc[verdicts["p"].idxmin()]
    assert smallest["p_corrected"] == pytest.approx(6 * smallest["p"])  # of six comparisons, by Holm
    assert verdicts["difference"].tolist() == pytest.approx([0.001 + 0.01, 0.5] * 3)


@pytest.mark.parametrize("seeds", [1, 3])
def test_settings_in_which_the_baseline_diverged_are_not_compared(seeds):
    """Nothing is lost at the end of a study: one seed decides nothing, and no run of the baseline is no error."""
    lines = [
        {"data": "digits", "depth": depth, "pe": pe, "seed": seed, "y": y + 0.1 * seed}
        for depth, losses in ((1, {"rope": math.nan, "none": 0.5}), (4, {"rope": 0.4, "none": 0.5, "alibi": 0.3}))
        for pe, y in losses.items()
        for seed in range(seeds)
    ]
    verdicts = compare_with_baseline(pd.DataFrame(lines), Endpoint.parse("loss", "0.01 nats"), "rope")
    assert verdicts[["depth", "pe"]].to_numpy().tolist() == [[4, "none"], [4, "alibi"]]
    assert set(verdicts["verdict"]) <= ({"one seed"} if seeds == 1 else {"better", "worse"})
    alone = pd.DataFrame(lines).query("depth == 1")
    assert compare_with_baseline(alone, Endpoint.parse("loss", "0.01 nats"), "rope").empty
