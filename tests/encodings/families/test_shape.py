"""Shifted positions: a shift for each sequence in training, a constant one in evaluation."""

from dataclasses import replace
from functools import partial

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.configs import pe_settings
from pe_lab.attention import attend
from pe_lab.encodings import PADDING, Alibi, Layout, Learnable, RoPE, Shape, Sinusoidal, Sizes, Stack, Sum, make
from pe_lab.encodings.families.absolute import Integer
from pe_lab.training.graph import refusal_reason

D, H, T = 12, 2, 9
SIZES = Sizes(D, H, T)


def make_encoding(**options: object) -> Shape:
    return Shape(SIZES, "shape", **{"encoding": Sinusoidal, "max_shift": 40} | options)


def whole(batch: int = 4, causal: bool = True, seed: int | None = 5) -> Layout:
    return replace(Layout.of_lengths(torch.full((batch,), T), T, causal), seed=seed)


def packed(causal: bool = True) -> Layout:
    pos = torch.tensor([[7, 8, 11, 12, 3, 4, 5, 0, 0], [0, 0, 5, 6, 7, 8, 9, 10, 11]])
    segment = torch.tensor([[4] * 4 + [1] * 3 + [PADDING] * 2, [PADDING] * 2 + [2] * 7])
    return Layout(pos, segment, causal, seed=5)


