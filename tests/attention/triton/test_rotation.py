"""The kernels of rotation compute what the reference does in float64: values, and gradients of x, tables and gain."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from pe_lab.attention import reference
from pe_lab.attention.triton.rotation import MAX_MEMBERS, rotate
from pe_lab.encodings.terms import Rotary

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Given = dict[str, Tensor]


def rand(*shape: int) -> Tensor:
    """float64 numbers that float32 has too."""
    return torch.randn(shape).double().to(DEVICE)


def drawn(x: tuple[int, int, int, int], table: tuple[int, int], gain: int | None = None) -> Given:
    """x [B, H, T, d], tables for `table` sequences and heads, and gains for `gain` heads, if any."""
    *_, T, d = x
    inputs = {"x": rand(*x), "cos": rand(*table, T, d // 2), "sin": rand(*table, T, d // 2)}
    return inputs if gain is None else inputs | {"gain": rand(gain, d)}


def by_kernels(inputs: Given, pairing: str) -> Tensor:
    return rotate(inputs["x"], inputs["cos"], inputs["sin"], inputs.get("gain"), pairing == "half")


def by_reference(inputs: Given, pairing: str) -> Tensor:
    rotated = reference.rotate(inputs["x"], Rotary(inputs["cos"], inputs["sin"], pairing))
    return (rotated * inputs["gain"][:, None] if "gain" in inputs else rotated).to(inputs["x"].dtype)


def run(
    which: Callable[[Given, str], Tensor], given: Given, pairing: str, upstream: Tensor, dtype: torch.dtype
) -> Given:
    """The output and the gradient of every input."""
    wide = torch.promote_types(dtype, torch.float32)
    inputs = {name: x.to(dtype if name == "x" else wide, copy=True).requires_grad_() for name, x in given.items()}
    out = which(inputs, pairing)
    assert out.dtype == dtype
    gradients = torch.autograd.grad(out, list(inputs.values()), upstream.to(dtype))
    return {"out": out.detach(), **dict(zip(inputs, gradients, strict=True))}


def assert_equal_but_for_rounding(given: Given, pairing: str) -> None:
    """In float32, at most four times the error of the reference, and four roundings of the largest number."""
    upstream = rand(*given["x"].shape)
    truth = run(by_reference, given, pairing, upstream, torch.float64)
    judge = run(by_reference, given, pairing, upstream, torch.float32)
    got = run(by_kernels, given, pairing, upstream, torch.float32)
    for name, exact in truth.items():
        error, reference_error = (float((x[name].double() - exact).abs().max()) for x in (got, judge))
        assert exact.any(), name
        assert got[name].shape == exact.shape, name
        assert error <= 4 * reference_error + 2**-22 * float(exact.abs().max()), name


@pytest.mark.covering
@pytest.mark.parametrize("gain", [None, 1, 3])
@pytest.mark.parametrize("table", list(product((1, 2), (1, 3))))
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_rotation_is_that_of_the_reference(pairing: str, table: tuple[int, int], gain: int | None) -> None:
    assert_equal_but_for_rounding(drawn((2, 3, 33, 24), table, gain), pairing)


@pytest.mark.covering
@pytest.mark.parametrize("d", [2, 6, 24, 64, 128])
@pytest.mark.parametrize(("T", "pairing"), [(1, "half"), (32, "interleaved"), (45, "half"), (70, "interleaved")])
def test_any_length_and_any_even_head_will_do(T: int, d: int, pairing: str) -> None:
    assert_equal_but_for_rounding(drawn((2, 1, T, d), (1, 1), 1), pairing)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("batch", "heads", "table"),
    [
        (1, 16, (1, 1)),
        (1, 17, (1, 1)),
        (3, 7, (1, 1)),
        (3, 7, (3, 1)),
        (3, 7, (1, 7)),
        (18, 2, (1, 2)),
        (2, 17, (2, 1)),
    ],
)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_a_table_may_be_shared_by_more_than_one_program_sums_over(
    pairing: str, batch: int, heads: int, table: tuple[int, int]
) -> None:
    assert_equal_but_for_rounding(drawn((batch, heads, 5, 6), table, heads), pairing)


def test_more_than_members_share_a_table_above() -> None:
    assert MAX_MEMBERS == 16


# -- what must not matter, to the bit ----------------------------------------------------------------------------------


def bits(given: Given, pairing: str, wanted: str | None = None) -> Given:
    """The output and the gradients of its weighted sum; of one input only, if it is named."""
    inputs = {name: x.detach().requires_grad_(wanted in (None, name)) for name, x in given.items()}
    out = by_kernels(inputs, pairing)
    upstream = torch.arange(out.numel(), device=out.device).view_as(out).cos()
    differentiable = {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(out, list(differentiable.values()), upstream)
    return {"out": out.detach(), **dict(zip(differentiable, gradients, strict=True))}


def assert_same_bits(got: Given, expected: Given) -> None:
    for name, x in got.items():
        assert x.isfinite().all(), name
        assert torch.equal(x, expected[name]), name


def single(given: Given) -> Given:
    return {name: x.float() for name, x in given.items()}


@pytest.mark.parametrize(("wanted", "pairing"), list(product(("x", "cos", "sin", "gain"), ("interleaved", "half"))))
def test_a_gradient_does_not_depend_on_which_others_are_asked_for(wanted: str, pairing: str) -> None:
    inputs = single(drawn((2, 2, 40, 10), (1, 2), 2))
    got = bits(inputs, pairing, wanted)
    assert got.keys() == {"out", wanted}
    assert_same_bits(got, bits(inputs, pairing))


def test_the_same_inputs_give_the_same_bits() -> None:
    inputs = single(drawn((3, 7, 33, 6), (1, 1), 7))
    assert_same_bits(bits(inputs, "half"), bits(inputs, "half"))


def last_axis_apart(x: Tensor) -> Tensor:
    """Equal numbers, whose last axis is not the one that lies together."""
    return x.transpose(-2, -1).contiguous().transpose(-2, -1)


def heads_together(x: Tensor) -> Tensor:
    """Equal numbers, as a projection [B, T, H, d] has them."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize(
    ("name", "lay"),
    [
        ("both", last_axis_apart),
        ("both", heads_together),
        ("x", last_axis_apart),
        ("x", heads_together),
        ("cos", last_axis_apart),
        ("cos", heads_together),
        ("sin", last_axis_apart),
        ("sin", heads_together),
        ("gain", last_axis_apart),
    ],
)
def test_strides_do_not_matter(name: str, lay: Callable[[Tensor], Tensor]) -> None:
    inputs = single(drawn((2, 2, 40, 10), (2, 2), 2))
    apart = inputs | {table: lay(inputs[table]) for table in (("cos", "sin") if name == "both" else (name,))}
    assert not any(apart[table].is_contiguous() for table in apart if apart[table] is not inputs[table])
    assert_same_bits(bits(apart, "half"), bits(inputs, "half"))


