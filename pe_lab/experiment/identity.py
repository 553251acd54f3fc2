"""The identity of a cell: everything that determines its training, as data that can be hashed."""

from typing import TYPE_CHECKING, Any

from hydra.utils import get_class, get_object
from omegaconf import DictConfig, OmegaConf

from pe_lab.attention import IMPLEMENTATIONS
from pe_lab.experiment.source import origin
from pe_lab.model.transformer import Transformer
from pe_lab.training.optimization import Optimization

if TYPE_CHECKING:
    from pe_lab.experiment.cell import Cell


def options(leaf: DictConfig, made: type) -> dict[str, Any]:
    """Return a group of the config as it enters the identity: its options and its class's revision.

    Import paths of this package are left out, and so are options added later that have their neutral value. For other
    classes, import path and source are included: see `origin`. Encodings within an encoding are treated alike.

    Args:
        made: the class that the group makes, with `revision` and `neutral`.

    Raises:
        ValueError: the source of a class cannot be read.
    """
    given = {key: value for key, value in OmegaConf.to_container(leaf, resolve=True).items() if key[0] != "_"}
    neutral = made.neutral
    kept = {key: value for key, value in given.items() if key not in neutral or value != neutral[key]}
    for key in kept:
        if OmegaConf.is_dict(leaf[key]) and "_target_" in leaf[key]:
            kept[key] = options(leaf[key], get_class(leaf[key]._target_))
    target = leaf.get("_target_")
    known = getattr(made, "known", {}).get(leaf.get("name"))
    makers = [] if target in (None, known) else [get_object(target)]  # the class, or a function that makes one
    return kept | {"revision": made.revision} | origin(made, *makers)


def identity(cell: "Cell") -> dict[str, Any]:
    """Return what determines the training of a cell. Its hash is the run's name.

    Raises:
        ValueError: the source of a class that is not of this package cannot be read.
    """
    cfg = cell.cfg
    found = {
        "pe": options(cfg.pe, cell.encoding_class),
        "data": options(cfg.data, type(cell.dataset)) | cell.dataset.content(),
        "model": options(cfg.model, Transformer),
        "optimizer": options(cfg.optimizer, Optimization),
        "batch_size": cfg.trainer.batch_size,
        "clip": cfg.trainer.clip,
        "seed": cfg.seed,
        "device": cell.device.type,
        "attention": cell.implementation,
        "precision": cfg.trainer.precision,
    }
    revision = IMPLEMENTATIONS[cell.implementation].revision
    if revision > 1:
        found["attention_revision"] = revision
    if cfg.optimizer.schedule == "cosine":  # depends on the end: each number of epochs is a run of its own
        found["epochs"] = cell.epochs
    return found
