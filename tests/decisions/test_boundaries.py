"""Boundaries of sequential t tests, against simulation, closed forms and a finer grid."""

import numpy as np
import pytest
from scipy import stats

from pe_lab.decisions import boundaries, chain
from pe_lab.decisions.boundaries import LEVELS, Boundaries, obrien_fleming, pocock, power
from pe_lab.decisions.design import Design
from pe_lab.decisions.sequential import SequentialP, nominal_p, sequential_p

LOOKS = (3, 4, 6, 8)


def p_values_of_looks(looks: tuple[int, ...], draws: int, alternative: str = "two-sided") -> np.ndarray:
    """Return p values of t tests on samples without a difference, by scipy: [looks, draws]."""
    samples = np.random.default_rng(5).standard_normal((draws, looks[-1]))
    return np.array([stats.ttest_1samp(samples[:, :look], 0, axis=1, alternative=alternative).pvalue for look in looks])


@pytest.mark.parametrize("n", [2, 3, 5, 23])
def test_each_z_alone_stays_standard_normal(n):
    mass = chain.start() @ chain.transition(n)
    assert mass.sum() == pytest.approx(1, abs=1e-6)
    z, above = chain.tails(mass)
    for place in (0.5, 2.0, 4.0, 6.0):
        index = int(np.argmin(abs(z - place)))
        assert above[index] == pytest.approx(stats.norm.sf(z[index]), rel=0.01)


def test_z_and_t_are_each_others_inverse_far_into_the_tails():
    z = np.linspace(-7.5, 7.5, 61)
    for degrees in (1, 2, 5, 23):
        np.testing.assert_allclose(chain.normal_quantile(chain.t_quantile(z, degrees), degrees), z, atol=1e-6)


def p_values(bounds: Boundaries, nominal: np.ndarray) -> np.ndarray:
    """The smallest level at which some look so far rejects, of nominal p values [looks, ...]."""
    return np.minimum.accumulate([bounds.at(look, p) for look, p in enumerate(nominal)], axis=0)


@pytest.mark.parametrize("spending", [power(1), power(0.5), pocock, obrien_fleming])
@pytest.mark.parametrize("sides", [1, 2])
def test_the_level_is_spent_as_declared_look_by_look(spending, sides):
    """Simulated t tests: the share that some look so far rejected is what the function spends, at several levels."""
    p = p_values_of_looks(LOOKS, 60_000, "two-sided" if sides == 2 else "greater")
    found = p_values(Boundaries(LOOKS, spending, sides), p)
    for level in (0.3, 0.05, 0.01):
        for look, share in enumerate(np.array(LOOKS) / LOOKS[-1]):
            spent = float(spending(np.array(level), share))
            assert (found[look] <= level).mean() == pytest.approx(spent, abs=4 * np.sqrt(spent / 60_000) + 1e-5)


def test_one_look_is_the_fixed_test():
    p = np.geomspace(1e-7, 0.9, 40)
    for sides in (1, 2):
        np.testing.assert_allclose(p_values(Boundaries((5,), power(1), sides), p[None])[0], p, rtol=0.005)


def test_levels_far_below_those_that_can_be_simulated_agree_with_a_finer_grid(monkeypatch):
    coarse = Boundaries((3, 4, 6), power(1)).nominal
    monkeypatch.setattr(chain, "STEP", 0.025)
    monkeypatch.setattr(chain, "POINTS", 700)
    monkeypatch.setattr(chain, "GRID", np.linspace(-chain.MOST, chain.MOST, 2 * round(chain.MOST / 0.025) + 1))
    fine = Boundaries((3, 4, 6), power(1)).nominal
    for level in (0.05 / 1640, 0.05 / 40, 0.05):
        index = int(np.argmin(abs(np.log(LEVELS / level))))
        np.testing.assert_allclose(coarse[:, index], fine[:, index], rtol=0.02)


def test_nominal_levels_grow_with_the_overall_level_so_that_p_values_exist():
    for spending in (power(1), pocock, obrien_fleming):
        assert (np.diff(Boundaries(LOOKS, spending).nominal, axis=1) >= 0).all()


def test_p_values_of_a_look_lie_between_the_least_level_and_one():
    found = Boundaries(LOOKS, power(1)).at(0, np.array([1e-300, 1e-30, 1e-4, 0.5, 1.0]))
    assert found[:2] == pytest.approx([boundaries.LEVELS[0]] * 2)
    assert boundaries.LEVELS[0] < found[2] < 1
    assert found[3:].tolist() == [1, 1]  # above the level of this look at every overall level


def sequential(means: np.ndarray, margin: float = 1.0) -> SequentialP:
    """Sequential p values of comparisons whose seeds have these means from one look to the next: [looks, ...]."""
    noise = np.random.default_rng(3).standard_normal((*means.shape[1:], LOOKS[-1]))
    counts = np.diff(LOOKS, prepend=0)
    differences = np.repeat(np.moveaxis(means, 0, -1), counts, axis=-1) + 0.3 * noise
    return sequential_p(nominal_p(differences, LOOKS, margin), Design(LOOKS))


def test_sequential_p_values_never_grow_while_the_looks_say_the_same():
    away, near = sequential(np.full((4, 50), 2.0)), sequential(np.full((4, 50), 0.1), margin=2.0)
    for p in (away.difference, near.equivalence):
        assert (np.diff(p, axis=0) <= 0).all()
        assert (np.diff(p, axis=0) < 0).any()
        assert (p >= boundaries.LEVELS[0]).all()


def test_a_look_that_says_something_else_does_not_inherit_the_p_value_of_those_before():
    turned = sequential(np.array([2.0, 2.0, -9.0, 40.0])[:, None])
    first, second, third, last = turned.difference[:, 0]
    assert second <= first < 0.2
    assert third > 10 * second  # the mean has changed its sign
    assert last <= second  # and back
    left = sequential(np.array([0.0, 0.0, 9.0, 9.0])[:, None], margin=2.0)
    assert left.equivalence[1, 0] < 0.05
    assert left.equivalence[2:, 0].tolist() == [1, 1]  # the mean lies beyond the margin


def test_looks_are_checked():
    for looks in ((), (1, 2), (3, 3), (4, 3), (3, 2000)):
        with pytest.raises(ValueError, match="looks must be ascending"):
            Design(looks)
    with pytest.raises(ValueError, match="level must be"):
        Design(level=1.0)
