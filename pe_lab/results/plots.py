"""Figures of results, each with the numbers it draws. Colours that everyone can tell apart, and never colour alone."""

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from pe_lab.results.statistics import in_order, interval, lower_is_better
from pe_lab.results.table import floors, place

# Okabe and Ito's colours, with a line style and a marker each
STYLES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#E69F00", "-", "v"),
    ("#56B4E9", "--", "P"),
    ("#000000", "-.", "X"),
    ("#8A7A00", ":", "*"),
)
GREY = "#B5B5B5"
ACROSS = 3  # panels side by side
AS_WRITTEN = {"text.parse_math": False}  # a name with dollars in it is no formula


@dataclass(frozen=True)
class Plot:
    """A figure, and as a table what it shows."""

    figure: Figure
    data: pd.DataFrame


@mpl.rc_context(AS_WRITTEN)
def heatmap(rows: pd.DataFrame, metric: str = "loss") -> Plot:
    """A row per encoding, a column per setting, the mean of the test metric in each; floors as the last rows."""
    rows = in_order(rows, place(rows))
    data = _means(rows.assign(value=rows[f"test_{metric}"]))
    floor_rows = {}
    for floor in floors(rows, metric):
        levels = rows.assign(value=rows[f"floor_{floor}_{metric}"], pe=floor.replace("_", "-"))
        floor_rows[floor.replace("_", "-")] = _means(levels).set_index("setting")["mean"]
    wide = data.pivot(index="pe", columns="setting", values="mean")
    wide = wide.loc[rows["pe"].unique(), data["setting"].unique()]
    sign = 1 if lower_is_better(metric) else -1
    wide = wide.loc[(sign * wide).rank().mean(axis=1).sort_values(kind="stable").index]
    shown = pd.concat([wide, pd.DataFrame(floor_rows).T.reindex(columns=wide.columns)]) if floor_rows else wide
    figure = Figure(figsize=(max(6.5, 2.6 + 0.85 * len(shown.columns)), 1.6 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    # each column on a scale of its own: a loss after one epoch says nothing of one after sixteen
    low, high = wide.min(), wide.max()
    scaled = ((shown - low) / (high - low).replace(0, 1)).clip(0, 1)
    scaled.iloc[len(wide) :] = np.nan
    colours = colormaps["cividis_r" if sign > 0 else "cividis"]
    axes.imshow(scaled.to_numpy(float), cmap=colours, vmin=0, vmax=1, aspect="auto")
    for (line, column), value in np.ndenumerate(shown.to_numpy(float)):
        level = scaled.to_numpy(float)[line, column]
        dark = np.isfinite(level) and np.mean(colours(level)[:3]) < 0.5
        text = "" if np.isnan(value) else _short(value)
        axes.text(column, line, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(shown.columns)), [_wrapped(name) for name in shown.columns], fontsize=8)
    axes.set_yticks(range(len(shown)), shown.index, fontsize=8)
    axes.axhline(len(wide) - 0.5, color="black", linewidth=1)
    axes.xaxis.tick_top()
    axes.set_title(f"test {metric}, mean over seeds; shades: within a column, brighter is better", fontsize=9)
    floor_lines = [
        {"setting": setting, "pe": floor, "mean": value, "low": np.nan, "high": np.nan}
        for floor, of in floor_rows.items()
        for setting, value in of.dropna().items()
    ]
    return Plot(figure, pd.concat([data, pd.DataFrame(floor_lines)], ignore_index=True) if floor_lines else data)


@mpl.rc_context(AS_WRITTEN)
def learning_curves(curves: pd.DataFrame, metric: str = "loss", highlight: list[str] | None = None) -> Plot:
    """Validation over epochs, a panel per setting; mean over seeds, with its t interval where few lines are drawn.

    Args:
        highlight: encodings with a colour; None: those that end best. The others are grey.
    """
    curves = curves[curves["metric"] == metric]
    names = [name for name in curves.columns[: list(curves.columns).index("epoch")] if name not in ("pe", "seed")]
    names.remove("epochs")
    data = _means(in_order(curves, names), ["epoch"], names)
    if highlight is None:
        last = data.sort_values("epoch", kind="stable").drop_duplicates(["setting", "pe"], keep="last")
        order = (last["mean"] if lower_is_better(metric) else -last["mean"]).groupby(last["setting"]).rank()
        highlight = list(order.groupby(last["pe"]).mean().sort_values(kind="stable").index[: len(STYLES)])
    figure, panels = _panels(data["setting"].unique(), 2.9)
    for setting, axes in panels.items():
        _lines(axes, data[data["setting"] == setting], "epoch", highlight)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="epoch", ylabel=f"validation {metric}", title=setting)
    _legend(figure, panels, highlight)
    return Plot(figure, data)


