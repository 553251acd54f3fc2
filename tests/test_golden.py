"""Numbers that stand: the identity and the first training steps of every encoding, the identity of every dataset.

Numbers that change without a new `revision` would be mistaken for the old ones by every ledger, and an identity that
changes makes every ledger forget its cells: a change must be meant. To write what is found now, and see what changed:

    python -m pytest tests/test_golden.py --write-golden

It refuses first steps that changed while the identity stands: the revision of a class comes first.
"""

import ast
import inspect
import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from helpers.configs import compose_config, group_of, pe_class, pe_settings
from pe_lab import config
from pe_lab.data.base import Dataset
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.experiment.cell import Cell
from pe_lab.system.files import digest

GOLDEN = Path(__file__).parent / "golden"  # numbers that stand, by file, name and kind
Numbers = dict[str, str | list[float]]  # of one name, by kind
TINY = {"model.depth": 1, "model.width": 16, "model.num_heads": 2, "trainer.batch_size": 512}
LAYERS = {"interleave": 2, "rnope_swa": 4}  # of one round


def files(group: str) -> list[Path]:
    return sorted((config.config_folder() / group).glob("*.yaml"))


def names(group: str) -> list[str]:
    return [path.stem for path in files(group)]


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


def read(path: Path) -> dict[str, Numbers]:
    return json.loads(path.read_bytes()) if path.exists() else {}


def changed(stands: Numbers, found: Numbers) -> list[str]:
    """Return the kinds of numbers that differ from those that stand, beyond five digits."""

    def equal(value: str | list[float], standing: str | list[float]) -> bool:
        return value == (standing if isinstance(standing, str) else pytest.approx(standing, rel=1e-5))

    return [kind for kind, value in found.items() if kind not in stands or not equal(value, stands[kind])]


def write(path: Path, name: str, found: Numbers, revised: str) -> list[str]:
    """Write numbers in place of those that stand, and return a line for each kind that changed.

    Args:
        revised: the class whose revision is part of the identity.

    Raises:
        ValueError: numbers changed and the identity did not.
    """
    numbers = read(path)
    stands = numbers.get(name, {})
    kinds = changed(stands, found)
    others = [kind for kind in kinds if kind in stands]
    if others and "identity" not in kinds:
        raise ValueError(
            f"{others[0]} of {name} changed from {stands[others[0]]} to {found[others[0]]}, and its identity did not: "
            f"raise the revision of {revised}, or of its base class, the model or the attention if it is theirs"
        )
    if kinds:
        numbers[name] = stands | {kind: found[kind] for kind in kinds}
        lines = (f"{json.dumps(key)}: {json.dumps(numbers[key], sort_keys=True)}" for key in sorted(numbers))
        path.write_text("{\n " + ",\n ".join(lines) + "\n}\n", encoding="utf-8")
    return [f"{path.stem}: {kind} of {name}: {stands.get(kind)} -> {found[kind]}" for kind in kinds]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str, type, Numbers], None]:
    """Compare the numbers of a name with those that stand; with --write-golden, write them instead."""

    def compare(file: str, name: str, kind: type, found: Numbers) -> None:
        path = GOLDEN / f"{file}.json"
        if request.config.getoption("--write-golden"):
            if "PYTEST_XDIST_WORKER" in os.environ:
                raise pytest.UsageError("--write-golden needs one process: leave out -n")
            try:
                lines = write(path, name, found, kind.__name__)
            except ValueError as error:
                pytest.fail(str(error), pytrace=False)
            with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print("".join(f"\n{line}" for line in lines), end="")
            return
        stands = read(path).get(name, {})
        assert not changed(stands, found), (
            f"{name} has {found}, and {stands or 'nothing'} stands in tests/golden/{file}.json: to mean it, "
            f"raise the revision of {kind.__name__}, then `python -m pytest tests/test_golden.py --write-golden`"
        )

    return compare


