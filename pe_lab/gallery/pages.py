"""The pages of the gallery: each made of a part of its content."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from pe_lab.benchmark.fresh_seeds import FreshSeeds
from pe_lab.benchmark.task_results import AVOID, UNRELIABLE, USE, TaskResults
from pe_lab.benchmark.task_statistics import margin_in_words
from pe_lab.benchmark.tasks import NAME, BenchmarkTask, benchmark_tasks, task_named
from pe_lab.gallery.advice import Need, grouped
from pe_lab.gallery.against import against
from pe_lab.gallery.claims import (
    LINEAR,
    TICKS,
    UNPUBLISHED,
    bound,
    by_support,
    claimed_side,
    conditions,
    is_cut,
    levels,
    measured,
    ours,
    parts_tables,
    place,
    shared_notes,
    states,
    verdict_counts,
    verdict_in_words,
    weakest,
)
from pe_lab.gallery.content import LONGER_TEXT, STEP, TEXT_STUDIES, Content
from pe_lab.gallery.definitions import Definition, definitions
from pe_lab.gallery.formulas import mathml
from pe_lab.gallery.longer import (
    NO_NEW_POSITION,
    NOT_ASKED,
    SAME_POSITIONS,
    by_seed,
    highest,
    holding,
    keeps_positions,
    measure_of,
    range_over_seeds,
    right,
)
from pe_lab.gallery.marks import axis, beyond, mark, strip
from pe_lab.gallery.page import Page, PageSection, fixed, number, percent, rendered
from pe_lab.gallery.portrait import PANELS, PIXELS
from pe_lab.gallery.samples import data_of, sentence
from pe_lab.replication import EntryVerdict, Finding
from pe_lab.replication.entry import benchmark_commands
from pe_lab.replication.findings import PARTS
from pe_lab.results.learned import MIN_RIGHT
from pe_lab.results.styles import COMMON_NAMES
from pe_lab.results.tuned_outcomes import MAX_AT_EDGE
from pe_lab.statistics import Agreement, Verdict

LONGEST = 4.0  # test length of which the leaderboard says what is best, in training lengths
LEARNED = "learnable"  # the encoding that has a trained vector for each position
RIVALS = ("rope", "alibi")  # every encoding is compared with the first one, which is with the second
WELL_KNOWN = 8  # of the encodings in COMMON_NAMES, those that a list to avoid always shows
SIGNS = {Agreement.REPRODUCED: "✓", Agreement.NOT_REPRODUCED: "✗", Agreement.UNDECIDED: "?"}  # of parts of a claim
FACETS = {
    "family": "family",
    "enters": "where it enters",
    "mask": "defined for",
    "kernels": "fused kernels",
}


def pages(content: Content) -> list[Page]:
    """Return all pages: the overview, one per encoding, and one per task of the benchmark, measured or not."""
    lists = [
        leaderboard_page(content),
        needs_page(content),
        encodings_page(content),
        tasks_page(content),
        claims_page(content),
    ]
    details = [encoding_page(content, name) for name in content.definitions]
    return [*lists, *details, *(task_page(content, each) for each in benchmark_tasks())]


def leaderboard_page(content: Content) -> Page:
    """Return the table of all encodings on all tasks that are measured."""
    fullest = sorted(content.results.items(), key=lambda item: (item[1].is_control, -len(item[1].table)))
    tables = {name: results.table.set_index("pe", drop=False) for name, results in fullest}
    shades = {name: results.quality() for name, results in fullest}
    names = list(dict.fromkeys(pe for table in tables.values() for pe in table.index if pe in content.names))
    compared = [results for _, results in fullest if not results.is_control]
    counts = Counter(pe for results in compared for pe in results.table["pe"])
    several = [pe for pe in names if counts[pe] > min(1, len(compared) - 1)]
    won = wins(compared, several)
    several.sort(key=lambda pe: -won[pe][0] / max(1, won[pe][1]))
    # of the others, those of the fullest task stand together, in its order
    lists = [several, [pe for pe in names if pe not in several]]
    asking = [each for each in compared if _asks_at_longest(each)]
    lines = [
        [
            {"name": pe, "facets": content.facets(pe), "at": {name: _line(table, pe) for name, table in tables.items()}}
            for pe in each
        ]
        for each in lists
    ]
    html = rendered(
        "leaderboard.html",
        **_common(content, ""),
        **_outcome(content),
        results=dict(fullest),
        lines=lines[0],
        alone=lines[1],
        longest=_at_longest(asking, several),
        longest_alone={line["name"]: line for line in _at_longest(asking, lists[1])},
        asking=[each.task for each in asking],
        alone_on=sorted({name for line in lines[1] for name, at in line["at"].items() if at}, key=list(tables).index),
        wins=won,
        shades=shades,
        choices=_choices(content),
        missing=sorted(content.names - set(names)),
        controls=[name for name, results in fullest if results.is_control],
    )
    return Page("index", "Leaderboard", [PageSection("", html)], wide=True)


def wins(results: list[TaskResults], names: list[str]) -> dict[str, tuple[int, int]]:
    """Return how many of its comparisons with other encodings each of some wins, and how many it has, on all tasks.

    It wins one in which it is `better`.
    """
    counts = dict.fromkeys(names, (0, 0))
    for pairs in (each.pairs for each in results):
        for pair in pairs[pairs["pe"].isin(names) & pairs["baseline"].isin(names)].itertuples():
            for pe, word in ((str(pair.pe), Verdict.BETTER), (str(pair.baseline), Verdict.WORSE)):
                won, total = counts[pe]
                counts[pe] = won + (pair.verdict == word), total + 1
    return counts


def _outcome(content: Content) -> dict[str, Any]:
    """Return what the tables say in all: which encodings are among the best most often, and what is best at LONGEST."""
    compared = [each for each in content.results.values() if not each.is_control and each.best and each.beaten]
    counts = Counter(pe for results in compared for pe in results.best)
    best_on = max(counts.values(), default=0)
    most_best = sorted(pe for pe, count in counts.items() if count == best_on)
    measured_on = {pe: sum(pe in set(results.table["pe"]) for results in compared) for pe in most_best}
    held = {each.task.name: _held(each) for each in compared if _asks_at_longest(each)}
    holds = Counter(pe for names in held.values() for pe in names)
    return {
        "most_best": _twins(content, most_best),
        "best_on": best_on,
        "fewer": {pe: count for pe, count in measured_on.items() if count < len(compared)},
        "compared": len(compared),
        "longest_length": LONGEST,
        "held": held,
        "held_on": {pe: holds[pe] for pe in most_best},
        "others_hold": max((holds[pe] for pe in most_best), default=0) < max(holds.values(), default=0),
        "measures": {name: measure_of(content.results[name]) for name in held},
    }


def _asks_at_longest(results: TaskResults) -> bool:
    """Return whether a task that is no control asks for new positions at LONGEST, and was measured there."""
    new = not results.is_control and results.task.cfg.data.name not in SAME_POSITIONS
    return new and LONGEST in holding(results)


def _held(results: TaskResults) -> dict[str, float]:
    """Return `holding` at LONGEST."""
    return holding(results)[LONGEST]


def _at_longest(results: list[TaskResults], names: list[str]) -> list[dict[str, Any]]:
    """Return a line for each encoding with what it gets right, or its loss, at LONGEST.

    Those that are `holding` on most tasks come first, of these the highest mean of what is right.
    """
    values = {
        each.task.name: right(each)[LONGEST]
        if each.task.solvable
        else each.longer[LONGEST].table.set_index("pe")["mean"].to_dict()
        for each in results
    }
    shades = {
        each.task.name: values[each.task.name] if each.task.solvable else each.longer[LONGEST].quality()
        for each in results
    }
    lines = []
    for name in names:
        shares = [values[each.task.name].get(name, 0.0) for each in results if each.task.solvable]
        lines.append(
            {
                "name": name,
                "values": {task: each[name] for task, each in values.items() if name in each},
                "shades": {task: each[name] for task, each in shades.items() if name in each},
                "ranges": {
                    each.task.name: range_over_seeds(each, name, LONGEST)
                    for each in results
                    if each.task.solvable and name in values[each.task.name]
                },
                "held": [each.task.name for each in results if name in _held(each)],
                "mean": float(np.mean(shares)) if shares else 0.0,
            }
        )
    return sorted((line for line in lines if line["values"]), key=lambda line: (-len(line["held"]), -line["mean"]))


def _twins(content: Content, names: list[str]) -> list[list[str]]:
    """Return names in their order; encodings whose runs have the same bits on every task of both stand in one list."""
    groups: list[list[str]] = []
    for name in names:
        tasks = content.equal_runs(name)
        both = {
            other: sum({name, other} <= set(each.table["pe"]) for each in content.results.values()) for other in tasks
        }
        same = [other for other in names if other in tasks and len(tasks[other]) == both[other]]
        if not any(name in group for group in groups):
            groups.append([name, *same])
    return groups


def needs_page(content: Content) -> Page:
    """Return which encodings to use, which are behind the best and which to avoid, for each need."""
    values = {"lines": [_line_of(need) for need in content.needs], "vectors": _learned_vectors(content)}
    each_task = sorted(content.results.values(), key=lambda results: results.task.name != LONGER_TEXT[0])
    values["summary"] = [_summary_of(each) for each in each_task if not each.is_control]
    values["answer"] = _answer(content)
    html = rendered("needs.html", **_common(content, ""), **values)
    return Page("needs", "Which encoding for which need", [PageSection("", html)], wide=True)


def _answer(content: Content) -> dict[str, Any] | None:
    """Return the encodings with the lowest losses on LONGER_TEXT; None where none is recommended."""
    need = next(need for need in content.needs if (need.task.name, need.length) == LONGER_TEXT)
    use = need.advice.use
    if need.results is None or not use:
        return None
    pairs = need.results.pairs
    verdicts = pairs.loc[pairs["pe"].isin(use) & pairs["baseline"].isin(use), "verdict"]
    steps = {pe: content.steps[pe] for pe in use if pe in content.steps}
    losses = [float(need.lines[pe]["mean"]) for pe in use]
    return {
        "length": need.length,
        "use": use,
        "losses": [min(losses), max(losses)],
        "alike": len(use) > 1 and not any(Verdict(word).direction for word in verdicts),
        "cheapest": min(steps, key=lambda pe: steps[pe]) if len(steps) == len(use) > 1 else None,
    }


def encodings_page(content: Content) -> Page:
    """Return the list of all encodings."""
    counts = Counter(pe for results in content.results.values() for pe in results.table["pe"])
    lines = [
        {
            "name": name,
            "definition": definition,
            "portrait": content.portraits[name],
            "facets": content.facets(name),
            "parameters": _property(content, name, "parameters"),
            "tasks": counts[name],
        }
        for name, definition in sorted(content.definitions.items())
    ]
    html = rendered(
        "encodings.html", **_common(content, ""), lines=lines, choices=_choices(content), count=len(definitions())
    )
    return Page("encodings", "Encodings", [PageSection("", html)], wide=True)


def tasks_page(content: Content) -> Page:
    """Return the list of all tasks."""
    html = rendered("tasks.html", **_common(content, ""), tasks=benchmark_tasks())
    return Page("tasks", "Tasks", [PageSection("", html)], wide=True)


def claims_page(content: Content) -> Page:
    """Return the claims of the literature with their verdicts."""
    judged = {name: finding for name, finding in content.numbers.items() if finding.compared}
    claims = by_support(content.claims)
    groups = [
        {name: claim for name, claim in claims.items() if (claim.entry.paper != UNPUBLISHED) == papers}
        for papers in (True, False)
    ]
    says = Counter(claim.entry.says for claim in claims.values())
    by_table = {
        bool(rows): shared_notes(claim.entry for claim in claims.values() if bool(claim.entry.tasks) == rows)
        for rows in (True, False)
    }
    notes = {name: claim.entry.chosen[len(by_table[bool(claim.entry.tasks)]) :] for name, claim in claims.items()}
    text = content.results.get(LONGER_TEXT[0])
    html = rendered(
        "claims.html",
        **_common(content, ""),
        groups=groups,
        text=text,
        parameters=text.rows["parameters"].astype(float).median() if text else None,
        judged=judged,
        published={name: each for name, each in judged.items() if each.entry.paper != UNPUBLISHED},
        unpublished={name: each for name, each in judged.items() if each.entry.paper == UNPUBLISHED},
        conditions=conditions(content.numbers),
        listed=sum(each.entry.paper != UNPUBLISHED for each in content.numbers.values()),
        listed_unpublished=sum(each.entry.paper == UNPUBLISHED for each in content.numbers.values()),
        unpublished_paper=UNPUBLISHED,
        shared=by_table,
        notes=notes,
        differs={name: notes[name][0] for name in notes if says[claims[name].entry.says] > 1 and notes[name]},
        commands={name: benchmark_commands(claim.entry) for name, claim in claims.items() if claim.entry.tasks},
        levels={name: levels(claim.entry, content.results) for name, claim in claims.items()},
        words=PARTS,
        signs=SIGNS,
        parts_tables=parts_tables,
        measured=measured,
        is_cut=is_cut,
        states=states,
        weakest=weakest,
        claimed_side=claimed_side,
        bound=bound,
        place=place,
        ticks=TICKS,
        linear=LINEAR,
        verdict_counts=verdict_counts,
        ours=ours,
    )
    return Page("claims", "Claims and their verdicts", [PageSection("", html)], wide=True)


def encoding_page(content: Content, name: str) -> Page:
    """Return the page of an encoding."""
    definition, portrait = content.definitions[name], content.portraits[name]
    values: dict[str, Any] = _common(content, "../")
    values |= {"name": name, "definition": definition, "portrait": portrait}
    advice = _advice_on(content, name)
    opening = {
        "advice": advice,
        "at_edge": any(need.lines[name]["edge"] > MAX_AT_EDGE for needs in advice.values() for need in needs),
        "shares": lambda need: right(need.results),
        "measure_of": measure_of,
        "same_positions": SAME_POSITIONS,
        "formulas": [mathml(formula) for formula in definition.formula],
        "what": sentence("pe", name),
        "rival": _compared(content, name)["rival"],
        **_holds_on(content, name),
        "overall": _overall(content, name) if definition.enters == ("nowhere",) else {},
    }
    sections = [PageSection("", rendered("encoding/opening.html", **values, **opening))]
    for title, (fold, more) in _parts(content, name, definition).items():
        html = rendered(f"encoding/{_file(title)}.html", **values, **more)
        sections.append(PageSection(title, html, portrait.code * (title == "Code"), fold))
    return Page(f"encodings/{name}", f"{definition.title} ({name})", sections)


def _advice_on(content: Content, name: str) -> dict[str, list[Need]]:
    """Return the needs for which an encoding is among the best, is behind them, or did not solve every seed, or any."""
    needs = [need for need in content.needs if name in need.lines]
    best: dict[str, list[Need]] = {}
    for need in needs:
        if need.results is not None and name in need.advice.use:
            where = " at the training length" if need.task.solvable else ""
            best.setdefault(need.results.in_words(USE).capitalize() + where, []).append(need)
    behind = [need for need in needs if name in need.advice.behind]
    return best | {
        "Slower than the best at the training length": [need for need in behind if need.task.solvable],
        "Higher loss than the best": [need for need in behind if not need.task.solvable],
        "Not solved by every seed": [need for need in needs if name in need.advice.unreliable],
        "Not solved by any seed within the steps declared": [need for need in needs if name in need.advice.avoid],
    }


def _holds_on(content: Content, name: str) -> dict[str, Any]:
    """Return the tasks on which an encoding is `holding` at LONGEST, what is right or its loss; of how many tasks."""
    asking = [each for each in content.results.values() if _asks_at_longest(each) and name in set(each.table["pe"])]
    held = {each.task: _held(each)[name] for each in asking if name in _held(each)}
    texts = {task.name: percent(value) if task.solvable else f"{fixed(value, 3)} nats" for task, value in held.items()}
    return {"holds": texts, "asking": len(asking), "longest": LONGEST}


def _overall(content: Content, name: str) -> dict[str, Any]:
    """Return how many tasks an encoding solves in any seed, where its loss is the highest, and what it gets right.

    The last is of unseen lengths of datasets that are in studies of claims.
    """
    lines = [(results, line) for results, line in content.on_tasks(name) if not results.is_control]
    solvable = [line for results, line in lines if results.task.solvable]
    last = [
        results.task.asks
        for results, line in lines
        if not results.task.solvable and int(line["first"]) == len(results.table) > 1
    ]
    unseen = [
        {"claim": claim, "data": data, "lengths": each.lengths, "shares": {name: shares.pop(name)} | shares}
        for claim, each in content.unseen.items()
        for data, shares in ((data, dict(shares)) for data, shares in each.shares.items())
        if data not in each.few and name in shares
    ]
    solved = sum(line["all_solved"] > 0 for line in solvable)
    return {"solved": solved, "of": len(solvable), "last": last, "unseen": unseen} if lines else {}


def _compared(content: Content, name: str) -> dict[str, Any]:
    """Return the comparisons of an encoding with one of RIVALS, on all tasks but controls."""
    rival = RIVALS[name == RIVALS[0]]
    lines = [against(each, name, rival) for each in content.results.values() if not each.is_control]
    compared = [line for line in lines if line is not None]
    return {"rival": rival if compared else "", "compared": compared, "same_positions": SAME_POSITIONS}


def _parts(content: Content, name: str, definition: Definition) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the parts of the page of an encoding by title: what is said of one that is folded, and its values."""
    on_tasks, reported = content.on_tasks(name), content.reported(name)
    claims = {claim: content.claims[claim] for claim in definition.claims}
    judged = {number: finding for number, finding in reported.items() if finding.compared}
    again, failing, equal = _again(content, name), content.failures(name), content.equal_runs(name)
    properties = content.properties(name)
    results: dict[str, Any] = {"shares": {each.task.name: right(each) for each, _ in on_tasks}}
    results |= {"on_tasks": on_tasks, "tasks": benchmark_tasks(), "level": _level()}
    results |= _compared(content, name)
    results |= {"measured": {each.task.name for each, _ in on_tasks}}
    replicated = {"claims": claims, "judged": judged, "again": again, "states": states, "ours": ours}
    replicated |= {"not_run": len(reported) - len(judged), "conditions": conditions(content.numbers)}
    return {
        "Results": ("" if on_tasks else "none", results),
        "Replication": (_counted(content, claims | judged, len(again)), replicated),
        "Known failures": (
            _number(len(definition.failures) + len(failing), "published or measured here"),
            {"failing": failing},
        ),
        "Equal to": (
            _number(
                len(definition.equals) + len(definition.published) + len(equal), "by another name or under a condition"
            ),
            {"equal_runs": equal},
        ),
        "Properties": (
            f"{len(properties)}, measured without training",
            {"properties": properties, "audited": name in content.audit.index},
        ),
        "Picture": ("its values, similarities, scores and attention", {"panels": PANELS, "size": PIXELS}),
        "Code": (f"class {_class_name(content.portraits[name].code)}", {}),
    }


