"""Attention by emulated kernels compared with the reference: values, all gradients, and what went wrong on the way."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emulation.driver import standing_in
from emulation.launch import Emulator
from pe_lab.attention import attend, reference
from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms

EPSILON = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}  # half the distance of 1 to the next number
Leaves = dict[str, Tensor]
Edit = Callable[[str, str], str]


@dataclass(frozen=True)
class Case:
    """One attention call and its backward pass.

    Args:
        family: of the terms, one of FAMILIES.
        architecture: sm_80 or sm_90.
        dtype: of queries, keys and values.
        batch, heads, length, head_dim: their shape.
        causal: whether tokens see earlier ones only.
        packed: whether sequences hold two documents and end in padding.
        dropout: of the weights.
        strided: whether queries, keys and values are views of one tensor [B, T, 3, H, d], as in a model.
    """

    family: str
    architecture: str = "sm_90"
    dtype: torch.dtype = torch.bfloat16
    batch: int = 1
    heads: int = 2
    length: int = 65
    head_dim: int = 64
    causal: bool = True
    packed: bool = False
    dropout: float = 0.0
    strided: bool = True

    def __str__(self) -> str:
        words = [self.architecture, self.family, str(self.dtype).removeprefix("torch.")]
        words += [f"T={self.length}", f"d={self.head_dim}", "causal" if self.causal else "both"]
        return " ".join(words + ["packed"] * self.packed + ["dropout"] * bool(self.dropout))


@dataclass
class Outcome:
    """What a case gave.

    Args:
        errors: of the output and of every gradient, relative to its norm, and their bounds.
        hazards: what went wrong, with line and count.
        remarks: what PTX does not promise and ptxas is known to handle, likewise.
        launches, steps, threads: how many launches, instructions, and threads per instruction on average.
    """

    errors: dict[str, tuple[float, float]]
    hazards: dict[tuple[str, str], int]
    remarks: dict[tuple[str, str], int]
    launches: int
    steps: int
    threads: float
    kernels: set[str] = field(default_factory=set)

    @property
    def wrong(self) -> list[str]:
        """What is not as it should be, in words."""
        beyond = [f"{name} errs by {e:.1e}, more than {b:.1e}" for name, (e, b) in self.errors.items() if not e <= b]
        return beyond + [f"{text} ({line}, {count} times)" for (text, line), count in self.hazards.items()]


# -- terms -------------------------------------------------------------------------------------------------------------


def _table(heads: int, case: Case) -> Tensor:
    return torch.randn(heads, 2 * case.length - 1)


def _nothing(case: Case) -> Leaves:
    return {}


def _bias(case: Case) -> Leaves:
    return {"distance_bias": _table(case.heads, case)}


def _gate(case: Case) -> Leaves:
    return {"distance_bias": _table(1, case), "logit_factors": _table(case.heads, case)}


def _decay(case: Case) -> Leaves:
    return {"decay": -torch.rand(case.batch, case.heads, case.length).cumsum(-1)}


def _rotation(case: Case) -> Leaves:
    angle = torch.randn(1, case.heads, case.length, case.head_dim // 2)
    return {**_bias(case), "cos": angle.cos(), "sin": angle.sin(), "gain": 1 + torch.rand(1, case.head_dim)}


def _rotations(case: Case) -> Leaves:
    """Tables of every sequence and head, as a projection of tokens [B, T, H, d/2] has them."""
    angle = torch.randn(case.batch, case.length, case.heads, case.head_dim // 2).transpose(1, 2)
    return {**_bias(case), "cos": angle.cos(), "sin": angle.sin(), "gain": 1 + torch.rand(1, case.head_dim)}


FAMILIES: dict[str, tuple[Callable[[Case], Leaves], Stick | None]] = {
    "nothing": (_nothing, None),
    "bias": (_bias, None),
    "gate": (_gate, None),
    "decay": (_decay, None),
    "rotation": (_rotation, None),
    "rotation of sequences": (_rotations, None),
    "window": (_bias, None),
    "stick": (_nothing, Stick("nearest", True, "drop")),
    "stick bias": (_bias, Stick("nearest", True, "own")),
    "stick first": (_bias, Stick("first", False, "own")),
}


def terms(case: Case, leaves: Leaves) -> Terms:
    """Return the terms that these tensors make."""
    stick = FAMILIES[case.family][1]
    given = {} if stick is None else {"normalizer": stick}
    if case.family == "window":  # tiles are skipped, cut and whole
        given["window"] = tuple((case.length // 3 + 1, None)[head % 2] for head in range(case.heads))
    if "cos" in leaves:
        rotary = Rotary(leaves["cos"], leaves["sin"])
        return Terms(
            rotary_q=rotary, rotary_k=rotary, gain=leaves["gain"], distance_bias=leaves["distance_bias"], **given
        )
    return Terms(**leaves, **given)


def layout(case: Case) -> Layout:
    """Return the layout of whole sequences, or of two documents and padding in each."""
    if not case.packed:
        return Layout.of_lengths(torch.full((case.batch,), case.length), case.length, case.causal)
    segment = torch.zeros(case.batch, case.length, dtype=torch.long)
    segment[:, case.length // 3 :] = 1
    segment[:, case.length - case.length // 8 :] = PADDING
    return Layout(torch.arange(case.length)[None], segment, case.causal)


# -- comparison --------------------------------------------------------------------------------------------------------


def check(case: Case, edit: Edit | None = None, backward: bool = True) -> Outcome:
    """Run a case on the emulator, and compare it with the reference in float64.

    An error may be four times that of the reference in the case's dtype, two roundings to that dtype, and eight to
    float32, in which sums are computed; and that of a gradient as much more as the output's error explains: see
    _through_sums.

    Args:
        edit: changes a kernel's PTX, given its name and its text.
        backward: whether gradients are computed as well.
    """
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # fills new tensors with NaN
    packed = torch.randn(case.batch, case.length, 3, case.heads, case.head_dim).to(case.dtype)
    inputs = packed.permute(2, 0, 3, 1, 4)
    inputs = inputs if case.strided else inputs.contiguous()
    leaves = FAMILIES[case.family][0](case)
    is_token = (layout(case).segment != PADDING)[:, None, :, None]
    upstream: Tensor | None = torch.randn(case.batch, case.heads, case.length, case.head_dim).to(case.dtype) * is_token
    if not backward:
        upstream = None
    exact = _step(case, inputs, leaves, upstream, "reference", torch.float64)
    judge = _step(case, inputs, leaves, upstream, "reference", case.dtype)
    emulator = Emulator(edit)
    with standing_in(case.architecture, execute=emulator) as made:
        found = _step(case, inputs, leaves, upstream, "triton", case.dtype)
    through = {} if upstream is None else _through_sums(case, inputs, leaves, upstream, found["out"] - exact["out"])
    largest = max(float(truth.norm()) for truth in exact.values())
    errors = {}
    for name, truth in exact.items():
        size = float(truth.norm())
        error, own = (float((x[name].double() - truth).norm()) for x in (found, judge))
        bound = 4 * own + (2 * EPSILON[case.dtype] + 8 * EPSILON[torch.float32]) * (size + largest)
        bound += through.get(name, 0.0)
        size = size if size > 1e-3 * largest else largest  # a gradient that cancels has no relative error
        errors[name] = error / size, bound / size
    per_step = emulator.threads / max(emulator.steps, 1)
    ran = {launch.kernel for launch in made}
    hazards = emulator.hazards
    return Outcome(errors, dict(hazards), dict(hazards.remarks), emulator.launches, emulator.steps, per_step, ran)


def _step(
    case: Case, inputs: Tensor, leaves: Leaves, upstream: Tensor | None, implementation: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the output, where it means something, and, given its gradient, those of all inputs."""
    qkv, own = _wanted(inputs, leaves, dtype)
    dropout = Dropout(case.dropout, torch.tensor(3)) if case.dropout else None
    out = attend(*qkv, terms(case, own), layout(case), implementation, dropout)
    found: dict[str, Tensor] = {}
    if upstream is not None:
        gradients = torch.autograd.grad(out, [*qkv, *own.values()], upstream.to(dtype))
        found = dict(zip(("dq", "dk", "dv", *(f"d{name}" for name in own)), gradients, strict=True))
    is_token = (layout(case).segment != PADDING)[:, None, :, None]
    return {"out": out.detach().where(is_token, 0), **found}


