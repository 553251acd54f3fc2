"""Score cards compare one encoding with all others, paired by seed."""

from collections import Counter

import pytest

from pe_lab.benchmark.card import card
from pe_lab.benchmark.card_page import sections, sentences
from pe_lab.benchmark.resemblance import resemblance
from pe_lab.report.page import html, markdown
from tests.benchmark.cells import OTHER, TASK, of, seeds

MINE = [0.10, 0.11, 0.12, 0.10]
ROPE = [0.50, 0.51, 0.52, 0.505]
MADE = {"own": ["a"], "others": ["b"]}


def verdicts(found, length=1):  # type: ignore[no-untyped-def]
    lines = found.lines[found.lines["length"] == length]
    return dict(zip(lines["other"], lines["verdict"], strict=True))


def test_verdicts_are_those_of_the_encoding_itself() -> None:
    others = of(TASK, seeds("rope", ROPE), seeds("best", [loss - 0.09 for loss in MINE]), seeds("same", MINE))
    found = card(of(TASK, seeds("mine", MINE)), others, {})
    assert found.pe == "mine"
    assert verdicts(found) == {"rope": "better", "best": "worse", "same": "equal"}
    (line,) = found.lines[found.lines["other"] == "rope"].to_dict("records")
    assert line["difference"] == pytest.approx(-0.40125)
    assert line["low"] < line["difference"] < line["high"] < 0
    assert line["margin"] == pytest.approx(0.05)
    assert line["task"] == "copy"


def test_only_shared_seeds_are_compared() -> None:
    found = card(of(TASK, seeds("mine", MINE[:3])), of(TASK, seeds("rope", ROPE), seeds("one", [0.3])), {})
    assert dict(zip(found.lines["other"], found.lines["seeds"], strict=True)) == {"rope": 3, "one": 1}
    assert verdicts(found)["one"] == "one seed"


def test_lengths_of_one_task_are_one_family_and_tasks_are_families_of_their_own() -> None:
    alone = card(of(TASK, seeds("mine", MINE)), of(TASK, seeds("rope", ROPE)), {})
    both = card(of(TASK, seeds("mine", MINE, ROPE)), of(TASK, seeds("rope", ROPE, MINE)), {})
    own = of(TASK, seeds("mine", MINE)) | of(OTHER, seeds("mine", MINE))
    tasks = card(own, of(TASK, seeds("rope", ROPE)) | of(OTHER, seeds("rope", ROPE)), {})
    first = both.lines[both.lines["length"] == 1]
    assert first["p_holm"].item() == pytest.approx(2 * alone.lines["p_holm"].item())
    assert tasks.lines["p_holm"].tolist() == pytest.approx(alone.lines["p_holm"].tolist() * 2)


def test_the_margin_beyond_the_training_length_is_a_share_of_the_gap_there() -> None:
    found = card(of(TASK, seeds("mine", MINE, MINE)), of(TASK, seeds("rope", ROPE, ROPE)), {})
    assert dict(zip(found.lines["length"], found.lines["margin"], strict=True)) == pytest.approx({1: 0.05, 2: 0.1})
    nats = card(of(OTHER, seeds("mine", MINE, MINE)), of(OTHER, seeds("rope", ROPE, ROPE)), {})
    assert nats.lines["margin"].tolist() == pytest.approx([0.02, 0.02])


def test_cells_of_the_encoding_itself_are_no_others() -> None:
    shipped = of(TASK, seeds("rope", ROPE), seeds("none", MINE))
    found = card(of(TASK, seeds("rope", ROPE)), shipped, {})
    assert (found.pe, found.others) == ("rope", ["none"])
    assert Counter(found.scores["pe"]) == {"rope": 4, "none": 4}
    fewer = card(of(TASK, seeds("rope", ROPE[:3])), shipped, {})
    assert Counter(fewer.scores["pe"]) == {"rope": 3, "none": 4}


def test_options_that_differ_from_the_shipped_encoding_make_a_name_of_their_own() -> None:
    others = of(TASK, seeds("rope", ROPE, theta=10000))
    found = card(of(TASK, seeds("rope", MINE, theta=5)), others, {})
    assert (found.pe, found.others) == ("rope theta=5", ["rope theta=10000"])


@pytest.mark.parametrize("own", [{}, of(TASK, seeds("mine", MINE)) | of(OTHER, seeds("yours", MINE))])
def test_a_card_is_of_one_encoding(own) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"a score card must be of one encoding, got (no cell|mine, yours)"):
        card(own, {}, {})


def test_the_summary_has_each_score_with_its_parts_and_its_rank() -> None:
    others = of(TASK, seeds("rope", ROPE), seeds("best", [0.0, 0.01, 0.02, 0.0]))
    (line,) = card(of(TASK, seeds("mine", MINE)), others, {}).summary().to_dict("records")
    assert (line["rank of mean"], line["seeds"], line["level"], line["best"]) == ("2 of 3", 4, 1.0, 0.0)
    assert line["low"] < line["score"] < line["high"]
    assert line["score"] == pytest.approx(1 - line["loss"])
    assert (line["better"], line["worse"], line["equivalent"], line["undecided"]) == (1, 1, 0, 0)


def test_the_page_begins_with_the_answer() -> None:
    others = of(TASK, seeds("rope", ROPE), seeds("none", MINE))
    found = card(of(TASK, seeds("mine", MINE)), others, {"digits": "it needs a causal mask"})
    assert sentences(found) == (
        "`mine` is better than `rope` on copy. Of its 2 comparisons with all 2 encodings, at all lengths, "
        "1 better, 0 worse, 1 equivalent and 0 undecided."
    )
    like = resemblance(found.pe, found.scores, {})
    parts = sections(found, like, MADE, 1.25)
    page, text = html("title", parts), markdown("title", parts)
    for told in ("What is mine good for?", "digits is left out: it needs a causal mask", "took 1.2 minutes"):
        assert told in page
        assert told in text
    assert "Every comparison with `rope` is decided" in text


def test_undecided_comparisons_have_a_command_that_decides_them() -> None:
    found = card(of(TASK, seeds("mine", [0.5, 0.1, 0.4])), of(TASK, seeds("rope", [0.4, 0.3, 0.3])), {})
    text = markdown("title", sections(found, resemblance(found.pe, found.scores, {}), MADE, 0))
    assert "python -m pe_lab.run -m +study=pe_bench_1_copy pe=rope,mine decide.seeds=3..24" in text
    assert "not decided against `rope` on copy" in text
    assert "took" not in text
