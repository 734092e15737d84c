"""Tensors in the Open Inference Protocol: names of element types, JSON data, raw bytes.

Raw bytes are little-endian and row-major. Elements of BYTES are each four bytes of length (little-endian) followed by
that many bytes, as in the protocol's binary extension. Needs NumPy alone, and `ml_dtypes` for BF16.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.serve.errors import ServeError

Array = np.ndarray[Any, Any]

MAX_RANK = 16
MAX_ELEMENTS = 1 << 40

DATATYPES = {
    "bool": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "bf16": "BF16",
    "string": "BYTES",
}
"""The protocol's type names by those of `ir.dtype`. "string" is only used by Python functions, not by compiled
programs."""
NAMES = {datatype: name for name, datatype in DATATYPES.items()}
_KINDS = {"b": "BOOL", "O": "BYTES", "S": "BYTES", "U": "BYTES"}
_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"<{kind}{bits // 8}") for sign, kind in (("", "i"), ("U", "u"))
       for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BYTES": np.dtype(object),
}  # fmt: skip
_BY_DTYPE = {dtype: datatype for datatype, dtype in _NUMPY.items()}


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """NumPy's type of a datatype. Raises ServeError for an unknown name."""
    known = _NUMPY.get(datatype)
    if known is None:
        if datatype != "BF16":
            raise ServeError("no such datatype", expected=", ".join(NAMES), got=repr(datatype)[:60])
        import ml_dtypes

        known = _NUMPY["BF16"] = np.dtype(ml_dtypes.bfloat16)
    return known


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of NumPy's type. Raises ServeError if it has none."""
    known = _BY_DTYPE.get(dtype) or _KINDS.get(dtype.kind) or ("BF16" if dtype.name == "bfloat16" else None)
    if known is None:
        raise ServeError("the protocol has no such element type", got=dtype)
    return known


def count(shape: object, where: str) -> int:
    """The number of elements that a shape has. Raises ServeError, about `where`, unless it is a list of at most
    `MAX_RANK` sizes with at most `MAX_ELEMENTS` elements."""
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_RANK:
        raise ServeError("is no shape", where=where, expected=f"at most {MAX_RANK} sizes", got=_brief(shape))
    if not all(type(n) is int and 0 <= n <= MAX_ELEMENTS for n in shape):
        raise ServeError("is no shape", where=where, expected="sizes from 0 on", got=_brief(shape))
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS or math.prod(n for n in shape if n) > MAX_ELEMENTS:
        raise ServeError("has too many elements", where=where, expected=f"at most {MAX_ELEMENTS}", got=_brief(shape))
    return elements


