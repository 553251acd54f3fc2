"""The identity of a group of the config: all that determines what it makes, as data that can be hashed."""

from typing import Any

from hydra.utils import get_class, get_object
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import resolved
from pe_lab.encodings.options import Revised
from pe_lab.experiment.source import origin


def options(leaf: DictConfig, made: type[Revised]) -> dict[str, Any]:
    """Return a group of the config as it enters the identity: its options and its class's revision.

    Import paths of this package are left out, and so are options added later that have their neutral value. For other
    classes, import path and source are included: see `origin`. Encodings within an encoding are treated alike.

    Args:
        made: the class that the group makes, with `revision` and `neutral`.

    Raises:
        ValueError: the source of a class cannot be read.
    """
    given = {key: value for key, value in resolved(leaf).items() if key[0] != "_"}
    neutral = made.neutral
    kept = {key: value for key, value in given.items() if key not in neutral or value != neutral[key]}
    for key in kept:
        if _is_made(leaf[key]):
            kept[key] = options(leaf[key], get_class(leaf[key]._target_))
        elif OmegaConf.is_list(leaf[key]) and any(map(_is_made, leaf[key])):
            kept[key] = [options(part, get_class(part._target_)) for part in leaf[key]]
    target = leaf.get("_target_")
    known = getattr(made, "known", {}).get(leaf.get("name"))
    makers = [] if target in (None, known) else [get_object(target)]  # the class, or a function that makes one
    return kept | {"revision": made.revision} | origin(made, *makers)


def _is_made(value: Any) -> bool:
    """Return whether a setting is an encoding of its own."""
    return OmegaConf.is_dict(value) and "_target_" in value
