"""How well the position of a token can be predicted from its hidden state."""

import numpy as np
import torch
from torch import Tensor

from pe_lab.data.base import Dataset
from pe_lab.model import Transformer
from pe_lab.probes.base import Probe, ProbeRow, make_row
from pe_lab.probes.hidden_states import HiddenStates, capture_states, permute_tokens

ALPHAS = np.logspace(-2, 5, 8)  # ridge penalties to choose from; features have variance 1


class PositionProbe(Probe):
    """Predicts a token's position from its hidden state by ridge regression (Alain and Bengio 2017, arXiv:1610.01644).

    The regression is fitted on sequences of the train split and scored on sequences of the test split; on longer
    problems that are all in the test split, it is fitted on one half of that and scored on the other. The position is
    that in the token's document; on a grid it is row and column, and scores are averaged over both. Features are
    standardised. The penalty is chosen among ALPHAS by leave-one-out error over the tokens of the fitting sequences.

    Rows, for layers 0 ... depth:
        r2: share of the variance of the position that is predicted; 1: all, 0: as good as predicting the mean
            position, < 0: worse than that.
        mae: mean absolute error, >= 0, in tokens (on a grid, in cells along an axis).
        r2_permuted, mae_permuted: the same, fitted and scored, when positions are permuted among the tokens of each
            sequence: chance. It may be above 0, since a state that encodes the length of its sequence predicts the
            mean position.

    Rows of the model as a whole:
        r2_from_token, mae_from_token: the same predicted from the token alone (one-hot), that is from content. What a
            layer has above it comes from the encoding or from other tokens (under a causal mask, from those before).
            A layer may have less: with fewer dimensions than tokens it cannot separate all tokens.

    There are no rows where all tokens have the same position on some axis.
    """

    @classmethod
    def require(cls, dataset: Dataset) -> None:
        if not dataset.size("train") and dataset.size("test") < 2:
            raise ValueError(
                f"probe=position at evaluate.lengths above 1 needs 2 test sequences of data={dataset.name}, one to fit "
                f"and one to score, got {dataset.size('test')}: set data.test"
            )

    def __call__(self, model: Transformer, dataset: Dataset, seed: int) -> list[ProbeRow]:
        from pe_lab.data.linear_models import ridge_predictions  # loads scikit-learn

        if dataset.size("train"):
            fitting, scoring = (capture_states(model, dataset, split, seed) for split in ("train", "test"))
        else:
            fitting, scoring = (capture_states(model, dataset, "test", seed, half=half) for half in range(2))
        if (scoring.pos == scoring.pos[0]).all(0).any():
            return []
        axes = fitting.pos.shape[1]
        wanted, answers = _targets(fitting, seed), _targets(scoring, seed)
        rows = []
        for layer, (x, others) in enumerate(zip(fitting.hidden, scoring.hidden, strict=True)):
            predicted = ridge_predictions(_numbers(x), wanted, _numbers(others), ALPHAS)
            rows += _scores(predicted[:, :axes], answers[:, :axes], "", layer)
            rows += _scores(predicted[:, axes:], answers[:, axes:], "_permuted", layer)
        predicted = read_off_token(fitting.tokens.numpy(), wanted[:, :axes], scoring.tokens.numpy())
        return rows + _scores(predicted, answers[:, :axes], "_from_token")


def read_off_token(tokens: np.ndarray, wanted: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Fit and predict as `ridge_predictions` does, from one-hot tokens [N] that are not standardised.

    One-hot columns are orthogonal, so the solution is a closed form and does not grow with the vocabulary: the value
    of a token that occurs n times is its mean, shrunk towards the intercept c by n / (n + alpha). The value of a token
    that does not occur is c.
    """
    kinds, index, count = np.unique(tokens, return_inverse=True, return_counts=True)
    where = np.searchsorted(kinds, others).clip(max=len(kinds) - 1)
    same_kind = kinds[where] == others
    predicted = []
    for target in wanted.T:
        mean = np.bincount(index, target) / count
        candidates = []
        for alpha in ALPHAS:
            shrinkage = alpha / (count + alpha)
            weight = count * shrinkage
            c = weight @ mean / weight.sum()
            value = mean + shrinkage * (c - mean)
            leverage = 1 / (count + alpha) + shrinkage**2 / weight.sum()
            left_out = (target - value[index]) / (1 - leverage[index])
            candidates.append(((left_out**2).mean(), np.where(same_kind, value[where], c)))
        predicted.append(min(candidates, key=lambda candidate: candidate[0])[1])
    return np.stack(predicted, 1)


def _targets(states: HiddenStates, seed: int) -> np.ndarray:
    """Return [N, 2 axes], the positions and the permuted positions."""
    return _numbers(torch.cat((states.pos, permute_tokens(states.pos, states.sequence, seed)), 1))


def _scores(predicted: np.ndarray, answer: np.ndarray, suffix: str, layer: int | None = None) -> list[ProbeRow]:
    """Return R^2 and mean absolute error of positions [N, axes], averaged over axes."""
    error = predicted - answer
    r2 = 1 - (error**2).sum(0) / ((answer - answer.mean(0)) ** 2).sum(0)
    return [make_row(f"r2{suffix}", r2.mean(), layer), make_row(f"mae{suffix}", np.abs(error).mean(), layer)]


def _numbers(x: Tensor) -> np.ndarray:
    return x.double().numpy()
