"""What was measured beyond the test: at longer lengths, and by probes of the layers."""

import pandas as pd

from pe_lab import config
from pe_lab.config.reference import first_comment
from pe_lab.report.choice import LEAST_RIGHT, Longest, longest
from pe_lab.report.parts import Drawn, Folded, Part, ReportTable
from pe_lab.report.question import ReportSubject
from pe_lab.report.standing import Standing, in_each_setting, joined
from pe_lab.results import plots
from pe_lab.results.columns import in_words, lower_is_better, possible, sort_by_setting
from pe_lab.results.panels import COLOURED, settings_in_words
from pe_lab.results.plots import record_settings
from pe_lab.statistics.comparisons import counted

MOST_VALUES = 6  # settings that are named
MOST_ANSWERING = 3  # encodings that are named with their shares
FINDINGS = {  # by probe: the metrics that answer its question
    "position": ("r2",),
    "attention": ("entropy_normalised",),
    "rank": ("token_cosine", "effective_rank"),
    "subspace": ("position_share",),
}
MEANINGS = {  # by metric
    "r2": "R² of position is that of a linear probe: 1 where the position of a token is read without error.",
    "entropy_normalised": "Entropy of attention is 0 for one token, and 1 if all are alike.",
    "token_cosine": "The cosine between the states of two tokens is 1 if all tokens have become alike.",
    "effective_rank": "The effective rank counts the dimensions that the states fill.",
    "position_share": "The share of the variance of states that goes with position is between 0 and 1.",
}
APART, ALIKE = 0.5, 0.9  # the cosine of two tokens below which tokens are apart, and above which they are alike


def study_question(name: str) -> str:
    """Return the question that a study of the configuration asks in its first comment; empty if it asks none."""
    file = config.folders().file("study", name)
    question, mark, _ = ("", "", "") if file is None else first_comment(file).partition("?")
    return question + mark if mark else ""


def at_longer_lengths(subject: ReportSubject) -> str:
    """Say which encodings may be the best at the longest length, in a sentence for all settings; empty without any.

    Where none answers there, the longest length at which one does is named.
    """
    standings, without, lengths = list[Standing](), list[Longest](), set()
    for need, far in longest(subject.results.records, subject.results.cells).items():
        if need not in subject.compared.tables:  # seeds that tune are compared at the training length
            continue
        ranked = subject.compared.ranks(need)
        if len(ranked) < 2:
            continue
        lengths.add(far.length)
        standing = Standing.of(ranked, subject.compared.lines[need], far.metric, f"test {in_words(far.metric)}")
        if not lower_is_better(far.metric) and next(iter(standing.means.values())) < LEAST_RIGHT:
            without.append(far)
        else:
            standings.append(standing)
    count = len(standings) + len(without)
    if not count:
        return ""
    where = f"At {joined([f'{length:g}' for length in sorted(lengths)])} × the training length"
    none = f"no encoding has {LEAST_RIGHT:.0%} of the answers right"
    if not standings and count <= MOST_VALUES:
        return " ".join(dict.fromkeys(_nearer(far, count > 1) for far in without))
    if not standings:
        return f"{where}, {none}."
    if count == 1:
        return f"{where}: {standings[0].words()}"
    return f"{where}: {in_each_setting(standings)}" + f" In {len(without)} of {count} settings {none}." * bool(without)


def _nearer(far: Longest, several: bool) -> str:
    """Say up to which length an encoding answers, and which do, with their shares of right answers.

    Args:
        several: whether there are several settings, so that this one is named.
    """
    start = f"{far.setting.removeprefix('data ').capitalize()}: " * several
    none = f"no encoding has {LEAST_RIGHT:.0%} of the answers right"
    shares = far.nearer.groupby(["length", "pe"])["value"].mean()
    answering = shares[(shares >= LEAST_RIGHT) & (shares.index.get_level_values("length") > 1)]
    if answering.empty:
        return f"{start}{none if several else f'{none[0].upper()}{none[1:]}'} beyond the training length."
    seeds = far.nearer.set_index(["length", "pe"])["value"]
    lengths = answering.index.get_level_values("length")
    ends = [
        f"{length:g} × {unit}{_shares(answering[length], seeds[length])}"
        for length, unit in {lengths.min(): "", lengths.max(): "the training length "}.items()
    ]
    return f"{start}{'at' if several else 'At'} {'; at '.join(reversed(ends))}; at {far.length:g} × {none}."


def _shares(shares: pd.Series, seeds: pd.Series) -> str:
    """Say which share of answers is right, of the best encodings, with the range over seeds."""
    best = shares.sort_values(ascending=False, kind="stable").head(MOST_ANSWERING)
    ends = []
    for pe, share in best.items():
        values = seeds[[pe]]
        ends.append(f"`{pe}` has {share:.0%} of the answers right (seeds {values.min():.0%} to {values.max():.0%})")
    return joined([ends[0], *(end.replace(" of the answers right", "") for end in ends[1:])])


def figure(subject: ReportSubject) -> Drawn | None:
    """Return the figure of what a study measures first: its metric against length, or a probe against the layer."""
    records = subject.results.records
    metrics = [far.metric for far in longest(records, subject.results.cells).values()]
    if metrics:
        code = f"plots.length_curves(results.records, {metrics[0]!r})"
        drawn = plots.length_curves(records, metrics[0])
        return Drawn(drawn, f"Test {in_words(metrics[0])} against length: {shaded(drawn, metrics[0])}", code)
    layers = probed(records)
    if layers.empty:
        return None
    probe = str(layers["probe"].iloc[0])
    metrics = list(layers.loc[layers["probe"] == probe, "metric"].unique())
    metric = next((name for name in FINDINGS.get(probe, ()) if name in metrics), metrics[0])
    code = f"plots.layer_curves(results.records, {probe!r}, {metric!r})"
    drawn = plots.layer_curves(records, probe, metric)
    words = in_words(metric)
    return Drawn(drawn, f"{words[0].upper()}{words[1:]}, by layer: {shaded(drawn, metric)}", code)


