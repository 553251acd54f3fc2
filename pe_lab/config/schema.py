"""The typed root of the configuration with the ranges of its settings, and where its files are.

A class here states the type, the range and, where there is one, the neutral value of each setting; conf/ its default
and what it means.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from pe_lab.config import ranges, trainer_arguments
from pe_lab.encodings import options
from pe_lab.encodings.options import (
    Count,
    Folder,
    NonNegative,
    Positive,
    Range,
    annotated_range,
    at_least,
    choice_range,
    integers,
)


@dataclass
class Model:
    """The transformer, see conf/model/base.yaml for every setting.

    A default here means "as before there was this setting": it is left out of the identity of a training, see
    `Transformer.neutral`, and must never change.
    """

    depth: Count = MISSING
    width: Count = MISSING
    num_heads: Count = MISSING
    mlp_ratio: Annotated[Any, ranges.RATIO] = MISSING
    norm: Annotated[str, choice_range("pre", "post", "sandwich")] = MISSING
    dropout: Annotated[float, ranges.FRACTION] = MISSING
    embedding_std: Positive = MISSING
    scale_tokens: bool = MISSING
    attention_dropout: Annotated[float, ranges.FRACTION] = 0.0
    parametrization: Annotated[str, choice_range("standard", "mup")] = "standard"
    base_width: Count = 64
    base_head_dim: Count = 16
    norm_type: Annotated[str, choice_range("layer", "rms", "rms_plain")] = "layer"
    mlp: Annotated[str, choice_range("gelu", "swiglu", "relu2")] = "gelu"
    num_kv_heads: Count | None = None
    qk_norm: bool = False
    bias: bool = True
    tie_embeddings: bool = False
    residual_scale: Annotated[str, choice_range("none", "depth")] = "none"
    weight_std: Positive | None = None
    head_dim: Count | None = None
    embedding_norm: bool = False
    logit_cap: Positive | None = None
    checkpointing: Annotated[str, choice_range("none", "layer", "selective")] = "none"


@dataclass
class LabTrainer:
    """How a cell is trained: what Lightning's Trainer has no argument for, or another name."""

    device: Annotated[str, choice_range("auto", "cpu", "cuda")] = MISSING
    precision: Annotated[str, choice_range("32", "bf16-mixed")] = MISSING
    batch_size: Count = MISSING
    clip: Positive | None = MISSING
    log_every: Count = MISSING
    save_every: NonNegative = MISSING
    graph: Annotated[Any, ranges.GRAPH] = "auto"
    fresh: bool = False
    _target_: str = "lightning.Trainer"


# all arguments of Lightning's Trainer, so that they are given without +; null: not given
Trainer: Any = make_dataclass(
    "Trainer",
    [
        (name, Annotated[Any, allowed], field(default=None))
        for name, allowed in trainer_arguments.argument_ranges().items()
    ],
    bases=(LabTrainer,),
)


@dataclass
class Attention:
    """Which implementation computes attention."""

    implementation: Annotated[str, choice_range("auto", "reference", "sdpa", "flex", "blocked", "triton")] = MISSING


@dataclass
class Solve:
    """At which steps a training counted in steps is validated, and the score at which it ends.

    Attributes:
        level: the validation score to reach, in (0, 1). At the second evaluation in a row that reaches it the task
            counts as solved and the training stops; null: it goes on to its end.
        first: the step of the first evaluation.
        per_doubling: the number of evaluations for each doubling of the steps after it.
    """

    level: Annotated[float, ranges.SCORE] | None = None
    first: Count = 60
    per_doubling: Count = 2


@dataclass
class Tune:
    """How the rate is tuned for each encoding and seed: all rates for a part of the steps, then the best by validation.

    Attributes:
        rates: learning rates to try, ascending; null: `optimizer.lr` is used as it is.
        scaled: pairs of a rate and a starting scale, as many as rates, for encodings that have one; empty: their scale
            is used as it is.
        fraction: the share of the steps after which only the best goes on, unless a try has solved the task before; 1:
            all go on.
        steps: the number of steps after which only the best goes on, in place of `fraction`; trainings that are not
            longer all go on.
        margin: the smallest difference that matters, in octaves of steps, or in nats where there is no level.
        baseline: an encoding with which all others are compared, in one family over all settings; null: every two are
            compared, each setting by itself.
    """

    rates: Annotated[list[float], ranges.ascending_list(2)] | None = None
    scaled: Annotated[list[Any], ranges.list_range(ranges.RATE_AND_SCALE, fewest=0)] = field(default_factory=list)
    fraction: Annotated[float, ranges.PART] = 0.25
    steps: Count | None = None
    margin: Annotated[str, ranges.TUNED_MARGIN] | None = None
    baseline: Annotated[str, ranges.NAME] | None = None


@dataclass
class Evaluate:
    """Measurements on a trained cell: every length, under every policy, at every offset; answers generated or not."""

    lengths: Annotated[list[float], ranges.list_range(at_least(1))] = field(default_factory=lambda: [1.0])
    policy: Annotated[list[str], ranges.list_range(ranges.POLICY)] = field(default_factory=lambda: ["raw"])
    offset: Annotated[list[int], ranges.list_range(ranges.OFFSET)] = field(default_factory=lambda: [0])
    stride: Count | None = None
    decode: Annotated[str, choice_range("none", "greedy")] = "none"


