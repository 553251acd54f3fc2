"""The declaration of a study is read, or refused in a line that names the file."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from helpers.frames import results_of
from pe_lab.results import study
from pe_lab.results.frame import Results, load
from pe_lab.results.study_declaration import StudyDeclaration, read_declared
from pe_lab.statistics import Margin

DECLARED = {"margin": {"loss": "0.05 gap", "accuracy": "0.01 share"}, "baseline": "none", "decide": None}


def declare(folder: Path, **changed: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "declared.json").write_text(json.dumps(DECLARED | {"search": {"points": 5}} | changed))
    return folder


def cells() -> pd.DataFrame:
    rows = [
        {
            "pe": pe,
            "data": "copy",
            "depth": 1,
            "epochs": 1,
            "seed": seed,
            "test_loss": loss + 0.001 * seed**2 * (pe == "b"),
        }
        for pe, loss in (("a", 1.0), ("none", 1.1), ("b", 1.101))
        for seed in range(5)
    ]
    floors = {"floor_bayes_loss": 0.0, "floor_position_blind_loss": 2.0}
    return pd.DataFrame(rows).assign(**floors, run="r", parameters=1)


def test_a_declaration_is_read_from_the_folder_of_the_study(tmp_path):
    expected = StudyDeclaration(
        {"loss": Margin(0.05, "gap"), "accuracy": Margin(0.01, "share")}, "none", None, {"points": 5}
    )
    folder = declare(tmp_path / "ledger" / "studies" / "mine")
    assert read_declared(folder) == expected
    cells().to_csv(folder / "rows.csv", index=False)
    assert load(folder).declared == expected
    assert Results(tmp_path / "ledger", "mine", cells()).declared == expected
    assert Results(tmp_path / "ledger", "other", cells()).declared == StudyDeclaration()
    assert Results(tmp_path / "ledger", None, cells()).declared == StudyDeclaration()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"margin": {"loss": "5 %"}}, "must be a declaration, got margin must be a number and one of gap, nats, share"),
        ({"margin": {"loss": "0.02 share"}}, "must be a declaration, got the margin of loss must be in gap or nats"),
        ({"margin": "0.02 nats"}, 'must be a declaration, got "0.02 nats", not settings'),
        ({"margin": ["0.02 nats"]}, 'must be a declaration, got ["0.02 nats"], not settings'),
        ({"baseline": 3}, "must have a name or null as baseline, got 3"),
        ({"decide": "yes"}, "must have settings or null as decide, got 'yes'"),
        ({"search": [1]}, r"must have settings or null as search, got [1]"),
    ],
)
def test_a_damaged_declaration_is_one_line(changed, line, tmp_path):
    with pytest.raises(ValueError, match="declared.json must ") as error:
        read_declared(declare(tmp_path, **changed))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", "\x00"])
def test_what_is_no_declaration_is_one_line(content, tmp_path):
    (tmp_path / "declared.json").write_text(content)
    with pytest.raises(ValueError, match="declared.json must be a declaration, got ") as error:
        read_declared(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["[" * 10**6, '{"search": {"points": NaN}}', None])
def test_a_declaration_that_python_alone_would_read_or_wait_for_is_one_line(content, tmp_path):
    if content is None:
        os.mkfifo(tmp_path / "declared.json")
    else:
        (tmp_path / "declared.json").write_text(content)
    with pytest.raises(ValueError, match="declared.json must be a declaration, got ") as error:
        read_declared(tmp_path)
    assert "\n" not in str(error.value)


def test_an_empty_declaration_declares_nothing(tmp_path):
    (tmp_path / "declared.json").write_text('{"margin": null}')
    assert read_declared(tmp_path) == StudyDeclaration() == read_declared(tmp_path / "nowhere")


def tables(folder: Path) -> pd.DataFrame:
    _, files = study.study_tables(results_of(cells(), folder, "mine"), pd.DataFrame())
    (folder / "table.csv").write_text(files["table.csv"])
    assert ("verdict" in files["table.txt"]) == ("verdict" in files["table.csv"])
    return pd.read_csv(folder / "table.csv").set_index("pe")


def test_the_tables_of_a_study_have_its_baseline_and_its_margin(tmp_path):
    found = tables(tmp_path)
    assert found.index[found["verdict"].isna()].tolist() == ["a"]
    assert found["margin"].dropna().unique().tolist() == [0.1]
    declare(tmp_path / "studies" / "mine", margin={"loss": "0.5 nats"})
    found = tables(tmp_path)
    assert found.index[found["verdict"].isna()].tolist() == ["none"]
    assert found["margin"].dropna().unique().tolist() == [0.5]
    assert found.loc["b", "verdict"] == "equivalent"
    declare(tmp_path / "studies" / "mine", baseline="later")  # none of its cells is trained yet
    assert tables(tmp_path).index[tables(tmp_path)["verdict"].isna()].tolist() == ["a"]


def test_a_study_that_adds_seeds_has_no_verdicts_of_a_fixed_number(tmp_path):
    declare(tmp_path / "studies" / "mine", decide={"first": 3})
    assert "verdict" not in tables(tmp_path)


def test_a_margin_that_does_not_fit_leaves_the_means_and_says_why(tmp_path):
    declare(tmp_path / "studies" / "mine")
    results = results_of(cells().drop(columns="floor_bayes_loss"), tmp_path, "mine")
    texts, files = study.study_tables(results, pd.DataFrame())
    assert "1.1000" in texts["table"]
    assert (
        texts["table"].splitlines()[-1].startswith("no verdicts: a margin in gap needs floors bayes and position_bli")
    )
    assert "verdict" not in files["table.csv"]
