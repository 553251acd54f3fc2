"""Encodings against x-transformers and rotary-embedding-torch, in float64.

Frequencies, slopes and scales are float32 there whatever the rest is: that is all the tolerances allow for.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.absolute import Sinusoidal
from pe_lab.encodings.families.bias import Alibi
from pe_lab.encodings.families.bias_learned import T5, t5_buckets
from pe_lab.encodings.families.contextual import CoPE, Forgetting
from pe_lab.encodings.families.grid import AxialRoPE
from pe_lab.encodings.families.rotary import LeRoPE, LRoPE, PRoPE, RoPE, XPos
from pe_lab.encodings.families.rotary_scaled import InterpolatedRoPE, NTKRoPE
from pe_lab.encodings.families.table import Learnable
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes

B, H, d = 2, 3, 8
D = H * d
SIZES = Sizes(width=D, num_heads=H, length=16)
F32 = torch.finfo(torch.float32).eps
EXACT = 1e-13  # relative to the largest number: sums of a hundred terms in float64
POSITIONS = ([0, 1, 2, 3, 10, 700], [5, 6, 9, 255, 256, 257])


def layout_at(*pos: list[int], causal: bool = True) -> Layout:
    """A row of positions for each of B sequences, or one for all."""
    segment = torch.zeros(B, len(pos[0]), dtype=torch.long)
    return Layout(torch.tensor(pos), segment, causal)


def by_rotation(layout: Layout) -> float:
    """Return the effect of float32 frequencies on q . k relative to |q| |k|: their error times the distance.

    The error of a frequency, at most 1 and the inverse of a power of a rounded base, is within 2 eps.
    """
    return EXACT + layout.max_distance * 2 * F32


def assert_same_gradients(ours: Tensor, theirs: Tensor, wanted: tuple[Tensor, ...], relative: float) -> None:
    """Require equality within `relative` of the norms."""
    upstream = torch.randn_like(ours)
    for got, expected in zip(*(torch.autograd.grad(y, wanted, upstream) for y in (ours, theirs)), strict=True):
        bound = relative * expected.norm().item()
        assert (got - expected).norm() <= bound
        assert_close(got, expected, rtol=0, atol=bound)


# x-transformers: a whole layer of attention


def their_layer(heads: int = H, causal: bool = True, **options: object) -> nn.Module:
    """Attention of x-transformers, its softmax in float64 like the rest, without the projection behind it."""
    from x_transformers.x_transformers import Attention

    softmax = partial(torch.softmax, dim=-1)
    layer = Attention(heads * d, d, heads=heads, causal=causal, custom_attn_fn=softmax, **options).double()
    layer.to_out = nn.Identity()
    for project in (layer.to_q, layer.to_k, layer.to_v):
        nn.init.normal_(project.weight, std=project.in_features**-0.5)
    return layer


def assert_same_attention(
    encoding: PositionalEncoding,
    layer: nn.Module,
    layout: Layout,
    learned: tuple[nn.Parameter, ...] = (),
    relative: float = EXACT,
    **position: object,
) -> None:
    """Logits, outputs, and the gradients of the input, of the projections and of what is learned.

    Args:
        learned: the parameters of position, that both share.
        relative: by how much logits may differ, as a part of the largest and of |q| |k| / sqrt(d).
        position: argument of their layer that holds it.
    """
    x = torch.randn(*layout.segment.shape, encoding.sizes.width, dtype=torch.float64, requires_grad=True)
    theirs, between = layer(x, return_intermediates=True, **position)
    projections = (layer.to_q, layer.to_k, layer.to_v)
    q, k, v = (project(x).unflatten(-1, (-1, d)).transpose(1, 2) for project in projections)
    terms = encoding.terms(x, layout)
    z = reference.logits(q, k, terms, layout)
    seen = layout.allowed.expand_as(z)
    longest = q.norm(dim=-1).max() * k.norm(dim=-1).max() / math.sqrt(d)
    error = relative * max(longest.item(), z[seen].abs().max().item())
    assert_close(z[seen], between.pre_softmax_attn[seen], rtol=0, atol=error)
    ours = attend(q, k, v, terms, layout, "reference").transpose(1, 2).flatten(2)
    # a weight moves by 2 errors of itself, and outputs and gradients with it
    assert_close(ours, theirs, rtol=0, atol=2 * error * v.abs().max().item())
    wanted = (x, *(project.weight for project in projections), *learned)
    assert_same_gradients(ours, theirs, wanted, 2 * error)


@pytest.mark.proves("rope", by="x-transformers")
@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_rope_equals_x_transformers(theta: float) -> None:
    from x_transformers.x_transformers import RotaryEmbedding

    encoding, layout = RoPE(SIZES, theta=theta), layout_at(*POSITIONS)
    rotates = RotaryEmbedding(d, base=theta).double()(layout.pos)
    assert_same_attention(encoding, their_layer(), layout, relative=by_rotation(layout), rotary_pos_emb=rotates)


@pytest.mark.proves("p_rope", by="x-transformers")
@pytest.mark.parametrize("p", [0.5, 0.75])
def test_p_rope_equals_partial_rotation_in_x_transformers(p: float) -> None:
    """Theirs spreads all of theta's wavelengths over the fewer pairs: p-RoPE's are those of theta ** p."""
    from x_transformers.x_transformers import RotaryEmbedding

    encoding, layout = PRoPE(SIZES, p=p), layout_at(*POSITIONS)
    rotates = RotaryEmbedding(int(p * d), base=10_000.0**p).double()(layout.pos)
    assert_same_attention(encoding, their_layer(), layout, relative=by_rotation(layout), rotary_pos_emb=rotates)


@pytest.mark.proves("xpos", by="x-transformers")
@pytest.mark.parametrize("scale_base", [512.0, 100.0])
def test_xpos_equals_x_transformers(scale_base: float) -> None:
    """They scale from the middle of 0 ... the largest position, we from the middle of all: logits are the same."""
    from x_transformers.x_transformers import RotaryEmbedding

    encoding, layout = XPos(SIZES, scale_base=scale_base), layout_at([305, 306, 400, 555, 1_000])
    rotates = RotaryEmbedding(d, use_xpos=True, scale_base=scale_base).double()(layout.pos[0])
    assert_same_attention(encoding, their_layer(), layout, relative=by_rotation(layout), rotary_pos_emb=rotates)


@pytest.mark.proves("rope_pi", by="x-transformers")
@pytest.mark.parametrize("factor", [1.0, 4.0, 3.3])
def test_pi_equals_x_transformers(factor: float) -> None:
    from x_transformers.x_transformers import RotaryEmbedding

    encoding, layout = InterpolatedRoPE(SIZES, factor=factor), layout_at(*POSITIONS)
    rotates = RotaryEmbedding(d, interpolation_factor=factor).double()(layout.pos)
    assert_same_attention(encoding, their_layer(), layout, relative=by_rotation(layout), rotary_pos_emb=rotates)


@pytest.mark.proves("rope_ntk", by="x-transformers")
@pytest.mark.parametrize("factor", [1.0, 4.0, 3.3])
def test_ntk_equals_x_transformers(factor: float) -> None:
    from x_transformers.x_transformers import RotaryEmbedding

    encoding, layout = NTKRoPE(SIZES, factor=factor), layout_at(*POSITIONS)
    rotates = RotaryEmbedding(d, base_rescale_factor=factor).double()(layout.pos)
    assert_same_attention(encoding, their_layer(), layout, relative=by_rotation(layout), rotary_pos_emb=rotates)


@pytest.mark.proves("alibi", by="x-transformers")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 20])
def test_alibi_equals_x_transformers(num_heads: int, causal: bool) -> None:
    from x_transformers.x_transformers import AlibiPositionalBias

    encoding = Alibi(Sizes(num_heads * d, num_heads, 16, causal))
    bias, layer, layout = AlibiPositionalBias(num_heads), their_layer(num_heads, causal), layout_at(*POSITIONS)
    layout = replace(layout, causal=causal)
    # a slope is within eps / 2, and the largest logit a distance times a slope
    assert_same_attention(encoding, layer, layout, relative=F32 / 2, rel_pos=bias.double(), pos=layout.pos)


@pytest.mark.proves("t5", by="x-transformers")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 100)])
def test_t5_equals_x_transformers(num_buckets: int, max_distance: int, causal: bool) -> None:
    """Equal up to the factor sqrt(d) by which their models scale the table."""
    from x_transformers.x_transformers import RelativePositionBias

    sizes, layout = replace(SIZES, causal=causal), layout_at(list(range(150)), causal=causal)
    encoding = T5(sizes, num_buckets=num_buckets, max_distance=max_distance).double()
    bias = RelativePositionBias(1.0, causal, num_buckets, max_distance, H).double()
    encoding.table = bias.relative_attention_bias.weight
    assert_same_attention(encoding, their_layer(causal=causal), layout, (encoding.table,), rel_pos=bias)
    buckets = bias._relative_position_bucket(-torch.arange(max_distance + 1), causal, num_buckets, max_distance)
    assert t5_buckets(num_buckets if causal else num_buckets // 2, max_distance) == buckets.tolist()


@pytest.mark.proves("cope", by="x-transformers")
@pytest.mark.parametrize("max_position", [3, 64])
def test_cope_equals_x_transformers(max_position: int) -> None:
    """Their max_pos counts the vectors, of which one is for position 0."""
    layer, layout = their_layer(use_cope=True, cope_max_pos=max_position + 1), layout_at(list(range(40)))
    encoding = CoPE(SIZES, max_position=max_position)
    encoding.score.table = nn.init.normal_(layer.attend.cope.pos_emb)
    assert_same_attention(encoding, layer, layout, (encoding.score.table,))


@pytest.mark.proves("forgetting", by="x-transformers")
def test_forgetting_equals_x_transformers() -> None:
    """Theirs starts with its gates open, at a bias of 5."""
    layer, layout = their_layer(data_dependent_alibi=True), layout_at(list(range(40)))
    encoding = Forgetting(SIZES)
    encoding.gate = layer.data_dependent_alibi.to_forget_gates[0]
    nn.init.normal_(encoding.gate.bias)
    assert_same_attention(encoding, layer, layout, tuple(encoding.gate.parameters()))


@pytest.mark.proves("sinusoidal", by="x-transformers")
def test_sinusoidal_equals_x_transformers() -> None:
    """Theirs has all sines first, and a trained factor that starts at D ** -0.5."""
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    layout, x = layout_at(POSITIONS[0]), torch.randn(B, 6, D, dtype=torch.float64)
    theirs = ScaledSinusoidalEmbedding(D).double()
    nn.init.ones_(theirs.scale)
    sines, cosines = theirs(x, pos=layout.pos[0].double()).chunk(2, -1)
    expected = x + torch.stack((sines, cosines), -1).flatten(-2)
    # an exponent rounds by eps / 2, and a frequency, at most 1, by ln 10000 as much besides its own 1 eps
    assert_close(Sinusoidal(SIZES).embed(x, layout), expected, rtol=0, atol=700 * 6 * F32)


@pytest.mark.proves("learnable", by="x-transformers")
def test_learnable_equals_x_transformers() -> None:
    """Equal up to the factor D ** -0.5 by which theirs scales the table."""
    from x_transformers.x_transformers import AbsolutePositionalEmbedding

    layout, x = layout_at(*POSITIONS), torch.randn(B, 6, D)
    theirs, encoding = AbsolutePositionalEmbedding(D, 701), Learnable(SIZES, max_len=701)
    encoding.table = nn.Parameter(theirs.emb.weight * D**-0.5)
    assert torch.equal(encoding.embed(x, layout), x + theirs(x, pos=layout.pos))


# rotary-embedding-torch: queries and keys, rotated


def assert_same_logits(
    encoding: RoPE, rotate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], layout: Layout, relative: float
) -> None:
    """Logits that count, and their gradients in queries and keys.

    Args:
        rotate: queries and keys to theirs as they meet.
        relative: by how much logits may differ, as a part of |q| |k| / sqrt(d).
    """
    length = layout.segment.shape[1]
    q, k = (torch.randn(B, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(2))
    h = torch.zeros(B, length, D, dtype=torch.float64)
    z = reference.logits(q, k, encoding.terms(h, layout), layout)
    rotated_q, rotated_k = rotate(q, k)
    expected = rotated_q @ rotated_k.mT / math.sqrt(d)
    seen = layout.allowed.expand_as(z)
    longest = q.norm(dim=-1).max() * k.norm(dim=-1).max() / math.sqrt(d)
    assert_close(z[seen], expected[seen], rtol=0, atol=relative * longest.item())
    assert_same_gradients(z[seen], expected[seen], (q, k), relative)


def each(rotary: nn.Module, start: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Queries and keys from position `start` on, rotated."""
    rotary = rotary.double()
    return lambda q, k: tuple(rotary.rotate_queries_or_keys(x, offset=start) for x in (q, k))


