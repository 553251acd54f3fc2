"""Encodings that limit how far a query sees, against loops over pairs of tokens."""

from functools import partial

import hydra
import pytest
import torch
from torch.testing import assert_close

from helpers import loops
from helpers.configs import pe_settings
from pe_lab.attention import attend, reference
from pe_lab.encodings import OptionError, Stack, UnfitError, make
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.window import HardAlibi, Window
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms

H, d = 4, 6
SIZES = Sizes(H * d, H, 7)
EXACT = {"rtol": 0, "atol": 1e-13}


def terms(encoding: PositionalEncoding, layout: Layout) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, H * d, dtype=torch.float64), layout)


@pytest.mark.proves("{encoding}")
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
    ours = reference.attended_keys(terms(Window(SIZES, window=window), layout), layout)
    assert torch.equal(ours[0, 0], theirs)


def test_positions_count_and_not_the_order_in_the_row() -> None:
    pos = torch.tensor([[1_000_000, 1_000_001, 1_000_005, 1_000_006]])
    layout = Layout(pos, torch.zeros(1, 4, dtype=torch.long), True)
    counts = reference.attended_keys(terms(Window(SIZES, window=3), layout), layout)[0, 0]
    assert counts.nonzero().tolist() == [[0, 0], [1, 0], [1, 1], [2, 2], [3, 2], [3, 3]]


@pytest.mark.parametrize(("heads", "windows"), [(1, []), (2, [1]), (5, [1, 2]), (16, [1, 2, 3, 4, 5, 6, 7, 8])])
def test_half_of_the_heads_have_a_window(heads: int, windows: list[int]) -> None:
    terms = HardAlibi(Sizes(4 * heads, heads, 3)).terms(torch.zeros(1, 3, 1), Layout.whole(1, 3, True))
    assert terms == Terms(window=(*windows, *[None] * (heads - len(windows))))


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


def rnope_swa(depth: int, *overrides: str) -> Stack:
    made = hydra.utils.instantiate(pe_settings("rnope_swa", *overrides))
    return Stack.build(made, SIZES, depth)


SMALL = "pe.parts.0.parts.1.window=3"
SWAN = ["pe.parts=[none,{name: sum, parts: [rope, {name: window, window: 3}]}]", "pe.layers=[1,3]"]


@pytest.mark.proves("rnope_swa")
@pytest.mark.proves("interleave")
@pytest.mark.parametrize(
    ("overrides", "windows"),
    [
        ([], [4096, 4096, 4096, None] * 2),
        ([SMALL], [3, 3, 3, None] * 2),
        (SWAN, [None, 3, 3, 3] * 2),
    ],
)
def test_three_layers_of_four_have_rope_and_a_window_and_one_has_neither(
    overrides: list[str], windows: list[int | None]
) -> None:
    """Attention of every layer and its gradients; the first is the source's, the last the order of arXiv:2504.08719."""
    q, k, v = loops.inputs(H, d)
    layout = loops.mixed(causal=True)
    upstream = torch.randn_like(q)
    _, positions = rnope_swa(8, *overrides)(torch.zeros(3, 7, H * d, dtype=torch.float64), layout)
    for index, window in enumerate(windows):
        h = torch.zeros(3, 7, H * d, dtype=torch.float64)
        _, _, actual, _ = positions.layer(index, h)
        got = loops.unpadded(attend(q, k, v, actual, positions.layout, "reference"))
        if window is None:
            assert actual == Terms()
            expected = loops.attention(q, k, v, causal=True)
        else:
            assert actual.window == (window,)
            sees = partial(within, window)
            expected = loops.attention(*map(turned, (q, k)), v, causal=True, sees=sees)
        assert_close(got, expected, **EXACT)
        for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
            assert_close(g, e, **EXACT)


def within(window: int, head: int, i: int, j: int) -> bool:
    return i - j < window


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotate neighbouring dimensions by pos * 10000^(-2c/d), as complex numbers."""
    angle = torch.tensor(loops.POSITIONS)[:, None, :, None] * 10_000.0 ** (-torch.arange(0, d, 2).double() / d)
    return torch.view_as_real(
        torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(angle * 0 + 1, angle)
    ).flatten(-2)


@pytest.mark.parametrize("overrides", [[], [SMALL], SWAN])
def test_token_by_token_equals_the_whole_sequence(overrides: list[str]) -> None:
    """Longer than the window, with a cache."""
    stack, length = rnope_swa(4, *overrides), 12
    x = torch.randn(2, length, H * d, dtype=torch.float64)

    def run(x: torch.Tensor, cache: object = None) -> torch.Tensor:
        x, positions = stack(x, cache=cache)
        for index in range(4):
            h, _, terms, layout = positions.layer(index, x)
            q = h.view(*h.shape[:2], H, d).transpose(1, 2)
            x = x + attend(q, q.flip(-1), q, terms, layout).transpose(1, 2).flatten(2)
        return x

    with torch.no_grad():
        cache = stack.cache()
        steps = torch.cat([run(x[:, at : at + 1], cache) for at in range(length)], 1)
        assert_close(steps, run(x), rtol=0, atol=1e-12)


def test_a_model_with_fewer_than_four_layers_is_refused() -> None:
    with pytest.raises(UnfitError, match=r"^rnope_swa alternates over 4 layers: depth must be at least that, got 3$"):
        rnope_swa(3)


@pytest.mark.proves("rnope_swa", by="transformers")
def test_layers_equal_transformers_cohere2() -> None:
    """A whole layer of attention of each kind, with window 3."""
    pytest.importorskip("transformers")
    from transformers.models.cohere2.configuration_cohere2 import Cohere2Config
    from transformers.models.cohere2.modeling_cohere2 import Cohere2Attention, Cohere2RotaryEmbedding

    config = Cohere2Config(
        hidden_size=H * d,
        num_attention_heads=H,
        num_key_value_heads=H,
        num_hidden_layers=8,
        sliding_window=3,
        attn_implementation="eager",
        vocab_size=8,
        intermediate_size=8,
    )
    rotates = Cohere2RotaryEmbedding(config)
    rotates.inv_freq = 10_000.0 ** (-torch.arange(0, d, 2).double() / d)
    h, length = torch.randn(2, 9, H * d, dtype=torch.float64), 9
    stack = Stack.build(hydra.utils.instantiate(pe_settings("rnope_swa", SMALL)), Sizes(H * d, H, length), 8)
    _, positions = stack(h)
    angles = rotates(h, torch.arange(length)[None])
    gap = torch.arange(length)[:, None] - torch.arange(length)
    for index in range(8):
        theirs = Cohere2Attention(config, index).double()
        assert theirs.sliding_window == (None if index % 4 == 3 else 3)
        seen = (gap >= 0) & (gap < (theirs.sliding_window or length))
        mask = torch.zeros(1, 1, length, length, dtype=torch.float64).masked_fill(~seen, -torch.inf)
        expected = theirs(h, angles, mask)[0]
        _, _, actual, layout = positions.layer(index, h)
        q, k, v = (getattr(theirs, f"{name}_proj")(h).unflatten(-1, (H, d)).transpose(1, 2) for name in ("q", "k", "v"))
        got = theirs.o_proj(attend(q, k, v, actual, layout, "reference").transpose(1, 2).flatten(2))
        # their cosine and sine are float32, and so is their softmax
        assert_close(got, expected, rtol=0, atol=8 * torch.finfo(torch.float32).eps * expected.abs().max().item())
