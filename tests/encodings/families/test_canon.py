"""Canon layers against loops over tokens, and against torch's convolution."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.layouts import packed
from pe_lab.encodings import PADDING, Canon, Layout, Sizes
from pe_lab.encodings.families.convolution import causal_convolution

D = 6
SIZES = Sizes(D, 2, 12)
EQUAL = {"rtol": 0, "atol": 1e-13}


def random_canon() -> Canon:
    encoding = Canon(SIZES).double()
    torch.nn.init.normal_(encoding.weight)
    return encoding


def of_length(length: int, batch: int = 2) -> Layout:
    return Layout.of_lengths(torch.full((batch,), length), length, True)


def paper(h: Tensor, weight: Tensor, segment: Tensor) -> Tensor:
    """h_t + sum over s = 0 ... 3 of w_s * h_(t-s), token by token; nothing of before the document."""
    rows = []
    for b in range(len(h)):
        for t in range(h.shape[1]):
            row = h[b, t]
            for s in range(4):
                if t - s >= 0 and segment[b, t - s] == segment[b, t]:
                    row = row + weight[s] * h[b, t - s]
            rows.append(row)
    return torch.stack(rows).view_as(h)


@pytest.mark.proves("canon")
@pytest.mark.parametrize("layout", [of_length(1), of_length(2), of_length(3), of_length(33), packed()])
def test_canon_is_the_papers_formula(layout: Layout) -> None:
    """Values and gradients, in packed documents, with padding and at positions from 3 on; the same for q, k and v."""
    encoding = random_canon()
    h = torch.randn(*layout.segment.shape, D, dtype=torch.float64, requires_grad=True)
    got, value = encoding.mix(h, encoding.locate(layout))
    assert value is got
    is_token = (layout.segment != PADDING)[..., None]
    expected = paper(h, encoding.weight, layout.segment) * is_token
    assert_close(got * is_token, expected, **EQUAL)
    upstream, wanted = torch.randn_like(expected), (h, encoding.weight)
    for g, e in zip(*(torch.autograd.grad(y, wanted, upstream) for y in (got * is_token, expected)), strict=True):
        assert_close(g, e, rtol=1e-13, atol=1e-13)


@pytest.mark.proves("canon", by="torch")
@pytest.mark.parametrize("length", [1, 2, 4, 63])
def test_on_a_whole_sequence_it_is_torchs_convolution(length: int) -> None:
    """As in the authors' code: the last of torch's taps is of the token itself."""
    encoding, h = random_canon(), torch.randn(2, length, D, dtype=torch.float64)
    kernel = encoding.weight.T.flip(-1)[:, None]
    expected = h + F.conv1d(h.transpose(1, 2), kernel, groups=D, padding=3)[..., :length].transpose(1, 2)
    assert_close(encoding.mix(h, of_length(length))[0], expected, **EQUAL)


def test_what_is_in_another_document_or_padding_changes_no_bit() -> None:
    encoding, layout = random_canon(), packed()
    h = torch.randn(2, 10, D, dtype=torch.float64)
    mixed = encoding.mix(h, layout)[0]
    for b, start, end in ((0, 0, 5), (0, 5, 8), (1, 2, 9), (1, 9, 10)):
        alone = encoding.mix(h[b : b + 1, start:end], of_length(end - start, 1))[0]
        assert torch.equal(mixed[b : b + 1, start:end], alone)


def test_sums_are_rounded_once_in_low_precision() -> None:
    encoding, h = Canon(SIZES), torch.randn(2, 63, D).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got = encoding.mix(h, of_length(63))[0]
    assert torch.equal(got, encoding.mix(h.float(), of_length(63))[0].bfloat16())


def test_it_starts_as_torchs_convolutions_do() -> None:
    """Uniform in +-1/2: the ends, and the variance 1/12 within 5 standard errors."""
    values = Canon(Sizes(5_000, 2, 12)).weight.detach().double()
    assert values.shape == (4, 5_000)
    assert 0.49 < values.abs().max() <= 0.5
    assert abs(values.mean()) < 5 * 12**-0.5 / values.numel() ** 0.5
    assert abs(values.square().mean() - 1 / 12) < 5 / 4 * (4 / 45 / values.numel()) ** 0.5


def test_other_numbers_of_taps_are_summed_too() -> None:
    x, weight = torch.randn(1, 9, D, dtype=torch.float64), torch.randn(12, D, dtype=torch.float64)
    expected = F.conv1d(x.transpose(1, 2), weight.T.flip(-1)[:, None], groups=D, padding=11)[..., :9].transpose(1, 2)
    assert_close(causal_convolution(x, weight, of_length(9, 1), "x"), expected, **EQUAL)
