"""What came out of a study whose seeds tune for themselves: its outcomes, a line per cell, and their comparisons.

An outcome has the settings of its cell, then y (log2 of the steps to solve, or the test loss of a task without a
level), solved, the rate and the scale that were chosen, edge (whether the rate is the lowest or the highest tried),
trained_steps and core_seconds (of all tries).
"""

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from pe_lab.config import LR
from pe_lab.results.columns import cut_interval, floors, merge_tables, sort_by_setting
from pe_lab.results.summary_table import floor_heading
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics import COMPARISON_COLUMNS, MIN_SEEDS, Endpoint, Verdict, compare, interval, share_interval
from pe_lab.statistics.comparisons import exchange_pairs
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS

ENDPOINTS = {"steps": "1 octave", "loss": "0.05 nats"}  # what a study compares, with the default margin
MAX_AT_EDGE = 0.2  # share of seeds above which a ladder is too short


def endpoint(margin: str | None, octaves: float | None) -> Endpoint:
    """Return what a study compares: steps to solve, or the loss.

    Args:
        margin: the smallest difference that matters; None: the default.
        octaves: the octaves of steps from the first evaluation to the last; None: the task has no level, and losses are
            compared.

    Raises:
        ValueError: the margin does not fit.
    """
    kind = "loss" if octaves is None else "steps"
    return Endpoint.parse(kind, margin or ENDPOINTS[kind], np.inf if octaves is None else octaves)


def endpoint_of(cfg: DictConfig) -> Endpoint:
    """Return what the study of a cell compares, by its settings; see `endpoint`."""
    solves = cfg.solve.level is not None
    return endpoint(cfg.tune.margin, log2(cfg.steps / cfg.solve.first) if solves else None)


def summary(outcomes: pd.DataFrame, endpoint: Endpoint, baseline: str | None = None) -> pd.DataFrame:
    """Return a line per setting and encoding: settings, pe, runs, solved, steps or loss, 95 % interval, floors, ranks.

    Steps begin with ≥ where a run did not solve the task, and have no interval where none did. Losses have their floors
    beside them, means over seeds, where they are known. Ranks follow from `compare_all_pairs`; with a baseline, the
    verdicts of `compare_with_baseline` stand in their place.

    Args:
        outcomes: see `outcome_table`; with the columns of `with_floors`, or without.
        endpoint: the endpoint that is compared.
        baseline: the encoding that the study declared; None: it asks about all pairs.
    """
    complete, keys = outcomes[outcomes["y"].notna()], tuned_settings(outcomes)
    if baseline is None:
        lines = compare_all_pairs(complete, endpoint)
        lines = pd.concat([lines, exchange_pairs(lines)])
    else:
        lines = compare_with_baseline(complete, endpoint, baseline)
    table = []
    for key, runs in complete.groupby([*keys, "pe"], sort=False, dropna=False):
        line = dict(zip([*keys, "pe"], key, strict=True)) | {"runs": len(runs)}
        mean, ends = runs["y"].mean(), interval(runs["y"]) if len(runs) >= MIN_SHOWN_SEEDS else (np.nan, np.nan)
        if endpoint.kind == "steps":
            solved = int(runs["solved"].sum())
            low, high = share_interval(np.array([solved]), np.array([len(runs)]))
            steps = f"≥ {2**mean:.0f}" if solved < len(runs) else f"{2**mean:.0f}"  # others end at the last step
            line |= {"solved": f"{solved} [{low[0]:.2f}, {high[0]:.2f}]", "steps": steps}
            line["95 % interval"] = _interval_text(2 ** ends[0], 2 ** ends[1], ".0f") if solved else ""
        else:
            low, high = cut_interval("loss", mean, *ends)
            line |= {"loss": mean, "95 % interval": _interval_text(float(low), float(high), ".4f")}
            line |= {floor_heading(floor): runs[f"floor_{floor}_loss"].mean() for floor in floors(complete)}
        table.append(line)
    table = sort_by_setting(pd.DataFrame(table, columns=None if table else [*keys, "pe"]), keys)
    if len(lines):
        names = [*keys, "pe"]
        table = table.merge(lines.groupby(names, dropna=False)["verdict"].agg(list).reset_index(), how="left")
        verdicts = [words if isinstance(words, list) else [] for words in table.pop("verdict")]
        if baseline is None:
            table["ranks"] = [_rank_range(words) if words else "" for words in verdicts]
        else:
            table[f"than {baseline}"] = [words[0] if words else "" for words in verdicts]
    return table


