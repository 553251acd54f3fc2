"""A length policy replaces a trained encoding by another one, and changes nothing else."""

import hydra
import pytest
import torch

from helpers.configs import pe_settings
from pe_lab.config import expand_overrides, schema
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.bias import Alibi
from pe_lab.encodings.families.rotary import LRoPE, RoPE, XPos
from pe_lab.encodings.families.rotary_far import default_group, default_window
from pe_lab.encodings.families.rotary_scaled import InterpolatedRoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.policies import DRAWN_POSITIONS, apply_policy
from pe_lab.encodings.sizes import Sizes

SIZES = Sizes(width=32, num_heads=2, length=16)


def make_encoding(name: str, *overrides: str) -> PositionalEncoding:
    return hydra.utils.instantiate(pe_settings(name, *overrides))(SIZES)


def layout(length: int, offset: int = 0) -> Layout:
    input_layout = Layout.of_lengths(torch.tensor([length]), length, causal=True)
    return Layout(input_layout.pos + offset, input_layout.segment, True)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("policy", "pe", "options"),
    [
        ("pi", "rope_pi", ["pe.factor=3"]),
        ("ntk", "rope_ntk", ["pe.factor=3"]),
        ("dynamic_ntk", "rope_dynamic_ntk", []),
        ("yarn", "yarn", ["pe.factor=3"]),
        ("llama3", "llama3", ["pe.factor=3"]),
    ],
)
@pytest.mark.parametrize("given", [[], ["pe.theta=500", "pe.pairing=half"], ["pe.rotary_dim=8"]])
def test_a_policy_is_the_encoding_of_that_name_with_the_trained_options(policy, pe, options, given):
    h, where = torch.zeros(1, 48, 32), layout(48)
    expected = make_encoding(pe, *options, *given).terms(h, where).rotary_q
    replaced = apply_policy(policy, make_encoding("rope", *given), 3)
    assert torch.equal(replaced.terms(h, where).rotary_q.cos, expected.cos)
    assert torch.equal(replaced.terms(h, where).rotary_q.sin, expected.sin)
    assert replaced.terms(h, where).rotary_q.pairing == expected.pairing
    assert not torch.equal(expected.cos, make_encoding("rope", *given).terms(h, where).rotary_q.cos)


@pytest.mark.parametrize("policy", ["pi", "ntk", "dynamic_ntk", "yarn"])
def test_at_the_training_length_every_slower_rope_is_rope(policy):
    h, where = torch.zeros(1, 16, 32), layout(16)
    rope = make_encoding("rope")
    assert torch.equal(apply_policy(policy, rope, 1).terms(h, where).rotary_q.cos, rope.terms(h, where).rotary_q.cos)


@pytest.mark.parametrize("name", ["rope", "learnable", "alibi", "t5", "lrope"])
def test_raw_is_the_trained_encoding_itself(name):
    trained = make_encoding(name)
    assert apply_policy("raw", trained, 4) is trained


@pytest.mark.parametrize("name", ["learnable", "continuous", "sinusoidal"])
def test_randomized_is_the_trained_encoding_at_other_positions(name):
    trained = make_encoding(name)
    trained.reset_parameters()
    wrapped = apply_policy("randomized", trained, 2)
    assert all(a is b for a, b in zip(wrapped.parameters(), trained.parameters(), strict=True))
    x = torch.randn(1, 32, 32)
    where = wrapped.locate(layout(32))
    pos = where.pos[0]
    assert (pos.diff() > 0).all()
    assert not torch.equal(pos, torch.arange(32))
    rows = 512 if name == "learnable" else DRAWN_POSITIONS
    assert 32 <= pos.max() < rows
    assert torch.equal(wrapped.embed(x, where), trained.embed(x, Layout(pos[None], where.segment, True)))


