"""The first screen: a question made of what varies, an answer that the rows support, and one figure."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.reports import unfolded
from pe_lab.report import cautions, comparing, overview_figures
from pe_lab.report.answer import MAX_NOTES, answer, sentences, title
from pe_lab.report.best_candidates import SettingCounts, overall, undecided_by_setting
from pe_lab.report.cautions import above_validation, apart, margin_of_loss, not_learned_position, runs_apart
from pe_lab.report.overview_figures import MAX_DRAWN, forest, from_the_best
from pe_lab.report.parts import CaptionedFigure, Collapsible, ReportTable
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.sections import sections
from pe_lab.results.study_declaration import StudyDeclaration
from pe_lab.statistics import GRID_TABLE, Margin

LOSSES = {"rope": 1.0, "alibi": 0.6, "none": 1.5}
FLOORS = {"floor_bayes_loss": 0.0, "floor_position_blind_loss": 2.0}


def cells(losses=LOSSES, depths=(1, 4), seeds=5, noise=0.01, data="structured", **more) -> pd.DataFrame:
    rng, rows = np.random.default_rng(0), []
    for depth in depths:
        for seed in range(seeds):
            shared = rng.normal(0, 0.3)
            for pe, loss in losses.items():
                setting = {"pe": pe, "data": data, "depth": depth, "epochs": 4, "seed": seed} | more
                rows.append(setting | {"test_loss": loss + shared + rng.normal(0, noise)})
    return pd.DataFrame(rows).assign(**FLOORS, test_accuracy=lambda rows: 1 - rows["test_loss"] / 10)


def asked(rows: pd.DataFrame, baseline: str = "rope", metric: str = "loss", **more) -> ReportSubject:
    return ReportSubject(results_of(rows, study="mine", **more), "", "", baseline, metric, pd.DataFrame())


def declaring(rows: pd.DataFrame, baseline: str = "rope") -> ReportSubject:
    """Return a subject that asks about its baseline alone."""
    return replace(asked(rows, baseline), asked=True)


GAP = "of the gap between the best loss without position and the best possible one"
WHERE = "on structured, at depth 1 and 4, after 4 epochs?"


@pytest.mark.parametrize(
    ("rows", "metric", "question"),
    [
        (cells(), "loss", f"Which of 3 encodings has the lowest test loss {WHERE}"),
        (cells(), "accuracy", f"Which of 3 encodings has the highest test accuracy {WHERE}"),
        (cells({"rope": 1, "alibi": 2}), "loss", f"Does alibi have a lower test loss than rope {WHERE}"),
        (cells({"rope": 1, "alibi": 2}), "accuracy", f"Does alibi have a higher test accuracy than rope {WHERE}"),
        (cells({"rope": 1}), "loss", f"What is the test loss of rope {WHERE}"),
        (
            cells({"rope": 1}, range(1, 9)),
            "loss",
            f"What is the test loss of rope {WHERE}".replace("1 and 4", "of 8 values"),
        ),
        (
            cells({"rope": 1}, data="unknown"),
            "loss",
            "What is the test loss of rope, at depth 1 and 4, after 4 epochs?",
        ),
        (cells().iloc[:0], "loss", "What is the test loss of the encodings in mine?"),
    ],
)
def test_the_question_is_made_of_what_varies(rows, metric, question) -> None:
    assert title(asked(rows, metric=metric)) == question


def test_the_answer_is_two_sentences_with_verdicts_seeds_and_rates() -> None:
    first, _ = sentences(asked(cells()))
    assert first.startswith("Averaged over 2 settings of depth: `alibi` has the lowest test loss, 0.")
    assert all(text in first for text in ("`rope`", "0.401 nats", "95 % interval 0.39"))
    first, second = sentences(declaring(cells()))
    assert first.startswith("Of 4 comparisons with `rope`: 2 better and 2 worse.\n- **At depth 1**: `alibi` ")
    assert second.startswith("Verdicts on 4 comparisons with `rope` (2 encodings in 2 settings): 2 better and 2 worse")
    fair = "paired over 5 seeds. Encodings were trained at one learning rate for all, not tuned for each."
    assert second.endswith(f"The default margin is 0.1 nats (5 % {GAP}). Differences are {fair}")


def test_settings_that_reverse_the_order_are_counted() -> None:
    rows = cells()
    turned = rows["pe"].eq("none") & rows["depth"].eq(4)
    rows.loc[turned, "test_loss"] -= 1.0
    _, second = sentences(asked(rows))
    assert "depends on the setting for `none` and `rope`; `alibi` and `none`" in second
    assert "depends on the setting" not in sentences(asked(cells()))[1]


def test_one_setting_is_not_called_averaged() -> None:
    assert sentences(asked(cells(depths=(4,))))[0].startswith("`alibi` has the lowest test loss, 0.")
    _, second = sentences(declaring(cells(depths=(4,))))
    assert second.startswith("Verdicts on 2 comparisons with `rope`: 1 better and 1 worse")


def test_a_single_comparison_is_a_sentence() -> None:
    _, second = sentences(asked(cells({"rope": 1.0, "alibi": 0.5}, (4,))))
    assert second.startswith("Verdict on `alibi`, compared with `rope`: better")


def test_one_verdict_for_all_is_said_once() -> None:
    _, second = sentences(declaring(cells({"rope": 2.0, "alibi": 0.5, "none": 0.6}, (4,))))
    assert second.startswith("Verdicts on 2 comparisons with `rope`: all better")


def test_noise_names_no_best() -> None:
    noise = asked(cells(dict.fromkeys(LOSSES, 1.0), noise=0.5))
    _, second = sentences(noise)
    assert overall(noise.compared).case == "open"
    assert "better" not in second


def test_one_seed_decides_nothing() -> None:
    question = asked(cells(seeds=1))
    _, second = sentences(question)
    assert overall(question.compared).case == "untested"
    assert ": all with one seed. The default margin is 0.1 nats (5 % of the gap" in second
    assert "Differences are paired over 1 seed." in second


def test_unequal_seeds_are_given_as_a_range_and_cautioned() -> None:
    rows = cells()
    rows = rows[~((rows["pe"] == "none") & (rows["seed"] > 1))]
    rows = rows[~((rows["pe"] == "alibi") & (rows["depth"] == 1) & (rows["seed"] > 2))]
    _, second = sentences(asked(rows))
    assert "paired over 2 to 5 seeds" in second
    texts = [part for part in answer(asked(rows)).parts if isinstance(part, str)]
    assert any("Seeds are not the same everywhere" in text for text in texts)


def test_encodings_without_a_shared_seed_are_said_to_be() -> None:
    rows = cells(depths=(4,))
    rows.loc[rows["pe"] == "none", "seed"] += 10
    _, second = sentences(declaring(rows))
    assert "1 better and 1 without a shared seed" in second


def test_ties_to_the_bit_are_said() -> None:
    rows = cells({"rope": 1.0, "alibi": 1.0}, noise=0.0)
    question = asked(rows)
    _, second = sentences(question)
    assert overall(question.compared).case == "equal"
    assert ": all equal" in second


def test_an_encoding_that_lacks_a_setting_is_left_out_aloud() -> None:
    rows = cells()
    rows = rows[~((rows["pe"] == "alibi") & (rows["depth"] == 4))]
    question = asked(rows)
    found = overall(question.compared)
    assert (found.case, found.open) == ("better", ["rope"])
    assert "without 1 encoding" in found.where
    assert ": 1 better, 2 worse and 1 without a shared seed" in sentences(declaring(rows))[1]


def test_an_encoding_that_diverged_is_not_the_best_and_is_cautioned() -> None:
    rows = cells(depths=(4,))
    rows.loc[rows["pe"] == "alibi", "test_loss"] = np.inf
    first, _ = sentences(asked(rows))
    assert first.startswith("`rope` has the lower test loss")
    texts = [part for part in answer(asked(rows)).parts if isinstance(part, str)]
    assert any("5 cells have a test loss that is not finite; they are in no mean: alibi." in text for text in texts)


def test_where_position_cannot_help_the_answer_is_that_of_a_control() -> None:
    rows = cells(depths=(4,))
    none = rows.assign(floor_position_blind_loss=0.0)
    assert "did not pass" in sentences(asked(none))[0]
    assert "`alibi` has the lowest test loss" in sentences(asked(none))[0]
    assert "control" not in sentences(asked(rows))[0]
    blind = none.drop(columns="floor_bayes_loss").assign(floor_position_blind_split_known_loss=0.0)
    assert "control" not in sentences(asked(blind))[0]  # what is possible is unknown
    noise = cells(dict.fromkeys(LOSSES, 1.0), (4,), noise=0.5).assign(floor_position_blind_loss=0.0)
    assert "No encoding is shown to help or to hurt" in sentences(asked(noise))[0]
    assert "pass" not in sentences(asked(none[none["seed"] == 0]))[0]  # nothing is decided with one seed


def test_of_a_declared_baseline_few_differences_are_told_with_their_size() -> None:
    rows = cells(depths=(4,))
    first, _ = sentences(declaring(rows))
    assert re.findall(r"`(\w+)` is (better|worse)", first) == [("alibi", "better"), ("none", "worse")]
    assert "comparisons" not in sentences(asked(rows))[0]


def test_all_verdicts_of_a_page_are_of_one_family() -> None:
    rows = pd.concat([cells(depths=(1,), data=task) for task in ("copy", "sort")], ignore_index=True)
    question = asked(rows.drop(columns=list(FLOORS)))
    assert question.compared.size() == 6
    captions = [part.caption for part in answer(question).parts if isinstance(part, CaptionedFigure)]
    assert captions[0].startswith("Differences from alibi, ")  # the best
    declared = replace(question, asked=True)
    assert declared.compared.size() == 4
    (figure,) = (part for part in answer(declared).parts if isinstance(part, CaptionedFigure))
    assert figure.caption.startswith("Differences from rope, ")  # no verdict is asked on others
    assert not figure.plot.data["verdict"].eq("not asked").any()
    assert declared.compared.lines[GRID_TABLE]["verdict"].eq("not asked").sum() == 2


def test_losses_near_the_best_possible_one_are_not_said_to_fall_still() -> None:
    rows = cells(depths=(1,))
    curves = rows[["pe", "data", "depth", "epochs", "seed"]]
    curves = pd.concat([curves.assign(epoch=epoch, metric="loss", value=4.0 - epoch) for epoch in (1, 2, 4)])
    near = asked(rows, curves=curves)  # down to 0, the best possible
    assert not any("still fall" in str(part) for part in answer(near).parts)


def test_one_encoding_is_compared_with_nothing() -> None:
    rows = cells({"rope": 1.0}, (4,))
    first, second = sentences(asked(rows))
    assert first.startswith("Nothing is compared, because only `rope` was trained: its test loss is ")
    assert "(mean of 5 seeds, 95 % interval" in first
    assert second == "It was trained with 5 seeds, at one learning rate."
    several, _ = sentences(asked(cells({"rope": 1.0})))
    assert "means of 2 settings" in several
    single, second = sentences(asked(rows.head(1)))
    assert single.endswith("(one seed).")
    assert second.startswith("It was trained with 1 seed,")
    assert not [part for part in answer(asked(rows)).parts if isinstance(part, CaptionedFigure)]


def test_what_is_not_finite_is_in_no_mean_of_the_only_encoding() -> None:
    rows = cells({"rope": 1.0}, (4,))
    finite, _ = sentences(asked(rows.iloc[1:]))
    rows.loc[0, "test_loss"] = np.inf
    first, _ = sentences(asked(rows))
    assert first == finite
    assert "mean of 4 seeds" in first
    several = cells({"rope": 1.0})
    several.loc[several["depth"] == 4, "test_loss"] = np.nan
    assert "(mean of 5 seeds" in sentences(asked(several))[0]
    rows["test_loss"] = np.inf
    assert sentences(asked(rows))[0].endswith("its test loss is finite in no cell.")


def test_a_baseline_that_is_not_in_all_settings_has_a_figure_of_one_setting() -> None:
    """It is in no mean over settings, with which others could be compared."""
    rows = cells()
    rows = rows[(rows["pe"] != "rope") | (rows["depth"] == 4)]
    question = asked(rows)
    assert "without 1 encoding that no seed has in all of them" in sentences(question)[0]
    (figure,) = (part for part in answer(question).parts if isinstance(part, CaptionedFigure))
    assert figure.caption.startswith("Differences from rope at depth 4, one of 2 settings")
    assert figure.plot.data["difference"].notna().all()


def test_no_cell_says_nothing() -> None:
    failed = pd.DataFrame({"pe": ["rope"], "reason": ["x"]})
    assert sentences(asked(cells().iloc[:0], failed=failed)) == (
        "Nothing can be said.",
        "No cell was trained, and 1 failed.",
    )
    assert answer(asked(cells().iloc[:0], failed=failed)).parts


def test_failed_cells_are_on_the_first_screen() -> None:
    failed = pd.DataFrame({"pe": ["rope"], "reason": ["x"]})
    parts = answer(asked(cells(), failed=failed)).parts
    assert "**Note.** 1 cell failed; it is listed below and in no mean." in parts


def test_the_figure_is_that_of_the_answer() -> None:
    (drawn,) = (part for part in answer(asked(cells())).parts if isinstance(part, CaptionedFigure))
    compared = asked(cells()).compared
    pooled = compared.compare("pooled over settings")
    assert dict(zip(drawn.plot.data["pe"], drawn.plot.data["difference"], strict=True)) == dict(
        zip(pooled["pe"], pooled["difference"], strict=True)
    )
    assert "averaged over 2 settings, with 95 % t intervals" in drawn.caption
    assert drawn.plot.figure.get_size_inches()[0] < 5
    assert eval(drawn.code, {"overview_figures": overview_figures, "compared": compared}).data.equals(drawn.plot.data)


def test_of_many_encodings_the_figure_has_the_best() -> None:
    losses = {"base": 1.0} | {f"pe{number}": 2.0 - 0.05 * number for number in range(20)}
    question = asked(cells(losses, (4,)), "base")
    drawn = forest(question.compared).data
    assert list(drawn["pe"]) == [f"pe{number}" for number in range(19, 19 - MAX_DRAWN, -1)]
    (figure,) = (part for part in answer(question).parts if isinstance(part, CaptionedFigure))
    assert "the best 12 of 20 by mean" in figure.caption
    accurate = asked(cells(losses, (4,)), "base", "accuracy")
    assert forest(accurate.compared).data["pe"].iloc[0] == "pe19"


def test_a_few_settings_that_cannot_be_averaged_are_all_drawn() -> None:
    rows = pd.concat([cells(depths=(1,), data="copy"), cells(depths=(1,), data="sort")], ignore_index=True)
    question = asked(rows.drop(columns=list(FLOORS)))
    counts = SettingCounts.of(undecided_by_setting(question.compared))
    assert counts == SettingCounts(2, {"alibi": 2}, ["alibi"], ["rope", "none"])
    (figure,) = (part for part in answer(question).parts if isinstance(part, CaptionedFigure))
    assert set(figure.plot.data["setting"]) == {"copy", "sort"}
    assert len(figure.plot.data) == 4


def test_the_margin_is_named_with_where_it_comes_from() -> None:
    rows = cells(depths=(4,))
    assert f"The default margin is 0.1 nats (5 % {GAP})." in sentences(asked(rows))[1]
    assert "The default margin is 0.02 share." in sentences(asked(rows, metric="accuracy"))[1]
    declared = asked(rows, declared=StudyDeclaration({"loss": Margin(0.5, "gap")}))
    assert f"The declared margin is 1 nats (50 % {GAP})." in sentences(declared)[1]
    chosen = replace(declared, margin=Margin(0.03, "nats"))
    assert "The margin, chosen for this report, is 0.03 nats." in sentences(chosen)[1]
    notes = [part for part in answer(chosen).parts if isinstance(part, str)]
    assert any(
        "The margin of 0.03 nats was given for this report; the study declared 50 % of the gap." in note
        for note in notes
    )
    same = replace(declared, margin=Margin(0.5, "gap"))
    assert f"The declared margin is 1 nats (50 % {GAP})." in sentences(same)[1]
    assert not same.margin_notes()


def test_a_baseline_that_was_not_declared_is_noted() -> None:
    rows = cells({"rope": 1.0, "alibi": 0.5}, (4,))
    (note,) = declaring(rows).baseline_notes()
    assert note.startswith(
        "Only comparisons with `rope` have verdicts, as asked for this report; the study declared no"
    )
    assert f"**Note.** {note}" in answer(declaring(rows)).parts
    declared = replace(declaring(rows), results=asked(rows, declared=StudyDeclaration({}, "rope")).results)
    assert not declared.baseline_notes()
    assert not asked(rows).baseline_notes()
    (note,) = replace(declared, baseline="alibi").baseline_notes()
    assert "the study declared `rope`" in note


def test_a_margin_decides_what_is_equivalent() -> None:
    rows = cells({"rope": 1.0, "alibi": 1.02}, (4,))
    tight = sentences(replace(asked(rows), margin=Margin(0.001, "gap")))
    assert tight[1].startswith("Verdict on `alibi`, compared with `rope`: worse")
    wide = sentences(replace(asked(rows), margin=Margin(0.2, "gap")))
    assert wide[1].startswith("Verdict on `alibi`, compared with `rope`: ")
    assert "equivalent" in wide[1] or "slightly worse" in wide[1]


def test_gaps_that_differ_between_settings_are_given_as_a_range() -> None:
    rows = cells()
    rows["floor_position_blind_loss"] = rows["depth"] * 1.0
    assert f"is 0.05 to 0.2 nats (5 % {GAP})" in sentences(asked(rows))[1]


def test_settings_that_no_model_has_learned_are_not_averaged_with_others() -> None:
    """With a level below all losses at depth 4, only depth 1 is left, in words and in the figure."""
    rows = cells()
    rows["floor_bayes_loss"] = -9.0
    rows.loc[rows["depth"] == 4, "floor_position_blind_loss"] = -8.0
    found = asked(rows).compared
    one = overall(found)
    assert one is not None
    assert found.size() == 3
    assert one.means == rows[rows["depth"] == 1].groupby("pe")["test_loss"].mean().sort_values().to_dict()
    assert set(found.compare()["depth"]) == {1}
    assert title(asked(rows)).startswith("Which of 3 encodings has the lowest test loss on structured, at depth 1,")
    assert overall(asked(rows.assign(floor_position_blind_loss=-8.0)).compared) is not None  # of all, a note speaks
    assert "nats)" in str(answer(asked(rows)).parts)
    assert "settings" not in sentences(asked(rows))[1]  # verdicts are of the one that was learned
    assert "in 2 settings" in sentences(asked(cells()))[1]


def test_tasks_are_described_and_told_one_by_one() -> None:
    rows = pd.concat([cells(depths=(1,), data=task) for task in ("copy", "sort")], ignore_index=True)
    question = asked(rows)
    assert overall(question.compared) is not None  # it could be averaged
    said, _ = sentences(question)
    assert said.startswith("\n- **On copy**: ")
    assert "\n- **On sort**: " in said
    assert "Averaged" not in said
    (described,) = (part for part in answer(question).parts if str(part).startswith("**Tasks.**"))
    assert "`sort`: Write n symbols in ascending order" in described


def test_a_run_that_lies_apart_is_named_with_the_mean_and_difference_without_it() -> None:
    rows = cells(depths=(1, 4), noise=0.0)  # which share what differs between seeds
    rows["test_loss"] = rows["pe"].map(LOSSES) + 0.001 * rows["seed"]
    assert not runs_apart(asked(rows))
    far = (rows["pe"] == "alibi") & (rows["seed"] == 3) & (rows["depth"] == 4)
    (note,) = runs_apart(declaring(rows.assign(test_loss=rows["test_loss"].mask(far, 2.7))))
    assert "`alibi` (depth 4)" in note
    assert "seed 3" in note
    assert "did not learn" in note
    assert "0.602, not 1.02" in note
    assert "from `rope` -0.40, not +0.02" in note
    (note,) = runs_apart(declaring(rows.assign(test_loss=rows["test_loss"].mask(far, 0.8))))
    assert "did not learn" not in note
    other = (rows["pe"] == "rope") & rows["seed"].isin([0, 1]) & (rows["depth"] == 1)
    both = rows["test_loss"].mask(far, 2.7).mask(other, 1.5 + 0.01 * rows["seed"])
    (note,) = runs_apart(asked(rows.assign(test_loss=both)))
    first, *items = note.split("\n- ")
    assert first.startswith("3 runs lie apart")
    assert ["`alibi`" in items[0], "1.51 nats (seed 1) and 1.5 nats (seed 0); the other 3" in items[1]] == [True, True]
    assert not runs_apart(asked(rows.assign(test_loss=rows["test_loss"].mask(far, 0.64))))  # margin: 0.1, half is small
    for count, loss, named in ((4, 0.8, False), (4, 2.7, True), (3, 2.7, True), (2, 2.7, False)):
        few = rows.assign(test_loss=rows["test_loss"].mask(far, loss))[rows["seed"] >= 5 - count]
        assert bool(runs_apart(asked(few))) == named  # of few runs, those that did not learn


@pytest.mark.parametrize(
    ("runs", "seeds"),
    [
        ([0.347, 0.0097, 0.0801, 0.0055, 0.0253], [0]),
        ([0.0005, 0.0003, 0.0004, 0.0739, 0.0005], [3]),
        ([1.0, 1.1, 1.2, 1.3, 1.6], []),
        ([1.0, 3.0, 3.1, 3.2, 3.1], [0]),
        ([0.0221, 0.0253, 0.0036, 0.0026, 0.0036], [1, 0]),
        ([1.8, 1.9, 1.0, 1.1, 1.2], []),  # of two the distance is less than twice as many ranges
        ([9.0, 9.0, 9.0, 1.0, 1.0], [3, 4]),  # not those of which there are more
    ],
)
def test_a_run_lies_apart_by_the_range_of_the_others(runs, seeds) -> None:
    assert sorted(apart(pd.Series(runs))) == sorted(seeds)


def test_a_margin_beyond_the_lowest_loss_is_noted() -> None:
    rows = cells({"rope": 0.5, "alibi": 0.6}, noise=0.0)
    rows["test_loss"] = rows["pe"].map({"rope": 0.05, "alibi": 0.2})
    (note,) = margin_of_loss(asked(rows))
    assert note.startswith("The margin, 0.1 nats, is 2 times the lowest mean loss")
    assert not margin_of_loss(asked(rows.assign(test_loss=rows["test_loss"] + 1)))


def test_an_encoding_that_equals_none_in_every_seed_has_not_learned_position() -> None:
    rows = cells({"none": 1.5, "learnable": 1.5, "rope": 0.5}, depths=(1,), noise=0.0)
    (note,) = not_learned_position(asked(rows))
    assert note.startswith("`learnable` ")
    off = (rows["pe"] == "learnable") & (rows["seed"] == 2)
    assert not not_learned_position(asked(rows.assign(test_loss=rows["test_loss"].mask(off, 1.0))))
    assert not not_learned_position(asked(rows[rows["pe"] != "rope"], "none"))  # no other has learned it either


def test_differences_in_many_settings_are_not_all_drawn_on_top() -> None:
    rows = [cells(depths=(1,), data=task) for task in ("copy", "sort", "reverse", "repeat", "addition")]
    for count in (4, 5):
        question = asked(pd.concat(rows[:count], ignore_index=True).drop(columns=list(FLOORS)))
        (figure,) = (part for part in answer(question).parts if isinstance(part, CaptionedFigure))
        assert (figure.plot.data["setting"].nunique() == count) == (count == 4)


def test_losses_that_still_fall_are_noted() -> None:
    rows = cells(depths=(1,))
    curves = rows[["pe", "data", "depth", "epochs", "seed"]]
    curves = pd.concat([curves.assign(epoch=epoch, metric="loss", value=9.0 - epoch) for epoch in (1, 2, 4)])
    (note,) = (str(part) for part in answer(asked(rows, curves=curves)).parts if "still fall" in str(part))
    assert "from epoch 2 to 4" in note
    assert note.count(" (2)") == rows["pe"].nunique()
    one = curves.assign(value=curves["value"].where(curves["pe"] == "rope", 1.0))
    (note,) = (str(part) for part in answer(asked(rows, curves=one)).parts if "still fall" in str(part))
    assert re.findall(r"`(\w+)` \(", note) == ["rope"]  # the mean over encodings hides it
    flat = asked(rows, curves=curves.assign(value=1.0))
    assert not any("still fall" in str(part) for part in answer(flat).parts)


def test_references_that_are_better_than_every_mean_are_named() -> None:
    rows = cells({"rope": 1.0, "alibi": 0.6}).assign(floor_ngram_loss=-9.0, floor_xz_loss=9.0, floor_unigram_loss=-9.0)
    texts = " ".join(part for part in answer(asked(rows)).parts if isinstance(part, str))
    assert "`ngram`" in texts
    assert "`xz`" not in texts  # worse than the models
    assert "`unigram`" not in texts  # a guess, of which another note speaks
    best = rows[rows["depth"] == 1].groupby("pe")["test_loss"].mean().min()
    only = rows.assign(floor_ngram_loss=best + np.where(rows["depth"] == 1, 0.01, -9))
    texts = " ".join(part for part in answer(asked(only)).parts if isinstance(part, str))
    assert "for depth 4" in texts
    assert "for depth 1" not in texts


def test_notes_beyond_the_gravest_are_folded() -> None:
    rows = cells(seeds=4)
    rows.loc[0, "test_loss"] = np.inf
    rows = rows.assign(torch=rows["seed"].map("2.{}".format), device=rows["seed"].map(str))
    parts = answer(asked(rows)).parts
    notes = [part for part in parts if isinstance(part, str) and part.startswith("**Note.**")]
    (folded,) = (part for part in parts if isinstance(part, Collapsible) and "note" in part.title)
    assert len(notes) == MAX_NOTES
    assert "not finite" in notes[0]
    assert len(folded.parts) > 0
    assert not {note.removeprefix("**Note.** ") for note in notes} & set(folded.parts)


def test_notes_on_runs_compare_with_the_reference_of_the_figure() -> None:
    """Without a declared baseline, `alibi` is first among the encodings and `rope` has the lowest mean."""
    losses = {"alibi": 0.6, "rope": 0.5, "t5": 0.7}
    rows = cells(losses, depths=(1,), noise=0.0)
    rows["test_loss"] = rows["pe"].map(losses) + 0.001 * rows["seed"]
    rows.loc[(rows["pe"] == "t5") & (rows["seed"] == 0), "test_loss"] = 1.9
    subject = asked(rows, "alibi")
    (figure,) = (part for part in answer(subject).parts if isinstance(part, CaptionedFigure))
    (note,) = runs_apart(subject)
    assert figure.caption.startswith(f"Differences from {subject.baseline},")
    assert f"from `{subject.baseline}`" in note


def test_nothing_but_the_answer_stands_before_the_figure() -> None:
    rows = cells(depths=(1,), noise=0.0)
    rows["test_loss"] = rows["pe"].map(LOSSES) + 0.001 * rows["seed"]
    rows.loc[(rows["pe"] == "none") & (rows["seed"] == 0), "test_loss"] = 1.9
    said = [str(part) for part in answer(asked(rows)).parts]
    figure = next(number for number, part in enumerate(said) if part.startswith("CaptionedFigure"))
    assert figure == 1
    assert any("1 run lies apart" in part for part in said[figure:])


def test_what_intervals_of_undecided_comparisons_exclude_is_said() -> None:
    subject = declaring(cells({"rope": 1.0, "alibi": 1.0, "t5": 1.02}, noise=0.1))
    lines = subject.compared.compare()
    assert set(lines["verdict"]) == {"undecided"}
    said, _ = sentences(subject)
    for depth, here in lines.groupby("depth"):
        (item,) = (line for line in said.split("\n") if f"depth {depth}" in line)
        assert f"at most {-here['low'].min():.2g} nats better or {here['high'].max():.2g} nats worse" in item


def test_a_control_says_how_surely_it_passed_and_how_accurate_models_are() -> None:
    rows = cells({"rope": 0.1, "alibi": 0.1, "none": 0.1}, (4,), noise=0.0).assign(floor_position_blind_loss=0.0)
    rows["test_loss"] = 0.1 + 1e-6 * rows["seed"] * (rows["pe"] == "rope")
    rows.loc[(rows["pe"] == "none") & (rows["seed"] == 2), "test_loss"] = 0.3
    rows = rows.assign(test_accuracy=0.5 + 0.1 * (rows["pe"] == "rope"))
    curves = rows[["pe", "data", "depth", "epochs", "seed"]]
    curves = pd.concat([curves.assign(epoch=epoch, metric="loss", value=0.7 - 0.1 * epoch) for epoch in (1, 2, 4)])
    subject = asked(rows, curves=curves)
    assert title(subject).startswith("A control: ")
    said, _ = sentences(subject)
    assert "1 of 3 pairs are equivalent and 2 undecided" in said
    assert "In each undecided pair an encoding has a run that lies apart" in said
    assert "fell by 0.2 nats from epoch 2 to 4" in said
    assert "50–60 %" in said


def test_test_losses_of_text_above_those_of_validation_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = cells(depths=(1,), noise=0.0)
    curves = rows[["pe", "data", "depth", "epochs", "seed"]].assign(
        epoch=4, metric="loss", value=rows["test_loss"] - 0.5
    )
    subject = asked(rows, curves=curves)
    assert not above_validation(subject)
    monkeypatch.setattr(cautions, "shared_settings", lambda results: {"data.corpus": "x"})
    (note,) = above_validation(subject)
    assert "0.50 nats above" in note
    assert not above_validation(asked(rows, curves=curves.assign(value=rows["test_loss"])))


@pytest.mark.parametrize(("seeds", "named"), [(2, True), (3, True), (4, False)])
def test_few_seeds_are_named_in_the_answer(seeds: int, named: bool) -> None:
    before = [str(part) for part in answer(asked(cells(seeds=seeds))).parts]
    figure = next(number for number, part in enumerate(before) if part.startswith("CaptionedFigure"))
    assert any(f"{seeds} seeds" in part for part in before[:figure]) == named


def test_each_panel_is_compared_with_its_best_mean() -> None:
    rows = pd.concat([cells({"rope": 1.0, "alibi": 0.6}, (1,)), cells({"rope": 0.6, "alibi": 1.0}, (4,))])
    rows = rows.assign(floor_position_blind_loss=1.0, floor_bayes_loss=[0.0 if d == 1 else -9.0 for d in rows["depth"]])
    rows = rows.reset_index(drop=True)
    subject = asked(rows)
    lines = from_the_best(subject.compared, subject.results.cells).set_index("depth")
    assert lines["baseline"].to_dict() == {1: "alibi", 4: "rope"}
    assert (lines["difference"] > 0).all()
    means = rows.groupby(["depth", "pe"])["test_loss"].mean()
    assert lines["difference"][4] == pytest.approx(means[4, "alibi"] - means[4, "rope"])


def test_where_no_encoding_has_learned_is_told_by_its_settings_only_if_these_tell_it_all() -> None:
    rows = cells(depths=(1, 4, 16))
    both = pd.concat([rows, rows.assign(epochs=8)], ignore_index=True)
    for corner in (False, True):  # unlearned at depth 16, and with another corner no row or column of the grid tells it
        at = (both["depth"] == 16) | (corner & (both["depth"] == 1) & (both["epochs"] == 8))
        level = np.where(at, -8.0, 9.0)
        said = str(answer(asked(both.assign(floor_bayes_loss=-9.0, floor_position_blind_loss=level))).parts)
        assert ("No encoding has learned the task at depth 16:" in said) == (not corner)


def test_the_benchmark_that_is_named_tunes_rates_for_the_task() -> None:
    said = str(answer(asked(cells(depths=(1,), data="bag"))).parts)
    assert "pe-lab benchmark bag" in said
    assert "pe-lab benchmark copy" not in said


def test_a_control_recommends_no_encoding() -> None:
    costs = dict.fromkeys(("seconds", "parameters", "positional_parameters", "flops_per_token"), 1.0)
    rows = cells(depths=(4,)).assign(**costs, attention="sdpa", run="x")
    for level, recommends in ((0.0, False), (2.0, True)):
        titles = {section.title for section in sections(asked(rows.assign(floor_position_blind_loss=level)))}
        assert ("Which encoding for which need" in titles) == recommends


def test_of_two_seeds_no_sentence_table_or_caption_has_an_interval() -> None:
    rows = cells({"rope": 1.0, "alibi": 0.5, "none": 1.6}, (4,), seeds=2, noise=1e-4)
    for subject in (asked(rows), declaring(rows)):
        assert set(subject.compared.asked()["verdict"]) <= {"better", "worse"}
        said, _ = sentences(subject)
        assert "(mean of 2 seeds)" in said
        assert "interval" not in said
        shown = [answer(subject), comparing.grid_section(subject), comparing.differences_section(subject)]
        for part in unfolded([part for section in shown for part in section.parts]):
            if isinstance(part, ReportTable):
                assert "low" not in part.data
                assert "interval" not in part.caption
            if isinstance(part, CaptionedFigure):
                assert "with 95 %" not in part.caption
    one = asked(rows[rows["pe"] == "rope"])
    assert "interval" not in sentences(one)[0]


def test_the_section_on_seeds_needed_names_no_ranks_where_there_are_none() -> None:
    rows = cells(depths=(4,))
    for subject, title_of_section in ((asked(rows), "Ranks and seeds needed"), (declaring(rows), "Seeds needed")):
        assert comparing.differences_section(subject).title == title_of_section
