"""The reference against loops over batch, head, query and key, one number at a time, in float64."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Softmax, Stick, Terms

B, H, T, d = 2, 2, 6, 4
R = T - 1
# some 1e3 roundings of numbers of size 10
EQUAL = {"rtol": 1e-12, "atol": 1e-12}


def layout_of(segments: list[list[int]], causal: bool) -> Layout:
    """Positions count from 0 in every segment."""
    pos = [[row[:i].count(row[i]) for i in range(len(row))] for row in segments]
    return Layout(torch.tensor(pos), torch.tensor(segments), causal)


SEGMENTS = {
    "whole": [[0] * 6, [0] * 6],
    "right": [[0] * 6, [0] * 4 + [PADDING] * 2],
    "left": [[PADDING] + [0] * 5, [PADDING] * 4 + [0] * 2],
    "packed": [[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 2, PADDING]],
}
LAYOUTS = [
    pytest.param(segments, causal, id=f"{name}-{'causal' if causal else 'both'}")
    for (name, segments), causal in product(SEGMENTS.items(), (True, False))
]


class Content(nn.Module):
    """A score that reads queries, keys, logits and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.w = (nn.Parameter(torch.randn(H, d, dtype=torch.float64)) for _ in range(2))

    def forward(self, q: Tensor, k: Tensor, z: Tensor, layout: Layout) -> Tensor:
        early = (layout.pos.to(z.dtype) * 0.1).cos()[:, None, None, :]
        return (q * self.u[:, None]) @ k.mT + (k @ self.w[..., None]).mT + z.tanh() * early


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def rotary(batch: int, heads: int, pairing: str) -> Rotary:
    """Any numbers: a scale may be inside, so cos^2 + sin^2 need not be 1."""
    return Rotary(rand(batch, heads, T, d // 2), rand(batch, heads, T, d // 2), pairing)


CASES: dict[str, Callable[[], Terms]] = {
    "nothing": Terms,
    "rotary_interleaved": lambda: Terms(rotary_q=rotary(1, 1, "interleaved"), rotary_k=rotary(1, 1, "interleaved")),
    "rotary_half": lambda: Terms(rotary_q=rotary(1, 1, "half"), rotary_k=rotary(1, 1, "half")),
    "rotary_per_batch_and_head": lambda: Terms(
        rotary_q=rotary(B, H, "interleaved"), rotary_k=rotary(B, H, "interleaved")
    ),
    "rotary_of_queries": lambda: Terms(rotary_q=rotary(1, H, "half")),
    "rotary_of_keys": lambda: Terms(rotary_k=rotary(B, 1, "interleaved")),
    "gain": lambda: Terms(gain=rand(H, d)),
    "gain_shared": lambda: Terms(gain=rand(1, d)),
    "scale": lambda: Terms(scale=0.3),
    "distance_bias": lambda: Terms(distance_bias=rand(H, 2 * R + 1)),
    "bias_shared_and_long": lambda: Terms(distance_bias=rand(1, 2 * R + 9)),
    "bias_clipped": lambda: Terms(distance_bias=rand(H, 5), clip=True),
    "logit_factors": lambda: Terms(logit_factors=rand(H, 2 * R + 1)),
    "gate_clipped": lambda: Terms(logit_factors=rand(1, 3), clip=True),
    "decay": lambda: Terms(decay=rand(B, H, T)),
    "pair_bias": lambda: Terms(pair_bias=rand(B, H, T, T)),
    "bias_full_shared": lambda: Terms(pair_bias=rand(1, 1, T, T)),
    "content_bias": lambda: Terms(content_bias=Content()),
    "relative_values": lambda: Terms(relative_values=rand(H, 2 * R + 1, d)),
    "values_shared_and_clipped": lambda: Terms(relative_values=rand(1, 5, d), clip=True),
    "all": lambda: Terms(
        rotary_q=rotary(1, H, "interleaved"),
        rotary_k=rotary(B, 1, "interleaved"),
        gain=rand(H, d),
        scale=0.4,
        distance_bias=rand(H, 5),
        logit_factors=rand(H, 7),
        clip=True,
        decay=rand(B, H, T),
        pair_bias=rand(B, 1, T, T),
        relative_values=rand(H, 3, d),
    ),
}
STICKS = [
    Stick(order, include_self, remainder)
    for order, include_self, remainder in product(("nearest", "first"), (True, False), ("drop", "own"))
]
STICK_IDS = [f"{stick.order}-{'self' if stick.include_self else 'not'}-{stick.remainder}" for stick in STICKS]


def leaves(terms: Terms) -> Iterator[Tensor]:
    for field in fields(terms):
        value = getattr(terms, field.name)
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Rotary):
            yield from (value.cos, value.sin)
        elif isinstance(value, nn.Module):
            yield from value.parameters()


def at(table: Tensor, *index: int) -> Tensor:
    """An entry, where dimensions of size 1 stand for all."""
    return table[tuple(min(i, size - 1) for i, size in zip(index, table.shape, strict=False))]


def at_distance(table: Tensor, h: int, distance: int) -> Tensor:
    reach = table.shape[1] // 2
    return at(table, h)[max(-reach, min(reach, distance)) + reach]


def rotated(x: Tensor, rotate: Rotary | None, b: int, h: int, t: int) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos) for every pair of dims of x [d]."""
    if rotate is None:
        return x
    dims: dict[int, Tensor] = {}
    for c in range(d // 2):
        one, two = (c, c + d // 2) if rotate.pairing == "half" else (2 * c, 2 * c + 1)
        cos, sin = at(rotate.cos, b, h, t)[c], at(rotate.sin, b, h, t)[c]
        dims[one] = x[one] * cos - x[two] * sin
        dims[two] = x[one] * sin + x[two] * cos
    return torch.stack([dims[dim] for dim in range(d)])


def broken(z: dict[int, Tensor], order: list[int]) -> tuple[dict[int, Tensor], Tensor | float]:
    """Share of every key of one stick, A_j = beta_j * product of (1 - beta_k) over those before it; what is left."""
    share, left = {}, torch.ones((), dtype=torch.float64)
    for j in order:
        beta = 1 / (1 + (-z[j]).exp())
        share[j], left = beta * left, left * (1 - beta)
    return share, left


def weights_of(z: dict[int, Tensor], i: int, how: Softmax | Stick, causal: bool) -> dict[int, Tensor]:
    if isinstance(how, Softmax):
        total = sum(value.exp() for value in z.values())
        return {j: value.exp() / total for j, value in z.items()}
    keys = sorted(j for j in z if how.include_self or j != i)
    if how.order == "first":
        share, left = broken(z, keys)
    elif causal:
        share, left = broken(z, keys[::-1])
    else:
        share, left_over = broken(z, [j for j in keys[::-1] if j <= i])
        on_right, left_over_right = broken(z, [j for j in keys if j > i])
        share = {j: value / 2 for j, value in (share | on_right).items()}
        left = (left_over + left_over_right) / 2
    if how.remainder == "own":
        share[i] = share.get(i, 0) + left
    return share


def definition(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout) -> dict[tuple[int, int, int], Tensor]:
    """Attention's output [d] for every (b, h, i) that counts."""
    out = {}
    segment, pos = layout.segment.tolist(), layout.pos.tolist()
    # what a score adds is the score's own business: it gets all q, k and z, and is tested without rotation or gain
    scored = None
    if terms.content_bias is not None:
        scored = terms.content_bias(q, k, torch.einsum("bhid,bhjd->bhij", q, k) / d**0.5, layout)
    for b, h, i in product(range(B), range(H), range(T)):
        if segment[b][i] == PADDING:
            continue
        z = {}
        for j in range(T):
            if segment[b][j] != segment[b][i] or (layout.causal and j > i):
                continue
            distance = pos[b][i] - pos[b][j]
            query, key = rotated(q[b, h, i], terms.rotary_q, b, h, i), rotated(k[b, h, j], terms.rotary_k, b, h, j)
            if terms.gain is not None:
                query, key = query * at(terms.gain, h), key * at(terms.gain, h)
            z[j] = (query * key).sum() * (d**-0.5 if terms.scale is None else terms.scale)
            if scored is not None:
                z[j] = z[j] + scored[b, h, i, j]
            if terms.logit_factors is not None:
                z[j] = z[j] * at_distance(terms.logit_factors, h, distance)
            if terms.distance_bias is not None:
                z[j] = z[j] + at_distance(terms.distance_bias, h, distance)
            if terms.decay is not None:
                z[j] = z[j] + terms.decay[b, h, i] - terms.decay[b, h, j]
            if terms.pair_bias is not None:
                z[j] = z[j] + at(terms.pair_bias, b, h, i, j)
        out[b, h, i] = torch.zeros(d, dtype=torch.float64)
        for j, weight in weights_of(z, i, terms.normalizer, layout.causal).items():
            value = v[b, h, j]
            if terms.relative_values is not None:
                value = value + at_distance(terms.relative_values, h, pos[b][i] - pos[b][j])
            out[b, h, i] = out[b, h, i] + weight * value
    return out


