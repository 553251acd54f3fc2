"""What tests of training share."""

from collections.abc import Callable
from typing import Any

import pytest

from pe_lab.data.base import Batch
from pe_lab.training.module import Training

BeforeSteps = Callable[[Callable[[Training, Batch], object] | None], None]


@pytest.fixture
def before_steps(monkeypatch: pytest.MonkeyPatch) -> BeforeSteps:
    """Has a function called with the module and the batch before each training step; None: no function."""
    training_step = Training.training_step

    def call_before(function: Callable[[Training, Batch], object] | None) -> None:
        def step(self: Training, batch: Batch, *rest: Any) -> Any:
            if function is not None:
                function(self, batch)
            return training_step(self, batch, *rest)

        monkeypatch.setattr(Training, "training_step", step)

    return call_before


@pytest.fixture
def no_training(before_steps: BeforeSteps) -> Callable[[], None]:
    """From its call on, a training step fails the test."""
    return lambda: before_steps(lambda *_: pytest.fail("it was trained"))
