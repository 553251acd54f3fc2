"""The report of a study whose learning rates are tuned for each seed.

Its verdicts are those of the study: every seed of an encoding is a repetition of the whole procedure, the choice of
its learning rate included. What is compared is the steps to solve, or the loss after declared steps.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pe_lab.config import LR
from pe_lab.report.answer import MOST_DRAWN, count_of_seeds
from pe_lab.report.comparing import floors_in_words
from pe_lab.report.effort import SECONDS, setting_in_words
from pe_lab.report.parts import COMPARISON, Code, Drawn, Folded, Part, ReportTable, Section
from pe_lab.report.question import failed, missing, seeds_in_words, surroundings
from pe_lab.report.standing import joined
from pe_lab.results import plots
from pe_lab.results.columns import counted_in, floors, setting_columns, sort_by_setting
from pe_lab.results.frame import Results
from pe_lab.results.learned import not_learned, used_in_setting
from pe_lab.results.panels import settings_in_words
from pe_lab.results.tuned_outcomes import (
    edge_note,
    endpoint,
    seed_note,
    settings,
    summaries,
    tried_rates,
    with_baseline,
    with_floors,
)
from pe_lab.statistics import FEWEST_SEEDS, Endpoint, Verdict
from pe_lab.statistics.moderation import FEWEST_ENCODINGS
from pe_lab.system.tables import read_csv

FILE = "outcomes.csv"
NEEDED = ("pe", "seed", "y", "solved", LR, "edge", "trained_steps", "core_seconds")
CHOSEN = (LR, "start_scale")  # columns of cells that are no settings here
WORDS = (
    "`better` and `worse` mean significantly so, and by at least the margin in the mean; `undecided`, that these seeds "
    "show neither a difference nor equivalence."
)

IMPORTS = """\
from pe_lab.report.tuned import TunedStudy
from pe_lab.results import frame, plots
"""


@dataclass(frozen=True)
class TunedStudy:
    """The subject of such a report.

    Attributes:
        results: from frame.load, with the declaration of the study.
        command: that trained it, if it is known.
        load: the line of code that loads the results.
    """

    results: Results
    command: str = ""
    load: str = "results = frame.load(FOLDER)"

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """A line per cell, see `tuned_outcomes`.

        Raises:
            ValueError: the table is missing, or is of another kind.
        """
        path = self.results.folder / FILE
        if not path.is_file():
            raise ValueError(f"{self.results.name} needs {FILE} beside its rows, as rates are tuned for each seed")
        found = read_csv(path, dtype={"pe": str, "data": str})
        if lacking := [name for name in NEEDED if name not in found]:
            raise ValueError(f"{path} must have the columns {', '.join(NEEDED)}, got none named {', '.join(lacking)}")
        return found

    def named(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return cells or curves with the names of the outcomes; theirs may have the chosen scale behind them."""
        if rows.empty:
            return rows
        names = sorted(self.outcomes["pe"].unique(), key=len, reverse=True)
        new = {pe: next((one for one in names if f"{pe} ".startswith(f"{one} ")), pe) for pe in rows["pe"].unique()}
        return rows.assign(pe=rows["pe"].map(new))

    @property
    def known(self) -> pd.DataFrame:
        """The outcomes of seeds of which a try did not diverge."""
        return self.outcomes[self.outcomes["y"].notna()]

    @cached_property
    def endpoint(self) -> Endpoint:
        solvable = self.outcomes["solved"].notna().any()
        tune = self.results.declared.tune or {}
        return endpoint(tune.get("margin"), np.inf if solvable else None)

    @property
    def rates(self) -> list[float]:
        """The learning rates that were tried, as far as it is known."""
        tried = (self.results.declared.tune or {}).get("rates") or self.known[LR].unique()
        return sorted(float(rate) for rate in tried)

    @property
    def scaled_rates(self) -> list[float]:
        """Those of the encodings with a starting scale; empty where they are not known."""
        pairs = (self.results.declared.tune or {}).get("scaled") or []
        return sorted({float(rate) for rate, _ in pairs})

    @cached_property
    def unlearned(self) -> pd.DataFrame:
        """The settings in which no mean loss is below the best without position, where there are others too."""
        keys = settings(self.outcomes)
        each = self.known[keys].drop_duplicates()
        if self.endpoint.kind == "steps":
            return each.head(0)
        rows = self.with_floors.groupby([*keys, "pe"], dropna=False).mean(numeric_only=True).reset_index()
        none = rows.loc[used_in_setting(rows.rename(columns={"y": "test_loss"}), keys) == 0, keys].drop_duplicates()
        return none if len(none) < len(each) else each.head(0)

    @cached_property
    def with_floors(self) -> pd.DataFrame:
        """The known outcomes with the floors of the loss, where losses are compared."""
        return self.known if self.endpoint.kind == "steps" else with_floors(self.known, self.named(self.results.cells))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells, without what their seeds chose."""
        cells = self.named(self.results.cells)
        return cells.drop(columns=[name for name in CHOSEN if name in setting_columns(cells)])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Validation during the longest trainings, without what their seeds chose."""
        curves = self.named(self.results.curves).drop(columns=list(CHOSEN), errors="ignore")
        return curves if curves.empty else curves[curves[counted_in(curves)] == curves[counted_in(curves)].max()]

    @property
    def trains_for_several_lengths(self) -> bool:
        """Whether losses are compared after several declared lengths of training."""
        return self.endpoint.kind == "loss" and self.cells[counted_in(self.cells)].nunique() > 1

    @property
    def settings_count(self) -> int:
        """The number of settings in which encodings are compared."""
        return len(self.known[settings(self.outcomes)].drop_duplicates())

    @property
    def baseline(self) -> str | None:
        return (self.results.declared.tune or {}).get("baseline")

    @property
    def measured(self) -> str:
        """What is compared, in words."""
        return "steps to solve" if self.endpoint.kind == "steps" else "test loss"

    @cached_property
    def compared(self) -> pd.DataFrame:
        """Comparisons with the baseline, as `plots.forest` draws them; no line without a baseline."""
        if self.baseline is None:
            return pd.DataFrame()
        return with_baseline(self.outcomes, self.endpoint, self.baseline)

    @cached_property
    def drawn(self) -> pd.DataFrame:
        """The comparisons that a figure can show; no line without an interval.

        Where no run of either encoding solved the task, nothing was tested.
        """
        if self.compared.empty or self.compared["low"].isna().all():
            return self.compared.head(0)
        return self.compared[self.compared["verdict"] != Verdict.BOTH_UNSOLVED]

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """A line per setting and encoding: runs, the mean, and the range of ranks that all pairs leave open."""
        keys = settings(self.outcomes)
        parts = self.with_floors.groupby(keys, sort=False, dropna=False)
        tables = [
            table.assign(**dict(zip(keys, key, strict=True)))
            for (key, _), (_, table) in zip(
                parts, summaries(self.with_floors, self.endpoint, self.baseline), strict=True
            )
        ]
        found = pd.concat(tables, ignore_index=True).rename(columns={"loss": "mean"})
        return found[[*keys, *(name for name in found if name not in keys)]]


