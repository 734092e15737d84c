"""Statements: loops, conditions, allocations, and how vectorized and unrolled loops are spread out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import prod

from tilewright.codegen.llvm.expr import DIVISIONS, evaluate, is_natural
from tilewright.codegen.llvm.fold import fold, fold_rows
from tilewright.codegen.llvm.intrinsic import emit_call, emit_external
from tilewright.codegen.llvm.invariants import bases_before, divide_before
from tilewright.codegen.llvm.masks import any_lane, both
from tilewright.codegen.llvm.memory import store
from tilewright.codegen.llvm.prefetch import before_prefetch, emit_prefetch
from tilewright.codegen.llvm.state import Pointer, State
from tilewright.codegen.llvm.tiles import allocate_tiles, has_tiles, leave_tiles
from tilewright.codegen.llvm.transposed import emit_transposed
from tilewright.codegen.llvm.values import Lanes, Value, memory_type, widths
from tilewright.codegen.llvm.vector import match_reduction
from tilewright.codegen.llvm.versions import before_versions
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import Const, Expr, Load, Op, Var, as_int, const, maximum
from tilewright.ir.loops import Allocate, Barrier, Block, For, If, Intrinsic, Let, Seq, Stmt, Store
from tilewright.ir.notes import Streaming, Unroll, find
from tilewright.ir.rewrite import exprs_of, substitute_stmt, walk, walk_expr
from tilewright.ir.scalar_ops import LAZY
from tilewright.schedule.intrinsics import expand
from tilewright.support.errors import CompileError
from tilewright.targets.abi import address_bytes

MAX_STACK = 1 << 20
"""The largest number of bytes of one allocation on a thread's stack."""

MAX_EXPANDED_VECTORS = 16
"""The largest number of vectors into which a vectorized loop is expanded; a longer one becomes a loop over vectors."""

MAX_UNROLLED = 1024
"""The largest number of copies of a body by nested unrolled loops; beyond it the outer loops stay loops."""

MAX_LEFT_TO_LLVM = 32
"""The largest number of iterations of a scalar nest that LLVM may unroll."""


def emit(s: State, stmt: Stmt) -> None:
    """Write the code of a statement that one thread executes."""
    match stmt:
        case Seq(stmts):
            for inner in stmts:
                emit(s, inner)
        case Store():
            _store(s, stmt)
        case For():
            loop(s, stmt)
        case Let(var, value, body):
            s.env[var] = evaluate(s, value)
            s.depth[var] = len(s.scopes)
            with s.scope():
                emit(s, body)
        case If():
            _if(s, stmt)
        case Allocate():
            if emit_transposed(s, stmt):
                return
            allocate(s, stmt)
            emit(s, stmt.body)
            if stmt.buffer.scope == "tiles":
                leave_tiles(s)
        case Block(name):
            raise CompileError("a block must be lowered before code is made", where=f"block {name!r}")
        case Intrinsic():
            if not emit_external(s, stmt) and not emit_call(s, stmt):
                emit(s, expand(stmt))
        case Barrier():
            pass  # iterations run one after another
        case _:
            raise CompileError(f"no native code for a {type(stmt).__name__}")


def allocate(s: State, stmt: Allocate) -> None:
    """Give a buffer its place on the stack; inside a vectorized loop every lane gets its own."""
    buffer = stmt.buffer
    if buffer.scope == "tiles" and has_tiles(s):
        allocate_tiles(s, buffer)
        return
    copies = s.lanes.extent if s.lanes is not None else 1
    size = as_int(s.converter.bind(buffer.size))
    if size is None or size * copies * buffer.dtype.itemsize > MAX_STACK:
        raise CompileError(
            "a buffer on the stack must have a constant size",
            where=f"buffer {buffer.name!r}",
            expected=f"at most {MAX_STACK} bytes",
            got=f"{buffer.size} elements of {buffer.dtype}",
        )
    known = s.pointers.get(buffer.name)
    if known is None or known.copies != copies:
        operand = s.out.alloca(memory_type(buffer.dtype), max(size * copies, 1), buffer.name)
        s.pointers[buffer.name] = Pointer(operand, 64, copies, size * copies)


# stores


