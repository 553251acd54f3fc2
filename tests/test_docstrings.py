"""Public docstrings document arguments and attributes that exist."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pe_lab"
SECTION = re.compile(r"^(?:Args|Attributes):\n((?: {4}.*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\**\w+(?:, \**\w+)*):", re.MULTILINE)


def test_documented_arguments_and_attributes_exist() -> None:
    nodes = [(file.name, node) for file in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    named = [(file, node) for file, node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    classes = {node.name: node for _, node in named if isinstance(node, ast.ClassDef)}
    public = [(file, node) for file, node in named if not node.name.startswith("_")]
    exists = {(file, node.name, name): name in names(node, classes) for file, node in public for name in entries(node)}
    assert len(exists) > 500
    assert [place for place in exists if not exists[place]] == []


def entries(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    """Return the names of the entries in the sections Args and Attributes."""
    sections = SECTION.findall(f"{ast.get_docstring(node)}\n")
    return [name.strip(" *") for section in sections for entry in ENTRY.findall(section) for name in entry.split(",")]


def names(node: ast.ClassDef | ast.FunctionDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Return the arguments of a function; of a class those of its __init__, its attributes, and those of its bases."""
    if isinstance(node, ast.FunctionDef):
        return {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
    bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    arguments = names(methods["__init__"], classes) if "__init__" in methods else set()
    assigned = [part for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
    fields = {part.id for line in assigned for part in ast.walk(line) if isinstance(part, ast.Name)}
    stored = {
        part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
    }
    return arguments.union(methods, fields, stored, *(names(base, classes) for base in bases))
