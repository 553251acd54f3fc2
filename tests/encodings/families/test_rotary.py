"""Encodings that rotate, against rotation matrices and complex numbers made one pair at a time."""

import cmath
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.encodings.families.rotary import ClippedRoPE, LeRoPE, LRoPE, PRoPE, ResonanceRoPE, RoPE, XPos
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.model.transformer import Transformer

B, H, d = 2, 2, 8
SIZES = Sizes(width=H * d, num_heads=H, length=16)
SHARE_HEADS = {"none": H, "heads": 1, "layers": H, "all": 1}
F32 = torch.finfo(torch.float32).eps
# angles up to 1e3 round by 1e-13, and logits of size 10 with them
EQUAL = {"rtol": 0, "atol": 1e-11}


def layout_at(*pos: Sequence[float]) -> Layout:
    size = (len(pos), len(pos[0]))
    exact = torch.long if isinstance(pos[0][0], int) else torch.float64
    return Layout(torch.tensor(pos, dtype=exact), torch.zeros(size, dtype=torch.long), causal=True)


def logits(encoding: RoPE, q: Tensor, k: Tensor, layout: Layout) -> Tensor:
    h = torch.zeros(*layout.segment.shape, encoding.sizes.width, dtype=q.dtype)
    return reference.logits(q, k, encoding.terms(h, layout), layout)


def rotated(encoding: RoPE, x: Tensor, layout: Layout) -> Tensor:
    h = torch.zeros(*layout.segment.shape, encoding.sizes.width, dtype=x.dtype)
    return reference.queries_and_keys(x, x, encoding.terms(h, layout))[0]