@pytest.mark.parametrize("name", names("pe"))
def test_the_identity_and_the_first_steps_of_every_encoding_stand(name, golden):
    """The sum of the initial weights, and the training loss at steps 1, 2 and 3 with seed 0.

    And the sum of the sizes of the gradients of queries and keys at these steps: at the start, when attention is nearly
    uniform, what attends to what hardly moves the loss.
    """
    cfg = of_encoding(name)
    identity = digest(Cell.from_config(cfg).identity)
    for setting, value in (TINY | {"model.depth": LAYERS.get(name, 1)}).items():
        OmegaConf.update(cfg, setting, value)
    cell = Cell.from_config(cfg)
    training = cell.lightning_module()
    losses, gradients = [sum(parameter.double().sum().item() for parameter in training.model.parameters())], []
    weights = [layer.attention.qkv.weight for layer in training.model.layers]  # of queries, keys and values
    for batch, _ in zip(cell.data_module().train_dataloader(), range(3), strict=False):
        loss = training.training_step(batch, 0)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        training.step += 1
        losses.append(loss.item())
        gradients.append(sum(weight.grad[: 2 * cfg.model.width].double().abs().sum().item() for weight in weights))
    first_steps, first_gradients = ([float(f"{value:.7g}") for value in values] for values in (losses, gradients))
    found = {"identity": identity, "first_steps": first_steps, "first_gradients": first_gradients}
    golden("encodings", name, pe_class(name), found)


@pytest.mark.parametrize("name", names("data"))
def test_the_identity_of_every_dataset_stands(name, golden):
    """With `sinusoidal`."""
    cell = Cell.from_config(made(f"data={name}", "pe=sinusoidal"))
    golden("datasets", name, type(cell.dataset), {"identity": digest(cell.identity)})


@pytest.mark.parametrize(("file", "group"), [("encodings", "pe"), ("datasets", "data")])
def test_nothing_is_kept_of_what_is_no_more(file, group):
    assert read(GOLDEN / f"{file}.json").keys() <= set(names(group))


def test_numbers_that_change_without_their_identity_are_not_written(tmp_path):
    path = tmp_path / "encodings.json"
    write(path, "rope", {"identity": "a", "first_steps": [1.0, 2.0]}, "RoPE")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"^first_steps of rope changed .*: raise the revision of RoPE"):
        write(path, "rope", {"identity": "a", "first_steps": [1.0, 2.1]}, "RoPE")
    assert write(path, "rope", {"identity": "a", "first_steps": [1.0, 2.000001]}, "RoPE") == []
    assert path.read_bytes() == before
    assert len(write(path, "rope", {"identity": "b", "first_steps": [1.0, 2.1]}, "RoPE")) == 2
    assert read(path)["rope"] == {"identity": "b", "first_steps": [1.0, 2.1]}


def revised_classes() -> list[type]:
    """Return the classes of encodings and datasets that set a revision and have a base that does."""
    shipped = [get_class(group_of(path)._target_) for group in ("pe", "data") for path in files(group)]
    classes = dict.fromkeys(
        base for kind in shipped for base in kind.__mro__ if issubclass(base, (PositionalEncoding, Dataset))
    )
    return [kind for kind in classes if "revision" in vars(kind) and revised_base(kind)]


def revised_base(kind: type) -> type | None:
    """Return the nearest base class that sets a revision, beside those of all encodings and datasets."""
    bases = (base for base in kind.__mro__[1:] if base not in (PositionalEncoding, Dataset))
    return next((base for base in bases if "revision" in vars(base)), None)


@pytest.mark.parametrize("kind", revised_classes())
def test_a_revision_that_a_class_sets_rises_with_that_of_its_base(kind):
    """Its numbers may rest on those of the base, and would change under the same identity."""
    base = revised_base(kind)
    (made,) = ast.parse(dedent(inspect.getsource(kind))).body
    (value,) = [line.value for line in made.body if isinstance(line, ast.Assign) and line.targets[0].id == "revision"]
    raised = {base.__name__: SimpleNamespace(revision=base.revision + 1)}
    assert eval(ast.unparse(value), raised) == kind.revision + 1
