"""A specification curve draws the numbers of its table: sorted differences, and the settings of each below."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection, LineCollection
from matplotlib.colors import to_rgb

from pe_lab.results.sensitivity import Sensitivity
from pe_lab.results.specification import curve
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.system.drawing import PAPER


def made(count: int = 4, **columns: list) -> Sensitivity:
    rng = np.random.default_rng(0)
    difference = np.sort(rng.normal(size=count))
    lines = pd.DataFrame(
        {"depth": [1, 4] * (count // 2), "model.norm": (["pre", "pre", "post", "post"] * count)[:count]}
    )
    lines = lines.assign(
        seeds=3, difference=difference, low=difference - 0.1, high=difference + 0.1, margin=0.5, sign="better"
    )
    lines = lines.assign(verdict=(["better", "undecided", "equivalent", "worse"] * count)[:count], **columns)
    return Sensitivity("alibi", "rope", "loss", ["depth", "model.norm"], lines, pd.DataFrame())


def points(axes) -> dict[float, tuple[float, str]]:
    """Return value and marker by place along the x axis."""
    lines = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    return {x: (y, line) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}


def test_differences_are_drawn_in_order_with_the_mark_of_their_verdict() -> None:
    found = made()
    plot = curve(found)
    drawn = points(plot.figure.axes[0])
    assert plot.data is found.lines
    for place, line in enumerate(found.lines.itertuples()):
        y, mark = drawn[place]
        assert y == line.difference
        assert mark.get_marker() == VERDICT_MARKS[line.verdict].shape
        assert to_rgb(mark.get_color()) == to_rgb(VERDICT_MARKS[line.verdict].colour)
    collections = [one for one in plot.figure.axes[0].collections if isinstance(one, LineCollection)]
    spans = [path.vertices[:, 1].tolist() for lines in collections for path in lines.get_paths()]
    assert sorted(spans) == sorted(
        [low, high] for low, high in zip(found.lines["low"], found.lines["high"], strict=True)
    )


def test_significant_differences_below_the_margin_are_open_and_named() -> None:
    found = made()
    verdicts = ["better", "slightly worse", "slightly worse", "undecided"]
    lines = found.lines.assign(difference=[-0.9, 0.1, 0.2, 0.3], verdict=verdicts)
    plot = curve(replace(found, lines=lines))
    drawn = points(plot.figure.axes[0])
    faces = [to_rgb(drawn[place][1].get_markerfacecolor()) == to_rgb(PAPER) for place in range(3)]
    assert faces == [False, True, True]
    names = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert names == ["better", "slightly worse", "undecided", "within the margin"]


def test_dots_stand_below_the_specifications_that_have_the_value() -> None:
    axes = curve(made()).figure.axes[1]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["depth 1", "depth 4", "norm pre", "norm post"]
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [[0, 2], [1, 3], [0, 1], [2, 3]]
    assert [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "o"] == [0, 1, 2, 3]


def test_a_missing_value_has_its_row_and_an_unknown_difference_is_not_drawn() -> None:
    found = made(**{"model.norm": ["pre", None, None, "pre"]})
    found.lines.loc[3, ["difference", "low", "high"]] = np.nan
    axes = curve(found).figure.axes
    assert set(points(axes[0])) == {0, 1, 2}
    dots = [list(line.get_xdata()) for line in axes[1].lines if line.get_marker() == "o"]
    assert dots == [[0, 2], [1], [0], [1, 2]]


@pytest.mark.parametrize("count", [2, 400])
def test_two_and_hundreds_of_specifications_are_drawn(count) -> None:
    plot = curve(made(count))
    assert 4 <= plot.figure.get_size_inches()[0] <= 10
    content = io.StringIO()
    plot.figure.savefig(content, format="svg")
    assert len(points(plot.figure.axes[0])) == count
    assert len(content.getvalue()) < 1_000_000


def test_the_margin_of_each_specification_is_a_band() -> None:
    found = made(margin=[0.1, 0.2, 0.3, 0.4])
    axes = curve(found).figure.axes[0]
    (band,) = (one for one in axes.collections if isinstance(one, FillBetweenPolyCollection))
    (path,) = band.get_paths()
    for place, margin in enumerate(found.lines["margin"]):
        assert path.contains_point((place, margin - 0.01))
        assert path.contains_point((place, 0.01 - margin))
        assert not path.contains_point((place, margin + 0.01))
    none = curve(made(margin=[np.nan] * 4)).figure.axes[0]
    assert not [one for one in none.collections if isinstance(one, FillBetweenPolyCollection)]


def test_intervals_of_two_seeds_are_not_drawn() -> None:
    found = made(seeds=[2, 3, 3, 2])
    collections = [one for one in curve(found).figure.axes[0].collections if isinstance(one, LineCollection)]
    assert sum(len(lines.get_paths()) for lines in collections) == 2
