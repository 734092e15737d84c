"""Intrinsics that the threads of a warp compute together: products of fragments (PTX ISA, "Warp-level matrix
instructions").

Lane l = 4g + t has of A's fragment rows g and g + 8, of B's column g: other columns than those of its sums. Of the
depth it has elements t and t + 4 of eight groups, each of as many elements as 32 bits hold.
"""

from __future__ import annotations

from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.polynomial import add, constant
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import register_type
from tilewright.ir.dtype import DType, bf16, f16, f32, i8
from tilewright.ir.expr import Expr, Load, as_int, const, product
from tilewright.ir.loops import Intrinsic, Region
from tilewright.schedule.mma_intrinsics import MMA, SUMS, WARP_REDUCE
from tilewright.support.errors import CompileError

COLLECTIVE = {intrin.name: t for t, intrin in MMA.items()}
"""Names of products, and the types of their factors."""

_REDUCING = {intrin.name: about for about, intrin in WARP_REDUCE.items()}

_INSTRUCTIONS = {
    f32: "llvm.nvvm.mma.m16n8k8.row.col.tf32",
    f16: "llvm.nvvm.mma.m16n8k16.row.col.f32.f32",
    bf16: "llvm.nvvm.mma.m16n8k16.row.col.bf16",
    i8: "llvm.nvvm.mma.m16n8k32.row.col.s8",
}


def is_collective(name: str) -> bool:
    """Whether an intrinsic is computed by all threads of a warp."""
    return name in COLLECTIVE or name in _REDUCING


def emit_collective(s: State, stmt: Intrinsic) -> None:
    """Write the instructions of such an intrinsic."""
    if stmt.name in _REDUCING:
        _reduce(s, stmt, *_REDUCING[stmt.name])
        return
    t = COLLECTIVE[stmt.name]
    (c,), (a, b) = stmt.outputs, stmt.inputs
    word = "<2 x half>" if t is f16 else "i32"
    rows = [_fragment(s, a, r, half, word) for half in range(2) for r in range(2)]
    columns = [_fragment(s, b, None, half, word) for half in range(2)]
    sums, element = SUMS[t], register_type(SUMS[t])
    places = [(r, k) for r in range(2) for k in range(2)]
    loads = [Load(c.buffer, _at(c, place)) for place in places]
    old = [evaluate(s, load).scalar for load in loads]
    result = "{ " + ", ".join([element] * 4) + " }"
    arguments = [*((word, x) for x in (*rows, *columns)), *((element, x) for x in old)]
    symbol = s.out.declare(_INSTRUCTIONS[t], result, [x for x, _ in arguments])
    call = s.out.inst(f"call {result} {symbol}({', '.join(f'{x} {y}' for x, y in arguments)})")
    values = [s.out.inst(f"extractvalue {result} {call}, {k}") for k in range(4)]
    s.forget_loads(c.buffer)
    for load, value in zip(loads, values, strict=True):
        where, align = address(s, c.buffer, buffer_offset(s, c.buffer, load.indices))
        s.out.effect(f"store {element} {value}, ptr {where}, align {align}")
    assert sums is c.buffer.dtype


def emit_copy(s: State, stmt: Intrinsic) -> None:
    """Write a copy to shared memory that goes on while the thread does other things (PTX ISA, "cp.async")."""
    (to,), (source,) = stmt.outputs, stmt.inputs
    places = []
    for region, space in ((to, 3), (source, 1)):
        where, _ = address(s, region.buffer, buffer_offset(s, region.buffer, [start for start, _ in region.ranges]))
        places.append(f"ptr addrspace({space}) " + s.out.inst(f"addrspacecast ptr {where} to ptr addrspace({space})"))
    symbol = s.out.declare("llvm.nvvm.cp.async.cg.shared.global.16", "void", ["ptr addrspace(3)", "ptr addrspace(1)"])
    s.out.effect(f"call void {symbol}({', '.join(places)})")
    s.forget_loads(to.buffer)


def emit_arrival(s: State) -> None:
    """Write the wait for all copies that the thread has begun."""
    commit = s.out.declare("llvm.nvvm.cp.async.commit.group", "void", [])
    wait = s.out.declare("llvm.nvvm.cp.async.wait.group", "void", ["i32"])
    s.out.effect(f"call void {commit}()")
    s.out.effect(f"call void {wait}(i32 0)")