def _wanted(inputs: Tensor, leaves: Leaves, dtype: torch.dtype) -> tuple[list[Tensor], Leaves]:
    """Return q, k, v in a dtype and the terms in it or float32, as tensors that want a gradient."""
    wide = torch.promote_types(dtype, torch.float32)
    own = {name: x.detach().to(wide).requires_grad_() for name, x in leaves.items()}
    return [x.detach().to(dtype).requires_grad_() for x in inputs], own


def _through_sums(case: Case, inputs: Tensor, leaves: Leaves, upstream: Tensor, error: Tensor) -> dict[str, float]:
    """Return by how much the gradients of softmax attention change, in norm, through an error of its output.

    The gradient of logits is dz_ij = weight_ij (dweight_ij - out_i . grad_i), for which the kernels, like others of
    their kind, read the rounded output. Where one key has nearly all the weight, both terms cancel and the rounding
    remains.
    """
    if FAMILIES[case.family][1] is not None:
        return {}
    (q, k, _), own = _wanted(inputs, leaves, torch.float64)
    given = terms(case, own)
    z = reference.logits(q, k, given, layout(case))
    weights = reference.attention_weights(q, k, given, layout(case)).detach()
    shift = (error * upstream.double()).sum(-1, keepdim=True)
    names = ["dq", "dk", *(f"d{name}" for name in own)]
    changes = torch.autograd.grad(z, [q, k, *own.values()], -weights * shift)
    return {name: float(change.norm()) for name, change in zip(names, changes, strict=True)}
