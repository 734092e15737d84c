"""Dependences between iterations of a loop: checks for reorder, parallel and vectorize.

They rely on facts that hold for the functions of all front ends and that every primitive preserves: a block writes each
element of its spatial domain once (or, for a reduction, only combines into it), and one iteration of a loop reads of an
intermediate only what the same iteration, or an earlier statement, has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from tilewright.arith import bounds, linear, prove, simplify, symbolic_bounds
from tilewright.ir.combine import KNOWN_REDUCERS
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, as_int, const, is_const
from tilewright.ir.loops import TRUE, Block, For, If, PrimFunc, Stmt, Store
from tilewright.ir.notes import InOrder
from tilewright.ir.notes import find as find_note
from tilewright.ir.rewrite import substitute, variables, walk_expr
from tilewright.schedule.affine import chain_of, is_quotient, quotient
from tilewright.schedule.state import (
    blocks_in,
    conjuncts,
    depends_on,
    extents_of,
    find,
    last_loop,
    loads_in,
    loop_path,
    loops_in,
    loops_on,
    read_buffers,
    refuse,
    stores_in,
    written_buffers,
)
from tilewright.support.classes import dataclass
from tilewright.support.errors import ScheduleError


def reduce_iters_using(block: Block, var: Var) -> list[str]:
    """The names of the reduction iterators of `block` whose binding contains the loop variable `var`."""
    return [it.var.name for it in block.iters if it.kind == "reduce" and depends_on(it.binding, var)]


def runs_once(extent: Expr) -> bool:
    """Whether a loop of this extent has at most one iteration, as for `(n + 47) // 48` with n in 0..40; the simplifier
    then assumes that its variable is 0."""
    most = bounds(extent).hi
    return most is not None and most <= 1


def spatial_bindings(block: Block) -> list[Expr]:
    return [it.binding for it in block.iters if it.kind == "spatial"]


def check_reduction_order(
    func: PrimFunc, block: Block, loops: Sequence[For], before: Sequence[Var], after: Sequence[Var]
) -> None:
    """Raise ScheduleError if loops in the order `after`, instead of `before`, would restart a reduction on a point that
    is already partly reduced.

    A point that several iterations of a loop compute (overlapping tiles) is computed wholly by each of them; so a
    reduction loop must not come to stand outside of such a loop.
    """
    if not block.is_reduction:
        return
    reducing = [v for v in before if reduce_iters_using(block, v)]
    single = {loop.var for loop in loops if runs_once(loop.extent)}
    spatial = spatial_bindings(block)
    for v in before:
        overtaken = [r for r in reducing if before.index(r) > before.index(v) and after.index(r) < after.index(v)]
        if v in single or not overtaken:
            continue
        if v not in reducing and not injective(spatial, v, extents_of(loops)):
            raise refuse(
                func,
                f"cannot move reduction loop {overtaken[0].name!r} outside of {v.name!r}: iterations of {v.name!r} "
                f"compute the same points of block {block.name!r}",
            )
        mixed = [x for x in (v, *overtaken) if any(depends_on(e, x) for e in spatial)]
        if v in reducing and block.init is not None and mixed:
            raise refuse(
                func,
                f"cannot move loop {overtaken[0].name!r} outside of {v.name!r}: {mixed[0].name!r} drives spatial and "
                f"reduction iterators of block {block.name!r}, whose init would not come first",
            )


def check_kinds(before: PrimFunc, after: PrimFunc, loops: Sequence[For], what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, if the step from `before` to `after` makes one of `loops` run
    iterations concurrently that depend on each other. A step may give a loop other blocks to run, or make a buffer no
    longer private to its iterations."""
    for loop in loops:
        path = find(after.body, lambda s, v=loop.var: isinstance(s, For) and s.var is v)  # type: ignore[misc]
        if loop.kind not in ("parallel", "thread", "vectorized") or path is None:
            continue
        try:
            check_independent(after, last_loop(path), reductions=loop.kind == "vectorized")
        except ScheduleError as error:
            raise refuse(before, f"{what}: {error.what}") from None


