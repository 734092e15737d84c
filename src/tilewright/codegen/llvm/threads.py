"""A kernel's threads: all of them call it, a parallel loop gives each its share, the rest is done by thread 0.

    for i in parallel 0..n     thread t runs a contiguous share of 0..n, shares differing by one at most
    for i in 0..n { parallel } every thread runs the outer loop
    anything else              thread 0 only

A barrier stands wherever a thread might otherwise see memory before the thread that writes it is done, and at the end
of what threads share. With one thread none of it happens.
"""

from __future__ import annotations

from tilewright.codegen.llvm.expr import evaluate, is_natural
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.stmt import emit, iteration, serial
from tilewright.codegen.llvm.stream import fence
from tilewright.codegen.touched import Touched, touched
from tilewright.ir.expr import as_int
from tilewright.ir.loops import For, If, Let, PrimFunc, Seq, Stmt
from tilewright.ir.notes import SingleThread, find


def runs_alone(func: PrimFunc) -> bool:
    """Whether thread 0 executes all of a kernel. Such a kernel has no barrier: its caller puts one after several."""
    return find(func.notes, SingleThread) is not None or not _is_shared(func.body)


def emit_threads(s: State, func: PrimFunc) -> None:
    """Write the kernel's body for every thread, ending with a barrier if they share it."""
    if runs_alone(func):
        _alone(s, func.body)
        fence(s)
    else:
        _Threads(s).run(func.body)
        _barrier(s)


def _is_shared(stmt: Stmt) -> bool:
    """Whether all threads take part in `stmt`. What lives in an allocation outside a parallel loop belongs to one
    thread's stack, so such a statement is left to one thread."""
    match stmt:
        case For():
            return stmt.kind == "parallel" or (stmt.kind in ("serial", "unrolled") and _is_shared(stmt.body))
        case Let(_, _, body):
            return _is_shared(body)
        case Seq() | If():
            return any(_is_shared(c) for c in stmt.children)
    return False


class _Threads:
    """Walks the statements that all threads take part in and puts barriers between them."""

    def __init__(self, s: State) -> None:
        self.s = s
        self.open = Touched()

    def run(self, stmt: Stmt) -> None:
        s = self.s
        match stmt:
            case Seq(stmts):
                self._sequence(stmts)
            case For() if stmt.kind == "parallel":
                self._before(stmt)
                _share(s, stmt)
            case For() if _is_shared(stmt):
                self._loop(stmt)
            case Let(var, value, body) if _is_shared(stmt):
                self._before(stmt, own=True)
                s.env[var] = evaluate(s, value)
                s.depth[var] = len(s.scopes)
                with s.scope():
                    self.run(body)
            case If() if _is_shared(stmt):
                self._if(stmt)
            case _:
                self._before(stmt)
                _alone(s, stmt)

    def _sequence(self, stmts: tuple[Stmt, ...]) -> None:
        """Emit statements in order. Neighbouring statements for one thread are emitted as one, under a single test of
        its number."""
        k = 0
        while k < len(stmts):
            if _is_shared(stmts[k]):
                self.run(stmts[k])
                k += 1
                continue
            end = k
            while end < len(stmts) and not _is_shared(stmts[end]):
                end += 1
            piece = stmts[k] if end == k + 1 else Seq(stmts[k:end])
            self._before(piece)
            _alone(self.s, piece)
            k = end

    def _before(self, stmt: Stmt, *, own: bool = False) -> None:
        """Emit a barrier if `stmt` accesses memory that other threads may still use. `own`: only the expressions of
        `stmt` itself count, not those of its children."""
        result = touched(stmt, own=own)
        if self.open.conflicts(result):
            self._barrier()
        self.open.include(result)

    def _barrier(self) -> None:
        _barrier(self.s)
        self.s.forget_loads()
        self.open = Touched()

    def _loop(self, stmt: For) -> None:
        """Emit a serial loop around parallel ones: each iteration starts when all threads have finished the last."""
        s = self.s
        self._before(stmt, own=True)
        self._barrier()

        def body() -> None:
            self.open = Touched()
            self.run(stmt.body)
            self._barrier()

        serial(s, stmt, "0", s.scalar(stmt.extent), body, positive=(as_int(stmt.extent) or 0) > 0)

    def _if(self, stmt: If) -> None:
        s = self.s
        self._before(stmt, own=True)
        condition = evaluate(s, stmt.condition).scalar
        out = s.out
        then_block, else_block, join = (out.fresh(n) for n in ("then", "else", "join"))
        out.branch(condition, then_block, else_block)
        before, after = self.open, Touched()
        for block, body in ((then_block, stmt.then), (else_block, stmt.orelse)):
            out.start(block)
            self.open = Touched(set(before.reads), set(before.writes))
            if body is not None:
                with s.scope():
                    self.run(body)
            after.include(self.open)
            out.jump(join)
        self.open = after
        out.start(join)


def _barrier(s: State) -> None:
    """Emit a barrier for all threads; nothing with one thread."""
    fence(s)
    out = s.out
    symbol = out.declare("tw_barrier", "void", ["ptr", "i64"], "nounwind")
    wait, after = out.fresh("wait"), out.fresh("after")
    out.branch(out.inst("icmp sgt i64 %nthreads, 1"), wait, after)
    out.start(wait)
    out.effect(f"call void {symbol}(ptr %barrier, i64 %nthreads)")
    out.jump(after)
    out.start(after)


def _alone(s: State, stmt: Stmt) -> None:
    """Emit `stmt` for thread 0 only."""
    out = s.out
    first, join = out.fresh("first"), out.fresh("join")
    out.branch(out.inst("icmp eq i64 %tid, 0"), first, join)
    out.start(first)
    with s.scope():
        emit(s, stmt)
    out.jump(join)
    out.start(join)


def _share(s: State, stmt: For) -> None:
    """Emit the calling thread's share of a parallel loop."""
    out = s.out
    extent = s.scalar(stmt.extent)
    if not is_natural(s, stmt.extent):
        # An extent such as `min(n - 8*i, 8)` may be negative: no iterations.
        extent = out.intrinsic("llvm.smax.i64", "i64", [("i64", extent), ("i64", "0")])
    split, join = out.fresh("split"), out.fresh("share")
    before = out.block
    out.branch(out.inst("icmp sgt i64 %nthreads, 1"), split, join)
    out.start(split)
    each = out.inst(f"udiv i64 {extent}, %nthreads")
    more = out.inst(f"urem i64 {extent}, %nthreads")
    extra = out.intrinsic("llvm.smin.i64", "i64", [("i64", "%tid"), ("i64", more)])
    low = out.inst(f"add nsw i64 {out.inst(f'mul nsw i64 %tid, {each}')}, {extra}")
    one = out.inst(f"zext i1 {out.inst(f'icmp slt i64 %tid, {more}')} to i64")
    high = out.inst(f"add nsw i64 {out.inst(f'add nsw i64 {low}, {each}')}, {one}")
    out.jump(join)
    out.start(join)
    start = out.inst(f"phi i64 [ 0, %{before} ], [ {low}, %{split} ]")
    stop = out.inst(f"phi i64 [ {extent}, %{before} ], [ {high}, %{split} ]")
    serial(s, stmt, start, stop, lambda: iteration(s, stmt))
