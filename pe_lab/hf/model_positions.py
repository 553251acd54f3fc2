"""The positions that a model of transformers has itself, as an encoding with options."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.hf_config import ENCODING_OF_TYPE, READ_PARAMETERS, scaling_options
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.named import factory

Options = dict[str, Any]


class ModelPositions:
    """The positions of a part of a model, with its own encoding still in it.

    Attributes:
        name: the name of the encoding that they are; None: no encoding of the lab is the same.
        options: the options of that encoding, as the model has them.
    """

    name: str | None = None
    options: Options = {}

    def of_layers(self, depth: int) -> list["ModelPositions"]:
        """Return the positions of each layer; layers with the same ones have the same object."""
        return [self] * depth

    def named(self, name: str, options: Options) -> str:
        """Return the name of the encoding that these layers get where one is given for the model, with options."""
        return name

    def settings(self, name: str, encoding_class: type[PositionalEncoding]) -> Options:
        """Return the model's settings for an encoding.

        Raises:
            ValueError: the encoding is of the model's kind, and cannot represent them.
        """
        return self.options if self.name is not None and encoding_class is factory(self.name) else {}

    def adopt(self, encoding: Any) -> None:
        """Take the model's weights into the encoding that has its name and options.

        Raises:
            ValueError: the encoding does not compute what the model does.
        """
        raise NotImplementedError


class UnknownPositions(ModelPositions):
    """Positions that no encoding of the lab computes."""

    def __init__(self, part: nn.Module) -> None:
        pass


class TablePositions(ModelPositions):
    """The trained vectors of GPT-2, BERT, RoBERTa, OPT and ViT.

    Args:
        vectors: [length, D] vectors, that of position 0 first.
    """

    name = "learnable"

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.options = {"max_len": len(vectors)}

    @torch.no_grad()
    def adopt(self, encoding: Any) -> None:
        encoding.table.copy_(self.vectors)


class SlopePositions(ModelPositions):
    """The linear biases of BLOOM and MPT, whose slopes are those of the paper's code for any number of heads."""

    name = "alibi"

    def __init__(self, part: nn.Module) -> None:
        pass

    def adopt(self, encoding: Any) -> None:
        """There are no weights."""


class BucketPositions(ModelPositions):
    """The bias of T5."""

    name = "t5"

    def __init__(self, part: Any) -> None:
        (self.attention,) = (each for each in part.modules() if getattr(each, "has_relative_attention_bias", False))
        self.options = {
            "num_buckets": self.attention.relative_attention_num_buckets,
            "max_distance": self.attention.relative_attention_max_distance,
        }

    @torch.no_grad()
    def adopt(self, encoding: Any) -> None:
        causal, distance = encoding.sizes.causal, torch.arange(self.options["max_distance"] + 1)
        buckets = self.attention._relative_position_bucket(-distance, not causal, **self.options)
        wrong = (buckets != encoding.buckets[int(causal)]).nonzero()
        if len(wrong):  # where transformers round a logarithm down that is an integer
            raise ValueError(
                f"t5 must have the buckets of the model, got another bucket of distance {int(wrong[0])} for "
                f"relative_attention_num_buckets={self.options['num_buckets']}, "
                f"relative_attention_max_distance={self.options['max_distance']}"
            )
        encoding.table.copy_(self.attention.relative_attention_bias.weight)


