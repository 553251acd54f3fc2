"""The table of the learning rates that were chosen for a study, and what choosing them has cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from pe_lab.experiment.job import Job
from pe_lab.experiment.rounds import cost_of, outcome
from pe_lab.experiment.searches import LR, Search
from pe_lab.ledger.tree import Tree
from pe_lab.results.rows import describe, settings_of
from pe_lab.results.table import as_text

FILE = "rates.csv"  # in the folder of a study


def table(searches: Sequence[Search], cfgs: Sequence[DictConfig]) -> pd.DataFrame:
    """Return a row per search.

    Args:
        searches: of each cell, ended; cells share them.
        cfgs: the cells, with what was chosen for them.

    Returns:
        pe and the settings, as in the rows of the study; optimizer.lr; start_scale, empty where it was not searched;
        at_edge: whether either is the lowest or highest that was tried; validation_loss, the mean over the seeds of the
        search; seeds, their number; tried, the number of candidates; core_seconds, of training steps of this search. A
        run that two searches share, because they differ in their epochs only, counts in both.
    """
    described = describe([settings_of(cfg) for cfg in cfgs]).drop(columns="seed")
    first = {id(search): index for index, search in reversed(list(enumerate(searches)))}
    rows = []
    for index in sorted(first.values()):
        search, found = searches[index], searches[index].result
        columns: dict[str, Any] = {LR: found.best.rate, "start_scale": found.best.scale, "at_edge": bool(found.edges)}
        columns |= {"validation_loss": found.loss, "seeds": search.plan.seeds, "tried": found.tried}
        rows.append(dict(described.iloc[index]) | columns | {"core_seconds": round(sum(search.cost.values()), 1)})
    return pd.DataFrame(rows)


def write_rates(searches: Sequence[Search], cfgs: Sequence[DictConfig]) -> None:
    """Print the table of chosen rates, and write it into the folder of the study, if it has one."""
    rates = table(searches, cfgs)
    settings = list(rates.columns[1 : rates.columns.get_loc(LR)])
    print(f"{as_text(rates, settings)}\n{edges(searches)}\n")
    name = cfgs[0].study_name
    if name:
        ledger = Path(cfgs[0].ledger)
        Tree(ledger).write(ledger / "studies" / name / FILE, rates.to_csv(index=False))


def edges(searches: Sequence[Search]) -> str:
    """Return a line that names the choices which stand at the edge of what was tried."""
    distinct = list(dict.fromkeys(searches))
    described = describe([settings_of(search.cfg) for search in distinct]).drop(columns="seed")
    differ = [name for name in described.columns[1:] if described[name].nunique(dropna=False) > 1]
    at_edge = [
        f"{row['pe']} ({' and '.join(search.result.edges)}{''.join(f', {name} {row[name]}' for name in differ)})"
        for search, (_, row) in zip(distinct, described.iterrows(), strict=True)
        if search.result.edges
    ]
    if not at_edge:
        return f"the choices of all {len(distinct)} searches stand inside of what was tried"
    return (
        f"{len(at_edge)} of {len(distinct)} choices stand at the edge after search.extensions="
        f"{distinct[0].plan.extensions} steps beyond it, the best may lie further: {', '.join(at_edge)}"
    )


def print_costs(searched: Sequence[Job], own: Sequence[Job]) -> None:
    """Print the cost of a search beside that of the study, in training steps.

    Args:
        searched: cells of the search.
        own: cells of the study.
    """
    parts = []
    for name, jobs in (("the search of learning rates", searched), ("the study", own)):
        outcomes = [outcome(job) for job in jobs]
        spent = cost_of(outcomes)
        shipped = spent.keys() - {one.run for one in outcomes if not one.shipped}
        came = f", {len(shipped)} of which came with the package" if shipped else ""
        parts.append(f"{name} {sum(spent.values()):,.0f} core-seconds in {len(spent)} runs{came}")
    print(f"\ncost of training steps: {'; '.join(parts)}")
