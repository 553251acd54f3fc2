"""Score cards compare one encoding with all others, paired by seed."""

from collections import Counter

import pandas as pd
import pytest

from pe_lab.benchmark.card import Card, card
from pe_lab.benchmark.card_page import sections, sentences
from pe_lab.benchmark.resemblance import resemblance
from pe_lab.report.page import html, markdown
from scored import rows, together

MINE = [0.10, 0.11, 0.12, 0.10]
ROPE = [0.50, 0.51, 0.52, 0.505]


def of(pe: str, *parts: pd.DataFrame, left_out: dict[str, str] | None = None) -> Card:
    """The card of an encoding."""
    table = together(*parts)
    return card(table, set(table.loc[table["pe"] == pe, "run"]), left_out or {})


def verdicts(found: Card, length: float = 1) -> dict[str, str]:
    lines = found.lines[found.lines["length"] == length]
    return dict(zip(lines["other"], lines["verdict"], strict=True))


def page_of(found: Card, minutes: float = 0) -> tuple[str, str]:
    parts = sections(found, resemblance(found.pe, found.scores, {}), minutes)
    return html("title", parts), markdown("title", parts)


def test_verdicts_are_those_of_the_encoding_itself() -> None:
    best = [loss - 0.09 for loss in MINE]
    found = of("mine", rows("rope", ROPE), rows("mine", MINE), rows("best", best), rows("same", MINE))
    assert found.pe == "mine"
    assert verdicts(found) == {"rope": "better", "best": "worse", "same": "equal"}
    (line,) = found.lines[found.lines["other"] == "rope"].to_dict("records")
    assert line["difference"] == pytest.approx(-0.40125)
    assert line["low"] < line["difference"] < line["high"] < 0
    assert line["margin"] == pytest.approx(0.05)
    assert line["task"] == "copy"


def test_only_shared_seeds_are_compared() -> None:
    found = of("mine", rows("mine", MINE[:3]), rows("rope", ROPE), rows("one", [0.3]))
    assert dict(zip(found.lines["other"], found.lines["seeds"], strict=True)) == {"rope": 3, "one": 1}
    assert verdicts(found)["one"] == "one seed"


def test_lengths_of_one_task_are_one_family_and_tasks_are_families_of_their_own() -> None:
    alone = of("mine", rows("mine", MINE), rows("rope", ROPE))
    both = of("mine", rows("mine", MINE, ROPE), rows("rope", ROPE, MINE))
    other = (rows("mine", MINE, task="sort"), rows("rope", ROPE, task="sort"))
    tasks = of("mine", rows("mine", MINE), rows("rope", ROPE), *other)
    first = both.lines[both.lines["length"] == 1]
    assert first["p_holm"].item() == pytest.approx(2 * alone.lines["p_holm"].item())
    assert tasks.lines["p_holm"].tolist() == pytest.approx(alone.lines["p_holm"].tolist() * 2)


def test_the_margin_beyond_the_training_length_is_a_share_of_the_gap_there() -> None:
    found = of("mine", rows("mine", MINE, MINE), rows("rope", ROPE, ROPE))
    assert dict(zip(found.lines["length"], found.lines["margin"], strict=True)) == pytest.approx({1: 0.05, 2: 0.1})
    nats = of("mine", rows("mine", MINE, MINE, "bag"), rows("rope", ROPE, ROPE, "bag"))
    assert nats.lines["margin"].tolist() == pytest.approx([0.02, 0.02])


def test_where_level_and_best_are_equal_beyond_the_training_length_the_margin_is_in_nats() -> None:
    mine, rope = (rows(pe, losses, losses) for pe, losses in (("mine", MINE), ("rope", ROPE)))
    parts = [part.assign(level=part["level"].where(part["length"] == 1, 0.0)) for part in (mine, rope)]
    found = of("mine", *parts)
    assert dict(zip(found.lines["length"], found.lines["margin"], strict=True)) == pytest.approx({1: 0.05, 2: 0.02})


def test_shipped_cells_of_the_encoding_itself_are_no_others() -> None:
    table = together(rows("rope", ROPE), rows("none", MINE))
    found = card(table, {"rope-copy-0", "rope-copy-1", "rope-copy-2"}, {})
    assert (found.pe, found.others) == ("rope", ["none"])
    assert Counter(found.scores["pe"]) == {"rope": 3, "none": 4}


