"""Lightning's checkpoints as safetensors files, without pickles."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from pe_lab.ledger.training_states import read_metadata
from pe_lab.system.files import LedgerError, parse_json
from pe_lab.training.packing import copy_like, pack_value, unpack_value
from pe_lab.training.weights import save_tensors

METADATA_KEY = "pe_lab"  # of the metadata


class SafeTensorsIO(CheckpointIO):
    """Writes a checkpoint as one safetensors file: its tensors, and the rest as JSON in the file's metadata."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint.

        Args:
            storage_options: more values for the metadata, by name.

        Raises:
            ValueError: the checkpoint has something else in it than tensors and plain values.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {}
        packed = {name: pack_value(value, name, tensors) for name, value in checkpoint.items()}
        header = {"step": checkpoint["global_step"], "checkpoint": packed} | (storage_options or {})
        save_tensors(_distinct(tensors), path, {METADATA_KEY: json.dumps(header)})

    def load_checkpoint(self, path: Any, map_location: Any | None = None, weights_only: bool | None = None) -> Any:
        """Return the checkpoint of a file.

        Raises:
            LedgerError: the file is not one that `save_checkpoint` has written.
        """
        try:
            packed = parse_json(read_metadata(Path(path))[METADATA_KEY])["checkpoint"]
            tensors = load_file(path, device=str(map_location) if isinstance(map_location, torch.device) else "cpu")
            # a copy is aligned as torch aligns memory: dot products of a file's tensors, as in LBFGS, round otherwise
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            return {name: unpack_value(value, tensors) for name, value in packed.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise LedgerError(f"{path} must be a checkpoint of SafeTensorsIO, got another file") from None

    def remove_checkpoint(self, path: Any) -> None:
        os.remove(path)


def finish_epoch(checkpoint: dict[str, Any]) -> None:
    """Count an epoch as done in a checkpoint that was saved after its last batch.

    A callback saves in `on_train_batch_end`, before Lightning counts the batch as completed. Where that was the last
    batch of an epoch, Lightning 2.6 resumes with one epoch too few begun: a checkpoint saved after it reads as if no
    epoch was under way, and the next training that resumes repeats a batch. Epochs are counted here as Lightning does
    between two epochs, and from the batches, so that checkpoints which were saved with such a count are right too.
    """
    loop = checkpoint.get("loops", {}).get("fit_loop")
    if loop is None:
        return
    batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
    if batches["total"]["completed"] != batches["total"]["processed"] - 1:
        return  # it was not saved in on_train_batch_end
    last = batches["is_last_batch"]
    for count in (epochs["total"], epochs["current"]):
        done = count["processed"] + (1 if last else 0)
        count |= {"processed": done, "completed": done}
        count |= dict.fromkeys(("ready", "started"), count["processed"] + (0 if last else 1))
    if last:
        batches["total"]["completed"] += 1
        batches["current"] |= dict.fromkeys(batches["current"], 0)
        batches["is_last_batch"] = False
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def is_safetensors(path: Any) -> bool:
    """Return whether a file is of the kind that `SafeTensorsIO` writes."""
    try:
        with safe_open(path, "np") as file:
            return METADATA_KEY in (file.metadata() or {})
    except (SafetensorError, OSError, TypeError):
        return False


def load_exactly(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Give an optimizer the values of its state_dict as they are; load_state_dict casts them to the type of weights."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, values in state["state"].items():
        parameter = parameters[key] if isinstance(key, int) else key
        if parameter in optimizer.state:
            optimizer.state[parameter] = copy_like(values, optimizer.state[parameter])


def _distinct(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors none of which shares memory with another: safetensors refuses those."""
    seen: set[int] = set()
    copies = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        copies[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return copies
