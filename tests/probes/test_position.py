"""Position is predicted from states that contain it and from no others, on sequences that were not fitted."""

import hydra
import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor

from helpers.configs import pe_settings
from pe_lab.config import Model
from pe_lab.data.arithmetic import Addition
from pe_lab.data.base import Batch, Dataset, Floors, InMemoryDataset, Task
from pe_lab.data.linear_models import ridge_predictions
from pe_lab.data.seeding import initialise_parameters, make_generator
from pe_lab.data.structured import Structured
from pe_lab.model import Transformer
from pe_lab.probes import position
from pe_lab.probes.hidden_states import HiddenStates
from pe_lab.probes.position import ALPHAS, PositionProbe, read_off_token

WIDTH, T, SEQUENCES = 16, 12, 300
# 3,600 tokens, some ten dimensions: the share that noise explains, or does not
CHANCE = 0.02


class Words(InMemoryDataset):
    """Random sequences of 12 tokens: only the encoding or the mask depends on the position of a token.

    Args:
        start: token 0 stands at slot 0 and only there.
    """

    roles = ("next",)
    name = "words"

    def __init__(self, causal: bool, start: bool = False) -> None:
        self.task = Task(11, T, 11, causal)
        self.start = start

    def size(self, split: str) -> int:
        return SEQUENCES

    def make(self, split: str) -> Batch:
        tokens = torch.randint(int(self.start), 11, (SEQUENCES, T), generator=make_generator(0, "words", split))
        if self.start:
            tokens[:, 0] = 0
        layout = self.task.layout(torch.full((SEQUENCES,), T), T)
        return Batch(tokens, tokens, torch.zeros_like(tokens), tokens >= 0, layout)

    def floors(self, split: str) -> Floors:
        return {}


def transformer(data: Dataset, name: str) -> Transformer:
    encoding = hydra.utils.instantiate(pe_settings(name))
    model = Transformer(Model(2, WIDTH, 2, 2, "pre", 0.0, 1.0, False), encoding, data.task)
    initialise_parameters(model, 0)
    return model


def states(vectors: Tensor | None = None, length: Tensor | None = None, pos: Tensor | None = None) -> HiddenStates:
    """Return states of sequences of 12 random tokens, or of these lengths, with one layer: [N, D], noise by default."""
    length = torch.full((SEQUENCES,), T) if length is None else length
    sequence = torch.arange(len(length)).repeat_interleave(length)
    slot = torch.cat([torch.arange(n) for n in length.tolist()])
    pos = slot[:, None] if pos is None else pos
    hidden = torch.randn(len(slot), 8) if vectors is None else vectors
    return HiddenStates((hidden,), torch.randint(11, (len(slot),)), pos, sequence)


def probed(
    monkeypatch: pytest.MonkeyPatch, train: HiddenStates, test: HiddenStates
) -> dict[tuple[int | None, str], float]:
    """Return the rows that the probe finds in states of the two splits."""
    data = Words(causal=True)
    given = {"train": train, "test": test}
    monkeypatch.setattr(position, "capture_states", lambda model, dataset, split, seed: given[split])
    rows = PositionProbe()(transformer(data, "none"), data, 0)
    assert all(row["head"] is None for row in rows)
    assert len(rows) == len(named(rows))
    return named(rows)


def named(rows: list) -> dict[tuple[int | None, str], float]:
    return {(row["layer"], row["metric"]): row["value"] for row in rows}


def with_position(found: HiddenStates) -> HiddenStates:
    vectors = torch.cat((torch.randn(len(found.pos), 5), found.pos * 0.1 - 7), 1)
    return HiddenStates((vectors,), found.tokens, found.pos, found.sequence)


def test_a_state_that_contains_the_position_gives_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probed(monkeypatch, with_position(states()), with_position(states()))
    assert found[0, "r2"] == pytest.approx(1, abs=1e-6)
    assert found[0, "mae"] == pytest.approx(0, abs=1e-3)
    assert abs(found[0, "r2_permuted"]) < CHANCE
    assert abs(found[None, "r2_from_token"]) < CHANCE


def test_nothing_is_read_off_a_state_that_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probed(monkeypatch, states(), states())
    for name in ("r2", "r2_permuted"):
        assert abs(found[0, name]) < CHANCE
    # of predicting 5.5 for each of 0 ... 11
    for place in ((0, "mae"), (0, "mae_permuted"), (None, "mae_from_token")):
        assert found[place] == pytest.approx(3, abs=0.05)


