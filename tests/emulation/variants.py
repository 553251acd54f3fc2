"""Count how often kernels are compiled anew, under the stand-in for a driver."""

import torch

from benchmarks.ahead import KERNELS
from emulation.driver import standing_in
from pe_lab.attention import triton as kernels
from pe_lab.attention.dropout import Dropout
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.terms import Rotary, Terms

Sizes = list[tuple[int, int, int]]


def count_variants(sizes: Sizes, head_dim: int, architecture: str = "sm_90") -> dict[str, int]:
    """Return how many versions of every kernel a step of attention needs, for all sizes (B, T, H) together."""
    device = (architecture, False)
    for kernel in KERNELS.values():
        kernel.device_caches.pop(device, None)
    with standing_in(architecture, compiles=False):
        for B, T, H in sizes:
            q, k, v = torch.zeros(B, T, 3, H, head_dim).permute(2, 0, 3, 1, 4).unbind()
            cos = torch.zeros(1, 1, T, head_dim // 2, requires_grad=True)
            terms = Terms(
                rotary_q=Rotary(cos, cos),
                distance_bias=torch.zeros(H, 2 * T - 1, requires_grad=True),
                decay=torch.zeros(B, H, T),
            )
            inputs = [x.requires_grad_() for x in (q, k, v)]
            layout = Layout.of_lengths(torch.full((B,), T), T, causal=True)
            kernels.attend(*inputs, terms, layout, Dropout(0.1, torch.tensor(0))).sum().backward()
    made = {name: kernel.device_caches.pop(device, None) for name, kernel in KERNELS.items()}
    return {name: len(caches[0]) for name, caches in made.items() if caches}


def count_by_stride(offsets: list[int], head_dim: int, architecture: str = "sm_90") -> int:
    """Return how many versions of `forward` queries need whose rows lie head_dim + offset numbers apart."""
    forward = KERNELS["forward"]
    device = (architecture, False)
    forward.device_caches.pop(device, None)
    with standing_in(architecture, compiles=False), torch.no_grad():
        for offset in offsets:
            q = torch.zeros(1, 1, 40, head_dim + offset)[..., :head_dim]
            k = torch.zeros(1, 1, 40, head_dim)
            kernels.attend(q, k, k, Terms(), Layout.of_lengths(torch.tensor([40]), 40, causal=True))
    return len(forward.device_caches.pop(device)[0])
