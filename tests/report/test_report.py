"""A report agrees with its results, and shows the numbers and the code of each figure."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine

from frames import results_of
from paged import text_of
from pe_lab import statistics
from pe_lab.report import answer, recommendations
from pe_lab.report import page as page_module
from pe_lab.report.__main__ import command_of, main
from pe_lab.report.answer import study_question
from pe_lab.report.best_candidates import overall
from pe_lab.report.comparing import methods
from pe_lab.report.layers import layer_parts
from pe_lab.report.lengths import at_longer_lengths
from pe_lab.report.page import as_text, html
from pe_lab.report.parts import CaptionedFigure, Code, Collapsible, Part, ReportTable, Section
from pe_lab.report.rates import rates
from pe_lab.report.recommendations import BLIND, GUESS, NOBODY, POOLED, choices, families
from pe_lab.report.report_subject import ReportSubject, cautions
from pe_lab.report.sections import figures, sections
from pe_lab.results import columns, frame, panels, plots, pooling, sensitivity, specification, tuned_rates
from pe_lab.results import learned as learned_module
from pe_lab.results.learned import filter_learned_comparisons, not_learned_note
from pe_lab.results.verdict_marks import few_runs
from pe_lab.statistics import GRID_TABLE, Margin, interval

PES = {"rope": 0.5, "alibi": 0.3, "none": 0.9, "learnable": 0.5}
SEEDS = 5


@pytest.fixture
def unplaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the layout of figures, where nobody looks."""

    def without_layout(**options: Any) -> Figure:
        layout = PlaceHolderLayoutEngine(adjust_compatible=True, colorbar_gridspec=True)
        return Figure(**options | {"layout": layout})

    monkeypatch.setattr(panels, "Figure", without_layout)


def made_cells(pes: dict[str, float] = PES, seeds: int = SEEDS) -> pd.DataFrame:
    """Return a grid of cells: losses depend on the encoding, fall with depth and epochs, and share noise per seed."""
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
                        | {"floor_bayes_loss": 0.0, "floor_position_blind_loss": 0.43, "floor_prior_loss": 2.0}
                        | {"parameters": 1000, "positional_parameters": 64 * (pe == "learnable")}
                        | {"flops_per_token": 1e5, "seconds": 2.0 * epochs, "attention": "sdpa", "device": "cpu"}
                        | {"run": f"{pe}-{depth}-{seed}", "torch": "2.13.0", "commit": "abc"}
                    )
    return pd.DataFrame(rows)