def test_part_of_the_position_gives_part_of_the_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """States are the position plus noise of the same variance."""
    noise = np.sqrt((T**2 - 1) / 12)
    given = [states(vectors=s.pos + noise * torch.randn(len(s.pos), 1)) for s in (states(), states())]
    assert probed(monkeypatch, *given)[0, "r2"] == pytest.approx(0.5, abs=0.03)


def test_what_holds_in_the_fitting_sequences_alone_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probed(monkeypatch, with_position(states()), states(vectors=with_position(states()).hidden[0].roll(5, 0)))
    assert found[0, "r2"] < 0


def test_the_permuted_control_is_the_share_that_the_length_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that contains the length of its sequence determines the mean position."""
    given = []
    for _ in range(2):
        length = torch.randint(2, 21, (SEQUENCES,))
        vectors = length.repeat_interleave(length)[:, None].float()
        given.append(states(vectors, length))
    found = probed(monkeypatch, *given)
    size = given[1].hidden[0][:, 0].double().numpy()
    expected = np.var((size - 1) / 2) / np.var(given[1].pos[:, 0].numpy())
    assert expected > 0.1
    assert found[0, "r2_permuted"] == pytest.approx(expected, abs=0.03)
    assert found[0, "r2"] == pytest.approx(expected, abs=0.03)


def test_what_the_token_gives_away_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token 0 stands at slot 0 only; other tokens carry no information."""
    given = []
    for _ in range(2):
        made = states()
        tokens = torch.where(made.pos[:, 0] == 0, 0, torch.randint(1, 11, (len(made.pos),)))
        given.append(HiddenStates(made.hidden, tokens, made.pos, made.sequence))
    slots = np.arange(T)
    means = np.where(slots == 0, 0, slots[1:].mean())
    expected = means.var() / slots.var()
    found = probed(monkeypatch, *given)
    assert found[None, "r2_from_token"] == pytest.approx(expected, abs=0.01)
    assert found[None, "mae_from_token"] == pytest.approx(np.abs(slots - means).mean(), abs=0.03)


