"""The processes that train a run on one or several devices: communication between them, and their core-seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes that train a run together. The first writes to the ledger, and decides what they do next."""

    rank: int = 0
    size: int = 1

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def broadcast(self, ask: Callable[[], T]) -> T:
        """Return the value of the first rank on all ranks."""
        if self.size == 1:
            return ask()
        answer = [ask() if self.is_rank_zero else None]
        torch.distributed.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
        return answer[0]  # type: ignore[return-value]


def core_seconds(seconds: float, threads: int, processes: int) -> float:
    """Return the core-seconds of a training, whose processes keep a core for each of their threads.

    On a CPU each process has one thread. On a GPU these are cores of the host, as many as torch has threads there.

    Args:
        seconds: the seconds that one process has spent in training steps.
        threads: the number of threads of each process.
        processes: the number of processes that train together.
    """
    return seconds * threads * processes
