"""PaTH against reflections that are applied to keys one by one, in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.layouts import packed
from pe_lab.attention import attend, reference
from pe_lab.encodings import PADDING, Layout, PaTH, Sizes
from pe_lab.encodings.families.path import ReflectedKeys, reflected_products

H, d = 2, 3
D = H * d
SIZES = Sizes(D, H, 16)


def random_path(rank: int = 5) -> PaTH:
    encoding = PaTH(SIZES, rank=rank).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding


def one_by_one(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """q_i . H_i ... H_(j+1) k_j [B, H, T, T]: token i multiplies all earlier keys by H_i; 0 behind the query."""
    rows, keys = [], k[:, :, :0]
    for i in range(q.shape[2]):
        along = keys @ w[:, :, i, :, None]  # [B, H, i, 1]
        keys = keys - beta[:, :, i, None, None] * along * w[:, :, i, None]
        keys = torch.cat((keys, k[:, :, i : i + 1]), 2)
        row = (keys * q[:, :, i, None]).sum(-1)
        rows.append(torch.nn.functional.pad(row, (0, q.shape[2] - i - 1)))
    return torch.stack(rows, 2)


def papers(encoding: PaTH, h: Tensor, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention of every document by itself, [B, H, T, d], 0 at padding."""
    out = torch.zeros_like(v)
    for b in range(len(h)):
        for number in layout.segment[b].unique().tolist():
            slots = (layout.segment[b] == number).nonzero()[:, 0]
            if number == PADDING:
                continue
            projected = h[b, slots] @ encoding.down.T @ encoding.up.T
            w = []
            for t in range(len(slots)):
                x = sum(encoding.taps[s] * projected[t - s] for s in range(3) if t - s >= 0)
                x = (x / (1 + (-x).exp())).view(H, d)
                w.append(x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt())
            gate = h[b, slots] @ encoding.beta_weight.T + encoding.beta_bias
            beta = 2 / (1 + (-gate).exp())
            own = (x[b : b + 1, :, slots] for x in (q, k))
            z = one_by_one(*own, torch.stack(w, 1)[None], beta.T[None]) / math.sqrt(d)
            later = torch.ones(len(slots), len(slots), dtype=torch.bool).triu(1)
            share = z[0].masked_fill(later, -torch.inf).softmax(-1)
            at = (torch.tensor(b), torch.arange(H)[:, None], slots[None])
            out = out.index_put(at, share @ v[at])
    return out


