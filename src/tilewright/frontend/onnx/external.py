"""External data of tensors: which other files a model file may refer to, and reading them.

A file may name any path, and its author need not be trusted: the path is checked after all links are resolved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the external data of a model may lie.

    Args:
        stated: the folder of the path that the caller gave: data may lie anywhere inside of it.
        real: the folder of the file that this path leads to through links, as in caches that keep all files under
            other names in one folder (Hugging Face's `blobs`). A link inside of `stated` may lead to a file in it, but
            not to one deeper inside.
    """

    stated: Path
    real: Path

    @classmethod
    def of(cls, model: Path) -> Folder:
        """The folders in which a model file's external data may lie."""
        return cls(model.parent, Path(os.path.realpath(model)).parent)

    def find(self, location: str, where: str) -> Path:
        """The regular file that `location` refers to, with all links resolved. Raises ModelError, about `where`, if it
        is missing or outside of the allowed folders."""
        relative = Path(location.replace("\\", "/"))
        if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts or relative.drive:
            raise ModelError("external data must lie in the model's folder", where=where, got=location)
        try:
            path = Path(os.path.realpath(self.stated / relative, strict=True))
        except OSError:  # nothing is there, or links lead in a circle
            raise ModelError("the file of external data is missing", where=where, got=location) from None
        if not path.is_relative_to(os.path.realpath(self.stated)) and path.parent != self.real:
            raise ModelError(
                "external data must not be a link to another place",
                where=where,
                expected="a file in the model's folder, or beside the file that the model is a link to",
                got=f"{location} -> {path}",
            )
        if not path.is_file():
            raise ModelError("the file of external data is missing", where=where, got=location)
        return path


def read_external(
    tensor: onnx.TensorProto, where: str, folder: Folder | Mapping[str, Any] | None, expected: int | None
) -> Any:
    """The bytes of a tensor in another file, memory-mapped; `expected` is their number where the tensor's type
    determines it. Raises ModelError.

    Args:
        folder: where files may lie, or the contents of files by their names.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(
            "the tensor's data is in another file, but the model was not read from a file", where=where, got=location
        )
    path = folder.find(location, where) if isinstance(folder, Folder) else None
    contents = memoryview(folder[location]).cast("B") if isinstance(folder, Mapping) else None
    size = path.stat().st_size if path is not None else len(contents or b"")
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or (size - offset if expected is None else expected))
    except ValueError:
        raise ModelError("the place of the tensor's external data is not a number", where=where) from None
    needed = length if expected is None else expected
    if offset < 0 or length < 0 or length != needed or offset + length > size:
        raise ModelError(
            "the tensor's external data does not fit its file",
            where=where,
            expected=f"{needed} bytes at {offset} within {size} of {location!r}",
            got=length,
        )
    if contents is not None:
        return contents[offset : offset + length]
    assert path is not None
    if not length:
        return b""
    if not os.access(path, os.R_OK):
        raise ModelError("the file of external data cannot be read", where=where, got=location)
    return np.memmap(path, np.uint8, "r", offset, (length,))


__all__ = ["Folder", "read_external"]
