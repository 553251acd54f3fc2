"""Encodings that are a learned function of the position."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from pe_lab.encodings.angles import angles
from pe_lab.encodings.families.absolute import Absolute, CombineMethod, Place
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import MAX_UNITS, Positive, Units, even_integers
from pe_lab.encodings.sizes import Sizes


class Continuous(Absolute):
    """A learned MLP of pos / scale: Linear(1 -> h), ReLU, Linear(h -> h), ReLU, Linear(h -> D).

    Any position has a value; beyond those of training it is extrapolated by the MLP.

    Args:
        hidden: the number of hidden units, h >= 1.
        scale: the position that is mapped to 1, > 0; None: the training length.
        at, combine, size: the options of `Absolute`.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        sizes: Sizes,
        name: str = "continuous",
        hidden: Units = 128,
        scale: Positive | None = None,
        at: Place = "input",
        combine: CombineMethod = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)
        self.scale = scale or sizes.length
        self.mlp = nn.Sequential(
            nn.Linear(1, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, sizes.width),
        )

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        vectors: Tensor = self.mlp(layout.pos[..., None].to(next(self.mlp.parameters()).dtype) / self.scale)
        return vectors


class Fourier(Absolute):
    """Learned Fourier features (Li et al. 2021, arXiv:2106.02795, algorithm 1).

    F = [cos x W_r, sin x W_r] / sqrt(|F|), then Linear, GELU, Linear, with x = 2 pi pos / training length and W_r
    trained from N(0, gamma^-2).

    Args:
        features: the number of features, |F|, even.
        hidden: the number of hidden units between the two linear layers, >= 1.
        gamma: the inverse of the standard deviation of W_r at the start, > 0.
        at, combine, size: the options of `Absolute`.

    Raises:
        ValueError: an option out of range.
    """

    revision = 2

    def __init__(
        self,
        sizes: Sizes,
        name: str = "fourier",
        features: Annotated[int, even_integers(most=MAX_UNITS)] = 384,
        hidden: Units = 32,
        gamma: Positive = 1.0,
        at: Place = "input",
        combine: CombineMethod = "add",
        size: Positive = 1.0,
    ) -> None:
        super().__init__(sizes, name, at, combine, size)
        self.gamma = gamma
        self.frequency = nn.Parameter(torch.empty(features // 2))
        self.mlp = nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, sizes.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.frequency, std=1 / self.gamma)

    def vectors(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        x = layout.pos[..., None].double() * (2 * math.pi / self.sizes.length)
        angle = angles(x, self.frequency, self.frequency.dtype)
        features = torch.cat((angle.cos(), angle.sin()), -1) / math.sqrt(2 * len(self.frequency))
        vectors: Tensor = self.mlp(features)
        return vectors
