"""An entry of the registry: published numbers or a claim, and how we repeat them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pe_lab.statistics import Published

UNIVERSE_SUFFIX = "universe"  # the last part of the name of a claim that is asked in all settings of its universe


@dataclass(frozen=True)
class Reported:
    """A published number of an entry.

    Attributes:
        published: the number, with its spread and seeds where they are stated.
        metric: the metric that we measure: a metric of the task, `error` (1 - accuracy) or `perplexity` (e^loss).
        lengths: the lengths of the test, in training lengths; over several, the mean is taken.
    """

    published: Published
    metric: str
    lengths: tuple[float, ...] = (1.0,)

    def __str__(self) -> str:
        return f"{self.published.mean:.4g}"


Condition = str | float | bool | tuple[str | float | bool, ...]


@dataclass(frozen=True)
class Claimed:
    """A part of a claim: a value of each seed, whose mean is tested against a bound.

    Attributes:
        value: the rows that the value is a mean over: the name of a `metric`, and by column what rows must have there:
            a value, one of several, `max`, or a comparison as "> 1". A column `length` or `probe` asks for records.
        others: changes of these conditions. The value with the first is subtracted; of two, the difference with the
            second is subtracted from the difference.
        ratio: whether values are divided, and tested in logarithms; otherwise they are subtracted.
        rule: the rule of the test: "above", "below" or "near" (within the tolerance of the entry).
        bound: the number that the mean is compared with.
        setting: the values of a universe's settings that the test is for, by the key of the config; empty outside a
            universe.
    """

    value: Mapping[str, Condition]
    others: tuple[Mapping[str, Condition], ...]
    ratio: bool
    rule: str
    bound: float
    setting: Mapping[str, Condition] = field(default_factory=dict)

    @property
    def is_difference(self) -> bool:
        """Whether the value is a difference, which is shown with its sign; otherwise it is a level or a ratio."""
        return bool(self.others) and not self.ratio

    def __str__(self) -> str:
        return f"{self.rule} {self.bound:g}"


@dataclass(frozen=True)
class Entry:
    """A published cell: what was reported, and how we repeat it.

    Attributes:
        name: the names of the entry's file and of its cell, as `formal_counting/majority_none`.
        title, paper: the title of the publication, and its address.
        says: what the authors say, in a sentence of ours.
        source: the place in the publication where the number stands.
        seen: whether we read it there.
        unit: the unit of the numbers.
        values: the published numbers or the parts of a claim, by a label, as the range of lengths.
        tolerance: the difference below which means count as the same.
        seeds: the number of our seeds at the first look.
        setting: the overrides of `pe-lab run`.
        chosen: what the authors leave unsaid, or do otherwise, and what we do.
        lacks: what this package would need to repeat the entry; None: nothing.
        minutes: the core-minutes of a seed.
        timed: whether the minutes were measured; otherwise they are an estimate.
        studies: the overrides of `pe-lab run -m` that train a claim, by the name of the study.
        tasks: the tasks of a claim on the benchmark's rows, which come with the package: nothing is trained.
        universe: the values of a claim's settings that are as reasonable as those of its study, by setting.
        brief: `says` in a few words.
    """

    name: str
    title: str
    paper: str
    says: str
    source: str
    seen: bool
    unit: str
    values: Mapping[str, Reported | Claimed]
    tolerance: float
    seeds: int
    setting: tuple[str, ...]
    chosen: tuple[str, ...]
    lacks: str | None
    minutes: float | None
    timed: bool
    studies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    universe: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    brief: str = ""

    @property
    def everywhere(self) -> bool:
        """Whether this is a claim in all settings of its universe."""
        return self.name.endswith(f"/{UNIVERSE_SUFFIX}")

    def overrides(self) -> list[str]:
        """Return the setting of published numbers, with the lengths that are measured."""
        reported = [value for value in self.values.values() if isinstance(value, Reported)]
        lengths = sorted({length for value in reported for length in value.lengths})
        evaluated = [] if lengths == [1.0] else [f"evaluate.lengths=[{','.join(f'{length:g}' for length in lengths)}]"]
        return [*self.setting, *evaluated]


def benchmark_commands(entry: Entry) -> str:
    """Return the commands that train what a claim on the benchmark's rows compares, joined by "&&"."""
    seeds = ",".join(map(str, range(entry.seeds)))
    return " && ".join(f"pe-lab run -m {' '.join(words)} seed={seeds}" for words in entry.studies.values())


def training_overrides(entry: Entry, seeds: int) -> dict[str, list[str]]:
    """Return the overrides of `pe-lab run -m` that train an entry, by the name of a study."""
    studies = entry.studies or {entry.name.replace("/", "-"): tuple(entry.overrides())}
    grid = [f"{key}={','.join(map(str, values))}" for key, values in entry.universe.items() if entry.everywhere]
    return {name: [*words, *grid, f"seed=range({seeds})", f"study_name={name}"] for name, words in studies.items()}
