"""Whether any model is better than the best without position, or, on a task that does not need it, than a guess."""

import numpy as np
import pandas as pd

from pe_lab.data.score import BEST_FLOOR, BLIND_FLOORS, NO_GAP
from pe_lab.results.columns import merge_tables, setting_columns
from pe_lab.results.number_text import range_in_words

GUESS_METRICS = ("prior", "unigram")  # losses of models that do not look at the sequence
MIN_RIGHT = 0.05  # share of right answers below which no encoding counts as one that can do a task
MIN_LEARNED_SHARE = 0.1  # share of the way from a guess to the best possible loss, below which little is learned
COUNTING_METRICS = ("ngram", "neighbours")  # losses of models that count the tokens beside one, of texts
MIN_COUNTED_SHARE = 0.5  # the same share of the way to such a loss, which a language model can beat


def position_use(rows: pd.DataFrame) -> pd.Series:
    """Return `pe_lab.data.score.uses_position` of each cell as 1 or 0, and NaN for None."""
    level = _first_floor_loss(rows, BLIND_FLOORS)
    if "test_loss" not in rows:
        return level
    name = f"floor_{BEST_FLOOR}_loss"
    best = rows[name].astype(float).fillna(0) if name in rows else 0.0
    return (rows["test_loss"].astype(float) < level).astype(float).where(level - best > NO_GAP)


def not_learned_note(rows: pd.DataFrame, advice: bool = True) -> str:
    """Return sentences that say on which tasks no model uses position, or has learned much; empty if on none.

    Where the best loss without position is unknown or the best possible one, models are compared with a guess instead:
    see `learned_share`. On texts little is learned by models that are nearer to it than to the loss of counting.

    Args:
        rows: cells.
        advice: whether a last sentence says what to do.
    """
    rows = rows.reset_index(drop=True)
    used, share, counted = position_use(rows), learned_share(rows), _counted_share(rows)
    tasks = rows["data"] if "data" in rows else pd.Series("", rows.index)
    best, most, of_counts = (
        shares.dropna().groupby(tasks, sort=False).max()
        for shares in (used, share.where(used.isna()), counted.where(used.isna() & (share > 0)))
    )
    without, little = list(best.index[best == 0]), most[most < MIN_LEARNED_SHARE]
    near_guess = of_counts[of_counts < MIN_COUNTED_SHARE].drop(little.index, errors="ignore")
    sentences, count = [], len(best) + len(most)
    if without:
        where = "" if len(without) == count else f" on {', '.join(without)}"
        levels = f" ({level_in_words(rows)}); the lowest is {rows['test_loss'].min():.3g} nats" if count == 1 else ""
        sentences.append(
            f"No model here has learned the task{where}: no test loss is below the best without position{levels}."
        )
    for task, most_of_task in little.items():
        where = "" if count == 1 else f" on {task}"
        sentences.append(
            f"No model here has learned anything{where}: no test loss is below that of a guess without the sequence."
            if most_of_task <= 0
            else _little_in_words(where, rows.loc[share[used.isna() & (tasks == task)].idxmax()], (BEST_FLOOR,))
        )
    for task in near_guess.index:
        where = "" if count == 1 else f" on {task}"
        sentences.append(_little_in_words(where, rows.loc[counted[tasks == task].idxmax()], COUNTING_METRICS))
    if sentences and advice:
        sentences.append("Train longer before you compare encodings.")
    return " ".join(sentences)


def _little_in_words(where: str, best: pd.Series, floors: tuple[str, ...]) -> str:
    """Say that little is learned, by the test loss of the cell that has learned most and what it is to be seen against.

    Args:
        where: the task, as a phrase; empty for the only one.
        best: the cell.
        floors: the losses that a model could reach, of which the first is told that the cell has.
    """
    name, level = next(
        (floor, best[f"floor_{floor}_loss"]) for floor in floors if pd.notna(best.get(f"floor_{floor}_loss"))
    )
    guess = next(best[f"floor_{floor}_loss"] for floor in GUESS_METRICS if pd.notna(best.get(f"floor_{floor}_loss")))
    better = "the best possible" if name == BEST_FLOOR else "a model that only counts which tokens stand side by side"
    return (
        f"These models have learned little{where}: the best has a test loss of {best['test_loss']:.3g} nats, a guess "
        f"without the sequence {guess:.3g}, and {better} {level:.3g}."
    )


def partly_learned(rows: pd.DataFrame) -> str:
    """Return a sentence on the settings in which no model has learned the task; empty if those are none, or all.

    Args:
        rows: cells.
    """
    if rows.empty:
        return ""
    names = setting_columns(rows)
    settings = (
        rows[names].assign(used=position_use_in_setting(rows, names)).dropna(subset="used").drop_duplicates(names)
    )
    if settings.empty or not 0 < (without := int((settings["used"] == 0).sum())) < len(settings):
        return ""
    where = f"In {without} of {len(settings)} settings"
    return f"{where} no encoding has learned the task: no mean test loss is below the best without position."


