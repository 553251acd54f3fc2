"""Optimizers and learning rates."""

import math

import torch
from torch import nn

from pe_lab import config
from pe_lab.encodings.base import PositionalEncoding


class Optimization:
    """Adam (arXiv:1412.6980) or AdamW (arXiv:1711.05101), with a learning rate that is a function of the step.

    Parameters of an encoding get the learning rate and the weight decay that it asks for.

    Args:
        settings: name, lr, betas, eps, weight_decay, schedule, warmup_steps.
        total_steps: of the whole training, where the schedule looks at the end.
    """

    revision = 1
    neutral: dict[str, object] = {}

    def __init__(self, settings: config.Optimizer, total_steps: int) -> None:
        self.settings = settings
        self.total_steps = total_steps

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters."""
        settings = self.settings
        asked: dict[nn.Parameter, tuple[float, float]] = {}
        for module in model.modules():
            if isinstance(module, PositionalEncoding):
                decay = settings.weight_decay if module.weight_decay else 0.0
                asked |= dict.fromkeys(module.parameters(), (module.lr or settings.lr, decay))
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for parameter in model.parameters():
            groups.setdefault(asked.get(parameter, (settings.lr, settings.weight_decay)), []).append(parameter)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.name]
        return kind(
            [
                {"params": parameters, "lr": lr, "base_lr": lr, "weight_decay": decay}
                for (lr, decay), parameters in groups.items()
            ],
            betas=tuple(settings.betas),
            eps=settings.eps,
            fused=True,
        )

    def factor(self, step: int) -> float:
        """What learning rates are multiplied with at a step (0 at the first): warm-up, then the schedule; in [0, 1]."""
        settings = self.settings
        if step < settings.warmup_steps:
            return (step + 1) / settings.warmup_steps
        if settings.schedule == "cosine":
            progress = (step - settings.warmup_steps) / max(1, self.total_steps - settings.warmup_steps)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return 1.0

    def set_learning_rate(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Give every group its learning rate for a step; returns that of parameters that ask for none."""
        factor = self.factor(step)
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        return self.settings.lr * factor
