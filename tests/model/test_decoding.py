"""Tokens decoded with a cache have the logits of the whole sequence, for every causal encoding of conf/pe."""

from dataclasses import replace

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers.configs import NAMES, pe_class, pe_settings
from pe_lab.attention import attend
from pe_lab.attention.dropout import Dropout
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.cache import Cache
from pe_lab.encodings.layout import PADDING, UNMARKED, Layout
from pe_lab.encodings.memory import MIN_SPARE_TOKENS, Memory
from pe_lab.encodings.terms import Rotary, Stick, Terms
from pe_lab.model.transformer import Transformer

WHOLE = {  # they need all tokens at once
    "longrope": "its frequencies depend on the length of the sequence",
    "normalized": "positions are divided by the length of the sequence",
    "rope_dynamic_ntk": "its frequencies depend on the length of the sequence",
    "randomized_alibi": "it draws positions for the whole sequence",
    "randomized_learnable": "it draws positions for the whole sequence",
    "randomized_rope": "it draws positions for the whole sequence",
    "randomized_sinusoidal": "it draws positions for the whole sequence",
}
CACHED = [name for name in NAMES if name not in WHOLE]
D, H, DEPTH, VOCABULARY, T = 16, 2, 3, 11, 13
DEEP = {"rnope_swa": 4}  # layers that an encoding needs
EQUAL = {"rtol": 0, "atol": 1e-10}


def grid(name: str) -> int | None:
    return 4 if pe_class(name).on_grid else None


def transformer(
    name: str,
    length: int = 8,
    causal: bool = True,
    implementation: str = "auto",
    norm: str = "pre",
    options: dict[str, object] | None = None,
) -> Transformer:
    """Return a float64 model trained at another length, with the encoding's parameters moved from where they start."""
    sizes = Model(
        DEEP.get(name, DEPTH), D, H, mlp_ratio=2, norm=norm, dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    task = Task(VOCABULARY, length, VOCABULARY, causal, grid_width=grid(name), marks=MAX_MARK)
    model = Transformer(sizes, hydra.utils.instantiate(pe_settings(name), **(options or {})), task, implementation)
    initialise_parameters(model, seed=0)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        model.encodings.constrain()
    return model.double().eval()


def decode(model: Transformer, tokens: Tensor, layout: Layout, borders: list[int]) -> Tensor:
    """Return the logits of tokens that are given in parts, which begin at the borders."""
    kept = model.encodings.cache()
    ends = [*borders[1:], tokens.shape[1]]
    parts = [model(tokens[:, a:b], layout.part(a, b), kept) for a, b in zip(borders, ends, strict=True)]
    assert len(kept) == tokens.shape[1]
    return torch.cat(parts, 1)


def tokens_of(batch: int = 2, length: int = T) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", CACHED)
@torch.no_grad()
def test_token_by_token_equals_the_whole(name: str) -> None:
    """Beyond the training length too; on a grid, row by row."""
    model, tokens = transformer(name), tokens_of()
    layout = marked_layout(model.task.layout(torch.full((2,), T), T))
    assert_close(decode(model, tokens, layout, list(range(T))), model(tokens, layout), **EQUAL)


@pytest.mark.parametrize("name", ["rope", "forgetting", "cpe"])
@torch.no_grad()
def test_more_tokens_than_a_buffer_holds_equal_the_whole(name: str) -> None:
    """Buffers grow twice."""
    count = 3 * MIN_SPARE_TOKENS
    model, tokens = transformer(name), tokens_of(2, count)
    layout = model.task.layout(torch.full((2,), count), count)
    assert_close(decode(model, tokens, layout, list(range(count))), model(tokens, layout), **EQUAL)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rse", {"order": "first"}),
        ("shaw", {"max_distance": 2}),
        ("deberta", {"max_distance": 2}),
        ("deberta", {"max_distance": 4, "buckets": "log"}),
        ("t5", {"num_buckets": 4, "max_distance": 3}),
        ("relative_bias", {"max_distance": 2}),
        ("xpos", {"scale_base": 4.0}),
        ("cope", {"max_position": 2, "std": 1.0}),
        ("learnable", {"at": "query_key", "combine": "concat"}),
        ("integer", {"at": "every_layer"}),
        ("vo_rope", {"queries_keys": False}),
    ],
)
@torch.no_grad()
def test_options_other_than_the_defaults_decode_too(name: str, options: dict[str, object]) -> None:
    """Beyond the distances of their tables, and at positions with gaps that start late."""
    model, tokens = transformer(name, options=options), tokens_of()
    for pos in (torch.arange(T), torch.arange(5, 5 + 3 * T, 3)):
        layout = Layout(pos[None], torch.zeros(2, T, dtype=torch.long), causal=True)
        assert_close(decode(model, tokens, layout, [0, 4, 5, 6, 11]), model(tokens, layout), **EQUAL)


