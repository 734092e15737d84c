"""Repeat the primitives that were applied to a block's loops after another primitive has moved the block.

    B is split: i -> i_0, i_1, and i_1 is vectorized            compute_at(B, l) makes one new loop: i
        for i_0 in 0..8:                                            for l in ...:
            for i_1 in 0..8:  # vectorized                              for i in 0..16:
                block B(vi = i_0 * 8 + i_1)                                 block B(vi = l * 16 + i)

    then the splits, joins, order and kinds are applied to the new loop:

        for l in ...:
            for i_0 in 0..2:
                for i_1 in 0..8:  # vectorized
                    block B(vi = l * 16 + (i_0 * 8 + i_1))

A loop around this block alone keeps its name, so that references to it stay valid. A primitive that is illegal at the
new place raises its usual error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.arith import linear
from tilewright.ir.expr import Expr, Var, as_int, is_const
from tilewright.ir.loops import Block, For, PrimFunc, Stmt
from tilewright.ir.rewrite import fresh_name, variables
from tilewright.schedule import kinds, loops
from tilewright.schedule.state import (
    Path,
    block_path,
    last_block,
    last_loop,
    loop_path,
    loops_on,
    own_loops,
    rebind,
    refuse,
    replace_at,
    used_names_of,
)
from tilewright.support.classes import dataclass
from tilewright.support.errors import ScheduleError

Factors = tuple[int | Var | None, ...]
Moving = Callable[[PrimFunc, str, str], PrimFunc]


@dataclass(frozen=True, slots=True)
class LoopId:
    """The identity of a loop in a schedule's history: its variable's name, and the instruction that created it (0:
    none)."""

    name: str
    birth: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """A step of the history: a loop was split into nested ones."""

    parent: LoopId
    parts: tuple[LoopId, ...]
    factors: Factors


@dataclass(frozen=True, slots=True)
class Fusion:
    """A step of the history: nested loops were fused into one."""

    parents: tuple[LoopId, ...]
    result: LoopId


Step = Split | Fusion


def is_asked(own: Sequence[For], steps: Sequence[Step], first: PrimFunc, block: str) -> bool:
    """Whether the loops `own` of a block were changed since they were new in the function `first`: split, fused,
    reordered, or given kinds or notes."""
    if steps or any(x.kind != "serial" or x.notes for x in own):
        return True
    names = [x.var.name for x in own]
    return names != [x.var.name for x in loops_on(block_path(first, block)) if x.var.name in names]


def steps_after(own: Sequence[LoopId], history: Sequence[Step], since: int) -> list[Step]:
    """The steps of `history` after instruction `since` that led to the loops `own`, in order."""
    wanted, result = set(own), list[Step]()
    for step in reversed(history):
        created = step.parts if isinstance(step, Split) else (step.result,)
        if wanted & set(created) and created[0].birth > since:
            result.append(step)
            wanted |= {step.parent} if isinstance(step, Split) else set(step.parents)
    return result[::-1]


def move(
    func: PrimFunc,
    moving: Moving,
    block: str,
    loop: str,
    steps: Sequence[Step],
    own: Mapping[LoopId, For],
    roots: Callable[[LoopId], int | None],
    is_there: Callable[[LoopId], bool],
) -> PrimFunc:
    """The result of `moving(func, block, loop)`, with the primitives that were applied to the block's loops `own`
    repeated on its new loops. `roots` returns for an original loop the position of the iterator that it drove."""
    source = last_block(block_path(func, block))
    moved = moving(func, block, loop)
    new = loops_on(block_path(moved, block))[-len(source.iters) :] if source.iters else ()
    plan = (_by_history(source, steps, own, roots) if _is_whole(steps, is_there) else None) or _by_structure(
        source, own
    )
    what = f"cannot move {block!r} to {loop!r} as it is scheduled"
    if plan is None:
        raise refuse(func, f"{what}: its loops are not parts of its iterators", hint="schedule it after it is moved")
    starts, repeated = plan
    try:
        moved, names = _apply(moved, {x: new[p].var.name for x, p in starts.items()}, repeated)
        own = {x: loop for x, loop in own.items() if x in names}
        moved = _order(moved, block, [names[x] for x in own], len(source.iters))
        moved = _rename(moved, {names[x]: x.name for x in own})
        for x in own.values():
            moved = _restored(moved, x)
    except ScheduleError as error:
        raise refuse(func, f"{what}: {error.what}", expected=error.expected, got=error.got, hint=error.hint) from error
    return moved


def _is_whole(steps: Sequence[Step], is_there: Callable[[LoopId], bool]) -> bool:
    """Whether all loops that result from `steps` still exist. If an intrinsic replaced some, the block's iterators
    count its tiles, and the steps cannot be repeated."""
    used = {x for step in steps for x in ((step.parent,) if isinstance(step, Split) else step.parents)}
    produced = {x for step in steps for x in (step.parts if isinstance(step, Split) else (step.result,))}
    return all(map(is_there, produced - used))


def _by_history(
    source: Block, steps: Sequence[Step], own: Mapping[LoopId, For], roots: Callable[[LoopId], int | None]
) -> tuple[dict[LoopId, int], Sequence[Step]] | None:
    """How to repeat the recorded `steps` on new loops of the block `source`: (original loop -> the position of the
    iterator that it drove, as `roots` tells, steps). None if such a position is unknown, or two loops have the same.
    `own` are the block's loops now."""
    produced = {x for step in steps for x in (step.parts if isinstance(step, Split) else (step.result,))}
    used = {x for step in steps for x in ((step.parent,) if isinstance(step, Split) else step.parents)}
    starts: dict[LoopId, int] = {}
    for x in (*used, *own):
        if x in produced or x in starts:
            continue
        position = roots(x)
        if position is None and x not in used and own[x].kind == "serial" and not own[x].notes:
            continue  # it was another stage's, which left; nothing was asked of it here
        if position is None or position >= len(source.iters) or position in starts.values():
            return None
        starts[x] = position
    return starts, steps


