"""Linear models of standardized features, by scikit-learn, which takes half a second to load."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def class_probabilities(features: np.ndarray, labels: np.ndarray, others: np.ndarray, classes: int) -> np.ndarray:
    """Fit a logistic regression, and return the probabilities that it gives.

    Args:
        features: [N, D] features.
        labels: [N] integers, at least two different ones, in [0, classes).
        others: [M, D] features to predict for.

    Returns:
        [M, classes]; 0 for classes that are not among the labels.
    """
    model: Any = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000)).fit(features, labels)
    probabilities = np.zeros((len(others), classes))
    probabilities[:, model.classes_] = model.predict_proba(others)
    return probabilities


def ridge_predictions(
    features: np.ndarray, targets: np.ndarray, others: np.ndarray, penalties: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Fit a ridge regression, with a penalty per column that leave-one-out error chooses, and return its predictions.

    Args:
        features: [N, D] features.
        targets: [N, columns] the values to predict from them.
        others: [M, D] features to predict for.
        penalties: the penalties to choose from.

    Returns:
        [M, columns]
    """
    regression = make_pipeline(StandardScaler(), RidgeCV(penalties, alpha_per_target=True)).fit(features, targets)
    predicted: np.ndarray = regression.predict(others)
    return predicted