def assert_as_defined(terms: Terms, layout: Layout) -> None:
    """Values, and gradients of q, k, v and of every tensor in the terms."""
    q, k, v = rand(3, B, H, T, d)
    inputs = [q, k, v, *leaves(terms)]
    for tensor in inputs:
        tensor.requires_grad_()
    out = attend(q, k, v, terms, layout, "reference")
    assert out.isfinite().all()  # padding included
    rows = definition(q, k, v, terms, layout)
    expected, got = torch.stack(list(rows.values())), torch.stack([out[row] for row in rows])
    assert_close(got, expected, **EQUAL)
    upstream = torch.randn_like(expected)
    actual, wanted = (
        torch.autograd.grad(x, inputs, upstream, allow_unused=True, materialize_grads=True) for x in (got, expected)
    )
    for gradient, right in zip(actual, wanted, strict=True):
        assert_close(gradient, right, **EQUAL)
        assert right.any()


@pytest.mark.covering
@pytest.mark.parametrize(("segments", "causal"), LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_softmax_with_terms_is_as_defined(case: str, segments: list[list[int]], causal: bool) -> None:
    assert_as_defined(CASES[case](), layout_of(segments, causal))


@pytest.mark.covering
@pytest.mark.parametrize(("segments", "causal"), LAYOUTS)
@pytest.mark.parametrize("stick", STICKS, ids=STICK_IDS)
def test_stick_is_as_defined(stick: Stick, segments: list[list[int]], causal: bool) -> None:
    assert_as_defined(Terms(normalizer=stick), layout_of(segments, causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("stick", [STICKS[0], STICKS[-1]], ids=["nearest", "first"])
def test_stick_with_all_terms_is_as_defined(stick: Stick, causal: bool) -> None:
    assert_as_defined(replace(CASES["all"](), normalizer=stick), layout_of(SEGMENTS["right"], causal))


@pytest.mark.parametrize("case", ["rotary_interleaved", "distance_bias", "content_bias", "relative_values", "all"])
@pytest.mark.parametrize("weights", [Softmax(), *STICKS[::3]])
def test_gradients_are_those_of_finite_differences(case: str, weights: Softmax | Stick) -> None:
    terms, layout = replace(CASES[case](), normalizer=weights), layout_of(SEGMENTS["packed"], causal=True)
    q, k, v = (x.requires_grad_() for x in rand(3, B, H, T, d))

    def out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference.attend(q, k, v, terms, layout)

    assert torch.autograd.gradcheck(out, (q, k, v), fast_mode=True)


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 2, 63, 100, 129])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("stick", STICKS, ids=STICK_IDS)
def test_stick_and_its_remainder_make_one(stick: Stick, causal: bool, size: int) -> None:
    """Rows sum to 1 with the remainder, and without it to 1 - product of (1 - beta) over all keys of a stick."""
    layout = layout_of([[0] * size], causal)
    z = 3 * rand(1, 1, size, size)
    weights = reference.stick_weights(z, stick, layout)
    assert (weights >= 0).all()
    keys = torch.ones(size, size, dtype=torch.bool)
    keys = keys if stick.include_self else keys.fill_diagonal_(False)
    kept = torch.where(keys, 1 / (1 + z[0, 0].exp()), 1)
    left = torch.where(keys.tril(), kept, 1).prod(-1)
    if not causal:
        right = torch.where(keys.triu(1), kept, 1).prod(-1)
        left = (left + right) / 2 if stick.order == "nearest" else left * right
    total = weights.sum(-1) + (left if stick.remainder == "drop" else 0)
    assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)
    assert bool(weights[0, 0].triu(1).any()) is (not causal and size > 1)


