"""The common ground of printer and parser: names, keywords and literals."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME, DType, f32, i64

KEYWORDS = frozenset(
    {
        "align",
        "alloc",
        "and",
        "array",
        "assume",
        "at",
        "barrier",
        "block",
        "buffer",
        "by",
        "call",
        "else",
        "false",
        "for",
        "from",
        "func",
        "graph",
        "if",
        "in",
        "inf",
        "init",
        "let",
        "nan",
        "none",
        "not",
        "of",
        "or",
        "over",
        "parallel",
        "params",
        "reduce",
        "return",
        "serial",
        "thread",
        "true",
        "unrolled",
        "vectorized",
        "where",
    }
)
"""Words that are quoted when they are used as names."""

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
DTYPE = "|".join(sorted(BY_NAME, key=len, reverse=True))

_CANONICAL_NAN = struct.pack("<d", float("nan"))


def name_text(name: str) -> str:
    """The text of a name: an identifier as it is, any other name as a JSON string."""
    if IDENTIFIER.fullmatch(name) and name not in KEYWORDS:
        return name
    return json.dumps(name)


def value_text(name: str) -> str:
    """The text of a graph value: `%x`, `%12`, `%"a/b:0"`."""
    return f"%{name}" if re.fullmatch("[0-9]+", name) and name.isascii() else f"%{name_text(name)}"


def float_text(value: float) -> str:
    """The text of a float, which reads back to the same bits: `0.5`, `1e-07`, `-inf`, `nan`,
    `nan(0x7ff8000000000001)`."""
    if value == value:
        return repr(float(value))
    bits = struct.pack("<d", value)
    return "nan" if bits == _CANONICAL_NAN else f"nan(0x{int.from_bytes(bits, 'little'):016x})"


def nan_of_bits(bits: int) -> float:
    """The double with these bits (the inverse of `nan(0x...)`)."""
    value: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    return value


def const_text(value: Any, dtype: DType) -> str:
    """The text of the literal `value`: i64 and f32 bare, others with their type (`3:i32`, `0.5:f16`), bool as `true`
    and `false`."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if not dtype.is_float:
        return str(value) if dtype is i64 else f"{value}:{dtype}"
    text = float_text(value)
    if dtype is f32:
        return text
    head, paren, payload = text.partition("(")
    return f"{head}:{dtype}{paren}{payload}"


def element_text(value: Any, dtype: DType) -> str:
    """The text of an array's element `value` (a NumPy scalar of `dtype`): a short decimal where that gives the same
    bits back, else the bits in hexadecimal."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_minifloat:
        return f"0x{value.tobytes().hex()}"
    if not dtype.is_float:
        return str(int(value))
    bits = value.tobytes()
    for text in (str(value), repr(float(value))):
        if np.asarray(float(text)).astype(dtype.numpy).tobytes() == bits:
            return text if any(c in text for c in ".enf") else text + ".0"
    return f"0x{int.from_bytes(bits, 'little'):0{2 * len(bits)}x}"