def task_page(content: Content, task: BenchmarkTask) -> Page:
    """Return the page of a task."""
    results = content.results.get(task.name)
    values: dict[str, Any] = {"task": task, "results": results, "margin": margin_in_words(task), "data": data_of(task)}
    values |= {"is_text": task.name == LONGER_TEXT[0]}
    if results is not None:
        # a loss at the training length stands in the column of the mean already
        lengths = [name for name in results.table if name.startswith(f"{results.unit}_") and name != "loss_1x"]
        lines = results.table.to_dict("records")
        values |= {"lines": lines, "shades": results.quality(), "lengths": lengths, "places": _places(task)}
        tables = {1.0: results.table} | {length: each.table for length, each in results.longer.items()}
        values |= {"at": {length: table.set_index("pe").to_dict("index") for length, table in tables.items()}}
        values |= {"choices": _choices(content)}
        values |= {"best": grouped(results, results.best), "right": right(results), "measure": measure_of(results)}
        values |= _beyond(results)
        values |= {"note": NOT_ASKED * (task.cfg.data.name in SAME_POSITIONS)}
        values |= dict(zip(("strips", "axis"), _strips(results), strict=True))
    html = rendered("task.html", **_common(content, "../"), **values)
    return Page(f"tasks/{task.name}", f"Task: {task.name}", [PageSection("", html)], wide=True)


