"""A report says what its results say, shows each figure's numbers, and how to draw it again."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pe_lab.report.__main__ import main
from pe_lab.report.choice import choices
from pe_lab.report.page import as_text, html, markdown
from pe_lab.report.sections import Drawn, Question, Section, Table, cautions, sections
from pe_lab.results import frame, plots, rates, statistics

PES = {"rope": 0.5, "alibi": 0.3, "none": 0.9, "learnable": 0.5}
SEEDS = 5


def made_cells(pes: dict[str, float] = PES, seeds: int = SEEDS) -> pd.DataFrame:
    """A grid of cells: the loss is the encoding's own, less with depth and epochs, with noise that seeds share."""
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 0.2, seeds)
    rows = []
    for depth in (1, 4):
        for epochs in (1, 4):
            for pe, loss in pes.items():
                for seed in range(seeds):
                    value = loss / depth**0.5 + 1 / epochs + shared[seed] + rng.normal(0, 0.01)
                    rows.append(
                        {"pe": pe, "depth": depth, "epochs": epochs, "seed": seed}
                        | {"test_loss": value, "test_accuracy": 1 / (1 + value)}
                        | {"floor_bayes_loss": 0.0, "floor_position_blind_loss": 0.4, "floor_prior_loss": 2.0}
                        | {"parameters": 1000, "positional_parameters": 64 * (pe == "learnable")}
                        | {"flops_per_token": 1e5, "seconds": 2.0 * epochs, "attention": "sdpa", "device": "cpu"}
                        | {"road": f"{pe}-{depth}-{seed}", "torch": "2.13.0", "commit": "abc"}
                    )
    return pd.DataFrame(rows)


def made_curves(cells: pd.DataFrame) -> pd.DataFrame:
    longest = cells[cells["epochs"] == 4][["pe", "depth", "epochs", "seed", "test_loss"]]
    parts = [longest.assign(epoch=e, metric="loss", value=longest["test_loss"] + 1 / e) for e in (1.0, 2.0, 4.0)]
    return pd.concat(parts).drop(columns="test_loss")


def made_records(cells: pd.DataFrame) -> pd.DataFrame:
    of = cells[cells["epochs"] == 4][["pe", "depth", "epochs", "seed", "test_loss"]]
    parts = [
        of.assign(kind="length", length=factor, policy="raw", offset=0, metric="loss", value=of["test_loss"] * factor)
        for factor in (1.0, 2.0, 4.0)
    ]
    parts += [
        of.assign(kind="probe", probe="position", length=1.0, layer=layer, metric="r2", value=1 / (1 + layer))
        for layer in range(3)
    ]
    columns = ["kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    return pd.concat(parts, ignore_index=True).reindex(columns=["pe", "depth", "epochs", "seed", *columns])


def store(folder: Path, cells: pd.DataFrame, **more: pd.DataFrame) -> Path:
    """A study's folder."""
    folder.mkdir(parents=True)
    for name, table in {"rows": cells, **more}.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture
def cells() -> pd.DataFrame:
    return made_cells()


@pytest.fixture
def study(tmp_path, cells) -> Path:
    return store(tmp_path / "question", cells, curves=made_curves(cells), records=made_records(cells))


def results_of(cells: pd.DataFrame) -> frame.Results:
    results = frame.Results(Path("somewhere"), None, cells)
    results.__dict__.update(curves=pd.DataFrame(), records=pd.DataFrame())
    return results


def question(
    results: frame.Results, load: str = "", baseline: str = "rope", audit: pd.DataFrame | None = None
) -> Question:
    return Question(results, load, "", baseline, "loss", pd.DataFrame() if audit is None else audit)


def run(monkeypatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pe_lab.report", *map(str, words)])
    main()


def test_a_study_has_every_section(study):
    found = {section.title: section for section in sections(question(frame.load(study)))}
    for title in ("The grid", "Differences", "Ranks, with ties", "What matters", "Seeds needed", "Learning curves"):
        assert title in found
    assert {"Other lengths", "Layers", "Cost against quality", "Methods", "Which encoding for which need"} <= set(found)
    assert "What failed" not in found


def test_every_line_that_a_figure_names_draws_it_again(study):
    results = frame.load(study)
    names = {"results": results, "plots": plots, "statistics": statistics, "rates": rates, "frame": frame}
    count = 0
    for section in sections(question(results)):
        for part in section.parts:
            if isinstance(part, str) or not part.code:
                continue
            again = eval(part.code, names)
            data, expected = (part.plot.data, again.data) if isinstance(part, Drawn) else (part.data, again)
            pd.testing.assert_frame_equal(data.reset_index(drop=True), expected.reset_index(drop=True)[list(data)])
            count += 1
    assert count >= 8


def test_the_page_needs_nothing_else_and_shows_the_numbers_of_its_figures(study):
    page = html("question", sections(question(frame.load(study))))
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)=["'](?!#)""", re.sub(r"<svg.*?</svg>", "", page, flags=re.S))
    assert page.count("<svg") == page.count("The numbers of this figure") >= 6
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    inside = re.findall(r'(?:xlink:href="|url\()#([^")]+)', page)
    assert set(inside) <= set(ids)


def test_the_same_results_make_the_same_page(study):
    assert html("q", sections(question(frame.load(study)))) == html("q", sections(question(frame.load(study))))


def test_names_are_escaped():
    hostile = "<script>alert(1)</script>"
    table = Table(pd.DataFrame({hostile: [hostile]}), hostile, hostile)
    page = html(hostile, [Section(hostile, [hostile, table])])
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6


def test_a_pipe_does_not_break_the_markdown():
    text = markdown("t", [Section("s", [Table(pd.DataFrame({"a": ["x|y"]}), "caption")])])
    assert "| x\\|y |" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "1"),
        (0.123456, "0.1235"),
        (float("nan"), ""),
        (float("inf"), "inf"),
        (None, ""),
        (True, "True"),
        (12, "12"),
    ],
)
def test_a_value_is_shown_with_four_digits_or_not_at_all(value, shown):
    assert as_text(pd.DataFrame({"a": [value]}, dtype=object)).loc[0, "a"] == shown