@pytest.mark.proves("rope", by="rotary-embedding-torch")
@pytest.mark.parametrize("theta", [10_000.0, 50.0])
@pytest.mark.parametrize("start", [0, 900])
def test_rope_equals_rotary_embedding_torch(start: int, theta: float) -> None:
    from rotary_embedding_torch import RotaryEmbedding

    layout = layout_at(list(range(start, start + 65)))
    rotate = each(RotaryEmbedding(d, theta=theta), start)
    assert_same_logits(RoPE(SIZES, theta=theta), rotate, layout, by_rotation(layout))


@pytest.mark.proves("p_rope", by="rotary-embedding-torch")
@pytest.mark.parametrize("p", [0.5, 0.75])
def test_p_rope_equals_partial_rotation_in_rotary_embedding_torch(p: float) -> None:
    """As in x-transformers, with theta ** p."""
    from rotary_embedding_torch import RotaryEmbedding

    layout = layout_at(list(range(65)))
    rotate = each(RotaryEmbedding(int(p * d), theta=10_000.0**p), 0)
    assert_same_logits(PRoPE(SIZES, p=p), rotate, layout, by_rotation(layout))


@pytest.mark.proves("xpos", by="rotary-embedding-torch")
@pytest.mark.parametrize("length", [64, 65])
def test_xpos_equals_rotary_embedding_torch(length: int) -> None:
    """Both scale from the middle of 0 ... L - 1 and by 512 by default: even queries and keys are equal."""
    from rotary_embedding_torch import RotaryEmbedding

    encoding, layout = XPos(SIZES), layout_at(list(range(length)))
    rotate = RotaryEmbedding(d, use_xpos=True).double().rotate_queries_and_keys
    assert_same_logits(encoding, rotate, layout, by_rotation(layout))
    q, k = torch.randn(2, B, H, length, d, dtype=torch.float64)
    ours = reference.queries_and_keys(q, k, encoding.terms(torch.zeros(B, length, D, dtype=q.dtype), layout))
    for got, expected in zip(ours, rotate(q, k), strict=True):
        assert_close(got, expected, rtol=0, atol=by_rotation(layout) * expected.norm(dim=-1).max().item())


