"""Tokens decoded with the cache of transformers have the logits of the whole sequence; generate() uses it."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache

from helpers.hf_models import (
    CAUSAL_KINDS,
    CLOSE,
    LENGTH,
    NAMES,
    WHOLE,
    logits,
    output,
    replaced,
    small,
    takes,
    tokens,
)
from pe_lab.hf import replace
from pe_lab.hf.cache import CachedLayer, cache_name

CACHED = [(kind, name) for kind in CAUSAL_KINDS for name in NAMES if takes(kind, name) and name not in WHOLE]
# the old name of the cache, which transformers renames, so that it is tested with each version
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
KEEPING = ["rope", "cpe", "forgetting", "learnable"]  # what is kept: keys and values alone, embeddings, gates


def in_parts(model: PreTrainedModel, ids: Tensor, borders: list[int], mask: Tensor | None = None) -> Tensor:
    """Return the logits of tokens that are given in parts, which begin at the borders."""
    past, made = None, []
    for start, end in zip(borders, [*borders[1:], ids.shape[1]], strict=True):
        inputs = {} if mask is None else {"attention_mask": mask[:, :end]}
        out = output(model, ids[:, start:end], past_key_values=past, use_cache=True, **inputs)
        past = out.past_key_values
        made.append(out.logits)
    assert past.get_seq_length() == ids.shape[1]
    return torch.cat(made, 1)


@torch.no_grad()
def test_a_part_of_a_model_takes_the_cache_by_its_old_name() -> None:
    part, ids = replaced("llama", "rope").model, tokens()
    past = part(input_ids=ids[:, :5], use_cache=True)[cache_name(part)]
    rest = part(input_ids=ids[:, 5:], use_cache=True, past_key_values=past).last_hidden_state
    assert_close(rest, part(input_ids=ids, use_cache=False).last_hidden_state[:, 5:], **CLOSE)


@pytest.mark.parametrize("kind", CAUSAL_KINDS)
@torch.no_grad()
def test_the_cache_has_the_name_that_the_model_gives_it(kind: str) -> None:
    model, ids = replaced(kind, "rope"), tokens()
    for name in (cache_name(model), "past_key_values"):
        past = output(model, ids[:, :5], use_cache=True)[cache_name(model)]
        rest = output(model, ids[:, 5:], use_cache=True, **{name: past}).logits
        assert_close(rest, logits(model, ids, use_cache=False)[:, 5:], **CLOSE)


@pytest.mark.covering(apart=True)
@pytest.mark.parametrize(("kind", "name"), CACHED)
@torch.no_grad()
def test_tokens_in_parts_equal_the_whole(kind: str, name: str) -> None:
    model, ids = replaced(kind, name), tokens()
    assert_close(in_parts(model, ids, [0, 4, 7, 8]), logits(model, ids, use_cache=False), **CLOSE)


@pytest.mark.covering(apart=True)
@pytest.mark.parametrize(("kind", "name"), CACHED)
@torch.no_grad()
def test_padded_prompts_in_parts_equal_each_sequence_alone(kind: str, name: str) -> None:
    """Sequences of 9, 6 and 3 tokens, padded on the left; the first part of the last is padding."""
    model, ids, lengths = replaced(kind, name), tokens(3), (9, 6, 3)
    mask = torch.tensor([[0] * (9 - n) + [1] * n for n in lengths])
    got = in_parts(model, ids, [0, 4, 7, 8], mask)
    assert got.isfinite().all()
    for row, n in enumerate(lengths):
        assert_close(got[row, 9 - n :], logits(model, ids[row : row + 1, 9 - n :])[0], **CLOSE)


@pytest.mark.parametrize(("kind", "name"), [pair for pair in CACHED if pair[1] in KEEPING])
@pytest.mark.parametrize("beams", [1, 3])
def test_generate_with_and_without_a_cache(kind: str, name: str, beams: int) -> None:
    """Of a padded batch, greedily and with beam search, which reorders the cache."""
    model, encoder = replaced(kind, name), kind == "t5"
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4] if encoder else [[1] * 9, [0] * 4 + [1] * 5])
    ids, is_token = tokens() * mask, mask[1].bool()
    settings = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams, "attention_mask": mask}
    settings |= {"no_repeat_ngram_size": 1, "suppress_tokens": [0]}
    made = model.generate(ids, **settings)
    assert torch.equal(made, model.generate(ids, **settings, use_cache=False))
    assert all(len(row.unique()) == 6 for row in made[:, -6:])
    alone = model.generate(ids[1:, is_token], **{**settings, "attention_mask": mask[1:, is_token]})
    assert torch.equal(made[1, -6:], alone[0, -6:])


@torch.no_grad()
def test_a_cache_that_the_caller_holds_is_filled() -> None:
    """One cache object is given again, and not taken from the output."""
    model, ids, held = replaced("llama", "rope"), tokens(), DynamicCache()
    parts = [model(ids[:, a:b], past_key_values=held).logits for a, b in ((0, 5), (5, 6), (6, 9))]
    assert_close(torch.cat(parts, 1), logits(model, ids), **CLOSE)
    assert all(isinstance(layer, CachedLayer) for layer in held.layers)
    held.reset()
    assert held.get_seq_length() == 0
    assert_close(model(ids, past_key_values=held).logits, logits(model, ids), **CLOSE)


@pytest.mark.parametrize("name", KEEPING)
@torch.no_grad()
def test_a_static_cache_has_its_memory_at_once_and_refuses_more_tokens(name: str) -> None:
    model, ids = replaced("llama", name), tokens()
    held = StaticCache(config=model.config, max_cache_len=8)
    parts, places = [], []
    for a, b in ((0, 5), (5, 6), (6, 8)):
        parts.append(model(ids[:, a:b], past_key_values=held).logits)
        layers = [*held.layers[0].tokens.cache.layers, held.layers[0].tokens.cache.embedding]
        places.append([(k.buffer.data_ptr(), k.buffer.shape[k.axis]) for each in layers for k in each.tensors.values()])
    assert_close(torch.cat(parts, 1), logits(model, ids[:, :8]), **CLOSE)
    assert places[0] == places[1] == places[2]
    assert {room for _, room in places[0]} == {8}
    ran = layers_run(model)
    with pytest.raises(ValueError, match="^the cache must have room for all tokens: it was made for 8, got 9$"):
        model(ids[:, 8:], past_key_values=held)
    assert not ran
    held.reset()
    assert held.get_seq_length() == 0
    assert_close(model(ids[:, 1:], past_key_values=held).logits, logits(model, ids[:, 1:]), **CLOSE)
    with pytest.raises(ValueError, match="it was made for 8, got 9"):
        model(ids[:, :1], past_key_values=held)


@pytest.mark.parametrize("kind", CAUSAL_KINDS)
def test_beam_search_with_a_static_cache_is_that_with_a_dynamic_one(kind: str) -> None:
    """Of a padded batch; also in a copy, and in a model that was saved."""
    model = replaced(kind, "forgetting" if kind != "t5" else "t5")
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4] if kind == "t5" else [[1] * 9, [0] * 4 + [1] * 5])
    settings = {"max_new_tokens": 6, "do_sample": False, "num_beams": 3, "attention_mask": mask}
    expected = model.generate(tokens() * mask, **settings)
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(each.generate(tokens() * mask, **settings, cache_implementation="static"), expected)


@torch.no_grad()
def test_keys_are_kept_rotated_and_by_their_own_heads() -> None:
    """Two heads of keys serve four of queries; where heads rotate differently there are four."""
    for name, heads in (("rope", 2), ("alibi", 2), ("lrope", 4)):
        model = replaced("llama", name)
        past = model(tokens(), use_cache=True).past_key_values
        keys = past.layers[0].tokens.cache.layers[0].tensors["keys"].all()
        assert keys.shape == (2, heads, 9, 8), name
    with torch.no_grad():
        model = replaced("llama", "rope")
        keys = model(tokens(), use_cache=True).past_key_values.layers[0].tokens.cache.layers[0].tensors["keys"].all()
        own = small("llama")(tokens(), use_cache=True).past_key_values.layers[0].keys
    assert_close(keys, own, **CLOSE)


@torch.no_grad()
def test_sequences_of_a_cache_are_selected_and_repeated() -> None:
    model, ids = replaced("llama", "forgetting"), tokens(3)
    for change, rows in (
        (lambda past: past.batch_select_indices(torch.tensor([2, 0])), [2, 0]),
        (lambda past: past.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (lambda past: past.reorder_cache(torch.tensor([1, 1, 0])), [1, 1, 0]),
    ):
        past = model(ids[:, :5], use_cache=True).past_key_values
        change(past)
        got = model(ids[rows, 5:], past_key_values=past).logits
        assert_close(got, logits(model, ids[rows])[:, 5:], **CLOSE)


@torch.no_grad()
def test_packed_documents_are_continued() -> None:
    """The last document goes on; the one before it is not seen."""
    model, ids = replaced("llama", "rope"), tokens(1)
    past = model(ids[:, :7], position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), use_cache=True).past_key_values
    got = model(ids[:, 7:], past_key_values=past).logits
    assert_close(got, logits(model, ids[:, 3:])[:, 4:], **CLOSE)


@torch.no_grad()
def test_cross_attention_keeps_its_own_cache_and_reads_its_own_mask() -> None:
    """In T5 the encoder's padding is not seen, with and without a cache."""
    model, ids, encoder = replaced("t5", "alibi"), tokens(1), tokens(1, 7)
    alone = model(input_ids=encoder[:, :5], decoder_input_ids=ids).logits
    mask = torch.tensor([[1] * 5 + [0] * 2])
    first = model(input_ids=encoder, attention_mask=mask, decoder_input_ids=ids[:, :4], use_cache=True)
    rest = model(
        attention_mask=mask,
        encoder_outputs=(first.encoder_last_hidden_state,),
        decoder_input_ids=ids[:, 4:],
        past_key_values=first.past_key_values,
    )
    assert isinstance(first.past_key_values, EncoderDecoderCache)
    assert_close(torch.cat((first.logits, rest.logits), 1), alone, **CLOSE)


