"""Encodings that add a trained function of distance, against their formulas, in float64."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.bias_learned import (
    T5,
    Fire,
    KerpleLog,
    KerplePower,
    RelativeBias,
    t5_buckets,
)
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms
from pe_lab.model.transformer import Transformer

H, d, L = 3, 4, 16
SIZES = Sizes(width=H * d, num_heads=H, length=L)
KINDS = [RelativeBias, T5, KerpleLog, KerplePower, Fire]
# softmax over 129 logits of size up to 1e3
EQUAL = {"rtol": 1e-11, "atol": 1e-11}


def layout_at(pos: list[int], causal: bool = True) -> Layout:
    return Layout(torch.tensor([pos]), torch.zeros(1, len(pos), dtype=torch.long), causal)


def terms_of(encoding: PositionalEncoding, layout: Layout, dtype: torch.dtype = torch.float64) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=dtype), layout)


def added(encoding: PositionalEncoding, layout: Layout, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return [H, T, T], the bias that an encoding adds to the logits."""
    zero = torch.zeros(1, H, layout.segment.shape[1], d, dtype=dtype)
    return reference.logits(zero, zero, terms_of(encoding, layout, dtype), layout)[0]


def moved(kind: Callable[..., PositionalEncoding], **settings) -> PositionalEncoding:
    """Return an encoding in float64, with its parameters moved from their initial values."""
    encoding = kind(SIZES, **settings).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return encoding


def relative_bias(encoding: RelativeBias, i: int, j: int, causal: bool) -> Tensor:
    k = encoding.table.shape[1] // 2
    return encoding.table[:, max(-k, min(k, i - j)) + k]


