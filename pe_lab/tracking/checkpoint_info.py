"""The values that loggers and pictures receive about a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CheckpointInfo:
    """Describes the checkpoint that is logged.

    Attributes:
        run: the training run's name in the ledger.
        target: the number of epochs, or of steps, that names the checkpoint in its run.
        name: the name of the cell in words: encoding, task, depth, epochs or steps, seed.
        settings: the resolved config, with this length of training.
        attention: the attention implementation that ran.
        ledger: the ledger's folder.
        requested: whether the config asks for this checkpoint, and not for a later one of the same run.
        best: "min" or "max" by metric, for metrics that only the dataset has.
    """

    run: str
    target: int
    name: str
    settings: dict[str, Any]
    attention: str
    ledger: Path
    requested: bool = True
    best: Mapping[str, str] = field(default_factory=dict)
