"""Attention calls under the driver stand-in, without compiling: what is launched again, and what waits."""

import torch

from emulation.cases import FAMILIES, Case, layout, terms
from emulation.driver import Launch, standing_in
from emulation.synchronisations import Synchronisations
from pe_lab.attention import attend
from pe_lab.encodings.layout import Layout

FLAGS = ("one_segment", "right_padded", "packed", "runs_on", "max_distance", "pos_range")


def _inputs(case: Case) -> tuple[torch.Tensor, ...]:
    shape = (case.batch, case.length, 3, case.heads, case.head_dim)
    return tuple(x.requires_grad_() for x in torch.randn(shape).to(case.dtype).permute(2, 0, 3, 1, 4))


def _known(case: Case) -> Layout:
    """Return the layout, with its flags computed."""
    made = layout(case)
    for flag in FLAGS:
        getattr(made, flag)
    return made


def repeated(times: int) -> list[list[Launch]]:
    """Return the launches of the same step, some times over."""
    case = Case("bias", length=150)
    inputs, leaves, known, found = _inputs(case), FAMILIES["bias"][0](case), _known(case), []
    leaves = {name: x.requires_grad_() for name, x in leaves.items()}
    for _ in range(times):
        with standing_in(compiles=False) as made:
            attend(*inputs, terms(case, leaves), known, "triton").sum().backward()
        found.append(list(made))
    return found


def waits() -> dict[str, dict[str, int]]:
    """Return the synchronisations of attention and its backward pass, by family of terms and mask."""
    found = {}
    for family in FAMILIES:
        for causal in (True, False):
            case = Case(family, length=150, causal=causal)
            leaves = {name: x.requires_grad_() for name, x in FAMILIES[family][0](case).items()}
            inputs, known, given = _inputs(case), _known(case), terms(case, leaves)
            with standing_in(compiles=False), Synchronisations() as counter:
                attend(*inputs, given, known, "triton").sum().backward()
            found[f"{family} {'causal' if causal else 'both'}"] = dict(counter.counts)
    return found
