"""The values that each index takes: as many, from 0 on, as leave every read inside of its tensor.

The rule is that of Tensor Comprehensions ("Range Inference" in its documentation), in rounds: a read in which one index
is unknown bounds that index; when a round has found some, the next one goes on with what is left.

    O[h] +! I[2 * h + r] * W[r]       r in 0:|W|, then 2 h + |W| - 1 <= |I| - 1, so h in 0:(|I| - |W|) // 2 + 1

What is not obvious is an error that names the index: two tensors that end it at different places, two unknown indices
in every read, a range that would not begin at 0. Then `where` says it. Whatever the ranges are, that all reads are
inside is proved afterwards (`lowering.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.arith import Linear, linear, prove, simplify, symbolic_bounds
from tilewright.formulas.nests import Nest
from tilewright.formulas.source import Source
from tilewright.formulas.syntax import Apply, Name, Node, Number, Range, Read, Size, walk
from tilewright.ir.expr import Expr, Op, Var, as_int, const, maximum, minimum
from tilewright.support.classes import dataclass

Shape = tuple[Expr, ...]

LARGEST = 1 << 40
"""The bound below which the number of values of an index must be."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The range of an index: the `size` values `start`, `start + 1`, ... `why` says in words where the range comes
    from."""

    start: Expr
    size: Expr
    why: str


@dataclass(frozen=True, slots=True)
class Scope:
    """The sizes and shapes that names in a nest mean. `assuming`: sizes that may be negative are assumed not to be, as
    nothing will be compiled."""

    source: Source
    sizes: Mapping[str, Expr]
    shapes: Mapping[str, Shape]
    assuming: bool = False

    def size(self, node: Size) -> Expr:
        """The extent that `A.shape[d]` means."""
        shape = self.shapes[node.tensor]
        if node.dim >= len(shape):
            self.source.fail(f"{node.tensor!r} has no dimension {node.dim}", node.at, got=f"{len(shape)} dimensions")
        return shape[node.dim]


def index_value(node: Node, names: Mapping[str, Expr], scope: Scope) -> Expr | None:
    """The value of an expression of indices, which have their values in `names`, and sizes; None if it contains
    anything else, such as a read or a float."""
    match node:
        case Number(value=value):
            return const(value) if type(value) is int and abs(value) < 1 << 62 else None
        case Name(name=name):
            return names.get(name, scope.sizes.get(name))
        case Size():
            return scope.size(node)
        case Apply(name="neg", args=(inner,)):
            negative = index_value(inner, names, scope)
            return None if negative is None else -negative
        case Apply(name="+" | "-" | "*" | "//" | "%" | "min" | "max", args=(left, right)):
            a, b = index_value(left, names, scope), index_value(right, names, scope)
            return None if a is None or b is None else _combined(node.name, a, b)
    return None


def _combined(sign: str, a: Expr, b: Expr) -> Expr | None:
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "min":
            return minimum(a, b)
        case "max":
            return maximum(a, b)
    if not prove(b > 0):
        return None  # no caller wants what // and % give for 0
    return a // b if sign == "//" else a % b


@dataclass(frozen=True, slots=True)
class _Access:
    """An index `node` of a read, which must be within dimension `dim` of a tensor, of extent `extent`."""

    read: Read
    dim: int
    node: Node
    extent: Expr

    @property
    def place(self) -> str:
        return f"{self.read.tensor}.shape[{self.dim}]"


@dataclass(frozen=True, slots=True)
class _End:
    """The bound that one access puts on an index: it is at least `start` and below `end`."""

    start: Expr
    end: Expr
    access: _Access


def infer(nest: Nest, scope: Scope) -> dict[str, Extent]:
    """The range of every index of a nest. Raises ComprehensionError if one cannot be inferred."""
    result: dict[str, Extent] = {r.index: _stated(r, scope) for r in nest.ranges}
    accesses = list(_accesses(nest, scope))
    guarded = list(_guarded(nest, scope))
    while True:
        unknown = [i for i in nest.indices if i not in result]
        if not unknown:
            return {i: result[i] for i in nest.indices}
        ends: dict[str, list[_End]] = {}
        for candidates in (accesses, guarded):
            if ends:
                break
            for access in candidates:
                end = _end_of(access, result, unknown, scope)
                if end is not None:
                    ends.setdefault(end[0], []).append(end[1])
        if not ends:
            _ambiguous(unknown[0], nest, accesses, scope)
        for index, stated in ends.items():
            result[index] = _agreed(index, stated, nest, scope)


def _stated(r: Range, scope: Scope) -> Extent:
    """The range that a clause of `where` states."""
    ends = []
    for node in (r.lo, r.hi):
        for n in walk(node):
            if isinstance(n, Name) and n.name not in scope.sizes:
                hint = (
                    f"a condition may use other indices: where {r.index} < {n.name}; sizes are declared, A: [{n.name}]"
                )
                scope.source.fail(f"the range of {r.index!r} uses {n.name!r}, which is no size", n.at, hint=hint)
        value = index_value(node, {}, scope)
        if value is None:
            scope.source.fail(f"the range of {r.index!r} is no whole number", node.at, expected="numbers and sizes")
        ends.append(simplify(value))
    lo, hi = ends
    size = simplify(hi - lo)
    if prove(size < 0):
        got = f"{lo}:{hi}"
        scope.source.fail(f"the range of {r.index!r} ends before it begins", r.at, got=got)
    if not prove(size >= 0) and not scope.assuming:
        hint = f"where {r.index} in {lo}:max({lo}, {hi})"
        scope.source.fail(f"the range of {r.index!r} may end before it begins", r.at, got=f"{lo}:{hi}", hint=hint)
    for end in (lo, size):
        number = as_int(end)
        if number is not None and abs(number) >= LARGEST:
            scope.source.fail(f"the range of {r.index!r} is too large", r.at, expected=f"less than {LARGEST}")
    return Extent(lo, size, "where")


def _accesses(nest: Nest, scope: Scope) -> Iterator[_Access]:
    """Yield the indices of reads that must be in bounds, and so bound the ranges: those of unconditional reads, and of
    reads after a condition that is about other indices."""
    stack: list[tuple[Node, frozenset[str]]] = [(e, frozenset()) for e in reversed(nest.nodes)]
    seen: set[tuple[Read, int]] = set()
    while stack:
        n, conditional = stack.pop()
        if isinstance(n, Apply) and n.name == "if":
            then, condition, orelse = n.args
            names = conditional | {m.name for m in walk(condition) if isinstance(m, Name)}
            stack += [(orelse, names), (then, names), (condition, conditional)]
            continue
        if isinstance(n, Apply) and n.name in ("and", "or"):
            first, second = n.args
            names = conditional | {m.name for m in walk(first) if isinstance(m, Name)}
            stack += [(second, names), (first, conditional)]
            continue
        if isinstance(n, Read) and not n.outside:
            for dim, index in enumerate(n.indices):
                used = {m.name for m in walk(index) if isinstance(m, Name)}
                if not used & conditional and (n, dim) not in seen:
                    seen.add((n, dim))
                    yield _Access(n, dim, index, scope.shapes[n.tensor][dim])
        stack += [(c, conditional) for c in reversed(n.children)]


def _guarded(nest: Nest, scope: Scope) -> Iterator[_Access]:
    """Yield the accesses by `pad`, `clamp` and `wrap` in which an index stands alone: they bound it if no other read
    does."""
    for n in (n for e in nest.nodes for n in walk(e)):
        if isinstance(n, Read) and n.outside:
            for dim, index in enumerate(n.indices):
                if isinstance(index, Name):
                    yield _Access(n, dim, index, scope.shapes[n.tensor][dim])


def _value(access: _Access, result: Mapping[str, Extent], unknown: list[str], scope: Scope) -> Expr | None:
    """The value of the index of an access, in which a known index counts from its start, and an unknown one is a
    variable; None if it is no expression of indices and sizes."""
    names: dict[str, Expr] = {i: Var(i, axis=True) + e.start for i, e in result.items()}
    names |= {i: Var(i, axis=True) for i in unknown}
    return index_value(access.node, names, scope)


def _end_of(access: _Access, result: Mapping[str, Extent], unknown: list[str], scope: Scope) -> tuple[str, _End] | None:
    """(the index, its bound) for the only one of the `unknown` indices that occurs in `access`: the bound is the one
    that the access puts on it, where `result` has the extents of the known indices. None if no unknown index or several
    occur, or if the bound cannot be solved for."""
    free = [i for i in unknown if any(isinstance(m, Name) and m.name == i for m in walk(access.node))]
    if len(free) != 1 or any(isinstance(m, Read) for m in walk(access.node)):
        return None
    value = _value(access, result, unknown, scope)
    if value is None:
        return None
    extents = {Var(i, axis=True): e.size for i, e in result.items()}
    if any(prove(e.size <= 0) for i, e in result.items()):
        extents = {v: simplify(maximum(size, const(1))) for v, size in extents.items()}
    solved = _solved(value, const(0), access.extent - 1, Var(free[0], axis=True), extents)
    if solved is None:
        return None
    lo, hi = solved
    return free[0], _End(simplify(lo), simplify(hi + 1), access)


def _solved(e: Expr, lo: Expr, hi: Expr, v: Var, extents: Mapping[Var, Expr]) -> tuple[Expr, Expr] | None:
    """(least, greatest) value of `v` for which `lo <= e <= hi`, whatever values the other variables have within
    `extents`; None if `e` is not linear in `v`."""
    if isinstance(e, Op) and e.name == "floordiv" and (divisor := as_int(e.args[1])) is not None:
        return _solved(e.args[0], lo * divisor, hi * divisor + (divisor - 1), v, extents)
    form = linear(e)
    factor, rest = _without(form, v)
    if factor == 0 or rest is None:
        return None
    ends = symbolic_bounds(simplify(rest), extents) if extents else (rest, rest)
    if ends is None:
        return None
    least, most = ends
    if factor < 0:
        lo, hi, least, most, factor = -hi, -lo, -most, -least, -factor
    # factor v + rest >= lo for the least rest, <= hi for the greatest
    return -((least - lo) // factor), (hi - most) // factor


def _without(form: Linear, v: Var) -> tuple[int, Expr | None]:
    """(factor, rest) of the linear form `factor * v + rest`; the rest is None if it contains v too."""
    from tilewright.ir.rewrite import variables

    factor, rest = 0, const(form.constant)
    total: Expr = rest
    for atom, c in form.terms:
        if atom is v:
            factor = c
        elif v in set(variables(atom)):
            return 0, None
        else:
            total = total + atom * c
    return factor, total


def _agreed(index: str, ends: list[_End], nest: Nest, scope: Scope) -> Extent:
    """The range of `index` that all bounds in `ends` agree on. Raises ComprehensionError if it would not begin at 0, or
    if it cannot be decided which bound is the least."""
    at = ends[0].access.node.at
    for end in ends:
        if not prove(end.start <= 0):
            _shifted_start(index, end, nest, scope)
    tightest: dict[tuple[str, int], _End] = {}
    for end in ends:
        place = (end.access.read.tensor, end.access.dim)
        tightest[place] = _tighter(index, tightest.get(place, end), end, scope)
    first, *others = tightest.values()
    for other in others:
        if not _same(first.end, other.end):
            _disagree(index, list(tightest.values()), scope)
    if not prove(first.end >= 0) and not (scope.assuming and not prove(first.end < 0)):
        if prove(first.end < 0) or prove(first.end <= 0):
            expected = f"{first.access.place} to be {simplify(first.access.extent - first.end)} or more"
            scope.source.fail(f"index {index!r} has no range: {first.access.place} is too small", at, expected=expected)
        hint = (
            f"say where {index} in 0:..., or how large a size is at least: dynamic={{'{first.access.read.tensor}': 3}}"
        )
        got = f"0:{first.end}"
        scope.source.fail(f"the range of {index!r} may end before it begins", at, got=got, hint=hint)
    return Extent(const(0), first.end, ", ".join(e.access.place for e in tightest.values()))


def _same(a: Expr, b: Expr) -> bool:
    return a is b or simplify(a - b) is const(0)


def _tighter(index: str, a: _End, b: _End, scope: Scope) -> _End:
    """The bound of `index`, `a` or `b`, that ends first. Raises ComprehensionError if that is not known."""
    if _same(a.end, b.end) or prove(a.end <= b.end):
        return a
    if prove(b.end <= a.end):
        return b
    hint = f"where {index} in 0:..."
    got = f"{a.end} and {b.end}"
    scope.source.fail(f"it is not known which end of {index!r} comes first", b.access.node.at, got=got, hint=hint)


def _shifted_start(index: str, end: _End, nest: Nest, scope: Scope) -> None:
    """Raise ComprehensionError for an index whose range would not begin at 0. The hint is a `where` with the range, if
    the index is reduced over, or a shift of all reads."""
    shown = scope.source.text[slice(*end.access.node.at)] if end.access.node.at[1] else index
    hint = f"shift all reads so that {index} begins at 0, read pad({end.access.read.tensor}[...], 0), or say where"
    if as_int(end.start) is not None and as_int(end.end) is not None:
        hint += f" {index} in {end.start}:{end.end}" + (
            "" if index in nest.reduced else f": element 0 of the result is then that of {index} = {end.start}"
        )
    else:
        hint += f" {index} in {end.start}:..."
    scope.source.fail(
        f"index {index!r} would begin at {end.start}",
        end.access.node.at,
        expected=f"a read inside {end.access.read.tensor!r} for {index} = 0",
        got=shown,
        hint=hint,
    )


def _disagree(index: str, ends: list[_End], scope: Scope) -> None:
    got = " and ".join(f"{e.end} in {e.access.place}" for e in ends)
    least = min(ends, key=lambda e: as_int(e.end) if as_int(e.end) is not None else LARGEST)  # type: ignore[arg-type, return-value]
    hint = f"say which: where {index} in 0:{least.end}"
    at = ends[-1].access.node.at
    scope.source.fail(f"index {index!r} has several ends", at, expected="one size", got=got, hint=hint)


def _ambiguous(index: str, nest: Nest, accesses: list[_Access], scope: Scope) -> None:
    """Raise ComprehensionError for an index that no access contains as its only unknown one."""
    inside = [a for a in accesses if any(isinstance(m, Name) and m.name == index for m in walk(a.node))]
    reads = (n for e in nest.nodes for n in walk(e) if isinstance(n, Read))
    places = (
        f"{n.tensor}.shape[{d}]"
        for n in reads
        for d, i in enumerate(n.indices)
        if isinstance(i, Name) and i.name == index
    )
    hint = f"where {index} in 0:{next(places, '10, or a size: A.shape[0]')}"
    at, names = nest.at, ""
    named = [n for e in nest.nodes for n in walk(e) if isinstance(n, Name) and n.name == index]
    if named:
        at = named[0].at
    if inside:
        at = inside[0].node.at
        others = [
            i
            for i in nest.indices
            if i != index and any(isinstance(m, Name) and m.name == i for m in walk(inside[0].node))
        ]
        if others:
            names = f": {' and '.join(repr(i) for i in (index, *others))} are unknown in it"
    elif named and index in nest.reduced:
        hint += f"; if {index} is a number rather than an index, write {index}[] or declare {index}: f32[]"
    scope.source.fail(f"index {index!r} has no range{names}", at, hint=hint)


__all__ = ["Extent", "Scope", "Shape", "index_value", "infer"]
