"""The Python files of a package with their stat results, from which digests of source code are made: this package's are
listed once in a process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

Files = Sequence[tuple[str, os.stat_result]]
"""Python files of a package, by name relative to its folder, with their stat results."""

_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def python_files(root: str, folder: str = "") -> Files:
    """All Python files of the package at `root`, or those in one `folder` of it and below: "runtime/". Raises OSError
    where a folder cannot be read."""
    results: list[tuple[str, os.stat_result]] = []
    folders = [folder]
    for inner in folders:
        files, more = _entries(root, inner)
        results += files
        folders += more
    return results


@cache
def own_files() -> Files:
    """All Python files of this package."""
    files, folders = _entries(_PACKAGE, "")
    return [*files, *(file for folder in folders for file in own_files_in(folder))]


@cache
def own_files_in(folder: str) -> Files:
    """This package's Python files in a folder and below: "runtime/"."""
    return python_files(_PACKAGE, folder)


def _entries(root: str, inner: str) -> tuple[list[tuple[str, os.stat_result]], list[str]]:
    """The Python files right in a folder, and the folders in it."""
    files: list[tuple[str, os.stat_result]] = []
    folders: list[str] = []
    with os.scandir(f"{root}/{inner}") as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".py"):
                files.append((f"{inner}{name}", entry.stat()))
            elif name != "__pycache__" and entry.is_dir():
                folders.append(f"{inner}{name}/")
    return files, folders


__all__ = ["Files", "own_files", "own_files_in", "python_files"]
