"""What a study says of learning rates that it tried in turn: the best of each encoding, and whether the order holds."""

import pandas as pd

from pe_lab.config import LR
from pe_lab.report.effort import searched_rates
from pe_lab.report.parts import Part, ReportTable, Section
from pe_lab.report.question import ReportSubject, varied_columns
from pe_lab.report.standing import amount, capitalised, joined
from pe_lab.results import tuned_rates
from pe_lab.results.columns import merge_tables, setting_columns, sort_by_setting
from pe_lab.results.panels import settings_in_words


def tries_rates(subject: ReportSubject) -> bool:
    """Whether the cells have several learning rates, of which validation tells the best; of a report on the loss."""
    if subject.metric != "loss" or LR not in setting_columns(subject.results.cells):
        return False
    return not subject.results.curves.empty


def rate_parts(subject: ReportSubject) -> list[Part]:
    """Return what is asked first of a study of rates: the best of each encoding in each setting, and a table."""
    tuning, settings = tuned_rates.tuned(subject.results), _settings(subject)
    best = sort_by_setting(tuning.rates, settings)
    edge = int(best["at_edge"].sum())
    lead = f"The best learning rates by validation, of which {edge} of {len(best)} are the lowest or the highest tried:"
    words, items = pd.Series(settings_in_words(best, settings), best.index), list[str]()
    for setting, here in best.groupby(words, sort=False):
        chosen = here.groupby(LR)["pe"].agg(lambda names: joined([f"`{name}`" for name in names]))
        first = here.loc[here["test_loss"].idxmin()]
        tau = merge_tables(tuning.agreement, here[settings].drop_duplicates(), settings)["tau"]
        at = "; ".join(f"{rate:g} for {names}" for rate, names in chosen.items())
        lowest = f"There `{first['pe']}` has the lowest mean test loss, {amount(first['test_loss'], 'loss')}"
        taus = f"{tau.min():.2g} to {tau.max():.2g}"
        order = f"The order at one rate for all agrees with that to a Kendall's tau of {taus}"
        items.append(f"**{capitalised(setting)}**: {at}. {lowest}. {order}.")
    told = best[[*varied_columns(best, settings), "pe", LR, "at_edge", "test_loss", "low", "high"]]
    told = told.rename(columns={LR: "best learning rate", "at_edge": "lowest or highest tried"})
    code = f"columns.sort_by_setting(tuned_rates.tuned(results).rates, {settings})"
    table = ReportTable(told, "Mean test loss at the best rate of each encoding, with 95 % t intervals", code)
    return [lead + "".join(f"\n- {item}" for item in items), table]


def _settings(subject: ReportSubject) -> list[str]:
    return [name for name in setting_columns(subject.results.cells) if name != LR]


def rates(subject: ReportSubject) -> Section:
    """Return the tuned learning rates, and rankings at one rate against the ranking at tuned ones."""
    results, title = subject.results, "Learning rates"
    if LR not in setting_columns(results.cells) and (searched := searched_rates(results)) is not None:
        return _searched(searched)
    if LR not in setting_columns(results.cells) or results.curves.empty:
        return Section(title)
    tuning = tuned_rates.tuned(results)
    parts: list[Part] = [
        "Each encoding at the learning rate with the lowest validation loss, and how much the ranking by test loss at "
        "one rate for all agrees with the ranking at those (Kendall's tau: 1 the same, 0 unrelated)."
    ]
    if edge := int(tuning.rates["at_edge"].sum()):
        parts.append(
            f"**Note.** {edge} of {len(tuning.rates)} tuned rates are the lowest or the highest that was tried: the "
            "best rate may lie beyond, and the order there may differ."
        )
    settings = _settings(subject)
    best, agreement = sort_by_setting(tuning.rates, settings), tuning.agreement
    best = best[[*varied_columns(best, settings), *(name for name in best if name not in settings)]]
    agreement = agreement[[*varied_columns(agreement, settings), *(name for name in agreement if name not in settings)]]
    code = "tuned_rates.tuned(results)"
    parts.append(ReportTable(best, "Tuned rates", f"columns.sort_by_setting({code}.rates, {settings})"))
    parts.append(ReportTable(agreement, "Rankings at one rate against tuned", f"{code}.agreement"))
    return Section(title, parts)


def _searched(chosen: pd.DataFrame) -> Section:
    """Return the section on rates that a search chose for the cells of the study.

    Args:
        chosen: of `searched_rates`.
    """
    what = "learning rate"
    if "start_scale" in chosen and chosen["start_scale"].notna().any():
        what += " and starting scale"
    parts: list[Part] = [
        f"Each encoding was trained at the {what} that had the lowest validation loss in a search of its own. The "
        "search had other seeds than the comparisons; it does not say how much the ranking depends on the rate."
    ]
    if edge := int(chosen["at_edge"].astype(str).str.lower().eq("true").sum()):
        parts.append(
            f"**Note.** {edge} of {len(chosen)} choices stand at the edge of what was tried: the best may lie beyond, "
            "and the order there may differ."
        )
    parts.append(ReportTable(chosen, "What the search chose"))
    return Section("Learning rates", parts)
