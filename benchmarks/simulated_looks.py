"""Looks at several numbers of seeds, in many simulated studies at once; tests hold them against those of cells."""

from dataclasses import dataclass

import numpy as np

from pe_lab.statistics import MIN_SEEDS, Endpoint, Verdict, holm, paired_tests, verdicts_on, with_baseline
from pe_lab.statistics.look_levels import LOOKS, SPENT_SHARES, check_looks


@dataclass(frozen=True)
class Sequential:
    """The state of the comparisons with a baseline [..., others], in the order of `with_baseline`.

    Attributes:
        seeds: the number of seeds behind the verdict.
        verdict: the verdict; undecided while a comparison waits for seeds, and where it stays open after the last look.
        difference, low, high: the mean difference and its 95 % interval, at the look where the comparison stopped.
        p, p_equivalent: p values, corrected over looks and comparisons.
        needed: number of seeds that an encoding needs for the next look; 0: none.
    """

    seeds: np.ndarray
    verdict: np.ndarray
    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_equivalent: np.ndarray
    needed: np.ndarray


def sequential(
    y: np.ndarray,
    baseline: int,
    endpoint: Endpoint,
    solved: np.ndarray | None = None,
    looks: tuple[int, ...] = LOOKS,
    spent: tuple[float, ...] = SPENT_SHARES,
) -> Sequential:
    """Test at each look, as far as there are seeds; decided comparisons get no more seeds.

    Args:
        y: values [..., seeds, encodings], seeds in their declared order; NaN where there is no run yet.
        baseline: column of the encoding that all others are compared with.
        solved: runs that solved the task [..., seeds, encodings]; None: the endpoint has no level.
        looks: ascending numbers of seeds, from 2.
        spent: the part of the level that each look spends, in all at most 1.

    Raises:
        ValueError: looks do not ascend from 2, or what is spent does not fit them.
    """
    check_looks(looks)
    if len(spent) != len(looks) or not all(part > 0 for part in spent) or sum(spent) > 1 + 1e-9:
        raise ValueError(f"spent must be a part above 0 for each of {len(looks)} looks, in all at most 1, got {spent}")
    pairs = with_baseline(y.shape[-1], baseline)
    shape = (*y.shape[:-2], len(pairs[0]))
    state = {name: np.full(shape, np.nan) for name in ("difference", "low", "high")}
    p, p_equivalent = np.ones(shape), np.ones(shape)  # not corrected over comparisons
    ahead, unsolved = np.zeros(shape, int), np.zeros(shape, bool)
    seeds, needed, open_ = np.zeros(shape, int), np.zeros(shape, int), np.ones(shape, bool)
    use = np.zeros(y.shape[:-2] + y.shape[-1:], int)  # seeds of each encoding that are used
    number = np.arange(y.shape[-2])[:, None]
    verdict = np.full(shape, str(Verdict.UNDECIDED), dtype=object)
    for look, part in zip(looks, spent, strict=True):
        there = np.isfinite(y[..., :look, :]).sum(-2) == look
        ready = there[..., pairs[0]] & there[..., [baseline]]
        late = (open_ & ~ready).any(-1, keepdims=True)  # a study looks when all that is open is there
        needed = np.where(open_ & late & (needed == 0), look, needed)
        open_ = open_ & ~late
        if not open_.any():
            break
        use[..., pairs[0]] = np.where(open_, look, use[..., pairs[0]])
        use[..., baseline] = np.where(open_.any(-1), look, use[..., baseline])
        observed = np.where(number < use[..., None, :], y, np.nan)
        tests = paired_tests(observed, pairs, endpoint, solved)
        state = {name: np.where(open_, getattr(tests, name), before) for name, before in state.items()}
        seeds = np.where(open_, look, seeds)
        solid = np.bool_(look >= MIN_SEEDS)
        if tests.solved is not None and tests.baseline_solved is not None:
            ahead = np.where(open_, tests.solved - tests.baseline_solved, ahead)
            unsolved = np.where(open_, tests.solved + tests.baseline_solved == 0, unsolved)
            solid = solid & (tests.solved == look) & (tests.baseline_solved == look)
        # an open comparison has the evidence of this look alone; a closed one keeps that of the look that closed it
        p = np.where(open_, np.where(unsolved, 1.0, np.minimum(tests.p / part, 1.0)), p)
        p_equivalent = np.where(open_, np.where(solid, np.minimum(tests.p_equivalent / part, 1.0), 1.0), p_equivalent)
        different, equivalent = holm(p), holm(p_equivalent)
        verdict = verdicts_on(
            state["difference"], different, equivalent, endpoint.margin, endpoint.lower_is_better, ahead
        )
        verdict = np.where(unsolved, str(Verdict.BOTH_UNSOLVED), verdict)
        open_ = open_ & ((verdict == Verdict.UNDECIDED) | (verdict == Verdict.BOTH_UNSOLVED))
    return Sequential(seeds, verdict, **state, p=holm(p), p_equivalent=holm(p_equivalent), needed=needed)
