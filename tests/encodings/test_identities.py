"""Published encodings that are one of ours in other words: the same function, in float64, and the same gradients.

    source                                        is               with
    CABLE, arXiv:2503.08067                       `forgetting`     the signs of gate and bias turned
    STRING that commutes, arXiv:2502.02562        `lrope`          queries and keys in another basis
    ComRoPE, arXiv:2506.03737, one axis           `lrope`          the same, block by block
    algebraic, arXiv:2312.16045, of sequences     `lrope`          the same
    GRAPE-M of a learned basis, arXiv:2512.07805  `lrope`          the same; planes left out only in a limit
    GRAPE-M of fixed planes, its released code    `lrope`          share=heads, and 1/16 of the rate (test_grape.py)
    hyperbolic HoPE, arXiv:2509.05218             a decay by lane  queries and keys in another basis, and no phase
    HoPE of high frequencies, arXiv:2410.21216    `p_rope`         p, the share of wavelengths up to L
    `normalized`, `integer`                       `none`           a LayerNorm before whatever reads them

The same function is not the same training: its parameters are others, and so are their steps.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import hydra
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from helpers import loops
from pe_lab.attention import attend
from pe_lab.config import Model, expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.families.contextual import Forgetting
from pe_lab.encodings.families.rotary import LRoPE, PRoPE, XPos
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Rotary, Terms
from pe_lab.model.transformer import Transformer

B, H, d, T = 2, 3, 8, 9
D = H * d
SIZES = Sizes(D, H, T)
WHOLE = Layout.whole(B, T, causal=True)
EXACT = {"rtol": 0, "atol": 1e-12}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def assert_equal(got: Tensor, expected: Tensor, inputs: tuple[Tensor, ...], atol: float = 1e-12) -> None:
    """Values, and gradients of the inputs for a random upstream gradient."""
    assert_close(got, expected, rtol=0, atol=atol)
    upstream = torch.randn_like(got)
    for g, e in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (got, expected)), strict=True):
        assert e.any()
        assert_close(g, e, rtol=0, atol=10 * atol)


def causal(z: Tensor, v: Tensor) -> Tensor:
    """Return causal attention with logits [B, H, T, T]."""
    hidden = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1)
    return z.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def cable_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return b_i - b_j, [B, H, T, T], b the sum so far of -softplus(W x + c)."""
    b, steps = [], -(1 + (x @ weight.T + bias).exp()).log()
    for t in range(x.shape[1]):
        b.append(steps[:, t] + (b[-1] if b else 0))
    summed = torch.stack(b, -1)  # [B, H, T]
    return summed[..., :, None] - summed[..., None, :]


@pytest.mark.proves("forgetting", by="identity: CABLE, arXiv:2503.08067")
def test_cable_is_forgetting_with_the_signs_of_its_gates_turned() -> None:
    """-softplus(y) is ln sigmoid(-y): the bias of CABLE's released code, with the usual 1 / sqrt(d) on the logits."""
    q, k, v, x = random(B, H, T, d), random(B, H, T, d), random(B, H, T, d), random(B, T, D)
    encoding = Forgetting(SIZES).double()
    weight, bias = encoding.gate.weight, encoding.gate.bias
    got = attend(q, k, v, encoding.terms(x, WHOLE), WHOLE, "reference")
    z = q @ k.mT / math.sqrt(d)
    expected = causal(z + cable_bias(x, -weight, -bias), v)
    assert_equal(got, expected, (q, k, v, x, weight, bias))


def test_cables_release_is_forgetting_with_logits_that_are_not_divided() -> None:
    """Its code divides queries and keys by 1 each, where the width is the model's."""
    q, k, v, x = random(B, H, T, d), random(B, H, T, d), random(B, H, T, d), random(B, T, D)
    encoding = Forgetting(SIZES).double()
    terms = replace(encoding.terms(x, WHOLE), scale=1.0)
    expected = causal(q @ k.mT + cable_bias(x, -encoding.gate.weight, -encoding.gate.bias), v)
    assert_equal(attend(q, k, v, terms, WHOLE, "reference"), expected, (q, k, v, x, *encoding.parameters()))


