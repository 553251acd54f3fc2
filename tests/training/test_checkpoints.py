"""A training continues from its checkpoint with the same bits, whichever optimizer it has."""

import json
from pathlib import Path

import lightning as L
import pytest
import torch

from helpers.configs import TINY_MODEL, in_ledger
from helpers.fits import fit
from pe_lab.system.files import LedgerError
from pe_lab.training.checkpoints import SafeTensorsIO
from pe_lab.training.module import Training
from pe_lab.training.packing import pack_value, unpack_value
from pe_lab.training.weights import save_tensors

TINY = [*TINY_MODEL, "trainer.batch_size=64", "trainer.device=cpu"]
MINE = """
import math
import torch

class Mine(torch.optim.Optimizer):
    '''SGD whose state has a value of every kind, each of which the next step depends on.'''

    def __init__(self, params, lr, weight_decay=0.0, scale=1):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "scale": scale, "total": 0.1, "on": False})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["total"] += group["lr"] / 3
            group["on"] = not group["on"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"count": 0, "mean": 0.0, "least": math.inf, "name": "first", "pair": (1, [2.5, None])}
                    state |= {"long": torch.tensor(2**40), "double": p.double() / 3, "parts": [torch.zeros_like(p)]}
                state["count"] += 1
                state["mean"] += p.grad.mean().item() / 7
                state["least"] = min(state["least"], p.grad.min().item()) if state["count"] > 5 else math.inf
                state["name"] = f"step {state['count']}"
                state["pair"] = (state["pair"][0] + 1, [state["pair"][1][0] / 3, None])
                state["long"] += 1
                state["double"] = state["double"] / 3 + p.grad
                state["parts"] = [state["parts"][0] / 2 + p.grad]
                move = p.grad + state["parts"][0] + state["double"].float() + state["mean"] + state["pair"][1][0]
                p -= group["lr"] * group["scale"] * group["total"] * move * (state["long"] - 2**40).float() / 9
        return loss
"""
OTHERS = ("Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")  # of torch


def of_class(name: str, path: str, *more: str) -> list[str]:
    """Overrides that choose a class without a file in conf/."""
    return ["optimizer=sgd", f"optimizer.name={name}", f"optimizer._target_={path}", "~optimizer.momentum", *more]


OPTIMIZERS = {
    "adam": ["optimizer=adam"],
    "adamw": ["optimizer=adamw", "optimizer.schedule=cosine"],
    "muon": ["optimizer=muon", "optimizer.schedule=wsd", "optimizer.min_lr=1e-4"],
    "sgd": ["optimizer=sgd", "optimizer.warmup_steps=2"],
    "sgd without momentum": ["optimizer=sgd", "optimizer.momentum=0"],
    "LBFGS": of_class("LBFGS", "torch.optim.LBFGS", "pe.lr=null", "+optimizer.max_iter=4"),
    "mine": of_class("mine", "optimizer_of_mine.Mine", "+optimizer.scale=0.01"),
} | {name: of_class(name, f"torch.optim.{name}") for name in OTHERS}


@pytest.fixture(autouse=True)
def _of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "optimizer_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def training(*overrides: str) -> Training:
    return Training(in_ledger(None, *TINY, "pe=lrope", "pe.lr=0.02", "epochs=1", *overrides, multirun=False)[0])


def train(made: Training, steps: int, path: Path | None = None) -> L.Trainer:
    return fit(made, path, max_epochs=-1, max_steps=steps)


def same(one: object, other: object) -> bool:
    """Whether two values are equal in type and to the bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.covering
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_continues_with_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, continued = training(*OPTIMIZERS[name]), training(*OPTIMIZERS[name])
    train(whole, 6)
    train(training(*OPTIMIZERS[name]), 3).save_checkpoint(tmp_path / "state")
    train(continued, 6, tmp_path / "state")
    assert same(whole.model.state_dict(), continued.model.state_dict())
    assert same(whole.optimizer.state_dict(), continued.optimizer.state_dict())
    assert len(whole.losses) == 6
    assert same(whole.losses, continued.losses)
    assert not same(whole.model.state_dict(), training(*OPTIMIZERS[name]).model.state_dict())


def test_a_state_of_another_training_is_refused(tmp_path: Path) -> None:
    train(training("optimizer=sgd"), 2).save_checkpoint(tmp_path / "state")
    kept = SafeTensorsIO().load_checkpoint(tmp_path / "state")
    (state,) = kept["optimizer_states"]
    training("optimizer=sgd").restore(kept)
    broken = {
        "another optimizer": ("optimizer=adam", {}),
        "another model": ("model.width=32", {}),
        "a parameter that is not there": ("optimizer=sgd", {"optimizer_states": [state | {"state": {999: {}}}]}),
        "a group too many": (
            "optimizer=sgd",
            {"optimizer_states": [state | {"param_groups": [*state["param_groups"], {"params": []}]}]},
        ),
        "no optimizer": ("optimizer=sgd", {"optimizer_states": []}),
        "none of it": ("optimizer=sgd", {"optimizer_states": None}),
    }
    for name, (words, change) in broken.items():
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError)):
            training("optimizer=sgd", words).restore(kept | change)
            pytest.fail(name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    save_tensors({"x": torch.ones(2)}, tmp_path / "weights.safetensors")
    (tmp_path / "text").write_text("no checkpoint")
    for name in ("weights.safetensors", "text"):
        with pytest.raises(LedgerError):
            SafeTensorsIO().load_checkpoint(tmp_path / name)


def test_packed_values_are_unpacked_to_the_same_type_and_value() -> None:
    value = {"a": [1, 2.5, (None, True, "x")], 3: torch.arange(3), "inf": -float("inf"), "deep": {"t": [torch.ones(2)]}}
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack_value(value, "v", tensors), allow_nan=False))
    assert same(unpack_value(packed, tensors), value)
    with pytest.raises(ValueError, match="v.x must be made of tensors and plain values to be saved, got set"):
        pack_value({"x": {1}}, "v", {})
