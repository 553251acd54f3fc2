"""The kernels of softmax attention compute what the reference does in float64: values and every gradient."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from helpers.layouts import layout_of
from pe_lab.attention import IMPLEMENTATIONS, attend, resolve
from pe_lab.attention.dropout import Dropout
from pe_lab.attention.triton import operators
from pe_lab.config import Model
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms
from pe_lab.model.blocks import MultiHeadAttention

pytestmark = [
    pytest.mark.slow,
    # of the interpreter, in rows of a tile that are beyond the sequence, or that see nothing
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, H = 2, 2
SEED = 2**32 - 5
Given = dict[str, Tensor]


def rand(*shape: int) -> Tensor:
    """float64 numbers that float32 has too."""
    return torch.randn(shape).double().to(DEVICE)


# -- what an encoding may ask for: shapes are those of tensors to draw, the rest is given as it is ---------------------

Case = dict[str, object]
CASES: dict[str, Callable[[int, int], Case]] = {
    "nothing": lambda T, d: {},
    "scale": lambda T, d: {"scale": 0.4},
    "bias_per_head": lambda T, d: {"distance_bias": (H, 2 * T - 1)},
    "bias_shared": lambda T, d: {"distance_bias": (1, 2 * T - 1)},
    "bias_clipped": lambda T, d: {"distance_bias": (H, 2 * (T // 3) + 1), "clip": True},
    "bias_of_one_number": lambda T, d: {"distance_bias": (1, 1), "clip": True},
    "bias_beyond_the_length": lambda T, d: {"distance_bias": (H, 2 * T + 39)},
    "logit_factors": lambda T, d: {"logit_factors": (H, 2 * T - 1)},
    "gate_and_bias": lambda T, d: {
        "logit_factors": (1, 2 * T - 1), "distance_bias": (H, 9), "clip": True, "scale": 0.3,
    },
    "decay": lambda T, d: {"decay": (B, H, T)},
    "rotary": lambda T, d: {"cos": (1, 1, T, d // 2), "sin": (1, 1, T, d // 2)},
    "rotary_half_per_head": lambda T, d: {"cos": (1, H, T, d // 2), "sin": (1, H, T, d // 2), "pairing": "half"},
    "rotary_per_sequence": lambda T, d: {"cos": (B, 1, T, d // 2), "sin": (B, 1, T, d // 2)},
    "rotary_for_queries_and_keys_apart": lambda T, d: {
        f"{name}_{side}": (1, H, T, d // 2) for name, side in product(("cos", "sin"), "qk")
    },
    "gain": lambda T, d: {"gain": (H, d)},
    "gain_after_rotary": lambda T, d: {"gain": (1, d), "cos": (B, H, T, d // 2), "sin": (B, H, T, d // 2)},
    "rotary_in_a_projection": lambda T, d: {"cos": (B, T, H, d // 2), "sin": (B, T, H, d // 2), "heads_together": True},
    "dropout": lambda T, d: {"p": 0.3},
    "window": lambda T, d: {"window": (T // 3 + 1,)},
    "window_of_one": lambda T, d: {"window": (1,)},
    "window_per_head": lambda T, d: {"window": (None, 7), "distance_bias": (H, 2 * T - 1)},
    "window_and_all": lambda T, d: {
        "window": (T // 2 + 1, 18), "distance_bias": (1, 9), "logit_factors": (H, 2 * T - 1), "clip": True,
        "decay": (B, H, T), "p": 0.2,
    },
    "several": lambda T, d: {
        "cos": (B, H, T, d // 2), "sin": (B, H, T, d // 2), "pairing": "half", "gain": (H, d), "scale": 0.2,
        "distance_bias": (H, 2 * T - 1), "logit_factors": (H, 2 * (T // 2) + 1), "clip": True,
        "decay": (B, H, T), "p": 0.2,
    },
}  # fmt: skip


def drawn(case: Case, T: int, d: int) -> tuple[Given, Case]:
    """q, k, v and the tables, and what is not a tensor."""
    tables = {name: rand(*shape) for name, shape in case.items() if isinstance(shape, tuple) and name != "window"}
    if "heads_together" in case:
        tables = {name: table.transpose(1, 2) for name, table in tables.items()}
    q, k, v = rand(3, B, H, T, d)
    return {"q": q, "k": k, "v": v, **tables}, {name: x for name, x in case.items() if name not in tables}


def terms_of(given: Given, options: Case) -> Terms:
    def rotary(side: str) -> Rotary | None:
        cos, sin = (given.get(f"{name}_{side}", given.get(name)) for name in ("cos", "sin"))
        return None if cos is None else Rotary(cos, sin, options.get("pairing", "interleaved"))

    tables = {name: given[name] for name in ("distance_bias", "logit_factors", "decay", "gain") if name in given}
    options = {name: options[name] for name in ("scale", "clip", "window") if name in options}
    return Terms(rotary_q=rotary("q"), rotary_k=rotary("k"), **tables, **options)


def dropout_of(options: Case) -> Dropout | None:
    return Dropout(options["p"], torch.tensor(SEED, device=DEVICE)) if "p" in options else None


# -- where the tokens are --------------------------------------------------------------------------------------------


def whole_layout(T: int, causal: bool) -> Layout:
    return Layout.of_lengths(torch.full((B,), T), T, causal).to(DEVICE)


# every batch shows two kinds of sequences
LAYOUTS: dict[str, Callable[[int, bool], Layout]] = {
    "whole": whole_layout,
    "right_padded_and_empty": lambda T, causal: layout_of(
        [[0] * (T - T // 3) + [PADDING] * (T // 3), [PADDING] * T], causal
    ),
    "left_padded_late_and_packed": lambda T, causal: layout_of(
        [
            [PADDING] * (T // 3) + [0] * (T - T // 3),
            [7] * (T // 2) + [4] + [9] * (T // 4) + [PADDING] * (T - 1 - T // 2 - T // 4),
        ],
        causal,
        late=1000,
    ),
}


def token_mask(layout: Layout) -> Tensor:
    """[B, 1, T, 1] tokens that count."""
    return (layout.segment != PADDING)[:, None, :, None]


# -- running, and judging ----------------------------------------------------------------------------------------------


def run(
    implementation: str, given: Given, options: Case, layout: Layout, upstream: Tensor, dtype: torch.dtype
) -> Given:
    """The output where tokens count, and the gradient of every input, all float64."""
    wide = torch.promote_types(dtype, torch.float32)
    inputs = {name: x.to(dtype if name in "qkv" else wide, copy=True).requires_grad_() for name, x in given.items()}
    q, k, v = (inputs[name] for name in "qkv")
    out = IMPLEMENTATIONS[implementation].attend(q, k, v, terms_of(inputs, options), layout, dropout_of(options))
    assert out.dtype == dtype
    assert out.isfinite().all()  # padding included
    gradients = torch.autograd.grad(out, list(inputs.values()), upstream.to(dtype))
    named = {"out": out.detach() * token_mask(layout), **dict(zip(inputs, gradients, strict=True))}
    return {name: x.double() for name, x in named.items()}


def upstream_for(given: Given, layout: Layout) -> Tensor:
    """Random, and zero where tokens do not count."""
    return rand(*given["q"].shape) * token_mask(layout)


def assert_equal_but_for_rounding(given: Given, options: Case, layout: Layout, largest_logit: float = 0.0) -> None:
    """In float32, every result errs by no more than four times what the reference does, and what sums of d products do.

    A logit of size z is rounded by 2^-24 z, what is subtracted from it likewise, and weights by as much of themselves.
    """
    upstream = upstream_for(given, layout)
    truth = run("reference", given, options, layout, upstream, torch.float64)
    judge = run("reference", given, options, layout, upstream, torch.float32)
    got = run("triton", given, options, layout, upstream, torch.float32)
    size = max(float(x[x.isfinite()].abs().max()) for x in (*truth.values(), *given.values(), upstream))
    for name, exact in truth.items():
        assert got[name].shape == exact.shape, name
        error, reference_error = (float((x[name] - exact).abs().max()) for x in (got, judge))
        floor = 2**-24 * (given["q"].shape[-1] * size + 2 * largest_logit * float(exact.abs().max()))
        assert error <= 4 * reference_error + floor, f"{name} errs by {error}, the reference by {reference_error}"


# every case with every layout and both masks, but that what is done before attention takes one; sizes alternate
BEFORE = {name for name, case in CASES.items() if {"cos", "cos_q", "gain"} & set(case(3, 2)) and name != "several"}
COVER = [
    pytest.param(case, layout, (i + n) % 2 == 0, (33, 63, 45)[(i + 2 * n) % 3], (16, 24, 80, 128)[(i // 2 + n) % 4])
    for (i, case), (n, layout) in product(enumerate(CASES), enumerate(LAYOUTS))
    if case not in BEFORE or i % len(LAYOUTS) == n
]


@pytest.mark.parametrize(("case", "layout", "causal", "T", "d"), COVER)
def test_values_and_gradients_are_those_of_the_reference(case: str, layout: str, causal: bool, T: int, d: int) -> None:
    inputs, options = drawn(CASES[case](T, d), T, d)
    assert_equal_but_for_rounding(inputs, options, LAYOUTS[layout](T, causal))


@pytest.mark.covering
@pytest.mark.parametrize(("T", "causal"), [(1, True), (2, False)])
@pytest.mark.parametrize("case", CASES)
def test_sequences_of_a_few_tokens_are_right(case: str, T: int, causal: bool) -> None:
    assert_equal_but_for_rounding(*drawn(CASES[case](T, 10), T, 10), whole_layout(T, causal))


def test_a_head_of_one_dim_is_right() -> None:
    T = 20
    assert_equal_but_for_rounding(
        *drawn({"distance_bias": (H, 2 * T - 1), "gain": (H, 1)}, T, 1), whole_layout(T, causal=True)
    )


def test_a_table_covers_no_more_than_the_longest_document() -> None:
    layout = layout_of([[0] * 12 + [1] * 13 + [2] * 8, [3] * 13 + [PADDING] * 20], causal=False)
    assert_equal_but_for_rounding(*drawn({"distance_bias": (H, 25), "logit_factors": (1, 25)}, 33, 16), layout)


def test_positions_need_not_run_on_where_no_table_is_read() -> None:
    T = 33
    layout = Layout(3 * torch.arange(T)[None], torch.zeros(B, T).long(), causal=True).to(DEVICE)
    assert_equal_but_for_rounding(*drawn({"decay": (B, H, T)}, T, 16), layout)


# -- numbers at the edge -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of weights that a mask then makes zero
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(("layout", "causal"), [("whole", False), ("left_padded_late_and_packed", True)])
def test_logits_of_ten_thousand_are_right(layout: str, causal: bool) -> None:
    inputs, options = drawn({"distance_bias": (H, 89)}, 45, 16)
    inputs["q"] *= 128
    inputs["k"] *= 32
    largest = float((inputs["q"] @ inputs["k"].transpose(-2, -1)).abs().max() / 4)
    assert largest > 1e4
    assert_equal_but_for_rounding(inputs, options, LAYOUTS[layout](45, causal), largest)


@pytest.mark.parametrize(("case", "causal"), [("bias_per_head", True), ("gate_and_bias", False)])
def test_distances_may_be_forbidden_by_minus_infinity(case: str, causal: bool) -> None:
    T = 45
    inputs, options = drawn(CASES[case](T, 16) | {"distance_bias": (H, 2 * T - 1)}, T, 16)
    inputs["distance_bias"][:, T + 1 : T + 30] = -torch.inf  # 2, ..., 30 back
    inputs["distance_bias"][0, : T - 4] = -torch.inf  # more than 3 ahead
    layout = LAYOUTS["left_padded_late_and_packed"](T, causal)
    assert_equal_but_for_rounding(inputs, options, layout)


@pytest.mark.parametrize("causal", [True, False])
def test_a_row_that_sees_nothing_is_nan_and_disturbs_no_other(causal: bool) -> None:
    T = 45
    inputs, _ = drawn({}, T, 16)
    bias = torch.zeros(H, 2 * T - 1, device=DEVICE)
    bias[0, T - 1 : T + 20] = -torch.inf  # itself, and 1, ..., 20 back
    bias[0, : T - 1] = -torch.inf
    q, k, v = (inputs[name].float() for name in "qkv")
    got, expected = (
        attend(q, k, v, Terms(distance_bias=bias), whole_layout(T, causal), name) for name in ("triton", "reference")
    )
    nothing = torch.arange(T) < 21
    assert got[:, 0, nothing].isnan().all()
    assert expected[:, 0, nothing].isnan().all()
    assert got[:, 0, ~nothing].isfinite().all()
    # sums of 16 products of numbers of size 4
    torch.testing.assert_close(got, expected, rtol=0, atol=16 * 4 * 2**-24, equal_nan=True)


# -- bfloat16 ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rounding_to_bfloat16")
@pytest.mark.parametrize(
    ("case", "layout", "causal"),
    [
        ("nothing", "whole", False),
        ("bias_per_head", "left_padded_late_and_packed", False),
        ("logit_factors", "right_padded_and_empty", True),
        ("decay", "whole", True),
        ("rotary_half_per_head", "right_padded_and_empty", False),
        ("gain_after_rotary", "whole", True),
        ("dropout", "left_padded_late_and_packed", True),
        ("several", "whole", False),
    ],
)
def test_it_errs_in_bfloat16_at_most_twice_as_much_as_the_reference(case: str, layout: str, causal: bool) -> None:
    """Root mean square over the output, and over the gradients of every input, against float64.

    Where one key has most of a row's weight, or many distances one entry, gradients nearly cancel: what is left is
    larger here, since the kernels take what a row's gradients have in common from the rounded output.
    """
    T, d = 45, 24
    inputs, options = drawn(CASES[case](T, d), T, d)
    inputs |= {name: inputs[name].bfloat16().double() for name in "qkv"}
    for name, near in {"distance_bias": 0, "logit_factors": 1, "gain": 1}.items():
        if name in inputs:
            inputs[name] = (near + inputs[name] / 4).float().double()
    layout = LAYOUTS[layout](T, causal)
    upstream = upstream_for(inputs, layout).bfloat16().double()
    truth = run("reference", inputs, options, layout, upstream, torch.float64)
    judge = run("reference", inputs, options, layout, upstream, torch.bfloat16)
    got = run("triton", inputs, options, layout, upstream, torch.bfloat16)
    for name, exact in truth.items():
        error, reference_error = (float((x[name] - exact).square().mean().sqrt()) for x in (got, judge))
        assert 0 < error <= 2 * reference_error, f"{name} errs by {error}, the reference by {reference_error}"


# -- what must not matter, to the bit ----------------------------------------------------------------------------------


def bits(given: Given, options: Case, layout: Layout, wanted: str | None = None) -> dict[str, Tensor]:
    """The output and the gradients of its weighted sum; of one input only, if it is named."""
    inputs = {name: x.detach().requires_grad_(wanted in (None, name)) for name, x in given.items()}
    q, k, v = (inputs[name] for name in "qkv")
    out = attend(q, k, v, terms_of(inputs, options), layout, "triton", dropout_of(options))
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
    T = 25
    inputs, options = drawn(CASES["several"](T, 16), T, 16)
    return {name: x.float() for name, x in inputs.items()}, options, LAYOUTS["left_padded_late_and_packed"](T, False)


@pytest.fixture(scope="module")
def expected(several: tuple[Given, Case, Layout]) -> dict[str, Tensor]:
    return bits(*several)


def test_the_same_inputs_give_the_same_bits(several, expected) -> None:
    assert_same_bits(bits(*several), expected)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "cos", "sin", "gain", "distance_bias", "logit_factors", "decay"])
def test_a_gradient_does_not_depend_on_which_others_are_asked_for(wanted: str, several, expected) -> None:
    got = bits(*several, wanted)
    assert got.keys() == {"out", wanted}
    assert_same_bits(got, expected)


def last_axis_apart(x: Tensor) -> Tensor:
    """Equal numbers, whose last axis is not the one that lies together."""
    return x.transpose(-2, -1).contiguous().transpose(-2, -1) if x.dim() > 1 else x


def test_strides_of_the_inputs_do_not_matter(several, expected) -> None:
    inputs, options, layout = several
    apart = {name: last_axis_apart(x) for name, x in inputs.items()}
    assert not any(x.is_contiguous() for x in apart.values())
    assert_same_bits(bits(apart, options, layout), expected)


def test_queries_keys_and_values_may_lie_in_one_projection() -> None:
    T, d = 33, 16
    sizes = {"depth": 1, "width": H * d, "num_heads": H, "mlp_ratio": 1, "norm": "pre"}
    attention = MultiHeadAttention(Model(**sizes)).to(DEVICE)
    h = torch.randn(B, T, H * d, device=DEVICE)
    q, k, v = (x.detach() for x in attention.project(h, h))
    assert not q.is_contiguous()
    inputs = {"q": q, "k": k, "v": v}
    compact = {name: x.contiguous() for name, x in inputs.items()}
    assert_same_bits(bits(inputs, {}, whole_layout(T, True)), bits(compact, {}, whole_layout(T, True)))


def test_inputs_may_be_expanded() -> None:
    T, d = 33, 16
    q, k, v = torch.randn(3, 1, 1, T, d, device=DEVICE).expand(3, B, H, T, d)
    bias, decay = torch.randn(1, 2 * T - 1, device=DEVICE), torch.randn(1, 1, T, device=DEVICE)
    inputs = {"q": q, "k": k, "v": v, "distance_bias": bias.expand(H, -1), "decay": decay.expand(B, H, -1)}
    compact = {name: x.contiguous() for name, x in inputs.items()}
    assert_same_bits(bits(inputs, {}, whole_layout(T, True)), bits(compact, {}, whole_layout(T, True)))


@pytest.mark.parametrize("reduce", [lambda out: out.sum(), lambda out: out.sum(2).cos().sum()])
def test_the_upstream_gradient_may_be_expanded(reduce: Callable[[Tensor], Tensor]) -> None:
    T, d = 33, 16
    q, k, v = torch.randn(3, B, H, T, d, device=DEVICE).requires_grad_()
    out = attend(q, k, v, Terms(), whole_layout(T, True), "triton")
    (upstream,) = torch.autograd.grad(reduce(out), out, retain_graph=True)
    assert 0 in upstream.stride()
    got = torch.autograd.grad(reduce(out), (q, k, v), retain_graph=True)
    expected = torch.autograd.grad(out, (q, k, v), upstream.contiguous())
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


@pytest.mark.parametrize(("m", "n"), [(16, 64), (64, 16), (32, 32)])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_change_the_result_within_rounding_only(
    m: int, n: int, causal: bool, with_blocks: Callable[..., set[str]]
) -> None:
    """At T = 130, tiles of all sizes are whole, cut by the mask, and cut by the length."""
    kernels = with_blocks(m, n, backward_tables=(m, m))
    T = 130
    inputs, options = drawn({"distance_bias": (1, 2 * T - 1)}, T, 16)
    single = {name: x[:1, :1] if name in "qkv" else x for name, x in inputs.items()}
    layout = Layout.of_lengths(torch.tensor([T]), T, causal).to(DEVICE)
    assert_equal_but_for_rounding(single, options, layout)
    assert kernels == {"forward", "backward_keys", "backward_queries", "backward_tables"}


# -- packed documents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", ["nothing", "bias_per_head"])
def test_documents_longer_than_a_tile_are_right(case: str, causal: bool) -> None:
    """Whole tiles of one document, tiles of two, a document that another interrupts, and padding on both sides."""
    T = 110
    packed = [0] * 20 + [3] * 65 + [1] * 20 + [PADDING] * 5
    interrupted = [PADDING] * 3 + [2] * 40 + [5] * 25 + [2] * 42 if case == "nothing" else [7] * T
    inputs, options = drawn(CASES[case](T, 16), T, 16)
    single = {name: x[:, :1] if name in "qkv" else x[:1] for name, x in inputs.items()}
    assert_equal_but_for_rounding(single, options, layout_of([packed, interrupted], causal))


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of NaN
@pytest.mark.parametrize("causal", [True, False])
def test_tiles_of_other_documents_are_not_computed(causal: bool) -> None:
    """What stands there is not read: NaN there changes neither values nor gradients of a document in whole tiles."""
    T, own = 96, slice(32, 64)
    layout = layout_of([[4] * 32 + [9] * 32 + [2] * 32], causal)
    given, options = drawn({"distance_bias": (1, 2 * T - 1)}, T, 16)
    given = {name: x[:1, :1] if name in "qkv" else x for name, x in given.items()}
    results = []
    for elsewhere in (0.0, torch.nan):
        inputs = {name: x.float() for name, x in given.items()}
        for name in "qkv":
            kept = inputs[name][:, :, own].clone()
            inputs[name] = torch.full_like(inputs[name], elsewhere)
            inputs[name][:, :, own] = kept
            inputs[name].requires_grad_()
        out = attend(*(inputs[name] for name in "qkv"), terms_of(inputs, options), layout, "triton")[:, :, own]
        gradients = torch.autograd.grad(out.square().sum(), [inputs[name] for name in "qkv"])
        results.append([out.detach(), *(x[:, :, own] for x in gradients)])
    for clean, beside_nan in zip(*results, strict=True):
        assert clean.isfinite().all()
        assert clean.any()
        assert torch.equal(clean, beside_nan)


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("m", "n"), [(32, 16), (16, 32)])
def test_windows_at_the_edges_of_tiles_are_right(
    m: int, n: int, causal: bool, with_blocks: Callable[..., set[str]]
) -> None:
    """Whole sequences have tiles without a mask, packed ones have documents that end within the window."""
    with_blocks(m, n, backward_tables=(m, m))
    T, d = 97, 16
    for window in ((18, 33), (49, 63)):  # 18: the last key of a tile is the first that a block sees
        given, options = drawn({"distance_bias": (1, 2 * T - 1), "window": window}, T, d)
        single = {name: x[:1] if name in "qkv" else x for name, x in given.items()}
        assert_equal_but_for_rounding(single, options, Layout.of_lengths(torch.tensor([T]), T, causal).to(DEVICE))
        packed = [0] * 50 + [3] * 30 + [0] * 12 + [PADDING] * 5 if m > n else [PADDING] * 7 + [2] * 90
        layout = replace(layout_of([packed], causal), pos=1000 + torch.arange(T, device=DEVICE)[None])
        assert_equal_but_for_rounding(single, options, layout)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of NaN
@pytest.mark.parametrize("causal", [True, False])
def test_what_lies_outside_of_the_window_is_not_read(causal: bool) -> None:
    """NaN there changes neither values nor gradients: of queries 64 ... 95, which see keys from 57 to 102."""
    T, window, own = 160, 8, slice(64, 96)
    near = slice(16, 144)  # whole tiles of these queries and keys, and whole tiles of what those see
    q, k, v, upstream = (x.float() for x in rand(4, 1, H, T, 16))
    results = []
    for elsewhere in (0.0, torch.nan):
        inputs = []
        for x in (q, k, v):
            leaf = torch.full_like(x, elsewhere)
            leaf[:, :, near] = x[:, :, near]
            inputs.append(leaf.requires_grad_())
        out = attend(*inputs, Terms(window=(window,)), Layout.whole(1, T, causal, device=DEVICE), "triton")[:, :, own]
        results.append([out.detach(), *torch.autograd.grad((out * upstream[:, :, own]).sum(), inputs)])
    for clean, beside_nan in zip(*results, strict=True):
        part = clean if clean.shape[2] == 32 else clean[:, :, own]
        assert part.isfinite().all()
        assert part.any()
        assert torch.equal(part, beside_nan if clean.shape[2] == 32 else beside_nan[:, :, own])


def test_no_limit_and_a_window_beyond_the_length_are_equal_to_the_bit(several, expected) -> None:
    inputs, options, layout = several
    for window in ((None,), (25, None), (2**70,)):
        assert_same_bits(bits(inputs, options | {"window": window}, layout), expected)


# -- the edges of integers and signs -----------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize(
    ("axis", "count", "apart"),
    [(0, 3, 2**30), (1, 3, 2**30), (2, 200, 2**24 - 16), (2, 3, 2**30)],
    ids=["sequences", "heads", "tokens", "tokens_of_a_tile"],
)
@pytest.mark.parametrize("name", ["q", "k", "v", "grad"])
def test_rows_may_lie_further_apart_than_32_bits_count(name: str, axis: int, count: int, apart: int) -> None:
    """Most of the memory between them is never touched."""
    d = 16
    shape, strides = [1, 1, 3, d], [d, d, d, 1]
    shape[axis], strides[axis] = count, apart
    inputs = dict(zip(("q", "k", "v", "grad"), torch.randn(4, *shape, device=DEVICE).bfloat16(), strict=True))
    far = torch.empty(2**31 + count * apart, dtype=torch.bfloat16, device=DEVICE)
    far = far.as_strided(shape, strides, 2**31)  # an offset that has wrapped around is inside too
    far.copy_(inputs[name])
    bias = rand(1, 2 * shape[2] - 1).float()

    def results(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        terms = (bias, None, None, None, None, None, 0.3, True, 0.0)
        out, lse = operators.softmax_attention(q, k, v, *terms)
        return out, *operators.softmax_attention_backward(grad, out, lse, [True, False], q, k, v, *terms)

    for actual, expected in zip(results(**inputs | {name: far}), results(**inputs), strict=True):
        assert expected.isfinite().all()
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("scale", [-0.4, 0.0])
def test_the_scale_may_be_negative_or_zero(scale: float) -> None:
    inputs, options = drawn({"scale": scale}, 45, 16)
    assert_equal_but_for_rounding(inputs, options, LAYOUTS["left_padded_late_and_packed"](45, True))


# -- what is refused ---------------------------------------------------------------------------------------------------

GRID = Layout.of_lengths(torch.tensor([9]), 9, causal=True, grid_width=3).to(DEVICE)
LINE = Layout.of_lengths(torch.tensor([9]), 9, causal=True).to(DEVICE)
SKIPPING = replace(LINE, pos=2 * LINE.pos)
TABLE = torch.zeros(1, 41, device=DEVICE)
NOT_ONE_BY_ONE = "the kernels read {} by the distance in the sequence, and these positions do not run on by one"


def queries(d: int = 16, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(1, 1, 9, d, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("q", "terms", "layout", "reason", "fallback"),
    [
        (queries(dtype=torch.float64), Terms(), LINE, "the kernels take float32 and bfloat16, got float64", "sdpa"),
        (queries(dtype=torch.float16), Terms(), LINE, "the kernels take float32 and bfloat16, got float16", "sdpa"),
        (queries(129), Terms(), LINE, "the kernels take a head_dim of at most 128, got 129", "sdpa"),
        (queries(257), Terms(), LINE, "the kernels take a head_dim of at most 128, got 257", "sdpa"),
        (
            queries(),
            Terms(content_bias=nn.Identity()),
            LINE,
            "the kernels have no place for content_bias, which needs T x T numbers",
            "reference",
        ),
        (
            queries(),
            Terms(pair_bias=torch.zeros(1, 1, 9, 9, device=DEVICE)),
            LINE,
            "the kernels have no place for pair_bias, which needs T x T numbers",
            "sdpa",
        ),
        (
            queries(),
            Terms(relative_values=torch.zeros(1, 41, 16, device=DEVICE)),
            LINE,
            "the kernels have no place for relative_values, which needs T x T numbers",
            "reference",
        ),
        (
            queries(),
            Terms(normalizer=Stick(), logit_factors=TABLE),
            LINE,
            "the kernels of stick-breaking have no place for logit_factors",
            "reference",
        ),
        (
            queries(),
            Terms(normalizer=Stick(), decay=torch.zeros(1, 1, 9, device=DEVICE)),
            LINE,
            "the kernels of stick-breaking have no place for decay",
            "reference",
        ),
        (
            queries(),
            Terms(normalizer=Stick(), window=(3,)),
            LINE,
            "the kernels of stick-breaking have no place for window",
            "reference",
        ),
        (queries(), Terms(distance_bias=TABLE), SKIPPING, NOT_ONE_BY_ONE.format("distance_bias"), "sdpa"),
        (queries(), Terms(window=(3,)), SKIPPING, NOT_ONE_BY_ONE.format("window"), "sdpa"),
        (queries(), Terms(logit_factors=TABLE), SKIPPING, NOT_ONE_BY_ONE.format("logit_factors"), "reference"),
    ],
)
def test_what_it_cannot_compute_is_refused_in_one_line(
    q: Tensor, terms: Terms, layout: Layout, reason: str, fallback: str
) -> None:
    says = f"^attention=triton cannot compute this: {reason}; use attention=auto, which takes {fallback}$"
    for refuse in (lambda: resolve("triton", q, terms, layout), lambda: attend(q, q, q, terms, layout, "triton")):
        with pytest.raises(ValueError, match=says) as caught:
            refuse()
        assert "\n" not in str(caught.value)


def test_dropout_with_stick_breaking_is_refused() -> None:
    says = "^attention=triton cannot compute this: the kernels of stick-breaking drop no weights; use attention=auto, "
    with pytest.raises(ValueError, match=says + "which takes reference$"):
        resolve("triton", queries(), Terms(normalizer=Stick()), LINE, Dropout(0.1, torch.tensor(0)))


@pytest.mark.covering
@pytest.mark.parametrize("layout", [LINE, SKIPPING, GRID])
@pytest.mark.parametrize(("d", "dtype"), [(1, torch.float32), (128, torch.bfloat16)])
def test_it_takes_both_dtypes_any_head_of_up_to_128_dims_and_any_positions_where_no_table_is_read(
    layout: Layout, d: int, dtype: torch.dtype
) -> None:
    decay = torch.zeros(1, 1, 9)
    assert resolve("triton", queries(d, dtype), Terms(decay=decay, gain=torch.ones(1, d)), layout) == "triton"


def test_a_cpu_is_refused_unless_the_interpreter_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    says = "^attention=triton cannot compute this: the kernels need a CUDA device, these tensors are on a CPU; use "
    with pytest.raises(ValueError, match=says + "attention=auto, which takes sdpa$"):
        resolve("triton", torch.zeros(1, 1, 9, 16), Terms(), LINE)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert resolve("triton", torch.zeros(1, 1, 9, 16), Terms(), LINE) == "triton"


@pytest.mark.parametrize(
    "terms", [Terms(), Terms(distance_bias=TABLE), Terms(logit_factors=TABLE), Terms(decay=torch.zeros(1, 1, 9))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_never_takes_the_interpreter(terms: Terms, dtype: torch.dtype) -> None:
    q = torch.zeros(1, 1, 9, 16, dtype=dtype)
    assert resolve("triton", q, terms, LINE) == "triton"
    assert resolve("auto", q, terms, LINE) == ("sdpa" if terms.logit_factors is None else "reference")


# -- which layouts need no segments, and which no positions ------------------------------------------------------------


@pytest.mark.parametrize(
    ("pos", "segment", "expected"),
    [
        ([[0, 1, 2, 3]], [[0, 0, 0, 0]], True),
        ([[0, 1, 2, 3]], [[0] * 4, [5] * 4], True),
        ([[9, 10, 11, 12], [0, 1, 2, 3]], [[0] * 4, [0] * 4], True),
        ([[0, 1, 0, 0]], [[0, 0, PADDING, PADDING]], True),
        ([[0, 0, 7, 8]], [[PADDING, PADDING, 0, 0]], True),
        ([[3, 3, 3, 3]], [[PADDING] * 4], True),
        ([[0, 1, 0, 1]], [[0, 0, 1, 1]], True),
        ([[0, 1, 2, 3]], [[0, 0, 1, 1]], True),
        ([[0, 5, 1, 2]], [[0, 1, 0, 0]], False),  # a document that another one interrupts
        ([[0, 5, 2, 3]], [[0, 1, 0, 0]], True),
        ([[0, 1, 0, 1]], [[0] * 4], False),
        ([[0, 2, 4, 6]], [[0] * 4], False),
        ([[0, 1, 2, 3], [0, 1, 2, 4]], [[0] * 4, [0] * 4], False),
        ([[3, 2, 1, 0]], [[0] * 4], False),
        ([[0]], [[0]], True),
        ([[[0, 0], [0, 1]]], [[0, 0]], False),  # on a grid
    ],
)
def test_positions_run_on_if_those_that_see_each_other_differ_as_their_places_do(
    pos: list, segment: list[list[int]], expected: bool
) -> None:
    assert Layout(torch.tensor(pos), torch.tensor(segment), causal=False).runs_on is expected


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ([[0, 0, 0], [0, 0, 0]], True),
        ([[4, 4, 4], [2, 2, 2]], True),
        ([[PADDING] * 3, [0] * 3], True),
        ([[0, 0, PADDING], [0, 0, 0]], False),
        ([[0, 0, 0], [PADDING, 0, 0]], False),
        ([[0, 0, 0], [0, 1, 1]], False),
        ([[0, 1, 0]], False),
        ([[3]], True),
    ],
)
def test_one_segment_means_that_every_token_sees_every_other(segment: list[list[int]], expected: bool) -> None:
    T = len(segment[0])
    layout = Layout(torch.arange(T)[None], torch.tensor(segment), causal=False)
    assert layout.one_segment is expected
    assert bool(layout.allowed.all()) is expected
