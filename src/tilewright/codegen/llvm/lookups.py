"""Loads of lanes at indices from data: selected in registers from a window of memory, or loaded one by one."""

from __future__ import annotations

from math import prod

from tilewright.arith import bounds, interval
from tilewright.codegen.llvm.address import Access, address
from tilewright.codegen.llvm.avx512 import TABLE, permuted, permuted_by_eights, permuted_of_two
from tilewright.codegen.llvm.polynomial import Poly, add, constant
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import memory_type, register_type
from tilewright.ir.dtype import boolean, f32, i32, u16
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, as_int


def looked_up(s: State, buffer: Buffer, access: Access, k: int, width: int) -> str:
    """The elements of vector `k` of an access whose indices come from data (docs/decisions/one-sparse-row.md); "" for
    other accesses."""
    return _in_window(s, buffer, access, k, width) or _one_by_one(s, buffer, access, k, width)


def _in_window(s: State, buffer: Buffer, access: Access, k: int, width: int) -> str:
    """The elements of vector `k` of `access`, `width` of them, if each index is below 16 or 32 from a start that is
    equal for all lanes: these 16 or 32 elements are loaded as vectors, from which permutations take one for each lane.
    "" for other accesses, or if the buffer may have fewer elements."""
    match _only_atom(s, access.varying or {}):
        case Op("cast", (Op("bitand", (inside, Const(value))),)) if inside.dtype is i32 and buffer.dtype is f32:
            window, isa = int(value) + 1, s.target.isa
        case _:
            return ""
    picks = window in (TABLE, 2 * TABLE) if isa.tables else window == isa.half_tables
    if not picks or not _is_readable(s, buffer, access.base, window):
        return ""
    places, part = s.parts(s.evaluate(inside))[k], window if isa.tables == window else window // 2
    low = _vector(s, buffer, access.base, part)
    if part == window:
        return permuted(s.out, places, low, width)
    high = _vector(s, buffer, add(access.base, constant(part)), part)
    return (permuted_of_two if isa.tables else permuted_by_eights)(s.out, places, low, high, width)


def _vector(s: State, buffer: Buffer, p: Poly, width: int) -> str:
    where, align = address(s, buffer, p)
    return s.load(buffer, where, memory_type(buffer.dtype, width), align)


def _is_readable(s: State, buffer: Buffer, base: Poly, elements: int) -> bool:
    """Whether a buffer provably has `elements` elements from offset `base` on."""
    sizes = [as_int(n) for n in buffer.shape]
    extents, places = {loop.var: loop.extent for loop in s.enclosing}, interval.Interval(0, 0)
    for monomial, c in base.items():
        if len(monomial) > 1:
            return False
        own = bounds(s.atoms.exprs[monomial[0]], extents) if monomial else interval.Interval(1, 1)
        places = interval.add(places, interval.scale(own, c))
    if places.lo is None or places.hi is None or None in sizes:
        return False
    return places.lo >= 0 and places.hi + elements <= prod(n or 0 for n in sizes)


def _one_by_one(s: State, buffer: Buffer, access: Access, k: int, width: int) -> str:
    """The elements of vector `k` of `access`, `width` of them, if the indices are loaded from an array of 16 or 32
    bits: each index is loaded and extended as a scalar. LLVM would extend them as a vector and extract each one. "" for
    other accesses."""
    atom = _only_atom(s, access.varying or {})
    table = atom.args[0] if isinstance(atom, Op) and atom.name == "cast" else None
    if not isinstance(table, Load) or table.dtype not in (u16, i32) or not s.target.isa.scalar_lookups:
        return ""
    if buffer.dtype is boolean or buffer.dtype.bits < 8:
        return ""
    integers, kind = s.parts(s.evaluate(table))[k], register_type(table.dtype)
    base, _ = address(s, buffer, access.base)
    ty, element, memory = register_type(buffer.dtype, width), register_type(buffer.dtype), memory_type(buffer.dtype)
    vector = "poison"
    for lane in range(width):
        place_of = s.out.inst(f"extractelement <{width} x {kind}> {integers}, i64 {lane}")
        wide = s.out.inst(f"{'sext' if table.dtype is i32 else 'zext'} {kind} {place_of} to i64")
        where = s.out.inst(f"getelementptr {memory}, ptr {base}, i64 {wide}")
        raw = s.out.inst(f"load {memory}, ptr {where}, align {buffer.dtype.itemsize}")
        vector = s.out.inst(f"insertelement {ty} {vector}, {element} {raw}, i64 {lane}")
    return vector


def _only_atom(s: State, varying: Poly) -> Expr | None:
    """The only subexpression that determines the lanes' positions `varying`; None if there are several."""
    if len(varying) != 1:
        return None
    ((monomial, factor),) = varying.items()
    return s.atoms.exprs[monomial[0]] if factor == 1 and len(monomial) == 1 else None
