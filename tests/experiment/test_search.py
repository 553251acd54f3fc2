"""Successive halving, given losses as a function of the candidate and the epochs."""

import itertools
import math
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.experiment.search import Candidate, Choice, NoRateError, Plan, Rung, epochs_needed, halving, step_beyond

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SCALES = (0.02, 0.14, 1.0)
Losses = Callable[[Candidate, int], float]


def plan(**changes: object) -> Plan:
    settings = {"rates": RATES, "scales": (), "seeds": 2, "first_seed": 1000, "rungs": 3, "factor": 2, "extensions": 4}
    return Plan(**settings | changes)


def search(
    losses: Losses, chosen: Plan | None = None, epochs: int = 4, scaled: bool = False
) -> tuple[Choice, list[Rung]]:
    """Run a search on given losses; return its choice and its rungs."""
    searching, rungs = halving(chosen or plan(), epochs, scaled), []
    try:
        rung = next(searching)
        while True:
            rungs.append(rung)
            rung = searching.send([losses(candidate, rung.epochs) for candidate in rung.candidates])
    except StopIteration as end:
        return end.value, rungs


def bowl(rate: float, scale: float | None = None) -> Losses:
    """Return losses that are lowest at a rate and at a scale."""

    def loss(candidate: Candidate, epochs: int) -> float:
        off = abs(math.log(candidate.rate / rate))
        return off + (abs(math.log(candidate.scale / scale)) if scale and candidate.scale else 0.0) + 1 / epochs

    return loss


@pytest.mark.parametrize("rate", RATES[1:-1])
def test_the_best_rate_inside_the_ladder_is_found_in_three_rungs(rate: float) -> None:
    choice, rungs = search(bowl(rate))
    assert choice == Choice(Candidate(rate), 0.25, (), 5)
    assert [rung.epochs for rung in rungs] == [1, 2, 4]
    assert [len(rung.candidates) for rung in rungs] == [5, 3, 2]
    for before, after in itertools.pairwise(rungs):
        assert set(after.candidates) < set(before.candidates)


def test_the_rungs_keep_the_better_ones() -> None:
    *_, (_, second, _) = search(bowl(3e-3))
    assert sorted(second.candidates) == [Candidate(1e-3), Candidate(3e-3), Candidate(1e-2)]


@pytest.mark.parametrize(("best", "beyond"), [(0.1, [0.1, 0.3]), (0.3, [0.1, 0.3, 1.0]), (1e-4, [1e-4, 3e-5])])
def test_a_best_at_the_edge_extends_the_ladder_until_it_stands_inside(best: float, beyond: list[float]) -> None:
    choice, rungs = search(bowl(best))
    assert (choice.best, choice.edges, choice.tried) == (Candidate(best), (), 5 + len(beyond))
    assert rungs[3:] == [Rung([Candidate(rate)], 4) for rate in beyond]


def test_extensions_are_bounded_and_the_edge_is_said() -> None:
    choice, rungs = search(bowl(1e9), plan(extensions=2))
    assert choice == Choice(Candidate(0.3), pytest.approx(math.log(1e9 / 0.3) + 0.25), ("rate",), 7)
    assert len(rungs) == 5
    assert search(bowl(1e9), plan(extensions=0))[0].edges == ("rate",)


def test_a_neighbour_that_diverges_ends_the_extension() -> None:
    def losses(candidate: Candidate, epochs: int) -> float:
        return math.inf if candidate.rate > 0.05 else bowl(1e9)(candidate, epochs)

    choice, rungs = search(losses)
    assert (choice.best, choice.edges, len(rungs)) == (Candidate(3e-2), (), 4)


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("diverged", [(1e-2, 3e-2), (3e-4, 1e-3), (3e-4, 1e-2)])
def test_what_is_not_finite_is_worse_than_any_loss(value: float, diverged: tuple[float, float]) -> None:
    def losses(candidate: Candidate, epochs: int) -> float:
        return value if candidate.rate in diverged else 1e6 + bowl(3e-3)(candidate, epochs)

    choice, rungs = search(losses)
    assert (choice.best, choice.edges) == (Candidate(3e-3), ())
    assert sorted(rungs[1].candidates) == [Candidate(rate) for rate in RATES if rate not in diverged]


def test_a_candidate_that_diverges_late_is_not_chosen() -> None:
    def losses(candidate: Candidate, epochs: int) -> float:
        return math.inf if candidate.rate == 3e-3 and epochs == 4 else bowl(3e-3)(candidate, epochs)

    assert search(losses)[0].best in (Candidate(1e-3), Candidate(1e-2))


def test_when_everything_diverges_the_ladder_is_named() -> None:
    with pytest.raises(NoRateError, match=r"search.rates must have a rate .* got 0.0003 ... 0.03, .* within 1 epochs"):
        search(lambda candidate, epochs: math.inf)


