"""Expressions to values: each shared node once, scalar where all lanes agree, lazily where a select guards loads."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arith import prove
from tilewright.codegen.llvm.divide import divide_lanes
from tilewright.codegen.llvm.masks import any_lane, both, compare_lanes, is_comparison
from tilewright.codegen.llvm.memory import is_table, load, load_entries, lookup, lookup_lanes, lookup_register
from tilewright.codegen.llvm.state import State, is_foreign_call
from tilewright.codegen.llvm.values import Value, literal, register_type, vector_literal
from tilewright.codegen.llvm.vector import has_registers_for, is_seldom, sixteenth
from tilewright.ir.dtype import DType, boolean, f32, f64, i32, i64
from tilewright.ir.expr import Const, Expr, Load, Op, Var, all_of, call, cast, const
from tilewright.ir.expr import select as choose
from tilewright.ir.rewrite import substitute, variables
from tilewright.support.errors import CompileError

DIVISIONS = ("floordiv", "mod", "truncdiv", "truncmod")
"""The quotients and remainders of integers."""
_SPECIAL = frozenset((*DIVISIONS, "select", "lookup", "and", "or", "cast"))
"""The operators, besides comparisons, whose code is more than a function of their operands' values."""


def evaluate(s: State, e: Expr) -> Value:
    """The value of `e` for the lanes that are on."""
    if isinstance(e, Const):
        return s.constant(e)
    if isinstance(e, Var):
        return variable(s, e)
    result = s.known(e)
    if result is not None:
        return result
    if isinstance(e, Op) and e.name not in _SPECIAL and not is_comparison(e.name):
        return s.remember(e, s.elementwise(e.name, [evaluate(s, a) for a in e.args], e.dtype))
    match e:
        case Load(buffer, (Op("cast", (number,)),)) if is_table(s, buffer, number):
            return s.remember(e, load_entries(s, buffer, evaluate(s, number)))
        case Load(buffer, indices):
            return s.remember(e, load(s, buffer, indices))
        case Op("select", (condition, then, orelse)):
            return s.remember(e, select(s, condition, then, orelse))
        case Op("lookup", (index, *table)):
            bound = s.converter.bind(e)
            if isinstance(bound, Const):
                return evaluate(s, bound)
            entries = [entry for entry in table if isinstance(entry, Const)]
            chosen = sixteenth(e)
            if chosen is not None and s.varies(e) and has_registers_for(s.target):
                return s.remember(e, lookup_register(s, evaluate(s, chosen), entries))
            known = lookup_lanes(s, index, entries) if s.varies(e) else None
            return s.remember(e, known or lookup(s, evaluate(s, index), entries))
        case Op("and", (a, b)) if _pending(s, b):
            return s.remember(e, select(s, a, b, Const(False, boolean)))
        case Op("or", (a, b)) if _pending(s, b):
            return s.remember(e, select(s, a, Const(True, boolean), b))
        case Op(name, (a, b)) if is_comparison(name) and a.dtype is i64 and s.varies(e):
            short = compare_lanes(s, name, a, b)
            if short is not None:
                return s.remember(e, short)
        case Op("floordiv" | "mod" as name, (a, Const(divisor))) if a.dtype is i64 and s.varies(e):
            quick = divide_lanes(s, name, a, int(divisor))
            if quick is not None:
                return s.remember(e, quick)
        case Op("cast", (inner,)) if (rounded := _rounded(inner, e.dtype)) is not None:
            value, *rest = rounded
            if not any(s.varies(x) for x in rest):
                offset, low, high = (evaluate(s, x) for x in rest)
                return s.remember(e, s.cast_rounded(evaluate(s, value), offset, (low, high), e.dtype))
    if not isinstance(e, Op):
        raise CompileError(f"{type(e).__name__} has no place in a lowered function")
    natural = e.name in DIVISIONS and is_natural(s, e.args[0]) and is_positive(s, e.args[1])
    args = [evaluate(s, a) for a in e.args]
    if e.name == "and" and any(a.span for a in args):
        return s.remember(e, both(s, args[0], args[1]))
    if natural and not any(a.vector for a in args):
        operand = s.ops.divide(e.name, e.dtype, args[0].scalar, args[1].scalar, 0, natural=True)
        return s.remember(e, Value(e.dtype, (operand,)))
    return s.remember(e, s.elementwise(e.name, args, e.dtype))


