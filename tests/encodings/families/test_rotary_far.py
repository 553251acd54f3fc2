"""RoPE with other rotations of far pairs, against loops over all pairs in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, choose, flex, reference, sdpa, triton
from pe_lab.encodings import PADDING, Layout, RoPE, Sizes, Stack
from pe_lab.encodings.families.rotary_far import LeakyReRoPE, ReRoPE, SelfExtend

B, H, d, T, THETA = 2, 2, 6, 14, 50.0
SIZES = Sizes(H * d, H, 8)


def self_extend(i: int, j: int) -> float:
    """The released code's, G = 3, W = 4, with integer division in the shift."""
    return i - j if i - j < 4 else i // 3 - j // 3 + 4 - 4 // 3


def rerope(i: int, j: int) -> float:
    return min(i - j, 5)


def leaky_rerope(i: int, j: int) -> float:
    return i - j if i - j < 5 else 5 + (i - j - 5) / 4


CASES = {
    "self_extend": (SelfExtend(SIZES, theta=THETA, group=3, window=4), self_extend),
    "self_extend half": (SelfExtend(SIZES, theta=THETA, pairing="half", group=3, window=4), self_extend),
    "rerope": (ReRoPE(SIZES, theta=THETA, window=5), rerope),
    "rerope, four of six dimensions": (ReRoPE(SIZES, theta=THETA, window=5, rotary_dim=4), rerope),
    "self_extend, four of six dimensions": (
        SelfExtend(SIZES, theta=THETA, pairing="half", group=3, window=4, rotary_dim=4),
        self_extend,
    ),
    "leaky_rerope": (LeakyReRoPE(SIZES, theta=THETA, pairing="half", window=5, k=4), leaky_rerope),
}


def layouts() -> dict[str, Layout]:
    pos = torch.stack((torch.arange(T), torch.cat((torch.arange(5), torch.arange(T - 5)))))
    segment = torch.stack((torch.zeros(T).long(), torch.tensor([1] * 5 + [4] * (T - 5))))
    padding = torch.tensor([[PADDING] * 3 + [0] * (T - 3), [0] * (T - 2) + [PADDING] * 2])
    return {
        "whole": Layout.whole(B, T, True),
        "documents": Layout(pos, segment, True),
        "late and padded": Layout(torch.arange(100, 100 + T)[None], padding, True),
        "with gaps": Layout(3 * torch.arange(T)[None] + 2, torch.zeros(B, T).long(), True),
    }


