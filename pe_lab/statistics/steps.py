"""Steps to solve: when a validation score first passes a level and stays there for two evaluations in a row."""

from itertools import pairwise

import numpy as np


def check_level(level: float) -> None:
    """Raise ValueError unless the level is between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level:g}")


def check_evaluations(steps: tuple[int, ...] | np.ndarray, cap: int, minimum: int = 2) -> None:
    """Raise ValueError unless evaluations increase from 1 and at least `minimum` lie within the cap."""
    listed = [float(step) for step in steps]
    if not listed or listed[0] < 1 or any(b <= a for a, b in pairwise(listed)):
        raise ValueError(f"evaluations must be increasing steps from 1, got {', '.join(f'{x:g}' for x in listed)}")
    if sum(step <= cap for step in listed) < minimum:
        raise ValueError(
            f"cap must be at or beyond the second evaluation, {f'{listed[1]:g}' if listed[1:] else 'none'}, got {cap:g}"
        )


def first_pass(scores: np.ndarray, level: float) -> np.ndarray:
    """Return the index of the first of two evaluations in a row at or above a level; -1: none yet.

    Args:
        scores: validation scores [..., evaluations]; NaN where none was made.
    """
    at = scores >= level
    two = at[..., :-1] & at[..., 1:]
    return np.where(two.any(-1), two.argmax(-1), -1)


def steps_to_solve(
    steps: tuple[int, ...] | np.ndarray, scores: np.ndarray, level: float, cap: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return log2 of the steps to solve, and whether the task was solved.

    The pass is the first of two evaluations in a row, at or before the cap, whose scores are at or above the level. Its
    time is interpolated on a log2 scale between the previous evaluation, which is below the level, and the pass. A pass
    at the first evaluation is not interpolated. If only the last evaluation is at or above the level, the task is
    solved at the cap. A run without a pass counts as the cap.

    Args:
        steps: the steps of the evaluations, increasing.
        scores: validation scores [..., evaluations]; NaN after the last that was made.
        level: the level of the score, between 0 and 1.
        cap: steps at which runs are censored.

    Returns:
        log2 steps [...]; solved [...].

    Raises:
        ValueError: an argument is not as above, a score before the last is NaN, or a score is infinite.
    """
    check_level(level)
    check_evaluations(steps, cap)
    scores = np.asarray(scores, float)
    if scores.shape[-1] != len(steps):
        raise ValueError(f"scores must have one value for each of the {len(steps)} evaluations, got {scores.shape[-1]}")
    missing = np.isnan(scores)
    if (missing[..., :-1] & ~missing[..., 1:]).any():
        raise ValueError("scores must be numbers up to the last evaluation that was made, got NaN before it")
    if np.isinf(scores).any():
        raise ValueError(f"scores must be finite, got {scores[np.isinf(scores)][0]}")
    used = np.asarray(steps, float) <= cap
    when, scores = np.log2(np.asarray(steps, float)[used]), scores[..., used]
    index = first_pass(scores, level)
    solved = index >= 0
    after = np.where(solved, index, 0)
    before = np.maximum(after - 1, 0)
    high, low = (np.take_along_axis(scores, i[..., None], -1)[..., 0] for i in (after, before))
    inside = solved & (after > 0)
    share = np.where(inside, (level - low) / np.where(inside, high - low, 1.0), 0.0)
    y = np.where(inside, when[before] + share * (when[after] - when[before]), when[after])
    return np.where(solved, y, np.log2(cap)), solved | (scores[..., -1] >= level)
