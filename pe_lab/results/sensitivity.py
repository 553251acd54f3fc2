"""Over which settings the difference of two encodings holds, and which settings it depends on.

A specification is one setting of everything that varies (depth, epochs, rate, norm, task, ...). The analysis follows
specification curves (Simonsohn, Simmons and Nelson 2020, Nature Human Behaviour 4, 1208-1214): all specifications are
shown, sorted by their difference, with the settings of each below it. The specifications are those that were trained;
they are no random sample of settings, so counts over them describe these settings and no others.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd

from pe_lab.results.columns import REMAINING_METRIC, lower_is_better, merge_tables, setting_columns, value_text
from pe_lab.results.pooling import with_remaining
from pe_lab.statistics.cells import keys_of, require_baseline, wide_table
from pe_lab.statistics.comparisons import add_verdicts, paired_differences
from pe_lab.statistics.verdicts import Verdict

MAX_FACTORS = 12  # shares average over all orders of the factors, 2^12 models at most


@dataclass(frozen=True)
class Sensitivity:
    """The difference of two encodings in every setting.

    Attributes:
        pe: an encoding.
        baseline: the encoding that is subtracted from it.
        metric: the metric of the differences: a test metric, or REMAINING_METRIC, the share of the gap to the best
            possible value, where the settings are of several tasks whose levels are known.
        names: the setting columns that vary.
        lines: a line per specification, the smallest difference first: the columns of `names`; seeds (shared by the
            two); difference, low, high (t interval); margin (NaN where differences are shares of a gap); sign (better
            or worse, of the mean; equal for a difference of 0; empty where no seed is shared); verdict. Unknown
            differences are last.
        sample: a line per specification and seed: the columns of `names`, seed, difference.
    """

    pe: str
    baseline: str
    metric: str
    names: list[str]
    lines: pd.DataFrame
    sample: pd.DataFrame

    def counts(self) -> pd.Series:
        """Return the number of specifications.

        Returns:
            settings (all); better, worse, equal, unknown: signs of means, which noise alone can turn; significantly
            better, significantly worse: verdicts, slightly better or worse ones among them; equivalent: verdicts of
            equivalent.
        """
        return _count_signs(self.lines)

    def levels(self) -> pd.DataFrame:
        """Return the counts at each value of each setting: name, value, then as in `counts`, and mean difference."""
        lines = []
        for name in self.names:
            for value, part in self.lines.groupby(name, sort=_sort_signs(self.lines[name]), dropna=False):
                mean = {"mean difference": part["difference"].mean()}
                lines.append({"name": name, "value": value} | _count_signs(part).to_dict() | mean)
        values = pd.Series([line.pop("value") for line in lines], dtype=object)
        table = pd.DataFrame(lines)
        table.insert(1, "value", values)
        return table

    def words(self) -> str:
        """Say in how many settings each of the two is better, how often significantly, and what that depends on."""
        counts, pe, baseline = self.counts(), f"`{self.pe}`", f"`{self.baseline}`"
        total = counts["settings"] - counts["unknown"]
        text = (
            f"The mean of {pe} is better than that of {baseline} in {counts['better']} of {total} settings "
            f"(significantly in {counts['significantly better']}) and worse in {counts['worse']} (significantly in "
            f"{counts['significantly worse']})"
        )
        text += f"; equal in {counts['equal']}" * bool(counts["equal"])
        text += f"; equivalent in {counts['equivalent']}" * bool(counts["equivalent"])
        text += f"; in {counts['unknown']} more, no seed is shared" * bool(counts["unknown"])
        return f"{text}. {self._sign(counts)}"

    def _sign(self, counts: pd.Series) -> str:
        """Say whether the direction is the same everywhere, and on which setting it depends."""
        pe, certain = f"`{self.pe}`", counts["significantly better"] + counts["significantly worse"]
        if counts["significantly better"] and counts["significantly worse"]:
            text = "Which one is better depends on the setting: both directions are significant somewhere"
            follows = [name for name in self.names if self._follows(name)]
            if len(follows) == 1:
                text += f". It depends on `{follows[0]}`: {pe} is {self._follows(follows[0])}"
            return f"{text}."
        if counts["better"] and counts["worse"]:
            sure = "but it is never significantly reversed" if certain else "and no difference is significant"
            return f"The direction is not the same everywhere, {sure}."
        if not counts["better"] and not counts["worse"]:
            return "No direction is known." if not counts["equal"] else "The results are equal bit for bit."
        where = "wherever the two differ" if counts["equal"] else "in all of these settings"
        return f"The direction is the same {where}, and significant in {certain or 'none'}."

    def _follows(self, name: str) -> str:
        """Say which values of a setting go with which sign; empty unless each value has one sign, and both occur."""
        values: dict[str, list[str]] = {"better": [], "worse": []}
        levels = self.levels()
        for line in levels[levels["name"] == name].to_dict("records"):
            sign = "better" if line["better"] else "worse"
            if line[sign] < line["settings"] - line["unknown"] or not line[sign]:
                return ""
            values[sign].append(value_text(line["value"]))
        if not values["better"] or not values["worse"]:
            return ""
        return f"better at {', '.join(values['better'])}; worse at {', '.join(values['worse'])}"


def sensitivity(
    rows: pd.DataFrame, pe: str, baseline: str, metric: str = "loss", compared: pd.DataFrame | None = None
) -> Sensitivity:
    """Compare two encodings in every setting, paired over shared seeds.

    Args:
        rows: the cells, from frame.load, of all encodings: five or more share variances, see `paired_differences`.
        pe: an encoding.
        baseline: another encoding, which is subtracted.
        metric: a test metric.
        compared: comparisons that include these two, such as `Families.compare()`; its verdicts are used. None: the
            settings of these two are a family of their own.

    Raises:
        ValueError: there is no such encoding or metric, or the two are the same.
    """
    for name in (pe, baseline):
        require_baseline(rows, name)
    if pe == baseline:
        raise ValueError(f"sensitivity needs two encodings, got {pe} twice")
    rows, columns = _shared_settings(rows, (pe, baseline)), setting_columns(rows)
    if compared is None:
        compared = add_verdicts(paired_differences(rows, [(pe, baseline)], metric), metric)
    of_two = (compared["pe"] == pe) & (compared["baseline"] == baseline)
    scaled = with_remaining(rows, metric)
    rows, unit = (rows, metric) if scaled is None else (scaled, REMAINING_METRIC)
    table = wide_table(rows, unit)
    lines = paired_differences(rows, [(pe, baseline)], unit).drop(columns=["pe", "baseline", "margin"])
    lines = _with_verdicts(lines, compared[of_two], columns)
    lines["margin"] = lines["margin"] if unit == metric else np.nan
    lines["sign"] = _sign_of_differences(lines["difference"], unit)
    names = [name for name in columns if lines[name].nunique(dropna=False) > 1]
    lines = lines.sort_values("difference", kind="stable", na_position="last", ignore_index=True)
    sample = (table[pe] - table[baseline]).rename("difference").reset_index().dropna(subset="difference")
    shown = [*names, "seeds", "difference", "low", "high", "margin", "sign", "verdict"]
    return Sensitivity(pe, baseline, unit, names, lines[shown], sample[[*names, "seed", "difference"]])


def shares(sample: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return how much of the variance of a difference goes with each setting, with the seed, and with the rest.

    The share of a setting is its Shapley value: the sum of squares that it adds to a linear model of main effects,
    averaged over all orders in which settings and seed can enter (Lindeman, Merenda and Gold 1980; Groemping 2007,
    The American Statistician 61, 139-147). In a full and balanced grid this is the classical analysis of variance. In
    any other grid, settings that vary together divide what they explain together: their shares are not causes. The
    rest is divided into interactions (what a mean per setting explains beyond the main effects) and noise (which
    differs from seed to seed within a setting). With one seed, interactions contain the noise.

    `by chance` is the share that would be expected if the differences were independent noise: shares of that size say
    nothing. Checkpoints of one training are not independent, so the true expectation can be higher.

    Args:
        sample: a line per setting and seed, with the columns of `names`, seed and difference.
        names: the setting columns.

    Returns:
        A line per effect: effect, levels, share (0 to 1; the shares add up to 1), by chance. Empty where nothing
        varies, or more than 12 settings do.
    """
    columns = ["effect", "levels", "share", "by chance"]
    factors = [name for name in (*names, "seed") if sample[name].nunique(dropna=False) > 1]
    values = sample["difference"].to_numpy(float)
    values = values - values.mean() if len(values) else values
    total = float(values @ values)
    if not total > 0 or not [name for name in factors if name != "seed"] or len(factors) > MAX_FACTORS:
        return pd.DataFrame(columns=columns)
    codes = {name: sample.groupby(name, sort=False, dropna=False).ngroup().to_numpy() for name in factors}
    settings = sample.groupby(list(names), sort=False, dropna=False).ngroup().to_numpy()
    models = _Models(values, codes | {"setting": settings})
    parts: list[tuple[str, int | None, float, float]] = []
    parts += [(name, int(codes[name].max()) + 1, *_shapley_share(models, factors, name)) for name in factors]
    main = models.explained(tuple(factors))
    full = models.explained(("setting", "seed")) if "seed" in factors else main
    rest = (total, len(values) - 1)
    if "seed" in factors:
        parts.append(("interactions of settings", None, full[0] - main[0], full[1] - main[1]))
        parts.append(("noise", None, rest[0] - full[0], rest[1] - full[1]))
    else:
        parts.append(("interactions of settings, and noise", None, rest[0] - main[0], rest[1] - main[1]))
    table = pd.DataFrame(parts, columns=columns).astype({"levels": "Int64"})
    table["share"] = table["share"].clip(lower=0) / rest[0]
    table["by chance"] /= rest[1]
    return table


