"""Addresses: from an index polynomial to where the lanes of an access lie, and the arithmetic that leads there.

The lanes of an access are classified by how its offset depends on the lane variable: not at all, known offsets such as
1 (contiguous) or `v // 4`, a constant or symbolic stride, or anything else. Offsets and addresses are computed once a
scope, those of outer loops first, so that what is common stays outside the inner loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewright.codegen.llvm.polynomial import Poly, add, as_constant, constant, key, multiply, split_lane
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import memory_type, splat_literal, vector_literal
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Const, Expr
from tilewright.ir.rewrite import substitute, variables
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """An offset split into `base`, equal for all lanes, plus one of

    * `steps`: known offsets of every lane (all zero if the access is uniform);
    * `stride`: a multiple of the lane that is known only at run time;
    * `varying`: an offset that has to be computed for each lane.
    """

    base: Poly
    steps: tuple[int, ...] | None = None
    stride: Poly | None = None
    varying: Poly | None = None


def classify(s: State, p: Poly) -> Access:
    """The offset `p` split by how it depends on the lane variable."""
    lanes = s.lanes
    if lanes is None:
        return Access(p, ())
    base: Poly = {}
    known: Poly = {}
    mixed: Poly = {}
    for monomial, c in p.items():
        varying = [n for n in monomial if s.varies(s.atoms.exprs[n])]
        if not varying:
            base[monomial] = c
        elif len(varying) == len(monomial) and all(_only_lane(s, n) for n in varying):
            known[monomial] = c
        else:
            mixed[monomial] = c
    if not mixed:
        steps = _steps(s, known)
        if steps is not None:
            return Access(base, steps)
    together = add(known, mixed)
    number = s.atoms.number(lanes.var)
    rest, stride = split_lane(together, number)
    if not rest and stride is not None and not any(s.varies(s.atoms.exprs[n]) for m in stride for n in m):
        return Access(base, None, stride)
    return Access(base, None, None, together)


def _only_lane(s: State, atom: int) -> bool:
    assert s.lanes is not None
    return all(v is s.lanes.var for v in variables(s.atoms.exprs[atom]))


def _steps(s: State, known: Poly) -> tuple[int, ...] | None:
    """The value of a polynomial of the lane variable alone for each lane; None if something in it does not fold."""
    assert s.lanes is not None
    if not known:
        return (0,) * s.lanes.extent
    lane_only = (s.atoms.number(s.lanes.var),)
    if len(known) == 1 and lane_only in known:
        c = known[lane_only]
        return tuple(range(0, c * s.lanes.extent, c))
    tables: dict[int, list[int]] = {}
    for n in sorted({n for m in known for n in m}):
        e = s.atoms.exprs[n]
        column = []
        for lane in range(s.lanes.extent):
            value = lane if e is s.lanes.var else _fold(substitute(e, {s.lanes.var: Const(lane, i64)}))
            if value is None:
                return None
            column.append(value)
        tables[n] = column
    totals = [0] * s.lanes.extent
    for monomial, c in known.items():
        for lane in range(s.lanes.extent):
            term = c
            for n in monomial:
                term *= tables[n][lane]
            totals[lane] += term
    return tuple(totals)


def _fold(e: Expr) -> int | None:
    return int(e.value) if isinstance(e, Const) else None


def offset(s: State, p: Poly) -> str:
    """An i64 operand with the value of a polynomial that is the same for all lanes."""
    value = as_constant(p)
    if value is not None:
        return str(value)
    name = s.number(key(p))
    for places in reversed(s.places):
        entry = places.offsets.get(name)
        if entry is not None:
            return entry
    # Outer loops' terms first, so that their sum is invariant in the inner loops.
    terms = sorted(p.items(), key=lambda item: (not item[0], _depth(s, item[0]), item[0]))
    *first, (monomial, c) = terms
    last = _term(s, monomial, c)
    if first:
        last = s.out.inst(f"add nsw i64 {offset(s, dict(first))}, {last}")
    if s.stable(p):
        s.places[-1].offsets[name] = last
    return last


def _depth(s: State, monomial: tuple[int, ...]) -> int:
    return max((s.depth.get(v, 0) for n in monomial for v in variables(s.atoms.exprs[n])), default=0)


def _term(s: State, monomial: tuple[int, ...], c: int) -> str:
    operand = ""
    for n in monomial:
        factor = s.scalar(s.atoms.exprs[n])
        operand = s.out.inst(f"mul nsw i64 {operand}, {factor}") if operand else factor
    if not operand:
        return str(c)
    return operand if c == 1 else s.out.inst(f"mul nsw i64 {operand}, {c}")


def address(s: State, buffer: Buffer, p: Poly) -> tuple[str, int]:
    """The address of element `p` of a buffer, and its alignment.

    The constant term is added last, so that accesses that differ by constants share the rest.
    """
    pointer = s.pointer(buffer)
    element = memory_type(buffer.dtype)
    itemsize = buffer.dtype.itemsize
    align = gcd(pointer.align, *[c * itemsize for c in p.values()])
    align = max(align & -align, 1)
    shift = p.get((), 0)
    rest = {m: c for m, c in p.items() if m}
    if shift and rest and s.lanes is None and not s.constants:
        # A scalar access without lanes: say that it is in bounds, which helps LLVM's own loop passes.
        return s.out.inst(f"getelementptr inbounds {element}, ptr {pointer.operand}, i64 {offset(s, p)}"), align
    base = _base_address(s, pointer.operand, element, rest)
    if shift:
        base = _remember_address(s, base, element, constant(shift), str(shift))
    return base, align


def _base_address(s: State, operand: str, element: str, rest: Poly) -> str:
    nearest, left, name = operand, rest, (operand, element)
    for places in reversed(s.places):
        if places.bases:
            for known, base in places.bases.get(name, ()):
                other = add(rest, known, -1)
                if len(other) < len(left):
                    nearest, left = base, other
    return _remember_address(s, nearest, element, left, None) if left else nearest


def set_base(s: State, buffer: Buffer, p: Poly) -> None:
    """Compute the address of element `p` here, as a base for later accesses.

    LLVM's strength reduction does not look into what is frozen. Of a sum of many terms it tries every way to part it
    between registers, for each of the accesses of an unrolled loop: seconds for a kernel.
    """
    operand, element = s.pointer(buffer).operand, memory_type(buffer.dtype)
    known = s.places[-1].bases.setdefault((operand, element), [])
    if p not in [other for other, _ in known]:
        place = s.out.inst(f"freeze i64 {offset(s, p)}")
        known.append((p, s.out.inst(f"getelementptr {element}, ptr {operand}, i64 {place}")))


def _remember_address(s: State, operand: str, element: str, p: Poly, index: str | None) -> str:
    name = s.number((operand, element, key(p)))
    for places in reversed(s.places):
        entry = places.addresses.get(name)
        if entry is not None:
            return entry
    flags = "inbounds " if index is None and s.mask is None and s.lanes is None and not s.constants else ""
    result = s.out.inst(f"getelementptr {flags}{element}, ptr {operand}, i64 {index or offset(s, p)}")
    if s.stable(p):
        s.places[-1].addresses[name] = result
    return result


def buffer_offset(s: State, buffer: Buffer, indices: Sequence[Expr]) -> Poly:
    """The offset, in elements, of an access to `buffer` at `indices`; if each lane has its own copy, that of the
    element in the lane's copy."""
    p = s.converter.offset(buffer, indices)
    copies = s.pointer(buffer).copies
    if copies > 1:
        assert s.lanes is not None
        p = add(multiply(p, constant(copies)), {(s.atoms.number(s.lanes.var),): 1})
    return p


