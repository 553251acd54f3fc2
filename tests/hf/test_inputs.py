"""Masks and positions of transformers become a layout: padding is not seen, and has no position."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from helpers.hf_models import CLOSE, NAMES, logits, replaced, takes, tokens
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.hf.inputs import make_layout

# the old name of the cache, which transformers renames, so that it is tested with each version
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
BY_BATCH = ("rope_dynamic_ntk", "longrope")  # their frequencies depend on the longest sequence of the batch
ONE_BY_ONE = [name for name in NAMES if takes("bert", name) and not name.startswith(("randomized", *BY_BATCH))]
LENGTHS = (9, 6, 3)


def mask_of(side: str) -> torch.Tensor:
    rows = [[1] * n + [0] * (9 - n) for n in LENGTHS]
    return torch.tensor([row[::-1] if side == "left" else row for row in rows])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ONE_BY_ONE)
@torch.no_grad()
def test_masked_positions_of_bert_are_not_seen(name: str, side: str) -> None:
    """A padded sequence has the logits that it has alone, whatever stands where it is padded."""
    model, ids, mask = replaced("bert", name), tokens(3), mask_of(side)
    got, is_token = logits(model, ids, attention_mask=mask), mask.bool()
    assert torch.equal(logits(model, ids.where(is_token, 7), attention_mask=is_token)[is_token], got[is_token])
    for row in range(3):
        assert_close(got[row, is_token[row]], logits(model, ids[row : row + 1, is_token[row]])[0], **CLOSE)


@pytest.mark.parametrize("name", ["rope", "alibi", "learnable", "forgetting", "cpe", "stick_breaking"])
@torch.no_grad()
def test_packed_documents_equal_each_alone(name: str) -> None:
    model, ids = replaced("llama", name), tokens(1)
    packed = logits(model, ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))
    assert_close(packed[:, :4], logits(model, ids[:, :4]), **CLOSE)
    assert_close(packed[:, 4:], logits(model, ids[:, 4:]), **CLOSE)


@torch.no_grad()
def test_positions_may_have_gaps_where_there_is_a_mask() -> None:
    """A bias sees distances between the positions that are given, an absolute position the position itself."""
    ids, mask = tokens(), torch.ones(2, 9, dtype=torch.long)
    pos = torch.tensor([[0, 1, 2, 3, 7, 8, 9, 10, 11]])
    for name in ("alibi", "learnable", "rope"):
        model = replaced("llama", name)
        whole = logits(model, ids)
        got = logits(model, ids, position_ids=pos, attention_mask=mask)
        assert_close(got[:, :4], whole[:, :4], **CLOSE)
        assert (got[:, 4:] - whole[:, 4:]).abs().max() > 0.01, name
    moved = logits(model, ids, position_ids=pos + 5, attention_mask=mask)
    assert_close(moved, got, **CLOSE)  # rope sees distances


@torch.no_grad()
def test_embeddings_instead_of_tokens() -> None:
    for kind in ("llama", "gpt2", "bert", "bert_decoder"):
        model, ids = replaced(kind, "learnable"), tokens()
        x = model.get_input_embeddings()(ids)
        assert torch.equal(model(inputs_embeds=x).logits, logits(model, ids))


def test_layouts() -> None:
    def pos_and_segment(*arguments: Any) -> tuple[list[list[int]], list[list[int]]]:
        layout = make_layout(*arguments)
        return layout.pos.tolist(), layout.segment.tolist()

    assert pos_and_segment((2, 3), None, None, True, None) == ([[0, 1, 2]], [[0, 0, 0], [0, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    expected = [[0, 0, 0, 1], [0, 1, 2, 3]], [[PADDING, PADDING, 0, 0], [0, 0, 0, 0]]
    for kind in (torch.long, torch.bool, torch.float32):
        assert pos_and_segment((2, 4), mask.to(kind), None, True, None) == expected
    earlier = Layout(torch.tensor(expected[0]), torch.tensor(expected[1]), causal=True)
    assert pos_and_segment((2, 2), None, None, True, earlier) == ([[2, 3], [4, 5]], [[0, 0], [0, 0]])
    longer = torch.cat((mask, torch.ones(2, 1, dtype=torch.long)), 1)
    assert pos_and_segment((2, 1), longer, None, True, earlier) == ([[2], [4]], [[0], [0]])
    assert pos_and_segment((2, 1), longer, torch.tensor([[9], [9]]), True, earlier) == ([[9]], [[0], [0]])
    packed = pos_and_segment((1, 4), None, torch.tensor([[3, 4, 0, 1]]), True, None)
    assert packed == ([[3, 4, 0, 1]], [[0, 0, 1, 1]])
    bidirectional = pos_and_segment((1, 3), None, torch.tensor([[3, 5, 6]]), False, None)
    assert bidirectional == ([[3, 5, 6]], [[0, 0, 0]])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"attention_mask": torch.ones(2, 1, 9, 9)}, r"attention_mask must be \[B, S\] = \[2, 9\], got \[2, 1, 9, 9\]"),
        ({"attention_mask": torch.ones(2, 8)}, r"attention_mask must be \[B, S\] = \[2, 9\], got \[2, 8\]"),
        ({"attention_mask": torch.full((2, 9), -1e9)}, "attention_mask must be 0 for padding and 1 for tokens"),
        (
            {"position_ids": torch.zeros(2, 8, dtype=torch.long)},
            r"position_ids must be integers \[B|1, T\] .* int64 \[2, 8\]",
        ),
        ({"position_ids": torch.zeros(1, 9)}, r"position_ids must be integers .* got float32 \[1, 9\]"),
        (
            {"position_ids": torch.tensor([[0, 1, 2, 2, 3, 4, 5, 6, 7]]), "attention_mask": torch.ones(2, 9)},
            "position_ids must increase in a sequence, got 2 after 2",
        ),
        ({"output_attentions": True}, "output_attentions must be False, as with sdpa: no weights are kept, got True"),
        ({"is_causal": False}, "is_causal must be True, for which positions were replaced, got False"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_anything_runs(inputs: dict[str, Any], message: str) -> None:
    model, ran = replaced("llama", "rope"), []
    model.get_input_embeddings().register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(ValueError, match=message) as caught:
        model(tokens(), **inputs)
    assert "\n" not in str(caught.value)
    assert not ran


def test_what_earlier_tokens_are_does_not_change() -> None:
    model, ids = replaced("llama", "rope"), tokens()
    with torch.no_grad():
        past = model(ids, use_cache=True).past_key_values
        for mask, message in (
            (torch.tensor([[1] * 10, [0] + [1] * 9]), "must be what it was for the 9 tokens in the cache"),
            (torch.ones(2, 1), r"attention_mask must be \[B, S\] = \[2, 10\], got \[2, 1\]"),
        ):
            with pytest.raises(ValueError, match=message):
                model(ids[:, :1], attention_mask=mask, past_key_values=past)
        with pytest.raises(ValueError, match="position_ids must increase in a sequence, got 8 after 8"):
            model(ids[:, :1], position_ids=torch.tensor([[8]]), past_key_values=past)


def test_positions_of_a_bidirectional_model_are_one_sequence() -> None:
    with pytest.raises(ValueError, match="position_ids must increase in a sequence, got 0 after 3"):
        replaced("bert", "rope")(tokens(1), position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]))


def test_tokens_or_embeddings_are_asked_for_by_the_model() -> None:
    with pytest.raises(ValueError, match="You must specify exactly one of input_ids or inputs_embeds"):
        replaced("llama", "rope")()
    with pytest.raises(ValueError, match=r"input_ids must be \[B, T\], got \[1, 2, 9\]"):
        replaced("gpt2", "rope")(tokens()[None])
