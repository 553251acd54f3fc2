"""The positions of a model that transformers describes, as an encoding with options, read from its config.json.

These are its rotations, the layers that have none, and the temperature of its attention by position; windows are not
read. Both spellings of transformers are read: `rope_parameters` of version 5, and `rope_scaling` beside `rope_theta` of
older ones. Nothing here imports torch or transformers.
"""

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pe_lab.encodings.options import OptionError, is_integer, show_value

Options = dict[str, Any]

ENCODING_OF_TYPE = {  # names of encodings by rope type of transformers
    "default": "rope",
    "linear": "rope_pi",
    "dynamic": "rope_dynamic_ntk",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "proportional": "p_rope",
}
OLD_TYPE_NAMES = {"su": "longrope", "mrope": "default"}  # other names of rope types
READ_PARAMETERS = {  # parameters of each rope type, beside those of all
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (
        *("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
        *("attention_factor", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "original_max_position_embeddings", "short_factor", "long_factor", "attention_factor"),
    "proportional": ("partial_rotary_factor", "factor"),
}
OF_ALL = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
INTERLEAVED_TYPES = (  # types of models that rotate dimensions next to each other; others rotate halves
    *("gptj", "codegen", "cohere", "cohere2", "cohere2_moe", "glm", "glm4", "helium", "ernie4_5", "ernie4_5_moe"),
    *("llama4", "llama4_text", "moonshine"),
)
LLAMA4 = ("attn_scale", "floor_scale")
SOME_ROTATE = ("llama4_text", "smollm3")  # types of models in which every fourth layer does not rotate, by default
ANY_OF = ("rope_theta", "rope_parameters", "rope_scaling", "rotary_dim", "rotary_pct", "rotary_emb_base")


def read_encoding(path: str) -> tuple[str, Options]:
    """Return the name and the options of the encoding that a checkpoint has.

    Args:
        path: the path of the folder of a checkpoint, or of its config.json.

    Raises:
        OptionError: there is no such file; it is no JSON; the model does not rotate, or in a way that no encoding has.
    """
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"path must be a folder with a config.json, got {path!r}: {error.strerror}") from None
    except ValueError as error:
        raise OptionError(f"path must have JSON in {file.name}, got {path!r}: {error}") from None
    if not isinstance(config, dict):
        raise OptionError(f"path must have an object in {file.name}, got {show_value(config)} in {path!r}")
    try:
        return encoding_of_config(config)
    except OptionError as error:
        raise OptionError(f"path must be of a model whose rotations an encoding has: {error}, in {file}") from None


def encoding_of_config(config: Mapping[str, Any]) -> tuple[str, Options]:
    """Return the name and the options of the encoding of a configuration.

    Raises:
        OptionError: the model does not rotate, or in a way that no encoding has.
    """
    if isinstance(config.get("text_config"), dict) and not any(key in config for key in ANY_OF):
        config = config["text_config"]
    if not any(config.get(key) is not None for key in ANY_OF):
        raise OptionError(f"one of {', '.join(ANY_OF)} must be given, got none (model_type={config.get('model_type')})")
    if config.get("qk_rope_head_dim") is not None:
        rotated = config["qk_rope_head_dim"]
        raise OptionError(f"whole heads or their first dimensions must rotate, got qk_rope_head_dim={rotated}")
    parameters = _parameters(config)
    kind = parameters["rope_type"]
    if kind not in ENCODING_OF_TYPE:
        raise OptionError(f"rope_type must be one of {', '.join(ENCODING_OF_TYPE)}, got {kind!r}")
    temperature = _temperature(config, parameters)
    axes = {}
    if kind == "default" and parameters.get("mrope_section") is not None:
        axes["sections"] = parameters.pop("mrope_section")
        axes["interleaved"] = bool(parameters.pop("mrope_interleaved", False))
    names = {*OF_ALL, *READ_PARAMETERS[kind]}
    if extra_parameters := {key: value for key, value in parameters.items() if key not in names and value is not None}:
        values = ", ".join(f"{key}={show_value(value)}" for key, value in extra_parameters.items())
        raise OptionError(f"parameters of rope_type={kind} must be among {', '.join(sorted(names))}, got {values}")
    pairing = "interleaved" if config.get("model_type") in INTERLEAVED_TYPES else "half"
    options: Options = {"theta": float(_number(parameters, "rope_theta")), "pairing": pairing}
    if kind != "proportional" and (dims := _rotary_dim(config, parameters)) is not None:
        options["rotary_dim"] = dims
    options |= axes | scaling_options(kind, parameters, config.get("max_position_embeddings"))
    rotation = {"name": "mrope" if axes else ENCODING_OF_TYPE[kind], **options}
    if (layers := _layers(config)) is not None:
        parts = [rotation if rotates else temperature or {"name": "none"} for rotates, _ in layers]
        return "interleave", {"parts": parts, "layers": [count for _, count in layers]}
    if temperature is not None:
        return "sum", {"parts": [rotation, temperature]}
    return rotation.pop("name"), rotation


def _temperature(config: Mapping[str, Any], parameters: Options) -> Options | None:
    """Return the temperature of attention by position, as an encoding; None: it is the same at all positions.

    Its parameters are taken out of those of the rotation. That of Llama 4 is for layers without rotations.
    """
    if config.get("model_type") == "ministral3":
        beta = _number(parameters, "llama_4_scaling_beta")
        parameters.pop("llama_4_scaling_beta")
        parameters.pop("max_position_embeddings", None)  # transformers reads that of the configuration
        length = _number(parameters, "original_max_position_embeddings")
        return {"name": "temperature", "beta": float(beta), "original_length": length, "first": 0}
    if config.get("model_type") == "llama4_text" and config.get("attn_temperature_tuning", True):
        beta, length = (_number({"attn_scale": 0.1, "floor_scale": 8192, **config}, key) for key in LLAMA4)
        return {"name": "temperature", "beta": float(beta), "original_length": length, "first": 1}
    return None


def _layers(config: Mapping[str, Any]) -> list[tuple[bool, int]] | None:
    """Return whether the next layers rotate, and how many these are, over and over; None: all layers rotate.

    Raises:
        OptionError: layers with and without rotations do not come in turns of the same size.
    """
    pattern, depth = config.get("no_rope_layers"), config.get("num_hidden_layers")
    if not pattern and config.get("model_type") in SOME_ROTATE:
        interval = config.get("no_rope_layer_interval", 4)
        if not is_integer(interval) or interval < 1:
            raise OptionError(f"no_rope_layer_interval must be an integer of at least 1, got {show_value(interval)}")
        pattern = [int((layer + 1) % interval != 0) for layer in range(int(_number(config, "num_hidden_layers")))]
    if not pattern:
        return None
    if not isinstance(pattern, list):
        raise OptionError(f"no_rope_layers must be a list, got {show_value(pattern)}")
    if all(pattern):
        return None
    rotate = [bool(flag) for flag in pattern][:depth]
    runs = [(rotates, len(list(group))) for rotates, group in groupby(rotate)][:2]
    turn = [rotates for rotates, count in runs for _ in range(count)]
    if len(runs) < 2 or rotate != [turn[layer % len(turn)] for layer in range(len(rotate))]:
        raise OptionError(
            f"layers that rotate must come in turns with others, got no_rope_layers={show_value(pattern)}"
        )
    return runs


def _parameters(config: Mapping[str, Any]) -> Options:
    """Return the parameters of the rotation, as transformers 5 has them."""
    source = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(source, Mapping):
        raise OptionError(f"rope_parameters must be an object, got {show_value(source)}")
    nested = [key for key, value in source.items() if isinstance(value, Mapping)]
    if nested or config.get("rope_local_base_freq") is not None:
        kinds = ", ".join(nested) or "global and local layers"
        raise OptionError(f"all layers must have the same rotation, got one each for {kinds}")
    parameters = dict(source)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    parameters["rope_type"] = OLD_TYPE_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    theta = config.get("rope_theta", config.get("rotary_emb_base"))
    parameters.setdefault("rope_theta", 10_000.0 if theta is None else theta)
    partial = config.get("partial_rotary_factor", config.get("rotary_pct"))
    if partial is not None:
        parameters.setdefault("partial_rotary_factor", partial)
    original = config.get("original_max_position_embeddings")  # takes precedence, as in Phi-3
    if original is not None and "original_max_position_embeddings" in READ_PARAMETERS.get(parameters["rope_type"], ()):
        parameters["original_max_position_embeddings"] = original
    return parameters


def _number(parameters: Mapping[str, Any], name: str) -> Any:
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"{name} must be a number, got {show_value(value)}")
    return value


