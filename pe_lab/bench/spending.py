"""Compare boundaries of sequential tests by seeds and power, with the variance of each comparison alone."""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from pe_lab.bench.replay import margins_of
from pe_lab.decisions.alternatives import always_valid, bonferroni
from pe_lab.decisions.boundaries import obrien_fleming, pocock, power
from pe_lab.decisions.design import SPENDING, Design
from pe_lab.decisions.sequential import NominalP, SequentialP, Stopped, nominal_p, sequential_p, stop
from pe_lab.statistics.cells import by_setting, wide

DESIGN = Design()
COUNT = 8  # encodings of a study, beside the baseline
CHUNK = 500  # studies that are simulated at once

Effects = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
Test = Callable[[np.ndarray, np.ndarray, NominalP], SequentialP]


def all_tests() -> dict[str, Test]:
    """Return every boundary that is compared."""
    spending = {
        "Lan-DeMets, O'Brien-Fleming": obrien_fleming,
        "Lan-DeMets, Pocock": pocock,
        "Lan-DeMets, share²": power(2),
        "Lan-DeMets, share": power(1),
        "Lan-DeMets, 3/4 of the share (used)": SPENDING,
        "Lan-DeMets, √share": power(0.5),
    }
    tests: dict[str, Test] = {"Bonferroni over looks": lambda differences, margin, nominal: bonferroni(nominal)}
    for name, function in spending.items():
        design = Design(DESIGN.looks, DESIGN.level, function)
        tests[name] = lambda differences, margin, nominal, design=design: sequential_p(nominal, design)
    for prior in (0.01, 0.1, 1.0):
        tests[f"always valid, prior {prior:g}"] = lambda differences, margin, nominal, prior=prior: always_valid(
            differences, DESIGN.looks, margin, prior
        )
    return tests


def choice_table(rows: pd.DataFrame, studies: int) -> pd.DataFrame:
    """Compare boundaries by seeds and power."""
    observed = observed_effects(rows)

    def mixture(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = observed[rng.integers(len(observed), size=(size, COUNT))]
        return drawn[..., 0], drawn[..., 1]

    scenarios = {"mixture": mixture}
    scenarios |= {f"effect {effect:g}": constant(effect, 0.25, COUNT) for effect in (0.5, 1.0, 2.0, 4.0)}
    scenarios |= {f"margin {margin:g}": constant(0.0, margin, COUNT) for margin in (1.0, 2.0, 4.0)}
    lines = []
    fixed = Design(DESIGN.looks[-1:], spending=power(1))
    for name, test in all_tests().items():
        line: dict[str, object] = {"boundary": name}
        for scenario, effects in scenarios.items():
            line[scenario] = _seeds_and_power(test, effects, studies, DESIGN.looks)
        lines.append(line)
    one = {"boundary": f"{fixed.looks[0]} seeds at once"}
    for scenario, effects in scenarios.items():
        one[scenario] = _seeds_and_power(
            lambda differences, margin, nominal: sequential_p(nominal, fixed), effects, studies, fixed.looks
        )
    return pd.DataFrame([one, *lines])


def _seeds_and_power(test: Test, effects: Effects, studies: int, looks: tuple[int, ...]) -> str:
    seeds, decided = [], []
    for differences, margin in chunks(effects, studies):
        found = simulate(differences, margin, test, looks)
        seeds.append(np.array(looks)[found.look].mean())
        decided.append((found.different | found.equivalent).mean())
    return f"{np.mean(seeds):.1f}; {100 * np.mean(decided):.0f} %"


def observed_effects(rows: pd.DataFrame, baseline: str = "rope") -> np.ndarray:
    """Return effect and margin of 0.05 gap, in deviations, of each encoding and setting: [comparisons, 2]."""
    found = []
    margin = dict(zip(*margins_of(rows, "0.05 gap"), strict=True))
    for setting, part in by_setting(wide(rows)):
        differences = part.sub(part[baseline], axis=0).drop(columns=baseline)
        deviation = differences.std()
        kept = deviation[deviation > 0].index
        ends = margin[tuple(setting.values())] / deviation[kept]
        found.append(np.stack([differences[kept].mean() / deviation[kept], ends], 1))
    return np.concatenate(found)


def chunks(effects: Effects, studies: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield differences [studies, encodings, seeds] and margins [studies, encodings], chunk by chunk."""
    rng = np.random.default_rng(0)
    for start in range(0, studies, CHUNK):
        effect, margin = effects(rng, min(CHUNK, studies - start))
        yield effect[..., None] + _noise(rng, (*effect.shape, DESIGN.looks[-1])), margin


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return differences from a baseline that has noise too, which all encodings of a study share."""
    studies, encodings, seeds = shape
    own, shared = rng.standard_normal((studies, encodings, seeds)), rng.standard_normal((studies, 1, seeds))
    found: np.ndarray = (own - shared) / np.sqrt(2)
    return found


def simulate(differences: np.ndarray, margin: np.ndarray, test: Test, looks: tuple[int, ...]) -> Stopped:
    """Run studies to their end."""
    return stop(test(differences, margin, nominal_p(differences, looks, margin)), DESIGN.level)


def constant(effect: float, margin: float, encodings: int) -> Effects:
    """Return what makes the same effect and margin for all encodings, with signs in turn."""
    signs = np.where(np.arange(encodings) % 2, -1.0, 1.0)
    return lambda rng, studies: (np.tile(effect * signs, (studies, 1)), np.full((studies, encodings), margin))
