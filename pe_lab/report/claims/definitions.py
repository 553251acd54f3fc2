"""The ten claims, and how each is measured."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from pe_lab import statistics
from pe_lab.report.claims.parts import MARGIN, Found, Part, above, below, exact, near, p_above, paired
from pe_lab.report.claims.studies import (
    MissingError,
    Studies,
    by_layer,
    by_length,
    deepest,
    entropy_by_length,
    require_encodings,
    rows_of_task,
)
from pe_lab.results.pooling import pool

# accuracies on `pattern`, as published
CLAIMED = {"learnable": 0.95, "relative_bias": 0.93, "continuous": 0.89, "sinusoidal": 0.78, "none": 0.35}


def lowest(studies: Studies) -> Found:
    """Compare every encoding with `learnable` in every setting, and test that `sininit` is close to it over all."""
    cells = studies["depth_epochs_pe"].cells
    require_encodings(cells["pe"], "learnable", "sininit", "rope")
    losses = statistics.wide(cells)
    settings = [name for name in losses.index.names if name != "seed"]
    parts: Found = []
    for key, table in losses.groupby(level=settings, sort=False, dropna=False):
        setting = ", ".join(f"{name} {value}" for name, value in zip(settings, key, strict=True) if name != "data")
        differences = table.sub(table["learnable"], axis=0).droplevel(settings)
        others = [pe for pe in table if pe != "learnable"]
        parts += [above(f"{setting}: `{pe}` − `learnable`", differences[pe].dropna()) for pe in others]
    means = losses.groupby(level=settings, sort=False, dropna=False).mean()
    first = int((means.idxmin(axis=1) == "learnable").sum())
    means_of_seeds = pool(cells)
    pooled = statistics.wide(means_of_seeds.rows, means_of_seeds.metric).droplevel("settings")
    behind = paired(pooled["sininit"], pooled["learnable"]).dropna()
    close = near(f"over all settings, `sininit` − `learnable` (close: within ±{MARGIN})", behind, 0.0)
    rope = above("over all settings, `rope` − `learnable`", paired(pooled["rope"], pooled["learnable"]).dropna())
    return [f"`learnable` has the lowest mean in {first} of {len(means)} settings", close, rope.words, *parts]


def ranking(studies: Studies) -> Found:
    """Compare accuracies on `pattern` with the published ones, and neighbours in the ranking with each other."""
    cells = rows_of_task(studies["pattern"].cells, "pattern")
    require_encodings(cells["pe"], *CLAIMED)
    accuracy = {name: cells[cells["pe"] == name].set_index("seed")["test_accuracy"] for name in CLAIMED}
    figures = [near(f"`{name}` (claimed {claimed})", accuracy[name], claimed) for name, claimed in CLAIMED.items()]
    order = [above(f"`{one}` − `{other}`", paired(accuracy[one], accuracy[other])) for one, other in pairwise(CLAIMED)]
    return [*figures, *order]


def carried(studies: Studies) -> Found:
    """Compare accuracies at the longest length with those at the training length."""
    records = rows_of_task(studies["pattern"].records, "pattern")
    found: Found = []
    for name, test in (("relative_bias", above), ("continuous", above), ("sinusoidal", above), ("learnable", below)):
        curve = by_length(records, name, "accuracy")
        longest = curve.columns.max()
        found.append(test(f"change of `{name}` at {longest:g} ×", curve[longest] - curve[1.0], -MARGIN))
    return found


def fades(studies: Studies) -> Found:
    """Compare how well position can be decoded after the last layer with that at the embedding."""
    records = deepest(studies["layers"].records)
    found: Found = []
    for name in ("sinusoidal", "learnable", "continuous", "none"):
        wide = by_layer(records, name, "position", "r2", "pre")
        last = wide.columns.max()
        found.append(
            f"R² of `{name}` {wide[0].mean():.3f} at the embedding, {wide[last].mean():.3f} after layer {last:g}"
        )
        if name != "none":
            found.append(below("its change", wide[last] - wide[0], -MARGIN))
    return found


def extrapolates(studies: Studies) -> Found:
    """Compare losses, and the growth of attention's entropy, with `rope` at the longest length."""
    records = studies["extrapolation"].records
    longest = records[records["kind"] == "length"]["length"].max()
    rope = by_length(records, "rope", "loss")[longest]
    found: Found = [
        below(f"loss at {longest:g} ×, `{name}` − `rope`", paired(by_length(records, name, "loss")[longest], rope))
        for name in ("rse", "exposb")
    ]
    entropy = {name: entropy_by_length(records, name) for name in ("stick_breaking", "rope")}
    stick, rope = (values[longest] - values[1.0] for values in entropy.values())
    found.append(
        below(f"growth of attention's entropy from 1 to {longest:g} ×, `stick_breaking` − `rope`", stick - rope)
    )
    ends = [f"`{name}` {values[1.0].mean():.2f}, {values[longest].mean():.2f}" for name, values in entropy.items()]
    return [*found, f"entropy in nats at 1 and the longest: {', '.join(ends)}"]