def _common(content: Content, root: str) -> dict[str, Any]:
    """Return what every template may need.

    Args:
        root: the way from the page to the gallery's folder.
    """
    return {
        "content": content,
        "root": root,
        "docs": f"{root}../" if content.documented else "",
        "batch": STEP.split(" × "),
        "most_at_edge": MAX_AT_EDGE,
        "benchmark": NAME,
        "mark": mark,
        "keeps_positions": keeps_positions,
        "not_asked": NOT_ASKED,
        "no_new_position": NO_NEW_POSITION,
        "facet_names": FACETS,
        "margins": " or ".join(dict.fromkeys(map(margin_in_words, benchmark_tasks()))),
        "verdict_in_words": verdict_in_words,
        "inline": lambda text: content.inline(text, root),
        "text_studies": _text_studies(content),
    }


def _text_studies(content: Content) -> list[dict[str, Any]]:
    """Return the TEXT_STUDIES with the mean losses of encodings by length, the lowest at the longest one first."""
    studies = []
    for name, rows in content.text_losses.items() if LONGER_TEXT[0] in content.results else ():
        means = rows.pivot_table(index="pe", columns="length", values="loss")[[1.0, LONGER_TEXT[1]]]
        seeds = rows.groupby("pe")["seed"].nunique()
        count = " or ".join(map(str, sorted(set(seeds))))
        losses = means.sort_values(LONGER_TEXT[1]).apply(list, axis=1).to_dict()
        studies.append({"name": name, "what": TEXT_STUDIES[name], "seeds": count, "losses": losses})
    return studies


