"""The figure of a task: its points, intervals and labels are those of the rows."""

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from helpers import tuned
from pe_lab.benchmark.task_results import TaskResults, read_results
from pe_lab.benchmark.tasks import task_named
from pe_lab.gallery.length_figure import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LINE,
    MAX_DRAWN,
    RIGHT,
    TOP,
    WIDTH,
    curves_by_encoding,
    drawn_encodings,
    length_figure,
)
from pe_lab.gallery.samples import load_data
from pe_lab.results.styles import style
from pe_lab.statistics import interval

MEANS = {"rope": 7.0, "alibi": 7.5, "fire": 7.8, "t5": 8.0, "none": 9.0, "cope": 9.1, "sinusoidal": 8.2, "dape": 9.2}
AT_4 = {"rope": 0.1, "alibi": 0.9, "fire": 0.8, "t5": 0.7, "none": 0.0, "cope": 0.3, "sinusoidal": 0.0, "dape": 0.35}
CURVE = re.compile(r'<g stroke="(#\w+)" fill="#\w+" data-curve="(\w+)"><path d="M([^"]+)"[^>]*/><path d="([^"]+)"')
LABEL = re.compile(rf'<text x="{WIDTH - RIGHT + 26}" y="([\d.]+)">(\w+)</text>')


def height(share: float) -> float:
    """Return where a share stands, in pixels from the top."""
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


@pytest.fixture
def results() -> TaskResults:
    """Shares that are spread over seeds, and an encoding with too few of them."""
    rows = pd.concat([tuned.table("induction", MEANS), tuned.table("induction", {"cpe": 7.0}, seeds=range(3))])
    noise = 0.02 * (rows["seed"] - 2)
    for length, factor in ((1, 0.2), (2, 0.6), (4, 1.0)):
        share = 1 - factor * (1 - rows["pe"].map(AT_4 | {"cpe": 1.0}))
        rows[f"accuracy_x{length}"] = (share + noise).clip(0, 1)
    return TaskResults(task_named("induction"), rows)


def test_curves_are_means_over_seeds_with_the_interval_of_the_mean(results: TaskResults) -> None:
    curves = {pe: (colour, points, bars) for colour, pe, points, bars in CURVE.findall(length_figure(results).svg)}
    for pe, (colour, points, bars) in curves.items():
        assert colour == style(pe).colour
        seeds = results.rows[results.rows["pe"] == pe]
        values = [seeds[f"accuracy_x{length}"].astype(float) for length in (1, 2, 4)]
        down = [float(point.split()[1]) for point in points.split("L")]
        assert down == pytest.approx([height(float(each.mean())) for each in values], abs=0.06)
        ends = [end for each in values for end in np.clip(interval(each), 0, 1)]
        drawn = [float(end) for end in re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", bars) for end in end]
        assert drawn == pytest.approx([height(end) for end in ends], abs=0.06)


def test_lengths_are_ticks_at_equal_distances(results: TaskResults) -> None:
    figure = length_figure(results).svg
    ticks = re.findall(r'<text x="([\d.]+)"[^>]*>([124]) ×</text><text x="[\d.]+"[^>]*>(\d+)</text>', figure)
    assert [(float(length), int(tokens)) for _, length, tokens in ticks] == [*load_data(results.task).lengths.items()]
    across = [float(x) for x, _, _ in ticks]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.11)
    assert LEFT < across[0] < across[2] < WIDTH - RIGHT


def test_the_best_at_each_length_and_baselines_are_drawn_then_those_that_differ_most() -> None:
    """Of 20 encodings; those that fill the figure have colours that are free."""
    names = ["rope", "none", "alibi", "fire", "t5", "cope", "sinusoidal", "dape", "learnable", "xpos", "canon", "path"]
    names += ["rse", "shape", "kerple_log", "forgetting", "stick_breaking", "yarn", "p_rope", "longrope"]
    steps = {pe: 5.0 if pe == "path" else 7.5 if pe in ("rse", "rope") else 9.0 for pe in names}
    rows = tuned.table("induction", steps, 0.01)
    at_2 = dict.fromkeys(names, 0.5) | {"cope": 0.9, "dape": 0.8}
    at_4 = dict.fromkeys(names, 0.5) | {"alibi": 0.9, "fire": 0.8, "longrope": 0.0, "p_rope": 0.1}
    for length, shares in ((1, dict.fromkeys(names, 1.0)), (2, at_2), (4, at_4)):
        rows[f"accuracy_x{length}"] = rows["pe"].map(shares)
    drawn = drawn_encodings(TaskResults(task_named("induction"), rows))
    assert {"path", "rope", "none", "cope", "dape", "alibi", "fire", "longrope"} <= set(drawn)
    assert "p_rope" not in drawn  # the colour of longrope
    assert len(drawn) == MAX_DRAWN
    assert list(curves_by_encoding(TaskResults(task_named("induction"), rows))) != drawn


