"""The tasks of pe-bench 2: studies that have the same model, ladder of learning rates and encodings, and other data."""

from dataclasses import dataclass, field
from functools import cache

from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.config import reference

VERSION = 2
NAME = f"pe-bench {VERSION}"
STUDY = f"pe_bench_{VERSION}"
COMBINATIONS = ("heads", "interleave", "sum")  # combinations of encodings that the user chooses, not in the benchmark


@dataclass(frozen=True)
class BenchmarkTask:
    """A task of pe-bench 2.

    Attributes:
        study: the name of its study, a file in conf/study.
        asks: what an encoding is needed for, in a few words.
        question: the question of the study, a sentence.
        encodings: the names of the encodings that the task is for, whether they are defined for it or not.
        cfg: the config of one of its cells, with `pe=none` and seed 0.
    """

    study: str
    asks: str
    question: str
    encodings: tuple[str, ...]
    cfg: DictConfig = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.study.removeprefix(f"{STUDY}_")

    @property
    def solvable(self) -> bool:
        """Whether it has a level at which it is solved; otherwise encodings are compared by their loss at the end."""
        return self.cfg.solve.level is not None


@cache
def benchmark_tasks() -> tuple[BenchmarkTask, ...]:
    """Return the tasks, in the order of the study that is made of them."""
    return tuple(map(_read_task, _study_names()))


def task_names() -> list[str]:
    """Return the names of the tasks, in that order; nothing is composed."""
    return [study.removeprefix(f"{STUDY}_") for study in _study_names()]


def task_named(name: str) -> BenchmarkTask:
    """Return the task of a name."""
    return next(_read_task(study) for study in _study_names() if study == f"{STUDY}_{name}")


def encoding_names() -> list[str]:
    """Return the names of the encodings of the benchmark: those of the package that are no combinations."""
    names = sorted(path.stem for path in (config.config_folder() / "pe").glob("*.yaml"))
    return [name for name in names if name not in COMBINATIONS]


@cache
def _read_task(study: str) -> BenchmarkTask:
    file = config.config_folder() / "study" / f"{study}.yaml"
    asks, _, question = reference.first_comment(file).partition(": ")
    shared = (config.config_folder() / "search" / f"{STUDY}.yaml").read_text(encoding="utf-8")
    few = OmegaConf.select(
        OmegaConf.merge(*map(OmegaConf.create, (shared, file.read_text(encoding="utf-8")))), "hydra.sweeper.params.pe"
    )
    (cfg,) = config.expand_overrides(config.sweep_overrides([f"+study={study}", "pe=none"]), multirun=True)
    return BenchmarkTask(
        study, asks, question, tuple(encoding_names()) if few.startswith("glob(") else tuple(few.split(",")), cfg
    )


def _study_names() -> list[str]:
    """Return the names of the tasks' studies, in the order of the study that is made of them."""
    lines = OmegaConf.load(config.config_folder() / "study" / f"{STUDY}.yaml").studies.values()
    return list(dict.fromkeys(str(line).split()[0].removeprefix("+study=") for part in lines for line in part))
