"""Software pipelining: a loop over rows works on several rows at once, each in another stage.

    for r in 0..8 @pipeline {
      p = -inf
      for k in 0..n { p = max(p, x[r, k]) }                  stage 0: waits for memory
      m = max over lanes of p
      q = 0
      for k in 0..n { e[k] = exp(x[r, k] - m); q += e[k] }   stage 1: computes
      s = sum over lanes of q
      for k in 0..n { y[r, k] = e[k] / s }                   stage 2: stores
    }

becomes

    for t in 0..10 {
      if 1 <= t < 9 { m' = m }
      if t >= 2 { s' = s }
      if t < 8 { p = -inf }
      if 1 <= t < 9 { q = 0 }
      for k in 0..n {
        if t < 8 { p = max(p, x[t, k]) }
        if 1 <= t < 9 { e[(t - 1) % 2, k] = exp(x[t - 1, k] - m'); q += e[(t - 1) % 2, k] }
        if t >= 2 { y[t - 2, k] = e[(t - 2) % 2, k] / s' }
      }
      if t < 8 { m = max over lanes of p }
      if 1 <= t < 9 { s = sum over lanes of q }
    }

Data that a stage passes to the next exists twice: single values are copied (from stage to stage up to their reader),
arrays have two or three versions. Rows of a few steps are unrolled, stage by stage; if a stage's loop goes over several
rows, whose lanes are folded together after it, the rows are unrolled. (Lam 1988, "Software pipelining: an effective
scheduling technique for VLIW machines".) A core looks some hundred instructions ahead, which is less than a row: by
itself it overlaps neither the stages nor the folding of a row's lanes with the next row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

from tilewright.arith import Analyzer
from tilewright.ir.expr import Buffer, Expr, Load, Var, all_of, as_int, const, product
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Stmt, Store, seq
from tilewright.ir.notes import find, with_note, without
from tilewright.ir.rewrite import fresh_name, map_expr, map_stmt, names_of, replace_buffers, substitute_stmt, walk
from tilewright.plans.rows.plan import Pipeline
from tilewright.support.classes import dataclass
from tilewright.targets.memory import USUAL, Caches
from tilewright.transform.loops.conditions import bound_loops_of
from tilewright.transform.loops.merge import depend, parts, touched, written
from tilewright.transform.loops.simplify import analyzer_of

MAX_STAGES = 3
"""The largest number of stages, which is the number of rows processed at the same time."""

SHORT_STEPS = 2
"""The largest number of steps of a row that are unrolled, stage by stage."""


def pipeline_loops(func: PrimFunc, caches: Caches = USUAL) -> PrimFunc:
    """The function in which loops with the note `Pipeline` are pipelined, where dependences allow that."""
    used_names, an = names_of(func), analyzer_of(func.body)
    body = map_stmt(func.body, lambda s: _statement(s, used_names, caches.alias, an))
    return func if body is func.body else func.with_body(body)


def _statement(s: Stmt, used_names: set[str], alias: int, an: Analyzer) -> Stmt | None:
    if not (isinstance(s, For) and s.kind == "serial" and find(s.notes, Pipeline)):
        return None
    ordinary = replace(s, notes=without(s.notes, Pipeline))
    bounded = bound_loops_of(ordinary, an)  # what goes through a last group of rows is all of each
    if not isinstance(bounded, For):
        return ordinary
    ordinary = bounded
    buffers: list[Buffer] = []
    body = ordinary.body
    while isinstance(body, Allocate):
        buffers.append(body.buffer)
        body = body.body
    for most in range(MAX_STAGES, 1, -1):
        stages = _stages(parts(body), most)
        crossing = _crossing(stages, set(buffers)) if stages is not None else None
        if stages is not None and crossing is not None:
            doubled = _doubled(stages, crossing, ordinary.var, used_names, alias)
            result = _overlapped(ordinary, doubled)
            for buffer in reversed([*(doubled.versions.get(b, b) for b in buffers), *doubled.new]):
                result = Allocate(buffer, result)
            return result
    return ordinary


@dataclass(slots=True)
class _Stage:
    """A stage of a row's work: a loop over the row, the statements before it and those after it."""

    before: list[Stmt]
    main: For
    after: list[Stmt]

    @property
    def all(self) -> list[Stmt]:
        return [*self.before, self.main, *self.after]


