"""An encoding under audit in a small model, and the intermediate values of its layers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isqrt
from typing import Any

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from pe_lab.attention import attend, reference
from pe_lab.config import Model, expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import derive_seed, initialise_parameters, make_generator
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Stick, Terms
from pe_lab.model.transformer import Transformer

WIDTH, HEADS, VOCABULARY, LENGTH, SEED = 64, 4, 32, 64, 0
MAX_MARK = 7  # digits of the numbers that tokens make, with a sign between, for an encoding that reads marks


def equal_tokens(count: int, batch: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return [B, T, D] one token vector N(0, 1) at all positions, a different one for each sequence."""
    token = torch.randn(batch, 1, WIDTH, dtype=torch.float64, generator=make_generator(SEED, "equal"))
    return token.to(dtype).expand(-1, count, -1)


def random_vectors(count: int, batch: int = 1) -> Tensor:
    """Return [B, T, D] token vectors N(0, 1)."""
    return torch.randn(batch, count, WIDTH, dtype=torch.float64, generator=make_generator(SEED, "random"))


@dataclass(frozen=True)
class LayerView:
    """The intermediate values of a layer.

    Attributes:
        x, embedded: [B, T, D] token vectors before and after `embed`.
        h, h_qk, h_v: [B, T, D] the attention's input before and after `mix`.
        q, k, q_scored, k_scored: [B, H, T, d] queries and keys as projected, and as they enter the dot product.
        terms, layout: the terms of the encoding, and the layout that they are for.
        out: [B, T, D] the heads' outputs.
    """

    x: Tensor
    embedded: Tensor
    h: Tensor
    h_qk: Tensor
    h_v: Tensor
    q: Tensor
    k: Tensor
    q_scored: Tensor
    k_scored: Tensor
    terms: Terms
    layout: Layout
    out: Tensor

    @property
    def allowed(self) -> Tensor:
        """[T, T] whether a query may see a key."""
        return self.layout.allowed[0, 0]

    @cached_property
    def weights(self) -> Tensor:
        """[B, H, T, T] attention weights."""
        return reference.attention_weights(self.q, self.k, self.terms, self.layout)

    @cached_property
    def score(self) -> Tensor:
        """[B, H, T, T] logits, or weights for stick-breaking; 0 where a key may not be seen."""
        if isinstance(self.terms.normalizer, Stick):
            return self.weights
        logits = reference.logits(self.q, self.k, self.terms, self.layout)
        return logits.masked_fill(~self.layout.allowed, 0)

    def vectors(self) -> Tensor:
        """Return [T, 3D] token vector and attention inputs at every position of the first sequence."""
        return torch.cat([v[0] for v in (self.embedded, self.h_qk, self.h_v)], -1).double()

    def squared_distances(self) -> Iterator[Tensor]:
        """Yield [T, T] squared distances between signatures as a growing sum: of the vectors, then head by head of the
        scores to and from all tokens that both positions may see."""
        vectors = self.vectors() - self.vectors().mean(0)
        cross, squares = vectors @ vectors.T, vectors.square().sum(-1, keepdim=True).expand(-1, len(vectors))
        squared = squares + squares.T - 2 * cross
        yield squared
        for cross, squares in self._score_products():
            squared = squared + squares + squares.T - 2 * cross
            yield squared

    def score_similarity(self) -> Tensor:
        """Return [T, T] the cosine of the centred scores to and from all tokens that both positions may see."""
        cross, squares = (torch.stack(parts).sum(0) for parts in zip(*self._score_products(), strict=True))
        return cross / (squares * squares.T).sqrt()

    def _score_products(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for scores to and then from other tokens of every head, [T, T] inner products of the centred scores of
        two positions over all tokens that both may see, and squared norms of the first one's."""
        for score in self.score[0].double():
            score = (score - score[self.allowed].mean()) * self.allowed
            for rows, mask in ((score, self.allowed), (score.T, self.allowed.T)):
                yield rows @ rows.T, rows.square() @ mask.T.double()

    def distinguishes_positions(self) -> bool:
        """Return whether any two positions have different signatures."""
        *_, squared = self.squared_distances()
        return squared.max().item() > 1e-18

    def marks(self) -> tuple[str, Tensor] | None:
        """Return the name and the vectors [T, D] that mark positions of equal tokens in the first sequence: the first
        of added vectors and rotated queries that varies; None if none does."""
        candidates = {
            "added to the token vector": self.embedded - self.x,
            "added to the input of q and k": self.h_qk - self.h,
            "added to the input of v": self.h_v - self.h,
            "a rotated query": self.q_scored.transpose(1, 2).flatten(2),
        }
        for name, (vectors, *_) in candidates.items():
            if (vectors - vectors.mean(0)).norm() > 1e-9 * vectors.norm():
                return name, vectors
        return None


def squared_distances(views: list[LayerView]) -> Iterator[Tensor]:
    """Yield [T, T] squared distances between signatures in all layers together, as a growing sum."""
    before = torch.zeros(())
    for view in views:
        squared = before
        for of_layer in view.squared_distances():
            squared = before + of_layer
            yield squared
        before = squared


class AuditedEncoding:
    """An encoding with its initial parameters, on a sequence, or on a square grid if it needs one.

    Queries and keys are projected by N(0, 1 / D), so that the logits of random tokens are of size 1. A parameter that
    starts as zeros is drawn from N(0, 0.02^2), since zeros would have no effect to measure.

    Args:
        name: the name of the encoding in the table.
        make: a function that makes the encoding for given sizes, as conf/pe instantiates it.
    """

    def __init__(self, name: str, make: Callable[[Sizes], PositionalEncoding]) -> None:
        self.name = name
        self.make = make
        encoding_class: Any = getattr(make, "func", make)
        self.on_grid: bool = encoding_class.on_grid
        self.causal_only = self.model().encodings.first.causal_only

    @classmethod
    def of(cls, name: str, *options: str) -> "AuditedEncoding":
        """Return the subject for an encoding of conf/pe, with options such as "pe.theta=100".

        Raises:
            HydraException: there is no such encoding or option.
        """
        return cls(name, instantiate(expand_overrides([f"pe={name}", *options], multirun=False)[0].pe))

    def with_length(self, length: int) -> "AuditedEncoding":
        """Return the same subject with tables that cover `length` positions."""
        return AuditedEncoding(self.name, _with_max_len(self.make, length))

    def model(
        self, length: int = LENGTH, depth: int = 1, causal: bool = True, dtype: torch.dtype = torch.float64
    ) -> Transformer:
        """Return an untrained model for training sequences of `length`; of a round of layers, if it needs more."""
        grid_width = self.grid_width(length)
        config = Model(
            depth=max(depth, self.make(Sizes(WIDTH, HEADS, length, causal, grid_width, marks=MAX_MARK)).period),
            width=WIDTH,
            num_heads=HEADS,
            mlp_ratio=2,
            norm="pre",
            dropout=0.0,
            embedding_std=1.0,
            scale_tokens=False,
        )
        task = Task(VOCABULARY, length, VOCABULARY, causal, grid_width=grid_width, marks=MAX_MARK)
        model = Transformer(config, self.make, task, "reference")
        initialise_parameters(model, SEED)
        draw = make_generator(SEED, "audit")
        for index in range(len(model.layers)):
            nn.init.normal_(model.layer(index).attention.qkv.weight, std=WIDTH**-0.5, generator=draw)
        for parameter in model.encodings.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.02, generator=draw)
        return model.to(dtype).requires_grad_(False)

    def grid_width(self, length: int) -> int | None:
        """Return the columns of the grid for a training length; None for a sequence."""
        return isqrt(length) if self.on_grid else None

    def layout(self, count: int, batch: int = 1, length: int = LENGTH, causal: bool = True) -> Layout:
        """Return the layout of `count` tokens in a model for `length`."""
        layout = Layout.of_lengths(torch.full((batch,), count), count, causal, self.grid_width(length))
        return replace(layout, marks=torch.arange(count).expand(batch, count) % (MAX_MARK + 1))

    def run(self, model: Transformer, tokens: Tensor, causal: bool = True) -> Tensor:
        """Return the logits of tokens [B, T]; random draws of the encoding are the same in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(SEED, "draw"))
            logits: Tensor = model(tokens, self.layout(tokens.shape[1], len(tokens), causal=causal))
        return logits

    @cached_property
    def shown(self) -> int:
        """The layer that stands for all where one is shown: the first that tells positions apart; 0 if none does."""
        views = self.views(equal_tokens(LENGTH))
        return next((i for i, view in enumerate(views) if len(views) > 1 and view.distinguishes_positions()), 0)

    def view(self, x: Tensor, length: int = LENGTH, causal: bool = True, tied: bool = False) -> LayerView:
        """Return the intermediate values of the layer `shown`; arguments and errors are those of `views`."""
        return self.views(x, length, causal, tied)[self.shown]

    def views(self, x: Tensor, length: int = LENGTH, causal: bool = True, tied: bool = False) -> list[LayerView]:
        """Return the intermediate values of each layer of a round for token vectors x [B, T, D].

        Every layer gets the token vectors themselves, and not what the layers before it make of them.

        Args:
            length: the training length of the model.
            tied: whether keys are projected like queries.

        Raises:
            ValueError: the encoding is not defined at these positions.
        """
        model = self.model(length, causal=causal, dtype=x.dtype)
        views = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(SEED, "draw"))
            embedded, positions = model.encodings(x, self.layout(x.shape[1], len(x), length, causal))
            for index in range(len(model.layers)):
                layer = model.layer(index)
                h = layer.norm_attention(embedded)
                h_qk, h_v, terms, layout = positions.layer(index, h)
                qkv = layer.attention.qkv
                weight, bias = qkv.weight.unflatten(0, (3, -1)), qkv.bias.unflatten(0, (3, -1))
                q, k, v = (
                    nn.functional.linear(inputs, weight[which], bias[which]).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                    for inputs, which in ((h_qk, 0), (h_qk, 0 if tied else 1), (h_v, 2))
                )
                out = attend(q, k, v, terms, layout, "reference").transpose(1, 2).flatten(2)
                scored = reference.queries_and_keys(q, k, terms)
                views.append(LayerView(x, embedded, h, h_qk, h_v, q, k, *scored, terms, layout, out))
        return views


def _with_max_len(make: Callable[..., Any], length: int) -> Callable[..., Any]:
    """Return the constructor with every `max_len`, also of nested encodings, at least `length`."""
    if not isinstance(make, partial):
        return make
    options = {key: max(value, length) if key == "max_len" else value for key, value in make.keywords.items()}
    options = {key: _with_max_len(value, length) if callable(value) else value for key, value in options.items()}
    return partial(make.func, *make.args, **options)
