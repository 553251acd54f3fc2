"""Metrics are averages over all answers, however the split is divided into batches."""

import math
from collections import defaultdict
from functools import cache
from typing import Literal

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.configs import pe_settings
from pe_lab.config import Model
from pe_lab.data.base import IGNORE, Batch
from pe_lab.data.flip_flop import FlipFlop
from pe_lab.data.metric import LOWER_IS_BETTER, METRIC_UNITS, Metric
from pe_lab.data.seeding import initialise_parameters
from pe_lab.data.structured import PAD, Structured
from pe_lab.data.text.base import Text
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.model import Transformer
from pe_lab.statistics import cells, lower_is_better, metric_unit
from pe_lab.training import metrics as module
from pe_lab.training.metrics import (
    METRICS,
    answer_logits,
    batch_metrics,
    cross_entropy,
    evaluate,
    metric_directions,
    slot_hits,
    slot_losses,
)

NO_AUTOCAST = torch.autocast("cpu", enabled=False)
# float32: log-softmax of 132 logits below 10, means of up to 5,000 of them
ROUNDING = {"rel": 1e-5, "abs": 1e-6}
ROLES = ("first", "second", "middle", "continuation", "end")


@cache
def dataset() -> Structured:
    return Structured(0)


def some(count: int) -> Batch:
    return dataset().batch("test", torch.randperm(dataset().size("test"))[:count])


def random_logits(batch: Batch) -> Tensor:
    return 3 * torch.randn(*batch.tokens.shape, dataset().task.outputs)


def transformer(dropout: float = 0.0) -> Transformer:
    config = Model(
        depth=1,
        width=16,
        num_heads=2,
        mlp_ratio=2,
        norm="pre",
        dropout=dropout,
        embedding_std=1.0,
        scale_tokens=False,
    )
    model = Transformer(config, PositionalEncoding, dataset().task)
    initialise_parameters(model, seed=0)
    return model


def slowly(logits: Tensor, batch: Batch) -> dict[str, float]:
    """Compute all metrics slot by slot in Python's floats."""
    losses, hits, whole = defaultdict(list), defaultdict(list), []
    rows = (logits.tolist(), batch.targets.tolist(), batch.role.tolist(), batch.headline.tolist())
    for row in zip(*rows, strict=True):
        headline_hits = []
        for scores, target, role, headline in zip(*row, strict=True):
            if target == IGNORE:
                continue
            top = max(scores)
            loss = top + math.log(math.fsum(math.exp(score - top) for score in scores)) - scores[target]
            for name in ("_all", f"_{ROLES[role]}", *([""] if headline else [])):
                losses[f"loss{name}"].append(loss)
                hits[f"accuracy{name}"].append(scores.index(top) == target)
            if headline:
                headline_hits.append(scores.index(top) == target)
        if headline_hits:
            whole.append(all(headline_hits))
    metrics = {name: math.fsum(values) / len(values) for name, values in losses.items()}
    metrics |= {name: sum(hits[name]) / len(hits[name]) for name in ("accuracy", "accuracy_all")}
    return metrics | {"exact_match": sum(whole) / len(whole)}


def test_batch_metrics_are_the_averages_of_a_slow_loop() -> None:
    batch = some(40)
    logits = random_logits(batch)
    # some right answers, so that accuracy is not zero
    right = ((torch.rand(batch.targets.shape) < 0.4) | (torch.rand(40, 1) < 0.2)) & (batch.targets != IGNORE)
    logits[right] += 20 * torch.nn.functional.one_hot(batch.targets[right], dataset().task.outputs)
    expected = slowly(logits, batch)
    assert 0.2 < expected["accuracy"] < 0.7
    assert 0.1 < expected["exact_match"] < 0.4
    assert batch_metrics(logits, batch, ROLES) == pytest.approx(expected, **ROUNDING)


