"""Requests from callers on this machine: a Unix socket carries short messages, and shared memory the tensors.

A client sends the file of a memory (`memfd_create`) along with its first message; it must be sealed against shrinking,
so that no client can take away memory that the server reads. Messages are fixed structs after a length:

    hello   client: model and version as JSON, and the file; server: inputs and outputs as JSON, or an error
    call    client: number, timeout, and for each input its offset and shape; where outputs may go
            server: number, status, versions, and for each output its offset and shape; or an error as JSON

Inputs are copied to their batch before they are looked at: a client may write at any time, and values decide what
kernels read.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.serve.errors import ServeError
from tilewright.serve.models import Served
from tilewright.serve.protocol.frames import (
    ALIGNMENT,
    CALL,
    F_GET_SEALS,
    F_SEAL_SHRINK,
    LENGTH,
    MAX_MESSAGE,
    REPLY,
    TENSOR,
    json_object,
)
from tilewright.serve.protocol.routes import Site
from tilewright.serve.requests import Answer, Request
from tilewright.serve.tensors import MAX_RANK, Array, count, numpy_dtype
from tilewright.serve.tokens import Scope

MAX_MEMORY = 1 << 32
_PART = 8192
"""Bytes that are read at once: allocating a much larger buffer would take longer than filling it."""
_KNOWN = 64
"""The most call signatures that a session stores."""
_NUMBER = struct.Struct("<Q")


class LocalServer:
    """A server at a path, which only processes of its owner can reach."""

    def __init__(self, site: Site, path: str) -> None:
        self._site, self._path = site, path
        self._socket: socket.socket | None = None
        self._open: set[_Session] = set()

    def start(self) -> None:
        """Listen on the running loop. Raises ServeError if the path cannot be used."""
        with contextlib.suppress(FileNotFoundError):
            if not os.path.exists(self._path) or _is_dead(self._path):
                os.unlink(self._path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            self._socket.bind(self._path)
        except OSError as error:
            raise ServeError(f"cannot be listened at: {error.strerror}", where=self._path) from None
        finally:
            os.umask(mask)
        self._socket.listen(128)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            connection, _ = self._socket.accept()
            connection.setblocking(False)
            self._open.add(_Session(self._site, connection, self._open))

    def close(self) -> None:
        """Stop listening, delete the socket's file, and disconnect all clients. Runs on the thread of the server's
        loop."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        for session in list(self._open):
            session.close()