def _rank_range(verdicts: list[str]) -> str:
    """Return the range of ranks of an encoding, by the verdicts on it compared with each other one."""
    first, last = 1 + verdicts.count(Verdict.WORSE), 1 + len(verdicts) - verdicts.count(Verdict.BETTER)
    return f"{first}" if first == last else f"{first} to {last}"


def _interval_text(low: float, high: float, digits: str) -> str:
    return "" if np.isnan(low) else f"[{low:{digits}}, {high:{digits}}]"


def with_floors(outcomes: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Return outcomes with the floors of the loss of their cells, as columns behind the others.

    Args:
        outcomes: see `outcome_table`.
        cells: cells with the same names of encodings, settings and seeds; those without an outcome are left out.
    """
    names = [f"floor_{floor}_loss" for floor in floors(cells)]
    keys = [*tuned_settings(outcomes), "pe", "seed"]
    if not names or not set(keys) <= set(cells):
        return outcomes
    return merge_tables(outcomes, cells[[*keys, *names]].drop_duplicates(keys), keys, how="left")


def seed_note(outcomes: pd.DataFrame, advice: bool = True) -> str:
    """Return sentences on few seeds; empty where they are enough for the error rates of verdicts.

    Args:
        outcomes: see `outcome_table`.
        advice: whether the sentences say what to do.
    """
    complete = outcomes[outcomes["y"].notna()]
    if complete.empty:
        return ""
    seeds = complete.groupby([*tuned_settings(complete), "pe"], sort=False, dropna=False)["seed"].nunique()
    fewest, most = int(seeds.min()), int(seeds.max())
    few_of_both = few_runs(complete["pe"].nunique(), fewest, advice)
    if fewest >= MIN_SEEDS:
        return few_of_both
    which = "All" if fewest == most else "Some"
    simulated = (
        f"{which} encodings have {fewest} seed{'s' * (fewest != 1)}: the error rates of verdicts are simulated for "
        f"{MIN_SEEDS} and more, and none is equivalent with fewer."
    )
    return " ".join(filter(None, (simulated, few_of_both)))


def edge_note(outcomes: pd.DataFrame, rates: Sequence[float], scaled: Sequence[float] = (), advice: bool = True) -> str:
    """Return sentences on the encodings whose best rate is the lowest or the highest that was tried in many seeds.

    Outcomes that did not solve their task are left out, which the sentences say: where nothing was learned, chance
    chooses among the rates. Empty where no encoding has more than MAX_AT_EDGE of its seeds there.

    Args:
        outcomes: see `outcome_table`.
        rates: the learning rates that were tried.
        scaled: the learning rates that were tried with starting scales; none: the same rates.
        advice: whether the sentences say what to do.
    """
    complete = outcomes[outcomes[LR].notna() & ~outcomes["solved"].eq(False)]
    shares = complete["edge"].astype(float).groupby(complete["pe"], sort=False).mean()
    edge_shares = shares[shares > MAX_AT_EDGE]
    if edge_shares.empty:
        return ""
    complete = complete[complete["pe"].isin(edge_shares.index)]
    grids = tried_rates(complete, rates, scaled)
    at = complete[complete["edge"].astype(bool)]
    is_low = at[LR].astype(float) < at["pe"].map({pe: np.sqrt(tried[0] * tried[-1]) for pe, tried in grids.items()})
    low, high = is_low.any(), not is_low.all()
    beyond = "lower and higher" if low == high else "lower" if low else "higher"
    unsolved = outcomes["solved"].eq(False)
    every = "In every seed" + " that solved the task" * bool(unsolved.any())
    every += f" ({', '.join(map(str, shares.index))})" * (len(shares) < outcomes["pe"].nunique())
    if (shares == 1).all() and low != high:
        start = f"{every} the {'lowest' if low else 'highest'} learning rate that was tried was best"
    elif all(len(tried) == 2 for tried in grids.values()):  # each is an edge
        start = "Two learning rates were tried, so each best one is the lowest or the highest"
    elif (shares == 1).all():
        start = f"{every} the best learning rate is the lowest or the highest that was tried"
    else:
        counts = complete["edge"].astype(bool).groupby(complete["pe"], sort=False).agg(["sum", "size"])
        where = ", ".join(f"{name} in {count} of {size}" for name, count, size in counts.itertuples())
        which = "lowest or the highest" if low == high else "lowest" if low else "highest"
        start = f"The {which} learning rate that was tried was best in many seeds: {where}"
    text = f"{start}. The best may lie beyond"
    return f"{text}: add {beyond} rates." if advice else f"{text}."


def unsolved_note(outcomes: pd.DataFrame) -> str:
    """Say how runs that did not solve their task count; empty where there are none."""
    if not outcomes["solved"].eq(False).any():
        return ""
    return "A run that did not solve the task counts as the last step, though it would take more."


def is_lower_bound(line: Mapping[Any, Any]) -> bool:
    """Return whether the true difference is at least as large as measured, since runs of one encoding are unsolved.

    These count as the last step. If both encodings have unsolved runs, the true difference may be smaller.

    Args:
        line: a comparison, see `statistics.compare`; without `solved` and `baseline_solved`, nothing is a bound.
    """
    more, less = ("solved", "baseline_solved") if line["difference"] > 0 else ("baseline_solved", "solved")
    solved, others = line.get(more, float("nan")), line.get(less, float("nan"))
    return bool(solved < line["seeds"] and others == line["seeds"])


def tried_rates(
    outcomes: pd.DataFrame, rates: Sequence[float], scaled: Sequence[float] = ()
) -> dict[str, tuple[float, ...]]:
    """Return the learning rates that each encoding was tried at, in ascending order; see `edge_note`."""
    scales = (
        outcomes["start_scale"].notna()
        if "start_scale" in outcomes and len(scaled)
        else pd.Series(False, outcomes.index)
    )
    return {
        str(pe): tuple(sorted({float(rate) for rate in (scaled if has_scale else rates)}))
        for pe, has_scale in scales.groupby(outcomes["pe"], sort=False).any().items()
    }


def tuned_settings(outcomes: pd.DataFrame) -> list[str]:
    """Return the columns of an outcome table by which settings differ, the steps of a training among them."""
    names = outcomes.columns[: outcomes.columns.get_loc("y")]
    return [name for name in names if name not in ("pe", "seed") and (name != "steps" or outcomes[name].nunique() > 1)]


def compare_with_baseline(outcomes: pd.DataFrame, endpoint: Endpoint, baseline: str) -> pd.DataFrame:
    """Compare every encoding with a baseline, in one family over all settings.

    A setting in which the baseline has no value, or no other encoding has one, is left out: all tries diverged there.

    Args:
        outcomes: see `outcome_table`.

    Returns:
        A line per setting and encoding: the settings, then the columns of `pe_lab.statistics.compare`.
    """
    return _compare_outcomes(outcomes, endpoint, baseline)


def compare_all_pairs(outcomes: pd.DataFrame, endpoint: Endpoint, baseline: str | None = None) -> pd.DataFrame:
    """Compare all pairs of each setting, as a family.

    Args:
        outcomes: see `outcome_table`.
        baseline: the encoding that the study declared, whose comparisons are those of `compare_with_baseline` and the
            only ones that are asked about; None: it declared none.
    """
    lines = _compare_outcomes(outcomes, endpoint)
    if baseline is None:
        return lines
    others = _not_compared(lines[(lines["pe"] != baseline) & (lines["baseline"] != baseline)])
    return pd.concat([compare_with_baseline(outcomes, endpoint, baseline), others], ignore_index=True)


def _not_compared(lines: pd.DataFrame) -> pd.DataFrame:
    return lines.assign(p_corrected=np.nan, p_equivalent_corrected=np.nan, verdict=str(Verdict.NOT_ASKED))


def _compare_outcomes(outcomes: pd.DataFrame, endpoint: Endpoint, baseline: str | None = None) -> pd.DataFrame:
    keys = tuned_settings(outcomes)
    runs = outcomes[outcomes["y"].notna()]
    each = runs[keys].drop_duplicates(ignore_index=True)
    runs = runs.merge(each.assign(task=each.index.astype(str)))
    names = runs.groupby("task")["pe"]
    compared = names.transform(lambda pe: pe.nunique() > 1 and (baseline is None or baseline in set(pe)))
    runs = runs[compared.astype(bool)]
    if runs.empty:
        return each.head(0).reindex(columns=[*keys, *COMPARISON_COLUMNS, "freedom"])
    columns = ["pe", "seed", "y", "task"]
    if endpoint.kind == "steps":
        columns, runs = [*columns, "solved"], runs.astype({"solved": bool})
    lines = compare(runs[columns], endpoint, baseline, one_family=baseline is not None)
    untested = (lines["seeds"] == 1) & (lines["verdict"] == Verdict.UNDECIDED)
    lines["verdict"] = lines["verdict"].mask(untested, str(Verdict.ONE_SEED))
    return each.loc[lines.pop("task").astype(int)].reset_index(drop=True).join(lines)
