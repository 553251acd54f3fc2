"""GRAPE's steps and gated slopes against loops in float64, after its authors' code."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend, reference
from pe_lab.encodings import Alibi, GrapeA, GrapeM, InterpolatedRoPE, Layout, LRoPE, Sizes

H, d = 2, 6
D = H * d
SIZES = Sizes(D, H, 16)
EQUAL = {"rtol": 0, "atol": 1e-11}


def random(encoding: GrapeM | GrapeA) -> GrapeM | GrapeA:
    """Move the parameters off their start."""
    encoding.double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return encoding


def assert_equal(got: Tensor, expected: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Values, and gradients for a random upstream gradient."""
    assert_close(got, expected, **EQUAL)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert e.any()
        assert_close(g, e, rtol=1e-10, atol=1e-11)


def turned(x: Tensor, angle: Tensor, pairing: str) -> Tensor:
    """Return a vector [d] whose pairs are rotated by angles [d/2]."""
    parts: list[Tensor] = [x[0]] * d
    for c in range(d // 2):
        a, b = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + d // 2)
        parts[a] = x[a] * angle[c].cos() - x[b] * angle[c].sin()
        parts[b] = x[a] * angle[c].sin() + x[b] * angle[c].cos()
    return torch.stack(parts)


@pytest.mark.proves("grape_m")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("per_head", [False, True])
def test_grape_m_is_the_codes_formula(per_head: bool, pairing: str) -> None:
    """Phi_t is the sum of sigmoid((w . h_u + b) / scale) over the tokens u before t; plane c turns by Phi_t omega_c."""
    encoding, layout = random(GrapeM(SIZES, scale=3.0, per_head=per_head, pairing=pairing)), loops.mixed(True)
    q, k, v = loops.inputs(H, d)
    h = torch.randn(*layout.segment.shape, D, dtype=torch.float64, requires_grad=True)
    got = loops.unpadded(attend(q, k, v, encoding.terms(h, layout), layout, "reference"))
    rows_q, rows_k = torch.zeros_like(q), torch.zeros_like(k)
    for b, segment in enumerate(loops.SEGMENTS):
        for head in range(H):
            phi: dict[int, Tensor] = {}
            for t, document in enumerate(segment):
                so_far = phi.setdefault(document, torch.zeros((), dtype=torch.float64))
                row = head if per_head else 0
                step = 1 / (1 + (-(encoding.weight[row] @ h[b, t] + encoding.bias[row]) / 3.0).exp())
                angle, at = so_far * encoding.beta.exp(), torch.zeros_like(q)
                at[b, head, t] = 1
                rows_q = rows_q + at * turned(q[b, head, t], angle, pairing)
                rows_k = rows_k + at * turned(k[b, head, t], angle, pairing)
                phi[document] = so_far + step
    expected = loops.attention(rows_q, rows_k, v, True)
    assert_equal(got, expected, (q, k, v, h, *encoding.parameters()))


@pytest.mark.proves("lrope", by="identity: GRAPE-M of fixed planes, arXiv:2512.07805")
@pytest.mark.parametrize("per_head", [False, True])
def test_grape_m_without_content_is_lrope(per_head: bool) -> None:
    """Its released code: one spectrum per layer or head, the position times exp(log_freq / 16), turned backwards."""
    encoding, layout = random(LRoPE(SIZES, pairing="half", share="none" if per_head else "heads")), loops.mixed(True)
    q, k, v = loops.inputs(H, d)
    h = torch.zeros(*layout.segment.shape, D, dtype=torch.float64)
    got = attend(q, k, v, encoding.terms(h, layout), layout, "reference")
    log_freq = (16 * encoding.beta).detach().requires_grad_()

    def code(x: Tensor) -> Tensor:
        """Rotate x [B, H, T, d] as the code does, in which members of a pair have changed places."""
        freq = (log_freq / 16).exp().expand(H, -1)
        angle = layout.pos[:, None, :, None] * freq[:, None]
        x2, x1 = x.chunk(2, -1)
        return torch.cat((x1 * angle.cos() + x2 * angle.sin(), -x1 * angle.sin() + x2 * angle.cos()), -1)

    expected = loops.attention(code(q), code(k), v, True)
    assert_close(loops.unpadded(got), expected, **EQUAL)
    upstream = torch.randn_like(expected)
    ours = torch.autograd.grad(loops.unpadded(got), (q, k, v, encoding.beta), upstream)
    theirs = torch.autograd.grad(expected, (q, k, v, log_freq), upstream)
    for g, e, factor in zip(ours, theirs, (1, 1, 1, 16), strict=True):
        assert e.any()
        assert_close(g, factor * e, rtol=1e-9, atol=1e-10)


def test_grape_m_starts_as_rope_with_lower_frequencies_whatever_the_content() -> None:
    """The step is sigmoid(ln(e^0.001 - 1) / 16)."""
    layout, (q, k) = Layout.whole(2, 63, True), torch.randn(2, 2, H, 63, d, dtype=torch.float64)
    encoding = GrapeM(SIZES).double()
    step = 1 / (1 + math.exp(-math.log(math.expm1(1e-3)) / 16))
    rope = InterpolatedRoPE(SIZES, pairing="half", factor=1 / step)
    h = torch.randn(2, 63, D, dtype=torch.float64)
    got, expected = (reference.logits(q, k, one.terms(h, layout), layout) for one in (encoding, rope))
    assert step == pytest.approx(0.394, abs=1e-3)
    assert_close(got, expected, rtol=0, atol=1e-5)  # parameters are made in float32


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


@pytest.mark.proves("grape_a")
@pytest.mark.parametrize("gates", ["both", "query", "key"])
def test_grape_a_is_the_codes_formula(gates: str) -> None:
    """-(i - j) slope softplus(a) (softplus(v . q_i / sqrt(d)) + softplus(u . k_j / sqrt(d))), u and v of length 1."""
    encoding, layout = random(GrapeA(SIZES, gates=gates)), loops.mixed(True)
    q, k, v = loops.inputs(H, d)
    h = torch.zeros(*layout.segment.shape, D, dtype=torch.float64)
    got = loops.unpadded(attend(q, k, v, encoding.terms(h, layout), layout, "reference"))
    rows = []
    for b in range(3):
        biased = torch.zeros(H, 7, 7, dtype=torch.float64)
        for head in range(H):
            slope = 2 ** (-8 * (head + 1) / H) * softplus(encoding.rate[head])
            for i, j in product(range(7), range(7)):
                if loops.SEGMENTS[b][i] == loops.SEGMENTS[b][j] and j <= i:
                    gate = torch.zeros((), dtype=torch.float64)
                    for vector, x in ((encoding.query, q[b, head, i]), (encoding.key, k[b, head, j])):
                        if vector is not None:
                            unit = vector[head] / vector[head].square().sum().sqrt()
                            gate = gate + softplus(unit @ x / math.sqrt(d))
                    at = torch.zeros_like(biased)
                    at[head, i, j] = loops.POSITIONS[b][i] - loops.POSITIONS[b][j]
                    biased = biased - at * slope * gate
        rows.append(biased)
    z = q @ k.mT / math.sqrt(d) + torch.stack(rows)
    expected = loops.unpadded(z.masked_fill(~layout.allowed, -torch.inf).softmax(-1).nan_to_num() @ v)
    assert_equal(got, expected, (q, k, v, *encoding.parameters()))


@pytest.mark.proves("grape_a", by="identity: `alibi`")
@pytest.mark.parametrize("gates", ["both", "query", "key"])
def test_grape_a_whose_gates_see_nothing_is_alibi(gates: str) -> None:
    """softplus(0) is ln 2, of each gate."""
    encoding, layout = GrapeA(SIZES, gates=gates).double(), loops.mixed(True)
    with torch.no_grad():
        for vector in (encoding.query, encoding.key):
            if vector is not None:
                vector.zero_()
        encoding.rate.fill_(math.log(math.expm1(1 / (math.log(2) * (2 if gates == "both" else 1)))))
    q, k, _ = loops.inputs(H, d)
    h = torch.zeros(3, 7, D, dtype=torch.float64)
    got, expected = (
        reference.logits(q, k, one.terms(h, layout), layout).where(layout.allowed, 0)
        for one in (encoding, Alibi(SIZES))
    )
    assert_equal(got, expected, (q, k))


def test_biases_are_formed_in_float32_in_low_precision() -> None:
    encoding, layout = random(GrapeA(SIZES)).float(), Layout.whole(1, 300, True)
    q, k = torch.randn(2, 1, H, 300, d).bfloat16()
    z = torch.zeros(1, H, 300, 300)
    with torch.autocast("cpu", torch.bfloat16):
        got = encoding(q, k, z, layout)
    assert got.dtype == torch.float32
    assert torch.equal(got, encoding(q.float(), k.float(), z, layout))


def test_parameters_are_those_of_the_source() -> None:
    sizes = Sizes(64, 4, 16)
    for encoding, count in (
        (GrapeM(sizes), 64 + 1 + 8),
        (GrapeM(sizes, per_head=True), 4 * 65 + 8),
        (GrapeA(sizes), 4 * (2 * 16 + 1)),
        (GrapeA(sizes, gates="query"), 4 * 17),
        (GrapeA(sizes, gates="key"), 4 * 17),
    ):
        assert sum(parameter.numel() for parameter in encoding.parameters()) == count


@pytest.mark.parametrize(
    ("kind", "option", "value"), [(GrapeM, "scale", 0.0), (GrapeM, "theta", -1.0), (GrapeA, "gates", "value")]
)
def test_an_option_out_of_range_is_refused(kind: type, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be "):
        kind(SIZES, **{option: value})


@pytest.mark.parametrize("kind", [GrapeM, GrapeA])
def test_bidirectional_attention_is_refused(kind: type) -> None:
    with pytest.raises(ValueError, match="is defined for causal attention only"):
        kind(replace(SIZES, causal=False))