def test_inputs_and_upstream_gradient_may_be_expanded() -> None:
    inputs = single(drawn((1, 1, 40, 10), (1, 1), 1))
    expanded = {
        "x": inputs["x"].expand(2, 3, -1, -1),
        "cos": inputs["cos"].expand(2, 3, -1, -1),
        "sin": inputs["sin"].expand(2, 3, -1, -1),
        "gain": inputs["gain"].expand(3, -1),
    }
    compact = {name: x.contiguous() for name, x in expanded.items()}
    assert_same_bits(bits(expanded, "half"), bits(compact, "half"))
    leaves = {name: x.detach().requires_grad_() for name, x in compact.items()}
    out = by_kernels(leaves, "half")
    (upstream,) = torch.autograd.grad(out.sum(), out, retain_graph=True)
    assert 0 in upstream.stride()
    got = torch.autograd.grad(out, list(leaves.values()), upstream, retain_graph=True)
    expected = torch.autograd.grad(out, list(leaves.values()), upstream.contiguous())
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


# -- bfloat16 ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rounding_to_bfloat16")
@pytest.mark.parametrize("gain", [None, 2])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_in_bfloat16_the_exact_number_is_rounded_once(pairing: str, gain: int | None) -> None:
    """x and its gradient; those of the tables stay float32, and are sums over sequences, heads and tokens."""
    inputs = drawn((2, 2, 45, 24), (1, 2), gain)
    inputs["x"] = inputs["x"].bfloat16().double()
    upstream = rand(*inputs["x"].shape).bfloat16().double()
    truth = run(by_reference, inputs, pairing, upstream, torch.float64)
    got = run(by_kernels, inputs, pairing, upstream, torch.bfloat16)
    factors = [float(x.abs().max()) for x in (inputs["x"], inputs["cos"], inputs["sin"], inputs.get("gain", upstream))]
    off = 2**-22 * max(factors) ** 3
    for name in ("out", "x"):
        low, high = ((truth[name] + side).bfloat16() for side in (-off, off))
        assert (low <= got[name]).all()
        assert (got[name] <= high).all()
        assert (low == high).double().mean() > 0.8  # elsewhere two numbers would do
    for name in inputs.keys() - {"x"}:
        assert got[name].dtype == torch.float32
        torch.testing.assert_close(got[name].double(), truth[name], rtol=0, atol=2 * 2 * 45 * off)
