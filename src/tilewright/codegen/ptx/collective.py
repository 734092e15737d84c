"""Intrinsics that the threads of a warp compute together: products of fragments (PTX ISA, "Warp-level matrix
instructions"), and those of four warps (`wgmma.py`).

Fragments come from core matrices in shared memory by `ldmatrix`: lane l = 4g + t says where a line of a core matrix
begins, and gets from each matrix the 32 bits at place t of line g or, if the factor lies across, the elements at place
g of lines 2t and 2t + 1. So a lane has rows g and g + 8 of A and column g of B, while its sums are in other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import register_type
from tilewright.codegen.ptx.tiles import CORE, element_of, of_lane_0, store_sums, strides
from tilewright.codegen.ptx.wgmma import emit_wide, is_wide
from tilewright.ir.dtype import DType, bf16, f16, f32, i8
from tilewright.ir.expr import Load, const
from tilewright.ir.loops import Intrinsic, Region
from tilewright.schedule.mma_intrinsics import COPY_ONE_ASYNC, MMA, MMA_HELD, QUAD_REDUCE, SUMS, WARP_REDUCE

COLLECTIVE = {intrin.name: about for about, intrin in MMA.items()}
"""The matrix products that a whole warp computes, by their intrinsics' names: the type of the factors, and which of
them is transposed."""

_SINGLE = frozenset(intrin.name for intrin in COPY_ONE_ASYNC.values())

_HELD = {intrin.name: t for t, intrin in MMA_HELD.items()}

_REDUCING = {
    intrin.name: (*about, distances)
    for table, distances in ((WARP_REDUCE, (16, 8, 4, 2, 1)), (QUAD_REDUCE, (2, 1)))
    for about, intrin in table.items()
}

_INSTRUCTIONS = {
    f32: "llvm.nvvm.mma.m16n8k8.row.col.tf32",
    f16: "llvm.nvvm.mma.m16n8k16.row.col.f32.f32",
    bf16: "llvm.nvvm.mma.m16n8k16.row.col.bf16",
    i8: "llvm.nvvm.mma.m16n8k32.row.col.s8",
}


def is_collective(name: str) -> bool:
    """Whether an intrinsic is computed by all threads of a warp."""
    return name in COLLECTIVE or name in _REDUCING or name in _HELD or is_wide(name)


def emit_collective(s: State, stmt: Intrinsic) -> None:
    """Write the instructions of an intrinsic for which `is_collective` holds."""
    if stmt.name in _REDUCING:
        _reduce(s, stmt, *_REDUCING[stmt.name])
        return
    if is_wide(stmt.name):
        emit_wide(s, stmt)
        return
    (c,), (a, b) = stmt.outputs, stmt.inputs
    if stmt.name in _HELD:
        t = _HELD[stmt.name]
        _multiply(s, t, c, _held(s, a, t), _values(s, b, t))
        return
    t, across = COLLECTIVE[stmt.name]
    lies = [strides(r, x) for r, x in zip((a, b), across, strict=True)]
    _multiply(s, t, c, _fragment(s, a, 4, across[0], lies[0]), _fragment(s, b, 2, across[1], lies[1]))


def _word(t: DType) -> str:
    """The LLVM type of one register of a fragment with elements of type `t`."""
    return "<2 x half>" if t is f16 else "i32"


def _multiply(s: State, t: DType, c: Region, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Write one `mma` instruction: add the product of the fragments in the registers `rows` (of A) and `columns` (of B)
    to the thread's four sums in the region `c`."""
    word, sums, element = _word(t), SUMS[t], register_type(SUMS[t])
    places = [(r, k) for r in range(2) for k in range(2)]
    loads = [Load(c.buffer, element_of(c, place)) for place in places]
    old = [evaluate(s, load).scalar for load in loads]
    result = "{ " + ", ".join([element] * 4) + " }"
    arguments = [*((word, x) for x in (*rows, *columns)), *((element, x) for x in old)]
    symbol = s.out.declare(_INSTRUCTIONS[t], result, [x for x, _ in arguments])
    call = s.out.inst(f"call {result} {symbol}({', '.join(f'{x} {y}' for x, y in arguments)})")
    values = [s.out.inst(f"extractvalue {result} {call}, {k}") for k in range(4)]
    store_sums(s, loads, values)
    assert sums is c.buffer.dtype