# --- raw bytes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Raw:
    """The type, shape and size of a tensor of fixed-size elements, with which its raw bytes are read."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    elements: int
    nbytes: int

    @staticmethod
    def of(datatype: str, shape: Sequence[int], where: str) -> Raw:
        """The reader of a tensor of this shape and datatype, not BYTES. Raises ServeError for a datatype that the
        protocol does not have."""
        elements = count(shape, where)
        dtype = numpy_dtype(datatype)
        return Raw(dtype, tuple(shape), elements, elements * dtype.itemsize)

    def read(self, data: bytes | memoryview, at: int = 0) -> Array:
        """The array at offset `at` of `data`, as a view if its alignment permits."""
        if not self.elements:
            return np.zeros(self.shape, self.dtype)
        if self.dtype == np.bool_:
            truths: Array = np.frombuffer(data, np.uint8, self.elements, at).reshape(self.shape) != 0
            return truths
        array: Array = np.frombuffer(data, self.dtype, self.elements, at).reshape(self.shape)
        return array if array.flags.aligned else array.copy()  # it stands after JSON of any length


def from_raw(data: bytes | memoryview, datatype: str, shape: Sequence[int], where: str) -> Array:
    """An array of `shape` and KServe's type `datatype` from the raw bytes `data`, as a view if possible. Raises
    ServeError, which names the tensor by `where`, if their number is wrong."""
    if datatype == "BYTES":
        return _texts_from(data, count(shape, where), where).reshape(shape)
    raw = Raw.of(datatype, shape, where)
    if len(data) != raw.nbytes:
        raise ServeError("wrong number of bytes", where=where, expected=raw.nbytes, got=len(data))
    return raw.read(data)


def binary_request(
    inputs: Mapping[str, Any],
    *,
    outputs: Sequence[str] | None = None,
    timeout: float | None = None,
    priority: int = 0,
    id: str = "",
) -> tuple[bytes, bytes]:
    """An inference with binary tensors: the JSON of its head, and the bytes that follow it.

    Args:
        outputs: the outputs to return; None for all.
        timeout: seconds in which it must be answered; None: the model's promise.
        priority: 1 comes first; 0 is the server's default.
    """
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    raw = {name: to_raw(array) for name, array in arrays.items()}
    parameters: dict[str, Any] = {"binary_data_output": True}
    if timeout is not None:
        parameters["timeout"] = max(1, int(timeout * 1e6))
    if priority:
        parameters["priority"] = priority
    message: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "datatype": datatype_of(array.dtype),
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(raw[name])},
            }
            for name, array in arrays.items()
        ],
        "parameters": parameters,
    }
    if outputs is not None:
        message["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    if id:
        message["id"] = id
    return json.dumps(message, separators=(",", ":")).encode(), b"".join(raw.values())


def to_raw(array: Array) -> bytes:
    """The raw bytes of an array."""
    if array.dtype.kind in "OSU":
        return b"".join(struct.pack("<I", len(e)) + e for e in map(_as_bytes, array.reshape(-1).tolist()))
    return array.tobytes()


def _texts_from(data: bytes | memoryview, elements: int, where: str) -> Array:
    view, at = memoryview(data), 0
    known: list[bytes] = []
    while at + 4 <= len(view) and len(known) < elements:
        length = struct.unpack_from("<I", view, at)[0]
        if at + 4 + length > len(view):
            break
        known.append(bytes(view[at + 4 : at + 4 + length]))
        at += 4 + length
    if at != len(view) or len(known) != elements:
        got = f"{len(known)} and {len(view) - at} bytes"
        raise ServeError("elements do not fill the bytes", where=where, expected=f"{elements} elements", got=got)
    array = np.empty(elements, object)
    array[:] = known
    return array


def _as_bytes(element: Any) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()


# --- JSON -------------------------------------------------------------------------------------------------------------


def from_json(data: object, datatype: str, shape: Sequence[int], where: str) -> Array:
    """An array from JSON numbers, flat or nested like the shape. Raises ServeError, about `where`, for numbers that the
    datatype cannot hold."""
    elements = count(shape, where)
    dtype = numpy_dtype(datatype)
    flat = _flat(data, where)
    if len(flat) != elements:
        raise ServeError("wrong number of elements", where=where, expected=elements, got=len(flat))
    if datatype == "BYTES":
        return _texts(flat, where).reshape(shape)
    if datatype in ("FP16", "BF16"):
        raise ServeError(f"{datatype} has no form in JSON", where=where, hint="send it as binary data")
    _check_kinds(flat, datatype, where)
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype).reshape(shape)
    except (OverflowError, FloatingPointError, ValueError, TypeError):
        raise ServeError(f"a number does not fit {datatype}", where=where) from None


def to_json(array: Array, where: str) -> list[Any]:
    """The elements of an array in a flat list. Raises ServeError, about `where`, for NaN and infinity, which JSON
    lacks."""
    if array.dtype.kind in "OSU":
        return [_decoded(e, where) for e in array.reshape(-1).tolist()]
    if array.dtype.kind not in "biuf" or (array.dtype.itemsize == 2 and array.dtype.kind == "f"):
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        hint = "ask for it as binary data: parameters.binary_data"
        raise ServeError("JSON has no form for NaN and infinity", where=where, hint=hint)
    known: list[Any] = array.reshape(-1).tolist()
    return known


def _flat(data: object, where: str) -> list[Any]:
    """The elements of a nested list in one flat list. Raises ServeError if lists of one level differ in length, or nest
    deeper than `MAX_RANK`."""
    if not isinstance(data, list):
        raise ServeError("data is no list", where=where, got=_brief(data))
    for _ in range(MAX_RANK):
        if not data or not any(type(e) is list for e in data):
            return data
        if not all(type(e) is list and len(e) == len(data[0]) for e in data):
            raise ServeError("data is nested unevenly", where=where)
        data = [element for part in data for element in part]
    raise ServeError("data is nested too deeply", where=where, expected=f"at most {MAX_RANK} lists")


_JSON_KINDS: dict[str, frozenset[type]] = {"BOOL": frozenset((bool,)), "FP": frozenset((int, float))}


def _check_kinds(flat: list[Any], datatype: str, where: str) -> None:
    wanted = _JSON_KINDS.get(datatype) or _JSON_KINDS.get(datatype[:2]) or frozenset((int,))
    for element in set(map(type, flat)) - wanted:
        raise ServeError(f"an element is no {datatype}", where=where, got=element.__name__)


def _texts(flat: list[Any], where: str) -> Array:
    if not all(isinstance(e, str) for e in flat):
        raise ServeError("an element is no string", where=where)
    array = np.empty(len(flat), object)
    try:
        array[:] = [e.encode() for e in flat]
    except UnicodeEncodeError:
        raise ServeError("a string has no form in UTF-8", where=where) from None
    return array


def _decoded(element: Any, where: str) -> str:
    try:
        return _as_bytes(element).decode()
    except UnicodeDecodeError:
        raise ServeError("bytes are no UTF-8", where=where, hint="ask for them as binary data") from None


def _brief(value: object) -> str:
    """An untrusted value as short text for messages."""
    return (
        f"{type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple, dict, str)) else repr(value)[:60]
    )


__all__ = [
    "DATATYPES",
    "MAX_RANK",
    "NAMES",
    "Array",
    "Raw",
    "count",
    "datatype_of",
    "from_json",
    "from_raw",
    "numpy_dtype",
    "to_json",
    "to_raw",
]
