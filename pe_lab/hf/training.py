"""Train a replaced model as the lab does: parameter groups, and a callback for the Trainer of transformers."""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pe_lab.encodings.learning_rates import learning_rates
from pe_lab.hf.replacement import stacks


def parameter_groups(model: nn.Module, *, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters of a model as an optimizer takes them, in a group per learning rate and weight decay.

        optimizer = torch.optim.AdamW(parameter_groups(model, lr=3e-4, weight_decay=0.1))
        trainer = Trainer(model, args, optimizers=(optimizer, None), callbacks=[EncodingCallback()], ...)

    Parameters of an encoding have the rates that the encoding asks for. Of all others, biases and the weights of norms
    do not decay, as in transformers' Trainer.

    Args:
        lr: the learning rate of parameters that have none of their own.
        weight_decay: the weight decay of parameters that decay.
    """
    group_of = learning_rates(model, lr, weight_decay)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            plain = (lr, weight_decay if parameter.dim() > 1 else 0.0)
            groups.setdefault(group_of.get(parameter, plain), []).append(parameter)
    return [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]


class EncodingCallback(TrainerCallback):
    """Tell encodings the share of the steps that are done before each, and constrain their parameters after it."""

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for stack in stacks(kwargs["model"]):
            stack.advance(state.global_step / state.max_steps)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for stack in stacks(kwargs["model"]):
            stack.constrain()
