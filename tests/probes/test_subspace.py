"""Parts of token and position are separated, and angles between known subspaces are found."""

import math

import hydra
import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.configs import pe_settings
from pe_lab.config import Model
from pe_lab.data.seeding import initialise_parameters
from pe_lab.data.structured import MID, START, Structured
from pe_lab.model import Transformer
from pe_lab.probes import subspace
from pe_lab.probes.hidden_states import HiddenStates, capture_states
from pe_lab.probes.subspace import (
    SubspaceProbe,
    comparable_tokens,
    principal_angles,
    principal_directions,
    split_states,
)

DEPTH, WIDTH, T = 2, 16, 12
KINDS = 20
# float64; least squares of some 1e3 equations
EXACT = {"rtol": 0, "atol": 1e-9}
DIMENSIONS = {"token_dimensions", "position_dimensions"}
ANGLES = {"smallest_angle", "mean_cosine", "smallest_angle_random", "mean_cosine_random"}


def settings(name: str, *options: str) -> Transformer:
    encoding = hydra.utils.instantiate(pe_settings(name, *options))
    model = Transformer(Model(DEPTH, WIDTH, 2, 2, "pre", 0.0, 1.0, False), encoding, Structured(0).task)
    initialise_parameters(model, 0)
    return model


def layers(rows: list, metric: str) -> dict[int, float]:
    assert all(row["head"] is None for row in rows)
    return {row["layer"]: row["value"] for row in rows if row["metric"] == metric}


def made_of(token: Tensor, place: Tensor, count: int = 100) -> HiddenStates:
    """Return random sequences whose states are a vector per token plus one per position."""
    tokens = torch.randint(len(token), (count, len(place)))
    hidden = (token[tokens] + place).flatten(0, 1)
    pos = torch.arange(len(place)).repeat(count)[:, None]
    return HiddenStates((hidden,), tokens.flatten(), pos, torch.arange(count).repeat_interleave(len(place)))