def test_scores_on_a_grid_are_averaged_over_row_and_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """States contain the row and not the column, which goes from 0 to 2."""
    given = []
    for _ in range(2):
        slot = states().pos[:, 0]
        pos = torch.stack((slot // 3, slot % 3), 1)
        given.append(states(vectors=torch.stack((slot // 3, torch.randn(len(slot))), 1).float(), pos=pos))
    found = probed(monkeypatch, *given)
    assert found[0, "r2"] == pytest.approx(0.5, abs=0.02)
    assert found[0, "mae"] == pytest.approx((0 + 2 / 3) / 2, abs=0.02)
    assert abs(found[0, "r2_permuted"]) < CHANCE


def test_there_is_nothing_to_read_where_all_tokens_have_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    length = torch.ones(SEQUENCES, dtype=torch.long)
    assert not probed(monkeypatch, states(length=length), states(length=length))


def test_small_dimensions_count_as_much_as_large_ones() -> None:
    x, y = torch.randn(200, 3).numpy(), np.random.default_rng(0).standard_normal((200, 1))
    scale = np.array([1e-6, 1.0, 1e4])
    predicted = ridge_predictions(x, y, x, ALPHAS)
    assert ridge_predictions(x * scale + 3, y, x * scale + 3, ALPHAS) == pytest.approx(predicted, abs=1e-6)


def test_the_ridge_is_chosen_for_each_column_by_leaving_tokens_out() -> None:
    """Compare with an explicit search over penalties, tokens left out and columns."""
    draw = np.random.default_rng(0)
    x, others = draw.standard_normal((30, 12)), draw.standard_normal((7, 12))
    asked = np.stack((x @ draw.standard_normal(12), draw.standard_normal(30)), 1)
    mean, spread = x.mean(0), x.std(0)

    def ridge(x: np.ndarray, y: np.ndarray, alpha: float, others: np.ndarray) -> np.ndarray:
        centred = x - x.mean(0)
        beta = np.linalg.solve(centred.T @ centred + alpha * np.eye(12), centred.T @ (y - y.mean()))
        return (others - x.mean(0)) @ beta + y.mean()

    expected = []
    for y in asked.T:
        z = (x - mean) / spread
        errors = [
            sum((ridge(np.delete(z, i, 0), np.delete(y, i), a, z[i : i + 1])[0] - y[i]) ** 2 for i in range(30))
            for a in ALPHAS
        ]
        expected.append(ridge(z, y, ALPHAS[np.argmin(errors)], (others - mean) / spread))
    assert ridge_predictions(x, asked, others, ALPHAS) == pytest.approx(np.stack(expected, 1), abs=1e-9)


def test_the_closed_form_for_tokens_is_ridge_regression_on_one_hot_tokens() -> None:
    draw = np.random.default_rng(0)
    tokens, others = draw.zipf(1.5, 200).clip(max=40), np.arange(45)
    asked = np.stack((np.sqrt(tokens) + draw.standard_normal(200), draw.standard_normal(200)), 1)
    kinds = np.unique(tokens)
    one_hot, other = (np.equal.outer(ids, kinds).astype(float) for ids in (tokens, others))
    known = RidgeCV(ALPHAS, alpha_per_target=True).fit(one_hot, asked)
    assert known.alpha_[0] != known.alpha_[1]
    assert not set(others) <= set(kinds)
    assert read_off_token(tokens, asked, others) == pytest.approx(known.predict(other), abs=1e-9)


def test_what_is_added_at_the_input_is_read_off_layer_0() -> None:
    data = Words(causal=False)
    found = named(PositionProbe()(transformer(data, "sinusoidal"), data, 0))
    blind = named(PositionProbe()(transformer(data, "none"), data, 0))
    assert found[0, "r2"] > 0.8
    assert found[0, "mae"] < 1.5
    assert abs(blind[0, "r2"]) < CHANCE


def test_a_bidirectional_model_without_encoding_is_blind_in_every_layer_and_a_causal_one_is_not() -> None:
    found = []
    for causal in (False, True):
        data = Words(causal, start=True)
        model = transformer(data, "none")
        with torch.no_grad():
            for layer in model.layers:  # so that the output of attention is visible beside the token
                layer.attention.out.weight *= 20
        found.append(named(PositionProbe()(model, data, 0)))
    for layer in range(3):
        assert found[0][layer, "r2"] < found[0][None, "r2_from_token"] + CHANCE
    assert found[1][0, "r2"] < found[1][None, "r2_from_token"] + CHANCE
    assert found[1][2, "r2"] > found[1][None, "r2_from_token"] + 0.1


def test_layer_0_without_an_encoding_gives_no_more_than_the_token() -> None:
    data = Structured(0)
    found = named(PositionProbe()(transformer(data, "rope"), data, 0))
    assert found[None, "r2_from_token"] > 0.1
    assert found[0, "r2"] < found[None, "r2_from_token"] + CHANCE


def test_the_fitting_sequences_are_of_the_train_split_and_the_scoring_ones_of_the_test_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    data, true = Words(causal=True), position.capture_states
    monkeypatch.setattr(position, "capture_states", lambda *given: asked.append(given[2]) or true(*given))
    PositionProbe()(transformer(data, "none"), data, 0)
    assert asked == ["train", "test"]


@pytest.mark.parametrize("name", ["rope", "randomized_learnable"])
def test_on_longer_problems_it_is_fitted_and_scored_on_halves_of_the_test_split(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Addition(0, train=64, validation=8, test=80).longer(2)
    assert (data.size("train"), data.size("test")) == (0, 80)
    asked: list[HiddenStates] = []
    true = position.capture_states

    def noting(*given, **named) -> HiddenStates:
        asked.append(true(*given, **named))
        return asked[-1]

    monkeypatch.setattr(position, "capture_states", noting)
    found = named(PositionProbe()(transformer(data, name), data, 0))
    assert all(np.isfinite(value) for value in found.values())
    assert {layer for layer, _ in found} == {None, 0, 1, 2}
    fitting, scoring = ({tuple(line) for line in one.tokens.view(40, -1).tolist()} for one in asked)
    assert len(fitting) == len(scoring) == 40
    assert not fitting & scoring


def test_one_longer_problem_cannot_be_both_fitted_and_scored() -> None:
    data = Addition(0, train=64, validation=8, test=1)
    PositionProbe.require(data)
    PositionProbe.require(Addition(0, train=64, validation=8, test=2).longer(2))
    with pytest.raises(ValueError, match="needs 2 test sequences of data=addition, one to fit and one to score, got 1"):
        PositionProbe.require(data.longer(2))
