"""On a GPU, at real sizes: values, gradients, memory, determinism. The other files test the same in the interpreter."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from pe_lab.attention import attend
from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms

pytestmark = pytest.mark.gpu

B, H, T, d = 2, 4, 1000, 64


def table(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device="cuda")


def rotary(heads: int, batch: int = 1) -> Rotary:
    """Tables that lie as a projection of tokens does, [B, T, H, d/2]."""
    angle = 3 * table(batch, T, heads, d // 2).transpose(1, 2)
    return Rotary(angle.cos(), angle.sin())


def part_of(rotary: Rotary, pairs: int) -> Rotary:
    """The tables of the first pairs of dimensions; the others are not rotated."""
    return Rotary(rotary.cos[..., :pairs], rotary.sin[..., :pairs])


CASES: dict[str, Callable[[], Terms]] = {
    "nothing": Terms,
    "rotary": lambda: Terms(rotary_q=rotary(1), rotary_k=rotary(1)),
    "rotary_per_head_and_gain": lambda: Terms(rotary_q=rotary(H), rotary_k=rotary(H), gain=1 + table(H, d) / 5),
    "rotary_of_the_first_dims": lambda: Terms(
        rotary_q=part_of(rotary(H), 16), rotary_k=part_of(rotary(1), 16), gain=1 + table(H, d) / 5
    ),
    "rotary_of_each_sequence": lambda: Terms(rotary_q=rotary(H, B), rotary_k=rotary(1, B)),
    "window": lambda: Terms(window=(200,)),
    # not a window of 1: its gradients of queries and keys are 0, and what bfloat16 makes of 0 has no judge
    "window_per_head_and_bias": lambda: Terms(window=(16, 64, 400, None), distance_bias=table(1, 2 * T - 1)),
    "distance_bias": lambda: Terms(distance_bias=table(H, 2 * T - 1)),
    "bias_clipped": lambda: Terms(distance_bias=table(1, 257), clip=True),
    "gate_and_bias": lambda: Terms(logit_factors=1 + table(1, 2 * T - 1) / 5, distance_bias=table(H, 2 * T - 1)),
    "decay": lambda: Terms(decay=-table(B, H, T).abs().cumsum(-1) / 10),
    "rotary_stick": lambda: Terms(
        rotary_q=rotary(H), rotary_k=rotary(H), distance_bias=table(1, 2 * T - 1), normalizer=Stick(include_self=True)
    ),
    "stick": lambda: Terms(normalizer=Stick(remainder="own")),
    "stick_from_the_first": lambda: Terms(normalizer=Stick("first", include_self=True)),
}
TENSORS = ("distance_bias", "logit_factors", "decay", "gain")


def in_dtype(terms: Terms, dtype: torch.dtype) -> tuple[Terms, list[Tensor]]:
    """The terms in another precision, and their tensors as leaves."""
    leaves: list[Tensor] = []

    def leaf(value: Tensor) -> Tensor:
        leaves.append(value.detach().to(dtype).requires_grad_())
        return leaves[-1]

    made: dict[str, object] = {"clip": terms.clip, "normalizer": terms.normalizer, "window": terms.window}
    for name in TENSORS:
        if getattr(terms, name) is not None:
            made[name] = leaf(getattr(terms, name))
    for name in ("rotary_q", "rotary_k"):
        if rotation := getattr(terms, name):
            made[name] = Rotary(leaf(rotation.cos), leaf(rotation.sin), rotation.pairing)
    return Terms(**made), leaves


def padded(causal: bool) -> Layout:
    return Layout.of_lengths(torch.tensor([T, T - 77], device="cuda"), T, causal)


def packed(causal: bool) -> Layout:
    segment = (torch.arange(T, device="cuda") // 300).expand(B, -1).clone()
    segment[1, -50:] = PADDING
    pos = torch.arange(T, device="cuda").expand(B, -1) % 300
    return Layout(pos, segment, causal)


def results(
    qkv: Tensor, terms: Terms, layout: Layout, which: str, dtype: torch.dtype, wide: torch.dtype, p: float
) -> list[Tensor]:
    """The output, and the gradients of q, k, v and all terms, in float64."""
    made, leaves = in_dtype(terms, wide)
    inputs = [x.to(dtype).requires_grad_() for x in qkv]
    is_token = (layout.segment != PADDING)[:, None, :, None]
    upstream = torch.randn(B, H, T, d, device="cuda", generator=torch.Generator("cuda").manual_seed(1)) * is_token
    dropout = Dropout(p, torch.tensor(3, device="cuda")) if p else None
    out = attend(*inputs, made, layout, which, dropout)
    return [
        x.detach().double()
        for x in (out * is_token, *torch.autograd.grad(out, inputs + leaves, upstream.to(out.dtype)))
    ]


def error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).square().mean().sqrt())


@pytest.mark.parametrize("p", [0.0, 0.1], ids=["", "dropout"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize("layout", [padded, packed])
@pytest.mark.parametrize("case", CASES)
def test_values_and_all_gradients(case: str, layout: Callable[[bool], Layout], causal: bool, p: float) -> None:
    """Against float64: float32 to 1e-5, as three TF32 products keep 21 bits; bfloat16 at most twice its reference's."""
    terms, where = CASES[case](), layout(causal)
    if p and isinstance(terms.normalizer, Stick):
        pytest.skip("the kernels of stick-breaking drop no weights")
    qkv = torch.randn(3, B, H, T, d, device="cuda").bfloat16().double()
    truth = results(qkv, terms, where, "reference", torch.float64, torch.float64, p)
    single = results(qkv, terms, where, "triton", torch.float32, torch.float32, p)
    for actual, expected in zip(single, truth, strict=True):
        assert error(actual, expected) <= 1e-5 * max(float(expected.square().mean().sqrt()), 1e-3)
    half = results(qkv, terms, where, "triton", torch.bfloat16, torch.float32, p)
    judge = results(qkv, terms, where, "reference", torch.bfloat16, torch.float32, p)
    for actual, own, expected in zip(half, judge, truth, strict=True):
        assert 0 < error(actual, expected) <= 2 * error(own, expected)