def t5_bucket(offset: int, num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Bucket of the key at i + offset; Mesh TensorFlow's, with a logarithm that may round up to its border."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if offset > 0 else 0
        n = abs(offset)
    else:
        n = max(0, -offset)
    exact = num_buckets // 2
    if n < exact:
        return first + n
    far = math.log(n / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    return first + min(num_buckets - 1, exact + math.floor(far + 1e-9))


def t5(encoding: T5, i: int, j: int, causal: bool) -> Tensor:
    return encoding.table[t5_bucket(j - i, encoding.num_buckets, encoding.max_distance, not causal)]


def kerple_log(encoding: KerpleLog, i: int, j: int, causal: bool) -> Tensor:
    return -encoding.p * torch.log(1 + encoding.a * abs(i - j))


def kerple_power(encoding: KerplePower, i: int, j: int, causal: bool) -> Tensor:
    return -encoding.a * abs(i - j) ** encoding.p


def fire(encoding: Fire, i: int, j: int, causal: bool) -> Tensor:
    """arXiv:2310.04418: f(psi(i - j) / (psi(max(i, L)) + eps))."""
    threshold = encoding.stretch[0].abs() * L
    psi = [torch.log((encoding.c * x).abs() + 1) for x in (i - j, i if i > threshold else threshold)]
    x = psi[0] / (psi[1] + 1e-6)
    hidden = (encoding.hidden.weight @ x + encoding.hidden.bias).clamp(min=0)
    return encoding.out.weight @ hidden + encoding.out.bias


FORMULAS = {RelativeBias: relative_bias, T5: t5, KerpleLog: kerple_log, KerplePower: kerple_power, Fire: fire}
FAR = [3, 4, 5, 7, 11, 12, 19, 40, 41, 99, 130, 131, 164, 200, 258, 259, 300, 700]


def assert_as_in_the_source(encoding: PositionalEncoding, pos: list[int], causal: bool) -> None:
    """Compare the bias, the attention, and gradients of q, k, v and every parameter."""
    layout, size, parameters = layout_at(pos, causal), len(pos), list(encoding.parameters())
    formula = FORMULAS[type(encoding)]
    bias = torch.stack([torch.stack([formula(encoding, i, j, causal) for j in pos], -1) for i in pos], -2)  # [H, T, T]
    seen = torch.ones(size, size, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    assert_close(added(encoding, layout)[:, seen], bias[:, seen], **EQUAL)
    q, k, v = (torch.randn(1, H, size, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    got = attend(q, k, v, terms_of(encoding, layout), layout, "reference")
    z = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(d) + bias
    share = z.exp() * seen
    expected = torch.einsum("bhij,bhjd->bhid", share / share.sum(-1, keepdim=True), v)
    assert_close(got, expected, **EQUAL)
    upstream = torch.randn_like(expected)
    inputs = (q, k, v, *parameters)
    # one distance, itself, and nothing depends on the parameters
    gradients = [torch.autograd.grad(x, inputs, upstream, allow_unused=True) for x in (got, expected)]
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e, rtol=1e-9, atol=1e-10)
    assert size == 1 or all(g.any() for g in gradients[0])


@pytest.mark.proves("{kind}")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pos", [[0], list(range(7)), list(range(63)), FAR], ids=["1", "7", "63", "far"])
def test_bias_is_the_sources_formula(kind: type[PositionalEncoding], causal: bool, pos: list[int]) -> None:
    assert_as_in_the_source(moved(kind), pos, causal)


@pytest.mark.parametrize(
    "encoding",
    [
        partial(RelativeBias, max_distance=1),
        partial(RelativeBias, max_distance=5),
        partial(T5, num_buckets=8, max_distance=20),
        partial(T5, num_buckets=6, max_distance=300),
        partial(Fire, hidden=1),
        partial(Fire, hidden=5),
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_bias_is_the_sources_formula_in_every_setting(encoding: Callable, causal: bool) -> None:
    assert_as_in_the_source(moved(encoding), FAR, causal)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_gradient_is_that_of_finite_differences(kind: type[PositionalEncoding], causal: bool) -> None:
    encoding, layout = moved(kind), layout_at([0, 1, 2, 9, 30], causal)
    names = [name for name, _ in encoding.named_parameters()]

    def bias(*values: Tensor) -> Tensor:
        parameters = {f"encoding.{name}": value for name, value in zip(names, values, strict=True)}
        terms = torch.func.functional_call(_Terms(encoding), parameters, (layout,))
        return terms.distance_bias if terms.pair_bias is None else terms.pair_bias

    assert torch.autograd.gradcheck(bias, tuple(encoding.parameters()), eps=1e-6, atol=1e-5)


class _Terms(torch.nn.Module):
    """Calls `terms` as forward, for functional_call."""

    def __init__(self, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, layout: Layout) -> Terms:
        return terms_of(self.encoding, layout)


def in_a_model(kind: type[PositionalEncoding]) -> int:
    config = Model(
        depth=3, width=128, num_heads=8, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    return Transformer(config, kind, Task(5, 32, 5, causal=True)).positional_parameters()


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (RelativeBias, (2 * 128 + 1) * 8),
        (T5, 32 * 8),
        (KerpleLog, 2 * 8),
        (KerplePower, 2 * 8),
        (Fire, 3 * (2 + 2 * 32 + 33 * 8)),
    ],
)
def test_parameters_are_as_many_as_in_the_source(kind: type[PositionalEncoding], count: int) -> None:
    """Three layers of 8 heads: all but FIRE are shared by layers."""
    assert in_a_model(kind) == count


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (RelativeBias, {"max_distance": 0}),
        (T5, {"num_buckets": 31}),
        (T5, {"num_buckets": 0}),
        (T5, {"max_distance": 0}),
        (Fire, {"hidden": 0}),
    ],
)
def test_a_setting_out_of_range_is_named(kind: type[PositionalEncoding], setting: dict) -> None:
    ((key, value),) = setting.items()
    with pytest.raises(ValueError, match=rf"^{key} must be .*, got {value!r}$"):
        kind(SIZES, **setting)


@pytest.mark.parametrize("kind", KINDS)
def test_bias_beyond_l_has_the_same_bits_in_low_precision(kind: type[PositionalEncoding]) -> None:
    encoding, layout = kind(SIZES), layout_at(list(range(0, 400, 3)))
    h = torch.zeros(1, layout.segment.shape[1], H * d)
    expected = encoding.terms(h, layout)
    with torch.autocast("cpu", torch.bfloat16):
        got = encoding.terms(h.bfloat16(), layout)
    for name in ("distance_bias", "pair_bias"):
        if (want := getattr(expected, name)) is not None:
            assert want.dtype == torch.float32
            assert torch.equal(getattr(got, name), want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_in_bfloat16_forms_its_bias_in_float32(kind: type[PositionalEncoding]) -> None:
    for pos in (list(range(5)), FAR):
        terms = terms_of(kind(SIZES).bfloat16(), layout_at(pos), torch.bfloat16)
        assert (terms.distance_bias if terms.pair_bias is None else terms.pair_bias).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_padding_at_any_position_gives_no_nan(kind: type[PositionalEncoding], causal: bool) -> None:
    """Outputs of the other tokens do not change either."""
    pos, segment = torch.tensor([[-900_000, -7, 0, 1, 30, 40, 70_000]]), torch.zeros(1, 7, dtype=torch.long)
    segment[0, [0, 1, 6]] = PADDING
    encoding, layout = moved(kind), Layout(pos, segment, causal)
    q, k, v = (torch.randn(1, H, 7, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = attend(q, k, v, terms_of(encoding, layout), layout, "reference")
    alone = layout_at([0, 1, 30, 40], causal)
    cut = [x[:, :, 2:6] for x in (q, k, v)]
    assert_close(out[:, :, 2:6], attend(*cut, terms_of(encoding, alone), alone, "reference"), **EQUAL)
    for gradient in torch.autograd.grad(out, (q, k, v, *encoding.parameters()), torch.randn_like(out)):
        assert gradient.isfinite().all()


def test_relative_bias_starts_at_random_around_zero() -> None:
    table = RelativeBias(Sizes(64, 64, 16)).table
    # 16,448 draws: mean and deviation are known to 1 %
    assert table.mean().item() == pytest.approx(0, abs=0.001)
    assert table.std().item() == pytest.approx(0.02, rel=0.03)


def test_relative_bias_has_one_scalar_for_all_distances_beyond_its_reach() -> None:
    got = added(moved(RelativeBias, max_distance=4), layout_at([0, 4, 5, 90, 5_000], causal=False))
    assert torch.equal(got[:, 3, 0], got[:, 1, 0])
    assert torch.equal(got[:, 0, 4], got[:, 0, 1])
    assert not torch.equal(got[:, 0, 1], got[:, 1, 0])


@pytest.mark.proves("t5", by="transformers")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 256), (16, 100), (64, 128)])
def test_t5_equals_transformers(causal: bool, num_buckets: int, max_distance: int) -> None:
    """Compare buckets and biases of all distances up to 300."""
    pytest.importorskip("transformers")
    from transformers.models.t5.configuration_t5 import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=H * d,
        num_heads=H,
        d_kv=d,
        is_decoder=causal,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5(replace(SIZES, causal=causal), num_buckets=num_buckets, max_distance=max_distance)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(ours.table)
    seen = torch.ones(301, 301, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    expected = theirs.compute_bias(301, 301)[0]
    assert torch.equal(added(ours, layout_at(list(range(301)), causal), torch.float32)[:, seen], expected[:, seen])
    buckets = T5Attention._relative_position_bucket(
        -torch.arange(301), bidirectional=not causal, num_buckets=num_buckets, max_distance=max_distance
    )
    mine = t5_buckets(num_buckets if causal else num_buckets // 2, max_distance)
    assert [mine[min(n, max_distance)] for n in range(301)] == buckets.tolist()


@pytest.mark.parametrize("num_buckets", [2, 4, 32, 100])
@pytest.mark.parametrize("max_distance", [51, 128, 1_000])
def test_t5_uses_its_buckets_in_order(num_buckets: int, max_distance: int) -> None:
    buckets = t5_buckets(num_buckets, max_distance)
    assert buckets[: num_buckets // 2] == list(range(num_buckets // 2))
    assert buckets == sorted(buckets)
    assert buckets[max_distance] == num_buckets - 1


def test_t5_starts_as_wide_as_transformers_has_it() -> None:
    table = T5(Sizes(64, 64, 16), num_buckets=256, max_distance=200).table
    assert table.mean().item() == pytest.approx(0, abs=0.005)
    assert table.std().item() == pytest.approx(64**-0.5, rel=0.03)


@pytest.mark.parametrize(("causal", "near"), [(True, 16), (False, 8)])
def test_t5_needs_distances_beyond_those_with_a_bucket_each(causal: bool, near: int) -> None:
    sizes = replace(SIZES, causal=causal)
    T5(sizes, max_distance=near + 1)
    with pytest.raises(ValueError, match=rf"^max_distance must be above the {near} .*, got max_distance={near},"):
        T5(sizes, max_distance=near)


@pytest.mark.parametrize("kind", [KerpleLog, KerplePower])
def test_kerple_starts_uniform(kind: type[KerpleLog]) -> None:
    encoding = kind(Sizes(10_000, 10_000, 16))
    for parameter, high in ((encoding.p, 2), (encoding.a, 1)):
        assert parameter.min() == torch.tensor(0.01)  # the lowest that it may be
        assert 0.99 * high < parameter.max().item() <= high
        assert parameter.mean().item() == pytest.approx(high / 2, rel=0.03)
    assert abs(torch.corrcoef(torch.stack((encoding.p, encoding.a)).detach())[0, 1].item()) < 0.05


@pytest.mark.parametrize(
    ("kind", "p"), [(KerpleLog, [0.01, 0.01, 5.0]), (KerplePower, [0.01, 0.01, 2.0])], ids=["log", "power"]
)
def test_kerple_takes_its_parameters_in_their_range_puts_them_back_and_keeps_their_gradient(
    kind: type[KerpleLog], p: list[float]
) -> None:
    encoding, layout = kind(SIZES).double(), layout_at([0, 1, 2, 5])
    with torch.no_grad():
        encoding.p.copy_(torch.tensor([-3.0, 0.0, 5.0]))
        encoding.a.copy_(torch.tensor([0.5, -1.0, 7.0]))
    got = added(encoding, layout)
    assert encoding.p.tolist() == [-3.0, 0.0, 5.0]
    assert encoding.a.tolist() == [0.5, -1.0, 7.0]
    got[:, 3, :3].sum().backward()
    outside = [encoding.p.grad.clone(), encoding.a.grad.clone()]
    assert all(grad.all() for grad in outside)
    encoding.zero_grad()
    encoding.constrain()
    assert encoding.p.tolist() == p
    assert encoding.a.tolist() == [0.5, 0.01, 7.0]
    assert_close(got[:, 3, 0], FORMULAS[kind](encoding, 5, 0, True), **EQUAL)
    added(encoding, layout)[:, 3, :3].sum().backward()
    assert_close(outside, [encoding.p.grad, encoding.a.grad], **EQUAL)


@pytest.mark.parametrize("kind", [KerpleLog, KerplePower])
def test_kerple_may_be_evaluated_twice_before_a_backward(kind: type[KerpleLog]) -> None:
    encoding, layout = kind(SIZES).double(), layout_at([0, 1, 5])
    upstream = torch.randn(H, 3, 3, dtype=torch.float64)
    (added(encoding, layout) * upstream).sum().backward()
    once = encoding.p.grad.clone()
    encoding.zero_grad()
    sum((added(encoding, layout) * upstream).sum() for _ in range(2)).backward()
    assert_close(encoding.p.grad, 2 * once, **EQUAL)


def test_fire_starts_at_the_training_length() -> None:
    encoding = Fire(Sizes(H * d, H, 77))
    assert encoding.c.item() == pytest.approx(0.1)
    at_l, beyond = terms_of(encoding, layout_at([0, 77])), terms_of(encoding, layout_at([0, 78]))
    assert at_l.distance_bias is not None
    assert at_l.pair_bias is None
    assert beyond.distance_bias is None
    assert beyond.pair_bias is not None


def test_fire_compares_positions_and_not_distances_with_l() -> None:
    assert_as_in_the_source(moved(Fire), [14, 20, 25], causal=False)


def test_fire_is_one_function_below_and_beyond_l() -> None:
    """The table by distance and the full bias agree for queries at positions up to L."""
    encoding = moved(Fire)
    table, full = layout_at([0, 1, 5, 12]), layout_at([0, 1, 5, 12, 90])
    assert terms_of(encoding, table).distance_bias is not None
    assert_close(added(encoding, full)[:, :4, :4], added(encoding, table), rtol=0, atol=1e-15)


def test_fire_takes_distances_beyond_l_as_shares_of_the_querys_position() -> None:
    """The distance to the first key is always 1, as a share of the query's position."""
    encoding = moved(Fire)
    got = added(encoding, layout_at([0, 100, 5_000]))
    assert_close(got[:, 1, 0], got[:, 2, 0], rtol=0, atol=1e-5)
    assert (got[:, 2, 1] - got[:, 1, 0]).abs().max() > 1e-4


@pytest.mark.parametrize("stretch", [-1.5, 0.5, 3.0])
def test_fire_follows_its_trained_l(stretch: float) -> None:
    encoding = moved(Fire)
    with torch.no_grad():
        encoding.stretch.fill_(stretch)
    for end in (int(abs(stretch) * L), int(abs(stretch) * L) + 1):
        assert (terms_of(encoding, layout_at([0, end])).distance_bias is None) is (end > abs(stretch) * L)
        assert_as_in_the_source(encoding, [0, 3, end - 1, end + 1], causal=True)
