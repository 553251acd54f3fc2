"""Learning rates by step, parameter groups, and Adam against its definition."""

import math
import re
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from helpers.configs import compose_config, pe_settings
from pe_lab import config
from pe_lab.attention import sdpa
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.data.structured import Structured
from pe_lab.encodings.families.rotary import LRoPE, RoPE
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer
from pe_lab.system.files import digest
from pe_lab.training.optimization import Optimization

EPS = torch.finfo(torch.float32).eps


def settings(name: str = "adam", **changes: object) -> DictConfig:
    optimizer_settings = {
        "_target_": {"adam": "torch.optim.Adam", "adamw": "torch.optim.AdamW"}[name],
        "name": name,
        "lr": 1e-3,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.0,
        "schedule": "constant",
        "warmup_steps": 0,
    }
    return OmegaConf.create(optimizer_settings | changes)


def transformer(pe: str, *overrides: str, depth: int = 3) -> Transformer:
    config = Model(
        depth=depth, width=16, num_heads=2, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    encoding = hydra.utils.instantiate(pe_settings(pe, *overrides))
    model = Transformer(config, encoding, Task(vocabulary=11, length=8, outputs=11, causal=True))
    initialise_parameters(model, seed=0)
    return model


def given_to(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> tuple[float, float]:
    """Return (lr, weight_decay) of the only group that has the parameter."""
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
    # the last step of the training still changes parameters, the one after it would not
    assert optimization.factor(109) == pytest.approx((1 - math.cos(0.01 * math.pi)) / 2)
    assert optimization.factor(110) == pytest.approx(0.0, abs=1e-15)
    assert optimization.factor(1000) == pytest.approx(0.0, abs=1e-15)
    falling = [optimization.factor(step) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        ("cosine", (10, 60, 110, 500), (1.0, 0.6, 0.2, 0.2)),
        ("linear", (10, 60, 110, 500), (1.0, 0.6, 0.2, 0.2)),
        ("wsd", (10, 60, 85, 97.5, 110, 500), (1.0, 1.0, 1.0, 0.6, 0.2, 0.2)),
    ],
)
def test_a_schedule_ends_at_min_lr(schedule: str, steps: tuple, expected: tuple) -> None:
    """wsd is whole until the last quarter of the 100 steps after the warm-up, then falls along a line."""
    optimizer_settings = settings(schedule=schedule, warmup_steps=10, min_lr=2e-4, decay_fraction=0.25)
    optimization = Optimization(optimizer_settings, total_steps=110)
    assert [optimization.factor(step) for step in steps] == pytest.approx(expected)
    assert optimization.factor(4) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("warmup_steps", [0, 5, 6, 100])
def test_a_factor_is_between_zero_and_one_however_short_the_training(warmup_steps: int, schedule: str) -> None:
    optimization = Optimization(settings(schedule=schedule, warmup_steps=warmup_steps), total_steps=5)
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
    schedule = optimization.schedule(optimizer)
    for step in range(20):
        factor = optimization.factor(step)
        for parameter in model.parameters():
            is_frequency = any(parameter is p for p in model.encodings.parameters())
            assert given_to(optimizer, parameter)[0] == pytest.approx((0.02 if is_frequency else 1e-3) * factor)
        optimizer.step()
        schedule.step()


def by_definition(
    name: str, parameter: Tensor, gradients: list[Tensor], rates: list[float], given: DictConfig, decay: float
) -> Tensor:
    """Compute Adam (arXiv:1412.6980, alg. 1; L2 decay) or AdamW (arXiv:1711.05101, alg. 2) in float64."""
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
    optimizer_settings = settings(
        name=name, weight_decay=decay, schedule="cosine", warmup_steps=2, betas=[0.8, 0.98], eps=1e-3
    )
    optimization = Optimization(optimizer_settings, total_steps=6)
    optimizer = optimization.optimizer(model)
    schedule = optimization.schedule(optimizer)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    gradients = {key: [] for key in before}
    for step in range(4):
        for key, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients[key].append(parameter.grad.clone())
        optimizer.step()
        schedule.step()
        if step not in (0, 3):
            continue
        for key, parameter in model.named_parameters():
            frequency = key.endswith("beta")
            rates = [(0.02 if frequency else optimizer_settings.lr) * optimization.factor(t) for t in range(step + 1)]
            expected = by_definition(
                name, before[key], gradients[key], rates, optimizer_settings, 0.0 if frequency else decay
            )
            # each step rounds the parameter a few times, and an update of size ~1 some ten times
            error = (parameter.detach().double() - expected).abs()
            allowed = (step + 1) * EPS * (2 * expected.abs() + 16 * max(rates))
            assert (error <= allowed).all(), (key, step, (error / allowed).max())
            assert ((expected - before[key].double()).abs() > 100 * allowed).double().mean() > 0.5, key


MUON = {"_target_": "torch.optim.Muon", "momentum": 0.9, "nesterov": False, "ns_steps": 4, "adjust_lr_fn": "original"}


def of_muon(**changes: object) -> DictConfig:
    optimizer_settings = {key: value for key, value in settings().items() if key not in ("betas", "eps")}
    return OmegaConf.create(
        optimizer_settings | MUON | {"name": "muon", "adamw_betas": [0.8, 0.98], "adamw_eps": 1e-3} | changes
    )


@pytest.mark.parametrize("adamw_lr", [None, 0.004])
def test_muon_takes_the_matrices_of_layers_and_adamw_the_rest(adamw_lr: float | None) -> None:
    """Each as torch has it, given its parameters alone; frequencies keep their own rate, and are not decayed."""
    model = transformer("lrope", "pe.lr=0.02")
    optimizer_settings = of_muon(adamw_lr=adamw_lr, weight_decay=0.1, lr=0.01)
    optimizer = Optimization(optimizer_settings, total_steps=10).optimizer(model)
    other = transformer("lrope", "pe.lr=0.02")
    named = dict(other.named_parameters())
    matrices = {name for name in named if name.startswith("layers.") and named[name].dim() == 2}
    assert {name.partition(".")[2].partition(".")[2] for name in matrices} == {
        *("attention.qkv.weight", "attention.out.weight", "mlp.0.weight", "mlp.2.weight")
    }
    beta = [name for name in named if name.endswith("beta")]
    rest = [name for name in named if name not in {*matrices, *beta}]
    muon = torch.optim.Muon(
        [named[name] for name in matrices],
        lr=0.01,
        weight_decay=0.1,
        momentum=0.9,
        nesterov=False,
        ns_steps=4,
        adjust_lr_fn="original",
    )
    groups = [
        {"params": [named[name] for name in rest], "lr": adamw_lr or 0.01, "weight_decay": 0.1},
        {"params": [named[name] for name in beta], "lr": 0.02, "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(0.8, 0.98), eps=1e-3, fused=True)
    for _ in range(3):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            named[name].grad = parameter.grad.clone()
        for one in (optimizer, muon, adamw):
            one.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, named[name]), name


def test_muon_is_refused_where_pytorch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"^optimizer=muon needs .* 2\.9.*\Z"):
        Optimization(of_muon(), total_steps=10)


def test_muon_has_no_setting_of_adam() -> None:
    with pytest.raises(ValueError, match=r"^optimizer\.betas"):
        Optimization(of_muon(betas=[0.9, 0.999]), total_steps=10)


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer.min_lr=1e-4",),
        ("optimizer.schedule=cosine", "optimizer.min_lr=2e-3"),
        ("optimizer.schedule=cosine", "optimizer.min_lr=-1"),
        ("optimizer.schedule=linear", "optimizer.decay_fraction=0.1"),
        ("optimizer.schedule=wsd", "optimizer.decay_fraction=0"),
    ],
)
def test_settings_of_a_schedule_that_do_not_fit_are_refused(overrides: tuple[str, ...]) -> None:
    setting = overrides[min(1, len(overrides) - 1)].partition("=")[0]
    with pytest.raises(ValueError, match=rf"^{re.escape(setting)}.*\Z"):
        config.expand_overrides(list(overrides), multirun=False)


