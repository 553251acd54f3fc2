"""Names of the package in strings, which no import resolves: programs, docs, and what tests replace."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FILES = [file for folder in ("tests", "benchmarks") for file in (ROOT / folder).rglob("*.py") if file != Path(__file__)]
FILES += [page for pattern in ("*.md", "docs/*.md") for page in ROOT.glob(pattern)]
PATH = re.compile(r"pe_lab(\.[A-Za-z_]\w*)+")
REPLACING = ("setattr", "delattr", "patch", "object", "hasattr", "getattr")  # functions that take a name in a string


def test_names_of_the_package_exist() -> None:
    missing = {file.relative_to(ROOT): missing_names(file.read_text(), file.suffix == ".md") for file in FILES}
    assert {file: names for file, names in missing.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        'run("from pe_lab.encodings import absent")',
        'run(f"import torch\\nfrom pe_lab.attention import reference\\nreference.absent({x!r})")',
        'monkeypatch.setattr("pe_lab.attention.reference.absent", 0)',
        'from pe_lab.attention import reference\nmonkeypatch.setattr(reference, "absent", 0)',
        'from pe_lab.attention import reference\nhasattr(reference, "absent")',
    ],
)
def test_a_name_that_was_renamed_is_noticed(line: str) -> None:
    assert any("absent" in name for name in missing_names(line))
    assert missing_names(line.replace("absent", "attend").replace("encodings", "attention")) == []


def missing_names(text: str, is_page: bool = False) -> list[str]:
    """Return the names of the package, of a file or a page with examples, that do not exist."""
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL) if is_page else [text]
    trees = [ast.parse(dedent(program)) for program in programs]
    trees += [program for tree in trees for program in inner_programs(tree)]
    return [path for tree in trees for path in paths(tree) if not exists(path)]


def inner_programs(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the programs in strings; what is formatted into one is taken for a number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
        else:
            text = str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if "from pe_lab" in text:
            try:
                yield ast.parse(text)
            except SyntaxError:
                continue


def paths(tree: ast.AST) -> Iterator[str]:
    """Yield what a program imports of the package, and the attributes of modules that it imports."""
    nodes = list(ast.walk(tree))
    imports = [x for x in nodes if isinstance(x, ast.ImportFrom) and (x.module or "").split(".")[0] == "pe_lab"]
    imported = {alias.asname or alias.name: f"{x.module}.{alias.name}" for x in imports for alias in x.names}
    yield from (path for path in imported.values() if not path.endswith(".*"))
    local = {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    local |= {x.arg for x in nodes if isinstance(x, ast.arg)}
    modules = {name: path for name, path in imported.items() if name not in local and is_module(path)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{modules[node.value.id]}.{node.attr}"
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func).rpartition(".")[2]) in REPLACING:
            values = [getattr(x, "value", getattr(x, "id", None)) for x in (*node.args[:2], None)]
            if isinstance(values[0], str) and PATH.fullmatch(values[0]):
                yield values[0]
            if name != "getattr" and values[0] in modules and isinstance(values[1], str):
                yield f"{modules[values[0]]}.{values[1]}"


@cache
def exists(path: str) -> bool:
    try:
        find(path)
    except AttributeError:
        return False
    except ModuleNotFoundError as error:
        return not str(error.name).startswith("pe_lab")  # of another package, which need not be installed
    return True


@cache
def is_module(path: str) -> bool:
    return exists(path) and isinstance(find(path), ModuleType)


def find(path: str) -> Any:
    """Return the module, class, function or value of a dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("pe_lab"):
            raise
        parent, _, name = path.rpartition(".")
        return getattr(find(parent), name)
