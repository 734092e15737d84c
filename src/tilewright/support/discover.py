"""Discovers modules by their location: all files of a package, or all of its subpackages that contain a module of a
certain name. So adding a folder requires no change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


@cache
def modules(package: str, name: str) -> tuple[ModuleType, ...]:
    """The modules called `name` of all subpackages of a package, in the order of the subpackages' names; they are
    imported now. Subpackages without such a module are skipped."""
    return tuple(import_module(f"{package}.{folder}.{name}") for folder in _folders(package, name))


def modules_beside(package: str, name: str, other: str) -> tuple[ModuleType, ...]:
    """`modules`, of those subpackages alone whose module `other` this process has imported."""
    beside = [folder for folder in _folders(package, name) if f"{package}.{folder}.{other}" in sys.modules]
    return tuple(import_module(f"{package}.{folder}.{name}") for folder in beside)


@cache
def _folders(package: str, name: str) -> tuple[str, ...]:
    """The names of all subpackages that have a module of this name, sorted."""
    folders = sorted(m.name for m in iter_modules(import_module(package).__path__) if m.ispkg)
    return tuple(folder for folder in folders if find_spec(f"{package}.{folder}.{name}") is not None)


def imported_later(path: str) -> Callable[..., Any]:
    """A function that calls the function at `path`, "module:name", and imports the module when it is first called."""
    module, _, name = path.partition(":")

    def call(*args: Any) -> Any:
        return getattr(import_module(module), name)(*args)

    return call


@cache
def members(package: str) -> tuple[ModuleType, ...]:
    """All modules of a package, in the order of their names; they are imported now."""
    return tuple(import_module(f"{package}.{m.name}") for m in iter_modules(import_module(package).__path__))
