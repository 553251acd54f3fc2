"""The promises of a dataset: splits, seeds, batches, longer sequences, floors."""

import copy
import math
import pickle
from collections.abc import Callable

import torch
from torch import Tensor

from pe_lab.check.promise import Check, InapplicableError, refusal_message, require
from pe_lab.data.base import IGNORE, Batch, Dataset
from pe_lab.encodings.layout import PADDING

USUAL_SPLITS = ("train", "validation", "test")
BATCH_FIELDS = ("tokens", "targets", "role", "headline")
LENGTH_FACTORS = (1.5, 2.0, 4.0)
MAX_LENGTH_FACTOR = 3000.0  # times as long as any sequence in training
WRONG_LOSS = 5.0  # nats, the loss of a wrong answer
MAX_MARKS = 5  # at most so many tokens of a longer sequence are marks, of which there are no more in longer ones


class DatasetCase:
    """A dataset under check.

    Args:
        name: the name of the dataset.
        make: a function that makes the dataset for a seed, as conf/data instantiates it.
        seed: the seed that the dataset is made from.

    Attributes:
        data: the dataset.

    Raises:
        ValueError: it cannot be made.
    """

    def __init__(self, name: str, make: Callable[..., Dataset], seed: int = 0) -> None:
        self.name, self.make, self.seed = name, make, seed
        self.data = make(seed=seed)


def whole_split(data: Dataset, split: str, epoch: int = 0) -> Batch:
    """Return all sequences of a split as one batch."""
    return data.batch(split, torch.arange(data.size(split)), epoch)


def count_tokens(batch: Batch) -> Tensor:
    """Return [B], the number of tokens without padding."""
    return (batch.layout.segment != PADDING).sum(1)


def token_sequences(batch: Batch) -> list[tuple[int, ...]]:
    """Return the sequences without padding."""
    is_token = batch.layout.segment != PADDING
    return [tuple(row[keep].tolist()) for row, keep in zip(batch.tokens, is_token, strict=True)]


def same_batch(batch: Batch, other: Batch) -> bool:
    """Return whether two batches are equal."""
    layouts = all(torch.equal(getattr(batch.layout, part), getattr(other.layout, part)) for part in ("pos", "segment"))
    return layouts and all(torch.equal(getattr(batch, part), getattr(other, part)) for part in BATCH_FIELDS)


def keeps_its_name(case: DatasetCase) -> None:
    """Check the name, which results and messages use."""
    require(case.data.name == case.name, f"name must be {case.name!r}, got {case.data.name!r}")


def makes_what_its_task_says(case: DatasetCase) -> None:
    """Check shapes, dtypes and ranges of every split against the task."""
    data, task = case.data, case.data.task
    require(
        set(USUAL_SPLITS) <= set(data.splits),
        f"splits must contain {', '.join(USUAL_SPLITS)}, got {', '.join(data.splits)}",
    )
    for split in data.splits:
        require(data.size(split) >= 1, f"{split} is empty")
        batch, size = whole_split(data, split), data.size(split)
        shapes = dict.fromkeys(BATCH_FIELDS, (size, 1 if task.pooled else task.length)) | {
            "tokens": (size, task.length)
        }
        for part, shape in shapes.items():
            tensor = getattr(batch, part)
            dtype = torch.bool if part == "headline" else torch.int64
            require(tensor.shape == shape, f"{part} of {split} must be {shape}, got {tuple(tensor.shape)}")
            require(tensor.dtype == dtype, f"{part} of {split} must be {dtype}, got {tensor.dtype}")
        answered = batch.targets != IGNORE
        limits = {
            "tokens": (batch.tokens, task.vocabulary),
            "targets": (batch.targets[answered], task.outputs),
            "role": (batch.role[answered], len(data.roles)),
        }
        for part, (values, end) in limits.items():
            inside = bool(((values >= 0) & (values < end)).all())
            require(inside, f"{part} of {split} must be in 0 ... {end - 1}")
        require(batch.layout.causal == task.causal, f"the layout of {split} must have causal={task.causal}")
        require(count_tokens(batch).min() >= 1, f"{split} has a sequence of padding alone")


def asks_where_tokens_are(case: DatasetCase) -> None:
    """Check that every sequence asks something, never at padding, and that the headline is of what is asked."""
    data = case.data
    for split in data.splits:
        batch = whole_split(data, split)
        answered = batch.targets != IGNORE
        require(answered.any(1).all(), f"{split} has a sequence in which nothing is asked")
        require(not (batch.headline & ~answered).any(), f"the headline of {split} counts what is not asked")
        require(batch.headline.any(), f"the headline of {split} is empty")
        if not data.task.pooled:
            require(not (answered & (batch.layout.segment == PADDING)).any(), f"{split} asks at padding")


