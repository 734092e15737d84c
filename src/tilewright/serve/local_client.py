"""`tw.client.local`: a model of a server of this machine, over a Unix socket and shared memory. Needs NumPy alone."""

from __future__ import annotations

import array as arrays_module
import fcntl
import json
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.serve.errors import ServeError, Status
from tilewright.serve.protocol.frames import (
    ALIGNMENT,
    CALL,
    F_ADD_SEALS,
    F_SEAL_SHRINK,
    LENGTH,
    REPLY,
    TENSOR,
    json_object,
)
from tilewright.serve.tensors import Array, datatype_of, numpy_dtype

_KNOWN = 64
"""The most call signatures that a client stores."""
_NUMBER = struct.Struct("<Q")


class LocalModel:
    """A model of a server of this machine, called like a function of arrays. Only one thread may use it at a time; an
    interrupted call ends the session.

        policy = tw.client.local("/run/serve.sock", "policy")
        action, value = policy(obs)

    Args:
        path: of the server's socket.
        memory: bytes for the tensors of a call.
    """

    def __init__(
        self, path: str, model: str, version: str = "", *, token: str | None = None, memory: int = 1 << 20
    ) -> None:
        self._where = f"{path}: {model}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            raise ServeError(f"the server does not answer: {error}", Status.UNAVAILABLE, where=path) from None
        file = os.memfd_create("tilewright-serve", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(file, memory)
        fcntl.fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK)
        self._memory = np.frombuffer(mmap.mmap(file, memory), np.uint8)
        greeting = json.dumps({"model": model, "version": version, "token": token}).encode()
        fds = arrays_module.array("i", [file])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        self._socket.sendmsg([LENGTH.pack(len(greeting)) + greeting], ancillary)
        os.close(file)
        answer = json_object(self._receive())
        if "error" in answer:
            raise ServeError(str(answer["error"]), _status(answer.get("status")), where=self._where)
        self.inputs, self.outputs = answer["inputs"], answer["outputs"]
        self._in = [numpy_dtype(t["datatype"]) for t in self.inputs]
        self._out = [numpy_dtype(t["datatype"]) for t in self.outputs]
        self._forms: dict[tuple[object, ...], tuple[list[Array], bytes]] = {}
        self._told, self._views = b"", list[Array]()
        self._number = 0
        self.weights_version = 0

    def __call__(self, *inputs: Any, timeout: float = 0.0, priority: int = 0) -> Any:
        """Compute the outputs for these inputs on the server: the output, or a tuple of outputs. `timeout` is the
        seconds in which the answer is needed (0: the model's promise), `priority` is 1 for calls that come first.
        Raises ServeError as `Client.infer` does."""
        message = self.message(inputs, timeout, priority)
        try:
            self._send(message)
            answer = self._receive()
        except BaseException:  # an answer that comes later would be taken for that of the next call
            self.close()
            raise
        return self._results(answer)

    def message(self, inputs: Sequence[Any], timeout: float = 0.0, priority: int = 0) -> bytes:
        """Write the inputs of a call to the shared memory; returns the message that requests the call with this
        `timeout` in seconds and `priority`. Raises ServeError if they do not fit."""
        if len(inputs) != len(self._in):
            raise ServeError("wrong number of inputs", expected=len(self._in), got=len(inputs), where=self._where)
        arrays = [array if type(array) is np.ndarray else np.asarray(array) for array in inputs]
        key = (timeout, priority, *[(array.dtype, array.shape) for array in arrays])
        form = self._forms.get(key)
        if form is None:
            form = self._form(arrays, timeout, priority)
            if len(self._forms) >= _KNOWN:
                self._forms.clear()
            self._forms[key] = form
        views, told = form
        for view, array in zip(views, arrays, strict=True):
            view[...] = array
        self._number += 1
        return LENGTH.pack(_NUMBER.size + len(told)) + _NUMBER.pack(self._number) + told

    def detach(self) -> socket.socket:
        """The session's socket, for a caller that sends messages itself; this object then only keeps the memory
        alive."""
        detached = socket.socket(fileno=self._socket.detach())
        detached.setblocking(False)
        return detached

    def _send(self, message: bytes) -> None:
        try:
            self._socket.sendall(message)
        except OSError as error:
            raise ServeError(f"the server does not answer: {error}", Status.UNAVAILABLE, where=self._where) from None

    def _form(self, arrays: Sequence[Array], timeout: float, priority: int) -> tuple[list[Array], bytes]:
        """(views of the shared memory for inputs like `arrays`, the bytes of the message after the call's number) for
        calls with this `timeout` in seconds and `priority`. Raises ServeError if the arrays do not fit."""
        parts, views, at = [], [], 0
        for spec, dtype, array in zip(self.inputs, self._in, arrays, strict=True):
            where = f"input {spec['name']!r}"
            if array.dtype != dtype:
                expected, got = spec["datatype"], datatype_of(array.dtype)
                raise ServeError("wrong datatype", where=where, expected=expected, got=got)
            if dtype.hasobject:
                raise ServeError("BYTES do not go through shared memory", where=where)
            if at + array.nbytes > len(self._memory):
                raise ServeError("does not fit the memory", where=where, hint="memory=")
            views.append(self._memory[at : at + array.nbytes].view(dtype).reshape(array.shape))
            parts.append(TENSOR.pack(at, array.ndim, 0) + struct.pack(f"<{array.ndim}q", *array.shape))
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        room = len(self._memory) - at
        head = CALL.pack(0, timeout, priority - 100 if not priority else -priority, len(arrays), at, room)
        return views, head[_NUMBER.size :] + b"".join(parts)

    def _results(self, message: bytes) -> Any:
        _, status, outputs, self.weights_version = REPLY.unpack_from(message)
        if status != 200:
            raise ServeError(message[REPLY.size :].decode(errors="replace"), _status(status))
        told = message[REPLY.size :]
        if told != self._told:
            self._told, self._views = told, self._outputs(told, outputs)
        results = [view.copy() for view in self._views]
        return results[0] if len(results) == 1 else tuple(results)

    def _outputs(self, told: bytes, outputs: int) -> list[Array]:
        """The first `outputs` outputs as views of the shared memory, at the positions that the reply `told` states."""
        at, views = 0, []
        for dtype in self._out[:outputs]:
            offset, rank, _ = TENSOR.unpack_from(told, at)
            shape = struct.unpack_from(f"<{rank}q", told, at + TENSOR.size)
            at += TENSOR.size + 8 * rank
            nbytes = prod(shape) * dtype.itemsize
            views.append(self._memory[offset : offset + nbytes].view(dtype).reshape(shape))
        return views

    def _receive(self) -> bytes:
        data = self._some()
        if len(data) >= LENGTH.size and len(data) == LENGTH.size + LENGTH.unpack_from(data)[0]:
            return data[LENGTH.size :]  # one whole message, as nearly always
        while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
            data += self._some()
        if len(data) > LENGTH.size + LENGTH.unpack_from(data)[0]:
            raise ServeError("the server says more than it was asked", Status.UNAVAILABLE, where=self._where)
        return data[LENGTH.size :]

    def _some(self) -> bytes:
        """The next bytes from the server, up to 8192. Raises ServeError if the connection has ended."""
        try:
            data = self._socket.recv(8192)
        except OSError as error:
            data, why = b"", str(error)
        else:
            why = "it has closed the connection"
        if not data:
            raise ServeError(f"the server does not answer: {why}", Status.UNAVAILABLE, where=self._where)
        return data

    def close(self) -> None:
        """Disconnect from the server; the model cannot be called afterwards."""
        self._socket.close()

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _status(number: object) -> Status:
    return next((s for s in Status if s.http == number), Status.INTERNAL)


__all__ = ["LocalModel"]
