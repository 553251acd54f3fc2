"""Load a model whose positions were replaced."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from pe_lab.encodings.stack import Stack
from pe_lab.hf.replacement import replace


def load(path: str | Path, encoding: str | Stack | None = None, /, **options: Any) -> PreTrainedModel:
    """Return a model that `save_pretrained` wrote after `replace`, with its encoding.

    Args:
        path: of the folder.
        encoding: None: the name and the options are those that `replace` was given, which stand in the configuration.
            It must be given where that was a Stack, or had options that are no plain values.
        options: as those of `replace`, with an encoding.

    Raises:
        ValueError: the folder has no model with replaced positions, its encoding is not recorded, or its weights are
            not those of the model.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ValueError(f"path must be a folder that save_pretrained wrote, got {path}")
    config = AutoConfig.from_pretrained(folder)
    recorded = getattr(config, "pe_lab", None)
    if recorded is None:
        raise ValueError(f"path must have a model whose positions were replaced, got {path}: use from_pretrained")
    if encoding is None:
        if options:
            raise ValueError(f"options need an encoding, got {', '.join(options)} without one")
        if recorded["encoding"] is None:
            raise ValueError("encoding must be given: the configuration has no name of it, got None")
        encoding = recorded["encoding"]
        options = {**recorded["options"], "length": recorded["length"], "implementation": recorded["implementation"]}
    options.setdefault("from_config", recorded.get("from_config", False))  # earlier versions read no config
    model: Any = getattr(transformers, config.architectures[0])(config)
    model.to(getattr(config, "dtype", None) or torch.float32)
    replace(model, encoding, **options)
    _load_weights(model, folder)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    evaluated: PreTrainedModel = model.eval()
    return evaluated


def _load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Load all weights in the dtype of the files, where those that are tied stand once."""
    index = folder / "model.safetensors.index.json"
    names = (
        sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    )
    loaded: set[str] = set()
    for name in names:
        weights = {key: weight.clone() for key, weight in load_file(folder / name).items()}  # no view of the file
        unknown = sorted(set(weights) - set(model.state_dict()))
        if unknown:
            raise ValueError(f"weights must be those of this model and encoding, got {unknown[0]} in {folder / name}")
        try:
            model.load_state_dict(weights, strict=False, assign=True)
        except RuntimeError as error:
            raise ValueError(
                f"weights must fit this model and encoding: {str(error).splitlines()[-1].strip()}"
            ) from None
        loaded |= set(weights)
    model.tie_weights()
    state = model.state_dict()
    there = {state[name].data_ptr() for name in loaded}
    missing = [name for name, weight in state.items() if weight.data_ptr() not in there]
    if missing:
        raise ValueError(f"weights must be those of this model and encoding, got none for {missing[0]} in {folder}")
