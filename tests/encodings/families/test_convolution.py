"""Conditional positional encoding against torch's own convolutions."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from pe_lab.encodings.families.convolution import ConvolutionalPE
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes

D = 6


def make_encoding(grid_width: int | None = None) -> ConvolutionalPE:
    return ConvolutionalPE(Sizes(D, 2, 12, grid_width=grid_width)).double()


@pytest.mark.proves("cpe", by="torch")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 63])
def test_on_a_line_it_is_a_depthwise_convolution(length: int, causal: bool) -> None:
    """Compare values and gradients with torch's convolution, which is padded on the left alone where it is causal."""
    encoding = make_encoding()
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    out = encoding.embed(x, Layout.of_lengths(torch.full((2,), length), length, causal))
    padded = F.pad(x.transpose(1, 2), (2, 0) if causal else (1, 1))
    expected = x + F.conv1d(padded, encoding.weight.T[:, None], encoding.bias, groups=D).transpose(1, 2)
    assert_close(out, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(out)
    wanted = (x, encoding.weight, encoding.bias)
    for got, want in zip(*(torch.autograd.grad(y, wanted, upstream) for y in (out, expected)), strict=True):
        assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.proves("cpe", by="torch")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 4), (5, 2), (8, 8)])
def test_on_a_grid_it_is_a_convolution_in_two_dimensions(height: int, width: int, causal: bool) -> None:
    encoding = make_encoding(width)
    size = height * width
    x = torch.randn(2, size, D, dtype=torch.float64, requires_grad=True)
    out = encoding.embed(x, encoding.locate(Layout.of_lengths(torch.full((2,), size), size, causal, width)))
    image = x.transpose(1, 2).unflatten(2, (height, width))
    image = F.pad(image, (2, 0, 2, 0) if causal else (1, 1, 1, 1))
    kernel = encoding.weight.T.reshape(D, 1, 3, 3)
    expected = x + F.conv2d(image, kernel, encoding.bias, groups=D).flatten(2).transpose(1, 2)
    assert_close(out, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(out)
    wanted = (x, encoding.weight, encoding.bias)
    for got, want in zip(*(torch.autograd.grad(y, wanted, upstream) for y in (out, expected)), strict=True):
        assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_it_does_not_reach_into_another_document_or_padding(causal: bool) -> None:
    encoding, x = make_encoding(), torch.randn(1, 9, D, dtype=torch.float64)
    segment = torch.tensor([[PADDING, 3, 3, 3, 4, 4, 5, PADDING, PADDING]])
    pos = torch.tensor([[-1, 0, 1, 2, 0, 1, 0, 1, 2]])
    out = encoding.embed(x, Layout(pos, segment, causal))
    for start, end in ((1, 4), (4, 6), (6, 7)):
        length = end - start
        alone = encoding.embed(x[:, start:end], Layout.of_lengths(torch.tensor([length]), length, causal))
        assert torch.equal(out[:, start:end], alone)


def test_it_has_as_many_parameters_as_a_depthwise_convolution() -> None:
    assert sum(p.numel() for p in make_encoding().parameters()) == 3 * D + D
    assert sum(p.numel() for p in make_encoding(4).parameters()) == 9 * D + D


@pytest.mark.parametrize("grid_width", [None, 4])
def test_it_starts_as_torchs_convolutions_do(grid_width: int | None) -> None:
    """Uniform in +-1 / sqrt(taps): the ends, and the variance bound^2 / 3 within 5 standard errors."""
    encoding = ConvolutionalPE(Sizes(5_000, 2, 12, grid_width=grid_width))
    bound = (3 if grid_width is None else 9) ** -0.5
    for values in (encoding.weight.detach().double(), encoding.bias.detach().double()):
        assert 0.99 * bound < values.abs().max() <= bound * (1 + 1e-6)
        assert abs(values.mean()) < 5 * bound / (3 * values.numel()) ** 0.5
        assert abs(values.square().mean() - bound**2 / 3) < 5 * bound**2 * (4 / 45 / values.numel()) ** 0.5
