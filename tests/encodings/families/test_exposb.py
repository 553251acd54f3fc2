"""ExpoSB against the seed report's formulas, one pair of dims at a time, in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.families.exposb import ExpoSB
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms
from pe_lab.model.transformer import Transformer

B, H, d = 2, 2, 16
SIZES = Sizes(width=H * d, num_heads=H, length=16)
FORMS = ["stable", "literal"]
PAIRINGS = ["interleaved", "half"]
# angles up to 1e3 round by 1e-13, and logits of size 10 with them
EQUAL = {"rtol": 0, "atol": 1e-11}


def layout_of(length: int, causal: bool = True) -> Layout:
    return Layout.of_lengths(torch.full((B,), length), length, causal)


def terms_of(encoding: ExpoSB, layout: Layout, dtype: torch.dtype = torch.float64) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=dtype), layout)


def trained(**setting) -> ExpoSB:
    encoding = ExpoSB(SIZES, **setting).double()
    with torch.no_grad():
        encoding.raw.copy_(torch.tensor([-2.0, 0.5]))
        encoding.weight.copy_(torch.tensor([0.7, -1.3]))
    return encoding


def band(dim: int) -> float:
    return 0.8 + 0.4 * math.exp(-(((dim - d / 4) / (d / 8)) ** 2) / 2)


def paper_logits(encoding: ExpoSB, q: Tensor, k: Tensor, pos: list[list[int]]) -> Tensor:
    """[B, H, T, T] of q . k / sqrt(d), every dim of q and k rotated and scaled on its own, and the decay."""
    rate = torch.log(1 + encoding.raw.exp())
    at = torch.tensor(pos, dtype=torch.float64)[:, None]  # [B, 1, T]
    amplitude = 1 + 0.2 * torch.exp(-rate[None, :, None] * at)
    z = 0
    for c in range(d // 2):
        one, two = (2 * c, 2 * c + 1) if encoding.pairing == "interleaved" else (c, c + d // 2)
        by = torch.exp(1j * at * encoding.theta ** (-2 * c / d))
        rotated_q, rotated_k = (
            torch.complex(x[..., one], x[..., two]) * by * amplitude * encoding.weight[None, :, None] for x in (q, k)
        )
        dims = (2 * c, 2 * c) if encoding.form == "stable" else (one, two)
        for part, dim in zip(("real", "imag"), dims, strict=True):
            a, b = getattr(rotated_q, part) * band(dim), getattr(rotated_k, part) * band(dim)
            z = z + a[..., :, None] * b[..., None, :] / math.sqrt(d)
    fade = 0.7 + 0.3 * torch.exp(-0.005 * (at[..., :, None] - at[..., None, :]).abs())
    return z + fade.log() if encoding.form == "stable" else z * fade


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("stable", marks=pytest.mark.proves("exposb")),
        pytest.param("literal", marks=pytest.mark.proves("exposb_literal")),
    ],
)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 63, 129])
def test_exposb_is_the_reports_formula(length: int, causal: bool, pairing: str, form: str) -> None:
    """Values, and gradients of q, k, v and both parameters; positions from 0 and scattered ones."""
    encoding = trained(pairing=pairing, form=form)
    q, k, v = (torch.randn(B, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    layout = layout_of(length, causal)
    pos = [list(range(length)), torch.randint(1, 9, (length,)).cumsum(0).tolist()]
    layout = replace(layout, pos=torch.tensor(pos))
    terms = terms_of(encoding, layout)
    z = paper_logits(encoding, q, k, pos)
    assert_close(reference.logits(q, k, terms, layout), z, **EQUAL)
    if causal:
        z = z.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    share = z.exp() / z.exp().sum(-1, keepdim=True)
    got, expected = attend(q, k, v, terms, layout, "reference"), share @ v
    assert_close(got, expected, **EQUAL)
    upstream, inputs = torch.randn_like(expected), (q, k, v, encoding.raw, encoding.weight)
    gradients = (torch.autograd.grad(x, inputs, upstream) for x in (got, expected))
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_exposb_starts_at_the_reports_values(form: str) -> None:
    """Written down, not computed: amplitude 1.2 at position 0, band 1.2 in its centre, decay 1 at distance 0."""
    encoding, layout = ExpoSB(SIZES, form=form), replace(layout_of(3), pos=torch.tensor([[0, 1000, 100_000]]))
    # ln(e^0.001 - 1)
    assert_close(encoding.raw.detach(), torch.full((H,), -6.90725518), rtol=1e-6, atol=0)
    assert_close(encoding.weight.detach(), torch.ones(H))
    terms = terms_of(encoding, layout, torch.float32)
    size = (terms.rotary_q.cos**2 + terms.rotary_q.sin**2).sqrt()
    expected = torch.tensor([1.2, 1 + 0.2 * math.exp(-1), 1.0])[:, None].expand(H, 3, d // 2)
    # raw rounds by 7 eps / 2, and the exponent 1 with it
    assert_close(size[0], expected, rtol=1e-6, atol=0)
    assert terms.gain.shape == (H, d)
    assert terms.gain[0, d // 4].item() == pytest.approx(1.2, rel=1e-6)
    # one width away: 0.8 + 0.4 e^(-1/2)
    assert terms.gain[1, d // 4 + d // 8].item() == pytest.approx(1.0426123, rel=1e-6)
    fade = terms.distance_bias.exp() if form == "stable" else terms.logit_factors
    assert (terms.logit_factors is None) is (form == "stable")
    assert (terms.distance_bias is None) is (form == "literal")
    middle = fade.shape[1] // 2
    assert fade[0, middle].item() == 1
    # 0.7 + 0.3 e^(-5)
    assert fade[0, [middle - 1000, middle + 1000]].tolist() == pytest.approx([0.70202138] * 2, rel=1e-6)
    assert fade.min().item() == pytest.approx(0.7, rel=1e-6)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_pair_has_one_gain_unless_literal(pairing: str) -> None:
    """With one gain per pair, the logit depends on positions through their offset alone, apart from the amplitude."""
    layout = layout_of(2)
    stable, literal = (terms_of(trained(pairing=pairing, form=form), layout).gain for form in FORMS)
    pairs = stable.view(H, d // 2, 2) if pairing == "interleaved" else stable.view(H, 2, d // 2).mT
    assert torch.equal(pairs[..., 0], pairs[..., 1])
    assert pairs[0].unique().numel() > 2
    assert_close(literal[0], 0.7 * torch.tensor([band(dim) for dim in range(d)], dtype=torch.float64))


def test_exposb_has_a_softmax_and_nothing_else() -> None:
    layout = layout_of(5)
    for form, table in (("stable", "distance_bias"), ("literal", "logit_factors")):
        terms = terms_of(trained(form=form), layout)
        assert terms == replace(Terms(), **{x: getattr(terms, x) for x in ("rotary_q", "rotary_k", "gain", table)})


def test_without_its_own_parts_exposb_is_rope() -> None:
    layout, (q, k) = layout_of(7), torch.randn(2, B, H, 7, d, dtype=torch.float64)
    encoding = ExpoSB(SIZES).double()
    with torch.no_grad():
        encoding.raw.fill_(1e3)  # the amplitude is 1 from position 1 on
    terms = replace(terms_of(encoding, layout), gain=None, distance_bias=None)
    rope = reference.logits(q, k, terms_of(RoPE(SIZES), layout), layout)
    assert_close(reference.logits(q, k, terms, layout)[..., 1:, 1:], rope[..., 1:, 1:], **EQUAL)


@pytest.mark.parametrize("raw", [-6.9, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_before_position_0_does_not_overflow(dtype: torch.dtype, raw: float) -> None:
    """Values and gradients; e^(100 x 10^6) would be infinite."""
    encoding = ExpoSB(SIZES).to(dtype)
    with torch.no_grad():
        encoding.raw.fill_(raw)
    pos, segment = torch.tensor([[-(10**6), -1, 0, 1, 2]]), torch.tensor([[PADDING, PADDING, 0, 0, 0]])
    layout = Layout(pos, segment, causal=True)
    terms = terms_of(encoding, layout, dtype)
    size = (terms.rotary_q.cos**2 + terms.rotary_q.sin**2).sqrt()[0, 0, :, 0]
    assert_close(size[:3], torch.full((3,), 1.2, dtype=dtype))
    q, k, v = (torch.randn(1, H, 5, d, dtype=dtype, requires_grad=True) for _ in range(3))
    out = attend(q, k, v, terms, layout, "reference")
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v, encoding.raw, encoding.weight)):
        assert gradient.isfinite().all()


def test_the_amplitude_distinguishes_absolute_positions() -> None:
    encoding, (q, k) = trained(), torch.randn(2, B, H, 2, d, dtype=torch.float64)
    layout = layout_of(2)
    near, far = (
        reference.logits(q, k, terms_of(encoding, at), at) for at in (layout, replace(layout, pos=layout.pos + 3))
    )
    assert (near - far).abs().min() > 1e-6


def test_a_layer_has_two_parameters_per_head_that_are_never_decayed() -> None:
    config = Model(
        depth=3, width=H * d, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    assert Transformer(config, ExpoSB, Task(5, 4, 5, causal=True)).positional_parameters() == 3 * 2 * H
    assert ExpoSB.weight_decay is False


@pytest.mark.parametrize(("setting", "value"), [("form", "report"), ("theta", 0.0), ("pairing", "none")])
def test_a_setting_out_of_range_is_named(setting: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=rf"^{setting} must be .*, got {value!r}$"):
        ExpoSB(SIZES, **{setting: value})


def test_a_head_of_odd_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^exposb rotates pairs: head_dim must be even, got 33 "):
        ExpoSB(Sizes(width=132, num_heads=4, length=16))
