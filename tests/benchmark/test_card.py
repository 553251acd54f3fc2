"""Score cards compare one encoding with all others, paired by seed."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paged import text_of
from pe_lab.benchmark.card import Card, card, count_verdicts
from pe_lab.benchmark.card_page import WORST, sections, sentences
from pe_lab.benchmark.resemblance import resemblance
from pe_lab.benchmark.tasks import Task, tasks
from pe_lab.report.page import html
from pe_lab.report.parts import Drawn, Table
from pe_lab.statistics import Margin, interval, prior_of
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


def page_of(found: Card, minutes: float = 0) -> str:
    return text_of(html("title", sections(found, resemblance(found.pe, found.scores, {}), minutes)))


def section(found: Card, title: str, like: pd.DataFrame | None = None) -> list[pd.DataFrame]:
    """The tables of a section of the page."""
    like = resemblance(found.pe, found.scores, {}) if like is None else like
    (chosen,) = (one for one in sections(found, like, 0) if one.title.startswith(title))
    return [part.data for part in chosen.parts if isinstance(part, Table)]


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


def test_variances_are_estimated_from_all_encodings_together() -> None:
    """As in `statistics.moderation`: with more degrees of freedom than four seeds give."""
    noise = np.random.default_rng(3).normal(0, 0.01, (4, 6))
    losses = noise + np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    found = of("mine", *(rows(pe, losses[:, n].tolist()) for n, pe in enumerate(["mine", "a", "b", "c", "d", "e"])))
    prior = prior_of(losses, 0.0, keep_small=True)
    assert prior.freedom > 1
    for n, line in enumerate(found.lines.to_dict("records"), 1):
        difference = losses[:, 0] - losses[:, n]
        variance, freedom = prior.moderate(np.array([difference.var(ddof=1)]), np.array([3.0]))
        half = (stats.t.ppf(0.975, freedom) * np.sqrt(variance / 4)).item()
        assert line["freedom"] == pytest.approx(freedom.item())
        assert (line["low"], line["high"]) == pytest.approx((difference.mean() - half, difference.mean() + half))


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


def test_a_margin_in_nats_holds_without_a_gap_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pe_lab.benchmark.card.tasks", lambda: (Task("pe_bench_1_copy", "", "?", Margin(0.07, "nats")),)
    )
    found = of("mine", rows("mine", MINE).assign(level=0.0), rows("rope", ROPE).assign(level=0.0))
    assert found.lines["margin"].tolist() == pytest.approx([0.07])


def test_losses_are_compared_at_all_lengths() -> None:
    """At twice the length, a gap of 2 makes another difference of scores."""
    found = of("mine", rows("mine", MINE, MINE), rows("rope", ROPE, ROPE))
    assert found.lines["difference"].tolist() == pytest.approx([-0.40125, -0.40125])


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


def test_the_summary_is_of_each_task_and_length_alone() -> None:
    """The mean decides the rank: `lucky` has the smallest loss of all, and one that is large."""
    lucky = rows("lucky", [0.0, 0.9, 0.9, 0.9])
    sort = (rows(pe, ROPE, task="sort") for pe in ("mine", "rope"))
    found = of("mine", rows("mine", MINE, ROPE), rows("rope", ROPE, [loss / 9 for loss in MINE]), lucky, *sort)
    summary = found.summary()
    assert list(zip(summary["task"], summary["length"], strict=True)) == [("copy", 1), ("copy", 2), ("sort", 1)]
    assert summary["rank of mean"].tolist() == ["1 of 3", "2 of 2", "1 of 2"]
    assert summary["score"].tolist() == pytest.approx([1 - np.mean(MINE), 1 - np.mean(ROPE) / 2, 1 - np.mean(ROPE)])
    assert (summary["low"][0], summary["high"][0]) == pytest.approx(interval(1 - pd.Series(MINE)))
    counts = summary[["better", "worse", "equivalent", "undecided"]].to_numpy().tolist()
    assert counts == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]


def test_verdicts_are_counted_in_four_words() -> None:
    words = ["better", "better, within the margin", "worse", "worse", "equivalent", "equal", "undecided", "one seed"]
    counted = {"better": 1, "worse": 2, "equivalent": 3, "undecided": 3}
    assert count_verdicts(pd.Series([*words, "no shared seed"])) == counted


def test_costs_are_medians_over_cells() -> None:
    """Each cell counts once, measured at one length or at two."""
    mine = rows("mine", MINE, MINE[:1]).assign(seconds=lambda lines: (1.0 + lines["seed"]) ** 2)
    found = of("mine", mine, rows("rope", ROPE[:3]))
    costs = {"positional_parameters": 4, "parameters": 9, "flops_per_token": 2, "seconds": 6.5}
    assert found.costs().loc["mine"].to_dict() == costs


def test_the_page_begins_with_the_answer() -> None:
    left_out = {"digits": "it needs a causal mask"}
    found = of("mine", rows("mine", MINE), rows("rope", ROPE), rows("none", MINE), left_out=left_out)
    assert sentences(found) == (
        "`mine` is better than `rope` on copy. Of its 2 comparisons with all 2 encodings, at all lengths, "
        "1 better, 0 worse, 1 equivalent and 0 undecided."
    )
    text = page_of(found, 1.25)
    assert "What is mine good for?" in text
    assert "digits is left out: it needs a causal mask" in text
    assert "took 1.2 minutes" in text
    assert "Its own cells: the machine of mine, torch 2.13.0" in text
    assert "Every comparison with" in text
    assert "took" not in page_of(found)


def test_undecided_comparisons_have_a_command_that_decides_them() -> None:
    found = of("mine", rows("mine", [0.5, 0.1, 0.4]), rows("rope", [0.4, 0.3, 0.3]))
    text = page_of(found)
    assert "python -m pe_lab.run -m +study=pe_bench_1_copy pe=rope,mine decide.seeds=5..24" in text
    assert "not decided against `rope` on copy" in text


def test_an_encoding_with_options_is_named_with_them_in_commands() -> None:
    """Up to the seeds of the baseline; where that has no more, there is nothing to run."""
    own = rows("rope theta=5 fast=true", [0.5, 0.1, 0.4])
    found = of("rope theta=5 fast=true", own, rows("rope", [0.4, 0.3, 0.3, 0.2, 0.5]))
    command = "python -m pe_lab.benchmark pe=rope pe.theta=5 pe.fast=true --tasks=copy --seeds="
    assert f"{command}5" in page_of(found)
    page = page_of(of("rope theta=5 fast=true", own, rows("rope", [0.4, 0.3, 0.3])))
    assert command not in page
    assert "where none stands, it has no more" in page


def test_the_rank_is_by_differences_over_shared_seeds() -> None:
    """The two seeds that only the others have are harder for all."""
    own = rows("mine", [0.5, 0.5, 0.5])
    others = [rows("rope", [0.4, 0.4, 0.4, 0.9, 0.9]), rows("alibi", [0.6, 0.6, 0.6, 0.9, 0.9])]
    assert of("mine", own, *others).summary()["rank of mean"].tolist() == ["2 of 3"]


def test_rope_itself_is_compared_with_none() -> None:
    found = of("rope", rows("rope", ROPE), rows("none", MINE))
    assert sentences(found).startswith("`rope` is worse than `none` on copy.")
    assert "## Against none" in page_of(found)


def test_a_task_without_scores_has_a_page_too() -> None:
    equal = rows("mine", MINE, task="bag").assign(level=0.0, score=float("nan"))
    other = rows("rope", ROPE, task="bag").assign(level=0.0, score=float("nan"))
    found = of("mine", equal, other)
    assert "bag" in page_of(found)
    assert found.summary()["rank of mean"].tolist() == ["1 of 2"]
    assert of("rope", equal, other).summary()["rank of mean"].tolist() == ["2 of 2"]


# -- the parts of the page ---------------------------------------------------------------------------------------------


def test_the_first_sentence_is_about_the_training_length_and_counts_all_verdicts() -> None:
    found = of("mine", rows("mine", MINE, ROPE), rows("rope", ROPE, MINE), rows("one", [0.3]))
    assert sentences(found) == (
        "`mine` is better than `rope` on copy. Of its 3 comparisons with all 2 encodings, at all lengths, "
        "1 better, 1 worse, 0 equivalent and 1 undecided."
    )


def test_the_others_are_without_the_encoding_itself() -> None:
    found = of("mine", rows("mine", MINE), rows("rope", ROPE), rows("none", MINE))
    expected = "The others: the machine of rope, torch 2.13.0 and the machine of none, torch 2.13.0."
    assert expected in page_of(found)


def test_the_figure_has_scores_of_all_encodings_and_the_interval_of_this_one() -> None:
    """Below -0.5, they are drawn there; one seed has no interval."""
    bad = rows("mine", [2.0, 2.5, 2.2, 2.3], task="sort")
    parts = (
        rows("rope", ROPE, MINE),
        rows("none", [0.7]),
        rows("rope", ROPE, task="sort"),
        rows("mine", [0.3], task="bag"),
    )
    found = of("mine", rows("mine", MINE, ROPE), bad, *parts)
    summary = found.summary()
    (drawn,) = (
        part for part in sections(found, pd.DataFrame(columns=["properties"]), 0)[0].parts if isinstance(part, Drawn)
    )
    (axes,) = drawn.plot.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["copy", "copy, 2 × as long", "sort", "bag"]
    lines = [(line.get_marker(), line.get_xdata(), line.get_ydata()) for line in axes.lines]
    dots = [(float(x[0]), int(y[0])) for marker, x, y in lines if marker == "o"]
    assert dots == [(pytest.approx(max(score, WORST)), row) for row, score in enumerate(summary["score"])]
    grey = {int(y[0]): sorted(map(float, x)) for marker, x, y in lines if marker == "|"}
    rope, beyond = 1 - float(np.mean(ROPE)), 1 - float(np.mean(MINE)) / 2
    assert grey == {0: pytest.approx([0.3, rope]), 1: pytest.approx([beyond]), 2: pytest.approx([rope])}
    ends = [tuple(map(float, x)) for marker, x, _ in lines if marker == "None" and len(x) == 2][: len(summary)]
    assert ends[:2] == [pytest.approx(pair) for pair in zip(summary["low"][:2], summary["high"][:2], strict=True)]
    assert ends[2:] == [(WORST, WORST), pytest.approx((0.7, 0.7))]


def test_each_task_is_shown_with_what_it_asks() -> None:
    found = of("mine", rows("mine", MINE), rows("mine", MINE, task="sort"), rows("rope", ROPE))
    (table,) = section(found, "Every task")
    asks = {task.name: task.asks for task in tasks()}
    assert table["asks"].tolist() == [asks["copy"], asks["sort"]]
    assert len(set(table["asks"])) == 2


def test_comparisons_with_the_baseline_and_with_each_encoding_are_shown() -> None:
    zebra, one = rows("zebra", [loss - 0.09 for loss in MINE], MINE), rows("one", [0.3])
    found = of("mine", zebra, rows("rope", ROPE, MINE), rows("mine", MINE, ROPE), rows("equal", MINE), one)
    (against,) = section(found, "Against rope")
    assert list(zip(against["other"], against["length"], strict=True)) == [("rope", 1), ("rope", 2)]
    (counts,) = section(found, "Against each encoding")
    assert counts.to_dict("list") == {
        "encoding": ["zebra", "rope", "equal", "one"],
        "better": [0, 1, 0, 0],
        "worse": [2, 1, 0, 0],
        "equivalent": [0, 0, 1, 0],
        "undecided": [0, 0, 0, 1],
    }


def test_what_is_alike_is_shown_by_scores_and_by_properties() -> None:
    """Ten of each; the table is sorted by scores."""
    found = of("mine", rows("mine", MINE), rows("rope", ROPE))
    numbers = range(12)
    given = pd.DataFrame({"pe": [f"e{n}" for n in numbers], "correlation": [1 - n / 12 for n in numbers]})
    scores, properties = section(found, "What mine is like", given.assign(properties=[n * 5 % 12 for n in numbers]))
    assert scores["pe"].tolist() == [f"e{n}" for n in range(10)]
    assert properties["properties"].tolist() == list(range(11, 1, -1))


def test_costs_are_shown_beside_those_of_rope_and_none() -> None:
    found = of("mine", rows("a", MINE), rows("none", MINE), rows("mine", MINE), rows("rope", ROPE))
    (table,) = section(found, "What it costs")
    assert table["encoding"].tolist() == ["mine", "rope", "none"]
    assert table["positional_parameters"].tolist() == [4, 4, 4]


def test_what_to_run_next_is_what_needs_the_fewest_seeds_first() -> None:
    """Seeds for a difference or for equivalence, whichever are fewer; none are said where it takes more than 100."""
    rope, mine, other = [], [], [0.5, 0.52, 0.48, 0.5]
    for task, near, beyond in (
        ("place", (1.0, -1.2, 1.1, -0.8), (0.3,) * 4),
        ("copy", (-0.3,) * 4, (0.1, -0.04, 0.14, -0.02)),
        ("sort", (0.1, -0.04, 0.14, -0.05), (0.0,) * 4),
        ("recall", (0.1, -0.1, 0.1, -0.0999), (0.0,) * 4),
    ):
        losses = [np.add(other, change).tolist() for change in (near, beyond)]
        rope.append(rows("rope", other, other, task))
        mine.append(rows("mine", *losses, task))
    found = of("mine", *rope, *mine, rows("undecided", [0.5, 0.1, 0.9, 0.3]))
    (table,) = section(found, "What to run next")
    shown = list(zip(table["task"], table["length"], strict=True))
    assert shown == [("copy", 2), ("recall", 1), ("sort", 1), ("place", 1)]
    lines = found.lines[found.lines["other"] == "rope"].set_index(["task", "length"]).loc[shown]
    assert set(lines["verdict"]) == {"undecided"}
    assert lines["seeds_equivalent"].iloc[1] < lines["seeds_needed"].iloc[2] < lines["seeds_needed"].iloc[1]
    fewest = [min(pair) for pair in zip(lines["seeds_needed"], lines["seeds_equivalent"], strict=True)]
    assert table["seeds"].tolist()[:3] == fewest[:3] == sorted(fewest[:3])
    assert fewest[3] > 100
    assert np.isnan(table["seeds"].iloc[3])
    assert [f"+study=pe_bench_1_{task} " in text for text, (task, _) in zip(table["command"], shown, strict=True)] == [
        True
    ] * 4


def test_an_encoding_without_another_has_a_page_that_compares_nothing() -> None:
    """As on a task of which nothing is shipped."""
    found = of("mine", rows("mine", MINE))
    assert found.others == []
    assert found.lines.empty
    page = page_of(found)
    assert "0 comparisons with all 0 encodings" in page
    assert "nan" not in page.lower().split()
