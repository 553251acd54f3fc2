"""Encodings that stretch RoPE beyond its training length, against frequencies computed one pair at a time."""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.families.rotary import PRoPE, RoPE, XPos
from pe_lab.encodings.families.rotary_scaled import LLAMA3, DynamicNTKRoPE, InterpolatedRoPE, LongRoPE, NTKRoPE, Yarn
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms
from pe_lab.model.transformer import Transformer

B, H, d = 2, 2, 16
L0 = 1_000  # the ramp of YaRN has all its parts here: RoPE's pairs rotate 159 ... 0.05 times
SIZES = Sizes(width=H * d, num_heads=H, length=L0)
SCALED = [InterpolatedRoPE, NTKRoPE, DynamicNTKRoPE, Yarn]
F32 = torch.finfo(torch.float32).eps


def layout_at(*pos: list[int]) -> Layout:
    size = (len(pos), len(pos[0]))
    return Layout(torch.tensor(pos), torch.zeros(size, dtype=torch.long), causal=True)


def terms(encoding: RoPE, layout: Layout, dtype: torch.dtype = torch.float32) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, encoding.sizes.width, dtype=dtype), layout)


def logits(encoding: RoPE, q: Tensor, k: Tensor, layout: Layout) -> Tensor:
    return reference.logits(q, k, terms(encoding, layout, q.dtype), layout)


def assert_same_tables(encoding: RoPE, other: RoPE, layout: Layout) -> None:
    for dtype in (torch.float32, torch.float64):
        got, expected = terms(encoding, layout, dtype).rotary_q, terms(other, layout, dtype).rotary_q
        assert torch.equal(got.cos, expected.cos)
        assert torch.equal(got.sin, expected.sin)


