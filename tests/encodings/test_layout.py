"""A layout that was copied to a device answers from the CPU: on the meta device a tensor has no values to be read."""

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch

from pe_lab.encodings.families.randomized import ShiftedLayout
from pe_lab.encodings.layout import PADDING, UNMARKED, Layout
from pe_lab.encodings.memory import Carried, Memory

FACTS = ("pos_range", "max_distance", "packed", "contiguous", "right_padded", "one_segment", "runs_on")
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


def test_a_layout_is_contiguous_if_every_document_is_one_run_of_tokens() -> None:
    for _ in range(200):
        segment = torch.randint(-1, 3, (2, 6))
        slots = [(row == document).nonzero()[:, 0] for row in segment for document in range(3)]
        whole = all(len(own) == 0 or int(own[-1] - own[0]) == len(own) - 1 for own in slots)
        layout = Layout(torch.arange(6)[None], segment, True)
        assert layout.contiguous == whole
        assert replace(layout.last(2), keys=layout).contiguous == whole


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


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("length", range(2, 12))
def test_the_largest_distance_of_a_step_on_a_grid_is_that_of_any_axis(length: int, count: int, sequences: int) -> None:
    """A token in column 0 is 4 columns from one in the last column of the row before."""
    lengths = torch.tensor([11, length][-sequences:])
    whole = Layout.of_lengths(lengths, max(lengths), causal=True, grid_width=5)
    step = replace(whole.last(count), keys=whole)
    is_token = (step.segment != PADDING)[:, :, None] & (whole.segment != PADDING)[:, None, :]
    assert step.max_distance == step.distance.abs().amax(-1).masked_fill(~is_token, 0).max()


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_the_last_tokens_are_as_many_as_asked_for(count: int) -> None:
    keys = step_of().keys
    assert keys.last(count).segment.shape == keys.last(count).pos.shape == (1, count)
    assert torch.equal(keys.last(count).pos[0], torch.arange(10 - count, 10))


def with_marks() -> Layout:
    return replace(packed(True), marks=torch.arange(26).view(2, 13) % 7 - 1)


def test_marks_go_where_tokens_go() -> None:
    layout = with_marks()
    marks = layout.marks
    assert torch.equal(layout.part(3, 8).marks, marks[:, 3:8])
    assert torch.equal(layout.last(4).marks, marks[:, 9:])
    assert torch.equal(layout.rows(torch.tensor([1, 0, 1])).marks, marks[[1, 0, 1]])
    assert torch.equal(layout.part(0, 5).joined(layout.part(5, 13)).marks, marks)
    assert torch.equal(layout.part(5, 13).after(layout.part(0, 5)).keys.marks, marks)
    assert torch.equal(layout.shifted(4).marks, marks)
    assert torch.equal(layout.moved(lambda pos: 2 * pos).marks, marks)
    run = [replace(Layout.whole(2, 3, True, start=start), marks=marks[:, start : start + 3]) for start in (0, 3)]
    assert torch.equal(run[0].joined(run[1]).marks, marks[:, :6])
    for kind in (layout, run[0]):
        assert kind.following(2).marks is None
        assert torch.equal(kind.following(2, marks=marks[:, :2]).marks, marks[:, :2])
        assert kind.joined(kind.following(2)).marks is None


def test_the_largest_mark_is_read_on_the_cpu_unless_marks_are_others() -> None:
    layout = with_marks()
    assert layout.largest_mark == 5
    assert packed(True).largest_mark == UNMARKED
    assert layout.rows(torch.zeros(0, dtype=torch.long)).largest_mark == UNMARKED
    moved = replace(layout.to("meta"), seed=8)
    assert moved.marks.device.type == "meta"
    assert moved.largest_mark == 5
    assert moved.moved(lambda pos: 2 * pos).largest_mark == 5
    other = replace(moved, marks=moved.marks.clone())
    assert other.origin is None
    with pytest.raises(NO_VALUES):
        other.largest_mark  # noqa: B018 reading it fails


@pytest.mark.parametrize(
    ("marks", "error"),
    [
        (torch.zeros(2, 13), "marks must be integers, got torch.float32"),
        (torch.zeros(2, 13, dtype=torch.bool), "marks must be integers, got torch.bool"),
        (torch.zeros(1, 13, dtype=torch.long), r"marks must be one for each token, \[2, 13\], got \[1, 13\]"),
    ],
)
def test_marks_that_are_none_are_refused(marks: torch.Tensor, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        replace(packed(True), marks=marks)


def test_a_layout_of_another_kind_has_all_that_it_was_made_of() -> None:
    keys = Layout.whole(2, 5, True)
    layout = replace(keys.last(2), keys=keys, start=1, seed=3, memory=Memory(), marks=torch.zeros(2, 2).long())
    layout = layout.carrying(Carried(torch.zeros(2, 2, 1, 4)))
    for part in fields(Layout):
        value = getattr(layout, part.name)
        assert value is not None or part.name in ("origin", "structure")
        assert getattr(layout.as_kind(ShiftedLayout, drawn=True), part.name) is value
    assert layout.as_kind(ShiftedLayout, shift=4).shift == 4
    assert keys.to("cpu").as_kind(ShiftedLayout).structure is not None
