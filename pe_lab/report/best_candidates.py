"""Which encodings may be the best, by the verdicts of a report's families, and how to say it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import pandas as pd

from pe_lab.config import LR
from pe_lab.results.columns import (
    REMAINING_METRIC,
    STEPS_METRIC,
    in_words,
    lower_is_better,
    setting_columns,
)
from pe_lab.results.panels import settings_in_words
from pe_lab.results.study_comparisons import POOLED
from pe_lab.results.tuned_outcomes import is_lower_bound
from pe_lab.statistics import DIFFERENT_VERDICTS, EQUIVALENT_VERDICTS, GRID_TABLE, Families, Verdict
from pe_lab.statistics.cells import metric_unit
from pe_lab.statistics.comparisons import comparisons_with, count_in_words, exchange_pairs, verdicts_by_encoding
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS

FEW_SETTINGS = 4  # that are named one by one
MAX_LEFT_OUT = 2  # encodings that are named instead of the others
MAX_NAMED = 6  # encodings that are named in a sentence; more are counted
UNDECIDABLE = {Verdict.ONE_SEED, Verdict.NO_SEED, Verdict.EQUAL}  # verdicts without a test
MEAN = "`{first}` has the {superlative} mean {what}, {value}."
SENTENCES = {  # by what is decided: see `BestCandidates.case`
    "unsolved": "No run of any encoding solved the task.",
    "equal": "The {count} encodings have the same {what}, to the bit in every seed: {value}.",
    "untested": f"Nothing can be decided without two shared seeds. {MEAN}",
    "contradictory": f"No best encoding can be named: comparisons over unequal seeds contradict each other. {MEAN}",
    "incomplete": f"{MEAN} {{compared}}",
    "better": "`{first}` has the {comparative} {what}, {value}: significantly better than `{second}` by {gap}.",
    "best": "`{first}` has the {superlative} {what}, {value}: significantly better than every other encoding. "
    "The next is `{second}`, worse by {gap}.",
    "only": f"{MEAN} Only {{open}} can be the best.",
    "all open": f"No encoding is significantly better than another. {MEAN}{{alone}}",
    "open": f"{MEAN} The best may be any of {{open}}: none of them is significantly worse than another{{beyond}}.",
}
NOTES = {  # behind "only" and "open"
    "bitwise": "They are equal bit for bit.",
    "all alike": "They are equivalent within the margin.",
    "alike": "Equivalent to {top}: {alike}.",
    "near": "{nearly}.",
    "behind": "{worse}.",
}
OVER_SETTINGS = {  # by how many of the settings have one encoding that can be the best: all the same, some, none
    "same": "In each of {count} settings{why}, only {names} can be the best.",
    "some": "Of {count} settings{why}, {clear} have only one encoding that can be the best: {leads}.",
    "none": "In each of {count} settings{why}, several encodings may be the best.",
}
IN_ALL = {0: "No encoding can be the best in all of them.", 1: "Only {names} can be the best in all of them."}
IN_ALL_OF_SEVERAL = "In all of them, the best may be any of {names}."
IN_NONE = "In each of them, {names} {is_or_are} significantly worse than another encoding."


@dataclass(frozen=True)
class BestCandidates:
    """What the verdicts on the encodings of one table and setting leave open.

    Attributes:
        metric: the metric of the table.
        what: the metric in words.
        where: the settings that it is averaged over, in words; empty for one setting.
        means: the mean of each encoding, the best first.
        lines: the comparisons of every two; their verdicts say that encodings are equivalent, or the first certainly
            the best.
        open: the encodings than which no other is better: their best rank is 1, see `Families.ranks`.
        near: the open encodings that are slightly worse than another one, which does not change their best rank.
        behind: the other encodings.
        setting: the setting in words, where it is one of several, such as `at depth 4` or `on copy`.
    """

    metric: str
    what: str
    where: str
    means: dict[str, float]
    lines: pd.DataFrame
    open: list[str]
    near: list[str]
    behind: list[str]
    setting: str = ""

    @classmethod
    def of(cls, ranked: pd.DataFrame, lines: pd.DataFrame, metric: str, what: str, where: str = "") -> "BestCandidates":
        """Sort the encodings of one setting by what their comparisons leave open.

        Args:
            ranked: the lines of one setting from `Families.ranks`.
            lines: the comparisons of the same setting, as in `Families.lines`.
            metric: the metric of the table.
            what: the metric in words.
            where: the settings that it is averaged over, in words.
        """
        means = dict(zip(ranked["pe"], ranked["mean"], strict=True))
        lines = lines[lines["pe"].isin(means) & lines["baseline"].isin(means)]
        verdicts = verdicts_by_encoding(lines)
        against = {name: set(verdicts.get(name, {}).values()) for name in means}
        undefeated = [name for name in means if Verdict.WORSE not in against[name]]
        near = [name for name in undefeated if Verdict.SLIGHTLY_WORSE in against[name]]
        behind = [name for name in means if name not in undefeated]
        return cls(metric, what, where, means, lines, undefeated, near, behind)

    def verdicts(self, names: list[str]) -> set[str]:
        """Return the verdicts among these encodings."""
        return set(self.lines.loc[self.lines["pe"].isin(names) & self.lines["baseline"].isin(names), "verdict"])

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], dict[str, Any]]:
        lines = pd.concat([self.lines, exchange_pairs(self.lines)])
        columns = ["difference", "low", "high", "margin", "verdict", "seeds", "solved", "baseline_solved"]
        values = lines.reindex(columns=columns).to_dict("records")
        return dict(zip(zip(lines["pe"], lines["baseline"], strict=True), values, strict=True))

    def line(self, pe: str, other: str) -> dict[str, Any]:
        """Return the comparison of one minus another, from difference to verdict; undecided if not compared."""
        unknown = dict.fromkeys(("difference", "low", "high", "margin"), float("nan")) | {
            "verdict": str(Verdict.UNDECIDED)
        }
        return self._by_pair.get((pe, other), unknown)

    @property
    def complete(self) -> bool:
        """Whether every two encodings were compared, so that one that none beats can be the best."""
        pairs = combinations(self.means, 2)
        return all(pair in self._by_pair and self._by_pair[pair]["verdict"] != Verdict.NOT_ASKED for pair in pairs)

    @property
    def case(self) -> str:
        """What the verdicts decide: a key of SENTENCES."""
        names, verdicts = list(self.means), self.verdicts(list(self.means))
        if verdicts in ({Verdict.EQUAL}, {Verdict.BOTH_UNSOLVED}):
            return "equal" if Verdict.EQUAL in verdicts else "unsolved"
        if verdicts <= UNDECIDABLE | {Verdict.BOTH_UNSOLVED}:
            return "untested"
        if not self.complete:
            return "incomplete"
        if not self.open:
            return "contradictory"
        if self.open == names[:1] and all(
            self.line(names[0], other)["verdict"] == Verdict.BETTER for other in names[1:]
        ):
            return "better" if len(names) == 2 else "best"
        return "only" if len(self.open) == 1 else "open"

    @property
    def alike(self) -> list[str]:
        """Those of the encodings that may be the best that are equivalent to the first of them."""
        return [name for name in self.open[1:] if self.line(self.open[0], name)["verdict"] in EQUIVALENT_VERDICTS]

    @property
    def all_alike(self) -> bool:
        """Whether every two of the encodings that may be the best are equivalent."""
        return all(
            self.line(first, second)["verdict"] in EQUIVALENT_VERDICTS for first, second in combinations(self.open, 2)
        )

    @property
    def notes(self) -> list[str]:
        """What is said beside the encodings that may be the best: keys of NOTES."""
        if self.case not in ("only", "open"):
            return []
        alike = "bitwise" if self.verdicts(self.open) == {Verdict.EQUAL} else "all alike" if self.all_alike else "alike"
        notes = [alike] if self.alike else []
        return notes + [name for name in ("near", "behind") if getattr(self, name)]

    @property
    def decided(self) -> list[tuple[str, str]]:
        """The encodings that are worse, each with the best better one, where they are few; of the best, the next."""
        names = [name for name in self.means if name not in self.open]
        worse = names if len(names) <= MAX_LEFT_OUT else names[: self.case == "best"]
        return self._pairs(worse, Verdict.WORSE)

    @property
    def nearly(self) -> list[tuple[str, str]]:
        """The encodings that are slightly worse, each with the best slightly better one, where they are few."""
        return self._pairs(self.near, Verdict.SLIGHTLY_WORSE)

    def _pairs(self, names: list[str], verdict: Verdict) -> list[tuple[str, str]]:
        """Return encodings, each with the best one compared with which it has a verdict; of more than a few, none."""
        found = {
            name: next((other for other in self.means if self.line(name, other)["verdict"] == verdict), None)
            for name in (names if len(names) <= MAX_LEFT_OUT else [])
        }
        return [(name, other) for name, other in found.items() if other is not None]

    def gap(self, pe: str, other: str) -> str:
        """Return by how much an encoding is worse than another one, with its interval, in words."""
        line = self.line(pe, other)
        extent = extent_in_words(line, lambda value: _three_digits(value, self.metric))
        return f"{'at least ' * is_lower_bound(line)}{gap_in_words(line['difference'], self.metric)} ({extent})"

    def mean(self, name: str) -> str:
        """Return the mean of an encoding with its unit, as a bound where a run of it did not solve the task."""
        lines = comparisons_with(name, self.lines)
        bound = self.metric == STEPS_METRIC and "solved" in lines and bool((lines["solved"] < lines["seeds"]).any())
        return "at least " * bound + amount(self.means[name], self.metric)

    def words(self) -> str:
        """Say which encodings may be the best."""
        (first, second, *_), count = self.means, len(self.means)
        values = {
            **{"first": first, "second": second, "count": count, "what": self.what},
            **{"value": self.mean(first), "gap": self.gap(second, first)},
            **{"superlative": superlative(self.metric), "comparative": comparative(self.metric)},
            **{name: names_in_words(getattr(self, name), count) for name in ("open", "near", "behind", "alike")},
        }
        gaps = [f"`{pe}` is worse than `{other}` by {self.gap(pe, other)}" for pe, other in self.decided]
        values["alone"] = "" if self.alike else " No other is shown to be equivalent to it."
        values["beyond"] = " by as much as the margin" * bool(self.near)
        values["compared"] = _verdicts_by_name([self])
        values["top"] = f"`{self.open[0]}`" if self.open else ""
        near = [
            f"`{pe}` is worse than `{other}`, but by less than the margin: {self.gap(pe, other)}"
            for pe, other in self.nearly
        ]
        values["nearly"] = "; ".join(near) or f"Worse than another one, but by less than the margin: {values['near']}"
        values["worse"] = "; ".join(gaps) or f"Significantly worse than another one: {values['behind']}"
        case = "all open" if self.case == "open" and not (self.behind or self.near) else self.case
        templates = [SENTENCES[case], *(NOTES[name] for name in self.notes)]
        text = " ".join(template.format(**values) for template in templates)
        return f"{self.where}: {text}" if self.where else text

    def brief(self) -> str:
        """Say which encoding has the best mean, and which are worse, in one of several settings; the figure has all."""
        first = next(iter(self.means))
        if self.case not in ("only", "open") or self.open[:1] != [first]:
            return self.words()
        values = {"superlative": superlative(self.metric), "what": self.what}
        text = MEAN.format(first=first, value=self.mean(first), **values)
        gaps = [
            f"`{pe}`{'' if other == first else f' than `{other}`'} by {self.gap(pe, other)}"
            for pe, other in self.decided
        ]
        text += f" Equivalent to it: {names_in_words(self.alike, None)}." * bool(self.alike)
        return f"{text} Worse: {'; '.join(gaps) or names_in_words(self.behind, None)}." if self.behind else text


def _verdicts_by_name(per_setting: Sequence[BestCandidates]) -> str:
    """Return the verdicts of the comparisons that were asked for, where not every two encodings are compared.

    Of one setting, encodings are named; of several, comparisons are counted.
    """
    lines = pd.concat([candidates.lines for candidates in per_setting])
    lines = lines[lines["verdict"] != Verdict.NOT_ASKED]
    whom = f" with `{lines['baseline'].iloc[0]}`" if lines["baseline"].nunique() == 1 else ""
    if len(per_setting) > 1:
        counts = join_words([f"{count} {verdict}" for verdict, count in verdict_counts(lines).items()])
        return f"Of {len(lines)} comparisons{whom}: {counts}."
    told = [
        f"{verdict}: {names_in_words([str(name) for name in here['pe']], None)}"
        for verdict, here in lines.groupby("verdict", sort=False)
    ]
    return f"Compared{whom}: {'; '.join(told)}."


def overall(compared: Families) -> BestCandidates | None:
    """Return what is open in the only setting, or averaged over all; None where settings cannot be averaged."""
    rows, metric = compared.tables[GRID_TABLE]
    name = overall_table(compared)
    if name is None or len(ranked := compared.ranks(name)) < 2:
        return None
    pooled, what, where = compared.tables[name][1], metric_description(metric), ""
    if name == POOLED:
        names = setting_columns(rows)
        varied = [last_word(column) for column in names if rows[column].nunique(dropna=False) > 1]
        settings = "tasks" if varied == ["task"] else f"settings of {join_words(varied)}"
        where = f"Averaged over {len(rows[names].drop_duplicates())} {settings}"
        if left := rows["pe"].nunique() - len(ranked):
            where += f" and without {left} encoding{'s' * (left > 1)} that no seed has in all of them"
        what = f"share of the gap in {what} that remains" if pooled == REMAINING_METRIC else what
    return BestCandidates.of(ranked, compared.lines[name], pooled, what, where)


def overall_table(compared: Families) -> str | None:
    """Return the table that answers for all settings: the cells, or the pooled ones; None if they are not pooled."""
    rows, _ = compared.tables[GRID_TABLE]
    if len(rows[setting_columns(rows)].drop_duplicates()) == 1:
        return GRID_TABLE
    return POOLED if POOLED in compared.tables and len(compared.lines[POOLED]) else None


def undecided_by_setting(compared: Families) -> list[BestCandidates]:
    """Return what is open in each setting that has two encodings or more."""
    (rows, metric), lines = compared.tables[GRID_TABLE], compared.lines[GRID_TABLE]
    names = setting_columns(rows)
    at = "on" if "data" in names and rows["data"].nunique() > 1 else "at"
    ranked = compared.ranks(GRID_TABLE)
    groups = {_key(key): part for key, part in lines.groupby(names, sort=False, dropna=False)}
    per_setting, words = [], pd.Series(settings_in_words(ranked, names), ranked.index)
    for key, part in ranked.groupby(names, sort=False, dropna=False):
        if len(part) > 1:
            candidates = BestCandidates.of(part, groups[_key(key)], metric, metric_description(metric))
            per_setting.append(replace(candidates, setting=f"{at} {words[part.index[0]]}"))
    return per_setting


@dataclass(frozen=True)
class SettingCounts:
    """Which encodings can be the best in settings that are not averaged.

    Attributes:
        count: the number of settings.
        alone: the number of settings in which an encoding is the only one that can be the best, by encoding.
        always: the encodings that can be the best in all settings.
        never: the encodings that are significantly worse than another one in all settings.
    """

    count: int
    alone: dict[str, int]
    always: list[str]
    never: list[str]

    @classmethod
    def of(cls, per_setting: Sequence[BestCandidates]) -> "SettingCounts":
        alone = Counter(candidates.open[0] for candidates in per_setting if len(candidates.open) == 1)
        first = per_setting[0].open if per_setting else []
        always = [name for name in first if all(name in candidates.open for candidates in per_setting)]
        behind = per_setting[0].behind if per_setting else []
        never = [name for name in behind if all(name in candidates.behind for candidates in per_setting)]
        return cls(len(per_setting), dict(alone), always, never)

    def words(self, why: str) -> str:
        """Say which encodings can be the best, and in how many settings.

        Args:
            why: the clause on why settings are not averaged, which follows the word "settings".
        """
        clear, names = sum(self.alone.values()), names_in_words(self.always, None)
        case = "none" if not clear else "same" if set(self.alone.values()) == {self.count} else "some"
        leads = join_words([f"`{name}` in {number}" for name, number in self.alone.items()])
        text = OVER_SETTINGS[case].format(count=self.count, why=why, clear=clear, leads=leads, names=names)
        if case == "same":
            return text
        text = f"{text} {IN_ALL.get(len(self.always), IN_ALL_OF_SEVERAL).format(names=names)}"
        never, is_or_are = names_in_words(self.never, None), "are" if len(self.never) > 1 else "is"
        return f"{text} {IN_NONE.format(names=never, is_or_are=is_or_are)}" if self.never else text


def in_each_setting(
    per_setting: Sequence[BestCandidates], why: str = ", which cannot be averaged", only: str = "", where: str = ""
) -> str:
    """Say which encodings are the best or may be in settings that are not averaged.

    Args:
        per_setting: the candidates of each setting that has two encodings or more.
        why: the clause on why settings are not averaged, with the comma or the space before it.
        only: a clause on what distinguishes a single setting from the others.
        where: the phrase that names a single setting; empty: the only one with two encodings or more.
    """
    if not per_setting:
        return "No setting has results of two encodings."
    solved = [candidates for candidates in per_setting if candidates.case != "unsolved"]
    if solved and len(solved) < len(per_setting):
        which = " in which a run solved the task"
        return in_each_setting(solved, f"{which}, of {len(per_setting)}{why}", which)
    if len(per_setting) == 1:
        return replace(per_setting[0], where=where or f"In the only setting with two encodings or more{only}").words()
    if not all(candidates.complete for candidates in per_setting):
        return f"{_verdicts_by_name(per_setting)} {best_means(per_setting)}".rstrip()
    return SettingCounts.of(per_setting).words(why)


def capitalise(text: str) -> str:
    """Return a text with a capital at its start."""
    return text[0].upper() + text[1:]


def one_by_one(per_setting: Sequence[BestCandidates], more: Callable[[BestCandidates], str]) -> str:
    """Return an item of a list for each of a few settings: which encodings may be the best.

    Args:
        per_setting: the candidates of each setting, with the setting in words.
        more: a function that returns the text behind each item, which may be empty.
    """
    told = {candidates.setting: f"{candidates.brief()} {more(candidates)}".rstrip() for candidates in per_setting}
    return "".join(f"\n- **{capitalise(setting)}**: {words}" for setting, words in told.items())


def verdict_over_settings(per_setting: Sequence[BestCandidates], where: str = "") -> str:
    """Say which encodings may be the best in each of a few settings, and which in none.

    Args:
        where: the settings in words; empty: what follows names them.
    """
    counts, which = SettingCounts.of(per_setting), "both" if len(per_setting) == 2 else f"all {len(per_setting)}"
    always, never = (names_in_words(names, None).replace(" and ", " or ") for names in (counts.always, counts.never))
    near = any(name in candidates.near for candidates in per_setting for name in counts.always)
    best = f"may be the best{', or worse by less than the margin,' * near}"
    can = f"{always} {best}" if always else "no encoding may be the best"
    start = f"{where}, " if where else ""
    return capitalise(f"{start}{can} in {which}{f'; {never} in none' if never else ''}:")


def best_means(per_setting: Sequence[BestCandidates]) -> str:
    """Say which encodings have the best means, in how many settings, and what these are; nothing of one setting."""
    per_setting = [candidates for candidates in per_setting if candidates.case != "unsolved"]
    if len(per_setting) < 2:
        return ""
    metric, values = per_setting[0].metric, [next(iter(candidates.means.values())) for candidates in per_setting]
    counts = Counter(next(iter(candidates.means)) for candidates in per_setting).most_common()
    leads = [f"`{name}` in {count_in_words(count, 'setting')}" for name, count in counts[:MAX_NAMED]]
    leads += [f"others in {sum(count for _, count in counts[MAX_NAMED:])}"] if len(counts) > MAX_NAMED else []
    extent = f"{_three_digits(min(values), metric)} to {amount(max(values), metric)}"
    return f"The {superlative(metric)} mean {per_setting[0].what} ({extent}) is that of {join_words(leads)}."


def verdict_counts(lines: pd.DataFrame) -> dict[str, int]:
    """Return how many comparisons have each verdict; of all pairs, where either may stand first, how many differ."""
    verdicts = lines["verdict"].astype(str)
    if lines["baseline"].nunique() > 1:
        words = {str(word): f"{'slightly ' * word.startswith('slightly')}different" for word in DIFFERENT_VERDICTS}
        verdicts = verdicts.replace(words)
    return {str(word): int(count) for word, count in verdicts.value_counts().items()}


def metric_description(metric: str) -> str:
    """Return what a metric of the test is, in words."""
    return "number of steps to solve" if metric == STEPS_METRIC else f"test {in_words(metric)}"


def last_word(name: str) -> str:
    """Return the last part of a setting's dotted name; `task` for data, and the learning rate in words."""
    return {"data": "task", LR: "learning rate"}.get(name, name.rpartition(".")[2])


