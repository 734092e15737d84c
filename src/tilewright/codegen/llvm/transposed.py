"""Transpositions of tiles as calls: a module has the loads, shuffles and stores of a kind of tile once.

    alloc t: f32[16, 16] in local                        call void @tile.0(ptr &x[r], i64 pitch, ptr &y[q], i64 step)
    for i in 0..16 unrolled                       ->
      for k in 0..16 vectorized { t[i, k] = x[r + i*pitch + k] }
    for k in 0..16 unrolled
      for i in 0..16 vectorized { y[q + k*step + i] = t[i, k] }

A kernel that changes a layout has such a tile in each of its versions, and LLVM's selection of instructions spends most
of its time on their shuffles. LLVM inlines a function that is called only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import copysign, gcd

from tilewright.codegen.llvm.address import address, offset
from tilewright.codegen.llvm.polynomial import Poly
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.transpose import SIZES, column, fenced
from tilewright.codegen.llvm.values import memory_type, vector_literal
from tilewright.ir.dtype import DType, boolean
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, as_int
from tilewright.ir.loops import Allocate, For, Seq, Stmt, Store
from tilewright.ir.rewrite import variables
from tilewright.native.text import Writer
from tilewright.support.classes import dataclass
from tilewright.targets.abi import address_bytes

FEWEST = 8
"""The least number of rows of a tile for which transposition is a function call; for smaller tiles, the call costs too
much."""


@dataclass(frozen=True, slots=True)
class _Moves:
    """A store of a tile column by column, in two loops: `store` for each `row` below `rows`, unrolled, and `lane` below
    `lanes`, as a vector."""

    row: Var
    rows: int
    lane: Var
    lanes: int
    store: Store


def emit_transposed(s: State, stmt: Allocate) -> bool:
    """Write the allocation of a tile that is filled row by row and stored column by column; False if it is another
    statement."""
    t, body = stmt.buffer.dtype, stmt.body
    if not isinstance(body, Seq) or len(body.stmts) != 2 or not _calls(s) or t is boolean or t.bits < 8:
        return False
    fill, drain = map(_moves, body.stmts)
    if fill is None or drain is None:
        return False
    source, (tile, on), result = fill.store.value, _lanes_on(drain), drain.store
    if (
        not isinstance(source, Load)
        or not isinstance(tile, Load)
        or source.dtype is not t
        or result.buffer.dtype is not t
    ):
        return False
    n = fill.lanes
    fits = n in SIZES.get(t.itemsize, ()) and n >= FEWEST and on <= fill.rows <= n and max(drain.lanes, drain.rows) <= n
    if not fits or fill.store.buffer != stmt.buffer or tile.buffer != stmt.buffer or s.target.lanes(t.itemsize) < n:
        return False
    if {source.buffer, result.buffer} & {stmt.buffer}:
        return False
    put, got = _parts(s, stmt.buffer, fill.store.indices, fill), _parts(s, stmt.buffer, tile.indices, drain)
    here, there = _parts(s, source.buffer, source.indices, fill), _parts(s, result.buffer, result.indices, drain)
    if put is None or got is None or here is None or there is None:
        return False
    if put != ({}, {(): n}, 1) or got != ({}, {(): 1}, n) or here[2] != 1 or there[2] != 1:
        return False
    _call(s, t, n, fill, drain, on, (source.buffer, here), (result.buffer, there))
    s.forget_loads(result.buffer)
    return True


def tile_functions(s: State, attributes: str) -> list[str]:
    """The texts of the functions that transpose tiles, with the attributes of the kernel."""
    lines: list[str] = []
    for k, (body, calls) in enumerate(s.out.tiles.items()):
        where = "noinline" if calls > 1 else "alwaysinline"
        lines += [
            f"define internal void @tile.{k}(ptr readonly captures(none) %from, i64 %from.step, "
            "ptr writeonly captures(none) %to, i64 %to.step) "
            f"nounwind {where} memory(argmem: readwrite){attributes} {{",
            "entry:",
            body,
            "  ret void",
            "}",
            "",
        ]
    return lines


def _calls(s: State) -> bool:
    """Whether a transposition may be a call here: code of one thread, outside of vectors, for a target whose modules
    may have several functions."""
    target = s.target
    usual = target.gpu is None and not target.isa.compact and address_bytes(target.triple) == 8
    return usual and s.lanes is None and s.mask is None and not s.streaming


def _moves(s: Stmt) -> _Moves | None:
    if not isinstance(s, For) or s.kind != "unrolled" or s.notes or not isinstance(s.body, For):
        return None
    inner, rows = s.body, as_int(s.extent)
    lanes = as_int(inner.extent)
    if inner.kind != "vectorized" or inner.notes or not isinstance(inner.body, Store) or not rows or not lanes:
        return None
    return _Moves(s.var, rows, inner.var, lanes, inner.body)


def _lanes_on(drain: _Moves) -> tuple[Expr, int]:
    """The value that `drain` stores in its first lanes, and the number of these; in its last lanes it may store 0,
    where a tile has fewer rows."""
    match drain.store.value:
        case Op("select", (Op("lt", (lane, Const(count))), value, Const(zero))) if lane is drain.lane:
            if count >= 1 and zero == 0 and copysign(1, zero) > 0:
                return value, min(int(count), drain.lanes)
    return drain.store.value, drain.lanes


_Parts = tuple[Poly, Poly, int]


def _parts(s: State, buffer: Buffer, indices: tuple[Expr, ...], moves: _Moves) -> _Parts | None:
    """The offset of the access to `buffer` at `indices` as (a part that neither loop of `moves` changes, the step from
    a row to the next, the step from a lane to the next, in elements); None if it is no such sum."""
    rest: Poly = {}
    row: Poly = {}
    lane = 0
    numbers = {s.atoms.number(v): v for v in (moves.row, moves.lane)}
    for monomial, c in s.converter.offset(buffer, indices).items():
        own = [numbers[k] for k in monomial if k in numbers]
        others = tuple(k for k in monomial if k not in numbers)
        if any(v in variables(s.atoms.exprs[k]) for k in others for v in (moves.row, moves.lane)):
            return None
        if not own:
            rest[monomial] = c
        elif own == [moves.row]:
            row[others] = c
        elif own == [moves.lane] and not others:
            lane = c
        else:
            return None
    return rest, row, lane


def _call(
    s: State,
    t: DType,
    n: int,
    fill: _Moves,
    drain: _Moves,
    on: int,
    source: tuple[Buffer, _Parts],
    to: tuple[Buffer, _Parts],
) -> None:
    operands, aligns, steps = [], [], []
    for name, (buffer, (base, step, _)) in (("%from", source), ("%to", to)):
        where, align = address(s, buffer, base)
        literal = step.get((), 0) if not any(step) else None
        aligns.append(gcd(align, *[c * t.itemsize for c in step.values()]))
        moved = offset(s, step)
        steps.append(str(literal) if literal is not None else f"{name}.step")
        operands.append(f"ptr {where}, i64 {moved}")
    sizes = (on if on < drain.lanes else fill.rows, drain.lanes, drain.rows)
    body = _body(s, t, n, sizes, (steps[0], steps[1]), (aligns[0], aligns[1]))
    s.out.effect(f"call void {s.out.tile(body)}({', '.join(operands)})")


def _body(
    s: State, t: DType, n: int, sizes: tuple[int, int, int], steps: tuple[str, str], aligns: tuple[int, int]
) -> str:
    """The instructions of a function that transposes a tile: `sizes` are the numbers of rows, of lanes stored and of
    results, `steps` the distances between rows and between results, in elements, and `aligns` their alignments in
    bytes; a row has `n` elements of type `t`. Lanes without a row are zero."""
    rows, lanes, results = sizes
    out, element, row = Writer(), memory_type(t), memory_type(t, n)
    known: dict[tuple[str, str, tuple[int, ...]], str] = {}
    fence = fenced(out, s.target, t, n)
    none = "zeroinitializer" if lanes > rows else "poison"

    def places(first: str, step: str, count: int) -> Iterator[str]:
        place = first
        for k in range(count):
            if k:
                base, move = (first, str(k * int(step))) if step.isdigit() else (place, step)
                place = out.inst(f"getelementptr {element}, ptr {base}, i64 {move}")
            yield place

    def shuffle(a: str, b: str, picks: tuple[int, ...]) -> str:
        if a == b == none:
            return a
        if (a, b, picks) not in known:
            lanes = f"<{len(picks)} x i32> {vector_literal(picks, 'i32')}"
            known[a, b, picks] = out.inst(f"shufflevector {row} {a}, {row} {b}, {lanes}")
        return known[a, b, picks]

    def fence_once(a: str) -> str:
        if (a, a, ()) not in known:
            known[a, a, ()] = a if a == none else fence(a)
        return known[a, a, ()]

    vectors = [out.inst(f"load {row}, ptr {place}, align {aligns[0]}") for place in places("%from", steps[0], rows)]
    vectors += [none] * (n - rows)
    for j, place in enumerate(places("%to", steps[1], results)):
        result = column(vectors, j, shuffle, t.itemsize, fence_once)
        if lanes < n:
            result = shuffle(result, "poison", tuple(range(lanes)))
        out.effect(f"store {memory_type(t, lanes)} {result}, ptr {place}, align {aligns[1]}")
    s.out.declarations |= out.declarations
    return "\n".join(out.lines)