def sections(study: TunedStudy) -> list[Section]:
    """Return all sections that the study has data for, in order.

    Raises:
        ValueError: a table of the study is missing, or is of another kind.
    """
    found = [_answer(study), _differences(study), _values(study), _over_training(study), _rates(study), _cost(study)]
    return [section for section in [*found, failed(study.results), _methods(study)] if section.parts]


def _answer(study: TunedStudy) -> Section:
    """Return the first screen: the question, its answer, cautions and a figure."""
    known, endpoint = study.known, study.endpoint
    names = known["pe"].nunique()
    best = "fewest" if endpoint.kind == "steps" else "lowest"
    tasks = joined(list(dict.fromkeys(study.outcomes["data"]))) if "data" in study.outcomes else "the task"
    chosen = "learning rates and starting scales" if study.scaled_rates else "learning rates"
    title = f"Which of {names} encodings has the {best} {study.measured} on {tasks}, at {chosen} tuned for each?"
    warning = not_learned(study.results.cells)
    edges = edge_note(known, study.rates, study.scaled_rates)
    notes = [note for note in (_unequal_rates(study), seed_note(known), edges) if note]
    notes += [*missing(study.results), *surroundings(study.results.cells)]
    said, *details = _sentences(study)
    parts: list[Part] = [*([f"**Note.** {warning}"] if warning else []), said, *_opening_figure(study)]
    parts += [f"**Note.** {note}" for note in notes]
    runs = known.groupby([*settings(study.outcomes), "pe"], dropna=False)["seed"].nunique()
    how = Folded(f"How it was compared: {count_of_seeds(runs)}, each with a choice of its own", [*details, WORDS])
    how.parts.extend(filter(None, [setting_in_words(study.results)]))
    return Section(title, [*parts, how], opening=True)


