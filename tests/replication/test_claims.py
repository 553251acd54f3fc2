"""Claims: values of their parts from the rows of studies, verdicts, and universes."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from pe_lab import config
from pe_lab.replication import Claimed, Entry, EntryVerdict, judge_entry, load_entries, universe
from pe_lab.replication.claim_tests import universe_claim
from pe_lab.replication.study_values import read_study_values
from pe_lab.replication.values import SHIPPED_FILE as VALUES
from pe_lab.replication.values import values_by_entry, values_to_csv
from pe_lab.statistics import Agreement
from pe_lab.system.exact_csv import read_csv

DRAWS, SEEDS, TOLERANCE = 1000, 5, 0.05
MAX_WRONG = 0.05 + 3 * math.sqrt(0.05 * 0.95 / DRAWS)  # of a rate of 5 %, three standard deviations
SHIPPED = Path(__file__).parents[2] / "sweeps/results"


def claimed(rule: str, bound: float = 0.0, *, ratio: bool = False, **rows: object) -> Claimed:
    value = {"metric": "loss", **rows}
    return Claimed(value, ({"pe": "rope"},), ratio, rule, bound)  # type: ignore[arg-type]


def claim(**values: Claimed) -> Entry:
    return Entry(
        name="table/claim",
        title="A paper",
        paper="https://arxiv.org/abs/0000.00000",
        says="It works.",
        source="table 1",
        seen=True,
        unit="nats",
        values=values,
        tolerance=TOLERANCE,
        seeds=3,
        setting=(),
        chosen=(),
        lacks=None,
        minutes=40.0,
        timed=False,
        studies={"mine": ("pe=alibi,rope",)},
    )


# of each rule: the part, and means at which it is right, at its edge, and wrong
KINDS = {
    "above": (claimed("above", 0.3), 0.4, 0.3, 0.2),
    "below": (claimed("below", -0.05), -0.15, -0.05, 0.05),
    "near": (claimed("near", 0.5), 0.5, 0.5 + TOLERANCE, 0.5 + 3 * TOLERANCE),
    "ratio": (claimed("below", 0.5, ratio=True), 0.4, 0.5, 0.6),
}


@pytest.mark.covering
@pytest.mark.parametrize("deviation", [0.01, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_planted_claims_end_in_their_verdict_at_the_stated_rates(kind: str, deviation: float) -> None:
    """Of claims of three parts, 1,000 draws each: wrong verdicts in at most 5 %, whatever the spread.

    With a small spread, right ones are reproduced and wrong ones are not in at least 95 %.
    """
    part, right, edge, wrong = KINDS[kind]
    entry, rng, shares = claim(a=part, b=part, c=part), np.random.default_rng(0), {}
    for name, mean in (("right", right), ("edge", edge), ("wrong", wrong)):
        found = []
        for _ in range(DRAWS):
            noise = deviation * rng.standard_normal((3, SEEDS))
            values = mean * np.exp(noise) if part.ratio else mean + noise
            found.append(judge_entry(entry, dict(zip("abc", values, strict=True))).verdict)
        shares[name] = {verdict: found.count(verdict) / DRAWS for verdict in EntryVerdict}
    contradicted = {
        name: share[EntryVerdict.NOT_REPRODUCED] + share[EntryVerdict.MIXED] for name, share in shares.items()
    }
    assert contradicted["right"] <= MAX_WRONG
    assert contradicted["edge"] + shares["edge"][EntryVerdict.REPRODUCED] <= MAX_WRONG
    assert shares["wrong"][EntryVerdict.REPRODUCED] <= MAX_WRONG
    if deviation < TOLERANCE / 2:
        assert shares["right"][EntryVerdict.REPRODUCED] >= 0.95
        assert shares["wrong"][EntryVerdict.NOT_REPRODUCED] >= 0.95


@pytest.mark.long
def test_parts_are_t_tests_that_are_corrected_together() -> None:
    """Against scipy and statsmodels; the agreement changes at the level."""
    rng, undecided = np.random.default_rng(0), 0
    for _ in range(20):
        values = {
            "a": rng.normal(0.3, 0.5, 5),
            "b": rng.normal(rng.choice([0.4, 0.5, 0.6]), 0.02, 4),
            "c": np.exp(rng.normal(-0.5, 0.3, 6)),
        }
        entry = claim(a=claimed("above", -0.05), b=claimed("near", 0.5), c=claimed("below", 1.0, ratio=True))
        within = DescrStatsW(values["b"]).ttost_mean(0.45, 0.55)[0]
        beyond = min(
            stats.ttest_1samp(values["b"], 0.55, alternative="greater").pvalue,
            stats.ttest_1samp(values["b"], 0.45, alternative="less").pvalue,
        )
        log = np.log(values["c"])
        p = [
            stats.ttest_1samp(values["a"], -0.05).pvalue,
            min(1.0, 2 * min(within, beyond)),
            stats.ttest_1samp(log, 0.0).pvalue,
        ]
        holds = [values["a"].mean() > -0.05, within < beyond, log.mean() < 0]
        compared = judge_entry(entry, values).compared
        for label, corrected, right in zip("abc", multipletests(p, method="holm")[1], holds, strict=True):
            expected = Agreement.REPRODUCED if right else Agreement.NOT_REPRODUCED
            assert compared[label].agreement == (expected if corrected < 0.05 else Agreement.UNDECIDED)
            undecided += corrected >= 0.05
    assert 5 < undecided < 55


def test_an_interval_excludes_the_bound_exactly_where_the_part_is_decided() -> None:
    """Of many parts, with levels by the rank of the p value: 5 % / m, 5 % / (m - 1), ... up to the first open one."""
    rng, agreements = np.random.default_rng(0), set()
    for _ in range(50):
        values = {str(part): rng.normal(rng.choice([0, 0.5, 1]), 0.4, 5) for part in range(8)}
        compared = judge_entry(claim(**dict.fromkeys(values, claimed("above", 0.0))), values).compared
        for one in compared.values():
            assert (one.low <= 0 <= one.high) == (one.agreement == Agreement.UNDECIDED)
            agreements.add(str(one.agreement))
        p = {part: stats.ttest_1samp(sample, 0).pvalue for part, sample in values.items()}
        first = min(p, key=p.__getitem__)
        low, high = stats.t.interval(1 - 0.05 / 8, 4, values[first].mean(), stats.sem(values[first]))
        assert [float(compared[first].low), float(compared[first].high)] == pytest.approx([low, high])
    assert len(agreements) > 1
    log = np.log(ratios := np.exp(rng.normal(-0.5, 0.3, 6)))
    alone = judge_entry(claim(c=claimed("below", 1.0, ratio=True)), {"c": ratios}).compared["c"]
    assert [float(alone.low), float(alone.high)] == pytest.approx(
        np.exp(stats.t.interval(0.95, 5, log.mean(), stats.sem(log)))
    )


@pytest.mark.parametrize("values", [[0.3, np.nan, 0.2], [0.3, np.inf, 0.2], [0.0, 0.0, 0.0], [-0.1, 0.1, 0.0]])
def test_parts_that_cannot_be_tested_are_undecided(values: list[float]) -> None:
    assert judge_entry(claim(a=claimed("above")), {"a": values}).verdict is EntryVerdict.UNDECIDED


def test_equal_values_are_decided() -> None:
    assert judge_entry(claim(a=claimed("above")), {"a": [0.2] * 3}).verdict is EntryVerdict.REPRODUCED
    assert judge_entry(claim(a=claimed("above")), {"a": [-0.2] * 3}).verdict is EntryVerdict.NOT_REPRODUCED


def save(folder: Path, name: str, cells: pd.DataFrame, records: pd.DataFrame | None = None) -> None:
    paid = {"parameters": 1, "positional_parameters": 0, "flops_per_token": 1.0, "seconds": 60.0, "attention": "sdpa"}
    (folder / name).mkdir()
    cells = cells.assign(**paid, device="cpu", run=[f"{number:x}" for number in range(len(cells))])
    cells.to_csv(folder / name / "rows.csv", index=False)
    if records is not None:
        records.to_csv(folder / name / "records.csv", index=False)


def cells(losses: dict[str, float], depths: tuple[int, ...] = (1,), seeds: int = 3) -> pd.DataFrame:
    """Return cells whose loss is that of the encoding + depth + seed / 10."""
    return pd.DataFrame(
        [
            {"pe": pe, "data": "copy", "depth": depth, "epochs": 1, "seed": seed, "test_loss": loss + depth + seed / 10}
            for depth in depths
            for seed in range(seeds)
            for pe, loss in losses.items()
        ]
    )


def test_a_value_is_a_mean_over_the_rows_that_meet_its_conditions(tmp_path: Path) -> None:
    rows = cells({"alibi": 2.0, "rope": 1.0, "none": 7.0}, (1, 3))
    save(tmp_path, "mine", rows[~((rows["seed"] == 2) & (rows["pe"] == "none") & (rows["depth"] == 3))])
    entry = claim(
        difference=claimed("above", pe="alibi"),
        deep=Claimed({"metric": "loss", "pe": "rope", "depth": "max"}, (), False, "above", 0.0),
        shallow=Claimed({"metric": "loss", "pe": ("rope", "alibi"), "depth": "< 3"}, (), False, "above", 0.0),
        both=Claimed({"metric": "loss", "pe": "rope", "depth": 1}, ({"depth": 3}, {"pe": "alibi"}), False, "near", 0.0),
        ratio=Claimed({"metric": "loss", "pe": "alibi", "depth": 1}, ({"pe": "rope"},), True, "above", 1.0),
    )
    found = read_study_values(entry, tmp_path, 3)
    assert found.seeds == [0, 1, 2]
    assert found.by_label["difference"] == pytest.approx([1.0] * 3)
    assert found.by_label["deep"] == pytest.approx([4.0, 4.1, 4.2])
    assert found.by_label["shallow"] == pytest.approx([2.5, 2.6, 2.7])
    assert found.by_label["both"] == pytest.approx([0.0] * 3)
    assert found.by_label["ratio"] == pytest.approx([3.0 / 2.0, 3.1 / 2.1, 3.2 / 2.2])
    assert found.minutes == pytest.approx([6.0, 6.0, 5.0])
    assert read_study_values(entry, tmp_path, 2).seeds == [0, 1]
    lacking = replace(entry, values={"none": Claimed({"metric": "loss", "pe": "none"}, (), False, "above", 0.0)})
    assert read_study_values(lacking, tmp_path, 3).seeds == [0, 1]  # seed 2 lacks a cell of the mean


def test_lengths_and_probes_are_read_from_records_and_properties_from_the_audit(tmp_path: Path) -> None:
    known = {"pe": "rope", "data": "copy", "depth": 1, "epochs": 1, "policy": "raw", "offset": 0, "tokens": 8}
    rows = [
        known | {"seed": seed, "kind": "length", "length": length, "metric": metric, "value": length + seed}
        for seed in range(3)
        for length in (1, 2, 4)
        for metric in ("loss", "accuracy")
    ]
    rows += [one | {"policy": "interpolate", "value": 99.0} for one in rows]
    probed = known | {"kind": "probe", "length": 1, "probe": "rank", "metric": "effective_rank"}
    rows += [probed | {"seed": seed, "layer": layer, "value": 10.0 * layer} for seed in range(3) for layer in (0, 2)]
    columns = ["kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    records = pd.DataFrame(rows).reindex(columns=["pe", "data", "depth", "epochs", "seed", *columns])
    save(tmp_path, "mine", cells({"rope": 1.0, "alibi": 2.0, "fire": 3.0}), records)
    entry = claim(
        longer=Claimed({"metric": "loss", "length": "> 1"}, ({"length": 1},), False, "above", 0.0),
        rank=Claimed({"metric": "effective_rank", "probe": "rank", "layer": "max"}, (), False, "above", 0.0),
    )
    assert read_study_values(entry, tmp_path, 3).by_label == {"longer": [2.0] * 3, "rank": [20.0] * 3}

    small = Claimed({"metric": "loss", "audit.size": "< 1"}, ({"audit.size": ">= 1"},), False, "below", 0.0)
    exact = Claimed({"metric": "audit.size", "pe": "rope"}, (), False, "below", 1.0)
    entry = claim(small=small, exact=exact)
    assert "there is no audit" in read_study_values(entry, tmp_path, 3).why
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "table.csv").write_text("pe,size\nrope,0.5\nalibi,2\nfire,\n")
    found = read_study_values(entry, tmp_path, 3)
    assert found.by_label["small"] == pytest.approx([-1.0] * 3)  # `fire` has no size, and counts on neither side
    assert found.by_label["exact"] == [0.5] * 3


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"pe": "yarn"}, "there are no rows of loss, pe yarn"),
        ({"data": "sort"}, "there are no rows of loss, data sort"),
        ({"model.norm": "pre"}, "there are no rows of loss, model.norm pre"),
        ({"metric": "exact_match"}, "there are no rows of exact_match"),
    ],
)
def test_what_a_claim_lacks_is_said(tmp_path: Path, part: dict[str, str], why: str) -> None:
    entry = claim(a=Claimed({"metric": "loss", **part}, (), False, "above", 0.0))
    assert read_study_values(entry, tmp_path, 3).why == "there is no study mine"
    save(tmp_path, "mine", cells({"rope": 1.0}))
    values = read_study_values(entry, tmp_path, 3)
    assert values.why.startswith(why)
    assert str(judge_entry(entry, values.by_label, values.why)) == f"not run: {values.why}; needs 2.0 core-hours"


def test_a_value_that_is_not_finite_is_not_left_out(tmp_path: Path) -> None:
    rows = cells({"rope": 1.0}, (1, 2))
    rows.loc[0, "test_loss"] = np.nan
    save(tmp_path, "mine", rows)
    entry = claim(a=Claimed({"metric": "loss", "pe": "rope"}, (), False, "above", 0.0))
    values = read_study_values(entry, tmp_path, 3)
    assert np.isnan(values.by_label["a"][0])
    assert judge_entry(entry, values.by_label).verdict is EntryVerdict.UNDECIDED


def test_the_shipped_values_of_claims_are_those_of_the_shipped_rows() -> None:
    if not SHIPPED.is_dir():
        pytest.skip("not a checkout")
    shipped = values_by_entry(VALUES)
    verdicts = {}
    for name, entry in load_entries().items():
        if entry.studies and all((SHIPPED / study / "rows.csv").is_file() for study in entry.studies):
            found = read_study_values(entry, SHIPPED, entry.seeds)
            assert values_to_csv({name: found}) == values_to_csv({name: shipped[name]}), name
            verdicts[name.partition("/")[2]] = str(judge_entry(entry, found.by_label).verdict)
    assert len(verdicts) >= 10
    assert verdicts["blind"] == "reproduced"
    assert verdicts["fades"] == "undecided"


def test_a_rise_that_is_there_without_an_encoding_says_nothing_of_the_encoding(tmp_path: Path) -> None:
    """`fades` compares R² of position with `none`, which rises too: the same rise in all is not a finding."""
    entry = load_entries()["claims/fades"]
    names = ["none", "sinusoidal", "learnable", "continuous"]
    known = {"data": "structured_heldout", "depth": 16, "epochs": 4, "model.norm": "pre"}
    noise = np.random.default_rng(0)
    rows = [
        {**known, "pe": pe, "seed": seed, "layer": layer, "value": 0.3 + 0.6 * (layer == 16) + noise.normal(0, 0.001)}
        for pe in names
        for seed in range(3)
        for layer in (0, 16)
    ]
    probed = {"kind": "probe", "length": 1, "probe": "position", "metric": "r2"}
    columns = ["kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    records = pd.DataFrame([row | probed for row in rows]).reindex(columns=[*known, "pe", "seed", *columns])
    save(tmp_path, "layers", cells(dict.fromkeys(names, 1.0)).assign(**known), records)
    found = judge_entry(entry, read_study_values(entry, tmp_path, 3).by_label)
    assert found.seeds == 3
    assert all(abs(mean) < 0.01 for mean in found.ours.values())
    assert Agreement.REPRODUCED not in {str(part.agreement) for part in found.compared.values()}


def test_the_studies_of_claims_name_the_tasks_of_the_shipped_rows() -> None:
    studies = {name: words for entry in load_entries().values() for name, words in entry.studies.items()}
    shipped = {name: SHIPPED / name / "rows.csv" for name in studies if (SHIPPED / name / "rows.csv").is_file()}
    if not shipped:
        pytest.skip("not a checkout")
    for name, file in shipped.items():
        one = [word for word in studies[name] if not word.startswith("pe=")]
        cells = config.expand_overrides(config.sweep_overrides([*one, "pe=none", "seed=0"]), multirun=True)
        assert {cell.data.name for cell in cells} == set(read_csv(file)["data"]), name


def everywhere(gap: dict[tuple[int, float], float]) -> Entry:
    entry = replace(
        claim(gap=claimed("above", pe="alibi")), universe={"model.depth": (1, 2, 4), "optimizer.lr": (0.1, 0.2)}
    )
    return universe_claim("here", entry)


def test_a_universe_says_where_a_claim_holds_and_where_it_turns(tmp_path: Path) -> None:
    gap = {(1, 0.1): 0.5, (1, 0.2): 0.5, (2, 0.1): -0.5, (2, 0.2): 0.5, (4, 0.1): -0.5, (4, 0.2): 0.0}
    rng, rows = np.random.default_rng(0), []
    for (depth, rate), better in gap.items():
        for seed in range(4):
            for pe, loss in (("alibi", better), ("rope", 0.0)):
                known = {"pe": pe, "data": "copy", "depth": depth, "epochs": 1, "seed": seed, "optimizer.lr": rate}
                rows.append(known | {"test_loss": 1 + loss + rng.normal(0, 0.01)})
    entry = everywhere(gap)
    save(tmp_path, "table-claim-universe", pd.DataFrame(rows))
    finding = judge_entry(entry, read_study_values(entry, tmp_path, 4).by_label)
    assert finding.verdict is EntryVerdict.MIXED

    states = universe.setting_states(finding).set_index(["model.depth", "optimizer.lr"])["state"].to_dict()
    meaning = {0.5: universe.HOLDS, -0.5: universe.FAILS, 0.0: universe.OPEN}
    assert states == {setting: meaning[better] for setting, better in gap.items()}
    assert "50%" in universe.summary_sentence(finding)
    by_value = universe.by_value(universe.setting_states(finding)).set_index("setting")
    assert by_value.loc["model.depth=1"].tolist() == [2, 0, 0]
    assert by_value.loc["model.depth=4"].tolist() == [0, 1, 1]
    assert by_value.loc["optimizer.lr=0.1"].tolist() == [1, 2, 0]
    (part,) = universe.by_part(finding).to_dict("records")
    assert part == {"part": "gap", "claimed": "above 0", "shown": 3, "contradicted": 2, "open": 1}
    assert universe.turning_points(finding) == [
        "optimizer.lr=0.1: holds at model.depth=1, is contradicted at model.depth=2",
        "model.depth=2: is contradicted at optimizer.lr=0.1, holds at optimizer.lr=0.2",
    ]
    drawn = universe.draw_universe(finding)
    assert len(drawn.data) == 6
    top, bottom = drawn.figure.axes
    points = np.concatenate([marks.get_offsets() for marks in top.collections if isinstance(marks, PathCollection)])
    assert sorted(points[:, 1]) == pytest.approx(sorted(drawn.data["mean"]))
    assert (np.diff(points[points[:, 0].argsort()][:, 1]) >= 0).all()
    assert [text.get_text() for text in bottom.get_yticklabels()] == [
        *("model.depth=1", "model.depth=2", "model.depth=4"),
        *("optimizer.lr=0.1", "optimizer.lr=0.2"),
    ]


def test_all_settings_of_a_universe_are_one_family() -> None:
    """A p of 0.03 in one of six settings decides nothing."""
    entry = everywhere({})
    sample = np.array([-1.0, 0.0, 1.0])
    shift = stats.t.isf(0.015, 2) * stats.sem(sample)
    assert stats.ttest_1samp(sample + shift, 0).pvalue == pytest.approx(0.03)
    values = dict.fromkeys(entry.values, sample) | {next(iter(entry.values)): sample + shift}
    assert judge_entry(entry, values).verdict is EntryVerdict.UNDECIDED
    alone = claim(gap=claimed("above"))
    assert judge_entry(alone, {"gap": sample + shift}).verdict is EntryVerdict.REPRODUCED