@pytest.mark.parametrize("name", CACHED)
@torch.no_grad()
def test_padded_prompts_in_chunks_equal_each_sequence_alone(name: str) -> None:
    """Sequences of 13, 10 and 3 tokens, padded on the left; the first chunk of the last is padding."""
    model, tokens, lengths = transformer(name), tokens_of(3), (13, 10, 3)
    alone = marked_layout(model.task.layout(torch.tensor([T]), T))
    pos = torch.cat(
        [torch.cat((alone.pos[:, :1].expand(-1, T - n, *alone.pos.shape[2:]), alone.pos[:, :n]), 1) for n in lengths]
    )
    segment = torch.tensor([[PADDING] * (T - n) + [0] * n for n in lengths])
    got = decode(model, tokens, marked_layout(Layout(pos, segment, causal=True)), [0, 5, 9, 10, 11, 12])
    assert got.isfinite().all()
    for row, n in enumerate(lengths):
        expected = model(tokens[row : row + 1, T - n :], alone.part(0, n))
        assert_close(got[row : row + 1, T - n :], expected, **EQUAL)


@pytest.mark.parametrize(
    "name", ["none", "rope", "alibi", "learnable", "cpe", "forgetting", "stick_breaking", "shaw", "t5"]
)
@torch.no_grad()
def test_documents_that_are_packed_are_decoded_as_the_whole(name: str) -> None:
    model, tokens = transformer(name), tokens_of(1)
    pos = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7]])
    layout = Layout(pos, torch.tensor([[0] * 5 + [1] * 8]), causal=True)
    assert_close(decode(model, tokens, layout, [0, 3, 7, 8, 12]), model(tokens, layout), **EQUAL)


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
@pytest.mark.parametrize("name", ["rope", "alibi", "forgetting"])
@torch.no_grad()
def test_both_implementations_decode(name: str, implementation: str) -> None:
    model, tokens = transformer(name, implementation=implementation), tokens_of()
    layout = model.task.layout(torch.full((2,), T), T)
    assert_close(decode(model, tokens, layout, [0, 6, 7, 8, 9, 10, 11, 12]), model(tokens, layout), **EQUAL)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("rope", []), ("alibi", []), ("forgetting", ["log_f"]), ("cpe", ["embedding"]), ("learnable_per_layer", [])],
)
@torch.no_grad()
def test_a_cache_keeps_keys_values_and_what_the_encoding_asks_for(name: str, kept: list[str]) -> None:
    model, tokens = transformer(name), tokens_of()
    cache = model.encodings.cache()
    model(tokens, model.task.layout(torch.full((2,), T), T), cache)
    assert cache.names() == sorted(["keys", "values", *kept])


@torch.no_grad()
def test_keys_are_kept_rotated() -> None:
    """A step rotates the new key alone."""
    model, tokens = transformer("rope"), tokens_of()
    cache = model.encodings.cache()
    model(tokens, model.task.layout(torch.full((2,), T), T), cache)
    x, positions = model.encodings(model.tokens(tokens), None)
    layer = model.layers[0]
    query_key, value, terms, _ = positions.layer(0, layer.norm_attention(x))
    assert terms.rotary_k is not None
    _, k, _ = layer.attention.project(query_key, value)
    a, b = k[..., 0], k[..., 1]
    cos, sin = terms.rotary_k.cos[..., 0], terms.rotary_k.sin[..., 0]
    assert_close(cache.layers[0].tensors["keys"].all()[..., 0], a * cos - b * sin, **EQUAL)