class RotaryPositions(ModelPositions):
    """The rotations of Llama and of others, in all layers or in those of a type.

    Args:
        part: the part of the model that has the layers.
        layer_type: the type of the layers, as the configuration names it; None: all layers rotate alike.
    """

    def __init__(self, part: Any, layer_type: str | None = None) -> None:
        self.part = part
        self.of_type = {} if layer_type is None else {"layer_type": layer_type}
        self.parameters = _rope_parameters(part.config, layer_type)
        self.type = self.parameters["rope_type"]
        self.name = ENCODING_OF_TYPE.get(self.type)
        self.others: set[str | None] = {self.name}  # encodings of layers of other types
        self.rotary_emb = type(part.rotary_emb)(config=part.config)
        scaled = scaling_options(self.type, self.parameters, part.config.max_position_embeddings)
        self.options = {"theta": float(self.parameters["rope_theta"]), "pairing": "half", **scaled}
        rotated, head_dim = 2 * len(self._frequencies(self.rotary_emb)), model_head_dim(part.config)
        if rotated != head_dim:
            self.options["rotary_dim"] = rotated

    def _frequencies(self, rotary: Any) -> Tensor:
        prefix = "".join(f"{layer_type}_" for layer_type in self.of_type.values())
        original = f"{prefix}original_inv_freq"
        frequencies: Tensor = getattr(rotary, original if hasattr(rotary, original) else f"{prefix}inv_freq")
        return frequencies

    def named(self, name: str, options: Options) -> str:
        """Return the name; where it is that of the model in some layers, without options, other layers keep theirs."""
        return self.name if self.name is not None and name in self.others and not options else name

    def settings(self, name: str, encoding_class: type[PositionalEncoding]) -> Options:
        taken = inspect.signature(encoding_class).parameters.keys()
        if name != self.name and not {"theta", "pairing"} <= taken:
            return {}
        if name != self.name and self.type != "default":
            use = "no encoding is the same" if self.name is None else f"use {self.name}"
            raise ValueError(
                f"rope_type of the model must be default for {name}, got {self.type}: {use}, or give from_config=False "
                f"for an encoding with none of the model's settings"
            )
        if not self.options.keys() <= taken:
            raise ValueError(
                f"{name} rotates whole heads, got rotary_dim={self.options['rotary_dim']} of "
                f"head_dim={model_head_dim(self.part.config)} in the model: use rope, or give from_config=False"
            )
        return self.options

    def adopt(self, encoding: Any) -> None:
        its, expected = self._frequencies(self.part.rotary_emb), self._frequencies(self.rotary_emb)
        if not its.is_meta and not torch.allclose(its.cpu().float(), expected, rtol=0.02, atol=0):
            raise ValueError(f"config of the model must be the one it was made with, got {self.parameters} in it now")
        for last in (2, 4 * self.part.config.max_position_embeddings):  # frequencies may depend on the length
            pos = torch.tensor([[1, last]])
            tables = encoding.rotation(torch.zeros(1), Layout(pos, torch.zeros_like(pos), encoding.sizes.causal))
            ours = [table[0, 0, 0].double().repeat(2) for table in (tables.cos, tables.sin)]
            theirs = self.rotary_emb(torch.zeros(1), pos, **self.of_type)
            if not _are_equal(ours, [table[0, 0].double() for table in theirs]):
                self._refuse(encoding.name)

    def _refuse(self, name: str) -> None:
        represented = {"rope_type", "type", "rope_theta", *READ_PARAMETERS.get(self.type, ())}
        unrepresented = {key: x for key, x in self.parameters.items() if key not in represented and x is not None}
        text = ", ".join(f"{key}={x}" for key, x in (unrepresented or self.parameters).items())
        raise ValueError(f"rope parameters of the model must be such that {name} can represent them, got {text}")


class NoPositions(ModelPositions):
    """Layers without positions in a model that rotates in others, as in SmolLM3: they stay without a rotation."""

    name = "none"

    def named(self, name: str, options: Options) -> str:
        maker = factory(name)
        encoding_class = maker.func if isinstance(maker, partial) else maker
        return "none" if isinstance(encoding_class, type) and issubclass(encoding_class, RoPE) else name

    def adopt(self, encoding: Any) -> None:
        """There are no weights."""


class LayerwisePositions(ModelPositions):
    """Positions that differ by layer."""

    def __init__(self, layers: list[ModelPositions]) -> None:
        self.layers = layers
        names = {layer.name for layer in layers if isinstance(layer, RotaryPositions)}
        for layer in layers:
            if isinstance(layer, RotaryPositions):
                layer.others = names

    def of_layers(self, depth: int) -> list[ModelPositions]:
        return self.layers


