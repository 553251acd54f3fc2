"""What models get right at each test length, and which encodings hold beyond the training length.

Results are computed once for each `TaskResults`, as many pages ask for them: do not change what is returned.
"""

from functools import cache

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.gallery.samples import load_data
from pe_lab.replication.entry import Claimed, Entry
from pe_lab.statistics import MIN_SEEDS, interval

SAME_POSITIONS = ("pattern",)  # datasets whose longer sequences ask at the positions of the shorter ones
MIN_HELD = 0.9  # of the answers: an encoding holds at a length where the 95 % interval of what is right begins there
MIN_RANGE_SHOWN = 10.0  # points between seeds from which a mean has its range
NO_NEW_POSITION = "longer sequences ask only at positions of the training length"
NOT_ASKED = (
    "Longer sequences have their pairs at the same positions and more of the other tokens behind them, so no position"
    " beyond the training length is ever asked for."
)


@cache
def mean_right(results: TaskResults, metric: str = "accuracy") -> dict[float, dict[str, float]]:
    """Return the mean share over seeds of right answers on the test set, by length and by encoding.

    Args:
        metric: `accuracy`: of answers; `exact_match`: of sequences of which all answers are right.
    """
    means = {}
    for length in results.scores["length"].unique():
        values = results.rows[f"{metric}_x{length:g}"].astype(float)
        means[float(length)] = values.groupby(results.rows["pe"]).mean().dropna().to_dict()
    return means


@cache
def mean_whole(results: TaskResults) -> dict[float, dict[str, float]]:
    """Return `mean_right` of whole sequences; empty where a sequence has one answer, or a loss is compared."""
    return mean_right(results, "exact_match") if results.task.solvable and not load_data(results.task).pooled else {}


@cache
def value_at_lengths(results: TaskResults) -> dict[float, dict[str, float]]:
    """Return what pages show at each length by encoding: `mean_right`, or the mean loss of a task compared by it."""
    if results.task.solvable:
        return mean_right(results)
    tables = {1.0: results.table} | {length: each.table for length, each in results.longer.items()}
    return {length: table.set_index("pe")["mean"].astype(float).to_dict() for length, table in tables.items()}


@cache
def range_over_seeds(results: TaskResults, pe: str, length: float) -> tuple[float, float]:
    """Return the lowest and the highest share over seeds of what is right."""
    values = results.rows.loc[results.rows["pe"] == pe, f"accuracy_x{length:g}"].astype(float).dropna()
    return float(values.min()), float(values.max())


def seed_range(results: TaskResults, pe: str, length: float) -> str:
    """Return the range over seeds of what is right, in words; empty where it is not wide."""
    low, high = (100 * share for share in range_over_seeds(results, pe, length))
    return f"{low:.0f} to {high:.0f}\u00a0% by seed" if high - low >= MIN_RANGE_SHOWN else ""


@cache
def ranked_right(results: TaskResults, length: float) -> dict[str, float]:
    """Return the means of `mean_right` at a length, the highest first, of encodings with enough seeds."""
    enough = results.table.loc[results.table["runs"] >= MIN_SEEDS, "pe"]
    means = mean_right(results).get(length, {})
    return dict(sorted(((pe, means[pe]) for pe in enough if pe in means), key=lambda item: -item[1]))


@cache
def encodings_that_hold(results: TaskResults) -> dict[float, dict[str, float]]:
    """Return the encodings that hold at each length beyond training, the best first, each with its mean.

    The 95 % t interval of the share of right answers begins at MIN_HELD or above. Of a task that is compared by its
    loss, no other encoding is `better` at that length, and the mean is that of the loss.
    """
    if not results.task.solvable:
        tables = {length: each.table.set_index("pe")["mean"] for length, each in results.longer.items()}
        return {length: {pe: float(table[pe]) for pe in results.best_at[length]} for length, table in tables.items()}
    return {
        length: {pe: share for pe, share in each.items() if _lowest(results, pe, length) >= MIN_HELD}
        for length, each in _averages(results).items()
    }


@cache
def holding_on_average(results: TaskResults) -> dict[float, dict[str, float]]:
    """Return other encodings with a mean of at least MIN_HELD, as `encodings_that_hold`; empty of losses."""
    held = encodings_that_hold(results)
    averages = _averages(results) if results.task.solvable else {}
    return {
        length: {pe: share for pe, share in each.items() if pe not in held[length]} for length, each in averages.items()
    }


@cache
def _averages(results: TaskResults) -> dict[float, dict[str, float]]:
    """Return `ranked_right` at each length beyond training, of encodings with at least MIN_HELD."""
    shares = {length: ranked_right(results, length) for length in mean_right(results) if length > 1}
    return {length: {pe: share for pe, share in each.items() if share >= MIN_HELD} for length, each in shares.items()}


def _lowest(results: TaskResults, pe: str, length: float) -> float:
    """Return the lower end of the 95 % t interval of the share of right answers."""
    return float(
        interval(results.rows.loc[results.rows["pe"] == pe, f"accuracy_x{length:g}"].astype(float).dropna())[0]
    )


@cache
def highest_where_none_holds(results: TaskResults) -> dict[float, tuple[str, float]]:
    """Return the encoding with the highest of `mean_right` and its mean, at the lengths at which none holds."""
    without = [length for length, held in encodings_that_hold(results).items() if not held and results.task.solvable]
    return {length: next(iter(each.items())) for length in without if (each := ranked_right(results, length))}


def keeps_positions(entry: Entry) -> bool:
    """Return whether a claim compares lengths on data of SAME_POSITIONS."""
    tests = [test for test in entry.values.values() if isinstance(test, Claimed)]
    return any(test.value.get("data") in SAME_POSITIONS and "length" in test.value for test in tests)
