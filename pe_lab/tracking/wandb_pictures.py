"""Pictures of a cell for W&B: its encoding before training, and the attention of every head afterwards."""

import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger
from matplotlib import colormaps

from pe_lab.audit.audited_encoding import LENGTH, AuditedEncoding
from pe_lab.audit.measures import MANY_POSITIONS
from pe_lab.audit.pictures import save_picture
from pe_lab.data.base import Dataset
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.sizes import Sizes
from pe_lab.ledger.tree import LedgerFiles
from pe_lab.model.transformer import Transformer
from pe_lab.probes.figures import MAX_DRAWN_TOKENS as MAX_DRAWN_TOKENS
from pe_lab.probes.figures import attention_maps
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import digest, is_file
from pe_lab.system.termination import TerminatedError
from pe_lab.tracking.wandb_run import WandbRun

revision = 2  # raised when the picture of an encoding changes
TILE, GAP = 96, 4  # pixels of a head, at least, and between two

Picture = Path | np.ndarray


def log_pictures(
    loggers: list[Logger], name: str, draw: Callable[[], Mapping[str, Picture]], step: int, epoch: float
) -> None:
    """Draw pictures and log them to the W&B runs that take pictures. If one cannot be drawn, one line says so.

    Args:
        name: the checkpoint's name, for that line.
        draw: a function that returns pictures by name; called only if a W&B run takes them.
    """
    runs = [logger for logger in loggers if isinstance(logger, WandbRun) and logger.images]
    if not runs:
        return
    try:
        pictures = {key: str(picture) if isinstance(picture, Path) else picture for key, picture in draw().items()}
        for run in runs:
            run.log_pictures(pictures, step, epoch)
    except TerminatedError:
        raise
    except Exception as error:
        print(f"{name}: no pictures in W&B: {in_one_line(error)}", file=sys.stderr)


def encoding_picture(
    ledger: Path, name: str, identity: Mapping[str, Any], encoding: Callable[[Sizes], PositionalEncoding]
) -> Path:
    """Return the audit's picture of an encoding, drawn once per ledger: the cells of a study share a few encodings.

    Args:
        identity: the encoding's part of the cell's identity.
        encoding: a function that makes the encoding for given sizes.
    """
    path = ledger / "pictures" / f"{name}-{digest({'pe': identity, 'revision': revision})}.png"
    if not is_file(path):
        subject = AuditedEncoding(name, encoding).with_length(max(LENGTH, MANY_POSITIONS))
        tree = LedgerFiles(ledger)
        temporary = tree.prepare_file(path.with_name(f".{uuid.uuid4().hex}.png"))
        save_picture(subject, AuditedEncoding("none", PositionalEncoding), temporary)
        tree.rename(temporary, path)
    return path


def attention_picture(model: Transformer, dataset: Dataset, seed: int) -> np.ndarray:
    """Draw attention on the first sequence of the test split, a row per layer and a column per head.

    In a head, queries run down and keys to the right, without padding. Dark is 0 and bright is 1, on a square-root
    scale. White marks keys that a query may not see.

    Returns:
        [height, width, 3] 8-bit colours.
    """
    rows = []
    for shown in attention_maps(model, dataset, seed):
        repeat = max(1, TILE // shown.shape[-1])
        size = repeat * shown.shape[-1]
        pixels = colormaps["cividis"](np.sqrt(shown), bytes=True)[..., :3]
        pixels[np.isnan(shown)] = 255
        pixels = pixels.repeat(repeat, 1).repeat(repeat, 2)
        row = np.full((size + GAP, len(pixels), size + GAP, 3), 255, np.uint8)
        row[:size, :, :size] = pixels.transpose(1, 0, 2, 3)
        rows.append(row.reshape(size + GAP, -1, 3))
    return np.concatenate(rows)[:-GAP, :-GAP]
