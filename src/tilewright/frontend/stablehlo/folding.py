"""Constant folding: evaluate operations whose operands are known when compiling, numbers by the operators' NumPy
references, symbolic sizes by arithmetic of expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tilewright.arith import linear, prove, simplify
from tilewright.frontend.common.known import MAX_FOLDED, as_objects, decide, elementwise, evaluated, object_array
from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import Rule
from tilewright.frontend.stablehlo.scope import Item, element_type, full_array, known_item
from tilewright.ir.dtype import boolean
from tilewright.ir.expr import Expr, as_expr, maximum, minimum
from tilewright.ir.expr import call as apply
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ops.dims import dim
from tilewright.support.errors import Error

NEVER = {"while", "case", "if", "custom_call", "get_dimension_size", "optimization_barrier", "rng_bit_generator"}


def fold(call: Call, rule: Rule | None) -> list[Item] | None:
    """The results of an operation whose operands are all small known arrays; None for others, and without a `rule`."""
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
    arrays = evaluated(builder.nodes, {})
    if arrays is None or any(i.value is not None and i.value not in arrays for i in items):
        return None  # such a value is one outside of a region
    return [replace(i, value=None, known=i.known if i.value is None else arrays[i.value]) for i in items]


# --- symbols --------------------------------------------------------------------------------------------------------


def _symbolic(call: Call, name: str) -> list[Item] | None:
    handler = _HANDLERS.get(name)
    if handler is None or len(call.op.types) != 1:
        return None
    arrays = [full_array(i) for i in call.items]
    if any(a is None for a in arrays):
        return None
    try:
        result = handler(call, *(as_objects(a) for a in arrays))
    except (Error, TypeError, ValueError, IndexError, ZeroDivisionError):
        return None  # the rule says what is wrong
    return None if result is None else [known_item(result, element_type(call.op.types[0].element))]


def _divide(call: Call, a: Any, b: Any) -> Any:
    """a / b of sizes, truncated as StableHLO says. A symbolic quotient is recorded with its operands, since JAX builds
    floor division from it by a select (`_floored`)."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if not decide(apply("gt", b, 0)):
        return None
    _not_negative(call, a)
    result = dim(_part(a) // b - _part(-a) // b)
    call.dimensions.quotients.setdefault(as_expr(result), []).append((a, b))
    return result


def _remainder(call: Call, a: Any, b: Any) -> Any:
    """The remainder of the sizes `a` and `b`, which has the sign of `a`; None if `b` is symbolic and not known to be
    positive."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return abs(a) % abs(b) * (1 if a >= 0 else -1)
    if not decide(apply("gt", b, 0)):
        return None
    _not_negative(call, a)
    result = _truncated_rest(a, b)
    call.dimensions.remainders.setdefault(as_expr(result), []).append((a, b))
    return result


def _truncated_rest(a: Any, b: Any) -> Expr:
    return dim(_part(a) % b - _part(-a) % b)


def _not_negative(call: Call, a: Any) -> None:
    """Assume that `a`, a size minus a number, is not negative. It is done only if no constraints from outside the
    module state sizes: for a dimension `2*b + 2` JAX computes b by such a difference."""
    if not call.dimensions.stated and decide(apply("ge", a, 0)) is None and len(linear(a).terms) == 1:
        call.dimensions.assume(as_expr(a) >= 0, "a size that is divided", call.builder)


def _part(a: Any) -> Expr:
    """The size `a`, or 0 where it is negative."""
    if decide(apply("ge", a, 0)):
        return as_expr(a)
    return as_expr(0) if decide(apply("le", a, 0)) else dim(maximum(a, 0))


def _floored(call: Call, condition: Expr, a: Expr, b: Expr) -> Expr | None:
    """`n // d` or `n % d` if `select(condition, a, b)` is the formula by which JAX computes one of them from a
    truncated quotient or remainder `b`; None for other selects."""
    condition = simplify(condition)
    for n, d in call.dimensions.quotients.get(b, ()):
        rest = _truncated_rest(n, d)
        wrong = _compared("ne", _sign(n), _sign(d)), _compared("ne", rest, 0)
        if a is dim(b - 1) and condition in _both(*wrong):
            return as_expr(-1) if _just_below(n, d) else dim(as_expr(n) // d)
    for n, d in call.dimensions.remainders.get(b, ()):
        if a is dim(b + d) and condition in _both(_compared("lt", b, 0), _compared("ne", b, 0)):
            return dim(as_expr(n) + d) if _just_below(n, d) else dim(as_expr(n) % d)
    return None


def _just_below(n: Any, d: Any) -> bool:
    """Whether -d <= n < 0 is proven."""
    return bool(decide(apply("lt", n, 0)) and decide(apply("ge", as_expr(n) + d, 0)))


def _both(a: Any, b: Any) -> list[Expr]:
    """The two orders of "a and b", simplified, to compare a condition with."""
    results = _logic(True)(a, b), _logic(True)(b, a)
    return [simplify(e) for e in results if isinstance(e, Expr)]


def _compare(call: Call, a: Any, b: Any) -> Any:
    name = str(call.op.attributes.get("comparison_direction", "")).lower()
    return elementwise(lambda x, y: _compared(name, x, y))(call, a, b)


def _compared(name: str, x: Any, y: Any) -> Any:
    if not isinstance(x, Expr) and not isinstance(y, Expr):
        return {"eq": x == y, "ne": x != y, "lt": x < y, "gt": x > y, "le": x <= y, "ge": x >= y}[name]
    if any(isinstance(v, bool | np.bool_) or (isinstance(v, Expr) and v.dtype is boolean) for v in (x, y)):
        return _same_truth(name, x, y)
    negated = {"eq": "ne", "ne": "eq", "lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}[name]
    if prove(apply(name, x, y)):
        return True
    return False if prove(apply(negated, x, y)) else apply(name, x, y)


def _same_truth(name: str, x: Any, y: Any) -> Any:
    """`x == y` or `x != y` (by `name`, "eq" or "ne") of truth values of which one is known; None if both are
    symbolic."""
    if isinstance(x, Expr) and isinstance(y, Expr):
        return None
    e, known = (x, bool(y)) if isinstance(x, Expr) else (y, bool(x))
    if name not in ("eq", "ne"):
        return None
    return e if known == (name == "eq") else ~e


def _logic(both: bool) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        for x, y in ((a, b), (b, a)):
            if not isinstance(x, Expr):
                return y if bool(x) is both else bool(x)
        return apply("and" if both else "or", a, b)

    return run


def _select(call: Call, c: Any, a: Any, b: Any) -> Any:
    if not isinstance(c, Expr):
        return a if c else b
    if (result := _floored(call, c, as_expr(a), as_expr(b))) is not None:  # of -1 and 0 too: a quotient may be a number
        return result
    return apply("select", c, a, b) if isinstance(a, Expr) or isinstance(b, Expr) else None


def _extreme(f: Any, numbers: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: dim(f(a, b)) if isinstance(a, Expr) or isinstance(b, Expr) else numbers(a, b)


def _sign(a: Any) -> Any:
    if not isinstance(a, Expr):
        return (a > 0) - (a < 0)
    if decide(apply("gt", a, 0)):
        return 1
    return -1 if decide(apply("lt", a, 0)) else dim(minimum(maximum(a, -1), 1))


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


def _of_call(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, a function of the call and single elements, as a function of the call and arrays."""
    return lambda call, *arrays: elementwise(partial(f, call))(call, *arrays)


_HANDLERS: dict[str, Callable[..., Any]] = {
    "add": elementwise(lambda a, b: a + b),
    "subtract": elementwise(lambda a, b: a - b),
    "multiply": elementwise(lambda a, b: a * b),
    "divide": _of_call(_divide),
    "remainder": _of_call(_remainder),
    "negate": elementwise(lambda a: -a),
    "sign": elementwise(_sign),
    "maximum": elementwise(_extreme(maximum, max)),
    "minimum": elementwise(_extreme(minimum, min)),
    "clamp": elementwise(lambda low, a, high: _extreme(minimum, min)(_extreme(maximum, max)(a, low), high)),
    "and": elementwise(_logic(True)),
    "or": elementwise(_logic(False)),
    "not": elementwise(lambda a: ~a if isinstance(a, Expr) else not a),
    "compare": _compare,
    "select": _of_call(_select),
    "reshape": _reshape,
    "concatenate": _concatenate,
    "slice": _slice,
    "broadcast_in_dim": _broadcast,
    "convert": _convert,
    "reduce": _reduce,
}
