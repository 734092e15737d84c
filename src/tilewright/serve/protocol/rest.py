"""The Open Inference Protocol over HTTP: bodies in, bodies out. Nothing here reads a socket.

Binary tensors are Triton's extension: JSON, then raw bytes, with `Inference-Header-Content-Length` saying where the
JSON ends and `binary_data_size` how long each tensor is.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tilewright.serve.errors import ServeError, Status
from tilewright.serve.protocol.regions import Regions
from tilewright.serve.requests import Answer, Request
from tilewright.serve.tensors import Array, datatype_of, from_json, from_raw, to_json, to_raw

JSON_LENGTH = "inference-header-content-length"
MAX_TENSORS = 256
_MAX_DEPTH_ERRORS = (ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Output:
    """How an output is wanted."""

    name: str
    binary: bool
    region: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request, and in which form its answer is wanted."""

    request: Request
    outputs: tuple[Output, ...]
    binary: bool


def parse_json(body: bytes | memoryview) -> Any:
    """JSON as RFC 8259 has it: no NaN, no infinity. ServeError."""
    try:
        return json.loads(str(body, "utf-8"), parse_constant=_constant)
    except _MAX_DEPTH_ERRORS as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ServeError("the body is no JSON", got=text[:200]) from None


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def parse_infer(
    model: str, version: str, headers: Mapping[str, str], body: bytes, arrival: float, regions: Regions | None = None
) -> Parsed:
    """A request for an inference. ServeError saying what is wrong with it."""
    length = _json_length(headers.get(JSON_LENGTH), len(body))
    view = memoryview(body)
    message = _object(parse_json(view[:length]), "the body")
    parameters = _object(message.get("parameters", {}), "parameters")
    raw = view[length:]
    inputs: dict[str, Array] = {}
    used = 0
    for entry in _list(message.get("inputs"), "inputs"):
        name, array, size = _input(entry, raw[used:], regions)
        if name in inputs:
            raise ServeError("is there twice", where=f"input {name!r}")
        inputs[name] = array
        used += size
    if used != len(raw):
        raise ServeError("bytes are left over", expected=f"{used} bytes of tensors", got=len(raw))
    binary = _flag(parameters, "binary_data_output", False)
    outputs = tuple(_output(entry, binary) for entry in _list(message.get("outputs", []), "outputs"))
    identity = message.get("id", "")
    if not isinstance(identity, str):
        raise ServeError("is no string", where="id")
    request = Request(
        model,
        inputs,
        arrival,
        version,
        tuple(o.name for o in outputs) if outputs else None,
        identity[:1000],
        timeout_of(parameters, headers.get("x-timeout-ms")),
        priority_of(parameters),
        headers.get("traceparent", "")[:64],
    )
    return Parsed(request, outputs, binary)


def timeout_of(parameters: Mapping[str, Any], milliseconds: str | None = None) -> float | None:
    """Seconds that a client gives: the parameter `timeout` in microseconds, as Triton has it, or a header."""
    given = parameters.get("timeout")
    if given is not None:
        if not isinstance(given, (int, str)) or isinstance(given, bool):
            raise ServeError("is no number of microseconds", where="parameters.timeout")
        return _number(str(given), "parameters.timeout") * 1e-6 or None
    return None if milliseconds is None else _number(milliseconds, "the header X-Timeout-Ms") * 1e-3


def priority_of(parameters: Mapping[str, Any]) -> int:
    """The parameter `priority`: as for Triton, 1 comes first, and 0 is the default, which is last but one."""
    given = parameters.get("priority", 0)
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < 1 << 32:
        raise ServeError("is no priority", where="parameters.priority", expected="0 to 2**32 - 1")
    return -given if given else -100


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


def _input(value: object, raw: memoryview, regions: Regions | None) -> tuple[str, Array, int]:
    """An input's name and array, and how many of the raw bytes are its own."""
    entry = _object(value, "an input")
    name = _name(entry)
    where = f"input {name[:60]!r}"
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if not isinstance(datatype, str) or not isinstance(shape, list):
        raise ServeError("has no datatype or no shape", where=where)
    parameters = _object(entry.get("parameters", {}), f"{where}: parameters")
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
    """The body of an answer; and where its JSON ends, if raw bytes follow."""
    wanted = {o.name: o for o in parsed.outputs}
    entries, tail = [], []
    for name, array in answer.outputs.items():
        output = wanted.get(name)
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
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
    message: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version, "outputs": entries}
    if answer.id:
        message["id"] = answer.id
    if answer.weights_version:
        message["parameters"] = {"weights_version": answer.weights_version}
    text = json.dumps(message, separators=(",", ":")).encode()
    return (text + b"".join(tail), len(text)) if tail else (text, None)


def error_body(error: ServeError) -> bytes:
    """The body of an answer that refuses."""
    text = str(error).replace("\n", " ")
    return json.dumps({"error": text[:2000]}).encode()


def arrival() -> float:
    """Now, on the clock that deadlines are on."""
    return time.monotonic()


__all__ = ["JSON_LENGTH", "Parsed", "answer_body", "error_body", "parse_infer", "parse_json"]