def plain(theta: float, r: int) -> list[float]:
    """arXiv:2104.09864 in the first r dimensions."""
    return [theta ** (-2 * c / r) for c in range(r // 2)]


def interpolated(theta: float, factor: float) -> list[float]:
    """arXiv:2306.15595: position m becomes m / s."""
    return [theta ** (-2 * c / d) / factor for c in range(d // 2)]


def llama3(theta: float, factor: float, low: float, high: float) -> list[float]:
    """The rule of Llama 3.1, by wavelengths."""
    out = []
    for omega in plain(theta, d):
        wavelength = 2 * math.pi / omega
        if wavelength < L0 / high:
            out.append(omega)
        elif wavelength > L0 / low:
            out.append(omega / factor)
        else:
            smooth = (L0 / wavelength - low) / (high - low)
            out.append((1 - smooth) * omega / factor + smooth * omega)
    return out


SHORT, LONG = [1.0 + c / 10 for c in range(d // 2)], [1.0 + c for c in range(d // 2)]


def longrope(theta: float, length: int, short: list[float], long: list[float]) -> list[float]:
    """arXiv:2402.13753, eq. 2: 1 / (lambda_c theta^(2c/d))."""
    return [1 / (x * theta ** (2 * c / d)) for c, x in enumerate(long if length > L0 else short)]


def ntk(theta: float, factor: float) -> list[float]:
    """arXiv:2309.00071, definition 1."""
    return [(theta * factor ** (d / (d - 2))) ** (-2 * c / d) for c in range(d // 2)]


def dynamic_ntk(theta: float, factor: float, length: int) -> list[float]:
    return ntk(theta, factor * max(length, L0) / L0 - (factor - 1))


def yarn_paper(theta: float, factor: float, alpha: float, beta: float) -> list[float]:
    """arXiv:2309.00071, definition 2: h(theta_d) = (1 - gamma(r)) theta_d / s + gamma(r) theta_d, r = L / lambda_d."""
    out = []
    for c in range(d // 2):
        wavelength = 2 * math.pi * theta ** (2 * c / d)
        r = L0 / wavelength
        gamma = 0 if r < alpha else 1 if r > beta else (r - alpha) / (beta - alpha)
        out.append((1 - gamma) * theta ** (-2 * c / d) / factor + gamma * theta ** (-2 * c / d))
    return out


def yarn_code(theta: float, factor: float, alpha: float, beta: float) -> list[float]:
    """The ramp in c, from the pair of wavelength L / beta, rounded down, to that of L / alpha, rounded up."""
    low, high = (d / 2 * math.log(L0 / (2 * math.pi * r), theta) for r in (beta, alpha))
    low, high = max(math.floor(low), 0), min(math.ceil(high), d - 1)
    out = []
    for c in range(d // 2):
        divided = min(max((c - low) / (high - low), 0), 1)
        out.append(theta ** (-2 * c / d) * (1 - divided) + theta ** (-2 * c / d) / factor * divided)
    return out


PAPERS = {
    "rope_pi": (
        lambda theta: InterpolatedRoPE(SIZES, theta=theta, factor=3.0),
        lambda theta, L: interpolated(theta, 3.0),
    ),
    "rope_pi, pairs in halves": (
        lambda theta: InterpolatedRoPE(SIZES, theta=theta, pairing="half"),
        lambda theta, L: interpolated(theta, 4.0),
    ),
    "rope_ntk": (lambda theta: NTKRoPE(SIZES, theta=theta, factor=3.0), lambda theta, L: ntk(theta, 3.0)),
    "rope_ntk, default": (lambda theta: NTKRoPE(SIZES, theta=theta), lambda theta, L: ntk(theta, 4.0)),
    "rope_dynamic_ntk": (lambda theta: DynamicNTKRoPE(SIZES, theta=theta), lambda theta, L: dynamic_ntk(theta, 1.0, L)),
    "rope_dynamic_ntk, twice as fast": (
        lambda theta: DynamicNTKRoPE(SIZES, theta=theta, factor=2.0, pairing="half"),
        lambda theta, L: dynamic_ntk(theta, 2.0, L),
    ),
    "yarn": (lambda theta: Yarn(SIZES, theta=theta), lambda theta, L: yarn_paper(theta, 4.0, 1, 32)),
    "yarn, other ends": (
        lambda theta: Yarn(SIZES, theta=theta, factor=8.0, beta_fast=20.0, beta_slow=0.5, pairing="half"),
        lambda theta, L: yarn_paper(theta, 8.0, 0.5, 20),
    ),
    "rope, a quarter of the dimensions": (
        lambda theta: RoPE(SIZES, theta=theta, rotary_dim=4),
        lambda theta, L: plain(theta, 4),
    ),
    "rope, dimensions in halves of six": (
        lambda theta: RoPE(SIZES, theta=theta, rotary_dim=6, pairing="half"),
        lambda theta, L: plain(theta, 6),
    ),
    "rope_ntk, six dimensions": (
        lambda theta: NTKRoPE(SIZES, theta=theta, rotary_dim=6, factor=3.0, pairing="half"),
        lambda theta, L: [(theta * 3.0 ** (6 / 4)) ** (-2 * c / 6) for c in range(3)],
    ),
    "yarn, its factor given": (
        lambda theta: Yarn(SIZES, theta=theta, attention_factor=0.5, rotary_dim=16),
        lambda theta, L: yarn_paper(theta, 4.0, 1, 32),
    ),
    "llama3": (lambda theta: Yarn(SIZES, theta=theta, factor=8.0, **LLAMA3), lambda theta, L: llama3(theta, 8.0, 1, 4)),
    "llama3, other bands": (
        lambda theta: Yarn(SIZES, theta=theta, factor=2.0, beta_fast=9.0, beta_slow=0.5, attention_factor=1.0),
        lambda theta, L: llama3(theta, 2.0, 0.5, 9),
    ),
    "longrope": (lambda theta: LongRoPE(SIZES, theta=theta), lambda theta, L: ntk(theta, 4.0 if L > L0 else 1.0)),
    "longrope, factors given": (
        lambda theta: LongRoPE(
            SIZES, theta=theta, factor=3.0, pairing="half", short_factors=SHORT, long_factors=LONG, attention_factor=1.5
        ),
        lambda theta, L: longrope(theta, L, SHORT, LONG),
    ),
    "yarn, code": (lambda theta: Yarn(SIZES, theta=theta, ramp="code"), lambda theta, L: yarn_code(theta, 4.0, 1, 32)),
    "yarn, code, other ends": (
        lambda theta: Yarn(SIZES, theta=theta, factor=8.0, beta_fast=20.0, beta_slow=0.5, ramp="code"),
        lambda theta, L: yarn_code(theta, 8.0, 0.5, 20),
    ),
}


FACTORS = {  # of cosine and sine, by the formulas of the sources
    "yarn, other ends": 0.1 * math.log(8) + 1,
    "yarn, code, other ends": 0.1 * math.log(8) + 1,
    "yarn, its factor given": 0.5,
    "longrope": math.sqrt(1 + math.log(4) / math.log(L0)),
    "longrope, factors given": 1.5,
}


@pytest.mark.proves("{which}")
@pytest.mark.parametrize("which", PAPERS)
@pytest.mark.parametrize("theta", [10_000.0, 500.0])
@pytest.mark.parametrize("length", [7, 63, 129])
def test_logits_are_those_of_the_papers_frequencies(which: str, theta: float, length: int) -> None:
    """Values and gradients; the second row ends beyond the original length, the first does not."""
    make, paper = PAPERS[which]
    encoding, pos = make(theta), [list(range(length)), list(range(3_000, 3_000 + length))]
    size = FACTORS.get(which, 0.1 * math.log(4) + 1 if which.startswith("yarn") else 1.0)
    rotate = torch.eye(d, dtype=torch.float64).repeat(B, length, 1, 1)
    for b, row in enumerate(pos):
        omegas = paper(theta, row[-1] + 1)
        for c, omega in enumerate(omegas):
            x, y = (2 * c, 2 * c + 1) if encoding.pairing == "interleaved" else (c, c + len(omegas))
            for t, m in enumerate(row):
                rotate[b, t, x, x] = rotate[b, t, y, y] = size * math.cos(m * omega)
                rotate[b, t, y, x], rotate[b, t, x, y] = size * math.sin(m * omega), -size * math.sin(m * omega)
    q, k = (torch.randn(B, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(2))
    got = logits(encoding, q, k, layout_at(*pos))
    rotated_q, rotated_k = (torch.einsum("btij,bhtj->bhti", rotate, x) for x in (q, k))
    expected = torch.einsum("bhti,bhsi->bhts", rotated_q, rotated_k) / math.sqrt(d)
    # angles up to 3e3 round by 1e-12, and logits of size 10 with them
    assert_close(got, expected, rtol=0, atol=1e-10)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_depends_only_on_offset(kind: type[RoPE], dtype: torch.dtype) -> None:
    """Offsets are within a document: its last position fixes the base of DynamicNTKRoPE."""
    q, k = torch.randn(2, 1, H, 1, d, dtype=dtype).expand(-1, -1, -1, 3, -1)
    at = [5, 50, 500, 5_000]
    z = [logits(kind(SIZES), q, k, layout_at([p, p + 3, 5_010]))[..., :2, :2] for p in at]
    size = (0.1 * math.log(4) + 1) ** 2 * (q.norm(dim=-1) * k.norm(dim=-1)).max().item() / math.sqrt(d)
    for p, value in zip(at, z, strict=True):
        assert_close(value, z[0], rtol=0, atol=4 * p * torch.finfo(dtype).eps * size)
    assert (z[0][..., 1, 0] - z[0][..., 0, 0]).abs().min() > 1e-3


@pytest.mark.parametrize("kind", SCALED)
def test_angles_are_exact_where_bfloat16_cannot_count(kind: type[RoPE]) -> None:
    layout = layout_at([0, 257, 259, 5_001])
    expected = terms(kind(SIZES), layout, torch.float64).rotary_q
    with torch.autocast("cpu", torch.bfloat16):
        got = terms(kind(SIZES), layout, torch.bfloat16).rotary_q
    assert got.cos.dtype == got.sin.dtype == torch.float32
    atol = layout.pos[:, None, :, None] * 2 * F32 + 2 * F32
    for a, b in ((got.cos, expected.cos), (got.sin, expected.sin)):
        assert ((a - b).abs() <= atol).all()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (InterpolatedRoPE, {}),
        (NTKRoPE, {}),
        (DynamicNTKRoPE, {"original_length": 10_000}),
        (Yarn, {}),
        (Yarn, {"ramp": "code"}),
        (Yarn, {"beta_fast": 3.0, "beta_slow": 0.7}),
        (Yarn, {"beta_fast": 4.0, "attention_factor": 1.0}),  # llama3
        (LongRoPE, {}),
    ],
)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_factor_one_is_rope(kind: type[RoPE], settings: dict, pairing: str) -> None:
    """The rotations are equal bit for bit."""
    layout = layout_at([0, 1, 5, 63, 999], [7, 500, 1_000, 5_000, 9_999])
    encoding = kind(SIZES, pairing=pairing, factor=1.0, **settings)
    assert_same_tables(encoding, RoPE(SIZES, pairing=pairing), layout)
    assert terms(encoding, layout).rotary_q.pairing == pairing


@pytest.mark.parametrize("kind", SCALED)
def test_a_factor_above_one_is_not_rope(kind: type[RoPE]) -> None:
    layout = layout_at([0, 1, 5, 63, 2_000])
    got = terms(kind(SIZES, factor=2.0), layout).rotary_q
    assert not torch.allclose(got.cos, terms(RoPE(SIZES), layout).rotary_q.cos)


@pytest.mark.parametrize("kind", [PRoPE, XPos, *SCALED])
def test_weights_trained_with_rope_load_as_they_are(kind: type[RoPE]) -> None:
    config = Model(
        depth=2, width=H * d, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    trained = Transformer(config, RoPE, Task(11, 8, 11, causal=True))
    initialise_parameters(trained, seed=0)
    model = Transformer(config, kind, Task(11, 8, 11, causal=True))
    model.load_state_dict(trained.state_dict(), strict=True)
    assert model.positional_parameters() == 0
    tokens = torch.randint(11, (2, 32))
    layout = Layout.of_lengths(torch.tensor([32, 20]), 32, causal=True)
    got, rope = model(tokens, layout), trained(tokens, layout)
    assert got.isfinite().all()
    assert not torch.allclose(got, rope)
    if kind in SCALED:
        model.encodings[0] = kind(model.encodings[0].sizes, factor=1.0)
        short = Layout.of_lengths(torch.tensor([8, 5]), 8, causal=True)
        assert torch.equal(model(tokens[:, :8], short), trained(tokens[:, :8], short))


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_ntk_divides_the_lowest_frequency_by_the_factor_and_leaves_the_highest(factor: float) -> None:
    omega = NTKRoPE(SIZES, factor=factor).omega(torch.device("cpu"))[0]
    rope = RoPE(SIZES).omega(torch.device("cpu"))[0]
    assert omega[0] == rope[0] == 1
    assert_close(omega[-1], rope[-1] / factor, rtol=1e-14, atol=0)
    assert (omega[1:-1] > rope[1:-1] / factor).all()


def test_yarn_keeps_the_fast_pairs_and_divides_the_slow_ones() -> None:
    for ramp in ("paper", "code"):
        ratio = [Yarn(SIZES, ramp=ramp), RoPE(SIZES)]
        yarn, rope = (e.omega(torch.device("cpu"))[0] for e in ratio)
        kept = (yarn / rope).tolist()
        assert kept[0] == 1
        assert kept[-1] == 1 / 4
        assert kept == sorted(kept, reverse=True)
        assert any(1 / 4 < x < 1 for x in kept)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_dimensions_beyond_rotary_dim_stay_as_they_are_in_every_implementation(pairing: str) -> None:
    """The factor of YaRN is on those that rotate alone."""
    layout = layout_at([0, 3, 2_000])
    x = torch.randn(1, H, 3, d)
    for encoding in (RoPE(SIZES, pairing=pairing, rotary_dim=6), Yarn(SIZES, pairing=pairing, rotary_dim=6)):
        made = terms(encoding, layout)
        rotated, _ = reference.queries_and_keys(x, x, made)
        assert torch.equal(rotated[..., 6:], x[..., 6:])
        assert (rotated[..., :6] - x[..., :6])[:, :, 1:].abs().min() > 0
        assert made.rotary_q.cos.shape == (1, 1, 3, 3)
        first = attend(x, x, x, made, layout, "reference")
        assert_close(attend(x, x, x, made, layout, "sdpa"), first, rtol=0, atol=1e-6)


def test_a_document_of_longrope_has_the_factors_of_its_own_length() -> None:
    encoding = LongRoPE(replace(SIZES, length=20), short_factors=SHORT, long_factors=LONG, attention_factor=1.0)
    packed = Layout(
        torch.cat((torch.arange(20), torch.arange(21)))[None],
        torch.tensor([[0] * 20 + [1] * 21]),
        causal=True,
    )
    got = terms(encoding, packed, torch.float64).rotary_q.cos[0, 0]
    for part, factors in ((got[:20], SHORT), (got[20:], LONG)):
        omega = torch.tensor(plain(10_000.0, d), dtype=torch.float64) / torch.tensor(factors, dtype=torch.float64)
        assert_close(part, (torch.arange(len(part))[:, None] * omega).cos(), rtol=0, atol=1e-14)


def test_mscales_are_a_ratio_and_take_the_place_of_the_factor() -> None:
    both = Yarn(SIZES, factor=40.0, mscale=1.0, mscale_all_dim=0.5)
    assert both.attention_factor == (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)
    assert Yarn(SIZES, factor=40.0, mscale=0.7, mscale_all_dim=0.7).attention_factor == 1
    assert Yarn(SIZES, attention_factor=0.3).attention_factor == 0.3


def test_ends_of_the_ramp_that_are_not_rounded_lie_between_pairs() -> None:
    exact, rounded = (Yarn(SIZES, ramp="code", truncate=truncate) for truncate in (False, True))
    assert rounded.low < exact.low < rounded.low + 1
    assert rounded.high - 1 < exact.high < rounded.high


def test_yarn_scales_queries_and_keys_both() -> None:
    """Logits by the square of 0.1 ln s + 1: the paper's 1 / t."""
    q, k = torch.randn(2, 1, H, 1, d, dtype=torch.float64)
    for factor in (4.0, 32.0):
        z = logits(Yarn(SIZES, factor=factor), q, k, layout_at([0]))[0, :, 0, 0]
        expected = (0.1 * math.log(factor) + 1) ** 2 * (q * k).sum(-1)[0, :, 0] / math.sqrt(d)
        assert_close(z, expected, rtol=0, atol=1e-13)


def alone(encoding: DynamicNTKRoPE, pos: list[int]) -> Tensor:
    rotary = terms(encoding, layout_at(pos), torch.float64).rotary_q
    return torch.complex(rotary.cos, rotary.sin)[0, 0]


def as_complex(encoding: DynamicNTKRoPE, layout: Layout) -> Tensor:
    rotary = terms(encoding, layout, torch.float64).rotary_q
    rotate = torch.complex(rotary.cos, rotary.sin)[:, 0]
    assert rotate.isfinite().all()
    return rotate.expand(len(layout.segment), -1, -1)


# positions below 1e3, frequencies that round by 1e-16 a few times
ROTATIONS = {"rtol": 0, "atol": 1e-12}


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_every_sequence_of_a_batch_has_its_own_base(factor: float) -> None:
    encoding = DynamicNTKRoPE(SIZES, factor=factor, original_length=20)
    lengths = [7, 63, 129, 20]
    right = as_complex(encoding, Layout.of_lengths(torch.tensor(lengths), 129, causal=True))
    pos = torch.arange(129) - (129 - torch.tensor(lengths)[:, None])
    left = Layout(pos, torch.where(pos < 0, PADDING, 0), causal=True)
    for b, n in enumerate(lengths):
        expected = alone(encoding, list(range(n)))
        assert_close(right[b, :n], expected, **ROTATIONS)
        assert_close(as_complex(encoding, left)[b, 129 - n :], expected, **ROTATIONS)
        other = alone(replaced(encoding, 1_000), list(range(n)))
        assert torch.allclose(expected, other) is (n <= 20)


def replaced(encoding: DynamicNTKRoPE, original_length: int) -> DynamicNTKRoPE:
    return DynamicNTKRoPE(encoding.sizes, factor=encoding.factor, original_length=original_length)


def test_every_packed_document_has_its_own_base() -> None:
    encoding = DynamicNTKRoPE(SIZES, original_length=20)
    rows = [[63, 7, 40], [5, 100]]
    pos, segment = torch.zeros(2, 129, dtype=torch.long), torch.full((2, 129), PADDING)
    for b, row in enumerate(rows):
        start = 0
        for name, n in enumerate(row):
            pos[b, start : start + n] = torch.arange(n)
            segment[b, start : start + n] = 50 * b + 7 * name  # any integers will do
            start += n
    packed = as_complex(encoding, Layout(pos, segment, causal=True))
    for b, row in enumerate(rows):
        start = 0
        for n in row:
            assert_close(packed[b, start : start + n], alone(encoding, list(range(n))), **ROTATIONS)
            start += n


def test_more_documents_than_tokens_in_a_row_are_distinguished() -> None:
    encoding, n = DynamicNTKRoPE(SIZES, original_length=20), 3
    pos = torch.arange(n) + 30 * torch.arange(5)[:, None]
    segment = torch.arange(5 * n).view(5, n)
    rotate = as_complex(encoding, Layout(pos, segment, causal=True))
    for b in range(5):
        for t in range(n):
            assert_close(rotate[b, t], alone(encoding, [int(pos[b, t])])[0], **ROTATIONS)


def test_length_is_the_largest_position_of_the_document() -> None:
    """The length is not the number of tokens: a document may start anywhere and skip positions."""
    encoding = DynamicNTKRoPE(SIZES, original_length=20)
    expected = alone(encoding, list(range(64)))
    assert_close(alone(encoding, [3, 40, 63]), expected[[3, 40, 63]], **ROTATIONS)
    assert_close(alone(encoding, [60, 61, 62, 63]), expected[60:], **ROTATIONS)
    assert_same_tables(encoding, RoPE(SIZES), layout_at(list(range(20))))
    assert not torch.allclose(alone(encoding, list(range(21)))[1:, 1:], expected[1:21, 1:])


def test_nothing_is_kept_between_documents() -> None:
    encoding = DynamicNTKRoPE(SIZES, original_length=20)
    before = alone(encoding, list(range(30)))
    alone(encoding, list(range(500)))
    assert torch.equal(alone(encoding, list(range(30))), before)
    assert not encoding.state_dict()


def test_dynamic_ntk_at_factor_one_is_ntk_at_the_documents_length() -> None:
    layout = layout_at(list(range(3_000)))
    got = terms(DynamicNTKRoPE(SIZES), layout, torch.float64).rotary_q
    expected = terms(NTKRoPE(SIZES, factor=3.0), layout, torch.float64).rotary_q
    assert_close((got.cos, got.sin), (expected.cos, expected.sin), rtol=0, atol=1e-11)


@pytest.mark.parametrize("length", [5, 129])
def test_whole_sequences_share_one_table(length: int) -> None:
    encoding = DynamicNTKRoPE(SIZES, original_length=20)
    whole = Layout.of_lengths(torch.full((3,), length), length, causal=True)
    assert terms(encoding, whole).rotary_q.cos.shape == (1, 1, length, d // 2)


def test_padding_stays_finite_wherever_it_lies() -> None:
    pos = torch.tensor([[-(10**9), -1, 0, 40], [0, 1, 2, 10**9]])
    layout = Layout(pos, torch.tensor([[-1, -1, 0, 0], [0, 0, 0, -1]]), causal=True)
    nothing = replace(layout, segment=torch.full_like(pos, PADDING))
    for kind in SCALED:
        for at in (layout, nothing):
            rotary = terms(kind(replace(SIZES, length=20)), at).rotary_q
            assert rotary.cos.isfinite().all()
            assert rotary.sin.isfinite().all()


def theirs(rope: dict, max_length: int, sizes: Sizes, q: Tensor, k: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """q and k rotated by transformers' Llama."""
    pytest.importorskip("transformers")
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=sizes.width,
        num_attention_heads=sizes.num_heads,
        max_position_embeddings=max_length,
        rope_parameters=rope,
    )
    return apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(q, layout.pos))


def assert_equals_theirs(encoding: RoPE, rope: dict, max_length: int, pos: list[int]) -> None:
    sizes, layout = encoding.sizes, layout_at(pos)
    q, k = torch.randn(2, 1, sizes.num_heads, len(pos), sizes.head_dim)
    rotated = reference.queries_and_keys(q, k, terms(encoding, layout))
    # both take angles in float32, from frequencies that round differently, theirs three times
    atol = (max(pos) + 2) * 4 * F32 * 1.5 * max(q.abs().max().item(), k.abs().max().item()) * math.sqrt(2)
    for ours, other in zip(rotated, theirs(rope, max_length, sizes, q, k, layout), strict=True):
        assert_close(ours, other, rtol=0, atol=atol)


@pytest.mark.proves("rope_pi", by="transformers")
def test_pi_equals_transformers_linear_scaling() -> None:
    rope = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    assert_equals_theirs(InterpolatedRoPE(SIZES, pairing="half"), rope, L0, [0, 1, 5, 256, 1_000])


@pytest.mark.proves("rope_dynamic_ntk", by="transformers")
@pytest.mark.parametrize("factor", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("length", [7, 63, 64, 65, 129, 1_000])
def test_dynamic_ntk_equals_transformers(factor: float, length: int) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": factor}
    encoding = DynamicNTKRoPE(SIZES, factor=factor, original_length=64, pairing="half")
    assert_equals_theirs(encoding, rope, 64, list(range(length)))


@pytest.mark.proves("yarn", by="transformers")
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("original_length", [6, 64, 1_000, 4_096])
@pytest.mark.parametrize(("theta", "factor"), [(10_000.0, 4.0), (500_000.0, 16.0), (10.0, 4.0)])
def test_yarn_in_dims_equals_transformers(head_dim: int, original_length: int, theta: float, factor: float) -> None:
    """At length 6 the ramp has no width: pair 0 alone is kept. With theta 10 it ends at the clamp."""
    sizes = Sizes(H * head_dim, H, original_length)
    encoding = Yarn(sizes, theta=theta, factor=factor, ramp="code", pairing="half")
    rope = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original_length,
    }
    assert_equals_theirs(encoding, rope, int(factor * original_length), [0, 1, 5, 256, 1_000])


def test_original_length_is_the_training_length_unless_given() -> None:
    for kind in (DynamicNTKRoPE, Yarn):
        assert kind(SIZES).original_length == L0
        assert kind(SIZES, original_length=12).original_length == 12
    layout = layout_at(list(range(129)))
    assert_same_tables(Yarn(replace(SIZES, length=12)), Yarn(SIZES, original_length=12), layout)
    assert not torch.equal(
        terms(Yarn(SIZES), layout).rotary_q.cos, terms(Yarn(SIZES, original_length=12), layout).rotary_q.cos
    )


@pytest.mark.parametrize("kind", [NTKRoPE, DynamicNTKRoPE])
def test_a_head_of_one_pair_is_refused(kind: type[RoPE]) -> None:
    with pytest.raises(ValueError, match=r"head_dim must be at least 4, got 2 \(width=4, num_heads=2\)$"):
        kind(Sizes(4, 2, 16))


@pytest.mark.parametrize("kind", SCALED)
def test_a_head_of_odd_size_is_refused(kind: type[RoPE]) -> None:
    with pytest.raises(ValueError, match=r"rotates pairs: head_dim must be even, got 33 "):
        kind(Sizes(width=132, num_heads=4, length=16))


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        *((kind, {"factor": 0.5}) for kind in SCALED),
        *((kind, {"factor": math.inf}) for kind in SCALED),
        *((kind, {"original_length": 0}) for kind in (DynamicNTKRoPE, Yarn)),
        *((kind, {"original_length": 8.5}) for kind in (DynamicNTKRoPE, Yarn)),
        (Yarn, {"beta_fast": 0.0}),
        (Yarn, {"beta_slow": -1.0}),
        (Yarn, {"ramp": "linear"}),
        (Yarn, {"attention_factor": 0.0}),
        (LongRoPE, {"original_length": 1}),
        (LongRoPE, {"short_factors": [1.0, 0.0]}),
        (LongRoPE, {"long_factors": []}),
        *((kind, {"rotary_dim": 7}) for kind in (RoPE, *SCALED, LongRoPE)),
        *((kind, {"rotary_dim": 18}) for kind in (RoPE, *SCALED, LongRoPE)),
    ],
)
def test_a_setting_out_of_range_is_named(kind: type[RoPE], setting: dict) -> None:
    ((key, value),) = setting.items()
    with pytest.raises(ValueError, match=rf"^{key} must be .*, got {re.escape(repr(value))}$"):
        kind(SIZES, **setting)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Yarn, {"mscale": 1.0}, r"^mscale=1\.0 and mscale_all_dim=None must both be given, or neither$"),
        (
            Yarn,
            {"mscale": 1.0, "mscale_all_dim": 1.0, "attention_factor": 2.0},
            r"^attention_factor must be null beside mscale=1\.0, got 2\.0$",
        ),
        (Yarn, {"truncate": False}, r"^truncate must be true for ramp=paper, which rounds nothing, got False$"),
        (LongRoPE, {"short_factors": [1.0] * 7}, r"^short_factors must have 8 numbers, .* got 7$"),
        (LongRoPE, {"rotary_dim": 4, "long_factors": [1.0] * 8}, r"^long_factors must have 2 numbers, .* got 8$"),
        (LongRoPE, {"rotary_dim": 2}, r"rotary_dim must be at least 4, got 2$"),
        (NTKRoPE, {"rotary_dim": 2}, r"rotary_dim must be at least 4, got 2$"),
    ],
)
def test_options_that_contradict_each_other_are_refused(kind: type[RoPE], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(SIZES, **options)


def test_settings_that_leave_yarn_no_ramp_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^beta_fast must be above beta_slow=4, got 4$"):
        Yarn(SIZES, beta_fast=4.0, beta_slow=4.0)
    with pytest.raises(ValueError, match=r"^theta must be above 1 for ramp=code, got 1: use ramp=paper$"):
        Yarn(SIZES, theta=1.0, ramp="code")
    with pytest.raises(ValueError, match=r"^ramp=code has a ramp from pair 0 to pair -2 at an original length of 3: "):
        Yarn(Sizes(128, 2, 3), ramp="code")
    assert Yarn(SIZES, theta=1.0).omega(torch.device("cpu")).isfinite().all()
