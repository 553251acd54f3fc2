"""Every type of model that `replace` takes: with its own encoding it computes what it did, with none what it does
without positions, and what it has beside positions stays."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import StaticCache, Trainer, TrainingArguments

from benchmarks.families import OWN, is_number, read
from benchmarks.transformers_models import (
    BIDIRECTIONAL,
    DEPTH,
    HEADS,
    KINDS,
    LENGTH,
    NO_LENGTH,
    VOCABULARY,
    WIDTH,
    logits,
    small,
)
from pe_lab.encodings.families.absolute import sinusoid
from pe_lab.encodings.named import encodings
from pe_lab.hf import EncodingCallback, load, parameter_groups, replace, stacks
from pe_lab.hf.model_families import FAMILIES

CAUSAL = [kind for kind in KINDS if kind not in BIDIRECTIONAL]
CLOSE = {"rtol": 0, "atol": 2e-5}  # of logits between -10 and 10, in float32
MASK = torch.tensor([[1] * 20, [0] * 6 + [1] * 14])  # padding on the left
ROUNDING = {"bloom", "gemma2", "mpt", "modernbert", "deberta-v2"}  # which round rotations, weights or scale to float32
INFINITE = {"bloom", "gemma2", "mpt"}  # whose masks of padding in float64 make NaN, as weights are in float32
ROTATING = [kind for kind in KINDS if kind not in OWN]


def inputs(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if kind == "vit":
        return torch.randn(2, 1, 12, 12, generator=generator)
    return torch.randint(2, VOCABULARY, (2, 20), generator=generator)


def lengths(kind: str) -> dict[str, int]:
    return {"length": LENGTH} if kind in NO_LENGTH else {}


def family_of(model: Any) -> Any:
    return FAMILIES[model.config.model_type.removeprefix("pe_lab_")]


def part_of(model: Any) -> Any:
    return family_of(model).parts(model)[0]


class Exact(nn.Module):
    """Rotations in float64 of float64, by the formula: theta ** (-2c / r) for the pairs of r dimensions."""

    def __init__(self, config: Any, factor: int = 1) -> None:
        super().__init__()
        self.config, self.factor = config, factor

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        rope = self.config.rope_parameters if layer_type is None else self.config.rope_parameters[layer_type]
        head_dim = getattr(self.config, "head_dim", None) or WIDTH // HEADS
        r = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        pairs = torch.arange(0, r, 2, dtype=torch.float64)
        angle = (self.factor * position_ids[..., None].double() * rope["rope_theta"] ** (-pairs / r)).repeat(1, 1, 2)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def test_every_type_in_the_table_is_tested() -> None:
    assert set(KINDS) == set(FAMILIES)


# -- what a model computes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "deberta-v2"])
@torch.no_grad()
def test_with_its_own_encoding_a_model_computes_what_it_did(kind: str, padded: bool) -> None:
    """In float64, with windows, soft caps and norms of queries that have an effect."""
    if padded and kind in ("vit", "bert", "gpt2"):  # these count padding as positions
        return
    model, tokens = small(kind).to(torch.float32 if padded and kind in INFINITE else torch.float64), inputs(kind)
    if kind in ROTATING and model.dtype == torch.float64:
        part_of(model).rotary_emb = Exact(model.config)
    mask, is_token = (MASK, MASK.bool()) if padded else (None, MASK >= 0)
    if kind == "roberta" and padded:
        tokens = tokens.where(is_token, model.config.pad_token_id)  # by which it counts positions
    given = {} if mask is None else {"attention_mask": mask}
    if kind in CAUSAL and padded and kind != "mpt":  # which takes no positions
        given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    if kind in ("t5", "mt5", "bloom"):
        given.pop("position_ids", None)
    expected = logits(model, tokens, **given)
    given.pop("position_ids", None)
    if kind in ROTATING:
        part_of(model).rotary_emb = part_of(small(kind)).rotary_emb
    got = logits(replace(model, OWN.get(kind, "rope"), **lengths(kind)), tokens, **given)
    tolerance = {"rtol": 0, "atol": 1e-5 if kind in ROUNDING else 1e-11}
    if kind == "vit":
        assert_close(got, expected, **tolerance)
    else:
        assert_close(got[is_token], expected[is_token], **tolerance)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("mpt", {"n_heads": 6, "d_model": 48}), ("bloom", {"num_attention_heads": 6, "hidden_size": 48})],
)
@torch.no_grad()
def test_slopes_are_those_of_the_model_for_other_numbers_of_heads_than_powers_of_two(kind: str, changes: Any) -> None:
    model = small(kind, **changes)
    expected = logits(model, inputs(kind))
    assert_close(logits(replace(model, "alibi", length=LENGTH), inputs(kind)), expected, **CLOSE)


def zeroed(model: Any) -> Any:
    """Return a model of transformers whose own positions are of no effect, by its own means."""
    kind, part = model.config.model_type, part_of(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name or "position_embeddings" in name or "wpe" in name:
                weight.zero_()
            if "relative_attention_bias" in name:
                weight.zero_()
    if kind in ROTATING:
        part.rotary_emb = Exact(model.config, 0)
    elif kind == "bloom":
        part.build_alibi_tensor = lambda mask, heads, dtype: torch.zeros(len(mask) * heads, 1, 1, dtype=dtype)
    elif kind == "mpt":
        part.build_mpt_alibi_tensor = lambda heads, *_, **__: torch.zeros(heads, 1, LENGTH, dtype=torch.float32)
    elif kind == "deberta-v2":
        other = small(kind, relative_attention=False, pos_att_type=[], position_biased_input=False).double()
        other.load_state_dict(model.state_dict(), strict=False)
        return other
    return model


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_without_an_encoding_a_model_is_the_original_without_its_positions(kind: str) -> None:
    """All else is there: windows, soft cap, scale, norms, the convolution of DeBERTa, ranges of MPT."""
    given = {"attention_mask": MASK} if kind not in ("vit", "t5", "mt5") else {}
    is_token = MASK.bool() if given else MASK >= 0
    if kind == "bloom":
        given = {"attention_mask": torch.ones_like(MASK)}
        is_token = MASK >= 0
    dtype = torch.float32 if kind in INFINITE else torch.float64
    expected = logits(zeroed(small(kind).to(dtype)), inputs(kind), **given)
    got = logits(replace(small(kind).to(dtype), "none", length=LENGTH), inputs(kind), **given)
    tolerance = {"rtol": 0, "atol": 1e-5 if kind in ROUNDING else 1e-11}
    if kind == "vit":
        assert_close(got, expected, **tolerance)
    else:
        assert_close(got[is_token], expected[is_token], **tolerance)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma2", {"attn_logit_softcapping": 9.0}),
        ("gemma2", {"query_pre_attn_scalar": 5}),
        ("gemma2", {"sliding_window": 3}),
        ("gemma3_text", {"sliding_window": 3}),
        ("gemma3_text", {"query_pre_attn_scalar": 5}),
        ("mistral", {"sliding_window": None}),
        ("modernbert", {"local_attention": 4}),
        ("mpt", {"attn_config": {"clip_qkv": 0.1}}),
        ("phi3", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": False}),
        ("deberta-v2", {"conv_act": "relu"}),
    ],
)
@torch.no_grad()
def test_what_a_model_has_beside_positions_changes_it_with_an_encoding_too(kind: str, changes: dict[str, Any]) -> None:
    models = [replace(small(kind, **each), "alibi") for each in ({}, changes)]
    a, b = (logits(model, inputs(kind)) for model in models)
    assert (a - b).abs().max() > 1e-3


@pytest.mark.parametrize(("kind", "layer", "window"), [("gemma2", 0, 5), ("gemma3_text", 0, 5), ("modernbert", 1, 4)])
@torch.no_grad()
def test_the_soft_cap_and_the_window_hold_for_products_before_a_bias(kind: str, layer: int, window: int) -> None:
    """Against attention written out, of queries, keys and values as a layer has them: cap, then bias, then window."""
    model, seen = replace(small(kind).double(), "alibi"), []
    given = sys.modules["pe_lab.hf.attention"]._attend
    patch = pytest.MonkeyPatch()
    patch.setattr(
        "pe_lab.hf.attention._attend",
        lambda q, k, v, *others: seen.append((q, k, v, given(q, k, v, *others))) or seen[-1][3],
    )
    logits(model, inputs(kind))
    patch.undo()
    q, k, v, got = seen[layer]
    d = q.shape[-1]
    k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
    z = q @ k.mT / d**0.5
    if kind == "gemma2":
        z = 2.0 * torch.tanh(z / 2.0)
    distance = torch.arange(20)[:, None] - torch.arange(20)
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)], dtype=torch.float64)
    z = z - slopes[:, None, None] * distance.abs()
    allowed = distance.abs() < window
    if kind != "modernbert":
        allowed = allowed & (distance >= 0)
    assert_close(got, z.masked_fill(~allowed, -torch.inf).softmax(-1) @ v, rtol=0, atol=1e-12)


@torch.no_grad()
def test_gemma_with_attention_in_both_directions_is_the_original() -> None:
    model = small("gemma3_text", use_bidirectional_attention=True)
    expected = logits(model, inputs("gemma3_text"))
    assert_close(logits(replace(model, "rope"), inputs("gemma3_text")), expected, **CLOSE)


LEARNED = {  # parameters of the model's own positions
    **{key: {"position_embeddings"} for key in ("bert", "roberta", "vit")},
    **{key: {"relative_attention_bias"} for key in ("t5", "mt5")},
    "deberta-v2": {"position_embeddings", "rel_embeddings", "encoder.LayerNorm"},
    "gpt2": {"wpe"},
    "opt": {"embed_positions"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_the_models_own_positions_are_gone_and_no_others(kind: str) -> None:
    model = small(kind)
    before = {name for name, _ in model.named_parameters()}
    gone = before - {name for name, _ in replace(model, "none", length=LENGTH).named_parameters()}
    learned = LEARNED.get(kind, set())
    assert gone == {name for name in before if any(each in name for each in learned)}
    assert all(any(each in name for name in gone) for each in learned)


def test_projections_of_positions_of_deberta_are_gone_too() -> None:
    model = small("deberta-v2", share_att_key=False)
    before = {name for name, _ in model.named_parameters()}
    gone = before - {name for name, _ in replace(model, "none").named_parameters()}
    learned = {*LEARNED["deberta-v2"], "pos_key_proj", "pos_query_proj"}
    assert gone == {name for name in before if any(each in name for each in learned)}
    assert all(any(each in name for name in gone) for each in learned)


@pytest.mark.parametrize("kind", ["bert", "deberta-v2", "gpt2", "opt", "roberta"])
@torch.no_grad()
def test_sequences_may_be_longer_than_the_models_own_table(kind: str) -> None:
    """At three times its rows; a padded sequence has the logits that it has alone."""
    model, generator = replace(small(kind), "alibi"), torch.Generator().manual_seed(5)
    tokens, mask = torch.randint(2, VOCABULARY, (1, 3 * LENGTH), generator=generator), torch.ones(1, 3 * LENGTH)
    mask[:, 80:] = 0
    got = logits(model, tokens, attention_mask=mask, **({} if kind in BIDIRECTIONAL else {"use_cache": False}))
    assert_close(got[:, :80], logits(model, tokens[:, :80]), **CLOSE)


# -- every encoding ----------------------------------------------------------------------------------------------------

SOME = ("kerple_log", "learnable", "lrope", "sinusoidal_qk", "t5", "forgetting", "cope", "transformer_xl")


@pytest.mark.covering(apart=True)
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("kind", KINDS)
def test_order_matters_and_gradients_reach_the_parameters(kind: str, name: str) -> None:
    if not is_number(read()[kind][name]):
        return
    model, tokens = replace(small(kind), name, **lengths(kind)), inputs(kind)
    with torch.no_grad():
        for stack in stacks(model):
            for parameter in stack.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
            stack.constrain()
        out = logits(model, tokens)
        changed = (
            tokens.flip(-1)
            if kind == "vit"
            else torch.cat((tokens[:, :15], tokens[:, 15:19].flip(1), tokens[:, 19:]), 1)
        )
        assert (logits(model, changed) - out)[..., -1, :].abs().max() > 1e-3
    logits(model, tokens).square().sum().backward()
    parameters = [parameter for stack in stacks(model) for parameter in stack.parameters()]
    assert bool(parameters) == (name != "sinusoidal_qk")
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in parameters)


@pytest.mark.parametrize(
    "kind", [kind if kind in ("bert", "llama", "t5") else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_the_table_says_which_encodings_a_model_takes_and_why_not_the_others(kind: str) -> None:
    cells = read()[kind]
    assert set(cells) == {"own", *encodings()}
    for name in encodings():
        try:
            replace(small(kind, 4 if name == "rnope_swa" else DEPTH), name, **lengths(kind))
            found = None
        except ValueError as error:
            found = str(error)
        assert "\n" not in (found or "")
        assert found == (None if is_number(cells[name]) else cells[name]), name


@pytest.mark.covering(apart=True)
@pytest.mark.parametrize("name", ["rope", "kerple_log", "forgetting", "learnable"])
@pytest.mark.parametrize("kind", CAUSAL)
@torch.no_grad()
def test_generated_with_a_cache_is_what_is_generated_without(kind: str, name: str) -> None:
    if not is_number(read()[kind][name]):
        return
    model, tokens = (
        replace(small(kind), name, length=64, **({"max_len": 64} if name == "learnable" else {})),
        inputs(kind),
    )
    mask = None if model.config.is_encoder_decoder else MASK
    settings = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    runs = [model.generate(tokens, attention_mask=mask, use_cache=cached, **settings) for cached in (True, False)]
    assert torch.equal(runs[0].sequences, runs[1].sequences)
    for a, b in zip(runs[0].logits, runs[1].logits, strict=True):
        assert_close(a, b, rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", ["own", "forgetting"])
@pytest.mark.parametrize("kind", CAUSAL)
@torch.no_grad()
def test_generated_with_a_static_cache_is_what_is_generated_with_a_dynamic_one(kind: str, name: str) -> None:
    name = OWN.get(kind, "rope") if name == "own" else name
    if not is_number(read()[kind][name]):
        return
    rows = {"max_len": 64} if name == "learnable" else {}
    model, mask = replace(small(kind), name, length=64, **rows), MASK
    if model.config.is_encoder_decoder:
        mask = None
    settings = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    static, dynamic = (
        model.generate(inputs(kind), attention_mask=mask, use_cache=True, cache_implementation=each, **settings)
        for each in ("static", None)
    )
    used = getattr(static, "cache", None) or static.past_key_values
    assert isinstance(getattr(used, "self_attention_cache", used), StaticCache)
    assert torch.equal(static.sequences, dynamic.sequences)
    for a, b in zip(static.logits, dynamic.logits, strict=True):
        assert torch.equal(a, b)


# -- rotations that differ by layer, or are of a part of a head --------------------------------------------------------


def test_rotations_are_those_of_each_layer() -> None:
    model = replace(small("gemma3_text", 4), "lrope")
    (stack,) = stacks(model)
    of_layers = [stack.of_layer(index).members()[0] for index in range(4)]
    assert [each.theta for each in of_layers] == [100.0, 5e4, 100.0, 5e4]
    parameters = list(stack.parameters())
    assert len(parameters) == 4  # each layer has its own
    assert all(parameter.requires_grad for parameter in parameters)
    same = small(
        "gemma3_text",
        rope_parameters={
            name: {"rope_type": "default", "rope_theta": 7.0} for name in ("full_attention", "sliding_attention")
        },
    )
    assert stacks(replace(same, "rope"))[0].first.theta == 7.0
    assert stacks(replace(small("gemma3_text"), "rope", theta=3.0))[0].first.theta == 3.0


@torch.no_grad()
def test_layers_that_the_model_scales_are_scaled() -> None:
    """As in Gemma 3 of 4B and more: rope_pi where the model has it, rope elsewhere."""
    full = {"rope_type": "linear", "rope_theta": 5e4, "factor": 8.0}
    local = {"rope_type": "default", "rope_theta": 100.0}
    settings = {"rope_parameters": {"full_attention": full, "sliding_attention": local}}
    for name in ("rope_pi", "rope"):
        model = small("gemma3_text", **settings)
        expected = logits(model, inputs("gemma3_text"))
        assert_close(logits(replace(model, name), inputs("gemma3_text")), expected, **CLOSE)
    with pytest.raises(ValueError, match="rope_type of the model must be default for lrope, got linear: use rope_pi"):
        replace(small("gemma3_text", **settings), "lrope")


@torch.no_grad()
def test_layers_without_rotations_stay_without() -> None:
    (stack,) = stacks(replace(small("smollm3", 4), "lrope"))
    assert [stack.of_layer(index).members()[0].name for index in range(4)] == ["lrope", "none"] * 2
    (stack,) = stacks(replace(small("smollm3", 4), "alibi"))
    assert [stack.of_layer(index).name for index in range(4)] == ["alibi"] * 4
    (stack,) = stacks(replace(small("smollm3", 4), "rope", from_config=False))
    assert [stack.of_layer(index).name for index in range(4)] == ["rope"] * 4
    (stack,) = stacks(replace(small("smollm3", 4), "sum"))
    inner = [[part.name for part in stack.of_layer(index).members()[0].members()] for index in range(4)]
    assert inner == [["rope", "alibi"], ["none", "alibi"]] * 2


@torch.no_grad()
@pytest.mark.parametrize("scaled", ["longrope", "yarn", "llama3"])
def test_scaled_rotations_of_a_part_of_a_head_are_the_original(scaled: str) -> None:
    short = {"original_max_position_embeddings": 16}
    own = {
        "longrope": {"factor": 2.0, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], **short},
        "yarn": {"factor": 2.0, **short},
        "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **short},
    }[scaled]
    kind = "phi3" if scaled == "longrope" else "gpt_neox"
    settings = {"rope_type": scaled, "rope_theta": 5e4, "partial_rotary_factor": 0.5, **own}
    model = small(kind, rope_parameters=settings, **(short if kind == "phi3" else {}))
    expected = logits(model, inputs(kind))
    assert_close(logits(replace(model, scaled), inputs(kind)), expected, **CLOSE)


# -- what is refused, in one line --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "name", "message"),
    [
        ("opt", {"word_embed_proj_dim": 16}, "alibi", "word_embed_proj_dim must be hidden_size = 32, .*, got 16"),
        (
            "mistral",
            {},
            "randomized_rope",
            "randomized_rope draws its own positions, and layers of MistralModel see 5 ",
        ),
        (
            "modernbert",
            {},
            "randomized_alibi",
            "randomized_alibi draws its own positions, .* ModernBertModel see 4 pos",
        ),
        ("gpt_neox", {}, "xpos", "xpos rotates whole heads, got rotary_dim=4 of head_dim=8 in the model: use rope"),
        ("gemma3_text", {}, "interleave", "interleave alternates over layers, and positions of the model differ by"),
        ("bloom", {}, "alibi", "length must be given: bloom has no max_position_embeddings, got None"),
        ("vit", {}, "rope_2d", "rope_2d needs positions on a grid"),
        ("deberta-v2", {}, "forgetting", "forgetting is defined for causal attention only"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_model_is_as_it_was(
    kind: str, changes: dict[str, Any], name: str, message: str
) -> None:
    model = small(kind, **changes)
    before = logits(model, inputs(kind))
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        replace(model, name)
    assert "\n" not in str(caught.value)
    assert torch.equal(logits(model, inputs(kind)), before)


def test_a_stack_that_draws_positions_is_refused_where_layers_have_windows() -> None:
    stack = stacks(replace(small("qwen3"), "randomized_rope"))[0]
    with pytest.raises(
        ValueError, match="randomized_rope draws its own positions, and layers of MistralModel see 5 pos"
    ):
        replace(small("mistral"), stack)


def test_arguments_of_images_whose_effect_would_be_lost_are_refused() -> None:
    model = replace(small("vit"), "alibi")
    with pytest.raises(ValueError, match="attention_mask must be None for images"):
        logits(model, inputs("vit"), attention_mask=torch.ones(2, 10))
    with pytest.raises(ValueError, match="output_attentions must be False"):
        logits(model, inputs("vit"), output_attentions=True)


@torch.no_grad()
def test_images_of_another_size_have_positions_too() -> None:
    model = replace(small("vit"), "alibi")
    larger = torch.randn(1, 1, 16, 20)
    out = logits(model, larger, interpolate_pos_encoding=True)
    assert (logits(model, larger.flip(-1), interpolate_pos_encoding=True) - out).abs().max() > 1e-3
    first = stacks(replace(small("vit"), "learnable"))[0].first
    assert first.table.shape == (10, WIDTH)
    assert first.sizes.length == 10


# -- training, saving, copying -----------------------------------------------------------------------------------------


VALUES = {  # the module that computes values, and whether it computes queries and keys too
    **dict.fromkeys(("llama", "mistral", "opt"), ("v_proj", None)),
    "t5": ("v", None),
    "bert": ("value", None),
    "deberta-v2": ("value_proj", None),
    **dict.fromkeys(("bloom", "gpt_neox"), ("query_key_value", "heads")),
    **dict.fromkeys(("modernbert", "mpt"), ("Wqkv", "blocks")),
    "gpt2": ("c_attn", "blocks"),
    "phi3": ("qkv_proj", "blocks"),
}


@pytest.mark.parametrize("kind", VALUES)
@torch.no_grad()
def test_values_do_not_get_the_vectors_of_queries_and_keys(kind: str) -> None:
    """Also where one module computes all three, head by head or with fewer heads of values."""
    model, calls = replace(small(kind), "sinusoidal_qk", length=LENGTH), []
    path, fused = VALUES[kind]
    project = FAMILIES[kind].attentions(part_of(model))[0].get_submodule(path)
    project.register_forward_hook(lambda module, args, out: calls.append((args[0], out)))
    logits(model, inputs(kind))
    queries_input, out = calls[-1]
    vectors = sinusoid(torch.arange(queries_input.shape[1]), WIDTH, 10_000.0, torch.float32)
    calls.clear()
    with_vectors, without = project(queries_input), project(queries_input - vectors)
    index = torch.arange(out.shape[-1])
    if fused == "heads":
        values = index // 8 % 3 == 2
    elif kind == "phi3":  # 4 heads of queries, 2 of keys, 2 of values, of 8 dimensions
        values = index >= 48
    else:
        values = index >= (out.shape[-1] * 2 // 3 if fused else 0)
    assert_close(out[..., values], without[..., values], **CLOSE)
    if fused:
        assert_close(out[..., ~values], with_vectors[..., ~values], **CLOSE)
    assert (out - with_vectors)[..., values].abs().max() > 0.01


@pytest.mark.parametrize("kind", ["bloom", "mpt", "deberta-v2", "vit", "gemma3_text", "gpt_neox"])
def test_gradients_with_checkpointing_are_those_without(kind: str) -> None:
    """Two batches before backward, which computes the layers of both again."""
    model = replace(small(kind), "kerple_log", length=LENGTH)
    masks = [{}, {}] if kind == "vit" else [{"attention_mask": MASK}, {"attention_mask": MASK.flip(0)}]

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        losses = [logits(model, inputs(kind), **mask).square().mean() for mask in masks]
        (losses[0] + losses[1]).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():  # checkpoints are for training; dropout would be drawn again
        module.training = not isinstance(module, nn.Dropout) and "Attention" not in type(module).__name__
        module.training &= type(module).__name__ not in (
            "Bloom",
            "Mpt",
            "DebertaContent",
            "BloomBlock",
            "BloomMLP",
            "MptMLP",
        )
    model.config.use_cache = False
    got = gradients()
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


DROPOUT = {"bloom": {"attention_dropout": 0.5, "hidden_dropout": 0.0}, "mpt": {}}
DROPOUT |= {"deberta-v2": {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.0}}


@pytest.mark.parametrize("kind", DROPOUT)
def test_weights_of_attention_that_a_model_computes_itself_drop_out_in_training_only(kind: str) -> None:
    model = replace(small(kind, **DROPOUT[kind]), "alibi", length=LENGTH)
    without = logits(model, inputs(kind))
    for each in FAMILIES[kind].attentions(part_of(model)):
        each.train()
        each.attn_dropout_p = 0.5  # of MPT, whose configuration has integers for it
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(logits(model, inputs(kind)))
    assert torch.equal(drawn[0], drawn[1])
    assert (drawn[0] - drawn[2]).abs().max() > 0.01
    assert torch.equal(logits(model.eval(), inputs(kind)), without)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_and_a_copy_are_the_model_and_the_original_class_refuses_it(kind: str, tmp_path: Path) -> None:
    model = replace(small(kind), "kerple_log", length=LENGTH)
    expected = logits(model, inputs(kind))
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path), inputs(kind)), expected)
    assert torch.equal(logits(copy.deepcopy(model), inputs(kind)), expected)
    with pytest.raises(ValueError, match="pe_lab"):
        logits(type(model).from_pretrained(tmp_path), inputs(kind))


AUTO = {"vit": "AutoModelForImageClassification", "t5": "AutoModelForSeq2SeqLM", "mt5": "AutoModelForSeq2SeqLM"}
AUTO |= dict.fromkeys(("bert", "roberta", "modernbert", "deberta-v2"), "AutoModelForMaskedLM")


@pytest.mark.parametrize("kind", ["bloom", "gemma3_text", "modernbert", "mt5", "vit"])
def test_auto_classes_load_it(kind: str, tmp_path: Path) -> None:
    model = replace(small(kind), "kerple_log", length=LENGTH)
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, AUTO.get(kind, "AutoModelForCausalLM")).from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(logits(loaded, inputs(kind)), logits(model, inputs(kind)))


GENERATES = """
import sys, torch
from pe_lab.hf import load
model = load(sys.argv[1])
tokens = torch.load(sys.argv[2])
made = model.generate(tokens, max_new_tokens=8, do_sample=False, use_cache=True, eos_token_id=None)
torch.save((made, model(tokens).logits), sys.argv[3])
"""


@pytest.mark.parametrize(
    ("kind", "name"), [("qwen3", "kerple_log"), pytest.param("gemma3_text", "lrope", marks=pytest.mark.long)]
)
def test_a_model_is_trained_saved_and_loaded_in_a_new_process(kind: str, name: str, tmp_path: Path) -> None:
    """50 steps by transformers' Trainer on sequences that repeat; generated with a cache, as without."""
    generator = torch.Generator().manual_seed(0)
    halves = torch.randint(2, VOCABULARY, (64, 8), generator=generator)
    rows = [{"input_ids": row, "labels": row} for row in torch.cat((halves, halves), 1)]
    model = replace(small(kind), name)
    first = [parameter.detach().clone() for stack in stacks(model) for parameter in stack.parameters()]
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=3e-3, weight_decay=0.01))
    arguments = TrainingArguments(
        str(tmp_path / "runs"),
        max_steps=50,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, arguments, train_dataset=rows, optimizers=(optimizer, None), callbacks=[EncodingCallback()]
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    after = [parameter for stack in stacks(model) for parameter in stack.parameters()]
    assert not any(torch.equal(a, b) for a, b in zip(first, after, strict=True))
    trainer.save_model(str(tmp_path / "model"))
    model.eval()
    tokens, files = torch.stack([row["input_ids"][:9] for row in rows[:3]]), [tmp_path / "in.pt", tmp_path / "out.pt"]
    torch.save(tokens, files[0])
    done = subprocess.run(
        [sys.executable, "-c", GENERATES, tmp_path / "model", *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made, out = torch.load(files[1])
    settings: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert made.shape == (3, 17)
    for cached in (True, False):
        assert torch.equal(model.generate(tokens, use_cache=cached, **settings), made)
    with torch.no_grad():
        assert_close(model(tokens).logits, out, **CLOSE)
