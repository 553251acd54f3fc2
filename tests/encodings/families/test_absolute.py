"""Encodings that are a vector per position, against their formulas written with math.sin and loops."""

import math
from dataclasses import replace

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from helpers.configs import pe_settings
from pe_lab.attention import attend
from pe_lab.config import Model, expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.absolute import Absolute, Integer, Normalized, Sinusoidal
from pe_lab.encodings.families.continuous import Continuous, Fourier
from pe_lab.encodings.families.table import Learnable, Random, SinInit
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Terms
from pe_lab.model.transformer import Transformer

B, D = 2, 6
SIZES = Sizes(width=D, num_heads=2, length=10)
POSITIONS = [[0, 1, 2, 7, 300], [3, 4, 5, 250, 511]]
F32 = torch.finfo(torch.float32).eps


def layout_at(pos: list[list[int]]) -> Layout:
    size = (len(pos), len(pos[0]))
    return Layout(torch.tensor(pos), torch.zeros(size, dtype=torch.long), causal=True)


def paper(pos: int, width: int, theta: float = 10_000.0) -> list[float]:
    """PE(pos, 2c) = sin(pos / theta^(2c/D)), PE(pos, 2c+1) = cos(pos / theta^(2c/D)); arXiv:1706.03762, section 3.5."""
    dims = []
    for dim in range(width):
        angle = pos / theta ** (2 * (dim // 2) / width)
        dims.append(math.cos(angle) if dim % 2 else math.sin(angle))
    return dims


def paper_rows(pos: list[list[int]], width: int, theta: float = 10_000.0) -> Tensor:
    return torch.tensor([[paper(p, width, theta) for p in row] for row in pos], dtype=torch.float64)


def test_sinusoidal_has_the_known_values() -> None:
    added = Sinusoidal(Sizes(4, 1, 3)).embed(torch.zeros(1, 3, 4), layout_at([[0, 1, 2]]))[0]
    expected = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.841, 0.540, 0.010, 1.000], [0.909, -0.416, 0.020, 1.000]])
    assert_close(added, expected, rtol=0, atol=0.0005)


@pytest.mark.proves("sinusoidal")
@pytest.mark.parametrize("width", [1, 5, 6, 64])
@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_sinusoidal_is_the_papers_formula(width: int, theta: float) -> None:
    """Compare values; the gradient of the token passes unchanged."""
    x = torch.randn(B, 5, width, dtype=torch.float64, requires_grad=True)
    out = Sinusoidal(Sizes(width, 1, 5), theta=theta).embed(x, layout_at(POSITIONS))
    # theta ** -exponent and the product round the angle, up to 511, a few times
    assert_close(out, x + paper_rows(POSITIONS, width, theta), rtol=0, atol=511 * 4 * torch.finfo(x.dtype).eps)
    upstream = torch.randn_like(out)
    assert torch.equal(torch.autograd.grad(out, x, upstream)[0], upstream)


def test_sinusoidal_in_float32_is_right_up_to_the_rounding_of_an_angle_below_pi() -> None:
    for positions in (POSITIONS, [[4_000_001, 2**23 + 1, 2**24 - 1, 2**24 + 1, 2**24 + 3]] * B):
        out = Sinusoidal(SIZES).embed(torch.zeros(B, 5, D), layout_at(positions))
        assert out.dtype == torch.float32
        assert_close(out.double(), paper_rows(positions, D), rtol=0, atol=2 * F32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [Continuous, Fourier])
def test_a_function_of_the_position_tells_2048_apart_when_cast(kind: type[Absolute], dtype: torch.dtype) -> None:
    length = 2048
    model = torch.nn.Sequential(kind(replace(SIZES, length=length))).to(dtype)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    vectors = model[0].embed(torch.zeros(1, length, D), Layout.whole(1, length, True))
    assert len(vectors[0].unique(dim=0)) == length


def test_sinusoidal_learns_nothing() -> None:
    assert not list(Sinusoidal(SIZES).parameters())


def test_sininit_starts_as_the_sinusoids() -> None:
    encoding = SinInit(SIZES, max_len=512)
    pos = [list(range(512))]
    assert_close(encoding.table.detach().double()[None], paper_rows(pos, D), rtol=0, atol=511 * F32)
    assert not torch.equal(SinInit(SIZES, theta=50.0).table, encoding.table[:512])
    x = torch.randn(1, 512, D)
    assert torch.equal(encoding.embed(x, layout_at(pos)), Sinusoidal(SIZES).embed(x, layout_at(pos)))


