"""An encoding of the model's own kind has the model's settings: it computes what the model did, or is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from helpers.hf_models import DEPTH, HEADS, LENGTH, WIDTH, logits, small, tokens
from pe_lab.encodings import RoPE, make
from pe_lab.hf import load, replace, stacks

OWN = {  # encodings that compute what a rope type does
    "default": "rope",
    "linear": "rope_pi",
    "dynamic": "rope_dynamic_ntk",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "proportional": "p_rope",
}
SHORT = {"original_max_position_embeddings": 8}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
TYPES: dict[str, dict[str, Any]] = {  # a valid setting of each rope type of transformers
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, **SHORT},
    "longrope": {"factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, **SHORT},
    "llama3": {"factor": 4.0, **BANDS, **SHORT},
    "proportional": {"partial_rotary_factor": 0.5},
}
KNOWN = {"default", *ROPE_INIT_FUNCTIONS}  # to this version of transformers


def rotating(rope_type: str, **settings: Any) -> Any:
    """Return a small Llama of a rope type."""
    parameters = {"rope_type": rope_type, "rope_theta": 5e4, **settings}
    if hasattr(LlamaConfig, "standardize_rope_params"):
        return small("llama", rope_parameters=parameters)
    theta = parameters.pop("rope_theta")  # before transformers 5
    return small("llama", rope_theta=theta, rope_scaling=None if rope_type == "default" else parameters)


def difference(model: Any, encoding: str, **options: Any) -> float:
    """Return how far logits of sequences longer than the model's own length are from those of the original."""
    ids = tokens(2, 3 * LENGTH)
    with torch.no_grad():
        expected = logits(model, ids)
        return float((logits(replace(model, encoding, **options), ids) - expected).abs().max())


def test_every_rope_type_of_transformers_is_tested() -> None:
    assert not KNOWN - set(TYPES)


@pytest.mark.parametrize(
    "encoding", [*dict.fromkeys(OWN.values()), "rope_ntk", "lrope", "lerope", "vo_rope", "sum", "randomized_rope"]
)
@pytest.mark.parametrize("rope_type", [rope_type for rope_type in TYPES if rope_type in KNOWN])
def test_what_rotates_represents_the_rope_type_or_is_refused(rope_type: str, encoding: str) -> None:
    model = rotating(rope_type, **TYPES[rope_type])
    if OWN.get(rope_type) == encoding or (rope_type == "default" and encoding in ("lrope", "lerope")):
        assert difference(model, encoding) < 1e-4
    elif rope_type == "default":
        rotations = [m for stack in stacks(replace(model, encoding)) for m in stack.modules() if hasattr(m, "pairing")]
        assert {(each.theta, each.pairing) for each in rotations} == {(5e4, "half")}
    else:
        before = logits(model, tokens())
        with pytest.raises(ValueError, match=f"rope_type .* must be default for .*, got {rope_type}: ") as caught:
            replace(model, encoding)
        assert "\n" not in str(caught.value)
        assert torch.equal(logits(model, tokens()), before)


@pytest.mark.parametrize(
    ("rope_type", "settings"),
    [
        ("default", {"rope_theta": 5e5}),
        ("linear", {"factor": 1.0}),
        ("linear", {"factor": 7.5, "rope_theta": 100.0}),
        ("dynamic", {"factor": 4.0}),
        ("yarn", {"factor": 4.0}),
        ("yarn", {"factor": None, **SHORT}),
        ("yarn", {"factor": 2.0, **SHORT, "beta_fast": 2.0, "beta_slow": 0.5}),
        ("yarn", {"factor": 4.0, **SHORT, "attention_factor": 1.1386294361119891}),
        ("yarn", {"factor": 4.0, **SHORT, "attention_factor": 1.0}),
        ("yarn", {"factor": 4.0, **SHORT, "mscale": 1.0, "mscale_all_dim": 0.5}),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 4096, "truncate": False}),
        ("llama3", {"factor": 4.0, **SHORT, "low_freq_factor": 0.5, "high_freq_factor": 8.0}),
        ("longrope", {**TYPES["longrope"], "attention_factor": 1.5}),
        ("proportional", {"partial_rotary_factor": 0.5, "factor": 2.0}),
        ("proportional", {"partial_rotary_factor": 0.25}),
        ("proportional", {"partial_rotary_factor": 1.0}),
    ],
)
def test_settings_of_a_rope_type_are_taken(rope_type: str, settings: dict[str, Any]) -> None:
    assert difference(rotating(rope_type, **settings), OWN[rope_type]) < 1e-4


@pytest.mark.parametrize(
    ("rope_type", "settings", "encoding", "named"),
    [
        ("linear", {"factor": 0.5}, "rope_pi", "factor must be at least 1, got 0.5"),
    ],
)
def test_settings_that_an_encoding_cannot_represent_are_named(
    rope_type: str, settings: dict[str, Any], encoding: str, named: str
) -> None:
    model = rotating(rope_type, **{**TYPES[rope_type], **settings})
    before = logits(model, tokens())
    with pytest.raises(ValueError, match=named) as caught:
        replace(model, encoding)
    assert "\n" not in str(caught.value)
    assert torch.equal(logits(model, tokens()), before)


