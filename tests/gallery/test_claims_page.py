"""The page of claims: verdicts, parts, figures and filters."""

import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

from helpers import tuned
from helpers.gallery_html import rows_of_claims
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import task_named
from pe_lab.gallery.claim_figure import place
from pe_lab.gallery.claim_tests import (
    CANNOT,
    at_edge,
    by_support,
    by_verdict,
    claimed_side,
    encodings_of,
    unlearned,
    verdict_of_claim,
    weakest,
    without_room,
)
from pe_lab.gallery.claim_text import (
    UNPUBLISHED,
    conditions,
    levels,
    mean_and_interval,
    parts_tables,
    shared_notes,
    states,
)
from pe_lab.gallery.claims_page import claims_page
from pe_lab.gallery.encoding_page import encoding_page
from pe_lab.gallery.extrapolation import keeps_positions
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import number, percent
from pe_lab.replication import EntryVerdict, Finding, judge_entry
from pe_lab.replication.entry import Claimed
from pe_lab.statistics import Agreement


def some_claim(content: GalleryData, name: str, rows: pd.DataFrame) -> tuple[Finding, dict[str, TaskResults]]:
    """Return a claim on one task of the benchmark, judged on rows, and their results."""
    entry = content.claims[name].entry
    results = {entry.tasks[0]: TaskResults(task_named(entry.tasks[0]), rows)}
    values = {}
    for label, test in entry.values.items():
        cells = [{**test.value, **change} for change in ({}, *test.others)]
        seeds = [rows[rows["pe"] == cell["pe"]][f"{cell['metric']}_x{cell['length']}"].to_numpy() for cell in cells]
        values[label] = list(seeds[0] - seeds[1])
    return judge_entry(entry, values), results


def test_claims_have_their_verdicts_and_their_encodings(content: GalleryData) -> None:
    html = claims_page(content).html()
    for name, claim in content.claims.items():
        part = html[html.index(f'id="{name}"') :]
        part = part[: part.index("</section>")]
        assert escape(str(claim.verdict if claim.compared else claim)) in part
        cells = re.findall(r'<td class="gallery-verdict" data-verdict="([\w ]+)">', part)
        assert sorted(cells) == sorted(str(one.agreement) for one in claim.compared.values())
        verdict = re.search(r'<strong class="gallery-verdict" data-verdict="([\w ]+)">', part)
        assert verdict is not None
        assert not ({"not reproduced", "undecided"} & set(cells) and verdict[1] == "reproduced")
    assert "not run" not in str(content.claims["blind"])
    assert 'href="encodings/rope.html"' in html


def test_claims_of_papers_come_first_by_verdict_and_rows_name_them(content: GalleryData) -> None:
    rows = rows_of_claims(content)
    assert rows.keys() == content.claims.keys()
    papers = {name: claim.entry.paper for name, claim in content.claims.items()}
    published = [papers[name] != UNPUBLISHED for name in rows]
    assert published == sorted(published, reverse=True)
    assert len(set(published)) == 2
    assert all(f'href="{papers[name]}"' in row for name, row in rows.items() if papers[name] != UNPUBLISHED)
    for name, row in rows.items():
        assert f'href="#{name}"' in row
    judged = [verdict_of_claim(content.claims[name]) for name in rows if papers[name] == UNPUBLISHED]
    assert [verdict for verdict, _ in groupby(judged)] == ["mixed", "not reproduced", "undecided", CANNOT]