def _stages(stmts: Sequence[Stmt], most: int) -> list[_Stage] | None:
    """Divide statements into at most `most` stages, one for each loop over the row; the last stage has the rest. None
    if fewer than two loops have equal extents."""
    stages: list[_Stage] = []
    waiting: list[Stmt] = []
    for s in stmts:
        if not isinstance(s, For | Store | If):
            return None
        if len(stages) < most and isinstance(s, For) and s.kind == "serial" and (as_int(s.extent) or 0) > 1:
            stages.append(_Stage(waiting, s, []))
            waiting = []
        elif stages and (len(stages) == most or any(depend(s, x) for x in (stages[-1].main, *stages[-1].after))):
            # With what it needs of what has been kept for the next stage.
            needed = waiting if len(stages) == most else _needed(s, waiting)
            stages[-1].after += [*needed, s]
            waiting = [w for w in waiting if w not in needed]
        else:
            waiting.append(s)
    if len(stages) < 2 or waiting or any(s.main.extent is not stages[0].main.extent for s in stages):
        return None
    return stages


def _needed(s: Stmt, earlier: Sequence[Stmt]) -> list[Stmt]:
    """The statements of `earlier` that `s` depends on, directly or through others, in order."""
    results: list[Stmt] = []
    for x in reversed(earlier):
        if any(depend(x, y) for y in (s, *results)):
            results.insert(0, x)
    return results


Crossing = tuple[int, int, Buffer]
"""(number of the stage that writes a buffer, number of the last stage that reads it, the buffer)."""


def _crossing(stages: Sequence[_Stage], own: set[Buffer]) -> list[Crossing] | None:
    """The buffers that stages pass to later stages; None if some data flows in another way."""
    if any(isinstance(x, Intrinsic) for stage in stages for s in stage.all for x in walk(s)):
        return None
    results: list[Crossing] = []
    for k, stage in enumerate(stages):
        for buffer in sorted({b for s in stage.all for b in written(s)}, key=lambda b: b.name):
            others = [j for j, other in enumerate(stages) if j != k and any(buffer in touched(s) for s in other.all)]
            if not others:
                continue
            if others[0] < k or buffer not in own or any(buffer in written(s) for j in others for s in stages[j].all):
                return None
            results.append((k, others[-1], buffer))
    return results


@dataclass(slots=True)
class _Doubled:
    """The stages of a pipelined loop, with two or more versions of the buffers that they share: `copies`, for each
    stage, the statements that copy shared scalars first; `versions`, for each other shared buffer, the buffer of all
    its versions; and all `new` buffers."""

    stages: list[_Stage]
    copies: list[list[Stmt]]
    versions: dict[Buffer, Buffer]
    new: list[Buffer]


def _doubled(
    stages: Sequence[_Stage], crossing: Sequence[Crossing], row: Var, used_names: set[str], alias: int
) -> _Doubled:
    result = _Doubled(list(stages), [[] for _ in stages], {}, [])
    for k, last, buffer in crossing:
        if as_int(buffer.size) == 1:
            zero = tuple(const(0) for _ in buffer.shape)
            supplied = buffer
            for j in range(k + 1, last + 1):
                copy = Buffer(fresh_name(f"{buffer.name}_now", used_names), buffer.dtype, buffer.shape)
                result.copies[j].append(Store(copy, zero, Load(supplied, zero)))
                result.stages[j] = _mapped(result.stages[j], partial(replace_buffers, mapping={buffer: copy}))
                result.new.append(copy)
                supplied = copy
            continue
        count = last - k + 1
        several = result.versions[buffer] = Buffer(buffer.name, buffer.dtype, (const(count), *_shifted(buffer, alias)))
        for j in range(k, last + 1):
            versioned = partial(_versioned, old=buffer, new=several, version=row % count)
            result.stages[j] = _mapped(result.stages[j], versioned)
    return result


