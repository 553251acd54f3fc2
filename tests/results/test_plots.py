"""A figure draws the numbers of its table, in colours that are distinguishable for all."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_lab import statistics
from pe_lab.config import config_folder
from pe_lab.results import panels, plots, styles
from pe_lab.results.plots.differences import BEYOND, are_outlying, legend_marks
from pe_lab.results.plots.dots import DOTS, MAX_DOTS, seed_places, seed_values
from pe_lab.results.plots.lines import side_by_side
from pe_lab.results.plots.rates import CHOSEN
from pe_lab.results.plots.scales import loss_scale, tick_measured
from pe_lab.results.verdict_marks import VERDICT_MARKS
from pe_lab.system.drawing import PAPER

SEEDS = 4


def marks(axes) -> list[Line2D]:
    """Return the lines that are marks of means, not dots of seeds."""
    shapes = (*styles.MARKERS, *styles.OWN_MARKERS, styles.NONE_STYLE.marker)
    return [line for line in axes.lines if line.get_marker() in shapes and line.get_label() != DOTS]


def dots(axes) -> list[tuple[float, float]]:
    """Return the places of the dots of seeds."""
    drawn = [line for line in axes.lines if line.get_label() == DOTS]
    return [point for line in drawn for point in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def cells(names: list[str], depths: tuple[int, ...] = (4, 1)) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"pe": pe, "depth": depth, "epochs": 4, "seed": seed, "test_loss": rng.gamma(2) + number, "test_accuracy": 0.5}
        | {"floor_bayes_loss": 0.0, "parameters": 10, "positional_parameters": number, "seconds": 1.0 + number}
        | {"run": f"{pe}{depth}{seed}"}
        for depth in depths
        for number, pe in enumerate(names)
        for seed in range(SEEDS)
    )


def numbers(figure) -> dict[str, float]:
    """Return the texts in a heatmap by row and column."""
    (axes,) = figure.axes
    columns = [label.get_text().replace("\n", ", ") for label in axes.get_xticklabels()]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    return {
        (rows[round(text.get_position()[1])], columns[round(text.get_position()[0])]): text.get_text()
        for text in axes.texts
    }


@pytest.mark.parametrize("draw", [plots.heatmap, plots.over_epochs])
def test_a_metric_that_was_not_measured_is_refused_by_name(draw) -> None:
    with pytest.raises(ValueError, match="^metric='acuracy': did you mean accuracy?"):
        draw(cells(["rope", "alibi"]), "acuracy")


def test_the_grid_shows_means_best_first_and_floors_last() -> None:
    rows = cells(["c", "a", "b"])
    made = plots.heatmap(rows)
    written = numbers(made.figure)
    for (pe, depth), losses in rows.groupby(["pe", "depth"]):
        assert written[pe, f"depth {depth}"] == f"{losses['test_loss'].mean():.3f}"
    assert written["bayes", "depth 1"] == "0.000"
    (axes,) = made.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c", "a", "b", "bayes"]  # by mean rank
    assert [label.get_text() for label in axes.get_xticklabels()] == ["depth 1", "depth 4"]
    line = made.data[(made.data["pe"] == "a") & (made.data["setting"] == "depth 4")].iloc[0]
    losses = rows[(rows["pe"] == "a") & (rows["depth"] == 4)]["test_loss"]
    assert (line["mean"], line["low"], line["high"]) == (losses.mean(), *statistics.interval(losses))


def test_brighter_is_better_whatever_the_metric() -> None:
    rows = cells(["worse", "better"], (4,))
    rows["test_loss"] = rows["pe"].map({"worse": 2.0, "better": 1.0})
    rows["test_accuracy"] = rows["pe"].map({"worse": 0.1, "better": 0.9})
    for metric in ("loss", "accuracy"):
        (axes,) = plots.heatmap(rows, metric).figure.axes
        (image,) = axes.images
        brightness = np.mean(image.to_rgba(image.get_array())[:, 0, :3], axis=-1)
        order = [label.get_text() for label in axes.get_yticklabels()][:2]
        assert order == ["better", "worse"]
        assert brightness[0] > brightness[1]


def test_a_mean_with_something_not_finite_is_left_empty() -> None:
    rows = cells(["a", "b"], (4,))
    rows.loc[0, "test_loss"] = np.inf
    assert numbers(plots.heatmap(rows).figure)["a", "depth 4, epochs 4"] == ""


def forest_marks(axes) -> dict[str, Line2D]:
    """Return the marks of differences by encoding."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    return {
        names[round(line.get_ydata()[0])]: line
        for line in axes.lines
        if line.get_marker() not in ("None", None, "", "|") and line.get_label() != DOTS
    }


def test_the_forest_has_the_best_mean_on_top_and_marks_each_baseline() -> None:
    losses = {("a", 1): 0.0, ("b", 1): 1.0, ("c", 1): 9.0, ("a", 4): 3.0, ("b", 4): 0.0, ("c", 4): 1.0}
    rows = cells(["c", "b", "a"], (1, 4))
    rows["test_loss"] = [losses[pe, depth] for pe, depth in zip(rows["pe"], rows["depth"], strict=True)]
    lines = [
        statistics.compare_cells(rows[rows["depth"] == depth], baseline) for depth, baseline in ((1, "a"), (4, "b"))
    ]
    made = plots.forest(pd.concat(lines, ignore_index=True))
    names = [label.get_text() for label in made.figure.axes[0].get_yticklabels()]
    assert names == ["b", "a", "c"]  # by means of 0.5, 1.5 and 5
    for axes, baseline in zip(made.figure.axes, "ab", strict=True):
        (at,) = (line for line in axes.lines if line.get_marker() == "|")
        assert (at.get_xdata()[0], names[round(at.get_ydata()[0])]) == (0, baseline)
        assert f"that of {baseline}" in axes.get_xlabel()


def test_the_forest_fills_the_marks_of_significant_differences() -> None:
    rows = cells(["base", "same", "far"], (4,))
    rows["test_loss"] = np.random.default_rng(0).normal(0, 0.1, len(rows)) + rows["pe"].map({"far": 5}).fillna(0)
    compared = statistics.compare_cells(rows, "base")
    made = plots.forest(compared)
    (axes,) = made.figure.axes
    marks = forest_marks(axes)
    assert compared["verdict"].tolist() == ["undecided", "worse"]
    assert [to_rgb(marks[pe].get_markerfacecolor()) == to_rgb(PAPER) for pe in compared["pe"]] == [True, False]
    assert [marks[pe].get_xdata()[0] for pe in compared["pe"]] == compared["difference"].tolist()
    assert made.data["p_corrected"].tolist() == compared["p_corrected"].tolist()


