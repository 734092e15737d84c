"""The symbols of a module's dynamic dimensions: names for those that the module does not name, and the equations
between sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from math import lcm
from typing import Any

from tilewright.arith import linear, prove, prove_equal
from tilewright.frontend.common.known import object_array
from tilewright.frontend.stablehlo.module import Type
from tilewright.ir.dim import Dim, DimSizes
from tilewright.ir.expr import Const, Expr, Op, Var, as_expr, as_int, equal
from tilewright.ir.expr import call as apply
from tilewright.ir.graph import GraphBuilder
from tilewright.ir.rewrite import fresh_name, substitute, variables
from tilewright.ops.dims import dim, show
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, ShapeError


class Equal(Exception):
    """Two sizes must be equal, which replaces a symbol by an expression: the module has to be walked again with
    that."""

    def __init__(self, symbol: Var, size: Expr) -> None:
        self.symbol, self.size = symbol, size
        super().__init__(f"{symbol} = {size}")


@dataclass(slots=True)
class Sizes:
    """The symbolic sizes of a module. `fixed`: sizes and ranges that the caller states, by name; `joined`: (symbol, the
    expression that replaces it), in the order in which they were derived."""

    fixed: DimSizes
    joined: list[tuple[Var, Expr]] = field(default_factory=list)
    symbols: dict[str, Var] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)
    batch: tuple[str, int] | None = None
    """The input's name and axis whose dimension is called "batch"."""
    stated: bool = False
    """Whether all conditions on sizes are known from outside the module, whose own assertions then only repeat them."""
    solved: list[tuple[Expr, str]] = field(default_factory=list)
    """Assumptions about dimensions from which symbols are computed, each with its reason."""
    declared: dict[str, Expr] = field(default_factory=dict)
    """Symbols that stand for whole dimensions of inputs, by "input_dimAXIS"; other expressions are computed from
    them."""
    rounded: list[tuple[Var, Expr]] = field(default_factory=list)
    """The pairs of `joined` that express a remainder: b becomes `4*(b // 4) + 1`."""
    quotients: dict[Expr, list[tuple[Any, Any]]] = field(default_factory=dict)
    remainders: dict[Expr, list[tuple[Any, Any]]] = field(default_factory=dict)
    """By expression of a truncated quotient or remainder of sizes, its dividend and divisor."""

    def join(self, result: Equal) -> None:
        self.joined.append((result.symbol, result.size))

    def symbol(self, name: str, needs: Dim | None = None) -> Var:
        """The variable for the symbolic dimension `name`, created at the first use; `needs` is the range that the
        module itself requires."""
        known = self.symbols.get(name)
        if known is None:
            text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)[:40]
            chosen = fresh_name(text if text[:1].isalpha() else f"d_{text}", self.used_names)
            said = self.said(name) if needs is None or name in self.fixed else needs
            known = self.symbols[name] = said.var(chosen, needs)
        return known

    def expr(self, name: str) -> Expr:
        """The size of the symbolic dimension `name`: the number that the caller states, or an expression in which
        replaced symbols no longer occur."""
        symbol = self.symbol(name)
        number = self.fixed.get(name)
        return as_expr(number) if isinstance(number, int) else self.resolved(symbol)

    def said(self, name: str) -> Dim:
        """The range that the caller states for the symbolic dimension `name`; an unrestricted one if it states none, or
        a number."""
        known = self.fixed.get(name)
        return known if isinstance(known, Dim) else Dim()

    def named(self, name: str) -> Any:
        """The size that a name stands for, as a known array without dimensions."""
        return object_array([self.expr(name)], ())

    def resolved(self, e: Expr) -> Expr:
        for symbol, size in self.joined:
            if symbol in variables(e):
                e = dim(substitute(e, {symbol: size}))
        return e

    def solve(self, shapes: Sequence[tuple[str, Sequence[Expr]]]) -> None:
        """Express each symbol that is no dimension by itself through dimensions that are linear in it. For a dimension
        `2*b + 3`, a new symbol d stands for the dimension and b becomes `(d - 3) // 2`; for `a*b` with a known, b is `d
        // a`. If all dimensions have several unknown symbols, one symbol is expressed by others first: for `a + 2*b`
        and `a + b`, a is `d - b`. `shapes` are those of the inputs, by name."""
        known = {d for _, shape in shapes for d in shape if isinstance(d, Var)}
        places = [(f"{name}_dim{axis}", d) for name, shape in shapes for axis, d in enumerate(shape)]
        progress = True
        while progress:
            progress = False
            for name, size in places:
                size = self.resolved(size)
                unknown = [v for v in variables(size) if v not in known]
                if len(unknown) == 1 and (d := self._solved(name, size, unknown[0])) is not None:
                    known |= set(variables(d))
                    progress = True
            progress = progress or self._put_off(places, known)

    def _put_off(self, places: Sequence[tuple[str, Expr]], known: set[Var]) -> bool:
        """Express one unknown symbol of a dimension by its other symbols, so that these can be solved first: for `a +
        2*b`, a is `d - 2*b`. Returns False if no dimension in `places` permits it; `known` is extended."""
        for name, size in places:
            size = self.resolved(size)
            unknown = [v for v in variables(size) if v not in known]
            alone = next((v for v, c in linear(size).terms if v in unknown and c == 1), None)
            if len(unknown) > 1 and isinstance(alone, Var) and (d := self._solved(name, size, alone)) is not None:
                known |= set(variables(d)) - set(unknown)
                return True
        return False

    def _solved(self, name: str, size: Expr, symbol: Var) -> Expr | None:
        """A new symbol for the dimension `size` of the input `name` (or the number that it is fixed to), from which
        `symbol`, in which `size` is linear, is computed from then on; None if it is not linear."""
        factor = next((c for v, c in linear(size).terms if v is symbol), 0)
        rest = dim(size - symbol * factor)
        if factor == 0 or symbol in variables(rest):
            return self._solved_product(name, size, symbol)
        offset, low, high = as_int(rest) if factor > 0 else None, symbol.lo or 0, symbol.hi
        if offset is None:
            needs = Dim(0)
        else:
            end = None if high is None else factor * high + offset
            needs = Dim(max(factor * low + offset, 0), end, likely=tuple(factor * n + offset for n in symbol.likely))
        whole = offset is not None and offset % factor == 0
        self.symbol(name, replace(needs, multiple=factor) if whole else needs)
        d = self.expr(name)
        inside, factor = dim(d - rest if factor > 0 else rest - d), abs(factor)
        self.declared[name] = d
        reason = f"{show((size,))} is a dimension"
        if factor > 1 and not (whole and isinstance(d, Var)):
            self.solved.append((equal(inside % factor, 0), reason))
        if offset is None or symbol.multiple > 1 or not isinstance(d, Var):
            self.solved += [(c, reason) for c in _range(symbol, dim(inside // factor))]
        self.joined.append((symbol, dim(inside // factor)))
        return d

    def _solved_product(self, name: str, size: Expr, symbol: Var) -> Expr | None:
        """Express `symbol` by a new symbol d that stands for the dimension `size`, if that is `factor * symbol + rest`:
        then it is `(d - rest) // factor`. Returns d, or None."""
        rest = dim(substitute(size, {symbol: as_expr(0)}))
        factor = dim(substitute(size, {symbol: as_expr(1)}) - rest)
        if symbol in variables(factor) or not prove(factor >= 1) or not prove_equal(size, symbol * factor + rest):
            return None
        self.symbol(name, Dim(0))
        d = self.declared[name] = self.expr(name)
        inside, reason = dim(d - rest), f"{show((size,))} is a dimension"
        self.solved.append((equal(inside % factor, 0), reason))
        self.solved += [(c, reason) for c in _range(symbol, dim(inside // factor))]
        self.joined.append((symbol, dim(inside // factor)))
        return d

    def shape(self, name: str, t: Type, said: Sequence[Any] | None) -> tuple[Expr, ...]:
        """The shape of the argument `name` of type `t`. Unknown extents are evaluated by the functions `said`, or get
        new symbols; the module's first one is called "batch" if it is an argument's first axis."""
        if t.shape is None:
            raise ShapeError(f"an argument of type {t.element} is not supported")
        results: list[Expr] = []
        for axis, d in enumerate(t.shape):
            if d is not None:
                results.append(as_expr(d))
            elif said is not None:
                results.append(dim(said[axis](self.expr)))
            else:
                if axis == 0 and not self.symbols and self.batch is None:
                    self.batch = (name, axis)
                results.append(self.expr(self._own(name, axis)))
        return tuple(results)

    def equal(self, a: Expr, b: Expr) -> None:
        """Require that two sizes are equal. Raises Equal if that replaces a symbol, ShapeError if it is impossible."""
        a, b = dim(a), dim(b)
        if a is b or prove(apply("eq", a, b)):
            return
        if (common := _common(a, b)) > 1:
            return self.equal(a // common, b // common)
        order = [a, b] if self.age(a) >= self.age(b) else [b, a]  # the symbol that came first stays
        for symbol, size in (order, order[::-1]):
            if isinstance(symbol, Var) and symbol not in variables(size):
                raise Equal(symbol, size)
        raise ShapeError("two sizes that must be equal are not", expected=a, got=b)

    def assume(self, condition: Expr, reason: str, builder: GraphBuilder) -> None:
        """Assume `condition` on sizes, for the stated `reason`, which each call checks. If it restricts or replaces a
        single symbol it raises Equal instead, and the module is read again."""
        refined = _refined(condition)
        if refined is not None:
            raise Equal(*refined)
        if isinstance(condition, Op) and condition.name == "eq":
            self._rounds(condition, reason)
            try:
                self.equal(*condition.args)
                return
            except ShapeError:
                pass
        builder.assume(condition, reason)

    def _own(self, name: str, axis: int) -> str:
        """The name of the symbol for an unknown dimension that the module does not name."""
        return "batch" if self.batch == (name, axis) else f"{name}_dim{axis}"

    def written(self, name: str, t: Type, said: Sequence[Any] | None, shape: Sequence[Expr]) -> tuple[Expr, ...]:
        """The shape to declare the input `name` with, whose type in the module is `t` and whose shape in the graph is
        `shape`: sizes that were replaced by rounded expressions stay symbols, since a call's shapes determine these.
        `said[k]` computes dimension k from the module's symbols."""

        def raw(symbol: str) -> Expr:
            number = self.fixed.get(symbol)
            return as_expr(number) if isinstance(number, int) else self.told(self.symbol(symbol))

        results = list(shape)
        for axis, d in enumerate(t.shape or ()):
            place = f"{name}_dim{axis}"
            if place in self.declared and said is not None:
                results[axis] = self.told(self.declared[place])
            elif d is None:
                results[axis] = dim(said[axis](raw)) if said is not None else raw(self._own(name, axis))
        return tuple(results)

    def told(self, e: Expr) -> Expr:
        """`e` with replaced symbols substituted, except for those whose replacement expresses a remainder."""
        for entry in self.joined:
            if entry not in self.rounded and entry[0] in variables(e):
                e = dim(substitute(e, dict([entry])))
        return e

    def _rounds(self, condition: Op, reason: str) -> None:
        """Raise Equal if `condition` says that a symbol has a remainder other than 0: `b % 4 == 1` replaces b by `4*(b
        // 4) + 1`. So does `(b + 3) % 4 == 0`."""
        form = linear(condition.args[0] - condition.args[1])
        match form.terms:
            case ((Op("mod", (dividend, Const(int(divisor)))), sign),) if abs(sign) == 1:
                of = linear(dividend)
                remainder = -form.constant * sign
                r = (remainder - of.constant) % divisor
                if 0 <= remainder < divisor and r and len(of.terms) == 1 and of.terms[0][1] == 1:
                    v = of.terms[0][0]
                    if not isinstance(v, Var):
                        return
                    entry = (v, dim(v // divisor * divisor + r))
                    self.solved.append((condition, reason))
                    self.rounded.append(entry)
                    raise Equal(*entry)

    def age(self, e: Expr) -> int:
        """The position of a symbol in the module's list; -1 for other expressions."""
        names = [v.name for v in self.symbols.values()]
        return names.index(e.name) if isinstance(e, Var) and e.name in names else -1

    def equal_shapes(self, a: Sequence[Expr], b: Sequence[Expr]) -> None:
        if len(a) != len(b):
            raise ShapeError("the operands' ranks differ", expected=show(a), got=show(b))
        for x, y in zip(a, b, strict=True):
            self.equal(x, y)

    def check_fixed(self, label: str) -> None:
        """Raise ModelError if the caller states sizes for names that no dimension of the module has."""
        unknown = [name for name in self.fixed if name not in self.symbols]
        if unknown:
            raise ModelError(
                "no dimension of the inputs has this name",
                where=label,
                expected=", ".join(self.symbols) or "none",
                got=", ".join(unknown),
            )


def _common(a: Expr, b: Expr) -> int:
    """The greatest number that divides all coefficients of two sizes: 3 of `3*n` and `6*m + 3`."""
    forms = linear(a), linear(b)
    return math.gcd(*(c for form in forms for c in (form.constant, *(c for _, c in form.terms))))


def _range(symbol: Var, size: Expr) -> list[Expr]:
    """Conditions that `size`, which replaces `symbol`, is in the symbol's range."""
    results = [size >= (symbol.lo or 0)]
    if symbol.hi is not None:
        results.append(size <= symbol.hi)
    if symbol.multiple > 1:
        results.append(equal(size % symbol.multiple, 0))
    return results


def _refined(condition: Expr) -> tuple[Var, Var] | None:
    """(symbol, a new symbol with a smaller range) for a condition that restricts one symbol: `b % 4 == 0` adds a
    multiple, `b - 2 >= 0` and `b <= 7` add bounds. None for other conditions, and for those that its range implies."""
    if prove(condition) or prove(~condition):
        return None
    match condition:
        case Op("eq", (Op("mod", (Var() as v, Const(int(divisor)))), Const(0))) if divisor > 0:
            return v, _var(v, v.lo, v.hi, lcm(v.multiple, divisor))
        case Op(
            "eq", (Op("mod", (Op("floordiv", (Var() as v, Const(int(inner)))), Const(int(divisor)))), Const(0))
        ) if inner > 0 and divisor > 0 and v.multiple % inner == 0:
            return v, _var(v, v.lo, v.hi, lcm(v.multiple, inner * divisor))
        case Op("ge" | "le" | "gt" | "lt" as name, (a, b)):
            low, high = (a, b) if name in ("le", "lt") else (b, a)
            form = linear(low - high + (1 if name in ("gt", "lt") else 0))  # is not above 0
            match form.terms:
                case ((Var() as v, 1),):
                    high_end = -form.constant
                    return v, _var(v, v.lo, high_end if v.hi is None else min(high_end, v.hi), v.multiple)
                case ((Var() as v, -1),):
                    return v, _var(v, max(form.constant, v.lo or 0), v.hi, v.multiple)
    return None


def _var(v: Var, lo: int | None, hi: int | None, multiple: int) -> Var:
    likely = tuple(n for n in v.likely if (lo or 0) <= n <= (n if hi is None else hi) and n % multiple == 0)
    return Var(v.name, v.dtype, lo, hi, multiple, likely=likely)
