"""A trained density of distance, against its formula, one pair of tokens at a time."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend
from pe_lab.encodings import Alibi, OptionError, make
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.distance_table import table_lookup
from pe_lab.encodings.families.bias_gaussian import BAM
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

H, d = 3, 4
SIZES = Sizes(H * d, H, 7)


def terms(encoding: PositionalEncoding, layout: Layout) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=torch.float64), layout)


def trained(encoding: BAM, beta: list[float], m: list[float]) -> BAM:
    with torch.no_grad():
        encoding.double().beta.copy_(torch.tensor(beta))
        encoding.log_scale.copy_(torch.tensor([-1.0, 0.3, -2.5]))
        if encoding.location is not None:
            encoding.location.copy_(torch.tensor(m))
    return encoding


@pytest.mark.proves("bam")
@pytest.mark.parametrize("location", [True, False])
@pytest.mark.parametrize("beta", [[1.0, 2.0, 0.5], [-0.3, 1.7, -0.1]])
@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_is_the_codes(causal: bool, beta: list[float], location: bool) -> None:
    """Attention and gradients, with documents, padding and gaps; mu before the query, at it and after it."""
    m = [-1.1, 0.0, 0.6]
    q, k, v = loops.inputs(H, d)
    layout, encoding = loops.mixed(causal), trained(BAM(SIZES, location=location), beta, m)
    got = loops.unpadded(attend(q, k, v, terms(encoding, layout), layout, "reference"))

    def logit(head: int, i: int, j: int, z: Tensor) -> Tensor:
        place = encoding.location
        mu = 0.0 if place is None else place[head].exp() - (-place[head]).exp()
        away = torch.as_tensor((j - i) - mu, dtype=torch.float64).abs() + 1e-5
        return z - away ** encoding.beta[head] * encoding.log_scale[head].exp()

    expected = loops.attention(q, k, v, causal, logit=logit)
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream, wanted = torch.randn_like(got), (q, k, v, *encoding.parameters())
    assert len(wanted) == 5 + location
    for g, e in zip(*(torch.autograd.grad(x, wanted, upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 3, 4, 12])
@pytest.mark.parametrize("causal", [True, False])
def test_it_starts_as_alibi(heads: int, causal: bool) -> None:
    sizes, layout = Sizes(4 * heads, heads, 63, causal), Layout.whole(1, 63, causal)
    ours, theirs = (kind(sizes).terms(torch.zeros(1, 63, 1), layout).distance_bias for kind in (BAM, Alibi))
    # 1e-5 of a position, and float32 logarithms: of a number up to 63, of a slope down to 1/256
    assert_close(ours, theirs, rtol=4 * 6 * torch.finfo(torch.float32).eps, atol=1.1e-5)
    assert not torch.equal(ours, theirs)


def test_a_head_may_look_back_at_one_place() -> None:
    """mu < 0 lies before the query: 2 sinh(m) = -3."""
    encoding = trained(BAM(SIZES), [2.0] * 3, [math.asinh(-1.5)] * 3)
    layout = Layout.whole(1, 7, False)
    bias = table_lookup(terms(encoding, layout).distance_bias, layout.distance)[0]
    assert bias[:, 5].argmax(-1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("beta", [-40.0, 60.0])
def test_a_row_whose_keys_are_all_shut_out_is_finite(beta: float) -> None:
    encoding, layout = BAM(SIZES), Layout.whole(1, 7, True)
    with torch.no_grad():
        encoding.beta.fill_(beta)
        encoding.location.fill_(4.0)
    q = torch.randn(1, H, 7, d)
    out = attend(q, q, q, encoding.terms(torch.zeros(1, 7, H * d), layout), layout, "reference")
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in encoding.parameters())


def test_the_bias_has_the_same_bits_in_low_precision_far_out() -> None:
    encoding = BAM(SIZES)
    layout = Layout(torch.tensor([[0, 259, 260, 70_000]]), torch.zeros(1, 4, dtype=torch.long), True)
    expected = encoding.terms(torch.zeros(1, 4, H * d), layout).distance_bias
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(
            encoding.terms(torch.zeros(1, 4, H * d, dtype=torch.bfloat16), layout).distance_bias, expected
        )
    reach = expected.shape[1] // 2
    assert (expected[:, reach + 259] > expected[:, reach + 260]).all()


def test_all_layers_have_one_density() -> None:
    for options, count in (({}, 3), ({"location": False}, 2)):
        stack = make("bam", width=H * d, num_heads=H, depth=4, length=7, **options)
        assert sum(p.numel() for p in stack.parameters()) == count * H


def test_an_option_out_of_range_is_refused() -> None:
    with pytest.raises(OptionError, match="^location must be true or false, got 0.5$"):
        BAM(SIZES, location=0.5)