def check_independent(func: PrimFunc, loop: For, *, reductions: bool, partial: bool = False) -> None:
    """Raise ScheduleError if the iterations of `loop` may not run concurrently.

    `reductions`: accept a loop over a reduction with a known reducer (sum, product, min, max). `partial`: accept a loop
    of which conditions leave only the first iteration; the other threads then do nothing.
    """
    if runs_once(loop.extent):
        return
    word = "vectorize" if reductions else "parallelize"
    for block in blocks_in(loop.body):
        reduces = reduce_iters_using(block, loop.var)
        if reduces and not reductions:
            raise refuse(
                func,
                f"cannot {word} loop {loop.var.name!r}: it drives reduction iterator {', '.join(reduces)} of block "
                f"{block.name!r}, whose steps update the same elements",
                hint="rfactor the block over this loop first, or choose a spatial loop",
            )
        if reduces:
            _check_vector_reduction(func, loop, block)
            continue
        shared = [b for b in written_buffers(block) if not is_private(func, b, loop)]
        if not shared:
            continue
        inner = extents_of(loops_on(find(loop.body, lambda s, b=block: s is b) or ()))  # type: ignore[misc]
        extents, conditions = inner | {loop.var: loop.extent}, conjuncts(block.predicate)
        bindings = spatial_bindings(block)
        if partial and _comes_once(func, loop, extents, conditions):
            continue
        if not injective(bindings, loop.var, extents, conditions) and not (
            partial and injective([_moving(b, extents) for b in bindings], loop.var, extents, conditions)
        ):
            raise refuse(
                func,
                f"cannot {word} loop {loop.var.name!r}: two of its iterations may write the same elements of "
                f"{shared[0].name!r} in block {block.name!r}",
            )
        _check_in_place(func, loop, block, word)


def _comes_once(func: PrimFunc, loop: For, extents: Mapping[Var, Expr], conditions: Sequence[Expr]) -> bool:
    """Whether `conditions` leave only the first iteration of `loop`."""
    if loop.var not in {v for c in conditions for v in variables(c)}:
        return False
    enclosing = extents_of(loops_on(loop_path(func, loop.var.name)))
    return prove(loop.var < 1, {**enclosing, **extents}, tuple(conditions))


def _moving(value: Expr, extents: Mapping[Var, Expr]) -> Expr:
    """The sum of the terms of `value` that contain variables of `extents`; the other terms are equal in all
    iterations."""
    terms = (e * c for e, c in linear(value).terms if any(v in extents for v in variables(e)))
    return sum(terms, start=const(0))


def reordered_sums(func: PrimFunc) -> tuple[str, ...]:
    """Descriptions, a sentence for each loop and block, of how vectorized loops reorder sums and products of floats.

    Lanes make partial sums, which are added at the end: another order than the loop's, whose rounding differs.
    """
    texts = []
    for loop in loops_in(func.body):
        if loop.kind != "vectorized" or runs_once(loop.extent):
            continue
        for block in blocks_in(loop.body):
            update = reduction_update(block) if reduce_iters_using(block, loop.var) else None
            if update is not None and update.op in ("add", "mul") and update.target.buffer.dtype.is_float:
                what = "adds" if update.op == "add" else "multiplies"
                texts.append(
                    f"vectorized loop {loop.var.name!r} {what} up block {block.name!r} in {loop.extent} partial "
                    "results: another order, whose rounding differs from the loop's"
                )
    return tuple(texts)


def require_any_order(func: PrimFunc, loop: For, what: str) -> None:
    """Raise ScheduleError for a loop over the steps of a recurrence, whose iterations run in order; `what` names the
    primitive."""
    if find_note(loop.notes, InOrder) is not None:
        raise refuse(
            func, f"cannot {what} loop {loop.var.name!r}: it runs over the steps of a recurrence, which are in order"
        )


def is_private(func: PrimFunc, buffer: Buffer, loop: For) -> bool:
    """Whether `buffer` is an intermediate that only blocks in the body of `loop` access."""
    if buffer in func.params:
        return False
    inside = {b.name for b in blocks_in(loop.body)}
    return all(
        b.name in inside for b in blocks_in(func.body) if buffer in written_buffers(b) or buffer in read_buffers(b)
    )


