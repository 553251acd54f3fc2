"""What was measured at longer lengths than those of training."""

import pandas as pd

from pe_lab.report.best_candidates import BestCandidates, amount, in_each_setting, join_words, superlative
from pe_lab.report.parts import CaptionedFigure, Collapsible, Part, ReportTable, means_in_words
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.training_setup import shared_settings
from pe_lab.results import plots
from pe_lab.results.columns import in_words, lower_is_better
from pe_lab.results.learned import MIN_RIGHT
from pe_lab.results.number_text import count_of_seeds, range_in_words
from pe_lab.results.study_comparisons import Longest, longest, none_right, what_is_right
from pe_lab.statistics import interval
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS

MAX_VALUES = 6  # settings that are named
HALF, MOSTLY = 0.5, 0.9  # shares of right answers


def at_longer_lengths(subject: ReportSubject) -> str:
    """Say which encodings may be the best at the longest length, in a line, or one per setting; empty without any.

    Where none answers there, each length is told until none does.
    """
    if subject.results.declared.tune is not None:  # seeds that tune are compared at the training length
        return ""
    far_off = longest(subject.results.records, subject.results.cells)
    without, lengths = [far for far in far_off.values() if not far.answered], {far.length for far in far_off.values()}
    per_setting = [
        BestCandidates.of(
            subject.compared.ranks(need), subject.compared.lines[need], far.metric, f"test {in_words(far.metric)}"
        )
        for need, far in far_off.items()
        if far.answered
    ]
    count = len(per_setting) + len(without)
    if not count:
        return ""
    where = f"At {join_words([f'{length:g}' for length in sorted(lengths)])} × the training length"
    none = join_words(list(dict.fromkeys(none_right(far.metric) for far in without)))
    if not per_setting and count <= MAX_VALUES:
        identity = shared_settings(subject.results)
        longest_trained = 0 if identity.get("data.bands") else int(identity.get("data.longest") or 0)
        told = dict.fromkeys(_nearer(far, count > 1, longest_trained) for far in without)
        if len(told) == 1:
            return " ".join(filter(None, [_below_half(without), *told]))
        return "".join([_below_half(without), *(f"\n- {text}" for text in told)])
    if not per_setting:
        return f"{where}, {none}."
    if count == 1:
        return f"{where}: {per_setting[0].words()}"
    return f"{where}: {in_each_setting(per_setting)}" + f" In {len(without)} of {count} settings {none}." * bool(
        without
    )


def _below_half(without: list[Longest]) -> str:
    """Say that no encoding has half of the answers or sequences right at any longer length; empty if one has."""
    longer = pd.concat([far.nearer[far.nearer["length"] > 1].assign(setting=far.setting) for far in without])
    if longer.groupby(["setting", "length", "pe"])["value"].mean().max() >= HALF:
        return ""
    seeds = longer.groupby(["setting", "length", "pe"])["seed"].nunique()
    what = " or ".join(dict.fromkeys(what_is_right(far.metric) for far in without))
    return f"No encoding has half of the {what} right at any longer length, on average over {count_of_seeds(seeds)}."


def _nearer(far: Longest, several: bool, longest_trained: int = 0) -> str:
    """Say which encoding answers best at each longer length, with its share of right answers, and which never do.

    Args:
        several: whether there are several settings, so that this one is named.
        longest_trained: the largest problem of training, in symbols; 0: unknown, lengths are told in its multiples.
    """
    values = far.nearer.groupby(["length", "pe"])["value"]
    shares, low, high = values.mean(), values.min(), values.max()
    longer = [length for length in sorted(far.nearer["length"].unique()) if length > 1]
    until = max((length for length in longer if shares[length].max() >= MIN_RIGHT), default=1.0)
    ends, right = list[str](), f" of the {what_is_right(far.metric)} right"
    for length in longer[: sum(length <= until for length in longer) + 1]:  # to the first at which none does
        best = shares[length].sort_values(ascending=False, kind="stable")
        told = f"no encoding has {MIN_RIGHT:.0%}{right}"
        if best.iloc[0] >= MIN_RIGHT:
            first = best.index[0]
            extent = f" ({_percent(low[length, first])}–{_percent(high[length, first])} % by seed)"
            told = f"`{first}` has {best.iloc[0]:.0%}{right}{extent}"
            told += "" if ends else _lead(far.nearer[far.nearer["length"] == length], first)
        at = f"{round(length * longest_trained)}" if longest_trained else f"{length:g} ×"
        unit = f" symbols (trained on up to {longest_trained})" if longest_trained else " the training length"
        ends.append(f"at {at}{'' if ends else unit}, {told}")
        right = ""
    text = "; ".join(ends)
    where = f"**{far.setting.removeprefix('data ').capitalize()}**: " if several else ""
    text = f"{where}{text if several else text[0].upper() + text[1:]}."
    return " ".join(filter(None, [text, _lost(shares, longer, far.metric), _single_answers(far.answers)]))