def emit_copy(s: State, stmt: Intrinsic) -> None:
    """Write an asynchronous copy to shared memory (PTX ISA, "cp.async")."""
    (to,), (source,) = stmt.outputs, stmt.inputs
    places = []
    for region, space in ((to, 3), (source, 1)):
        where, _ = address(s, region.buffer, buffer_offset(s, region.buffer, [start for start, _ in region.ranges]))
        places.append(f"ptr addrspace({space}) " + s.out.inst(f"addrspacecast ptr {where} to ptr addrspace({space})"))
    kind = "ca.shared.global.4" if stmt.name in _SINGLE else "cg.shared.global.16"
    symbol = s.out.declare(f"llvm.nvvm.cp.async.{kind}", "void", ["ptr addrspace(3)", "ptr addrspace(1)"])
    s.out.effect(f"call void {symbol}({', '.join(places)})")
    s.forget_loads(to.buffer)


def emit_fence(s: State) -> None:
    """Write the fence after which four warps together can read what threads wrote before: their reads are not ordered
    with other accesses (PTX ISA, "Async proxy")."""
    s.out.effect(f"call void {s.out.declare('llvm.nvvm.fence.proxy.async.shared_cta', 'void', [])}()")


def emit_arrival(s: State, pending: int, wide: bool) -> None:
    """Write the wait for the copies that the thread has started, except those since its last `pending` waits. `wide`:
    four warps together read the copied data, so that a fence follows."""
    commit = s.out.declare("llvm.nvvm.cp.async.commit.group", "void", [])
    wait = s.out.declare("llvm.nvvm.cp.async.wait.group", "void", ["i32"])
    s.out.effect(f"call void {commit}()")
    s.out.effect(f"call void {wait}(i32 {pending})")
    if wide:
        emit_fence(s)


def _reduce(s: State, stmt: Intrinsic, name: str, t: DType, distances: Sequence[int]) -> None:
    """Write a butterfly reduction by the operation `name`: at each of `distances`, lanes exchange and combine their
    values. After five exchanges each lane has the result of all lanes, after two that of four."""
    (y,), (x,) = stmt.outputs, stmt.inputs
    value = evaluate(s, Load(x.buffer, tuple(start for start, _ in x.ranges))).scalar
    element = register_type(t)
    exchange = f"llvm.nvvm.shfl.sync.bfly.{'f32' if t is f32 else 'i32'}"
    symbol = s.out.declare(exchange, element, ["i32", element, "i32", "i32"], "convergent nounwind")
    for distance in distances:
        other = s.out.inst(f"call {element} {symbol}(i32 -1, {element} {value}, i32 {distance}, i32 31)")
        value = s.ops.apply(name, t, [value, other], 0, t)
    where, align = address(s, y.buffer, buffer_offset(s, y.buffer, [start for start, _ in y.ranges]))
    s.out.effect(f"store {element} {value}, ptr {where}, align {align}")
    s.forget_loads(y.buffer)


def _held(s: State, region: Region, t: DType) -> list[str]:
    """Load the registers of a fragment of A from sums that the thread itself holds. Registers of f32 have the columns
    2q, whose depth is q, before the columns 2q + 1, whose depth is q + 4 (PTX ISA, "Matrix fragments for mma.m16n8k8");
    those of 16 bits have two neighbours each."""
    starts = [start for start, _ in region.ranges]

    def element(h: int, r: int, c: int) -> str:
        *outer, group = starts[:-2]
        return evaluate(s, Load(region.buffer, (*outer, group + h, const(r), const(c)))).scalar

    if t is f32:
        return [_as_tf32(s, element(0, r, c)) for c in range(2) for r in range(2)]

    type_ = register_type(t)

    def register(h: int, r: int) -> str:
        pair = "poison"
        for c in range(2):
            pair = s.out.inst(f"insertelement <2 x {type_}> {pair}, {type_} {element(h, r, c)}, i64 {c}")
        return pair if t is f16 else s.out.inst(f"bitcast <2 x {type_}> {pair} to i32")

    where, _ = address(s, region.buffer, buffer_offset(s, region.buffer, starts))
    pairs = [(h, r) for h in range(2) for r in range(2)]
    return [s.read_once(region.buffer, f"held {where} {h} {r}", "register", partial(register, h, r)) for h, r in pairs]


def _values(s: State, region: Region, t: DType) -> list[str]:
    """Load the registers of a fragment of matrix B, of type `t`, from shared memory. No instruction transposes f32, so
    each element is loaded by itself: lines of 8 elements for even depths lie before those for odd ones, and 32 threads
    read 128 bytes."""
    if t is not f32:
        return _fragment(s, region, 2, True, (0, CORE))
    base, _ = address(s, region.buffer, buffer_offset(s, region.buffer, of_lane_0(s, region)))
    lane = _single_offset(s)

    def register(c: int) -> str:
        where = s.out.inst(f"getelementptr i8, ptr {base}, i64 {lane}")
        where = s.out.inst(f"getelementptr i8, ptr {where}, i64 {CORE * c}")
        shared = s.out.inst(f"addrspacecast ptr {where} to ptr addrspace(3)")
        return _as_tf32(s, s.out.inst(f"load float, ptr addrspace(3) {shared}, align 4"))

    return [s.read_once(region.buffer, f"{base} single {c}", "register", partial(register, c)) for c in range(2)]