@torch.no_grad()
def test_without_a_layout_positions_follow_those_in_the_cache() -> None:
    model, tokens = transformer("rope"), tokens_of()
    stack, x = model.encodings, torch.randn(2, T, D, dtype=torch.float64)
    cache = stack.cache()
    pos = [stack(x[:, a:b], None, cache)[1].layout.pos.expand(2, -1) for a, b in ((0, 5), (5, 6), (6, T))]
    assert torch.equal(torch.cat(pos, 1), torch.arange(T).expand(2, -1))
    padded = Layout(torch.tensor([[0, 0, 1], [0, 1, 2]]), torch.tensor([[PADDING, 0, 0], [0, 0, 0]]), causal=True)
    cache = stack.cache()
    stack(x[:, :3], padded, cache)
    assert stack(x[:, :2], None, cache)[1].layout.pos.tolist() == [[2, 3], [3, 4]]
    assert tokens.shape == x.shape[:2]


@pytest.mark.parametrize("name", ["rope", "cpe", "forgetting"])
@torch.no_grad()
def test_sequences_of_a_cache_can_be_selected(name: str) -> None:
    """As beam search does: what follows is as if the chosen sequences had been there from the start."""
    model, tokens = transformer(name), tokens_of(3)
    layout = model.task.layout(torch.full((3,), T), T)
    kept, rows = model.encodings.cache(), torch.tensor([2, 0, 2])
    model(tokens[:, :7], layout.part(0, 7), kept)
    kept.select(rows)
    got = model(tokens[rows, 7:], layout.part(7, T), kept)
    assert_close(got, model(tokens[rows], layout)[:, 7:], **EQUAL)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_an_encoding_of_whole_sequences_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot use a cache: {WHOLE[name]}"):
        transformer(name).encodings.cache()


