"""Logits that are scaled by the number of keys or by the position, against loops in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.layouts import mixed
from pe_lab.attention import attend, reference
from pe_lab.encodings import PADDING, Layout, RoPE, Sizes, SSMax, Stack, Sum, Temperature

H, d = 3, 4
D = H * d
SIZES = Sizes(width=D, num_heads=H, length=16)
EQUAL = {"rtol": 0, "atol": 1e-12}


LAYOUTS = {
    "mixed": mixed,
    "one": lambda causal: Layout.of_lengths(torch.tensor([1]), 1, causal),
    "padded": lambda causal: Layout.of_lengths(torch.tensor([33, 7]), 33, causal),
}


def random_ssmax(causal: bool = True) -> SSMax:
    encoding = SSMax(Sizes(width=D, num_heads=H, length=16, causal=causal)).double()
    torch.nn.init.uniform_(encoding.s, 0.2, 2)
    return encoding


def paper(q: Tensor, k: Tensor, v: Tensor, s: Tensor, layout: Layout) -> Tensor:
    """Attention of one sequence, [H, T, d], with weights n ** (s z), query by query; 0 at padding."""
    segment, rows = layout.segment, []
    out = torch.zeros_like(q)
    for b in range(len(q)):
        for h in range(H):
            for i in range(q.shape[2]):
                if segment[b, i] == PADDING:
                    continue
                last = i + 1 if layout.causal else q.shape[2]
                keys = [j for j in range(last) if segment[b, j] == segment[b, i]]
                power = [len(keys) ** (s[h] * (q[b, h, i] * k[b, h, j]).sum() / math.sqrt(d)) for j in keys]
                mean = sum(share * v[b, h, j] for share, j in zip(power, keys, strict=True)) / sum(power)
                rows.append(((b, h, i), mean))
    index = tuple(torch.tensor(axis) for axis in zip(*(at for at, _ in rows), strict=True))
    return out.index_put(index, torch.stack([row for _, row in rows]))


@pytest.mark.proves("ssmax")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
def test_ssmax_is_the_papers_formula(name: str, causal: bool, implementation: str) -> None:
    """Values, and gradients of q, k, v and s, in packed documents, with padding and at positions from 3 on."""
    encoding, layout = random_ssmax(causal), LAYOUTS[name](causal)
    batch, length = layout.segment.shape
    q, k, v = (torch.randn(batch, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    terms = encoding.terms(torch.zeros(batch, length, D, dtype=torch.float64), encoding.locate(layout))
    is_token = (layout.segment != PADDING)[:, None, :, None]
    got = attend(q, k, v, terms, layout, implementation) * is_token
    expected = paper(q, k, v, encoding.s, layout)
    assert_close(got, expected, **EQUAL)
    inputs, upstream = (q, k, v, encoding.s), torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_keys_are_counted_as_attention_allows_them(causal: bool) -> None:
    """In segments of any order and size, padding included."""
    segment = torch.randint(-1, 4, (20, 50))
    layout = Layout(torch.arange(50)[None], segment, causal)
    assert torch.equal(layout.key_count, layout.allowed[:, 0].sum(-1))
    before = (segment[:, :, None] == segment[:, None, :]).tril(-1).sum(-1)
    assert torch.equal(layout.rank, before)


def test_keys_are_counted_alike_when_a_model_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = torch.randint(-1, 4, (20, 50))
    expected = Layout(torch.arange(50)[None], segment, True).key_count
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert torch.equal(Layout(torch.arange(50)[None], segment, True).key_count, expected)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_keys_of_earlier_tokens_are_counted(count: int) -> None:
    pos, segment = torch.arange(4, 10)[None], torch.tensor([[PADDING, 0, 0, 1, 1, 1], [0] * 6])
    keys = Layout(pos, segment, causal=True)
    step = keys.last(count).after(Layout(pos[:, : 6 - count], segment[:, : 6 - count], True) if count < 6 else None)
    assert step.earlier == 6 - count
    assert torch.equal(step.key_count, keys.key_count[:, -count:])
    assert torch.equal(step.rank, keys.rank[:, -count:])


@pytest.mark.parametrize("causal", [True, False])
def test_counting_keys_needs_no_numbers_per_pair(causal: bool) -> None:
    """A million tokens, of which the pairs would take terabytes."""
    layout = Layout.whole(1, 2**20, causal)
    assert layout.key_count[0, -3:].tolist() == ([2**20 - 2, 2**20 - 1, 2**20] if causal else [2**20] * 3)


def test_with_rope_both_act_on_the_logits() -> None:
    """The factor and the rotation commute: logits are s ln(n) times those of rope."""
    both = Sum(SIZES, parts=[SSMax, RoPE]).double()
    layout, h = mixed(True), torch.zeros(2, 9, D, dtype=torch.float64)
    q, k = torch.randn(2, 2, H, 9, d, dtype=torch.float64)
    got, rope = (reference.logits(q, k, one.terms(h, layout), layout) for one in (both, both.members()[1]))
    for i in range(9):
        keys = int((layout.segment[0, : i + 1] == layout.segment[0, i]).sum())
        assert_close(got[0, 0, i], both.members()[0].s[0] * math.log(keys) * rope[0, 0, i], **EQUAL)


@pytest.mark.parametrize("causal", [True, False])
def test_the_mean_factor_of_the_training_length_is_one_at_the_start(causal: bool) -> None:
    for length in (2, 63, 1_024):
        encoding = SSMax(Sizes(D, H, length, causal))
        layout = Layout.whole(1, length, causal)
        factor = encoding.terms(torch.zeros(1, length, D), layout).lift.factor
        assert_close(factor.mean((0, 2, 3)), torch.ones(H), rtol=1e-5, atol=0)
    assert SSMax(Sizes(D, H, 1, causal)).s.tolist() == [1.0] * H
    assert SSMax(Sizes(D, H, 64, causal), start=0.43).s.tolist() == [pytest.approx(0.43)] * H


def test_the_start_of_the_source_is_that_of_its_length() -> None:
    assert SSMax(Sizes(D, H, 1_024)).s[0].item() == pytest.approx(0.168, abs=5e-4)


@pytest.mark.parametrize("start", [0, -1.0, float("nan")])
def test_a_start_out_of_range_is_refused(start: float) -> None:
    with pytest.raises(ValueError, match=r"^start must be a positive number, got "):
        SSMax(SIZES, start=start)


def test_factors_are_float32_in_low_precision() -> None:
    """Beyond 256 keys, where bfloat16 cannot tell their numbers apart; queries are rounded once, after the factor."""
    encoding, layout, h = SSMax(SIZES), Layout.whole(1, 2_000, True), torch.zeros(1, 2_000, D)
    expected = encoding.terms(h, layout).lift.factor
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.terms(h.bfloat16(), layout).lift.factor, expected)
    assert (expected.diff(dim=2) > 0).all()
    q = torch.randn(1, H, 2_000, d).bfloat16()
    lifted, k = reference.queries_and_keys(q, q, encoding.terms(h.bfloat16(), layout))
    assert torch.equal(lifted, (q.float() * expected).bfloat16())
    assert torch.equal(k, q)


@pytest.mark.proves("temperature")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("original_length", "first"), [(1, 0), (3, 0), (4, 1), (8, 1)])
@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
def test_logits_are_multiplied_by_a_factor_of_the_position(
    original_length: int, first: int, name: str, causal: bool, implementation: str
) -> None:
    """Values, and gradients of q, k and v, in packed documents, with padding and at positions from 3 on."""
    layout = LAYOUTS[name](causal)
    sizes = Sizes(width=D, num_heads=H, length=16, causal=causal)
    encoding = Temperature(sizes, beta=0.7, original_length=original_length, first=first)
    batch, length = layout.segment.shape
    q, k, v = (torch.randn(batch, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    terms = encoding.terms(torch.zeros(batch, length, D, dtype=torch.float64), encoding.locate(layout))
    positions = layout.pos.expand(batch, length).tolist()
    steps = [[math.floor((p + first) / original_length) for p in row] for row in positions]
    factors = torch.tensor([[1 + 0.7 * math.log(1 + n) for n in row] for row in steps], dtype=torch.float64)
    z = factors[:, None, :, None] * (q @ k.mT) / d**0.5
    expected = z.masked_fill(~layout.allowed, -torch.inf).softmax(-1).nan_to_num() @ v
    is_token = (layout.segment != PADDING)[:, None, :, None]
    got = attend(q, k, v, terms, layout, implementation) * is_token
    assert_close(got, expected * is_token, **EQUAL)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected * is_token)), strict=True):
        assert_close(g, e, rtol=1e-12, atol=1e-12)


@pytest.mark.proves("temperature", by="transformers")
@pytest.mark.parametrize("original_length", [1, 7, 16])
def test_the_temperature_equals_that_of_ministral_3(original_length: int) -> None:
    module = pytest.importorskip("transformers.models.ministral3.modeling_ministral3")
    encoding, pos = Temperature(SIZES, beta=0.3, original_length=original_length), torch.tensor([[0, 5, 6, 7, 900]])
    terms = encoding.terms(torch.zeros(1, 5, D, dtype=torch.float64), Layout(pos, torch.zeros_like(pos), True))
    assert_close(terms.lift.factor, module.get_llama_4_attn_scale(pos.double(), 0.3, original_length), **EQUAL)


@pytest.mark.proves("temperature", by="transformers")
@pytest.mark.parametrize("original_length", [1, 7, 16])
def test_attention_with_the_temperature_equals_a_layer_of_llama_4_without_rotations(original_length: int) -> None:
    """Theirs computes the factor in float32."""
    module = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    config = module.Llama4TextConfig(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=H, head_dim=d, num_hidden_layers=1, floor_scale=1,
        no_rope_layers=[0], attn_implementation="eager",
    )  # fmt: skip
    config.floor_scale, config.attn_scale = original_length, 0.3
    layer = module.Llama4TextAttention(config, 0).double()
    layout, h = Layout.whole(2, 40, True), torch.randn(2, 40, D, dtype=torch.float64)
    mask = torch.zeros(2, 1, 40, 40, dtype=torch.float64).masked_fill(~layout.allowed, -torch.inf)
    expected, _ = layer(h, None, mask)
    terms = Temperature(SIZES, beta=0.3, original_length=original_length, first=1).terms(h, layout)
    projections = layer.q_proj, layer.k_proj, layer.v_proj
    q, k, v = (project(h).unflatten(-1, (H, d)).transpose(1, 2) for project in projections)
    got = layer.o_proj(attend(q, k, v, terms, layout).transpose(1, 2).flatten(2))
    assert_close(got, expected, rtol=0, atol=1e-6)


def test_below_the_original_length_the_temperature_is_that_of_none() -> None:
    """The original length is that of training unless said."""
    layout, h = Layout.whole(1, 17, True), torch.zeros(1, 17, D)
    factor = Temperature(SIZES).terms(h, layout).lift.factor.flatten()
    assert torch.equal(factor[:16], torch.ones(16))
    assert factor[16].item() == pytest.approx(1 + 0.1 * math.log(2))
    assert Temperature(SIZES, first=1).terms(h, layout).lift.factor.flatten()[15] > 1
    assert torch.equal(Temperature(SIZES, beta=0).terms(h, layout).lift.factor.flatten(), torch.ones(17))


@pytest.mark.parametrize("option", [{"beta": -0.1}, {"original_length": 0}, {"first": 2}, {"first": -1}])
def test_a_temperature_out_of_range_is_refused(option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(option))} must be "):
        Temperature(SIZES, **option)


def attended(stack: Stack, x: Tensor, layout: Layout, cache: object = None) -> Tensor:
    """Return the states after the layers of a model whose queries, keys and values are its states."""
    x, positions = stack(x, layout, cache)
    for index in range(stack.depth):
        h_qk, h_v, terms, layer_layout = positions.layer(index, x)
        q, v = (h.unflatten(2, (H, d)).transpose(1, 2) for h in (h_qk, h_v))
        x = x + attend(q, q.flip(-1), v, terms, layer_layout).transpose(1, 2).flatten(2)
    return x