def _is_dead(path: str) -> bool:
    """Whether no process listens at a path any more."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    finally:
        probe.close()
    return False


def _is_whole(data: bytes) -> bool:
    """Whether `data` is exactly one message: a length, and so many bytes."""
    return len(data) >= LENGTH.size and len(data) == LENGTH.size + LENGTH.unpack_from(data)[0]


@dataclass(frozen=True, slots=True)
class _Form:
    """A call's message, parsed, but for its number: clients repeat calls with arrays of the same shapes at the same
    places.

    Args:
        inputs: names, views of the client's memory, and whether these are bytes to be read as booleans.
        offset, room: where outputs go.
    """

    inputs: Sequence[tuple[str, Array, bool]]
    timeout: float | None
    priority: int
    offset: int
    room: int


@dataclass(frozen=True, slots=True)
class _Places:
    """The positions of a call's outputs: views of the client's memory, and the bytes of the reply that states them."""

    outputs: Sequence[Array]
    told: bytes


class _Session:
    """The session of one client, which calls one model."""

    def __init__(self, site: Site, connection: socket.socket, every: set[_Session]) -> None:
        self._site, self._socket, self._all = site, connection, every
        self._data = bytearray()
        self._memory: Array | None = None
        self._model = self._version = ""
        self._interface: object = None
        self._forms: dict[bytes, _Form] = {}
        self._places: dict[tuple[object, ...], _Places] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._read)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        files: list[int] = []
        try:
            if self._memory is None:
                data, files, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE, 4)
            else:
                data = self._socket.recv(_PART)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                self.close()
            elif self._data or self._memory is None or not _is_whole(data):
                self._data += data
                self._messages(files)
            else:
                self._call(data[LENGTH.size :])
        finally:
            for file in files:
                os.close(file)

    def _messages(self, files: Sequence[int]) -> None:
        while len(self._data) >= LENGTH.size:
            length = LENGTH.unpack_from(self._data)[0]
            if length > MAX_MESSAGE:
                self.close()
                return
            if len(self._data) < LENGTH.size + length:
                return
            message = bytes(memoryview(self._data)[LENGTH.size : LENGTH.size + length])
            del self._data[: LENGTH.size + length]
            if self._memory is None:
                self._hello(message, files)
            else:
                self._call(message)

    def _send(self, message: bytes) -> None:
        """Send a message at once; a client that does not read its answers, which are small, is disconnected."""
        try:
            data = LENGTH.pack(len(message)) + message
            if self._socket.send(data) != len(data):
                self.close()
        except OSError:
            self.close()

    def close(self) -> None:
        """Disconnect the client; does nothing if it is disconnected already."""
        if self in self._all:
            self._all.discard(self)
            self._loop.remove_reader(self._socket)
            self._socket.close()

    # -- hello ---------------------------------------------------------------------------------------------------------

    def _hello(self, message: bytes, files: Sequence[int]) -> None:
        try:
            greeting = json_object(message)
            token = greeting.get("token")
            self._site.tokens.check(f"Bearer {token}" if token else None, Scope.INFER)
            self._model, self._version = str(greeting.get("model", "")), str(greeting.get("version", ""))
            served = self._site.core.catalogue.get(self._model, self._version)
            self._memory = _mapped(files)
        except ServeError as error:
            self._send(json.dumps({"error": str(error), "status": error.status.http}).encode())
            self.close()
            return
        self._send(json.dumps(_description(served)).encode())

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call(self, message: bytes) -> None:
        number = 0
        try:
            number = _unpack(_NUMBER, message, 0)[0]
            served = self._site.core.catalogue.choose(self._model, self._version)
            form = self._form(served, message)
            inputs = {name: view != 0 if truths else view for name, view, truths in form.inputs}
        except ServeError as error:
            self._send(_refusal(number, error))
            return
        request = Request(
            self._model, inputs, time.monotonic(), served.version, timeout=form.timeout, priority=form.priority,
            shared=True,
        )  # fmt: skip
        self._site.core.infer(request, lambda result: self._answer(number, result, form))

    def _form(self, served: Served, message: bytes) -> _Form:
        if self._interface is not served.interface:
            self._interface = served.interface
            self._forms.clear()
        known = self._forms.get(message[_NUMBER.size :])
        if known is not None:
            return known
        _, timeout, priority, inputs, offset, room = _unpack(CALL, message, 0)
        views = self._inputs(served, message, inputs)
        form = _Form(views, timeout if 0 < timeout < 1e9 else None, priority, offset, room)
        _keep(self._forms, message[_NUMBER.size :], form)
        return form

    def _inputs(self, served: Served, message: bytes, inputs: int) -> list[tuple[str, Array, bool]]:
        specs = served.inputs
        if inputs != len(specs):
            raise ServeError("wrong number of inputs", expected=len(specs), got=inputs)
        at = CALL.size
        views: list[tuple[str, Array, bool]] = []
        assert self._memory is not None
        for spec in specs:
            where = f"input {spec.name!r}"
            offset, rank, _ = _unpack(TENSOR, message, at)
            at += TENSOR.size
            if rank > MAX_RANK or len(message) < at + 8 * rank:
                raise ServeError("the message is too short", where=where)
            shape = struct.unpack_from(f"<{rank}q", message, at)
            at += 8 * rank
            dtype = numpy_dtype(spec.datatype)
            nbytes = count(shape, where) * dtype.itemsize
            if dtype.hasobject or offset + nbytes > len(self._memory):
                raise ServeError("does not lie in the memory", where=where)
            part, truths = self._memory[offset : offset + nbytes], spec.datatype == "BOOL"
            views.append((spec.name, (part if truths else part.view(dtype)).reshape(shape), truths))
        return views

    def _answer(self, number: int, result: Answer | ServeError, form: _Form) -> None:
        if self._memory is None or self not in self._all:
            return
        try:
            if isinstance(result, ServeError):
                raise result
            message = self._written(number, result, form)
        except ServeError as error:
            message = _refusal(number, error)
        self._send(message)

    def _written(self, number: int, answer: Answer, form: _Form) -> bytes:
        arrays = answer.outputs.values()
        key = (form.offset, form.room, *[(array.dtype, array.shape) for array in arrays])
        places = self._places.get(key)
        if places is None:
            places = self._place(answer.outputs, form)
            _keep(self._places, key, places)
        for view, array in zip(places.outputs, arrays, strict=True):
            view[...] = array
        return REPLY.pack(number, 200, len(places.outputs), answer.weights_version) + places.told

    def _place(self, outputs: Mapping[str, Array], form: _Form) -> _Places:
        """Allocate outputs in the client's memory, one after another. Raises ServeError if there is too little."""
        assert self._memory is not None
        offset, end = form.offset, min(form.offset + form.room, len(self._memory))
        views, told = [], []
        for name, array in outputs.items():
            if array.dtype.hasobject or offset + array.nbytes > end:
                raise ServeError("does not fit the room for outputs", where=f"output {name!r}")
            views.append(self._memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape))
            told.append(TENSOR.pack(offset, array.ndim, 0) + struct.pack(f"<{array.ndim}q", *array.shape))
            offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return _Places(views, b"".join(told))


def _keep(known: dict[Any, Any], key: object, value: object) -> None:
    """Store `value` under `key` in the cache `known`, which is emptied first if it is full."""
    if len(known) >= _KNOWN:
        known.clear()
    known[key] = value


def _refusal(number: int, error: ServeError) -> bytes:
    return REPLY.pack(number, error.status.http, 0, 0) + str(error).encode()[:2000]


def _unpack(form: struct.Struct, message: bytes, at: int) -> tuple[Any, ...]:
    if len(message) < at + form.size:
        raise ServeError("the message is too short")
    return form.unpack_from(message, at)


def _mapped(files: Sequence[int]) -> Array:
    """Map a client's memory. Raises ServeError unless it is a single file that is sealed against shrinking."""
    if len(files) != 1:
        raise ServeError("a file of memory is wanted", expected="one", got=len(files))
    try:
        seals = fcntl.fcntl(files[0], F_GET_SEALS)
        size = os.fstat(files[0]).st_size
        if not seals & F_SEAL_SHRINK or not 0 < size <= MAX_MEMORY:
            raise ServeError("the memory is not sealed against shrinking, or too large", got=size)
        return np.frombuffer(mmap.mmap(files[0], size), np.uint8)
    except (OSError, ValueError):
        raise ServeError("the file is no sealed memory") from None


def _description(served: Served) -> dict[str, Any]:
    def listed(tensors: Any) -> list[dict[str, Any]]:
        return [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in tensors]

    return {
        "name": served.name, "version": served.version, "inputs": listed(served.inputs),
        "outputs": listed(served.outputs),
    }  # fmt: skip


__all__ = ["LocalServer"]