def shaded(drawn: plots.Plot, metric: str) -> str:
    """Say what lines and bands of a figure are."""
    low, high = int(drawn.data["seeds"].min()), int(drawn.data["seeds"].max())
    text = f"means over {counted(high, 'seed') if low == high else f'{low} to {high} seeds'}"
    if drawn.data["low"].isna().all() or drawn.data["pe"].nunique() > COLOURED:
        return text
    least, most = possible(metric)
    ends = (drawn.data["low"] == least).any() or (drawn.data["high"] == most).any()
    return f"{text}; bands are their 95 % t intervals{', cut at what is possible' * bool(ends)}"


def probed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of probes that have layers."""
    return records[(records["kind"] == "probe") & records["layer"].notna()] if len(records) else records


def by_layer(records: pd.DataFrame) -> list[Part]:
    """Return what the probes found in the deepest models: a sentence, and a table from the first to the last layer.

    Means are over seeds and heads, a line per encoding and setting.

    Args:
        records: some of them of probes that have layers.
    """
    layered = probed(records)
    deepest = layered[layered["depth"] == layered["depth"].max()] if "depth" in layered else layered
    names = [name for name in record_settings(deepest) if deepest[name].nunique(dropna=False) > 1]
    deepest = sort_by_setting(deepest, names)
    deepest = deepest.assign(setting=settings_in_words(deepest, names) if names else "")
    sentences, columns, meanings = [], {}, []
    for probe in deepest["probe"].unique():
        rows = deepest[deepest["probe"] == probe]
        for metric in FINDINGS.get(probe, (str(rows["metric"].iloc[0]),)):
            measured = rows[rows["metric"] == metric]
            if measured.empty:
                continue
            layers = measured.groupby(["setting", "pe", "layer"], sort=False)["value"].mean()
            layers = layers.unstack("layer").sort_index(axis=1)
            sentences += [_SENTENCES[metric](layers)] if metric in _SENTENCES else []
            alone = records.loc[records["metric"] == f"{metric}_from_token", "value"]
            sentences += [f"The token alone gives {alone.mean():.2f}."] if len(alone) else []
            ends = layers.iloc[:, [0, -1]].map(lambda value: f"{value:.2f}" if value < 10 else f"{value:.1f}")
            columns[in_words(metric)] = ends.agg(" → ".join, axis=1).str.replace("-0.00", "0.00")
            meanings += [MEANINGS[metric]] if metric in MEANINGS else []
    table = pd.DataFrame(columns).reset_index()
    table = table if names else table.drop(columns="setting")
    depth = f" of models of depth {deepest['depth'].max():g}" if "depth" in records else ""
    seeds = counted(deepest["seed"].nunique(), "seed")
    caption = f"From the first to the last layer{depth}: means over {seeds}"
    text: list[Part] = [" ".join(sentences)] if sentences else []
    return [*text, ReportTable(table, caption), *([Folded("What is measured", list(meanings))] if meanings else [])]


def _where_read(layers: pd.DataFrame) -> str:
    """Say in which layers position is read best.

    Args:
        layers: R² by setting and encoding, a column per layer.
    """
    best, highest = layers.idxmax(axis=1), layers.max(axis=1)
    low, high = highest.idxmin()[-1], highest.idxmax()[-1]
    ends = f"R² from {highest.min():.2f} with `{low}` to {highest.max():.2f} with `{high}`"
    ends = ends if len(highest) > 1 else f"R² {highest.min():.2f}"
    where = f"layer{'s' * (best.nunique() > 1)} {_between(best, 'g')} of {layers.columns.max():g}"
    return f"A linear probe reads position best in {where} ({ends})."


def _alike(layers: pd.DataFrame) -> str:
    """Say whether tokens have become alike in a layer.

    Args:
        layers: the cosine of two tokens by setting and encoding, a column per layer.
    """
    most = layers.max(axis=1)
    if most.max() < APART:
        return f"Tokens stay apart: the cosine of two tokens is at most {most.max():.2f} in all layers."
    if most.min() > ALIKE:
        return f"All tokens become alike: the cosine of two tokens reaches {_between(most, '.2f')}."
    alike = [f"`{pe}`" for pe in dict.fromkeys(most[most > ALIKE].index.get_level_values("pe"))]
    with_ = f", above {ALIKE:g} with {joined(alike)}" * bool(alike)
    return f"Tokens become more alike: the cosine of two tokens reaches {_between(most, '.2f')}{with_}."


def _rank_lost(layers: pd.DataFrame) -> str:
    """Say how far the effective rank falls below that of the first layer.

    Args:
        layers: the effective rank by setting and encoding, a column per layer.
    """
    first, least = layers.iloc[:, 0], layers.min(axis=1)
    where = "the embedding" if layers.columns[0] == 0 else f"layer {layers.columns[0]:g}"
    return (
        f"The effective rank is {_between(first, '.0f')} at {where}, and {_between(least, '.0f')} where it is lowest."
    )


def _between(values: pd.Series, form: str) -> str:
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low}–{high}"


_SENTENCES = {"r2": _where_read, "token_cosine": _alike, "effective_rank": _rank_lost}  # by metric of FINDINGS
