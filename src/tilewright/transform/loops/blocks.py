"""From blocks to ordinary loops: bindings replace iterators, predicates become `If`, `init` finds its place.

    for i in 0..n {                              for i in 0..n {
      for k in 0..m {                              C[i] = 0.0
        block C(vi = i, reduce vk = k) {   ->      for k in 0..m {
          init { C[vi] = 0.0 }                       C[i] = C[i] + A[i, k]
          C[vi] = C[vi] + A[vi, vk]                }
        } } }                                    }

The init goes in front of the outermost loop that drives the reduction, with copies of the spatial loops in between.
Where that is not possible (one loop drives both kinds of iterators, or others use the result inside) it stays in place,
guarded by `all reduction bindings == 0`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import bounds
from tilewright.ir.combine import without_new
from tilewright.ir.expr import Buffer, Expr, Var, all_of, const, equal, is_const
from tilewright.ir.loops import Block, For, If, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import buffers_in, names_of, substitute, substitute_stmt, variables, walk, with_children
from tilewright.transform.loops.copies import conjuncts, copy_fresh


def lower_blocks(func: PrimFunc) -> PrimFunc:
    """The function with each block replaced by ordinary loops and statements: iterators by the values that they are
    bound to, predicates by conditions."""
    return func.with_body(_Lowering(names_of(func), frozenset(func.symbols)).statement(func.body))


class _Lowering:
    """One walk over a function. `placed` names the blocks whose init is already in front of a loop."""

    __slots__ = ("placed", "symbols", "used_names")

    def __init__(self, used_names: set[str], symbols: frozenset[Var]) -> None:
        self.used_names = used_names
        self.symbols = symbols
        self.placed: set[str] = set()

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case Block():
                return self.block(s)
            case For():
                inits = [init for block in _blocks(s.body) if (init := self.hoisted_init(s, block)) is not None]
                body = self.statement(s.body)
                loop = replace(s, body=body)
                return seq([*inits, loop]) if inits else loop
        return with_children(s, tuple(self.statement(c) for c in s.children)) if s.children else s

    def block(self, block: Block) -> Stmt:
        bindings: dict[Var, Expr] = {it.var: it.binding for it in block.iters}
        body = self.statement(substitute_stmt(without_new(block.body), bindings))
        if block.init is not None and block.name not in self.placed:
            first = all_of(equal(it.binding, const(0)) for it in block.iters if it.kind == "reduce")
            init = self.statement(substitute_stmt(block.init, bindings))
            body = seq([init if is_const(first, True) else If(first, init), body])
        return body if is_const(block.predicate, True) else If(block.predicate, body)

    def hoisted_init(self, loop: For, block: Block) -> Stmt | None:
        """The init of `block` with its spatial loops, to stand in front of `loop`; None if it cannot."""
        if block.init is None or block.name in self.placed:
            return None
        driving, spatial = (
            {v for it in block.iters if it.kind == kind for v in variables(it.binding)} - self.symbols
            for kind in ("reduce", "spatial")
        )
        conditions = [(c, set(variables(c)) - self.symbols) for c in conjuncts(block.predicate)]
        # A loop of one iteration at most may be in no binding, but in a condition on the reduction.
        driving |= {v for _, of in conditions if of & driving and not of & spatial for v in of}
        path = _path(loop.body, block)
        if path is None:
            return None
        unbound: set[Var] = set()
        if any(it.kind == "reduce" and _may_be_empty(it.extent) for it in block.iters):
            # Or in none, as all of them read 0 in its place: without iterations the reduction has no element.
            bound = driving | spatial
            unbound = {s.var for s in (loop, *path) if isinstance(s, For) and s.var not in bound and _at_most_once(s)}
            driving |= unbound
        if loop.var not in driving or driving & spatial or any(not isinstance(s, For | Seq) for s in path):
            return None
        outputs = {s.buffer for s in walk(block.init) if isinstance(s, Store)}
        if _used_elsewhere(loop.body, block, outputs):
            return None
        # What bounds the reduction alone may hold nowhere, as with none of its elements: it starts all the same.
        started = [c for c, of in conditions if of & spatial or not of & driving]
        if unbound:  # Such a loop may as well be that of a spatial iterator: there are no results then.
            started += [it.extent > 0 for it in block.iters if it.kind == "spatial" and _may_be_empty(it.extent)]
        predicate = substitute(all_of(started), dict.fromkeys(driving, const(0)))
        needed = spatial | set(variables(predicate))
        loops = [s for s in path if isinstance(s, For) and s.var not in driving and s.var in needed]
        if any(v in driving for s in loops for v in variables(s.extent)):
            return None
        self.placed.add(block.name)
        init = substitute_stmt(block.init, {it.var: it.binding for it in block.iters if it.kind == "spatial"})
        nest = init if is_const(predicate, True) else If(predicate, init)
        for s in reversed(loops):
            nest = replace(s, body=nest)
        return copy_fresh(nest, self.used_names)


def _blocks(s: Stmt) -> list[Block]:
    """The outermost blocks in a statement."""
    if isinstance(s, Block):
        return [s]
    return [b for c in s.children for b in _blocks(c)]


def _may_be_empty(extent: Expr) -> bool:
    """Whether an extent is not known to be at least 1."""
    least = bounds(extent).lo
    return least is None or least < 1


def _at_most_once(loop: For) -> bool:
    """Whether a loop has one iteration at most, and perhaps none."""
    most = bounds(loop.extent).hi
    return most is not None and most <= 1 and _may_be_empty(loop.extent)


def _path(s: Stmt, block: Block) -> list[Stmt] | None:
    """The statements from `s` down to `block`, without it."""
    if s is block:
        return []
    for child in s.children:
        below = _path(child, block)
        if below is not None:
            return [s, *below]
    return None


def _used_elsewhere(s: Stmt, block: Block, buffers: set[Buffer]) -> bool:
    if s is block:
        return False
    if not s.children or isinstance(s, Block):
        return any(b in buffers for b in buffers_in(s))
    return any(_used_elsewhere(c, block, buffers) for c in s.children)
