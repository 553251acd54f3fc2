"""Attention in hand-written Triton kernels: O(T) memory, gradients for every term, deterministic results.

rotation.py rotates queries and keys, softmax.py and stick.py are the attention kernels, *operators.py register them
with PyTorch, launch_parameters.py has their tile sizes. On a CPU only Triton's interpreter runs them, with
TRITON_INTERPRET=1.
"""

import importlib.util
import os
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from pe_lab.attention.dropout import Dropout
from pe_lab.attention.reference import logit_scale
from pe_lab.attention.shapes import fields_without, first_present
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Rotary, Stick, Terms

revision = 3  # increased when the numbers change; part of the identity of a result
low_precision_revision = revision
MAX_HEAD_DIM = 128  # head dimensions
MAX_WINDOW = 2**30  # keys, which is as good as no limit
MAX_HEADS = 65535  # heads of all sequences together: the second axis of a grid

# The versions whose output for these kernels was examined. Others compute wrong numbers in silence where they have one
# of these faults, all of Hopper's asynchronous products (wgmma) in kernels with several products, as every kernel of
# softmax.py and stick.py is (github.com/triton-lang/triton/issues):
#   8554: one loaded tile feeds two products (backward_keys and backward_queries read q, k, v and the gradient twice);
#   9433: registers that a product still reads are overwritten (weights, which are an operand from registers: forward,
#         backward_keys, stick_forward). Triton and ptxas before CUDA 13.3 each have a part in it;
#   10486, 11366: access beyond shared memory with 3.6 and 3.7.1 (several products, 32 wide tiles, 4 warps: head_dim 32,
#         and tiles of 32 keys). The same PTX is right with a later ptxas, so that no examination of the PTX shows it.
# 3.7 brings ptxas 12.8 for GPUs before Blackwell: the self-test on the device decides (selftest_verdict.py), and
# TRITON_PTXAS_PATH takes another ptxas.
EXAMINED_VERSION = "3.7."
SUPPORTED_TERMS = (
    *("lift", "rotary_q", "rotary_k", "gain", "scale", "window", "distance_bias", "logit_factors", "clip", "decay"),
    *("normalizer", "rotary_v", "rotary_out", "carried"),
)
UNSUPPORTED_TERMS = fields_without(SUPPORTED_TERMS)
STICK_TERMS = (
    *("lift", "rotary_q", "rotary_k", "gain", "scale", "distance_bias", "clip"),
    *("normalizer", "rotary_v", "rotary_out", "carried"),
)
UNSUPPORTED_BY_STICK = tuple(name for name in SUPPORTED_TERMS if name not in STICK_TERMS)
ANY_VERSION = "PE_LAB_TRITON_ANY"  # set to 1, it allows every version


