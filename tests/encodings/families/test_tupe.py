"""TUPE against loops over pairs of tokens in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.layouts import mixed
from pe_lab.attention import attend
from pe_lab.encodings import PADDING, T5, Layout, Sizes, Tupe, make

H, d = 2, 3
D = H * d
SIZES = Sizes(D, H, 9)


LAYOUTS = {
    "mixed": mixed,
    "one": lambda causal: Layout.of_lengths(torch.tensor([1]), 1, causal),
    "padded": lambda causal: Layout.of_lengths(torch.tensor([19, 7]), 19, causal),
    "shifted": lambda causal: Layout.whole(1, 9, causal).shifted(20),
}


def made(causal: bool, **options: object) -> Tupe:
    torch.manual_seed(0)
    sizes = replace(SIZES, causal=causal)
    encoding = Tupe(sizes, **{"max_len": 40, "num_buckets": 8, "max_distance": 16} | options).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return encoding


def position_term(encoding: Tupe, query: int, key: int, h: int) -> Tensor:
    """(U_q LayerNorm(p_query)) . (U_k LayerNorm(p_key)) / sqrt(2d) of one head, of rows of the table."""
    parts = []
    for which, row in enumerate((query, key)):
        x = encoding.table[row]
        normal = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()
        p = normal * encoding.norm_gain + encoding.norm_bias
        own = slice(h * d, (h + 1) * d)
        parts.append((encoding.weight[which, own] * p).sum(-1) + encoding.bias[which, own])
    return (parts[0] * parts[1]).sum() / math.sqrt(2 * d)


def bucket_of(encoding: Tupe, distance: int, causal: bool) -> int:
    """The bucket of pos_i - pos_j as in T5's code: exact up to half of a side, then logarithmic."""
    count, first = encoding.num_buckets, 0
    if not causal:
        count //= 2
        first = count if distance < 0 else 0
    n, exact = abs(distance), count // 2
    if n < exact:
        return first + n
    ratio = math.log(n / exact) / math.log(encoding.max_distance / exact)
    return first + min(count - 1, exact + int(ratio * (count - exact) + 1e-9))


