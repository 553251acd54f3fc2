"""The transformer equals its definition, and its non-positional parts are the same for all encodings."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import hydra
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.configs import FEW, NAMES, compose_config, pe_class, pe_settings, slow_but_for
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.model import Transformer

ENOUGH = 4  # layers for every encoding
VOCABULARY, WIDTH, HEADS, T = 13, 20, 4, 9
LENGTHS = (9, 5, 1)
Mix = Callable[[Tensor], tuple[Tensor, Tensor]]
# sums of some 1e2 products of size 10 in float64, through two layers
EQUAL = {"rtol": 0, "atol": 1e-11}


def small(**changes: object) -> Model:
    model_settings = {
        "depth": 2,
        "width": WIDTH,
        "num_heads": HEADS,
        "mlp_ratio": 3,
        "norm": "pre",
        "dropout": 0.0,
        "embedding_std": 1.0,
        "scale_tokens": False,
    }
    return Model(**model_settings | changes)


def transformer(
    config: Model, pe: str = "none", *overrides: str, seed: int = 0, implementation: str = "auto"
) -> Transformer:
    encoding = hydra.utils.instantiate(pe_settings(pe, *overrides))
    return initialised(Transformer(config, encoding, task(grid(pe)), implementation), seed)


def task(grid_width: int | None = None, vocabulary: int = VOCABULARY) -> Task:
    return Task(vocabulary, T, vocabulary, causal=True, grid_width=grid_width, marks=MAX_MARK)


def grid(pe: str) -> int | None:
    return 3 if pe_class(pe).on_grid else None


def initialised(model: Transformer, seed: int = 0) -> Transformer:
    initialise_parameters(model, seed)
    return model


def padded(causal: bool = True, grid_width: int | None = None) -> Layout:
    return marked_layout(Layout.of_lengths(torch.tensor(LENGTHS), T, causal, grid_width))


def random_tokens() -> Tensor:
    return torch.randint(VOCABULARY, (len(LENGTHS), T))


def elsewhere(model: Transformer) -> Transformer:
    """Return the model in float64, without weights at special values such as 0 or 1."""
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def as_given(h: Tensor) -> tuple[Tensor, Tensor]:
    return h, h


def by_definition(
    weights: dict[str, Tensor], config: Model, tokens: Tensor, layout: Layout, mix: Mix = as_given
) -> Tensor:
    """Compute logits head by head and sequence by sequence, with no hook of the encoding but `mix`."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def layer_norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def attention(h: Tensor, name: str) -> Tensor:
        h_qk, h_v = mix(h)
        q, k, v = (linear(part, f"{name}.qkv").split(config.width, -1)[n] for n, part in enumerate((h_qk, h_qk, h_v)))
        d = config.width // config.num_heads
        heads = []
        for first in range(0, config.width, d):
            dims = slice(first, first + d)
            logits = q[:, dims] @ k[:, dims].T / d**0.5
            if layout.causal:
                logits = logits + torch.full_like(logits, -torch.inf).triu(1)
            heads.append(F.softmax(logits, -1) @ v[:, dims])
        return linear(torch.cat(heads, -1), f"{name}.out")

    def mlp(h: Tensor, name: str) -> Tensor:
        inner = linear(h, f"{name}.0")
        return linear(inner * 0.5 * (1 + torch.erf(inner / 2**0.5)), f"{name}.2")

    rows = []
    for row, length in zip(tokens, (layout.segment != PADDING).sum(1).tolist(), strict=True):
        x = weights["tokens.weight"][row[:length]]
        if config.scale_tokens:
            x = x * config.width**0.5
        for index in range(config.depth):
            layer = f"layers.{index}"
            if config.norm == "pre":
                x = x + attention(layer_norm(x, f"{layer}.norm_attention"), f"{layer}.attention")
                x = x + mlp(layer_norm(x, f"{layer}.norm_mlp"), f"{layer}.mlp")
            else:
                x = layer_norm(x + attention(x, f"{layer}.attention"), f"{layer}.norm_attention")
                x = layer_norm(x + mlp(x, f"{layer}.mlp"), f"{layer}.norm_mlp")
        if config.norm == "pre":
            x = layer_norm(x, "norm")
        rows.append(linear(x, "head"))
    return torch.cat(rows)


