"""Walking and rewriting expressions and statements: the one set of traversals every pass uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import is_

from tilewright.ir.c_functions import PREFIX
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, as_expr, binary, call, lookup
from tilewright.ir.loops import (
    Allocate,
    Block,
    BlockIter,
    For,
    If,
    Intrinsic,
    Let,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    keep_inside,
    keep_loads,
    seq,
)
from tilewright.ir.reduce import Reduce
from tilewright.ir.scalar_ops import TYPED_BY_ARGUMENTS

ExprFn = Callable[[Expr], Expr]


def rebuild(e: Expr, children: Sequence[Expr]) -> Expr:
    """`e` with `children` in place of its own; integer operators fold constants on the way."""
    if all(map(is_, e.children, children)):
        return e
    children = tuple(children)
    match e:
        case Op(name):
            if name not in TYPED_BY_ARGUMENTS:
                return Op(name, children, e.dtype)
            if name == "lookup":
                return lookup(children[0], children[1:])
            if len(children) == 2:
                return binary(name, *children)
            return call(name, *children)
        case Load(buffer):
            return Load(buffer, children)
        case Reduce():
            n = len(e.values)
            axes = tuple((v, x) for (v, _), x in zip(e.axes, children[n:-1], strict=True))
            return Reduce(e.reducer, children[:n], axes, children[-1], e.index)
    return e


def map_expr(e: Expr, f: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` rewritten bottom-up: children first, then `f` on the rebuilt node (None keeps it). Shared subexpressions are
    rewritten once."""
    return _mapped(e, f, {} if memo is None else memo)


def _mapped(node: Expr, f: Callable[[Expr], Expr | None], memo: dict[Expr, Expr]) -> Expr:
    """The recursion of `map_expr`. As a nested function it would be a reference cycle that keeps the memo alive: a
    compile left a million objects to the garbage collector."""
    done = memo.get(node)
    if done is None:
        children = node.children
        rebuilt = rebuild(node, [_mapped(c, f, memo) for c in children]) if children else node
        replaced = f(rebuilt)
        done = memo[node] = rebuilt if replaced is None else replaced
    return done