def test_differences_are_those_of_the_statistics(study):
    results = frame.load(study)
    (section,) = (one for one in sections(question(results)) if one.title == "Differences")
    (drawn,) = (part for part in section.parts if isinstance(part, Drawn))
    compared = statistics.compare(results.cells, "rope")
    alibi = drawn.plot.data[drawn.plot.data["pe"] == "alibi"]
    assert sorted(alibi["difference"]) == sorted(compared[compared["pe"] == "alibi"]["difference"])
    assert set(alibi["verdict"]) == {"better"}
    assert set(drawn.plot.data[drawn.plot.data["pe"] == "none"]["verdict"]) == {"worse"}
    assert "12 comparisons: 3 encodings with rope, in 4 settings" in section.parts[0]


def test_the_choice_names_the_best_and_those_that_are_not_told_from_it(cells):
    found = choices(cells, pd.DataFrame()).set_index("need")
    line = found.loc["test loss, depth 4, epochs 4"]
    assert line["encoding"] == "alibi"
    assert line["how sure"] == "better than each of the other 3"
    tied = made_cells({"rope": 0.5, "learnable": 0.5, "none": 0.9})
    line = choices(tied, pd.DataFrame()).set_index("need").loc["test loss, all settings"]
    assert {line["encoding"], *re.findall("may also be (.*);", line["how sure"])} == {"rope", "learnable"}
    cheapest = choices(tied, pd.DataFrame()).set_index("need").loc["test loss, all settings, cheapest"]
    assert cheapest["encoding"] == "rope"  # equal FLOPs, no parameters


def test_the_choice_for_longer_sequences_is_that_of_the_longest(cells):
    records = made_records(cells)
    far = records["length"] == 4
    records.loc[far & (records["pe"] == "none"), "value"] = 0.0 + records["seed"] * 1e-3
    found = choices(cells, records).set_index("need")
    assert found.loc["loss at 4 × the training length, depth 4", "encoding"] == "none"


def test_one_seed_chooses_nothing(cells):
    one = cells[cells["seed"] == 0]
    assert set(choices(one, pd.DataFrame())["how sure"]) == {"not at all: one seed"}


def test_a_reader_is_told_what_is_wrong_with_the_cells(cells):
    told = " ".join(cautions(results_of(cells), "rope"))
    assert told == ""
    worse = cells.copy()
    worse.loc[0, "torch"] = "2.7.0"
    worse = worse[~((worse["pe"] == "alibi") & (worse["seed"] > 0))]
    worse = worse[~((worse["pe"] == "none") & (worse["depth"] == 4))]
    failed = replace(results_of(worse), failed=pd.DataFrame({"reason": ["x"]}), refused=["entry"])
    failed.__dict__.update(curves=pd.DataFrame(), records=pd.DataFrame())
    told = " ".join(cautions(failed, "rope"))
    assert "1 cells failed" in told
    assert "1 entries were refused" in told
    assert "One seed only: alibi" in told
    assert "Seeds are not the same everywhere: 4 of 14" in told
    assert "2 of 16 combinations of setting and encoding were not trained" in told
    assert "several versions of PyTorch: 2.7.0, 2.13.0" in told