def test_parts_of_claims_are_tables_with_metric_unit_tasks_and_tolerance(content: GalleryData) -> None:
    html = claims_page(content).html()
    parts = {name: html[html.index(f'id="{name}"') :].partition("</section>")[0] for name in content.claims}
    for name, claim in content.claims.items():
        listed = [label for table in parts_tables(claim) for row in table.rows for label in row.labels]
        assert sorted(listed) == sorted(claim.entry.values)
        for words in claim.entry.studies.values():
            assert not claim.compared or f"pe-lab run -m {' '.join(words)}" in parts[name]
    alone, grid = parts_tables(content.claims["lowest"])
    assert (len(alone.rows), len(grid.rows), len(grid.columns)) == (1, 9, 4)
    assert alone.rows[0].claimed == "near 0 (within 0.05)"
    (trails,) = parts_tables(content.claims["rope_trails"])
    assert (trails.measured, trails.tasks, trails.columns) == ("difference in test loss, nats", ["structured"], ("",))
    accuracies, differences = parts_tables(content.claims["ranking"])
    assert accuracies.measured == "accuracy, share of answers"
    assert (len(accuracies.rows), len(differences.rows)) == (5, 4)
    signed_ = {name: "+" in "".join(re.findall("<td.*?</td>", parts[name])) for name in ("collapses", "longer")}
    assert signed_ == {"collapses": False, "longer": True}  # signs are those of differences
    (longer,) = parts_tables(content.claims["longer"])
    assert (longer.tasks, len(longer.rows), len(longer.columns)) == (["copy", "reverse", "repeat"], 3, 6)
    (ratio,) = parts_tables(content.claims["collapses"])
    assert not re.search("share|nats", ratio.measured)  # a ratio has no unit
    assert [table.tasks for table in parts_tables(content.claims["blind"])] == [
        *[["audit of untrained models"]] * 2,
        ["pattern"],
    ]


def test_claims_say_which_models_have_not_learned_their_task(content: GalleryData, tmp_path: Path) -> None:
    entry = content.claims["fades"].entry
    (tmp_path / "layers").mkdir()
    for losses, count in (((1.0, 1.0), 1), ((1.0, 0.2), 1), ((0.2, 0.2), 0)):  # in all settings, in one and in none
        rows = pd.DataFrame({"pe": "rope", "depth": [1, 2], "test_loss": losses, "floor_position_blind_loss": 0.5})
        rows.to_csv(tmp_path / "layers/rows.csv", index=False)
        assert len(unlearned(entry, tmp_path)) == count
    assert unlearned(content.claims["blind"].entry, tmp_path) == {}
    html = claims_page(replace(content, unlearned={"fades": {"layers": "Nothing."}})).html()
    assert re.findall(r'id="(\w+)"(?:(?!</section>).)*data-unlearned="(\w+)"', html, re.DOTALL) == [("fades", "layers")]
    rows = rows_of_claims(replace(content, unlearned={"fades": {"layers": "Nothing."}}))
    assert [name for name, row in rows.items() if "models that had not learned" in row] == ["fades"]


def test_verdicts_that_cannot_be_tested_or_are_of_unlearned_models_say_so(content: GalleryData) -> None:
    limited = {
        name: found[1]
        for name, row in rows_of_claims(content).items()
        if (found := re.search("data-limited>(.*?)</span>", row))
    }
    kept = {name for name, claim in content.claims.items() if keeps_positions(claim.entry)}
    missed = {name for name, studies in content.unlearned.items() if studies}
    assert set(limited) == kept | missed
    assert {name for name, text in limited.items() if CANNOT in text} == kept
    assert all(str(content.claims[name].verdict) + " on models" in limited[name] for name in missed - kept)
    rope = encoding_page(content, "rope").sections[3]
    assert rope.html.count("data-limited") == len((kept | missed) & set(content.definitions["rope"].claims)) > 0
    assert "on models that had not learned" in rope.fold
    unpublished = {name: claim for name, claim in content.claims.items() if claim.entry.paper == UNPUBLISHED}
    groups = by_verdict(unpublished, {})
    names = [name for several in groups.values() for name in several]
    assert (sorted(names), set(groups[CANNOT])) == (sorted(unpublished), kept)
    overview = claims_page(content).html().partition('id="unpublished"')[2].partition("</table>")[0]
    in_groups = [verdict_of_claim(content.claims[name]) for name in re.findall(r'href="#(\w+)"', overview)]
    assert in_groups == [word for word, several in groups.items() for _ in several]


