"""Numbers as texts."""

import pandas as pd
import pytest

from pe_lab.results.number_text import count_of_seeds, range_in_words, signed_difference


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (0.01943, 0.02, "+0.019"),
        (-0.4, 0.1, "-0.40"),
        (4.55e-05, 0.02, "0.000"),
        (-4.55e-05, 0.02, "0.000"),
        (12.3, 20, "+12"),
        (0.0123, float("nan"), "+0.012"),
    ],
)
def test_a_difference_has_digits_down_to_a_tenth_of_its_scale(value, scale, text):
    assert signed_difference(value, scale) == text


def test_a_range_of_equal_values_is_one_value():
    assert range_in_words(pd.Series([1.0, 3.0, 2.0]), "g") == "1–3"
    assert range_in_words(pd.Series([0.501, 0.499]), ".2f", " to ") == "0.50"
    assert count_of_seeds(pd.Series([1, 1])) == "1 seed"
    assert count_of_seeds(pd.Series([3.0, 5.0])) == "3 to 5 seeds"
