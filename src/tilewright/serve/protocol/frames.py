"""Messages between a server and callers of its machine: fixed structs after a length (`local.py` has their order)."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from tilewright.serve.errors import ServeError

LENGTH = struct.Struct("<I")
CALL = struct.Struct("<QdiIQQ")
"""Number, seconds of the timeout (0: the promise), priority, count of inputs, offset and size of the outputs' room."""
REPLY = struct.Struct("<QIIq")
"""Number, status of HTTP, count of outputs, version of the weights."""
TENSOR = struct.Struct("<QII")
"""Offset, rank, and for outputs the number of the datatype's name in the hello; then the sizes."""
MAX_MESSAGE = 1 << 16
ALIGNMENT = 64
F_ADD_SEALS, F_GET_SEALS, F_SEAL_SHRINK = 1033, 1034, 2


def json_object(message: bytes) -> Mapping[str, Any]:
    """A message that is a JSON object. ServeError."""
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ServeError("the greeting is no JSON object")
    return value


__all__ = [
    "ALIGNMENT",
    "CALL",
    "F_ADD_SEALS",
    "F_GET_SEALS",
    "F_SEAL_SHRINK",
    "LENGTH",
    "MAX_MESSAGE",
    "REPLY",
    "TENSOR",
    "json_object",
]