def test_a_claim_of_which_most_parts_leave_no_room_for_a_difference_cannot_be_tested(content: GalleryData) -> None:
    """Both encodings have all right, or nothing; one decided part is enough for a verdict."""
    means = dict.fromkeys(("cope", "learnable", "rope"), 7.0)
    rows = tuned.table("flip_flop", means)
    spread = np.tile([0.0, 0.001, -0.001, 0.002, -0.002], 3)
    for length in (1, 2, 4):
        rows[f"accuracy_x{length}"] = 0.995 + spread * rows["pe"].map({"cope": 1, "learnable": 0.5, "rope": -1})
    claim, results = some_claim(content, "cope_flip_flop", rows)
    assert set(without_room(claim, results)) == set(claim.compared)
    assert without_room(claim, {}) == {}
    assert verdict_of_claim(claim, without_room(claim, results)) == CANNOT
    assert verdict_of_claim(claim) == "undecided"
    assert verdict_of_claim(claim, list(claim.compared)[:3]) == "undecided"  # half of them
    lower = rows.assign(accuracy_x4=rows["accuracy_x4"] - 0.3 * rows["pe"].eq("rope"))
    claim, results = some_claim(content, "cope_flip_flop", lower)
    roomless = without_room(claim, results)
    assert set(claim.compared) - set(roomless) == {"`cope` − `rope` at 4 ×"}
    assert verdict_of_claim(claim, roomless) == "undecided"
    assert "1 of 6 parts shown" in states(claim, roomless)
    assert states(claim, roomless) != states(claim)
    few = rows.assign(accuracy_x4=rows["accuracy_x4"] - 0.3)  # 2 of 6 parts that have room, both open
    claim, results = some_claim(content, "cope_flip_flop", few)
    assert len(without_room(claim, results)) == 4
    html = claims_page(replace(content, results=results, claims={"cope_flip_flop": claim})).html()
    assert f'data-verdict="{CANNOT}"' in html
    section = html.partition('<section class="gallery-claim"')[2]
    assert ("4 of 6 parts" in section, section.count("</span> ") >= 6) == (True, True)
    longer = content.claims["longer"]
    shares = without_room(longer, {}, content.unseen["longer"])
    assert {label.partition(":")[0] for label in shares} == {"data copy", "data reverse", "data repeat"}
    assert len(shares) == 12
    assert "data copy: exact match on unseen lengths, `none` − `alibi`" not in shares  # alibi has 19 %


def test_parts_of_claims_have_the_encodings_whose_rate_was_at_an_edge(content: GalleryData) -> None:
    rows = tuned.table("causal_text", {"alibi": 1.5, "rope": 1.4}, 0.001)
    rows["edge"] = (rows["pe"].eq("rope") & rows["seed"].lt(2)) | (rows["pe"].eq("alibi") & rows["seed"].lt(1))
    claim, results = some_claim(content, "alibi_costs", rows)
    assert at_edge(claim, results) == {label: ["rope"] for label in claim.compared}  # more than 20 % of the seeds
    assert at_edge(content.claims["longer"], results) == {}
    unsolved = {task: replace(each, rows=each.rows.assign(solved=False)) for task, each in results.items()}
    assert at_edge(claim, unsolved) == at_edge(claim, results)
    row = rows_of_claims(replace(content, results=results, claims={"alibi_costs": claim}))["alibi_costs"]
    assert re.findall("data-edge>edge: ([^<]*)<", row) == ["rope"]
    assert "data-edge" not in rows_of_claims(replace(content, results={}))["alibi_costs"]


def test_claims_on_the_change_with_length_of_text_have_the_margin_of_its_windows(content: GalleryData) -> None:
    """A count model's loss falls by 0.010 and 0.017 nats at 2 and 4 times the length."""
    bounds = [
        test.bound
        for claim in content.claims.values()
        for test in claim.entry.values.values()
        if isinstance(test, Claimed) and list(claim.entry.tasks) == ["causal_text"]
        if [set(change) for change in test.others] == [{"length"}]
    ]
    assert len(bounds) == 14
    assert min(map(abs, bounds)) >= 0.02