def blind(studies: Studies) -> Found:
    """Measure whether models without encoding notice a shuffle, untrained and trained on `pattern`."""
    none = studies.audit().loc["none"]
    measure = "effect of shuffling over that of replacing, untrained, float64"
    both, causal = none["order_bidirectional"], none["order_causal"]
    cells = rows_of_task(studies["pattern"].cells, "pattern")
    trained = cells[cells["pe"] == "none"].set_index("seed")
    words = "trained on `pattern`, loss above the position-blind floor"
    return [
        exact(f"{measure}: bidirectional {both:.1e}", both < 1e-9),
        exact(f"causal {causal:.3f}", causal > 1e-3),
        above(words, trained["test_loss"] - trained["floor_position_blind_loss"], -MARGIN),
    ]


def longer(studies: Studies) -> Found:
    """Compare exact match on unseen lengths of three tasks."""
    tasks = []
    for study, names in (("lengths", ("copy", "reverse")), ("lengths_repeat", ("repeat",))):
        records = studies[study].records
        parts = [rows_of_task(records, name) for name in names]
        unseen = pd.concat([part[(part["metric"] == "exact_match") & (part["length"] > 1)] for part in parts])
        tasks.append(unseen.groupby(["data", "pe", "seed"])["value"].mean().unstack("pe"))
    whole = pd.concat(tasks)
    require_encodings(whole.columns, "none", "t5", "alibi", "rope", "sinusoidal")
    found: Found = ["exact match on unseen lengths, mean over the three tasks"]
    for name in ("none", "t5"):
        for other in ("alibi", "rope", "sinusoidal"):
            difference = (whole[name] - whole[other]).unstack("data").dropna().mean(axis=1)
            found.append(above(f"`{name}` − `{other}`", difference))
    for task, line in whole.groupby("data").mean().iterrows():
        found.append(f"{task}: " + ", ".join(f"`{name}` {value:.3f}" for name, value in line.items()))
    return found


def collapses(studies: Studies) -> Found:
    """Compare effective rank, entropy of attention and gradient norm of the last layer with the first one's."""
    records = deepest(studies["layers"].records)
    found: Found = []
    for norm in ("pre", "post"):
        for probe, metric, name in (
            ("rank", "effective_rank", "effective rank"),
            ("attention", "entropy", "entropy of attention"),
            ("rank", "gradient_parameters", "gradient norm"),
        ):
            wide = by_layer(records, "rope", probe, metric, norm)
            first, last = wide.columns.min(), wide.columns.max()
            ratio = np.log(wide[last] / wide[first])
            low, high = np.exp(statistics.interval(ratio))
            words = (
                f"{norm}-norm, `rope`: {name} {wide[first].mean():.2f} in layer {first:g}, {wide[last].mean():.2f} in "
                f"layer {last:g}, ratio {np.exp(ratio.mean()):.2f} [{low:.2f}, {high:.2f}]"
            )
            half = p_above(-ratio, -np.log(0.5)), p_above(ratio, np.log(0.5))
            found.append(Part(f"{words}, against one half", *half) if metric == "effective_rank" else words)
    return found


def harmless(studies: Studies) -> Found:
    """Measure how close the subspaces of word and position are, and how states change when a phrase is shifted."""
    records = deepest(studies["layers"].records)
    found: Found = []
    for name in ("sinusoidal", "learnable", "continuous"):
        own, chance = (
            by_layer(records, name, "subspace", metric, "pre") for metric in ("mean_cosine", "mean_cosine_random")
        )
        words = f"`{name}`: cosine of the subspaces − that of random ones"
        found.append(below(words, (own - chance).mean(axis=1), MARGIN))
        shifted = by_layer(records, name, "subspace", "moved_by_1", "pre")
        words = f"`{name}`: change of the states, over their norm, when shifted by one position"
        found.append(below(words, shifted[shifted.columns.max()], MARGIN))
    return found


