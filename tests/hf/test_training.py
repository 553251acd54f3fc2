"""Trained by transformers' Trainer, encodings get their rates, stay in their range and know how far training is."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainingArguments

from helpers.hf_models import LENGTH, logits, small, tokens
from pe_lab.hf import EncodingCallback, load, parameter_groups, replace, stacks

STEPS = 8


def model_with(name: str, kind: str = "llama", **options: Any) -> PreTrainedModel:
    return replace(small(kind), name, length=LENGTH, **options).train()


def trainer(model: PreTrainedModel, folder: Path, lr: float = 1.0, groups: bool = True, **changes: Any) -> Trainer:
    """Return a Trainer of eight steps in which parameters move far; with neither decay nor schedule."""
    settings = {"max_steps": STEPS, "per_device_train_batch_size": 2, "learning_rate": lr, "use_cpu": True}
    settings |= {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "lr_scheduler_type": "constant"}
    callbacks = changes.pop("callbacks", [EncodingCallback()])
    arguments = TrainingArguments(str(folder), **{**settings, **changes})
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=lr, weight_decay=0.1)) if groups else None
    rows = [{"input_ids": row, "labels": row} for row in tokens(16)]
    return Trainer(model, arguments, train_dataset=rows, callbacks=callbacks, optimizers=(optimizer, None))


def numbers(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for stack in stacks(model) for parameter in stack.parameters()])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_parameters_stay_in_their_range(kind: str, tmp_path: Path) -> None:
    model = model_with("kerple_log", kind)
    trainer(model, tmp_path).train()
    assert numbers(model).min() == pytest.approx(0.01)


def test_without_the_callback_they_do_not_and_a_warning_says_so(tmp_path: Path) -> None:
    model = model_with("kerple_log")
    with pytest.warns(UserWarning, match="kerple_log must be constrained after every optimizer step") as w:
        trainer(model, tmp_path, callbacks=[]).train()
    assert len([each for each in w if "constrained" in str(each.message)]) == 1
    assert numbers(model).min() < 0


def test_the_phase_changes_with_the_share_of_the_steps(tmp_path: Path) -> None:
    model, seen = model_with("drope", drop_at=0.5), []
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(float(stacks(model)[0].first.rotates)))
    trainer(model, tmp_path, lr=1e-3, gradient_accumulation_steps=2).train()
    assert seen == [1.0] * STEPS + [0.0] * STEPS


def test_without_the_callback_it_does_not_and_a_warning_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="drope must be told before every step what share of them is done"):
        trainer(model_with("drope"), tmp_path, lr=1e-3, callbacks=[]).train()


def test_frequencies_do_not_decay(tmp_path: Path) -> None:
    model = model_with("lrope", lr=0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {
        names[id(p)]: (group["lr"], group["weight_decay"])
        for group in parameter_groups(model, lr=0.1, weight_decay=0.2)
        for p in group["params"]
    }
    assert len(rates) == len(names)
    for name, parameter in model.named_parameters():
        expected = (0.5, 0.0) if "pe_lab" in name else (0.1, 0.2 if parameter.dim() > 1 else 0.0)
        assert rates[name] == expected, name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(model, tmp_path, lr=1e-3).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "lrope must have no weight decay, got 0.1"),
        ({"lr": 0.5}, "weight decay, got 0.1 and the learning rate 0.5"),
    ],
)
def test_groups_of_another_optimizer_are_warned_of(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=message):
        trainer(model_with("lrope", **options), tmp_path, lr=1e-3, groups=False, weight_decay=0.1).train()


@pytest.mark.parametrize("name", ["kerple_log", "drope", "lrope", "pope", "sum", "alibi", "learnable"])
@pytest.mark.parametrize("advance_first", [True, False])
def test_a_loop_of_ones_own_that_does_all_is_not_warned_of(name: str, advance_first: bool) -> None:
    model = model_with(name)
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3, weight_decay=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(4):
            for _ in range(2):
                if advance_first:
                    stacks(model)[0].advance(step / 4)
                model(tokens(), labels=tokens()).loss.backward()
            stacks(model)[0].advance(step / 4)
            optimizer.step()
            stacks(model)[0].constrain()
            with torch.no_grad():
                logits(model, tokens())
        nn.Linear(2, 2)(torch.ones(2)).sum().backward()


def test_training_of_a_copy_and_of_another_model_is_not_that_of_the_model() -> None:
    model, other = model_with("kerple_log"), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model(tokens(), labels=tokens()).loss.backward()
            other(torch.ones(2)).sum().backward()
            optimizer.step()


@pytest.mark.long
def test_a_checkpoint_of_the_trainer_is_loaded_and_continued(tmp_path: Path) -> None:
    model = model_with("kerple_log")
    made = trainer(model, tmp_path, lr=1e-2, save_strategy="steps", save_steps=STEPS // 2)
    made.train()
    half = load(tmp_path / f"checkpoint-{STEPS // 2}")
    assert stacks(half)[0].first.name == "kerple_log"
    assert torch.equal(numbers(load(tmp_path / f"checkpoint-{STEPS}")), numbers(model))
    assert not torch.equal(numbers(half), numbers(model))
    again = model_with("kerple_log")
    trainer(again, tmp_path, lr=1e-2).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}"))
    assert torch.equal(numbers(again), numbers(model))
