"""Encodings added to the token embedding, against their formulas written with math.sin and loops."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.config import Model
from pe_lab.encodings.absolute import Learnable, SinInit, Sinusoidal
from pe_lab.encodings.base import PADDING, Layout, PositionalEncoding, Sizes, Terms
from pe_lab.model import Transformer
from pe_lab.seeding import initialise

B, D = 2, 6
SIZES = Sizes(width=D, num_heads=2, length=10)
POSITIONS = [[0, 1, 2, 7, 300], [3, 4, 5, 250, 511]]
F32 = torch.finfo(torch.float32).eps


def layout_at(pos: list[list[int]]) -> Layout:
    size = (len(pos), len(pos[0]))
    return Layout(torch.tensor(pos), torch.zeros(size, dtype=torch.long), torch.full(size[:1], size[1]), causal=True)


def paper(pos: int, width: int, theta: float = 10_000.0) -> list[float]:
    """PE(pos, 2c) = sin(pos / theta^(2c/D)), PE(pos, 2c+1) = cos(pos / theta^(2c/D)); arXiv:1706.03762, section 3.5."""
    lanes = []
    for lane in range(width):
        angle = pos / theta ** (2 * (lane // 2) / width)
        lanes.append(math.cos(angle) if lane % 2 else math.sin(angle))
    return lanes


def paper_rows(pos: list[list[int]], width: int, theta: float = 10_000.0) -> Tensor:
    return torch.tensor([[paper(p, width, theta) for p in row] for row in pos], dtype=torch.float64)


def test_sinusoidal_has_the_known_values() -> None:
    added = Sinusoidal(Sizes(4, 1, 3)).embed(torch.zeros(1, 3, 4), layout_at([[0, 1, 2]]))[0]
    expected = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.841, 0.540, 0.010, 1.000], [0.909, -0.416, 0.020, 1.000]])
    assert_close(added, expected, rtol=0, atol=0.0005)


@pytest.mark.parametrize("width", [1, 5, 6, 64])
@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_sinusoidal_is_the_papers_formula(width: int, theta: float) -> None:
    """Values, and a gradient that passes unchanged to the token."""
    x = torch.randn(B, 5, width, dtype=torch.float64, requires_grad=True)
    out = Sinusoidal(Sizes(width, 1, 5), theta=theta).embed(x, layout_at(POSITIONS))
    # theta ** -exponent and the product round the angle, up to 511, a few times
    assert_close(out, x + paper_rows(POSITIONS, width, theta), rtol=0, atol=511 * 4 * torch.finfo(x.dtype).eps)
    upstream = torch.randn_like(out)
    assert torch.equal(torch.autograd.grad(out, x, upstream)[0], upstream)


def test_sinusoidal_in_float32_is_right_up_to_the_angles_rounding() -> None:
    out = Sinusoidal(SIZES).embed(torch.zeros(B, 5, D), layout_at(POSITIONS))
    assert out.dtype == torch.float32
    assert_close(out.double(), paper_rows(POSITIONS, D), rtol=0, atol=511 * F32)


def test_sinusoidal_learns_nothing() -> None:
    assert not list(Sinusoidal(SIZES).parameters())


def test_sininit_starts_as_the_sinusoids() -> None:
    encoding = SinInit(SIZES, max_len=512)
    pos = [list(range(512))]
    assert_close(encoding.table.detach().double()[None], paper_rows(pos, D), rtol=0, atol=511 * F32)
    assert not torch.equal(SinInit(SIZES, theta=50.0).table, encoding.table[:512])
    x = torch.randn(1, 512, D)
    assert torch.equal(encoding.embed(x, layout_at(pos)), Sinusoidal(SIZES).embed(x, layout_at(pos)))


@pytest.mark.parametrize("kind", [Learnable, SinInit])
def test_a_trained_table_is_read_by_position_and_learns_by_position(kind: type[Learnable]) -> None:
    """out[b, t] = x[b, t] + table[pos[b, t]]; a row's gradient is the sum over where it was read."""
    encoding = kind(SIZES, max_len=512).double()
    pos = [[0, 1, 2, 7, 300], [1, 2, 3, 300, 511]]
    x = torch.randn(B, 5, D, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(B, 5, D, dtype=torch.float64)
    out = encoding.embed(x, layout_at(pos))
    out.backward(upstream)
    expected_out, expected_grad = x.detach().clone(), torch.zeros(512, D, dtype=torch.float64)
    for b in range(B):
        for t in range(5):
            expected_out[b, t] += encoding.table.detach()[pos[b][t]]
            expected_grad[pos[b][t]] += upstream[b, t]
    assert torch.equal(out, expected_out)
    assert torch.equal(x.grad, upstream)
    assert_close(encoding.table.grad, expected_grad, rtol=0, atol=1e-15)


def test_learnable_starts_as_a_normal_of_0_02() -> None:
    """Within 5 standard errors: 0.02 / sqrt(n) for the mean, 0.02 / sqrt(2n) for the deviation."""
    table = Learnable(Sizes(384, 6, 256), max_len=512).table.detach().double()
    assert table.numel() == 196_608
    error = 0.02 / math.sqrt(table.numel())
    assert table.mean().abs().item() < 5 * error
    assert abs(table.std().item() - 0.02) < 5 * error / math.sqrt(2)


@pytest.mark.parametrize("kind", [Learnable, SinInit])
def test_a_table_says_where_it_ends(kind: type[Learnable]) -> None:
    encoding = kind(SIZES, max_len=12)
    assert len(encoding.table) == 12
    encoding.embed(torch.zeros(1, 1, D), layout_at([[11]]))
    with pytest.raises(ValueError, match=r"has positions 0 to 11: position 12 is beyond its table .*pe\.max_len"):
        encoding.embed(torch.zeros(1, 2, D), layout_at([[0, 12]]))
    with pytest.raises(ValueError, match=r"pe\.max_len must be at least the length .*pe\.max_len=9, length=10$"):
        kind(SIZES, max_len=9)
    with pytest.raises(ValueError, match=r"^pe\.max_len must be an integer of at least 1, got 0$"):
        kind(SIZES, max_len=0)


@pytest.mark.parametrize("kind", [Learnable, SinInit])
def test_a_table_has_no_negative_positions(kind: type[Learnable]) -> None:
    """A token that counts must not silently read another row."""
    with pytest.raises(ValueError, match="-1"):
        kind(SIZES).embed(torch.zeros(1, 2, D), layout_at([[-1, 0]]))


def test_padding_may_stand_at_any_position() -> None:
    encoding, x = Learnable(SIZES, max_len=12), torch.randn(1, 4, D)
    segment = torch.tensor([[PADDING, 0, 0, PADDING]])
    layout = Layout(torch.tensor([[-7, 0, 1, 5_000]]), segment, torch.tensor([2]), causal=True)
    out = encoding.embed(x, layout)
    assert torch.equal(out[:, 1:3], x[:, 1:3] + encoding.table[:2])
    assert out.isfinite().all()


@pytest.mark.parametrize("kind", [Sinusoidal, SinInit])
def test_theta_must_be_positive(kind: type[PositionalEncoding]) -> None:
    with pytest.raises(ValueError, match=r"^pe\.theta must be a positive number, got -1\.0$"):
        kind(SIZES, theta=-1.0)


def bare_model(causal: bool) -> tuple[Transformer, Layout]:
    config = Model(
        depth=2, width=16, num_heads=2, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    model = Transformer(config, PositionalEncoding, vocabulary=9, length=7)
    initialise(model, seed=0)
    return model.double(), Layout.of_lengths(torch.tensor([7]), 7, causal)


def test_no_encoding_leaves_everything_alone() -> None:
    x, layout, none = torch.randn(1, 7, D), Layout.of_lengths(torch.tensor([7]), 7, True), PositionalEncoding(SIZES)
    assert none.embed(x, layout) is x
    assert all(h is x for h in none.mix(x, layout))
    assert none.terms(x, layout) == Terms()
    assert not list(none.parameters())


def test_without_encoding_a_bidirectional_model_is_order_blind() -> None:
    """Equal up to the order of its sums."""
    model, layout = bare_model(causal=False)
    tokens, order = torch.randint(9, (1, 7)), torch.randperm(7)
    assert_close(model(tokens[:, order], layout), model(tokens, layout)[:, order], rtol=0, atol=1e-12)


def test_without_encoding_a_causal_model_is_not_order_blind() -> None:
    model, layout = bare_model(causal=True)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5, 6]])
    swapped = torch.tensor([[1, 0, 2, 3, 4, 5, 6]])
    assert (model(tokens, layout)[:, -1] - model(swapped, layout)[:, -1]).abs().max() > 1e-3
