"""Encodings that add a fixed function of distance, against their formulas, one pair at a time."""

import math
from dataclasses import replace
from itertools import product
from operator import mul

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend, reference
from pe_lab.config import expand_overrides
from pe_lab.encodings import make
from pe_lab.encodings.families.bias import Alibi, Sandwich, alibi_slopes
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes

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
    """Return [1, H, T, T], the bias that alibi adds to the logits."""
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


@pytest.mark.proves("alibi", by="transformers")
@pytest.mark.parametrize("num_heads", [*range(1, 17), 20, 32])
def test_alibi_equals_transformers_bloom(num_heads: int) -> None:
    """Theirs is m j: it differs from -m |i - j| by a constant in each causal row, which softmax removes."""
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


@pytest.mark.proves("nape")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("way", ["by name", "by its file"])
def test_nape_has_harmonic_slopes_in_the_first_half_of_the_heads(way: str, causal: bool) -> None:
    """Attention and its gradients, with documents, padding and gaps between positions."""
    H, d = 6, 4
    slopes = [1.0, 1 / 2, 1 / 3, 0.0, 0.0, 0.0]  # written down: the source's for 6 heads
    q, k, v = loops.inputs(H, d)
    layout = loops.mixed(causal)
    if way == "by name":
        nape = make("nape", width=H * d, num_heads=H, depth=1, length=7, causal=causal).first
    else:
        nape = hydra.utils.instantiate(expand_overrides(["pe=nape"], False)[0].pe)(Sizes(H * d, H, 7, causal))
    terms = nape.terms(torch.zeros(3, 7, H * d, dtype=torch.float64), layout)
    got = loops.unpadded(attend(q, k, v, terms, layout, "reference"))

    def logit(head: int, i: int, j: int, z: Tensor) -> Tensor:
        return z - slopes[head] * abs(i - j)

    expected = loops.attention(q, k, v, causal, logit=logit)
    assert_close(got, expected, rtol=0, atol=1e-13)
    upstream = torch.randn_like(got)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=0, atol=1e-13)


def test_harmonic_slopes_are_exact_in_float32_and_the_same_in_low_precision() -> None:
    """Far out too: rounded once, and never in the dtype of the model."""
    encoding, layout = Alibi(Sizes(12, 3, 4), slopes="harmonic").bfloat16(), layout_of(4, causal=True)
    bias = encoding.terms(torch.zeros(1, 4, 12, dtype=torch.bfloat16), layout.shifted(300)).distance_bias
    third = torch.tensor(1 / 3, dtype=torch.float64).float()
    assert torch.equal(bias, -torch.stack([x * torch.arange(-3, 4).abs().float() for x in (1.0, 0.5, third)]))


def test_alibi_is_symmetric() -> None:
    got = added(6, layout_of(100, causal=False))
    assert torch.equal(got, got.mT)


@pytest.mark.proves("alibi")
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
    """Padding at any position, and other documents, do not make the table longer."""
    pos, segment = torch.tensor([[0, 1, 2, 0, 1, 90_000]]), torch.tensor([[0, 0, 0, 1, 1, PADDING]])
    layout = Layout(pos, segment, causal=True)
    bias = Alibi(Sizes(8, 2, 6)).terms(torch.zeros(1, 6, 8), layout).distance_bias
    assert bias.shape == (2, 5)
    assert bias.dtype == torch.float32


def test_alibi_learns_nothing() -> None:
    assert not list(Alibi(Sizes(8, 2, 6)).parameters())


def sinusoid(pos: int, dims: int = 128) -> list[float]:
    """Return the position vector of arXiv:1706.03762, section 3.5."""
    angles = [pos / 10_000 ** (2 * c / dims) for c in range(dims // 2)]
    return [f(angle) for angle in angles for f in (math.sin, math.cos)]


def sandwich(num_heads: int, h: int, i: int, j: int) -> float:
    """arXiv:2212.10356: the product of two position vectors over the compression ratio 8 (h + 1) / H."""
    return sum(map(mul, sinusoid(i), sinusoid(j))) / (8 * (h + 1) / num_heads)


@pytest.mark.parametrize("num_heads", [1, 4, 12])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pos", [[0], list(range(7)), [3, 4, 9, 130, 1_000, 4_999]])
def test_sandwich_adds_the_product_of_sinusoids_over_its_ratio(pos: list[int], causal: bool, num_heads: int) -> None:
    layout = replace(layout_of(len(pos), causal), pos=torch.tensor([pos]))
    h = torch.zeros(1, len(pos), 1, dtype=torch.float64)
    terms = Sandwich(Sizes(4 * num_heads, num_heads, len(pos))).terms(h, layout)
    got = reference.logits(*torch.zeros(2, 1, num_heads, len(pos), 4, dtype=torch.float64), terms, layout)[0]
    for head, i, j in product(range(num_heads), range(len(pos)), range(len(pos))):
        # 64 cosines of angles up to 5e3, that round by 1e-12
        assert got[head, i, j].item() == pytest.approx(sandwich(num_heads, head, pos[i], pos[j]), rel=0, abs=1e-10)


@pytest.mark.proves("sandwich")
@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_sandwich_is_softmax_of_biased_logits(causal: bool) -> None:
    """Values, and gradients of q, k and v."""
    H, T, d = 3, 7, 4
    q, k, v = (torch.randn(1, H, T, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    layout = layout_of(T, causal)
    terms = Sandwich(Sizes(H * d, H, T)).terms(torch.zeros(1, T, H * d, dtype=torch.float64), layout)
    got = attend(q, k, v, terms, layout, "reference")
    rows = []
    for h, i in product(range(H), range(T)):
        keys = range(i + 1) if causal else range(T)
        score = torch.stack([(q[0, h, i] * k[0, h, j]).sum() / 2 + sandwich(H, h, i, j) for j in keys])
        share = (score - score.max()).exp()
        rows.append(sum(share[n] * v[0, h, j] for n, j in enumerate(keys)) / share.sum())
    expected = torch.stack(rows).view(1, H, T, d)
    assert_close(got, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-12, atol=1e-12)


def test_sandwich_is_rounded_once_to_float32() -> None:
    """At distance 5000 an angle in float32 would be off by 3e-4."""
    layout = replace(layout_of(2, causal=True), pos=torch.tensor([[0, 5_000]]))
    single, double = (
        Sandwich(Sizes(8, 2, 2)).terms(torch.zeros(1, 2, 8, dtype=dtype), layout).distance_bias
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.equal(single, double.float())


def test_sandwich_learns_nothing() -> None:
    assert not list(Sandwich(Sizes(8, 2, 6)).parameters())
