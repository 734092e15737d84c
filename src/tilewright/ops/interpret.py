"""Run a graph with the operators' NumPy references: the oracle of everything that compiles graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.ir.evaluate import values_of
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, Value
from tilewright.ir.rewrite import variables
from tilewright.ops.registry import get
from tilewright.ops.rooms import is_room
from tilewright.ops.sized import with_symbols
from tilewright.runtime.specs import IMPOSSIBLE
from tilewright.support.errors import CallError, VerifyError


def run_graph(graph: Graph, inputs: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run a graph on arrays and weights (`params`), both by name; returns its outputs by name.

    Symbolic dimensions are bound by the inputs' shapes. Rooms may be omitted. Raises CallError for arguments that do
    not fit, or sizes that violate an assumption of the graph, VerifyError if an operator's reference disagrees with its
    type.
    """
    rooms = {v.name: ROWS for v in graph.inputs if is_room(v) and v.name not in inputs}
    while True:
        try:
            return _run(
                graph, {**inputs, **{name: np.empty((n, 0), np.int8) for name, n in rooms.items()}}, params or {}
            )
        except _TooSmallRoom as asked:
            if asked.name not in rooms:
                raise CallError("data asks for more rows", where=repr(asked.name), got=asked.rows) from None
            rooms[asked.name] = asked.rows


class _TooSmallRoom(Exception):
    """More rows are needed than a room (an input that limits the number of rows) has."""

    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows = name, rows


def _run(graph: Graph, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    symbols: dict[Var, int] = {}
    arrays: dict[Value, Any] = {}
    for source, values in ((inputs, graph.inputs), (params, graph.params)):
        for value in values:
            if value.name not in source:
                raise CallError("an argument is missing", where=f"graph {graph.name}: {value.name!r}")
            arrays[value] = np.asarray(source[value.name])
            _bind(value, arrays[value], symbols)
    for a in graph.assumptions:
        if not evaluate(a.condition, symbols):
            got = ", ".join(f"{s} = {symbols[s]}" for s in variables(a.condition))
            raise CallError("sizes are not what the graph assumes", where=f"graph {graph.name}", expected=a, got=got)
    for node in graph.nodes:
        arguments = [None if v is None else arrays[v] for v in node.inputs]
        if node.defines is not None:
            room = node.inputs[0]
            if room is not None and is_room(room) and int(np.asarray(arguments[1])) > len(np.asarray(arguments[0])):
                raise _TooSmallRoom(room.name, int(np.asarray(arguments[1])))
            symbols[node.defines] = int(np.asarray(arguments[1]))
            if symbols[node.defines] < 0:
                what = getattr(node.attrs, "reason", "") or IMPOSSIBLE
                raise CallError(what, where=f"graph {graph.name}", got=symbols[node.defines])
        attrs = node.attrs.mapped(lambda v: evaluate_attr(v, symbols))
        results = get(node.op).reference(arguments, attrs)
        for value, result in zip(node.outputs, results, strict=True):
            arrays[value] = np.asarray(result)
            _check(node.op, value, arrays[value], symbols)
    return {v.name: arrays[v] for v in graph.outputs}


ROWS = 8
"""The initial number of rows of a room that the caller omits; it grows until the data fits."""


def evaluate(e: Expr, symbols: Mapping[Var, int]) -> Any:
    """The value of an expression for these values of symbols."""

    def symbol(leaf: Expr) -> int:
        if not isinstance(leaf, Var):
            raise TypeError(f"{leaf} is not an expression of symbols")
        return symbols[leaf]

    return values_of(e, symbol).item()


def evaluate_attr(value: Any, symbols: Mapping[Var, int]) -> Any:
    """The attribute `value`, of any type, with its symbols replaced by their numbers in `symbols`."""
    match value:
        case tuple():
            return tuple(evaluate_attr(v, symbols) for v in value)
        case Graph():
            return with_symbols(value, {symbol: const(number) for symbol, number in symbols.items()})
        case Expr():
            return evaluate(value, symbols)
    return value


def _bind(value: Value, array: Any, symbols: dict[Var, int]) -> None:
    if array.dtype != value.dtype.numpy or array.ndim != value.type.rank:
        raise CallError(
            "an argument has the wrong type",
            where=repr(value.name),
            expected=value.type,
            got=f"{array.dtype}{list(array.shape)}",
        )
    for d, extent in zip(value.shape, array.shape, strict=True):
        if isinstance(d, Var):
            symbols.setdefault(d, extent)
    for d, extent in zip(value.shape, array.shape, strict=True):
        if evaluate(d, symbols) != extent:
            raise CallError(
                "an argument has the wrong shape", where=repr(value.name), expected=value.type, got=list(array.shape)
            )


def _check(op: str, value: Value, array: Any, symbols: Mapping[Var, int]) -> None:
    expected = tuple(evaluate(d, symbols) for d in value.shape)
    if array.dtype != value.dtype.numpy or array.shape != expected:
        raise VerifyError(
            f"the reference of {op} does not give what its type rule says",
            where=repr(value.name),
            expected=f"{value.dtype}{list(expected)}",
            got=f"{array.dtype}{list(array.shape)}",
        )
