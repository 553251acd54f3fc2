"""The page of an encoding."""

from collections import Counter
from typing import Any

from pe_lab.benchmark.fresh_seeds import FreshSeeds
from pe_lab.benchmark.task_results import USE, end_at_cap
from pe_lab.benchmark.tasks import benchmark_tasks, task_named
from pe_lab.gallery.claim_tests import by_support, encodings_of
from pe_lab.gallery.claim_text import UNLEARNED, ours, states
from pe_lab.gallery.definitions import Definition
from pe_lab.gallery.extrapolation import SAME_POSITIONS, mean_right, mean_whole, value_at_lengths
from pe_lab.gallery.formulas import mathml
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.gallery_page import Page, PageSection, fixed, percent, rendered
from pe_lab.gallery.need_recommendations import Need
from pe_lab.gallery.pairwise import compare_on_task
from pe_lab.gallery.portrait import PANELS, PIXELS
from pe_lab.gallery.samples import sentence
from pe_lab.gallery.shared_values import (
    LONGEST,
    asks_at_longest,
    average_at_longest,
    decimal_places,
    held_at_longest,
    shared_values,
)
from pe_lab.replication import EntryVerdict, Finding

RIVALS = ("rope", "alibi")  # every encoding is compared with the first one, which is with the second


def encoding_page(content: GalleryData, name: str) -> Page:
    """Return the page of an encoding."""
    definition, portrait = content.definitions[name], content.portraits[name]
    values: dict[str, Any] = shared_values(content, "../")
    values |= {"name": name, "definition": definition, "portrait": portrait}
    advice = _advice_on(content, name)
    opening = {
        "advice": advice,
        "right_at_training": lambda need: mean_right(need.results)[1.0].get(name),
        "formulas": [mathml(formula) for formula in definition.formula],
        "what": sentence("pe", name),
        **holds_on(content, name),
        "overall": _overall(content, name) if definition.enters == ("nowhere",) else {},
    }
    sections = [PageSection("", rendered("encoding/opening.html", **values, **opening))]
    for title, (fold, more) in _parts(content, name, definition).items():
        html = rendered(f"encoding/{_file(title)}.html", **values, **more)
        sections.append(PageSection(title, html, portrait.code * (title == "Code"), fold))
    return Page(f"encodings/{name}", f"{definition.title} ({name})", sections)


def _advice_on(content: GalleryData, name: str) -> dict[str, list[Need]]:
    """Return the needs for which an encoding is among the best, is behind them, or did not solve every seed, or any."""
    needs = [need for need in content.needs if name in need.lines]
    best: dict[str, list[Need]] = {}
    for need in needs:
        if need.results is not None and name in need.advice.use:
            where = " at the training length" if need.task.solvable else ""
            best.setdefault(need.results.in_words(USE).capitalize() + where, []).append(need)
    behind = [need for need in needs if name in need.advice.behind]
    return best | {
        "Slower than the best at the training length (steps, as a multiple of the best)": [
            need for need in behind if need.task.solvable
        ],
        "Higher loss than the best (nats)": [need for need in behind if not need.task.solvable],
        "Not solved by every seed": [need for need in needs if name in need.advice.unreliable],
        "Not solved by any seed (answers right at the training length)": [
            need for need in needs if name in need.advice.avoid
        ],
    }


def holds_on(content: GalleryData, name: str) -> dict[str, Any]:
    """Return the tasks on which an encoding holds at LONGEST, what is right or its loss; of how many tasks.

    Also those on which it is `holding_on_average`, and what it gets right of whole sequences; None: has none.
    """
    asking = [each for each in content.results.values() if asks_at_longest(each) and name in set(each.table["pe"])]
    held = {each.task: held_at_longest(each)[name] for each in asking if name in held_at_longest(each)}
    texts = {task.name: percent(value) if task.solvable else f"{fixed(value, 3)} nats" for task, value in held.items()}
    whole = {each.task.name: mean_whole(each).get(LONGEST, {}).get(name) for each in asking}
    means = {each.task.name: average_at_longest(each) for each in asking}
    average = {task: percent(each[name]) for task, each in means.items() if name in each}
    return {"holds": texts, "average": average, "whole_at_longest": whole, "asking": len(asking)}


def _overall(content: GalleryData, name: str) -> dict[str, Any]:
    """Return how many tasks an encoding solves in any seed, and what it gets right in studies of claims.

    The latter is of unseen lengths.
    """
    lines = [(results, line) for results, line in content.on_tasks(name) if not results.is_control]
    solvable = [line for results, line in lines if results.task.solvable]
    unseen = [
        {
            "claim": claim,
            "data": data,
            "lengths": each.lengths,
            "is_first": shares[name] == max(shares.values()),
            "shares": dict(sorted(shares.items(), key=lambda item: -item[1])),
        }
        for claim, each in content.unseen.items()
        for data, shares in each.shares.items()
        if data not in each.few and name in shares
    ]
    solved = sum(line["solved"] > 0 for line in solvable)
    return {"solved": solved, "of": len(solvable), "unseen": unseen} if lines else {}


