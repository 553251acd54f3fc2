"""DAPE against loops over pairs of tokens, and against the released form with torch's modules, in float64."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.encodings import (
    PADDING,
    Alibi,
    CoPE,
    Dape,
    DapeV2,
    ExpoSB,
    Fire,
    Forgetting,
    KerpleLog,
    Layout,
    PositionalEncoding,
    RoPE,
    Sizes,
    Sum,
    make,
)

H, d, W = 2, 4, 5
D = H * d
SIZES = Sizes(D, H, 9)
KINDS = {"dape": Dape, "dape_v2": DapeV2, "dape_v2, kernel 5": partial(DapeV2, kernel=5)}


def packed(causal: bool = True) -> Layout:
    pos = torch.tensor([[7, 8, 11, 12, 13, 3, 4, 5, 0, 0], [0, 0, 5, 6, 7, 8, 9, 10, 11, 0]])
    segment = torch.tensor([[4] * 5 + [1] * 3 + [PADDING] * 2, [PADDING] * 2 + [2] * 7 + [5]])
    return Layout(pos, segment, causal)


def make_encoding(name: str, inner: type = KerpleLog, causal: bool = True) -> Dape:
    encoding = KINDS[name](replace(SIZES, causal=causal), name, encoding=inner, width=W).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(torch.rand_like(parameter) - 0.3)
    encoding.constrain()
    return encoding


def biased(encoding: Dape, distance: int, h: int) -> Tensor | None:
    """The bias of the other encoding at a distance."""
    inner = encoding.encoding
    if isinstance(inner, KerpleLog):
        return -inner.p[h] * (1 + inner.a[h] * abs(distance)).log()
    if isinstance(inner, Alibi):
        return torch.tensor(-abs(distance) * 2 ** (-8 * (h + 1) / H), dtype=torch.float64)
    return None


def papers_logits(encoding: Dape, z: Tensor, pos: list[int], causal: bool) -> Tensor:
    """z + B + f([z; B]) of one document, [H, T, T], query by query; keys behind a causal query are left out as 0.

    The hidden layer also has entries beyond the last key, as far as the kernel reaches.
    """
    length, reach, (first, second) = len(pos), encoding.kernel // 2, (encoding.mlp.hidden, encoding.mlp.out)
    rows = []
    for i in range(length):
        maps = []
        for j in range(i + 1 if causal else length):
            biases = [biased(encoding, pos[i] - pos[j], h) for h in range(H)]
            maps.append(torch.stack([*z[:, i, j], *(bias for bias in biases if bias is not None)]))
        hidden = {}
        for j in range(length + reach):
            total = first.bias
            for s in range(-reach, reach + 1):
                if 0 <= j + s < len(maps):
                    total = total + first.weight[:, :, 0, s + reach] @ maps[j + s]
            hidden[j] = torch.where(total > 0, total, 0.01 * total)
        row = []
        for j, numbers in enumerate(maps):
            total = second.bias + numbers[:H]
            for s in range(-reach, reach + 1):
                if j + s in hidden:
                    total = total + second.weight[:, :, 0, s + reach] @ hidden[j + s]
            row.append(total + numbers[H:] if len(numbers) > H else total)
        rows.append(nn.functional.pad(torch.stack(row, -1), (0, length - len(row))))
    return torch.stack(rows, 1)


def papers(encoding: Dape, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention of every document by itself, [B, H, T, d], 0 at padding."""
    out = torch.zeros_like(v)
    for b in range(len(q)):
        for number in layout.segment[b].unique().tolist():
            if number == PADDING:
                continue
            slots = (layout.segment[b] == number).nonzero()[:, 0]
            at = (torch.tensor(b), torch.arange(H)[:, None], slots[None])
            pos = layout.pos.expand_as(layout.segment)[b, slots].tolist()
            logits = papers_logits(encoding, q[at] @ k[at].mT / math.sqrt(d), pos, layout.causal)
            if layout.causal:
                later = torch.ones(len(slots), len(slots), dtype=torch.bool).triu(1)
                logits = logits.masked_fill(later, -torch.inf)
            out = out.index_put(at, logits.softmax(-1) @ v[at])
    return out


