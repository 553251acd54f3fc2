"""What models get right at each test length, and which encodings score highest beyond the training length."""

import pandas as pd

from pe_lab.benchmark.measured import TaskResults
from pe_lab.gallery.page import percent
from pe_lab.gallery.samples import data_of
from pe_lab.replication.entry import Claimed, Entry
from pe_lab.results.learned import LEAST_RIGHT
from pe_lab.statistics import FEWEST_SEEDS

SAME_POSITIONS = ("pattern",)  # datasets whose longer sequences ask at the positions of the shorter ones
HALF = 0.5  # of the answers: from it on, an encoding is recommended for a length
WIDE = 10.0  # points between seeds from which a mean has its range
NO_NEW_POSITION = "longer sequences ask for no new position"
NOT_ASKED = (
    "Longer sequences have their pairs at the same positions and more of the other tokens behind them, so no position"
    " beyond the training length is ever asked for."
)


def measure_of(results: TaskResults) -> str:
    """Return what `right` is: the exact match of tasks with several answers to a sequence; of others the accuracy."""
    return "exact match" if results.task.solvable and not data_of(results.task).pooled else "accuracy"


def right(results: TaskResults) -> dict[float, dict[str, float]]:
    """Return the mean over seeds of what is right on the test set, by length in training lengths and by encoding."""
    column = measure_of(results).replace(" ", "_")
    means = {}
    for length in results.scores["length"].unique():
        values = results.rows[f"{column}_x{length:g}"].astype(float)
        means[float(length)] = values.groupby(results.rows["pe"]).mean().dropna().to_dict()
    return means


def by_seed(results: TaskResults, pe: str, length: float) -> str:
    """Return the range over seeds of what is right; empty where it is not wide."""
    column = f"{measure_of(results).replace(' ', '_')}_x{length:g}"
    values = results.rows.loc[results.rows["pe"] == pe, column].astype(float).dropna()
    low, high = 100 * values.min(), 100 * values.max()
    return f"{low:.0f} to {high:.0f}\u00a0% by seed" if high - low >= WIDE else ""


def ranked_right(results: TaskResults, length: float) -> dict[str, float]:
    """Return the means of `right` at a length, the highest first, of encodings with enough seeds."""
    enough = results.table.loc[results.table["runs"] >= FEWEST_SEEDS, "pe"]
    means = right(results).get(length, {})
    return dict(sorted(((pe, means[pe]) for pe in enough if pe in means), key=lambda item: -item[1]))


def highest_beyond(results: TaskResults) -> dict[float, tuple[str, float]]:
    """Return the encoding with the highest of `right` and its mean, by length beyond training, if all are below HALF.

    Empty where an encoding gets half of the answers right at a longer length, and of a task compared by its loss.
    """
    if not results.task.solvable:
        return {}
    lengths = [float(length) for length in results.scores["length"].unique() if length > 1]
    ranked = {length: ranked_right(results, length) for length in lengths}
    highest = {length: next(iter(shares.items())) for length, shares in ranked.items() if shares}
    return highest if all(share < HALF for _, share in highest.values()) else {}


def few_right(results: TaskResults) -> dict[float, float]:
    """Return the highest of `right` at the lengths at which no encoding reaches LEAST_RIGHT."""
    highest = {length: max(shares.values()) for length, shares in right(results).items() if shares}
    return {length: share for length, share in highest.items() if share < LEAST_RIGHT}


def best_scores(results: TaskResults) -> dict[float, list[dict[str, object]]]:
    """Return lines of `results.scores` by length beyond training, the highest mean first; nothing of a loss.

    They are that of the highest mean, of encodings with enough seeds whose 95 % interval is above 0 as it is shown, and
    others of these whose intervals overlap its interval. They are no verdicts.
    """
    scores = results.scores if results.task.solvable else results.scores.iloc[:0]
    above = scores[(scores["runs"] >= FEWEST_SEEDS) & (scores["low"].astype(float).round(2) > 0)].sort_values(
        "mean", ascending=False
    )
    lengths = [float(length) for length in scores["length"].unique() if length > 1]
    return {length: _overlapping(above[above["length"] == length]) for length in lengths}


def most_right(results: TaskResults) -> dict[float, tuple[list[str], float]]:
    """Return the encodings with the highest of `right`, and their share, at lengths at which others have the top score.

    Shares are compared as they are shown, of encodings with enough seeds. Lengths at which `best_scores` has no
    encoding, and those of `few_right`, are left out.
    """
    shares, few, most = right(results), few_right(results), {}
    enough = set(results.table.loc[results.table["runs"] >= FEWEST_SEEDS, "pe"])
    for length, lines in best_scores(results).items():
        measured = {pe: share for pe, share in shares.get(length, {}).items() if pe in enough}
        if lines and measured and length not in few:
            highest = max(measured.values())
            names = [pe for pe, share in measured.items() if percent(share) == percent(highest)]
            if lines[0]["pe"] not in names:
                most[length] = names, highest
    return most


def keeps_positions(entry: Entry) -> bool:
    """Return whether a claim compares lengths on data of SAME_POSITIONS."""
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    return any(test.value.get("data") in SAME_POSITIONS and "length" in test.value for test in tests)


def _overlapping(lines: pd.DataFrame) -> list[dict[str, object]]:
    return [] if lines.empty else lines[lines["high"] >= lines["low"].iloc[0]].to_dict("records")
