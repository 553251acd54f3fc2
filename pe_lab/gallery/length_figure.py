"""A figure of a task as SVG: what encodings get right, or their loss, against the length of the test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from markupsafe import Markup

from pe_lab.benchmark.task_results import TaskResults
from pe_lab.gallery.extrapolation import MIN_HELD, mean_right
from pe_lab.gallery.gallery_page import fixed
from pe_lab.gallery.markers import SHAPES
from pe_lab.gallery.need_recommendations import group_twins
from pe_lab.gallery.samples import load_data
from pe_lab.results.columns import cut_interval
from pe_lab.results.styles import style
from pe_lab.statistics import MIN_SEEDS, interval

BASELINES = ("rope", "none")  # always drawn, where they are measured
BEST_AT_LENGTH = 2  # encodings with the best means at a length that are drawn
MAX_DRAWN = 10  # beyond the best and BASELINES, encodings are drawn up to so many
MIN_CUT = 0.01  # of a share, or nats: an interval that is cut by more has an arrow
LINEAR = 0.05  # nats above the lowest loss up to which the axis of losses is about linear; beyond, it is logarithmic
WIDTH, HEIGHT = 400, 310
LEFT, RIGHT, TOP, BOTTOM = 44, 142, 26, 58  # margins; the labels of lines stand at the right
LINE = 15  # height of a label
DODGE = 3  # pixels between the markers of two encodings
DASHES = {"-": "", "--": "7 4", "-.": "7 3 2 3", ":": "2 3"}


@dataclass(frozen=True)
class Curve:
    """An encoding against the length of the test.

    Attributes:
        means, lows, highs: over seeds, with the 95 % interval of the mean, by length in training lengths.
        cut: the ends of intervals that are cut at what is possible: the length, and whether it is the high end.
    """

    means: dict[float, float]
    lows: dict[float, float]
    highs: dict[float, float]
    cut: list[tuple[float, bool]]


@dataclass(frozen=True)
class LengthFigure:
    """The figure of a task.

    Attributes:
        svg: empty where no encoding is measured at all lengths.
        drawn: its encodings.
        is_cut: whether an interval has an arrow, as it is cut at what is possible.
    """

    svg: Markup
    drawn: list[str]
    is_cut: bool


@cache
def curves_by_encoding(results: TaskResults) -> dict[str, Curve]:
    """Return what each encoding with enough seeds gets right at each length, or its loss; the best first.

    The best is that at the longest test; of those that are equal there, that at the next shorter one.
    """
    solvable = results.task.solvable
    column = "accuracy" if solvable else "loss"
    lengths = sorted(mean_right(results), reverse=True)
    curves = {}
    for pe in results.table.loc[results.table["runs"] >= MIN_SEEDS, "pe"]:
        seeds = results.rows[results.rows["pe"] == pe]
        values = {length: seeds[f"{column}_x{length:g}"].astype(float).dropna() for length in lengths}
        if not all(map(len, values.values())):
            continue
        ends = {length: interval(each) for length, each in values.items()}
        means = {length: float(each.mean()) for length, each in values.items()}
        low, high = (np.array([ends[length][side] for length in lengths]) for side in (0, 1))
        lows, highs = cut_interval("accuracy" if solvable else "loss", np.array([*means.values()]), low, high)
        cut = [
            (length, is_high)
            for is_high, side, shown in ((False, low, lows), (True, high, highs))
            for length, full, end in zip(lengths, side, shown, strict=True)
            if abs(full - end) > MIN_CUT
        ]
        lows_at, highs_at = (dict(zip(lengths, map(float, side), strict=True)) for side in (lows, highs))
        curves[str(pe)] = Curve(means, lows_at, highs_at, cut)
    sign = -1 if solvable else 1
    return dict(sorted(curves.items(), key=lambda item: [sign * item[1].means[length] for length in lengths]))


def drawn_encodings(results: TaskResults) -> list[str]:
    """Return the encodings of the figure, in the order of `curves_by_encoding`.

    These are the best at the training length, of the same runs one, the BEST_AT_LENGTH best means at each longer test
    and BASELINES. Up to MAX_DRAWN follow those that differ most from all of these, in colours that are free.
    """
    curves, sign = curves_by_encoding(results), -1 if results.task.solvable else 1
    lengths = next(iter(curves.values())).means if curves else {}
    names = [*(group[0] for group in group_twins(results, results.best) if results.beaten), *BASELINES]
    for length in lengths:
        if length > 1 or not results.beaten:
            names += sorted(curves, key=lambda pe: sign * curves[pe].means[length])[:BEST_AT_LENGTH]
    drawn = [pe for pe in curves if pe in names]
    while len(drawn) < MAX_DRAWN:
        colours = {style(pe).colour for pe in drawn}
        others = [pe for pe in curves if style(pe).colour not in colours]
        if not others:
            break
        drawn.append(max(others, key=lambda pe: min(_apart(curves[pe], curves[other]) for other in drawn)))
    return [pe for pe in curves if pe in drawn]


def _apart(curve: Curve, other: Curve) -> float:
    """Return the largest difference of two curves at a length."""
    return max(abs(mean - other.means[length]) for length, mean in curve.means.items())


def length_figure(results: TaskResults) -> LengthFigure:
    """Return the figure, which takes the colours of text from the page and fits a width of 360 pixels."""
    solvable, names = results.task.solvable, drawn_encodings(results)
    curves = {pe: curves_by_encoding(results)[pe] for pe in names}
    if not curves:
        return LengthFigure(Markup(), [], False)
    lengths = sorted(next(iter(curves.values())).means)
    scale, low, high, ticks = _axis(list(curves.values()), solvable)

    def x(length: float) -> float:
        octaves, last = (float(np.log2(each / lengths[0])) for each in (length, lengths[-1]))
        return LEFT + 14 + octaves / last * (WIDTH - LEFT - RIGHT - 28)

    def y(value: float) -> float:
        return TOP + (scale(high) - scale(value)) / (scale(high) - scale(low)) * (HEIGHT - TOP - BOTTOM)

    stretched = ", arcsinh scale from the lowest" * (scale is not float)
    title = "Answers right" if solvable else f"Test loss in nats{stretched}"
    parts = [Markup('<text x="4" y="14" class="title">{}</text>').format(title)]
    for tick in ticks:
        level = " level" * (solvable and tick == MIN_HELD)
        text = f"{100 * tick:.0f} %" if solvable else f"{tick:g}"
        parts.append(
            Markup(
                '<path d="M{} {:.1f}H{}" class="grid{}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, y(tick), WIDTH - RIGHT, level, LEFT - 5, y(tick) + 4, text)
        )
    tokens = load_data(results.task).lengths
    for length in lengths:
        parts.append(
            Markup(
                '<path d="M{0:.1f} {1}v4" class="axis"/><text x="{0:.1f}" y="{2}" text-anchor="middle">{3:g} ×</text>'
                '<text x="{0:.1f}" y="{4}" text-anchor="middle" class="faint">{5}</text>'
            ).format(x(length), HEIGHT - BOTTOM, HEIGHT - BOTTOM + 17, length, HEIGHT - BOTTOM + 31, tokens[length])
        )
    parts.append(
        Markup('<text x="{}" y="{}" text-anchor="middle" class="faint">length of the test, in tokens</text>').format(
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8
        )
    )
    labels = spread_labels({pe: y(curve.means[lengths[-1]]) for pe, curve in curves.items()})
    for place, (pe, curve) in enumerate(curves.items()):
        shift = DODGE * (place - (len(curves) - 1) / 2)
        points = [(x(length) + shift, y(curve.means[length])) for length in lengths]
        bars = "".join(
            f"M{x(length) + shift:.1f} {y(curve.lows[length]):.1f}V{y(curve.highs[length]):.1f}" for length in lengths
        )
        for length, is_high in curve.cut:
            end, back = y((curve.highs if is_high else curve.lows)[length]), 5 if is_high else -5
            bars += f"M{x(length) + shift - 3:.1f} {end + back:.1f}l3 {-back}l3 {back}"
        path = "L".join(f"{across:.1f} {down:.1f}" for across, down in points)
        look, (across, down) = style(pe), points[-1]
        shapes = Markup().join(
            Markup('<path d="{}" transform="translate({:.1f} {:.1f})" class="mark"/>').format(SHAPES[look.marker], *at)
            for at in (*points, (WIDTH - RIGHT + 18, labels[pe]))
        )
        parts.append(
            Markup(
                '<g stroke="{}" fill="{}" data-curve="{}"><path d="M{}" class="line" stroke-dasharray="{}"/>'
                '<path d="{}" class="bar"/><path d="M{:.1f} {:.1f}L{} {:.1f}" class="leader"/>{}</g>'
                '<text x="{}" y="{:.1f}">{}</text>'
            ).format(
                *(look.colour, look.colour, pe, path, DASHES[look.dash], bars),
                *(across + 5, down, WIDTH - RIGHT + 11, labels[pe], shapes),
                *(WIDTH - RIGHT + 26, labels[pe] + 4, pe),
            )
        )
    svg = '<svg class="gallery-lengths" viewBox="0 0 {} {}" role="img" aria-label="{} against test length">{}</svg>'
    drawing = Markup(svg).format(WIDTH, HEIGHT, title, Markup().join(parts))
    return LengthFigure(drawing, names, any(curve.cut for curve in curves.values()))


def _axis(curves: list[Curve], shares: bool) -> tuple[Callable[[float], float], float, float, list[float]]:
    """Return the vertical axis: its scale, both of its ends and its ticks.

    That of losses of a wide range is stretched near the lowest one, where the best could not be told apart otherwise.
    """
    if shares:
        return float, 0.0, 1.0, [0, 0.25, 0.5, 0.75, MIN_HELD, 1]
    ends = [value for curve in curves for side in (curve.lows, curve.highs) for value in side.values()]
    lowest = min(value for curve in curves for value in curve.means.values())
    low, high, ticks = axis_ticks(min(ends), max(ends))
    if high - lowest < 10 * LINEAR:
        return float, low, high, ticks
    first = np.ceil(lowest / LINEAR / 2) * LINEAR * 2
    near = [float(fixed(first + 2 * LINEAR * place, 2)) for place in range(3)]

    def scale(value: float) -> float:
        return float(np.arcsinh((value - lowest) / LINEAR))

    apart = (scale(high) - scale(min(ends))) * LINE / (HEIGHT - TOP - BOTTOM)
    for tick in ticks:
        near += [tick] if tick > near[-1] and scale(tick) - scale(near[-1]) >= apart else []
    return scale, min(ends), high, near


def axis_ticks(low: float, high: float) -> tuple[float, float, list[float]]:
    """Return the ends of an axis around two values, which are ticks, and all of its ticks: three to seven."""
    power = 10.0 ** np.floor(np.log10((high - low) / 3))
    step = next(factor * power for factor in (1, 2, 5, 10) if (high - low) / (factor * power) <= 5)
    first, last = np.floor(low / step), np.ceil(high / step)
    ticks = [float(fixed(place * step, 6).replace("−", "-")) for place in np.arange(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def spread_labels(places: dict[str, float]) -> dict[str, float]:
    """Return places of labels, in the order of those asked for, that are at least LINE apart and within the figure."""
    names = sorted(places, key=lambda name: places[name])
    spread: list[float] = []
    for number, name in enumerate(names):
        lowest = HEIGHT - BOTTOM - LINE * (len(names) - 1 - number)  # leaves room for those below
        above = spread[-1] + LINE if spread else -np.inf
        spread.append(max(min(places[name], lowest), above))
    return dict(zip(names, spread, strict=True))
