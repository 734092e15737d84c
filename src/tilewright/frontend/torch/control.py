"""PyTorch's control flow as operators with bodies (`ops/control.py`): `torch.cond`, `while_loop`, `scan` and `map`.

    cond(predicate, then, orelse, operands)             a predicate that is known decides which branch is looked at
    while_loop(condition, body, carried, others)        both functions take the carried values and `others`
    scan(combine, initial, sequences, others)           from (carried, elements) to (carried, outputs)
    map(function, sequences, others)                    a scan that carries nothing

PyTorch passes outer values that the functions read explicitly, as `operands` or `others`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy
import torch
from torch.fx import GraphModule, Node

from tilewright.frontend.common.arithmetic import floored_remainder
from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.loops import captured, cut, loop
from tilewright.ir.dtype import boolean, f64, i64
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Graph, Value
from tilewright.ops.control import CondAttrs
from tilewright.ops.registry import emit, emit1
from tilewright.support.errors import UnsupportedError

if TYPE_CHECKING:
    from tilewright.frontend.torch.call import Call
    from tilewright.frontend.torch.walk import Walk

_COMPARISONS = {
    sympy.StrictGreaterThan: "gt",
    sympy.GreaterThan: "ge",
    sympy.StrictLessThan: "lt",
    sympy.LessThan: "le",
    sympy.Equality: "eq",
    sympy.Unequality: "ne",
}
_ARITHMETIC = {
    "Add": "add", "Mul": "mul", "FloorDiv": "truncdiv", "Mod": "mod", "PythonMod": "mod", "Max": "max", "Min": "min"
}  # fmt: skip
_REAL = {
    "Add": "add",
    "Mul": "mul",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "Max": "max",
    "Min": "min",
    "FloatPow": "pow",
}
_BITS = {"bitwise_and": "bitand", "bitwise_or": "bitor", "bitwise_xor": "bitxor"}
_UNARY = {
    "TruncToFloat": "trunc", "sqrt": "sqrt", "exp": "exp", "log": "log", "log2": "log2", "sin": "sin", "cos": "cos",
    "tan": "tan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asin": "arcsin", "acos": "arccos", "atan": "arctan"
}  # fmt: skip
_REMAINDERS = ("Mod", "PythonMod")
_ROUNDINGS = {"FloorToInt": "floor", "CeilToInt": "ceil", "TruncToInt": "trunc", "RoundToInt": "round"}
"""PyTorch's names for an integer near a float: operators that round."""
_MAX_POWER = 64
_LOGIC = {sympy.And: "and", sympy.Or: "or", sympy.Not: "not"}


def is_control(target: Any) -> bool:
    """Whether a target is one of PyTorch's control flow operators that has a rule here."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() in _RULES


def control(walk: Walk, graph: GraphModule, node: Node, values: dict[Node, Any]) -> list[Any]:
    """The results of `node`, an operator of control flow such as `cond`."""
    target: Any = node.target
    return _RULES[target.name()](walk, graph, node, values)


def truth(walk: Walk, size: torch.SymBool, name: str) -> Any:
    """`size`, a symbolic condition on sizes, as a truth value if it is known, else as a scalar that each call
    computes."""
    return _truth(walk, Emitter(walk.builder, walk.weights, name), size.node.expr)


def number(walk: Walk, size: torch.SymInt, name: str) -> Any:
    """`size`, PyTorch's symbolic integer, as an expression of sizes, or as a scalar if it depends on integers that
    loops carry."""
    e = size.node.expr
    if not any(str(s) in walk.numbers for s in e.free_symbols):
        return walk.sizes.expr(size)
    return _number(walk, Emitter(walk.builder, walk.weights, name), e)


def _number(walk: Walk, n: Emitter, e: Any) -> Value:
    """The SymPy expression `e` of integers as an i64 scalar of the graph."""
    known = walk.numbers.get(str(e)) if e.is_Symbol else None
    if known is not None:
        return known
    if not any(str(s) in walk.numbers for s in e.free_symbols):
        return n.symbols([walk.sizes.expr(e)], i64, ())
    kind = type(e).__name__.removeprefix("BitwiseFn_")
    if kind in _ROUNDINGS:
        return n.cast(n.emit(_ROUNDINGS[kind], _real(walk, n, e.args[0])), i64)
    if kind == "Abs":
        return n.emit("abs", _number(walk, n, e.args[0]))
    if kind in ("Pow", "PowByNatural") and e.args[1].is_Integer and 0 <= e.args[1] <= _MAX_POWER:
        return _power(n, _number(walk, n, e.args[0]), int(e.args[1]))
    if kind not in _ARITHMETIC and kind not in _BITS:
        raise _unsupported(kind, e)
    result, *others = [_number(walk, n, a) for a in e.args]
    for other in others:
        if kind == "FloorDiv":
            result = n.emit("truncdiv", n.emit("sub", result, n.emit("mod", result, other)), other)
        else:
            result = n.emit((_ARITHMETIC | _BITS)[kind], result, other)
    return result


def _power(n: Emitter, base: Value, exponent: int) -> Value:
    """The product of `exponent` times `base`, by squaring."""
    result = n.constant(1, i64)
    for bit in f"{exponent:b}":
        result = n.emit("mul", result, result)
        result = n.emit("mul", result, base) if bit == "1" else result
    return result


def _is_whole(e: Any) -> bool:
    """Whether `e` is an integer. SymPy is told that all remainders are, also those of floats."""
    remainders = (a for a in sympy.preorder_traversal(e) if type(a).__name__ in _REMAINDERS)
    return bool(e.is_integer) and all(a.is_integer for r in remainders for a in r.args)


def _unsupported(kind: str, e: Any) -> UnsupportedError:
    what = f"a number that loops or tensors hold is computed by {kind}, which is not supported"
    return UnsupportedError(what, got=e, hint="compute with the tensor of one element")


def real(walk: Walk, size: torch.SymFloat, name: str) -> Value:
    """`size`, PyTorch's symbolic float of sizes and elements of tensors, as a scalar of f64 that each call computes."""
    return _real(walk, Emitter(walk.builder, walk.weights, name), size.node.expr)


