"""The LightningDataModule of a task: batches of its sequences, in an order that is a function of (seed, epoch)."""

from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler

from pe_lab.config.trainer_arguments import require_split
from pe_lab.data.base import IGNORE, Batch, Dataset, epoch_order
from pe_lab.training.metrics import chunk_size

Key = tuple[int, Tensor]  # of a batch: the epoch, and the indices of its sequences
Settings = DictConfig | dict[str, Any]  # of a cell


class BatchOrder(SequentialSampler, DistributedSampler[Any]):
    """Yields the keys of as many batches as an epoch has, from any batch of the training on.

    Lightning replaces samplers of other classes: with several devices by one that gives each device batches of its own,
    and with `overfit_batches` by one that does not shuffle. Here each batch is split over the devices, and the batches
    to overfit are the first.

    Args:
        size: the number of sequences.
        batch_size: the number of sequences in a batch, of all devices together.
        seed: the seed of the order; None: sequences are in the order of their indices.
        rank, ranks: the number of this device, from 0, and the number of devices.
        fixed: whether it always starts with the first batch.

    Attributes:
        start: the number of the next batch, counted from the start of the training.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int | None = None, rank: int = 0, ranks: int = 1, fixed: bool = False
    ) -> None:
        self.size, self.batch_size, self.shuffle_seed = size, batch_size, seed
        self.rank, self.ranks, self.fixed = rank, ranks, fixed
        self.start = 0
        self.last_order: tuple[int, Tensor] | None = None  # an epoch, and its order

    def set_epoch(self, epoch: int) -> None:
        self.start = epoch * len(self)

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[Key]:  # type: ignore[override]  # keys in place of indices
        start = 0 if self.fixed else self.start
        for number in range(start, start + len(self)):
            epoch, index = self.whole(number)
            yield epoch, index[self.rank :: self.ranks]

    def whole(self, number: int) -> Key:
        """Return the key of a batch of all devices together."""
        epoch, batch = divmod(number, len(self))
        return epoch, self.epoch_indices(epoch)[batch * self.batch_size : (batch + 1) * self.batch_size]

    def epoch_indices(self, epoch: int) -> Tensor:
        """Return the indices of all sequences in the order of an epoch."""
        if self.last_order is None or self.last_order[0] != epoch:
            self.last_order = None  # two orders of a large text do not fit into memory beside each other
            self.last_order = epoch, self._make_indices(epoch)
        return self.last_order[1]

    def _make_indices(self, epoch: int) -> Tensor:
        seed = self.shuffle_seed
        return torch.arange(self.size) if seed is None else epoch_order(self.size, seed, epoch)


class SplitBatches(torch.utils.data.Dataset[Batch]):
    """The sequences of a split, read in batches by key; `len` is the number of sequences.

    Args:
        fresh: whether every epoch has training sequences of its own.
    """

    def __init__(self, dataset: Dataset, split: str, fresh: bool = False) -> None:
        self.dataset, self.split, self.fresh = dataset, split, fresh
        self.last_dataset: tuple[int, Dataset] | None = None  # an epoch, and the dataset with its sequences

    def __getitem__(self, key: Key) -> Batch:
        epoch, index = key
        dataset = self.dataset
        if self.fresh:
            if self.last_dataset is None or self.last_dataset[0] != epoch:
                self.last_dataset = epoch, dataset.with_epoch(epoch)
            dataset = self.last_dataset[1]
        return dataset.batch(self.split, index, epoch)

    def __len__(self) -> int:
        return self.dataset.size(self.split)


class Loader(DataLoader[Batch]):
    """A DataLoader that starts at the current batch of the training, also within an epoch or after a checkpoint.

    Args:
        trained_batches: a function that returns the number of batches trained so far; None: start at the first batch of
            the order.
        workers: the number of processes that prepare batches; 0: this process makes each batch when it is needed.
    """

    def __init__(
        self, rows: SplitBatches, order: BatchOrder, trained_batches: Callable[[], int] | None = None, workers: int = 0
    ) -> None:
        super().__init__(rows, sampler=order, batch_size=None, collate_fn=_identity, num_workers=workers)
        self.rows, self.order, self.trained_batches = rows, order, trained_batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, which asks for it late
        if self.trained_batches is not None:  # asked at the first batch, when Lightning has restored a checkpoint
            self.order.start = self.trained_batches()
        yield from super().__iter__()

    def answers(self, first: int, count: int) -> int:
        """Return the number of answers in batches of all devices together, made anew.

        Args:
            first: the number of the first batch, counted as by the order.
        """
        batches = (self.rows[self.order.whole(number)] for number in range(first, first + count))
        return sum(int((batch.targets != IGNORE).sum()) for batch in batches)

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches trained on, which a Trainer restores. Having it says: one can resume."""
        return {"batches": self.trained_batches() if self.trained_batches is not None else 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: see `state_dict`."""


class Sequences(L.LightningDataModule):
    """The sequences of a cell's task, for any Trainer.

    Args:
        settings: the settings of the cell, of which data, seed, trainer.batch_size and trainer.fresh are read.
        dataset: the dataset that the settings describe, where it has been made already.
        workers: the number of processes that make training batches ahead, in the same order; text in them is the same
            memory map.
    """

    def __init__(self, settings: Settings, dataset: Dataset | None = None, workers: int = 0) -> None:
        super().__init__()
        self.workers = workers
        self.cfg = as_config(settings)
        self.dataset = make_dataset(self.cfg) if dataset is None else dataset

    def train_dataloader(self) -> Loader:
        """Return the batches of training.

        Raises:
            ValueError: the batches cannot be split over the devices.
        """
        size, batch_size = self.dataset.size("train"), self.cfg.trainer.batch_size
        rank, ranks, fixed, trained_batches = 0, 1, False, None
        trainer: Any = self.trainer  # which sets its settings by name
        if trainer is not None:
            rank, ranks, fixed = trainer.global_rank, trainer.world_size, trainer.overfit_batches > 0
            trained_batches = lambda: batches_done(trainer)  # noqa: E731
        require_split(size, batch_size, ranks)
        order = BatchOrder(size, batch_size, self.cfg.seed, rank, ranks, fixed)
        return Loader(SplitBatches(self.dataset, "train", self.cfg.trainer.fresh), order, trained_batches, self.workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the validation split; every device evaluates all of it."""
        return self._whole_loader("validation")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the test split; every device evaluates all of it."""
        return self._whole_loader("test")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Return the test split."""
        return self._whole_loader("test")

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        if device.type == "cpu":
            return batch
        return batch.pinned().to(device, non_blocking=True) if device.type == "cuda" else batch.to(device)

    def _whole_loader(self, split: str) -> DataLoader[Batch]:
        order = BatchOrder(self.dataset.size(split), chunk_size(self.dataset), fixed=True)
        return DataLoader(SplitBatches(self.dataset, split), sampler=order, batch_size=None, collate_fn=_identity)


def batches_done(trainer: L.Trainer) -> int:
    """Return the number of batches that a Trainer has trained on, with those of the checkpoint that it continues.

    Unlike epochs, it is right after a training that ended in the middle of one.
    """
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.completed)


def _identity(batch: Any) -> Any:
    return batch


def as_config(settings: Settings) -> DictConfig:
    """Return settings as a config."""
    return settings if isinstance(settings, DictConfig) else OmegaConf.create(settings)


def make_dataset(cfg: DictConfig) -> Dataset:
    """Return the dataset of a cell. Its sequences are made when they are first used."""
    dataset: Dataset = instantiate(cfg.data)(seed=cfg.seed)
    return dataset
