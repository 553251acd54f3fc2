"""A claim in all settings of its universe: in which share of them it holds, where it turns, and a drawing."""

import textwrap
from itertools import pairwise, product

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from pe_lab.replication.entry import Claimed
from pe_lab.replication.findings import PARTS, EntryVerdict, Finding, combine_agreements
from pe_lab.report.parts import CaptionedFigure, ReportTable, Section
from pe_lab.results.plots import Plot
from pe_lab.statistics import Agreement
from pe_lab.system.drawing import INK, STYLE

HOLDS, FAILS, OPEN = "holds", "is contradicted", "is undecided"
STATES = {
    EntryVerdict.REPRODUCED: HOLDS,
    EntryVerdict.NOT_REPRODUCED: FAILS,
    EntryVerdict.MIXED: FAILS,  # a part of it is contradicted
    EntryVerdict.UNDECIDED: OPEN,
}
AGREEMENT_MARKS = {
    Agreement.REPRODUCED: ("o", "#0072B2"),
    Agreement.NOT_REPRODUCED: ("X", "#D55E00"),
}  # others are hollow
UNDECIDED_STYLE = ("o", "#777777")


def part_rows(finding: Finding) -> pd.DataFrame:
    """Return a row per setting and part: its values, part, quantity, claimed, mean, low, high, agreement."""
    rows = []
    for label, comparison in finding.compared.items():
        test = finding.entry.values[label]
        assert isinstance(test, Claimed)
        measured = {"mean": float(comparison.difference), "low": float(comparison.low), "high": float(comparison.high)}
        part = label.partition(": ")[2]
        named = {"part": part, "quantity": quantity(test), "claimed": str(test)}
        rows.append({**test.setting, **named, **measured, "agreement": str(comparison.agreement)})
    return pd.DataFrame(rows)


def quantity(test: Claimed) -> str:
    """Return what the values of a test are, with their unit."""
    metric = str(test.value["metric"])
    name = "test loss" if metric == "loss" else metric.replace("_", " ")
    if test.ratio:
        return f"ratio of {name}"
    return f"{'difference in ' * bool(test.others)}{name}{', nats' * (metric == 'loss')}"


def setting_states(finding: Finding) -> pd.DataFrame:
    """Return a row per setting: its values, and whether the claim holds, is contradicted or is undecided there."""
    grouped = part_rows(finding).groupby(list(finding.entry.universe), sort=False)["agreement"]
    return grouped.agg(lambda agreements: STATES[combine_agreements(agreements)]).rename("state").reset_index()


def by_part(finding: Finding) -> pd.DataFrame:
    """Return a row per part: its words, what is claimed, and in how many settings it is in each state of PARTS."""
    data = part_rows(finding)
    counts = pd.crosstab(data["part"], data["agreement"].map(PARTS)).reindex(
        columns=list(dict.fromkeys(PARTS.values()))
    )
    rows = data[["part", "claimed"]].drop_duplicates("part")
    return rows.join(counts.fillna(0).astype(int), on="part").reset_index(drop=True)


def by_value(table: pd.DataFrame) -> pd.DataFrame:
    """Return in how many settings with each value of each key the claim holds, is contradicted or is undecided."""
    rows = []
    for key in table.columns.drop("state"):
        for value, state in table.groupby(key, sort=False)["state"]:
            counts = {name: int((state == name).sum()) for name in (HOLDS, FAILS, OPEN)}
            rows.append({"setting": f"{key}={value}", **counts})
    return pd.DataFrame(rows)


def turning_points(finding: Finding) -> list[str]:
    """Return where the claim turns: it holds at one value of a setting and is contradicted at the next, else equal."""
    grid = finding.entry.universe
    table, lines = setting_states(finding), []
    state = dict(zip(table[list(grid)].itertuples(index=False, name=None), table["state"], strict=True))
    for key, values in grid.items():
        fixed = {name: several for name, several in grid.items() if name != key}
        for choice in product(*fixed.values()):
            rest = dict(zip(fixed, choice, strict=True))
            for current, next_ in pairwise(values):
                both = [state[tuple({**rest, key: value}[name] for name in grid)] for value in (current, next_)]
                if set(both) == {HOLDS, FAILS}:
                    at = ", ".join(f"{name}={value}" for name, value in rest.items())
                    lines.append(f"{at}{': ' * bool(at)}{both[0]} at {key}={current}, {both[1]} at {key}={next_}")
    return lines


