"""Insert barriers for the threads of a GPU block: between a write by one thread and an access of another to the same
memory.

    for k in 0..4 {                                    for k in 0..4 {
      for a in 0..64 thread(threadIdx.x) {               for a in 0..64 thread(threadIdx.x) { S[a] = A[k, a] }
        S[a] = A[k, a] }                         ->      barrier
      B[k, i] = S[i] + S[63 - i]                         B[k, i] = S[i] + S[63 - i]
    }                                                    barrier }

An element that only one thread accesses needs none; to prove this, indices must differ between threads. The two halves
of a double buffer need none either. A barrier must stand where all threads of the block pass; if there is no such
place, the function is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import product

from tilewright.arith import Analyzer
from tilewright.codegen.cuda.private import extents_of_threads, has_threads, of_threads
from tilewright.ir.expr import Buffer, Expr, Op, Var, as_int, const
from tilewright.ir.loops import Allocate, Barrier, For, If, Intrinsic, Let, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import exprs_of, loads, map_expr, substitute, variables, walk, walk_expr, with_children
from tilewright.ir.scopes import Group
from tilewright.schedule.dependence import injective
from tilewright.schedule.mma_intrinsics import is_async
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError

LARGEST = 1 << 40
"""An upper bound that stands for infinity: no index of an element is larger."""
PERIODS = (2, 3, 4)
"""The numbers of equal parts of a buffer for which a proof is tried that iterations use the parts in turns, as double
and triple buffers do."""


def insert_barriers(func: PrimFunc) -> PrimFunc:
    """The function with barriers in its kernels. Raises CompileError where some threads of a block would not reach a
    barrier."""
    if not has_threads(func.body):
        return func
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    body = [_Kernel(func.with_body(s)).run(s) if has_threads(s) else s for s in nests]
    return func.with_body(seq(body))


@dataclass(frozen=True, slots=True)
class Touch:
    """An access to memory that threads share.

    indices    the element's, in terms of hardware indices; empty for a region of an intrinsic
    extents    those of the enclosing loops that are not threads, and of the hardware indices there
    copied     whether an asynchronous copy makes it, which ends at the next barrier: even its own thread must wait
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_write: bool
    extents: Mapping[Var, Expr]
    known: bool = True
    copied: bool = False


@dataclass(slots=True)
class _Part:
    """A statement with barriers inserted: the accesses before the first barrier that is certainly reached, those after
    the last one, and whether there is such a barrier."""

    stmt: Stmt
    first: list[Touch] = field(default_factory=list)
    last: list[Touch] = field(default_factory=list)
    sure: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """The state at a point of the walk: the values of names (hardware indices, `let`), the extents of enclosing loops,
    which of their variables are equal in all threads, and whether all threads reach the point."""

    names: Mapping[Var, Expr] = field(default_factory=dict)
    extents: Mapping[Var, Expr] = field(default_factory=dict)
    common: frozenset[Var] = frozenset()
    together: bool = True


