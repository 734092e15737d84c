"""The bodies of the Open Inference Protocol over HTTP, parsed and written; this module uses no sockets.

Binary tensors are Triton's extension: JSON, then raw bytes, with `Inference-Header-Content-Length` saying where the
JSON ends and `binary_data_size` how long each tensor is.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from tilewright.serve.errors import ServeError, Status
from tilewright.serve.protocol.regions import Regions
from tilewright.serve.requests import Answer, Request
from tilewright.serve.tensors import Array, Raw, datatype_of, from_json, from_raw, to_json, to_raw

JSON_LENGTH = "inference-header-content-length"
MAX_TENSORS = 256
_KNOWN, _KNOWN_BYTES = 256, 4096
"""The most heads of requests and answers that are cached; the most bytes of a request's cached head."""
_MAX_DEPTH_ERRORS = (ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Output:
    """The form in which a client wants the output `name`: as raw bytes if `binary`, else as JSON; or in shared memory
    if `region` is (name of the region, offset, size in bytes)."""

    name: str
    binary: bool
    region: tuple[str, int, int] | None = None


@dataclass(slots=True)
class Parsed:
    """A request, and the form in which the client wants the answer.

    Args:
        binary: whether outputs that are not named are wanted as raw bytes.
        raw_outputs: whether all outputs are.
    """

    request: Request
    outputs: tuple[Output, ...]
    binary: bool
    raw_outputs: bool


def parse_json(body: bytes | memoryview) -> Any:
    """Parse JSON as in RFC 8259, without NaN and infinity. Raises ServeError."""
    try:
        return json.loads(str(body, "utf-8"), parse_constant=_constant)
    except _MAX_DEPTH_ERRORS as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ServeError("the body is no JSON", got=text[:200]) from None


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


@dataclass(frozen=True, slots=True)
class _Head:
    """The JSON of a request, parsed.

    Args:
        inputs: the protocol's entries.
        raw: for each input its name, and how its raw bytes are read; None unless all inputs are raw bytes.
        raw_outputs: whether all outputs are wanted as raw bytes.
    """

    inputs: Sequence[Mapping[str, Any]]
    raw: Sequence[tuple[str, Raw]] | None
    outputs: tuple[Output, ...]
    names: tuple[str, ...] | None
    binary: bool
    raw_outputs: bool
    id: str
    timeout: float | None
    priority: int


def parse_infer(
    model: str,
    version: str,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    arrival: float,
    regions: Regions | None = None,
) -> Parsed:
    """Parse an inference request for `model` in `version` from its HTTP headers and body. `arrival` is its time in
    seconds; `regions` are shared memory that it may name. Raises ServeError that says what is wrong with it."""
    length = _json_length(headers.get(JSON_LENGTH), len(body))
    text = bytes(body[:length])
    head = _known_head(text) if length < len(body) and length <= _KNOWN_BYTES else _head(text)
    inputs = _inputs(head, body, length, regions) if head.raw is None else _raw_inputs(head.raw, body, length)
    timeout = head.timeout
    if timeout is None and "x-timeout-ms" in headers:
        timeout = _number(headers["x-timeout-ms"], "the header X-Timeout-Ms") * 1e-3
    trace = headers.get("traceparent", "")[:64]
    request = Request(model, inputs, arrival, version, head.names, head.id, timeout, head.priority, trace)
    return Parsed(request, head.outputs, head.binary, head.raw_outputs)


def _head(text: bytes) -> _Head:
    message = _object(parse_json(text), "the body")
    parameters = _object(message.get("parameters", {}), "parameters")
    entries = [_object(entry, "an input") for entry in _list(message.get("inputs"), "inputs")]
    names = [_name(entry) for entry in entries]
    for k, name in enumerate(names):
        if name in names[:k]:
            raise ServeError("is there twice", where=f"input {name!r}")
    binary = _flag(parameters, "binary_data_output", False)
    outputs = tuple(_output(entry, binary) for entry in _list(message.get("outputs", []), "outputs"))
    identity = message.get("id", "")
    if not isinstance(identity, str):
        raise ServeError("is no string", where="id")
    raw = _all_raw(entries)
    return _Head(
        entries if raw is None else (),
        raw,
        outputs,
        tuple(o.name for o in outputs) if outputs else None,
        binary,
        all(o.binary and o.region is None for o in outputs) if outputs else binary,
        identity[:1000],
        timeout_of(parameters),
        priority_of(parameters),
    )


_known_head = lru_cache(_KNOWN)(_head)
"""`_head` with a cache: clients that send raw bytes repeat the same JSON before them."""


def _all_raw(entries: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, Raw]] | None:
    """(name, how its bytes are read) of each of the inputs `entries` of a request, if all have raw bytes of a fixed
    size; else None."""
    raw = []
    for entry in entries:
        parameters, (name, where, datatype, shape) = _declared(entry)
        if datatype == "BYTES" or "shared_memory_region" in parameters or "binary_data_size" not in parameters:
            return None
        value = Raw.of(datatype, shape, where)
        if type(parameters["binary_data_size"]) is not int or parameters["binary_data_size"] != value.nbytes:
            return None  # it is wrong, which is said where the bytes are looked at
        raw.append((name, value))
    return raw


