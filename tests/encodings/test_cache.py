"""A cache refuses what would be decoded wrongly, and is then as it was."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pe_lab.attention import attend
from pe_lab.encodings import Layout, Stack, make
from pe_lab.encodings.cache import Cache
from pe_lab.encodings.layout import PADDING

SIZES = {"width": 16, "num_heads": 2, "depth": 2, "length": 8}


def layout(pos: list[list[int]], segment: list[list[int]]) -> Layout:
    return Layout(torch.tensor(pos), torch.tensor(segment), causal=True)


def filled() -> Cache:
    """Sequences of 3 and 2 tokens, with keys of a layer."""
    cache = Cache(depth=2)
    cache.add(layout([[0, 1, 2], [0, 0, 1]], [[0, 0, 0], [PADDING, 0, 0]]))
    cache.layers[0].extend("keys", torch.arange(6.0).view(2, 1, 3, 1), 2, 3)
    return cache


ROW = layout([[3]], [[0], [0]])
REFUSED = {
    "the first position again": (
        layout([[0]], [[0], [0]]),
        "positions must follow those in the cache: that of sequence 0 ends at 2, got 0",
    ),
    "the last position of one again": (
        layout([[3], [1]], [[0], [0]]),
        "positions must follow those in the cache: that of sequence 1 ends at 1, got 1",
    ),
    "another batch": (layout([[3]], [[0]]), "the cache must be that of this batch: it holds 2 sequences, got 1"),
    "a grid": (
        layout([[[1, 1]]], [[0], [0]]),  # type: ignore[list-item]
        r"positions must be \[B, T\] as those in the cache, got \[B, T, axes\]",
    ),
    "padding": (layout([[3]], [[0], [PADDING]]), "must be padded on the left, got padding behind a token"),
    "padding inside": (layout([[3, 4, 5]], [[0] * 3, [0, PADDING, 0]]), "must be padded on the left"),
    "keys": (
        replace(ROW, keys=layout([[0, 1, 2, 3]], [[0] * 4] * 2)),
        "the layout must be that of the new tokens alone, got one with keys of earlier tokens",
    ),
    "attention in both directions": (replace(ROW, causal=False), "keys of earlier tokens need causal attention"),
}


@pytest.mark.parametrize(("new", "error"), REFUSED.values(), ids=list(REFUSED))
def test_tokens_that_do_not_follow_are_refused_and_the_cache_stays_as_it_was(new: Layout, error: str) -> None:
    cache = filled()
    before = cache.layout
    with pytest.raises(ValueError, match=error) as caught:
        cache.add(new)
    assert "\n" not in str(caught.value)
    assert cache.layout is before
    assert cache.add(ROW).earlier == 3


def test_a_new_document_begins_at_any_position_and_gaps_are_allowed() -> None:
    cache = filled()
    cache.add(layout([[0], [9]], [[1], [0]]))
    assert cache.layout is not None
    assert cache.layout.pos.tolist() == [[0, 1, 2, 0], [0, 0, 1, 9]]
    assert cache.layout.segment.tolist() == [[0, 0, 0, 1], [PADDING, 0, 0, 0]]


def test_a_sequence_of_padding_begins_later() -> None:
    cache = Cache(depth=1)
    cache.add(layout([[0, 1], [5, 5]], [[0, 0], [PADDING, PADDING]]))
    assert cache.layout is not None
    following = cache.layout.following(2)
    assert following.pos.tolist() == [[2, 3], [0, 1]]
    assert following.segment.tolist() == [[0, 0], [0, 0]]
    assert cache.add(following).of_keys.segment.tolist() == [[0] * 4, [PADDING] * 2 + [0] * 2]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (torch.tensor([True, False]), r"rows must be a tensor of integers \[N\], got torch.bool \[2\]"),
        (torch.tensor([0.0]), "got torch.float32"),
        (torch.tensor([[0]]), r"got torch.int64 \[1, 1\]"),
        (torch.tensor(0), r"got torch.int64 \[\]"),
        ([0], r"got \[0\]"),
        (torch.tensor([0, 2]), r"rows must be in 0 ... 1, the sequences in the cache, got \[0, 2\]"),
        (torch.tensor([-1]), r"rows must be in 0 ... 1, the sequences in the cache, got \[-1\]"),
    ],
)
def test_rows_that_are_no_sequences_are_refused_and_nothing_is_lost(rows: Tensor, error: str) -> None:
    cache = filled()
    with pytest.raises(ValueError, match=error):
        cache.select(rows)
    assert cache.layout is not None
    assert len(cache.layout.segment) == len(cache.layers[0].tensors["keys"].all()) == 2


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_selected_sequences_are_kept_in_their_order(dtype: torch.dtype) -> None:
    cache = filled()
    cache.embedding.extend("embedding", torch.tensor([[1.0], [2.0]]), 1, 1)
    cache.select(torch.tensor([1, 0, 1], dtype=dtype))
    assert cache.layout is not None
    assert cache.layout.pos.tolist() == [[0, 0, 1], [0, 1, 2], [0, 0, 1]]
    assert cache.layout.segment.tolist() == [[PADDING, 0, 0], [0, 0, 0], [PADDING, 0, 0]]
    assert cache.layers[0].tensors["keys"].all().flatten(1).tolist() == [[3, 4, 5], [0, 1, 2], [3, 4, 5]]
    assert cache.embedding.tensors["embedding"].all().tolist() == [[2], [1], [2]]


def test_a_shared_row_of_positions_is_selected() -> None:
    cache = Cache(depth=1)
    cache.add(layout([[0, 1]], [[0, 0]] * 2))
    cache.select(torch.tensor([1, 1, 0]))
    assert cache.layout is not None
    assert cache.layout.pos.tolist() == [[0, 1]] * 3


def test_an_empty_cache_has_nothing_to_select() -> None:
    cache = Cache(depth=1)
    cache.select(torch.tensor([0]))
    assert len(cache) == 0


def test_positions_of_padding_among_the_keys_do_not_count_as_distances() -> None:
    keys = layout([[-50, 40, 41, 42], [7, 90, 0, 1]], [[PADDING, 0, 0, 0], [PADDING, PADDING, 0, 0]])
    step = replace(keys.last(1), keys=keys)
    assert (step.max_distance, step.pos_range, step.packed, step.all_allowed) == (2, (1, 42), False, False)
    packed = layout([[-50, 40, 0, 1]], [[PADDING, 0, 1, 1]])
    step = replace(packed.last(1), keys=packed)
    assert (step.max_distance, step.packed) == (1, True)


def test_a_copy_of_a_cache_goes_its_own_way() -> None:
    cache = filled()
    other = deepcopy(cache)
    other.add(ROW)
    other.layers[0].extend("keys", torch.zeros(2, 1, 1, 1), 2, 4)
    assert (len(cache), len(other)) == (3, 4)
    assert cache.layers[0].tensors["keys"].all().flatten().tolist() == list(range(6))


@pytest.mark.parametrize("name", ["rope", "cpe"])
@torch.no_grad()
def test_facts_of_a_copy_on_another_device_are_read_from_the_cpu(name: str) -> None:
    """A layout whose facts would be wrong where it is."""
    stack: Stack = make(name, **SIZES)
    cache = stack.cache()
    first = layout([[0, 1, 2], [7, 0, 1]], [[0, 0, 0], [PADDING, 0, 0]])
    for source in (first, layout([[3], [2]], [[0], [0]])):
        wrong = Layout(torch.zeros_like(source.pos), torch.full_like(source.segment, PADDING), causal=True)
        _, positions = stack(torch.randn(*source.segment.shape, 16), wrong.with_source(source), cache)
    assert cache.layout is not None
    keys = cache.layout.source
    assert keys.pos.tolist() == [[0, 1, 2, 3], [7, 0, 1, 2]]
    assert positions.layout.max_distance == 3
    assert positions.layout.pos_range == (2, 3)
    assert not positions.layout.all_allowed


@pytest.mark.parametrize("chunks", [[1] * 10, [4, 1, 5]])
@pytest.mark.parametrize("name", ["path", "wall", "tape"])
def test_decoded_with_a_cache_products_of_earlier_tokens_are_those_of_the_whole_sequence(
    name: str, chunks: list[int]
) -> None:
    """Three layers; a document begins within, and padding stands in front of one sequence."""
    stack = make(name, width=8, num_heads=2, depth=3, length=16).double()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.normal_()
    segment = torch.tensor([[0] * 6 + [1] * 4, [PADDING] * 3 + [0] * 7])
    layout, x = Layout(torch.arange(10)[None], segment, True), torch.randn(2, 10, 8, dtype=torch.float64)

    def run(x: Tensor, layout: Layout, cache: object = None) -> Tensor:
        x, positions = stack(x, layout, cache)
        for index in range(3):
            h, _, terms, token_layout = positions.layer(index, x)
            q = h.unflatten(2, (2, -1)).transpose(1, 2)
            x = x + attend(q, q.flip(-1), q, terms, token_layout).transpose(1, 2).flatten(2)
        return x

    with torch.no_grad():
        expected, cache, start, parts = run(x, layout), stack.cache(), 0, []
        for size in chunks:
            now = slice(start, start + size)
            token_layout = replace(layout, pos=layout.pos[:, now], segment=segment[:, now])
            parts.append(run(x[:, now], token_layout, cache))
            start += size
    is_token = segment != PADDING
    assert_close(torch.cat(parts, 1)[is_token], expected[is_token], rtol=0, atol=1e-12)