def test_a_loss_in_low_precision_is_taken_in_float32() -> None:
    batch = some(8)
    logits = random_logits(batch).bfloat16()
    assert slot_losses(logits, batch.targets).dtype == torch.float32
    assert batch_metrics(logits, batch, ROLES) == pytest.approx(slowly(logits.float(), batch), **ROUNDING)


def test_slots_where_nothing_is_asked_do_not_count() -> None:
    batch = some(40)
    logits = random_logits(batch)
    before = batch_metrics(logits, batch, ROLES)
    silent = batch.targets == IGNORE
    assert silent.any()
    for value in (1e4, torch.inf, torch.nan):
        changed = logits.clone()
        changed[silent] = value
        changed[..., 0][silent] = -value
        assert batch_metrics(changed, batch, ROLES) == before
    assert torch.equal(slot_losses(logits, batch.targets)[silent], torch.zeros(int(silent.sum())))


def test_a_role_that_a_batch_does_not_have_is_left_out() -> None:
    batch = some(40)
    targets = batch.targets.masked_fill(batch.role == ROLES.index("end"), IGNORE)
    without = Batch(batch.tokens, targets, batch.role, batch.headline, batch.layout)
    metrics = batch_metrics(random_logits(batch), without, ROLES)
    assert metrics.keys() == slowly(random_logits(batch), batch).keys() - {"loss_end"}
    assert not any(math.isnan(value) for value in metrics.values())


