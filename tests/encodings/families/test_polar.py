"""PoPE, against sums of cosines over dimensions, and against x-transformers."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.encodings.families.polar import PoPE
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes

B, H, d = 2, 2, 5
SIZES = Sizes(width=H * d, num_heads=H, length=16)
F32 = torch.finfo(torch.float32).eps
# angles up to 1e3 round by 1e-13, and logits of size 10 with them
EQUAL = {"rtol": 0, "atol": 1e-11}


def packed(causal: bool) -> Layout:
    """Two sequences of documents at any positions, one padded on the left and one on the right."""
    segment = torch.tensor([[PADDING] * 2 + [0] * 4 + [1] * 3, [5] * 2 + [2] * 5 + [PADDING] * 2])
    pos = torch.tensor([[-2, -1, 5, 6, 7, 900, 0, 1, 2], [0, 3, 7, 8, 9, 10, 11, 0, 0]])
    return Layout(pos, segment, causal)


def within_range(**options: object) -> PoPE:
    encoding = PoPE(SIZES, **options).double()
    torch.nn.init.uniform_(encoding.delta, -2 * math.pi, 0)
    return encoding


def paper(q: Tensor, k: Tensor, v: Tensor, delta: Tensor, layout: Layout, theta: float) -> Tensor:
    """Attention by eq. 6, one pair and dimension at a time; zero at padding."""
    out = []
    pos, segment = layout.pos.expand_as(layout.segment).tolist(), layout.segment.tolist()
    for b in range(len(q)):
        for head in range(H):
            for i, own in enumerate(segment[b]):
                if own == PADDING:
                    out.append(torch.zeros(d, dtype=q.dtype))
                    continue
                keys = [j for j, s in enumerate(segment[b]) if s == own and (j <= i or not layout.causal)]
                z = []
                for j in keys:
                    total = q.new_zeros(())
                    for c in range(d):
                        lengths = (1 + q[b, head, i, c].exp()).log() * (1 + k[b, head, j, c].exp()).log()
                        turn = (pos[b][j] - pos[b][i]) * theta ** (-c / d) + delta[head, c]
                        total = total + lengths * turn.cos()
                    z.append(total / math.sqrt(d))
                share = torch.stack(z).softmax(0)
                out.append(sum(s * v[b, head, j] for s, j in zip(share, keys, strict=True)))
    return torch.stack(out).unflatten(0, q.shape[:3])


@pytest.mark.proves("pope")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_pope_is_the_papers_formula(theta: float, causal: bool) -> None:
    """Values, and gradients of queries, keys, values and of delta; head_dim is odd."""
    encoding, layout = within_range(theta=theta), packed(causal)
    q, k, v = (torch.randn(B, H, 9, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    h = torch.zeros(B, 9, H * d, dtype=torch.float64)
    got = attend(q, k, v, encoding.terms(h, layout), layout, "reference")
    got = got.masked_fill((layout.segment == PADDING)[:, None, :, None], 0)
    expected = paper(q, k, v, encoding.delta, layout, theta)
    assert_close(got, expected, **EQUAL)
    inputs, upstream = (q, k, v, encoding.delta), torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert g.any()
        assert_close(g, e, **EQUAL)


def logits(encoding: PoPE, q: Tensor, k: Tensor, pos: list[int]) -> Tensor:
    layout = Layout(torch.tensor([pos]), torch.zeros(len(q), len(pos), dtype=torch.long), causal=True)
    return reference.logits(q, k, encoding.terms(torch.zeros(len(q), len(pos), H * d, dtype=q.dtype), layout), layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_depends_only_on_offset(dtype: torch.dtype) -> None:
    encoding = within_range().to(dtype)
    q, k = (x.expand(-1, -1, 2, -1) for x in torch.randn(2, 1, H, 1, d, dtype=dtype))
    z = torch.cat([logits(encoding, q, k, [p, p + 3]) for p in (5, 50, 500, 5_000)])
    size = (torch.nn.functional.softplus(q) * torch.nn.functional.softplus(k)).sum(-1).max().item() / math.sqrt(d)
    assert_close(z, z[:1].expand_as(z), rtol=0, atol=4 * 5_000 * torch.finfo(dtype).eps * size)
    assert not torch.allclose(z[:, :, 0, 1], z[:, :, 1, 0])  # delta tells before from after


def test_content_does_not_move_the_distance_of_the_largest_logit() -> None:
    """With one dimension, the logit is largest where pos_j - pos_i + delta is a full turn, whatever q and k are."""
    encoding = PoPE(Sizes(width=H, num_heads=H, length=16)).double()
    with torch.no_grad():
        encoding.delta.fill_(3 - 2 * math.pi)
    layout = Layout.whole(8, 6, causal=True)
    q, k = (3 * torch.randn(8, H, 6, 1, dtype=torch.float64) for _ in range(2))
    k = k[:, :, :1].expand_as(k)
    z = reference.logits(q, k, encoding.terms(torch.zeros(8, 6, H, dtype=torch.float64), layout), layout)
    assert (z[:, :, 5].argmax(-1) == 5 - 3).all()  # three positions before the query


def test_pope_starts_at_zero_or_uniform_over_a_turn() -> None:
    sizes = Sizes(width=1024, num_heads=4, length=16)
    assert not PoPE(sizes).delta.any()
    delta = PoPE(sizes, start="uniform").delta.detach()
    assert -2 * math.pi * (1 + F32) <= delta.min() < -0.97 * 2 * math.pi
    assert -0.03 * 2 * math.pi < delta.max() <= 0
    assert delta.mean().item() == pytest.approx(-math.pi, rel=0.1)


def test_delta_stays_within_a_turn() -> None:
    """After a step beyond it is clamped; before, the end is used, and its gradient leads back."""
    encoding = PoPE(SIZES).double()
    with torch.no_grad():
        encoding.delta[:] = torch.tensor([0.5, 0.0, -3.0, -2 * math.pi, -7.0])
    q, k = torch.randn(2, 1, H, 3, d, dtype=torch.float64)
    z = logits(encoding, q, k, [0, 1, 5])
    (gradient,) = torch.autograd.grad(z.square().sum(), encoding.delta)
    assert gradient.all()
    encoding.constrain()
    assert encoding.delta[0].tolist() == [0, 0, -3, -2 * math.pi, -2 * math.pi]
    assert_close(logits(encoding, q, k, [0, 1, 5]), z, rtol=0, atol=1e-14)


def test_queries_and_keys_in_low_precision_are_rounded_after_the_logarithm() -> None:
    """Lengths are formed in float32, the tables under autocast have the bits of float32."""
    encoding, layout = PoPE(SIZES, start="uniform"), Layout.whole(1, 400, causal=True)
    q, k = torch.randn(2, 1, H, 400, d).bfloat16()
    expected = encoding.terms(torch.zeros(1, 400, H * d), layout)
    with torch.autocast("cpu", torch.bfloat16):
        terms = encoding.terms(torch.zeros(1, 400, H * d).bfloat16(), layout)
        lifted = terms.lift(q, k)
    for got, x in zip(lifted, (q, k), strict=True):
        assert got.dtype == torch.bfloat16
        assert torch.equal(got[..., :d], torch.nn.functional.softplus(x.float()).bfloat16())
        assert not got[..., d:].any()
    for one, other in ((terms.rotary_q, expected.rotary_q), (terms.rotary_k, expected.rotary_k)):
        assert one.cos.dtype == torch.float32
        assert torch.equal(one.cos, other.cos)
        assert torch.equal(one.sin, other.sin)


def test_the_scale_is_that_of_the_dimensions_before() -> None:
    terms = PoPE(SIZES).terms(torch.zeros(1, 3, H * d), Layout.whole(1, 3, causal=True))
    assert terms.lift.head_dim == 2 * d
    assert reference.logit_scale(torch.zeros(1, H, 3, d), terms) == d**-0.5


@pytest.mark.proves("pope", by="x-transformers")
@pytest.mark.parametrize("causal", [True, False])
def test_pope_equals_x_transformers(causal: bool) -> None:
    """Its frequencies and its lengths are float32. Its logits have no scale of their own there."""
    pytest.importorskip("x_transformers")
    from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

    encoding, layout = within_range(), Layout.whole(B, 65, causal)
    theirs = PolarEmbedding(d, H)
    with torch.no_grad():
        theirs.learned_bias.copy_(encoding.delta[:, None])
    q, k = torch.randn(2, B, H, 65, d)
    freqs, bias = theirs(torch.arange(65))
    expected = apply_polar_pos_emb(q, freqs), apply_polar_pos_emb(k, freqs + bias)
    terms = encoding.float().terms(torch.zeros(B, 65, H * d), layout)
    for got, other in zip(reference.queries_and_keys(q, k, terms), expected, strict=True):
        # a frequency is within 2 eps of 1 or less, an angle is up to 65 + 2 pi, a length up to 5
        assert_close(got, other, rtol=0, atol=5 * 72 * 2 * F32)


@pytest.mark.parametrize(("options", "name"), [({"theta": 0}, "theta"), ({"start": "one"}, "start")])
def test_an_option_out_of_range_is_named(options: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be "):
        PoPE(SIZES, **options)
