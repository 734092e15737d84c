"""Values that are dequantised, moved and quantised again by the same scale and zero point are only moved.

    a = cast(cast(q) - z) * s;  y = cast(round(transpose(a) / s) + z)      ->      y = transpose(q)

Quantisers write that around each transposition and reshape. A number of 8 bits times a scale, divided by it again, is
within a half of that number, for scales that are positive numbers, as the operators ask for.

    y = cast(round(concat(a, b) / s) + z)     ->     y = concat(cast(round(a / s) + z), cast(round(b / s) + z))

So parts of several scales are rounded where they are computed, and bytes are put together. What copies elements to
several places, as resizing to the nearest ones does, copies bytes likewise, and what is dequantised, moved and
quantised by another scale is quantised again before it is moved. What a product or a reduction gives is rounded by its
kernel, before it is moved, in spite of functions of single elements between:

    y = cast(round(relu(transpose(norm(x))) / s) + z)     ->     y = transpose(cast(round(relu(norm(x)) / s) + z))

    y = max_pool(cast(cast(q) - z) * s)       ->     y = cast(cast(max_pool(q)) - z) * s

So is all that operators select (`selections.py`): parts, places that are scattered to, sorted rows; a code goes to
memory, not its number. The greatest code is the greatest number's where the scale is positive; where a weight may be
negative, the codes are ordered around for it.

    y = cumsum(cast(cast(q) - z) * s)         ->     y = cast(cumsum(q) - z * counts) * s
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, f32, i8, i16, i32, u8
from tilewright.ir.expr import as_int, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops import is_pointwise
from tilewright.ops.scan import CumulativeAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.targets.target import Target
from tilewright.transform.graph.bounds import MOVES
from tilewright.transform.graph.matching import Number, Operand, either, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite
from tilewright.transform.graph.selections import (
    OPERATORS,
    SCATTERS,
    SELECTS,
    SHAPING,
    compares,
    fills,
    of_codes,
    selected,
)


def _shifted(name: str, source: Operand) -> Operand:
    """The pattern of a value, or of a sum or difference (`name`) of it and a zero point, which is bound to `name`."""
    return either(op(name, source, Number(name)), source)


INTEGERS = op("cast", name="integers", where=lambda node: node.output.dtype is i32)
REAL = op("mul", "scale", op("cast", _shifted("sub", INTEGERS)), name="real", through=sorted(MOVES))
LEVELS = op("round", op("div", REAL, "scale", name="division"))


COPIES = ("concat", "resize", "slice", "pad", *SCATTERS, *SHAPING)
"""Operators that copy elements: a quantisation after one moves before it, if fewer floats are stored then."""
SUMMED = ("reshape", "transpose", "slice", "pad", *SCATTERS)
"""The operators among `COPIES` before which a quantisation also moves if a kernel computes their operand by sums or
from codes."""
ROUNDED = op("round", op("div", "value", "scale"))


DEQUANTISED = op("mul", "scale", op("cast", _shifted("sub", INTEGERS)), name="real")


def move_quantised(graph: Graph, target: Target) -> Graph:
    """The graph in which codes move instead of numbers that are dequantised before and quantised after. Without dot
    instructions for bytes, fewer operators qualify: 32-bit numbers are sliced and transposed as fast."""
    multiplies = any(find_dot(t, i8, target) is not None for t in (u8, i8))
    copies = COPIES if multiplies else ("concat", "resize")
    picks = tuple(name for name in OPERATORS if name != "concat") if multiplies else ("max_pool",)
    rounded = [
        Rule(op("cast", _shifted("add", LEVELS)), _moved),
        Rule(op("cast", _shifted("add", ROUNDED)), lambda m: _before(m, copies)),
    ]
    picked = Rule(op(picks, DEQUANTISED, where=lambda node: bool(selected(node))), _codes_picked)
    summed = [Rule(op("cumsum", DEQUANTISED), _codes_summed)] if multiplies else []
    for rules in (rounded, [*rounded, picked, *summed]):  # what is rounded is so by the kernel that computes it
        while (after := rewrite(graph, rules)) is not graph:
            graph = after
    return graph


def _before(m: Match, copies: Collection[str]) -> Value | None:
    """Emit a quantisation before the operator that copies its elements, instead of after it: `quantise(f(concat(a,
    b)))` as `concat(quantise(f(a)), quantise(f(b)))`, with pointwise functions f or none. None if that is not possible
    or gains nothing."""
    scale, to = m["scale"], m.node.output.dtype
    if to not in (u8, i8) or m["value"].dtype is not f32:
        return None
    functions: list[Node] = []
    copy = m.rewriter.producer(m["value"])
    while copy is not None and copy.op not in copies and m.rewriter.only_reader(copy.outputs[0]) is not None:
        functions.insert(0, copy)
        copy = m.rewriter.producer(_argument(copy))
    if copy is None or copy.op not in copies or m.rewriter.only_reader(copy.output) is None or not _gains(m, copy):
        return None
    zero, places = _zero(m, "add"), selected(copy)
    attrs = of_codes(copy, zero, to)
    sources = [v for k in places if (v := copy.inputs[k]) is not None]
    operands = [scale, *(v for node in functions for v in node.inputs if v is not None and _is_single(v))]
    if compares(copy) or (functions and fills(copy)):  # functions and scales may exchange the greatest and the least
        return None
    if attrs is None or not _is_single(scale) or any(v.type.rank > x.type.rank for v in operands for x in sources):
        return None

    def codes(x: Value) -> Value:
        for node in functions:
            inputs = (v if v is None or _is_single(v) else x for v in node.inputs)
            x = m.emit(node.op, *inputs, attrs=node.attrs)
        levels = m.emit("round", m.emit("div", x, scale))
        if zero is not None:
            number = m.emit("constant", value=ConstantArray(f32.numpy.type(zero)))
            levels = m.emit("add", levels, number)
        return m.emit("cast", levels, dtype=to)

    inputs = list(copy.inputs)
    for k, source in zip(places, sources, strict=True):
        inputs[k] = codes(source)
    return m.emit(copy.op, *inputs, attrs=attrs)


def _argument(node: Node) -> Value | None:
    """The operand of a pointwise node if it is of f32, has the shape of the result, and all other operands are single
    numbers; None otherwise."""
    arguments = [v for v in node.inputs if v is not None and not _is_single(v)]
    if not is_pointwise(node) or len(arguments) != 1 or None in node.inputs:
        return None
    return arguments[0] if arguments[0].dtype is f32 and arguments[0].shape == node.output.shape else None


def _gains(m: Match, copy: Node) -> bool:
    """Whether copying codes instead of numbers avoids floats: some of the copied parts are dequantised codes, or a
    kernel that computes the numbers from sums can emit their codes."""
    places = selected(copy)
    if not places:
        return False
    if any(_is_real(m, copy.inputs[k]) for k in places):
        alike = copy.op in (*SELECTS, "pad") or (copy.op in SCATTERS and _other_codes(m, copy, places) is not None)
        return not alike  # those are selected as codes
    size, source = (as_int(v.type.size) for v in (copy.output, copy.inputs[0]) if v is not None)
    whole = size is not None and source is not None and 2 * size > source
    return copy.op in SUMMED and (whole or copy.op != "slice") and _is_summed(m, _at(copy, places))


def _is_summed(m: Match, values: Sequence[Value | None], depth: int = 12) -> bool:
    """Whether one of `values` is computed from a reduction, a product or codes by at most `depth` pointwise nodes."""
    for v in values:
        maker = m.rewriter.producer(v)
        if maker is None or not depth:
            continue
        kind = ops.get(maker.op).kind
        of_codes = maker.op == "cast" and maker.operands(1)[0].dtype.is_int
        if of_codes or kind in ("contraction", "reduction"):
            return True
        if (kind == "pointwise" or maker.op in MOVES) and _is_summed(m, maker.inputs, depth - 1):
            return True
    return False


def _is_single(value: Value) -> bool:
    return all(is_const(d, 1) for d in value.shape)


def _codes_picked(m: Match) -> Sequence[Value] | None:
    """Emit a node that selects elements on codes instead of dequantised numbers, then dequantise its result; None if
    that is not possible."""
    node, scale, codes = m.node, m["scale"], _codes(m)
    if codes is None or not _is_single(scale) or scale.type.rank > node.outputs[0].type.rank:
        return None
    zero, places = _zero(m, "sub"), selected(node)
    others, attrs = _other_codes(m, node, places), of_codes(node, zero, codes.dtype)
    ordered = _ordered_as_numbers(m, scale, codes.dtype) if compares(node) else lambda x: x
    if ordered is None or others is None or attrs is None:
        return None
    inputs = list(node.inputs)
    for k, source in zip(places, (codes, *others), strict=True):
        inputs[k] = ordered(source)
    values, *indices = m.emit_all(node.op, *inputs, attrs=attrs)
    return [_numbers(m, ordered(values), zero), *indices]


def _codes(m: Match) -> Value | None:
    """The 8-bit codes that the matched value `real` dequantises; None where they have another type or shape."""
    (codes,), real = m.producer("integers").inputs, m["real"]
    assert codes is not None
    narrow = codes.dtype in (u8, i8) and real.dtype is f32 and codes.shape == real.shape
    return codes if narrow and real not in m.rewriter.fixed else None


def _other_codes(m: Match, node: Node, places: Sequence[int]) -> list[Value] | None:
    """The codes of the inputs at `places`, among which a node selects, after the first one; None if one has another
    scale, zero point or type than the first."""
    first, *others = (None if v is None else m.rewriter.first_match(DEQUANTISED, v) for v in _at(node, places))
    codes = [None if match is None else _codes(match) for match in others]
    if first is None or any(
        match is None
        or match["scale"] != first["scale"]
        or match.bound.get("sub") != first.bound.get("sub")
        or own is None
        or own.dtype is not first.producer("integers").operands(1)[0].dtype
        for match, own in zip(others, codes, strict=True)
    ):
        return None
    return [own for own in codes if own is not None]


def _at(node: Node, places: Sequence[int]) -> list[Value | None]:
    """The inputs of a node at the positions `places`."""
    return [node.inputs[k] for k in places]


def _zero(m: Match, name: str) -> float | None:
    """The zero point that the pattern has bound to `name`; None if there is none."""
    return m.number(name) if name in m.bound else None


def _numbers(m: Match, codes: Value, zero: float | None) -> Value:
    """Emit the numbers that codes stand for: codes less the zero point, times the match's scale."""
    integers = m.emit("cast", codes, dtype=i32)
    if zero is not None:
        integers = m.emit("sub", integers, m.emit("constant", value=ConstantArray(i32.numpy.type(zero))))
    return m.emit("mul", m.emit("cast", integers, dtype=f32), m["scale"])