@mpl.rc_context(AS_WRITTEN)
def forest(compared: pd.DataFrame, metric: str = "loss") -> Plot:
    """Paired differences from the baseline with their t intervals, a panel per setting.

    Filled marks stand after Holm's correction, hollow ones do not.

    Args:
        compared: from statistics.compare.
    """
    where = list(compared.columns[: list(compared.columns).index("pe")])
    data = in_order(compared, where)
    data = data.assign(setting=_settings(data, where))
    baseline = compared["baseline"].iloc[0]
    names = list(dict.fromkeys(data["pe"]))
    height = 1.1 + 0.22 * len(names)
    figure, panels = _panels(data["setting"].unique(), height, share_y=True)
    for setting, axes in panels.items():
        of = data[data["setting"] == setting]
        axes.axvline(0, color="black", linewidth=0.8)
        for line in of.itertuples():
            if pd.isna(line.difference):
                continue
            y, stands = names.index(line.pe), line.verdict in ("better", "worse")
            colour = {"better": STYLES[0][0], "worse": STYLES[1][0]}.get(line.verdict, "#555555")
            marker = {"better": "<", "worse": ">"}.get(line.verdict, "o")
            if pd.notna(line.low):
                axes.plot([line.low, line.high], [y, y], color=colour, linewidth=1.5)
            axes.plot(line.difference, y, marker, color=colour, markerfacecolor=colour if stands else "white", ms=5)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title(setting, fontsize=9)
        axes.set_xlabel(f"{metric} minus that of {baseline}", fontsize=8)
    columns = ["setting", "pe", "seeds", "difference", "low", "high", "p_holm", "verdict"]
    return Plot(figure, data[columns].reset_index(drop=True))


@mpl.rc_context(AS_WRITTEN)
def length_curves(records: pd.DataFrame, metric: str = "loss", highlight: list[str] | None = None) -> Plot:
    """The metric against length, in training lengths, a panel per setting, policy and offset."""
    of = records[(records["kind"] == "length") & (records["metric"] == metric)]
    names = [name for name in of.columns[: list(of.columns).index("kind")] if name not in ("pe", "seed")]
    names += ["policy", "offset"]
    data = _means(in_order(of, names), ["length"], names)
    highlight = highlight or _most_different(data, "length")
    figure, panels = _panels(data["setting"].unique(), 2.9)
    for setting, axes in panels.items():
        _lines(axes, data[data["setting"] == setting], "length", highlight)
        axes.set(xlabel="length / training length", ylabel=f"test {metric}", title=setting)
        if not lower_is_better(metric):
            axes.set_ylim(-0.03, 1.03)
    _legend(figure, panels, highlight)
    return Plot(figure, data)


@mpl.rc_context(AS_WRITTEN)
def layer_curves(records: pd.DataFrame, probe: str, metric: str, highlight: list[str] | None = None) -> Plot:
    """What a probe finds in each layer, a panel per setting; heads are averaged."""
    of = records[(records["probe"] == probe) & (records["metric"] == metric) & records["layer"].notna()]
    names = [name for name in of.columns[: list(of.columns).index("kind")] if name not in ("pe", "seed")]
    names.append("length")
    heads = of.groupby([*names, "pe", "seed", "layer"], sort=False, dropna=False)["value"].mean().reset_index()
    data = _means(in_order(heads, names), ["layer"], names)
    highlight = highlight or _most_different(data, "layer")
    figure, panels = _panels(data["setting"].unique(), 2.9)
    for setting, axes in panels.items():
        _lines(axes, data[data["setting"] == setting], "layer", highlight)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="layer (0: embedding)", ylabel=metric.replace("_", " "), title=setting)
    _legend(figure, panels, highlight)
    return Plot(figure, data)


