"""The page of an encoding: what to use it for, comparisons, claims and failures."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers import tuned
from helpers.gallery_html import HEADS, advised, lines_of, names_in
from pe_lab.benchmark.fresh_seeds import compare_fresh_seeds
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.tasks import benchmark_tasks, task_named
from pe_lab.config import config_folder
from pe_lab.gallery.claim_text import ours
from pe_lab.gallery.definitions import Failure, definitions
from pe_lab.gallery.encoding_page import encoding_page
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import fixed, number, percent, plain
from pe_lab.gallery.leaderboard_page import leaderboard_page
from pe_lab.gallery.needs_page import needs_page
from pe_lab.gallery.pairwise import compare_on_task
from pe_lab.gallery.task_page import task_page

CHOICES = ("use", "behind", "unreliable", "avoid")


def test_an_encoding_is_compared_with_rope_and_rope_with_alibi(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 9.0, "none": 13.0, "fire": 13.0}, 0.05)
    rows["accuracy_x4"] = rows["pe"].map({"rope": 0.1, "alibi": 0.9}).fillna(0.0)
    rows.loc[rows["pe"].eq("alibi") & rows["seed"].eq(0), "accuracy_x4"] = 0.7
    results = TaskResults(task, rows)
    line, back = compare_on_task(results, "alibi", "rope"), compare_on_task(results, "rope", "alibi")
    assert line is not None
    assert back is not None
    assert (line["verdict"], back["verdict"]) == ("worse", "better")
    means = results.table.set_index("pe")["mean"]
    ratios = [float(each["difference"].split()[1]) for each in (line, back)]
    assert ratios == pytest.approx([means["alibi"] / means["rope"], means["rope"] / means["alibi"]], abs=0.006)
    assert line["at"][4.0] == (["86\u00a0% (70 to 90)", "10\u00a0%"], "")
    unsolved, neither = compare_on_task(results, "none", "rope"), compare_on_task(results, "none", "fire")
    assert unsolved is not None
    assert neither is not None
    assert unsolved["difference"].endswith(" or more")
    assert (neither["verdict"], neither["difference"]) == ("both unsolved", "")
    assert compare_on_task(results, "rope", "t5") is None
    text = compare_on_task(content.results["causal_text"], "none", "rope")
    longer = content.results["causal_text"].longer[4.0].table.set_index("pe")["mean"]
    assert text is not None
    assert text["at"][4.0][0] == [fixed(longer[pe], 3) for pe in ("none", "rope")]
    assert text["at"][4.0][1].startswith("worse, +")
    shown = replace(content, results={"induction": results, "causal_text": content.results["causal_text"]})
    tables = {
        name: encoding_page(shown, name).sections[1].html.partition('id="against"')[2] for name in ("alibi", "rope")
    }
    assert [re.findall('data-against="(\\w+)"', table) for table in tables.values()] == [
        ["induction", "causal_text"]
    ] * 2
    assert tables["rope"].startswith("><summary>Against <code>alibi</code>")
    without = replace(shown, results={"induction": TaskResults(task, rows[rows["pe"].ne("rope")])})
    assert 'id="against"' not in encoding_page(without, "alibi").html()


def test_an_encoding_that_did_not_solve_a_task_has_what_is_right_and_where_it_holds(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "alibi": 13.0, "none": 13.0})
    for length in (2, 4):
        rows[f"accuracy_x{length}"] = rows["pe"].map({"rope": 0.2, "none": 0.2, "alibi": 0.9})
    rows["accuracy_x1"] = rows["pe"].eq("rope") * 0.25 + 0.7
    shown = replace(content, results={"induction": TaskResults(task, rows)})
    part = advised(lines_of(needs_page(shown).html(), "need")["induction"])["avoid"]
    assert part.count("70\u00a0%") == 2
    assert re.findall(r"<code>(\w+)</code>(?:</a>)?</span> 70\u00a0% \(.*?at 2 ×, 4 ×\)", part) == ["alibi"]
    assert "(70\u00a0%)" in encoding_page(shown, "none").sections[0].html


def test_encodings_that_are_trained_in_another_way_than_in_their_paper_say_so(content: GalleryData) -> None:
    said = {name for name, definition in definitions().items() if definition.trained}
    assert {"rope_pi", "yarn"} <= said
    rope = replace(content.definitions["rope"], trained="From the start.")
    shown = replace(content, definitions={**content.definitions, "rope": rope})
    for page in (encoding_page(shown, "rope"), leaderboard_page(shown), task_page(shown, task_named("induction"))):
        assert "From the start." in page.html()
        assert page.html().count("data-trained") == 1


def test_a_page_of_an_encoding_has_all_its_parts(content: GalleryData) -> None:
    page = encoding_page(content, "rope")
    titles = [section.title for section in page.sections]
    assert titles == [
        "",
        "Results",
        "Untrained curve",
        "Replication",
        "Known failures",
        "Equal to",
        "Properties",
        "Picture",
        "Code",
    ]
    html = page.html()
    assert html.count("<math") >= len(content.definitions["rope"].formula)
    assert "class RoPE(PositionalEncoding):" in html
    assert 'type="range"' in html
    assert "https://arxiv.org/abs/2104.09864" in html
    results = page.sections[1].html
    assert "loss " in results
    assert results.count("not measured yet") == sum("rope" in one.encodings for one in benchmark_tasks()) - 2


def test_a_page_of_an_encoding_begins_with_what_to_use_it_for_and_folds_the_rest(content: GalleryData) -> None:
    for name in content.definitions:
        first, *others = encoding_page(content, name).sections
        said = {
            word: re.findall(r">([^<>]+)</a>\s*\(", part)
            for word, part in re.findall(
                rf"<p><strong>({'|'.join(HEADS)}|Not solved by any)[^<]*</strong>(.*?)</p>",
                first.html,
                re.DOTALL,
            )
        }
        behind = said.pop("Slower", []) + said.pop("Higher loss", [])
        asked = {
            chosen: [need.asks for need in content.needs if name in getattr(need.advice, chosen)] for chosen in CHOICES
        }
        assert sorted(behind) == sorted(asked["behind"])
        best = [*said.get("Within a factor of", []), *said.get("Among the lowest losses", [])]
        assert sorted(best) == sorted(asked["use"])
        assert said.get("Not solved by every seed", []) == asked["unreliable"]
        assert said.get("Not solved by any", []) == asked["avoid"]
        assert ("causal mask" in first.html) == (name == "none")
        assert not first.fold
        unfolded = [one.title for one in others if not one.fold]
        assert unfolded == [*["Results"] * bool(content.on_tasks(name)), "Untrained curve"]


def test_a_page_of_an_encoding_has_the_verdicts_of_its_claims_and_numbers(content: GalleryData) -> None:
    part = {name: encoding_page(content, name).sections[3].html for name in ("none", "rope_2d")}
    found = dict(re.findall(r'claims.html#([\w-]+)".*?data-verdict="([\w ]+)"', part["none"]))
    numbers = {name: one for name, one in content.reported("none").items() if one.compared}
    assert {"pattern/none_claimed", "formal_algorithms/bin_majority_nope"} <= set(numbers)
    on_rows = {"none_competitive", "none_extends", "none_longer", "fire_longer"}  # conf/replication/papers.yaml
    claims = {*content.definitions["none"].claims, *on_rows}
    assert found == {name: str(content.claims[name].verdict) for name in claims} | {
        name.replace("/", "-"): str(one.verdict) for name, one in numbers.items()
    }
    one = content.numbers["pattern/none_claimed"]
    low, high = (f"{float(end):+.3g}" for end in (one.compared["accuracy"].low, one.compared["accuracy"].high))
    for text in ("0.676", "0.35", f"(+0.326 [{low}, {high}])", "5 seeds", "0.05"):
        assert text in " ".join(ours(one))
    assert "<br>".join(ours(one)) in part["none"]
    assert "<table" not in part["rope_2d"]
    compared = ["alibi_keeps", "alibi_longer", "none_competitive", "xpos_better", "alibi_costs", "fire_longer"]
    words = re.sub(r"<[^>]+>", "", encoding_page(content, "alibi").sections[3].html)
    assert [content.claims[name].entry.says in words for name in (*compared, "stick_drop_in")] == [True] * 6 + [False]


def test_a_page_of_an_encoding_has_the_means_of_fresh_seeds(content: GalleryData) -> None:
    means, again = {"rope": 7.0, "none": 10.0, "fire": 8.0}, {"rope": 7.1, "none": 10.0}
    rows = [tuned.table("induction", means, 0.05), tuned.table("induction", again, 0.05, seeds=range(100, 105), draw=1)]
    made = compare_fresh_seeds({"induction": pd.concat(rows)})
    part = encoding_page(replace(content, again=made), "rope").sections[3].html
    (line,) = re.findall(r"tasks/induction.html.*?</tr>", part)
    here = made.means.set_index("pe").loc["rope"]
    low, mean, high, fresh = (number(2 ** here[name]) for name in ("low", "mean", "high", "fresh"))
    assert re.findall(r"<td>(.*?)</td>", line) == [f"{mean} <small>{low} to {high}</small>", fresh, "0 of 1"]
    assert "with fresh seeds" in encoding_page(replace(content, again=made), "rope").sections[3].fold
    unsolved = [
        tuned.table("induction", {"rope": 7.0, "none": 13.0}, seeds=seeds) for seeds in (range(5), range(100, 105))
    ]
    made = compare_fresh_seeds({"induction": pd.concat(unsolved)})
    part = encoding_page(replace(content, again=made), "none").sections[3].html
    (line,) = re.findall(r"tasks/induction.html.*?</tr>", part)
    assert re.findall(r"<td>(.*?)</td>", line)[:2] == ["not solved <small>–</small>", "not solved"]
    once = pd.concat(unsolved)
    once.loc[once["pe"].eq("none") & once["seed"].eq(0), "solved"] = True  # at the cap
    made = compare_fresh_seeds({"induction": once})
    part = encoding_page(replace(content, again=made), "none").sections[3].html
    (line,) = re.findall(r"tasks/induction.html.*?</tr>", part)
    published = re.findall(r"<td>(.*?)</td>", line)[0]
    assert ("not solved" in published, "1 of 5 solved" in published) == (False, True)
    assert "again-table" not in encoding_page(content, "rope").html()


def test_the_page_of_none_begins_with_what_it_solves(content: GalleryData) -> None:
    rows = tuned.table("induction", {"rope": 7.0, "none": 13.0})
    text = tuned.table("causal_text", {"rope": 1.0, "alibi": 1.5, "none": 2.0}, 0.01)
    tables = {"induction": rows, "causal_text": text}
    results = {name: TaskResults(task_named(name), each) for name, each in tables.items()}
    first = {name: encoding_page(replace(content, results=results), name).sections[0].html for name in ("none", "rope")}
    overall = first["none"].partition("data-overall")[2].partition("</p>")[0]
    assert first["none"].index("data-overall") < first["none"].index("gallery-verdicts")
    share = content.unseen["longer"].shares["repeat"]["none"]
    for part in ("0 of 1", percent(share)):
        assert part in overall
    assert "data-overall" not in first["rope"]
    behind = replace(content.unseen["longer"], shares={"repeat": {"none": share, "rope": share + 0.01}})
    shown = replace(content, results=results, unseen={"longer": behind})
    last = encoding_page(shown, "none").sections[0].html.partition("data-overall")[2].partition("</p>")[0]
    assert ["not ahead" in part for part in (overall, last)] == [False, True]
    assert names_in(last)[-2:] == ["rope", "none"]


def test_code_is_introduced_with_the_options_of_an_encoding(content: GalleryData) -> None:
    for name, made in content.portraits.items():
        (said,) = (section.html for section in encoding_page(content, name).sections if section.title == "Code")
        first = re.sub(r"<[^>]+>", "", said).partition(". ")[0]
        options = [f"{key}={plain(value)}" for key, value in made.options.items() if key != "name"]
        assert first.split(" with ") == [made.target, *([", ".join(options)] if options else [])]
    assert len(content.portraits["none"].options) == 1
    assert len(content.portraits["rope"].options) > 1
    assert [plain(value) for value in (None, True, 1e4, "x")] == ["null", "true", "10000.0", "x"]


def test_a_definition_begins_with_the_encoding_and_names_its_family(content: GalleryData) -> None:
    for name, made in content.portraits.items():
        html = encoding_page(content, name).sections[0].html
        words = re.sub(r"<[^>]+>", "", html)
        own = (config_folder() / "pe" / f"{name}.yaml").read_text().partition("\n")[0].removeprefix("# ")
        assert words.startswith(own.replace("`", ""))
        assert made.family[1:] in words


def test_failures_are_found_in_the_rows(content: GalleryData) -> None:
    task = task_named("induction")
    rows = tuned.table("induction", {"rope": 7.0, "none": 8.0})
    rope, none = (rows["pe"].eq(pe) for pe in ("rope", "none"))
    rows.loc[rope & rows["seed"].lt(3), ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    rows.loc[rope, "loss_x4"] = rows.loc[rope, "level_x4"] * 2 - rows.loc[rope, "best_x4"]  # a score of -1
    rows.loc[none & rows["seed"].lt(2), ["y", "solved"]] = [float(np.log2(task.cfg.steps)), False]
    made = replace(content, results={"induction": TaskResults(task, rows)})
    uncertain = rope & rows["seed"].ne(0)  # in all seeds but one a little below 0, in one far above
    rows.loc[rope, "loss_x2"] = rows.loc[rope, "level_x2"] * 0.8
    rows.loc[uncertain, "loss_x2"] = rows.loc[uncertain, "level_x2"] * 1.1
    said = "solved in 2 of 5 seeds; test score −1.00 [−1.00, −1.00] at 4 × the training length"
    at_2 = made.results["induction"].scores.set_index(["pe", "length"]).loc[("rope", 2.0)]
    assert at_2["mean"] < 0 < at_2["high"]
    assert made.failures("rope") == [("induction", said)]
    assert made.failures("none") == []
    pages_ = {name: {one.title: one.html for one in encoding_page(made, name).sections} for name in ("rope", "none")}
    assert f'<li><a href="../tasks/induction.html">induction</a>: {said}</li>' in pages_["rope"]["Known failures"]
    assert "tasks/induction.html" not in pages_["none"]["Known failures"]
    assert content.failures("alibi") == []  # a loss, as of causal_text, is no score


def test_measured_failures_say_where_also_outside_of_the_documentation(content: GalleryData) -> None:
    rows = ("audit.md#cost", "your-model.md#decoding-with-a-cache", "findings.md#2026-11-21-mutants")
    said = replace(content.definitions["rope"], failures=tuple(Failure("It fails.", row=row) for row in rows))
    shown: dict[bool, list[str]] = {}
    for documented in (False, True):
        made = replace(content, definitions={"rope": said}, documented=documented)
        (html,) = (one.html for one in encoding_page(made, "rope").sections if one.title == "Known failures")
        shown[documented] = re.findall(r"It fails. \((.*)\)</li>", html)
    assert shown[False] == [
        '<a href="#properties">measured here</a>',
        "measured here: <code>docs/your-model.md</code>, decoding with a cache",
        "measured here: <code>sweeps/LOG.md</code>, 2026-11-21, mutants",
    ]
    links = [f"../../{row.replace('.md', '.html')}" for row in rows]
    assert shown[True] == [f'<a href="{link}">measured here</a>' for link in links]
