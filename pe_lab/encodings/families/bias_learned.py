"""Encodings that add a trained function of distance to the logits."""

from bisect import bisect_right
from typing import Annotated

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.distance_table import table_distances
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import Distance, NonNegative, OptionError, Units, even_integers
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms, prepare_pair_term


class RelativeBias(PositionalEncoding):
    """Add a learned scalar per head and distance to the scaled logits; one table for all layers.

    Distances beyond `max_distance` count as `max_distance`, on either side. It has (2 max_distance + 1) H parameters.

    Args:
        max_distance: the largest distance with a scalar, k >= 1; distances -k ... k have a scalar each.
        std: the initial standard deviation, >= 0, in units of logits: the table starts as N(0, std^2).

    Raises:
        ValueError: max_distance or std out of range.
    """

    revision = 2
    neutral = {"std": 0.02}

    def __init__(
        self, sizes: Sizes, name: str = "relative_bias", max_distance: Distance = 128, std: NonNegative = 0.02
    ) -> None:
        super().__init__(sizes, name)
        self.std = std
        self.table = nn.Parameter(torch.empty(sizes.num_heads, 2 * max_distance + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        return Terms(distance_bias=self.table.to(at_least_float32(h)), clip=True)


def t5_buckets(num_buckets: int, max_distance: int) -> list[int]:
    """Return the bucket of every distance 0 ... max_distance; longer distances use the last one.

    The first e = num_buckets / 2 buckets have one distance each; bucket e + k, of the other n, starts at distance
    e (max_distance / e) ** (k / n). Compared in integers, so that no logarithm is rounded at a border.
    """
    exact = num_buckets // 2
    shared = num_buckets - exact
    borders = [max_distance**k * exact ** (shared - k) for k in range(1, shared)]
    return [n if n < exact else exact + bisect_right(borders, n**shared) for n in range(max_distance + 1)]


def bucket_tables(num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Return the buckets of the distances 0 ... max_distance, [2, max_distance + 1]: bidirectional, then causal.

    Raises:
        OptionError: not all buckets are of use in this attention.
    """
    near = num_buckets // 2 if causal else num_buckets // 4
    if max_distance <= near:
        raise OptionError(
            f"max_distance must be above the {near} distances that have a bucket each, got "
            f"max_distance={max_distance}, num_buckets={num_buckets}"
        )
    return torch.tensor([t5_buckets(count, max_distance) for count in (num_buckets // 2, num_buckets)])


def bucket_index(distance: Tensor, buckets: Tensor, num_buckets: int, causal: bool) -> Tensor:
    """Return the bucket of integer distances; in causal attention, that of 0 for those below.

    Args:
        buckets: the result of `bucket_tables`.
    """
    size = distance.clamp(min=0) if causal else distance.abs()
    bucket = buckets[int(causal)].to(distance.device)[size.clamp(max=buckets.shape[1] - 1)]
    return bucket if causal else bucket + (distance < 0) * (num_buckets // 2)


class T5(PositionalEncoding):
    """The relative bias of T5 (Raffel et al. 2020, arXiv:1910.10683, section 2.1; buckets as in its code).

    A trained scalar per head and bucket of distances, added to the scaled logits; one table for all layers. Short
    distances have a bucket each, longer ones share buckets of logarithmic width. Causal attention uses all buckets for
    keys at or before the query, bidirectional attention one half, and the other half for keys after it.

    Args:
        num_buckets: the number of rows of the table, even.
        max_distance: the distance from which on all distances share a bucket; more than the number of distances with
            their own bucket.
        std: the initial standard deviation, >= 0, in units of logits: the table starts as N(0, std^2); None: D ** -0.5,
            as in its code.

    Raises:
        ValueError: an option out of range.
    """

    revision = 2
    neutral = {"std": None}
    buckets: Tensor

    def __init__(
        self,
        sizes: Sizes,
        name: str = "t5",
        num_buckets: Annotated[int, even_integers(most=512)] = 32,
        max_distance: Distance = 128,
        std: NonNegative | None = None,
    ) -> None:
        super().__init__(sizes, name)
        self.std = sizes.width**-0.5 if std is None else std
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.register_buffer("buckets", bucket_tables(num_buckets, max_distance, sizes.causal), persistent=False)
        self.table = nn.Parameter(torch.empty(num_buckets, sizes.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        bucket = bucket_index(
            table_distances(self.max_distance, h.device), self.buckets, self.num_buckets, layout.causal
        )
        return Terms(distance_bias=self.table.to(at_least_float32(h))[bucket].T, clip=True)


def clamp_with_gradient(x: Tensor, lowest: float, highest: float | None = None) -> Tensor:
    """Clamp x, but keep the gradient of x."""
    return x.detach().clamp(lowest, highest) + (x - x.detach())


class KerpleLog(PositionalEncoding):
    """KERPLE, logarithmic (Chi et al. 2022, arXiv:2205.09921, the logarithmic variant).

    Adds -p ln(1 + a |i - j|) to the scaled logits, p and a trained per head and shared by all layers, as in its code.
    They start as p ~ U(0, 2), a ~ U(0, 1), and are at least 0.01: `constrain` clamps them after a step, and `terms`
    uses 0.01 for a lower one, whose gradient is kept.
    """

    revision = 2
    lowest = 0.01
    highest_p: float | None = None

    def __init__(self, sizes: Sizes, name: str = "kerple_log") -> None:
        super().__init__(sizes, name)
        self.p = nn.Parameter(torch.empty(sizes.num_heads))
        self.a = nn.Parameter(torch.empty(sizes.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.p, 0, 2)
        nn.init.uniform_(self.a, 0, 1)
        self.constrain()

    @torch.no_grad()
    def constrain(self) -> None:
        self.p.clamp_(self.lowest, self.highest_p)
        self.a.clamp_(self.lowest)

    def bias(self, p: Tensor, a: Tensor, distance: Tensor) -> Tensor:
        """Return the bias [H, 2R+1] for p and a [H, 1] and |i - j| [2R+1]."""
        return -p * (a * distance).log1p()

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        distance = table_distances(layout.max_distance, h.device).abs().to(dtype)
        p, a = clamp_with_gradient(self.p, self.lowest, self.highest_p), clamp_with_gradient(self.a, self.lowest)
        return Terms(distance_bias=self.bias(p.to(dtype)[:, None], a.to(dtype)[:, None], distance))


class KerplePower(KerpleLog):
    """KERPLE, power (Chi et al. 2022, arXiv:2205.09921, the power variant).

    Adds -a |i - j| ** p to the scaled logits; p and a as in `kerple_log`, and p is at most 2: above, the kernel is no
    longer conditionally positive definite.
    """

    highest_p = 2.0

    def __init__(self, sizes: Sizes, name: str = "kerple_power") -> None:
        super().__init__(sizes, name)

    def bias(self, p: Tensor, a: Tensor, distance: Tensor) -> Tensor:
        return -a * distance**p


class Fire(PositionalEncoding):
    """FIRE, functional interpolation (Li et al. 2024, arXiv:2310.04418, the listing).

    Adds an MLP (1 -> hidden -> ReLU -> H) of psi(i - j) / (psi(max(i, L)) + 1e-6) to the scaled logits, with
    psi(x) = ln(|c x| + 1); each layer has its own. c starts at 0.1, L at the training length, and L is trained as a
    multiple of it. Up to L the bias is a function of distance; beyond, distances are relative to i. No weight decay: it
    would pull L and c, which are no weights, to zero.

    Args:
        hidden: the number of hidden units of the MLP, >= 1.

    Raises:
        ValueError: hidden out of range.
    """

    revision = 2
    absolute = True
    per_layer = True
    weight_decay = False
    eps = 1e-6

    def __init__(self, sizes: Sizes, name: str = "fire", hidden: Units = 32) -> None:
        super().__init__(sizes, name)
        self.c = nn.Parameter(torch.empty(1))
        self.stretch = nn.Parameter(torch.empty(1))  # L in units of the training length
        self.hidden = nn.Linear(1, hidden)
        self.out = nn.Linear(hidden, sizes.num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.stretch)

    def bias(self, distance: Tensor, longest: Tensor) -> Tensor:
        """Return the bias [..., H] for distances [...] and `longest` = max(i, L)."""
        c = self.c.to(longest.dtype)
        part = (c * distance).abs().log1p() / ((c * longest).abs().log1p() + self.eps)
        hidden = project(part[..., None], self.hidden.weight, self.hidden.bias).relu()
        return project(hidden, self.out.weight, self.out.bias)

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        dtype = at_least_float32(h)
        threshold = (self.stretch.to(dtype) * self.sizes.length).abs()  # L
        # a compiled model cannot read L: it takes the form that holds for any
        if not torch.compiler.is_compiling() and layout.pos_range[1] <= threshold.item():
            return Terms(distance_bias=self.bias(table_distances(layout.max_distance, h.device), threshold).T)

        def beyond(layout: Layout) -> Tensor:
            longest = threshold.clamp(min=layout.pos.to(dtype))[:, :, None]
            return self.bias(layout.distance, longest).permute(0, 3, 1, 2)

        return Terms(pair_bias=prepare_pair_term(beyond, layout))
