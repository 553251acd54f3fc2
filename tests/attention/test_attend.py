"""Which implementation runs, and that it computes what the reference does."""

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pe_lab.attention import attend, resolve, sdpa
from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms

B, H, T, d = 3, 2, 63, 8
# sums of 63 products of numbers of size 10
EQUAL = {"rtol": 0, "atol": 1e-12}


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def rotary(pairing: str) -> Rotary:
    angle = torch.arange(T)[:, None] * 100.0 ** (-torch.arange(d // 2, dtype=torch.float64) / d)
    return Rotary(angle.cos()[None, None], angle.sin()[None, None], pairing)


def linear_bias() -> Tensor:
    return -torch.tensor([[0.5], [0.03]], dtype=torch.float64) * torch.arange(1 - T, T).abs()


SUPPORTED: dict[str, Callable[[], Terms]] = {
    "nothing": Terms,
    "rotary": lambda: Terms(rotary_q=rotary("interleaved"), rotary_k=rotary("interleaved")),
    "rotary_half": lambda: Terms(rotary_q=rotary("half"), rotary_k=rotary("half")),
    "gain_and_scale": lambda: Terms(gain=rand(H, d), scale=0.2),
    "linear_bias": lambda: Terms(distance_bias=linear_bias()),
    "distance_bias": lambda: Terms(distance_bias=rand(H, 2 * T - 1)),
    "bias_clipped": lambda: Terms(distance_bias=rand(1, 9), clip=True),
    "decay": lambda: Terms(decay=rand(B, H, T)),
    "pair_bias": lambda: Terms(pair_bias=rand(B, 1, T, T)),
    "several": lambda: Terms(
        rotary_q=rotary("half"), rotary_k=rotary("half"), distance_bias=rand(H, 2 * T - 1), pair_bias=rand(1, H, T, T)
    ),
}
REFUSED = {
    "stick": Terms(normalizer=Stick()),
    "logit_factors": Terms(logit_factors=torch.ones(1, 2 * T - 1)),
    "content_bias": Terms(content_bias=nn.Identity()),
    "relative_values": Terms(relative_values=torch.zeros(1, 2 * T - 1, d)),
}


def layout_of(segments: list[list[int]], causal: bool) -> Layout:
    """Positions count from 0 in every segment."""
    pos = [[row[:i].count(row[i]) for i in range(len(row))] for row in segments]
    return Layout(torch.tensor(pos), torch.tensor(segments), causal)


PADS = [0, 20, T - 1]
SEGMENTS = {
    "whole": [[0] * T] * B,
    "right": [[0] * (T - pad) + [PADDING] * pad for pad in PADS],
    "left": [[PADDING] * pad + [0] * (T - pad) for pad in PADS],
    "packed": [[0] * 30 + [1] * 33, [0] * 62 + [1], [0] + [1] * 40 + [2] * 12 + [PADDING] * 10],
}
LAYOUTS = [
    pytest.param(segments, causal, id=f"{name}-{'causal' if causal else 'both'}")
    for (name, segments), causal in product(SEGMENTS.items(), (True, False))
]


def resolved(implementation: str, terms: Terms, dropout: Dropout | None = None) -> str:
    return resolve(implementation, rand(B, H, T, d), terms, layout_of(SEGMENTS["whole"], causal=True), dropout)


@pytest.mark.parametrize("terms", [case() for case in SUPPORTED.values()], ids=SUPPORTED)
def test_auto_takes_sdpa_for_softmax_terms_on_a_cpu(terms: Terms) -> None:
    assert resolved("auto", terms) == "sdpa"
    assert resolved("sdpa", terms) == "sdpa"
    assert resolved("reference", terms) == "reference"


@pytest.mark.parametrize("terms", REFUSED.values(), ids=REFUSED)
def test_auto_takes_the_reference_where_sdpa_refuses(terms: Terms) -> None:
    assert resolved("auto", terms) == "reference"


def test_auto_takes_the_reference_where_weights_are_dropped() -> None:
    dropout = Dropout(0.1, torch.tensor(0))
    assert resolved("auto", Terms(), dropout) == "reference"
    with pytest.raises(ValueError, match="attention=sdpa cannot compute this: sdpa draws a dropout mask of its own"):
        resolved("sdpa", Terms(), dropout)


@pytest.mark.parametrize(("why", "terms"), REFUSED.items(), ids=REFUSED)
def test_sdpa_says_in_one_line_what_it_cannot_do(why: str, terms: Terms) -> None:
    q = torch.zeros(B, H, T, d)
    says = f"^attention=sdpa cannot compute this: .*{why}.*; use attention=auto, which takes reference$"
    with pytest.raises(ValueError, match=says):
        attend(q, q, q, terms, layout_of(SEGMENTS["whole"], causal=True), "sdpa")


def test_triton_refuses_more_heads_than_a_grid_has_rows() -> None:
    layout = Layout.of_lengths(torch.ones(2**15, dtype=torch.long), 1, causal=True)
    many = torch.zeros(1, 1, 1, 16).expand(2**15, 2, 1, 16)
    with pytest.raises(ValueError, match="the kernels take at most 65535 heads in a batch, got 65536"):
        resolve("triton", many, Terms(), layout)


@pytest.mark.covering
@pytest.mark.parametrize("short", [0, T], ids=["fused", "products"])
@pytest.mark.parametrize(("segments", "causal"), LAYOUTS)
@pytest.mark.parametrize("case", SUPPORTED)
def test_sdpa_equals_the_reference(
    case: str, segments: list[list[int]], causal: bool, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, and gradients of q, k, v, bias, decay and gain."""
    monkeypatch.setattr(sdpa, "MAX_SHORT_LENGTH", short)
    terms, layout = SUPPORTED[case](), layout_of(segments, causal)
    tables = [getattr(terms, name) for name in ("distance_bias", "decay", "pair_bias", "gain")]
    inputs = [*rand(3, B, H, T, d), *(table for table in tables if table is not None)]
    for tensor in inputs:
        tensor.requires_grad_()
    is_token = (layout.segment != PADDING)[:, None, :, None]
    upstream = rand(B, H, T, d) * is_token
    results = {}
    for implementation in ("sdpa", "reference"):
        out = attend(*inputs[:3], terms, layout, implementation)
        assert out.isfinite().all()  # padding included
        results[implementation] = (out * is_token, *torch.autograd.grad(out, inputs, upstream))
    for got, expected in zip(results["sdpa"], results["reference"], strict=True):
        assert_close(got, expected, **EQUAL)
        assert expected.any()


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtypes of queries that the fused kernel has taken."""
    taken, kernel = [], sdpa.scaled_dot_product_attention

    def noting(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        taken.append(q.dtype)
        return kernel(q, *args, **kwargs)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", noting)
    return taken


@pytest.mark.parametrize(
    ("length", "kernels"), [(1, 0), (2, 0), (sdpa.MAX_SHORT_LENGTH, 0), (sdpa.MAX_SHORT_LENGTH + 1, 1)]
)
def test_short_sequences_take_products_on_a_cpu(length: int, kernels: int, fused: list[torch.dtype]) -> None:
    for dtype in (torch.float32, torch.float64):
        q, k, v = rand(3, B, H, length, d).to(dtype)
        layout = Layout.whole(B, length, causal=True)
        out = attend(q, k, v, Terms(), layout, "sdpa")
        assert_close(out, attend(q, k, v, Terms(), layout, "reference"))
    assert len(fused) == 2 * kernels


def test_the_fused_kernel_takes_low_precision_and_keys_of_earlier_tokens(fused: list[torch.dtype]) -> None:
    """Its logits are in float32 where products would round them."""
    q, k, v = rand(3, B, H, 9, d).float()
    layout = Layout.whole(B, 9, causal=True)
    attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), Terms(), layout, "sdpa")
    attend(q.half(), k.half(), v.half(), Terms(), layout, "sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        attend(q, k, v, Terms(), layout, "sdpa")
    assert len(fused) == 3
    later = replace(layout.last(4), keys=layout)
    out = attend(q[:, :, -4:], k, v, Terms(), later, "sdpa")
    assert_close(out, attend(q, k, v, Terms(), layout, "sdpa")[:, :, -4:])
    assert len(fused) == 4


@pytest.mark.covering
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("terms", ["nothing", "rotary_half", "distance_bias", "several"])
@pytest.mark.parametrize("segments", SEGMENTS)
def test_products_err_in_float32_at_most_twice_as_much_as_the_fused_kernel(
    segments: str, terms: str, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root mean square over the output, and over the gradients of q, k and v, against float64."""
    given, layout = SUPPORTED[terms](), layout_of(SEGMENTS[segments], causal=True)
    is_token = (layout.segment != PADDING)[:, None, :, None]
    inputs, upstream = [size**0.5 * rand(B, H, T, d) for _ in range(3)], rand(B, H, T, d) * is_token

    def run(dtype: torch.dtype, short: int) -> list[Tensor]:
        monkeypatch.setattr(sdpa, "MAX_SHORT_LENGTH", short)
        parts = {field_.name: getattr(given, field_.name) for field_ in fields(given)}
        cast = {name: part.to(dtype) for name, part in parts.items() if isinstance(part, Tensor)}
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        out = attend(*leaves, replace(given, **cast), layout, "sdpa")
        return [(out * is_token).double(), *(x.double() for x in torch.autograd.grad(out, leaves, upstream.to(dtype)))]

    truth = run(torch.float64, 0)
    for exact, got, judge in zip(truth, run(torch.float32, T), run(torch.float32, 0), strict=True):
        error, reference_error = ((x - exact).square().mean().sqrt() for x in (got, judge))
        assert 0 < error <= 2 * reference_error


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_tables_of_a_rotation_get_gradients_whatever_was_computed_with_them_before(pairing: str) -> None:
    """Without gradients, in inference mode, or for another layer."""
    cos, sin = (table.clone().requires_grad_() for table in (rotary(pairing).cos, rotary(pairing).sin))
    q, k, v = rand(3, B, H, T, d)
    layout, shared = layout_of(SEGMENTS["packed"], causal=True), Rotary(cos, sin, pairing)
    terms = Terms(rotary_q=shared, rotary_k=shared)

    def gradients(terms: Terms) -> tuple[Tensor, ...]:
        out = attend(q, k, v, terms, layout) + attend(k, q, v, terms, layout)
        return torch.autograd.grad(out.sin().sum(), [cos, sin])

    for without in (torch.no_grad, torch.inference_mode):
        with without():
            attend(q, k, v, terms, layout)
    fresh = Terms(rotary_q=Rotary(cos, sin, pairing), rotary_k=Rotary(cos, sin, pairing))
    for got, expected in zip(gradients(terms), gradients(fresh), strict=True):
        assert expected.any()
        assert_close(got, expected, **EQUAL)
    assert shared.rotation is shared.rotation


@pytest.mark.covering
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", ["nothing", "rotary", "linear_bias"])
@pytest.mark.parametrize("length", [63, 100, 129])
def test_sdpa_errs_in_bfloat16_at_most_twice_as_much_as_the_reference(length: int, case: str, causal: bool) -> None:
    """Root mean square over the output, and over the gradients of q, k and v, against float64."""
    layout = Layout.of_lengths(torch.full((B,), length), length, causal)
    exact = [x.bfloat16().double().requires_grad_() for x in rand(3, B, H, length, d)]
    low = [x.detach().bfloat16().requires_grad_() for x in exact]
    upstream = rand(B, H, length, d).bfloat16()

    def terms(dtype: torch.dtype) -> Terms:
        pos = torch.arange(length, dtype=torch.float64)
        angle = pos[:, None] * 100.0 ** (-torch.arange(d // 2) / d)
        rotate = Rotary(angle.cos()[None, None].to(dtype), angle.sin()[None, None].to(dtype))
        slopes = torch.tensor([[0.5], [0.03]], dtype=dtype)
        return {
            "nothing": Terms(),
            "rotary": Terms(rotary_q=rotate, rotary_k=rotate),
            "linear_bias": Terms(distance_bias=-slopes * torch.arange(1 - length, length).abs()),
        }[case]

    def run(inputs: list[Tensor], implementation: str) -> list[Tensor]:
        dtype = torch.promote_types(inputs[0].dtype, torch.float32)
        out = attend(*inputs, terms(dtype), layout, implementation)
        return [x.double() for x in (out, *torch.autograd.grad(out, inputs, upstream.to(out.dtype)))]

    for truth, got, judge in zip(run(exact, "reference"), run(low, "sdpa"), run(low, "reference"), strict=True):
        error, reference_error = ((x - truth).square().mean().sqrt() for x in (got, judge))
        assert 0 < error <= 2 * reference_error


def on_gpu(terms: Terms) -> Terms:
    """The same terms on the device."""

    def move(value: object) -> object:
        if isinstance(value, Rotary):
            return Rotary(value.cos.cuda(), value.sin.cuda(), value.pairing)
        return value.cuda() if isinstance(value, Tensor) else value

    return Terms(**{field.name: move(getattr(terms, field.name)) for field in fields(terms)})


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_sdpa_on_a_gpu_is_the_reference_on_a_cpu(name: str) -> None:
    terms, layout = SUPPORTED[name](), Layout.of_lengths(torch.tensor([T, 40, 7]), T, causal=True)
    q, k, v = (rand(B, H, T, d) for _ in range(3))
    expected = attend(q, k, v, terms, layout, "reference")
    actual = attend(q.cuda(), k.cuda(), v.cuda(), on_gpu(terms), layout.to("cuda"), "sdpa").cpu()
    is_token = (layout.segment != PADDING)[:, None, :, None].expand_as(actual)
    assert_close(actual[is_token], expected[is_token], **EQUAL)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_of_a_trained_mask_are_those_of_the_definition(causal: bool) -> None:
    """The mask of more queries than are computed at once."""
    torch.manual_seed(0)
    length = sdpa.BLOCK_QUERIES + 7
    layout = Layout.whole(2, length, causal)
    q, k, v = (torch.randn(2, 3, length, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 3, length, length, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 3, length, 4, dtype=torch.float64)
    got, expected = (
        torch.autograd.grad(attend(q, k, v, Terms(pair_bias=bias), layout, name), (q, k, v, bias), upstream)
        for name in ("sdpa", "reference")
    )
    for ours, theirs in zip(got, expected, strict=True):
        assert_close(ours, theirs, **EQUAL)
