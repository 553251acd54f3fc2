"""Lift, window, factors after the weights, rotated values: against loops over pairs, in every implementation."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import IMPLEMENTATIONS, Dropout, attend, reference
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.memory import Carried, Memory
from pe_lab.encodings.terms import Rotary, Stick, Terms

B, H, T, d = 2, 3, 6, 4
POS = torch.tensor([[0, 1, 2, 3, 4, 5], [2, 3, 5, 6, 9, 10]])


def layout(causal: bool) -> Layout:
    """One sequence whole, one of two documents whose positions have gaps."""
    return Layout(POS, torch.tensor([[0] * T, [0, 0, 0, 1, 1, 1]]), causal)


def inputs(e: int = d) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, T, width, dtype=torch.float64, requires_grad=True) for width in (d, d, e)]


def rotary(width: int, seed: int) -> Rotary:
    angle = torch.randn(B, H, T, width // 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Rotary(angle.cos(), angle.sin())


def slowly(q: Tensor, k: Tensor, v: Tensor, terms: Terms, made: Layout) -> Tensor:
    """Attention pair by pair, for terms with a bias, a window, a factor after the weights and rotated values."""
    out = []
    for b in range(B):
        for h in range(H):
            for i in range(T):
                logits, values = [], []
                for j in range(T):
                    distance = int(made.pos[b, i] - made.pos[b, j])
                    if made.segment[b, i] != made.segment[b, j] or (made.causal and j > i):
                        continue
                    size = None if terms.window is None else terms.window[h % len(terms.window)]
                    if size is not None and abs(distance) >= size:
                        continue
                    z = q[b, h, i] @ k[b, h, j] / math.sqrt(d)
                    if terms.distance_bias is not None:
                        z = z + entry(terms.distance_bias, b, h, distance)
                    logits.append(z)
                    factor = 1.0 if terms.weight_factors is None else entry(terms.weight_factors, b, h, distance)
                    value = v[b, h, j]
                    if terms.rotary_v is not None:
                        value = turned(value, terms.rotary_v, b, h, j)
                    values.append(factor * value)
                weights = torch.stack(logits).softmax(0)
                total = (weights[:, None] * torch.stack(values)).sum(0)
                out.append(total if terms.rotary_out is None else turned(total, terms.rotary_out, b, h, i))
    return torch.stack(out).view(B, H, T, -1)


def entry(table: Tensor, b: int, h: int, distance: int) -> Tensor:
    own = table if table.dim() == 2 else table[b % len(table)]
    return own[h % len(own), distance + own.shape[1] // 2]


def turned(x: Tensor, rotation: Rotary, b: int, h: int, i: int) -> Tensor:
    pairs = [
        x[2 * c : 2 * c + 2] @ torch.tensor([[cos, sin], [-sin, cos]], dtype=x.dtype)
        for c, (cos, sin) in enumerate(zip(rotation.cos[b, h, i].tolist(), rotation.sin[b, h, i].tolist(), strict=True))
    ]
    return torch.cat(pairs)


def table(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(*shape, 21, dtype=torch.float64, generator=generator, requires_grad=True)


CASES = {
    "window": Terms(window=(3,)),
    "window of each head": Terms(window=(1, None, 4)),
    "window and bias": Terms(window=(2, 5, None), distance_bias=table(H)),
    "weight_factors": Terms(weight_factors=table(H)),
    "after for all heads": Terms(weight_factors=table(1)),
    "bias of each sequence": Terms(distance_bias=table(B, H)),
    "after of each sequence": Terms(weight_factors=table(B, 1)),
    "rotated values": Terms(rotary_v=rotary(d, 1), rotary_out=rotary(d, 2)),
    "all": Terms(
        window=(2, 5, None),
        distance_bias=table(H),
        weight_factors=table(H),
        rotary_v=rotary(d, 1),
        rotary_out=rotary(d, 2),
    ),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_term_is_its_definition(name: str, causal: bool) -> None:
    """Values and gradients, in each implementation that takes it."""
    terms, made, (q, k, v) = CASES[name], layout(causal), inputs()
    expected = slowly(q, k, v, terms, made)
    trained = [q, k, v, *(x for x in (terms.distance_bias, terms.weight_factors) if x is not None)]
    wanted = torch.autograd.grad(expected.square().sum(), trained)
    taken = set()
    for implementation, module in IMPLEMENTATIONS.items():
        if module.refusal_reason(q, terms, made):
            continue
        actual = attend(q, k, v, terms, made, implementation)
        assert_close(actual, expected, rtol=0, atol=1e-12)
        gradients = torch.autograd.grad(actual.square().sum(), trained)
        for one, two in zip(gradients, wanted, strict=True):
            assert_close(one, two, rtol=0, atol=1e-11)
        taken.add(implementation)
    assert taken == {"reference", "blocked"} | ({"sdpa"} if terms.weight_factors is None else set())


def test_what_cannot_be_computed_is_refused_with_the_reason() -> None:
    q = torch.randn(B, H, T, 16)
    made = Layout.whole(B, T, causal=True)
    for implementation in ("triton", "flex", "sdpa"):
        assert "weight_factors" in str(
            IMPLEMENTATIONS[implementation].refusal_reason(q, Terms(weight_factors=torch.ones(1, 11)), made)
        )
    for name in ("distance_bias", "logit_factors"):
        terms = Terms(**{name: torch.ones(B, 1, 11)})
        for implementation in ("triton", "flex"):
            assert f"one {name} for all sequences" in str(
                IMPLEMENTATIONS[implementation].refusal_reason(q, terms, made)
            )


@pytest.mark.parametrize("stick", [Stick(), Stick(include_self=True), Stick("first", True)])
@pytest.mark.parametrize("causal", [True, False])
def test_a_stick_is_broken_over_the_keys_in_the_window(stick: Stick, causal: bool) -> None:
    """As if the others were of another document."""
    q, k, _ = inputs()
    made = Layout.whole(B, T, causal)
    near = (torch.arange(T)[:, None] - torch.arange(T)).abs() < 3
    actual = reference.attention_weights(q, k, Terms(normalizer=stick, window=(3,)), made)
    z = reference.logits(q, k, Terms(), made)
    assert_close(actual, reference.stick_weights(z, stick, made, made.allowed & near), rtol=0, atol=0)
    if stick.remainder == "drop":
        assert not actual.masked_select(~near).any()


@dataclass(frozen=True)
class Doubled:
    """Queries and keys with their squares beside them."""

    head_dim: int = 2 * d

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat((q, q.square()), -1), torch.cat((k, k.square()), -1)


@pytest.mark.parametrize("e", [d, d + 2, 2])
@pytest.mark.parametrize("rotated", [True, False])
def test_a_lift_comes_first_and_the_scale_is_that_before_it(rotated: bool, e: int) -> None:
    q, k, v = inputs(e)
    made, rotation = layout(True), rotary(2 * d, 3) if rotated else None
    terms = Terms(lift=Doubled(), rotary_q=rotation, rotary_k=rotation)
    lifted = Doubled()(q, k)
    if rotation is not None:
        lifted = tuple(reference.rotate(x, rotation) for x in lifted)
    z = lifted[0] @ lifted[1].transpose(-1, -2) / math.sqrt(d)
    expected = z.masked_fill(~made.allowed, -torch.inf).softmax(-1) @ v
    for implementation in ("reference", "sdpa"):
        assert_close(attend(q, k, v, terms, made, implementation), expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        actual = attend(*(x.detach() for x in (q, k, v)), terms, made, "flex")
        assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
def test_a_cache_keeps_lifted_keys_and_rotated_values(implementation: str) -> None:
    """Token by token: everything that depends on a token's own position is applied before it is kept."""
    q, k, v = (x.detach() for x in inputs())
    made = Layout.whole(B, T, causal=True)
    whole = Terms(
        lift=Doubled(),
        rotary_q=rotary(2 * d, 1),
        rotary_k=rotary(2 * d, 2),
        rotary_v=rotary(d, 3),
        rotary_out=rotary(d, 4),
        window=(4, None, 2),
    )
    expected = attend(q, k, v, whole, made, "reference")

    def at(one: Rotary, i: int) -> Rotary:
        return Rotary(one.cos[:, :, i : i + 1], one.sin[:, :, i : i + 1])

    memory, earlier, actual = Memory(), None, []
    for i in range(T):
        token = Layout.whole(B, 1, causal=True, start=i).after(earlier)
        earlier = token.of_keys
        rotations = {name: at(getattr(whole, name), i) for name in ("rotary_q", "rotary_k", "rotary_v", "rotary_out")}
        terms = Terms(lift=Doubled(), window=whole.window, **rotations)
        now = slice(i, i + 1)
        actual.append(
            attend(q[:, :, now], k[:, :, now], v[:, :, now], terms, token.remembering(memory), implementation)
        )
    assert_close(torch.cat(actual, 2), expected, rtol=0, atol=1e-12)


