"""Inkling's mixtures of distance curves, against loops and two libraries, in float64."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend
from pe_lab.encodings import Inkling, Layout, Sizes
from pe_lab.encodings.families.bias_content import Mixture

H, d = 2, 4
D = H * d
SIZES = Sizes(D, H, 16)


def random(**options: int) -> Inkling:
    encoding = Inkling(SIZES, **options).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding


def assert_equal(got: Tensor, expected: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Values, and gradients for a random upstream gradient."""
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert e.any()
        assert_close(g, e, rtol=0, atol=1e-11)


@pytest.mark.proves("inkling")
@pytest.mark.parametrize(("curves", "extent"), [(3, 64), (1, 2), (2, 1)])
def test_inkling_is_the_codes_sum(curves: int, extent: int) -> None:
    """r_i . c_(i-j) is added below the extent, r = W h of each head; values, and gradients of everything."""
    encoding, layout = random(curves=curves, extent=extent), loops.mixed(True)
    q, k, v = loops.inputs(H, d)
    h = torch.randn(*layout.segment.shape, D, dtype=torch.float64, requires_grad=True)
    got = loops.unpadded(attend(q, k, v, encoding.terms(h, layout), layout, "reference"))
    bias = torch.zeros(3, H, 7, 7, dtype=torch.float64)
    for b, head, i, j in product(range(3), range(H), range(7), range(7)):
        distance = loops.POSITIONS[b][i] - loops.POSITIONS[b][j]
        if loops.SEGMENTS[b][i] == loops.SEGMENTS[b][j] and 0 <= distance < extent:
            at = torch.zeros_like(bias)
            at[b, head, i, j] = 1
            shares = [encoding.weight[head * curves + n] @ h[b, i] for n in range(curves)]
            bias = bias + at * sum(share * encoding.curves[n, distance] for n, share in enumerate(shares))
    z = q @ k.mT / d**0.5 + bias
    expected = loops.unpadded(z.masked_fill(~layout.allowed, -torch.inf).softmax(-1).nan_to_num() @ v)
    assert_equal(got, expected, (q, k, v, h, *encoding.parameters()))


@pytest.mark.proves("inkling", by="transformers")
@pytest.mark.parametrize("extent", [5, 100])
def test_inkling_equals_transformers(extent: int) -> None:
    from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

    encoding, layout = random(curves=3, extent=extent), Layout.whole(2, 20, True)
    h = torch.randn(2, 20, D, dtype=torch.float64, requires_grad=True)
    theirs = InklingRelativeLogits(3, extent).double()
    theirs.proj = encoding.curves
    at = torch.arange(20)
    expected = theirs((h @ encoding.weight.T).unflatten(-1, (H, 3)), at, at)
    got = encoding.terms(h, layout).pair_bias
    assert_equal(got.where(layout.allowed, 0), expected, (h, encoding.weight, encoding.curves))


@pytest.mark.proves("inkling", by="x-transformers")
@pytest.mark.parametrize("extent", [5, 100])
def test_inkling_equals_x_transformers(extent: int) -> None:
    """Theirs has a bias in the projection."""
    from x_transformers.x_transformers import RelativeProjPositionalBias

    encoding, layout = random(curves=3, extent=extent), Layout.whole(2, 20, True)
    h = torch.randn(2, 20, D, dtype=torch.float64, requires_grad=True)
    theirs = RelativeProjPositionalBias(D, H, 3, extent).double()
    theirs.distance_bank, theirs.to_distance_weights[0].weight = encoding.curves, encoding.weight
    torch.nn.init.zeros_(theirs.to_distance_weights[0].bias)
    got = encoding.terms(h, layout).pair_bias
    assert_equal(got.where(layout.allowed, 0), theirs(h), (h, encoding.weight, encoding.curves))


def test_a_block_of_queries_has_the_rows_of_all() -> None:
    layout = Layout.whole(2, 30, True)
    mixture = Mixture(*(torch.randn(shape, dtype=torch.float64) for shape in ((2, H, 30, 3), (3, 12))), layout)
    whole, part = mixture(layout), mixture(layout.block(10, 19))
    assert_close(part, whole[:, :, 10:19, :19], rtol=0, atol=1e-14)


def test_the_bias_is_formed_in_float32_in_low_precision() -> None:
    encoding, layout = random().float(), Layout.whole(1, 300, True)
    h = torch.randn(1, 300, D).bfloat16()
    expected = encoding.terms(h.float(), layout).pair_bias
    with torch.autocast("cpu", torch.bfloat16):
        got = encoding.terms(h, layout).pair_bias
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)


def test_a_layer_has_the_parameters_of_the_source_and_all_but_no_bias_at_the_start() -> None:
    encoding = Inkling(Sizes(64, 4, 16))
    assert sum(p.numel() for p in encoding.parameters()) == 64 * 4 * 16 + 16 * 1024
    for parameter in encoding.parameters():
        assert parameter.detach().std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(("option", "value"), [("curves", 0), ("extent", 0), ("extent", 2.5), ("std", -1.0)])
def test_an_option_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be "):
        Inkling(SIZES, **{option: value})


def test_without_curves_it_is_no_encoding() -> None:
    encoding, layout = random(), Layout.whole(2, 9, True)
    with torch.no_grad():
        encoding.curves.zero_()
    assert not encoding.terms(torch.randn(2, 9, D, dtype=torch.float64), layout).pair_bias.any()
