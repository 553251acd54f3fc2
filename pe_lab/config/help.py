"""The text of --help: usage, and the settings with a few words on each."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill

from pe_lab.config.config_folders import ConfigFolders
from pe_lab.config.errors import OTHER_NAMES
from pe_lab.config.reference import Setting, common_settings, first_comment, read_config_settings, settings_of_config
from pe_lab.system.names import HELP_COMMAND, nearest_names, unknown_name_message

WIDTH = 100
EVALUATE_SETTINGS = ("evaluate", "ledger", "study_name")  # that pe-lab evaluate is for, beside probe
REGISTRY = "replication"  # its files are tables of published numbers, and no choices
USAGE = """usage: pe-lab run [key=value ...]                     train one cell
       pe-lab run -m pe=rope,alibi model.depth=1,4    a sweep: all combinations
       pe-lab run -m +study=depth_epochs_pe           a study: a sweep with a name
       pe-lab run --config-dir conf pe=mine           with configs of your own
       pe-lab run --help all                          every setting
       pe-lab run --help pe                           the choices of a group, a line on each
       pe-lab run --help pe=yarn                      the settings of a choice
       pe-lab run --cfg job pe=yarn                   the config of a command"""

EVALUATE_USAGE = """usage: pe-lab evaluate [key=value ...]         measure a cell that pe-lab run has trained
       pe-lab evaluate -m [key=value ...]      those of a sweep
       pe-lab evaluate --help all              every setting

Nothing is trained. Give the overrides of the training, and what to measure:

       pe-lab run -m pe=rope,alibi epochs=16
       pe-lab evaluate -m pe=rope,alibi epochs=16 evaluate.lengths=1,2,4 probe=position"""


def help_text(conf: ConfigFolders, overrides: list[str], every: bool, train: bool = True) -> str:
    """Return the text of --help.

    Args:
        conf: the files that can be chosen.
        overrides: the overrides of the command line, or names of groups and settings; what they choose is shown.
        every: whether all settings are shown, and not only the ones that are changed most.
        train: whether it is the help of pe-lab run, and not that of pe-lab evaluate.

    Raises:
        ValueError: an override names or chooses what does not exist.
    """
    choices = [override.lstrip("+").partition("=") for override in overrides]
    named = [(group, name.strip()) for group, _, names in choices for name in names.strip("[]").split(",")]
    for group, name in named:
        if group in conf.files and name and name not in (names := conf.names(group)):
            raise ValueError(unknown_name_message(group, names, name, listing=HELP_COMMAND))
    settings = _named_settings(conf, [key for key, _, _ in choices])
    chosen = [(group, name) for group, name in named if conf.file(group, name)]
    groups = [group for group, name in named if group in conf.files and not name]
    parts = [USAGE if train else EVALUATE_USAGE]
    parts += ["\n".join([f"{group}=NAME:", *_choice_lines(conf.files[group])]) for group in groups]
    for group, name in chosen:
        file = conf.files[group][name]
        lines = file.read_text(encoding="utf-8").splitlines()
        title = next((line.removeprefix("# ") for line in lines if line[:2] == "# " and "@package" not in line), "")
        parts.append("\n".join([f"{group}={name}: {title}", *_lines(read_config_settings(file, group))]))
    if settings:
        parts.append("\n".join(_lines(settings)))
    if not (chosen or groups or settings):
        title = "Settings" if every else "The settings that are changed most" if train else "What is measured"
        parts.append("\n".join([f"{title}, with their defaults:", *_lines(_shown_settings(every, train))]))
        listed = [group for group in sorted(conf.files) if group and "hydra" not in group and group != REGISTRY]
        lines = [
            fill(f"{group}: {', '.join(conf.names(group))}", WIDTH - 2, subsequent_indent="    ") for group in listed
        ]
        title = "Choices, group=name (--help pe: a line on each; --help pe=NAME: its settings):"
        parts.append("\n".join([title, *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


def _named_settings(conf: ConfigFolders, keys: list[str]) -> list[Setting]:
    """Return the settings that are named, and those within groups of settings that are.

    Raises:
        ValueError: there is no such group or setting.
    """
    keys = [key.lstrip("~") for key in keys if key.lstrip("~") not in conf.files]
    keys = [key for key in keys if key.partition(".")[0] != "hydra"]
    if not keys:
        return []
    settings = settings_of_config()
    names = [setting.name for setting in settings]
    for key in keys:
        if key not in names and key.partition(".")[0] not in conf.files:  # pe.theta depends on what is chosen
            top_level = [name for name in (*conf.files, *names) if name and "." not in name and "hydra" not in name]
            near = [f"{group}={key}" for group, files in conf.files.items() if key in files]
            near = near or ([OTHER_NAMES[key]] if key in OTHER_NAMES else [])
            near = near or nearest_names(key, dict.fromkeys(top_level), names)
            hint = f" did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(f"--help {key} must name a group or a setting:{hint} {HELP_COMMAND} all lists all")
    return [one for one in settings if any(one.name == key or one.name.startswith(f"{key}.") for key in keys)]


def _shown_settings(every: bool, train: bool) -> list[Setting]:
    if every or train:
        return settings_of_config() if every else common_settings()
    read = [setting for setting in settings_of_config() if setting.name.partition(".")[0] in EVALUATE_SETTINGS]
    return [setting for setting in common_settings() if setting.name == "probe"] + read


def _choice_lines(files: Mapping[str, Path]) -> list[str]:
    return [
        fill(f"  {name:<22}  {first_comment(file)}", WIDTH, subsequent_indent=" " * 26)
        for name, file in sorted(files.items())
    ]


def _lines(shown: Iterable[Setting]) -> list[str]:
    lines = []
    for setting in shown:
        start = f"  {setting.name}={setting.default}" if setting.default else f"  {setting.name}"
        about = f"{setting.description} [{setting.range}]" if setting.range else setting.description
        lines.append(fill(f"{start:<28}  {about}", WIDTH, subsequent_indent=" " * 30, break_on_hyphens=False))
    return lines
