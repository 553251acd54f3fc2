"""With mup, activations keep their size as the width grows, also in training; with the standard parametrization not."""

import math
import re
from copy import deepcopy

import hydra
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from helpers.configs import NAMES, compose_config, pe_settings
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.layout import Layout
from pe_lab.experiment.cell import Cell
from pe_lab.model import Transformer
from pe_lab.system.files import digest
from pe_lab.training.optimization import Optimization

DEEP = {"rnope_swa": 4}  # layers that an encoding needs
VOCABULARY, T, B, STEPS = 11, 8, 16, 4


def model(width: int, parametrization: str, pe: str | DictConfig = "rope", **changes: object) -> Transformer:
    chosen = pe_settings(pe) if isinstance(pe, str) else pe
    model_settings = {
        "depth": DEEP.get(chosen.name, 2),
        "num_heads": 4,
        "mlp_ratio": 2,
        "norm": "pre",
        "dropout": 0.0,
        "embedding_std": 1.0,
    }
    model_settings |= {"scale_tokens": False, "parametrization": parametrization}
    config = Model(width=width, **model_settings | changes)
    grid = 3 if hydra.utils.get_class(chosen._target_).on_grid else None
    task = Task(VOCABULARY, T, VOCABULARY, causal=True, grid_width=grid, marks=MAX_MARK)
    made = Transformer(config, hydra.utils.instantiate(chosen), task, "reference")
    initialise_parameters(made, seed=0)
    return made


def adam(name: str = "adam", **changes: object) -> DictConfig:
    return OmegaConf.merge(compose_config(f"optimizer={name}").optimizer, changes)


