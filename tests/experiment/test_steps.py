"""Trainings counted in steps: evaluated on a grid, stopped when the task is solved, on sequences drawn anew."""

import copy
import math

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from helpers.configs import TINY_MODEL, in_ledger
from pe_lab import config
from pe_lab.data.induction import Induction
from pe_lab.data.mqar import MQAR
from pe_lab.data.pattern import Pattern
from pe_lab.data.sequence import Copy
from pe_lab.experiment import executor
from pe_lab.experiment.cell import grid_of_steps
from pe_lab.experiment.job import Job
from pe_lab.experiment.sweep import run_cells
from pe_lab.results.frame import load

TINY = [*TINY_MODEL, "trainer.device=cpu", "logger=none"]
TASK = ["data=induction", "data.train=320", "data.validation=50", "data.test=50", "trainer.batch_size=32"]  # 10 steps


def cell(ledger, *overrides: str) -> Job:
    (cfg,) = in_ledger(ledger, *TINY, *TASK, *overrides, multirun=False)
    return Job.from_config(cfg)


def serve(ledger, *overrides: str) -> Job:
    job = cell(ledger, *overrides)
    job.request()
    job.complete(wait=True)
    assert job.is_trained
    return job


def weights(job: Job) -> dict[str, torch.Tensor]:
    return load_file(job.run.checkpoint(job.cell.target) / "weights.safetensors")


def curve(job: Job, metric: str) -> dict[int, float]:
    """Validation by step."""
    rows = pd.read_csv(job.run.checkpoint(job.cell.target) / "metrics.csv")
    rows = rows[rows["split"].eq("validation") & rows["metric"].eq(metric)]
    return dict(zip(rows["step"], rows["value"], strict=True))


def test_as_many_steps_as_two_epochs_have_are_the_same_training(tmp_path):
    steps, epochs = serve(tmp_path, "steps=20"), serve(tmp_path, "epochs=2")
    assert steps.run.name != epochs.run.name
    assert {name: w.tolist() for name, w in weights(steps).items()} == {
        n: w.tolist() for n, w in weights(epochs).items()
    }
    assert steps.run.summary(20)["test"] == epochs.run.summary(2)["test"]


def test_a_checkpoint_within_an_epoch_is_reached_from_another_with_the_same_bits(tmp_path):
    serve(tmp_path / "after", "steps=7", "trainer.fresh=true")
    after = serve(tmp_path / "after", "steps=23", "trainer.fresh=true")
    alone = serve(tmp_path / "alone", "steps=23", "trainer.fresh=true")
    assert after.run.checkpoints() == [7, 23]
    assert {name: w.tolist() for name, w in weights(after).items()} == {
        n: w.tolist() for n, w in weights(alone).items()
    }


def test_it_is_evaluated_at_first_times_powers_of_two_to_the_1_over_per_doubling(tmp_path):
    job = serve(tmp_path, "steps=50", "solve.first=5", "solve.per_doubling=2")
    wanted = {round(5 * 2 ** (k / 2)) for k in range(7)}  # 5, 7, 10, 14, 20, 28, 40
    assert set(curve(job, "loss")) == wanted | {50}
    assert [step for step in range(51) if step in grid_of_steps(step, 5, 2)] == sorted(wanted)


@pytest.mark.parametrize(("first", "per_doubling"), [(1, 1), (1, 3), (3, 5), (60, 2), (7, 11)])
def test_a_step_is_on_the_grid_if_a_power_rounds_to_it(first, per_doubling):
    powers = {round(first * 2 ** (k / per_doubling)) for k in range(40 * per_doubling)}
    assert [step for step in range(3000) if step in grid_of_steps(step, first, per_doubling)] == [
        s for s in range(3000) if s in powers
    ]


def scores(monkeypatch, *values: float) -> None:
    """Let the evaluations on the grid find these scores, one after the other, then the last."""
    left = list(values)
    monkeypatch.setattr(executor, "score", lambda *_: left.pop(0) if len(left) > 1 else left[0])