def found_in(states: HiddenStates, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    monkeypatch.setattr(subspace, "capture_states", lambda *given: states)
    return {row["metric"]: row["value"] for row in SubspaceProbe()(settings("none"), Structured(0), 0)}


def in_dims(used: list[int], rows: int) -> Tensor:
    """Return random vectors [rows, D] in these dimensions only, with equal variance in each."""
    out = torch.zeros(rows, WIDTH, dtype=torch.float64)
    noise = torch.randn(rows, len(used), dtype=torch.float64)
    out[:, used] = torch.linalg.qr(noise - noise.mean(0)).Q
    return out


def test_orthogonal_subspaces_are_90_degrees_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_in(made_of(3 * in_dims([0, 1, 2], KINDS), 5 + in_dims([3, 4], T)), monkeypatch)
    assert (found["token_dimensions"], found["position_dimensions"]) == (3, 2)
    assert found["smallest_angle"] == pytest.approx(90)
    assert found["mean_cosine"] == pytest.approx(0, abs=1e-7)


def test_equal_subspaces_are_0_degrees_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_in(made_of(3 * in_dims([0, 1, 2], KINDS), in_dims([0, 1, 2], T)), monkeypatch)
    assert found["smallest_angle"] == pytest.approx(0, abs=1e-5)
    assert found["mean_cosine"] == pytest.approx(1)


def test_an_angle_between_known_directions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions lie along dimension 0 rotated by 30 degrees towards dimension 5, and along dimension 6."""
    turned = torch.zeros(2, WIDTH, dtype=torch.float64)
    turned[0, 0], turned[0, 5], turned[1, 6] = math.cos(math.radians(30)), math.sin(math.radians(30)), 1
    place = in_dims([0, 1], T)[:, :2] @ turned
    found = found_in(made_of(in_dims([0, 1, 2], KINDS), place), monkeypatch)
    assert found["smallest_angle"] == pytest.approx(30)
    assert found["mean_cosine"] == pytest.approx((math.cos(math.radians(30)) + 0) / 2)


def test_shares_are_those_of_the_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    token, place = in_dims([0, 1, 2], KINDS), in_dims([3, 4], T)
    states = made_of(token, place, count=3000)
    found = found_in(states, monkeypatch)
    by_token, by_place = 3 / KINDS, 2 / T  # orthonormal columns: a mean square of 1 / rows each
    assert found["token_share"] == pytest.approx(by_token / (by_token + by_place), abs=0.02)
    assert found["position_share"] == pytest.approx(by_place / (by_token + by_place), abs=0.02)
    assert found["token_share"] + found["position_share"] == pytest.approx(1, abs=0.01)
    assert found["position_share_permuted"] < 0.01


def test_random_subspaces_are_as_close_as_theory_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean squared cosine of subspaces of k >= l dimensions is k / D: with l = 1, cos^2 ~ Beta(k/2, (D-k)/2)."""
    monkeypatch.setattr(subspace, "NUM_DRAWS", 2000)
    place = in_dims([5], T)
    found = found_in(made_of(in_dims([0, 1, 2], KINDS), place), monkeypatch)
    k = found["token_dimensions"]
    expected = math.gamma((k + 1) / 2) * math.gamma(WIDTH / 2) / (math.gamma(k / 2) * math.gamma((WIDTH + 1) / 2))
    assert (k, found["position_dimensions"]) == (3, 1)
    assert found["mean_cosine_random"] == pytest.approx(expected, abs=0.02)
    assert 0 < found["smallest_angle_random"] < 90


def test_tokens_that_prefer_places_are_not_taken_for_position() -> None:
    """Tokens increase along the sequence: their means differ by position, although states do not depend on it."""
    token, place = torch.randn(KINDS, 4).double(), torch.randn(T, 4).double()
    slot = torch.arange(T).repeat(200)
    tokens = (slot + torch.randint(-3, 4, slot.shape)).clamp(0, KINDS - 1)
    tokens = tokens.unique(return_inverse=True)[1]
    found = split_states(token[tokens], tokens, slot)
    assert found[1].abs().max() < 1e-9
    found = split_states(token[tokens] + place[slot], tokens, slot)
    torch.testing.assert_close(found[1], place - place.mean(0), **EXACT)
    seen = int(tokens.max()) + 1
    torch.testing.assert_close(found[0], token[:seen] + place.mean(0), **EXACT)


def test_parts_are_the_least_squares_fit() -> None:
    hidden, tokens, places = torch.randn(90, 3).double(), torch.arange(90) % 7, torch.randint(4, (90,))
    one_hot = [torch.nn.functional.one_hot(ids).double() for ids in (tokens, places)]
    design = torch.cat(one_hot, 1)
    expected = design @ torch.linalg.lstsq(design, hidden, driver="gelsd").solution
    token, place = split_states(hidden, tokens, places)
    torch.testing.assert_close(token[tokens] + place[places], expected, **EXACT)


def test_tokens_and_positions_that_cannot_be_distinguished_are_left_out() -> None:
    # token 5 is always at place 0, which holds nothing else; without it token 6 has one place left
    tokens = torch.tensor([5, 1, 2, 6, 5, 2, 1, 2])
    places = torch.tensor([0, 1, 2, 3, 0, 1, 2, 2])
    assert comparable_tokens(tokens, places).tolist() == [False, True, True, False, False, True, True, True]
    assert not comparable_tokens(torch.tensor([3, 4, 3, 4]), torch.tensor([0, 1, 0, 1])).any()
    # removing one leads to the next: token 1 is at places 0 and 1, place 0 then holds token 1 alone
    chain = comparable_tokens(torch.tensor([9, 1, 1, 2, 2, 3]), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert not chain.any()


def test_the_directions_carry_nine_tenths_of_the_variance() -> None:
    basis = torch.linalg.qr(torch.randn(WIDTH, WIDTH).double()).Q
    noise = torch.randn(50, 4).double()
    rows = torch.linalg.qr(noise - noise.mean(0)).Q
    for squares, expected in (([0.5, 0.3, 0.15, 0.05], 3), ([0.91, 0.05, 0.03, 0.01], 1), ([0.25] * 4, 4)):
        vectors = rows * torch.tensor(squares).double().sqrt() @ basis[:4] + 7
        found = principal_directions(vectors)
        assert found.shape == (WIDTH, expected)
        assert principal_angles(found.numpy(), basis[:expected].T.numpy())[1] == pytest.approx(1, abs=1e-6)
    for _ in range(20):  # exactly nine tenths, but for rounding
        noise = torch.randn(50, 10).double()
        assert principal_directions(torch.linalg.qr(noise - noise.mean(0)).Q).shape[1] == 9


def test_angles_are_those_of_scipy_in_degrees() -> None:
    one, other = np.eye(4)[:, :1], np.array([[1.0], [1.0], [0], [0]])
    assert principal_angles(one, other) == pytest.approx((45, math.sqrt(0.5)))


def test_where_nothing_is_added_there_is_no_position_subspace_at_layer_0() -> None:
    for name in ("none", "rope", "sinusoidal_qk"):
        rows = SubspaceProbe()(settings(name), Structured(0), 0)
        for metric in DIMENSIONS | ANGLES:
            assert 0 not in layers(rows, metric)
            assert set(layers(rows, metric)) == {1, 2}
        assert layers(rows, "position_share")[0] == pytest.approx(0, abs=1e-12)
        assert layers(rows, "token_share")[0] == pytest.approx(1)


@pytest.mark.parametrize("name", ["sinusoidal", "learnable", "integer", "random"])
def test_at_layer_0_the_parts_are_embeddings_and_what_is_added(name: str) -> None:
    model, data = settings(name), Structured(0)
    rows = SubspaceProbe()(model, data, 0)
    states = capture_states(model, data, "test", 0)
    kept = comparable_tokens(states.tokens, states.pos[:, 0])
    inside, pos = states.tokens[kept].unique(), states.pos[kept].unique()
    assert not {START, MID} & set(inside.tolist())
    assert pos.tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]  # START alone is at 0, MID at 5, END at 14
    token = model.tokens.weight[inside].detach().double()
    layout = data.task.layout(torch.tensor([16]), 16)
    place = model.encodings[0].vectors(layout, torch.float64)[0, pos].detach().double()
    expected = principal_angles(principal_directions(token).numpy(), principal_directions(place).numpy())
    assert (layers(rows, "smallest_angle")[0], layers(rows, "mean_cosine")[0]) == pytest.approx(expected, rel=1e-3)
    assert layers(rows, "token_share")[0] > 0.01


def test_equal_states_have_no_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_in(made_of(torch.ones(KINDS, WIDTH), torch.ones(T, WIDTH)), monkeypatch)
    assert found.keys() == {"moved_by_1", "moved_by_length"}


@pytest.mark.parametrize("name", ["none", "stick_breaking", "rope", "t5"])
def test_what_looks_at_distances_moves_with_the_phrase(name: str) -> None:
    rows = SubspaceProbe()(settings(name), Structured(0), 0)
    for metric in ("moved_by_1", "moved_by_length"):
        assert list(layers(rows, metric)) == [0, 1, 2]
        # float32 angles of positions up to 32
        assert max(layers(rows, metric).values()) < 1e-5


def test_the_change_of_a_moved_phrase_is_that_of_its_states() -> None:
    model, data = settings("sinusoidal"), Structured(0)
    rows = SubspaceProbe()(model, data, 0)
    before = capture_states(model, data, "test", 0).hidden
    for metric, offset in (("moved_by_1", 1), ("moved_by_length", 16)):
        after = capture_states(model, data, "test", 0, offset).hidden
        expected = {n: ((b - a).norm() / a.norm()).item() for n, (a, b) in enumerate(zip(before, after, strict=True))}
        assert min(expected.values()) > 0.05
        assert layers(rows, metric) == pytest.approx(expected, rel=1e-4)
    # position p becomes p + 1
    states = capture_states(model, data, "test", 0)
    token = model.tokens.weight[states.tokens]
    table = model.encodings[0].vectors(data.task.layout(torch.tensor([17]), 17), torch.float32)[0]
    one, other = (token + table[states.pos[:, 0] + step] for step in (0, 1))
    assert layers(rows, "moved_by_1")[0] == pytest.approx(((other - one).norm() / one.norm()).item(), rel=1e-4)


def test_where_a_table_ends_nothing_is_moved_beyond() -> None:
    rows = SubspaceProbe()(settings("learnable", "pe.max_len=20"), Structured(0), 0)
    assert list(layers(rows, "moved_by_1")) == [0, 1, 2]
    assert not layers(rows, "moved_by_length")
    rows = SubspaceProbe()(settings("learnable", "pe.max_len=16"), Structured(0), 0)
    assert list(layers(rows, "mean_cosine")) == [0, 1, 2]


def test_a_model_that_breaks_when_shifted_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that are not finite are an error; missing positions are not."""
    model = settings("integer")
    true = model.encodings[0].vectors
    model.encodings[0].vectors = lambda layout, dtype: true(layout, dtype) / (layout.pos.min() < 16)
    with pytest.raises(FloatingPointError, match="finite"):
        SubspaceProbe()(model, Structured(0), 0)