def test_the_forest_tells_verdicts_apart_by_shape_and_filling_and_names_them() -> None:
    looks = {(mark.shape, mark.filled) for mark in VERDICT_MARKS.values()}
    assert len(looks) == len(VERDICT_MARKS)
    rng = np.random.default_rng(0)
    means = {"base": 0, "same": 0.0, "far": 5, "near": 0.5, "low": -5, "loose": 1.0}
    noise = {"loose": 5.0, "same": 0.1}
    rows = cells(list(means), (4,))
    rows["test_loss"] = rows["pe"].map(means) + rows["pe"].map(noise).fillna(0.02) * rng.normal(size=len(rows))
    rows.loc[rows["pe"] == "base", "test_loss"] = 0.0
    rows = pd.concat([rows, rows[rows["pe"] == "base"].assign(pe="copy"), rows.head(1).assign(pe="once")])
    compared = statistics.compare_cells(rows, "base", margin=statistics.Margin(1.0, "nats")).set_index("pe")
    verdicts = {"same": "equivalent", "far": "worse", "near": "slightly worse", "low": "better"}
    verdicts |= {"loose": "undecided", "copy": "equal", "once": "one seed"}
    assert compared["verdict"].to_dict() == verdicts
    made = plots.forest(
        compared.reset_index().pipe(lambda lines: lines[["depth", "epochs", "pe", *compared.columns[2:]]])
    )
    (axes,) = made.figure.axes
    marks = forest_marks(axes)
    assert dict(zip(made.data["pe"], made.data["verdict"], strict=True)) == verdicts
    for pe, verdict in verdicts.items():
        expected = VERDICT_MARKS[verdict]
        assert marks[pe].get_marker() == expected.shape
        assert (to_rgb(marks[pe].get_markerfacecolor()) == to_rgb(PAPER)) is not expected.filled
    (legend,) = made.figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == [*(verdict for verdict in VERDICT_MARKS if verdict in verdicts.values()), "within the margin"]


@pytest.mark.parametrize(
    ("trained", "titles"),
    [
        ({0.5: 360}, ["depth 4, steps 360"]),
        ({0.5: 360, 1.0: 720}, ["steps 360", "steps 720"]),
        ({0.5: np.nan}, ["depth 4, epochs 0.5"]),
        ({0.5: np.nan, 1.0: 720}, ["epochs 0.5, steps none", "epochs 1, steps 720"]),
    ],
)
def test_trainings_that_are_counted_in_steps_are_named_by_steps(trained: dict[float, float], titles: list[str]) -> None:
    parts = [cells(["base", "other"], (4,)).assign(epochs=epochs, steps=steps) for epochs, steps in trained.items()]
    rows = pd.concat(parts)
    rows.insert(3, "steps", rows.pop("steps"))
    made = plots.forest(statistics.compare_cells(rows, "base"))
    assert [axes.get_title() for axes in made.figure.axes] == titles


@pytest.mark.parametrize("depths", [(4,), (4, 1)])
def test_the_forest_draws_the_margin_of_each_setting_as_a_band(depths: tuple[int, ...]) -> None:
    rows = cells(["base", "other"], depths)
    rows["floor_position_blind_loss"] = rows["depth"] * 1.0
    made = plots.forest(statistics.compare_cells(rows, "base", margin=statistics.Margin(0.5, "gap")))
    bands = {axes.get_title(): axes.patches for axes in made.figure.axes}
    for depth in depths:
        (band,) = bands[f"depth {depth}" + ", epochs 4" * (len(depths) == 1)]
        assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((-0.5 * depth, 0.5 * depth))
    assert sorted(made.data["margin"]) == pytest.approx(sorted(0.5 * depth for depth in depths))
    none = statistics.compare_cells(
        rows.rename(columns=lambda name: name.replace("loss", "perplexity")), "base", "perplexity"
    )
    figure = plots.forest(none.assign(margin=np.nan), "perplexity").figure
    assert not any(axes.patches for axes in figure.axes)
    assert "within the margin" not in [text.get_text() for text in figure.legends[0].get_texts()]