def assert_is_definition(model: Transformer, config: Model, layout: Layout, mix: Mix = as_given) -> None:
    """Compare logits of tokens that are not padding, and gradients of every parameter."""
    tokens = random_tokens()
    is_token = layout.segment != PADDING
    weights = dict(model.named_parameters())
    got = model(tokens, layout)[is_token]
    expected = by_definition(weights, config, tokens, layout, mix)
    assert_close(got, expected, **EQUAL)
    upstream = torch.randn_like(got)
    gradients = (torch.autograd.grad(values, list(weights.values()), upstream) for values in (got, expected))
    for name, here, there in zip(weights, *gradients, strict=True):
        assert there.abs().max() > 1e-6 or name.endswith("qkv.bias"), name
        assert_close(here, there, **EQUAL, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("implementation", ["reference", "auto"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale_tokens", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_forward_pass_is_its_definition(norm: str, scale_tokens: bool, causal: bool, implementation: str) -> None:
    config = small(norm=norm, scale_tokens=scale_tokens)
    model = elsewhere(transformer(config, implementation=implementation))
    assert_is_definition(model, config, padded(causal))


class Mixed(PositionalEncoding):
    """Has one input for queries and keys and another for values."""

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        return for_queries_and_keys(h), for_values(h)


class Shifted(PositionalEncoding):
    """Has one input for queries, keys and values that differs from the residual stream."""

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        h = for_values(h)
        return h, h


def for_queries_and_keys(h: Tensor) -> Tensor:
    return 0.5 * h + torch.arange(h.shape[-2], dtype=h.dtype)[:, None].cos()


def for_values(h: Tensor) -> Tensor:
    return h.flip(-1) - torch.arange(h.shape[-2], dtype=h.dtype)[:, None].sin()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("encoding", "mix"),
    [
        (Mixed, lambda h: (for_queries_and_keys(h), for_values(h))),
        (Shifted, lambda h: (for_values(h), for_values(h))),
    ],
)
def test_mix_feeds_queries_and_keys_apart_from_values(encoding: type, mix: Mix, norm: str) -> None:
    config = small(norm=norm)
    model = elsewhere(initialised(Transformer(config, encoding, task())))
    assert_is_definition(model, config, padded(), mix)


def test_scaled_tokens_are_multiplied_by_the_root_of_the_width_before_position_is_added() -> None:
    tokens, layout = random_tokens(), padded()
    scaled = transformer(small(scale_tokens=True), "sinusoidal")
    by_hand = transformer(small(), "sinusoidal")
    with torch.no_grad():
        by_hand.tokens.weight *= WIDTH**0.5
    assert torch.equal(scaled(tokens, layout), by_hand(tokens, layout))
    assert not torch.equal(scaled(tokens, layout), transformer(small(), "sinusoidal")(tokens, layout))


@pytest.mark.parametrize("std", [1.0, 0.02, 3.0])
def test_token_embeddings_start_normal_with_the_given_deviation(std: float) -> None:
    count = 1000 * WIDTH
    model = initialised(Transformer(small(embedding_std=std), PositionalEncoding, task(vocabulary=1000)))
    values = model.tokens.weight.detach().double() / std
    # five standard errors of the mean and of the deviation
    assert abs(values.mean()) < 5 / count**0.5
    assert abs(values.std() - 1) < 5 / (2 * count) ** 0.5
    assert 3.5 < values.abs().max() < 6


@pytest.mark.covering
@pytest.mark.parametrize(
    ("pe", "share", "positional"),
    [
        ("none", None, lambda depth, d: 0),
        ("learnable", None, lambda depth, d: 512 * WIDTH),
        ("lrope", "none", lambda depth, d: depth * HEADS * d // 2),
        ("lrope", "heads", lambda depth, d: depth * d // 2),
        ("lrope", "layers", lambda depth, d: HEADS * d // 2),
        ("lrope", "all", lambda depth, d: d // 2),
    ],
)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_number_of_parameters_is_the_closed_formula(
    pe: str, share: str | None, positional: Callable[[int, int], int], norm: str, depth: int
) -> None:
    config = small(width=24, depth=depth, norm=norm) if pe == "lrope" else small(depth=depth, norm=norm)
    model = transformer(config, pe, *([f"pe.share={share}"] if share else []))
    D, V, M = config.width, VOCABULARY, config.mlp_ratio * config.width
    layer = (3 * D * D + 3 * D) + (D * D + D) + (D * M + M) + (M * D + D) + 2 * 2 * D
    rest = V * D + depth * layer + (2 * D if norm == "pre" else 0) + (D * V + V)
    encoding_parameters = positional(depth, D // HEADS)
    assert sum(parameter.numel() for parameter in model.parameters()) == rest + encoding_parameters
    assert model.positional_parameters() == encoding_parameters


def not_positional(model: Transformer) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_parameters() if not name.startswith("encodings.")}


@cache
def weights_without_encoding() -> dict[str, Tensor]:
    return not_positional(transformer(compose_config().model, "none", seed=5))


@pytest.mark.parametrize("name", NAMES)
def test_models_that_differ_in_the_encoding_share_every_other_weight(name: str) -> None:
    weights, plain = not_positional(transformer(compose_config().model, name, seed=5)), weights_without_encoding()
    assert weights.keys() == plain.keys()
    assert [key for key in plain if not torch.equal(weights[key], plain[key])] == []


def test_different_seeds_draw_different_weights() -> None:
    first, second = (not_positional(transformer(small(), seed=seed)) for seed in (0, 1))
    drawn = {name for name in first if "norm" not in name}
    assert {name for name in drawn if (first[name] == second[name]).any()} == set()


def test_no_two_modules_draw_the_same_weights() -> None:
    weights = [value for name, value in not_positional(transformer(small())).items() if "norm" not in name]
    assert len({value.flatten()[0].item() for value in weights}) == len(weights)


@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_parameter_is_drawn_by_initialise(name: str, norm: str) -> None:
    config = small(width=32, norm=norm, depth=ENOUGH)
    fresh, spoiled = transformer(config, name, seed=2), transformer(config, name, seed=2)
    with torch.no_grad():
        for parameter in spoiled.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(99)
    initialise_parameters(spoiled, seed=2)
    for (key, expected), value in zip(fresh.named_parameters(), spoiled.parameters(), strict=True):
        assert torch.equal(value, expected), key


def test_initialise_leaves_the_global_generator_alone() -> None:
    model = transformer(small(), "learnable")
    before = torch.random.get_rng_state()
    initialise_parameters(model, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_initialise_refuses_parameters_that_nothing_draws() -> None:
    class Forgotten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

    with pytest.raises(ValueError, match=r"^Forgotten has parameters.*reset_parameters"):
        initialise_parameters(nn.Sequential(nn.Linear(2, 2), Forgotten()), seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_without_dropout_nothing_is_random(name: str) -> None:
    if name.startswith("randomized") or name in ("shape", "abacus", "coupled"):
        pytest.skip(f"{name} draws positions or shifts")
    model = transformer(small(width=32, depth=ENOUGH), name).train()
    tokens, layout = random_tokens(), padded(grid_width=grid(name))
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        outputs.append(model(tokens, layout))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_depends_on_the_seed_before_the_step_alone(norm: str) -> None:
    config = small(dropout=0.25, norm=norm)
    model, copy = transformer(config).train(), transformer(config).train()
    tokens, layout = random_tokens(), padded()

    def step(which: Transformer, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return which(tokens, layout)

    first = step(model, 3)
    assert not torch.equal(step(model, 4), first)
    torch.rand(17)
    assert torch.equal(step(model, 3), first)
    assert torch.equal(step(copy, 3), first)


def test_dropout_is_off_in_evaluation() -> None:
    tokens, layout = random_tokens(), padded()
    with_dropout, without = (transformer(small(dropout=dropout)).eval() for dropout in (0.25, 0.0))
    assert torch.equal(with_dropout(tokens, layout), without(tokens, layout))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_acts_on_the_embedding_and_on_both_branches_of_every_layer(norm: str) -> None:
    """With everything dropped the residual stream is zero, and the head receives the norms of zero."""
    model = transformer(small(norm=norm)).train()
    dropped = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    calls = []
    for module in dropped:
        module.register_forward_hook(lambda module, args, out: calls.append(module) or torch.zeros_like(out))
    logits = model(random_tokens(), padded())
    assert len(calls) == 1 + 2 * 2
    assert torch.equal(logits, model.head.bias.expand_as(logits))


@pytest.mark.parametrize("name", FEW)
def test_flops_grow_linearly_with_depth(name: str) -> None:
    flops = [transformer(small(width=32, depth=depth), name).flops_per_token(T) for depth in (1, 2, 3)]
    steps = [after - before for before, after in pairwise(flops)]
    assert steps[0] > 0
    assert steps == pytest.approx([steps[0]] * 2, rel=1e-12)


@pytest.mark.parametrize("name", slow_but_for())
def test_flops_of_long_sequences_follow_from_those_of_short_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(small(width=32, depth=ENOUGH), name)
    few, length = (256, 320) if name == "path" else (8, T)  # it takes some 32 keys at once: work grows by such steps
    counted = model.flops_per_token(length)
    monkeypatch.setattr("pe_lab.model.transformer.MAX_COUNTED_LENGTH", few)
    assert length > few
    assert model.flops_per_token(length) == counted


@pytest.mark.parametrize("length", [T, 33])
def test_flops_are_two_per_weight_and_those_of_attention(length: int) -> None:
    config = small()
    model = transformer(config, implementation="sdpa")
    D, M = config.width, config.mlp_ratio * config.width
    weights = config.depth * (3 * D * D + D * D + 2 * D * M) + D * VOCABULARY
    # queries times keys, weights times values: the reference computes all pairs
    attention = config.depth * 2 * length * D
    assert model.flops_per_token(length) == pytest.approx(2 * weights + 2 * attention, rel=1e-12)
    assert model.implementation == "sdpa"


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^width must be divisible by num_heads") as caught:
        transformer(small(width=22, num_heads=4))
    assert str(caught.value).endswith("got width=22, num_heads=4")


@pytest.mark.parametrize("name", NAMES)
def test_the_encoding_is_made_once_or_once_per_layer_with_the_sizes_of_the_model(name: str) -> None:
    requests = []
    made = hydra.utils.instantiate(pe_settings(name))

    def encoding(sizes: Sizes) -> PositionalEncoding:
        requests.append(sizes)
        return made(sizes)

    model = Transformer(small(width=32, depth=ENOUGH), encoding, task(grid(name)))
    expected = Sizes(
        width=32, num_heads=HEADS, length=T, causal=True, grid_width=grid(name), depth=ENOUGH, marks=MAX_MARK
    )
    assert requests == [replace(expected, layer=layer) for layer in range(len(model.encodings))]
    assert len(model.encodings) == (ENOUGH if model.encodings[0].per_layer else 1)


# -- one question per sequence, and the models of the sources -----------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_a_pooled_model_answers_from_the_mean_over_the_tokens_that_count(causal: bool) -> None:
    pooled = Task(VOCABULARY, T, outputs=5, causal=causal, pooled=True)
    model = elsewhere(initialised(Transformer(small(), PositionalEncoding, pooled)))
    tokens, layout = random_tokens(), padded(causal)
    states = []
    model.norm.register_forward_hook(lambda module, given, out: states.append(out))
    logits = model(tokens, layout)
    assert logits.shape == (len(LENGTHS), 1, 5)
    for row, (length, state) in enumerate(zip(LENGTHS, states[0], strict=True)):
        mean = sum(state[slot] for slot in range(length)) / length
        assert_close(logits[row, 0], model.head.weight @ mean + model.head.bias, **EQUAL)


def test_padding_does_not_reach_a_pooled_answer() -> None:
    model = elsewhere(initialised(Transformer(small(), PositionalEncoding, Task(VOCABULARY, T, 5, False, pooled=True))))
    tokens, layout = random_tokens(), padded(causal=False)
    before = model(tokens, layout)
    changed = tokens.where(layout.segment != PADDING, (tokens + 1) % VOCABULARY)
    assert not torch.equal(changed, tokens)
    assert_close(model(changed, layout), before, **EQUAL)


def test_without_positions_a_pooled_bidirectional_model_is_blind_to_order() -> None:
    pooled = Task(VOCABULARY, T, 5, causal=False, pooled=True)
    tokens = random_tokens()[:1]
    layout = Layout.of_lengths(torch.tensor([T]), T, causal=False)
    shuffled = tokens[:, torch.randperm(T)]
    assert not torch.equal(shuffled, tokens)
    for pe, blind in (("none", True), ("sinusoidal", False), ("alibi", False), ("rope", False)):
        encoding = hydra.utils.instantiate(pe_settings(pe))
        model = elsewhere(initialised(Transformer(small(width=16), encoding, pooled)))
        same = torch.allclose(model(shuffled, layout), model(tokens, layout), rtol=0, atol=1e-11)
        assert same == blind, pe


@pytest.mark.parametrize(
    ("pe", "parameters"),
    [
        ("none", 598_019),
        ("sinusoidal", 598_019),
        ("learnable", 663_555),
        ("relative_bias", 600_075),
        ("continuous", 631_299),
    ],
)
def test_pattern_3x128_has_the_parameters_of_its_source(pe: str, parameters: int) -> None:
    cfg = compose_config("model=pattern_3x128", f"pe={pe}")
    pattern = Task(vocabulary=20, length=32, outputs=3, causal=False, pooled=True)
    model = Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), pattern)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_presets_are_the_models_and_trainings_of_their_sources() -> None:
    cfg = compose_config("model=pattern_3x128")
    assert (cfg.model.depth, cfg.model.width, cfg.model.num_heads, cfg.model.dropout) == (3, 128, 8, 0.1)
    assert (cfg.model.embedding_std, cfg.optimizer.name, cfg.optimizer.lr) == (0.02, "adamw", 1e-3)
    assert (cfg.trainer.batch_size, cfg.trainer.clip, cfg.epochs) == (32, 1.0, 20)
    cfg = compose_config("model=bert_small")
    assert (cfg.model.depth, cfg.model.width, cfg.model.num_heads) == (6, 384, 6)
    assert (cfg.optimizer.name, cfg.optimizer.lr, cfg.optimizer.schedule) == ("adamw", 1e-4, "cosine")
    assert cfg.trainer.batch_size == 8


def test_what_is_given_on_the_command_line_wins_over_a_preset() -> None:
    cfg = compose_config("model=pattern_3x128", "epochs=3", "optimizer=adam", "model.depth=1", "trainer.clip=null")
    assert (cfg.epochs, cfg.optimizer.name, cfg.model.depth, cfg.trainer.clip) == (3, "adam", 1, None)
    assert cfg.model.width == 128


# -- the answers that are asked, without padding ------------------------------------------------------------------

SEGMENTS = torch.tensor(  # whole, padded on the right and on the left, packed, one token
    [
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, -1, -1, -1, -1],
        [-1, -1, -1, -1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, -1, -1],
        [-1, 0, 0, 3, 3, 3, 3, 3, -1],
        [0, -1, -1, -1, -1, -1, -1, -1, -1],
    ]
)
ANSWERED = [  # causal, norm, depth, whether pooled, columns of a grid, parametrization
    (True, "pre", 3, False, None, "standard"),
    (False, "post", 2, False, None, "mup"),
    (False, "pre", 1, True, None, "standard"),
    (True, "post", 1, False, 3, "standard"),
]


def in_segments(causal: bool = True, columns: int | None = None) -> Layout:
    """Return the layout of SEGMENTS, in which positions count from 0 in every document."""
    rows = SEGMENTS.tolist()
    pos = torch.tensor([[row[:index].count(row[index]) for index in range(T)] for row in rows])
    if columns is not None:
        pos = torch.stack((pos // columns, pos % columns), -1)
    return marked_layout(Layout(pos, SEGMENTS, causal, seed=5))


def some_slots() -> Tensor:
    asked = (torch.rand(SEGMENTS.shape) < 0.4) & (SEGMENTS != PADDING)
    return asked.flatten().nonzero()[:, 0]


def assert_answers_are_those_of_forward(model: Transformer, tokens: Tensor, layout: Layout, slot: Tensor) -> None:
    """Compare logits, and gradients of all parameters, with random numbers reused."""
    outcomes = []
    for compute in (model.answers, lambda *_: model(tokens, layout).flatten(0, 1)[slot]):
        torch.manual_seed(3)
        logits = compute(tokens, layout, slot)
        torch.manual_seed(4)
        gradients = torch.autograd.grad(
            logits, list(model.parameters()), torch.randn_like(logits), allow_unused=True, materialize_grads=True
        )
        outcomes.append([logits.detach(), *gradients])
    assert outcomes[1][0].abs().max() > 0.1
    for got, expected in zip(*outcomes, strict=True):
        assert_close(got, expected, rtol=0, atol=1e-12 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("name", slow_but_for())
def test_answers_are_the_logits_of_forward(name: str) -> None:
    composition = pe_settings(name)
    made, cls = hydra.utils.instantiate(composition), hydra.utils.get_class(composition._target_)
    for as_causal, norm, depth, pooled, columns, parametrization in ANSWERED:
        causal = as_causal or cls.causal_only
        columns = 3 if cls.on_grid else columns
        depth = ENOUGH if name in ("rnope_swa", "interleave") else depth
        config = small(width=32, norm=norm, depth=depth, parametrization=parametrization)
        task = Task(VOCABULARY, T, VOCABULARY, causal, pooled, columns, MAX_MARK)
        model = elsewhere(initialised(Transformer(config, made, task)))
        model.encodings.constrain()
        slot = torch.tensor([0, 2, 3, 5]) if pooled else some_slots()
        tokens = torch.randint(VOCABULARY, SEGMENTS.shape)
        assert_answers_are_those_of_forward(model, tokens, in_segments(causal, columns), slot)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("encoding", [Mixed, Shifted])
def test_answers_of_mixed_inputs_are_the_logits_of_forward(encoding: type, norm: str) -> None:
    model = elsewhere(initialised(Transformer(small(norm=norm), encoding, task())))
    tokens = torch.randint(VOCABULARY, SEGMENTS.shape)
    assert_answers_are_those_of_forward(model, tokens, in_segments(), some_slots())


@pytest.mark.parametrize("slots", ["all", "none", "first", "last", "one_sequence"])
def test_any_slots_can_be_asked(slots: str) -> None:
    layout, tokens = in_segments(), torch.randint(VOCABULARY, SEGMENTS.shape)
    is_token = (SEGMENTS != PADDING).flatten().nonzero()[:, 0]
    if slots == "one_sequence":
        layout, tokens, is_token = Layout(layout.pos[4:5], SEGMENTS[4:5], True), tokens[4:5], torch.arange(1, 8)
    slot = {"none": is_token[:0], "first": is_token[:1], "last": is_token[-1:]}.get(slots, is_token)
    model = elsewhere(transformer(small(), "cope"))
    if slots != "none":
        assert_answers_are_those_of_forward(model, tokens, layout, slot)
        return
    logits = model.answers(tokens, layout, slot)
    assert logits.shape == (0, VOCABULARY)
    logits.sum().backward()
    assert not any(parameter.grad is None or parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("pooled", [True, False])
def test_a_batch_of_padding_alone_has_the_answers_of_forward(pooled: bool) -> None:
    model = elsewhere(initialised(Transformer(small(), PositionalEncoding, Task(VOCABULARY, T, 5, True, pooled))))
    layout = Layout.of_lengths(torch.zeros(len(LENGTHS), dtype=torch.long), T, causal=True)
    slot = torch.arange(len(LENGTHS) if pooled else 0)
    expected = model(random_tokens(), layout)[:, 0] if pooled else torch.zeros(0, 5, dtype=torch.float64)
    assert torch.equal(model.answers(random_tokens(), layout, slot), expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_where_all_slots_are_asked_dropout_is_that_of_forward(norm: str) -> None:
    config = small(norm=norm, dropout=0.3, attention_dropout=0.3)
    model = elsewhere(transformer(config, "forgetting")).train()
    layout = Layout.whole(len(LENGTHS), T, causal=True)
    assert_answers_are_those_of_forward(model, random_tokens(), layout, torch.arange(len(LENGTHS) * T))


def test_dropout_of_attention_weights_is_that_of_forward_with_padding_too() -> None:
    model = elsewhere(transformer(small(attention_dropout=0.3), "alibi")).train()
    tokens = torch.randint(VOCABULARY, SEGMENTS.shape)
    assert_answers_are_those_of_forward(model, tokens, in_segments(), some_slots())


def test_padding_and_slots_that_are_not_asked_are_not_computed() -> None:
    model = transformer(small(depth=3))
    rows = []
    for part in (model.dropout, *(part for layer in model.layers for part in (layer.attention.qkv, layer.mlp))):
        part.register_forward_hook(lambda module, given, out: rows.append(given[0].shape[:-1].numel()))
    model.answers(random_tokens(), padded(), torch.tensor([2, 10]))
    total = sum(LENGTHS)
    assert rows == [total] * 6 + [2]


def test_answers_in_mixed_precision_have_the_error_of_forward() -> None:
    model = transformer(small(width=32), "forgetting")
    tokens, slot = torch.randint(VOCABULARY, SEGMENTS.shape), some_slots()
    exact, weights = model(tokens, in_segments()).flatten(0, 1)[slot], list(model.parameters())
    truth = [exact, *torch.autograd.grad(exact.square().sum(), weights)]
    errors = []
    for compute in (model.answers, lambda *_: model(tokens, in_segments()).flatten(0, 1)[slot]):
        with torch.autocast("cpu", torch.bfloat16):
            logits = compute(tokens, in_segments(), slot)
        assert logits.dtype == torch.bfloat16
        gradients = [logits, *torch.autograd.grad(logits.float().square().sum(), weights)]
        apart = [(x - y).square().mean() / y.square().mean() for x, y in zip(gradients, truth, strict=True) if y.any()]
        errors.append(torch.stack(apart).sqrt())
    assert (errors[1] > 0).all()
    assert (errors[0] <= 2 * errors[1]).all()


def test_an_answer_that_is_asked_at_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="^answers must be asked at tokens, got padding in slot 15$"):
        transformer(small()).answers(random_tokens(), padded(), torch.tensor([0, 15, 18]))


def test_answers_are_computed_in_inference_mode() -> None:
    model, slot = transformer(small(width=32), "rope"), torch.tensor([0, 4, 10])
    tokens, layout = random_tokens(), padded()
    with torch.inference_mode():
        got = model.answers(tokens, layout, slot)
    assert torch.equal(got, model.answers(tokens, layout, slot))
