"""Ten claims of the literature, each with what was measured and a verdict.

A claim is a set of parts, each a comparison that can come out one way or the other. It is supported if every part
holds, refuted if one is contradicted, not separable if neither, and not testable at this budget if what it needs was
not trained, or with one seed only. Comparisons are paired over seeds; several in one claim are corrected by Holm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from pe_lab.ledger.files import write_text
from pe_lab.report.page import html, markdown
from pe_lab.report.sections import Section, Table
from pe_lab.results import frame, statistics
from pe_lab.results.frame import Results
from pe_lab.results.table import place

MARGIN = 0.05  # of an accuracy, an R2 or a cosine: a smaller change is none
HOLDS, FAILS, OPEN = "holds", "contradicted", "open"


class MissingError(LookupError):
    """A study that a claim needs is not there, or has one seed."""


@dataclass(frozen=True)
class Verdict:
    number: int
    claim: str
    measured: str
    verdict: str


class Studies:
    """The studies of a ledger, or of a folder of them, by name; and the table of an audit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "studies" if (folder / "studies").is_dir() else folder
        if not self.folder.is_dir():
            raise ValueError(f"--ledger must be a folder with studies, got {str(folder)!r}")
        self.used: list[str] = []

    def __getitem__(self, name: str) -> Results:
        """Raises MissingError if it is not there, or has one seed."""
        if not (self.folder / name / "rows.csv").is_file():
            raise MissingError(f"needs `python -m pe_lab.run -m +study={name}`")
        results = frame.load(self.folder / name)
        if results.cells["seed"].nunique() < 2:
            raise MissingError(f"needs several seeds of `+study={name}`, got one")
        self.used.append(f"{name} ({results.cells['seed'].nunique()} seeds)")
        return results

    def audit(self) -> pd.DataFrame:
        """Raises MissingError if it is not there."""
        table = self.folder / "audit" / "table.csv"
        if not table.is_file():
            raise MissingError(f"needs `python -m pe_lab.audit out={self.folder / 'audit'}`")
        self.used.append("audit")
        return pd.read_csv(table).set_index("pe")


Found = tuple[list[str], list[str]]  # the states of the parts, and what was measured, in words


def lowest(studies: Studies) -> Found:
    """Learnable has the lowest test loss in every cell; sininit is close behind; RoPE and LRoPE trail."""
    cells = studies["depth_epochs_pe"].cells
    _require(cells, "learnable", "sininit", "rope")
    ranked = statistics.ranks(cells)
    of = ranked[ranked["pe"] == "learnable"]
    settings = len(of)
    first = int((ranked.groupby(place(cells), sort=False)["mean"].transform("min") == ranked["mean"])[of.index].sum())
    behind = int((of["best"] > 1).sum())
    pooled = statistics.compare(cells, "learnable", pooled=True).set_index("pe")
    told = [f"`learnable` has the lowest mean in {first} of {settings} settings and is behind another in {behind}"]
    told += [f"pooled, `{name}` − `learnable` {_interval(pooled.loc[name])}" for name in ("sininit", "rope")]
    state = FAILS if behind else HOLDS if (of["worst"] == 1).all() else OPEN
    return [state], told


CLAIMED = {"learnable": 0.95, "relative_bias": 0.93, "continuous": 0.89, "sinusoidal": 0.78, "none": 0.35}


def ranking(studies: Studies) -> Found:
    """On `pattern`: learned absolute ≈ 95 %, relative bias ≈ 93, continuous ≈ 89, sinusoidal ≈ 78, none ≈ 35."""
    cells = _of_task(studies["pattern"].cells, "pattern")
    _require(cells, *CLAIMED)
    states, told = [], []
    for name, claimed in CLAIMED.items():
        values = cells[cells["pe"] == name]["test_accuracy"]
        low, high = statistics.interval(values)
        states.append(OPEN if low - MARGIN <= claimed <= high + MARGIN else FAILS)
        told.append(f"`{name}` {values.mean():.3f} [{low:.3f}, {high:.3f}] (claimed {claimed})")
    return _narrow(states, cells), told


def carried(studies: Studies) -> Found:
    """Relative bias, continuous and sinusoidal carry over to unseen lengths; learned absolute does not."""
    records = _of_task(studies["pattern"].records, "pattern")
    states, told = [], []
    for name, carries in (("relative_bias", True), ("continuous", True), ("sinusoidal", True), ("learnable", False)):
        curve = _lengths(records, name, "accuracy")
        change = curve[curve.columns.max()] - curve[1.0]
        low, high = statistics.interval(change)
        kept, lost = low > -MARGIN, high < -MARGIN
        states.append((HOLDS if carries else FAILS) if kept else (FAILS if carries else HOLDS) if lost else OPEN)
        told.append(f"`{name}` changes by {change.mean():+.3f} [{low:+.3f}, {high:+.3f}] at {curve.columns.max():g} ×")
    return states, told


