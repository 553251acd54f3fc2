"""Rotated values, against rotation matrices and loops over pairs of tokens."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend, reference
from pe_lab.encodings import OptionError, RoPE
from pe_lab.encodings.families.rotary_values import VORoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

H, d = 2, 8
SIZES = Sizes(H * d, H, 7)
EXACT = {"rtol": 0, "atol": 1e-13}


def terms(encoding: RoPE, layout: Layout) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=torch.float64), layout)


def rotation(offset: int, theta: float, pairing: str) -> Tensor:
    """[d, d] R, which turns the pair c of dimensions by offset * theta^(-2c/d)."""
    matrix = torch.zeros(d, d, dtype=torch.float64)
    for c in range(d // 2):
        angle = offset * theta ** (-2 * c / d)
        a, b = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + d // 2)
        matrix[a, a] = matrix[b, b] = math.cos(angle)
        matrix[b, a], matrix[a, b] = math.sin(angle), -math.sin(angle)
    return matrix


@pytest.mark.proves("vo_rope")
@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
@pytest.mark.parametrize("queries_keys", [True, False])
@pytest.mark.parametrize(("pairing", "theta"), [("interleaved", 10_000.0), ("half", 10_000.0), ("interleaved", 50.0)])
@pytest.mark.parametrize("causal", [True, False])
def test_a_value_is_turned_by_the_offset_of_its_key(
    causal: bool, pairing: str, theta: float, queries_keys: bool, implementation: str
) -> None:
    """o_i = sum over j of a_ij R_(j - i) v_j, and gradients, with documents, padding and gaps between positions."""
    q, k, v = loops.inputs(H, d)
    layout, encoding = loops.mixed(causal), VORoPE(SIZES, theta=theta, pairing=pairing, queries_keys=queries_keys)
    got = loops.unpadded(attend(q, k, v, terms(encoding, layout), layout, implementation))

    def turned(x: Tensor) -> Tensor:
        matrices = torch.stack([torch.stack([rotation(p, theta, pairing) for p in row]) for row in loops.POSITIONS])
        return torch.einsum("btij,bhtj->bhti", matrices, x) if queries_keys else x

    expected = loops.attention(
        turned(q), turned(k), v, causal, value=lambda i, j, value: rotation(j - i, theta, pairing) @ value
    )
    assert_close(got, expected, **EXACT)
    upstream = torch.randn_like(got)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EXACT)


@pytest.mark.proves("vo_rope", by="rotary-embedding-torch")
def test_it_equals_rotary_embedding_torch() -> None:
    """Queries, keys and values rotated by the library, and the result by its opposite angles."""
    library = pytest.importorskip("rotary_embedding_torch")
    layout, (q, k, v) = Layout.whole(3, 7, True), loops.inputs(H, d)
    rotates = library.RotaryEmbedding(d).double()
    rotates.freqs.data = 10_000.0 ** (-torch.arange(0, d, 2).double() / d)  # theirs are float32
    turned = [rotates.rotate_queries_or_keys(x) for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=True)
    angles = torch.arange(7).double()[:, None] * rotates.freqs.repeat_interleave(2)
    expected = library.apply_rotary_emb(-angles, out)
    assert_close(attend(q, k, v, terms(VORoPE(SIZES), layout), layout, "reference"), expected, rtol=0, atol=1e-12)


def test_queries_and_keys_meet_as_with_rope() -> None:
    layout, (q, k, v) = loops.mixed(causal=True), loops.inputs(H, d)
    ours, theirs = (terms(kind(SIZES), layout) for kind in (VORoPE, RoPE))
    for one, other in zip(
        reference.queries_and_keys(q, k, ours), reference.queries_and_keys(q, k, theirs), strict=True
    ):
        assert torch.equal(one, other)
    assert torch.equal(reference.rotated_values(v, ours), reference.queries_and_keys(v, v, theirs)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_alone_keeps_its_value_far_out(dtype: torch.dtype) -> None:
    """Rotated there and back by the same float32 angle, whatever the dtype of the model."""
    v = torch.randn(1, H, 1, d, dtype=dtype)
    layout = Layout(torch.tensor([[100_003]]), torch.zeros(1, 1, dtype=torch.long), True)
    terms = VORoPE(SIZES).terms(torch.zeros(1, 1, H * d, dtype=dtype), layout)
    size = v.abs().max().item()
    got = attend(v, v, v, terms, layout, "reference")
    assert_close(got, v, rtol=0, atol=4 * torch.finfo(dtype).eps * size)
    exact = torch.tensor([[[[100_003.0]]]], dtype=torch.float64) * 10_000.0 ** (-torch.arange(0, d, 2).double() / d)
    # an angle a is within a float32 rounding of it, and so is its frequency
    assert_close(terms.rotary_v.sin.double(), exact.sin(), rtol=0, atol=2 * 100_003 * torch.finfo(torch.float32).eps)


def test_the_result_depends_only_on_offsets() -> None:
    q, k, v = loops.inputs(H, d)
    layout, encoding = loops.mixed(causal=False), VORoPE(SIZES)
    near, far = (
        loops.unpadded(attend(q, k, v, terms(encoding, one), one, "reference")) for one in (layout, layout.shifted(11))
    )
    assert_close(near, far, rtol=0, atol=1e-12)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match="^queries_keys must be true or false, got 1$"):
        VORoPE(SIZES, queries_keys=1)
    with pytest.raises(ValueError, match="^vo_rope rotates pairs: head_dim must be even, got 3 "):
        VORoPE(Sizes(6, 2, 8))
