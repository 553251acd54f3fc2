"""Numbers that stand: the identity and the first training steps of every encoding, the identity of every dataset.

Numbers that change without a new `revision` would be mistaken for the old ones by every ledger, and an identity that
changes makes every ledger forget its cells: a change must be meant. To write what is found now, and see what changed:

    python -m pytest tests/test_golden.py --write-golden
"""

from pathlib import Path

import pytest

from pe_lab import config
from pe_lab.encodings.base import MissingMarksError, UnfitError
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.executor import build
from pe_lab.system.files import digest

TINY = ["model.depth=1", "model.width=16", "model.num_heads=2", "trainer.batch_size=512"]


LAYERS = {"interleave": 2, "rnope_swa": 4}  # of one round


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (config.folder() / group).glob("*.yaml"))


def made(ledger: Path, *overrides: str) -> Cell:
    return Cell.from_config(config.expand([f"ledger={ledger}", "trainer.device=cpu", *overrides], multirun=False)[0])


def of_encoding(ledger: Path, name: str, *overrides: str) -> Cell:
    """A cell of an encoding: on `structured`, on `addition` if it reads marks, or on `digits` if it needs a grid."""
    try:
        return made(ledger, f"pe={name}", *overrides)
    except MissingMarksError:
        return made(ledger, f"pe={name}", "data=addition", *overrides)
    except UnfitError:
        return made(ledger, f"pe={name}", "data=digits", *overrides)


@pytest.mark.parametrize("name", names("pe"))
def test_the_identity_of_every_encoding_stands(name, tmp_path, golden):
    golden("encodings", name, "identity", digest(of_encoding(tmp_path, name).identity))


@pytest.mark.parametrize("name", names("pe"))
def test_the_first_steps_of_every_encoding_stand(name, tmp_path, golden):
    """The sum of the initial weights, and the training loss at steps 1, 2 and 3 with seed 0."""
    cell = of_encoding(tmp_path, name, *TINY, f"model.depth={LAYERS.get(name, 1)}")
    training = build(cell, cell.make_dataset())
    found = [sum(parameter.double().sum().item() for parameter in training.model.parameters())]
    for batch, _ in zip(training.train_dataloader(), range(3), strict=False):
        loss = training.training_step(batch, 0)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        training.step += 1
        found.append(loss.item())
    golden("encodings", name, "first_steps", [float(f"{value:.7g}") for value in found])


@pytest.mark.parametrize("name", names("data"))
def test_the_identity_of_every_dataset_stands(name, tmp_path, golden):
    """With `sinusoidal`."""
    if name in ("clm", "mlm"):
        pytest.skip("the text is that of this Python")
    golden("datasets", name, "identity", digest(made(tmp_path, f"data={name}", "pe=sinusoidal").identity))


@pytest.mark.parametrize(("file", "group"), [("encodings", "pe"), ("datasets", "data")])
def test_nothing_is_kept_of_what_is_no_more(file, group, golden_numbers):
    assert golden_numbers(file).keys() <= set(names(group))
