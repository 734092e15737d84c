"""Fast paths for repeated gRPC messages: a request whose bytes before the raw contents equal an earlier one's is read
at known positions, and an answer is written directly as bytes. Protocol buffers take longer for both than a small
model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilewright.serve.protocol.generated import inference_pb2
from tilewright.serve.requests import Answer, Request
from tilewright.serve.tensors import Raw, datatype_of, to_raw

pb: Any = inference_pb2
_KNOWN, _KEY, _FORM_BYTES = 256, 12, 4096
"""The most forms and answer frames that are stored; the first bytes of a message that identify its form; the most bytes
of a form."""
_RAW_INPUT, _RAW_OUTPUT, _ID = b"\x3a", b"\x32", b"\x1a"
"""Tags of protocol buffers: ModelInferRequest.raw_input_contents, ModelInferResponse.raw_output_contents and id."""


@dataclass(frozen=True, slots=True)
class Form:
    """A request without its raw contents, parsed.

    Args:
        request: all but its inputs, and with the timeout that its parameters give.
        heads: bytes before each of the raw contents, and where they begin; the first are all that comes before.
        inputs: names, how raw contents are read, and where they begin.
    """

    request: Request
    heads: Sequence[tuple[int, bytes]]
    inputs: Sequence[tuple[str, Raw, int]]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The bytes of a gRPC request whose form is that of an earlier one, so that its parts are read at known
    positions."""

    form: Form
    data: bytes

    @property
    def id(self) -> str:
        return self.form.request.id

    def ByteSize(self) -> int:
        return len(self.data)

    def read(self, remaining: float | None) -> Request:
        """The request. `remaining`: seconds until gRPC's own deadline."""
        known = self.form.request
        timeout = known.timeout
        if remaining is not None:
            timeout = max(remaining, 0.0) if timeout is None else min(timeout, max(remaining, 0.0))
        inputs = {name: how.read(self.data, at) for name, how, at in self.form.inputs}
        return Request(
            known.model, inputs, time.monotonic(), known.version, known.outputs, known.id, timeout, known.priority
        )


@dataclass(slots=True)
class Forms:
    """The forms of messages that a server has decoded before, by the size and first bytes of a message. A message of a
    known form is read without decoding it again."""

    _known: dict[tuple[int, bytes], Form] = field(default_factory=dict)

    def find(self, data: bytes) -> Repeated | None:
        """The message read by its form; None if the form is not known."""
        form = self._known.get((len(data), data[:_KEY]))
        if form is None:
            return None
        for at, head in form.heads:
            if not data.startswith(head, at):
                return None
        return Repeated(form, data)

    def learn(self, data: bytes, message: Any, request: Request, inputs: Sequence[tuple[str, Raw]]) -> None:
        """Store the form of a message.

        Args:
            request: of the message, with the timeout of its parameters.
            inputs: names, and how raw contents are read, in their order in the message.
        """
        contents = message.raw_input_contents
        heads, at = [b""] * len(contents), len(data)
        starts = [0] * len(contents)
        for k in reversed(range(len(contents))):  # they are what comes last, if the client writes fields in order
            starts[k] = at - len(contents[k])
            heads[k] = _RAW_INPUT + varint(len(contents[k]))
            at = starts[k] - len(heads[k])
            if (
                at < _KEY
                or not data.startswith(heads[k], at)
                or data[starts[k] : starts[k] + len(contents[k])] != contents[k]
            ):
                return
        if at > _FORM_BYTES or not _is_whole(data[:at]):
            return
        placed = [(start - len(head), head) for start, head in zip(starts, heads, strict=True)]
        placed[0] = (0, data[: starts[0]])
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[len(data), data[:_KEY]] = Form(
            request, placed, [(name, how, start) for (name, how), start in zip(inputs, starts, strict=True)]
        )


def _is_whole(head: bytes) -> bool:
    """Whether the bytes `head` are a complete message without raw contents, so that what follows may be other
    fields."""
    try:
        return not pb.ModelInferRequest.FromString(head).raw_input_contents
    except DecodeError:
        return False


def answer_bytes(answer: Answer) -> bytes:
    """An answer as the bytes of a ModelInferResponse; its tensors are raw contents, as Triton sends them."""
    outputs = tuple([(name, array.dtype, array.shape) for name, array in answer.outputs.items()])
    parts = [frame(answer.model, answer.version, answer.weights_version, outputs)]
    if answer.id:
        identity = answer.id.encode()
        parts += (_ID, varint(len(identity)), identity)
    for array in answer.outputs.values():
        raw = to_raw(array)
        parts += (_RAW_OUTPUT, varint(len(raw)), raw)
    return b"".join(parts)


@lru_cache(_KNOWN)
def frame(
    model: str, version: str, weights_version: int, outputs: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
) -> bytes:
    """The encoded gRPC response of `model` in `version` (with `weights_version`, unless 0) for `outputs`, (name, type,
    shape) each, without its id and the outputs' contents."""
    message = pb.ModelInferResponse(model_name=model, model_version=version)
    if weights_version:
        message.parameters["weights_version"].int64_param = weights_version
    for name, dtype, shape in outputs:
        message.outputs.add(name=name, datatype=datatype_of(dtype), shape=shape)
    return bytes(message.SerializeToString())


@lru_cache(_KNOWN)
def varint(number: int) -> bytes:
    """A number in the variable length of protocol buffers."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


__all__ = ["Forms", "Repeated", "answer_bytes", "frame", "varint"]
