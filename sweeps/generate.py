"""Write the W&B sweep of every study: python sweeps/generate.py reads conf/study and writes sweeps/agents/.

A sweep has the cells of its study, one per agent run. Settings that all cells share are words of the command; the
others are parameters of a grid. learning_rate.yaml, which has no study, is written by hand. A study that adds
seeds or searches learning rates has no sweep: its cells depend on results, and a W&B agent chooses cells itself.
"""

from math import prod
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from pe_lab import config

FOLDER = Path(__file__).parent / "agents"
STUDIES = config.config_folder() / "study"
SWEEP = """\
# {question} {runs} runs
# Written by python sweeps/generate.py from conf/study/{name}.yaml
name: {name}
project: pe_lab
program: pe_lab.run
command:
  - ${{env}}
  - ${{interpreter}}
  - -m
  - ${{program}}
{words}
  - ${{args_no_hyphens}}
method: grid
metric:
  name: {metric}
  goal: minimize
parameters:
{parameters}
"""


def sweeps() -> dict[str, str]:
    """Return the text of each sweep by its study's name; see `has_sweep`."""
    files = {path.stem: path.read_text() for path in sorted(STUDIES.glob("*.yaml"))}
    return {name: sweep(name, text) for name, text in files.items() if has_sweep(text)}


def has_sweep(text: str) -> bool:
    """Return whether the cells of a study are known before any is trained, and its own: not those of other studies.

    A study that begins with another one is left out.
    """
    settings = OmegaConf.create(text)
    entries = settings.get("defaults", [])
    if any(isinstance(entry, str) and entry != "_self_" for entry in entries):
        return False
    chosen = {group: value for entry in entries for group, value in entry.items()}
    decides = any(OmegaConf.select(settings, key) is not None for key in ("decide.baseline", "tune.rates"))
    return "sweeper:" in text and not decides and chosen.get("override /search", "none") == "none"


def sweep(name: str, text: str) -> str:
    """Return the W&B sweep of a study.

    Args:
        text: of the study's file. Its first comment begins with the question that the study asks.
    """
    settings: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(text))  # type: ignore[assignment]
    swept = settings.pop("hydra")["sweeper"]["params"]
    words = [f"study_name={settings.pop('study_name')}"]
    for chosen in settings.pop("defaults", []):
        words += [f"{group.removeprefix('override /')}={_word(value)}" for group, value in chosen.items()]
    words += [f"{key}={_word(value)}" for key, value in _leaves(settings).items()]
    values = {key: _values(key, value) for key, value in sorted(swept.items())}
    for key in [key for key in values if len(values[key]) == 1 and (config.config_folder() / key).is_dir()]:
        words.append(f"{key}={values.pop(key)[0]}")  # a file that is chosen, not a setting with this value
    if "epochs" in values:
        values["epochs"].sort()  # a longer run continues from the state of a shorter one
    comment = " ".join(line.removeprefix("# ") for line in text.splitlines()[1:3] if line.startswith("# "))
    return SWEEP.format(
        question=comment.partition("?")[0] + "?",
        runs=prod(map(len, values.values())),
        name=name,
        words="\n".join(f"  - {word}" for word in words),
        metric="validation/loss" if any(key.startswith("optimizer.") for key in values) else "test/loss",
        parameters="\n".join(_parameter(key, values[key]) for key in values),
    )


def _values(key: str, swept: Any) -> list[Any]:
    """Return the values of a setting that Hydra's sweeper is given."""
    (override,) = OverridesParser.create().parse_overrides([f"{key}={swept}"])
    found = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    return [value if isinstance(value, (int, float)) else str(value) for value in found]


def _parameter(key: str, values: list[Any]) -> str:
    if len(values) == 1:
        return f"  {key}:\n    value: {values[0]}"
    text = yaml.safe_dump(values, default_flow_style=True, width=110).strip().replace("\n", "\n      ")
    return f"  {key}:\n    values:\n      {text}" if "\n" in text else f"  {key}:\n    values: {text}"


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _word(value: Any) -> str:
    """Return a value as it is written in an override."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


if __name__ == "__main__":
    for name, text in sweeps().items():
        (FOLDER / f"{name}.yaml").write_text(text)