def _beyond(results: TaskResults) -> dict[str, Any]:
    """Return what templates say of lengths beyond training."""
    held = holding(results) if results.task.cfg.data.name not in SAME_POSITIONS else {}
    return {
        "held": held,
        "highest": highest(results) if held else {},
        "by_seed": lambda pe, length: by_seed(results, pe, length),
    }


def _choices(content: Content) -> dict[str, list[str]]:
    """Return the values of each facet, in alphabetical order."""
    values: dict[str, set[str]] = {facet: set() for facet in FACETS}
    for name in content.names:
        for facet, value in content.facets(name).items():
            values[facet] |= set(value.split("|"))
    return {facet: sorted(several) for facet, several in values.items()}


def _strips(results: TaskResults) -> tuple[dict[str, Markup], Markup]:
    """Return the interval of each encoding that solves the task, and their axis.

    The axis of steps is logarithmic and ends at the cap. That of losses leaves `none` out where it lies beyond all
    others, which could not be told apart otherwise.
    """
    table = results.table.set_index("pe")[["low", "mean", "high"]].astype(float)
    steps = results.task.cfg.steps
    if results.task.solvable:
        table = table[results.table["solved"].to_numpy() > 0]
    others = table.drop("none", errors="ignore")
    far = not results.task.solvable and "none" in table.index and table.loc["none", "low"] > others["high"].max()
    inside = others if far else table
    ends = np.array([inside["low"].min(), steps if results.task.solvable else inside["high"].max()])
    scale = np.log if results.task.solvable else np.asarray
    first, last = scale(ends)
    places = (scale(table.to_numpy()) - first) / (last - first)
    strips = {str(pe): strip(str(pe), *place) for pe, place in zip(table.index, places, strict=True)}
    if far:
        strips["none"] = beyond("none", fixed(table.loc["none", "mean"], 3))
    return strips, axis(*(number(end) if results.task.solvable else fixed(end, 3) for end in ends))


