"""Discovers modules by their location: all files of a package, or all of its subpackages that contain a module of a
certain name. So adding a folder requires no change elsewhere."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType


@cache
def modules(package: str, name: str) -> tuple[ModuleType, ...]:
    """The modules called `name` of all subpackages of a package, in the order of the subpackages' names; they are
    imported now. Subpackages without such a module are skipped."""
    folders = sorted(m.name for m in iter_modules(import_module(package).__path__) if m.ispkg)
    paths = (f"{package}.{folder}.{name}" for folder in folders)
    return tuple(import_module(path) for path in paths if find_spec(path) is not None)


@cache
def members(package: str) -> tuple[ModuleType, ...]:
    """All modules of a package, in the order of their names; they are imported now."""
    return tuple(import_module(f"{package}.{m.name}") for m in iter_modules(import_module(package).__path__))
