"""A cell: what a config means, its identity, and how it is trained, evaluated and recorded."""

import json
import logging
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from pe_lab import config
from pe_lab.attention import resolve
from pe_lab.data.base import Dataset
from pe_lab.encodings.base import Layout, PositionalEncoding, Sizes
from pe_lab.evaluate import evaluate
from pe_lab.model import Transformer
from pe_lab.results.ledger import Ledger, Road
from pe_lab.seeding import initialise
from pe_lab.training import NotFinite, Recorder, Training

POLL = 0.3  # seconds between two looks at a road that somebody else serves


def options(leaf: DictConfig, made: type) -> dict[str, Any]:
    """A leaf of the config as it enters the identity: its options and its class's revision.

    Import paths are left out, and so are options added later that stand at their neutral value.
    """
    given = {key: value for key, value in OmegaConf.to_container(leaf, resolve=True).items() if key[0] != "_"}
    neutral = made.neutral
    kept = {key: value for key, value in given.items() if key not in neutral or value != neutral[key]}
    return kept | {"revision": made.revision}


class Cell:
    """What a config means on this machine. Making one is cheap: no sequences, no model.

    Args:
        cfg: composed, and tested by config.check.

    Raises:
        ValueError: the parts do not fit each other.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self.epochs: int = cfg.epochs
        self.device = torch.device(_device(cfg.trainer.device))
        self.dataset: Dataset = instantiate(cfg.data)(seed=cfg.seed)
        if cfg.trainer.batch_size > self.dataset.size("train"):
            raise ValueError(
                f"trainer.batch_size must be at most the number of training sequences, "
                f"{self.dataset.size('train')} in {cfg.data.name}, got {cfg.trainer.batch_size}"
            )
        self.encoding: Callable[[Sizes], PositionalEncoding] = instantiate(cfg.pe)
        sizes = Sizes(cfg.model.width, cfg.model.num_heads, self.dataset.length)
        self.implementation = self._implementation(self.encoding(sizes).to(self.device))

    def _implementation(self, encoding: PositionalEncoding) -> str:
        """The attention that will run, found by asking the encoding what it needs on a sequence of two tokens."""
        layout = Layout.of_lengths(torch.tensor([2], device=self.device), 2, self.dataset.causal)
        with torch.no_grad():
            terms = encoding.terms(torch.zeros(1, 2, self.cfg.model.width, device=self.device), layout)
        self.encoding_class = type(encoding)
        return resolve(self.cfg.attention.implementation, terms, self.device)

    def name(self, epochs: int | None = None) -> str:
        """For people: encoding, depth, epochs (the cell's own, or another stop's on its road), seed."""
        return f"{self.cfg.pe.name}-d{self.cfg.model.depth}-e{epochs or self.epochs}-s{self.cfg.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """What determines the training; its hash is the road's name."""
        cfg = self.cfg
        identity = {
            "pe": options(cfg.pe, self.encoding_class),
            "data": options(cfg.data, type(self.dataset)),
            "model": options(cfg.model, Transformer),
            "optimizer": options(cfg.optimizer, Training),
            "batch_size": cfg.trainer.batch_size,
            "clip": cfg.trainer.clip,
            "seed": cfg.seed,
            "device": self.device.type,
            "attention": self.implementation,
            "precision": cfg.trainer.precision,
        }
        if cfg.optimizer.schedule == "cosine":  # looks at the end: each number of epochs is a road of its own
            identity["epochs"] = self.epochs
        return identity

    @cached_property
    def road(self) -> Road:
        return Ledger(self.cfg.ledger).road(self.identity)

    def want(self) -> None:
        """Write down that this process wants the cell."""
        self.road.want(self.epochs)

    def unwant(self) -> None:
        """Take that back."""
        self.road.unwant(self.epochs)

    def serve(self, wait: bool) -> None:
        """See to it that the cell is done.

        The wish is written first, then the lease is tried; its holder serves every wanted stop, releases it, and
        looks again. If another process holds it, that one has been told.

        Args:
            wait: for another process that holds the lease; otherwise return at once.

        Raises:
            BaseException: what ended the training; it is recorded with the stops that could not be reached.
        """
        road = self.road
        while not road.done(self.epochs) and road.failure(self.epochs) is None:
            with road.lease() as mine:
                if mine:
                    Journey(self, road).serve_all()
                    continue
            if not wait:
                return
            time.sleep(POLL)

    def build(self) -> Training:
        """The model with its initial weights, ready to train."""
        cfg = self.cfg
        model = Transformer(
            cfg.model, self.encoding, self.dataset.vocabulary, self.dataset.length, self.implementation
        )
        initialise(model, cfg.seed)
        model.to(self.device)
        return Training(model, self.dataset, cfg.optimizer, cfg.trainer, cfg.seed, self.epochs)