def test_a_config_of_transformers_4_is_read() -> None:
    scaled = {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5}
    assert difference(small("llama", **scaled), "rope_pi") < 1e-4
    assert difference(small("llama", rope_theta=5e5), "rope") < 1e-4


def test_a_config_that_was_changed_after_the_model_was_made_is_refused() -> None:
    model = rotating("linear", factor=4.0)
    parameters = model.config.rope_parameters if hasattr(model.config, "rope_parameters") else model.config.rope_scaling
    parameters["factor"] = 8.0
    with pytest.raises(ValueError, match="config of the model must be the one it was made with"):
        replace(model, "rope_pi")


def test_options_that_are_given_are_those_of_the_encoding() -> None:
    first = stacks(replace(rotating("linear", factor=4.0), "rope_pi", factor=2.0, pairing="interleaved"))[0].first
    assert (first.factor, first.pairing, first.theta) == (2.0, "interleaved", 5e4)
    plain = stacks(replace(rotating("linear", factor=4.0), "rope", from_config=False, theta=7.0))[0].first
    assert (plain.theta, plain.pairing) == (7.0, "interleaved")
    given = replace(rotating("default"), "sum", parts=[partial(RoPE, theta=3.0), "alibi", "rope"])
    assert [(part.theta, part.pairing) for part in stacks(given)[0].first.parts if isinstance(part, RoPE)] == [
        (3.0, "half"),
        (5e4, "half"),
    ]
    stack = make("rope", width=WIDTH, num_heads=HEADS, depth=DEPTH, length=LENGTH)
    assert stacks(replace(rotating("default"), stack))[0].first.theta == 10_000.0


@pytest.mark.parametrize("kind", ["gpt2", "bert", "bert_decoder"])
def test_learned_vectors_are_those_of_the_model(kind: str) -> None:
    ids = tokens(2, LENGTH)
    expected = logits(small(kind), ids)
    assert_close(logits(replace(small(kind), "learnable"), ids), expected, rtol=0, atol=1e-5)
    assert_close(logits(replace(small(kind), "learnable", max_len=LENGTH), ids), expected, rtol=0, atol=1e-5)
    for options in ({"std": 0.5}, {"max_len": 2 * LENGTH}, {"at": "query_key"}, {"from_config": False}):
        model = replace(small(kind), "learnable", **options)
        assert (logits(model, ids) - expected).abs().max() > 0.01, options
    assert len(stacks(model)[0].first.table) == 512


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (32, 64), (16, 20), (8, 128), (32, 200)])
def test_the_bias_of_t5_is_that_of_the_model(buckets: int, distance: int) -> None:
    """In encoder and decoder, whose attention has no factor 1 / sqrt(d)."""
    settings = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    model, ids = small("t5", **settings), tokens(1, 150)
    with torch.no_grad():
        whole = {"input_ids": ids, "decoder_input_ids": ids}
        expected = model(**whole).logits
        assert_close(replace(model, "t5", length=LENGTH)(**whole).logits, expected, rtol=0, atol=1e-4)
    other = replace(small("t5", **settings), "t5", length=LENGTH, std=0.5)
    assert (other(**whole).logits - expected).abs().max() > 0.01


def test_buckets_that_transformers_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their float32 logarithm rounds some boundaries to the other side; which ones depends on the processor."""
    model = small("t5", relative_attention_num_buckets=72, relative_attention_max_distance=100)
    attention = type(model.encoder.block[0].layer[0].SelfAttention)
    buckets = attention._relative_position_bucket

    def rounded(distance: Tensor, *arguments: bool, **options: int) -> Tensor:
        return buckets(distance, *arguments, **options) - (distance.abs() == 60).long()

    monkeypatch.setattr(attention, "_relative_position_bucket", staticmethod(rounded))
    with pytest.raises(ValueError, match="t5 must have the buckets of the model, got another bucket of distance 60"):
        replace(model, "t5", length=LENGTH)


def test_settings_are_those_of_the_config_when_a_model_is_loaded(tmp_path: Path) -> None:
    model = rotating("yarn", factor=4.0, **SHORT)
    expected = logits(model, tokens())
    replace(model, "yarn").save_pretrained(tmp_path / "own")
    assert_close(logits(load(tmp_path / "own"), tokens()), expected, rtol=0, atol=1e-5)
    other = replace(rotating("default"), "rope", from_config=False)
    other.save_pretrained(tmp_path / "other")
    assert torch.equal(logits(load(tmp_path / "other"), tokens()), logits(other, tokens()))


@pytest.mark.parametrize("option", ["width", "num_heads", "depth", "causal", "grid_width", "marks", "name"])
def test_sizes_are_those_of_the_model(option: str) -> None:
    with pytest.raises(ValueError, match=f"options of rope must not be sizes, .* got {option}"):
        replace(small("llama"), "rope", **{option: 3})
