"""The configuration: its settings, their ranges, and how the overrides of a command line are composed.

Nothing here imports torch: a wrong config is answered before anything heavy is loaded.
"""

from pe_lab.config.compose import cells, checked_cell, expand, fixed
from pe_lab.config.overrides import Launcher, as_lists, launcher, of_checkpoint, of_jobs, studies
from pe_lab.config.rules import DECAY_FRACTION, check, head_dim, hidden_width
from pe_lab.config.schema import LR, Config, Model, Trainer, flatten, folder, of_cell, of_study, resolved
from pe_lab.config.users import HELP, Folders, add_path_of_callbacks, flags, folders, joining, tell_hydra

__all__ = [
    "DECAY_FRACTION",
    "HELP",
    "LR",
    "Config",
    "Folders",
    "Launcher",
    "Model",
    "Trainer",
    "add_path_of_callbacks",
    "as_lists",
    "cells",
    "check",
    "checked_cell",
    "expand",
    "fixed",
    "flags",
    "flatten",
    "folder",
    "folders",
    "head_dim",
    "hidden_width",
    "joining",
    "launcher",
    "of_cell",
    "of_checkpoint",
    "of_jobs",
    "of_study",
    "resolved",
    "studies",
    "tell_hydra",
]
