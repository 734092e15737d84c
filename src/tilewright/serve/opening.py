"""Opens models from files and stores for serving."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilewright
from tilewright.serve.catalogue import check_name
from tilewright.serve.errors import ServeError
from tilewright.serve.models import MAX_BATCH, Runnable, Served

SUFFIXES = (".onnx", ".tw")


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a model's version.

    Args:
        path: a file; None: a weight store of this name.
        dims: sizes of open dimensions, as `tw.compile` takes them.
        share: of the requests that name no version; below 1 it is a canary.
    """

    name: str
    version: str = "1"
    path: Path | None = None
    store: str = ""
    promise: float | None = None
    max_batch: int = MAX_BATCH
    threads: int = 1
    dims: Mapping[str, Any] | None = None
    share: float = 1.0


def open_source(source: Source) -> Served:
    """Compile, load or attach to a model, and time its first batches. Raises the errors of these steps."""
    return served(source, load(source))


def load(source: Source) -> Runnable:
    """The object that a source's calls go to. Raises the errors of compiling, loading and attaching."""
    if source.path is None:
        return tilewright.attach(source.store, source.threads, timeout=5.0)
    if source.path.suffix == ".tw":
        return tilewright.load(source.path, source.threads)
    program = tilewright.compile_program(source.path, threads=source.threads, dims=dict(source.dims or {}))
    return tilewright.Model(program, source.threads)


def served(source: Source, runner: Runnable) -> Served:
    """A runner as a served version, after timing its first batches."""
    created = Served(
        source.name, source.version, runner,
        promise=source.promise, max_batch=source.max_batch, source=str(source.path or source.store),
    )  # fmt: skip
    created.warm()
    return created


def of_file(path: Path, **options: Any) -> Source:
    """The source for a file, whose stem is the model's name. Raises ServeError for other kinds of files."""
    if path.suffix not in SUFFIXES:
        raise ServeError("is no model", where=str(path), expected=" or ".join(SUFFIXES))
    return Source(check_name(path.stem), path=path, **options)


def in_folder(folder: Path, **options: Any) -> Iterator[Source]:
    """The models of a folder: files `NAME.onnx`, and folders of versions, `NAME/1/model.onnx`, as Triton has them."""
    if not folder.is_dir():
        raise ServeError("there is no such folder", where=str(folder))
    for path in sorted(folder.iterdir()):
        if path.suffix in SUFFIXES and path.is_file():
            yield of_file(path, **options)
        elif path.is_dir():
            yield from _versions(path, options)


def _versions(folder: Path, options: Mapping[str, Any]) -> Iterator[Source]:
    for version in sorted(folder.iterdir()):
        if not re.fullmatch(r"[0-9]{1,18}", version.name):
            continue
        files = [p for p in sorted(version.iterdir()) if p.suffix in SUFFIXES]
        if len(files) == 1:
            yield Source(check_name(folder.name), version.name, files[0], **options)


__all__ = ["SUFFIXES", "Source", "in_folder", "load", "of_file", "open_source", "served"]
