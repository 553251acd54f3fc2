"""A study whose learning rates are tuned for each seed, as the subject of a report, and the sections that only it has.

Its verdicts are those of the study: every seed of an encoding is a repetition of the whole procedure, the choice of
its learning rate included. What is compared is the steps to solve, or the loss after declared steps.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd

from pe_lab.config import LR
from pe_lab.data.score import BLIND_FLOORS
from pe_lab.report.best_candidates import BestCandidates, join_words, metric_description
from pe_lab.report.comparing import floors_in_words
from pe_lab.report.parts import CaptionedFigure, Collapsible, Part, ReportTable, Section
from pe_lab.report.report_subject import ReportSubject, made_with, missing, surroundings
from pe_lab.report.training_setup import ladders
from pe_lab.results import plots, tuned_outcomes
from pe_lab.results.columns import (
    STEPS_METRIC,
    cut_interval,
    displayed_settings,
    floors,
    length_column,
    merge_tables,
    setting_columns,
    sort_by_setting,
)
from pe_lab.results.frame import Results
from pe_lab.results.learned import filter_learned_cells, filter_learned_comparisons, not_learned_note, partly_learned
from pe_lab.results.number_text import range_in_words
from pe_lab.results.panels import settings_in_words
from pe_lab.results.study_declaration import read_declared
from pe_lab.results.tuned_outcomes import edge_note, seed_note, tried_rates, tuned_settings, unsolved_note
from pe_lab.statistics import GRID_TABLE, MIN_SEEDS, Endpoint, Families, Verdict
from pe_lab.statistics.comparisons import count_in_words, exchange_pairs
from pe_lab.system.exact_csv import read_csv

FILE = "outcomes.csv"
CHOSEN = (LR, "start_scale")  # by a seed: in cells and curves these are no settings
SCALE = " (scale "  # between a learning rate and a starting scale
COSTS = ("trained_steps",)  # of all tries of a seed
NEEDED = ("pe", "seed", "y", "solved", LR, "edge", "trained_steps", "core_seconds")
AT_EDGE = "lowest or highest"  # the column that counts the seeds whose best rate is an end of those that were tried
ALL_PAIRS = "Benjamini and Hochberg's correction over all pairs of a setting"


def read_outcomes(results: Results) -> pd.DataFrame:
    """Return the table of outcomes in the folder of a study, a line per cell, see `tuned_outcomes`.

    Raises:
        ValueError: the table is missing, or is of another kind.
    """
    path = results.folder / FILE
    if not path.is_file():
        raise ValueError(f"{results.name} needs {FILE} beside its rows, as rates are tuned for each seed")
    outcomes = read_csv(path, dtype={"pe": str, "data": str})
    if lacking := [name for name in NEEDED if name not in outcomes]:
        raise ValueError(f"{path} must have the columns {', '.join(NEEDED)}, got none named {', '.join(lacking)}")
    return outcomes


def with_outcomes(results: Results) -> Results:
    """Return results whose cells have the encodings and settings of the outcomes, and what each seed reached.

    That is test_loss, or test_log2_steps where a task has a level. The rate and the scale that a seed chose are no
    settings; they stand behind the metrics, with the rest of the outcomes. Seeds of which every try diverged are left
    out. Curves are of the longest trainings.

    Raises:
        ValueError: the table of outcomes is missing, or is of another kind.
    """
    outcomes = read_outcomes(results)
    names = sorted(outcomes["pe"].unique(), key=len, reverse=True)  # a cell may be named with the scale it chose

    def renamed(rows: pd.DataFrame) -> pd.DataFrame:
        if rows.empty:
            return rows
        new = {pe: next((name for name in names if f"{pe} ".startswith(f"{name} ")), pe) for pe in rows["pe"].unique()}
        return rows.assign(pe=rows["pe"].map(new)).drop(columns=list(CHOSEN), errors="ignore")

    cells, curves = renamed(results.cells), renamed(results.curves)
    measures = outcomes.columns.get_loc("y")
    keys = [name for name in outcomes.columns[:measures] if name in cells]
    cells = merge_tables(cells, outcomes.loc[outcomes["y"].notna(), [*keys, *outcomes.columns[measures:]]], keys)
    reached, place = cells.pop("y"), len(setting_columns(cells)) + 2
    if outcomes["solved"].notna().any():
        cells.insert(place, f"test_{STEPS_METRIC}", reached)
    else:
        cells["test_loss"] = reached
    if len(curves):
        curves = curves[curves[length_column(curves)] == curves[length_column(curves)].max()]
    tuned = replace(results, cells=cells)
    vars(tuned).update(curves=curves, records=renamed(results.records))  # as if they had been read
    return tuned


def outcomes_of(results: Results) -> pd.DataFrame:
    """Return what each seed reached, see `tuned_outcomes`.

    Args:
        results: the results of `with_outcomes`.
    """
    cells, metric = results.cells, compared_metric(results)
    names = cells.columns[: len(setting_columns(cells)) + 2]
    levels = [f"floor_{floor}_{metric}" for floor in floors(cells, metric)]
    columns = [*displayed_settings(cells, names), f"test_{metric}", *NEEDED[3:], "start_scale", *levels]
    return cells.reindex(columns=columns).rename(columns={f"test_{metric}": "y"})


def compared_metric(results: Results) -> str:
    """Return the metric that a study compares: the loss, or STEPS_METRIC."""
    return STEPS_METRIC if f"test_{STEPS_METRIC}" in results.cells else "loss"


@dataclass(frozen=True)
class TunedFamilies(Families):
    """Comparisons by the verdicts of the study; see `statistics.compare`.

    Without a declared baseline, all pairs of a setting are a family. A declared family is corrected as a whole, with
    the settings in which no encoding has learned the task, of which no verdict is shown.

    Attributes:
        endpoint: the endpoint that is compared.
        total: the number of comparisons of the declared family.
    """

    endpoint: Endpoint = field(kw_only=True)
    total: int = 0

    @classmethod
    def of_study(cls, results: Results) -> "TunedFamilies":
        """Compare every two encodings in every setting, by what the study declared.

        Args:
            results: the results of `with_outcomes`.
        """
        cells, metric, tune = filter_learned_cells(results.cells), compared_metric(results), results.declared.tune or {}
        endpoint = tuned_outcomes.endpoint(tune.get("margin"), np.inf if metric == STEPS_METRIC else None)
        names = list(cells["pe"].unique())
        declared = tune.get("baseline") if tune.get("baseline") in names else None
        baseline, outcomes = declared or names[0], outcomes_of(results)
        lines = tuned_outcomes.compare_all_pairs(outcomes, endpoint, declared)
        nothing = lines["verdict"] == Verdict.BOTH_UNSOLVED
        total = int((lines["p"].notna() & ~nothing & (lines["verdict"] != Verdict.NOT_ASKED)).sum())
        tested = ["difference", "low", "high", "p"]
        lines[tested] = lines[tested].mask(nothing)
        pairs = [(b, a) if a == baseline else (a, b) for a, b in combinations(names, 2)]
        grid = sort_by_setting(cells, setting_columns(cells))[setting_columns(cells)].drop_duplicates()
        grid = grid.merge(pd.DataFrame(pairs, columns=["pe", "baseline"]), how="cross")
        lines = merge_tables(
            grid, pd.concat([lines, exchange_pairs(lines)]), [*tuned_settings(outcomes), "pe", "baseline"], how="left"
        )
        lines = lines.fillna({"seeds": 0, "verdict": str(Verdict.NO_SEED)}).astype({"seeds": int})
        margin = f"{endpoint.margin:g} {endpoint.unit}{'s' * (endpoint.margin != 1)}"
        return cls(
            baseline,
            {GRID_TABLE: (cells, metric)},
            {GRID_TABLE: lines},
            {GRID_TABLE: margin},
            declared is not None,
            endpoint=endpoint,
            total=total,
        )

    def __str__(self) -> str:
        pairs = f"{count_in_words(self.size(), 'comparison')} {self.pairs_in_words}"
        untested = int((self.asked()["verdict"] == Verdict.BOTH_UNSOLVED).sum())
        without = f"; {untested} more not tested, as no run of either encoding solved the task" * bool(untested)
        return f"{pairs}, paired over shared seeds; {self.correction}{without}"

    @property
    def correction(self) -> str:
        if not self.declared:
            return ALL_PAIRS
        others = self.total - self.size()
        where = f", {others} of them in settings that no encoding has learned" * bool(others)
        return f"Holm's correction over {count_in_words(self.total, 'comparison')}{where}"

    @property
    def family_size(self) -> int:
        return self.total

    @property
    def rule(self) -> str:
        solved = ""
        if self.endpoint.kind == "steps":
            solved = f" (a factor of {2**self.endpoint.margin:.3g})"
            solved += ", where the better one has as many solved runs or more"
        return f"p < 0.05 after {self.correction}, and a mean difference of at least {self.margin}{solved}"


@dataclass(frozen=True)
class TunedSubject(ReportSubject):
    """The subject of such a report; its results are from `with_outcomes`, and its metric is that of the study."""

    @classmethod
    def of(
        cls,
        results: Results,
        load: str = "results = frame.load(FOLDER)",
        command: str = "",
        audit: pd.DataFrame | None = None,
    ) -> "TunedSubject":
        """Return the subject of a study; the arguments are those of a ReportSubject.

        Raises:
            ValueError: the table of outcomes is missing, or is of another kind.
        """
        results, load = with_outcomes(results), f"{load}\nresults = tuned.with_outcomes(results)"
        audit = pd.DataFrame() if audit is None else audit
        baseline = TunedFamilies.of_study(results).baseline if len(results.cells) else ""
        return cls(results, load, command, baseline, compared_metric(results), audit)

    @cached_property
    def compared(self) -> TunedFamilies:
        return TunedFamilies.of_study(self.results)

    @property
    def compares(self) -> str:
        return "compared = tuned.TunedFamilies.of_study(results)"

    @property
    def declares(self) -> bool:
        return self.compared.declared

    @property
    def declared_margin(self) -> str | None:
        return (self.results.declared.tune or {}).get("margin")

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """A line per cell, see `outcomes_of`."""
        return outcomes_of(self.results)

    @property
    def diverged(self) -> list[str]:
        """The encoding of each seed of which every try diverged."""
        outcomes = read_outcomes(self.results)
        return list(outcomes.loc[outcomes["y"].isna(), "pe"])

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A line per setting and encoding: runs, mean, interval, and ranks or verdicts."""
        baseline = self.baseline if self.compared.declared else None
        return tuned_outcomes.summary(self.outcomes, self.compared.endpoint, baseline)

    @property
    def notes(self) -> list[str]:
        learned = outcomes_of(replace(self.results, cells=filter_learned_cells(self.results.cells)))
        edge = edge_note(learned, *ladders(self.results), advice=False)
        if edge and len(learned) < len(self.outcomes):
            edge = f"Where the task was learned: {edge[0].lower()}{edge[1:]}"
        said = missing(self.results)
        if names := self.diverged:
            which = join_words(list(dict.fromkeys(names)))
            said.append(f"At every learning rate {count_in_words(len(names), 'cell')} diverged, in no mean: {which}.")
        said += [
            unsolved_note(self.outcomes),
            seed_note(self.outcomes),
            *([] if self.first_tables else [edge]),
            self._chosen_early(),
        ]
        return [*filter(None, said), *surroundings(self.results.cells)]

    @property
    def first_tables(self) -> list[Part]:
        """What each encoding was tried at, and what the seeds of each setting chose; none where few chose an edge.

        Choices of runs that did not solve their task are left out, see `edge_note`; their encodings are not.
        """
        outcomes = outcomes_of(replace(self.results, cells=filter_learned_cells(self.results.cells)))
        tried = tried_rates(self.outcomes, *ladders(self.results))
        if not edge_note(outcomes, *ladders(self.results)) and len(set(tried.values())) < 2:
            return []
        names = tuned_settings(outcomes)
        outcomes = sort_by_setting(outcomes, names)
        words = pd.Series(settings_in_words(outcomes, names), outcomes.index)
        scaled = self.outcomes["start_scale"].notna().groupby(self.outcomes["pe"], sort=False).any()
        pairs = [tuple(map(float, pair)) for pair in (self.results.declared.tune or {}).get("scaled") or []]
        one_scale = len({scale for _, scale in pairs}) < 2
        chosen = outcomes.assign(start_scale=np.nan) if one_scale else outcomes
        table = chosen.groupby(["pe", words], sort=False)[[*CHOSEN, "edge", "solved"]].apply(_choices_in_words)
        table = table.unstack(1).reindex(columns=words.unique())
        scale = " and initial scale of the vectors" * (not one_scale)
        caption = f"The learning rate{scale} that each seed chose by validation"
        stars = table.apply(lambda column: column.str.contains("*", regex=False).any()).any()
        caption += ", without runs that did not solve the task" * bool(outcomes["solved"].eq(False).any())
        caption += ". *: the lowest or highest that was tried, so a better one may lie beyond" * bool(stars)
        if len(set(tried.values())) > 1 or not one_scale:
            ladder = [f"{rate:g}" for rate in ladders(self.results)[0]]
            table["tried"] = [
                ", ".join([_choice(*pair) for pair in pairs] if scaled[pe] else ladder) for pe in table.index
            ]
        return [ReportTable(table.rename_axis(None, axis=1).reset_index(), caption)]

    def _chosen_early(self) -> str:
        """Say that tries were chosen at a length of training after which no encoding had learned the task."""
        cells, steps = self.results.cells, (self.results.declared.tune or {}).get("steps")
        said = f"After {steps} steps, when tries were chosen, no encoding had learned the task"
        if "steps" not in cells or steps is None or not_learned_note(cells):
            return ""
        if steps in set(cells["steps"]):
            learned = not partly_learned(cells) or steps in set(filter_learned_cells(cells)["steps"])
            return "" if learned else f"{said}."
        curves = self.results.curves
        blind = [name for name in (f"floor_{floor}_loss" for floor in BLIND_FLOORS) if name in cells]
        if not blind or curves.empty or "epoch" not in curves:
            return ""
        per_epoch = float((cells["steps"] / cells["epochs"]).iloc[0])
        here = curves[(curves["metric"] == "loss") & ((curves["epoch"] * per_epoch).round() == steps)]
        means = here.groupby([name for name in ("data", "depth", "pe") if name in here])["value"].mean()
        level = cells[blind[0]].mean()
        if means.empty or means.min() < level:
            return ""
        losses = range_in_words(means, ".3g")
        return f"{said}: mean validation losses were {losses} nats, above {level:.3g} without position."

    @property
    def unlearned(self) -> str:
        others = self.compared.total - self.compared.size()
        if not self.compared.declared or not others:
            return ""
        return f"The study asked for {self.compared.total}; in the other {others} no encoding has learned the task."

    def doubts(self, candidates: BestCandidates) -> str:
        tried = tried_rates(self.outcomes, *ladders(self.results))
        cells = filter_learned_cells(self.results.cells)
        words = pd.Series(settings_in_words(cells, setting_columns(cells)), cells.index)
        here = (words == candidates.setting.partition(" ")[2]) if candidates.setting else pd.Series(True, cells.index)
        explained: dict[str, tuple[list[str], list[str]]] = {}  # by how many seeds chose which rates
        elsewhere: set[str] | None = None
        for worse, better in candidates.decided:
            chosen = cells.loc[here & (cells["pe"] == better), LR].astype(float)
            unshared = chosen[~chosen.isin(tried[worse])]
            if len(unshared) > len(chosen) / 2:
                rates = join_words([f"{rate:g}" for rate in sorted(unshared.unique())])
                found = self._studies_that_tried(worse, set(unshared), cells[here])
                elsewhere = found if elsewhere is None else elsewhere & found
                pairs = explained.setdefault(f"{len(unshared)} of {len(chosen)} seeds of {{}} chose {rates}", ([], []))
                for names, name in zip(pairs, (f"`{better}`", f"`{worse}`"), strict=True):
                    names += [name] * (name not in names)
        told = [
            f"{how.format(join_words(one))}, not tried with {join_words(other)}"
            for how, (one, other) in explained.items()
        ]
        known = f"; see {join_words([f'`{name}`' for name in sorted(elsewhere)])}, which tried it" if elsewhere else ""
        return f"The learning rate may explain what is worse: {'; '.join(told)}{known}." if told else ""

    def _studies_that_tried(self, pe: str, rates: set[float], cells: pd.DataFrame) -> set[str]:
        """Return the studies beside this one that tried rates with an encoding in the settings of some cells."""
        found, keys = set[str](), [name for name in setting_columns(cells) if name != "epochs"]
        for path in self.results.folder.parent.glob(f"*/{FILE}"):
            try:
                tune = read_declared(path.parent).tune or {}
                outcomes = read_csv(path, dtype={"pe": str, "data": str})
            except (ValueError, OSError):  # a damaged study has a report of its own that says so
                continue
            if path.parent == self.results.folder or not {*keys, *NEEDED, "start_scale"} <= set(outcomes):
                continue
            scaled = [rate for rate, _ in tune.get("scaled") or []]
            tried = tried_rates(outcomes, tune.get("rates") or outcomes[LR].unique(), scaled).get(pe, ())
            there = merge_tables(outcomes[outcomes["pe"] == pe], cells[keys].drop_duplicates(), keys)
            if len(there) and rates <= set(tried):
                found.add(path.parent.name)
        return found