def good(studies: Studies) -> Found:
    """Correlate how many of six properties an encoding has with its loss at the largest depth."""
    has = _properties(studies.audit())
    cells = studies["all_encodings"].cells
    depth = cells["depth"].max()
    losses = cells[cells["depth"] == depth].pivot(index="seed", columns="pe", values="test_loss")
    losses = losses[[name for name in losses if name in has.index]].dropna()
    if losses.empty:
        raise MissingError("needs encodings that share seeds, and an audit of them")
    both = has.loc[list(losses)].assign(count=has.sum(axis=1), loss=losses.mean())
    once = both.groupby(groups(losses))[["count", "loss"]].mean()
    if len(once) < 3 or (once.nunique() == 1).any():
        raise MissingError("needs encodings that differ in their properties and in their losses")
    rho, p = stats.spearmanr(once["count"], once["loss"])
    words = (
        f"{len(both)} encodings at depth {depth}, of which those whose losses differ by less than "
        f"{MARGIN} in every seed count once, which makes {len(once)}: Spearman's ρ between the number of the six "
        f"properties that an encoding has (audit) and its loss {rho:+.2f} (the claim asks for < 0)"
    )
    found: Found = [Part(words, p / 2 if rho < 0 else 1 - p / 2, p / 2 if rho > 0 else 1 - p / 2)]
    names = ", ".join(f"`{name}`" for name in both.index[both["count"] == len(has.columns)])
    found.append(f"all six: {names or 'none'}")
    for name in has:
        present, absent = both.loc[both[name], "loss"], both.loc[~both[name], "loss"]
        if len(absent):
            found.append(
                f"{name}: mean loss {present.mean():.3f} with it ({len(present)}), {absent.mean():.3f} without"
            )
    return found


def _properties(audit: pd.DataFrame) -> pd.DataFrame:
    """Return which of the six properties each encoding has."""
    return pd.DataFrame(
        {
            "unique": audit["uniqueness"] > 1e-6,
            "consistent": audit["consistency"] < 1e-6,
            "order-sensitive": audit["order_causal"] > audit.loc["none", "order_causal"] + 1e-6,
            "small": audit["size"] < 1,
            "cheap": audit["time_1024"] < 2,
            "extends": audit["reach"] > 1,
        }
    )


def groups(losses: pd.DataFrame) -> pd.Series:
    """Return a number for each encoding, the same for those whose losses differ by less than the margin in every seed.

    They are often one function at this length: `rope_dynamic_ntk` is `rope` to the bit, and `integer` is `none` but for
    rounding. As points of a correlation they are not independent. Any two of a group are that close (complete linkage).

    Args:
        losses: a row per seed, a column per encoding.
    """
    if losses.shape[1] < 2:
        return pd.Series(1, index=losses.columns)
    distances = pdist(losses.T, "chebyshev")
    return pd.Series(fcluster(linkage(distances, "complete"), np.nextafter(MARGIN, 0), "distance"), losses.columns)


class Claim(NamedTuple):
    """A claim of the literature.

    Attributes:
        statement: the claim in words.
        measure: returns its parts; raises MissingError where a study is missing.
    """

    statement: str
    measure: Callable[[Studies], Found]


CLAIMS = (
    Claim("Learnable has the lowest test loss in every cell; sininit is close behind; RoPE and LRoPE trail.", lowest),
    Claim(
        "On `pattern`: learned absolute ≈ 95 %, relative bias ≈ 93, continuous ≈ 89, sinusoidal ≈ 78, none ≈ 35.",
        ranking,
    ),
    Claim("Relative bias, continuous and sinusoidal carry over to unseen lengths; learned absolute does not.", carried),
    Claim("Position added only at the input fades with depth.", fades),
    Claim("RSE and ExpoSB extrapolate; stick-breaking keeps attention from thinning out as T grows.", extrapolates),
    Claim("Without any encoding a bidirectional model is order-blind; a causal one is not.", blind),
    Claim("NoPE and T5 beat ALiBi, rotary and sinusoidal on longer copy, reverse and repeat.", longer),
    Claim(
        "Deep stacks collapse: effective rank and attention entropy by layer, gradient norm over depth, pre and post.",
        collapses,
    ),
    Claim(
        "Adding position does no harm to the word: the subspaces are apart, and a shifted phrase keeps its states.",
        harmless,
    ),
    Claim(
        "A good encoding is unique, consistent across lengths, order-sensitive, small, cheap, and extends beyond "
        "training length.",
        good,
    ),
)