def _line(table: pd.DataFrame, pe: str) -> dict[str, Any] | None:
    return table.loc[pe].to_dict() if pe in table.index else None


def _line_of(need: Need) -> dict[str, Any]:
    """Return what the page of needs shows of one; equal encodings stand together."""
    well_known = set(COMMON_NAMES[:WELL_KNOWN])
    lists = {}
    for name in ("behind", "unreliable", "avoid"):
        groups = need.groups(getattr(need.advice, name))
        common = [group for group in groups if not well_known.isdisjoint(group)]
        lists[name] = {"common": common, "others": [group for group in groups if group not in common]}
    parameters = {} if need.results is None else need.results.rows.groupby("pe")["positional_parameters"].max()
    line: dict[str, Any] = {"need": need, "use": need.groups(need.advice.use), "parameters": parameters} | lists
    line |= {"unit": "steps" if need.task.solvable else "nats", "places": _places(need.task)}
    data = data_of(need.task)
    about = (
        f"{data.lengths[1.0]} bytes in training, {data.lengths[need.length]} in the test, {data.options.get('corpus')}"
    )
    line |= {"about": about if need.length > 1 else ""}
    line |= {"at": "at the training length" if need.length == 1 else f"at {need.length:g} × the training length"}
    if need.results is not None:
        shares, kept = right(need.results), need.task.cfg.data.name in SAME_POSITIONS
        line |= {"measure": measure_of(need.results), "note": NOT_ASKED * kept} | _beyond(need.results)
        line |= {"shares": lambda group, length: _shares(shares.get(float(length), {}), group)}
    return line


