"""Endpoints, comparisons, shares, ranks, sequential looks and tuning of a benchmark, as pure functions.

Arrays and data frames in, values out. Nothing is read or written, and nothing else of the package is imported.
docs/protocol.md says what is computed, and how often it is wrong in simulated studies.
"""

from pe_lab.statistics.correction import benjamini_hochberg, holm
from pe_lab.statistics.endpoint import Endpoint
from pe_lab.statistics.looks import Sequential, sequential
from pe_lab.statistics.moderation import NOTHING_KNOWN, Prior, fit_prior
from pe_lab.statistics.pairs import (
    Tests,
    Verdict,
    all_pairs,
    compare,
    decide,
    paired_tests,
    prior_of,
    rank_ranges,
    sample_differences,
    with_baseline,
)
from pe_lab.statistics.shares import compare_shares, share_interval
from pe_lab.statistics.steps import evaluation_steps, steps_to_solve
from pe_lab.statistics.tuning import Need, Outcome, Plan, Progress, Task, Trial, Try, ask, edge_shares, outcomes

__all__ = [
    "NOTHING_KNOWN",
    "Endpoint",
    "Need",
    "Outcome",
    "Plan",
    "Prior",
    "Progress",
    "Sequential",
    "Task",
    "Tests",
    "Trial",
    "Try",
    "Verdict",
    "all_pairs",
    "ask",
    "benjamini_hochberg",
    "compare",
    "compare_shares",
    "decide",
    "edge_shares",
    "evaluation_steps",
    "fit_prior",
    "holm",
    "outcomes",
    "paired_tests",
    "prior_of",
    "rank_ranges",
    "sample_differences",
    "sequential",
    "share_interval",
    "steps_to_solve",
    "with_baseline",
]
