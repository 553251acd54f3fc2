"""Trained cells by a few of their settings: model, data, metrics and config."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from pe_lab import config
from pe_lab.config.config_folders import add_import_paths
from pe_lab.config.errors import OTHER_NAMES
from pe_lab.data.base import Dataset
from pe_lab.data.seeding import derive_seed, seed_all
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.ledger.run import Run
from pe_lab.model.transformer import Transformer
from pe_lab.results.cell_rows import Settings
from pe_lab.results.frame import named_cells
from pe_lab.results.from_ledger import settings_of_cells, validation_by_step
from pe_lab.results.stored_checkpoint import read_checkpoint_settings
from pe_lab.statistics.comparisons import count_in_words
from pe_lab.system.files import LedgerError
from pe_lab.system.names import HELP_COMMAND, unknown_name_message
from pe_lab.system.plain import read_yaml
from pe_lab.training.weights import load_checkpoint

SHORT_NAMES = {"pe": "pe.name", "data": "data.name"}
LEADING_NAMES = (*SHORT_NAMES, "depth", "epochs", "steps", "seed", "lr")  # those named first in a message
MAX_VALUES = 6  # of a setting that are named in a message


@dataclass(frozen=True)
class TrainedCell:
    """A trained model, with what it was trained on and what was measured.

    Attributes:
        name: the name of the cell in words: encoding, task, depth, epochs or steps, seed.
        model: the trained model, on the CPU, in evaluation mode. It computes attention by whatever implementation can
            (`auto`).
        data: the dataset; its sequences are made when they are asked for.
        metrics: the metrics of the test split, by name.
        summary: all that the checkpoint's summary says: floors, parameters, FLOPs, seconds and more.
        config: all settings of the cell.
        run: the training run in the ledger.
        checkpoint: the folder of the checkpoint, with the weights, the summary and the config as files.
    """

    name: str
    model: Transformer
    data: Dataset
    metrics: dict[str, float]
    summary: dict[str, Any]
    config: DictConfig
    run: Run
    checkpoint: Path

    def __repr__(self) -> str:
        parts = ("all", *self.data.roles)  # their metrics are beside those of the headline
        headline = {name: value for name, value in self.metrics.items() if name.partition("_")[2] not in parts}
        floors = {
            level.replace("_", "-"): values["loss"]
            for level, values in self.summary["floors"].items()
            if "loss" in values
        }
        size, length = self.data.size("test"), self.data.task.length
        lines = {
            "metrics": f"test {_numbers_text(headline)}",
            "summary": f"floors of the loss: {_numbers_text(floors) or 'none'}",
            "history": f"{count_in_words(len(self.history), 'validation')} during training",
            "model": f"{self.config.model.depth} layers, {self.summary['parameters']:,} parameters",
            "data": f"{self.data.name}, {size:,} test sequences of up to {length:,} tokens",
            "checkpoint": str(self.checkpoint),
        }
        return "\n".join([f"TrainedCell {self.name}", *(f"  .{name:<10}  {text}" for name, text in lines.items())])

    @cached_property
    def history(self) -> pd.DataFrame:
        """The metrics of the validation split during training: one row per validation, by step."""
        by_step = validation_by_step(self.checkpoint)
        return pd.DataFrame(by_step.values(), index=pd.Index(by_step, name="step"))

    def logits(self, tokens: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        """Return the logits of the answers to sequences of one's own; softmax makes probabilities of them.

        Args:
            tokens: numbers of tokens, [T] or [B, T] without padding, from 0 to `data.task.vocabulary` - 1.
                `data.batch("test", index)` shows how the task writes its sequences.

        Returns:
            [S, outputs] for tokens [T], otherwise [B, S, outputs]; S = T, or 1 if the task asks one question about the
            whole sequence.

        Raises:
            ValueError: tokens are not such numbers; the encoding is not defined at this length; the task's tokens have
                marks, which must be given with the layout to `model`.
        """
        task = self.data.task
        try:
            own = torch.as_tensor(tokens)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"tokens must be integers [T] or [B, T], got {str(tokens)[:80]}: {error}") from None
        if own.dtype not in (torch.int32, torch.int64) or own.dim() not in (1, 2) or not own.numel():
            raise ValueError(f"tokens must be integers [T] or [B, T], got {own.dtype} {list(own.shape)}")
        if not 0 <= own.min() <= own.max() < task.vocabulary:
            wrong = own.min() if own.min() < 0 else own.max()
            raise ValueError(f"tokens of {self.data.name} must be in 0 ... {task.vocabulary - 1}, got {wrong}")
        if task.marks is not None:
            raise ValueError(f"tokens of {self.data.name} have marks: call cell.model(tokens, layout) with a layout")
        rows = torch.atleast_2d(own)
        device = self.model.tokens.weight.device
        layout = task.layout(torch.full((len(rows),), rows.shape[1], device=device), rows.shape[1])
        with torch.no_grad(), torch.random.fork_rng():
            seed_all(derive_seed(self.config.seed, "logits"), device)  # of encodings that draw positions
            logits: Tensor = self.model(rows.to(device), layout)
        return logits[0] if own.dim() == 1 else logits

    def predict(self, tokens: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        """Return the most likely answers to sequences of one's own, [S] or [B, S]; see `logits`."""
        return self.logits(tokens).argmax(-1)