def refusal_reason(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
    """Return the reason why these terms cannot be computed here, or None."""
    if layout.keys is not None:
        return "triton takes as many queries as keys, these have keys of earlier tokens"
    if isinstance(terms.normalizer, Stick):
        if name := first_present(UNSUPPORTED_BY_STICK, terms):
            return f"the kernels of stick-breaking have no place for {name}"
        if dropout is not None:
            return "the kernels of stick-breaking drop no weights"
    if name := first_present(UNSUPPORTED_TERMS, terms):
        return f"the kernels have no place for {name}, which needs T x T numbers"
    for name, axes in (("gain", 2), ("distance_bias", 2), ("logit_factors", 2)):
        table = getattr(terms, name)
        if table is not None and table.dim() > axes:
            return f"the kernels take one {name} for all sequences"
    if q.dtype not in (torch.float32, torch.bfloat16):
        return f"the kernels take float32 and bfloat16, got {str(q.dtype).removeprefix('torch.')}"
    head_dim = q.shape[-1] if terms.lift is None else terms.lift.head_dim
    if terms.carried is not None:  # values have its dimensions too
        head_dim = max(head_dim, q.shape[-1] + terms.carried.vectors.shape[-1])
    if head_dim > MAX_HEAD_DIM:
        return f"the kernels take a head_dim of at most {MAX_HEAD_DIM}, got {head_dim}"
    if q.shape[0] * q.shape[1] > MAX_HEADS:
        return f"the kernels take at most {MAX_HEADS} heads in a batch, got {q.shape[0] * q.shape[1]}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if q.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "the kernels need a CUDA device, these tensors are on a CPU"
    if q.device.type == "cuda" and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or later"
    if (
        q.device.type == "cuda"
        and not triton_version().startswith(EXAMINED_VERSION)
        and os.environ.get(ANY_VERSION) != "1"
    ):
        return (
            f"the kernels were examined with triton {EXAMINED_VERSION}x, got {triton_version()}: install that, or set "
            f"{ANY_VERSION}=1"
        )
    if q.device.type not in ("cpu", "cuda"):
        return f"the kernels need a CUDA device, these tensors are on {q.device.type}"
    by_place = [name for name in ("distance_bias", "logit_factors", "window") if getattr(terms, name) is not None]
    if by_place and not layout.runs_on:
        return (
            f"the kernels read {by_place[0]} by the distance in the sequence, and these positions do not run on by one"
        )
    return None


def triton_version() -> str:
    """Return the version of the package triton."""
    import triton

    return str(triton.__version__)


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Tensor:
    """Return attention of q [B, H, T, d] over k and v; see pe_lab.attention.attend."""
    with torch.autocast(q.device.type, enabled=False):
        scale, e = logit_scale(q, terms), v.shape[-1]
        if terms.lift is not None:
            q, k = terms.lift(q, k)
        q, k = _rotate_and_scale(q, terms.rotary_q, terms.gain), _rotate_and_scale(k, terms.rotary_k, terms.gain)
        v = _rotate_and_scale(v, terms.rotary_v, None)
        q, k, v = _with_zeros(q, k, v)
        out = _attend_rotated(q, k, v, replace(terms, scale=scale), layout, dropout)
        return _rotate_and_scale(out[..., :e], terms.rotary_out, None)


def _with_zeros(*tensors: Tensor) -> list[Tensor]:
    """Return tensors with as many dimensions as the one that has most; zeros change neither a product nor the rest."""
    most = max(x.shape[-1] for x in tensors)
    return [x if x.shape[-1] == most else torch.nn.functional.pad(x, (0, most - x.shape[-1])) for x in tensors]


def _attend_rotated(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None) -> Tensor:
    """Return attention of queries and keys that are rotated already."""
    needs_no_segments = layout.one_segment or (layout.causal and layout.right_padded)
    segment = None if needs_no_segments else layout.segment.expand(len(q), -1)
    if isinstance(terms.normalizer, Stick):
        return _stick(q, k, v, terms, terms.normalizer, segment, layout.causal)
    return _softmax(q, k, v, terms, segment, layout.causal, dropout)


def _softmax(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, segment: Tensor | None, causal: bool, dropout: Dropout | None
) -> Tensor:
    from pe_lab.attention.triton.operators import softmax_attention

    bias, gate, decay = (
        None if x is None else x.float() for x in (terms.distance_bias, terms.logit_factors, terms.decay)
    )
    decay = None if decay is None else decay.expand(q.shape[:3])
    window = None if terms.window is None else _windows(terms.window, q.shape[1], q.device)
    seed, p = (None, 0.0) if dropout is None else (dropout.seed, dropout.p)
    out: Tensor
    out, _ = softmax_attention(q, k, v, bias, gate, decay, segment, seed, window, logit_scale(q, terms), causal, p)
    return out


def _windows(window: tuple[int | None, ...], heads: int, device: torch.device) -> Tensor:
    """Return the window of every head, [H] int32; made on the device, so that nothing is copied there."""
    sizes = [MAX_WINDOW if size is None else min(size, MAX_WINDOW) for size in window]
    sizes_of_heads = sizes if len(window) == heads else sizes * heads
    runs = [(size, len(list(members))) for size, members in groupby(sizes_of_heads)]
    return torch.cat([torch.full((count,), size, dtype=torch.int32, device=device) for size, count in runs])


def _stick(q: Tensor, k: Tensor, v: Tensor, terms: Terms, kind: Stick, segment: Tensor | None, causal: bool) -> Tensor:
    from pe_lab.attention.triton.stick_operators import stick_attention

    bias = None if terms.distance_bias is None else terms.distance_bias.float()
    nearest, to_itself = kind.order == "nearest", kind.remainder == "own"

    def broken(down: bool, side: int, include_self: bool) -> Tensor:
        out: Tensor
        out, _ = stick_attention(q, k, v, bias, segment, logit_scale(q, terms), down, side, include_self, to_itself)
        return out

    if causal:
        return broken(nearest, -1, kind.include_self)
    if not nearest:
        return broken(False, 0, kind.include_self)
    return (broken(True, -1, kind.include_self) + broken(False, 1, False)) / 2  # the own key is on the left


def _rotate_and_scale(x: Tensor, rotary: Rotary | None, gain: Tensor | None) -> Tensor:
    """Return queries or keys [B, H, T, d], rotated and scaled by the gain."""
    if rotary is None:
        return x if gain is None else (x * gain[:, None]).to(x.dtype)
    from pe_lab.attention.triton.rotation import rotate

    r = 2 * rotary.cos.shape[-1]
    if r < x.shape[-1]:  # the other dimensions are not rotated
        gain_of_rotated, gain_of_rest = (None, None) if gain is None else (gain[..., :r], gain[..., r:])
        return torch.cat(
            (_rotate_and_scale(x[..., :r], rotary, gain_of_rotated), _rotate_and_scale(x[..., r:], None, gain_of_rest)),
            -1,
        )
    gain = None if gain is None else gain.float()
    rotated: Tensor = rotate(x, rotary.cos.float(), rotary.sin.float(), gain, rotary.pairing == "half")
    return rotated