def _store(s: State, stmt: Store) -> None:
    varies = s.lanes is not None and any(s.varies(i) for i in (Load(stmt.buffer, stmt.indices), *stmt.indices))
    if s.lanes is not None and not varies:
        reduction = match_reduction(stmt)
        if reduction is not None:
            fold(s, stmt, reduction)
            return
    value = evaluate(s, stmt.value)
    streamed = store(s, stmt.buffer, stmt.indices, value)
    s.forget_loads(stmt.buffer)
    s.remember_streamed(stmt.buffer, streamed)
    if not varies and not value.vector and s.mask is None:
        s.remember_store(stmt.buffer, stmt.indices, value)


# conditions


def _if(s: State, stmt: If) -> None:
    condition = s.converter.bind(stmt.condition)
    if isinstance(condition, Const):
        chosen = stmt.then if condition.value else stmt.orelse
        if chosen is not None:
            emit(s, chosen)
        return
    value = evaluate(s, condition)
    if not value.vector:
        if stmt is not s.chained:
            before_versions(s, stmt)
        _jump(s, value.scalar, stmt.then, stmt.orelse, s.mask)
        return
    mask = both(s, s.mask, value)
    _jump(s, any_lane(s, mask), stmt.then, None, mask)
    if stmt.orelse is not None:
        rest = both(s, s.mask, s.elementwise("not", [value], boolean))
        _jump(s, any_lane(s, rest), stmt.orelse, None, rest)


def _jump(s: State, condition: str, then: Stmt, orelse: Stmt | None, mask: Value | None) -> None:
    out = s.out
    then_block, join = out.fresh("then"), out.fresh("join")
    else_block = join if orelse is None else out.fresh("else")
    out.branch(condition, then_block, else_block)
    for block, body in ((then_block, then), (else_block, orelse)):
        if body is not None:
            out.start(block)
            s.chained = orelse
            with s.scope(), s.masked(mask):
                emit(s, body)
            out.jump(join)
    out.start(join)


# loops


def loop(s: State, stmt: For) -> None:
    """Emit a loop of any kind that one thread runs."""
    if stmt.kind == "thread":
        raise CompileError(f"no hardware index {stmt.thread!r} on a CPU", where=f"loop {stmt.var.name!r}")
    extent = as_int(s.converter.bind(stmt.extent))
    if extent is not None and extent <= 0:
        return
    if extent == 1:
        with s.binding(stmt.var, 0):
            emit(s, stmt.body)
    elif stmt.kind == "unrolled" and extent is not None and _copies(stmt) <= MAX_UNROLLED:
        for i in range(0 if fold_rows(s, stmt) else extent):
            with s.binding(stmt.var, i):
                emit(s, stmt.body)
    elif stmt.kind == "vectorized" and s.lanes is None and s.can_vectorize(stmt):
        _vectorized(s, stmt, extent)
    else:
        before_prefetch(s, stmt)
        divide_before(s, stmt)
        bases_before(s, stmt)
        serial(s, stmt, "0", s.scalar(stmt.extent), lambda: iteration(s, stmt), positive=extent is not None)


def iteration(s: State, stmt: For) -> None:
    """Emit the body of a loop, after the prefetches of one iteration."""
    emit_prefetch(s, stmt)
    s.enclosing.append(stmt)
    emit(s, stmt.body)
    s.enclosing.pop()


def _copies(stmt: Stmt) -> int:
    """The number of copies that a nest of unrolled loops makes of its innermost statements."""
    inner = max((_copies(c) for c in stmt.children), default=1)
    if isinstance(stmt, For) and stmt.kind == "unrolled":
        return inner * (as_int(stmt.extent) or 1)
    return inner


def _vectorized(s: State, stmt: For, extent: int | None) -> None:
    outer_stream = s.streaming
    s.streaming = outer_stream or find(stmt.notes, Streaming) is not None
    try:
        _lanes(s, stmt, extent)
    finally:
        s.streaming = outer_stream


def _lanes(s: State, stmt: For, extent: int | None) -> None:
    native = s.native_lanes(stmt)
    if extent is not None and extent <= native * MAX_EXPANDED_VECTORS:
        with s.vectorized(Lanes(stmt.var, widths(extent, native))):
            emit(s, stmt.body)
        return
    # A loop over vectors, and what is left: `v` becomes `outer * native + inner`.
    outer = Var(f"{stmt.var.name}.vector")
    inner = Var(f"{stmt.var.name}.lane")
    body = substitute_stmt(stmt.body, {stmt.var: outer * native + inner})
    count = stmt.extent if is_natural(s, stmt.extent) else maximum(stmt.extent, 0)
    full = count // native
    emit(s, For(outer, full, For(inner, const(native), body, "vectorized")))
    rest: Expr = count - full * native
    last = Var(f"{stmt.var.name}.rest")
    body = substitute_stmt(stmt.body, {stmt.var: full * native + last})
    if extent is not None:
        emit(s, For(last, const(extent % native), body, "vectorized"))
    else:
        emit(s, For(last, const(native), If(last < rest, body), "vectorized"))