def lane_pointers(s: State, buffer: Buffer, access: Access, k: int, start: int, width: int) -> str:
    """A vector of the addresses of lanes `start` to `start + width`, which are vector number `k` of the loop."""
    element = memory_type(buffer.dtype)
    base, _ = address(s, buffer, access.base)
    if access.steps is not None:
        index = vector_literal(access.steps[start : start + width], "i64")
    elif access.stride is not None:
        lane = vector_literal(tuple(range(start, start + width)), "i64")
        index = s.out.inst(f"mul <{width} x i64> {s.splat(offset(s, access.stride), i64, width)}, {lane}")
    else:
        assert access.varying is not None
        index = _varying_offset(s, access.varying, k, width)
    return s.out.inst(f"getelementptr {element}, ptr {base}, <{width} x i64> {index}")


def _varying_offset(s: State, p: Poly, k: int, width: int) -> str:
    total = ""
    ty = f"<{width} x i64>"
    for monomial, c in sorted(p.items()):
        term = ""
        for n in monomial:
            factor = s.parts(s.evaluate(s.atoms.exprs[n]))[k]
            term = s.out.inst(f"mul {ty} {term}, {factor}") if term else factor
        if c != 1:
            term = s.out.inst(f"mul {ty} {term}, {splat_literal(str(c), 'i64')}")
        total = s.out.inst(f"add {ty} {total}, {term}") if total else term
    return total


def is_own(s: State, buffer: Buffer, access: Access, start: int, width: int) -> bool:
    """Whether all `width` lanes from `start` on, active or not, lie inside an allocation of this function, so that the
    access needs no mask. LLVM turns allocations into registers only if their accesses are unmasked."""
    first = as_constant(access.base)
    elements = s.pointer(buffer).elements
    if first is None or not elements or not is_contiguous(access, start, width):
        return False
    assert access.steps is not None
    return first + access.steps[start] >= 0 and first + access.steps[start] + width <= elements


def is_contiguous(access: Access, start: int, width: int) -> bool:
    """Whether `width` lanes from `start` on are contiguous."""
    if access.steps is None:
        return False
    first = access.steps[start]
    return access.steps[start : start + width] == tuple(range(first, first + width))
