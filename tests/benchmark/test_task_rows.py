"""Rows of pe-bench 2 are written and read as they were, merged without doubt, and refused where they cannot be."""

import hashlib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers import tuned
from pe_lab.benchmark import task_rows
from pe_lab.benchmark.tasks import task_named
from pe_lab.system.files import LedgerError

TASK = task_named("induction")
TEXT = task_named("causal_text")
CAP = 11.906890595608518
PE_BENCH_1 = Path(__file__).parents[2] / "sweeps/results/pe_bench_1"  # not in the package


def make_rows(*seeds: int, pe: str = "rope", **more: Any) -> pd.DataFrame:
    return task_rows.rows_frame([tuned.row(TASK, pe, seed, 8.25 + seed / 7) | more for seed in seeds])


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = task_rows.rows_frame(
        [
            tuned.row(TASK, "rope", 0, 8.123456789012),
            tuned.row(TASK, "none", 1, None),
            tuned.row(TASK, "alibi", 3, None, lr=None, steps=None, run=None, loss_x4=None, threads=None),
        ]
    )
    path = task_rows.write_rows(TASK, found, tmp_path)
    content = path.read_bytes()
    again = task_rows.read_rows(TASK, tmp_path)
    pd.testing.assert_frame_equal(again.astype(object).fillna(0), found.astype(object).fillna(0), check_dtype=False)
    assert list(again["pe"]) == ["alibi", "none", "rope"]
    assert task_rows.write_rows(TASK, again, tmp_path).read_bytes() == content
    assert (tmp_path / task_rows.CHECKSUM_FILE).read_text().count(path.name) == 1
    assert b"36.0,0.1" in content  # whole numbers alone have no point


def test_rows_that_were_changed_are_refused(tmp_path: Path) -> None:
    task_rows.write_rows(TASK, make_rows(0), tmp_path)
    assert len(task_rows.read_rows(TASK, tmp_path)) == 1
    (tmp_path / f"{TASK.study}.csv").write_text("pe\nrope\n")
    with pytest.raises(LedgerError, match=r"pe_bench_2_induction.csv must have the digest \w{16}, got \w{16}"):
        task_rows.read_rows(TASK, tmp_path)


def test_other_seeds_and_encodings_are_added_and_the_same_ones_kept_once() -> None:
    known = make_rows(0, 1)
    both = task_rows.merge_rows(
        TASK, known, make_rows(1, 2, core_seconds=1.0, torch="3.0", hardware="another"), "there"
    )
    assert list(both["seed"]) == [0, 1, 2]
    assert list(both["core_seconds"]) == [36.0, 36.0, 1.0]
    both = task_rows.merge_rows(TASK, both, make_rows(0, pe="alibi", encoding="c" * 16, revision=3), "there")
    assert list(both["pe"]) == ["alibi", "rope", "rope", "rope"]
    assert list(task_rows.merge_rows(TASK, task_rows.rows_frame([]), known, "there")["seed"]) == [0, 1]
    assert list(task_rows.merge_rows(TASK, known, task_rows.rows_frame([]), "there")["seed"]) == [0, 1]


