"""The identity of a group of the config: data to hash that determine the object which the group describes.

A class of this package is identified by its name and `revision`. A class of a user has no trusted revision, so it is
identified by its import path and a digest of its source: after an edit, its cells are trained again.
"""

import ast
import builtins
import hashlib
import inspect
import linecache
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hydra.utils import get_class, get_object
from omegaconf import DictConfig, OmegaConf

from pe_lab.config import resolve_config
from pe_lab.config.parts import is_encoding
from pe_lab.encodings.options import Revised

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OF_INSTALLED = {"site-packages", "dist-packages"}  # also of the system's Python, below a virtual environment
_OURS = __name__.partition(".")[0]
_KNOWN = ("torch", "lightning")


def identity_options(leaf: DictConfig, implementation: type[Revised]) -> dict[str, Any]:
    """Return a group of the config as it enters the identity: its options and its class's revision.

    Import paths of this package are left out, and so are options added later that have their neutral value. For other
    classes, import path and source are included: see `source_digests`. Encodings within an encoding are treated alike.

    Args:
        implementation: the class that the group makes, with `revision` and `neutral`.

    Raises:
        ValueError: the source of a class cannot be read.
    """
    settings = {key: value for key, value in resolve_config(leaf).items() if key[0] != "_"}
    neutral = implementation.neutral
    options = {key: value for key, value in settings.items() if key not in neutral or value != neutral[key]}
    for key in options:
        if is_encoding(leaf[key]):
            options[key] = identity_options(leaf[key], get_class(leaf[key]._target_))
        elif OmegaConf.is_list(leaf[key]) and any(map(is_encoding, leaf[key])):
            options[key] = [identity_options(part, get_class(part._target_)) for part in leaf[key]]
    target = leaf.get("_target_")
    default = getattr(implementation, "defaults", {}).get(leaf.get("name"))
    makers = [] if target in (None, default) else [get_object(target)]  # the class, or a function that makes one
    return options | {"revision": implementation.revision} | source_digests(implementation, *makers)


def source_digests(*makers: Callable[..., Any]) -> dict[str, str]:
    """Return import paths and source digests of classes and functions of users, for an identity.

    The digest covers the files that define these classes and their base classes, and all files that those import, also
    within functions. Of installed packages, only the package of the class is included. For a class in a notebook, the
    digest covers its definition and everything that the definition refers to.

    Returns:
        A dict with "class", import paths, and "source", 16 hexadecimal digits (not for classes of torch and lightning);
        or an empty dict.

    Raises:
        ValueError: a source cannot be read, or has changed since it was imported.
    """
    foreign = {
        f"{maker.__module__}.{maker.__qualname__}": maker
        for maker in makers
        if _package_name(maker.__module__) != _OURS
    }
    if not foreign:
        return {}
    read = [maker for maker in foreign.values() if _package_name(maker.__module__) not in _KNOWN]
    if not read:
        return {"class": " ".join(foreign)}
    digests = {hashlib.sha256(text).hexdigest() for maker in read for text in _Reader(maker).texts()}
    return {"class": " ".join(foreign), "source": hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]}


def _package_name(name: str) -> str:
    return name.partition(".")[0]


def _is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED) or not _OF_INSTALLED.isdisjoint(Path(file).parts)


