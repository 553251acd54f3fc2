"""The configurations of replaced models: their types differ from the originals', so that neither loads as the other."""

from copy import deepcopy
from typing import Any, ClassVar

from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig

from pe_lab.hf.attention import ATTENTION_NAME, UNKNOWN_ATTENTION

KINDS = (  # values of config.model_type
    *("bert", "bloom", "deberta-v2", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "modernbert"),
    *("mpt", "mt5", "olmo2", "opt", "phi3", "qwen2", "qwen3", "roberta", "smollm3", "t5", "vit"),
)
REWRITTEN_TYPES = ("bloom", "deberta-v2", "mpt")  # types whose attention is rewritten
ATTENTION_KEY = "_attn_implementation"  # in a file, the attention function that is set whoever reads it


class _Replaced:
    """A configuration of a model with replaced positions, which says so wherever it is written.

    Without pe_lab its type is unknown to the Auto classes. The class of the original reads the file nonetheless, and
    fails at an attention function that it does not know.
    """

    pe_lab_attention: ClassVar[str]  # the attention function of such models

    def to_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        return {**written, ATTENTION_KEY: self.pe_lab_attention}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        settings = {key: value for key, value in config_dict.items() if key != ATTENTION_KEY}
        return super().from_dict(settings, **options)  # type: ignore[misc]


REPLACED_CONFIGS: dict[type[PretrainedConfig], type[PretrainedConfig]] = {}
for _kind in KINDS:
    _original = CONFIG_MAPPING[_kind]
    _attributes = {
        "model_type": f"pe_lab_{_kind}",
        "pe_lab_attention": UNKNOWN_ATTENTION if _kind in REWRITTEN_TYPES else ATTENTION_NAME,
    }
    REPLACED_CONFIGS[_original] = type(
        f"PeLab{_original.__name__}", (_Replaced, _original), {**_attributes, "__module__": __name__}
    )
    globals()[f"PeLab{_original.__name__}"] = REPLACED_CONFIGS[_original]  # where pickle looks for it
ORIGINAL_CONFIGS = {replacement.model_type: original for original, replacement in REPLACED_CONFIGS.items()}


def mark_replaced(model: nn.Module) -> None:
    """Give a model configurations of its own, of the type of replaced models; others with the same one keep it."""
    copies: dict[int, PretrainedConfig] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig):
            if id(config) not in copies:
                copies[id(config)] = deepcopy(config)
                object.__setattr__(copies[id(config)], "__class__", REPLACED_CONFIGS[type(config)])
            object.__setattr__(module, "config", copies[id(config)])
