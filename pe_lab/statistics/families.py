"""All comparisons of a report, those that it asks about corrected as one family."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from pe_lab.statistics.cells import lower_is_better, require_baseline, split_by_setting, wide_table
from pe_lab.statistics.comparisons import (
    add_verdicts,
    comparisons_with,
    count_in_words,
    paired_differences,
    pairing_in_words,
    share_variances,
    verdicts_by_encoding,
)
from pe_lab.statistics.correction import holm
from pe_lab.statistics.margins import Margins, margins_by_metric
from pe_lab.statistics.verdicts import EQUIVALENT_VERDICTS, Verdict

GRID_TABLE = "each setting"  # name of the table of the cells themselves


@dataclass(frozen=True)
class Families:
    """All comparisons of a report; every verdict in the report is one of these.

    The comparisons that the study asks about are one family over all tables, corrected by Holm's method: comparisons
    with the declared baseline, or all pairs if no baseline was declared. Other pairs have a difference, an interval and
    the verdict `not asked`. Tests of differences and tests of equivalence are corrected separately.

    Attributes:
        baseline: the encoding that others are compared with.
        tables: the rows that are compared, with their metric, by name.
        lines: the comparisons of each table, a line per setting and pair, of `paired_differences` and `add_verdicts`.
        margins: the margin of each table in words.
        declared: True: the family consists of the comparisons with the baseline; False: of all pairs.
    """

    baseline: str
    tables: dict[str, tuple[pd.DataFrame, str]]
    lines: dict[str, pd.DataFrame]
    margins: dict[str, str]
    declared: bool = False

    @classmethod
    def of(
        cls,
        tables: dict[str, tuple[pd.DataFrame, str]],
        baseline: str | None = None,
        margin: Margins = None,
        declared: bool = False,
    ) -> "Families":
        """Compare every two encodings in every setting of every table.

        Args:
            tables: the rows and the test metric of each table, by name.
            baseline: the encoding that others are compared with; None: the first encoding of the first table.
            margin: the smallest difference that matters in the metric of the first table, or margins by metric. A
                metric without one has the default of each task, see `default_margin`.
            declared: whether the baseline is what the study asks about.

        Raises:
            ValueError: there is no such encoding or metric, or a margin does not fit its metric or a setting.
        """
        margins = margins_by_metric(margin, next(iter(tables.values()))[1])
        baseline = require_baseline(next(iter(tables.values()))[0], baseline)
        tested = {}
        for name, (rows, metric) in tables.items():
            pairs = [(b, a) if a == baseline else (a, b) for a, b in combinations(rows["pe"].unique(), 2)]
            tested[name] = paired_differences(rows, pairs, metric, margins.get(metric))
        p = np.concatenate([lines[["p", "p_equivalent"]].to_numpy(float) for lines in tested.values()])
        asked = np.concatenate([lines["baseline"] == baseline for lines in tested.values()]) | (not declared)
        corrected = holm(np.where(asked[:, None], p, np.nan).T).T
        start, judged = 0, {}
        for name, lines in tested.items():
            end = start + len(lines)
            judged[name] = add_verdicts(lines, tables[name][1], *corrected[start:end].T)
            judged[name].loc[~asked[start:end], "verdict"] = str(Verdict.NOT_ASKED)
            start = end
        return cls(baseline, tables, judged, {name: lines.attrs["margin"] for name, lines in tested.items()}, declared)

    def __str__(self) -> str:
        """Describe the family in a sentence."""
        places = "; ".join(f"{name}: {self.size(name)}" for name in self.tables) if len(self.tables) > 1 else ""
        return (
            f"{count_in_words(self.size(), 'comparison')} {self.pairs_in_words}{f' ({places})' * bool(places)}, "
            f"{pairing_in_words(pd.concat(self.lines.values()))}; Holm's correction over all of them, for differences "
            f"and for equivalence within {self.margin}"
        )

    @property
    def pairs_in_words(self) -> str:
        """The pairs of the family in words."""
        return f"with {self.baseline}" if self.declared else "of all pairs"

    @property
    def family_size(self) -> int:
        """The number of comparisons that verdicts are corrected for."""
        return self.size()

    @property
    def correction(self) -> str:
        """The correction of the family, in words."""
        return f"Holm's correction over {count_in_words(self.size(), 'comparison')}"

    @property
    def rule(self) -> str:
        """When a verdict is better or worse, in a clause."""
        least = ", and a mean difference of at least the margin" * (self.margin != "none")
        return f"p < 0.05 after {self.correction}{least}"

    @property
    def share_variances(self) -> bool:
        """Whether any variance is estimated from all encodings of a setting."""
        return any(share_variances(lines) for lines in self.lines.values())

    @property
    def margin(self) -> str:
        """The margins as text, each with its metrics."""
        metrics: dict[str, list[str]] = {}
        for name, words in self.margins.items():
            metrics.setdefault(words, []).append(self.tables[name][1])
        names_of = {words: ", ".join(dict.fromkeys(names)) for words, names in metrics.items()}
        return (
            next(iter(names_of))
            if len(names_of) == 1
            else " and ".join(f"{words} ({names})" for words, names in names_of.items())
        )

    def size(self, name: str | None = None) -> int:
        """Return the number of comparisons in the family that are tested, of one table or of all."""
        chosen = self.lines.values() if name is None else [self.lines[name]]
        return sum(int((lines["p"].notna() & (lines["verdict"] != Verdict.NOT_ASKED)).sum()) for lines in chosen)

    def compare(self, name: str = GRID_TABLE, baseline: str | None = None) -> pd.DataFrame:
        """Return the comparisons of a table with an encoding; None: with the baseline of the report."""
        lines = comparisons_with(baseline or self.baseline, self.lines[name], "baseline").reset_index(drop=True)
        lines.attrs["comparisons"] = self.size()
        return lines

    def asked(self, name: str = GRID_TABLE) -> pd.DataFrame:
        """Return the comparisons of a table that are in the family."""
        return self.compare(name) if self.declared else self.lines[name]

    def verdicts(self, pe: str, name: str = GRID_TABLE, /, **setting: Any) -> dict[str, str]:
        """Return the verdict on an encoding in a setting, compared with each of the others."""
        lines = self.lines[name]
        for column, value in setting.items():
            lines = lines[lines[column].isna() if pd.isna(value) else lines[column] == value]
        return verdicts_by_encoding(lines).get(pe, {})

    def ranks(self, name: str = GRID_TABLE, among: Collection[str] | None = None) -> pd.DataFrame:
        """Return the range of ranks of each encoding; it ranks below another only if that one is better.

        One that is slightly better does not rank before.

        Args:
            among: the encodings to rank; None: all.

        Returns:
            A line per setting and encoding, best mean first: mean, seeds, best (1 + number of better encodings), worst
            (number of encodings minus number of worse ones), tied (number of encodings that are neither), equivalent
            (number of those that are tied and equivalent or equal; the others are slightly better or worse, or
            undecided).
        """
        (rows, metric), lines = self.tables[name], self.lines[name]
        table = wide_table(rows, metric)
        if among is not None:
            table = table[[pe for pe in table if pe in among]]
            lines = lines[lines["pe"].isin(among) & lines["baseline"].isin(among)]
        sign = 1 if lower_is_better(metric) else -1
        size, ranked = table.shape[1] * (table.shape[1] - 1) // 2, []
        for number, (setting, part) in enumerate(split_by_setting(table)):
            means = (sign * part.mean()).sort_values(kind="stable").dropna()
            verdicts = verdicts_by_encoding(lines.iloc[number * size : (number + 1) * size])
            for pe in means.index:
                against = list(verdicts.get(pe, {}).values())
                best, worst = 1 + against.count(Verdict.WORSE), len(means) - against.count(Verdict.BETTER)
                line = {"pe": pe, "mean": sign * means[pe], "seeds": int(part[pe].notna().sum())}
                line |= {
                    "best": best,
                    "worst": worst,
                    "tied": worst - best,
                    "equivalent": sum(verdict in EQUIVALENT_VERDICTS for verdict in against),
                }
                ranked.append(setting | line)
        settings = [column for column in table.index.names if column != "seed"]
        return pd.DataFrame(ranked, columns=[*settings, "pe", "mean", "seeds", "best", "worst", "tied", "equivalent"])
