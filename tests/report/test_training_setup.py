"""What is said of learning rates and seeds is what rows and files support."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from pe_lab.data.structured import Structured, StructuredHeldout
from pe_lab.data.text.clm import CLM
from pe_lab.ledger.ledger import Ledger
from pe_lab.report.report_subject import made_with
from pe_lab.report.sequential_verdicts import decisions
from pe_lab.report.training_setup import CORPORA, STRUCTURED, rates_in_words, setting_in_words, training_sentence
from pe_lab.results import frame
from pe_lab.results.frame import Results, StudyFolderResults
from pe_lab.results.swept_rates import LR
from pe_lab.system.files import digest


def cells(rates: dict[str, tuple[float, ...]], setting: bool = False) -> pd.DataFrame:
    """Return cells; the rate is a setting, or stands behind the metrics."""
    rows = [
        {"pe": pe, "depth": depth, "seed": seed, LR: rate, "test_loss": 1.0}
        for pe, values in rates.items()
        for depth in (1, 4)
        for seed in (0, 1)
        for rate in values
    ]
    columns = ["pe", "depth", "seed", *([LR, "test_loss"] if setting else ["test_loss", LR])]
    return pd.DataFrame(rows)[columns]


OWN = {"rope": (1e-3,), "alibi": (3e-3,)}
SEARCHED = pd.DataFrame(
    {"pe": ["rope", "rope", "alibi", "alibi"], "depth": [1, 4] * 2, LR: [1e-3, 1e-3, 3e-3, 3e-3]}
).assign(at_edge=[False, True, False, False], validation_loss=1.0, seeds=1, tried=[5, 7, 5, 5], core_seconds=9.0)


def results(folder: Path, rows: pd.DataFrame, searched: pd.DataFrame | None = None) -> Results:
    if searched is not None:
        searched.to_csv(folder / "rates.csv", index=False)
    return Results(folder, None, rows)


def test_one_rate_for_all_is_said_not_to_be_tuned(tmp_path) -> None:
    found = results(tmp_path, cells(OWN).drop(columns=LR))
    assert rates_in_words(found) == "at one learning rate for all, not tuned for each"
    alone = results(tmp_path, cells({"rope": (1e-3,)}).drop(columns=LR))
    assert rates_in_words(alone) == "at one learning rate"


def test_rates_as_a_setting_are_counted(tmp_path) -> None:
    three = (1e-3, 3e-3, 1e-2)
    found = results(tmp_path, cells({"rope": three, "alibi": three}, setting=True))
    assert rates_in_words(found) == "each at 3 learning rates"
    unequal = results(tmp_path, cells({"rope": three, "alibi": three[:2]}, setting=True))
    assert rates_in_words(unequal) == "each at 2 to 3 learning rates, not the same for all"
    others = results(tmp_path, cells({"rope": three[:2], "alibi": three[1:]}, setting=True))
    assert rates_in_words(others) == "each at 2 learning rates, not the same for all"
    alone = results(tmp_path, cells({"rope": three}, setting=True))
    assert rates_in_words(alone) == "at 3 learning rates"


def test_rates_of_a_search_are_said_with_their_edges(tmp_path) -> None:
    assert rates_in_words(results(tmp_path, cells(OWN), SEARCHED)) == (
        "each at the learning rate that a search of its own chose (5 to 7 tried, the best was the lowest or highest in "
        "1 of 4 searches)"
    )
    scaled = SEARCHED.assign(start_scale=[0.5, None, None, None])
    assert "at the learning rate and starting scale that a search" in rates_in_words(
        results(tmp_path, cells(OWN), scaled)
    )
    unscaled = SEARCHED.assign(start_scale=None)
    assert "scales" not in rates_in_words(results(tmp_path, cells(OWN), unscaled))
    inside = SEARCHED.assign(at_edge=False, tried=5)
    assert rates_in_words(results(tmp_path, cells(OWN), inside)).endswith("lowest or highest in none of 4 searches)")


@pytest.mark.parametrize(
    "searched",
    [
        SEARCHED.assign(**{LR: 1e-2}),  # the cells were trained at others
        SEARCHED[SEARCHED["pe"] == "rope"],  # one encoding was not searched
        SEARCHED[SEARCHED["depth"] == 1],  # one setting was not searched
        pd.concat([SEARCHED, SEARCHED]),
        SEARCHED.drop(columns="tried"),  # a table of tuned rates
    ],
)
def test_a_search_that_is_not_that_of_the_cells_is_not_named(searched, tmp_path) -> None:
    found = rates_in_words(results(tmp_path, cells(OWN), searched))
    assert found == "each at its own learning rate, with no record of how it was chosen"


def test_a_search_that_found_one_rate_for_all_is_a_search(tmp_path) -> None:
    rows = cells(OWN).drop(columns=LR)
    same = SEARCHED.assign(**{LR: 1e-3})
    assert "that a search of its own chose" in rates_in_words(results(tmp_path, rows, same))
    assert rates_in_words(results(tmp_path, rows, SEARCHED)) == "at one learning rate for all, not tuned for each"


def test_an_encoding_whose_cells_all_failed_hides_no_search(tmp_path) -> None:
    rows = cells(OWN)
    failed = pd.concat([SEARCHED, SEARCHED.tail(2).assign(pe="none", tried=9, at_edge=True)])
    expected = rates_in_words(results(tmp_path, cells(OWN), SEARCHED))
    assert rates_in_words(results(tmp_path, rows, failed)) == expected
    alone = rates_in_words(results(tmp_path, rows[rows["pe"] == "rope"].drop(columns=LR), failed))
    assert alone.startswith("at the learning rate that a search chose (5 to 7 tried")


def test_the_folder_of_a_study_is_in_the_ledger_or_given(tmp_path) -> None:
    assert Results(tmp_path, None, cells(OWN)).folder == tmp_path
    assert Results(tmp_path, "mine", cells(OWN)).folder == tmp_path / "studies/mine"
    assert StudyFolderResults(tmp_path, tmp_path.name, cells(OWN)).folder == tmp_path


def test_a_copied_study_keeps_its_search_and_its_verdicts(tmp_path) -> None:
    committed = Path(__file__).parents[2] / "sweeps/results/fair_depth_epochs_pe_heldout"
    copied = frame.load(shutil.copytree(committed, tmp_path / "copied"))
    assert rates_in_words(copied).startswith("each at the learning rate and starting scale that a search of its own")
    assert len(decisions(copied)) == len(pd.read_csv(committed / "decisions.csv"))


def test_the_sentence_on_rates_has_one_subject(tmp_path) -> None:
    assert training_sentence(results(tmp_path, cells(OWN))).startswith("Each encoding was trained at its own learning")
    same = cells(OWN).drop(columns=LR)
    assert training_sentence(results(tmp_path, same)).startswith("Encodings were trained at one learning rate")


def test_a_search_for_some_of_the_encodings_is_no_search_for_all(tmp_path) -> None:
    rows = cells(OWN).drop(columns=LR)
    some = SEARCHED[SEARCHED["pe"] == "rope"]
    assert rates_in_words(results(tmp_path, rows, some)) == "at one learning rate for all, not tuned for each"


def test_the_setting_has_what_all_cells_share_and_the_ledger_knows(tmp_path) -> None:
    identity = {
        "model": {"width": 64, "num_heads": 4},
        "data": {"length": 32, "train": 4000},
        "optimizer": {"name": "adam", "lr": 0.003},
        "solve": {"level": None, "first": 60},
    }
    rows = cells({"rope": (0.003,)}).drop(columns=LR).assign(run=Ledger(tmp_path).run(identity).name)
    text = setting_in_words(Results(tmp_path, None, rows))
    assert all(said in text for said in ("width 64", "4 heads", "32 tokens", "4,000 sequences", "adam", "0.003"))
    assert "60" not in text  # a first evaluation counts where there is a level to reach
    varied = setting_in_words(Results(tmp_path, None, rows.assign(**{LR: 0.003, "model.width": [64, 128] * 2})))
    assert "width" not in varied
    assert "0.003" not in varied
    assert setting_in_words(Results(tmp_path / "elsewhere", None, rows)) == ""


def test_a_folder_without_its_ledger_has_what_its_tasks_share(tmp_path) -> None:
    def stored(name: str, entries: list[dict]) -> str:
        runs = [digest(entry) for entry in entries]
        rows = pd.concat([cells({"rope": (0.003,)}).assign(data=run, run=run) for run in runs])
        (tmp_path / name).mkdir()
        (tmp_path / name / "identities.json").write_text(json.dumps(dict(zip(runs, entries, strict=True))))
        return setting_in_words(StudyFolderResults(tmp_path / name, name, rows.drop(columns=LR)))

    one = {"model": {"width": 64, "num_heads": 4}, "data": {"length": 32}}
    two = {"model": {"width": 64, "num_heads": 4}, "data": {"length": 16}}
    text = stored("one", [one])
    assert all(said in text for said in ("width 64", "4 heads", "32 tokens"))
    both = stored("both", [one, two])
    assert "width 64" in both
    assert "tokens" not in both
    path = tmp_path / "one" / "identities.json"
    path.write_text(path.read_text().replace("64", "128"))
    rows = cells({"rope": (0.003,)}).assign(run=digest(one))
    with pytest.raises(ValueError, match="hashes of, got another entry for"):
        setting_in_words(StudyFolderResults(tmp_path / "one", "one", rows))
    lacking = StudyFolderResults(
        tmp_path / "both", "both", rows.assign(data=["a", "b"] * 2, run=[digest(one), "unknown"] * 2)
    )
    assert setting_in_words(lacking) == ""


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[2] / "sweeps/results").glob("*/identities.json")),
    ids=lambda path: path.parent.name,
)
def test_committed_identities_are_of_committed_runs(path) -> None:
    runs = set(pd.read_csv(path.parent / "rows.csv", dtype={"run": str})["run"])
    entries = json.loads(path.read_text())
    assert set(entries) <= runs
    assert all(digest(identity) == run for run, identity in entries.items())


def test_a_corpus_is_named_by_the_digest_of_its_tokens() -> None:
    dataset = CLM(name="clm", seed=0, corpus="tinyshakespeare")
    assert CORPORA[dataset.content()["corpus"]] == "tinyshakespeare"


def test_tasks_without_a_setting_for_their_size_have_the_stated_number_of_training_sequences() -> None:
    made = (Structured(seed=3), StructuredHeldout(seed=3))
    assert {dataset.name: dataset.size("train") for dataset in made} == STRUCTURED


def test_versions_and_commits_of_the_cells_are_told() -> None:
    cells = pd.DataFrame({"commit": ["0123456789abcdef", "fedcba9876543210"], "torch": ["2.13.0"] * 2, "python": None})
    assert made_with(cells) == ["The cells were made with commit 0123456789ab, fedcba987654; PyTorch 2.13.0."]
    assert made_with(cells[[]]) == []
