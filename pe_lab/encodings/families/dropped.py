"""RoPE that is removed during training."""

from typing import Annotated

import torch
from torch import Tensor

from pe_lab.encodings.families.rotary import RoPE
from pe_lab.encodings.options import Positive, number_range
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.terms import Pairing


class DroPE(RoPE):
    """DroPE (Gelberg et al. 2025, arXiv:2512.12167, section 5): train with RoPE, remove it, train on without it.

    Queries and keys are rotated as by `rope` until `drop_at` of the training's steps are done, and not at all in the
    steps that are left; all weights are kept and trained on. The phase is part of the weights, so that a checkpoint is
    evaluated in the phase in which it was taken. As with a cosine schedule, each number of epochs is a run of its own.
    What the source changes beside it is not here: the learning rate that starts again with a warm-up at the drop, new
    moments of Adam, and a factor on the logits of longer sequences. Causal only: bidirectional attention without an
    encoding sees no order.

    Args:
        theta, pairing: the options of `RoPE`.
        drop_at: the share of the steps that are trained with RoPE, in [0, 1]; 7/8 in the source. 1 is `rope`.

    Raises:
        ValueError: the cases of `RoPE`; drop_at out of range; attention is bidirectional.
    """

    causal_only = True
    fallback = "rope"
    phased = True
    rotates: Tensor  # 1 before the drop, 0 after it

    def __init__(
        self,
        sizes: Sizes,
        name: str = "drope",
        theta: Positive = 10_000.0,
        pairing: Pairing = "interleaved",
        drop_at: Annotated[float, number_range(0, 1)] = 0.875,
    ) -> None:
        super().__init__(sizes, name, theta, pairing)
        self.drop_at = drop_at
        self.register_buffer("rotates", torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.rotates.fill_(1.0)

    def advance(self, done: float) -> None:
        self.rotates.fill_(float(done < self.drop_at))

    def omega(self, device: torch.device) -> Tensor:
        return super().omega(device) * self.rotates.double()
