"""A run has the same bits, whether it is interrupted, continued or trained at once."""

import json
from functools import cache
from itertools import product

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from helpers.configs import TINY, in_ledger
from helpers.power_cut import PowerCutError
from pe_lab.data.seeding import derive_seed
from pe_lab.encodings.families.bias_learned import KerpleLog
from pe_lab.experiment import executor
from pe_lab.experiment.callbacks import NotFiniteError
from pe_lab.experiment.executor import Executor
from pe_lab.experiment.job import Job
from pe_lab.ledger.run import DIVERGED
from pe_lab.model.blocks import MultiHeadAttention
from pe_lab.training.checkpoints import SafeTensorsIO
from pe_lab.training.module import Training

TIMED = {"tokens_per_second"}  # rows that differ between two runs


def jobs(ledger, *overrides: str) -> list[Job]:
    return [Job.from_config(cfg) for cfg in in_ledger(ledger, *TINY, "logger=none", *overrides)]


def serve(ledger, *overrides: str) -> Job:
    """Bring the cells into the ledger together; the first is returned."""
    made = jobs(ledger, *overrides)
    for job in made:
        job.request()
    for job in made:
        job.complete(wait=True)
    return made[0]


def outcome(job: Job, epochs: int | None = None) -> tuple[bytes, dict, list]:
    """Return all that must be the same: weights, test metrics, metric rows."""
    epochs = epochs or job.cell.target
    checkpoint = job.run.checkpoint(epochs)
    rows = pd.read_csv(checkpoint / "metrics.csv", dtype=str)
    rows = rows[~rows["metric"].isin(TIMED)].to_numpy().tolist()
    return (checkpoint / "weights.safetensors").read_bytes(), job.run.summary(epochs)["test"], rows


def test_a_cell_is_the_same_bits_every_time(tmp_path):
    assert outcome(serve(tmp_path / "a", "epochs=2")) == outcome(serve(tmp_path / "b", "epochs=2"))


@pytest.mark.slow
@pytest.mark.parametrize("pe", ["rope", "lrope", "rse", "randomized_alibi"])
def test_16_epochs_after_4_after_1_are_the_bits_of_16_alone(tmp_path, pe):
    alone = serve(tmp_path / "alone", f"pe={pe}", "epochs=16")
    for epochs in (1, 4, 16):
        after = serve(tmp_path / "after", f"pe={pe}", f"epochs={epochs}")
    assert outcome(after) == outcome(alone)
    assert after.run.checkpoints() == [1, 4, 16]


@pytest.mark.long
def test_checkpoints_requested_together_are_made_in_one_training(tmp_path):
    together = serve(tmp_path / "together", "epochs=5,1,3")
    for epochs, validated in ((1, [1]), (3, [1, 2, 3]), (5, [1, 2, 4, 5])):
        rows = pd.read_csv(together.run.checkpoint(epochs) / "metrics.csv").query("split == 'validation'")
        assert rows.query("metric == 'loss'")["epoch"].tolist() == validated
        assert outcome(together, epochs) == outcome(serve(tmp_path / str(epochs), f"epochs={epochs}"), epochs)
    spent = together.run.cost()
    assert spent["checkpoints"] == 3
    assert spent["steps"] > 0 < spent["evaluation"]
    assert spent["steps"] + spent["evaluation"] < spent["total"]


def test_an_earlier_checkpoint_requested_later_has_the_same_bits_and_leaves_the_newest_state(tmp_path):
    late = serve(tmp_path / "late", "epochs=3")
    newest = late.run.states.newest()
    serve(tmp_path / "late", "epochs=1")
    assert outcome(late, 1) == outcome(serve(tmp_path / "one", "epochs=1"), 1)
    assert late.run.states.newest() == newest