CASES = [(name, inner, True) for name in KINDS for inner in (KerpleLog, Alibi, PositionalEncoding)]
CASES += [("dape", KerpleLog, False), ("dape", PositionalEncoding, False)]


@pytest.mark.proves("{name}")
@pytest.mark.parametrize("length", [1, 2, 7, "packed"])
@pytest.mark.parametrize(("name", "inner", "causal"), CASES)
def test_dape_is_the_papers_formula(name: str, inner: type, causal: bool, length: int | str) -> None:
    """Values, and gradients of q, k, v and all parameters, in packed documents and with padding."""
    input_layout = (
        packed(causal) if length == "packed" else Layout.of_lengths(torch.tensor([length, 1]), length, causal)
    )
    encoding, layout = make_encoding(name, inner, causal), input_layout.shifted(3)
    batch, slots = layout.segment.shape
    q, k, v = (torch.randn(batch, H, slots, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    is_token = (layout.segment != PADDING)[:, None, :, None]
    terms = encoding.terms(torch.zeros(batch, slots, D, dtype=torch.float64), encoding.locate(layout))
    got = attend(q, k, v, terms, layout, "reference") * is_token
    expected = papers(encoding, q, k, v, layout)
    assert_close(got, expected, rtol=0, atol=1e-12)
    inputs, upstream = (q, k, v, *encoding.parameters()), torch.randn_like(expected)
    both = (
        torch.autograd.grad(x, inputs, upstream, allow_unused=True, materialize_grads=True) for x in (got, expected)
    )
    for g, e in zip(*both, strict=True):
        assert_close(g, e, rtol=1e-11, atol=1e-11)


def test_the_second_version_is_the_released_one_but_for_the_last_query() -> None:
    """Conv2d with padding on both sides, of maps that are 0 above the diagonal."""
    encoding, layout = make_encoding("dape_v2"), Layout.whole(2, 20, True)
    q, k = torch.randn(2, 2, H, 20, d, dtype=torch.float64)
    got = reference.logits(q, k, encoding.terms(torch.zeros(2, 20, D, dtype=torch.float64), layout), layout)
    z = q @ k.mT / math.sqrt(d)
    bias = torch.stack([torch.stack([biased(encoding, n, h) for n in range(20)]) for h in range(H)])
    full = bias[:, (torch.arange(20)[:, None] - torch.arange(20)).abs()].expand_as(z)
    released = nn.Sequential(
        nn.Conv2d(2 * H, W, (1, 3), padding=(0, 1)), nn.LeakyReLU(), nn.Conv2d(W, H, (1, 3), padding=(0, 1))
    ).double()
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    released.load_state_dict(dict(zip(names, encoding.mlp.state_dict().values(), strict=True)))
    expected = z + full + released(torch.cat((z, full), 1).tril())
    assert_close(got.tril()[:, :, :-1], expected.tril()[:, :, :-1], rtol=0, atol=1e-12)
    assert (got - expected)[:, :, -1].abs().max() > 1e-3


def test_with_a_kernel_of_one_both_versions_are_the_same() -> None:
    one, two = make_encoding("dape"), DapeV2(SIZES, "two", encoding=KerpleLog, width=W, kernel=1).double()
    two.load_state_dict(one.state_dict())
    layout, (q, k) = packed(), torch.randn(2, 2, H, 10, d, dtype=torch.float64)
    h = torch.zeros(2, 10, D, dtype=torch.float64)
    assert_close(*(reference.logits(q, k, x.terms(h, layout), layout) for x in (one, two)), rtol=0, atol=0)


@pytest.mark.parametrize("name", KINDS)
def test_without_an_mlp_it_is_the_other_encoding(name: str) -> None:
    encoding, layout, h = make_encoding(name, Fire), packed(), torch.zeros(2, 10, D, dtype=torch.float64)
    with torch.no_grad():
        encoding.mlp.out.weight.zero_()
        encoding.mlp.out.bias.zero_()
    q, k = torch.randn(2, 2, H, 10, d, dtype=torch.float64)
    got, expected = (reference.logits(q, k, x.terms(h, layout), layout) for x in (encoding, encoding.encoding))
    assert_close(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", KINDS)
def test_rotations_stay_and_the_mlp_sees_the_rotated_logits(name: str) -> None:
    encoding, layout = make_encoding(name, RoPE), Layout.whole(1, 7, True)
    q, k = torch.randn(2, 1, H, 7, d, dtype=torch.float64)
    h = torch.zeros(1, 7, D, dtype=torch.float64)
    z = reference.logits(q, k, encoding.encoding.terms(h, layout), layout)
    got = reference.logits(q, k, encoding.terms(h, layout), layout)
    assert encoding.mlp.hidden.in_channels == H
    assert_close(got[0].tril(), papers_logits(encoding, z[0], list(range(7)), True), rtol=0, atol=1e-12)


def test_logits_in_low_precision_enter_the_mlp_in_float32() -> None:
    layout, h = Layout.whole(1, 300, True), torch.zeros(1, 300, D)
    for name in KINDS:
        encoding, (q, k) = make_encoding(name).float(), torch.randn(2, 1, H, 300, d).bfloat16()
        expected = reference.logits(q.float(), k.float(), encoding.terms(h, layout), layout)
        with torch.autocast("cpu", torch.bfloat16):
            score = encoding.terms(h.bfloat16(), layout).content_bias
            z = torch.randn(1, H, 300, 300)
            low = score(q, k, z, layout)
        assert expected.dtype == low.dtype == torch.float32
        assert torch.equal(low, encoding.terms(h, layout).content_bias(q.float(), k.float(), z, layout))


@pytest.mark.parametrize("name", KINDS)
def test_queries_with_earlier_keys_have_the_rows_of_all(name: str) -> None:
    encoding, layout = make_encoding(name), packed()
    q, k = torch.randn(2, 2, H, 10, d, dtype=torch.float64)
    h = torch.zeros(2, 10, D, dtype=torch.float64)
    expected = reference.logits(q, k, encoding.terms(h, layout), layout)
    for start, end in ((4, 5), (5, 8), (9, 10), (0, 6)):
        before = Layout(layout.pos[:, :start], layout.segment[:, :start], True) if start else None
        step = Layout(layout.pos[:, start:end], layout.segment[:, start:end], True).after(before)
        got = reference.logits(q[:, :, start:end], k[:, :, :end], encoding.terms(h[:, start:end], step), step)
        seen = step.allowed.expand_as(got) & (step.segment != PADDING)[:, None, :, None]
        assert_close(got[seen], expected[:, :, start:end, :end][seen], rtol=0, atol=1e-12)


def test_every_layer_has_its_mlp_and_shares_what_the_other_encoding_shares() -> None:
    mlp = 2 * H * 32 + 32 + 32 * H + H
    for inner, own in ((KerpleLog, 2 * H), (Fire, 3 * (2 + 64 + 33 * H))):
        stack = make("dape", encoding=inner, width=D, num_heads=H, depth=3, length=9)
        assert sum(p.numel() for p in stack.parameters()) == 3 * mlp + own


@pytest.mark.parametrize("inner", [CoPE, Forgetting])
def test_an_encoding_with_other_terms_is_refused(inner: type) -> None:
    with pytest.raises(ValueError, match="^mine needs an encoding whose terms are biases or rotations, got "):
        Dape(SIZES, "mine", encoding=inner)


def test_factors_on_logits_beside_a_bias_are_refused_as_they_would_multiply_what_the_mlp_adds() -> None:
    literal = partial(ExpoSB, form="literal")
    Dape(SIZES, "mine", encoding=literal)
    both = partial(Sum, name="both", parts=[literal, Alibi])
    with pytest.raises(ValueError, match="^mine needs an encoding without factors on logits beside its biases, got b"):
        Dape(SIZES, "mine", encoding=both)


@pytest.mark.parametrize("kernel", [0, 2, -1, 1.5, 257])
def test_a_kernel_out_of_range_is_refused(kernel: float) -> None:
    with pytest.raises(ValueError, match=r"^kernel must be (an odd integer of at least 1|at most 255), got "):
        DapeV2(SIZES, "dape_v2", encoding=KerpleLog, kernel=kernel)
