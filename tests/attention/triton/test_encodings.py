"""A training step of every encoding in the kernels: a new file in conf/pe is tested by existing."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import hydra
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.nn.functional import cross_entropy

from pe_lab.attention import attend, triton
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model, config_folder, expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.layout import PADDING, Layout
from pe_lab.encodings.terms import Stick, Terms
from pe_lab.model import blocks
from pe_lab.model.transformer import Transformer

pytestmark = [
    pytest.mark.slow,
    # of the interpreter, in rows of a tile that are beyond the sequence, and of what a mask makes zero
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FILES = sorted((config_folder() / "pe").glob("*.yaml"))
DEEP = {"rnope_swa": 4}  # layers that an encoding needs
CLASSES = {path.stem: hydra.utils.get_class(OmegaConf.load(path)._target_) for path in FILES}
MASKED = [(name, causal) for name in CLASSES for causal in (True, False) if causal or not CLASSES[name].causal_only]
T, VOCABULARY = 17, 11
Gradients = dict[str, Tensor]


@cache
def settings(name: str) -> DictConfig:
    return expand_overrides([f"pe={name}"], False)[0].pe


def grid(name: str) -> int | None:
    return 4 if CLASSES[name].on_grid else None


def build(name: str, causal: bool, dtype: torch.dtype) -> Transformer:
    """A small model whose encoding has left the values it starts with, and draws no positions at random."""
    sizes = {"depth": DEEP.get(name, 2), "width": 16, "num_heads": 2, "mlp_ratio": 1, "norm": "pre"}
    config = Model(**sizes, dropout=0.0, embedding_std=1.0, scale_tokens=False)
    task = Task(VOCABULARY, T, VOCABULARY, causal=causal, grid_width=grid(name), marks=MAX_MARK)
    made = Transformer(config, hydra.utils.instantiate(settings(name)), task)
    initialise_parameters(made, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.encodings.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    if isinstance(made.encodings[0], Randomized):
        made.encodings[0].draw = lambda count, seed: 3 * torch.arange(count)
    return made.to(DEVICE, dtype)


def step(made: Transformer, implementation: str, layout: Layout) -> Gradients:
    """The loss of a batch, and the gradient of every parameter."""
    made.implementation = implementation
    draw = torch.Generator().manual_seed(2)
    tokens, target = torch.randint(VOCABULARY, (2, *layout.segment.shape), generator=draw).to(DEVICE)
    logits = made(tokens, layout)
    is_token = layout.segment != PADDING
    loss = cross_entropy(logits[is_token], target[is_token])
    names, parameters = zip(*made.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    return {"loss": loss.detach(), **dict(zip(names, gradients, strict=True))}


def no_place_in_the_kernels(terms: Terms, layout: Layout) -> bool:
    """Whether these terms need T x T numbers, distances of other positions, or a stick with more than a bias."""
    none = (terms.content_bias, terms.pair_bias, terms.relative_values, terms.weight_factors)
    if isinstance(terms.normalizer, Stick):
        none += (terms.logit_factors, terms.decay, terms.window)
    by_place = any(x is not None for x in (terms.distance_bias, terms.logit_factors, terms.window))
    is_token = layout.segment[:, 1:] != PADDING
    runs_on = layout.pos.dim() == 2 and bool((layout.pos.diff() == 1).expand_as(is_token)[is_token].all())
    return any(x is not None for x in none) or (by_place and not runs_on)


@pytest.mark.parametrize(("name", "causal"), MASKED, ids=[f"{n}-{'causal' if c else 'both'}" for n, c in MASKED])
def test_a_training_step_is_that_of_the_reference_or_refused(
    name: str, causal: bool, with_blocks: Callable[..., set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, loss and gradients err by no more than four times what the reference does, and some roundings.

    A gradient is a sum of some hundred numbers that cancel, of which those of a bias of keys cancel to nothing.
    """
    asked: list[tuple[Terms, Layout]] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, terms: Terms, layout: Layout, *rest: object) -> Tensor:
        asked.append((terms, layout))
        return attend(q, k, v, terms, layout, *rest)

    monkeypatch.setattr(blocks, "attend", spy)
    with_blocks(32, 32)  # tiles take their time
    layout = Layout.of_lengths(torch.tensor([T, 12] if causal else [14]), T, causal, grid(name)).to(DEVICE)
    layout = replace(marked_layout(layout), seed=3)  # the same shifts in every step
    truth = step(build(name, causal, torch.float64), "reference", layout)
    asked.clear()
    single = build(name, causal, torch.float32)
    judge = step(single, "reference", layout)
    if any(no_place_in_the_kernels(*given) for given in asked):
        q = torch.zeros(1, 2, T, 8, device=DEVICE)
        reason = next(filter(None, (triton.refusal_reason(q, *given) for given in asked)))
        with pytest.raises(ValueError, match=re.escape(f"attention=triton cannot compute this: {reason}; use")):
            step(single, "triton", layout)
        return
    got = step(single, "triton", layout)
    largest = max(float(exact.abs().max()) for key, exact in truth.items() if key != "loss")
    for key, exact in truth.items():
        error, reference_error = (float((x[key].double() - exact).abs().max()) for x in (got, judge))
        floor = 2**-24 * (32 * float(exact.abs().max()) + largest)
        assert error <= 4 * reference_error + floor, f"{key} errs by {error}, the reference by {reference_error}"
