"""Estimates of functions that are written as loops without blocks (`ops/loopnest.py`): recurrences, sorts, running
sums. No plan schedules them, so that the loops run as written.

    for s in 0..71:                                    71 times what is inside
      for k in 0..9:
        for lane in vectorized 0..16: acc[lane] += w[k, lane] * h[k]      a vector at a time
      if better(x[s], worst): ...                      a condition on data: `DECIDED` of the times

Each read of a parameter comes from the level that holds all parameters together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from math import ceil, prod

from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, as_int
from tilewright.ir.loops import For, If, Let, PrimFunc, Stmt, Store
from tilewright.ir.rewrite import loads, variables, walk_expr
from tilewright.plans.framework.cost import FUNCTIONS, SYMBOL, Cost, fetch_cycles, nbytes_of
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

DECIDED = 0.2
"""The assumed share of times that the body of a condition on data runs."""


@dataclass(frozen=True, slots=True)
class _Done:
    """An expression that a loop nest computes `times` times for `lanes` lanes each, and the buffer that its value is
    stored in. `copies` has the unrolled loops around it with their extents: their copies share loads that do not depend
    on them."""

    value: Expr
    times: float
    lanes: int
    copies: Mapping[Var, float]
    stored: Buffer | None = None

    def loaded(self, load: Load) -> float:
        """The number of times that `load`, which is part of the expression, is executed: fewer times than the
        expression if unrolled copies share it."""
        used = {v for index in load.indices for v in variables(index)}
        return self.times / prod(extent for var, extent in self.copies.items() if var not in used)


def nest(func: PrimFunc, target: Target) -> Cost:
    """The cycles that the loops of `func` take on one core as they are written."""
    everything = list(_Walk(target).done(func.body))
    outputs = {done.stored for done in everything}
    touched = sum(nbytes_of(b) for b in func.params)
    compute = load = store = memory = 0.0
    for done in everything:
        slots = ceil(done.lanes / target.lanes(4))
        cycles = slots * _operations(done.value, target) / target.fma_per_cycle
        reloaded = [e for e in loads(done.value) if e.buffer == done.stored]
        if reloaded and done.lanes == 1 and any(map(loads, reloaded[0].indices)):
            cycles = max(cycles, target.costs.arithmetic.forwarded)
        compute += done.times * cycles
        store += done.times * slots * (done.stored is not None)
        for e in loads(done.value):
            if e.buffer != done.stored:
                load += done.loaded(e) * slots / target.costs.arithmetic.loads_per_cycle
            if e.buffer in func.params and e.buffer not in outputs:
                memory += fetch_cycles(done.loaded(e) * done.lanes * e.buffer.dtype.itemsize, touched, target)
    return Cost(compute, load, store, memory)


@dataclass(slots=True)
class _Walk:
    """Lists the expressions that statements compute, and how often. `sizes`: the values of variables and local scalars,
    on average or at most."""

    target: Target
    sizes: dict[Var | Buffer, float] = field(default_factory=dict)

    def done(
        self, stmt: Stmt, times: float = 1.0, lanes: int = 1, copies: Mapping[Var, float] | None = None
    ) -> Iterator[_Done]:
        """All expressions that `stmt`, which is executed `times` times for `lanes` lanes, computes; `copies` has the
        unrolled loops around it with their extents. `sizes` gets the expected numbers in loop variables, `Let`
        variables and buffers of one element."""
        copies = copies or {}
        match stmt:
            case For():
                extent = self.size(stmt.extent)
                self.sizes[stmt.var] = extent / 2
                if stmt.kind == "vectorized":
                    lanes *= max(1, round(extent))
                else:
                    times *= extent
                if stmt.kind == "unrolled":
                    copies = {**copies, stmt.var: max(1.0, extent)}
            case Store():
                yield _Done(stmt.value, times, lanes, copies, stmt.buffer)
                if as_int(stmt.buffer.size) == 1:
                    self.sizes[stmt.buffer] = max(self.sizes.get(stmt.buffer, 0.0), self.size(stmt.value))
            case Let():
                yield _Done(stmt.value, times, lanes, copies)
                self.sizes[stmt.var] = self.size(stmt.value)
            case If() if loads(stmt.condition):
                yield _Done(stmt.condition, times, lanes, copies)
                times *= DECIDED
        for child in stmt.children:
            yield from self.done(child, times, lanes, copies)

    def size(self, e: Expr) -> float:
        """An estimate of an integer expression's value, from the sizes of its variables; `SYMBOL` if there is none."""
        match e:
            case Const():
                return float(as_int(e) or 0)
            case Var():
                return self.sizes.get(e, float(SYMBOL))
            case Op("add", (a, b)):
                return self.size(a) + self.size(b)
            case Op("sub", (a, b)):
                return max(0.0, self.size(a) - self.size(b))
            case Op("mul", (a, b)):
                return self.size(a) * self.size(b)
            case Op("div" | "floordiv", (a, b)):
                return self.size(a) / max(1.0, self.size(b))
            case Op("min", (a, b)):
                return min(self.size(a), self.size(b))
            case Op("cast", (a,)):
                return self.size(a)
            case Load():
                return self.sizes.get(e.buffer, float(SYMBOL))
        return float(SYMBOL)


def _operations(value: Expr, target: Target) -> float:
    """The instructions that compute `value`, where a function such as exp counts by its cost; operations in the indices
    of loads are left out."""
    members = {e for e in walk_expr(value) if isinstance(e, Op)}
    inside = {e for load in walk_expr(value) if isinstance(load, Load) for i in load.indices for e in walk_expr(i)}
    function = target.costs.arithmetic.function
    return max(1.0, sum(function * FUNCTIONS[e.name] if e.name in FUNCTIONS else 1.0 for e in members - inside))


__all__ = ["nest"]
