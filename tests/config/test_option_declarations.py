"""What a class declares is read from its source, equal to what its constructor checks."""

import inspect
import sys
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from helpers.configs import group_of
from pe_lab import config
from pe_lab.config.option_declarations import declared_ranges
from pe_lab.encodings.options import Range, parameter_ranges

FILES = sorted((*(config.config_folder() / "pe").glob("*.yaml"), *(config.config_folder() / "data").glob("*.yaml")))
SUPPLIED = {"self", "sizes", "seed", "name"}  # by the program, or by the file's name
VALUES = [None, True, -1, 0, 1, 2, 3, 258, 300, 0.5, 1.0, 2**26, float("nan"), "", "text", "half", "bpe", "none", [1]]


def checked(cls: type) -> dict[str, Range]:
    """The ranges that the constructor of a class checks, and its bases' where it passes options on to them."""
    if "__init__" not in vars(cls):
        return checked(cls.__bases__[0])
    kinds = {parameter.kind for parameter in inspect.signature(cls).parameters.values()}
    inherited = checked(cls.__bases__[0]) if inspect.Parameter.VAR_KEYWORD in kinds else {}
    return inherited | parameter_ranges(inspect.unwrap(cls.__init__))


def parameters(cls: type) -> set[str]:
    """The parameters of a class's constructor, and its bases' where it passes options on to them."""
    own = inspect.signature(cls).parameters.values()
    passes_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own)
    named = {parameter.name for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD}
    return named | (parameters(cls.__bases__[0]) if passes_on else set())


def accepted(allowed: Range) -> list[bool]:
    return [(value is None and allowed.optional) or allowed.holds(value) for value in VALUES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_option_has_a_range(path: Path) -> None:
    cfg = group_of(path)
    encodings = {key for key, value in cfg.items() if OmegaConf.is_dict(value)}
    options = {str(key) for key in cfg if str(key)[0] != "_"} | parameters(get_class(cfg._target_))
    assert options - SUPPLIED - encodings == declared_ranges(cfg._target_).keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_read_from_the_source_is_what_the_constructor_checks(path: Path) -> None:
    target = OmegaConf.load(path)._target_
    read, own = declared_ranges(target), checked(get_class(target))
    assert read.keys() == own.keys()
    for name, allowed in read.items():
        assert (allowed.words, allowed.most, allowed.optional) == (own[name].words, own[name].most, own[name].optional)
        assert accepted(allowed) == accepted(own[name])


SOURCE = """
import torch
from typing import Annotated, Literal
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.options import Positive as Above, Range, is_number
from {package}.near import Rate

Odd = Annotated[int, Range("odd", lambda x: is_number(x) and x % 2 == 1)]

class Mine(PositionalEncoding):
    def __init__(self, sizes: Sizes, name: str, a: Odd, b: "Above | None", c: Rate, d: torch.Tensor, e: float = 1.0):
        super().__init__(sizes, name)

class Same(Mine):
    pass

class More(Same):
    def __init__(self, *args, f: Literal["x"] = "x", **options):
        super().__init__(*args, **options)

def make(sizes, a: Odd = 1):
    return Mine(sizes, "made", a)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's package; it is not imported."""
    folder = tmp_path / "some_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "near.py").write_text("from pe_lab.encodings.options import *\nRate = bool\n")
    (folder / "mine.py").write_text(SOURCE.format(package=folder.name))
    (tmp_path / "some_module.py").write_text("class Lone:\n    def __init__(self, a: bool): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder.name


def test_a_user_s_class_is_read_without_importing_it(package: str) -> None:
    read = declared_ranges(f"{package}.mine.Mine")
    assert list(read) == ["a", "b", "c"]
    assert read["a"].words == "odd"
    assert [read["a"].holds(value) for value in (3, 4, "3")] == [True, False, False]
    assert read["b"].optional
    assert read["c"].words == "true or false"
    assert list(declared_ranges(f"{package}.mine.Same")) == ["a", "b", "c"]
    assert list(declared_ranges(f"{package}.mine.More")) == ["a", "b", "c", "f"]
    assert list(declared_ranges(f"{package}.mine.make")) == ["a"]
    assert list(declared_ranges("some_module.Lone")) == ["a"]
    assert not any(name.startswith(("some_package", "some_module")) for name in sys.modules)


def test_an_edited_class_is_read_again(package: str, tmp_path: Path) -> None:
    assert list(declared_ranges("some_module.Lone")) == ["a"]
    (tmp_path / "some_module.py").write_text("class Lone:\n    def __init__(self, longer: bool): ...\n# edited\n")
    assert list(declared_ranges("some_module.Lone")) == ["longer"]


@pytest.mark.parametrize(
    "target",
    [
        *(None, 5, "", ".", "..", "x", "nowhere.Mine", "pe_lab.nowhere.Mine", "os.getcwd", "sys.exit", "a\0b.c", "é.x"),
        *("pe_lab.encodings.rotary.Nothing", "pe_lab.encodings.rotary.torch", "\udcff.x", "__main__.x"),
        "x" * 5000 + ".y",
    ],
)
def test_what_has_no_source_declares_nothing(target: object) -> None:
    assert declared_ranges(target) == {}
