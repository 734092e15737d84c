"""Constant folding: evaluate nodes whose inputs are known when compiling, numbers by the operators' NumPy references,
symbolic sizes by NumPy on arrays of expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.frontend.common.known import MAX_FOLDED, as_objects, decide, elementwise, evaluated
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.functions import check_attributes
from tilewright.frontend.onnx.registry import find
from tilewright.frontend.onnx.scope import Item, known_item, object_array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, as_expr, as_int, maximum, minimum, product
from tilewright.ir.expr import call as apply
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ops.dims import known, whole_quotient
from tilewright.support.errors import Error

MAX_FACTORS = 8
"""The largest exponent to which a symbolic size is raised."""

_NEVER = {"Constant", "ConstantOfShape", "Shape", "Size", "RandomNormal", "RandomUniform", "Loop", "Scan", "If"}


def fold(call: Call) -> list[Item | None] | None:
    """The outputs of a node whose inputs are all small arrays that are known when compiling and no weights; None for
    other nodes, and for operators of other domains or in `_NEVER`."""
    items = call.items[:1] if call.node.op_type == "CastLike" else call.items
    if not items or call.node.op_type in _NEVER or call.node.domain not in ("", "ai.onnx"):
        return None
    if any(i is not None and (i.known is None or i.weight or i.known.size > MAX_FOLDED) for i in items):
        return None
    if any(i is not None and i.is_symbolic for i in items):
        return _symbolic(call)
    return _numeric(call)


def _numeric(call: Call) -> list[Item | None] | None:
    """The outputs of a node with numeric inputs: its rule builds a small graph, which the operators' NumPy references
    evaluate."""
    rule = find(call.node.domain, call.node.op_type)
    if rule is None:
        return None
    builder = GraphBuilder()
    copies = [None if i is None else replace(i, value=None, name="", weight=False) for i in call.items]
    inner = replace(call, builder=builder, items=copies, weights={}, asked=set(), fixed=set())
    results = rule(inner)
    several = list(results) if isinstance(results, list | tuple) else [results]
    check_attributes(inner)
    arrays = evaluated(builder.nodes, {p: inner.weights[p.name] for p in builder.params})
    if arrays is None:
        return None
    return [
        known_item(arrays[r], r.dtype) if isinstance(r, Value) else r if isinstance(r, Item | None) else None
        for r in several
    ]


# --- symbols --------------------------------------------------------------------------------------------------------


def _symbolic(call: Call) -> list[Item | None] | None:
    handler = _HANDLERS.get(call.node.op_type)
    if handler is None:
        return None
    arrays = [None if i is None else as_objects(i.known) for i in call.items]
    try:
        result = handler(call, *arrays)
    except (Error, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None  # the node's rule says what is wrong
    if result is None:
        return None
    several = result if isinstance(result, list) else [result]
    t = _result_type(call)
    return [known_item(_as_objects(a), t) for a in several]


def _as_objects(a: Any) -> Any:
    """A Python expression or number as a zero-dimensional object array; arrays as they are."""
    return a if isinstance(a, np.ndarray) else object_array([a], ())


def _result_type(call: Call) -> DType:
    from tilewright.frontend.onnx.tensors import element_type
    from tilewright.ir.dtype import boolean

    if call.node.op_type in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not", "And", "Or"):
        return boolean
    if call.node.op_type == "Cast":
        return element_type(call.attr("to"))
    return call.dtype(1 if call.node.op_type == "Where" else 0)


def _divide(a: Any, b: Any) -> Any:
    """Division of sizes, truncated as ONNX says: floor division where the dividend is not negative, else minus the
    floored quotient of its negation. Products that contain the divisor divide exactly, even if it may be 0."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        if not decide(apply("gt", b, 0)):
            return whole_quotient(as_expr(a), as_expr(b))
        return a // b if decide(apply("ge", a, 0)) else maximum(a, 0) // b - maximum(0 - a, 0) // b
    return int(a / b) if isinstance(a, float) else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: Any, b: Any) -> Any:
    """The size `a` to the power of `b`; None if `b` is not a known, small number."""
    n = b if isinstance(b, int) else as_int(b) if isinstance(b, Expr) else None
    return product([a] * n) if n is not None and 0 <= n <= MAX_FACTORS else None


