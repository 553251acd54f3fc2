"""The configuration: its settings, their ranges, and how the overrides of a command line are composed.

Nothing here imports torch: a wrong config is answered before anything heavy is loaded.
"""

from pe_lab.config.compose import complete_cell, compose_cells, expand_overrides, single_valued_overrides
from pe_lab.config.config_folders import (
    HELP,
    ConfigFolders,
    add_config_dirs,
    add_path_of_callbacks,
    config_dir_flags,
    find_folders,
    register_search_path,
)
from pe_lab.config.errors import describe_hydra_error
from pe_lab.config.overrides import (
    LauncherTraits,
    as_lists,
    describe_launcher,
    expand_checkpoint_override,
    study_overrides,
    sweep_overrides,
)
from pe_lab.config.rules import DECAY_FRACTION, check_config, head_dim, hidden_width
from pe_lab.config.schema import (
    LR,
    Config,
    Model,
    Trainer,
    config_folder,
    flatten_settings,
    resolve_config,
    study_settings,
    without_study_settings,
)
from pe_lab.system.errors import DESCRIBE

DESCRIBE.append(describe_hydra_error)

__all__ = [
    "DECAY_FRACTION",
    "HELP",
    "LR",
    "Config",
    "ConfigFolders",
    "LauncherTraits",
    "Model",
    "Trainer",
    "add_config_dirs",
    "add_path_of_callbacks",
    "as_lists",
    "check_config",
    "complete_cell",
    "compose_cells",
    "config_dir_flags",
    "config_folder",
    "describe_launcher",
    "expand_checkpoint_override",
    "expand_overrides",
    "find_folders",
    "flatten_settings",
    "head_dim",
    "hidden_width",
    "register_search_path",
    "resolve_config",
    "single_valued_overrides",
    "study_overrides",
    "study_settings",
    "sweep_overrides",
    "without_study_settings",
]
