"""Check an encoding or a dataset, your own or one of the package, against its contract.

pe-lab check pe=NAME[,NAME] [pe.<option>=<value>] [model.width=16] [model.num_heads=2] [--config-dir DIR]
pe-lab check data=NAME[,NAME] [data.<option>=<value>] [seed=0] [--config-dir DIR]

Prints a line per promise: holds, BROKEN, or n/a where it does not apply; the largest difference that was measured; the
reason. The exit status is 1 if a promise is broken.
"""

import sys

from omegaconf import DictConfig

from pe_lab import config
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.names import HELP_COMMAND, unknown_name_message

SMALL_MODEL = ["model.width=16", "model.num_heads=2"]  # each overridden by one that is given
# the settings that each kind of check reads; of pe and data, with all of their options
CHECKED_SETTINGS = {"pe": ("pe", "model.width", "model.num_heads"), "data": ("data", "seed")}


def main() -> None:
    """Read the arguments, check, and print the report. The exit status is 1 if a promise is broken."""
    parser = Parser("pe_lab.check", ("pe", "data", "model", "seed"), description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> int:
        with config.add_config_dirs(sys.argv[1:]) as arguments:
            kind, cfgs = read_overrides(parser.parse_args(arguments).overrides)
            from pe_lab.check.check_report import print_check  # loads torch

            sound = [print_check(kind, cfg) for cfg in cfgs]
            return int(not all(sound))

    run_program(program)


def read_overrides(overrides: list[str]) -> tuple[str, list[DictConfig]]:
    """Return what is checked, "pe" or "data", and the config of each.

    Raises:
        ValueError: an override that is no setting of the check; a name that does not exist.
        HydraException: an option that the class does not have.
    """
    chosen = [override for override in overrides if override.partition("=")[0] in CHECKED_SETTINGS]
    if len(chosen) != 1:
        got = " ".join(chosen or overrides) or "neither"
        raise ValueError(f"one of pe=NAME and data=NAME must be given, got {got}")
    kind, _, names = chosen[0].partition("=")
    remaining = [override for override in overrides if override not in chosen]
    for override in remaining:
        key, equals, _ = override.lstrip("+").partition("=")
        if not equals or not (key in CHECKED_SETTINGS[kind] or key.startswith(f"{kind}.")):
            taken = ", ".join([f"{kind}.<option>", *CHECKED_SETTINGS[kind][1:]])
            raise ValueError(f"a check of {kind} takes {taken}, got {override!r}")
    chosen_names, names_of_kind = list(dict.fromkeys(names.split(","))), config.find_folders().names(kind)
    for name in chosen_names:
        if name not in names_of_kind:
            raise ValueError(unknown_name_message(kind, names_of_kind, name, listing=HELP_COMMAND))
    return kind, [
        config.expand_overrides([*SMALL_MODEL, f"{kind}={name}", *remaining], multirun=False)[0]
        for name in chosen_names
    ]


if __name__ == "__main__":
    main()
