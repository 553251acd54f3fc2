"""Small models of Hugging Face transformers with random weights, and how exactly an encoding works in them."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pe_lab.encodings import Randomized

WIDTH, HEADS, DEPTH, VOCABULARY, LENGTH = 32, 4, 2, 40, 32
SEQUENCES = (12, 7)  # their lengths, in tokens


# of each type of model: its class, its configuration, and what differs from SIZES; what it has beside positions is on
Settings = dict[str, Any]
SPECIAL: Settings = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
ROTARY: Settings = {"rope_type": "default", "rope_theta": 5e4}
LOCAL: Settings = {"rope_type": "default", "rope_theta": 100.0}
BY_LAYER: Settings = {"rope_parameters": {"full_attention": ROTARY, "sliding_attention": LOCAL}}
ONE: Settings = {"rope_parameters": ROTARY}
INNER: Settings = {"intermediate_size": 48}
GROUPED: Settings = {"num_key_value_heads": 2}
WIDE: Settings = {**GROUPED, "head_dim": 12}
WINDOW: Settings = {"sliding_window": 5}
SQUARE: Settings = {"query_pre_attn_scalar": 20}
KINDS: dict[str, tuple[str, str, Settings]] = {
    "bert": ("BertForMaskedLM", "BertConfig", INNER),
    "bloom": ("BloomForCausalLM", "BloomConfig", {}),
    "deberta-v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        INNER
        | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"}
        # a convolution beside the first layer
        | {"conv_kernel_size": 3, "conv_act": "gelu", "position_buckets": 8, "share_att_key": True},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        INNER | WIDE | WINDOW | SQUARE | ONE | {"attn_logit_softcapping": 2.0},
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        INNER | WIDE | WINDOW | SQUARE | BY_LAYER | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_positions": LENGTH, "n_inner": 48}),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        INNER | {"rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", INNER | WIDE | ONE),
    "mistral": ("MistralForCausalLM", "MistralConfig", INNER | WIDE | WINDOW | ONE),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        INNER | BY_LAYER | {"local_attention": 6, "global_attn_every_n_layers": 2},
    ),
    "mpt": ("MptForCausalLM", "MptConfig", {"max_seq_len": LENGTH, "attn_config": {"clip_qkv": 2.0}}),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", {"d_kv": 12, "d_ff": 48, "decoder_start_token_id": 1}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", INNER | GROUPED | ONE),
    "opt": ("OPTForCausalLM", "OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": WIDTH, "init_std": 0.2}),
    "phi3": (
        "Phi3ForCausalLM",
        "Phi3Config",
        INNER | GROUPED | WINDOW | {"rope_parameters": ROTARY | {"partial_rotary_factor": 0.5}},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        INNER | GROUPED | WINDOW | ONE | {"use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", INNER | WIDE | ONE),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", INNER | {"max_position_embeddings": LENGTH + 1}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", INNER | GROUPED | ONE | {"no_rope_layer_interval": 2}),
    "t5": ("T5ForConditionalGeneration", "T5Config", {"d_kv": 8, "d_ff": 48, "decoder_start_token_id": 1}),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        INNER | {"image_size": 12, "patch_size": 4, "num_channels": 1},
    ),
}
NO_LENGTH = ("bloom", "mt5", "t5")  # types without a longest sequence
BIDIRECTIONAL = ("bert", "deberta-v2", "modernbert", "roberta", "vit")


def small(kind: str, depth: int = DEPTH, **changes: Any) -> Any:
    """Return a model of a type, of so many layers, in evaluation mode.

    Raises:
        ModuleNotFoundError: transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise ModuleNotFoundError(f"the column {kind} needs the package transformers")
    import transformers

    torch.manual_seed(0)
    model, config, options = KINDS[kind]
    names = {"depth": "num_hidden_layers", "heads": "num_attention_heads", "width": "hidden_size"}
    if kind == "mpt":
        names = {"depth": "n_layers", "heads": "n_heads", "width": "d_model"}
    elif kind in ("t5", "mt5"):
        names |= {"depth": "num_layers"}
        options = options | {"num_decoder_layers": depth}
    sizes = {names["depth"]: depth, names["heads"]: HEADS, names["width"]: WIDTH, "initializer_range": 0.2}
    if kind != "vit":
        sizes |= SPECIAL | {"vocab_size": VOCABULARY}
    if kind not in ("vit", "mpt", "t5", "mt5", "bloom", "gpt2"):
        sizes |= {"max_position_embeddings": LENGTH}
    if "layer_types" in options:
        options = options | {"layer_types": (options["layer_types"] * depth)[:depth]}
    return getattr(transformers, model)(getattr(transformers, config)(**sizes | options | changes)).eval()


