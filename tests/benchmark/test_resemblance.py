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
    """Only by half, the third one is like `mine`: the task that they agree on has no more weight than others."""
    given = pd.concat([GIVEN, scores(third=[0.7, 0.8, 0.4, 0.9, 0.1, 0.6])])
    expected = resemblance("mine", given, {}).set_index("pe")["correlation"]
    for task in ("a", "d"):
        wide = given.assign(score=given["score"].where(given["task"] != task, given["score"] * 1000))
        found = resemblance("mine", wide, {}).set_index("pe")["correlation"]
        assert found.to_dict() == pytest.approx(expected.to_dict())
    assert -0.9 < expected["third"] < 0.9


def test_means_over_seeds_are_compared_at_each_length() -> None:
    """A task at twice its length is another one; an encoding without scores is listed."""
    given = pd.concat([GIVEN, scores(third=[0.7, 0.8, 0.4, 0.9, 0.1, 0.6])], ignore_index=True)
    beyond = scores(mine=[0.1] * 3, twin=[0.2] * 3, foe=[0.3] * 3, third=[0.25] * 3).assign(length=2)
    change = pd.Series([0.4, -0.2, 0.3, 0.0, -0.4, 0.1] * 4).where(given["pe"] == "third", 0.0)
    seeds = [given.assign(score=given["score"] + part * change) for part in (1, 1, -2)]
    found = resemblance("mine", pd.concat([*seeds, beyond, scores(none=[float("nan")] * 6)]), {}).set_index("pe")
    assert found["tasks"].to_dict() == {"twin": 9, "foe": 9, "third": 9, "none": 0}
    means = resemblance("mine", pd.concat([given, beyond]), {}).set_index("pe")["correlation"]
    first = resemblance("mine", pd.concat([seeds[0], beyond]), {}).set_index("pe")["correlation"]
    assert found["correlation"]["third"] == pytest.approx(means["third"])
    assert abs(first["third"] - means["third"]) > 0.01


def test_one_standardized_value_has_no_correlation() -> None:
    found = resemblance("mine", scores(mine=[1.0] * 6, a=[0.0] * 6, b=[-1.0] * 6), {})
    assert found["tasks"].tolist() == [6, 6]
    assert found["correlation"].isna().all()


def test_a_task_on_which_all_are_equal_says_nothing() -> None:
    equal = scores(mine=[0.5], twin=[0.5], foe=[0.5]).assign(task="equal")
    found = resemblance("mine", pd.concat([GIVEN, equal]), {})
    assert found["tasks"].tolist() == [6, 6]
    assert found["correlation"].iloc[0] == pytest.approx(1)


def test_too_few_shared_tasks_or_one_value_have_no_correlation() -> None:
    few = pd.concat([GIVEN, scores(few=[0.3, 0.2, 0.1, 0.4])])
    found = resemblance("mine", few, {}).set_index("pe")
    assert math.isnan(found.loc["few", "correlation"])
    assert found.loc["few", "tasks"] == 4
    five = pd.concat([GIVEN, scores(five=[0.3, 0.2, 0.1, 0.4, 0.9])])
    assert -1 < resemblance("mine", five, {}).set_index("pe").loc["five", "correlation"] < 1
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
    four = {name: {key: value for key, value in first.items() if key != "e"} for name in ("mine", "twin")}
    assert resemblance("mine", GIVEN, four).set_index("pe").loc["twin", ["properties", "measures"]].isna().tolist() == [
        True,
        False,
    ]


def test_without_another_encoding_the_table_has_its_columns_and_no_line() -> None:
    alone = GIVEN[GIVEN["pe"] == "mine"]
    found = resemblance("mine", alone, {"mine": {"order": 1.0}})
    assert found.empty
    assert list(found) == list(resemblance("mine", GIVEN, {}))
