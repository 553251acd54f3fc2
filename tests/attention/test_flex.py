"""FlexAttention computes what the reference does, and refuses the rest."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as pytorch
from torch.testing import assert_close

from benchmarks.presets import presets, terms_of
from pe_lab.attention import attend, flex, reference, resolve
from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms

# PyTorch looks at what every captured tensor has while it traces
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

PRESETS = presets(Path(__file__).parents[2] / "conf" / "pe")
B, H, T, d = 2, 2, 63, 16
EQUAL = {"rtol": 0, "atol": 1e-12}  # sums of 63 products of numbers of size 10
TENSORS = ("distance_bias", "logit_factors", "decay", "gain")


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def rotary(pairing: str, batch: int = 1) -> Rotary:
    angle = 3 * rand(batch, H, T, d // 2)
    return Rotary(angle.cos(), angle.sin(), pairing)


CASES: dict[str, Callable[[], Terms]] = {
    "nothing": Terms,
    "rotary": lambda: Terms(rotary_q=rotary("interleaved"), rotary_k=rotary("half"), gain=rand(H, d), scale=0.2),
    "distance_bias": lambda: Terms(distance_bias=rand(H, 2 * T - 1)),
    "bias_clipped": lambda: Terms(distance_bias=rand(1, 9), clip=True),
    "logit_factors": lambda: Terms(logit_factors=rand(1, 2 * T - 1)),
    "decay": lambda: Terms(decay=rand(B, H, T)),
    "decay_of_all_heads": lambda: Terms(decay=rand(1, 1, T)),
    "rotary_of_each_sequence": lambda: Terms(rotary_q=rotary("half", B), rotary_k=rotary("half", B)),
    "window": lambda: Terms(window=(12,)),
    "window_of_each_head": lambda: Terms(window=(None, 1)),
    "several": lambda: Terms(
        logit_factors=rand(H, 2 * T - 1), distance_bias=rand(1, 2 * T - 1), decay=rand(B, H, T), window=(None, 30)
    ),
}
SEGMENTS = torch.tensor([[PADDING] * 9 + [0] * 21 + [1] * 33, [0] + [1] * 40 + [2] * 12 + [PADDING] * 10])
LAYOUTS = {  # positions that run on, and that leave some out
    "padded": lambda: Layout.of_lengths(torch.tensor([T, 40]), T, causal=True),
    "packed": lambda: Layout(torch.arange(T).expand(B, T), SEGMENTS, causal=False),
    "spread": lambda: Layout(torch.arange(T)[None] * 2 - torch.arange(T)[None].clamp(max=40), SEGMENTS, causal=True),
}


@pytest.fixture
def differentiable(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has the derivative of its uncompiled form, and refuses to use it on a CPU: only that check is removed."""
    monkeypatch.setattr(pytorch, "_validate_device", lambda *_: None)


def results(
    which: Callable[..., Tensor], qkv: Tensor, terms: Terms, layout: Layout, dtype: torch.dtype, device: str = "cpu"
) -> list[Tensor]:
    """The output, and the gradients of q, k, v and the tables, in float64."""
    wide = torch.promote_types(dtype, torch.float32)
    tables = {name: getattr(terms, name) for name in TENSORS if getattr(terms, name) is not None}
    moved = {name: table.to(device, wide).requires_grad_() for name, table in tables.items()}
    for name in ("rotary_q", "rotary_k"):
        if term := getattr(terms, name):
            moved[name] = Rotary(term.cos.to(device, wide), term.sin.to(device, wide), term.pairing)
    inputs = [x.to(device, dtype).requires_grad_() for x in qkv]
    leaves = [*inputs, *(moved[name] for name in tables)]
    is_token = (layout.segment != PADDING)[:, None, :, None].to(device)
    out = which(*inputs, replace(terms, **moved), layout.to(device))
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device, out.dtype) * is_token
    return [x.detach().double().cpu() for x in (out * is_token, *torch.autograd.grad(out, leaves, upstream))]


@pytest.mark.covering
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_reference(case: str, layout: str, differentiable: None) -> None:
    terms, where, qkv = CASES[case](), LAYOUTS[layout](), rand(3, B, H, T, d)
    actual = results(flex.attend, qkv, terms, where, torch.float64)
    expected = results(reference.attend, qkv, terms, where, torch.float64)
    for got, exact in zip(actual, expected, strict=True):
        assert_close(got, exact, **EQUAL)
        assert exact.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["rotary", "several"])
def test_low_precision_errs_at_most_four_times_as_much_as_the_reference(
    case: str, dtype: torch.dtype, differentiable: None
) -> None:
    """Root mean square over the output, and over each gradient, against float64."""
    terms, where, qkv = CASES[case](), LAYOUTS["packed"](), rand(3, B, H, T, d).to(dtype).double()
    truth = results(reference.attend, qkv, terms, where, torch.float64)
    actual, own = (results(which.attend, qkv, terms, where, dtype) for which in (flex, reference))
    for got, judge, exact in zip(actual, own, truth, strict=True):
        error, allowed = ((x - exact).square().mean().sqrt() for x in (got, judge))
        assert 0 < error <= 4 * allowed


