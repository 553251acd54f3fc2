"""Optimizers and learning rates."""

import inspect
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from hydra.utils import get_class
from omegaconf import DictConfig
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from pe_lab.config import resolved
from pe_lab.encodings.options import shown
from pe_lab.encodings.rates import rates
from pe_lab.model.transformer import Transformer
from pe_lab.system.errors import unknown_setting

OURS = ("name", "lr", "weight_decay", "schedule", "warmup_steps")  # settings of every optimizer
FUSED = (torch.optim.Adam, torch.optim.AdamW)  # classes whose fused implementation is used


class Optimization:
    """An optimizer whose learning rate is a function of the step.

    Parameters of an encoding get the learning rate and the weight decay that the encoding asks for. A model with
    `rate_factors` has its rates multiplied by them, and weight decay divided: AdamW multiplies the one by the other.

    Args:
        settings: `_target_`, the class of the optimizer; name, lr, weight_decay, schedule, warmup_steps. Any others are
            arguments of the class.
        total_steps: of the whole training, for schedules that depend on its end.

    Attributes:
        known: classes by the name that stands for them in identities.

    Raises:
        ValueError: the class is not an optimizer, or does not take the settings.
    """

    revision: ClassVar[int] = 1
    neutral: ClassVar[dict[str, object]] = {}
    known = {"adam": "torch.optim.Adam", "adamw": "torch.optim.AdamW"}

    def __init__(self, settings: DictConfig, total_steps: int) -> None:
        self.settings = settings
        self.total_steps = total_steps
        self.made = get_class(settings["_target_"])
        if not issubclass(self.made, torch.optim.Optimizer):
            raise ValueError(
                f"optimizer._target_ must be a class derived from torch.optim.Optimizer, got {settings['_target_']}"
            )
        parameters = inspect.signature(self.made).parameters.values()
        if all(p.kind != p.VAR_KEYWORD for p in parameters):
            taken = [*OURS, *(p.name for p in parameters if p.name not in ("params", *OURS))]
            for key in (str(key) for key in settings if str(key)[0] != "_" and key not in taken):
                raise ValueError(unknown_setting(settings, "optimizer", key, taken, shown(settings[key])))
        self.decays = any(p.name == "weight_decay" or p.kind == p.VAR_KEYWORD for p in parameters)
        if settings.weight_decay and not self.decays:
            raise ValueError(
                f"optimizer.weight_decay must be 0 for {self.made.__name__}, which has none, got "
                f"{settings.weight_decay:g}"
            )
        self._optimizer([self._group([nn.Parameter(torch.zeros(1, 1))], settings.lr, settings.weight_decay)])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of a model, with a group of parameters per learning rate and weight decay."""
        settings = self.settings
        factors: dict[nn.Parameter, float] = model.rate_factors() if isinstance(model, Transformer) else {}
        own = rates(model, settings.lr, settings.weight_decay)
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for parameter in model.parameters():
            lr, decay = own.get(parameter, (settings.lr, settings.weight_decay))
            factor = factors.get(parameter, 1.0)
            groups.setdefault((lr * factor, decay / factor), []).append(parameter)
        return self._optimizer([self._group(parameters, lr, decay) for (lr, decay), parameters in groups.items()])

    def require_mup(self) -> None:
        """Raise ValueError if the optimizer's rates cannot be scaled as model.parametrization=mup does for Adam."""
        if not issubclass(self.made, FUSED):
            raise ValueError(
                f"model.parametrization=mup scales the rates of Adam and AdamW, got optimizer={self.settings.name}"
            )
        if self.settings.weight_decay and not issubclass(self.made, torch.optim.AdamW):
            raise ValueError(
                f"optimizer.weight_decay must be 0 for {self.settings.name} with model.parametrization=mup, got "
                f"{self.settings.weight_decay:g}: optimizer=adamw decays weights apart from gradients"
            )

    def _group(self, parameters: Iterable[nn.Parameter], lr: float, decay: float) -> dict[str, Any]:
        group = {"params": parameters, "lr": lr}
        return group | {"weight_decay": decay} if self.decays else group

    def _optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make the optimizer of groups of parameters.

        Raises:
            ValueError: the class does not take the settings.
        """
        arguments = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in resolved(self.settings).items()
            if key not in OURS and key[0] != "_"
        }
        if self.made in FUSED:
            arguments |= {"fused": True, "betas": tuple(map(float, arguments["betas"]))}  # torch refuses 0 for 0.0
        try:
            return self.made(groups, lr=self.settings.lr, **arguments)
        except (TypeError, ValueError) as error:
            if len(groups) > 1:  # one group was accepted when this object was made
                raise ValueError(
                    f"optimizer={self.settings.name} must take a learning rate and a weight decay for each group of "
                    f"parameters, as this encoding has its own: {error}"
                ) from None
            raise ValueError(f"optimizer={self.settings.name} must have settings of its class: {error}") from None

    def factor(self, step: int) -> float:
        """Return the factor in [0, 1] of all learning rates at a step, from 0: warm-up, then the schedule."""
        settings = self.settings
        if step < settings.warmup_steps:
            return (step + 1) / settings.warmup_steps
        progress = min(1.0, (step - settings.warmup_steps) / max(1, self.total_steps - settings.warmup_steps))
        if settings.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        return 1.0 - progress if settings.schedule == "linear" else 1.0

    def schedule(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """Return what multiplies the learning rate of every group by the factor of each step."""
        return LambdaLR(optimizer, lambda step: self.factor(step))