def _numbers_text(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def load_cell(ledger: str | PathLike[str], study: str | None, settings: Mapping[str, Any]) -> TrainedCell:
    """Load the one cell of a ledger that has these settings: see `pe_lab.load`."""
    if not isinstance(ledger, str | PathLike):
        raise TypeError(f"ledger must be the path of a folder, got {ledger!r}")
    return load_checkpoint_cell(*find_cell(Path(ledger), study, settings))


def load_checkpoint_cell(run: Run, target: int, foreign: bool = True) -> TrainedCell:
    """Load the cell of a checkpoint.

    Args:
        foreign: whether classes may be imported that the ledger names and no file of `conf/` does.

    Raises:
        LedgerError: the checkpoint is damaged, has no weights, or needs such a class.
    """
    cfg = _complete_config(run, target, foreign)
    summary = run.summary(target)
    data: Dataset = instantiate(cfg.data)(seed=cfg.seed)
    model = Transformer(cfg.model, instantiate(cfg.pe), data.task)
    load_checkpoint(model, run, target)
    return TrainedCell(summary["name"], model.eval(), data, summary["test"], summary, cfg, run, run.checkpoint(target))


def find_cell(folder: Path, study: str | None, settings: Mapping[str, Any]) -> tuple[Run, int]:
    """Return the run and the checkpoint of the one cell that has these settings.

    Raises:
        ValueError: there is no such ledger, study or setting; no cell has these settings, or several have.
    """
    if not folder.is_dir():
        raise ValueError(f"ledger must be an existing folder, got {str(folder)!r}")
    checkpoint = None
    if folder.parent.name == "checkpoints":  # the last line of pe-lab run names it
        folder, checkpoint = folder.parents[2], folder
    elif folder.parent.name == "studies" and study is None:
        folder, study = folder.parents[1], folder.name
    cells, refused = settings_of_cells(folder)
    if checkpoint is not None:
        cells = [cell for cell in cells if cell[0].checkpoint(cell[1]) == checkpoint]
    if study is not None:
        named = set(named_cells(folder, study))
        cells = [cell for cell in cells if (cell[0].name, cell[1]) in named]
    where = f" in {folder}" + (f", study {study}" if study else "")
    if not cells:
        unreadable = f" and {len(refused)} that cannot be read, as: {refused[0]}" if refused else ""
        raise ValueError(f"ledger must have a finished cell, got none{where}{unreadable}")
    names = list(dict.fromkeys(["epochs", "steps", *(name for _, _, cell_settings in cells for name in cell_settings)]))
    chosen: list[str] = []
    for setting, value in settings.items():
        name = _full_setting_name(setting, names)
        kept = [cell for cell in cells if cell[2].get(name, "null") == _flatten_value(value)]
        if not kept:
            values = _sorted_texts([cell_settings for _, _, cell_settings in cells], name)
            raise ValueError(
                unknown_name_message(setting, values, value, where + "".join(f", {word}" for word in chosen))
            )
        cells, chosen = kept, [*chosen, f"{setting}={value}"]
    if len(cells) > 1:
        raise ValueError(
            f"load must match one cell, got {len(cells)}{where}{''.join(f', {word}' for word in chosen)}: they differ "
            f"in {_different_settings([cell_settings for _, _, cell_settings in cells])}; pe_lab.results.frame.load "
            "returns a table of all"
        )
    ((run, target, _),) = cells
    return run, target


def _full_setting_name(setting: str, names: list[str]) -> str:
    """Return the full name of a setting that may be given by its last word.

    Raises:
        ValueError: no cell has such a setting, or there are several of that last word.
    """
    name = SHORT_NAMES.get(setting, setting)
    if name in names:
        return name
    same = [full_name for full_name in names if full_name.rpartition(".")[2] == setting]
    if len(same) != 1:
        last_words = dict.fromkeys(
            full_name.rpartition(".")[2] for full_name in names if full_name not in SHORT_NAMES.values()
        )
        choices, listing = same or list(dict.fromkeys([*LEADING_NAMES, *last_words])), f"{HELP_COMMAND} all"
        meant = OTHER_NAMES.get(setting, setting).rpartition(".")[2]  # as other libraries call it
        if meant != setting and meant in choices:
            raise ValueError(f"setting={setting!r}: did you mean {meant}? {listing} lists all settings")
        raise ValueError(unknown_name_message("setting", choices, setting, listing=listing))
    return same[0]


def _flatten_value(value: Any) -> Any:
    """Return a value as `config.flatten_settings` has it."""
    return "null" if value is None else str(list(value)) if isinstance(value, (list, tuple)) else value


def _different_settings(cells: list[Settings]) -> str:
    """Return the settings in which cells differ, with their values."""
    full = {name: short for short, name in SHORT_NAMES.items()}
    parts = []
    for name in dict.fromkeys(name for cell_settings in cells for name in cell_settings):
        values = _sorted_texts(cells, name)
        if len(values) > 1:
            more = f" and {len(values) - MAX_VALUES} more" if len(values) > MAX_VALUES else ""
            parts.append(f"{full.get(name, name)} ({', '.join(values[:MAX_VALUES])}{more})")
    return ", ".join(parts)


def _sorted_texts(cells: list[Settings], name: str) -> list[str]:
    """Return the values of a setting as text, in order."""
    values = {cell_settings.get(name, "null") for cell_settings in cells}
    return [str(value) for value in sorted(values, key=lambda value: (isinstance(value, str), value))]


def _complete_config(run: Run, target: int, foreign: bool) -> DictConfig:
    """Return the config of a checkpoint, with the settings that came later at their defaults.

    Raises:
        LedgerError: the config names something else than an encoding and a dataset.
    """
    settings = read_checkpoint_settings(run, target)
    add_import_paths(settings)
    for group, base in (("pe", PositionalEncoding), ("data", Dataset)):
        for leaf in _with_target(settings[group]):
            if _is_declared(group, leaf):
                continue
            path = str(leaf["_target_"])
            config_class = _import_class(group, path, run.checkpoint(target)) if foreign else None
            if not (isinstance(config_class, type) and issubclass(config_class, base)):
                raise LedgerError(f"{group} of {run.checkpoint(target)} must be a class of {base.__name__}, got {path}")
    cfg = OmegaConf.merge(OmegaConf.structured(config.Config), settings)
    assert isinstance(cfg, DictConfig)
    return config.without_study_settings(cfg)


def _import_class(group: str, path: str, checkpoint: Path) -> Any:
    """Return the class of one's own that a checkpoint names.

    Raises:
        LedgerError: it cannot be imported.
    """
    try:
        return get_object(path)
    except Exception as error:  # whatever the module raises; hydra hides its kind
        module = path.partition(".")[0]
        reason = (str(error).splitlines() or [type(error).__name__])[:2][-1]  # hydra's second line has the error
        raise LedgerError(
            f"{group} of {checkpoint} must be a class that can be imported, got {path} ({reason}): add the "
            f"folder of {module}.py to PYTHONPATH, or set PE_LAB_CONFIG_DIR to the folder of its YAML file"
        ) from error


def _with_target(settings: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of settings that name a class, at any depth."""
    if isinstance(settings, dict):
        if "_target_" in settings:
            yield settings
        settings = list(settings.values())
    for inner in settings if isinstance(settings, list) else []:
        yield from _with_target(inner)


def _is_declared(group: str, leaf: dict[str, Any]) -> bool:
    """Return whether a file of a group names this class: of the package, of the user's folder, an installed one."""
    files = config.find_folders()
    names = sorted(files.names(group), key=lambda name: name != leaf.get("name"))  # mostly the file of its own name
    paths = [files.file(group, name) for name in names]
    return any(path and read_yaml(path.read_bytes()).get("_target_") == leaf["_target_"] for path in paths)
