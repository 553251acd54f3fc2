"""Whether a cell has room on this machine: told before anything large is made."""

import os
from collections import Counter
from math import prod
from typing import Any

import torch
from omegaconf import DictConfig
from torch.overrides import TorchFunctionMode

from pe_lab.data.base import Dataset, InMemory

WEIGHT = 4  # bytes of a parameter
TRAINED = 16  # bytes of a parameter, its gradient and its two moments
TOKEN = 33  # bytes of a token in memory, with what is asked at it and where it stands


class Room:
    """The memory of a device, and what the parts of a cell need of it at least.

    Args:
        device: that trains it.
    """

    def __init__(self, device: torch.device) -> None:
        self.needs: Counter[str] = Counter()
        if device.type == "cuda":
            self.bytes = torch.cuda.get_device_properties(device).total_memory
        else:
            self.bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def need(self, number: int, what: str) -> None:
        """Note that a part needs so many bytes more.

        Raises:
            ValueError: there is no room for all parts; names the largest.
        """
        self.needs[what] += number
        if (needed := self.needs.total()) > self.bytes:
            raise ValueError(
                f"{self.needs.most_common(1)[0][0]} must leave room in the memory of {self.bytes / 2**30:,.0f} GiB, "
                f"got a cell that needs at least {needed // 2**30:,} GiB"
            )

    def need_sequences(self, cfg: DictConfig, dataset: Dataset, *splits: str) -> None:
        """Note what the sequences of these splits need, where they are kept in memory."""
        if isinstance(dataset, InMemory):
            sequences = sum(map(dataset.size, splits))
            self.need(TOKEN * sequences * dataset.task.length, f"the sequences of data={cfg.data.name}")

    def need_weights(self, cfg: DictConfig, dataset: Dataset, size: int) -> str:
        """Note what the model's weights need, with `size` bytes each; returns what they come from."""
        model, task = cfg.model, dataset.task
        shape = f"model.depth={model.depth}, model.width={model.width}, model.mlp_ratio={model.mlp_ratio}"
        layers = model.depth * (4 + 2 * model.mlp_ratio) * model.width**2
        self.need(size * (layers + (task.vocabulary + task.outputs) * model.width), shape)
        return shape

    def need_all_but_encoding(self, cfg: DictConfig, dataset: Dataset) -> None:
        """Note what sequences, weights and a batch need."""
        model, task, batch = cfg.model, dataset.task, cfg.trainer.batch_size
        self.need_sequences(cfg, dataset, *dataset.splits)
        shape = self.need_weights(cfg, dataset, TRAINED)
        answers = (1 if task.pooled else task.length) * task.outputs
        inside = task.length * model.width * model.depth * (4 + model.mlp_ratio)
        size = 2 if cfg.trainer.precision == "bf16-mixed" else 4
        self.need(size * batch * (2 * answers + inside), f"trainer.batch_size={batch} with {shape}")


class Claims(TorchFunctionMode):
    """Tensors that are made inside are noted before they are made.

    Args:
        room: that they are to be in.
        what: they are parts of.
    """

    def __init__(self, room: Room, what: str) -> None:
        super().__init__()
        self.room, self.what = room, what

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            self.room.need(TRAINED * prod(args[0] if isinstance(args[0], (tuple, list)) else args), self.what)
        elif func is torch.empty_like:
            self.room.need(TRAINED * args[0].numel(), self.what)
        return func(*args, **(kwargs or {}))