@pytest.mark.parametrize("kind", ["gpt2", "bert_decoder"])
@torch.no_grad()
def test_a_decoder_over_an_encoder(kind: str) -> None:
    """Cross-attention is as it was: with the encoding of the model, logits are those of the original."""
    model, ids, encoder = small(kind, add_cross_attention=True), tokens(), torch.randn(2, 5, 32)
    expected = model(ids, encoder_hidden_states=encoder).logits
    replace(model, "learnable")
    first = model(ids[:, :5], encoder_hidden_states=encoder, use_cache=True)
    rest = model(ids[:, 5:], encoder_hidden_states=encoder, past_key_values=first.past_key_values)
    assert_close(torch.cat((first.logits, rest.logits), 1), expected, **CLOSE)


# -- what is refused ---------------------------------------------------------------------------------------------------


def layers_run(model: PreTrainedModel) -> list[int]:
    """Return a list that grows with every layer that runs."""
    ran: list[int] = []
    layers = {"llama": "model.layers", "gpt2": "transformer.h", "bert": "bert.encoder.layer", "t5": "decoder.block"}
    for layer in model.get_submodule(layers[model.config.model_type.removeprefix("pe_lab_")]):
        layer.register_forward_pre_hook(lambda *_: ran.append(1))
    return ran


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_encodings_of_whole_sequences_generate_without_a_cache_only(name: str) -> None:
    model, ids = replaced("llama", name), tokens()
    with torch.no_grad():
        out = model(ids)  # of which nobody asks the cache
    assert model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=False).shape == (2, 12)
    ran = layers_run(model)
    for static in ({}, {"cache_implementation": "static"}):
        with pytest.raises(ValueError, match=f"^{name} cannot use a cache: .*; compute all tokens each time$"):
            model.generate(ids, max_new_tokens=3, do_sample=False, **static)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=f"the cache must keep tokens: {name} cannot use a cache"),
    ):
        model(ids[:, :1], past_key_values=out.past_key_values)
    assert not ran


