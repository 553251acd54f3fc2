"""The tasks of the benchmark: studies that have the same model, search and encodings, and differ in their data."""

from dataclasses import dataclass
from functools import cache

from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.statistics import Margin

VERSION = 1
NAME = f"pe-bench {VERSION}"  # another version has another set of tasks, or other settings of one: never the same rows
STUDY = f"pe_bench_{VERSION}"
SEARCH = "-search"  # the end of the study name of cells of a search


@dataclass(frozen=True)
class Task:
    """A task of the benchmark.

    Attributes:
        study: the name of its study, a file in conf/study.
        asks: for what an encoding is needed, in a few words.
        question: the question of the study, a sentence.
        margin: the smallest difference of the loss that matters.
    """

    study: str
    asks: str
    question: str
    margin: Margin

    @property
    def name(self) -> str:
        return self.study.removeprefix(f"{STUDY}_")


@cache
def tasks() -> tuple[Task, ...]:
    """Return the tasks, in the order of the study that is made of them."""
    found = []
    for study in listed(STUDY):
        asks, question, settings = described(study)
        found.append(Task(study, asks, question, Margin.parse(settings.margin)))
    return tuple(found)


def listed(name: str) -> list[str]:
    """Return the studies that a study is made of."""
    lines = OmegaConf.load(config.folder() / "study" / f"{name}.yaml").studies.values()
    return list(dict.fromkeys(str(line).split()[0].removeprefix("+study=") for part in lines for line in part))


def described(study: str) -> tuple[str, str, DictConfig]:
    """Return what a study's first comment says, "<what it asks>: <question>", and the settings of its file alone."""
    text = (config.folder() / "study" / f"{study}.yaml").read_text()
    comment = next(line for line in text.splitlines() if line.startswith("# ") and not line.startswith("# @"))
    asks, _, question = comment.removeprefix("# ").partition(": ")
    return asks, question, OmegaConf.create(text)
