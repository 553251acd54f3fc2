"""What a study says of learning rates that it tried in turn: the best of each encoding, and whether the order holds."""

import numpy as np
import pandas as pd

from pe_lab.config import LR
from pe_lab.report.best_candidates import amount, capitalise, join_words, last_word
from pe_lab.report.parts import CaptionedFigure, Collapsible, Part, ReportTable, Section, intervals_in_words
from pe_lab.report.report_subject import ReportSubject, varied_columns
from pe_lab.report.training_setup import searched_rates
from pe_lab.results import plots, swept_rates
from pe_lab.results.columns import setting_columns, sort_by_setting
from pe_lab.results.number_text import count_of_seeds
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics import LEVEL, MIN_SEEDS, interval
from pe_lab.statistics.correction import holm
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS


def tries_rates(subject: ReportSubject) -> bool:
    """Return whether encodings were trained at several learning rates, the best by validation, and compared by loss."""
    cells = subject.results.cells
    if subject.metric != "loss" or subject.decided is not None or LR not in setting_columns(cells):
        return False
    return cells["pe"].nunique() > 1 and not subject.results.curves.empty


def rate_parts(subject: ReportSubject) -> list[Part]:
    """Return what is asked first of a study of rates: the best of each encoding in each setting, and a table."""
    tuning, settings = swept_rates.choose_rates(subject.results), _settings(subject)
    best = sort_by_setting(tuning.rates, settings)
    tried, varied = subject.results.cells[LR], varied_columns(best, settings)
    cases = (
        f"combinations of encoding and {join_words([last_word(name) for name in varied])}" if varied else "encodings"
    )
    ends = [
        f"{rate:g}, the {what} tried, for {(best[LR] == rate).sum()} of {len(best)} {cases}"
        for rate, what in ((tried.min(), "lowest"), (tried.max(), "highest"))
        if (best[LR] == rate).any()
    ]
    words, items, details = pd.Series(settings_in_words(best, settings), best.index), list[str](), list[str]()
    best = best.assign(**_next_rates(subject.results.cells, best, settings))
    best["worse"] = (holm(best["p_next"].to_numpy(float)) < LEVEL) & (best["next"] > 0)
    for setting, here in best.groupby(words, sort=False):
        chosen = here.groupby(LR)["pe"].agg(lambda names: join_words([f"`{name}`" for name in names]))
        at = "; ".join(f"{rate:g} for {names if len(chosen) > 1 else 'all'}" for rate, names in chosen.items())
        items.append(f"**{capitalise(setting)}**: {at}.")
        details.append(f"**{capitalise(setting)}**: {_lowest(subject.results.cells, here, settings)}")
    worse = [f"`{line['pe']}` ({words[at]})" for at, line in best[best["worse"]].iterrows()]
    seeds = count_of_seeds(subject.results.cells.groupby([*settings, "pe", LR], dropna=False)["seed"].nunique())
    lead = f"The rate with the lowest validation loss ({seeds}) is " + (
        f"{join_words(ends)}. A better one may lie beyond." if ends else "nowhere the lowest or highest tried."
    )
    lead += (
        f" The next best rate is significantly worse {f'only for {join_words(worse)}' if worse else 'for no encoding'}."
    )
    one_for_all, others = _one_for_all(subject.results.cells, best, settings)
    items.append(one_for_all)
    details += [others] * bool(others)
    values = zip(best["next"], best["low_next"], best["high_next"], strict=True)
    several = subject.results.cells["seed"].nunique() >= MIN_SHOWN_SEEDS
    paired = [
        f"{more:.3g}" + f" [{low:.3g}, {high:.3g}]" * several if np.isfinite(low) else "" for more, low, high in values
    ]
    ends = ["low", "high"] * several
    told = best[[*varied_columns(best, settings), "pe", LR, "at_edge", "test_loss", *ends]]
    sure = np.where(best["worse"], "significantly worse", "undecided")
    told = told.assign(at_edge=np.where(best["at_edge"], "yes", "no"), more=paired, sure=sure)
    names = {LR: "best learning rate", "at_edge": "lowest or highest tried", "test_loss": "test loss"}
    names |= {"more": "more at the next best rate", "sure": "the next best rate is"}
    caption = "Mean test loss at the best rate, and how much more it is at the next best"
    caption += ", with 95 % t intervals" * several + ". "
    caption += f"Significant: p < 0.05 in a t test paired by seed, with Holm's correction over {len(best)} tests"
    code = f"columns.sort_by_setting(swept_rates.choose_rates(results).rates, {settings})"
    drawn = plots.over_rates(subject.results.cells, tuning.rates)
    words = (
        f"Test loss minus that at the best rate, paired by seed: means over {seeds}{intervals_in_words(drawn)}. "
        "Ring: the rate with the lowest validation loss; hatched: not tried"
    )
    source = "plots.over_rates(results.cells, swept_rates.choose_rates(results).rates)"
    figure, table = CaptionedFigure(drawn, words, source), told.rename(columns=names)
    folded: list[Part] = [ReportTable(table, caption, code), "".join(f"\n- {detail}" for detail in details)]
    return [
        lead + "".join(f"\n- {item}" for item in items),
        figure,
        Collapsible("The best rates, the next best, and the encodings at their best", folded),
    ]


