"""A memory returns all that was added, in order, however often its buffer grows."""

import pytest
import torch

from pe_lab.encodings.memory import MIN_SPARE_TOKENS, Memory


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    "steps",
    [[1] * (2 * MIN_SPARE_TOKENS), [5, 1, MIN_SPARE_TOKENS, 1, 3 * MIN_SPARE_TOKENS, 1], [MIN_SPARE_TOKENS + 1]],
)
def test_all_that_was_added_comes_back(steps: list[int], axis: int) -> None:
    memory, shape = Memory(), [2, 3, 4]
    shape[axis] = sum(steps)
    x = torch.randn(shape)
    total = 0
    for part in x.split(steps, axis):
        total += part.shape[axis]
        assert torch.equal(memory.extend("x", part, axis, total), x.narrow(axis, 0, total))


def test_a_buffer_is_copied_seldom() -> None:
    memory, buffers = Memory(), set()
    for total in range(1, 1001):
        memory.extend("x", torch.zeros(1, 1), 1, total)
        buffers.add(memory.tensors["x"].buffer.data_ptr())
    assert len(buffers) < 15


def test_names_are_kept_apart_and_rows_selected() -> None:
    memory = Memory()
    a, b = torch.randn(3, 4), torch.randn(3, 2, 5)
    memory.extend("a", a, 1, 4)
    memory.extend("b", b, 1, 2)
    rows = torch.tensor([2, 2, 0])
    memory.select(rows)
    assert torch.equal(memory.tensors["a"].all(), a[rows])
    assert torch.equal(memory.tensors["b"].all(), b[rows])


def test_what_was_kept_in_inference_mode_can_be_extended_outside() -> None:
    memory = Memory()
    with torch.inference_mode():
        memory.extend("x", torch.ones(1, 3), 1, 3)
        memory.select(torch.tensor([0, 0]))
    with torch.no_grad():
        assert memory.extend("x", torch.zeros(2, 1), 1, 4).tolist() == [[1, 1, 1, 0]] * 2


@pytest.mark.parametrize(
    ("x", "total", "error"),
    [
        (torch.zeros(1, 1), 6, "the cache must hold x of 5 tokens, got 3: an earlier pass did not finish"),
        (torch.zeros(2, 1), 4, "the cache must hold x like that of the new tokens"),
        (torch.zeros(1, 1).double(), 4, "the cache must hold x like that of the new tokens, torch.float64"),
        (torch.zeros(1, 1, device="meta"), 4, r"torch.float32 \[1, 1\] on meta, got torch.float32 \[1, 3\] on cpu"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(x: torch.Tensor, total: int, error: str) -> None:
    memory = Memory()
    memory.extend("x", torch.ones(1, 3), 1, 3)
    with pytest.raises(ValueError, match=error):
        memory.extend("x", x, 1, total)
    assert memory.tensors["x"].all().tolist() == [[1, 1, 1]]
