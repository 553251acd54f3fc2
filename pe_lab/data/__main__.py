"""Export a dataset as files, for other programs and for people.

pe-lab data export data=pattern [data.<option>=<value>] [seed=0] [out=exports] [--config-dir DIR]

Writes OUT/<name>/<name>.csv (split, tokens, and a label or a target per token), the same as <name>.npz (no pickle) and
schema.json, which describes them and has the floors. A CSV in the format of a dataset with labels can be trained on:
pe-lab run data=pattern data.path=OUT/pattern/pattern.csv
"""

import sys
from pathlib import Path

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pe_lab import config
from pe_lab.encodings.options import prefix_errors
from pe_lab.system.arguments import Parser, run_program
from pe_lab.system.files import require_writable
from pe_lab.system.names import did_you_mean

DEFAULT_FOLDER = "exports"
NAMES = ("data", "seed", "out")


def main() -> None:
    """Read the arguments and export the dataset."""
    parser = Parser("pe_lab.data", NAMES, description=__doc__)
    parser.add_argument("arguments", nargs="*", metavar="export key=value")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=config.HELP)

    def program() -> None:
        with config.add_config_dirs(sys.argv[1:]) as arguments:
            export_dataset(*read_export_arguments(parser.parse_args(arguments).arguments))

    run_program(program, (ValueError, OSError, HydraException, OmegaConfBaseException))


def read_export_arguments(arguments: list[str]) -> tuple[Path, DictConfig]:
    """Return the folder to write to, and the config of the dataset.

    Raises:
        ValueError: an argument that is no setting; no dataset; a folder that cannot be written to.
        HydraException: an option that the dataset does not have.
    """
    if arguments[:1] != ["export"]:
        command = arguments[0] if arguments else "nothing"
        raise ValueError(f"the command must be export, got {command}{did_you_mean(command, ['export'])}")
    out, overrides = DEFAULT_FOLDER, []
    for argument in arguments[1:]:
        key, _, value = argument.partition("=")
        if key == "out" and value:
            out = value
        elif value and (key in ("data", "seed") or key.startswith("data.")):
            overrides.append(argument)
        else:
            hint = "" if key in NAMES else did_you_mean(key, NAMES)
            raise ValueError(f"export takes data=…, data.<option>=…, seed=… and out=…: got {argument!r}{hint}")
    if not any(argument.startswith("data=") for argument in overrides):
        names = config.find_folders().names("data")
        raise ValueError(f"data must be one of {', '.join(names)}, got nothing")
    cfg = config.expand_overrides(overrides, multirun=False)[0]
    require_writable("out", Path(out))
    return Path(out) / cfg.data.name, cfg


def export_dataset(folder: Path, cfg: DictConfig) -> None:
    """Make the dataset, write its files, print their names and the sizes of its splits."""
    from pe_lab.data.export import split_sizes, write_dataset

    with prefix_errors("data"):
        dataset = instantiate(cfg.data)(seed=cfg.seed)
    settings = {key: value for key, value in config.resolve_config(cfg.data).items() if key[0] != "_"}
    for file in write_dataset(dataset, folder, cfg.seed, settings):
        print(file)
    print(", ".join(f"{split} {size:,}" for split, size in split_sizes(dataset).items()))


if __name__ == "__main__":
    main()
