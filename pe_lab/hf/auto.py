"""The Auto classes of transformers load replaced models."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from pe_lab.hf.configs import REPLACED_CONFIGS
from pe_lab.hf.loading import load_saved, make_new, read_description

# arguments that say where and how files are found, which are in a folder here
FINDING = (
    *("_commit_hash", "_from_auto", "cache_dir", "force_download", "local_files_only", "proxies", "revision"),
    *("token", "trust_remote_code", "adapter_kwargs", "code_revision"),
)


class AutoLoader:
    """What an Auto class calls in the place of a model's class.

    Attributes:
        auto: the Auto class.
        config_class: the configuration class of the models.
        original: the configuration class of the models before their positions were replaced.
    """

    auto: ClassVar[Any]
    config_class: ClassVar[Any]
    original: ClassVar[type[PretrainedConfig]]

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *args: Any, config: PretrainedConfig | None = None, **options: Any
    ) -> PreTrainedModel:
        """Return the model in a folder, as `load` does, of the class that the Auto class has for it.

        Raises:
            ValueError: the cases of `load`; an argument that has no effect here.
        """
        folder = Path(path, options.pop("subfolder", None) or "")
        if not folder.is_dir():
            raise ValueError(f"path must be a folder on this machine, got {path}: download it first")
        dtype = cls._dtype(args, options)
        model = load_saved(
            folder, cls._config_dict(config) if config else read_description(folder), model_class=cls._model_class()
        )
        return _cast(model, dtype)

    @classmethod
    def _from_config(cls, config: PretrainedConfig, **options: Any) -> PreTrainedModel:
        """Return a model with new weights.

        Raises:
            ValueError: the cases of `replace`; an argument that has no effect here.
        """
        dtype = cls._dtype((), options)
        return _cast(make_new(cls._config_dict(config), wanted=cls._model_class()), dtype)

    @classmethod
    def _model_class(cls) -> type[PreTrainedModel]:
        wanted: type[PreTrainedModel] = cls.auto._model_mapping[cls.original]
        return wanted

    @classmethod
    def _config_dict(cls, config: PretrainedConfig) -> dict[str, Any]:
        name = cls.config_class.pe_lab_attention
        if config._attn_implementation not in (None, name):
            raise ValueError(f"attn_implementation must be {name!r}, got {config._attn_implementation!r}")
        return config.to_dict()

    @classmethod
    def _dtype(cls, args: tuple[Any, ...], options: dict[str, Any]) -> torch.dtype | None:
        """Return the dtype among arguments, where there is no other."""
        dtypes = [options.pop(name, None) for name in ("dtype", "torch_dtype")]
        dtype = next((dtype for dtype in dtypes if dtype not in (None, "auto")), None)
        dtype = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype must be one of torch, got {dtype!r}")
        left = [name for name, value in options.items() if name not in FINDING and value not in (None, False)]
        if left or args:
            raise ValueError(f"arguments must be such as pe_lab.hf.load knows, got {', '.join(left) or args}")
        return dtype


def _cast(model: Any, dtype: torch.dtype | None) -> PreTrainedModel:
    """Return the model in a dtype; None: as it is. The wrapper of its method `to` hides the types."""
    cast: PreTrainedModel = model if dtype is None else model.to(dtype)
    return cast


def register_types() -> None:
    """Make the types of replaced models known to the Auto classes."""
    autos: list[Any] = [
        auto
        for auto in vars(modeling_auto).values()
        if isinstance(auto, type) and getattr(auto, "_model_mapping", None) is not None
    ]
    for original, replaced in REPLACED_CONFIGS.items():
        AutoConfig.register(replaced.model_type, replaced, exist_ok=True)
        for auto in autos:
            if original in auto._model_mapping:
                attributes = {"auto": auto, "config_class": replaced, "original": original}
                loader = type(f"{replaced.__name__}{auto.__name__}", (AutoLoader,), attributes)
                auto.register(replaced, loader, exist_ok=True)
