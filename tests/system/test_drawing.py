"""A figure has the colours of the page that it stands on."""

import re

import matplotlib as mpl
from matplotlib.figure import Figure

from pe_lab.system.drawing import INK, PAPER, STYLE, svg


def drawn() -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], "o-", color="#0072B2", markerfacecolor=PAPER)
        axes.set(title="a $b", xlabel="x", ylabel="y")
    return figure


def test_ink_and_paper_are_those_of_the_page_and_data_keep_their_colours() -> None:
    made = svg(drawn(), "salt", alone=False)
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", made))
    assert colours <= {"currentColor", "var(--paper, #fff)", "#0072b2", "none"}
    assert {"currentColor", "var(--paper, #fff)", "#0072b2"} <= colours
    assert "<style" not in re.sub(r"<style type=\"text/css\">\*\{[^}]*\}</style>", "", made)  # matplotlib's own
    assert "a $b" in made


def test_a_file_has_its_own_colours_for_light_and_dark() -> None:
    made = svg(drawn(), "salt")
    assert made == svg(drawn(), "salt")
    (light, dark) = re.search(r"<style>(.*?)@media \(prefers-color-scheme: dark\)(.*?)</style>", made).groups()
    assert f"color: {INK}" in light
    assert "color: " in dark
    assert INK not in dark
