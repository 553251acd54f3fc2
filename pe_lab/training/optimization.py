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

from pe_lab.config import DECAY_FRACTION, resolve_config
from pe_lab.config.errors import unknown_setting
from pe_lab.encodings.learning_rates import learning_rates
from pe_lab.encodings.options import show_value
from pe_lab.model.transformer import Transformer

# settings of every optimizer
LAB_SETTINGS = ("name", "lr", "weight_decay", "schedule", "warmup_steps", "min_lr", "decay_fraction")
OF_MUON = ("adamw_lr", "adamw_betas", "adamw_eps")  # and those of AdamW beside Muon
MUON_CLASS = "torch.optim.Muon"
FUSED_CLASSES = (torch.optim.Adam, torch.optim.AdamW)  # classes whose fused implementation is used


class Optimization:
    """An optimizer whose learning rate is a function of the step.

    Parameters of an encoding get the learning rate and weight decay that the encoding sets. The `rate_factors` of a
    model multiply its rates and divide its weight decay, because AdamW multiplies weight decay by the rate.

    With torch.optim.Muon, which is for matrices, AdamW trains all other parameters: see `MuonWithAdamW`.

    Args:
        settings: `_target_`, the class of the optimizer; name, lr, weight_decay, schedule, warmup_steps; optionally
            min_lr and decay_fraction. All others are arguments of the class.
        total_steps: the number of steps of the whole training, for schedules that depend on its end.

    Attributes:
        defaults: classes, by their names in identities.

    Raises:
        ValueError: the class does not exist, is no optimizer, or does not accept the settings.
    """

    revision: ClassVar[int] = 1
    neutral: ClassVar[dict[str, object]] = {"min_lr": 0.0, "decay_fraction": DECAY_FRACTION}
    defaults = {"adam": "torch.optim.Adam", "adamw": "torch.optim.AdamW"}

    def __init__(self, settings: DictConfig, total_steps: int) -> None:
        self.settings = settings
        self.total_steps = total_steps
        if settings["_target_"] == MUON_CLASS and not hasattr(torch.optim, "Muon"):
            raise ValueError(
                f"optimizer={settings.name} needs {MUON_CLASS}, which PyTorch has from 2.9, got {torch.__version__}"
            )
        self.optimizer_class = get_class(settings["_target_"])
        self.muon = settings["_target_"] == MUON_CLASS
        if not issubclass(self.optimizer_class, torch.optim.Optimizer):
            raise ValueError(
                f"optimizer._target_ must be a class derived from torch.optim.Optimizer, got {settings['_target_']}"
            )
        parameters = inspect.signature(self.optimizer_class).parameters.values()
        if all(p.kind != p.VAR_KEYWORD for p in parameters):
            ours = (*LAB_SETTINGS, *OF_MUON) if self.muon else LAB_SETTINGS
            names = [*ours, *(p.name for p in parameters if p.name not in ("params", *ours))]
            for key in (str(key) for key in settings if str(key)[0] != "_" and key not in names):
                raise ValueError(unknown_setting(settings, "optimizer", key, names, show_value(settings[key])))
        self.decays = any(p.name == "weight_decay" or p.kind == p.VAR_KEYWORD for p in parameters)
        if settings.weight_decay and not self.decays:
            raise ValueError(
                f"optimizer.weight_decay must be 0 for {self.optimizer_class.__name__}, which has none, got "
                f"{settings.weight_decay:g}"
            )
        self._optimizer([self._group([nn.Parameter(torch.zeros(1, 1))], settings.lr, settings.weight_decay, self.muon)])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of a model, with a group of parameters per learning rate and weight decay."""
        settings = self.settings
        factors: dict[nn.Parameter, float] = model.rate_factors() if isinstance(model, Transformer) else {}
        usual = settings.lr
        if self.muon and settings.get("adamw_lr") is not None:
            usual = settings.adamw_lr
        rate_of = learning_rates(model, usual, settings.weight_decay)
        matrices = model.matrices() if self.muon and isinstance(model, Transformer) else set()
        groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
        for parameter in model.parameters():
            by_muon = parameter in matrices
            lr, decay = rate_of.get(parameter, (settings.lr if by_muon else usual, settings.weight_decay))
            factor = factors.get(parameter, 1.0)
            groups.setdefault((by_muon, lr * factor, decay / factor), []).append(parameter)
        return self._optimizer(
            [self._group(those, lr, decay, by_muon) for (by_muon, lr, decay), those in groups.items()]
        )

    def require_mup(self) -> None:
        """Raise ValueError if the optimizer's rates cannot be scaled as model.parametrization=mup does for Adam."""
        if not issubclass(self.optimizer_class, FUSED_CLASSES):
            raise ValueError(
                f"model.parametrization=mup scales the rates of Adam and AdamW, got optimizer={self.settings.name}"
            )
        if self.settings.weight_decay and not issubclass(self.optimizer_class, torch.optim.AdamW):
            raise ValueError(
                f"optimizer.weight_decay must be 0 for {self.settings.name} with model.parametrization=mup, got "
                f"{self.settings.weight_decay:g}: optimizer=adamw decays weights apart from gradients"
            )

    def _group(self, parameters: Iterable[nn.Parameter], lr: float, decay: float, by_muon: bool) -> dict[str, Any]:
        group = {"params": parameters, "lr": lr} | ({"muon": by_muon} if self.muon else {})
        return group | {"weight_decay": decay} if self.decays else group

    def _optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make the optimizer of groups of parameters.

        Raises:
            ValueError: the class does not take the settings.
        """
        arguments = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in resolve_config(self.settings).items()
            if key not in (*LAB_SETTINGS, *OF_MUON) and key[0] != "_"
        }
        if self.optimizer_class in FUSED_CLASSES:
            arguments |= {"fused": True, "betas": tuple(map(float, arguments["betas"]))}  # torch refuses 0 for 0.0
        try:
            if self.muon:
                return MuonWithAdamW(groups, arguments, self._adamw())
            optimizer: torch.optim.Optimizer = self.optimizer_class(groups, lr=self.settings.lr, **arguments)
            return optimizer
        except (TypeError, ValueError) as error:
            if len(groups) > 1:  # one group was accepted when this object was made
                raise ValueError(
                    f"optimizer={self.settings.name} must take a learning rate and a weight decay for each group of "
                    f"parameters, as this encoding has its own: {error}"
                ) from None
            raise ValueError(f"optimizer={self.settings.name} must have settings of its class: {error}") from None

    def _adamw(self) -> dict[str, Any]:
        """Return the arguments of AdamW; missing ones have torch's defaults."""
        settings = resolve_config(self.settings)
        arguments: dict[str, Any] = {"fused": True}
        if settings.get("adamw_betas") is not None:
            arguments["betas"] = tuple(map(float, settings["adamw_betas"]))
        return arguments | ({"eps": settings["adamw_eps"]} if settings.get("adamw_eps") is not None else {})

    def factor(self, step: int) -> float:
        """Return the factor in [0, 1] of all learning rates at a step, from 0: warm-up, then the schedule."""
        settings = self.settings
        warmup: int = settings.warmup_steps
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, self.total_steps - warmup))
        falling = 1.0
        if settings.schedule == "cosine":
            falling = 0.5 * (1 + math.cos(math.pi * progress))
        elif settings.schedule == "linear":
            falling = 1.0 - progress
        elif settings.schedule == "wsd":
            falling = min(1.0, (1.0 - progress) / settings.get("decay_fraction", DECAY_FRACTION))
        least: float = settings.get("min_lr", 0.0) / settings.lr
        return least + (1.0 - least) * falling if least else falling

    def schedule(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """Return what multiplies the learning rate of every group by the factor of each step."""
        return LambdaLR(optimizer, lambda step: self.factor(step))


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for matrices and AdamW for the rest, as in torch.

    Both form one optimizer with one list of groups and one state, so schedules and checkpoints work as usual.

    Args:
        groups: groups of parameters, each with a key `muon`: whether Muon trains it.
        muon: arguments of torch.optim.Muon, without learning rates.
        adamw: arguments of torch.optim.AdamW, without learning rates.
    """

    def __init__(self, groups: list[dict[str, Any]], muon: dict[str, Any], adamw: dict[str, Any]) -> None:
        self.parts: dict[bool, torch.optim.Optimizer] = {
            kind: make([group for group in groups if group["muon"] is kind], **arguments)
            for kind, make, arguments in ((True, torch.optim.Muon, muon), (False, torch.optim.AdamW, adamw))
            if any(group["muon"] is kind for group in groups)
        }
        super().__init__([group for part in self.parts.values() for group in part.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for kind, part in self.parts.items():  # groups and state are others after a checkpoint was loaded
            part.param_groups = [group for group in self.param_groups if group["muon"] is kind]
            part.state = self.state
            part.step()
        return loss
