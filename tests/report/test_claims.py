"""Each claim gets the verdict that follows from its measurements."""

import re
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from pe_lab.config import expand, folder, of_jobs, studies
from pe_lab.report import claims
from pe_lab.report.claims import CLAIMS, Part, Studies, decide, verdicts
from pe_lab.report.claims import report as write
from pe_lab.report.claims.definitions import CLAIMED, groups
from pe_lab.report.claims.parts import FAILS, HOLDS, MARGIN, OPEN, above, below, exact, near
from pe_lab.results.columns import MEASURED

SEEDS = range(5)
NUMBER = {claim.measure.__name__: number for number, claim in enumerate(CLAIMS)}
PAID = {"parameters": 1, "positional_parameters": 0, "flops_per_token": 1.0, "seconds": 1.0, "attention": "sdpa"}


def noise(*key: object) -> float:
    """Return a small number that depends only on the key."""
    return float(np.random.default_rng(crc32(str(key).encode())).normal(0, 0.002))


def save(place: Path, study: str, cells: list[dict], records: list[dict] | None = None) -> None:
    rows = pd.DataFrame(cells).assign(**PAID)
    rows["run"] = [f"{number:x}" for number in range(len(rows))]
    (place / study).mkdir(exist_ok=True)
    rows.to_csv(place / study / "rows.csv", index=False)
    if records is not None:
        known = pd.DataFrame(records)
        settings = [name for name in known if name not in MEASURED]
        known.reindex(columns=[*settings, *MEASURED]).to_csv(place / study / "records.csv", index=False)


def cell(pe: str, seed: int, loss: float, depth: int = 4, epochs: int = 16, **more: object) -> dict:
    apart = {name: value for name, value in more.items() if not name.startswith(("test_", "floor_"))}
    tests = {name: value for name, value in more.items() if name.startswith(("test_", "floor_"))}
    return (
        {"pe": pe, "data": "structured", "depth": depth, "epochs": epochs, "seed": seed}
        | apart
        | {"test_loss": loss + noise(pe, seed)}
        | tests
    )