def sizes(made: Transformer, lr: float = 1e-2) -> dict[str, float]:
    """Return the mean size of activations after some steps of Adam, and of the change of the logits."""
    draw = torch.Generator().manual_seed(3)
    tokens, targets = (torch.randint(VOCABULARY, (B, T), generator=draw) for _ in range(2))
    grid = made.task.grid_width
    layout = marked_layout(Layout.whole(B, T, True, grid))
    results: dict[str, float] = {}

    def record(name: str) -> None:
        made.get_submodule(name).register_forward_hook(
            lambda module, given, out: results.update({name: out.detach().abs().mean().item()})
        )

    for name in ("layers.0.attention", "layers.0.mlp", "layers.1.attention", "layers.1.mlp", "head"):
        record(name)
    optimizer = Optimization(adam(lr=lr), STEPS).optimizer(made)
    start = made(tokens, layout).detach()
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(made(tokens, layout).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        change = (made(tokens, layout) - start).abs().mean().item()
    return results | {"change of logits": change}


def growth(parametrization: str, widths: tuple[int, ...], pe: str) -> list[dict[str, float]]:
    """Return sizes at each width in units of those at the first."""
    first, *others = (sizes(model(width, parametrization, pe)) for width in widths)
    return [{name: other[name] / first[name] for name in first} for other in others]


@pytest.mark.parametrize("pe", ["rope", "learnable"])
def test_activations_grow_with_the_width_in_the_standard_parametrization_only(pe: str) -> None:
    """The coordinate check of the source, over widths 32 to 256."""
    widths = (32, 64, 128, 256)
    for wider in growth("mup", widths, pe):
        assert max(wider.values()) < 1.3, wider
    *_, widest = growth("standard", widths, pe)
    assert min(widest["change of logits"], widest["head"]) > 1.5, widest
    assert max(widest.values()) > 3, widest


@pytest.mark.parametrize("pe", NAMES)
def test_every_encoding_keeps_the_size_of_activations(pe: str) -> None:
    (wider,) = growth("mup", (32, 128), pe)
    assert max(wider.values()) < 1.5, wider
    assert min(wider.values()) > 0.3, wider


@pytest.mark.parametrize("pe", ["rope", "deberta", "forgetting", "learnable"])
def test_at_the_base_width_nothing_differs(pe: str) -> None:
    standard, mup = (model(64, parametrization, pe) for parametrization in ("standard", "mup"))
    assert all(map(torch.equal, standard.state_dict().values(), mup.state_dict().values()))
    assert sizes(standard) == sizes(mup)


@pytest.mark.parametrize(("width", "heads"), [(16, 4), (256, 4), (256, 16)])
def test_initial_weights_are_scaled_where_inputs_grow_with_the_width(width: int, heads: int) -> None:
    standard, mup = (model(width, kind, "forgetting", num_heads=heads) for kind in ("standard", "mup"))
    m = width / 64
    mups = dict(mup.named_parameters())
    for name, parameter in standard.named_parameters():
        factor = 1.0
        if name in ("head.weight", "encodings.0.gate.weight", "encodings.1.gate.weight"):
            factor = m**-0.5
        elif re.search(r"(qkv|out|mlp\.[02]|head|gate)\.bias", name):
            factor = m**0.5
        torch.testing.assert_close(mups[name], parameter * factor, rtol=1e-6, atol=0)


# of each encoding, what is divided by m; all other parameters of encodings have the optimizer's rate
DIVIDED = {
    "transformer_xl": {"project.weight"},
    "deberta": {"project_q.weight", "project_k.weight"},
    "forgetting": {"gate.weight"},
    "mapformer": {"step.weight"},
    "carope": {"weight"},
    "path": {"down", "beta_weight"},
    "selective_rope": {"down"},
    "tupe": {"weight"},
    "grape_m": {"weight"},
    "inkling": {"weight"},
    "wall": {"weight"},
    "tape": {"update.content.weight"},
}
# of each encoding, what has a number or a vector for each dimension, and sums over none
BY_DIMENSION = {
    **{
        pe: {"table"}
        for pe in ("abacus", "coupled", "learnable", "learnable_2d", "learnable_per_layer", "sininit", "deberta")
    },
    "canon": {"weight"},
    "continuous": {"mlp.4.bias"},
    "cope": {"score.table"},
    "cpe": {"weight", "bias"},
    "fourier": {"mlp.2.bias"},
    "randomized_learnable": {"encoding.table"},
    "lerope": {"alpha"},
    "lrope": {"beta"},
    "mapformer": {"omega"},
    "path": {"taps"},
    "pope": {"delta"},
    "rope_mixed": {"frequency"},
    "selective_rope": {"kernel"},
    "shaw": {"keys", "values"},
    "transformer_xl": {"u", "v"},
    "tupe": {"table", "norm_gain", "norm_bias", "bias"},
    "grape_a": {"query", "key"},
    "grape_m": {"beta"},
    "wall": {"bias"},
}


@pytest.mark.parametrize("pe", NAMES)
def test_rates_are_divided_where_inputs_grow_with_the_width(pe: str) -> None:
    made = model(256, "mup", pe)
    factors = made.rate_factors()
    for name, parameter in made.named_parameters():
        inner = re.sub(r"^encodings\.\d+\.", "", name)
        divided = inner in DIVIDED.get(pe, ()) if name.startswith("encodings.") else is_matrix(name)
        assert factors.get(parameter, 1.0) == (0.25 if divided else 1.0), name
    assert not model(256, "standard", pe).rate_factors()


@pytest.mark.parametrize("pe", NAMES)
def test_a_parameter_whose_last_dimension_grows_is_divided_or_has_numbers_by_dimension(pe: str) -> None:
    """A new encoding with a matrix of its own has to say so, in `matrices` of its class."""
    narrow, wide = (dict(model(width, "mup", pe).encodings.named_parameters()) for width in (16, 32))
    for name, parameter in narrow.items():
        if wide[name].shape[-1:] != parameter.shape[-1:]:
            assert name.partition(".")[2] in DIVIDED.get(pe, set()) | BY_DIMENSION.get(pe, set()), name


def test_matrices_of_encodings_have_products_of_the_same_size_at_every_width() -> None:
    """Also those of an option, and those of a part; theirs are drawn with a size that is the same at every width."""
    gated = ["pe=selective_rope", "pe.gate=true"]
    combined = ["pe=sum", "pe.parts=[path,{name: tupe, relative: false}]"]
    for overrides, names in (
        (["pe=path"], ("down", "beta_weight")),
        (["pe=tupe"], ("weight",)),
        (gated, ("down", "gate_weight")),
        (combined, ("parts.0.down", "parts.0.beta_weight", "parts.1.weight")),
    ):
        pe = compose_config(*overrides).pe
        standard, mup = (model(128, kind, pe) for kind in ("standard", "mup"))
        actual = dict(mup.encodings.named_parameters())
        factors = {name: mup.rate_factors().get(parameter, 1.0) for name, parameter in actual.items()}
        for name, parameter in standard.encodings.named_parameters():
            scaled = name.partition(".")[2] in names
            assert factors[name] == (0.5 if scaled else 1.0), name
            torch.testing.assert_close(actual[name], parameter * (0.5**0.5 if scaled else 1.0), rtol=1e-6, atol=0)
        assert sum(factor != 1.0 for factor in factors.values()) >= len(names)


def is_matrix(name: str) -> bool:
    return re.fullmatch(r"layers\.\d\.(attention\.(qkv|out)|mlp\.[02])\.weight|head\.weight", name) is not None


def test_a_concatenated_table_is_merged_by_a_hidden_layer_and_stays_an_embedding() -> None:
    cfg = compose_config("pe=learnable", "pe.combine=concat", "model.width=256", "model.parametrization=mup")
    made = Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), Task(VOCABULARY, T, VOCABULARY, causal=True))
    factors = {name: made.rate_factors().get(parameter) for name, parameter in made.encodings.named_parameters()}
    assert factors == {"0.table": None, "0.merge.weight": 0.25, "0.merge.bias": None}


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_groups_have_the_scaled_rate_and_the_decay_of_a_step_stays(name: str) -> None:
    made, decay = model(256, "mup", "learnable"), 0.1 if name == "adamw" else 0.0
    optimization = Optimization(adam(name, lr=0.003, weight_decay=decay, schedule="cosine"), total_steps=10)
    optimizer = optimization.optimizer(made)
    schedule = optimization.schedule(optimizer)
    by_parameter = {p: group for group in optimizer.param_groups for p in group["params"]}
    for step in (0, 5):
        while schedule.last_epoch < step:
            optimizer.step()
            schedule.step()
        for parameter, group in by_parameter.items():
            factor = made.rate_factors().get(parameter, 1.0)
            assert group["lr"] == pytest.approx(0.003 * factor * optimization.factor(step))
            assert group["lr"] * group["weight_decay"] == pytest.approx(0.003 * decay * optimization.factor(step))


