"""The memory budget: the memory of a device, and what the parts of a cell need of it."""

import os
from collections import Counter
from collections.abc import Callable

import torch
from omegaconf import DictConfig

from pe_lab.data.base import Dataset, InMemory
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.sizes import Sizes

WEIGHT = 4  # bytes of a parameter
TRAINED = 16  # bytes of a parameter, its gradient and its two moments
TOKEN = 33  # bytes of a token in memory: tokens, targets, roles, positions, segments


class MemoryBudget:
    """The memory of a device, and what the parts of a cell need of it at least.

    Args:
        device: that trains the cell.
    """

    def __init__(self, device: torch.device) -> None:
        self.needs: Counter[str] = Counter()
        if device.type == "cuda":
            self.bytes = torch.cuda.get_device_properties(device).total_memory
        else:
            self.bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def need(self, number: int, part: str) -> None:
        """Add bytes that a part needs.

        Args:
            part: the settings that it comes from, for the error.

        Raises:
            ValueError: all parts together exceed the memory; names the largest.
        """
        self.needs[part] += number
        if (needed := self.needs.total()) > self.bytes:
            raise ValueError(
                f"{self.needs.most_common(1)[0][0]} must fit in the memory of {self.bytes / 2**30:,.0f} GiB, "
                f"got a cell that needs at least {needed // 2**30:,} GiB"
            )

    def need_sequences(self, cfg: DictConfig, dataset: Dataset, *splits: str) -> None:
        """Add the sequences of these splits, if the dataset keeps them in memory."""
        if isinstance(dataset, InMemory):
            sequences = sum(map(dataset.size, splits))
            self.need(TOKEN * sequences * dataset.task.length, f"the sequences of data={cfg.data.name}")

    def need_weights(self, cfg: DictConfig, dataset: Dataset, size: int) -> str:
        """Add the model's weights with `size` bytes each. Returns the settings that they come from."""
        model, task = cfg.model, dataset.task
        shape = f"model.depth={model.depth}, model.width={model.width}, model.mlp_ratio={model.mlp_ratio}"
        layers = model.depth * (4 + 2 * model.mlp_ratio) * model.width**2
        self.need(size * (layers + (task.vocabulary + task.outputs) * model.width), shape)
        return shape

    def need_training(self, cfg: DictConfig, dataset: Dataset) -> None:
        """Add sequences, weights and one batch; all but the encoding."""
        model, task, batch = cfg.model, dataset.task, cfg.trainer.batch_size
        self.need_sequences(cfg, dataset, *dataset.splits)
        shape = self.need_weights(cfg, dataset, TRAINED)
        answers = (1 if task.pooled else task.length) * task.outputs
        inside = task.length * model.width * model.depth * (4 + model.mlp_ratio)
        size = 2 if cfg.trainer.precision == "bf16-mixed" else 4
        self.need(size * batch * (2 * answers + inside), f"trainer.batch_size={batch} with {shape}")


def encoding_bytes(encoding: Callable[[Sizes], PositionalEncoding], sizes: Sizes) -> int:
    """Return the bytes that an encoding's parameters and buffers need in training, without making them.

    0 where it is not known: a user's class may compute values that torch's meta device does not have.
    """
    try:
        with torch.device("meta"):
            made = encoding(sizes)
    except RuntimeError:
        return 0
    return TRAINED * sum(tensor.numel() for tensor in (*made.parameters(), *made.buffers()))