@pytest.mark.proves("path")
@pytest.mark.parametrize("name", [1, 2, 7, 63, 64, 65, "packed"])
def test_path_is_the_papers_formula(name: int | str) -> None:
    """Values, and gradients of q, k, v, the content and all parameters."""
    layout = packed() if name == "packed" else Layout.of_lengths(torch.tensor([name, (name + 1) // 2]), name, True)
    batch, length = layout.segment.shape
    encoding, h = random_path(), torch.randn(batch, length, D, dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.randn(batch, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    is_token = (layout.segment != PADDING)[:, None, :, None]
    got = attend(q, k, v, encoding.terms(h, layout), layout, "reference") * is_token
    expected = papers(encoding, h, q, k, v, layout)
    assert_close(got, expected, rtol=0, atol=1e-12)
    inputs, upstream = (q, k, v, h, *encoding.parameters()), torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize("length", [1, 8, 13])
def test_chunks_of_any_size_have_the_same_products(length: int, chunk: int) -> None:
    """Values and gradients; betas of exactly 1, whose matrix has no inverse, of 0 and of 2 among them."""
    q, k, w = (torch.randn(2, H, length, d, dtype=torch.float64) for _ in range(3))
    w, beta = w / w.norm(dim=-1, keepdim=True), 2 * torch.rand(2, H, length, dtype=torch.float64)
    beta[:, :, ::4], beta[:, :, 1::4], beta[:, :, 2::4] = 1, 2, 0
    inputs = [x.requires_grad_() for x in (q, k, w, beta)]
    got, expected = reflected_products(*inputs, chunk=chunk).tril(), one_by_one(*inputs)
    assert_close(got, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("count", [1, 5, 12])
def test_the_last_queries_have_the_rows_of_all(count: int) -> None:
    q, k, w = (torch.randn(2, H, 13, d, dtype=torch.float64) for _ in range(3))
    beta = torch.rand(2, H, 13, dtype=torch.float64)
    expected = one_by_one(q, k, w, beta)[:, :, -count:]
    for chunk in (4, 13, 64):
        got = reflected_products(q[:, :, -count:], k, w, beta, chunk=chunk).tril(13 - count)
        assert_close(got, expected, rtol=0, atol=1e-12)


def score_of(keys: int) -> tuple[ReflectedKeys, list[Tensor]]:
    """Return the term of so many keys, and what it depends on, as float32."""
    leaves = [torch.randn(1, H, 8, d), torch.randn(1, H, keys, d), torch.randn(1, H, keys, d), torch.rand(1, H, keys)]
    w, beta = leaves[2:]
    leaves[2] = w / w.norm(dim=-1, keepdim=True)
    return ReflectedKeys(leaves[2].requires_grad_(), beta.requires_grad_(), 1.0), [x.requires_grad_() for x in leaves]


@pytest.mark.parametrize("autocast", [False, True])
def test_a_block_of_queries_has_the_bits_of_all_with_few_nodes(autocast: bool) -> None:
    """Products computed again for the gradients are those of the graph that is not kept."""
    counts = []
    for keys in (200, 1_000):
        score, leaves = score_of(keys)
        upstream = torch.randn(1, H, 8, keys)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            got = score(*leaves[:2], torch.zeros(1, H, 8, keys), Layout.whole(1, keys, True).last(8))
            counts.append(nodes(got))
            gradients = torch.autograd.grad(got, leaves, upstream)
        expected = reflected_products(*leaves)
        assert torch.equal(got, expected)
        for g, e in zip(gradients, torch.autograd.grad(expected, leaves, upstream), strict=True):
            assert torch.equal(g, e)
            assert e.any()
    assert counts[0] == counts[1]


def nodes(made: Tensor) -> int:
    """Return the number of nodes of the graph of a tensor."""
    seen, todo = set(), [made.grad_fn]
    while todo:
        if (node := todo.pop()) and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return len(seen)


def test_an_exported_model_has_the_products_of_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, w = (torch.randn(1, H, 150, d, dtype=torch.float64) for _ in range(3))
    w, beta = w / w.norm(dim=-1, keepdim=True), 2 * torch.rand(1, H, 150, dtype=torch.float64)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert_close(reflected_products(q, k, w, beta).tril(), one_by_one(q, k, w, beta), rtol=0, atol=1e-11)


def test_over_1000_tokens_products_in_float32_stay_near_the_exact_ones() -> None:
    """No matrix lengthens a vector: errors grow like a sum of roundings, not like a product."""
    q, k, w = (torch.randn(1, H, 1_000, 16) for _ in range(3))
    w, beta = w / w.norm(dim=-1, keepdim=True), 1.5 + torch.rand(1, H, 1_000) / 2
    exact = one_by_one(*(x.double() for x in (q, k, w, beta)))
    assert (reflected_products(q, k, w, beta).tril().double() - exact).abs().max() < 1_000 * 2**-23 * 4


def test_terms_and_logits_are_formed_in_float32_in_low_precision() -> None:
    encoding, layout = random_path().float(), Layout.whole(1, 300, True)
    h, q, k = torch.randn(1, 300, D).bfloat16(), *torch.randn(2, 1, H, 300, d).bfloat16()
    expected = encoding.terms(h.float(), layout)
    with torch.autocast("cpu", torch.bfloat16):
        got = encoding.terms(h, layout)
        for name in ("w", "beta"):
            assert torch.equal(getattr(got.content_bias, name), getattr(expected.content_bias, name))
        z = torch.zeros(1, H, 300, 300)
        term = got.content_bias(q, k, z, layout)
    assert torch.equal(term, expected.content_bias(q.float(), k.float(), z, layout))
    assert term.dtype == torch.float32


def test_it_has_the_parameters_of_the_source_and_starts_as_it() -> None:
    encoding = PaTH(Sizes(64, 4, 16))
    assert sum(p.numel() for p in encoding.parameters()) == 32 * 128 + 3 * 64 + 65 * 4
    terms = encoding.terms(torch.zeros(1, 5, 64), Layout.whole(1, 5, True))
    assert (terms.content_bias.beta == 1).all()
    assert encoding.down.detach().std().item() == pytest.approx(0.02, rel=0.1)


def test_without_reflections_it_is_no_encoding() -> None:
    encoding, layout = random_path(), Layout.whole(2, 9, True)
    with torch.no_grad():
        encoding.up.zero_()
    q, k = torch.randn(2, 2, H, 9, d, dtype=torch.float64)
    terms = encoding.terms(torch.randn(2, 9, D, dtype=torch.float64), layout)
    assert_close(reference.logits(q, k, terms, layout), q @ k.mT / math.sqrt(d), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("option", "value"), [("rank", 0), ("rank", 1.5), ("std", -1.0)])
def test_an_option_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be "):
        PaTH(SIZES, **{option: value})


def test_bidirectional_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="path is defined for causal attention only, .*: use relative_bias"):
        PaTH(replace(SIZES, causal=False))
