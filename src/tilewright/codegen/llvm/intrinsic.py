"""Tensor intrinsics in LLVM: a call of the intrinsic's own function where it fits, else the loops it stands for."""

from __future__ import annotations

from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.tiles import emit_tiles
from tilewright.ir.loops import Intrinsic
from tilewright.schedule.external import find_external, sizes_of
from tilewright.schedule.intrinsics import find_intrinsic, is_known, values_of
from tilewright.schedule.tensorize import is_dense, operands
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
    """Write a call of the function of the tensor intrinsic that `stmt` names; returns False if it has none for this
    target or these regions."""
    if not is_known(stmt.name):
        return False
    intrin = find_intrinsic(stmt.name)
    if s.tiles is not None and emit_tiles(s, intrin, stmt):
        return True
    if intrin.llvm is None or s.lanes is not None or not all(map(s.target.has, intrin.features)):
        return False
    result, values = operands(intrin, stmt), values_of(intrin, stmt)
    if result is None or values is None:
        return False
    arguments: list[str] = []
    for region, strides in result:
        where, _ = address(s, region.buffer, buffer_offset(s, region.buffer, [start for start, _ in region.ranges]))
        arguments.append(f"ptr {where}")
        arguments += [f"i64 {evaluate(s, stride).scalar}" for stride in strides]
    arguments += [f"i64 {evaluate(s, values[symbol]).scalar}" for symbol in intrin.symbols]
    s.out.declarations.setdefault(intrin.symbol, intrin.llvm)
    s.out.effect(f"call void @{intrin.symbol}({', '.join(arguments)})")
    s.forget_loads()
    return True