def test_more_tokens_than_a_table_has_rows_are_refused_before_the_layers_run() -> None:
    model, ids = replaced("gpt2", "learnable", max_len=LENGTH), tokens(1, LENGTH)
    with torch.no_grad():
        past = model(ids, use_cache=True).past_key_values
    ran = layers_run(model)
    for settings in ({"past_key_values": past}, {}):
        with torch.no_grad(), pytest.raises(ValueError, match="learnable has positions 0 to 31: position 32 is beyond"):
            model(ids[:, :1] if settings else torch.cat((ids, ids[:, :1]), 1), **settings)
    assert not ran
    assert past.get_seq_length() == LENGTH


def test_a_bidirectional_model_does_not_generate_with_a_cache() -> None:
    model = replaced("bert", "rope")
    ran = layers_run(model)
    for static in ({}, {"cache_implementation": "static"}):
        with pytest.raises(ValueError, match="a cache needs causal attention, rope was made for causal=False"):
            model.generate(tokens(), max_new_tokens=3, do_sample=False, **static)
    assert not ran


def filled(model: PreTrainedModel, batch: int = 2) -> Any:
    with torch.no_grad():
        return model(tokens(batch), use_cache=True).past_key_values


def test_caches_that_are_not_those_of_this_model_or_batch_are_refused() -> None:
    model, other = replaced("llama", "rope"), replaced("llama", "rope")
    of_another_batch, of_another, of_the_original = filled(model, 3), filled(other), filled(small("llama"))
    static = StaticCache(config=model.config, max_cache_len=LENGTH, offloading=True)
    ran = layers_run(model)
    for past, message in (
        (of_another_batch, "the cache must be that of this batch: it holds 3 sequences, got 2"),
        (of_another, "the cache must be of this model, got that of another replaced model"),
        (of_the_original, "the cache must be of this model, got 9 tokens of another"),
        (static, "the cache must be a DynamicCache or a StaticCache, got one with offloading"),
        (DynamicCache(offloading=True), "the cache must be a DynamicCache or a StaticCache, got one with offloading"),
        ((), "the cache must be a DynamicCache or a StaticCache, got tuple"),
    ):
        with torch.no_grad(), pytest.raises(ValueError, match=message):
            model(tokens()[:, :1], past_key_values=past)
    assert not ran