@pytest.mark.parametrize("policy", ["pi", "ntk", "dynamic_ntk", "yarn"])
@pytest.mark.parametrize("name", ["lrope", "alibi", "rope_pi", "exposb", "p_rope"])
def test_slower_frequencies_are_for_rope_alone(policy, name):
    with pytest.raises(ValueError, match=rf"^policy={policy} is defined for rope, got {name}: use raw$"):
        apply_policy(policy, make_encoding(name), 2)


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"^policy must be one of raw, pi, ntk, .*got 'none'"):
        apply_policy("none", make_encoding("rope"), 2)


def test_positions_at_random_need_positions():
    with pytest.raises(ValueError, match="needs an encoding of positions on a line, got none"):
        apply_policy("randomized", make_encoding("none"), 2)


def test_the_config_accepts_exactly_the_policies_that_exist():
    policies = [
        "raw",
        "pi",
        "ntk",
        "dynamic_ntk",
        "yarn",
        "llama3",
        "randomized",
        "self_extend",
        "rerope",
        "leaky_rerope",
    ]
    policies += ["self_extend:8:32", "rerope:32", "leaky_rerope:32:16"]
    assert expand_overrides([f"evaluate.policy=[{','.join(policies)}]"], False)[0].evaluate.policy == policies
    for policy in policies:
        assert isinstance(apply_policy(policy, RoPE(SIZES), 2), PositionalEncoding)


@pytest.mark.parametrize(
    "policy", ["self_extend:8", "self_extend:8:32:1", "rerope:0", "rerope:-1", "rerope:x", "rerope:", "raw:3", "yarn:2"]
)
def test_options_that_a_policy_does_not_have_are_refused(policy):
    for refused in (
        lambda: apply_policy(policy, RoPE(SIZES), 2),
        lambda: schema.require_setting("evaluate.policy", [policy]),
    ):
        with pytest.raises(ValueError, match=r"policy must be .*one of raw, pi, .*self_extend\[:GROUP:WINDOW\], .*got"):
            refused()


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("self_extend:8:32", {"group": 8, "window": 32}),
        ("rerope:5", {"window": 5}),
        ("leaky_rerope:5:3", {"window": 5, "k": 3}),
        # of 16 tokens of training, 4 times as many: (64 - 8) / (32 / 3 - 8) = 21
        ("self_extend", {"group": 21, "window": 8}),
        ("rerope", {"window": 8}),
        ("leaky_rerope", {"window": 8, "k": 16}),
    ],
)
def test_options_are_those_of_the_name_or_follow_from_the_lengths(policy, options):
    actual = apply_policy(policy, RoPE(SIZES, theta=500.0, pairing="half"), 4)
    assert {name: getattr(actual, name) for name in options} == options
    assert (actual.theta, actual.pairing, actual.name) == (500, "half", policy.partition(":")[0])


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 100])
@pytest.mark.parametrize("factor", [1, 1.5, 2, 4, 16])
def test_by_default_distances_end_at_two_thirds_of_the_training_length(length, factor):
    """The rule of the source: W + (N - W) / G between L / 2 and 2 L / 3; and no smaller group would do."""
    window, group = default_window(length), default_group(length, factor)
    total = factor * length
    if length >= 2:
        assert window + (total - window) / group <= 2 * length / 3 + 1e-9
        assert group == 1 or window + (total - window) / (group - 1) > 2 * length / 3 - 1e-9
        assert length / 2 - 1 < window <= length / 2
    else:
        assert (window, group) == (1, 1)


@pytest.mark.parametrize("policy", ["self_extend", "rerope", "leaky_rerope:4:2"])
def test_far_pairs_are_refused_where_they_are_not_defined(policy):
    for other in (LRoPE, Alibi, InterpolatedRoPE, XPos):
        with pytest.raises(ValueError, match=rf"^policy={policy} is defined for rope, got \w+: use raw$"):
            apply_policy(policy, other(SIZES), 2)
    both_ways = RoPE(Sizes(width=32, num_heads=2, length=16, causal=False))
    with pytest.raises(ValueError, match=rf"^policy={policy} is defined for causal attention only, .*: use raw$"):
        apply_policy(policy, both_ways, 2)