def test_bfloat16_is_rounded_at_the_end_only_on_a_cpu() -> None:
    terms, where, qkv = (
        Terms(distance_bias=CASES["distance_bias"]().distance_bias.float()),
        LAYOUTS["packed"](),
        torch.randn(3, B, H, T, d),
    )
    rounded = attend(*qkv.bfloat16(), terms, where, "flex")
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, attend(*qkv.bfloat16().float(), terms, where, "flex").bfloat16())


def test_autocast_changes_no_logit() -> None:
    terms, where, qkv = CASES["distance_bias"](), LAYOUTS["padded"](), torch.randn(3, B, H, T, d)
    terms = Terms(distance_bias=terms.distance_bias.float())
    plain = attend(*qkv, terms, where, "flex")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend(*qkv, terms, where, "flex"), plain)


@pytest.mark.parametrize("name", PRESETS)
def test_every_encoding_is_computed_as_by_the_reference_or_refused(name: str) -> None:
    """A new file in conf/pe is tested by existing. In float32, to the roundings of sums of 17 numbers."""
    make, length = PRESETS[name], 17
    try:
        terms, layout = terms_of(make, B, length, H, d, torch.device("cpu"))
    except ValueError as error:
        pytest.skip(str(error))
    qkv = torch.randn(3, B, H, length, d)
    with torch.no_grad():
        if reason := flex.refusal_reason(qkv[0], terms, layout):
            stick = isinstance(terms.normalizer, Stick)
            absent = [
                name
                for name in ("content_bias", "pair_bias", "relative_values", "weight_factors")
                if getattr(terms, name) is not None
            ]
            assert stick or absent
            assert reason.startswith("flex takes a softmax" if stick else f"flex has no place for {absent[0]}, ")
            return
        expected = attend(*qkv, terms, layout, "reference")
        assert_close(attend(*qkv, terms, layout, "flex"), expected, rtol=0, atol=2e-6 * float(qkv.abs().max()))


WINDOWS = [None, (None, 1), (2, 127), (128, 129), (130, 256), (384,), (385, 10**9)]  # 385: whole tiles of three


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("length", "window"), [*product([1, 5, 128, 129, 300], WINDOWS[:2]), *product([520], WINDOWS[2:])]
)
def test_tiles_are_those_that_pytorch_finds_from_all_pairs(
    length: int, window: tuple[int | None, ...] | None, causal: bool
) -> None:
    segment = torch.randint(-1, 4, (B, length)).sort().values
    segment[1] = 0  # whole tiles of one document, on the diagonal too
    limit = None if window is None else reference.window_limits(window, segment.device)
    mask = flex.block_mask(Layout(torch.arange(length)[None] + 7, segment, causal), B, H, limit)
    heads = None if window is None else len(window)
    expected = pytorch.create_block_mask(mask.mask_mod, B, heads, length, length, device="cpu")
    if window is None:
        assert torch.equal(mask.to_dense(), expected.to_dense())
    else:  # a tile of two documents may seem to meet another
        assert torch.equal(mask.to_dense()[1], expected.to_dense()[1])
        assert (mask.to_dense() >= expected.to_dense()).all()
    assert torch.equal(mask.to_dense(), expected.to_dense())
    assert torch.equal(mask.full_kv_num_blocks, expected.full_kv_num_blocks)
    assert torch.equal(mask.full_q_num_blocks, expected.full_q_num_blocks)


def test_a_window_counts_positions_not_tokens() -> None:
    """Of 300 tokens, two positions apart, those of tiles that touch are 2 apart and more."""
    layout = Layout(2 * torch.arange(300)[None], torch.zeros(B, 300).long(), causal=True)
    mask = flex.block_mask(layout, B, H, torch.tensor([2, 3]))
    assert mask.to_dense()[0].tolist() == [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]],
    ]


def test_the_work_of_a_window_grows_with_the_length_not_with_its_square() -> None:
    """4096 tokens, 64 keys: 63 of 528 tiles."""
    layout = Layout.whole(1, 4096, causal=True)
    actual = [flex.block_mask(layout, 1, 1, limit).to_dense().sum() for limit in (None, torch.tensor([64]))]
    assert actual == [528, 63]


def test_no_pair_is_missed_where_documents_are_mixed() -> None:
    segment = torch.randint(-1, 3, (B, 300))
    segment[0, :128], segment[0, 128:256] = 5, 7  # two tiles that do not meet
    mask = flex.block_mask(Layout(torch.arange(300)[None], segment, causal=True), B)
    expected = pytorch.create_block_mask(mask.mask_mod, B, None, 300, 300, device="cpu")
    assert ((mask.to_dense() == 1) | (expected.to_dense() == 0)).all()
    assert mask.to_dense()[0, 0, 1, 0] == 0
    assert torch.equal(mask.full_kv_num_blocks, expected.full_kv_num_blocks)


