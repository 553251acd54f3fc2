"""Stick-breaking, plain and rotary, against the product formula, one pair at a time, in float64."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.families.stick import RotaryStickBreaking, StickBreaking
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Stick, Terms
from pe_lab.model.transformer import Transformer

B, H, d = 2, 2, 4
SIZES = Sizes(width=H * d, num_heads=H, length=16)


def layout_of(length: int, causal: bool = True) -> Layout:
    return Layout.of_lengths(torch.full((B,), length), length, causal)


def terms_of(encoding: PositionalEncoding, layout: Layout, dtype: torch.dtype = torch.float64) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=dtype), layout)


def paper_logits(q: Tensor, k: Tensor, raw: Tensor, theta: float, pairing: str) -> Tensor:
    """z_ij = Re sum over c of q_c conj(k_c) exp(i (i - j) theta^(-2c/d)) / sqrt(d) - ln(1 + exp raw) |i - j|."""
    pos = torch.arange(q.shape[2], dtype=torch.float64)
    offset = pos[:, None] - pos[None, :]
    z = -torch.log(1 + raw.exp()) * offset.abs()
    for c in range(d // 2):
        one, two = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + d // 2)
        qc = torch.complex(q[..., one], q[..., two])[..., :, None]
        kc = torch.complex(k[..., one], k[..., two])[..., None, :]
        rotate = torch.exp(1j * offset * theta ** (-2 * c / d))
        z = z + (qc * kc.conj() * rotate).real / math.sqrt(d)
    return z


def paper_attention(z: Tensor, v: Tensor, causal: bool, stick: Stick) -> Tensor:
    """sum of A_ij v_j, A_ij = beta_ij * product of (1 - beta_ik) over the keys k that come before j.

    Nearest first they come from the query outwards, itself first if it takes part; bidirectional, half the mass goes to
    each side, the query itself on the left. Otherwise they come from key 0 on. What is left may go to the query's own.
    """
    beta, rows = 1 / (1 + (-z).exp()), []
    size = z.shape[-1]
    for i in range(size):
        left_side, right_side = range(i, -1, -1), range(i + 1, size)
        if stick.order == "first":
            sides = [range(i + 1 if causal else size)]
        else:
            sides = [left_side] if causal else [left_side, right_side]
        row = 0 * v[..., i, :]
        for side in sides:
            left = torch.full_like(beta[..., 0, 0], 1 / len(sides))
            for j in side:
                if j == i and not stick.include_self:
                    continue
                row = row + (beta[..., i, j] * left)[..., None] * v[..., j, :]
                left = left * (1 - beta[..., i, j])
            if stick.remainder == "own":
                row = row + left[..., None] * v[..., i, :]
        rows.append(row)
    return torch.stack(rows, -2)


def assert_as_in_the_paper(encoding: RotaryStickBreaking, length: int, causal: bool) -> None:
    """Values, and gradients of q, k, v and of lambda's parameter."""
    q, k, v = (torch.randn(B, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    layout, inputs = layout_of(length, causal), (q, k, v, encoding.raw)
    got = attend(q, k, v, terms_of(encoding, layout), layout, "reference")
    z = paper_logits(q, k, encoding.raw, encoding.theta, encoding.pairing)
    expected = paper_attention(z, v, causal, Stick(encoding.order, include_self=True, remainder="drop"))
    # logarithms of weights sum to some 100, and round by 1e-14 there
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(expected)
    gradients = (torch.autograd.grad(x, inputs, upstream) for x in (got, expected))
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e, rtol=0, atol=1e-12)


@pytest.mark.proves("rse")
@pytest.mark.parametrize(
    ("length", "causal"),
    [
        *product([1, 2, 63], [True, False]),
        (129, True),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [(100, True), (100, False), (129, False)]),
    ],
)
def test_rse_is_the_product_formula(length: int, causal: bool) -> None:
    assert_as_in_the_paper(RotaryStickBreaking(SIZES).double(), length, causal)


@pytest.mark.proves("rse_literal")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7, 63])
def test_rse_literal_breaks_the_stick_from_key_0_on(length: int, causal: bool) -> None:
    assert_as_in_the_paper(RotaryStickBreaking(SIZES, order="first").double(), length, causal)


def sticks() -> list:
    """Every stick at every length; at 63, without slow tests, every three of the four choices together."""
    results = []
    for order, own, rest, length, causal in product(
        ("nearest", "first"), (True, False), ("drop", "own"), (1, 2, 7, 63), (True, False)
    ):
        odd = (order == "first") ^ own ^ (rest == "own") ^ causal
        marks = [pytest.mark.slow] if length == 63 and odd else []
        results.append(pytest.param(Stick(order, own, rest), length, causal, marks=marks))
    return results


