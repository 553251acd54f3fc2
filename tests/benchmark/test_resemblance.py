"""Encodings are alike by their scores and by their properties."""

import math

import pandas as pd
import pytest

from pe_lab.benchmark.resemblance import resemblance

TASKS = ("a", "b", "c", "d", "e", "f")


def scores(**by_pe: list[float]) -> pd.DataFrame:
    lines = [
        {"task": task, "length": 1, "pe": pe, "score": value}
        for pe, values in by_pe.items()
        for task, value in zip(TASKS, values, strict=False)
    ]
    return pd.DataFrame(lines)


GIVEN = scores(
    mine=[0.9, 0.1, 0.8, 0.2, 0.5, 0.6], twin=[0.9, 0.1, 0.8, 0.2, 0.5, 0.6], foe=[0.1, 0.9, 0.2, 0.8, 0.4, 0.4]
)


def test_a_copy_is_the_likest_and_its_opposite_comes_last() -> None:
    found = resemblance("mine", GIVEN, {})
    assert list(found["pe"]) == ["twin", "foe"]
    assert found["correlation"].iloc[0] == pytest.approx(1)
    assert found["correlation"].iloc[1] < -0.9
    assert found["tasks"].tolist() == [6, 6]
    assert found["properties"].isna().all()


def test_tasks_count_alike_whatever_their_spread() -> None:
    wide = GIVEN.assign(score=GIVEN["score"].where(GIVEN["task"] != "a", GIVEN["score"] * 1000))
    assert resemblance("mine", wide, {})["correlation"].tolist() == pytest.approx(
        resemblance("mine", GIVEN, {})["correlation"].tolist()
    )


def test_too_few_shared_tasks_or_one_value_have_no_correlation() -> None:
    few = pd.concat([GIVEN, scores(few=[0.3, 0.2, 0.1, 0.4])])
    found = resemblance("mine", few, {}).set_index("pe")
    assert math.isnan(found.loc["few", "correlation"])
    assert found.loc["few", "tasks"] == 4
    flat = GIVEN[GIVEN["pe"] == "mine"]
    assert resemblance("mine", pd.concat([flat, flat.assign(pe="twin")]), {})["correlation"].isna().all()


def test_properties_are_compared_by_rank() -> None:
    first = {"a": 1.0, "b": 5.0, "c": 1e9, "d": 0.0, "e": 2.0}
    last = {"a": 9.0, "b": 9.0, "c": 0.0, "d": 7.0, "e": 0.0}
    found = resemblance("mine", GIVEN, {"mine": first, "twin": dict(first), "foe": last}).set_index("pe")
    assert found.loc["twin", "properties"] == pytest.approx(1)
    assert found.loc["foe", "properties"] == pytest.approx(0.5)  # ranks 1.5 and 3 of 3
    assert found.loc["foe", "measures"] == 5
    assert math.isnan(resemblance("mine", GIVEN, {"mine": {"a": 1.0}})["properties"].iloc[0])
