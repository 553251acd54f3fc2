"""The tasks of pe-bench 2: studies that have the same model, ladder of learning rates and encodings, and other data."""

from dataclasses import dataclass, field
from functools import cache

from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.benchmark.tasks import described, listed
from pe_lab.benchmark.undefined import named

VERSION = 2
NAME = f"pe-bench {VERSION}"
STUDY = f"pe_bench_{VERSION}"


@dataclass(frozen=True)
class Task:
    """A task of pe-bench 2.

    Attributes:
        study: the name of its study, a file in conf/study.
        asks: for what an encoding is needed, in a few words.
        question: the question of the study, a sentence.
        encodings: that it is for, whether they are defined for it or not.
        cfg: a cell of it, of `pe=none` and seed 0.
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
def tasks() -> tuple[Task, ...]:
    """Return the tasks, in the order of the study that is made of them."""
    return tuple(map(_task, listed(STUDY)))


def task(name: str) -> Task:
    """Return the task of a name."""
    return next(_task(study) for study in listed(STUDY) if study == f"{STUDY}_{name}")


@cache
def _task(study: str) -> Task:
    asks, question, settings = described(study)
    few = OmegaConf.select(settings, "hydra.sweeper.params.pe")
    (cfg,) = config.expand(config.of_jobs([f"+study={study}", "pe=none"]), multirun=True)
    return Task(study, asks, question, tuple(named()) if few.startswith("glob(") else tuple(few.split(",")), cfg)
