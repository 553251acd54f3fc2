"""Simulate sequential studies: error rates, seeds, coverage, the race."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pe_lab.bench.noise import Noise, heavy, of_cells, spreads
from pe_lab.bench.replay import replay
from pe_lab.bench.spending import DESIGN, Effects, choice_table, constant, observed_effects
from pe_lab.decisions.boundaries import power
from pe_lab.decisions.design import Design
from pe_lab.decisions.intervals import half_width, tail
from pe_lab.decisions.question import BEST, Question
from pe_lab.decisions.sequential import after_look, deviations, holm, nominal_p
from pe_lab.decisions.shared_variance import NOTHING_KNOWN, Prior, prior_of
from pe_lab.decisions.study import Decision, decide
from pe_lab.results.frame import load
from pe_lab.results.table import as_markdown

ENCODINGS = (8, 40)  # that are compared with a baseline
MARGINS = (0.5, 1.0, 4.0)  # in deviations of a typical difference
EFFECTS = {"0": 0.0, "margin / 2": 0.5, "margin": 1.0, "2 margins": 2.0, "10 margins": 10.0}
CHUNK = 250  # studies that are simulated at once


def write_tables(rows: Path, studies: int, to: Path | None) -> None:
    """Print all tables of simulated and replayed studies, and write them.

    Args:
        rows: rows.csv of a study, whose residuals are noise too, and which is replayed.
        studies: number of simulated studies per line.
        to: a Markdown file; None: only print.
    """
    table = load(rows.parent).cells
    noises = all_noises(table)
    fewer, least = max(studies // 5, 10), max(studies // 10, 10)
    head = (
        f"# Sequential studies, simulated and replayed\n\n`pe-lab bench decisions --studies {studies} --to FILE` makes "
        f"this file. Looks at {', '.join(map(str, DESIGN.looks))} seeds; family-wise level {DESIGN.level:g}; "
        f"{studies:,} studies per line unless another number is given."
    )
    parts = [
        lambda: head,
        lambda: _section("Error rates", error_table(noises, studies), "errors", studies),
        lambda: _section("Seeds and power", power_table(table, noises, fewer), "power", fewer),
        lambda: _section("Which boundary", choice_table(table, fewer), "choice", fewer),
        lambda: _section(
            "Coverage of the intervals that are reported", coverage_table(noises, fewer), "coverage", fewer
        ),
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
    "errors": """The share of studies with at least one wrong verdict. No difference: better or worse, where nothing
differs; beside it, the same with 5 seeds at once and the variance of each comparison alone, as fewer than five
encodings with a fixed number of seeds are tested. Half differ: better or worse among those that do not. At the margin:
equivalent, where all differ by exactly the margin, in deviations of a typical difference. Noise: `cells` has deviations
and residuals of committed cells; `residuals` only their shape, corrected for having been divided by a deviation of 5
values; `residuals as they are` is not corrected: its tails are lighter. The others are normal, with deviations of
encodings as named; and t with 3 degrees of freedom.""",
    "power": """Seeds per encoding, and the share of encodings that are decided as different or as equivalent, with the
variance of each comparison alone and with shared ones. `mixture`: effects and margins as between rope and the other
encodings of the replayed rows; otherwise an effect, or a margin without an effect, in deviations of a typical
difference. {studies:,} studies each.""",
    "choice": """Seeds per encoding, and the share of encodings that are decided as different or as equivalent, with
normal noise and the variance of each comparison alone. {studies:,} studies of 8 encodings each.""",
    "coverage": """The share of encodings whose interval contains the difference, over all studies; the margin in
deviations of a typical difference, effects in margins.""",
    "race": """Eight encodings, the best k wanted, their true losses so far apart, in deviations of a difference:
