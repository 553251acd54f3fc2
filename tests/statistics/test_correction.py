"""Corrections equal those of statsmodels, along the last axis, without what is NaN."""

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from pe_lab.statistics import benjamini_hochberg, holm


@pytest.mark.parametrize("seed", range(4))  # statsmodels collects garbage at each call
def test_corrections_are_those_of_statsmodels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.choice([0.0, 0.001, 0.02, 0.5, 1.0, np.nan, *rng.uniform(size=5)], rng.integers(1, 12))
    known = np.isfinite(p)
    for correct, method in ((holm, "holm"), (benjamini_hochberg, "fdr_bh")):
        corrected = correct(p)
        assert (np.isnan(corrected) == ~known).all()
        if known.any():
            np.testing.assert_allclose(corrected[known], multipletests(p[known], method=method)[1], atol=1e-12)


def test_each_family_is_corrected_alone() -> None:
    p = np.random.default_rng(0).uniform(size=(3, 4, 7))
    p[1, 2, 3] = np.nan
    for correct in (holm, benjamini_hochberg):
        np.testing.assert_array_equal(correct(p)[1, 2], correct(p[1, 2]))
