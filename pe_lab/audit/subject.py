"""An encoding under audit: a small model around it, and all that one layer of it makes of given tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import isqrt

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from pe_lab.attention import attend, reference
from pe_lab.config import Model, expand
from pe_lab.data.base import Task
from pe_lab.data.seeding import derive, generator, initialise
from pe_lab.encodings.base import PositionalEncoding, Sizes, Stick, Terms
from pe_lab.encodings.layout import Layout
from pe_lab.model.transformer import Transformer

WIDTH, HEADS, VOCABULARY, LENGTH, SEED = 64, 4, 32, 64, 0


def equal_tokens(count: int, batch: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """[B, T, D] one token vector N(0, 1) at all positions, another one in each sequence."""
    token = torch.randn(batch, 1, WIDTH, dtype=torch.float64, generator=generator(SEED, "equal"))
    return token.to(dtype).expand(-1, count, -1)


def random_tokens(count: int, batch: int = 1) -> Tensor:
    """[B, T, D] token vectors N(0, 1)."""
    return torch.randn(batch, count, WIDTH, dtype=torch.float64, generator=generator(SEED, "random"))


@dataclass(frozen=True)
class View:
    """What the first layer makes of tokens, step by step.

    Args:
        x, embedded: [B, T, D] token vectors before and after `embed`.
        h, h_qk, h_v: [B, T, D] the attention's input before and after `mix`.
        q, k, q_met, k_met: [B, H, T, d] queries and keys as projected, and as they meet.
        terms, layout: what the encoding made of the positions.
        out: [B, T, D] the heads' outputs.
    """

    x: Tensor
    embedded: Tensor
    h: Tensor
    h_qk: Tensor
    h_v: Tensor
    q: Tensor
    k: Tensor
    q_met: Tensor
    k_met: Tensor
    terms: Terms
    layout: Layout
    out: Tensor

    @property
    def allowed(self) -> Tensor:
        """[T, T] which keys a query may see."""
        return self.layout.allowed[0, 0]

    @cached_property
    def weights(self) -> Tensor:
        """[B, H, T, T] of attention."""
        return reference.weights(self.q, self.k, self.terms, self.layout)

    @cached_property
    def score(self) -> Tensor:
        """[B, H, T, T] the logits, or the weights where a stick is broken; 0 where a key may not be seen."""
        if isinstance(self.terms.weights, Stick):
            return self.weights
        logits = reference.logits(self.q, self.k, self.terms, self.layout)
        return logits.masked_fill(~self.layout.allowed, 0)

    def vectors(self) -> Tensor:
        """[T, 3D] token vector and attention inputs at every position of the first sequence."""
        return torch.cat([v[0] for v in (self.embedded, self.h_qk, self.h_v)], -1).double()

    def squared_distances(self) -> Iterator[Tensor]:
        """[T, T] between the signatures of two positions, a growing sum: their vectors, then head by head their scores
        to and from all tokens that both may see."""
        vectors = self.vectors() - self.vectors().mean(0)
        cross, own = vectors @ vectors.T, vectors.square().sum(-1, keepdim=True).expand(-1, len(vectors))
        squared = own + own.T - 2 * cross
        yield squared
        for cross, own in self._score_products():
            squared = squared + own + own.T - 2 * cross
            yield squared

    def score_similarity(self) -> Tensor:
        """[T, T] cosine between the scores, around their mean, to and from all tokens that both positions may see."""
        cross, own = (torch.stack(parts).sum(0) for parts in zip(*self._score_products(), strict=True))
        return cross / (own * own.T).sqrt()

    def _score_products(self) -> Iterator[tuple[Tensor, Tensor]]:
        """[T, T] inner products of two positions' scores around the mean, to and from all tokens that both may see, and
        the squared norm of the first one's there; of every head, to, then from."""
        for score in self.score[0].double():
            score = (score - score[self.allowed].mean()) * self.allowed
            for rows, known in ((score, self.allowed), (score.T, self.allowed.T)):
                yield rows @ rows.T, rows.square() @ known.T.double()

    def told_apart(self) -> bool:
        """Whether any two positions have different signatures."""
        *_, squared = self.squared_distances()
        return squared.max().item() > 1e-18

    def marks(self) -> tuple[str, Tensor] | None:
        """What equal tokens are marked with by their position: the first of added vectors and rotated queries that
        varies, and how it is called; [T, D], of the first sequence. None where none does."""
        places = {
            "added to the token vector": self.embedded - self.x,
            "added to the input of q and k": self.h_qk - self.h,
            "added to the input of v": self.h_v - self.h,
            "one query, rotated": self.q_met.transpose(1, 2).flatten(2),
        }
        for name, (vectors, *_) in places.items():
            if (vectors - vectors.mean(0)).norm() > 1e-9 * vectors.norm():
                return name, vectors
        return None


