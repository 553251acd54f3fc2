"""Nothing in a training step makes the CPU wait for a GPU: no value is read, no Python list is copied.

CPU tensors stand for those of a GPU.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import hydra
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.configs import pe_settings
from pe_lab.check.case import MAX_MARK, marked_layout
from pe_lab.config import Model, config_folder
from pe_lab.data.base import Batch, Task
from pe_lab.encodings.families.randomized import Randomized
from pe_lab.encodings.layout import CpuCopy, Layout
from pe_lab.model.transformer import Transformer
from pe_lab.training.data import Sequences

FACTS = ("pos_range", "max_distance", "packed", "contiguous", "right_padded", "one_segment", "runs_on")
READ = {  # operators that read values, or copy a Python list
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select"),
        *("equal", "bincount", "repeat_interleave", "lift_fresh"),
    )
}
INDEX = {f"aten::{name}" for name in ("index", "index_put", "index_put_", "_index_put_impl_")}
FILES = sorted((config_folder() / "pe").glob("*.yaml"))
CLASSES = {path.stem: hydra.utils.get_class(OmegaConf.load(path)._target_) for path in FILES}
READS_A_PARAMETER = {"fire"}  # its trained threshold decides between two formulas
T, VOCABULARY = 16, 11


class Waits(TorchDispatchMode):
    """Counts operators for which a CPU would wait if the tensors were on a GPU, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator._schema.name
        masks = name in INDEX and any(index is not None and index.dtype == torch.bool for index in args[1])
        if name in READ or masks:
            self.found[name] += 1
        return operator(*args, **(kwargs or {}))


def as_if_moved(layout: Layout) -> Layout:
    """A layout that has another for its copy on the CPU, whose facts are known."""
    for fact in FACTS:
        getattr(layout, fact)
    pos, segment = layout.pos.clone(), layout.segment.clone()
    marks = None if layout.marks is None else layout.marks.clone()
    return replace(layout, pos=pos, segment=segment, marks=marks, origin=CpuCopy(layout, pos, segment, None, marks))


def test_the_counter_counts() -> None:
    x = torch.arange(4.0)
    with Waits() as waits:
        assert x.sum().item() == 6
        assert bool((x > 2).any())
        x[x > 1].sum()
        torch.tensor([1, 2])
        (x * 2).sum()
    assert waits.found == {"aten::_local_scalar_dense": 2, "aten::index": 1, "aten::lift_fresh": 1}


def test_facts_are_read_where_the_layout_came_from() -> None:
    layout = Layout.of_lengths(torch.tensor([9, 5]), 9, True)
    for fact in FACTS:
        with Waits() as waits:
            getattr(replace(layout), fact)
        assert waits.found, fact
    moved = as_if_moved(layout)
    with Waits() as waits:
        assert [getattr(moved, fact) for fact in FACTS] == [getattr(layout, fact) for fact in FACTS]
    assert not waits.found


@pytest.mark.parametrize("name", CLASSES)
def test_a_training_step_reads_no_value(name: str) -> None:
    """On packed sequences, with dropout, in the reference implementation; all but the loop around the step."""
    made = hydra.utils.instantiate(pe_settings(name))
    sizes = {"depth": 4, "width": 16, "num_heads": 2, "mlp_ratio": 1, "norm": "pre", "embedding_std": 1.0}
    config = Model(**sizes, dropout=0.1, attention_dropout=0.1, scale_tokens=False)
    grid = 4 if CLASSES[name].on_grid else None
    model = Transformer(config, made, Task(VOCABULARY, T, VOCABULARY, True, grid_width=grid, marks=MAX_MARK))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    layout = Layout.of_lengths(torch.tensor([T, 12]), T, True, grid)
    layout.segment[:, :6] = 1
    layout, tokens = as_if_moved(marked_layout(layout).read()), torch.randint(VOCABULARY, (2, T))

    def step() -> None:
        loss = cross_entropy(model(tokens, replace(layout, seed=3)).flatten(0, 1), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for encoding in model.encodings:
            encoding.constrain()
        optimizer.zero_grad()

    step()  # the optimizer's state is made in the first step
    with Waits() as waits:
        step()
    actual = set(waits.found)
    if isinstance(model.encodings[0], Randomized):
        actual -= {
            "aten::_local_scalar_dense",
            "aten::index",
            "aten::_unique2",
        }  # of the positions it draws, on the CPU
    assert actual == ({"aten::_local_scalar_dense"} if name in READS_A_PARAMETER else set())


def test_a_batch_is_copied_to_a_gpu_from_pinned_memory_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[tuple[object, dict[str, object]]] = []
    pinned: list[Tensor] = []

    def pin(x: Tensor) -> Tensor:
        pinned.append(x.clone())
        return pinned[-1]

    def to(x: Tensor, device: torch.device, **how: object) -> Tensor:
        copied.append((x, how))
        return x

    tokens = torch.zeros(2, T, dtype=torch.long)
    batch = Batch(tokens, tokens, tokens, tokens > 0, Layout.of_lengths(torch.tensor([T, 12]), T, True))
    assert Sequences.transfer_batch_to_device(None, batch, torch.device("cpu"), 0) is batch
    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    Sequences.transfer_batch_to_device(None, batch, torch.device("cuda"), 0)
    assert len(copied) == len(pinned) == 6
    assert all(x is own for (x, _), own in zip(copied, pinned, strict=True))
    assert all(how == {"non_blocking": True} for _, how in copied)
