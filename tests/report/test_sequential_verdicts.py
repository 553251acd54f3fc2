"""A sequential study is answered by its sequential verdicts, and by no others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from pe_lab.report import answer, overview_figures, sequential_verdicts
from pe_lab.report.best_candidates import SettingCounts
from pe_lab.report.parts import CaptionedFigure
from pe_lab.report.report_subject import ReportSubject, results_section
from pe_lab.report.sequential_verdicts import decisions
from pe_lab.results import frame
from pe_lab.statistics import GRID_TABLE, Margin

LOSSES = {"rope": 1.0, "alibi": 0.6, "none": 1.5}


def cells(depths=(1, 4)) -> pd.DataFrame:
    rng, rows = np.random.default_rng(0), []
    for depth in depths:
        for pe, loss in LOSSES.items():
            for seed in range(3 if pe == "none" else 6):
                value = loss + rng.normal(0, 0.01)
                rows.append({"pe": pe, "data": "copy", "depth": depth, "epochs": 4, "seed": seed, "test_loss": value})
    return pd.DataFrame(rows).assign(test_accuracy=0.5)


def lines(depths=(1, 4), verdicts=("undecided", "worse"), pairs=(("alibi", "rope"), ("none", "rope"))) -> pd.DataFrame:
    rows = [
        {"data": "copy", "depth": depth, "epochs": 4, "pe": pe, "baseline": other, "verdict": verdict}
        | {"difference": LOSSES[pe] - LOSSES[other], "low": -0.5, "high": 0.6, "seeds": 6, "look": 2}
        | {
            "p": 0.01,
            "p_corrected": 0.02,
            "p_equivalent": 0.9,
            "p_equivalent_corrected": 1.0,
            "margin": 0.05,
            "note": "",
        }
        for depth in depths
        for (pe, other), verdict in zip(pairs, verdicts, strict=True)
    ]
    return pd.DataFrame(rows)


def asked(
    folder: Path, rows: pd.DataFrame, table: pd.DataFrame, metric: str = "loss", baseline="rope"
) -> ReportSubject:
    table.to_csv(folder / sequential_verdicts.FILE, index=False)
    return ReportSubject(results_of(rows, folder), "", "", baseline, metric, pd.DataFrame())


def test_the_answer_is_that_of_the_sequential_verdicts(tmp_path) -> None:
    """By a t test for a fixed number of seeds, alibi would be better."""
    question = asked(tmp_path, cells((4,)), lines((4,)))
    assert question.compared.compare()["verdict"].tolist() == ["undecided", "worse"]
    assert question.compared.compare()["low"].tolist() == [-0.5, -0.5]
    assert question.compared.lines[GRID_TABLE]["verdict"].value_counts()["not asked"] == 1
    fixed = replace(question, metric="accuracy").compared
    assert set(fixed.compare()["verdict"]) == {"equal"}
    first, second = answer.sentences(question)
    (found,) = sequential_verdicts.sequential(question.compared, question.decided)
    assert (found.case, found.open, found.behind) == ("incomplete", ["alibi", "rope"], ["none"])
    assert first == (
        "Compared with `rope`, `none` is worse, by 0.5 nats (95 % interval 0.5 to 0.6); other comparisons: 1 undecided."
    )
    assert second == (
        "Verdicts on 2 comparisons with `rope`: 1 worse and 1 undecided. The default margin is 0.02 nats. Differences "
        "are paired over 6 seeds. Seeds were added in up to 2 looks, while a comparison was undecided. Encodings were "
        "trained at one learning rate for all, not tuned for each."
    )


def test_seeds_of_the_first_look_are_not_called_added(tmp_path) -> None:
    _, second = answer.sentences(asked(tmp_path, cells((4,)), lines((4,)).assign(look=1, seeds=3)))
    assert "paired over 3 seeds. No seeds were added after the first look. Encodings" in second


def test_encodings_that_were_not_compared_are_not_called_alike(tmp_path) -> None:
    question = asked(tmp_path, cells((4,)), lines((4,), ("equivalent", "equivalent")))
    (found,) = sequential_verdicts.sequential(question.compared, question.decided)
    assert (found.open, found.alike, found.all_alike) == (["alibi", "rope", "none"], ["rope"], False)


def test_several_settings_are_answered_one_by_one(tmp_path) -> None:
    table = lines(verdicts=("better", "worse"))
    question = asked(tmp_path, cells(), table)
    first, second = answer.sentences(question)
    counts = SettingCounts.of(sequential_verdicts.sequential(question.compared, question.decided))
    assert counts == SettingCounts(2, {"alibi": 2}, ["alibi"], ["rope", "none"])
    assert first.startswith("Of 4 comparisons with `rope`: 2 better and 2 worse.\n- **At depth 1**: `alibi` has the")
    assert second.startswith("Verdicts on 4 comparisons with `rope` (2 encodings in 2 settings): 2 better and 2 worse.")


def test_none_is_called_possibly_the_best_where_not_every_two_are_compared(tmp_path) -> None:
    """`alibi` and `none` are compared with `rope` alone."""
    depths = (1, 2, 4, 8, 16)
    question = asked(tmp_path, cells(depths), lines(depths, verdicts=("undecided", "undecided")))
    assert not any(each.complete for each in sequential_verdicts.sequential(question.compared, question.decided))
    first, _ = answer.sentences(question)
    assert "can be the best" not in first
    assert "may be the best" not in first
    assert first.startswith("All 10 comparisons with `rope`: undecided. The lowest mean test loss")
    pairs = (("alibi", "rope"), ("none", "rope"), ("none", "alibi"))
    question = asked(tmp_path, cells(depths), lines(depths, ("undecided",) * 3, pairs))
    assert "In all of them, the best may be any of" in answer.sentences(question)[0]


def test_comparisons_of_every_two_are_said_to_be(tmp_path) -> None:
    pairs = (("rope", "alibi"), ("rope", "none"), ("alibi", "none"))
    question = asked(tmp_path, cells((4,)), lines((4,), ("worse", "better", "better"), pairs))
    first, second = answer.sentences(question)
    assert first.startswith("`alibi` has the lowest test loss")
    assert second.startswith("Verdicts on 3 comparisons of all pairs: 3 different.")
    (figure,) = (part for part in answer.answer(question).parts if isinstance(part, CaptionedFigure))
    assert figure.caption.startswith("Differences from rope")
    drawn = sequential_verdicts.with_one(question.decided, "alibi").set_index("pe")
    assert drawn["baseline"].tolist() == ["alibi"] * 2
    assert drawn["verdict"].to_dict() == {"rope": "worse", "none": "worse"}
    assert drawn.loc["rope", ["difference", "low", "high"]].tolist() == pytest.approx([0.4, -0.5, 0.6])
    assert drawn.loc["none", ["difference", "low", "high"]].tolist() == pytest.approx([0.9, -0.6, 0.5])  # turned round


def test_a_word_that_is_no_verdict_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"decisions\.csv must have as verdict one of better, .*, got 'far better'$"):
        _ = asked(tmp_path, cells((4,)), lines((4,), ("far better", "worse"))).decided


def test_all_verdicts_of_the_page_are_sequential(tmp_path) -> None:
    question = asked(tmp_path, cells((4,)), lines((4,)))
    parts = answer.answer(question).parts
    (figure,) = (part for part in parts if isinstance(part, CaptionedFigure))
    assert figure.caption.endswith(
        "with 95 % t intervals; the grey band is the margin of 0.05 nats. Verdicts are corrected for the number of "
        "comparisons and for the looks, intervals are not"
    )
    assert figure.plot.data["verdict"].tolist() == ["undecided", "worse"]
    again = eval(
        figure.code,
        {
            "overview_figures": overview_figures,
            "sequential_verdicts": sequential_verdicts,
            "compared": question.compared,
            "results": question.results,
        },
    )
    assert again.data.equals(figure.plot.data)
    (family,) = (part for part in results_section(question).parts if "Family of comparisons" in str(part))
    assert "decisions.csv" in family


def test_an_encoding_that_failed_has_a_decision_and_no_cells(tmp_path) -> None:
    table = lines((4,))
    failed = table["pe"] == "none"
    table.loc[failed, ["difference", "low", "high"]] = np.nan
    table = table.assign(seeds=table["seeds"].mask(failed, 0), verdict="undecided")
    rows = cells((4,))
    question = asked(tmp_path, rows[rows["pe"] != "none"], table)
    _, second = answer.sentences(question)
    (found,) = sequential_verdicts.sequential(question.compared, question.decided)
    assert (found.case, found.open, found.notes) == ("open", ["alibi", "rope"], [])
    assert second.startswith("Verdicts on 2 comparisons with `rope`: all undecided. ")
    assert "paired over 0 to 6 seeds" in second
    assert [part for part in answer.answer(question).parts if isinstance(part, CaptionedFigure)]


def test_a_study_in_which_all_but_one_failed_names_nothing(tmp_path) -> None:
    rows = cells()
    rows = rows[(rows["pe"] == "rope") | ((rows["depth"] == 1) & (rows["pe"] == "none"))]
    table = lines((4,)).assign(seeds=0, verdict="undecided", difference=np.nan, low=np.nan, high=np.nan)
    first, _ = answer.sentences(asked(tmp_path, rows, table))
    assert first == "No setting has results of two encodings."


def test_another_metric_is_not_decided_sequentially(tmp_path) -> None:
    question = asked(tmp_path, cells((4,)), lines((4,)), "accuracy")
    assert question.decided is None


def test_another_margin_than_that_of_the_decisions_is_refused(tmp_path) -> None:
    question = replace(asked(tmp_path, cells((4,)), lines((4,))), margin=Margin(0.1, "nats"))
    with pytest.raises(ValueError, match="margin must be the one by which seeds were added to .*, got '0.1 nats'"):
        question.require_valid_comparison()


def test_a_study_that_is_still_deciding_says_that_its_verdicts_do_not_hold(tmp_path) -> None:
    question = asked(tmp_path, cells((4,)), lines((4,)))
    (tmp_path / sequential_verdicts.FILE).unlink()
    assert f"**Note.** {sequential_verdicts.UNFINISHED}" not in answer.answer(question).parts
    (tmp_path / "declared.json").write_text('{"decide": {"seeds": "3..6"}}')
    results = results_of(question.results.cells, tmp_path, tmp_path.name, kind=frame.StudyFolderResults)
    parts = answer.answer(replace(question, results=results)).parts
    assert f"**Note.** {sequential_verdicts.UNFINISHED}" in parts


def test_a_study_without_decisions_has_none(tmp_path) -> None:
    assert decisions(results_of(cells(), tmp_path)) is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (lines().drop(columns="look"), "must have the columns look, got none of that name"),
        (lines().assign(depth=16), "must be of the cells in rows.csv, got data=copy, depth=16, epochs=4, pe=alibi"),
        (lines().replace({"pe": {"none": "nope"}}), "got data=copy, depth=1, epochs=4, pe=nope"),
    ],
)
def test_decisions_of_other_cells_are_refused(table, words, tmp_path) -> None:
    with pytest.raises(ValueError, match=words):
        _ = asked(tmp_path, cells(), table).decided
