"""Reductions across lanes: one vector folded by halving it, several rows' vectors folded together.

    for r in unrolled 0..8 {
      for lane in vectorized 0..16 { top[r] = max(top[r], part[r, lane]) }
    }

Halving takes a shuffle and an operation for each power of two, on vectors that are ever emptier. Of neighbouring rows,
two vectors become one whose halves belong to either: sixteen rows of sixteen lanes take 15 operations and 30 shuffles
instead of 64 and 64, and their results lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.llvm.address import buffer_offset
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.memory import store, store_scalar
from tilewright.codegen.llvm.ops import number
from tilewright.codegen.llvm.polynomial import split_lane
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Lanes, Value, register_type, vector_literal, widths
from tilewright.codegen.llvm.vector import Reduction, match_reduction
from tilewright.ir.dtype import DType, boolean
from tilewright.ir.expr import Load, as_int
from tilewright.ir.loops import For, Store
from tilewright.support.errors import CompileError


def fold(s: State, stmt: Store, reduction: Reduction) -> None:
    """Emit a reduction over lanes: combine the lanes of the value of `stmt` with each other, then with the stored
    element."""
    op, t = reduction.op, stmt.buffer.dtype
    total = ""
    for width, part in _combined(s, reduction, t).items():
        single = _across(s, op, t, part, width)
        total = s.ops.apply(op, t, [total, single], 0, t) if total else single
    old = evaluate(s, Load(stmt.buffer, stmt.indices)).scalar
    result = s.ops.apply(op, t, [old, total], 0, t)
    store_scalar(s, stmt.buffer, buffer_offset(s, stmt.buffer, stmt.indices), result)
    s.forget_loads(stmt.buffer)
    s.remember_store(stmt.buffer, stmt.indices, Value(t, (result,)))


def _combined(s: State, reduction: Reduction, t: DType) -> dict[int, str]:
    """The vectors of the reduction's value combined into one vector for each width that occurs."""
    assert s.lanes is not None
    value = evaluate(s, reduction.value)
    pieces: dict[int, str] = {}
    for k, (part, width) in enumerate(zip(s.parts(value), s.lanes.widths, strict=True)):
        if s.mask is not None:
            mask = s.parts(s.mask)[k]
            part = s.ops.select(mask, width, part, number(neutral(reduction.op, t), t, width), t, width)
        pieces[width] = s.ops.apply(reduction.op, t, [pieces[width], part], width, t) if width in pieces else part
    return pieces


def _across(s: State, op: str, t: DType, part: str, width: int) -> str:
    """Combine the `width` lanes of the vector `part` to one element by the operator `op`, halving the vector until one
    lane is left; returns the element's name. If the width is no power of two, the lanes beyond the largest one are
    combined separately."""
    power = 1 << log2(width)
    if power < width:
        ends = ((0, power), (power, width))
        pieces = [_across(s, op, t, _shuffle(s, t, part, None, width, range(a, b)), b - a) for a, b in ends]
        return s.ops.apply(op, t, pieces, 0, t)
    if op == "add" and t.is_int and width > 1:
        # Where a product of bytes is halved to narrower vectors, LLVM 22 has the sums of four from vpdpbusd and adds no
        # more than the first of them.
        ty, element = register_type(t, width), register_type(t)
        return s.out.intrinsic(f"llvm.vector.reduce.add.v{width}{element}", element, [(ty, part)])
    while width > 1:
        half = width // 2
        low, high = (_shuffle(s, t, part, None, width, range(first, first + half)) for first in (0, half))
        part, width = s.ops.apply(op, t, [low, high], half, t), half
    return s.out.inst(f"extractelement {register_type(t, 1)} {part}, i64 0")