def serial(s: State, stmt: For, start: str, stop: str, body: Callable[[], None], *, positive: bool = False) -> None:
    """Emit `for var in start..stop` around `body`, with the test at the end; `positive` promises one iteration at
    least. Where addresses have 32 bits, a loop between constants counts in 32 bits, in one register."""
    out = s.out
    narrow = address_bytes(s.target.triple) == 4 and start.isdigit() and stop.isdigit() and int(stop) < 1 << 31
    counted = "i32" if narrow else "i64"
    name = stmt.var.name
    head, done = out.fresh(f"{name}.body"), out.fresh(f"{name}.done")
    before = out.block
    if positive:
        out.jump(head)
    else:
        out.branch(out.inst(f"icmp slt i64 {start}, {stop}"), head, done)
    out.start(head)
    counter = "%" + out.fresh(name)
    phi = out.reserve()
    variable = out.inst(f"zext nneg i32 {counter} to i64", f"{name}.wide") if narrow else counter
    s.env[stmt.var] = Value(i64, (variable,))
    s.depth[stmt.var] = len(s.scopes)
    s.counters.add(stmt.var)
    s.forget_loads()
    with s.scope(stmt.var if positive else None):
        body()
    s.forget_loads()
    following = out.inst(f"add nuw nsw {counted} {counter}, 1", f"{name}.next")
    out.fill(phi, f"{counter} = phi {counted} [ {start}, %{before} ], [ {following}, %{out.block} ]")
    out.branch(out.inst(f"icmp slt {counted} {following}, {stop}"), head, done, _metadata(s, stmt))
    out.start(done)


def _metadata(s: State, stmt: For) -> str:
    """The LLVM metadata of a loop, which tells the vectoriser and unroller what to do.

    They leave loops alone that the schedule vectorized or unrolled. Of other loops the short ones may be unrolled;
    unrolling nests of long ones costs much compile time and gains little. A loop with the note `Unroll(n)` is unrolled
    n times, which has the effect of an unrolled loop of n in a fraction of the time; not on a machine where all loads
    of a body would be in registers at once.
    """
    explicit = s.lanes is not None or any(
        isinstance(inner, For) and inner.kind in ("vectorized", "unrolled") for inner in walk(stmt.body)
    )
    extents = [as_int(inner.extent) for inner in walk(stmt) if isinstance(inner, For)]
    short = prod(MAX_LEFT_TO_LLVM + 1 if n is None else n for n in extents) <= MAX_LEFT_TO_LLVM
    note = None if s.target.isa.single_steps else find(stmt.notes, Unroll)
    return s.out.loop_metadata(
        vectorize=not explicit and not divides_in_branches(stmt.body),
        unroll=short and not explicit,
        copies=0 if note is None else note.times,
    )


def divides_in_branches(body: Stmt) -> bool:
    """Whether a branch of `body` divides integers by what is no literal. LLVM 22's vectoriser miscompiles that for
    512-bit vectors (findings/llvm_divisions_in_branches.sh): where all lanes have one quotient it divides under the
    condition of the first lane alone, and the others read at an address that was never computed. Such a loop stays
    scalar, as its divisions would in any case.
    """
    for stmt in walk(body):
        branches = chain.from_iterable(map(walk, stmt.children)) if isinstance(stmt, If) else ()
        if any(map(_divides, chain.from_iterable(map(exprs_of, branches)))):
            return True
        lazy = (n for e in exprs_of(stmt) for n in walk_expr(e) if isinstance(n, Op) and n.name in LAZY)
        if any(_divides(e) for n in lazy for e in n.args[1:]):
            return True
    return False


def _divides(e: Expr) -> bool:
    """Whether `e` divides integers by what is no literal."""
    return any(isinstance(n, Op) and n.name in DIVISIONS and not isinstance(n.args[1], Const) for n in walk_expr(e))
