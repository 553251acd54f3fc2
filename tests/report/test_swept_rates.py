"""What a report says of learning rates."""

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.reports import question
from pe_lab.report import answer
from pe_lab.report.parts import ReportTable
from pe_lab.report.sections import sections
from pe_lab.report.swept_rates import rates_section
from pe_lab.results import swept_rates


@pytest.mark.usefixtures("unplaced")
def test_learning_rates_are_compared(cells):
    rng = np.random.default_rng(0)
    slow, fast = (
        cells.assign(**{"optimizer.lr": lr, "run": cells["run"] + str(lr), "test_loss": cells["test_loss"] + gain})
        for lr, gain in (
            (1e-3, 0.0),
            (1e-2, cells["pe"].map({"none": -0.8}).fillna(0.3) + rng.normal(0, 1e-3, len(cells))),
        )
    )
    both = pd.concat([slow, fast], ignore_index=True)
    columns = ["pe", "depth", "epochs", "seed", "optimizer.lr"]
    both = both[columns + [name for name in both if name not in columns]]
    longest = both.groupby("run")["epochs"].transform("max")  # of whose checkpoint a run's validations are
    curves = both[columns].assign(epoch=both["epochs"], epochs=longest, metric="loss", value=both["test_loss"])
    results = results_of(both, curves=curves)
    found = swept_rates.choose_rates(results)
    chosen = found.rates.set_index(["pe", "depth", "epochs"])["optimizer.lr"]
    assert (chosen.loc["none"] == 1e-2).all()
    assert (chosen.loc["rope"] == 1e-3).all()
    assert found.rates["at_edge"].all()  # of two
    text = {section.title: section for section in sections(question(results))}
    text = text["Learning rates"].parts
    assert any(isinstance(part, str) and part.startswith("**Note.** 16 of 16 best rates are the low") for part in text)
    agreement = found.agreement.set_index(["depth", "epochs", "optimizer.lr"])
    assert agreement.loc[(4, 4, 1e-3), "best here"] == "alibi"
    assert agreement.loc[(1, 4, 1e-2), "best when tuned"] == "none"
    assert agreement["tau"].dropna().between(-1, 1).all()


@pytest.mark.usefixtures("unplaced")
@pytest.mark.parametrize("own", [False, True])
def test_rates_of_a_search_are_shown_and_not_called_untuned(cells, tmp_path, own):
    """Also where the search chose the same rate for all, so that the cells have no column of rates."""
    chosen = {"none": 1e-2} if own else {}
    rows = cells.assign(**{"optimizer.lr": cells["pe"].map(chosen).fillna(1e-3)}) if own else cells
    table = rows[["pe", "depth", "epochs"]].drop_duplicates()
    table = table.assign(**{"optimizer.lr": table["pe"].map(chosen).fillna(1e-3)})
    table = table.assign(start_scale=float("nan"), at_edge=table["pe"] == "rope", validation_loss=1.0, seeds=2, tried=5)
    table.to_csv(tmp_path / "rates.csv", index=False)
    results = results_of(rows, tmp_path)
    asked = question(results)
    titles = {section.title: section.parts for section in sections(asked)}
    first, note, shown = titles["Learning rates"]
    assert first.startswith("A search for each encoding chose the learning rate with the lowest validation loss")
    edge = int(table["at_edge"].sum())
    assert note.startswith(f"**Note.** {edge} of {len(table)} choices are the lowest or the highest that was tried")
    assert shown.data["optimizer.lr"].tolist() == table["optimizer.lr"].tolist()
    assert "one learning rate" not in " ".join(part for parts in titles.values() for part in parts if type(part) is str)
    (tmp_path / "rates.csv").write_text(table.assign(start_scale=0.5, at_edge=False).to_csv(index=False))
    first, shown = {section.title: section.parts for section in sections(asked)}["Learning rates"]
    assert "chose the learning rate and starting scale with" in first


@pytest.mark.usefixtures("unplaced")
def test_one_learning_rate_for_all_is_noted(cells):
    def program(rows: pd.DataFrame) -> list[str]:
        return [
            part for section in sections(question(results_of(rows))) for part in section.parts if isinstance(part, str)
        ]

    note = "With a learning rate tuned for each encoding, the order may differ"
    assert any(note in text for text in program(cells))
    own = cells.assign(**{"optimizer.lr": cells["pe"].map({"none": 1e-2}).fillna(1e-3)})
    assert not any(note in text for text in program(own))


def test_a_study_of_rates_is_asked_for_the_best_rate_of_each_encoding() -> None:
    """Validation tells the best: of `rope` the higher rate, of `none` the lower."""
    lines = [
        {"pe": pe, "data": "copy", "depth": 1, "optimizer.lr": rate, "epochs": 2, "seed": seed, "test_loss": loss}
        for pe, rate, loss in (("rope", 0.1, 2.0), ("rope", 0.2, 1.0), ("none", 0.1, 1.5), ("none", 0.2, 3.0))
        for seed in (0, 1)
    ]
    for line in lines:  # at 0.2 seeds of none differ by more than its rates
        if line["pe"] == "none" and line["optimizer.lr"] == 0.2:
            line["test_loss"] += 2 * line["seed"] - 1
    rows = pd.DataFrame(lines).assign(run=lambda rows: [str(number) for number in range(len(rows))])
    validation = rows["test_loss"] + 9 * (rows["pe"] == "rope")  # which has the lowest test loss
    curves = rows.drop(columns=["run", "test_loss"]).assign(epoch=2, metric="loss", value=validation)
    asked = question(results_of(rows, curves=curves), baseline="none")
    said, figure, folded, *_ = answer.answer(asked).parts
    table, details = folded.parts
    assert "0.1, the lowest tried, for 1 of 2 encodings and 0.2, the highest tried, for 1 of 2 encodings" in said
    assert "0.1 for `none`; 0.2 for `rope`." in said
    assert "significantly worse only for `rope`" in said
    assert "up to 1.00 nats at 0.1 (significant);" in said  # the rate at which it costs least
    assert "1.50" not in said
    assert "up to 1.50 nats at 0.2 (not significant);" in details
    assert "`rope` has the lowest mean test loss, 1 nats, ahead of `none` by 0.5." in details
    assert dict(zip(table.data["pe"], table.data["test loss"], strict=True)) == {"rope": 1.0, "none": 1.5}
    assert not any(isinstance(part, ReportTable) for part in rates_section(asked).parts)  # of two seeds no ranks
    alone = question(results_of(rows[rows["pe"] == "rope"], curves=curves[curves["pe"] == "rope"]), baseline="rope")
    assert any(
        getattr(part, "caption", "") == "Tuned rates" for part in rates_section(alone).parts
    )  # not on the first screen
    drawn = figure.plot.data.set_index(["pe", "optimizer.lr"])["mean"]
    assert dict(drawn) == {("rope", 0.1): 1.0, ("rope", 0.2): 0.0, ("none", 0.1): 0.0, ("none", 0.2): 1.5}
