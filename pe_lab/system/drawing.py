"""The style of figures: as SVG they take the colours of the page, light or dark, that they stand on."""

import io
import re
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

INK = "#1b1b1b"  # of texts and axes; in an SVG, the colour of the text around it
PAPER = "#fefefe"  # in open marks; in an SVG, the ground of the page
DARK_INK, DARK_PAPER = "#e8e8e8", "#16181c"  # of a file in the dark
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # names may contain dollar signs
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def svg(figure: Figure, salt: str, alone: bool = True) -> str:
    """Return a figure as SVG; equal figures with equal salts give equal bytes.

    Args:
        alone: whether it is a file, with a ground and a style for dark mode of its own. Otherwise it is part of a page
            whose text has a colour, and whose ground may be named by the CSS variable `--paper`.
    """
    with mpl.rc_context(STYLE | {"svg.hashsalt": salt, "svg.fonttype": "none", "font.family": "sans-serif"}):
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = re.sub(INK, "currentColor", content.getvalue(), flags=re.IGNORECASE)
    drawn = re.sub(PAPER, "var(--paper, #fff)", drawn, flags=re.IGNORECASE)
    if not alone:
        return drawn
    dark = f"@media (prefers-color-scheme: dark) {{ svg {{ color: {DARK_INK}; --paper: {DARK_PAPER} }} }}"
    style = f"<style>svg {{ color: {INK}; --paper: #fff; background: var(--paper) }} {dark}</style>"
    return re.sub(r"(<svg\b[^>]*>)", rf"\1{style}", drawn, count=1)