def _unequal_rates(study: TunedStudy) -> str:
    """Say which encodings were tried at which learning rates; empty where all were tried at the same."""
    tried = tried_rates(study.known, study.rates, study.scaled_rates)
    if len(set(tried.values())) < 2:
        return ""
    who = [
        f"{joined([f'`{pe}`' for pe in tried if tried[pe] == rates])} at {joined([f'{rate:g}' for rate in rates])}"
        for rates in dict.fromkeys(tried.values())
    ]
    return f"The learning rates that were tried are not the same for all: {'; '.join(who)}."


def _sentences(study: TunedStudy) -> list[str]:
    """Say who leads in how many settings that were learned, and how comparisons ended; then the same of the others."""
    without = study.unlearned
    if without.empty:
        return [_found(study, study.ranked, study.compared)]
    learned = _others(study.ranked, without), _others(study.compared, without)
    found = _found(study, *learned, " in which the task was learned")
    others = _found(study, study.ranked.merge(without), study.compared.merge(without), " that were not")
    level = "In the settings that were not learned, no mean test loss is below the best without position"
    return [found, f"{level}. {others}"]


def _others(lines: pd.DataFrame, settings: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that are of none of the settings."""
    if lines.empty:
        return lines
    return lines.merge(settings, how="left", indicator=True).query("_merge == 'left_only'").drop(columns="_merge")


def _found(study: TunedStudy, ranked: pd.DataFrame, compared: pd.DataFrame, which: str = "") -> str:
    """Say who leads in how many of some settings, with words on which these are, and how their comparisons ended."""
    column, keys = ("steps" if study.endpoint.kind == "steps" else "mean"), settings(study.outcomes)
    best = ranked.loc[ranked.groupby(keys, sort=False, dropna=False)[column].idxmin(), "pe"]
    count = len(best)
    if count == 1:
        text = _best(ranked.sort_values(column, kind="stable"), column)
        text = f"In the only setting{which}, {text}" if which else text
    else:
        leads = best.value_counts(sort=True)
        text = "The best mean is that of " + joined([f"`{name}` in {number}" for name, number in leads.items()])
        text += f" of {count} settings{which}."
    if compared.empty:
        return f"{text} The ranges of ranks below say which encodings differ significantly."
    counts = compared["verdict"].value_counts()
    ends = joined([f"{number} {word}" for word, number in counts.items()])
    unit = study.endpoint.unit
    return (
        f"{text} Verdicts on {len(compared)} comparisons with `{study.baseline}`: {ends} "
        f"(margin {study.endpoint.margin:g} {unit}{'s' * (study.endpoint.margin != 1)})."
    )


def _best(ranked: pd.DataFrame, column: str) -> str:
    """Say what the best mean of one setting is, and the next."""
    values = [f"{x:,} steps" if column == "steps" else f"{x:.3f} nats" for x in ranked[column]]
    names, between = list(ranked["pe"]), ranked["95 % interval"].iloc[0]
    text = f"`{names[0]}` has the best mean, {values[0]}{f' (95 % interval {between})' * bool(between)}"
    return f"{text}; the next is `{names[1]}`, {values[1]}." if len(names) > 1 else f"{text}."


def _opening_figure(study: TunedStudy) -> list[Part]:
    """Return a figure that fits beside the answer.

    It has the losses over the lengths of training; else, with several settings, comparisons of the last; or all seeds.
    """
    if study.trains_for_several_lengths:
        length = counted_in(study.cells)
        caption = f"Test loss after so many {length}, tuned for each: means over seeds with 95 % t intervals"
        return [Drawn(plots.over_epochs(study.cells), caption, "plots.over_epochs(study.cells)")]
    keys = settings(study.outcomes)
    ordered = sort_by_setting(study.known, keys)
    last = ordered[keys].iloc[-1:]
    if len(study.drawn):
        shown = study.drawn.merge(last, on=keys)
        where = settings_in_words(ordered, keys)[-1]
        caption = f"Differences from {study.baseline} at {where}, with 95 % intervals, not corrected; "
        caption += "the grey band is the margin"
        if len(shown):
            return [forest(study, shown, caption)]
    best = study.with_floors.merge(last, on=keys)
    order = best.groupby("pe", sort=False)["y"].mean().sort_values(kind="stable").index[:MOST_DRAWN]
    which = f"the best {MOST_DRAWN}" if best["pe"].nunique() > MOST_DRAWN else ""
    return [seed_values(study, best[best["pe"].isin(order)], which)]


def forest(study: TunedStudy, lines: pd.DataFrame, caption: str) -> Drawn:
    """Return the figure of some of `study.drawn`."""
    kind = "octaves" if study.endpoint.kind == "steps" else "loss"
    return Drawn(plots.forest(lines, kind), caption, f"plots.forest(study.drawn, {kind!r})")


def seed_values(study: TunedStudy, runs: pd.DataFrame, which: str = "") -> Drawn:
    """Return the figure of what each seed reached."""
    caption = f"{study.measured.capitalize()} of each seed{f', {which}' if which else ''}; a bar is their mean"
    if study.endpoint.kind == "steps":
        caption += ", an open mark a run that did not solve it"
    return Drawn(
        plots.runs(runs, study.endpoint.kind), caption, f"plots.runs(study.with_floors, {study.endpoint.kind!r})"
    )


def _methods(study: TunedStudy) -> Section:
    outcomes, tune = study.outcomes, study.results.declared.tune or {}
    seeds = tuple(sorted(outcomes["seed"].unique()))
    tries = "the rates " + ", ".join(f"{float(rate):g}" for rate in tune.get("rates") or [])
    if scaled := tune.get("scaled"):
        pairs = ", ".join(f"{float(rate):g} @ {float(scale):g}" for rate, scale in scaled)
        tries += f" (one with a starting scale at rate @ scale {pairs})"
    share = float(tune.get("fraction") or 1)
    tried = f"{tune['steps']} steps" if tune.get("steps") else f"{share:.0%} of the steps" if share < 1 else ""
    after = f" after {tried}" if tried else ""
    few = outcomes["pe"].nunique() < FEWEST_ENCODINGS
    moderated = "" if few else "; their variances are moderated by those of all pairs of a setting"
    parts: list[Part] = [
        f"{len(outcomes)} cells: {outcomes['pe'].nunique()} encodings; seeds {seeds_in_words(seeds)}. Every seed "
        f"trains each encoding at {tries}, goes on{after} with the best by validation, and counts as one "
        "repetition of all that.",
        f"Encodings are compared by paired differences within seeds{moderated}. Comparisons with a baseline are one "
        "family, corrected by Holm's method. Other pairs, from which ranks follow too, are corrected over all pairs of "
        "a setting by the method of Benjamini and Hochberg. "
        f"Equivalent needs {FEWEST_SEEDS} seeds.",
    ]
    if study.command:
        parts.append(f"Trained with `{study.command}`.")
    parts += [
        "The line of code of a figure draws it in Python, after these:",
        Code(f"{IMPORTS}\n{study.load}\nstudy = TunedStudy(results)"),
    ]
    return Section("How it was compared", parts)


def _differences(study: TunedStudy) -> Section:
    """Return the comparisons with the baseline."""
    lines = study.compared
    if lines.empty:
        return Section("Differences")
    parts: list[Part] = []
    on_top = study.settings_count == 1  # in the figure of the first screen
    if len(study.drawn) and not on_top:
        caption = f"Differences from {study.baseline} with 95 % intervals, not corrected; the grey band is the margin"
        parts.append(forest(study, study.drawn, caption))
    columns = [*settings(study.outcomes), *COMPARISON]
    parts.append(ReportTable(lines[columns], f"Comparisons with {study.baseline}", "study.compared"))
    return Section("Differences", parts)


def _values(study: TunedStudy) -> Section:
    text = "An encoding ranks below all with the verdict better, and above all with the verdict worse."
    known = study.with_floors
    table = ReportTable(study.ranked, f"Mean {study.measured}", "study.ranked")
    drawn_above = study.settings_count == 1 and study.compared.empty and known["pe"].nunique() <= MOST_DRAWN
    drawn = [] if drawn_above else [seed_values(study, known)]
    parts: list[Part] = [text, *floors_in_words(floors(known)), *drawn, table]
    return Section("Values and ranks", parts)


def _over_training(study: TunedStudy) -> Section:
    """Return validation during the longest trainings; runs that solve their task stop."""
    parts: list[Part] = []
    length = counted_in(study.cells)
    if study.endpoint.kind == "loss" and not study.curves.empty and (study.curves["metric"] == "loss").any():
        ended = study.cells[study.cells[length] == study.cells[length].max()]
        caption = "Validation loss of the longest trainings, at the rates that were chosen"
        code = "plots.learning_curves(study.curves, rows=study.cells)"
        parts.append(Drawn(plots.learning_curves(study.curves, rows=ended), caption, code))
    return Section("During training", parts)


def _rates(study: TunedStudy) -> Section:
    """Return how often each rate, and each scale, was the best of its seed."""
    known = study.known
    keys = [name for name in settings(study.outcomes) if known[name].nunique() > 1]
    names = [LR] + ["start_scale"] * int(known["start_scale"].notna().any() if "start_scale" in known else 0)
    best = known.assign(choice=[_choice(line, names) for line in known[names].to_dict("records")])
    tried = pd.concat([known[names], _tried(study, names)]).drop_duplicates().sort_values(names)
    order = dict.fromkeys(_choice(line, names) for line in tried.to_dict("records"))
    counts = pd.crosstab(best["pe"], best["choice"]).reindex(index=known["pe"].unique(), columns=list(order))
    counts = counts.fillna(0).astype(int).astype(object)
    if len(names) > 1:  # encodings with a scale were tried at pairs, the others at rates
        scaled = known.groupby("pe")["start_scale"].agg(lambda scales: scales.notna().any())
        for pe in counts.index:
            other = [choice for choice in counts if (" @ " in choice) != scaled[pe] and not counts.loc[pe, choice]]
            counts.loc[pe, other] = "–"
    counts = counts.assign(edge=[f"{known.loc[known['pe'] == pe, 'edge'].mean():.0%}" for pe in counts.index])
    what = "learning rate" + " @ starting scale" * (len(names) > 1)
    text = (
        f"For how many seeds each {what} was best{', over all settings' if keys else ''}. `edge` is the share of seeds "
        "whose best rate is the lowest or highest that was tried."
    )
    return Section("Learning rates", [text, ReportTable(counts.reset_index(), "Best rates")])


def _tried(study: TunedStudy, names: list[str]) -> pd.DataFrame:
    """Return the declared rates, and the pairs of rate and scale where a scale was chosen."""
    lines: list[dict[str, float | None]] = [{LR: rate} for rate in study.rates]
    if len(names) > 1:
        pairs = (study.results.declared.tune or {}).get("scaled") or []
        lines += [{LR: float(rate), "start_scale": float(scale)} for rate, scale in pairs]
    return pd.DataFrame(lines, columns=names, dtype=float)


def _choice(line: dict[str, float], names: list[str]) -> str:
    return " @ ".join(f"{line[name]:g}" for name in names if pd.notna(line[name]))


def _cost(study: TunedStudy) -> Section:
    """Return what a cell of each encoding cost, all tries included."""
    costs = study.outcomes.groupby("pe", sort=False)
    found = costs.agg(
        cells=("seed", "size"), steps=("trained_steps", "median"), core_seconds=("core_seconds", "median")
    )
    caption = "Steps and core-seconds of a cell, all its tries included: medians over seeds and settings"
    return Section("Cost", [SECONDS, ReportTable(found.reset_index(), caption)])
