"""Biases that an MLP over the heads adapts to the content."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, leaky_relu, pad

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.distance_table import table_lookup
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Range, Units, is_integer, prefix_errors
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import PairTerm, StoredPairTerm, Terms

ODD_INTEGER = Range("an odd integer of at least 1", lambda x: is_integer(x) and x >= 1 and x % 2 == 1, most=255)

BLOCK_QUERIES = 16  # queries whose maps are computed at once on a CPU, so that they stay in its cache


@dataclass(frozen=True)
class AdaptedBias:
    """Adds to the logits z a bias B and an MLP of z and B, over the heads, at each pair of tokens.

    Args:
        mlp: the MLP, from maps [B, H or 2H, T, S] to [B, H, T, S].
        distance_bias: [1|H, 2R+1] biases of the other encoding by distance; None: it has none.
        pair_bias: the pair bias of the other encoding, which computes [B|1, H|1, T, S] for a layout; None: it has none.
    """

    mlp: "MapMLP"
    distance_bias: Tensor | None
    pair_bias: PairTerm | None

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        added = None if self.pair_bias is None else self.pair_bias(layout)
        if self.distance_bias is not None:
            by_distance = table_lookup(self.distance_bias, layout.distance)
            added = by_distance if added is None else added + by_distance
        if added is None:
            adapted: Tensor = self.mlp(z, None, layout)
            return adapted
        added = added.to(z.dtype).expand(-1, z.shape[1], -1, -1)
        adapted = added + self.mlp(z, added, layout)
        return adapted


class MapMLP(nn.Module):
    """Two convolutions over the keys with a LeakyReLU between; the channels are the heads.

    The convolutions see no key behind the query nor of another document, whose entries are 0 before the first of them.

    Args:
        channels: the number of maps at the input.
        width: the number of hidden maps.
        num_heads: the number of maps at the output.
        kernel: the number of neighbouring keys, odd; 1: each pair of tokens is by itself.
    """

    def __init__(self, channels: int, width: int, num_heads: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.hidden = nn.Conv2d(channels, width, (1, kernel))
        self.out = nn.Conv2d(width, num_heads, (1, kernel))

    def forward(self, z: Tensor, added: Tensor | None, layout: Layout) -> Tensor:
        """Return [B, H, T, S] from z [B, H, T, S] and added [B|1, H, T, S]; entries after a query hold garbage."""
        w1, b1, w2, b2 = (p.to(z.dtype) for p in (*self.hidden.parameters(), *self.out.parameters()))
        with torch.autocast(z.device.type, enabled=False):
            if z.device.type == "cpu" and not torch.compiler.is_compiling():
                unseen, before = _hidden_keys(self.kernel // 2, layout)
                inputs = (z, added, w1, b1, w2, b2, unseen, before, layout.causal)
                bias: Tensor = _ByProducts.apply(*inputs)  # type: ignore[no-untyped-call]
                return bias
            maps = z if added is None else torch.cat((z, added.expand_as(z)), 1)
            return self._map_by_convolutions(maps, w1, b1, w2, b2, layout)

    def _map_by_convolutions(
        self, maps: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, layout: Layout
    ) -> Tensor:
        reach = self.kernel // 2
        if reach:  # hidden maps have `reach` keys behind the last query, as behind all others
            maps = pad(maps.masked_fill(~layout.allowed, 0), (reach, 2 * reach))
        hidden = leaky_relu(conv2d(maps, w1, b1))
        if reach:
            hidden = pad(hidden.masked_fill(_before(layout, reach), 0), (reach, 0))
        return conv2d(hidden, w2, b2)


def _before(layout: Layout, reach: int) -> Tensor:
    """Return whether a key is before the document of the query, [B, 1, T, S + reach], for `reach` keys more than S."""
    not_after = torch.ones_like(layout.allowed).tril(layout.earlier)
    return pad(not_after & ~layout.allowed, (0, reach))


def _hidden_keys(reach: int, layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    """Return which keys the convolutions do not see, [B|1, T, S] and [B, T, S + reach]; None: they see all.

    With padding at the end all sequences have the same, but in the rows of padding, which mean nothing.
    """
    if not reach:
        return None, None
    if layout.keys is None and layout.right_padded:
        return torch.ones_like(layout.allowed[:1, 0]).triu_(1), None
    return ~layout.allowed[:, 0], _before(layout, reach)[:, 0]


@dataclass(frozen=True)
class _Block:
    """Some queries of all sequences, and the keys that they see.

    The maps of a block are stored as [maps, L + 2 r], L = B N P: a row of P = keys + 3 r numbers for each of N queries,
    of which the keys are the first, behind r numbers before the first row. All others are 0. So neighbours of a key are
    next to it in memory, and a convolution is a product with copies that are shifted against each other.

    Args:
        batch: the number of sequences, B.
        rows: the range of the queries.
        keys: the number of keys.
        reach: half the size of the kernel, r, rounded down.
    """

    batch: int
    rows: slice
    keys: int
    reach: int

    @classmethod
    def all(cls, z: Tensor, kernel: int, causal: bool) -> Iterator["_Block"]:
        """Return the blocks of maps [B, H, T, S]."""
        B, _, T, S = z.shape
        for start in range(0, T, BLOCK_QUERIES):
            end = min(start + BLOCK_QUERIES, T)
            yield cls(B, slice(start, end), S - T + end if causal else S, kernel // 2)

    @property
    def length(self) -> int:
        """L."""
        count: int = self.rows.stop - self.rows.start
        return self.batch * count * (self.keys + 3 * self.reach)

    def maps(self, *parts: Tensor | None) -> Tensor:
        """Return the maps of this block, of tensors [B|1, H, T, S]."""
        tensors = [x for x in parts if x is not None]
        count = sum(x.shape[1] for x in tensors)
        flat = tensors[0].new_zeros(count, self.length + 2 * self.reach)
        for x, place in zip(tensors, self.pairs(flat).chunk(len(tensors)), strict=True):
            place.copy_(self.part(x).transpose(0, 1))
        return flat

    def part(self, x: Tensor) -> Tensor:
        """Return this block of a tensor [..., T, S], a view."""
        return x[..., self.rows, : self.keys]

    def pairs(self, flat: Tensor) -> Tensor:
        """Return the numbers of pairs of a query and a key, [maps, B, N, keys], a view."""
        return self._rows(flat[:, self.reach : self.reach + self.length])[..., : self.keys]

    def _rows(self, flat: Tensor) -> Tensor:
        return flat.view(len(flat), self.batch, self.rows.stop - self.rows.start, -1)

    def clear(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """Set hidden maps [maps, L] to 0 where there is no key: beyond `reach` keys more, or before the document."""
        if self.reach:
            rows, end = self._rows(hidden), self.keys + self.reach
            rows[..., end:].zero_()
            if before is not None:
                rows[..., :end].masked_fill_(before[:, self.rows, :end], 0)
        return hidden

    def shifted(self, flat: Tensor) -> Tensor:
        """Return copies of maps [maps, L + 2 r], each shifted by one more, [(2 r + 1) maps, L]."""
        return torch.cat([flat[:, s : s + self.length] for s in range(2 * self.reach + 1)]) if self.reach else flat

    def folded(self, copies: Tensor) -> Tensor:
        """Return the sum of copies that are shifted back, [maps, L + 2 r]."""
        if not self.reach:
            return copies
        parts = copies.chunk(2 * self.reach + 1)
        flat = copies.new_zeros(len(parts[0]), self.length + 2 * self.reach)
        for s, part in enumerate(parts):
            flat[:, s : s + self.length] += part
        return flat


def _hidden_values(blocks: list[_Block], memory: Tensor) -> list[Tensor]:
    """Return places for the hidden maps of all blocks, [maps, L] each, in one tensor."""
    flat = memory.flatten().split([len(memory) * block.length for block in blocks])
    return [part.view(len(memory), -1) for part in flat]


class _ByProducts(torch.autograd.Function):
    """The convolutions of `MapMLP` as matrix products, of some queries at a time and no key behind the last of them.

    Args:
        z, added: the arguments of `MapMLP.forward`.
        w1, b1, w2, b2: the weights and biases of its convolutions.
        unseen, before: the result of `_hidden_keys`.
        causal: whether no query sees a key behind it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        added: Tensor | None,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        unseen: Tensor | None,
        before: Tensor | None,
        causal: bool,
    ) -> Tensor:
        first = w1.permute(0, 3, 2, 1).flatten(1)  # [hidden maps, kernel maps]
        second = w2[:, :, 0].flip(-1).permute(2, 0, 1).flatten(0, 1)  # [kernel H, hidden maps]
        out, blocks = torch.zeros_like(z), [*_Block.all(z, w1.shape[-1], causal)]
        hidden_maps = _hidden_values(blocks, z.new_empty(len(first), sum(block.length for block in blocks)))
        for block, hidden in zip(blocks, hidden_maps, strict=True):
            maps = _input_maps(block, unseen, z, added)
            torch.addmm(b1[:, None], first, block.shifted(maps), out=hidden)
            block.clear(leaky_relu(hidden, inplace=True), before)
            bias = block.pairs(block.folded(second @ hidden))
            torch.add(bias.transpose(0, 1), b2[:, None, None], out=block.part(out))
        ctx.save_for_backward(z, added, first, second, unseen, before, *hidden_maps)
        ctx.kernel, ctx.causal = w1.shape[-1], causal
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        z, added, first, second, unseen, before, *hidden_maps = ctx.saved_tensors
        kernel, H = ctx.kernel, z.shape[1]
        grad_z, grad_added = torch.zeros_like(z), None if added is None else added.new_zeros(added.shape)
        grad_first, grad_second = torch.zeros_like(first), torch.zeros_like(second)
        grad_b1, grad_b2 = first.new_zeros(len(first)), first.new_zeros(H)
        for block, hidden in zip(_Block.all(z, kernel, ctx.causal), hidden_maps, strict=True):
            upstream = block.maps(grad_out)
            grad_b2 += upstream.sum(1)
            copies = block.shifted(upstream)
            grad_second.addmm_(copies, hidden.T)
            grad_hidden = torch.ops.aten.leaky_relu_backward(second.T @ copies, hidden, 0.01, True)
            block.clear(grad_hidden, before)
            grad_b1 += grad_hidden.sum(1)
            grad_first.addmm_(grad_hidden, block.shifted(_input_maps(block, unseen, z, added)).T)
            grad_maps = block.pairs(block.folded(first.T @ grad_hidden))
            if unseen is not None:
                grad_maps.masked_fill_(block.part(unseen), 0)
            block.part(grad_z).copy_(grad_maps[:H].transpose(0, 1))
            if grad_added is not None:
                place = block.part(grad_added)
                place.copy_(grad_maps[H:].transpose(0, 1).sum_to_size(place.shape))
        grad_w1 = grad_first.view(len(first), kernel, 1, -1).permute(0, 3, 2, 1)
        grad_w2 = grad_second.view(kernel, H, 1, -1).flip(0).permute(1, 3, 2, 0)
        return grad_z, grad_added, grad_w1, grad_b1, grad_w2, grad_b2, None, None, None


