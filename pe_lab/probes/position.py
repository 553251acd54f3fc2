"""How well the position of a token can be read off its hidden state."""

import numpy as np
import torch
from torch import Tensor

from pe_lab.data.base import Dataset
from pe_lab.model import Transformer
from pe_lab.probes.states import Row, States, capture, permute, row

revision = 1  # raised when the numbers change

ALPHAS = np.logspace(-2, 5, 8)  # strengths of the ridge to choose from; features have variance 1


def probe(model: Transformer, dataset: Dataset, seed: int) -> list[Row]:
    """Ridge regression from the hidden state of a token to its position, as linear probes do (Alain and Bengio 2017,
    arXiv:1610.01644): fitted on sequences of the train split, scored on others, of the test split.

    The position is that in the token's document; on a grid it is row and column, and scores are averaged over both.
    Features are standardised; the strength of the ridge is chosen among ALPHAS by leaving tokens of the fitting
    sequences out one at a time.

    Rows, for layers 0 ... depth:
        r2: share of the variance of the position that is read off; 1: all, 0: no more than the mean position, < 0:
            less than that.
        mae: mean absolute error, >= 0, in tokens (on a grid, in cells along an axis).
        r2_permuted, mae_permuted: the same, fitted and scored, when the positions are permuted among the tokens of
            each sequence: chance. It may be above 0, as a state that knows the length of its sequence knows the mean.

    Rows of the model as a whole:
        r2_from_token, mae_from_token: the same read off the token alone (one-hot): what the content gives away. What a
            layer has above it comes from the encoding or from other tokens, as those before it under a causal mask; it
            may have less, as fewer lanes than tokens cannot tell them all apart.

    There are none where all tokens have one position on some axis.
    """
    fitting, scoring = (capture(model, dataset, split, seed) for split in ("train", "test"))
    if (scoring.pos == scoring.pos[0]).all(0).any():
        return []
    axes = fitting.pos.shape[1]
    asked, answer = _asked(fitting, seed), _asked(scoring, seed)
    rows = []
    for layer, (x, others) in enumerate(zip(fitting.hidden, scoring.hidden, strict=True)):
        predicted = read(_numbers(x), asked, _numbers(others))
        rows += _scores(predicted[:, :axes], answer[:, :axes], "", layer)
        rows += _scores(predicted[:, axes:], answer[:, axes:], "_permuted", layer)
    predicted = read_off_token(fitting.tokens.numpy(), asked[:, :axes], scoring.tokens.numpy())
    return rows + _scores(predicted, answer[:, :axes], "_from_token")


def read(x: np.ndarray, asked: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Ridge regression with a strength per column: what it predicts of others.

    Args:
        x: [N, D] features.
        asked: [N, columns] what to predict from them.
        others: [M, D] features of which it is predicted.

    Returns:
        [M, columns]
    """
    from sklearn.linear_model import RidgeCV  # takes a second to load
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(ALPHAS, alpha_per_target=True)).fit(x, asked).predict(others)


def read_off_token(tokens: np.ndarray, asked: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The same from one-hot tokens [N], not standardised: in closed form, as their columns are orthogonal.

    A token's value is its mean, drawn towards the intercept c by n / (n + alpha) where it was seen n times; a token
    that was not seen has c. So it costs no more for a large vocabulary.
    """
    kinds, index, count = np.unique(tokens, return_inverse=True, return_counts=True)
    where = np.searchsorted(kinds, others).clip(max=len(kinds) - 1)
    known = kinds[where] == others
    predicted = []
    for wanted in asked.T:
        mean = np.bincount(index, wanted) / count
        found = []
        for alpha in ALPHAS:
            drawn = alpha / (count + alpha)
            weight = count * drawn
            c = weight @ mean / weight.sum()
            value = mean + drawn * (c - mean)
            leverage = 1 / (count + alpha) + drawn**2 / weight.sum()
            left_out = (wanted - value[index]) / (1 - leverage[index])
            found.append(((left_out**2).mean(), np.where(known, value[where], c)))
        predicted.append(min(found, key=lambda one: one[0])[1])
    return np.stack(predicted, 1)


def _asked(states: States, seed: int) -> np.ndarray:
    """[N, 2 axes] the positions, and the permuted ones."""
    return _numbers(torch.cat((states.pos, permute(states.pos, states.sequence, seed)), 1))


def _scores(predicted: np.ndarray, answer: np.ndarray, suffix: str, layer: int | None = None) -> list[Row]:
    """R^2 and mean absolute error of positions [N, axes], averaged over axes."""
    error = predicted - answer
    r2 = 1 - (error**2).sum(0) / ((answer - answer.mean(0)) ** 2).sum(0)
    return [row(f"r2{suffix}", r2.mean(), layer), row(f"mae{suffix}", np.abs(error).mean(), layer)]


def _numbers(x: Tensor) -> np.ndarray:
    return x.double().numpy()