def amount(value: float, metric: str) -> str:
    """Return a value of a metric with its unit."""
    return f"{_three_digits(value, metric)} {unit_in_words(metric)}".rstrip()


def gap_in_words(value: float, metric: str) -> str:
    """Return the size of a difference of a metric: with its unit, or as a factor of steps."""
    return f"a factor of {_three_digits(abs(value), metric)}" if metric == STEPS_METRIC else amount(abs(value), metric)


def extent_in_words(line: Mapping[Any, Any], show: Callable[[float], str]) -> str:
    """Return the interval of the size of a difference, or of its lower bound, see `is_lower_bound`.

    Of fewer than MIN_SHOWN_SEEDS seeds, which are too few for an interval, return their number.

    Args:
        line: a comparison that has a difference.
        show: a function that returns a size as text.
    """
    if line["seeds"] < MIN_SHOWN_SEEDS:
        return f"mean of {count_in_words(int(line['seeds']), 'seed')}"
    low, high = map(show, sorted((abs(line["low"]), abs(line["high"]))))
    return f"95 % interval{' of this bound' * is_lower_bound(line)} {low} to {high}"


def _three_digits(value: float, metric: str) -> str:
    """Return three digits of a value or difference; of log2 of steps, of the steps or their ratio."""
    value = 2**value if metric == STEPS_METRIC else value
    return f"{value:.0f}" if metric == STEPS_METRIC and value >= 100 else f"{value:.3g}"


def unit_in_words(metric: str) -> str:
    """Return the unit behind a value of a metric; empty for shares and perplexities."""
    return {"nats": "nats", "bits": "bits", "gap": "of the gap", "octaves": "steps"}.get(metric_unit(metric), "")


def superlative(metric: str) -> str:
    return "lowest" if lower_is_better(metric) else "highest"


def comparative(metric: str) -> str:
    return "lower" if lower_is_better(metric) else "higher"


def names_in_words(names: list[str], among: int | None) -> str:
    """Return encodings in words: their names; of many, some and the number of the others; `the n` for all."""
    if len(names) <= MAX_NAMED:
        return join_words([f"`{name}`" for name in names])
    if among == len(names):
        return f"the {among}"
    return f"{', '.join(f'`{name}`' for name in names[:3])} and {len(names) - 3} more"


def join_words(words: list[str]) -> str:
    """Return words in a list, the last one after `and`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _key(key: Any) -> tuple[object, ...]:
    """Return a group's key as a tuple in which missing values are equal."""
    return tuple(None if pd.isna(value) else value for value in (key if isinstance(key, tuple) else (key,)))
