"""The `.tw` file: manifest, object code, raw weights and texts, each a checked section of one file that can be mapped.

    0      magic (8), format version (u32), sections (u32), file size (u64), digest of this and the table (16), zeros
    64     the table: for each section its name (16), offset (u64), bytes (u64), digest (16), zeros (16)
    ...    the sections, each at a multiple of 64, zeros between them

The weights are a complete safetensors image; tensors named `__pad_N__` keep the others at multiples of 64 bytes, so
that they are used in place. A compressed file (`save(compressed=True)`) holds all of this coded (`runtime/coded.py`).
Every byte of the file is covered by a digest or must be zero. Reading executes nothing;
but a program is native code, so load only files whose origin you trust: digests find damage, not malice.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from tilewright.runtime.image import Buffer, indexed, json_object, pack, unpack
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.program import Program, Text
from tilewright.runtime.specs import ALIGNMENT
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import ArtifactError
from tilewright.support.files import replacing
from tilewright.support.options import check_path

MAGIC = b"TWMODEL\x1a"
"""The first bytes of a .tw file."""
FORMAT_VERSION = 1
"""Version of the file's format; others are refused."""

_HEADER = struct.Struct("<8sIIQ16s24x")
_ENTRY = struct.Struct("<16sQQ16s16x")
_MAX_SECTIONS = 64
"""The most sections that a file may have."""
_CHUNK = 4 << 20
"""Bytes that are written and digested at a time."""
_MAX_TEXT = 1 << 30
"""The most bytes of the manifest, and of the texts."""
_SECTIONS = ("manifest", "objects", "weights", "texts")

# -- writing -----------------------------------------------------------------------------------------------------------


def write(
    path: str | os.PathLike[str], program: Program, version: int, *, code_only: bool = False, compressed: bool = False
) -> None:
    """Write a program to a file, which appears whole or not at all.

    Args:
        version: of the weights, which `read` returns.
        code_only: leave out the weights that `Model.update` takes; the model's constants are kept.
        compressed: with weights compressed losslessly (`runtime/coded.py`); they are unpacked when the file is read.
    """
    parts = encode(program, version, code_only=code_only, compressed=compressed)
    try:
        with replacing(os.fspath(path)) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise ArtifactError(f"cannot be written: {error.strerror or error}", where=str(path)) from None


def encode(program: Program, version: int, *, code_only: bool = False, compressed: bool = False) -> list[Buffer]:
    """The bytes of the file of `program`, whose weights have the version `version`, in parts that follow each other;
    the arguments are as in `write`."""
    texts = {name: text() if callable(text) else text for name, text in program.texts.items()}
    extra = {"weights_version": version, "texts": sorted(texts)} | ({"code_only": True} if code_only else {})
    params = [p for p in program.manifest.params if p.fixed or not code_only]
    manifest, objects = program.manifest.to_json().encode(), list(pack_blobs(program.objects))
    if compressed:
        from tilewright.runtime import coded  # which loads LZMA

        extra["compressed"] = True
        manifest, objects = coded.squeeze(manifest), [coded.squeeze(b"".join(objects))]
        weights: list[Buffer] = [coded.encode(params, program.weights)]
    else:
        weights = list(pack(params, program.weights))
    sections: list[tuple[str, list[Buffer]]] = [
        ("manifest", [json.dumps(extra).encode(), b"\n", manifest]),
        ("objects", [*objects]),
        ("weights", weights),
        ("texts", [zlib.compress(json.dumps(texts).encode(), 1)]),
    ]
    offset = _round(_HEADER.size + len(sections) * _ENTRY.size)
    table = b""
    for name, parts in sections:
        nbytes = sum(_nbytes(p) for p in parts)
        table += _ENTRY.pack(name.encode(), offset, nbytes, _digest(name, parts))
        offset = _round(offset + nbytes)
    head = _HEADER.pack(MAGIC, FORMAT_VERSION, len(sections), offset, bytes(16))
    digest = blake2b(head + table, digest_size=16).digest()
    head = _HEADER.pack(MAGIC, FORMAT_VERSION, len(sections), offset, digest)
    everything: list[list[Buffer]] = [[head, table], *(parts for _, parts in sections)]
    return [piece for parts in everything for piece in (*parts, bytes(-sum(map(_nbytes, parts)) % ALIGNMENT))]