def test_of_equal_losses_the_smaller_rate_and_scale_win_without_extension_for_nothing() -> None:
    choice, rungs = search(lambda candidate, epochs: 1.0, plan(scales=SCALES), scaled=True)
    assert (choice.best, choice.edges) == (Candidate(3e-4, 0.02), ())
    assert len(rungs) == 4  # one step beyond each edge is tried, and is not better


def test_of_equal_losses_at_the_end_the_smaller_rate_wins_whatever_earlier_rungs_preferred() -> None:
    choice, rungs = search(lambda candidate, epochs: 1.0 if epochs == 4 else bowl(6e-3)(candidate, epochs))
    assert rungs[2].candidates[0] == Candidate(1e-2)
    assert choice.best == min(rungs[2].candidates) == Candidate(3e-3)


@pytest.mark.parametrize("scale", SCALES)
def test_scale_and_rate_are_searched_together(scale: float) -> None:
    choice, rungs = search(bowl(3e-3, scale), plan(scales=SCALES), scaled=True)
    assert (choice.best, choice.edges) == (Candidate(3e-3, scale), ())
    assert [len(rung.candidates) for rung in rungs][:3] == [15, 8, 4]


def test_an_encoding_without_a_scale_is_searched_over_rates_alone() -> None:
    choice, rungs = search(bowl(3e-3), plan(scales=SCALES), scaled=False)
    assert choice.best == Candidate(3e-3, None)
    assert len(rungs[0].candidates) == 5


def test_factor_four_and_more_epochs() -> None:
    _, rungs = search(bowl(3e-3), plan(factor=4), epochs=50)
    assert [rung.epochs for rung in rungs] == [3, 12, 50]
    assert [len(rung.candidates) for rung in rungs] == [5, 2, 2]


@pytest.mark.parametrize(
    ("ladder", "expected"),
    [
        ([3e-4, 1e-3, 3e-3, 1e-2, 3e-2], 0.1),
        ([3e-2, 1e-2, 3e-3, 1e-3, 3e-4], 1e-4),
        ([1e-3, 2e-3, 4e-3], 8e-3),
        ([0.02, 1.0], 50.0),
        ([1.0, 0.02], 4e-4),
    ],
)
def test_a_step_beyond_continues_the_ladder(ladder: list[float], expected: float) -> None:
    assert step_beyond(ladder) == expected


@pytest.mark.parametrize(("epochs", "expected"), [(1, [(1, 5)]), (2, [(1, 5), (2, 3)]), (3, [(1, 5), (3, 3)])])
def test_few_epochs_have_fewer_rungs(epochs: int, expected: list[tuple[int, int]]) -> None:
    choice, rungs = search(bowl(3e-3), epochs=epochs)
    assert [(rung.epochs, len(rung.candidates)) for rung in rungs] == expected
    assert choice.best == Candidate(3e-3)
    assert epochs_needed(plan(), epochs, False, shared=True) == 2 * {1: 5, 2: 5 + 3, 3: 5 + 6}[epochs]


def test_the_cost_is_that_of_the_rungs() -> None:
    for shared, schedule in ((True, "constant"), (False, "cosine")):
        trained: dict[tuple[Candidate, int], int] = {}
        _, rungs = search(bowl(3e-3, 0.14), plan(scales=SCALES), epochs=8, scaled=True)
        for rung in rungs:
            for candidate in rung.candidates:
                key = (candidate, 0 if shared else rung.epochs)
                trained[key] = max(rung.epochs, trained.get(key, 0))
        assert epochs_needed(plan(scales=SCALES), 8, True, shared) == 2 * sum(trained.values()), schedule


@given(
    st.lists(st.floats(0, 10) | st.just(math.inf), min_size=64, max_size=64),
    st.integers(1, 40),
    st.integers(2, 3),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_choice_is_the_lowest_of_those_trained_to_the_end(
    noise: list[float], epochs: int, rungs: int, scaled: bool, extensions: int
) -> None:
    """For any losses: it is deterministic, bounded, and the choice was trained for all epochs with the lowest loss."""

    def losses(candidate: Candidate, budget: int) -> float:
        return noise[zlib.crc32(repr((candidate, budget)).encode()) % 64]

    chosen = plan(rungs=rungs, scales=SCALES, extensions=extensions)
    try:
        choice, taken = search(losses, chosen, epochs, scaled)
    except NoRateError:
        return
    assert (choice, taken) == search(losses, chosen, epochs, scaled)
    halvings = len(chosen.budgets(epochs))
    assert 1 <= halvings <= rungs
    assert len(taken) <= halvings + extensions
    last = {one: losses(one, epochs) for rung in taken if rung.epochs == epochs for one in rung.candidates}
    assert choice.loss == losses(choice.best, epochs) == min(last.values())
    assert choice.tried == len({one for rung in taken for one in rung.candidates})
    if choice.edges:
        assert len(taken) == halvings + extensions