@pytest.mark.proves("rope_pi", by="rotary-embedding-torch")
@pytest.mark.parametrize("factor", [1.0, 4.0, 3.3])
def test_pi_equals_rotary_embedding_torch(factor: float) -> None:
    from rotary_embedding_torch import RotaryEmbedding

    layout = layout_at(list(range(300, 365)))
    rotate = each(RotaryEmbedding(d, interpolate_factor=factor), 300)
    assert_same_logits(InterpolatedRoPE(SIZES, factor=factor), rotate, layout, by_rotation(layout))


@pytest.mark.proves("rope_ntk", by="rotary-embedding-torch")
@pytest.mark.parametrize("factor", [1.0, 4.0, 3.3])
def test_ntk_equals_rotary_embedding_torch(factor: float) -> None:
    from rotary_embedding_torch import RotaryEmbedding

    layout = layout_at(list(range(300, 365)))
    rotate = each(RotaryEmbedding(d, theta=10_000.0, theta_rescale_factor=factor), 300)
    assert_same_logits(NTKRoPE(SIZES, factor=factor), rotate, layout, by_rotation(layout))


@pytest.mark.proves("{make}", by="rotary-embedding-torch")
@pytest.mark.parametrize("make", [partial(LRoPE, share="heads"), LeRoPE])
def test_trained_frequencies_equal_rotary_embedding_torch(make: Callable[[Sizes], RoPE]) -> None:
    """Theirs trains the frequencies, ours their logarithms: the gradients differ by a factor omega."""
    from rotary_embedding_torch import RotaryEmbedding

    encoding, layout = make(SIZES).double(), layout_at(list(range(65)))
    (logarithm,) = encoding.parameters()
    with torch.no_grad():
        logarithm += 0.3 * torch.randn_like(logarithm)
    omega = encoding.omega(logarithm.device)[0].detach()
    rotary = RotaryEmbedding(d, custom_freqs=omega, learned_freq=True)
    rotate = each(rotary, 0)
    assert_same_logits(encoding, rotate, layout, EXACT)
    q, k = torch.randn(2, B, H, 65, d, dtype=torch.float64)
    ours = reference.queries_and_keys(q, k, encoding.terms(torch.zeros(B, 65, D, dtype=q.dtype), layout))
    upstream = torch.randn_like(q)
    for one, other in zip(ours, rotate(q, k), strict=True):
        (by_logarithm,) = torch.autograd.grad(one, logarithm, upstream, retain_graph=True)
        (by_omega,) = torch.autograd.grad(other, rotary.freqs, upstream)
        # a sum over all tokens of terms as large as their positions
        atol = 100 * EXACT * by_logarithm.abs().max().item()
        assert_close(by_logarithm.flatten(), omega * by_omega, rtol=0, atol=atol)


@pytest.mark.proves("rope_2d", by="rotary-embedding-torch")
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (3, 50)])
def test_rope_2d_equals_rotary_embedding_torch(rows: int, columns: int) -> None:
    """Its axial frequencies for "lang", which counts cells; "pixel" is another function: linear, on -1 ... 1."""
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    size = rows * columns
    layout = Layout.of_lengths(torch.full((B,), size), size, causal=False, grid_width=columns)
    freqs = RotaryEmbedding(d // 2, theta=100.0).double().get_axial_freqs(rows, columns)

    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(apply_rotary_emb(freqs, x.unflatten(2, (rows, columns))).flatten(2, 3) for x in (q, k))

    encoding = AxialRoPE(Sizes(D, H, size, causal=False, grid_width=columns))
    assert_same_logits(encoding, rotate, layout, by_rotation(layout))
