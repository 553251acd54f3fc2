"""No two statements of a report contradict each other."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.frames import results_of
from helpers.reports import learned, question, unfolded
from pe_lab.report import answer
from pe_lab.report.best_candidates import overall
from pe_lab.report.parts import CaptionedFigure, ReportTable, Section
from pe_lab.report.recommendations import choices
from pe_lab.report.sections import sections
from pe_lab.results import frame
from pe_lab.results.study_comparisons import POOLED, families
from pe_lab.statistics import GRID_TABLE


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
            setting = POOLED if "all settings" in need else ("far " if "exact match" in need else "")
            if setting != POOLED:
                task, depth = re.search(r"data (\w+)", need), re.search(r"depth (\d+)(?!, epochs)\b", need)
                setting += in_setting(({"data": task[1]} if task else {}) | ({"depth": depth[1]} if depth else {}))
            known = {pe for pairs in self.found.values() for pair in pairs for pe in pair}
            if line["how sure"].startswith("better than each"):
                for pe in known - {first}:
                    self.add(setting, pe, first, first)
            elif tied := re.search(r"not separable from (.*)$", line["how sure"]):
                for pe in tied[1].split(", "):
                    self.add(setting, pe, first, f"not {first}")


def in_setting(line: Mapping[str, Any] | pd.Series) -> str:
    return f"{line.get('data', '')} {line.get('depth', '')}"


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
    said.add_choices(tables["From these results alone. Values are means over seeds, losses in nats"].to_dict("records"))
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


@pytest.mark.parametrize("number", range(3))
def test_what_a_choice_calls_equivalent_is_so_by_the_verdicts(number):
    results, count = made_study(number), 0
    compared = families(results.cells, results.records, "pe0")
    for line in choices(results.cells, results.records, compared=compared).to_dict("records"):
        if line["need"] not in compared.tables:
            continue
        ranked = compared.ranks(line["need"])
        tied = set(ranked["pe"][ranked["best"] == 1]) - {line["encoding"]}
        verdicts = compared.verdicts(line["encoding"], line["need"])
        named = {}
        for relation, names in re.findall("(equivalent to|slightly better than) ([^;]*)", line["how sure"]):
            named |= dict.fromkeys(names.split(", "), relation.rpartition(" ")[0])
        assert named == {pe: verdicts[pe] for pe in tied if verdicts[pe] != "undecided"}
        count += 1
    assert count


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
