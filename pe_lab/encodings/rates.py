"""The learning rates and weight decays that encodings request."""

from torch import nn

from pe_lab.encodings.base import PositionalEncoding

Rates = dict[nn.Parameter, tuple[float, float]]


def rates(model: nn.Module, lr: float, weight_decay: float) -> Rates:
    """Return the learning rate and the weight decay of every parameter of the encodings in a model.

    Args:
        lr, weight_decay: the defaults, for parameters whose encoding asks for nothing else.
    """
    by_parameter: Rates = {}
    for module in model.modules():
        if isinstance(module, PositionalEncoding):
            decay = weight_decay if module.weight_decay else 0.0
            by_parameter |= dict.fromkeys(module.parameters(), (module.lr or lr, decay))
    return by_parameter