def test_claims_are_filtered_by_encoding_paper_and_verdict(content: GalleryData) -> None:
    html = claims_page(content).html()
    form = html.partition('<form class="gallery-filters" data-table="papers-table"')[2].partition("</form>")[0]
    choices = {
        facet: re.findall("<option>(.*?)</option>", options)
        for facet, options in re.findall(r'<select name="(\w+)">(.*?)</select>', form, re.DOTALL)
    }
    table = html.partition('id="papers-table"')[2].partition("</table>")[0]
    rows = re.findall(r'<tr data-claim="(\w+)"([^>]*)>', table)
    found: dict[str, set[str]] = {facet: set() for facet in choices}
    for name, attributes in rows:
        data = {facet: re.findall(f'data-{facet}="([^"]*)"', attributes)[0].split("|") for facet in choices}
        assert set(data["encoding"]) == encodings_of(content.claims[name].entry)
        assert data["paper"][0].rpartition(":")[2] in content.claims[name].entry.paper
        for facet, values in data.items():
            found[facet] |= set(values)
    assert {facet: set(several) for facet, several in choices.items()} == found
    assert set(choices) == {"encoding", "paper", "verdict"}


def test_numbers_without_a_publication_stand_apart(content: GalleryData) -> None:
    html = claims_page(content).html()
    published, unpublished = html[html.index('id="numbers-table"') :].split('id="unpublished-table"')
    for name, finding in content.numbers.items():
        there = [f'id="{name.replace("/", "-")}"' in part for part in (published, unpublished)]
        assert there == [bool(finding.compared) and (finding.entry.paper == UNPUBLISHED) == last for last in (0, 1)]


def test_the_row_of_a_claim_draws_the_part_that_supports_it_least(content: GalleryData) -> None:
    states_of = {EntryVerdict.REPRODUCED: "reproduced", EntryVerdict.UNDECIDED: "undecided"}
    for name, row in rows_of_claims(content).items():
        claim = content.claims[name]
        label = weakest(claim, content.roomless[name])
        assert (label is None) == (not claim.compared)
        assert ("<circle" in row) == bool(claim.compared)
        if label is not None:
            state = states_of.get(claim.verdict, "not reproduced")
            assert str(claim.compared[label].agreement) == state
            assert f'data-weakest="{state}"' in row
            assert mean_and_interval(claim.entry.values[label], claim.compared[label])[0] in row
            alike = [other for other, one in claim.compared.items() if str(one.agreement) == state]
            assert claimed_side(claim, label)[1] == min(claimed_side(claim, other)[1] for other in alike)
    ordered = list(by_support(content.claims).values())
    assert {claim.verdict for claim in ordered[-1:]} <= {EntryVerdict.NOT_REPRODUCED, EntryVerdict.NOT_RUN}


def test_a_part_is_drawn_to_the_right_of_its_bound_exactly_where_it_is_as_claimed(content: GalleryData) -> None:
    rules = set()
    for claim in content.claims.values():
        for label, one in claim.compared.items():
            rule = claim.entry.values[label].rule
            low, mean, high = claimed_side(claim, label)
            assert low <= mean <= high
            if rule != "near":
                assert (low > 0) == (one.agreement == Agreement.REPRODUCED)
                assert (high < 0) == (one.agreement == Agreement.NOT_REPRODUCED)
            elif one.agreement == Agreement.NOT_REPRODUCED:
                assert mean < 0
            elif one.agreement == Agreement.REPRODUCED:
                assert mean > 0
            rules.add(rule)
    assert rules == {"above", "below", "near"}
    places = [place(distance) for distance in (-9, -1.5, -0.2, -0.01, 0, 0.01, 0.2, 1.5, 9)]
    assert places == pytest.approx([-x for x in reversed(places)])
    assert (places[0], places[1], places[4]) == (-1, pytest.approx(-1), 0)
    assert places[1:-1] == sorted(set(places[1:-1]))