def test_bidirectional_nearest_stick_is_two_of_mass_one_half() -> None:
    """beta = 1/2 everywhere, query 2 of 5: itself and left 1/2, 1/4, 1/8 of one half; right 1/2, 1/4 of the other."""
    layout = layout_of([[0] * 5], causal=False)
    row = reference.stick_weights(rand(1, 1, 5, 5) * 0, Stick("nearest", include_self=True), layout)[0, 0, 2]
    assert_close(row, torch.tensor([1 / 16, 1 / 8, 1 / 4, 1 / 4, 1 / 8], dtype=row.dtype), rtol=0, atol=1e-15)


@pytest.mark.parametrize("causal", [True, False])
def test_stick_from_the_first_key_breaks_once(causal: bool) -> None:
    layout = layout_of([[0] * 5], causal)
    row = reference.stick_weights(rand(1, 1, 5, 5) * 0, Stick("first", include_self=True), layout)[0, 0, 2]
    expected = torch.tensor([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32], dtype=row.dtype)
    assert_close(row, expected * (torch.arange(5) < 3) if causal else expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("stick", STICKS, ids=STICK_IDS)
def test_stick_stays_exact_in_float32_where_sigmoids_are_0_or_1(stick: Stick) -> None:
    """No key is ever lost to rounding 1 - beta to 0: compared with float64, and gradients are finite."""
    layout = layout_of([[0] * 63], causal=True)
    z = (40 * torch.randn(1, 1, 63, 63).sign()).double()
    exact, low = z.clone().requires_grad_(), z.float().requires_grad_()
    upstream = rand(1, 1, 63, 63)
    weights, got = reference.stick_weights(exact, stick, layout), reference.stick_weights(low, stick, layout)
    weights.backward(upstream)
    got.backward(upstream.float())
    # the logarithm of a weight is a sum of 63 numbers up to 40, and of partial sums up to 63 * 40
    rounding = 63 * 63 * 40 * torch.finfo(torch.float32).eps
    assert_close(got.double(), weights, rtol=rounding, atol=torch.finfo(torch.float32).tiny)
    assert (got.sum(-1) <= 1 + rounding).all()
    assert low.grad.isfinite().all()
    assert_close(low.grad.double(), exact.grad, rtol=rounding, atol=rounding * upstream.abs().max().item())


@pytest.mark.parametrize("field", ["distance_bias", "logit_factors", "relative_values"])
@pytest.mark.parametrize("implementation", ["reference", "auto"])
def test_a_table_that_is_too_short_is_an_error_unless_clipped(field: str, implementation: str) -> None:
    layout = layout_of(SEGMENTS["whole"], causal=True)
    q, k, v = rand(3, B, H, T, d)

    def run(reach: int, clip: bool) -> Tensor:
        size = (H, 2 * reach + 1, d) if field == "relative_values" else (H, 2 * reach + 1)
        return attend(q, k, v, Terms(**{field: rand(*size)}, clip=clip), layout, implementation)

    with pytest.raises(ValueError, match=f"^{field} covers distances up to {R - 1}: got {R}$"):
        run(R - 1, clip=False)
    assert run(R - 1, clip=True).isfinite().all()
    assert run(R, clip=False).isfinite().all()


def test_a_table_needs_to_reach_only_within_documents() -> None:
    """Distances to padding, to other documents and to the future do not count."""
    layout = layout_of([[0, 0, 1, 1, 1, PADDING]], causal=True)
    assert layout.max_distance == 2
    far = replace(layout, pos=layout.pos + 1_000 * (layout.segment == 1) + 50_000 * (layout.segment == PADDING))
    assert far.max_distance == 2
    assert layout_of(SEGMENTS["left"], causal=False).max_distance == 4


@pytest.mark.parametrize("wrong", [{"order": "last"}, {"remainder": "share"}])
def test_a_stick_of_unknown_kind_is_refused(wrong: dict[str, str]) -> None:
    (key,) = wrong
    with pytest.raises(ValueError, match=f"^{key} must be .* got {wrong[key]!r}$"):
        Stick(**wrong)


def test_low_precision_keeps_logits_in_float32() -> None:
    q, k = torch.randn(2, B, H, T, d).bfloat16()
    terms, layout = Terms(distance_bias=torch.randn(H, 2 * R + 1)), layout_of(SEGMENTS["whole"], causal=True)
    z = reference.logits(q, k, terms, layout)
    assert z.dtype == torch.float32
    assert attend(q, k, q, terms, layout, "reference").dtype == torch.bfloat16


@pytest.mark.parametrize("case", ["nothing", "rotary_interleaved", "gain", "distance_bias"])
def test_logits_of_bfloat16_are_those_of_float64_but_for_roundings_of_float32(case: str) -> None:
    """Queries and keys are rounded as they meet, and no more: d products and their sum have 24 bits each.

    Sums of products of size 30 and more: in bfloat16, whose numbers lie 1/8 apart there, most logits would be off.
    """
    terms, layout = CASES[case](), layout_of(SEGMENTS["whole"], causal=True)
    q, k = (4 * torch.randn(2, B, H, T, d)).bfloat16()
    low = replace(terms, **{name: getattr(terms, name).float() for name in ("gain", "distance_bias") if case == name})
    z = reference.logits(q, k, low, layout)
    met = [x.double() for x in reference.queries_and_keys(q, k, low)]
    exact = met[0] @ met[1].mT * d**-0.5
    size = met[0].abs() @ met[1].abs().mT * d**-0.5
    if case == "distance_bias":
        added = reference.added_to_logits(low, layout).double()
        exact, size = exact + added, size + added.abs()
    assert z.dtype == torch.float32
    assert ((z.double() - exact).abs() <= (d + 3) * 2**-24 * size).all()


def test_attention_in_bfloat16_errs_by_the_rounding_of_its_weights_and_values() -> None:
    """Against float64 on the same numbers: a weight and the output are rounded to 8 bits, a logit to 24.

    So an output is off by 2^-8 of each weight's share and of itself, and, with logits of size 100, by 2^-15 more.
    """
    layout = layout_of(SEGMENTS["whole"], causal=True)
    q, k, v = (torch.randn(3, B, H, T, d) * torch.tensor([4.0, 4.0, 1.0]).view(3, 1, 1, 1, 1)).bfloat16()
    got = attend(q, k, v, Terms(), layout, "reference").double()
    weights = reference.attention_weights(q.double(), k.double(), Terms(), layout)
    exact, size = weights @ v.double(), weights @ v.double().abs()
    assert ((got - exact).abs() <= 2**-8 * (size + exact.abs()) + 2**-15 * size).all()
