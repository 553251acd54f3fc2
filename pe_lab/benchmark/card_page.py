"""The page of a score card."""

import shlex

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_lab import config
from pe_lab.benchmark.card import Card
from pe_lab.benchmark.tasks import NAME, STUDY, tasks
from pe_lab.report.parts import Drawn, Part, Section, Table
from pe_lab.report.standing import joined
from pe_lab.results.plots import AS_WRITTEN, Plot
from pe_lab.results.verdicts import BETTER, UNDECIDED, WORSE

WORST = -0.5  # scores below are drawn there
MOST_LIKE = 10  # encodings in the table of those that are alike
COMPARED = ("task", "length", "other", "seeds", "difference", "low", "high", "margin", "verdict", "seeds_needed")
LEAST_MINUTES = 0.05  # that are named
DECIDED_WITH = "5..24"  # seeds of a comparison: twice as many as its study adds
MOST_SEEDS = 100  # that are recommended


def sections(card: Card, like: pd.DataFrame, minutes: float) -> list[Section]:
    """Return the parts of the page.

    Args:
        card: the results.
        like: from `resemblance`.
        minutes: that training and measuring took.
    """
    summary = card.summary()
    warning = not_learned(summary)
    parts: list[Part] = [*([f"**Note.** {warning}"] if warning else []), sentences(card), _made(card, minutes)]
    parts += [f"**Note.** {task} is left out: {reason}" for task, reason in card.left_out.items()]
    opening = Section(f"What is {card.pe} good for?", [*parts, _drawn(card)], opening=True)
    return [
        opening,
        _tasks(card, summary),
        _baseline(card),
        _everyone(card),
        _alike(card, like),
        _costs(card),
        _next(card),
    ]


def not_learned(summary: pd.DataFrame) -> str:
    """Say on which tasks the encoding has not learned to use position: its mean loss is not below the level.

    Args:
        summary: from `Card.summary`.
    """
    here = summary[(summary["length"] == 1) & (summary["score"] <= 0)]
    if here.empty:
        return ""
    return (
        f"Not learned at the training length: {joined(list(here['task']))}. There the mean loss is not below that of a "
        "model without position, and comparisons do not say which encoding is better."
    )


def sentences(card: Card) -> str:
    """Say where the encoding is better, worse, equivalent and undecided, against the baseline and against all."""
    lines = card.lines[(card.lines["length"] == 1) & (card.lines["other"] == card.baseline)]
    where = {word: list(lines["task"][_counted(lines) == word]) for word in (BETTER, WORSE, "equivalent", UNDECIDED)}
    words = [f"{_as(word)} `{card.baseline}` on {joined(names)}" for word, names in where.items() if names]
    against = f"`{card.pe}` is {'; '.join(words)}." if words else f"`{card.pe}` has no task with `{card.baseline}`."
    all_ = _counted(card.lines).value_counts()
    counts = [f"{all_.get(word, 0)} {word}" for word in (BETTER, WORSE, "equivalent", UNDECIDED)]
    return f"{against} Of its {len(card.lines)} comparisons with all {len(card.others)} encodings, at all lengths, " + (
        f"{joined(counts)}."
    )


def _as(word: str) -> str:
    return {"equivalent": "equivalent to", UNDECIDED: "not decided against"}.get(word, f"{word} than")


def _counted(lines: pd.DataFrame) -> pd.Series:
    """Return each verdict as one of four words: a difference within the margin counts as equivalent."""
    words = lines["verdict"].where(lines["verdict"].isin([BETTER, WORSE]), "equivalent")
    return words.where(~lines["verdict"].isin([UNDECIDED, "one seed", "no shared seed"]), UNDECIDED)


def _made(card: Card, minutes: float) -> str:
    """Say what a score is, and with which machines and versions the cells were made."""
    own = card.scores["pe"] == card.pe
    where = [f"Its own cells: {_machines(card.scores[own])}.", f"The others: {_machines(card.scores[~own])}."]
    took = [f"Training and measuring took {minutes:.1f} minutes."] if minutes >= LEAST_MINUTES else []
    score = f"{NAME}. Scores are shares of the way from a task's level without position to the best loss."
    return " ".join([score, *where, *took])


def _machines(rows: pd.DataFrame) -> str:
    """Return machines and versions of PyTorch, each once."""
    known = rows[["hardware", "torch"]].astype(object)
    pairs = dict.fromkeys(known.where(known.notna(), "unknown").itertuples(index=False, name=None))
    return joined([f"{hardware}, torch {torch}" for hardware, torch in pairs]) or "none"