def papers(encoding: Tupe, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention [B, H, T, d], pair by pair, 0 at padding."""
    causal, segment, pos = layout.causal, layout.segment, layout.pos.expand_as(layout.segment)
    index, means = [], []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        if segment[b, i] == PADDING:
            continue
        document = [j for j in range(q.shape[2]) if segment[b, j] == segment[b, i]]
        keys = [j for j in document if j <= i] if causal else document
        z = []
        for j in keys:
            if encoding.untied_first and i == document[0] and not causal:
                added = position_term(encoding, 0, 0, h)
                bucket = encoding.num_buckets // 2
            elif encoding.untied_first and j == document[0]:
                added = position_term(encoding, 1, 1, h)
                bucket = encoding.num_buckets
            else:
                rows = (int(pos[b, t]) + int(encoding.untied_first) for t in (i, j))
                added = position_term(encoding, *rows, h)
                bucket = bucket_of(encoding, int(pos[b, i] - pos[b, j]), causal)
            if encoding.relative:
                added = added + encoding.distance_bias[bucket, h]
            z.append((q[b, h, i] * k[b, h, j]).sum() / math.sqrt(2 * d) + added)
        share = torch.stack(z).exp()
        means.append((share / share.sum()) @ v[b, h, keys])
        index.append((b, h, i))
    at = tuple(torch.tensor(axis) for axis in zip(*index, strict=True))
    return torch.zeros_like(q).index_put(at, torch.stack(means))


@pytest.mark.covering
@pytest.mark.proves("tupe")
@pytest.mark.parametrize("options", [{}, {"relative": False}, {"untied_first": False}])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_tupe_is_the_papers_formula(name: str, causal: bool, options: dict) -> None:
    """Values, and gradients of q, k, v and all parameters, in packed documents and with padding."""
    encoding, layout = made(causal, **options), LAYOUTS[name](causal)
    batch, length = layout.segment.shape
    q, k, v = (torch.randn(batch, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    terms = encoding.terms(torch.zeros(batch, length, D, dtype=torch.float64), encoding.locate(layout))
    assert len(terms.pair_bias) == (batch if name == "mixed" else 1)
    is_token = (layout.segment != PADDING)[:, None, :, None]
    expected = papers(encoding, q, k, v, layout)
    inputs, upstream = (q, k, v, *encoding.parameters()), torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, upstream, materialize_grads=True, allow_unused=True)
    for implementation in ("reference", "sdpa"):
        got = attend(q, k, v, terms, layout, implementation) * is_token
        assert_close(got, expected, rtol=0, atol=1e-12)
        gradients = torch.autograd.grad(
            got, inputs, upstream, materialize_grads=True, allow_unused=True, retain_graph=True
        )
        for g, e in zip(gradients, wanted, strict=True):
            assert_close(g, e, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
def test_buckets_are_those_of_t5(causal: bool) -> None:
    """With all other parameters at zero the bias is that of T5 with the same table."""
    sizes = replace(SIZES, causal=causal, length=300)
    encoding, t5 = Tupe(sizes, max_len=300, untied_first=False).double(), T5(sizes).double()
    with torch.no_grad():
        encoding.table.zero_()
        encoding.norm_bias.zero_()
        encoding.bias.zero_()
        encoding.distance_bias.copy_(t5.table.normal_())
    layout, h = Layout.whole(1, 300, causal), torch.zeros(1, 300, D, dtype=torch.float64)
    bias = t5.terms(h, layout).distance_bias
    index = layout.distance[0].clamp(-128, 128) + 128
    got, expected = encoding.terms(h, layout).pair_bias[0], bias[:, index]
    if causal:
        got, expected = got.tril(), expected.tril()
    assert_close(got, expected, rtol=0, atol=1e-15)


def test_layers_share_it_and_it_has_the_parameters_of_the_source() -> None:
    stack = make("tupe", width=D, num_heads=H, depth=3, length=9, max_len=40, causal=False)
    linear, norm = D * D + D, 2 * D
    assert sum(p.numel() for p in stack.parameters()) == 41 * D + norm + 2 * linear + 33 * H


def test_it_starts_as_in_the_source() -> None:
    encoding = Tupe(Sizes(600, 2, 9))
    for key, parameter in encoding.named_parameters():
        values = parameter.detach().double()
        if key in ("bias", "norm_bias"):
            assert not values.any()
        elif key == "norm_gain":
            assert (values == 1).all()
        else:
            assert abs(values.square().mean().sqrt() / 0.02 - 1) < 5 / (2 * values.numel()) ** 0.5


def test_terms_are_formed_in_float32_in_low_precision() -> None:
    encoding, layout = Tupe(Sizes(D, H, 400)), Layout.whole(1, 400, True)
    h = torch.zeros(1, 400, D)
    expected = encoding.terms(h, layout).pair_bias
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.terms(h.bfloat16(), layout).pair_bias, expected)
    assert expected.dtype == torch.float32
    exact = encoding.double().terms(h.double(), layout).pair_bias
    assert_close(expected.double(), exact, rtol=0, atol=1e-6)


def test_positions_beyond_the_table_and_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^tupe has positions 0 to 39: position 40 is beyond its table"):
        made(True).locate(Layout.whole(1, 9, True).shifted(32))
    with pytest.raises(ValueError, match=r"^max_len must be at least the length .* max_len=8, length=9$"):
        Tupe(SIZES, max_len=8)
    with pytest.raises(ValueError, match=r"^num_buckets must be an even integer"):
        Tupe(SIZES, num_buckets=7)
    with pytest.raises(ValueError, match=r"^max_distance must be above the 16 distances that have a bucket each, got"):
        Tupe(SIZES, max_distance=16)