def _losses(cells: pd.DataFrame, line: pd.Series, settings: list[str]) -> pd.DataFrame:
    """Return the test losses of an encoding in a setting: a line per seed, a column per rate."""
    here = cells[cells["pe"] == line["pe"]]
    for name in settings:
        here = here[here[name].isna() if pd.isna(line[name]) else here[name] == line[name]]
    return here.pivot_table(index="seed", columns=LR, values="test_loss")


def _one_for_all(cells: pd.DataFrame, best: pd.DataFrame, settings: list[str]) -> tuple[str, str]:
    """Say how much higher the mean test loss of an encoding is at most at one rate for all than at its best rate.

    Where the largest difference is not significant, the largest one that is stands beside it.

    Returns:
        A sentence on the rate at which that is least, and one on the other rates, empty if there are none.
    """
    losses = {number: _losses(cells, line, settings) for number, line in best.iterrows()}
    paired = {number: values.rsub(values[best.loc[number, LR]], axis=0).mul(-1) for number, values in losses.items()}
    means, told = pd.DataFrame({number: more.mean() for number, more in paired.items()}), dict[float, str]()
    for rate in means.max(axis=1).sort_values(kind="stable").index:
        amounts = means.loc[rate]
        ends = {number: interval(paired[number][rate].dropna()) for number in amounts.dropna().index}
        low, high = ends[amounts.idxmax()]
        sure = amounts[[number for number, (lowest, _) in ends.items() if lowest > 0]]
        largest = f"; the largest significant loss is {sure.max():.2f} nats" if len(sure) else ""
        less = f"not significant{largest}"
        few = paired[amounts.idxmax()][rate].count() < MIN_SHOWN_SEEDS
        extent = ("significant" if few else f"95 % interval {low:.2f} to {high:.2f}") if low > 0 else less
        told[rate] = f"{amounts.max():.2f} nats at {rate:g}" + f" ({extent})" * bool(np.isfinite(low))
    (least, *others), text = told.values(), "costs an encoding up to"
    not_corrected = "; t tests are not corrected"
    other_rates = f"**Another rate for all** {text} {join_words(others)}{not_corrected}." if others else ""
    return f"**One rate for all** {text} {least}{not_corrected}.", other_rates


def _next_rates(cells: pd.DataFrame, best: pd.DataFrame, settings: list[str]) -> dict[str, list[float]]:
    """Return how much more the test loss is at the next best rate, by its mean, than at the best, with its interval."""
    from scipy import stats

    found: dict[str, list[float]] = {"next": [], "low_next": [], "high_next": [], "p_next": []}
    for _, line in best.iterrows():
        losses = _losses(cells, line, settings)
        others = losses.drop(columns=line[LR]).mean().sort_values()
        more = (losses[others.index[0]] - losses[line[LR]]).dropna() if len(others) else pd.Series(dtype=float)
        p = np.nan
        if len(more) > 1:  # without a spread there is no t
            p = stats.ttest_1samp(more, 0.0).pvalue if more.std() > 0 else float(more.mean() == 0)
        for name, value in zip(found, (more.mean(), *interval(more), p), strict=True):
            found[name].append(value)
    return found