def values_section(subject: TunedSubject) -> Section:
    """Return what each seed reached, and the mean, interval and ranks of each encoding."""
    text = (
        "Ranks: an encoding ranks below those that are better than it. One that is only `slightly better` does not "
        "count. The range is what the verdicts leave open."
    ) * (not subject.declares)
    summary = filter_learned_comparisons(subject.summary, subject.results.cells)
    if {"mean", "low", "high"} <= set(summary):
        low, high = cut_interval(subject.metric, summary["mean"], summary["low"], summary["high"])
        summary = summary.assign(low=low, high=high)
    same = [name for name in tuned_settings(subject.outcomes) if summary[name].nunique(dropna=False) == 1]
    summary = summary.drop(columns=same)
    what = "verdicts" if subject.declares else "ranks"
    table = ReportTable(summary, f"Mean {metric_description(subject.metric)} and {what} of each encoding")
    words = floors_in_words(floors(subject.outcomes), set(subject.outcomes["pe"]))
    folded = [Collapsible("What the floors are", list(words))] if words else []
    return Section("Values", [*filter(None, [text]), *folded, seed_figure(subject), table])


def seed_figure(subject: TunedSubject, where: str = "") -> CaptionedFigure:
    """Return the figure of what each seed reached.

    Args:
        where: the unit and the settings, for the caption.
    """
    kind = subject.compared.endpoint.kind
    unsolved = bool(subject.outcomes["solved"].eq(False).any())
    caption = (
        f"{metric_description(subject.metric).capitalize()}{where}. A mark is a seed, a bar the mean of an encoding"
    )
    caption += ". Open marks are runs that did not solve the task" * unsolved
    drawn = plots.runs(subject.outcomes, kind)
    if kind != "steps":  # no level was to be reached
        drawn = replace(drawn, data=drawn.data.drop(columns="reached"))
    return CaptionedFigure(drawn, caption, f"plots.runs(tuned.outcomes_of(results), {kind!r})")


