"""Numbers as texts, where several pages or figures write them alike."""

import math

import numpy as np
import pandas as pd


def signed_difference(value: float, scale: float) -> str:
    """Return a difference with its sign, to a tenth of the leading digit of a scale such as the margin.

    Args:
        scale: above 0; otherwise the value has two digits.
    """
    if not np.isfinite(scale) or scale <= 0:
        return f"{value:+.2g}"
    text = f"{value:+.{max(0, 1 - math.floor(math.log10(scale)))}f}"
    return text if float(text) else text[1:]


def range_in_words(values: pd.Series, form: str, to: str = "–") -> str:
    """Return the range of values, or their only value.

    Args:
        form: the format of a value.
        to: what stands between the lowest and the highest.
    """
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low}{to}{high}"


def count_of_seeds(counts: pd.Series) -> str:
    """Return the number of seeds in words, or its range."""
    return f"{range_in_words(counts, '.0f', ' to ')} seed{'s' * bool(counts.max() != 1)}"
