"""Positional encodings: a file for each family in `families`, and here what all of them rest on.

Interface of an encoding: base, declarations, options, sizes, terms. Positions: layout, layout_properties. Encodings
made of others: combine, merge. Within a model: stack, cache, memory, learning_rates. Making one: named, public,
hf_config. Beyond the training length: policies, policy_names. Shared by families: angles, distance_table, projection,
recomputed.

`from pe_lab.encodings import RoPE` and all other names of public.py, and `make`, which makes an encoding by its name.
They are imported when the first of them is used: `pe_lab.encodings.options` needs no torch, and neither does whoever
imports it alone. `pe_lab.encodings.rotary`, as conf/pe has it, is the module `pe_lab.encodings.families.rotary`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_lab.encodings.named import make as make
    from pe_lab.encodings.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name == "make":
        return import_module(f"{__name__}.named").make
    if name == "__all__":
        return [*import_module(f"{__name__}.public").__all__, "make"]
    if name[:1].isupper():  # otherwise it is a module of this package
        return getattr(import_module(f"{__name__}.public"), name)
    if name[0] != "_" and find_spec(f"{__name__}.families.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]


class _FamilyLoader(Loader):
    """Gives a family's module a second name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{__name__}.families.{spec.name.rpartition('.')[2]}")
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # in place of that of the second name


class _FamilyFinder(MetaPathFinder):
    """Finds the modules of families by the names without `families`; asked where there is no such module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        found = package == __name__ and find_spec(f"{__name__}.families.{name}")
        return ModuleSpec(fullname, _FamilyLoader()) if found else None


sys.meta_path.append(_FamilyFinder())
