"""Numbers that stand: the identity and the first training steps of every encoding, the identity of every dataset.

Numbers that change without a new `revision` would be mistaken for the old ones by every ledger, and an identity that
changes makes every ledger forget its cells: a change must be meant. To write what is found now, and see what changed:

    python -m pytest tests/test_golden.py --write-golden
"""

from copy import deepcopy

import pytest
from omegaconf import DictConfig, OmegaConf

from configs import compose_config, pe_class, pe_settings
from pe_lab import config
from pe_lab.experiment.cell import Cell
from pe_lab.system.files import digest

TINY = {"model.depth": 1, "model.width": 16, "model.num_heads": 2, "trainer.batch_size": 512}
LAYERS = {"interleave": 2, "rnope_swa": 4}  # of one round


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (config.config_folder() / group).glob("*.yaml"))


def made(*overrides: str) -> DictConfig:
    """A config that may be changed."""
    cfg = deepcopy(compose_config("trainer.device=cpu", *overrides))
    OmegaConf.set_readonly(cfg, False)
    return cfg


def of_encoding(name: str) -> DictConfig:
    """The config of an encoding: on `structured_heldout`, `addition` if it reads marks, `digits` if it needs a grid.

    The first of these has its old name, under which its numbers were written.
    """
    kind = pe_class(name)
    task = "digits" if kind.on_grid else "addition" if kind.reads_marks else "structured_heldout"
    cfg = made("pe=none", f"data={task}", "epochs=4")  # at which the identities of phased trainings were written
    cfg.data.name = task.removesuffix("_heldout")
    cfg.pe = deepcopy(pe_settings(name))
    return cfg


@pytest.mark.parametrize("name", names("pe"))
def test_the_identity_of_every_encoding_stands(name, golden):
    golden("encodings", name, "identity", digest(Cell.from_config(of_encoding(name)).identity))


@pytest.mark.parametrize("name", names("pe"))
def test_the_first_steps_of_every_encoding_stand(name, golden):
    """The sum of the initial weights, and the training loss at steps 1, 2 and 3 with seed 0."""
    cfg = of_encoding(name)
    for setting, value in (TINY | {"model.depth": LAYERS.get(name, 1)}).items():
        OmegaConf.update(cfg, setting, value)
    cell = Cell.from_config(cfg)
    training = cell.lightning_module()
    found = [sum(parameter.double().sum().item() for parameter in training.model.parameters())]
    for batch, _ in zip(cell.data_module().train_dataloader(), range(3), strict=False):
        loss = training.training_step(batch, 0)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        training.step += 1
        found.append(loss.item())
    golden("encodings", name, "first_steps", [float(f"{value:.7g}") for value in found])


@pytest.mark.parametrize("name", names("data"))
def test_the_identity_of_every_dataset_stands(name, golden):
    """With `sinusoidal`."""
    golden("datasets", name, "identity", digest(Cell.from_config(made(f"data={name}", "pe=sinusoidal")).identity))


@pytest.mark.parametrize(("file", "group"), [("encodings", "pe"), ("datasets", "data")])
def test_nothing_is_kept_of_what_is_no_more(file, group, golden_numbers):
    assert golden_numbers(file).keys() <= set(names(group))
