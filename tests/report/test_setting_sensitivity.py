"""The section on sensitivity follows the pair that was asked for, with the verdicts of the report."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from pe_lab.report.parts import CaptionedFigure, ReportTable
from pe_lab.report.report_subject import ReportSubject
from pe_lab.report.setting_sensitivity import best_other, sensitivity_section
from pe_lab.results import frame
from pe_lab.results.sensitivity import sensitivity

LOSSES = {"rope": 1.0, "alibi": 0.6, "none": 1.5}


def asked(
    against: str = "", baseline: str = "rope", depths=(1, 4), tasks=("copy",), floors=True, noise=0.01
) -> ReportSubject:
    rng, rows = np.random.default_rng(0), []
    for task, depth, epochs, seed, pe in product(tasks, depths, (1, 4), range(4), LOSSES):
        turned = -1 if depth == 1 and pe == "alibi" else 1
        value = 1 + turned * (LOSSES[pe] - 1) + rng.normal(0, noise)
        rows.append({"pe": pe, "data": task, "depth": depth, "epochs": epochs, "seed": seed, "test_loss": value})
    cells = pd.DataFrame(rows)
    if floors:
        cells = cells.assign(floor_bayes_loss=0.0, floor_position_blind_loss=2.0)
    return ReportSubject(results_of(cells), "", "", baseline, "loss", pd.DataFrame(), against)


def test_the_best_other_by_mean_is_compared_with_the_baseline() -> None:
    section = sensitivity_section(asked())
    assert section.title == "Does it hold elsewhere?"
    assert section.parts[0].startswith("`alibi` (the best of the others by mean; ")
    assert "It depends on `depth`: `alibi` is better at 4; worse at 1." in section.parts[0]


def test_another_encoding_can_be_asked_for() -> None:
    section = sensitivity_section(asked("none"))
    assert section.parts[0].startswith("`none` (as asked) against `rope`. The mean of `none` is better")
    assert "worse in 4 (significantly in 4). The direction is the same in all of these settings" in section.parts[0]


@pytest.mark.parametrize("against", ["rope", "ropes"])
def test_an_encoding_that_cannot_be_compared_is_refused(against) -> None:
    with pytest.raises(ValueError, match=f"against must be one of alibi, none, got '{against}'"):
        asked(against).require_valid_comparison()


def test_the_verdicts_are_those_of_the_report() -> None:
    """In a family of four comparisons, more of them would be certain."""
    question = asked(noise=0.2)
    (drawn,) = (part for part in sensitivity_section(question).parts if isinstance(part, CaptionedFigure))
    alone = sensitivity(question.results.cells, "alibi", "rope").lines["verdict"]
    assert drawn.plot.data["verdict"].tolist() != alone.tolist()
    lines = question.compared.compare()
    expected = lines[lines["pe"] == "alibi"].set_index(["depth", "epochs"])["verdict"].to_dict()
    assert drawn.plot.data.set_index(["depth", "epochs"])["verdict"].to_dict() == expected


def test_shares_and_values_are_tables() -> None:
    levels, shares = (part.data for part in sensitivity_section(asked()).parts if isinstance(part, ReportTable))
    assert shares["share"].sum() == pytest.approx(1)
    assert shares.set_index("effect")["share"].idxmax() == "depth"
    assert levels.set_index("name").loc["depth", "significantly better"].tolist() == [0, 2]
    assert not {"equal", "unknown"} & set(levels)  # no setting is either


def test_one_varied_setting_has_no_section() -> None:
    assert sensitivity_section(asked(depths=(4,))).parts == []


def test_without_a_pooled_mean_the_best_other_is_that_of_the_mean_rank() -> None:
    """Tasks without floors are not pooled."""
    question = asked(tasks=("copy", "sort"), depths=(4,), floors=False)
    assert "pooled over settings" not in question.compared.tables
    assert best_other(question.compared, question.results.cells) == "alibi"
    other = asked(tasks=("copy", "sort"), depths=(4,), floors=False, baseline="alibi")
    assert best_other(other.compared, other.results.cells) == "rope"


def test_the_baseline_is_not_its_own_other() -> None:
    question = asked(baseline="none", depths=(4, 16))
    assert "pooled over settings" in question.compared.tables
    assert best_other(question.compared, question.results.cells) == "alibi"
    other = asked(baseline="alibi", depths=(4, 16))
    assert best_other(other.compared, other.results.cells) == "rope"


def test_the_page_on_sensitivity_quotes_the_report() -> None:
    root = Path(__file__).parents[2]
    results = frame.load(root / "sweeps/results/depth_epochs_pe_heldout")
    question = ReportSubject(results, "", "", "rope", "loss", pd.DataFrame(), "sininit", asked=True)
    parts = sensitivity_section(question).parts
    text = (root / "docs/sensitivity.md").read_text().replace("\n> ", " ")  # a quotation of several lines
    assert parts[0].removeprefix("`sininit` (as asked) against `rope`. ") in text
    (shares,) = (part.data for part in parts if isinstance(part, ReportTable) and "share" in part.data)
    share = shares.set_index("effect").loc["depth", "share"]
    assert f"If depth has a share of {100 * share:.0f} %" in text
