"""Settings of W&B runs under flat names, by which panels group and filter, and their tags."""

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

# flat name: dotted path in the cell's config
FLAT_NAMES = {
    "encoding": "pe.name",
    "task": "data.name",
    "depth": "model.depth",
    "epochs": "epochs",
    "steps": "steps",
    "width": "model.width",
    "norm": "model.norm",
    "learning_rate": "optimizer.lr",
}
MAX_TAG_LENGTH = 64  # characters; W&B refuses longer ones


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's settings by their flat names, and "condition": all of them in one text, without the seed.

    Args:
        settings: the cell's resolved config.
    """
    complete = dict(settings)
    complete.setdefault("steps", None)  # older cells are counted in epochs
    values = {name: reduce(getitem, path.split("."), complete) for name, path in FLAT_NAMES.items()}
    values = {name: value for name, value in values.items() if not (name in ("epochs", "steps") and value is None)}
    return values | {"condition": join_settings(values)}


def join_settings(values: Mapping[str, Any]) -> str:
    """Join settings with flat names into one text."""
    return ", ".join(
        f"{value}" if name in ("encoding", "task") else f"{name} {value}" for name, value in values.items()
    )


def wandb_tags(study: str | None, values: Mapping[str, Any]) -> list[str]:
    """Return study, task and encoding as tags. Those too long for a tag are only in the W&B run's group or config."""
    words = dict.fromkeys((study, values["task"], values["encoding"]))
    return [tag for tag in words if tag is not None and len(tag) <= MAX_TAG_LENGTH]