def fades(studies: Studies) -> Found:
    """Position added only at the input fades with depth."""
    records = _deepest(studies["layers"].records)
    states, told = [], []
    for name in ("sinusoidal", "learnable", "continuous"):
        wide = _by_layer(records, name, "position", "r2", "pre")
        change = wide[wide.columns.max()] - wide[0]
        low, high = statistics.interval(change)
        states.append(HOLDS if high < -MARGIN else FAILS if low > -MARGIN else OPEN)
        told.append(
            f"`{name}`: R² {wide[0].mean():.3f} at the embedding, {wide[wide.columns.max()].mean():.3f} after layer "
            f"{wide.columns.max():g}, change {change.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
        )
    none = _by_layer(records, "none", "position", "r2", "pre")
    told.append(f"for comparison `none`: {none[0].mean():.3f}, {none[none.columns.max()].mean():.3f}")
    return states, told


def extrapolates(studies: Studies) -> Found:
    """RSE and ExpoSB extrapolate; stick-breaking keeps attention from thinning out as T grows."""
    results = studies["extrapolation"]
    records = results.records
    longest = records[records["kind"] == "length"]["length"].max()
    samples, words, lower = [], [], []
    rope = _lengths(records, "rope", "loss")
    for name in ("rse", "exposb"):
        samples.append((_lengths(records, name, "loss")[longest] - rope[longest]).dropna())
        words.append(f"loss at {longest:g} ×, `{name}` − `rope`")
    entropy = {name: _entropy(records, name) for name in ("stick_breaking", "rope")}
    growth = {name: (of[longest] - of[1.0]) for name, of in entropy.items()}
    samples.append((growth["stick_breaking"] - growth["rope"]).dropna())
    words.append(f"growth of attention's entropy from 1 to {longest:g} ×, `stick_breaking` − `rope`")
    lower = [True] * len(samples)
    states, told = _signs(samples, words, lower)
    told.append(
        "entropy in nats at 1 and the longest: "
        + ", ".join(f"`{name}` {of[1.0].mean():.2f}, {of[longest].mean():.2f}" for name, of in entropy.items())
    )
    return states, told


def blind(studies: Studies) -> Found:
    """Without any encoding a bidirectional model is order-blind; a causal one is not."""
    none = studies.audit().loc["none"]
    states = [HOLDS if none["order_bidirectional"] < 1e-9 else FAILS, HOLDS if none["order_causal"] > 1e-3 else FAILS]
    told = [
        f"effect of shuffling over that of replacing, untrained, float64: bidirectional "
        f"{none['order_bidirectional']:.1e}, causal {none['order_causal']:.3f}"
    ]
    cells = _of_task(studies["pattern"].cells, "pattern")
    of = cells[cells["pe"] == "none"].set_index("seed")
    above = of["test_loss"] - of["floor_position_blind_loss"]
    low, high = statistics.interval(above)
    states.append(FAILS if high < 0 else HOLDS)
    told.append(
        f"trained on `pattern`, loss above the position-blind floor: {above.mean():.3f} [{low:.3f}, {high:.3f}]"
    )
    return states, told


def longer(studies: Studies) -> Found:
    """NoPE and T5 beat ALiBi, rotary and sinusoidal on longer copy, reverse and repeat."""
    of_tasks = []
    for study in ("lengths", "lengths_repeat"):
        records = studies[study].records
        records = records.assign(data=records.get("data", "repeat"))
        at = records[(records["metric"] == "exact_match") & (records["length"] > 1)]
        of_tasks.append(at.groupby(["data", "pe", "seed"])["value"].mean().unstack("pe"))
    whole = pd.concat(of_tasks)
    _require_columns(whole, "none", "t5", "alibi", "rope", "sinusoidal")
    means = whole.groupby("data").mean()
    samples, words = [], []
    for name in ("none", "t5"):
        for other in ("alibi", "rope", "sinusoidal"):
            difference = (whole[name] - whole[other]).unstack("data").dropna().mean(axis=1)
            samples.append(difference)
            words.append(f"`{name}` − `{other}`")
    states, told = _signs(samples, words, [False] * len(samples))
    told = ["exact match on unseen lengths, mean over the three tasks: " + "; ".join(told)]
    for task, line in means.iterrows():
        told.append(f"{task}: " + ", ".join(f"`{name}` {value:.3f}" for name, value in line.items()))
    return states, told


