"""Whether deep layers collapse: rank and similarity of hidden states, and gradient norms by layer."""

import torch
from torch import Tensor

from pe_lab.data.base import IGNORE, Dataset
from pe_lab.model import Transformer
from pe_lab.probes.base import Probe, ProbeRow, make_row
from pe_lab.probes.hidden_states import capture_states, evaluation_mode, sample_batches, watch_states
from pe_lab.training.metrics import slot_losses

EQUALITY_TOLERANCE = 1e-6  # states that differ by less than this share of their norm differ by rounding only


class RankProbe(Probe):
    """Measures rank and similarity of the hidden states on the test split, all tokens together, and gradient norms.

    Rows, for layers 0 ... depth:
        effective_rank: exp of the entropy of the singular values, scaled to sum 1, of the states minus their mean
            (Roy and Vetterli 2007, EUSIPCO), from 1 to the width. No row where all states are equal.
        stable_rank: squared Frobenius norm over the square of the largest singular value (Rudelson and Vershynin 2007,
            arXiv:math/0503442), from 1 to the width; small singular values count less. No row where all states are
            equal.
        token_cosine: mean cosine between the states of two tokens of a sequence, not centred, from -1 to 1; near 1
            the layers have made tokens alike (oversmoothing: Shi et al. 2022, arXiv:2202.08625). Mean over sequences of
            more than one token.
        gradient_hidden: norm of the gradient of the loss with respect to the layer's states of all these sequences, in
            nats per unit of state.
    and for layers 1 ... depth:
        gradient_parameters: norm of the gradient of the loss with respect to the layer's own parameters (without the
            encoding's), in nats per unit of weight.

    The loss is the training loss: the mean over all answers of these sequences.
    """

    def __call__(self, model: Transformer, dataset: Dataset, seed: int) -> list[ProbeRow]:
        states = capture_states(model, dataset, "test", seed)
        rows = []
        for layer, hidden in enumerate(states.hidden):
            singular = spectrum(hidden)
            if singular is not None:
                rows += [
                    make_row("effective_rank", effective_rank(singular), layer),
                    make_row("stable_rank", stable_rank(singular), layer),
                ]
            cosine = token_cosine(hidden, states.sequence)
            if cosine is not None:
                rows.append(make_row("token_cosine", cosine, layer))
        return rows + _gradients(model, dataset, seed)


def spectrum(states: Tensor) -> Tensor | None:
    """Return the singular values of states [N, D] minus their mean, descending; None where all states are equal."""
    states = states.double()
    centred = states - states.mean(0)
    if centred.norm() <= EQUALITY_TOLERANCE * states.norm():
        return None
    singular: Tensor = torch.linalg.svdvals(centred)
    return singular


def effective_rank(singular: Tensor) -> float:
    """Return exp of the entropy of singular values, scaled to sum 1."""
    return float(torch.special.entr(singular / singular.sum()).sum().exp())


def stable_rank(singular: Tensor) -> float:
    """Return the sum of the squared singular values over the largest."""
    return (singular / singular.max()).square().sum().item()


def token_cosine(states: Tensor, sequence: Tensor) -> float | None:
    """Return the mean cosine between two states [N, D] of a sequence; None where no sequence has two.

    Args:
        sequence: [N] the number of each state's sequence.
    """
    unit = torch.nn.functional.normalize(states.double(), dim=-1)
    count = sequence.bincount()
    total = torch.zeros(len(count), states.shape[1], dtype=torch.float64).index_add_(0, sequence, unit)
    squares = torch.zeros(len(count), dtype=torch.float64).index_add_(0, sequence, unit.square().sum(-1))
    several = count > 1
    if not several.any():
        return None
    cosine = (total.square().sum(-1) - squares) / (count * (count - 1))
    return cosine[several].mean().item()


def _gradients(model: Transformer, dataset: Dataset, seed: int) -> list[ProbeRow]:
    """Return the rows of gradient norms."""
    parameters = [list(layer.parameters()) for layer in model.layers]
    flat = [parameter for of_layer in parameters for parameter in of_layer]
    summed = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in flat]
    squared = [0.0] * (1 + len(model.layers))
    count = 0
    with torch.enable_grad(), evaluation_mode(model), watch_states(model) as hidden:
        for batch in sample_batches(model, dataset, "test", seed):
            loss = slot_losses(model(batch.tokens, batch.layout), batch.targets).sum()
            gradients = torch.autograd.grad(loss, [*hidden, *flat], materialize_grads=True)
            for layer, gradient in enumerate(gradients[: len(hidden)]):
                squared[layer] += gradient.double().square().sum().item()
            for total, gradient in zip(summed, gradients[len(hidden) :], strict=True):
                total += gradient
            count += int((batch.targets != IGNORE).sum())
    rows = [make_row("gradient_hidden", square**0.5 / count, layer) for layer, square in enumerate(squared)]
    totals = iter(summed)
    for layer, of_layer in enumerate(parameters, 1):
        square = sum(next(totals).square().sum().item() for _ in of_layer)
        rows.append(make_row("gradient_parameters", square**0.5 / count, layer))
    return rows
