"""The cache of transformers with what the lab keeps of earlier tokens: rotated keys, and what encodings need."""

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import CacheLayerMixin

from pe_lab.encodings.cache import Cache
from pe_lab.encodings.stack import Stack

OLD_NAME = "past_key_values"  # the cache among a model's arguments, before transformers 5.24


@dataclass
class CachedTokens:
    """The tokens in a cache of transformers, which its layers share.

    Args:
        stack: the encodings of the model.
        cache: the cache of the tokens; None: nothing is stored.
        refusal: the reason why nothing is stored.
    """

    stack: Stack
    cache: Cache | None
    refusal: str | None = field(default=None)


class CachedLayer(CacheLayerMixin):
    """One layer of a cache. Attention adds keys and values to `tokens`; here they pass through and are counted.

    Methods are those of `CacheLayerMixin`, which transformers calls.
    """

    is_sliding = supports_early_init = False

    def __init__(self, tokens: CachedTokens, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tokens, self.index, self.seen = tokens, index, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing but note it: there is no memory to reserve."""
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Count the keys and values [B, H, T, d] and return them as they are."""
        self.seen += key_states.shape[2]
        return key_states, value_states

    def get_seq_length(self, *args: Any) -> int:
        """Return the number of tokens that were seen."""
        return self.seen

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Return the number of keys, queries included, and the index of the first, 0."""
        # earlier versions of transformers give the positions of the queries
        return self.seen + (len(query_length) if isinstance(query_length, Tensor) else query_length), 0

    def get_max_length(self) -> int:
        """Return the number of tokens that the cache holds at most; -1: it grows."""
        cache = self.tokens.cache
        return -1 if cache is None or cache.room is None else cache.room

    get_max_cache_shape = get_max_length  # its name before transformers 5

    def reset(self) -> None:
        """Forget all tokens, those of the other layers too."""
        if self.tokens.cache is not None:
            self.tokens.cache = Cache(self.tokens.stack.depth, self.tokens.cache.room)
        self.seen = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Raise ValueError: assistant models remove tokens."""
        raise ValueError("tokens cannot be removed from this cache: generate without an assistant model")

    def offload(self) -> None:
        """Raise ValueError: the cache stays on its device."""
        raise ValueError("this cache cannot be moved to the CPU: use a DynamicCache without offloading")

    prefetch = offload

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows of the batch, for beam search; called for each layer, and done in the first."""
        if self.index == 0 and self.tokens.cache is not None:  # all layers at once
            self.tokens.cache.select(beam_idx)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch, one after the other."""
        cache = self.tokens.cache
        if cache is not None and cache.layout is not None:
            rows = torch.arange(len(cache.layout.segment), device=cache.layout.segment.device)
            self.reorder_cache(rows.repeat_interleave(repeats))


def cache_name(model: nn.Module) -> str:
    """Return the name that the cache has among the arguments of a model or a part of one."""
    return "cache" if "cache" in signature(model.forward).parameters else OLD_NAME


def new_cache(tokens: CachedTokens, cross_attention: bool) -> DynamicCache | EncoderDecoderCache:
    """Return a cache of transformers for these tokens.

    Args:
        cross_attention: whether it stores keys and values of an encoder too.
    """
    cache = DynamicCache()
    _fill(cache, tokens)
    return EncoderDecoderCache(cache, DynamicCache()) if cross_attention else cache


def is_static(past: object) -> bool:
    """Return whether a cache is a StaticCache, for self-attention at least."""
    return isinstance(past.self_attention_cache if isinstance(past, EncoderDecoderCache) else past, StaticCache)


def tokens_in(past: object, stack: Stack) -> CachedTokens:
    """Return the tokens in a cache of transformers; one that is empty is prepared for this model.

    A StaticCache gets memory for max_cache_len tokens at once, and takes no more. If all layers of the original have
    windows, transformers would take more, and its memory grows. Steps with it are not compiled, as with any cache.

    Raises:
        ValueError: it is no DynamicCache or StaticCache, it is of another model, it keeps nothing, or the encoding
            cannot use one.
    """
    cache = past.self_attention_cache if isinstance(past, EncoderDecoderCache) else past
    if not isinstance(cache, DynamicCache | StaticCache) or cache.offloading:
        kind = "one with offloading" if isinstance(cache, DynamicCache | StaticCache) else type(cache).__name__
        raise ValueError(f"the cache must be a DynamicCache or a StaticCache, got {kind}")
    layers: list[Any] = cache.layers
    if not (layers and isinstance(layers[0], CachedLayer)):
        if cache.get_seq_length():
            raise ValueError(f"the cache must be of this model, got {cache.get_seq_length()} tokens of another")
        whole = [layer for layer in layers if not layer.is_sliding] if isinstance(cache, StaticCache) else []
        tokens = CachedTokens(stack, stack.cache(max((layer.max_cache_len for layer in whole), default=None)))
        _fill(cache, tokens)
        return tokens
    if layers[0].tokens.stack is not stack:
        raise ValueError("the cache must be of this model, got that of another replaced model")
    if layers[0].tokens.refusal is not None:
        raise ValueError(f"the cache must keep tokens: {layers[0].tokens.refusal}")
    return layers[0].tokens


def _fill(cache: DynamicCache | StaticCache, tokens: CachedTokens) -> None:
    cache.layers = [CachedLayer(tokens, index) for index in range(tokens.stack.depth)]
