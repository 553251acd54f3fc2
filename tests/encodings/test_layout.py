"""A layout that was copied to a device answers from the CPU: on the meta device a tensor has no values to be read."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pe_lab.encodings.layout import PADDING, Layout

FACTS = ("pos_range", "max_distance", "packed", "right_padded", "one_segment", "runs_on")
NO_VALUES = (RuntimeError, NotImplementedError)
LENGTHS = torch.tensor([13, 9])


def packed(causal: bool) -> Layout:
    segment = torch.tensor([[7] * 6 + [4] + [9] * 6, [PADDING] * 2 + [0] * 5 + [3] * 4 + [PADDING] * 2])
    return Layout(2 * torch.arange(13)[None], segment, causal, seed=3)


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "whole": lambda: Layout.of_lengths(torch.tensor([13, 13]), 13, True),
    "right_padded": lambda: Layout.of_lengths(LENGTHS, 13, False),
    "grid": lambda: Layout.of_lengths(LENGTHS, 13, True, 4),
    "packed": lambda: packed(True),
    "late": lambda: packed(False).shifted(50),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_on_a_device_has_the_facts_of_its_copy_on_the_cpu(name: str) -> None:
    layout, fresh = LAYOUTS[name](), LAYOUTS[name]()
    moved = replace(layout.to("meta"), seed=8)  # as a training step does
    assert moved.pos.device.type == moved.segment.device.type == "meta"
    for fact in FACTS:
        assert getattr(moved, fact) == getattr(fresh, fact), fact


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("fact", FACTS)
def test_facts_of_another_layout_are_not_kept(name: str, fact: str) -> None:
    """Positions, segments or a mask of its own: they are read where they are."""
    moved = LAYOUTS[name]().to("meta")
    for change in ({"pos": moved.pos + 1}, {"segment": moved.segment.clone()}, {"causal": not moved.causal}):
        changed = replace(moved, **change)
        assert changed.origin is None
    if fact != "runs_on" or moved.pos.dim() == 2:  # a grid runs on in no case
        with pytest.raises(NO_VALUES):
            getattr(replace(moved, segment=moved.segment.clone()), fact)


@pytest.mark.parametrize("name", LAYOUTS)
def test_positions_moved_on_the_cpu_have_their_own_facts(name: str) -> None:
    layout = LAYOUTS[name]()
    expected = replace(layout, pos=3 * layout.pos + 1)
    for moved in (layout.moved(lambda pos: 3 * pos + 1), layout.to("meta").moved(lambda pos: 3 * pos + 1)):
        assert moved.pos.device.type == moved.segment.device.type
        for fact in FACTS:
            assert getattr(moved, fact) == getattr(expected, fact), fact
    assert torch.equal(layout.moved(lambda pos: 3 * pos + 1).pos, expected.pos)


def test_a_document_has_as_many_tokens_as_have_its_segment() -> None:
    segment = torch.randint(-1, 4, (5, 50))
    layout = Layout(torch.arange(50)[None], segment, True)
    same = segment[:, :, None] == segment[:, None, :]
    assert torch.equal(layout.document_length, same.sum(-1))


# -- layouts of the last tokens, with the keys of all ------------------------------------------------------------------


def step_of(count: int = 1) -> Layout:
    """The last of 6 tokens, at positions 4 ... 9, with the keys of all."""
    keys = Layout(torch.arange(4, 10)[None], torch.tensor([[PADDING, 0, 0, 0, 0, 0]]), causal=True)
    return replace(keys.last(count), keys=keys)


def test_keys_go_where_their_queries_go() -> None:
    step = step_of()
    assert step.max_distance == step.shifted(5).max_distance == step.moved(lambda pos: pos + 3).max_distance == 4
    assert step.moved(lambda pos: 2 * pos).max_distance == 8
    copied = step.to("meta")
    assert copied.pos.device == copied.keys.pos.device == copied.keys.segment.device == torch.device("meta")
    assert copied.max_distance == 4
    assert copied.moved(lambda pos: 2 * pos).max_distance == 8
    assert copied.moved(lambda pos: 2 * pos).keys.pos.device == torch.device("meta")


def test_facts_are_those_of_the_keys_that_are_there() -> None:
    copied = step_of().to("meta")
    other = replace(step_of().keys, pos=torch.tensor([[0, 1, 2, 3, 4, 59]]))
    assert replace(copied, keys=other).origin is None
    assert replace(step_of(), pos=torch.tensor([[59]]), keys=other).max_distance == 58


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_the_last_tokens_are_as_many_as_asked_for(count: int) -> None:
    keys = step_of().keys
    assert keys.last(count).segment.shape == keys.last(count).pos.shape == (1, count)
    assert torch.equal(keys.last(count).pos[0], torch.arange(10 - count, 10))