def test_gradients_and_padding_on_the_right_make_a_cache_that_nobody_can_use() -> None:
    """A model makes a cache unless it is told not to; that is no error before somebody asks for it or uses it."""
    model, ids = replaced("llama", "rope"), tokens()
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    made = model(ids).past_key_values
    ran = layers_run(model)
    with pytest.raises(ValueError, match=r"^a cache is for decoding, .*: call within torch.no_grad\(\)$"):
        model(ids, use_cache=True)
    with pytest.raises(ValueError, match=r"^a cache is for decoding, .*: call within torch.no_grad\(\)$"):
        model(ids[:, :1], past_key_values=filled(replaced("llama", "rope")))
    with torch.no_grad():
        with pytest.raises(ValueError, match="the cache must keep tokens: a cache is for decoding, without"):
            model(ids[:, :1], past_key_values=made)
        for inputs in ({"use_cache": True}, {"past_key_values": DynamicCache()}):
            with pytest.raises(ValueError, match="^sequences that are decoded must be padded on the left"):
                model(ids, attention_mask=mask, **inputs)
        assert not ran
        padded = model(ids, attention_mask=mask).past_key_values
        with pytest.raises(ValueError, match="the cache must keep tokens: sequences that are decoded must"):
            model(ids[:, :1], past_key_values=padded)


def test_tokens_are_not_taken_back_or_moved() -> None:
    model = replaced("llama", "rope")
    with pytest.raises(ValueError, match="tokens cannot be removed from this cache"):
        filled(model).crop(-1)
    with pytest.raises(ValueError, match="this cache cannot be moved to the CPU"):
        filled(model).layers[0].offload()
