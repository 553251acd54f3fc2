"""Combinations: each head, each layer and each sum is what its parts are alone."""

import re
from dataclasses import fields, replace
from functools import cache, partial

import hydra
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from helpers import loops
from helpers.configs import NAMES, pe_class, pe_settings
from pe_lab.attention import attend
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings import OptionError, PositionalEncoding, Sizes, Stack, Terms, UnfitError, make
from pe_lab.encodings.combine import Combination, Heads, Interleave, Sum
from pe_lab.encodings.declarations import COMBINING_RULES, Declarations
from pe_lab.encodings.families.dape import Dape
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.memory import Carried
from pe_lab.encodings.merge import CannotCombineError, PartTerms, add_terms, terms_by_head
from pe_lab.encodings.named import encodings
from pe_lab.encodings.terms import SOFTMAX

B, T, D, H, DEPTH = 2, 7, 24, 4, 4
HEAD = D // H
SIZES = Sizes(D, H, T, depth=DEPTH)
LAYOUT = Layout.of_lengths(torch.tensor([T, T - 2]), T, causal=True)


@cache
def configured(name: str):
    return hydra.utils.instantiate(pe_settings(name))


def maker(name: str, **options: object):
    return partial(configured(name), **options)


def random(encoding: PositionalEncoding) -> PositionalEncoding:
    """Move the parameters off their start, the same for encodings with the same parameters."""
    torch.manual_seed(0)
    encoding.double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return encoding


def on_a_line(name: str) -> bool:
    try:
        return not encodings()[name](SIZES, name=name).draws_positions  # as of its file, which would be composed
    except UnfitError:
        return False


ON_A_LINE = [name for name in NAMES if on_a_line(name)]
SINGLES = [name for name in ON_A_LINE if not issubclass(pe_class(name), Combination)]


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    h = torch.randn(B, T, D, dtype=torch.float64)
    return h, *torch.randn(3, B, H, T, HEAD, dtype=torch.float64)


def attended(encoding: PositionalEncoding, heads: slice, layout: Layout = LAYOUT) -> Tensor:
    """Attention of the heads under an encoding that is for them; all sequences without their padding."""
    h, q, k, v = inputs()
    located = encoding.locate(layout)
    out = attend(q[:, heads], k[:, heads], v[:, heads], encoding.terms(h, located), located, "reference")
    return out.masked_fill((layout.segment < 0)[:, None, :, None], 0)


def reason(name: str) -> str | None:
    """Return the message with which an encoding is refused beside one that adds to logits before a softmax."""
    encoding = maker(name)(SIZES)
    if encoding.embeds:
        return "token embeddings alone"
    if encoding.mixes:
        return "input of attention alone"
    terms = encoding.terms(inputs()[0], LAYOUT)
    if terms.lift is not None and terms.lift.head_dim != HEAD:
        return "head_dim of queries, which all heads share"
    if terms.carried is not None:
        return "nothing from layer to layer"
    return "all heads share" if terms.normalizer != SOFTMAX or terms.scale not in (None, HEAD**-0.5) else None


# -- head by head ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("heads", by="identity: each part on its heads")
@pytest.mark.parametrize("other", ["none", "alibi", "forgetting"])
@pytest.mark.parametrize("name", SINGLES)
def test_each_head_is_that_of_its_part(name: str, other: str) -> None:
    """Attention and gradients of three heads of one encoding and one of another, either first."""
    for first, second, shares in ((name, other, [3, 1]), (other, name, [1, 3])):
        if refused := reason(name):
            with pytest.raises(CannotCombineError, match=refused):
                Heads(SIZES, parts=[maker(first), maker(second)], shares=shares).terms(inputs()[0], LAYOUT)
            continue
        both = random(Heads(SIZES, parts=[maker(first), maker(second)], shares=shares))
        got = attended(both, slice(0, H))
        at = 0
        for part, count in zip(both.members(), shares, strict=True):
            assert part.sizes.num_heads == count
            assert part.sizes.head_dim == HEAD
            heads = slice(at, at + count)
            expected = attended(part, heads)
            assert_close(got[:, heads], expected, rtol=0, atol=1e-12)
            parameters = list(part.parameters())
            if parameters:
                actual, wanted = (
                    torch.autograd.grad(x.square().sum(), parameters, retain_graph=True, allow_unused=True)
                    for x in (got[:, heads], expected)
                )
                for one, two in zip(actual, wanted, strict=True):
                    assert_close(one, two, rtol=1e-9, atol=1e-12)
            at += count


