"""Sequences for probes, and the hidden states of a model on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.data.base import Batch, Dataset, in_batches
from pe_lab.data.seeding import derive_seed, make_generator, seed_all
from pe_lab.encodings.layout import PADDING
from pe_lab.model import Transformer

MAX_SEQUENCES = 256  # of a split, at most
MAX_TOKENS = 2**14  # of a split, at most, so that the states of all layers fit in memory
MIN_SEQUENCES = 16  # sequences of a split at least, however many tokens these are
MAX_BATCH_SEQUENCES = (
    16  # sequences of a batch, at most: an encoding that draws at random per batch does so several times
)
MAX_BATCH_PAIRS = 2**21  # sequences x tokens^2 of a batch, at most, so that attention on long sequences fits in memory


@dataclass(frozen=True)
class HiddenStates:
    """The hidden states of a model, one row per token without padding, on the CPU.

    Args:
        hidden: [N, D] states after the embedding, then after every layer.
        tokens: [N] token ids.
        pos: [N, axes] positions of the tokens in the dataset: in the document, or row and column of a grid. Positions
            that an encoding draws at random are not here.
        sequence: [N] the number of the sequence of each token, ascending.
    """

    hidden: tuple[Tensor, ...]
    tokens: Tensor
    pos: Tensor
    sequence: Tensor


@contextmanager
def evaluation_mode(model: Transformer) -> Iterator[None]:
    """Put the model into evaluation mode; restore modes and torch's global generators in the end."""
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
def watch_states(model: Transformer) -> Iterator[list[Tensor]]:
    """Yield a list that each forward pass fills with its states [B, T, D]: after the embedding and every layer."""
    hidden: list[Tensor] = []

    def begin(layer: nn.Module, args: tuple[Any, ...]) -> None:
        hidden[:] = args[:1]

    handles = [model.layers[0].register_forward_pre_hook(begin)]
    handles += [layer.register_forward_hook(lambda layer, args, out: hidden.append(out)) for layer in model.layers]
    try:
        yield hidden
    finally:
        for handle in handles:
            handle.remove()


def sample_batches(
    model: Transformer, dataset: Dataset, split: str, seed: int, offset: int = 0, half: int | None = None
) -> Iterator[Batch]:
    """Yield batches of sequences of a split that the seed chooses: all, or up to MAX_SEQUENCES and MAX_TOKENS.

    They are on the model's device. Use it within `evaluation_mode`: torch's generators and the layout are seeded before
    each batch, so that random draws of an encoding depend only on (seed, split, half, batch).

    Args:
        offset: a constant added to all positions; on a grid, to the rows.
        half: 0 or 1, one of two random halves of the split that share no sequence; None: the whole split.

    Raises:
        ValueError: there are no sequences.
    """
    device, length, size = model.tokens.weight.device, dataset.task.length, dataset.size(split)
    count = min(MAX_SEQUENCES, max(MIN_SEQUENCES, MAX_TOKENS // length))
    index = torch.randperm(size, generator=make_generator(seed, "probe", split))
    index = (index if half is None else index[half::2])[:count]
    if not len(index):
        raise ValueError(
            f"a probe must have sequences to read, got none of {length} tokens in the {split} split of "
            f"data={dataset.name}"
        )
    part = () if half is None else ("half", half)
    chunk = max(1, min(MAX_BATCH_SEQUENCES, MAX_BATCH_PAIRS // length**2))
    for number, batch in enumerate(in_batches(dataset, split, index, chunk)):
        draw = derive_seed(seed, "probe", split, *part, number)
        batch = replace(batch, layout=replace(batch.layout.shifted(offset), seed=draw))
        seed_all(draw, device)
        yield batch.to(device)


def capture_states(
    model: Transformer, dataset: Dataset, split: str, seed: int, offset: int = 0, half: int | None = None
) -> HiddenStates:
    """Return the hidden states of the sequences of `sample_batches`, which has the same arguments.

    Raises:
        ValueError: there are no sequences, or the encoding does not have the positions.
        FloatingPointError: a state is not finite.
    """
    parts: list[tuple[Tensor, ...]] = []
    seen = 0
    with torch.no_grad(), evaluation_mode(model), watch_states(model) as hidden:
        for batch in sample_batches(model, dataset, split, seed, offset, half):
            model(batch.tokens, batch.layout)
            segment, pos = batch.layout.segment, batch.layout.pos
            is_token = segment != PADDING
            where = pos.reshape(*pos.shape[:2], -1).expand(*segment.shape, -1)
            sequence = seen + is_token.nonzero()[:, 0]
            parts.append(
                tuple(
                    x.cpu() for x in (batch.tokens[is_token], where[is_token], sequence, *(h[is_token] for h in hidden))
                )
            )
            seen += len(batch)
    tokens, pos, sequence, *states = (torch.cat(part) for part in zip(*parts, strict=True))
    for layer, state in enumerate(states):
        if not state.isfinite().all():
            raise FloatingPointError(f"probe must find finite states, got others after layer {layer}")
    return HiddenStates(tuple(states), tokens, pos, sequence)


def permute_tokens(values: Tensor, sequence: Tensor, seed: int) -> Tensor:
    """Return values [N, ...] of tokens, permuted within each sequence.

    Args:
        sequence: [N] the number of each token's sequence, ascending.
    """
    draw = torch.rand(len(values), dtype=torch.float64, generator=make_generator(seed, "probe", "permute"))
    return values[(sequence + draw).argsort()]
