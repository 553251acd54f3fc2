"""Studies that add seeds: which cells are needed next and what is decided, from the results alone.

Each look tests the undecided comparisons. Its p values are divided by the part of the level that the look uses, so they
are valid at whichever look a comparison stops, and Holm's method over them is valid under any stopping rule. All looks
are computed again each time, so a study gives the same verdicts wherever and however often it is continued. Results
that no look requested are not used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from pe_lab.statistics.cells import unknown_name_message
from pe_lab.statistics.correction import holm
from pe_lab.statistics.look_levels import check_looks, level_shares
from pe_lab.statistics.pairs import t_tests
from pe_lab.statistics.race import Race
from pe_lab.statistics.verdicts import LEVEL, MIN_SEEDS, Verdict, verdicts_on

ALL_PAIRS, BEST = "all pairs", "best"

Setting = tuple[Any, ...]
Arm = tuple[Setting, str]  # an encoding in a setting: the cells of all seeds
Values = Mapping[tuple[Arm, int], float | str]  # by cell and seed: the metric, or why the cell failed


@dataclass(frozen=True)
class SequentialDesign:
    """The design of a study that adds seeds.

    Args:
        cells: the encodings of each setting, in the order of the study.
        baseline: an encoding that all others are compared with; `all pairs`; or `best`, a race for the best `best`.
        best: how many encodings are to be left in each setting; only with `best`.
        lower_is_better: whether a lower value is better.

    Raises:
        ValueError: there is no such encoding in a setting, only one encoding, or not fewer than `best` ones.
    """

    cells: Sequence[Arm]
    baseline: str
    best: int | None = None
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        settings = self.settings
        for setting, encodings in settings.items():
            where = f" in setting {', '.join(map(str, setting))}" if len(settings) > 1 else ""
            if len(encodings) < 2:
                raise ValueError(f"decide needs at least two encodings{where}, got {', '.join(encodings)}")
            if self.baseline not in (ALL_PAIRS, BEST, *encodings):
                raise ValueError(
                    unknown_name_message("decide.baseline", (*encodings, ALL_PAIRS, BEST), self.baseline, where)
                )
            if self.baseline == BEST and not 1 <= self.places < len(encodings):
                raise ValueError(f"decide.best must be in 1 ... {len(encodings) - 1}{where}, got {self.best}")
        if self.best is not None and self.baseline != BEST:
            raise ValueError(f"decide.best={self.best} needs decide.baseline={BEST}, got {self.baseline!r}")

    @property
    def places(self) -> int:
        return 1 if self.best is None else self.best

    @property
    def settings(self) -> dict[Setting, list[str]]:
        """The encodings of each setting."""
        encodings: dict[Setting, list[str]] = {}
        for setting, pe in self.cells:
            encodings.setdefault(setting, []).append(pe)
        return encodings

    @property
    def comparisons(self) -> list[tuple[Setting, str, str]]:
        """The family of comparisons: setting, encoding, baseline."""
        pairs: list[tuple[Setting, str, str]] = []
        for setting, encodings in self.settings.items():
            if self.baseline in (ALL_PAIRS, BEST):
                pairs += [(setting, pe, other) for pe, other in combinations(encodings, 2)]
            else:
                pairs += [(setting, pe, self.baseline) for pe in encodings if pe != self.baseline]
        return pairs


@dataclass(frozen=True)
class SequentialComparison:
    """A comparison and its verdict.

    Attributes:
        setting, pe, baseline: the setting and the two encodings; the baseline is subtracted.
        verdict: better, worse, slightly better, slightly worse, equivalent, equal, or undecided.
        difference, low, high: mean over seeds, and its 95 % interval; NaN for fewer than 2 seeds.
        seeds, look: the number of seeds at which the comparison stopped, and the number of that look, from 1.
        p, p_equivalent: the p values of that look, corrected for the looks; p_corrected, p_equivalent_corrected: also
            for the family.
        margin: the smallest difference that matters, in the unit of the metric.
        note: why the comparison stopped undecided.
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
    p_corrected: float
    p_equivalent: float
    p_equivalent_corrected: float
    margin: float
    note: str = ""