def _by_structure(source: Block, own: Mapping[LoopId, For]) -> tuple[dict[LoopId, int], Sequence[Step]] | None:
    """The plan of repetition read off a block's bindings, where `vi = i_0*8 + i_1` is a split by 8: (position of the
    iterator of each loop to start from, steps). None if the bindings do not tell."""
    starts: dict[LoopId, int] = {}
    steps: list[Step] = []
    ids = {x.var: (identity, x) for identity, x in own.items()}
    for position, it in enumerate(source.iters):
        terms = [(c, ids[v]) for v, c in linear(it.binding).terms if isinstance(v, Var) and v in ids]
        if not terms:
            continue
        terms.sort(key=lambda t: -t[0])
        parts = [t[1][0] for t in terms]
        if set(parts) & {x for s in steps for x in (s.parts if isinstance(s, Split) else ())} | set(parts) & set(
            starts
        ):
            return None
        scale = 1
        factors: list[int | None] = []
        for coefficient, (_, x) in reversed(terms):
            size = as_int(x.extent)
            if coefficient != scale or (size is None and x is not terms[0][1][1]):
                return None
            factors.append(size)
            scale *= size or 1
        if len(parts) == 1:
            starts[parts[0]] = position
            continue
        whole = LoopId(it.var.name, -1)
        starts[whole] = position
        steps.append(Split(whole, tuple(parts), (None, *reversed(factors[:-1]))))
    return (starts, steps) if all(_reached(x, starts, steps) for x in own) else None


def _reached(x: LoopId, starts: Mapping[LoopId, int], steps: Sequence[Step]) -> bool:
    return x in starts or any(isinstance(s, Split) and x in s.parts for s in steps)


def _apply(func: PrimFunc, names: dict[LoopId, str], steps: Sequence[Step]) -> tuple[PrimFunc, dict[LoopId, str]]:
    """Apply `steps` to the loops that `names` gives; returns the function and the names of the resulting loops."""
    for step in steps:
        if isinstance(step, Split):
            func, parts = loops.split(func, names.pop(step.parent), factors=step.factors)
            names |= dict(zip(step.parts, parts, strict=True))
        else:
            parents = [names.pop(x) for x in step.parents]
            func = _gather(func, parents)
            func, names[step.result] = loops.fuse(func, *parents)
    return func, names


