"""Windows in the softmax kernels: which tiles are computed and which of them need no mask, for every window."""

from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad
from triton.runtime.interpreter import InterpreterBuilder

from pe_lab.attention import attend
from pe_lab.attention.triton import operators, softmax
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Terms

pytestmark = [  # of the interpreter, in rows of a tile that are beyond the sequence
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
key_tiles, query_tiles = softmax._key_tiles, softmax._query_tiles


@triton.jit
def ranges(
    window, out, length, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, QUERIES: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Write the ranges of tiles of a block, [windows, blocks, 4]. Grid: blocks, windows."""
    block, limit = tl.program_id(0), 0
    if WINDOW:
        limit = tl.load(window + tl.program_id(1))
    if QUERIES:
        begin, end, whole_begin, whole_end = query_tiles(
            None, limit, 0, block, length, BLOCK_M, BLOCK_N, CAUSAL, 0, WINDOW
        )
    else:
        begin, end, whole_begin, whole_end = key_tiles(
            None, limit, 0, block, length, BLOCK_M, BLOCK_N, CAUSAL, 0, WINDOW
        )
    to = out + (tl.program_id(1) * tl.num_programs(0) + block) * 4
    tl.store(to, begin)
    tl.store(to + 1, end)
    tl.store(to + 2, whole_begin)
    tl.store(to + 3, whole_end)


def computed(T: int, m: int, n: int, causal: bool, queries: bool, windows: Tensor | None) -> tuple[Tensor, Tensor]:
    """The tiles that are computed, and those without a mask, bool [windows, tiles of queries, tiles of keys]."""
    size, others = (n, triton.cdiv(T, m)) if queries else (m, triton.cdiv(T, n))
    blocks = triton.cdiv(T, size)
    actual = torch.full((1 if windows is None else len(windows), blocks, 4), -1, dtype=torch.int32, device=DEVICE)
    ranges[(blocks, len(actual))](windows, actual, T, m, n, causal, queries, windows is not None)
    begin, end, whole_begin, whole_end = actual[..., None].unbind(2)
    assert (begin <= whole_begin).all()
    assert (whole_begin <= whole_end).all()
    assert (whole_end <= end).all()
    tile = torch.arange(others, device=DEVICE)
    made = [(first <= tile) & (tile < last) for first, last in ((begin, end), (whole_begin, whole_end))]
    visited, whole = (x.transpose(1, 2) if queries else x for x in made)
    return visited, whole


def tiles_of(pairs: Tensor, m: int, n: int, queries: bool = False, keys: bool = False) -> Tensor:
    """Pairs [..., T, T] by tiles, [..., tiles, tiles, m n]; `queries` and `keys`: what those beyond the length have."""
    T = pairs.shape[-1]
    padded = pad(pad(pairs, (0, 0, 0, -T % m), value=queries), (0, -T % n), value=keys)
    return padded.unflatten(-1, (-1, n)).unflatten(-3, (-1, m)).movedim(-3, -2).flatten(-2)


@pytest.mark.covering
@pytest.mark.parametrize("queries", [False, True], ids=["tiles_of_keys", "tiles_of_queries"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 16), (16, 32)])
def test_the_tiles_with_a_pair_in_the_window_are_computed_and_no_others(
    m: int, n: int, causal: bool, queries: bool
) -> None:
    """Windows around the edges of tiles; a tile has no mask if all its pairs are within.

    A tile whose corner is on the diagonal may have a mask that it does not need.
    """
    T = 53
    edges = [size for size in range(1, T + 2) if size % 16 in (14, 15, 0, 1, 2, 3)]
    windows = torch.tensor(edges, dtype=torch.int32, device=DEVICE)
    distance = torch.arange(T, device=DEVICE)[:, None] - torch.arange(T, device=DEVICE)
    near = distance.abs() < windows[:, None, None]
    seen = near & (distance >= 0) if causal else near
    visited, whole = computed(T, m, n, causal, queries, windows)
    assert torch.equal(visited, tiles_of(seen, m, n).any(-1))
    # a program's own rows beyond the length are not stored, the others must be masked
    assert not (whole & ~tiles_of(seen, m, n, queries=not queries, keys=queries).all(-1)).any()
    before = near & (distance > 0) if causal else near
    assert not (tiles_of(before, m, n).all(-1) & ~whole).any()


def test_a_window_of_64_in_1024_tokens_takes_31_of_136_tiles() -> None:
    """With 64 queries and 64 keys in a tile, as on sm_90 in bfloat16; 46 of 256 in bidirectional attention."""
    window = torch.tensor([64], dtype=torch.int32, device=DEVICE)
    counts = [
        int(computed(1024, 64, 64, causal, queries, given)[0].sum())
        for causal, given, queries in product((True, False), (None, window), (False, True))
    ]
    assert counts == [136, 136, 31, 31, 256, 256, 46, 46]


PRODUCTS = {"forward": 2, "backward_keys": 4, "backward_queries": 3, "backward_tables": 2}  # of a tile


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch, with_blocks: Callable[..., set[str]]) -> Counter[str]:
    """The matrix products that each kernel computes in the interpreter, counted."""
    if DEVICE != "cpu":
        pytest.skip("products are counted in the interpreter")
    counted: Counter[str] = Counter()
    running: list[str] = []
    usual_launch, usual_dot = operators._Call.launch, InterpreterBuilder.create_dot

    def launch(self: operators._Call, kernel: object, *rest: object, **options: int) -> None:
        running.append(kernel.__name__)
        usual_launch(self, kernel, *rest, **options)
        running.clear()

    def create_dot(self: InterpreterBuilder, *operands: object) -> object:
        counted.update(running)
        return usual_dot(self, *operands)

    monkeypatch.setattr(operators._Call, "launch", launch)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    with_blocks(16, 16)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_every_kernel_computes_the_tiles_of_its_heads_window_and_no_others(
    causal: bool, products: Counter[str]
) -> None:
    """Windows that end at an edge of tiles, one after it and two after it."""
    T, windows = 50, (16, 17, 18)
    q, k, v = torch.randn(3, 1, len(windows), T, 16).requires_grad_()
    bias = torch.randn(1, 2 * T - 1).requires_grad_()
    attend(q, k, v, Terms(distance_bias=bias, window=windows), Layout.whole(1, T, causal), "triton").sum().backward()
    distance = torch.arange(T)[:, None] - torch.arange(T)
    limits = torch.tensor([size or T for size in windows])
    seen = (distance.abs() < limits[:, None, None]) & ((distance >= 0) | (not causal))
    count = int(tiles_of(seen, 16, 16).any(-1).sum())
    assert count < len(windows) * (10 if causal else 16)
    assert products == {kernel: number * count for kernel, number in PRODUCTS.items()}
