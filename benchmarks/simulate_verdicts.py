"""Simulate studies under the protocol of docs/protocol.md: how often verdicts are wrong, and whether they replicate.

    python -m benchmarks simulate_verdicts --studies 1000 --large 200 --to sweeps/results/protocol/verdicts.csv

The file has sums over studies; what it has already is not simulated again. Results depend only on the arguments.
"""

import zlib
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import run_benchmark
from benchmarks.simulated_looks import sequential
from benchmarks.simulated_runs import (
    Cells,
    Design,
    Runs,
    Truth,
    cell_residuals,
    fixed_laws,
    population,
    race,
    studies_of,
)
from pe_lab.statistics import (
    Endpoint,
    VariancePrior,
    Verdict,
    all_pairs,
    decide_pairs,
    estimate_prior,
    paired_tests,
    sample_differences,
    with_baseline,
)
from pe_lab.system.arguments import Parser

SEEDS = (3, 5, 8, 12)
WINS, LOSES = (Verdict.BETTER, Verdict.SLIGHTLY_BETTER), (Verdict.WORSE, Verdict.SLIGHTLY_WORSE)
CHUNK = {2: 1000, 8: 250, 60: 25}  # studies that are simulated at once


def prior_for(runs: Runs, n: int, design: Design) -> VariancePrior:
    """Return what a design knows about variances."""
    y, solved, noise_std = runs.y[:, :n], runs.solved[:, :n], design.noise_std
    prior = estimate_prior(y, noise_std, solved)
    if design.moderation == "used":
        return prior
    if design.moderation == "plain t":
        return VariancePrior(*(np.zeros(len(y)) for _ in range(4)))
    if design.moderation == "no least variance":
        return replace(prior, min_variance=np.zeros(len(y)))
    pairs = all_pairs(y.shape[-1])
    variance = sample_differences(y, pairs, noise_std)[2]
    used = (solved[..., pairs[0]] | solved[..., pairs[1]]).any(1)  # at least the mean of all variances
    return replace(prior, min_variance=np.where(used, variance, 0).sum(1) / np.maximum(used.sum(1), 1))


def fixed(runs: Runs, n: int, encodings: int, design: Design) -> dict[str, dict[str, np.ndarray]]:
    """Return verdicts and intervals of a study with a fixed number of seeds, for both families."""
    prior, endpoint, found = prior_for(runs, n, design), Endpoint("steps", design.margin), {}
    for family, pairs in families(encodings).items():
        y, solved = runs.y[:, :n], runs.solved[:, :n]
        tests = paired_tests(y, pairs, endpoint, solved, prior, noise_std=design.noise_std / design.margin)
        verdict = decide_pairs(tests, endpoint, family == "baseline" or design.correction == "holm").verdict
        found[family] = {"verdict": verdict, "low": tests.low, "high": tests.high, "difference": tests.difference}
    return found


