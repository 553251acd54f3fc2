"""Biases that an MLP over the heads adapts to the logits."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, leaky_relu, pad

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Range, Units, is_integer, within
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

ODD = Range("an odd integer of at least 1", lambda x: is_integer(x) and x >= 1 and x % 2 == 1, most=255)

INHERITED = ("reads_content", "reads_positions", "reads_marks", "draws_each_pass", "phased", "on_grid", "period")


@dataclass(frozen=True)
class Adapted:
    """Adds a bias B to the logits z, and what an MLP over the heads makes of both at each pair of tokens.

    Args:
        mlp: makes [B, H, T, S] of [B, H or 2H, T, S].
        bias: of the other encoding, [1|H, 2R+1] by distance; None: it has none.
        bias_full: of the other encoding, [B|1, H|1, T, S]; None: it has none.
    """

    mlp: "MapMLP"
    bias: Tensor | None
    bias_full: Tensor | None

    def __call__(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        added = self.bias_full
        if self.bias is not None:
            reach = self.bias.shape[-1] // 2
            by_distance = self.bias[:, layout.distance.clamp(-reach, reach) + reach].transpose(0, 1)
            added = by_distance if added is None else added + by_distance
        if added is None:
            adapted: Tensor = self.mlp(z, layout)
            return adapted
        added = added.to(z.dtype).expand_as(z)
        adapted = added + self.mlp(torch.cat((z, added), 1), layout)
        return adapted


class MapMLP(nn.Module):
    """Two convolutions over the keys with a LeakyReLU between, from the maps of all heads to those of all heads.

    The convolutions see no key behind the query nor of another document, whose entries are 0 before the first of them.

    Args:
        channels: maps at the input.
        width: hidden maps.
        num_heads: maps at the output.
        kernel: odd number of neighbouring keys; 1: each pair of tokens is by itself.
    """

    def __init__(self, channels: int, width: int, num_heads: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.hidden = nn.Conv2d(channels, width, (1, kernel))
        self.out = nn.Conv2d(width, num_heads, (1, kernel))

    def forward(self, maps: Tensor, layout: Layout) -> Tensor:
        reach = self.kernel // 2
        with torch.autocast(maps.device.type, enabled=False):
            if not reach:
                return _convolved(leaky_relu(_convolved(maps, self.hidden)), self.out)
            # hidden maps have `reach` keys behind the last query, as behind all others
            maps = pad(maps.masked_fill(~layout.allowed, 0), (reach, 2 * reach))
            hidden = leaky_relu(_convolved(maps, self.hidden)).masked_fill(_before(layout, reach), 0)
            return _convolved(pad(hidden, (reach, 0)), self.out)


def _convolved(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Apply a convolution in the dtype of x."""
    assert layer.bias is not None
    return conv2d(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def _before(layout: Layout, reach: int) -> Tensor:
    """Return whether a key is before the document of the query, [B, 1, T, S + reach], for `reach` keys more than S."""
    not_after = torch.ones_like(layout.allowed).tril(layout.earlier)
    return pad(not_after & ~layout.allowed, (0, reach))


class Dape(PositionalEncoding):
    """Data-adaptive positional encoding (DAPE, Zheng et al. 2024, arXiv:2405.14722, and its released code).

    To the scaled logits z of all heads, [z_1 ... z_H], are added B + f([z; B]): B are the biases of another encoding
    and f is an MLP at each pair of tokens, from 2H numbers to H, with LeakyReLU. Every layer has an f of its own, and
    parameters of the other encoding only if that has. Without biases, as with `none` or `rope`, f sees z alone. All
    other terms of the other encoding stay. It keeps `width` maps of the size of a head's logits.

    Args:
        encoding: makes the other encoding; kerple_log, alibi or fire in the source.
        width: hidden units of f, >= 1; 32 as released.

    Raises:
        ValueError: an option out of range; an encoding that has a score of its own or a decay, or draws positions.
    """

    per_layer = True
    reads_content = False
    kernel = 1

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        encoding: Callable[[Sizes], PositionalEncoding],
        width: Units = 32,
    ) -> None:
        super().__init__(sizes, name)
        with within("encoding"):
            self.encoding = encoding(sizes)
        self.owner: tuple[Dape, ...] = ()
        inner = self.encoding
        for nature in (*INHERITED, "whole_sequence"):
            setattr(self, nature, getattr(inner, nature))
        self.causal_only = self.causal_only or inner.causal_only
        self.contiguous_only = inner.contiguous_only or self.kernel > 1
        terms = None if inner.draws_positions else _terms_of_one_token(encoding, sizes)
        if terms is None or terms.score is not None or terms.decay is not None:
            raise ValueError(f"{name} needs an encoding whose terms are biases or rotations, got {inner.name}")
        channels = sizes.num_heads if terms.bias is None and terms.bias_full is None else 2 * sizes.num_heads
        self.mlp = MapMLP(channels, width, sizes.num_heads, self.kernel)

    @property
    def inner(self) -> PositionalEncoding:
        """The other encoding: one of this layer's own, or that of the first layer, where it is registered."""
        return self.owner[0].encoding if self.owner else self.encoding

    @property
    def embeds(self) -> bool:
        return self.inner.embeds

    @property
    def mixes(self) -> bool:
        return self.inner.mixes

    def constrain(self) -> None:
        self.inner.constrain()

    def follow(self, first: PositionalEncoding) -> None:
        assert isinstance(first, Dape)
        if self.encoding.per_layer:
            self.encoding.follow(first.encoding)
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
        return replace(inner, bias=None, bias_full=None, score=Adapted(self.mlp, inner.bias, inner.bias_full))


def _terms_of_one_token(encoding: Callable[[Sizes], PositionalEncoding], sizes: Sizes) -> Terms:
    """Return the terms of an encoding for a sequence of one token, which say of what kind they are."""
    with (
        torch.device("cpu"),
        torch.random.fork_rng(devices=[]),
    ):  # the meta device, where memory is counted, has no values
        made = encoding(sizes)
        layout = Layout.whole(1, 1, sizes.causal, sizes.grid_width)
        return made.terms(torch.zeros(1, 1, sizes.width), made.locate(layout))


class DapeV2(Dape):
    """DAPE with a convolution over keys (Zheng et al. 2024, arXiv:2410.04798, and its released code).

    As `dape`, where each of the two layers of f also sees the neighbouring keys of the same query: `kernel` of them,
    centred. Entries of keys behind the query and of other documents are 0 before the first convolution. The hidden
    entries behind the query stay, as released. There the last query of a sequence is an exception, which has none
    behind it; here it has, so that a cache gives the numbers of whole sequences: all other queries have those of the
    released code.

    Causal only: the source has no other.

    Args:
        encoding, width: as Dape.
        kernel: keys, odd, >= 1; 3 as released; 1 is `dape`.

    Raises:
        ValueError: as Dape; kernel out of range; bidirectional attention.
    """

    causal_only = True
    fallback = "dape"

    def __init__(
        self,
        sizes: Sizes,
        name: str,
        encoding: Callable[[Sizes], PositionalEncoding],
        width: Units = 32,
        kernel: Annotated[int, ODD] = 3,
    ) -> None:
        self.kernel = kernel
        super().__init__(sizes, name, encoding, width)
