"""Text that processes of a loader read ahead: the same batches, from memory maps, also after an interruption."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.configs import compose_config
from helpers.fits import fit
from pe_lab.data.base import Batch
from pe_lab.data.text.clm import CLM
from pe_lab.experiment.cell import Cell
from pe_lab.training.data import Sequences
from pe_lab.training.module import Training

STEPS = 10


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("workers")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 8))) for _ in range(300)]
    (made / "text.txt").write_text("".join(f"{' '.join(draw.choices(words, k=9))}\n" for _ in range(2_000)))
    return made


def cell(place: Path) -> Cell:
    text = (f"data.path={place / 'text.txt'}", f"data.cache={place / 'cache'}", "data.length=16")
    model = ("model.width=16", "model.num_heads=2", "model.depth=1", "trainer.batch_size=128", "trainer.device=cpu")
    return Cell.from_config(compose_config("data=clm", "epochs=1", *text, *model))


def batches(data: Sequences) -> list[Batch]:
    return [batch for batch, _ in zip(data.train_dataloader(), range(STEPS), strict=False)]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_make_the_same_batches_in_the_same_order(workers: int, place: Path) -> None:
    made = cell(place)
    loader = Sequences(made.cfg, workers=workers).train_dataloader()
    alone = Sequences(made.cfg).train_dataloader()
    count = 0
    for got, expected in zip(loader, alone, strict=True):
        for name in ("tokens", "targets", "role"):
            assert torch.equal(getattr(got, name), getattr(expected, name))
        count += 1
    assert count == len(alone) > STEPS


def test_another_process_opens_the_memory_maps_itself(place: Path) -> None:
    made = cell(place)
    data: CLM = Sequences(made.cfg).dataset
    before = data.batch("train", torch.arange(5))
    pickled = pickle.dumps(data)
    assert len(pickled) < data.text.sizes["train"] / 2
    there: CLM = pickle.loads(pickled)
    assert torch.equal(there.batch("train", torch.arange(5)).tokens, before.tokens)
    assert isinstance(there.text.streams["train"], np.memmap)
    assert isinstance(data.text.streams["train"], np.memmap)


def test_a_training_with_workers_goes_on_at_the_same_sequence(place: Path, tmp_path: Path) -> None:
    """Interrupted in the middle of an epoch, when batches behind that place have been made already."""

    def trained(steps: int, workers: int, ckpt: Path | None = None, save: Path | None = None) -> dict[str, Tensor]:
        made = cell(place)
        training: Training = made.lightning_module()
        trainer = fit(training, ckpt, Sequences(made.cfg, workers=workers), max_steps=steps)
        if save is not None:
            trainer.save_checkpoint(save)
        return training.state_dict()

    whole = trained(STEPS, 0)
    trained(4, 2, save=tmp_path / "state.ckpt")
    resumed = trained(STEPS, 2, ckpt=tmp_path / "state.ckpt")
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name