the share of studies in which one of the true best is dropped or another is chosen (without differences: any); how
many are left; seeds per encoding. {studies:,} studies each.""",
}


def _section(title: str, table: pd.DataFrame, text: str, studies: int) -> str:
    words = " ".join(TEXTS[text].format(studies=studies).split())
    return f"## {title}\n\n{words}\n\n{as_markdown(table, left=list(table.columns[:2]))}"


def all_noises(rows: pd.DataFrame) -> dict[str, Noise]:
    """Return the noise of runs that studies are simulated with."""
    normal = spreads()
    chosen = ("equal", "inverse chi-squared, 4", "log-normal, 1.5", "one of 25 times")
    return {name: normal[name] for name in chosen} | of_cells(rows) | {"t, 3 degrees": heavy}


@dataclass(frozen=True)
class Ended:
    """Where the comparisons of simulated studies ended: [studies, encodings].

    Attributes:
        look: its index.
        different, equivalent: whether that was decided.
        mean, half: the difference, and half the width of its interval.
    """

    look: np.ndarray
    different: np.ndarray
    equivalent: np.ndarray
    mean: np.ndarray
    half: np.ndarray

    @property
    def decided(self) -> np.ndarray:
        return self.different | self.equivalent


def chunks(noise: Noise, effects: Effects, studies: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield runs [studies, encodings, seeds], the baseline last, and effects and margins [studies, encodings]."""
    rng = np.random.default_rng(0)
    for start in range(0, studies, CHUNK):
        effect, margin = effects(rng, min(CHUNK, studies - start))
        means = np.pad(effect, ((0, 0), (0, 1)))
        yield means[..., None] + noise(rng, (*means.shape, DESIGN.looks[-1])), effect, margin


def simulate(runs: np.ndarray, margin: np.ndarray, design: Design = DESIGN, shared: bool = True) -> Ended:
    """Run studies to their end, as `decide` does with a baseline.

    Args:
        runs: [studies, encodings, seeds], the baseline last.
        margin: [studies, encodings].
        design: its last look has at most as many seeds as there are.
        shared: estimate variances from all encodings of a study; without, of each comparison alone.
    """
    runs = runs[..., : design.looks[-1]]
    known, shape = np.full(runs.shape, np.nan), margin.shape
    look, open_, p, least = np.zeros(shape, int), np.ones(shape, bool), np.ones((2, *shape)), np.ones((3, *shape))
    mean, deviation, freedom = np.zeros(shape), np.zeros(shape), np.ones(shape)
    for number, seeds in enumerate(design.looks):
        asked = np.concatenate([open_, open_.any(-1, keepdims=True)], -1)
        known[..., :seeds] = np.where(asked[..., None], runs[..., :seeds], known[..., :seeds])
        here = np.flatnonzero(open_.any(-1))  # studies that go on
        prior = _of_each(prior_of(known[here, :, :seeds].swapaxes(-1, -2))) if shared else NOTHING_KNOWN
        differences = runs[here, :-1, :seeds] - runs[here, -1:, :seeds]
        nominal = nominal_p(differences, (seeds,), margin[here], prior)
        ends = np.maximum(nominal.above[0], nominal.below[0])
        latest = design.two_sided.at(number, nominal.difference[0]), design.one_sided.at(number, ends)
        still = open_[here]
        least[:, here], found = after_look(least[:, here], nominal.says[0], *latest)
        p[:, here] = np.where(still, found, p[:, here])
        for kept, new in zip(
            (mean, deviation, freedom), (differences.mean(-1), *deviations(differences, prior)), strict=True
        ):
            kept[here] = np.where(still, new, kept[here])
        look[here] = np.where(still, number, look[here])
        open_ &= (holm(p) >= design.level).all(0)
        if not open_.any():
            break
    different, equivalent = holm(p) < design.level
    tails = tail(look, len(design.looks), different | equivalent)
    return Ended(look, different, equivalent, mean, half_width(deviation, freedom, np.array(design.looks)[look], tails))


def _of_each(prior: Prior) -> Prior:
    """Return the distribution of each study for all of its comparisons."""
    return Prior(prior.variance[:, None], prior.freedom[:, None], prior.chance[:, None])


