"""Load a model whose positions were replaced."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from pe_lab.encodings.stack import Stack
from pe_lab.hf.configs import ATTENTION_KEY, ORIGINAL_CONFIGS
from pe_lab.hf.replacement import replace
from pe_lab.system.errors import in_one_line

CONFIG, GENERATION, WEIGHTS, INDEX = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
CONFIG_TYPES = {**{original.model_type: original for original in ORIGINAL_CONFIGS.values()}, **ORIGINAL_CONFIGS}
Description = dict[str, Any]
Result = TypeVar("Result")
logger = logging.get_logger(__name__)


def load(path: str | Path, encoding: str | Stack | None = None, /, **options: Any) -> PreTrainedModel:
    """Return a model that `save_pretrained` wrote after `replace`, with its encoding.

    No code of the folder runs, and nothing outside of it is read. `AutoModelForCausalLM.from_pretrained` and the other
    Auto classes of transformers load such a folder too, once pe_lab.hf is imported.

    Args:
        path: the folder of the model.
        encoding: the name of an encoding or a Stack; None: the name and the options are those that `replace` was given,
            which stand in the configuration. It must be given where that was a Stack, or had options that are no plain
            values.
        options: the options of `replace`, if an encoding is given.

    Raises:
        ValueError: the folder has no model with replaced positions, a file of it is damaged, its encoding is not
            recorded, or its weights are not those of the model.
    """
    folder = Path(path)
    return load_saved(folder, read_description(folder), encoding, options)


def read_description(folder: Path) -> Description:
    """Return what the configuration in a folder says.

    Raises:
        ValueError: it is not that of a model with replaced positions.
    """
    if not (folder / CONFIG).exists():
        raise ValueError(f"path must be a folder that save_pretrained wrote, got {folder} without {CONFIG}")
    described = _json(folder / CONFIG)
    if "pe_lab" not in described:
        raise ValueError(f"path must have a model whose positions were replaced, got {folder}: use from_pretrained")
    return described


def load_saved(
    folder: Path,
    described: Description,
    encoding: str | Stack | None = None,
    options: dict[str, Any] | None = None,
    model_class: type[PreTrainedModel] | None = None,
) -> PreTrainedModel:
    """Return a model of a folder.

    Args:
        described: the description of the model by its configuration.
        encoding, options: the arguments of `load`.
        model_class: the class of the model; None: the class of the one that was saved. Weights that it alone has are
            new.

    Raises:
        ValueError: the cases of `load`; weights of another shape.
    """
    model = make_new(described, encoding, options)
    _load_weights(model, folder)
    if (folder / GENERATION).exists():
        settings = {**_json(folder / GENERATION), "disable_compile": True}  # as in `replace`
        model.generation_config = _call_on_file(folder / GENERATION, GenerationConfig.from_dict, settings)
    if model_class is not None and type(model) is not model_class:
        model = _convert_class(model_class, model, make_new(described, encoding, options, model_class))
    evaluated: PreTrainedModel = model.eval()
    return evaluated


def make_new(
    described: Description,
    encoding: str | Stack | None = None,
    options: dict[str, Any] | None = None,
    wanted: type[PreTrainedModel] | None = None,
) -> PreTrainedModel:
    """Return a model with replaced positions and new weights; the arguments and errors are those of `load_saved`."""
    config, model_class = _config(described), wanted or _architecture(described)
    recorded = _read_record(described)
    if encoding is None:
        if options:
            raise ValueError(f"options need an encoding, got {', '.join(options)} without one")
        if recorded["encoding"] is None:
            raise ValueError("encoding must be given: the configuration has no name of it, got None")
        encoding, options = recorded["encoding"], recorded["options"]
        options = {**options, "length": recorded["length"], "implementation": recorded["implementation"]}
    settings = {"from_config": recorded["from_config"], **(options or {})}
    model: Any = _call_on_file(CONFIG, model_class, config)  # the wrapper of its `to` hides the types
    model.to(config.dtype or torch.float32)
    assert encoding is not None
    return _call_on_file(CONFIG, replace, model, encoding, **settings)


def _json(file: Path) -> Description:
    """Return the object in a JSON file.

    Raises:
        ValueError: it is no regular file, or has no JSON object.
    """
    _require_file(file)
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} must be JSON, got {type(error).__name__}: {in_one_line(error)}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must have a JSON object, got a {type(content).__name__}")
    return content


def _require_file(file: Path) -> None:
    if not file.is_file():  # a pipe would never end
        kind = "something else" if file.exists() else "none"
        raise ValueError(f"{file} must be a regular file, got {kind}")


def _config(described: Description) -> PretrainedConfig:
    """Return the configuration of the model as it was before its positions were replaced."""
    model_type = described.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_TYPES:
        raise ValueError(f"model_type in {CONFIG} must be one of {', '.join(CONFIG_TYPES)}, got {model_type!r}")
    left_out = ("model_type", "pe_lab", "auto_map", ATTENTION_KEY, "attn_implementation")
    options = {key: value for key, value in described.items() if key not in left_out}
    config: PretrainedConfig = _call_on_file(CONFIG, CONFIG_TYPES[model_type].from_dict, options)
    dtype = getattr(config, "dtype", None)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype in {CONFIG} must be that of floating-point numbers, got {dtype!r}")
    config.dtype = dtype
    return config


def _architecture(described: Description) -> type[PreTrainedModel]:
    """Return the class of the model that was saved."""
    names, config = described.get("architectures"), CONFIG_TYPES[described["model_type"]]
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    model_class = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not (
        isinstance(model_class, type)
        and issubclass(model_class, PreTrainedModel)
        and model_class.config_class is config
    ):
        raise ValueError(
            f"architectures in {CONFIG} must have the class of a {config.model_type} model of transformers, got {names}"
        )
    return model_class


def _read_record(described: Description) -> dict[str, Any]:
    """Return what `replace` wrote into the configuration; earlier versions read no settings of the model."""
    recorded = described["pe_lab"]
    if not isinstance(recorded, dict):
        raise ValueError(f"pe_lab in {CONFIG} must be an object, got a {type(recorded).__name__}")
    recorded = {"from_config": False, **recorded}
    kinds: dict[str, tuple[type, ...]] = {
        "encoding": (str, type(None)),
        "length": (int,),
        "implementation": (str,),
        "options": (dict,),
        "from_config": (bool,),
    }
    for key, allowed in kinds.items():
        if not isinstance(recorded.get(key, ...), allowed):
            shown = repr(recorded[key]) if key in recorded else "none"
            raise ValueError(f"{key} of pe_lab in {CONFIG} must be of type {allowed[0].__name__}, got {shown}")
    return recorded


def _call_on_file(where: str | Path, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return what a function makes of what stands in a file.

    Raises:
        ValueError: it raises anything.
    """
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise ValueError(in_one_line(error)) from None
    except Exception as error:  # which class it is depends on the setting and on the version of transformers
        raise ValueError(f"{where} must describe a model, got {type(error).__name__}: {in_one_line(error)}") from None


