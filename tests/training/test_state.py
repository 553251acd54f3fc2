"""A training continues from its state file with the same bits, whichever optimizer it has."""

import json
from functools import partial
from itertools import islice
from pathlib import Path

import hydra
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from configs import in_ledger
from pe_lab.data.base import Batch
from pe_lab.data.seeding import initialise
from pe_lab.data.structured import Structured
from pe_lab.model import Transformer
from pe_lab.system.files import LedgerError
from pe_lab.training.module import Training
from pe_lab.training.packing import pack, unpack
from pe_lab.training.state import restore, save, save_tensors

TINY = ["model.depth=1", "model.width=16", "model.num_heads=2", "trainer.batch_size=64", "trainer.device=cpu"]
KEPT = {"rows": [], "seconds": 1.5}
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
    cfg = in_ledger(None, *TINY, "pe=lrope", "pe.lr=0.02", *overrides, multirun=False)[0]
    data = Structured(0)
    model = Transformer(cfg.model, hydra.utils.instantiate(cfg.pe), data.task)
    initialise(model, seed=0)
    return Training(model, data, cfg.optimizer, cfg.trainer, seed=0, epochs=1)


def train(made: Training, steps: int) -> Training:
    def evaluate(batch: Batch) -> torch.Tensor:
        made.optimizer.zero_grad()
        loss = made.training_step(batch, 0)
        loss.backward()
        return loss

    for batch in islice(iter(made.train_dataloader()), steps):
        made.optimizer.step(partial(evaluate, batch))
        made.step += 1
    return made


def same(one: object, other: object) -> bool:
    """Whether two values are equal in type and to the bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_continues_with_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = train(training(*OPTIMIZERS[name]), 6)
    save(train(training(*OPTIMIZERS[name]), 3), KEPT, tmp_path / "state")
    continued = training(*OPTIMIZERS[name])
    assert restore(continued, tmp_path / "state") == KEPT | {"step": 3}
    assert continued.step == 3
    train(continued, 3)
    assert same(whole.model.state_dict(), continued.model.state_dict())
    assert same(whole.optimizer.state_dict(), continued.optimizer.state_dict())
    assert same(whole.losses, continued.losses)
    assert not same(whole.model.state_dict(), training(*OPTIMIZERS[name]).model.state_dict())


def test_a_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has the optimizer's tensors and nothing else of it."""
    whole, half = train(training(), 6), train(training(), 3)
    save(half, KEPT, tmp_path / "new")
    with safe_open(tmp_path / "new", "pt") as file:
        kept = json.loads(file.metadata()["pe_lab"])
    del kept["optimizer"]
    save_tensors(load_file(tmp_path / "new"), tmp_path / "old", {"pe_lab": json.dumps(kept)})
    continued = training()
    restore(continued, tmp_path / "old")
    train(continued, 3)
    assert same(whole.model.state_dict(), continued.model.state_dict())


def test_a_state_of_another_training_changes_nothing(tmp_path: Path) -> None:
    save(train(training("optimizer=sgd"), 2), KEPT, tmp_path / "state")
    with safe_open(tmp_path / "state", "pt") as file:
        kept = json.loads(file.metadata()["pe_lab"])
    broken = {
        "a tensor that is not there": {"state": {"dict": [[0, {"tensor": "optimizer.none"}]]}},
        "a parameter that is not there": {"state": {"dict": [[999, {"dict": []}]]}},
        "a group too many": {"param_groups": {"list": [{"dict": []}] * 9}},
        "another kind": {"state": {"set": []}},
        "no dict": {"state": {"list": []}},
        "none of it": {"param_groups": None},
    }
    for name, change in broken.items():
        metadata = kept | {"optimizer": kept["optimizer"] | change}
        save_tensors(load_file(tmp_path / "state"), tmp_path / "broken", {"pe_lab": json.dumps(metadata)})
        made = training("optimizer=sgd")
        before = {key: value.clone() for key, value in made.model.state_dict().items()}
        with pytest.raises(LedgerError, match="must be a state of the training, got another"):
            restore(made, tmp_path / "broken")
        assert same(before, made.model.state_dict()), name
        assert not made.optimizer.state, name


def test_packed_values_are_unpacked_to_the_same_type_and_value() -> None:
    value = {"a": [1, 2.5, (None, True, "x")], 3: torch.arange(3), "inf": -float("inf"), "deep": {"t": [torch.ones(2)]}}
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack(value, "v", tensors), allow_nan=False))
    assert same(unpack(packed, tensors), value)
    with pytest.raises(ValueError, match="v.x must be made of tensors and plain values to be saved, got set"):
        pack({"x": {1}}, "v", {})
