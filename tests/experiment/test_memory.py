"""What there is no room for is refused before it is made."""

import os
import weakref
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch.utils._python_dispatch import TorchDispatchMode

from configs import in_ledger, pe_settings
from pe_lab import config
from pe_lab.data.base import Task
from pe_lab.data.seeding import initialise
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.sizes import Sizes
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.experiment.memory import require_memory
from pe_lab.experiment.memory_budget import TRAINED, encoding_bytes
from pe_lab.model import Transformer


class Live(TorchDispatchMode):
    """Counts the bytes of tensors made inside that are still held, and the most of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return made

    def add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.remove, key, size)

    def remove(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


@pytest.mark.parametrize(
    ("overrides", "largest"),
    [
        (["model.width=100000000"], "model.depth=4, model.width=100000000, model.mlp_ratio=4"),
        (["model.depth=100000000"], "model.depth=100000000, model.width=64, model.mlp_ratio=4"),
        (["data=pattern", "data.train=1000000000000"], "the sequences of data=pattern"),
        (["trainer.batch_size=4000", "model.width=512"], "trainer.batch_size=4000 with model.depth=4, model.width=512"),
        (["pe=learnable", "pe.max_len=3000000"], "pe=learnable"),
        (
            ["data=pattern", "data.length=1024", "trainer.batch_size=50", "attention=reference"],
            "trainer.batch_size=50 with the pairs of 1024 tokens in attention of pe=rope",
        ),
        (
            ["data=pattern", "data.length=32", "pe=alibi", "evaluate.lengths=[1,1000]"],
            "evaluate.lengths=1000 with the pairs of 32000 tokens in attention of pe=alibi",
        ),
        (["pe=learnable_per_layer", "pe.max_len=100000", "model.depth=16"], "pe=learnable_per_layer"),
    ],
)
def test_a_cell_without_room_is_refused_by_its_largest_part(overrides, largest, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 2**15)  # pages, and bytes of a page
    (cfg,) = config.expand([f"ledger={tmp_path}", "trainer.device=cpu", *overrides], multirun=False)
    with pytest.raises(ValueError, match=f"^{largest}.* must fit in the memory of 1 GiB, got a cell that needs"):
        require_memory(Job.from_config(cfg).cell)


@pytest.mark.parametrize("path", sorted(config.folder().glob("pe/*.yaml")), ids=lambda path: path.stem)
def test_the_memory_of_whatever_an_encoding_keeps_is_known_before_it_is_made(path):
    made = instantiate(pe_settings(path.stem))
    sizes = Sizes(width=64, num_heads=4, length=16, grid_width=4, marks=3)
    needed, encoding = encoding_bytes(made, sizes), made(sizes)
    kept = (*encoding.parameters(), *encoding.buffers())
    assert needed == TRAINED * sum(tensor.numel() for tensor in kept)


@pytest.mark.parametrize(
    ("overrides", "depth", "heads"),
    [
        (["pe=dape"], 1, 4),
        (["pe=dape"], 2, 4),
        (["pe=dape"], 1, 16),
        (["pe=dape", "pe.width=8"], 1, 16),
        (["pe=dape", "pe@pe.encoding=none"], 2, 4),
        (["pe=dape_v2"], 2, 4),
        (["pe=dape_v2"], 1, 16),
        (["pe=dape_v2", "pe.width=8", "pe.kernel=5"], 1, 4),
    ],
)
def test_the_memory_of_a_step_with_an_mlp_on_all_pairs_is_known_within_a_quarter(overrides, depth, heads):
    """Of all that a forward and a backward pass hold at once, on sequences whose pairs are most of it."""
    words = [f"model.depth={depth}", f"model.num_heads={heads}", "model.width=64", "trainer.batch_size=1"]
    (cfg,) = config.expand([*overrides, *words, "trainer.device=cpu", "attention=reference"], multirun=False)
    said, length = Cell.from_config(cfg).pair_bytes["training"], 192
    model = Transformer(cfg.model, instantiate(cfg.pe), Task(11, length, 11, causal=True), "reference")
    initialise(model, seed=0)
    tokens = torch.randint(11, (1, length))
    with Live() as live:
        logits = model(tokens, Layout.whole(1, length, causal=True))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    assert 0.75 * live.most < said * length**2 < 1.05 * live.most


def test_a_score_in_some_layers_is_not_counted_in_all():
    words = ["model.depth=4", "trainer.device=cpu"]
    (alone,) = config.expand(["pe=dape", *words], multirun=False)
    (by_turns,) = config.expand(["pe=interleave", "pe.parts=[dape,none]", *words], multirun=False)
    everywhere, half = (Cell.from_config(cfg).pair_bytes["training"] for cfg in (alone, by_turns))
    assert half < 0.6 * everywhere


def test_no_room_is_asked_for_pairs_that_are_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 2**15)
    words = ["data=copy", "data.test=4", "evaluate.lengths=[1,2000]", "model.depth=1", "trainer.device=cpu"]
    (cfg,) = config.expand([f"ledger={tmp_path}", *words], multirun=False)
    job = Job.from_config(cfg)
    require_memory(job.cell)
    assert job.cell.implementation == "sdpa"


def test_a_trained_cell_needs_only_the_memory_of_its_evaluation(tmp_path, monkeypatch):
    """Evaluation drops no attention weights, so it does not need the reference implementation."""
    words = ["pe=rope", "data=copy", "data.train=32", "data.validation=4", "data.test=4", "trainer.batch_size=16"]
    words += ["model.depth=1", "model.attention_dropout=0.1", "epochs=1", "logger=none", "trainer.device=cpu"]

    def cell(*more: str) -> Job:
        return Job.from_config(in_ledger(tmp_path, *words, *more, multirun=False)[0])

    trained = cell()
    assert trained.cell.implementation == "reference"
    trained.request()
    trained.serve(wait=False)
    assert trained.trained
    monkeypatch.setattr(os, "sysconf", lambda name: 2**15)
    require_memory(cell("evaluate.lengths=[1,300]").cell)
    with pytest.raises(ValueError, match="^evaluate.lengths=300 with the pairs of 9603 tokens .* at least 1 GiB"):
        require_memory(cell("seed=1", "evaluate.lengths=[1,300]").cell)
    monkeypatch.setattr(os, "sysconf", lambda name: 2**10)  # 1 MiB
    require_memory(cell().cell)
    with pytest.raises(ValueError, match="must fit"):
        require_memory(cell("seed=1").cell)
