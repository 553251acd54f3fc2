"""Statistics of differences between encodings: paired over seeds, with intervals, corrected for multiple comparisons.

Cells of one seed share data, order and all weights that are not positional. So seeds are the independent units, and
differences within a seed are tested. The checkpoints of one run (after 1, 4 and 16 epochs of one training) share all
of it: they are settings, never further seeds.
"""

from pe_lab.results.columns import REMAINING, lower_is_better
from pe_lab.results.statistics.comparisons import all_pairs, compare, ranks
from pe_lab.results.statistics.equivalence import add_equivalence, p_equivalent
from pe_lab.results.statistics.families import GRID, Families
from pe_lab.results.statistics.intervals import CONFIDENCE, coverage, interval, percentile_bootstraps, t_intervals
from pe_lab.results.statistics.margin import Margin, default_margin, margins
from pe_lab.results.statistics.paired import deviations, wide
from pe_lab.results.statistics.pooling import Pool, pool
from pe_lab.results.statistics.power import seeds_needed
from pe_lab.results.statistics.variance import effects

__all__ = [
    "CONFIDENCE",
    "GRID",
    "REMAINING",
    "Families",
    "Margin",
    "Pool",
    "add_equivalence",
    "all_pairs",
    "compare",
    "coverage",
    "default_margin",
    "deviations",
    "effects",
    "interval",
    "lower_is_better",
    "margins",
    "p_equivalent",
    "percentile_bootstraps",
    "pool",
    "ranks",
    "seeds_needed",
    "t_intervals",
    "wide",
]
