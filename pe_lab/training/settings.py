"""The settings of a cell, as a module and its data are made from."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from pe_lab.data.base import Dataset

Settings = DictConfig | dict[str, Any]


def as_config(settings: Settings) -> DictConfig:
    """Return settings as a config."""
    return settings if isinstance(settings, DictConfig) else OmegaConf.create(settings)


def make_dataset(cfg: DictConfig) -> Dataset:
    """Return the dataset of a cell, without its sequences, which it makes when they are asked for."""
    dataset: Dataset = instantiate(cfg.data)(seed=cfg.seed)
    return dataset