def test_a_claim_on_rows_of_the_benchmark_says_what_each_encoding_reaches(content: GalleryData) -> None:
    claim, rows = content.claims["alibi_costs"], content.results["causal_text"].rows
    lines = levels(claim.entry, content.results)
    means = rows[rows["pe"].isin(["alibi", "rope"])].groupby("pe")["loss_x4"].mean()
    assert [line.partition(":")[0] for line in lines] == [f"causal_text, loss at {length} ×" for length in (1, 2, 4)]
    assert lines[2].endswith(f": `rope` {number(means['rope'])}, `alibi` {number(means['alibi'])}")
    assert levels(content.claims["longer"].entry, content.results) == []
    section = claims_page(content).html().partition('id="alibi_costs"')[2].partition("</section>")[0]
    assert "pe-lab run -m +study=pe_bench_2_causal_text pe=alibi,rope seed=0,1,2,3,4" in section
    assert str(claim.verdict) == "mixed"  # of fabricated losses, which grow with the length by the same factor


def test_claims_have_what_is_right_on_unseen_lengths(content: GalleryData) -> None:
    html = claims_page(content).html()
    part = html.partition('<section class="gallery-claim" id="longer"')[2].partition("</section>")[0]
    longer, label = content.claims["longer"], "data repeat: exact match on unseen lengths, `none` − `rope`"
    assert list(content.unseen) == ["longer"]
    unseen = content.unseen["longer"]
    assert (unseen.lengths, sorted(unseen.few)) == ([1.2, 1.5, 2.0], ["copy", "reverse"])
    shares = unseen.shares["repeat"]
    assert shares["none"] - shares["rope"] == pytest.approx(float(longer.compared[label].difference), abs=1e-6)
    assert "data-unseen" in part
    assert percent(shares["none"]) in part


def test_claims_of_the_same_words_are_told_apart_and_say_what_is_tested(content: GalleryData) -> None:
    one, other = (content.claims[name].entry for name in ("carried", "carried_small"))
    assert one.says == other.says
    assert shared_notes(each.entry for each in content.claims.values() if not each.entry.tasks) == list(one.chosen)
    assert shared_notes([replace(one, chosen=("a", "b")), replace(one, chosen=("a", "c", "d"))]) == ["a"]
    assert len(other.chosen) == len(one.chosen) + 1
    html = claims_page(content).html()
    parts = {name: html[html.index(f'id="{name}"') :].partition("</section>")[0] for name in content.claims}
    assert escape(other.chosen[-1].replace("`carried` ", "")[-40:]) in parts["carried_small"]
    for name, claim in content.claims.items():
        if claim.compared:
            first, *others = list(map(int, re.findall(r"\d+", states(claim))))
            assert first + sum(others[1:]) == others[0]
            assert states(claim, content.roomless[name]) in parts[name]


def test_intervals_of_parts_end_at_what_is_possible(content: GalleryData) -> None:
    shown = {"accuracy": (0.0, 1.0), "exact_match": (0.0, 1.0), "loss": (0.0, np.inf)}
    cut_ = 0
    for claim in content.claims.values():
        for name, comparison in claim.compared.items():
            test = claim.entry.values[name]
            if test.ratio or len(test.others) > 1 or test.value["metric"] not in shown:
                continue
            low, high = mean_and_interval(test, comparison)[1].strip("[]").replace("−", "-").split(", ")
            least, most = shown[test.value["metric"]]
            if test.is_difference:
                least, most = least - most, most - least
            assert least <= float(low) <= float(high) <= most
            cut_ += not least <= float(comparison.low) <= float(comparison.high) <= most
    assert cut_


def test_numbers_of_the_same_words_or_setting_have_their_conditions(content: GalleryData) -> None:
    told = conditions(content.numbers)
    said = {name: (finding.entry.says, told[name]) for name, finding in content.numbers.items() if finding.compared}
    assert len(set(said.values())) == len(said)
    assert told["pattern/none_claimed"] != told["pattern/none_run"]
    assert "`optimizer.lr=0.0001`" in told["formal_algorithms_search/majority_ape_1l1h16_slow"]


def test_without_studies_claims_are_not_run(content: GalleryData) -> None:
    untested = {name: judge_entry(claim.entry, {}) for name, claim in content.claims.items()}
    html = claims_page(replace(content, claims=untested, numbers={})).html()
    assert html.count("not run: needs") == len(untested)
    assert "reproduced</strong>" not in html