def outlying_study(value: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return comparisons with base at two depths, and their cells; one seed of b at depth 4 is far from the others."""
    rows = cells(["base", "a", "b"], (1, 4))
    rows["test_loss"] = rows["seed"] * (rows["pe"] != "base") / 10 + rows["depth"] * (rows["pe"] == "a") / 10
    rows.loc[(rows["pe"] == "b") & (rows["depth"] == 4) & (rows["seed"] == 3), "test_loss"] = value
    return statistics.compare_cells(rows, "base"), rows


@pytest.mark.parametrize(("value", "beyond"), [(0.3, False), (9.0, True), (-9.0, True)])
def test_an_outlying_seed_does_not_widen_the_axis_and_is_named_at_its_edge(value: float, beyond: bool) -> None:
    compared, rows = outlying_study(value)
    made = plots.forest(compared, rows=rows)
    shallow, deep = made.figure.axes
    low, high = deep.get_xlim()
    assert shallow.get_xlim() == (low, high)
    others = made.data[(made.data["setting"] != "depth 4") | (made.data["pe"] != "b")]
    assert low < min(others["low"]) < max(others["high"]) < high
    assert (low < value < high) is not beyond
    assert len(dots(shallow)) == 2 * SEEDS
    assert len(dots(deep)) == 2 * SEEDS - beyond
    assert value in list(made.seeds["value"])
    assert not shallow.texts
    told = [text.get_text() for text in deep.texts]
    arrows = {(line.get_xdata()[0], line.get_marker()) for line in deep.lines if line.get_label() == BEYOND}
    if not beyond:
        assert not told
        assert not arrows
        return
    (line,) = made.data[(made.data["setting"] == "depth 4") & (made.data["pe"] == "b")].to_dict("records")
    right, left = f"to {line['high']:.2g}", f"from {line['low']:.2g}".replace("-", "\N{MINUS SIGN}")
    at_right, at_left = ([text for text in told if end in text] for end in (right, left))
    assert len(at_right) == len(at_left) == 1
    assert "seed" in (at_right if value > 0 else at_left)[0]
    assert arrows == {(low, "<"), (high, ">")}


def test_an_outlying_seed_of_the_baseline_which_is_in_all_rows_is_within_the_axis() -> None:
    _, rows = outlying_study(0.3)
    rows.loc[(rows["pe"] == "base") & (rows["depth"] == 4) & (rows["seed"] == 3), "test_loss"] = 9.0
    made = plots.forest(statistics.compare_cells(rows, "base"), rows=rows)
    low, high = made.figure.axes[1].get_xlim()
    assert made.seeds["value"].between(low, high).all()
    assert not made.figure.axes[1].texts


def test_a_seed_is_outlying_by_its_distance_from_the_others_in_their_range() -> None:
    table = pd.DataFrame({"setting": "one", "pe": ["a"] * 4 + ["b"] * 4 + ["c"] * 3})
    table["value"] = [0, 1, 2, 5.1, 4.9, 2, 1, 0, 0, 0.1, 99]
    table.index += 7
    assert are_outlying(table).tolist() == [False] * 3 + [True] + [False] * 7


def test_panels_of_other_tasks_have_axes_of_their_own() -> None:
    rows = cells(["base", "a"], (1, 4))
    parts = [rows.assign(test_loss=scale * rows["test_loss"], data=f"task {scale}") for scale in (1, 50)]
    compared = statistics.compare_cells(pd.concat(parts)[["pe", "data", *rows.columns[1:]]], "base")
    limits = [axes.get_xlim() for axes in plots.forest(compared).figure.axes]
    assert len(limits) == 4
    assert len(set(limits)) == 2


def test_a_verdict_has_one_line_in_the_legend_of_a_forest() -> None:
    handles = legend_marks(pd.DataFrame({"verdict": ["worse", "worse", "slightly worse", "undecided", "undecided"]}))
    assert [
        (one.get_label(), one.get_marker(), to_rgb(one.get_markerfacecolor()) == to_rgb(PAPER)) for one in handles
    ] == [("slightly worse", "v", True), ("worse", "v", False), ("undecided", "o", True)]


def curves(names: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {"pe": pe, "depth": 4, "epochs": 4, "seed": seed, "epoch": epoch, "metric": "loss"}
        | {"value": 10 / epoch + number + 0.1 * seed}
        for number, pe in enumerate(names)
        for seed in range(SEEDS)
        for epoch in (1.0, 2.0, 4.0)
    )


def test_learning_curves_are_means_over_seeds() -> None:
    made = plots.learning_curves(curves(["a", "b"]))
    (axes,) = made.figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["a"].get_ydata() == pytest.approx([10.15, 5.15, 2.65])
    assert lines["b"].get_ydata() == pytest.approx([11.15, 6.15, 3.65])
    assert sum(isinstance(one, PolyCollection) for one in axes.collections) == 2  # the intervals


def test_learning_curves_are_of_the_longest_training_of_each_seed() -> None:
    """A shorter training of a seed may be another run, at another learning rate."""
    longest = curves(["a", "b"])
    shorter = longest[longest["epoch"] == longest["epoch"].min()].assign(epochs=1)
    made = plots.learning_curves(pd.concat([longest.assign(epochs=16), shorter.assign(value=shorter["value"] + 1)]))
    alone = plots.learning_curves(longest.assign(epochs=16))
    pd.testing.assert_frame_equal(made.data, alone.data)
    assert (made.data["seeds"] == longest["seed"].nunique()).all()


def test_learning_curves_of_steps_have_steps_and_the_floors_of_the_cells() -> None:
    columns = ["pe", "depth", "epochs", "steps", "seed", "epoch", "metric", "value"]
    counted = curves(["a", "b"]).assign(steps=800)[columns]
    rows = cells(["a", "b"], (4,)).assign(epochs=4, steps=800, floor_bayes_loss=0.25, floor_position_blind_loss=2.0)
    made = plots.learning_curves(counted, rows=rows)
    (axes,) = made.figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["a"].get_xdata()) == [200, 400, 800]
    assert axes.get_xlabel() == "step"
    assert {line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]} == {0.25, 2.0}
    assert len(made.figure.legends[0].get_texts()) == 5  # two encodings, two floors, intervals


def test_names_at_the_ends_of_lines_stand_in_their_order_and_apart() -> None:
    for middle in (-0.99, 0.0, 0.99):
        axes = Figure().subplots()
        axes.set_ylim(-1, 1)
        panels.name_ends(axes, {"a": middle, "b": middle + 0.001, "c": middle - 0.001, "d": 1.0})
        places = {text.get_text(): text.get_position()[1] for text in axes.texts}
        assert sorted(places, key=places.get) == ["c", "a", "b", "d"]
        assert min(np.diff(sorted(places.values()))) > 0.11
        assert 0 <= min(places.values()) <= max(places.values()) <= 1


def test_many_curves_are_grey_but_for_the_best() -> None:
    names = [f"pe{number}" for number in range(12)]
    (axes,) = plots.learning_curves(curves(names)).figure.axes
    coloured = {line.get_label() for line in axes.lines if line.get_color() != panels.GREY}
    assert coloured == set(names[: panels.MAX_COLOURED_LINES])


def test_an_encoding_has_one_style_in_every_figure() -> None:
    looks = []
    for names in (["rope", "alibi", "mine"], ["mine", "none", "alibi", "rope"]):
        (axes,) = plots.learning_curves(curves(names)).figure.axes
        lines = {line.get_label(): line for line in axes.lines}
        looks.append([(lines[name].get_color(), lines[name].get_marker()) for name in ("rope", "alibi", "mine")])
        assert [marker for _, marker in looks[-1]] == [styles.style(name).marker for name in ("rope", "alibi", "mine")]
    assert looks[0] == looks[1]


def test_each_encoding_of_the_package_has_a_colour_and_a_marker_that_no_other_has() -> None:
    names = {path.stem for path in (config_folder() / "pe").glob("*.yaml")}
    assert sorted(names) == sorted(["none", *sum(styles.NAMES_BY_COLOUR.values(), ())])
    assert len({(styles.style(name).colour, styles.style(name).marker) for name in names}) == len(names)


def test_those_that_are_most_often_compared_differ_in_colour() -> None:
    names = ["rope", "learnable", "sinusoidal", "alibi", "t5", "none"]
    names += ["forgetting", "stick_breaking", "fire", "xpos", "kerple_log", "lrope"]
    assert len({styles.style(name).colour for name in names}) == len(names)


def test_other_names_differ_in_marker_from_those_of_the_package_and_are_not_grey() -> None:
    """Among 4 000 names, every look of such names occurs."""
    looks = {styles.style(name) for name in ("log_distance", *(f"mine_{number}" for number in range(4000)))}
    assert len(looks) == len(styles.COLOURS) * len(styles.OWN_MARKERS) * len(styles.DASHES)
    known = [styles.style(name) for name in ("none", *sum(styles.NAMES_BY_COLOUR.values(), ()))]
    assert not {look.marker for look in looks} & {look.marker for look in known}
    assert styles.style("none").colour not in {look.colour for look in looks}


def test_each_floor_has_a_name_of_its_own() -> None:
    rows = pd.concat([cells(["rope", "none"], (4,)).assign(epochs=epochs) for epochs in (1, 16)], ignore_index=True)
    names, meanings = [], []
    for floor in ("position_blind", "position_blind_split_known"):
        table = rows.assign(**{f"floor_{floor}_loss": 5.0})
        legend = plots.over_epochs(table).figure.legends[0]
        names += [text.get_text() for text in legend.get_texts() if "without" in text.get_text()]
        meanings.append(plots.heatmap(table).figure.get_suptitle().replace("\n", " ").partition("shades: ")[2])
    assert len(set(names)) == len(set(meanings)) == 2
    assert all(name.removesuffix(" (5)") in meaning for name, meaning in zip(names, meanings, strict=True))


@pytest.mark.parametrize("baseline", [None, "rope"])
def test_the_axis_has_steps_where_trainings_are_counted_in_steps(baseline: str | None) -> None:
    parts = [cells(["rope", "none"], (4,)).assign(epochs=steps / 100) for steps in (60, 240)]
    rows = pd.concat(parts, ignore_index=True)
    rows.insert(3, "steps", rows["epochs"] * 100)
    made = plots.over_epochs(rows, beside=baseline is None, baseline=baseline)
    below = made.figure.axes[-1]
    assert below.get_xlabel() == "steps of training"
    assert [text.get_text() for text in below.get_xticklabels()] == ["60", "240"]
    assert made.data.loc[made.data["pe"] == "none", "steps"].tolist() == [60, 240]


def test_losses_over_epochs_stand_between_their_floors() -> None:
    rows = pd.concat([cells(["rope", "none"], (4, 1)).assign(epochs=epochs) for epochs in (1, 16)], ignore_index=True)
    rows["floor_bayes_loss"], rows["floor_position_blind_loss"] = 0.0, 0.5
    rows["floor_position_blind_split_known_loss"] = 0.25
    rows.loc[rows["epochs"] == 16, "test_loss"] /= 64
    made = plots.over_epochs(rows)
    assert [axes.get_title() for axes in made.figure.axes] == ["depth 1", "depth 4"]
    for axes in made.figure.axes:
        flat = {line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]}
        assert flat == {
            0.0,
            0.25,
            loss_scale("loss", made.data["mean"]),
        }  # not 0.5: none can be better without position
        assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "16"]
        low, high = axes.get_ylim()
        assert low <= 0
        assert high >= made.data["high"].max()
    losses = rows[(rows["pe"] == "rope") & (rows["depth"] == 4) & (rows["epochs"] == 16)]["test_loss"]
    line = made.data.query("setting == 'depth 4' and pe == 'rope' and epochs == 16")
    assert line["mean"].item() == pytest.approx(losses.mean())


def test_points_over_epochs_stand_at_their_epoch_above_paired_differences() -> None:
    rows = pd.concat([cells(["rope", "none"], (4, 1)).assign(epochs=epochs) for epochs in (1, 16)], ignore_index=True)
    made = plots.over_epochs(rows, beside=False, baseline="rope")
    above, below = made.figure.axes[:2], made.figure.axes[2:]
    for axes in above:
        assert [list(line.get_xdata()) for line in marks(axes)] == 2 * [[1, 16]]  # marks and lines
        assert "None" not in [line.get_linestyle() for line in marks(axes)]
    drawn = [marks(axes) for axes in below]
    curves_of = [[list(line.get_xdata()) for line in lines if len(line.get_xdata()) > 1] for lines in drawn]
    assert curves_of == 2 * [[[1, 16]]]  # one alone stands at its epoch; the others are marks beside names
    wide = rows[(rows["depth"] == 4) & (rows["epochs"] == 16)].pivot(index="seed", columns="pe", values="test_loss")
    line = made.data.query("setting == 'depth 4' and pe == 'none' and epochs == 16")
    found = line[["difference", "difference_low", "difference_high"]].to_numpy()[0]
    apart = wide["none"] - wide["rope"]
    assert found == pytest.approx([apart.mean(), *statistics.interval(apart)])
    assert made.data.loc[made.data["pe"] == "rope", "difference"].isna().all()
    (floors,) = made.figure.legends  # encodings are named at the ends of their lines
    assert len(floors.get_texts()) == 3  # the floor, seeds and intervals
    names = {text.get_text(): text.get_position()[1] for text in below[-1].texts}
    assert set(names) == {"rope", "none"}
    assert (names["none"] > names["rope"]) == (found[0] > 0)
    with pytest.raises(ValueError, match="baseline needs all panels in one row, got 4 panels"):
        four = pd.concat([rows.assign(depth=rows["depth"] + more) for more in (0, 1)])
        plots.over_epochs(four, baseline="rope")


def test_shades_are_shares_of_the_gap_where_floors_are_known() -> None:
    rows = cells(["a", "b"], (4,))
    rows["test_loss"] = rows["pe"].map({"a": 0.25, "b": 1.5})
    rows["floor_bayes_loss"], rows["floor_position_blind_loss"] = 0.0, 1.0
    (axes,) = plots.heatmap(rows).figure.axes
    (image,) = axes.images
    shades = image.get_array()
    assert shades[:2, 0].tolist() == [0.75, 0]  # what is worse than the level is as dark as the level
    assert "yellow: best" in axes.figure.get_suptitle()
    assert shades.mask[2:].all()
    assert (image.norm.vmin, image.norm.vmax) == (0, 1)
    known = rows.assign(floor_position_blind_split_known_loss=0.5)
    assert plots.heatmap(known).figure.axes[0].images[0].get_array()[0, 0] == 0.5
    bare = rows.drop(columns=["floor_bayes_loss", "floor_position_blind_loss"])
    assert plots.heatmap(bare).figure.axes[0].images[0].get_array()[:, 0].tolist() == [1, 0]


def test_of_many_encodings_over_epochs_the_best_are_in_colour_and_panels_are_in_rows() -> None:
    names = [f"pe{number}" for number in range(10)]
    rows = pd.concat([cells(names, (1, 2, 4, 8)).assign(epochs=epochs) for epochs in (1, 16)], ignore_index=True)
    rows["test_loss"] = rows["pe"].map({name: 1.0 + number for number, name in enumerate(names)})
    figure = plots.over_epochs(rows).figure
    assert [axes.get_title() for axes in figure.axes] == [f"depth {depth}" for depth in (1, 2, 4, 8)]
    assert len({axes.get_subplotspec().rowspan.start for axes in figure.axes}) == 2
    for axes in figure.axes:
        grey = [line for line in axes.lines if to_rgb(line.get_color()) == to_rgb(panels.GREY)]
        assert (
            sum(line.get_linestyle() == "-" for line in grey) == 2
        )  # the others; the dotted one ends the linear scale
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:8] == names[:8]
    assert legend.get_texts()[-3].get_text() == "2 others"  # before seeds and intervals
    figure.draw_without_rendering()
    assert legend.get_window_extent().x0 > max(axes.get_window_extent().x1 for axes in figure.axes)
    one_row = plots.over_epochs(rows, beside=False).figure
    assert len({axes.get_subplotspec().rowspan.start for axes in one_row.axes}) == 1


def records(metric: str, **more: object) -> pd.DataFrame:
    columns = ["kind", "length", "policy", "offset", "tokens", "probe", "layer", "head", "metric", "value"]
    rows = [
        {"pe": pe, "depth": 4, "epochs": 4, "seed": seed, "metric": metric, "policy": "raw", "offset": 0} | more
        | {"length": length, "value": length * (1 + number) + seed}
        for number, pe in enumerate(("a", "b"))
        for seed in range(SEEDS)
        for length in (1, 2, 4)
    ]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=["pe", "depth", "epochs", "seed", *columns])


def test_length_curves_are_of_the_metric_and_by_length() -> None:
    both = pd.concat([records("loss", kind="length"), records("accuracy", kind="length")], ignore_index=True)
    made = plots.length_curves(both, "accuracy")
    (axes,) = made.figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines["b"].get_ydata() == pytest.approx([3.5, 5.5, 9.5])
    assert list(lines["b"].get_xdata()) == [1, 2, 4]
    assert len(made.data) == 6
    twice = both.sort_values("length", key=lambda lengths: lengths.map({1.0: 0, 4.0: 1, 2.0: 2}), kind="stable")
    assert plots.length_curves(twice, "accuracy").data["length"].tolist() == [1, 2, 4] * 2


def test_heads_are_averaged_within_a_seed() -> None:
    lines = records("entropy", kind="probe", probe="attention", layer=1).query("length == 1")
    heads = pd.concat([lines.assign(head=head, value=lines["value"] + head) for head in (0, 1)], ignore_index=True)
    made = plots.layer_curves(heads, "attention", "entropy")
    assert made.data["seeds"].tolist() == [SEEDS, SEEDS]
    assert made.data["mean"].tolist() == pytest.approx([3.0, 4.0])


@pytest.mark.parametrize("metric", ["entropy", "token_cosine"])
def test_panels_of_layers_have_one_axis_that_of_cosines_up_to_one(metric: str) -> None:
    lines = records(metric, kind="probe", probe="rank", layer=1).query("length == 1")
    both = pd.concat([lines.assign(depth=depth, value=lines["value"] / depth / 50) for depth in (1, 4)])
    made = plots.layer_curves(both, "rank", metric)
    first, second = made.figure.axes
    assert first.get_ylim() == second.get_ylim()
    low, high = first.get_ylim()
    assert low <= made.data["low"].min()
    assert (low < 0 < 1 < high < 1.1) == (metric == "token_cosine")
    assert [axes.get_ylabel() != "" for axes in (first, second)] == [True, False]


def test_r_squared_of_position_is_drawn_up_to_one_beside_permuted_positions() -> None:
    lines = records("r2", kind="probe", probe="position", layer=1).query("length == 1").assign(value=0.03)
    control = lines.assign(metric="r2_permuted", value=-0.02)
    made = plots.layer_curves(pd.concat([lines, control], ignore_index=True), "position", "r2")
    (axes,) = made.figure.axes
    (drawn,) = [line for line in axes.lines if line.get_label() == "control: positions permuted"]
    assert list(drawn.get_ydata()) == pytest.approx([-0.02, -0.02])
    assert axes.get_ylim()[1] > 1
    assert set(made.data["pe"]) == set(lines["pe"])


@pytest.mark.parametrize("count", [2, 8])
def test_bands_are_lighter_where_there_are_many(count: int) -> None:
    (axes,) = plots.learning_curves(curves([f"pe{number}" for number in range(count)])).figure.axes
    alphas = [one.get_alpha() for one in axes.collections if isinstance(one, PolyCollection)]
    assert len(alphas) == count
    assert max(alphas) <= 0.2
    assert sum(alphas) <= 0.6 + 1e-9


def test_shares_are_drawn_with_their_intervals() -> None:
    effects = pd.DataFrame({"effect": ["pe", "depth"], "share": [0.2, 0.8], "low": [-0.1, 0.7], "high": [0.5, 0.9]})
    (axes,) = plots.shares(effects).figure.axes
    assert [bar.get_width() for bar in axes.patches] == [0.2, 0.8]
    assert axes.get_xlim() == (0, 1)
    assert len(axes.get_xticks()) > 2


def test_means_that_are_all_within_the_margin_have_no_shades() -> None:
    rows = cells(["a", "b"], (1, 4))
    rows["test_loss"] = rows["pe"].map({"a": 2.096, "b": 2.098}) + 0.1 * ((rows["pe"] == "b") & (rows["depth"] == 1))
    lines = rows.drop_duplicates(["pe", "depth"]).assign(margin=0.05)
    bare, shades = (plots.heatmap(rows, "loss", one).figure.axes[0].images[0].get_array() for one in (None, lines))
    assert bare[:2].tolist() == [[1, 1], [0, 0]]
    assert shades[:2, 0].tolist() == [1, 0]
    assert np.ma.getmaskarray(shades)[:2, 1].all()


def test_floors_that_a_legend_names_are_inside_the_axes() -> None:
    rows = cells(["a", "b"], (1, 4)).assign(floor_bayes_loss=0.0, floor_position_blind_loss=50.0)
    for made in (plots.over_epochs(rows), plots.over_epochs(rows, beside=False)):
        for axes in made.figure.axes:
            low, high = axes.get_ylim()
            assert low < 0
            assert high > 50
        (legend,) = made.figure.legends
        assert sum("best" in text.get_text() for text in legend.get_texts()) == 2


def test_a_legend_is_no_wider_than_its_figure() -> None:
    rows = cells(["a", "b", "sinusoidal"], (4,)).assign(floor_bayes_loss=0.0, floor_position_blind_loss=2.0)
    curves = pd.concat([rows.assign(epoch=epoch, metric="loss", value=1 / epoch) for epoch in (1, 2)])
    curves = curves[["pe", "depth", "epochs", "seed", "epoch", "metric", "value"]]
    figure = plots.learning_curves(curves, rows=rows).figure
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1


def test_seeds_are_dots_around_the_point_of_their_mean() -> None:
    rows = pd.concat([cells(["rope", "none"], (4, 1)).assign(epochs=epochs) for epochs in (1, 16)], ignore_index=True)
    made = plots.over_epochs(rows)
    assert sorted(made.seeds["value"]) == sorted(rows["test_loss"])
    for axes in made.figure.axes:
        here = rows["depth"] == int(axes.get_title().removeprefix("depth "))
        assert sorted(value for _, value in dots(axes)) == sorted(rows.loc[here, "test_loss"])
        x = np.log([place for place, _ in dots(axes)])
        assert x.mean() == pytest.approx(np.log([1, 16]).mean())
        assert len(np.unique(x.round(9))) == 4 * SEEDS  # beside each other


def test_means_of_many_seeds_and_single_seeds_have_no_dots() -> None:
    for count, expected in ((1, 0), (2, 2), (MAX_DOTS, MAX_DOTS), (MAX_DOTS + 1, 0)):
        rows = pd.DataFrame({"pe": "a", "seed": range(count), "value": 1.0})
        assert len(seed_values(rows, ["all"] * count)) == expected
    lost = pd.DataFrame({"pe": "a", "seed": range(3), "value": [1.0, np.inf, 2.0]})
    assert seed_values(lost, ["all"] * 3)["value"].tolist() == [1.0, 2.0]


def test_a_seed_has_one_place_beside_every_mean() -> None:
    assert seed_places(pd.Series([7, 3, 3, 5])).tolist() == [0.5, -0.5, -0.5, 0.0]
    assert seed_places(pd.Series([7, 7])).tolist() == [0.0, 0.0]
    rows = cells(["a", "b"]).sample(frac=1, random_state=0)
    places = plots.over_epochs(rows).seeds.groupby("seed")["place"].unique()
    assert [list(values) for values in places] == [[place] for place in np.linspace(-0.5, 0.5, SEEDS)]


def test_dots_of_the_forest_are_the_differences_of_the_seeds() -> None:
    rows = cells(["c", "b", "a"], (1, 4))
    rows.loc[(rows["pe"] == "c") & (rows["seed"] == 1), "test_loss"] = np.nan
    lines = [
        statistics.compare_cells(rows[rows["depth"] == depth], baseline) for depth, baseline in ((1, "a"), (4, "b"))
    ]
    made = plots.forest(pd.concat(lines, ignore_index=True), rows=rows)
    found = made.seeds.groupby(["setting", "pe"])["value"].agg(["mean", "size"])
    table = made.data.set_index(["setting", "pe"])
    assert found["mean"].to_dict() == pytest.approx(table["difference"].to_dict())
    assert found["size"].to_dict() == table["seeds"].to_dict() | {("depth 1", "c"): 3, ("depth 4", "c"): 3}
    names = [label.get_text() for label in made.figure.axes[0].get_yticklabels()]
    for axes in made.figure.axes:
        heights = {names[round(y)] for _, y in dots(axes)}
        assert heights == set(table.loc[axes.get_title()].index)
        assert all(abs(y - round(y)) <= 0.25 for _, y in dots(axes))
    assert plots.forest(pd.concat(lines, ignore_index=True)).seeds.empty


@pytest.mark.parametrize(
    ("metric", "values", "linear"),
    [
        ("loss", [3.0, 0.31], None),
        ("loss", [3.0, 0.3], 0.1),
        ("loss", [3.0, 0.1], 0.1),
        ("loss", [3.0, np.nan, 0.02], 0.01),
        ("loss", [1.0, 0.0], 0.001),
        ("loss", [0.009, 0.0], None),
        ("loss", [], None),
        ("accuracy", [1.0, 0.01], None),
        ("bits_per_byte", [2.0, 0.05], 0.01),
    ],
)
def test_losses_that_span_a_decade_are_on_a_logarithmic_scale(metric, values, linear) -> None:
    found = loss_scale(metric, pd.Series(values, dtype=float))
    assert found is None if linear is None else found == pytest.approx(linear)


@pytest.mark.parametrize("last", [0.005, 5.0])
def test_learning_curves_near_zero_are_logarithmic_with_dots_and_others_linear_with_bands(last: float) -> None:
    table = curves(["a", "b"])
    table.loc[table["epoch"] == 4, "value"] = last * (1 + table["seed"])
    rows = cells(["a", "b"], (4,)).assign(floor_bayes_loss=0.0, floor_position_blind_loss=40.0)
    made = plots.learning_curves(table, rows=rows)
    (axes,) = made.figure.axes
    low, high = axes.get_ylim()
    bands = [one for one in axes.collections if isinstance(one, PolyCollection)]
    assert low < 0
    assert high > 40
    if last > 1:
        assert (axes.get_yscale(), len(bands), dots(axes)) == ("linear", 2, [])
        assert made.seeds.empty
    else:
        assert (axes.get_yscale(), len(bands)) == ("symlog", 0)
        assert axes.yaxis.get_transform().linthresh == pytest.approx(0.01)
        assert {0, 0.01} <= set(axes.get_yticks().round(9))
        assert sorted(value for _, value in dots(axes)) == sorted(table["value"])


def test_learning_curves_of_one_task_have_one_scale() -> None:
    deep = curves(["a", "b"]).assign(depth=16, value=lambda table: table["value"] / 50)
    first, second = plots.learning_curves(pd.concat([curves(["a", "b"]), deep])).figure.axes
    assert first.get_yscale() == second.get_yscale() == "symlog"
    assert first.get_ylim() == second.get_ylim()


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_encodings_of_one_point_stand_side_by_side_and_apart_from_the_next_point(scale: str) -> None:
    axes = Figure().subplots()
    axes.set_xscale(scale)
    points, names = pd.Series([1.0, 2.0, 8.0]), ["a", "b", "c"]
    stand = np.array([side_by_side(axes, points, name, names, points) for name in names])
    across = np.log(stand) if scale == "log" else stand
    assert across[1] == pytest.approx(np.log(points) if scale == "log" else points)
    assert np.diff(across, axis=0).min() > 0
    assert (across[:, :-1].max(axis=0) < across[:, 1:].min(axis=0)).all()
    order = [(name, place) for name in names for place in (-0.5, 0.5)]
    ends = np.array([side_by_side(axes, points, name, names, points, place) for name, place in order])
    assert np.diff(ends, axis=0).min() > 0  # dots of two encodings do not mix


def test_ticks_are_at_measured_values_as_many_as_fit() -> None:
    axes = Figure().subplots()
    axes.set_xlim(0, 100)
    tick_measured(axes, [100, 1, 2, 50, 97])
    assert list(axes.get_xticks()) == [1, 50, 100]
    tick_measured(axes, [5])
    assert list(axes.get_xticks()) == [5]


def rates_of(rows: pd.DataFrame, chosen: dict[str, float]) -> pd.DataFrame:
    return pd.DataFrame({"pe": pe, "depth": 4, "epochs": 4, "optimizer.lr": rate} for pe, rate in chosen.items())


def test_rates_are_compared_with_the_chosen_one_of_each_encoding() -> None:
    rows = pd.concat([cells(["a", "b", "c"], (4,)).assign(**{"optimizer.lr": rate}) for rate in (0.001, 0.01)])
    rows["test_loss"] *= np.random.default_rng(0).gamma(4, size=len(rows))
    rows.insert(3, "optimizer.lr", rows.pop("optimizer.lr"))
    made = plots.over_rates(rows, rates_of(rows, {"a": 0.01, "b": 0.001}))  # of c all seeds diverged
    assert set(made.data["pe"]) == {"a", "b"}
    wide = rows.pivot_table(index=["pe", "seed"], columns="optimizer.lr", values="test_loss")
    for pe, best, other in (("a", 0.01, 0.001), ("b", 0.001, 0.01)):
        apart = wide.loc[pe, other] - wide.loc[pe, best]
        line = made.data[(made.data["pe"] == pe) & (made.data["optimizer.lr"] == other)].iloc[0]
        assert (line["mean"], line["low"], line["high"]) == pytest.approx((apart.mean(), *statistics.interval(apart)))
        assert sorted(made.seeds.loc[made.seeds["pe"] == pe, "value"]) == pytest.approx(sorted(apart))
        assert made.data.loc[made.data["chosen"] & (made.data["pe"] == pe), "optimizer.lr"].tolist() == [best]
    assert (made.data.loc[made.data["chosen"], ["mean", "low", "high"]] == 0).all(axis=None)
    (axes,) = made.figure.axes
    rings = [line for line in axes.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "none"]
    assert sorted(round(np.log10(line.get_xdata()[0])) for line in rings) == [-3, -2]
    assert CHOSEN in [text.get_text() for text in made.figure.legends[0].get_texts()]
    seen = np.concatenate([line.get_xdata().astype(float) for line in marks(axes)])
    dotted = np.array([x for x, _ in dots(axes)])
    for x in (seen, dotted):  # the encodings of a rate are within an eighth of the distance to the next
        off = np.abs(np.log10(x) - np.log10(x).round())
        assert off.max() <= 0.125
    beyond = sorted((patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches)
    assert [(low < 0.001, high < 0.001) for low, high in beyond] == [(True, True), (False, False)]
    assert beyond[1][0] > 0.01  # hatched: not tried
    assert (beyond[0][0], beyond[1][1]) == pytest.approx(axes.get_xlim())


def test_the_share_of_one_direction_is_one_over_the_stable_rank() -> None:
    table = records("stable_rank", kind="probe", probe="rank").assign(layer=lambda table: table["length"], length=1.0)
    table = pd.concat([table.assign(depth=depth) for depth in (1, 4)], ignore_index=True)
    table["value"] += 1
    made = plots.layer_curves(table, "rank", "direction_share")
    line = made.data.query("setting == 'depth 4' and pe == 'b' and layer == 2").iloc[0]
    assert line["mean"] == pytest.approx(np.mean([1 / (4 + seed + 1) for seed in range(SEEDS)]))
    assert len(made.figure.axes) == 2
    drawn = sorted(value for axes in made.figure.axes for _, value in dots(axes))
    assert drawn == pytest.approx(sorted(made.seeds["value"]))
    assert len(drawn) == 2 * 2 * 3 * SEEDS


def test_lengths_over_decades_have_dots_instead_of_bands() -> None:
    table = records("loss", kind="length")
    for factor, bands in ((1.0, True), (1000.0, False)):
        made = plots.length_curves(table.assign(value=1 + factor * (table["length"] - 1) + table["seed"] / 9))
        (axes,) = made.figure.axes
        assert made.bands == bands
        assert bool(axes.collections) == bands
        assert len(dots(axes)) == len(table)


def test_shades_run_from_a_guess_where_position_does_not_matter() -> None:
    rows = cells(["a", "b"], (4,))
    rows["test_loss"] = rows["pe"].map({"a": 0.5, "b": 1.0})
    rows = rows.assign(floor_bayes_loss=0.0, floor_position_blind_loss=0.0, floor_prior_loss=2.0)
    assert plots.heatmap(rows).figure.axes[0].images[0].get_array()[:2, 0].tolist() == [0.75, 0.5]
    gap = rows.assign(floor_position_blind_loss=4.0)
    assert plots.heatmap(gap).figure.axes[0].images[0].get_array()[:2, 0].tolist() == [0.875, 0.75]
    below = rows.assign(floor_position_blind_loss=0.1)  # all would be dark
    assert plots.heatmap(below).figure.axes[0].images[0].get_array()[:2, 0].tolist() == [1, 0]


def test_settings_that_no_encoding_has_learned_are_left_out_of_a_heat_map() -> None:
    rows = cells(["a", "b"], (1, 4, 16)).assign(floor_bayes_loss=0.0, floor_position_blind_loss=2.0)
    rows["test_loss"] = rows["depth"].map({1: 3.0, 4: 1.0, 16: 2.5}) - 1.0 * ((rows["pe"] == "a") & (rows["depth"] > 4))
    (axes,) = plots.heatmap(rows).figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["depth 4", "depth 16"]
    assert set(plots.heatmap(rows).data["setting"]) == {"depth 4", "depth 16"}
    assert "1 of 3 settings" in axes.figure.get_suptitle()
    (axes,) = plots.heatmap(rows[rows["depth"] != 4].assign(test_loss=3.0)).figure.axes
    assert len(axes.get_xticklabels()) == 2  # all of them, where none is learned


def test_a_table_without_shades_has_lines_between_its_rows() -> None:
    rows = cells(["a", "b", "c"], (4,)).assign(test_loss=1.0)
    compared = rows.drop_duplicates("pe").assign(margin=0.05)
    heights = [
        sorted(line.get_ydata()[0] for line in plots.heatmap(rows, "loss", lines).figure.axes[0].lines)
        for lines in (None, compared)
    ]
    assert heights == [[2.5], [0.5, 1.5, 2.5, 2.5]]


@pytest.mark.parametrize(("letters", "columns"), [(4, 4), (45, 2), (200, 1)])
def test_a_legend_has_as_many_columns_as_fit(letters: int, columns: int) -> None:
    figure, drawn = panels.make_panels(["one"], 2.0)
    handles = [Line2D([], [], label="x" * letters)] + [Line2D([], [], label=f"{number}") for number in range(7)]
    before = figure.get_figheight()
    panels.draw_legend(figure, drawn, [], handles)
    assert figure.legends[0]._ncols == columns
    assert figure.get_figheight() - before == pytest.approx(panels.LEGEND_ROW * -(-8 // columns))


@pytest.mark.parametrize("settings", [1, 3])
@pytest.mark.parametrize("floor", [{}, {"floor_position_blind_loss": 2.0}])
def test_a_heat_map_of_one_encoding_has_room_for_its_names(settings: int, floor: dict[str, float]) -> None:
    rows = cells(["rope"], (1, 4, 16)[:settings]).assign(**floor)
    rows.insert(1, "model.norm", "pre")
    plots.heatmap(rows, "loss", rows.assign(margin=99.0)).figure.draw_without_rendering()  # would warn


def two_seeds(names: list[str]) -> pd.DataFrame:
    rows = cells(names, (4,))
    return pd.concat([rows[rows["seed"] < 2].assign(epochs=epochs) for epochs in (1, 16)], ignore_index=True)


def test_means_of_two_seeds_have_dots_and_no_interval() -> None:
    drawn = plots.over_epochs(two_seeds(["rope", "none"]))
    assert drawn.data["low"].isna().all()
    (axes,) = drawn.figure.axes
    assert len(dots(axes)) == 8
    low, high = axes.get_ylim()
    values = [*drawn.seeds["value"], 0.0]  # with the best possible loss
    assert high - low == pytest.approx(1.1 * np.ptp(values))
    (legend,) = drawn.figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert "one of 2 seeds (too few for an interval)" in texts
    assert not [text for text in texts if "95 %" in text]


def test_the_forest_has_no_interval_of_two_seeds() -> None:
    rows = two_seeds(["rope", "none", "alibi"])
    compared = statistics.compare_cells(rows, baseline="rope")
    drawn = plots.forest(compared, rows=rows)
    assert compared["low"].notna().all()
    assert drawn.data["low"].isna().all()


def test_one_huge_interval_does_not_set_the_axis() -> None:
    rows = pd.DataFrame(
        {"pe": pe, "depth": 1, "epochs": epochs, "seed": seed, "test_loss": 50.0 + 0.1 * seed + wide * (seed == 2)}
        for pe, wide in (("rope", 0.0), ("none", 0.0), ("alibi", 9.0))
        for epochs in (1, 16)
        for seed in range(3)
    )
    drawn = plots.over_epochs(rows)
    low, high = drawn.figure.axes[0].get_ylim()
    assert drawn.data["low"].min() < 44 < low < 50.0
    assert 59.2 < high < 65 < drawn.data["high"].max()


def test_intervals_that_are_alike_are_shown_whole() -> None:
    ends = pd.DataFrame({"low": [0.0, 0.1, -9.0], "high": [2.0, 2.1, 11.0]})
    assert panels.ends_of([1.0, 1.1, 1.0], ends.iloc[:2]) == (0.0, 2.1)
    low, high = panels.ends_of([1.0, 1.1, 1.0], ends)
    assert (low, high) == pytest.approx((-1.0, 3.1))
    assert panels.ends_of([1.0, 1.1]) == (1.0, 1.1)


@pytest.mark.parametrize(("solved", "arrows"), [(5, 0), (2, 1)])
def test_a_lower_bound_has_an_arrow_in_the_forest(solved: int, arrows: int) -> None:
    compared = statistics.compare_cells(cells(["rope", "none"], (4,)), baseline="rope").assign(
        seeds=5, difference=2.0, low=1.0, high=3.0, solved=solved, baseline_solved=5
    )
    drawn = plots.forest(compared)
    heads = [text for text in drawn.figure.axes[0].texts if text.arrow_patch is not None]
    assert len(heads) == arrows
    assert [text.get_position()[0] > 0 for text in heads] == arrows * [True]
    names = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert ("at least: some runs are unsolved" in names) == bool(arrows)


def test_length_curves_have_the_floors_of_each_length() -> None:
    lines = [
        {"pe": "rope", "data": "causal_text", "seed": seed, "kind": "length", "length": length, "policy": "raw"}
        | {"offset": 0, "metric": metric, "value": value / length}
        for seed in (0, 1, 2)
        for length in (1.0, 2.0)
        for metric, value in {"loss": 2.0, "unigram/loss": 4.0, "xz/loss": 3.0, "ngram/accuracy": 0.1}.items()
    ]
    drawn = plots.length_curves(pd.DataFrame(lines))
    (axes,) = drawn.figure.axes
    by_name = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert by_name["frequency of tokens"] == [4.0, 2.0]
    assert by_name["xz, a compressor"] == [3.0, 1.5]
    assert "n-gram model" not in by_name
    assert axes.get_ylim()[1] > 4.0
    assert set(drawn.data["pe"]) == {"rope"}


@pytest.mark.parametrize(("best", "top"), [(0.4, 0.5), (0.9, 1.0), (0.0, 1.0)])
def test_the_axis_of_shares_over_lengths_ends_above_the_best(best: float, top: float) -> None:
    lines = [
        {"pe": "rope", "data": "copy", "seed": seed, "kind": "length", "length": length, "policy": "raw"}
        | {"offset": 0, "metric": "accuracy", "value": best / length}
        for seed in (0, 1, 2)
        for length in (1.0, 2.0)
    ]
    (axes,) = plots.length_curves(pd.DataFrame(lines), "accuracy").figure.axes
    low, high = axes.get_ylim()
    assert low < 0
    assert best < high <= 1.04 * top
