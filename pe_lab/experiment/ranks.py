"""What the processes that train a run on several devices agree on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes that train a run together. The first writes to the ledger, and decides what they do next."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, ask: Callable[[], T]) -> T:
        """Return on all ranks what the first gets."""
        if self.size == 1:
            return ask()
        import torch

        answer = [ask() if self.leads else None]
        torch.distributed.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
        return answer[0]  # type: ignore[return-value]
