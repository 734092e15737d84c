"""Decide where allocations live: on the stack of a thread, or in a workspace that the caller passes.

    kernel(A, C) {                                   kernel(A, C, B) @workspaces(count=1) {
      alloc B: f32[n, 64] { ... parallel ... }   ->    ... parallel ...
    }                                                }

A buffer of scope "global" at the root, or with a parallel loop inside (its threads share it), becomes a trailing
parameter; one in a memory of an accelerator does not. Inside a loop a constant size of at most 256 KiB stays an
`Allocate`. Larger or symbolic ones become parameters too; if each thread needs its own, with a leading dimension
`nthreads`, indexed by `tid`. The shapes of the parameters are expressions of the symbols.

Versions of a function for different values of symbols exclude each other: a workspace that only one version uses is
needed only if that version runs (`used_where`), and takes no memory otherwise.
"""

from __future__ import annotations

from dataclasses import field, replace

from tilewright.arith import Analyzer
from tilewright.arith.forms import Form, add, scale, to_expr
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, all_of, const
from tilewright.ir.loops import NTHREADS, TID, Allocate, Block, For, If, Intrinsic, Let, PrimFunc, Region, Stmt, Store
from tilewright.ir.notes import Workspaces, with_note
from tilewright.ir.rewrite import (
    map_expr,
    map_exprs_of,
    own_loads,
    replace_buffers,
    substitute,
    uses,
    variables,
    walk,
    walk_expr,
    with_children,
)
from tilewright.ir.scopes import find_memory
from tilewright.support.classes import dataclass

STACK_LIMIT = 256 << 10
"""The largest number of bytes of an allocation on the stack."""

ALIGNMENT = 64
"""The number of bytes to whose multiple workspaces are rounded up: a cache line."""


def plan_workspace(func: PrimFunc) -> PrimFunc:
    """The function whose remaining allocations are constant, small and private to a thread."""
    plan = _Plan()
    body = plan.statement(func.body, in_loop=False, in_parallel=False)
    if not plan.params:
        return func if body is func.body else func.with_body(body)
    body = replace_buffers(body, plan.shared)
    notes = with_note(func.notes, Workspaces(len(plan.params)))
    return replace(func, params=(*func.params, *plan.params), body=body, notes=notes)


def used_where(func: PrimFunc, buffer: Buffer) -> Expr:
    """A condition on the function's symbols under which alone the function uses `buffer`: that of the version that has
    all of its uses. It is true if there is none."""
    known: dict[Var, Expr] = {v: v for v in func.symbols}
    results: list[Expr] = []
    s = func.body
    while True:
        inside = [c for c in s.children if uses(c, buffer)]
        if any(load.buffer == buffer for load in own_loads(s)) or len(inside) != 1 or isinstance(s, For | Block):
            return all_of(results)
        match s:
            case If() if known.keys() >= set(variables(s.condition)):
                condition = substitute(s.condition, known)
                results.append(condition if inside[0] is s.then else ~condition)
            case Let() if known.keys() >= set(variables(s.value)):
                known[s.var] = substitute(s.value, known)
        (s,) = inside


@dataclass(slots=True)
class _Plan:
    params: list[Buffer] = field(default_factory=list)
    shared: dict[Buffer, Buffer] = field(default_factory=dict)

    def statement(self, s: Stmt, in_loop: bool, in_parallel: bool) -> Stmt:
        if isinstance(s, Allocate):
            return self.allocate(s, in_loop, in_parallel)
        if not s.children:
            return s
        looping = in_loop or isinstance(s, For)
        parallel = in_parallel or (isinstance(s, For) and s.kind == "parallel")
        return with_children(s, tuple(self.statement(c, looping, parallel) for c in s.children))

    def allocate(self, s: Allocate, in_loop: bool, in_parallel: bool) -> Stmt:
        body = self.statement(s.body, in_loop, in_parallel)
        shared = not in_parallel and any(isinstance(c, For) and c.kind == "parallel" for c in walk(s.body))
        size = _constant_bytes(s.buffer)
        small = size is not None and size <= STACK_LIMIT
        if small and not shared and (in_loop or _stays(s.buffer)):
            return replace(s, body=body)
        if in_parallel:
            return self.private(s.buffer, body)
        buffer = replace(s.buffer, shape=_sizes(s.buffer), scope="global", align=ALIGNMENT)
        self.params.append(buffer)
        self.shared[s.buffer] = buffer
        return body

    def private(self, buffer: Buffer, body: Stmt) -> Stmt:
        """The `body` with a part of a shared workspace for each thread in place of `buffer`."""
        shared = Buffer(buffer.name, buffer.dtype, (NTHREADS, *_sizes(buffer)), "global", ALIGNMENT)
        self.params.append(shared)
        return _with_leading(body, buffer, shared)


