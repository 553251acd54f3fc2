"""Lists of encodings in docs/: by what encodings declare, by the terms that they make, and by what kernels refuse."""

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple
from unittest import mock

from replication_tables import wrapped


class Small(NamedTuple):
    """An encoding in a small model.

    Attributes:
        encoding: the encoding of the first layer, which declares what holds of all.
        terms: the terms of each layer, for two sequences.
        refusals: the reasons why the Triton kernels refuse terms of a layer, machines apart.
    """

    encoding: Any
    terms: list[Any]
    refusals: list[str]


@cache
def small_encodings() -> dict[str, Small]:
    """Return each encoding with its default options in a small model, by name."""
    import torch

    from pe_lab.attention import attend, triton
    from pe_lab.check.case import EncodingCase, whole_layout
    from pe_lab.data.seeding import make_generator
    from pe_lab.encodings.named import encodings
    from pe_lab.encodings.stack import Stack

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=make_generator(0, "lists"))

    found = {}
    for name, make in encodings().items():
        case = EncodingCase(name, partial(make, name=name))
        sizes = case.sizes(grid_width=case.grid_width)
        stack = Stack.build(case.make, sizes, case.depth)
        x, positions = stack(
            random(2, sizes.length, sizes.width), whole_layout(2, sizes.length, grid_width=case.grid_width)
        )
        terms, refusals = [], []
        for layer in range(case.depth):
            inputs = positions.layer(layer, x)
            q = random(2, sizes.num_heads, sizes.length, sizes.head_dim)
            attend(q, q, q, inputs.terms, inputs.layout, "reference")  # which the next layer may read
            # as on a machine that has the kernels
            with mock.patch.dict(os.environ, TRITON_INTERPRET="1"), mock.patch("importlib.util.find_spec"):
                refusals.append(triton.refusal_reason(q, inputs.terms, inputs.layout))
            terms.append(inputs.terms)
        found[name] = Small(stack.first, terms, [reason for reason in dict.fromkeys(refusals) if reason])
    return found


def listed(holds: Callable[[Small], bool]) -> str:
    """Return the names of the encodings of which something holds, as a paragraph."""
    return wrapped(", ".join(f"`{name}`" for name, small in small_encodings().items() if holds(small)) + ".")


def declared(name: str) -> str:
    """Return the names of the encodings that declare something."""
    return listed(lambda small: bool(getattr(small.encoding, name)))


def with_term(*names: str) -> str:
    """Return the names of the encodings that make one of some terms in a layer."""
    return listed(lambda small: any(getattr(terms, name) is not None for terms in small.terms for name in names))


def rotations_of_sequences() -> str:
    """Return the names of the encodings that rotate each sequence in a way of its own."""
    from pe_lab.encodings.terms import ROTATIONS

    def rotates_each(small: Small) -> bool:
        rotations = [getattr(terms, name) for terms in small.terms for name in ROTATIONS]
        return any(len(rotary.cos) > 1 for rotary in rotations if rotary is not None)

    return listed(rotates_each)


def kernel_refusals() -> str:
    """Return what the Triton kernels refuse, an item for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, small in small_encodings().items():
        for reason in small.refusals:
            by_reason.setdefault(reason, []).append(f"`{name}`")
    return "\n".join(wrapped(f"- {', '.join(names)}: {reason}.") for reason, names in by_reason.items())
