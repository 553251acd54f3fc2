"""The folders of YAML files that a configuration is composed from: the package's own folder and the folders of users.

A user's folder joins by the option --config-dir of a program, by the environment variable PE_LAB_CONFIG_DIR, or from an
installed package whose entry point in the group `pe_lab.conf` names it. It adds names to the groups of conf/, and it
replaces none: each name of a group has one file.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, ListConfig, OmegaConf

from pe_lab.config.ranges import NAME
from pe_lab.config.schema import config_folder
from pe_lab.encodings.options import show_value
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import kind_of_path
from pe_lab.system.names import did_you_mean
from pe_lab.system.plain import require_small

CONFIG_DIR_VARIABLE = (
    "PE_LAB_CONFIG_DIR"  # folders, joined like those of PATH; processes started by this one inherit it
)
ENTRY_POINTS = "pe_lab.conf"
FLAGS = ("--config-dir", "-cd")
CONFIG_DIR_SOURCES = f"{FLAGS[0]}, or {CONFIG_DIR_VARIABLE},"
HELP = "a folder of your own with configs, like conf/: its names join those of the package"
WITH_CLASS = ("pe", "data", "optimizer", "logger", "probe", "callbacks")  # groups whose files name a class
MADE_LATER = ("pe", "data", "logger")  # of these, groups whose classes need more than the file's options
MAX_FOLDER_DEPTH = 2  # levels of folders in which files are looked for, as hydra/launcher


@dataclass(frozen=True)
class ConfigFolders:
    """All files that can be chosen.

    Attributes:
        users: the folders that are not this package's.
        files: the file of each name, by group.
    """

    users: tuple[Path, ...]
    files: dict[str, dict[str, Path]]

    def names(self, group: str) -> list[str]:
        """Return the names of a group, sorted."""
        return sorted(self.files.get(group, {}))

    def file(self, group: str, name: object) -> Path | None:
        """Return the file of a name, or None."""
        return self.files.get(group, {}).get(str(name))

    def stated(self, group: str, name: object) -> DictConfig | ListConfig | None:
        """Return what the file of a name states, without its defaults; None if there is no file."""
        file = self.file(group, name)
        return None if file is None else OmegaConf.load(file)


def find_folders() -> ConfigFolders:
    """Find the files of this package, of PE_LAB_CONFIG_DIR and of installed packages.

    Raises:
        ValueError: a folder, an entry point or a file cannot be used; two files have the same group and name.
    """
    files: dict[str, dict[str, Path]] = {}
    for group, file in _files(config_folder()):
        files.setdefault(group, {})[file.stem] = file
    groups = sorted(group for group in files if group)
    users: list[Path] = []
    for source, path in [*((CONFIG_DIR_SOURCES, folder) for folder in _environment_folders()), *_installed_folders()]:
        folder = path.resolve()
        if folder in (config_folder().resolve(), *users):
            continue
        users.append(folder)
        for group, file in _users_files(folder, source, groups):
            names = files[group]
            if file.stem in names:
                raise ValueError(
                    f"{group}={file.stem} must have one file, got {names[file.stem]} and {file}: "
                    f"give yours a name of its own"
                )
            names[file.stem] = file
    return ConfigFolders(tuple(users), files)


@contextmanager
def add_config_dirs(arguments: list[str]) -> Iterator[list[str]]:
    """Add the folders of --config-dir to the configuration within the block; yield the other arguments.

    Their files are found by this process and by those that it starts. What `add_import_paths` adds to the path
    within the block is taken off again.

    Raises:
        ValueError: a folder is not there, or cannot be used.
    """
    folders, rest = _split(arguments)
    before, paths = os.environ.get(CONFIG_DIR_VARIABLE), list(sys.path)
    try:
        if folders:
            os.environ[CONFIG_DIR_VARIABLE] = os.pathsep.join(
                dict.fromkeys(map(str, [*_environment_folders(), *folders]))
            )
        find_folders()
        yield rest
    finally:
        sys.path[:] = [path for path in sys.path if path in paths]
        if before is None:
            os.environ.pop(CONFIG_DIR_VARIABLE, None)
        else:
            os.environ[CONFIG_DIR_VARIABLE] = before


def add_import_paths(settings: Any) -> None:
    """Add the folders of users' modules to the path, after all others, if settings name a class that needs them.

    Programs that need no class of a user import nothing from these folders.

    Args:
        settings: the settings of a config, or of a group of it.
    """
    if any(not is_package(target.partition(".")[0]) for target in _targets(settings)):
        sys.path += [path for path in import_paths() if path not in sys.path]


def add_path_of_callbacks(overrides: list[str]) -> None:
    """Let Hydra find the classes of its callbacks, which overrides and studies name, and which it makes first.

    Args:
        overrides: the overrides of a command line.
    """
    chosen = [override.partition("=")[2] for override in overrides if override.startswith("+study=")]
    files = [file for name in chosen if (file := find_folders().file("study", name))]
    targets = [
        override.partition("=")[2] for override in overrides if "hydra.callbacks" in override and "_target_" in override
    ]
    add_import_paths([{"_target_": target} for target in targets])
    add_import_paths([OmegaConf.to_container(OmegaConf.load(file)) for file in files])


def import_paths() -> list[str]:
    """Return where modules of users are looked for: the current folder, those in which their folders of configs are."""
    here = [] if sys.flags.safe_path else [to_absolute_path(".")]  # whichever folder Hydra chose for a job
    return list(dict.fromkeys([*here, *(str(folder.resolve().parent) for folder in _environment_folders())]))


def is_package(name: str) -> bool:
    """Return whether there is a package or module of this name. Nothing is imported."""
    if name in sys.modules:
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _targets(settings: Any) -> Iterator[str]:
    """Yield the import paths of all classes in settings."""
    if isinstance(settings, Mapping):
        if isinstance(target := settings.get("_target_"), str):
            yield target
        settings = list(settings.values())
    for member in settings if isinstance(settings, list) else ():
        yield from _targets(member)


def config_dir_flags() -> list[str]:
    """Return the arguments that add the folders of this process to another program."""
    return [f"{FLAGS[0]}={folder}" for folder in _environment_folders()]


class UsersFolders(SearchPathPlugin):
    """Tells Hydra where users' files are: after those of the package."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in find_folders().users:
            search_path.append("pe_lab.users", f"file://{folder}")