def test_cable_starts_with_a_slope_of_ln_2_in_every_head_and_forgetting_near_it() -> None:
    """CABLE: weights of N(0, 0.02^2), biases 0. Ours are torch's, and so steeper or flatter from head to head."""
    x, encoding = random(1, T, D), Forgetting(SIZES).double()
    distance = torch.arange(T)[:, None] - torch.arange(T)
    for parameter in encoding.parameters():
        nn.init.zeros_(parameter)
    c = encoding.terms(x, Layout.whole(1, T, causal=True)).decay
    slope = -math.log(2) * distance.double().expand(1, H, T, T)
    assert_close(c[..., :, None] - c[..., None, :], slope, **EXACT)
    encoding.gate.reset_parameters()
    c = encoding.terms(x, Layout.whole(1, T, causal=True)).decay
    assert not torch.allclose(c[..., :, None] - c[..., None, :], slope, atol=0.1)


# A skew-symmetric generator L is P (blocks theta_c J) P^T, P orthogonal, so exp(t L) = P (rotations by t theta_c) P^T.


def generator(basis: Tensor, omega: Tensor) -> Tensor:
    """Return the sum over c of omega_c (b a^T - a b^T), a and b the columns 2c and 2c + 1 of a basis [d, d]."""
    a, b = basis[:, 0::2], basis[:, 1::2]
    return (b * omega) @ a.T - (a * omega) @ b.T


def by_generator(q: Tensor, k: Tensor, v: Tensor, generators: list[Tensor], layout: Layout) -> Tensor:
    """Return attention whose queries and keys are multiplied by exp(pos L_h), computed as a matrix exponential."""

    def turned(x: Tensor) -> Tensor:
        rows = []
        for b, pos in enumerate(layout.pos.expand(len(x), -1)):
            heads = [torch.matrix_exp(pos[:, None, None] * L) @ x[b, h][..., None] for h, L in enumerate(generators)]
            rows.append(torch.stack(heads)[..., 0])
        return torch.stack(rows)

    z = turned(q) @ turned(k).mT / math.sqrt(d)
    return z.masked_fill(~layout.allowed, -torch.inf).softmax(-1).nan_to_num() @ v


def cayley() -> Tensor:
    """STRING: (1 - S) (1 + S)^-1 for a skew-symmetric S."""
    S = torch.randn(d, d, dtype=torch.float64)
    one, S = torch.eye(d, dtype=torch.float64), S - S.T
    return (one - S) @ torch.linalg.inv(one + S)


def planes() -> Tensor:
    """GRAPE-M: planes in any direction, each orthogonal to the others."""
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0]


@pytest.mark.proves("lrope", by="identity: STRING, arXiv:2502.02562; GRAPE-M, arXiv:2512.07805")
@pytest.mark.parametrize("basis", [cayley, planes])
def test_commuting_rotations_are_lrope_in_another_basis(basis: Callable[[], Tensor]) -> None:
    """Queries and keys of `lrope` are P^T times theirs, which W_q and W_k can hold; each head has its own basis P."""
    layout = Layout(torch.tensor([[0, 1, 2, 0, 1, 9]]), torch.tensor([[0, 0, 0, 1, 1, 1]] * B), causal=True)
    encoding = LRoPE(SIZES).double()
    with torch.no_grad():
        encoding.beta += 0.3 * torch.randn_like(encoding.beta)
    bases = torch.stack([basis() for _ in range(H)])
    assert_close(bases @ bases.mT, torch.eye(d, dtype=torch.float64).expand(H, d, d), **EXACT)
    x, weights, v = random(B, 6, D), random(2, H, d, D), random(B, H, 6, d)
    q, k = (torch.einsum("btn,hdn->bhtd", x, weight) for weight in weights)
    expected = by_generator(
        q, k, v, [generator(P, beta.exp()) for P, beta in zip(bases, encoding.beta, strict=True)], layout
    )
    held = bases.mT @ weights  # P^T W_q and P^T W_k
    q, k = (torch.einsum("btn,hdn->bhtd", x, weight) for weight in held)
    got = attend(q, k, v, encoding.terms(x, layout), layout, "reference")
    assert_equal(got, expected, (x, weights, v, encoding.beta), atol=1e-11)