def _lowest(cells: pd.DataFrame, here: pd.DataFrame, settings: list[str]) -> str:
    """Say which encoding has the lowest mean test loss at the best rates, and by how much."""
    ranked = here.sort_values("test_loss", kind="stable")
    first = ranked.iloc[0]
    text = f"`{first['pe']}` has the lowest mean test loss, {amount(first['test_loss'], 'loss')}"
    if len(ranked) < 2:
        return f"{text}."
    one, other = (_losses(cells, line, settings)[line[LR]] for _, line in ranked.head(2).iterrows())
    more = (other - one).dropna()
    low, high = interval(more)
    sure = "" if low > 0 else ", which is not significant"
    extent = f" (95 % interval {low:.3g} to {high:.3g})" * (len(more) >= MIN_SHOWN_SEEDS)
    second = f"`{ranked['pe'].iloc[1]}` by {more.mean():.3g}{extent}{sure}"
    return f"{text}, ahead of {second}."


def _settings(subject: ReportSubject) -> list[str]:
    return [name for name in setting_columns(subject.results.cells) if name != LR]


def rates_section(subject: ReportSubject) -> Section:
    """Return the tuned learning rates, and rankings at one rate against the ranking at tuned ones."""
    results, title = subject.results, "Learning rates"
    if LR not in setting_columns(results.cells) and (searched := searched_rates(results)) is not None:
        return _searched_rates_section(searched)
    if LR not in setting_columns(results.cells) or results.curves.empty:
        return Section(title)
    tuning = swept_rates.choose_rates(results)
    ranked = results.cells["seed"].nunique() >= MIN_SEEDS  # with fewer, ranks are mostly noise
    parts = list[Part]()
    if edge := int(tuning.rates["at_edge"].sum()):
        parts.append(
            f"**Note.** {edge} of {len(tuning.rates)} best rates are the lowest or the highest that was tried. A "
            "better rate may lie beyond, and the ranking there may differ."
        )
    settings = _settings(subject)
    best, agreement = sort_by_setting(tuning.rates, settings), tuning.agreement
    best = best[[*varied_columns(best, settings), *(name for name in best if name not in settings)]]
    agreement = agreement[[*varied_columns(agreement, settings), *(name for name in agreement if name not in settings)]]
    code = "swept_rates.choose_rates(results)"
    if not tries_rates(subject):  # otherwise it stands on the first screen
        parts.append(ReportTable(best, "Tuned rates", f"columns.sort_by_setting({code}.rates, {settings})"))
    if len(agreement) and ranked:
        agreement = agreement.assign(tau=[f"{tau:.2g}" if np.isfinite(tau) else "–" for tau in agreement["tau"]])
        caption = "Agreement of two rankings by test loss: at one rate for all, and at the best rate of each encoding. "
        caption += "Kendall's tau is 1 for the same ranking and 0 for unrelated ones; –: the rate is the best of all"
        parts.append(ReportTable(agreement, caption, f"{code}.agreement"))
    return Section(title, parts)


def _searched_rates_section(chosen: pd.DataFrame) -> Section:
    """Return the section on rates that a search chose for the cells of the study.

    Args:
        chosen: the table of `searched_rates`.
    """
    what = "learning rate"
    if "start_scale" in chosen and chosen["start_scale"].notna().any():
        what += " and starting scale"
    parts: list[Part] = [
        f"A search for each encoding chose the {what} with the lowest validation loss, with other seeds than those "
        "that are compared. It does not say how much the ranking depends on the rate."
    ]
    if edge := int(chosen["at_edge"].astype(str).str.lower().eq("true").sum()):
        parts.append(
            f"**Note.** {edge} of {len(chosen)} choices are the lowest or the highest that was tried. A better one may "
            "lie beyond, and the ranking there may differ."
        )
    parts.append(ReportTable(chosen, "What the search chose"))
    return Section("Learning rates", parts)
