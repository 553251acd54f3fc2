"""Small models of Hugging Face transformers with random weights, and how exactly an encoding works in them."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pe_lab.encodings import Randomized

WIDTH, HEADS, DEPTH, VOCABULARY, LENGTH = 32, 4, 2, 40, 32
SEQUENCES = (12, 7)  # their lengths, in tokens


def small(kind: str, depth: int) -> Any:
    """Return a model, "llama", "gpt2" or "bert", of so many layers, in evaluation mode.

    Raises:
        ModuleNotFoundError: transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise ModuleNotFoundError(f"the column {kind} needs the package transformers")
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": depth, "num_attention_heads": HEADS, "hidden_size": WIDTH}
    common = sizes | {"initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    inner = {"max_position_embeddings": LENGTH, "intermediate_size": 48}
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **inner)).eval()
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**common, n_positions=LENGTH, n_inner=48)).eval()
    return transformers.BertForMaskedLM(transformers.BertConfig(**common, **inner)).eval()


@torch.no_grad()
def with_encoding(kind: str, name: str, depth: int = DEPTH) -> float:
    """Return how far logits are from those of each sequence alone, in a padded batch and token by token with a cache.

    The cache is left out where the encoding needs whole sequences, or the model is bidirectional. Positions that are
    drawn at random are fixed.

    Raises:
        ValueError: the model does not take the encoding.
    """
    from pe_lab.hf import replace, stacks

    model = replace(small(kind, depth), name)
    for stack in stacks(model):
        for parameter in stack.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        stack.constrain()
        if isinstance(stack.first, Randomized):  # the same positions in each pass
            stack.first.draw = lambda count, seed=None: 3 * torch.arange(count)  # type: ignore[method-assign]
    tokens = torch.randint(1, VOCABULARY, (len(SEQUENCES), max(SEQUENCES)))
    causal = kind != "bert"
    mask = torch.tensor([_mask(length, on_left=causal) for length in SEQUENCES])
    seeded = {"use_cache": False} if causal else {}
    padded = model(tokens, attention_mask=mask, **seeded).logits
    alone = [model(row[kept][None], **seeded).logits[0] for row, kept in zip(tokens, mask.bool(), strict=True)]
    found = [_apart(got[kept], expected) for got, kept, expected in zip(padded, mask.bool(), alone, strict=True)]
    if causal and stacks(model)[0].first.whole_sequence is None:
        found.append(_apart(_token_by_token(model, tokens[:1]), alone[0]))
    return max(found)


def _mask(length: int, on_left: bool) -> list[int]:
    padding, real = [0] * (max(SEQUENCES) - length), [1] * length
    return padding + real if on_left else real + padding


def _token_by_token(model: Any, tokens: Tensor) -> Tensor:
    from pe_lab.hf.cache import cache_name

    parts, cache, name = [], None, cache_name(model)
    for index in range(tokens.shape[1]):
        out = model(tokens[:, [index]], **{name: cache}, use_cache=True)
        cache = out[name]
        parts.append(out.logits[0])
    return torch.cat(parts)


def _apart(got: Tensor, expected: Tensor) -> float:
    return (got - expected).abs().max().item()
