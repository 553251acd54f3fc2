"""The positions that a model of transformers has itself, as an encoding with options."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.checkpoint import ENCODINGS, READ, scaling
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.named import known

Options = dict[str, Any]


class Own:
    """The positions of a part of a model, with its own encoding still in it.

    Attributes:
        name: of the encoding that they are; None: no encoding of the lab is the same.
        options: of that encoding, as the model has them.
    """

    name: str | None
    options: Options

    def settings(self, name: str, made: type[PositionalEncoding]) -> Options:
        """Return the model's settings for an encoding.

        Raises:
            ValueError: the encoding is of the model's kind, and cannot represent them.
        """
        return self.options if self.name is not None and made is known(self.name) else {}

    def adopt(self, encoding: Any) -> None:
        """Take the model's weights into the encoding that has its name and options.

        Raises:
            ValueError: the encoding does not compute what the model does.
        """
        raise NotImplementedError


class Table(Own):
    """The trained vectors of GPT-2 and BERT.

    Args:
        path: of the table in the part.
    """

    name = "learnable"

    def __init__(self, part: nn.Module, path: str) -> None:
        self.table: Any = part.get_submodule(path).weight
        self.options = {"max_len": len(self.table)}

    @torch.no_grad()
    def adopt(self, encoding: Any) -> None:
        encoding.table.copy_(self.table)


class Buckets(Own):
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


class Rotation(Own):
    """The rotations of Llama."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self.parameters = _rope_parameters(part.config)
        self.type = self.parameters["rope_type"]
        self.name = ENCODINGS.get(self.type)
        scaled = scaling(self.type, self.parameters, part.config.max_position_embeddings)
        self.options = {"theta": float(self.parameters["rope_theta"]), "pairing": "half", **scaled}

    def settings(self, name: str, made: type[PositionalEncoding]) -> Options:
        if name == self.name:
            return self.options
        if not {"theta", "pairing"} <= inspect.signature(made).parameters.keys():
            return {}
        if self.type != "default":
            use = "no encoding is the same" if self.name is None else f"use {self.name}"
            raise ValueError(
                f"rope_type of the model must be default for {name}, got {self.type}: {use}, or give from_config=False "
                f"for an encoding with none of the model's settings"
            )
        return self.options

    def adopt(self, encoding: Any) -> None:
        rotary = self.part.rotary_emb
        made = type(rotary)(config=self.part.config)
        its = getattr(rotary, "original_inv_freq", made.original_inv_freq)
        if not its.is_meta and not torch.allclose(its.cpu().float(), made.original_inv_freq, rtol=0.02, atol=0):
            raise ValueError(f"config of the model must be the one it was made with, got {self.parameters} in it now")
        for last in (2, 4 * self.part.config.max_position_embeddings):  # frequencies may depend on the length
            pos = torch.tensor([[1, last]])
            tables = encoding.rotation(torch.zeros(1), Layout(pos, torch.zeros_like(pos), encoding.sizes.causal))
            ours = [table[0, 0, 0].double().repeat(2) for table in (tables.cos, tables.sin)]
            if not _are_equal(ours, [table[0, 0].double() for table in made(torch.zeros(1), pos)]):
                self._refuse(encoding.name)

    def _refuse(self, name: str) -> None:
        represented = {"rope_type", "type", "rope_theta", *READ.get(self.type, ())}
        left = {key: x for key, x in self.parameters.items() if key not in represented and x is not None}
        listed = ", ".join(f"{key}={x}" for key, x in (left or self.parameters).items())
        raise ValueError(f"rope parameters of the model must be such that {name} can represent them, got {listed}")


def with_settings(own: Own, name: str, options: Options) -> Options:
    """Return the options of an encoding, where those that are not given are the model's, in what it is made of too.

    Args:
        name: of the encoding.
        options: that were given.

    Raises:
        ValueError: there is no such encoding; it is of the model's kind, and cannot represent what the model has.
    """
    maker = known(name)
    return {**own.options, **options} if name == own.name else _completed(own, name, maker, options)


def _completed(own: Own, name: str, maker: Callable[..., PositionalEncoding], options: Options) -> Options:
    preset = maker.keywords if isinstance(maker, partial) else {}
    made = maker.func if isinstance(maker, partial) else maker
    given = {**preset, **options}
    changed: Options = {}
    if isinstance(given.get("parts"), list):
        changed["parts"] = [_part(own, part) for part in given["parts"]]
    if callable(given.get("encoding")):
        changed["encoding"] = _part(own, given["encoding"])
    assert isinstance(made, type)
    taken = {key: x for key, x in own.settings(name, made).items() if key not in given}
    return {**options, **taken, **changed}


def _part(own: Own, part: Any) -> Any:
    """Return a part of an encoding with the model's settings; what is no class of the lab is left as it is."""
    maker = partial(known(part), name=part) if isinstance(part, str) else part
    made = maker.func if isinstance(maker, partial) else maker
    if not (isinstance(made, type) and issubclass(made, PositionalEncoding)):
        return part
    preset = maker.keywords if isinstance(maker, partial) else {}
    name = preset.get("name", inspect.signature(made).parameters["name"].default)
    options = _completed(own, name, maker, {})
    return partial(maker, **options) if options else part


def _rope_parameters(config: PretrainedConfig) -> Options:
    if hasattr(config, "standardize_rope_params"):
        parameters = config.rope_parameters
    else:  # before transformers 5
        partial_factor = getattr(config, "partial_rotary_factor", None)
        parameters = {"partial_rotary_factor": partial_factor} if partial_factor is not None else {}
        parameters |= {"rope_theta": config.rope_theta, **(config.rope_scaling or {})}
    return {**parameters, "rope_type": parameters.get("rope_type", parameters.get("type", "default"))}


def _are_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    """Return whether cosines and sines, times a factor, have the same angles, below pi, and the same factors."""
    if a[0].shape != b[0].shape:
        return False
    pairs = [[of(sin, cos) for cos, sin in (a, b)] for of in (torch.atan2, torch.hypot)]
    return all(torch.allclose(*pair, rtol=1e-5, atol=0) for pair in pairs)
