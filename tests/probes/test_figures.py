"""Figures of one model show its weights and what its probe says."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from helpers.configs import compose_config
from pe_lab.experiment.cell import Cell
from pe_lab.probes.attention import layer_weights
from pe_lab.probes.figures import attention_heads, attention_maps, position_by_layer
from pe_lab.probes.position import PositionProbe

WORDS = ["pe=learnable", "model.depth=2", "model.width=16", "model.num_heads=2", "trainer.device=cpu"]


@pytest.fixture(scope="module")
def cell() -> Cell:
    return Cell.from_config(compose_config(*WORDS, "data=structured"))


def test_maps_are_the_weights_of_every_head(cell: Cell) -> None:
    model = cell.lightning_module().model
    maps = attention_maps(model, cell.dataset, seed=0, sequence=3)
    batch = cell.dataset.batch("test", torch.tensor([3]))
    length = int((batch.layout.segment[0] == 0).sum())
    with torch.no_grad():
        expected = [weights[0] for weights, _, _ in layer_weights(model.eval(), batch)]
    assert [layer.shape for layer in maps] == 2 * [(2, length, length)]
    for layer, weights in zip(maps, expected, strict=True):
        seen = ~np.isnan(layer)
        assert np.allclose(layer[seen], weights[:, :length, :length].numpy()[seen])
        assert np.allclose(np.nansum(layer, -1), 1)
    assert not np.array_equal(maps[0], attention_maps(model, cell.dataset, 0, sequence=4)[0])


def test_the_figure_has_a_map_per_head_with_one_scale(cell: Cell) -> None:
    model = cell.lightning_module().model
    figure = attention_heads(model, cell.dataset)
    shown = [image for axes in figure.axes for image in axes.get_images()]
    assert len(shown) == 4
    for image, weights in zip(shown, np.concatenate(attention_maps(model, cell.dataset, 0)), strict=True):
        assert np.array_equal(image.get_array().filled(np.nan), weights, equal_nan=True)
        assert (image.norm.vmin, image.norm.vmax) == (0, 1)
    assert isinstance(shown[0].norm, mpl.colors.PowerNorm)


def test_layers_and_heads_count_from_one_and_tokens_stand_at_the_axes(cell: Cell) -> None:
    figure = attention_heads(cell.lightning_module().model, cell.dataset, sequence=3)
    maps = [axes for axes in figure.axes if axes.get_images()]
    assert [axes.get_title() for axes in maps] == [f"layer {n}, head {h}" for n in (1, 2) for h in (1, 2)]
    batch = cell.dataset.batch("test", torch.tensor([3]))
    tokens = batch.tokens[0][batch.layout.segment[0] == 0].tolist()
    for labels in (maps[0].get_yticklabels(), maps[-1].get_xticklabels()):
        assert [int(label.get_text()) for label in labels] == tokens


def test_every_label_lies_within_the_figure_and_the_title_names_encoding_and_task(cell: Cell) -> None:
    figure = attention_heads(cell.lightning_module().model, cell.dataset)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    labels = [label for axes in figure.axes for label in (axes.yaxis.label, axes.xaxis.label) if label.get_text()]
    assert len(labels) > 2
    for label in labels:
        box = label.get_window_extent()
        assert (box.x0 >= 0, box.y0 >= 0, box.x1 <= figure.bbox.x1, box.y1 <= figure.bbox.y1) == 4 * (True,)
    assert {"learnable", "structured"} <= set(figure.get_suptitle().replace(",", "").split())


def test_tokens_of_a_long_sequence_are_counted_and_heads_stand_in_lines() -> None:
    words = ["pe=learnable", "model.depth=1", "model.width=32", "model.num_heads=8", "trainer.device=cpu"]
    cell = Cell.from_config(
        compose_config(
            *words, "data=induction", "data.length=64", "data.train=10", "data.test=2", "trainer.batch_size=10"
        )
    )
    figure = attention_heads(cell.lightning_module().model, cell.dataset)
    maps = [axes for axes in figure.axes if axes.get_images()]
    assert len(maps) == 8
    assert len({axes.get_subplotspec().rowspan.start for axes in maps}) == 2
    assert len(maps[0].get_yticks()) < 10


@pytest.mark.parametrize("length", [18, 32, 64])
def test_four_heads_of_a_layer_stand_in_one_row(length: int) -> None:
    words = ["pe=none", "model.depth=2", "model.width=16", "model.num_heads=4", "trainer.device=cpu"]
    sizes = ["data=induction", f"data.length={length}", "data.train=10", "data.test=2", "trainer.batch_size=10"]
    cell = Cell.from_config(compose_config(*words, *sizes))
    maps = [axes for axes in attention_heads(cell.lightning_module().model, cell.dataset).axes if axes.get_images()]
    rows = [axes.get_subplotspec().rowspan.start for axes in maps]
    assert rows == 4 * [0] + 4 * [1]


def test_a_sequence_that_is_not_there_is_refused(cell: Cell) -> None:
    size = cell.dataset.size("test")
    with pytest.raises(ValueError, match=rf"sequence must be in 0 ... {size - 1} of the test split, got {size}"):
        attention_maps(cell.lightning_module().model, cell.dataset, 0, sequence=size)


def test_lines_are_those_of_the_position_probe(cell: Cell) -> None:
    model = cell.lightning_module().model
    figure, rows = position_by_layer(model, cell.dataset, seed=1)
    pd.testing.assert_frame_equal(rows, pd.DataFrame(PositionProbe()(model, cell.dataset, 1)))
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    found = rows.set_index("metric")["value"]
    assert list(lines["position"]) == list(found["r2"])
    assert list(lines["control: positions permuted"]) == list(found["r2_permuted"])
    assert lines["from the token alone"][0] == found["r2_from_token"]
    assert list(figure.axes[0].get_xticks()) == [0, 1, 2]
