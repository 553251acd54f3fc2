"""What was measured beyond the test: at longer lengths, and by probes of the layers."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from pe_lab import config
from pe_lab.config.reference import first_comment
from pe_lab.report.choice import Longest, longest
from pe_lab.report.parts import Drawn, Folded, ReportTable
from pe_lab.report.question import ReportSubject
from pe_lab.report.standing import Standing, in_each_setting, joined
from pe_lab.results import plots
from pe_lab.results.columns import in_words, lower_is_better, possible, sort_by_setting
from pe_lab.results.learned import LEAST_RIGHT
from pe_lab.results.panels import COLOURED, settings_in_words
from pe_lab.results.plots import record_settings
from pe_lab.statistics import interval
from pe_lab.statistics.comparisons import counted

MOST_VALUES = 6  # settings that are named
HALF, MOSTLY = 0.5, 0.9  # shares of right answers, of variance, and R²
MORE = 0.1  # R² above that of the token alone
MOST_RANKS = 3  # settings whose ranks are told one by one
MOST_ANSWERING = 3  # encodings that are named with their shares
FINDINGS = {  # by probe: the metrics that answer its question
    "position": ("r2",),
    "attention": ("entropy_normalised",),
    "rank": ("token_cosine", "stable_rank", "effective_rank"),
    "subspace": ("position_share",),
}
DRAWN = (("position", "r2"), ("rank", "stable_rank"))  # on the first screen
MEANINGS = {  # by metric
    "r2": "R² of position is that of a linear probe: 1 where the position of a token is read without error.",
    "entropy_normalised": "Entropy of attention is 0 for one token, and 1 if all are alike.",
    "token_cosine": "The cosine between the states of two tokens is 1 if all tokens have become alike.",
    "effective_rank": "The effective rank counts the dimensions that the states fill, the small ones almost as much as "
    "the large ones.",
    "stable_rank": "The stable rank is one over the largest share of the variance that a direction has.",
    "position_share": "The share of the variance of states that goes with position is between 0 and 1.",
}
APART, ALIKE = 0.5, 0.9  # the cosine of two tokens below which tokens are apart, and above which they are alike


def study_question(name: str) -> str:
    """Return the question that a study of the configuration asks in its first comment; empty if it asks none."""
    file = config.folders().file("study", name)
    question, mark, _ = ("", "", "") if file is None else first_comment(file).partition("?")
    return question + mark if mark else ""


def at_longer_lengths(subject: ReportSubject) -> str:
    """Say which encodings may be the best at the longest length, in a line, or one per setting; empty without any.

    Where none answers there, each length is told until none does.
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
        told = dict.fromkeys(_nearer(far, count > 1) for far in without)
        return "\n".join(filter(None, [_below_half(without), *told]))
    if not standings:
        return f"{where}, {none}."
    if count == 1:
        return f"{where}: {standings[0].words()}"
    return f"{where}: {in_each_setting(standings)}" + f" In {len(without)} of {count} settings {none}." * bool(without)


def _below_half(without: list[Longest]) -> str:
    """Say that no encoding has half of the answers right at any longer length; empty if one has."""
    longer = pd.concat([far.nearer[far.nearer["length"] > 1].assign(setting=far.setting) for far in without])
    if longer.groupby(["setting", "length", "pe"])["value"].mean().max() >= HALF:
        return ""
    return "On average over seeds, no encoding has half of the answers right at any longer length."