def _weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights in the files of a folder."""
    names: list[Any] = [WEIGHTS]
    if (folder / INDEX).exists():
        weight_map = _json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"weight_map in {folder / INDEX} must be an object with files, got {weight_map!r:.100}")
        names = list(dict.fromkeys(str(name) for name in weight_map.values()))
    weights: dict[str, Tensor] = {}
    for name in names:
        if not name or Path(name).name != name or "\\" in name or name[0] == "." or not name.isprintable():
            raise ValueError(f"weight_map in {folder / INDEX} must have names of files beside it, got {name!r:.100}")
        _require_file(folder / name)
        try:
            read = load_file(folder / name)
        except Exception as error:  # SafetensorError is one of them
            raise ValueError(f"{folder / name} must have safetensors, got {in_one_line(error)}") from None
        twice = sorted(weights.keys() & read.keys())
        if twice:
            raise ValueError(f"weights must be in one file each, got {twice[0]} again in {folder / name}")
        weights |= {key: weight.clone() for key, weight in read.items()}  # no view of the file
    return weights


def _written_names(model: PreTrainedModel) -> dict[str, str]:
    """Return the names of weights by those that save_pretrained writes, which are others for models such as ViT."""
    state = model.state_dict()
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5
        return {}
    names = {id(weight): name for name, weight in state.items()}
    written = revert_weight_conversion(model, state)
    return {name: names[id(weight)] for name, weight in written.items() if id(weight) in names}


def _load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Load all weights in the dtype of the files, where those that are tied stand once."""
    written = _written_names(model)
    weights = {written.get(name, name): weight for name, weight in _weights(folder).items()}
    unknown = sorted(set(weights) - set(model.state_dict()))
    if unknown:
        raise ValueError(f"weights must be those of this model and encoding, got {unknown[0]} in {folder}")
    try:
        model.load_state_dict(weights, strict=False, assign=True)
    except RuntimeError as error:
        raise ValueError(f"weights must fit this model and encoding: {str(error).splitlines()[-1].strip()}") from None
    model.tie_weights()
    state = model.state_dict()
    there = {state[name].data_ptr() for name in weights}
    missing = [name for name, weight in state.items() if weight.data_ptr() not in there]
    if missing:
        raise ValueError(f"weights must be those of this model and encoding, got none for {missing[0]} in {folder}")


def _convert_class(wanted: type[PreTrainedModel], model: PreTrainedModel, other: PreTrainedModel) -> PreTrainedModel:
    """Return a model of another class, with all weights that both have, by their names with the part's prefix."""
    there = {f"{other.base_model_prefix}.{name}": weight for name, weight in model.base_model.state_dict().items()}
    there |= model.state_dict()
    if isinstance(model.base_model, wanted):
        there |= model.base_model.state_dict()
    state = other.state_dict()
    shared = {name: weight for name, weight in there.items() if name in state}
    wrong = [name for name, weight in shared.items() if weight.shape != state[name].shape]
    if wrong:
        raise ValueError(
            f"weights must fit a {wanted.__name__}: {wrong[0]} must be {list(state[wrong[0]].shape)}, got "
            f"{list(shared[wrong[0]].shape)}"
        )
    other.load_state_dict(shared, strict=False, assign=True)
    other.tie_weights()
    new_ones = [name for name in state if name not in shared]
    if new_ones:
        logger.warning(
            f"these weights of {wanted.__name__} are new and must be trained, {type(model).__name__} has none: "
            f"{', '.join(new_ones)}"
        )
    return other