@dataclass
class Decide:
    """How many seeds are trained: added look by look to undecided encodings. Settings of a study, not of its cells.

    Attributes:
        baseline: an encoding that all are compared with, `all pairs`, or `best`; null: no seeds are added.
        seeds: the first and the largest number of seeds.
        looks: all numbers of seeds at which results are looked at; null: 5, 8, 12 and so on, by half more each.
        best: how many of the best encodings are looked for, with `baseline: best`; null: 1.
    """

    baseline: Annotated[str, ranges.BASELINE] | None = None
    seeds: Annotated[str, ranges.SEEDS] = "5..12"
    looks: Annotated[list[int], ranges.list_range(ranges.COUNT)] | None = None
    best: Count | None = None


@dataclass
class Study:
    """What a study reads and a cell does not have: workers, how seeds are tuned and added, what difference matters."""

    tune: Tune = field(default_factory=Tune)
    workers: Count | None = None
    margin: Annotated[str, ranges.MARGIN] | None = None
    decide: Decide = field(default_factory=Decide)
    budget: Annotated[float, ranges.CORE_HOURS] | None = None


@dataclass
class Config(Study):
    """What a command sets: a cell, one encoding in one model on one dataset with its training, and its study."""

    pe: Any = MISSING
    model: Model = field(default_factory=Model)
    data: Any = MISSING
    optimizer: Any = MISSING
    trainer: Trainer = field(default_factory=Trainer)
    attention: Attention = field(default_factory=Attention)
    logger: dict[str, Any] = field(default_factory=dict)
    evaluate: Evaluate = field(default_factory=Evaluate)
    probe: dict[str, Any] = field(default_factory=dict)
    callbacks: dict[str, Any] = field(default_factory=dict)
    epochs: Count | None = 16
    steps: Count | None = None
    solve: Solve = field(default_factory=Solve)
    seed: Annotated[int, integers(0)] = 0
    ledger: Folder = "ledger"
    study_name: Annotated[str, ranges.NAME] | None = None


def _declared_settings(typed: type, prefix: str = "") -> Iterator[tuple[str, Range]]:
    """Yield the settings of a class of the schema by their dotted names, with the ranges that it declares."""
    for name, annotation in get_type_hints(typed, include_extras=True).items():
        if isinstance(annotation, type) and is_dataclass(annotation):
            yield from _declared_settings(annotation, f"{prefix}{name}.")
        elif (allowed := annotated_range(annotation)) is not None:
            yield prefix + name, allowed


# the ranges of all settings but those of `pe` and `data`, whose classes declare their options themselves
RANGES: dict[str, Range] = dict(_declared_settings(Config)) | ranges.UNTYPED


def require_setting(setting: str, value: Any) -> None:
    """Check the value of a setting.

    Args:
        setting: the dotted name of the setting, a key of RANGES.

    Raises:
        ValueError: one line with the setting, the requirement and the value.
    """
    options.require_option(setting, value, RANGES[setting])


TYPED_GROUPS = (
    ("model", Model),
    ("trainer", Trainer),
    ("attention", Attention),
    ("solve", Solve),
    ("tune", Tune),
    ("evaluate", Evaluate),
    ("decide", Decide),
)
STUDY_SETTINGS = tuple(each.name for each in fields(Study))
LR = "optimizer.lr"  # the learning rate, a setting and a column of tables
LIST_GROUPS = (
    "probe",
    "callbacks",
    "logger",
)  # groups of which several files are chosen; each has a package of its own
ConfigStore.instance().store(name="schema", node=Config)


@cache
def config_folder() -> Path:
    """Return the folder of the YAML files: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).parents[1]
    beside = package.parent / "conf"
    return beside if (beside / "config.yaml").exists() else package / "conf"


def study_settings(cfg: DictConfig) -> DictConfig:
    """Return what a config has of `Study`; for that of a cell, the defaults."""
    sections = OmegaConf.masked_copy(cfg, list(STUDY_SETTINGS))
    return DictConfig(OmegaConf.merge(OmegaConf.structured(Study), sections))


def without_study_settings(cfg: DictConfig) -> DictConfig:
    """Return a copy of a config without what only its study reads."""
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in STUDY_SETTINGS])


def flatten_settings(tree: dict[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """Return a tree's values by joined names; null and lists as text, so that they can be compared and grouped.

    Members of a list that have settings of their own, as parts of an encoding, are named by their number.
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, list) and value and all(isinstance(member, dict) for member in value):
            value = {str(index): member for index, member in enumerate(value)}
        if isinstance(value, dict):
            flat |= flatten_settings(value, f"{prefix}{key}{separator}", separator)
        else:
            flat[f"{prefix}{key}"] = "null" if value is None else str(value) if isinstance(value, list) else value
    return flat


def resolve_config(cfg: DictConfig) -> dict[str, Any]:
    """Return a config, or a group of it, as plain data with its interpolations resolved.

    Arguments of lightning.Trainer are there if they are given.
    """
    plain: Any = OmegaConf.to_container(cfg, resolve=True)  # its type does not say that a DictConfig makes a dict
    assert isinstance(plain, dict)
    if isinstance(arguments := plain.get("trainer"), dict):
        plain["trainer"] = {
            name: value
            for name, value in arguments.items()
            if value is not None or name not in trainer_arguments.ARGUMENT_NAMES
        }
    return plain
