"""A user's own class is known by its source: one that was edited is never served an old result."""

import importlib
import linecache
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from faults.sweeps import TINY
from pe_lab import config
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.identity import source_digests
from pe_lab.system.files import digest

NOTHING = "from pe_lab.encodings.base import PositionalEncoding\n\nclass Mine(PositionalEncoding):\n    pass\n"
ALIBI = "from pe_lab.encodings.families.bias import Alibi\n\nclass Mine(Alibi):\n    pass\n"
OWN = ("pe=none", "pe.name=mine", "pe._target_=mymod.Mine")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that Python imports the user's modules from."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        places = [vars(module).get("__file__"), *vars(module).get("__path__", [])]  # a namespace has no file
        if any(str(place).startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        sys.modules.pop(name.replace("__", "."), None)
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()


def made(name: str = "mymod.Mine"):
    """The class, imported anew."""
    module, _, cls = name.rpartition(".")
    for known in [known for known in sys.modules if known.partition(".")[0] in (module.partition(".")[0], "helper")]:
        del sys.modules[known]
    linecache.clearcache()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return getattr(importlib.import_module(module), cls)
    finally:
        sys.dont_write_bytecode = before


def test_a_class_of_the_package_has_no_source_in_its_identity():
    assert source_digests(RoPE, Cell) == {}


@pytest.mark.slow
def test_an_edited_class_is_trained_anew_and_an_unchanged_one_is_not(folder):
    """A class that is replaced by ALiBi under the same name must not get the old loss."""
    words = [*TINY, *OWN, f"ledger={folder / 'ledger'}", "logger=none", "epochs=1", "study_name=s"]

    def loss() -> tuple[str, str]:
        command = [sys.executable, "-m", "pe_lab.run", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
        return (folder / "ledger" / "studies" / "s" / "table.csv").read_text(), done.stderr

    write(folder, mymod=NOTHING)
    first, _ = loss()
    again, stderr = loss()
    assert again == first
    assert "1 of 1 cells are in the ledger already" in stderr
    write(folder, mymod=ALIBI)
    edited, stderr = loss()
    assert "already" not in stderr
    assert edited != first


@pytest.mark.parametrize("edited", ["mymod", "helper"])
def test_the_source_covers_what_the_class_depends_on(folder, edited):
    """It covers the class and a constant from another module of the user, and no module that is not imported."""
    files = {"mymod": "from helper import SIZE\n\nclass Mine:\n    size = SIZE\n", "helper": "SIZE = 2\n"}
    write(folder, **files, other="x = 1\n")
    before = source_digests(made())
    assert before["class"] == "mymod.Mine"
    write(folder, other="x = 2\n")
    assert source_digests(made()) == before
    write(folder, **{edited: files[edited] + "\n\nMORE = 1\n"})
    assert source_digests(made()) != before


@pytest.mark.parametrize("how", ["from helper import factor", "import helper"])
def test_a_function_that_a_class_calls_is_part_of_its_source(folder, how):
    call = "helper.factor()" if how == "import helper" else "factor()"
    text = f"from pe_lab.encodings.base import PositionalEncoding\n{how}\n\nclass Mine(PositionalEncoding):\n"
    write(folder, mymod=f"{text}    def size(self):\n        return {call}\n", helper="def factor():\n    return 1\n")
    before = source_digests(made())
    assert source_digests(made()) == before
    write(folder, helper="def factor():\n    return 2\n")
    assert source_digests(made()) != before


@pytest.mark.parametrize("place", ["site-packages", "dist-packages"])
def test_a_package_that_another_environment_installed_is_no_part_of_the_source(folder, place, monkeypatch):
    """As those of the system in a virtual environment that sees them."""
    installed = folder / "elsewhere" / place
    installed.mkdir(parents=True)
    monkeypatch.syspath_prepend(installed)
    write(installed, helper="SIZE = 1\n")
    write(folder, mymod="import helper\n\nclass Mine:\n    size = helper.SIZE\n")
    before = source_digests(made())
    write(installed, helper="SIZE = 2\n")
    assert source_digests(made()) == before


def test_a_relative_import_outside_of_a_package_is_passed_over(folder):
    text = "try:\n    from .sizes import SIZE\nexcept ImportError:\n    SIZE = 1\n\nclass Mine:\n    size = SIZE\n"
    write(folder, mymod=text)
    assert source_digests(made())["class"] == "mymod.Mine"


def test_a_class_in_a_package_is_known_by_the_modules_it_takes_from(folder):
    write(folder, mypack____init__="", mypack__sizes="SIZE = 1\n")
    (folder / "mypack" / "mine.py").write_text("from mypack import sizes\n\nclass Mine:\n    size = sizes.SIZE\n")
    before = source_digests(made("mypack.mine.Mine"))
    (folder / "mypack" / "sizes.py").write_text("SIZE = 2\n")
    assert source_digests(made("mypack.mine.Mine")) != before


LAZY = {
    "module": ("import helper", {"helper": "import second\nSIZE = 1\n", "second": "import helper\n"}),
    "package": (
        "from helper.sizes import SIZE",
        {"helper__sizes": "from . import third\nSIZE = 1\n", "helper__third": ""},
    ),
    "namespace": ("from helper.sizes import SIZE", {"helper__sizes": "SIZE = 1\n"}),
}


@pytest.mark.parametrize("kind", LAZY)
def test_a_module_that_is_imported_late_is_part_of_the_source_before_its_import_too(folder, kind):
    statement, modules = LAZY[kind]
    files = {folder.joinpath(*name.split("__")).with_suffix(".py"): text for name, text in modules.items()}
    if kind == "package":
        files[folder / "helper" / "__init__.py"] = "NAME = 1\n"
    write(folder, mymod=f"class Mine:\n    def draw(self):\n        {statement}\n", **modules)
    for path, text in files.items():
        path.write_text(text)
    cls = made()
    before = source_digests(cls)
    assert not {"helper", "second"} & sys.modules.keys()
    cls().draw()
    assert "helper" in sys.modules
    assert source_digests(cls) == before
    sys.modules.pop("second", None)
    for path, text in files.items():
        path.write_text(text + "# edited\n")
        assert source_digests(made()) != before
        path.write_text(text)
        assert source_digests(made()) == before


def test_a_late_import_that_cannot_be_found_or_read_is_passed_over(folder):
    text = "class Mine:\n    def draw(self):\n        import missing_module.part, helper, beyond\n"
    write(folder, mymod=text, helper="print 1\n", beyond="from ... import x\n")
    before = source_digests(made())
    write(folder, helper="print 2\n")
    assert source_digests(made()) != before


def test_a_function_that_makes_an_encoding_is_part_of_its_identity(folder):
    text = "from functools import partial\nfrom pe_lab.encodings.families.rotary import RoPE\n\n"
    text += "def mine(sizes, name, **options):\n    return RoPE(sizes, name, theta={})\n"
    write(folder, mymod=text.format(100.0))
    words = ["pe=none", "pe.name=mine", "pe._target_=mymod.mine", f"ledger={folder}"]

    def identity():
        made("mymod.mine")
        return Cell.from_config(config.expand_overrides(words, multirun=False)[0]).identity

    first = identity()
    assert digest(identity()) == digest(first)
    write(folder, mymod=text.format(200.0))
    assert digest(identity()) != digest(first)


def test_a_foreign_class_and_one_of_ours_never_share_a_cell(folder):
    write(folder, mymod=NOTHING)
    made()
    ours = Cell.from_config(config.expand_overrides(["pe=none", f"ledger={folder}"], multirun=False)[0]).identity
    foreign = Cell.from_config(
        config.expand_overrides([*OWN, "pe.name=mine", f"ledger={folder}"], multirun=False)[0]
    ).identity
    assert foreign["pe"]["class"] == "mymod.Mine"
    assert {**foreign["pe"], "name": "none"} != ours["pe"]


def test_a_file_that_changed_after_it_was_imported_is_refused(folder):
    text = NOTHING.replace("pass", "def size(self):\n        return {}")
    write(folder, mymod=text.format(1))
    stale = made()
    (folder / "mymod.py").write_text(text.format(2))
    with pytest.raises(ValueError, match=r"^mymod\.Mine must be what .*mymod\.py says, got one"):
        source_digests(stale)


def test_a_class_without_source_is_refused():
    namespace = {"__name__": "__main__"}
    exec("class Mine:\n    def size(self): return 1\n", namespace)
    with pytest.raises(ValueError, match="must have source code that can be read, got __main__.Mine"):
        source_digests(namespace["Mine"])


def test_a_class_of_a_notebook_is_known_by_its_cells(monkeypatch):
    """The source is its own text and that of the functions it calls, not that of other cells of the notebook."""
    module = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)

    def run(name: str, text: str) -> None:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(module))

    cell = "class Mine:\n    scale = {}\n    def size(self):\n        return [factor() for _ in range(2)]\n"
    run("<cell 1>", "def factor():\n    return 1\n")
    run("<cell 2>", cell.format(1))
    before = source_digests(module.Mine)
    run("<cell 3>", "def another():\n    return 1\n")
    assert source_digests(module.Mine) == before
    run("<cell 4>", cell.format(2))
    assert (scaled := source_digests(module.Mine)) != before
    run("<cell 5>", "def factor():\n    return 2\n")
    assert source_digests(module.Mine) not in (before, scaled)