def _check_in_place(func: PrimFunc, loop: For, block: Block, word: str) -> None:
    """Raise ScheduleError if a spatial block inside `loop` reads an element of a buffer that it writes at another one;
    `word` is the error's verb, such as "vectorize"."""
    writes = {(s.buffer, s.indices) for s in stores_in(block)}
    for load in loads_in(block):
        if load.buffer in {b for b, _ in writes} and (load.buffer, load.indices) not in writes:
            if any(_other_row(block, loop, load.indices, indices) for b, indices in writes if b == load.buffer):
                continue
            raise refuse(
                func,
                f"cannot {word} loop {loop.var.name!r}: block {block.name!r} reads other elements of the buffer "
                f"{load.buffer.name!r} that it writes",
            )


def _other_row(block: Block, loop: For, read: Sequence[Expr], written: Sequence[Expr]) -> bool:
    """Whether all iterations of `loop` write one row of a buffer, at indices `written`, and read another, at indices
    `read`, as in a step of a recurrence."""
    fixed = {it.var for it in block.iters if not depends_on(it.binding, loop.var)}
    for a, b in zip(read, written, strict=True):
        separate = as_int(simplify(a - b))
        if separate and set(variables(b)) <= fixed:
            return True
    return False


def _check_vector_reduction(func: PrimFunc, loop: For, block: Block) -> None:
    if any(depends_on(e, loop.var) for e in spatial_bindings(block)):
        raise refuse(
            func,
            f"cannot vectorize loop {loop.var.name!r}: it drives spatial and reduction iterators of block "
            f"{block.name!r} at once",
        )
    if reduction_update(block) is None:
        raise refuse(
            func,
            f"cannot vectorize loop {loop.var.name!r}: it drives a reduction of block {block.name!r} that is not a "
            "sum, product, minimum or maximum",
        )


@dataclass(frozen=True, slots=True)
class Update:
    """One step of a reduction by a single operator: `target = op(target, value)`, where `condition` holds."""

    op: str
    target: Load
    value: Expr
    condition: Expr


def reduction_update(block: Block) -> Update | None:
    """The step of a block of the form `C[i] = C[i] op value`, with op one of add, mul, min, max and a value that does
    not read C; None for other blocks."""
    body: Stmt = block.body
    condition: Expr = TRUE
    if isinstance(body, If) and body.orelse is None:
        condition, body = body.condition, body.then
    if not isinstance(body, Store):
        return None
    target = Load(body.buffer, body.indices)
    value = body.value
    if not (isinstance(value, Op) and value.name in KNOWN_REDUCERS and target in value.args):
        return None
    other = value.args[1] if value.args[0] is target else value.args[0]
    if any(isinstance(n, Load) and n.buffer == body.buffer for e in (other, condition) for n in walk_expr(e)):
        return None
    return Update(value.name, target, other, condition)


def injective(values: Iterable[Expr], var: Var, extents: Mapping[Var, Expr], conditions: Sequence[Expr] = ()) -> bool:
    """Whether different values of `var` are known to give different tuples `values`, as long as `conditions` hold and
    whatever the other variables in `extents` are (variables not in `extents` are fixed).

    Works backwards from known expressions: `8*a + b` with 0 <= b < 8 determines a; `f // m` with `f % m` determine f.
    """
    if var in extents and runs_once(extents[var]):
        return True
    arguments = list(values)
    arguments += _rejoined(arguments, extents)
    limited, limits = _limited(arguments, extents, conditions)
    extents = {**extents, **limits}
    known = [v for v in (*arguments, *limited) if depends_on(v, var)]
    parts: dict[Expr, list[tuple[Expr, Expr | None]]] = {}
    while known:
        value = known.pop()
        if value is var:
            return True
        if isinstance(value, Op) and is_quotient(value):
            base, divisor, modulus = quotient(value)
            pieces = parts.setdefault(base, [])
            pieces.append((divisor, modulus))
            if chain_of(base, pieces, extents) is not None:
                known.append(base)
            continue
        terms = _determined_terms(value, extents)
        known.extend(t for t in terms if depends_on(t, var))
        if not terms and _separated(value, var, extents):
            return True
    return False