GRID = ("solve.first=2", "solve.per_doubling=1", "solve.level=0.9")  # 2, 4, 8, 16, 32


@pytest.mark.parametrize(
    ("found", "end"),
    [((0.95, 0.92, 0.1), 4), ((0.95, 0.5, 0.95, 0.99, 0.1), 16), ((0.5, 0.95, 0.89), 30), ((0.1, 0.9, 0.9), 8)],
)
def test_it_stops_at_the_second_evaluation_in_a_row_at_the_level(tmp_path, monkeypatch, found, end):
    scores(monkeypatch, *found)
    job = serve(tmp_path, "steps=30", *GRID)
    summary = job.run.summary(30)
    assert summary["steps"] == end
    assert summary["solved"] == (end if end < 30 else None)
    plain = serve(tmp_path / "plain", f"steps={end}")
    assert {name: w.tolist() for name, w in weights(job).items()} == {n: w.tolist() for n, w in weights(plain).items()}


def test_what_is_solved_is_not_trained_on_for_a_later_checkpoint(tmp_path, monkeypatch, no_training):
    scores(monkeypatch, 0.95)
    first = serve(tmp_path, "steps=10", *GRID)
    assert first.run.summary(10)["solved"] == 4
    spent = first.run.cost()["steps"]
    no_training()
    later = serve(tmp_path, "steps=30", *GRID)
    assert (later.run.name, later.run.summary(30)["solved"]) == (first.run.name, 4)
    assert later.run.cost()["steps"] == spent


def test_the_score_is_the_share_of_the_way_from_the_floor_without_position_to_bayes(tmp_path):
    job = serve(tmp_path, "steps=4", "solve.first=2", "solve.level=0.999")
    floors = job.cell.make_dataset().floors("validation")
    blind, best = floors["position_blind"]["loss"], floors["bayes"]["loss"]
    for step, loss in curve(job, "loss").items():
        assert curve(job, "score")[step] == pytest.approx((blind - loss) / (blind - best), rel=1e-12)


def test_the_level_and_the_steps_of_evaluation_are_part_of_the_identity(tmp_path):
    plain, grid = cell(tmp_path, "steps=90"), cell(tmp_path, "steps=90", "solve.first=3")
    level, other = cell(tmp_path, "steps=90", "solve.level=0.9"), cell(tmp_path, "steps=90", "solve.level=0.8")
    later = cell(tmp_path, "steps=95", "solve.level=0.9")
    names = [job.run.name for job in (plain, grid, level, other, later)]
    assert names[2] == names[4]
    assert len(set(names)) == 4
    assert cell(tmp_path, "epochs=2").run.name != cell(tmp_path, "epochs=2", "trainer.fresh=true").run.name


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["epochs=2", "steps=30"], ["epochs=2", "steps=30"]),
        (["epochs=null"], ["epochs", "steps"]),
        (["solve.level=0.9"], ["solve.level", "steps"]),
        (["steps=60", "solve.level=0.9"], ["steps", "solve.first", "60"]),
        (["steps=90", "solve.level=1"], ["solve.level", "(0, 1)", "1"]),
        (["steps=90", "solve.level=0"], ["solve.level", "(0, 1)", "0"]),
        (["steps=0"], ["steps", "0"]),
    ],
)
def test_a_length_that_is_given_twice_or_not_at_all_is_refused(overrides, named):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        config.expand_overrides(overrides, False)
    assert all(word in str(error.value) for word in named)
    assert "\n" not in str(error.value)


def test_a_level_needs_a_task_with_exact_floors(tmp_path, no_training):
    (cfg,) = in_ledger(tmp_path, *TINY, "data=digits", "pe=none", "steps=90", "solve.level=0.9", multirun=False)
    job = Job.from_config(cfg)
    job.request()
    no_training()
    with pytest.raises(ValueError, match=r"solve\.level.*data=digits"):
        job.complete(wait=True)


def test_steps_replace_the_epochs_of_a_preset():
    (cfg,) = config.expand_overrides(["model=pattern_3x128", "data=pattern", "steps=70"], False)
    assert (cfg.epochs, cfg.steps) == (None, 70)


