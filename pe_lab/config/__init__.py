"""The configuration: its settings, their ranges, and how the overrides of a command line are composed.

Nothing here imports torch: a wrong config is answered before anything heavy is loaded.
"""

from pe_lab.config.compose import expand
from pe_lab.config.overrides import Launcher, as_lists, launcher, of_jobs, studies
from pe_lab.config.rules import check
from pe_lab.config.schema import Config, Model, Trainer, flatten, folder, resolved

__all__ = [
    "Config",
    "Launcher",
    "Model",
    "Trainer",
    "as_lists",
    "check",
    "expand",
    "flatten",
    "folder",
    "launcher",
    "of_jobs",
    "resolved",
    "studies",
]
