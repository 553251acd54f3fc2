"""What rows of pe-bench 2 say, where the law of the runs is known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers import tuned
from pe_lab.benchmark import fresh_seeds, task_rows, task_statistics, task_tables, twins
from pe_lab.benchmark.fresh_seeds import are_contrary, compare_fresh_seeds, drawn_cells, training_commands
from pe_lab.benchmark.task_results import TaskResults, read_results
from pe_lab.benchmark.task_statistics import FRESH_SEEDS
from pe_lab.benchmark.tasks import benchmark_tasks, task_named
from pe_lab.benchmark.undefined_encodings import defined_encodings
from pe_lab.statistics import Verdict

TASK, TEXT = task_named("induction"), task_named("causal_text")
MEANS = {"rope": 7.0, "alibi": 7.1, "none": 9.0, "t5": 11.0, "fire": 8.0, "learnable": 9.9, "cope": 12.5}


def test_an_encoding_that_is_octaves_faster_is_better_and_its_mean_is_geometric() -> None:
    found = tuned.table("induction", MEANS)
    table = task_statistics.endpoints(found, TASK).set_index("pe")
    assert list(table.index[:2]) in (["rope", "alibi"], ["alibi", "rope"])
    assert (table["runs"] == 5).all()
    own = found.loc[found["pe"] == "fire", "y"]
    assert table["mean"]["fire"] == pytest.approx(2 ** own.mean())
    assert table["low"]["fire"] < 256 < table["high"]["fire"]
    assert (table["solved"]["rope"], table["solved"]["cope"]) == (5, 0)
    assert table["mean"]["cope"] == pytest.approx(3840)
    assert table["share_low"]["rope"] == pytest.approx(0.478, abs=1e-3)
    assert table["share_high"]["cope"] == pytest.approx(0.522, abs=1e-3)
    assert (table["first"]["rope"], table["last"]["rope"]) == (1, 2)
    pairs = task_statistics.compare_pairs(found, TASK).set_index(["pe", "baseline"])["verdict"]
    assert pairs["none", "t5"] == Verdict.BETTER
    assert pairs["alibi", "rope"] == Verdict.EQUIVALENT
    counts = task_statistics.count_verdicts(task_statistics.compare_pairs(found, TASK))
    assert sum(counts.values()) == 21
    assert counts["both unsolved"] == 0


def test_runs_with_the_same_bits_are_equal_and_others_are_not() -> None:
    found = tuned.table("induction", MEANS)
    twins = {"rope": "rope_dynamic_ntk", "cope": "wall"}
    both = pd.concat([found, *(found[found["pe"] == pe].assign(pe=twin) for pe, twin in twins.items())])
    both = both.reset_index(drop=True)

    def verdict(rows: pd.DataFrame, pe: str, other: str) -> str:
        return str(task_statistics.compare_pairs(rows, TASK).set_index(["pe", "baseline"])["verdict"][pe, other])

    assert verdict(both, "rope", "rope_dynamic_ntk") == "equal"
    assert task_statistics.equal_encodings(task_statistics.compare_pairs(both, TASK), "rope_dynamic_ntk") == ["rope"]
    assert verdict(both, "cope", "wall") == Verdict.BOTH_UNSOLVED
    assert task_statistics.count_verdicts(task_statistics.compare_pairs(both, TASK))["equal"] == 1
    last = both.index[both["pe"] == "rope_dynamic_ntk"][-1]
    both.loc[last, "loss_x1"] += 1e-9
    assert verdict(both, "rope", "rope_dynamic_ntk") != "equal"
    assert task_statistics.equal_encodings(task_statistics.compare_pairs(both, TASK), "rope") == []


def test_fewer_seeds_than_were_simulated_give_no_verdict() -> None:
    table = task_statistics.compare_pairs(tuned.table("induction", MEANS, seeds=range(4)), TASK)
    assert set(table["verdict"]) == {Verdict.TOO_FEW_SEEDS}
    counts = task_statistics.count_verdicts(table)
    assert counts.pop(Verdict.TOO_FEW_SEEDS) == len(table) == 21
    assert not any(counts.values())
    later = pd.concat([tuned.table("induction", MEANS), tuned.table("induction", {"bam": 8.0}, seeds=range(4))])
    table = task_statistics.compare_pairs(later, TASK)
    few = (table["pe"] == "bam") | (table["baseline"] == "bam")
    assert ((table["verdict"] == Verdict.TOO_FEW_SEEDS) == few).all()


def test_shares_of_solved_runs_differ_where_all_of_one_and_none_of_another_solve() -> None:
    table = task_statistics.share_pairs(tuned.table("induction", MEANS), TASK).set_index(["pe", "baseline"])
    assert len(table) == 21
    of_unsolved = table[[("cope" in pair) for pair in table.index]]
    full = of_unsolved[of_unsolved[["solved", "baseline_solved"]].max(axis=1) == 5]
    assert len(full) >= 3
    assert set(full["verdict"]) <= {"more", "fewer"}
    assert ((full["verdict"] == "more") == (full["solved"] > full["baseline_solved"])).all()
    assert table.loc[("alibi", "rope"), "verdict"] == Verdict.UNDECIDED
    assert task_statistics.share_pairs(tuned.table("causal_text", {"rope": 2.0, "t5": 2.1}), TEXT).empty


def test_what_a_rate_alone_would_have_cost_is_measured_in_octaves_at_least() -> None:
    made = [
        tuned.row(TASK, "rope", 0, 8.0, try1_pass=9.0, try2_pass=8.0, try3_pass=None, try3_steps=512),
        tuned.row(
            TASK, "rope", 1, 8.0, lr=1e-3, edge=True, try1_pass=8.0, try2_pass=8.5, try3_pass=None, try3_steps=128
        ),
        tuned.row(TASK, "rope", 2, None, lr=1e-2, edge=True),
    ]
    found = task_statistics.rate_sensitivity(task_rows.rows_frame(made), TASK)
    assert found == {
        "rates": "1/1/0",
        "edge": pytest.approx(2 / 3),  # of all seeds
        "lost_0.001": pytest.approx(0.5),
        "lost_0.003": pytest.approx(0.25),
        "lost_0.01": pytest.approx(0.5),  # an octave, and nothing that is known
    }
    made = [
        tuned.row(TEXT, "rope", seed, 1.5, try1_quarter=-1.9, try2_quarter=-1.7, try3_quarter=None) for seed in (0, 1)
    ]
    found = task_statistics.rate_sensitivity(task_rows.rows_frame(made), TEXT)
    assert found["rates"] == "0/2/0"
    assert [found[f"lost_{rate:g}"] for rate in tuned.RATES] == pytest.approx([0.2, 0, np.nan], nan_ok=True)


def test_a_text_is_compared_by_its_loss_and_a_seed_that_diverged_is_counted() -> None:
    made = tuned.table("causal_text", {"rope": 1.5, "none": 2.2, "alibi": 1.6, "t5": 1.6, "fire": 1.9}, 0.01)
    made = pd.concat([made, task_rows.rows_frame([tuned.row(TEXT, "rope", 5, None, lr=None)])], ignore_index=True)
    table = task_statistics.endpoints(made, TEXT).set_index("pe")
    assert list(table["runs"]) == [5] * 5
    assert table["diverged"]["rope"] == 1
    assert "solved" not in table
    assert table["mean"]["rope"] == pytest.approx(1.5, abs=0.02)
    assert (task_statistics.compare_pairs(made, TEXT)["verdict"] == Verdict.BETTER).sum() >= 4
    longer = task_statistics.scores(made, TEXT).set_index(["pe", "length"])["mean"]
    assert longer["rope", 4.0] == pytest.approx(4 * longer["rope", 1.0])


def test_scores_at_lengths_are_shares_of_the_way() -> None:
    table = task_statistics.scores(tuned.table("induction", {"rope": 7.0, "none": 9.0}), TASK).set_index(
        ["pe", "length"]
    )
    assert table["mean"]["rope", 2.0] == pytest.approx(0.9 / 1.1)
    assert table["runs"]["rope", 2.0] == 5


def test_coverage_counts_defined_encodings_with_seeds_enough() -> None:
    found = pd.concat(
        [tuned.table("induction", MEANS), tuned.table("induction", {"xpos": 8.0}, seeds=range(4))], ignore_index=True
    )
    line = task_statistics.progress({"induction": found}).set_index("task").loc["induction"]
    assert (line["defined"], line["measured"], line["fewest seeds"]) == (len(defined_encodings(TASK)), 6, 4)  # not cope
    assert line["core-hours"] == pytest.approx(39 * 36 / 3600)
    assert line["edge"] == 0
    bag = task_statistics.progress({}).set_index("task").loc["bag"]
    assert (bag["defined"], bag["measured"]) == (10, 0)


def test_one_encoding_has_no_pair_and_a_rank() -> None:
    found = tuned.table("induction", {"rope": 7.0})
    assert task_statistics.compare_pairs(found, TASK).empty
    (line,) = task_statistics.endpoints(found, TASK).to_dict("records")
    assert (line["first"], line["last"]) == (1, 1)


def test_twins_with_the_same_seeds_are_equal_and_with_other_seeds_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "TWINS", (("rope", "twin"),))
    monkeypatch.setattr(twins, "NEAR_TWINS", (("none", "t5"),))
    made = tuned.table("induction", MEANS)
    copied = made[made["pe"] == "rope"].assign(pe="twin")
    found = {"induction": pd.concat([made, copied], ignore_index=True)}
    lines = twins.placebo(found).set_index("kind")
    assert lines["apart"]["twins"] == 0
    assert (lines["same"]["twins"], lines["seeds"]["twins"]) == ("equal", 5)
    assert lines["shifted"]["twins"] in ("equivalent", "undecided")
    assert lines["same"]["near"] == "better"
    assert twins.count_false_positives(twins.placebo(found), "same")[:2] == (0, 1)
    far = pd.concat([made, copied.assign(y=copied["y"] + 2)], ignore_index=True)
    assert twins.count_false_positives(twins.placebo({"induction": far}), "shifted")[:2] == (1, 1)


def test_a_shift_moves_the_seeds_of_one_encoding_alone() -> None:
    made = tuned.table("induction", {"rope": 7.0, "none": 9.0}, seeds=range(3))
    moved = twins.shift_seeds(made, "rope")
    before, after = (one.set_index(["pe", "seed"])["y"] for one in (made, moved))
    assert [after["rope", seed] for seed in range(3)] == [before["rope", seed] for seed in (1, 2, 0)]
    assert [after["none", seed] for seed in range(3)] == [before["none", seed] for seed in range(3)]


def test_a_cell_is_drawn_by_itself_and_each_task_has_two(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = drawn_cells()
    counts = pd.Series([name for name, _ in drawn]).value_counts()
    assert set(counts.index) == {one.name for one in benchmark_tasks()}
    assert counts.min() >= 2
    share = len(drawn) / sum(len(defined_encodings(one)) for one in benchmark_tasks())
    assert 0.15 < share < 0.35
    monkeypatch.setattr(fresh_seeds, "defined_encodings", lambda one: [*defined_encodings(one), "later", "later still"])
    assert [cell for cell in drawn_cells() if not cell[1].startswith("later")] == drawn


def test_the_cells_with_fresh_seeds_are_drawn_once_and_are_defined() -> None:
    found = drawn_cells()
    assert drawn_cells() == found
    assert len(found) == len(set(found)) >= 40
    assert all(pe in defined_encodings(task_named(name)) for name, pe in found)
    for group in twins.TWINS:
        assert any(set(group) <= {pe for name, pe in found if name == one.name} for one in benchmark_tasks())
    lines = training_commands()
    assert sum(len(line.split(" pe=")[1].split(" ")[0].split(",")) for line in lines) == len(found)
    assert all(line.endswith("seed=100,101,102,103,104") for line in lines)


def both(shift: float, draw: int = 0) -> pd.DataFrame:
    """Published rows of seven encodings, and fresh ones of five, which are so many octaves slower."""
    names = [name for name in MEANS if name not in ("cope", "t5")]
    means = {name: MEANS[name] + shift * number for number, name in enumerate(names)}
    later = tuned.table("induction", means, seeds=FRESH_SEEDS, draw=1000 + draw)
    return pd.concat([tuned.table("induction", MEANS, draw=draw), later], ignore_index=True)


def test_fresh_seeds_of_the_same_law_agree() -> None:
    found = [compare_fresh_seeds({"induction": both(0, draw)}) for draw in range(12)]
    inside, all_ = (sum(getattr(one.predicted, name) for one in found) for name in ("count", "total"))
    assert all_ == 120
    assert 0.9 < inside / all_ <= 1
    contained = sum(one.contained.count for one in found)
    assert contained < inside
    assert sum(one.contradicted.count for one in found) == 0
    assert {len(one.means) for one in found} == {5}
    assert 0.6 < sum(one.means_contained.count for one in found) / 60 < 0.95


def test_fresh_seeds_of_another_law_do_not() -> None:
    found = compare_fresh_seeds({"induction": both(-1.0)})  # learnable and fire come first
    assert found.predicted.count / found.predicted.total < 0.6
    assert found.contradicted.count > 0
    text = task_tables.fresh_seeds_text({"induction": both(-1.0)})
    assert f"contradict: {found.contradicted}" in text


def test_prediction_intervals_are_wider_than_those_of_the_mean_by_the_error_of_a_fresh_one() -> None:
    lines = compare_fresh_seeds({"induction": both(0)}).pairs
    wider = (lines["most"] - lines["least"]) / (lines["high"] - lines["low"])
    assert wider.to_numpy() == pytest.approx(np.sqrt(2))


def test_fresh_verdicts_take_their_variances_from_the_published_pairs() -> None:
    """Five fresh seeds of two encodings that happen to be alike prove little where published ones are spread."""
    means = dict.fromkeys(["rope", "alibi", "t5", "none", "learnable", "fire", "cope"], 8.0)
    spread = tuned.table("induction", means, deviation=1.5)
    alike = tuned.table("induction", {"rope": 8.0, "alibi": 9.5}, deviation=0.01, seeds=FRESH_SEEDS)
    (line,) = compare_fresh_seeds({"induction": pd.concat([spread, alike], ignore_index=True)}).pairs.itertuples()
    assert abs(line.fresh) == pytest.approx(1.5, abs=0.1)
    assert line.fresh_verdict == Verdict.UNDECIDED


def test_fresh_seeds_enter_published_tables_only_where_solved_seeds_are_counted() -> None:
    found = both(3.0)
    assert set(task_statistics.published_rows(found)["seed"]) == set(range(5))
    one, other = (TaskResults.from_rows(TASK, rows_) for rows_ in (found, task_statistics.published_rows(found)))
    counts = ["all_solved", "all_runs"]
    pd.testing.assert_frame_equal(one.table.drop(columns=counts), other.table.drop(columns=counts))
    assert one.table["all_runs"].sum() > other.table["all_runs"].sum()
    assert (one.best, one.beaten, one.highest_at) == (other.best, other.beaten, other.highest_at)


@pytest.mark.parametrize(
    ("one", "other", "is_contrary"),
    [
        ("better", "worse", True),
        ("better", "slightly worse", True),
        ("slightly better", "slightly better", False),
        ("slightly worse", "better", True),
        ("equivalent", "better", True),
        ("worse", "equivalent", True),
        ("equivalent", "slightly worse", False),
        ("better", "undecided", False),
        ("better", "both unsolved", False),
    ],
)
def test_contrary_verdicts(one: str, other: str, is_contrary: bool) -> None:
    assert are_contrary(Verdict(one), Verdict(other)) == is_contrary


def test_all_tables_are_printed_and_exported(tmp_path: Path) -> None:
    found = {"induction": both(0), "causal_text": tuned.table("causal_text", {"rope": 1.5, "none": 2.2}, 0.01)}
    for name, rows_ in found.items():
        task_rows.write_rows(task_named(name), rows_, tmp_path / "package")
    assert {one.task.name for one in read_results(tmp_path / "package")} == set(found)
    task_rows.write_rows(TASK, tuned.table("induction", MEANS, seeds=range(4)), tmp_path / "begun")
    assert read_results(tmp_path / "begun") == read_results(tmp_path) == []
    own = pd.concat([both(0), tuned.table("induction", {"mine": 9.0}, seeds=range(2))])
    task_rows.write_rows(TASK, own, tmp_path / "own")
    assert "mine" not in TaskResults(TASK, own).best  # nothing is known of it yet
    assert len(read_results(tmp_path / "own")) == 1  # an encoding of one's own with fewer seeds hides nothing
    known = task_tables.read_all_rows(tmp_path / "package")
    assert list(known) == [one.name for one in benchmark_tasks() if one.name in found]
    text = task_tables.format_tables(known)
    assert all(word in text for word in ("induction: ", "causal_text: ", "Twins", "Replication: 5 cells"))
    coverage = text.splitlines()[1:5]
    assert all(word.isdigit() for word in coverage[1].split()[1:4])
    assert "lost_" not in text
    assert "lost_" in task_tables.format_tables(known, ["induction"])
    paths = task_tables.write_tables(known, tmp_path / "out")
    assert {path.name for path in paths} >= {"pe-bench-2-endpoints.csv", "pe-bench-2-pairs.csv"}
    pairs = pd.read_csv(tmp_path / "out" / "pe-bench-2-pairs.csv")
    apart = pairs[pairs["task"] == "causal_text"].set_index("length")["difference"].abs()
    assert apart.to_dict() == {length: pytest.approx(0.7 * length, abs=0.02 * length) for length in (1, 2, 4)}
    pairs = pairs.groupby(["task", "length"]).size()
    assert pairs.to_dict() == {("induction", 1): 21} | {("causal_text", length): 1 for length in (1, 2, 4)}
    assert set(pd.read_csv(tmp_path / "out" / "pe-bench-2-shares.csv")["task"]) == {"induction"}
    assert len(pd.read_csv(tmp_path / "out" / "pe-bench-2-rows.csv")) == 60 + 10


def test_encodings_with_the_same_runs_count_once_in_ranks() -> None:
    rows = tuned.table("induction", {"rope": 6.0, "alibi": 9.0, "none": 9.1, "fire": 11.0}, 0.05)
    twins = {"rope_dynamic_ntk": "rope", "integer": "none"}
    more = pd.concat([rows, *(rows[rows["pe"] == pe].assign(pe=twin) for twin, pe in twins.items())])
    alone, ranks = (task_statistics.endpoints(each, TASK).set_index("pe")[["first", "last"]] for each in (rows, more))
    pd.testing.assert_frame_equal(ranks.loc[alone.index], alone)
    for twin, pe in twins.items():
        assert ranks.loc[twin].tolist() == ranks.loc[pe].tolist()
    assert alone.loc["rope"].tolist() == [1, 1]
    assert alone.loc["fire"].tolist() == [4, 4]


def test_intervals_of_losses_end_at_0() -> None:
    task = task_named("causal_text")
    rows = tuned.table("causal_text", {"rope": 0.1, "none": 2.0}, 0.001)
    rows.loc[rows["pe"].eq("rope"), "y"] = [0.0, 0.0, 0.0, 0.0, 1.0]
    table, raw = TaskResults(task, rows).table.set_index("pe"), task_statistics.endpoints(rows, task).set_index("pe")
    assert (table.loc["rope", "low"], raw.loc["rope", "low"] < 0) == (0, True)
    assert table.loc["none", "low"] == raw.loc["none", "low"] > 0
