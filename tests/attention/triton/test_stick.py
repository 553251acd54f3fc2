"""The kernels of stick-breaking compute the product formula: values and every gradient, against a loop in float64."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import combinations, product
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from helpers.layouts import layout_of
from pe_lab.attention import attend, reference, resolve
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.triton import stick as kernels
from pe_lab.attention.triton import stick_operators
from pe_lab.attention.triton.stick_operators import stick_attention, stick_attention_backward
from pe_lab.config import Model, expand_overrides
from pe_lab.data.base import IGNORE, Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms
from pe_lab.model.transformer import Transformer

pytestmark = [
    pytest.mark.slow,
    # of the interpreter, at places of a tile that a mask then makes zero
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
H = 2
Given = dict[str, Tensor]


@pytest.fixture(scope="module", autouse=True)
def _bfloat16_is_rounded() -> Iterator[None]:
    """Triton's interpreter cuts float32 where a GPU rounds it to bfloat16; and takes its time."""
    usual = InterpreterBuilder.cast_impl

    def cast(self: InterpreterBuilder, x: TensorHandle, to: tl.dtype) -> TensorHandle:
        pair = (x.dtype.scalar, to.scalar)
        if pair == (tl.float32, tl.bfloat16):
            return TensorHandle(torch.from_numpy(x.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)
        if pair == (tl.bfloat16, tl.float32):
            return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        return usual(self, x, to)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "cast_impl", cast)
        yield


@pytest.fixture(scope="module", autouse=True)
def _memory_that_nobody_wrote_is_nan() -> Iterator[None]:
    """So that a kernel which reads it shows: marks of tiles that no row meets are never written."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(DEVICE == "cpu")
    yield
    torch.use_deterministic_algorithms(before)


def rand(*shape: int) -> Tensor:
    """float64 numbers that float32 has too."""
    return torch.randn(shape).double().to(DEVICE)


# -- the judge -----------------------------------------------------------------------------------------------------


def sides_of(i: int, T: int, stick: Stick, causal: bool) -> list[list[int]]:
    """The keys of every stick of query i, in the order in which they are broken off."""
    before, after = list(range(i)), list(range(i + 1, T))
    own = [i] if stick.include_self else []
    if stick.order == "first":
        return [before + own + ([] if causal else after)]
    left = own + before[::-1]
    return [left] if causal else [left, after]


def product_weights(z: Tensor, stick: Stick, layout: Layout) -> tuple[Tensor, Tensor]:
    """[B, H, T, T] weights of logits z without what is left, and what is left [B, H, T]; one pair after another.

    A_ij = beta_ij * product of (1 - beta_ik) over the keys k broken off before j (Tan et al. 2024, arXiv:2410.17980,
    eq. 1); two sticks have half the mass each. A key of another segment takes nothing.
    """
    same = (layout.segment[:, :, None] == layout.segment[:, None, :])[:, None]
    takes, leaves = z.sigmoid().where(same, 0.0), (-z).sigmoid().where(same, 1.0)
    zero, T = torch.zeros_like(z[..., 0, 0]), z.shape[-1]
    rows, remainders = [], []
    for i, (take, leave) in enumerate(zip(takes.unbind(-2), leaves.unbind(-2), strict=True)):
        take, leave = take.unbind(-1), leave.unbind(-1)
        row, remainder = [zero] * T, zero
        sides = sides_of(i, T, stick, layout.causal)
        for side in sides:
            left = torch.full_like(zero, 1 / len(sides))
            for j in side:
                row[j] = take[j] * left
                left = left * leave[j]
            remainder = remainder + left
        rows.append(torch.stack(row, -1))
        remainders.append(remainder)
    return torch.stack(rows, -2), torch.stack(remainders, -1)


def rotated(x: Tensor, rotary: Rotary | None) -> Tensor:
    """Every pair of dims (a, b) as (a cos - b sin, a sin + b cos)."""
    if rotary is None:
        return x
    d = x.shape[-1]
    dims = list(x.unbind(-1))
    for c in range(d // 2):
        one, two = (2 * c, 2 * c + 1) if rotary.pairing == "interleaved" else (c, c + d // 2)
        a, b, cos, sin = x[..., one], x[..., two], rotary.cos[..., c], rotary.sin[..., c]
        dims[one], dims[two] = a * cos - b * sin, a * sin + b * cos
    return torch.stack(dims, -1)


def by_definition(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout) -> Tensor:
    """Stick-breaking attention with bias, rotation and gain; nothing of it is the lab's."""
    q, k = rotated(q, terms.rotary_q), rotated(k, terms.rotary_k)
    if terms.gain is not None:
        q, k = q * terms.gain[:, None, :], k * terms.gain[:, None, :]
    scale = q.shape[-1] ** -0.5 if terms.scale is None else terms.scale
    z = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) * scale
    if terms.distance_bias is not None:
        reach = terms.distance_bias.shape[1] // 2
        distance = (layout.pos[:, :, None] - layout.pos[:, None, :]).clamp(-reach, reach)
        z = z + terms.distance_bias[:, distance + reach].transpose(0, 1)
    weight, left = product_weights(z, terms.normalizer, layout)
    out = (weight[..., None] * v[..., None, :, :]).sum(-2)
    return out + left[..., None] * v if terms.normalizer.remainder == "own" else out


