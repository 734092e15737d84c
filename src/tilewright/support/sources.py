"""The Python files of a package with their marks, from which digests of source code are made: this package's are listed
once in a process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

Mark = tuple[int, int, int, int, int]
"""A file's size in bytes, its times of modification and of the inode's last change in nanoseconds, inode and device.
Collections of garbage leave tuples of numbers out, but not stat results."""
Files = Sequence[tuple[str, Mark]]
"""Python files of a package, by name relative to its folder, with their marks."""
SIZE, CHANGED = 0, 2
"""Where a mark has the size and the time of the last change."""

_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def python_files(root: str, folder: str = "") -> Files:
    """All Python files of the package at `root`, or those in one `folder` of it and below: "runtime/". Raises OSError
    where a folder cannot be read."""
    results: list[tuple[str, Mark]] = []
    folders = [folder]
    for inner in folders:
        files, more = _entries(root, inner)
        results += files
        folders += more
    return results


@cache
def own_files() -> Files:
    """All Python files of this package, as (path in the package, mark of its state); they are looked up once in a
    process."""
    files, folders = _entries(_PACKAGE, "")
    return [*files, *(file for folder in folders for file in own_files_in(folder))]


@cache
def own_files_in(folder: str) -> Files:
    """The Python files of this package in `folder`, such as "runtime/", and below, as (path in the package, mark of its
    state)."""
    return python_files(_PACKAGE, folder)


def _entries(root: str, inner: str) -> tuple[list[tuple[str, Mark]], list[str]]:
    """The Python files directly in the folder `inner` of `root`, as (path in `root`, mark of its state), and the paths
    of its subfolders."""
    files: list[tuple[str, Mark]] = []
    folders: list[str] = []
    with os.scandir(f"{root}/{inner}") as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".py"):
                i = entry.stat()
                files.append((f"{inner}{name}", (i.st_size, i.st_mtime_ns, i.st_ctime_ns, i.st_ino, i.st_dev)))
            elif name != "__pycache__" and entry.is_dir():
                folders.append(f"{inner}{name}/")
    return files, folders


__all__ = ["CHANGED", "SIZE", "Files", "own_files", "own_files_in", "python_files"]
