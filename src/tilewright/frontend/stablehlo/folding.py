"""Evaluate operations whose operands are known when compiling: numbers by the operators' references, sizes of symbolic
dimensions by arithmetic of expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.arith import prove
from tilewright.frontend.common.known import MAX_FOLDED, elementwise, object_array
from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import Rule
from tilewright.frontend.stablehlo.scope import Item, element_type, full_array, known_item
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Expr, as_int, maximum, minimum
from tilewright.ir.expr import call as apply
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ops.dims import dim
from tilewright.ops.interpret import evaluate_attr
from tilewright.ops.registry import get
from tilewright.support.errors import Error

NEVER = {"while", "case", "if", "custom_call", "get_dimension_size", "optimization_barrier", "rng_bit_generator"}


def fold(call: Call, rule: Rule | None) -> list[Item] | None:
    """The results of an operation whose operands are all known, or None."""
    name = call.op.name.rpartition(".")[2]
    if not call.items or name in NEVER or any(i.known is None or i.known.size > MAX_FOLDED for i in call.items):
        return None
    if any(i.is_symbolic for i in call.items):
        return _symbolic(call, name)
    return None if rule is None else _numeric(call, rule)


def _numeric(call: Call, rule: Rule) -> list[Item] | None:
    """Run the rule on a graph of its own and evaluate that with the references."""
    builder = GraphBuilder()
    copies = [replace(i, value=None) for i in call.items]
    inner = replace(call, builder=builder, items=copies, weights={}, constants={})
    results = rule(inner)
    several = list(results) if isinstance(results, list | tuple) else [results]
    items = [Item(r.type, r) if isinstance(r, Value) else r for r in several]
    if not all(_small(v) for node in builder.nodes for v in node.outputs):
        return None
    arrays: dict[Value, Any] = {}
    try:
        for node in builder.nodes:
            given = [None if v is None else arrays[v] for v in node.inputs]
            attrs = node.attrs.mapped(lambda v: evaluate_attr(v, {}))
            with np.errstate(all="ignore"):
                arrays.update(zip(node.outputs, get(node.op).reference(given, attrs), strict=True))
        return [replace(i, value=None, known=i.known if i.value is None else arrays[i.value]) for i in items]
    except KeyError:  # depends on a symbol, or on a value outside of a region
        return None


def _small(v: Value) -> bool:
    size = as_int(v.type.size)
    return size is not None and size <= MAX_FOLDED


# --- symbols --------------------------------------------------------------------------------------------------------


def _symbolic(call: Call, name: str) -> list[Item] | None:
    handler = _HANDLERS.get(name)
    if handler is None or len(call.op.types) != 1:
        return None
    arrays = [full_array(i) for i in call.items]
    if any(a is None for a in arrays):
        return None
    try:
        result = handler(call, *(_objects(a) for a in arrays))
    except (Error, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None  # the rule says what is wrong
    return None if result is None else [known_item(result, element_type(call.op.types[0].element))]


def _objects(array: Any) -> Any:
    return array if array.dtype == object else object_array(array.reshape(-1).tolist(), array.shape)


def _divide(a: Any, b: Any) -> Any:
    """StableHLO truncates; dimensions are not negative, so flooring is the same where that is proven."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return dim(a // b) if decide(apply("ge", a, 0)) and decide(apply("gt", b, 0)) else None
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, Expr) or isinstance(b, Expr):
        return dim(a % b) if decide(apply("ge", a, 0)) and decide(apply("gt", b, 0)) else None
    return abs(a) % abs(b) * (1 if a >= 0 else -1)  # it has the sign of what is divided


def decide(condition: Any) -> bool | None:
    """True or False where it is proven, else None."""
    if not isinstance(condition, Expr):
        return bool(condition)
    if prove(condition):
        return True
    return False if prove(~condition) else None


def _compare(call: Call, a: Any, b: Any) -> Any:
    name = str(call.op.attributes.get("comparison_direction", "")).lower()
    negated = {"eq": "ne", "ne": "eq", "lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}[name]

    def compared(x: Any, y: Any) -> Any:
        if not isinstance(x, Expr) and not isinstance(y, Expr):
            return {"eq": x == y, "ne": x != y, "lt": x < y, "gt": x > y, "le": x <= y, "ge": x >= y}[name]
        if prove(apply(name, x, y)):
            return True
        return False if prove(apply(negated, x, y)) else apply(name, x, y)

    return elementwise(compared)(call, a, b)


def _logic(both: bool) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        for x, y in ((a, b), (b, a)):
            if not isinstance(x, Expr):
                return y if bool(x) is both else bool(x)
        return None

    return run


def _select(c: Any, a: Any, b: Any) -> Any:
    if isinstance(c, Expr):
        return apply("select", c, a, b) if isinstance(a, Expr) or isinstance(b, Expr) else None
    return a if c else b


def _extreme(f: Any, numbers: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: dim(f(a, b)) if isinstance(a, Expr) or isinstance(b, Expr) else numbers(a, b)


def _sign(a: Any) -> Any:
    if not isinstance(a, Expr):
        return (a > 0) - (a < 0)
    return 1 if prove(apply("gt", a, 0)) else None


def _reshape(call: Call, a: Any) -> Any:
    return a.reshape([d or 0 for d in call.stated()])


def _concatenate(call: Call, *arrays: Any) -> Any:
    return np.concatenate(arrays, axis=call.integer("dimension"))


def _slice(call: Call, a: Any) -> Any:
    bounds = zip(call.ints("start_indices"), call.ints("limit_indices"), call.ints("strides"), strict=True)
    return a[tuple(slice(*b) for b in bounds)]


def _broadcast(call: Call, a: Any) -> Any:
    shape = [d or 0 for d in call.stated()]
    places = call.ints("broadcast_dimensions")
    return np.broadcast_to(
        a.reshape([a.shape[places.index(k)] if k in places else 1 for k in range(len(shape))]), shape
    )


def _convert(call: Call, a: Any) -> Any:
    t = element_type(call.op.types[0].element)
    return a if (t.is_int and t.bits >= 32) or t is boolean else None


def _reduce(call: Call, a: Any, start: Any) -> Any:
    body = call.op.regions[0].body
    f = {"stablehlo.multiply": lambda x, y: x * y, "stablehlo.add": lambda x, y: x + y}.get(body[0].name)
    if f is None or len(body) != 1 or a.ndim != 1:
        return None
    total = start.reshape(-1)[0]
    for v in a.tolist():
        total = f(total, v)
    return object_array([total], ())


_HANDLERS: dict[str, Callable[..., Any]] = {
    "add": elementwise(lambda a, b: a + b),
    "subtract": elementwise(lambda a, b: a - b),
    "multiply": elementwise(lambda a, b: a * b),
    "divide": elementwise(_divide),
    "remainder": elementwise(_remainder),
    "negate": elementwise(lambda a: -a),
    "sign": elementwise(_sign),
    "maximum": elementwise(_extreme(maximum, max)),
    "minimum": elementwise(_extreme(minimum, min)),
    "clamp": elementwise(lambda low, a, high: _extreme(minimum, min)(_extreme(maximum, max)(a, low), high)),
    "and": elementwise(_logic(True)),
    "or": elementwise(_logic(False)),
    "compare": _compare,
    "select": elementwise(_select),
    "reshape": _reshape,
    "concatenate": _concatenate,
    "slice": _slice,
    "broadcast_in_dim": _broadcast,
    "convert": _convert,
    "reduce": _reduce,
}
