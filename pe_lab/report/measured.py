"""What was measured beyond the test: at longer lengths, and by probes of the layers."""

import pandas as pd

from pe_lab import config
from pe_lab.config.reference import first_comment
from pe_lab.report.choice import LEAST_RIGHT, Longest, longest
from pe_lab.report.parts import Drawn, Folded, ReportTable
from pe_lab.report.question import ReportSubject
from pe_lab.report.standing import Standing, in_each_setting, joined
from pe_lab.results import plots
from pe_lab.results.columns import cut, in_words, lower_is_better, possible, sort_by_setting
from pe_lab.results.panels import COLOURED, settings_in_words
from pe_lab.results.plots import record_settings
from pe_lab.statistics import interval
from pe_lab.statistics.comparisons import counted

MOST_VALUES = 6  # settings that are named
HALF, MOSTLY = 0.5, 0.9  # shares of right answers
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
    return "No encoding has half of the answers right at any longer length."


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
    for length in [length for length in longer if length <= until] + [length for length in longer if length > until][
        :1
    ]:
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
    return f", before `{second}` by {differences.mean():.0f} points (95 % interval {low:.0f} to {high:.0f})"


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
            sentences += [_SENTENCES[metric](layers, measured)] if metric in _SENTENCES else []
            alone = records.loc[records["metric"] == f"{metric}_from_token", "value"]
            sentences += [f"The token alone gives {alone.mean():.2f}."] if len(alone) else []
            ends = layers.iloc[:, [0, -1]].map(lambda value: f"{value:.2f}" if value < 10 else f"{value:.1f}")
            columns[in_words(metric)] = ends.agg(" → ".join, axis=1).str.replace("-0.00", "0.00")
            meanings += [MEANINGS[metric]] if metric in MEANINGS else []
    table = pd.DataFrame(columns).reset_index()
    table = table if names else table.drop(columns="setting")
    depth = f" of models of depth {deepest['depth'].max():g}" if "depth" in records else ""
    seeds = counted(deepest["seed"].nunique(), "seed")
    caption = f"Means over {seeds}, from the first to the last layer{depth}"
    sentences = [f"Means over {seeds}{depth}."] * bool(sentences) + sentences
    return " ".join(sentences), Folded(
        "First and last layer, and what is measured", [ReportTable(table, caption), *meanings]
    )


def _where_read(layers: pd.DataFrame, measured: pd.DataFrame) -> str:
    """Say in which layers position is read best, and how well without an encoding.

    Args:
        layers: R² by setting and encoding, a column per layer.
        measured: the same, of each seed.
    """
    best, highest = layers.idxmax(axis=1), layers.max(axis=1)
    where = f"layer{'s' * (best.nunique() > 1)} {_between(best, 'g')} of {layers.columns.max():g}"

    def told(key: tuple[str, str]) -> str:
        setting, pe = key
        at = (measured["setting"] == setting) & (measured["pe"] == pe) & (measured["layer"] == best[key])
        values = measured.loc[at].groupby("seed")["value"].mean()
        low, high = cut("r2", highest[key], *interval(values))
        known = f" [{low:.2f}, {high:.2f}]" * (len(values) > 1) + f" with `{pe}`"
        return f"{highest[key]:.2f}{known}" + f" ({setting})" * bool(layers.index.unique("setting").size > 1)

    low, high = highest.idxmin(), highest.idxmax()
    ends = f"R² {told(high)}"
    if len(highest) > 1:
        without = [key for key in highest.index if key[1] == "none" and key not in (low, high)]
        between = f", {told(highest[without].idxmax())}" if without else ""
        ends = f"R² from {told(low)}{between} to {told(high)}"
    return f"A linear probe reads position best in {where} ({ends})."


def _alike(layers: pd.DataFrame, measured: pd.DataFrame) -> str:
    """Say whether tokens have become alike in a layer.

    Args:
        layers: the cosine of two tokens by setting and encoding, a column per layer.
        measured: the same, of each seed.
    """
    most = layers.max(axis=1)
    if most.max() < APART:
        return f"Tokens do not collapse into one: their cosine is at most {most.max():.2f} in all layers."
    if most.min() > ALIKE:
        return f"All tokens become alike: the cosine of two tokens reaches {_between(most, '.2f')}."
    alike = [f"`{pe}`" for pe in dict.fromkeys(most[most > ALIKE].index.get_level_values("pe"))]
    with_ = f", above {ALIKE:g} with {joined(alike)}" * bool(alike)
    return f"Tokens become more alike: the cosine of two tokens reaches {_between(most, '.2f')}{with_}."


def _rank_lost(layers: pd.DataFrame, measured: pd.DataFrame) -> str:
    """Say how far a rank falls below that of the first layer, in each of a few settings.

    Args:
        layers: a rank by setting and encoding, a column per layer.
        measured: the same, of each seed.
    """
    first, least, form = layers.iloc[:, 0], layers.min(axis=1), ".0f" if layers.min(axis=None) >= 10 else ".1f"
    where = "the embedding" if layers.columns[0] == 0 else f"layer {layers.columns[0]:g}"
    groups = (
        list(least.groupby(level="setting", sort=False)) if least.index.unique("setting").size <= MOST_RANKS else []
    )
    lowest = _between(least, form)
    if len(groups) > 1 and len({_between(part, form) for _, part in groups}) > 1:
        lowest = joined([f"{_between(part, form)} ({setting})" for setting, part in groups])
    name = in_words(str(measured["metric"].iloc[0]))
    said: str = f"The {name} is {_between(first, form)} at {where}, and {lowest} where it is lowest."
    if name != "stable rank":
        return said
    setting, pe = least.idxmin()
    there = f"`{pe}`, layer {layers.loc[(setting, pe)].idxmin():g}" + f", {setting}" * bool(setting)
    share = 1 / least.min()
    start = "In part they collapse to one direction, which has" if share >= HALF else "No direction dominates: one has"
    return f"{start} up to {share:.0%} of the variance ({there}; {_between(100 / first, '.0f')}% at {where}). {said}"


def _between(values: pd.Series, form: str) -> str:
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low}–{high}"


_SENTENCES = {
    "r2": _where_read,
    "token_cosine": _alike,
    "effective_rank": _rank_lost,
    "stable_rank": _rank_lost,
}  # by metric of FINDINGS
