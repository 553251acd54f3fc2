"""Measure properties of encodings without training; write a table and pictures.

pe-lab audit [pe=rope,alibi] [pe.<option>=<value>] [out=audit] [pictures=true] [seconds=4] [--config-dir DIR]

pe: names in conf/pe (default: all). pe.<option>: an option of each of them, as in pe_lab.run. out: the folder of
table.csv, table.md and pictures/<name>.png. seconds: time limit for timing one encoding.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab import config
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.files import require_writable
from pe_lab.system.names import HELP_COMMAND, did_you_mean, unknown_name_message


@dataclass
class Settings:
    """The program's own settings; those of an encoding come as pe.<option>."""

    pe: str | None = None
    out: str = "audit"
    pictures: bool = True
    seconds: float = 4.0


def main() -> None:
    """Read the arguments and run the audit."""
    parser = Parser("pe_lab.audit", list(Settings.__dataclass_fields__), description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> None:
        with config.add_config_dirs(sys.argv[1:]) as arguments:
            settings, cfgs = read_audit_settings(parser.parse_args(arguments).overrides)
            Path(settings.out).mkdir(parents=True, exist_ok=True)
            from pe_lab.audit.auditing import audit_encodings  # loads torch

            audit_encodings(cfgs, Path(settings.out), settings.pictures, settings.seconds)

    run_program(program, (ValueError, OSError, HydraException, OmegaConfBaseException))


def read_audit_settings(overrides: list[str]) -> tuple[Settings, list[DictConfig]]:
    """Return the settings, and the config of each encoding that they name.

    Raises:
        ValueError: an override that is no setting; a name that does not exist.
        HydraException: an option that an encoding does not have.
    """
    options = [override for override in overrides if override.startswith("pe.")]
    own_settings = [override for override in overrides if override not in options]
    fields = list(Settings.__dataclass_fields__)
    for override in own_settings:
        key, _, value = override.partition("=")
        if key not in fields or not value:
            takes = f"{'=…, '.join(fields)}=… and pe.<option>=…"
            raise ValueError(
                f"the audit takes {takes}: got {override!r}{'' if key in fields else did_you_mean(key, fields)}"
            )
    merged: Any = OmegaConf.merge(OmegaConf.structured(Settings), OmegaConf.from_dotlist(own_settings))
    settings = Settings(**merged)
    if settings.seconds <= 0:
        raise ValueError(f"seconds must be positive, got {settings.seconds}")
    require_writable("out", Path(settings.out))
    names_known = config.find_folders().names("pe")
    names = names_known if settings.pe is None else list(dict.fromkeys(settings.pe.split(",")))
    for name in names:
        if name not in names_known:
            raise ValueError(unknown_name_message("pe", names_known, name, listing=HELP_COMMAND))
    return settings, [config.expand_overrides([f"pe={name}", *options], multirun=False)[0] for name in names]


if __name__ == "__main__":
    main()
