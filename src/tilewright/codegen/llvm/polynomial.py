"""Index arithmetic as polynomials: a flat offset is a sum of integer multiples of products of *atoms*.

An atom is a variable, or an integer expression that is no sum or product (`i // 3`). Written this way, equal addresses
are equal keys, the coefficient of the lane variable can be read off, and constants from unrolled loops fold away.
Atoms are numbered by first appearance, so that everything derived from a polynomial is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from tilewright.arith import simplify
from tilewright.ir.expr import Buffer, Const, Expr, Op, Var
from tilewright.ir.rewrite import substitute, variables

Monomial = tuple[int, ...]
"""A monomial as the sorted numbers of its factors (atoms); the empty tuple is the constant term."""

Poly = dict[Monomial, int]
Key = tuple[tuple[Monomial, int], ...]


class Atoms:
    """The numbering of atoms, by first appearance: the variables and other subexpressions whose products are the terms
    of polynomials."""

    def __init__(self) -> None:
        self.exprs: list[Expr] = []
        self._numbers: dict[Expr, int] = {}
        self._strides: dict[tuple[Expr, ...], list[Poly]] = {}

    def number(self, e: Expr) -> int:
        n = self._numbers.get(e)
        if n is None:
            n = self._numbers[e] = len(self.exprs)
            self.exprs.append(e)
        return n

    def find(self, e: Expr) -> int | None:
        """The number of an atom; None if the atom has no number yet."""
        return self._numbers.get(e)

    def strides(self, shape: Sequence[Expr]) -> list[Poly]:
        """The elements between neighbours along each dimension of a row-major array, none of whose extents depends on
        a loop's variable."""
        entry = self._strides.get(tuple(shape))
        if entry is None:
            of = Converter(self, {})
            entry = [constant(1)]
            for extent in reversed(shape[1:]):
                entry.append(multiply(entry[-1], of.poly(extent)))
            entry = self._strides[tuple(shape)] = entry[: len(shape)][::-1]
        return entry


def constant(value: int) -> Poly:
    return {(): value} if value else {}


def add(a: Poly, b: Poly, scale: int = 1) -> Poly:
    """a + scale * b."""
    result = dict(a)
    for monomial, c in b.items():
        total = result.get(monomial, 0) + scale * c
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return result


def multiply(a: Poly, b: Poly) -> Poly:
    if not a or not b:
        return {}
    if len(b) == 1 and () in b:
        factor = b[()]
        return {m: c * factor for m, c in a.items()}
    result: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            key = tuple(sorted(m + n))
            result[key] = result.get(key, 0) + c * d
    return {m: c for m, c in result.items() if c}


def as_constant(p: Poly) -> int | None:
    """The value of a constant polynomial, else None."""
    if not p:
        return 0
    return p[()] if len(p) == 1 and () in p else None


def key(p: Poly) -> Key:
    """A hashable form, equal for equal polynomials."""
    return tuple(sorted(p.items()))


def divisor(p: Poly, limit: int) -> int:
    """The greatest power of two up to `limit` (itself one) that divides every value of `p`."""
    return gcd(limit, *p.values())