CODES = 255
"""The largest magnitude of a code less its zero point."""
EXACT = 1 << 24
"""Integers below this bound are exact in f32."""


def _codes_summed(m: Match) -> Value | None:
    """Emit a cumulative sum on codes, which is exact, and dequantise the sums; None if it might not be exact."""
    codes, x, attrs = _codes(m), m["real"], m.node.of(CumulativeAttrs)
    axis = attrs.axis % x.type.rank
    count = as_int(x.shape[axis])
    if codes is None or count is None or CODES * count >= EXACT or not _is_single(m["scale"]):
        return None
    if m["scale"].type.rank > x.type.rank:
        return None
    to = i16 if CODES * count <= int(i16.max) else i32
    sums = m.emit("cast", m.emit("cumsum", codes, attrs=replace(attrs, dtype=to)), dtype=i32)
    if zero := _zero(m, "sub"):
        counts = np.arange(count, dtype=np.int32) + (not attrs.exclusive)
        zeros = (counts[::-1] if attrs.reverse else counts) * np.int32(zero)
        shape = [1] * axis + [count] + [1] * (x.type.rank - axis - 1)
        sums = m.emit("sub", sums, m.emit("constant", value=ConstantArray(zeros.reshape(shape))))
    return m.emit("mul", m.emit("cast", sums, dtype=f32), m["scale"])


