"""What was measured beyond the test, in a sentence each: at longer lengths, and by probes of the layers."""

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.config.reference import first_comment
from pe_lab.report.choice import LEAST_RIGHT, Longest, longest
from pe_lab.report.parts import Drawn
from pe_lab.report.question import ReportSubject
from pe_lab.report.standing import Standing, amount, in_each_setting, in_words, joined, superlative
from pe_lab.results import plots
from pe_lab.results.columns import lower_is_better
from pe_lab.results.plots import record_settings
from pe_lab.statistics import interval

MOST = 4  # settings whose longest length has a sentence of its own
FINDINGS = {  # by probe: the metric that answers its question, and what it is
    "position": ("r2", "R² of a linear probe for the position of a token (1: it is read without error)"),
    "attention": ("entropy_normalised", "Entropy of attention (0: one token, 1: all alike)"),
    "rank": ("token_cosine", "Cosine between the states of two tokens (1: all tokens have become alike)"),
    "subspace": ("position_share", "Share of the variance of states that goes with position"),
}
NONE = "none"  # the encoding that gives no position: what the tokens alone, and the causal mask, tell
CHANCE = "_permuted"  # behind the metric with permuted positions


def study_question(name: str) -> str:
    """Return the question that a study of the configuration asks in its first comment; empty if it asks none."""
    file = config.folders().file("study", name)
    question, mark, _ = ("", "", "") if file is None else first_comment(file).partition("?")
    return question + mark if mark else ""


def at_longer_lengths(subject: ReportSubject) -> list[str]:
    """Say which encodings may be the best at the longest length, and what the best mean is at each longer length.

    One sentence for all settings where they are more than MOST.
    """
    compared, said, standings, settings = subject.compared, [], [], 0
    for need, far in longest(subject.results.records, subject.results.cells).items():
        ranked = compared.ranks(need)
        if len(ranked) < 2:
            continue
        settings += 1
        where = f"At {far.length:g} × the training length, {far.setting}"
        standing = Standing.of(ranked, compared.lines[need], far.metric, f"test {in_words(far.metric)}", where)
        if not lower_is_better(far.metric) and next(iter(standing.means.values())) < LEAST_RIGHT:
            tokens = far.accuracy.groupby("pe", sort=False)["value"].mean()
            right = f" Of single tokens {tokens.max():.0%} are (`{tokens.idxmax()}`)." if len(tokens) else ""
            said.append(f"{where}: no encoding has {LEAST_RIGHT:.0%} of the answers right.{right} {_by_length(far)}")
        else:
            standings.append(standing)
            said.append(f"{standing.words()} {_by_length(far)}")
    if settings <= MOST:
        return [text.strip() for text in said]
    none = settings - len(standings)
    without = (
        f" In {none} of {settings} settings no encoding has {LEAST_RIGHT:.0%} of the answers right." if none else ""
    )
    return [f"At the longest length: {in_each_setting(standings)}{without}"]


def _by_length(far: Longest) -> str:
    """Say what the best mean is at each length above the training length."""
    means = far.longer.groupby(["length", "pe"], sort=False)["value"].mean().unstack("length").sort_index(axis=1)
    lower, ends = lower_is_better(far.metric), []
    for length in means:
        values = means[length][np.isfinite(means[length])].sort_values(ascending=lower, kind="stable")
        if len(values):
            alone = len(values) > 1 and values.iloc[0] != values.iloc[1]
            name = f" (`{values.index[0]}`)" if alone else ""
            own = far.longer.loc[(far.longer["length"] == length) & (far.longer["pe"] == values.index[0]), "value"]
            low, high = interval(own) if alone and len(own) > 1 else (np.nan, np.nan)
            between = f" (95 % interval {low:.3g} to {high:.3g})" if low < high else ""
            ends.append(f"{amount(values.iloc[0], far.metric)}{name} at {length:g} ×{between}")
    return f"The {superlative(far.metric)} mean {in_words(far.metric)} is {joined(ends)}." if len(ends) > 1 else ""


def figure(subject: ReportSubject) -> Drawn | None:
    """Return the figure of what a study measures first: its metric against length, or a probe against the layer."""
    records = subject.results.records
    metrics = [far.metric for far in longest(records, subject.results.cells).values()]
    if metrics:
        code = f"plots.length_curves(results.records, {metrics[0]!r})"
        caption = f"Test {in_words(metrics[0])} against length: means over seeds"
        return Drawn(plots.length_curves(records, metrics[0]), caption, code)
    layers = probed(records)
    if layers.empty:
        return None
    probe = str(layers["probe"].iloc[0])
    known = list(layers.loc[layers["probe"] == probe, "metric"].unique())
    metric, what = FINDINGS.get(probe, (known[0], in_words(known[0])))
    if metric not in known:
        metric, what = known[0], in_words(known[0])
    code = f"plots.layer_curves(results.records, {probe!r}, {metric!r})"
    return Drawn(plots.layer_curves(records, probe, metric), f"{what}, by layer: means over seeds", code)


def probed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of probes that have layers."""
    return records[(records["kind"] == "probe") & records["layer"].notna()] if len(records) else records


def by_layer(records: pd.DataFrame, probe: str) -> str:
    """Say between which encodings the mean of a probe's main metric lies in the first and in the last layer.

    Means are over seeds, heads and settings. Where positions were permuted as well, chance is said too; and the value
    of a model without an encoding, where there is one and it is neither of the two.

    Args:
        records: from `probed`.
        probe: one of them.
    """
    rows = records[records["probe"] == probe]
    metric, what = FINDINGS.get(probe, ("", ""))
    if metric not in set(rows["metric"]):
        metric = str(rows["metric"].iloc[0])
        what = metric.replace("_", " ")
    measured = rows[rows["metric"] == metric]
    said = []
    for where, at in ((f"in layer {measured['layer'].min():g}", "min"), ("in the last layer", "max")):
        means = _at_end(measured, at)
        low, high = means.idxmin(), means.idxmax()
        ends = f"{fixed(means[low])} (`{low}`) to {fixed(means[high])} (`{high}`)"
        between = NONE in means and len({low, high, NONE}) == 3
        beside = f" (without an encoding {fixed(means[NONE])})" if between else ""
        said.append(f"{ends if low != high else fixed(means[low])} {where}{beside}")
    chance = rows[rows["metric"] == metric + CHANCE]
    by_chance = f"; {fixed(_at_end(chance, 'max').mean())} by chance" if len(chance) else ""
    return f"{what}: {', '.join(said)}{by_chance}."


def averaged(records: pd.DataFrame) -> str:
    """Say over what `by_layer` averages.

    Args:
        records: from `probed`.
    """
    count = len(records[record_settings(records)].drop_duplicates())
    return f"Means over seeds{f' and {count} settings' if count > 1 else ''}"


def _at_end(rows: pd.DataFrame, at: str) -> pd.Series:
    """Return the mean of each encoding in the first (`min`) or the last (`max`) layer of each setting."""
    settings = record_settings(rows)
    ends = rows.groupby([*settings, "pe", "seed"], sort=False, dropna=False)["layer"].transform(at)
    values = rows[rows["layer"] == ends].groupby([*settings, "pe"], sort=False, dropna=False)["value"].mean()
    return values.groupby(level="pe", sort=False).mean()


def fixed(value: float) -> str:
    """Return a number with two decimal places, without the sign of a rounded zero."""
    text = f"{value:.2f}"
    return text if float(text) else text.removeprefix("-")
