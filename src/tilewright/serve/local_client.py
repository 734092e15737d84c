"""`tw.client.local`: a model of a server of this machine, over a Unix socket and shared memory. Needs NumPy alone."""

from __future__ import annotations

import array as arrays_module
import fcntl
import json
import mmap
import os
import socket
import struct
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
from tilewright.serve.tensors import datatype_of, numpy_dtype


class LocalModel:
    """A model of a server of this machine, called like a function of arrays. Not for several threads at once.

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
        self._data = bytearray()
        answer = json_object(self._receive())
        if "error" in answer:
            raise ServeError(str(answer["error"]), _status(answer.get("status")), where=self._where)
        self.inputs, self.outputs = answer["inputs"], answer["outputs"]
        self._in = [numpy_dtype(t["datatype"]) for t in self.inputs]
        self._out = [numpy_dtype(t["datatype"]) for t in self.outputs]
        self._number = 0
        self.weights_version = 0

    def __call__(self, *inputs: Any, timeout: float = 0.0, priority: int = 0) -> Any:
        """The output, or a tuple of them. ServeError as `Client.infer` raises it."""
        if len(inputs) != len(self._in):
            raise ServeError("wrong number of inputs", expected=len(self._in), got=len(inputs), where=self._where)
        parts, at = [], 0
        for spec, dtype, value in zip(self.inputs, self._in, inputs, strict=True):
            array = np.asarray(value)
            if array.dtype != dtype:
                got = datatype_of(array.dtype)
                raise ServeError("wrong datatype", where=f"input {spec['name']!r}", expected=spec["datatype"], got=got)
            if dtype.hasobject:
                raise ServeError("BYTES do not go through shared memory", where=f"input {spec['name']!r}")
            if at + array.nbytes > len(self._memory):
                raise ServeError("does not fit the memory", where=f"input {spec['name']!r}", hint="memory=")
            self._memory[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            parts.append(TENSOR.pack(at, array.ndim, 0) + struct.pack(f"<{array.ndim}q", *array.shape))
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self._number += 1
        room = len(self._memory) - at
        head = CALL.pack(self._number, timeout, priority - 100 if not priority else -priority, len(inputs), at, room)
        message = head + b"".join(parts)
        try:
            self._socket.sendall(LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise ServeError(f"the server does not answer: {error}", Status.UNAVAILABLE, where=self._where) from None
        return self._results(self._receive())

    def _results(self, message: bytes) -> Any:
        _, status, outputs, self.weights_version = REPLY.unpack_from(message)
        if status != 200:
            raise ServeError(message[REPLY.size :].decode(errors="replace"), _status(status))
        at, results = REPLY.size, []
        for dtype in self._out[:outputs]:
            offset, rank, _ = TENSOR.unpack_from(message, at)
            shape = struct.unpack_from(f"<{rank}q", message, at + TENSOR.size)
            at += TENSOR.size + 8 * rank
            nbytes = prod(shape) * dtype.itemsize
            results.append(self._memory[offset : offset + nbytes].copy().view(dtype).reshape(shape))
        return results[0] if len(results) == 1 else tuple(results)

    def _receive(self) -> bytes:
        while len(self._data) < LENGTH.size or len(self._data) < LENGTH.size + LENGTH.unpack_from(self._data)[0]:
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                data, why = b"", str(error)
            else:
                why = "it has closed the connection"
            if not data:
                raise ServeError(f"the server does not answer: {why}", Status.UNAVAILABLE, where=self._where)
            self._data += data
        end = LENGTH.size + LENGTH.unpack_from(self._data)[0]
        message = bytes(memoryview(self._data)[LENGTH.size : end])
        del self._data[:end]
        return message

    def close(self) -> None:
        """End the session."""
        self._socket.close()

    def __enter__(self) -> LocalModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _status(number: object) -> Status:
    return next((s for s in Status if s.http == number), Status.INTERNAL)


__all__ = ["LocalModel"]
