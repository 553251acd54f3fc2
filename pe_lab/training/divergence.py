"""The failure of a training whose loss is not finite: it would fail again."""


class NotFiniteError(ArithmeticError):
    """A loss is not finite."""

    def __init__(self, which: str, step: int, value: float) -> None:
        super().__init__(f"the {which} loss must be finite, got {value} at step {step}")
        self.step = step


class CheckpointNotFiniteError(NotFiniteError):
    """A loss is not finite that is computed for a checkpoint only: later checkpoints do not depend on it."""
