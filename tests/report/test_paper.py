"""What a report writes for a paper is well-formed LaTeX with the numbers of the study, and replaces nothing."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.latex_tables import parsed
from pe_lab import statistics
from pe_lab.report import paper
from pe_lab.report.__main__ import main
from pe_lab.report.report_subject import ReportSubject
from pe_lab.results import frame
from pe_lab.results.learned import not_learned_note
from pe_lab.results.summary_table import summarise
from pe_lab.results.verdict_marks import few_runs

FACTS = ("nats", "copy", "depth 2", "after 1 and 4 epochs")
NAMES = {"rope": 0.5, "alibi": 0.3, "mine_50%": 0.8}  # the last has characters of LaTeX


def made_cells(names: dict[str, float] = NAMES) -> pd.DataFrame:
    """Return a grid of cells whose losses depend on the encoding and fall with epochs."""
    noise, rows = np.random.default_rng(0), []
    for epochs in (1, 4):
        for pe, loss in names.items():
            for seed in range(4):
                row = {"pe": pe, "data": "copy", "depth": 2, "epochs": epochs, "seed": seed}
                row |= {"test_loss": loss / epochs + noise.normal(0, 0.01), "floor_position_blind_loss": 2.0}
                row |= {"parameters": 10, "positional_parameters": 0, "flops_per_token": 1e5, "seconds": 1.0}
                rows.append(row | {"attention": "sdpa", "device": "cpu", "run": f"{pe}-{seed}", "torch": "2.13.0"})
    return pd.DataFrame(rows)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "question"
    folder.mkdir()
    made_cells().to_csv(folder / "rows.csv", index=False)
    (folder / "declared.json").write_text('{"margin": {"loss": "0.03 nats"}, "baseline": "alibi"}')
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pe_lab.report", *map(str, words)])
    main()


def test_tables_have_the_numbers_of_the_study(study: Path, monkeypatch, tmp_path: Path) -> None:
    run(monkeypatch, study, "--paper", tmp_path / "paper")
    table = summarise(frame.load(study).cells, "alibi")
    head, *rows = parsed((tmp_path / "paper" / "means.tex").read_text())
    assert head == ["epochs", "encoding", "seeds", "loss"]
    assert [row[:2] for row in rows] == [
        [str(line.epochs), line.pe.replace("_", r"\_").replace("%", r"\%")] for line in table.itertuples()
    ]
    for row, line in zip(rows, table.itertuples(), strict=True):
        mean, half = map(float, re.findall(r"-?[\d.]+", row[-1]))
        assert (mean, half) == pytest.approx((line.loss, (line.high - line.low) / 2), abs=5.1e-4)
    head, *rows = parsed((tmp_path / "paper" / "differences.tex").read_text())
    compared = statistics.compare_cells(frame.load(study).cells, "alibi", margin=statistics.Margin(0.03, "nats"))
    assert len(rows) == len(compared) == 4
    assert [row[-1] for row in rows] == list(compared["verdict"])
    for row, line in zip(rows, compared.itertuples(), strict=True):
        assert float(row[head.index("difference")].strip("$")) == pytest.approx(line.difference, rel=1e-2)


def test_captions_say_what_was_measured_where_and_in_which_unit(study: Path, monkeypatch, tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    run(monkeypatch, study, "--paper", folder)
    texts = [(folder / f"{name}.tex").read_text() for name in ("means", "differences", "paper")]
    captions = [caption for text in texts for caption in re.findall(r"\\caption\{(.*)\}", text)]
    assert len(captions) == 4
    for caption in captions:
        assert {"nats", "copy", "depth 2", "after 1 and 4 epochs"} <= {word for word in FACTS if word in caption}


def test_the_methods_have_the_settings_and_figures_are_pdf_and_svg(study: Path, monkeypatch, tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    run(monkeypatch, study, "--paper", folder)
    methods = (folder / "methods.tex").read_text()
    for fact in ("rope, alibi, mine\\_50\\%", "copy", "1, 4", "4 seeds (0 to 3)", "0.03 nats", "from alibi", "2.13.0"):
        assert fact in " ".join(methods.split())
    assert "<<" not in methods
    assert "declared before training" in " ".join(methods.split())
    for name in ("curves", "forest"):
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert "<svg" in (folder / f"{name}.svg").read_text()
    document = (folder / "paper.tex").read_text()
    named = re.findall(r"\\(?:input|includegraphics(?:\[[^]]*\])?)\{(\w+)\}", document)
    assert named == ["methods", "means", "differences", "curves", "forest"]
    assert all(any((folder / f"{name}.{kind}").is_file() for kind in ("tex", "pdf")) for name in named)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_the_document_compiles(study: Path, monkeypatch, tmp_path: Path) -> None:
    run(monkeypatch, study, "--paper", tmp_path / "paper")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    subprocess.run(command, cwd=tmp_path / "paper", check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("name", ["methods.tex", "forest.pdf", "outcomes.tex"])
def test_what_is_there_is_not_replaced(study: Path, name: str, monkeypatch, tmp_path, capsys) -> None:
    folder = tmp_path / "paper"
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(SystemExit):
        run(monkeypatch, study, "--paper", folder)
    error = capsys.readouterr().err
    assert error == f"error: --paper must be a folder without {name}, got '{folder}': choose another\n"
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"
    assert not (study / "report.html").exists()


def test_one_encoding_has_a_table_of_means_alone(monkeypatch, tmp_path) -> None:
    cells = made_cells({"rope": 0.5})
    asked = ReportSubject(results_of(cells, tmp_path), "", "", "rope", "loss", pd.DataFrame())
    written = paper.write(asked, tmp_path / "paper")
    assert "differences.tex" not in written
    assert "p$ value" not in (tmp_path / "paper" / "methods.tex").read_text()


def test_a_long_table_breaks_over_pages() -> None:
    table = pd.DataFrame({"epochs": [1] * 30 + [2] * 30, "pe": [f"pe_{n}" for n in range(60)], "loss": range(60)})
    text = paper.tabular(table, "100 %", "tab:x", ["epochs"])
    assert len(parsed(text)) == 61
    assert text.startswith(r"\begin{longtable}{rlr}")
    assert text.count(r"\midrule") == 2
    assert r"\caption{100\,\%.}" in text


@pytest.mark.parametrize(
    ("low", "high", "digits", "written"),
    [
        (0.396, 0.44, 3, "$[0.396, 0.440]$"),
        (-1e-5, 100, 2, "$[-0.00, 100.00]$"),
        (1234, float("inf"), 0, r"$[1234, \infty]$"),
        (float("nan"), float("nan"), 3, ""),
    ],
)
def test_both_ends_of_an_interval_have_as_many_decimals(low: float, high: float, digits: int, written: str) -> None:
    assert paper._interval(low, high, digits) == written


@pytest.mark.parametrize(
    ("halves", "margins", "digits"),
    [
        ([0.2, 0.0021], [0.03], 4),  # two digits of the shortest half
        ([0.00001], [0.11], 3),  # not below a hundredth of the margin
        ([np.nan], [0.03], 4),
        ([0.3], [np.nan], 2),
        ([np.inf], [np.nan], 3),
        ([40.0], [np.nan], 0),
    ],
)
def test_decimals_are_those_of_the_shortest_interval_or_of_the_margin(halves, margins, digits) -> None:
    lines = pd.DataFrame({"low": [-half for half in halves], "high": halves, "margin": margins * len(halves)})
    assert paper.decimals(lines) == digits


def test_all_differences_of_a_table_have_as_many_decimals(study: Path, monkeypatch, tmp_path: Path) -> None:
    run(monkeypatch, study, "--paper", tmp_path / "paper")
    head, *rows = parsed((tmp_path / "paper" / "differences.tex").read_text())
    assert "encoding" in head
    numbers = [re.findall(r"\d\.(\d+)", row[head.index(name)]) for row in rows for name in ("difference", "interval")]
    assert len({len(part) for found in numbers for part in found}) == 1
    assert {len(found) for found in numbers} == {1, 2}
    assert all(re.fullmatch(r"\$(<0\.001|[01]\.\d{3})\$", row[head.index("p")]) for row in rows)


@pytest.mark.parametrize("blind", [2.0, 0.01])
def test_the_methods_say_what_was_not_learned_and_that_seeds_are_few(study: Path, tmp_path: Path, blind: float) -> None:
    rows = pd.read_csv(study / "rows.csv").assign(floor_position_blind_loss=blind, floor_bayes_loss=0.0)
    asked = ReportSubject(results_of(rows, tmp_path), "", "", "alibi", "loss", pd.DataFrame())
    text = paper.methods_paragraph(asked)
    assert ("has learned the task" in text) == (blind < 1)
    assert "With 3 encodings and 4 seeds" in " ".join(text.split())
    for note in (not_learned_note, lambda _, **given: few_runs(3, 4, **given)):  # what to do is not for a paper
        assert note(rows, advice=False) in text
        assert not note(rows) or note(rows) not in text


def test_the_methods_say_on_which_data_models_were_trained(study: Path, tmp_path: Path, monkeypatch) -> None:
    asked = ReportSubject(frame.load(study), "", "", "alibi", "loss", pd.DataFrame())
    data = {"data.length": 128, "data.test_sequences": 1256, "data.corpus": "239e_0", "data.tokenizer": "bytes"}
    shared = {"model.width": 64, "model.num_heads": 4, "trainer.batch_size": 16, "optimizer.name": "adam", **data}
    monkeypatch.setattr(paper, "shared_settings", lambda results: shared)
    text = " ".join(paper.methods_paragraph(asked).split())
    assert r"The text is that with the hash \texttt{239e\_0}, with the tokenizer \texttt{bytes}." in text
    assert "Training sequences have at most 128 tokens; test losses are means over 1,256 other sequences." in text


@pytest.mark.parametrize(
    ("sentence", "inside"),
    [("The class is known.", "the class is known"), ("A copy", "a copy"), ("XOR of bits", "XOR of bits"), ("", "")],
)
def test_a_sentence_in_brackets_begins_as_within_a_sentence(sentence: str, inside: str) -> None:
    assert paper._inside(sentence) == inside
