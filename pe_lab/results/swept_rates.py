"""Learning rates chosen from a sweep by validation loss, and how much a ranking depends on them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pe_lab.config import LR
from pe_lab.ledger.run import DIVERGED
from pe_lab.results.columns import merge_tables, setting_columns
from pe_lab.results.frame import Results
from pe_lab.statistics.intervals import interval


@dataclass(frozen=True)
class SweptRates:
    """The best learning rates of a study.

    Attributes:
        rates: a line per encoding and setting: the rate with the lowest mean validation loss over seeds, at_edge (it is
            the lowest or highest that was tried), validation_loss, test_loss (mean at that rate) with low, high, seeds.
            A rate at which a seed diverged was tried, and is not chosen. An encoding with no other rate has no line.
        agreement: a line per setting and rate: Kendall's tau between the ranking of encodings by test loss at that rate
            for all, where those that diverged come last, and at each one's tuned rate (NaN where these are the same);
            the best encoding of each.
    """

    rates: pd.DataFrame
    agreement: pd.DataFrame


def choose_rates(results: Results) -> SweptRates:
    """Choose the learning rate of each encoding in each setting by validation loss.

    Raises:
        ValueError: the cells have only one learning rate, or no validation.
    """
    cells = results.cells
    if LR not in setting_columns(cells):
        raise ValueError(f"tuning needs cells with several values of {LR}, got one in {results.name}")
    if results.curves.empty:
        raise ValueError(f"tuning needs validation curves, got none in {results.name}")
    settings = [name for name in setting_columns(cells) if name != LR]
    keys = ["pe", *settings, LR]
    both = _with_validation(cells, results.curves, settings)
    means = both.groupby(keys, sort=False, dropna=False).agg(
        validation_loss=("value", lambda losses: losses.mean(skipna=False)),
        test_loss=("test_loss", "mean"),
        seeds=("seed", "size"),
    )
    means = _with_diverged(means.reset_index(), results.failed, keys)
    usable = means[np.isfinite(means["validation_loss"])].groupby(["pe", *settings], sort=False, dropna=False)
    best = means.loc[usable["validation_loss"].idxmin()]
    tried = means.groupby(["pe", *settings], sort=False, dropna=False)[LR]
    edge = best[LR].eq(tried.transform("min")[best.index]) | best[LR].eq(tried.transform("max")[best.index])
    spread = both.groupby(keys, sort=False, dropna=False)["test_loss"].agg(interval).iloc[best.index]
    best = best.assign(at_edge=edge, low=[low for low, _ in spread], high=[high for _, high in spread])
    columns = ["pe", *settings, LR, "at_edge", "validation_loss", "test_loss", "low", "high", "seeds"]
    return SweptRates(best[columns].reset_index(drop=True), _compare_rankings(means, best, settings))


def _with_validation(cells: pd.DataFrame, curves: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """Return test loss and last validation loss (column "value") of each cell.

    The curves have the validations of each run once, up to the longest of its cells.
    """
    keys = ["pe", *settings, LR, "seed"]
    longest = cells.groupby("run")["epochs"].transform("max")
    losses = curves.loc[curves["metric"] == "loss", [*keys, "epoch", "value"]].rename(columns={"epochs": "longest"})
    where = [name if name != "epochs" else "longest" for name in keys]
    both = merge_tables(cells[[*keys, "test_loss"]].assign(longest=longest), losses, where)
    both = both[both["epoch"] <= both["epochs"]].sort_values("epoch", kind="stable")
    last = both.drop_duplicates(keys, keep="last")
    return merge_tables(cells[keys], last, keys)  # in the order of the cells


def _with_diverged(means: pd.DataFrame, failed: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return a line per encoding, setting and rate, also of the rates at which all seeds diverged.

    The losses of a rate at which any seed diverged are infinite: the mean of the others says nothing about it.
    """
    if not set(keys) <= set(failed):
        return means
    if "kind" not in failed:  # a table of an earlier version
        raise ValueError("failed.csv must say in a column kind which cells diverged, got none: run the study again")
    lost = failed.loc[failed["kind"].eq(DIVERGED), keys].drop_duplicates()
    some = merge_tables(means, lost, keys, how="left", indicator=True)["_merge"].eq("both")
    means.loc[some, ["validation_loss", "test_loss"]] = np.inf
    all_seeds = merge_tables(lost, means[keys], keys, how="left", indicator=True).query("_merge == 'left_only'")[keys]
    return pd.concat([means, all_seeds.assign(validation_loss=np.inf, test_loss=np.inf, seeds=0)], ignore_index=True)


def edges_line(rates: pd.DataFrame) -> str:
    """Return a line that says how many tuned rates are the lowest or highest that was tried."""
    count = int(rates["at_edge"].sum())
    beyond = ": the best may lie beyond" if count else ""
    return f"{count} of {len(rates)} tuned rates stand at the edge of those that were tried{beyond}"


def _compare_rankings(means: pd.DataFrame, best: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """Compare the ranking at one rate for all encodings with the ranking at tuned rates."""
    from scipy import stats

    lines = []
    for key, group in means.groupby([*settings, LR], sort=True, dropna=False):
        setting = dict(zip([*settings, LR], key, strict=True))
        here = best
        for name in settings:
            here = here[here[name].eq(setting[name]) | (here[name].isna() & pd.isna(setting[name]))]
        at_own = here.set_index("pe")["test_loss"].dropna()
        at_one = group.set_index("pe")["test_loss"].reindex(at_own.index).dropna()
        at_own = at_own[at_one.index]
        if len(at_one) > 1 and np.isfinite(at_one).any():
            same = here.set_index("pe")[LR].reindex(at_own.index).eq(setting[LR]).all()  # a ranking with itself
            tau = np.nan if same else float(stats.kendalltau(at_one, at_own).statistic)
            lines.append(setting | {"tau": tau, "best here": at_one.idxmin(), "best when tuned": at_own.idxmin()})
    return pd.DataFrame(lines)