def _compare(name: str) -> Callable[..., Any]:
    def compared(a: Any, b: Any) -> bool | None:
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            return bool({"eq": a == b, "lt": a < b, "gt": a > b, "le": a <= b, "ge": a >= b}[name])
        negated = {"eq": "ne", "lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}[name]
        if known(apply(name, a, b)):
            return True
        return False if known(apply(negated, a, b)) else None

    return elementwise(compared)


def _where(call: Call, condition: Any, a: Any, b: Any) -> Any:
    return elementwise(lambda c, x, y: None if isinstance(c, Expr) else (x if c else y))(call, condition, a, b)


def _rearranged(call: Call, *arrays: Any) -> list[Any] | None:
    """The outputs of an operator that only moves elements, for arrays of expressions: it is evaluated on the elements'
    positions, and expressions are looked up there. None if that fails."""
    table = object_array([v for a in arrays[: _data_inputs(call, arrays)] for v in a.reshape(-1).tolist()])
    offset, items = 0, list(call.items)
    for i in range(_data_inputs(call, arrays)):
        positions = np.arange(offset, offset + arrays[i].size, dtype=np.int64).reshape(arrays[i].shape)
        offset += arrays[i].size
        items[i] = known_item(positions, _i64())
    if any(i is not None and i.is_symbolic for i in items):
        return None
    result = _numeric(replace(call, items=items))
    if result is None or any(i is None for i in result):
        return None
    return [table[np.asarray(i.known, np.int64)] if i.known.size else i.known.astype(object) for i in result if i]


def _data_inputs(call: Call, arrays: Any) -> int:
    return len(arrays) if call.node.op_type == "Concat" else 1


def _i64() -> DType:
    from tilewright.ir.dtype import i64

    return i64


def _cast(call: Call, a: Any) -> Any:
    t = _result_type(call)
    return a if t.is_int and t.bits >= 32 else None


def _reduce(f: Callable[[Any, Any], Any], start: Any) -> Callable[..., Any]:
    def run(call: Call, a: Any, axes: Any = None) -> Any:
        chosen = axes.reshape(-1).tolist() if axes is not None else call.ints("axes")
        if a.ndim != 1 or (chosen is not None and chosen not in ([0], [-1])):
            return None
        if not chosen and call.integer("noop_with_empty_axes", 0):
            return None
        total = start
        for v in a.tolist():
            total = f(total, v)
        return object_array([total], (1,) if call.integer("keepdims", 1) else ())

    return run


def _range(call: Call, start: Any, limit: Any, delta: Any) -> Any:
    numbers = [a.reshape(-1)[0] for a in (start, limit, delta)]
    if any(isinstance(v, Expr) for v in numbers):
        return None
    return object_array(list(np.arange(*numbers)))


_MOVERS = "Concat Gather GatherElements GatherND Reshape Squeeze Unsqueeze Slice Split Transpose Expand Tile Flatten"

_HANDLERS: dict[str, Callable[..., Any]] = {
    "Add": elementwise(lambda a, b: a + b),
    "Sub": elementwise(lambda a, b: a - b),
    "Mul": elementwise(lambda a, b: a * b),
    "Div": elementwise(_divide),
    "Mod": elementwise(lambda a, b: a % b),
    "Neg": elementwise(lambda a: -a),
    "Pow": elementwise(_power),
    "Max": elementwise(lambda *a: _fold_pairs(maximum, a)),
    "Min": elementwise(lambda *a: _fold_pairs(minimum, a)),
    "Equal": _compare("eq"),
    "Less": _compare("lt"),
    "Greater": _compare("gt"),
    "LessOrEqual": _compare("le"),
    "GreaterOrEqual": _compare("ge"),
    "Where": _where,
    "Cast": _cast,
    "Identity": lambda call, a: a,
    "Range": _range,
    "ReduceProd": _reduce(lambda a, b: a * b, 1),
    "ReduceSum": _reduce(lambda a, b: a + b, 0),
    "ReduceMax": _reduce(lambda a, b: _fold_pairs(maximum, (a, b)), 0),
    **dict.fromkeys(_MOVERS.split(), _rearranged),
}


def _fold_pairs(f: Callable[[Any, Any], Any], values: Any) -> Any:
    result = values[0]
    for v in values[1:]:
        if isinstance(result, Expr) or isinstance(v, Expr):
            result = f(result, v)
        else:
            result = max(result, v) if f is maximum else min(result, v)
    return result
