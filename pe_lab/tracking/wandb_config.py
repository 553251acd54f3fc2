"""What tells W&B runs apart: settings under flat names, by which panels group and filter, and tags."""

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

# flat name: place in the cell's config
FLAT = {
    "encoding": "pe.name",
    "task": "data.name",
    "depth": "model.depth",
    "epochs": "epochs",
    "width": "model.width",
    "norm": "model.norm",
    "learning_rate": "optimizer.lr",
}
LONGEST_TAG = 64  # characters; W&B refuses longer ones


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's settings by their flat names, and all of them in one text, the condition, which only seeds share.

    Args:
        settings: the cell's resolved config.
    """
    values = {name: reduce(getitem, path.split("."), settings) for name, path in FLAT.items()}
    return values | {"condition": in_words(values)}


def in_words(values: Mapping[str, Any]) -> str:
    """Settings by their flat names, as one text."""
    return ", ".join(
        f"{value}" if name in ("encoding", "task") else f"{name} {value}" for name, value in values.items()
    )


def tags(study: str | None, values: Mapping[str, Any]) -> list[str]:
    """Study, task and encoding; without what is too long for a tag, which stands in the run's group or config."""
    found = dict.fromkeys((study, values["task"], values["encoding"]))
    return [tag for tag in found if tag is not None and len(tag) <= LONGEST_TAG]
