"""Simulate sequential studies: error rates, seeds, coverage, the race."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special

from pe_lab.bench.replay import margins_of, replay
from pe_lab.decisions.alternatives import always_valid, bonferroni
from pe_lab.decisions.boundaries import obrien_fleming, pocock, power
from pe_lab.decisions.design import SPENDING, Design
from pe_lab.decisions.intervals import half_width, tail
from pe_lab.decisions.question import BEST, Question
from pe_lab.decisions.sequential import NominalP, SequentialP, Stopped, nominal_p, sequential_p, stop
from pe_lab.decisions.study import Decision, decide
from pe_lab.results.frame import load
from pe_lab.results.statistics.paired import by_setting, deviations, wide
from pe_lab.results.table import as_markdown

ENCODINGS = (8, 40)
MARGINS = (0.5, 1.0, 4.0)  # in deviations of a difference
EFFECTS = {"0": 0.0, "margin / 2": 0.5, "margin": 1.0, "2 margins": 2.0, "10 margins": 10.0}
CHUNK = 500  # studies that are simulated at once
DESIGN = Design()

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Test = Callable[[np.ndarray, np.ndarray, NominalP], SequentialP]


def write_tables(rows: Path, studies: int, to: Path | None) -> None:
    """Print all tables of simulated and replayed studies, and write them.

    Args:
        rows: rows.csv of a study, whose residuals are noise too, and which is replayed.
        studies: number of simulated studies per line.
        to: a Markdown file; None: only print.
    """
    table = load(rows.parent).cells
    noises = all_noises(deviations(table))
    fewer, least = max(studies // 5, 10), max(studies // 10, 10)
    head = (
        f"# Sequential studies, simulated and replayed\n\n`pe-lab bench decisions --studies {studies} --to FILE` makes "
        f"this file. Looks at {', '.join(map(str, DESIGN.looks))} seeds; family-wise level {DESIGN.level:g}; "
        f"{studies:,} studies per line unless another number is given."
    )
    parts = [
        lambda: head,
        lambda: _section("Error rates", error_table(noises, studies), "errors", studies),
        lambda: _section("Which boundary", choice_table(table, fewer), "choice", fewer),
        lambda: _section("Coverage of the intervals that are reported", coverage_table(noises, studies), "coverage", 0),
        lambda: _section("The race", race_table(least), "race", least),
        lambda: "\n\n".join([f"## Replay of {rows.parent.name}", *replay(rows, None, "0.05 gap")]),
    ]
    texts = []
    for part in parts:
        texts.append(part())
        print(texts[-1], end="\n\n", flush=True)
    if to:
        to.write_text("\n\n".join(texts) + "\n")


TEXTS = {
    "choice": """Seeds per encoding, and the share of encodings that are decided as different or as equivalent.
`mixture`: effects and margins as between rope and the other encodings of the replayed rows; otherwise an effect, or a
margin without an effect, in deviations of the difference. {studies:,} studies of 8 encodings each.""",
    "errors": """The share of studies with at least one wrong verdict. No difference: better or worse, where nothing
differs; beside it, the same with 5 seeds at once, as studies with a fixed number of seeds are tested. Half differ:
better or worse among those that do not. At the margin: equivalent, where all differ by exactly the margin, in
deviations of the difference. Noise: `residuals` has the shape of the rows' residuals, corrected for having been
divided by a deviation of 5 values, and smoothed; `residuals as they are` is not: its tails are lighter, as are those
of the residuals of 5 normal values, which are the last lines.""",
    "coverage": """The share of encodings whose interval contains the difference, over all studies; the margin in
deviations of the difference, effects in margins.""",
    "race": """Eight encodings, the best k wanted, their true losses so far apart, in deviations of a difference:
