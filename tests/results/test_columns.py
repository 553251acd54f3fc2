"""Intervals of means and of differences end at what is possible."""

import numpy as np
import pandas as pd
import pytest

from pe_lab.results import columns, panels
from pe_lab.statistics import interval


@pytest.mark.parametrize(("metric", "ends"), [("exact_match", (0, 1)), ("loss", (0, np.inf)), ("mine", (-9, 9))])
def test_intervals_of_means_end_at_what_is_possible(metric, ends):
    rows = pd.DataFrame({"pe": "rope", "depth": 1, "epochs": 1, "seed": [0, 1, 2], "value": [0.01, 0.5, 0.99]})
    line = panels.means(rows, [], ["depth", "epochs"], metric).iloc[0]
    assert (line["low"], line["high"]) == pytest.approx(np.clip(interval(rows["value"]), *ends))


def test_intervals_of_differences_end_at_the_largest_possible_difference():
    low, high = columns.cut_interval("accuracy", [0.2, 0.2], [-1.4, -0.5], [1.8, 0.9], difference=True)
    assert (low.tolist(), high.tolist()) == ([-1, -0.5], [1, 0.9])
    assert columns.cut_interval("loss", 0.2, -1.4, 1.8, difference=True) == pytest.approx((-1.4, 1.8))
    assert columns.cut_interval("score", 1.5, 1.4, 1.6) == pytest.approx((1.4, 1.5))  # never beyond the mean
