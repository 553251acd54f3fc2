"""Encodings of rows and columns against their formulas, written pair by pair."""

import math
from collections.abc import Sequence
from dataclasses import replace

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.configs import pe_settings
from pe_lab.attention import reference
from pe_lab.config import expand_overrides
from pe_lab.data.base import Batch, Dataset, Task
from pe_lab.data.seeding import initialise_parameters, make_generator
from pe_lab.data.structured import Structured
from pe_lab.encodings.families.absolute import Sinusoidal
from pe_lab.encodings.families.grid import AxialRoPE, Learnable2D, MixedRoPE, Sinusoidal2D
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.experiment.cell import Cell
from pe_lab.model.transformer import Transformer
from pe_lab.training.data import Sequences
from pe_lab.training.module import Training
from pe_lab.training.optimization import Optimization

D, H, W, T = 16, 2, 4, 12
SIZES = Sizes(D, H, T, grid_width=W)
LAYOUT = Layout.of_lengths(torch.tensor([T]), T, False, grid_width=W)
CELLS = [(t // W, t % W) for t in range(T)]


def sinusoids(pos: int, width: int, theta: float) -> list[float]:
    angles = [pos / theta ** (2 * (dim // 2) / width) for dim in range(width)]
    return [math.cos(a) if dim % 2 else math.sin(a) for dim, a in enumerate(angles)]


def test_the_layout_counts_rows_and_columns() -> None:
    assert LAYOUT.pos[0].tolist() == [list(cell) for cell in CELLS]


@pytest.mark.proves("sinusoidal_2d")
@pytest.mark.parametrize("theta", [None, 50.0])
def test_sinusoidal_2d_gives_half_of_the_dims_to_each_axis(theta: float | None) -> None:
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    out = (Sinusoidal2D(SIZES, theta=theta) if theta else Sinusoidal2D(SIZES)).embed(x, LAYOUT)
    rows = [sinusoids(r, D // 2, theta or 10_000) + sinusoids(c, D // 2, theta or 10_000) for r, c in CELLS]
    assert_close(out, x + torch.tensor(rows, dtype=torch.float64), rtol=0, atol=1e-13)
    upstream = torch.randn_like(out)
    assert torch.equal(torch.autograd.grad(out, x, upstream)[0], upstream)


@pytest.mark.proves("learnable_2d")
def test_learnable_2d_learns_a_vector_per_row_and_per_column() -> None:
    encoding = Learnable2D(SIZES, max_len=12).double()
    x, upstream = torch.randn(2, 1, T, D, dtype=torch.float64)
    out = encoding.embed(x, LAYOUT)
    (gradient,) = torch.autograd.grad(out, encoding.table, upstream)
    grad = torch.zeros(12, D, dtype=torch.float64)
    for t, (r, c) in enumerate(CELLS):
        expected = torch.cat((encoding.table[r, : D // 2], encoding.table[c, D // 2 :]))
        assert torch.equal(out[0, t], x[0, t] + expected)
        grad[r, : D // 2] += upstream[0, t, : D // 2]
        grad[c, D // 2 :] += upstream[0, t, D // 2 :]
    assert_close(gradient, grad, rtol=0, atol=1e-14)


def rotated(x: Tensor, cell: tuple[float, float], omega: list[tuple[float, float]]) -> Tensor:
    """Pair c of x [d] rotated by row * omega_row + column * omega_column."""
    parts = []
    for c, (along_row, along_column) in enumerate(omega):
        angle = torch.as_tensor(cell[0] * along_row + cell[1] * along_column, dtype=x.dtype)
        a, b = x[2 * c], x[2 * c + 1]
        parts += [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.stack(parts)


def logits_by_hand(
    q: Tensor, k: Tensor, omega: list[list[tuple[float, float]]], cells: Sequence[tuple[float, float]] = CELLS
) -> Tensor:
    d = q.shape[-1]
    rows = []
    for h in range(H):
        qs = [rotated(q[0, h, t], cells[t], omega[h]) for t in range(T)]
        ks = [rotated(k[0, h, t], cells[t], omega[h]) for t in range(T)]
        rows.append(torch.stack([torch.stack([a @ b for b in ks]) for a in qs]) / math.sqrt(d))
    return torch.stack(rows)[None]


@pytest.mark.proves("rope_2d")
def test_axial_rope_rotates_half_of_the_pairs_with_the_row_and_half_with_the_column() -> None:
    """theta ** (-4c / d): 1, 0.1 for d = 8, theta = 100."""
    encoding = AxialRoPE(SIZES)
    q, k = torch.randn(2, 1, H, T, D // H, dtype=torch.float64, requires_grad=True)
    z = reference.logits(q, k, encoding.terms(torch.zeros(1, T, D, dtype=torch.float64), LAYOUT), LAYOUT)
    expected = logits_by_hand(q, k, [[(1.0, 0.0), (0.1, 0.0), (0.0, 1.0), (0.0, 0.1)]] * H)
    assert_close(z, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(z)
    for got, want in zip(*(torch.autograd.grad(y, (q, k), upstream) for y in (z, expected)), strict=True):
        assert_close(got, want, rtol=0, atol=1e-11)


def test_axial_rope_takes_real_coordinates() -> None:
    """As of patches of pictures of several sizes; values and gradients."""
    cells = [(r / 3 - 0.5, 2.5 * c + 0.125) for r, c in CELLS]
    layout = replace(LAYOUT, pos=torch.tensor(cells, dtype=torch.float64)[None])
    q, k = torch.randn(2, 1, H, T, D // H, dtype=torch.float64, requires_grad=True)
    encoding, h = AxialRoPE(SIZES), torch.zeros(1, T, D, dtype=torch.float64)
    z = reference.logits(q, k, encoding.terms(h, encoding.locate(layout)), layout)
    expected = logits_by_hand(q, k, [[(1.0, 0.0), (0.1, 0.0), (0.0, 1.0), (0.0, 0.1)]] * H, cells)
    assert_close(z, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(z)
    for got, want in zip(*(torch.autograd.grad(y, (q, k), upstream) for y in (z, expected)), strict=True):
        assert_close(got, want, rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match=r"^rope_2d takes integer positions on a grid, got torch\.float64"):
        AxialRoPE(replace(SIZES, causal=False), coordinates="unit").locate(layout)
    with pytest.raises(ValueError, match=r"^rope takes integer positions on a grid, got torch\.float64"):
        RoPE(SIZES).locate(layout)  # which reads it row by row


@pytest.mark.proves("rope_mixed")
def test_mixed_rope_rotates_every_pair_with_both_and_learns_how() -> None:
    encoding = MixedRoPE(SIZES)
    initialise_parameters(encoding, seed=0)
    encoding = encoding.double()
    q, k = torch.randn(2, 1, H, T, D // H, dtype=torch.float64, requires_grad=True)
    z = reference.logits(q, k, encoding.terms(torch.zeros(1, T, D, dtype=torch.float64), LAYOUT), LAYOUT)
    omega = [[(encoding.frequency[0, h, c], encoding.frequency[1, h, c]) for c in range(4)] for h in range(H)]
    expected = logits_by_hand(q, k, omega)
    assert_close(z, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(z)
    wanted = (q, k, encoding.frequency)
    for got, want in zip(*(torch.autograd.grad(y, wanted, upstream) for y in (z, expected)), strict=True):
        assert_close(got, want, rtol=0, atol=1e-11)


def test_mixed_rope_starts_as_two_perpendicular_rotations_of_the_axial_frequencies() -> None:
    encoding = MixedRoPE(SIZES)
    initialise_parameters(encoding, seed=0)
    frequency = encoding.frequency.detach().double()
    size = torch.tensor([1.0, 10**-0.5], dtype=torch.float64)
    assert_close(frequency.norm(dim=0), size.repeat(2).expand(H, 4), rtol=1e-6, atol=0)
    assert_close((frequency[:, :, :2] * frequency[:, :, 2:]).sum(0), torch.zeros(H, 2).double(), rtol=0, atol=1e-7)
    assert not torch.equal(frequency[:, 0], frequency[:, 1])  # each head by an angle of its own
    assert encoding.frequency.numel() == D  # d/2 pairs, two axes, H heads


@pytest.mark.parametrize("kind", [AxialRoPE, MixedRoPE])
def test_theta_is_the_base_of_the_frequencies(kind: type[AxialRoPE]) -> None:
    encoding = kind(SIZES, theta=16.0)
    initialise_parameters(encoding, seed=0)
    size = encoding.omega(torch.device("cpu")).norm(dim=0)
    assert_close(size, torch.tensor([1, 0.25, 1, 0.25], dtype=torch.float64).expand_as(size), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [AxialRoPE, MixedRoPE])
def test_pairings_are_equal_up_to_a_fixed_permutation(kind: type[AxialRoPE]) -> None:
    interleaved, half = kind(SIZES), kind(SIZES, pairing="half")
    for encoding in (interleaved, half):
        initialise_parameters(encoding, seed=0)
    q, k, zero = *torch.randn(2, 1, H, T, D // H, dtype=torch.float64), torch.zeros(1, T, D, dtype=torch.float64)
    order = torch.arange(D // H).view(-1, 2).T.flatten()
    expected = reference.logits(q, k, interleaved.terms(zero, LAYOUT), LAYOUT)
    z = reference.logits(q[..., order], k[..., order], half.terms(zero, LAYOUT), LAYOUT)
    assert_close(z, expected, rtol=0, atol=1e-12)


def test_mixed_rope_has_frequencies_in_every_layer_that_are_not_decayed() -> None:
    cfg = expand_overrides(["pe=rope_mixed", "model.depth=2", "optimizer=adamw", "optimizer.weight_decay=0.1"], False)[
        0
    ]
    model = Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), RandomGrid(False).task)
    initialise_parameters(model, seed=0)
    first, second = (encoding.frequency for encoding in model.encodings)
    assert not torch.equal(first, second)
    still = [g for g in Optimization(cfg.optimizer, 1).optimizer(model).param_groups if g["weight_decay"] == 0]
    assert {id(p) for group in still for p in group["params"]} == {id(first), id(second)}


@pytest.mark.parametrize("kind", [AxialRoPE, MixedRoPE])
@pytest.mark.parametrize("offset", [(5, 5), (50, 3), (0, 500), (5_000, 5_000)])
def test_logits_depend_on_the_offset_alone(kind: type[AxialRoPE], offset: tuple[int, int]) -> None:
    encoding = kind(SIZES)
    initialise_parameters(encoding, seed=0)
    encoding = encoding.double()
    q, k = torch.randn(2, 1, H, T, D // H, dtype=torch.float64)
    moved = Layout(LAYOUT.pos + torch.tensor(offset), LAYOUT.segment, causal=False)
    zero = torch.zeros(1, T, D, dtype=torch.float64)
    z, shifted = (reference.logits(q, k, encoding.terms(zero, at), at) for at in (LAYOUT, moved))
    assert_close(shifted, z, rtol=0, atol=1e-10)


def test_sizes_that_do_not_fit_two_axes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^rope_2d rotates pairs on two axes: head_dim must be a multiple of 4"):
        AxialRoPE(Sizes(12, 2, T, grid_width=W))
    for kind in (Sinusoidal2D, Learnable2D):
        with pytest.raises(ValueError, match=r"each axis half of the dimensions: width must be even, got 15$"):
            kind(Sizes(15, 1, T, grid_width=W))


def test_an_encoding_made_for_a_line_refuses_a_grid() -> None:
    with pytest.raises(ValueError, match=r"^sinusoidal was built for sequences, got positions on a grid$"):
        Sinusoidal(Sizes(D, H, T)).locate(LAYOUT)


def structured_is(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Replace the task of `structured`."""
    made = Structured.__init__

    def changed(self: Structured, *given: object, **options: object) -> None:
        made(self, *given, **options)
        self.task = replace(self.task, **changes)

    monkeypatch.setattr(Structured, "__init__", changed)


@pytest.mark.parametrize("name", ["rope_2d", "rope", "randomized_rope"])
def test_a_cell_gives_the_encoding_the_grid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    structured_is(monkeypatch, grid_width=4)
    cell = Cell.from_config(expand_overrides([f"pe={name}"], False)[0])
    assert cell.encoding_class is {"rope_2d": AxialRoPE, "rope": RoPE, "randomized_rope": Randomized}[name]


def test_a_cell_and_a_model_give_the_encoding_whether_the_task_is_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    structured_is(monkeypatch, causal=False)
    cfg = expand_overrides(["pe=xpos"], False)[0]
    with pytest.raises(ValueError, match=r"^xpos is defined for causal attention only"):
        Cell.from_config(cfg)
    with pytest.raises(ValueError, match=r"^xpos is defined for causal attention only"):
        Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), Task(7, 64, 7, causal=False))


class RandomGrid(Dataset):
    """Random tokens on an 8 x 8 grid; the answer at a cell is the token above it."""

    roles = ("above",)

    def __init__(self, causal: bool) -> None:
        self.task = Task(7, 64, 7, causal, grid_width=8)
        self.tokens = torch.randint(7, (96, 64), generator=make_generator(0, "grid"))

    def size(self, split: str) -> int:
        return len(self.tokens)

    def batch(self, split: str, index: Tensor, epoch: int = 0) -> Batch:
        tokens = self.tokens[index]
        layout = self.task.layout(torch.full((len(index),), 64), 64)
        zero = torch.zeros_like(tokens)
        return Batch(tokens, tokens.roll(8, 1), zero, zero == 0, layout)

    def floors(self, split: str) -> dict[str, dict[str, float]]:
        return {}


def training(name: str, causal: bool) -> Training:
    cfg = expand_overrides(
        [f"pe={name}", "model.depth=1", "model.width=16", "model.num_heads=2", "trainer.batch_size=32"], False
    )[0]
    data = RandomGrid(causal)
    return Training(cfg, dataset=data)


def first_losses(run: Training) -> list[float]:
    losses = []
    data = Sequences(run.cfg, run.dataset).train_dataloader()
    data.order.set_epoch(run.step // len(data))
    for batch in data:
        loss = run.training_step(batch, 0)
        run.optimizer.zero_grad()
        loss.backward()
        for key, parameter in run.model.named_parameters():
            assert parameter.grad.isfinite().all(), key
            assert parameter.grad.any(), key
        run.optimizer.step()
        run.step += 1
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "causal"),
    [
        *((name, False) for name in ("sinusoidal_2d", "learnable_2d", "rope_2d", "rope_mixed", "cpe", "rope")),
        *((name, True) for name in ("rope_mixed", "cpe")),
        *(
            pytest.param(name, True, marks=pytest.mark.slow)
            for name in ("sinusoidal_2d", "learnable_2d", "rope_2d", "rope")
        ),
    ],
)
def test_it_trains_on_a_grid(name: str, causal: bool) -> None:
    """Finite loss and a gradient on every parameter; twelve epochs of it beat chance."""
    run = training(name, causal)
    losses = [loss for _ in range(12) for loss in first_losses(run)]
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize("column", [3, -1])
def test_a_column_outside_of_the_grid_is_refused_where_it_would_be_another_cell(column: int) -> None:
    sizes = Sizes(8, 2, 9, causal=False, grid_width=3)
    encoding = hydra.utils.instantiate(pe_settings("sinusoidal"))(sizes)
    layout = Layout.of_lengths(torch.tensor([9]), 9, causal=False, grid_width=3)
    assert encoding.locate(layout).pos[0].tolist() == list(range(9))
    layout.pos[0, 4, 1] = column
    with pytest.raises(ValueError, match="reads a grid of 3 columns row by row: got a column outside of it"):
        encoding.locate(layout)


@pytest.mark.parametrize("width", [0, -1])
def test_a_grid_without_columns_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="sizes must be at least 1"):
        Sizes(8, 2, 9, grid_width=width)
