"""Keys of cached objects and programs: everything that they depend on, put together in one place.

The compiler's output depends on these inputs and on nothing else:

    workload     what is compiled: the key of an unscheduled function, an entry's text, a graph's key with its names
    target       the machine: `Target.fingerprint`
    options      of the user: precision, fast convolutions
    decisions    forced ones, where a search wants another choice than the estimates'
    extensions   digests of code from outside this package that takes part
    sketches     where schedules made by rules are offered, TILEWRIGHT_SKETCHES
    compiler     this package's own source, `code_version`
    llvm         `llvm_version`

A new input of the compiler is added here; objects that were cached without it are then no longer found.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from tilewright.support import flags
from tilewright.support.cache import ObjectCache
from tilewright.support.digest import blake2b
from tilewright.support.sources import CHANGED, SIZE, Files, own_files, python_files
from tilewright.targets.target import Target

UNRELATED = (
    *("bundle", "cli", "collective", "compression", "dynamo", "engine", "farm", "frontend", "functions", "live"),
    *(
        "measure",
        "native",
        "onnxruntime",
        "ort",
        "parts",
        "quantization",
        "records",
        "rl",
        "runtime",
        "serve",
        "support",
    ),
    *("train", "tuning"),
)
"""Folders whose text does not change what is made of a graph for a target: what they find out (a graph, a machine's
ceilings, which records answer) is in the key itself."""
RELATED = (
    "native/text.py",
    "native/toolchain.py",
    "runtime/arena.py",
    "runtime/artifact.py",
    "runtime/consistent.py",
    "runtime/manifest.py",
    "runtime/limits.py",
    "runtime/recorded.py",
    "runtime/schema.py",
    "runtime/specs.py",
)
"""The folders on which objects depend: how LLVM text is written and becomes an object, how a kept program is written,
which temporaries share memory, and the ABI that objects are made for."""


def identity(
    workload: str,
    target: Target,
    *,
    options: str = "",
    decisions: Sequence[str] = (),
    extensions: Sequence[str] = (),
) -> str:
    """The key of a kernel in the cache of objects: 32 hexadecimal digits that differ if `workload` (the kernel's text),
    `target`, `options`, `decisions`, `extensions`, the compiler, LLVM or the flag `TILEWRIGHT_SKETCHES` differs."""
    inputs = {
        "workload": workload,
        "target": target.fingerprint,
        "options": options,
        "decisions": list(decisions),
        "extensions": list(extensions),
        "sketches": flags.SKETCHES(),
        "compiler": code_version(),
        "llvm": llvm_version(),
    }
    return blake2b(json.dumps(inputs).encode(), digest_size=16).hexdigest()


@cache
def code_version() -> str:
    """A digest of the compiler's own source: objects compiled by another version are not found."""
    return stored_digest(Path(__file__).parent, UNRELATED, own_files())


@cache
def import_version() -> str:
    """A digest of all of this package's source files, by which cached imports of model files become stale if one
    changes; the files are not read (`marked_digest`)."""
    return marked_digest(Path(__file__).parent, own_files())


def stored_digest(root: Path, unrelated: Collection[str] = UNRELATED, files: Files | None = None) -> str:
    """`source_digest` of the Python files in `root` (or `files`) without the folders `unrelated`, cached by the files'
    names, sizes, times and inodes, so that they are read only when one of them has changed.

    Python itself decides by a file's size and time of modification whether a module's byte code is current. Here the
    time of the inode's last change counts too, which no program can set; if one is at most a few seconds old, all files
    are read.
    """
    files = python_files(str(root)) if files is None else files
    marks = _marks_digest(_counted(files, unrelated))
    if marks is None:
        return source_digest(root, unrelated, files)
    store, name = ObjectCache(), f"source-{marks}"
    digest = (store.get(name) or b"").decode("ascii", "replace")
    if re.fullmatch("[0-9a-f]{32}", digest):
        return digest
    digest = source_digest(root, unrelated, files)
    store.put(name, digest.encode())
    return digest


def marked_digest(root: Path, files: Files | None = None) -> str:
    """A digest of the `files` of the package at `root` by their names, sizes, times and inodes, without reading them;
    so two installations of the same source have different digests. If a file changed in the last seconds, a digest of
    the files' contents."""
    files = python_files(str(root)) if files is None else files
    return _marks_digest(files) or source_digest(root, (), files)


def _marks_digest(files: Files) -> str | None:
    """A digest of the names, sizes, times and inodes of `files`; None if one changed in the last seconds, since a
    further change might leave all of these equal."""
    if max(mark[CHANGED] for _, mark in files) > time.time_ns() - _RECENT:
        return None
    return blake2b(repr(sorted(files)).encode(), digest_size=16).hexdigest()


_RECENT = 2_000_000_000
"""Age in nanoseconds from which a change of a file has another time than the next: file systems count it in steps."""


@cache
def llvm_version() -> str:
    """LLVM's version and llvmlite's, which calls it: others may give other objects for the same text."""
    return f"LLVM {'.'.join(map(str, llvm.llvm_version_info))}, llvmlite {llvmlite.__version__}"


def source_digest(root: Path, unrelated: Collection[str] = UNRELATED, files: Files | None = None) -> str:
    """A digest of the names and contents of the Python files of the package in the folder `root` (or of `files`),
    without the folders in `unrelated` but with `RELATED`."""
    digest = blake2b(digest_size=16)
    counted = _counted(python_files(str(root)) if files is None else files, unrelated)
    for name, mark in sorted(counted, key=lambda file: file[0].split("/")):
        text = _content(f"{root}/{name}", mark[SIZE])
        digest.update(f"{name} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()


def _content(path: str, size: int) -> bytes:
    """The bytes of a file that had `size` of them. A file object takes twice as long for a file of a few KiB."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        text = os.read(handle, size + 1)
    finally:
        os.close(handle)
    if len(text) != size:  # it has changed meanwhile, or a read has been interrupted
        with open(path, "rb") as file:
            text = file.read()
    return text


def _counted(files: Files, unrelated: Collection[str]) -> Files:
    """The files that are digested: those outside of the folders in `unrelated`, and `RELATED`."""
    if not unrelated:
        return files
    first = ((name.partition("/"), name, i) for name, i in files)
    return [(name, i) for (top, sep, _), name, i in first if not sep or top not in unrelated or name in RELATED]