CARRYING = {
    "nothing else": Terms(),
    "stick": Terms(normalizer=Stick(include_self=True)),
    "lift": Terms(lift=Doubled()),
    "relative values": Terms(relative_values=table(H, d).mT.contiguous()),
    **{name: CASES[name] for name in ("window and bias", "after of each sequence", "rotated values", "all")},
}


@pytest.mark.parametrize("shape", [(B, H, T, 5), (1, 1, T, 2)], ids=["each", "shared"])
@pytest.mark.parametrize("name", CARRYING)
def test_what_is_carried_is_mixed_by_the_weights_of_the_values(name: str, shape: tuple) -> None:
    """Attention itself stays as it is. Gradients reach the vectors, and queries and keys through the weights."""
    terms, made, (q, k, v) = CARRYING[name], layout(True), inputs()
    vectors = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected, given = reference.attention_weights(q, k, terms, made) @ vectors, (q, k, vectors)
    upstream = torch.randn_like(expected)
    wanted, taken = torch.autograd.grad(expected, given, upstream), set()
    for implementation, module in IMPLEMENTATIONS.items():
        carrying = replace(terms, carried=Carried(vectors))
        if module.refusal_reason(q, carrying, made):
            continue
        actual = attend(q, k, v, carrying, made, implementation)
        assert_close(actual, attend(q, k, v, terms, made, "reference"), rtol=0, atol=1e-12)
        assert_close(carrying.carried.mixed, expected, rtol=0, atol=1e-12)
        for got, want in zip(torch.autograd.grad(carrying.carried.mixed, given, upstream), wanted, strict=True):
            assert want.any()
            assert_close(got, want, rtol=0, atol=1e-12)
        taken.add(implementation)
    without = {one for one, module in IMPLEMENTATIONS.items() if module.refusal_reason(q, terms, made) is None}
    assert taken == without >= {"reference", "blocked"}


