"""Recognise normalisations: means, differences, squares and quotients as which people write them become one operator.

    d = x - mean(x); y = d * rsqrt(mean(d * d) + epsilon)        ->   y = layer_norm(x)
    y = x * rsqrt(mean(x * x) + epsilon)                         ->   y = rms_norm(x)
    y = norm(x) * scale + bias                                   ->   y = norm(x, scale, bias)

The variance may also be mean(x * x) - mean(x) ** 2, which is less exact than the operator, the reciprocal of the root a
quotient, and the scale may be multiplied with the root. Reductions are over the last dimensions, of known size. Norms
whose deviation other nodes read, as gradients do, stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tilewright.ir.expr import Expr, as_int, const, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.norm import NormAttrs
from tilewright.ops.reduce import ReduceAttrs
from tilewright.transform.graph.matching import Facts, Number, either, matches, op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

CLOSE = 1e-6
"""The largest relative difference between constants that counts as rounding."""
NORMS = ("layer_norm", "rms_norm")
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_mean", "reduce_prod")


def keep_reduced(graph: Graph) -> Graph:
    """Let a reduction keep its reduced dimensions, with extent 1, if all that reads its result are reshapes that insert
    them, so that later nodes see rows."""
    return rewrite(graph, [Rule(op("reshape", op(REDUCTIONS, name="reduced")), _with_dimensions)])


def _with_dimensions(m: Match) -> Value | None:
    reduced, reduction = m["reduced"], m.producer("reduced")
    ones, readers = _with_ones(reduction), m.rewriter.readers[reduced]
    if reduction.of(ReduceAttrs).keepdims or reduced in m.rewriter.outputs:
        return None
    if any(u.op != "reshape" or u.output.shape != ones for u in readers):
        return None
    return m.emit(reduction.op, *reduction.inputs, attrs=replace(reduction.of(ReduceAttrs), keepdims=True))


def _with_ones(reduction: Node) -> tuple[Expr, ...]:
    """The shape of a reduction's result if the reduced dimensions stay, with extent 1."""
    (x,) = (v for v in reduction.inputs if v is not None)
    axes = {a % x.type.rank for a in reduction.of(ReduceAttrs).axes}
    return tuple(const(1) if k in axes else d for k, d in enumerate(x.shape))


SUM = op("add", "square", Number("epsilon"))
ROOT = op("sqrt", SUM)
# A root that others read stays: the deviation would be computed for them once more.
INVERSE = either(
    op("rsqrt", SUM, private=True), op("div", 1.0, ROOT, private=True), op("reciprocal", ROOT, private=True)
)
NORM = op(NORMS, name="norm", private=True)


def recognise_norms(graph: Graph) -> Graph:
    """The graph with normalisations as one operator each."""
    return rewrite(graph, RULES)


def _norm(m: Match) -> Value | None:
    """Emit a norm without scale and shift; with the scale if that is multiplied with the reciprocal root."""
    x, epsilon, scale = m["x"], m.number("epsilon"), m.bound.get("scale")
    norm = _of_square(m.rewriter, x, m["square"]) if 0 <= epsilon < 1 and _is_wide(m.node) else None
    if norm is None:
        return None
    name, source, axis = norm
    if isinstance(scale, Value):
        fits = _fits(scale, x, axis)
        return m.emit(name, source, scale, axis=axis, epsilon=epsilon) if fits else None
    return m.emit(name, source, axis=axis, epsilon=epsilon)


def _joined(place: int, m: Match) -> Value | None:
    """Emit the matched norm with the vector that multiplies it or is added to it as operand number `place`: its scale
    or its shift."""
    norm, vector = m.producer("norm"), m["vector"]
    attrs, (x, *inputs) = norm.of(NormAttrs), norm.inputs
    assert x is not None
    if len(inputs) >= place or not _fits(vector, x, attrs.axis) or not _is_wide(m.node):
        return None
    return m.emit(norm.op, x, *inputs, *[None] * (place - 1 - len(inputs)), vector, attrs=attrs)


