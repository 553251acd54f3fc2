"""The text of --help: usage, and the settings with a few words on each."""

from collections.abc import Iterable
from textwrap import fill

from pe_lab.config.config_folders import ConfigFolders
from pe_lab.config.reference import Setting, common_settings, read_settings, settings_of_config

WIDTH = 100
REGISTRY = "replication"  # its files are tables of published numbers, and no choices
USAGE = """usage: pe-lab run [key=value ...]                     train one cell
       pe-lab run -m pe=rope,alibi model.depth=1,4    a sweep: all combinations
       pe-lab run -m +study=depth_epochs_pe           a study: a sweep with a name
       pe-lab run --config-dir conf pe=mine           with configs of your own
       pe-lab run --help all                          every setting
       pe-lab run --help pe=yarn                      the settings of a choice
       pe-lab run --cfg job pe=yarn                   the config of a command"""


def help_text(conf: ConfigFolders, overrides: list[str], every: bool) -> str:
    """Return the text of --help.

    Args:
        conf: the files that can be chosen.
        overrides: the overrides of the command line; the settings of what they choose are shown.
        every: whether all settings are shown, and not only the ones that are changed most.
    """
    choices = [override.lstrip("+").partition("=") for override in overrides]
    named = [(group, name.strip()) for group, _, names in choices for name in names.strip("[]").split(",")]
    chosen = [(group, name) for group, name in named if conf.file(group, name)]
    parts = [USAGE]
    for group, name in chosen:
        file = conf.files[group][name]
        lines = file.read_text(encoding="utf-8").splitlines()
        title = next((line.removeprefix("# ") for line in lines if line[:2] == "# " and "@package" not in line), "")
        parts.append("\n".join([f"{group}={name}: {title}", *_lines(read_settings(file, group))]))
    if not chosen:
        title = "Settings" if every else "The settings that are changed most"
        parts.append(
            "\n".join([f"{title}, with their defaults:", *_lines(settings_of_config() if every else common_settings())])
        )
        groups = [group for group in sorted(conf.files) if group and "hydra" not in group and group != REGISTRY]
        lines = [
            fill(f"{group}: {', '.join(conf.names(group))}", WIDTH - 2, subsequent_indent="    ") for group in groups
        ]
        parts.append("\n".join(["Choices, group=name:", *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


def _lines(shown: Iterable[Setting]) -> list[str]:
    lines = []
    for setting in shown:
        start = f"  {setting.name}={setting.default}" if setting.default else f"  {setting.name}"
        about = f"{setting.description} [{setting.range}]" if setting.range else setting.description
        lines.append(fill(f"{start:<28}  {about}", WIDTH, subsequent_indent=" " * 30, break_on_hyphens=False))
    return lines