def keeps_splits_apart(case: DatasetCase) -> None:
    """Check that no sequence is in two splits, nor twice among those that are held out."""
    rows = {split: token_sequences(whole_split(case.data, split)) for split in case.data.splits}
    for split, split_rows in rows.items():
        require(split == "train" or len(set(split_rows)) == len(split_rows), f"{split} has a sequence twice")
        for other, other_rows in rows.items():
            require(split == other or not set(split_rows) & set(other_rows), f"{split} and {other} share sequences")


def follows_from_its_seed(case: DatasetCase) -> None:
    """Check that a seed determines every number, another seed gives others, and torch's generator is left alone."""
    state = torch.random.get_rng_state()
    again = case.make(seed=case.seed)
    equal = all(same_batch(whole_split(again, split), whole_split(case.data, split)) for split in again.splits)
    require(torch.equal(torch.random.get_rng_state(), state), "torch's global generator is drawn from")
    require(equal, "two datasets of the same seed differ")
    other = case.make(seed=case.seed + 1)
    if other.seeded:
        require(
            not same_batch(whole_split(other, "test"), whole_split(case.data, "test")),
            "the tests of two seeds are the same",
        )


def returns_what_is_asked_for(case: DatasetCase) -> None:
    """Check that a batch has the sequences of its indices, in their order."""
    data, size = case.data, case.data.size("test")
    index = torch.tensor([size - 1, 0, min(3, size - 1), min(3, size - 1), size // 2])
    everything = whole_split(data, "test")
    for chosen in (index, index[[4, 0, 2, 1, 3]]):
        require(
            same_batch(data.batch("test", chosen), everything[chosen]), f"test at {chosen.tolist()} has other sequences"
        )


def changes_only_questions_with_the_epoch(case: DatasetCase) -> None:
    """Check that an epoch of training changes what is asked and no more, and that other splits stay."""
    data = case.data
    for split in USUAL_SPLITS:
        first, second = (whole_split(data, split, epoch) for epoch in (0, 1))
        require(split == "train" or same_batch(first, second), f"{split} changes with the epoch")
        for part in ("pos", "segment"):
            equal = torch.equal(getattr(first.layout, part), getattr(second.layout, part))
            require(equal, f"layout.{part} of {split} changes with the epoch")
        prompt = (first.targets == IGNORE) & (second.targets == IGNORE)
        if data.task.pooled:
            prompt = torch.ones_like(first.tokens, dtype=torch.bool)
        require(torch.equal(first.tokens[prompt], second.tokens[prompt]), f"tokens of {split} change with the epoch")
        require(same_batch(second, whole_split(data, split, epoch=1)), f"{split} at epoch 1 is another one each time")


def can_be_copied(case: DatasetCase) -> None:
    """Check pickling and copying, before any sequence is made and after."""
    expected = whole_split(case.data, "test")
    for data in (case.make(seed=case.seed), case.data):
        for twin in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data), copy.copy(data)):
            require(same_batch(whole_split(twin, "test"), expected), "a copy has other sequences")


def lengthens_its_task(case: DatasetCase) -> None:
    """Check longer sequences: of the same task, none of them trained on; or refused in one line."""
    refused = [_lengthen(case, factor) for factor in LENGTH_FACTORS]
    results: list[Dataset] = []
    message = refusal_message(lambda: results.append(case.data.longer(MAX_LENGTH_FACTOR)))
    require(
        message is None or message.startswith("evaluate.lengths"), f"the refusal must name evaluate.lengths: {message}"
    )
    if all(refused):
        raise InapplicableError("it has one length")


