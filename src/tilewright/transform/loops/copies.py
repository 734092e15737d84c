"""Copies of statements with fresh names: in a function every loop variable, let and buffer has a name of its own."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Buffer, Expr, Load, Op, Var
from tilewright.ir.loops import Allocate, For, Intrinsic, Let, Region, Stmt, Store
from tilewright.ir.rewrite import fresh_name, map_expr, map_exprs_of, walk, with_children


def copy_fresh(stmt: Stmt, used_names: set[str]) -> Stmt:
    """A copy of `stmt` with fresh names for all that it binds, so that it may stand beside the original."""
    renamed: dict[Var, Expr] = {}
    buffers: dict[Buffer, Buffer] = {}
    for s in walk(stmt):
        match s:
            case For() | Let():
                old = s.var
                renamed[old] = old.renamed(fresh_name(old.name, used_names))
            case Allocate():
                old_buffer = s.buffer
                name = fresh_name(old_buffer.name, used_names)
                buffers[old_buffer] = Buffer(
                    name, old_buffer.dtype, old_buffer.shape, old_buffer.scope, old_buffer.align
                )
    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr | None:
        if type(e) is Var:
            return renamed.get(e)
        if type(e) is Load and e.buffer in buffers:
            return Load(buffers[e.buffer], e.indices)
        return None

    def region(r: Region) -> Region:
        return Region(buffers.get(r.buffer, r.buffer), r.ranges)

    def go(s: Stmt) -> Stmt:
        children = tuple(go(c) for c in s.children)
        s = map_exprs_of(with_children(s, children), lambda e: map_expr(e, on_expr, memo))
        match s:
            case For():
                new = renamed[s.var]
                assert isinstance(new, Var)
                return replace(s, var=new)
            case Let():
                new = renamed[s.var]
                assert isinstance(new, Var)
                return Let(new, s.value, s.body)
            case Allocate():
                return replace(s, buffer=buffers[s.buffer])
            case Store() if s.buffer in buffers:
                return Store(buffers[s.buffer], s.indices, s.value)
            case Intrinsic():
                return replace(s, outputs=tuple(map(region, s.outputs)), inputs=tuple(map(region, s.inputs)))
        return s

    return go(stmt)


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction, from left to right."""
    if type(condition) is Op and condition.name == "and":
        return [*conjuncts(condition.args[0]), *conjuncts(condition.args[1])]
    return [condition]


def stored_tile(to: Buffer, tile: Buffer, used_names: set[str]) -> Stmt:
    """A statement that stores the registers of `tile` to buffer `to`, in unrolled loops over all dimensions. New names
    are added to `used_names`."""
    at = tuple(Var(fresh_name("at", used_names)) for _ in tile.shape)
    s: Stmt = Store(to, at, Load(tile, at))
    for var, extent in zip(reversed(at), reversed(tile.shape), strict=True):
        s = For(var, extent, s, "vectorized" if var is at[-1] else "unrolled")
    return s
