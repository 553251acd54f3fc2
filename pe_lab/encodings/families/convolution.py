"""Position from convolutions over neighbouring tokens."""

from itertools import product

import torch
from torch import Tensor, nn

from pe_lab.encodings.base import PositionalEncoding, at_least_float32
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import NonNegative
from pe_lab.encodings.sizes import Sizes

NO_SEGMENT = torch.iinfo(torch.long).min  # the segment before the first slot


def convolve_documents(x: Tensor, weight: Tensor, segment: Tensor) -> Tensor:
    """Return the sum over s < K of weight[s] * x_(i-s) within each document, [B, S, ...].

    Args:
        x: [B, S, ...] vectors of tokens that follow each other.
        weight: [K, ...] weights; row 0 is for the token itself.
        segment: [B, S] documents of the tokens, as in a layout.
    """
    length, inner = x.shape[1], x.dim() - 2
    out = weight[0] * x
    for s in range(1, len(weight)):
        source = nn.functional.pad(x, (*[0, 0] * inner, s, 0))[:, :length]  # the token s before each
        source_segment = nn.functional.pad(segment, (s, 0), value=NO_SEGMENT)[:, :length]
        same_document = (source_segment == segment).reshape(*segment.shape, *[1] * inner)
        out = out + weight[s] * source.where(same_document, 0)
    return out


def causal_convolution(x: Tensor, weight: Tensor, layout: Layout, name: str) -> Tensor:
    """Return the causal convolution of each token of a layout with those before it in its document, [B, T, C].

    Args:
        x: [B, T, C] vectors of the tokens of `layout`.
        weight: [K, C] weights; row 0 is for the token itself.
        name: the name under which x is stored for later tokens.
    """
    if layout.keys is None:
        return convolve_documents(x, weight, layout.segment)
    count = x.shape[1]
    reached = layout.with_earlier(name, x)[:, 1 - len(weight) - count :]
    return convolve_documents(reached, weight, layout.keys.last(reached.shape[1]).segment)[:, -count:]


class Canon(PositionalEncoding):
    """Canon layer A (Allen-Zhu 2025, arXiv:2512.17351, eq. 4.1): h plus a causal depthwise convolution of h.

    The input of attention of every layer, after its norm, becomes h_i + the sum over s < 4 of w_s * h_(i-s), for
    queries, keys and values. w are 4 trained vectors of width D per layer; there is neither bias nor activation. The
    first of them is of the token itself. Position comes from the start of a document, before which there is nothing; a
    shift of all positions changes nothing. Combine it with another encoding by pe=sum 'pe.parts=[canon,rope]'; a part
    that reads content, as `forgetting`, gets h as it was before.

    Causal only, as in the source. The vectors start as torch's convolutions do, U(-1/2, 1/2), which the source says
    must not be made smaller.

    Raises:
        ValueError: bidirectional attention.
    """

    per_layer = True
    causal_only = True
    contiguous_only = True
    reads_positions = False
    fallback = "cpe"
    KERNEL = 4

    def __init__(self, sizes: Sizes, name: str = "canon") -> None:
        super().__init__(sizes, name)
        self.weight = nn.Parameter(torch.empty(self.KERNEL, sizes.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.KERNEL**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def mix(self, h: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        dtype = at_least_float32(h)
        mixed = (h + causal_convolution(h.to(dtype), self.weight.to(dtype), layout, "canon")).to(h.dtype)
        return mixed, mixed


class ConvolutionalPE(PositionalEncoding):
    """Conditional positional encoding (Chu et al. 2021, arXiv:2102.10882, section 3.3): x + depthwise convolution of x.

    The kernel has 3 tokens on a sequence, 3 x 3 on a grid, and is trained. In causal attention it ends at the token
    itself, on a grid in both directions. Position comes from the zero padding at the ends of a document; a shift of all
    positions changes nothing.

    Args:
        std: the initial standard deviation, >= 0: kernel and bias start as N(0, std^2); None: uniform, like torch's
            convolutions, with a standard deviation of 1/3 on a sequence and 0.19 on a grid.

    Raises:
        ValueError: std out of range.
    """

    neutral = {"std": None}
    reads_positions = False
    contiguous_only = True
    KERNEL = 3

    def __init__(self, sizes: Sizes, name: str = "cpe", std: NonNegative | None = None) -> None:
        super().__init__(sizes, name)
        self.std = std
        self.axes = 1 if sizes.grid_width is None else 2
        self.weight = nn.Parameter(torch.empty(self.KERNEL**self.axes, sizes.width))
        self.bias = nn.Parameter(torch.empty(sizes.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.KERNEL ** (-self.axes / 2)
        for parameter in (self.weight, self.bias):
            if self.std is None:
                nn.init.uniform_(parameter, -bound, bound)
            else:
                nn.init.normal_(parameter, std=self.std)

    def locate(self, layout: Layout) -> Layout:
        self._require_layout(layout)
        if layout.pos.dim() != self.axes + 1:
            sizes_kind, layout_kind = ("sequences", "on a grid") if self.axes == 1 else ("a grid", "on a line")
            raise ValueError(f"{self.name} was built for {sizes_kind}, got positions {layout_kind}")
        return layout

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.keys is None:
            return self._convolve(x, layout)
        reach = (self.KERNEL - 1) * (1 if self.sizes.grid_width is None else self.sizes.grid_width + 1)
        x_and_earlier = layout.with_earlier("embedding", x)[:, -reach - x.shape[1] :]
        return self._convolve(x_and_earlier, layout.keys.last(x_and_earlier.shape[1]))[:, -x.shape[1] :]

    def _convolve(self, x: Tensor, layout: Layout) -> Tensor:
        dtype, x = x.dtype, x.to(at_least_float32(x))
        out, columns = x + self.bias.to(x.dtype), self.sizes.grid_width
        steps = range(1 - self.KERNEL, 1) if layout.causal else range(-(self.KERNEL // 2), self.KERNEL // 2 + 1)
        for weight, step in zip(self.weight.to(x.dtype), product(steps, repeat=self.axes), strict=True):
            shift = step[0] if columns is None else step[0] * columns + step[1]
            if abs(shift) < x.shape[1]:
                out = out + weight * x.roll(-shift, 1) * self._are_neighbours(layout, shift, step)[..., None]
        return out.to(dtype)

    def _are_neighbours(self, layout: Layout, shift: int, step: tuple[int, ...]) -> Tensor:
        """Return whether the token at index + shift is of the same document and `step` away on the grid, [B, T]."""
        slot = torch.arange(layout.segment.shape[1], device=layout.segment.device) + shift
        inside = (slot >= 0) & (slot < slot.shape[0])
        is_neighbour = inside & (layout.segment.roll(-shift, 1) == layout.segment)
        if self.axes == 2:
            neighbour_pos = layout.pos + torch.tensor(step, device=slot.device)
            is_neighbour = is_neighbour & (layout.pos.roll(-shift, 1) == neighbour_pos).all(-1)
        return is_neighbour
