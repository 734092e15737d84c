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

So are what operators copy and the parts that `slice` and `gather` pick: a code goes to memory, not its number. The
greatest code is the greatest number's where the scale is positive; where a weight may be negative, the codes are
ordered around for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, f32, i8, i32, u8
from tilewright.ir.expr import as_int, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops import is_pointwise
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
PICKS = ("slice", "gather")
"""Operators that give some elements of their first input."""


def _copies(node: Node) -> bool:
    """Whether a node only copies elements of its inputs."""
    return node.op in ("concat", *SHAPING) or (node.op == "resize" and _is_nearest(node.of(ResizeAttrs)))


def _is_nearest(attrs: ResizeAttrs) -> bool:
    return attrs.mode == "nearest" and attrs.roi is None and not attrs.antialias


ROUNDED = op("round", op("div", "value", "scale"))


def _picks(node: Node) -> bool:
    """Whether each element of a node's result is an element of its first input."""
    if node.op != "max_pool":
        return node.op in PICKS or _copies(node)
    attrs = node.of(MaxPoolAttrs)
    spans = [(k - 1) * d + 1 for k, d in zip(attrs.kernel, attrs.dilations, strict=True)]
    inside = all(pad < span for pad, span in zip(attrs.pads, spans * 2, strict=True))
    return inside and set(attrs.dilations) == {1} and not attrs.ceil_mode  # else a window may have no element


DEQUANTISED = op("mul", "scale", op("cast", _shifted("sub", INTEGERS)), name="real")


def move_quantised(graph: Graph, target: Target) -> Graph:
    """The graph with numbers moved as they are where they would be dequantised and quantised in between. Without dot
    instructions of bytes, numbers of 32 bits are as fast to slice and to transpose."""
    multiplies = any(find_dot(t, i8, target) is not None for t in (u8, i8))
    copies = ("concat", "resize", "slice", *SHAPING) if multiplies else ("concat", "resize")
    picks = ("max_pool", "resize", *PICKS, *SHAPING) if multiplies else ("max_pool",)
    rounded = [
        Rule(op("cast", _shifted("add", LEVELS)), _moved),
        Rule(op("cast", _shifted("add", ROUNDED)), lambda m: _before(m, copies)),
    ]
    picked = Rule(op(picks, DEQUANTISED, where=_picks), _codes_picked)
    for rules in (rounded, [*rounded, picked]):  # what is rounded is so by the kernel that computes it
        while (after := rewrite(graph, rules)) is not graph:
            graph = after
    return graph


def _before(m: Match, copies: Collection[str]) -> Value | None:
    """A copy of the codes of what a node copies, perhaps with functions of single elements after it."""
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
    sources = [v for v in (copy.inputs if copy.op == "concat" else copy.inputs[:1]) if v is not None]
    operands = [scale, *(v for node in functions for v in node.inputs if v is not None and _is_single(v))]
    if not _is_single(scale) or any(v.type.rank > x.type.rank for v in operands for x in sources):
        return None
    zero = m.bound.get("add")

    def codes(x: Value) -> Value:
        for node in functions:
            inputs = (v if v is None or _is_single(v) else x for v in node.inputs)
            x = m.emit(node.op, *inputs, attrs=node.attrs)
        levels = m.emit("round", m.emit("div", x, scale))
        if zero is not None:
            number = m.emit("constant", value=ConstantArray(f32.numpy.type(zero)))
            levels = m.emit("add", levels, number)
        return m.emit("cast", levels, dtype=to)

    others = copy.inputs[len(sources) :]
    return m.emit(copy.op, *map(codes, sources), *others, attrs=copy.attrs)


def _argument(node: Node) -> Value | None:
    """The value whose elements a node computes a function of, one by one; None for other nodes."""
    arguments = [v for v in node.inputs if v is not None and not _is_single(v)]
    if not is_pointwise(node) or len(arguments) != 1 or None in node.inputs:
        return None
    return arguments[0] if arguments[0].dtype is f32 and arguments[0].shape == node.output.shape else None


def _gains(m: Match, copy: Node) -> bool:
    """Whether codes in place of the numbers that a node copies leave out floats: there are such parts, or a kernel that
    makes the numbers gives their codes."""
    if not _copies(copy) and copy.op != "slice":
        return False
    if any(_is_real(m, v) for v in copy.inputs):
        return copy.op != "slice"  # those are sliced as codes
    size, source = (as_int(v.type.size) for v in (copy.output, copy.inputs[0]) if v is not None)
    whole = size is not None and source is not None and 2 * size > source
    return copy.op in ("reshape", "transpose", "slice") and (whole or copy.op != "slice") and _is_summed(m, copy)


def _is_summed(m: Match, node: Node, depth: int = 12) -> bool:
    """Whether what a node reads is computed of a sum or of codes by a few functions of single elements."""
    for v in node.inputs:
        maker = m.rewriter.producer(v)
        if maker is None or not depth:
            continue
        kind = ops.get(maker.op).kind
        of_codes = maker.op == "cast" and maker.operands(1)[0].dtype.is_int
        if of_codes or kind in ("contraction", "reduction"):
            return True
        if (kind == "pointwise" or maker.op in MOVES) and _is_summed(m, maker, depth - 1):
            return True
    return False


def _is_single(value: Value) -> bool:
    return all(is_const(d, 1) for d in value.shape)


def _codes_picked(m: Match) -> Value | None:
    """Numbers of the codes that are picked in place of the numbers."""
    (codes,), scale, real = m.producer("integers").inputs, m["scale"], m["real"]
    assert codes is not None
    if codes.dtype not in (u8, i8) or real.dtype is not f32 or real in m.rewriter.fixed:
        return None
    if codes.shape != real.shape or not _is_single(scale):
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
    """The nodes from one value to another, in order."""
    moves: list[Node] = []
    while value != source and (node := m.rewriter.producer(value)) is not None:
        moves.insert(0, node)
        value = node.inputs[0]
    return moves
