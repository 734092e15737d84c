"""Inverse index maps: the points of a box of loops at which given indices address a given element.

    (2*h + r - 1,)  over {h: 8, r: 3}     ->   h = (j0 - r + 1) // 2  for each r in 0:3
                                               where (j0 - r + 1) % 2 == 0, 0 <= h < 8

Indices are integer combinations of loop variables and of quotients and remainders of such by known numbers: a quotient
`u // c` is an unknown q and the remainder another one, s, with u = c q + s and 0 <= s < c. Every element's equations
are solved for as many unknowns as possible, the one with the largest range first, so that the loops over what is left
are short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from tilewright.arith import linear, prove, simplify, symbolic_bounds
from tilewright.ir.expr import Expr, Op, Var, as_int, const, equal
from tilewright.ir.rewrite import loads, variables
from tilewright.support.classes import dataclass

LARGE = 1 << 20
"""The number that an unknown range counts as."""


@dataclass(frozen=True, slots=True)
class Inverse:
    """The points of a box at which indices have certain values.

    free        variables that run over `0..extent`; each choice of them gives at most one point
    point       each variable of the box, as an expression of the values and the free variables
    conditions  conditions under which the point exists
    """

    free: tuple[tuple[Var, Expr], ...]
    point: Mapping[Var, Expr]
    conditions: tuple[Expr, ...]


def invert(indices: Sequence[Expr], extents: Mapping[Var, Expr], values: Mapping[Var, Expr]) -> Inverse | None:
    """The points of the box `extents` at which `indices` are the variables of `values`, whose own extents these are.

    None where an index is no integer combination of the box's variables, their quotients and remainders, such as one
    that is read from memory.
    """
    system = _System(dict(extents))
    for index, value in zip(indices, values, strict=True):
        equation = system.equation(index)
        if equation is None:
            return None
        system.equations.append(replace(equation, rest=equation.rest - value))
    system.solve()
    return system.answer(extents, values)


@dataclass(frozen=True, slots=True)
class _Equation:
    """A linear equation: the sum of factor * unknown over `terms`, plus `rest`, is 0."""

    terms: Mapping[Var, int]
    rest: Expr

    def without(self, v: Var, other: _Equation) -> _Equation:
        """The equation that follows from this one and `other` by a linear combination in which the unknown `v`
        cancels."""
        a, b = self.terms.get(v, 0), other.terms[v]
        if a == 0:
            return self
        mine, its = (abs(b), -a if b > 0 else a)
        terms = {u: c * mine for u, c in self.terms.items()}
        for u, c in other.terms.items():
            terms[u] = terms.get(u, 0) + c * its
        return _Equation({u: c for u, c in terms.items() if c}, simplify(self.rest * mine + other.rest * its))


@dataclass(slots=True)
class _System:
    """Unknowns with their ranges `low..low + extent`, the equations between them, and the solved unknowns in order."""

    extents: dict[Var, Expr]
    lows: dict[Var, Expr] = field(default_factory=dict)
    equations: list[_Equation] = field(default_factory=list)
    quotients: dict[tuple[Expr, int], tuple[Var, Var]] = field(default_factory=dict)
    unchecked: set[Var] = field(default_factory=set)
    solved: list[tuple[Var, _Equation]] = field(default_factory=list)

    def equation(self, e: Expr) -> _Equation | None:
        """`e` as linear combination of unknowns and a rest; quotients and remainders in it become new unknowns, with
        equations of their own. None if `e` is something else."""
        form = linear(e, self.extents)
        terms: dict[Var, int] = {}
        rest: Expr = const(form.constant)
        for atom, factor in form.terms:
            if not loads(atom) and not any(v in self.extents for v in variables(atom)):
                rest = rest + atom * factor
                continue
            unknown = atom if isinstance(atom, Var) else self.division(atom)
            if unknown is None:
                return None
            terms[unknown] = terms.get(unknown, 0) + factor
        return _Equation({v: c for v, c in terms.items() if c}, rest)

    def division(self, e: Expr) -> Var | None:
        """The unknown that stands for a quotient or remainder by a positive constant; None for other expressions."""
        if not isinstance(e, Op) or e.name not in ("floordiv", "mod"):
            return None
        over, divisor = e.args[0], as_int(e.args[1])
        if divisor is None or divisor <= 0 or loads(over):
            return None
        known = self.quotients.get((over, divisor))
        if known is None:
            ends = symbolic_bounds(over, self.extents)
            inner = self.equation(over)
            if inner is None or ends is None:
                return None
            q, s = (Var(f"{name}{len(self.quotients)}.quotient", axis=True) for name in "qs")
            lo, hi = (simplify(end // divisor) for end in ends)
            self.lows[q] = lo
            self.extents |= {q: simplify(hi - lo + 1), s: const(divisor)}
            self.unchecked.add(q)  # it follows from the range of what is divided
            self.equations.append(_Equation({**inner.terms, q: -divisor, s: -1}, inner.rest))
            known = self.quotients[over, divisor] = q, s
        return known[0] if e.name == "floordiv" else known[1]

    def solve(self) -> None:
        """Solve the system by Gauss's elimination over integers: one equation and unknown at a time, fewest unknowns
        first."""
        left = self.equations
        while True:
            candidates = [e for e in left if e.terms]
            if not candidates:
                break
            chosen = min(candidates, key=lambda e: len(e.terms))
            pivot = max(chosen.terms, key=lambda v: (self.size(v), abs(chosen.terms[v]) == 1, str(v)))
            self.solved.append((pivot, chosen))
            left = [e.without(pivot, chosen) for e in left if e is not chosen]
        self.equations = left

    def size(self, v: Var) -> int:
        extent = as_int(self.extents[v])
        return LARGE if extent is None else extent

    def answer(self, box: Mapping[Var, Expr], values: Mapping[Var, Expr]) -> Inverse:
        fixed = {v for v, _ in self.solved}
        free = {v: Var(v.name, axis=True) for v in self.extents if v not in fixed}
        point: dict[Var, Expr] = {v: simplify(new + self.lows.get(v, const(0))) for v, new in free.items()}
        ranges = {**{v: self.extents[o] for o, v in free.items()}, **values}
        conditions = [equal(e.rest, const(0)) for e in self.equations]
        for v, equation in reversed(self.solved):
            factor = equation.terms[v]
            total: Expr = equation.rest
            for other, c in equation.terms.items():
                if other is not v:
                    total = total + point[other] * c
            total = simplify(-total if factor > 0 else total, ranges)
            if abs(factor) != 1:
                conditions.append(equal(total % abs(factor), const(0)))
            point[v] = simplify(total // abs(factor), ranges)
            if v not in self.unchecked:
                low = self.lows.get(v, const(0))
                conditions += [point[v] >= low, point[v] < low + self.extents[v]]
        needed = tuple(dict.fromkeys(c for c in conditions if not prove(c, ranges)))
        return Inverse(tuple((v, self.extents[o]) for o, v in free.items()), {v: point[v] for v in box}, needed)


__all__ = ["Inverse", "invert"]
