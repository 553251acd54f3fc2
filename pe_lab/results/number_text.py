"""Numbers as texts, where several pages or figures write them alike."""

import math

import numpy as np


def signed(value: float, scale: float) -> str:
    """Return a difference with its sign, to a tenth of the leading digit of a scale such as the margin.

    Args:
        scale: above 0; otherwise the value has two digits.
    """
    if not np.isfinite(scale) or scale <= 0:
        return f"{value:+.2g}"
    text = f"{value:+.{max(0, 1 - math.floor(math.log10(scale)))}f}"
    return text if float(text) else text[1:]
