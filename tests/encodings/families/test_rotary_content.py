"""Rotations by sums over the content of tokens, against complex numbers multiplied one token and pair at a time."""

import cmath
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.families.rotary_content import CARoPE, MapFormer, SelectiveRoPE, cumulative_sums, rotation
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import Stack

H, d, D = 2, 6, 12
SIZES = Sizes(width=D, num_heads=H, length=16)
KINDS = [CARoPE, MapFormer, SelectiveRoPE]
GATED = partial(SelectiveRoPE, gate=True, bias=True)
F32 = torch.finfo(torch.float32).eps
# angles up to 1e3 round by 1e-13, and logits of size 10 with them
EQUAL = {"rtol": 1e-10, "atol": 1e-11}
Turns = Callable[[Tensor], list[Tensor]]  # of h [n, D] of a document: what each token turns by, [H, d/2]


def packed(causal: bool = True) -> Layout:
    """Two sequences of documents at any positions, one padded on the left and one on the right."""
    segment = torch.tensor([[PADDING] * 2 + [0] * 4 + [1] * 3, [5] * 2 + [2] * 5 + [PADDING] * 2])
    pos = torch.tensor([[-2, -1, 5, 6, 7, 90, 0, 1, 2], [0, 3, 7, 8, 9, 10, 11, 0, 0]])
    return Layout(pos, segment, causal)


def random(encoding: PositionalEncoding, size: float = 0.5) -> PositionalEncoding:
    """Move the parameters off their start."""
    encoding.double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += size * torch.randn_like(parameter)
    return encoding


