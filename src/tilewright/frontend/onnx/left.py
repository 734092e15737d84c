"""A model file parsed without the elements of its large tensors, which are read later, directly into their final
memory.

Parsers of protocol buffers copy: a file's bytes are read, its messages hold them again, and weights are copied once
more to aligned memory. Here the file is walked field by field (tag, length, bytes: the wire format of protocol
buffers), the `raw_data` of large initializers is skipped, and the rest is small enough to parse. The file stays open,
so that replacing it meanwhile changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from io import SEEK_END, BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.external import Folder
from tilewright.frontend.onnx.tensors import to_array
from tilewright.runtime.layout import aligned_bytes, aligned_copy
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError

LARGE = 1 << 20
"""Tensors of this many bytes or more stay in the file until they are read to their final memory, so that they are never
copied."""
WALKED = 16 * LARGE
"""Files of this many bytes or more are walked field by field; smaller ones are parsed whole."""

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_NAME = onnx.TensorProto.NAME_FIELD_NUMBER
_RAW = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of the wire types of fixed size."""
_LONGEST = 10
"""The most bytes of a number of variable length (varint)."""


def transposed_copy(array: Any) -> Any:
    """A matrix's transpose, in aligned memory like all weights."""
    return aligned_copy(array.T) if array.nbytes >= LARGE else array.T.copy()


def initial_array(tensor: onnx.TensorProto, where: str, folder: Folder | None, raw: Any = None) -> Any:
    """The elements of `tensor`, from `raw` if they were left in the file, as an array whose memory a model can hold.
    Raises ModelError."""
    array = to_array(tensor, where, folder, raw)
    stays = array.nbytes < LARGE or (raw is not None and np.may_share_memory(array, raw))
    return array if stays else aligned_copy(array)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its number and wire type, where it begins (with its tag), where its value does, and where
    it ends, in bytes of the file."""

    number: int
    wire: int
    start: int
    value: int
    end: int


class Irregular(Exception):
    """The file uses an unusual encoding, so that the ordinary parser of protocol buffers has to read it."""


class Left:
    """The large tensors that were left in a file."""

    def __init__(self, path: Path) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        """By tensor's name, the offset of its elements in the file, and how many bytes they take."""
        self._file: BufferedReader | BytesIO = path.open("rb")
        if not self._file.seekable():  # A pipe is read once, from its beginning.
            with self._file as pipe:
                self._file = BytesIO(pipe.read())
        self.size = self._file.seek(0, SEEK_END)
        """The file's size in bytes."""

    def close(self) -> None:
        """Close the file; its tensors cannot be read afterwards."""
        self._file.close()

    def whole(self) -> bytes:
        """The bytes of the whole file, with the tensors that were left in it."""
        return self._bytes(0, self.size)

    def rest(self) -> bytes | None:
        """The model's message without the elements of large initializers. None for unusual encodings (groups, a tensor
        with two `raw_data`, a name used twice), which the ordinary parser must read whole."""
        try:
            return self._message(0, self.size, {_GRAPH: self._graph})
        except (Irregular, UnicodeDecodeError):
            self.places.clear()
            return None

    def read(self, name: str, where: str) -> Any:
        """The bytes of the tensor `name`, read from the file into aligned memory of their own. Raises ModelError, about
        `where`, if they are gone."""
        offset, length = self.places[name]
        memory = aligned_bytes(length)[:length]
        self._file.seek(offset)
        if self._file.readinto(memory.data) != length:
            raise ModelError("the file became shorter while it was read", where=where)
        memory.flags.writeable = False
        return memory

    def _graph(self, start: int, end: int) -> bytes:
        return self._message(start, end, {_INITIALIZER: self._tensor})

    def _tensor(self, start: int, end: int) -> bytes:
        """The bytes of one tensor's message, at `start` to `end`. If its elements are many, they are left out, and
        their place in the file is recorded."""
        fields = list(self._fields(start, end)) if end - start >= LARGE else []
        raw = [f for f in fields if f.number == _RAW]
        if all(f.end - f.value < LARGE for f in raw):
            return self._bytes(start, end)
        names = [self._bytes(f.value, f.end).decode() for f in fields if f.number == _NAME]
        if len(raw) != 1 or len(names) != 1 or names[0] in self.places:
            raise Irregular
        self.places[names[0]] = raw[0].value, raw[0].end - raw[0].value
        return b"".join(self._bytes(f.start, f.end) for f in fields if f is not raw[0])

    def _message(self, start: int, end: int, inner: Mapping[int, Callable[[int, int], bytes]]) -> bytes:
        """The bytes of a message at `start` to `end`, in which each field whose number is in `inner` is replaced by the
        result of its function."""
        parts: list[bytes] = []
        for f in self._fields(start, end):
            if f.wire == _BYTES and f.number in inner:
                body = inner[f.number](f.value, f.end)
                parts += _number(f.number << 3 | _BYTES), _number(len(body)), body
            else:
                parts.append(self._bytes(f.start, f.end))
        return b"".join(parts)

    def _fields(self, start: int, end: int) -> Iterator[Field]:
        while start < end:
            self._file.seek(start)
            tag = self._varint()
            wire = tag & 7
            length = self._varint() if wire in (_VARINT, _BYTES) else _FIXED.get(wire)
            if length is None:
                raise Irregular
            value = self._file.tell()
            stop = value if wire == _VARINT else value + length
            if stop > end:
                raise Irregular
            yield Field(tag >> 3, wire, start, value, stop)
            start = stop

    def _varint(self) -> int:
        value = 0
        for k in range(_LONGEST):
            byte = self._file.read(1)
            if not byte:
                break
            value |= (byte[0] & 127) << 7 * k
            if byte[0] < 128:
                return value
        raise Irregular

    def _bytes(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        result = self._file.read(end - start)
        if len(result) != end - start:
            raise Irregular
        return result


def _number(value: int) -> bytes:
    """A number as protocol buffers write it: seven bits a byte, the lowest first."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
