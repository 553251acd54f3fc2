"""The loss of encodings on longer text against the CPU time of their training step, as SVG."""

from collections.abc import Mapping

from markupsafe import Markup

from pe_lab.gallery.gallery_page import number
from pe_lab.gallery.length_figure import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, axis_ticks, spread_labels
from pe_lab.gallery.markers import SHAPES
from pe_lab.results.styles import style


def cost_figure(times: Mapping[str, float], losses: Mapping[str, tuple[float, float, float]]) -> Markup:
    """Return the figure of the encodings that have both; empty where fewer than two have.

    Args:
        times: of a training step, relative to `rope`.
        losses: in nats: the low end of the interval, the mean and the high end.
    """
    names = [pe for pe in losses if pe in times]
    if len(names) < 2:
        return Markup()
    left, right, across = axis_ticks(min(times[pe] for pe in names), max(times[pe] for pe in names))
    low, high, up = axis_ticks(min(losses[pe][0] for pe in names), max(losses[pe][2] for pe in names))

    def x(time: float) -> float:
        return LEFT + (time - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    line = Markup('<path d="{}" class="grid"/><text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    parts = [Markup('<text x="4" y="14" class="title">Test loss in nats</text>')]
    parts += [line.format(f"M{LEFT} {y(at):.1f}H{WIDTH - RIGHT}", LEFT - 5, y(at) + 4, "end", number(at)) for at in up]
    foot = HEIGHT - BOTTOM
    parts += [line.format(f"M{x(at):.1f} {TOP}V{foot}", x(at), foot + 17, "middle", number(at)) for at in across]
    axis = Markup('<text x="{}" y="{}" text-anchor="middle" class="faint">CPU time of a training step, × rope</text>')
    parts.append(axis.format((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 22))
    labels = spread_labels({pe: y(losses[pe][1]) for pe in names})
    point = Markup(
        '<g stroke="{0}" fill="{0}" data-point="{1}"><path d="M{2:.1f} {3:.1f}V{4:.1f}" class="bar"/>'
        '<path d="M{2:.1f} {5:.1f}L{6} {7:.1f}" class="leader"/>'
        '<path d="{8}" transform="translate({2:.1f} {5:.1f})" class="mark"/></g><text x="{9}" y="{10:.1f}">{1}</text>'
    )
    for pe in names:
        look, (bottom, middle, top) = style(pe), map(y, losses[pe])
        ends = (x(times[pe]), bottom, top, middle, WIDTH - RIGHT + 12, labels[pe])
        parts.append(point.format(look.colour, pe, *ends, SHAPES[look.marker], WIDTH - RIGHT + 16, labels[pe] + 4))
    svg = '<svg class="gallery-lengths" viewBox="0 0 {} {}" role="img" aria-label="Test loss against CPU time">{}</svg>'
    return Markup(svg).format(WIDTH, HEIGHT, Markup().join(parts))