def pairs(x: Tensor, pairing: str) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs of dimensions of a vector [d]."""
    n = len(x) // 2
    return [(x[2 * c], x[2 * c + 1]) if pairing == "interleaved" else (x[c], x[c + n]) for c in range(n)]


def logit(q: Tensor, k: Tensor, angle: Tensor, pairing: str) -> Tensor:
    """Return the sum over pairs of Re q conj(k) exp(i angle) / sqrt(d)."""
    total = q.new_zeros(())
    for c, ((a, b), (x, y)) in enumerate(zip(pairs(q, pairing), pairs(k, pairing), strict=True)):
        total = total + (a * x + b * y) * angle[c].cos() - (b * x - a * y) * angle[c].sin()
    return total / math.sqrt(len(q))


def paper(q: Tensor, k: Tensor, v: Tensor, h: Tensor, layout: Layout, turns: Turns, pairing: str) -> Tensor:
    """Return attention, one document, head and query at a time; zero at padding."""
    out = [[[torch.zeros_like(v[0, 0, 0]) for _ in range(h.shape[1])] for _ in range(H)] for _ in h]
    for b, segment in enumerate(layout.segment.tolist()):
        for document in set(segment) - {PADDING}:
            tokens = [t for t, s in enumerate(segment) if s == document]
            turn = turns(h[b, tokens])
            for head in range(H):
                for n, i in enumerate(tokens):
                    z = []
                    for m, j in enumerate(tokens[: n + 1] if layout.causal else tokens):
                        between = range(m + 1, n + 1) if m <= n else range(n + 1, m + 1)
                        angle = sum((turn[u][head] for u in between), torch.zeros(d // 2, dtype=h.dtype))
                        z.append(logit(q[b, head, i], k[b, head, j], angle if m <= n else -angle, pairing))
                    share = torch.stack(z).softmax(0)
                    out[b][head][i] = sum(s * v[b, head, j] for s, j in zip(share, tokens, strict=False))
    return torch.stack([torch.stack([torch.stack(row) for row in rows]) for rows in out])


def assert_is(encoding: PositionalEncoding, turns: Turns, pairing: str, causal: bool = True) -> None:
    """Values and gradients of attention with the encoding are those of the turns; padding has no effect."""
    layout = packed(causal)
    B, T = layout.segment.shape
    q, k, v = (torch.randn(B, H, T, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    h = torch.randn(B, T, D, dtype=torch.float64)
    h = torch.where((layout.segment == PADDING)[..., None], 1e3, h).requires_grad_()
    got = attend(q, k, v, encoding.terms(h, encoding.locate(layout)), layout, "reference")
    got = got.masked_fill((layout.segment == PADDING)[:, None, :, None], 0)
    expected = paper(q, k, v, h, layout, turns, pairing)
    assert_close(got, expected, **EQUAL)
    upstream, inputs = torch.randn_like(expected), (q, k, v, h, *encoding.parameters())
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert g.any()
        assert_close(g, e, **EQUAL)


# what all of them have in common


@pytest.mark.parametrize("kind", [*KINDS, GATED])
def test_tables_of_packed_documents_are_those_of_each_alone(kind: type[PositionalEncoding]) -> None:
    """Sums begin anew: the tables themselves are equal, not only the differences of their angles."""
    encoding, layout = random(kind(SIZES)), packed()
    h = torch.randn(*layout.segment.shape, D, dtype=torch.float64)
    tables = encoding.terms(h, layout).rotary_q
    for b, start, end in ((0, 2, 6), (0, 6, 9), (1, 0, 2), (1, 2, 7)):
        alone = encoding.terms(h[b : b + 1, start:end], Layout.whole(1, end - start, causal=True)).rotary_q
        for got, expected in ((tables.cos, alone.cos), (tables.sin, alone.sin)):
            assert_close(got[b, :, start:end], expected[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_left_padding_turns_nothing(kind: type[PositionalEncoding]) -> None:
    encoding, length = random(kind(SIZES)).float(), 100
    h, noise = torch.randn(1, length, D), 1e3 * torch.randn(1, 63, D)
    pos = torch.arange(-63, length)[None]
    padded = Layout(pos, torch.where(pos < 0, PADDING, 0), causal=True)
    alone = encoding.terms(h, Layout.whole(1, length, causal=True)).rotary_q
    # one product more in a batch of tokens may be summed in another order: an ulp of h W per token
    rotary = encoding.terms(torch.cat((noise, h), 1), padded).rotary_q
    assert_close(rotary.cos[:, :, 63:], alone.cos, rtol=0, atol=length * 16 * F32)
    assert_close(rotary.sin[:, :, 63:], alone.sin, rtol=0, atol=length * 16 * F32)


@pytest.mark.parametrize("kind", [*KINDS, GATED])
@pytest.mark.parametrize("borders", [range(10), (0, 4, 5, 9)])
def test_packed_documents_continue_with_a_cache(kind: type[PositionalEncoding], borders: tuple[int, ...]) -> None:
    """A sequence padded on the left with two documents, and one of a single document, in chunks."""
    segment = torch.tensor([[PADDING] * 2 + [0] * 3 + [1] * 4, [3] * 9])
    pos = torch.tensor([[-2, -1, 5, 6, 7, 0, 1, 2, 9], list(range(9))])
    stack = Stack([random(kind(SIZES))], 1)
    x = torch.randn(2, 9, D, dtype=torch.float64)
    _, positions = stack(x, Layout(pos, segment, causal=True))
    expected = positions.layer(0, x).terms.rotary_k
    cache, actual = stack.cache(), []
    with torch.no_grad():
        for a, b in pairwise(borders):
            _, positions = stack(x[:, a:b], Layout(pos[:, a:b], segment[:, a:b], causal=True), cache)
            actual.append(positions.layer(0, x[:, a:b]).terms.rotary_k)
            assert actual[-1].cos.shape == (2, H, b - a, d // 2)
    is_token = (segment != PADDING)[:, None, :, None]
    for part in ("cos", "sin"):
        got = torch.cat([getattr(one, part) for one in actual], 2)
        assert_close(got * is_token, getattr(expected, part) * is_token, rtol=0, atol=1e-13)


def complex_turns(steps: Tensor) -> list[complex]:
    """Return the products of exp(i step) so far, renormalized, of steps [T]."""
    out, z = [], 1 + 0j
    for step in steps.tolist():
        z *= cmath.exp(1j * step)
        out.append(z / abs(z))
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_angles_of_thousands_of_radians_are_exact(kind: type[PositionalEncoding], dtype: torch.dtype) -> None:
    """After 3000 tokens, under autocast too; what differs are steps, formed in float32, not their sums."""
    encoding, length = random(kind(SIZES), 2.0).float(), 3_000
    h = torch.randn(1, length, D).to(dtype)
    layout = Layout.whole(1, length, causal=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        tables = encoding.terms(h, layout).rotary_q
    assert tables.cos.dtype == torch.float32
    exact = encoding.double().terms(h.double(), layout).rotary_q
    # the steps are of size 10 at most and formed in float32; summed at random, 3000 of them
    assert_close(tables.cos.double(), exact.cos, rtol=0, atol=length * 10 * F32)
    size = torch.hypot(tables.cos, tables.sin)
    assert_close(size, torch.ones_like(size), rtol=0, atol=4 * F32)


@pytest.mark.parametrize("step", [1.0, 6.2, -0.3])
def test_sums_of_many_steps_keep_their_angle(step: float) -> None:
    """After 20000 tokens the angle is as exact as after one."""
    length = 20_000
    steps = torch.full((1, length, 1, 1), step)
    tables = rotation(cumulative_sums(steps, Layout.whole(1, length, causal=True)), torch.float32, "half")
    turned = complex_turns(steps.double().flatten())
    for t in (0, 1, 100, length - 1):
        assert abs(complex(tables.cos[0, 0, t, 0], tables.sin[0, 0, t, 0]) - turned[t]) < 4 * F32


# CARoPE


def carope_turns(weight: Tensor, shift: float) -> Turns:
    def turns(h: Tensor) -> list[Tensor]:
        """f^c, f = 1 / (softplus(x W) + 1)."""
        out = []
        for x in h:
            heads = []
            for w in weight:
                z = sum(x[n] * w[n] for n in range(D)) + shift
                f = 1 / ((1 + z.exp()).log() + 1)
                heads.append(torch.stack([f**c for c in range(d // 2)]))
            out.append(torch.stack(heads))
        return out

    return turns


@pytest.mark.proves("carope")
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("theta", [10_000.0, 3.0])
def test_carope_is_the_papers_formula(theta: float, pairing: str) -> None:
    encoding = random(CARoPE(SIZES, theta=theta, pairing=pairing))
    shift = math.log(math.exp(theta ** (2 / d) - 1) - 1)
    assert_is(encoding, carope_turns(encoding.weight, shift), pairing)


@pytest.mark.parametrize("head_dim", [2, 4, 64])
@pytest.mark.parametrize("theta", [10_000.0, 1.5])
def test_carope_starts_as_rope_whatever_the_content(theta: float, head_dim: int) -> None:
    sizes = Sizes(width=2 * head_dim, num_heads=2, length=16)
    h, layout = torch.randn(1, 500, 2 * head_dim), Layout.whole(1, 500, causal=True)
    got = CARoPE(sizes, theta=theta).terms(h, layout).rotary_q
    # sums begin with the first token: one step ahead of RoPE, whose first position is 0
    expected = RoPE(sizes, theta=theta).terms(h.double(), layout.shifted(1)).rotary_q
    assert got.cos.shape == (1, 2, 500, head_dim // 2)
    # a step's logarithm is c ln f, of which each factor rounds: f^c rounds by c ln f f^c < 1 ulps, 500 times
    for one, other in ((got.cos, expected.cos), (got.sin, expected.sin)):
        assert_close(one.double(), other.expand_as(one), rtol=0, atol=500 * 8 * F32)


def test_carope_learns_from_its_start() -> None:
    encoding = CARoPE(SIZES)
    terms = encoding.terms(torch.randn(1, 5, D), Layout.whole(1, 5, causal=True))
    terms.rotary_q.sin.sum().backward()
    assert encoding.weight.grad.all()


@pytest.mark.parametrize("theta", [1.0, 0.5, float("inf")])
def test_a_base_of_one_is_refused(theta: float) -> None:
    with pytest.raises(ValueError, match=rf"^theta must be a number above 1, got {theta}$"):
        CARoPE(SIZES, theta=theta)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_need_an_even_head_dim(kind: type[PositionalEncoding]) -> None:
    with pytest.raises(ValueError, match=r"rotates pairs: head_dim must be even, got 3 \(width=6, num_heads=2\)$"):
        kind(Sizes(width=6, num_heads=2, length=16))


# MapFormer


def mapformer_turns(encoding: MapFormer) -> Turns:
    def turns(h: Tensor) -> list[Tensor]:
        """omega * W_out W_in x, one number at a time."""
        rank = encoding.spread.shape[2]
        out = []
        for x in h:
            heads = []
            for head in range(H):
                inner = [sum(x[n] * encoding.step.weight[head * rank + r, n] for n in range(D)) for r in range(rank)]
                step = [sum(inner[r] * encoding.spread[head, c, r] for r in range(rank)) for c in range(d // 2)]
                heads.append(torch.stack([encoding.omega[head, c] * step[c] for c in range(d // 2)]))
            out.append(torch.stack(heads))
        return out

    return turns


@pytest.mark.proves("mapformer")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("pairing", "rank"), [("interleaved", 1), ("half", 4)])
def test_mapformer_is_the_papers_formula(pairing: str, rank: int, causal: bool) -> None:
    encoding = random(MapFormer(replace(SIZES, causal=causal), rank=rank, pairing=pairing))
    assert_is(encoding, mapformer_turns(encoding), pairing, causal)


def test_frequencies_of_mapformer_fall_to_the_maximum_over_the_base() -> None:
    for options, expected in (
        ({}, [2 * math.pi * 16 ** (-c / 3) for c in (1, 2, 3)]),
        ({"omega_max": 1.5, "base": 64.0}, [1.5 / 4, 1.5 / 16, 1.5 / 64]),
    ):
        omega = MapFormer(SIZES, **options).omega
        assert_close(omega, torch.tensor([expected] * H), rtol=4 * F32, atol=0)
    assert MapFormer(replace(SIZES, length=1)).omega[0, -1].item() == pytest.approx(math.pi)


def test_steps_forwards_and_backwards_cancel() -> None:
    """A walk that returns to where it was has the angle it had there."""
    encoding, layout = random(MapFormer(SIZES)), Layout.whole(1, 7, causal=True)
    there = torch.randn(1, 3, D, dtype=torch.float64)
    tables = encoding.terms(torch.cat((torch.randn_like(there[:, :1]), there, -there.flip(1)), 1), layout).rotary_q
    for start in (tables.cos, tables.sin):
        for n in range(3):
            assert_close(start[:, :, 6 - n], start[:, :, n], **EQUAL)


def test_projections_of_mapformer_start_as_linear_layers() -> None:
    """W_out: rank -> d/2 is U(-1/sqrt(rank), 1/sqrt(rank)), as W_in is U(-1/sqrt(D), 1/sqrt(D))."""
    encoding = MapFormer(Sizes(width=256, num_heads=4, length=16), rank=9)
    for weight, bound in ((encoding.spread, 1 / 3), (encoding.step.weight, 1 / 16)):
        assert 0.95 * bound < weight.max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


# Selective RoPE


def selective_turns(encoding: SelectiveRoPE, theta: float) -> Turns:
    def turns(h: Tensor) -> list[Tensor]:
        """tau g (convolution of W_2 W_1 x, plus e^b), one token at a time."""
        xs, out = [], []
        for token in h:
            parts = [token[n * d : (n + 1) * d] for n in range(H)]
            xs.append(torch.cat([part / (part.dot(part) + 1e-6).sqrt() for part in parts]))
        phi = [encoding.up @ (encoding.down @ x) for x in xs]
        for t, x in enumerate(xs):
            heads = []
            for head in range(H):
                gate = torch.ones((), dtype=h.dtype)
                if encoding.gate_weight is not None:
                    gate = 1 / (1 + (-(encoding.gate_weight[head].dot(x) + encoding.gate_bias[head])).exp())
                angles = []
                for c in range(d // 2):
                    taps = range(min(4, t + 1))
                    turn = sum(encoding.kernel[lag, head, c] * phi[t - lag][head * d // 2 + c] for lag in taps)
                    if encoding.bias is not None:
                        turn = turn + encoding.bias[head, c].exp()
                    angles.append(theta ** (-2 * c / d) * gate * turn)
                heads.append(torch.stack(angles))
            out.append(torch.stack(heads))
        return out

    return turns


@pytest.mark.proves("selective_rope")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize(("pairing", "theta"), [("interleaved", 20.0), ("half", 500_000.0)])
def test_selective_rope_is_the_codes_formula(pairing: str, theta: float, bias: bool, gate: bool) -> None:
    encoding = random(SelectiveRoPE(SIZES, rank=3, bias=bias, gate=gate, pairing=pairing, theta=theta))
    assert_is(encoding, selective_turns(encoding, theta), pairing)


def test_selective_rope_starts_as_almost_no_rotation_and_with_its_bias_as_rope() -> None:
    sizes, layout = Sizes(width=128, num_heads=2, length=16), Layout.whole(1, 50, causal=True)
    h = 5 * torch.randn(1, 50, 128)
    plain = SelectiveRoPE(sizes)
    with torch.no_grad():
        plain_angle, biased = (one.terms(h, layout).rotary_q for one in (plain, SelectiveRoPE(sizes, bias=True)))
        rope = RoPE(sizes, theta=500_000.0).terms(h, layout.shifted(1)).rotary_q
    assert 0 < plain_angle.sin.abs().max() < 0.01
    # weights of 0.02: a step of 1e-4 beside RoPE's, 50 times
    assert_close(biased.cos, rope.cos.expand_as(biased.cos), rtol=0, atol=0.01)
    assert_close(biased.sin, rope.sin.expand_as(biased.sin), rtol=0, atol=0.01)


@pytest.mark.parametrize(("options", "count"), [({}, 0), ({"bias": True}, 3 * H), ({"gate": True}, (D + 1) * H)])
def test_selective_rope_has_the_parameters_of_its_parts(options: dict[str, bool], count: int) -> None:
    encoding = SelectiveRoPE(SIZES, rank=5, **options)
    assert sum(p.numel() for p in encoding.parameters()) == 5 * (D + 3 * H) + 4 * 3 * H + count


def test_every_weight_of_selective_rope_starts_at_its_size() -> None:
    encoding = SelectiveRoPE(Sizes(width=512, num_heads=4, length=16), bias=True, gate=True)
    for weight in (encoding.down, encoding.up, encoding.kernel, encoding.gate_weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.15)
    assert not encoding.bias.any()
    assert not encoding.gate_bias.any()


@pytest.mark.parametrize(("options", "name"), [({"rank": 0}, "rank"), ({"bias": 1}, "bias"), ({"gate": None}, "gate")])
def test_an_option_of_selective_rope_out_of_range_is_named(options: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be "):
        SelectiveRoPE(SIZES, **options)