def test_parts_are_made_for_their_own_heads() -> None:
    both = Heads(SIZES, parts=[maker("alibi"), maker("none")])
    bias = both.terms(inputs()[0], LAYOUT).distance_bias
    alone = maker("alibi")(replace(SIZES, num_heads=2, width=D // 2)).terms(inputs()[0], LAYOUT).distance_bias
    assert_close(bias, torch.cat((alone, torch.zeros_like(alone))), rtol=0, atol=0)


def test_heads_side_by_side_keep_tables_of_other_reach_windows_and_sequences() -> None:
    torch.manual_seed(0)
    short, long = torch.randn(1, 3), torch.randn(2, B, 2 * T - 1).transpose(0, 1)
    parts = [
        PartTerms("a", 1, Terms(distance_bias=short, clip=True, window=(2,))),
        PartTerms("b", 2, Terms(distance_bias=long, window=(None, 3))),
        PartTerms("c", 1, Terms(weight_factors=torch.full((1, 1), 2.0), clip=True)),
    ]
    merged = terms_by_head(parts, HEAD, LAYOUT)
    assert merged.window == (2, None, 3, None)
    assert merged.distance_bias.shape == (B, H, 2 * T - 1)
    expected = torch.cat((short[:, :1].expand(1, T - 2), short, short[:, 2:].expand(1, T - 2)), 1)
    assert_close(merged.distance_bias[:, 0], expected.expand(B, -1), rtol=0, atol=0)
    assert_close(merged.distance_bias[:, 1:3], long, rtol=0, atol=0)
    assert not merged.distance_bias[:, 3].any()
    assert_close(
        merged.weight_factors,
        torch.tensor([1.0, 1, 1, 2])[:, None].expand(H, merged.weight_factors.shape[1]),
        rtol=0,
        atol=0,
    )


def test_a_table_that_is_too_short_is_refused_beside_a_longer_one() -> None:
    parts = [
        PartTerms("a", 2, Terms(distance_bias=torch.zeros(1, 3))),
        PartTerms("b", 2, Terms(distance_bias=torch.zeros(1, 2 * T - 1))),
    ]
    for merge in (partial(terms_by_head, head_dim=HEAD), add_terms):
        with pytest.raises(ValueError, match=f"bias of a covers distances up to 1: got {T - 1}"):
            merge(parts, layout=LAYOUT)


# -- added up ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("sum", by="identity: a part alone")
@pytest.mark.parametrize("name", ON_A_LINE)
def test_a_sum_with_nothing_is_the_encoding_itself(name: str) -> None:
    h = inputs()[0]
    for parts in ([name, "none"], ["none", name]):
        both = random(Sum(SIZES, parts=list(map(maker, parts))))
        alone = both.members()[parts.index(name)]
        located = alone.locate(LAYOUT)
        assert both.locate(LAYOUT).pos.equal(located.pos)
        assert (both.embeds, both.mixes) == (alone.embeds, alone.mixes)
        assert_close(both.embed(h, located), alone.embed(h, located), rtol=0, atol=0)
        for one, two in zip(both.mix(h, located), alone.mix(h, located), strict=True):
            assert_close(one, two, rtol=0, atol=0)
        assert_close(attended(both, slice(0, H)), attended(alone, slice(0, H)), rtol=0, atol=1e-13)


@pytest.mark.proves("sum", by="identity: the logits of both parts")
@pytest.mark.parametrize("bias", ["alibi", "t5", "forgetting", "fire", "kerple_log"])
@pytest.mark.parametrize("other", ["rope", "cope", "alibi", "stick_breaking", "shaw"])
def test_biases_add_up(bias: str, other: str) -> None:
    from pe_lab.attention.reference import logits

    h, q, k, _ = inputs()
    both = random(Sum(SIZES, parts=[maker(other), maker(bias)]))
    first, second = both.members()
    actual = logits(q, k, both.terms(h, LAYOUT), LAYOUT)
    expected = logits(q, k, first.terms(h, LAYOUT), LAYOUT) + logits(0 * q, k, second.terms(h, LAYOUT), LAYOUT)
    inside = LAYOUT.allowed.expand_as(actual)
    assert_close(actual[inside], expected[inside], rtol=0, atol=1e-12)


@pytest.mark.proves("sum")
@pytest.mark.parametrize("causal", [True, False])
def test_a_rotation_a_bias_and_a_window_act_together(causal: bool) -> None:
    """Values, and gradients of q, k, v and of the bias's parameters, one pair of tokens at a time."""
    q, k, v = loops.inputs(H, HEAD)
    layout = loops.mixed(causal)
    parts = [maker("rope"), maker("kerple_log"), maker("window", window=4)]
    both = Sum(replace(SIZES, causal=causal), parts=parts).double()
    p, a = both.members()[1].p, both.members()[1].a
    terms = both.terms(torch.zeros(3, T, D, dtype=torch.float64), layout)
    got = loops.unpadded(attend(q, k, v, terms, layout, "reference"))
    angle = torch.tensor(loops.POSITIONS)[:, None, :, None] * 10_000.0 ** (-torch.arange(0, HEAD, 2).double() / HEAD)

    def turned(x: Tensor) -> Tensor:
        even, odd = x[..., 0::2], x[..., 1::2]
        pairs = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
        return torch.stack(pairs, -1).flatten(-2)

    def logit(head: int, i: int, j: int, z: Tensor) -> Tensor:
        return z - p[head] * (1 + a[head] * abs(i - j)).log()

    expected = loops.attention(turned(q), turned(k), v, causal, logit=logit, sees=lambda head, i, j: abs(i - j) < 4)
    assert_close(got, expected, rtol=0, atol=1e-13)
    upstream = torch.randn_like(expected)
    for g, e in zip(*(torch.autograd.grad(x, (q, k, v, p, a), upstream) for x in (got, expected)), strict=True):
        assert e.any()
        assert_close(g, e, rtol=0, atol=1e-12)


def test_vectors_at_the_input_are_added_one_after_the_other() -> None:
    x = inputs()[0]
    both = random(Sum(SIZES, parts=[maker("learnable"), maker("sinusoidal")]))
    learnable, sinusoidal = both.members()
    expected = sinusoidal.embed(learnable.embed(x, LAYOUT), LAYOUT)
    assert_close(both.embed(x, LAYOUT), expected, rtol=0, atol=0)


def test_heads_rotate_as_many_dimensions_or_none() -> None:
    four = partial(RoPE, rotary_dim=4)
    made = Heads(SIZES, parts=[four, maker("none")]).terms(inputs()[0], LAYOUT).rotary_q
    assert made.cos.shape[-1] == 2
    with pytest.raises(ValueError, match=r"^parts must have the same rotary_dim, .* got 4 of rope and \d+ of rope$"):
        Heads(SIZES, parts=[four, maker("rope")]).terms(inputs()[0], LAYOUT)


def test_scores_are_of_the_same_logits_and_windows_the_smallest() -> None:
    torch.manual_seed(0)
    z, q, k = torch.randn(3, B, H, T, T)
    parts = [
        PartTerms("a", H, Terms(content_bias=lambda q, k, z, layout: 2 * z, window=(5,))),
        PartTerms("b", H, Terms(content_bias=lambda q, k, z, layout: z + q, window=(None, 3, 7, None))),
        PartTerms("c", H, Terms(window=(None,))),
    ]
    merged = add_terms(parts, LAYOUT)
    assert merged.window == (5, 3, 5, 5)
    assert_close(merged.content_bias(q, k, z, LAYOUT), 3 * z + q)
    assert add_terms([PartTerms("c", H, Terms(window=(None, None)))], LAYOUT).window == (None, None)
    assert add_terms([PartTerms("c", H, Terms())], LAYOUT).window is None


ROTARY = make("rope", width=D, num_heads=H, depth=1, length=T).first.terms(inputs()[0].float(), LAYOUT).rotary_q
SINGLE = {
    "lift": lambda q, k: (q, k),
    "rotary_q": ROTARY,
    "rotary_k": ROTARY,
    "rotary_v": ROTARY,
    "rotary_out": ROTARY,
    "gain": torch.ones(1, HEAD),
    "scale": 1.0,
    "logit_factors": torch.ones(1, 2 * T - 1),
    "weight_factors": torch.ones(1, 2 * T - 1),
    "carried": Carried(torch.ones(1, 1, T, 3)),
    "normalizer": make("stick_breaking", width=D, num_heads=H, depth=1, length=T)
    .first.terms(inputs()[0], LAYOUT)
    .normalizer,
}
SEVERAL = {"distance_bias", "decay", "pair_bias", "content_bias", "relative_values", "window"}


def test_every_term_is_added_or_there_is_one() -> None:
    assert {field.name for field in fields(Terms)} == SINGLE.keys() | SEVERAL | {"clip"}


@pytest.mark.parametrize("name", SINGLE)
def test_two_terms_of_which_there_is_one_are_refused_naming_both(name: str) -> None:
    terms = Terms(**{name: SINGLE[name]})
    one = add_terms([PartTerms("a", H, Terms()), PartTerms("b", H, terms)], LAYOUT)
    actual, expected = getattr(one, name), SINGLE[name]
    assert torch.equal(actual, expected) if isinstance(expected, Tensor) else actual == expected
    with pytest.raises(CannotCombineError, match=r"^parts must have at most one .*, got a and b$"):
        add_terms([PartTerms("a", H, terms), PartTerms("c", H, Terms()), PartTerms("b", H, terms)], LAYOUT)


# what is read of the parts or of a class
OF_A_CLASS = {"revision", "neutral", "start_scale", "matrices", "fallback", "weight_decay", "lr"}


def test_every_declaration_has_a_rule() -> None:
    declared = {
        name
        for name, value in (vars(Declarations) | vars(PositionalEncoding)).items()
        if not name.startswith("_") and not callable(value) and not isinstance(value, property)
    }
    assert declared == set(COMBINING_RULES) | OF_A_CLASS


def declaring(sizes: Sizes, name: str = "alibi", **declared: object) -> PositionalEncoding:
    encoding = configured("alibi")(sizes)
    for declaration, value in declared.items():
        setattr(encoding, declaration, value)
    return encoding


MADE_OF_OTHERS = {
    "sum": lambda part: Sum(SIZES, parts=[maker("none"), part]),
    "heads": lambda part: Heads(SIZES, parts=[maker("none"), part]),
    "interleave": lambda part: Interleave(SIZES, parts=[maker("none"), part]),
    "randomized": lambda part: Randomized(SIZES, "randomized", part),
    "dape": lambda part: Dape(SIZES, "dape", part),
}


OF_ONE = [name for name, rule in COMBINING_RULES.items() if rule is any and name not in ("draws_positions", "on_grid")]


@pytest.mark.parametrize("kind", MADE_OF_OTHERS)
@pytest.mark.parametrize("declared", OF_ONE)
def test_what_a_part_declares_holds_for_what_is_made_of_it(declared: str, kind: str) -> None:
    made_of = MADE_OF_OTHERS[kind]
    without, having = made_of(declaring), made_of(partial(declaring, **{declared: True}))
    assert getattr(having, declared) is True
    assert getattr(without, declared) is bool(getattr(type(without), declared))


def test_what_a_class_declares_holds_whatever_its_parts_declare() -> None:
    class Declaring(Sum):
        reads_positions, period, whole_sequence, per_layer = False, 3, "its reason", True

    part = partial(declaring, period=2, whole_sequence="a reason of the part")
    made = Declaring(SIZES, parts=[maker("rope"), part])
    assert (made.reads_positions, made.period, made.whole_sequence, made.per_layer) == (False, 3, "its reason", True)


@pytest.mark.parametrize("declared", ["three_axes", "float_positions"])
def test_what_all_parts_take_is_taken(declared: str) -> None:
    taking, other = partial(declaring, **{declared: True}), partial(declaring, **{declared: False})
    assert getattr(Sum(SIZES, parts=[taking, taking]), declared)
    assert not getattr(Sum(SIZES, parts=[taking, other]), declared)
    assert getattr(Dape(SIZES, "dape", taking), declared)
    assert not getattr(Dape(SIZES, "dape", other), declared)


@pytest.mark.parametrize("kind", ["sum", "heads", "interleave", "dape"])
def test_the_reason_to_need_the_whole_sequence_is_that_of_the_part(kind: str) -> None:
    assert MADE_OF_OTHERS[kind](partial(declaring, whole_sequence="a reason")).whole_sequence == "a reason"
    assert MADE_OF_OTHERS[kind](declaring).whole_sequence is None


@pytest.mark.parametrize("kind", MADE_OF_OTHERS)
def test_the_period_of_a_part_is_that_of_what_is_made_of_it(kind: str) -> None:
    assert MADE_OF_OTHERS[kind](partial(declaring, period=6)).period == 6


@pytest.mark.parametrize("kind", [Sum, Heads])
def test_a_pattern_repeats_after_the_least_common_multiple_of_the_periods(kind: type) -> None:
    assert kind(SIZES, parts=[partial(declaring, period=4), partial(declaring, period=6)]).period == 12


@pytest.mark.parametrize(("layers", "period"), [([1, 1], 4), ([2, 1], 12)])
def test_a_pattern_of_patterns_repeats_after_both(layers: list[int], period: int) -> None:
    assert Interleave(SIZES, parts=[maker("rnope_swa"), maker("none")], layers=layers).period == period


@pytest.mark.parametrize("parts", [["rnope_swa", "forgetting"], ["forgetting", "rnope_swa"]])
def test_a_model_of_a_sum_has_all_layers_of_a_part_that_alternates(parts: list[str]) -> None:
    with pytest.raises(UnfitError, match="sum alternates over 4 layers: depth must be at least that, got 3"):
        make("sum", parts=parts, width=D, num_heads=H, depth=3, length=T)
    assert make("sum", parts=parts, width=D, num_heads=H, depth=4, length=T).first.period == 4


# -- layer by layer ----------------------------------------------------------------------------------------------------


def test_layers_take_turns() -> None:
    make_it = partial(Interleave, parts=[maker("rope"), maker("alibi"), maker("none")], layers=[2, 1, 1])
    stack = Stack.build(make_it, Sizes(D, H, T), 6)
    _, positions = stack(torch.randn(B, T, D))
    terms = [positions.layer(index, torch.randn(B, T, D)).terms for index in range(6)]
    kinds = ["rope" if one.rotary_q else "alibi" if one.distance_bias is not None else "none" for one in terms]
    assert kinds == ["rope", "rope", "alibi", "none", "rope", "rope"]


def test_what_layers_share_alone_they_share_in_turns() -> None:
    """t5 has one table for all layers, lrope its own in each, lrope(share=layers) one."""
    shared = maker("lrope", share="layers")
    make_it = partial(Interleave, parts=[maker("lrope"), maker("t5"), shared], layers=[1, 1, 1])
    stack = Stack.build(make_it, Sizes(D, H, T), 6)
    tables = [stack.of_layer(index).members()[0] for index in range(6)]
    assert tables[0].beta is not tables[3].beta
    assert tables[1] is tables[4]
    assert tables[2].beta is tables[5].beta
    assert sum(p.numel() for p in stack.parameters()) == 3 * tables[0].beta.numel() + tables[1].table.numel()


def test_a_table_that_layers_share_is_that_of_the_first_layer_with_the_part() -> None:
    """deberta's later layers have no table of their own; every parameter is one of the model's."""
    stack = Stack.build(partial(Interleave, parts=[maker("rope"), maker("deberta")]), Sizes(D, H, T), 6)
    names = [name for name, _ in stack.named_parameters() if name.endswith("table")]
    assert names == ["1.parts.0.table"]
    h = torch.randn(B, T, D)
    q = torch.randn(B, H, T, HEAD)
    _, positions = stack(h)
    out = attend(q, q, q, positions.layer(5, h).terms, positions.layout)
    (gradient,) = torch.autograd.grad(out.square().sum(), [dict(stack.named_parameters())[names[0]]])
    assert gradient.any()


@pytest.mark.parametrize(("name", "layers"), [("rnope_swa", 4), ("lrope", 1), ("rope", 1)])
def test_a_stack_may_have_the_layers_of_one_round_alone(name: str, layers: int) -> None:
    stack = Stack.build(maker(name), SIZES, 6, whole=False)
    assert (stack.depth, len(stack)) == (layers, layers)


@pytest.mark.parametrize("kind", [Sum, Heads])
def test_parts_that_layers_share_are_shared_in_a_combination(kind: type) -> None:
    stack = Stack.build(partial(kind, parts=[maker("t5"), maker("lrope")]), Sizes(D, H, T), 3)
    parts = [stack.of_layer(index).members() for index in range(3)]
    assert parts[0][0] is parts[1][0] is parts[2][0]
    assert len({id(part[1].beta) for part in parts}) == 3
    assert [name for name in stack.state_dict() if name.endswith("table")] == ["0.parts.0.table"]


def test_a_model_has_at_least_a_round_of_layers() -> None:
    with pytest.raises(UnfitError, match="interleave alternates over 3 layers: depth must be at least that, got 2"):
        make("interleave", parts=["rope", "none"], layers=[2, 1], width=D, num_heads=H, depth=2, length=T)


# -- all ---------------------------------------------------------------------------------------------------------------

NESTED = {
    "sum": ["rope", "forgetting"],
    "heads": ["forgetting", "t5"],
    "interleave": ["forgetting", "rope"],
    "nested": [partial(Sum, parts=[maker("rope"), maker("forgetting")]), maker("cope")],
}


@pytest.mark.parametrize("name", NESTED)
def test_token_by_token_equals_the_whole_sequence(name: str) -> None:
    kind = "heads" if name == "nested" else name
    stack = make(kind, parts=NESTED[name], width=D, num_heads=H, depth=2, length=T).double()
    initialise_parameters(stack, 0)
    x = torch.randn(B, T, D, dtype=torch.float64)

    def run(x: Tensor, cache: object = None) -> Tensor:
        x, positions = stack(x, cache=cache)
        for index in range(2):
            h_qk, h_v, terms, layout = positions.layer(index, x)
            q, v = (h.view(*h.shape[:2], H, HEAD).transpose(1, 2) for h in (h_qk, h_v))
            x = x + attend(q, q.flip(-1), v, terms, layout).transpose(1, 2).flatten(2)
        return x

    with torch.no_grad():
        cache = stack.cache()
        steps = torch.cat([run(x[:, at : at + 1], cache) for at in range(T)], 1)
        assert_close(steps, run(x), rtol=0, atol=1e-12)


def test_rates_and_ranges_of_parts_are_their_own() -> None:
    both = Sum(SIZES, parts=[maker("lrope", lr=0.5), maker("kerple_log")])
    assert [part.lr for part in both.members()] == [0.5, None]
    with torch.no_grad():
        for parameter in both.members()[1].parameters():
            parameter.fill_(-1)
    both.constrain()
    assert all((parameter > 0).all() for parameter in both.members()[1].parameters())


GRID = Sizes(16, 4, 9, grid_width=3)


def test_parts_read_a_grid_in_one_way() -> None:
    assert Sum(GRID, parts=[maker("rope_2d"), maker("learnable_2d")]).on_grid
    assert not Sum(GRID, parts=[maker("rope"), maker("alibi")]).on_grid
    for kind in (Sum, Heads, Interleave):
        with pytest.raises(CannotCombineError, match=r"on a grid, or all read it row by row, got rope_2d and alibi"):
            kind(GRID, parts=[maker("rope_2d"), maker("alibi")])


@pytest.mark.parametrize(
    ("kind", "parts", "options", "says"),
    [
        (Sum, [], {}, "parts must be a list that is not empty, got []"),
        (Heads, ["alibi", "none"], {"shares": [1]}, "shares must be a number for each of 2 parts, got [1]"),
        (Heads, ["alibi", "none"], {"shares": [2, 1]}, "shares must make whole heads of 4, got 2.66667, 1.33333 heads"),
        (Heads, ["alibi", "none"], {"shares": [1, 0]}, "shares must be a list of positive numbers, got [1, 0]"),
        (Heads, ["alibi"] * 5, {}, "shares must make whole heads of 4, got 0.8, 0.8, 0.8, 0.8, 0.8 heads"),
        (Interleave, ["rope", "none"], {"layers": [1]}, "layers must be a number for each of 2 parts, got [1]"),
        (Interleave, ["rope"], {"layers": [0]}, "layers must be a list of integers of at least 1, got [0]"),
        (Interleave, ["rope", "learnable"], {}, "parts must leave token embeddings alone, which all layers see, got "),
        (Heads, ["rope", "learnable"], {}, "parts must leave token embeddings alone, which all heads see, got "),
        (Heads, ["none", "sinusoidal_qk"], {}, "parts must leave the input of attention alone, which all heads see, "),
        (Sum, ["sinusoidal_qk", "learnable_per_layer"], {}, "parts must have at most one that changes the input of "),
        (Sum, ["randomized_rope", "none"], {}, "parts must take positions as they are, randomized_rope draws its own"),
    ],
)
def test_bad_parts_are_refused_in_one_line(kind: type, parts: list[str], options: dict, says: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(says)}") as caught:
        kind(SIZES, parts=list(map(maker, parts)), **options)
    assert "\n" not in str(caught.value)


def test_names_make_parts_outside_of_the_configuration() -> None:
    for parts in (["rope", "forgetting"], (maker("rope"), "forgetting")):
        stack = make("sum", parts=parts, width=D, num_heads=H, depth=1, length=T)
        assert [part.name for part in stack.first.members()] == ["rope", "forgetting"]
    with pytest.raises(ValueError, match=r"name='ropee': did you mean rope\? name must be one of "):
        make("sum", parts=["ropee"], width=D, num_heads=H, depth=1, length=T)
    with pytest.raises(OptionError, match="parts must be a list of encodings that is not empty, got 'rope'"):
        make("sum", parts="rope", width=D, num_heads=H, depth=1, length=T)
