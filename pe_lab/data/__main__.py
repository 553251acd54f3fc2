"""Datasets as files, for other programs and for people.

python -m pe_lab.data export data=pattern [data.<option>=<value>] [seed=0] [out=exports]

Writes OUT/<name>/<name>.csv (split, tokens, and a label or a target per token), the same as <name>.npz (no pickle) and
schema.json, which says what is in them, with the floors. The CSV of a dataset with labels, or one like it, can be given
back: python -m pe_lab.run data=pattern data.path=OUT/pattern/pattern.csv
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.encodings.options import within
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
    """The dataset's folder in one that is made if it was not there, and the config of the dataset.

    Raises:
        ValueError: a word that is no setting; no dataset; a folder that cannot be written to.
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
    """Make the dataset, write it, say what was written."""
    from hydra.utils import instantiate

    from pe_lab.data.export import sizes, write

    with within("data"):
        dataset = instantiate(cfg.data)(seed=cfg.seed)
    settings = {key: value for key, value in OmegaConf.to_container(cfg.data, resolve=True).items() if key[0] != "_"}
    for file in write(dataset, folder, cfg.seed, settings):
        print(file)
    print(", ".join(f"{split} {size:,}" for split, size in sizes(dataset).items()))


if __name__ == "__main__":
    main()
