"""Checks whether Python has cached bytecode of a package's modules, or compiles them again in every process."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def missing(package: str) -> tuple[str, ...]:
    """The names of a package's loaded modules that have no bytecode in a file, neither from an installer nor written by
    Python when it imported them: the folder cannot be written, or Python was told to write none."""
    names = []
    for name, module in sorted(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            cached = getattr(getattr(module, "__spec__", None), "cached", None)
            if cached is not None and not Path(cached).exists():
                names.append(name)
    return tuple(names)


def command(package: str) -> str:
    """The shell command that compiles all loaded modules of a package, for a user who may write to its folder."""
    [folder] = sys.modules[package].__path__
    return shlex.join([sys.executable, "-m", "compileall", "-q", folder])
