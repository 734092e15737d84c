"""Frames: a description and arrays as bytes, for messages and for the log. Untrusted bytes are checked: nothing is
executed, and every length is verified."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import CollectiveError

Array = np.ndarray[Any, Any]
_HEAD = struct.Struct("<II")
_DTYPES = {"float32", "float64", "int64"}
_ALIGN = 8


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A request or an answer: its numbers and texts, and arrays by name."""

    kind: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, Array]


def encode(frame: Frame) -> bytes:
    """A frame's bytes: lengths, a description in JSON, the arrays."""
    arrays = {name: np.ascontiguousarray(array) for name, array in frame.arrays.items()}
    listed = [[name, str(a.dtype), list(a.shape)] for name, a in arrays.items()]
    text = json.dumps({"kind": frame.kind, "facts": dict(frame.facts), "arrays": listed}).encode()
    text += b" " * (-(len(text) + _HEAD.size) % _ALIGN)
    bodies = [a.tobytes() for a in arrays.values()]
    return b"".join([_HEAD.pack(len(text), len(listed)), text, *(b + bytes(-len(b) % _ALIGN) for b in bodies)])


def decode(data: bytes | Array) -> Frame:
    """The frame that bytes encode, whose arrays are views of them. Raises CollectiveError if they are invalid."""
    view = memoryview(data if isinstance(data, bytes) else data.data)
    try:
        length, count = _HEAD.unpack_from(view)
        stated = json.loads(bytes(view[_HEAD.size : _HEAD.size + length]))
        kind, facts, listed = stated["kind"], stated["facts"], stated["arrays"]
        if not (isinstance(kind, str) and isinstance(facts, dict) and len(listed) == count):
            raise ValueError("its description is not one")
        at, arrays = _HEAD.size + length, {}
        for name, dtype, shape in listed:
            if dtype not in _DTYPES or len(shape) > 32 or not all(type(d) is int and 0 <= d < 1 << 48 for d in shape):
                raise ValueError(f"array {str(name)[:40]!r} is {str(dtype)[:20]}")
            size = prod(shape)
            nbytes = size * np.dtype(dtype).itemsize
            if at + nbytes > len(view):
                raise ValueError("it is cut off")
            arrays[str(name)] = np.frombuffer(view, dtype, size, at).reshape(shape)
            at += nbytes + -nbytes % _ALIGN
    except (struct.error, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CollectiveError("this is not a frame", where="parameter server", got=str(error)[:80]) from None
    return Frame(kind, facts, arrays)


def whole(facts: Mapping[str, Any], name: str) -> int:
    """The non-negative integer `name` of a frame's facts. Raises CollectiveError if there is none."""
    value = facts.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise CollectiveError("a number is missing", where="parameter server", expected=name, got=str(value)[:40])
    return value