def rotations(part: Any) -> ModelPositions:
    """Return the rotations of a part of a model, in each layer."""
    config = part.config
    parameters = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in parameters.values()):
        types: dict[str, ModelPositions] = {}
        for name in config.layer_types:
            alike = [positions for other, positions in types.items() if parameters[other] == parameters[name]]
            types.setdefault(name, alike[0] if alike else RotaryPositions(part, name))
        return LayerwisePositions([types[name] for name in config.layer_types])
    rotated = getattr(config, "no_rope_layers", None)
    if rotated is None or all(rotated):
        return RotaryPositions(part)
    kinds = [NoPositions(), RotaryPositions(part)]
    return LayerwisePositions([kinds[bool(each)] for each in rotated])


def model_head_dim(config: PretrainedConfig) -> int:
    """Return the dimensions of a head."""
    head_dim = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    return int(head_dim or config.hidden_size // config.num_attention_heads)


def complete_options(positions: ModelPositions, name: str, options: Options) -> tuple[str, Options]:
    """Return the name and options of the encoding of layers, where those that are not given are the model's, in what it
    is made of too.

    Args:
        name: the name of the encoding that is given for the model.
        options: the options that were given.

    Raises:
        ValueError: there is no such encoding; it is of the model's kind, and cannot represent what the model has.
    """
    factory(name)
    named = positions.named(name, options)
    if named != name:
        name, options = named, {}
    completed = (
        {**positions.options, **options}
        if name == positions.name
        else _complete_options(positions, name, factory(name), options)
    )
    return name, completed


def _complete_options(
    positions: ModelPositions, name: str, maker: Callable[..., PositionalEncoding], options: Options
) -> Options:
    preset = maker.keywords if isinstance(maker, partial) else {}
    encoding_class = maker.func if isinstance(maker, partial) else maker
    settings = {**preset, **options}
    changed: Options = {}
    if isinstance(settings.get("parts"), list):
        changed["parts"] = [_part(positions, part) for part in settings["parts"]]
    if callable(settings.get("encoding")):
        changed["encoding"] = _part(positions, settings["encoding"])
    assert isinstance(encoding_class, type)
    taken = {key: x for key, x in positions.settings(name, encoding_class).items() if key not in settings}
    return {**options, **taken, **changed}


def _part(positions: ModelPositions, part: Any) -> Any:
    """Return a part of an encoding with the model's settings; what is no class of the lab is left as it is."""
    maker = partial(factory(part), name=part) if isinstance(part, str) else part
    encoding_class = maker.func if isinstance(maker, partial) else maker
    if not (isinstance(encoding_class, type) and issubclass(encoding_class, PositionalEncoding)):
        return part
    preset = maker.keywords if isinstance(maker, partial) else {}
    name = preset.get("name", inspect.signature(encoding_class).parameters["name"].default)
    original, named = name, positions.named(name, {key: x for key, x in preset.items() if key != "name"})
    if named != original:
        maker, name = partial(factory(named), name=named), named
    options = _complete_options(positions, name, maker, {})
    return partial(maker, **options) if options else part if named == original else maker


def _rope_parameters(config: PretrainedConfig, layer_type: str | None) -> Options:
    if hasattr(config, "standardize_rope_params"):
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    else:  # before transformers 5
        partial_factor = getattr(config, "partial_rotary_factor", None)
        parameters = {"partial_rotary_factor": partial_factor} if partial_factor is not None else {}
        parameters |= {"rope_theta": config.rope_theta, **(config.rope_scaling or {})}
    return {**parameters, "rope_type": parameters.get("rope_type", parameters.get("type", "default"))}


def _are_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    """Return whether cosines and sines, times a factor, have the same angles, below pi, and the same factors."""
    if a[0].shape != b[0].shape:
        return False
    pairs = [[polar(sin, cos) for cos, sin in (a, b)] for polar in (torch.atan2, torch.hypot)]
    return all(torch.allclose(first, second, rtol=1e-5, atol=0) for first, second in pairs)
