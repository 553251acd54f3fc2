"""The types of models whose positions can be replaced: where their layers are, and where their own positions enter.

`FAMILIES` is the table: a row for each type of model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import unwrap
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from pe_lab.hf.configs import REPLACED_CONFIGS
from pe_lab.hf.model_positions import (
    BucketPositions,
    ModelPositions,
    SlopePositions,
    TablePositions,
    UnknownPositions,
    rotations,
)
from pe_lab.hf.rewritten import Bloom, DebertaContent, Mpt


class ZeroVectors(nn.Module):
    """Returns zero in the place of a table of position vectors."""

    def forward(self, ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return torch.zeros((), device=ids.device)  # a number: it leaves the dtype of what it is added to


class NoRotation(nn.Module):
    """Returns cosine 1 and sine 0 in the place of those of positions."""

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        return x.new_ones(1, 1, 1), x.new_zeros(1, 1, 1)


class PositionMethod(NamedTuple):
    """A method whose result brings positions to attention, in a model whose layers take no other arguments.

    Args:
        module: the path of the module in the part that has the layers.
        method: the name of that module's method whose result the model gives to every layer.
        argument: the name of the argument under which attention gets it.
    """

    module: str
    method: str
    argument: str


@dataclass(frozen=True)
class ModelFamily:
    """What models of a type have in common.

    Args:
        kind: the name of the class that embeds tokens and has the layers; a model may have several.
        positions: a function that returns the positions of a part of a model.
        remove: a function that takes the model's own positions out.
        layers: the path of the layers in the part.
        attention: the path of self-attention in a layer.
        value: the path of the module that computes values in attention.
        fused: whether that module computes queries and keys too: all of them before all values ("blocks"), or those
            of a head before the values of the head ("heads").
        causal: whether attention is causal; None: if the configuration says is_decoder.
        passes_zeros: whether the model indexes tables of its own, beside that of positions, with position_ids.
        mask: the kind of mask that the model gets in the place of the mask of padding, which the layout has: None for
            nothing, "padding" for that mask, which it reads beside attention, or "any" for one that it needs, and gives
            to attention alone.
        images: whether the model embeds images instead of tokens.
        position_method: the method that brings positions to attention, where layers get no arguments of ours.
        rewritten: the class of attention that goes through `AttentionInterface`, where that of the model does not.
        length: a function that returns the longest sequence of the model, by its configuration; None: no limit is
            known.
    """

    kind: str
    positions: Callable[[Any], ModelPositions]
    remove: Callable[[Any], None]
    layers: str = "layers"
    attention: str = "self_attn"
    value: str = "v_proj"
    fused: Literal["blocks", "heads"] | None = None
    causal: bool | None = True
    passes_zeros: bool = False
    mask: Literal["padding", "any"] | None = None
    images: bool = False
    position_method: PositionMethod | None = None
    rewritten: type[nn.Module] | None = None
    length: Callable[[Any], int | None] = lambda config: getattr(config, "max_position_embeddings", None)

    def parts(self, model: PreTrainedModel) -> list[PreTrainedModel]:
        """Return the modules of the model that embed tokens and have layers.

        Raises:
            ValueError: there is none.
        """
        parts: list[PreTrainedModel] = []
        for module in model.modules():
            if any(base.__name__ == self.kind for base in type(module).__mro__):
                assert isinstance(module, PreTrainedModel)
                parts.append(module)
        if not parts:
            raise ValueError(f"model must contain a {self.kind}, got {type(model).__name__} without one")
        return parts

    def attentions(self, part: nn.Module) -> list[Any]:
        """Return the self-attention of every layer.

        Raises:
            ValueError: the model has other modules, or attention does not call what `AttentionInterface` registers.
        """
        try:
            modules = [layer.get_submodule(self.attention) for layer in part.get_submodule(self.layers).children()]
            for attention in modules:
                attention.get_submodule(self.value)
        except AttributeError as error:
            raise ValueError(
                f"{type(part).__name__} must have the modules of transformers 5.24, got one of another version: {error}"
            ) from None
        for attention in modules:
            if self.rewritten is None and not uses_interface(attention):
                raise ValueError(
                    f"attention must be computed through AttentionInterface, {type(attention).__name__} of this "
                    f"version of transformers does it itself: install a newer one"
                )
        return modules

    def is_causal(self, part: PreTrainedModel) -> bool:
        """Return whether self-attention is causal."""
        config = part.config
        if self.causal is None:
            return bool(getattr(config, "is_decoder", False))
        if getattr(config, "use_bidirectional_attention", False):
            return False
        return self.causal and getattr(config, "is_causal", True) is not False


def uses_interface(module: nn.Module) -> bool:
    """Return whether a module computes attention by the function that is set in its configuration."""
    code = getattr(unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def windows(part: PreTrainedModel, attentions: list[Any]) -> set[int]:
    """Return the sliding windows of the layers, as attention gives them to its function."""
    sizes = {getattr(each, "sliding_window", getattr(part.config, "sliding_window", None)) for each in attentions}
    return {size for size in sizes if size is not None}


# -- how positions are taken out ---------------------------------------------------------------------------------------


def _table(path: str) -> Callable[[Any], None]:
    return lambda part: part.set_submodule(path, ZeroVectors())


def _rotation(part: Any) -> None:
    part.rotary_emb = NoRotation()


def _remove_nothing(part: Any) -> None:
    """Leave the model: its positions are in what the position_method stands for."""


def _buckets(family: str) -> Callable[[Any], None]:
    def remove(part: Any) -> None:
        for attention in FAMILIES[family].attentions(part):
            if attention.has_relative_attention_bias:
                attention.has_relative_attention_bias = False
                del attention.relative_attention_bias

    return remove


def _no_vectors(*args: Any) -> float:
    return 0.0


def _patches(part: Any) -> None:
    """Also for images of another size, to which the model would adapt its table."""
    table = part.embeddings.position_embeddings
    del part.embeddings.position_embeddings
    part.embeddings.register_buffer("position_embeddings", table.new_zeros(()), persistent=False)
    object.__setattr__(part.embeddings, "interpolate_pos_encoding", _no_vectors)


def _remove_relative_tables(part: Any) -> None:
    part.embeddings.position_embeddings = None
    encoder = part.encoder
    if encoder.relative_attention:
        encoder.relative_attention = False
        del encoder.rel_embeddings
    if "layer_norm" in encoder.norm_rel_ebd:
        encoder.norm_rel_ebd = ["none"]
        del encoder.LayerNorm
    for layer in encoder.layer:
        for name in ("pos_key_proj", "pos_query_proj"):
            layer.attention.self._modules.pop(name, None)


# -- the table ---------------------------------------------------------------------------------------------------------


def _require_one_width(part: Any) -> None:
    if part.project_in is not None:
        raise ValueError(
            f"word_embed_proj_dim must be hidden_size = {part.config.hidden_size}, in which positions enter, got "
            f"{part.config.word_embed_proj_dim}"
        )


def _opt_positions(part: Any) -> ModelPositions:
    _require_one_width(part)
    return TablePositions(part.embed_positions.weight[part.embed_positions.offset :])


def _roberta_positions(part: Any) -> ModelPositions:
    return TablePositions(part.embeddings.position_embeddings.weight[part.embeddings.padding_idx + 1 :])


def _rotary_family(kind: str, **others: Any) -> ModelFamily:
    return ModelFamily(kind, rotations, _rotation, **others)


_BERT = ModelFamily(
    kind="BertModel",
    positions=lambda part: TablePositions(part.embeddings.position_embeddings.weight),
    remove=_table("embeddings.position_embeddings"),
    layers="encoder.layer",
    attention="attention.self",
    value="value",
    causal=None,
    passes_zeros=True,
)
_T5 = ModelFamily(
    kind="T5Stack",
    positions=BucketPositions,
    remove=_buckets("t5"),
    layers="block",
    attention="layer.0.SelfAttention",
    value="v",
    causal=None,
)
FAMILIES = {  # families by config.model_type
    "bert": _BERT,
    "bloom": ModelFamily(
        kind="BloomModel",
        positions=SlopePositions,
        remove=_remove_nothing,
        layers="h",
        attention="self_attention",
        value="query_key_value",
        fused="heads",
        mask="any",
        position_method=PositionMethod("", "build_alibi_tensor", "alibi"),
        rewritten=Bloom,
        length=lambda config: getattr(config, "seq_length", None),
    ),
    "deberta-v2": replace(
        _BERT,
        kind="DebertaV2Model",
        positions=UnknownPositions,
        remove=_remove_relative_tables,
        value="value_proj",
        causal=False,
        passes_zeros=False,
        mask="padding",
        position_method=PositionMethod("encoder", "get_rel_pos", "relative_pos"),
        rewritten=DebertaContent,
    ),
    "gemma2": _rotary_family("Gemma2Model"),
    "gemma3_text": _rotary_family("Gemma3TextModel"),
    "gpt2": ModelFamily(
        kind="GPT2Model",
        positions=lambda part: TablePositions(part.wpe.weight),
        remove=_table("wpe"),
        layers="h",
        attention="attn",
        value="c_attn",
        fused="blocks",
    ),
    "gpt_neox": _rotary_family("GPTNeoXModel", attention="attention", value="query_key_value", fused="heads"),
    "llama": _rotary_family("LlamaModel"),
    "mistral": _rotary_family("MistralModel"),
    "modernbert": _rotary_family("ModernBertModel", attention="attn", value="Wqkv", fused="blocks", causal=False),
    "mpt": ModelFamily(
        kind="MptModel",
        positions=SlopePositions,
        remove=_remove_nothing,
        layers="blocks",
        attention="attn",
        value="Wqkv",
        fused="blocks",
        mask="any",
        position_method=PositionMethod("", "build_mpt_alibi_tensor", "position_bias"),
        rewritten=Mpt,
        length=lambda config: config.max_seq_len,
    ),
    "mt5": replace(_T5, kind="MT5Stack", remove=_buckets("mt5")),
    "olmo2": _rotary_family("Olmo2Model"),
    "opt": ModelFamily("OPTDecoder", _opt_positions, _table("embed_positions")),
    "phi3": _rotary_family("Phi3Model", value="qkv_proj", fused="blocks"),
    "qwen2": _rotary_family("Qwen2Model"),
    "qwen3": _rotary_family("Qwen3Model"),
    "roberta": replace(
        _BERT,
        kind="RobertaModel",
        positions=_roberta_positions,
        length=lambda config: config.max_position_embeddings - config.pad_token_id - 1,
    ),
    "smollm3": _rotary_family("SmolLM3Model"),
    "t5": _T5,
    "vit": ModelFamily(
        kind="ViTModel",
        positions=lambda part: TablePositions(part.embeddings.position_embeddings[0]),
        remove=_patches,
        attention="attention",
        causal=False,
        images=True,
        length=lambda config: (config.image_size // config.patch_size) ** 2 + 1,
    ),
}


def model_family(model: PreTrainedModel) -> ModelFamily:
    """Return the family of a model.

    Raises:
        ValueError: its type is unknown, or the class of a configuration, as that of a subclass would be lost on saving.
    """
    model_type = model.config.model_type
    if model_type not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)}, got {model_type!r}")
    for config in (getattr(module, "config", None) for module in model.modules()):
        if isinstance(config, PretrainedConfig) and type(config) not in REPLACED_CONFIGS:
            names = ", ".join(original.__name__ for original in REPLACED_CONFIGS)
            raise ValueError(f"config must be of one of {names}, and of no subclass, got {type(config).__name__}")
    return FAMILIES[model_type]
