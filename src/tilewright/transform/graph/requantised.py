"""Values that are dequantised, moved and quantised again by the same scale and zero point are only moved.

    a = cast(cast(q) - z) * s;  y = cast(round(transpose(a) / s) + z)      ->      y = transpose(q)

Quantisers write that around each transposition and reshape. A number of 8 bits times a scale, divided by it again, is
within a half of that number, for scales that are positive numbers, as the operators ask for.

    y = cast(round(concat(a, b) / s) + z)     ->     y = concat(cast(round(a / s) + z), cast(round(b / s) + z))

So parts of several scales are rounded where they are computed, and bytes are put together. What copies elements to
several places, as resizing to the nearest ones does, copies bytes likewise, and what is dequantised, moved and
quantised by another scale is quantised again before it is moved.

    y = max_pool(cast(cast(q) - z) * s)       ->     y = cast(cast(max_pool(q)) - z) * s

So are the parts that `slice` and `gather` pick: a code goes to memory, not its number. The greatest code is the
greatest number's where the scale is positive; where a weight may be negative, the codes are ordered around for it.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, f32, i8, i32, u8
from tilewright.ir.expr import is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.pool import MaxPoolAttrs
from tilewright.ops.resize import ResizeAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.targets.target import Target
from tilewright.transform.graph.bounds import MOVES
from tilewright.transform.graph.matching import Number, Operand, either, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite


def _shifted(name: str, source: Operand) -> Operand:
    """A value, or its sum or difference with a zero point."""
    return either(op(name, source, Number(name)), source)


INTEGERS = op("cast", name="integers", where=lambda node: node.output.dtype is i32)
REAL = op("mul", "scale", op("cast", _shifted("sub", INTEGERS)), name="real", through=sorted(MOVES))
LEVELS = op("round", op("div", REAL, "scale", name="division"))


SHAPING = ("reshape", "transpose", "broadcast")
"""Operators that move all elements of one input."""


def _copies(node: Node) -> bool:
    """Whether a node only copies elements of its inputs."""
    return node.op in ("concat", *SHAPING) or (node.op == "resize" and _is_nearest(node.of(ResizeAttrs)))


def _is_nearest(attrs: ResizeAttrs) -> bool:
    return attrs.mode == "nearest" and attrs.roi is None and not attrs.antialias


def _copied(*shaping: str) -> Operand:
    """Levels of what such operators, `concat` and `resize` copy."""
    copy = op(("concat", "resize", *shaping), name="copy", where=_copies, private=True)
    return op("round", op("div", copy, "scale", name="division"))


def _picks(node: Node) -> bool:
    """Whether each element of a node's result is an element of its first input."""
    if node.op != "max_pool":
        return node.op in ("slice", "gather")
    attrs = node.of(MaxPoolAttrs)
    spans = [(k - 1) * d + 1 for k, d in zip(attrs.kernel, attrs.dilations, strict=True)]
    inside = all(pad < span for pad, span in zip(attrs.pads, spans * 2, strict=True))
    return inside and set(attrs.dilations) == {1} and not attrs.ceil_mode  # else a window may have no element


DEQUANTISED = op("mul", "scale", op("cast", _shifted("sub", INTEGERS)), name="real")


def move_quantised(graph: Graph, target: Target) -> Graph:
    """The graph with numbers moved as they are where they would be dequantised and quantised in between. Without dot
    instructions of bytes, numbers of 32 bits are as fast to slice and to transpose."""
    multiplies = any(find_dot(t, i8, target) is not None for t in (u8, i8))
    copied = _copied(*SHAPING) if multiplies else _copied()
    picks = ("max_pool", "slice", "gather") if multiplies else ("max_pool",)
    rules = [
        Rule(op("cast", _shifted("add", LEVELS)), _moved),
        Rule(op("cast", _shifted("add", copied)), _before),
        Rule(op(picks, DEQUANTISED, where=_picks), _codes_picked),
    ]
    while (after := rewrite(graph, rules)) is not graph:
        graph = after
    return graph


def _before(m: Match) -> Value | None:
    """A copy of the codes of what a node copies."""
    copy, scale, to = m.producer("copy"), m["scale"], m.node.output.dtype
    if to not in (u8, i8) or copy.output.dtype is not f32 or not all(is_const(d, 1) for d in scale.shape):
        return None
    if scale.type.rank > copy.output.type.rank or not any(_is_real(m, v) for v in copy.inputs):
        return None
    zero = m.bound.get("add")

    def codes(x: Value | None) -> Value:
        assert x is not None
        levels = m.emit("round", m.emit("div", x, scale))
        if zero is not None:
            number = m.emit("constant", value=ConstantArray(f32.numpy.type(zero)))
            levels = m.emit("add", levels, number)
        return m.emit("cast", levels, dtype=to)

    return m.emit(copy.op, *(codes(x) for x in copy.inputs), attrs=copy.attrs)


def _codes_picked(m: Match) -> Value | None:
    """Numbers of the codes that are picked in place of the numbers."""
    (codes,), scale, real = m.producer("integers").inputs, m["scale"], m["real"]
    assert codes is not None
    if codes.dtype not in (u8, i8) or real.dtype is not f32 or real in m.rewriter.fixed:
        return None
    if codes.shape != real.shape or not all(is_const(d, 1) for d in scale.shape):
        return None
    if scale.type.rank > m.node.output.type.rank:
        return None
    ordered = _ordered_as_numbers(m, scale, codes.dtype) if m.node.op == "max_pool" else lambda x: x
    if ordered is None:
        return None
    codes = ordered(m.emit(m.node.op, ordered(codes), *m.node.inputs[1:], attrs=m.node.attrs))
    integers = m.emit("cast", codes, dtype=i32)
    if (zero := m.bound.get("sub")) is not None:
        integers = m.emit("sub", integers, m.emit("constant", value=ConstantArray(i32.numpy.type(zero))))
    return m.emit("mul", m.emit("cast", integers, dtype=f32), scale)


def _ordered_as_numbers(m: Match, scale: Value, kind: DType) -> Callable[[Value], Value] | None:
    """A function that gives codes so that the greatest is that of the greatest number: as they are for a scale that is
    a positive constant, in the opposite order for a weight that is negative, which is seen when weights are prepared.
    None for a scale that is only known at the call."""
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
    """Whether a value is of codes, times their scale, or copied from such a one."""
    node = m.rewriter.producer(value)
    if node is not None and _copies(node):
        return any(_is_real(m, v) for v in node.inputs)
    return node is not None and node.op == "mul" and any(m.rewriter.producer(v, "cast") for v in node.inputs)


def _moved(m: Match) -> Value | None:
    (numbers,), scale, real, division = m.producer("integers").inputs, m["scale"], m["real"], m.producer("division")
    assert numbers is not None
    if m.bound.get("add", 0.0) != m.bound.get("sub", 0.0) or not all(is_const(d, 1) for d in scale.shape):
        return None
    if numbers.dtype is not m.node.output.dtype or numbers.dtype not in (u8, i8):
        return None
    if real.dtype is not f32 or numbers.shape != real.shape or division.output.type.rank < scale.type.rank:
        return None
    for move in _moves(m, division.inputs[0], real):
        numbers = m.emit(move.op, numbers, attrs=move.attrs)
    return numbers


def _moves(m: Match, value: Value | None, source: Value) -> list[Node]:
    """The nodes from one value to another, in order."""
    moves: list[Node] = []
    while value != source and (node := m.rewriter.producer(value)) is not None:
        moves.insert(0, node)
        value = node.inputs[0]
    return moves
