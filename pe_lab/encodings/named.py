"""Encodings by their names in conf/pe, without the configuration."""

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from pe_lab.encodings import public
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.families.rotary_scaled import LLAMA3
from pe_lab.encodings.options import OptionError, closest_name, is_integer
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import Stack

VARIANTS: dict[str, Callable[..., PositionalEncoding]] = {  # classes with the options that conf/pe gives them
    "dape": partial(public.Dape, encoding=public.KerpleLog),
    "dape_v2": partial(public.DapeV2, encoding=public.KerpleLog),
    "exposb_literal": partial(public.ExpoSB, form="literal"),
    "heads": partial(public.Heads, parts=[public.Alibi, public.PositionalEncoding]),
    "interleave": partial(public.Interleave, parts=[public.RoPE, public.PositionalEncoding]),
    "learnable_per_layer": partial(public.Learnable, at="every_layer", share="none"),
    "llama3": partial(public.Yarn, factor=8.0, **LLAMA3),
    "nape": partial(public.Heads, parts=[partial(public.Alibi, slopes="harmonic"), public.PositionalEncoding]),
    "randomized_alibi": partial(public.Randomized, encoding=public.Alibi),
    "randomized_learnable": partial(public.Randomized, encoding=partial(public.Learnable, max_len=2048)),
    "randomized_rope": partial(public.Randomized, encoding=public.RoPE),
    "randomized_sinusoidal": partial(public.Randomized, encoding=public.Sinusoidal),
    "rnope_swa": partial(
        public.Interleave,
        parts=[
            partial(public.Sum, parts=[public.RoPE, partial(public.Window, window=4096)]),
            public.PositionalEncoding,
        ],
        layers=[3, 1],
    ),
    "rse_literal": partial(public.RotaryStickBreaking, order="first"),
    "shape": partial(public.Shape, encoding=public.Sinusoidal),
    "sinusoidal_qk": partial(public.Sinusoidal, at="query_key"),
    "sum": partial(public.Sum, parts=[public.RoPE, public.Alibi]),
}


@cache
def encodings() -> dict[str, Callable[..., PositionalEncoding]]:
    """Return a factory of each encoding by name; it takes sizes, and options by keyword."""
    kinds: dict[str, Callable[..., PositionalEncoding]] = dict(VARIANTS)
    for name in public.__all__:
        kind = getattr(public, name)
        if not (isinstance(kind, type) and issubclass(kind, PositionalEncoding)):
            continue
        default = inspect.signature(kind).parameters["name"].default
        if default is not inspect.Parameter.empty:
            kinds.setdefault(default, kind)
    return dict(sorted(kinds.items()))


def make(
    name: str,
    *,
    width: int,
    num_heads: int,
    depth: int,
    length: int,
    causal: bool = True,
    grid_width: int | None = None,
    marks: int | None = None,
    head_dim: int | None = None,
    **options: Any,
) -> Stack:
    """Return the encodings of all layers of a model, by the name of a file in conf/pe: `make("rope", width=512, ...)`.

    Args:
        name: the name of an encoding.
        width, num_heads, length, causal, grid_width, marks: sizes of the model, see `Sizes`.
        depth: the number of layers of the model.
        head_dim: the number of dimensions of a head; None: width / num_heads.
        options: the options of the encoding, as its class documents them; parts=["rope", "alibi"] of a combination are
            names, or callables that make an encoding from sizes.

    Raises:
        ValueError: there is no such encoding; a size or an option is out of range; the encoding is not defined for
            such a model.
    """
    encoding = factory(name)
    accepted = inspect.signature(encoding).parameters
    for option in options:
        if option not in accepted or option in ("sizes", "name"):
            allowed = ", ".join(key for key in accepted if key not in ("sizes", "name")) or "none"
            raise OptionError(f"options of {name} must be among {allowed}, got {option}")
    required = {"width": width, "num_heads": num_heads, "depth": depth, "length": length}
    optional = {"grid_width": grid_width, "marks": marks, "head_dim": head_dim}
    for size, value in (required | {key: value for key, value in optional.items() if value is not None}).items():
        if not is_integer(value) or value < 1:
            raise ValueError(f"{size} must be an integer of at least 1, got {value!r}")
    if not isinstance(causal, bool):
        raise ValueError(f"causal must be True or False, got {causal!r}")
    if "parts" in options:
        options["parts"] = [_maker(part) for part in _as_list(options["parts"])]
    if "encoding" in options and not callable(options["encoding"]):
        raise OptionError(f"encoding must be what makes an encoding from sizes, as RoPE, got {options['encoding']!r}")
    sizes = Sizes(width, num_heads, length, causal, grid_width, marks=marks, given_head_dim=head_dim)
    return Stack.build(partial(encoding, name=name, **options), sizes, depth)


def factory(name: Any) -> Callable[..., PositionalEncoding]:
    """Return the factory of the encoding with this name.

    Raises:
        ValueError: there is none.
    """
    makers = encodings()
    if not isinstance(name, str) or name not in makers:
        rule = f"name must be one of {', '.join(makers)}"
        proposal = closest_name(name, list(makers)) if isinstance(name, str) else ""
        raise ValueError(f"name={name!r}: did you mean {proposal}? {rule}" if proposal else f"{rule}, got {name!r}")
    return makers[name]


def _maker(part: Any) -> Callable[[Sizes], PositionalEncoding]:
    return part if callable(part) else partial(factory(part), name=part)


def _as_list(parts: Any) -> list[Any]:
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise OptionError(f"parts must be a list of encodings that is not empty, got {parts!r}")
    return list(parts)
