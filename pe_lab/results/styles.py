"""The colour, line and marker of each encoding: the same in every figure and on every page."""

from functools import cache
from typing import NamedTuple
from zlib import crc32

# The encodings of each colour. The first ones are most often compared. A new encoding comes last in its line, so that
# the others keep their looks. The first six colours are Okabe and Ito's. The others are as far as possible from these
# and from each other. All are readable on white and on the dark pages.
NAMES_BY_COLOUR = {
    "#0072B2": ("rope", "shape", "heads", "random", "integer", "normalized", "interleave", "temperature"),
    "#D55E00": (
        "learnable",
        "transformer_xl",
        "learnable_per_layer",
        "learnable_2d",
        "randomized_learnable",
        "lerope",
        "abacus",
        "ssmax",
    ),
    "#009E73": ("lrope", "canon", "exposb", "exposb_literal", "carope", "drope", "clipped_rope", "randomized_rope"),
    "#CC79A7": (
        "sinusoidal",
        "path",
        "rse",
        "rse_literal",
        "sinusoidal_2d",
        "sinusoidal_qk",
        "randomized_sinusoidal",
        "sum",
    ),
    "#E69F00": ("alibi", "cope", "randomized_alibi", "hard_alibi", "sandwich", "window", "nape"),
    "#56B4E9": ("t5", "deberta", "yarn", "llama3", "resonance_rope", "rope_ntk", "key_offset"),
    "#C800B9": ("forgetting", "tupe", "mrope", "rope_mixed", "rope_2d", "vo_rope", "mapformer"),
    "#7A6A00": ("kerple_log", "selective_rope", "kerple_power", "grape_a", "grape_m", "urpe", "continuous"),
    "#B03A6A": ("fire", "cpe", "dape", "dape_v2", "sininit", "bam", "coupled"),
    "#9669FF": ("stick_breaking", "shaw", "fourier", "relative_bias", "inkling", "pope", "tape"),
    "#78B400": ("xpos", "p_rope", "longrope", "rnope_swa", "rope_pi", "rope_dynamic_ntk", "wall"),
}
COLOURS = tuple(NAMES_BY_COLOUR)
COMMON_NAMES = ("none", *(names[0] for names in NAMES_BY_COLOUR.values()))
MARKERS = ("o", "s", "^", "D", "v", "P", "*", "p")
OWN_MARKERS = ("<", ">", "h", "d")  # of names that are not in the package
DASHES = ("-", "--", "-.", ":")


class Style(NamedTuple):
    """How an encoding is drawn; colour never stands alone."""

    colour: str
    dash: str
    marker: str


NONE_STYLE = Style("#7F7F7F", "-.", "X")  # no other name has this colour or this marker


@cache
def style(name: str) -> Style:
    """Return the style of an encoding, which depends on its name alone.

    The encodings of the package all differ, in colour or marker. Other names have markers of their own; two of them
    look alike with a chance of 1 in 176.
    """
    if name == "none":
        return NONE_STYLE
    for column, (colour, names) in enumerate(NAMES_BY_COLOUR.items()):
        if name in names:
            turn = column + names.index(name)
            return Style(colour, DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
    rest, column = divmod(crc32(name.encode()), len(COLOURS))
    rest, dash = divmod(rest, len(DASHES))
    return Style(COLOURS[column], DASHES[dash], OWN_MARKERS[rest % len(OWN_MARKERS)])
