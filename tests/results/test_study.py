"""The tables of a study are made even if cells are missing, and missing cells are named."""

import errno
import html
import io
import re
import shlex
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ledger import record_checkpoint
from helpers.configs import TINY_MODEL, in_ledger
from helpers.frames import results_of
from pe_lab.experiment.job import Job
from pe_lab.experiment.sweep_report import CellsMissingError, report_jobs
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.results import study
from pe_lab.results.cell_rows import rows_of
from pe_lab.results.columns import LEADING_COLUMNS, setting_columns
from pe_lab.results.frame import load
from pe_lab.results.from_ledger import FAILURE_COLUMNS, NO_FAILED, failure_rows
from pe_lab.results.summary_table import as_markdown
from pe_lab.system.files import LedgerError

TINY = [*TINY_MODEL, "trainer.batch_size=4522", "trainer.device=cpu"]
TINY += ["logger=none", "epochs=1"]
GRID = {
    "pe.name": ("rope", "alibi"),
    "data.name": ("structured", "copy"),
    "optimizer.lr": (1e-3, 1e-2),
    "model.depth": (1, 4),
}
CELLS = [dict(zip(GRID, chosen, strict=True)) for chosen in product(*GRID.values())]


def settings_of(job: dict[str, Any], seed: int) -> dict[str, Any]:
    """A cell's settings; `copy` has an option that `structured` has not, the deep one a clip that the other has not."""
    more = {"data.longest": 10} if job["data.name"] == "copy" else {"data.length": 16}
    return job | more | {"trainer.clip": 1.0 if job["model.depth"] == 4 else None, "epochs": 1, "seed": seed}


def summary_of(number: int, job: dict[str, Any]) -> dict[str, Any]:
    floors = {"bayes": {"loss": 0.0}, "prior": {"loss": 2.0}} if job["data.name"] == "copy" else {}
    cost = {"parameters": 1, "positional_parameters": 0, "flops_per_token": 1.0, "seconds": 1.0}
    where = {"attention": "sdpa", "device": "cpu", "run": f"{number:016x}"}
    return {"test": {"loss": 1 + 0.1 * number, "accuracy": 0.5}, "floors": floors} | cost | where


