"""Ten claims of the literature, each with what was measured and a verdict.

A claim is a set of parts. A part is tested over seeds, by a t test: a mean, or a difference paired by seed, against 0,
a claimed figure or a margin of 0.05, which was declared before. All tests of a claim are one family, corrected by Holm:
a part holds or is contradicted where the corrected p is below 0.05, and is open elsewhere. A claim is supported if
every part holds, refuted if one is contradicted, not separable if neither, and not testable at this budget if what it
needs was not trained, or with one seed only. Brackets are 95 % t intervals of one mean each and are not corrected: one
without 0 can belong to a part that is open. What has no p was computed, not sampled, or stands there to compare with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from pe_lab.report.page import html, markdown
from pe_lab.report.sections import Section, Table
from pe_lab.results import frame, statistics
from pe_lab.results.frame import UNKNOWN, Results
from pe_lab.system.files import write_text

MANY = 12  # parts beyond which those that are open are only counted
MARGIN = 0.05  # of an accuracy, an R2, a cosine or a loss in nats: a smaller difference is none
HOLDS, FAILS, OPEN = "holds", "contradicted", "open"


class MissingError(LookupError):
    """A study that a claim needs is not there, or has one seed."""


@dataclass(frozen=True)
class Part:
    """A part of a claim, and what is known of it.

    Attributes:
        words: what was measured.
        holds: the p of the test that shows that it holds.
        fails: the p of the test that contradicts it.
        tested: whether these are tests, and belong to the claim's family; otherwise they are 0 or 1.
    """

    words: str
    holds: float
    fails: float
    tested: bool = True

    @property
    def p(self) -> float:
        """Two-sided."""
        return min(1.0, 2 * min(self.holds, self.fails))


Found = list[Part | str]  # the parts of a claim, and what is told beside them


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


def lowest(studies: Studies) -> Found:
    """Learnable has the lowest test loss in every cell; sininit is close behind; RoPE and LRoPE trail."""
    cells = studies["depth_epochs_pe"].cells
    _require(cells, "learnable", "sininit", "rope")
    losses = statistics.wide(cells)
    settings = [name for name in losses.index.names if name != "seed"]
    found: Found = []
    for key, of in losses.groupby(level=settings, sort=False, dropna=False):
        where = ", ".join(f"{name} {value}" for name, value in zip(settings, key, strict=True) if name != "data")
        differences = of.sub(of["learnable"], axis=0).droplevel(settings)
        found += [above(f"{where}: `{pe}` − `learnable`", differences[pe].dropna()) for pe in of if pe != "learnable"]
    means = losses.groupby(level=settings, sort=False, dropna=False).mean()
    first = int((means.idxmin(axis=1) == "learnable").sum())
    pooled = statistics.compare(cells, "learnable", pooled=True).set_index("pe")
    told = [
        f"over all settings, `{name}` − `learnable` {pooled.loc[name, 'difference']:+.3f} "
        f"[{pooled.loc[name, 'low']:+.3f}, {pooled.loc[name, 'high']:+.3f}]"
        for name in ("sininit", "rope")
    ]
    return [f"`learnable` has the lowest mean in {first} of {len(means)} settings", *told, *found]


CLAIMED = {"learnable": 0.95, "relative_bias": 0.93, "continuous": 0.89, "sinusoidal": 0.78, "none": 0.35}


def ranking(studies: Studies) -> Found:
    """On `pattern`: learned absolute ≈ 95 %, relative bias ≈ 93, continuous ≈ 89, sinusoidal ≈ 78, none ≈ 35."""
    cells = _of_task(studies["pattern"].cells, "pattern")
    _require(cells, *CLAIMED)
    accuracy = {name: cells[cells["pe"] == name].set_index("seed")["test_accuracy"] for name in CLAIMED}
    found: Found = [near(f"`{name}` (claimed {claimed})", accuracy[name], claimed) for name, claimed in CLAIMED.items()]
    return found + [
        above(f"`{one}` − `{next_}`", _paired(accuracy[one], accuracy[next_])) for one, next_ in pairwise(CLAIMED)
    ]


def carried(studies: Studies) -> Found:
    """Relative bias, continuous and sinusoidal carry over to unseen lengths; learned absolute does not."""
    records = _of_task(studies["pattern"].records, "pattern")
    found: Found = []
    for name, test in (("relative_bias", above), ("continuous", above), ("sinusoidal", above), ("learnable", below)):
        curve = _lengths(records, name, "accuracy")
        longest = curve.columns.max()
        found.append(test(f"change of `{name}` at {longest:g} ×", curve[longest] - curve[1.0], -MARGIN))
    return found


def fades(studies: Studies) -> Found:
    """Position added only at the input fades with depth."""
    records = _deepest(studies["layers"].records)
    found: Found = []
    for name in ("sinusoidal", "learnable", "continuous", "none"):
        wide = _by_layer(records, name, "position", "r2", "pre")
        last = wide.columns.max()
        found.append(
            f"R² of `{name}` {wide[0].mean():.3f} at the embedding, {wide[last].mean():.3f} after layer {last:g}"
        )
        if name != "none":
            found.append(below("its change", wide[last] - wide[0], -MARGIN))
    return found


def extrapolates(studies: Studies) -> Found:
    """RSE and ExpoSB extrapolate; stick-breaking keeps attention from thinning out as T grows."""
    records = studies["extrapolation"].records
    longest = records[records["kind"] == "length"]["length"].max()
    rope = _lengths(records, "rope", "loss")[longest]
    found: Found = [
        below(f"loss at {longest:g} ×, `{name}` − `rope`", _paired(_lengths(records, name, "loss")[longest], rope))
        for name in ("rse", "exposb")
    ]
    entropy = {name: _entropy(records, name) for name in ("stick_breaking", "rope")}
    stick, rope = (of[longest] - of[1.0] for of in entropy.values())
    found.append(
        below(f"growth of attention's entropy from 1 to {longest:g} ×, `stick_breaking` − `rope`", stick - rope)
    )
    ends = [f"`{name}` {of[1.0].mean():.2f}, {of[longest].mean():.2f}" for name, of in entropy.items()]
    return [*found, f"entropy in nats at 1 and the longest: {', '.join(ends)}"]


def blind(studies: Studies) -> Found:
    """Without any encoding a bidirectional model is order-blind; a causal one is not."""
    none = studies.audit().loc["none"]
    what = "effect of shuffling over that of replacing, untrained, float64"
    both, causal = none["order_bidirectional"], none["order_causal"]
    found: Found = [
        exact(f"{what}: bidirectional {both:.1e}", both < 1e-9),
        exact(f"causal {causal:.3f}", causal > 1e-3),
    ]
    cells = _of_task(studies["pattern"].cells, "pattern")
    of = cells[cells["pe"] == "none"].set_index("seed")
    words = "trained on `pattern`, loss above the position-blind floor"
    return [*found, above(words, of["test_loss"] - of["floor_position_blind_loss"], -MARGIN)]


def longer(studies: Studies) -> Found:
    """NoPE and T5 beat ALiBi, rotary and sinusoidal on longer copy, reverse and repeat."""
    tasks = []
    for study, names in (("lengths", ("copy", "reverse")), ("lengths_repeat", ("repeat",))):
        records = studies[study].records
        parts = [_of_task(records, name) for name in names]
        at = pd.concat([of[(of["metric"] == "exact_match") & (of["length"] > 1)] for of in parts])
        tasks.append(at.groupby(["data", "pe", "seed"])["value"].mean().unstack("pe"))
    whole = pd.concat(tasks)
    _require_columns(whole, "none", "t5", "alibi", "rope", "sinusoidal")
    found: Found = ["exact match on unseen lengths, mean over the three tasks"]
    for name in ("none", "t5"):
        for other in ("alibi", "rope", "sinusoidal"):
            difference = (whole[name] - whole[other]).unstack("data").dropna().mean(axis=1)
            found.append(above(f"`{name}` − `{other}`", difference))
    for task, line in whole.groupby("data").mean().iterrows():
        found.append(f"{task}: " + ", ".join(f"`{name}` {value:.3f}" for name, value in line.items()))
    return found


def collapses(studies: Studies) -> Found:
    """Deep stacks collapse: effective rank and attention entropy by layer, gradient norm over depth, pre and post."""
    records = _deepest(studies["layers"].records)
    found: Found = []
    for norm in ("pre", "post"):
        for probe, metric, what in (
            ("rank", "effective_rank", "effective rank"),
            ("attention", "entropy", "entropy of attention"),
            ("rank", "gradient_parameters", "gradient norm"),
        ):
            wide = _by_layer(records, "rope", probe, metric, norm)
            first, last = wide.columns.min(), wide.columns.max()
            ratio = np.log(wide[last] / wide[first])
            low, high = np.exp(statistics.interval(ratio))
            words = (
                f"{norm}-norm, `rope`: {what} {wide[first].mean():.2f} in layer {first:g}, {wide[last].mean():.2f} in "
                f"layer {last:g}, ratio {np.exp(ratio.mean()):.2f} [{low:.2f}, {high:.2f}]"
            )
            half = _above(-ratio, -np.log(0.5)), _above(ratio, np.log(0.5))
            found.append(Part(f"{words}, against one half", *half) if metric == "effective_rank" else words)
    return found


def harmless(studies: Studies) -> Found:
    """Adding position does no harm to the word: subspaces apart, and the same phrase moved along stays what it was."""
    records = _deepest(studies["layers"].records)
    found: Found = []
    for name in ("sinusoidal", "learnable", "continuous"):
        own, chance = (
            _by_layer(records, name, "subspace", metric, "pre") for metric in ("mean_cosine", "mean_cosine_random")
        )
        words = f"`{name}`: cosine of the subspaces − that of random ones"
        found.append(below(words, (own - chance).mean(axis=1), MARGIN))
        moved = _by_layer(records, name, "subspace", "moved_by_1", "pre")
        words = f"`{name}`: change of the states, over their norm, when moved on by one"
        found.append(below(words, moved[moved.columns.max()], MARGIN))
    return found


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
    losses = deepest.pivot(index="seed", columns="pe", values="test_loss")
    losses = losses[[name for name in losses if name in has.index]].dropna()
    if losses.empty:
        raise MissingError("needs encodings that share seeds, and an audit of them")
    both = has.loc[list(losses)].assign(count=has.sum(axis=1), loss=losses.mean())
    once = both.groupby(groups(losses))[["count", "loss"]].mean()
    if len(once) < 3 or (once.nunique() == 1).any():
        raise MissingError("needs encodings that differ in their properties and in their losses")
    rho, p = stats.spearmanr(once["count"], once["loss"])
    words = (
        f"{len(both)} encodings at depth {deepest['depth'].iloc[0]}, of which those whose losses differ by less than "
        f"{MARGIN} in every seed count once, which makes {len(once)}: Spearman's ρ of how many of the six properties "
        f"one has (audit) and its loss {rho:+.2f} (the claim asks for < 0)"
    )
    found: Found = [Part(words, p / 2 if rho < 0 else 1 - p / 2, p / 2 if rho > 0 else 1 - p / 2)]
    names = ", ".join(f"`{name}`" for name in both.index[both["count"] == len(has.columns)])
    found.append(f"all six: {names or 'none'}")
    for name in has:
        with_it, without = both.loc[both[name], "loss"], both.loc[~both[name], "loss"]
        if len(without):
            found.append(
                f"{name}: mean loss {with_it.mean():.3f} with it ({len(with_it)}), {without.mean():.3f} without"
            )
    return found


def groups(losses: pd.DataFrame) -> pd.Series:
    """A number for each encoding, the same for those whose losses differ by less than the margin in every seed.

    They are often one function at this length: `rope_dynamic_ntk` is `rope` to the bit, and `integer` is `none` but for
    rounding. As points of a correlation they are not independent. Any two of a group are that close (complete linkage).

    Args:
        losses: a row per seed, a column per encoding.
    """
    if losses.shape[1] < 2:
        return pd.Series(1, index=losses.columns)
    distances = pdist(losses.T, "chebyshev")
    return pd.Series(fcluster(linkage(distances, "complete"), np.nextafter(MARGIN, 0), "distance"), losses.columns)


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
            parts = claim(studies)
        except MissingError as missing:
            found.append(Verdict(number, statement, str(missing), "not testable at this budget"))
            continue
        states, told = decide(parts)
        if FAILS in states:
            verdict = "refuted"
        elif set(states) == {HOLDS}:
            verdict = "supported"
        else:
            verdict = "not separable"
        found.append(Verdict(number, statement, "; ".join(told) + ".", verdict))
    return found


def decide(found: Found) -> tuple[list[str], list[str]]:
    """The state of each part, all tests corrected by Holm as one family; and all in words."""
    from statsmodels.stats.multitest import multipletests

    tested = [part for part in found if isinstance(part, Part) and part.tested]
    corrected = iter(multipletests([part.p for part in tested], method="holm")[1] if tested else [])
    states, told, parts = [], [], sum(isinstance(part, Part) for part in found)
    for part in found:
        if isinstance(part, str):
            told.append(part)
            continue
        p = next(corrected) if part.tested else part.p
        state = OPEN if p >= 1 - statistics.CONFIDENCE else HOLDS if part.holds < part.fails else FAILS
        states.append(state)
        if state == OPEN and parts > MANY:
            continue
        told.append(f"{part.words} ({_p(p)}, {state})" if part.tested else f"{part.words} ({state})")
    counts = (
        f"{states.count(HOLDS)} of {parts} parts hold, {states.count(FAILS)} contradicted, {states.count(OPEN)} open"
    )
    if tested:
        counts += f"; p corrected by Holm over {len(tested)} test{'s' if len(tested) > 1 else ''}"
    return states, [*told, counts]


def above(words: str, sample: pd.Series, bound: float = 0.0) -> Part:
    """A part that holds where the mean of a sample over seeds is above a bound; contradicted where it is below."""
    return Part(f"{words} {_mean(sample)}", _above(sample, bound), _above(-sample, -bound))


def below(words: str, sample: pd.Series, bound: float = 0.0) -> Part:
    """The opposite of `above`."""
    return Part(f"{words} {_mean(sample)}", _above(-sample, -bound), _above(sample, bound))


def near(words: str, sample: pd.Series, claimed: float) -> Part:
    """A part that holds where the mean is within the margin of a claimed figure; contradicted where it is beyond.

    Within: two one-sided tests, both of which must reject. Beyond: above the margin or below it. Where the mean is at
    the upper border of the margin, "within" and "below" are parts of one tail and "above" is the other, so that the
    two-sided p keeps its level.
    """
    low, high = claimed - MARGIN, claimed + MARGIN
    within = max(_above(sample, low), _above(-sample, -high))
    beyond = min(_above(sample, high), _above(-sample, -low))
    return Part(f"{words} {_mean(sample, sign='')}", within, beyond)


def exact(words: str, holds: bool) -> Part:
    """A part that was computed, and needs no test."""
    return Part(words, 1.0 - holds, float(holds), tested=False)


def _paired(first: pd.Series, second: pd.Series) -> pd.Series:
    """The differences in the seeds that both have."""
    shared = first.index.intersection(second.index)
    return first[shared] - second[shared]


def _above(sample: pd.Series, bound: float) -> float:
    """The p of a one-sided t test of whether the mean of a sample is above a bound; 1 where nothing can be tested."""
    values = sample.to_numpy(float)
    if len(values) < 2 or not np.isfinite(values).all() or abs(values.mean() - bound) < 1e-12:
        return 1.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    if error < 1e-12:  # all are the same
        return float(values.mean() < bound)
    return float(stats.t.sf((values.mean() - bound) / error, len(values) - 1))


def _mean(sample: pd.Series, sign: str = "+") -> str:
    if not np.isfinite(sample).all():
        return f"not finite in {int((~np.isfinite(sample)).sum())} of {len(sample)} seeds"
    low, high = statistics.interval(sample)
    same = ", equal in every seed" if len(sample) > 1 and sample.nunique() == 1 else ""
    return f"{sample.mean():{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]{same}"


def _p(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


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
    """Rows of one task of a study.

    Raises:
        MissingError: there are none, or it is not known whether they are.
    """
    if len(rows) and (rows["data"] == UNKNOWN).all():
        raise MissingError(f"needs cells of {name}, got a folder that does not say the task of its cells")
    of = rows[rows["data"] == name] if len(rows) else rows
    if of.empty:
        raise MissingError(f"needs cells of {name}")
    return of


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