def _summary_of(results: TaskResults) -> dict[str, Any]:
    """Return the line of a task in the summary of the page of needs: what to use at each length, and what not to."""
    solvable, table, data = results.task.solvable, results.table.set_index("pe"), data_of(results.task)
    lengths = [float(length) for length in results.scores["length"].unique()]
    if solvable:
        shares = right(results).get(1.0, {})
        steps = table["mean"] / table["mean"].min()
        use = {pe: f"{percent(shares.get(pe))}, × {fixed(steps[pe], 1)}" for pe in results.best}
        counts = dict(zip(table.index, zip(table["all_solved"], table["all_runs"], strict=True), strict=True))
        unsolved = [pe for pe, word in results.advice.items() if word in (UNRELIABLE, AVOID)]
        failing = {pe: "{} of {}".format(*counts[pe]) for pe in unsolved}
    else:
        use = {pe: fixed(table.loc[pe, "mean"], 3) for pe in results.best}
        last = results.longer[lengths[-1]].table.set_index("pe")["mean"] if results.longer else table["mean"]
        worse = [pe for pe in last.index if pe != "none" and "none" in last and last[pe] >= last["none"]]
        failing = {pe: fixed(last[pe], 3) for pe in worse}
    common = [pe for pe in COMMON_NAMES if pe in failing]
    worst = table["mean"].idxmax()
    return {
        "task": results.task,
        "measure": measure_of(results) if solvable else "nats",
        "count": len(table),
        "lengths": data.lengths,
        "use": use,
        **_beyond(results),
        "same": results.task.cfg.data.name in SAME_POSITIONS,
        "failing": {pe: failing[pe] for pe in [*common, *(pe for pe in failing if pe not in common)]},
        "worst": (worst, fixed(table.loc[worst, "mean"], 3)) if not solvable and worst in results.beaten else None,
        "none": fixed(last.get("none"), 3) if not solvable else "",
        "last": lengths[-1],
        "separable": bool(results.best and results.beaten),
    }


