"""A graph with other sizes: its symbols replaced by numbers, or by other symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Var, is_const
from tilewright.ir.graph import Graph, Value
from tilewright.ir.rewrite import substitute


def with_symbols(graph: Graph, table: Mapping[Var, Expr]) -> Graph:
    """The graph with symbols replaced in all types, attributes and bodies. Symbols that it does not use are ignored."""
    table = {symbol: e for symbol, e in table.items() if symbol in set(graph.used_symbols)}

    def sized(v: Value) -> Value:
        return Value(v.name, replace(v.type, shape=tuple(simplify(substitute(d, table)) for d in v.shape)))

    def attribute(value: Any) -> Any:
        match value:
            case tuple():
                return tuple(map(attribute, value))
            case Graph():
                return with_symbols(value, table)
            case Expr():
                return substitute(value, table)
        return value

    nodes = tuple(
        replace(
            n,
            inputs=tuple(None if v is None else sized(v) for v in n.inputs),
            outputs=tuple(map(sized, n.outputs)),
            attrs=n.attrs.mapped(attribute),
        )
        for n in graph.nodes
    )
    inputs, params, outputs = (tuple(map(sized, vs)) for vs in (graph.inputs, graph.params, graph.outputs))
    assumptions = (replace(a, condition=simplify(substitute(a.condition, table))) for a in graph.assumptions)
    retained = tuple(a for a in assumptions if not is_const(a.condition, True))
    return Graph(graph.name, inputs, params, nodes, outputs, retained)


__all__ = ["with_symbols"]
