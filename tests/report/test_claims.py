"""Each claim gets the verdict that its numbers ask for."""

from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd
import pytest

from pe_lab.config import expand, folder, of_jobs, studies
from pe_lab.report.claims import CLAIMED, CLAIMS, Studies, verdicts
from pe_lab.report.claims import report as write

SEEDS = range(5)
NUMBER = {claim.__name__: number for number, claim in enumerate(CLAIMS)}
RECORD = ["kind", "length", "policy", "offset", "probe", "layer", "head", "metric", "value"]


def noise(*key: object) -> float:
    """Small, and the same for the same key."""
    return float(np.random.default_rng(crc32(str(key).encode())).normal(0, 0.002))


def save(place: Path, study: str, cells: list[dict], records: list[dict] | None = None) -> None:
    rows = pd.DataFrame(cells)
    rows["road"] = [f"{number:x}" for number in range(len(rows))]
    (place / study).mkdir(exist_ok=True)
    rows.to_csv(place / study / "rows.csv", index=False)
    if records is not None:
        known = pd.DataFrame(records)
        settings = [name for name in known if name not in RECORD]
        known.reindex(columns=[*settings, *RECORD]).to_csv(place / study / "records.csv", index=False)


def cell(pe: str, seed: int, loss: float, depth: int = 4, epochs: int = 16, **more: object) -> dict:
    apart = {name: value for name, value in more.items() if not name.startswith(("test_", "floor_"))}
    tests = {name: value for name, value in more.items() if name.startswith(("test_", "floor_"))}
    return (
        {"pe": pe, "depth": depth, "epochs": epochs, "seed": seed}
        | apart
        | {"test_loss": loss + noise(pe, seed)}
        | tests
    )


def verdict(place: Path, name: str) -> str:
    return verdicts(Studies(place))[NUMBER[name]].verdict


def test_what_was_not_trained_is_not_testable(tmp_path):
    found = verdicts(Studies(tmp_path))
    assert len(found) == 10
    assert {one.verdict for one in found} == {"not testable at this budget"}
    assert "python -m pe_lab.run -m +study=depth_epochs_pe" in found[0].measured


def test_one_seed_is_not_testable(tmp_path):
    save(tmp_path, "depth_epochs_pe", [cell(pe, 0, 1.0) for pe in ("learnable", "sininit", "rope")])
    assert verdict(tmp_path, "lowest") == "not testable at this budget"


@pytest.mark.parametrize(("learnable", "expected"), [(0.5, "supported"), (1.5, "refuted"), (1.0, "not separable")])
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
    assert verdict(tmp_path, "ranking") == "not separable"


def test_what_carries_over_is_told_from_what_does_not(tmp_path):
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


def test_probes_decide_what_layers_do(tmp_path):
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


@pytest.mark.parametrize(("sign", "expected"), [(1, "supported"), (-1, "refuted"), (0, "not separable")])
def test_properties_are_held_against_losses(sign, expected, tmp_path):
    audit(tmp_path)
    losses = {name: 1 + sign * 0.1 * number for number, name in enumerate("abcdef")}
    if sign == 0:
        losses = {"a": 1.3, "b": 1.1, "c": 1.4, "d": 1.2, "e": 1.35, "f": 1.15}
    save(tmp_path, "all_encodings", [cell(pe, seed, loss) for pe, loss in losses.items() for seed in SEEDS])
    assert verdict(tmp_path, "good") == expected


@pytest.mark.parametrize(
    ("t5", "alibi", "expected"), [(0.8, 0.1, "supported"), (0.1, 0.8, "refuted"), (0.8, 0.8, "not separable")]
)
def test_longer_sequences_are_pooled_over_tasks(t5, alibi, expected, tmp_path):
    values = {"none": 0.9, "t5": t5, "alibi": alibi, "rope": 0.0, "sinusoidal": 0.05}
    for study, tasks in (("lengths", ("copy", "reverse")), ("lengths_repeat", (None,))):
        cells, records = [], []
        for task in tasks:
            for pe, value in values.items():
                for seed in SEEDS:
                    apart = {"pe": pe} | ({"data": task} if task else {}) | {"depth": 2, "epochs": 16, "seed": seed}
                    cells.append(apart | {"test_loss": 0.1})
                    for length, far in ((1, 1.0), (1.5, value), (2, value)):
                        known = {"kind": "length", "length": length, "policy": "raw", "offset": 0}
                        exact = far + noise(task, pe, seed, length)
                        records.append(apart | known | {"metric": "exact_match", "value": exact})
        save(tmp_path, study, cells, records)
    assert verdict(tmp_path, "longer") == expected


def test_the_claims_are_written_and_printed(tmp_path, capsys):
    audit(tmp_path)
    pattern(tmp_path, CLAIMED, CLAIMED)
    write(tmp_path, None)
    text = (tmp_path / "claims.md").read_text()
    assert text.count("not testable at this budget") >= 7
    assert "SUPPORTED: Without any encoding a bidirectional model is order-blind" in capsys.readouterr().out
    assert (tmp_path / "claims.html").is_file()


@pytest.mark.parametrize("budget", ["small", "full"])
def test_every_study_of_the_claims_composes(budget):
    lists = studies(["-m", "+study=claims", f"budget={budget}", "trainer.device=cpu", "pe=none,rope"])
    names = set()
    for words in lists:
        cfgs = expand(of_jobs(words), multirun=True)
        assert {cfg.trainer.device for cfg in cfgs} == {"cpu"}
        assert len({cfg.seed for cfg in cfgs}) >= 3
        names.add(cfgs[0].study_name)
    expected = {"depth_epochs_pe", "pattern", "lengths", "lengths_repeat", "extrapolation", "layers", "all_encodings"}
    assert names == expected


def test_a_study_of_studies_is_a_sweep_with_a_budget():
    assert studies(["-m", "+study=bag"]) == []
    assert studies(["pe=rope"]) == []
    with pytest.raises(ValueError, match="is made of sweeps: add -m"):
        studies(["+study=claims"])
    with pytest.raises(ValueError, match="budget must be one of small, full, got 'huge'"):
        studies(["-m", "+study=claims", "budget=huge"])
    assert (folder() / "study" / "claims.yaml").is_file()
