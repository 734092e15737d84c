"""The conversion of a run's inputs for the compiled model, and errors about them in ONNX Runtime's wording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.onnxruntime.description import NodeArg, dtype_of, element_name, element_of
from tilewright.onnxruntime.errors import InvalidArgument
from tilewright.onnxruntime.values import OrtValue
from tilewright.runtime.interop import Array, as_numpy
from tilewright.support.errors import CallError


def check_names(inputs: Sequence[NodeArg], others: Sequence[NodeArg], feed: Mapping[str, Any]) -> None:
    """Raise ValueError if inputs are missing that are not optional, InvalidArgument for names that are not inputs.

    Args:
        others: initializers that a feed may have as well.
    """
    missing = [i.name for i in inputs if i.name not in feed and not i.type.startswith("optional")]
    if missing:
        raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
    known = {i.name for i in (*inputs, *others)}
    for name in feed:
        if name not in known:
            raise InvalidArgument(f"Invalid input name: {name}", expected=f"one of {sorted(known)}")


def as_input(value: Any, arg: NodeArg) -> Any:
    """Convert a value of a feed for the model: an array of the stated type, a list of arrays, a dict, or None."""
    if isinstance(value, OrtValue):
        value = value._value
    kind = arg.type
    if kind.startswith("optional("):
        if value is None:
            return None
        kind = kind[len("optional(") : -1]
    if kind.startswith("seq("):
        if not isinstance(value, list | tuple):
            raise RuntimeError(f"Unable to handle object of type {type(value)}: input {arg.name!r} is a {kind}")
        inner = NodeArg(arg.name, kind[len("seq(") : -1], [])
        return [as_input(v, inner) for v in value]
    if kind.startswith("map("):
        return _as_map(value, kind)
    array = _as_strings(value) if element_of(kind) == "string" else _as_tensor(value, arg)
    _check_shape(array, arg)
    return array


def _as_tensor(value: Any, arg: NodeArg) -> Array:
    element = element_of(arg.type)
    dtype = dtype_of(element or "")
    if value is None or isinstance(value, str | bytes | Mapping):
        raise RuntimeError(f"Input must be a list of dictionaries or a single numpy array for input '{arg.name}'.")
    if isinstance(value, list | tuple | int | float | bool):
        try:
            return np.asarray(value, dtype)
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"Input '{arg.name}' cannot be made an array of {arg.type}: {error}") from None
    try:
        array = as_numpy(value, f"input {arg.name!r}")
    except CallError:
        what = f"Input must be a list of dictionaries or a single numpy array for input '{arg.name}'."
        raise RuntimeError(what) from None
    if dtype is not None and array.dtype != dtype:
        actual = element_name(array.dtype)
        if array.dtype == dtype.newbyteorder():  # whose bytes ONNX Runtime reads as they are: other numbers
            raise InvalidArgument(
                f"Unexpected order of bytes for input: {arg.name}. Convert it: x.astype({dtype.str!r})"
            )
        raise InvalidArgument(
            f"Unexpected input data type. Actual: (tensor({actual})) , expected: ({arg.type.removeprefix('optional(')})"
        )
    return array


def _check_shape(array: Array, arg: NodeArg) -> None:
    if not arg.shape:
        return  # of a scalar, or nothing is stated: the model knows
    tail = " Please fix either the inputs/outputs or the model."
    if array.ndim != len(arg.shape):
        what = f"Invalid rank for input: {arg.name} Got: {array.ndim} Expected: {len(arg.shape)}"
        raise InvalidArgument(what + tail)
    wrong = [
        f" index: {k} Got: {size} Expected: {want}"
        for k, (size, want) in enumerate(zip(array.shape, arg.shape, strict=True))
        if isinstance(want, int) and want >= 0 and size != want
    ]
    if wrong:
        lines = "\n".join([f"Got invalid dimensions for input: {arg.name} for the following indices", *wrong])
        raise InvalidArgument(f"{lines}\n{tail}")


def _as_strings(value: Any) -> Array:
    """An object array of Python strings: bytes are decoded as UTF-8, and trailing zeros of void values are kept."""
    array = np.asarray(value)
    if array.dtype.kind in "SV":
        items = [np.asarray(v).tobytes() if array.dtype.kind == "V" else bytes(v) for v in array.reshape(-1)]
        array = _objects([i.decode("utf-8", "surrogateescape") for i in items], array.shape)
    elif array.dtype.kind == "U":
        array = array.astype(object)
    elif array.dtype.kind == "O":
        texts = [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in array.reshape(-1)]
        if not all(isinstance(t, str) for t in texts):
            raise RuntimeError("Input is not of one of the supported types: elements of a tensor(string) are strings")
        array = _objects(texts, array.shape)
    else:
        actual = element_name(array.dtype)
        raise InvalidArgument(f"Unexpected input data type. Actual: (tensor({actual})) , expected: (tensor(string))")
    return array


def _objects(texts: Sequence[str], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def _as_map(value: Any, kind: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise RuntimeError(f"Unable to handle object of type {type(value)}: a {kind} is a dictionary")
    key = kind[len("map(") :].partition(",")[0]
    expected = str if key == "string" else (int, np.integer)
    for k in value:
        if not isinstance(k, expected):
            raise RuntimeError(f"Unexpected key type  {type(k)}, it cannot be linked to C type {key}_t")
    convert = str if key == "string" else int
    return {convert(k): v for k, v in value.items()}


__all__ = ["as_input", "check_names"]