def rotated(x: Tensor, angle: float, pairing: str, r: int) -> Tensor:
    """The vectors [H, d] of a token, of which r dimensions are rotated, pair by pair."""
    parts: list[Tensor] = list(x.unbind(-1))
    for c in range(r // 2):
        a, b = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + r // 2)
        t = angle * THETA ** (-2 * c / r)
        parts[a] = x[:, a] * math.cos(t) - x[:, b] * math.sin(t)
        parts[b] = x[:, a] * math.sin(t) + x[:, b] * math.cos(t)
    return torch.stack(parts, -1)


def by_pairs(q: Tensor, k: Tensor, v: Tensor, layout: Layout, distance, pairing: str, r: int = d) -> Tensor:
    """Softmax attention whose logit of a pair is that of RoPE at the distance that the definition gives it."""
    pos, rows = layout.pos.expand(B, T).tolist(), []
    for b in range(B):
        for i in range(T):
            keys = [j for j in range(i + 1) if layout.segment[b, j] == layout.segment[b, i]]
            turned = [rotated(q[b, :, i], distance(pos[b][i], pos[b][j]), pairing, r) for j in keys]
            logits = [(x * k[b, :, j]).sum(-1) / math.sqrt(d) for x, j in zip(turned, keys, strict=True)]
            weights = torch.stack(logits, -1).softmax(-1)  # [H, keys]
            rows.append((weights[..., None] * v[b][:, keys]).sum(1))
    return torch.stack(rows).view(B, T, H, d).transpose(1, 2)


@pytest.mark.parametrize("kind", ["whole", "documents", "late and padded", "with gaps"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_definition(name: str, kind: str) -> None:
    (encoding, distance), layout = CASES[name], layouts()[kind]
    is_token = (layout.segment != PADDING)[:, None, :, None]
    qkv = [torch.randn(B, H, T, d, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(B, H, T, d, dtype=torch.float64) * is_token
    terms = encoding.terms(torch.zeros(B, T, H * d, dtype=torch.float64), layout)
    got = attend(*qkv, terms, layout)
    expected = by_pairs(*qkv, layout, distance, encoding.pairing, encoding.rotary_dim)
    assert_close(got * is_token, expected * is_token, rtol=0, atol=1e-12)
    for one, other in zip(*(torch.autograd.grad(out, qkv, upstream) for out in (got, expected)), strict=True):
        assert_close(one, other, rtol=0, atol=1e-12)
    assert not torch.allclose(
        got * is_token, attend(*qkv, RoPE(SIZES, theta=THETA).terms(got, layout), layout) * is_token
    )


@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("window", [1, 4, 7, 8])
def test_far_distances_of_self_extend_begin_at_the_window_and_never_fall_below(group: int, window: int) -> None:
    encoding = SelfExtend(SIZES, group=group, window=window)
    pos = torch.arange(60, dtype=torch.float64)
    distance = encoding.far_queries(pos)[:, None] - encoding.far_keys(pos)[None]
    far = pos[:, None] - pos >= window
    slack = math.ceil(window / group) - window // group  # 0 where group divides window, as in the source
    assert distance[far].min() >= window
    assert distance[window, 0] == window
    first = distance[(pos[:, None] - pos) == window]
    assert first.max() <= window + slack
    if group == 1:
        assert torch.equal(distance[far], (pos[:, None] - pos)[far])


def test_shifts_of_all_positions_by_groups_change_nothing() -> None:
    """Those of self_extend by other numbers do: it rounds positions, not distances."""
    q, k, v = torch.randn(3, B, H, T, d, dtype=torch.float64)

    def out(encoding: RoPE, offset: int) -> Tensor:
        layout = Layout.whole(B, T, True, start=offset)
        return attend(q, k, v, encoding.terms(q, layout), layout)

    for name, (encoding, _) in CASES.items():
        assert_close(out(encoding, 3000), out(encoding, 0), rtol=0, atol=1e-10)
        apart = (out(encoding, 3001) - out(encoding, 0)).abs().max()
        assert apart > 1e-3 if "extend" in name else apart < 1e-10


@pytest.mark.parametrize("name", CASES)
def test_within_the_window_and_where_nothing_slows_down_it_is_rope(name: str) -> None:
    encoding, _ = CASES[name]
    q, k, v = torch.randn(3, B, H, T, d)
    near = Layout.whole(B, 4, True, start=70)
    rope = RoPE(SIZES, theta=THETA, pairing=encoding.pairing, rotary_dim=encoding.rotary_dim)
    short = [x[:, :, :4] for x in (q, k, v)]
    actual, wanted = (attend(*short, one.terms(q, near), near, "reference") for one in (encoding, rope))
    assert torch.equal(actual, wanted)
    layout = Layout.whole(B, T, True)
    expected = attend(q, k, v, rope.terms(q, layout), layout, "reference")
    options = {"theta": THETA, "pairing": encoding.pairing, "rotary_dim": encoding.rotary_dim, "window": 3}
    for same in (SelfExtend(SIZES, group=1, **options), LeakyReRoPE(SIZES, k=1, **options)):
        assert_close(attend(q, k, v, same.terms(q, layout), layout), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_in_float32_far_positions_cost_no_precision(name: str) -> None:
    """In float32 an angle of 1 per token would have an error of 2e-3 at position 40,000."""
    encoding, _ = CASES[name]
    q, k = torch.randn(2, B, H, T, d, dtype=torch.float64)
    layout = Layout.whole(B, T, True, start=39_999)

    def logits(dtype: torch.dtype, encoding: RoPE) -> Tensor:
        terms = encoding.terms(torch.zeros(B, T, H * d, dtype=dtype), layout)
        return reference.logits(q.to(dtype), k.to(dtype), terms, layout).double()

    error = (logits(torch.float32, encoding) - logits(torch.float64, encoding)).abs()
    assert error.tril().max() < 5e-6  # of logits of size 3


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_token_by_token_equals_the_whole(name: str) -> None:
    encoding, _ = CASES[name]
    stack, x = Stack([encoding], 1), torch.randn(B, T, H * d, dtype=torch.float64)
    qkv = torch.randn(3, B, H, T, d, dtype=torch.float64)
    for layout in (Layout.whole(B, T, True), layouts()["documents"]):
        _, _, terms, of_layer = stack(x, layout)[1].layer(0, x)
        whole, cache, parts = attend(*qkv, terms, of_layer), stack.cache(), []
        for a, b in ((0, 6), (6, 7), (7, 9), (9, T)):
            _, _, terms, of_layer = stack(x[:, a:b], layout.part(a, b), cache)[1].layer(0, x[:, a:b])
            parts.append(attend(*qkv[:, :, :, a:b], terms, of_layer))
        assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-12)


def test_no_implementation_but_the_reference_computes_them() -> None:
    q, layout = torch.randn(B, H, T, d), Layout.whole(B, T, True)
    terms = CASES["rerope"][0].terms(torch.zeros(B, T, H * d), layout)
    assert choose("auto", q, terms, layout).name == "reference"
    for module in (sdpa, flex, triton):
        assert "no place for content_bias" in str(module.refusal_reason(q, terms, layout))


def test_bidirectional_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="rerope is defined for causal attention only, .*: use rope"):
        ReRoPE(Sizes(H * d, H, 8, causal=False))