def rotation(pos: int, theta: float, pairing: str) -> Tensor:
    """[d, d] the matrix R of arXiv:2104.09864, eq. 15, with theta_c = theta^(-2(c-1)/d)."""
    matrix = torch.zeros(d, d, dtype=torch.float64)
    for c in range(1, d // 2 + 1):
        angle = pos * theta ** (-2 * (c - 1) / d)
        a, b = (2 * c - 2, 2 * c - 1) if pairing == "interleaved" else (c - 1, c - 1 + d // 2)
        matrix[a, a] = matrix[b, b] = math.cos(angle)
        matrix[b, a], matrix[a, b] = math.sin(angle), -math.sin(angle)
    return matrix


POSITIONS = ([0, 1, 2, 3, 10, 700], [5, 6, 9, 255, 256, 257])


@pytest.mark.proves("rope")
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_rope_is_the_papers_rotation(theta: float, pairing: str) -> None:
    """(R_m q) . (R_n k) / sqrt(d), and its gradients."""
    q, k = (torch.randn(B, H, 6, d, dtype=torch.float64, requires_grad=True) for _ in range(2))
    got = logits(RoPE(SIZES, theta=theta, pairing=pairing), q, k, layout_at(*POSITIONS))
    matrices = torch.stack([torch.stack([rotation(p, theta, pairing) for p in row]) for row in POSITIONS])
    rotated_q, rotated_k = (torch.einsum("btij,bhtj->bhti", matrices, x) for x in (q, k))
    expected = torch.einsum("bhti,bhsi->bhts", rotated_q, rotated_k) / math.sqrt(d)
    assert_close(got, expected, **EQUAL)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EQUAL)


@pytest.mark.parametrize("kind", [RoPE, LRoPE, LeRoPE, PRoPE, ResonanceRoPE, XPos])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logit_depends_only_on_offset(kind: type[RoPE], pairing: str, dtype: torch.dtype) -> None:
    encoding = kind(SIZES, pairing=pairing)
    q, k = torch.randn(2, 1, H, 1, d, dtype=dtype)
    at = [5, 50, 500, 5_000]
    z = [logits(encoding, q.expand(-1, -1, 2, -1), k.expand(-1, -1, 2, -1), layout_at([p, p + 3])) for p in at]
    # an angle of size p rounds by p * eps / 2, twice a table and two tables; a logit moves by |q| |k| / sqrt(d) as much
    size = (q.norm(dim=-1) * k.norm(dim=-1)).max().item() / math.sqrt(d)
    for p, value in zip(at, z, strict=True):
        atol = 4 * p * torch.finfo(dtype).eps * size
        assert_close(value[..., 1, 0], z[0][..., 1, 0], rtol=0, atol=atol)
        assert_close(value[..., 0, 1], z[0][..., 0, 1], rtol=0, atol=atol)
    # and does depend on it
    assert (z[0][..., 1, 0] - z[0][..., 0, 0]).abs().min() > 1e-3


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_rotation_keeps_norms_and_mixes_partner_dims(pairing: str) -> None:
    """Every pair keeps its own norm, which a scaling or an addition would change."""
    x = torch.randn(B, H, 6, d, dtype=torch.float64)
    y = rotated(RoPE(SIZES, pairing=pairing), x, layout_at(*POSITIONS))
    partner = 1 if pairing == "interleaved" else d // 2
    for dim in range(0, d, 2) if pairing == "interleaved" else range(d // 2):
        pair = [dim, dim + partner]
        assert_close(y[..., pair].norm(dim=-1), x[..., pair].norm(dim=-1), rtol=1e-13, atol=0)
    one_dim = torch.zeros(1, 1, 1, d, dtype=torch.float64)
    one_dim[..., 0] = 1
    y = rotated(RoPE(Sizes(d, 1, 4), pairing=pairing), one_dim, layout_at([1]))[0, 0, 0]
    assert y.nonzero().flatten().tolist() == [0, partner]
    assert_close(y[[0, partner]], torch.tensor([math.cos(1), math.sin(1)], dtype=y.dtype), rtol=0, atol=1e-15)


def test_pairings_are_equal_up_to_a_fixed_permutation() -> None:
    """Dim 2c of one is dim c of the other, dim 2c + 1 is dim c + d/2."""
    x, layout = torch.randn(B, H, 6, d, dtype=torch.float64), layout_at(*POSITIONS)
    order = [*range(0, d, 2), *range(1, d, 2)]
    interleaved = rotated(RoPE(SIZES, pairing="interleaved"), x, layout)
    half = rotated(RoPE(SIZES, pairing="half"), x[..., order], layout)
    assert_close(half, interleaved[..., order], rtol=0, atol=1e-14)
    assert not torch.allclose(rotated(RoPE(SIZES, pairing="half"), x, layout), interleaved)


def test_rope_rotates_queries_and_keys_but_not_values() -> None:
    layout = layout_at([0, 1, 2])
    terms = RoPE(SIZES).terms(torch.zeros(1, 3, H * d), layout)
    assert terms == replace(type(terms)(), rotary_q=terms.rotary_q, rotary_k=terms.rotary_k)
    v = torch.randn(1, H, 3, d)
    assert_close(attend(v, v, v, terms, layout, "reference")[..., 0, :], v[..., 0, :], rtol=0, atol=0)


@pytest.mark.proves("rope", by="transformers")
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_rope_in_halves_equals_transformers_llama(theta: float) -> None:
    pytest.importorskip("transformers")
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=H * d, num_attention_heads=H, rope_parameters={"rope_type": "default", "rope_theta": theta}
    )
    q, k = torch.randn(2, B, H, 6, d)
    layout = layout_at(*POSITIONS)
    theirs = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(q, layout.pos))
    terms = RoPE(SIZES, theta=theta, pairing="half").terms(torch.zeros(B, 6, H * d), layout)
    # both take angles up to 700 in float32, from frequencies rounded differently
    atol = 700 * 2 * F32 * max(q.abs().max().item(), k.abs().max().item()) * math.sqrt(2)
    for ours, other in zip(reference.queries_and_keys(q, k, terms), theirs, strict=True):
        assert_close(ours, other, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", [RoPE, LRoPE, LeRoPE, PRoPE, ResonanceRoPE, XPos])
def test_a_head_of_odd_size_is_refused(kind: type[RoPE]) -> None:
    with pytest.raises(ValueError, match=r"rotates pairs: head_dim must be even, got 33 \(width=132, "):
        kind(Sizes(width=132, num_heads=4, length=16))


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (RoPE, {"theta": 0.0}),
        (RoPE, {"pairing": "whole"}),
        (LRoPE, {"share": "some"}),
        (LRoPE, {"lr": 0.0}),
        (LRoPE, {"theta": math.nan}),
        (PRoPE, {"p": 1.5}),
        (PRoPE, {"p": -0.1}),
        (XPos, {"scale_base": 0.0}),
    ],
)
def test_a_setting_out_of_range_is_named(kind: type[RoPE], setting: dict) -> None:
    ((key, value),) = setting.items()
    with pytest.raises(ValueError, match=rf"^{key} must be .*, got {value!r}$"):
        kind(SIZES, **setting)


