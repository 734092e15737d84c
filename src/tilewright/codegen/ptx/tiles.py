"""Facts about regions that instructions for matrices need: where a tile begins for all threads, how its
core matrices lie, and a thread's sums."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import register_type
from tilewright.ir.expr import Expr, Load, Var, as_int, const
from tilewright.ir.loops import Region
from tilewright.ir.rewrite import substitute, variables
from tilewright.support.errors import CompileError

CORE = 128
"""The size of a core matrix in bytes."""


def of_lane_0(s: State, region: Region, warps: int = 1) -> list[Expr]:
    """The indices of the first element of `region` as lane 0 computes them: lane 0 of a warp or, for `warps` above 1,
    of the first one of each `warps` warps."""
    starts = [start for start, _ in region.ranges]
    threads: dict[Var, Expr] = {}
    for v in {v for e in starts for v in variables(e)}:
        register = s.env[v].parts if v in s.env else ()
        if register == ("%tid.x",):
            threads[v] = const(0)
        elif register == ("%tid.y",) and warps > 1:
            threads[v] = v // warps * warps
    return [substitute(e, threads) for e in starts]


def strides(region: Region, across: bool) -> tuple[int, int]:
    """The distances, in bytes, from eight lines of a tile to the next eight, and from a group of depth to the next one
    (`schedule/mma_intrinsics.py`)."""
    b = region.buffer
    sizes = [as_int(n) for n in b.shape[-3:]]
    if None in sizes or len(b.shape) < 4 or sizes[1] != 8 or (sizes[2] or 0) * b.dtype.itemsize != CORE // 8:
        raise CompileError("fragments are of core matrices", where=b.name, got=f"{list(b.shape)}")
    outer = (sizes[0] or 0) * CORE
    return (outer, CORE) if across else (CORE, outer)


def element_of(region: Region, place: Sequence[int]) -> tuple[Expr, ...]:
    """The indices of one element of a region. `place` gives its position in each dimension in which the region is
    longer than 1."""
    inner = iter(place)
    return tuple(start if as_int(extent) == 1 else start + const(next(inner)) for start, extent in region.ranges)


def store_sums(s: State, places: Sequence[Load], values: Sequence[str]) -> None:
    """Emit stores of a thread's new sums `values` to the elements that `places` load."""
    s.forget_loads(places[0].buffer)
    for load, value in zip(places, values, strict=True):
        where, align = address(s, load.buffer, buffer_offset(s, load.buffer, load.indices))
        s.out.effect(f"store {register_type(load.dtype)} {value}, ptr {where}, align {align}")


__all__ = ["CORE", "element_of", "of_lane_0", "store_sums", "strides"]
