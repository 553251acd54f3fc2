"""The types of models whose positions can be replaced: where their layers are, and where their own positions enter."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from pe_lab.hf.configs import REPLACED
from pe_lab.hf.settings import Buckets, Own, Rotation, Table


class NoVectors(nn.Module):
    """Return zero in the place of a table of position vectors."""

    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros((), device=ids.device)  # a number: it leaves the dtype of what it is added to


class NoRotation(nn.Module):
    """Return cosine 1 and sine 0 in the place of those of positions."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_ones(1, 1, 1), x.new_zeros(1, 1, 1)


@dataclass(frozen=True)
class Family:
    """What models of a type have in common.

    Args:
        kind: name of the class that embeds tokens and has the layers; a model may have several.
        layers: path of the layers in it.
        attention: path of self-attention in a layer.
        value: path of the module that computes values in attention.
        fused: whether that module computes queries and keys before them.
        always_causal: whether attention is causal; False: if the configuration says is_decoder.
        passes_zeros: whether it indexes tables of its own, beside that of positions, with position_ids.
        own: returns the positions of a part of a model.
        remove: takes the model's own positions out.
    """

    kind: str
    layers: str
    attention: str
    value: str
    fused: bool
    always_causal: bool
    passes_zeros: bool
    own: Callable[[Any], Own]
    remove: Callable[[Any], None]

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
            ValueError: attention does not call what `AttentionInterface` registers.
        """
        found = [layer.get_submodule(self.attention) for layer in part.get_submodule(self.layers).children()]
        for attention in found:
            if not uses_interface(attention):
                raise ValueError(
                    f"attention must be computed through AttentionInterface, {type(attention).__name__} of this "
                    f"version of transformers does it itself: install a newer one"
                )
        return found

    def causal(self, part: PreTrainedModel) -> bool:
        """Return whether self-attention is causal."""
        if self.always_causal:
            return getattr(part.config, "is_causal", True) is not False
        return bool(part.config.is_decoder)


def uses_interface(module: nn.Module) -> bool:
    """Return whether a module computes attention by the function that is set in its configuration."""
    code = getattr(unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _remove_from_bert(part: Any) -> None:
    part.embeddings.position_embeddings = NoVectors()


def _remove_from_gpt2(part: Any) -> None:
    part.wpe = NoVectors()


def _remove_from_llama(part: Any) -> None:
    part.rotary_emb = NoRotation()


def _remove_from_t5(part: Any) -> None:
    for attention in FAMILIES["t5"].attentions(part):
        if attention.has_relative_attention_bias:
            attention.has_relative_attention_bias = False
            del attention.relative_attention_bias


FAMILIES = {  # by config.model_type
    "bert": Family(
        kind="BertModel",
        layers="encoder.layer",
        attention="attention.self",
        value="value",
        fused=False,
        always_causal=False,
        passes_zeros=True,
        own=lambda part: Table(part, "embeddings.position_embeddings"),
        remove=_remove_from_bert,
    ),
    "gpt2": Family(
        kind="GPT2Model",
        layers="h",
        attention="attn",
        value="c_attn",
        fused=True,
        always_causal=True,
        passes_zeros=False,
        own=lambda part: Table(part, "wpe"),
        remove=_remove_from_gpt2,
    ),
    "llama": Family(
        kind="LlamaModel",
        layers="layers",
        attention="self_attn",
        value="v_proj",
        fused=False,
        always_causal=True,
        passes_zeros=False,
        own=Rotation,
        remove=_remove_from_llama,
    ),
    "t5": Family(
        kind="T5Stack",
        layers="block",
        attention="layer.0.SelfAttention",
        value="v",
        fused=False,
        always_causal=False,
        passes_zeros=False,
        own=Buckets,
        remove=_remove_from_t5,
    ),
}


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model.

    Raises:
        ValueError: its type is unknown, or the class of a configuration, as that of a subclass would be lost on saving.
    """
    model_type = model.config.model_type
    if model_type not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)}, got {model_type!r}")
    for config in (getattr(module, "config", None) for module in model.modules()):
        if isinstance(config, PretrainedConfig) and type(config) not in REPLACED:
            names = ", ".join(known.__name__ for known in REPLACED)
            raise ValueError(f"config must be of one of {names}, and of no subclass, got {type(config).__name__}")
    return FAMILIES[model_type]
