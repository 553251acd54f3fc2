"""A training equals the plain loop that its settings describe: learning rates, dropout and the evaluated split."""

import copy
import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from helpers import fits
from helpers.configs import TINY_MODEL, in_ledger
from pe_lab.attention import attend
from pe_lab.data.base import IGNORE, epoch_order
from pe_lab.experiment.callbacks import Curve, StepTime
from pe_lab.experiment.job import Job
from pe_lab.model import blocks
from pe_lab.training.metrics import answer_logits
from pe_lab.training.module import Training

TINY = [*TINY_MODEL, "trainer.batch_size=1024", "trainer.device=cpu"]
STEPS = 5  # of an epoch: 4,525 sequences, the last batch is smaller


def cell(ledger: Path, *overrides: str) -> Job:
    (cfg,) = in_ledger(ledger, *TINY, "logger=none", *overrides, multirun=False)
    return Job.from_config(cfg)


def built(job: Job) -> Training:
    return job.cell.lightning_module()


def fit(training: Training, epochs: int, *more: L.Callback) -> list[dict[str, Any]]:
    """Train as an executor does, without saving, and return the rows of its curve."""
    clock = StepTime()
    curve = Curve(clock, training.batches_per_epoch)
    fits.fit(training, max_epochs=epochs, callbacks=[clock, curve, *more], log_every_n_steps=training.log_every)
    return curve.rows


class Noted(L.Callback):
    """Collects the parameters after every step."""

    def __init__(self) -> None:
        self.after: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: L.Trainer, training: Training, *_: object) -> None:
        self.after.append({name: p.detach().clone() for name, p in training.model.named_parameters()})


# -- the learning rate of each step ------------------------------------------------------------------------------------

LR, WARMUP, EPOCHS = 0.01, 3, 2


def rate(schedule: str, step: int) -> float:
    """Return the rate: it rises over WARMUP steps, then is constant or falls to 0, as half a cosine or along a line.

    wsd falls along a line in the last fifth of the other steps.
    """
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    part = (step - WARMUP) / (EPOCHS * STEPS - WARMUP)
    falling = {"constant": 1, "cosine": (1 + math.cos(math.pi * part)) / 2, "linear": 1 - part}
    return LR * (falling | {"wsd": min(1, 5 * (1 - part))})[schedule]


def plain_loop(training: Training, schedule: str) -> Iterator[dict[str, Tensor]]:
    """Return the parameters after every step of AdamW in plain PyTorch."""
    model, data = copy.deepcopy(training.model), training.dataset
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1, foreach=False)
    for step in range(EPOCHS * STEPS):
        order = epoch_order(data.size("train"), 0, step // STEPS)
        batch = data.batch("train", order.split(1024)[step % STEPS], step // STEPS)
        logits = model(batch.tokens, batch.layout)
        nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE).backward()
        optimizer.param_groups[0]["lr"] = rate(schedule, step)
        optimizer.step()
        optimizer.zero_grad()
        yield {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "wsd"])
def test_every_step_is_that_of_a_plain_loop_at_the_rate_of_its_schedule(tmp_path: Path, schedule: str) -> None:
    """A step moves parameters by up to its learning rate; rounding moves them far less."""
    options = (f"optimizer.schedule={schedule}", f"optimizer.warmup_steps={WARMUP}", f"optimizer.lr={LR}")
    training = built(
        cell(tmp_path, "pe=learnable", "optimizer=adamw", "optimizer.weight_decay=0.1", f"epochs={EPOCHS}", *options)
    )
    noted = Noted()
    expected = list(plain_loop(training, schedule))
    fit(training, EPOCHS, noted)
    assert len(noted.after) == len(expected) == EPOCHS * STEPS
    for step, (actual, right) in enumerate(zip(noted.after, expected, strict=True)):
        for name, parameter in right.items():
            off = (actual[name] - parameter).abs()
            assert off.median() <= 1e-2 * rate(schedule, step), f"{name} after step {step}"


# -- an optimizer that evaluates a batch several times ---------------------------------------------------------------

LBFGS = ("optimizer=sgd", "optimizer.name=lbfgs", "optimizer._target_=torch.optim.LBFGS", "~optimizer.momentum")
ITERATIONS = 3  # of a step, at most
CLIP = 0.05  # less than most gradients have