ASKED = {  # which slots of [B, S] have an answer
    "some": lambda targets: torch.arange(targets.numel()).view(targets.shape) % 3 == 1,
    "all": lambda targets: torch.ones_like(targets, dtype=torch.bool),
    "one": lambda targets: torch.arange(targets.numel()).view(targets.shape) == 5,
    "none": lambda targets: torch.zeros_like(targets, dtype=torch.bool),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("slots", [7, 1])
def test_logits_of_all_slots_and_of_those_with_an_answer_have_the_same_metrics(asked: str, slots: int) -> None:
    """Answer 0 is a right one too: it is not that of slots where nothing is asked."""
    targets = torch.randint(3, (6, slots))
    is_asked = ASKED[asked](targets)
    targets = targets.where(is_asked, IGNORE)
    logits = torch.randn(6, slots, 3)
    few = logits[is_asked]
    losses, right = slot_losses(logits, targets), slot_hits(logits, targets)
    assert torch.equal(slot_losses(few, targets), losses)
    assert torch.equal(slot_hits(few, targets), right)
    assert torch.equal(right, (logits.argmax(-1) == targets) & is_asked)
    assert losses.shape == right.shape == (6, slots)
    assert not losses[~is_asked].any()
    assert (losses[is_asked] > 0).all()
    if asked != "none":
        expected = -logits.double().log_softmax(-1)[is_asked].gather(-1, targets[is_asked][:, None]).mean()
        for given, aims in ((logits, targets), (few, targets[is_asked])):
            assert cross_entropy(given, aims).item() == pytest.approx(expected.item(), **ROUNDING)


def test_metrics_of_a_batch_are_the_same_for_both_forms_of_logits() -> None:
    batch = some(40)
    logits = random_logits(batch)
    few = logits[batch.targets != IGNORE]
    assert batch_metrics(few, batch, ROLES) == batch_metrics(logits, batch, ROLES)
    assert batch_metrics(few.bfloat16(), batch, ROLES) == batch_metrics(logits.bfloat16(), batch, ROLES)


def test_a_cross_entropy_in_low_precision_is_taken_in_float32() -> None:
    logits, targets = torch.randn(50, 20).bfloat16(), torch.randint(20, (50,))
    assert cross_entropy(logits, targets).dtype == torch.float32
    assert torch.equal(cross_entropy(logits, targets), cross_entropy(logits.float(), targets))


def test_answers_are_those_of_the_slots_that_are_asked() -> None:
    model, batch = transformer(), some(12)
    logits, targets = answer_logits(model, batch)
    expected, has_answer = model(batch.tokens, batch.layout), batch.targets != IGNORE
    assert torch.equal(targets, batch.targets[has_answer])
    assert_close(logits, expected[has_answer], rtol=0, atol=1e-5)  # float32: sums of 16 products of size 1
    loss = cross_entropy(logits, targets)
    assert loss.item() == pytest.approx(slowly(expected, batch)["loss_all"], **ROUNDING)
    weights = list(model.parameters())
    gradients = (torch.autograd.grad(value, weights) for value in (loss, cross_entropy(expected, batch.targets)))
    for got, other in zip(*gradients, strict=True):
        assert_close(got, other, rtol=0, atol=1e-6)


def test_a_batch_without_an_answer_is_evaluated() -> None:
    model, batch = transformer(), some(4)
    targets = torch.full_like(batch.targets, IGNORE)
    silent = Batch(batch.tokens, targets, batch.role, batch.headline, batch.layout)
    logits, asked = answer_logits(model, silent)
    assert logits.shape == (0, dataset().task.outputs)
    assert not slot_losses(logits, targets).any()
    assert not slot_hits(logits, targets).any()
    loss = cross_entropy(logits, asked)
    loss.backward()
    assert loss.isnan()  # as the mean of no numbers is


def test_no_answers_are_counted_on_another_device_than_a_cpu() -> None:
    """A GPU would have to wait for their number: all slots are computed."""
    batch = some(3).to("meta")
    everything = random_logits(batch)
    logits, targets = answer_logits(lambda tokens, layout: everything, batch)
    assert logits is everything
    assert targets is batch.targets


def test_evaluate_is_the_average_over_the_split_of_a_slow_loop() -> None:
    model = transformer()
    batch = dataset().batch("validation", torch.arange(dataset().size("validation")))
    with torch.no_grad():
        logits = model.eval()(batch.tokens, batch.layout)
    metrics = evaluate(model, dataset(), "validation", NO_AUTOCAST)
    assert metrics == pytest.approx(slowly(logits, batch), **ROUNDING)
    assert not any(math.isnan(value) for value in metrics.values())


@pytest.mark.parametrize("chunk", [37, 250, 499])
def test_chunks_do_not_change_the_metrics(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer()
    monkeypatch.setattr(module, "MAX_BATCH_SEQUENCES", 100_000)
    expected = evaluate(model, dataset(), "validation", NO_AUTOCAST)
    monkeypatch.setattr(module, "MAX_BATCH_SEQUENCES", chunk)
    assert evaluate(model, dataset(), "validation", NO_AUTOCAST) == pytest.approx(expected, **ROUNDING)


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_is_without_dropout_and_leaves_the_mode_as_it_was(training: bool) -> None:
    model = transformer(dropout=0.5).train(training)
    expected = evaluate(transformer(), dataset(), "validation", NO_AUTOCAST)
    before = torch.random.get_rng_state()
    assert evaluate(model, dataset(), "validation", NO_AUTOCAST) == expected
    assert {part.training for part in model.modules()} == {training}
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_an_encoding_draws_is_the_same_at_every_evaluation() -> None:
    encoding = hydra.utils.instantiate(pe_settings("randomized_learnable"))
    config = Model(1, 16, 2, 2, "pre", 0.0, 1.0, False)
    model = Transformer(config, encoding, dataset().task)
    initialise_parameters(model, seed=0)
    first, other = (evaluate(model, dataset(), split, NO_AUTOCAST) for split in ("validation", "test"))
    torch.manual_seed(9)
    before = torch.random.get_rng_state()
    assert evaluate(model, dataset(), "validation", NO_AUTOCAST) == first != other
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_batch_of_an_evaluation_has_a_seed_of_its_own_to_draw_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, answers = [], Transformer.answers

    def noting(self: Transformer, tokens: Tensor, layout: Layout, slot: Tensor) -> Tensor:
        seeds.append(layout.seed)
        return answers(self, tokens, layout, slot)

    monkeypatch.setattr(Transformer, "answers", noting)
    model = transformer()
    for split in ("validation", "test", "validation"):
        evaluate(model, dataset(), split, NO_AUTOCAST)
    validation, test = (
        math.ceil(dataset().size(split) / module.MAX_BATCH_SEQUENCES) for split in ("validation", "test")
    )
    assert len(seeds) == 2 * validation + test
    assert seeds[:validation] == seeds[validation + test :]
    assert len({*seeds}) == validation + test > 2
    assert None not in seeds


def test_padding_does_not_reach_the_metrics() -> None:
    model = transformer()
    before = evaluate(model, dataset(), "validation", NO_AUTOCAST)
    with torch.no_grad():
        model.tokens.weight[PAD] += 100 * torch.randn(16)
    assert evaluate(model, dataset(), "validation", NO_AUTOCAST) == before


class WithWorst(Structured):
    """A user's dataset with a metric of its own."""

    own_metrics = (Metric("worst_loss", "min", "nats"),)

    def metrics(self, losses: Tensor, batch: Batch) -> dict[str, float]:
        return {"worst_loss": losses.max().item()}


def test_a_dataset_adds_metrics_by_declaring_them() -> None:
    data = WithWorst(0)
    metrics = evaluate(transformer(), data, "test", NO_AUTOCAST)
    assert metrics["worst_loss"] > metrics["loss"]
    assert {name: value for name, value in metrics.items() if name != "worst_loss"} == evaluate(
        transformer(), dataset(), "test", NO_AUTOCAST
    )
    assert metric_directions(data) == metric_directions(dataset()) | {"worst_loss": "min"}


def test_a_metric_that_is_not_declared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WithWorst, "own_metrics", ())
    with pytest.raises(ValueError, match="own_metrics of WithWorst must declare each of its metrics, got worst_loss"):
        evaluate(transformer(), WithWorst(0), "test", NO_AUTOCAST)


def test_every_metric_is_declared_once() -> None:
    names = [metric.name for metric in (*METRICS, *Text.own_metrics)]
    assert len(names) == len(set(names))
    metrics = evaluate(transformer(), dataset(), "test", NO_AUTOCAST)
    assert {name for name in metrics if name.removesuffix("_all") in names} >= {*metric_directions(dataset())}
    assert all(any(name == one or name.startswith(f"{one}_") for one in names) for name in metrics)


OWN = FlipFlop(0, published_tests=True).own_metrics


@pytest.mark.parametrize("metric", [*METRICS, *OWN, *Text.own_metrics], ids=lambda metric: metric.name)
def test_verdicts_know_which_value_of_a_metric_is_the_best_and_its_unit(metric: Metric) -> None:
    assert lower_is_better(metric.name) == (metric.better == "min")
    assert lower_is_better(f"{metric.name}_all") == (metric.better == "min")
    assert metric_unit(metric.name) == metric_unit(f"{metric.name}_all") == metric.unit


@pytest.mark.parametrize(("name", "better"), [("wer", "min"), ("loss_saved", "max")])
def test_a_metric_whose_name_would_turn_its_verdicts_around_is_refused(
    name: str, better: Literal["min", "max"]
) -> None:
    with pytest.raises(ValueError, match=rf"got {name} with better={better}$"):
        Metric(name, better, "share")
    assert LOWER_IS_BETTER == cells.LOWER_IS_BETTER


@pytest.mark.parametrize(("name", "unit"), [("worst_loss", "bits"), ("bits_per_byte", "nats"), ("loss", "")])
def test_a_metric_whose_name_says_another_unit_is_refused(name: str, unit: str) -> None:
    with pytest.raises(ValueError, match=rf"got {unit} of {name}$"):
        Metric(name, "min", unit)
    assert METRIC_UNITS == cells.METRIC_UNITS
