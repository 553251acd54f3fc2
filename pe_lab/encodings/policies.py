"""Length policies: how a trained encoding is applied to sequences longer than those of training."""

from collections.abc import Callable
from functools import partial

from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.families.rotary_far import LeakyReRoPE, ReRoPE, SelfExtend, default_group, default_window
from pe_lab.encodings.families.rotary_scaled import LLAMA3, DynamicNTKRoPE, InterpolatedRoPE, NTKRoPE, Yarn
from pe_lab.encodings.families.table import Table
from pe_lab.encodings.options import OptionError
from pe_lab.encodings.policy_names import FAR_POLICIES, parse_policy

revision = 1  # increased when a policy changes; part of the identity of a record
DRAWN_POSITIONS = 2048  # positions that "randomized" draws from, unless the encoding is a table with a number of rows


def apply_policy(policy: str, trained: PositionalEncoding, factor: float) -> PositionalEncoding:
    """Return the encoding that replaces a trained one under a policy.

    Args:
        policy: the name of the policy. "raw": the trained encoding. "pi" (arXiv:2306.15595), "ntk", "dynamic_ntk",
            "yarn" (arXiv:2309.00071), "llama3" (of Llama 3.1): RoPE with lower frequencies, for models trained with
            `rope`. "randomized" (arXiv:2305.16843): the trained encoding, at random increasing positions among as many
            as its table has, or 2,048. "self_extend[:GROUP:WINDOW]" (arXiv:2401.01325), "rerope[:WINDOW]",
            "leaky_rerope[:WINDOW:K]" (kexue.fm/archives/9708): RoPE with smaller distances of far pairs, for causal
            models trained with `rope`; by default WINDOW is half of the training length, GROUP such that distances end
            at 2/3 of it, and K 16.
        factor: the ratio of test length to training length, >= 1.

    Raises:
        ValueError: the policy is not defined for this encoding.
    """
    name, numbers = parse_policy(policy)
    if name == "raw":
        return trained
    if name == "randomized":
        rows = len(trained.table) if isinstance(trained, Table) else DRAWN_POSITIONS
        return Randomized(trained.sizes, f"randomized {trained.name}", lambda sizes: trained, rows)
    length = trained.sizes.length
    window = default_window(length)
    factories: dict[str, Callable[..., PositionalEncoding]] = {
        "pi": partial(InterpolatedRoPE, factor=factor),
        "ntk": partial(NTKRoPE, factor=factor),
        "dynamic_ntk": DynamicNTKRoPE,
        "yarn": partial(Yarn, factor=factor),
        "llama3": partial(Yarn, factor=factor, **LLAMA3),
        "self_extend": partial(SelfExtend, group=default_group(length, factor), window=window),
        "rerope": partial(ReRoPE, window=window),
        "leaky_rerope": partial(LeakyReRoPE, window=window),
    }
    if type(trained) is not RoPE:
        raise OptionError(f"policy={policy} is defined for rope, got {trained.name}: use raw")
    if name in FAR_POLICIES and not trained.sizes.causal:
        raise OptionError(f"policy={policy} is defined for causal attention only, this is bidirectional: use raw")
    option_names = map(str.lower, FAR_POLICIES.get(name, ()))
    options: dict[str, int | None] = dict(zip(option_names, numbers, strict=False))  # all are given, or none
    options["rotary_dim"] = None if trained.rotary_dim == trained.sizes.head_dim else trained.rotary_dim
    return factories[name](trained.sizes, theta=trained.theta, pairing=trained.pairing, **options)