def logits(made: Transformer) -> Tensor:
    h = torch.randn(B, T, made.tokens.embedding_dim, generator=torch.Generator().manual_seed(1))
    q, k, _ = made.layers[0].attention.project(h, h)
    return q @ k.mT / q.shape[-1] ** 0.5


@pytest.mark.parametrize(("width", "heads", "base"), [(64, 4, 16), (256, 4, 16), (256, 16, 16), (64, 4, 4)])
def test_logits_are_divided_by_the_head_dimension_relative_to_its_base(width: int, heads: int, base: int) -> None:
    standard = model(width, "standard", num_heads=heads)
    mup = model(width, "mup", num_heads=heads, base_head_dim=base, base_width=width)
    torch.testing.assert_close(logits(mup), logits(standard) * math.sqrt(base / (width / heads)), rtol=1e-5, atol=1e-6)


def test_scaled_tokens_are_those_of_the_base_width() -> None:
    assert [model(w, "mup", scale_tokens=True).token_scale for w in (32, 64, 256)] == [8.0, 8.0, 8.0]
    assert [model(w, "standard", scale_tokens=True).token_scale for w in (64, 256)] == [8.0, 16.0]


def identity(*overrides: str, **changes: int) -> str:
    cfg = deepcopy(compose_config("pe=rope", "trainer.device=cpu", *overrides))
    OmegaConf.set_readonly(cfg, False)
    cfg.model.update(changes)
    return digest(Cell.from_config(cfg).identity)


def test_the_base_is_part_of_an_identity_only_where_it_is_used() -> None:
    assert identity() == identity(base_width=128, base_head_dim=8)  # as a file may state them
    mup = "model.parametrization=mup"
    assert (
        len({identity(), identity(mup), identity(mup, "model.base_width=128"), identity(mup, "model.base_head_dim=8")})
        == 4
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.parametrization=mu"], "model.parametrization must be one of standard, mup, got 'mu'"),
        (["model.base_width=0"], "model.base_width must be an integer of at least 1, got 0"),
        (["model.base_head_dim=0"], "model.base_head_dim must be an integer of at least 1, got 0"),
        (["model.weight_std=0"], "model.weight_std must be a positive number, got 0"),
        (
            ["model.parametrization=mup", "model.weight_std=0.02"],
            "model.weight_std must be null for model.parametrization=mup",
        ),
        (
            ["model.parametrization=mup", "optimizer=sgd"],
            "model.parametrization=mup scales the rates of Adam and AdamW, got optimizer=sgd",
        ),
        (
            ["model.parametrization=mup", "optimizer.weight_decay=0.1"],
            "optimizer.weight_decay must be 0 for adam with model.parametrization=mup, got 0.1",
        ),
    ],
)
def test_what_it_is_not_defined_for_is_refused_in_one_line(overrides: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        identity(*overrides)
    assert "\n" not in str(caught.value)


def test_decoupled_decay_is_accepted() -> None:
    identity("model.parametrization=mup", "optimizer=adamw", "optimizer.weight_decay=0.1")
