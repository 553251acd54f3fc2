"""A training step of a preset under the driver stand-in: what is launched, what is refused, what the host waits for.

`python -m emulation.steps` prints a table of all presets, with `tests` on the path and without TRITON_INTERPRET.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any
from unittest import mock

import hydra
import torch
from omegaconf import OmegaConf
from torch import Tensor

from emulation.driver import Launch, standing_in
from emulation.synchronisations import Synchronisations
from pe_lab.attention import attend, triton
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model, config_folder, expand_overrides
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise_parameters
from pe_lab.encodings.layout import Layout
from pe_lab.model import blocks
from pe_lab.model.transformer import Transformer

BATCH, HEADS, VOCABULARY = 2, 2, 11
LAYERS = {"interleave": 2, "rnope_swa": 4}  # of one round
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Setting:
    """How a preset is trained: its name in conf/pe, the dtype of attention, and the options of its layer."""

    preset: str
    dtype: str
    causal: bool
    packed: bool
    dropout: float


@dataclass
class Step:
    """What a step did.

    Args:
        setting: what was trained.
        announced: the reason for which `auto` takes another implementation, or None.
        failed: the error that the step ended with, or None.
        launches: of kernels.
        waits: synchronisations of the whole step, by what causes them.
        microseconds: of the host for another such step, in which a CPU computes all but the kernels.
    """

    setting: Setting
    announced: str | None
    failed: str | None
    launches: list[Launch]
    waits: dict[str, int]
    microseconds: float

    @property
    def wrong(self) -> str | None:
        """What is not as it should be: an error that was not announced, or an announced one that did not come."""
        if self.announced is None:
            return self.failed
        if self.failed is None or f"attention=triton cannot compute this: {self.announced}; use" not in self.failed:
            return f"announced {self.announced!r}, got {self.failed!r}"
        return "kernels were launched before the refusal" if self.launches else None


def presets() -> list[str]:
    """Return the names of all encodings."""
    return sorted(path.stem for path in (config_folder() / "pe").glob("*.yaml"))


def settings(preset: str, every: bool) -> Iterator[Setting]:
    """Yield every way to train a preset; or each dtype with each mask once, packed with dropout or neither."""
    causal_only = _class(preset).causal_only
    for causal in (True,) if causal_only else (True, False):
        for dtype, packed, dropout in product(DTYPES, (False, True), (0.0, 0.1)):
            if every or packed == bool(dropout) == ((dtype == "bfloat16") == causal):
                yield Setting(preset, dtype, causal, packed, dropout)


def steps(
    names: list[str], architecture: str, *, compiles: bool, every: bool, length: int = 150, width: int = 32
) -> list[Step]:
    """Return steps of presets in their settings; `every`: in all of them."""
    with standing_in(architecture, compiles=compiles) as made:
        return [_step(setting, made, length, width) for name in names for setting in settings(name, every)]


def _class(preset: str) -> Any:
    return hydra.utils.get_class(OmegaConf.load(config_folder() / "pe" / f"{preset}.yaml")._target_)


@cache
def _options(preset: str) -> Any:
    options = OmegaConf.load(config_folder() / "pe" / f"{preset}.yaml")
    return expand_overrides([f"pe={preset}"], False)[0].pe if {"defaults", "parts"} & options.keys() else options


def _model(setting: Setting, length: int, width: int) -> tuple[Transformer, int | None]:
    sizes = {"depth": LAYERS.get(setting.preset, 1), "width": width, "num_heads": HEADS, "mlp_ratio": 1, "norm": "pre"}
    grid = 10 if _class(setting.preset).on_grid else None
    task = Task(VOCABULARY, length, VOCABULARY, causal=setting.causal, grid_width=grid, marks=MAX_MARK)
    config = Model(**sizes, dropout=0.0, embedding_std=1.0, scale_tokens=False)
    model = Transformer(config, hydra.utils.instantiate(_options(setting.preset)), task, "triton")
    initialise_parameters(model, seed=0)
    model.layers[0].attention_dropout = setting.dropout
    return model, grid


def _step(setting: Setting, made: list[Launch], length: int, width: int) -> Step:
    model, grid = _model(setting, length, width)
    layout = Layout.of_lengths(torch.full((BATCH,), length), length, setting.causal, grid)
    if setting.packed:
        layout.segment[:, length // 2 :] = 1
    layout = marked_layout(layout)
    tokens = torch.randint(VOCABULARY, (BATCH, length))
    reasons: list[str | None] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, terms: Any, layout: Layout, how: str, dropout: Any) -> Tensor:
        reasons.append(triton.refusal_reason(q, terms, layout, dropout))
        return attend(q, k, v, terms, layout, how, dropout)

    made.clear()
    failed = None
    half = torch.autocast("cpu", torch.bfloat16) if setting.dtype == "bfloat16" else nullcontext()
    counter = Synchronisations()

    def train() -> None:
        with half:
            logits = model(tokens, layout)
        logits.float().sum().backward()

    with mock.patch.object(blocks, "attend", spy), counter:
        try:
            train()
        except Exception as error:  # any error of a step is a finding
            failed = f"{type(error).__name__}: {error}"
    launches, start = list(made), time.perf_counter()
    if failed is None:
        train()
    microseconds = 1e6 * (time.perf_counter() - start)
    return Step(setting, next(iter(reasons), None), failed, launches, dict(counter.counts), microseconds)


def summary(found: list[Step]) -> str:
    """Return a table: per preset, launches, synchronisations and microseconds of a step, or why there are none."""
    lines = [
        "| preset | launches | synchronisations | host microseconds | refused |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(step.setting.preset for step in found):
        mine = [step for step in found if step.setting.preset == name]
        ran = [step for step in mine if step.announced is None and step.failed is None]
        waits = sum((Counter(step.waits) for step in ran), Counter())
        count = sorted({len(step.launches) for step in ran})
        per_step = ", ".join(f"{key} {value / len(ran):.1f}" for key, value in sorted(waits.items()))
        middle = sorted(step.microseconds for step in ran)[len(ran) // 2] if ran else 0.0
        reasons = sorted({step.announced for step in mine if step.announced is not None})
        share = f"{len(mine) - len(ran)} of {len(mine)}: " if reasons else ""
        cells = ("-".join(map(str, {*count[:1], *count[-1:]})), per_step, f"{middle:.0f}", share + "; ".join(reasons))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(summary(steps(presets(), "sm_90", compiles=False, every=True)))