@mpl.rc_context(AS_WRITTEN)
def cost(rows: pd.DataFrame, metric: str = "loss", against: str = "seconds") -> Plot:
    """What an encoding reaches against what it costs, a panel per setting, a point per encoding, named if room is left.

    Args:
        against: seconds (in training steps), positional_parameters or flops_per_token.
    """
    rows = in_order(rows, place(rows))
    paid = rows.assign(setting=_settings(rows, place(rows)))
    value = _means(rows.assign(value=rows[f"test_{metric}"])).drop(columns=["low", "high"])
    price = paid.groupby(["setting", "pe"], sort=False)[against].median().reset_index()
    data = value.merge(price, on=["setting", "pe"]).rename(columns={"mean": metric})
    figure, panels = _panels(data["setting"].unique(), 3.2)
    for setting, axes in panels.items():
        of = data[data["setting"] == setting]
        axes.plot(of[against], of[metric], "o", color=STYLES[0][0], ms=4)
        axes.margins(0.1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_title(setting, fontsize=9)
        axes.set(xlabel=against.replace("_", " "), ylabel=f"test {metric}")
        axes.tick_params(labelsize=8)
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")  # panels stay where they are, and names are placed in them
    best = data.sort_values(metric, ascending=lower_is_better(metric), kind="stable")
    for setting, axes in panels.items():
        of = best[best["setting"] == setting]
        _name(axes, dict(zip(of["pe"], of[[against, metric]].to_numpy().tolist(), strict=True)))
    return Plot(figure, data)


@mpl.rc_context(AS_WRITTEN)
def shares(effects: pd.DataFrame) -> Plot:
    """How much of what varies is due to what, from statistics.effects; on a logarithmic scale."""
    figure = Figure(figsize=(7, 1 + 0.35 * len(effects)), layout="constrained")
    axes = figure.subplots()
    y = np.arange(len(effects))
    spread = np.stack([effects["share"] - effects["low"].clip(lower=0), effects["high"] - effects["share"]])
    axes.barh(
        y, effects["share"], color=STYLES[0][0], xerr=np.nan_to_num(spread).clip(min=0), ecolor="black", capsize=3
    )
    axes.set_yticks(y, effects["effect"], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set_xlabel("share of the sum of squares within a seed's grid")
    return Plot(figure, effects)


def _settings(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Of each row, its setting in words: the columns that vary, or all if none does."""
    varied = [name for name in names if rows[name].nunique(dropna=False) > 1]
    shown = varied or [name for name in names if name in ("depth", "epochs")]
    told = rows[shown].to_dict("records")
    return [", ".join(_word(name, value) for name, value in one.items()) or "all settings" for one in told]


def _word(name: str, value: Any) -> str:
    number = f"{value:g}" if isinstance(value, (int, float, np.number)) else str(value)
    return number if name in ("data", "policy") else f"{name.rpartition('.')[2]} {number}"


def _means(rows: pd.DataFrame, along: list[str] | None = None, names: list[str] | None = None) -> pd.DataFrame:
    """The mean of `value` over seeds with its t interval: by setting, encoding and what it is drawn along."""
    names, along = place(rows) if names is None else names, along or []
    rows = rows.assign(setting=_settings(rows, names))
    lines = []
    for key, of in rows.groupby(["setting", "pe", *along], sort=False)["value"]:
        finite = np.isfinite(of).all()  # what is not finite is not averaged away
        lines.append([*key, len(of), *((of.mean(), *interval(of)) if finite else (np.nan, np.nan, np.nan))])
    return pd.DataFrame(lines, columns=["setting", "pe", *along, "seeds", "mean", "low", "high"])


def _most_different(data: pd.DataFrame, along: str) -> list[str]:
    """The encodings that get a colour where not all can: those whose curves lie farthest from the mean curve.

    By how the distances rank within a setting: a nat of one task is not a nat of another.
    """
    middle = data.groupby(["setting", along])["mean"].transform("mean")
    apart = (data["mean"] - middle).abs().groupby([data["setting"], data["pe"]], sort=False).mean()
    far = apart.groupby(level="setting", sort=False).rank().groupby(level="pe", sort=False).mean()
    chosen = set(far.sort_values(ascending=False, kind="stable").index[: len(STYLES)])
    return [name for name in data["pe"].unique() if name in chosen]


def _panels(settings: Any, height: float, share_y: bool = False) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a panel per setting."""
    across = min(ACROSS, len(settings))
    down = -(-len(settings) // across)
    figure = Figure(figsize=(0.8 + 3.6 * across, 0.6 + height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=share_y).flat
    panels = dict(zip(settings, grid, strict=False))
    for axes in list(figure.axes)[len(settings) :]:
        axes.set_visible(False)
    return figure, panels


def _lines(axes: Axes, data: pd.DataFrame, along: str, highlight: list[str]) -> None:
    """A line per encoding, those with a colour on top."""
    for name, of in sorted(data.groupby("pe", sort=False), key=lambda pair: pair[0] in highlight):
        of = of.sort_values(along)
        if name not in highlight:
            axes.plot(of[along], of["mean"], color=GREY, linewidth=0.8)
            continue
        colour, style, marker = STYLES[highlight.index(name) % len(STYLES)]
        axes.plot(of[along], of["mean"], style, color=colour, marker=marker, ms=4, linewidth=1.4, label=name)
        if data["pe"].nunique() <= len(STYLES):
            axes.fill_between(of[along], of["low"], of["high"], color=colour, alpha=0.12, linewidth=0)
    axes.title.set_fontsize(9)
    axes.tick_params(labelsize=8)


def _name(axes: Axes, points: dict[str, list[float]]) -> None:
    """Write names beside points, the first ones first; one that would lie on another name is left out."""
    taken: list[Bbox] = []
    for name, point in points.items():
        for right, above in ((True, True), (True, False), (False, True), (False, False)):
            text = axes.annotate(
                name,
                point,
                xytext=(4 if right else -4, 2 if above else -2),
                textcoords="offset points",
                ha="left" if right else "right",
                va="bottom" if above else "top",
                fontsize=7,
                in_layout=False,
            )
            box = text.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _legend(figure: Figure, panels: dict[str, Axes], highlight: list[str]) -> None:
    handles = {}
    for axes in panels.values():
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    known = [name for name in highlight if name in handles]
    figure.legend([handles[name] for name in known], known, loc="outside lower center", ncols=4, fontsize=8)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.3f}"


def _wrapped(setting: str) -> str:
    return setting.replace(", ", "\n")