class _Kernel:
    """Inserts barriers into one kernel."""

    def __init__(self, func: PrimFunc) -> None:
        self.name = func.name
        self.block = extents_of_threads(func)
        self.threads = {Var(t): const(n) for t, n in self.block.items()}
        self.symbols = frozenset(func.symbols)
        self.params = frozenset(func.params)
        self.under_way = _under_way(func.body)

    def run(self, body: Stmt) -> Stmt:
        return self.part(body, _Place(common=self.symbols)).stmt

    def part(self, s: Stmt, at: _Place) -> _Part:
        match s:
            case Seq(stmts):
                return self.sequence(stmts, at)
            case For() if of_threads(s):
                return self.of_threads(s, at)
            case For():
                return self.loop(s, at)
            case If():
                return self.branches(s, at)
            case Let(var, value, body):
                inside = replace(at, names={**at.names, var: substitute(value, at.names)})
                result = self.part(body, inside)
                touched = self.touches(exprs_of(s), at)
                return _Part(with_children(s, (result.stmt,)), touched + result.first, result.last, result.sure)
            case Allocate(_, body):
                result = self.part(body, at)
                return _Part(with_children(s, (result.stmt,)), result.first, result.last, result.sure)
            case Barrier("block"):
                return _Part(s, sure=True)
        touched = self.leaf(s, at)
        return _Part(s, touched, touched)

    def sequence(self, stmts: Sequence[Stmt], at: _Place) -> _Part:
        result = _Part(Seq(()))
        done: list[Stmt] = []
        for s in stmts:
            part = self.part(s, at)
            group = self.meeting(result.last, part.first, at)
            if group is not None:
                done.append(self.barrier(group, result.last, part.first, at))
                result.last = [] if group == "block" else [t for t in result.last if t.buffer.scope != "warp"]
                result.sure |= group == "block"
            done.append(part.stmt)
            if not result.sure:
                result.first = result.first + part.first
            result.last = part.last if part.sure else result.last + part.last
            result.sure |= part.sure
        result.stmt = seq(done)
        return result

    def of_threads(self, s: For, at: _Place) -> _Part:
        assert s.thread is not None
        index = Var(s.thread)
        extent = as_int(s.extent) or 0
        inside = replace(
            at,
            names={**at.names, s.var: index},
            extents={**at.extents, index: s.extent},
            together=at.together and extent == self.block[s.thread],
        )
        result = self.part(s.body, inside)
        return _Part(with_children(s, (result.stmt,)), result.first, result.last, result.sure)

    def loop(self, s: For, at: _Place) -> _Part:
        uniform = s.thread is not None or self.is_common(s.extent, at)
        inside = replace(
            at,
            extents={**at.extents, s.var: s.extent},
            common=at.common | {s.var} if uniform else at.common,
            together=at.together and uniform,
        )
        part = self.part(s.body, inside)
        if s.thread is not None and s.thread != "vthread":
            return _Part(with_children(s, (part.stmt,)), part.first, part.last, part.sure)
        next_turn = replace(inside, common=at.common)
        group = self.meeting(part.last, part.first, next_turn, s.var) if as_int(s.extent) != 1 else None
        body, last = part.stmt, part.last
        if group is not None:
            body = seq((body, self.barrier(group, part.last, part.first, inside)))
            last = [] if group == "block" else [t for t in last if t.buffer.scope != "warp"]
        comes = (as_int(s.extent) or 0) >= 1
        first = self.touches((s.extent,), at) + part.first
        return _Part(with_children(s, (body,)), first, last, comes and (part.sure or group == "block"))

    def branches(self, s: If, at: _Place) -> _Part:
        inside = replace(at, together=at.together and self.is_common(s.condition, at))
        then = replace(inside, extents=self.by_condition(s.condition, at))
        parts = [self.part(c, inside if k else then) for k, c in enumerate(s.children)]
        condition = self.touches((s.condition,), at)
        first = condition + [t for p in parts for t in p.first]
        sure = s.orelse is not None and all(p.sure for p in parts)
        last = [t for p in parts for t in p.last] + ([] if sure else condition)
        return _Part(with_children(s, tuple(p.stmt for p in parts)), first, last, sure)

    def by_condition(self, condition: Expr, at: _Place) -> Mapping[Var, Expr]:
        """Extents of loops and hardware indices under a condition: 1 for each thread index that the condition restricts
        to 0."""
        value = substitute(condition, at.names)
        mentioned = [v for v in self.threads if v in variables(value)] if not loads(value) else []
        alone = [v for v in mentioned if v in at.extents and Analyzer(at.extents, (value,)).prove(v < 1)]
        return {**at.extents, **dict.fromkeys(alone, const(1))}

    def leaf(self, s: Stmt, at: _Place) -> list[Touch]:
        result = self.touches(exprs_of(s), at)
        match s:
            case Store(buffer, indices):
                result += self.touch(buffer, indices, True, at)
            case Intrinsic(name) if is_async(name):
                for regions, is_write in ((s.inputs, False), (s.outputs, True)):
                    for r in regions:
                        (start, extent), part = r.ranges[-1], Var("copied")
                        inside = replace(at, extents={**at.extents, part: extent})
                        indices = (*(i for i, _ in r.ranges[:-1]), start + part)
                        result += self.touch(r.buffer, indices, is_write, inside, copied=True)
            case Intrinsic():
                for regions, is_write in ((s.inputs, False), (s.outputs, True)):
                    for r in regions:
                        result += self.touch(r.buffer, (), is_write, at, known=False)
        return result

    def touches(self, exprs: Iterable[Expr], at: _Place) -> list[Touch]:
        loaded = (x for e in exprs for x in loads(e))
        return [t for x in loaded for t in self.touch(x.buffer, x.indices, False, at)]

    def touch(
        self,
        buffer: Buffer,
        indices: Sequence[Expr],
        is_write: bool,
        at: _Place,
        known: bool = True,
        copied: bool = False,
    ) -> list[Touch]:
        if (buffer.scope not in ("shared", "warp") and buffer not in self.params) or buffer in self.under_way:
            return []
        moved = tuple(substitute(i, at.names) for i in indices)
        known = known and not any(loads(i) for i in moved)
        return [Touch(buffer, moved, is_write, at.extents, known, copied)]

    # Where threads meet

    def is_common(self, e: Expr, at: _Place) -> bool:
        """Whether an expression has the same value for all threads of a block."""
        value = substitute(e, at.names)
        return not loads(value) and all(v in at.common for v in variables(value))

    def meeting(
        self, before: Sequence[Touch], after: Sequence[Touch], at: _Place, turn: Var | None = None
    ) -> Group | None:
        """The threads ("block" or "warp") that have to wait between the accesses `before` and `after`; None if no
        barrier is needed. `turn`: the accesses are in two iterations of the loop with this variable."""
        result: Group | None = None
        for a, b in product(before, after):
            if a.buffer == b.buffer and (a.is_write or b.is_write) and not self.separate(a, b, at.common, turn):
                if a.buffer.scope != "warp":
                    return "block"
                result = "warp"
        return result

    def barrier(self, group: Group, before: Sequence[Touch], after: Sequence[Touch], at: _Place) -> Stmt:
        if at.together:
            return Barrier(group)
        names = sorted({a.buffer.name for a in before} & {b.buffer.name for b in after})
        raise CompileError(
            f"threads would wait where not all of them come: one reads what another writes of {', '.join(names)}",
            where=self.name,
            hint="let loops of threads have as many iterations as the block has threads",
        )

    def separate(self, a: Touch, b: Touch, common: frozenset[Var], turn: Var | None) -> bool:
        """Whether no barrier is needed between two accesses inside of the loops `common`, in two iterations of the loop
        over `turn` if that is not None: they are of different elements, or each element is accessed by one thread only.
        A running copy must differ in its elements even from its own thread's accesses."""
        if not self.block:
            return True
        if not (a.known and b.known):
            return False
        if a.copied or b.copied:
            told = turn is not None and self.by_one_thread(a, b, common) and self.tells(a, turn, common)
            return told or _differ(a, b, common)
        return self.by_one_thread(a, b, common) or _differ(a, b, common)

    def tells(self, a: Touch, turn: Var, common: frozenset[Var]) -> bool:
        """Whether `a` accesses different elements in any two iterations of the loop over `turn`, and by any two
        threads."""
        extents = {**a.extents, **self.threads}
        return _told_by(a.indices, turn, {v: n for v, n in extents.items() if v not in common}, extents)

    def by_one_thread(self, a: Touch, b: Touch, common: frozenset[Var]) -> bool:
        firsts, seconds = (_canonical(t, common, self.threads) for t in (a, b))
        extents = {**a.extents, **self.threads}
        varying = {v: n for v, n in extents.items() if v not in common}
        unknown = any(v not in varying and v not in common for i in a.indices for v in variables(i))
        same = firsts == seconds and not unknown
        for v in self.threads:
            alone = all(as_int(t.extents.get(v, extents[v])) == 1 for t in (a, b))
            shared = v.name not in _dividing(a.buffer)
            if not (alone or shared or (same and _told_by(a.indices, v, varying, extents))):
                return False
        return True


