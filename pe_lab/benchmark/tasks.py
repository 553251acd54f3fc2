"""The tasks of the benchmark: studies that have the same model, search and encodings, and differ in their data."""

from dataclasses import dataclass
from functools import cache

from omegaconf import OmegaConf

from pe_lab import config
from pe_lab.results.statistics import Margin

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
    listed = OmegaConf.load(config.folder() / "study" / f"{STUDY}.yaml").studies
    words = [str(line).split()[0] for lines in listed.values() for line in lines]
    return tuple(_task(word.removeprefix("+study=")) for word in dict.fromkeys(words))


def _task(study: str) -> Task:
    """Read a task's first comment, "<what it asks>: <question>", and its margin."""
    text = (config.folder() / "study" / f"{study}.yaml").read_text()
    comment = next(line for line in text.splitlines() if line.startswith("# ") and not line.startswith("# @"))
    asks, _, question = comment.removeprefix("# ").partition(": ")
    return Task(study, asks, question, Margin.parse(OmegaConf.create(text).margin))
