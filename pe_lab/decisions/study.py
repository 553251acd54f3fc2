"""A sequential study: which cells it needs next, and what is decided, as a function of the results alone.

All looks are gone through anew each time, so that a study decides the same wherever and however often it is continued.
Results that no look asked for are not used.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from pe_lab.decisions.design import Design
from pe_lab.decisions.intervals import half_width, tail
from pe_lab.decisions.question import BEST, Cell, Question, Setting
from pe_lab.decisions.race import Race
from pe_lab.decisions.sequential import after_look, deviations, holm, nominal_p
from pe_lab.decisions.shared_variance import Prior, prior_of


@dataclass(frozen=True)
class Line:
    """A comparison and its verdict.

    Attributes:
        setting, pe, baseline: what is compared.
        verdict: better, worse, equivalent, better or worse `, within the margin`, equal, or undecided.
        difference, low, high: mean over seeds, and its interval, adjusted for the stopping; NaN for fewer than 2 seeds.
        seeds, look: with how many seeds it stopped, and the number of that look, from 1.
        p, p_equivalent: sequential p values; p_holm, p_equivalent_holm: corrected for the family.
        margin: in the unit of the metric.
        note: why it stopped undecided.
    """

    setting: Setting
    pe: str
    baseline: str
    verdict: str
    difference: float
    low: float
    high: float
    seeds: int
    look: int
    p: float
    p_holm: float
    p_equivalent: float
    p_equivalent_holm: float
    margin: float
    note: str = ""


@dataclass(frozen=True)
class Decision:
    """How far a study is.

    Attributes:
        look: the number of the look that is reached, from 1; with `needed`, the one that needs cells.
        needed: cells with their seeds that this look needs and that are not there; none: the study has ended.
        lines: a line per comparison.
        places: of a race, what became of each encoding; otherwise empty.
    """

    look: int
    needed: list[tuple[Cell, int]]
    lines: list[Line]
    places: dict[Cell, str] = field(default_factory=dict)

    @property
    def undecided(self) -> list[str]:
        """The encodings with an undecided comparison; of all pairs, both of each."""
        baselines = {line.baseline for line in self.lines}
        chosen = [line for line in self.lines if line.verdict == "undecided"]
        both = ((line.pe, line.baseline) if len(baselines) > 1 else (line.pe,) for line in chosen)
        return list(dict.fromkeys(pe for pair in both for pe in pair))


Values = Mapping[tuple[Cell, int], float | str]  # by cell and seed: the metric, or why the cell failed


def decide(
    question: Question,
    design: Design,
    values: Values,
    margins: Mapping[Setting, float],
    most: int | None = None,
    wait: bool = True,
) -> Decision:
    """Go through the looks of a study as far as the results allow.

    Args:
        values: metrics on the test split, or the reasons of failures; others than those that a look asks for may be
            there, and are ignored.
        margins: above 0, in the unit of the metric; not needed before the first look is complete.
        most: number of looks after which the budget ends; None: no budget.
        wait: whether a look waits for all cells that it needs. Otherwise comparisons that lack cells stay as they were
            at the look before, and the others go on: their p values hold at whatever look each of them stops.
    """
    state, last = _State(question, design), 0
    for number, seeds in enumerate(design.looks[:most]):
        cells = state.cells_of_open()
        needed = [(cell, seed) for cell in cells for seed in range(seeds) if (cell, seed) not in values]
        if needed and wait:
            return Decision(number + 1, needed, state.lines(margins), state.places())
        state.leave({cell for cell, _ in needed})
        cells = state.cells_of_open()
        if not cells:
            break
        state.take(number, values, margins)
        last = number + 1
    if most is not None and most < len(design.looks):
        state.end_budget()
    return Decision(last, [], state.lines(margins), state.places())


class _State:
    """The comparisons of a study between two looks.

    Attributes:
        open: which comparisons are still undecided.
        failed: which ended because a cell failed; they stay undecided, whatever their p values.
        look: index of the last look of each comparison; -1 before the first.
        least: the smallest p values of all looks that say each of three things, see `says` [3, comparisons].
        p: sequential p values, of a difference and of equivalence [2, comparisons].
        samples: the differences of each comparison at its last look.
        deviation, freedom: of these differences, with what all encodings of the setting say of their variances.
        results: what was asked for so far, of each setting: [seeds, encodings], NaN where it was not or failed.
        columns: of each cell in the results of its setting.
    """

    def __init__(self, question: Question, design: Design) -> None:
        self.question, self.design = question, design
        self.comparisons = question.comparisons
        size = len(self.comparisons)
        self.open, self.look, self.p = np.ones(size, bool), np.full(size, -1), np.ones((2, size))
        self.least = np.ones((3, size))
        self.failed = np.zeros(size, bool)
        self.samples: list[np.ndarray] = [np.empty(0)] * size
        self.deviation, self.freedom = np.zeros(size), np.zeros(size)
        settings = question.settings
        self.columns = {(setting, pe): column for setting, pes in settings.items() for column, pe in enumerate(pes)}
        self.results = {setting: np.full((design.looks[-1], len(pes)), np.nan) for setting, pes in settings.items()}
        self.notes = [""] * size
        self.race = Race(question.settings, question.places) if question.baseline == BEST else None

    def cells_of_open(self) -> list[Cell]:
        """Return the cells of open comparisons, each once."""
        chosen = [self.comparisons[number] for number in np.flatnonzero(self.open)]
        return list(dict.fromkeys((setting, pe) for setting, *pair in chosen for pe in reversed(pair)))

    def leave(self, cells: Collection[Cell]) -> None:
        """Leave the open comparisons of some cells at the look before."""
        for index in np.flatnonzero(self.open):
            setting, *pair = self.comparisons[index]
            if lacking := [pe for pe in pair if (setting, pe) in cells]:
                self.open[index], self.notes[index] = False, f"the next look needs seeds of {' and '.join(lacking)}"

    def take(self, number: int, values: Values, margins: Mapping[Setting, float]) -> None:
        """Look at all open comparisons, each with the seeds of this look, and close those that are decided."""
        seeds = self.design.looks[number]
        self._keep(self.cells_of_open(), seeds, values)
        for index in np.flatnonzero(self.open):
            setting, *pair = self.comparisons[index]
            failed = self._failed(setting, pair, seeds, values)
            if failed:
                self.open[index], self.failed[index], self.notes[index] = False, True, failed
                continue
            first, second = (np.array([values[(setting, pe), seed] for seed in range(seeds)], float) for pe in pair)
            self.samples[index], self.look[index] = first - second, number
        if (chosen := np.flatnonzero(self.open)).size:
            margin = np.array([margins[self.comparisons[index][0]] for index in chosen])
            p_and_said = self._p_values(number, chosen, margin)
            self.least[:, chosen], self.p[:, chosen] = after_look(self.least[:, chosen], *p_and_said)
        self.open &= ~self._decided().any(0)
        if self.race:
            self._run_race()

    def _p_values(
        self, number: int, chosen: np.ndarray, margin: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what one look says, and its p values, each as the overall level at which that look rejects."""
        design, samples = self.design, np.stack([self.samples[index] for index in chosen])
        priors = {setting: prior_of(results) for setting, results in self.results.items()}
        own = [priors[self.comparisons[index][0]] for index in chosen]
        prior = Prior(*(np.array([getattr(one, part.name) for one in own]) for part in fields(Prior)))
        self.deviation[chosen], self.freedom[chosen] = deviations(samples, prior)
        nominal = nominal_p(samples, design.looks[number : number + 1], margin, prior)
        one_sided = np.maximum(nominal.above[0], nominal.below[0])
        p = design.two_sided.at(number, nominal.difference[0]), design.one_sided.at(number, one_sided)
        return nominal.says[0], *p

    def _keep(self, cells: Sequence[Cell], seeds: int, values: Values) -> None:
        """Keep the results that a look asked for."""
        for cell in cells:
            for seed in range(seeds):
                value = values[cell, seed]
                known = not isinstance(value, str) and np.isfinite(value)
                self.results[cell[0]][seed, self.columns[cell]] = value if known else np.nan

    def _failed(self, setting: Setting, pair: Sequence[str], seeds: int, values: Values) -> str:
        """Return which of the cells of a comparison failed first, and why; empty if none did."""
        reasons = []
        for pe in pair:
            of_pe = (_reason(pe, seed, values[(setting, pe), seed]) for seed in range(seeds))
            if reason := next(filter(None, of_pe), ""):
                reasons.append(reason)
                if self.race:
                    self.race.withdraw((setting, pe))
        return reasons[0] if reasons else ""

    def _decided(self) -> np.ndarray:
        """Return whether each comparison is decided as a difference and as equivalent: [2, comparisons]."""
        return (np.stack([holm(p) for p in self.p]) < self.design.level) & ~self.failed

    def _signs(self) -> np.ndarray:
        """Return 1 where the encoding is better than its baseline, -1 where it is worse, by the mean."""
        means = np.array([sample.mean() if len(sample) else 0.0 for sample in self.samples])
        return np.sign(means) * (-1 if self.question.lower_is_better else 1)

    def _run_race(self) -> None:
        assert self.race is not None
        different, _ = self._decided()
        signs = self._signs()
        for index in np.flatnonzero(different):
            setting, pe, other = self.comparisons[index]
            self.race.beats((setting, pe if signs[index] > 0 else other), (setting, other if signs[index] > 0 else pe))
        self.race.settle()
        for index in np.flatnonzero(self.open):
            setting, pe, other = self.comparisons[index]
            if not (self.race.contested((setting, pe)) and self.race.contested((setting, other))):
                self.open[index] = False

    def end_budget(self) -> None:
        """Note that comparisons that are still open ended with the budget."""
        for index in np.flatnonzero(self.open):
            self.notes[index] = "the budget ended"

    def places(self) -> dict[Cell, str]:
        """Return what became of each encoding in a race."""
        if not self.race:
            return {}
        rest: set[Cell] = set()
        for index in np.flatnonzero(~self._decided().any(0)):
            setting, *pair = self.comparisons[index]
            if not any(self.race.settled((setting, pe)) for pe in pair):
                rest |= {(setting, pe) for pe in pair}
        return {cell: self.race.place(cell, cell in rest) for cell in self.question.cells}

    def lines(self, margins: Mapping[Setting, float]) -> list[Line]:
        """Return a line per comparison."""
        decided, corrected = self._decided(), np.stack([holm(p) for p in self.p])
        signs, found = self._signs(), []
        for index, (setting, pe, other) in enumerate(self.comparisons):
            sample = self.samples[index]
            verdict = _verdict(sample, *decided[:, index], signs[index])
            mean, half = np.nan, np.nan
            if len(sample) > 1:
                tails = tail(self.look[index], len(self.design.looks), bool(decided[:, index].any()))
                mean = float(sample.mean())
                spread = self.deviation[index], self.freedom[index]
                half = float(half_width(*spread, np.array(len(sample)), tails))
            p = (self.p[0, index], corrected[0, index], self.p[1, index], corrected[1, index])
            margin = float(margins.get(setting, np.nan))
            look, note = int(self.look[index]) + 1, self.notes[index]
            found.append(
                Line(
                    setting,
                    pe,
                    other,
                    verdict,
                    mean,
                    mean - half,
                    mean + half,
                    len(sample),
                    look,
                    *map(float, p),
                    margin,
                    note,
                )
            )
        return found


def _reason(pe: str, seed: int, value: float | str) -> str:
    """Return why a cell has no result; empty if it has one."""
    if isinstance(value, str):
        return f"seed {seed} of {pe} failed: {value}"
    return "" if np.isfinite(value) else f"seed {seed} of {pe} has no finite value"


def _verdict(sample: np.ndarray, different: bool, equivalent: bool, sign: float) -> str:
    """Return the verdict of a comparison: sign is 1 where the encoding is better."""
    if len(sample) > 1 and not sample.any():
        return "equal"
    if different:
        return ("better" if sign > 0 else "worse") + (", within the margin" if equivalent else "")
    return "equivalent" if equivalent else "undecided"