def pack_blobs(blobs: Mapping[str, bytes]) -> Iterator[bytes]:
    """Named byte strings as one, in parts: an index, then the strings one after another."""
    index = json.dumps({name: len(blob) for name, blob in blobs.items()}).encode()
    yield struct.pack("<Q", len(index))
    yield index
    yield from blobs.values()


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    offset: int
    nbytes: int
    digest: bytes


def read(path: str | os.PathLike[str], *, code_only: bool = False) -> tuple[Program, int]:
    """The program in a file and the version of its weights, which stay mapped. Raises ArtifactError for an invalid
    file.

    Args:
        code_only: accept a file without weights; the program's `weights` then holds the model's constants alone.
    """
    check_path(path, ArtifactError)
    where = str(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER.size:
                raise ArtifactError("not a .tw file, or one that was cut off", where=where, got=f"{size} bytes")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot be read: {error}", where=where) from None
    data = memoryview(mapped)
    return decode(data, where, code_only=code_only)


def leave_in_file(program: Program) -> None:
    """Release the memory pages of a program's weights that are mapped from its file; the next access reads them
    again."""
    for array in program.weights.values():
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        mapped = base.obj if isinstance(base, memoryview) else base
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
            return


def decode(data: memoryview, where: str, *, code_only: bool = False) -> tuple[Program, int]:
    """(the program in the bytes `data` of the file `where`, the version of its weights); weights remain views of
    `data`. `code_only` accepts a file without weights, and returns the model's constants alone. Raises ArtifactError
    for a damaged file."""
    if len(data) < _HEADER.size:
        raise ArtifactError("not a .tw file, or one that was cut off", where=where, got=f"{len(data)} bytes")
    try:
        return _parse(data, where, code_only)
    except ArtifactError as error:
        if error.where != where:
            error.where = f"{where}: {error.where}" if error.where else where
        raise


def _parse(data: memoryview, where: str, code_only: bool) -> tuple[Program, int]:
    sections = _check_file(data, where)
    manifest_bytes = bytes(sections["manifest"])
    first, _, rest = manifest_bytes.partition(b"\n")
    extra = json_object(first, "manifest")
    version, names = extra.get("weights_version"), extra.get("texts")
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise ArtifactError("the weights' version is not a number", where="manifest")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArtifactError("the texts' names are not a list", where="manifest")
    compressed = extra.get("compressed") is True
    if compressed:
        from tilewright.runtime import coded  # which loads LZMA

        rest = coded.expand(rest, _MAX_TEXT, "manifest")
    try:
        manifest = Manifest.from_json(rest.decode())
    except UnicodeDecodeError:
        raise ArtifactError("is not text", where="manifest") from None
    code = sections["objects"]
    objects = unpack_blobs(memoryview(coded.expand(code, _MAX_TEXT, "objects")) if compressed else code)
    bare = extra.get("code_only") is True
    if bare and not code_only:
        raise ArtifactError("holds code without weights", where=where, hint="`Model.save` writes both")
    params = [p for p in manifest.params if p.fixed or not bare]
    weights = (coded.decode if compressed else unpack)(params, sections["weights"])
    texts = _LazyTexts(sections["texts"]).by_name(names)
    return Program(manifest, objects, weights, texts, private=True), version


def _check_file(data: memoryview, where: str) -> dict[str, memoryview]:
    magic, version, count, size, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ArtifactError("not a .tw file", where=where, hint="tw.compile(path) compiles a model")
    end = _HEADER.size + count * _ENTRY.size
    if count > _MAX_SECTIONS or end > len(data):
        raise ArtifactError("the file is damaged or cut off (its table is not whole)", where=where)
    head = _HEADER.pack(magic, version, count, size, bytes(16)) + bytes(data[_HEADER.size : end])
    if blake2b(head, digest_size=16).digest() != digest or any(data[40 : _HEADER.size]):
        raise ArtifactError("the file is damaged (its header does not match its digest)", where=where)
    if version > FORMAT_VERSION:
        hint = "load it with the version of tilewright that wrote it, or a later one"
        raise ArtifactError(
            "written by a newer version", where=where, expected=f"format <= {FORMAT_VERSION}", got=version, hint=hint
        )
    if size != len(data):
        what = "the file is cut off" if size > len(data) else "the file has more bytes than it says"
        raise ArtifactError(what, where=where, expected=f"{size} bytes", got=len(data))
    table = [_section(_ENTRY.unpack_from(data, _HEADER.size + k * _ENTRY.size)) for k in range(count)]
    result: dict[str, memoryview] = {}
    for s in table:
        if s.offset != _round(end) or s.nbytes > size - s.offset:
            raise ArtifactError("the file is damaged (a section is out of place)", where=where, got=repr(s.name))
        result[s.name] = data[s.offset : s.offset + s.nbytes]
        if any(data[end : s.offset]) or _digest(s.name, [result[s.name]]) != s.digest:
            raise ArtifactError(f"the file is damaged (section {s.name!r} does not match its digest)", where=where)
        end = s.offset + s.nbytes
    missing = [name for name in _SECTIONS if name not in result]
    if _round(end) != size or any(data[end:]) or missing:
        raise ArtifactError("the file is damaged (sections are missing)", where=where, got=str(missing))
    return result


def _section(fields: tuple[bytes, int, int, bytes]) -> _Section:
    name, offset, nbytes, digest = fields
    return _Section(name.rstrip(b"\0").decode("ascii", "replace"), offset, nbytes, digest)


def unpack_blobs(data: memoryview) -> dict[str, bytes]:
    """The blobs that `pack_blobs` wrote; ArtifactError on anything else."""
    index, body = indexed(data, "objects")
    blobs, at = {}, 0
    for name, nbytes in index.items():
        if type(nbytes) is not int or not 0 <= nbytes <= len(body) - at:
            raise ArtifactError("an object is longer than the section", where=f"object {name!r}")
        blobs[name] = bytes(body[at : at + nbytes])
        at += nbytes
    return blobs


class _LazyTexts:
    """A mapping of texts that is unpacked at the first access."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._texts: dict[str, str] | None = None

    def by_name(self, names: Iterable[str]) -> dict[str, Text]:
        return {name: partial(self.get, name) for name in names}

    def get(self, name: str) -> str:
        if self._texts is None:
            unpacker = zlib.decompressobj()
            try:
                raw = unpacker.decompress(self._data, _MAX_TEXT)
            except zlib.error as error:
                raise ArtifactError(f"cannot be unpacked: {error}", where="texts") from None
            self._texts = {k: str(v) for k, v in json_object(raw, "texts").items()}
        return self._texts.get(name, "(the file holds no such text)")


# -- shared ------------------------------------------------------------------------------------------------------------


def _digest(name: str, parts: Iterable[Buffer]) -> bytes:
    """A tree digest of the section `name`, whose bytes are `parts`: BLAKE2 of the digests of chunks, which several
    threads compute if there are many. Chunks of weights are digested with CRC-32, which is several times faster and
    detects accidental damage as well; damaged weights are less dangerous than damaged code."""
    digest_chunk = _crc if name == "weights" else _hash
    chunks = list(_chunks(parts))
    if len(chunks) > 2:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            digests = list(threads.map(digest_chunk, chunks))
    else:
        digests = [digest_chunk(chunk) for chunk in chunks]
    length = sum(len(view) for chunk in chunks for view in chunk)
    return blake2b(length.to_bytes(8, "little") + b"".join(digests), digest_size=16).digest()


def _hash(parts: list[memoryview]) -> bytes:
    h = blake2b(digest_size=32)
    for part in parts:
        h.update(part)
    return h.digest()


def _crc(parts: list[memoryview]) -> bytes:
    total = 0
    for part in parts:
        total = zlib.crc32(part, total)
    return total.to_bytes(4, "little")


def _chunks(parts: Iterable[Buffer]) -> Iterator[list[memoryview]]:
    """The concatenation of `parts` cut into pieces of `_CHUNK` bytes; each piece is a list of views."""
    chunk: list[memoryview] = []
    room = _CHUNK
    for part in parts:
        # An empty array has no view that could be cast.
        view = memoryview(part).cast("B") if _nbytes(part) else memoryview(b"")  # type: ignore[arg-type]
        while len(view):
            chunk.append(view[:room])
            selected = min(room, len(view))
            view, room = view[selected:], room - selected
            if room == 0:
                yield chunk
                chunk, room = [], _CHUNK
    if chunk:
        yield chunk


def _nbytes(part: Buffer) -> int:
    return len(part) if isinstance(part, bytes) else part.nbytes


def _round(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