def _stays(buffer: Buffer) -> bool:
    """Whether a buffer at the root is not in the caller's memory: registers, shared memory of a GPU block, and memories
    of an accelerator."""
    return buffer.scope in ("local", "tiles", "shared", "warp") or find_memory(buffer.scope) is not None


def _sizes(buffer: Buffer) -> tuple[Expr, ...]:
    """For each dimension the extent, if it uses only arithmetic on symbols; else a polynomial that is at least as
    large."""
    return tuple(d if _is_arithmetic(d) else p for d, p in zip(buffer.shape, _polynomials(buffer), strict=True))


def _is_arithmetic(e: Expr) -> bool:
    return all(type(part) is not Op or part.name in ARITHMETIC for part in walk_expr(e))


ARITHMETIC = ("add", "sub", "mul", "floordiv", "min", "max")


def _polynomials(buffer: Buffer) -> tuple[Expr, ...]:
    """For each dimension a polynomial of the symbols that is at least as large as the extent."""
    analyzer = Analyzer()
    return tuple(to_expr(_polynomial(analyzer, analyzer.form(extent))) for extent in buffer.shape)


def _polynomial(an: Analyzer, form: Form) -> Form:
    """A linear form, at least as large as `form`, in which quotients and other operators are replaced by bounds, so
    that it is a polynomial as far as bounds are known."""
    for atom, c in form[0].items():
        if type(atom) is not Op or atom.name == "mul":
            continue
        bound = _bound(an, atom, c)
        if bound is not None:
            return _polynomial(an, add(add(form, ({atom: 1}, 0), -c), bound))
    return form


def _bound(an: Analyzer, atom: Op, c: int) -> Form | None:
    """An upper bound of `c * atom`: exact numbers first, then `c*(x // d) <= ceil(c/d)*x`, or one operand of a
    minimum."""
    lo, hi = an.range(atom)
    end = hi if c > 0 else lo
    if end is not None:
        return ({}, c * end)
    if c < 0:
        return None
    a, b = an.form(atom.args[0]), an.form(atom.args[-1])
    least_a, least_b = an.form_range(a).lo, an.form_range(b).lo
    if atom.name == "floordiv" and not b[0] and b[1] > 0 and least_a is not None and least_a >= 0:
        return scale(a, -(-c // b[1]))
    if atom.name == "min":
        return scale(a, c)
    if atom.name == "max" and least_a is not None and least_b is not None and min(least_a, least_b) >= 0:
        return scale(add(a, b), c)
    return None


def _constant_bytes(buffer: Buffer) -> int | None:
    total = buffer.dtype.itemsize
    for extent in buffer.shape:
        if not isinstance(extent, Const):
            return None
        total *= extent.value
    return total


def _with_leading(stmt: Stmt, old: Buffer, new: Buffer) -> Stmt:
    """`stmt` with `old[...]` read and written as `new[tid, ...]`."""
    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr | None:
        return Load(new, (TID, *e.indices)) if type(e) is Load and e.buffer == old else None

    def region(r: Region) -> Region:
        return Region(new, ((TID, const(1)), *r.ranges)) if r.buffer == old else r

    def go(s: Stmt) -> Stmt:
        s = map_exprs_of(with_children(s, tuple(go(c) for c in s.children)), lambda e: map_expr(e, on_expr, memo))
        match s:
            case Store() if s.buffer == old:
                return Store(new, (TID, *s.indices), s.value)
            case Intrinsic():
                return replace(s, outputs=tuple(map(region, s.outputs)), inputs=tuple(map(region, s.inputs)))
        return s

    return go(stmt)