RULES = (
    Rule(op("mul", "x", either(INVERSE, op("mul", INVERSE, "scale"))), _norm),
    Rule(op("div", "x", op("sqrt", SUM, private=True)), _norm),
    Rule(op("mul", NORM, "vector"), partial(_joined, 1)),
    Rule(op("add", NORM, "vector"), partial(_joined, 2)),
)


def _is_wide(node: Node) -> bool:
    return node.output.dtype.is_float and node.output.dtype.bits >= 32


def _of_square(facts: Facts, x: Value, square: Value) -> tuple[str, Value, int] | None:
    """(norm, its operand, axis) if `square` is the mean square of `x` or the variance that belongs to `x = operand -
    mean`; None otherwise."""
    difference = facts.producer(x, "sub")
    source, mean = (None, None) if difference is None else difference.inputs
    centred = _mean(facts, mean)
    centred = centred if centred is not None and centred[0] == source else None
    if centred is not None and _fast_variance(facts, square) == centred:
        return "layer_norm", *centred
    squares = _mean(facts, square)
    if squares is None or not _is_square(facts, squares[0], x):
        return None
    if centred is not None and centred[1] == squares[1]:
        return "layer_norm", *centred
    return "rms_norm", x, squares[1]


VARIANCE = op("sub", "squares", op("mul", "mean", "mean"))


def _fast_variance(facts: Facts, square: Value) -> tuple[Value, int] | None:
    """(x, axis) if `square` is max(0, mean(x * x) - mean(x) ** 2), a variance in one pass; None for other values."""
    for bound in matches(either(VARIANCE, op("max", VARIANCE, 0.0)), square, facts, {}):
        first, second = (_mean(facts, bound[name]) for name in ("squares", "mean"))
        if first is not None and second is not None and first[1] == second[1]:
            return second if _is_square(facts, first[0], second[0]) else None
    return None


def _mean(facts: Facts, value: object) -> tuple[Value, int] | None:
    """(x, axis) of a value that is the mean of x over all dimensions from `axis` on, kept with extent 1; None
    otherwise."""
    if not isinstance(value, Value):
        return None
    shape, scale = value.shape, 1.0
    node = facts.producer(value)
    while node is not None and node.op in ("reshape", "div", "mul"):
        source, *factor = node.inputs
        if node.op == "mul" and facts.number(source) is not None:
            (source,), factor = factor, [source]
        number = facts.number(factor[0]) if factor else 1.0
        if not number:
            return None
        scale *= 1 / number if node.op == "div" else number
        node = facts.producer(source)
    if node is None or node.op not in ("reduce_sum", "reduce_mean") or node.inputs[0] is None:
        return None
    x, axes = node.inputs[0], sorted(a % node.inputs[0].type.rank for a in node.of(ReduceAttrs).axes)
    sizes = [as_int(x.shape[a]) for a in axes]
    if not axes or axes != list(range(axes[0], x.type.rank)) or None in sizes or shape != _with_ones(node):
        return None
    count = prod(n or 0 for n in sizes) if node.op == "reduce_sum" else 1
    return (x, axes[0]) if abs(scale * count - 1) < CLOSE else None


def _is_square(facts: Facts, square: Value, x: Value) -> bool:
    return any(matches(either(op("mul", "x", "x"), op("pow", "x", 2.0)), square, facts, {"x": x}))


def _fits(vector: Value, x: Value, axis: int) -> bool:
    """Whether `vector` has extent 1 outside of the normalised dimensions of `x`, from `axis` on, and the extents of `x`
    in these, so that it can be a norm's scale or shift."""
    rank, extra = vector.type.rank, vector.type.rank - x.type.rank
    if extra > 0 or vector.dtype is not x.dtype:
        return False
    first = axis % x.type.rank + extra
    outer = all(is_const(d, 1) for d in vector.shape[: max(first, 0)])
    return rank > 0 and outer and vector.shape[max(first, 0) :] == x.shape[max(first, 0) - extra :]