def none_learned(rows: pd.DataFrame) -> bool:
    """Return whether no encoding has learned the task in any setting of which this is known, by mean test losses.

    All settings are then compared, see `filter_learned_cells`.
    """
    if rows.empty:  # without the columns of metrics
        return False
    used = position_use_in_setting(rows, setting_columns(rows)).dropna()
    return len(used) > 0 and bool((used == 0).all())


def compared_settings_note(rows: pd.DataFrame) -> str:
    """Say which settings are compared, where there are some in which no encoding has learned the task; else nothing."""
    if none_learned(rows):
        several = len(rows[setting_columns(rows)].drop_duplicates()) > 1
        left_out = "No encoding has learned the task in any setting, so none is left out. " * several
        return f"{left_out}These verdicts are on models that have not learned the task."
    return "Settings in which no encoding has learned the task are left out." if partly_learned(rows) else ""


def level_in_words(rows: pd.DataFrame) -> str:
    """Return the best loss without position, in nats, or its range; and whether it knows what is held out."""
    level = _first_floor_loss(rows, BLIND_FLOORS).dropna()
    if level.empty:
        return ""
    known = f"floor_{BLIND_FLOORS[0]}_loss"
    split = ", even knowing which sequences are held out" if known in rows and rows[known].notna().any() else ""
    return f"{range_in_words(level, '.3g', ' to ')} nats{split}"


def over_seeds(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return cells whose test losses and floors are the means over the seeds of their encoding and setting.

    Args:
        rows: cells.
        names: the columns that make a setting.
    """
    losses = [name for name in rows if name == "test_loss" or (name.startswith("floor_") and name.endswith("_loss"))]
    keys = [name for name in (*names, "pe") if name in rows]
    if not losses or not keys:
        return rows
    return rows.assign(**rows.groupby(keys, dropna=False)[losses].transform("mean"))


def position_use_in_setting(rows: pd.DataFrame, names: list[str]) -> pd.Series:
    """Return 1 for each row in whose setting the mean loss of an encoding shows that it uses position; else 0 or NaN.

    See `position_use`.

    Args:
        rows: cells.
        names: the columns that make a setting; none: all rows are of one.
    """
    used = position_use(over_seeds(rows, names))
    if not names:
        return pd.Series(used.max(), rows.index)
    return used.groupby([rows[name] for name in names], dropna=False).transform("max")


def filter_learned_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of the settings in which a model has learned the task; all cells where those are none.

    Settings of which it is unknown are kept, see `position_use`.
    """
    if rows.empty:  # without the columns of metrics
        return rows
    unlearned = position_use_in_setting(rows, setting_columns(rows)) == 0
    return rows if unlearned.all() else rows[~unlearned]


def filter_learned_comparisons(lines: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the comparisons of the settings in which a model has learned the task; all where those are none.

    Args:
        lines: a table of comparisons, with columns of the settings of the cells.
        rows: cells.
    """
    names = [name for name in setting_columns(rows) if name in lines]
    if not names or not partly_learned(rows):
        return lines
    kept = merge_tables(lines, filter_learned_cells(rows)[names].drop_duplicates(), names)
    kept.attrs = lines.attrs  # the size of their family, which corrects them
    return kept


def has_learned(rows: pd.DataFrame) -> pd.Series:
    """Return `position_use` of each cell; where that is NaN, whether it is better than a guess: 1, 0 or NaN."""
    used, share = position_use(rows), learned_share(rows)
    return used.fillna((share > 0).astype(float).where(share.notna()))


def learned_share(rows: pd.DataFrame) -> pd.Series:
    """Return how much of the way from a guess to the best possible loss each cell has gone; at most 1.

    A guess does not look at the sequence (GUESS_METRICS). NaN where its loss is unknown. Where the best possible loss
    is unknown, 1 for a loss below the guess and 0 for others.
    """
    guess, best = _first_floor_loss(rows, GUESS_METRICS), _first_floor_loss(rows, (BEST_FLOOR,))
    if "test_loss" not in rows:
        return pd.Series(np.nan, rows.index)
    gained = guess - rows["test_loss"].astype(float)
    share = (gained / (guess - best)).where(guess - best > NO_GAP)
    return share.where(best.notna(), (gained > 0).astype(float).where(gained.notna()))


def _counted_share(rows: pd.DataFrame) -> pd.Series:
    """Return how much of the way from a guess to the loss of counting each cell has gone; NaN without that loss."""
    guess, counting = _first_floor_loss(rows, GUESS_METRICS), _first_floor_loss(rows, COUNTING_METRICS)
    if "test_loss" not in rows:
        return pd.Series(np.nan, rows.index)
    return ((guess - rows["test_loss"].astype(float)) / (guess - counting)).where(guess - counting > NO_GAP)


def _first_floor_loss(rows: pd.DataFrame, floors: tuple[str, ...]) -> pd.Series:
    """Return the loss of the first of some floors that each cell has."""
    level = pd.Series(np.nan, rows.index)
    for floor in reversed(floors):
        if (name := f"floor_{floor}_loss") in rows:
            level = rows[name].astype(float).fillna(level)
    return level
