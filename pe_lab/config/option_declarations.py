"""Read which options a class declares from its source, without importing it: importing torch takes seconds.

The signature is the one place of a declaration; see `pe_lab.encodings.options`. The constructor checks it as well, so
what cannot be found here (a class behind another import, a computed range) is refused later, when the class is used.
"""

import ast
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pe_lab.encodings import options
from pe_lab.encodings.options import Range, annotated_range

_PROGRAM_ERRORS = (ImportError, OSError, RecursionError, SyntaxError, ValueError)


def declared_ranges(target: Any) -> dict[str, Range]:
    """Return the ranges of the options of a class or function that its source declares, by name.

    Args:
        target: the import path of the class or function, as `_target_` in a config.
    """
    try:
        module, _, name = target.rpartition(".")
        return _names(module).options(name)
    except (AttributeError, *_PROGRAM_ERRORS):  # no text, no module, no source: whoever uses it says so
        return {}


class _Names(dict[str, Any]):
    """The names of a module: each is evaluated from the source when it is asked for.

    A name stands for what an annotation can be made of: an assigned expression, an import from the standard library,
    from `pe_lab.encodings.options` or from a module of the same package. Others raise NameError.
    """

    def __init__(self, package: str, tree: ast.Module) -> None:
        self.package = package
        self.nodes: dict[str, ast.stmt] = {}
        for node in tree.body:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                    self.nodes[name] = node
                case ast.ImportFrom(names=names, level=0):
                    self.nodes |= {alias.asname or alias.name: node for alias in names}

    def __missing__(self, name: str) -> Any:
        node = self.nodes.get(name)
        if isinstance(node, ast.Assign):
            return self.evaluate(node.value)
        if isinstance(node, ast.ImportFrom):
            source = str(node.module)
            original = next(alias.name for alias in node.names if name in (alias.asname, alias.name))
            if source == options.__name__ or source.partition(".")[0] in sys.stdlib_module_names:
                return getattr(import_module(source), original)
            if source.partition(".")[0] == self.package:
                return _names(source)[original]
        raise KeyError(name)  # the interpreter looks among the builtins, then raises NameError

    def evaluate(self, expression: ast.expr) -> Any:
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            expression = ast.parse(expression.value, mode="eval").body  # an annotation in quotes
        return eval(compile(ast.Expression(expression), "<annotation>", "eval"), self)

    def options(self, name: str) -> dict[str, Range]:
        """Return what a class or function declares; where it passes options on to a base class, what that declares."""
        node = self.nodes.get(name)
        if isinstance(node, ast.ImportFrom):
            return declared_ranges(f"{node.module}.{name}")
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)] if isinstance(node, ast.ClassDef) else []
        function = _constructor(node)
        ranges: dict[str, Range] = {}
        if function is None or function.args.kwarg is not None:
            for base in bases:
                ranges = self.options(base) | ranges
        for parameter in [*function.args.args, *function.args.kwonlyargs] if function else []:
            allowed = self._declared_range(parameter.annotation)
            if allowed is not None:
                ranges[parameter.arg] = allowed
        return ranges

    def _declared_range(self, annotation: ast.expr | None) -> Range | None:
        try:
            return None if annotation is None else annotated_range(self.evaluate(annotation))
        except Exception:  # whatever a user's annotation raises without its imports, the constructor checks it
            return None


def _constructor(node: ast.stmt | None) -> ast.FunctionDef | None:
    if isinstance(node, ast.ClassDef):
        definitions = (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
        return next(definitions, None)
    return node if isinstance(node, ast.FunctionDef) else None


def _names(module: str) -> _Names:
    """Return the names of a module that is not imported for it.

    Raises:
        ImportError: the module is not there as Python source.
    """
    package, *rest = module.split(".")
    spec = find_spec(package)  # a name without dots: this imports nothing
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [Path(folder, *rest) for folder in folders]
    paths = [path for file in files for path in (file / "__init__.py", file.with_suffix(".py")) if path.is_file()]
    if rest and not paths:  # an attribute of its package: pe_lab.encodings.rotary is families/rotary.py
        paths = [path for file in files for path in sorted(file.parent.glob(f"*/{file.name}.py"))]
    if spec is not None and not rest and not folders and spec.origin is not None:
        paths = [Path(spec.origin)]
    if not paths:
        raise ImportError(f"{module} is not there as Python source")
    return _read_names(package, paths[0], paths[0].stat().st_mtime_ns)


@cache
def _read_names(package: str, file: Path, changed: int) -> _Names:
    """Return the names of a file as it was at that time."""
    return _Names(package, ast.parse(file.read_bytes()))
