"""Every encoding can be imported from the package by its name."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

import pe_lab.encodings
from pe_lab.config import config_folder
from pe_lab.encodings import public


def test_every_class_that_a_config_names_is_public() -> None:
    targets = {OmegaConf.load(path)._target_ for path in (config_folder() / "pe").glob("*.yaml")}
    assert {target.rpartition(".")[2] for target in targets} <= set(public.__all__)
    for target in targets:
        assert getattr(pe_lab.encodings, target.rpartition(".")[2]) is get_class(target)


def test_star_and_dir_have_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from pe_lab.encodings import *", names)
    assert names.keys() - {"__builtins__"} == {*public.__all__, "make"} <= set(dir(pe_lab.encodings))


def test_the_path_that_a_config_has_can_be_imported() -> None:
    """In a new process, in which nothing has asked for the module yet; it is not made twice."""
    lines = (
        "from pe_lab.encodings.rotary import RoPE",
        "import pe_lab.encodings.bias as bias",
        "from pe_lab.encodings import families, Alibi",
        "import pe_lab.encodings.families.rotary as rotary",
        "assert rotary.RoPE is RoPE and bias.Alibi is Alibi",
        "assert rotary.__name__ == rotary.__spec__.name == RoPE.__module__ == 'pe_lab.encodings.families.rotary'",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'pe_lab\.encodings\.nothing'$"):
        import_module("pe_lab.encodings.nothing")


def test_families_are_attributes_by_which_configs_name_their_classes() -> None:
    for path in (Path(pe_lab.encodings.__file__).parent / "families").glob("[a-z]*.py"):
        assert getattr(pe_lab.encodings, path.stem) is import_module(f"pe_lab.encodings.families.{path.stem}")


@pytest.mark.parametrize("name", ["Nothing", "nothing"])
def test_another_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'$"):
        getattr(pe_lab.encodings, name)


FOREIGN = """
import sys
from pe_lab.encodings import options
assert "torch" not in sys.modules
for names in {names}:
    exec(f"from pe_lab.encodings import {{names}}")
    from pe_lab.attention import attend
    ours = sorted(name for name in sys.modules if name.partition(".")[0] == "pe_lab")
    print([name for name in ours if not name.startswith(("pe_lab.encodings", "pe_lab.attention"))])
"""


@pytest.mark.long
def test_encodings_and_attention_import_nothing_else_of_the_lab() -> None:
    """Imported one after the other, in one process: what an earlier one brings in stands in its own line too."""
    code = FOREIGN.format(names=["PositionalEncoding", "RoPE, Alibi, Layout, Sizes", "policies"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['pe_lab']\n" * 3), done.stderr