def _gather(func: PrimFunc, parents: Sequence[str]) -> PrimFunc:
    """Reorder a chain so that the loops `parents` are directly inside one another, in this order, from the place of the
    outermost."""
    chain: list[str] = []
    stmt: Stmt = min((loop_path(func, p) for p in parents), key=len)[-1]
    while isinstance(stmt, For) and not set(parents) <= set(chain):
        chain.append(stmt.var.name)
        stmt = stmt.body
    return loops.reorder(func, *parents, *(x for x in chain if x not in parents))


def _order(func: PrimFunc, block: str, wanted: Sequence[str], rank: int) -> PrimFunc:
    """The function with the loops `wanted` of a block in this order, innermost; its other loops, of the last `rank`,
    are outside of them."""
    chain = [x.var.name for x in own_loops(block_path(func, block))]
    rest = [x for x in chain[-max(rank, len(wanted)) :] if x not in wanted]
    inside = [x for x in chain if x in wanted or x in rest]
    target = [*rest, *wanted]
    return func if inside == target else loops.reorder(func, *target)


def _rename(func: PrimFunc, names: Mapping[str, str]) -> PrimFunc:
    """Rename loops of one block, also where an old name is another's new one."""
    for turn in (lambda old, new, selected: fresh_name(f"{new}_", selected), lambda old, new, selected: new):
        step: dict[str, str] = {}
        for old, new in names.items():
            if old == new:
                continue
            name = turn(old, new, used_names_of(func))
            path = loop_path(func, old)
            loop = last_loop(path)
            var = loop.var.renamed(name)
            body = rebind(loop.body, {loop.var: var}, {})
            func = replace_at(func, path, replace(loop, var=var, body=body))
            step[name] = new
        names = step
    return func


def _restored(func: PrimFunc, old: For) -> PrimFunc:
    """Apply the kind and the notes of loop `old` to the loop that now has its name."""
    name = old.var.name
    match old.kind:
        case "unrolled":
            func = kinds.unroll(func, name)
        case "vectorized":
            func = kinds.vectorize(func, name)
        case "parallel":
            func = kinds.parallel(func, name)
        case "thread":
            assert old.thread is not None
            func = kinds.bind(func, name, old.thread)
    if old.notes:
        path = loop_path(func, name)
        func = replace_at(func, path, replace(last_loop(path), notes=old.notes))
    return func


def _position(block: Block, var: Var) -> int | None:
    """The position of the only iterator whose binding contains the loop variable `var`; None if it is not one alone."""
    driven = [k for k, it in enumerate(block.iters) if var in variables(it.binding)]
    return driven[0] if len(driven) == 1 else None


def root_position(func: PrimFunc, block: str, loop: str) -> int | None:
    """The position of the iterator of `block` that `loop` alone drives, with stride 1, in the function in which the
    loop is new; else None."""
    try:
        path = block_path(func, block)
    except ScheduleError:
        return None
    match = next((x for x in loops_on(path) if x.var.name == loop), None)
    if match is None:
        return None
    position = _position(last_block(path), match.var)
    if position is None and is_const(match.extent, 1):
        position = _unmentioned(last_block(path), path, match)
    elif position is not None:
        binding = last_block(path).iters[position].binding
        others = {x.var for x in own_loops(path)} - {match.var}
        if _coefficient(binding, match.var) != 1 or others & set(variables(binding)):
            return None
    return position


def _unmentioned(block: Block, path: Path, loop: For) -> int | None:
    """The position of the iterator of a loop with one iteration, which occurs in no binding: that of the loop in a nest
    with one loop for each iterator, else None."""
    own = own_loops(path)
    return own.index(loop) if loop in own and len(own) == len(block.iters) else None


def _coefficient(binding: Expr, var: Var) -> int:
    return dict(linear(binding).terms).get(var, 0)
