"""What was measured beyond the test: at longer lengths, and by probes of the layers."""

import pandas as pd

from pe_lab import config
from pe_lab.config.reference import first_comment
from pe_lab.report.choice import LEAST_RIGHT, longest
from pe_lab.report.parts import Drawn, Folded, Part, ReportTable
from pe_lab.report.question import ReportSubject
from pe_lab.report.standing import Standing, in_each_setting, in_words, joined, last_word
from pe_lab.results import plots
from pe_lab.results.columns import lower_is_better
from pe_lab.results.panels import COLOURED
from pe_lab.results.plots import record_settings

MOST_VALUES = 6  # settings that are named
FINDINGS = {  # by probe: the metrics that answer its question, and what they are
    "position": {"r2": "R² of position"},
    "attention": {"entropy_normalised": "entropy of attention"},
    "rank": {"token_cosine": "cosine of two tokens", "effective_rank": "effective rank"},
    "subspace": {"position_share": "variance that goes with position"},
}
MEANINGS = {  # by metric
    "r2": "R² of position is that of a linear probe: 1 where the position of a token is read without error.",
    "entropy_normalised": "Entropy of attention is 0 for one token, and 1 if all are alike.",
    "token_cosine": "The cosine between the states of two tokens is 1 if all tokens have become alike.",
    "effective_rank": "The effective rank counts the dimensions that the states fill.",
    "position_share": "The share of the variance of states that goes with position is between 0 and 1.",
}


def study_question(name: str) -> str:
    """Return the question that a study of the configuration asks in its first comment; empty if it asks none."""
    file = config.folders().file("study", name)
    question, mark, _ = ("", "", "") if file is None else first_comment(file).partition("?")
    return question + mark if mark else ""


def at_longer_lengths(subject: ReportSubject) -> str:
    """Say which encodings may be the best at the longest length, in a sentence for all settings; empty without any."""
    standings, without, settings, lengths = [], 0, list[str](), set()
    for need, far in longest(subject.results.records, subject.results.cells).items():
        ranked = subject.compared.ranks(need)
        if len(ranked) < 2:
            continue
        settings.append(far.setting)
        lengths.add(far.length)
        standing = Standing.of(ranked, subject.compared.lines[need], far.metric, f"test {in_words(far.metric)}")
        if not lower_is_better(far.metric) and next(iter(standing.means.values())) < LEAST_RIGHT:
            without += 1
        else:
            standings.append(standing)
    if not settings:
        return ""
    where = f"At {joined([f'{length:g}' for length in sorted(lengths)])} × the training length"
    none = f"no encoding has {LEAST_RIGHT:.0%} of the answers right"
    if without == len(settings):
        tasks = [setting.removeprefix("data ") for setting in settings]
        return f"{where}, {none}{f' ({joined(tasks)})' * (1 < len(tasks) <= MOST_VALUES)}."
    if len(settings) == 1:
        return f"{where}: {standings[0].words()}"
    return (
        f"{where}: {in_each_setting(standings)}{f' In {without} of {len(settings)} settings {none}.' * bool(without)}"
    )


def figure(subject: ReportSubject) -> Drawn | None:
    """Return the figure of what a study measures first: its metric against length, or a probe against the layer."""
    records = subject.results.records
    metrics = [far.metric for far in longest(records, subject.results.cells).values()]
    if metrics:
        code = f"plots.length_curves(results.records, {metrics[0]!r})"
        drawn = plots.length_curves(records, metrics[0])
        return Drawn(drawn, f"Test {in_words(metrics[0])} against length: {_shaded(drawn)}", code)
    layers = probed(records)
    if layers.empty:
        return None
    probe = str(layers["probe"].iloc[0])
    metrics = list(layers.loc[layers["probe"] == probe, "metric"].unique())
    metric = next((name for name in FINDINGS.get(probe, {}) if name in metrics), metrics[0])
    what = FINDINGS.get(probe, {}).get(metric, in_words(metric))
    code = f"plots.layer_curves(results.records, {probe!r}, {metric!r})"
    drawn = plots.layer_curves(records, probe, metric)
    return Drawn(drawn, f"{what}, by layer: {_shaded(drawn)}", code)


def _shaded(drawn: plots.Plot) -> str:
    """Say what lines and bands of a figure are."""
    bands = drawn.data["low"].notna().any() and drawn.data["pe"].nunique() <= COLOURED
    return f"means over seeds{'; bands are their 95 % t intervals' * bool(bands)}"


def probed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of probes that have layers."""
    return records[(records["kind"] == "probe") & records["layer"].notna()] if len(records) else records


def by_layer(records: pd.DataFrame) -> list[Part]:
    """Return a table of the main metrics of the probes, from the first to the last layer of the deepest models.

    Means are over seeds, heads and the other settings.

    Args:
        records: from `probed`, not empty.
    """
    deepest = records[records["depth"] == records["depth"].max()] if "depth" in records else records
    found, meanings = {}, []
    for probe in deepest["probe"].unique():
        rows = deepest[deepest["probe"] == probe]
        first = str(rows["metric"].iloc[0])
        for metric, what in FINDINGS.get(probe, {first: in_words(first)}).items():
            measured = rows[rows["metric"] == metric]
            if measured.empty:
                continue
            layers = measured.groupby(["pe", "layer"], sort=False)["value"].mean().unstack("layer").sort_index(axis=1)
            ends = layers.iloc[:, [0, -1]].map(lambda value: f"{value:.2f}" if value < 10 else f"{value:.1f}")
            found[what] = ends.agg(" → ".join, axis=1).str.replace("-0.00", "0.00")
            meanings += [MEANINGS[metric]] if metric in MEANINGS else []
    table = pd.DataFrame(found).rename_axis("pe").reset_index()
    other = [name for name in record_settings(deepest) if deepest[name].nunique() > 1]
    depth = f" of models of depth {deepest['depth'].max():g}" if "depth" in records else ""
    caption = f"From the first to the last layer{depth}: means over {joined(['seeds', *map(last_word, other)])}"
    return [ReportTable(table, caption), *([Folded("What is measured", list(meanings))] if meanings else [])]
