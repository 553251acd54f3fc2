"""Report in one line that there is not enough memory, with the settings that it depends on."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from omegaconf import DictConfig

# PyTorch has no class for it on CPUs, nor for what the libraries of CUDA report
NO_MEMORY = re.compile(r"allocate memory|out of memory|ALLOC_FAILED|Storage size calculation overflowed")
AMOUNT_PATTERN = re.compile(r"allocate ([\d.]+ \w+)")


class NoMemoryError(MemoryError):
    """A cell needs more memory than there is; the message names its settings."""


@contextmanager
def explain_memory_errors(cfg: DictConfig, length: int, purpose: str | None = None) -> Iterator[None]:
    """Name the settings on which memory depends, if there is none within the block.

    Args:
        length: the number of tokens of a sequence.
        purpose: the setting that asks for a measurement; None: a training, whose memory depends on its batch size.

    Raises:
        NoMemoryError: memory could not be allocated.
    """
    try:
        yield
    except NoMemoryError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, (MemoryError, torch.OutOfMemoryError)) or NO_MEMORY.search(str(error))):
            raise
        amount = AMOUNT_PATTERN.search(str(error))
        raise NoMemoryError(
            f"{purpose or f'trainer.batch_size={cfg.trainer.batch_size}'}, sequences of {length} tokens "
            f"(data={cfg.data.name}), pe={cfg.pe.name}, model.depth={cfg.model.depth} and "
            f"model.width={cfg.model.width} must fit in memory, got none for {amount[1] if amount else 'all of it'}"
        ) from error