def learned(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with floors above all losses: all use position, and the gap, and so a margin, is the same."""
    return cells.assign(floor_bayes_loss=4.6, floor_position_blind_loss=5.0)


def made_curves(cells: pd.DataFrame) -> pd.DataFrame:
    longest = cells[cells["epochs"] == 4][["pe", "depth", "epochs", "seed", "test_loss"]]
    parts = [longest.assign(epoch=e, metric="loss", value=longest["test_loss"] + 1 / e) for e in (1.0, 2.0, 4.0)]
    return pd.concat(parts).drop(columns="test_loss")


def made_records(cells: pd.DataFrame) -> pd.DataFrame:
    longest = cells[cells["epochs"] == 4][["pe", "depth", "epochs", "seed", "test_loss"]]
    parts = [
        longest.assign(
            kind="length", length=factor, policy="raw", offset=0, metric="loss", value=longest["test_loss"] * factor
        )
        for factor in (1.0, 2.0, 4.0)
    ]
    parts += [
        longest.assign(kind="probe", probe="position", length=1.0, layer=layer, metric="r2", value=1 / (1 + layer))
        for layer in range(3)
    ]
    measured = ["kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    return pd.concat(parts, ignore_index=True).reindex(columns=["pe", "depth", "epochs", "seed", *measured])


def store(folder: Path, cells: pd.DataFrame, **more: pd.DataFrame) -> Path:
    """Write the tables of a study into a folder and return it."""
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


def question(
    results: frame.Results, load: str = "", baseline: str = "rope", audit: pd.DataFrame | None = None
) -> ReportSubject:
    return ReportSubject(results, load, "", baseline, "loss", pd.DataFrame() if audit is None else audit)


def run(monkeypatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pe_lab.report", *map(str, words)])
    main()


def test_the_methods_say_whether_variances_are_shared(cells) -> None:
    """From five encodings on."""
    few = methods(question(results_of(cells)))
    assert cells["pe"].nunique() < 5
    assert "moderated" not in "".join(part for part in few.parts if isinstance(part, str))
    rng, noises = np.random.default_rng(0), range(3)
    more = [cells[cells["pe"] == "rope"].assign(pe=f"e{number}") for number in noises]
    more = [part.assign(test_loss=part["test_loss"] + rng.normal(0, 0.05, len(part))) for part in more]
    many = methods(question(results_of(pd.concat([cells, *more], ignore_index=True))))
    assert "moderated t test" in "".join(part for part in many.parts if isinstance(part, str))
    assert len(many.parts) == len(few.parts) + 1


@pytest.fixture
def without_figures(monkeypatch) -> None:
    """Draw no figure into the page, which takes a second and a half: for tests of what stands in words and tables."""
    monkeypatch.setattr(page_module, "inline_svg", lambda figure, caption: Markup())


def test_one_setting_has_its_figure_once(cells):
    """On top; with several settings that is another one, of the means over them."""
    one = cells[(cells["depth"] == 4) & (cells["epochs"] == 4)]
    for rows, count in ((one, 0), (cells, 1)):
        found = [part for part in sections(question(results_of(rows))) if part.title == "Differences"]
        assert len(found) == count
        assert all(sum(isinstance(part, CaptionedFigure) for part in section.parts) == 1 for section in found)


def test_one_validation_of_each_model_is_no_curve(tmp_path, cells):
    curves = made_curves(cells)
    for epochs, drawn in ((curves["epoch"].unique(), True), (curves["epoch"].unique()[:1], False)):
        part = curves[curves["epoch"].isin(epochs)]
        study = store(tmp_path / str(drawn), cells, curves=part, records=made_records(cells))
        titles = [section.title for section in sections(question(frame.load(study)))]
        assert ("Learning curves" in titles) == drawn


def test_measurements_of_some_encodings_name_them(tmp_path, cells):
    records = made_records(cells)
    for names, count in ((list(PES), 0), (["rope", "alibi"], 1)):
        study = store(tmp_path / str(count), cells, records=records[records["pe"].isin(names)])
        for found in sections(question(frame.load(study))):
            if found.title in ("Other lengths", "Layers"):
                told = [part for part in found.parts if isinstance(part, str) and part.startswith("Measured for")]
                assert len(told) == count
                assert all("`rope` and `alibi`" in part for part in told)


def test_a_study_has_every_section(study, cells):
    learned(cells).to_csv(study / "rows.csv", index=False)
    found = {section.title: section for section in sections(question(frame.load(study)))}
    for title in (
        "Test loss",
        "Differences",
        "Effects of encoding, depth and epochs",
        "Learning curves",
    ):
        assert title in found
    folded = [part.title for part in found["Differences"].parts if isinstance(part, Collapsible)]
    assert folded == ["Every two encodings", "Ranks, with ties", "Seeds needed"]
    assert {"Layers", "Cost", "Methods", "Which encoding for which need"} <= set(found)
    assert "Failed and omitted cells" not in found


@pytest.mark.long
def test_every_line_that_a_figure_names_draws_it_again(study):
    results = frame.load(study)
    names = {
        "results": results,
        "plots": plots,
        "statistics": statistics,
        "tuned_rates": tuned_rates,
        "recommendations": recommendations,
    }
    names |= {
        "learned": learned_module,
        "columns": columns,
        "answer": answer,
        "sensitivity": sensitivity,
        "specification": specification,
    }
    count, asked = 0, question(results)
    name, line = asked.compares.split(" = ")
    names[name] = eval(line, names)
    for section in sections(asked):
        folded = [inner for part in section.parts if isinstance(part, Collapsible) for inner in part.parts]
        for part in [*section.parts, *folded]:
            if isinstance(part, (str, Code, Collapsible)) or not part.code:
                continue
            again = eval(part.code, names)
            data, expected = (part.plot.data, again.data) if isinstance(part, CaptionedFigure) else (part.data, again)
            pd.testing.assert_frame_equal(data.reset_index(drop=True), expected.reset_index(drop=True)[list(data)])
            count += 1
    assert count >= 9


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The page of the study, made of another folder."""
    cells = made_cells()
    folder = store(
        tmp_path_factory.mktemp("page") / "question", cells, curves=made_curves(cells), records=made_records(cells)
    )
    return html("question", sections(question(frame.load(folder))))


def test_the_page_needs_nothing_else_and_shows_the_numbers_of_its_figures(page):
    assert "<script" not in page
    assert "max-height" not in page  # a table shows all of its rows
    assert not re.search(r"""(?:src|href)=["'](?!#)""", re.sub(r"<svg.*?</svg>", "", page, flags=re.S))
    assert page.count("<figure") == page.count("Numbers and code") >= 6
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    inside = re.findall(r'(?:href="|url\()#([^")]+)', page)
    assert set(inside) <= set(ids)


@pytest.mark.long
def test_the_same_results_make_the_same_page(study, page):
    assert html("question", sections(question(frame.load(study)))) == page


def test_names_are_escaped():
    hostile = "<script>alert(1)</script>"
    table = ReportTable(pd.DataFrame({hostile: [hostile]}), hostile, hostile)
    page = html(hostile, [Section(hostile, [hostile, table])])
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6


def test_a_name_with_dollars_or_html_is_a_name(cells, monkeypatch, tmp_path):
    hostile = {"rope": "$\\foo$", "none": "<script>alert(1)</script>", "alibi": "$x|`<img src=x>`"}
    few = cells[(cells["depth"] == 1) & (cells["seed"] < 3)]
    few = few.assign(pe=few["pe"].replace(hostile))
    folder = store(tmp_path / "$\\study$", few, curves=made_curves(few), records=made_records(few))
    run(monkeypatch, folder)
    page = (folder / "report.html").read_text()
    assert "<script" not in page
    assert page.count(">$\\foo$<") >= 3  # in figures and tables, as written
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "# Which of 4 encodings has the lowest test loss, at depth 1, after 1 and 4 epochs?\n" in text_of(page)
    assert "pe_lab: $\\study$\n" in text_of(page)


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


def made_study(number: int) -> frame.Results:
    """Return random results with several encodings, settings and tasks, missing cells and measured lengths."""
    rng = np.random.default_rng(number)
    encodings = [f"pe{k}" for k in range(rng.integers(2, 6))]
    seeds, tasks = int(rng.integers(2, 7)), ["copy", "sort"][: rng.integers(1, 3)]
    effect = dict(zip(encodings, rng.normal(0, 0.15, len(encodings)), strict=True))
    rows = []
    for task in tasks:
        for depth in [16, 4, 1][: rng.integers(1, 4)]:
            shared = rng.normal(0, 0.3, seeds)
            for pe in encodings:
                for seed in range(seeds):
                    if rng.random() < 0.03:
                        continue
                    value = 1 + 0.1 * depth + effect[pe] + shared[seed] + rng.normal(0, 0.05)
                    rows.append(
                        {"pe": pe, "data": task, "depth": depth, "epochs": 4, "seed": seed, "test_loss": value}
                        | {"floor_bayes_loss": 0.0, "floor_position_blind_loss": 1.0 + (task == "sort")}
                        | {"parameters": 1000, "positional_parameters": 8 * (pe == "pe1"), "flops_per_token": 1e5}
                        | {"seconds": 1.0, "attention": "sdpa", "device": "cpu", "run": f"{task}{depth}{pe}{seed}"}
                    )
    rows = pd.DataFrame(rows)
    cells = rows[["pe", "data", "depth", "epochs", "seed"]]
    noise = rng.normal(0, 0.05, len(cells)) + cells["pe"].map(effect)
    far = cells.assign(kind="length", length=2.0, policy="raw", offset=0, metric="exact_match", value=0.5 - noise)
    measured = ["kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    return results_of(rows, records=far.reindex(columns=[*cells, *measured]))


class Statements:
    """Collects which encoding of a pair is called the better one, by setting, from each section of a report.

    Attributes:
        found: by setting and pair, the encodings that sections call the better one: "nobody" where neither is,
            "not pe" where pe is at most as good.
    """

    def __init__(self) -> None:
        self.found: dict[str, dict[frozenset[str], set[str]]] = {}

    def add(self, setting: str, pe: str, other: str, better: str) -> None:
        self.found.setdefault(setting, {}).setdefault(frozenset((pe, other)), set()).add(better)

    def add_comparison(self, setting: str, line: dict[str, Any], baseline: str) -> None:
        better = {"better": line["pe"], "worse": baseline}.get(line["verdict"], "nobody")
        self.add(setting, line["pe"], baseline, better)

    def add_forest(self, lines: list[dict[str, Any]], baseline: str) -> None:
        """Add the intervals of the figure of differences, whose settings are in words."""
        for line in lines:
            words = line["setting"]
            depth = re.search(r"depth (\d+)", words)
            task = re.search(r"copy|sort", words)
            known = {"data": task[0]} if task else {}
            known |= {"depth": depth[1]} if depth and "epochs" not in words else {}
            self.add_comparison(in_setting(known), line, baseline)

    def add_ranking(self, ranked: pd.DataFrame) -> None:
        """Add the ranges of ranks: best and worst possible rank, and how many encodings are tied."""
        keys = [name for name in ("data", "depth") if name in ranked] or [lambda _: 0]
        for _, rows in ranked.groupby(keys):
            setting = in_setting(rows.iloc[0])
            rank = rows.set_index("pe")
            for pe, other in permutations(rows["pe"], 2):
                if rank.loc[pe, "worst"] == 1:
                    self.add(setting, pe, other, pe)
                if rank.loc[pe, "best"] == 1:
                    self.add(setting, pe, other, f"not {other}")
                if rank.loc[pe, "tied"] == len(rows) - 1:
                    self.add(setting, pe, other, "nobody")

    def add_choices(self, lines: list[dict[str, Any]]) -> None:
        """Add the recommendations for a need. Those about costs say nothing about a metric."""
        for line in lines:
            need, first = line["need"], line["encoding"]
            if "cheapest" in need or "no parameters" in need:
                continue
            setting = POOLED if "all settings" in need else ("far " if "exact_match" in need else "")
            if setting != POOLED:
                task, depth = re.search(r"data (\w+)", need), re.search(r"depth (\d+)(?!, epochs)\b", need)
                setting += in_setting(({"data": task[1]} if task else {}) | ({"depth": depth[1]} if depth else {}))
            known = {pe for pairs in self.found.values() for pair in pairs for pe in pair}
            if line["how sure"].startswith("better than each"):
                for pe in known - {first}:
                    self.add(setting, pe, first, first)
            elif tied := re.search(r"may also be (.*);", line["how sure"]):
                for pe in tied[1].split(", "):
                    self.add(setting, pe, first, f"not {first}")


def in_setting(line: Mapping[str, Any] | pd.Series) -> str:
    return f"{line.get('data', '')} {line.get('depth', '')}"


def unfolded(parts: list[Part]) -> list[Part]:
    """Return parts, with those of folded ones in their place."""
    return [inner for part in parts for inner in (unfolded(part.parts) if isinstance(part, Collapsible) else [part])]


def statements(shown: dict[str, Section]) -> dict[str, dict[frozenset[str], set[str]]]:
    """Return, for each setting and pair of encodings, the better one by each section of a report."""
    said, baseline = Statements(), "pe0"
    parts = [part for section in shown.values() for part in unfolded(section.parts)]
    tables = {part.caption: part.data for part in parts if isinstance(part, ReportTable)}
    for line in tables[f"To separate each encoding from {baseline}"].to_dict("records"):
        said.add_comparison(in_setting(line), line, baseline)
    for line in tables.get(f"Pooled differences from {baseline}", pd.DataFrame()).to_dict("records"):
        said.add_comparison(POOLED, line, baseline)
    on_top = next(iter(shown.values()))  # of one setting, whose figure is not repeated
    with_figure = (shown.get("Differences", on_top), on_top)
    drawn = [part for section in with_figure for part in unfolded(section.parts) if isinstance(part, CaptionedFigure)]
    drawn = [part for part in drawn if "verdict" in part.plot.data]  # on top may stand what was measured first
    said.add_forest(drawn[0].plot.data.to_dict("records"), baseline)
    said.add_ranking(next(table for caption, table in tables.items() if caption.startswith("Best mean first")))
    said.add_choices(tables["Drawn from these results alone"].to_dict("records"))
    return said.found


@pytest.mark.usefixtures("unplaced")
@pytest.mark.parametrize("number", range(6))
def test_no_two_statements_on_a_page_about_a_pair_in_a_setting_differ(number):
    found = {section.title: section for section in sections(question(made_study(number), baseline="pe0"))}
    said = statements(found)
    assert len(said) > 1 or "Differences" in found
    for setting, pairs in said.items():
        for pair, better in pairs.items():
            winners = better & pair
            assert len(winners | (better & {"nobody"})) <= 1, f"{setting}: {sorted(pair)}: {better}"
            assert not {f"not {name}" for name in winners} & better, f"{setting}: {sorted(pair)}: {better}"


def test_the_studies_that_are_compared_have_something_to_differ_in():
    """Pairs need verdicts of both kinds; otherwise the test above would compare nothing."""
    counts: dict[str, int] = {}
    for number in range(12):
        results = made_study(number)
        compared = families(results.cells, results.records, "pe0")
        for name, lines in compared.lines.items():
            for line in lines.itertuples():
                stands = line.verdict in ("better", "worse")
                key = f"{name[:4]} {'pe0' if line.baseline == 'pe0' else 'others'} {stands}"
                counts[key] = counts.get(key, 0) + 1
    assert sum(count for key, count in counts.items() if key.endswith("True")) >= 50


@pytest.mark.usefixtures("unplaced")
def test_differences_are_those_of_the_families(study):
    results = frame.load(study)
    found = {section.title: section for section in sections(question(results))}
    (drawn,) = (part for part in found["Differences"].parts if isinstance(part, CaptionedFigure))
    compared = filter_learned_comparisons(statistics.compare_cells(results.cells, "rope"), results.cells)
    assert len(compared) == 3  # of one setting
    family = question(results).compared.compare()
    assert filter_learned_comparisons(family, results.cells).attrs == family.attrs != {}
    alibi = drawn.plot.data[drawn.plot.data["pe"] == "alibi"]
    assert sorted(alibi["difference"]) == sorted(compared[compared["pe"] == "alibi"]["difference"])
    assert set(alibi["verdict"]) == {"better"}
    assert set(drawn.plot.data[drawn.plot.data["pe"] == "none"]["verdict"]) == {"worse"}
    text = " ".join(part for part in found["Cells and comparisons"].parts if isinstance(part, str))
    # 6 pairs of 4 encodings: in the only setting that was learned, and at the longest length at two depths
    assert "18 comparisons of all pairs (each setting: 6; " in text


@pytest.mark.usefixtures("unplaced")
def test_tables_omit_constant_columns(cells):
    one = cells[cells["epochs"] == 4].assign(data="structured")
    one = one[["pe", "data", *(name for name in one if name not in ("pe", "data"))]]
    for rows in (one, one.drop(columns="data")):
        for section in sections(question(results_of(rows))):
            for part in section.parts:
                if isinstance(part, ReportTable):
                    assert not {"data", "epochs"} & set(part.data), section.title
        needs = choices(rows, pd.DataFrame())["need"]
        assert needs[0].startswith("test loss, depth 4")  # the models of depth 1 have not learned the task


@pytest.mark.usefixtures("unplaced")
@pytest.mark.parametrize("depths", [1, 2])
def test_needs_are_named_by_steps_where_trainings_are_counted_in_steps(cells, depths):
    rows = cells[(cells["epochs"] == 4) & (cells["depth"] <= 4 ** (depths - 1))]
    rows = rows.assign(epochs=0.5)
    rows.insert(3, "steps", 60 * rows["depth"])
    needs = choices(rows, pd.DataFrame())["need"]
    assert needs[0] == ("test loss, depth 1, steps 60" if depths == 1 else "test loss, depth 4, steps 240")
    assert not needs.str.contains("epochs").any()


def test_settings_are_ascending_in_tables_and_figures(cells):
    rows = cells.sort_values(["depth", "epochs"], ascending=False, kind="stable")
    for section in sections(question(results_of(rows))):
        if section.opening or section.title == "Does it hold elsewhere?":
            continue  # over all settings; sorted by difference
        for part in section.parts:
            if not isinstance(part, (CaptionedFigure, ReportTable)):
                continue
            data = part.plot.data if isinstance(part, CaptionedFigure) else part.data
            if "depth" in data:
                assert data["depth"].is_monotonic_increasing, section.title
            if "setting" in data:
                words = [f"depth {depth}, epochs {epochs}" for depth in (1, 4) for epochs in (1, 4)]
                drawn = ["depth 1", "depth 4"] if "epochs" in data else words  # epochs are the axis
                named = data[~data["pe"].isin(["bayes", "position-blind", "prior"])]
                if section.title == "Differences" or (section.title == "Test loss" and "epochs" not in data):
                    drawn = words[-1:]  # the only setting that was learned
                assert list(dict.fromkeys(named["setting"])) == drawn, section.title
    rows = rows.assign(test_loss=rows["test_loss"] + rows["floor_position_blind_loss"])  # learned in none
    assert list(choices(rows, pd.DataFrame())["need"][:4]) == [f"test loss, {setting}" for setting in words]


def test_the_choice_names_the_best_and_those_that_may_be_as_good(cells):
    found = choices(cells, pd.DataFrame()).set_index("need")
    line = found.loc["test loss, depth 4, epochs 4"]
    assert line["encoding"] == "alibi"
    assert line["how sure"] == "better than each of the other 3"
    tied = learned(made_cells({"rope": 0.5, "learnable": 0.5, "none": 0.9}))
    line = choices(tied, pd.DataFrame()).set_index("need").loc["test loss, all settings"]
    assert {line["encoding"], *re.findall("equivalent to (.*);", line["how sure"])} == {"rope", "learnable"}
    tied.loc[tied["pe"] == "rope", "test_loss"] += np.random.default_rng(2).normal(0, 0.1, 20)
    line = choices(tied, pd.DataFrame()).set_index("need").loc["test loss, all settings"]
    assert {line["encoding"], *re.findall("may also be (.*);", line["how sure"])} == {"rope", "learnable"}


def test_the_choice_tells_equivalents_from_those_that_are_undecided():
    cells = learned(made_cells({"rope": 0.5, "learnable": 0.501, "none": 0.9, "noisy": 0.55}))
    noisy = cells["pe"] == "noisy"
    cells.loc[noisy, "test_loss"] += np.random.default_rng(1).normal(0, 0.4, noisy.sum())
    found = choices(cells, pd.DataFrame(), compared=families(cells, pd.DataFrame(), margin=Margin(0.1, "nats")))
    for need, line in found.set_index("need").iterrows():
        if need.startswith("test loss, depth 1, epochs"):
            assert {line["encoding"], *re.findall("^equivalent to ([^;,]*);", line["how sure"])} == {
                "rope",
                "learnable",
            }
            assert "; may also be noisy; better than 1 of the other 3" in line["how sure"]


@pytest.mark.parametrize("number", range(3))
def test_what_a_choice_calls_equivalent_is_so_by_the_verdicts(number):
    results, count = made_study(number), 0
    compared = families(results.cells, results.records, "pe0")
    for line in choices(results.cells, results.records, compared=compared).to_dict("records"):
        if line["need"] not in compared.tables:
            continue
        ranked = compared.ranks(line["need"])
        tied = set(ranked["pe"][ranked["best"] == 1]) - {line["encoding"]}
        verdicts = compared.alike(line["encoding"], line["need"])
        named = {}
        for relation, names in re.findall("(equivalent to|slightly better than) ([^;]*);", line["how sure"]):
            named |= dict.fromkeys(names.split(", "), relation.rpartition(" ")[0])
        assert named == {pe: verdict for pe, verdict in verdicts.items() if pe in tied}
        count += 1
    assert count


def test_a_declared_margin_is_that_of_every_table_of_its_metric(cells):
    records = made_records(cells)
    declared = {"loss": Margin(0.25, "gap"), "accuracy": Margin(0.3, "share")}
    compared = families(cells, records, "rope", margin=declared)
    assert set(compared.margins.values()) == {"0.25 gap"}
    for lines in compared.lines.values():  # also pooled, and at the longest length, with the gap at the training length
        assert lines["margin"].tolist() == [pytest.approx(0.25 * 0.43)] * len(lines)
    accuracy = families(learned(cells), records, "rope", "accuracy", declared)
    assert set(accuracy.lines[GRID_TABLE]["margin"]) == set(accuracy.lines[POOLED]["margin"]) == {0.3}
    bare = cells.drop(columns=[name for name in cells if name.startswith("floor_")])
    assert {lines["margin"].max() for lines in families(bare, records, "rope").lines.values()} == {0.02}


def test_a_gap_at_the_longest_length_is_that_of_the_seeds_that_were_measured(cells):
    cells["floor_position_blind_loss"] = 1.0 + cells["seed"] + 10 * (cells["depth"] == 4)
    records = made_records(cells)
    records = records[records["seed"] >= 2]
    compared = families(cells, records, "rope", margin=Margin(0.1, "gap"))
    found = {name: lines["margin"].unique().tolist() for name, lines in compared.lines.items() if "depth" in name}
    assert found == {
        "loss at 4 × the training length, depth 1": [pytest.approx(0.4)],
        "loss at 4 × the training length, depth 4": [pytest.approx(1.4)],
    }


def test_the_cheapest_is_one_of_those_that_are_as_good_by_a_margin_that_is_named():
    """An encoding that is undecided is not equally good: its losses may vary between seeds."""
    cells = learned(made_cells({"learnable": 0.5, "rope": 0.505, "none": 0.6}))
    noisy = cells["pe"] == "none"
    cells.loc[noisy, "test_loss"] += np.random.default_rng(1).normal(0, 0.4, noisy.sum())
    found = choices(cells, pd.DataFrame()).set_index("need")
    assert "none" in found.loc["test loss, all settings", "how sure"]
    cheapest = found.loc["test loss, all settings, cheapest"]
    assert cheapest["encoding"] == "rope"  # equal FLOPs, no parameters
    assert cheapest["how sure"] == (
        "fewest FLOPs, then parameters, of the 2 within the margin of 0.02 nats of the best mean; "
        "certainly within the margin of learnable"
    )
    alone = choices(learned(made_cells({"learnable": 0.5, "rope": 0.6})), pd.DataFrame()).set_index("need")
    cheapest = alone.loc["test loss, all settings, cheapest"]
    assert cheapest["encoding"] == "learnable"
    assert cheapest["how sure"].startswith("no other is within the margin of 0.02 nats of the best mean")
    bare = cells.drop(columns=[name for name in cells if name.startswith("floor_")])
    bare["test_loss"] /= 10
    cheapest = choices(bare, pd.DataFrame()).set_index("need").loc["test loss, all settings, cheapest"]
    assert cheapest["how sure"] == (
        "fewest FLOPs, then parameters, of the 3 within the margin of 0.02 nats of the best mean; "
        "certainly within the margin of learnable"
    )


@pytest.mark.usefixtures("unplaced")
def test_over_tasks_the_scale_of_a_tasks_losses_does_not_decide(cells):
    """In nats, the task with the largest losses would decide alone."""
    cells = learned(cells[(cells["epochs"] == 4) & (cells["depth"] == 1)])
    copy, sort = cells.assign(data="copy"), cells.assign(data="sort")
    floors = [name for name in cells if name.startswith("floor_")]
    sort["test_loss"] = sort["test_loss"] - sort["pe"].map({"alibi": 0.0, "none": 0.9}).fillna(0.0)
    copy["test_loss"] = 100 * (copy["test_loss"] - copy["pe"].map({"none": 0.5}).fillna(0.0))
    copy[floors] *= 100
    rows = pd.concat([copy, sort], ignore_index=True)
    rows = rows[["pe", "data", *(name for name in rows if name not in ("pe", "data"))]]
    found = choices(rows, pd.DataFrame()).set_index("need")
    assert found.loc["test loss, data copy", "encoding"] == "alibi"
    line = found.loc["test loss, all settings (share of the gap that remains)"]
    assert line["encoding"] == "none"  # a little worse on copy, much better on sort
    in_nats = rows.groupby(["pe", "depth", "epochs", "seed"])["test_loss"].mean().reset_index()
    assert statistics.Families.of({GRID_TABLE: (in_nats, "loss")}).ranks()["pe"].iloc[0] == "alibi"
    text = [part for section in sections(question(results_of(rows))) for part in section.parts if isinstance(part, str)]
    assert any("copy from position-blind to bayes; sort from position-blind to bayes" in part for part in text)
    bare = rows.drop(columns=floors)
    assert not choices(bare, pd.DataFrame())["need"].str.contains("all settings").any()
    note = "Not pooled over tasks: for test loss, no level is known for copy, sort."
    assert pooling.pool(bare).note == note


def test_the_choice_for_longer_sequences_is_that_of_the_longest(cells):
    records = made_records(cells)
    far = records["length"] == 4
    records.loc[far & (records["pe"] == "none"), "value"] = 0.0 + records["seed"] * 1e-3
    found = choices(cells, records).set_index("need")
    assert found.loc["loss at 4 × the training length, depth 4", "encoding"] == "none"


def test_an_equivalent_that_another_encoding_beats_is_not_named_beside_the_best():
    shape = np.array([-1.0, -0.5, 0.0, 0.5, 1.0]) / np.std([-1.0, -0.5, 0.0, 0.5, 1.0], ddof=1)
    values = {"a": -0.13 + 0.001 * shape, "b": 0 * shape, "c": -0.12 + 0.04 * shape[[2, 0, 4, 1, 3]]}
    cells = made_cells(dict.fromkeys(values, 0.0))
    cells = cells[(cells["depth"] == 1) & (cells["epochs"] == 1)]
    cells["test_loss"] = [values[pe][seed] for pe, seed in zip(cells["pe"], cells["seed"], strict=True)]
    compared = families(cells, pd.DataFrame(), "a", margin=Margin(0.15, "nats"))
    assert compared.lines[GRID_TABLE]["verdict"].tolist() == ["slightly worse", "equivalent", "worse"]
    assert compared.alike("a") == {"b": "slightly better", "c": "equivalent"}
    (line,) = choices(cells, pd.DataFrame(), compared=compared).to_dict("records")
    assert (line["encoding"], line["how sure"]) == ("a", "equivalent to c; better than 0 of the other 2")


def test_lengths_at_which_nothing_is_finite_choose_nothing(cells):
    records = made_records(cells)
    records.loc[(records["length"] == 4) & (records["depth"] == 4), "value"] = np.inf
    needs = choices(cells, records)["need"].tolist()
    assert "loss at 4 × the training length, depth 1" in needs
    assert "loss at 4 × the training length, depth 4" not in needs


def test_a_setting_with_a_dot_in_its_name_has_its_own_equivalents(cells):
    one = learned(cells[(cells["depth"] == 1) & (cells["epochs"] == 1)])
    parts = [one.assign(**{"model.norm": norm}) for norm in ("pre", "post", None)]
    rows = pd.concat(parts)
    settings = ["pe", "depth", "epochs", "model.norm", "seed"]
    rows = rows[[*settings, *(name for name in rows if name not in settings)]]
    alike = (rows["model.norm"] == "post") & (rows["pe"] == "rope")
    rows.loc[alike, "test_loss"] = rows.loc[
        (rows["model.norm"] == "post") & (rows["pe"] == "alibi"), "test_loss"
    ].values
    found = choices(rows, pd.DataFrame()).set_index("need")["how sure"]
    assert found["test loss, norm post"] == "equivalent to alibi; better than 2 of the other 3"
    assert found["test loss, norm pre"] == "better than each of the other 3"


@pytest.mark.parametrize(
    ("floors", "compared"),
    [
        ({"bayes": 0.0, "position_blind": 0.1, "prior": 9.0}, {BLIND}),  # better than a guess
        ({"bayes": 0.0, "position_blind": 0.0, "prior": 0.1}, {GUESS}),  # position wins nothing
    ],
)
def test_what_was_not_learned_names_what_losses_were_compared_with(floors, compared):
    rows = made_cells({"rope": 0.5, "none": 0.6})
    rows = rows.assign(**{f"floor_{name}_loss": value for name, value in floors.items()})
    for why in choices(rows, pd.DataFrame())["how sure"]:
        assert {level for level in (BLIND, GUESS) if level in why} == compared


def test_settings_below_the_best_without_position_are_left_out_beside_those_that_need_none():
    rows = made_cells({"rope": 0.5, "none": 0.6})
    rows = rows.assign(floor_bayes_loss=0.0, floor_prior_loss=0.1)
    rows["floor_position_blind_loss"] = np.where(rows["depth"] == 1, 0.1, 0.0)
    found = choices(rows, pd.DataFrame()).set_index("need")["how sure"]
    assert not found.index.str.contains("depth 1").any()
    assert all(GUESS in why for why in found)


def test_no_encoding_is_chosen_where_none_is_better_than_the_best_without_position(cells):
    records = made_records(cells)
    records.loc[(records["kind"] == "length") & (records["depth"] == 1), ["metric", "value"]] = ["exact_match", 0.0]
    level = cells["floor_position_blind_loss"].iloc[0]
    found = choices(cells, records).set_index("need")["encoding"]
    for (depth, epochs), here in cells.groupby(["depth", "epochs"]):
        learned = here.groupby("pe")["test_loss"].mean().min() < level
        assert (f"test loss, depth {depth}, epochs {epochs}" in found) == learned
    assert not found.index.str.contains("all settings").any()
    assert found["exact_match at 4 × the training length, depth 1"] == NOBODY
    assert found["loss at 4 × the training length, depth 4"] != NOBODY
    bad = cells.assign(test_loss=cells["test_loss"] + level)
    chosen = choices(bad, pd.DataFrame())
    assert len(chosen)
    assert set(chosen["encoding"]) == {NOBODY}


@pytest.mark.parametrize("right", [0.0, 0.049, 0.051])
def test_nothing_is_recommended_for_few_right_answers(cells, right):
    records = made_records(cells)
    of_lengths = records["kind"] == "length"
    best = records["pe"].eq("alibi") * right
    records.loc[of_lengths, "metric"], records.loc[of_lengths, "value"] = "exact_match", best[of_lengths]
    found = choices(cells, records).set_index("need")["encoding"]
    at_lengths = found[found.index.str.startswith("exact_match")]
    assert len(at_lengths) == 2
    assert set(at_lengths) == {"alibi" if right > 0.05 else NOBODY}


def test_one_seed_chooses_nothing(cells):
    one = learned(cells[cells["seed"] == 0])
    assert set(choices(one, pd.DataFrame())["how sure"]) == {"not at all: one seed"}


def test_cautions_name_the_problems_of_the_cells(cells):
    few = few_runs(cells["pe"].nunique(), cells["seed"].nunique())
    assert few
    assert cautions(results_of(cells), "rope") == [few]
    worse = cells.copy()
    worse.loc[0, "torch"] = "2.7.0"
    worse = worse[~((worse["pe"] == "alibi") & (worse["seed"] > 0))]
    worse = worse[~((worse["pe"] == "none") & (worse["depth"] == 4))]
    failed = results_of(worse, failed=pd.DataFrame({"reason": ["x"]}), refused=["entry"])
    text = " ".join(cautions(failed, "rope"))
    assert "1 cells failed" in text
    assert "1 entries were refused" in text
    assert "One seed only: alibi" in text
    assert "Seeds are not the same everywhere: 4 of 14" in text
    assert "2 of 16 combinations of setting and encoding were not trained" in text
    assert "several versions of PyTorch: 2.7.0, 2.13.0" in text


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
    found = tuned_rates.tuned(results)
    chosen = found.rates.set_index(["pe", "depth", "epochs"])["optimizer.lr"]
    assert (chosen.loc["none"] == 1e-2).all()
    assert (chosen.loc["rope"] == 1e-3).all()
    assert found.rates["at_edge"].all()  # of two
    text = {section.title: section for section in sections(question(results))}
    text = text["Learning rates"].parts
    assert any(isinstance(part, str) and part.startswith("**Note.** 16 of 16 tuned rates are the low") for part in text)
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
    assert first.startswith(
        "Each encoding was trained at the learning rate that had the lowest validation loss in a sea"
    )
    edge = int(table["at_edge"].sum())
    assert note.startswith(f"**Note.** {edge} of {len(table)} choices stand at the edge")
    assert shown.data["optimizer.lr"].tolist() == table["optimizer.lr"].tolist()
    assert "one learning rate" not in " ".join(part for parts in titles.values() for part in parts if type(part) is str)
    (tmp_path / "rates.csv").write_text(table.assign(start_scale=0.5, at_edge=False).to_csv(index=False))
    first, shown = {section.title: section.parts for section in sections(asked)}["Learning rates"]
    assert "at the learning rate and starting scale that had" in first


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


def test_the_command_writes_one_page_without_a_twin(study, monkeypatch, capsys):
    run(monkeypatch, study, "--baseline", "none")
    assert (study / "report.html").stat().st_size > 10_000
    assert list(study.glob("*.md")) == []
    text = text_of((study / "report.html").read_text())
    assert "## Which encoding for which need" in text
    assert "comparisons with none (each setting: " in text
    assert "80 cells" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("without_figures")
def test_margin_and_pair_can_be_chosen_on_the_command_line(study, cells, monkeypatch):
    learned(cells).to_csv(study / "rows.csv", index=False)
    (study / "declared.json").write_text('{"margin": {"loss": "0.05 gap"}, "baseline": "none"}')
    run(monkeypatch, study)
    text = text_of((study / "report.html").read_text())
    assert "comparisons with none" in text  # the declared baseline
    assert "The declared margin is 0.02 nats (0.05 of the gap from `position-blind` to `bayes`)." in text
    assert "`alibi` (the best of the others by mean" in text
    run(monkeypatch, study, "--margin", "0.5 nats", "--against", "learnable", "--baseline", "rope")
    text = text_of((study / "report.html").read_text())
    assert "The margin, chosen for this report, is 0.5 nats." in text
    assert "The margin of 0.5 nats was given for this report; the study declared 0.05 gap." in text
    assert "`learnable` (as asked) against `rope`." in text
    assert "statistics.Margin.parse('0.5 nats')" in text


@pytest.mark.parametrize("number", range(12))
def test_the_answer_calls_the_best_what_the_verdicts_do(number):
    """Settings of two tasks are pooled; encodings that lack a cell are in no pooled mean."""
    results = made_study(number)
    asked = question(replace(results, cells=learned(results.cells)), baseline="pe0")
    compared = asked.compared
    table = POOLED if POOLED in compared.tables else GRID_TABLE
    ranked = compared.ranks(table).set_index("pe")
    if len(ranked) < 2 or (
        table == GRID_TABLE and asked.results.cells[["data", "depth"]].drop_duplicates().shape[0] > 1
    ):
        pytest.skip("there is no mean over all settings")
    found = overall(compared)
    best = found.case in ("best", "better")
    assert ranked["worst"].iloc[0] == 1 if best else ranked["worst"].iloc[0] > 1 or found.near
    assert set(found.open) == set(ranked.index[ranked["best"] == 1])
    assert set(found.behind) == set(ranked.index[ranked["best"] > 1])
    assert answer.sentences(asked)[0].partition("\n")[0] == found.words()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "source must be a study's name, a ledger, a study's folder, or wandb:ENTITY/PROJECT, got nothing"),
        (["{study}", "--colour", "x"], "unrecognized arguments: --colour x"),
        (["nowhere"], "source must be a folder, or a study in ledger, which has none, got 'nowhere': pe-lab run -m "),
        (["tune_lr"], "tune_lr must be trained before its report, got no such study in ledger: pe-lab run -m +study="),
        (
            ["{study}", "--baseline", "ropes"],
            "baseline='ropes': did you mean rope? baseline must be one of rope, alibi, none, learnable",
        ),
        (["{study}", "--against", "rope"], "against must be one of alibi, none, learnable, got 'rope'"),
        (["{study}", "--margin", "little"], "margin must be a number and one of gap, nats, share"),
        (["{study}", "--margin", "0.1 share"], "the margin of loss must be in gap or nats, got '0.1 share'"),
        (["{study}", "--metric", "f1"], "metric must be one of loss, accuracy, got 'f1'"),
        (["{study}", "--audit", "{study}"], "--audit must be a folder with the table.csv of an audit"),
        (["{empty}"], "the ledger must have a finished cell, got none"),
        (["{empty}", "--study", "x"], "study must be one of none yet"),
        (["{broken}"], "rows.csv must have the cells of a study"),
        (["{words}"], "rows.csv must have a number or nothing in the column test_loss, got 'low' in line 4"),
        (["{costs}"], "rows.csv must have the columns attention, seconds, got none of that name"),
        (["{curves}"], "curves.csv must have the columns epoch, got none of that name"),
        (["{records}"], "records.csv must have a number or nothing in the column value, got 'low' in line 2"),
    ],
)
def test_bad_input_is_one_line(words, line, study, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    store(tmp_path / "broken", pd.DataFrame({"a": [1]}))
    places = {name: tmp_path / name for name in ("empty", "broken", "words", "costs", "curves", "records")}
    places["study"] = study
    cells = made_cells()
    low = cells.astype({"test_loss": object})
    low.loc[2, "test_loss"] = "low"
    store(tmp_path / "words", low)
    store(tmp_path / "costs", cells.drop(columns=["seconds", "attention"]))
    store(tmp_path / "curves", cells, curves=made_curves(cells).drop(columns="epoch"))
    records = made_records(cells).astype({"value": object})
    records.loc[0, "value"] = "low"
    store(tmp_path / "records", cells, records=records)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *(word.format(**places) for word in words))
    assert ended.value.code == 1
    out, error = capsys.readouterr()
    error = error.strip()
    assert not out or not {"--baseline", "--against"} & set(words)  # before anything is drawn
    assert error.startswith("error: ")
    assert line in error
    assert "\n" not in error


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("maximum recursion depth exceeded")])
def test_exhausted_memory_or_recursion_is_one_line(error, study, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pe_lab.report.sections.sections", fail)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, study)
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {str(error) or 'MemoryError'}\n"


def test_one_encoding_and_one_cell_have_a_report_too(tmp_path, cells, monkeypatch):
    for name, few in (("one_pe", cells[cells["pe"] == "rope"]), ("one_cell", cells.head(1))):
        folder = store(tmp_path / name, few, curves=made_curves(cells))
        run(monkeypatch, folder)
        assert (folder / "report.html").is_file()


@pytest.mark.usefixtures("without_figures")
def test_failed_cells_are_listed_and_in_no_mean(tmp_path, cells, monkeypatch):
    failed = pd.DataFrame(
        {"pe": ["rope"], "depth": [16], "epochs": [1], "seed": [0], "reason": ["loss must be finite"]}
    )
    folder = store(tmp_path / "study", cells, failed=failed)
    run(monkeypatch, folder)
    text = text_of((folder / "report.html").read_text())
    assert "## Failed and omitted cells" in text
    assert "loss must be finite" in text


@pytest.mark.usefixtures("without_figures")
def test_pairs_that_a_study_left_out_are_listed(tmp_path, cells, monkeypatch):
    folder = store(tmp_path / "study", cells)
    (folder / "skipped.csv").write_text("pe,data,reason\ncope,pattern,pe=cope is causal\n")
    run(monkeypatch, folder)
    text = text_of((folder / "report.html").read_text())
    assert "| cope | pattern | pe=cope is causal |" in text
    assert "Left out of the study" in text


@pytest.mark.long
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


def test_what_is_measured_at_longer_lengths_and_by_layer_is_said_first(study):
    results = frame.load(study)
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
    assert ("no encoding has 5% of the answers right" in said) == (right < 0.05)


def test_a_study_that_measures_layers_has_the_question_of_its_configuration(cells):
    records = made_records(cells)
    for name, known in (("layers", True), ("mine", False)):
        asked = question(results_of(cells, study=name, records=records))
        assert (answer.title(asked) == study_question("layers")) == known
    assert study_question("layers").endswith("?")
    assert study_question("pe_bench_2") == ""
    bare = question(results_of(cells, study="layers"))
    assert answer.title(bare) != study_question("layers")


def test_figures_of_layers_are_folded(study):
    (section,) = (section for section in sections(question(frame.load(study))) if section.title == "Layers")
    (folded,) = section.parts
    (probe,) = folded.parts
    assert [part.caption.partition(",")[0] for part in probe.parts] == ["Probe position: R² of position by layer"]
    page = html("layers", [Section("Layers", [folded])])
    assert page.index("<details>") < page.index("<svg")


def test_of_layers_of_models_that_have_not_learned_the_task_losses_are_not_compared(cells):
    records = made_records(cells)
    for kind, compares in (("probe", False), ("length", True)):
        studied = question(results_of(cells.assign(test_loss=9.0), records=records[records["kind"] == kind]))
        assert not_learned_note(studied.results.cells)
        assert answer.compares_losses(studied) == compares
        titles = {section.title for section in sections(studied)}
        assert ("Differences" in titles) == compares
        assert any(answer.sentences(studied)[0] in str(part) for part in answer.answer(studied).parts) == compares
        (methods,) = (section for section in sections(studied) if section.title == "Methods")
        assert any("margin" in str(part) for part in methods.parts) == compares


def test_ranks_of_states_are_told_for_each_of_a_few_settings():
    rows = pd.DataFrame({"model.norm": ["pre", "pre", "post", "post"], "layer": [0, 1, 0, 1], "value": [9, 2, 9, 4.0]})
    rows = rows.assign(pe="none", data="copy", depth=1, epochs=1, seed=0, kind="probe", probe="rank")
    rows = rows.assign(metric="stable_rank", length=1.0)
    settings = ["pe", "data", "depth", "epochs", "seed", "model.norm"]
    rows = rows[[*settings, "kind", "length", "probe", "layer", "metric", "value"]]
    said, drawn, folded, *_ = layer_parts(rows)
    (table,) = folded.parts
    both = layer_parts(pd.concat([rows, rows.assign(metric="token_cosine", value=0.2)]))
    assert set(both[1].plot.data["mean"]) == {0.2}  # on which it rests that models do not collapse
    assert isinstance(both[2], Collapsible)
    assert both[2].parts[0].plot.data.equals(drawn.plot.data)
    assert sorted(drawn.plot.data["mean"]) == pytest.approx([1 / 9, 1 / 9, 1 / 4, 1 / 2])  # shares of the variance
    one = "One direction has up to 50 % with norm pre and 25 % with norm post of the variance in a layer, after 11 % at"
    assert f"{one} the embedding." in said
    shares = dict(zip(table.data["setting"], table.data.iloc[:, -1], strict=True))
    assert shares == {"norm pre": "50", "norm post": "25"}
    deep, _ = layer_parts(pd.concat([rows, rows.assign(depth=2, value=rows["value"].replace({2: 1.25}))]))[:2]
    assert "has up to 80 % with norm pre and 25 % with norm post of the variance in a layer" in deep
    assert deep.endswith("depth 2 adds at most 30 points to depth 1.")
    same, *_ = layer_parts(pd.concat([rows, rows.assign(depth=2)]))
    assert "points to depth 1" not in same
    assert "depth 2 adds nothing to depth 1" in same
    _, _, folded, *_ = layer_parts(rows.assign(metric="effective_rank"))
    (table,) = folded.parts
    assert dict(zip(table.data["setting"], table.data.iloc[:, -1], strict=True)) == {"norm pre": "2", "norm post": "4"}


@pytest.mark.parametrize(
    ("cosines", "collapse"), [((0.1, 0.2), "do not collapse"), ((0.1, 0.95), "in part"), ((0.95, 0.99), "collapse (")]
)
def test_models_collapse_where_the_tokens_of_all_encodings_become_alike(cosines, collapse) -> None:
    rows = pd.DataFrame({"pe": ["none", "rope"], "data": "copy", "depth": 1, "epochs": 1, "seed": 0, "kind": "probe"})
    rows = rows.assign(length=1.0, probe="rank", layer=1, metric="token_cosine", value=cosines)
    said, *_ = layer_parts(rows)
    assert collapse in said.partition(":")[0]


def test_where_an_interval_reaches_the_level_of_the_token_it_is_not_said_that_position_is_read() -> None:
    rows = pd.DataFrame({"seed": [0, 1, 2], "value": [0.5, 0.6, 0.7]})
    rows = rows.assign(pe="rope", data="copy", depth=1, epochs=1, kind="probe", length=1.0, probe="position", layer=0)
    columns = ["pe", "data", "depth", "epochs", "seed", "kind", "length", "probe", "layer", "metric", "value"]
    rows = rows.assign(metric="r2")[columns]
    token = rows.head(1).assign(layer=np.nan, metric="r2_from_token", value=0.3)
    said, *_ = layer_parts(pd.concat([rows, token]))
    assert "With `rope` a linear probe reads position at the embedding (R² 0.60; from the token alone 0.30)" in said
    said, *_ = layer_parts(pd.concat([rows, token.assign(value=0.4)]))
    assert "With `rope` that is undecided (R² 0.60, with an interval from 0.35)" in said
    wide = rows.assign(value=rows["value"] + [-0.1, 0, 0.1])
    both = pd.concat([rows.assign(norm="pre"), wide.assign(norm="post")])
    both = both[[*columns[:5], "norm", *columns[5:]]]
    said, *_ = layer_parts(pd.concat([both, token.assign(norm="pre")]))
    assert "With norm pre `rope` a linear probe reads position at the embedding (R² 0.60; from" in said
    assert "With norm post `rope` that is undecided" in said


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
    assert "0.1, the lowest tried, in 1 of 2 cases and 0.2, the highest tried, in 1 of 2 cases" in said
    assert "0.1 for `none`; 0.2 for `rope`." in said
    assert "significantly worse only for `rope`" in said
    assert "1.00 nats at 0.1 (95 % interval 1.00 to 1.00) and 1.50 nats at 0.2 (not significant)" in said
    assert "`rope` has the lowest mean test loss, 1 nats, ahead of `none` by 0.5 (95 % interval 0.5 to" in details
    assert dict(zip(table.data["pe"], table.data["test loss"], strict=True)) == {"rope": 1.0, "none": 1.5}
    alone = question(results_of(rows[rows["pe"] == "rope"], curves=curves[curves["pe"] == "rope"]), baseline="rope")
    assert any(getattr(part, "caption", "") == "Tuned rates" for part in rates(alone).parts)  # not on the first screen
    drawn = figure.plot.data.set_index(["pe", "optimizer.lr"])["mean"]
    assert dict(drawn) == {("rope", 0.1): 1.0, ("rope", 0.2): 0.0, ("none", 0.1): 0.0, ("none", 0.2): 1.5}


def test_settings_that_were_not_learned_are_not_compared(cells) -> None:
    levels = {"floor_bayes_loss": -9.0, "floor_position_blind_loss": np.where(cells["depth"] == 1, -8.0, 9.0)}
    studied = question(results_of(cells.assign(**levels)))
    (section,) = (part for part in sections(studied) if part.title == "Differences")
    pairs, *_ = (part for part in section.parts if isinstance(part, Collapsible))
    assert set(studied.compared.lines[GRID_TABLE]["depth"]) == {4}
    assert len(pairs.parts[0].data) == studied.compared.size() == 2 * 6  # after 1 and 4 epochs


def test_columns_of_sentences_are_wide():
    table = ReportTable(pd.DataFrame({"pe": ["rope"], "how sure": ["better than " * 5]}), "choice")
    assert page_module._part(table)["table"]["classes"] == ["text short", "text long"]


def test_a_command_is_told_only_where_its_file_gives_the_settings_of_the_cells() -> None:
    """The study `text` states its epochs, and no depth."""
    told = {}
    for epochs in (1, 8):
        rows = made_cells().query("epochs == 1").assign(epochs=epochs, data="clm")
        told[epochs] = command_of(results_of(rows, study="text"))
    assert "+study=text" in told[1]
    assert told[8] == ""


def test_probes_are_summed_up_from_the_first_to_the_last_layer_of_the_deepest_models():
    rows = pd.DataFrame({"depth": [1, 1, 4, 4, 4], "layer": [0, 1, 0, 2, 4], "value": [0.9, 0.8, 0.2, 0.7, -0.001]})
    rows = rows.assign(
        pe="none", data="copy", epochs=1, seed=0, kind="probe", probe="position", metric="r2", length=1.0
    )
    rows = rows[["pe", "data", "depth", "epochs", "seed", "kind", "length", "probe", "layer", "metric", "value"]]
    said, figure, numbers, folded = layer_parts(pd.concat([rows, rows.assign(seed=1, value=rows["value"] + 0.2)]))
    (summary,), (table, *_) = numbers.parts, folded.parts
    assert table.data.to_dict("records") == [{"pe": "none", "R² of position": "0.30 → 0.10"}]
    half, first = (np.ptp(interval(pd.Series(values))) / 2 for values in ([0.7, 0.9], [0.2, 0.4]))
    assert list(summary.data.iloc[0]) == ["none", f"0.30 ± {first:.2f}", "never", f"0.80 ± {half:.2f}"]
    assert said == (
        "Means over 2 seeds of models of depth 4:\n- With `none` a linear probe reads position at the embedding "
        "(R² 0.30). Towards the last layer R² falls again, by up to 0.70."
    )
    assert figure.plot.data["layer"].tolist() == [0, 2, 4]  # of the deepest models alone
    token = rows.head(1).assign(depth=4, layer=np.nan, metric="r2_from_token", value=0.28)
    said, _, numbers, *_ = layer_parts(pd.concat([rows.assign(value=[0.2, 0.9, 0.3, 0.95, 0.8]), token]))
    (summary,) = numbers.parts
    assert "not read there (R² 0.30; from the token alone 0.28): layers build it up, to 0.9 by layer 2 of 4." in said
    assert summary.data["layer with 0.9"].to_list() == ["2"]
    lower = rows.assign(pe="rope", value=[0.2, 0.9, 0.3, 0.5, 0.8])
    said, *_ = layer_parts(pd.concat([rows.assign(value=[0.2, 0.9, 0.3, 0.95, 0.8]), lower, token]))
    assert "to 0.9 by layer 2 of 4, not with `rope`." in said
    _, other = layer_parts(rows.assign(probe="mine", metric="height"))
    assert other.parts[0].data.to_dict("records") == [{"pe": "none", "height": "0.20 → 0.00"}]


def test_no_figure_of_the_first_screen_is_repeated(study):
    drawn = [figure.code for section in sections(question(frame.load(study))) for figure in figures(section.parts)]
    assert len(drawn) == len(set(drawn))


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
    assert said.startswith("No encoding has half of the answers right at any longer length")
    records.loc[near & (records["pe"] == "alibi"), "value"] = np.where(
        records.loc[near & (records["pe"] == "alibi"), "seed"] == 0, 1.0, 0.0
    )
    far = at_longer_lengths(question(results_of(cells, records=records)))
    assert "not significantly ahead of any other" in far
    records.loc[near & (records["pe"] == "alibi"), "value"] = 0.6
    more = at_longer_lengths(question(results_of(cells, records=records)))
    assert "half" not in more
    assert "no right answer" not in more
    assert "`alibi`, " not in more
    records.loc[records["length"] == 1, "value"] = np.where(
        records.loc[records["length"] == 1, "pe"] == "rope", 0.8, 1.0
    )
    more = at_longer_lengths(question(results_of(cells, records=records)))
    assert "`alibi` has 60%" in more
    assert "`alibi`" not in more.rpartition("has 5%.")[2]  # of which some answers are right
    assert "have no right answer (but 100.0% at the training length)." in more
    assert "`rope` 4%" not in said


@pytest.mark.parametrize(("metric", "ends"), [("exact_match", (0, 1)), ("loss", (0, np.inf)), ("mine", (-9, 9))])
def test_intervals_of_means_end_at_what_is_possible(metric, ends):
    rows = pd.DataFrame({"pe": "rope", "depth": 1, "epochs": 1, "seed": [0, 1], "value": [0.01, 0.99]})
    line = panels.means(rows, [], ["depth", "epochs"], metric).iloc[0]
    assert (line["low"], line["high"]) == pytest.approx(np.clip(interval(rows["value"]), *ends))


def test_intervals_of_differences_end_at_the_largest_possible_difference():
    low, high = columns.cut_interval("accuracy", [0.2, 0.2], [-1.4, -0.5], [1.8, 0.9], difference=True)
    assert (low.tolist(), high.tolist()) == ([-1, -0.5], [1, 0.9])
    assert columns.cut_interval("loss", 0.2, -1.4, 1.8, difference=True) == pytest.approx((-1.4, 1.8))
    assert columns.cut_interval("score", 1.5, 1.4, 1.6) == pytest.approx((1.4, 1.5))  # never beyond the mean