def substitute(e: Expr, mapping: Mapping[Var, Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with variables replaced by expressions; one `memo` may serve many expressions with the same mapping."""
    if not mapping:
        return e
    return _substituted(e, mapping, {} if memo is None else memo)


def _substituted(node: Expr, mapping: Mapping[Var, Expr], memo: dict[Expr, Expr]) -> Expr:
    if type(node) is Var:
        return mapping.get(node, node)
    done = memo.get(node)
    if done is None:
        if mapping.keys().isdisjoint(variables(node)):
            done = node
        elif isinstance(node, Op) and node.name == "lookup":  # a table may be long, and is of literals
            done = lookup(_substituted(node.args[0], mapping, memo), node.args[1:])
        else:
            done = rebuild(node, [_substituted(c, mapping, memo) for c in node.children])
        memo[node] = done
    return done


def walk_expr(e: Expr) -> Iterator[Expr]:
    """Yield every distinct subexpression of `e` once, `e` included, parents before children."""
    try:
        inner = e.known_parts
    except AttributeError:
        inner = e.known_parts = _parts(e) if e.children else ()
    return chain((e,), inner)


def _parts(e: Expr) -> tuple[Expr, ...]:
    """The distinct sub-expressions of `e` without `e`, whose cache would otherwise keep it alive."""
    result: dict[Expr, None] = {}
    stack = [*reversed(e.operands)]
    tables = [e] if len(e.operands) < len(e.children) else []
    while stack:
        node = stack.pop()
        if node not in result:
            result[node] = None
            stack.extend(reversed(node.operands))
            if len(node.operands) < len(node.children):
                tables.append(node)
    for table in tables:
        result.update(dict.fromkeys(table.children[1:]))
    return tuple(result)


def variables(e: Expr) -> tuple[Var, ...]:
    """The variables in `e`, by first appearance."""
    if type(e) is Var:  # for which nothing is kept: asking would raise each time
        return (e,)
    try:
        return e.known_variables
    except AttributeError:
        pass
    try:
        return _variables(e)
    except RecursionError:
        return tuple(node for node in walk_expr(e) if isinstance(node, Var))


def _variables(e: Expr) -> tuple[Var, ...]:
    if type(e) is Var:
        return (e,)  # kept nowhere: it would keep itself alive
    try:
        return e.known_variables
    except AttributeError:
        parts = [result for c in e.operands if (result := _variables(c))]
        e.known_variables = parts[0] if len(parts) == 1 else tuple(dict.fromkeys(chain(*parts)))
        return e.known_variables


def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in `e`, itself included, by first appearance."""
    try:
        inner = e.known_loads
    except AttributeError:
        inner = e.known_loads = tuple(node for node in walk_expr(e) if isinstance(node, Load) and node is not e)
    return (e, *inner) if type(e) is Load else inner


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Yield `stmt` and every statement inside, in program order, parents first."""
    return chain((stmt,), _inside(stmt))


def _inside(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements inside of `stmt` without `stmt`, whose cache would otherwise keep it alive."""
    try:
        return stmt.known_inside
    except AttributeError:
        results: list[Stmt] = []
        for child in stmt.children:
            results.append(child)
            results.extend(_inside(child))
        keep_inside(stmt, inside := tuple(results))
        return inside


def exprs_of(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in `stmt` (not those of inner statements)."""
    if type(stmt) is Store:  # most are
        return (*stmt.indices, stmt.value)
    match stmt:
        case For():
            return (stmt.extent,)
        case Block():
            return (*(e for it in stmt.iters for e in (it.extent, it.binding)), stmt.predicate)
        case Let():
            return (stmt.value,)
        case If():
            return (stmt.condition,)
        case Allocate():
            return stmt.buffer.shape
        case Intrinsic():
            regions = (*stmt.outputs, *stmt.inputs)
            return tuple(e for region in regions for ends in region.ranges for e in ends)
    return ()


def own_loads(stmt: Stmt) -> tuple[Load, ...]:
    """The distinct loads in the expressions that stand directly in `stmt`, by first appearance."""
    try:
        return stmt.known_loads
    except AttributeError:
        keep_loads(stmt, result := tuple(dict.fromkeys(load for e in exprs_of(stmt) for load in loads(e))))
        return result


def with_children(stmt: Stmt, children: tuple[Stmt, ...]) -> Stmt:
    """`stmt` with `children` in place of its inner statements."""
    if all(map(is_, stmt.children, children)):
        return stmt
    match stmt:
        case Seq():
            return seq(children)
        case For():  # the constructors, which take half of the time of `replace`
            return For(stmt.var, stmt.extent, children[0], stmt.kind, stmt.thread, stmt.notes)
        case Let():
            return Let(stmt.var, stmt.value, children[0])
        case If():
            return If(stmt.condition, *children)
        case Allocate():
            return Allocate(stmt.buffer, children[0])
        case Block():
            return replace(stmt, body=children[-1], init=children[0] if stmt.init is not None else None)
    return stmt


def map_exprs_of(stmt: Stmt, f: ExprFn) -> Stmt:
    """`stmt` with `f` applied to the expressions that stand directly in it."""
    match stmt:
        case For():
            extent = f(stmt.extent)
            return (
                stmt if extent is stmt.extent else For(stmt.var, extent, stmt.body, stmt.kind, stmt.thread, stmt.notes)
            )
        case Block():
            iters = tuple([_map_iter(it, f) for it in stmt.iters])
            predicate = f(stmt.predicate)
            same = predicate is stmt.predicate and all(map(is_, iters, stmt.iters))
            return stmt if same else replace(stmt, iters=iters, predicate=predicate)
        case Store():
            indices = tuple([f(i) for i in stmt.indices])
            value = f(stmt.value)
            same = value is stmt.value and all(map(is_, indices, stmt.indices))
            return stmt if same else Store(stmt.buffer, indices, value)
        case Let():
            value = f(stmt.value)
            return stmt if value is stmt.value else Let(stmt.var, value, stmt.body)
        case If():
            condition = f(stmt.condition)
            return stmt if condition is stmt.condition else If(condition, stmt.then, stmt.orelse)
        case Intrinsic():
            outputs, inputs = (tuple(_map_region(r, f) for r in group) for group in (stmt.outputs, stmt.inputs))
            return replace(stmt, outputs=outputs, inputs=inputs)
    return stmt


def _map_iter(it: BlockIter, f: ExprFn) -> BlockIter:
    extent, binding = f(it.extent), f(it.binding)
    return it if extent is it.extent and binding is it.binding else BlockIter(it.var, extent, it.kind, binding)


def _map_region(region: Region, f: ExprFn) -> Region:
    return replace(region, ranges=tuple((f(a), f(b)) for a, b in region.ranges))


def map_stmt(stmt: Stmt, f: Callable[[Stmt], Stmt | None], exprs: ExprFn | None = None) -> Stmt:
    """`stmt` rewritten bottom-up: expressions by `exprs`, inner statements, then `f` on the rebuilt one (None keeps
    it)."""
    children = stmt.children
    rebuilt = with_children(stmt, tuple([map_stmt(c, f, exprs) for c in children])) if children else stmt
    if exprs is not None:
        rebuilt = map_exprs_of(rebuilt, exprs)
    replaced = f(rebuilt)
    return rebuilt if replaced is None else replaced


def substitute_stmt(stmt: Stmt, mapping: Mapping[Var, Expr]) -> Stmt:
    """`stmt` with free variables replaced by expressions (variables bound inside have other names, so nothing is
    captured)."""
    if not mapping:
        return stmt
    memo: dict[Expr, Expr] = {}
    return map_stmt(stmt, lambda _: None, lambda e: substitute(e, mapping, memo))


def replace_buffers(stmt: Stmt, mapping: Mapping[Buffer, Buffer]) -> Stmt:
    """`stmt` with buffers replaced by others of equal rank in loads, stores, allocations and regions."""
    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr | None:
        return Load(mapping[e.buffer], e.indices) if isinstance(e, Load) and e.buffer in mapping else None

    def on_stmt(s: Stmt) -> Stmt | None:
        match s:
            case Store() if s.buffer in mapping:
                return replace(s, buffer=mapping[s.buffer])
            case Allocate() if s.buffer in mapping:
                return replace(s, buffer=mapping[s.buffer])
            case Intrinsic():
                return replace(s, outputs=tuple(map(on_region, s.outputs)), inputs=tuple(map(on_region, s.inputs)))
        return None

    def on_region(r: Region) -> Region:
        return replace(r, buffer=mapping.get(r.buffer, r.buffer))

    def on_whole(e: Expr) -> Expr:
        return map_expr(e, on_expr, memo) if any(load.buffer in mapping for load in loads(e)) else e

    return map_stmt(stmt, on_stmt, on_whole)


def replace_stmt(root: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """`root` with the one statement that *is* `old` replaced, or removed when `new` is None (empty loops go too)."""
    if root is old:
        return new
    if not root.children:
        return root
    children = [replace_stmt(c, old, new) for c in root.children]
    retained = tuple(c for c in children if c is not None)
    if len(retained) == len(children):
        return with_children(root, retained)
    if isinstance(root, Seq):
        return seq(retained) if retained else None
    if isinstance(root, If) and retained:
        return If(root.condition, retained[0]) if children[0] is not None else If(~root.condition, retained[0])
    return None


def fresh_name(base: str, used_names: set[str]) -> str:
    """A name that is not in `used_names`, to which it is added: `base`, else the first of `base_1`, `base_2`, ... that
    is free."""
    name, n = base, 0
    while name in used_names:
        n += 1
        name = f"{base}_{n}"
    used_names.add(name)
    return name


def names_of(func: PrimFunc) -> set[str]:
    """Every name used in a function: variables, buffers, blocks, symbols."""
    used_names = {b.name for b in (*func.params, *func.buffers)} | {v.name for v in func.symbols}
    for stmt in walk(func.body):
        match stmt:
            case For() | Let():
                used_names.add(stmt.var.name)
            case Block():
                used_names.add(stmt.name)
                used_names.update(it.var.name for it in stmt.iters)
            case Allocate():
                used_names.add(stmt.buffer.name)
    return used_names


def c_calls_in(stmt: Stmt) -> tuple[Op, ...]:
    """The distinct calls of C functions in the expressions inside `stmt`, by first appearance."""
    nodes = (node for s in walk(stmt) for e in exprs_of(s) for node in walk_expr(e))
    calls = (node for node in nodes if isinstance(node, Op) and node.name.startswith(PREFIX))
    return tuple(dict.fromkeys(calls))


def uses(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a buffer is loaded, stored or named in a region inside `stmt`."""
    for s in walk(stmt):
        if any(load.buffer == buffer for load in own_loads(s)):
            return True
        if isinstance(s, Store):
            if s.buffer == buffer:
                return True
        elif isinstance(s, Intrinsic) and any(r.buffer == buffer for r in (*s.outputs, *s.inputs)):
            return True
    return False


def buffers_in(stmt: Stmt) -> tuple[Buffer, ...]:
    """The buffers loaded, stored or named in regions inside `stmt`, by first appearance."""
    result: dict[Buffer, None] = {}
    for s in walk(stmt):
        for e in exprs_of(s):
            result.update((load.buffer, None) for load in loads(e))
        if isinstance(s, Store):
            result[s.buffer] = None
        elif isinstance(s, Intrinsic):
            result.update((r.buffer, None) for r in (*s.outputs, *s.inputs))
    return tuple(result)


__all__ = [
    "as_expr",
    "buffers_in",
    "exprs_of",
    "fresh_name",
    "loads",
    "map_expr",
    "map_exprs_of",
    "own_loads",
    "map_stmt",
    "names_of",
    "rebuild",
    "replace_buffers",
    "replace_stmt",
    "substitute",
    "substitute_stmt",
    "uses",
    "variables",
    "walk",
    "walk_expr",
    "with_children",
]