# hashes of pe=rope on a CPU from before optimizers had a _target_, at revision 1 of model, attention, encoding and data
IDENTITIES = {
    (): "7dffa2b6e2462b87",
    ("optimizer=adamw",): "4bfd5fd899ec9ff0",
    ("optimizer.betas=[0,0.99]",): "a88deec0ee300495",
    ("optimizer.schedule=cosine", "epochs=3", "optimizer.warmup_steps=5"): "b56a3773d6400d0b",
    ("model=bert_small", "data=pattern", "trainer.batch_size=8", "epochs=4"): "9e2dcad27deb7930",
}


def identity(*overrides: str) -> dict[str, object]:
    return Cell.from_config(compose_config("pe=rope", "trainer.device=cpu", *overrides)).identity


@pytest.mark.parametrize("overrides", IDENTITIES)
def test_a_class_that_a_name_stands_for_leaves_the_hash(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transformer, "revision", 1)
    monkeypatch.setattr(sdpa, "revision", 1)
    for made in (RoPE, Structured):
        monkeypatch.setattr(made, "revision", 1)
    assert digest(identity(*overrides)) == IDENTITIES[overrides]


MINE = ("optimizer=sgd", "optimizer.name=mine", "~optimizer.momentum")


def test_another_class_of_torch_is_known_by_its_path_and_a_users_by_its_source_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_optimizer.py").write_text("import torch\n\nclass Slow(torch.optim.SGD):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    torchs = identity(*MINE, "optimizer._target_=torch.optim.RMSprop")["optimizer"]
    assert (torchs["class"], "source" in torchs) == ("torch.optim.rmsprop.RMSprop", False)
    users = identity(*MINE, "optimizer._target_=my_optimizer.Slow")["optimizer"]
    assert users["class"] == "my_optimizer.Slow"
    assert re.fullmatch(r"[0-9a-f]{16}", users["source"])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["optimizer.name=adamw"], "optimizer._target_ must be torch.optim.AdamW for optimizer=adamw"),
        (["optimizer=sgd", "optimizer.momentum=banana"], "optimizer.momentum must be at least 0, got 'banana'"),
        (
            [*MINE, "optimizer._target_=torch.optim.RMSprop", "+optimizer.slow=1"],
            "warmup_steps, weight_decay: got optimizer.slow=1",
        ),
        (
            [*MINE, "optimizer._target_=builtins.dict"],
            "must be a class derived from torch.optim.Optimizer, got builtins",
        ),
        (
            [*MINE, "optimizer._target_=torch.optim.SparseAdam", "optimizer.weight_decay=0.1"],
            "optimizer.weight_decay must be 0 for SparseAdam, which has none, got 0.1",
        ),
        (["optimizer.warmup_steps=1.5"], "optimizer.warmup_steps must be an integer of at least 0, got 1.5"),
    ],
)
def test_settings_that_a_class_does_not_take_are_refused_in_one_line(overrides: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        identity(*overrides)
    assert "\n" not in str(caught.value)


def test_an_optimizer_without_groups_is_refused_where_an_encoding_has_its_own_rate() -> None:
    model = transformer("lrope", "pe.lr=0.02")
    optimizer_settings = settings(_target_="torch.optim.LBFGS")
    optimizer_settings.name = "lbfgs"
    del optimizer_settings.betas, optimizer_settings.eps
    with pytest.raises(ValueError, match="optimizer=lbfgs must take a learning rate and a weight decay for each group"):
        Optimization(optimizer_settings, 10).optimizer(model)
    assert len(Optimization(optimizer_settings, 10).optimizer(transformer("lrope", "pe.lr=null")).param_groups) == 1
