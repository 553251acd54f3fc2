"""Encodings that add a function of distance, against their formulas, one pair at a time."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.encodings.base import PADDING, Layout, Sizes
from pe_lab.encodings.bias import Alibi, alibi_slopes

# written down, not computed: arXiv:2108.12409, section 3, and its code's rule for other numbers
SLOPES = {
    1: [2**-8.0],
    2: [2**-4.0, 2**-8.0],
    3: [2**-4.0, 2**-8.0, 2**-2.0],
    4: [2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0],
    6: [2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    16: [2 ** (-n / 2) for n in range(1, 17)],
    20: [2 ** (-n / 2) for n in range(1, 17)] + [2**-0.25, 2**-0.75, 2**-1.25, 2**-1.75],
}


def layout_of(length: int, causal: bool) -> Layout:
    return Layout.of_lengths(torch.tensor([length]), length, causal)


def added(num_heads: int, layout: Layout, dtype: torch.dtype = torch.float64) -> Tensor:
    """[1, H, T, T] what alibi adds to logits of zero."""
    length = layout.segment.shape[1]
    terms = Alibi(Sizes(4 * num_heads, num_heads, length)).terms(torch.zeros(1, length, 1, dtype=dtype), layout)
    zero = torch.zeros(1, num_heads, length, 4, dtype=dtype)
    return reference.logits(zero, zero, terms, layout)


@pytest.mark.parametrize("num_heads", SLOPES)
def test_slopes_are_the_papers(num_heads: int) -> None:
    assert alibi_slopes(num_heads) == pytest.approx(SLOPES[num_heads], rel=1e-15, abs=0)


@pytest.mark.parametrize("num_heads", range(1, 34))
def test_every_head_has_a_slope_of_its_own(num_heads: int) -> None:
    slopes = alibi_slopes(num_heads)
    assert len(set(slopes)) == len(slopes) == num_heads
    assert all(2**-8 <= slope < 1 for slope in slopes)


@pytest.mark.parametrize("num_heads", [*range(1, 17), 20, 32])
def test_alibi_equals_transformers_bloom(num_heads: int) -> None:
    """Theirs is m j: equal to -m |i - j| for causal rows up to a constant, that softmax does not see."""
    pytest.importorskip("transformers")
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    length = 63
    theirs = build_alibi_tensor(torch.ones(1, length), num_heads, torch.float64)  # [H, 1, T]
    ours = added(num_heads, layout_of(length, causal=True))[0]
    keys = torch.ones(length, length, dtype=torch.bool).tril()
    # their slopes are powers, up to H, of a float32 base
    rtol = (num_heads + 1) * torch.finfo(torch.float32).eps
    assert_close((ours - ours[..., :1])[:, keys], theirs.expand(-1, length, -1)[:, keys], rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("num_heads", [1, 4, 12])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 63])
def test_alibi_adds_minus_slope_times_distance(length: int, causal: bool, num_heads: int) -> None:
    got = added(num_heads, layout_of(length, causal))[0]
    for h, i, j in product(range(num_heads), range(length), range(length)):
        assert got[h, i, j].item() == pytest.approx(-SLOPES[num_heads][h] * abs(i - j), rel=1e-15, abs=0)


def test_alibi_is_symmetric() -> None:
    got = added(6, layout_of(100, causal=False))
    assert torch.equal(got, got.mT)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_alibi_is_softmax_of_biased_logits(causal: bool) -> None:
    """Values, and gradients of q, k and v."""
    H, T, d = 3, 7, 4
    q, k, v = (torch.randn(1, H, T, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    layout = layout_of(T, causal)
    terms = Alibi(Sizes(H * d, H, T)).terms(torch.zeros(1, T, H * d, dtype=torch.float64), layout)
    got = attend(q, k, v, terms, layout, "reference")
    rows = []
    for h, i in product(range(H), range(T)):
        keys = range(i + 1) if causal else range(T)
        score = torch.stack([(q[0, h, i] * k[0, h, j]).sum() / 2 - SLOPES[H][h] * abs(i - j) for j in keys])
        share = score.exp() / score.exp().sum()
        rows.append(sum(share[n] * v[0, h, j] for n, j in enumerate(keys)))
    expected = torch.stack(rows).view(1, H, T, d)
    assert_close(got, expected, rtol=1e-12, atol=1e-13)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-12, atol=1e-13)


def test_alibi_depends_only_on_offset() -> None:
    """Explicit positions, in float32: integers times slopes, exact while they are below 2^24."""
    rows = [[0, 1, 5, 9], [5_000, 5_001, 5_005, 5_009]]
    whole = layout_of(4, causal=True)
    near, far = (added(4, replace(whole, pos=torch.tensor([row])), torch.float32) for row in rows)
    assert torch.equal(near, far)
    assert near[0, 0, 3, 0].item() == -9 / 4


def test_the_table_covers_what_can_be_seen_and_no_more() -> None:
    """Padding at any position, and other documents, do not make it longer."""
    pos, segment = torch.tensor([[0, 1, 2, 0, 1, 90_000]]), torch.tensor([[0, 0, 0, 1, 1, PADDING]])
    layout = Layout(pos, segment, torch.tensor([5]), causal=True)
    bias = Alibi(Sizes(8, 2, 6)).terms(torch.zeros(1, 6, 8), layout).bias
    assert bias.shape == (2, 5)
    assert bias.dtype == torch.float32


def test_alibi_learns_nothing() -> None:
    assert not list(Alibi(Sizes(8, 2, 6)).parameters())