def _learned_vectors(content: Content) -> dict[str, float] | None:
    """Return what the page of needs says of learned vectors at LONGEST; None where they are not seen to fail there.

    Returns:
        share: the most that is right on a task that asks for new positions; loss, none: on text, where it is measured.
    """
    new = [each for each in content.results.values() if each.task.cfg.data.name not in SAME_POSITIONS]
    shares = [right(each).get(LONGEST, {}).get(LEARNED) for each in new if each.task.solvable]
    measured_shares = [share for share in shares if share is not None]
    if not measured_shares or max(measured_shares) >= MIN_RIGHT:
        return None
    said = {"share": max(measured_shares)}
    for each in new:
        if not each.task.solvable and not each.is_control and LONGEST in each.best_at:
            losses = each.longer[LONGEST].table.set_index("pe")["mean"]
            if {LEARNED, "none"} <= set(losses.index) and losses[LEARNED] > losses["none"]:
                said |= {"loss": float(losses[LEARNED]), "none": float(losses["none"])}
    return said


def _shares(shares: dict[str, float], group: list[str]) -> list[str]:
    """Return what is right with encodings at a length; one where they are the same."""
    texts = [percent(shares.get(name)) for name in group]
    return texts[:1] if len(set(texts)) == 1 else texts


def _places(task: BenchmarkTask) -> int | None:
    """Return the number of decimal places of what is compared on a task; None: significant digits."""
    return None if task.solvable else 3