@pytest.mark.parametrize(
    ("more", "message", "left"),
    [
        ({"y": 9.0}, "rope, seed 1, of induction must be as shipped, with y 8.3928571, got 9.0 in there", 3),
        ({"loss_x4": 0.7}, "rope, seed 1, of induction must be as shipped, with loss_x4 0.4, got 0.7 in there", 3),
        ({"try3_pass": None}, "with try3_pass 8.8928571, got None in there", 3),
        (
            {"encoding": "c" * 16, "revision": 2},
            f"rows of rope on induction must be as shipped, with revision 1 ({'b' * 16}), got revision 2 ({'c' * 16})",
            2,
        ),
        (
            {"settings": "d" * 16},
            f"rows of induction must be as shipped, with settings {'a' * 16}, got settings {'d' * 16} in there",
            1,
        ),
    ],
)
def test_what_contradicts_shipped_rows_is_refused_or_takes_their_place(
    more: dict[str, Any], message: str, left: int
) -> None:
    known = pd.concat([make_rows(0, 1), make_rows(1, pe="alibi")], ignore_index=True)
    new = make_rows(1, **more)
    with pytest.raises(ValueError, match=".+") as caught:
        task_rows.merge_rows(TASK, known, new, "there")
    assert message in str(caught.value)
    assert str(caught.value).endswith("--replace takes those")
    assert "\n" not in str(caught.value)
    found = task_rows.merge_rows(TASK, known, new, "there", replace=True)
    assert len(found) == left
    task_rows.require_valid_rows(found, TASK, "all")
    (own,) = found[(found["pe"] == "rope") & (found["seed"] == 1)].to_dict("records")
    assert all(own[name] == value or pd.isna(own[name]) for name, value in more.items())


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        (TASK, {"seed": 1.5}, "must have an integer from 0 to 9007199254740992 in seed, got 1.5"),
        (TASK, {"seed": -1}, "in seed, got -1"),
        (TASK, {"loss_x2": -0.1}, "must have a finite number of at least 0 in loss_x2, got -0.1"),
        (TASK, {"loss_x1": float("inf")}, "must have a finite number of at least 0 in loss_x1, got inf"),
        (TASK, {"accuracy_x4": 1.2}, "must have a number in [0, 1] in accuracy_x4, got 1.2"),
        (TASK, {"solved": None}, "must have a value in solved, got none"),
        (TASK, {"solved": False}, "must have the cap, 11.9069, in y where it is not solved, got 8.25"),
        (TASK, {"y": 12.5}, "must have log2 steps from 4.907 to 11.91 in y, got 12.5"),
        (TASK, {"y": None}, "must have log2 steps from 4.907 to 11.91 in y, got None"),
        (TASK, {"benchmark": "pe-bench 1"}, "must have one of pe-bench 2 in benchmark, got 'pe-bench 1'"),
        (TASK, {"task": "copy"}, "must have induction in task, got copy"),
        (TASK, {"settings": "A" * 16}, "must have 16 hexadecimal digits in settings, got 'AAAAAAAAAAAAAAAA'"),
        (TASK, {"revision": 0}, "in revision, got 0"),
        (TASK, {"try2_lr": 0.0}, "in try2_lr, got 0"),
        (TASK, {"commit": "\x1b[2J"}, "must have a text of 1 to 500 printable characters in commit, got "),
        (TASK, {"colour": "red"}, "must have nothing, as there is no such column, in colour, got 'red'"),
        (TEXT, {"solved": True}, "must have the test loss in y and nothing in solved"),
        (TEXT, {"loss_x1": 1.0}, "must have the test loss in y and nothing in solved"),
    ],
)
def test_a_row_that_cannot_be_is_refused_before_it_is_written(
    tmp_path: Path, task: Any, more: dict[str, Any], message: str
) -> None:
    good = tuned.row(task, "rope", 0, 8.25)
    task_rows.write_rows(task, task_rows.rows_frame([good]), tmp_path)
    with pytest.raises(ValueError, match=".+") as caught:
        task_rows.write_rows(task, task_rows.rows_frame([good | {"pe": "alibi"}, good | more]), tmp_path / "other")
    assert message in str(caught.value)
    assert "in row " in str(caught.value)
    assert not (tmp_path / "other").exists()


def test_a_seed_twice_and_rows_of_two_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="all must have each seed of an encoding once, got rope, seed 0 twice"):
        task_rows.require_valid_rows(make_rows(0, 0), TASK, "all")
    mixed = pd.concat([make_rows(0), make_rows(1, encoding="c" * 16)])
    with pytest.raises(ValueError, match=r"all must have one digest of encoding of rope on induction, got b+ and c+"):
        task_rows.require_valid_rows(mixed, TASK, "all")
    mixed = pd.concat([make_rows(0), make_rows(1, settings="c" * 16)])
    with pytest.raises(ValueError, match=r"all must have one digest of settings of induction, got a+ and c+"):
        task_rows.require_valid_rows(mixed, TASK, "all")


def test_scores_follow_from_losses_and_levels() -> None:
    found = make_rows(0)
    assert task_rows.measured_lengths(found) == [1, 2, 4]
    assert [task_rows.score_at_length(found, length)[0] for length in (1, 2, 4)] == pytest.approx(
        [1 / 1.1, 0.9 / 1.1, 0.7 / 1.1]
    )
    assert task_rows.count_candidates(found) == 3
    assert pd.isna(task_rows.score_at_length(make_rows(0, level_x1=0.0))[0])


def test_rows_of_the_package_can_be_read() -> None:
    for name in ("induction", "causal_text"):
        task_rows.read_rows(task_named(name))


def test_the_cap_is_that_of_the_study() -> None:
    assert task_rows.rows_frame([tuned.row(TASK, "rope", 0)])["y"][0] == pytest.approx(CAP)


@pytest.mark.parametrize("folder", [task_rows.RESULTS_FOLDER, PE_BENCH_1], ids=["package", "pe_bench_1"])
def test_files_of_results_are_as_their_digests_say(folder: Path) -> None:
    lines = [line.split() for line in (folder / task_rows.CHECKSUM_FILE).read_text().splitlines()]
    assert {name for _, name in lines} == {file.name for file in folder.iterdir()} - {task_rows.CHECKSUM_FILE}
    for digest, name in lines:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_rows_of_pe_bench_1_can_be_read() -> None:
    read = pd.read_json(PE_BENCH_1 / "pe_bench_1_copy.jsonl.gz", lines=True)
    cells = pd.json_normalize(read.to_dict("records"))
    assert cells["identity.pe.name"].nunique() > 60
    assert cells["summary.test.loss"].notna().all()
