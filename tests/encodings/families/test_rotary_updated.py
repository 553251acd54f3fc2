"""TAPE against loops over layers and tokens in complex float64, after its authors' code."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from helpers import loops
from pe_lab.attention import attend, reference
from pe_lab.encodings import PADDING, TAPE, Alibi, Heads, Interleave, Layout, RoPE, Sizes, Stack, Sum
from pe_lab.encodings.families.rotary_updated import Update

H, d, LAYERS, UNITS = 2, 4, 3, 5
D = H * d
SIZES = Sizes(D, H, 16)
Inputs = list[tuple[Tensor, ...]]  # of each layer: h [B, T, D], and q, k, v [B, H, T, d]


def random_stack(pairing: str = "interleaved", depth: int = LAYERS) -> Stack:
    """Return a stack whose parameters are not where they start."""
    stack = Stack.build(partial(TAPE, theta=30.0, pairing=pairing, units=UNITS), SIZES, depth).double()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.normal_()
    return stack


def random_inputs(batch: int, length: int, depth: int = LAYERS, dtype: torch.dtype = torch.float64) -> Inputs:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, requires_grad=True)

    return [(drawn(batch, length, D), *(drawn(batch, H, length, d) for _ in range(3))) for _ in range(depth)]


def read(inputs: Inputs, stack: Stack) -> list[Tensor]:
    """Return all inputs and parameters, but for the content of the first layer, which is not read."""
    return [*inputs[0][1:], *(x for layer in inputs[1:] for x in layer), *stack.parameters()]


def run(stack: Stack, inputs: Inputs, layout: Layout, implementation: str = "reference") -> Tensor:
    """Return attention of all layers, each with an input of its own, [layers, B, H, T, d]."""
    _, positions = stack(torch.zeros_like(inputs[0][0]), layout)
    out = []
    for index, (h, q, k, v) in enumerate(inputs):
        _, _, terms, layer_layout = positions.layer(index, h)
        out.append(attend(q, k, v, terms, layer_layout, implementation))
    return torch.stack(out)


def pairs(x: Tensor, pairing: str) -> Tensor:
    """Return a vector [d] as complex numbers [d/2]."""
    first, second = (x[0::2], x[1::2]) if pairing == "interleaved" else (x[: d // 2], x[d // 2 :])
    return torch.complex(first, second)


def papers(stack: Stack, inputs: Inputs, layout: Layout, pairing: str) -> Tensor:
    """The same token by token, 0 at padding."""
    batch, length = layout.segment.shape
    omega = torch.tensor([30.0 ** (-2 * c / d) for c in range(d // 2)], dtype=torch.float64)
    pos = layout.pos.expand(batch, length).double()
    results = []
    for b in range(batch):
        z = [[torch.polar(torch.ones_like(omega), pos[b, t] * omega) for _ in range(H)] for t in range(length)]
        mixed: list[list[Tensor]] = []
        for index, (h, q, k, v) in enumerate(inputs):
            if index:
                update = stack.of_layer(index).update
                for t in range(length):
                    z[t] = [z[t][n] + update.factor[n] * mixed[t][n] for n in range(H)]
                    w = update.content.weight @ h[b, t]
                    gate = w / (1 + (-w).exp())
                    up = [sum(update.up[i, n] * z[t][n] for n in range(H)) for i in range(UNITS)]
                    z[t] = [z[t][n] + sum(update.down[n, i] * gate[i] * up[i] for i in range(UNITS)) for n in range(H)]
            mixed, rows = [], []
            for t in range(length):
                keys = [j for j in range(length) if layout.segment[b, j] == layout.segment[b, t]]
                keys = [j for j in keys if j <= t or not layout.causal]
                mixed.append([])
                for n in range(H):
                    query = pairs(q[b, n, t], pairing) * z[t][n]
                    products = [(query * (pairs(k[b, n, j], pairing) * z[j][n]).conj()).real.sum() for j in keys]
                    share = (torch.stack(products) / d**0.5).softmax(0)
                    mixed[-1].append(sum(share[m] * z[j][n] for m, j in enumerate(keys)))
                    row = sum(share[m] * v[b, n, j] for m, j in enumerate(keys))
                    rows.append(row * (layout.segment[b, t] != PADDING))
            results.append(torch.stack(rows).view(length, H, d).transpose(0, 1))
    return torch.stack(results).view(batch, len(inputs), H, length, d).transpose(0, 1)


@pytest.mark.proves("tape")
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("causal", [True, False])
def test_tape_is_the_codes_formula(causal: bool, pairing: str) -> None:
    """Values, and gradients of all inputs of three layers and of all parameters."""
    layout, stack = loops.mixed(causal), random_stack(pairing)
    inputs = random_inputs(*layout.segment.shape)
    is_token = (layout.segment != PADDING)[:, None, :, None]
    got, expected = run(stack, inputs, layout) * is_token, papers(stack, inputs, layout, pairing)
    assert_close(got, expected, rtol=0, atol=1e-12)
    outputs = read(inputs, stack)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, outputs, upstream) for x in (got, expected)), strict=True):
        assert e.any()
        assert_close(g, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [1, 63, 100, 129])
@pytest.mark.parametrize("implementation", ["sdpa", "blocked", "flex"])
def test_every_implementation_mixes_what_layers_carry(implementation: str, length: int) -> None:
    layout = Layout.of_lengths(torch.tensor([length, (length + 1) // 2]), length, True)
    stack, inputs = random_stack().requires_grad_(False), random_inputs(2, length)
    inputs = [tuple(x.detach() for x in layer) for layer in inputs]
    is_token = (layout.segment != PADDING)[:, None, :, None]
    got, expected = (run(stack, inputs, layout, name) * is_token for name in (implementation, "reference"))
    assert_close(got, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_one_layer_and_the_start_are_rope(pairing: str) -> None:
    layout = loops.mixed(True)
    for depth in (1, LAYERS):
        inputs = random_inputs(*layout.segment.shape, depth)
        tape, rope = (
            Stack.build(partial(made, theta=30.0, pairing=pairing), SIZES, depth).double() for made in (TAPE, RoPE)
        )
        assert_close(run(tape, inputs, layout), run(rope, inputs, layout), rtol=0, atol=1e-14)
        assert sum(p.numel() for p in tape.parameters()) == (depth - 1) * (H + 4 * H * (D + 2 * H))


def test_a_shift_of_all_positions_changes_nothing() -> None:
    """The update is real and linear: it takes every z times the same number of length 1 to its result times that."""
    stack, inputs = random_stack(), random_inputs(2, 9)
    at_start, shifted = (run(stack, inputs, Layout.whole(2, 9, True).shifted(offset)) for offset in (0, 1000))
    assert_close(shifted, at_start, rtol=0, atol=1e-9)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_update_is_computed_in_float32_in_low_precision(autocast: bool) -> None:
    update, (vectors, mixed) = Update(D, H, UNITS), torch.randn(2, 1, H, 300, d)
    with torch.no_grad():
        for parameter in update.parameters():
            parameter.normal_()
    h, low = torch.randn(1, 300, D).bfloat16(), mixed.bfloat16()
    expected = update(vectors, low.float(), h.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert torch.equal(update(vectors, low, h), expected)


@pytest.mark.parametrize("again", [False, True], ids=["whole", "each layer"])
def test_layers_that_are_computed_again_have_the_same_gradients(again: bool) -> None:
    """As checkpointing of `model.checkpointing=layer` does, twice."""
    layout, stack = loops.mixed(True), random_stack()
    inputs = random_inputs(*layout.segment.shape)
    outputs = read(inputs, stack)
    expected = run(stack, inputs, layout)
    _, positions = stack(torch.zeros_like(inputs[0][0]), layout)

    def layer(index: int, h: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        _, _, terms, layer_layout = positions.layer(index, h)
        return attend(q, k, v, terms, layer_layout, "reference")

    if again:
        got = torch.stack([checkpoint(layer, i, *x, use_reentrant=False) for i, x in enumerate(inputs)])
    else:
        got = checkpoint(run, stack, inputs, layout, use_reentrant=False)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, outputs, upstream)
    for _ in range(2):
        for g, e in zip(torch.autograd.grad(got, outputs, upstream, retain_graph=True), wanted, strict=True):
            assert_close(g, e, rtol=0, atol=1e-12)


def test_checkpointing_that_would_lose_gradients_is_refused() -> None:
    stack, h = random_stack(), torch.randn(1, 5, D, dtype=torch.float64)
    _, positions = stack(h)
    with torch.no_grad(), pytest.raises(ValueError, match=r"^checkpointing must be used with use_reentrant=False: .*"):
        positions.layer(0, h)
    with torch.no_grad():
        _, positions = stack(h)
        positions.layer(0, h)


def test_a_layer_whose_predecessor_carries_nothing_is_refused() -> None:
    h = torch.randn(1, 5, D)
    for stack, before in (
        (Stack.build(partial(Interleave, parts=[RoPE, TAPE]), SIZES, 2), True),
        (Stack.build(TAPE, SIZES, 2), False),
    ):
        _, positions = stack(h)
        q = torch.randn(1, H, 5, d)
        if before:
            _, _, terms, layout = positions.layer(0, h)
            attend(q, q, q, terms, layout)
        else:
            positions.layer(0, h)  # its attention is not computed
        with pytest.raises(ValueError, match=r"^tape must be the encoding of all layers, .* carries nothing$"):
            positions.layer(1, h)


def test_heads_of_several_encodings_carry_nothing() -> None:
    stack, h = Stack.build(partial(Heads, parts=[TAPE, RoPE]), SIZES, 2), torch.randn(1, 5, D)
    with pytest.raises(ValueError, match=r"^parts must carry nothing from layer to layer for all heads, got tape$"):
        stack(h)[1].layer(0, h)


def test_with_a_bias_it_carries_the_means_by_the_weights_of_both() -> None:
    stack = Stack.build(partial(Sum, parts=[TAPE, Alibi]), SIZES, 2)
    h, q, k, v = random_inputs(2, 7, 1)[0]
    x, positions = stack(h.float())
    _, _, terms, layer_layout = positions.layer(0, x)
    attend(q, k, v, terms, layer_layout)
    carried, weights = terms.carried, reference.attention_weights(q, k, terms, layer_layout)
    assert_close(carried.mixed, weights @ carried.vectors.double(), rtol=0, atol=1e-12)
    assert not torch.equal(weights, reference.attention_weights(q, k, replace(terms, distance_bias=None), layer_layout))
    assert positions.layer(1, x).layout.carried is terms.carried


@pytest.mark.parametrize(("option", "value"), [("units", 0), ("units", 1.5), ("theta", 0.0), ("pairing", "both")])
def test_an_option_out_of_range_is_refused(option: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be "):
        TAPE(SIZES, **{option: value})