def _nearer(far: Longest, several: bool) -> str:
    """Say which encodings still answer at each longer length, with their shares of right answers, and which never do.

    Args:
        several: whether there are several settings, so that this one is named.
    """
    values = far.nearer.groupby(["length", "pe"])["value"]
    shares, low, high = values.mean(), values.min(), values.max()
    longer = [length for length in sorted(far.nearer["length"].unique()) if length > 1]
    until = max((length for length in longer if shares[length].max() >= LEAST_RIGHT), default=1.0)
    ends, right, seeds = list[str](), " of the answers right", "seeds "
    for length in longer[: sum(length <= until for length in longer) + 1]:  # to the first at which none does
        best = shares[length].sort_values(ascending=False, kind="stable")
        answering = best[best >= LEAST_RIGHT].head(MOST_ANSWERING)
        told = [f"no encoding has {LEAST_RIGHT:.0%}{right}"]
        told[0] += f": the highest mean is {best.iloc[0]:.1%}, of `{best.index[0]}`" * bool(best.iloc[0] > 0)
        if len(answering):
            shown = {pe: f"{low[length, pe]:.0%} to {high[length, pe]:.0%}" for pe in answering.index}
            told = [f"`{pe}` {share:.0%} ({shown[pe]})" for pe, share in answering.items()]
            first = answering.index[0]
            told[0] = f"`{first}` has {answering.iloc[0]:.0%}{right} ({seeds}{shown[first]})"
            told[0] += _lead(far.nearer[far.nearer["length"] == length], *best.index[:2])
            seeds = ""
        ends.append(f"at {length:g} ×{'' if ends else ' the training length'}, {joined(told)}")
        right = ""
    text = "; ".join(ends)
    where = f"{far.setting.removeprefix('data ').capitalize()}: " if several else ""
    return f"{where}{text if several else text[0].upper() + text[1:]}.{_lost(shares, longer)}"


def _lead(measured: pd.DataFrame, first: str, second: str) -> str:
    """Say by how much the best encoding is before the next one, paired by seeds; empty with fewer than two.

    Args:
        measured: shares of right answers at a length: columns pe, seed, value.
    """
    seeds = measured.pivot_table(index="seed", columns="pe", values="value")
    differences = 100 * (seeds[first] - seeds[second]).dropna()
    if len(differences) < 2:
        return ""
    low, high = interval(differences)
    sure = "" if low > 0 else ", which is not significant"
    return f", before `{second}` by {differences.mean():.0f} points (95 % interval {low:.0f} to {high:.0f}){sure}"


def _lost(shares: pd.Series, longer: list[float]) -> str:
    """Name the encodings that answer at the training length, and have no right answer at any longer one.

    Args:
        shares: of right answers, by length and encoding.
        longer: lengths.
    """
    if 1 not in shares.index.get_level_values("length"):
        return ""
    partly = shares[1][(shares[1] < MOSTLY) & (shares[1] >= LEAST_RIGHT)]
    already = joined([f"`{pe}` {share:.0%}" for pe, share in partly.items()]).replace("` ", "` has ", 1)
    text = f" At the training length itself, {already}." if len(partly) else ""
    best = shares[shares.index.get_level_values("length").isin(longer)].groupby("pe", sort=False).max()
    lost = shares[1].reindex(best.index[best == 0])
    lost = lost[lost >= MOSTLY]
    names, have = joined([f"`{pe}`" for pe in lost.index]), "have" if len(lost) > 1 else "has"
    before = f"with {_between(100 * lost, '.1f')}% right at the training length"
    return text + (f" {names}, {before}, {have} no right answer at a longer one." if len(lost) else "")


def measured_figures(subject: ReportSubject) -> list[Drawn]:
    """Return the figures of what a study measures first: its metric against length, or probes against the layer."""
    records = subject.results.records
    metrics = [far.metric for far in longest(records, subject.results.cells).values()]
    if metrics:
        code = f"plots.length_curves(results.records, {metrics[0]!r})"
        drawn = plots.length_curves(records, metrics[0])
        return [Drawn(drawn, f"Test {in_words(metrics[0])} against length: {shaded(drawn, metrics[0])}", code)]
    layers = probed(records)
    if layers.empty:
        return []
    measured = list(layers[["probe", "metric"]].drop_duplicates().itertuples(index=False, name=None))
    shown = [pair for pair in DRAWN if pair in measured] or measured[:1]
    return [_by_layer(records, str(probe), str(metric)) for probe, metric in shown]