class _Models:
    """Linear models of main effects: the sum of squares and the degrees of freedom that each explains."""

    def __init__(self, values: np.ndarray, codes: dict[str, np.ndarray]) -> None:
        columns, self.places, start = [], {}, 0
        for name, code in codes.items():
            dummies = (code[:, None] == np.arange(code.max() + 1)).astype(float)
            columns.append(dummies - dummies.mean(0))
            self.places[name] = np.arange(start, start + dummies.shape[1])
            start += dummies.shape[1]
        design = np.concatenate(columns, axis=1)
        self.gram, self.products = design.T @ design, design.T @ values
        self.cache: dict[tuple[str, ...], tuple[float, int]] = {(): (0.0, 0)}

    def explained(self, factors: tuple[str, ...]) -> tuple[float, int]:
        """Return the sum of squares that these factors explain together, and the rank of their columns."""
        if factors not in self.cache:
            chosen = np.concatenate([self.places[name] for name in factors])
            sizes, vectors = np.linalg.eigh(self.gram[np.ix_(chosen, chosen)])
            kept = sizes > 1e-9 * sizes.max()
            along = vectors[:, kept].T @ self.products[chosen]
            self.cache[factors] = float(np.square(along) @ (1 / sizes[kept])), int(kept.sum())
        return self.cache[factors]