@pytest.mark.proves("lrope", by="identity: ComRoPE, arXiv:2506.03737")
@pytest.mark.parametrize("block", [2, 4, 8])
def test_comrope_along_one_axis_is_lrope_in_the_basis_of_its_blocks(block: int) -> None:
    """A = F - F^T block by block; its real Schur form has the frequencies and the basis.

    Algebraic encodings of sequences have one block, exp(A) as their matrix, and its powers as positions.
    """
    q, k, v = random(B, H, T, d), random(B, H, T, d), random(B, H, T, d)
    encoding, generators, bases = LRoPE(SIZES).double(), [], []
    for head in range(H):
        blocks = torch.randn(d // block, block, block, dtype=torch.float64)
        A = torch.block_diag(*(blocks - blocks.mT))
        form, basis = map(torch.from_numpy, scipy.linalg.schur(A.numpy()))
        omega = form.diagonal(-1)[::2].clone()  # the turn from dimension 2c to 2c + 1
        for c in (omega < 0).nonzero().flatten().tolist():  # backwards: exchange both dimensions of the pair
            basis[:, [2 * c, 2 * c + 1]] = basis[:, [2 * c + 1, 2 * c]]
        with torch.no_grad():
            encoding.beta[head] = omega.abs().log()
        generators.append(A)
        bases.append(basis)
    expected = by_generator(q, k, v, generators, WHOLE)
    P = torch.stack(bases)
    got = attend(q @ P, k @ P, v, encoding.terms(random(B, T, D), WHOLE), WHOLE, "reference")
    assert_equal(got, expected, (q, k, v), atol=1e-11)


def test_a_direction_that_does_not_turn_is_a_limit_of_lrope_from_which_it_does_not_come_back() -> None:
    """One plane of GRAPE-M leaves d - 2 directions alone. omega = e^beta is 0 at no beta; rounded to 0, it stays."""
    q, k, v, x, P = random(B, H, T, d), random(B, H, T, d), random(B, H, T, d), random(B, T, D), planes()
    encoding = LRoPE(SIZES).double()
    with torch.no_grad():
        encoding.beta[:, 1:] = -800
    omega = encoding.beta[0].detach().exp()
    assert omega.count_nonzero() == 1
    expected = by_generator(q, k, v, [generator(P, omega)] * H, WHOLE)
    got = attend(q @ P, k @ P, v, encoding.terms(x, WHOLE), WHOLE, "reference")
    assert_equal(got, expected, (q, k, v), atol=1e-11)
    again = attend(q @ P, k @ P, v, encoding.terms(x, WHOLE), WHOLE, "reference")
    (gradient,) = torch.autograd.grad(again.square().sum(), encoding.beta)
    assert gradient[:, 0].all()
    assert not gradient[:, 1:].any()
    with torch.no_grad():
        encoding.beta[:, 1:] = -10
    assert not torch.allclose(attend(q @ P, k @ P, v, encoding.terms(x, WHOLE), WHOLE, "reference"), expected, **EXACT)


# Lorentz boosts: B(t) = [[cosh, sinh], [sinh, cosh]](theta t) is diagonal in the basis (1, 1), (1, -1) / sqrt(2).

TURN = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)


class Lanes:
    """Makes a pair (x, 0) of every dimension x of the turned queries and keys."""

    head_dim = 2 * d

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.lanes(q), self.lanes(k)

    @staticmethod
    def lanes(x: Tensor) -> Tensor:
        turned = (x.unflatten(-1, (-1, 2)) @ TURN).flatten(-2)
        return torch.stack((turned, torch.zeros_like(turned)), -1).flatten(-2)


