"""Frequencies, rates and thresholds are not weights: weight decay leaves them unchanged."""

import hydra
import pytest
import torch
from omegaconf import OmegaConf

from helpers.configs import compose_config, pe_settings
from pe_lab.config import Model, config_folder
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.model.transformer import Transformer
from pe_lab.training.optimization import Optimization

FILES = sorted((config_folder() / "pe").glob("*.yaml"))
CLASSES = {path.stem: hydra.utils.get_class(OmegaConf.load(path)._target_) for path in FILES}
KEPT = {
    "lrope",
    "lerope",
    "pope",
    "rope_mixed",
    "exposb",
    "exposb_literal",
    "rse",
    "rse_literal",
    "fire",
    "urpe",
    "bam",
    "ssmax",
    "grape_a",
    "grape_m",
}
LR, DECAY = 0.1, 0.5


def test_encodings_whose_parameters_are_not_weights_declare_it() -> None:
    """Frequencies, rates of decay, FIRE's c and L, factors on weights, and what shapes a density.

    `randomized` wraps encodings of which none has such.
    """
    assert {name for name, made in CLASSES.items() if not made.weight_decay} == KEPT


@pytest.mark.parametrize("name", CLASSES)
def test_a_step_without_gradient_shrinks_what_may_be_decayed_and_nothing_else(name: str) -> None:
    """AdamW multiplies weights by 1 - lr * decay (arXiv:1711.05101, algorithm 2); the rest of its update is 0."""
    encoding = hydra.utils.instantiate(pe_settings(name))
    sizes = {"depth": 4, "width": 16, "num_heads": 2, "mlp_ratio": 1, "norm": "pre"}
    config = Model(**sizes, dropout=0.0, embedding_std=1.0, scale_tokens=False)
    model = Transformer(
        config, encoding, Task(11, 12, 11, causal=True, grid_width=4 if CLASSES[name].on_grid else None, marks=3)
    )
    initialise_parameters(model, seed=0)
    settings = compose_config("optimizer=adamw", f"optimizer.lr={LR}", f"optimizer.weight_decay={DECAY}").optimizer
    optimizer = Optimization(settings, total_steps=1).optimizer(model)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    positional = {
        f"{prefix}.{key}"
        for prefix, module in model.named_modules()
        if isinstance(module, PositionalEncoding)
        for key, _ in module.named_parameters()
    }
    assert bool(positional) is any(p.numel() for p in model.encodings.parameters())
    assert name not in KEPT or positional
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for key, parameter in model.named_parameters():
        factor = 1 if name in KEPT and key in positional else 1 - LR * DECAY
        torch.testing.assert_close(parameter.detach(), factor * before[key], rtol=1e-6, atol=0)