def logits(model: Any, inputs: Tensor, **others: Any) -> Tensor:
    """Return the logits of tokens, or of images; of an encoder and decoder, those of the decoder's tokens."""
    if inputs.dim() == 4:
        others["pixel_values"] = inputs.to(model.dtype)
    elif model.config.is_encoder_decoder:
        others = {{"attention_mask": "decoder_attention_mask"}.get(name, name): x for name, x in others.items()}
        encoded = torch.arange(2, 9).expand(len(inputs), -1)
        others |= {"input_ids": encoded, "decoder_input_ids": inputs}
    else:
        others["input_ids"] = inputs
    result: Tensor = model(**others).logits
    return result


def with_encoding(kind: str, name: str, depth: int = DEPTH) -> float:
    """Return how far logits are from those of each sequence alone, in a padded batch and token by token with a cache.

    The cache is left out where the encoding needs whole sequences, or the model is bidirectional. Positions that are
    drawn at random are fixed.

    Raises:
        ValueError: the model does not take the encoding.
    """
    from pe_lab.hf import stacks

    model = replaced(kind, name, depth)
    errors = [_padded(model, kind)]
    if kind not in BIDIRECTIONAL and stacks(model)[0].first.whole_sequence is None:
        errors.append(_token_by_token(model))
    return max(errors)


def padded(kind: str, name: str, depth: int = DEPTH) -> float:
    """Return how far logits in a padded batch, or in a batch of images, are from those of each alone.

    Raises:
        ValueError: the model does not take the encoding.
    """
    return _padded(replaced(kind, name, depth), kind)


@torch.no_grad()
def replaced(kind: str, name: str, depth: int) -> Any:
    """Return a model with an encoding, whose parameters are not where they start, which can be no effect."""
    from pe_lab.hf import replace, stacks

    model = replace(small(kind, depth), name, length=LENGTH if kind in NO_LENGTH else None)
    for stack in stacks(model):
        for parameter in stack.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        stack.constrain()
        if isinstance(stack.first, Randomized):  # the same positions in each pass
            stack.first.draw = lambda count, seed=None: 3 * torch.arange(count)  # type: ignore[method-assign]
    return model


def _tokens() -> Tensor:
    return torch.randint(1, VOCABULARY, (len(SEQUENCES), max(SEQUENCES)), generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def _padded(model: Any, kind: str) -> float:
    if kind == "vit":
        images = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(4))
        return _apart(logits(model, images), torch.cat([logits(model, image[None]) for image in images]))
    tokens, causal = _tokens(), kind not in BIDIRECTIONAL
    mask = torch.tensor([_mask(length, on_left=causal) for length in SEQUENCES])
    seeded = {"use_cache": False} if causal else {}
    together = logits(model, tokens, attention_mask=mask, **seeded)
    alone = [logits(model, row[kept][None], **seeded)[0] for row, kept in zip(tokens, mask.bool(), strict=True)]
    return max(_apart(got[kept], expected) for got, kept, expected in zip(together, mask.bool(), alone, strict=True))


def _mask(length: int, on_left: bool) -> list[int]:
    padding, real = [0] * (max(SEQUENCES) - length), [1] * length
    return padding + real if on_left else real + padding


@torch.no_grad()
def _token_by_token(model: Any) -> float:
    from pe_lab.hf.cache import cache_name

    tokens = _tokens()[:1]
    parts, cache, name = [], None, cache_name(model)
    for index in range(tokens.shape[1]):
        out = model(tokens[:, [index]], **{name: cache}, use_cache=True)
        cache = out[name]
        parts.append(out.logits[0])
    return _apart(torch.cat(parts), logits(model, tokens, use_cache=False)[0])


def _apart(got: Tensor, expected: Tensor) -> float:
    return (got - expected).abs().max().item()