@pytest.mark.parametrize(("stick", "length", "causal"), sticks())
def test_every_stick_is_the_product_loop(stick: Stick, length: int, causal: bool) -> None:
    """Values, and gradients of q, k and v; on one document with padding and other documents around it."""
    q, k, v = (torch.randn(B, H, length + 3, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    segment = torch.tensor([[5, *[0] * length, PADDING, 7]] * B)
    layout = Layout(torch.arange(length + 3)[None], segment, causal)
    middle = slice(1, length + 1)
    got = attend(q, k, v, Terms(normalizer=stick), layout, "reference")[..., middle, :]
    z = q[..., middle, :] @ k[..., middle, :].mT / math.sqrt(d)
    expected = paper_attention(z, v[..., middle, :], causal, stick)
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(expected)
    # a stick with no key does not look at the query
    gradients = (torch.autograd.grad(x, (q, k, v), upstream, materialize_grads=True) for x in (got, expected))
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e, rtol=0, atol=1e-12)


@pytest.mark.proves("stick_breaking")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7, 63])
def test_stick_breaking_is_the_papers(length: int, causal: bool) -> None:
    """ln A_ij = ln sigmoid(z_ij) + sum of ln sigmoid(-z_ik); the rest goes to the query's own value."""
    q, k, v = (torch.randn(B, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    layout = layout_of(length, causal)
    terms = terms_of(StickBreaking(SIZES), layout)
    assert terms == Terms(normalizer=Stick("nearest", include_self=False, remainder="own"))
    expected = paper_attention(q @ k.mT / math.sqrt(d), v, causal, terms.normalizer)
    got = attend(q, k, v, terms, layout, "reference")
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(expected)
    gradients = (torch.autograd.grad(x, (q, k, v), upstream, materialize_grads=True) for x in (got, expected))
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_stick_breaking_sum_to_one(causal: bool) -> None:
    q, k = 5 * torch.randn(2, B, H, 63, d, dtype=torch.float64)
    layout = layout_of(63, causal)
    weights = reference.attention_weights(q, k, terms_of(StickBreaking(SIZES), layout), layout)
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-13)


def test_stick_breaking_sees_order_and_not_positions() -> None:
    layout, (q, k, v) = layout_of(7), torch.randn(3, B, H, 7, d)
    spread = replace(layout, pos=layout.pos**2 + 100)
    terms = terms_of(StickBreaking(SIZES), layout, torch.float32)
    assert StickBreaking.reads_positions is False
    assert not list(StickBreaking(SIZES).parameters())
    assert torch.equal(attend(q, k, v, terms, spread), attend(q, k, v, terms, layout))
    order = [1, 0, 2, 3, 4, 5, 6]
    reordered = attend(q, k[..., order, :], v[..., order, :], terms, layout)
    assert (reordered - attend(q, k, v, terms, layout))[..., -1, :].abs().min() > 1e-6


@pytest.mark.parametrize("setting", [{"pairing": "half"}, {"theta": 30.0}, {"decay": 0.7}])
def test_rse_is_the_product_formula_in_every_setting(setting: dict) -> None:
    assert_as_in_the_paper(RotaryStickBreaking(SIZES, **setting).double(), 17, causal=True)


def test_stick_has_the_known_values() -> None:
    """Shares 0.30, 0.25, 0.40, 0.35, 0.50 of the nearest key to the farthest."""
    beta = torch.tensor([0.30, 0.25, 0.40, 0.35, 0.50], dtype=torch.float64)
    z = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    z[0, 0, 4] = beta.logit().flip(0)
    layout = Layout.of_lengths(torch.tensor([5]), 5, causal=True)
    row = reference.stick_weights(z, Stick("nearest", include_self=True), layout)[0, 0, 4]
    expected = torch.tensor([0.300, 0.175, 0.210, 0.110, 0.102], dtype=torch.float64)
    assert_close(row.flip(0), expected, rtol=0, atol=0.0005)
    first = reference.stick_weights(z.flip(-1), Stick("first", include_self=True), layout)[0, 0, 4]
    assert_close(first, expected, rtol=0, atol=0.0005)


def test_stick_breaking_gives_the_rest_to_the_querys_own_value() -> None:
    """The same shares of the five keys before a query, and its own value: 0.70 x 0.75 x 0.60 x 0.65 x 0.50."""
    beta, layout = torch.tensor([0.30, 0.25, 0.40, 0.35, 0.50], dtype=torch.float64), layout_of(6)
    full = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    full[0, 0, 5, :5] = beta.logit().flip(0)
    q = torch.zeros(B, H, 6, d, dtype=torch.float64)
    terms = replace(terms_of(StickBreaking(SIZES), layout), pair_bias=full)
    row = reference.attention_weights(q, q, terms, layout)[0, 0, 5]
    expected = torch.tensor([0.102375, 0.300, 0.175, 0.210, 0.110, 0.102], dtype=torch.float64)
    assert_close(row.flip(0), expected, rtol=0, atol=0.0005)
    assert row[5].item() == pytest.approx(0.102375, rel=1e-12)


def test_rse_is_as_before_at_its_neutral_order() -> None:
    assert RotaryStickBreaking.neutral == {"order": "nearest"}
    layout = layout_of(3)
    assert terms_of(RotaryStickBreaking(SIZES), layout).normalizer.order == "nearest"
    assert terms_of(RotaryStickBreaking(SIZES, order="first"), layout).normalizer.order == "first"


def test_rse_is_rope_with_a_decay_and_a_stick() -> None:
    layout = layout_of(5)
    terms, rope = terms_of(RotaryStickBreaking(SIZES), layout), terms_of(RoPE(SIZES), layout)
    assert torch.equal(terms.rotary_q.cos, rope.rotary_q.cos)
    assert torch.equal(terms.rotary_k.sin, rope.rotary_k.sin)
    assert terms.normalizer == Stick(order="nearest", include_self=True, remainder="drop")
    assert terms == replace(
        Terms(), **{x: getattr(terms, x) for x in ("rotary_q", "rotary_k", "distance_bias", "normalizer")}
    )


def test_lambda_starts_at_one_hundredth() -> None:
    encoding, layout = RotaryStickBreaking(SIZES), layout_of(3)
    # ln(e^0.01 - 1)
    assert encoding.raw.item() == pytest.approx(-4.600, abs=0.0005)
    assert encoding.raw.item() == pytest.approx(math.log(math.exp(0.01) - 1), rel=1e-7)
    bias = terms_of(encoding, layout, torch.float32).distance_bias
    # raw of size 4.6 rounds by 4.6 eps, which moves lambda by as much, relatively
    expected = torch.tensor([[-0.02, -0.01, 0.0, -0.01, -0.02]])
    assert_close(bias, expected, rtol=8 * torch.finfo(torch.float32).eps, atol=0)


@pytest.mark.parametrize("decay", [1e-6, 0.01, 1.0, 100.0, 1_000.0])
def test_lambda_starts_at_the_given_decay(decay: float) -> None:
    encoding = RotaryStickBreaking(SIZES, decay=decay)
    rate = -terms_of(encoding, layout_of(2), torch.float32).distance_bias[0, 0].item()
    # raw, of size |ln decay| below 1, rounds by half an eps of itself, and softplus passes that on relatively
    assert rate == pytest.approx(decay, rel=(abs(math.log(decay)) + 4) * torch.finfo(torch.float32).eps, abs=0)


@pytest.mark.parametrize("raw", [-100.0, -4.6, 0.0, 100.0])
def test_lambda_is_never_negative(raw: float) -> None:
    encoding = RotaryStickBreaking(SIZES)
    with torch.no_grad():
        encoding.raw.fill_(raw)
    bias = terms_of(encoding, layout_of(9), torch.float32).distance_bias
    assert (bias <= 0).all()
    assert bias.isfinite().all()


def test_every_layer_has_a_lambda_of_its_own() -> None:
    config = Model(
        depth=3, width=H * d, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    assert Transformer(config, RotaryStickBreaking, Task(5, 4, 5, causal=True)).positional_parameters() == 3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", ["plus", "minus", "random"])
def test_logits_of_40_stay_finite_and_rows_within_one(sign: str, dtype: torch.dtype, causal: bool) -> None:
    """Gradients are finite as well."""
    encoding, length = RotaryStickBreaking(SIZES).to(dtype), 63
    layout = layout_of(length, causal)
    q, k, v = (torch.randn(B, H, length, d, dtype=dtype, requires_grad=True) for _ in range(3))
    signs = {"plus": 1.0, "minus": -1.0, "random": torch.randn(B, H, length, length, dtype=dtype).sign()}[sign]
    extreme = (40.0 * signs * torch.ones(B, H, length, length, dtype=dtype)).requires_grad_()
    terms = replace(terms_of(encoding, layout, dtype), pair_bias=extreme)
    total = reference.attention_weights(q, k, terms, layout).sum(-1)
    assert (total >= 0).all()
    # a row sums 63 numbers whose own sum is at most 1
    assert (total <= 1 + length * torch.finfo(dtype).eps).all()
    out = attend(q, k, v, terms, layout, "reference")
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out, (q, k, v, extreme, encoding.raw), torch.randn_like(out)):
        assert gradient.isfinite().all()


def test_a_saturated_key_takes_all_and_a_shut_one_nothing() -> None:
    """beta = 1 to 1e-17 for the query's own key: the row is that key's value; beta = 0 everywhere: the row is empty."""
    layout, v = layout_of(9), torch.randn(B, H, 9, d, dtype=torch.float64)
    terms = terms_of(RotaryStickBreaking(SIZES).double(), layout)
    for logit, expected in ((40.0, v), (-40.0, torch.zeros_like(v))):
        full = torch.full((1, 1, 9, 9), logit, dtype=torch.float64)
        out = attend(0 * v, 0 * v, v, replace(terms, pair_bias=full), layout, "reference")
        # e^-40 is 4e-18
        assert_close(out, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("decay", 0.0), ("decay", -0.01), ("decay", math.inf), ("theta", 0.0), ("pairing", "none"), ("order", "last")],
)
def test_a_setting_out_of_range_is_named(setting: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=rf"^{setting} must be .*, got {value!r}$"):
        RotaryStickBreaking(SIZES, **{setting: value})


def test_a_head_of_odd_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^rse rotates pairs: head_dim must be even, got 33 "):
        RotaryStickBreaking(Sizes(width=132, num_heads=4, length=16))
