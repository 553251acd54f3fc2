"""The encodings of a model's layers: where a model calls the hooks of its encodings."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, UnfitError
from pe_lab.encodings.cache import Cache
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.memory import Carried
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import ROTATIONS, Terms


class LayerInput(NamedTuple):
    """The inputs of attention in one layer.

    Attributes:
        query_key: [B, T, D], the input of queries and keys.
        value: [B, T, D], the input of values; the same tensor if the encoding does not tell them apart.
        terms: the changes that the encoding makes in attention.
        layout: the layout of the tokens, with what the layer stores of earlier ones.
    """

    query_key: Tensor
    value: Tensor
    terms: Terms
    layout: Layout


def require_depth(encoding: PositionalEncoding, depth: int) -> None:
    """Raise UnfitError if a model of this depth does not contain the encoding's whole pattern of layers."""
    if depth < encoding.period:
        raise UnfitError(
            f"{encoding.name} alternates over {encoding.period} layers: depth must be at least that, got {depth}"
        )


def require_returned(value: object, kind: type | tuple[type, ...], words: str, method: Callable[..., object]) -> None:
    """Raise ValueError if a method of an encoding returned something else than its contract says, as None."""
    members = value if isinstance(value, tuple) and isinstance(kind, tuple) else (value,)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if len(members) != len(kinds) or not all(map(isinstance, members, kinds)):
        raise ValueError(f"{method.__qualname__} must return {words}, got {type(value).__name__}")


class Stack(nn.ModuleList):
    """The encodings of all layers of a model. Your model calls it once, and once in each layer.

        stack = make("rope", width=512, num_heads=8, depth=6, length=1024)

        x, positions = stack(x)                                       # before the first layer
        h_qk, h_v, terms, layout = positions.layer(index, h)          # in each layer; q and k of h_qk, v of h_v
        out = attend(q, k, v, terms, layout)                          # pe_lab.attention.attend

    After each optimizer step call `constrain`; before it, `advance`, if an encoding is `phased`, as `drope` is.

    Args:
        encodings: the encodings: one that all layers share, or one per layer, whose parameters are shared already.
        depth: the number of layers.

    Attributes:
        unconstrained, unadvanced: the numbers of optimizer steps since `constrain` and `advance` were called, where
            pe_lab.hf counts.

    Raises:
        ValueError: depth < 1, or encodings that do not fit it.
    """

    unconstrained = 0
    unadvanced = 0

    def __init__(self, encodings: Iterable[PositionalEncoding], depth: int) -> None:
        super().__init__(encodings)
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        expected = depth if len(self) and self.first.per_layer else 1
        if len(self) != expected:
            raise ValueError(f"{depth} layers need {expected} encodings, got {len(self)}")
        self.depth = depth

    @classmethod
    def build(
        cls, encoding: Callable[[Sizes], PositionalEncoding], sizes: Sizes, depth: int, whole: bool = True
    ) -> "Stack":
        """Build the encodings of `depth` layers; parameters are shared as the encoding requires.

        Args:
            encoding: a callable that makes one encoding.
            whole: whether to build all layers; otherwise only those after which the encoding's pattern repeats.

        Raises:
            ValueError: the encoding is not defined for these sizes.
        """
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        members = [encoding(replace(sizes, depth=depth))]
        require_depth(members[0], depth)
        layers = depth if whole else members[0].period
        if members[0].per_layer:
            members += [encoding(replace(sizes, depth=depth, layer=layer)) for layer in range(1, layers)]
        for other in members[1:]:
            other.share_parameters(members[0])
        return cls(members, layers)

    @property
    def first(self) -> PositionalEncoding:
        """The encoding of the first layer."""
        return self.of_layer(0)

    def of_layer(self, index: int) -> PositionalEncoding:
        """Return the encoding of a layer."""
        encoding = self[index] if len(self) > 1 else self[0]
        assert isinstance(encoding, PositionalEncoding)  # ModuleList has members of type Module
        return encoding

    def locate(self, layout: Layout) -> Layout:
        """Return the layout for the encoding; random positions are drawn here, from its seed.

        Raises:
            ValueError: the encoding is not defined at these positions.
        """
        return self.first.locate(layout)

    def constrain(self) -> None:
        """Move parameters back into their range; call it after every optimizer step."""
        self.unconstrained = 0
        for index in range(len(self)):
            self.of_layer(index).constrain()

    def advance(self, done: float) -> None:
        """Tell the encodings the progress of training, in [0, 1); call it before every step."""
        self.unadvanced = 0
        if self.first.phased:
            for module in self.modules():
                if isinstance(module, PositionalEncoding):
                    module.advance(done)

    def cache(self, room: int | None = None) -> Cache:
        """Return an empty cache for decoding.

        Args:
            room: the number of tokens for which memory is reserved at once, and which it holds at most; None: it grows.

        Raises:
            ValueError: attention is bidirectional, or the encoding needs whole sequences.
        """
        first = self.first
        if not first.sizes.causal:
            raise ValueError(f"a cache needs causal attention, {first.name} was made for causal=False")
        if first.whole_sequence is not None:
            raise ValueError(f"{first.name} cannot use a cache: {first.whole_sequence}; compute all tokens each time")
        return Cache(self.depth, room)

    def forward(
        self, x: Tensor, layout: Layout | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, "PassPositions"]:
        """Add position to token embeddings; return them and the positions for the layers.

        Args:
            x: [B, T, D] token embeddings.
            layout: the layout of these tokens; None: one document per sequence without padding, whose positions start
                at 0 or follow those in the cache.
            cache: a cache of earlier tokens, to which these are added; None: there are no earlier tokens. Sequences of
                different lengths are padded on the left.

        Raises:
            TypeError: x is no tensor.
            ValueError: x does not fit the sizes of the model or the layout; the encoding is not defined at these
                positions, or its `embed` returns another shape; the cache is of another model or batch, or gradients
                are computed.
        """
        first = self.first
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a Tensor [B, T, D], got {type(x).__name__}")
        if x.dim() != 3 or x.shape[2] != first.sizes.width or not x.shape[1]:
            raise ValueError(f"x must be [B, T, D] with T >= 1, D = {first.sizes.width}, got {list(x.shape)}")
        if cache is not None:
            self._check(cache)
        if layout is None:
            layout = self._next_layout(x, cache)
        if layout.segment.shape != x.shape[:2]:
            raise ValueError(
                f"layout must be that of x, [B, T] = {list(x.shape[:2])}, got {list(layout.segment.shape)}"
            )
        located = self.locate(layout)
        require_returned(located, Layout, "a Layout", first.locate)
        if cache is not None:
            located = cache.add(located, first.require_contiguous)
        else:
            first.require_contiguous(layout)
        embedded = first.embed(x, located if cache is None else located.remembering(cache.embedding))
        require_returned(embedded, Tensor, "a tensor", first.embed)
        _require_shape("embed", embedded, x)
        return embedded, PassPositions(self, located, cache, embedded)

    def _next_layout(self, x: Tensor, cache: Cache | None) -> Layout:
        sizes, length = self.first.sizes, x.shape[1]
        if cache is not None and cache.layout is not None:
            return cache.layout.unshifted.following(length, sizes.grid_width)
        return Layout.whole(x.shape[0], length, sizes.causal, sizes.grid_width, device=x.device)

    def _check(self, cache: Cache) -> None:
        if torch.is_grad_enabled():
            raise ValueError("a cache is for decoding, without gradients: call within torch.no_grad()")
        if len(cache.layers) != self.depth:
            raise ValueError(f"the cache must be that of this model, of {self.depth} layers, got {len(cache.layers)}")