@pytest.mark.parametrize("name", sorted(WHOLE))
@torch.no_grad()
def test_the_reason_is_true(name: str) -> None:
    """What an earlier token gets changes when later ones come."""
    model, tokens = transformer(name, length=4, norm="post"), tokens_of(1)  # pre-norm removes what normalized adds
    torch.manual_seed(0)
    whole = model(tokens, replace(model.task.layout(torch.tensor([T]), T), seed=0))
    start = model(tokens[:, :4], replace(model.task.layout(torch.tensor([4]), 4), seed=0))
    assert not torch.allclose(whole[:, :4], start, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_table_that_is_too_short_is_refused_before_the_cache_is_changed() -> None:
    model = transformer("learnable")
    kept = model.encodings.cache()
    rows = len(model.encodings.first.table)
    layout = Layout(torch.tensor([[rows - 1]]), torch.zeros(1, 1, dtype=torch.long), causal=True)
    token = torch.zeros(1, 1, dtype=torch.long)
    model(token, layout, kept)
    with pytest.raises(
        ValueError, match=f"learnable has positions 0 to {rows - 1}: position {rows} is beyond its table"
    ):
        model.encodings(model.tokens(token), None, kept)
    assert len(kept) == 1


def passed(model: Transformer, batch: int, start: int, end: int, kept: Cache) -> Tensor:
    layout = model.task.layout(torch.full((batch,), T), T)
    return model(tokens_of(batch)[:, start:end], layout.part(start, end), kept)


@torch.no_grad()
def test_a_cache_of_another_batch_or_model_is_refused() -> None:
    model, kept = transformer("rope"), transformer("rope").encodings.cache()
    passed(model, 2, 0, 5, kept)
    with pytest.raises(ValueError, match="the cache must be that of this batch: it holds 2 sequences, got 3"):
        passed(model, 3, 5, 6, kept)
    with pytest.raises(ValueError, match="the cache must be that of this model, of 3 layers, got 5"):
        passed(model, 2, 0, 5, Cache(5))
    passed(model, 2, 5, T, kept)


def test_gradients_and_bidirectional_attention_are_refused() -> None:
    model = transformer("rope")
    with pytest.raises(ValueError, match=r"a cache is for decoding, without gradients: call within torch.no_grad\(\)"):
        passed(model, 2, 0, 5, model.encodings.cache())
    with pytest.raises(ValueError, match="a cache needs causal attention, rope was made for causal=False"):
        transformer("rope", causal=False).encodings.cache()


@torch.no_grad()
def test_padding_behind_a_token_is_refused() -> None:
    model, kept = transformer("rope"), transformer("rope").encodings.cache()
    layout = model.task.layout(torch.tensor([5, 3]), 5)
    with pytest.raises(
        ValueError, match="sequences that are decoded must be padded on the left, got padding behind a token"
    ):
        model(tokens_of(2, 5), layout, kept)
    assert len(kept) == 0


@torch.no_grad()
def test_a_pass_that_did_not_finish_is_noticed() -> None:
    model = transformer("rope")
    kept, second = model.encodings.cache(), model.layers[1]
    passed(model, 2, 0, 5, kept)
    model.layers[1] = torch.nn.Identity()
    with pytest.raises(TypeError):
        passed(model, 2, 5, 6, kept)
    model.layers[1] = second
    with pytest.raises(ValueError, match="must hold keys of 6 tokens, got 5: an earlier pass did not finish"):
        passed(model, 2, 6, 8, kept)


@torch.no_grad()
def test_another_dtype_is_refused() -> None:
    model, kept = transformer("rope"), transformer("rope").encodings.cache()
    passed(model, 2, 0, 5, kept)
    with pytest.raises(ValueError, match="the cache must hold keys like that of the new tokens, torch.float32"):
        passed(model.float(), 2, 5, 6, kept)


@torch.no_grad()
def test_a_refused_implementation_leaves_the_cache_as_it_was() -> None:
    model, kept = transformer("rope"), transformer("rope").encodings.cache()
    passed(model, 2, 0, 5, kept)
    x, positions = model.encodings(model.tokens(tokens_of(2)[:, 5:6]), None, kept)
    h_qk, h_v, terms, layout = positions.layer(0, x)
    q, k, v = model.layers[0].attention.project(h_qk, h_v)
    with pytest.raises(ValueError, match="triton takes as many queries as keys"):
        attend(q, k, v, terms, layout, "triton")
    assert attend(q, k, v, terms, layout).isfinite().all()


# -- attention with keys of earlier tokens, without a cache ------------------------------------------------------------


def random_terms(name: str, layout: Layout) -> Terms:
    S, R = layout.of_keys.segment.shape[1], 20
    table, decay = torch.randn(H, 2 * R + 1, dtype=torch.float64), torch.randn(2, H, S, dtype=torch.float64)
    rotary = Rotary(*torch.randn(2, 1, 1, S, D // H // 2, dtype=torch.float64))
    full = torch.randn(2, 1, S, S, dtype=torch.float64)
    values = torch.randn(1, 2 * R + 1, D // H, dtype=torch.float64)
    return {
        "rotary": Terms(rotary_q=rotary, rotary_k=rotary, scale=0.3),
        "bias and decay": Terms(distance_bias=table, decay=decay),
        "logit_factors": Terms(logit_factors=table),
        "decay and stick": Terms(decay=decay, normalizer=Stick()),
        "gain": Terms(gain=1 + 0.1 * torch.randn(H, D // H, dtype=torch.float64)),
        "pair_bias": Terms(pair_bias=full),
        "relative_values": Terms(relative_values=values),
    }[name]


def of_queries(terms: Terms, count: int) -> Terms:
    """The terms of the last queries alone."""
    changes = {}
    if terms.rotary_q is not None:
        changes["rotary_q"] = Rotary(*(x[..., -count:, :] for x in (terms.rotary_q.cos, terms.rotary_q.sin)))
    if terms.pair_bias is not None:
        changes["pair_bias"] = terms.pair_bias[:, :, -count:]
    return replace(terms, **changes)


@pytest.mark.parametrize(
    "name", ["rotary", "bias and decay", "decay and stick", "gain", "logit_factors", "pair_bias", "relative_values"]
)
@pytest.mark.parametrize("count", [1, 4])
def test_the_last_queries_have_the_rows_of_all(name: str, count: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, H, T, D // H, dtype=torch.float64)
    keys = Layout(torch.arange(T)[None], torch.tensor([[0] * T, [PADDING] * 3 + [0] * (T - 3)]), causal=True)
    terms = random_terms(name, keys)
    expected = attend(q, k, v, terms, keys, "reference")[:, :, -count:]
    for implementation in ("auto", "reference"):
        got = attend(
            q[:, :, -count:], k, v, of_queries(terms, count), replace(keys.last(count), keys=keys), implementation
        )
        assert_close(got, expected, rtol=0, atol=1e-13)


def test_terms_act_once_on_keys_that_are_kept() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, H, T, D // H, dtype=torch.float64)
    keys = Layout(torch.arange(T)[None], torch.zeros(2, T, dtype=torch.long), causal=True)
    for name in ("gain", "rotary"):
        terms, memory = random_terms(name, keys), Memory()
        expected = attend(q, k, v, terms, keys, "reference")
        whole = replace(keys, keys=keys).remembering(memory)
        assert_close(attend(q, k, v, terms, whole), expected, rtol=0, atol=1e-13)
        new = Rotary(terms.rotary_q.cos[..., -1:, :], terms.rotary_q.sin[..., -1:, :]) if terms.rotary_q else None
        longer = keys.joined(keys.following(1))
        step = replace(longer.last(1), keys=longer).remembering(memory)
        last = [x[:, :, -1:] for x in (q, k, v)]
        got = attend(*last, replace(terms, rotary_q=new, rotary_k=new), step)
        assert_close(memory.tensors["keys"].all()[:, :, -1], memory.tensors["keys"].all()[:, :, -2], rtol=0, atol=1e-13)
        assert got.shape == (2, H, 1, D // H)


def test_a_table_that_does_not_reach_the_first_key_is_refused_before_a_key_is_kept() -> None:
    q = torch.randn(2, H, 1, D // H)
    keys = Layout(torch.arange(T)[None], torch.zeros(2, T, dtype=torch.long), causal=True)
    memory = Memory()
    step = replace(keys.last(1), keys=keys).remembering(memory)
    with pytest.raises(ValueError, match="distance_bias covers distances up to 11: got 12"):
        attend(q, q, q, Terms(distance_bias=torch.zeros(H, 23)), step)
    assert not memory.tensors


def test_what_does_not_fit_the_keys_is_refused() -> None:
    q, k, v = torch.randn(3, 2, H, T, D // H)
    keys = Layout(torch.arange(T)[None], torch.zeros(2, T, dtype=torch.long), causal=True)
    layout, last = replace(keys.last(1), keys=keys), q[:, :, -1:]
    with pytest.raises(
        ValueError, match=r"k must be \[B, H, S, d\] for q \[B, H, T, d\] = \[2, 2, 1, 8\] and S = 13 keys"
    ):
        attend(last, k[:, :, 1:], v, Terms(), layout)
    with pytest.raises(ValueError, match="layout.keys must hold the 13 queries too, got 1 keys"):
        attend(q, k[:, :, :1], v[:, :, :1], Terms(), replace(keys, keys=keys.last(1)))
    with pytest.raises(ValueError, match="dropout must be None where there are keys of earlier tokens"):
        attend(last, k, v, Terms(), layout, dropout=Dropout(0.1, torch.tensor(0)))
    for implementation in ("triton", "flex"):
        with pytest.raises(ValueError, match=f"{implementation} takes as many queries as keys"):
            attend(last, k, v, Terms(), layout, implementation)
    with pytest.raises(ValueError, match="keys of earlier tokens need causal attention"):
        replace(layout, causal=False)
    with pytest.raises(ValueError, match="log_f of 12 earlier tokens is needed, got a layout without a memory of them"):
        layout.with_earlier("log_f", torch.zeros(2, 1, H))


# -- generated tokens --------------------------------------------------------------------------------------------------


def greedy(model: Transformer, tokens: Tensor, count: int) -> Tensor:
    """One sequence, every token computed with all before it."""
    made = tokens
    for _ in range(count):
        layout = marked_layout(model.task.layout(torch.tensor([made.shape[1]]), made.shape[1]))
        made = torch.cat((made, model(made, layout)[:, -1:].argmax(-1)), 1)
    return made[:, tokens.shape[1] :]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("randomized")])
@torch.no_grad()
def test_generated_tokens_are_the_most_likely_ones(name: str) -> None:
    """Of prompts of different lengths in one batch, with a cache where there can be one."""
    model, tokens, lengths = transformer(name), tokens_of(2, 7), (7, 4)
    alone = model.task.layout(torch.tensor([7]), 7)
    pos = torch.cat((alone.pos, torch.cat((alone.pos[:, :1].expand(-1, 3, *alone.pos.shape[2:]), alone.pos[:, :4]), 1)))
    segment = torch.tensor([[0] * 7, [PADDING] * 3 + [0] * 4])
    marks = (torch.tensor([[7], [4]]) + torch.arange(6)) % (MAX_MARK + 2) + UNMARKED  # that follow those of `marked`
    made = model.generate(tokens, 6, marked_layout(Layout(pos, segment, causal=True)), marks=marks)
    expected = [greedy(model, tokens[row : row + 1, 7 - n :], 6) for row, n in enumerate(lengths)]
    assert torch.equal(made, torch.cat(expected))
    assert len(made.unique()) > 1


@pytest.mark.parametrize("name", ["rope", "cpe", "learnable"])
def test_a_cache_changes_nothing_and_the_model_comes_back_as_it_was(name: str) -> None:
    model, tokens = transformer(name).train(), tokens_of(2, 5)
    made = [model.generate(tokens, 5, cached=cached) for cached in (True, False, None)]
    assert model.training
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def test_random_positions_are_generated_without_a_cache() -> None:
    model, tokens = transformer("randomized_rope"), tokens_of(2, 5)
    layout = replace(model.task.layout(torch.tensor([5, 5]), 5), seed=3)
    made = model.generate(tokens, 4, layout)
    assert torch.equal(made, model.generate(tokens, 4, layout))
    with pytest.raises(ValueError, match="randomized_rope cannot use a cache"):
        model.generate(tokens, 4, layout, cached=True)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="randomized_rope has positions 0 to 2047: position 2051 is beyond its table"):
        model.generate(tokens, 2048)
    assert torch.equal(torch.get_rng_state(), state)


def test_generate_refuses_what_it_cannot_do_before_it_begins() -> None:
    tokens = tokens_of(1, 5)
    with pytest.raises(ValueError, match="generate needs a causal task whose answers are the next tokens"):
        transformer("rope", causal=False).generate(tokens, 3)
    for count in (0, 2.0, True):
        with pytest.raises(ValueError, match=f"count must be an integer of at least 1, got {count}"):
            transformer("rope").generate(tokens, count)  # type: ignore[arg-type]
    model = transformer("learnable")
    model.forward = None  # type: ignore[assignment,method-assign]
    with pytest.raises(ValueError, match="learnable has positions 0 to 511: position 512 is beyond its table"):
        model.generate(tokens, 509)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("segment", "error"),
    [
        ([[0] * 5, [0] * 3 + [PADDING] * 2], "must be padded on the left, got padding behind a token"),
        ([[0] * 5, [PADDING] * 5], "a prompt must have a token, got padding alone in sequence 1"),
        ([[0] * 4, [0] * 4], r"layout must be that of tokens, \[2, 5\], got \[2, 4\]"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused_before_anything_is_computed(
    segment: list[list[int]], error: str, cached: bool
) -> None:
    model = transformer("rope")
    model.forward = None  # type: ignore[assignment,method-assign]
    layout = Layout(torch.arange(len(segment[0]))[None], torch.tensor(segment), causal=True)
    with pytest.raises(ValueError, match=error):
        model.generate(tokens_of(2, 5), 3, layout, cached)


@pytest.mark.parametrize("cached", [True, False])
def test_prompts_without_tokens_and_bidirectional_layouts_are_refused(cached: bool) -> None:
    model = transformer("rope")
    model.forward = None  # type: ignore[assignment,method-assign]
    for tokens in (tokens_of(2, 0), tokens_of(0, 5), tokens_of(1, 5)[0], tokens_of(2, 5).double()):
        with pytest.raises(ValueError, match=r"tokens must be integers \[B, T\], B and T at least 1, got torch"):
            model.generate(tokens, 3, cached=cached)
    both_ways = Layout(torch.arange(5)[None], torch.zeros(2, 5, dtype=torch.long), causal=False)
    with pytest.raises(ValueError, match="generate needs causal attention, got a layout with causal=False"):
        model.generate(tokens_of(2, 5), 3, both_ways, cached)
