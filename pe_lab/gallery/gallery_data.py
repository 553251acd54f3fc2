"""All that the pages of the gallery are made of."""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import Parallel, cpu_count, delayed
from markupsafe import Markup, escape
from tqdm import tqdm

from pe_lab.audit.audit_table import legend
from pe_lab.benchmark import task_results, task_tables
from pe_lab.benchmark.fresh_seeds import FreshSeeds, compare_fresh_seeds
from pe_lab.benchmark.task_results import TaskResults
from pe_lab.benchmark.task_statistics import equal_encodings
from pe_lab.benchmark.tasks import BenchmarkTask, benchmark_tasks
from pe_lab.benchmark.undefined_encodings import undefined_reasons
from pe_lab.gallery.claim_tests import UnseenLengths, at_edge, unlearned, unseen_lengths, without_room
from pe_lab.gallery.claim_text import conditions, verdict_in_words
from pe_lab.gallery.definitions import Definition, definitions
from pe_lab.gallery.encoding_families import encoding_family
from pe_lab.gallery.gallery_page import fixed
from pe_lab.gallery.need_recommendations import NOT_MEASURED, Need
from pe_lab.gallery.portrait import Portrait, portrait, portrait_file
from pe_lab.gallery.samples import load_data
from pe_lab.replication import Finding, judge_entry, load_entries
from pe_lab.replication.benchmark_rows import shipped_values
from pe_lab.replication.values import SHIPPED_FILE, Values
from pe_lab.system.exact_csv import read_csv
from pe_lab.system.paths import safe_path

REPOSITORY = Path(__file__).parents[2]
STUDIES = REPOSITORY / "sweeps" / "results"  # committed studies and the audit; not in an installed package
CACHE = Path("build") / "gallery-cache"
STEP = "8 × 128"  # sequences and tokens of the batch whose training step is the cost of an encoding
SHORT_STEP, SHORT = "16 × 35", 50  # that of tasks with fewer tokens than so many
LONGER_TEXT = ("causal_text", 4.0)  # a need of its own: task and length
LARGER_MODEL = "larger_model"
TEXT_STUDIES = {  # of the same text
    "larger_text": "4 × the steps",
    LARGER_MODEL: "4 layers of width 128",
    "backbone_text": "blocks of a current Llama",
}
SIDE_BY_SIDE = 8  # portraits that pay for a process of their own


