"""The failure of a training whose loss is not finite: it would fail again."""

import re

_MESSAGE = re.compile(r"the \w+ loss must be finite, ")


class NotFiniteError(ArithmeticError):
    """A loss is not finite."""

    def __init__(self, which: str, step: int, value: float) -> None:
        super().__init__(f"the {which} loss must be finite, got {value} at step {step}")
        self.step = step


class CheckpointNotFiniteError(NotFiniteError):
    """A loss is not finite that is computed for a checkpoint only: later checkpoints do not depend on it."""


def diverged(reason: str) -> bool:
    """Return whether a cell failed because a loss was not finite.

    Args:
        reason: of the failure, as the ledger keeps it.
    """
    return _MESSAGE.match(reason) is not None
