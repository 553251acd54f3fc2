"""What probes found in the layers of models: where position is read, and whether states collapse."""

import numpy as np
import pandas as pd

from pe_lab.report.best_candidates import capitalise, join_words
from pe_lab.report.parts import CaptionedFigure, Collapsible, Part, ReportTable, means_in_words
from pe_lab.results import plots
from pe_lab.results.columns import in_words, probes_as_trained, record_settings, sort_by_setting
from pe_lab.results.number_text import range_in_words
from pe_lab.results.panels import settings_in_words
from pe_lab.statistics import interval
from pe_lab.statistics.intervals import MIN_SHOWN_SEEDS

MAX_SETTINGS = 3  # whose shares are range_of_values one by one
MOSTLY = 0.9  # R² at which position is read
MORE = 0.1  # R² above that of the token alone
FINDINGS = {  # by probe: the metrics that answer its question
    "position": ("r2",),
    "attention": ("entropy_normalised",),
    "rank": ("token_cosine", "stable_rank", "effective_rank"),
    "subspace": ("position_share",),
}
SUMMARISED = ("r2", "token_cosine", "stable_rank", "effective_rank")  # metrics of the first screen
ENDS = {  # by metric: what the table calls its highest value over layers, or the lowest rank; and its decimals
    "token_cosine": ("highest cosine of two tokens", 2),
    "stable_rank": ("most variance in one direction, %", 0),
    "effective_rank": ("lowest effective rank", 0),
}
DRAWN = (("position", "r2"), ("rank", "token_cosine"))  # on the first screen: one, the other folded
FOLDED = ("rank", "stable_rank")  # below these
FOLDED_TITLES = {"token_cosine": "How alike two tokens become", "stable_rank": "Variance in one direction"}
SHORT_MEANINGS = {  # by metric: in captions
    "r2": "of a linear probe",
    "direction_share": "one over the stable rank",
    "token_cosine": "1: all are alike",
}
MEANINGS = {  # by metric
    "r2": "R² of position is that of a linear probe: 1 where the position of a token is read without error.",
    "entropy_normalised": "The normalised entropy is 0 for one token, and 1 if all are alike.",
    "token_cosine": "The cosine between the states of two tokens is 1 if all tokens have become alike.",
    "effective_rank": "The effective rank counts the dimensions that the states fill, the small ones almost as much as "
    "the large ones.",
    "stable_rank": "The stable rank is one over the largest share of the variance that a direction has.",
    "position_share": "The share of the variance of states that goes with position is between 0 and 1.",
}
APART, ALIKE = 0.5, 0.9  # the cosine of two tokens below which tokens are apart, and above which they are alike


