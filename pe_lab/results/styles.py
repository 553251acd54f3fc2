"""The colour, line and marker of each encoding: the same in every figure and on every page."""

from functools import cache
from typing import NamedTuple
from zlib import crc32

# Okabe and Ito's colours, but for yellow: each is readable on white and on the dark pages
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8A7A00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
DASHES = ("-", "--", "-.", ":")
# those that are most often compared come first, since eight neighbours differ in colour and in marker
COMMON = (
    *("rope", "learnable", "lrope", "sinusoidal", "alibi", "t5", "none", "sininit"),
    *("forgetting", "kerple_log", "fire", "stick_breaking", "shaw", "xpos", "p_rope", "cope"),
    *("deberta", "transformer_xl", "tupe", "rse", "exposb", "canon", "path", "selective_rope"),
)
OTHERS = len(COLOURS) * len(MARKERS) - len(COMMON)  # styles that are left for all other encodings


class Style(NamedTuple):
    """How an encoding is drawn; colour never stands alone."""

    colour: str
    dash: str
    marker: str


@cache
def style(name: str) -> Style:
    """Return the style of an encoding, which depends on its name alone.

    The encodings in COMMON all differ. Two others may look alike, with a chance of 1 in 48.
    """
    place = COMMON.index(name) if name in COMMON else len(COMMON) + crc32(name.encode()) % OTHERS
    turn, column = divmod(place, len(COLOURS))
    return Style(COLOURS[column], DASHES[place % len(DASHES)], MARKERS[(column + turn) % len(MARKERS)])