def _device(asked: str) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.device=cuda needs a CUDA device, and there is none; use trainer.device=cpu or auto")
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return asked


class Journey:
    """One worker's way along a road whose lease it holds."""

    def __init__(self, cell: Cell, road: Road) -> None:
        self.cell, self.road = cell, road
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0  # of training, on all the way so far
        self.loggers: list[L.pytorch.loggers.Logger] = []

    def serve_all(self) -> None:
        """Train to every wanted stop, in order, and record each."""
        if self.cell.device.type == "cpu":
            torch.set_num_threads(1)  # two are not reproducible against themselves
        training: Training | None = None
        while wanted := self.road.wanted():
            target = wanted[0]
            try:
                if training is None or training.step > target * training.steps_per_epoch:
                    training = self._start(target)
                self._travel(training, target)
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt) or type(error) is SystemExit
                if not interrupted:
                    step = error.step if isinstance(error, NotFinite) else training.step if training else None
                    for epochs in wanted:
                        self.road.fail(epochs, config.in_one_line(error), step)
                raise

    def _start(self, target: int) -> Training:
        """The training as the newest state before the target left it, or from the start."""
        training = self.cell.build()
        self.rows, self.seconds = [], 0.0
        self.flops_per_token = training.model.flops_per_token(self.cell.dataset.length, self.cell.dataset.causal)
        state = self.road.newest_state()
        if state is not None:
            with safe_open(state, "pt") as file:
                kept = json.loads(file.metadata()["pe_lab"])
            if kept["step"] <= target * training.steps_per_epoch:
                self._restore(training, load_file(state), kept)
        return training

    def _restore(self, training: Training, tensors: dict[str, Tensor], kept: dict[str, Any]) -> None:
        part = _parts(tensors)
        training.model.load_state_dict(part["model"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in part.get("optimizer", {}).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        groups = training.optimizer.state_dict()["param_groups"]
        training.optimizer.load_state_dict({"state": state, "param_groups": groups})
        training.losses = list(part["losses"]["epoch"].to(self.cell.device)) if "losses" in part else []
        training.step = kept["step"]
        self.rows, self.seconds = kept["rows"], kept["seconds"]

    def _save(self, training: Training) -> None:
        """Write the full state under its name, unless a newer one is there."""
        tensors = {f"model.{name}": tensor for name, tensor in training.model.state_dict().items()}
        for index, values in training.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": tensor for key, tensor in values.items()}
        if training.losses:
            tensors["losses.epoch"] = torch.stack(training.losses)
        kept = {"step": training.step, "rows": self.rows, "seconds": self._seconds()}
        temporary = self.road.temporary_file()
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            temporary,
            metadata={"pe_lab": json.dumps(kept)},
        )
        self.road.keep_state(temporary, training.step)

    def _seconds(self) -> float:
        return self.seconds + (time.perf_counter() - self.started)

    def _travel(self, training: Training, target: int) -> None:
        """Train to the target, evaluate there, and record the stop."""
        cfg = self.cell.cfg
        self.started = time.perf_counter()
        self.road.beat(training.epoch, target)
        self.loggers = instantiate(cfg.logger)(cell=self.cell, epochs=target)
        try:
            for row in self.rows:
                self._tell(row["split"], {row["metric"]: row["value"]}, row["step"], row["epoch"])
            if training.step < target * training.steps_per_epoch:
                self._train(training, target)
            self.seconds = self._seconds()
            self._record(training, target)
        except BaseException:
            for logger in self.loggers:
                logger.finalize("failed")
            raise
        for logger in self.loggers:
            logger.finalize("success")

    def _train(self, training: Training, target: int) -> None:
        cfg = self.cell.cfg

        def log(split: str, metrics: dict[str, float]) -> None:
            place = {"split": split, "step": training.step, "epoch": round(training.epoch, 6)}
            self.rows += [place | {"metric": name, "value": value} for name, value in metrics.items()]
            self._tell(split, metrics, training.step, training.epoch)

        def validate() -> None:
            log("validation", self._evaluate(training, "validation"))

        recorder = Recorder(
            log,
            validate,
            lambda: self._save(training),
            lambda epoch: self.road.beat(epoch, target),
            cfg.trainer.save_every,
        )
        quiet()
        L.Trainer(
            accelerator=self.cell.device.type,
            devices=1,
            precision="bf16-mixed" if cfg.trainer.precision == "bf16-mixed" else "32-true",
            max_epochs=target - training.step // training.steps_per_epoch,
            logger=False,
            callbacks=[recorder],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            num_sanity_val_steps=0,
        ).fit(training)
        training.model.to(self.cell.device)

    def _evaluate(self, training: Training, split: str) -> dict[str, float]:
        autocast = torch.autocast(
            self.cell.device.type, torch.bfloat16, enabled=self.cell.cfg.trainer.precision == "bf16-mixed"
        )
        return evaluate(training.model, self.cell.dataset, split, autocast)

    def _tell(self, split: str, metrics: dict[str, float], step: int, epoch: float) -> None:
        named = {f"{split}/{name}": value for name, value in metrics.items()}
        for logger in self.loggers:
            logger.log_metrics(named | {"step": step, "epoch": epoch}, step)

    def _record(self, training: Training, target: int) -> None:
        """Write the stop: what it came to, how, and the weights."""
        cell, model = self.cell, training.model
        test = self._evaluate(training, "test")
        floors = cell.dataset.floors("test")
        rows = [
            *self.rows,
            *(
                {"split": "test", "step": training.step, "epoch": target, "metric": name, "value": value}
                for name, value in test.items()
            ),
        ]
        tokens = training.step / training.steps_per_epoch * cell.dataset.size("train") * cell.dataset.length
        summary = {
            "name": cell.name(target),
            "road": self.road.name,
            "epochs": target,
            "steps": training.step,
            "test": test,
            "floors": floors,
            "parameters": sum(p.numel() for p in model.parameters()),
            "positional_parameters": model.positional_parameters(),
            "flops_per_token": self.flops_per_token,
            "seconds": self.seconds,
            "tokens_per_second": tokens / self.seconds if self.seconds else None,
            "attention": cell.implementation,
            "device": cell.device.type,
        }
        resolved = OmegaConf.merge(cell.cfg, {"epochs": target})
        with self.road.recording(target) as folder:
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(resolved, resolve=True))
            pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)
            (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
            (folder / "environment.json").write_text(json.dumps(environment(cell), indent=1) + "\n")
            save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "weights.safetensors")
        self.started = time.perf_counter()
        self._save(training)
        self._tell("test", test, training.step, target)
        for name, values in floors.items():
            self._tell(f"floor/{name}", values, training.step, target)


def quiet() -> None:
    """Keep Lightning from announcing devices and products, and from warning about its own code."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")


def _parts(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by the first part of their name."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        first, _, rest = name.partition(".")
        parts.setdefault(first, {})[rest] = tensor
    return parts


def environment(cell: Cell) -> dict[str, Any]:
    """Versions, commit, device and threads, as they are while the cell runs."""
    packages = ("torch", "lightning", "hydra-core", "numpy", "pandas", "safetensors")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "pe_lab": version("pe_lab"),
        "commit": _commit(),
        "device": torch.cuda.get_device_name() if cell.device.type == "cuda" else platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def _commit() -> str | None:
    """The commit of the checkout this package stands in, with a + if files differ from it; None outside of one."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
