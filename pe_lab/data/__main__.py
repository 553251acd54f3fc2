"""Export a dataset to files.

python -m pe_lab.data export data=pattern [data.<option>=<value>] [seed=0] [out=exports]

Writes OUT/<name>/<name>.csv (split, tokens, and a label or a target per token), the same as <name>.npz (no pickle) and
schema.json, which describes them and has the floors. A CSV with labels, exported or your own, can be read as a dataset:
python -m pe_lab.run data=pattern data.path=OUT/pattern/pattern.csv
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.system.errors import in_one_line, refuse

OUT = "exports"


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m pe_lab.data", description=__doc__, formatter_class=formatter)
    parser.add_argument("words", nargs="*", metavar="export key=value")
    parser.error = refuse  # type: ignore[method-assign]
    try:
        folder, cfg = read(parser.parse_args().words)
    except Exception as error:
        _fail(error)
    try:
        export(folder, cfg)
    except (ValueError, OSError) as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _fail(error: Exception) -> NoReturn:
    print(f"error: {in_one_line(error)}", file=sys.stderr)
    sys.exit(1)


def read(words: list[str]) -> tuple[Path, DictConfig]:
    """Return the folder to write to, which is made if it is missing, and the composed config.

    Raises:
        ValueError: an unknown setting; no dataset; a folder that cannot be written to.
        HydraException: an option that the dataset does not have.
    """
    if words[:1] != ["export"]:
        raise ValueError(f"the command must be export, got {words[0] if words else 'nothing'}")
    out, overrides = OUT, []
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "out" and value:
            out = value
        elif value and (key in ("data", "seed") or key.startswith("data.")):
            overrides.append(word)
        else:
            raise ValueError(f"export takes data=…, data.<option>=…, seed=… and out=…: got {word!r}")
    if not any(word.startswith("data=") for word in overrides):
        there = sorted(path.stem for path in (config.folder() / "data").glob("*.yaml"))
        raise ValueError(f"data must be one of {', '.join(there)}, got nothing")
    cfg = config.expand(overrides, multirun=False)[0]
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out must be a folder that can be written to, got {out!r} ({error.strerror})") from None
    return Path(out) / cfg.data.name, cfg


def export(folder: Path, cfg: DictConfig) -> None:
    """Make the dataset, write it and print the files."""
    from hydra.utils import instantiate

    from pe_lab.data.export import sizes, write

    dataset = instantiate(cfg.data)(seed=cfg.seed)
    settings = {key: value for key, value in OmegaConf.to_container(cfg.data, resolve=True).items() if key[0] != "_"}
    for file in write(dataset, folder, cfg.seed, settings):
        print(file)
    print(", ".join(f"{split} {size:,}" for split, size in sizes(dataset).items()))


if __name__ == "__main__":
    main()
