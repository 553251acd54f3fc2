"""In bfloat16 every implementation is about as exact as the reference, however large a bias is."""

from collections.abc import Callable
from dataclasses import replace

import hydra
import pytest
import torch
from torch import Tensor

from helpers.configs import NAMES, pe_settings
from pe_lab.attention import IMPLEMENTATIONS, attend
from pe_lab.attention.selftest import INTERPRETER_FACTOR
from pe_lab.check.case import GRID_WIDTH, MAX_MARK, marked_layout, token_mask
from pe_lab.encodings.base import PositionalEncoding, UnfitError
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

B, H = 2, 2
# tables as training leaves them: softmax does not see a constant, so that nothing keeps them near 0
PUSHED = ("relative_bias", "t5", "tupe", "fire")
LENGTH = 49
BIASES: dict[str, Callable[[], Terms]] = {
    "high": lambda: Terms(distance_bias=torch.randn(H, 2 * LENGTH - 1) + 300),
    "low": lambda: Terms(distance_bias=torch.randn(H, 2 * LENGTH - 1) - 300),
    "high for some queries": lambda: Terms(
        pair_bias=torch.randn(1, H, LENGTH, LENGTH) + 300 * (torch.arange(LENGTH) % 2)[:, None]
    ),
}


def make_encoding(name: str, width: int, heads: int, length: int, causal: bool) -> PositionalEncoding:
    make = hydra.utils.instantiate(pe_settings(name))
    try:
        return make(Sizes(width, heads, length, causal, marks=MAX_MARK)).eval()
    except UnfitError:
        return make(Sizes(width, heads, length, causal, GRID_WIDTH, marks=MAX_MARK)).eval()


def in_float64(terms: Terms) -> Terms:
    """The same terms; of what a score computes, the reference is the judge."""

    def wider(value: object) -> object:
        if isinstance(value, Tensor):
            return value.double()
        if hasattr(value, "cos"):
            return replace(value, cos=value.cos.double(), sin=value.sin.double())
        return value

    return Terms(**{field: wider(value) for field, value in vars(terms).items() if not field.startswith("_")})


def errors(inputs: Tensor, terms: Terms, layout: Layout, *implementations: str) -> list[Tensor]:
    """Return the relative error of each implementation."""
    truth = attend(*inputs.double(), in_float64(terms), layout, "reference")
    kept = token_mask(layout)[:, None, :, None]
    actual = (attend(*inputs, terms, layout, which) for which in implementations)
    return [((x - truth) * kept).norm() / (truth * kept).norm() for x in actual]


@pytest.mark.covering
@pytest.mark.parametrize(("width", "causal"), [(64, True), (64, False), (768, True)])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_bfloat16_costs_an_encoding_no_more_than_twice_what_it_costs_the_reference(
    name: str, width: int, causal: bool
) -> None:
    length, heads = 129, max(H, width // 64)
    try:
        encoding = make_encoding(name, width, heads, length, causal)
    except UnfitError:
        assert not causal  # it is causal only
        return
    if name in PUSHED:
        for parameter in encoding.parameters():
            parameter += 3
    columns = GRID_WIDTH if encoding.on_grid else None
    layout = encoding.locate(marked_layout(Layout.whole(1, length, causal, columns)))
    terms = encoding.terms(torch.randn(1, length, width).bfloat16(), layout)
    inputs = torch.randn(3, 1, heads, length, width // heads).bfloat16()
    fit = [which for which in ("sdpa", "flex") if not IMPLEMENTATIONS[which].refusal_reason(inputs[0], terms, layout)]
    own, *others = errors(inputs, terms, layout, "reference", *fit)
    for implementation, error in zip(fit, others, strict=True):
        assert error <= 2 * own, implementation


@pytest.mark.parametrize(
    ("implementation", "size"),
    [(name, size) for name in ("sdpa", "flex", "triton") for size in BIASES if name == "sdpa" or "some" not in size],
)
@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_a_bias_that_is_large_for_every_key_costs_nothing(implementation: str, size: str, causal: bool) -> None:
    layout = Layout.of_lengths(torch.tensor([LENGTH, 30]), LENGTH, causal)
    inputs = torch.randn(3, B, H, LENGTH, 32).bfloat16()
    error, reference_error = errors(inputs, BIASES[size](), layout, implementation, "reference")
    assert error <= 2 * reference_error * (INTERPRETER_FACTOR if implementation == "triton" else 1)


@torch.no_grad()
def test_a_large_bias_costs_the_only_query_of_a_step_nothing() -> None:
    layout = Layout.whole(B, 64, True)
    last = replace(layout.last(1), keys=layout)
    q, (k, v) = torch.randn(B, H, 1, 32).bfloat16(), torch.randn(2, B, H, 64, 32).bfloat16()
    terms = Terms(distance_bias=torch.randn(H, 127) + 300)
    truth = attend(q.double(), k.double(), v.double(), in_float64(terms), last, "reference")
    error, reference_error = ((attend(q, k, v, terms, last, which) - truth).norm() for which in ("sdpa", "reference"))
    assert error <= 2 * reference_error


def test_the_gradient_of_a_large_bias_is_as_exact_as_that_of_the_reference() -> None:
    length, d = 64, 32
    layout, table = Layout.whole(B, length, True), torch.randn(H, 2 * length - 1) + 100
    inputs, upstream = torch.randn(3, B, H, length, d).bfloat16(), torch.randn(B, H, length, d)

    def gradient(dtype: torch.dtype, implementation: str) -> Tensor:
        bias = table.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        out = attend(*inputs.to(dtype), Terms(distance_bias=bias), layout, implementation)
        return torch.autograd.grad(out, bias, upstream.to(dtype))[0].double()

    truth = gradient(torch.float64, "reference")
    error, reference_error = ((gradient(torch.bfloat16, which) - truth).norm() for which in ("sdpa", "reference"))
    assert error <= 2 * reference_error
