"""Tables of docs/replication.md, from the registry of published numbers and the shipped values."""

import textwrap
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REPLICATION = ROOT / "pe_lab/replication/values.csv"


def findings() -> dict[str, Any]:
    """Return the findings on all entries of the registry, from the shipped values."""
    from pe_lab.replication import judge_entry, load_entries
    from pe_lab.replication.benchmark_rows import shipped_values
    from pe_lab.replication.values import Values

    entries = load_entries(ROOT / "conf/replication")
    values = shipped_values(entries, REPLICATION if REPLICATION.exists() else None)
    return {name: judge_entry(entry, values.get(name, Values()).by_label) for name, entry in entries.items()}


def of_claim(finding: Any) -> tuple[str, str]:
    """Return the verdict on a claim as the gallery has it, and how many of its parts are in which state."""
    from pe_lab.gallery.claim_tests import unseen_lengths, verdict_of_claim, without_room
    from pe_lab.gallery.claim_text import states

    room = without_room(finding, benchmark_results(), unseen_lengths(finding.entry, ROOT / "sweeps/results"))
    return verdict_of_claim(finding, room), states(finding, room)


@cache
def benchmark_results() -> dict[str, Any]:
    """Return the results of the benchmark by task."""
    from pe_lab.benchmark.task_results import read_results

    return {results.task.name: results for results in read_results()}


def replication() -> str:
    """Return how many entries have which verdict, and a table of the numbers that are judged."""
    found = [finding for finding in findings().values() if not finding.entry.everywhere]
    numbers = [finding for finding in found if not finding.entry.studies]
    claimed = [finding for finding in found if finding.entry.studies]
    papers = [finding for finding in claimed if "://" in finding.entry.paper]
    unpublished = [finding for finding in claimed if "://" not in finding.entry.paper]
    lines = ["| entry | source | what is said | published | ours | verdict |", f"|{' :--- |' * 6}"]
    for finding in numbers:
        if finding.compared:
            entry = finding.entry
            theirs = ", ".join(f"{label}: {value.published.mean:.3g}" for label, value in entry.values.items())
            means = ", ".join(f"{label}: {value:.3g}" for label, value in finding.ours.items())
            ours = f"{means} ({finding.seeds} seeds)"
            cells = [f"`{entry.name}`", by(entry), entry.says, theirs, ours, str(finding.verdict)]
            lines.append(f"| {' | '.join(cells)} |")
    counts = (
        f"{len(numbers)} numbers of other authors are listed: {verdicts_of(numbers)}. "
        f"{len(papers)} claims of papers have no number: {verdicts_of(papers)}. "
        f"{len(unpublished)} claims are of no publication: {verdicts_of(unpublished)}."
    )
    return "\n".join([wrapped(counts), "", *lines])