@dataclass(frozen=True)
class GalleryData:
    """All that the pages are made of.

    Attributes:
        definitions, portraits: the definitions and the portraits of encodings, by name.
        results: the results of the benchmark, by measured task.
        claims: the findings on claims, by the name of their cell in conf/replication.
        numbers: the findings on published numbers, by their name in the registry.
        again: the results of the benchmark's replication with fresh seeds.
        unlearned: sentences on what models of a claim's studies have not learned, by claim, then by study.
        unseen: the accuracies at unseen lengths, by the claim on them.
        audit: the properties of encodings, a row per encoding with a column per measure; may be empty.
        steps, short_steps: the CPU time of a training step of STEP and of SHORT_STEP relative to `rope`, by encoding;
            may be empty.
        studies: the committed studies that have rows of a dataset, by its name.
        text_losses: the rows of TEXT_STUDIES at each length, with one `loss` in nats per seed; may be empty.
        documented: whether the pages stand in the documentation, and can link to its other pages.
        cache: the folder of portraits and of what else takes long.
    """

    definitions: dict[str, Definition]
    portraits: dict[str, Portrait]
    results: dict[str, TaskResults]
    claims: dict[str, Finding]
    numbers: dict[str, Finding]
    again: FreshSeeds
    unlearned: dict[str, dict[str, str]]
    unseen: dict[str, UnseenLengths]
    audit: pd.DataFrame
    steps: dict[str, float]
    studies: dict[str, list[str]]
    text_losses: dict[str, pd.DataFrame]
    documented: bool
    short_steps: dict[str, float]
    cache: Path

    @classmethod
    def gather(
        cls,
        results: Path | None = None,
        studies: Path | None = STUDIES,
        cache: Path = CACHE,
        documented: bool = False,
        names: Iterable[str] | None = None,
    ) -> "GalleryData":
        """Read results, claims and the audit, and make the portraits that are not in the cache.

        Args:
            results: the folder of shipped results; None: that of the package.
            studies: the folder of the committed studies; None or a folder that is not there: no claim is tested.
            cache: the folder of portraits.
            documented: whether the pages stand in the documentation.
            names: of encodings; None: all.

        Raises:
            ValueError: a row of the results cannot be, or a definition is damaged.
            LedgerError: results were changed.
        """
        tasks = {task.task.name: task for task in task_results.read_results(results)}
        every = definitions()
        chosen = {name: every[name] for name in (every if names is None else names)}
        studies = studies if studies is not None and studies.is_dir() else None
        table = None if studies is None else studies / "audit" / "table.csv"
        audit = read_csv(table).set_index("pe") if table is not None and table.is_file() else pd.DataFrame()
        findings = _findings(studies, results)
        judged = {name.partition("/")[2]: claim for name, claim in findings.items() if claim.entry.studies}
        numbers = {name: number for name, number in findings.items() if not number.entry.studies}
        again = compare_fresh_seeds(task_tables.read_all_rows(results))
        portraits = _portraits(chosen, set(audit.index), cache)
        times = {} if studies is None else step_times(studies)
        steps, short_steps = times.get(STEP, {}), times.get(SHORT_STEP, {})
        missed = {} if studies is None else {name: unlearned(claim.entry, studies) for name, claim in judged.items()}
        longer = (
            {} if studies is None else {name: unseen_lengths(claim.entry, studies) for name, claim in judged.items()}
        )
        unseen = {name: each for name, each in longer.items() if each is not None}
        datasets = {} if studies is None else studies_by_dataset(studies)
        files = {} if studies is None else {name: studies / name / "lengths.csv" for name in TEXT_STUDIES}
        losses = {name: read_csv(file) for name, file in files.items() if file.is_file()}
        more = (audit, steps, datasets, losses, documented, short_steps, cache)
        return cls(chosen, portraits, tasks, judged, numbers, again, missed, unseen, *more)

    @cached_property
    def names(self) -> set[str]:
        """The encodings that have a page."""
        return set(self.definitions)

    @cached_property
    def needs(self) -> list[Need]:
        """What encodings are asked for: longer text first, then each task; those that are measured first."""
        name, length = LONGER_TEXT
        text = next(task for task in benchmark_tasks() if task.name == name)
        longer = self.results[name].longer[length] if name in self.results else None
        asks = f"{text.asks} at {length:g} × the training length"
        needs = [Need(asks, text, length, longer, self.steps)]
        needs += [
            Need(task.asks, task, 1.0, self.results.get(task.name), self.steps_of(task)) for task in benchmark_tasks()
        ]
        return sorted(needs, key=lambda need: need.advice.kind == NOT_MEASURED)

    def steps_of(self, task: BenchmarkTask) -> dict[str, float]:
        """Return the time of a training step relative to `rope` for the length of a task, by encoding."""
        return self.short_steps if load_data(task).lengths[1.0] < SHORT else self.steps

    @cached_property
    def setting(self) -> str:
        """The size of the model and the number of seeds, in words."""
        sizes = [task.cfg.model for task in benchmark_tasks()]
        words = dict.fromkeys(f"{size.depth} layers, width {size.width} and {size.num_heads} heads" for size in sizes)
        counts = sorted({int(count) for results in self.results.values() for count in results.table["runs"]})
        seeds = " to ".join(map(str, dict.fromkeys((*counts[:1], *counts[-1:]))))
        return f"a model of {' or '.join(words)}{f', and {seeds} seeds for each encoding' if counts else ''}"

    @cached_property
    def roomless(self) -> dict[str, dict[str, str]]:
        """The parts on which no difference can show, each with the reason, by the name of the claim."""
        return {name: without_room(each, self.results, self.unseen.get(name)) for name, each in self.claims.items()}

    @cached_property
    def edges(self) -> dict[str, dict[str, list[str]]]:
        """The encodings whose learning rate was at an edge, by claim and part; see `at_edge`."""
        return {name: at_edge(claim, self.results) for name, claim in self.claims.items()}

    @cached_property
    def conditions(self) -> dict[str, str]:
        """What tells numbers apart, by name; see `claim_text.conditions`."""
        return conditions(self.numbers)

    def claim_verdict(self, name: str) -> str:
        """Return the verdict on a claim as pages show it."""
        return verdict_in_words(self.claims[name], bool(self.unlearned.get(name)), self.roomless[name])

    @property
    def has_larger_model(self) -> bool:
        """Whether the page of LONGER_TEXT shows a study of a larger model."""
        return LARGER_MODEL in self.text_losses and LONGER_TEXT[0] in self.results

    def reported(self, name: str) -> dict[str, Finding]:
        """Return the published numbers of an encoding, by name."""
        return {key: number for key, number in self.numbers.items() if f"pe={name}" in number.entry.setting}

    def properties(self, name: str) -> list[tuple[str, Any, str]]:
        """Return the audit of an encoding: column, value (None: there is none) and the reason or the legend."""
        portrait, meanings = self.portraits[name], legend()
        row = self.audit.loc[name].to_dict() if name in self.audit.index else portrait.properties
        properties = []
        for column in self.audit.columns if name in self.audit.index else [*row, *portrait.reasons]:
            value = row.get(column)
            missing = value is None or value != value
            words = meanings.get(column, meanings.get(re.sub(r"\d+$", "T", str(column)), ""))
            reason = f"{portrait.reasons.get(column, 'does not apply')}. {words}" if missing else words
            properties.append((str(column), None if missing else value, reason))
        return properties

    def on_tasks(self, name: str) -> list[tuple[TaskResults, dict[str, Any]]]:
        """Return the lines of an encoding in the tables of the tasks that it is measured on."""
        tables = [(task, task.table.set_index("pe", drop=False)) for task in self.results.values()]
        return [(task, table.loc[name].to_dict()) for task, table in tables if name in table.index]

    def failures(self, name: str) -> list[tuple[str, str]]:
        """Return the tasks on which an encoding failed, and how, by the measured rows.

        It solved the task in fewer than half of the seeds, or the 95 % interval of its test score at more than the
        training length is below 0, the score of the best model without position.
        """
        failures = []
        for task, line in self.on_tasks(name):
            if not task.task.solvable:
                continue
            solved, runs = line["solved"], line["runs"]
            words = [f"solved in {solved} of {runs} seeds"] if 2 * solved < runs else []
            scores = task.scores[(task.scores["pe"] == name) & (task.scores["length"] > 1) & (task.scores["high"] < 0)]
            below = [
                f"{fixed(line.mean)} [{fixed(line.low)}, {fixed(line.high)}] at {line.length:g} ×"
                for line in scores.itertuples()
            ]
            words += [f"test score {' and '.join(below)} the training length"] if below else []
            failures += [(task.task.name, "; ".join(words))] if words else []
        return failures

    def equal_runs(self, name: str) -> dict[str, list[str]]:
        """Return the encodings whose runs had the same bits as those of an encoding, each with the tasks, by name."""
        tasks: dict[str, list[str]] = {}
        for task, results in self.results.items():
            for other in equal_encodings(results.pairs, name):
                tasks.setdefault(other, []).append(task)
        return tasks

    def absence(self, name: str, task: BenchmarkTask) -> str:
        """Return why an encoding has no results on a task."""
        expected = "not measured yet" if name in task.encodings else "not trained on this task"
        return undefined_reasons().get((name, task.name), expected)

    def facets(self, name: str) -> dict[str, str]:
        """Return what tables are filtered by: family, where position enters, mask, kernels."""
        portrait = self.portraits[name]
        return {
            "family": encoding_family(portrait.module),
            "enters": "|".join(self.definitions[name].enters),
            "mask": "causal only" if portrait.causal_only else "causal and bidirectional",
            "kernels": "no" if portrait.fused else "yes",
        }

    def inline(self, text: str, root: str) -> Markup:
        """Return text as HTML, with a link for each encoding that stands in backticks."""

        def link(match: re.Match[str]) -> str:
            name, code = match[1], f"<code>{match[1]}</code>"
            return f'<a href="{root}encodings/{name}.html">{code}</a>' if name in self.names else code

        return Markup(re.sub(r"`([^`]+)`", link, str(escape(text))))