def _raw_inputs(raw: Sequence[tuple[str, Raw]], body: bytes | memoryview, at: int) -> dict[str, Array]:
    """The arrays of the inputs `raw`, whose bytes follow one another from offset `at` of the body on. Raises ServeError
    if bytes are missing or left over."""
    inputs = {}
    for name, how in raw:
        if at + how.nbytes > len(body):
            raise ServeError("the bytes end too soon", where=f"input {name[:60]!r}", expected=how.nbytes)
        inputs[name] = how.read(body, at)
        at += how.nbytes
    if at != len(body):
        raise ServeError("bytes are left over", expected=f"{at} bytes in all", got=len(body))
    return inputs


def _inputs(head: _Head, body: bytes | memoryview, length: int, regions: Regions | None) -> dict[str, Array]:
    """The input arrays that `head`, the request's JSON, describes: their numbers are in the JSON, in the raw bytes of
    `body` after its `length` bytes, or in shared memory."""
    inputs: dict[str, Array] = {}
    raw, used = memoryview(body)[length:], 0
    for entry in head.inputs:
        name, array, size = _input(entry, raw[used:], regions)
        inputs[name] = array
        used += size
    if used != len(raw):
        raise ServeError("bytes are left over", expected=f"{used} bytes of tensors", got=len(raw))
    return inputs


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """The seconds that a client states: Triton's parameter `timeout` is in microseconds."""
    supplied = parameters.get("timeout")
    if supplied is None:
        return None
    if not isinstance(supplied, (int, str)) or isinstance(supplied, bool):
        raise ServeError("is no number of microseconds", where="parameters.timeout")
    return _number(str(supplied), "parameters.timeout") * 1e-6 or None


def priority_of(parameters: Mapping[str, Any]) -> int:
    """The parameter `priority`, as in Triton: 1 is the highest, and 0 means the default, which is the last but one."""
    supplied = parameters.get("priority", 0)
    if not isinstance(supplied, int) or isinstance(supplied, bool) or not 0 <= supplied < 1 << 32:
        raise ServeError("is no priority", where="parameters.priority", expected="0 to 2**32 - 1")
    return -supplied if supplied else -100


def _number(text: str, where: str) -> float:
    try:
        value = float(text) if len(text) < 40 else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e15:
        raise ServeError("is no time", where=where, got=text[:40])
    return value


def _json_length(text: str | None, size: int) -> int:
    if text is None:
        return size
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= size):
        raise ServeError("is no length within the body", where="Inference-Header-Content-Length", got=text[:40])
    return int(text)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ServeError("is no object", where=where, got=type(value).__name__)
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_TENSORS:
        raise ServeError("is no list of tensors", where=where, expected=f"at most {MAX_TENSORS}")
    return value


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ServeError("is no boolean", where=f"parameters.{name}")
    return value


def _name(entry: Mapping[str, Any]) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or len(name) > 1000:
        raise ServeError("a tensor has no name")
    return name


def _declared(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, str, str, list[Any]]]:
    """(parameters, (name, name in errors, datatype, unchecked shape)) of an input's JSON entry."""
    name = _name(entry)
    where = f"input {name[:60]!r}"
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if not isinstance(datatype, str) or not isinstance(shape, list):
        raise ServeError("has no datatype or no shape", where=where)
    return _object(entry.get("parameters", {}), f"{where}: parameters"), (name, where, datatype, shape)


def _input(entry: Mapping[str, Any], raw: memoryview, regions: Regions | None) -> tuple[str, Array, int]:
    """(name, array, number of raw bytes that it took) of an input's JSON entry; `raw` begins with its bytes, if it has
    any."""
    parameters, (name, where, datatype, shape) = _declared(entry)
    if "shared_memory_region" in parameters:
        region, offset, size = _region(parameters, where)
        return name, from_raw(_regions(regions).read(region, offset, size), datatype, shape, where), 0
    if "binary_data_size" not in parameters:
        return name, from_json(entry.get("data"), datatype, shape, where), 0
    size = parameters["binary_data_size"]
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(raw):
        raise ServeError("is no length within the body", where=f"{where}: binary_data_size", got=repr(size)[:40])
    return name, from_raw(raw[:size], datatype, shape, where), size