def _shifted(buffer: Buffer, alias: int) -> tuple[Expr, ...]:
    """The shape of one version of a buffer, enlarged by `alias` / 2 bytes if its size is a multiple of `alias`:
    otherwise a load from one version would have the same low address bits as a store to the other, and a core would
    make it wait."""
    size = buffer.dtype.itemsize
    if (as_int(buffer.size) or 1) * size % alias:
        return buffer.shape
    first = next(d for d, n in enumerate(buffer.shape) if as_int(n) != 1)
    each = (as_int(product(buffer.shape[first + 1 :])) or 1) * size
    return tuple(n + max(1, alias // 2 // each) if d == first else n for d, n in enumerate(buffer.shape))


def _overlapped(loop: For, doubled: _Doubled) -> Stmt:
    """The loop over rows in which all stages run in each iteration, each for another row; stage k needs k more
    iterations than rows."""
    rows, stages, last = loop.extent, doubled.stages, len(doubled.stages) - 1

    def at(k: int, stmts: Sequence[Stmt], step: Expr | None = None) -> list[Stmt]:
        """The statements `stmts` of stage k for its row in this iteration; `step`, if it is passed, takes the place of
        the variable of the stage's main loop."""
        if not stmts:
            return []
        turn = all_of([loop.var >= k] * (k > 0) + [loop.var < rows + k] * (k < last))
        own: dict[Var, Expr] = {loop.var: loop.var - k} | ({} if step is None else {stages[k].main.var: step})
        return [If(turn, substitute_stmt(seq(stmts), own))]

    first = stages[0].main
    body = [s for k in range(last, 0, -1) for s in at(k, doubled.copies[k])]  # a copy of a copy before that changes
    notes = [note for stage in stages for note in stage.main.notes]
    if (as_int(first.extent) or 0) <= SHORT_STEPS:
        for k, stage in enumerate(stages):
            body += at(k, [*stage.before, replace(stage.main, kind="unrolled", notes=()), *stage.after])
        return replace(loop, extent=rows + last, body=seq(body), notes=reduce(with_note, notes, loop.notes))
    body += [s for k, stage in enumerate(stages) for s in at(k, stage.before)]
    main = map_stmt(seq([s for k, stage in enumerate(stages) for s in at(k, [stage.main.body], first.var)]), _spelled)
    body.append(replace(first, body=main, notes=reduce(with_note, notes, ())))
    body += [s for k, stage in enumerate(stages) for s in at(k, stage.after)]
    return replace(loop, extent=rows + last, body=seq(body))


def _spelled(s: Stmt) -> Stmt | None:
    """A serial loop as an unrolled one; None for other statements."""
    return replace(s, kind="unrolled", notes=()) if isinstance(s, For) and s.kind == "serial" else None


def _mapped(stage: _Stage, f: Callable[[Stmt], Stmt]) -> _Stage:
    main = f(stage.main)
    assert isinstance(main, For)
    return _Stage([f(s) for s in stage.before], main, [f(s) for s in stage.after])


def _versioned(stmt: Stmt, old: Buffer, new: Buffer, version: Expr) -> Stmt:
    """A statement with `new[version, ...]` in the place of `old[...]`."""

    def load(e: Expr) -> Expr | None:
        return Load(new, (version, *e.indices)) if isinstance(e, Load) and e.buffer == old else None

    def store(s: Stmt) -> Stmt | None:
        if not (isinstance(s, Store) and s.buffer == old):
            return None
        return replace(s, buffer=new, indices=(version, *s.indices))

    return map_stmt(stmt, store, lambda e: map_expr(e, load))