def _rounded(e: Expr, to: DType) -> tuple[Expr, Expr, Expr, Expr] | None:
    """(x, n, least, largest) if `e` is round(x) + n with an integer n of at most 16 bits, converted to the narrow
    integer type `to`; else None. Bounds on round(x) are those of `to`, less n."""
    if not (_is_narrow(to) and e.dtype in (f32, f64)):
        return None
    least, greatest = const(float(to.min), e.dtype), const(float(to.max), e.dtype)
    match e:
        case Op("round", (x,)):
            return x, const(0, i32), least, greatest
        case Op("add", (Op("round", (x,)), Const(n))) if abs(n) <= 1 << 16 and n == int(n):
            return x, const(int(n), i32), const(float(to.min - n), e.dtype), const(float(to.max - n), e.dtype)
        case Op("add", (Op("round", (x,)), Op("cast", (n,)) as offset)) if _is_narrow(n.dtype):
            return x, cast(n, i32), least - offset, greatest - offset
    return None


def _is_narrow(t: DType) -> bool:
    return t.kind in ("int", "uint") and t.bits <= 16


def variable(s: State, v: Var) -> Value:
    """The value of the variable `v`: a constant that it is bound to, the lane number, or a value in scope."""
    if v in s.constants:
        return Value(v.dtype, (literal(s.constants[v], v.dtype),))
    if s.lanes is not None and v is s.lanes.var:
        parts = tuple(
            vector_literal(tuple(range(start, start + w)), "i64")
            for start, w in zip(s.lanes.offsets, s.lanes.widths, strict=True)
        )
        return Value(i64, parts, True)
    entry = s.env.get(v)
    if entry is None:
        raise CompileError("variable is not bound here", where=f"variable {v.name!r}")
    return entry


def is_natural(s: State, e: Expr) -> bool:
    """Whether an index is obviously nonnegative: built from loop variables and symbols without subtraction."""
    match e:
        case Const(value):
            return bool(value >= 0)
        case Var():
            return e in s.counters or (e.lo is not None and e.lo >= 0)
        case Op("add" | "mul" | "floordiv" | "max", (a, b)) if e.dtype is i64:
            return is_natural(s, a) and is_natural(s, b)
        case Op("mod", (_, b)) if e.dtype is i64:
            return is_positive(s, b)
    return False


def is_positive(s: State, e: Expr) -> bool:
    match e:
        case Const(value):
            return e.dtype.is_int and bool(value > 0)
        case Var():
            return e.lo is not None and e.lo > 0
        case Op("add", (a, b)):
            return (is_positive(s, a) and is_natural(s, b)) or (is_natural(s, a) and is_positive(s, b))
        case Op("mul" | "min", (a, b)):
            return is_positive(s, a) and is_positive(s, b)
        case Op("max", (a, b)) if e.dtype is i64:
            return is_positive(s, a) or is_positive(s, b)
    return False


# select


def select(s: State, condition: Expr, then: Expr, orelse: Expr) -> Value:
    """The value of `select(condition, then, orelse)`. Both branches are computed, unless one contains loads that are
    not known to be safe: such a branch is computed only where the condition selects it."""
    condition = s.converter.bind(condition)
    if isinstance(condition, Const):
        return evaluate(s, then if condition.value else orelse)
    if s.varies(condition):
        condition = _undecided(s, condition)
        if isinstance(condition, Const):
            return evaluate(s, then)
    truths = lane_truths(s, condition)
    if truths is not None and len(set(truths)) == 1:
        return evaluate(s, then if truths[0] else orelse)
    chosen = evaluate(s, condition) if truths is None else literal_mask(s, truths)
    common = _certain_loads(s, orelse)
    for node in _certain_loads(s, then):
        if node in common:
            evaluate(s, node)
    if not _pending(s, then) and not _pending(s, orelse):
        orelse = _scaled_where_it_counts(s, condition, then, orelse)
        if s.known(orelse) is None and is_seldom(orelse, s.seldom):
            return _seldom(s, chosen, then, orelse)
        return blend(s, chosen, evaluate(s, then), evaluate(s, orelse))
    if not chosen.vector and reads_under_mask(s, then, orelse):
        chosen = Value(boolean, s.parts(chosen), True)
    if not chosen.vector:
        return _branch(s, chosen.scalar, then, orelse)
    if truths is not None and s.mask is None:
        a = _under_mask(s, chosen, then, truths)
        off = tuple(not x for x in truths)
        return blend(s, chosen, a, _under_mask(s, literal_mask(s, off), orelse, off))
    negated = s.elementwise("not", [chosen], boolean)
    a = _under_mask(s, both(s, s.mask, chosen), then)
    b = _under_mask(s, both(s, s.mask, negated), orelse)
    return blend(s, chosen, a, b)


