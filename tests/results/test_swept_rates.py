"""Learning rates are tuned on validation data only."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pe_lab.ledger.run import DIVERGED, ERROR
from pe_lab.results.frame import Results
from pe_lab.results.swept_rates import LR, choose_rates, edges_line

RATES = (1e-4, 1e-3, 1e-2)
# validation and test losses by rate: the lowest of the one is not the lowest of the other
VALIDATION = {"rope": (0.9, 0.5, 0.6), "none": (0.8, 0.9, 0.7)}
TEST = {"rope": (0.9, 0.6, 0.5), "none": (0.6, 0.8, 0.9)}


def results(
    validation: dict = VALIDATION,
    test: dict = TEST,
    seeds: int = 3,
    failed: tuple[tuple[str, float, int, str], ...] = (),
    **settings: object,
) -> Results:
    """Return cells of one setting, each with two validations, of which the first has the lower loss.

    Args:
        failed: cells that are not there: encoding, rate, seed and kind.
    """
    cells, curves = [], []
    for pe, losses in test.items():
        for seed in range(seeds):
            for rate, loss, validated in zip(RATES, losses, validation[pe], strict=True):
                where = {"pe": pe, "data": "structured", "depth": 4, "epochs": 2, "seed": seed, LR: rate} | settings
                noise = 0.01 * (seed - 1)
                if np.isfinite(loss) and (pe, rate, seed) not in [one[:3] for one in failed]:
                    cells.append(where | {"test_loss": loss + noise, "run": f"{pe}-{rate}-{seed}"})
                    for epoch, value in ((1.0, 0.1 / rate**0.01), (2.0, validated + noise)):
                        curves.append(where | {"epoch": epoch, "metric": "loss", "value": value})
                        curves.append(where | {"epoch": epoch, "metric": "accuracy", "value": -value})
    where = {"data": "structured", "depth": 4, "epochs": 2} | settings
    lost = [where | {"pe": pe, LR: rate, "seed": seed, "kind": kind} for pe, rate, seed, kind in failed]
    made = Results(Path("somewhere"), None, pd.DataFrame(cells), pd.DataFrame(lost))
    made.__dict__["curves"] = pd.DataFrame(curves)
    return made


def test_the_rate_is_that_of_the_lowest_validation_loss_and_not_of_the_lowest_test_loss():
    found = choose_rates(results()).rates.set_index("pe")
    assert found[LR].to_dict() == {"rope": 1e-3, "none": 1e-2}
    assert found["validation_loss"].to_dict() == pytest.approx({"rope": 0.5, "none": 0.7})
    assert found["test_loss"].to_dict() == pytest.approx({"rope": 0.6, "none": 0.9})
    assert (found["low"] < found["test_loss"]).all()
    assert (found["test_loss"] < found["high"]).all()
    assert found["at_edge"].to_dict() == {"rope": False, "none": True}


def test_rankings_at_one_rate_are_held_against_test_losses_at_the_tuned_ones():
    found = choose_rates(results()).agreement.set_index(LR)
    assert found["best here"].to_dict() == {1e-4: "none", 1e-3: "rope", 1e-2: "rope"}
    assert set(found["best when tuned"]) == {"rope"}
    assert found["tau"].to_dict() == {1e-4: -1, 1e-3: 1, 1e-2: 1}


def test_the_number_of_rates_at_the_edge_is_one_line():
    found = choose_rates(results()).rates
    assert edges_line(found) == "1 of 2 tuned rates stand at the edge of those that were tried: the best may lie beyond"
    inside = found[~found["at_edge"]]
    assert edges_line(inside) == "0 of 1 tuned rates stand at the edge of those that were tried"


def test_a_rate_of_which_nothing_is_known_is_not_chosen_and_shifts_the_edge():
    failed = TEST | {"none": (0.6, 0.8, np.nan)}
    found = choose_rates(results(test=failed)).rates.set_index("pe")
    assert found[LR].to_dict() == {"rope": 1e-3, "none": 1e-4}
    assert found["at_edge"].to_dict() == {"rope": False, "none": True}
    assert list(choose_rates(results(test=TEST | {"none": (np.nan,) * 3})).rates["pe"]) == ["rope"]


def test_a_rate_at_which_every_seed_diverged_was_tried():
    failed = tuple(("none", 1e-2, seed, DIVERGED) for seed in range(3))
    found = choose_rates(results({"rope": (0.9, 0.5, 0.6), "none": (0.8, 0.7, 0.1)}, failed=failed)).rates.set_index(
        "pe"
    )
    assert found[LR].to_dict() == {"rope": 1e-3, "none": 1e-3}
    assert found["at_edge"].to_dict() == {"rope": False, "none": False}
    assert found["seeds"].to_dict() == {"rope": 3, "none": 3}


@pytest.mark.parametrize(("kind", "rate"), [(DIVERGED, 1e-3), (ERROR, 1e-2)])
def test_the_seeds_that_did_not_diverge_do_not_speak_for_their_rate(kind: str, rate: float):
    made = results({"rope": (0.9, 0.5, 0.1), "none": (0.8, 0.7, 0.9)}, failed=(("rope", 1e-2, 2, kind),))
    found = choose_rates(made)
    assert found.rates.set_index("pe").loc["rope", LR] == rate
    assert found.agreement.set_index(LR).loc[1e-2, "best here"] == ("none" if kind == DIVERGED else "rope")


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_encoding_that_diverged_at_every_rate_has_no_line(seeds: int):
    failed = tuple(("none", rate, seed, DIVERGED) for rate in RATES for seed in range(seeds))
    assert list(choose_rates(results(failed=failed)).rates["pe"]) == ["rope"]


def test_a_table_of_failures_that_does_not_say_which_diverged_is_refused():
    made = results(failed=(("none", 1e-2, 0, DIVERGED),))
    del made.failed["kind"]
    with pytest.raises(ValueError, match=r"^failed\.csv must say in a column kind"):
        choose_rates(made)


def test_a_rate_at_which_all_encodings_diverged_ranks_nothing():
    failed = tuple((pe, 1e-2, seed, DIVERGED) for pe in TEST for seed in range(3))
    found = choose_rates(results(failed=failed))
    assert list(found.agreement[LR]) == [1e-4, 1e-3]


def test_a_missing_value_is_a_setting_of_a_failed_cell_too():
    made = results({"rope": (0.9, 0.5, 0.1), "none": (0.8, 0.7, 0.9)}, failed=(("rope", 1e-2, 2, DIVERGED),), clip=None)
    assert choose_rates(made).rates.set_index("pe").loc["rope", LR] == 1e-3


def test_each_number_of_epochs_has_its_own_rate_though_one_run_has_several_checkpoints():
    made = results()
    long = made.cells.assign(epochs=4)
    short = made.cells.assign(test_loss=made.cells["test_loss"] + 1)
    made = Results(made.source, None, pd.concat([long, short], ignore_index=True))
    rows = [
        {"epoch": 2.0, "by": {1e-4: 0.5, 1e-3: 0.6, 1e-2: 0.7}},
        {"epoch": 4.0, "by": {1e-4: 0.7, 1e-3: 0.4, 1e-2: 0.6}},
    ]
    curves = pd.concat([long.assign(epoch=row["epoch"], metric="loss", value=long[LR].map(row["by"])) for row in rows])
    made.__dict__["curves"] = curves.drop(columns=["run", "test_loss"])
    found = choose_rates(made).rates.set_index(["pe", "epochs"])
    assert found[LR].to_dict() == {("rope", 4): 1e-3, ("none", 4): 1e-3, ("rope", 2): 1e-4, ("none", 2): 1e-4}
    assert found["validation_loss"].to_dict() == pytest.approx(
        dict.fromkeys((("rope", 4), ("none", 4)), 0.4) | dict.fromkeys((("rope", 2), ("none", 2)), 0.5)
    )


def test_a_validation_that_is_not_finite_is_not_the_lowest():
    found = choose_rates(results(VALIDATION | {"rope": (0.9, np.nan, 0.6)})).rates.set_index("pe")
    assert found.loc["rope", LR] == 1e-2


def test_a_missing_value_is_a_setting_of_its_own():
    found = choose_rates(results(**{"trainer.clip": None})).rates
    assert list(found[LR]) == [1e-3, 1e-2]
    assert found["low"].notna().all()


def test_one_seed_has_no_interval():
    found = choose_rates(results(seeds=1)).rates
    assert found[["low", "high"]].isna().all(axis=None)


def test_rates_need_several_of_them_and_a_validation():
    one = results()
    with pytest.raises(ValueError, match=r"several values of optimizer.lr, got one in somewhere"):
        choose_rates(Results(one.source, None, one.cells.drop(columns=LR)))
    one.__dict__["curves"] = one.curves.head(0)
    with pytest.raises(ValueError, match="tuning needs validation curves, got none in somewhere"):
        choose_rates(one)