def verdicts_of(found: list[Any]) -> str:
    """Return how many findings have which verdict, as text."""
    counts: dict[str, int] = {}
    for finding in found:
        word = of_claim(finding)[0] if finding.entry.studies else str(finding.verdict)
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def papers() -> str:
    """Return a table of the claims of papers on the benchmark's rows, each with the part that supports it least."""
    from pe_lab.gallery.claim_tests import by_support, weakest

    found = by_support({name: finding for name, finding in findings().items() if finding.entry.tasks})
    lines = ["| claim | paper | verdict | the part that supports it least | ours, 95 % interval |", f"|{' :--- |' * 5}"]
    for finding in found.values():
        entry, label = finding.entry, weakest(finding)
        assert label is not None, finding
        part = f"{label}, claimed {entry.values[label]}"
        verdict = ": ".join(of_claim(finding))
        cells = [f"`{entry.name}`: {entry.says}", by(entry), verdict, part, interval_of(finding, label)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def interval_of(finding: Any, label: str) -> str:
    """Return the value of a part of a claim with its interval; of a difference with their signs."""
    one, sign = finding.compared[label], "+" * finding.entry.values[label].is_difference
    return f"{float(one.difference):{sign}.3g} [{float(one.low):{sign}.3g}, {float(one.high):{sign}.3g}]"


def not_run() -> str:
    """Return a table of the sources of published numbers: how many are listed and judged, and what the rest needs."""
    by_source: dict[str, list[Any]] = {}
    for name, finding in findings().items():
        if not finding.entry.studies:
            by_source.setdefault(name.partition("/")[0], []).append(finding)
    lines = [
        "| source | paper | unit | tolerance | entries | judged | the others |",
        "| :--- | :--- | :--- | ---: | ---: | ---: | :--- |",
    ]
    for source, found in by_source.items():
        first = found[0].entry
        rest = [finding.entry for finding in found if not finding.compared]
        hours = sorted((entry.minutes or 0) * entry.seeds / 60 for entry in rest if not entry.lacks)
        ends = dict.fromkeys(map(hours_of, hours[:1] + hours[-1:]))
        needs = [f"{len(hours)}: {' to '.join(ends)} core-hours each"] if hours else []
        lacks = [entry.lacks for entry in rest if entry.lacks]
        needs += [f"{lacks.count(what)}: no {what}" for what in dict.fromkeys(lacks)]
        paper = f"{by(first)}{'' if first.seen else '; we did not read the numbers there'}"
        cells = [f"`{source}`", paper, first.unit, f"{first.tolerance:g}", str(len(found)), str(len(found) - len(rest))]
        lines.append(f"| {' | '.join([*cells, '; '.join(needs)])} |")
    return "\n".join(lines)


def by(entry: Any) -> str:
    """Return who published an entry, as a link where there is an address."""
    return f"[{entry.paper.rpartition('/')[2]}]({entry.paper})" if "://" in entry.paper else entry.paper


def hours_of(hours: float) -> str:
    """Return a number of hours with one digit after the point below ten, with none above."""
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def claims() -> str:
    """Return a table of claims (in their own setting, in others, the command) and one of their decided parts."""
    from pe_lab.replication import universe
    from pe_lab.replication.entry import UNIVERSE_SUFFIX
    from pe_lab.replication.findings import PARTS

    found = findings()
    head = ["claim", "in its own setting", "in other settings", "the command that repeats it"]
    lines = [f"| {' | '.join(head)} |", f"|{' :--- |' * len(head)}"]
    decided = [
        "| claim | part | claimed | ours, corrected 95 % interval | seeds | it is |",
        f"|{' :--- |' * 6}",
    ]
    for name, finding in found.items():
        entry, short = finding.entry, name.partition("/")[2]
        if not entry.studies or entry.tasks or entry.everywhere:
            continue
        everywhere, where = found.get(f"{name}/{UNIVERSE_SUFFIX}"), "none declared"
        if everywhere is not None:
            where = (
                in_settings(universe.setting_states(everywhere))
                if everywhere.compared
                else f"not run: {everywhere.why}"
            )
        command = f"`pe-lab replicate {name}{' --universe' * (everywhere is not None)}`"
        own = ": ".join(of_claim(finding)) if finding.compared else f"{finding.verdict}: {finding.why}"
        lines.append(f"| `{short}`: {entry.says} | {own} | {where} | {command} |")
        for label, one in finding.compared.items():
            state = PARTS[str(one.agreement)]
            if state != "open":
                cells = [
                    f"`{short}`",
                    label,
                    str(entry.values[label]),
                    interval_of(finding, label),
                    str(finding.seeds),
                    state,
                ]
                decided.append(f"| {' | '.join(cells)} |")
    parts = ["\n".join(lines), *not_learned(found), "Parts that are decided:", "\n".join(decided)]
    return "\n\n".join(parts)


def not_learned(found: dict[str, Any]) -> list[str]:
    """Return a paragraph on the judged claims whose models have not learned their task; none if there are none."""
    from pe_lab.gallery.claim_tests import unlearned

    said: dict[str, list[str]] = {}
    for name, finding in found.items():
        if finding.compared and finding.entry.studies and not finding.entry.everywhere:
            for study, words in unlearned(finding.entry, ROOT / "sweeps/results").items():
                said.setdefault(f"`{study}`: {words}", []).append(f"`{name.partition('/')[2]}`")
    lines = [wrapped(f"- {', '.join(claims)}, on {words}") for words, claims in said.items()]
    return ["Some claims are tested on models that have not learned their task:", "\n".join(lines)] if lines else []


def in_settings(states: Any) -> str:
    """Return in how many settings a claim holds, is contradicted and is undecided."""
    from pe_lab.replication.universe import FAILS, HOLDS, OPEN

    counts = [f"{state} in {(states['state'] == state).sum()}" for state in (HOLDS, FAILS, OPEN)]
    return f"{', '.join(counts)} of {len(states)} settings"


def universes() -> str:
    """Return where each claim that was asked in its universe holds, and where it turns, with its drawing."""
    from pe_lab.replication import universe

    sections = []
    for name, finding in findings().items():
        if finding.entry.everywhere and finding.compared:
            claim = name.split("/")[1]
            grid = "; ".join(f"`{key}` {', '.join(map(str, values))}" for key, values in finding.entry.universe.items())
            asked = f"{finding.entry.says} Asked at {grid}, with {finding.seeds} seeds in each setting."
            states, by_part = universe.setting_states(finding), universe.by_part(finding)
            sections += [f"### {claim}, everywhere", wrapped(f"{asked} Result: {in_settings(states)}.")]
            if len(by_part) > 1:
                lines = [f"| {' | '.join(map(str, row))} |" for row in by_part.itertuples(index=False)]
                heads = [*by_part.columns[:2], *(f"{state} in" for state in by_part.columns[2:])]
                align = [" :--- "] * 2 + [" ---: "] * (len(heads) - 2)
                sections.append("\n".join([f"| {' | '.join(heads)} |", f"|{'|'.join(align)}|", *lines]))
            if states["state"].nunique() > 1:  # else every value of a setting has the same counts
                counts = universe.by_value(states)
                lines = [
                    ", ".join(f"{state} in {row[state]}" for state in row.index[1:]) for _, row in counts.iterrows()
                ]
                named = zip(counts["setting"], lines, strict=True)
                sections.append("\n".join(wrapped(f"- `{setting}`: {line}") for setting, line in named))
                sections.append(turned(universe.turning_points(finding)))
            sections += [
                f"![The claim {claim} in every setting](figures/{picture(name)})",
            ]
    return "\n\n".join(sections)


def turned(lines: list[str]) -> str:
    """Return which settings that differ in one value have opposite verdicts."""
    if not lines:
        return "No two neighbouring settings have opposite verdicts."
    listed = "\n".join(wrapped(f"- {line}") for line in lines)
    return f"Neighbouring settings with opposite verdicts:\n\n{listed}"


def picture(name: str) -> str:
    """Return the file of the drawing of a universe."""
    return f"{name.replace('/', '_')}.svg"


def wrapped(text: str) -> str:
    """Return a paragraph, or an item of a list, in lines of at most 100 characters."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