def _scaled_where_it_counts(s: State, condition: Expr, then: Expr, orelse: Expr) -> Expr:
    """The branch `orelse` of a select by `condition` between `then`, which is 0, and `x * 2**n`, with the power of
    unselected lanes replaced by 1, where the machine is slow on subnormal numbers. LLVM moves the select into the mask
    of the scaling instruction, so that unselected lanes do not underflow, but not across the shuffles of a vector whose
    width is no power of two; this does it there."""
    costs = s.target.isa.scales and s.target.costs.arithmetic.subnormal
    if not costs or s.lanes is None or all(w.bit_count() == 1 for w in s.lanes.widths):
        return orelse
    match then, orelse:
        case Const(0.0), Op("scaleb", (x, n)):
            return call("scaleb", x, choose(condition, Const(0.0, n.dtype), n))
    return orelse


def _undecided(s: State, condition: Expr) -> Expr:
    """A condition without the parts of it that hold in all lanes, whatever the symbols are."""
    assert s.lanes is not None
    if isinstance(condition, Op) and condition.name == "and":
        return all_of(_undecided(s, part) for part in condition.args)
    known = s.proved.get((condition, s.lanes.var))
    if known is None:
        extents = {loop.var: loop.extent for loop in s.enclosing} | {s.lanes.var: Const(s.lanes.extent, i64)}
        known = s.proved[condition, s.lanes.var] = prove(condition, extents)
    return Const(True, boolean) if known else condition


def reads_under_mask(s: State, then: Expr, orelse: Expr) -> bool:
    """Whether a select between the load `then` and the constant `orelse`, whose condition is equal for all lanes, as
    for padding, loads under a mask instead of after a jump: one mask serves many vectors, while each would need a
    jump."""
    alone = isinstance(then, Load) and isinstance(orelse, Const)
    return alone and s.varies(then) and s.target.isa.masked_reads


def lane_truths(s: State, condition: Expr) -> tuple[bool, ...] | None:
    """For each lane whether the condition holds, if it depends on nothing but the lane."""
    if s.lanes is None or not s.varies(condition) or any(v is not s.lanes.var for v in variables(condition)):
        return None
    truths = []
    for lane in range(s.lanes.extent):
        value = substitute(condition, {s.lanes.var: Const(lane, i64)})
        if not isinstance(value, Const):
            return None
        truths.append(bool(value.value))
    return tuple(truths)


def literal_mask(s: State, truths: tuple[bool, ...]) -> Value:
    assert s.lanes is not None
    parts = tuple(
        f"<{', '.join('i1 true' if x else 'i1 false' for x in truths[start : start + width])}>"
        for start, width in zip(s.lanes.offsets, s.lanes.widths, strict=True)
    )
    return Value(boolean, parts, True)


def blend(s: State, condition: Value, a: Value, b: Value) -> Value:
    """`a` where the condition holds, else `b`, both computed."""
    t = a.dtype
    if not (condition.vector or a.vector or b.vector):
        return Value(t, (s.ops.select(condition.scalar, 0, a.scalar, b.scalar, t, 0),))
    assert s.lanes is not None
    left, right = s.parts(a), s.parts(b)
    parts = tuple(
        s.ops.select(condition.parts[k], w, left[k], right[k], t, w)
        if condition.vector
        else s.ops.select(condition.scalar, 0, left[k], right[k], t, w)
        for k, w in enumerate(s.lanes.widths)
    )
    return Value(t, parts, True)


def _seldom(s: State, condition: Value, usual: Expr, other: Expr) -> Value:
    """The value of a select by `condition` between `usual` and `other`, of which `other` is costly: it is computed only
    if some lane takes it."""
    if not condition.vector:
        return _branch(s, condition.scalar, usual, other)
    value = evaluate(s, usual)
    value = value if value.vector else Value(value.dtype, s.parts(value), True)
    out = s.out
    here, some, join = out.block, out.fresh("seldom"), out.fresh("join")
    out.branch(any_lane(s, s.elementwise("not", [condition], boolean)), some, join)
    out.start(some)
    with s.scope():
        mixed = blend(s, condition, value, evaluate(s, other))
    there = out.block
    out.jump(join)
    out.start(join)
    return merge(s, (value, here), (mixed, there))