def _encoding_comparisons(content: GalleryData, name: str) -> dict[str, Any]:
    """Return the comparisons of an encoding with one of RIVALS, on all tasks but controls."""
    rival = RIVALS[name == RIVALS[0]]
    lines = [compare_on_task(each, name, rival) for each in content.results.values() if not each.is_control]
    compared = [line for line in lines if line is not None]
    return {"rival": rival if compared else "", "compared": compared, "same_positions": SAME_POSITIONS}


def _parts(content: GalleryData, name: str, definition: Definition) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the parts of the page of an encoding by title: what is said of one that is folded, and its values."""
    on_tasks, reported = content.on_tasks(name), content.reported(name)
    about = [key for key, each in content.claims.items() if each.entry.tasks and name in encodings_of(each.entry)]
    claims = by_support({claim: content.claims[claim] for claim in dict.fromkeys((*definition.claims, *about))})
    judged = {number: finding for number, finding in reported.items() if finding.compared}
    again, failing, equal = _again(content, name), content.failures(name), content.equal_runs(name)
    properties = content.properties(name)
    results: dict[str, Any] = {"by_length": {each.task.name: value_at_lengths(each) for each, _ in on_tasks}}
    results |= {"whole": {each.task.name: mean_whole(each) for each, _ in on_tasks}}
    results |= {"ranked": {each.task.name: int(each.table["last"].max()) for each, _ in on_tasks}}
    results |= {"on_tasks": on_tasks, "tasks": benchmark_tasks()}
    results |= _encoding_comparisons(content, name)
    results |= {"measured": {each.task.name for each, _ in on_tasks}}
    replicated = {"claims": claims, "judged": judged, "again": again, "states": states, "ours": ours}
    replicated |= {"not_run": len(reported) - len(judged), "conditions": content.conditions}
    return {
        "Results": ("" if on_tasks else "not measured", results),
        "Untrained curve": ("", {}),
        "Replication": (_count_verdicts(content, claims, judged, len(again)), replicated),
        "Known failures": (
            _number(len(definition.failures) + len(failing), "published or measured here", "no failure is known"),
            {"failing": failing},
        ),
        "Equal to": (
            _number(
                len(definition.equals) + len(definition.published) + len(equal),
                "by another name or under a condition",
                "no other encoding",
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


def _again(content: GalleryData, name: str) -> list[dict[str, Any]]:
    """Return a line for each task on which an encoding was trained again with fresh seeds."""
    lines = []
    for row in content.again.means[content.again.means["pe"] == name].to_dict("records"):
        task = task_named(row["task"])
        pairs = content.again.on_task(task.name).pairs
        here = FreshSeeds(pairs[(pairs["pe"] == name) | (pairs["baseline"] == name)], content.again.means)
        values = {key: float(row[key]) for key in ("mean", "low", "high", "fresh")}
        published, fresh = {key: values[key] for key in ("mean", "low", "high")}, {"mean": values["fresh"]}
        if task.solvable:
            for each, prefix in ((published, ""), (fresh, "fresh_")):
                each |= {key: end_at_cap(task, 2**exponent) for key, exponent in each.items()}
                runs = int(row[f"{prefix}seeds"])
                each |= {"cap": task.cfg.steps, "runs": runs, "solved": runs - int(row[f"{prefix}failed"])}
        else:
            published["low"] = max(0.0, published["low"])
        line = {"task": task, "places": decimal_places(task), "published": published, "fresh": fresh}
        lines.append(line | {"contradicted": here.contradicted})
    return lines


def _class_name(code: str) -> str:
    """Return the name of the class in a source."""
    return code.partition("class ")[2].partition("(")[0].partition(":")[0]


def _number(count: int, what: str, nothing: str) -> str:
    """Return a number of things and what they are; or that there is nothing."""
    return f"{count}, {what}" if count else nothing


def _count_verdicts(content: GalleryData, claims: dict[str, Finding], numbers: dict[str, Finding], again: int) -> str:
    """Return how many claims and numbers have which verdict, and how many tasks were trained again."""
    order, parts = list(EntryVerdict), []
    for what, findings in (("claims that name it", claims), ("numbers", numbers)):
        by_verdict = sorted(findings.items(), key=lambda item: order.index(item[1].verdict))
        verdicts = [
            content.claim_verdict(name) if name in content.claims else str(each.verdict) for name, each in by_verdict
        ]
        limited = Counter(verdict.removesuffix(f" {UNLEARNED}") for verdict in verdicts if verdict.endswith(UNLEARNED))
        counts = [
            f"{count} {verdict}" + f" ({limited[verdict]} {UNLEARNED})" * (limited[verdict] > 0)
            for verdict, count in Counter(verdict.removesuffix(f" {UNLEARNED}") for verdict in verdicts).items()
        ]
        parts += [f"{what}: {', '.join(counts)}"] if counts else []
    parts += [f"{again} {'tasks' if again > 1 else 'task'} trained again with fresh seeds"] if again else []
    return "; ".join(parts) or "no claim and no number"


def _file(title: str) -> str:
    return title.lower().replace(" ", "_")
