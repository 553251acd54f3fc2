"""Docstrings document arguments and attributes that exist, and name what exists."""

import ast
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

PACKAGE = Path(__file__).parents[1] / "pe_lab"
SECTION = re.compile(r"^(?:Args|Attributes):\n((?: {4}.*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\**\w+(?:, \**\w+)*):", re.MULTILINE)
MENTIONED = re.compile(r"(?<=`)(?!\w+\.py`)[A-Za-z_][\w.]*(?=`)|(?<![\w.`/-])_[a-z]\w+")
FILE = re.compile(r"[\w./]+\.py\b")
ELSEWHERE = {  # names that are not of the package, by whose they are
    "AutoModelForCausalLM.from_pretrained": "transformers",
    "AutoTokenizer": "transformers",
    "save_pretrained": "transformers",
    "pandas.read_csv": "pandas",
    "save_to_disk": "datasets",
    "squeezeVar": "limma, in R",
    "untie_r": "Transformer-XL",
    "xor": "PTX",
    "train_gpt.py": "modded-nanogpt",
    "pe_lab.conf": "conf/ in the wheel",
    "pyarrow.py": "an example of a user's file",
}


def test_documented_arguments_and_attributes_exist() -> None:
    nodes = [(file.name, node) for file, nodes in sources().items() for node in nodes]
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


def test_names_in_docstrings_exist() -> None:
    missing = [(file.name, name) for file, name in mentions(MENTIONED) if not is_known(name) and name not in ELSEWHERE]
    assert missing == []


def test_properties_are_nouns_and_functions_begin_with_a_verb() -> None:
    """Measures say what their number is; functions with a decorator may be made properties by it."""
    wrong = []
    for file, nodes in sources().items():
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                first = (ast.get_docstring(node) or "").partition(" ")[0]
                decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
                is_property = bool(decorators & {"property", "cached_property"})
                is_noun = first in ("Whether", "The", "A", "An") and file.parts[-2:] != ("audit", "measures.py")
                if (is_property and first == "Return") or (is_noun and not decorators):
                    wrong.append((file.name, node.name, first))
    assert wrong == []


def test_files_in_docstrings_exist() -> None:
    missing = [
        (file.name, name)
        for file, name in mentions(FILE)
        if name not in ELSEWHERE
        and not any((folder / name).exists() for folder in (file.parent, file.parent.parent, PACKAGE.parent))
    ]
    assert missing == []


def test_no_exception_is_kept_without_need() -> None:
    assert ELSEWHERE.keys() <= {name for pattern in (MENTIONED, FILE) for _, name in mentions(pattern)}
    assert [name for name in ELSEWHERE if is_known(name) and not FILE.fullmatch(name)] == []


@pytest.mark.parametrize("package", ["benchmark", "gallery", "replication", "report", "results"])
def test_a_map_of_a_package_names_its_modules(package: str) -> None:
    entries = [
        entry for entry in (PACKAGE / package).iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()
    ]
    modules = {entry.stem for entry in entries} - {"__init__", "__main__"}
    (text,) = [text for file, text in docstrings() if file == PACKAGE / package / "__init__.py"]
    assert modules - set(re.findall(r"\w+", text)) == set()


def mentions(pattern: re.Pattern[str]) -> list[tuple[Path, str]]:
    """Return what a pattern finds in the docstrings of the package, with the file."""
    return [(file, name) for file, text in docstrings() for name in pattern.findall(text)]


@cache
def docstrings() -> list[tuple[Path, str]]:
    """Return the docstrings of the package, with their files."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [(file, node) for file, nodes in sources().items() for node in nodes]
    return [(file, ast.get_docstring(node) or "") for file, node in nodes if isinstance(node, kinds)]


@cache
def sources() -> dict[Path, list[ast.AST]]:
    """Return the nodes of the files of the package, each file's module first."""
    return {file: [*ast.walk(ast.parse(file.read_text()))] for file in PACKAGE.rglob("*.py")}


def is_known(name: str) -> bool:
    """Return whether the package has a name, or all names of a dotted one; of a path in it, whether that exists.

    Of `module.name`, where only modules have that name, whether this module has it.
    """
    if name.startswith("pe_lab."):
        with suppress(ImportError, AttributeError):
            return bool(resolve_name(name) or True)
        return False
    owner, _, last = name.rpartition(".")
    if owner and last in definitions() and last not in members():
        return owner.rpartition(".")[2] in definitions()[last]
    return known_names().issuperset(name.split("."))


@cache
def definitions() -> dict[str, set[str]]:
    """Return the modules and packages in which a function or class is defined, by its name."""
    found: dict[str, set[str]] = {}
    for file, (module, *_) in sources().items():
        for node in ast.iter_child_nodes(module):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, set()).update((file.stem, file.parent.name))
    return found


@cache
def members() -> set[str]:
    """Return the names of methods and attributes of classes."""
    nodes = [node for nodes in sources().values() for node in nodes]
    inside = [part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body]
    methods = {part.name for part in inside if isinstance(part, ast.FunctionDef)}
    fields = {
        part.target.id for part in inside if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return methods | fields | stored


@cache
def known_names() -> set[str]:
    """Return the names in the code of the package, strings without a space too, and those in conf/ and of files."""
    plugins = [*PACKAGE.with_name("hydra_plugins").rglob("*.py")]
    code, settings = [*sources(), *plugins], [*PACKAGE.with_name("conf").rglob("*.yaml")]
    nodes = [node for nodes in sources().values() for node in nodes]
    nodes += [node for file in plugins for node in ast.walk(ast.parse(file.read_text()))]
    fields = [getattr(node, name, None) for node in nodes for name in ("id", "attr", "name", "arg", "asname", "value")]
    words = [word for field in fields if isinstance(field, str) and " " not in field for word in field.split(".")]
    words += [word for file in settings for word in re.findall(r"\w+", file.read_text())]
    return {*words, *(part for path in [*code, *settings] for part in (path.stem, path.name, path.parent.name))}
