"""A transformer in plain PyTorch, as a user has one, with an encoding put into it by a Stack."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pe_lab.attention import attend
from pe_lab.encodings import Cache, Layout, Sizes, Stack, make
from pe_lab.encodings.named import encodings


class PlainLayer(nn.Module):
    """The projections of attention and an MLP, each behind a norm.

    Args:
        mlp: whether there is an MLP.
    """

    def __init__(self, width: int, num_heads: int, mlp: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(width)
        self.query_key, self.value = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        parts = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp = nn.Sequential(*parts) if mlp else None

    def project(self, h_qk: Tensor, h_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of h_qk and values of h_v, each [B, H, T, d], for inputs [B, T, D]."""
        q, k = self.query_key(h_qk).chunk(2, -1)
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in (q, k, self.value(h_v)))
        return q, k, v

    def add(self, x: Tensor, out: Tensor) -> Tensor:
        """Return the states [B, T, D] after the layer, for those before it and the output of attention [B, H, T, d]."""
        x = x + self.out(out.transpose(1, 2).flatten(2))
        return x if self.mlp is None else x + self.mlp(x)


class PlainModel(nn.Module):
    """Layers with the encodings of a stack.

    Args:
        implementation: the implementation of attention.
        mlp: whether layers have an MLP.
    """

    def __init__(self, stack: Stack, implementation: str = "auto", mlp: bool = True) -> None:
        super().__init__()
        sizes = stack.first.sizes
        self.stack = stack
        self.implementation = implementation
        self.layers = nn.ModuleList(PlainLayer(sizes.width, sizes.num_heads, mlp) for _ in range(stack.depth))

    def forward(
        self, x: Tensor, layout: Layout | None = None, cache: Cache | None = None, marks: Tensor | None = None
    ) -> Tensor:
        """Return the states [B, T, D] after the last layer.

        Args:
            marks: [B, T] marks of tokens, for an encoding that reads them; there is no padding then, and no `layout`.
        """
        if marks is not None:
            earlier = None if cache is None else cache.layout
            batch, length = marks.shape
            here = Layout.whole(batch, length, True) if earlier is None else earlier.unshifted.following(length)
            layout = replace(here, marks=marks)
        x, positions = self.stack(x, layout, cache)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, PlainLayer)
            h_qk, h_v, terms, of_layer = positions.layer(index, layer.norm(x))
            out = attend(*layer.project(h_qk, h_v), terms, of_layer, self.implementation)
            x = layer.add(x, out)
        return x


MARKS = 5  # the largest mark of a token, for encodings that read marks


def plain_model(name: str, width: int = 16, num_heads: int = 2, depth: int = 2, length: int = 8) -> PlainModel:
    """Return a model with an encoding whose parameters are moved from where they start, so that each has an effect.

    It is in evaluation mode.

    Args:
        depth: the number of layers; more where the encoding alternates over more.
    """
    torch.manual_seed(0)
    encoding = encodings()[name]
    grid_width = 4 if getattr(encoding, "on_grid", False) else None
    marks = MARKS if getattr(encoding, "reads_marks", False) else None
    depth = max(depth, encoding(Sizes(width, num_heads, length, grid_width=grid_width, marks=marks), name=name).period)
    stack = make(name, width=width, num_heads=num_heads, depth=depth, length=length, grid_width=grid_width, marks=marks)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    stack.constrain()
    return PlainModel(stack, mlp=False).eval()