def _single_answers(answers: pd.DataFrame) -> str:
    """Say which encoding answers best at the first and the last longer length, by its mean, and at that of training.

    Args:
        answers: the accuracy or the loss, see `Longest`; empty where only whole sequences were measured.
    """
    if answers.empty:
        return ""
    metric, told = str(answers["metric"].iloc[0]), list[str]()
    means = answers.groupby(["length", "pe"])["value"].mean().unstack("pe")
    longer = [length for length in means.index if length > 1]
    for length in dict.fromkeys((longer[0], longer[-1])):
        best = means.loc[length].idxmin() if lower_is_better(metric) else means.loc[length].idxmax()
        start = f", {amount(means.at[1.0, best], metric)} at 1 ×" * (1.0 in means.index)
        told.append(f"{amount(means.at[length, best], metric)} at {length:g} × (`{best}`{start})")
    kind = "loss" if lower_is_better(metric) else "accuracy of single answers"
    return f"The {superlative(metric)} mean {kind} is {join_words(told)}."


def _percent(share: float) -> str:
    """Return a share in per cent, with two digits where it is small."""
    return f"{100 * share:.0f}" if share >= 0.01 or share == 0 else f"{100 * share:.2g}"


def _lead(measured: pd.DataFrame, first: str) -> str:
    """Say which others the best encoding is ahead of, and of the next by how much, by uncorrected paired intervals.

    Args:
        measured: the shares of right answers at a length: columns pe, seed, value.
    """
    seeds = measured.pivot_table(index="seed", columns="pe", values="value")
    leads = 100 * seeds.drop(columns=first).rsub(seeds[first], axis=0)
    leads = leads[leads.mean().sort_values(kind="stable").index]  # the next first
    if (leads.count() < MIN_SHOWN_SEEDS).any():
        return ""
    behind = [f"`{pe}`" for pe in leads if interval(leads[pe].dropna())[0] > 0]
    how = "by paired t tests of exact match, not corrected"
    if not behind:
        return f", not significantly ahead of any other ({how})"
    if len(behind) < len(leads.columns):
        return f", significantly ahead of {join_words(behind)} only ({how})"
    low, high = interval(leads.iloc[:, 0].dropna())
    by = f"{leads.iloc[:, 0].mean():.0f} points (95 % interval {low:.0f} to {high:.0f})"
    return f", significantly ahead of every other ({how}); of `{leads.columns[0]}` by {by}"


def _lost(shares: pd.Series, longer: list[float], metric: str) -> str:
    """Name the encodings that answer at the training length, and have nothing right at any longer one.

    Args:
        shares: the shares of right answers, by length and encoding.
        longer: the lengths beyond the training length.
        metric: of what they are shares, see `what_is_right`.
    """
    if 1 not in shares.index.get_level_values("length"):
        return ""
    best = shares[shares.index.get_level_values("length").isin(longer)].groupby("pe", sort=False).max()
    lost = shares[1].reindex(best.index[best == 0])
    lost = lost[lost >= MOSTLY]
    names, have = join_words([f"`{pe}`" for pe in lost.index]), "have" if len(lost) > 1 else "has"
    before = f"{range_in_words(100 * lost, '.1f')}% at the training length"
    what = what_is_right(metric).removesuffix("s")
    return f"{names} {have} no {what} right (but {before})." if len(lost) else ""


def length_parts(subject: ReportSubject) -> list[Part]:
    """Return the figure of a metric against length, and of shares of right answers a folded table; nothing without any.

    Where whole answers are counted, the table has the single tokens at the longest length too.
    """
    records = subject.results.records
    settings = list(longest(records, subject.results.cells).values())
    if not settings:
        return []
    metric = settings[0].metric
    drawn = plots.length_curves(records, metric)
    caption = f"Test {in_words(metric)} against length, in training lengths: {means_in_words(drawn)}"
    figure = CaptionedFigure(drawn, caption, f"plots.length_curves(results.records, {metric!r})")
    shares = [far for far in settings if far.metric == metric and not lower_is_better(metric)]
    if not shares:
        return [figure]
    table = pd.concat([_length_table(far, len(settings) > 1) for far in shares], ignore_index=True)
    caption = f"{in_words(metric).capitalize()} by length, in training lengths: means over seeds, and their range. "
    caption += "1 × is the test set of the task, whose sequences may be shorter"
    return [figure, Collapsible("Numbers by encoding", [ReportTable(table, caption)])]


def _length_table(far: Longest, several: bool) -> pd.DataFrame:
    """Return a line per encoding with a share and its range over seeds at each length, the best nearby first.

    Args:
        several: whether there are several settings, so that this one is named.
    """
    values = far.nearer.groupby(["pe", "length"])["value"].agg(["mean", "min", "max"])
    order = values["mean"].unstack("length").sort_index(axis=1)
    order = order.sort_values([length for length in order if length > 1] + [1.0] * (1.0 in order), ascending=False)
    told = [
        f"{line['mean']:.1%}" + f" ({100 * line['min']:.1f}–{line['max']:.1%})" * bool(line["min"] < line["max"])
        for _, line in values.iterrows()
    ]
    table = pd.Series(told, values.index).unstack("length").reindex(index=order.index, columns=order.columns)
    table = table.rename(columns="{:g} ×".format).rename_axis(None, axis=1).reset_index()
    if (right := far.answers[(far.answers["metric"] == "accuracy") & (far.answers["length"] == far.length)]).size:
        tokens = right.groupby("pe")["value"].mean().reindex(table["pe"])
        table[f"single tokens at {far.length:g} ×"] = [f"{share:.0%}" for share in tokens]
    if several:
        table.insert(0, "setting", far.setting.removeprefix("data "))
    return table