def _ordered_as_numbers(m: Match, scale: Value, kind: DType) -> Callable[[Value], Value] | None:
    """A function that emits codes in the order of the numbers they stand for. They are unchanged for a scale that is a
    positive constant; for a weight, whose sign is known when weights are prepared, they are reversed if it is negative.
    None for a scale that is known only at the call."""
    constant = m.rewriter.producer(scale, "constant")
    if constant is not None:
        return (lambda x: x) if (constant.of(ConstantAttrs).value.array > 0).all() else None
    if scale not in m.rewriter.fixed:
        return None
    ends = f32.numpy.type(0), kind.numpy.type(int(kind.min) + int(kind.max))
    zero, last = (m.emit("constant", value=ConstantArray(end)) for end in ends)
    negative = m.emit("lt", scale, zero)
    return lambda x: m.emit("select", negative, m.emit("sub", last, x), x)


def _is_real(m: Match, value: Value | None) -> bool:
    """Whether a value is dequantised codes, or copied from such a value."""
    node = m.rewriter.producer(value)
    if node is not None and node.op in COPIES and (places := selected(node)):
        return any(_is_real(m, v) for v in _at(node, places))
    return node is not None and node.op == "mul" and any(m.rewriter.producer(v, "cast") for v in node.inputs)


def _moved(m: Match) -> Value | None:
    (numbers,), scale, real, division = m.producer("integers").inputs, m["scale"], m["real"], m.producer("division")
    assert numbers is not None
    if m.bound.get("add", 0.0) != m.bound.get("sub", 0.0) or not _is_single(scale):
        return None
    if numbers.dtype is not m.node.output.dtype or numbers.dtype not in (u8, i8):
        return None
    if real.dtype is not f32 or numbers.shape != real.shape or division.output.type.rank < scale.type.rank:
        return None
    for move in _moves(m, division.inputs[0], real):
        numbers = m.emit(move.op, numbers, attrs=move.attrs)
    return numbers


def _moves(m: Match, value: Value | None, source: Value) -> list[Node]:
    """The nodes on the path from `source` to `value`, in order."""
    moves: list[Node] = []
    while value != source and (node := m.rewriter.producer(value)) is not None:
        moves.insert(0, node)
        value = node.inputs[0]
    return moves
