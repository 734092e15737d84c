"""Put statements that no loop of threads surrounds into a thread loop of one iteration, so that one thread runs them.

    for i in 0..64 thread(threadIdx.x) {            for i in 0..64 thread(threadIdx.x) {
      A[i] = ... }                                    A[i] = ... }
    T[0] = A[0] + A[1]                       ->     for one in 0..1 thread(threadIdx.x) { T[0] = A[0] + A[1] }

A statement beside loops of threads runs once: by the first thread in each direction for which it has no enclosing loop.
A statement inside a loop of threads that fills shared memory with the same values in each iteration is run by the first
thread as well. Run sequentially, the loops compute the same as before.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.codegen.cuda.private import extents_of_threads, has_threads, of_threads
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.loops import Allocate, Barrier, For, Intrinsic, Let, PrimFunc, Seq, Stmt, Store
from tilewright.ir.notes import THREADS, Thread
from tilewright.ir.rewrite import exprs_of, fresh_name, names_of, variables, walk, with_children
from tilewright.ir.scopes import sharing

Indices = Mapping[Thread, Var]
"""The thread directions of the enclosing loops, each with the variable of the innermost such loop."""


def one_thread(func: PrimFunc) -> PrimFunc:
    """The function with a thread loop of one iteration around each statement that only one thread is to run."""
    if not has_threads(func.body):
        return func
    names = names_of(func)
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    body = tuple(_Kernel(func.with_body(s), names).statement(s, {}) if has_threads(s) else s for s in nests)
    return func.with_body(with_children(func.body, body) if isinstance(func.body, Seq) else body[0])


class _Kernel:
    """Rewrites one kernel, whose block has threads in the directions `block`."""

    def __init__(self, func: PrimFunc, names: set[str]) -> None:
        self.block: list[Thread] = [t for t in THREADS if t in extents_of_threads(func)]
        self.names = names
        self.through: dict[Var, frozenset[Var]] = {}
        for s in walk(func.body):
            if isinstance(s, Let):
                self.through[s.var] = self.of(s.value)

    def of(self, e: Expr) -> frozenset[Var]:
        """The variables on which the value of `e` depends, directly or through a `let`."""
        own = variables(e)
        return frozenset(own).union(*(self.through[v] for v in own if v in self.through))

    def statement(self, s: Stmt, enclosing: Indices) -> Stmt:
        if isinstance(s, Barrier):
            return s
        if not has_threads(s):
            return self.once(self.filled(s, enclosing), [t for t in self.block if t not in enclosing])
        if isinstance(s, For) and of_threads(s) and s.thread is not None:
            inside: Indices = {**enclosing, s.thread: s.var}
            once_more = [t for t in self.block if t in enclosing and t != s.thread and self.repeats(s, t, enclosing[t])]
            once_more = [t for t in once_more if not any(isinstance(x, For) and x.thread == t for x in walk(s))]
            return self.once(with_children(s, (self.statement(s.body, inside),)), once_more)
        return with_children(s, tuple(self.statement(c, enclosing) for c in s.children)) if s.children else s

    def filled(self, s: Stmt, enclosing: Indices) -> Stmt:
        """The statement `s`, which has no loops of threads inside, with fills of memory that threads share done by the
        first thread alone."""
        first = [t for t in self.block if t in enclosing and self.repeats(s, t, enclosing[t])]
        if first or not s.children:
            return self.once(s, first)
        return with_children(s, tuple(self.filled(c, enclosing) for c in s.children))

    def once(self, s: Stmt, threads: list[Thread]) -> Stmt:
        """The statement `s` inside thread loops of one iteration, so that only the first thread in each of the
        directions `threads` runs it."""
        for t in reversed(threads):
            s = For(Var(fresh_name("one", self.names)), const(1), s, "thread", t)
        return s

    def repeats(self, s: Stmt, thread: Thread, var: Var) -> bool:
        """Whether each iteration of the enclosing thread loop over `var` would write the same values to the same
        elements of memory that the threads share."""
        own = {x.buffer for x in walk(s) if isinstance(x, Allocate)}
        written = {x.buffer for x in walk(s) if isinstance(x, Store)} - own
        written |= {r.buffer for x in walk(s) if isinstance(x, Intrinsic) for r in x.outputs}
        common = bool(written) and all(thread in sharing(b.scope) for b in written)
        return common and not any(var in self.of(e) for x in walk(s) for e in _expressions(x))


def _expressions(s: Stmt) -> list[Expr]:
    return list(exprs_of(s))


__all__ = ["one_thread"]