def _shapley_share(models: _Models, factors: list[str], name: str) -> tuple[float, float]:
    """Return the sum of squares and the degrees of freedom that a factor adds, on average over orders."""
    others, squares, dof = [other for other in factors if other != name], 0.0, 0.0
    for size in range(len(others) + 1):
        weight = 1 / (len(factors) * comb(len(others), size))
        for before in combinations(others, size):
            without = models.explained(before)
            together = models.explained(tuple(factor for factor in factors if factor in (*before, name)))
            squares += weight * (together[0] - without[0])
            dof += weight * (together[1] - without[1])
    return squares, dof


def _shared_settings(rows: pd.DataFrame, encodings: tuple[str, str]) -> pd.DataFrame:
    """Return the cells of all encodings, in the settings that have a cell of these."""
    names = setting_columns(rows)
    keys = set(keys_of(rows[rows["pe"].isin(encodings)], names))
    return rows[[key in keys for key in keys_of(rows, names)]]


def _with_verdicts(lines: pd.DataFrame, verdicts: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Add margin and verdict of the same settings."""
    if lacking := [name for name in columns if name not in verdicts]:
        raise ValueError(
            f"compared must have the setting columns {', '.join(columns)}, got none of {', '.join(lacking)}"
        )
    table = merge_tables(lines, verdicts[[*columns, "margin", "verdict"]], columns, how="left", validate="one_to_one")
    if table["verdict"].isna().any():
        raise ValueError(
            f"compared must have these two encodings in each of {len(lines)} settings, got {table['verdict'].count()}"
        )
    return table


def _sign_of_differences(values: pd.Series, metric: str) -> np.ndarray:
    """Return better, worse, equal, or an empty text where the difference is unknown."""
    good = values < 0 if lower_is_better(metric) else values > 0
    return np.select([values.isna(), values == 0, good], ["", "equal", "better"], "worse")


def _count_signs(lines: pd.DataFrame) -> pd.Series:
    sure = lines["verdict"].map(lambda word: Verdict(word).direction)
    counts = {"settings": len(lines)} | {sign: (lines["sign"] == sign).sum() for sign in ("better", "worse", "equal")}
    counts["unknown"] = (lines["sign"] == "").sum()
    counts |= {f"significantly {sign}": (sure == sign).sum() for sign in ("better", "worse")}
    counts["equivalent"] = (lines["verdict"] == Verdict.EQUIVALENT).sum()
    return pd.Series(counts, dtype=int)


def _sort_signs(values: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(values))
