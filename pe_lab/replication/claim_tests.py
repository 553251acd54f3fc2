"""Claims of the registry: their tests, and their universes."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from pe_lab.replication.entry import UNIVERSE_SUFFIX, Claimed, Condition, Entry
from pe_lab.replication.fields import require_finite, require_keys, require_list, require_mapping, require_text

RULES = ("above", "below", "near")
COMPARISONS = {"minus", "over"}  # of a value with another
TEST_KEYS = ("says", "each", "value", *COMPARISONS, *RULES)
CONDITION_PATTERN = re.compile(r"([<>]=?)\s*(-?[\d.]+(?:e-?\d+)?)")  # of a condition on a column of numbers


def universe_claim(where: str, entry: Entry) -> Entry:
    """Return the claim of an entry in all settings of its universe, all tests of which are corrected together.

    Raises:
        ValueError: a test has a column of the universe.
    """
    (words,) = entry.studies.values()
    values, settings = {}, list(product(*entry.universe.values()))
    for choice in settings:
        setting = dict(zip(entry.universe, choice, strict=True))
        columns = {"depth" if key == "model.depth" else key: value for key, value in setting.items()}
        for label, test in entry.values.items():
            assert isinstance(test, Claimed)
            if twice := columns.keys() & set(test.value).union(*test.others):
                raise ValueError(f"{where}, {label!r} must leave {', '.join(twice)} to the universe, which has it too")
            tested = replace(test, value={**test.value, **columns}, setting=setting)
            values[f"{_in_words(setting)}: {label}"] = tested
    name = f"{entry.name}/{UNIVERSE_SUFFIX}"
    minutes = None if entry.minutes is None else entry.minutes * len(settings)
    studies = {name.replace("/", "-"): words}
    return replace(entry, name=name, values=values, minutes=minutes, timed=False, studies=studies)


def universe_grid(where: str, universe: Any, studies: Mapping[str, Any]) -> dict[str, tuple[Condition, ...]]:
    """Return the values of settings of a universe."""
    if len(studies) != 1:
        raise ValueError(f"{where} must have tests on one study to have a universe, got {len(studies)}")
    values = {
        str(key): tuple(require_list(f"{where}, universe.{key}", item))
        for key, item in require_mapping(where, "universe", universe).items()
    }
    for key, several in values.items():
        if len(several) < 2 or len(set(several)) < len(several):
            raise ValueError(f"{where} must have different values of universe.{key}, at least two, got {several}")
    return values


def tests_by_label(where: str, cell: Mapping[str, Any]) -> dict[str, Claimed]:
    """Return the parts of a claim by label."""
    if "published" in cell:
        raise ValueError(f"{where} must have either published or tests, got both")
    tests: dict[str, Claimed] = {}
    for test in require_list(f"{where}, tests", cell["tests"]):
        require_keys(where, require_mapping(where, "a test", test), TEST_KEYS)
        says = require_text(where, "says of a test", test.get("says"))
        here = f"{where}, {says!r}"
        rule, how = (
            _get_only_key(here, test, RULES),
            _get_only_key(here, test, COMPARISONS) if COMPARISONS & test.keys() else None,
        )
        bound = require_finite(f"{here}, {rule}", test[rule])
        if how == "over" and not bound > 0:
            raise ValueError(f"{here} must compare a ratio with a number above 0, got {bound:g}")
        changes = test[how] if how else []
        others = tuple(
            _row_conditions(f"{here}, {how}", change)
            for change in (changes if isinstance(changes, list) else [changes])
        )
        each = {key: require_list(f"{here}, each.{key}", value) for key, value in test.get("each", {}).items()}
        for choice in product(*each.values()):
            columns = dict(zip(each, choice, strict=True))
            value, label = (
                {**columns, **_row_conditions(f"{here}, value", test.get("value"))},
                _fill_label(says, columns),
            )
            if "metric" not in value:
                raise ValueError(f"{here} must have a value with a metric, got {', '.join(value)}")
            if label in tests:
                raise ValueError(f"{where} must have tests that say different things, got {label!r} twice")
            tests[label] = Claimed(value, others, how == "over", rule, bound)
    return tests


def _get_only_key(where: str, test: Mapping[str, Any], keys: Collection[str]) -> str:
    """Return the only one of some keys that a test has."""
    rules = [key for key in test if key in keys]
    if len(rules) != 1:
        raise ValueError(
            f"{where} must have a rule, one of {', '.join(sorted(keys))}, got {', '.join(rules) or 'none'}"
        )
    return rules[0]


def _fill_label(says: str, columns: Mapping[str, Any]) -> str:
    """Return a text with the values of the columns that it names, after those that it does not."""
    rest = {key: value for key, value in columns.items() if f"{{{key}}}" not in says}
    for key, value in columns.items():
        says = says.replace(f"{{{key}}}", str(value))
    return f"{_in_words(rest)}: {says}" if rest else says


def _in_words(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def _row_conditions(where: str, conditions: Any) -> dict[str, Condition]:
    """Return what rows must have, by column."""
    by_column = {}
    for key, value in require_mapping(where, "conditions by column", conditions).items():
        several = tuple(value) if isinstance(value, list) else (value,)
        if not several or any(type(item) not in (str, int, float, bool) for item in several):
            raise ValueError(f"{where}: {key} must be a value, a list of values, max, or a comparison, got {value!r}")
        if str(value).startswith(("<", ">")) and not CONDITION_PATTERN.fullmatch(str(value)):
            raise ValueError(f"{where}: {key} must be compared with a number, as '> 1', got {value!r}")
        by_column[str(key)] = several if isinstance(value, list) else value
    return by_column