@pytest.mark.parametrize(
    ("case", "times"),
    [("rotary_per_head_and_gain", 1000), ("gate_and_bias", 1000), ("decay", 1000), ("rotary_stick", 10_000)],
)
def test_thousands_of_backward_passes_give_the_same_bits(case: str, times: int) -> None:
    terms, leaves = in_dtype(CASES[case](), torch.float32)
    inputs = [torch.randn(B, H, T, d, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    dropout = None if isinstance(terms.normalizer, Stick) else Dropout(0.1, torch.tensor(3, device="cuda"))
    out = attend(*inputs, terms, padded(True), "triton", dropout)
    upstream = torch.randn_like(out)
    first = torch.autograd.grad(out, inputs + leaves, upstream, retain_graph=True)
    for _ in range(times):
        again = torch.autograd.grad(out, inputs + leaves, upstream, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("case", ["rotary", "distance_bias", "decay", "stick"])
def test_memory_grows_linearly(case: str) -> None:
    """Twice the length takes twice the memory, within the allocator's rounding."""

    def peak(length: int) -> int:
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        angle = torch.rand(1, 1, length, d // 2, device="cuda")
        terms = {
            "rotary": lambda: Terms(
                rotary_q=Rotary(angle.cos(), angle.sin()), rotary_k=Rotary(angle.cos(), angle.sin())
            ),
            "distance_bias": lambda: Terms(
                distance_bias=torch.zeros(H, 2 * length - 1, device="cuda", requires_grad=True)
            ),
            "decay": lambda: Terms(decay=torch.zeros(B, H, length, device="cuda", requires_grad=True)),
            "stick": lambda: Terms(normalizer=Stick(include_self=True)),
        }[case]()
        qkv = [torch.randn(B, H, length, d, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        layout = Layout.of_lengths(torch.full((B,), length, device="cuda"), length, True)
        attend(*qkv, terms, layout, "triton").sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - base

    peak(4096)
    lengths = (4096, 8192, 16384, 32768)
    peaks = [peak(length) for length in lengths]
    for shorter, longer in pairwise(peaks):
        assert longer <= 2.1 * shorter


def test_inductor_compiles_through_it() -> None:
    terms, leaves = in_dtype(CASES["distance_bias"](), torch.float32)
    from pe_lab.attention.triton.operators import softmax_attention

    inputs = [torch.randn(B, H, T, d, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]

    def step(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        out, _ = softmax_attention(q, k, v, bias, None, None, None, None, None, d**-0.5, True, 0.0)
        return (out.float() * 2).square().mean()

    expected = torch.autograd.grad(step(*inputs, *leaves), inputs + leaves)
    compiled = torch.compile(step, fullgraph=True)
    for gradients, want in zip(torch.autograd.grad(compiled(*inputs, *leaves), inputs + leaves), expected, strict=True):
        assert torch.allclose(gradients.float(), want.float(), rtol=2e-2, atol=1e-6)
    assert terms.distance_bias is leaves[0]