def made(present: Iterable[int], seeds: int) -> tuple[dict[str, str], dict[str, str], pd.DataFrame]:
    """Return the tables of some cells of the grid; all others failed, and every second cell lacks its records."""
    chosen = [(CELLS[n], n * seeds + seed, seed) for n in present for seed in range(seeds)]
    whole = [settings_of(job, seed) for job, _, seed in chosen]
    rows = rows_of(whole, [summary_of(number, job) for job, number, _ in chosen])
    failed = [settings_of(job, 0) for n, job in enumerate(CELLS) if n not in set(present)]
    lost = failure_rows(whole, failed, [{"reason": "so", "step": 1, "run": "0"}] * len(failed))
    described = rows[list(rows.columns[: list(rows).index("test_loss")])]
    curves = described.assign(epoch=1.0, metric="loss", value=rows["test_loss"])
    results = results_of(rows, curves=curves, failed=lost)
    length = described.assign(kind="length", length=2.0, policy="raw", offset=0, metric="loss", value=0.5)
    probe = described.assign(kind="probe", length=1.0, probe="rank", layer=1.0, metric="effective_rank", value=3.0)
    records = pd.concat([length.iloc[::2], probe.iloc[1::2]], ignore_index=True)
    names = [*described, "kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    return *study.study_tables(results, records.reindex(columns=names).astype({"offset": "Int64"})), rows


def check(present: Iterable[int], seeds: int) -> None:
    """Assert that every table has all cells, equally many columns in each line, and empty text for missing values."""
    present = sorted(present)
    texts, files, rows = made(present, seeds)
    for name, text in {**texts, **files}.items():
        shown = text.replace("clip none", "")  # the words for a setting without clipping
        assert not re.search("nan|none|<na>", shown, re.IGNORECASE), (name, text)
    for name in (name for name in files if name.endswith(".md")):
        lines = [line for line in files[name].splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
    where = setting_columns(rows)
    assert len(_lines(files["table.md"])) == len(rows[where].drop_duplicates())
    for mean in rows.groupby([*where, "pe"], dropna=False)["test_loss"].mean():
        assert f"{mean:.3f}" in files["table.md"]
        assert f"{mean:.4f}" in texts["table"]
    assert ("tasks" in texts) == (rows["data"].nunique() > 1)
    assert ("rates" in texts) == ("optimizer.lr" in where)
    count = len(rows[["pe", *where]].drop_duplicates())
    assert len(_lines(files["lengths.md"])) == len(rows.iloc[::2][["pe", *where]].drop_duplicates()) <= count
    assert ("layers" in texts) == (len(rows) > 1)
    read = pd.read_csv(io.StringIO(files["rows.csv"]))
    assert list(read["pe"]) == [CELLS[n]["pe.name"] for n in present for _ in range(seeds)]
    assert list(read)[:5] == list(pd.read_csv(io.StringIO(files["failed.csv"])))[:5] == list(LEADING_COLUMNS)


def _lines(text: str) -> list[str]:
    """Return the rows of a Markdown table."""
    return [line for line in text.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize(
    "factors",
    [pytest.param(two, marks=pytest.mark.long) if k else two for k, two in enumerate(combinations(GRID, 2))],
)
def test_a_grid_of_two_factors_has_its_tables_whatever_failed(factors):
    others = {name: values[0] for name, values in GRID.items() if name not in factors}
    here = [n for n, job in enumerate(CELLS) if others.items() <= job.items()]
    assert len(here) == 4
    for size in range(1, 5):
        for present in combinations(here, size):
            check(present, seeds=1)


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 5)
@given(st.sets(st.sampled_from(range(len(CELLS))), min_size=1), st.integers(1, 2))
def test_a_grid_of_all_factors_has_its_tables_whatever_failed(present, seeds):
    check(present, seeds)


@pytest.mark.parametrize(
    "name", ["`<img src=x>``", "<script>alert(1)</script>", "a`b", "a\\`<b>`", "[a](javascript:b)", "a\r<b>", "a|b\\|c"]
)
def test_markdown_shows_a_name_as_it_is(name):
    rendered = pytest.importorskip("markdown").markdown(
        as_markdown(pd.DataFrame({name: [name]})), extensions=["tables"]
    )
    marks = re.findall("<[^>]*>", rendered)
    assert {mark.strip("</>").split()[0] for mark in marks} == {"table", "thead", "tbody", "tr", "th", "td"}
    shown = html.unescape(re.sub("<[^>]*>", "", rendered)).split("\n")
    assert [line for line in shown if line] == [" ".join(name.splitlines())] * 2


def test_a_name_with_a_pipe_or_a_line_break_does_not_break_the_markdown():
    """A path is an option of `clm`, and options that differ are part of a task's name."""
    rows = rows_of(
        [settings_of(CELLS[0], 0) | {"data.name": name} for name in ("clm path=a|b.txt", "clm path=a\nb.txt")],
        [summary_of(number, CELLS[0]) for number in range(2)],
    )
    texts, files = study.study_tables(results_of(rows), pd.DataFrame())
    header, _, first, second = files["table.md"].split("\n\n")[1].splitlines()
    assert header.startswith("| data | rope |")
    assert {first.split(" | ")[0], second.split(" | ")[0]} == {"| clm path=a\\|b.txt", "| clm path=a b.txt"}
    assert "clm path=a|b.txt" in texts["table"]
    assert len(texts["table"].splitlines()) == 1 + 1 + 2
    assert as_markdown(pd.DataFrame({"a|b": ["c\\|d"]})) == "| a\\|b |\n| ---: |\n| c\\\\\\|d |"
    above = as_markdown(pd.DataFrame({"data": ["a|b\nc", "a|b\nc"], "loss": [1, 2]}), names=["data"]).splitlines()[0]
    assert above == "data a\\|b c"


def asked(ledger: Path) -> list[Job]:
    """The cells of a study of two encodings at two rates."""
    words = ["pe=rope,none", "optimizer.lr=1e-3,1e2", "study_name=g"]
    return [Job.from_config(cfg) for cfg in in_ledger(ledger, *TINY, *words)]


@pytest.fixture
def trained(tmp_path) -> Path:
    """A ledger in which one of them failed, and the others are made up."""
    for number, job in enumerate(asked(tmp_path)):
        job.set_aside_if_damaged()
        if number == 1:
            job.fail("the training loss must be finite, got nan at step 2")
        else:
            record_checkpoint(job.run, 1, 0.5 + number)
    return tmp_path


MISSING = "missing: rope-d1-e1-s0: the training loss must be finite, got nan at step 2\n"


def test_a_sweep_in_which_one_cell_fails_has_its_tables_and_names_it(trained, capsys):
    with pytest.raises(CellsMissingError, match="^1 of 4 cells are missing"):
        report_jobs(asked(trained))
    out, err = capsys.readouterr()
    assert err == MISSING
    results = load(trained / "studies" / "g")
    assert results.cells[["pe", "optimizer.lr"]].to_numpy().tolist() == [["rope", 1e-3], ["none", 1e-3], ["none", 1e2]]
    assert list(results.failed) == [*NO_FAILED.columns[:5], "optimizer.lr", *FAILURE_COLUMNS]
    failed = asked(trained)[1]
    assert results.failed["run"].tolist() == [failed.run.name]
    assert results.failed["optimizer.lr"].tolist() == [1e2]
    text = (trained / "studies" / "g" / "table.md").read_text()
    assert re.search(r"^\| 100.0 \|  \| \d", text, re.MULTILINE)
    assert "2 of 2 tuned rates stand at the edge" in out
    place, _, following = out.splitlines()[-1].partition(": ")
    assert Path(place) == trained / "studies" / "g"
    assert shlex.split(following.partition("next: ")[2]) == ["pe-lab", "report", "g", "--ledger", str(trained)]
    known, of_ledger = (cells.dropna(axis=1, how="all") for cells in (results.cells, load(trained, "g").cells))
    pd.testing.assert_frame_equal(known, of_ledger)


@pytest.mark.parametrize("whole", [False, True])
def test_on_a_full_disk_tables_are_lost_and_missing_cells_are_still_named(trained, monkeypatch, capsys, whole):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LedgerFiles, "write", full)
    with pytest.raises(OSError, match="^the tables of study_name=g must be written to .*g, got No space left"):
        report_jobs([job for job in asked(trained) if job.is_trained] if whole else asked(trained))
    out, err = capsys.readouterr()
    assert err == ("" if whole else MISSING)
    assert "floor: bayes" in out


def test_with_a_damaged_checkpoint_missing_cells_are_still_named(trained, capsys):
    here = asked(trained)
    (here[0].run.checkpoint(1) / "summary.json").write_text("{}")
    with pytest.raises(LedgerError, match="must have the digest"):
        report_jobs(here)
    assert capsys.readouterr().err == MISSING