@pytest.mark.proves("{kind}")
@pytest.mark.parametrize("kind", [Learnable, SinInit])
def test_a_trained_table_is_read_by_position_and_learns_by_position(kind: type[Learnable]) -> None:
    """out[b, t] = x[b, t] + table[pos[b, t]]; a row's gradient is the sum over where it was read."""
    encoding = kind(SIZES, max_len=512).double()
    pos = [[0, 1, 2, 7, 300], [1, 2, 3, 300, 511]]
    x = torch.randn(B, 5, D, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(B, 5, D, dtype=torch.float64)
    out = encoding.embed(x, layout_at(pos))
    gradient, by_table = torch.autograd.grad(out, (x, encoding.table), upstream)
    expected_out, expected_grad = x.detach().clone(), torch.zeros(512, D, dtype=torch.float64)
    for b in range(B):
        for t in range(5):
            expected_out[b, t] += encoding.table.detach()[pos[b][t]]
            expected_grad[pos[b][t]] += upstream[b, t]
    assert torch.equal(out, expected_out)
    assert torch.equal(gradient, upstream)
    assert_close(by_table, expected_grad, rtol=0, atol=1e-15)


def test_learnable_starts_as_a_normal_of_0_02() -> None:
    """Within 5 standard errors: 0.02 / sqrt(n) for the mean, 0.02 / sqrt(2n) for the deviation."""
    table = Learnable(Sizes(384, 6, 256), max_len=512).table.detach().double()
    assert table.numel() == 196_608
    error = 0.02 / math.sqrt(table.numel())
    assert table.mean().abs().item() < 5 * error
    assert abs(table.std().item() - 0.02) < 5 * error / math.sqrt(2)


@pytest.mark.parametrize("kind", [Learnable, SinInit])
def test_a_position_beyond_the_table_is_refused_with_its_last_row(kind: type[Learnable]) -> None:
    encoding = kind(SIZES, max_len=12)
    assert len(encoding.table) == 12
    encoding.embed(torch.zeros(1, 1, D), layout_at([[11]]))
    with pytest.raises(ValueError, match=r"has positions 0 to 11: position 12 is beyond its table .*max_len"):
        encoding.embed(torch.zeros(1, 2, D), layout_at([[0, 12]]))
    assert len(kind(SIZES, max_len=10).table) == SIZES.length
    with pytest.raises(ValueError, match=r"max_len must be at least the length .*max_len=9, length=10$"):
        kind(SIZES, max_len=9)
    with pytest.raises(ValueError, match=r"^max_len must be an integer of at least 1, got 0$"):
        kind(SIZES, max_len=0)


@pytest.mark.parametrize("kind", [Learnable, SinInit])
def test_a_table_has_no_negative_positions(kind: type[Learnable]) -> None:
    """A position that would index a row from the end is refused."""
    with pytest.raises(ValueError, match="-1"):
        kind(SIZES).embed(torch.zeros(1, 2, D), layout_at([[-1, 0]]))


def test_padding_may_stand_at_any_position() -> None:
    encoding, x = Learnable(SIZES, max_len=12), torch.randn(1, 4, D)
    segment = torch.tensor([[PADDING, 0, 0, PADDING]])
    layout = Layout(torch.tensor([[-7, 0, 1, 5_000]]), segment, causal=True)
    out = encoding.embed(x, layout)
    assert torch.equal(out[:, 1:3], x[:, 1:3] + encoding.table[:2])
    assert out.isfinite().all()


@pytest.mark.parametrize("kind", [Sinusoidal, SinInit])
def test_theta_must_be_positive(kind: type[PositionalEncoding]) -> None:
    with pytest.raises(ValueError, match=r"^theta must be a positive number, got -1\.0$"):
        kind(SIZES, theta=-1.0)


def bare_model(causal: bool) -> tuple[Transformer, Layout]:
    config = Model(
        depth=2, width=16, num_heads=2, mlp_ratio=2, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    model = Transformer(config, PositionalEncoding, Task(9, 7, 9, causal=True))
    initialise_parameters(model, seed=0)
    return model.double(), Layout.of_lengths(torch.tensor([7]), 7, causal)


def test_no_encoding_changes_nothing() -> None:
    x, layout, none = torch.randn(1, 7, D), Layout.of_lengths(torch.tensor([7]), 7, True), PositionalEncoding(SIZES)
    assert none.embed(x, layout) is x
    assert all(h is x for h in none.mix(x, layout))
    assert none.terms(x, layout) == Terms()
    assert not list(none.parameters())


@pytest.mark.proves("none")
@pytest.mark.parametrize("causal", [True, False])
def test_without_encoding_attention_is_a_softmax_of_products(causal: bool) -> None:
    q, k, v = loops.inputs(2, D // 2)
    layout = loops.mixed(causal)
    terms = PositionalEncoding(SIZES).terms(torch.zeros(3, 7, D, dtype=torch.float64), layout)
    got, expected = loops.unpadded(attend(q, k, v, terms, layout, "reference")), loops.attention(q, k, v, causal)
    assert_close(got, expected, rtol=0, atol=1e-13)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (got, expected)), strict=True):
        assert_close(g, e, rtol=0, atol=1e-13)


def test_without_encoding_a_bidirectional_model_is_order_blind() -> None:
    """A permutation of the tokens permutes the outputs, up to rounding."""
    model, layout = bare_model(causal=False)
    tokens, order = torch.randint(9, (1, 7)), torch.randperm(7)
    assert_close(model(tokens[:, order], layout), model(tokens, layout)[:, order], rtol=0, atol=1e-12)


def test_without_encoding_a_causal_model_is_not_order_blind() -> None:
    model, layout = bare_model(causal=True)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5, 6]])
    swapped = torch.tensor([[1, 0, 2, 3, 4, 5, 6]])
    assert (model(tokens, layout)[:, -1] - model(swapped, layout)[:, -1]).abs().max() > 1e-3