def families(encodings: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {"all pairs": all_pairs(encodings), "baseline": with_baseline(encodings, 0)}


def sequential_verdicts(runs: Runs, design: Design) -> dict[str, np.ndarray]:
    """Return verdicts and intervals of a study that adds seeds, against its first encoding."""
    endpoint = Endpoint("steps", design.margin)
    comparison = sequential(runs.y, 0, endpoint, runs.solved, design.looks, design.spent)
    return {name: getattr(comparison, name) for name in ("verdict", "low", "high", "difference", "seeds")}


def count(
    decisions: dict[str, np.ndarray],
    fresh: dict[str, np.ndarray],
    index: np.ndarray,
    pairs: tuple[np.ndarray, np.ndarray],
    truth: Truth,
    margin: float,
) -> dict[str, float]:
    """Return counts over studies [studies, pairs]: sums, so that chunks can be added."""
    first, second = index[:, pairs[0]], index[:, pairs[1]]
    same = first == second
    gap = np.where(same, 0.0, truth.mean[first] - truth.mean[second])
    typical = np.where(same, 0.0, 0.5 - truth.faster[first, second])  # below 0: the first is faster
    of_solved = np.where(same, 0.0, truth.solved[first] - truth.solved[second])
    shares = np.where(same, 0.0, truth.share[first] - truth.share[second])
    verdict, again = decisions["verdict"], fresh["verdict"]
    wins, loses = np.isin(verdict, WINS), np.isin(verdict, LOSES)
    large = np.isin(verdict, (Verdict.BETTER, Verdict.WORSE))
    said, sign = wins | loses, np.where(wins, -1, 1)
    wrong_mean = said & (np.sign(gap) != sign)
    wrong_typical = said & (np.sign(np.round(typical, 2)) != sign)
    wrong_both = wrong_mean & wrong_typical
    equal = verdict == Verdict.EQUIVALENT
    unlike, unlike_solved = equal & (np.abs(gap) >= margin), equal & ~(np.abs(of_solved) < margin)
    tested = verdict != Verdict.BOTH_UNSOLVED
    covered = (decisions["low"] <= gap) & (gap <= decisions["high"])
    again_wins, again_loses = np.isin(again, WINS), np.isin(again, LOSES)
    confirmed = (wins & again_wins) | (loses & again_loses) | (equal & (again == Verdict.EQUIVALENT))
    contradicted = (wins & again_loses) | (loses & again_wins)
    true_large = np.abs(gap) >= margin
    per_study = said.sum(1)
    share_covered = (covered & tested).sum(1) / np.maximum(tested.sum(1), 1)
    return {
        "studies": len(verdict),
        "pairs": verdict.size,
        "tested": tested.sum(),
        "wrong_mean_any": wrong_mean.any(1).sum(),
        "wrong_typical_any": wrong_typical.any(1).sum(),
        "wrong_any": wrong_both.any(1).sum(),
        "wrong_large_any": (wrong_both & large).any(1).sum(),
        "wrong_mean_share": np.where(per_study, wrong_mean.sum(1) / np.maximum(per_study, 1), 0).sum(),
        "wrong_typical_share": np.where(per_study, wrong_typical.sum(1) / np.maximum(per_study, 1), 0).sum(),
        "wrong_share": np.where(per_study, wrong_both.sum(1) / np.maximum(per_study, 1), 0).sum(),
        "wrong_pairs": wrong_both.sum(),
        "wrong_mean_pairs": wrong_mean.sum(),
        "unlike_any": unlike.any(1).sum(),
        "unlike_solved_any": unlike_solved.any(1).sum(),
        "unlike_pairs": unlike.sum(),
        "unlike_solved_pairs": unlike_solved.sum(),
        "said": said.sum(),
        "large": large.sum(),
        "equivalent": equal.sum(),
        "equivalent_shares_apart": (equal & (np.abs(shares) > 0.2)).sum(),
        "covered": (covered & tested).sum(),
        "studies_tested": tested.any(1).sum(),
        "share_covered": share_covered.sum(),
        "share_covered_squared": (share_covered**2).sum(),
        "true_large": (true_large & tested).sum(),
        "found_large": (true_large & tested & said & ~wrong_mean).sum(),
        "confirmed": confirmed.sum(),
        "contradicted": contradicted.sum(),
        "again_same_word": ((said | equal) & (verdict == again)).sum(),
        "exaggeration": np.where(large & true_large, np.abs(decisions["difference"]) - np.abs(gap), 0).sum(),
        "large_true": (large & true_large).sum(),
        "seeds": decisions["seeds"].sum() if "seeds" in decisions else np.nan,
    }


def simulate(part: str, noise_name: str, encodings: int, tuning: Design, studies: int) -> list[dict[str, object]]:
    """Return a line per variant, family and number of seeds; variants judge the same runs."""
    residuals = cell_residuals() if noise_name.startswith("residuals") else np.zeros(1)
    shipped = Cells.load("shifts" not in noise_name) if noise_name.startswith("scores") else None
    if shipped is None:
        many = 4_000 if noise_name.startswith("law") else 20_000
        law, truth = population(noise_name, encodings, tuning, residuals, many)
    else:
        truth = shipped.truth
    totals: dict[tuple[str, str, str], dict[str, float]] = {}
    of_runs = dict.fromkeys(("runs", "run_steps", "run_solved", "run_edge", "run_y"), 0.0)
    chunk = CHUNK[encodings]
    for number in range(0, studies, chunk):
        size = min(chunk, studies - number)
        rng = np.random.default_rng([zlib.crc32(noise_name.encode()), encodings, number])
        if shipped is None:
            here, index = studies_of(noise_name, encodings, law, size, rng)
            runs, again = (race(here, SEEDS[-1], tuning, rng, residuals) for _ in range(2))
        else:
            index = shipped.studies(size, encodings, rng)
            runs, again = (shipped.draw(index, SEEDS[-1], rng) for _ in range(2))
        sums = (runs.y.size, runs.steps.sum(), runs.solved.sum(), (runs.edge & runs.solved).sum(), runs.y.sum())
        of_runs = {name: before + float(more) for (name, before), more in zip(of_runs.items(), sums, strict=True)}
        for label, variant in VARIANTS.items() if part == "alternatives" else (("used", tuning),):
            for n in SEEDS if part == "verdicts" else (5, 12) if label != "look at 3" else ():
                first, second = (fixed(each, n, encodings, variant) for each in (runs, again))
                for family, pairs in families(encodings).items():
                    counts = count(first[family], second[family], index, pairs, truth, variant.margin)
                    add(totals, (label, family, str(n)), counts)
            if label in ("used", "look at 3"):
                once, twice = sequential_verdicts(runs, variant), sequential_verdicts(again, variant)
                counts = count(once, twice, index, with_baseline(encodings, 0), truth, variant.margin)
                add(totals, (label, "baseline", "up to 12"), counts)
    head = {"part": part, "noise": noise_name, "encodings": encodings}
    head |= {"rates": tuning.rates, "fraction": tuning.fraction}
    return [
        head | {"variant": label, "family": family, "seeds_of_study": seeds} | total | of_runs
        for (label, family, seeds), total in totals.items()
    ]


def add(
    totals: dict[tuple[str, str, str], dict[str, float]], key: tuple[str, str, str], counts: dict[str, float]
) -> None:
    before = totals.setdefault(key, dict.fromkeys(counts, 0.0))
    for name, value in counts.items():
        before[name] += float(value)


VARIANTS = {
    "used": Design(),
    "plain t": Design(moderation="plain t"),
    "no least variance": Design(moderation="no least variance"),
    "mean variance": Design(moderation="mean variance"),
    "nugget 0.02": Design(noise_std=0.02),
    "nugget 0.05": Design(noise_std=0.05),
    "Holm": Design(correction="holm"),
    "look at 3": Design(looks=(3, 5, 8, 12), spent=(0.1, 0.2, 0.3, 0.4)),
    "margin 0.5": Design(margin=0.5),
    "margin 1.5": Design(margin=1.5),
}

CHOSEN = (
    "normal", "normal, shifts", "unequal deviations, shifts", "half are slow, shifts", "unequal failures, shifts",
    "constant beside stuck", "half constant, half slow", "equal means, other mixtures", "law of rows",
    "law of rows, twins",
)  # fmt: skip


def simulation_parts(studies: int, large: int) -> list[tuple[str, str, int, Design, int]]:
    """Return the parts of the simulation: arguments of `simulate`."""
    noises = [*fixed_laws(8), "law of rows", "law of rows, twins", "scores of cells", "scores of cells, shifts"]
    jobs = [("verdicts", name, 8, Design(), studies) for name in noises]
    jobs += [("alternatives", name, 8, Design(), max(studies // 4, 1)) for name in CHOSEN]
    jobs += [
        ("tuning", "law of rows", 8, Design(rates=rates, fraction=fraction), studies)
        for rates in (2, 3)
        for fraction in (0.125, 0.25, 0.5)
    ]
    jobs += [("verdicts", name, 60, Design(), large) for name in reversed(noises)]
    return jobs + [("verdicts", name, 2, Design(), studies) for name in noises]


def main() -> None:
    """Read the arguments and simulate what the file lacks."""
    parser = Parser("benchmarks simulate_verdicts", description=__doc__)
    parser.add_argument("--studies", type=int, default=1000, help="a line, with 2 and 8 encodings")
    parser.add_argument("--large", type=int, default=200, help="studies a line, with 60 encodings")
    parser.add_argument("--to", type=Path, required=True, help="a CSV file; what it has is kept")
    parser.add_argument("--processes", type=int, default=2)
    run_benchmark(parser, _simulate)


def _simulate(arguments: Namespace) -> None:
    for name in ("studies", "large", "processes"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    keys = ["part", "noise", "encodings", "rates", "fraction"]
    table = pd.read_csv(arguments.to) if arguments.to.exists() else pd.DataFrame(columns=[*keys, "studies"])  # noqa: TID251 - written here
    done = set(table[[*keys, "studies"]].itertuples(index=False, name=None))
    todo = [
        job
        for job in simulation_parts(arguments.studies, arguments.large)
        if (job[0], job[1], job[2], job[3].rates, job[3].fraction, float(job[4])) not in done
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for future in as_completed([pool.submit(simulate, *job) for job in todo]):
            table = pd.concat([table, pd.DataFrame(future.result())]) if len(table) else pd.DataFrame(future.result())
            table = table.sort_values([*keys, "variant", "family", "seeds_of_study"], kind="stable")
            part = arguments.to.with_suffix(".part")
            table.to_csv(part, index=False, float_format="%.8g")
            part.replace(arguments.to)
            print(f"{len(table)} lines", flush=True)
