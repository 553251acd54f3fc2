"""An encoding in a model of transformers, for every encoding of conf/pe; models that have it already are equal."""

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedModel,
    T5EncoderModel,
    XGLMConfig,
    XGLMForCausalLM,
)

from helpers.hf_models import (
    CLOSE,
    DEPTH,
    GRID,
    HEADS,
    KINDS,
    LENGTH,
    MARKED,
    NAMES,
    WIDTH,
    logits,
    replaced,
    small,
    takes,
    tokens,
)
from pe_lab.attention import reference
from pe_lab.encodings import make
from pe_lab.encodings.families.bias import alibi_slopes
from pe_lab.hf import replace, stacks

PAIRS = [(kind, name) for kind in KINDS for name in NAMES if takes(kind, name)]
WITHOUT_EFFECT = {"none", "temperature"}  # below the training length
INVISIBLE = {"integer", "normalized"}  # one number is added to all dimensions: LayerNorm takes it away


@pytest.mark.covering(apart=True)
@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_position_has_an_effect_and_gradients_reach_its_parameters(kind: str, name: str) -> None:
    model, without = replaced(kind, name), replaced(kind, "none")
    out = logits(model, tokens())
    difference = float((out - logits(without, tokens())).detach().abs().max())
    if name in WITHOUT_EFFECT or (name in INVISIBLE and kind not in ("llama", "t5")):
        assert difference < 1e-4
    else:
        assert difference > (1e-3 if name == "wall" else 0.01)  # its gates are all but open at the start
    out.square().sum().backward()
    parameters = [parameter for stack in stacks(model) for parameter in stack.parameters()]
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in parameters)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_alibi_is_a_bias_in_the_mask_of_the_original(kind: str) -> None:
    """The original takes -m |i - j| as a mask of four dimensions, after its own positions are set to zero."""
    model, ids = small(kind), tokens()
    table = model.transformer.wpe if kind == "gpt2" else model.bert.embeddings.position_embeddings
    nn.init.zeros_(table.weight)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    bias = -torch.tensor(alibi_slopes(HEADS))[:, None, None] * distance.abs()
    if kind == "gpt2":
        bias = bias.masked_fill(distance < 0, -torch.inf)
    expected = model(ids, attention_mask=bias[None].expand(2, -1, -1, -1)).logits
    assert_close(logits(replace(model, "alibi"), ids), expected, **CLOSE)


# -- what replace does to a model --------------------------------------------------------------------------------------


def test_a_stack_can_be_given() -> None:
    stack = make("lrope", width=WIDTH, num_heads=HEADS, depth=DEPTH, length=LENGTH)
    model = replace(small("llama"), stack)
    assert stacks(model) == [stack]
    logits(model, tokens()).square().sum().backward()
    assert all(parameter.grad.any() for parameter in stack.parameters())


@pytest.mark.parametrize(
    "model",
    [LlamaModel(small("llama").config), T5EncoderModel(small("t5").config)],
    ids=["LlamaModel", "T5EncoderModel"],
)
def test_a_model_without_a_head_is_replaced(model: PreTrainedModel) -> None:
    model.eval()
    before = model(tokens()).last_hidden_state
    after = replace(model, "alibi", length=9)(tokens()).last_hidden_state
    assert after.shape == before.shape
    assert (after - before).abs().max() > 0.01


