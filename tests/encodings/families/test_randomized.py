"""Randomised positions: an increasing sample, the same for every hook and layer of a forward pass."""

from dataclasses import replace

import hydra
import pytest
import torch

from helpers.configs import pe_settings
from pe_lab.config import Model, expand_overrides
from pe_lab.data.base import Task
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.absolute import Sinusoidal
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.model.transformer import Transformer

SIZES = Sizes(width=16, num_heads=2, length=9)
INNER = ["sinusoidal", "learnable", "rope", "alibi"]


def make_encoding(name: str, *overrides: str, sizes: Sizes = SIZES) -> PositionalEncoding:
    return hydra.utils.instantiate(pe_settings(name, *overrides))(sizes)


def whole_layout(batch: int, length: int, seed: int | None = None) -> Layout:
    return replace(Layout.of_lengths(torch.full((batch,), length), length, causal=True), seed=seed)


@pytest.mark.proves("randomized_{name}", by="identity: the other encoding at the drawn positions")
@pytest.mark.parametrize("name", INNER)
def test_it_is_the_other_encoding_at_the_drawn_positions(name: str) -> None:
    wrapped, inner = (
        make_encoding(f"randomized_{name}"),
        make_encoding(name, *(["pe.max_len=2048"] if name == "learnable" else [])),
    )
    inner.load_state_dict(wrapped.encoding.state_dict())
    x = torch.randn(3, 9, 16)
    layout = wrapped.locate(whole_layout(3, 9, seed=5))
    drawn = torch.randperm(2048, generator=torch.Generator().manual_seed(5))[:9].sort().values
    assert torch.equal(layout.pos, drawn[None])
    at = Layout(drawn[None], torch.zeros(3, 9, dtype=torch.long), causal=True)
    assert torch.equal(wrapped.embed(x, layout), inner.embed(x, at))
    got, want = wrapped.terms(x, layout), inner.terms(x, at)
    assert (got.distance_bias is None) == (want.distance_bias is None)
    if want.distance_bias is not None:
        assert torch.equal(got.distance_bias, want.distance_bias)
    if want.rotary_q is not None:
        assert torch.equal(got.rotary_q.cos, want.rotary_q.cos)
        assert torch.equal(got.rotary_k.sin, want.rotary_k.sin)


def test_samples_increase_without_repeats_and_cover_the_range_evenly() -> None:
    encoding = make_encoding("randomized_rope", "pe.max_len=40")
    seen = torch.zeros(40)
    for _ in range(2_000):
        drawn = encoding.draw(9)
        assert (drawn.diff() > 0).all()
        seen[drawn] += 1
    expected = 2_000 * 9 / 40
    # binomial, 5 standard deviations, on the even chance of every position
    assert (seen - expected).abs().max() < 5 * (expected * (1 - 9 / 40)) ** 0.5


def test_every_batch_has_one_draw_and_the_next_another() -> None:
    encoding = make_encoding("randomized_rope")
    first, second = encoding.locate(whole_layout(4, 9)).pos, encoding.locate(whole_layout(4, 9)).pos
    assert first.shape == (1, 9)
    assert not torch.equal(first, second)


