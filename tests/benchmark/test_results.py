"""Scores, ranks and verdicts of the gallery are those of the statistics that reports use."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fabricated
from pe_lab import statistics
from pe_lab.benchmark.leaderboard import ALMOST_ALL, Leaderboard
from pe_lab.benchmark.pairs import Counts, Pairs
from pe_lab.benchmark.results import Results
from pe_lab.benchmark.task_results import Settings, TaskResults
from pe_lab.benchmark.tasks import STUDY, tasks
from pe_lab.benchmark.undefined import defined
from pe_lab.results import shipped
from pe_lab.results.shipped import Shipped
from pe_lab.statistics import GRID, prior_of
from pe_lab.system.files import LedgerError, digest


@pytest.fixture(scope="module")
def read(results: Path) -> Results:
    return Results.read(results)


def of(results: Results, name: str) -> TaskResults:
    return next(found for found in results.tasks if found.task.name == name)


def test_a_line_is_the_mean_over_seeds_with_its_interval(read: Results) -> None:
    line = of(read, "copy").at(2.0).loc["rope"]
    losses = [
        fabricated.cell("copy", "rope", seed, 0.9 - 0.7 * 3 / 7).summary["test"]["loss"] + 0.4 for seed in range(4)
    ]
    scores = pd.Series([1.25 - loss for loss in losses])
    assert (line["seeds"], line["tokens"]) == (4, 70)
    assert line["loss"] == pytest.approx(sum(losses) / 4)
    assert line["score"] == pytest.approx(scores.mean())
    assert (line["low"], line["high"]) == pytest.approx(statistics.interval(scores))
    assert (line["level"], line["best"], line["flops_per_token"]) == (1.25, 0.25, 2004.0)


def test_tasks_have_the_lengths_that_were_measured(read: Results) -> None:
    assert of(read, "place").lengths == [1.0]
    assert of(read, "copy").lengths == [1.0, 2.0]
    assert of(read, "bag").lengths == []
    assert [found.task.name for found in read.measured] == ["place", "copy", "recall"]


def test_ranks_are_those_of_a_family_of_comparisons_for_each_encoding(read: Results) -> None:
    found = of(read, "copy")
    for length in found.lengths:
        ranks = found.families[length].ranks(own=True).set_index("pe")
        table = found.at(length)
        assert set(ranks.index) == set(fabricated.NAMES) - {"fire"}
        for pe, line in ranks.iterrows():
            assert (table.loc[pe, "rank_best"], table.loc[pe, "rank_worst"]) == (line["best"], line["worst"])
    assert found.at().loc["t5", "rank_best"] == found.at().loc["t5", "rank_worst"] == 1


def test_ranks_and_the_best_are_by_families_of_their_own_on_tasks_and_on_average(tmp_path: Path) -> None:
    """With 25 encodings the two rules differ: `none` is behind all others, certainly so only among its own 24."""
    names = ["none", "rope", *(f"learnable{number}" for number in range(23))]
    for number, task in enumerate(("copy", "recall")):
        noise = np.random.default_rng(number).normal(0, 0.1, (len(names), 5))
        cells = [
            fabricated.cell(task, pe, seed, (0.6 if pe == "none" else 0.8) + noise[place, seed])
            for place, pe in enumerate(names)
            for seed in range(5)
        ]
        shipped.write(f"{STUDY}_{task}", cells, tmp_path)
    read = Results.read(tmp_path)
    board = read.leaderboards[1.0]
    assert board.compared is not None
    for compared, table, standing in (
        *((found.families[1.0], found.at(), found.standings[1.0]) for found in read.measured),
        (board.compared, board.table.set_index("pe"), board.standing),
    ):
        own, usual = (compared.ranks(own=each).set_index("pe") for each in (True, False))
        assert table["rank_worst"].astype(int).to_dict() == own["worst"].to_dict()
        assert table["rank_best"].astype(int).to_dict() == own["best"].to_dict()
        assert own["best"]["none"] > usual["best"]["none"]
        assert standing is not None
        assert set(standing.open) == set(own.index[own["best"] == 1])


def test_pairs_are_counted_by_their_verdicts_and_by_false_discovery_rate(read: Results) -> None:
    """Of all pairs of the encodings with enough seeds; equal to the bit counts as equivalent."""
    found = of(read, "copy")
    for length, pairs in found.pairs.items():
        lines = found.families[length].lines[GRID]
        assert pairs.encodings == len(found.ranked[length]) == 6
        assert pairs.all == len(lines) == 15
        differ, alike = (stats.false_discovery_control(lines[name]) < 0.05 for name in ("p", "p_equivalent"))
        assert pairs.discovered == Counts(differ.sum(), (alike & ~differ).sum())
        assert pairs.discovered.differ >= pairs.certain.differ
    assert found.pairs[1.0].certain.differ > 0
    cells = [fabricated.cell("copy", pe, seed, 0.5 + 0.01 * seed) for pe in ("alibi", "none") for seed in range(3)]
    twins = TaskResults.of(found.task, found.settings, cells)
    assert twins.pairs[1.0] == Pairs(2, 1, Counts(0, 1), Counts(0, 1))
    assert twins.pairs[1.0].words() == (
        "Of 1 pairs of 2 encodings 100 % are decided at a false discovery rate of 5 %: 0 differ, 1 equivalent; of "
        "each, at most about one in twenty is expected to be wrong. 100 % are decided with a family-wise error of 5 "
        "%: 0 differ, 1 equivalent; of each, any wrong one is unlikely."
    )
    assert TaskResults.of(found.task, found.settings, cells[:3]).pairs == {}


def test_pairs_are_counted_after_each_correction_by_hand() -> None:
    """Raw p values count 4 differences. Benjamini and Hochberg's thresholds are 0.05 k / 5, Holm's 0.05 / (6 - k)."""
    p, alike = [0.001, 0.015, 0.029, 0.045, 0.9, np.nan, np.nan], [0.9, 0.9, 0.9, 0.9, 0.012, np.nan, np.nan]
    verdicts = [*["any"] * 5, "equal", "no shared seed"]
    lines = pd.DataFrame({"p": p, "p_equivalent": alike, "verdict": verdicts})
    assert Pairs.of(4, lines) == Pairs(4, 7, certain=Counts(1, 1), discovered=Counts(3, 1))
    assert Pairs.of(4, lines.assign(p_equivalent=[0.9, 0.9, 0.9, 0.009, 0.9, np.nan, np.nan])).certain == Counts(1, 2)


def test_a_pair_that_is_both_different_and_within_the_margin_is_counted_as_different_once() -> None:
    lines = {"p": [0.001, 0.02, 0.9, np.nan], "p_equivalent": [0.001, 0.9, 0.001, np.nan]}
    verdicts = ["better, within the margin", "undecided", "undecided", "equal"]
    assert Pairs.of(4, pd.DataFrame({**lines, "verdict": verdicts})) == Pairs(4, 4, Counts(2, 2), Counts(2, 2))


def test_pairs_without_a_shared_seed_are_not_decided(read: Results) -> None:
    found = of(read, "copy")
    seeds = {"rope": range(3), "alibi": range(3), "none": range(3, 6)}
    cells = [fabricated.cell("copy", pe, seed, 0.5 + 0.01 * seed) for pe, chosen in seeds.items() for seed in chosen]
    pairs = TaskResults.of(found.task, found.settings, cells).pairs[1.0]
    assert pairs == Pairs(3, 3, Counts(0, 1), Counts(0, 1))


def test_variances_are_estimated_from_all_encodings_together(read: Results) -> None:
    """At each length and on average over tasks: more degrees of freedom than four seeds give."""
    found = of(read, "copy")
    for length in found.lengths:
        rows, metric = found.families[length].tables[GRID]
        prior = prior_of(statistics.wide(rows, metric).to_numpy(), 0.0, keep_small=True)
        assert prior.freedom > 1
        assert found.families[length].lines[GRID]["freedom"].max() == pytest.approx(3 + prior.freedom)
    standing = read.leaderboards[1.0].standing
    assert standing is not None
    assert standing.lines["freedom"].max() > 4


def test_beyond_the_training_length_the_share_that_remains_is_compared(read: Results) -> None:
    found = of(read, "copy")
    standing, table = found.standings[2.0], found.at(2.0)
    assert list(standing.means) == [pe for pe in table.index if pe != "fire"]
    assert standing.means["t5"] == pytest.approx(1 - table.loc["t5", "score"])
    assert standing.open == ["t5"]
    assert standing.words().startswith("At 2 × the training length, `t5` certainly has the lowest share of the gap")


def test_what_has_fewer_than_three_seeds_is_shown_and_not_ranked(read: Results) -> None:
    line = of(read, "copy").at().loc["fire"]
    assert line["seeds"] == 1
    assert pd.isna(line[["low", "high", "rank_best", "rank_worst"]].astype(float)).all()
    assert line["verdict"] == ""
    assert line["score"] == pytest.approx(0.9 - 0.7 * 4 / 7, abs=0.03)
    assert "fire" not in of(read, "copy").standings[1.0].means
    assert of(read, "place").at().loc["fire", "rank_best"] >= 1


def test_two_seeds_are_not_ranked_and_three_are(tmp_path: Path) -> None:
    cells = [
        fabricated.cell("copy", pe, seed, 0.5)
        for pe, count in (("rope", 3), ("t5", 2), ("none", 3))
        for seed in range(count)
    ]
    shipped.write(f"{STUDY}_copy", cells, tmp_path)
    found = of(Results.read(tmp_path), "copy")
    assert found.at()["rank_best"].notna().to_dict() == {"rope": True, "t5": False, "none": True}
    assert set(found.with_baseline) == {"none"}


def made(task: str, qualities: dict[str, float], seeds: int = 4, **changes: float) -> TaskResults:
    """The results of a task whose encodings have these scores."""
    chosen = next(one for one in tasks() if one.name == task)
    settings, cells = Settings.of(chosen), []
    for pe, quality in qualities.items():
        for seed in range(seeds):
            cell = fabricated.cell(task, pe, seed, quality, **changes)
            summary = cell.summary | {"epochs": settings.epochs}
            cells.append(replace(cell, epochs=settings.epochs, summary=summary))
    return TaskResults.of(chosen, settings, cells)


def test_what_is_not_told_apart_shares_its_ranks() -> None:
    table = made("copy", {"none": 0.1, "rope": 0.8, "t5": 0.805}).at()
    ranks = {pe: (table.loc[pe, "rank_best"], table.loc[pe, "rank_worst"]) for pe in table.index}
    assert ranks == {"t5": (1, 2), "rope": (1, 2), "none": (3, 3)}


def test_a_margin_in_nats_is_that_of_the_loss_at_the_training_length() -> None:
    """Beyond it, shares of the gap are compared, for which a margin in nats says nothing."""
    found = made("causal_text", {"none": 0.1, "rope": 0.8, "alibi": 0.5})
    assert str(found.task.margin) == found.families[1.0].margin == "0.02 nats"
    assert found.families[2.0].margin != "0.02 nats"
    assert found.with_baseline["none"].margin == pytest.approx(0.02)
    assert found.families[1.0].baseline == found.families[2.0].baseline == "rope"


def test_one_cell_without_a_score_leaves_the_scores_of_a_length_compared() -> None:
    found = made("copy", {"none": 0.1, "rope": 0.8, "alibi": 0.5}, seeds=5)
    found.lines.loc[found.lines["length"].eq(2) & found.lines["seed"].eq(4), "score"] = float("nan")
    assert found.families[2.0].tables[GRID][1] == "remaining"


def test_a_length_that_was_measured_twice_counts_once() -> None:
    task = next(one for one in tasks() if one.name == "copy")
    cell = fabricated.cell("copy", "rope", 0, 0.5)
    (record,) = cell.records
    request = {"kind": "length", "length": 2.0}
    found = TaskResults.of(task, Settings.of(task), [replace(cell, records=[record, record | {"request": request}])])
    assert found.lines["length"].tolist() == [1.0, 2.0]


def test_verdicts_are_those_of_all_seeds_with_the_baseline_as_one_family(read: Results) -> None:
    found = of(read, "copy")
    table = found.at()
    assert table.loc["t5", "verdict"] == "better"
    assert table.loc["none", "verdict"] == "worse"
    assert table.loc["rope", "verdict"] == ""
    line = found.with_baseline["alibi"]
    differences = [
        found.cells["alibi", seed].summary["test"]["loss"] - found.cells["rope", seed].summary["test"]["loss"]
        for seed in range(4)
    ]
    assert line.seeds == 4  # all
    assert line.difference == pytest.approx(sum(differences) / 4)
    lines = found.families[1.0].compare()
    np.testing.assert_allclose(lines["p_holm"], statistics.holm(lines["p"].to_numpy()))
    assert line.margin == pytest.approx(0.05)
    assert set(found.with_baseline) == set(fabricated.NAMES) - {"rope", "fire"}
    row = table.loc["alibi"]
    assert (row["difference_low"], row["difference_high"]) == (line.low, line.high)
    assert row["difference_low"] < row["difference"] < row["difference_high"]
    beyond = found.at(2.0)
    assert set(beyond["verdict"]) == {""}
    assert beyond[["difference", "margin"]].isna().all(axis=None)


def test_seeds_added_to_one_encoding_decide_it(tmp_path: Path) -> None:
    """The others have three."""
    noise = (0.02, -0.03, 0.01, 0.03, -0.02, 0.0)
    cells = [
        fabricated.cell("copy", pe, seed, quality + noise[(seed + place) % 6])
        for place, (pe, quality, seeds) in enumerate([("rope", 0.5, 6), ("fire", 0.62, 6), ("none", 0.5, 3)])
        for seed in range(seeds)
    ]
    shipped.write(f"{STUDY}_copy", cells, tmp_path)
    lines = of(Results.read(tmp_path), "copy").with_baseline
    assert (lines["none"].verdict, lines["none"].seeds) == ("undecided", 3)
    assert lines["fire"].seeds == 6
    assert lines["fire"].verdict == "better"


def test_equal_encodings_are_said_to_be_equal(tmp_path: Path) -> None:
    cells = [fabricated.cell("copy", pe, seed, 0.5) for pe in ("rope", "fire") for seed in range(3)]
    shipped.write(f"{STUDY}_copy", cells, tmp_path)
    found = of(Results.read(tmp_path), "copy")
    assert found.at().loc["fire", "verdict"] == "equal"
    assert set(found.standings[1.0].open) == {"rope", "fire"}


def test_without_the_baseline_nothing_is_compared_with_it(tmp_path: Path) -> None:
    fabricated.write(tmp_path, ("t5", "none", "alibi", "fire"), ["place"])
    found = of(Results.read(tmp_path), "place")
    assert found.with_baseline == {}
    assert found.families[1.0].baseline in {"t5", "none", "alibi", "fire"}
    assert "t5" in found.standings[1.0].open


def test_the_mean_over_tasks_with_its_interval_and_ranks(read: Results) -> None:
    overall = read.overall.set_index("pe")
    assert list(read.overall["score"][:-1]) == sorted(read.overall["score"][:-1], reverse=True)
    assert read.overall["pe"].iloc[-1] == "fire"
    lines = [of(read, name).lines for name in ("place", "copy", "recall")]
    chosen = [one[one["pe"].eq("rope") & one["length"].eq(1)].set_index("seed")["score"] for one in lines]
    means = sum(chosen) / 3
    assert overall.loc["rope", "score"] == pytest.approx(means.mean())
    assert tuple(overall.loc["rope", ["low", "high"]]) == pytest.approx(statistics.interval(means))
    values = read.leaderboards[1.0].means.pivot_table(index="seed", columns="pe", values="score")
    assert values["rope"].tolist() == pytest.approx(means.tolist())
    compared = read.leaderboards[1.0].compared
    assert compared is not None
    ranks = compared.ranks(own=True).set_index("pe")
    assert set(ranks.index) == set(overall.index) - {"fire"}
    for pe, line in ranks.iterrows():
        assert line["mean"] == pytest.approx(1 - overall.loc[pe, "score"])
        assert (line["best"], line["worst"]) == (overall.loc[pe, "rank_best"], overall.loc[pe, "rank_worst"])
    assert overall.loc["fire", ["tasks", "common", "seeds"]].tolist() == [2, 2, 0]
    assert overall.loc["fire", ["score", "low", "rank_best", "rank_worst"]].isna().all()  # it lacks a task


def test_tasks_of_attention_to_both_sides_have_too_few_encodings_for_a_mean() -> None:
    """Means are of what almost all encodings can do, however many cells are measured."""
    count = {task.name: len(defined(task.name)) for task in tasks()}
    most = len(set().union(*(defined(name) for name in count)))
    assert {name for name, one in count.items() if one < ALMOST_ALL * most} == {"place", "digits", "masked_text", "bag"}


def test_means_are_over_the_tasks_on_which_almost_all_are_measured(tmp_path: Path) -> None:
    """Otherwise an encoding that is measured on few easy tasks would stand before one that is measured on all."""
    names = ["none", "rope", "alibi", "learnable", "sinusoidal", "t5", "shaw", "cope", "bam", "fire"]
    qualities = {"copy": 0.9, "recall": 0.8, "place": 0.1}
    ranked = {"copy": names, "recall": names[:9], "place": names[:8]}
    for task, quality in qualities.items():
        cells = [fabricated.cell(task, pe, seed, quality) for pe in ranked[task] for seed in range(3)]
        shipped.write(f"{STUDY}_{task}", cells, tmp_path)
    read = Results.read(tmp_path)
    assert [found.task.name for found in read.common] == ["copy", "recall"]
    overall = read.overall.set_index("pe")
    for pe in ("rope", "bam"):  # the second is not measured on place
        scores = [of(read, task).at().loc[pe, "score"] for task in ("copy", "recall")]
        assert overall.loc[pe, "score"] == pytest.approx(sum(scores) / 2)
    assert overall.loc["rope", ["tasks", "common"]].tolist() == [3, 2]
    assert np.isnan(overall.loc["fire", "score"])
    standing = read.leaderboards[1.0].standing
    assert standing is not None
    assert standing.words().startswith("Averaged over 2 tasks, ")
    assert set(standing.means) == set(names) - {"fire"}


def test_the_average_leaves_out_what_lacks_a_task(read: Results) -> None:
    standing = read.leaderboards[1.0].standing
    assert standing is not None
    assert "fire" not in standing.means
    assert standing.open == ["sinusoidal"]
    assert standing.means["sinusoidal"] == pytest.approx(1 - read.overall.set_index("pe").loc["sinusoidal", "score"])


def test_the_average_needs_three_seeds_that_all_tasks_have(tmp_path: Path) -> None:
    for task, moved in (("place", 0), ("copy", 1)):
        cells = [fabricated.cell(task, pe, seed, 0.5) for pe in ("rope", "none") for seed in range(4)]
        cells += [fabricated.cell(task, "t5", seed + moved, 0.5) for seed in range(3)]
        shipped.write(f"{STUDY}_{task}", cells, tmp_path)
    board = Results.read(tmp_path).leaderboards[1.0]
    assert board.standing is not None
    assert set(board.standing.means) == {"rope", "none"}
    few = board.table.set_index("pe").loc["t5"]
    assert (few["seeds"], few["common"]) == (2, 2)
    assert pd.isna(few["rank_best"])


def test_the_average_of_one_task_is_that_task(tmp_path: Path) -> None:
    fabricated.write(tmp_path, tasks=["place"])
    read = Results.read(tmp_path)
    standing = read.leaderboards[1.0].standing
    assert standing is not None
    assert standing.words().startswith("On the only task that almost all are measured on, ")
    assert standing.open == of(read, "place").standings[1.0].open


def test_the_cheapest_has_the_fewest_flops_then_the_fewest_parameters(read: Results) -> None:
    found = of(read, "copy")
    assert read.cheapest(["learnable", "t5", "alibi"], found) == "t5"  # 2002 FLOPs
    assert read.cheapest(["none", "rope"]) == "none"


def test_settings_are_those_that_the_study_declares(read: Results) -> None:
    assert of(read, "copy").settings == Settings(2, "rope")
    assert str(of(read, "causal_text").task.margin) == "0.02 nats"


def test_cells_of_other_numbers_of_epochs_are_left_out(tmp_path: Path) -> None:
    cell = fabricated.cell("copy", "rope", 0, 0.5)
    other = replace(cell, epochs=4, summary=cell.summary | {"epochs": 4})
    shipped.write(f"{STUDY}_copy", [cell, other], tmp_path)
    assert len(of(Results.read(tmp_path), "copy").lines) == 2  # one cell at two lengths


def test_at_a_length_without_scores_the_loss_is_ranked(tmp_path: Path) -> None:
    """As on `sort`, where at twice the length the unordered tokens determine the answers."""
    cells = []
    for pe, quality in (("rope", 0.9), ("none", 0.2), ("alibi", 0.5)):
        for seed in range(4):
            cell = fabricated.cell("sort", pe, seed, quality)
            (record,) = cell.records
            rows = [
                line | {"value": 0.25} if line["metric"] == "position_blind/loss" else line for line in record["rows"]
            ]
            cells.append(
                replace(cell, epochs=2, records=[record | {"rows": rows}], summary=cell.summary | {"epochs": 2})
            )
    shipped.write(f"{STUDY}_sort", cells, tmp_path)
    found = of(Results.read(tmp_path), "sort")
    assert found.at(2.0)["score"].isna().all()
    assert found.at(2.0)["rank_best"].tolist() == [1, 2, 3]
    boards = Results.read(tmp_path).leaderboards
    assert ([len(boards[length].common) for length in (1.0, 2.0)]) == [1, 0]
    assert boards[2.0].table["score"].isna().all()
    assert list(found.at(2.0).index) == ["rope", "alibi", "none"]
    assert found.standings[2.0].open == ["rope"]


def test_two_cells_of_one_encoding_and_seed_are_refused(tmp_path: Path) -> None:
    def with_rate(rate: float) -> Shipped:
        cell = fabricated.cell("copy", "rope", 0, 0.5)
        identity = cell.identity | {"optimizer": {"name": "adam", "lr": rate}}
        return replace(cell, identity=identity, summary=cell.summary | {"run": digest(identity)})

    shipped.write(f"{STUDY}_copy", [with_rate(0.1), with_rate(0.2)], tmp_path)
    with pytest.raises(ValueError, match=r"pe_bench_1_copy must have one cell per encoding and seed, got 2 cells of 1"):
        Results.read(tmp_path)


def test_no_results_are_no_tasks_measured(tmp_path: Path) -> None:
    read = Results.read(tmp_path)
    assert read.measured == []
    assert len(read.tasks) == len(tasks())
    assert read.overall.empty
    assert read.leaderboards[1.0].standing is None


def test_damaged_results_are_refused(results: Path, tmp_path: Path) -> None:
    for path in results.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / f"{STUDY}_copy.jsonl.gz").write_bytes(b"")
    with pytest.raises(LedgerError, match=r"they were changed"):
        Results.read(tmp_path)


def test_a_control_has_no_score_and_is_ranked_by_its_loss(tmp_path: Path) -> None:
    """On `bag` the level is the best loss, so that its margin is in nats."""
    fabricated.write(tmp_path, tasks=["place", "copy"])
    qualities = {"rope": 0.9, "alibi": 0.4, "none": 0.895}
    cells = [fabricated.cell("bag", pe, seed, one, gap=0.0) for pe, one in qualities.items() for seed in range(4)]
    shipped.write(f"{STUDY}_bag", cells, tmp_path)
    read = Results.read(tmp_path)
    found = of(read, "bag")
    assert str(found.task.margin) == "0.02 nats"
    assert found.at()["score"].isna().all()
    assert list(found.at().index)[-1] == "alibi"
    assert found.at().loc["alibi", ["rank_best", "rank_worst", "verdict"]].tolist() == [3, 3, "worse"]
    for standing in found.standings.values():  # none is certainly behind, by 0.005 nats
        assert (standing.open, standing.near, standing.behind) == (["rope"], ["none"], ["alibi"])
    assert read.overall.set_index("pe").loc["rope", "score"] == pytest.approx(
        (of(read, "place").at().loc["rope", "score"] + of(read, "copy").at().loc["rope", "score"]) / 2
    )
    assert [one.task.name for one in read.common] == ["place", "copy"]


def test_a_control_is_not_averaged_over_even_with_all_encodings(tmp_path: Path) -> None:
    """It has no scores, and its ranks say nothing about encodings."""
    fabricated.write(tmp_path, ("none", "rope", "alibi", "t5", "shaw"), ["place", "copy"])
    cells = [
        fabricated.cell("bag", pe, seed, 0.5, gap=0.0) for pe in ("none", "rope", "alibi", "t5") for seed in range(3)
    ]
    shipped.write(f"{STUDY}_bag", cells, tmp_path)
    read = Results.read(tmp_path)
    assert [found.task.name for found in read.common] == ["place", "copy"]
    assert read.overall.set_index("pe").loc["rope", "common"] == 2


def test_a_seed_without_a_score_on_one_of_the_tasks_has_no_mean() -> None:
    first, second = (made(task, {"none": 0.1, "rope": 0.8, "alibi": 0.5}) for task in ("copy", "recall"))
    lost = second.lines["pe"].eq("rope") & second.lines["seed"].eq(1) & second.lines["length"].eq(1)
    second.lines.loc[lost, "score"] = float("nan")
    means = Leaderboard(1.0, [first, second]).means
    assert {pe: sorted(seeds) for pe, seeds in means.groupby("pe")["seed"]} == {
        "none": [0, 1, 2, 3],
        "alibi": [0, 1, 2, 3],
        "rope": [0, 2, 3],
    }


def test_costs_are_means_over_all_tasks_that_an_encoding_is_measured_on(tmp_path: Path) -> None:
    """Also over one that hardly any other is measured on, of which no mean score is."""
    names = ("alibi", "rope", "none")
    shipped.write(
        f"{STUDY}_copy", [fabricated.cell("copy", pe, seed, 0.5) for pe in names for seed in range(3)], tmp_path
    )
    slow = [fabricated.cell("place", "rope", seed, 0.5) for seed in range(3)]
    slow = [replace(cell, summary=cell.summary | {"seconds": 6.5}) for cell in slow]
    shipped.write(f"{STUDY}_place", slow, tmp_path)
    read = Results.read(tmp_path)
    assert [found.task.name for found in read.common] == ["copy"]
    assert read.overall.set_index("pe")["seconds"].to_dict() == {"alibi": 3.5, "rope": 5.0, "none": 3.5}


def test_of_equal_means_the_one_with_more_tasks_comes_first(tmp_path: Path) -> None:
    names = ("alibi", "rope", "none")
    cells = [fabricated.cell("copy", pe, seed, 0.5 if pe == "none" else 0.7) for pe in names for seed in range(3)]
    same = [replace(cell, summary=cell.summary | {"test": {"loss": 0.55}}) for cell in cells]
    shipped.write(f"{STUDY}_copy", same, tmp_path)
    shipped.write(f"{STUDY}_recall", [fabricated.cell("recall", "rope", seed, 0.2) for seed in range(3)], tmp_path)
    overall = Results.read(tmp_path).overall
    assert overall["score"].nunique() == 1
    assert overall["pe"].iloc[0] == "rope"
    assert overall.set_index("pe").loc["rope", "tasks"] == 2


def test_each_length_has_means_over_the_tasks_that_were_measured_there(read: Results) -> None:
    boards = read.leaderboards
    assert list(boards) == [1.0, 2.0]
    assert [[one.task.name for one in board.common] for board in boards.values()] == [
        ["place", "copy", "recall"],
        ["copy", "recall"],
    ]
    longer = boards[2.0].table.set_index("pe")
    scores = [of(read, name).at(2.0).loc["rope", "score"] for name in ("copy", "recall")]
    assert longer.loc["rope", "score"] == pytest.approx(sum(scores) / 2)
    assert longer.loc["rope", "score"] < read.overall.set_index("pe").loc["rope", "score"]


def test_almost_all_are_nine_of_ten_or_all_but_one(tmp_path: Path) -> None:
    names = [f"learnable{number}" for number in range(20)]
    counts = {"copy": (20, 17), "recall": (18, 18), "place": (17, 17)}  # at the training length, and at twice that too
    for task, (count, longer) in counts.items():
        cells = [
            fabricated.cell(task, pe, seed, 0.5, longer=number < longer)
            for number, pe in enumerate(names[:count])
            for seed in range(3)
        ]
        shipped.write(f"{STUDY}_{task}", cells, tmp_path)
    boards = Results.read(tmp_path).leaderboards
    assert [found.task.name for found in boards[1.0].common] == ["copy", "recall"]
    assert [found.task.name for found in boards[2.0].common] == ["place", "copy", "recall"]  # 17 of 18