class Subject:
    """An encoding with the parameters it starts with, on a line, or row by row on a square if it needs a grid.

    Queries and keys are projected by N(0, 1 / D), so that the logits of random tokens are of size 1. A parameter that
    starts as all zeros is N(0, 0.02^2) instead: what starts as nothing would be measured as nothing.

    Args:
        name: as it is called in the table.
        make: the encoding of given sizes, as conf/pe instantiates it.
    """

    def __init__(self, name: str, make: Callable[[Sizes], PositionalEncoding]) -> None:
        self.name = name
        self.make = make
        self.on_grid: bool = getattr(make, "func", make).on_grid
        self.causal_only = self.model().encodings[0].causal_only

    @classmethod
    def of(cls, name: str, *options: str) -> "Subject":
        """An encoding of conf/pe, with options as on the command line: "pe.theta=100".

        Raises:
            HydraException: there is no such encoding or option.
        """
        return cls(name, instantiate(expand([f"pe={name}", *options], multirun=False)[0].pe))

    def reaching(self, length: int) -> "Subject":
        """The same with tables that reach to `length`."""
        return Subject(self.name, _with_rows(self.make, length))

    def model(
        self, length: int = LENGTH, depth: int = 1, causal: bool = True, dtype: torch.dtype = torch.float64
    ) -> Transformer:
        """A model for training sequences of `length`."""
        config = Model(
            depth=depth,
            width=WIDTH,
            num_heads=HEADS,
            mlp_ratio=2,
            norm="pre",
            dropout=0.0,
            embedding_std=1.0,
            scale_tokens=False,
        )
        task = Task(VOCABULARY, length, VOCABULARY, causal, grid_width=self.grid_width(length))
        model = Transformer(config, self.make, task, "reference")
        initialise(model, SEED)
        draw = generator(SEED, "audit")
        for layer in model.layers:
            nn.init.normal_(layer.attention.qkv.weight, std=WIDTH**-0.5, generator=draw)
        for parameter in model.encodings.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.02, generator=draw)
        return model.to(dtype).requires_grad_(False)

    def grid_width(self, length: int) -> int | None:
        return isqrt(length) if self.on_grid else None

    def layout(self, count: int, batch: int = 1, length: int = LENGTH, causal: bool = True) -> Layout:
        """Of `count` tokens in a model for `length`."""
        return Layout.of_lengths(torch.full((batch,), count), count, causal, self.grid_width(length))

    def run(self, model: Transformer, tokens: Tensor, causal: bool = True) -> Tensor:
        """Logits of tokens [B, T]; what the encoding draws at random is the same in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(SEED, "draw"))
            return model(tokens, self.layout(tokens.shape[1], len(tokens), causal=causal))

    def view(self, x: Tensor, length: int = LENGTH, causal: bool = True, tied: bool = False) -> View:
        """What the first layer makes of token vectors x [B, T, D].

        Args:
            length: of the sequences that the model is made for.
            tied: keys are projected as queries are.

        Raises:
            ValueError: the encoding has no value at these positions.
        """
        model = self.model(length, causal=causal, dtype=x.dtype)
        encoding, layer = model.encodings[0], model.layers[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(SEED, "draw"))
            layout = encoding.locate(self.layout(x.shape[1], len(x), length, causal))
            embedded = encoding.embed(x, layout)
            h = layer.norm_attention(embedded)
            h_qk, h_v = encoding.mix(h, layout)
            terms = encoding.terms(h, layout)
        qkv = layer.attention.qkv
        weight, bias = qkv.weight.unflatten(0, (3, -1)), qkv.bias.unflatten(0, (3, -1))
        q, k, v = (
            nn.functional.linear(given, weight[which], bias[which]).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for given, which in ((h_qk, 0), (h_qk, 0 if tied else 1), (h_v, 2))
        )
        out = attend(q, k, v, terms, layout, "reference")
        q_met, k_met = reference.queries_and_keys(q, k, terms)
        out = out.transpose(1, 2).flatten(2)
        return View(x, embedded, h, h_qk, h_v, q, k, q_met, k_met, terms, layout, out)


def _with_rows(make: Callable, length: int) -> Callable:
    """The same with every `max_len`, its own or that of an encoding inside, at least `length`."""
    if not isinstance(make, partial):
        return make
    options = {key: max(value, length) if key == "max_len" else value for key, value in make.keywords.items()}
    options = {key: _with_rows(value, length) if callable(value) else value for key, value in options.items()}
    return partial(make.func, *make.args, **options)