WAY = ("epochs=3", "trainer.save_every=0", "trainer.log_every=4")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The outcome of the whole way, by dropout."""
    ledger = tmp_path_factory.mktemp("whole")
    return cache(lambda dropout: outcome(serve(ledger, *WAY, f"model.dropout={dropout}")))


@pytest.mark.parametrize(
    ("step", "dropout"),
    [
        (9, 0.2),
        *(pytest.param(n, p, marks=pytest.mark.long) for n, p in ((25, 0.2), (9, 0.0))),
        *(
            pytest.param(n, p, marks=pytest.mark.slow)
            for n, p in product([1, 8, 10, 25], [0.0, 0.2])
            if (n, p) != (25, 0.2)
        ),
    ],
)
def test_a_way_broken_off_at_any_step_goes_on_with_the_same_bits(tmp_path, before_steps, unbroken, step, dropout):
    overrides, whole = (*WAY, f"model.dropout={dropout}"), unbroken(dropout)

    def cut(training, _):
        if training.step == step:
            raise PowerCutError

    before_steps(cut)
    with pytest.raises(PowerCutError):
        serve(tmp_path / "broken", *overrides)
    before_steps(None)
    (broken,) = jobs(tmp_path / "broken", *overrides)
    assert broken.run.states.newest()[0] == step
    assert outcome(serve(tmp_path / "broken", *overrides)) == whole


def test_a_finished_cell_is_not_trained_again(tmp_path, monkeypatch):
    serve(tmp_path, "epochs=1")
    monkeypatch.setattr(Executor, "train_requested", lambda self: pytest.fail("trained again"))
    serve(tmp_path, "epochs=1")


def test_a_checkpoint_holds_what_is_needed_to_use_it(tmp_path):
    job = serve(tmp_path, "epochs=2", "pe=lrope")
    checkpoint = job.run.checkpoint(2)
    assert {path.name for path in checkpoint.iterdir()} == {
        *("config.yaml", "metrics.csv", "summary.json", "weights.safetensors", "environment.json", "checksums.json")
    }
    summary = json.loads((checkpoint / "summary.json").read_text())
    assert summary["name"] == "lrope-d1-e2-s0"
    assert summary["attention"] == "sdpa"
    assert summary["steps"] == 18
    assert summary["positional_parameters"] == 2 * 4
    assert set(summary["floors"]) == {"bayes", "position_blind", "position_blind_split_known"}
    environment = json.loads((checkpoint / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["attention"].startswith("attention=auto; not triton: ")
    assert environment["torch"] == torch.__version__.split("+")[0] or environment["torch"] == torch.__version__
    from omegaconf import OmegaConf

    kept = OmegaConf.load(checkpoint / "config.yaml")
    assert kept.epochs == 2
    assert Job.from_config(kept).run.name == job.run.name
    assert (
        sum(tensor.numel() for tensor in load_file(checkpoint / "weights.safetensors").values())
        == summary["parameters"]
    )
    rows = pd.read_csv(checkpoint / "metrics.csv")
    assert set(rows["split"]) == {"train", "validation", "test"}
    assert {"gradient_norm", "tokens_per_second", "loss_second", "accuracy", "objective"} <= set(rows["metric"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["epochs=2"],
        ["epochs=2", "trainer.limit_train_batches=0.5"],
        ["epochs=5", "trainer.overfit_batches=2"],
        ["epochs=2", "trainer.accumulate_grad_batches=2"],
        ["steps=13", "trainer.limit_train_batches=5", "trainer.accumulate_grad_batches=2"],
    ],
)
def test_the_tokens_per_second_of_a_checkpoint_are_of_the_tokens_that_were_read(overrides, tmp_path, before_steps):
    read = []
    before_steps(lambda _, batch: read.append(batch.tokens.numel()))
    job = serve(tmp_path, *overrides)
    summary = job.run.summary(job.cell.target)
    assert summary["tokens_per_second"] * summary["seconds"] == pytest.approx(sum(read))


@pytest.mark.parametrize(("length", "batches"), [("epochs=2", 18), ("steps=7", 13)])  # 9 batches, 5 steps an epoch
def test_a_restored_training_is_at_its_batch_where_gradients_are_accumulated(length, batches, tmp_path):
    job = serve(tmp_path, length, "trainer.accumulate_grad_batches=2")
    _, path = job.run.states.newest()
    training = job.cell.lightning_module()
    training.restore(SafeTensorsIO().load_checkpoint(path))
    assert training.step == batches
    assert training.updates == job.run.summary(job.cell.target)["steps"]


def test_a_checkpoint_says_why_it_was_trained_without_a_graph(tmp_path):
    job = serve(tmp_path, "epochs=1", "trainer.graph=auto", "trainer.device=cpu")
    environment = json.loads((job.run.checkpoint(1) / "environment.json").read_text())
    assert environment["graph"] == "trainer.graph=auto; none: needs a CUDA device, got cpu"


def test_validation_is_at_the_powers_of_two_and_at_the_end(tmp_path):
    job = serve(tmp_path, "epochs=5")
    rows = pd.read_csv(job.run.checkpoint(5) / "metrics.csv")
    assert sorted(rows[rows["split"] == "validation"]["epoch"].unique()) == [1, 2, 4, 5]


@pytest.mark.long
@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_evaluation_of_a_checkpoint_that_is_not_finite_fails_that_checkpoint_alone(tmp_path, monkeypatch, split):
    evaluate, seen = executor.evaluate, []
    third_epoch = {"validation": 3, "test": 1}[split]  # which evaluation on that split it is

    def lost(model, dataset, name, context):
        seen.extend([name] if name == split else [])
        metrics = evaluate(model, dataset, name, context)
        return metrics | ({"loss_all": float("inf")} if name == split and len(seen) == third_epoch else {})

    monkeypatch.setattr(executor, "evaluate", lost)
    job = serve(tmp_path / "both", "epochs=5,3")
    assert job.run.checkpoints() == [5]
    assert job.run.failure(3)["reason"].startswith(f"the {split} loss must be finite, got inf at step ")
    assert job.run.failure(3)["kind"] == DIVERGED
    monkeypatch.setattr(executor, "evaluate", evaluate)
    assert outcome(job) == outcome(serve(tmp_path / "alone", "epochs=5"))


def test_an_evaluation_of_the_last_checkpoint_that_is_not_finite_ends_the_cell(tmp_path, monkeypatch):
    evaluate = executor.evaluate

    def lost(model, dataset, split, context):
        return evaluate(model, dataset, split, context) | ({"loss_all": float("inf")} if split == "test" else {})

    monkeypatch.setattr(executor, "evaluate", lost)
    with pytest.raises(NotFiniteError, match="the test loss must be finite, got inf at step 9"):
        serve(tmp_path, "epochs=1")


def test_an_error_that_may_not_come_again_leaves_later_checkpoints_to_their_cells(tmp_path, before_steps):
    failures = iter([OSError("no space")])

    def fail(training, _):
        if training.step == 13 and (error := next(failures, None)):
            raise error

    before_steps(fail)
    first, second = made = jobs(tmp_path, "epochs=1,2")
    for job in made:
        job.request()
    with pytest.raises(OSError, match="no space"):
        first.complete(wait=True)
    assert (first.run.checkpoints(), second.failure) == ([1], None)
    second.complete(wait=True)
    assert second.run.checkpoints() == [1, 2]


@pytest.mark.long
def test_a_loss_that_is_not_a_number_ends_the_cell_with_its_step(tmp_path, monkeypatch):
    training_step = Training.training_step

    def diverge(self, *arguments):
        loss = training_step(self, *arguments)
        if self.step == 13:
            self.losses[-1] = loss.detach() * float("nan")
        return loss

    monkeypatch.setattr(Training, "training_step", diverge)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # as beside a GPU
    with pytest.raises(NotFiniteError, match="the training loss must be finite, got nan at step 13"):
        serve(tmp_path, "epochs=1,2,4")
    (job,) = jobs(tmp_path, "epochs=4")
    assert job.run.checkpoints() == [1]
    assert job.run.cost()["steps"] > 0
    for epochs in (2, 4):
        assert job.run.failure(epochs)["step"] == 13
        assert job.run.failure(epochs)["kind"] == DIVERGED
        assert job.run.failure(epochs)["core_seconds"] == pytest.approx(3 * job.run.cost()["steps"])
    monkeypatch.setattr(Training, "training_step", training_step)
    serve(tmp_path, "epochs=1,2,4")
    assert job.run.checkpoints() == [1, 2, 4]
    assert outcome(job) == outcome(serve(tmp_path / "other", "epochs=4"))


def test_an_update_that_leaves_no_numbers_is_a_failure_too(tmp_path):
    with pytest.raises(NotFiniteError, match="the validation loss must be finite, got nan at step 1"):
        serve(tmp_path, "epochs=1", "trainer.batch_size=4522", "optimizer.lr=1e30")
    (job,) = jobs(tmp_path, "epochs=1", "trainer.batch_size=4522", "optimizer.lr=1e30")
    assert job.run.checkpoints() == []
    assert job.run.failure(1)["step"] == 1


@pytest.mark.long
def test_a_shorter_and_a_longer_training_start_from_the_newest_state_before_them(tmp_path, before_steps):
    job = serve(tmp_path, "epochs=4")
    steps = []
    before_steps(lambda training, _: steps.append(training.step))
    serve(tmp_path, "epochs=1,5")
    assert steps == [*range(9), *range(36, 45)]
    assert job.run.checkpoints() == [1, 4, 5]
    seconds = [job.run.summary(epochs)["seconds"] for epochs in (1, 5)]
    assert sum(seconds) == pytest.approx(job.run.cost()["steps"])  # each from the start of the run


def test_a_checkpoint_that_is_requested_once_training_is_past_it_costs_what_reaching_it_does(tmp_path, before_steps):
    long, short = jobs(tmp_path, "epochs=3,1")
    before_steps(lambda training, _: training.step == 20 and short.request())
    long.request()
    long.complete(wait=True)
    assert long.run.checkpoints() == [1, 3]
    seconds = [long.run.summary(epochs)["seconds"] for epochs in (1, 3)]
    assert sum(seconds) == pytest.approx(long.run.cost()["steps"])
    assert outcome(short) == outcome(serve(tmp_path / "one", "epochs=1"))


def test_nothing_is_trained_that_no_live_process_requests(tmp_path, monkeypatch):
    (job,) = jobs(tmp_path, "epochs=2")
    job.complete(wait=False)
    assert job.missing
    job.request()
    heartbeats = []
    monkeypatch.setattr("pe_lab.experiment.executor.HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(
        type(job.run), "heartbeat", lambda run, *_: (heartbeats.append(1), len(heartbeats) == 6 and job.withdraw())
    )
    job.complete(wait=False)
    assert job.missing
    assert 0 < job.run.states.newest()[0] < 18
    monkeypatch.undo()
    assert outcome(serve(tmp_path, "epochs=2")) == outcome(serve(tmp_path / "other", "epochs=2"))


def test_heartbeats_have_the_last_validation_loss_or_the_training_loss_before_it(tmp_path, monkeypatch):
    (job,) = jobs(tmp_path, "epochs=2", "trainer.log_every=1")
    job.request()
    seen, beat = [], type(job.run).heartbeat
    monkeypatch.setattr("pe_lab.experiment.executor.HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(type(job.run), "heartbeat", lambda run, *given: (seen.append(given[2:]), beat(run, *given)))
    job.complete(wait=False)
    latest = [given[0] for given in seen if given and given[0]]
    assert list(dict.fromkeys(name for name, _ in latest)) == ["train loss", "validation loss"]
    rows = pd.read_csv(job.run.checkpoint(2) / "metrics.csv")
    validated = rows[(rows["split"] == "validation") & (rows["metric"] == "loss")].set_index("epoch")["value"]
    assert next(value for name, value in latest if name == "validation loss") == pytest.approx(validated[1])


def test_no_file_of_a_ledger_is_a_pickle(tmp_path):
    serve(tmp_path, "epochs=1")
    files = [
        path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name not in ("requested", ".processes")
    ]
    assert {path.suffix for path in files} <= {".json", ".yaml", ".csv", ".safetensors", ""}
    assert not [path for path in files if path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"PK")]


def test_encodings_share_the_order_of_the_data(tmp_path):
    order = {}
    for pe in ("rope", "learnable", "none"):
        (job,) = jobs(tmp_path, f"pe={pe}")
        order[pe] = [batch.tokens for batch in job.cell.data_module().train_dataloader()]
    for other in ("learnable", "none"):
        assert all(torch.equal(a, b) for a, b in zip(order["rope"], order[other], strict=True))


def test_parameters_are_put_back_into_their_range_after_every_step(tmp_path, monkeypatch):
    """Parameters of an encoding within another encoding are put back too."""
    seen = []
    monkeypatch.setattr(KerpleLog, "constrain", lambda self: seen.append(self.p.detach().clone()))
    job = serve(tmp_path, "pe=randomized_alibi", "pe@pe.encoding=kerple_log", "epochs=1")
    weights = load_file(job.run.checkpoint(1) / "weights.safetensors")
    assert torch.equal(seen[-1], weights["encodings.0.encoding.p"])
    assert len({tuple(p.tolist()) for p in seen[-10:]}) == 10  # before the 9 steps, and after each


def test_the_clipped_gradient_is_no_longer_than_asked(tmp_path):
    free, clipped = serve(tmp_path, "epochs=1"), serve(tmp_path, "epochs=1", "trainer.clip=0.05")
    assert outcome(free)[0] != outcome(clipped)[0]


def test_bf16_mixed_trains_close_to_float32(tmp_path):
    full, mixed = serve(tmp_path, "epochs=2"), serve(tmp_path, "epochs=2", "trainer.precision=bf16-mixed")
    difference = full.run.summary(2)["test"]["loss"] - mixed.run.summary(2)["test"]["loss"]
    assert 0 < abs(difference) < 0.05


def dropped(tmp_path, name: str) -> list[torch.Tensor]:
    """Return what two training steps drop: the masks of all nn.Dropout, and the seeds of dropped attention weights."""
    (job,) = jobs(tmp_path, f"pe={name}", "model.depth=2", "model.dropout=0.5", "model.attention_dropout=0.5")
    training, found = job.cell.lightning_module(), []
    for module in training.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_pre_hook(lambda _, given: torch.ones_like(given[0]))
            module.register_forward_hook(lambda _, given, out: found.append(out == 0))
        if isinstance(module, MultiHeadAttention):
            module.register_forward_pre_hook(lambda _, given: found.append(given[5].seed))
    for batch, _ in zip(job.cell.data_module().train_dataloader(), range(2), strict=False):
        training.training_step(batch, 0)
        training.step += 1
    return found


def test_what_is_dropped_is_the_same_at_random_positions(tmp_path):
    """That other encodings draw nothing where dropout draws is tested in tests/encodings/test_contract.py."""
    expected = dropped(tmp_path, "rope")
    for name in ("randomized_rope", "randomized_sinusoidal", "randomized_learnable", "randomized_alibi"):
        found = dropped(tmp_path, name)
        assert len(found) == len(expected) == 2 * (1 + 2 * 3)
        assert all(map(torch.equal, found, expected)), name
    masks = [mask.float().mean().item() for mask in expected if mask.dim()]
    assert masks == pytest.approx([0.5] * len(masks), abs=0.01)  # 131,072 coins: 7 standard deviations
    assert not torch.equal(expected[0], expected[len(expected) // 2])  # another step, another mask


def test_derived_seeds_are_the_same_on_every_machine():
    assert derive_seed(0, "order", 1) == derive_seed(0, "order", "1")
    assert derive_seed(0, "parameters", "layers.0") == 3538556759251141144
