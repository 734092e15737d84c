"""Checks of the rules of lowered loops, which code generation relies on.

`verify_loops` holds after every pass, `verify_flat` after the last. Both begin with `verify_func`, the rules of the IR.
An access counts as out of bounds only where that is proven: an index that some iteration is sure to reach lies outside
of its dimension, whatever the symbols are. An index that depends on data, or an access under a condition on the same
variables, is assumed to be in bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from math import prod

from tilewright.arith import Analyzer
from tilewright.arith.forms import Form, add, scale
from tilewright.ir.expr import Buffer, Expr, Var, as_int, is_const
from tilewright.ir.guarded import Conditions, guarded_loads
from tilewright.ir.loops import Allocate, Block, For, If, Intrinsic, PrimFunc, Region, Stmt, Store
from tilewright.ir.rewrite import exprs_of, loads, variables, walk
from tilewright.ir.verify import verify_func
from tilewright.support.classes import dataclass
from tilewright.support.errors import Problems, VerifyError
from tilewright.transform.loops.simplify import contradict
from tilewright.transform.loops.workspace import STACK_LIMIT

Loops = tuple[For, ...]
"""The loops around a statement, the outermost first."""


@dataclass(slots=True)
class Known:
    """The results of earlier checks of one kernel, for reuse: a pass changes little of it.

    inside    statements of which no access can leave its buffer, whatever conditions hold, in the loops that were
              around them; by the identities of the statement and of the variables and extents of the loops, which live
              as long as the entry does
    believed  indices that may leave their dimensions, but are not proven to: index, extent, loops, conditions,
              symbols; and expressions with only such loads
    extents   of the last function's loops, with their analyzer and what it said of indices
    """

    inside: dict[tuple[int, ...], tuple[Stmt, Loops]] = field(default_factory=dict)
    believed: set[tuple[object, ...]] = field(default_factory=set)
    extents: dict[Var, Expr] = field(default_factory=dict)
    analyzer: Analyzer = field(default_factory=Analyzer)
    indices: dict[tuple[Expr, Expr], bool] = field(default_factory=dict)

    def of(self, func: PrimFunc) -> Known:
        """The known results for use in a check of `func`: what is known of indices is dropped if its loops have other
        extents."""
        extents = {s.var: s.extent for s in walk(func.body) if isinstance(s, For)}
        if len(extents) != len(self.extents) or any(self.extents.get(v) is not n for v, n in extents.items()):
            self.extents, self.analyzer, self.indices = extents, Analyzer(extents), {}
        return self


def verify_loops(func: PrimFunc, known: Known | None = None) -> None:
    """Check a function between two loop passes: names, types, indices in bounds. Raises VerifyError.

    `known` has the results of earlier calls for the same kernel, and receives those of this one.
    """
    verify_func(func)
    problems = Problems()
    if not any(isinstance(s, Block) for s in walk(func.body)):  # their iterators are not in order yet
        _Bounds(func, problems, (Known() if known is None else known).of(func)).statement(func.body, (), ())
    problems.raise_if_any(where=f"func {func.name!r}", kind=VerifyError)


def verify_flat(func: PrimFunc, known: Known | None = None) -> None:
    """Check flat loops, as code generation takes them: no blocks, every buffer placed, indices in bounds; `known` as in
    `verify_loops`. Raises VerifyError."""
    verify_loops(func, known)
    problems = Problems()
    for buffer in func.buffers:
        problems.add(VerifyError("has no place", where=f"buffer {buffer.name!r}"))
    for where, problem in _statement_problems(func.body, in_parallel=False):
        problems.add(VerifyError(problem, where=where))
    problems.raise_if_any(where=f"flat func {func.name!r}", kind=VerifyError)


def _statement_problems(s: Stmt, in_parallel: bool) -> Iterator[tuple[str, str]]:
    """The statements that code generation does not support, as (statement, reason)."""
    match s:
        case Block():
            yield f"block {s.name!r}", "is not lowered"
        case For():
            if s.kind in ("vectorized", "unrolled") and as_int(s.extent) is None:
                yield f"loop {s.var.name!r}", f"is {s.kind}, and its extent is no number: {s.extent}"
            if s.kind == "parallel" and in_parallel:
                yield f"loop {s.var.name!r}", "is parallel inside of a parallel loop"
        case Allocate():
            yield from ((f"buffer {s.buffer.name!r}", what) for what in _place_problems(s, in_parallel))
    inside = in_parallel or (isinstance(s, For) and s.kind == "parallel")
    for child in s.children:
        yield from _statement_problems(child, inside)


def _place_problems(s: Allocate, in_parallel: bool) -> Iterator[str]:
    """The reasons for which an allocation cannot be on a thread's stack: it must be small, of known size, and
    private."""
    numbers = [as_int(d) for d in s.buffer.shape]
    size = prod(n or 0 for n in numbers) * s.buffer.dtype.itemsize
    if None in numbers:
        yield "is on the stack, and its size is no number"
    elif size > STACK_LIMIT:
        yield f"is on the stack, and has {size} bytes"
    if not in_parallel and any(isinstance(x, For) and x.kind == "parallel" for x in walk(s.body)):
        yield "is on a thread's stack, and several threads use it"


def _every(result: Iterable[bool]) -> bool:
    """Whether all results are true. Unlike `all` it evaluates each one, since each reports its problems."""
    return False not in list(result)


class _Bounds:
    """One walk over loops without blocks, which checks the bounds of accesses."""

    __slots__ = ("analyzer", "known", "problems", "symbols")

    def __init__(self, func: PrimFunc, problems: Problems, known: Known) -> None:
        self.analyzer = known.analyzer
        self.symbols = frozenset(func.symbols)
        self.problems = problems
        self.known = known

    def statement(self, s: Stmt, enclosing: Loops, conditions: Conditions) -> bool:
        """Check a statement. Returns whether no access in it can leave its buffer, whatever conditions hold."""
        if not isinstance(s, For):
            return self._statement(s, enclosing, conditions)
        key = (id(s), *(id(x) for loop in enclosing for x in (loop.var, loop.extent)))
        if key in self.known.inside:
            return True
        inside = self._statement(s, enclosing, conditions)
        if inside:
            self.known.inside[key] = s, enclosing
        return inside

    def _statement(self, s: Stmt, enclosing: Loops, conditions: Conditions) -> bool:
        inside = _every(self.expr(e, enclosing, conditions) for e in exprs_of(s))
        match s:
            case Store():
                inside &= self.access(s.buffer, s.indices, enclosing, conditions)
            case Intrinsic():
                inside &= _every(self.region(region, enclosing, conditions) for region in (*s.outputs, *s.inputs))
            case For():
                return self.statement(s.body, (*enclosing, s), conditions) and inside
            case If():
                inside &= self.statement(s.then, enclosing, (*conditions, s.condition))
                if s.orelse is not None:
                    inside &= self.statement(s.orelse, enclosing, (*conditions, ~s.condition))
                return inside
        return _every(self.statement(child, enclosing, conditions) for child in s.children) and inside

    def expr(self, e: Expr, enclosing: Loops, conditions: Conditions) -> bool:
        """Check the loads of an expression, with the conditions of its own selects where needed. Returns as `statement`
        does."""
        suspects = {x for x in loads(e) if not self.inside(x.buffer, x.indices)}
        if suspects:
            key = (e, conditions, self.symbols, *(x for loop in enclosing for x in (loop.var, loop.extent)))
            if key not in self.known.believed:
                before = len(self.problems.errors)
                for load, known in guarded_loads(e, suspects, conditions):
                    self.access(load.buffer, load.indices, enclosing, known)
                if len(self.problems.errors) == before:
                    self.known.believed.add(key)
        return not suspects

    def region(self, r: Region, enclosing: Loops, conditions: Conditions) -> bool:
        conditions = (*conditions, *(extent > 0 for _, extent in r.ranges if as_int(extent) is None))
        if any(is_const(extent, 0) for _, extent in r.ranges):
            return True  # nothing is touched
        first, last = (start for start, _ in r.ranges), (start + extent - 1 for start, extent in r.ranges)
        return _every(self.access(r.buffer, tuple(corner), enclosing, conditions) for corner in (first, last))

    def inside(self, buffer: Buffer, indices: Sequence[Expr]) -> bool:
        """Whether no index can leave its dimension, whatever conditions hold."""
        return all(self._index_inside(i, n) for i, n in zip(indices, buffer.shape, strict=True))

    def _index_inside(self, index: Expr, extent: Expr) -> bool:
        known = self.known.indices.get((index, extent))
        if known is None:
            lo, hi = self.analyzer.bounds(index)
            size = as_int(extent)
            known = lo is not None and lo >= 0 and size is not None and hi is not None and hi < size
            self.known.indices[index, extent] = known
        return known

    def access(self, buffer: Buffer, indices: Sequence[Expr], enclosing: Loops, conditions: Conditions) -> bool:
        """Report an access to `buffer` at `indices` that is proven out of bounds under the enclosing loops and
        conditions; returns whether it is proven within them."""
        inside = True
        for d, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if self._index_inside(index, extent):
                continue
            inside = False
            key = (index, extent, conditions, self.symbols, *(x for loop in enclosing for x in (loop.var, loop.extent)))
            if key in self.known.believed:
                continue
            if not self.outside(index, extent, enclosing, conditions):
                self.known.believed.add(key)
            else:
                self.problems.add(
                    VerifyError(
                        f"an index of {buffer.name!r} is out of bounds",
                        where=" / ".join(f"loop {loop.var.name!r}" for loop in enclosing) or "body",
                        expected=f"0..{extent} in dimension {d}",
                        got=f"{index}",
                    )
                )
        return inside

    def outside(self, index: Expr, extent: Expr, enclosing: Loops, conditions: Conditions) -> bool:
        """Whether an iteration that certainly runs, for all values of the symbols, if the loops run at all, has an
        index outside of `0..extent`."""
        if not self._reached(index, extent, enclosing, conditions):
            return False
        above = add(self.analyzer.form(index), self.analyzer.form(extent), -1)
        below = add(({}, -1), self.analyzer.form(index), -1)
        leaves = any(self._not_negative(self._greatest(form, enclosing)) for form in (above, below))
        return leaves and not self._impossible(conditions)

    def _impossible(self, conditions: Conditions) -> bool:
        """Whether some conditions contradict each other, so that the access never happens."""
        return any(
            contradict(conditions[:k], conditions[k:], self.analyzer)
            or contradict(conditions[k:], conditions[:k], self.analyzer)
            for k in range(1, len(conditions))
        )

    def _not_negative(self, form: Form) -> bool:
        lo = self.analyzer.form_range(form).lo
        return lo is not None and lo >= 0

    def _greatest(self, form: Form, enclosing: Loops) -> Form:
        """The largest value of a linear form over the iterations of the enclosing loops. If it is not linear in a
        loop's variable, the form itself: then the access counts as out of bounds only if it always is."""
        best = form
        for loop in reversed(enclosing):
            if any(loop.var in variables(atom) for atom in best[0] if atom is not loop.var):
                return form
            factor = best[0].get(loop.var, 0)
            if factor:
                last = add(self.analyzer.form(loop.extent), ({}, -1))
                best = add(add(best, ({loop.var: 1}, 0), -factor), scale(last, factor if factor > 0 else 0))
        return best

    def _reached(self, index: Expr, extent: Expr, enclosing: Loops, conditions: Conditions) -> bool:
        """Whether all iterations that matter for the index certainly run: no condition depends on its variables, and
        the extents of their loops do not depend on other loops."""
        loops = {loop.var: loop for loop in enclosing}
        uncertain = {loop.extent for loop in enclosing if (self.analyzer.bounds(loop.extent).lo or 0) < 1}
        if len(uncertain) > 1 or any(v in loops for e in uncertain for v in variables(e)):
            return False
        if any(as_int(e) is not None for e in uncertain):
            return False
        own = {*variables(index), *variables(extent)}
        own |= {v for loop in enclosing if loop.var in own for v in variables(loop.extent)}
        known = own | loops.keys() | self.symbols
        for condition in conditions:
            mentioned = set(variables(condition))
            if mentioned & own or not mentioned <= known or loads(condition) or self.analyzer.prove(~condition):
                return False
        return True
