"""Modules that are known by their place: whatever file of a package, or folder of it that has a file of a certain name,
takes part.

A list of them elsewhere would be a second file to change with each new folder.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType


@cache
def modules(package: str, name: str) -> tuple[ModuleType, ...]:
    """The modules called `name` of all subpackages of a package, in the order of the subpackages' names; they are
    imported now. A subpackage without such a module has no part in this."""
    folders = sorted(m.name for m in iter_modules(import_module(package).__path__) if m.ispkg)
    paths = (f"{package}.{folder}.{name}" for folder in folders)
    return tuple(import_module(path) for path in paths if find_spec(path) is not None)


@cache
def members(package: str) -> tuple[ModuleType, ...]:
    """All modules of a package, in the order of their names; they are imported now."""
    return tuple(import_module(f"{package}.{m.name}") for m in iter_modules(import_module(package).__path__))