@mpl.rc_context(AS_WRITTEN)
def _drawn(card: Card) -> Drawn:
    """Draw the mean scores of all encodings on each task in grey, and those of this one with intervals in colour."""
    summary = card.summary()
    summary = summary[summary["score"].notna()]
    others = card.scores[card.scores["pe"] != card.pe]
    means = others.groupby(["task", "length", "pe"])["score"].mean()
    figure = Figure(figsize=(5.2, 1.2 + 0.22 * len(summary)), layout="constrained")
    axes, names = figure.subplots(), []
    for row, own in enumerate(summary.itertuples()):
        names.append(own.task if own.length == 1 else f"{own.task}, {own.length:g} × as long")
        if (own.task, own.length) in means.index.droplevel("pe"):
            values = means.loc[(own.task, own.length)].clip(lower=WORST)
            axes.plot(values, np.full(len(values), row), "|", color="#8A8A8A", markersize=8)
        ends = pd.Series([own.low, own.high], dtype=float).fillna(own.score).clip(lower=WORST)
        axes.plot(ends, [row, row], "-", color="#0072B2", linewidth=2)
        axes.plot(max(own.score, WORST), row, "o", color="#0072B2", markersize=5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set(xlabel="score", xlim=(WORST - 0.05, 1.05))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    caption = f"Scores: {card.pe} (dot, with its 95 % interval) among all encodings (grey); below {WORST:g} drawn there"
    return Drawn(Plot(figure, card.summary()), caption, "")


def _tasks(card: Card, summary: pd.DataFrame) -> Section:
    asks = {task.name: task.asks for task in tasks()}
    shown = summary.assign(asks=summary["task"].map(asks))
    caption = "Mean score over seeds with its 95 % t interval, its parts, and verdicts against all other encodings"
    return Section("Every task", [Table(shown[["task", "asks", *summary.columns[1:]]], caption)])


def _baseline(card: Card) -> Section:
    lines = card.lines[card.lines["other"] == card.baseline]
    caption = f"{card.pe} minus {card.baseline}: difference of losses in nats, paired by seed, with 95 % t interval"
    return Section(f"Against {card.baseline}", [Table(lines[list(COMPARED)], caption)] if len(lines) else [])


def _everyone(card: Card) -> Section:
    """Count verdicts by other encoding; card.csv has every comparison."""
    counts = pd.crosstab(card.lines["other"], _counted(card.lines)).reindex(card.others).fillna(0).astype(int)
    words = [word for word in (BETTER, WORSE, "equivalent", UNDECIDED) if word in counts]
    caption = f"On how many tasks and lengths {card.pe} is better than each encoding, worse, equivalent, or undecided"
    text = "Each task is a family of comparisons with all encodings at all its lengths, corrected by Holm's method."
    table = counts[words].reset_index(names="encoding")
    return Section("Against each encoding", [text, Table(table, caption, "card.csv has every comparison")])


def _alike(card: Card, like: pd.DataFrame) -> Section:
    text = (
        "Correlation of scores over tasks and lengths, each standardized over all encodings; and nearness of ranks in "
        "the audit, whose measures need no training."
    )
    first = like.head(MOST_LIKE)
    nearest = like.sort_values("properties", ascending=False, kind="stable").head(MOST_LIKE)
    tables = [Table(first, "Most alike in scores"), Table(nearest, "Most alike in the audit")]
    return Section(f"What {card.pe} is like", [text, *tables])


def _costs(card: Card) -> Section:
    order = [card.pe, *(name for name in ("rope", "none") if name in card.others)]
    table = card.costs().loc[order].reset_index(names="encoding")
    caption = "Median over its cells; seconds are those of the machine that trained them"
    return Section("What it costs", [Table(table, caption)])


def _next(card: Card) -> Section:
    """List what to run for comparisons with the baseline that are undecided."""
    lines = card.lines[(card.lines["other"] == card.baseline) & (card.lines["verdict"] == UNDECIDED)]
    if lines.empty:
        return Section(
            "What to run next", [f"Every comparison with `{card.baseline}` is decided, or cannot be with seeds."]
        )
    adds = (
        f"A command adds the seeds that `{card.baseline}` has; where none stands, it has no more."
        if " " in card.pe
        else "A command adds seeds, look by look, until it is decided; what is shipped is not trained again."
    )
    text = (
        f"Undecided against `{card.baseline}`. The number of seeds is that which shows the observed difference with a "
        f"power of 80 %, or, where that is fewer, equivalence; more than {MOST_SEEDS} are not worth it. {adds}"
    )
    seeds = lines[["seeds_needed", "seeds_equivalent"]].min(axis=1).sort_values(kind="stable")
    lines = lines.loc[seeds.index]
    commands = [_command(card, task) for task in lines["task"]]
    table = pd.DataFrame(
        {
            "task": lines["task"],
            "length": lines["length"],
            "seeds": seeds.where(seeds <= MOST_SEEDS),
            "command": commands,
        }
    )
    return Section("What to run next", [text, Table(table, "Fewest seeds first")])


def _command(card: Card, task: str) -> str:
    """Return the command that adds seeds; with options, up to those of the baseline, and none if it has no more."""
    name, *options = card.pe.split()
    if options:
        here = card.scores[card.scores["task"] == task]
        own, others = (here.loc[here["pe"] == pe, "seed"].nunique() for pe in (card.pe, card.baseline))
        if others <= own:
            return ""
        words = [f"pe={name}", *(f"pe.{option}" for option in options), f"--tasks={task}", f"--seeds={others}"]
        return shlex.join(["python", "-m", "pe_lab.benchmark", *config.flags(), *words])
    words = [f"+study={STUDY}_{task}", f"pe={card.baseline},{name}", f"decide.seeds={DECIDED_WITH}"]
    return shlex.join(["python", "-m", "pe_lab.run", *config.flags(), "-m", *words])