def test_positions_follow_from_the_seed_of_the_layout_and_leave_the_global_generator() -> None:
    encoding = make_encoding("randomized_rope")
    before = torch.get_rng_state()
    first, other, again = (encoding.locate(whole_layout(4, 9, seed)).pos for seed in (7, 8, 7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    assert torch.equal(again, first)
    assert torch.equal(encoding.locate(whole_layout(4, 9, seed=7)).pos, first)
    assert not torch.equal(other, first)


def test_without_a_seed_positions_follow_from_the_global_generator() -> None:
    encoding = make_encoding("randomized_rope")
    drawn = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        drawn.append(encoding.locate(whole_layout(4, 9)).pos)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("hook", ["embed", "mix", "terms"])
@pytest.mark.parametrize("name", INNER)
def test_a_layout_that_was_not_located_is_refused(name: str, hook: str) -> None:
    encoding, x = make_encoding(f"randomized_{name}"), torch.randn(2, 9, 16)
    getattr(encoding, hook)(x, encoding.locate(whole_layout(2, 9)))
    message = (
        rf"^randomized_{name} draws positions in locate: call locate\(layout\) first and give the layout that it "
        r"returns to embed, mix and terms$"
    )
    with pytest.raises(ValueError, match=message):
        getattr(encoding, hook)(x, whole_layout(2, 9))


@pytest.mark.parametrize("training", [True, False])
def test_positions_are_drawn_in_training_and_at_test(training: bool) -> None:
    encoding = make_encoding("randomized_rope").train(training)
    first, second = (encoding.locate(whole_layout(4, 9)).pos[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert first[-1] > 9


def test_positions_that_begin_late_are_drawn_apart_too() -> None:
    pos, segment = torch.arange(100, 109)[None], torch.zeros(1, 9, dtype=torch.long)
    located = make_encoding("randomized_rope").locate(Layout(pos, segment, causal=True)).pos[0]
    assert (located.diff() > 0).all()
    assert located[0] >= 100


def test_packed_documents_and_padding_keep_their_order() -> None:
    encoding = make_encoding("randomized_rope")
    pos = torch.tensor([[-2, -1, 0, 1, 2, 0, 1]])
    segment = torch.tensor([[PADDING, PADDING, 0, 0, 0, 1, 1]])
    located = encoding.locate(Layout(pos, segment, causal=True)).pos[0]
    assert torch.equal(located[2:4], located[5:7])
    assert (located[2:5].diff() > 0).all()


def test_it_ends_where_the_positions_to_draw_from_end() -> None:
    encoding = Randomized(SIZES, "randomized_sinusoidal", Sinusoidal, max_len=12)
    assert torch.equal(encoding.locate(whole_layout(1, 12)).pos[0], torch.arange(12))
    assert Randomized(SIZES, "mine", Sinusoidal, max_len=SIZES.length).max_len == 9
    with pytest.raises(ValueError, match=r"^randomized_sinusoidal has positions 0 to 11: position 12 .*max_len"):
        encoding.locate(whole_layout(1, 13))
    with pytest.raises(ValueError, match=r"^max_len must be at least the length .*max_len=8, length=9$"):
        Randomized(SIZES, "mine", Sinusoidal, max_len=8)


def test_a_table_has_a_row_for_every_position_that_can_be_drawn() -> None:
    assert len(make_encoding("randomized_learnable").encoding.table) == 2048
    assert len(make_encoding("randomized_learnable", "pe.max_len=100").encoding.table) == 100


def test_an_encoding_that_takes_no_positions_is_refused() -> None:
    for name in ("none", "cpe", "randomized_rope"):
        with pytest.raises(ValueError, match=f"^mine needs an encoding of positions on a line, got {name}$"):
            Randomized(SIZES, "mine", hydra.utils.instantiate(pe_settings(name)))


def test_options_of_the_other_encoding_are_reached_by_name() -> None:
    assert make_encoding("randomized_rope", "pe.encoding.theta=500").encoding.theta == 500
    with pytest.raises(ValueError, match=r"^pe\.encoding=rope has .* theta: got pe\.encoding\.slope=3$"):
        expand_overrides(["pe=randomized_rope", "+pe.encoding.slope=3"], False)


def test_any_encoding_of_positions_can_be_named() -> None:
    encoding = make_encoding("randomized_rope", "pe@pe.encoding=lrope", "pe.encoding.share=heads")
    assert encoding.encoding.beta.shape == (1, 4)
    assert encoding.per_layer


def test_the_other_encoding_takes_the_range_for_its_training_length() -> None:
    assert make_encoding("randomized_rope", "pe@pe.encoding=continuous", "pe.max_len=300").encoding.scale == 300


def test_a_grid_is_drawn_in_reading_order() -> None:
    encoding = make_encoding("randomized_rope", sizes=Sizes(width=16, num_heads=2, length=9, grid_width=3))
    assert encoding.encoding.sizes.grid_width is None
    layout = replace(Layout.of_lengths(torch.full((2,), 9), 9, True, grid_width=3), seed=5)
    assert torch.equal(
        encoding.locate(layout).pos, make_encoding("randomized_rope").locate(whole_layout(2, 9, seed=5)).pos
    )


def test_queries_and_keys_get_the_drawn_positions_and_values_none() -> None:
    encoding, h = make_encoding("randomized_sinusoidal", "pe.encoding.at=query_key"), torch.randn(3, 9, 16)
    layout = encoding.locate(whole_layout(3, 9))
    h_qk, h_v = encoding.mix(h, layout)
    assert torch.equal(h_qk, Sinusoidal(SIZES).embed(h, layout))
    assert h_v is h


class Inner(Sinusoidal):
    """Declares every property that an encoding can declare, and doubles its positions."""

    reads_content = per_layer = causal_only = True

    def locate(self, layout: Layout) -> Layout:
        return replace(super().locate(layout), pos=2 * layout.pos)


def test_the_properties_of_the_other_encoding_are_its_own() -> None:
    encoding, plain = (Randomized(SIZES, "mine", kind, max_len=9) for kind in (Inner, Sinusoidal))
    for declared in ("reads_content", "per_layer", "causal_only"):
        assert getattr(encoding, declared), declared
        assert not getattr(plain, declared), declared
    assert torch.equal(encoding.locate(whole_layout(1, 9)).pos[0], 2 * torch.arange(9))
    with pytest.raises(ValueError, match=r"^mine is defined for causal attention only"):
        encoding.locate(Layout.of_lengths(torch.tensor([9]), 9, causal=False))


def test_layers_share_what_those_of_the_other_encoding_share() -> None:
    config = Model(
        depth=3, width=16, num_heads=2, mlp_ratio=1, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    counts = []
    for settings in (["pe=randomized_rope", "pe@pe.encoding=deberta"], ["pe=deberta"]):
        encoding = hydra.utils.instantiate(expand_overrides(settings, False)[0].pe)
        counts.append(Transformer(config, encoding, Task(5, 9, 5, causal=True)).positional_parameters())
    assert counts[0] == counts[1]
