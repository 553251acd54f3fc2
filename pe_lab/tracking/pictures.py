"""Pictures of a cell for W&B: its encoding before any training, and what its heads look at in the end."""

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.loggers import Logger

from pe_lab.data.base import Dataset
from pe_lab.data.seeding import derive, seed_all
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import PADDING
from pe_lab.ledger.tree import Tree
from pe_lab.model.transformer import Transformer
from pe_lab.probes.attention import layer_weights
from pe_lab.probes.states import at_rest
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import digest, is_file
from pe_lab.system.termination import TerminatedError
from pe_lab.tracking.loggers import WandbRun

if TYPE_CHECKING:
    from pe_lab.experiment.cell import Cell

revision = 1  # raised when the picture of an encoding changes
LONGEST = 512  # tokens of a sequence whose attention is drawn
TILE, GAP = 96, 4  # pixels of a head, at least, and between two


def log_pictures(cell: "Cell", epochs: int, loggers: list[Logger], model: Callable[[], Transformer]) -> None:
    """Tell runs that want them the pictures of a cell; one that cannot be drawn is told on the terminal.

    Args:
        epochs: the checkpoint that the model's weights are of.
        model: makes it; comes back as it was.
    """
    runs = [logger for logger in loggers if isinstance(logger, WandbRun) and logger.images]
    if not runs:
        return
    try:
        pictures: dict[str, str | np.ndarray] = {"encoding": str(encoding_picture(cell))}
        if cell.dataset.task.length <= LONGEST:
            pictures["attention"] = attention_picture(model(), cell.dataset, cell.cfg.seed)
        summary = cell.run.summary(epochs)
        for run in runs:
            run.log_pictures(pictures, summary["steps"], epochs)
    except TerminatedError:
        raise
    except Exception as error:
        print(f"{cell.name(epochs)}: no pictures in W&B: {in_one_line(error)}", file=sys.stderr)


def encoding_picture(cell: "Cell") -> Path:
    """The audit's picture of the cell's encoding, kept in the ledger: the cells of a study share a few."""
    identity = {"pe": cell.identity["pe"], "revision": revision}
    path = Path(cell.cfg.ledger) / "pictures" / f"{cell.cfg.pe.name}-{digest(identity)}.png"
    if not is_file(path):
        from pe_lab.audit.measures import MANY
        from pe_lab.audit.pictures import draw
        from pe_lab.audit.subject import LENGTH, Subject

        subject = Subject(cell.cfg.pe.name, cell.encoding).reaching(max(LENGTH, MANY))
        tree = Tree(cell.cfg.ledger)
        temporary = tree.place(path.with_name(f".{uuid.uuid4().hex}.png"))
        draw(subject, Subject("none", PositionalEncoding), temporary)
        tree.rename(temporary, path)
    return path


def attention_picture(model: Transformer, dataset: Dataset, seed: int) -> np.ndarray:
    """[height, width, 3] attention on the first sequence of the test split, a row per layer and a column per head.

    In a head, queries go down and keys to the right, without padding; dark is 0 and bright 1, by the square root; white
    is what a query may not see.
    """
    from matplotlib import colormaps

    device = model.tokens.weight.device
    batch = dataset.batch("test", torch.tensor([0])).to(device)
    real = (batch.layout.segment[0] != PADDING).nonzero()[:, 0]
    repeat = max(1, TILE // len(real))
    size = repeat * len(real)
    rows = []
    with torch.no_grad(), at_rest(model):
        seed_all(derive(seed, "picture"), device)
        for weights, _, layout in layer_weights(model, batch):
            shown = weights[0][:, real][:, :, real].double().clamp(0, 1).sqrt().cpu().numpy()  # [H, T, T]
            pixels = colormaps["cividis"](shown, bytes=True)[..., :3]
            pixels[:, ~layout.allowed[0, 0][real][:, real].cpu().numpy()] = 255
            pixels = pixels.repeat(repeat, 1).repeat(repeat, 2)
            row = np.full((size + GAP, len(pixels), size + GAP, 3), 255, np.uint8)
            row[:size, :, :size] = pixels.transpose(1, 0, 2, 3)
            rows.append(row.reshape(size + GAP, -1, 3))
    return np.concatenate(rows)[:-GAP, :-GAP]