class PassPositions:
    """The positions of one forward pass, made by `Stack` for the layers.

    Attributes:
        layout: the layout of the tokens, as the encoding located them.
        shared: the terms that all layers have; None: each layer computes its own.
        carried: the vectors that layers carry for the layer after them, by the index of that layer.
    """

    def __init__(self, stack: Stack, layout: Layout, cache: Cache | None, x: Tensor) -> None:
        self.stack, self.layout, self.cache = stack, layout, cache
        self.trained = torch.is_grad_enabled()
        self.carried: dict[int, Carried] = {}
        first, version = stack.first, _version(x)
        self.shared = None if first.per_layer or first.reads_content else first.terms(x, layout)
        _require_unchanged(x, version)

    def prepare(self) -> None:
        """Compute what the first layer would keep for the others, so that a layer which runs twice does the same twice.

        For activation checkpointing: call it before the first layer.
        """
        if self.shared is not None and not torch.compiler.is_compiling():
            for rotary in (getattr(self.shared, name) for name in ROTATIONS):
                if rotary is not None and rotary.pairing == "interleaved":
                    _ = rotary.rotation

    def layer(self, index: int, h: Tensor) -> LayerInput:
        """Return the inputs of attention in a layer with input h [B, T, D]; call it once per layer, in order.

        Raises:
            ValueError: the model has no such layer; the encoding changes h in place, or its `mix` returns another
                shape; a layer carries something, and runs without gradients in a pass with gradients.
        """
        if not 0 <= index < self.stack.depth:
            raise ValueError(f"index must be that of a layer, 0 ... {self.stack.depth - 1}, got {index}")
        encoding, layout = self.stack.of_layer(index), self.layout
        if self.cache is not None:
            layout = layout.remembering(self.cache.layers[index])
        if index in self.carried:
            layout = layout.carrying(self.carried[index])
        version = _version(h)
        mixed = encoding.mix(h, layout)
        require_returned(mixed, (Tensor, Tensor), "two tensors", encoding.mix)
        query_key, value = mixed
        terms = encoding.terms(h, layout) if self.shared is None else self.shared
        require_returned(terms, Terms, "Terms", encoding.terms)
        _require_unchanged(h, version)
        _require_shape("mix", query_key, h)
        _require_shape("mix", value, h)
        if terms.carried is not None:
            if self.trained and not torch.is_grad_enabled():
                raise ValueError(
                    f"checkpointing must be used with use_reentrant=False: what layers of {encoding.name} carry has no "
                    f"gradients otherwise"
                )
            # gradient checkpointing calls this again and may stop before attention fills `mixed`: keep the first
            self.carried.setdefault(index + 1, terms.carried)
        return LayerInput(query_key, value, terms, layout)


def _version(x: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 where PyTorch does not count."""
    return 0 if torch.compiler.is_compiling() or x.is_inference() else x._version


def _require_unchanged(h: Tensor, version: int) -> None:
    if _version(h) != version:
        raise ValueError("mix and terms must return new tensors, got h changed in place")


def _require_shape(hook: str, states: Tensor, h: Tensor) -> None:
    if states.shape != h.shape:
        raise ValueError(f"{hook} must return [B, T, D] = {list(h.shape)}, got {list(states.shape)}")