def register_search_path() -> None:
    """Let Hydra search users' folders, whenever it composes."""
    Plugins.instance().register(UsersFolders)


def _split(arguments: list[str]) -> tuple[list[Path], list[str]]:
    """Return the folders of --config-dir, and the other arguments."""
    folders, rest, remaining = [], [], iter(arguments)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if flag not in FLAGS:
            rest.append(argument)
            continue
        value = value if equals else next(remaining, "")
        if not Path(value).is_dir() or value == "" or os.pathsep in value:
            raise ValueError(f"{flag} must be a folder of configs, got {show_value(value)}")
        folders.append(Path(value).resolve())
    return folders, rest


def _environment_folders() -> list[Path]:
    return [Path(folder) for folder in os.environ.get(CONFIG_DIR_VARIABLE, "").split(os.pathsep) if folder]


def _installed_folders() -> Iterator[tuple[str, Path]]:
    """Yield the folders that installed packages name, each with a description of its entry point."""
    for point in _entry_points(tuple(sys.path)):
        package = f" of {point.dist.name}" if point.dist else ""
        source = f"the entry point {ENTRY_POINTS}: {point.name} = {point.value}{package}"
        try:
            yield source, _package_folder(point)
        except (ImportError, ValueError, AttributeError) as error:
            raise ValueError(f"{source} must be a package that can be imported: {in_one_line(error)}") from None


@cache
def _entry_points(path: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of the packages on the path; to look for them takes as long as all other files."""
    return sorted(entry_points(group=ENTRY_POINTS))


def _package_folder(point: EntryPoint) -> Path:
    """Return the folder of a package or of a module in a package. Nothing is imported, which might load torch.

    Raises:
        ImportError: there is no such package or module.
    """
    package, *rest = point.value.split(".")
    spec = find_spec(package)
    for folder in list(spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, *rest)
        if path.is_dir():
            return path
        if rest and path.with_suffix(".py").is_file():
            return path.parent
    raise ImportError(f"there is no package {package}" if spec is None else f"{point.value} is no folder of a package")


def _files(folder: Path, *names: str) -> Iterator[tuple[str, Path]]:
    """Yield the YAML files of a folder and of the folders in it, in order, each with its group; not of hidden ones.

    Args:
        names: the folders between the whole folder and this one. A group is named by them, as hydra/launcher; the group
            of files in the whole folder is empty.
    """
    for name in sorted(os.listdir(folder)):
        if name[0] in "._":
            continue
        if name.endswith((".yaml", ".yml")):
            yield "/".join(names), folder / name
        elif len(names) < MAX_FOLDER_DEPTH and (folder / name).is_dir():
            yield from _files(folder / name, *names, name)


def _users_files(folder: Path, source: str, groups: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of a user's folder, each checked, with its group.

    Raises:
        ValueError: the folder has none; a file has no known group, or is not one of its group.
    """
    if not folder.is_dir():
        raise ValueError(f"{source} must be a folder of configs, got {str(folder)!r}")
    empty = True
    for group, file in _files(folder):
        empty = False
        if group not in groups:
            where = show_value(group) if group else "no group"
            raise ValueError(
                f"{file} must be in the folder of a group, one of {', '.join(groups)}, got {where}"
                f"{did_you_mean(group, groups)}"
            )
        _check_file(file, group)
        yield group, file
    if empty:
        raise ValueError(
            f"{source} must have a folder for a group, one of {', '.join(groups)}, with a file NAME.yaml, got none in "
            f"{folder}"
        )


def _check_file(file: Path, group: str) -> None:
    """Raise ValueError unless a file has the settings that its group needs."""
    if file.suffix != ".yaml" or not NAME.holds(file.stem):
        raise ValueError(f"{file} must be named NAME.yaml, NAME {NAME.words}, got {show_value(file.name)}")
    if not file.is_file():  # of a FIFO, reading would wait
        raise ValueError(f"{file} must be a file, got {kind_of_path(file.resolve())}")
    try:
        require_small(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} {in_one_line(error)}") from None
    try:
        settings = OmegaConf.load(file)
    except Exception as error:  # the parser's, or a file that is no text
        raise ValueError(f"{file} must be YAML: {in_one_line(error)}") from None
    if not isinstance(settings, DictConfig):
        raise ValueError(f"{file} must have settings, key: value, got a list")
    inherits = any(isinstance(entry, str) and entry != "_self_" for entry in settings.get("defaults") or [])
    if group in WITH_CLASS and not inherits:
        target = settings.get("_target_")
        if not isinstance(target, str) or "." not in target:
            raise ValueError(f"{file} must have a _target_, the import path of a class, got {show_value(target)}")
        if group in MADE_LATER and settings.get("_partial_") is not True:
            raise ValueError(f"{file} must have _partial_: true, got {show_value(settings.get('_partial_'))}")
    if group in ("pe", "data", "optimizer") and settings.get("name") != file.stem:
        raise ValueError(f"{file} must have name: {file.stem}, as the file, got {show_value(settings.get('name'))}")
