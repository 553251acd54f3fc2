"""Encodings whose rotations change from layer to layer."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from pe_lab.encodings.base import at_least_float32
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.memory import Carried
from pe_lab.encodings.options import Positive, Units
from pe_lab.encodings.projection import project
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing, Rotary, Terms

INITIAL_STD = 0.02  # standard deviation of initial weights, as released
PER_HEAD = 4  # hidden units for each head, as released


class SmallLinear(nn.Linear):
    """A linear layer without bias that starts as N(0, 0.02^2)."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__(width, units, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INITIAL_STD)


class Update(nn.Module):
    """The change of positional vectors by a layer: E + g E', and to that V diag(SiLU(W h)) U of it over the heads.

    g, a factor for each head, and U start at 0: nothing changes at first.

    Args:
        width: the width of the model, D.
        num_heads: the number of heads, H.
        units: the number of rows of U.
    """

    def __init__(self, width: int, num_heads: int, units: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.empty(num_heads))
        self.content = SmallLinear(width, units)
        self.up = nn.Parameter(torch.empty(units, num_heads))
        self.down = nn.Parameter(torch.empty(num_heads, units))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.factor)
        nn.init.zeros_(self.up)
        nn.init.normal_(self.down, std=INITIAL_STD)

    def forward(self, vectors: Tensor, mixed: Tensor, h: Tensor) -> Tensor:
        """Return the vectors [B, H, T, n] of the next layer.

        Args:
            vectors: [B|1, H|1, T, n] vectors E of this layer.
            mixed: [B, H, T, n] sums E' of the vectors by the weights of attention.
            h: [B, T, D] content of the tokens.
        """
        dtype = vectors.dtype
        with torch.autocast(h.device.type, enabled=False):
            vectors = vectors + self.factor.to(dtype)[:, None, None] * mixed.to(dtype)
            gate = silu(project(h.to(dtype), self.content.weight))
            over_heads = (self.down.to(dtype) * gate[..., None, :]) @ self.up.to(dtype)  # [B, T, H, H]
            return vectors + torch.einsum("bthg,bgtn->bhtn", over_heads, vectors)


class TAPE(RoPE):
    """Contextualized equivariant positional encoding, TAPE (Zhu et al. 2025, arXiv:2501.00712, as its released code).

    Each token has a complex number z for each pair of each head, by which that pair of its query and of its key is
    multiplied. In the first layer z is that of RoPE. Each layer adds g_h z' to it, where z' is the mean of the keys' z
    by the weights of attention, and to the result V diag(SiLU(W h)) U of it, with matrices over the heads. All of these
    are real and without biases: a rotation of all z passes through, so that logits depend on distances alone. g and U
    start at 0, W and V as N(0, 0.02^2): exactly RoPE. With one layer it is RoPE. Each further layer has H + units
    (D + 2 H) parameters, for the update before it.

    Ours: h is the input of the next layer's attention. The code takes the output of the layer's MLP before it is added
    to the residual stream, which an encoding here does not get. Ours is also that dropout of attention weights, which
    the source does not have, applies to z' as to the values. The code has an H x H matrix in place of g and multiplies
    by the sum of each row: g is that sum. Its random offset of all positions in training changes nothing here and is
    left out. The source's smallest model has a width of 768 and 12 heads; units of 4 H is its ratio.

    z and its update are computed in float32 or better, z' in the precision of the values.

    Args:
        theta: the base of the frequencies at the start, > 0.
        pairing: the pairing of dimensions, see `RoPE`.
        units: the number of rows of U and W, >= 1; None: 4 H, as released.

    Raises:
        ValueError: the cases of `RoPE`; an option out of range.
    """

    revision = RoPE.revision - 1
    per_layer = True
    reads_content = True
    float_positions = True

    def __init__(
        self,
        sizes: Sizes,
        name: str = "tape",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        units: Units | None = None,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        units = PER_HEAD * sizes.num_heads if units is None else units
        self.update = Update(sizes.width, sizes.num_heads, units) if sizes.layer else None

    def terms(self, h: Tensor, layout: Layout) -> Terms:
        if self.update is None:
            start = self.rotation(h, layout.of_keys)
            vectors = torch.cat((start.cos, start.sin), -1)  # vectors of all keys, [B|1, 1, S, d]
            queries = vectors[:, :, layout.earlier :]
        else:
            before = layout.carried
            if before is None or before.mixed is None:
                raise ValueError(
                    f"{self.name} must be the encoding of all layers, and attention of the layer before must be "
                    f"computed: it carries nothing"
                )
            queries = self.update(before.vectors[:, :, layout.earlier :].to(at_least_float32(h)), before.mixed, h)
            vectors = queries
        cos, sin = queries.chunk(2, -1)
        rotary = Rotary(cos, sin, self.pairing)
        if self.sizes.layer == self.sizes.depth - 1:
            return Terms(rotary_q=rotary, rotary_k=rotary)
        if self.update is not None:
            vectors = layout.with_earlier("positions", queries.transpose(1, 2)).transpose(1, 2)
        return Terms(rotary_q=rotary, rotary_k=rotary, carried=Carried(vectors))