def boosted(q: Tensor, k: Tensor, theta: Tensor, damping: Tensor) -> Tensor:
    """Return the logits sum over pairs of e^(-damping (i - j)) q^T B(i - j) k / sqrt(d), j <= i; 0 above."""
    rows = []
    for i in range(T):
        row = []
        for j in range(T):
            t = max(i - j, 0)
            cosh, sinh = (theta * t).cosh(), (theta * t).sinh()
            a, b, x, y = q[..., i, 0::2], q[..., i, 1::2], k[..., j, 0::2], k[..., j, 1::2]
            product = (a * x + b * y) * cosh + (a * y + b * x) * sinh
            row.append(((-damping * t).exp() * product).sum(-1) / math.sqrt(d))
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_hyperbolic_hope_is_a_decay_by_lane_without_phase(theta: float) -> None:
    """The lanes of a pair decay by e^-(damping - theta) and e^-(damping + theta) per position. Tables as those of
    `xpos`, with sin = 0, do that where each lane is a pair of its own. No encoding here is it: pairs of `xpos` have one
    rate."""
    q, k, v = random(B, H, T, d), random(B, H, T, d), random(B, H, T, d)
    by_pair = theta * torch.rand(d // 2, dtype=torch.float64)
    damping = (0.3 + torch.rand(d // 2, dtype=torch.float64)).requires_grad_()
    by_pair.requires_grad_()
    rate = torch.stack((damping - by_pair, damping + by_pair), -1).flatten()  # of lane 2c and lane 2c + 1
    t = WHOLE.pos[:, None, :, None].double()
    tables = [Rotary(scale, torch.zeros_like(scale)) for scale in ((-rate * t).exp(), (rate * t).exp())]
    terms = Terms(lift=Lanes(), rotary_q=tables[0], rotary_k=tables[1])
    expected = causal(boosted(q, k, by_pair, damping), v)
    assert_equal(attend(q, k, v, terms, WHOLE, "reference"), expected, (q, k, v, by_pair, damping), atol=1e-11)


def test_a_boost_without_damping_grows_with_distance_in_one_lane() -> None:
    """Which is why the source damps it: the identity holds, and is of no use."""
    ones = torch.ones(1, 1, T, d, dtype=torch.float64)
    theta = torch.full((d // 2,), 0.3, dtype=torch.float64)
    for damping, falls in ((0.0, False), (0.2, False), (0.4, True)):
        z = boosted(ones, ones, theta, torch.full_like(theta, damping))[0, 0, :, 0]
        assert (z[-1] < z[0]) == falls


def test_without_its_phase_xpos_is_the_damping_of_hyperbolic_hope() -> None:
    """At theta = 0 both lanes of a pair have one rate: that of pair c in `xpos`, -ln zeta_c / scale_base."""
    q, k, v = random(B, H, T, d), random(B, H, T, d), random(B, H, T, d)
    terms = XPos(SIZES, scale_base=5.0).terms(torch.zeros(B, T, D, dtype=torch.float64), WHOLE)
    tables = [
        Rotary(torch.hypot(one.cos, one.sin), torch.zeros_like(one.sin)) for one in (terms.rotary_q, terms.rotary_k)
    ]
    zeta = torch.tensor([(2 * c + 0.4 * d) / (1.4 * d) for c in range(d // 2)], dtype=torch.float64)
    expected = causal(boosted(q, k, torch.zeros(d // 2, dtype=torch.float64), -zeta.log() / 5), v)
    got = attend(q, k, v, Terms(rotary_q=tables[0], rotary_k=tables[1]), WHOLE, "reference")
    assert_equal(got, expected, (q, k, v))


def kept(head_dim: int, theta: float, length: int) -> int:
    """Return how many pairs have a wavelength 2 pi theta^(2c / d) up to a length."""
    return sum(2 * math.pi * theta ** (2 * c / head_dim) <= length for c in range(head_dim // 2))


@pytest.mark.proves("p_rope", by="identity: HoPE, arXiv:2410.21216")
@pytest.mark.parametrize(("length", "pairs"), [(7, 1), (63, 2), (600, 2), (1_000, 3), (10_000, 4)])
def test_hope_is_p_rope_cut_at_a_wavelength(length: int, pairs: int) -> None:
    """Pairs with a longer wavelength than the training length hold content alone. (The source's abstract says so; its
    inequality was not to be had, and a pair whose wavelength is the length itself is kept here.)"""
    assert kept(d, 10_000.0, length) == pairs
    q, k, v = loops.inputs(H, d)
    layout = loops.mixed(causal=True)
    h = torch.zeros(*layout.segment.shape, D, dtype=torch.float64)
    omega = [10_000.0 ** (-2 * c / d) for c in range(d // 2)]

    def turned(x: Tensor) -> Tensor:
        """x with pairs rotated one by one, or not."""
        pos, dims = torch.tensor(loops.POSITIONS)[:, None].double(), []
        for c in range(d // 2):
            a, b = x[..., 2 * c], x[..., 2 * c + 1]
            if 2 * math.pi / omega[c] <= length:
                angle = pos * omega[c]
                a, b = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
            dims += [a, b]
        return torch.stack(dims, -1)

    encoding = PRoPE(SIZES, p=pairs / (d // 2))
    got = loops.unpadded(attend(q, k, v, encoding.terms(h, layout), layout, "reference"))
    assert_equal(got, loops.attention(turned(q), turned(k), v, causal=True), (q, k, v))


def test_a_share_of_pairs_between_two_whole_ones_is_safe_from_rounding() -> None:
    """int(p d / 2) of p = n / (d / 2) may be n - 1 where d / 2 is no power of two, as for 1 / 49; n + 1/2 is safe."""
    assert kept(64, 10_000.0, 512) == 16
    for half in range(1, 130):
        for n in range(1, half + 1):
            assert PRoPE(Sizes(2 * half, 1, 4), p=min((n + 0.5) / half, 1.0)).rotated_pairs == n


# A vector that is the same in all dimensions is what a LayerNorm takes away.


def model(pe: str, *overrides: str, norm: str = "pre") -> Transformer:
    config = Model(
        depth=3, width=D, num_heads=H, mlp_ratio=2, norm=norm, dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    made = hydra.utils.instantiate(expand_overrides([f"pe={pe}", *overrides], False)[0].pe)
    one = Transformer(config, made, Task(11, T, 11, causal=True), "reference")
    initialise_parameters(one, seed=0)
    return one.double()


def logits(one: Transformer) -> Tensor:
    tokens = torch.arange(2 * T).reshape(2, T) % 11
    return one(tokens, Layout.of_lengths(torch.tensor([T, T - 2]), T, causal=True))[:, : T - 2]


NAIVE = [pytest.param(pe, marks=pytest.mark.proves(pe, by="identity: `none`")) for pe in ("normalized", "integer")]


@pytest.mark.parametrize("pe", NAIVE)
@pytest.mark.parametrize("overrides", [(), ("pe.size=3",)])
def test_a_position_in_all_dimensions_alike_is_none_in_a_pre_norm_model(pe: str, overrides: tuple[str, ...]) -> None:
    """The residual stream carries it to the end, and every LayerNorm, the last one too, takes it away."""
    ours, without = model(pe, *overrides), model("none")
    assert torch.equal(ours.tokens.weight, without.tokens.weight)
    actual = [logits(one) for one in (ours, without)]
    assert_close(*actual, **EXACT)
    upstream = torch.randn_like(actual[0])
    gradients = [
        torch.autograd.grad(z, list(one.parameters()), upstream) for z, one in zip(actual, (ours, without), strict=True)
    ]
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e, rtol=0, atol=1e-11)


@pytest.mark.parametrize("pe", ["normalized", "integer"])
@pytest.mark.parametrize(
    ("overrides", "norm"), [((), "post"), (("pe.at=every_layer",), "pre"), (("pe.combine=concat",), "pre")]
)
def test_where_no_layer_norm_follows_it_is_not_none(pe: str, overrides: tuple[str, ...], norm: str) -> None:
    """The first attention of a post-norm model reads it, one at every layer is added behind the LayerNorm, and a linear
    layer makes other vectors of it."""
    assert not torch.allclose(logits(model(pe, *overrides, norm=norm)), logits(model("none", norm=norm)), atol=1e-3)