def summary_sentence(finding: Finding) -> str:
    """Return in which share of the settings the claim holds."""
    verdicts = setting_states(finding)["state"]
    counts = [f"{state} in {(verdicts == state).sum()}" for state in (HOLDS, FAILS, OPEN)]
    share = (verdicts == HOLDS).mean()
    return f"{', '.join(counts)} of {len(verdicts)} settings: it holds in {share:.0%}"


@mpl.rc_context(STYLE)
def draw_universe(finding: Finding) -> Plot:
    """Draw each part in all settings, sorted by the mean of the first, above the settings (a specification curve).

    Simonsohn, Simmons and Nelson 2020, doi:10.1038/s41562-020-0912-z, figure 2.
    """
    data, grid = part_rows(finding), finding.entry.universe
    panels = dict(list(data.groupby("part", sort=False)))
    order = next(iter(panels.values())).sort_values("mean", kind="stable")[list(grid)].apply(tuple, axis=1).tolist()
    marks = [(key, value) for key, values in grid.items() for value in values]
    heights = [2.0] * len(panels) + [0.22 * len(marks)]
    size = (max(6.5, 1.8 + 0.22 * len(order)), sum(heights) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    *tops, bottom = figure.subplots(len(heights), sharex=True, height_ratios=heights)
    for axes, (part, rows) in zip(tops, panels.items(), strict=True):
        rows = rows.assign(place=rows[list(grid)].apply(tuple, axis=1).map(order.index))
        axes.axhline(float(rows["claimed"].iloc[0].split()[-1]), color="#999999", linewidth=0.8)
        for agreement, several in rows.groupby("agreement"):
            marker, colour = AGREEMENT_MARKS.get(Agreement(agreement), UNDECIDED_STYLE)
            axes.vlines(several["place"], several["low"], several["high"], color=colour, linewidth=1)
            face = colour if Agreement(agreement) in AGREEMENT_MARKS else "none"
            label = PARTS[Agreement(agreement)]
            axes.scatter(several["place"], several["mean"], marker=marker, c=face, edgecolors=colour, s=22, label=label)
        title = textwrap.fill(f"{part.replace('`', '')}, claimed {rows['claimed'].iloc[0]}", round(10 * size[0]))
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel(rows["quantity"].iloc[0], fontsize=10)
        axes.tick_params(axis="y", labelsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    labelled = [axes.get_legend_handles_labels() for axes in tops]
    handles = {label: handle for pair in labelled for handle, label in zip(*pair, strict=True)}
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=3, fontsize=10, frameon=False)
    for line, (key, value) in enumerate(marks):
        places = [place for place, setting in enumerate(order) if setting[list(grid).index(key)] == value]
        bottom.scatter(places, [line] * len(places), marker="s", color=INK, s=12)
    bottom.set_yticks(range(len(marks)), [f"{key}={value}" for key, value in marks], fontsize=10)
    bottom.set_ylim(len(marks) - 0.5, -0.5)
    bottom.set_xticks([])
    bottom.spines[["top", "right", "bottom"]].set_visible(False)
    return Plot(figure, data)


def page_sections(finding: Finding) -> list[Section]:
    """Return the sections of a page about a claim in all settings of its universe."""
    where = [f"- {line}" for line in turning_points(finding)] or ["No two neighbours contradict each other."]
    rule = (
        f"{finding.seeds} seeds. Bars are 95 % intervals. Parts of all settings are one family, in which verdicts "
        "and intervals are corrected by Holm."
    )
    drawn = CaptionedFigure(draw_universe(finding), f"{finding.entry.says} In every setting, sorted by the mean", "")
    return [
        Section(
            "In which share of the settings it holds",
            [finding.entry.says, f"It {summary_sentence(finding)}.", rule, drawn],
        ),
        Section("By part", [ReportTable(by_part(finding), "Settings in which each part is shown or contradicted")]),
        Section("By setting", [ReportTable(by_value(setting_states(finding)), "Settings with each value")]),
        Section("Where it turns", list(where)),
    ]