class Converter:
    """Converts expressions to polynomials, with the variables of unrolled loops bound to constants.

    `outer` is the converter with the same atoms, but without the bindings of `inner`, the variables of one more
    unrolled loop. Its results are reused for expressions that mention none of these.
    """

    def __init__(
        self,
        atoms: Atoms,
        constants: Mapping[Var, int],
        outer: Converter | None = None,
        inner: frozenset[Var] = frozenset(),
    ) -> None:
        self.atoms = atoms
        self.constants = constants
        self.memo: dict[Expr, Poly] = {}
        self.offsets: dict[tuple[tuple[Expr, ...], tuple[Expr, ...]], Poly] = {}
        self.outer = outer
        self.inner = inner

    def poly(self, e: Expr) -> Poly:
        entry = self.memo.get(e)
        if entry is None:
            if self.outer is not None and self.inner.isdisjoint(variables(e)):
                entry = self.outer.poly(e)
            else:
                entry = self._poly(e)
            self.memo[e] = entry
        return entry

    def _poly(self, e: Expr) -> Poly:
        if isinstance(e, Const):
            return constant(int(e.value))
        if isinstance(e, Var):
            return constant(self.constants[e]) if e in self.constants else {(self.atoms.number(e),): 1}
        if isinstance(e, Op):
            match e.name, e.args:
                case "add", (a, b):
                    return add(self.poly(a), self.poly(b))
                case "sub", (a, b):
                    return add(self.poly(a), self.poly(b), -1)
                case "neg", (a,):
                    return add({}, self.poly(a), -1)
                case "mul", (a, b):
                    return multiply(self.poly(a), self.poly(b))
                case "shl", (a, Const(n)) if 0 <= n < 63:
                    return multiply(self.poly(a), constant(1 << n))
        bound = self.bind(e)
        if bound is not e:
            return self.poly(bound)
        return {(self.atoms.number(e),): 1}

    def bind(self, e: Expr) -> Expr:
        """`e` with bound variables replaced by their constants, folded."""
        if not self.constants or isinstance(e, Const):
            return e
        used = {v: Const(self.constants[v], v.dtype) for v in variables(e) if v in self.constants}
        return substitute(e, used) if used else e

    def offset(self, buffer: Buffer, indices: Sequence[Expr]) -> Poly:
        """The element offset of `buffer[indices]`, row-major."""
        access = buffer.shape, tuple(indices)
        entry = self.offsets.get(access)
        if entry is None:
            if self.outer is not None and all(self.inner.isdisjoint(variables(i)) for i in indices):
                entry = self.outer.offset(buffer, indices)
            else:
                entry = self._offset(*access)
            self.offsets[access] = entry
        return entry

    def _offset(self, shape: tuple[Expr, ...], indices: tuple[Expr, ...]) -> Poly:
        total: Poly = {}
        for stride, index in zip(self.atoms.strides(shape), indices, strict=True):
            for m, c in self.poly(index).items():
                for n, d in stride.items():
                    at = tuple(sorted(m + n)) if m and n else m or n
                    value = total.get(at, 0) + c * d
                    if value:
                        total[at] = value
                    else:
                        del total[at]
        return self.rejoin(total)

    def rejoin(self, p: Poly) -> Poly:
        """`p` with `c * (f // c) + f % c` replaced by `f`: a fused index may have been decomposed only to be put
        together again."""
        for monomial, c in p.items():
            for n in monomial:
                e = self.atoms.exprs[n]
                if not (isinstance(e, Op) and e.name == "mod"):
                    continue
                rest = list(monomial)
                rest.remove(n)
                if not isinstance(e.args[1], Const):
                    result = self._rejoined(p, monomial, rest, e)
                    if result is not None:
                        return self.rejoin(result)
                    continue
                for twin in [m for m, v in p.items() if v == c * e.args[1].value and len(m) == len(monomial)]:
                    f = self._divided(twin, rest, e)
                    if f is not None:
                        without = {m: v for m, v in p.items() if m not in (monomial, twin)}
                        whole = multiply({tuple(rest): c}, self.poly(f))
                        return self.rejoin(add(without, whole))
        return p

    def _rejoined(self, p: Poly, monomial: Monomial, rest: Sequence[int], remainder: Op) -> Poly | None:
        """`p` with `c * w * (f // w) + c * (f % w)` replaced by `c * f`, for a symbolic divisor w; None if it has no
        such pair of terms. `remainder` is `f % w`, a factor of `monomial`, whose other factors are `rest`."""
        f, size = remainder.args
        quotient = self.atoms.find(Op("floordiv", (f, size)))
        if quotient is None:
            return None
        c = p[monomial]
        above = multiply({tuple(sorted((*rest, quotient))): c}, self.poly(size))
        if any(p.get(m) != v for m, v in above.items()):
            return None
        without = add(add(p, above, -1), {monomial: c}, -1)
        return add(without, multiply({tuple(rest): c}, self.poly(f)))

    def _divided(self, twin: Monomial, rest: Sequence[int], remainder: Op) -> Expr | None:
        """The dividend f if the monomial `twin` is `rest * (f // c)` where the remainder is `f % c`; else None. The
        remainder's dividend may lack terms that c divides: `(i % 27 * 12 + j) % 36` was simplified to `(i * 12 + j) %
        36`."""
        own = list(twin)
        for n in rest:
            if n not in own:
                return None
            own.remove(n)
        (quotient,) = (self.atoms.exprs[n] for n in own)
        size = remainder.args[1]
        if not (isinstance(quotient, Op) and quotient.name == "floordiv" and quotient.args[1] is size):
            return None
        f = quotient.args[0]
        return f if f is remainder.args[0] or simplify(Op("mod", (f, size))) is remainder else None


def split_lane(p: Poly, lane: int) -> tuple[Poly, Poly | None]:
    """`p` as (rest, coefficient), p = rest + coefficient * atom `lane`; None if `lane` appears in a higher power."""
    rest: Poly = {}
    coefficient: Poly = {}
    for monomial, c in p.items():
        count = monomial.count(lane)
        if count == 0:
            rest[monomial] = c
        elif count == 1:
            others = list(monomial)
            others.remove(lane)
            coefficient[tuple(others)] = c
        else:
            return p, None
    return rest, coefficient
