"""Scores, and the parts that they are made of."""

import math
from typing import Any

import pytest

from pe_lab.benchmark.score import score, scores
from pe_lab.results.shipped import Shipped
from pe_lab.system.files import digest

FLOORS = {"bayes": {"loss": 0.25, "accuracy": 1.0}, "position_blind": {"loss": 1.25}, "prior": {"loss": 2.0}}
COST = {"parameters": 9, "positional_parameters": 1, "flops_per_token": 2.0, "seconds": 3.0}


def cell(pe: str, seed: int, test: dict[str, float], floors: dict[str, Any], records: list[Any]) -> Shipped:
    identity = {"pe": {"name": pe}, "data": {"name": "copy"}, "model": {"depth": 2}, "seed": seed}
    summary = {"run": digest(identity), "epochs": 4, "test": test, "floors": floors, "tokens_per_sequence": 35}
    summary |= COST | {"attention": "sdpa", "device": "cpu"}
    return Shipped(identity, 4, summary, {}, {}, "", records)


def record(length: float, loss: float, **changes: object) -> dict[str, Any]:
    request = {"kind": "length", "length": length, "policy": "raw", "offset": 0, **changes}
    metrics = {"loss": loss, "accuracy": 0.5, "bayes/loss": 0.0, "position_blind/loss": 2.0}
    return {"request": request, "rows": [{"tokens": 70, "metric": name, "value": x} for name, x in metrics.items()]}


def test_a_score_is_a_share_of_the_way() -> None:
    assert [score(loss, 1.25, 0.25) for loss in (0.25, 1.25, 0.75, 3.25)] == [1.0, 0.0, 0.5, -2.0]


def test_a_line_per_cell_and_length_with_floors_of_its_own() -> None:
    cells = [
        cell("rope", seed, {"loss": 0.5, "accuracy": 0.9, "exact_match": 0.3}, FLOORS, [record(2, 1.0)])
        for seed in (0, 1)
    ]
    found = scores(cells)
    assert list(found["pe"]) == ["rope"] * 4
    assert list(found["seed"]) == [0, 0, 1, 1]
    assert list(found["length"]) == [1, 2, 1, 2]
    assert list(found["tokens"]) == [35, 70, 35, 70]
    assert list(found["score"]) == pytest.approx([0.75, 0.5, 0.75, 0.5])
    assert list(found["level"]) == [1.25, 2.0, 1.25, 2.0]
    assert list(found["best"]) == [0.25, 0.0, 0.25, 0.0]
    assert found["exact_match"].tolist()[0] == 0.3
    assert math.isnan(found["exact_match"].tolist()[1])


def test_lines_are_of_their_encodings_in_the_order_given() -> None:
    found = scores([cell(pe, 0, {"loss": loss}, FLOORS, []) for pe, loss in (("alibi", 0.5), ("rope", 0.25))])
    assert found.set_index("pe")["loss"].to_dict() == {"alibi": 0.5, "rope": 0.25}


@pytest.mark.parametrize("changes", [{"policy": "yarn"}, {"offset": 64}, {"kind": "probe"}, {"kind": "decode"}])
def test_other_measurements_have_no_score(changes: dict[str, Any]) -> None:
    assert len(scores([cell("rope", 0, {"loss": 0.5}, FLOORS, [record(2, 1.0, **changes)])])) == 1


def test_without_floors_the_reference_level_counts_and_nothing_is_the_best() -> None:
    floors = {"unigram": {"loss": 4.0}, "xz": {"loss": 2.0}}
    assert scores([cell("rope", 0, {"loss": 1.0}, floors, [])])["score"].tolist() == [0.75]


def test_a_level_that_is_no_worse_than_the_best_gives_no_score() -> None:
    floors = {"bayes": {"loss": 0.5}, "position_blind": {"loss": 0.5}}
    assert math.isnan(scores([cell("rope", 0, {"loss": 0.7}, floors, [])])["score"].iloc[0])


def test_no_cells_give_no_lines() -> None:
    assert scores([]).empty
