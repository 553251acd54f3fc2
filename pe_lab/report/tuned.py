"""The report of a study whose learning rates are tuned for each seed.

Its verdicts are those of the study: every seed of an encoding is a repetition of the whole procedure, the choice of
its learning rate included. What is compared is the steps to solve, or the loss after declared steps.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pe_lab.report.parts import Drawn, Part, Section, Table
from pe_lab.report.question import failed, missing, seeds_in_words, surroundings
from pe_lab.report.standing import joined
from pe_lab.results import plots
from pe_lab.results.columns import setting_columns, sort_by_setting
from pe_lab.results.frame import Results
from pe_lab.results.learned import not_learned
from pe_lab.results.panels import settings_in_words
from pe_lab.results.rates import LR
from pe_lab.results.tuned_outcomes import endpoint, settings, summaries, with_baseline
from pe_lab.results.verdicts import few_runs
from pe_lab.statistics import Endpoint, Verdict
from pe_lab.system.tables import read_csv

FILE = "outcomes.csv"
NEEDED = ("pe", "seed", "y", "solved", LR, "edge", "trained_steps", "core_seconds")
CHOSEN = (LR, "start_scale", "steps")  # columns of cells that are no settings here
ENOUGH = 5  # seeds for which the error rates of verdicts are simulated
MOST_DRAWN = 12  # encodings in the figure of the first screen
MOST_AT_EDGE = 0.2  # share of seeds above which a ladder is too short


@dataclass(frozen=True)
class TunedStudy:
    """The subject of such a report.

    Attributes:
        results: from frame.load, with the declaration of the study.
        command: that trained it, if it is known.
    """

    results: Results
    command: str = ""

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
        lines = with_baseline(self.outcomes, self.endpoint, self.baseline)
        if "other" not in lines:
            return pd.DataFrame()
        names = {"encoding": "pe", "other": "baseline", "p_corrected": "p_holm"}
        lines = lines.rename(columns=names | {"p_equivalent_corrected": "p_equivalent_holm"})
        return lines.assign(margin=self.endpoint.margin)

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """A line per setting and encoding: runs, the mean, and the range of ranks that all pairs leave open."""
        keys = settings(self.outcomes)
        parts = self.outcomes.groupby(keys, sort=False, dropna=False)
        tables = [
            table.assign(**dict(zip(keys, key, strict=True)))
            for (key, _), (_, table) in zip(parts, summaries(self.outcomes, self.endpoint), strict=True)
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
    title = f"Which of {names} encodings has the {best} {study.measured} on {tasks}, when every seed tunes it?"
    warning = not_learned(study.results.cells)
    notes = [*([warning] if warning else []), *_seed_notes(study), *_edge_notes(study)]
    notes += [*missing(study.results), *surroundings(study.results.cells)]
    parts: list[Part] = [_sentences(study), *(f"**Note.** {note}" for note in notes)]
    return Section(title, [*parts, *_opening_figure(study)], opening=True)


def _sentences(study: TunedStudy) -> str:
    """Say who leads in how many settings, and how the comparisons ended."""
    ranked = study.ranked
    column, keys = ("steps" if study.endpoint.kind == "steps" else "mean"), settings(study.outcomes)
    best = ranked.loc[ranked.groupby(keys, sort=False, dropna=False)[column].idxmin(), "pe"]
    count = len(best)
    if count == 1:
        text = f"`{best.iloc[0]}` has the best mean."
    else:
        leads = best.value_counts(sort=True)
        text = "The best mean is that of " + joined([f"`{name}` in {number}" for name, number in leads.items()])
        text += f" of {count} settings."
    if study.compared.empty:
        return f"{text} The ranges of ranks below say which encodings differ significantly."
    counts = study.compared["verdict"].value_counts()
    ends = joined([f"{number} {word}" for word, number in counts.items()])
    unit = study.endpoint.unit
    return (
        f"{text} Of {len(study.compared)} comparisons with `{study.baseline}`, in one family, the verdicts are: {ends} "
        f"(margin {study.endpoint.margin:g} {unit}{'s' * (study.endpoint.margin != 1)})."
    )


def _seed_notes(study: TunedStudy) -> list[str]:
    keys = [*settings(study.outcomes), "pe"]
    fewest = int(study.known.groupby(keys, sort=False, dropna=False)["seed"].nunique().min())
    if fewest >= ENOUGH:
        return list(filter(None, [few_runs(study.known["pe"].nunique(), fewest)]))
    return [
        f"Some encodings have {fewest} seed{'s' * (fewest != 1)}: the error rates of verdicts are simulated for "
        f"{ENOUGH} and more, and none is equivalent with fewer."
    ]


def _edge_notes(study: TunedStudy) -> list[str]:
    shares = study.known.groupby("pe", sort=False)["edge"].mean()
    wide = shares[shares > MOST_AT_EDGE]
    tried = (study.results.declared.tune or {}).get("rates") or []
    if wide.empty or len(tried) < 3:  # of two, each is an edge
        return []
    where = joined([f"`{name}` {share:.0%}" for name, share in wide.items()])
    return [f"The best rate is the lowest or the highest that was tried in many seeds: {where}. It may lie beyond."]


def _opening_figure(study: TunedStudy) -> list[Part]:
    """Return a figure that fits beside the answer: with several settings, comparisons of the last; or all seeds."""
    keys = settings(study.outcomes)
    ordered = sort_by_setting(study.known, keys)
    last = ordered[keys].iloc[-1:]
    if len(study.compared) and study.compared["low"].notna().any():
        shown = study.compared.merge(last, on=keys)
        where = settings_in_words(ordered, keys)[-1]
        caption = f"Differences from {study.baseline} at {where}, with 95 % intervals, not corrected"
        if len(shown):
            return [_forest(study, shown, caption)]
    best = study.known.merge(last, on=keys)
    order = best.groupby("pe", sort=False)["y"].mean().sort_values(kind="stable").index[:MOST_DRAWN]
    which = f"the best {MOST_DRAWN}" if best["pe"].nunique() > MOST_DRAWN else ""
    return [_runs(study, best[best["pe"].isin(order)], which)]


def _forest(study: TunedStudy, lines: pd.DataFrame, caption: str) -> Drawn:
    shown = lines[lines["verdict"] != Verdict.BOTH_UNSOLVED]
    kind = "octaves" if study.endpoint.kind == "steps" else "loss"
    return Drawn(plots.forest(shown, kind), caption, f"plots.forest(study.compared, {kind!r})")


def _runs(study: TunedStudy, runs: pd.DataFrame, which: str = "") -> Drawn:
    caption = f"{study.measured.capitalize()} of each seed{f', {which}' if which else ''}; a bar is their mean"
    if study.endpoint.kind == "steps":
        caption += ", an open mark a run that did not solve it"
    return Drawn(plots.runs(runs, study.endpoint.kind), caption, f"plots.runs(study.known, {study.endpoint.kind!r})")


def _plain_cells(study: TunedStudy) -> pd.DataFrame:
    """Return the cells without what their seeds chose."""
    cells = study.named(study.results.cells)
    return cells.drop(columns=[name for name in CHOSEN if name in setting_columns(cells)])


def _methods(study: TunedStudy) -> Section:
    outcomes, tune = study.outcomes, study.results.declared.tune or {}
    seeds = tuple(sorted(outcomes["seed"].unique()))
    tries = "the rates " + ", ".join(f"{float(rate):g}" for rate in tune.get("rates") or [])
    if scaled := tune.get("scaled"):
        pairs = ", ".join(f"{float(rate):g} @ {float(scale):g}" for rate, scale in scaled)
        tries += f" (one with a starting scale at rate @ scale {pairs})"
    parts: list[Part] = [
        f"{len(outcomes)} cells: {outcomes['pe'].nunique()} encodings; seeds {seeds_in_words(seeds)}. Every seed "
        f"trains each encoding at {tries}, goes on with the best by validation, and counts as one "
        "repetition of all that.",
        "Encodings are compared by paired differences within seeds; their variances are moderated by those of all "
        "pairs of a setting. Comparisons with a baseline are one family, corrected by Holm's method; ranks are from "
        "all pairs of a setting, corrected by that of Benjamini and Hochberg. Equivalent needs five seeds.",
    ]
    if study.command:
        parts.append(f"Trained with `{study.command}`.")
    load = "from pe_lab.report.tuned import TunedStudy; study = TunedStudy(frame.load(FOLDER))"
    parts.append(f"Figures are drawn after `from pe_lab.results import frame, plots`, `{load}`.")
    return Section("How it was compared", parts)


def _differences(study: TunedStudy) -> Section:
    """Return the comparisons with the baseline."""
    lines = study.compared
    if lines.empty:
        return Section("Differences")
    parts: list[Part] = []
    if lines["low"].notna().any():
        caption = f"Differences from {study.baseline} with 95 % intervals, not corrected; the grey band is the margin"
        parts.append(_forest(study, lines, caption))
    columns = [*settings(study.outcomes), "pe", "seeds", "difference", "low", "high", "p_holm", "p_equivalent_holm"]
    parts.append(Table(lines[[*columns, "verdict"]], f"Comparisons with {study.baseline}", "study.compared"))
    return Section("Differences", parts)


def _values(study: TunedStudy) -> Section:
    text = "An encoding ranks below all that are significantly better, and above all that are significantly worse."
    table = Table(study.ranked, f"Mean {study.measured}", "study.ranked")
    return Section("Values and ranks", [text, _runs(study, study.known), table])


def _over_training(study: TunedStudy) -> Section:
    """Return the loss after each declared number of epochs, and validation during the longest trainings."""
    cells, curves, parts = _plain_cells(study), study.named(study.results.curves), list[Part]()
    comparable = study.endpoint.kind == "loss"  # runs that solve their task stop
    if comparable and cells["epochs"].nunique() > 1:
        caption = "Test loss after so many epochs, each tuned for itself: means over seeds with 95 % t intervals"
        parts.append(Drawn(plots.over_epochs(cells), caption, "plots.over_epochs(cells)"))
    if comparable and not curves.empty and (curves["metric"] == "loss").any():
        longest = curves["epochs"] == curves["epochs"].max()
        drawn = curves[longest].drop(columns=[name for name in CHOSEN if name in curves])
        caption = "Validation loss of the longest trainings, at the rates that were chosen"
        parts.append(Drawn(plots.learning_curves(drawn), caption, "plots.learning_curves(curves)"))
    return Section("During training", parts)


def _rates(study: TunedStudy) -> Section:
    """Return how often each rate, and each scale, was the best of its seed."""
    known = study.known
    keys = [name for name in settings(study.outcomes) if known[name].nunique() > 1]
    names = [LR] + ["start_scale"] * int(known["start_scale"].notna().any() if "start_scale" in known else 0)
    tried = known.assign(choice=[_choice(line, names) for line in known[names].to_dict("records")])
    order = tried.sort_values(names)["choice"].unique()
    counts = pd.crosstab(tried["pe"], tried["choice"]).reindex(index=known["pe"].unique(), columns=order)
    counts = counts.assign(edge=[f"{known.loc[known['pe'] == pe, 'edge'].mean():.0%}" for pe in counts.index])
    what = "learning rate" + " @ starting scale" * (len(names) > 1)
    text = (
        f"For how many seeds each {what} was best{', over all settings' if keys else ''}. `edge` is the share of seeds "
        "whose best rate is the lowest or highest that was tried."
    )
    return Section("Learning rates", [text, Table(counts.reset_index(), "Best rates")])


def _choice(line: dict[str, float], names: list[str]) -> str:
    return " @ ".join(f"{line[name]:g}" for name in names if pd.notna(line[name]))


def _cost(study: TunedStudy) -> Section:
    """Return what each encoding cost, all tries included."""
    found = study.outcomes.groupby("pe", sort=False).agg(
        cells=("seed", "size"), steps=("trained_steps", "sum"), core_hours=("core_seconds", lambda x: x.sum() / 3600)
    )
    words = "Steps and core-hours of training, of all tries"
    return Section("Cost", [Table(found.reset_index(), words)])
