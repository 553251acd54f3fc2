"""Learning rates tuned on validation data, and how far a ranking hangs on them."""

from dataclasses import dataclass

import pandas as pd
from scipy import stats

from pe_lab.results.frame import Results
from pe_lab.results.statistics import interval
from pe_lab.results.table import place

LR = "optimizer.lr"


@dataclass(frozen=True)
class Tuned:
    """Attributes:
    rates: a line per encoding and setting: the rate whose mean validation loss over seeds is lowest, at_edge (it is the
        lowest or highest that was tried), validation_loss, test_loss (mean at that rate) with low, high, seeds.
    agreement: a line per setting and rate: Kendall's tau between the ranking of encodings by test loss at that rate
        for all, and at each one's tuned rate; the best encoding of each.
    """

    rates: pd.DataFrame
    agreement: pd.DataFrame


def tuned(results: Results) -> Tuned:
    """The rate of each encoding in each setting.

    Raises:
        ValueError: the cells have one learning rate only, or no validation.
    """
    cells = results.cells
    if LR not in place(cells):
        raise ValueError(f"rates are tuned where cells have several values of {LR}, got one in {results.name}")
    curves = results.curves
    if curves.empty:
        raise ValueError(f"rates are tuned on validation, got no curves in {results.name}")
    where = [name for name in place(cells) if name != LR]
    last = curves[(curves["metric"] == "loss") & (curves["epoch"] <= curves["epochs"])]
    last = last.sort_values("epoch", kind="stable").drop_duplicates(["pe", *place(cells), "seed"], keep="last")
    keys = ["pe", *where, LR]
    both = cells[[*keys, "seed", "test_loss"]].merge(last[[*keys, "seed", "value"]], on=[*keys, "seed"])
    means = both.groupby(keys, sort=False, dropna=False).agg(
        validation_loss=("value", lambda of: of.mean(skipna=False)),
        test_loss=("test_loss", "mean"),
        seeds=("seed", "size"),
    )
    means = means.reset_index()
    of_each = means.dropna(subset="validation_loss").groupby(["pe", *where], sort=False, dropna=False)
    best = means.loc[of_each["validation_loss"].idxmin()]
    tried = means.groupby(["pe", *where], sort=False, dropna=False)[LR]
    edge = best[LR].eq(tried.transform("min")[best.index]) | best[LR].eq(tried.transform("max")[best.index])
    spread = both.groupby(keys, sort=False, dropna=False)["test_loss"].agg(interval).iloc[best.index]
    best = best.assign(at_edge=edge, low=[low for low, _ in spread], high=[high for _, high in spread])
    columns = ["pe", *where, LR, "at_edge", "validation_loss", "test_loss", "low", "high", "seeds"]
    return Tuned(best[columns].reset_index(drop=True), _agreement(means, best, where))


def edges(rates: pd.DataFrame) -> str:
    """Say in a line how many tuned rates are the lowest or highest that was tried."""
    count = int(rates["at_edge"].sum())
    beyond = ": the best may lie beyond" if count else ""
    return f"{count} of {len(rates)} tuned rates stand at the edge of those that were tried{beyond}"


def _agreement(means: pd.DataFrame, best: pd.DataFrame, where: list[str]) -> pd.DataFrame:
    """How the rankings at one rate for all agree with the ranking at tuned rates."""
    lines = []
    for key, of in means.groupby([*where, LR], sort=True, dropna=False):
        setting = dict(zip([*where, LR], key, strict=True))
        here = best
        for name in where:
            here = here[here[name].eq(setting[name]) | (here[name].isna() & pd.isna(setting[name]))]
        at_one = of.set_index("pe")["test_loss"].dropna()
        at_own = here.set_index("pe")["test_loss"].reindex(at_one.index)
        if len(at_one) > 1:
            tau = float(stats.kendalltau(at_one, at_own).statistic)
            lines.append(setting | {"tau": tau, "best here": at_one.idxmin(), "best when tuned": at_own.idxmin()})
    return pd.DataFrame(lines)
