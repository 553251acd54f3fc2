"""Trainings by a Trainer of one's own, for tests."""

import warnings
from typing import Any

import lightning as L

from pe_lab.experiment.executor import QUIET_ARGUMENTS
from pe_lab.experiment.trainer import silence_lightning
from pe_lab.training.checkpoints import SafeTensorsIO
from pe_lab.training.data import Sequences
from pe_lab.training.module import Training


def trainer(**arguments: Any) -> L.Trainer:
    """Return a Trainer on the CPU that prints and writes nothing, unless arguments say otherwise."""
    silence_lightning()
    plugins = {"plugins": [SafeTensorsIO()]} if "strategy" not in arguments else {}
    quiet = QUIET_ARGUMENTS | {"enable_checkpointing": False}
    return L.Trainer(**{"accelerator": "cpu", "devices": 1} | quiet | plugins | arguments)


def fit(training: Training, ckpt_path: Any = None, data: Sequences | None = None, **arguments: Any) -> L.Trainer:
    """Train, and return the Trainer that did."""
    made = trainer(**arguments)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*does not have many workers")
        made.fit(training, datamodule=data or Sequences(training.cfg, training.dataset), ckpt_path=ckpt_path)
    return made