def by_kernels(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout) -> Tensor:
    return attend(q, k, v, terms, layout, "triton")


def by_reference(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout) -> Tensor:
    return attend(q, k, v, terms, layout, "reference")


# -- where the tokens are --------------------------------------------------------------------------------------------


def whole_layout(T: int, causal: bool) -> Layout:
    return Layout.of_lengths(torch.tensor([T]), T, causal).to(DEVICE)


LAYOUTS: dict[str, Callable[[int, bool], Layout]] = {
    "whole": whole_layout,
    "right_padded": lambda T, causal: Layout.of_lengths(torch.tensor([T, T - T // 3]), T, causal).to(DEVICE),
    "left_padded_late": lambda T, causal: layout_of(
        [[PADDING] * (T // 3) + [0] * (T - T // 3), [PADDING] * 3 + [0] * (T - 3)], causal, late=1000
    ),
    "packed": lambda T, causal: layout_of(
        [
            [7] * (T // 2) + [4] + [9] * (T - T // 2 - 1),
            [PADDING] * 2 + [0] * 5 + [3] * (T // 3) + [5] * (T - 10 - T // 3) + [PADDING] * 3,
        ],
        causal,
    ),
}


def token_mask(layout: Layout) -> Tensor:
    """[B, 1, T, 1] tokens that count."""
    return (layout.segment != PADDING)[:, None, :, None]


# -- what an encoding may ask for: shapes are those of tensors to draw, the rest is given as it is ---------------------

Case = dict[str, Any]
BIASES: dict[str, Callable[[int], Case]] = {
    "none": lambda T: {},
    "per_head": lambda T: {"distance_bias": (H, 2 * T - 1)},
    "shared_clipped": lambda T: {"distance_bias": (1, 2 * (T // 3) + 1), "clip": True},
}
ROTATIONS: dict[str, Callable[[int, int], Case]] = {
    "plain": lambda T, d: {},
    "rotated": lambda T, d: {"cos": (1, 1, T, d // 2), "sin": (1, 1, T, d // 2), "gain": (H, d), "scale": 0.2},
    "rotated_half": lambda T, d: {"cos": (1, H, T, d // 2), "sin": (1, H, T, d // 2), "pairing": "half"},
}


def drawn(case: Case, layout: Layout, d: int) -> tuple[Given, Case]:
    """q, k, v and the tables, and what is not a tensor."""
    tables = {name: rand(*shape) for name, shape in case.items() if isinstance(shape, tuple)}
    q, k, v = rand(3, layout.segment.shape[0], H, layout.segment.shape[1], d)
    return {"q": q, "k": k, "v": v, **tables}, {name: x for name, x in case.items() if name not in tables}


def terms_of(given: Given, options: Case) -> Terms:
    rotary = Rotary(given["cos"], given["sin"], options.get("pairing", "interleaved")) if "cos" in given else None
    tables = {name: given[name] for name in ("distance_bias", "gain") if name in given}
    options = {name: options[name] for name in ("scale", "clip", "normalizer") if name in options}
    return Terms(rotary_q=rotary, rotary_k=rotary, **tables, **options)


# -- running, and judging ----------------------------------------------------------------------------------------------


def run(
    attention: Callable[..., Tensor], given: Given, options: Case, layout: Layout, upstream: Tensor, dtype: torch.dtype
) -> Given:
    """The output where tokens count, and the gradient of every input, all float64."""
    wide = torch.promote_types(dtype, torch.float32)
    inputs = {name: x.to(dtype if name in "qkv" else wide, copy=True).requires_grad_() for name, x in given.items()}
    out = attention(*(inputs[name] for name in "qkv"), terms_of(inputs, options), layout)
    assert out.dtype == dtype
    assert out.isfinite().all()  # padding included
    # a stick with no key does not look at the query
    gradients = torch.autograd.grad(out, list(inputs.values()), upstream.to(dtype), materialize_grads=True)
    named = {"out": out.detach() * token_mask(layout), **dict(zip(inputs, gradients, strict=True))}
    return {name: x.double() for name, x in named.items()}


def upstream_for(given: Given, layout: Layout) -> Tensor:
    """Random, and zero where tokens do not count."""
    return rand(*given["q"].shape) * token_mask(layout)


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def assert_errs_as_little(got: Given, judge: Given, truth: Given, terms: Given | None = None) -> None:
    """At most four times what the reference errs by in float32, and the 21 bits that three TF32 products keep.

    Args:
        terms: sums of the absolute terms of what is a sum whose terms cancel; the bits are those of its terms.
    """
    sizes = truth | (terms or {})
    for name, exact in truth.items():
        error, reference_error = (rms(x[name] - exact) for x in (got, judge))
        assert error <= 4 * reference_error + 2**-21 * rms(sizes[name]), (
            f"{name} errs by {error}, the reference by {reference_error}"
        )


def assert_equal_but_for_rounding(given: Given, options: Case, layout: Layout) -> None:
    upstream = upstream_for(given, layout)
    truth = run(by_definition, given, options, layout, upstream, torch.float64)
    judge = run(by_reference, given, options, layout, upstream, torch.float32)
    assert_errs_as_little(run(by_kernels, given, options, layout, upstream, torch.float32), judge, truth)


BOOLEANS = (True, False)
OPTIONS = [BOOLEANS, ("nearest", "first"), BOOLEANS, ("drop", "own"), BIASES, LAYOUTS, ROTATIONS, (16, 24, 80)]
COVER = [
    (False, "first", True, "drop", "shared_clipped", "left_padded_late", "rotated", 24, 21),
    (False, "first", True, "own", "none", "right_padded", "rotated", 16, 21),
    (False, "first", True, "own", "per_head", "left_padded_late", "plain", 80, 21),
    (False, "nearest", False, "drop", "none", "packed", "rotated_half", 80, 33),
    (False, "nearest", True, "drop", "per_head", "right_padded", "rotated_half", 24, 21),
    (False, "nearest", True, "own", "per_head", "whole", "rotated", 80, 33),
    (True, "first", False, "drop", "none", "left_padded_late", "rotated_half", 16, 21),
    (True, "first", False, "own", "shared_clipped", "right_padded", "plain", 80, 21),
    (True, "first", False, "own", "shared_clipped", "whole", "rotated_half", 80, 21),
    (True, "first", False, "own", "none", "whole", "plain", 24, 45),
    (True, "first", True, "own", "shared_clipped", "packed", "plain", 24, 45),
    (True, "nearest", False, "drop", "shared_clipped", "whole", "plain", 16, 45),
    (True, "nearest", False, "own", "shared_clipped", "left_padded_late", "rotated_half", 80, 33),
    (True, "nearest", False, "drop", "per_head", "packed", "rotated", 16, 21),
]


def test_every_pair_of_options_meets_in_some_case() -> None:
    for (a, some), (b, others) in combinations(enumerate(OPTIONS), 2):
        assert {(case[a], case[b]) for case in COVER} == set(product(some, others))


@pytest.mark.parametrize(("causal", "order", "include_self", "remainder", "bias", "layout", "rotate", "d", "T"), COVER)
def test_values_and_gradients_are_those_of_the_product_formula(
    causal: bool, order: str, include_self: bool, remainder: str, bias: str, layout: str, rotate: str, d: int, T: int
) -> None:
    where = LAYOUTS[layout](T, causal)
    case = BIASES[bias](T) | ROTATIONS[rotate](T, d) | {"normalizer": Stick(order, include_self, remainder)}
    assert_equal_but_for_rounding(*drawn(case, where, d), where)


STICKS = [Stick(*case) for case in product(("nearest", "first"), (True, False), ("drop", "own"))]


@pytest.mark.covering
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("stick", STICKS)
def test_the_reference_is_the_product_formula(stick: Stick, causal: bool, layout: str) -> None:
    """So that both may judge the kernels."""
    where = LAYOUTS[layout](21, causal)
    inputs, options = drawn(
        BIASES["shared_clipped"](21) | ROTATIONS["rotated"](21, 6) | {"normalizer": stick}, where, 6
    )
    upstream = upstream_for(inputs, where)
    actual, expected = (
        run(attention, inputs, options, where, upstream, torch.float64) for attention in (by_reference, by_definition)
    )
    for name, exact in expected.items():
        assert rms(actual[name] - exact) <= 1e-14 * rms(exact), name


@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize(
    ("stick", "causal"),
    [(Stick("nearest", True), True), (Stick("nearest", False, "own"), False), (Stick("first", False), True)],
)
def test_sequences_of_a_few_tokens_are_right(stick: Stick, causal: bool, T: int) -> None:
    case = BIASES["per_head"](T) | {"normalizer": stick}
    assert_equal_but_for_rounding(*drawn(case, whole_layout(T, causal), 10), whole_layout(T, causal))


@pytest.mark.parametrize("table", [{"distance_bias": (1, 1), "clip": True}, {"distance_bias": (H, 81)}])
def test_a_table_may_be_shorter_and_longer_than_the_sequence(table: Case) -> None:
    where = whole_layout(21, causal=False)
    assert_equal_but_for_rounding(*drawn(table | {"normalizer": Stick("nearest", True, "own")}, where, 16), where)


def test_positions_need_not_run_on_where_no_table_is_read() -> None:
    """The places of the tokens order the stick."""
    T = 21
    skipping = Layout(3 * torch.arange(T)[None], torch.zeros(1, T).long(), causal=True).to(DEVICE)
    assert_equal_but_for_rounding(*drawn({"normalizer": Stick("nearest", False, "own")}, skipping, 16), skipping)


# -- numbers at the edge -----------------------------------------------------------------------------------------------

# down, side, include_self: what the sticks of `attend` come to
BROKEN = [
    (True, -1, True),
    (True, -1, False),
    (False, -1, True),
    (False, -1, False),
    (False, 0, True),
    (False, 0, False),
    (False, 1, False),
]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("down", "side", "include_self"), BROKEN)
def test_weights_and_what_is_left_add_up_to_one_at_logits_of_40(
    down: bool, side: int, include_self: bool, own: bool
) -> None:
    """Values that are one-hot show the weights; those of keys that take no part are zero."""
    T = 31
    anything = 80 * torch.rand(1, 2 * T - 1, device=DEVICE) - 40
    bias = torch.cat((anything, 40 * anything.sign(), torch.full_like(anything, 40), torch.full_like(anything, -40)))
    q, k = torch.randn(2, 1, len(bias), T, T, device=DEVICE)
    one_hot = torch.eye(T, device=DEVICE).expand_as(q)
    weights, left = stick_attention(q, k, one_hot, bias, None, T**-0.5, down, side, include_self, own)
    left = left.double().exp2()
    assert (weights >= 0).all()
    assert ((left >= 0) & (left <= 1)).all()
    back = torch.arange(T, device=DEVICE)[:, None] - torch.arange(T, device=DEVICE)
    takes_part = {-1: back > 0, 0: back != 0, 1: back < 0}[side] | ((back == 0) & (include_self or own))
    assert not weights[..., ~takes_part].any()
    assert (weights.double().sum(-1) + (0 if own else left) - 1).abs().max() <= 1e-6


@pytest.mark.parametrize("logit", [-12.0, -16.6])
def test_many_small_shares_add_up_and_leave_the_rest(logit: float) -> None:
    """One plus a share rounds: 1 + e^-16.6 is 1 in float32, but 127 such shares are 8e-6."""
    T = 127
    bias = torch.full((1, 2 * T - 1), logit, device=DEVICE)
    nothing = torch.zeros(1, 1, T, 16, device=DEVICE)
    out, left = stick_attention(nothing, nothing, nothing + 1, bias, None, 1.0, True, -1, True, False)
    leaves = torch.tensor(-logit, dtype=torch.float64).sigmoid() ** torch.arange(1, T + 1)
    taken, left = out[0, 0, :, 0].double().cpu(), left[0, 0].double().exp2().cpu()
    assert (taken - (1 - leaves)).abs().max() <= 1e-6
    assert (left - leaves).abs().max() <= 1e-6


EDGES = [
    (Stick("nearest", True, "drop"), True),
    (Stick("nearest", False, "own"), False),
    (Stick("first", False, "own"), False),
    (Stick("first", True, "drop"), True),
]


@pytest.mark.parametrize(("stick", "causal"), EDGES)
def test_logits_of_ten_thousand_are_right(stick: Stick, causal: bool) -> None:
    """And so are their gradients; some shares are one, some zero."""
    T = 21
    inputs, options = drawn({"distance_bias": (H, 2 * T - 1), "normalizer": stick}, whole_layout(T, causal), 16)
    inputs["distance_bias"] = 1e4 * inputs["distance_bias"].round().clamp(-1, 1)
    assert_equal_but_for_rounding(inputs, options, whole_layout(T, causal))


@pytest.mark.parametrize(("stick", "causal"), EDGES[:2])
def test_queries_and_keys_may_be_large(stick: Stick, causal: bool) -> None:
    """Gradients of logits are as small as what a share of one leaves."""
    T = 21
    inputs, options = drawn({"normalizer": stick}, whole_layout(T, causal), 16)
    inputs["q"] *= 128
    inputs["k"] *= 32
    assert float((inputs["q"] @ inputs["k"].mT).abs().max() / 4) > 1e4
    assert_equal_but_for_rounding(inputs, options, whole_layout(T, causal))


@pytest.mark.parametrize(("stick", "causal"), EDGES[:3])
def test_distances_may_be_shut_by_minus_infinity_and_given_all_by_plus_infinity(stick: Stick, causal: bool) -> None:
    """The reference's error is taken at 10^4, where shares are as much 0 and 1."""
    T = 25
    where = whole_layout(T, causal)
    inputs, options = drawn({"distance_bias": (H, 2 * T - 1), "normalizer": stick}, where, 16)
    inputs["distance_bias"][:, T : T + 9] = -torch.inf  # 1, ..., 9 back
    inputs["distance_bias"][0, : T - 9] = -torch.inf  # 9 ahead and more
    inputs["distance_bias"][1, [T - 5, T + 20]] = torch.inf  # 4 ahead, 21 back
    finite = inputs | {"distance_bias": inputs["distance_bias"].clamp(-1e4, 1e4)}
    upstream = upstream_for(inputs, where)
    truth = run(by_definition, inputs, options, where, upstream, torch.float64)
    judge = run(by_reference, finite, options, where, upstream, torch.float32)
    assert_errs_as_little(run(by_kernels, inputs, options, where, upstream, torch.float32), judge, truth)


# -- bfloat16 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stick", "causal", "layout", "bias", "rotate"),
    [
        (Stick("nearest", True, "drop"), True, "whole", "per_head", "rotated"),
        (Stick("nearest", False, "own"), True, "whole", "none", "plain"),
        (Stick("first", True, "drop"), True, "left_padded_late", "shared_clipped", "plain"),
        (Stick("nearest", True, "own"), False, "whole", "per_head", "plain"),
    ],
)
def test_it_errs_in_bfloat16_at_most_twice_as_much_as_the_reference(
    stick: Stick, causal: bool, layout: str, bias: str, rotate: str
) -> None:
    """Root mean square over the output, and over the gradients of every input, against float64."""
    T, d = 21, 24
    where = LAYOUTS[layout](T, causal)
    inputs, options = drawn(BIASES[bias](T) | ROTATIONS[rotate](T, d) | {"normalizer": stick}, where, d)
    inputs |= {name: inputs[name].bfloat16().double() for name in "qkv"}
    upstream = upstream_for(inputs, where).bfloat16().double()
    truth = run(by_definition, inputs, options, where, upstream, torch.float64)
    judge = run(by_reference, inputs, options, where, upstream, torch.bfloat16)
    got = run(by_kernels, inputs, options, where, upstream, torch.bfloat16)
    for name, exact in truth.items():
        error, reference_error = (rms(x[name] - exact) for x in (got, judge))
        assert 0 < error <= 2 * reference_error, f"{name} errs by {error}, the reference by {reference_error}"


def test_in_bfloat16_too_many_equal_shares_add_up_with_what_they_leave(with_blocks: Callable[..., set[str]]) -> None:
    """log2 (1 - beta) lies between two numbers of bfloat16: 127 of it in a tile would all be rounded the same way.

    Weights are rounded each on its own: four standard deviations of that.
    """
    with_blocks(128, 128)
    T, leave = 127, 2**-5 * (1 + 2**-8)
    bias = torch.full((1, 2 * T - 1), math.log(2**leave - 1), device=DEVICE)
    nothing = torch.zeros(1, 1, T, T, dtype=torch.bfloat16, device=DEVICE)
    one_hot = torch.eye(T, dtype=torch.bfloat16, device=DEVICE)[None, None]
    weights, left = (
        x.double() for x in stick_attention(nothing, nothing, one_hot, bias, None, 1.0, True, -1, True, False)
    )
    deviation = 2**-9 / 3**0.5 * weights.square().sum(-1).sqrt()
    assert ((weights.sum(-1) + left.exp2() - 1).abs() <= 4 * deviation).all()


# -- parts of the kernels ----------------------------------------------------------------------------------------------


@triton.jit
def shares_of(z, take, leave, SIZE: tl.constexpr, PARTS: tl.constexpr):
    at = tl.arange(0, SIZE)
    t, l = kernels._shares(tl.load(z + at), PARTS)  # noqa: E741
    tl.store(take + at, t)
    tl.store(leave + at, l)


@pytest.mark.parametrize(("parts", "bits"), [(3, 21.5), (2, 19)])
def test_the_logarithms_of_a_share_are_right_over_the_whole_range(parts: int, bits: float) -> None:
    """Relative to each: the polynomial's error, and roundings of 2^-24 in its last steps."""
    size = 2**15
    z = torch.cat((torch.linspace(-40, 40, size // 2), 2 ** torch.linspace(-30, 13, size // 4)))
    z = torch.cat((z, -(2 ** torch.linspace(-30, 13, size // 4)))).to(DEVICE)
    actual = torch.full((2, size), torch.nan, device=DEVICE)
    shares_of[(1,)](z, *actual, size, parts)
    exact = -torch.stack((torch.logaddexp2(-z.double(), 0 * z.double()), torch.logaddexp2(z.double(), 0 * z.double())))
    there = exact.abs() > 2.0**-120  # smaller ones may be zero on a GPU
    error = (actual.double() / exact - 1).abs()[there]
    assert error.isfinite().all()
    assert error.max() <= 2**-bits
    assert (actual[~there] <= 0).all()
    assert (actual[~there] >= -(2.0**-110)).all()


@pytest.mark.parametrize("parts", [2, 3])
def test_logits_of_infinity_take_all_or_nothing(parts: int) -> None:
    z = torch.tensor([math.inf, -math.inf, 3e38, -3e38], device=DEVICE)
    take, leave = actual = torch.full((2, 4), torch.nan, device=DEVICE)
    shares_of[(1,)](z, *actual, 4, parts)
    assert take.tolist()[::2] == [0, 0]
    assert leave.tolist() == pytest.approx([-1e30, 0, -1e30, 0], rel=1e-6, abs=0)
    assert (take[1::2] <= -1e30).all()


@triton.jit
def tokens_that_meet(segment, found, first, count, low, high, length, SIZE: tl.constexpr):
    at = first + tl.arange(0, SIZE)
    begin, end = kernels._range_of_segments(segment, tl.program_id(0).to(tl.int64), at, low, high, length)
    tl.store(found + 2 * tl.program_id(0), begin)
    tl.store(found + 2 * tl.program_id(0) + 1, end)


def test_tokens_of_other_documents_are_left_out_at_both_ends() -> None:
    """Of tokens whose segment lies between the least and the greatest of a block's, the first and the last."""
    T = 1100  # more than are read at a time
    rows = [[7] * 500 + [4] * 30 + [9] * 570, [PADDING] * 40 + [0] * 500 + [3] * 300 + [PADDING] * 260]
    segment = torch.tensor(rows, device=DEVICE)
    for first, (low, high) in product((0, 32, 480, 512, 528, 1072, 1088), ((0, T), (16, 1056), (600, 601))):
        actual = torch.full((2, 2), -1, dtype=torch.int64, device=DEVICE)
        tokens_that_meet[(2,)](segment, actual, first, 0, low, high, T, 16)
        for row, (begin, end) in zip(segment.cpu(), actual.tolist(), strict=True):
            own = row[first : first + 16]
            meets = ((row >= own.min()) & (row <= own.max())).nonzero()[:, 0]
            meets = meets[(meets >= low) & (meets < high)]
            expected = (int(meets[0]), int(meets[-1]) + 1) if len(meets) else (high, low)
            assert (begin, end) == expected


@pytest.mark.parametrize("axis", range(3), ids=["sequences", "heads", "tokens"])
def test_rows_may_lie_more_than_two_gigabytes_apart(axis: int) -> None:
    """Numbers of 3 sequences, heads or tokens that lie 2^30 apart: the last one's offset does not fit in 32 bits."""
    d = 16
    shape, strides = [1, 1, 2, d], [d, d, d, 1]
    shape[axis], strides[axis] = 3, 2**30
    far = torch.empty(2**31 + 2 * 2**30 + 2 * d, dtype=torch.bfloat16)  # most of it is never touched
    near = torch.randn(shape).bfloat16()
    apart = far.as_strided(shape, strides, 2**31)  # an offset that has wrapped around is inside too
    apart.copy_(near)
    bias = torch.randn(1, 2 * shape[2] - 1)
    how = (bias, None, 0.3, True, -1, True, True)
    actual, expected = (stick_attention(x, x, x, *how) for x in (apart, near))
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
    grad = torch.randn(shape).bfloat16()
    actual, expected = (
        stick_attention_backward(grad, left, True, x, x, x, *how)
        for x, (_, left) in ((apart, actual), (near, expected))
    )
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


# -- what must not matter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "m_keys", "stick", "causal"),
    [
        (16, 16, 64, Stick("nearest", True, "own"), True),
        (64, 16, 16, Stick("nearest", False, "own"), False),
        (16, 32, 16, Stick("first", False, "drop"), False),
        (32, 16, 32, Stick("first", False, "own"), True),
        (32, 64, 16, Stick("nearest", True, "drop"), False),
        (64, 64, 32, Stick("nearest", False, "drop"), True),
    ],
)
def test_blocks_change_the_result_within_rounding_only(
    m: int, n: int, m_keys: int, stick: Stick, causal: bool, with_blocks: Callable[..., set[str]]
) -> None:
    kernels = with_blocks(m, n, stick_backward_keys=(m_keys, 128))
    inputs, options = drawn({"distance_bias": (H, 89), "normalizer": stick}, whole_layout(45, causal), 16)
    assert_equal_but_for_rounding(inputs, options, whole_layout(45, causal))
    assert {"stick_forward", "stick_backward_queries", "stick_backward_keys"} <= kernels


@pytest.mark.parametrize(
    ("stick", "causal"),
    [
        (Stick("nearest", True, "drop"), True),
        (Stick("nearest", False, "own"), False),
        (Stick("first", True, "own"), False),
    ],
)
def test_marks_held_a_few_queries_at_a_time_change_the_result_within_rounding_only(
    stick: Stick, causal: bool, with_blocks: Callable[..., set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks of 32 queries, and one of 6."""
    with_blocks(32, 32)
    monkeypatch.setattr(stick_operators, "CHUNK_QUERIES", 32)
    where = whole_layout(70, causal)
    assert_equal_but_for_rounding(*drawn({"distance_bias": (H, 139), "normalizer": stick}, where, 16), where)


# -- to the bit --------------------------------------------------------------------------------------------------------


def bits(given: Given, options: Case, layout: Layout, wanted: str | None = None) -> dict[str, Tensor]:
    """The output and the gradients of its weighted sum; of one input only, if it is named."""
    inputs = {name: x.detach().requires_grad_(wanted in (None, name)) for name, x in given.items()}
    out = by_kernels(*(inputs[name] for name in "qkv"), terms_of(inputs, options), layout)
    upstream = torch.arange(out.numel(), device=out.device).view_as(out).cos()
    differentiable = {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(out, list(differentiable.values()), upstream)
    return {"out": out.detach(), **dict(zip(differentiable, gradients, strict=True))}


def assert_same_bits(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, x in got.items():
        assert x.isfinite().all(), name
        assert torch.equal(x, expected[name]), name


@pytest.fixture(scope="module")
def several() -> tuple[Given, Case, Layout]:
    torch.manual_seed(1)
    layout = layout_of([[0] * 12 + [1] * 9], causal=True)
    case = BIASES["per_head"](21) | ROTATIONS["rotated"](21, 16) | {"normalizer": Stick("nearest", True, "own")}
    inputs, options = drawn(case, layout, 16)
    return {name: x.float() for name, x in inputs.items()}, options, layout


@pytest.fixture(scope="module")
def expected(several: tuple[Given, Case, Layout]) -> dict[str, Tensor]:
    return bits(*several)


def test_the_same_inputs_give_the_same_bits(several, expected) -> None:
    assert_same_bits(bits(*several), expected)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "distance_bias"])
def test_a_gradient_does_not_depend_on_which_others_are_asked_for(wanted: str, several, expected) -> None:
    got = bits(*several, wanted)
    assert got.keys() == {"out", wanted}
    assert_same_bits(got, expected)


def test_strides_of_the_inputs_do_not_matter(several, expected) -> None:
    """Numbers of the last axis lie apart in one case; in the other, queries, keys and values in one projection."""
    inputs, options, layout = several
    apart = {name: inputs[name].mT.contiguous().mT for name in ("q", "k", "v", "distance_bias")}
    assert not any(x.is_contiguous() for x in apart.values())
    assert_same_bits(bits(inputs | apart, options, layout), expected)
    projected = torch.stack([inputs[name] for name in "qkv"]).permute(1, 3, 0, 2, 4).contiguous()
    q, k, v = projected.permute(2, 0, 3, 1, 4)
    assert not q.is_contiguous()
    assert_same_bits(bits(inputs | {"q": q, "k": k, "v": v}, options, layout), expected)


def test_inputs_and_the_upstream_gradient_may_be_expanded() -> None:
    T, d = 21, 16
    q, k, v = torch.randn(3, 1, 1, T, d, device=DEVICE).expand(3, 1, H, T, d).detach().requires_grad_()
    bias = torch.randn(1, 2 * T - 1, device=DEVICE).expand(H, -1).detach().requires_grad_()
    terms = Terms(distance_bias=bias, normalizer=Stick("nearest", False, "own"))
    out = by_kernels(q, k, v, terms, whole_layout(T, causal=True))
    (upstream,) = torch.autograd.grad(out.sum(), out, retain_graph=True)
    assert upstream.stride() == (0, 0, 0, 0)
    got = torch.autograd.grad(out.sum(), (q, k, v, bias))
    compact = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in (q, k, v, bias)]
    again = by_kernels(
        *compact[:3], Terms(distance_bias=compact[3], normalizer=terms.normalizer), whole_layout(T, causal=True)
    )
    assert torch.equal(out, again)
    expected = torch.autograd.grad(again, compact, upstream.contiguous())
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


def test_autocast_changes_nothing(several, expected) -> None:
    with torch.autocast(DEVICE, torch.bfloat16):
        assert_same_bits(bits(*several), expected)


# -- as operators of PyTorch -------------------------------------------------------------------------------------------


def small(dtype: torch.dtype = torch.float32) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """q, k and v of one projection; a bias whose distances lie apart; segments."""
    qkv = torch.randn(1, 5, 3, H, 8, dtype=dtype, device=DEVICE).permute(2, 0, 3, 1, 4).unbind()
    return qkv, torch.randn(9, H, device=DEVICE).mT, torch.tensor([[0, 0, 0, 1, 1]], device=DEVICE)


@pytest.mark.parametrize(("full", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_the_operators_keep_to_what_pytorch_asks_of_one(full: bool, dtype: torch.dtype) -> None:
    qkv, bias, segment = small(dtype)
    inputs = (*(x.requires_grad_() for x in qkv), bias.requires_grad_() if full else None, segment if full else None)
    how = (0.3, True, -1, True, full)
    torch.library.opcheck(stick_attention, (*inputs, *how))
    out, left = stick_attention(*inputs, *how)
    assert out.requires_grad
    assert not left.requires_grad
    grad, *saved = [x if x is None else x.detach() for x in (torch.randn_like(out), *inputs)]
    torch.library.opcheck(
        stick_attention_backward, (grad, left, full, *saved, *how), test_utils=("test_schema", "test_faketensor")
    )


def test_the_compiler_sees_through_it() -> None:
    qkv, bias, segment = small()
    leaves = [x.requires_grad_() for x in (*qkv, bias)]

    def step(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        out, _ = stick_attention(2 * q, k, v, bias.sin(), segment, 0.3, True, -1, False, True)
        return out.square().sum()

    expected = step(*leaves)
    got = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves)
    assert torch.equal(got, expected)
    pairs = zip(torch.autograd.grad(got, leaves), torch.autograd.grad(expected, leaves), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


# -- what is refused ---------------------------------------------------------------------------------------------------

LINE = Layout.of_lengths(torch.tensor([9]), 9, causal=True).to(DEVICE)
SKIPPING = replace(LINE, pos=2 * LINE.pos)
GRID = Layout.of_lengths(torch.tensor([9]), 9, causal=True, grid_width=3).to(DEVICE)
TABLE = torch.zeros(1, 41, device=DEVICE)
NO_PLACE = "the kernels of stick-breaking have no place for {}"
TOO_MANY = "the kernels have no place for {}, which needs T x T numbers"
NOT_ONE_BY_ONE = (
    "the kernels read distance_bias by the distance in the sequence, and these positions do not run on by one"
)


@pytest.mark.parametrize(
    ("term", "layout", "dropout", "reason"),
    [
        ({"logit_factors": TABLE}, LINE, None, NO_PLACE.format("logit_factors")),
        ({"decay": torch.zeros(1, 1, 9, device=DEVICE)}, LINE, None, NO_PLACE.format("decay")),
        ({}, LINE, Dropout(0.1, torch.tensor(0, device=DEVICE)), "the kernels of stick-breaking drop no weights"),
        ({"content_bias": nn.Identity()}, LINE, None, TOO_MANY.format("content_bias")),
        ({"pair_bias": torch.zeros(1, 1, 9, 9, device=DEVICE)}, LINE, None, TOO_MANY.format("pair_bias")),
        ({"relative_values": torch.zeros(1, 41, 16, device=DEVICE)}, LINE, None, TOO_MANY.format("relative_values")),
        ({"distance_bias": TABLE}, SKIPPING, None, NOT_ONE_BY_ONE),
    ],
)
def test_what_it_cannot_compute_is_refused_in_one_line(
    term: dict[str, object], layout: Layout, dropout: Dropout | None, reason: str
) -> None:
    q, terms = torch.zeros(1, 1, 9, 16, device=DEVICE), Terms(normalizer=Stick(), **term)
    says = f"^attention=triton cannot compute this: {reason}; use attention=auto, which takes reference$"
    for refuse in (
        lambda: resolve("triton", q, terms, layout, dropout),
        lambda: attend(q, q, q, terms, layout, "triton", dropout),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            refuse()
        assert "\n" not in str(caught.value)


def test_every_stick_is_taken_where_nothing_is_in_its_way() -> None:
    q = torch.zeros(1, 1, 9, 16, device=DEVICE)
    for stick, layout in product(STICKS, (LINE, SKIPPING, GRID)):
        assert resolve("triton", q, Terms(gain=torch.ones(1, 16), normalizer=stick), layout) == "triton"
    assert resolve("triton", q, Terms(distance_bias=TABLE, normalizer=Stick()), LINE) == "triton"


# -- in training -------------------------------------------------------------------------------------------------------

VOCABULARY, LENGTH = 11, 17


def model_of(pe: str, causal: bool, implementation: str, dtype: torch.dtype) -> Transformer:
    encoding = hydra.utils.instantiate(expand_overrides([f"pe={pe}"], False)[0].pe)
    sizes = {"depth": 2, "width": 32, "num_heads": H, "mlp_ratio": 2}
    config = Model(**sizes, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False)
    model = Transformer(config, encoding, Task(VOCABULARY, LENGTH, VOCABULARY, causal), implementation)
    initialise_parameters(model, seed=0)
    return model.to(DEVICE, dtype)


def training(model: Transformer) -> Iterator[Given]:
    """The loss and all gradients of two steps of Adam, in float64."""
    layout = model.task.layout(torch.tensor([LENGTH if model.task.causal else 13]), LENGTH).to(DEVICE)
    draw = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCABULARY, (2, 1, LENGTH), generator=draw).to(DEVICE)
    targets[layout.segment == PADDING] = IGNORE
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens, layout).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        loss.backward()
        yield {"loss": loss.detach().double()} | {name: p.grad.double() for name, p in model.named_parameters()}
        optimizer.step()


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The logits of every layer that the reference computes in float64, with their gradients."""
    results: list[Tensor] = []
    compute = reference.logits

    def kept(*inputs: Any) -> Tensor:
        z = compute(*inputs)
        if z.dtype == torch.float64 and z.requires_grad:
            z.retain_grad()
            results.append(z)
        return z

    monkeypatch.setattr(reference, "logits", kept)
    return results


def absolute_terms(model: Transformer, logits: list[Tensor]) -> Given:
    """The sums of the absolute terms of the gradients of lambda: a pair's distance times the gradient of its logit."""
    place = torch.arange(LENGTH, device=DEVICE)
    raw = {name: p for name, p in model.named_parameters() if name.endswith("raw")}
    sums = [(z.grad * (place[:, None] - place)).abs().sum() for z in logits if z.grad is not None]
    return {name: p.detach().sigmoid() * one for (name, p), one in zip(raw.items(), sums, strict=False)}


def compared_steps(pe: str, causal: bool, logits: list[Tensor]) -> tuple[Given, Given, Given, Given]:
    """Losses and gradients of two steps by the kernels, of each by the reference in float32 and 64, absolute terms."""
    model = model_of(pe, causal, "triton", torch.float32)
    single, exact = (model_of(pe, causal, "reference", dtype) for dtype in (torch.float32, torch.float64))
    steps: list[list[Given]] = [[], [], [], []]
    for step in training(model):
        steps[0].append(step)
        for judge, actual in zip((single, exact), steps[1:], strict=False):
            judge.load_state_dict(model.state_dict())
            logits.clear()
            actual.append(next(training(judge)))
        steps[3].append(absolute_terms(exact, logits))
    got, judge, truth, terms = (
        {name: torch.stack([step[name] for step in actual]) for name in actual[0]} for actual in steps
    )
    assert len(terms) == (2 if pe.startswith("rse") else 0)
    return got, judge, truth, terms


@pytest.mark.parametrize(
    ("pe", "causal"), [("rse", True), ("rse_literal", True), ("stick_breaking", True), ("rse", False)]
)
def test_training_follows_the_reference_within_rounding(
    pe: str, causal: bool, logits: list[Tensor], with_blocks: Callable[..., set[str]]
) -> None:
    """The losses, step by step; and the gradients of all weights, lambda among them, wherever it has come to."""
    with_blocks(32, 32)
    got, *others = compared_steps(pe, causal, logits)
    assert_errs_as_little(got, *others)
    judges = (model_of(pe, causal, "reference", dtype) for dtype in (torch.float32, torch.float64))
    own, truth = ({"loss": torch.stack([step["loss"] for step in training(judge)])} for judge in judges)
    assert_errs_as_little({"loss": got["loss"]}, own, truth)


@pytest.mark.parametrize(
    "planted", ["1.0001 * dz", "dz.to(tl.bfloat16).to(tl.float32)", "tl.where(i - j == 16, 0.0, dz)"]
)
def test_an_error_in_the_gradient_of_lambda_is_seen(
    planted: str,
    logits: list[Tensor],
    with_blocks: Callable[..., set[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel whose terms are off by 1e-4, have 8 bits, or lack the farthest pair."""
    text = Path(kernels.__file__).read_text(encoding="utf-8")
    assert text.count("sums += dz\n") == 1
    (tmp_path / "planted.py").write_text(text.replace("sums += dz\n", f"sums += {planted}\n"))
    spec = spec_from_file_location("planted", tmp_path / "planted.py")
    mutant = module_from_spec(spec)
    spec.loader.exec_module(mutant)
    with_blocks(32, 32)
    monkeypatch.setattr(stick_operators, "stick", mutant)
    steps = compared_steps("rse", True, logits)
    with pytest.raises(AssertionError, match="raw errs by"):
        assert_errs_as_little(*steps)