@dataclass(frozen=True)
class StudyDecision:
    """The progress of a study.

    Attributes:
        look: the number of the look that is reached, from 1; with `needed`, the one that needs cells.
        needed: the cells with their seeds that this look needs and that are not there; none: the study has ended.
        lines: a line per comparison.
        places: the outcome of each encoding in a race; otherwise empty.
    """

    look: int
    needed: list[tuple[Arm, int]]
    lines: list[SequentialComparison]
    places: dict[Arm, str] = field(default_factory=dict)

    @property
    def undecided(self) -> list[str]:
        """The encodings with an undecided comparison; both of a pair, if all pairs are compared."""
        baselines = {line.baseline for line in self.lines}
        chosen = [line for line in self.lines if line.verdict == Verdict.UNDECIDED]
        both = ((line.pe, line.baseline) if len(baselines) > 1 else (line.pe,) for line in chosen)
        return list(dict.fromkeys(pe for pair in both for pe in pair))


def decide_cells(
    design: SequentialDesign,
    looks: tuple[int, ...],
    values: Values,
    margins: Mapping[Setting, float],
    most: int | None = None,
) -> StudyDecision:
    """Go through the looks of a study as far as the results allow.

    Args:
        looks: ascending numbers of seeds, from 2.
        values: the metric of each cell and seed on the test split, or the reason of its failure; values that no look
            asks for are ignored.
        margins: the margin of each setting, above 0, in the unit of the metric; not needed before the first look is
            complete.
        most: the number of looks after which the budget ends; None: no budget.

    Raises:
        ValueError: looks do not ascend from 2.
    """
    check_looks(looks)
    study, last = _Study(design, looks), 0
    for number, seeds in enumerate(looks[:most]):
        cells = study.cells_of_open()
        if not cells:
            break
        needed = [(cell, seed) for cell in cells for seed in range(seeds) if (cell, seed) not in values]
        if needed:
            return StudyDecision(number + 1, needed, study.lines(margins), study.places())
        study.take(number, values, margins)
        last = number + 1
    if most is not None and most < len(looks):
        for index in np.flatnonzero(study.open):
            study.notes[index] = "the budget ended"
    return StudyDecision(last, [], study.lines(margins), study.places())


