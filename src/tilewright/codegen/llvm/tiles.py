"""Registers that hold matrices, of AMX: eight of 16 rows of 64 bytes (Intel SDM, chapter 18 of volume 1).

A kernel configures them once, where it begins, all alike: configuring takes 200 cycles, a product 16. It releases them
at its end, so that a thread that is suspended has no state of theirs. Sums are in the first ones; the others hold what
was loaded, which is not loaded again while nothing is stored and no block begins.
"""

from __future__ import annotations

from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State, Tiles
from tilewright.ir.expr import Buffer, Expr, as_int
from tilewright.ir.loops import Intrinsic, Region
from tilewright.schedule.intrinsics import TensorIntrin
from tilewright.schedule.tensorize import operands
from tilewright.schedule.tile_intrinsics import LANES, ROWS, STORE, ZERO
from tilewright.support.errors import CompileError
from tilewright.targets import registry

REGISTERS = 8
ROW_BYTES = 64
"""The number of bytes of a row of a matrix register."""


def has_tiles(s: State) -> bool:
    """Whether the target has registers that hold matrices (AMX)."""
    return s.target.has("amx-tile")


def allocate_tiles(s: State, buffer: Buffer) -> None:
    """Place a buffer of sums in registers for matrices. Raises CompileError if there are too few, or another buffer is
    in them."""
    size = as_int(buffer.size)
    count = 0 if size is None else size // (ROWS * LANES)
    where = f"buffer {buffer.name!r}"
    if s.tiles is not None and s.tiles.buffer:
        raise CompileError("another buffer is in the registers of matrices", where=where, got=s.tiles.buffer)
    if not 0 < count <= REGISTERS - 2:
        raise CompileError("no registers of matrices", where=where, expected=f"at most {REGISTERS - 2}", got=count)
    first, s.tiles = s.tiles is None, Tiles(buffer.name, count)
    if not first:
        return
    # Palette 1, no row to begin with; bytes of a row from byte 16 on, of 16 bits each; rows from byte 48 on.
    content = [1, *[0] * 15, *[ROW_BYTES, 0] * REGISTERS, *[0] * (2 * (16 - REGISTERS)), *[ROWS] * REGISTERS]
    table = s.out.table("i8", [str(n) for n in [*content, *[0] * (ROW_BYTES - len(content))]])
    s.out.declare("llvm.x86.ldtilecfg", "void", ["ptr"])
    s.out.entry.append(f"  call void @llvm.x86.ldtilecfg(ptr {table})")


def leave_tiles(s: State) -> None:
    """Mark the registers as free for another buffer."""
    if s.tiles is not None:
        s.tiles.buffer = ""


def release(s: State) -> list[str]:
    """The instruction at the end of a kernel that releases the matrix registers, if it uses them."""
    if s.tiles is None:
        return []
    return [f"  call void {s.out.declare('llvm.x86.tilerelease', 'void', [])}()"]


def emit_tiles(s: State, intrin: TensorIntrin, stmt: Intrinsic) -> bool:
    """Emit a tensor intrinsic on registers for matrices; False if `intrin` is another one."""
    if intrin in ZERO.values():
        (sums,) = stmt.outputs
        _call(s, "llvm.x86.tilezero", _number(s, sums))
        return True
    result = operands(intrin, stmt)
    if intrin in STORE.values():
        assert result is not None
        _, (region, (stride,)) = result
        _call(s, "llvm.x86.tilestored64", _number(s, stmt.inputs[0]), *_memory(s, region, stride))
        s.forget_loads(region.buffer)
        return True
    dot = registry.dots().get(intrin.name)
    if dot is None or dot.kind != "matrix":
        return False
    (sums,), (a, b) = stmt.outputs, stmt.inputs
    assert result is not None
    (_, (row,)), (_, (step, lane)), _ = result
    if as_int(lane) != dot.group:
        raise CompileError("columns of a panel do not lie side by side", where=f"buffer {b.buffer.name!r}")
    places = [_memory(s, region, stride) for region, stride in ((a, row), (b, step))]
    numbers = [_loaded(s, where, side) for side, where in enumerate(places)]
    _call(s, dot.llvm, _number(s, sums), *(("i8", str(n)) for n in numbers))
    return True


Argument = tuple[str, str]


def _call(s: State, name: str, *arguments: Argument) -> None:
    symbol = s.out.declare(name, "void", [t for t, _ in arguments])
    s.out.effect(f"call void {symbol}({', '.join(f'{t} {v}' for t, v in arguments)})")


def _number(s: State, region: Region) -> Argument:
    """The argument of an intrinsic that is the number of the matrix register with a region of the buffer of sums."""
    assert s.tiles is not None
    if region.buffer.name != s.tiles.buffer:
        raise CompileError("a buffer is not in the registers of matrices", where=f"buffer {region.buffer.name!r}")
    number = 0
    for (start, extent), size in zip(region.ranges, region.buffer.shape, strict=True):
        at, part, whole = (as_int(s.converter.bind(e)) for e in (start, extent, size))
        if at is None or not part or whole is None:
            raise CompileError("the number of a register is not known", where=f"buffer {region.buffer.name!r}")
        number = number * (whole // part) + at // part
    return "i8", str(number)


def _memory(s: State, region: Region, stride: Expr) -> tuple[Argument, Argument]:
    """The two arguments of an intrinsic that say where a matrix is in memory: the address of `region`, and the bytes
    between its rows, which are `stride` elements."""
    where, _ = address(s, region.buffer, buffer_offset(s, region.buffer, [start for start, _ in region.ranges]))
    return ("ptr", where), ("i64", evaluate(s, stride * region.buffer.dtype.itemsize).scalar)


def _loaded(s: State, where: tuple[Argument, Argument], side: int) -> int:
    """The number of the register that holds the matrix at an address and stride: the one that it was loaded into
    already, or else the least recently used one for factor `side`, into which it is loaded. Matrices of the other
    factor thus stay for the products that follow."""
    tiles = s.tiles
    assert tiles is not None
    if tiles.block != s.out.block:
        tiles.loaded.clear()
        tiles.block = s.out.block
    key = where[0][1], where[1][1]
    known = next((entry for entry in tiles.loaded if entry[1] == key), None)
    if known is not None:
        tiles.loaded.remove(known)
        tiles.loaded.append(known)
        return known[0]
    used = {number for number, *_ in tiles.loaded}
    free = [n for n in range(tiles.sums, REGISTERS) if n not in used]
    same = [k for k, (*_, factor) in enumerate(tiles.loaded) if factor == side]
    number = free[0] if free else tiles.loaded.pop(same[0] if same else 0)[0]
    _call(s, "llvm.x86.tileloadd64", ("i8", str(number)), *where)
    tiles.loaded.append((number, key, side))
    return number


__all__ = ["allocate_tiles", "emit_tiles", "has_tiles", "leave_tiles", "release"]