def error_table(noises: dict[str, Noise], studies: int) -> pd.DataFrame:
    """Simulate how often a study has a wrong verdict."""
    lines = []
    fixed = Design((5,), spending=power(1))
    for name, noise in noises.items():
        for count in ENCODINGS:
            line: dict[str, object] = {"noise": name, "encodings": count}
            none = constant(0.0, MARGINS[0], count)
            line["no difference"] = _share(noise, none, studies, lambda found: found.different.any(1))
            line["5 seeds at once"] = _share(
                noise, none, studies, lambda found: found.different.any(1), design=fixed, shared=False
            )
            half = _half(count)
            line["half differ"] = _share(
                noise, half, studies, lambda found, n=count: found.different[:, : n // 2].any(1)
            )
            for margin in MARGINS[1:]:
                at = constant(margin, margin, count)
                line[f"at the margin {margin:g}"] = _share(noise, at, studies, lambda found: found.equivalent.any(1))
            lines.append(line)
    return pd.DataFrame(lines)


def _half(count: int) -> Effects:
    """Return effects of which the first half is 0, and the others are small to large."""
    effects = np.r_[np.zeros(count // 2), np.geomspace(0.5, 10, count - count // 2)]
    return lambda rng, studies: (np.tile(effects, (studies, 1)), np.full((studies, count), 0.5))


def _share(
    noise: Noise, effects: Effects, studies: int, wrong: Callable[[Ended], np.ndarray], **options: object
) -> str:
    found = [wrong(simulate(runs, margin, **options)) for runs, _, margin in chunks(noise, effects, studies)]
    return f"{100 * np.mean(np.concatenate(found)):.2f} %"


def power_table(rows: pd.DataFrame, noises: dict[str, Noise], studies: int) -> pd.DataFrame:
    """Compare shared variances with those of each comparison alone, by seeds and power."""
    observed = observed_effects(rows)

    def mixture(count: int) -> Effects:
        def draw(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
            drawn = observed[rng.integers(len(observed), size=(size, count))]
            return drawn[..., 0], drawn[..., 1]

        return draw

    lines = []
    for name, noise in noises.items():
        for count in ENCODINGS:
            scenarios = {"mixture": mixture(count)}
            scenarios |= {f"effect {effect:g}": constant(effect, 0.25, count) for effect in (1.0, 2.0, 4.0)}
            scenarios |= {f"margin {margin:g}": constant(0.0, margin, count) for margin in (2.0, 4.0)}
            for shared, words in ((False, "alone"), (True, "shared")):
                line: dict[str, object] = {"noise": name, "variances": words, "encodings": count}
                for scenario, effects in scenarios.items():
                    line[scenario] = _seeds_and_power(noise, effects, studies, shared)
                lines.append(line)
    return pd.DataFrame(lines)


def _seeds_and_power(noise: Noise, effects: Effects, studies: int, shared: bool) -> str:
    seeds, decided = [], []
    for runs, _, margin in chunks(noise, effects, studies):
        found = simulate(runs, margin, shared=shared)
        seeds.append(np.array(DESIGN.looks)[found.look])
        decided.append(found.decided)
    return f"{np.concatenate(seeds).mean():.1f}; {100 * np.concatenate(decided).mean():.0f} %"


def coverage_table(noises: dict[str, Noise], studies: int) -> pd.DataFrame:
    """Simulate how often the interval that is reported contains the difference."""
    lines = []
    for name, noise in noises.items():
        for count in ENCODINGS:
            for margin in MARGINS:
                size = studies if count == ENCODINGS[0] else max(studies // 5, 1)
                line: dict[str, object] = {"noise": name, "encodings": count, "studies": size, "of size": f"{margin:g}"}
                for words, factor in EFFECTS.items():
                    covered = [
                        covers(effect, simulate(runs, sizes))
                        for runs, effect, sizes in chunks(noise, constant(factor * margin, margin, count), size)
                    ]
                    line[words] = f"{100 * np.mean(np.concatenate(covered)):.1f} %"
                lines.append(line)
    return pd.DataFrame(lines).rename(columns={"of size": "the margin is"})


def covers(effect: np.ndarray, found: Ended) -> np.ndarray:
    """Return whether the interval of each comparison contains the true difference."""
    inside: np.ndarray = np.abs(found.mean - effect) <= found.half
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
