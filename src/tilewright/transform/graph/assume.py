"""Assumptions of a graph on its sizes, simplified: ranges, multiples and equalities of symbols.

    assume s <= 512, assume t == s + 1, assume a * b <= c          with  x: f32[s], y: f32[t], ...
    ->
    assume a * b <= c                                              with  x: f32[s], y: f32[s + 1],  s in 1..512

Ranges of symbols are checked at every call, are known to every proof, and `min(s, 512)` is `s` then. The remaining
assumptions are checked when a call has new sizes (`runtime/engine.py`), as is a size of an input that is computed from
symbols.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import lcm

from tilewright.arith import Linear, bounds, linear, prove, simplify
from tilewright.ir.dim import MAX_DIM
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Const, Expr, Op, Var, call, const, equal, is_const
from tilewright.ir.graph import Assumption, Graph, Node
from tilewright.ir.rewrite import map_expr, variables
from tilewright.ops.dims import dims
from tilewright.ops.shape import PadAttrs, SliceAttrs
from tilewright.ops.sized import with_symbols
from tilewright.support.errors import ModelError


def fold_assumptions(graph: Graph, keep: Collection[str] = ()) -> Graph:
    """The graph with its assumptions, among them that slices lie inside their operands, folded into ranges and sizes of
    symbols. The same graph if there are none. Symbols named in `keep` are not replaced by expressions of others.

    Raises ModelError for an assumption that holds for no sizes.
    """
    graph = _within(graph)
    while graph.assumptions:
        graph = replace(graph, assumptions=tuple(_parts(graph)))
        match = next(((a, *f) for a in graph.assumptions if (f := _said(a.condition, graph, keep)) is not None), None)
        if match is None:
            return _narrowed(graph)
        assumption, symbol, size = match
        rest = [a for a in graph.assumptions if a is not assumption]
        if not (isinstance(size, Var) and size.name == symbol.name):
            rest += [Assumption(condition, assumption.reason) for condition in _range_of(symbol, size)]
        elif not _sizes(size):
            raise _impossible(graph, assumption)
        elif len(_sizes(size)) == 1:
            size = const(_sizes(size)[0])
        graph = with_symbols(replace(graph, assumptions=tuple(rest)), {symbol: size})
    return graph


def _within(graph: Graph) -> Graph:
    """Add assumptions to the graph: each slice lies inside its operand, and an operand that is padded with its own
    elements is not empty. Assumptions that can be proven are left out."""
    result: dict[Assumption, None] = dict.fromkeys(graph.assumptions)
    known = set(graph.symbols)
    for node in _nodes(graph):
        x = node.inputs[0] if node.inputs else None
        if node.op == "pad" and x is not None and (pads := node.of(PadAttrs)).mode != "constant":
            for before, after, extent in zip(dims(pads.before), dims(pads.after), x.shape, strict=True):
                some = extent >= 1
                if not prove(some) and known.issuperset(variables(some)) and not prove(before + after < 1):
                    result[Assumption(some, f"{x.name!r}, which is padded with its elements, has some")] = None
        if x is None or node.op != "slice":
            continue
        attrs = node.of(SliceAttrs)
        for begin, size, step, extent in zip(dims(attrs.begin), dims(attrs.size), attrs.step, x.shape, strict=True):
            end = begin + (size - 1) * step
            first, last = (begin, end) if step > 0 else (end, begin)
            for inside in (first >= 0, last < extent):
                if not prove(inside) and known.issuperset(variables(inside)) and not prove(inside | (size < 1)):
                    # Of no elements, all lies inside anyway, if not by the same bound: this is more than passes use.
                    bounded = prove(size > 0) or prove(inside, assumptions=(size < 1,))
                    condition = inside if bounded else inside | (size < 1)
                    result[Assumption(condition, f"a slice of {x.name!r} lies inside of it")] = None
    return graph if len(result) == len(graph.assumptions) else replace(graph, assumptions=tuple(result))


def _nodes(graph: Graph) -> Iterator[Node]:
    """All nodes of a graph, including those of bodies."""
    for node in graph.nodes:
        yield node
        for body in node.bodies:
            yield from _nodes(body)


def _parts(graph: Graph) -> list[Assumption]:
    """The assumptions of a graph, simplified: conjunctions are split, duplicates and those that always hold are left
    out."""
    result: dict[Expr, Assumption] = {}
    for a in graph.assumptions:
        stack = [a.condition]
        while stack:
            e = _simpler(simplify(stack.pop()))
            if isinstance(e, Op) and e.name == "and":
                stack += reversed(e.args)
            elif is_const(e, False):
                raise _impossible(graph, a)
            elif not is_const(e, True):
                result.setdefault(e, replace(a, condition=e))
    return list(result.values())


def _impossible(graph: Graph, a: Assumption) -> ModelError:
    return ModelError("the model assumes what holds for no sizes", where=f"graph {graph.name!r}", got=a)


def _simpler(e: Expr) -> Expr:
    """A condition on minima, maxima or quotients as a simple bound: `min(x, y) == x` becomes `x <= y`, `(x + 3) // 4 >=
    2` becomes `x >= 5`."""
    if not isinstance(e, Op) or not e.args or e.args[0].dtype is not i64:
        return e
    if e.name == "eq":
        for atom, chosen, other in _choices(linear(e.args[0] - e.args[1])):
            decided = map_expr(e, lambda x, atom=atom, chosen=chosen: chosen if x is atom else None)  # type: ignore[misc]
            if is_const(simplify(decided), True):
                return _simpler(simplify(call(_EXTREMA[atom.name], chosen, other)))
    match _end(e):
        case (Op("floordiv", (inner, Const(divisor))), sign, number) if divisor > 0:
            first = number * divisor
            return _simpler(simplify(inner >= first if sign < 0 else inner < first + divisor))
    return e


def _choices(form: Linear) -> Iterator[tuple[Op, Expr, Expr]]:
    """Yield for each minimum or maximum m = min(a, b) in a linear form the triples (m, a, b) and (m, b, a)."""
    for atom, _ in form.terms:
        if isinstance(atom, Op) and atom.name in _EXTREMA:
            a, b = atom.args
            yield atom, a, b
            yield atom, b, a


_EXTREMA = {"min": "le", "max": "ge"}


def _end(e: Op) -> tuple[Expr, int, int] | None:
    """The bound that a condition sets on one expression e: (e, 1, n) for `e <= n`, (e, -1, n) for `e >= n`; None for
    other conditions."""
    if e.name not in ("lt", "le", "gt", "ge"):
        return None
    a, b = e.args if e.name in ("lt", "le") else e.args[::-1]
    form = linear(a - b + (1 if e.name in ("lt", "gt") else 0))  # is not above 0
    if len(form.terms) != 1:
        return None
    ((atom, factor),) = form.terms
    return (atom, 1, -form.constant // factor) if factor > 0 else (atom, -1, -(-form.constant // -factor))


def _said(e: Expr, graph: Graph, keep: Collection[str]) -> tuple[Var, Expr] | None:
    """The replacement of a symbol that the condition `e` allows, as (symbol, replacement); None if there is none. The
    replacement is the symbol with another range or multiple, a number, or an expression of other symbols. Symbols in
    `keep` are not replaced by expressions."""
    if not isinstance(e, Op) or not e.args or e.args[0].dtype is not i64:
        return None
    end = _end(e)
    if end is not None:
        symbol, sign, number = end
        if not isinstance(symbol, Var):
            return None
        lo, hi = symbol.lo, symbol.hi
        lo, hi = (lo, _end_at(hi, number)) if sign > 0 else (max(number, lo or 0), hi)
        return symbol, _ranged(symbol, lo, hi, symbol.multiple)
    if e.name != "eq":
        return None
    form = linear(e.args[0] - e.args[1])
    match form.terms:
        case ((Op("mod", (Var() as symbol, Const() as divisor)), _),) if form.constant == 0 and divisor.value > 0:
            return symbol, _ranged(symbol, symbol.lo, symbol.hi, lcm(symbol.multiple, divisor.value))
    order = {symbol: k for k, symbol in enumerate(graph.symbols)}
    own = [(order[v], v, c) for v, c in form.terms if isinstance(v, Var) and v in order and abs(c) == 1]
    for _, symbol, factor in sorted(own, key=lambda entry: -entry[0]):
        size = simplify(symbol - (e.args[0] - e.args[1]) * factor)
        if symbol.name not in keep and symbol not in variables(size):
            return symbol, size
    if len(form.terms) == 1 and isinstance(form.terms[0][0], Var):
        ((symbol, factor),) = form.terms
        assert isinstance(symbol, Var)
        return symbol, const(-form.constant // factor)  # else no number would fit, which simplifying tells
    return None


def _narrowed(graph: Graph) -> Graph:
    """The graph with the ranges of symbols narrowed by its assumptions on several symbols, which remain: with `n <= m *
    2` and m in 0..16, n is at most 32. Each assumption is used once, for two may narrow each other by one, over and
    over."""
    for k in range(len(graph.assumptions)):
        assumption = graph.assumptions[k]
        narrower = dict(_ends(assumption.condition, graph))
        if not all(map(_sizes, narrower.values())):
            raise _impossible(graph, assumption)
        if narrower:
            graph = with_symbols(graph, narrower)
    return graph


def _ends(e: Expr, graph: Graph) -> Iterator[tuple[Var, Var]]:
    """The symbols of a linear condition whose ranges the ranges of the others narrow, each with its new range."""
    if not isinstance(e, Op) or e.name not in ("lt", "le", "gt", "ge") or e.args[0].dtype is not i64:
        return
    a, b = e.args if e.name in ("lt", "le") else e.args[::-1]
    terms = a - b + (1 if e.name in ("lt", "gt") else 0)  # is not above 0
    for symbol, factor in linear(terms).terms:
        least = bounds(simplify(terms - symbol * factor)).lo
        if least is None or not isinstance(symbol, Var) or symbol not in graph.symbols:
            continue
        before = lo, hi = symbol.lo or 0, symbol.hi
        lo, hi = (lo, _end_at(hi, -least // factor)) if factor > 0 else (max(lo, -(-least // -factor)), hi)
        if (lo, hi) != before:
            yield symbol, _ranged(symbol, lo, hi, symbol.multiple)


def _end_at(hi: int | None, number: int) -> int | None:
    """The smaller of two upper bounds, `hi` and `number`. A number that no size reaches is no bound, and `hi` None
    means none."""
    return number if number < (MAX_DIM if hi is None else hi) else hi


def _ranged(symbol: Var, lo: int | None, hi: int | None, multiple: int) -> Var:
    likely = tuple(n for n in symbol.likely if (lo or 0) <= n <= (n if hi is None else hi) and n % multiple == 0)
    return Var(symbol.name, symbol.dtype, lo, hi, multiple, likely=likely)


def _sizes(symbol: Var) -> range:
    """The values that a symbol may have."""
    return range(
        -(-(symbol.lo or 0) // symbol.multiple) * symbol.multiple,
        (1 << 62) if symbol.hi is None else symbol.hi + 1,
        symbol.multiple,
    )


def _range_of(symbol: Var, size: Expr) -> Iterator[Expr]:
    """Conditions on `size`, which replaces a symbol: the range and the multiple that the symbol had."""
    yield size >= (symbol.lo or 0)
    if symbol.hi is not None:
        yield size <= symbol.hi
    if symbol.multiple > 1:
        yield equal(size % symbol.multiple, const(0))


__all__ = ["fold_assumptions"]