def _real(walk: Walk, n: Emitter, e: Any) -> Value:
    kind = type(e).__name__.removeprefix("OpaqueUnaryFn_")
    if e.is_number:
        return n.constant(float(e), f64)
    if e.is_Symbol and str(e) in walk.numbers:
        return n.cast(walk.numbers[str(e)], f64)
    if kind in _REMAINDERS and not _is_whole(e):
        return floored_remainder(n, *(_real(walk, n, a) for a in e.args))
    if kind in _REAL:
        result, *others = [_real(walk, n, a) for a in e.args]
        for other in others:
            result = n.emit(_REAL[kind], result, other)
        return result
    if kind in _UNARY or (kind == "Abs" and not _is_whole(e)):
        return n.emit(_UNARY.get(kind, "abs"), _real(walk, n, e.args[0]))
    if kind != "ToFloat" and not _is_whole(e):
        raise _unsupported(kind, e)
    return n.cast(_number(walk, n, e.args[0] if kind == "ToFloat" else e), f64)


def _truth(walk: Walk, n: Emitter, e: Any) -> Any:
    if e in (sympy.true, sympy.false):
        return bool(e)
    kind = next((op for cls, op in _COMPARISONS.items() if isinstance(e, cls)), None)
    if kind is not None:
        convert = _number if all(map(_is_whole, e.args)) else _real
        return n.emit(kind, *(convert(walk, n, a) for a in e.args))
    logic = next((op for cls, op in _LOGIC.items() if isinstance(e, cls)), None)
    if logic is None:
        raise UnsupportedError("a condition on sizes is computed in a way that is not supported", got=e)
    parts = [n.constant(p, boolean) if isinstance(p, bool) else p for p in (_truth(walk, n, a) for a in e.args)]
    result = n.emit(logic, *parts[:2])
    for part in parts[2:]:
        result = n.emit(logic, result, part)
    return result


# --- bodies -----------------------------------------------------------------------------------------------------------


