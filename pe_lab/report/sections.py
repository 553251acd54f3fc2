"""What a report says of results: its sections, each made of text, tables and figures."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from pe_lab.report import choice
from pe_lab.results import columns, plots, statistics
from pe_lab.results.columns import floors, setting_columns
from pe_lab.results.frame import Results
from pe_lab.results.plots import Plot
from pe_lab.results.rates import LR, tuned
from pe_lab.results.statistics import Families
from pe_lab.results.table import by_task, summarise

SHOWN = ("loss", "bits_per_byte", "accuracy", "exact_match")
IMPORTS = (
    "from pe_lab.report import choice; "
    "from pe_lab.results import columns, frame, plots, rates, statistics, wandb_project"
)


@dataclass(frozen=True)
class Drawn:
    """A figure, what it shows in a sentence, and the line that draws it."""

    plot: Plot
    caption: str
    code: str


@dataclass(frozen=True)
class Table:
    """Numbers, what they are in a sentence, and the line that computes them, if there is one."""

    data: pd.DataFrame
    caption: str
    code: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    parts: list[str | Drawn | Table] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """What a report is about.

    Attributes:
        results: from frame.load.
        load: the line that loads them.
        command: the command that trained them, where it is known.
        baseline: the encoding that others are compared with.
        metric: of the test.
        audit: the table of an audit, or empty.
    """

    results: Results
    load: str
    command: str
    baseline: str
    metric: str
    audit: pd.DataFrame

    @cached_property
    def compared(self) -> Families:
        """All comparisons of the report; every verdict in it is one of these."""
        return choice.families(self.results.cells, self.results.records, self.baseline, self.metric)

    @property
    def compares(self) -> str:
        """The line that makes them."""
        return f"compared = choice.families(results.cells, results.records, {self.baseline!r}, {self.metric!r})"


def sections(asked: Question) -> list[Section]:
    """All sections that the results have something for, in order."""
    if len(asked.results.cells):
        _ = asked.compared  # says what is wrong with the metric, or with the baseline
    found = [_what(asked), _failed(asked)]
    if len(asked.results.cells):
        found += [_grid(asked), _differences(asked), _ranks(asked), _effects(asked), _seeds(asked)]
        found += [_rates(asked), _tasks(asked), _curves(asked), _lengths(asked), _probes(asked), _cost(asked)]
        found += [_audit(asked), _methods(asked), _choice(asked)]
    return [section for section in found if section.parts]


def cautions(results: Results, baseline: str) -> list[str]:
    """What a reader has to know before any number, a line each."""
    cells, lines = results.cells, []
    _ = results.curves, results.records  # what cannot be read of them is refused when they are asked for
    if len(results.failed):
        lines.append(f"{len(results.failed)} cells failed; they are listed below and in no mean.")
    if results.refused:
        lines.append(f"{len(results.refused)} entries were refused; they are listed below and in no mean.")
    if cells.empty:
        return lines
    seeds = cells.groupby("pe", sort=False)["seed"].nunique()
    if (seeds == 1).any():
        names = ", ".join(seeds.index[seeds == 1])
        lines.append(f"One seed only: {names}. There is no interval, and nothing can be said to differ.")
    by_cell = cells.groupby([*setting_columns(cells), "pe"], sort=False, dropna=False)["seed"].agg(
        lambda of: tuple(sorted(of))
    )
    if by_cell.nunique() > 1:
        most = by_cell.mode().iloc[0]
        other = by_cell[by_cell != most]
        lines.append(
            f"Seeds are not the same everywhere: {len(other)} of {len(by_cell)} combinations of setting and encoding "
            f"have others than {_seeds_in_words(most)}. Differences are taken over shared seeds only."
        )
    settings, encodings = len(cells[setting_columns(cells)].drop_duplicates()), cells["pe"].nunique()
    if len(by_cell) < settings * encodings:
        absent = settings * encodings - len(by_cell)
        lines.append(f"{absent} of {settings * encodings} combinations of setting and encoding were not trained.")
    if baseline not in set(cells["pe"]):
        lines.append(f"The baseline {baseline} is not among the cells.")
    for name, what in (("torch", "versions of PyTorch"), ("commit", "commits of pe_lab"), ("device", "devices")):
        values = cells[name].fillna("unknown").unique() if name in cells else []
        if len(values) > 1:
            lines.append(f"Cells were made with several {what}: {', '.join(map(str, values))}.")
    if "optimizer.lr" in cells and "optimizer.lr" not in setting_columns(cells):
        lines.append("Encodings have learning rates of their own (column `optimizer.lr`).")
    return lines


def _direction(metric: str) -> str:
    return "lower" if statistics.lower_is_better(metric) else "higher"


def _seeds_in_words(seeds: tuple[int, ...]) -> str:
    whole = seeds == tuple(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _what(asked: Question) -> Section:
    results, cells = asked.results, asked.results.cells
    parts: list[str | Drawn | Table] = []
    if len(cells):
        varied = [name for name in setting_columns(cells) if cells[name].nunique(dropna=False) > 1]
        told = [f"{cells['pe'].nunique()} encodings"]
        told += [f"{name} {', '.join(_plain(v) for v in sorted(cells[name].dropna().unique()))}" for name in varied]
        seeds = tuple(sorted(cells["seed"].unique()))
        parts.append(f"{len(cells)} cells: {'; '.join(told)}; seeds {_seeds_in_words(seeds)}.")
        parts.append(
            f"The metric is test {asked.metric} ({_direction(asked.metric)} is better; losses are in nats per slot). "
            f"Others are compared with `{asked.baseline}`."
        )
        if cells["pe"].nunique() > 1:
            parts.append(
                f"**The families of this report**: {asked.compared}. Every verdict on this page, in differences, "
                "ranks, seeds needed and choice, is one of these."
            )
    parts += [f"**Note.** {line}" for line in cautions(results, asked.baseline)]
    if asked.command:
        parts.append(f"Trained with `{asked.command}`.")
    lines = f"`{IMPORTS}`, `{asked.load}`" + (f" and `{asked.compares}`" if len(cells) else "")
    parts.append(f"Every figure names the line that draws it, after {lines}.")
    return Section("The question", parts)


def _varied(data: pd.DataFrame, names: list[str]) -> list[str]:
    """Those of the columns that are there and tell lines apart."""
    return [name for name in names if name in data and data[name].nunique(dropna=False) > 1]


def _failed(asked: Question) -> Section:
    results, parts = asked.results, []
    if len(results.failed):
        parts.append(Table(results.failed, "Cells that were tried and not reached", "results.failed"))
    if results.refused:
        refused = pd.DataFrame({"entry": results.refused})
        parts.append(Table(refused, "Entries that are not what they say they are, or were left half-written"))
    if len(results.skipped):
        caption = "Left out of the study: encodings that are not made for a task"
        parts.append(Table(results.skipped, caption, "results.skipped"))
    return Section("What failed, and what was left out", parts)


def _grid(asked: Question) -> Section:
    cells, metric = asked.results.cells, asked.metric
    code = f"plots.heatmap(results.cells, {metric!r})"
    caption = "Mean over seeds, encodings by their mean rank, floors below the line"
    parts: list[str | Drawn | Table] = []
    known = floors(cells, metric)
    if "bayes" in known:
        parts.append("`bayes` is what the best possible model reaches; nobody can be below it.")
    if "position_blind" in known:
        parts.append(
            "`position-blind` is what the best model reaches that cannot tell positions apart and does not know which "
            "problems are held out."
        )
    if "position_blind_split_known" in known:
        parts.append(
            "`position-blind-split-known` is the same for who does; no model that cannot tell positions apart "
            "is below it."
        )
    if others := [name.replace("_", "-") for name in known if not name.startswith(("bayes", "position_blind"))]:
        parts.append(f"{', '.join(f'`{name}`' for name in others)}: reference levels, not bounds.")
    parts.append(Drawn(plots.heatmap(cells, metric), caption, code))
    return Section("The grid", parts)


def _differences(asked: Question) -> Section:
    cells, families = asked.results.cells, asked.compared
    if cells["pe"].nunique() < 2:
        return Section("Differences")
    compared = families.compare()
    told = ", ".join(f"{count} {verdict}" for verdict, count in compared["verdict"].value_counts().items())
    caption = "Paired differences with 95 % t intervals; blue, left: better; red, right: worse; hollow: not separable"
    code = f"plots.forest(compared.compare(), {asked.metric!r})"
    parts: list[str | Drawn | Table] = [f"Every encoding with `{asked.baseline}`, in every setting: {told}."]
    parts.append(Drawn(plots.forest(compared, asked.metric), caption, code))
    if len(cells[setting_columns(cells)].drop_duplicates()) > 1:
        parts.append(statistics.pool(cells, asked.metric).note)
        if choice.POOLED in families.tables:
            pooled = families.compare(choice.POOLED)
            shown = pooled[["pe", "seeds", "difference", "low", "high", "p_holm", "verdict"]]
            code = f"compared.compare({choice.POOLED!r})"
            parts.append(Table(shown, f"Pooled differences from {asked.baseline}", code))
    return Section("Differences", parts)


def _ranks(asked: Question) -> Section:
    found = asked.compared.ranks()
    if found.empty or asked.results.cells["pe"].nunique() < 2:
        return Section("Ranks")
    text = (
        "An encoding's rank lies between `best` and `worst`: it is behind those that are better, by the verdicts of "
        "the report's families, and before those that are worse. `tied` counts the rest: not separable at these "
        "seeds, which does not mean equal."
    )
    names = [*_varied(found, setting_columns(asked.results.cells)), "pe", "mean", "best", "worst", "tied"]
    return Section("Ranks, with ties", [text, Table(found[names], "Best mean first", "compared.ranks()")])


def _effects(asked: Question) -> Section:
    found = statistics.effects(asked.results.cells, asked.metric)
    if found.empty:
        return Section("Effects")
    text = (
        "Depth, epochs and encoding, alone and together: shares of the sum of squares within each seed's grid, "
        "averaged over seeds. `×` is what an effect changes with the other; the last one contains the noise."
    )
    code = f"plots.shares(statistics.effects(results.cells, {asked.metric!r}))"
    return Section("What matters", [text, Drawn(plots.shares(found), "Shares with 95 % t intervals over seeds", code)])


def _seeds(asked: Question) -> Section:
    if asked.results.cells["pe"].nunique() < 2:
        return Section("Seeds needed")
    found = statistics.seeds_needed(asked.compared.compare())
    if found["deviation"].isna().all():
        return Section("Seeds needed")
    names = [
        *_varied(found, setting_columns(asked.results.cells)),
        "pe",
        "seeds",
        "difference",
        "deviation",
        "separable",
    ]
    names += ["seeds_needed", "verdict"]
    text = (
        f"For a power of 80 % at the level that the first step of Holm's correction has in the family of the "
        f"{asked.compared.sizes()[0]} comparisons with `{asked.baseline}`, were difference and deviation as observed. "
        "`separable` is the smallest difference that the seeds that are there would separate. An observed difference "
        "is an estimate; read the numbers as orders of magnitude."
    )
    code = "statistics.seeds_needed(compared.compare())"
    return Section(
        "Seeds needed", [text, Table(found[names], f"To separate each encoding from {asked.baseline}", code)]
    )


def _rates(asked: Question) -> Section:
    results, title = asked.results, "How far the ranking hangs on the learning rate"
    if LR not in results.cells and results.cells["pe"].nunique() > 1:
        text = (
            "**Note.** All encodings were trained at one learning rate, which was not tuned for each of them: at rates "
            "of their own, their order can be another one. `+study=tune_lr` tells how far."
        )
        return Section(title, [text])
    if LR not in setting_columns(results.cells) or results.curves.empty:
        return Section(title)
    found = tuned(results)
    text = (
        "Each encoding at the learning rate with the lowest validation loss, and how the ranking by test loss at one "
        "rate for all agrees with the ranking at those (Kendall's tau: 1 the same, 0 unrelated)."
    )
    parts: list[str | Drawn | Table] = [text]
    if edge := int(found.rates["at_edge"].sum()):
        parts.append(
            f"**Note.** {edge} of {len(found.rates)} tuned rates are the lowest or the highest that was tried: the "
            "best may lie beyond, and the order at it may be another one."
        )
    settings = [name for name in setting_columns(results.cells) if name != LR]
    rates = columns.sort_by_setting(found.rates, settings)
    rates = rates[[*_varied(rates, settings), *(name for name in rates if name not in settings)]]
    agreement = found.agreement
    agreement = agreement[[*_varied(agreement, settings), *(name for name in agreement if name not in settings)]]
    code = "rates.tuned(results)"
    parts.append(Table(rates, "Tuned rates", f"columns.sort_by_setting({code}.rates, {settings})"))
    parts.append(Table(agreement, "Rankings at one rate against tuned", f"{code}.agreement"))
    return Section(title, parts)


def _tasks(asked: Question) -> Section:
    cells = asked.results.cells
    if "data" not in cells or cells["data"].nunique() < 2:
        return Section("Tasks")
    found, settings = by_task(summarise(cells)), setting_columns(cells)
    found = found[["pe", *_varied(found, settings), *(name for name in found if name not in ("pe", *settings))]]
    return Section("Tasks", [Table(found, "Where the loss lies between each task's levels")])


def _curves(asked: Question) -> Section:
    curves = asked.results.curves
    if curves.empty or not (curves["metric"] == asked.metric).any():
        return Section("Learning curves")
    caption = f"Validation {asked.metric}; coloured: those that end best (all, if they are eight or fewer)"
    code = f"plots.learning_curves(results.curves, {asked.metric!r})"
    return Section("Learning curves", [Drawn(plots.learning_curves(curves, asked.metric), caption, code)])


def _lengths(asked: Question) -> Section:
    records, parts = asked.results.records, []
    for metric in SHOWN if len(records) else []:
        if ((records["kind"] == "length") & (records["metric"] == metric)).any():
            code = f"plots.length_curves(results.records, {metric!r})"
            parts.append(Drawn(plots.length_curves(records, metric), f"Test {metric} against length", code))
    return Section("Other lengths", parts)


def _probes(asked: Question) -> Section:
    records, parts = asked.results.records, []
    of = records[(records["kind"] == "probe") & records["layer"].notna()] if len(records) else records
    for probe, metric in of[["probe", "metric"]].drop_duplicates().itertuples(index=False) if len(of) else []:
        code = f"plots.layer_curves(results.records, {probe!r}, {metric!r})"
        caption = f"Probe {probe}: {metric.replace('_', ' ')} by layer"
        parts.append(Drawn(plots.layer_curves(records, probe, metric), caption, code))
    return Section("Layers", parts)


def _cost(asked: Question) -> Section:
    cells, parts = asked.results.cells, []
    for against in ("seconds", "positional_parameters"):
        if cells[against].nunique() > 1:
            words = against.replace("_", " ")
            code = f"plots.cost(results.cells, {asked.metric!r}, {against!r})"
            caption = f"Test {asked.metric} against {words}; the best are named first, as far as there is room"
            parts.append(Drawn(plots.cost(cells, asked.metric, against), caption, code))
    settings = _varied(cells, setting_columns(cells))
    paid = (
        columns.sort_by_setting(cells, settings)
        .groupby([*settings, "pe"], sort=False, dropna=False)
        .agg(
            parameters=("parameters", "median"),
            positional_parameters=("positional_parameters", "median"),
            flops_per_token=("flops_per_token", "median"),
            seconds=("seconds", "median"),
            attention=("attention", lambda of: ", ".join(sorted(set(of)))),
        )
    )
    text = "Seconds are of training steps on the machine that trained the cell, other work beside it included."
    return Section("Cost against quality", [text, *parts, Table(paid.reset_index(), "Medians over seeds")])


def _audit(asked: Question) -> Section:
    if asked.audit.empty:
        text = "No audit was given: `python -m pe_lab.audit out=FOLDER`, then `--audit FOLDER` here."
        return Section("Properties of the encodings", [text])
    names = {name.split(" ")[0] for name in asked.results.cells["pe"]}
    of = asked.audit[asked.audit["pe"].isin(names)].dropna(axis=1, how="all")
    return Section("Properties of the encodings", [Table(of, "Measured without training, see python -m pe_lab.audit")])


def _methods(asked: Question) -> Section:
    cells = asked.results.cells
    residuals = statistics.deviations(cells, asked.metric) if cells["pe"].nunique() > 1 else np.array([])
    noises = {"normal noise": np.random.default_rng(0).standard_normal(100_000)}
    if len(residuals) >= 20:
        noises[f"the {len(residuals)} scaled residuals of these differences"] = residuals
    lines = []
    for seeds in sorted({3, 5, *(int(n) for n in cells.groupby("pe")["seed"].nunique().unique() if n > 1)}):
        for noise, of in noises.items():
            t = statistics.coverage(seeds, of, statistics.t_intervals)
            bootstrap = statistics.coverage(seeds, of, statistics.percentile_bootstraps, 2000)
            lines.append({"seeds": seeds, "noise": noise, "t interval": t, "percentile bootstrap": bootstrap})
    text = [
        "Cells of one seed share data, order and all weights that are not positional, so encodings are compared "
        "within seeds, and seeds are the independent units. Stops of one training at several epochs are settings, not "
        "seeds.",
        "Intervals are 95 % t intervals, of one mean each. Verdicts come from p values after Holm's correction, so "
        "that an interval without 0 can belong to a difference that does not stand.",
        "A comparison belongs to one of two families. The comparisons with the baseline, in every setting, pooled and "
        "at the longest length, are what the report asks; the comparisons of two other encodings, in the same places, "
        "are the other family, so that asking about every pair does not hide the answer. In each family, the chance "
        "that any verdict of better or worse is wrong is at most 5 %. Another baseline makes other families: choose it "
        "before looking.",
    ]
    return Section("Methods", [*text, Table(pd.DataFrame(lines), "How often an interval for 95 % contains the truth")])


def _choice(asked: Question) -> Section:
    results = asked.results
    found = choice.choices(results.cells, results.records, asked.metric, asked.compared)
    if found.empty:
        return Section("Choice")
    code = f"choice.choices(results.cells, results.records, {asked.metric!r}, compared)"
    return Section("Which encoding for which need", [Table(found, "Drawn from these results alone", code)])


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float, np.number)) else str(value)