def test_a_value_that_a_notebook_class_refers_to_is_part_of_its_source(monkeypatch):
    module = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    text = "class Mine:\n    def size(self):\n        return SIZE\n"
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(keepends=True), "<cell>")
    exec(compile(text, "<cell>", "exec"), vars(module))
    found = []
    for value in (1, 2, [1], torch.zeros(2), torch.ones(2)):
        module.SIZE = value
        assert source_digests(module.Mine) == source_digests(module.Mine)
        found.append(source_digests(module.Mine)["source"])
    assert len(set(found)) == len(found)
    module.SIZE = (value for value in ())
    with pytest.raises(ValueError, match="got __main__.Mine, which refers to SIZE: put it into a module"):
        source_digests(module.Mine)


def test_a_class_that_does_not_take_the_options_is_refused_with_a_config_to_start_from(folder):
    write(folder, mymod=NOTHING)
    words = ["pe.name=mine", "pe._target_=mymod.Mine", f"ledger={folder}"]
    message = r"^pe\._target_ must take the options name, theta, pairing, rotary_dim: mymod\.Mine got an unexpected "
    with pytest.raises(
        ValueError, match=message + "keyword argument 'theta'; start from pe=none, which has name alone$"
    ):
        Cell.from_config(config.expand_overrides(words, multirun=False)[0])
