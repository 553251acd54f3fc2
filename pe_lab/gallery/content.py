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

from pe_lab.audit.report import legend
from pe_lab.benchmark import measured, tables
from pe_lab.benchmark.measured import TaskResults
from pe_lab.benchmark.replication import Replication, replication
from pe_lab.benchmark.tasks import BenchmarkTask
from pe_lab.benchmark.tasks import tasks as tasks_of_benchmark
from pe_lab.benchmark.undefined import undefined
from pe_lab.benchmark.verdicts import equals
from pe_lab.gallery.advice import NOT_MEASURED, Need
from pe_lab.gallery.claims import unlearned
from pe_lab.gallery.definitions import Definition, definitions
from pe_lab.gallery.kinds import kind_of
from pe_lab.gallery.page import fixed
from pe_lab.gallery.portrait import Portrait, path_of, portrait
from pe_lab.replication import Finding, judge, load
from pe_lab.replication.values import SHIPPED, Values, values_of
from pe_lab.system.paths import safe_path
from pe_lab.system.tables import read_csv

REPOSITORY = Path(__file__).parents[2]
STUDIES = REPOSITORY / "sweeps" / "results"  # committed studies and the audit; not in an installed package
CACHE = Path("build") / "gallery-cache"
STEP = "8 × 128"  # sequences and tokens of the batch whose training step is the cost of an encoding
LONGER_TEXT = ("causal_text", 4.0, "small causal language model, longer text")  # a need of its own: task and length
SIDE_BY_SIDE = 8  # portraits that pay for a process of their own


@dataclass(frozen=True)
class Content:
    """All that the pages are made of.

    Attributes:
        definitions, portraits: of the encodings, by name.
        results: of the benchmark, the tasks that are measured, by name.
        claims: of the literature, by name in conf/replication/claims.yaml, with their verdicts.
        numbers: published numbers, by name of the registry, with their verdicts.
        again: what the replication of the benchmark with fresh seeds found.
        unlearned: what the models of a claim's studies have not learned, by study, by the name of the claim.
        audit: a row per encoding with a column per measure; may be empty.
        steps: the CPU time of a training step relative to `rope`, by encoding; may be empty.
        documented: whether the pages stand in the documentation, and can link to its other pages.
    """

    definitions: dict[str, Definition]
    portraits: dict[str, Portrait]
    results: dict[str, TaskResults]
    claims: dict[str, Finding]
    numbers: dict[str, Finding]
    again: Replication
    unlearned: dict[str, dict[str, str]]
    audit: pd.DataFrame
    steps: dict[str, float]
    documented: bool

    @classmethod
    def gather(
        cls,
        results: Path | None = None,
        studies: Path | None = STUDIES,
        cache: Path = CACHE,
        documented: bool = False,
        names: Iterable[str] | None = None,
    ) -> "Content":
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
        tasks = {task.task.name: task for task in measured.read(results)}
        known = definitions()
        chosen = {name: known[name] for name in (known if names is None else names)}
        studies = studies if studies is not None and studies.is_dir() else None
        table = None if studies is None else studies / "audit" / "table.csv"
        audit = read_csv(table).set_index("pe") if table is not None and table.is_file() else pd.DataFrame()
        found = _findings(studies)
        judged = {name.removeprefix("claims/"): one for name, one in found.items() if name.startswith("claims/")}
        numbers = {name: one for name, one in found.items() if not one.entry.studies}
        again = replication(tables.read(results))
        portraits = _portraits(chosen, set(audit.index), cache)
        steps = {} if studies is None else step_times(studies).get(STEP, {})
        missed = {} if studies is None else {name: unlearned(one.entry, studies) for name, one in judged.items()}
        return cls(chosen, portraits, tasks, judged, numbers, again, missed, audit, steps, documented)

    @cached_property
    def names(self) -> set[str]:
        """The encodings that have a page."""
        return set(self.definitions)

    @cached_property
    def needs(self) -> list[Need]:
        """What encodings are asked for: longer text first, then each task; those that are measured first."""
        task, length, asks = LONGER_TEXT
        found = [
            Need(asks, one, length, self.results[task].at(length) if task in self.results else None)
            for one in tasks_of_benchmark()
            if one.name == task
        ]
        found += [Need(one.asks, one, 1.0, self.results.get(one.name)) for one in tasks_of_benchmark()]
        return sorted(found, key=lambda need: need.advice.kind == NOT_MEASURED)

    def reported(self, name: str) -> dict[str, Finding]:
        """Return the published numbers of an encoding, by name."""
        return {key: one for key, one in self.numbers.items() if f"pe={name}" in one.entry.setting}

    def properties(self, name: str) -> list[tuple[str, Any, str]]:
        """Return the audit of an encoding: column, value (None: there is none) and the reason or the legend."""
        made, known = self.portraits[name], legend()
        row = self.audit.loc[name].to_dict() if name in self.audit.index else made.properties
        found = []
        for column in self.audit.columns if name in self.audit.index else [*row, *made.reasons]:
            value = row.get(column)
            missing = value is None or value != value
            words = known.get(column, known.get(re.sub(r"\d+$", "T", str(column)), ""))
            reason = f"{made.reasons.get(column, 'does not apply')}. {words}" if missing else words
            found.append((str(column), None if missing else value, reason))
        return found

    def on_tasks(self, name: str) -> list[tuple[TaskResults, dict[str, Any]]]:
        """Return the lines of an encoding in the tables of the tasks that it is measured on."""
        tables = [(task, task.table.set_index("pe", drop=False)) for task in self.results.values()]
        return [(task, table.loc[name].to_dict()) for task, table in tables if name in table.index]

    def failures(self, name: str) -> list[tuple[str, str]]:
        """Return the tasks on which an encoding failed, and how, by the measured rows.

        It solved the task in fewer than half of the seeds, or the 95 % interval of its test score at more than the
        training length is below 0, the score of the best model without position.
        """
        found = []
        for task, line in self.on_tasks(name):
            if not task.task.solvable:
                continue
            said = [f"solved in {line['solved']} of {line['runs']} seeds"] if 2 * line["solved"] < line["runs"] else []
            scores = task.scores[(task.scores["pe"] == name) & (task.scores["length"] > 1) & (task.scores["high"] < 0)]
            below = [
                f"{fixed(one.mean)} [{fixed(one.low)}, {fixed(one.high)}] at {one.length:g} ×"
                for one in scores.itertuples()
            ]
            said += [f"test score {' and '.join(below)} the training length"] if below else []
            found += [(task.task.name, "; ".join(said))] if said else []
        return found

    def equal_runs(self, name: str) -> dict[str, list[str]]:
        """Return the encodings whose runs had the same bits as those of an encoding, each with the tasks, by name."""
        found: dict[str, list[str]] = {}
        for task, results in self.results.items():
            for other in equals(results.pairs, name):
                found.setdefault(other, []).append(task)
        return found

    def absence(self, name: str, task: BenchmarkTask) -> str:
        """Return why an encoding has no results on a task."""
        expected = "not measured yet" if name in task.encodings else "not one of its encodings"
        return undefined().get((name, task.name), expected)

    def facets(self, name: str) -> dict[str, str]:
        """Return what tables are filtered by: family, where position enters, mask, kernels."""
        made, said = self.portraits[name], self.definitions[name]
        return {
            "family": kind_of(made.module),
            "enters": "|".join(said.enters),
            "mask": "causal only" if made.causal_only else "causal and bidirectional",
            "kernels": "no" if made.fused else "yes",
        }

    def inline(self, text: str, root: str) -> Markup:
        """Return text as HTML, with a link for each encoding that stands in backticks."""

        def link(found: re.Match[str]) -> str:
            name, code = found[1], f"<code>{found[1]}</code>"
            return f'<a href="{root}encodings/{name}.html">{code}</a>' if name in self.names else code

        return Markup(re.sub(r"`([^`]+)`", link, str(escape(text))))


