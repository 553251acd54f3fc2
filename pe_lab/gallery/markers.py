"""The colour and the marker of each encoding as SVG, alone or in its interval: those of `pe_lab.results.styles`."""

from functools import cache

from markupsafe import Markup

from pe_lab.results.styles import style

# paths of markers around 0, 0 with a radius of about 4, by the names that matplotlib has
SHAPES = {
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "s": "M-3.5 -3.5h7v7h-7z",
    "^": "M0 -4.4L4.2 3.4H-4.2z",
    "v": "M0 4.4L4.2 -3.4H-4.2z",
    "<": "M-4.4 0L3.4 -4.2V4.2z",
    ">": "M4.4 0L-3.4 -4.2V4.2z",
    "d": "M0 -4.8L2.9 0L0 4.8L-2.9 0z",
    "h": "M0 -4.4L3.8 -2.2V2.2L0 4.4L-3.8 2.2V-2.2z",
    "D": "M0 -4.6L4.6 0L0 4.6L-4.6 0z",
    "P": "M-1.5 -4.4h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9v-3h2.9z",
    "X": "M-4.2 -2.2L-2.2 -4.2L0 -2L2.2 -4.2L4.2 -2.2L2 0L4.2 2.2L2.2 4.2L0 2L-2.2 4.2L-4.2 2.2L-2 0z",
    "*": "M0 -4.8L1.3 -1.6L4.7 -1.5L2 0.6L2.9 3.9L0 2L-2.9 3.9L-2 0.6L-4.7 -1.5L-1.3 -1.6z",
    "p": "M0 -4.5L4.3 -1.4L2.6 3.7H-2.6L-4.3 -1.4z",
}
STRIP = 150  # width of the axis of an interval, in pixels
TICKS = f"M0 -4V4M{STRIP} -4V4"  # at its ends


@cache
def mark(name: str) -> Markup:
    """Return the mark of an encoding for a line of text."""
    look = style(name)
    svg = '<svg class="gallery-mark" viewBox="-6 -6 12 12" width="12" height="12" aria-hidden="true">{}</svg>'
    return Markup(svg).format(Markup('<path d="{}" fill="{}"/>').format(SHAPES[look.marker], look.colour))


def interval_strip(name: str, low: float, middle: float, high: float) -> Markup:
    """Return an interval with the mark of its encoding.

    Args:
        low, middle, high: places on the axis, from 0 at the left to 1 at the right.
    """
    look = style(name)
    ends = [STRIP * x for x in (low, middle, high)]
    svg = (
        '<svg class="gallery-strip" viewBox="-6 -6 {} 12" width="{}" height="12" aria-hidden="true">'
        '<path d="M0 0H{}{}" class="grid"/><path d="M{:.1f} 0H{:.1f}" stroke="{}" stroke-width="2"/>'
        '<path d="{}" fill="{}" transform="translate({:.1f})"/></svg>'
    )
    sizes = (STRIP + 12, STRIP + 12, STRIP, TICKS)
    return Markup(svg).format(*sizes, ends[0], ends[2], look.colour, SHAPES[look.marker], look.colour, ends[1])


def beyond(name: str, value: str) -> Markup:
    """Return an arrow at the right end of the axis of intervals, with the mean of an encoding that lies beyond it."""
    look = style(name)
    svg = (
        '<svg class="gallery-strip" viewBox="-6 -6 {} 12" width="{}" height="12" role="img" aria-label="beyond: {}">'
        '<path d="M0 0H{}{}" class="grid"/><path d="M{} -4L{} 0L{} 4z" fill="{}"/>'
        '<text x="{}" y="4" text-anchor="end">{}</text></svg>'
    )
    sizes = (STRIP + 12, STRIP + 12, value, STRIP, TICKS)
    return Markup(svg).format(*sizes, STRIP - 6, STRIP + 5, STRIP - 6, look.colour, STRIP - 10, value)


def interval_axis(first: str, last: str) -> Markup:
    """Return the axis of intervals with the values at its ends."""
    svg = (
        '<svg class="gallery-strip" viewBox="-6 -18 {} 24" width="{}" height="24" role="img" aria-label="{} to {}">'
        '<path d="M0 0H{}{}" class="grid"/><text x="-6" y="-7">{}</text>'
        '<text x="{}" y="-7" text-anchor="end">{}</text></svg>'
    )
    return Markup(svg).format(STRIP + 12, STRIP + 12, first, last, STRIP, TICKS, first, STRIP + 6, last)
