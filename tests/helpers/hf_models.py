"""Small models of transformers with random weights, for the tests of pe_lab.hf."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from pe_lab.hf import replace, stacks

WIDTH, HEADS, DEPTH, VOCABULARY, LENGTH = 32, 4, 2, 40, 32
KINDS = ("llama", "gpt2", "bert", "bert_decoder", "t5")
CAUSAL_KINDS = ("llama", "gpt2", "bert_decoder", "t5")
GRID = {"learnable_2d", "rope_2d", "rope_mixed", "sinusoidal_2d"}
CAUSAL_ONLY = {
    *("canon", "carope", "cope", "dape_v2", "drope", "forgetting", "grape_a", "grape_m", "inkling"),
    *("key_offset", "path", "selective_rope", "wall", "xpos"),
}
WHOLE = {  # they need all tokens at once
    "longrope",
    "normalized",
    "randomized_alibi",
    "randomized_learnable",
    "randomized_rope",
    "randomized_sinusoidal",
    "rope_dynamic_ntk",
}
MARKED = {"abacus", "coupled"}  # they read marks of tokens, which transformers do not give
NAMES = sorted({path.stem for path in (Path(__file__).parents[2] / "conf/pe").glob("*.yaml")} - GRID - MARKED)
CLOSE = {"rtol": 0, "atol": 2e-5}  # of logits between -10 and 10, in float32
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
SIZES = {"vocab_size": VOCABULARY, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "hidden_size": WIDTH}

DEEP = {"rnope_swa": {"num_hidden_layers": 4}}  # layers that an encoding needs


def small(kind: str, **changes: Any) -> PreTrainedModel:
    """Return a model in evaluation mode; llama has two heads of keys, bert_decoder is causal."""
    torch.manual_seed(0)
    sizes = {**SIZES, **SPECIAL, "initializer_range": 0.2}
    inner = {"max_position_embeddings": LENGTH, "intermediate_size": 48}
    model: PreTrainedModel
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**{**sizes, **inner, "num_key_value_heads": 2, **changes}))
    elif kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**{**sizes, "n_positions": LENGTH, "n_inner": 48, **changes}))
    elif kind == "t5":
        feed_forward = {"d_kv": WIDTH // HEADS, "d_ff": 48, "decoder_start_token_id": 1}
        depth = changes.pop("num_hidden_layers", DEPTH)
        sizes |= {"num_layers": depth, "num_decoder_layers": depth}
        del sizes["num_hidden_layers"]
        model = T5ForConditionalGeneration(T5Config(**{**sizes, **feed_forward, **changes}))
    else:
        decoder = kind == "bert_decoder"
        model = BertLMHeadModel(BertConfig(**{**sizes, **inner, "is_decoder": decoder, **changes}))
    return model.eval()


def replaced(kind: str, encoding: str, **options: Any) -> PreTrainedModel:
    """Return a small model with an encoding whose parameters are not where they start, which can be no effect."""
    model = replace(small(kind, **DEEP.get(encoding, {})), encoding, length=LENGTH, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for stack in stacks(model):
            for parameter in stack.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
            stack.constrain()
    return model


def takes(kind: str, name: str) -> bool:
    """Return whether an encoding is defined for a kind of model."""
    return name not in CAUSAL_ONLY or kind not in ("bert", "t5")


def tokens(batch: int = 2, length: int = 9) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(2))


def logits(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Tensor:
    """Return the logits of tokens; in T5 those of the decoder, over an encoder that always reads the same."""
    return output(model, ids, **inputs).logits


def output(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Any:
    if not model.config.is_encoder_decoder:
        return model(input_ids=ids, **inputs)
    inputs = {{"attention_mask": "decoder_attention_mask"}.get(name, name): x for name, x in inputs.items()}
    return model(input_ids=tokens(1, 7).expand(len(ids), -1), decoder_input_ids=ids, **inputs)