def _pending(s: State, e: Expr, seen: set[Expr] | None = None) -> bool:
    """Whether computing `e` would read memory that has not been read yet, or call a user's function; parts in `seen`
    are skipped."""
    seen = set() if seen is None else seen
    if e in seen or not s.reads(e):
        return False
    seen.add(e)
    if s.known(e) is not None:
        return False
    is_pending = isinstance(e, Load) or is_foreign_call(e)
    for c in e.children:  # a generator would take C's stack for each level
        is_pending = is_pending or _pending(s, c, seen)
    return is_pending


def _certain_loads(s: State, e: Expr) -> dict[Expr, None]:
    """The loads that computing `e` always performs, in order."""
    if e in s.certain_loads:
        return s.certain_loads[e]
    result = s.certain_loads[e] = {}
    _add_certain(s, e, result, set())
    return result


def _add_certain(s: State, e: Expr, result: dict[Expr, None], seen: set[Expr]) -> None:
    if e in seen or not s.reads(e):
        return
    seen.add(e)
    if isinstance(e, Op) and e.name == "select":
        _add_certain(s, e.args[0], result, seen)
        other = _certain_loads(s, e.args[2])
        result.update((x, None) for x in _certain_loads(s, e.args[1]) if x in other)
        return
    for child in e.children:
        _add_certain(s, child, result, seen)
    if isinstance(e, Load):
        result[e] = None


def _branch(s: State, condition: str, then: Expr, orelse: Expr) -> Value:
    """The value of a select between `then` and `orelse` whose condition, an i1, is equal for all lanes: a jump around
    the branch that is not taken."""
    out = s.out
    then_block, else_block, join = (out.fresh(n) for n in ("then", "else", "join"))
    out.branch(condition, then_block, else_block)
    results: list[tuple[Value, str]] = []
    vector = s.varies(then) or s.varies(orelse)
    for block, branch in ((then_block, then), (else_block, orelse)):
        out.start(block)
        with s.scope():
            value = evaluate(s, branch)
            if vector and not value.vector:
                value = Value(value.dtype, s.parts(value), True)
        results.append((value, out.block))
        out.jump(join)
    out.start(join)
    return merge(s, results[0], results[1])


def merge(s: State, a: tuple[Value, str], b: tuple[Value, str]) -> Value:
    """Emit a phi of the values `a` and `b`, each given with the name of the block that it comes from."""
    (left, left_block), (right, right_block) = a, b
    parts = []
    for k, (x, y) in enumerate(zip(left.parts, right.parts, strict=True)):
        ty = register_type(left.dtype, s.lanes.widths[k] if left.vector and s.lanes else 0)
        parts.append(s.out.inst(f"phi {ty} [ {x}, %{left_block} ], [ {y}, %{right_block} ]"))
    return Value(left.dtype, tuple(parts), left.vector)


def _under_mask(s: State, mask: Value, e: Expr, on: tuple[bool, ...] | None = None) -> Value:
    """The value of `e` in the lanes of `mask`. Loads that are the same for all lanes happen only if the mask has a lane
    on."""
    if not _pending(s, e):
        return evaluate(s, e)
    with s.masked(mask, on):
        if on is not None or not any(not s.varies(node) for node in _uniform_loads(s, e)):
            with s.some_lanes():
                return evaluate(s, e)
        out = s.out
        here, some, join = out.block, out.fresh("some"), out.fresh("join")
        out.branch(any_lane(s, mask), some, join)
        out.start(some)
        with s.scope():
            value = evaluate(s, e)
            value = value if value.vector else Value(value.dtype, s.parts(value), True)
        there = out.block
        out.jump(join)
        out.start(join)
        nothing = Value(e.dtype, tuple("zeroinitializer" for _ in value.parts), True)
        return merge(s, (nothing, here), (value, there))


def _uniform_loads(s: State, e: Expr, seen: set[Expr] | None = None) -> Iterator[Load]:
    """The loads in `e` whose address is the same for all lanes and whose value is not known yet; parts in `seen` are
    skipped."""
    seen = set() if seen is None else seen
    if e in seen or not s.reads(e):
        return
    seen.add(e)
    if s.known(e) is not None:
        return
    if isinstance(e, Load) and not s.varies(e):
        yield e
    for child in e.children:
        yield from _uniform_loads(s, child, seen)