def _by_layer(records: pd.DataFrame, probe: str, metric: str) -> Drawn:
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


def by_layer(records: pd.DataFrame) -> tuple[str, Folded]:
    """Return what the probes found in the deepest models: a sentence, and a table from the first to the last layer.

    Means are over seeds and heads, a line per encoding and setting. The sentence is empty where no metric has one.

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
            alone = records.loc[records["metric"] == f"{metric}_from_token", "value"].mean()
            sentences += [_SENTENCES[metric](layers, measured, alone)] if metric in _SENTENCES else []
            sentences += [_where_shallow(layered, metric)] if metric == "stable_rank" else []
            ends = layers.iloc[:, [0, -1]].map(lambda value: f"{value:.2f}" if value < 10 else f"{value:.1f}")
            columns[in_words(metric)] = ends.agg(" → ".join, axis=1).str.replace("-0.00", "0.00")
            meanings += [MEANINGS[metric]] if metric in MEANINGS else []
    table = pd.DataFrame(columns).reset_index()
    table = table if names else table.drop(columns="setting")
    depth = f" of models of depth {deepest['depth'].max():g}" if "depth" in records else ""
    seeds = counted(deepest["seed"].nunique(), "seed")
    caption = f"Means over {seeds}, from the first to the last layer{depth}"
    sentences = [f"Means over {seeds}{depth}."] * bool(sentences) + sentences
    return " ".join(filter(None, sentences)), Folded(
        "First and last layer, and what is measured", [ReportTable(table, caption), *meanings]
    )


def _where_read(layers: pd.DataFrame, measured: pd.DataFrame, alone: float) -> str:
    """Say with which encodings position is read at the embedding, where the others reach it, and how well at best.

    Args:
        layers: R² by setting and encoding, a column per layer.
        measured: the same, of each seed.
        alone: R² from the token alone; NaN: unknown.
    """
    best, start = layers.max(axis=1), layers.iloc[:, 0]
    at_start = start.groupby(level="pe", sort=False).min() > (alone if np.isfinite(alone) else 0) + MORE
    carried, built = list(at_start.index[at_start]), list(at_start.index[~at_start])

    def told(values: pd.Series, names: list[str]) -> str:
        return _between(values[values.index.get_level_values("pe").isin(names)], ".2f")

    sentences, token = [], f", that of the token alone {alone:.2f}" * bool(np.isfinite(alone))
    if carried:
        each = joined([f"`{pe}` {_in_settings(start.xs(pe, level='pe', drop_level=False), '.2f')}" for pe in carried])
        keys = [(*key, layers.columns[0]) for key in start.index if key[1] in carried]
        sure = ", ".join(filter(None, ["R²", _sure(measured, keys)]))
        sentences.append(f"A linear probe reads position at the embedding with {each} ({sure}).")
    if built:
        names = joined([f"`{pe}`" for pe in built])
        reach = (layers >= MOSTLY).idxmax(axis=1)[(layers >= MOSTLY).any(axis=1)]
        reach = reach[reach.index.get_level_values("pe").isin(built)]
        by = (
            f"; it reaches {MOSTLY:g} by layer {_between(reach, 'g')} of {layers.columns.max():g}" if len(reach) else ""
        )
        sentences.append(f"With {names} R² is {told(start, built)} there{token}{by}.")
    sure = _sure(measured, [(*key, layer) for key, layer in layers.idxmax(axis=1).items()])
    without = f", without an encoding {told(best, ['none'])}" if "none" in at_start.index and len(at_start) > 1 else ""
    best_layer = f"At the best layer R² is {_between(best, '.2f')}{without}{f' ({sure})' if sure else ''}."
    return " ".join([*sentences, best_layer])


def _sure(measured: pd.DataFrame, keys: list[tuple[str, str, float]]) -> str:
    """Return the largest half width of the intervals over seeds at some settings, encodings and layers, in words."""
    seeds = measured.groupby(["setting", "pe", "layer", "seed"], sort=False)["value"].mean().unstack("seed")
    half = max(np.ptp(interval(seeds.loc[key].dropna())) / 2 for key in keys)
    return f"95 % intervals up to ± {half:.2f}" if np.isfinite(half) else ""


def _alike(layers: pd.DataFrame, *_: object) -> str:
    """Say whether tokens have become alike in a layer.

    Args:
        layers: the cosine of two tokens by setting and encoding, a column per layer.
    """
    most = layers.max(axis=1)
    if most.max() < APART:
        return f"Tokens do not collapse into one: their cosine is at most {most.max():.2f} in all layers."
    if most.min() > ALIKE:
        return f"All tokens become alike: the cosine of two tokens reaches {_between(most, '.2f')}."
    alike = [f"`{pe}`" for pe in dict.fromkeys(most[most > ALIKE].index.get_level_values("pe"))]
    with_ = f", above {ALIKE:g} with {joined(alike)}" * bool(alike)
    return f"Tokens become more alike: the cosine of two tokens reaches {_between(most, '.2f')}{with_}."


def _rank_lost(layers: pd.DataFrame, *_: object) -> str:
    """Say how far the effective rank falls below that of the first layer, in each of a few settings.

    Args:
        layers: the rank by setting and encoding, a column per layer.
    """
    first, form = layers.iloc[:, 0], ".0f" if layers.min(axis=None) >= 10 else ".1f"
    lowest = _in_settings(layers.min(axis=1), form)
    return f"The effective rank is {_between(first, form)} at {_first(layers)}, and {lowest} where it is lowest."


def _one_direction(layers: pd.DataFrame, *_: object) -> str:
    """Say how much of the variance one direction has at most, in each of a few settings: one over the stable rank.

    Args:
        layers: the stable rank by setting and encoding, a column per layer.
    """
    share = 100 / layers.min(axis=1)
    start = "In part they collapse to one direction: it has" if share.max() >= 100 * HALF else "One direction has"
    first = f"{_between(100 / layers.iloc[:, 0], '.0f')} % at {_first(layers)}"
    return f"{start} up to {_in_settings(share, '.0f', ' %')} of the variance, and {first}."


def _where_shallow(layered: pd.DataFrame, metric: str) -> str:
    """Say how much of the variance one direction has at most in the least deep models; nothing of a single depth."""
    if "depth" not in layered or layered["depth"].nunique() < 2:
        return ""
    rows = layered[(layered["depth"] == layered["depth"].min()) & (layered["metric"] == metric)]
    names = [name for name in record_settings(rows) if rows[name].nunique(dropna=False) > 1]
    rows = rows.assign(setting=settings_in_words(rows, names) if names else "")
    lowest = rows.groupby(["setting", "pe", "layer"], sort=False)["value"].mean().unstack("layer").min(axis=1)
    return f"At depth {rows['depth'].min():g} it is up to {_in_settings(100 / lowest, '.0f', ' %')}."


def _first(layers: pd.DataFrame) -> str:
    return "the embedding" if layers.columns[0] == 0 else f"layer {layers.columns[0]:g}"


def _in_settings(values: pd.Series, form: str, unit: str = "") -> str:
    """Return the range of values, or that of each of a few settings where these differ."""
    groups = list(values.groupby(level="setting", sort=False))
    if not 1 < len(groups) <= MOST_RANKS or len({_between(part, form) for _, part in groups}) == 1:
        return f"{_between(values, form)}{unit}"
    return joined([f"{_between(part, form)}{unit} ({setting})" for setting, part in groups])


def _between(values: pd.Series, form: str) -> str:
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low}–{high}"


_SENTENCES: dict[str, Callable[..., str]] = {
    "r2": _where_read,
    "token_cosine": _alike,
    "effective_rank": _rank_lost,
    "stable_rank": _one_direction,
}  # by metric of FINDINGS