@pytest.mark.parametrize("share", SHARE_HEADS)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_lrope_starts_at_rope(share: str, pairing: str) -> None:
    layout, h = layout_at(*POSITIONS), torch.zeros(B, 6, H * d)
    rope = RoPE(SIZES, pairing=pairing).terms(h, layout).rotary_q
    lrope = LRoPE(SIZES, pairing=pairing, share=share).terms(h, layout).rotary_q
    assert lrope.cos.shape == (B, SHARE_HEADS[share], 6, d // 2)
    assert lrope.pairing == pairing
    # beta = ln omega, in [-ln 10000, 0], rounds by 1/2 ulp: omega by as much relative to itself, angle by pos * omega
    beta = LRoPE(SIZES).beta.detach()[:1]
    angle = layout.pos[:, None, :, None] * beta.exp()
    atol = angle * (beta.abs() + 3) * F32
    for got, expected in ((lrope.cos, rope.cos), (lrope.sin, rope.sin)):
        assert ((got - expected).abs() <= atol).all()


@pytest.mark.parametrize("kind", [LRoPE, LeRoPE])
def test_trained_frequencies_have_exact_gradients_at_large_positions(kind: type[RoPE]) -> None:
    """In float32 the angles would be wrong by radians, and gradients, which grow with positions, with them."""
    layout, upstream = layout_at([2**24 - 1, 2**24 + 1, 2**22 + 1]), torch.randn(3, d // 2)
    results = []
    for dtype in (torch.float32, torch.float64):
        encoding = kind(SIZES).to(dtype)
        terms = encoding.terms(torch.zeros(1, 3, H * d, dtype=dtype), layout)
        (terms.rotary_q.cos * upstream).sum().backward()
        results.append(next(encoding.parameters()).grad.double())
    assert (results[0] - results[1]).abs().max() < 1e-6 * results[1].abs().max()


@pytest.mark.parametrize(("share", "sets"), [("none", 3 * H), ("heads", 3), ("layers", H), ("all", 1)])
def test_lrope_has_a_set_of_frequencies_for_all_that_does_not_share(share: str, sets: int) -> None:
    config = Model(
        depth=3, width=H * d, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    model = Transformer(config, lambda sizes: LRoPE(sizes, share=share), Task(5, 4, 5, causal=True))
    assert model.positional_parameters() == sets * d // 2


def test_lrope_is_never_decayed_and_may_have_its_own_learning_rate() -> None:
    assert LRoPE.weight_decay is False
    assert LRoPE(SIZES).lr is None
    assert LRoPE(SIZES, lr=0.01).lr == 0.01


def paper_logit(q: list[float], k: list[float], m: int, n: int, beta: list[float]) -> float:
    """Re sum over c of q_c conj(k_c) exp(i (m - n) omega_c) / sqrt(d), omega = exp beta; arXiv:2104.09864, eq. 12."""
    total = 0.0
    for c, b in enumerate(beta):
        rotate = cmath.exp(1j * (m - n) * math.exp(b))
        total += (complex(q[2 * c], q[2 * c + 1]) * complex(k[2 * c], k[2 * c + 1]).conjugate() * rotate).real
    return total / math.sqrt(len(q))


def paper_slope(q: list[float], k: list[float], m: int, n: int, beta: list[float], c: int) -> float:
    """Its derivative in beta_c: Re q_c conj(k_c) i (m - n) omega_c exp(i (m - n) omega_c) / sqrt(d)."""
    angle = (m - n) * math.exp(beta[c])
    product = complex(q[2 * c], q[2 * c + 1]) * complex(k[2 * c], k[2 * c + 1]).conjugate()
    return (product * 1j * angle * cmath.exp(1j * angle)).real / math.sqrt(len(q))


@pytest.mark.proves("lrope")
@pytest.mark.parametrize("share", SHARE_HEADS)
def test_lrope_is_a_rotation_by_the_exponential_of_its_parameter(share: str) -> None:
    """Values, and the gradient of beta."""
    encoding = LRoPE(SIZES, share=share).double()
    with torch.no_grad():
        encoding.beta += 0.3 * torch.randn_like(encoding.beta)
    pos, (q, k) = [0, 1, 2, 7, 40], torch.randn(2, 1, H, 5, d, dtype=torch.float64)
    got = logits(encoding, q, k, layout_at(pos))
    upstream = torch.randn_like(got)
    (found,) = torch.autograd.grad(got, encoding.beta, upstream)
    beta = encoding.beta.tolist()
    expected, gradient = torch.zeros_like(got), torch.zeros_like(encoding.beta)
    for h in range(H):
        row = h % len(beta)
        for i, m in enumerate(pos):
            for j, n in enumerate(pos):
                qi, kj = q[0, h, i].tolist(), k[0, h, j].tolist()
                expected[0, h, i, j] = paper_logit(qi, kj, m, n, beta[row])
                for c in range(d // 2):
                    gradient[row, c] += upstream[0, h, i, j] * paper_slope(qi, kj, m, n, beta[row], c)
    assert_close(got, expected, **EQUAL)
    # 50 terms, each of size up to 40 x 10
    assert_close(found, gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", ["none", "heads"])
def test_gradient_of_lrope_through_attention_is_that_of_finite_differences(share: str) -> None:
    encoding, layout = LRoPE(SIZES, share=share).double(), layout_at([0, 1, 2, 7, 40])
    q, k, v = (torch.randn(1, H, 5, d, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def out(beta: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        h = torch.zeros(1, 5, H * d, dtype=torch.float64)
        terms = torch.func.functional_call(_Terms(encoding), {"encoding.beta": beta}, (h, layout))
        return attend(q, k, v, terms, layout, "reference")

    # an angle is curved in beta by its own size, 40, squared: the step's error is 40^3 x 1e-12
    assert torch.autograd.gradcheck(out, (encoding.beta, q, k, v), eps=1e-6, atol=1e-6)


def test_lerope_starts_as_rope_to_the_bit() -> None:
    layout = layout_at(*POSITIONS)
    for dtype in (torch.float32, torch.float64):
        h = torch.zeros(B, 6, H * d, dtype=dtype)
        rope, lerope = (kind(SIZES, theta=50.0).terms(h, layout).rotary_q for kind in (RoPE, LeRoPE))
        assert torch.equal(lerope.cos, rope.cos)
        assert torch.equal(lerope.sin, rope.sin)


@pytest.mark.proves("lerope")
@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_lerope_is_a_rotation_by_e_to_alpha_times_the_frequency(theta: float) -> None:
    """Values, and the gradient of alpha, which all heads share; ln of a frequency is alpha plus a constant."""
    encoding = LeRoPE(SIZES, theta=theta).double()
    with torch.no_grad():
        encoding.alpha += 0.3 * torch.randn_like(encoding.alpha)
    pos, (q, k) = [0, 1, 2, 7, 40], torch.randn(2, 1, H, 5, d, dtype=torch.float64)
    got = logits(encoding, q, k, layout_at(pos))
    upstream = torch.randn_like(got)
    (found,) = torch.autograd.grad(got, encoding.alpha, upstream)
    beta = [a - 2 * c / d * math.log(theta) for c, a in enumerate(encoding.alpha.tolist())]
    expected, gradient = torch.zeros_like(got), torch.zeros_like(encoding.alpha)
    for h in range(H):
        for i, m in enumerate(pos):
            for j, n in enumerate(pos):
                qi, kj = q[0, h, i].tolist(), k[0, h, j].tolist()
                expected[0, h, i, j] = paper_logit(qi, kj, m, n, beta)
                for c in range(d // 2):
                    gradient[c] += upstream[0, h, i, j] * paper_slope(qi, kj, m, n, beta, c)
    assert_close(got, expected, **EQUAL)
    # 100 terms, each of size up to 40 x 10
    assert_close(found, gradient, rtol=0, atol=1e-10)


def test_lerope_in_halves_has_the_rotations_of_rope_at_its_frequencies() -> None:
    """At any positions; gradients of queries and keys too."""
    encoding = LeRoPE(SIZES, pairing="half").double()
    with torch.no_grad():
        encoding.alpha += 0.3 * torch.randn_like(encoding.alpha)
    omega = [math.exp(a) * 10_000 ** (-2 * c / d) for c, a in enumerate(encoding.alpha.tolist())]
    pos = [-2, -1, 5, 6, 90, 0, 1]
    rotate = matrices(pos, omega, [[1.0] * (d // 2)] * len(pos), "half")
    assert_logits(encoding, pos, rotate, rotate)


def test_lerope_learns_as_lrope_with_one_set_of_frequencies() -> None:
    """alpha = beta - ln of RoPE's frequencies: equal gradients, so equal steps."""
    lerope, lrope = LeRoPE(SIZES).double(), LRoPE(SIZES, share="all").double()
    q, k = torch.randn(2, B, H, 6, d, dtype=torch.float64)
    lrope.reset_parameters()  # in float64
    for encoding in (lerope, lrope):
        logits(encoding, q, k, layout_at(*POSITIONS)).square().sum().backward()
    assert_close(lerope.alpha.grad, lrope.beta.grad[0], rtol=0, atol=1e-8)  # sums of terms of size 700 x 100


def test_lerope_has_one_number_per_pair_is_not_decayed_and_may_have_its_own_learning_rate() -> None:
    config = Model(
        depth=3, width=H * d, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    assert Transformer(config, LeRoPE, Task(5, 4, 5, causal=True)).positional_parameters() == d // 2
    assert LeRoPE.weight_decay is False
    assert LeRoPE(SIZES, lr=0.01).lr == 0.01
    for lr in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^lr must be a positive number, got "):
            LeRoPE(SIZES, lr=lr)


class _Terms(torch.nn.Module):
    """Calls `terms` as forward, for functional_call."""

    def __init__(self, encoding: RoPE) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, h: Tensor, layout: Layout):
        return self.encoding.terms(h, layout)


def matrices(pos: Sequence[float], omega: list[float], scale: list[list[float]], pairing: str) -> Tensor:
    """[T, d, d] that rotate pair c by pos * omega_c and multiply it by scale_c, one entry at a time."""
    out = torch.zeros(len(pos), 2 * len(omega), 2 * len(omega), dtype=torch.float64)
    for t, m in enumerate(pos):
        for c, w in enumerate(omega):
            a, b = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + len(omega))
            out[t, a, a] = out[t, b, b] = scale[t][c] * math.cos(m * w)
            out[t, b, a], out[t, a, b] = scale[t][c] * math.sin(m * w), -scale[t][c] * math.sin(m * w)
    return out


def assert_logits(encoding: RoPE, pos: Sequence[float], by_q: Tensor, by_k: Tensor, atol: float = 1e-11) -> None:
    """The encoding's logits are (by_q q) . (by_k k) / sqrt(d), with their gradients."""
    q, k = (torch.randn(B, H, len(pos), d, dtype=torch.float64, requires_grad=True) for _ in range(2))
    got = logits(encoding, q, k, layout_at(pos))
    rotated_q, rotated_k = (torch.einsum("tij,bhtj->bhti", m, x) for m, x in ((by_q, q), (by_k, k)))
    expected = torch.einsum("bhti,bhsi->bhts", rotated_q, rotated_k) / math.sqrt(d)
    assert_close(got, expected, rtol=1e-12, atol=atol)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=1e-12, atol=atol * len(pos))


@pytest.mark.proves("p_rope")
@pytest.mark.parametrize(("p", "pairs"), [(0.0, 0), (0.3, 1), (0.5, 2), (0.74, 2), (0.75, 3), (0.99, 3), (1.0, 4)])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("length", [7, 63, 129])
def test_p_rope_rotates_the_fastest_pairs_and_leaves_the_rest(p: float, pairs: int, pairing: str, length: int) -> None:
    """The remaining frequencies are those of RoPE at the whole head_dim d, not at the number of rotated dims."""
    omega = [10_000 ** (-2 * c / d) if c < pairs else 0.0 for c in range(d // 2)]
    pos = list(range(300, 300 + length))
    rotate = matrices(pos, omega, [[1.0] * (d // 2)] * length, pairing)
    assert_logits(PRoPE(SIZES, p=p, pairing=pairing), pos, rotate, rotate)


def test_p_rope_lies_between_rope_and_no_encoding() -> None:
    x, layout = torch.randn(B, H, 6, d), layout_at(*POSITIONS)
    assert torch.equal(rotated(PRoPE(SIZES, p=1.0), x, layout), rotated(RoPE(SIZES), x, layout))
    assert torch.equal(rotated(PRoPE(SIZES, p=0.0), x, layout), x)
    assert PRoPE(Sizes(64, 1, 16)).rotated_pairs == 24


@pytest.mark.parametrize("p", [0.1, 0.2499])
def test_a_share_that_rotates_no_pair_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=rf"^p must be 0 or at least 0\.25 for head_dim=8, got {p}: "):
        PRoPE(SIZES, p=p)


@pytest.mark.proves("p_rope", by="transformers")
@pytest.mark.parametrize("p", [0.25, 0.75, 0.9])
def test_p_rope_in_halves_equals_transformers_proportional_rope(p: float) -> None:
    pytest.importorskip("transformers")
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rope = {"rope_type": "proportional", "rope_theta": 10_000.0, "partial_rotary_factor": p}
    config = LlamaConfig(hidden_size=H * d, num_attention_heads=H, rope_parameters=rope)
    q, k = torch.randn(2, B, H, 6, d)
    layout = layout_at(*POSITIONS)
    theirs = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(q, layout.pos))
    terms = PRoPE(SIZES, p=p, pairing="half").terms(torch.zeros(B, 6, H * d), layout)
    atol = 700 * 2 * F32 * max(q.abs().max().item(), k.abs().max().item()) * math.sqrt(2)
    for ours, other in zip(reference.queries_and_keys(q, k, terms), theirs, strict=True):
        assert_close(ours, other, rtol=0, atol=atol)


ZETA = [(2 * c / d + 0.4) / 1.4 for c in range(d // 2)]


@pytest.mark.proves("xpos")
@pytest.mark.parametrize("scale_base", [512.0, 10.0])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("length", [7, 63, 129])
def test_xpos_is_the_papers_scaled_rotation(scale_base: float, pairing: str, length: int) -> None:
    """Queries times zeta^(n / 512), keys times zeta^(-n / 512), from position 0 on."""
    omega, pos = [10_000 ** (-2 * c / d) for c in range(d // 2)], list(range(length))
    up = matrices(pos, omega, [[z ** (n / scale_base) for z in ZETA] for n in pos], pairing)
    down = matrices(pos, omega, [[z ** (-n / scale_base) for z in ZETA] for n in pos], pairing)
    # towards the future, which no one sees, logits grow by zeta_0^-12.8 = 1e7
    assert_logits(
        XPos(SIZES, pairing=pairing, scale_base=scale_base), pos, up, down, atol=1e-11 * 3.5 ** (128 / scale_base)
    )


@pytest.mark.parametrize("c", range(d // 2))
@pytest.mark.parametrize(("i", "j"), [(3, 0), (600, 3), (5_000, 0), (7, 7)])
def test_xpos_fades_a_pair_by_the_distance_alone(c: int, i: int, j: int) -> None:
    """The length of a pair's product is zeta_c^((i - j) / 512), largest for the pairs that rotate slowly."""
    q = torch.zeros(1, H, 2, d, dtype=torch.float64)
    q[..., 2 * c] = 1
    k = torch.stack((q, q.roll(1, -1)))  # the dim itself and its partner: real and imaginary part
    real, imaginary = (logits(XPos(SIZES), q, x, layout_at([j, i]))[0, :, 1, 0] for x in k)
    expected = torch.full((H,), ZETA[c] ** ((i - j) / 512) / math.sqrt(d), dtype=torch.float64)
    assert_close(torch.hypot(real, imaginary), expected, rtol=1e-12, atol=0)


def test_xpos_is_scaled_from_the_middle_of_the_positions() -> None:
    """The middle of 0 ... L-1 is L // 2. All rows of a batch share it."""
    for length in (1, 2, 7, 8):
        terms = XPos(SIZES).terms(torch.zeros(1, length, H * d), layout_at(list(range(length))))
        size = torch.hypot(terms.rotary_q.cos, terms.rotary_q.sin)[0, 0]
        assert_close(size[length // 2], torch.ones(d // 2))
        assert (size[: length // 2] > 1).all()
        assert (size[length // 2 + 1 :] < 1).all()
    q, k = torch.randn(2, 4, H, 2, d)
    q, k = q[:1].expand(4, -1, -1, -1), k[:1].expand(4, -1, -1, -1)
    z = logits(XPos(SIZES), q, k, layout_at(*([p, p + 3] for p in (5, 50, 500, 5_000))))
    size = (q.norm(dim=-1) * k.norm(dim=-1)).max().item() / math.sqrt(d)
    assert_close(z, z[:1].expand_as(z), rtol=0, atol=4 * 5_000 * F32 * size)


def test_xpos_keeps_padding_finite_wherever_it_lies() -> None:
    pos = torch.tensor([[-(10**9), -1, 0, 1], [0, 1, 2, 10**9]])
    segment = torch.tensor([[-1, -1, 0, 0], [0, 0, 0, -1]])
    layout = Layout(pos, segment, causal=True)
    nothing = replace(layout, segment=torch.full_like(segment, -1))
    for at in (layout, nothing):
        terms = XPos(SIZES).terms(torch.zeros(2, 4, H * d), at)
        for rotary in (terms.rotary_q, terms.rotary_k):
            assert torch.hypot(rotary.cos, rotary.sin).log().abs().max() < 1


def test_xpos_refuses_distances_that_its_scales_cannot_span() -> None:
    x = torch.full((1, H, 2, d), 30.0)
    assert logits(XPos(SIZES), x, x, layout_at([0, 30_720])).isfinite().all()
    for encoding, reach in ((XPos(SIZES), 30_720), (XPos(SIZES, scale_base=1.5), 90)):
        with pytest.raises(
            ValueError, match=rf"^xpos covers distances up to {reach} at scale_base.*, got {reach + 1}:"
        ):
            encoding.terms(torch.zeros(1, 2, H * d), layout_at([5, reach + 6]))


def test_xpos_refuses_float16_and_takes_bfloat16() -> None:
    h, layout = torch.zeros(1, 3, H * d), layout_at([0, 1, 2])
    with pytest.raises(ValueError, match=r"^xpos .*float16.*rope$"):
        XPos(SIZES).terms(h.half(), layout)
    with torch.autocast("cpu", torch.float16), pytest.raises(ValueError, match=r"^xpos .*float16.*rope$"):
        XPos(SIZES).terms(h, layout)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ValueError, match=r"^xpos .*float16.*rope$"):
            XPos(SIZES).terms(h.half(), layout)
        assert XPos(SIZES).terms(h.bfloat16(), layout).rotary_q.cos.dtype == torch.float32


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_rope_takes_real_positions(pairing: str) -> None:
    """Values, and gradients of queries and keys, at positions between integers."""
    pos = [0.25, 1.0, 2.75, 300.125, 3000.0625]
    omega = [10_000 ** (-2 * c / d) for c in range(d // 2)]
    rotate = matrices(pos, omega, [[1.0] * (d // 2)] * len(pos), pairing)
    assert_logits(RoPE(SIZES, pairing=pairing), pos, rotate, rotate)


FADED = {0: [], 1: [1.0], 2: [1.0, 0.0], 3: [1.0, 0.5, 0.0], 4: [1.0, 0.75, 0.25, 0.0]}  # factors of n pairs


@pytest.mark.proves("clipped_rope")
@pytest.mark.parametrize("clipped", FADED)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("length", [7, 63, 129])
def test_clipped_rope_is_the_codes_rotation(clipped: int, pairing: str, length: int) -> None:
    factors = [1.0] * (d // 2 - clipped) + FADED[clipped]
    omega = [factor * 10_000 ** (-2 * c / d) for c, factor in enumerate(factors)]
    pos = list(range(300, 300 + length))
    rotate = matrices(pos, omega, [[1.0] * (d // 2)] * length, pairing)
    assert_logits(ClippedRoPE(SIZES, clipped=clipped, pairing=pairing), pos, rotate, rotate)


@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_without_clipped_pairs_it_is_rope(rotary_dim: int | None) -> None:
    x, layout = torch.randn(B, H, 6, d), layout_at(*POSITIONS)
    expected = rotated(RoPE(SIZES, rotary_dim=rotary_dim), x, layout)
    assert torch.equal(rotated(ClippedRoPE(SIZES, clipped=0, rotary_dim=rotary_dim), x, layout), expected)
    assert not torch.allclose(rotated(ClippedRoPE(SIZES, rotary_dim=rotary_dim), x, layout), expected)


def test_five_of_sixteen_pairs_are_clipped_unless_said() -> None:
    assert [ClippedRoPE(Sizes(n * 2, 1, 16)).clipped for n in (1, 2, 4, 8, 16, 64)] == [1, 2, 2, 3, 5, 20]
    with pytest.raises(ValueError, match="^clipped must be at most 4, the rotated pairs, got 5"):
        ClippedRoPE(SIZES, clipped=5)


@pytest.mark.proves("resonance_rope")
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("theta", [10_000.0, 1.0])
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_resonance_rope_is_the_papers_rotation(rotary_dim: int | None, theta: float, pairing: str) -> None:
    """theta_c = 2 pi / round(2 pi / theta_c of rope); values and gradients."""
    q, k = (torch.randn(B, H, 6, d, dtype=torch.float64, requires_grad=True) for _ in range(2))
    encoding, n = ResonanceRoPE(SIZES, theta=theta, pairing=pairing, rotary_dim=rotary_dim), rotary_dim or d
    got = logits(encoding, q, k, layout_at(*POSITIONS))

    def matrix(pos: int) -> Tensor:
        made = torch.eye(d, dtype=torch.float64)
        for c in range(n // 2):
            angle = pos * 2 * math.pi / round(2 * math.pi * theta ** (2 * c / n))
            a, b = (2 * c, 2 * c + 1) if pairing == "interleaved" else (c, c + n // 2)
            made[a, a] = made[b, b] = math.cos(angle)
            made[b, a], made[a, b] = math.sin(angle), -math.sin(angle)
        return made

    matrices = torch.stack([torch.stack([matrix(p) for p in row]) for row in POSITIONS])
    rotated_q, rotated_k = (torch.einsum("btij,bhtj->bhti", matrices, x) for x in (q, k))
    expected = torch.einsum("bhti,bhsi->bhts", rotated_q, rotated_k) / math.sqrt(d)
    assert_close(got, expected, **EQUAL)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EQUAL)


def test_resonance_rope_has_no_new_angles_beyond_its_wavelengths() -> None:
    """Bit for bit, in float32, at positions up to 2 ** 24."""
    encoding, h = ResonanceRoPE(SIZES), torch.zeros(1, 1, H * d)
    lengths = [6, 63, 628, 6_283]
    assert encoding.wavelengths(h.device).tolist() == lengths
    for pos in (0, 5, 62, 6_282, 999_999, 2**24 - 1):
        tables = encoding.rotation(h, layout_at([pos]))
        for c, length in enumerate(lengths):
            training_rotary = encoding.rotation(h, layout_at([pos % length]))
            assert torch.equal(tables.cos[..., c], training_rotary.cos[..., c])
            assert torch.equal(tables.sin[..., c], training_rotary.sin[..., c])


def test_resonance_rope_needs_a_base_of_at_least_1() -> None:
    with pytest.raises(ValueError, match=r"^theta must be at least 1, got 0\.5"):
        ResonanceRoPE(SIZES, theta=0.5)