class _Study:
    """The comparisons of a study between two looks.

    Attributes:
        open: whether each comparison is still undecided.
        failed: whether each comparison ended because a cell failed; it stays undecided, whatever its p values.
        look: the index of the last look of each comparison; -1 before the first.
        p: the p values of a difference and of equivalence, corrected for the looks [2, comparisons].
        tests: difference, low and high of each comparison at its last look [3, comparisons].
        equal: whether the encodings of each comparison are equal to the bit.
        results: the values that were asked for so far, by setting [seeds, encodings]; NaN where there is none.
    """

    def __init__(self, design: SequentialDesign, looks: tuple[int, ...]) -> None:
        self.design, self.looks, self.parts = design, looks, level_shares(looks)
        self.comparisons, settings = design.comparisons, design.settings
        size = len(self.comparisons)
        self.open, self.failed, self.equal = np.ones(size, bool), np.zeros(size, bool), np.zeros(size, bool)
        self.look, self.p, self.tests = np.full(size, -1), np.ones((2, size)), np.full((3, size), np.nan)
        self.columns = {(setting, pe): column for setting, pes in settings.items() for column, pe in enumerate(pes)}
        self.results = {setting: np.full((looks[-1], len(pes)), np.nan) for setting, pes in settings.items()}
        self.notes = [""] * size
        self.race = Race(settings, design.places) if design.baseline == BEST else None

    def cells_of_open(self) -> list[Arm]:
        """Return the cells of open comparisons, each once."""
        chosen = [self.comparisons[number] for number in np.flatnonzero(self.open)]
        return list(dict.fromkeys((setting, pe) for setting, *pair in chosen for pe in reversed(pair)))

    def take(self, number: int, values: Values, margins: Mapping[Setting, float]) -> None:
        """Test all open comparisons with the seeds of this look, and close the decided ones."""
        reasons = {cell: self._keep_results(cell, self.looks[number], values) for cell in self.cells_of_open()}
        for index in np.flatnonzero(self.open):
            setting, *pair = self.comparisons[index]
            failed = [(setting, pe) for pe in pair if reasons[setting, pe]]
            if failed:
                self.open[index], self.failed[index], self.notes[index] = False, True, reasons[failed[0]]
            for cell in failed if self.race else []:
                self.race.withdraw(cell)  # type: ignore[union-attr]
        for setting in self.design.settings:
            here = [index for index in np.flatnonzero(self.open) if self.comparisons[index][0] == setting]
            if here:
                self._test_open(np.array(here), number, setting, margins[setting])
        tested = self.open.copy()
        self.open &= ~self._find_decided().any(0)
        if self.race:
            self._run_race(self.race, tested)

    def _keep_results(self, cell: Arm, seeds: int, values: Values) -> str:
        """Keep the results of a cell that a look asked for; return why it failed, or an empty text."""
        reason = ""
        for seed in range(seeds):
            value = values[cell, seed]
            if isinstance(value, str):
                reason = reason or f"seed {seed} of {cell[1]} failed: {value}"
            elif np.isfinite(value):
                self.results[cell[0]][seed, self.columns[cell]] = value
            else:
                reason = reason or f"seed {seed} of {cell[1]} has no finite value"
        return reason

    def _test_open(self, here: np.ndarray, number: int, setting: Setting, margin: float) -> None:
        """Test the open comparisons of a setting; their variances are moderated by all pairs of it."""
        y, look = self.results[setting], self.looks[number]
        names = [self.comparisons[index][1:] for index in here]
        first, second = (np.array([self.columns[setting, pair[side]] for pair in names]) for side in (0, 1))
        tests = t_tests(y, (first, second), margin)
        self.look[here], self.tests[:, here] = number, (tests.difference, tests.low, tests.high)
        self.equal[here] = (y[:look, first] == y[:look, second]).all(0)
        self.tests[:, self.equal] = 0.0
        p_equivalent = tests.p_equivalent if look >= MIN_SEEDS else np.ones(len(here))
        p = np.minimum(np.stack([tests.p, p_equivalent]) / self.parts[number], 1.0)
        self.p[:, here] = np.where(self.equal[here], [[1.0], [0.0]], p)

    def _find_decided(self) -> np.ndarray:
        """Return whether each comparison is decided as a difference and as equivalent: [2, comparisons]."""
        decided: np.ndarray = (holm(self.p) < LEVEL) & ~self.failed
        return decided

    def _signs_of_means(self) -> np.ndarray:
        """Return 1 where the encoding is better than its baseline, -1 where it is worse, by the mean."""
        signs: np.ndarray = np.sign(np.nan_to_num(self.tests[0])) * (-1 if self.design.lower_is_better else 1)
        return signs

    def _run_race(self, race: Race, tested: np.ndarray) -> None:
        """Settle places by the differences of this look: one that ended before may be decided later, by other seeds."""
        signs = self._signs_of_means()
        for index in np.flatnonzero(tested & self._find_decided()[0]):
            setting, pe, other = self.comparisons[index]
            race.beats((setting, pe if signs[index] > 0 else other), (setting, other if signs[index] > 0 else pe))
        race.settle()
        for index in np.flatnonzero(self.open):
            setting, pe, other = self.comparisons[index]
            self.open[index] = race.contested((setting, pe)) and race.contested((setting, other))

    def places(self) -> dict[Arm, str]:
        """Return what became of each encoding in a race."""
        if not self.race:
            return {}
        rest: set[Arm] = set()
        for index in np.flatnonzero(~self._find_decided().any(0)):
            setting, *pair = self.comparisons[index]
            if not any(self.race.settled((setting, pe)) for pe in pair):
                rest |= {(setting, pe) for pe in pair}
        return {cell: self.race.place(cell, cell in rest) for cell in self.design.cells}

    def lines(self, margins: Mapping[Setting, float]) -> list[SequentialComparison]:
        """Return a line per comparison."""
        corrected, lines = holm(self.p), []
        p, p_equivalent = np.where(self.failed, 1.0, corrected)
        sizes = np.array([margins.get(setting, np.nan) for setting, *_ in self.comparisons])
        verdict = verdicts_on(self.tests[0], p, p_equivalent, sizes, self.design.lower_is_better)
        verdict = np.where(self.equal, str(Verdict.EQUAL), verdict)
        for index, (setting, pe, other) in enumerate(self.comparisons):
            look = int(self.look[index])
            difference, low, high = map(float, self.tests[:, index])
            lines.append(
                SequentialComparison(
                    setting,
                    pe,
                    other,
                    str(verdict[index]),
                    difference,
                    low,
                    high,
                    seeds=self.looks[look] if look >= 0 else 0,
                    look=look + 1,
                    p=float(self.p[0, index]),
                    p_corrected=float(corrected[0, index]),
                    p_equivalent=float(self.p[1, index]),
                    p_equivalent_corrected=float(corrected[1, index]),
                    margin=float(sizes[index]),
                    note=self.notes[index],
                )
            )
        return lines