def papers(pos: Tensor, shift: list[int]) -> Tensor:
    """Return sinusoids of every position of every sequence, one by one, in float64."""
    rows = []
    for b, k in enumerate(shift):
        for p in pos.expand(len(shift), -1)[b].tolist():
            angles = [(p + k) / 10_000 ** (2 * (c // 2) / D) for c in range(D)]
            values = torch.tensor(angles, dtype=torch.float64)
            rows.append(torch.where(torch.arange(D) % 2 == 0, values.sin(), values.cos()))
    return torch.stack(rows).view(len(shift), -1, D)


@pytest.mark.proves("shape")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", [whole, packed])
def test_in_training_every_sequence_has_a_shift_of_its_own(layout, causal: bool) -> None:
    """The embeddings and their gradient are those of sinusoids at p + k, padding aside."""
    encoding, input_layout = make_encoding(), layout(causal=causal)
    batch = len(input_layout.segment)
    located = encoding.locate(input_layout)
    shift = torch.randint(40, (batch,), generator=torch.Generator().manual_seed(5)).tolist()
    assert len(set(shift)) > 1
    x = torch.randn(batch, T, D, dtype=torch.float64, requires_grad=True)
    got, expected = encoding.embed(x, located), x + papers(input_layout.pos, shift)
    assert_close(got, expected, rtol=0, atol=1e-13)
    upstream = torch.randn_like(expected)
    assert_close(*(torch.autograd.grad(y, x, upstream)[0] for y in (got, expected)), rtol=0, atol=0)
    assert torch.equal(located.segment, input_layout.segment)


@pytest.mark.proves("shape")
@pytest.mark.parametrize(("evaluate", "shift"), [("max", 41), ("middle", 20), ("zero", 0)])
@pytest.mark.parametrize("layout", [whole, packed])
def test_in_evaluation_the_shift_is_the_declared_one(layout, evaluate: str, shift: int) -> None:
    encoding, input_layout = make_encoding(max_shift=41, evaluate=evaluate).eval(), layout()
    x = torch.randn(len(input_layout.segment), T, D, dtype=torch.float64)
    for seed in (5, 6, None):
        located = encoding.locate(replace(input_layout, seed=seed))
        assert torch.equal(located.pos, input_layout.pos + shift)
        expected = x + papers(input_layout.pos, [shift] * len(x))
        assert_close(encoding.embed(x, located), expected, rtol=0, atol=1e-13)


def test_the_released_shift_is_the_default() -> None:
    encoding = hydra.utils.instantiate(pe_settings("shape"))(SIZES).eval()
    assert encoding.locate(whole()).pos.tolist() == [list(range(500, 500 + T))]


def test_the_layout_says_whether_its_shifts_were_drawn() -> None:
    encoding = make_encoding()
    assert encoding.locate(whole()).drawn
    assert not encoding.eval().locate(whole()).drawn
    assert encoding.train().locate(whole()).drawn


def test_shifts_cover_their_range_evenly_and_end_before_the_largest() -> None:
    drawn = make_encoding(max_shift=20).draw(40_000, seed=3)
    counts = drawn.bincount(minlength=20)
    assert len(counts) == 20
    expected = 40_000 / 20
    assert (counts - expected).abs().max() < 5 * (expected * (1 - 1 / 20)) ** 0.5


def test_shifts_follow_from_the_seed_of_the_layout_and_leave_the_global_generator() -> None:
    encoding = make_encoding()
    before = torch.get_rng_state()
    first, other, again = (encoding.locate(whole(seed=seed)).pos for seed in (7, 8, 7))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(encoding.locate(whole(2, seed=7)).pos, first[:2])
    torch.manual_seed(1)
    unseeded = encoding.locate(whole(seed=None)).pos
    torch.manual_seed(1)
    assert torch.equal(encoding.locate(whole(seed=None)).pos, unseeded)


def test_facts_are_those_of_the_shifted_positions() -> None:
    for encoding in (make_encoding(), make_encoding().eval()):
        for layout in (whole(), Layout.whole(3, T, True), packed()):
            located = encoding.locate(layout)
            plain = Layout(located.pos, located.segment, True)
            for fact in ("pos_range", "max_distance", "packed", "right_padded", "runs_on"):
                assert getattr(located, fact) == getattr(plain, fact), fact


def test_bounds_hold_where_positions_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for encoding, expected in ((make_encoding(), (0, T - 1 + 40)), (make_encoding().eval(), (40, T - 1 + 40))):
        assert encoding.locate(Layout.whole(3, T, True)).pos_range == expected


def test_a_table_has_a_row_for_every_shifted_position() -> None:
    table = partial(Learnable, max_len=T + 40)
    encoding = make_encoding(encoding=table).eval()
    assert encoding.locate(whole()).pos_range[1] == len(encoding.encoding.table) - 1
    with pytest.raises(ValueError, match=rf"^encoding.max_len must be .* max_len={T + 39}, length={T + 40}$"):
        make_encoding(encoding=partial(Learnable, max_len=T + 39))


@pytest.mark.parametrize("kind", [RoPE, Alibi])
def test_an_encoding_that_sees_distances_only_is_refused(kind: type) -> None:
    with pytest.raises(ValueError, match="^shape needs an encoding that adds vectors of positions, got "):
        make_encoding(encoding=kind)


def test_an_encoding_without_positions_or_that_draws_them_is_refused() -> None:
    for name in ("none", "cpe", "randomized_sinusoidal", "shape"):
        inner = hydra.utils.instantiate(pe_settings(name))
        with pytest.raises(ValueError, match=f"^shape needs an encoding of positions on a line, got {name}$"):
            make_encoding(encoding=inner)


@pytest.mark.parametrize(
    ("option", "value"), [("max_shift", 0), ("max_shift", 1.5), ("evaluate", "min"), ("evaluate", 0)]
)
def test_an_option_out_of_range_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be "):
        make_encoding(**{option: value})


@pytest.mark.parametrize("hook", ["embed", "mix", "terms"])
def test_a_layout_that_was_not_located_is_refused(hook: str) -> None:
    with pytest.raises(ValueError, match=r"^shape draws positions in locate: call locate"):
        getattr(make_encoding(), hook)(torch.randn(4, T, D), whole())


def test_a_sum_of_encodings_is_shifted_as_one() -> None:
    encoding = make_encoding(encoding=partial(Sum, parts=[Sinusoidal, RoPE])).eval()
    x = torch.zeros(4, T, D, dtype=torch.float64)
    located = encoding.locate(whole())
    assert_close(encoding.embed(x, located), papers(whole().pos, [40] * 4), rtol=0, atol=1e-13)
    assert encoding.terms(x, located).rotary_q is not None


def test_vectors_have_the_bits_of_float32_in_low_precision() -> None:
    encoding, zero = make_encoding(max_shift=400).eval(), torch.zeros(4, T, D)
    located = encoding.locate(whole())
    expected = encoding.embed(zero, located)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.embed(zero, located), expected)
        assert torch.equal(encoding.embed(zero.bfloat16(), located), expected.bfloat16())
    assert_close(expected.double(), papers(whole().pos, [400] * 4), rtol=0, atol=400 * 1e-7)


def attended(stack: Stack, x: Tensor, layout: Layout | None, cache: object = None) -> Tensor:
    x, positions = stack(x, layout, cache)
    _, h, terms, layer_layout = positions.layer(0, x)
    q = h.unflatten(2, (H, -1)).transpose(1, 2)
    return attend(q, q, q, terms, layer_layout).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("with_layout", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_decoded_with_a_cache_it_equals_the_whole_sequence(training: bool, with_layout: bool) -> None:
    """In training mode too, where the layout has a seed, and behind a selection of sequences."""
    stack = make("shape", width=D, num_heads=H, depth=1, length=T).double().train(training)
    x, layout = torch.randn(4, T, D, dtype=torch.float64), Layout.whole(4, T, True)
    if with_layout or training:
        layout = replace(layout, seed=5)
    with torch.no_grad():
        expected, cache = attended(stack, x, layout), stack.cache()
        parts = []
        for at in range(T):
            token_layout = replace(layout, pos=layout.pos[:, at : at + 1], segment=layout.segment[:, at : at + 1])
            parts.append(attended(stack, x[:, at : at + 1], token_layout if with_layout or not at else None, cache))
            if not training:
                cache.select(torch.arange(4))
    assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_cache_in_training_mode_without_a_seed_is_refused() -> None:
    stack = make("shape", width=D, num_heads=H, depth=1, length=T)
    with pytest.raises(ValueError, match=r"^shape draws other shifts in each pass of training: call eval\(\) before"):
        stack(torch.zeros(2, 1, D), None, stack.cache())
    stack.eval()(torch.zeros(2, 1, D), None, stack.cache())


def test_steps_that_draw_shifts_on_the_cpu_are_not_captured() -> None:
    device = torch.device("cuda")
    for encoding, refused in ((make_encoding(), True), (Sinusoidal(SIZES), False)):
        reason = refusal_reason(torch.nn.ModuleList([encoding]), torch.optim.AdamW, device)
        assert (reason is not None) is refused


def test_on_a_grid_positions_are_read_row_by_row() -> None:
    encoding = Shape(Sizes(D, H, 9, grid_width=3), "shape", Integer, max_shift=7).eval()
    layout = Layout.whole(2, 9, True, grid_width=3)
    assert encoding.locate(layout).pos.tolist() == [list(range(7, 16))]


def test_shifts_within_a_span_use_all_of_it_and_leave_none_of_its_ends() -> None:
    """A sequence of n tokens is at 0 ... n - 1 up to span - n ... span - 1, all equally often."""
    encoding = make_encoding(max_shift=None, evaluate="zero", span=20)
    length = torch.tensor([3, T]).repeat(4000)
    input_layout = replace(Layout.of_lengths(length, T, causal=True), seed=5)
    located = encoding.locate(input_layout)
    for n in (3, T):
        rows = located.pos[length == n, :n]
        first = rows[:, 0].bincount(minlength=20)
        assert torch.equal(rows - rows[:, :1], torch.arange(n).expand(4000, -1))
        assert (first > 0).tolist() == [place <= 20 - n for place in range(20)]
        expected = 4000 / (21 - n)
        assert (first[: 21 - n] - expected).abs().max() < 4.5 * expected**0.5
    assert located.pos.max() <= 19
    assert encoding.eval().locate(input_layout).pos.tolist() == [list(range(T))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"span": 20}, "max_shift must be null where span is given, 20, got 40"),
        ({"span": 20, "max_shift": None}, "evaluate must be zero where span is given, 20, got max"),
        ({"max_shift": None}, "max_shift must be given where span is null, got null"),
        (
            {"span": 8, "max_shift": None, "evaluate": "zero"},
            "span must be at least the length of the sequences, 9, got 8",
        ),
    ],
)
def test_span_and_max_shift_exclude_each_other(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make_encoding(**options)
