"""How initial weights and learning rates depend on the width of the model.

`standard` draws weights as PyTorch does and gives every parameter the same rate: the best rate then falls with the
width. `mup`, the maximal update parametrization (Yang et al. 2022, arXiv:2203.03466, table 8, for Adam), scales both so
that activations and their changes keep their size, and one rate serves several widths.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn

from pe_lab.config import Model
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import Stack

STANDARD, MUP = "standard", "mup"


def query_factor(config: Model) -> float:
    """Return the factor on queries: logits are then q . k sqrt(base_head_dim) / d, instead of q . k / sqrt(d)."""
    if config.parametrization == STANDARD:
        return 1.0
    return float((config.base_head_dim * config.num_heads / config.width) ** 0.5)


def width_factor(config: Model) -> float:
    """Return the width in units of the base width; 1 in the standard parametrization."""
    return 1.0 if config.parametrization == STANDARD else config.width / config.base_width


class MaximalUpdate:
    """Scales the initial weights and the learning rates of a model whose width is m times a base width.

    Of linear layers whose inputs grow with the width: rates are divided by m, biases start as at the base width, and
    weights too where the outputs do not grow with it (the head), times 1 / m: PyTorch's own initial weights fall with
    the square root of m. Of the matrices that encodings name (`PositionalEncoding.matrices`) and whose inputs grow:
    rates are divided by m too, and initial weights, whose size does not depend on the width, by the square root of m.
    All other parameters are as in the standard parametrization: those of norms, embeddings of tokens, tables and
    scalars of encodings. At m = 1 nothing changes.

    Args:
        model: the model, whose linear layers, those of encodings too, and matrices of encodings are scaled.
        encoding: a function that makes the model's encoding. Which of its layers grow is read off the same encoding at
            twice the width.
        sizes: the sizes that the encoding is made for.
        depth: the number of layers of the model.
        factor: m, the width divided by the base width.
    """

    def __init__(
        self,
        model: nn.Module,
        encoding: Callable[[Sizes], PositionalEncoding],
        sizes: Sizes,
        depth: int,
        factor: float,
    ) -> None:
        self.factor = factor
        self.hidden: list[nn.Linear] = []
        self.outputs: list[nn.Linear] = []
        self.matrices: list[nn.Parameter] = []
        if factor == 1.0:
            return
        wider = _twice_as_wide(encoding, sizes, depth)
        grown, grown_matrices = dict(_linear_layers(wider)), dict(_matrices(wider))
        for name, layer in _linear_layers(model):
            wide_in, wide_out = True, name != "head"
            if name.startswith("encodings."):
                other = grown[name.removeprefix("encodings.")]
                wide_in, wide_out = other.in_features > layer.in_features, other.out_features > layer.out_features
            if wide_in:
                (self.hidden if wide_out else self.outputs).append(layer)
        for name, matrix in _matrices(model):
            if grown_matrices[name.removeprefix("encodings.")].shape[-1] > matrix.shape[-1]:
                self.matrices.append(matrix)

    @torch.no_grad()
    def scale_weights(self) -> None:
        """Scale weights that were just drawn as PyTorch draws them."""
        for layer in self.outputs:
            layer.weight.mul_(self.factor**-0.5)
        for matrix in self.matrices:
            matrix.mul_(self.factor**-0.5)
        for layer in (*self.hidden, *self.outputs):
            if layer.bias is not None:
                layer.bias.mul_(self.factor**0.5)

    def rates(self) -> dict[nn.Parameter, float]:
        """Return the factors on learning rates that are not 1, by parameter."""
        factors = dict.fromkeys(self.matrices, 1 / self.factor)
        for layer in (*self.hidden, *self.outputs):
            assert isinstance(layer.weight, nn.Parameter)
            factors[layer.weight] = 1 / self.factor
        return factors


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear))


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the matrices that encodings have and name; an option may leave one out."""
    for prefix, module in model.named_modules():
        for name in module.matrices if isinstance(module, PositionalEncoding) else ():
            matrix = getattr(module, name)
            if matrix is not None:
                yield f"{prefix}.{name}", matrix


def _twice_as_wide(encoding: Callable[[Sizes], PositionalEncoding], sizes: Sizes, depth: int) -> Stack:
    """Return the encodings of all layers for twice the width and as many heads."""
    with torch.random.fork_rng(devices=[]):
        return Stack.build(encoding, replace(sizes, width=2 * sizes.width), depth)
