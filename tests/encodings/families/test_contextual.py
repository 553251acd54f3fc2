"""Encodings whose distances depend on content, against explicit loops in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.contextual import CoPE, Forgetting
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms
from pe_lab.model.transformer import Transformer

B, H, d = 2, 2, 4
SIZES = Sizes(width=H * d, num_heads=H, length=16)
EQUAL = {"rtol": 1e-11, "atol": 1e-11}


def layout_of(batch: int, length: int) -> Layout:
    return Layout.of_lengths(torch.full((batch,), length), length, causal=True)


def left_padded(pads: int, length: int) -> Layout:
    """Return the layout of one sequence of `length`, after `pads` slots of padding."""
    pos = torch.arange(-pads, length)[None]
    return Layout(pos, torch.where(pos < 0, PADDING, 0), causal=True)


def random_qkv(batch: int, length: int) -> list[Tensor]:
    return [torch.randn(batch, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def random_cope(max_position: int = 64) -> CoPE:
    encoding = CoPE(SIZES, max_position=max_position).double()
    torch.nn.init.normal_(encoding.score.table)
    return encoding


def cope_terms(encoding: CoPE, layout: Layout) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=torch.float64), layout)


def attention_row(z: list[Tensor], v: Tensor) -> Tensor:
    """Return softmax(z) v, over as many keys as there are logits."""
    share = torch.stack(z).exp()
    return sum(s * value for s, value in zip(share / share.sum(), v, strict=False))


def paper_cope(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Attention of one head [T, d]: p_ij = sum of sigmoid(z_ik), k = j ... i; z_ij + q_i . e[p_ij], interpolated."""
    rows = []
    for i in range(len(q)):
        z = [(q[i] * k[j]).sum() / math.sqrt(d) for j in range(i + 1)]
        biased = []
        for j in range(i + 1):
            p = sum(1 / (1 + (-z[n]).exp()) for n in range(j, i + 1))
            if p >= len(table) - 1:
                vector = table[len(table) - 1]
            else:
                floor = math.floor(p.item())
                vector = (1 - (p - floor)) * table[floor] + (p - floor) * table[floor + 1]
            biased.append(z[j] + (q[i] * vector).sum())
        rows.append(attention_row(biased, v))
    return torch.stack(rows)


@pytest.mark.proves("cope")
@pytest.mark.parametrize("max_position", [1, 3, 64])
@pytest.mark.parametrize("length", [1, 2, 7, 17])
def test_cope_is_the_papers_formula(length: int, max_position: int) -> None:
    """Values, and gradients of q, k, v and of the vectors."""
    encoding, (q, k, v), layout = random_cope(max_position), random_qkv(B, length), layout_of(B, length)
    table = encoding.score.table
    got = attend(q, k, v, cope_terms(encoding, layout), layout, "reference")
    expected = torch.stack(
        [torch.stack([paper_cope(q[b, h], k[b, h], v[b, h], table) for h in range(H)]) for b in range(B)]
    )
    assert_close(got, expected, **EQUAL)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v, table), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EQUAL)