def step_times(studies: Path = STUDIES) -> dict[str, dict[str, float]]:
    """Return the CPU time of a training step relative to `rope`, by "sequences × tokens" and encoding.

    Measured by `python -m benchmarks encoding_steps --to sweeps/results/steps.csv`; empty where there is no such file.
    """
    path = studies / "steps.csv"
    rows = read_csv(path).to_dict("records") if path.is_file() else []
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        times.setdefault(f"{row['sequences']} × {row['tokens']}", {})[str(row["pe"])] = float(row["rope"])
    return times


def studies_by_dataset(studies: Path) -> dict[str, list[str]]:
    """Return the studies in a folder that have rows of a dataset, of which reports are made, by its name."""
    names: dict[str, list[str]] = {}
    for file in sorted(studies.glob("*/rows.csv")):
        rows = read_csv(file)
        for data in rows["data"].unique() if "data" in rows else []:
            names.setdefault(str(data), []).append(file.parent.name)
    return names


def _findings(studies: Path | None, results: Path | None) -> dict[str, Finding]:
    """Return the entries of the registry, judged by shipped results and the shipped values of studies."""
    entries = {name: entry for name, entry in load_entries().items() if not entry.everywhere}
    values = shipped_values(entries, None if studies is None else SHIPPED_FILE, results)
    found = {name: values.get(name, Values()) for name in entries}
    return {name: judge_entry(entry, found[name].by_label, found[name].why) for name, entry in entries.items()}


def _portraits(chosen: dict[str, Definition], audited: set[str], cache: Path) -> dict[str, Portrait]:
    """Make or read the portraits, on several processes if many are missing."""
    arguments = [(name, dict(definition.sliders), cache, name in audited) for name, definition in chosen.items()]
    jobs = [delayed(portrait)(*each) for each in arguments]
    cached = sum(portrait_file(*each).is_file() for each in arguments)
    workers = max(1, min(cpu_count(), (len(jobs) - cached) // SIDE_BY_SIDE))
    options = {"mininterval": 0.1 if sys.stderr.isatty() else 30.0, "disable": cached == len(jobs)}
    with safe_path():
        portraits = Parallel(workers, return_as="generator")(jobs)
        return dict(zip(chosen, tqdm(portraits, "drawing encodings", len(jobs), **options), strict=True))