def _input_maps(block: _Block, unseen: Tensor | None, z: Tensor, added: Tensor | None) -> Tensor:
    """Return the maps of a block at the input, 0 where the first convolution sees no key."""
    maps = block.maps(z, added)
    if unseen is not None:
        block.pairs(maps).masked_fill_(block.part(unseen), 0)
    return maps


class Dape(PositionalEncoding):
    """Data-adaptive positional encoding (DAPE, Zheng et al. 2024, arXiv:2405.14722, and its released code).

    To the scaled logits z of all heads, [z_1 ... z_H], are added B + f([z; B]): B are the biases of another encoding
    and f is an MLP at each pair of tokens, from 2H numbers to H, with LeakyReLU. Every layer has an f of its own, and
    parameters of the other encoding only if that has. Without biases, as with `none` or `rope`, f sees z alone. All
    other terms of the other encoding stay. It keeps `width` maps of the size of a head's logits.

    Args:
        encoding: a callable that makes the other encoding; kerple_log, alibi or fire in the source.
        width: the number of hidden units of f, >= 1; 32 as released.

    Raises:
        ValueError: an option out of range; an encoding that has its own content bias or decay, or draws positions.
    """

    revision = 2
    per_layer = True
    kernel = 1

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        encoding: Callable[[Sizes], PositionalEncoding],
        width: Units = 32,
    ) -> None:
        super().__init__(sizes, name)
        with prefix_errors("encoding"):
            self.encoding = encoding(sizes)
        self.owner: tuple[Dape, ...] = ()
        inner = self.encoding
        self.inherit([inner])
        self.contiguous_only = self.contiguous_only or self.kernel > 1
        terms = None if inner.draws_positions else _terms_of_one_token(encoding, sizes)
        if terms is None or terms.content_bias is not None or terms.decay is not None:
            raise ValueError(f"{name} needs an encoding whose terms are biases or rotations, got {inner.name}")
        biased = terms.distance_bias is not None or terms.pair_bias is not None
        if biased and terms.logit_factors is not None:  # which would multiply the bias of the MLP as well
            raise ValueError(f"{name} needs an encoding without factors on logits beside its biases, got {inner.name}")
        channels = 2 * sizes.num_heads if biased else sizes.num_heads
        self.mlp = MapMLP(channels, width, sizes.num_heads, self.kernel)

    @property
    def inner(self) -> PositionalEncoding:
        """The inner encoding: this layer's own, or that of the first layer, where it is registered."""
        return self.owner[0].encoding if self.owner else self.encoding

    @property
    def embeds(self) -> bool:
        return self.inner.embeds

    @property
    def mixes(self) -> bool:
        return self.inner.mixes

    def constrain(self) -> None:
        self.inner.constrain()

    def share_parameters(self, first: PositionalEncoding) -> None:
        assert isinstance(first, Dape)
        if self.encoding.per_layer:
            self.encoding.share_parameters(first.encoding)
        else:
            del self.encoding
            self.owner = (first,)  # a module in a tuple is not registered: the state dict has its parameters once

    def locate(self, layout: Layout) -> Layout:
        self._require_layout(layout)
        return self.inner.locate(layout)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        return self.inner.embed(x, layout)

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        return self.inner.mix(h, layout)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        inner = self.inner.terms(h, layout)
        pairs = StoredPairTerm(inner.pair_bias, layout) if isinstance(inner.pair_bias, Tensor) else inner.pair_bias
        return replace(
            inner, distance_bias=None, pair_bias=None, content_bias=AdaptedBias(self.mlp, inner.distance_bias, pairs)
        )