def test_tasks_without_its_cells_are_left_out() -> None:
    found = of("mine", rows("mine", MINE), rows("rope", ROPE), rows("rope", ROPE, task="sort"))
    assert found.tasks() == [("copy", 1.0)]
    assert set(found.scores["task"]) == {"copy"}


@pytest.mark.parametrize(("own", "got"), [(set(), "no cell"), ({"mine-copy-0", "rope-copy-0"}, "mine, rope")])
def test_a_card_is_of_one_encoding(own: set[str], got: str) -> None:
    with pytest.raises(ValueError, match=f"a score card must be of one encoding, got {got}"):
        card(together(rows("mine", MINE), rows("rope", ROPE)), own, {})


def test_the_summary_has_each_score_with_its_parts_and_its_rank() -> None:
    found = of("mine", rows("mine", MINE), rows("rope", ROPE), rows("best", [0.0, 0.01, 0.02, 0.0]))
    (line,) = found.summary().to_dict("records")
    assert (line["rank of mean"], line["seeds"], line["level"], line["best"]) == ("2 of 3", 4, 1.0, 0.0)
    assert line["low"] < line["score"] < line["high"]
    assert line["score"] == pytest.approx(1 - line["loss"])
    assert (line["better"], line["worse"], line["equivalent"], line["undecided"]) == (1, 1, 0, 0)


def test_costs_are_medians_over_cells() -> None:
    found = of("mine", rows("mine", MINE[:3], MINE[:3]), rows("rope", ROPE[:3]))
    costs = {"positional_parameters": 4, "parameters": 9, "flops_per_token": 2, "seconds": 4}
    assert found.costs().loc["mine"].to_dict() == costs


def test_the_page_begins_with_the_answer() -> None:
    left_out = {"digits": "it needs a causal mask"}
    found = of("mine", rows("mine", MINE), rows("rope", ROPE), rows("none", MINE), left_out=left_out)
    assert sentences(found) == (
        "`mine` is better than `rope` on copy. Of its 2 comparisons with all 2 encodings, at all lengths, "
        "1 better, 0 worse, 1 equivalent and 0 undecided."
    )
    for text in page_of(found, 1.25):
        assert "What is mine good for?" in text
        assert "digits is left out: it needs a causal mask" in text
        assert "took 1.2 minutes" in text
        assert "Its own cells: the machine of mine, torch 2.13.0" in text
        assert "Every comparison with" in text
    assert "took" not in page_of(found)[1]


def test_undecided_comparisons_have_a_command_that_decides_them() -> None:
    found = of("mine", rows("mine", [0.5, 0.1, 0.4]), rows("rope", [0.4, 0.3, 0.3]))
    text = page_of(found)[1]
    assert "python -m pe_lab.run -m +study=pe_bench_1_copy pe=rope,mine decide.seeds=3..24" in text
    assert "not decided against `rope` on copy" in text


def test_an_encoding_with_options_is_named_with_them_in_commands() -> None:
    found = of("rope theta=5 fast=true", rows("rope theta=5 fast=true", [0.5, 0.1, 0.4]), rows("rope", [0.4, 0.3, 0.3]))
    command = "python -m pe_lab.benchmark pe=rope pe.theta=5 pe.fast=true --tasks=copy --seeds=12"
    assert command in page_of(found)[1]


def test_rope_itself_is_compared_with_none() -> None:
    found = of("rope", rows("rope", ROPE), rows("none", MINE))
    assert sentences(found).startswith("`rope` is worse than `none` on copy.")
    assert "## Against none" in page_of(found)[1]


def test_a_task_without_scores_has_a_page_too() -> None:
    equal = rows("mine", MINE, task="bag").assign(level=0.0, score=float("nan"))
    other = rows("rope", ROPE, task="bag").assign(level=0.0, score=float("nan"))
    found = of("mine", equal, other)
    assert "bag" in page_of(found)[1]
    assert found.summary()["rank of mean"].tolist() == ["1 of 2"]
    assert of("rope", equal, other).summary()["rank of mean"].tolist() == ["2 of 2"]