def best_rates_section(subject: TunedSubject) -> Section:
    """Return how often each rate, or pair of rate and scale, was the best of its seed."""
    outcomes, (ladder, _) = subject.outcomes, ladders(subject.results)
    where, tries = "", tried_rates(outcomes, *ladders(subject.results))
    if "steps" in outcomes and outcomes["steps"].nunique() > 1:  # a seed has one choice, in trainings of each length
        outcomes = outcomes[outcomes["steps"] == outcomes["steps"].max()]
        where = f" after {outcomes['steps'].max()} steps"
    settings = len(outcomes[tuned_settings(outcomes)].drop_duplicates())
    runs = "seeds" if settings == 1 else f"runs (a seed in each of {settings} settings)"
    scales = outcomes["start_scale"]
    if scales.dropna().nunique() == 1:  # not a choice
        scales = scales.mask(scales.notna())
    scaled = scales.notna().groupby(outcomes["pe"], sort=False).any()
    pairs = (subject.results.declared.tune or {}).get("scaled") or [] if scaled.any() else []
    tried = [*((rate, np.nan) for rate in ladder), *pairs]
    best = [_choice(*pair) for pair in zip(outcomes[LR], scales, strict=True)]
    columns = list(dict.fromkeys([*(_choice(*pair) for pair in tried), *best]))
    counts = pd.crosstab(outcomes["pe"], best).reindex(index=scaled.index, columns=columns, fill_value=0)
    counts = counts.astype(object)
    for choice in columns:  # encodings with a scale were tried at pairs, the others at rates
        counts.loc[scaled != (SCALE in choice), choice] = "–"
    edge = outcomes["edge"].astype(bool).groupby(outcomes["pe"], sort=False).agg(["sum", "size"])
    counts[AT_EDGE] = [
        f"{count} of {size}" + " (only two rates were tried)" * (len(tries[pe]) == 2)
        for pe, count, size in edge.itertuples()
    ]
    what = "learning rate" + " and starting scale" * bool(scaled.any())
    text = (
        f"In how many {runs} each {what} was the best by validation{where}. Where it is the lowest or highest that was "
        "tried (last column), a better one may lie beyond."
    )
    text += " Runs that did not solve the task count too." * bool(outcomes["solved"].eq(False).any())
    return Section("Learning rates", [text, ReportTable(counts.reset_index(), f"Number of {runs.split()[0]}")])