def on_gpu(dtype: torch.dtype = torch.bfloat16, head_dim: int = 64, wanted: bool = True) -> SimpleNamespace:
    """Stands for queries on a GPU."""
    return SimpleNamespace(
        device=torch.device("cuda"), dtype=dtype, shape=torch.Size((B, H, T, head_dim)), requires_grad=wanted
    )


LEARNED = Terms(distance_bias=nn.Parameter(torch.zeros(1, 2 * T - 1)))
REFUSED = {
    "drops no weights": (torch.zeros(B, H, T, d), Terms(), Dropout(0.1, torch.tensor(0))),
    "breaks a stick": (torch.zeros(B, H, T, d), Terms(normalizer=Stick()), None),
    "no place for content_bias": (torch.zeros(B, H, T, d), Terms(content_bias=nn.Identity()), None),
    "no place for pair_bias": (torch.zeros(B, H, T, d), Terms(pair_bias=torch.zeros(1, 1, T, T)), None),
    "no place for relative_values": (
        torch.zeros(B, H, T, d),
        Terms(relative_values=torch.zeros(1, 2 * T - 1, d)),
        None,
    ),
    "no gradients on a CPU": (torch.zeros(B, H, T, d, requires_grad=True), Terms(), None),
    "no gradients on a CPU ": (torch.zeros(B, H, T, d), LEARNED, None),
    "a CPU or a CUDA device, these tensors are on meta": (torch.zeros(B, H, T, d, device="meta"), Terms(), None),
    "float32, bfloat16 and float16 on a GPU, got float64": (on_gpu(torch.float64), Terms(), None),
    "a head_dim of at least 16 on a GPU, got 8": (on_gpu(head_dim=8), Terms(), None),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_cannot_do_is_refused_with_the_reason(reason: str) -> None:
    q, terms, dropout = REFUSED[reason]
    layout = LAYOUTS["padded"]()
    assert re.search(reason.strip(), flex.refusal_reason(q, terms, layout, dropout))


def test_a_cpu_evaluates_and_refuses_to_train() -> None:
    q = torch.zeros(B, H, T, d, requires_grad=True)
    with pytest.raises(
        ValueError, match="attention=flex cannot compute this: .*; use attention=auto, which takes sdpa"
    ):
        resolve("flex", q, Terms(), LAYOUTS["padded"]())
    with torch.no_grad():
        assert resolve("flex", q, LEARNED, LAYOUTS["padded"]()) == "flex"


def test_learned_tables_are_refused_where_deterministic_algorithms_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout, q = LAYOUTS["padded"](), on_gpu()
    assert flex.refusal_reason(q, LEARNED, layout) is None
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert "sums the gradient of distance_bias in no fixed order" in flex.refusal_reason(q, LEARNED, layout)
    assert flex.refusal_reason(q, Terms(distance_bias=torch.zeros(1, 2 * T - 1)), layout) is None
    with torch.no_grad():
        assert flex.refusal_reason(q, LEARNED, layout) is None


def test_off_the_cpu_it_is_compiled_whole_and_for_many_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []

    def compile_(function: object, **options: Any) -> Callable[..., Tensor]:
        assert function is pytorch.flex_attention

        def call(q: Tensor, k: Tensor, v: Tensor, score: object, mask: object, scale: float | None) -> Tensor:
            requests.append(options | {"limit": torch._dynamo.config.recompile_limit, "score": score, "scale": scale})
            return v

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it does not know this device
    flex._compile.cache_clear()
    qkv = torch.zeros(3, B, H, T, d, device="meta")
    usual = torch._dynamo.config.recompile_limit
    flex.attend(*qkv, Terms(scale=0.5), LAYOUTS["padded"]().to("meta"))
    flex._compile.cache_clear()
    assert requests == [{"fullgraph": True, "limit": flex.MAX_VARIANTS, "score": None, "scale": 0.5}]
    assert torch._dynamo.config.recompile_limit == usual


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_values_and_gradients_are_those_of_the_reference(case: str, layout: str) -> None:
    """In float32 to 2e-5 of the largest number; in bfloat16 at most four times the reference's own error."""
    terms, where, qkv = CASES[case](), LAYOUTS[layout](), rand(3, B, H, T, d).bfloat16().double()
    truth = results(reference.attend, qkv, terms, where, torch.float64)
    single = results(flex.attend, qkv, terms, where, torch.float32, "cuda")
    half, own = (results(which.attend, qkv, terms, where, torch.bfloat16, "cuda") for which in (flex, reference))
    for got, low, judge, exact in zip(single, half, own, truth, strict=True):
        size = exact.abs().max()
        assert (got - exact).abs().max() <= 2e-5 * size
        assert (low - exact).abs().max() <= 4 * (judge - exact).abs().max() + 2**-8 * size