def fold_rows(s: State, stmt: For) -> bool:
    """Emit an unrolled loop over reductions across lanes as one fold, which halves the vectors of several rows
    together. False, with nothing emitted, for another loop, or if its results are not contiguous."""
    match = _folds(s, stmt)
    if match is None:
        return False
    inner, target, reduction = match
    rows, lanes, t = as_int(stmt.extent) or 0, s.native_lanes(inner), target.buffer.dtype
    vectors = []
    for row in range(rows):
        with s.binding(stmt.var, row), s.vectorized(Lanes(inner.var, widths(as_int(inner.extent) or 0, lanes))):
            vectors.append(_combined(s, reduction, t)[lanes])
    totals = folded(
        vectors,
        lanes,
        s.target.isa.part_bytes // t.itemsize,
        lambda a, b: s.ops.apply(reduction.op, t, [a, b], lanes, t),
        lambda a, b, picks: _shuffle(s, t, a, b, lanes, picks),
    )
    if rows < lanes:
        totals = _shuffle(s, t, totals, None, lanes, range(rows))
    with s.vectorized(Lanes(stmt.var, (rows,))):
        old = s.parts(evaluate(s, Load(target.buffer, target.indices)))
        result = s.ops.apply(reduction.op, t, [*old, totals], rows, t)
        store(s, target.buffer, target.indices, Value(t, (result,), True))
    s.forget_loads(target.buffer)
    return True


def _folds(s: State, stmt: For) -> tuple[For, Store, Reduction] | None:
    """(loop over lanes, store, reduction) of a loop over rows, each of which is folded to one element; None if it is
    another loop, or if the results are not contiguous."""
    inner, rows = stmt.body, as_int(stmt.extent)
    if s.lanes is not None or not isinstance(inner, For) or inner.kind != "vectorized":
        return None
    target, lanes, width = inner.body, s.native_lanes(inner), as_int(inner.extent)
    if not isinstance(target, Store) or target.buffer.dtype.itemsize not in (4, 8) or not s.can_vectorize(inner):
        return None
    reduction = match_reduction(target)
    if reduction is None or rows not in (2, 4, 8, 16) or rows > lanes or not width or width % lanes:
        return None
    place = s.converter.offset(target.buffer, target.indices)
    steps = [split_lane(place, s.atoms.number(var))[1] for var in (stmt.var, inner.var)]
    return (inner, target, reduction) if steps == [{(): 1}, {}] else None


def folded(
    rows: Sequence[str],
    lanes: int,
    part: int,
    combine: Callable[[str, str], str],
    shuffle: Callable[[str, str, Sequence[int]], str],
) -> str:
    """A vector whose first lanes hold the combined lanes of each row. `lanes` and the number of rows are powers of two,
    and there are no more rows than lanes.

    Each step takes two vectors and combines their even with their odd elements: first elements within groups of `part`
    lanes, then whole groups.
    """
    results = list(rows)
    for unit, group in [(1, part)] * log2(part) + [(part, lanes)] * log2(lanes // part):
        even = [
            source + at + k
            for first in range(0, lanes, group)
            for source in (0, lanes)
            for at in range(first, first + group, 2 * unit)
            for k in range(unit)
        ]
        odd = [k + unit for k in even]
        pairs = zip(results[::2], results[1::2] or results, strict=True)
        results = [combine(shuffle(a, b, even), shuffle(a, b, odd)) for a, b in pairs]
    return results[0]


def log2(n: int) -> int:
    """The logarithm to base 2, rounded down."""
    return n.bit_length() - 1


def _shuffle(s: State, t: DType, a: str, b: str | None, width: int, picks: Sequence[int]) -> str:
    ty = register_type(t, width)
    return s.out.inst(
        f"shufflevector {ty} {a}, {ty} {b or 'poison'}, <{len(picks)} x i32> {vector_literal(tuple(picks), 'i32')}"
    )


def neutral(op: str, t: DType) -> int | float | bool:
    """The neutral element of the reduction operator `op`, such as 0 for a sum."""
    match op:
        case "add" | "or" | "bitor" | "bitxor":
            return -0.0 if t.is_float else 0
        case "mul":
            return 1
        case "min":
            return True if t is boolean else t.max
        case "max" | "larger":
            return False if t is boolean else t.min
        case "and":
            return True
        case "bitand":
            return -1 if t.kind == "int" else t.max
    raise CompileError(f"no neutral element of {op!r}")
