"""A study whose learning rates are tuned for each seed, for a paper: see `pe_lab.report.paper`."""

from pathlib import Path
from typing import Any

from pe_lab.report import paper
from pe_lab.report.answer import place
from pe_lab.report.effort import identity_of
from pe_lab.report.paper import CaptionedPlot, escaped
from pe_lab.report.question import varied_columns
from pe_lab.report.standing import joined
from pe_lab.report.tuned import TunedStudy, forest, seed_values
from pe_lab.results.columns import sort_by_setting
from pe_lab.results.learned import not_learned
from pe_lab.results.tuned_outcomes import edge_note, seed_note, settings
from pe_lab.statistics import FEWEST_SEEDS, Verdict
from pe_lab.statistics.comparisons import counted
from pe_lab.statistics.moderation import FEWEST_ENCODINGS
from pe_lab.statistics.pairs import NUGGET


def write(study: TunedStudy, folder: Path) -> list[str]:
    """Write all files, and return their names.

    Raises:
        ValueError: there is no cell, a file is there already, or a table of the study is missing or of another kind.
    """
    paper.require_new(folder)
    paper.require_cells(study.results)
    return paper.save(folder, _tables(study), _figures(study), methods(study))


def _tables(study: TunedStudy) -> dict[str, str]:
    """Return the table of outcomes, and that of comparisons with the baseline where there are any, by name."""
    keys, steps = settings(study.outcomes), study.endpoint.kind == "steps"
    ranked = sort_by_setting(study.ranked, keys)
    varied = varied_columns(ranked, keys)
    shown = ranked[[*varied, "pe", "runs"]].rename(columns={"pe": "encoding"})
    if steps:
        shown = shown.assign(solved=ranked["solved"], steps=[f"${value}$" for value in ranked["steps"]])
    else:
        shown = shown.assign(loss=[f"${value:.4f}$" for value in ranked["mean"]])  # digits of the interval
    shown = shown.assign(interval=[f"${text}$" if text else "" for text in ranked["95 % interval"]])
    if "ranks" in ranked:
        shown = shown.assign(ranks=ranked["ranks"].fillna(""))
    shares = ["solved runs with the exact 95 % interval of their share"] * steps
    means = f"{'geometric ' * steps}mean over seeds with its 95 % t interval"
    ranks = ["range of ranks that all pairs leave open"] * ("ranks" in ranked)
    what = "Steps to solve" if steps else "Test loss (nats)"
    caption = f"{what}{place(study.cells)}: {joined([*shares, means, *ranks])}"
    found = {"outcomes": paper.tabular(shown, caption, "tab:outcomes", varied)}
    if len(study.compared):
        caption = (
            f"{_differences(study)}, with 95 % intervals, which are not corrected for the number of comparisons, and "
            f"p values after Holm's correction over {counted(_tested(study), 'comparison')}"
        )
        lines = sort_by_setting(study.compared, keys)
        untested = lines["verdict"] == Verdict.BOTH_UNSOLVED
        lines[["difference", "low", "high"]] = lines[["difference", "low", "high"]].mask(untested)
        found["differences"] = paper.differences(lines, caption, keys)
    return found


def _figures(study: TunedStudy) -> dict[str, CaptionedPlot]:
    """Return the figures with their captions, by name."""
    steps = study.endpoint.kind == "steps"
    found = {} if steps else paper.curves(study.cells, "loss")
    unit, more = ("", "an open mark is a run that did not solve its task") if steps else (" (nats)", "lines are floors")
    caption = f"{study.measured.capitalize()}{unit} of each seed{place(study.cells)}; a bar is their mean, {more}"
    found["runs"] = seed_values(study, study.with_floors).plot, caption
    if len(study.drawn):
        caption = f"{_differences(study)}, with 95 % intervals, not corrected; the grey band is the margin"
        found["forest"] = forest(study, study.drawn, caption).plot, caption
    return found


def _differences(study: TunedStudy) -> str:
    what = "log2 of the steps to solve (octaves)" if study.endpoint.kind == "steps" else "test loss (nats)"
    return f"Paired differences in {what} from {study.baseline}{place(study.cells)}"


def _tested(study: TunedStudy) -> int:
    """Return the number of comparisons with the baseline that have a p value."""
    return int(study.compared["p_corrected"].notna().sum()) if len(study.compared) else 0


def methods(study: TunedStudy) -> str:
    """Return a paragraph in LaTeX: the settings, the rates, seeds, statistics, margin and versions of the study."""
    keys, known, tune = settings(study.outcomes), study.known, study.results.declared.tune or {}
    identity = identity_of(study.results)
    counts = known.groupby([*keys, "pe"], dropna=False)["seed"].nunique()
    encodings = known.groupby(keys, dropna=False)["pe"].nunique()
    number, unit = study.endpoint.margin, study.endpoint.unit
    notes = [not_learned(study.results.cells, advice=False), seed_note(known, advice=False)]
    notes.append(edge_note(known, study.rates, study.scaled_rates, advice=False))
    values: dict[str, Any] = paper.training(study.results, study.cells, counts) | {
        "rates": "at learning rates tuned for each encoding and seed",
        "tried": [f"{rate:g}" for rate in study.rates],
        "scaled": [f"{float(rate):g} and {float(scale):g}" for rate, scale in tune.get("scaled") or []],
        "fraction": _tried_for(tune),
        "solvable": study.endpoint.kind == "steps",
        "level": identity.get("solve.level"),
        "first": identity.get("solve.first"),
        "per_doubling": identity.get("solve.per_doubling"),
        "compares": encodings.max() > 1,
        "nugget": f"{NUGGET:g}",
        "moderated": FEWEST_ENCODINGS if encodings.max() >= FEWEST_ENCODINGS else 0,
        "fewest": FEWEST_SEEDS,
        "margin": f"{number:g} {unit}{'s' * (number != 1)}",
        "margin_source": "declared before training" if tune.get("margin") else "the default",
        "baseline": escaped(study.baseline or "") if _tested(study) else "",
        "comparisons": _tested(study),
        "diverged": len(study.outcomes) - len(known),
        "notes": [escaped(note) for note in notes if note],
    }
    return paper.rendered("tuned.tex", **values)


def _tried_for(tune: Any) -> str:
    """Return for how long all rates are tried, in LaTeX; empty if to the end."""
    if steps := tune.get("steps"):
        return f"{int(steps):,} steps, or to the end where that is earlier"
    share = float(tune.get("fraction") or 1)
    return rf"{share:.0%}".replace("%", r"\,\%") + " of the steps" if share < 1 else ""
