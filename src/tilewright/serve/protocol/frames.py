"""Messages between a server and callers on its machine: fixed structs after a length (`local.py` states their
order)."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from tilewright.serve.errors import ServeError

LENGTH = struct.Struct("<I")
CALL = struct.Struct("<QdiIQQ")
"""Number, seconds of the timeout (0: the promise), priority, number of inputs, offset and size of the memory for
outputs."""
REPLY = struct.Struct("<QIIq")
"""Number, HTTP's status, number of outputs, version of the weights."""
TENSOR = struct.Struct("<QII")
"""Offset, rank, and for outputs the index of the datatype's name in the hello; the sizes follow."""
MAX_MESSAGE = 1 << 16
ALIGNMENT = 64
F_ADD_SEALS, F_GET_SEALS, F_SEAL_SHRINK = 1033, 1034, 2


def json_object(message: bytes) -> Mapping[str, Any]:
    """Parse a message as a JSON object. Raises ServeError."""
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
