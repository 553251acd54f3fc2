"""Tables of docs/simulations.md and docs/protocol.md, from the committed simulations and the pilot."""

from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "sweeps/results"
PROTOCOL = RESULTS / "protocol/verdicts.csv"
PILOT = RESULTS / "pe_bench_2_pilot/outcomes.csv"


def simulated(part: str) -> Any:
    """Return the sums over simulated studies of a part of the simulation, as a data frame."""
    from pe_lab.system.exact_csv import read_csv

    rows = read_csv(PROTOCOL)
    return rows[rows["part"] == part]


def percents(values: Any, total: Any, digits: int = 1) -> str:
    """Return shares in percent, divided by slashes; a dash where there is nothing to count."""
    shares = [f"{100 * a / b:.{digits}f}" if b else "–" for a, b in zip(values, total, strict=True)]
    return " / ".join(shares)


def with_interval(count: float, studies: float) -> str:
    """Return a share of studies in percent, with its exact 95 % interval."""
    from pe_lab.statistics import share_interval

    low, high = (100 * float(end) for end in share_interval(int(count), int(studies)))
    return f"{100 * count / studies:.1f} [{low:.1f}, {high:.1f}]"


def errors(family: str) -> str:
    """Return how often simulated studies of all pairs, or with a baseline, are wrong, by distribution and size."""
    rows = simulated("verdicts")
    rows = rows[(rows["family"] == family) & (rows["encodings"] > (2 if family == "all pairs" else 0))]
    wrong = "wrong among better and worse" if family == "all pairs" else "studies with a wrong better or worse"
    lines = [
        f"| distribution of runs | encodings | studies | {wrong}, 3 / 5 / 8 / 12 seeds | also for the typical run | "
        "the first in studies, 5 seeds | wrong equivalent in studies, 5 seeds | coverage, 3 / 5 / 8 / 12 seeds |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    looks = family == "baseline"
    if looks:
        lines[0] = lines[0].replace("8 / 12 seeds", "8 / 12 / up to 12 seeds")
    for (noise, encodings), part in rows.groupby(["noise", "encodings"], sort=False):
        by = part.set_index("seeds_of_study").loc[["3", "5", "8", "12", *(["up to 12"] if looks else [])]]
        of_mean, of_both = ("wrong_mean_any", "wrong_any") if looks else ("wrong_mean_share", "wrong_share")
        five = by.loc["5"]
        cells = [
            noise,
            encodings,
            int(five.studies),
            percents(by[of_mean], by.studies),
            percents(by[of_both], by.studies),
            with_interval(five.wrong_mean_any, five.studies),
            with_interval(five.unlike_solved_any, five.studies),
            percents(by.share_covered, by.studies_tested),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def replication() -> str:
    """Return what simulated studies decide, and what a fresh second study says about it."""
    rows = simulated("verdicts")
    chosen = rows["noise"].str.contains("shifts|law of rows|failures") & (rows["encodings"] > 2)
    lines = [
        "| distribution of runs | encodings | pairs decided, 3 / 5 / 8 / 12 seeds | differences of an octave found | "
        "verdicts confirmed | contradicted | octaves too large, 5 seeds | seeds used, looks at 5, 8, 12 | decided so |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (noise, encodings), part in rows[chosen].groupby(["noise", "encodings"], sort=False):
        by = part[part["family"] == "all pairs"].set_index("seeds_of_study").loc[["3", "5", "8", "12"]]
        looks = part[part["seeds_of_study"] == "up to 12"].iloc[0]
        decided = by.said + by.equivalent
        cells = [
            noise,
            encodings,
            percents(decided, by.pairs, 0),
            percents(by.found_large, by.true_large, 0),
            percents(by.confirmed, decided, 0),
            percents(by.contradicted, decided, 2),
            f"{by.exaggeration['5'] / by.large_true['5']:.2f}" if by.large_true["5"] else "–",
            f"{looks.seeds / looks.pairs:.1f}",
            percents([looks.said + looks.equivalent], [looks.pairs], 0),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def alternatives() -> str:
    """Return other ways to judge the same simulated runs: the worst error over the laws, and what is decided."""
    rows = simulated("alternatives")
    lines = [
        "| variant | worst share wrong, 5 / 12 seeds | worst studies wrong against a baseline | worst coverage | "
        "pairs decided, law of rows | confirmed |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for variant, part in rows[rows["variant"] != "look at 3"].groupby("variant", sort=False):
        pairs, base = (part[part["family"] == family] for family in ("all pairs", "baseline"))
        both = [pairs[pairs["seeds_of_study"] == seeds] for seeds in ("5", "12")]
        against = [base[base["seeds_of_study"] == seeds] for seeds in ("5", "12")]
        law = pairs[pairs["noise"] == "law of rows"].set_index("seeds_of_study").loc[["5", "12"]]
        cells = [
            variant,
            " / ".join(f"{100 * (each.wrong_mean_share / each.studies).max():.1f}" for each in both),
            " / ".join(f"{100 * (each.wrong_mean_any / each.studies).max():.1f}" for each in against),
            " / ".join(f"{100 * (each.share_covered / each.studies_tested).min():.1f}" for each in both),
            percents(law.said + law.equivalent, law.pairs, 0),
            percents(law.confirmed, law.said + law.equivalent, 0),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tuning() -> str:
    """Return what numbers of rates and fractions of the cap cost and give, under the law of the rows."""
    rows = simulated("tuning")
    rows = rows[(rows["family"] == "all pairs") & (rows["seeds_of_study"] == "5")]
    lines = [
        "| rates | fraction of the cap | cost of a seed, in caps | mean log2 steps | solved | of these at an edge | "
        "pairs decided, 5 seeds | confirmed |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows.itertuples():
        decided = row.said + row.equivalent
        cells = [
            row.rates,
            f"{row.fraction:g}",
            f"{row.run_steps / row.runs / 4000:.2f}",
            f"{row.run_y / row.runs:.2f}",
            percents([row.run_solved], [row.runs], 0),
            percents([row.run_edge], [row.run_solved], 0),
            percents([decided], [row.pairs], 0),
            percents([row.confirmed], [decided], 0),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def pilot() -> str:
    """Return the steps to solve of the pilot's runs, the rates they chose, and the accuracy at other lengths."""
    from pe_lab.system.exact_csv import read_csv

    rows = read_csv(PILOT)
    rows["accuracy"] = [f"{a:.2f} / {b:.2f} / {c:.2f}" for a, b, c in rows.filter(like="accuracy_").to_numpy()]
    lines = [
        "| task | encoding | steps to solve, seeds 0 and 1 | rates chosen "
        "| accuracy at 1 / 2 / 4 times the length, seed 0 |",
        "| :--- | :--- | ---: | ---: | ---: |",
    ]
    for (task, encoding), part in rows.groupby(["data", "pe"], sort=False):
        steps = [f"{2**run.y:,.0f}" if run.solved else "–" for run in part.itertuples()]
        rates = dict.fromkeys(f"{rate:g}" for rate in part["optimizer.lr"])
        cells = [task, f"`{encoding}`", ", ".join(steps), ", ".join(rates), part["accuracy"].iloc[0]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