def _rejoined(values: Sequence[Expr], extents: Mapping[Var, Expr]) -> list[Expr]:
    """For each two neighbours q, r among `values` with 0 <= r < c, where variables have the `extents`, the sum `c*q +
    r`, in which `m * (e // m) + e % m` has become e. The simplifier decomposes a fused index: with f = 96*a + 6*b + d
    the pair `f // 54`, `f % 54` may have become `a + (7*a + b) // 9` and `(7*a + b) % 9 * 6 + d`, which determine f all
    the same."""
    results = []
    for q, r in pairwise(values):
        quotients = [e for e, _ in linear(q).terms if isinstance(e, Op) and e.name == "floordiv"]
        reach = bounds(r, extents)
        if not quotients or reach.lo is None or reach.lo < 0 or reach.hi is None:
            continue
        total = linear(q * (reach.hi + 1) + r)
        terms = dict(total.terms)
        for e, c in total.terms:
            if not (isinstance(e, Op) and e.name == "mod"):
                continue
            base, size = e.args
            for twin in quotients:
                of, by = twin.args
                fits = by is size and isinstance(by, Const) and terms.get(twin, 0) == c * by.value
                # The remainder may be that of a number which differs by a multiple of the divisor.
                if fits and (of is base or is_const(simplify((of - base) % size, extents), 0)):
                    del terms[e], terms[twin]
                    terms[of] = terms.get(of, 0) + c
                    break
        rejoined: Expr = const(total.constant)
        for e, c in terms.items():
            rejoined = rejoined + e * c
        results.append(simplify(rejoined, extents))
    return results


def _limited(
    values: Sequence[Expr], extents: Mapping[Var, Expr], conditions: Sequence[Expr]
) -> tuple[list[Expr], dict[Var, Expr]]:
    """(the `values` with each subexpression `e` that a condition `e < c` bounds replaced by a new variable in 0..c, the
    extents of these variables). `extents` are the extents of the loops."""
    results: list[Expr] = []
    limits: dict[Var, Expr] = {}
    for condition in conditions:
        if not (isinstance(condition, Op) and condition.name == "lt" and as_int(condition.args[1]) is not None):
            continue
        e, most = condition.args
        low = bounds(e, extents).lo
        if low is None or low < 0:
            continue
        short = Var(f"limited{len(limits)}")
        for value in values:
            rest = simplify(value - e, extents)
            if not set(variables(e)) & set(variables(rest)):
                limits[short] = most
                results.append(rest + short)
    return results, limits


def _determined_terms(value: Expr, extents: Mapping[Var, Expr]) -> list[Expr]:
    """The terms of the sum `value`, of variables with the `extents`, that are determined by its value: each has a
    larger stride than the range of the sum of all smaller ones."""
    terms = [(e, abs(c)) for e, c in linear(value).terms if any(v in extents for v in variables(e))]
    if len(terms) == 1 and terms[0][0] is value:
        return []
    # What has one value only tells nothing and hides nothing.
    terms = [(e, step) for e, step in terms if (box := bounds(e, extents)).lo is None or box.lo != box.hi]
    terms.sort(key=lambda term: term[1])
    reach: int | None = 0
    reaches: list[int | None] = []
    for e, step in terms:
        reaches.append(reach)
        interval = bounds(e, extents)
        if reach is not None:
            known = interval.lo is not None and interval.hi is not None
            reach = reach + step * (interval.hi - interval.lo) if known else None  # type: ignore[operator]
    results: list[Expr] = []
    for (e, step), below in reversed(list(zip(terms, reaches, strict=True))):
        if below is None or below >= step:
            break
        results.append(e)
    return results


def _separated(value: Expr, var: Var, extents: Mapping[Var, Expr]) -> bool:
    """Whether every value of the expression `value` at `var + 1` is greater than all its values at `var`, over the
    other variables within their `extents` (for symbolic strides)."""
    box = symbolic_bounds(value, {v: x for v, x in extents.items() if v is not var})
    if box is None:
        return False
    low_next = substitute(box[0], {var: var + 1})
    return prove(low_next > box[1], {var: extents[var]} if var in extents else {})