def _function(walk: Walk, graph: GraphModule, node: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """The graph that `node` refers to, as a Python function that imports it for its arguments."""
    inner: Any = getattr(graph, node.target)
    return lambda inputs: walk.called(inner, inputs)


def _tensor(walk: Walk, result: Any, name: str) -> Value:
    """`result` as a value of the graph; sizes and Python numbers become scalars, named `name`."""
    if isinstance(result, Value):
        return result
    n = Emitter(walk.builder, walk.weights, name)
    if isinstance(result, Expr):
        return n.symbols([result], i64, ())
    if isinstance(result, bool | int | float):
        return emit1(walk.builder, "constant", value=np.asarray(result))
    raise UnsupportedError("control flow over what is no tensor is not supported", got=type(result).__name__)


def _scalar(walk: Walk, result: Any, name: str) -> Value:
    """`result` as a scalar bool of the graph, named `name`."""
    n = Emitter(walk.builder, walk.weights, name)
    return n.reshape(n.cast(_tensor(walk, result, name), boolean), ())


# --- rules ------------------------------------------------------------------------------------------------------------


def _cond(walk: Walk, graph: GraphModule, node: Node, values: dict[Node, Any]) -> list[Any]:
    predicate = walk.resolve(node.args[0], values)
    operands: Any = node.args[3] if len(node.args) > 3 else ()
    arguments = [walk.resolve(a, values) for a in operands]
    branches = [_function(walk, graph, f) for f in node.args[1:3]]
    if isinstance(predicate, bool | int | float):
        return branches[0 if predicate else 1](arguments)
    scalar = _scalar(walk, predicate, node.name)
    bodies = []
    for branch in branches:
        with cut(walk.builder) as nodes, walk.branching():
            results = [_tensor(walk, r, node.name) for r in branch(arguments)]
        bodies.append((tuple(nodes), tuple(results)))
    types = [[v.type for v in results] for _, results in bodies]
    if types[0] != types[1]:
        shown = [", ".join(map(str, t)) for t in types]
        raise UnsupportedError("cond whose branches give other types is not supported", expected=shown[0], got=shown[1])
    outside = list(dict.fromkeys(v for nodes, results in bodies for v in captured(nodes, results, ())))
    then, orelse = (
        Graph(name, tuple(outside), (), nodes, results)
        for name, (nodes, results) in zip(("then", "orelse"), bodies, strict=True)
    )
    attrs = CondAttrs(orelse=orelse, then=then)
    return list(emit(walk.builder, "cond", scalar, *outside, attrs=attrs, names=[node.name] * len(types[0])))


def _while(walk: Walk, graph: GraphModule, node: Node, values: dict[Node, Any]) -> list[Any]:
    starts, others, _ = _several(walk, node.args[2:4], values)
    start = [_tensor(walk, v, node.name) for v in starts]
    goes_on, body = (_function(walk, graph, f) for f in node.args[:2])
    first = _scalar(walk, goes_on([*start, *others])[0], node.name)
    carried = [_own(walk, node, v) for v in start]
    with cut(walk.builder) as nodes, walk.repeating():
        after = [_tensor(walk, v, node.name) for v in body([*carried, *others])]
        results = [_scalar(walk, goes_on([*after, *others])[0], node.name), *after]
    return loop(walk.builder, node.name, first, start, carried, (), (), nodes, results)


def _scan(walk: Walk, graph: GraphModule, node: Node, values: dict[Node, Any]) -> list[Any]:
    starts, sequences, others = _several(walk, node.args[1:4], values)
    start, rows = ([_tensor(walk, v, node.name) for v in item] for item in (starts, sequences))
    combine = _function(walk, graph, node.args[0])
    carried = [_own(walk, node, v) for v in start]
    elements = [_own(walk, node, v, element=True) for v in rows]
    with cut(walk.builder) as nodes, walk.repeating():
        results = [_tensor(walk, v, node.name) for v in combine([*carried, *elements, *others])]
    return loop(walk.builder, node.name, None, start, carried, rows, elements, nodes, results)


def _map(walk: Walk, graph: GraphModule, node: Node, values: dict[Node, Any]) -> list[Any]:
    sequences, others, _ = _several(walk, node.args[1:3], values)
    rows = [_tensor(walk, v, node.name) for v in sequences]
    elements = [_own(walk, node, v, element=True) for v in rows]
    with cut(walk.builder) as nodes, walk.repeating():
        results = [_tensor(walk, v, node.name) for v in _function(walk, graph, node.args[0])([*elements, *others])]
    return loop(walk.builder, node.name, None, (), (), rows, elements, nodes, results)


def _several(walk: Walk, arguments: Sequence[Any], values: dict[Node, Any]) -> list[list[Any]]:
    results = [[walk.resolve(a, values) for a in (several or ())] for several in arguments]
    return [*results, *([] for _ in range(len(arguments), 3))]


def _own(walk: Walk, node: Node, value: Value, element: bool = False) -> Value:
    """A new value to stand in a body for the carried `value` or, if `element`, for one element of that sequence."""
    t = value.type
    return Value(walk.builder.fresh(f"{node.name}.{value.name}"), type(t)(t.dtype, t.shape[1:]) if element else t)


def repeated_while(
    n: Call, goes_on: Callable[[list[Value]], Value], step: Callable[[list[Value]], list[Value]], start: list[Value]
) -> list[Value]:
    """A loop that a rule emits itself: the values that `start` has after `step` was applied while `goes_on` is true.
    Their types do not change."""
    first = goes_on(start)
    carried = [Value(n.builder.fresh(f"{n.name}.{v.name}"), v.type) for v in start]
    with cut(n.builder) as nodes:
        after = step(carried)
        results = [goes_on(after), *after]
    return loop(n.builder, n.name, first, start, carried, (), (), nodes, results)


_RULES: dict[str, Callable[..., list[Any]]] = {"cond": _cond, "while_loop": _while, "scan": _scan, "map_impl": _map}

__all__ = ["control", "is_control", "number", "real", "repeated_while", "truth"]
