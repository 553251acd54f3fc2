"""A cell: what a config means on this machine, and its identity."""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from pe_lab.attention import IMPLEMENTATIONS, resolve
from pe_lab.data.base import Dataset
from pe_lab.encodings.base import Layout, PositionalEncoding, Sizes
from pe_lab.model import Transformer
from pe_lab.optimization import Optimization
from pe_lab.results.ledger import Ledger, Road

POLL = 0.3  # seconds between two looks at a road that somebody else serves


def options(leaf: DictConfig, made: type) -> dict[str, Any]:
    """A leaf of the config as it enters the identity: its options and its class's revision.

    Import paths are left out, and so are options added later that stand at their neutral value. A leaf within it
    enters in the same way.
    """
    given = {key: value for key, value in OmegaConf.to_container(leaf, resolve=True).items() if key[0] != "_"}
    neutral = made.neutral
    kept = {key: value for key, value in given.items() if key not in neutral or value != neutral[key]}
    for key in kept:
        if OmegaConf.is_dict(leaf[key]) and "_target_" in leaf[key]:
            kept[key] = options(leaf[key], get_class(leaf[key]._target_))
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
        dataset = self.dataset
        sizes = Sizes(cfg.model.width, cfg.model.num_heads, dataset.length, dataset.causal, dataset.grid_width)
        encoding = self.encoding(sizes)
        self.encoding_class = type(encoding)
        self.implementation = self._implementation(encoding.to(self.device))

    def _implementation(self, encoding: PositionalEncoding) -> str:
        """The attention that will run, found by asking the encoding what it needs on a sequence of two tokens."""
        data = self.dataset
        layout = Layout.of_lengths(torch.tensor([2], device=self.device), 2, data.causal, data.grid_width)
        with torch.no_grad():
            layout = encoding.locate(layout)
            terms = encoding.terms(torch.zeros(1, 2, self.cfg.model.width, device=self.device), layout)
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
            "optimizer": options(cfg.optimizer, Optimization),
            "batch_size": cfg.trainer.batch_size,
            "clip": cfg.trainer.clip,
            "seed": cfg.seed,
            "device": self.device.type,
            "attention": self.implementation,
            "precision": cfg.trainer.precision,
        }
        revision = IMPLEMENTATIONS[self.implementation].revision
        if revision > 1:
            identity["attention_revision"] = revision
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
        """See to it that the cell is done, as long as somebody wants it.

        The wish has been written; now the lease is tried. Its holder serves every wanted stop of the road, releases
        it, and looks again whether this cell is missing. Another process that holds it finds the wish.

        Args:
            wait: for another process that holds the lease; otherwise return at once.

        Raises:
            Exception: what ended the training; it is recorded with the stops that could not be reached.
        """
        road = self.road
        while self.missing and road.failure(self.epochs) is None:
            with road.lease() as mine:
                if mine:
                    if self.epochs not in road.wanted():
                        return
                    from pe_lab.journey import Journey  # Lightning is loaded when there is something to train

                    Journey(self).serve_all()
                    continue
            if not wait:
                return
            time.sleep(POLL)

    @property
    def missing(self) -> bool:
        """Whether the cell is not in the ledger."""
        return not self.road.done(self.epochs)


def _device(asked: str) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("trainer.device=cuda needs a CUDA device, and there is none; use trainer.device=cpu or auto")
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return asked
