"""An encoding against another one on each task: the verdict at the training length, and both at longer ones."""

from typing import Any

import pandas as pd

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.gallery.extrapolation import mean_right, range_over_seeds
from pe_lab.gallery.gallery_page import fixed, number, percent
from pe_lab.statistics import Verdict


def compare_on_task(results: TaskResults, name: str, other: str) -> dict[str, Any] | None:
    """Return the comparison of two encodings on a task; None where one of them is not measured.

    Returns:
        verdict: on the first one at the training length. difference: the ratio of steps, or the difference of losses; a
        bound where one does not solve every seed, empty where neither does. at: by length beyond training both values,
        and the verdict on losses; what is right has its range over seeds, and no verdict.
    """
    table = results.table.set_index("pe")
    if not {name, other} <= set(table.index):
        return None
    verdict, difference = _pair(results.pairs, name, other)
    if results.task.solvable:
        failing = [bool(table.loc[pe, "solved"] < table.loc[pe, "runs"]) for pe in (name, other)]
        ratio = f"{2**difference:.2f}" if difference < 3 else number(2**difference)
        text = "" if all(failing) else f"× {ratio}{' or more' * failing[0]}{' or less' * failing[1]}"
        shares = {length: each for length, each in mean_right(results).items() if length > 1}
        at = {
            length: ([_share(results, pe, length, each) for pe in (name, other)], "") for length, each in shares.items()
        }
    else:
        text = _signed_difference(difference)
        at = {}
        for length, longer in results.longer.items():
            losses = longer.table.set_index("pe")["mean"]
            word, gap = _pair(longer.pairs, name, other)
            at[length] = [fixed(losses[pe], 3) for pe in (name, other)], f"{word}, {_signed_difference(gap)}"
    return {"task": results.task, "verdict": verdict, "difference": text, "at": at}


def _pair(pairs: pd.DataFrame, name: str, other: str) -> tuple[str, float]:
    """Return the verdict on the first of two encodings, and its difference to the other one."""
    for first, second, sign in ((name, other, 1), (other, name, -1)):
        for line in pairs[(pairs["pe"] == first) & (pairs["baseline"] == second)].to_dict("records"):
            verdict = Verdict(line["verdict"])
            return str(verdict if sign > 0 else verdict.reverse), sign * line["difference"]
    raise AssertionError(f"no comparison of {name} and {other}")


def _signed_difference(difference: float) -> str:
    return f"{'+' * (difference > 0)}{fixed(difference, 3)}"


def _share(results: TaskResults, pe: str, length: float, shares: dict[str, float]) -> str:
    """Return what is right with its range over seeds."""
    low, high = (f"{100 * share:.0f}" for share in range_over_seeds(results, pe, length))
    spread = f" ({low} to {high})" if low != high else ""
    return f"{percent(shares[pe])}{spread}" if pe in shares else "–"