the share of studies in which one of the true best is dropped or another is chosen (without differences: any); how
many are left; seeds per encoding. {studies:,} studies each.""",
}


def _section(title: str, table: pd.DataFrame, text: str, studies: int) -> str:
    words = " ".join(TEXTS[text].format(studies=studies).split())
    return f"## {title}\n\n{words}\n\n{as_markdown(table, left=list(table.columns[:2]))}"


# -- noise ------------------------------------------------------------------------------------------------------------


def all_noises(residuals: np.ndarray, seeds: int = 5) -> dict[str, Noise]:
    """Return noise of differences with deviation 1: normal (of encodings and baseline), of residuals, and heavy.

    Args:
        residuals: from `deviations`, of samples of so many seeds.
        seeds: of these samples.
    """
    scaled = _standard(residuals)
    # of normal noise, this is a t statistic with seeds - 2 degrees of freedom (an externally studentised residual)
    outside = residuals * np.sqrt((seeds - 2) / np.maximum(seeds - 1 - residuals**2, 1e-9))
    shape = _standard(special.ndtri(special.stdtr(seeds - 2, outside)))
    width = 1.06 * len(shape) ** -0.2  # Silverman's

    def smoothed(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
        return (rng.choice(shape, size) + width * rng.standard_normal(size)) / np.sqrt(1 + width**2)

    return {
        "normal": normal,
        "residuals": smoothed,
        "residuals as they are": lambda rng, size: rng.choice(scaled, size),
        "t, 3 degrees": lambda rng, size: rng.standard_t(3, size) / np.sqrt(3),
    }


def _standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return differences from a baseline that has noise too, which all encodings of a study share."""
    studies, encodings, seeds = shape
    own, shared = rng.standard_normal((studies, encodings, seeds)), rng.standard_normal((studies, 1, seeds))
    found: np.ndarray = (own - shared) / np.sqrt(2)
    return found


# -- simulation -------------------------------------------------------------------------------------------------------