def test_dropout_of_weights_drops_what_is_carried_with_the_values() -> None:
    (q, k, v), made = (x.detach() for x in inputs()), layout(True)
    carried = Carried(v)
    actual = attend(q, k, v, Terms(carried=carried), made, dropout=Dropout(0.5, torch.tensor(3)))
    assert torch.equal(carried.mixed, actual)
    assert not torch.equal(actual, attend(q, k, v, Terms(), made))


def test_with_a_cache_the_vectors_are_those_of_all_keys() -> None:
    q, k, v = (x.detach() for x in inputs())
    vectors = torch.randn(B, H, T, 3, dtype=torch.float64)
    whole, memory, earlier, actual = Carried(vectors), Memory(), None, []
    attend(q, k, v, Terms(carried=whole), Layout.whole(B, T, causal=True))
    for i in range(T):
        token = Layout.whole(B, 1, causal=True, start=i).after(earlier)
        earlier, now = token.of_keys, slice(i, i + 1)
        carried = Carried(vectors[:, :, : i + 1])
        attend(*(x[:, :, now] for x in (q, k, v)), Terms(carried=carried), token.remembering(memory))
        actual.append(carried.mixed)
    assert_close(torch.cat(actual, 2), whole.mixed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(B, H, T - 1, 3), (B, H + 1, T, 3), (T, 3)])
def test_vectors_that_do_not_fit_the_keys_are_refused(shape: tuple) -> None:
    q = torch.randn(B, H, T, d)
    with pytest.raises(ValueError, match=r"^carried.vectors must be \[B\|1, H\|1, T, n\] for q .*, got "):
        attend(q, q, q, Terms(carried=Carried(torch.randn(shape))), layout(True))


def test_heads_that_become_too_wide_for_the_kernels_are_refused() -> None:
    q, made = torch.randn(1, 1, T, 96), Layout.whole(1, T, causal=True)
    for n, wide in ((32, False), (33, True)):
        reason = str(IMPLEMENTATIONS["triton"].refusal_reason(q, Terms(carried=Carried(torch.randn(1, 1, T, n))), made))
        assert ("head_dim of at most 128, got 129" in reason) is wide


@pytest.mark.parametrize("window", [(), (1, 2), (0,), (1.5,), (True,), (-1, None, 2)])
def test_a_window_has_a_size_for_each_head(window: tuple) -> None:
    q = torch.randn(B, H, T, d)
    with pytest.raises(ValueError, match=r"^window must be 3 or 1 integers of at least 1, or None where there is no"):
        attend(q, q, q, Terms(window=window), layout(True))
