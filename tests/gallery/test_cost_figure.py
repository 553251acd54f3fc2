"""The figure of losses against the CPU time of a step: its points are those that it is given."""

import re

import pytest

from pe_lab.gallery.cost_figure import cost_figure
from pe_lab.gallery.length_figure import BOTTOM, HEIGHT, LEFT, LINE, RIGHT, TOP, WIDTH
from pe_lab.results.styles import style

TIMES = {"rope": 1.0, "alibi": 1.25, "none": 0.9, "t5": 1.4}
LOSSES = {"rope": (1.9, 2.0, 2.1), "alibi": (1.45, 1.5, 1.55), "none": (2.4, 2.5, 2.6), "fire": (1.0, 1.1, 1.2)}
POINT = re.compile(
    r'<g stroke="(#\w+)"[^>]*data-point="(\w+)"><path d="M([\d.]+) ([\d.]+)V([\d.]+)" class="bar"/>'
    r'<path d="M[\d.]+ ([\d.]+)L.*?<text x="\d+" y="([\d.]+)">'
)


def test_points_and_intervals_are_at_their_times_and_losses() -> None:
    """Ticks at both ends of the axes: 0.9 to 1.3 times, and 1 to 3 nats; fire and t5 lack one of both."""
    points = {pe: (colour, list(map(float, at))) for colour, pe, *at in POINT.findall(cost_figure(TIMES, LOSSES))}
    assert list(points) == ["rope", "alibi", "none"]
    for pe, (colour, (across, low, high, mean, _)) in points.items():
        assert colour == style(pe).colour
        assert across == pytest.approx(LEFT + (TIMES[pe] - 0.9) / 0.4 * (WIDTH - LEFT - RIGHT), abs=0.06)
        ends = [TOP + (3 - loss) / 2 * (HEIGHT - TOP - BOTTOM) for loss in LOSSES[pe]]
        assert [low, mean, high] == pytest.approx(ends, abs=0.06)


def test_labels_do_not_overlap() -> None:
    alike = dict.fromkeys(("rope", "alibi", "none"), (1.9, 2.0, 2.1)) | {"t5": (0.9, 1.0, 1.1)}
    labels = sorted(float(at[-1]) for at in POINT.findall(cost_figure(TIMES, alike)))
    assert min(labels[place + 1] - label for place, label in enumerate(labels[:-1])) >= LINE


def test_there_is_no_figure_of_one_encoding() -> None:
    assert cost_figure({"rope": 1.0}, LOSSES) == ""
