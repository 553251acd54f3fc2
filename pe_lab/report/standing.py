"""Which encodings may be the best, by the verdicts of a report's families, and how to say it."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import pandas as pd

from pe_lab.report.choice import POOLED
from pe_lab.results.columns import REMAINING, lower_is_better, setting_columns
from pe_lab.results.verdicts import (
    BETTER,
    EQUAL,
    EQUIVALENT,
    NO_SEED,
    ONE_SEED,
    SLIGHTLY_WORSE,
    UNDECIDED,
    WORSE,
    reverse,
)
from pe_lab.statistics import GRID, Families
from pe_lab.statistics.comparisons import turned

MOST_NAMED = 6  # encodings that are named in a sentence; more are counted
SAME = {EQUIVALENT, EQUAL}  # verdicts without a significant difference, and within the margin
UNDECIDABLE = {ONE_SEED, NO_SEED, EQUAL}  # verdicts without a test


@dataclass(frozen=True)
class Standing:
    """What the verdicts on the encodings of one table and setting leave open.

    Attributes:
        metric: of the table.
        what: the metric in words.
        where: what it is averaged over, in words; empty for one setting.
        means: by encoding, the best first.
        lines: the comparisons of every two; their verdicts say that encodings are equivalent, or the first certainly
            the best.
        open: encodings than which no other is better: their best rank is 1, see `Families.ranks`.
        near: those of them that are slightly worse than another one, which does not rank.
        behind: the rest.
    """

    metric: str
    what: str
    where: str
    means: dict[str, float]
    lines: pd.DataFrame
    open: list[str]
    near: list[str]
    behind: list[str]

    @classmethod
    def of(cls, ranked: pd.DataFrame, lines: pd.DataFrame, metric: str, what: str, where: str = "") -> "Standing":
        """Sort the encodings of one setting by what their comparisons leave open.

        Args:
            ranked: from Families.ranks, of one setting.
            lines: from Families.lines, of the same setting.
            metric: of the table.
            what: the metric in words.
            where: what it is averaged over, in words.
        """
        means = dict(zip(ranked["pe"], ranked["mean"], strict=True))
        lines = lines[lines["pe"].isin(means) & lines["baseline"].isin(means)]
        verdicts = {name: set(turned(name, lines)["verdict"]) for name in means}
        undefeated = [name for name, found in verdicts.items() if WORSE not in found]
        near = [name for name in undefeated if SLIGHTLY_WORSE in verdicts[name]]
        behind = [name for name in means if name not in undefeated]
        return cls(metric, what, where, means, lines, undefeated, near, behind)

    def verdicts(self, names: list[str]) -> set[str]:
        """Return the verdicts among these encodings."""
        return set(self.lines.loc[self.lines["pe"].isin(names) & self.lines["baseline"].isin(names), "verdict"])

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], dict[str, Any]]:
        columns = ["difference", "low", "high", "verdict"]
        return dict(
            zip(
                zip(self.lines["pe"], self.lines["baseline"], strict=True),
                self.lines[columns].to_dict("records"),
                strict=True,
            )
        )

    def line(self, pe: str, other: str) -> dict[str, Any]:
        """Return difference, low, high and verdict of an encoding minus another one; undecided if not compared."""
        if (pe, other) in self._by_pair:
            return self._by_pair[pe, other]
        if (other, pe) not in self._by_pair:
            return dict.fromkeys(("difference", "low", "high"), float("nan")) | {"verdict": UNDECIDED}
        line = self._by_pair[other, pe]
        turned = {"difference": -line["difference"], "low": -line["high"], "high": -line["low"]}
        return turned | {"verdict": reverse(line["verdict"])}

    def words(self) -> str:
        """Say which encodings may be the best, in one sentence."""
        text = self._words()
        return f"{self.where}, {text[0].lower()}{text[1:]}" if self.where else text

    def _words(self) -> str:
        names, verdicts = list(self.means), self.verdicts(list(self.means))
        what, first, value = self.what, names[0], amount(self.means[names[0]], self.metric)
        if verdicts == {EQUAL}:
            return f"All {len(names)} encodings have the same {what}, to the bit in every seed: {value}."
        mean = f"the {superlative(self.metric)} mean {what} is that of `{first}` ({value})"
        if verdicts <= UNDECIDABLE:
            return (
                f"Nothing can be decided without two shared seeds: {mean}, but the best may be any of the {len(names)}."
            )
        if not self.open:
            return f"No best encoding can be named: {mean}, but comparisons over unequal seeds contradict each other."
        if self.open == [first] and all(self.line(first, other)["verdict"] == BETTER for other in names[1:]):
            return self._certain()
        if len(self.open) == 1:
            sure = f"only `{self.open[0]}` can be the best"
            text = f"{_capital(sure)}; {mean}" if self.open[0] != first else f"{_capital(mean)}, and {sure}"
        else:
            text = f"{_capital(mean)}, but the best may be any of {listed(self.open, len(names))}{self._alike()}"
        if self.near:
            text += f"; {listed(self.near, len(names))} {_is(self.near)} significantly worse than another one, "
            text += "but by less than the margin, which does not rank"
        if self.behind:
            text += f"; {listed(self.behind, len(names))} {_is(self.behind)} significantly worse than another one"
        return f"{text}."

    def _alike(self) -> str:
        """Say which of the encodings that may be the best are significantly alike: each two, or some and the first."""
        if any(self.line(one, other)["verdict"] not in SAME for one, other in combinations(self.open, 2)):
            first = self.open[0]
            same = [name for name in self.open[1:] if self.line(first, name)["verdict"] in SAME]
            return f", of which {listed(same, None)} {_is(same)} equivalent to `{first}`" if same else ""
        found = self.verdicts(self.open)
        if found == {EQUAL}:
            return ", which are equal bit for bit"
        return ", which are equivalent within the margin"

    def _certain(self) -> str:
        """Say which encoding is significantly the best, and by how much."""
        first, second = list(self.means)[:2]
        line = self.line(first, second)
        low, high = sorted((abs(line["low"]), abs(line["high"])))
        by = f"{amount(abs(line['difference']), self.metric)} (95 % interval {low:.3g} to {high:.3g})"
        value = amount(self.means[first], self.metric)
        if len(self.means) == 2:
            has = f"`{first}` has the {comparative(self.metric)} {self.what}, {value}"
            return f"{has}: significantly better than `{second}` by {by}."
        has = f"`{first}` has the {superlative(self.metric)} {self.what}, {value}"
        return f"{has}: significantly better than each other encoding. The next is `{second}`, worse by {by}."


def overall(compared: Families) -> Standing | None:
    """Return what is open in the only setting, or averaged over all; None where settings cannot be averaged."""
    rows, metric = compared.tables[GRID]
    name = table_of(compared)
    if name is None or len(ranked := compared.ranks(name)) < 2:
        return None
    pooled, what, where = compared.tables[name][1], f"test {in_words(metric)}", ""
    if name == POOLED:
        names = setting_columns(rows)
        varied = [last_word(column) for column in names if rows[column].nunique(dropna=False) > 1]
        settings = "tasks" if varied == ["task"] else f"settings of {joined(varied)}"
        where = f"Averaged over {len(rows[names].drop_duplicates())} {settings}"
        if left := rows["pe"].nunique() - len(ranked):
            where += f" and without {left} encoding{'s' * (left > 1)} that no seed has in all of them"
        what = f"share of the gap in {what} that remains" if pooled == REMAINING else what
    return Standing.of(ranked, compared.lines[name], pooled, what, where)


def table_of(compared: Families) -> str | None:
    """Return the table that answers for all settings: the cells, or the pooled ones; None if they are not pooled."""
    rows, _ = compared.tables[GRID]
    if len(rows[setting_columns(rows)].drop_duplicates()) == 1:
        return GRID
    return POOLED if POOLED in compared.tables and len(compared.lines[POOLED]) else None


def by_setting(compared: Families) -> list[Standing]:
    """Return what is open in each setting that has two encodings or more."""
    (rows, metric), lines = compared.tables[GRID], compared.lines[GRID]
    names, ranked = setting_columns(rows), compared.ranks(GRID)
    groups = {_key(key): part for key, part in lines.groupby(names, sort=False, dropna=False)}
    found = []
    for key, part in ranked.groupby(names, sort=False, dropna=False):
        if len(part) > 1:
            found.append(Standing.of(part, groups[_key(key)], metric, f"test {in_words(metric)}"))
    return found


def in_each_setting(found: list[Standing], why: str = "which cannot be averaged") -> str:
    """Say which encodings are the best or may be in settings that are not averaged, in one sentence.

    Args:
        found: what is open in each setting that has two encodings or more.
        why: they are not averaged.
    """
    if not found:
        return "No setting has results of two encodings."
    if len(found) == 1:
        return replace(found[0], where="In the only setting with two encodings or more").words()
    count = len(found)
    alone = Counter(one.open[0] for one in found if len(one.open) == 1)
    if set(alone.values()) == {count}:
        return f"In each of {count} settings, {why}, only `{next(iter(alone))}` can be the best."
    text = f"In none of {count} settings, {why}, is it clear which encoding is the best"
    if alone:
        (first, most), *others = alone.items()
        parts = [
            f"only `{first}` can be the best in {most}",
            *(f"only `{name}` in {number}" for name, number in others),
        ]
        text = f"Of {count} settings, {why}, {joined(parts)}"
        if unclear := count - alone.total():
            text += f", and in {unclear} it is not clear which encoding is the best"
    return f"{text}; {_in_all(found)}."


def _in_all(found: list[Standing]) -> str:
    """Say which encodings can be the best in all of two or more settings."""
    where = "both" if len(found) == 2 else f"all {len(found)}"
    always = [name for name in found[0].open if all(name in one.open for one in found)]
    if len(always) == 1:
        return f"`{always[0]}` is the only encoding that can be the best in {where}"
    return f"{listed(always, None) if always else 'no encoding'} can be the best in {where}"


def in_words(metric: str) -> str:
    """Return the name of a metric in words."""
    return metric.replace("_", " ")


def last_word(name: str) -> str:
    """Return the last part of a setting's dotted name; `task` for data."""
    return "task" if name == "data" else name.rpartition(".")[2]


def amount(value: float, metric: str) -> str:
    """Return a value or a difference of a metric with its unit."""
    if metric == REMAINING:
        return f"{value:.3g} of the gap"
    return f"{value:.3g}{' nats' if metric.split('_')[0] == 'loss' else ' bits' if 'bits' in metric else ''}"


def superlative(metric: str) -> str:
    return "lowest" if lower_is_better(metric) else "highest"


def comparative(metric: str) -> str:
    return "lower" if lower_is_better(metric) else "higher"


def listed(names: list[str], among: int | None) -> str:
    """Return encodings in words: their names; of many, some and the number of the others; `the n` for all."""
    if len(names) <= MOST_NAMED:
        return joined([f"`{name}`" for name in names])
    if among == len(names):
        return f"the {among}"
    return f"{', '.join(f'`{name}`' for name in names[:3])} and {len(names) - 3} more"


def joined(words: list[str]) -> str:
    """Return words in a list, the last one after `and`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _key(key: Any) -> tuple[object, ...]:
    """Return a group's key as a tuple in which missing values are equal."""
    return tuple(None if pd.isna(value) else value for value in (key if isinstance(key, tuple) else (key,)))
