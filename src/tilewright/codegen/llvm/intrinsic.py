"""Tensor intrinsics in LLVM: a call of the intrinsic's own function where it fits, else the loops it stands for."""

from __future__ import annotations

from tilewright.arith import simplify
from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State
from tilewright.ir.expr import as_int, const, product
from tilewright.ir.loops import Intrinsic, Region
from tilewright.schedule.external import find_external, sizes_of
from tilewright.schedule.intrinsics import TensorIntrin, find_intrinsic, is_known, matched_dimensions
from tilewright.schedule.tensorize import is_dense
from tilewright.support.errors import CompileError


def emit_external(s: State, stmt: Intrinsic) -> bool:
    """Write a call of an external function; False if it is none. Raises CompileError for an array that is not dense."""
    external = find_external(stmt.name)
    if external is None:
        return False
    where = f"external function {external.symbol!r}"
    if s.lanes is not None:
        raise CompileError("cannot be called for each lane of a vector", where=where)
    arguments = []
    for region in (*stmt.inputs, *stmt.outputs):
        if not is_dense(region):
            raise CompileError(f"{region.buffer.name!r} does not lie row by row in memory", where=where)
        place, _ = address(s, region.buffer, buffer_offset(s, region.buffer, [start for start, _ in region.ranges]))
        arguments.append(f"ptr {place}")
    arguments += [f"i64 {evaluate(s, size).scalar}" for size in sizes_of(external, stmt)]
    symbol = s.out.declare(external.linked, "void", [a.partition(" ")[0] for a in arguments])
    s.out.effect(f"call void {symbol}({', '.join(arguments)})")
    s.forget_loads()
    return True


def emit_call(s: State, stmt: Intrinsic) -> bool:
    """Write a call of the intrinsic's function; False if there is none for this target or these regions."""
    if not is_known(stmt.name):
        return False
    intrin = find_intrinsic(stmt.name)
    if intrin.llvm is None or s.lanes is not None or not all(map(s.target.has, intrin.features)):
        return False
    regions = dict(zip((*intrin.outputs, *intrin.inputs), (*stmt.outputs, *stmt.inputs), strict=True))
    ordered = [(b, regions[b]) for b in intrin.description.params]
    if not all(_fits(intrin, region, len(b.shape)) for b, region in ordered):
        return False
    arguments: list[str] = []
    for buffer, region in ordered:
        where, _ = address(s, region.buffer, buffer_offset(s, region.buffer, [start for start, _ in region.ranges]))
        arguments.append(f"ptr {where}")
        places = matched_dimensions(region, buffer.shape) or ()
        for d in places[:-1]:
            stride = simplify(product(region.buffer.shape[d + 1 :]))
            arguments.append(f"i64 {evaluate(s, stride).scalar}")
    s.out.declarations.setdefault(intrin.symbol, intrin.llvm)
    s.out.effect(f"call void @{intrin.symbol}({', '.join(arguments)})")
    s.forget_loads()
    return True


def _fits(intrin: TensorIntrin, region: Region, rank: int) -> bool:
    """Whether the elements of the last described dimension follow one another, and all of them where that is asked."""
    shape = region.buffer.shape
    places = [d for d, (_, extent) in enumerate(region.ranges) if extent is not const(1)]
    if len(places) != rank or any(as_int(x) != 1 for x in shape[places[-1] + 1 :]):
        return False
    return is_dense(region) if intrin.dense else True