def test_learning_rates_are_compared(cells):
    rng = np.random.default_rng(0)
    slow, fast = (
        cells.assign(**{"optimizer.lr": lr, "road": cells["road"] + str(lr), "test_loss": cells["test_loss"] + gain})
        for lr, gain in (
            (1e-3, 0.0),
            (1e-2, cells["pe"].map({"none": -0.8}).fillna(0.3) + rng.normal(0, 1e-3, len(cells))),
        )
    )
    both = pd.concat([slow, fast], ignore_index=True)
    columns = ["pe", "depth", "epochs", "seed", "optimizer.lr"]
    both = both[columns + [name for name in both if name not in columns]]
    results = results_of(both)
    curves = pd.concat([both[columns].assign(epoch=both["epochs"], metric="loss", value=both["test_loss"])])
    results.__dict__["curves"] = curves
    found = rates.tuned(results)
    chosen = found.rates.set_index(["pe", "depth", "epochs"])["optimizer.lr"]
    assert (chosen.loc["none"] == 1e-2).all()
    assert (chosen.loc["rope"] == 1e-3).all()
    assert found.rates["at_edge"].all()  # of two
    agreement = found.agreement.set_index(["depth", "epochs", "optimizer.lr"])
    assert agreement.loc[(4, 4, 1e-3), "best here"] == "alibi"
    assert agreement.loc[(1, 4, 1e-2), "best when tuned"] == "none"
    assert agreement["tau"].between(-1, 1).all()


def test_the_command_writes_both_files(study, monkeypatch, capsys):
    run(monkeypatch, study, "--baseline", "none")
    assert (study / "report.html").stat().st_size > 10_000
    text = (study / "report.md").read_text()
    assert "## Which encoding for which need" in text
    assert "3 encodings with none" in text
    assert "80 cells" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "source must be a folder, or a study in ledger (there is none), got 'nowhere'"),
        (["{study}", "--baseline", "ropes"], "baseline must be one of rope, alibi, none, learnable, got 'ropes'"),
        (["{study}", "--metric", "f1"], "metric must be one of loss, accuracy, got 'f1'"),
        (["{study}", "--audit", "{study}"], "--audit must be a folder with the table.csv of an audit"),
        (["{empty}"], "the ledger must have a finished cell, got none"),
        (["{empty}", "--study", "x"], "study must be one of none yet"),
        (["{broken}"], "rows.csv must have the cells of a study"),
    ],
)
def test_bad_input_is_one_line(words, line, study, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    store(tmp_path / "broken", pd.DataFrame({"a": [1]}))
    places = {"study": study, "empty": tmp_path / "empty", "broken": tmp_path / "broken"}
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, *(word.format(**places) for word in words))
    assert stop.value.code == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert line in error
    assert "\n" not in error


def test_one_encoding_and_one_cell_have_a_report_too(tmp_path, cells, monkeypatch):
    for name, few in (("one_pe", cells[cells["pe"] == "rope"]), ("one_cell", cells.head(1))):
        folder = store(tmp_path / name, few, curves=made_curves(cells))
        run(monkeypatch, folder)
        assert (folder / "report.html").is_file()


def test_failed_cells_are_listed_and_in_no_mean(tmp_path, cells, monkeypatch):
    failed = pd.DataFrame(
        {"pe": ["rope"], "depth": [16], "epochs": [1], "seed": [0], "reason": ["loss must be finite"]}
    )
    folder = store(tmp_path / "study", cells, failed=failed)
    run(monkeypatch, folder)
    text = (folder / "report.md").read_text()
    assert "## What failed" in text
    assert "loss must be finite" in text


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_browser_shows_the_page_without_complaint(study, monkeypatch, tmp_path):
    run(monkeypatch, study)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=5000"]
    command += ["--dump-dom", f"file://{study / 'report.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == (study / "report.html").read_text().count("<svg")
    assert "Which encoding for which need" in done.stdout