def _under_way(body: Stmt) -> frozenset[Buffer]:
    """The buffers that asynchronous copies write in a kernel whose plan has placed barriers itself, as plans with
    several copies under way do; no buffer in other kernels. Their waits name a number of copies, so no barrier is added
    for these buffers. The interpreter checks that the plan's barriers suffice."""
    stmts = list(walk(body))
    if not any(isinstance(s, Barrier) for s in stmts):
        return frozenset()
    copies = (s for s in stmts if isinstance(s, Intrinsic) and is_async(s.name))
    return frozenset(r.buffer for s in copies for r in s.outputs)


def _dividing(buffer: Buffer) -> tuple[str, ...]:
    """The thread indices in whose directions threads share a buffer: only x for a warp's buffer, all three for a
    block's."""
    return ("threadIdx.x",) if buffer.scope == "warp" else ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def _told_by(indices: Sequence[Expr], var: Var, varying: Mapping[Var, Expr], extents: Mapping[Var, Expr]) -> bool:
    """Whether different values of `var` give different indices, whatever the values of the other `varying` variables;
    `extents` are the extents of all."""
    if injective(indices, var, varying):
        return True
    # Parts of a joined index, such as (b*256 + t) // 75: its remainder may be simplified to that of another sum, which
    # does not tell any more what it comes from. So the joined index is one variable.
    divided = (n for i in indices for n in walk_expr(i) if isinstance(n, Op) and n.name in ("floordiv", "mod"))
    for base in dict.fromkeys(n.args[0] for n in divided if var in variables(n.args[0])):
        whole = Var("whole")
        moved = [map_expr(i, {base: whole}.get) for i in indices]
        least = Analyzer(extents).bounds(base).lo
        if least is not None and least >= 0 and injective([base], var, varying):
            if injective(moved, whole, {**varying, whole: const(LARGEST)}):
                return True
    return False


