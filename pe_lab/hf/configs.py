"""The configurations of replaced models: types of their own, which nothing takes for the original's."""

from copy import deepcopy
from typing import Any

from torch import nn
from transformers import BertConfig, GPT2Config, LlamaConfig, PretrainedConfig, T5Config

from pe_lab.hf.attention import NAME

ATTENTION = "_attn_implementation"  # in a file, the attention function that is set whoever reads it


class _Replaced:
    """A configuration of a model with replaced positions, which says so wherever it is written.

    Without pe_lab its type is unknown to the Auto classes. The class of the original reads the file nonetheless, and
    fails at an attention function that it does not know.
    """

    def to_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        return {**written, ATTENTION: NAME}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        kept = {key: value for key, value in config_dict.items() if key != ATTENTION}
        return super().from_dict(kept, **options)  # type: ignore[misc]


class PeLabBertConfig(_Replaced, BertConfig):
    model_type = "pe_lab_bert"


class PeLabGPT2Config(_Replaced, GPT2Config):
    model_type = "pe_lab_gpt2"


class PeLabLlamaConfig(_Replaced, LlamaConfig):
    model_type = "pe_lab_llama"


class PeLabT5Config(_Replaced, T5Config):
    model_type = "pe_lab_t5"


REPLACED: dict[type[PretrainedConfig], type[PretrainedConfig]] = {
    BertConfig: PeLabBertConfig,
    GPT2Config: PeLabGPT2Config,
    LlamaConfig: PeLabLlamaConfig,
    T5Config: PeLabT5Config,
}
ORIGINAL = {made.model_type: original for original, made in REPLACED.items()}


def mark(model: nn.Module) -> None:
    """Give a model configurations of its own, of the type of replaced models; others with the same one keep it."""
    made: dict[int, PretrainedConfig] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig):
            if id(config) not in made:
                made[id(config)] = deepcopy(config)
                object.__setattr__(made[id(config)], "__class__", REPLACED[type(config)])
            module.config = made[id(config)]
