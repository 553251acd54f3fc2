"""Training a replaced model: checkpointing, dropout, autocast, and an attention function that is exchanged later."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import PreTrainedModel

from helpers.hf_models import LENGTH, logits, replaced, small, takes, tokens
from pe_lab.encodings import RoPE
from pe_lab.hf import replace

ENTERING = ("learnable_per_layer", "forgetting", "t5", "rope", "sinusoidal_qk", "tape")  # in different places
TRAINED = [(kind, name) for kind in ("llama", "gpt2", "bert", "t5") for name in ENTERING if takes(kind, name)]


def gradients(model: PreTrainedModel, losses: list[Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    sum(losses[1:], losses[0]).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("kind", "name"), TRAINED)
def test_gradients_with_checkpointing_are_those_without(kind: str, name: str, reentrant: bool) -> None:
    """Two batches of different padding before backward, which computes the layers of both again."""
    model, ids = replaced(kind, name), tokens()
    masks = (torch.ones(2, 9, dtype=torch.long), torch.tensor([[1] * 9, [1] * 4 + [0] * 5]))

    def losses() -> list[Tensor]:
        return [logits(model, ids, attention_mask=mask)[mask.bool()].square().mean() for mask in masks]

    expected = gradients(model, losses())
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    for module in model.modules():  # checkpoints are for training; dropout would be drawn again
        module.training = not isinstance(module, torch.nn.Dropout) and module not in attentions(model)
    if reentrant and name in ("t5", "tape"):
        with pytest.raises(ValueError, match=r"^checkpointing must be used with use_reentrant=False: what layers "):
            losses()
        return
    got = gradients(model, losses())
    assert got.keys() == expected.keys()
    for parameter, gradient in got.items():
        assert_close(gradient, expected[parameter], rtol=1e-4, atol=1e-5)


def attentions(model: PreTrainedModel) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.endswith("Attention")]


DROPOUT = {
    "llama": {"attention_dropout": 0.5},
    "gpt2": {"attn_pdrop": 0.5, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "bert": {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.0},
    "t5": {"dropout_rate": 0.5},
}


@pytest.mark.parametrize("kind", DROPOUT)
def test_weights_of_attention_drop_out_in_training_only(kind: str) -> None:
    model = replace(small(kind, **DROPOUT[kind]), "alibi", length=LENGTH)
    without = logits(model, tokens())
    for layer in attentions(model):
        layer.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(logits(model, tokens()))
    assert torch.equal(drawn[0], drawn[1])
    assert (drawn[0] - drawn[2]).abs().max() > 0.01
    assert (drawn[0] - without).abs().max() > 0.01
    assert torch.equal(logits(model.eval(), tokens()), without)


@pytest.mark.parametrize(("kind", "name"), [("bert_decoder", "rope"), *TRAINED])
def test_autocast(kind: str, name: str) -> None:
    """Close to float32; with a cache too."""
    model, ids = replaced(kind, name), tokens()
    expected = logits(model, ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(logits(model, ids).float(), expected, rtol=0, atol=0.3)
        if kind != "bert":
            made = model.generate(ids, max_new_tokens=3, do_sample=False)
            assert made.shape[1] == (4 if kind == "t5" else 12)


def test_a_model_in_training_does_not_decode() -> None:
    with pytest.raises(ValueError, match=r"dropout of attention must be 0 with a cache, got 0.1: call model.eval\(\)"):
        replaced("gpt2", "alibi").train().generate(tokens(), max_new_tokens=3, do_sample=False)


def test_another_attention_function_is_refused() -> None:
    model = replaced("llama", "rope")
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="attn_implementation must be 'pe_lab' while .*, got 'sdpa'"):
        model(tokens())


def test_attention_is_called_by_its_model() -> None:
    attention = replaced("llama", "rope").model.layers[0].self_attn
    with pytest.raises(ValueError, match="attention of a replaced model must be called by the model, got no positions"):
        attention(torch.zeros(1, 3, 32), position_embeddings=(torch.ones(1, 1, 1), torch.zeros(1, 1, 1)))


def test_two_models_do_not_disturb_each_other() -> None:
    models, ids = [replaced("llama", "rope"), replaced("llama", "alibi"), small("llama")], tokens()
    before = [logits(model, ids) for model in models]
    assert [torch.equal(logits(model, ids), out) for model, out in zip(models, before, strict=True)] == [True] * 3
    assert models[2].config._attn_implementation == "sdpa"


def test_an_encoding_that_writes_to_its_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoPE, "mix", lambda self, h, layout: (h.add_(1), h))
    with pytest.raises(ValueError, match="^mix and terms must return new tensors, got h changed in place$"):
        logits(replaced("llama", "rope"), tokens())