class _Reader:
    """Reads the source that a class or function depends on.

    Args:
        maker: the class or function.
    """

    def __init__(self, maker: Callable[..., Any]) -> None:
        self.path = f"{maker.__module__}.{maker.__qualname__}"
        self.package = _package_name(maker.__module__)
        self.waiting: list[Any] = [maker]

    def texts(self) -> Iterator[bytes]:
        """Yield every text once: files of modules, notebook cells and the values that they refer to."""
        seen: set[int | str] = set()
        while self.waiting:
            item = self.waiting.pop()
            key = item.name if isinstance(item, ModuleSpec) else id(item)
            if key in seen or not self._is_users(item):
                continue
            seen.add(key)
            if isinstance(item, (ModuleType, ModuleSpec)):
                yield from self._module_texts(item)
                continue
            if isinstance(item, type):
                self.waiting += item.__mro__
            if _stands_in_file(item):
                _require_unchanged(item)
                self.waiting.append(sys.modules[item.__module__])
            else:
                yield from self._notebook_texts(item)

    def _is_users(self, item: Any) -> bool:
        """Return whether this is a module, class or function of the user, or of the package that is asked about."""
        if isinstance(item, ModuleSpec):
            return (
                item.has_location and _package_name(item.name) != _OURS and self._is_read(item.name, str(item.origin))
            )
        if not isinstance(item, (ModuleType, type, FunctionType)):
            return False
        name = item.__name__ if isinstance(item, ModuleType) else item.__module__
        if _package_name(name) in (_OURS, builtins.__name__):
            return False
        if name == "__main__":
            return True
        file = getattr(sys.modules.get(name), "__file__", None)
        return file is not None and self._is_read(name, file)

    def _is_read(self, name: str, file: str) -> bool:
        """Return whether the file of a module is the user's, or of the package that is asked about."""
        return _package_name(name) == self.package or not _is_installed(file)

    def _module_texts(self, module: ModuleType | ModuleSpec) -> Iterator[bytes]:
        if isinstance(module, ModuleSpec):
            if str(module.origin).endswith(".py"):
                text = Path(str(module.origin)).read_bytes()
                with suppress(SyntaxError, ImportError):  # it may never be imported
                    self._queue_imports(ast.parse(text), module.parent or "")
                yield text
            return
        file = getattr(module, "__file__", None) or ""
        if not file.endswith(".py"):
            if module.__name__ == self.path.rpartition(".")[0]:
                raise ValueError(f"_target_ must have source code in Python, got {self.path} from {file}")
            return
        text = Path(file).read_bytes()
        self._queue_imports(ast.parse(text), module.__package__ or "")
        yield text

    def _queue_imports(self, tree: ast.AST, package: str) -> None:
        """Queue the modules that a text imports, at once or in its functions: also those that are not loaded yet."""
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (package or not node.level):
                base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
                names = [str(base), *(f"{base}.{alias.name}" for alias in node.names)]
            for name in names:
                self.waiting += _module_and_parents(name)

    def _notebook_texts(self, item: Any) -> Iterator[bytes]:
        """Yield the notebook cells that define a class or function, and the values that it refers to."""
        functions = _functions_of(item)
        cells = {function.__code__.co_filename for function in functions}
        texts = {name: "".join(linecache.getlines(name)) for name in sorted(cells)}
        if not any(texts.values()):
            raise ValueError(f"_target_ must have source code that can be read, got {self.path}: put it into a module")
        namespace = functions[0].__globals__
        for text in texts.values():
            tree = _find_definition(ast.parse(text), item.__qualname__)
            yield ast.unparse(tree).encode()
            self._queue_imports(tree, "")
            read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
            for name in sorted(read & namespace.keys()):
                if isinstance(namespace[name], (ModuleType, type, FunctionType)):
                    self.waiting.append(namespace[name])
                else:
                    yield f"{name}=".encode() + self._pickle_value(name, namespace[name])

    def _pickle_value(self, name: str, value: Any) -> bytes:
        try:
            return pickle.dumps(value, protocol=4)
        except Exception:
            raise ValueError(
                f"_target_ must rest on values that can be digested, got {self.path}, which refers to {name}: put it "
                f"into a module"
            ) from None


def _module_and_parents(name: str) -> Iterator[ModuleType | ModuleSpec]:
    """Yield the module of a name and its parents; of those that are not loaded the specs. Nothing is imported."""
    parts = name.split(".")
    path: Any = None  # where parts of a package are
    for end in range(1, len(parts) + 1):
        parent = ".".join(parts[:end])
        module = sys.modules.get(parent)
        if module is not None:
            path = getattr(module, "__path__", None)
            yield module
            continue
        spec = find_spec(parent) if end == 1 else path and PathFinder.find_spec(parent, path)
        if not spec:
            path = None
            continue
        path = spec.submodule_search_locations
        yield spec


def _stands_in_file(item: Any) -> bool:
    """Return whether a class or function is defined in the file of its module, and not in a notebook cell."""
    module: Any = sys.modules.get(item.__module__)
    if getattr(module, "__file__", None) is None:
        return False
    member = module
    for part in item.__qualname__.split("."):
        member = getattr(member, part, None)
    return member is item or module.__name__ != "__main__"


def _find_definition(tree: ast.Module, qualname: str) -> ast.AST:
    """Return the part of a notebook cell that defines a class or function; all of it if it is not found."""
    named = [node for node in tree.body if getattr(node, "name", None) == qualname.partition(".")[0]]
    return named[-1] if named else tree


def _functions_of(item: Any) -> list[FunctionType]:
    """Return the functions that a class defines, or the function itself."""
    members = vars(item).values() if isinstance(item, type) else [item]
    parts = [(member, *(getattr(member, name, None) for name in ("__func__", "fget", "fset"))) for member in members]
    functions = [inspect.unwrap(part) for candidates in parts for part in candidates if isinstance(part, FunctionType)]
    return [function for function in functions if isinstance(function, FunctionType)]


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _require_unchanged(item: Any) -> None:
    """Raise ValueError if functions that are loaded are not those of their file."""
    file = str(sys.modules[item.__module__].__file__)
    loaded = [function.__code__ for function in _functions_of(item) if function.__code__.co_filename == file]
    if not loaded:
        return
    written = set(_nested_codes(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)))
    if not written.issuperset(loaded):
        raise ValueError(
            f"{item.__module__}.{item.__qualname__} must be what {file} says, got one that was imported before the "
            f"file changed: start Python anew"
        )
