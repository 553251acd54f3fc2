"""What probes share: the sequences they look at, the hidden states of a model on them, and their rows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from pe_lab.data.base import Batch, Dataset, in_batches
from pe_lab.data.seeding import derive, generator, seed_all
from pe_lab.encodings.layout import PADDING
from pe_lab.model.transformer import Transformer

SEQUENCES = 256  # of a split, at most
TOKENS = 2**14  # of a split, at most, so that the states of all layers fit in memory; but always
FEWEST = 16  # sequences, if the split has them
CHUNK = 16  # sequences at once, at most: what an encoding draws at random once per batch is drawn several times
PAIRS = 2**21  # slots times slots at once, at most, so that attention at great length fits in memory


class Row(TypedDict):
    """One number.

    Args:
        layer: 0 ... depth; None: of the model as a whole.
        head: of that layer; None: of all.
        metric, value: its name, and a finite number.
    """

    layer: int | None
    head: int | None
    metric: str
    value: float


def row(metric: str, value: float, layer: int | None = None, head: int | None = None) -> Row:
    """A row of a finite number.

    Raises:
        FloatingPointError: it is not finite.
    """
    if not math.isfinite(value):
        raise FloatingPointError(f"probe must find finite numbers, got {metric}={value} in layer {layer}")
    return Row(layer=layer, head=head, metric=metric, value=float(value))


@dataclass(frozen=True)
class States:
    """What a model makes of sequences, token by token; padding is left out. On the CPU.

    Args:
        hidden: [N, D] after the embedding, then after every layer.
        tokens: [N] which they are.
        pos: [N, axes] their positions as the dataset has them: in their document, or row and column of a grid. Not
            those that an encoding draws instead.
        sequence: [N] the number of the sequence that each is in, ascending.
    """

    hidden: tuple[Tensor, ...]
    tokens: Tensor
    pos: Tensor
    sequence: Tensor


@contextmanager
def at_rest(model: Transformer) -> Iterator[None]:
    """The model without dropout; in the end modes and torch's global generators are as they were."""
    device = model.tokens.weight.device
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for module, mode in training:
            module.training = mode


@contextmanager
def watching(model: Transformer) -> Iterator[list[Tensor]]:
    """A list that holds, after a forward pass, its hidden states [B, T, D]: after the embedding and every layer."""
    hidden: list[Tensor] = []

    def begin(layer: nn.Module, given: tuple[Any, ...]) -> None:
        hidden[:] = given[:1]

    handles = [model.layers[0].register_forward_pre_hook(begin)]
    handles += [layer.register_forward_hook(lambda layer, given, out: hidden.append(out)) for layer in model.layers]
    try:
        yield hidden
    finally:
        for handle in handles:
            handle.remove()


def sample(model: Transformer, dataset: Dataset, split: str, seed: int, offset: int = 0) -> Iterator[Batch]:
    """Sequences of a split, drawn by the seed, on the model's device: all, or as many as SEQUENCES and TOKENS allow.

    To be used `at_rest`: before each batch torch's generators are seeded, as the layout is, so that what an encoding
    draws depends on (seed, split, batch) alone.

    Args:
        offset: as in Layout.moved.
    """
    device, length, size = model.tokens.weight.device, dataset.task.length, dataset.size(split)
    count = min(SEQUENCES, max(FEWEST, TOKENS // length))
    index = torch.randperm(size, generator=generator(seed, "probe", split))[:count]
    chunk = max(1, min(CHUNK, PAIRS // length**2))
    for number, batch in enumerate(in_batches(dataset, split, index, chunk)):
        draw = derive(seed, "probe", split, number)
        batch = replace(batch, layout=replace(batch.layout.shifted(offset), seed=draw))
        seed_all(draw, device)
        yield batch.to(device)


def capture(model: Transformer, dataset: Dataset, split: str, seed: int, offset: int = 0) -> States:
    """The hidden states of `sample`.

    Raises:
        ValueError: positions that the encoding does not have.
        FloatingPointError: states that are not finite.
    """
    parts: list[tuple[Tensor, ...]] = []
    seen = 0
    with torch.no_grad(), at_rest(model), watching(model) as hidden:
        for batch in sample(model, dataset, split, seed, offset):
            model(batch.tokens, batch.layout)
            segment, pos = batch.layout.segment, batch.layout.pos
            real = segment != PADDING
            where = pos.reshape(*pos.shape[:2], -1).expand(*segment.shape, -1)
            sequence = seen + real.nonzero()[:, 0]
            parts.append(
                tuple(x.cpu() for x in (batch.tokens[real], where[real], sequence, *(h[real] for h in hidden)))
            )
            seen += len(batch)
    tokens, pos, sequence, *states = (torch.cat(part) for part in zip(*parts, strict=True))
    for layer, state in enumerate(states):
        if not state.isfinite().all():
            raise FloatingPointError(f"probe must find finite states, got others after layer {layer}")
    return States(tuple(states), tokens, pos, sequence)


def permute(values: Tensor, sequence: Tensor, seed: int) -> Tensor:
    """Values [N, ...] of tokens, permuted among those of each sequence, by its number [N], ascending."""
    draw = torch.rand(len(values), dtype=torch.float64, generator=generator(seed, "probe", "permute"))
    return values[(sequence + draw).argsort()]
