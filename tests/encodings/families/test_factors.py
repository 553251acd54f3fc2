"""Factors on attention weights, against loops over pairs of tokens."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend
from pe_lab.encodings import OptionError, make
from pe_lab.encodings.families.factors import URPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

H, d = 3, 4
SIZES = Sizes(H * d, H, 7)
EXACT = {"rtol": 0, "atol": 1e-13}


def terms(encoding: URPE, layout: Layout) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=torch.float64), layout)


def trained(encoding: URPE) -> URPE:
    torch.nn.init.normal_(encoding.double().factor)
    return encoding


@pytest.mark.proves("urpe")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("max_distance", [2, 50])
def test_weights_are_multiplied_after_the_softmax(max_distance: int, causal: bool) -> None:
    """Values and gradients, with documents, padding and gaps between positions."""
    q, k, v = loops.inputs(H, d)
    layout, encoding = loops.mixed(causal), trained(URPE(SIZES, max_distance=max_distance))
    got = loops.unpadded(attend(q, k, v, terms(encoding, layout), layout, "reference"))

    def factor(head: int, i: int, j: int) -> Tensor:
        return encoding.factor[head, max_distance + max(-max_distance, min(i - j, max_distance))]

    expected = loops.attention(q, k, v, causal, factor=factor)
    assert_close(got, expected, **EXACT)
    upstream, wanted = torch.randn_like(got), (q, k, v, encoding.factor)
    for g, e in zip(*(torch.autograd.grad(x, wanted, upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EXACT)


def test_with_a_bias_it_is_the_sources() -> None:
    """softmax(z + B) * C, both by distance."""
    q, k, v = loops.inputs(H, d)
    layout = loops.mixed(causal=False)
    both = make("sum", parts=["relative_bias", "urpe"], width=H * d, num_heads=H, depth=1, length=7).first.double()
    for parameter in both.parameters():
        torch.nn.init.normal_(parameter)
    bias, factors = both.parts[0].table, both.parts[1].factor
    got = loops.unpadded(attend(q, k, v, terms(both, layout), layout, "reference"))
    expected = loops.attention(
        q,
        k,
        v,
        causal=False,
        logit=lambda head, i, j, z: z + bias[head, 128 + i - j],
        factor=lambda head, i, j: factors[head, 128 + i - j],
    )
    assert_close(got, expected, **EXACT)


def test_it_starts_as_attention_without_position() -> None:
    q, k, v = loops.inputs(H, d)
    layout = loops.mixed(causal=True)
    got, expected = (attend(q, k, v, actual, layout, "reference") for actual in (terms(URPE(SIZES), layout), Terms()))
    assert torch.equal(got, expected)


def test_equal_tokens_are_told_apart_by_position() -> None:
    """Which no bias before a softmax does: each of its rows sums to 1."""
    layout = Layout.whole(1, 5, False)
    q = torch.ones(1, H, 5, d, dtype=torch.float64)
    out = attend(q, q, q, terms(trained(URPE(SIZES)), layout), layout, "reference")
    assert (out[0, 0, :, 0].diff().abs() > 1e-3).all()
    biased = make("relative_bias", width=H * d, num_heads=H, depth=1, length=5, causal=False).first
    alike = attend(q, q, q, biased.terms(q, layout), layout, "reference")
    assert_close(alike, q, **EXACT)


def test_factors_are_float32_in_low_precision() -> None:
    encoding, layout = URPE(SIZES), Layout.whole(1, 5, True)
    torch.nn.init.normal_(encoding.factor)
    with torch.autocast("cpu", torch.bfloat16):
        terms = encoding.terms(torch.zeros(1, 5, H * d, dtype=torch.bfloat16), layout)
    assert torch.equal(terms.weight_factors, encoding.factor)


def test_all_layers_have_one_table() -> None:
    stack = make("urpe", width=H * d, num_heads=H, depth=3, length=7, max_distance=5)
    assert [p.shape for p in stack.parameters()] == [(H, 11)]


@pytest.mark.parametrize("max_distance", [0, 1.5, None])
def test_a_table_without_distances_is_refused(max_distance: object) -> None:
    with pytest.raises(OptionError, match=r"^max_distance must be an integer of at least 1, got "):
        URPE(SIZES, max_distance=max_distance)