def _rotary_dim(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> int | None:
    """Return how many dimensions are rotated; None: all."""
    if config.get("rotary_dim") is not None:
        return int(_number(config, "rotary_dim"))
    share = None if parameters.get("partial_rotary_factor") is None else _number(parameters, "partial_rotary_factor")
    if share is None or share == 1:
        return None
    width, heads = (_number({name: config.get(name, config.get(other, 0))}, name) for name, other in SIZE_KEYS)
    head_dim = config.get("head_dim") or (int(width) // int(heads) if width and heads else None)
    if head_dim is None:
        raise OptionError(f"head_dim must be given beside partial_rotary_factor={share}, got none")
    return int(head_dim * share)


SIZE_KEYS = (("hidden_size", "n_embd"), ("num_attention_heads", "n_head"))


def scaling_options(kind: str, parameters: Mapping[str, Any], longest: int | None) -> Options:
    """Return the options of an encoding that are parameters of a rope type of transformers.

    Args:
        kind: the rope type.
        longest: the model's max_position_embeddings.

    Raises:
        OptionError: a parameter that has no default is not given.
    """
    get = parameters.get
    if kind == "default":
        return {}
    if kind == "proportional":
        return {"p": get("partial_rotary_factor", 1.0), "factor": get("factor") or 1.0}
    original = get("original_max_position_embeddings") or longest
    for value in (longest, original):
        _number({"max_position_embeddings": value or 0}, "max_position_embeddings")
    factor = get("factor")
    if factor is None and kind in ("yarn", "longrope") and longest and original:
        factor = longest / original
    if factor is None:
        raise OptionError(f"factor must be given for rope_type={kind}, got none")
    if kind == "linear":
        return {"factor": factor}
    length = longest if kind == "dynamic" else original
    if length is None:
        raise OptionError(f"max_position_embeddings must be given for rope_type={kind}, got none")
    options = {"factor": factor, "original_length": length}
    if kind == "yarn":
        sizes = {key: get(key) for key in ("mscale", "mscale_all_dim") if get("mscale") and get("mscale_all_dim")}
        sizes = sizes if get("attention_factor") is None else {"attention_factor": get("attention_factor")}
        truncate = get("truncate", True)
        ends = {"beta_fast": get("beta_fast") or 32.0, "beta_slow": get("beta_slow") or 1.0}
        return {**options, **ends, "ramp": "code", "truncate": truncate, **sizes}
    if kind == "llama3":
        ends = {
            "beta_fast": _number(parameters, "high_freq_factor"),
            "beta_slow": _number(parameters, "low_freq_factor"),
        }
        return {**options, **ends, "attention_factor": 1.0}
    if kind == "longrope":
        factors = {f"{kind}_factors": get(f"{kind}_factor") for kind in ("short", "long")}
        return {**options, **factors, "attention_factor": get("attention_factor")}
    return options