def collapses(studies: Studies) -> Found:
    """Deep stacks collapse: effective rank and attention entropy by layer, gradient norm over depth, pre and post."""
    records = _deepest(studies["layers"].records)
    states, told = [], []
    for norm in ("pre", "post"):
        for probe, metric, what in (("rank", "effective_rank", "effective rank"), ("attention", "entropy", "entropy")):
            wide = _by_layer(records, "rope", probe, metric, norm)
            first, last = wide[wide.columns.min()], wide[wide.columns.max()]
            ratio = np.log(last / first)
            low, high = np.exp(statistics.interval(ratio))
            if metric == "effective_rank":
                states.append(HOLDS if high < 0.5 else FAILS if low > 0.5 else OPEN)
            told.append(
                f"{norm}-norm, `rope`: {what} {first.mean():.2f} in layer {wide.columns.min():g}, {last.mean():.2f} in "
                f"layer {wide.columns.max():g} (ratio {np.exp(ratio.mean()):.2f} [{low:.2f}, {high:.2f}])"
            )
        wide = _by_layer(records, "rope", "rank", "gradient_parameters", norm)
        ratio = np.log(wide[wide.columns.min()] / wide[wide.columns.max()])
        low, high = np.exp(statistics.interval(ratio))
        told.append(
            f"gradient norm of the first layer over the last {np.exp(ratio.mean()):.2f} [{low:.2f}, {high:.2f}]"
        )
    return states, told


def harmless(studies: Studies) -> Found:
    """Adding position does no harm to the word: subspaces apart, and the same phrase moved along stays what it was."""
    records = _deepest(studies["layers"].records)
    states, told = [], []
    for name in ("sinusoidal", "learnable", "continuous"):
        own, chance = (
            _by_layer(records, name, "subspace", metric, "pre") for metric in ("mean_cosine", "mean_cosine_random")
        )
        closer = (own - chance).mean(axis=1)
        low, high = statistics.interval(closer)
        states.append(HOLDS if high < MARGIN else FAILS if low > MARGIN else OPEN)
        told.append(
            f"`{name}`: cosine of the subspaces − that of random ones {closer.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
        )
        moved = _by_layer(records, name, "subspace", "moved_by_1", "pre")
        last = moved[moved.columns.max()]
        low, high = statistics.interval(last)
        states.append(HOLDS if high < MARGIN else FAILS if low > MARGIN else OPEN)
        told.append(f"moved on by one, states change by {last.mean():.3f} [{low:.3f}, {high:.3f}] of their norm")
    return states, told


def good(studies: Studies) -> Found:
    """A good encoding is unique, consistent across lengths, order-sensitive, small, cheap, and extends beyond
    training length.
    """
    audit = studies.audit()
    cells = studies["all_encodings"].cells
    deepest = cells[cells["depth"] == cells["depth"].max()]
    has = pd.DataFrame(
        {
            "unique": audit["uniqueness"] > 1e-6,
            "consistent": audit["consistency"] < 1e-6,
            "order-sensitive": audit["order_causal"] > audit.loc["none", "order_causal"] + 1e-6,
            "small": audit["size"] < 1,
            "cheap": audit["time_1024"] < 2,
            "extends": audit["reach"] > 1,
        }
    )
    loss = deepest.groupby("pe")["test_loss"].mean()
    both = has.join(loss, how="inner")
    count = both[list(has)].sum(axis=1)
    found = stats.spearmanr(count, both["test_loss"])
    told = [
        f"{len(both)} encodings at depth {deepest['depth'].iloc[0]}: Spearman's ρ of how many of the six properties "
        f"one has (audit) and its loss {found.statistic:+.2f} (p = {found.pvalue:.2g}; the claim asks for < 0)",
        f"all six: {', '.join(f'`{name}`' for name in both.index[count == len(has.columns)]) or 'none'}",
    ]
    for name in has:
        with_it, without = both.loc[both[name], "test_loss"], both.loc[~both[name], "test_loss"]
        if len(without):
            told.append(
                f"{name}: mean loss {with_it.mean():.3f} with it ({len(with_it)}), {without.mean():.3f} without"
            )
    state = OPEN if found.pvalue >= 0.05 else HOLDS if found.statistic < 0 else FAILS
    return [state], told


CLAIMS: tuple[Callable[[Studies], Found], ...] = (
    lowest,
    ranking,
    carried,
    fades,
    extrapolates,
    blind,
    longer,
    collapses,
    harmless,
    good,
)


def verdicts(studies: Studies) -> list[Verdict]:
    """All claims, in order."""
    found = []
    for number, claim in enumerate(CLAIMS, 1):
        statement = " ".join((claim.__doc__ or "").split())
        try:
            states, told = claim(studies)
        except MissingError as missing:
            found.append(Verdict(number, statement, str(missing), "not testable at this budget"))
            continue
        if FAILS in states:
            verdict = "refuted"
        elif set(states) == {HOLDS}:
            verdict = "supported"
        else:
            verdict = "not separable"
        parts = f"{states.count(HOLDS)} of {len(states)} parts hold, {states.count(FAILS)} contradicted"
        found.append(Verdict(number, statement, "; ".join([*told, parts]) + ".", verdict))
    return found


