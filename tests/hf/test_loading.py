"""A replaced model is saved by save_pretrained and loaded with its encoding."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.hf_models import DEPTH, HEADS, KINDS, LENGTH, NAMES, WHOLE, WIDTH, logits, replaced, small, tokens
from pe_lab.encodings import RoPE, make
from pe_lab.hf import load, replace, stacks

SHARED = ("lrope", "deberta", "learnable_per_layer", "t5", "alibi")  # layers share parameters in different ways
PAIRS = [("llama", name) for name in NAMES] + [(kind, name) for kind in KINDS if kind != "llama" for name in SHARED]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
@torch.no_grad()
def test_a_loaded_model_is_the_saved_one(kind: str, name: str, tmp_path: Path) -> None:
    model = replaced(kind, name)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert type(loaded) is type(model)
    assert not loaded.training
    assert stacks(loaded)[0].first.name == name
    assert sorted(loaded.state_dict()) == sorted(model.state_dict())
    if not name.startswith("randomized"):
        assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    if kind == "llama" and name not in WHOLE:
        made = model.generate(tokens(), max_new_tokens=4, do_sample=False)
        assert torch.equal(loaded.generate(tokens(), max_new_tokens=4, do_sample=False), made)


def test_options_length_and_dtype_are_kept(tmp_path: Path) -> None:
    model = replaced("t5", "rope", theta=77.0, implementation="reference")
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert [stack.first.theta for stack in stacks(loaded)] == [77.0, 77.0]
    assert loaded.dtype == torch.bfloat16
    assert loaded.config.pe_lab == {
        "encoding": "rope",
        "length": LENGTH,
        "implementation": "reference",
        "from_config": True,
        "options": {"theta": 77.0},
    }
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again"), tokens()), logits(model, tokens()))


def test_an_encoding_keeps_its_own_dtype(tmp_path: Path) -> None:
    """Of a model in bfloat16 whose encoding is in float32."""
    model = replace(small("llama").to(torch.bfloat16), "lrope")
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    dtypes = {name: weight.dtype for name, weight in model.state_dict().items()}
    assert {name: weight.dtype for name, weight in loaded.state_dict().items()} == dtypes
    assert set(dtypes.values()) == {torch.bfloat16, torch.float32}
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    logits(loaded, tokens()).sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_weights_in_several_files(tmp_path: Path) -> None:
    model = replaced("gpt2", "learnable")
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(logits(load(tmp_path), tokens()), logits(model, tokens()))


def test_a_state_dict_fits_a_model_that_is_replaced_alike() -> None:
    model, other = replaced("llama", "lrope"), replace(small("llama"), "lrope", length=LENGTH)
    assert not torch.equal(logits(other, tokens()), logits(model, tokens()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other, tokens()), logits(model, tokens()))


def test_what_is_no_name_is_given_again(tmp_path: Path) -> None:
    stack = make("lrope", width=WIDTH, num_heads=HEADS, depth=DEPTH, length=LENGTH)
    model = replace(small("llama"), stack)
    model.save_pretrained(tmp_path / "stack")
    nested = replace(small("llama"), "randomized_rope", encoding=partial(RoPE, theta=5.0))
    nested.save_pretrained(tmp_path / "nested")
    for folder in ("stack", "nested"):
        with pytest.raises(ValueError, match="encoding must be given: the configuration has no name of it"):
            load(tmp_path / folder)
    fresh = make("lrope", width=WIDTH, num_heads=HEADS, depth=DEPTH, length=LENGTH)
    assert torch.equal(logits(load(tmp_path / "stack", fresh), tokens()), logits(model, tokens()))
    again = load(tmp_path / "nested", "randomized_rope", encoding=partial(RoPE, theta=5.0))
    assert stacks(again)[0].first.encoding.theta == 5.0


def test_folders_without_such_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path must be a folder that save_pretrained wrote, got"):
        load(tmp_path / "nowhere")
    small("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="must have a model whose positions were replaced, .*: use from_pretrained"):
        load(tmp_path)


def test_weights_of_another_encoding_are_refused(tmp_path: Path) -> None:
    replaced("llama", "lrope").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="options need an encoding, got theta without one"):
        load(tmp_path, theta=3.0)
    with pytest.raises(ValueError, match="weights must be those of this model and encoding, got model.pe_lab.0.beta"):
        load(tmp_path, "alibi")
    with pytest.raises(ValueError, match="weights must be those of this model and encoding, got") as caught:
        load(tmp_path, "learnable")
    with pytest.raises(ValueError, match="weights must fit this model and encoding: size mismatch for model.pe_lab"):
        load(tmp_path, "lrope", share="heads")
    assert "\n" not in str(caught.value)
    replaced("llama", "alibi").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="got none for model.pe_lab.0.beta in"):
        load(tmp_path, "lrope")


def test_a_file_has_the_weights_of_the_encoding_once(tmp_path: Path) -> None:
    replaced("bert", "deberta").save_pretrained(tmp_path)
    names = [name for name in load_file(tmp_path / "model.safetensors") if "pe_lab" in name]
    assert sum("table" in name for name in names) == 1
    assert json.loads((tmp_path / "config.json").read_text())["pe_lab"]["encoding"] == "deberta"
