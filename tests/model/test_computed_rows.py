"""Rows of some slots have the values and gradients of plain indexing, and slots without a row get no gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.model.computed_rows import ALL_ROWS, Rows, SomeRows, unpad_rows

B, T, H, d = 3, 5, 2, 3
D = H * d
SEGMENT = torch.tensor([[0, 0, 0, PADDING, PADDING], [PADDING, 1, 1, 2, 2], [PADDING, 0, PADDING, PADDING, PADDING]])
SLOTS = {
    "tokens": (SEGMENT != PADDING).flatten().nonzero()[:, 0],
    "not_the_first": torch.tensor([4, 7, 8, 14]),
    "one": torch.tensor([9]),
    "all": torch.arange(B * T),
    "none": torch.tensor([], dtype=torch.long),
}
every_slot = pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def with_gradient(compute: Callable[[Tensor], Tensor], x: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values that a function makes of x, and the gradient of x."""
    x = x.clone().requires_grad_()
    values = compute(x)
    return values.detach(), torch.autograd.grad(values, x, upstream)[0]


def assert_same(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other, rtol=0, atol=0)


@every_slot
def test_states_are_dropped_as_by_an_index(slot: Tensor) -> None:
    x, upstream = rand(B, T, D), rand(len(slot), D)
    rows = SomeRows(slot, (B, T))
    assert_same(with_gradient(rows.drop, x, upstream), with_gradient(lambda x: x.flatten(0, 1)[slot], x, upstream))


@every_slot
def test_padded_states_are_those_of_the_rows_and_of_the_first_row_elsewhere(slot: Tensor) -> None:
    """The gradient that arrives elsewhere is dropped."""
    x, upstream = rand(len(slot), D), rand(B, T, D)
    padded, gradient = with_gradient(SomeRows(slot, (B, T)).pad, x, upstream)
    expected = (x[:1] if len(x) else rand(1, D) * 0).repeat(B * T, 1)
    expected[slot] = x
    assert_same((padded, gradient), (expected.view(B, T, D), upstream.flatten(0, 1)[slot]))


@every_slot
@pytest.mark.parametrize("num_heads", [1, 2, 3, 6])
def test_heads_are_split_as_those_of_all_slots(slot: Tensor, num_heads: int) -> None:
    everything = rand(B, T, 3 * D)
    has_row = torch.zeros(B * T, dtype=torch.bool)
    has_row[slot] = True
    has_row = has_row.view(B, 1, T, 1)
    upstream = rand(3, B, num_heads, T, D // num_heads)

    def split(rows: Rows, x: Tensor) -> Tensor:
        return torch.stack(rows.split(x, num_heads)) * has_row

    expected, gradient = with_gradient(lambda x: split(ALL_ROWS, x), everything, upstream)
    chosen = everything.flatten(0, 1)[slot]
    got = with_gradient(lambda x: split(SomeRows(slot, (B, T)), x), chosen, upstream)
    assert_same(got, (expected, gradient.flatten(0, 1)[slot]))


@every_slot
@pytest.mark.parametrize("num_heads", [1, 2, 3, 6])
def test_heads_are_joined_as_those_of_all_slots(slot: Tensor, num_heads: int) -> None:
    out, upstream = rand(B, num_heads, T, D // num_heads), rand(len(slot), D)
    got = with_gradient(SomeRows(slot, (B, T)).join, out, upstream)
    assert_same(got, with_gradient(lambda x: ALL_ROWS.join(x).flatten(0, 1)[slot], out, upstream))


def test_heads_are_joined_from_memory_in_any_order() -> None:
    rows, out = SomeRows(SLOTS["tokens"], (B, T)), rand(T, d, H, B)
    assert_same((rows.join(out.permute(3, 2, 0, 1)),), (rows.join(out.permute(3, 2, 0, 1).contiguous()),))


def test_the_same_rows_serve_any_number_of_heads_and_parts() -> None:
    slot = SLOTS["tokens"]
    once = SomeRows(slot, (B, T))
    qkv, out = rand(len(slot), 3 * D), rand(B, 1, T, D)
    for _ in range(2):
        for num_heads in (1, 2, 3):
            assert_same(once.split(qkv, num_heads), SomeRows(slot, (B, T)).split(qkv, num_heads))
            heads_first = out.view(B, T, num_heads, -1).transpose(1, 2)
            assert_same((once.join(heads_first),), (SomeRows(slot, (B, T)).join(heads_first),))


def test_rows_within_others_are_found_by_their_slots() -> None:
    tokens, few = SomeRows(SLOTS["tokens"], (B, T)), SomeRows(SLOTS["tokens"][[1, 4, 5]], (B, T))
    x = rand(B, T, D)
    upstream = rand(3, D)
    of_all = with_gradient(lambda x: few.within(x, ALL_ROWS), x, upstream)
    assert_same(of_all, with_gradient(lambda x: few.within(tokens.drop(x), tokens), x, upstream))
    assert_same(of_all, with_gradient(lambda x: x.flatten(0, 1)[few.slot], x, upstream))
    assert few.within(upstream, few) is upstream
    assert ALL_ROWS.within(x, ALL_ROWS) is x


def test_a_slot_that_has_no_row_is_refused_where_its_state_is_asked() -> None:
    tokens, other = SomeRows(SLOTS["tokens"], (B, T)), SomeRows(torch.tensor([0, 6, 12, 14]), (B, T))
    with pytest.raises(ValueError, match="^answers must be asked at tokens, got padding in slot 12$"):
        other.within(rand(len(tokens.slot), D), tokens)


def test_all_rows_leave_states_as_they_are() -> None:
    x = rand(B, T, D)
    assert ALL_ROWS.pad(x) is x
    assert ALL_ROWS.drop(x) is x


@pytest.mark.parametrize("causal", [True, False])
def test_the_rows_of_tokens_are_those_without_padding(causal: bool) -> None:
    rows = unpad_rows(Layout(torch.arange(T)[None], SEGMENT, causal))
    assert isinstance(rows, SomeRows)
    assert rows.slot.tolist() == [0, 1, 2, 6, 7, 8, 9, 11]
    assert rows.shape == (B, T)


def test_gradients_of_gradients_are_those_of_finite_differences() -> None:
    rows = SomeRows(SLOTS["tokens"], (B, T))
    for compute, x in ((rows.drop, rand(B, T, 2)), (rows.join, rand(B, H, T, 2))):
        assert torch.autograd.gradgradcheck(lambda x, compute=compute: compute(x).sin(), x.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_stay(dtype: torch.dtype) -> None:
    rows = SomeRows(SLOTS["tokens"], (B, T))
    x = rand(len(rows.slot), 3 * D).to(dtype).requires_grad_()
    q, k, v = rows.split(x, H)
    out = rows.join(q + k * v) + rows.drop(rows.pad(x))[:, :D]
    assert out.dtype == dtype
    assert torch.autograd.grad(out.sum(), x)[0].dtype == dtype


@pytest.mark.gpu
def test_rows_are_computed_where_their_slots_are() -> None:
    slot = SLOTS["tokens"]
    here, there = SomeRows(slot, (B, T)), SomeRows(slot.cuda(), (B, T))
    x = rand(len(slot), 3 * D)
    assert_same(tuple(part.cpu() for part in there.split(x.cuda(), H)), here.split(x, H))
    assert_same((there.drop(there.pad(x.cuda())).cpu(),), (here.drop(here.pad(x)),))