def step_times(studies: Path = STUDIES) -> dict[str, dict[str, float]]:
    """Return the CPU time of a training step relative to `rope`, by "sequences × tokens" and encoding.

    Measured by `python -m benchmarks encoding_steps --to sweeps/results/steps.csv`; empty where there is no such file.
    """
    path = studies / "steps.csv"
    rows = read_csv(path).to_dict("records") if path.is_file() else []
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(f"{row['sequences']} × {row['tokens']}", {})[str(row["pe"])] = float(row["rope"])
    return found


def _findings(studies: Path | None) -> dict[str, Finding]:
    """Return the entries of the registry, judged by the values that are shipped with the studies."""
    values = {} if studies is None else values_of(SHIPPED)
    return {
        name: judge(entry, values.get(name, Values()).by_label)
        for name, entry in load().items()
        if not entry.everywhere
    }


def _portraits(chosen: dict[str, Definition], audited: set[str], cache: Path) -> dict[str, Portrait]:
    """Make or read the portraits, on several processes if many are missing."""
    asked = [(name, dict(one.sliders), cache, name in audited) for name, one in chosen.items()]
    jobs = [delayed(portrait)(*each) for each in asked]
    known = sum(path_of(*each).is_file() for each in asked)
    workers = max(1, min(cpu_count(), (len(jobs) - known) // SIDE_BY_SIDE))
    shown = {"mininterval": 0.1 if sys.stderr.isatty() else 30.0, "disable": known == len(jobs)}
    with safe_path():
        made = Parallel(workers, return_as="generator")(jobs)
        return dict(zip(chosen, tqdm(made, "drawing encodings", len(jobs), **shown), strict=True))
