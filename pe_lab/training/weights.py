"""The weights of trained models as safetensors files. Loads no Lightning."""

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pe_lab.ledger.run import WEIGHTS_FILE, Run
from pe_lab.system.files import LedgerError


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of any new file; safetensors alone would make it private."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    path.chmod(mode)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into a model.

    Raises:
        LedgerError: names or shapes differ from those of the model.
    """
    if _shapes(path) != _weight_shapes(model.state_dict()):
        raise LedgerError(f"ledger entry {path} must be the weights of the model, got others: remove {path.parent}")
    model.load_state_dict(load_file(path))


def load_checkpoint(model: nn.Module, run: Run, target: int) -> None:
    """Load the weights of a checkpoint of the ledger into its model.

    Raises:
        LedgerError: the files are damaged, or have no weights.
    """
    run.verify(target)
    load_weights(model, run.checkpoint(target) / WEIGHTS_FILE)


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors of a file, by name."""
    with safe_open(path, "np") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no dict


def _weight_shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}
