"""Encodings with a vector per distance, against their papers' formulas, query by query, in float64."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pe_lab.attention import attend, reference
from pe_lab.config import Model
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.relative import Deberta, Shaw, TransformerXL, log_bucket
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms
from pe_lab.model.transformer import Transformer

B, H, d = 2, 2, 6
D = H * d
SIZES = Sizes(width=D, num_heads=H, length=16)
KINDS = [Shaw, TransformerXL, Deberta]
# sums of some hundred numbers of size 1, through a softmax and back
EQUAL = {"rtol": 1e-10, "atol": 1e-11}


def layout_of(length: int, causal: bool = True) -> Layout:
    return Layout.of_lengths(torch.full((B,), length), length, causal)


def scattered(length: int, causal: bool) -> Layout:
    """Positions that increase by 1 to 6, from an offset; other ones in every sequence."""
    pos = torch.randint(1, 7, (B, length)).cumsum(1) + torch.tensor([[3], [900]])
    return replace(layout_of(length, causal), pos=pos)


def trained(encoding: PositionalEncoding) -> PositionalEncoding:
    """Return an encoding in float64, with its parameters moved from their initial values."""
    encoding = encoding.double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return encoding


def terms_of(encoding: PositionalEncoding, layout: Layout, dtype: torch.dtype = torch.float64) -> Terms:
    return encoding.terms(torch.zeros(*layout.segment.shape, D, dtype=dtype), layout)


Row = Callable[[Tensor, Tensor, Tensor, list[int]], tuple[Tensor, Tensor | float]]


def assert_as_in_the_paper(encoding: PositionalEncoding, layout: Layout, row: Row) -> None:
    """Values, and gradients of q, k, v and all parameters.

    `row` has, of a query [H, d], keys and values [H, n, d] and the distances pos_j - pos_i, the logits [H, n] and what
    is added to the values.
    """
    length = layout.segment.shape[1]
    q, k, v = (torch.randn(B, H, length, d, dtype=torch.float64, requires_grad=True) for _ in range(3))
    got = attend(q, k, v, terms_of(encoding, layout), layout, "reference")
    pos, expected = layout.pos.expand(B, -1).tolist(), []
    for b in range(B):
        for i in range(length):
            n = i + 1 if layout.causal else length
            logits, added = row(q[b, :, i], k[b, :, :n], v[b, :, :n], [pos[b][j] - pos[b][i] for j in range(n)])
            share = logits.exp() / logits.exp().sum(-1, keepdim=True)
            expected.append((share[..., None] * (v[b, :, :n] + added)).sum(1))
    expected = torch.stack(expected).view(B, length, H, d).transpose(1, 2)
    assert_close(got, expected, **EQUAL)
    upstream, inputs = torch.randn_like(expected), (q, k, v, *encoding.parameters())
    gradients = (torch.autograd.grad(x, inputs, upstream) for x in (got, expected))
    for g, e in zip(*gradients, strict=True):
        assert_close(g, e, **EQUAL)


def shaw_row(encoding: Shaw) -> Row:
    """e_ij = q_i (k_j + a^K_ij) / sqrt(d), z_i = sum of alpha_ij (v_j + a^V_ij), a_ij = w_clip(j - i, k)."""
    k = encoding.max_distance

    def w(table: Tensor, distance: int) -> Tensor:
        return table[k - max(-k, min(k, distance))]

    def row(q: Tensor, keys: Tensor, values: Tensor, distances: list[int]) -> tuple[Tensor, Tensor]:
        a_k, a_v = (torch.stack([w(x, n) for n in distances]) for x in (encoding.keys, encoding.values))
        return (q[:, None] * (keys + a_k)).sum(-1) / math.sqrt(d), a_v

    return row


def xl_row(encoding: TransformerXL) -> Row:
    """A_ij = (q_i + u) . k_j + (q_i + v) . W_r R_(i-j), over sqrt(d)."""

    def row(q: Tensor, keys: Tensor, values: Tensor, distances: list[int]) -> tuple[Tensor, float]:
        logits = []
        for j, n in enumerate(distances):
            angle = [-n / encoding.theta ** (dim // 2 * 2 / D) for dim in range(D)]
            s = [math.cos(x) if dim % 2 else math.sin(x) for dim, x in enumerate(angle)]
            r = (encoding.project.weight @ torch.tensor(s, dtype=torch.float64)).view(H, d)
            logits.append(((q + encoding.u) * keys[:, j] + (q + encoding.v) * r).sum(-1))
        return torch.stack(logits, -1) / math.sqrt(d), 0.0

    return row


def paper_log_bucket(distance: int, size: int) -> int:
    """mid = size / 2: exact up to mid, then mid + ceil(ln(n / mid) / ln((2 size - 1) / mid) (mid - 1)), with a sign."""
    mid, n = size // 2, abs(distance)
    if n > mid:
        n = mid + math.ceil(round(math.log(n / mid) / math.log((2 * size - 1) / mid) * (mid - 1), 9))
    return int(math.copysign(n, distance))


def deberta_row(encoding: Deberta) -> Row:
    """A_ij = q_i . k_j + q_i . K^r_delta(i,j) + k_j . Q^r_delta(j,i), over sqrt(3 d)."""
    k = encoding.max_distance
    position_q, position_k = (
        (encoding.table @ x.weight.T).view(2 * k, H, d) for x in (encoding.project_q, encoding.project_k)
    )

    def delta(distance: int) -> int:
        if encoding.buckets == "log":
            distance = paper_log_bucket(distance, k)
        if distance <= -k:
            return 0
        return 2 * k - 1 if distance >= k else distance + k

    def row(q: Tensor, keys: Tensor, values: Tensor, distances: list[int]) -> tuple[Tensor, float]:
        logits = [
            (q * keys[:, j] + q * position_k[delta(-n)] + keys[:, j] * position_q[delta(n)]).sum(-1)
            for j, n in enumerate(distances)
        ]
        return torch.stack(logits, -1) / math.sqrt(3 * d), 0.0

    return row


@pytest.mark.proves("shaw")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7, 63])
def test_shaw_is_the_papers_sum(length: int, causal: bool) -> None:
    encoding = trained(Shaw(SIZES, max_distance=5))
    assert_as_in_the_paper(encoding, layout_of(length, causal), shaw_row(encoding))


@pytest.mark.proves("transformer_xl")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7, 33])
def test_transformer_xl_is_the_papers_sum(length: int, causal: bool) -> None:
    encoding = trained(TransformerXL(SIZES))
    assert_as_in_the_paper(encoding, layout_of(length, causal), xl_row(encoding))


@pytest.mark.proves("deberta")
@pytest.mark.parametrize("buckets", ["clip", "log"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7, 63])
def test_deberta_is_the_papers_sum(length: int, causal: bool, buckets: str) -> None:
    encoding = trained(Deberta(SIZES, max_distance=8, buckets=buckets))
    assert_as_in_the_paper(encoding, layout_of(length, causal), deberta_row(encoding))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("kind", "setting", "row"),
    [
        (Shaw, {}, shaw_row),
        (TransformerXL, {"theta": 50.0}, xl_row),
        (Deberta, {}, deberta_row),
        (Deberta, {"max_distance": 10, "buckets": "log"}, deberta_row),
    ],
)
def test_explicit_positions_count_and_not_slots(kind: type[PositionalEncoding], setting: dict, row, causal) -> None:
    encoding = trained(kind(SIZES, **setting))
    assert_as_in_the_paper(encoding, scattered(9, causal), row(encoding))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_depend_only_on_offset(kind: type[PositionalEncoding]) -> None:
    encoding, layout = trained(kind(SIZES)), layout_of(7)
    q, k = torch.randn(2, B, H, 7, d, dtype=torch.float64)
    near, far = (
        reference.logits(q, k, terms_of(encoding, at), at) for at in (layout, replace(layout, pos=layout.pos + 5_000))
    )
    assert torch.equal(near, far)


@pytest.mark.parametrize("kind", KINDS)
def test_distances_of_both_signs_differ(kind: type[PositionalEncoding]) -> None:
    encoding, layout = trained(kind(SIZES)), layout_of(7, causal=False)
    same = torch.randn(1, H, 1, d, dtype=torch.float64).expand(B, -1, 7, -1)
    z = reference.logits(same, same, terms_of(encoding, layout), layout)
    assert (z - z.mT)[..., *torch.triu_indices(7, 7, 1)].abs().min() > 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_padding_may_stand_anywhere(kind: type[PositionalEncoding], causal: bool) -> None:
    """Padding at distances beyond the table changes no other token, and its own rows are finite."""
    encoding, (q, k, v) = trained(kind(SIZES)), torch.randn(3, 1, H, 6, d, dtype=torch.float64)
    outs = []
    for pad in (-1, -(10**9), 10**9):
        pos, segment = torch.tensor([[pad, 0, 1, 2, 5, pad]]), torch.tensor([[PADDING, 0, 0, 0, 0, PADDING]])
        layout = Layout(pos, segment, causal)
        outs.append(attend(q, k, v, terms_of(encoding, layout), layout, "reference"))
        assert outs[-1].isfinite().all()
    for out in outs[1:]:
        assert torch.equal(out[..., 1:5, :], outs[0][..., 1:5, :])


@pytest.mark.parametrize("kind", KINDS)
def test_score_has_the_same_bits_in_low_precision(kind: type[PositionalEncoding]) -> None:
    encoding, layout = kind(SIZES), layout_of(400)  # bfloat16 cannot count past 256
    q, k = torch.randn(2, B, H, 400, d).bfloat16()
    z = torch.zeros(B, H, 400, 400)
    expected = terms_of(encoding, layout, torch.float32).content_bias(q.float(), k.float(), z, layout)
    assert expected.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        score = terms_of(encoding, layout, torch.bfloat16).content_bias
        assert torch.equal(score(q, k, z, layout), expected)
        assert torch.equal(score(q.float(), k.float(), z, layout), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_have_the_same_bits_every_time(kind: type[PositionalEncoding]) -> None:
    encoding, layout = kind(SIZES), layout_of(63)
    q, k, v = (torch.randn(B, H, 63, d, requires_grad=True) for _ in range(3))
    inputs, upstream = (q, k, v, *encoding.parameters()), torch.randn(B, H, 63, d)
    first, second = (
        torch.autograd.grad(
            attend(q, k, v, terms_of(encoding, layout, torch.float32), layout, "reference"), inputs, upstream
        )
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("kind", "setting", "all_layers", "each_layer"),
    [
        (Shaw, {}, 0, 2 * 33 * d),
        (Shaw, {"max_distance": 3}, 0, 2 * 7 * d),
        (TransformerXL, {}, 0, D * D + 2 * D),
        (Deberta, {}, 1024 * D, 2 * D * D),
        (Deberta, {"max_distance": 8, "buckets": "log"}, 16 * D, 2 * D * D),
    ],
)
def test_parameters_are_as_many_as_the_source_has(
    kind: type[PositionalEncoding], setting: dict, all_layers: int, each_layer: int
) -> None:
    for depth in (1, 4):
        assert model_of(kind, depth, **setting).positional_parameters() == all_layers + depth * each_layer


def model_of(kind: type[PositionalEncoding], depth: int, **setting) -> Transformer:
    config = Model(
        depth=depth, width=D, num_heads=H, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    model = Transformer(config, lambda sizes: kind(sizes, **setting), Task(5, 4, 5, causal=True))
    initialise_parameters(model, seed=0)
    return model


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        (Shaw, {"max_distance": 0}, r"^max_distance must be .*, got 0$"),
        (Shaw, {"max_distance": 2.5}, r"^max_distance must be .*, got 2\.5$"),
        (TransformerXL, {"theta": 0.0}, r"^theta must be .*, got 0\.0$"),
        (Deberta, {"max_distance": 0}, r"^max_distance must be .*, got 0$"),
        (Deberta, {"buckets": "t5"}, r"^buckets must be one of clip, log, got 't5'$"),
        (Deberta, {"buckets": "log", "max_distance": 7}, r"^max_distance must be even with .*, got 7$"),
    ],
)
def test_a_setting_out_of_range_is_named(kind: type[PositionalEncoding], setting: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(SIZES, **setting)


def test_shaw_beyond_its_reach_has_one_vector_to_each_side() -> None:
    encoding, layout = trained(Shaw(SIZES, max_distance=2)), layout_of(9, causal=False)
    q, k = torch.randn(2, B, H, 9, d, dtype=torch.float64)
    score = encoding(q, k, torch.zeros(()), layout)
    assert torch.equal(score[..., 8, :7], score[..., 8, :1].expand(-1, -1, 7))
    assert torch.equal(score[..., 0, 2:], score[..., 0, 2:3].expand(-1, -1, 7))
    assert (score[..., 8, 6] - score[..., 8, 7]).abs().min() > 1e-6


# DeBERTa's one table


def test_layers_share_one_table_and_the_state_holds_it_once() -> None:
    model = model_of(Deberta, 3)
    assert [key for key in model.state_dict() if "table" in key] == ["encodings.0.table"]
    assert [key for key, _ in model.named_parameters() if "table" in key] == ["encodings.0.table"]
    weights = [encoding.project_q.weight for encoding in model.encodings]
    assert not torch.equal(weights[0], weights[1])
    assert len(list(model.encodings.modules())) == 1 + 3 * 3


def test_gradients_of_every_layer_reach_the_table() -> None:
    model, layout = model_of(Deberta, 3), layout_of(4)
    gradients = []
    for used in range(3):
        for index, encoding in enumerate(model.encodings):
            for projection in (encoding.project_q, encoding.project_k):
                nn.init.constant_(projection.weight, float(index == used))
        model.zero_grad()
        model(torch.tensor([[0, 1, 2, 3]] * B), layout).square().sum().backward()
        gradients.append(model.encodings[0].table.grad)
        assert gradients[-1].any()
    assert not torch.equal(gradients[1], gradients[2])


@pytest.mark.parametrize(
    "moved",
    [
        lambda model: model.double(),
        lambda model: model.to(torch.float64),
        lambda model: deepcopy(model).double(),
        lambda model: deepcopy(model.double()),
    ],
    ids=["double", "to", "copy-double", "double-copy"],
)
def test_layers_still_share_after_a_move_and_a_copy(moved: Callable[[Transformer], Transformer]) -> None:
    model = model_of(Deberta, 3)
    other, layout = moved(model), layout_of(4)
    q, k = torch.randn(2, B, H, 4, d, dtype=torch.float64)
    before = [terms_of(encoding, layout).content_bias(q, k, q, layout) for encoding in other.encodings]
    with torch.no_grad():
        other.encodings[0].table.mul_(3)
    for encoding, score in zip(other.encodings, before, strict=True):
        assert_close(terms_of(encoding, layout).content_bias(q, k, q, layout), 3 * score, **EQUAL)
    if other is not model:
        kept = model.encodings[0].table.detach().double()
        assert_close(other.encodings[0].table.detach(), 3 * kept, **EQUAL)


def test_a_state_is_loaded_into_all_layers() -> None:
    first, second, tokens = model_of(Deberta, 3), model_of(Deberta, 3), torch.tensor([[0, 1, 2, 3]] * B)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += torch.randn_like(parameter)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(tokens, layout_of(4)), second(tokens, layout_of(4)))


def test_the_table_does_not_depend_on_the_number_of_layers() -> None:
    one, many = model_of(Deberta, 1), model_of(Deberta, 3)
    assert torch.equal(one.encodings[0].table, many.encodings[0].table)


# the same in transformers


@pytest.mark.parametrize("size", [2, 4, 6, 16, 64, 100, 256])
def test_log_buckets_equal_transformers(size: int) -> None:
    pytest.importorskip("transformers")
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distance = torch.arange(-5 * size, 5 * size + 1)
    theirs = (make_log_bucket_position(distance, size, 2 * size).long() + size).clamp(0, 2 * size - 1)
    assert torch.equal(Deberta(SIZES, max_distance=size, buckets="log").row(distance), theirs)
    expected = [paper_log_bucket(n, size) for n in distance.tolist()]
    assert log_bucket(distance, size).tolist() == [max(-size, min(size, n)) for n in expected]


def disentangled(kind: str, buckets: str, k: int, head_dim: int) -> nn.Module:
    """Their attention, with one of the two products; theirs has biases, ours, as the paper, none."""
    pytest.importorskip("transformers")
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = DebertaV2Config(
        hidden_size=H * head_dim,
        num_attention_heads=H,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        relative_attention=True,
        share_att_key=False,
        pos_att_type=[kind],
        position_buckets=k if buckets == "log" else -1,
        max_relative_positions=2 * k if buckets == "log" else k,
    )
    theirs = DisentangledSelfAttention(config).double()
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return theirs


@pytest.mark.proves("deberta", by="transformers")
@pytest.mark.parametrize("buckets", ["clip", "log"])
@pytest.mark.parametrize("kind", ["c2p", "p2c"])
def test_deberta_equals_transformers(kind: str, buckets: str) -> None:
    """Content to position at any length. Position to content takes delta(i, j) there and delta(j, i) in the paper: with
    the table mirrored they are equal, up to where the table ends, which is not symmetric."""
    k, head_dim = 8, 12  # sqrt(3 d) = 6: theirs is a float32
    length = 63 if kind == "c2p" else 2 * k if buckets == "log" else k
    theirs = disentangled(kind, buckets, k, head_dim)
    ours = trained(Deberta(Sizes(H * head_dim, H, 16), max_distance=k, buckets=buckets))
    used, unused = (ours.project_k, ours.project_q) if kind == "c2p" else (ours.project_q, ours.project_k)
    nn.init.zeros_(unused.weight)
    table = ours.table.detach()
    if kind == "c2p":
        theirs.pos_key_proj.weight = used.weight
    else:
        theirs.pos_query_proj.weight = used.weight
        table = table.roll(-1, 0).flip(0)  # row r is that of 2k - r
    q, k_ = torch.randn(2, B, H, length, head_dim, dtype=torch.float64)
    expected = theirs.disentangled_attention_bias(q.flatten(0, 1), k_.flatten(0, 1), None, table, 3)
    layout = layout_of(length, causal=False)
    score = terms_of(ours, layout).content_bias
    assert_close(score(q, k_, q, layout).flatten(0, 1), expected, **EQUAL)


@pytest.mark.proves("transformer_xl", by="transformers")
def test_transformer_xl_equals_transformers_xlnet() -> None:
    """XLNet attends as Transformer-XL; its sinusoids have all sines first."""
    pytest.importorskip("transformers")
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    length, encoding = 33, trained(TransformerXL(SIZES))
    theirs = XLNetRelativeAttention(XLNetConfig(d_model=D, n_head=H, dropout=0.0)).double()
    dims = [*range(0, D, 2), *range(1, D, 2)]
    theirs.r = nn.Parameter(encoding.project.weight.T[dims].reshape(D, H, d))
    theirs.r_w_bias, theirs.r_r_bias = encoding.u, encoding.v
    q, k, v = (torch.randn(B, H, length, d, dtype=torch.float64) for _ in range(3))
    frequency = 1e4 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    s = XLNetModel.positional_embedding(torch.arange(length, -length, -1.0, dtype=torch.float64), frequency, B)
    rows = torch.einsum("ibh,hnd->ibnd", s, theirs.r)
    expected = theirs.rel_attn_core(*(x.permute(2, 0, 1, 3) for x in (q, k, v)), rows).permute(1, 2, 0, 3)
    layout = layout_of(length, causal=False)
    assert_close(attend(q, k, v, terms_of(encoding, layout), layout, "reference"), expected, **EQUAL)


@pytest.mark.proves("shaw", by="transformers")
def test_shaw_equals_transformers_on_the_keys() -> None:
    """Wav2Vec2-BERT has a^K, no a^V, and counts from the query to the key, as the paper."""
    pytest.importorskip("transformers")
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

    length, encoding = 33, trained(Shaw(SIZES, max_distance=5))
    config = Wav2Vec2BertConfig(
        hidden_size=D,
        num_attention_heads=H,
        attention_dropout=0.0,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=5,
        right_max_position_embeddings=5,
        attn_implementation="eager",
    )
    theirs = Wav2Vec2BertSelfAttention(config).double()
    theirs.distance_embedding.weight = nn.Parameter(encoding.keys.flip(0))
    nn.init.eye_(theirs.linear_out.weight)
    nn.init.zeros_(theirs.linear_out.bias)
    x, layout = torch.randn(B, length, D, dtype=torch.float64), layout_of(length, causal=False)
    q, k, v = (
        project(x).view(B, length, H, d).transpose(1, 2)
        for project in (theirs.linear_q, theirs.linear_k, theirs.linear_v)
    )
    got = attend(q, k, v, replace(terms_of(encoding, layout), relative_values=None), layout, "reference")
    assert_close(got.transpose(1, 2).reshape(B, length, D), theirs(x)[0], **EQUAL)
