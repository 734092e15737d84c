"""Model files that were compiled before: their programs are found by the files' bytes, without reading their nodes.

The result of importing an ONNX file only depends on its bytes, on the sizes that the caller states, and on the source
of this package, ONNX and NumPy. So the cache has an entry for a file with the key of its program (`programs.py`), and
with the names of the tensors that are the program's weights. It is looked up by the file's size, so that only files of
a known size are read for it, and is valid if it holds the file's digest. Files whose tensors lie in other files have no
entry, as those may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.left import WALKED, initial_array
from tilewright.identity import import_version
from tilewright.ir.dim import DimSizes
from tilewright.runtime.artifact import pack_blobs, unpack_blobs
from tilewright.support import flags, plugins
from tilewright.support.cache import ObjectCache
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import Error

Array = np.ndarray[Any, Any]
LARGEST = WALKED
"""Files from this many bytes on are always imported: their elements stay in the file until they are packed, which takes
longer than importing their nodes."""
NODE = 1 << 15
"""The number of bytes whose digest takes as long as the import of a node, 30 us on a Zen 5 (2026-11-30): for files with
more bytes for each node, an import is as quick."""
DERIVED = 1 << 20
"""The most bytes of weights computed by the import that an entry may have."""


@dataclass(frozen=True, slots=True)
class Known:
    """A model file that was compiled before: its bytes, the key of its program (`programs.Source`), and its
    parameters."""

    data: bytes
    workload: str
    weights: Mapping[str, Array]

    def model(self) -> onnx.ModelProto:
        """The file's model, which texts are made from; the file itself may have changed or gone since."""
        return onnx.ModelProto.FromString(self.data)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of an ONNX model, and the key of its entry for the sizes and the name that the caller states."""

    path: Path
    key: str

    @staticmethod
    def of(path: Path, dims: DimSizes | None, name: str | None) -> ModelFile | None:
        """The entry of the cache for the file at `path` as a model called `name`; None for large files, where there is
        no file, and if the cache is off."""
        if not flags.CACHE():
            return None
        try:
            size = path.stat().st_size
        except OSError:
            return None
        if size >= LARGEST:
            return None
        stated = [size, repr(dims or {}), name]
        inputs = json.dumps([*stated, import_version(), onnx.__version__, np.__version__, plugins.digests()])
        return ModelFile(path, f"file-{blake2b(inputs.encode(), digest_size=16).hexdigest()}")

    def known(self) -> Known | None:
        """The stored entry, if it is for the present contents of the file; else None."""
        entry = ObjectCache().get(self.key)
        if entry is None:
            return None
        try:
            blobs = unpack_blobs(memoryview(entry))
            about = json.loads(blobs["about"])
            data = self.path.read_bytes()
            if _digest(data) != about["digest"]:
                return None
            tensors = onnx.ModelProto.FromString(data).graph.initializer
            weights = {tensors[k].name: initial_array(tensors[k], self.path.name, None) for k in about["tensors"]}
            for k, (name, kind, shape) in enumerate(about["derived"]):
                weights[name] = np.frombuffer(blobs[f"derived {k}"], np.dtype(kind)).reshape(shape)
            return Known(data, about["workload"], weights)
        except (Error, OSError, KeyError, IndexError, TypeError, ValueError):
            return None  # by another version; it will be replaced

    @staticmethod
    def wants(data: bytes, nodes: int) -> bool:
        """Whether to store an entry for a file with these bytes: it refers to no other files, and has so many nodes
        that importing it takes longer than a digest of the bytes."""
        return 0 < len(data) <= NODE * nodes and b"location" not in data

    def put(self, data: bytes, workload: str, weights: Mapping[str, Array]) -> None:
        """Keep the workload and the weights that these bytes of the file gave."""
        tensors: dict[str, int] = {}
        for k, tensor in enumerate(onnx.ModelProto.FromString(data).graph.initializer):
            if tensor.name in weights and _same(initial_array(tensor, self.path.name, None), weights[tensor.name]):
                tensors[tensor.name] = k
        derived = {name: np.asarray(a) for name, a in weights.items() if name not in tensors}
        storable = all(a.dtype.kind in "biuf" for a in derived.values())
        if not storable or sum(a.nbytes for a in derived.values()) > DERIVED:
            return
        about = {
            "digest": _digest(data),
            "workload": workload,
            "tensors": list(tensors.values()),
            "derived": [(name, a.dtype.str, a.shape) for name, a in derived.items()],
        }
        # Numbered, for a file may call a constant "about".
        arrays = {f"derived {k}": a.tobytes() for k, a in enumerate(derived.values())}
        blobs = {"about": json.dumps(about).encode()} | arrays
        ObjectCache().put(self.key, b"".join(pack_blobs(blobs)))


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=32).hexdigest()


def _same(a: Array, b: Array) -> bool:
    """Whether the arrays `a` and `b` have the same type, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


__all__ = ["Known", "ModelFile"]
