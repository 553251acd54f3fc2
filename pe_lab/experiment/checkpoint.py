"""What is written at a checkpoint: config, metrics, summary, environment, weights."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from pe_lab.data.base import Floors
from pe_lab.experiment.cell import Cell
from pe_lab.ledger.run import WEIGHTS, Run
from pe_lab.system.environment import environment
from pe_lab.system.files import write_json
from pe_lab.training.checkpoints import save_tensors
from pe_lab.training.module import Training


@dataclass(frozen=True)
class Checkpoint:
    """A training at a number of epochs or steps, evaluated on the test split.

    Attributes:
        target: the number of epochs or steps that names it in its run.
        step: that the training is at.
        solved: the step at which the training stopped since the task was solved; None: it did not.
        test: metrics by name.
        rows: of metrics on the way, without the test.
        seconds: in training steps, since the start of the run.
        flops_per_token: of one forward pass.
    """

    cell: Cell
    run: Run
    target: int
    step: int
    solved: int | None
    training: Training
    test: dict[str, float]
    floors: Floors
    rows: list[dict[str, Any]]
    seconds: float
    flops_per_token: float

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        cell, training = self.cell, self.training
        epoch = self.step / cell.steps_per_epoch
        tokens = epoch * cell.dataset.size("train") * cell.dataset.task.length
        return {
            "name": cell.name(self.target),
            "run": self.run.name,
            **({"epochs": self.target} if cell.unit == "epochs" else {"epochs": epoch, "target": self.target}),
            "steps": self.step,
            **({} if cell.cfg.solve.level is None else {"solved": self.solved}),
            "test": self.test,
            "floors": self.floors,
            "parameters": sum(p.numel() for p in training.model.parameters()),
            "positional_parameters": training.model.positional_parameters(),
            "flops_per_token": self.flops_per_token,
            "seconds": self.seconds,
            "tokens_per_second": tokens / self.seconds if self.seconds else None,
            "attention": cell.implementation,
            "device": cell.device.type,
            "tokens_per_sequence": cell.dataset.task.length,
        }

    def write(self) -> None:
        """Write all files to the ledger."""
        cell = self.cell
        place = {"split": "test", "step": self.step, "epoch": self.summary["epochs"]}
        rows = [*self.rows, *(place | {"metric": name, "value": value} for name, value in self.test.items())]
        with self.run.recording(self.target) as folder:
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(cell.settings(self.target))))
            pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)
            write_json(folder / "summary.json", self.summary)
            surroundings = environment(cell.device) | {"attention": cell.attention_reason}
            if cell.cfg.trainer.graph:
                surroundings["graph"] = self.training.graph_reason
            write_json(folder / "environment.json", surroundings)
            save_tensors(self.training.model.state_dict(), folder / WEIGHTS)
