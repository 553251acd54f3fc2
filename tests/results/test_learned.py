"""A model uses position if its loss is below the lowest that a model without position can reach."""

import numpy as np
import pandas as pd
import pytest

from pe_lab.data.score import uses_position
from pe_lab.results import learned
from pe_lab.results.summary_table import render_table, summarise

FLOORS = {"bayes": 0.0, "position_blind": 0.5, "position_blind_split_known": 0.3}


def rows(**losses: float) -> pd.DataFrame:
    """A cell of two encodings on each task."""
    lines = [
        {"pe": pe, "data": data, "depth": 1, "epochs": 1, "seed": seed, "test_loss": loss + 0.01 * seed}
        for data, loss in losses.items()
        for pe in ("rope", "none")
        for seed in (0, 1)
    ]
    return pd.DataFrame(lines).assign(**{f"floor_{name}_loss": value for name, value in FLOORS.items()})


@pytest.mark.parametrize(
    ("loss", "left_out", "used"),
    [
        (0.2, (), True),
        (0.3, (), False),
        (0.4, (), False),
        (0.4, ("position_blind_split_known",), True),
        (0.4, ("position_blind_split_known", "position_blind"), None),
        (0.2, ("bayes",), True),
    ],
)
def test_the_lower_level_counts(loss: float, left_out: tuple[str, ...], used: bool | None) -> None:
    floors = {name: value for name, value in FLOORS.items() if name not in left_out}
    assert uses_position(loss, {name: {"loss": value} for name, value in floors.items()}) is used
    cells = rows(copy=loss).iloc[:1].drop(columns=[f"floor_{name}_loss" for name in left_out])
    (found,) = learned.position_use(cells)
    assert np.isnan(found) if used is None else found == used


def test_where_position_wins_nothing_nothing_has_to_be_learned() -> None:
    floors = {"bayes": {"loss": 0.3}, "position_blind": {"loss": 0.3}}
    assert uses_position(0.5, floors) is None
    assert learned.not_learned_note(rows(bag=0.5).assign(floor_bayes_loss=0.3)) == ""


def test_a_text_model_that_is_nearer_to_a_guess_than_to_counting_has_learned_little() -> None:
    text = rows(clm=2.9).drop(columns=[f"floor_{name}_loss" for name in FLOORS])
    text = text.assign(floor_unigram_loss=3.27, floor_ngram_loss=1.55)
    note = learned.not_learned_note(pd.concat([text.assign(test_loss=3.1), text]))
    assert all(f"{loss}" in note for loss in (2.9, 3.27, 1.55))
    assert "3.1 " not in note
    assert learned.not_learned_note(text.assign(test_loss=2.0)) == ""
    assert learned.not_learned_note(text.drop(columns="floor_ngram_loss")) == ""


def test_it_is_said_first_and_for_the_tasks_where_no_cell_has_learned() -> None:
    assert learned.not_learned_note(rows(copy=0.1)) == ""
    only = learned.not_learned_note(rows(copy=0.1, sort=0.4))
    assert "sort" in only
    assert "copy" not in only
    table = rows(copy=0.4)
    assert learned.not_learned_note(table)
    assert render_table(summarise(table)).splitlines()[0] == learned.not_learned_note(table)
    assert learned.not_learned_note(table).startswith(f"{learned.not_learned_note(table, advice=False)} ")
    table.loc[0, "test_loss"] = 0.1  # one cell is enough
    assert learned.not_learned_note(table) == ""
    assert not render_table(summarise(table)).startswith("None")


def test_rows_of_some_tasks_may_lack_floors() -> None:
    table = rows(copy=0.4, text=0.1)
    table.loc[table["data"] == "text", [name for name in table if name.startswith("floor")]] = np.nan
    assert "copy" not in learned.not_learned_note(table)  # the only task for which it is known
    assert learned.not_learned_note(table)


@pytest.mark.parametrize(("loss", "share"), [(0.9, 0.0), (0.75, 0.1), (0.5, 0.6)])
def test_where_position_wins_nothing_a_guess_is_the_level(loss: float, share: float) -> None:
    bag = rows(bag=loss).assign(floor_bayes_loss=0.3, floor_position_blind_loss=0.3, floor_prior_loss=0.8)
    bag = bag.assign(floor_position_blind_split_known_loss=0.3)
    assert learned.learned_share(bag).max() == pytest.approx(share) if share else learned.learned_share(bag).max() <= 0
    assert bool(learned.not_learned_note(bag)) == (loss > 0.8)
    assert learned.has_learned(bag).max() == (loss < 0.8)
    barely = bag.assign(test_loss=0.77)  # 6 % of the way
    assert learned.not_learned_note(barely)


def test_settings_without_a_learned_one_are_counted() -> None:
    mixed = pd.concat([rows(copy=0.2), rows(copy=0.4).assign(depth=4), rows(copy=0.45).assign(depth=16)])
    assert learned.partly_learned(mixed).startswith("In 2 of 3 settings no encoding has learned")
    assert learned.partly_learned(mixed[mixed["depth"] == 1]) == ""
    assert learned.partly_learned(mixed[mixed["depth"] > 1]) == ""  # of all, `not_learned_note` speaks
    assert learned.compared_settings_note(mixed).endswith("are left out.")
    assert learned.compared_settings_note(mixed[mixed["depth"] == 1]) == ""
    one = mixed["pe"].eq("rope") & mixed["depth"].gt(1)
    assert learned.partly_learned(mixed.assign(test_loss=mixed["test_loss"].where(~one, 0.1))) == ""
    assert learned.partly_learned(mixed.iloc[:0][["pe", "data", "depth", "seed"]]) == ""  # every cell failed
    bare = mixed.drop(columns=[name for name in mixed if name.startswith("floor_")])
    assert learned.partly_learned(bare) == ""


def test_where_no_setting_was_learned_none_is_said_to_be_left_out() -> None:
    table = pd.concat([rows(copy=0.4), rows(copy=0.45).assign(depth=4)])
    assert len(learned.filter_learned_cells(table)) == len(table)
    assert "so none is left out" in learned.compared_settings_note(table)
    table = table.reset_index(drop=True)
    table.loc[0, "test_loss"] = 0.1  # one cell, not the mean of its encoding, as long as that is above
    others = table["pe"].eq(table.loc[0, "pe"]) & (table.index > 0)
    table.loc[others, "test_loss"] = 0.9
    assert learned.not_learned_note(table) == ""
    assert "so none is left out" in learned.compared_settings_note(table)
    assert "none is left out" not in learned.compared_settings_note(rows(copy=0.4))  # the only setting


def test_the_level_is_the_one_that_cells_are_held_against() -> None:
    both = rows(copy=0.2).assign(floor_position_blind_loss=0.35, floor_position_blind_split_known_loss=0.2234)
    assert learned.level_in_words(both) == "0.223 nats, even knowing which sequences are held out"
    assert learned.level_in_words(pd.concat([both, both.assign(floor_position_blind_split_known_loss=1)])) == (
        "0.223 to 1 nats, even knowing which sequences are held out"
    )
    assert learned.level_in_words(both.drop(columns=[name for name in both if name.startswith("floor_")])) == ""