def _reduce(s: State, stmt: Intrinsic, name: str, t: DType) -> None:
    """A butterfly: after five exchanges each lane has what all have together."""
    (y,), (x,) = stmt.outputs, stmt.inputs
    value = evaluate(s, Load(x.buffer, tuple(start for start, _ in x.ranges))).scalar
    element = register_type(t)
    exchange = f"llvm.nvvm.shfl.sync.bfly.{'f32' if t is f32 else 'i32'}"
    symbol = s.out.declare(exchange, element, ["i32", element, "i32", "i32"], "convergent nounwind")
    for distance in (16, 8, 4, 2, 1):
        other = s.out.inst(f"call {element} {symbol}(i32 -1, {element} {value}, i32 {distance}, i32 31)")
        value = s.ops.apply(name, t, [value, other], 0, t)
    where, align = address(s, y.buffer, buffer_offset(s, y.buffer, [start for start, _ in y.ranges]))
    s.out.effect(f"store {element} {value}, ptr {where}, align {align}")
    s.forget_loads(y.buffer)


def _at(region: Region, place: tuple[int, ...]) -> tuple[Expr, ...]:
    """The indices of an element of a region, by its place in those dimensions that are longer than 1."""
    inner = iter(place)
    return tuple(start if as_int(extent) == 1 else start + const(next(inner)) for start, extent in region.ranges)


def _fragment(s: State, region: Region, row: int | None, half: int, word: str) -> str:
    """A register of a fragment: of row `row` of A's two, or of B's column g; the first or the second half of the depth.

    Regions begin at the thread's first row, of A at row g, of B at column 2t; B's register is of column g, so that
    the kernel must have B's columns at a constant stride: the address is moved by g - 2t columns.
    """
    t = region.buffer.dtype
    each = 4 // t.itemsize
    depth = as_int(region.ranges[-1][1])
    assert depth is not None
    starts = [start for start, _ in region.ranges]
    offset = buffer_offset(s, region.buffer, starts)
    long = [d for d, (_, extent) in enumerate(region.ranges) if as_int(extent) != 1]
    stride = as_int(product(region.buffer.shape[long[0] + 1 :]))
    if stride is None or len(long) != 2:
        raise CompileError("fragments are rows of a matrix", where=region.buffer.name)
    lane = _lane(s)
    if row is not None:
        offset = add(offset, constant(row * stride))
    base, _ = address(s, region.buffer, add(offset, constant(half * depth // 2)))
    moved = f"%frag.t{each}" if row is not None else f"%frag.b{each}.{stride}"
    _entry(s, moved, lane, each, None if row is not None else stride)
    memory = "float" if t is f32 else word

    def read() -> str:
        where = s.out.inst(f"getelementptr {register_type(t)}, ptr {base}, i64 {moved}")
        raw = s.out.inst(f"load {memory}, ptr {where}, align 4")
        if t is not f32:
            return raw
        symbol = s.out.declare("llvm.nvvm.f2tf32.rna", "i32", ["float"])
        return s.out.inst(f"call i32 {symbol}(float {raw})")

    return s.read_once(region.buffer, f"{base} fragment", moved, read)


def _lane(s: State) -> str:
    """The thread's number in its warp."""
    name = "%frag.lane"
    if not any(line.startswith(f"  {name} =") for line in s.out.entry):
        symbol = s.out.declare("llvm.nvvm.read.ptx.sreg.tid.x", "i32", [])
        s.out.entry += [
            f"  {name}.x = call i32 {symbol}()",
            f"  {name}.i = and i32 {name}.x, 31",
            f"  {name} = zext nneg i32 {name}.i to i64",
        ]
    return name


def _entry(s: State, name: str, lane: str, each: int, stride: int | None) -> None:
    """Elements by which a lane's register is after the address of its region: t groups of A's row, g - 2t columns and t
    groups of B's."""
    if any(line.startswith(f"  {name} =") for line in s.out.entry):
        return
    lines = [f"  {name}.t = and i64 {lane}, 3"]
    if stride is None:
        lines.append(f"  {name} = mul nuw nsw i64 {name}.t, {each}")
    else:
        lines += [
            f"  {name}.g = lshr i64 {lane}, 2",
            f"  {name}.c = shl i64 {name}.t, 1",
            f"  {name}.d = sub nsw i64 {name}.g, {name}.c",
            f"  {name}.m = mul nsw i64 {name}.d, {stride}",
            f"  {name}.e = mul nuw nsw i64 {name}.t, {each}",
            f"  {name} = add nsw i64 {name}.m, {name}.e",
        ]
    s.out.entry += lines


__all__ = ["COLLECTIVE", "emit_arrival", "emit_collective", "emit_copy", "is_collective"]