def test_a_copy_is_independent() -> None:
    model, ids = replaced("gpt2", "learnable"), tokens()
    before = logits(model, ids)
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, ids), before)
    nn.init.zeros_(stacks(other)[0].first.table)
    assert (logits(other, ids) - before).abs().max() > 0.01
    assert torch.equal(logits(model, ids), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_dtype_of_a_model_stays(kind: str, dtype: torch.dtype) -> None:
    model = replaced(kind, "rope").to(dtype)
    out = logits(model, tokens())
    assert out.dtype == dtype
    assert out.isfinite().all()


def test_options_and_the_implementation_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, a = tokens(), replaced("llama", "rope", theta=50.0, implementation="reference")
    assert stacks(a)[0].first.theta == 50.0
    called = []
    original = reference.attend
    monkeypatch.setattr(reference, "attend", lambda *args: called.append(1) or original(*args))
    expected = logits(a, ids)
    assert len(called) == DEPTH
    assert_close(logits(replaced("llama", "rope", theta=50.0, implementation="sdpa"), ids), expected, **CLOSE)
    assert len(called) == DEPTH


# -- what is refused ---------------------------------------------------------------------------------------------------


def stack_of(**changes: Any) -> Any:
    sizes = {"width": WIDTH, "num_heads": HEADS, "depth": DEPTH, "length": LENGTH, "causal": True, **changes}
    return make("rope", **sizes)


@pytest.mark.parametrize(
    ("kind", "changes", "encoding", "options", "message"),
    [
        ("llama", {}, "rop", {}, r"name='rop': did you mean rope\? name must be one of "),
        ("llama", {}, "rope", {"base": 3}, "options of rope must be among theta, pairing, rotary_dim, got base"),
        ("llama", {}, "rope", {"theta": -1.0}, "theta must be"),
        ("llama", {}, "rope", {"implementation": "fast"}, "implementation must be one of auto, .*, got 'fast'"),
        ("llama", {}, "learnable", {"max_len": 31}, "max_len must be at least .*, got max_len=31, length=32"),
        ("llama", {"head_dim": 16}, stack_of(head_dim=12), {}, "the Stack must have head_dim=16, got head_dim=12"),
        ("t5", {}, "alibi", {}, "length must be given: t5 has no max_position_embeddings, got None"),
        ("llama", {}, "rope", {"length": 0}, "length must be an integer of at least 1, got 0"),
        ("t5", {}, "forgetting", {"length": 9}, "forgetting is defined for causal attention only"),
        ("bert", {}, "xpos", {}, "xpos is defined for causal attention only"),
        ("llama", {}, stack_of(depth=3), {}, "the Stack must have depth=2, got depth=3"),
        ("llama", {}, stack_of(head_dim=12), {}, "the Stack must have head_dim=8, got head_dim=12"),
        (
            "llama",
            {},
            stack_of(num_heads=2, causal=False),
            {},
            "num_heads=4, causal=True, got num_heads=2, causal=False",
        ),
        ("bert", {}, stack_of(), {}, "the Stack must have causal=False, got causal=True"),
        (
            "llama",
            {},
            stack_of(),
            {"theta": 3.0, "length": 9},
            "options belong to the name .* a Stack and theta, length",
        ),
        *[("gpt2", {}, name, {}, f"{name} needs positions on a grid") for name in sorted(GRID)],
        *[("gpt2", {}, name, {}, f"{name} needs marks of tokens") for name in sorted(MARKED)],
    ],
)
def test_what_does_not_fit_is_refused_and_the_model_is_as_it_was(
    kind: str, changes: dict[str, Any], encoding: Any, options: dict[str, Any], message: str
) -> None:
    model = small(kind, **changes)
    before, state = logits(model, tokens()), sorted(model.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        replace(model, encoding, **options)
    assert "\n" not in str(caught.value)
    assert torch.equal(logits(model, tokens()), before)
    assert sorted(model.state_dict()) == state


def test_a_stack_is_refused_for_a_model_with_two_parts() -> None:
    with pytest.raises(ValueError, match="encoding must be a name for a model of 2 parts, which differ, got a Stack"):
        replace(small("t5"), stack_of())


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="model must be a PreTrainedModel of transformers, got Linear"):
        replace(nn.Linear(2, 2), "rope")  # type: ignore[arg-type]
    model = XGLMForCausalLM(XGLMConfig(vocab_size=9, d_model=8, num_layers=1, attention_heads=2, ffn_dim=8))
    with pytest.raises(ValueError, match="model_type must be one of bert, bloom, .*, t5, vit, got 'xglm'"):
        replace(model, "rope")


def test_a_config_of_a_subclass_is_refused_and_the_model_is_as_it_was() -> None:
    class Tuned(LlamaConfig):
        pass

    whole, part = LlamaForCausalLM(Tuned(**small("llama").config.to_dict())), small("llama")
    part.model.layers[0].self_attn.config = Tuned(**part.config.to_dict())
    for model in (whole, part):
        before, state, config = logits(model, tokens()), sorted(model.state_dict()), model.config
        with pytest.raises(ValueError, match="LlamaConfig, .*, and of no subclass, got Tuned"):
            replace(model, "alibi")
        assert torch.equal(logits(model, tokens()), before)
        assert sorted(model.state_dict()) == state
        assert model.config is config


def test_positions_are_replaced_once() -> None:
    with pytest.raises(ValueError, match="positions of a model are replaced once: they are those of rope"):
        replace(replaced("llama", "rope"), "alibi")


def test_attention_that_does_not_go_through_the_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", lambda self, x: x)
    with pytest.raises(ValueError, match="attention must be computed through AttentionInterface, LlamaAttention"):
        replace(model, "rope")


def test_without_transformers_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import pe_lab.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last == 'ModuleNotFoundError: pe_lab.hf needs transformers: pip install "pe_lab[hf]"'
