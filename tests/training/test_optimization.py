"""Learning rates by step, parameter groups, and Adam against its own definition."""

import math

import hydra
import pytest
import torch
from torch import Tensor, nn

from pe_lab.config import Model, Optimizer, expand
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise
from pe_lab.encodings.rotary import LRoPE
from pe_lab.model.transformer import Transformer
from pe_lab.training.optimization import Optimization

EPS = torch.finfo(torch.float32).eps


def settings(**changes: object) -> Optimizer:
    given = {
        "name": "adam",
        "lr": 1e-3,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.0,
        "schedule": "constant",
        "warmup_steps": 0,
    }
    return Optimizer(**given | changes)


def transformer(pe: str, *overrides: str, depth: int = 3) -> Transformer:
    config = Model(
        depth=depth, width=16, num_heads=2, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    encoding = hydra.utils.instantiate(expand([f"pe={pe}", *overrides], False)[0].pe)
    model = Transformer(config, encoding, Task(vocabulary=11, length=8, outputs=11, causal=True))
    initialise(model, seed=0)
    return model


def given_to(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> tuple[float, float]:
    """(lr, weight_decay) of the one group that has the parameter."""
    (group,) = [g for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
    return group["lr"], group["weight_decay"]


def test_a_constant_rate_is_the_same_at_every_step() -> None:
    optimization = Optimization(settings(), total_steps=100)
    assert {optimization.factor(step) for step in range(200)} == {1.0}


def test_warm_up_rises_linearly_and_is_whole_at_its_last_step() -> None:
    for schedule in ("constant", "cosine"):
        optimization = Optimization(settings(schedule=schedule, warmup_steps=10), total_steps=110)
        factors = [optimization.factor(step) for step in range(11)]
        assert factors == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])
    assert Optimization(settings(warmup_steps=10), total_steps=110).factor(109) == 1.0


def test_cosine_falls_from_one_after_warm_up_to_zero_at_the_end() -> None:
    optimization = Optimization(settings(schedule="cosine", warmup_steps=10), total_steps=110)
    for step, expected in ((10, 1.0), (35, (1 + math.sqrt(0.5)) / 2), (60, 0.5), (85, (1 - math.sqrt(0.5)) / 2)):
        assert optimization.factor(step) == pytest.approx(expected, abs=1e-15)
    # the last step of the training still moves, the one after it would not
    assert optimization.factor(109) == pytest.approx((1 - math.cos(0.01 * math.pi)) / 2)
    assert optimization.factor(110) == pytest.approx(0.0, abs=1e-15)
    assert optimization.factor(1000) == pytest.approx(0.0, abs=1e-15)
    falling = [optimization.factor(step) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("warmup_steps", [0, 5, 6, 100])
def test_a_factor_is_between_zero_and_one_however_short_the_training(warmup_steps: int) -> None:
    optimization = Optimization(settings(schedule="cosine", warmup_steps=warmup_steps), total_steps=5)
    assert all(0 <= optimization.factor(step) <= 1 for step in range(20))


@pytest.mark.parametrize("pe", ["none", "learnable", "lrope"])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_every_parameter_is_in_exactly_one_group(pe: str, name: str) -> None:
    model = transformer(pe)
    optimizer = Optimization(settings(name=name, weight_decay=0.1), 10).optimizer(model)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in model.parameters()}
    assert type(optimizer) is {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]


@pytest.mark.parametrize("share", ["none", "heads", "layers", "all"])
@pytest.mark.parametrize(("asked", "rate"), [("null", 1e-3), ("0.02", 0.02)])
def test_frequencies_are_not_decayed_and_have_their_own_rate_if_asked(share: str, asked: str, rate: float) -> None:
    model = transformer("lrope", f"pe.share={share}", f"pe.lr={asked}")
    optimizer = Optimization(settings(name="adamw", weight_decay=0.1), 10).optimizer(model)
    encodings = [module for module in model.modules() if isinstance(module, LRoPE)]
    frequencies = {id(module.beta) for module in encodings}
    assert len(frequencies) == (3 if share in ("none", "heads") else 1)
    for parameter in model.parameters():
        expected = (rate, 0.0) if id(parameter) in frequencies else (1e-3, 0.1)
        assert given_to(optimizer, parameter) == expected


@pytest.mark.parametrize("pe", ["learnable", "sininit"])
def test_a_table_has_the_rate_and_the_decay_of_all_others(pe: str) -> None:
    model = transformer(pe)
    optimizer = Optimization(settings(name="adamw", lr=0.003, weight_decay=0.1), 10).optimizer(model)
    assert {given_to(optimizer, parameter) for parameter in model.parameters()} == {(0.003, 0.1)}


def test_a_learning_rate_scales_every_group_by_the_same_factor() -> None:
    model = transformer("lrope", "pe.lr=0.02")
    optimization = Optimization(settings(schedule="cosine", warmup_steps=4), total_steps=20)
    optimizer = optimization.optimizer(model)
    # out of order, so that nothing can be carried on from the step before
    for step in (0, 3, 15, 19, 2, 2, 8):
        factor = optimization.factor(step)
        assert optimization.set_learning_rate(optimizer, step) == pytest.approx(1e-3 * factor)
        for parameter in model.parameters():
            is_frequency = any(parameter is p for p in model.encodings.parameters())
            assert given_to(optimizer, parameter)[0] == pytest.approx((0.02 if is_frequency else 1e-3) * factor)


def by_definition(
    name: str, parameter: Tensor, gradients: list[Tensor], rates: list[float], given: Optimizer, decay: float
) -> Tensor:
    """Adam (arXiv:1412.6980, algorithm 1; its decay is L2) and AdamW (arXiv:1711.05101, algorithm 2) in float64."""
    beta1, beta2 = given.betas
    x, m, v = parameter.double(), torch.zeros_like(parameter).double(), torch.zeros_like(parameter).double()
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        g = gradient.double() + (decay * x if name == "adam" else 0.0)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        move = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + given.eps)
        x = x - rate * (move + (decay * x if name == "adamw" else 0.0))
    return x


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_steps_are_those_of_the_definition(name: str, decay: float) -> None:
    model = transformer("lrope", "pe.lr=0.02")
    given = settings(name=name, weight_decay=decay, schedule="cosine", warmup_steps=2, betas=[0.8, 0.98], eps=1e-3)
    optimization = Optimization(given, total_steps=6)
    optimizer = optimization.optimizer(model)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    gradients = {key: [] for key in before}
    for step in range(4):
        optimization.set_learning_rate(optimizer, step)
        for key, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients[key].append(parameter.grad.clone())
        optimizer.step()
        if step not in (0, 3):
            continue
        for key, parameter in model.named_parameters():
            frequency = key.endswith("beta")
            rates = [(0.02 if frequency else given.lr) * optimization.factor(t) for t in range(step + 1)]
            expected = by_definition(name, before[key], gradients[key], rates, given, 0.0 if frequency else decay)
            # each step rounds the parameter a few times, and a move of size ~1 some ten times
            error = (parameter.detach().double() - expected).abs()
            allowed = (step + 1) * EPS * (2 * expected.abs() + 16 * max(rates))
            assert (error <= allowed).all(), (key, step, (error / allowed).max())
            assert ((expected - before[key].double()).abs() > 100 * allowed).double().mean() > 0.5, key