def verdict(place: Path, name: str) -> str:
    """The verdict on one claim; the others are not computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pe_lab.report.claims.verdict.CLAIMS", [CLAIMS[NUMBER[name]]])
        (found,) = verdicts(Studies(place))
    return found.verdict


def test_claims_without_their_studies_are_not_testable(tmp_path):
    found = verdicts(Studies(tmp_path))
    assert len(found) == 10
    assert {one.verdict for one in found} == {"not testable at this budget"}
    assert "python -m pe_lab.run -m +study=depth_epochs_pe" in found[0].measured


def test_one_seed_is_not_testable(tmp_path):
    save(tmp_path, "depth_epochs_pe", [cell(pe, 0, 1.0) for pe in ("learnable", "sininit", "rope")])
    assert verdict(tmp_path, "lowest") == "not testable at this budget"


@pytest.mark.parametrize(
    ("learnable", "expected"), [(0.98, "supported"), (0.5, "refuted"), (1.5, "refuted"), (1.0, "undecided")]
)
def test_learnable_is_lowest_everywhere_or_not(learnable, expected, tmp_path):
    losses = {"learnable": learnable, "sininit": 1.0, "rope": 1.1}
    cells = [cell(pe, seed, loss, depth) for pe, loss in losses.items() for seed in SEEDS for depth in (1, 4)]
    save(tmp_path, "depth_epochs_pe", cells)
    assert verdict(tmp_path, "lowest") == expected


def pattern(place: Path, accuracy: dict[str, float], far: dict[str, float], none_loss: float = 0.7) -> None:
    cells = [
        cell(pe, seed, none_loss, data=task, test_accuracy=value + noise("a", pe, seed), floor_position_blind_loss=0.62)
        for pe, value in accuracy.items()
        for seed in SEEDS
        for task in ("pattern", "pattern_hard")
    ]
    records = [
        {"pe": pe, "data": "pattern", "depth": 3, "epochs": 20, "seed": seed, "kind": "length", "length": length}
        | {"policy": "raw", "offset": 0, "metric": "accuracy", "value": value + noise("l", pe, seed, length)}
        for pe in accuracy
        for seed in SEEDS
        for length, value in ((1, accuracy[pe]), (4, far[pe]))
    ]
    save(place, "pattern", cells, records)


def test_a_published_ranking_is_compared_figure_by_figure(tmp_path):
    pattern(tmp_path, CLAIMED, CLAIMED)
    assert verdict(tmp_path, "ranking") == "supported"
    pattern(tmp_path, CLAIMED | {"none": 0.69}, CLAIMED)
    assert verdict(tmp_path, "ranking") == "refuted"
    # all within the margin, in another order
    pattern(tmp_path, CLAIMED | {"continuous": 0.93, "relative_bias": 0.91}, CLAIMED)
    assert verdict(tmp_path, "ranking") == "refuted"
    # all within the margin, two of them equal
    pattern(tmp_path, CLAIMED | {"continuous": 0.93}, CLAIMED)
    assert verdict(tmp_path, "ranking") == "undecided"
    # the order, with figures of which one is at the border of the margin
    pattern(tmp_path, CLAIMED | {"none": 0.35 + MARGIN}, CLAIMED)
    assert verdict(tmp_path, "ranking") == "undecided"


def test_carrying_over_to_longer_sequences_is_tested(tmp_path):
    near = dict.fromkeys(CLAIMED, 0.9)
    pattern(tmp_path, near, near | {"learnable": 0.4})
    assert verdict(tmp_path, "carried") == "supported"
    pattern(tmp_path, near, near)
    assert verdict(tmp_path, "carried") == "refuted"


def layers(place: Path, r2: float, rank: float, cosine: float, moved: float) -> None:
    cells, records = [], []
    for pe in ("none", "sinusoidal", "learnable", "continuous", "rope"):
        for seed in SEEDS:
            for norm in ("pre", "post"):
                apart = {"pe": pe, "depth": 16, "epochs": 4, "seed": seed, "model.norm": norm}
                cells.append(apart | {"test_loss": 1.0})
                for layer, ends in ((0, (0.99, 50.0)), (1, (0.99, 50.0)), (16, (r2, rank))):
                    values = {
                        ("position", "r2"): ends[0],
                        ("rank", "effective_rank"): ends[1],
                        ("rank", "gradient_parameters"): 1.0,
                        ("attention", "entropy"): 1.0,
                        ("subspace", "mean_cosine"): cosine,
                        ("subspace", "mean_cosine_random"): 0.3,
                        ("subspace", "moved_by_1"): moved,
                    }
                    for (probe, metric), value in values.items():
                        if layer == 0 and metric in ("entropy", "gradient_parameters"):
                            continue
                        value *= 1 + noise(pe, seed, norm, layer, metric)
                        known = {"kind": "probe", "probe": probe, "length": 1, "layer": layer}
                        records.append(apart | known | {"metric": metric, "value": value})
    save(place, "layers", cells, records)


@pytest.mark.slow  # it trains with probes
def test_probes_decide_claims_on_layers(tmp_path):
    layers(tmp_path, r2=0.2, rank=5.0, cosine=0.3, moved=0.01)
    assert [verdict(tmp_path, name) for name in ("fades", "collapses", "harmless")] == ["supported"] * 3
    layers(tmp_path, r2=0.99, rank=48.0, cosine=0.6, moved=0.01)
    assert [verdict(tmp_path, name) for name in ("fades", "collapses", "harmless")] == ["refuted"] * 3
    layers(tmp_path, r2=0.99, rank=48.0, cosine=0.3, moved=0.4)
    assert verdict(tmp_path, "harmless") == "refuted"


@pytest.mark.parametrize(
    ("rse", "sticks", "expected"), [(1.0, 0.1, "supported"), (3.0, 0.1, "refuted"), (1.0, 0.9, "refuted")]
)
def test_extrapolation_is_compared_with_rope(rse, sticks, expected, tmp_path):
    far = {"rope": 2.0, "rse": rse, "exposb": 1.0, "stick_breaking": 1.0}
    growth = {"rope": 0.5, "stick_breaking": sticks}
    cells = [cell(pe, seed, 1.0) for pe in far for seed in SEEDS]
    records = []
    for pe in far:
        for seed in SEEDS:
            apart = {"pe": pe, "depth": 4, "epochs": 16, "seed": seed}
            for length, loss, entropy in ((1, 1.0, 1.0), (4, far[pe], 1.0 + growth.get(pe, 0))):
                near = noise(pe, seed, length)
                known = {"kind": "length", "length": length, "policy": "raw", "offset": 0, "metric": "loss"}
                records.append(apart | known | {"value": loss + near})
                known = {"kind": "probe", "probe": "attention", "length": length, "layer": 1, "head": 0}
                records.append(apart | known | {"metric": "entropy", "value": entropy + near})
    save(tmp_path, "extrapolation", cells, records)
    assert verdict(tmp_path, "extrapolates") == expected


def audit(place: Path, **of_none: float) -> None:
    columns = {"uniqueness": 1.0, "consistency": 0.0, "order_causal": 0.5, "order_bidirectional": 0.5}
    columns |= {"size": 0.1, "time_1024": 1.0, "reach": 64}
    rows = {name: dict(columns) for name in ("none", "a", "b", "c", "d", "e", "f")}
    rows["none"] |= {"order_bidirectional": 1e-16, "order_causal": 0.2, "uniqueness": 0.0} | of_none
    for number, name in enumerate("abcdef"):  # a has all, each next has one fewer
        for property_, bad in list({"reach": 1, "time_1024": 5.0, "size": 3.0, "consistency": 1.0}.items())[:number]:
            rows[name][property_] = bad
    (place / "audit").mkdir(exist_ok=True)
    pd.DataFrame(rows).T.rename_axis("pe").to_csv(place / "audit" / "table.csv")


def test_order_blindness_needs_the_audit_and_the_floor(tmp_path):
    audit(tmp_path)
    pattern(tmp_path, CLAIMED, CLAIMED)
    assert verdict(tmp_path, "blind") == "supported"
    audit(tmp_path, order_causal=0.0)
    assert verdict(tmp_path, "blind") == "refuted"
    audit(tmp_path)
    pattern(tmp_path, CLAIMED, CLAIMED, none_loss=0.3)  # below what a blind model can reach
    assert verdict(tmp_path, "blind") == "refuted"


@pytest.mark.parametrize(("sign", "expected"), [(1, "supported"), (-1, "refuted"), (0, "undecided")])
def test_properties_are_held_against_losses(sign, expected, tmp_path):
    audit(tmp_path)
    losses = {name: 1 + sign * 0.1 * number for number, name in enumerate("abcdef")}
    if sign == 0:
        losses = {"a": 1.3, "b": 1.1, "c": 1.4, "d": 1.2, "e": 1.5, "f": 1.0}
    save(tmp_path, "all_encodings", [cell(pe, seed, loss) for pe, loss in losses.items() for seed in SEEDS])
    assert verdict(tmp_path, "good") == expected


@pytest.mark.parametrize(
    ("t5", "alibi", "expected"), [(0.8, 0.1, "supported"), (0.1, 0.8, "refuted"), (0.8, 0.8, "undecided")]
)
def test_longer_sequences_are_pooled_over_tasks(t5, alibi, expected, tmp_path):
    values = {"none": 0.9, "t5": t5, "alibi": alibi, "rope": 0.0, "sinusoidal": 0.05}
    for study, tasks in (("lengths", ("copy", "reverse")), ("lengths_repeat", ("repeat",))):
        cells, records = [], []
        for task in tasks:
            for pe, value in values.items():
                for seed in SEEDS:
                    apart = {"pe": pe, "data": task, "depth": 2, "epochs": 16, "seed": seed}
                    cells.append(apart | {"test_loss": 0.1})
                    for length, far in ((1, 1.0), (1.5, value), (2, value)):
                        known = {"kind": "length", "length": length, "policy": "raw", "offset": 0}
                        exact = far + noise(task, pe, seed, length)
                        records.append(apart | known | {"metric": "exact_match", "value": exact})
        save(tmp_path, study, cells, records)
    assert verdict(tmp_path, "longer") == expected


def test_the_committed_claims_are_those_of_the_committed_studies_with_one_family_each(tmp_path, monkeypatch):
    """All parts of a claim that were not computed exactly are tested and corrected together."""
    results = Path(claims.__file__).parents[3] / "sweeps" / "results"
    if not results.is_dir():
        pytest.skip("not a checkout")
    families = []

    def recorded(found):
        families.append(sum(isinstance(part, Part) and part.tested for part in found))
        return decide(found)

    monkeypatch.setattr("pe_lab.report.claims.verdict.decide", recorded)
    write(results, tmp_path)
    # 9 settings x 4 encodings, and one over all settings; 5 figures and 4 orders; ...
    assert families == [37, 9, 4, 3, 3, 1, 6, 2, 6, 1]
    text = (tmp_path / "claims.csv").read_text()
    assert [int(size) for size in re.findall(r"Holm over (\d+) tests?", text)] == families
    assert text == (results / "claims.csv").read_text()


def of(p: float, sign: int) -> Part:
    """Return a part with this two-sided p, on the side where it holds for sign 1."""
    return Part("x", p / 2, 1 - p / 2) if sign > 0 else Part("x", 1 - p / 2, p / 2)


def test_parts_are_corrected_step_by_step():
    """Holm (1979): the smallest p times their number, the next times one less; after an open one, all are open."""
    states, _ = decide([of(0.03, 1), of(0.5, 1), of(0.6, -1)])
    assert states == [OPEN] * 3
    states, _ = decide([of(0.03, -1)])
    assert states == [FAILS]
    states, _ = decide([of(0.01, 1), of(0.04, -1), of(0.02, -1)])
    assert states == [HOLDS, FAILS, FAILS]
    states, _ = decide([of(0.02, 1), of(0.04, -1), of(0.02, -1)])
    assert states == [OPEN] * 3


def test_computed_parts_are_not_in_the_family():
    states, lines = decide([exact("a", True), of(0.03, 1), exact("b", False), "beside"])
    assert states == [HOLDS, HOLDS, FAILS]
    assert lines[0] == "a (holds)"
    assert lines[-1] == "2 of 3 parts hold, 1 contradicted, 0 open; p corrected by Holm over 1 test"


def test_a_claim_of_many_parts_names_those_that_are_decided_and_counts_the_others():
    _, lines = decide([of(0.5, 1)] * 20 + [of(1e-9, -1)])
    assert lines == [
        "x (p < 0.0001, contradicted)",
        "0 of 21 parts hold, 1 contradicted, 20 open; p corrected by Holm over 21 tests",
    ]


@pytest.mark.parametrize("bound", [0.0, -MARGIN, 0.3])
def test_a_part_is_a_two_sided_t_test_against_its_bound(bound):
    for mean in (-0.4, bound + 0.01, 0.4):
        sample = pd.Series(np.random.default_rng(0).normal(mean, 0.2, 5))
        tested = stats.ttest_1samp(sample, bound)
        up, down = above("x", sample, bound), below("x", sample, bound)
        assert up.p == pytest.approx(tested.pvalue)
        assert down.p == pytest.approx(tested.pvalue)
        assert (up.holds < up.fails) == (down.fails < down.holds) == (sample.mean() > bound)


def test_a_figure_is_near_by_two_one_sided_tests_and_far_by_one():
    for mean in (0.5, 0.52, 0.54, 0.6, 0.9):
        sample = pd.Series(np.random.default_rng(0).normal(mean, 0.02, 5))
        part = near("x", sample, 0.5)
        within = DescrStatsW(sample).ttost_mean(0.5 - MARGIN, 0.5 + MARGIN)[0]
        beyond = stats.ttest_1samp(sample, 0.5 + MARGIN, alternative="greater").pvalue
        assert part.p == pytest.approx(min(1, 2 * min(within, beyond)))
        assert (part.holds < part.fails) == (within < beyond)
    below_it = near("x", pd.Series([0.1, 0.11, 0.12]), 0.5)
    assert decide([below_it])[0] == [FAILS]


@pytest.mark.parametrize("deviation", [0.01, 0.05, 0.5])
def test_a_figure_at_the_border_of_the_margin_is_decided_in_at_most_5_percent(deviation):
    draws = np.random.default_rng(0).normal(0.5 + MARGIN, deviation, (1000, 3))
    decided = np.mean([near("x", pd.Series(sample), 0.5).p < 0.05 for sample in draws])
    assert decided < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


@pytest.mark.parametrize("values", [[0.3], [0.3, np.nan], [0.3, np.inf, 0.2], [0.0, 0.0, 0.0], [-0.1, 0.1, 0.0]])
def test_parts_that_cannot_be_tested_are_open(values):
    part = above("x", pd.Series(values))
    assert decide([part])[0] == [OPEN]
    assert part.p == 1


def test_equal_values_are_decided_and_said_to_be_equal():
    part = above("x", pd.Series([0.2, 0.2, 0.2]))
    assert decide([part])[0] == [HOLDS]
    assert part.words == "x +0.200 [+0.200, +0.200], equal in every seed"


def test_one_part_of_four_that_is_significant_only_alone_refutes_nothing(tmp_path):
    """One part has p = 0.03 before correction; the other three are at the margin."""
    rng = np.random.default_rng(0)
    records, cells = [], []
    for pe in ("relative_bias", "continuous", "sinusoidal", "learnable"):
        change = rng.normal(0, 0.05, len(SEEDS))
        t = {"sinusoidal": -3.26}.get(pe, -0.3)  # 3.26: the two-sided p of 4 degrees of freedom is 0.03
        change += -MARGIN - change.mean() + t * change.std(ddof=1) / np.sqrt(len(SEEDS))
        for seed in SEEDS:
            apart = {"pe": pe, "data": "pattern", "depth": 3, "epochs": 20, "seed": seed}
            cells.append(apart | {"test_loss": 1.0})
            for length, value in ((1, 0.9), (4, 0.9 + change[seed])):
                known = {"kind": "length", "length": length, "policy": "raw", "offset": 0}
                records.append(apart | known | {"metric": "accuracy", "value": value})
    save(tmp_path, "pattern", cells, records)
    found = verdicts(Studies(tmp_path))[NUMBER["carried"]]
    assert found.verdict == "undecided"
    assert "0 of 4 parts hold, 0 contradicted, 4 open" in found.measured
    assert "(p = 0.12, open)" in found.measured


def test_encodings_whose_losses_are_near_in_every_seed_are_one_group():
    step = 0.8 * MARGIN
    losses = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1 + step, 2.0], "d": [1 + 2 * step, 2.0]})
    losses["e"] = [1.0, 2.0 + 1.01 * MARGIN]  # the same mean as c's neighbours, but not in every seed
    found = groups(losses)
    assert found["a"] == found["b"]
    assert found["a"] != found["d"]  # though c is near both
    assert found["e"] != found["a"]
    assert groups(losses[["a"]]).tolist() == [1]


def test_three_copies_of_an_encoding_count_once(tmp_path):
    """The rank correlation of five encodings is open; three copies of each, taken as independent, would decide it."""
    audit(tmp_path)
    table = pd.read_csv(tmp_path / "audit" / "table.csv", index_col="pe")
    copies = [table.rename(index={name: f"{name}{copy}" for name in "abcdef"}) for copy in "12"]
    pd.concat([table, *(of.drop("none") for of in copies)]).to_csv(tmp_path / "audit" / "table.csv")
    losses = {"a": 1.1, "b": 1.0, "c": 1.2, "d": 1.4, "e": 1.3}  # fewer properties, more loss: two pairs exchanged
    cells = [cell(f"{pe}{copy}", seed, loss) for pe, loss in losses.items() for copy in ("", 1, 2) for seed in SEEDS]
    save(tmp_path, "all_encodings", cells)
    found = verdicts(Studies(tmp_path))[NUMBER["good"]]
    assert found.verdict == "undecided"
    assert "15 encodings at depth 4" in found.measured
    assert "count once, which makes 5: Spearman's ρ" in found.measured


def test_a_folder_that_does_not_say_its_task_is_not_testable(tmp_path):
    audit(tmp_path)
    pattern(tmp_path, CLAIMED, CLAIMED)
    for name in ("rows", "records"):
        path = tmp_path / "pattern" / f"{name}.csv"
        pd.read_csv(path).drop(columns="data").to_csv(path, index=False)
    found = verdicts(Studies(tmp_path))
    for name in ("ranking", "carried", "blind"):
        assert found[NUMBER[name]].verdict == "not testable at this budget"
        assert "does not say the task of its cells" in found[NUMBER[name]].measured


def test_the_claims_are_written_and_printed(tmp_path, capsys):
    audit(tmp_path)
    pattern(tmp_path, CLAIMED, CLAIMED)
    write(tmp_path, None)
    text = (tmp_path / "claims.csv").read_text()
    assert text.count("not testable at this budget") >= 7
    assert "SUPPORTED: Without any encoding a bidirectional model is order-blind" in capsys.readouterr().out
    assert (tmp_path / "claims.html").is_file()


@pytest.mark.slow  # it composes hundreds of cells
@pytest.mark.parametrize("size", ["small", "full"])
def test_every_study_of_the_claims_composes(size):
    lists = studies(["-m", "+study=claims", f"size={size}", "trainer.device=cpu", "pe=none,rope"])
    names = set()
    for words in lists:
        cfgs = expand(of_jobs(words), multirun=True)
        assert {cfg.trainer.device for cfg in cfgs} == {"cpu"}
        assert len({cfg.seed for cfg in cfgs}) >= 3
        names.add(cfgs[0].study_name)
    expected = {"depth_epochs_pe", "pattern", "lengths", "lengths_repeat", "extrapolation", "layers", "all_encodings"}
    assert names == expected


def test_a_study_of_studies_is_a_sweep_of_a_size():
    assert studies(["-m", "+study=bag"]) == []
    assert studies(["pe=rope"]) == []
    with pytest.raises(ValueError, match="is made of sweeps: add -m"):
        studies(["+study=claims"])
    with pytest.raises(ValueError, match="size must be one of small, full, got 'huge'"):
        studies(["-m", "+study=claims", "size=huge"])
    with pytest.raises(ValueError, match="must be a number of core-hours, got budget=full: did you mean size=full"):
        studies(["-m", "+study=claims", "budget=full"])
    assert (folder() / "study" / "claims.yaml").is_file()
