"""Linear maps of activations in the precision of an encoding."""

import torch
from torch import Tensor
from torch.nn.functional import linear


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [..., n] times weight [m, n], plus bias [m], in the dtype of x, under autocast too."""
    with torch.autocast(x.device.type, enabled=False):
        return linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
