"""StableHLO's quantised types, `!quant.uniform<i8:f32, 0.5:-3>`, and how their values are represented in a graph.

    storage <low:high>? : expressed (: axis)?, scale (:zero)?         or {scale (:zero)?, ...} of an axis

jaxlib's parser has no such types. So text is rewritten before it is parsed, to tensors of the expressed type whose
encoding is the quantised type, and the operations that only quantised types may have to ones of a dialect of no name:

    stablehlo.uniform_quantize %a : (tensor<2xf32>) -> tensor<2x!quant.uniform<i8:f32, 0.5>>      ->
    "quant.uniform_quantize"(%a) : (tensor<2xf32>) -> tensor<2xf32, "!quant.uniform<i8:f32, 0.5>">

In the graph a value of a quantised type is the number that its code means. Every operation computes with these numbers
and rounds its result to a code (`dequantize_op_quantize` of the specification):

    code = round(clamp(x / scale + zero, low, high))                  number = (code - zero) * scale
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.ir.dtype import BY_NAME, DType, i32
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

START = "!quant.uniform<"
"""The text with which a quantised type begins."""
MAX_BITS = 32
"""The largest width of a code in bits."""
MOVES = frozenset(
    f"stablehlo.{name}"
    for name in "reshape transpose broadcast_in_dim slice concatenate reverse select gather dynamic_slice".split()
)
"""Operations that only move elements, so that codes stay unchanged."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """A quantised type: the type and bounds of codes, the type of the numbers that they represent, scales and zero
    points, and the axis for whose entries these differ (None: one for all)."""

    storage: DType
    low: int
    high: int
    expressed: DType
    axis: int | None
    scales: tuple[float, ...]
    zeros: tuple[int, ...]


_TYPE = re.compile(
    r"!quant\.uniform<\s*(?P<sign>[iu])(?P<bits>\d{1,2})\s*(?:<\s*(?P<low>-?\d{1,12})\s*:\s*(?P<high>-?\d{1,12})\s*>)?"
    r"\s*:\s*(?P<expressed>\w{1,8})\s*(?::\s*(?P<axis>\d{1,3}))?\s*,\s*(?P<scales>[^<>]*)>"
)
_SCALE = re.compile(r"\s*([0-9.eE+-]+)\s*(?::\s*(-?\d{1,12}))?\s*")


@lru_cache(maxsize=256)
def quantised_type(text: str) -> Quantised | None:
    """The quantised type that `text` spells; None for other types. Raises UnsupportedError for unsupported kinds."""
    if not text.startswith(START):
        return None
    match = _TYPE.fullmatch(text)
    if match is None:
        raise UnsupportedError("this quantised type is not supported", got=text[:100])
    bits, signed = int(match["bits"]), match["sign"] == "i"
    storage, expressed = BY_NAME.get(f"{match['sign']}{bits}"), BY_NAME.get(match["expressed"])
    if storage is None or expressed is None or not expressed.is_float or bits > MAX_BITS:
        raise UnsupportedError("this quantised type is not supported", got=text[:100])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if match["low"] is not None:
        least, most = int(match["low"]), int(match["high"])
        if not low <= least < most <= high:
            raise ModelError("bounds of codes do not fit their type", got=text[:100])
        low, high = least, most
    listed = match["scales"].strip()
    is_list = listed.startswith("{") and listed.endswith("}")
    pairs = [_SCALE.fullmatch(part) for part in (listed[1:-1] if is_list else listed).split(",")]
    if is_list is not (match["axis"] is not None) or any(p is None for p in pairs):
        raise UnsupportedError("this quantised type is not supported", got=text[:100])
    scales = tuple(_number(p[1]) for p in pairs if p is not None)
    zeros = tuple(int(p[2] or 0) for p in pairs if p is not None)
    if not all(np.isfinite(s) and s > 0 for s in scales) or not all(low <= z <= high for z in zeros):
        raise ModelError("scales are positive numbers and zero points are codes", got=text[:100])
    axis = None if match["axis"] is None else int(match["axis"])
    return Quantised(storage, low, high, expressed, axis, scales, zeros)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ModelError("a scale is no number", got=text[:40]) from None


# --- in the text ------------------------------------------------------------------------------------------------------


def rewritten(text: str) -> str:
    """The text of a module with quantised types written as encodings of tensor types, which MLIR's parser in jaxlib
    accepts. Raises UnsupportedError for a quantised type elsewhere."""
    for name, meaning in re.findall(r"^\s*!(\w+)\s*=\s*(!quant\.uniform<[^\n]*>)\s*$", text, re.MULTILINE):
        text = re.sub(rf"^\s*!{name}\s*=[^\n]*$", "", text, flags=re.MULTILINE)
        text = re.sub(rf"!{name}\b", lambda _, meaning=meaning: meaning, text)  # type: ignore[misc]
    parts, at = [], 0
    while (begin := text.find(START, at)) >= 0:
        end = _end(text, begin)
        spelled = text[begin:end]
        match = quantised_type(re.sub(r"\s+", " ", spelled))
        if match is None or text[end : end + 1] != ">":
            raise UnsupportedError("a quantised type outside of a tensor is not supported", got=spelled[:100])
        parts += [text[at:begin], f'{match.expressed.name}, "{spelled}"']
        at = end
    text = "".join([*parts, text[at:]])
    text = re.sub(r'"stablehlo\.(uniform_(?:de)?quantize)"', r'"quant.\1"', text)
    text = re.sub(r"\bstablehlo\.(uniform_(?:de)?quantize)\s+(%[\w.$#-]+)", r'"quant.\1"(\2)', text)
    return re.sub(
        r'(?:"stablehlo\.constant"|\bstablehlo\.constant)\(\)\s*<?(\{[^\n]*?\})>?(\s*:\s*\(\)\s*->\s*tensor<[^\n>]*"!quant)',
        r'"quant.constant"() \1\2',
        text,
    )


def _end(text: str, begin: int) -> int:
    """The position in `text` after the type that begins at `begin`, found by matching angle brackets."""
    depth = 0
    for k in range(begin, len(text)):
        depth += {"<": 1, ">": -1}.get(text[k], 0)
        if text[k] == ">" and not depth:
            return k + 1
    raise ModelError("a quantised type has no end", got=text[begin : begin + 60])


# --- in the graph -----------------------------------------------------------------------------------------------------


def encoded(n: Emitter, x: Value, t: Quantised) -> Value:
    """`x` quantised to codes of type `t`: divided by scales, plus zero points, clamped, and rounded."""
    x = n.emit("div", x, _spread(n, t.scales, t, x))
    if any(t.zeros):
        x = n.emit("add", x, _spread(n, t.zeros, t, x))
    x = n.emit("max", n.emit("min", x, n.like(t.high, x)), n.like(t.low, x))
    return n.emit("cast", n.emit("round", x), dtype=t.storage)


def decoded(n: Emitter, codes: Value, t: Quantised) -> Value:
    """Codes dequantised to numbers; of a constant too, which stays stored as codes."""

    def emit(op: str, *inputs: Value, **attrs: Any) -> Value:
        return Emitter.emit(n, op, *inputs, **attrs)

    levels = emit("cast", codes, dtype=i32) if codes.dtype is not i32 else codes
    if any(t.zeros):
        levels = emit("sub", levels, _spread(n, t.zeros, t, levels))
    numbers = emit("cast", levels, dtype=t.expressed)
    return emit("mul", numbers, _spread(n, t.scales, t, numbers))


def _spread(n: Emitter, numbers: tuple[float, ...] | tuple[int, ...], t: Quantised, x: Value) -> Value:
    """The scales or zero points `numbers` of type `t` as a constant that broadcasts with `x`."""
    if t.axis is None or len(set(numbers)) == 1:
        return n.like(numbers[0], x)
    if t.axis >= x.type.rank:
        raise ModelError("the axis of scales is outside of the tensor", got=t.axis)
    shape = [len(numbers) if k == t.axis else 1 for k in range(x.type.rank)]
    return n.constant(np.reshape(np.asarray(numbers), shape), x.dtype)
