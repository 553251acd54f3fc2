"""The learning rates and weight decays that encodings request."""

from torch import nn

from pe_lab.encodings.base import PositionalEncoding


def learning_rates(model: nn.Module, lr: float, weight_decay: float) -> dict[nn.Parameter, tuple[float, float]]:
    """Return the learning rate and the weight decay of every parameter of the encodings in a model.

    Args:
        lr, weight_decay: the defaults, for parameters whose encoding asks for nothing else.
    """
    by_parameter: dict[nn.Parameter, tuple[float, float]] = {}
    for module in model.modules():
        if isinstance(module, PositionalEncoding):
            decay = weight_decay if module.weight_decay else 0.0
            by_parameter |= dict.fromkeys(module.parameters(), (module.lr or lr, decay))
    return by_parameter
