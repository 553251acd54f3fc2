"""What a report says first of longer sequences."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.reports import made_cells, made_curves, made_records, question
from pe_lab.report import answer, recommendations
from pe_lab.report.lengths import at_longer_lengths
from pe_lab.report.parts import Collapsible
from pe_lab.report.sections import sections
from pe_lab.results import frame, plots


def test_cells_without_a_question_of_their_own_are_compared_at_the_training_length_first(study):
    subject = question(frame.load(study))
    said, far, *_ = answer.answer(subject).parts
    assert said == answer.sentences(subject)[0]
    assert far == at_longer_lengths(subject)
    (choices,) = (section for section in sections(subject) if section.title.startswith("Which encoding"))
    (table,) = choices.parts
    assert not table.data["need"].iloc[0].startswith("loss at")


def test_a_study_that_asks_for_longer_lengths_and_layers_says_them_first():
    encodings = {"none": 0.9, "rope": 0.5, "alibi": 0.3, "stick_breaking": 0.5, "rse": 0.5, "exposb": 0.5}
    cells = made_cells(encodings)
    results = results_of(cells, study="extrapolation", curves=made_curves(cells), records=made_records(cells))
    far, said, drawn, _, meaning, setting, *_, folded, _ = answer.answer(question(results)).parts
    assert far.startswith("At 4 × the training length")
    assert "`alibi`" in far
    assert "a linear probe reads position at the embedding (R² 1.00)" in said
    assert "5 seeds" in setting
    assert set(meaning.parts[0].data["R² of position"]) == {"1.00 → 0.33"}
    pd.testing.assert_frame_equal(drawn.plot.data, plots.length_curves(results.records, "loss").data)
    assert isinstance(folded, Collapsible)
    assert answer.sentences(question(results))[0] in folded.parts
    first, *_ = answer.answer(replace(question(results), metric="accuracy")).parts
    assert far != first


@pytest.mark.parametrize("right", [0.049, 0.051])
def test_few_right_answers_at_the_longest_length_have_no_best(cells, right):
    records = made_records(cells)
    records = records[records["kind"] == "length"].assign(metric="exact_match")
    records["value"] = np.where(records["pe"] == "alibi", right, 0.0)
    said = at_longer_lengths(question(results_of(cells, records=records)))
    assert ("no encoding has 5% of the whole sequences right" in said) == (right < 0.05)


def test_where_no_answer_is_right_the_longest_length_that_has_some_is_named(cells):
    records = made_records(cells)
    records = records[records["kind"] == "length"].assign(metric="exact_match", value=0.0)
    near = records["length"] == sorted(records["length"].unique())[-2]
    assert records.loc[near, "length"].iloc[0] > 1
    records.loc[near & (records["pe"] == "alibi"), "value"] = 0.4
    records.loc[near & (records["pe"] == "rope"), "value"] = 0.04
    said = at_longer_lengths(question(results_of(cells, records=records)))
    assert f"at {records.loc[near, 'length'].iloc[0]:g} × the training length, `alibi` has 40%" in said
    assert "of `rope` by 36 points" in said
    assert said.startswith("No encoding has half of the whole sequences right at any longer length")
    records.loc[near & (records["pe"] == "alibi"), "value"] = np.where(
        records.loc[near & (records["pe"] == "alibi"), "seed"] == 0, 1.0, 0.0
    )
    far = at_longer_lengths(question(results_of(cells, records=records)))
    assert "not significantly ahead of any other" in far
    records.loc[near & (records["pe"] == "alibi"), "value"] = 0.6
    more = at_longer_lengths(question(results_of(cells, records=records)))
    assert "half" not in more
    assert "no whole sequence right" not in more
    assert "`alibi`, " not in more
    records.loc[records["length"] == 1, "value"] = np.where(
        records.loc[records["length"] == 1, "pe"] == "rope", 0.8, 1.0
    )
    more = at_longer_lengths(question(results_of(cells, records=records)))
    assert "`alibi` has 60%" in more
    assert "`alibi`" not in more.rpartition("has 5%.")[2]  # of which some answers are right
    assert "have no whole sequence right (but 100.0% at the training length)." in more
    assert "`rope` 4%" not in said


def test_where_no_whole_sequence_is_right_the_best_of_single_answers_is_told_beside_the_training_length(cells):
    records = made_records(cells)
    records = records[records["kind"] == "length"]
    shares = {("alibi", 1.0): 0.95, ("alibi", 2.0): 0.87, ("alibi", 4.0): 0.8, ("rope", 1.0): 1.0, ("rope", 2.0): 0.7}
    right = [shares.get(pair, 0.1) for pair in zip(records["pe"], records["length"], strict=True)]
    both = [records.assign(metric="exact_match", value=0.0), records.assign(metric="accuracy", value=right)]
    results = results_of(cells, records=pd.concat(both, ignore_index=True))
    said = at_longer_lengths(question(results))
    told = "The highest mean accuracy of single answers is 0.87 at 2 × (`alibi`, 0.95 at 1 ×) and 0.8 at 4 ×"
    assert told in said
    needs = recommendations.choices(results.cells, results.records)
    assert needs["how sure"].iloc[-1] == "no encoding has 5% of the whole sequences right"
    alone = results_of(cells, records=both[1].assign(value=0.01))  # an accuracy counts single answers itself
    said = at_longer_lengths(question(alone))
    assert "no encoding has 5% of the answers right" in said
    assert "whole" not in said
