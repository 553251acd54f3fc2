"""Attention in hand-written Triton kernels: O(T) memory, gradients for every term, the same bits for the same inputs.

rotation.py turns queries and keys once, softmax.py is attention itself, operators.py makes it known to PyTorch,
blocks.py says how it is launched. On a CPU only Triton's interpreter runs it, with TRITON_INTERPRET=1.
"""

import importlib.util
import os

import torch
from torch import Tensor

from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.base import Rotary, Stick, Terms
from pe_lab.encodings.layout import Layout

revision = 1  # raised when the numbers change; part of a cell's identity
LARGEST_HEAD = 128


def refuses(q: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> str | None:
    """Why these terms cannot be computed here, or None."""
    if isinstance(terms.weights, Stick):
        return "there is no Triton kernel for stick-breaking in this version"
    for name in ("score", "bias_full", "values"):
        if getattr(terms, name) is not None:
            return f"the kernels have no place for {name}, which needs T x T numbers"
    if q.dtype not in (torch.float32, torch.bfloat16):
        return f"the kernels take float32 and bfloat16, got {str(q.dtype).removeprefix('torch.')}"
    if q.shape[-1] > LARGEST_HEAD:
        return f"the kernels take a head_dim of at most {LARGEST_HEAD}, got {q.shape[-1]}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if q.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "the kernels need a CUDA device, these tensors are on a CPU"
    if q.device.type == "cuda" and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or later"
    if q.device.type not in ("cpu", "cuda"):
        return f"the kernels need a CUDA device, these tensors are on {q.device.type}"
    tables = [name for name in ("bias", "gate") if getattr(terms, name) is not None]
    if tables and not layout.runs_on:
        return f"the kernels read {tables[0]} by the distance in the sequence, and these positions do not run on by one"
    return None


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, dropout: Dropout | None = None) -> Tensor:
    """Attention of q [B, H, T, d] over k and v; see pe_lab.attention.attend."""
    from pe_lab.attention.triton.operators import softmax_attention

    with torch.autocast(q.device.type, enabled=False):
        q, k = _meet(q, terms.rotary_q, terms.gain), _meet(k, terms.rotary_k, terms.gain)
        bias, gate, decay = (None if x is None else x.float() for x in (terms.bias, terms.gate, terms.decay))
        whole = layout.one_segment or (layout.causal and layout.right_padded)
        B, H, _, d = q.shape
        if decay is not None:
            decay = decay.expand(q.shape[:3])
        out, _ = softmax_attention(
            q, k, v, bias, gate, decay,
            segment=None if whole else layout.segment.expand(B, -1),
            keys=None if dropout is None else dropout.keys(B, H),
            scale=d**-0.5 if terms.scale is None else terms.scale,
            causal=layout.causal,
            p=0.0 if dropout is None else dropout.p,
        )  # fmt: skip
    return out


def _meet(x: Tensor, rotary: Rotary | None, gain: Tensor | None) -> Tensor:
    """Queries or keys [B, H, T, d] as they meet."""
    if rotary is None:
        return x if gain is None else (x * gain[:, None]).to(x.dtype)
    from pe_lab.attention.triton.rotation import rotate

    gain = None if gain is None else gain.float()
    return rotate(x, rotary.cos.float(), rotary.sin.float(), gain, rotary.pairing == "half")