def _canonical(t: Touch, common: frozenset[Var], threads: Mapping[Var, Expr]) -> tuple[object, ...]:
    """A key of the access `t`: its indices with variables that vary between threads numbered in order, and the extents
    of these. Equal keys mean the same function from variables to elements."""
    own = dict.fromkeys(v for i in t.indices for v in variables(i) if v not in common and v not in threads)
    renamed: dict[Var, Expr] = {v: Var(f"varying.{k}") for k, v in enumerate(own)}
    sizes = tuple(t.extents.get(v) for v in own)
    return (*(substitute(i, renamed) for i in t.indices), *sizes)


def _differ(a: Touch, b: Touch, common: frozenset[Var]) -> bool:
    """Whether some index of access `a` always differs from that of `b`."""
    return any(_never_equal(i, j, common) for i, j in zip(a.indices, b.indices, strict=True))


def _never_equal(i: Expr, j: Expr, common: frozenset[Var]) -> bool:
    own = {*variables(i), *variables(j)}
    if not own <= common:
        return False
    difference = Analyzer().simplify(i - j)
    value = as_int(difference)
    if value is not None:
        return value != 0
    if len(own) != 1:
        return False
    (var,) = own
    # Halves that take turns: the difference is looked at for each remainder of the one variable.
    for period in PERIODS:
        whole = Var(f"{var.name}.whole", lo=0)
        values = [as_int(Analyzer().simplify(substitute(difference, {var: whole * period + r}))) for r in range(period)]
        if all(values):
            return True
    return False


__all__ = ["insert_barriers"]