def place(kind: type[Absolute], **options: object) -> Absolute:
    """Return an encoding in float64, with its initial values."""
    encoding = kind(SIZES, **options)
    initialise_parameters(encoding, seed=1)
    return encoding.double()


# a value for every dim of a position, from the formula and the parameters alone
def integer(encoding: Absolute, pos: int, length: int) -> Tensor:
    return torch.full((D,), float(pos), dtype=torch.float64)


def normalized(encoding: Absolute, pos: int, length: int) -> Tensor:
    return torch.full((D,), pos / (length - 1), dtype=torch.float64)


def of_table(encoding: Absolute, pos: int, length: int) -> Tensor:
    return encoding.table[pos]


def continuous(encoding: Absolute, pos: int, length: int) -> Tensor:
    first, second, third = (encoding.mlp[index] for index in (0, 2, 4))
    one = (first.weight[:, 0] * (pos / SIZES.length) + first.bias).clamp(min=0)
    two = (second.weight @ one + second.bias).clamp(min=0)
    return third.weight @ two + third.bias


def fourier(encoding: Absolute, pos: int, length: int) -> Tensor:
    x = pos / SIZES.length * 2 * math.pi
    angles = [x * w for w in encoding.frequency]
    features = torch.stack([a.cos() for a in angles] + [a.sin() for a in angles]) / math.sqrt(384)
    hidden = encoding.mlp[0].weight @ features + encoding.mlp[0].bias
    bent = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    return encoding.mlp[2].weight @ bent + encoding.mlp[2].bias


PAPERS = {Integer: integer, Normalized: normalized, Random: of_table, Continuous: continuous, Fourier: fourier}


@pytest.mark.proves("{kind}")
@pytest.mark.parametrize("kind", PAPERS)
def test_an_encoding_is_its_formula(kind: type[Absolute]) -> None:
    """Values, and gradients of the token and of every parameter."""
    encoding = place(kind)
    x = torch.randn(B, 5, D, dtype=torch.float64, requires_grad=True)
    wanted = [x, *encoding.parameters()]
    upstream = torch.randn(B, 5, D, dtype=torch.float64)
    out = encoding.embed(x, layout_at(POSITIONS))
    expected = x + torch.stack([torch.stack([PAPERS[kind](encoding, p, 5) for p in row]) for row in POSITIONS])
    assert_close(out, expected, rtol=1e-12, atol=1e-12)
    got, want = (torch.autograd.grad(y, wanted, upstream, retain_graph=True) for y in (out, expected))
    for mine, theirs in zip(got, want, strict=True):
        assert theirs.abs().max() > 0
        assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_normalized_divides_by_the_tokens_of_the_document() -> None:
    pos = torch.tensor([[-2, -1, 0, 1, 2, 3], [0, 1, 2, 0, 1, 0]])
    segment = torch.tensor([[PADDING, PADDING, 0, 0, 0, 0], [4, 4, 4, 5, 5, PADDING]])
    out = Normalized(SIZES).embed(torch.zeros(2, 6, D), Layout(pos, segment, causal=True))
    assert_close(out[0, 2:, 0], torch.tensor([0, 1 / 3, 2 / 3, 1]), rtol=0, atol=1e-7)
    assert_close(out[1, :5, 0], torch.tensor([0, 0.5, 1, 0, 1]), rtol=0, atol=1e-7)
    alone = Layout.of_lengths(torch.tensor([1]), 1, causal=True)
    assert torch.equal(Normalized(SIZES).embed(torch.zeros(1, 1, D), alone), torch.zeros(1, 1, D))