@pytest.mark.parametrize("results", read_results(), ids=lambda results: results.task.name)
def test_encodings_of_a_figure_differ_in_colour_or_marker(results: TaskResults) -> None:
    looks = [(style(pe).colour, style(pe).marker) for pe in drawn_encodings(results)]
    assert len(looks) == len(set(looks)) > 5


def test_intervals_that_are_cut_have_an_arrow(results: TaskResults) -> None:
    """0.8 and 0.2 with intervals of ±0.3 at twice the length; intervals that end at 1 by little have none."""
    rows = results.rows[results.rows["pe"].isin(["rope", "none"])].copy()
    spread = (rows["seed"] - 2) * 0.15
    rows["accuracy_x1"] = 0.999 + spread / 1000
    rows["accuracy_x2"] = rows["pe"].map({"rope": 0.8, "none": 0.2}) + spread
    rows["accuracy_x4"] = 0.5
    each = TaskResults(results.task, rows)
    assert {pe: curve.cut for pe, curve in curves_by_encoding(each).items()} == {
        "rope": [(2.0, True)],
        "none": [(2.0, False)],
    }
    figure = length_figure(each)
    arrows = {
        pe: re.findall(r"V[\d.]+M[\d.]+ ([\d.]+)l3 (-?5)l3 (-?5)", bars) for _, pe, _, bars in CURVE.findall(figure.svg)
    }
    assert arrows == {
        "rope": [(f"{height(1) + 5:.1f}", "-5", "5")],
        "none": [(f"{height(0) - 5:.1f}", "5", "-5")],
    }
    assert figure.is_cut
    assert not length_figure(TaskResults(results.task, rows.assign(accuracy_x2=0.5))).is_cut


def test_labels_stand_in_the_order_of_their_lines_and_do_not_overlap(results: TaskResults) -> None:
    for each in (results, TaskResults(results.task, results.rows.assign(accuracy_x4=0.0))):
        figure = length_figure(each).svg
        labels = sorted((float(y), pe) for y, pe in LABEL.findall(figure))
        assert {pe for _, pe in labels} == {pe for _, pe, _, _ in CURVE.findall(figure)}
        assert all(below - above >= LINE for (above, _), (below, _) in pairwise(labels))
        assert labels[-1][0] <= HEIGHT - BOTTOM + 4
        at_4 = each.rows.groupby("pe")["accuracy_x4"].mean()
        shares = [float(at_4[pe]) for _, pe in labels]
        assert shares == sorted(shares, reverse=True)


def test_losses_have_the_lowest_first_and_an_axis_around_them() -> None:
    losses = {"rope": 1.5, "alibi": 1.55, "t5": 1.6, "fire": 1.9, "none": 2.2}
    results = TaskResults(task_named("causal_text"), tuned.table("causal_text", losses, 0.001))
    figure = length_figure(results).svg
    assert [pe for _, pe, _, _ in CURVE.findall(figure)] == ["rope", "alibi", "t5", "fire", "none"]
    ticks = [float(tick) for tick in re.findall(r'text-anchor="end">([\d.]+)</text>', figure)]
    assert 3 <= len(ticks) <= 9
    assert ticks == sorted(ticks)
    assert ticks[0] <= 1.6
    heights = [float(y) for _, _, points, _ in CURVE.findall(figure) for y in re.findall(r" ([\d.]+)", points)]
    assert TOP <= min(heights) < max(heights) <= HEIGHT - BOTTOM
    assert ("half" in figure, 'class="grid level"' in figure) == (False, False)


def test_losses_that_are_close_to_the_lowest_are_told_apart_beside_far_ones() -> None:
    """An axis of a narrow range is not stretched."""
    losses, places = {"rope": 1.5, "alibi": 1.55, "none": 3.0}, {}
    for far in (3.0, 1.6):
        rows = tuned.table("causal_text", losses | {"none": far}, 0.001)
        rows[["loss_x2", "loss_x4"]] = rows[["loss_x1", "loss_x1"]].to_numpy()
        figure = length_figure(TaskResults(task_named("causal_text"), rows)).svg
        places[far] = {pe: float(points.split("L")[0].split()[1]) for _, pe, points, _ in CURVE.findall(figure)}
        ticks = [float(y) - 4 for y in re.findall(r'y="([\d.]+)" text-anchor="end"', figure)]
        assert all(TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1 for y in ticks)
        assert all(below - above >= LINE - 0.1 for below, above in pairwise(ticks))
    near, narrow = ((each["rope"] - each["alibi"]) / (each["rope"] - each["none"]) for each in places.values())
    assert (near > 0.15, narrow == pytest.approx(0.5, abs=0.02)) == (True, True)


def test_there_is_no_figure_where_what_is_right_is_not_measured() -> None:
    rows = tuned.table("induction", MEANS).assign(accuracy_x4=np.nan)
    assert length_figure(TaskResults(task_named("induction"), rows)).svg == ""