def test_gradient_of_cope_through_attention_is_that_of_finite_differences() -> None:
    encoding, inputs, layout = random_cope(2), random_qkv(1, 5), layout_of(1, 5)

    def out(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        z = torch.einsum("bhid,bhjd->bhij", q, k) / 2
        bias = torch.func.functional_call(encoding.score, {"table": table}, (q, k, z, layout))
        return reference.attend(q, k, v, Terms(pair_bias=bias), layout)

    assert torch.autograd.gradcheck(out, (*inputs, encoding.score.table), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("gates", ["open", "shut"])
def test_cope_with_open_gates_counts_tokens_and_with_shut_ones_none(gates: str) -> None:
    """Open gates count the key itself too, so the nearest key is at distance 1."""
    encoding, length = random_cope(5), 9
    layout, q = layout_of(1, length), torch.randn(1, H, length, d, dtype=torch.float64)
    z = torch.full((1, H, length, length), 50.0 if gates == "open" else -50.0, dtype=torch.float64)
    got = encoding.score(q, q, z, layout)
    for i in range(length):
        for j in range(i + 1):
            vector = encoding.score.table[min(i - j + 1, 5) if gates == "open" else 0]
            assert_close(got[0, :, i, j], q[0, :, i] @ vector, **EQUAL)


def test_cope_starts_as_no_encoding_and_learns_from_there() -> None:
    encoding, (q, k, v), layout = CoPE(SIZES).double(), random_qkv(B, 9), layout_of(B, 9)
    out = attend(q, k, v, cope_terms(encoding, layout), layout, "reference")
    assert torch.equal(out, attend(q, k, v, Terms(), layout, "reference"))
    out.square().sum().backward()
    assert encoding.score.table.grad.any()


def test_cope_counts_no_padding_and_no_other_document() -> None:
    """Two documents after padding, at any positions, have the outputs that each has alone."""
    encoding, splits = random_cope(), [(2, 6), (6, 9)]
    segment, pos = torch.tensor([[PADDING] * 2 + [0] * 4 + [1] * 3]), torch.tensor([[-2, -1, 5, 6, 7, 90, 0, 1, 2]])
    layout = Layout(pos, segment, causal=True)
    q, k, v = random_qkv(1, 9)
    packed = attend(q, k, v, cope_terms(encoding, layout), layout, "reference")
    for start, end in splits:
        alone, one = (x[:, :, start:end] for x in (q, k, v)), layout_of(1, end - start)
        assert_close(
            packed[:, :, start:end], attend(*alone, cope_terms(encoding, one), one, "reference"), rtol=0, atol=1e-13
        )
    gradients = torch.autograd.grad(packed, (q, k, v, encoding.score.table), torch.randn_like(packed))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_cope_adds_the_same_bits_in_low_precision() -> None:
    encoding, layout = CoPE(SIZES), layout_of(1, 300)
    torch.nn.init.normal_(encoding.score.table)
    q, z = torch.randn(1, H, 300, d).bfloat16(), torch.randn(1, H, 300, 300)
    expected = encoding.score(q.float(), q.float(), z, layout)
    assert expected.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.score(q, q, z, layout), expected)


def parameters_of(kind: type[PositionalEncoding]) -> int:
    config = Model(
        depth=3, width=H * d, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    return Transformer(config, kind, Task(5, 4, 5, causal=True)).positional_parameters()


def test_every_layer_has_its_own_and_cope_shares_it_among_heads() -> None:
    assert parameters_of(CoPE) == 3 * 65 * d
    assert parameters_of(Forgetting) == 3 * (H * d + 1) * H


@pytest.mark.parametrize("max_position", [0, -1, 2.5])
def test_a_setting_out_of_range_is_named(max_position: float) -> None:
    with pytest.raises(ValueError, match=rf"^max_position must be .*, got {max_position!r}$"):
        CoPE(SIZES, max_position=max_position)


def paper_forgetting(q: Tensor, k: Tensor, v: Tensor, f: Tensor) -> Tensor:
    """Attention of one head [T, d] with weights F_ij exp(z_ij), F_ij = product of f_k, k = j + 1 ... i."""
    rows = []
    for i in range(len(q)):
        z = []
        for j in range(i + 1):
            forgotten = torch.ones((), dtype=f.dtype)
            for n in range(j + 1, i + 1):
                forgotten = forgotten * f[n]
            z.append((q[i] * k[j]).sum() / math.sqrt(d) + forgotten.log())
        rows.append(attention_row(z, v))
    return torch.stack(rows)


@pytest.mark.proves("forgetting")
@pytest.mark.parametrize("length", [1, 2, 7, 33])
def test_forgetting_is_the_papers_formula(length: int) -> None:
    """Values, and gradients of q, k, v, of the content and of the gates' parameters."""
    encoding, (q, k, v), layout = Forgetting(SIZES).double(), random_qkv(B, length), layout_of(B, length)
    h = torch.randn(B, length, H * d, dtype=torch.float64, requires_grad=True)
    got = attend(q, k, v, encoding.terms(h, layout), layout, "reference")
    weight, bias = encoding.gate.weight, encoding.gate.bias
    gates = 1 / (1 + (-(torch.einsum("btd,hd->bth", h, weight) + bias)).exp())
    expected = torch.stack(
        [torch.stack([paper_forgetting(q[b, n], k[b, n], v[b, n], gates[b, :, n]) for n in range(H)]) for b in range(B)]
    )
    assert_close(got, expected, **EQUAL)
    inputs, upstream = (q, k, v, h, weight, bias), torch.randn_like(expected)
    if length == 1:  # there is no gate between a token and itself
        inputs = inputs[:3]
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EQUAL)


def test_a_shut_gate_hides_what_lies_before_it() -> None:
    """A shut gate hides all earlier keys from its own query and later ones; its own key stays visible."""
    encoding, layout, (q, k, _) = Forgetting(SIZES).double(), layout_of(1, 6), random_qkv(1, 6)
    with torch.no_grad():
        encoding.gate.weight.zero_()
        encoding.gate.weight[:, 0] = 100
        encoding.gate.bias.zero_()
    h = torch.zeros(1, 6, H * d, dtype=torch.float64)
    h[0, :, 0] = torch.tensor([1, 1, 1, -1, 1, 1])
    seen = reference.attention_weights(q, k, encoding.terms(h, layout), layout)[0] > 1e-30
    for i in range(6):
        assert seen[:, i].all(0).tolist() == [j <= i and not (j < 3 <= i) for j in range(6)]


def test_left_padding_changes_no_bit_of_what_is_forgotten() -> None:
    encoding, length = Forgetting(SIZES), 100
    h, noise = torch.randn(1, length, H * d), 1e3 * torch.randn(1, 63, H * d)
    alone = encoding.terms(h, layout_of(1, length)).decay
    padded = encoding.terms(torch.cat((noise, h), 1), left_padded(63, length)).decay
    assert torch.equal(padded[..., 63:], alone)


def test_forgetting_over_4096_tokens_is_rounded_once() -> None:
    """ln f sums to -3000: c_i - c_j is within an ulp of c of the exact sum, wherever i and j are."""
    encoding, length = Forgetting(SIZES), 4_096
    h, layout = torch.randn(1, length, H * d), layout_of(1, length)
    c = encoding.terms(h, layout).decay[0]
    log_f = torch.nn.functional.logsigmoid(encoding.gate(h))[0].T  # [H, T] float32
    exact = log_f.double().cumsum(-1)
    assert -4_000 < exact[:, -1].max() < -2_000
    ulp = torch.finfo(torch.float32).eps * 2_048
    assert (c.double() - exact).abs().max() <= ulp / 2 + 1e-9
    for step in (1, 2, 63, 1_000, 4_095):
        error = (c[:, step:] - c[:, :-step]).double() - (exact[:, step:] - exact[:, :-step])
        assert error.abs().max() <= ulp * 1.001


def test_forgetting_never_remembers_more_than_all() -> None:
    """Gates are at most 1, whatever the content."""
    encoding, layout = Forgetting(SIZES), layout_of(1, 50)
    for size in (1.0, 1e3, 1e6):
        c = encoding.terms(size * torch.randn(1, 50, H * d), layout).decay
        assert c.isfinite().all()
        assert (c.diff(dim=-1) <= 0).all()