def report(ledger: Path, out: Path | None) -> None:
    """Print the claims with what was measured, and write them as HTML and Markdown.

    Raises:
        ValueError: there is no folder of studies.
    """
    studies = Studies(ledger)
    found = verdicts(studies)
    table = pd.DataFrame([vars(verdict) for verdict in found])[["number", "claim", "verdict", "measured"]]
    text = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    used = ", ".join(dict.fromkeys(studies.used))
    sections = [Section("The ten claims", [text, f"From: {used or 'nothing'}.", Table(table, "Verdicts")])]
    folder = out or studies.folder
    write_text(folder / "claims.html", html("pe_lab: the ten claims", sections))
    write_text(folder / "claims.md", markdown("pe_lab: the ten claims", sections))
    for verdict in found:
        print(f"{verdict.number:2}  {verdict.verdict.upper()}: {verdict.claim}\n    {verdict.measured}\n")
    print(f"{folder / 'claims.html'}, {folder / 'claims.md'}")


def _require(cells: pd.DataFrame, *names: str) -> None:
    absent = [name for name in names if name not in set(cells["pe"])]
    if absent:
        raise MissingError(f"needs cells of {', '.join(absent)}")


def _require_columns(table: pd.DataFrame, *names: str) -> None:
    absent = [name for name in names if name not in table]
    if absent:
        raise MissingError(f"needs cells of {', '.join(absent)}")


def _of_task(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Rows of one task of a study."""
    return rows[rows["data"] == name] if "data" in rows else rows


def _lengths(records: pd.DataFrame, name: str, metric: str) -> pd.DataFrame:
    """A row per seed, a column per length.

    Raises:
        MissingError: the encoding was not measured.
    """
    of = records[(records["kind"] == "length") & (records["pe"] == name) & (records["metric"] == metric)]
    of = of[(of["policy"] == "raw") & (of["offset"] == 0)]
    if of.empty:
        raise MissingError(f"needs cells of {name}, measured at several lengths")
    return of.pivot(index="seed", columns="length", values="value")


def _entropy(records: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row per seed, a column per length: mean entropy of attention, over layers and heads."""
    of = records[(records["probe"] == "attention") & (records["metric"] == "entropy") & (records["pe"] == name)]
    if of.empty or of["length"].nunique() < 2:
        raise MissingError(f"needs the attention of {name}, probed at several lengths")
    return of.groupby(["seed", "length"])["value"].mean().unstack("length")


def _deepest(records: pd.DataFrame) -> pd.DataFrame:
    if records.empty:
        raise MissingError("needs the probes of `+study=layers`")
    return records[records["depth"] == records["depth"].max()]


def _by_layer(records: pd.DataFrame, name: str, probe: str, metric: str, norm: str) -> pd.DataFrame:
    """A row per seed, a column per layer; heads are averaged.

    Raises:
        MissingError: it was not probed.
    """
    of = records[(records["pe"] == name) & (records["probe"] == probe) & (records["metric"] == metric)]
    of = of[of["model.norm"] == norm] if "model.norm" in of else of
    of = of[of["layer"].notna()]
    if of.empty:
        raise MissingError(f"needs the probe {probe} of {name}, {norm}-norm")
    return of.groupby(["seed", "layer"])["value"].mean().unstack("layer")


def _signs(samples: list[pd.Series], words: list[str], lower: list[bool]) -> Found:
    """Whether differences have the sign that a claim gives them, Holm-corrected; and the differences in words."""
    from statsmodels.stats.multitest import multipletests

    p = np.array([stats.ttest_1samp(of, 0).pvalue if of.any() and len(of) > 1 else 1.0 for of in samples])
    stands = multipletests(p, method="holm")[1] < 1 - statistics.CONFIDENCE
    states, told = [], []
    for of, word, down, sure in zip(samples, words, lower, stands, strict=True):
        low, high = statistics.interval(of)
        states.append(OPEN if not sure else HOLDS if (of.mean() < 0) == down else FAILS)
        told.append(f"{word} {of.mean():+.3f} [{low:+.3f}, {high:+.3f}]")
    return states, told


def _narrow(states: list[str], cells: pd.DataFrame) -> list[str]:
    """States of figures that are contained in their intervals: they hold if the order of the means is separable too."""
    if FAILS in states:
        return states
    compared = statistics.all_pairs(cells, "accuracy")
    for better, worse in pairwise(CLAIMED):
        line = compared[compared["pe"].isin([better, worse]) & compared["baseline"].isin([better, worse])].iloc[0]
        if line["verdict"] != ("better" if line["pe"] == better else "worse"):
            return states
    return [HOLDS] * len(states)


def _interval(line: pd.Series) -> str:
    return f"{line['difference']:+.3f} [{line['low']:+.3f}, {line['high']:+.3f}]"
