"""The hooks through which an encoding enters a model of transformers: before its layers, and before each attention."""

from dataclasses import fields
from inspect import Signature, signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.stack import PassPositions, Stack
from pe_lab.encodings.terms import Terms
from pe_lab.hf.attention import ATTENTION_NAME, ReplacedLayerInput
from pe_lab.hf.cache import OLD_NAME, CachedTokens, cache_name, is_static, new_cache, tokens_in
from pe_lab.hf.inputs import make_layout
from pe_lab.hf.step_watch import StepWatch

NO_WEIGHTS = "output_attentions must be False, as with sdpa: no weights are kept, got True"
WITHOUT_GRADIENTS = "a cache is for decoding, without gradients: call within torch.no_grad()"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class ReplacedMethod:
    """Stands in for a method of the model whose result goes to all layers: returns the encoding's positions instead."""

    def __init__(self) -> None:
        self.positions: PassPositions | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> PassPositions | None:
        positions, self.positions = self.positions, None
        return positions


class InputHook:
    """Make a layout of a model's inputs and put positions into its embeddings, before its layers run.

    Args:
        stack: the encodings of the layers.
        passes_zeros: whether the model gets zeros as position_ids, because it indexes tables of its own with them.
        mask: the kind of mask that the model gets, see `ModelFamily`.
        replaced: a method that takes positions to the layers; None: an argument does.
    """

    def __init__(self, stack: Stack, passes_zeros: bool, mask: str | None, replaced: ReplacedMethod | None) -> None:
        self.stack, self.passes_zeros, self.mask, self.replaced = stack, passes_zeros, mask, replaced
        self.watch = StepWatch(stack)

    def __call__(self, part: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Return the arguments with embeddings instead of tokens, and with the positions that attention takes.

        Raises:
            ValueError: inputs that the encoding or this package cannot take.
        """
        arguments = {**dict(zip(signature(part.forward).parameters, args, strict=False)), **kwargs}
        ids, x = arguments.pop("input_ids", None), arguments.pop("inputs_embeds", None)
        if (ids is None) == (x is None):
            return None  # the model says what it needs
        shape, device = (ids.shape, ids.device) if x is None else (x.shape[:2], x.device)
        self._require(arguments, shape)
        self.watch(part)
        name = cache_name(part)
        if name not in arguments and OLD_NAME in arguments:
            arguments[name] = arguments.pop(OLD_NAME)
        past = arguments.get(name)
        tokens = None if past is None else self._tokens(past)
        mask = arguments.get("attention_mask")
        layout = self._layout(arguments, tuple(shape), tokens)
        if tokens is None and self._wants_cache(part, arguments):
            tokens = self._new_tokens(layout, requested=bool(arguments.get("use_cache")))
            arguments[name] = new_cache(tokens, arguments.get("encoder_hidden_states") is not None)
        x = part.get_input_embeddings()(ids) if x is None else x
        x, positions = self.stack(x, layout.to(device), None if tokens is None else tokens.cache)
        if self.passes_zeros:
            arguments["position_ids"] = torch.zeros(1, shape[1], dtype=torch.long, device=device)
        if self.mask == "padding":
            arguments["attention_mask"] = torch.ones(shape, device=device) if mask is None else mask
        elif self.mask == "any":
            arguments["attention_mask"] = torch.ones(1, 1, 1, 1, device=device)
        if self.replaced is None:
            return (), {**arguments, "inputs_embeds": x, ATTENTION_NAME: positions}
        self.replaced.positions = positions
        return (), {**arguments, "inputs_embeds": x}

    def _require(self, arguments: dict[str, Any], shape: torch.Size) -> None:
        """Raise ValueError for arguments whose effect would be lost."""
        causal = self.stack.first.sizes.causal
        if len(shape) != 2:
            raise ValueError(f"input_ids must be [B, T], got {list(shape)}")
        if arguments.get("output_attentions"):
            raise ValueError(NO_WEIGHTS)
        if arguments.get("is_causal") not in (None, causal):
            raise ValueError(f"is_causal must be {causal}, for which positions were replaced, got {not causal}")

    def _tokens(self, past: object) -> CachedTokens:
        if torch.is_grad_enabled():
            raise ValueError(WITHOUT_GRADIENTS)
        return tokens_in(past, self.stack)

    def _layout(self, arguments: dict[str, Any], shape: tuple[int, int], tokens: CachedTokens | None) -> Layout:
        """Return the layout of these tokens, and take out of the arguments what it says."""
        held = None if tokens is None or tokens.cache is None else tokens.cache.layout
        earlier = None if held is None else held.unshifted.source.to("cpu")
        mask, position_ids = arguments.pop("attention_mask", None), arguments.pop("position_ids", None)
        return make_layout(shape, mask, position_ids, self.stack.first.sizes.causal, earlier)

    def _wants_cache(self, part: PreTrainedModel, arguments: dict[str, Any]) -> bool:
        use_cache = arguments.get("use_cache")
        if use_cache is None:
            use_cache = self.stack.first.sizes.causal and part.config.use_cache
        return bool(use_cache) and not (part.training and part.gradient_checkpointing)

    def _new_tokens(self, layout: Layout, requested: bool) -> CachedTokens:
        """Return what a model that makes its own cache keeps of tokens.

        It keeps nothing where nobody could go on from them, which is no error unless a cache was asked for.
        """
        is_token, cache = layout.segment != PADDING, None
        try:
            cache = self.stack.cache()
            if torch.is_grad_enabled():
                raise ValueError(WITHOUT_GRADIENTS)
            if bool((is_token[:, :-1] & ~is_token[:, 1:]).any()):
                raise ValueError("sequences that are decoded must be padded on the left, got padding behind a token")
        except ValueError as error:
            if requested:
                raise
            return CachedTokens(self.stack, None, str(error))
        return CachedTokens(self.stack, cache)


class Preparation:
    """`prepare_inputs_for_generation` of a model, which would make masks of its own for a StaticCache.

    Args:
        model: the model that generates.
        stack: the encodings of its layers.
    """

    def __init__(self, model: PreTrainedModel, stack: Stack) -> None:
        self.model, self.stack = model, stack

    @property
    def __signature__(self) -> Signature:
        return signature(self._original)

    @property
    def _original(self) -> Any:
        kind: Any = type(self.model)
        return kind.prepare_inputs_for_generation.__get__(self.model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inputs of the original method; a StaticCache has the lab's layers then.

        Raises:
            ValueError: the encoding cannot use a cache.
        """
        past = kwargs.get("cache", kwargs.get(OLD_NAME))
        if is_static(past):
            tokens_in(past, self.stack)
        return self._original(*args, **kwargs)


class PendingPositions:
    """Positions that are known once the model has embedded its input."""

    positions: PassPositions | None = None


class ImageHook:
    """Put positions into the embeddings of an image: of the class token first, then of patches row by row.

    Args:
        stack: the encodings of the layers.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack, self.watch, self.pending = stack, StepWatch(stack), PendingPositions()

    def __call__(self, part: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments, with what will have positions."""
        arguments = {**dict(zip(signature(part.forward).parameters, args, strict=False)), **kwargs}
        if arguments.get("attention_mask") is not None:
            raise ValueError("attention_mask must be None for images, all of whose patches are there, got one")
        if arguments.get("output_attentions"):
            raise ValueError(NO_WEIGHTS)
        self.watch(part)
        self.pending = PendingPositions()
        return (), {**arguments, ATTENTION_NAME: self.pending}

    def embed(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        """Return embeddings [B, T, D] with positions."""
        pending, self.pending = self.pending, PendingPositions()  # nothing is kept beyond a pass
        x, pending.positions = self.stack(args[0])
        return (x,)


class AttentionHook:
    """Give self-attention of one layer what the encoding makes of its input.

    Args:
        index: the index of the layer.
        implementation: the name of the implementation, as in `attend`.
        fused: the kind of fused projection, see `ModelFamily`.
        argument: the name of the argument that has positions.
        head_dim: the number of dimensions of a head.
        num_values: the number of dimensions of a token's values, all heads together.
    """

    def __init__(
        self, index: int, implementation: str, fused: str | None, argument: str, head_dim: int, num_values: int
    ) -> None:
        self.index, self.implementation, self.fused = index, implementation, fused
        self.argument, self.head_dim, self.num_values = argument, head_dim, num_values
        self.value: Tensor | None = None  # the input of values, if it is not that of queries and keys

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments of attention with the input of queries and keys, and with terms.

        Raises:
            ValueError: another attention function was set, attention was not called by its model, or checkpointing
                would lose gradients.
        """
        name, positions = module.config._attn_implementation, kwargs.get(self.argument)
        if name != module.config.pe_lab_attention:
            needed = module.config.pe_lab_attention
            raise ValueError(f"attn_implementation must be {needed!r} while positions are replaced, got {name!r}")
        if isinstance(positions, PendingPositions):
            positions = positions.positions
        if not isinstance(positions, PassPositions):
            raise ValueError("attention of a replaced model must be called by the model, got no positions")
        if not torch.is_grad_enabled() and _were_computed(positions.shared):
            raise ValueError(
                "checkpointing must be used with use_reentrant=False: what layers share has no gradients otherwise"
            )
        layer = positions.layer(self.index, args[0] if args else kwargs["hidden_states"])
        self.value = None if layer.value is layer.query_key else layer.value
        changed: dict[str, Any] = {
            ATTENTION_NAME: ReplacedLayerInput(layer.terms, positions.layout, layer.layout.memory, self.implementation)
        }
        if self.argument != ATTENTION_NAME:
            kwargs = {**kwargs, self.argument: None}
        elif "position_bias" in kwargs:  # T5 computes one where there is none
            changed["position_bias"] = layer.query_key.new_zeros(1, 1, 1, 1)
        if args:
            return (layer.query_key, *args[1:]), {**kwargs, **changed}
        return args, {**kwargs, **changed, "hidden_states": layer.query_key}

    def after_projection(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
        """Return what a module projects, with values of their own input; None: nothing changes."""
        if self.value is None:
            return None
        value, self.value = self.value, None
        values: Tensor = module(value)
        if self.fused is None:
            return values
        if self.fused == "heads":
            its, theirs = (x.unflatten(-1, (-1, 3, self.head_dim)) for x in (out, values))
            return torch.cat((its[..., :2, :], theirs[..., 2:, :]), -2).flatten(-3)
        start = out.shape[-1] - self.num_values
        return torch.cat((out[..., :start], values[..., start:]), -1)


def _were_computed(terms: Terms | None) -> bool:
    """Return whether these terms were computed from parameters, which get their gradients through them."""
    if terms is None:
        return False
    rotations = [table for rotary in (terms.rotary_q, terms.rotary_k) if rotary for table in (rotary.cos, rotary.sin)]
    tensors = [*rotations, *(getattr(terms, field.name) for field in fields(terms))]
    return any(isinstance(tensor, Tensor) and tensor.grad_fn is not None for tensor in tensors)