def _lengthen(case: DatasetCase, factor: float) -> bool:
    """Check sequences that are longer by a factor. Returns whether they are refused."""
    data, results = case.data, list[Dataset]()
    before = whole_split(data, "test")
    message = refusal_message(lambda: results.append(data.longer(factor)))
    require(same_batch(whole_split(data, "test"), before), "longer changes the dataset itself")
    if message is not None:
        require(message.startswith("evaluate.lengths"), f"the refusal must name evaluate.lengths: {message}")
        return True
    (longer,) = results
    for field in ("vocabulary", "outputs", "causal", "pooled", "grid_width"):
        wanted, got = getattr(data.task, field), getattr(longer.task, field)
        require(got == wanted, f"task.{field} of longer sequences must be {wanted}, got {got}")
    require(longer.roles == data.roles, f"roles of longer sequences must be {data.roles}, got {longer.roles}")
    missing = round(factor * data.task.length) - longer.task.length
    require(0 <= missing <= MAX_MARKS * factor, f"{factor:g} times {data.task.length} tokens are {longer.task.length}")
    batch = whole_split(longer, "test")
    require(batch.tokens.shape[1] == longer.task.length, "longer sequences must have task.length tokens")
    require(count_tokens(batch).max() > data.task.length, "no longer sequence is longer")
    require(batch.tokens.max() < data.task.vocabulary, "longer sequences have tokens beyond the vocabulary")
    require(
        not set(token_sequences(batch)) & set(token_sequences(whole_split(data, "train"))),
        "longer sequences were trained on",
    )
    values = [value for metrics in longer.floors("test").values() for value in metrics.values()]
    require(all(map(math.isfinite, values)), "floors of longer sequences must be finite")
    return False


def has_floors_in_order(case: DatasetCase) -> None:
    """Check that floors are finite, are of metrics that exist, and that who knows more has a lower loss."""
    for split in ("validation", "test"):
        data, batch = case.data, whole_split(case.data, split)
        floors, own_metrics = data.floors(split), data.metrics(torch.zeros(batch.targets.shape), batch)
        usual = {"loss", "loss_all", "accuracy", "accuracy_all", "exact_match", *(f"loss_{r}" for r in data.roles)}
        require(floors, f"{split} must have a floor or a reference level")
        for level, metrics in floors.items():
            require(level.isidentifier() and "loss" in metrics, f"{level!r} must be a name, with a loss")
            unknown = metrics.keys() - usual - own_metrics.keys()
            require(not unknown, f"{level} has metrics that do not exist: {', '.join(sorted(unknown))}")
            for metric, value in metrics.items():
                most = math.inf if metric.startswith("loss") or metric in own_metrics else 1
                require(math.isfinite(value) and 0 <= value <= most, f"{level}: {metric}={value} is out of range")
        order = [name for name in ("bayes", "position_blind_split_known", "position_blind") if name in floors]
        losses = [floors[level]["loss"] for level in order]
        require(losses == sorted(losses), f"losses of {', '.join(order)} on {split} must rise, got {losses}")


def has_the_metrics_that_it_declares(case: DatasetCase) -> None:
    """Check that own metrics are returned under their declared names, are finite, and are better for lower losses."""
    data = case.data
    declared = {metric.name: metric for metric in data.own_metrics}
    returned: set[str] = set()
    for split in data.splits:
        batch = whole_split(data, split)
        answered = (batch.targets != IGNORE).float()
        right, wrong = (data.metrics(nats * answered, batch) for nats in (0.0, WRONG_LOSS))
        unknown = sorted((right.keys() | wrong.keys()) - declared.keys())
        require(not unknown, f"own_metrics must declare each metric of {split}, got {', '.join(unknown)}")
        require(right.keys() == wrong.keys(), f"metrics of {split} are others for other losses")
        for name, best in right.items():
            require(math.isfinite(best) and math.isfinite(wrong[name]), f"{name} of {split} is not finite")
            ordered = best <= wrong[name] if declared[name].better == "min" else best >= wrong[name]
            order = {"min": "at most", "max": "at least"}[declared[name].better]
            require(
                ordered,
                f"{name} of {split}, declared {declared[name].better}, must be {order} {wrong[name]:g}, its value for "
                f"losses of {WRONG_LOSS:g} nats, where losses are 0: got {best:g}",
            )
        returned |= right.keys()
    require(returned == declared.keys(), f"no split has the metrics {', '.join(sorted(declared.keys() - returned))}")
    if not declared:
        raise InapplicableError("it has no metrics of its own")


PROMISES: dict[str, Check[DatasetCase]] = {
    "it keeps the name it is given": keeps_its_name,
    "sequences are what the task says": makes_what_its_task_says,
    "something is asked in each, and never at padding": asks_where_tokens_are,
    "no sequence is in two splits, nor held out twice": keeps_splits_apart,
    "a seed determines every number": follows_from_its_seed,
    "a batch has the sequences that were asked for, in order": returns_what_is_asked_for,
    "an epoch changes only what is asked in training": changes_only_questions_with_the_epoch,
    "it can be copied and pickled": can_be_copied,
    "longer sequences are of the same task, or refused in one line": lengthens_its_task,
    "floors are finite, known and in order": has_floors_in_order,
    "its own metrics are declared, finite, and better for lower losses": has_the_metrics_that_it_declares,
}