def layer_records(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of probes that have layers, at the training length."""
    probes = probes_as_trained(records)
    return probes[probes["layer"].notna()] if len(probes) else probes


def layer_parts(records: pd.DataFrame) -> list[Part]:
    """Return what probes found: sentences and a table of the deepest models, figures, and a folded table of all.

    Sentences and the first table are left out where none of their metrics was measured.

    Args:
        records: the records, some of them of probes that have layers.
    """
    layered, records = layer_records(records), probes_as_trained(records)
    alone = records.loc[records["metric"] == "r2_from_token", "value"].mean()
    measured = {metric: _layer_means(_deepest(layered), metric) for metric in SUMMARISED}
    measured = {metric: layers for metric, layers in measured.items() if len(layers)}
    shown = list(layered[["probe", "metric"]].drop_duplicates().itertuples(index=False, name=None))
    drawn = [pair for pair in DRAWN if pair in shown] or shown[:1]
    parts: list[Part] = [_layer_figure(records, str(probe), str(metric)) for probe, metric in drawn[:1]]
    folded = [*drawn[1:], *([FOLDED] if FOLDED in shown and FOLDED not in drawn else [])]
    for probe, metric in folded:
        parts.append(Collapsible(FOLDED_TITLES[metric], [_layer_figure(records, probe, metric)]))
    if measured:
        parts = [_sentences(layered, measured, alone), *parts]
        parts.append(Collapsible("Numbers by encoding", [_summary(layered, measured)]))
    return [*parts, _ends(layered)]


def direction_shares(records: pd.DataFrame) -> pd.DataFrame:
    """Return records with the share of the variance in one direction, one over the stable rank, in its place."""
    ranks = records["metric"] == "stable_rank"
    return records.assign(
        value=records["value"].where(~ranks, 1 / records["value"]),
        metric=records["metric"].mask(ranks, "direction_share"),
    )


def _deepest(layered: pd.DataFrame) -> pd.DataFrame:
    """Return the records of the deepest models, with the settings that vary in words."""
    rows = layered[layered["depth"] == layered["depth"].max()] if "depth" in layered else layered
    return _with_settings(rows)


def _with_settings(rows: pd.DataFrame) -> pd.DataFrame:
    names = [name for name in record_settings(rows) if rows[name].nunique(dropna=False) > 1]
    rows = sort_by_setting(rows, names)
    return rows.assign(setting=settings_in_words(rows, names) if names else "")


def _layer_means(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return means over heads: a line per setting, encoding and seed, a column per layer."""
    rows = rows[rows["metric"] == metric]
    values = rows.groupby(["setting", "pe", "seed", "layer"], sort=False)["value"].mean().unstack("layer")
    return values.sort_index(axis=1)


def _over_seeds(layers: pd.DataFrame) -> pd.DataFrame:
    return layers.groupby(["setting", "pe"], sort=False).mean()


def _seeds_and_models(layered: pd.DataFrame) -> str:
    """Return how many seeds and which models a mean is over, in words."""
    rows = _deepest(layered)
    depth = f" of models of depth {rows['depth'].max():g}" if "depth" in layered else ""
    seeds = rows["seed"].nunique()
    return f"{f'means over {seeds} seeds' if seeds > 1 else 'one seed'}{depth}"


def _sentences(layered: pd.DataFrame, measured: dict[str, pd.DataFrame], alone: float) -> str:
    """Say where position is read, and whether states collapse, with ranges over encodings and settings."""
    means = {metric: _over_seeds(layers) for metric, layers in measured.items()}
    items = _where_read(means["r2"], measured["r2"], alone) if "r2" in means else []
    verdict, alike = "", ""
    if "token_cosine" in means:
        verdict, alike = _alike(means["token_cosine"], measured["token_cosine"])
    collapse = [alike] * bool(alike)
    if "stable_rank" in means:
        collapse += [f"{_one_direction(means['stable_rank'])}{_where_shallow(layered, means['stable_rank'])}."]
    items = [*collapse, *items]
    read = _everywhere_read(means["r2"]) if "r2" in means else ""
    lead = " ".join(filter(None, (read, f"{verdict}." * bool(verdict)))).removesuffix(".")
    lead = f"{lead} ({_seeds_and_models(layered)})" if lead else capitalise(_seeds_and_models(layered))
    return f"{lead}:" + "".join(f"\n- {item}" for item in items)


def _summary(layered: pd.DataFrame, measured: dict[str, pd.DataFrame]) -> ReportTable:
    """Return a line per setting and encoding, with half the width of the intervals of R²."""
    columns: dict[str, pd.Series] = {}
    if "r2" in measured:
        layers, means = measured["r2"], _over_seeds(measured["r2"])
        best = means.idxmax(axis=1)
        reached = (means >= MOSTLY).idxmax(axis=1).map("{:g}".format).where((means >= MOSTLY).any(axis=1), "never")
        first = dict.fromkeys(means.index, layers.columns[0])
        columns[f"R² of position at {_first(means)}"] = _with_half(layers, first)
        columns[f"layer with {MOSTLY:g}"] = reached
        columns["R² at the best layer"] = _with_half(layers, best.to_dict())
    for metric, (name, decimals) in ENDS.items():
        if metric in measured:
            values = 100 / measured[metric] if metric == "stable_rank" else measured[metric]
            means = _over_seeds(values)
            at = means.idxmin(axis=1) if metric == "effective_rank" else means.idxmax(axis=1)
            columns[name] = _with_half(values, at.to_dict(), decimals)
    table = pd.DataFrame(columns).reset_index()
    table = table if table["setting"].any() else table.drop(columns="setting")
    words = _seeds_and_models(layered)
    rank = "; the effective rank counts the dimensions that the states fill" * ("effective_rank" in measured)
    half = "; ± is half the width of a 95 % t interval" * bool(_deepest(layered)["seed"].nunique() >= MIN_SHOWN_SEEDS)
    return ReportTable(table, f"{words[0].upper()}{words[1:]}{half}{rank}")


def _with_half(layers: pd.DataFrame, at: dict[tuple[str, str], float], decimals: int = 2) -> pd.Series:
    """Return the mean at a layer of each setting and encoding with half the width of its interval, in words."""
    range_of_values = {}
    for key, layer in at.items():
        values = layers.loc[key, layer].dropna()
        half = np.ptp(interval(values)) / 2 if len(values) >= MIN_SHOWN_SEEDS else np.nan
        range_of_values[key] = f"{values.mean():.{decimals}f}" + f" ± {half:.{decimals}f}" * bool(np.isfinite(half))
    return pd.Series(range_of_values).rename_axis(["setting", "pe"])


def _ends(layered: pd.DataFrame) -> Collapsible:
    """Return a table of what every probe measured at the first and the last layer of the deepest models."""
    rows, columns, meanings = _deepest(layered), dict[str, pd.Series](), list[str]()
    for probe in rows["probe"].unique():
        of_probe = rows[rows["probe"] == probe]
        for metric in FINDINGS.get(probe, (str(of_probe["metric"].iloc[0]),)):
            layers = _over_seeds(_layer_means(of_probe, metric))
            if layers.empty:
                continue
            ends = layers.iloc[:, [0, -1]].map(lambda value: f"{value:.2f}" if value < 10 else f"{value:.1f}")
            columns[in_words(metric)] = ends.agg(" → ".join, axis=1).str.replace("-0.00", "0.00")
            meanings += [MEANINGS[metric]] if metric in MEANINGS else []
    table = pd.DataFrame(columns).reset_index()
    table = table if table["setting"].any() else table.drop(columns="setting")
    words = _seeds_and_models(layered)
    caption = f"{words[0].upper()}{words[1:]}, from the first to the last layer"
    return Collapsible("First and last layer, and what is measured", [ReportTable(table, caption), *meanings])


def _layer_figure(records: pd.DataFrame, probe: str, metric: str) -> CaptionedFigure:
    source, rows = "results.records", records
    if "depth" in records and records["depth"].nunique() > 1:
        rows, source = records[records["depth"] == records["depth"].max()], f"{source}.query('depth == depth.max()')"
    if metric == "stable_rank":
        rows, source, metric = direction_shares(rows), f"layers.direction_shares({source})", "direction_share"
    drawn, words = plots.layer_curves(rows, probe, metric), in_words(metric)
    meaning = f" ({SHORT_MEANINGS[metric]})" if metric in SHORT_MEANINGS else ""
    caption = f"{words[0].upper()}{words[1:]}{meaning}, by layer: {means_in_words(drawn)}"
    return CaptionedFigure(drawn, caption, f"plots.layer_curves({source}, {probe!r}, {metric!r})")


def _everywhere_read(layers: pd.DataFrame) -> str:
    """Say by which layer position can be read with every encoding; empty where one is never read.

    Args:
        layers: R² by setting and encoding, a column per layer.
    """
    reached = layers >= MOSTLY
    if not reached.any(axis=1).all():
        return ""
    last = reached.idxmax(axis=1).max()
    where = _first(layers) if last == layers.columns[0] else f"layer {last:g} of {layers.columns.max():g}"
    return f"With every encoding, position can be read off the states by {where} (R² of {MOSTLY:g} or more)."


def _where_read(layers: pd.DataFrame, seeds: pd.DataFrame, alone: float) -> list[str]:
    """Say with which encodings position is read at the embedding, and where the others reach it: one or two items.

    Args:
        layers: R² by setting and encoding, a column per layer.
        seeds: R² of each seed, with the same columns.
        alone: R² from the token alone; NaN: unknown.
    """
    start, level = layers.iloc[:, 0], alone if np.isfinite(alone) else 0.0
    lowest = seeds.iloc[:, 0].groupby(["setting", "pe"], sort=False).agg(lambda values: interval(values.dropna())[0])
    more = start.groupby(level="pe", sort=False).min() > level + MORE
    carried, built = list(more.index[more]), list(more.index[~more])
    here = start[start.index.get_level_values("pe").isin(carried)]
    unsure = here[lowest[here.index] <= alone]  # the interval reaches the level of the token
    sure = here[~here.index.isin(unsure.index)]

    def range_of_values(values: pd.Series, names: list[str]) -> str:
        return range_in_words(values[values.index.get_level_values("pe").isin(names)], ".2f")

    first, later, token = list[str](), list[str](), f"; from the token alone {alone:.2f}" * bool(np.isfinite(alone))
    if len(sure):
        settings: dict[str, list[str]] = {}
        for setting, pe in sure.index:
            settings.setdefault(pe, []).append(setting)
        partly = set(unsure.index.get_level_values("pe"))
        names = join_words([f"`{pe}`" + f" ({join_words(where)})" * (pe in partly) for pe, where in settings.items()])
        value = f"R² {range_in_words(sure, '.2f')}{token}"
        first.append(f"With {names} a linear probe reads position at {_first(layers)} ({value}).")
    for (setting, pe), value in unsure.items():
        where = f" ({setting})" * bool(setting)
        few = seeds.loc[(setting, pe)].iloc[:, 0].count() < MIN_SHOWN_SEEDS
        extent = "mean of two seeds" if few else f"with an interval from {lowest[setting, pe]:.2f}"
        reads = "it does" if first else f"a linear probe reads position at {_first(layers)}"
        first.append(f"Whether {reads} with `{pe}`{where} is undecided (R² {value:.2f}, {extent}).")
    if built:
        names = join_words([f"`{pe}`" for pe in built])
        of_built = layers[layers.index.get_level_values("pe").isin(built)] >= MOSTLY
        reach = of_built.idxmax(axis=1)[of_built.any(axis=1)]
        never = [f"`{pe}`" for pe in built if not of_built.xs(pe, level="pe").any(axis=None)]
        but = f", not with {join_words(never)}" * bool(never)
        layer = range_in_words(reach, "g")
        by = f": layers build it up, to {MOSTLY:g} by layer {layer} of {layers.columns.max():g}{but}"
        there = "there" if first else f"at {_first(layers)}"
        value = f"R² {range_of_values(start, built)}{'' if len(sure) else token}"
        start_words = f"With {names} position is not read {there} ({value})"
        later.append(f"{start_words}{by if len(reach) else ''}.")
    falls = (layers.max(axis=1) - layers.iloc[:, -1]).round(2)
    if falls.max() > 0:
        later.append(f"Towards the last layer R² falls again, by up to {falls.max():.2f}.")
    return [" ".join(sentences) for sentences in (first, later) if sentences]


def _alike(layers: pd.DataFrame, seeds: pd.DataFrame) -> tuple[str, str]:
    """Return whether models collapse, in words, and a sentence on how alike tokens become in a layer.

    Args:
        layers: the cosine of two tokens by setting and encoding, a column per layer.
        seeds: the cosine of each seed, with the same columns.
    """
    most = layers.max(axis=1)
    setting, pe = most.idxmax()
    values = seeds.loc[(setting, pe), layers.loc[(setting, pe)].idxmax()].dropna()
    low, high = interval(values)
    extent = f", 95 % interval {low:.3f} to {high:.3f}" * bool(len(values) >= MIN_SHOWN_SEEDS)
    rule = f"collapse would be more than {ALIKE:g}, and less than {APART:g} is none"
    if most.max() < APART:
        return (
            "By the cosine of two tokens, the models do not collapse",
            f"The cosine of two tokens is at most {most.max():.3f} in any layer (`{pe}`{extent}; {rule}).",
        )
    if most.min() > ALIKE:
        return (
            "The models collapse",
            f"All tokens become alike: the cosine of two tokens reaches {range_in_words(most, '.2f')} ({rule}).",
        )
    alike = [f"`{pe}`" for pe in dict.fromkeys(most[most > ALIKE].index.get_level_values("pe"))]
    with_ = f", above {ALIKE:g} with {join_words(alike)}" * bool(alike)
    reach = f"Tokens become more alike: the cosine of two tokens reaches {range_in_words(most, '.2f')}{with_} ({rule})."
    return "The models collapse in part", reach


def _one_direction(layers: pd.DataFrame) -> str:
    """Say how much of the variance one direction has at most, one over the stable rank, without a full stop.

    Args:
        layers: the stable rank by setting and encoding, a column per layer.
    """
    most, first = _highest_shares(100 / layers.min(axis=1)), range_in_words(100 / layers.iloc[:, 0], ".0f")
    return f"One direction has at most {most} of the variance of a layer's states; at {_first(layers)}, {first} %"


def _where_shallow(layered: pd.DataFrame, deep: pd.DataFrame) -> str:
    """Say how much of the variance one direction has at most in the least deep models; nothing of a single depth.

    Args:
        deep: the stable rank of the deepest models, by setting and encoding, a column per layer.
    """
    if "depth" not in layered or layered["depth"].nunique() < 2:
        return ""
    depth = layered["depth"].min()
    share = 100 / _over_seeds(_layer_means(_with_settings(layered[layered["depth"] == depth]), "stable_rank")).min(
        axis=1
    )
    added = (100 / deep.min(axis=1) - share).dropna().max()
    deepest = f"depth {layered['depth'].max():g} adds at most {added:.0f} points to depth {depth:g}"
    return f"; {deepest}" if added > 0 else f"; depth {layered['depth'].max():g} adds nothing to depth {depth:g}"


def _highest_shares(shares: pd.Series) -> str:
    """Return the highest of shares in per cent, or that of each of a few settings."""
    groups = list(shares.groupby(level="setting", sort=False))
    if not 1 < len(groups) <= MAX_SETTINGS:
        return f"{shares.max():.0f} %"
    return join_words([f"{part.max():.0f} % with {setting}" for setting, part in groups])


def _first(layers: pd.DataFrame) -> str:
    return "the embedding" if layers.columns[0] == 0 else f"layer {layers.columns[0]:g}"