def _again(content: Content, name: str) -> list[dict[str, Any]]:
    """Return a line for each task on which an encoding was trained again with fresh seeds."""
    lines = []
    for row in content.again.means[content.again.means["pe"] == name].to_dict("records"):
        task = task_named(row["task"])
        pairs = content.again.on_task(task.name).pairs
        here = FreshSeeds(pairs[(pairs["pe"] == name) | (pairs["baseline"] == name)], content.again.means)
        values = {key: float(row[key]) for key in ("mean", "low", "high", "fresh")}
        cap = float(task.cfg.steps) if task.solvable else None
        if cap is not None:
            values = {key: min(2**exponent, cap) for key, exponent in values.items()}
        values |= {key: int(row[key]) for key in ("failed", "fresh_failed")}
        lines.append({"task": task, "cap": cap, "places": _places(task), "contradicted": here.contradicted, **values})
    return lines


def _level() -> float:
    """Return the validation score at which tasks of the benchmark are solved."""
    return float(next(each.cfg.solve.level for each in benchmark_tasks() if each.solvable))


def _property(content: Content, name: str, column: str) -> Any:
    return next((value for other, value, _ in content.properties(name) if other == column), None)


def _class_name(code: str) -> str:
    """Return the name of the class in a source."""
    return code.partition("class ")[2].partition("(")[0].partition(":")[0]


def _number(count: int, what: str, thing: str = "") -> str:
    """Return a number of things and what they are."""
    name = f" {thing}{'s' * (count > 1)}" if thing else ""
    return f"{count}{name}, {what}" if count else "none"


def _counted(content: Content, findings: dict[str, Finding], again: int) -> str:
    """Return how many claims and numbers have which verdict, and how many tasks were trained again."""
    order = list(EntryVerdict)
    by_verdict = sorted(findings.items(), key=lambda item: order.index(item[1].verdict))
    verdicts = Counter(verdict_in_words(each, bool(content.unlearned.get(name))) for name, each in by_verdict)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    parts = [f"claims that name it: {counts}"] if counts else []
    parts += [f"{again} {'tasks' if again > 1 else 'task'} trained again with fresh seeds"] if again else []
    return "; ".join(parts) or "none"


def _file(title: str) -> str:
    return title.lower().replace(" ", "_")
