"""Encodings that limit how far a query sees, against loops over pairs of tokens."""

import loops
import pytest
import torch
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.encodings import OptionError, Stack, make
from pe_lab.encodings.base import PositionalEncoding, Sizes, Terms
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.window import HardAlibi, Window

H, d = 4, 6
SIZES = Sizes(H * d, H, 7)
EXACT = {"rtol": 0, "atol": 1e-13}


def terms(encoding: PositionalEncoding, layout: Layout) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=torch.float64), layout)


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("encoding", "sizes"),
    [
        (Window(SIZES, window=1), [1] * H),
        (Window(SIZES, window=3), [3] * H),
        (Window(SIZES, window=8), [8] * H),
        (HardAlibi(SIZES), [1, 2, None, None]),
        (HardAlibi(SIZES, windows=3), [1, 2, 3, None]),
        (HardAlibi(SIZES, windows=4), [1, 2, 3, 4]),
    ],
)
def test_a_key_counts_within_the_window(
    encoding: PositionalEncoding, sizes: list[int | None], causal: bool, implementation: str
) -> None:
    """Attention and its gradients, with documents, padding and gaps between positions."""
    q, k, v = loops.inputs(H, d)
    layout = loops.mixed(causal)
    got = loops.unpadded(attend(q, k, v, terms(encoding, layout), layout, implementation))

    def sees(head: int, i: int, j: int) -> bool:
        size = sizes[head]
        return size is None or -size < i - j < size

    expected = loops.attention(q, k, v, causal, sees=sees)
    assert_close(got, expected, **EXACT)
    upstream = torch.randn_like(got)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, **EXACT)


@pytest.mark.parametrize("window", [1, 4, 63, 64])
def test_the_window_is_that_of_transformers(window: int) -> None:
    masks = pytest.importorskip("transformers.masking_utils")
    layout = Layout.whole(1, 63, True)
    theirs, overlay = torch.ones(63, 63, dtype=torch.bool).tril(), masks.sliding_window_overlay(window)
    for i, j in theirs.nonzero().tolist():
        theirs[i, j] = bool(overlay(0, 0, i, j))
    ours = reference.counting(terms(Window(SIZES, window=window), layout), layout)
    assert torch.equal(ours[0, 0], theirs)


def test_positions_count_and_not_the_order_in_the_row() -> None:
    pos = torch.tensor([[1_000_000, 1_000_001, 1_000_005, 1_000_006]])
    layout = Layout(pos, torch.zeros(1, 4, dtype=torch.long), True)
    counts = reference.counting(terms(Window(SIZES, window=3), layout), layout)[0, 0]
    assert counts.nonzero().tolist() == [[0, 0], [1, 0], [1, 1], [2, 2], [3, 2], [3, 3]]


@pytest.mark.parametrize(("heads", "windows"), [(1, []), (2, [1]), (5, [1, 2]), (16, [1, 2, 3, 4, 5, 6, 7, 8])])
def test_half_of_the_heads_have_a_window(heads: int, windows: list[int]) -> None:
    found = HardAlibi(Sizes(4 * heads, heads, 3)).terms(torch.zeros(1, 3, 1), Layout.whole(1, 3, True))
    assert found == Terms(window=(*windows, *[None] * (heads - len(windows))))


def test_some_of_a_models_heads_have_windows_of_their_own() -> None:
    parts = ["hard_alibi", "window"]
    stack = make("heads", parts=parts, width=H * d, num_heads=H, depth=1, length=3)
    assert stack.first.terms(torch.zeros(1, 3, H * d), Layout.whole(1, 3, True)).window == (1, None, 8, 8)


@pytest.mark.parametrize("windows", [-1, 5, 1.5, True])
def test_more_windows_than_heads_are_refused(windows: object) -> None:
    with pytest.raises(OptionError, match=r"^windows must be (an integer of at least 0|at most the 4 heads), got "):
        HardAlibi(SIZES, windows=windows)


@pytest.mark.parametrize("window", [0, -1, 2.0, None])
def test_a_window_without_keys_is_refused(window: object) -> None:
    with pytest.raises(OptionError, match=r"^window must be an integer of at least 1, got "):
        Window(SIZES, window=window)