def _lane(s: State) -> str:
    """The thread's number in its warp, computed once per function."""
    name = "%lane"
    if not any(line.startswith(f"  {name} =") for line in s.out.entry):
        symbol = s.out.declare("llvm.nvvm.read.ptx.sreg.tid.x", "i32", [])
        s.out.entry += [
            f"  {name}.x = call i32 {symbol}()",
            f"  {name}.i = and i32 {name}.x, 31",
            f"  {name} = zext nneg i32 {name}.i to i64",
        ]
    return name


def _single_offset(s: State) -> str:
    """The lane's offset, in bytes, in eight lines of eight elements for the depths 0, 2, 4 and 6: lane 4g + q reads
    line g of depth 2q. Computed once per function."""
    name = "%frag.single"
    if not any(line.startswith(f"  {name} =") for line in s.out.entry):
        lane = _lane(s)
        s.out.entry += [
            f"  {name}.q = and i64 {lane}, 3",
            f"  {name}.d = shl nuw nsw i64 {name}.q, 5",
            f"  {name}.g = and i64 {lane}, 28",
            f"  {name} = add nuw nsw i64 {name}.d, {name}.g",
        ]
    return name


def _as_tf32(s: State, value: str) -> str:
    """Emit the conversion of an f32 value to TF32, which has 10 bits of mantissa."""
    return s.out.inst(f"call i32 {s.out.declare('llvm.nvvm.f2tf32.rna', 'i32', ['float'])}(float {value})")


def _fragment(s: State, region: Region, count: int, across: bool, lies: tuple[int, int]) -> list[str]:
    """Emit a load of a fragment of `count` registers from the `region` in shared memory, and return their names: four
    registers of A, for two groups of eight rows in each of two groups of depth, or two of B. `lies`: the bytes from
    eight lines to the next eight, and from a group of depth to the next. `across` transposes each 8x8 matrix."""
    t = region.buffer.dtype
    lines, groups = lies
    word = _word(t)
    offset = buffer_offset(s, region.buffer, of_lane_0(s, region))
    base, _ = address(s, region.buffer, offset)
    lane = _lane_offset(s, lines, groups) if count == 4 else _lane_offset(s, groups, 0)
    kind = f"x{count}{'.trans' if across else ''}.b16"
    result = "{ " + ", ".join(["i32"] * count) + " }"

    def load() -> str:
        where = s.out.inst(f"getelementptr i8, ptr {base}, i64 {lane}")
        shared = s.out.inst(f"addrspacecast ptr {where} to ptr addrspace(3)")
        symbol = s.out.declare(
            f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.{kind}.p3", result, ["ptr addrspace(3)"], "convergent nounwind"
        )
        return s.out.inst(f"call {result} {symbol}(ptr addrspace(3) {shared})")

    def register(k: int) -> str:
        all_of_it = s.read_once(region.buffer, f"{base} {kind}", "fragment", load)
        raw = s.out.inst(f"extractvalue {result} {all_of_it}, {k}")
        if t is f16:
            return s.out.inst(f"bitcast i32 {raw} to {word}")
        if t is not f32:
            return raw
        return _as_tf32(s, s.out.inst(f"bitcast i32 {raw} to float"))

    return [s.read_once(region.buffer, f"{base} {kind} {k}", "register", partial(register, k)) for k in range(count)]


def _lane_offset(s: State, second: int, upper: int) -> str:
    """The offset, in bytes, of the line whose address a lane passes to `ldmatrix`, from the first core matrix. Eight
    lanes name the 8 lines of a matrix; the second matrix is `second` bytes after the first, and the matrices of the
    upper 16 lanes `upper` bytes after those of the lower."""
    name = f"%frag.{second}.{upper}"
    if not any(line.startswith(f"  {name} =") for line in s.out.entry):
        lane = _lane(s)
        s.out.entry += [
            f"  {name}.w = and i64 {lane}, 7",
            f"  {name}.b = shl nuw nsw i64 {name}.w, 4",
            f"  {name}.r = lshr i64 {lane}, 3",
            f"  {name}.s = and i64 {name}.r, 1",
            f"  {name}.m = mul nuw nsw i64 {name}.s, {second}",
            f"  {name}.h = lshr i64 {lane}, 4",
            f"  {name}.u = mul nuw nsw i64 {name}.h, {upper}",
            f"  {name}.a = add nuw nsw i64 {name}.b, {name}.m",
            f"  {name} = add nuw nsw i64 {name}.a, {name}.u",
        ]
    return name


__all__ = ["COLLECTIVE", "emit_arrival", "emit_collective", "emit_copy", "emit_fence", "is_collective"]
