"""Wall attention against products of gates over every token between, in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.layouts import packed
from pe_lab.attention import attend, reference
from pe_lab.encodings import PADDING, Layout, Sizes, Wall
from pe_lab.encodings.families.decay import decayed_products

H, d = 2, 3
D = H * d
SIZES = Sizes(D, H, 16)


def random_wall() -> Wall:
    encoding = Wall(SIZES).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding


def one_by_one(q: Tensor, k: Tensor, gates: Tensor) -> Tensor:
    """Return q_i . k_j times the product of the gates of the tokens j + 1 ... i, per dimension; 0 behind the query."""
    rows, keys = [], k[:, :, :0]
    for i in range(q.shape[2]):
        keys = torch.cat((keys * gates[:, :, i, None], k[:, :, i : i + 1]), 2)  # every token fades those before it
        row = (keys * q[:, :, i, None]).sum(-1)
        rows.append(torch.nn.functional.pad(row, (0, q.shape[2] - i - 1)))
    return torch.stack(rows, 2)


def papers(encoding: Wall, h: Tensor, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention of every document by itself, [B, H, T, d], 0 at padding."""
    out = torch.zeros_like(v)
    for b in range(len(h)):
        for number in layout.segment[b].unique().tolist():
            slots = (layout.segment[b] == number).nonzero()[:, 0]
            if number == PADDING:
                continue
            gates = 1 / (1 + (-(h[b, slots] @ encoding.weight.T + encoding.bias)).exp())
            gates = gates.view(1, len(slots), H, d).transpose(1, 2)
            z = one_by_one(q[b : b + 1, :, slots], k[b : b + 1, :, slots], gates) / math.sqrt(d)
            later = torch.ones(len(slots), len(slots), dtype=torch.bool).triu(1)
            share = z[0].masked_fill(later, -torch.inf).softmax(-1)
            at = (torch.tensor(b), torch.arange(H)[:, None], slots[None])
            out = out.index_put(at, share @ v[at])
    return out


@pytest.mark.proves("wall")
@pytest.mark.parametrize("name", [1, 2, 7, 63, 65, "packed"])
def test_wall_is_the_sources_formula(name: int | str) -> None:
    """Values, and gradients of q, k, v, the content and all parameters."""
    layout = packed() if name == "packed" else Layout.of_lengths(torch.tensor([name, (name + 1) // 2]), name, True)
    batch, length = layout.segment.shape
    encoding, h = random_wall(), torch.randn(batch, length, D, dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.randn(batch, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    is_token = (layout.segment != PADDING)[:, None, :, None]
    got = attend(q, k, v, encoding.terms(h, layout), layout, "reference") * is_token
    expected = papers(encoding, h, q, k, v, layout)
    assert_close(got, expected, rtol=0, atol=1e-12)
    inputs, upstream = (q, k, v, h, *encoding.parameters()), torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize(("length", "queries"), [(1, 1), (13, 13), (13, 5), (13, 1)])
def test_chunks_of_any_size_have_the_same_products(length: int, queries: int, chunk: int) -> None:
    """Values and gradients, with gates that are all but shut and wide open among them; also of the last queries."""
    q, k = (torch.randn(2, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(2))
    log_f = -torch.rand(2, H, length, d, dtype=torch.float64)
    log_f[:, :, ::4], log_f[:, :, 1::4] = -60, 0
    log_f.requires_grad_()
    got = decayed_products(q[:, :, -queries:], k, log_f.cumsum(2), chunk)
    expected = one_by_one(q, k, log_f.exp())[:, :, -queries:]
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, log_f), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-11, atol=1e-11)


def test_over_1000_tokens_with_shut_gates_products_in_float32_stay_near_the_exact_ones() -> None:
    """P reaches -3e4, whose exponential no float holds; near keys still count."""
    q, k = (torch.randn(1, H, 1_000, 16) for _ in range(2))
    log_f = -60 * torch.rand(1, H, 1_000, 16, dtype=torch.float64) ** 4
    log_f[..., ::5] = -40
    got = decayed_products(q.requires_grad_(), k, log_f.cumsum(2))
    assert log_f.sum(2).min() < -3e4
    exact = one_by_one(q.detach().double(), k.double(), log_f.exp())
    assert (got.detach().double() - exact).abs().max() < 100 * 2**-23
    got.sum().backward()
    assert q.grad.isfinite().all()


def test_an_exported_model_has_the_products_of_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = (torch.randn(1, H, 50, d, dtype=torch.float64) for _ in range(2))
    log_f = -torch.rand(1, H, 50, d, dtype=torch.float64)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert_close(decayed_products(q, k, log_f.cumsum(2)), one_by_one(q, k, log_f.exp()), rtol=0, atol=1e-12)


def test_gates_and_logits_are_formed_in_float32_in_low_precision() -> None:
    encoding, layout = random_wall().float(), Layout.whole(1, 300, True)
    h, q, k = torch.randn(1, 300, D).bfloat16(), *torch.randn(2, 1, H, 300, d).bfloat16()
    expected = encoding.terms(h.float(), layout)
    with torch.autocast("cpu", torch.bfloat16):
        got = encoding.terms(h, layout)
        assert torch.equal(got.content_bias.log_f, expected.content_bias.log_f)
        z = torch.zeros(1, H, 300, 300)
        term = got.content_bias(q, k, z, layout)
    assert torch.equal(term, expected.content_bias(q.float(), k.float(), z, layout))
    assert term.dtype == torch.float32


def test_it_has_the_parameters_of_the_source_and_starts_with_open_gates() -> None:
    encoding, layout = Wall(Sizes(64, 4, 16)), Layout.whole(1, 5, True)
    assert sum(p.numel() for p in encoding.parameters()) == 64 * 64 + 64
    assert encoding.weight.detach().std().item() == pytest.approx(0.02, rel=0.1)
    q, k = torch.randn(2, 1, 4, 5, 16)
    logits = reference.logits(q, k, encoding.terms(torch.randn(1, 5, 64), layout), layout)
    assert_close(logits.tril(), (q @ k.mT / 4).tril(), rtol=0, atol=0.02)


@pytest.mark.parametrize("value", ["open", None, math.inf])
def test_a_bias_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="^bias must be a number"):
        Wall(SIZES, bias=value)


def test_with_open_gates_it_is_no_encoding() -> None:
    encoding, layout = random_wall(), Layout.whole(2, 40, True)
    with torch.no_grad():
        encoding.weight.zero_()
        encoding.bias.fill_(800)
    q, k = torch.randn(2, 2, H, 40, d, dtype=torch.float64)
    got = reference.logits(q, k, encoding.terms(torch.randn(2, 40, D, dtype=torch.float64), layout), layout)
    assert_close(got.tril(), (q @ k.mT / math.sqrt(d)).tril(), rtol=0, atol=1e-14)