# -- sequences drawn anew ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [Induction, Copy, MQAR])
def test_every_epoch_has_other_training_sequences_and_the_same_tests(made):
    data = made(seed=3, train=200, validation=100, test=100)
    whole = {epoch: data.with_epoch(epoch).whole("train").tokens for epoch in range(3)}
    assert torch.equal(whole[0], data.whole("train").tokens)
    assert torch.equal(whole[2], made(seed=3, train=200, validation=100, test=100).with_epoch(2).whole("train").tokens)
    drawn = [{tuple(row) for row in tokens.tolist()} for tokens in whole.values()]
    assert all(len(a & b) < 10 for a, b in ((drawn[0], drawn[1]), (drawn[0], drawn[2]), (drawn[1], drawn[2])))
    for split in ("validation", "test"):
        held_out = data.with_epoch(2).whole(split).tokens
        assert torch.equal(held_out, data.whole(split).tokens)
        assert not any(tuple(row) in epoch for row in held_out.tolist() for epoch in drawn)


def test_a_training_reads_the_sequences_of_its_epoch(tmp_path):
    job = cell(tmp_path, "epochs=3", "trainer.fresh=true")
    data = job.cell.data_module()
    loader = data.train_dataloader()
    for epoch in range(3):
        loader.order.set_epoch(epoch)
        read = sorted(tuple(row) for batch in loader for row in batch.tokens.tolist())
        expected = copy.copy(data.dataset).with_epoch(epoch).whole("train").tokens.tolist()
        assert read == sorted(map(tuple, expected))


def test_a_fixed_set_cannot_be_drawn_anew(tmp_path):
    with pytest.raises(ValueError, match=r"trainer\.fresh=true.*data=pattern"):
        Pattern(0).with_epoch(1)
    (cfg,) = in_ledger(tmp_path, *TINY, "data=pattern", "trainer.fresh=true", multirun=False)
    with pytest.raises(ValueError, match=r"trainer\.fresh=true.*data=pattern"):
        Job.from_config(cfg)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tables_have_the_steps_and_the_part_of_an_epoch_that_they_are(tmp_path):
    overrides = [*TINY, *TASK, "pe=rope,none", "steps=5,25", "study_name=short", "evaluate.lengths=[1,2]"]
    run_cells(in_ledger(tmp_path, *overrides))
    for results in (load(tmp_path, "short"), load(tmp_path), load(tmp_path / "studies" / "short")):
        found = results.cells.sort_values(["pe", "steps"])
        assert found[["pe", "steps", "epochs"]].to_numpy().tolist() == [
            ["none", 5, 0.5], ["none", 25, 2.5], ["rope", 5, 0.5], ["rope", 25, 2.5],
        ]  # fmt: skip
        assert not results.refused
        assert set(results.curves["epoch"]) >= {2.5}
        assert results.records.query("length == 2")["steps"].value_counts().to_dict().keys() == {5, 25}


def test_the_evaluation_at_the_end_counts(tmp_path, monkeypatch):
    """20 steps are not on the grid 2, 4, 8, 16, 32."""
    scores(monkeypatch, 0.1, 0.1, 0.1, 0.95)
    job = serve(tmp_path, "steps=20", *GRID)
    assert (job.run.summary(20)["steps"], job.run.summary(20)["solved"]) == (20, 20)


def test_a_sweep_over_epochs_and_steps_is_refused():
    with pytest.raises(ValueError, match="counted in epochs or in steps"):
        config.expand_overrides(["pe=none,alibi", "steps=null,8"], True)


def test_a_ledger_with_both_kinds_is_read(tmp_path):
    serve(tmp_path, "steps=5")
    serve(tmp_path, "epochs=1")
    cells = load(tmp_path).cells.sort_values("epochs")
    assert cells["epochs"].tolist() == [0.5, 1.0]
    assert cells["steps"].tolist()[0] == 5
    assert math.isnan(cells["steps"].tolist()[1])
