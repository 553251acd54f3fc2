"""Statistics as pure functions: comparisons, corrections, intervals, ranks, looks at several numbers of seeds, tuning.

Arrays and data frames in, values out. Nothing is read or written, and nothing else of the package is imported.
scipy.stats takes a second to import: the functions that need it import it themselves.
`compare_cells` and `Families` compare tables of cells (docs/statistics.md); `compare` compares endpoints of studies in
which every seed tunes for itself (docs/protocol.md).
"""

from pe_lab.statistics.agreement import Agreement, Comparison, Published, compare_with_published
from pe_lab.statistics.cells import REMAINING_METRIC, lower_is_better, metric_unit, wide_table
from pe_lab.statistics.comparisons import add_verdicts, compare_cells, paired_differences
from pe_lab.statistics.correction import benjamini_hochberg, holm, holm_levels
from pe_lab.statistics.correlation import RankCorrelation, rank_correlation
from pe_lab.statistics.effects import effects
from pe_lab.statistics.endpoint import Endpoint
from pe_lab.statistics.families import GRID_TABLE, Families
from pe_lab.statistics.intervals import interval
from pe_lab.statistics.margins import Margin, default_margin, margins
from pe_lab.statistics.moderation import NO_PRIOR, VariancePrior, fit_prior
from pe_lab.statistics.pairs import (
    Tests,
    all_pairs,
    compare,
    decide_pairs,
    estimate_prior,
    paired_tests,
    rank_ranges,
    sample_differences,
    with_baseline,
)
from pe_lab.statistics.power import seeds_needed
from pe_lab.statistics.shares import compare_shares, share_interval
from pe_lab.statistics.steps import steps_to_solve
from pe_lab.statistics.tuning_plan import (
    NeededTry,
    Try,
    TryOfSeed,
    TryProgress,
    TunedOutcome,
    TunedTask,
    TuningPlan,
    plan_outcomes,
)
from pe_lab.statistics.verdicts import (
    COMPARISON_COLUMNS,
    DIFFERENT_VERDICTS,
    EQUIVALENT_VERDICTS,
    LEVEL,
    MIN_SEEDS,
    Verdict,
    verdicts_on,
)

__all__ = [
    "COMPARISON_COLUMNS",
    "DIFFERENT_VERDICTS",
    "EQUIVALENT_VERDICTS",
    "GRID_TABLE",
    "LEVEL",
    "MIN_SEEDS",
    "NO_PRIOR",
    "REMAINING_METRIC",
    "Agreement",
    "Comparison",
    "Endpoint",
    "Families",
    "Margin",
    "NeededTry",
    "Published",
    "RankCorrelation",
    "Tests",
    "Try",
    "TryOfSeed",
    "TryProgress",
    "TunedOutcome",
    "TunedTask",
    "TuningPlan",
    "VariancePrior",
    "Verdict",
    "add_verdicts",
    "all_pairs",
    "benjamini_hochberg",
    "compare",
    "compare_cells",
    "compare_shares",
    "compare_with_published",
    "decide_pairs",
    "default_margin",
    "effects",
    "estimate_prior",
    "fit_prior",
    "holm",
    "holm_levels",
    "interval",
    "lower_is_better",
    "margins",
    "metric_unit",
    "paired_differences",
    "paired_tests",
    "plan_outcomes",
    "rank_correlation",
    "rank_ranges",
    "sample_differences",
    "seeds_needed",
    "share_interval",
    "steps_to_solve",
    "verdicts_on",
    "wide_table",
    "with_baseline",
]
