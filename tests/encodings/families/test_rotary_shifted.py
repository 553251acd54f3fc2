"""RoPE on half of the dimensions with a partial key offset, against the slices of its source and loops over pairs."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend
from pe_lab.encodings import OptionError, PRoPE
from pe_lab.encodings.families.rotary_shifted import KeyOffsetRoPE
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

H, d = 2, 8
SIZES = Sizes(H * d, H, 7)
EXACT = {"rtol": 0, "atol": 1e-13}


def terms(encoding: KeyOffsetRoPE | PRoPE, layout: Layout) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, encoding.sizes.width, dtype=torch.float64), layout)


def published(x: Tensor, pos: Tensor, theta: float, pairing: str) -> Tensor:
    """Rotate x [B, H, T, d] as the source does: frequencies by linspace, then zeros.

    It turns pairs the other way round, which is the same for dimensions whose second one has the other sign.
    """
    quarter = x.shape[-1] // 4
    frequency = (1 / theta) ** torch.linspace(0, 1, steps=quarter, dtype=torch.float64)
    angle = pos[:, None, :, None] * torch.cat([frequency, frequency.new_zeros(x.shape[-1] // 2 - quarter)])
    a, b = (x[..., ::2], -x[..., 1::2]) if pairing == "interleaved" else (x.chunk(2, -1)[0], -x.chunk(2, -1)[1])
    first, second = a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()
    return torch.stack((first, second), -1).flatten(-2) if pairing == "interleaved" else torch.cat((first, second), -1)


def shifted(k: Tensor, pairing: str) -> Tensor:
    """Shift the keys [.., T, d] of one document in the dimensions that are not rotated."""
    moved, size = k.clone(), k.shape[-1]
    halves = [slice(2 * (size // 4), None)]
    if pairing == "half":
        halves = [slice(size // 4, size // 2), slice(size // 2 + size // 4, None)]
    for part in halves:
        moved[..., 1:, part] = k[..., :-1, part]
    return moved


@pytest.mark.proves("key_offset")
@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
@pytest.mark.parametrize(("pairing", "theta"), [("interleaved", 1024.0), ("half", 1024.0), ("half", 50.0)])
@pytest.mark.parametrize("size", [4, 6, 8, 12])
def test_half_of_each_key_is_rotated_and_half_is_that_of_the_token_before(
    size: int, pairing: str, theta: float, implementation: str
) -> None:
    """Values and gradients, in two documents of a sequence and padding on both sides, at positions with gaps."""
    pos = torch.tensor([[0, 0, 3, 5, 6, 9, 0, 1, 4, 0]])
    segment = torch.tensor([[PADDING] * 2 + [1] * 4 + [2] * 3 + [PADDING]])
    layout = Layout(pos, segment, causal=True)
    encoding = KeyOffsetRoPE(Sizes(H * size, H, 7), theta=theta, pairing=pairing)
    q, k, v = (torch.randn(1, H, 10, size, dtype=torch.float64, requires_grad=True) for _ in range(3))
    is_token = (segment != PADDING)[:, None, :, None]
    got = attend(q, k, v, terms(encoding, layout), layout, implementation) * is_token
    parts = []
    for document in (slice(2, 6), slice(6, 9)):
        queries, keys = (published(x[:, :, document], pos[:, document], theta, pairing) for x in (q, k))
        logits = queries @ shifted(keys, pairing).mT / math.sqrt(size)
        length = logits.shape[-1]
        logits = logits.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        parts.append(logits.softmax(-1) @ v[:, :, document])
    expected = torch.nn.functional.pad(torch.cat(parts, 2), (0, 0, 2, 1))
    assert_close(got, expected, **EXACT)
    upstream = torch.randn_like(got)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EXACT)


@pytest.mark.parametrize("length", [63, 100, 129])
def test_low_precision_is_as_close_as_rounding_allows(length: int) -> None:
    layout, encoding = Layout.whole(1, length, True), KeyOffsetRoPE(SIZES)
    inputs = [torch.randn(1, H, length, d, dtype=torch.float64).bfloat16() for _ in range(3)]
    exact = attend(*(x.double() for x in inputs), terms(encoding, layout), layout, "reference")
    low = encoding.terms(torch.zeros(1, length, H * d, dtype=torch.bfloat16), layout)
    got = attend(*inputs, low, layout, "reference")
    assert got.dtype == torch.bfloat16
    rounded = attend(*inputs, Terms(), layout, "reference").double()
    error = (rounded - attend(*(x.double() for x in inputs), Terms(), layout, "reference")).abs().max()
    assert (got.double() - exact).abs().max() < 4 * error


@pytest.mark.proves("key_offset", by="identity: p_rope without the offset")
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_without_the_offset_it_is_p_rope(pairing: str) -> None:
    layout, (q, k, v) = loops.mixed(causal=True), loops.inputs(H, d)
    ours = terms(KeyOffsetRoPE(SIZES, pairing=pairing), layout)
    theirs = terms(PRoPE(SIZES, theta=1024.0 ** (2 * d / (d - 4)), pairing=pairing, p=0.5), layout)
    bare = Terms(rotary_q=ours.rotary_q, rotary_k=ours.rotary_k)
    got, expected = (attend(q, k, v, each, layout, "reference") for each in (bare, theirs))
    assert_close(got, expected, rtol=0, atol=1e-12)


def test_one_layer_can_attend_to_what_followed_a_token() -> None:
    """An induction head without a layer before it: the key of each token is the content of the one before."""
    tokens = torch.tensor([[3, 1, 2, 0, 1]])
    content = torch.nn.functional.one_hot(tokens, 4).double()
    k = torch.cat((torch.zeros(1, 5, 4).double(), content), -1)[:, None]
    layout, encoding = Layout.whole(1, 5, True), KeyOffsetRoPE(Sizes(d, 1, 5))
    v = torch.nn.functional.one_hot(tokens, d).double()[:, None]
    out = attend(100 * k, k, v, terms(encoding, layout), layout, "reference")
    assert out[0, 0, -1].argmax() == 2


def test_a_head_of_two_dimensions_is_refused() -> None:
    with pytest.raises(OptionError, match="^key_offset rotates head_dim / 4 pairs: head_dim must be at least 4, got 2"):
        KeyOffsetRoPE(Sizes(4, 2, 7))