def _choice(rate: float, scale: float) -> str:
    return f"{rate:g}" if np.isnan(scale) else f"{rate:g}{SCALE}{scale:g})"


def _choices_in_words(chosen: pd.DataFrame) -> str:
    """Return the rates and scales of seeds in ascending order, the lowest and highest tried with a star.

    Those of runs that did not solve their task are left out; if all are, the text says so.
    """
    chosen = chosen[~chosen["solved"].eq(False)]
    if chosen.empty:
        return "no run solved the task"
    told = []
    for (rate, scale), part in chosen.groupby(list(CHOSEN), dropna=False):
        how_often = f" in {count_in_words(len(part), 'seed')}" * (len(part) < len(chosen))
        told.append(_choice(rate, scale) + "*" * bool(part["edge"].any()) + how_often)
    return ", ".join(told)


def tuned_methods_section(subject: TunedSubject) -> Section:
    """Return how seeds tuned, and how verdicts follow."""
    tune = subject.results.declared.tune or {}
    tries = "the learning rates " + join_words([f"{float(rate):g}" for rate in tune.get("rates") or []])
    if scaled := tune.get("scaled"):
        pairs = join_words([_choice(float(rate), float(scale)) for rate, scale in scaled])
        tries += f" (encodings with a starting scale at {pairs})"
    share, steps = float(tune.get("fraction") or 1), subject.metric == STEPS_METRIC
    until = f"{tune['steps']} steps" if tune.get("steps") else f"{share:.0%} of the steps" if share < 1 else ""
    after = f"After {until}, only the best by validation continues" if until else "The best by validation counts"
    text = f"With every seed, each encoding is trained at {tries}. {after}"
    text += ". If one of them has solved the task by then, all stop" * (steps and bool(until))
    text += ". Each seed chooses its own rate, so intervals include this choice. Encodings are compared within seeds."
    cells = subject.results.cells
    if cells["pe"].nunique() < 2:
        return Section("Methods", [text, "Intervals are 95 % t intervals of the mean over seeds.", *made_with(cells)])
    intervals = "Intervals are 95 % t intervals, and are not corrected for the number of comparisons."
    if subject.compared.share_variances:
        intervals += (
            " The variance of each difference is estimated from all pairs of a setting together (moderated), and is at "
            "least their median, so several intervals may be equally wide."
        )
    alike = (
        f"at least {MIN_SEEDS} seeds{', all of them solved,' * steps} and a difference significantly below the margin"
    )
    verdicts = [
        f"`better`, `worse`: {subject.compared.rule}.",
        "`slightly better`, `slightly worse`: the same with a smaller mean difference.",
        f"`equivalent`: {alike}.",
        *(["`both unsolved`: no run of either encoding solved the task, and nothing is tested."] if steps else []),
        "`undecided`: these seeds show none of this.",
    ]
    told = "Verdicts:" + "".join(f"\n- {verdict}" for verdict in verdicts)
    return Section("Methods", [text, told, intervals, *made_with(cells)])