def _output(value: object, default: bool) -> Output:
    entry = _object(value, "an output")
    name = _name(entry)
    parameters = _object(entry.get("parameters", {}), "parameters")
    if parameters.get("classification"):
        raise ServeError("classification is not served", where=f"output {name[:60]!r}")
    binary = _flag(parameters, "binary_data", default)
    region = _region(parameters, f"output {name[:60]!r}") if "shared_memory_region" in parameters else None
    return Output(name, binary, region)


def _region(parameters: Mapping[str, Any], where: str) -> tuple[str, int, int]:
    name = parameters.get("shared_memory_region")
    offset, size = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
    if not isinstance(name, str) or type(offset) is not int or type(size) is not int:
        raise ServeError("shared memory wants a name, an offset and a size", where=where)
    return name, offset, size


def _regions(regions: Regions | None) -> Regions:
    if regions is None:
        raise ServeError("shared memory is not served here", Status.FORBIDDEN, hint="--shared-memory")
    return regions


# --- answers ----------------------------------------------------------------------------------------------------------


def answer_body(answer: Answer, parsed: Parsed, regions: Regions | None = None) -> tuple[bytes, int | None]:
    """(the bytes of the response to the request `parsed`, the length of its JSON if raw bytes follow, else None).
    Outputs that the client wants in shared memory are written to `regions`."""
    if not parsed.raw_outputs:
        entries, tail = _entries(answer, parsed, regions)
        text = _identified(_answer_head(answer.model, answer.version, answer.weights_version, entries), answer.id)
    else:
        outputs = answer.outputs.items()
        tail = [to_raw(array) for _, array in outputs]
        described = tuple([(n, a.dtype, a.shape, len(r)) for (n, a), r in zip(outputs, tail, strict=True)])
        text = _identified(_raw_head(answer.model, answer.version, answer.weights_version, described), answer.id)
    return (b"".join((text, *tail)), len(text)) if tail else (text, None)


def _answer_head(model: str, version: str, weights_version: int, entries: Sequence[Mapping[str, Any]]) -> bytes:
    message: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": entries}
    if weights_version:
        message["parameters"] = {"weights_version": weights_version}
    return json.dumps(message, separators=(",", ":")).encode()


@lru_cache(_KNOWN)
def _raw_head(
    model: str, version: str, weights_version: int, outputs: Sequence[tuple[str, np.dtype[Any], Sequence[int], int]]
) -> bytes:
    """The JSON that precedes raw bytes in the response of `model` in `version`, with weights of `weights_version`; each
    of `outputs` is (name, dtype, shape, number of bytes)."""
    entries = [
        {"name": name, "datatype": datatype_of(dtype), "shape": shape, "parameters": {"binary_data_size": size}}
        for name, dtype, shape, size in outputs
    ]
    return _answer_head(model, version, weights_version, entries)


def _identified(text: bytes, identity: str) -> bytes:
    """The JSON object `text` with `identity` inserted as its first member, "id"; unchanged if `identity` is empty."""
    return b'{"id":' + json.dumps(identity).encode() + b"," + text[1:] if identity else text


def _entries(answer: Answer, parsed: Parsed, regions: Regions | None) -> tuple[list[dict[str, Any]], list[bytes]]:
    """(JSON entries of the outputs, raw bytes of the binary ones), in the form in which the client wants each; some are
    written to shared memory."""
    wanted = {o.name: o for o in parsed.outputs}
    entries, tail = [], []
    for name, array in answer.outputs.items():
        output = wanted.get(name)
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(array.dtype), "shape": array.shape}
        if output is not None and output.region is not None:
            size = _regions(regions).write(*output.region, to_raw(array), f"output {name!r}")
            region, offset, _ = output.region
            entry["parameters"] = {
                "shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size
            }  # fmt: skip
        elif output.binary if output is not None else parsed.binary:
            data = to_raw(array)
            entry["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            entry["data"] = to_json(array, f"output {name!r}")
        entries.append(entry)
    return entries, tail


def error_body(error: ServeError) -> bytes:
    """The JSON body of the answer to a request that failed with `error`: its text, on one line of at most 2000
    characters."""
    text = str(error).replace("\n", " ")
    return json.dumps({"error": text[:2000]}).encode()


def arrival() -> float:
    """The present time on the monotonic clock, in seconds, as `Request.arrival` and deadlines have it."""
    return time.monotonic()


__all__ = ["JSON_LENGTH", "Parsed", "answer_body", "error_body", "parse_infer", "parse_json"]