def _terms_of_one_token(encoding: Callable[[Sizes], PositionalEncoding], sizes: Sizes) -> Terms:
    """Return the terms of an encoding for a sequence of one token, which say of what kind they are."""
    # on the CPU, as the meta device has no values
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        instance = encoding(sizes)
        marks = torch.zeros(1, 1, dtype=torch.long)
        layout = replace(Layout.whole(1, 1, sizes.causal, sizes.grid_width), marks=marks)
        return instance.terms(torch.zeros(1, 1, sizes.width), instance.locate(layout))


class DapeV2(Dape):
    """DAPE with a convolution over keys (Zheng et al. 2024, arXiv:2410.04798, and its released code).

    As `dape`, where each of the two layers of f also sees the neighbouring keys of the same query: `kernel` of them,
    centred. Entries of keys behind the query and of other documents are 0 before the first convolution. The hidden
    entries behind the query stay, as released. There the last query of a sequence is an exception, which has none
    behind it; here it has, so that a cache gives the numbers of whole sequences: all other queries have those of the
    released code.

    Causal only: the source has no other.

    Args:
        encoding, width: the options of `Dape`.
        kernel: the number of neighbouring keys, odd, >= 1; 3 as released; 1 is `dape`.

    Raises:
        ValueError: the cases of `Dape`; kernel out of range; bidirectional attention.
    """

    causal_only = True
    fallback = "dape"

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        encoding: Callable[[Sizes], PositionalEncoding],
        width: Units = 32,
        kernel: Annotated[int, ODD_INTEGER] = 3,
    ) -> None:
        self.kernel = kernel
        super().__init__(sizes, name, encoding, width)
