"""A check finds every broken promise of a dataset: for each there is a dataset that breaks it."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from pe_lab.check.datasets import PROMISES, DatasetCase
from pe_lab.check.promise import check_promise, check_promises
from pe_lab.data.base import IGNORE, Batch, InMemoryDataset, Task
from pe_lab.data.metric import Metric
from pe_lab.data.seeding import make_generator


class Previous(InMemoryDataset):
    """Asks at every slot but the first for the token before it; sequences have 4 to T tokens. Keeps every promise."""

    roles = ("previous",)
    own_metrics: tuple[Metric, ...] = (Metric("worst_loss", "min", "nats"),)
    length, vocabulary = 12, 8

    def __init__(self, seed, name="previous", factor=1.0):
        self.seed, self.name = seed, name
        self.task = Task(self.vocabulary, round(factor * self.length), self.vocabulary, causal=True)

    def size(self, split):
        return 40 if split == "train" else 10

    def make(self, split):
        T, random = self.task.length, make_generator(self.seed, split, self.task.length)
        tokens = torch.randint(self.vocabulary, (self.size(split), T), generator=random)
        length = torch.randint(4, T + 1, (self.size(split),), generator=random)
        length[0] = T
        targets = torch.full_like(tokens, IGNORE)
        targets[:, 1:] = tokens[:, :-1]
        targets[torch.arange(T) >= length[:, None]] = IGNORE
        return Batch(tokens, targets, torch.zeros_like(tokens), targets != IGNORE, self.task.layout(length, T))

    def floors(self, split):
        return {"prior": {"loss": math.log(self.vocabulary)}}

    def metrics(self, losses, batch):
        return {"worst_loss": losses.max().item()}

    def longer(self, factor):
        if factor * self.length > 1000:
            raise ValueError(f"evaluate.lengths must lead to at most 1000 tokens, got {factor:g}")
        return type(self)(self.seed, self.name, factor)


class Renamed(Previous):
    def __init__(self, seed, name="renamed", factor=1.0):
        super().__init__(seed, "other", factor)


class NoTest(Previous):
    @property
    def splits(self):
        return ("train", "validation")


class Changed(Previous):
    """Changes a part of every batch that is made."""

    def change(self, batch, split):
        return batch

    def make(self, split):
        return self.change(super().make(split), split)


class Int32(Changed):
    def change(self, batch, split):
        return replace(batch, tokens=batch.tokens.int())


class OutsideVocabulary(Changed):
    def change(self, batch, split):
        return replace(batch, tokens=batch.tokens + 1)


class OneAnswer(Changed):
    def change(self, batch, split):
        return replace(batch, targets=batch.targets[:, :1])


class NotCausal(Changed):
    def change(self, batch, split):
        return replace(batch, layout=replace(batch.layout, causal=False))


class AsksAtPadding(Changed):
    def change(self, batch, split):
        return replace(batch, targets=torch.zeros_like(batch.targets))


class AsksNothing(Changed):
    def change(self, batch, split):
        targets = batch.targets.clone()
        targets[0] = IGNORE
        return replace(batch, targets=targets, headline=targets != IGNORE)


class HeadlineOfNothing(Changed):
    def change(self, batch, split):
        return replace(batch, headline=torch.ones_like(batch.headline))


class EmptyHeadline(Changed):
    def change(self, batch, split):
        return replace(batch, headline=torch.zeros_like(batch.headline))


class Leaky(Previous):
    def make(self, split):
        return super().make("train")[torch.arange(self.size(split))]


class Twice(Previous):
    def batch(self, split, index, epoch=0):
        return super().batch(split, index if split == "train" else index // 2, epoch)


class Unseeded(Changed):
    def change(self, batch, split):
        return replace(batch, tokens=torch.randint(self.vocabulary, batch.tokens.shape))


class Constant(Previous):
    def __init__(self, seed, name="constant", factor=1.0):
        super().__init__(0, name, factor)


class Sorted(Previous):
    def batch(self, split, index, epoch=0):
        return super().batch(split, index.sort().values, epoch)


class NewTests(Previous):
    def batch(self, split, index, epoch=0):
        batch = super().batch(split, index, epoch)
        return replace(batch, tokens=(batch.tokens + epoch) % self.vocabulary) if split == "test" else batch


class NewLengths(Previous):
    def batch(self, split, index, epoch=0):
        batch = super().batch(split, index, epoch)
        if split != "train":
            return batch
        return replace(batch, layout=replace(batch.layout, segment=batch.layout.segment.clamp(min=-1 + epoch)))


class Unpicklable(Previous):
    def __init__(self, seed, name="unpicklable", factor=1.0):
        super().__init__(seed, name, factor)
        self.function = lambda: None


class NoLongerThere(Previous):
    def longer(self, factor):
        raise ValueError("one length only")


class SameLength(Previous):
    def longer(self, factor):
        return self


class Grows(Previous):
    def longer(self, factor):
        self._splits.clear()
        self.seed += 1
        return super().longer(factor)


class OtherVocabulary(Previous):
    def longer(self, factor):
        longer = super().longer(factor)
        longer.task = replace(longer.task, vocabulary=20)
        return longer


class NoFloors(Previous):
    def floors(self, split):
        return {}


class InfiniteFloor(Previous):
    def floors(self, split):
        return {"prior": {"loss": math.inf}}


class UnknownMetric(Previous):
    def floors(self, split):
        return {"prior": {"loss": 1.0, "bleu": 1.0}}


class Disordered(Previous):
    def floors(self, split):
        return {"bayes": {"loss": 2.0}, "position_blind": {"loss": 1.0}}


LONGER = "longer sequences are of the same task, or refused in one line"
METRICS = "its own metrics are declared, finite, and better for lower losses"


class UndeclaredMetric(Previous):
    own_metrics = ()


class MetricOfOtherLosses(Previous):
    own_metrics = (*Previous.own_metrics, Metric("zero_share", "max", "share"))

    def metrics(self, losses, batch):
        return super().metrics(losses, batch) | ({} if losses.any() else {"zero_share": 1.0})


class AbsentMetric(Previous):
    own_metrics = (*Previous.own_metrics, Metric("speed", "max", "share"))


class InfiniteMetric(Previous):
    def metrics(self, losses, batch):
        return {"worst_loss": losses.log().max().item()}


class ReversedMetric(Previous):
    own_metrics = (Metric("certainty", "max", "nats"),)

    def metrics(self, losses, batch):
        return {"certainty": losses.max().item()}


BROKEN: list[tuple[type[Previous], str, str]] = [
    (Renamed, "it keeps the name it is given", "got 'other'"),
    (NoTest, "sequences are what the task says", "splits must contain train, validation, test"),
    (Int32, "sequences are what the task says", "tokens of train must be torch.int64, got torch.int32"),
    (OutsideVocabulary, "sequences are what the task says", "tokens of train must be in 0 ... 7"),
    (OneAnswer, "sequences are what the task says", "targets of train must be (40, 12), got (40, 1)"),
    (NotCausal, "sequences are what the task says", "must have causal=True"),
    (AsksAtPadding, "something is asked in each, and never at padding", "train asks at padding"),
    (AsksNothing, "something is asked in each, and never at padding", "train has a sequence in which nothing is asked"),
    (HeadlineOfNothing, "something is asked in each, and never at padding", "counts what is not asked"),
    (EmptyHeadline, "something is asked in each, and never at padding", "the headline of train is empty"),
    (Leaky, "no sequence is in two splits, nor held out twice", "train and validation share sequences"),
    (Twice, "no sequence is in two splits, nor held out twice", "validation has a sequence twice"),
    (Unseeded, "a seed determines every number", "torch's global generator is drawn from"),
    (Constant, "a seed determines every number", "the tests of two seeds are the same"),
    (Sorted, "a batch has the sequences that were asked for, in order", "has other sequences"),
    (NewTests, "an epoch changes only what is asked in training", "test changes with the epoch"),
    (NewLengths, "an epoch changes only what is asked in training", "layout.segment of train changes with the epoch"),
    (Unpicklable, "it can be copied and pickled", "raised "),
    (NoLongerThere, LONGER, "the refusal must name evaluate.lengths: one length only"),
    (SameLength, LONGER, "no longer sequence is longer"),
    (Grows, LONGER, "longer changes the dataset itself"),
    (OtherVocabulary, LONGER, "task.vocabulary of longer sequences must be 8, got 20"),
    (NoFloors, "floors are finite, known and in order", "must have a floor or a reference level"),
    (InfiniteFloor, "floors are finite, known and in order", "prior: loss=inf is out of range"),
    (UnknownMetric, "floors are finite, known and in order", "prior has metrics that do not exist: bleu"),
    (UndeclaredMetric, METRICS, "own_metrics must declare each metric of train, got worst_loss"),
    (MetricOfOtherLosses, METRICS, "metrics of train are others for other losses"),
    (AbsentMetric, METRICS, "no split has the metrics speed"),
    (InfiniteMetric, METRICS, "worst_loss of train is not finite"),
    (ReversedMetric, METRICS, "certainty of train, declared max, must be at least 5"),
    (Disordered, "floors are finite, known and in order", "losses of bayes, position_blind on validation must rise"),
]


@pytest.mark.parametrize(("cls", "promise", "reason"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_promise_is_found_and_said(cls: type[Previous], promise: str, reason: str) -> None:
    outcome = check_promise(promise, PROMISES[promise], DatasetCase("mine", partial(cls, name="mine")))
    assert outcome.holds is False
    assert reason in outcome.reason
    assert "\n" not in outcome.reason


def test_every_promise_has_a_dataset_that_breaks_it() -> None:
    assert {promise for _, promise, _ in BROKEN} == set(PROMISES)


def test_a_dataset_that_keeps_its_promises_is_found_sound() -> None:
    outcomes = list(check_promises(PROMISES, DatasetCase("mine", partial(Previous, name="mine"))))
    assert {outcome.promise: outcome.reason for outcome in outcomes if not outcome.holds} == {}


class SameForAllSeeds(Constant):
    seeded = False


def test_data_that_declare_it_may_be_the_same_for_all_seeds() -> None:
    promise = "a seed determines every number"
    assert check_promise(promise, PROMISES[promise], DatasetCase("mine", partial(SameForAllSeeds, name="mine"))).holds


class OneLength(Previous):
    longer = InMemoryDataset.longer


def test_longer_sequences_do_not_concern_a_dataset_of_one_length() -> None:
    outcome = check_promise(LONGER, PROMISES[LONGER], DatasetCase("mine", partial(OneLength, name="mine")))
    assert (outcome.holds, outcome.reason) == (None, "it has one length")
