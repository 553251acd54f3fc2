"""Repeat published numbers: pe-lab replicate [NAME ...] [--list] [ledger=LEDGER] [workers=N].

Names are those of entries, as TABLE/CELL, of tables, or of papers, as 2410.02140. What the ledger lacks is trained, as
pe-lab run -m trains it; of a table or a paper, only entries that cost at most --most core-minutes a seed. Without a
name, or with --list, nothing is trained. Prints a verdict on each entry: reproduced, not reproduced, reproduced in
part, undecided (and the seeds that would decide), or not run (and what it needs). Where the ledger has fewer seeds than
an entry asks for, the verdict is that of the shipped values.

A claim is tested on studies, or on the rows of the benchmark that come with the package: of the latter nothing is
trained, and the command that trains them is printed. With --universe, a claim is asked in every setting that its entry
declares as reasonable.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from pe_lab import config
from pe_lab.replication.entries import load_entries
from pe_lab.replication.entry import UNIVERSE_SUFFIX, Entry, Reported, benchmark_commands, training_overrides
from pe_lab.replication.findings import PARTS, EntryVerdict, Finding, judge_entry
from pe_lab.replication.values import SHIPPED_FILE, values_by_entry, values_to_csv
from pe_lab.statistics import Agreement
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.files import write_text
from pe_lab.system.names import nearest_names, unknown_name_message

MACHINE_SETTINGS = (
    "trainer.device",
    "trainer.graph",
    "attention",
)  # of where and how it is computed: rounding may differ
PASSED_SETTINGS = ("ledger", "workers", "logger", "hydra/launcher", *MACHINE_SETTINGS)
MAX_CORE_MINUTES = 60.0  # core-minutes of a seed
STANDARD_ERROR = 2  # as a file descriptor


def main() -> None:
    """Train what is missing, and print the verdicts. The exit status is 1 if a training failed."""
    parser = Parser("pe_lab.replication", PASSED_SETTINGS, description=__doc__)
    parser.add_argument("words", nargs="*", metavar="NAME|key=value", help="entries, tables, and settings of the run")
    parser.add_argument("--list", action="store_true", help="show verdicts, and train nothing")
    parser.add_argument(
        "--universe", action="store_true", help="test a claim in every setting that its entry lists as reasonable"
    )
    parser.add_argument(
        "--seeds", type=_parse_count, metavar="N", help="number of seeds to train (default: that of the entry)"
    )
    words = "train no entries of a table that need more core-minutes for a seed (default: %(default)g)"
    parser.add_argument("--most", type=_parse_minutes, default=MAX_CORE_MINUTES, metavar="MINUTES", help=words)
    words = "folder for values.csv and pages of universes; entries with more seeds in it stay as they are"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=words)
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> int:
        with config.add_config_dirs(sys.argv[1:]) as remaining:
            return replicate(parser.parse_intermixed_args(remaining))

    run_program(program, (ValueError, OSError))


def replicate(arguments: argparse.Namespace) -> int:
    """Run the program. Returns its exit status.

    Raises:
        ValueError: a name or a setting is unknown, or an entry of the registry is wrong.
    """
    names = [word for word in arguments.words if "=" not in word]
    overrides = [word for word in arguments.words if "=" in word]
    for word in overrides:
        if word.partition("=")[0] not in PASSED_SETTINGS:
            raise ValueError(
                f"replicate takes {', '.join(PASSED_SETTINGS)}, which leave the setting as it is, got {word!r}"
            )
    ledger = Path(
        next((word.partition("=")[2] for word in reversed(overrides) if word.startswith("ledger=")), "ledger")
    )
    entries = load_entries()
    chosen = select_entries(entries, names) if names else list(entries.values())
    if arguments.universe:
        chosen = universe_entries(entries, chosen)
        names = [entry.name for entry in chosen] if names else []
    failed = 0
    if names and not arguments.list:
        for entry in chosen:
            if not entry.lacks and not entry.tasks and (entry.name in names or (entry.minutes or 0) <= arguments.most):
                failed += train_entry(entry, arguments.seeds or entry.seeds, overrides)
    from pe_lab.replication.ledger_values import read_ledger_values  # loads torch

    where = tuple(word for word in overrides if word.partition("=")[0] in MACHINE_SETTINGS)
    table = arguments.out / "values.csv" if arguments.out else None
    written = values_by_entry(table) if table and table.exists() else {}
    shipped = {} if where else values_by_entry(SHIPPED_FILE)
    findings, judged = [], []
    for entry in chosen:
        values = read_ledger_values(entry, ledger, arguments.seeds or entry.seeds, where)
        measured = values
        if not entry.tasks:
            if values.seeds and (entry.name not in written or len(values.seeds) >= len(written[entry.name].seeds)):
                written[entry.name] = values
            measured = written.get(entry.name, values)
        used = shipped[entry.name] if entry.name in shipped and len(measured.seeds) < entry.seeds else measured
        findings.append(judge_entry(entry, used.by_label, values.why))
        text = finding_text(findings[-1], ", shipped" if entry.tasks or used is not measured else "")
        if entry.tasks and names and findings[-1].compared:
            text += f"\n    to train it again: {benchmark_commands(entry)}"
        if names:
            print(text, flush=True)
        elif findings[-1].verdict is EntryVerdict.NOT_RUN:  # one line of each, before what is judged
            print(text.partition("\n")[0], flush=True)
        else:
            judged.append(text)
    print(*judged, *verdict_lines(findings), sep="\n")
    for finding in findings:
        if finding.entry.everywhere and finding.compared:
            show_universe(finding, arguments.out)
    if table:
        write_text(table, values_to_csv({name: written[name] for name in entries if name in written}))
    return int(failed > 0)


def select_entries(entries: dict[str, Entry], names: list[str]) -> list[Entry]:
    """Return the entries that names of entries, of tables or of papers on arXiv stand for.

    Raises:
        ValueError: there is no entry, table or paper of this name.
    """
    chosen: dict[str, Entry] = {}
    for name in names:
        paper = name.rpartition("/")[2].casefold().removeprefix("arxiv:")
        matches = {
            key: entry
            for key, entry in entries.items()
            if name in (key, key.partition("/")[0]) or paper == entry.paper.rpartition("/")[2]
        }
        if not matches:
            tables = list(dict.fromkeys(key.partition("/")[0] for key in entries))
            table, _, cell = name.partition("/")
            meant = nearest_names(table, tables)[:1] if cell else []
            close = [key for key in entries if key.partition("/")[0] in meant]
            raise ValueError(unknown_name_message("NAME", close or tables, name, listing="pe-lab replicate --list"))
        chosen |= matches
    return list(chosen.values())


def universe_entries(entries: dict[str, Entry], chosen: list[Entry]) -> list[Entry]:
    """Return the entries that ask chosen claims in all settings of their universes.

    Raises:
        ValueError: no chosen claim has a universe.
    """
    candidates = [entry for entry in entries.values() if entry.everywhere]
    universe_names = {f"{entry.name.removesuffix(f'/{UNIVERSE_SUFFIX}')}/{UNIVERSE_SUFFIX}" for entry in chosen}
    if universe_names.isdisjoint(entry.name for entry in candidates):
        names = ", ".join(entry.name.removesuffix(f"/{UNIVERSE_SUFFIX}") for entry in candidates)
        raise ValueError(f"--universe needs a claim that declares one ({names}), got {chosen[0].name}")
    return [entry for entry in candidates if entry.name in universe_names]


def train_entry(entry: Entry, seeds: int, overrides: list[str]) -> int:
    """Train the seeds of an entry that are missing, as studies. Returns the sum of their exit statuses."""
    failed = 0
    for name, words in training_overrides(entry, seeds).items():
        if not any(word.startswith("logger=") for word in overrides):
            words.append("logger=none")
        print(f"{name}: {seeds} seeds", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pe_lab.run", *config.config_dir_flags(), "-m", *words, *overrides]
        failed += subprocess.run(command, check=False, stdout=STANDARD_ERROR).returncode
    return failed


def show_universe(finding: Finding, out: Path | None) -> None:
    """Print where a claim holds in its universe, and write a page that draws it."""
    from pe_lab.replication import universe
    from pe_lab.report.page import html

    print(
        f"{finding.entry.name}: {universe.summary_sentence(finding)}", *universe.turning_points(finding), sep="\n    "
    )
    if out:
        page = out / f"{finding.entry.name.replace('/', '-')}.html"
        write_text(page, html(f"pe_lab: {finding.entry.name}", universe.page_sections(finding)))
        print(page)


def finding_text(finding: Finding, source: str) -> str:
    """Return a finding as lines of text: the verdict, and each value, with its source, beside the published one."""
    lines = [f"{finding.entry.name}: {finding}"]
    for label, value in finding.entry.values.items():
        statement = f"    {label}: {'published' if isinstance(value, Reported) else 'claimed'} {value}"
        if label not in finding.compared:
            lines += [statement] * isinstance(value, Reported)
            continue
        comparison = finding.compared[label]
        sign = "+" * (isinstance(value, Reported) or value.is_difference)
        difference, low, high = (float(x) for x in (comparison.difference, comparison.low, comparison.high))
        measured = f"{difference:{sign}.4g} [{low:{sign}.4g}, {high:{sign}.4g}]"
        if isinstance(value, Reported):
            measured = f"{finding.ours[label]:.4g} ({finding.seeds} seeds{source}), difference {measured}"
        else:
            measured = f"{measured} ({finding.seeds} seeds{source})"
        agreement = comparison.agreement if isinstance(value, Reported) else PARTS[Agreement(str(comparison.agreement))]
        lines.append(f"{statement}, ours {measured}: {agreement}")
    return "\n".join(lines)


def verdict_lines(findings: list[Finding]) -> list[str]:
    """Return lines on how many have each verdict: published numbers, claims, and claims in all of their settings."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        entry = finding.entry
        kind = "claims in all settings" if entry.everywhere else "claims" if entry.studies else "published numbers"
        kinds.setdefault(kind, []).append(finding)
    lines = []
    for kind, of_kind in kinds.items():
        counts = {verdict: sum(finding.verdict is verdict for finding in of_kind) for verdict in EntryVerdict}
        lines.append(f"{kind}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items() if count)}")
    return lines


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 3:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 3, got {text!r}")
    return int(text)


def _parse_minutes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


if __name__ == "__main__":
    main()