def test_random_rows_are_uniform_and_never_trained() -> None:
    encoding = Random(Sizes(384, 6, 256))
    initialise_parameters(encoding, seed=0)
    assert not list(encoding.parameters())
    assert "table" in encoding.state_dict()
    rows = encoding.table.double()
    assert rows.abs().max() <= 1
    # within 5 standard errors of U(-1, 1): mean 0, variance 1/3
    error = math.sqrt(1 / 3 / rows.numel())
    assert abs(rows.mean().item()) < 5 * error
    assert abs(rows.var().item() - 1 / 3) < 5 * math.sqrt(4 / 45 / rows.numel())


def test_the_mlp_of_continuous_is_as_large_as_its_sources() -> None:
    """631,299 - 598,019 parameters at width 128."""
    assert sum(p.numel() for p in Continuous(Sizes(128, 8, 32)).parameters()) == 33_280


@pytest.mark.parametrize(
    ("kind", "option", "wrong"),
    [
        *((Continuous, "hidden", wrong) for wrong in (0, 1.5)),
        *((Continuous, "scale", wrong) for wrong in (0, -1.0, math.inf)),
        *((Fourier, "features", wrong) for wrong in (0, 7)),
        *((Fourier, "hidden", wrong) for wrong in (0, 1.5)),
        *((Fourier, "gamma", wrong) for wrong in (0, -1.0)),
    ],
)
def test_an_option_out_of_range_is_named(kind: type[Absolute], option: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"^{option} must be .*, got {wrong}$"):
        kind(SIZES, **{option: wrong})


def test_continuous_takes_its_scale_as_one() -> None:
    by_length, by_four = place(Continuous), place(Continuous, scale=4.0)
    x = torch.zeros(1, 3, D, dtype=torch.float64)
    tens, fours = (layout_at([[unit, 3 * unit, 50 * unit]]) for unit in (SIZES.length, 4))
    assert torch.equal(by_four.embed(x, fours), by_length.embed(x, tens))


def test_fouriers_frequencies_are_trained() -> None:
    encoding = place(Fourier)
    encoding.embed(torch.zeros(B, 5, D, dtype=torch.float64), layout_at(POSITIONS)).square().sum().backward()
    assert encoding.frequency.grad.abs().min() > 0


def test_fouriers_frequencies_start_with_the_standard_deviation_one_over_gamma() -> None:
    encoding = Fourier(SIZES, features=20_000, gamma=4.0)
    assert abs(encoding.frequency.std().item() - 0.25) < 5 * 0.25 / math.sqrt(2 * 10_000)


EVERYWHERE = [Sinusoidal, Learnable, SinInit, Integer, Normalized, Random, Continuous, Fourier]


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_where_it_enters_is_a_choice(kind: type[Absolute]) -> None:
    x, layout = torch.randn(B, 5, D, dtype=torch.float64), layout_at(POSITIONS)
    at_input, everywhere, query_key = (place(kind, at=at) for at in ("input", "every_layer", "query_key"))
    joined = at_input.embed(x, layout)
    assert (joined - x).abs().max() > 1e-3
    assert all(h is x for h in at_input.mix(x, layout))
    assert everywhere.embed(x, layout) is x
    assert all(torch.equal(h, joined) for h in everywhere.mix(x, layout))
    assert query_key.embed(x, layout) is x
    h_qk, h_v = query_key.mix(x, layout)
    assert torch.equal(h_qk, joined)
    assert h_v is x


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_concatenation_is_a_linear_map_of_both(kind: type[Absolute]) -> None:
    x, layout = torch.randn(B, 5, D, dtype=torch.float64), layout_at(POSITIONS)
    added, encoding = place(kind), place(kind, combine="concat")
    encoding.load_state_dict(added.state_dict(), strict=False)
    vectors = (added.embed(torch.zeros_like(x), layout)).detach()
    expected = torch.cat((x, vectors), -1) @ encoding.merge.weight.T + encoding.merge.bias
    assert_close(encoding.embed(x, layout), expected, rtol=1e-12, atol=1e-12)
    more = sum(p.numel() for p in encoding.parameters()) - sum(p.numel() for p in added.parameters())
    assert more == 2 * D * D + D


