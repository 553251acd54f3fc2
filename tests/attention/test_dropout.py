"""Dropout of attention weights by a counter: a fair coin for every weight, and the same one in every implementation."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from pe_lab.attention import attend
from pe_lab.attention.dropout import Dropout
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Terms
from pe_lab.model import blocks
from pe_lab.model.transformer import Transformer

pytestmark = [  # of the interpreter, in rows of a tile that are beyond the sequence
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SEEDS = (0, 1, 12345, 2**31 + 7, 2**32 - 1)
SIGMAS = 5  # one test in 2 million fails by chance


def dropout(p: float, seed: int = 12345) -> Dropout:
    return Dropout(p, torch.tensor(seed, device=DEVICE))


def dropped(p: float, seed: int, *shape: int) -> Tensor:
    """Which weights [B, H, T, T] are zero afterwards."""
    return dropout(p, seed).apply(torch.ones(shape, device=DEVICE)) == 0


def assert_fair(values: Tensor, p: float) -> None:
    """Booleans that are true p of the time."""
    deviation = (p * (1 - p) / values.numel()) ** 0.5
    assert abs(float(values.double().mean()) - p) < SIGMAS * deviation


def assert_unrelated(a: Tensor, b: Tensor, p: float) -> None:
    """The correlation of independent booleans is normal with a deviation of n^-1/2."""
    a, b = (x.double() - p for x in (a, b))
    assert abs(float((a * b).mean() / (p * (1 - p)))) < SIGMAS / a.numel() ** 0.5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_a_share_p_of_the_weights_is_dropped_and_the_others_make_up_for_it(p: float, seed: int) -> None:
    weights = dropout(p, seed).apply(torch.ones(2, 3, 200, 200, dtype=torch.float64, device=DEVICE))
    kept = weights[weights != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=1e-15, atol=0)
    assert_fair(weights == 0, p)
    mean = float(weights.mean())
    assert abs(mean - 1) < SIGMAS * (p / (1 - p) / weights.numel()) ** 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_column_and_diagonal_has_its_share(seed: int) -> None:
    """Sums of squared z-scores of n lines have a mean of n and a variance of about 2 n."""
    p, T = 0.3, 256
    mask = dropped(p, seed, 1, 2, T, T).double()
    index = torch.arange(T, device=DEVICE)
    aligned = mask.gather(3, (index[:, None] + index).expand_as(mask) % T)  # diagonals become columns
    for lines in (mask.sum(3), mask.sum(2), aligned.sum(2)):
        z = (lines - p * T) / (p * (1 - p) * T) ** 0.5
        assert abs(float(z.square().sum()) - z.numel()) < SIGMAS * (2 * z.numel()) ** 0.5
        assert z.abs().max() < SIGMAS + 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_rows_columns_heads_and_sequences_are_unrelated(p: float, seed: int) -> None:
    mask = dropped(p, seed, 4, 4, 128, 128)
    for axis in range(4):
        for lag in {1, 2, 3, 16, 31, 32, 64} & set(range(mask.shape[axis])):
            count = mask.shape[axis] - lag
            assert_unrelated(mask.narrow(axis, 0, count), mask.narrow(axis, lag, count), p)
    for aligned in (mask, mask.permute(2, 3, 0, 1)):  # a weight, and the one across the diagonal
        above = torch.ones_like(aligned).triu(1)
        assert_unrelated(aligned[above], aligned.transpose(2, 3)[above], p)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_seeds_are_unrelated(p: float) -> None:
    seeds = (0, 1, 2, 3, 1024, 2**16, 2**31, 2**32 - 1)
    for a, b in combinations([dropped(p, seed, 2, 2, 128, 128) for seed in seeds], 2):
        assert_unrelated(a, b, p)


def test_whether_a_weight_is_dropped_depends_on_its_place_alone() -> None:
    """Not on how many sequences, heads and tokens there are besides, and not on its value."""
    large = dropped(0.4, 7, 3, 4, 70, 70)
    assert torch.equal(dropped(0.4, 7, 2, 3, 33, 33), large[:2, :3, :33, :33])
    weights = torch.rand(3, 4, 70, 70, device=DEVICE) + 0.1
    assert torch.equal(dropout(0.4, 7).apply(weights) == 0, large)


def test_a_larger_share_drops_the_same_weights_and_more() -> None:
    few, many = (dropped(p, 7, 2, 2, 64, 64) for p in (0.2, 0.6))
    assert (many | ~few).all()


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_not_between_zero_and_one_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"^dropout of attention weights must be in \(0, 1\), got"):
        dropout(p)


# -- in attention ------------------------------------------------------------------------------------------------------

B, H, T = 2, 2, 45
LAYOUTS = {
    "whole": [[0] * T] * B,
    "packed": [[0] * 20 + [1] * 25, [PADDING] * 5 + [0] * 30 + [PADDING] * 10],
}


def layout_of(segments: list[list[int]], causal: bool) -> Layout:
    return Layout(torch.arange(T)[None], torch.tensor(segments), causal).to(DEVICE)


def weights_of(implementation: str, q: Tensor, k: Tensor, layout: Layout, coins: Dropout) -> Tensor:
    """[B, H, T, T] attention weights: values that are the rows of the identity are mixed into them."""
    values = torch.eye(T, q.shape[-1], device=DEVICE).expand_as(q)
    return attend(q, k, values, Terms(), layout, implementation, coins)[..., :T]


@pytest.mark.covering
@pytest.mark.parametrize(("segments", "causal"), [("whole", True), ("whole", False), ("packed", False)])
@pytest.mark.parametrize(("p", "seed"), [(0.1, 0), (0.5, 2**32 - 1), (0.3, -(2**40) - 7)])
def test_triton_and_the_reference_drop_the_same_weights(p: float, seed: int, segments: str, causal: bool) -> None:
    layout = layout_of(LAYOUTS[segments], causal)
    q, k = torch.randn(2, B, H, T, 64, device=DEVICE)
    got, expected = (weights_of(name, q, k, layout, dropout(p, seed)) for name in ("triton", "reference"))
    gone = dropped(p, seed, B, H, T, T)
    seen = (layout.allowed & (layout.segment != PADDING)[:, None, :, None]).expand_as(gone)
    for weights in (got, expected):
        assert torch.equal((weights == 0) & seen, gone & seen)
    torch.testing.assert_close(got.where(seen, 0), expected.where(seen, 0), rtol=1e-5, atol=1e-7)


def test_the_mean_over_seeds_is_attention_without_dropout() -> None:
    count, p = 400, 0.3
    layout = layout_of(LAYOUTS["whole"], causal=True)
    q, k, v = torch.randn(3, B, H, T, 16, dtype=torch.float64, device=DEVICE)
    drawn = torch.stack([attend(q, k, v, Terms(), layout, "reference", dropout(p, seed)) for seed in range(count)])
    off = drawn.mean(0) - attend(q, k, v, Terms(), layout, "reference")
    z = off / (drawn.std(0) / count**0.5)
    assert z.abs().max() < SIGMAS + 1
    assert abs(float(z[..., 1:, :].square().mean()) - 1) < 0.2


# -- in the model ------------------------------------------------------------------------------------------------------


def small(attention_dropout: float, implementation: str) -> Transformer:
    config = Model(
        depth=2, width=32, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False,
        attention_dropout=attention_dropout,
    )  # fmt: skip
    made = Transformer(config, PositionalEncoding, Task(11, 20, 11, causal=True), implementation)
    initialise_parameters(made, seed=0)
    return made.to(DEVICE)


TOKENS = torch.arange(40).view(2, 20).mul(7) % 11
LAYOUT = Layout.of_lengths(torch.tensor([20, 13]), 20, causal=True)


def step(made: Transformer, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return made(TOKENS.to(DEVICE), LAYOUT.to(DEVICE))[LAYOUT.segment != PADDING]


@pytest.mark.parametrize("implementation", ["reference", "auto"])
def test_weights_are_dropped_in_training_only(implementation: str) -> None:
    made, without = small(0.5, implementation), small(0.0, implementation)
    evaluated = step(made.eval(), 1)
    assert torch.equal(evaluated, step(made, 2))
    assert torch.equal(evaluated, step(without.eval(), 1))
    assert torch.equal(step(without.train(), 1), step(without, 2))
    trained = step(made.train(), 1)
    assert not torch.isclose(trained, evaluated).all(-1).any()
    assert torch.equal(trained, step(made, 1))
    assert not torch.equal(trained, step(made, 2))


def test_layers_and_steps_drop_different_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Dropout | None] = []

    def spy(*given: object) -> Tensor:
        used.append(given[-1])
        return attend(*given)

    monkeypatch.setattr(blocks, "attend", spy)
    made = small(0.5, "auto").train()
    step(made, 3)
    made(TOKENS.to(DEVICE), LAYOUT.to(DEVICE))
    assert [coins.p for coins in used] == [0.5] * 4  # two layers, twice
    masks = [coins.apply(torch.ones(2, H, 64, 64, device=DEVICE)) == 0 for coins in used]
    for a, b in combinations(masks, 2):
        assert_unrelated(a, b, 0.5)
    step(made.eval(), 3)
    assert used[4:] == [None, None]


def test_a_seed_drops_the_same_weights_in_every_implementation() -> None:
    """Float32, through two layers: sums of some hundred numbers of size 10, of which none counts twice."""
    got, expected = (step(small(0.4, name).train(), 5) for name in ("triton", "reference"))
    assert not torch.isclose(expected, step(small(0.4, "reference").train(), 6)).all(-1).any()
    torch.testing.assert_close(got, expected, rtol=0, atol=100 * 10 * 2**-24)
