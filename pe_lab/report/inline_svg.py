"""A figure as inline SVG: small, and with panels that stand below each other on a narrow screen."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from pe_lab.system.drawing import svg

MIN_SCALE = 0.82  # of a figure on a narrow screen: texts of 8 pt stay above 8 pixels; wider figures scroll
DPI = 72  # of an SVG of matplotlib
PIXELS = 96 / DPI  # CSS pixels of a point
LEGEND_GAP = 6.0  # points around a column of a legend that belong to it
MARKS = re.compile(r'<use x=(\S+) y=(\S+) href="#(\w+)"')
MARKED = re.compile(  # a line, and marks of one shape on it
    r'<path d="M([^"A-Z]*(?:L[^"A-Z]*)+)" (?P<clip>clip-path="[^"]*")(?P<line>[^>]*)/>'
    r"(?P<shape><defs>(?:(?!</defs>).)*</defs>)?"
    r"<g (?P=clip)><g (?P<look>[^>]*)>(?P<marks>(?:<use [^>]*>)+)</g></g>"
)
UNJOINED = re.compile(r"<g (?P<clip>clip-path=\"[^\"]*\")><g (?P<look>[^>]*)>(?P<marks>(?:<use [^>]*>){3,})</g></g>")
HALF_NUMBER = 4.0  # points: half the height of a number at the y axis, by which the lowest one is below the panel
FRAME = 0.8  # points: the width of the line around a panel, which its names do not take along
OFTEN = 3  # uses of a style that make it a class


@dataclass(frozen=True)
class Region:
    """A part of a figure, in points from its top left corner.

    Attributes:
        x, y, width, height: the place and the size of the part.
        scale: the width of the names at the axis of the first panel in the row, for a panel without them; otherwise 0.
        cut: the height below that axis, where the numbers of its x axis are, which are not taken along.
        below: whether the part begins a row of its own on any screen.
    """

    x: float
    y: float
    width: float
    height: float
    scale: float = 0.0
    cut: float = 0.0
    below: bool = False

    @property
    def box(self) -> str:
        """The part as a viewBox."""
        return " ".join(f"{value:.1f}" for value in (self.x, self.y, self.width, self.height))


def inline_svg(figure: Figure, caption: str) -> Markup:
    """Return a figure as HTML, with its caption as a label for screen readers; equal figures give equal bytes.

    A figure with several columns of panels is cut into `regions`, which wrap. Any other is one SVG.
    """
    figure.dpi = DPI  # at which it is drawn as SVG, so that places that are kept in pixels are in points
    drawn = svg(figure, caption, alone=False)
    drawn = compact(drawn[drawn.index("<svg") :])
    parts, label = regions(figure), Markup('role="img" aria-label="{}"').format(caption)
    if not parts:
        least = MIN_SCALE * figure.get_size_inches()[0] * DPI * PIXELS
        return Markup(drawn.replace("<svg", f'<svg {label} style="min-width: {least:.0f}px"', 1))
    name = f"f{crc32(drawn.encode()):x}"
    content = f'<g id="{name}">{drawn[drawn.index(">") + 1 : drawn.rindex("</svg>")]}</g>'
    cut = []
    for region in parts:
        scale = Region(0, region.y, region.scale, region.height)
        again = f'<use href="#{name}"/>'
        hidden = f"; clip-path: inset(0 0 {100 * region.cut / region.height:.1f}% 0)"
        beside = _part(scale, again, ' class="scale"', hidden) if region.scale else ""
        wide, narrow = PIXELS * region.width, PIXELS * (region.width + region.scale)
        sizes = f"--wide: {int(wide)}px; --narrow: {narrow:.0f}px"  # rounded down, so that a row of panels fits
        cut += ['<div style="--wide: 100%; --narrow: 100%"></div>'] * region.below
        cut.append(f'<div style="{sizes}">{beside}{_part(region, content if region is parts[0] else again)}</div>')
    whole = PIXELS * DPI * figure.get_size_inches()[0]
    return Markup(f'<div class="panels" {label} style="--whole: {whole:.0f}px">{"".join(cut)}</div>')


def _part(region: Region, content: str, more: str = "", look: str = "") -> str:
    grow = f"flex: {region.width:.1f} {region.width:.1f} 0{look}"
    return f'<svg viewBox="{region.box}" style="{grow}"{more}>{content}</svg>'


def compact(drawn: str) -> str:
    """Return an SVG of matplotlib as HTML in about a third of its bytes: the same picture, to 0.05 pt.

    Marks of a line that have one style take it from a group, and a style that stands often is a class. Ids that nothing
    refers to are dropped; others are made unique, as a page has several figures.
    """
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    drawn = re.sub(r"\n\s*", "\n", drawn)
    drawn = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"\s*([A-Za-z])\s*", r"\1", path[0]).strip(), drawn)
    drawn = re.sub(r'"[^"<>]*"', lambda quoted: re.sub(r"-?\d*\.\d+", _round_coordinate, quoted[0]), drawn)
    drawn = re.sub(r"font-family: [^;\"]*sans-serif", "font-family: sans-serif", drawn)
    drawn = re.sub(r' transform="rotate\(-?0 [^"]*"', "", drawn)
    drawn = re.sub(r'(?:<use [^>]* (style="[^"]*")/>\n)(?:<use [^>]* \1/>\n)+', _group_marks, drawn)
    drawn = re.sub(r'<use (href="[^"]*") x="([^"]*)" y="([^"]*)"', r"<use x=\2 y=\3 \1", drawn)
    drawn = _with_short_ids(drawn)
    drawn = _without_bare_groups(re.sub(r"(?<=>)\n(?=<)", "", drawn).replace("<g/>", ""))
    styles = Counter(re.findall(r' style="([^"]*)"', drawn))
    classes = {style: f"c{crc32(style.encode()):x}" for style, count in styles.items() if count >= OFTEN}
    for style, name in classes.items():
        drawn = drawn.replace(f' style="{style}"', f' class="{name}"')
    rules = "".join(f".{name}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, name in classes.items())
    drawn = re.sub(MARKED, _line_with_markers, drawn)
    drawn = re.sub(UNJOINED, _markers_only, drawn)
    drawn = re.sub(r'(?<= d=")M(-?[\d.]+ -?[\d.]+)L([-\d. L]+)(?=z?")', _relative, drawn)
    return drawn.replace("</style>", f"{rules}</style>", 1)


def _round_coordinate(number: re.Match[str]) -> str:
    """Return a number with a decimal place, or two where it is below 10."""
    value = float(number[0])
    return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")


def _with_short_ids(drawn: str) -> str:
    """Return an SVG with the ids that something refers to, which are unique on a page."""
    referred = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', drawn))
    mark = f"{crc32(drawn.encode()):08x}"
    short = {name: f"{mark}{number}" for number, name in enumerate(referred)}
    drawn = re.sub(r' id="([^"]*)"', lambda name: f' id="{short[name[1]]}"' if name[1] in short else "", drawn)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda name: name[1] + short[name[2]], drawn)


def _without_bare_groups(drawn: str) -> str:
    """Return an SVG without groups that have no attribute."""
    parts, bare = [], []
    for part in re.split(r"(</?g\b[^>]*>)", drawn):
        if part.startswith("<g"):
            bare.append(part == "<g>")
        if not (part == "<g>" or (part == "</g>" and bare.pop())):
            parts.append(part)
    return "".join(parts)


def _group_marks(uses: re.Match[str]) -> str:
    """Return several <use> of one style as a group that has it."""
    return f"<g {uses[1]}>{uses[0].replace(' ' + uses[1], '')}</g>\n"


def _line_with_markers(match: re.Match[str]) -> str:
    """Return a line whose marks stand at its points as one path with an SVG marker."""
    points = [point.split() for point in match[1].split("L")]
    marks = MARKS.findall(match["marks"])
    if [[x, y] for x, y, _ in marks] != points:
        return match[0]
    return (match["shape"] or "") + _with_markers(match, match[1], marks[0][2], match["line"])


def _markers_only(match: re.Match[str]) -> str:
    """Return marks without a line as the SVG markers of a path that is not drawn."""
    marks = MARKS.findall(match["marks"])
    if len({shape for _, _, shape in marks}) > 1:
        return match[0]
    return _with_markers(match, "L".join(f"{x} {y}" for x, y, _ in marks), marks[0][2], ' fill="none"')


def _with_markers(match: re.Match[str], points: str, shape: str, line: str) -> str:
    """Return a path through points with a marker at each, in the look of the marks that were matched."""
    name = f"m{crc32(match[0].encode()):08x}"
    marker = f'<marker id="{name}" markerUnits="userSpaceOnUse" overflow="visible" {match["look"]}>'
    ends = " ".join(f'marker-{place}="url(#{name})"' for place in ("start", "mid", "end"))
    defined = f'<defs>{marker}<use href="#{shape}"/></marker></defs>'
    return f'{defined}<path d="M{points}" {match["clip"]}{line} {ends}/>'


def _relative(match: re.Match[str]) -> str:
    """Return straight lines through points as steps, which are shorter; tenths of a point add up without an error."""
    points = [[float(number) for number in point.split()] for point in f"{match[1]}L{match[2]}".split("L")]
    steps = [[round(after[axis] - before[axis], 2) for axis in (0, 1)] for before, after in pairwise(points)]
    return f"M{match[1]}l" + "".join(f"{x:g}{' ' * (y >= 0)}{y:g} " for x, y in steps).strip().replace(" -", "-")


def regions(figure: Figure) -> list[Region]:
    """Return a figure that was drawn as parts that can stand below each other: its panels, then its legend in columns.

    Empty where it has one column of panels, or is no grid of panels with a legend below or at the right.
    """
    panels = [axes for axes in figure.axes if axes.get_visible() and axes.get_subplotspec() is not None]
    legends = figure.legends
    if figure.texts or len(legends) > 1 or len(panels) < sum(axes.get_visible() for axes in figure.axes):
        return []
    spots = {(_span(axes)): axes for axes in panels}
    rows, columns = ([key[place] for key in spots] for place in (0, 1))
    if len(spots) < len(panels) or max(columns, default=0) == 0:
        return []
    width, height = (float(inches) * DPI for inches in figure.get_size_inches())
    boxes = {spot: _box(figure, axes) for spot, axes in spots.items()}
    legend = _box(figure, legends[0]) if legends else (0.0, height, width, height)
    most_right = max(box[2] for box in boxes.values())
    beside = (legend[0] + legend[2]) / 2 > most_right
    if beside and max(rows) > 0:
        return []
    right, bottom = (most_right + LEGEND_GAP / 2, height) if beside else (width, legend[1])
    xs = _cuts(columns, {spot: (box[0], box[2]) for spot, box in boxes.items()}, 1, right)
    ys = _cuts(rows, {spot: (box[1], box[3]) for spot, box in boxes.items()}, 0, bottom)
    parts = []
    for (row, column), axes in sorted(spots.items(), key=lambda item: item[0]):
        named = axes.yaxis.get_tick_params()["labelleft"]
        left = cut = 0.0
        if not named and (row, 0) in spots:
            patch = _box(figure, spots[row, 0].patch)
            left, cut = patch[0] - FRAME, max(0.0, ys[row + 1] - patch[3] - HALF_NUMBER)
        parts.append(Region(xs[column], ys[row], xs[column + 1] - xs[column], ys[row + 1] - ys[row], left, cut))
    if beside:
        parts.append(Region(right, legend[1] - LEGEND_GAP, width - right, legend[3] - legend[1] + 2 * LEGEND_GAP))
    elif legends:
        ends, top = _legend_cuts(figure, legends[0]), ys[-1]
        parts += [
            Region(low, top, high - low, height - top, below=not number)
            for number, (low, high) in enumerate(pairwise(ends))
        ]
    return parts


def _span(axes: Axes) -> tuple[int, int]:
    spec = axes.get_subplotspec()
    assert spec is not None
    return spec.rowspan.start, spec.colspan.start


def _box(figure: Figure, artist: Artist) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of an artist with its texts, in points from the top left of the figure."""
    box = artist.get_tightbbox() if isinstance(artist, Axes) else artist.get_window_extent()
    assert box is not None  # all of them are visible
    height = float(figure.get_size_inches()[1]) * DPI
    return float(box.x0), float(height - box.y1), float(box.x1), float(height - box.y0)


def _cuts(numbers: list[int], ends: dict[tuple[int, int], tuple[float, float]], place: int, last: float) -> list[float]:
    """Return where rows or columns begin, and the end: halfway between what is drawn in two of them."""
    cuts = [0.0]
    for number in range(1, max(numbers) + 1):
        before = max(high for spot, (_, high) in ends.items() if spot[place] == number - 1)
        after = min(low for spot, (low, _) in ends.items() if spot[place] == number)
        cuts.append((before + after) / 2)
    return [*cuts, last]


def _legend_cuts(figure: Figure, legend: Legend) -> list[float]:
    """Return where the columns of a legend begin, and the end of the last one."""
    texts = [_box(figure, text) for text in legend.get_texts()]
    starts = sorted({round(box[0], 1) for box in texts})
    ends = [max(box[2] for box in texts if round(box[0], 1) == start) + LEGEND_GAP for start in starts]
    return [max(0.0, _box(figure, legend)[0] - LEGEND_GAP), *ends]