@pytest.mark.parametrize("kind", EVERYWHERE)
@pytest.mark.parametrize("option", ["at", "combine"])
def test_a_place_or_a_way_that_does_not_exist_is_refused(kind: type[Absolute], option: str) -> None:
    with pytest.raises(ValueError, match=rf"^{option} must be one of \w+, .*, got 'middle'$"):
        kind(SIZES, **{option: "middle"})


def test_a_table_per_layer_has_the_published_size() -> None:
    """512 x 384 = 196,608 parameters a layer; queries, keys and values all get it, and each layer its own."""
    config = Model(
        depth=3, width=384, num_heads=6, mlp_ratio=1, norm="pre", dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    settings = pe_settings("learnable_per_layer")
    model = Transformer(config, hydra.utils.instantiate(settings), Task(9, 256, 9, causal=True))
    assert model.positional_parameters() == 3 * 196_608
    tables = [encoding.table for encoding in model.encodings]
    assert not torch.equal(tables[0], tables[1])
    h, layout = torch.zeros(1, 5, 384), layout_at([[0, 1, 2, 7, 300]])
    for table, encoding in zip(tables, model.encodings, strict=True):
        assert all(torch.equal(mixed[0], table[[0, 1, 2, 7, 300]]) for mixed in encoding.mix(h, layout))


def test_a_table_per_layer_must_enter_in_every_layer() -> None:
    with pytest.raises(ValueError, match=r"^share=none needs at=every_layer or query_key, got at=input"):
        Learnable(SIZES, share="none")
    with pytest.raises(ValueError, match=r"^share must be one of layers, none, got 'heads'$"):
        Learnable(SIZES, share="heads")


@pytest.mark.proves("learnable_per_layer")
def test_a_table_per_layer_adds_its_rows_to_the_input_of_every_attention() -> None:
    """Values, and gradients of the input and of the table, whose rows are read as often as their position is there."""
    make = hydra.utils.instantiate(expand_overrides(["pe=learnable_per_layer"], False)[0].pe)
    for layer in (0, 2):
        encoding = make(Sizes(D, 2, 10, depth=3, layer=layer)).double()
        h, upstream = torch.randn(2, B, 5, D, dtype=torch.float64)
        h.requires_grad_()
        rows = [[h[b, t] + encoding.table[p] for t, p in enumerate(row)] for b, row in enumerate(POSITIONS)]
        expected = torch.stack([torch.stack(row) for row in rows])
        assert encoding.embed(h, layout_at(POSITIONS)) is h
        for mixed in encoding.mix(h, layout_at(POSITIONS)):
            assert_close(mixed, expected, rtol=0, atol=1e-15)
            actual = (
                torch.autograd.grad(x, (h, encoding.table), upstream, retain_graph=True) for x in (mixed, expected)
            )
            for g, e in zip(*actual, strict=True):
                assert_close(g, e, rtol=0, atol=1e-14)


@pytest.mark.proves("sinusoidal_qk", by="identity: `sinusoidal`, for queries and keys alone")
def test_sinusoidal_qk_reaches_queries_and_keys_of_every_layer_and_no_value() -> None:
    encoding = hydra.utils.instantiate(pe_settings("sinusoidal_qk"))(SIZES)
    x, layout = torch.randn(B, 5, D), layout_at(POSITIONS)
    h_qk, h_v = encoding.mix(x, layout)
    assert torch.equal(h_qk, Sinusoidal(SIZES).embed(x, layout))
    assert h_v is x
    assert encoding.embed(x, layout) is x
    assert not list(encoding.parameters())


@pytest.mark.parametrize("name", ["integer", "normalized"])
@pytest.mark.parametrize(
    ("norm", "override", "seen"),
    [
        ("pre", "at=input", False),
        ("post", "at=input", True),
        ("pre", "at=every_layer", True),
        ("pre", "combine=concat", True),
    ],
)
def test_what_all_dims_share_does_not_pass_a_layer_norm(name: str, norm: str, override: str, seen: bool) -> None:
    config = Model(
        depth=2, width=16, num_heads=2, mlp_ratio=2, norm=norm, dropout=0.0, embedding_std=1.0, scale_tokens=False
    )
    tokens, layout = torch.randint(9, (2, 7)), Layout.of_lengths(torch.tensor([7, 7]), 7, causal=True)
    outputs = []
    for settings in (pe_settings(name, f"pe.{override}"), pe_settings("none")):
        model = Transformer(config, hydra.utils.instantiate(settings), Task(9, 7, 9, causal=True))
        initialise_parameters(model, seed=0)
        outputs.append(model.double()(tokens, layout))
    # a constant of up to 6 in a sum of dims of size 1, and LayerNorm's epsilon
    assert ((outputs[0] - outputs[1]).abs().max().item() > 1e-3) is seen
