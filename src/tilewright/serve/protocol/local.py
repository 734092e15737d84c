"""Callers of this machine: a Unix socket that carries some words, and shared memory that carries the tensors.

A client sends the file of a memory (`memfd_create`) along with its first message; it must be sealed against shrinking,
so that no client can take away memory that the server reads. Messages are fixed structs after a length:

    hello   client: model and version as JSON, and the file; server: inputs and outputs as JSON, or an error
    call    client: number, timeout, and for each input its offset and shape; where outputs may go
            server: number, status, versions, and for each output its offset and shape; or an error as JSON

Inputs are copied before they are looked at: a client may write at any time, and values decide what kernels read.
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
from collections.abc import Sequence
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


class LocalServer:
    """Listens at a path, for the owner of the process alone."""

    def __init__(self, site: Site, path: str) -> None:
        self._site, self._path = site, path
        self._socket: socket.socket | None = None
        self._open: set[_Session] = set()

    def start(self) -> None:
        """Listen on the running loop. ServeError where the path cannot be used."""
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
        """Stop listening, and end all sessions."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        for session in list(self._open):
            session.close()


def _is_dead(path: str) -> bool:
    """Whether nothing listens at a path any more."""
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


class _Session:
    """One client and the model that it asks."""

    def __init__(self, site: Site, connection: socket.socket, every: set[_Session]) -> None:
        self._site, self._socket, self._all = site, connection, every
        self._data = bytearray()
        self._memory: Array | None = None
        self._model = self._version = ""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._read)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        files: list[int] = []
        try:
            if self._memory is None:
                data, files, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE, 4)
            else:
                data = self._socket.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if not data:
                self.close()
                return
            self._data += data
            self._messages(files)
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
        """Send at once: answers are small, and a client that does not read them is cut off."""
        try:
            data = LENGTH.pack(len(message)) + message
            if self._socket.send(data) != len(data):
                self.close()
        except OSError:
            self.close()

    def close(self) -> None:
        """End the session."""
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
            number, timeout, priority, inputs, offset, room = _unpack(CALL, message, 0)
            served = self._site.core.catalogue.choose(self._model, self._version)
            given = self._inputs(served, message, inputs)
            request = Request(
                self._model, given, time.monotonic(), served.version,
                timeout=timeout if 0 < timeout < 1e9 else None, priority=priority,
            )  # fmt: skip
        except ServeError as error:
            self._send(_refusal(number, error))
            return
        self._site.core.infer(request, lambda result: self._answer(number, result, offset, room))

    def _inputs(self, served: Served, message: bytes, inputs: int) -> dict[str, Array]:
        specs = served.inputs
        if inputs != len(specs):
            raise ServeError("wrong number of inputs", expected=len(specs), got=inputs)
        at = CALL.size
        given: dict[str, Array] = {}
        assert self._memory is not None
        for spec in specs:
            offset, rank, _ = _unpack(TENSOR, message, at)
            at += TENSOR.size
            if rank > MAX_RANK or len(message) < at + 8 * rank:
                raise ServeError("the message is too short", where=f"input {spec.name!r}")
            shape = struct.unpack_from(f"<{rank}q", message, at)
            at += 8 * rank
            dtype = numpy_dtype(spec.datatype)
            nbytes = count(shape, f"input {spec.name!r}") * dtype.itemsize
            if dtype.hasobject or offset + nbytes > len(self._memory):
                raise ServeError("does not lie in the memory", where=f"input {spec.name!r}")
            part = self._memory[offset : offset + nbytes].copy()
            given[spec.name] = (part != 0 if spec.datatype == "BOOL" else part.view(dtype)).reshape(shape)
        return given

    def _answer(self, number: int, result: Answer | ServeError, offset: int, room: int) -> None:
        if self._memory is None or self not in self._all:
            return
        try:
            if isinstance(result, ServeError):
                raise result
            message = self._written(number, result, offset, room)
        except ServeError as error:
            message = _refusal(number, error)
        self._send(message)

    def _written(self, number: int, answer: Answer, offset: int, room: int) -> bytes:
        assert self._memory is not None
        end = min(offset + room, len(self._memory))
        parts = [REPLY.pack(number, 200, len(answer.outputs), answer.weights_version)]
        for name, array in answer.outputs.items():
            if array.dtype.hasobject or offset + array.nbytes > end:
                raise ServeError("does not fit the room for outputs", where=f"output {name!r}")
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._memory[offset : offset + array.nbytes] = flat
            parts.append(TENSOR.pack(offset, array.ndim, 0) + struct.pack(f"<{array.ndim}q", *array.shape))
            offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return b"".join(parts)


def _refusal(number: int, error: ServeError) -> bytes:
    return REPLY.pack(number, error.status.http, 0, 0) + str(error).encode()[:2000]


def _unpack(form: struct.Struct, message: bytes, at: int) -> tuple[Any, ...]:
    if len(message) < at + form.size:
        raise ServeError("the message is too short")
    return form.unpack_from(message, at)


def _mapped(files: Sequence[int]) -> Array:
    """A client's memory. ServeError unless it is one file that cannot shrink any more."""
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