def test_a_step_of_lbfgs_is_that_of_a_plain_loop_and_has_one_loss(tmp_path: Path) -> None:
    options = ("optimizer.lr=0.2", f"+optimizer.max_iter={ITERATIONS}", f"trainer.clip={CLIP}")
    training = built(cell(tmp_path, "pe=none", "epochs=1", "trainer.log_every=1", *LBFGS, *options))
    model, data = copy.deepcopy(training.model), training.dataset
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=ITERATIONS)
    evaluated: list[tuple[float, float]] = []  # loss and norm of the gradient

    def evaluate(step: int) -> Tensor:
        batch = data.batch("train", epoch_order(data.size("train"), 0, 0).split(1024)[step], 0)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(*answer_logits(model, batch))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        evaluated.append((loss.item(), norm.item()))
        return loss

    first = []  # the number of each step's first evaluation
    for step in range(STEPS):
        first.append(len(evaluated))
        optimizer.step(partial(evaluate, step))
    assert len(evaluated) > 2 * STEPS
    noted = Noted()
    rows = fit(training, 1, noted)
    logged = [{row["metric"]: row["value"] for row in group} for _, group in groupby(rows, itemgetter("step"))]
    for name, parameter in model.named_parameters():
        assert torch.equal(noted.after[-1][name], parameter), name
    objective = logged[-1]["objective"]
    assert len(logged) == STEPS
    for metrics, number in zip(logged, first, strict=True):
        assert (metrics["loss_all"], metrics["gradient_norm"]) == pytest.approx(evaluated[number], rel=1e-5)
    assert objective == pytest.approx(sum(evaluated[number][0] for number in first) / STEPS, rel=1e-6)


# -- dropout -----------------------------------------------------------------------------------------------------------


def test_no_two_steps_drop_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of activations and attention weights differ in an epoch, and between epochs at the same batch."""
    training = built(cell(tmp_path, "pe=none", "epochs=2", "model.dropout=0.5", "model.attention_dropout=0.5"))
    activations, seeds = [], []

    def spy(*given: object) -> Tensor:
        seeds.append(int(given[-1].seed))
        return attend(*given)

    monkeypatch.setattr(blocks, "attend", spy)
    training.model.dropout.register_forward_hook(lambda module, inputs, out: activations.append(out[:64] == 0))
    fit(training, 2)
    assert len(activations) == len(seeds) == len(set(seeds)) == 2 * STEPS
    for a, b in combinations(activations, 2):
        assert abs((a == b).double().mean() - 0.5) < 5 * 0.5 / a.numel() ** 0.5


# -- the split of a result ---------------------------------------------------------------------------------------------


def losses(model: nn.Module, data: object, split: str) -> dict[str, float]:
    """Return the mean cross-entropy over the headline and over all answers."""
    batch = data.batch(split, torch.arange(data.size(split)))
    with torch.no_grad():
        scores = model.eval()(batch.tokens, batch.layout).log_softmax(-1)
    has_answer = batch.targets != IGNORE
    loss = -scores.gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
    return {"loss": loss[batch.headline & has_answer].mean().item(), "loss_all": loss[has_answer].mean().item()}


def test_validation_is_of_the_validation_split_and_the_test_of_the_test_split(tmp_path: Path) -> None:
    """The last validation and the test equal those of the saved weights, up to means of some 1e4 losses in float32."""
    made = cell(tmp_path, "pe=rope", "epochs=2", "optimizer.lr=0.01")
    made.request()
    made.complete(wait=True)
    checkpoint = made.run.checkpoint(2)
    model = built(made).model
    model.load_state_dict(load_file(checkpoint / "weights.safetensors"))
    rows = pd.read_csv(checkpoint / "metrics.csv")
    results = {split: losses(model, made.cell.dataset, split) for split in ("validation", "test")}
    for split, expected in results.items():
        last = rows[(rows["split"] == split) & (rows["epoch"] == 2)].set_index("metric")["value"]
        for name, value in expected.items():
            assert last[name] == pytest.approx(value, rel=1e-5), (split, name)
            assert results["test"][name] != pytest.approx(results["validation"][name], rel=1e-3)
