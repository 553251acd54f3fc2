"""The verdicts of a sequential study, which hold although seeds were added until they were reached.

They are corrected for the looks; the intervals of its differences are not.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from pe_lab.report.best_candidates import BestCandidates
from pe_lab.results.columns import in_words, merge_tables, setting_columns
from pe_lab.results.frame import Results
from pe_lab.results.learned import filter_learned_comparisons
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics import GRID_TABLE, Families, Verdict
from pe_lab.statistics.comparisons import comparisons_with, exchange_pairs
from pe_lab.system.exact_csv import read_csv

FILE = "decisions.csv"
NUMBERS = ("difference", "low", "high", "p_corrected", "margin", "p_equivalent_corrected", "seeds", "look")
NEEDED = ("pe", "baseline", "verdict", *NUMBERS)
UNFINISHED = (
    "Seeds are added to this study look by look, and its own verdicts are not there yet. All verdicts on this page are "
    "for a fixed number of seeds and do not hold for it."
)


def decisions(results: Results) -> pd.DataFrame | None:
    """Return a line per comparison of a sequential study: setting columns, then as in `Families.lines`; or None.

    Settings in which no encoding has learned the task are left out where there are others.

    Raises:
        ValueError: the table lacks a column, has a word that is no verdict, or compares seeds of an encoding or a
            setting that the cells do not have.
    """
    path = results.folder / FILE
    if not path.is_file() or results.cells.empty:
        return None
    decided = read_csv(path, dtype={"pe": str, "baseline": str, "data": str}, keep_default_na=False, na_values=[""])
    if lacking := [name for name in NEEDED if name not in decided]:
        raise ValueError(f"{path} must have the columns {', '.join(lacking)}, got none of that name")
    if unknown := set(decided["verdict"]) - set(Verdict):
        raise ValueError(f"{path} must have as verdict one of {', '.join(Verdict)}, got {unknown.pop()!r}")
    cells, names = results.cells, [name for name in setting_columns(results.cells) if name in decided]
    trained = cells[[*names, "pe"]].drop_duplicates()
    with_seeds = decided[decided["seeds"] > 0]  # the others failed, and have no cells
    for column in ("pe", "baseline"):
        requested = with_seeds[[*names, column]].rename(columns={column: "pe"})
        merged = merge_tables(requested, trained, [*names, "pe"], how="left", indicator=True)
        if (strange := merged["_merge"] == "left_only").any():
            line = requested[strange.to_numpy()].iloc[0]
            words = ", ".join(f"{name}={value}" for name, value in line.items())
            raise ValueError(f"{path} must be of the cells in rows.csv, got {words}")
    return filter_learned_comparisons(decided, cells)


def decision_notes(results: Results, decided: pd.DataFrame | None) -> list[str]:
    """Return a line on which verdicts hold for a study that adds seeds; none for other studies.

    Args:
        decided: the comparisons, from `decisions`; None: the study is not sequential.
    """
    return [] if decided is not None or results.declared.decide is None else [UNFINISHED]


def with_decisions(compared: Families, decided: pd.DataFrame) -> Families:
    """Return comparisons with what a sequential study decided; the verdict on all others is `not asked`.

    Args:
        compared: comparisons for a fixed number of seeds.
        decided: the comparisons of the study, from `decisions`.
    """
    columns = ["seeds", "difference", "low", "high", "margin", "p_corrected", "p_equivalent_corrected", "verdict"]
    tables = {}
    for name, lines in compared.lines.items():
        tables[name] = lines.assign(p_corrected=np.nan, p_equivalent_corrected=np.nan, verdict=str(Verdict.NOT_ASKED))
    lines = tables[GRID_TABLE]
    keys = [*(name for name in setting_columns(compared.tables[GRID_TABLE][0]) if name in decided), "pe", "baseline"]
    both = pd.concat([decided, exchange_pairs(decided)]).drop_duplicates(keys)
    found = merge_tables(lines[keys], both[[*keys, *columns]], keys, how="left")
    known = found["verdict"].notna().to_numpy()
    tables[GRID_TABLE] = lines.assign(**{name: np.where(known, found[name], lines[name]) for name in columns})
    return replace(compared, lines=tables)


def with_one(decided: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the comparisons with one encoding, which is subtracted in all of them.

    Args:
        decided: the comparisons, from `decisions`.
        name: an encoding; if none other is compared with it, the first baseline is taken.
    """
    if decided["baseline"].nunique() == 1 or name not in {*decided["pe"], *decided["baseline"]}:
        name = str(decided["baseline"].iloc[0])
    return comparisons_with(name, decided, "baseline").reset_index(drop=True)


def sequential(compared: Families, decided: pd.DataFrame) -> list[BestCandidates]:
    """Return what the sequential verdicts leave open in each setting that has cells of two encodings or more.

    Args:
        compared: all comparisons of the report, of which the means are taken.
        decided: the comparisons, from `decisions`.
    """
    rows, metric = compared.tables[GRID_TABLE]
    names, ranked = [name for name in setting_columns(rows) if name in decided], compared.ranks(GRID_TABLE)
    at = "on" if "data" in names and decided["data"].nunique() > 1 else "at"
    per_setting, words = [], pd.Series(settings_in_words(decided, names), decided.index)
    for _, lines in decided.groupby(names, sort=False, dropna=False):
        means = merge_tables(ranked, lines[names].head(1), names)
        if len(means) > 1:
            candidates = BestCandidates.of(means, lines, metric, f"test {in_words(metric)}")
            per_setting.append(replace(candidates, setting=f"{at} {words[lines.index[0]]}"))
    return per_setting