def chunks(
    noise: Noise, effects: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]], studies: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield differences [studies, encodings, seeds], true effects and margins [studies, encodings], chunk by chunk."""
    rng = np.random.default_rng(0)
    for start in range(0, studies, CHUNK):
        effect, margin = effects(rng, min(CHUNK, studies - start))
        yield effect[..., None] + noise(rng, (*effect.shape, DESIGN.looks[-1])), effect, margin


def chosen_test(differences: np.ndarray, margin: np.ndarray, nominal: NominalP) -> SequentialP:
    """Return the p values that studies use."""
    return sequential_p(nominal, DESIGN)


def simulate(
    differences: np.ndarray, margin: np.ndarray, test: Test = chosen_test, looks: tuple[int, ...] = DESIGN.looks
) -> Stopped:
    """Run studies to their end."""
    return stop(test(differences, margin, nominal_p(differences, looks, margin)), DESIGN.level)


def constant(
    effect: float, margin: float, encodings: int
) -> Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]:
    """Return what makes the same effect and margin for all encodings, with signs in turn."""
    signs = np.where(np.arange(encodings) % 2, -1.0, 1.0)
    return lambda rng, studies: (np.tile(effect * signs, (studies, 1)), np.full((studies, encodings), margin))


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
    count = ENCODINGS[0]

    def mixture(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = observed[rng.integers(len(observed), size=(size, count))]
        return drawn[..., 0], drawn[..., 1]

    scenarios = {"mixture": mixture}
    scenarios |= {f"effect {effect:g}": constant(effect, 0.25, count) for effect in (0.5, 1.0, 2.0, 4.0)}
    scenarios |= {f"margin {margin:g}": constant(0.0, margin, count) for margin in (1.0, 2.0, 4.0)}
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


def _seeds_and_power(test: Test, effects: Callable, studies: int, looks: tuple[int, ...]) -> str:
    seeds, decided = [], []
    for differences, _, margin in chunks(normal, effects, studies):
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


def error_table(noises: dict[str, Noise], studies: int) -> pd.DataFrame:
    """Simulate how often a study has a wrong verdict."""
    lines = []
    samples = np.random.default_rng(0).standard_normal((100_000, 5))
    scaled = _standard(((samples - samples.mean(1, keepdims=True)) / samples.std(1, keepdims=True)).ravel())
    noises = noises | {"residuals of normal noise": lambda rng, size: rng.choice(scaled, size)}
    for name, noise in noises.items():
        for count in ENCODINGS:
            line: dict[str, object] = {"noise": name, "encodings": count}
            none = constant(0.0, MARGINS[0], count)
            line["no difference"] = _share(noise, none, studies, lambda found: found.different.any(1))
            line["5 seeds at once"] = _fixed(noise, none, studies)
            half = _half(count)
            line["half differ"] = _share(
                noise, half, studies, lambda found, n=count: found.different[:, : n // 2].any(1)
            )
            for margin in MARGINS[1:]:
                at = constant(margin, margin, count)
                line[f"at the margin {margin:g}"] = _share(noise, at, studies, lambda found: found.equivalent.any(1))
            lines.append(line)
    return pd.DataFrame(lines)


def _fixed(noise: Noise, effects: Callable, studies: int, seeds: int = 5) -> str:
    """Return how often a study of a fixed number of seeds says better or worse."""
    found, design = [], Design((seeds,), spending=power(1))
    for differences, _, margin in chunks(noise, effects, studies):
        p = sequential_p(nominal_p(differences[..., :seeds], design.looks, margin), design)
        found.append(stop(p, design.level).different.any(1))
    return f"{100 * np.mean(np.concatenate(found)):.2f} %"


def _half(count: int) -> Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]:
    """Return effects of which the first half is 0, and the others are small to large."""
    effects = np.r_[np.zeros(count // 2), np.geomspace(0.5, 10, count - count // 2)]
    return lambda rng, studies: (np.tile(effects, (studies, 1)), np.full((studies, count), 0.5))


def _share(noise: Noise, effects: Callable, studies: int, wrong: Callable[[Stopped], np.ndarray]) -> str:
    found = [wrong(simulate(differences, margin)) for differences, _, margin in chunks(noise, effects, studies)]
    return f"{100 * np.mean(np.concatenate(found)):.2f} %"


def coverage_table(noises: dict[str, Noise], studies: int) -> pd.DataFrame:
    """Simulate how often the interval that is reported contains the difference."""
    lines = []
    for name, noise in noises.items():
        for count in ENCODINGS:
            size = studies if count == ENCODINGS[0] or name == "normal" else max(studies // 5, 1)
            for margin in MARGINS:
                line: dict[str, object] = {"noise": name, "encodings": count, "studies": size, "of size": f"{margin:g}"}
                for words, factor in EFFECTS.items():
                    covered = [
                        covers(differences, effect, simulate(differences, sizes))
                        for differences, effect, sizes in chunks(noise, constant(factor * margin, margin, count), size)
                    ]
                    line[words] = f"{100 * np.mean(np.concatenate(covered)):.1f} %"
                lines.append(line)
    return pd.DataFrame(lines).rename(columns={"of size": "the margin is"})


def covers(differences: np.ndarray, effect: np.ndarray, found: Stopped) -> np.ndarray:
    """Return whether the interval of each comparison contains the true difference."""
    inside = np.zeros(effect.shape, bool)
    tails = tail(found.look, len(DESIGN.looks), found.different | found.equivalent)
    for number, seeds in enumerate(DESIGN.looks):
        part = differences[..., :seeds]
        half = half_width(part.std(-1, ddof=1), np.array(seeds), tails)
        inside |= (found.look == number) & (np.abs(part.mean(-1) - effect) <= half)
    return inside


def race_table(studies: int, encodings: int = 8) -> pd.DataFrame:
    """Simulate races: how often one of the true best is dropped or another chosen, what is left, and seeds."""
    lines = []
    names = [f"e{number}" for number in range(encodings)]
    for places in (1, 3):
        for gap in (0.0, 0.5, 2.0, 5.0):
            rng, wrong, left, seeds = np.random.default_rng(0), 0, 0, 0
            for _ in range(studies):
                noise = rng.standard_normal((encodings, DESIGN.looks[-1])) / np.sqrt(2)
                losses = gap * np.arange(encodings)[:, None] + noise
                end = _raced(names, losses, places)
                dropped = {pe for (_, pe), place in end.places.items() if place.startswith("not")}
                chosen = {pe for (_, pe), place in end.places.items() if place.startswith(("among", "the best"))}
                best = set(names[:places])
                wrong += bool(gap) and bool(dropped & best or chosen - best)
                wrong += not gap and bool(dropped or chosen)
                left += encodings - len(dropped)
                seeds += sum(max(line.seeds for line in end.lines if pe in (line.pe, line.baseline)) for pe in names)
            line = {"best": places, "apart": f"{gap:g}", "wrong": f"{100 * wrong / studies:.2f} %"}
            lines.append(line | {"left": f"{left / studies:.2f}", "seeds": f"{seeds / studies / encodings:.1f}"})
    return pd.DataFrame(lines)


def _raced(names: list[str], losses: np.ndarray, places: int) -> Decision:
    cells = [((), name) for name in names]
    values = {(cell, seed): loss for cell, row in zip(cells, losses, strict=True) for seed, loss in enumerate(row)}
    return decide(Question(cells, BEST, places), DESIGN, values, {(): 0.5})
