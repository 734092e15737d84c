"""The interpreter's expressions: each becomes one closure over variables (one-element lists) and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from tilewright.codegen.interpret.memory import InterpretError, Memory, Thunk, position_in
from tilewright.codegen.interpret.scalars import bitcaster, caster, function, value_of
from tilewright.ir.c_functions import PREFIX, apply
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.rewrite import variables

WRITTEN_OUT = 1000
"""The least number of operations of an expression for which common subexpressions are searched."""


Terms = dict[Var | None, int]
"""A linear expression: the factor of each variable, and the constant under None."""


class Shared:
    """The memoised subexpressions of an expression, and the number of the current evaluation."""

    def __init__(self, parts: set[Expr]) -> None:
        self.parts = parts
        self.turn = 0

    def memoised(self, compute: Thunk) -> Thunk:
        """A closure that computes a subexpression once per evaluation, and then returns the same value until the next
        one."""
        turn, value = -1, None

        def get() -> Any:
            nonlocal turn, value
            if turn != self.turn:
                value, turn = compute(), self.turn
            return value

        return get


def _standing_twice(e: Expr) -> set[Expr]:
    """The subexpressions that occur at several places of `e`."""
    seen: set[Expr] = set()
    twice: set[Expr] = set()
    left = [e]
    while left:
        part = left.pop()
        if part in seen:
            twice.add(part)
            continue
        seen.add(part)
        left += part.children
    return {part for part in twice if isinstance(part, Op)}


class Scope:
    """The scope of a function: its variables and buffers, and the closures of expressions so far.

    `cells` hold the values of variables, `fixed` names those that never change (symbols), `loops` has the extents of
    loop variables and block iterators, `ends` their largest values if known, `memory` the elements of buffers. `where`
    is the place that errors name.
    """

    def __init__(self, where: str, values: Mapping[Var, int]) -> None:
        self.where = where
        self.cells: dict[Var, list[Any]] = {v: [value] for v, value in values.items()}
        self.fixed: set[Var] = set(values)
        self.loops: dict[Var, Expr] = {}
        self.ends: dict[Var, int] = {}
        self.memory: dict[Buffer, Memory] = {}
        self.exprs: dict[Expr, Thunk] = {}
        self.sizes: dict[Expr, int] = {}
        self.shared: Shared | None = None

    def expr(self, e: Expr) -> Thunk:
        """A closure that evaluates `e`."""
        done = self.exprs.get(e)
        if done is None:
            done = self._affine(e)
            if done is None and self.shared is None and self._written_out(e) > WRITTEN_OUT:
                done = self._once(e)
            if done is None:
                done = self._expr(e)
            if self.shared is not None and e in self.shared.parts:
                done = self.shared.memoised(done)
            self.exprs[e] = done
        return done

    def _written_out(self, e: Expr) -> int:
        """The number of operations of `e`, where a subexpression counts as often as it occurs."""
        size = self.sizes.get(e)
        if size is None:
            size = self.sizes[e] = 1 + sum(map(self._written_out, e.children))
        return size

    def _once(self, e: Expr) -> Thunk:
        """A closure that evaluates `e` and computes each of its common subexpressions at most once per evaluation, when
        it is needed."""
        inner = copy(self)
        inner.exprs, shared = {}, Shared(_standing_twice(e))
        inner.shared = shared
        value = inner.expr(e)

        def run() -> Any:
            shared.turn += 1
            return value()

        return run

    def _expr(self, e: Expr) -> Thunk:
        match e:
            case Const():
                value = value_of(e.dtype)(e.value)
                return lambda: value
            case Var():
                cell = self.cell(e)
                return lambda: cell[0]
            case Load():
                return self._load(e)
            case Op():
                return self._op(e)
        raise InterpretError(f"{type(e).__name__} cannot be interpreted; lower it first", where=str(e))

    def cell(self, v: Var) -> list[Any]:
        """The list of one element that holds a variable's value."""
        cell = self.cells.get(v)
        if cell is None:
            raise InterpretError(f"the variable {v.name!r} is not defined", where=self.where)
        return cell

    def _op(self, e: Op) -> Thunk:
        args = [self.expr(a) for a in e.args]
        match e.name:
            case "select":
                condition, then, orelse = args
                return lambda: then() if condition() else orelse()
            case "and":
                left, right = args
                return lambda: left() and right()
            case "or":
                left, right = args
                return lambda: left() or right()
            case "lookup":
                position, *entries = args
                table, last = [entry() for entry in entries], len(entries) - 1
                return lambda: table[min(max(position(), 0), last)]
            case "cast" | "bitcast":
                convert = (caster if e.name == "cast" else bitcaster)(e.args[0].dtype, e.dtype)
                (only,) = args
                return lambda: convert(only())
            case name if name.startswith(PREFIX):
                return lambda: value_of(e.dtype)(apply(name, *[a() for a in args]))
        f = function(e.name, e.args[0].dtype)
        if len(args) == 1:
            (only,) = args
            return lambda: f(only())
        if len(args) == 2:
            left, right = args
            return lambda: f(left(), right())
        first, second, third = args
        return lambda: f(first(), second(), third())

    def _affine(self, e: Expr) -> Thunk | None:
        """A single closure that evaluates `e`, if it is a sum of loop variables and symbols with constant factors, as
        indices usually are; else None."""
        if e.dtype is not i64 or not isinstance(e, Op):
            return None
        terms = self._terms(e)
        return None if terms is None else self._linear(terms)

    def _linear(self, terms: Terms) -> Thunk:
        """A closure that evaluates the linear expression `terms`."""
        cells, constant = self._factors(terms)
        match cells:
            case []:
                return lambda: constant
            case [(a, fa)]:
                return lambda: a[0] * fa + constant
            case [(a, fa), (b, fb)]:
                return lambda: a[0] * fa + b[0] * fb + constant
            case [(a, fa), (b, fb), (c, fc)]:
                return lambda: a[0] * fa + b[0] * fb + c[0] * fc + constant
            case [(a, fa), (b, fb), (c, fc), (d, fd)]:
                return lambda: a[0] * fa + b[0] * fb + c[0] * fc + d[0] * fd + constant
            case [(a, fa), (b, fb), (c, fc), (d, fd), (e, fe)]:
                return lambda: a[0] * fa + b[0] * fb + c[0] * fc + d[0] * fd + e[0] * fe + constant
            case several:
                return lambda: sum([cell[0] * factor for cell, factor in several]) + constant

    def _factors(self, terms: Terms) -> tuple[list[tuple[list[Any], int]], int]:
        """The variables of a linear expression as (cell, factor), and its constant."""
        cells = [(self.cells[v], factor) for v, factor in terms.items() if v is not None and factor]
        return cells, terms.get(None, 0)

    def _inside(self, terms: Terms, extent: int) -> bool:
        """Whether the linear expression `terms` is known to be in 0..extent for all values of the loop variables."""
        low = high = terms.get(None, 0)
        for v, factor in terms.items():
            if v is None:
                continue
            end = self.ends.get(v)
            if end is None:
                return False
            low, high = low + min(0, factor * end), high + max(0, factor * end)
        return low >= 0 and high < extent

    def flat(self, buffer: Buffer, indices: Sequence[Expr]) -> Terms | None:
        """The row-major position of the element `indices` as a linear expression, if every index is known to be inside
        its extent, so that none has to be checked at run time; else None."""
        memory = self.memory.get(buffer)
        if memory is None or not self.is_fixed(buffer) or len(memory.shape) != len(indices):
            return None
        flat: Terms = {None: 0}
        for index, extent in zip(indices, memory.shape, strict=True):
            terms = self._terms(index)
            if terms is None or not self._inside(terms, extent):
                return None
            flat = {v: flat.get(v, 0) * extent + terms.get(v, 0) for v in {**flat, **terms}}
        return flat

    def _terms(self, e: Expr) -> Terms | None:
        """`e` as a linear expression of loop variables and symbols; None if it is not linear. Variables of `let` are
        not accepted, since loaded values may overflow."""
        match e:
            case Const(value) if abs(value) < 1 << 31:
                return {None: value}
            case Var() if e in self.loops:
                return {e: 1}
            case Var() if e in self.fixed:
                return {None: self.cells[e][0]}
            case Op("add" | "sub" | "mul" as name, (left, right)):
                a, b = self._terms(left), self._terms(right)
                if a is None or b is None:
                    return None
                if name != "mul":
                    sign = 1 if name == "add" else -1
                    return {v: a.get(v, 0) + sign * b.get(v, 0) for v in {**a, **b}}
                if set(b) <= {None}:
                    return {v: factor * b.get(None, 0) for v, factor in a.items()}
                if set(a) <= {None}:
                    return {v: factor * a.get(None, 0) for v, factor in b.items()}
        return None

    def _load(self, e: Load) -> Thunk:
        flat = self.flat(e.buffer, e.indices)
        if flat is None:
            position = self.position(e.buffer, e.indices)
            data = self.memory[e.buffer].data
            return lambda: data[position()]
        data = self.memory[e.buffer].data
        match self._factors(flat):
            case [], at:
                return lambda: data[at]
            case [(a, fa)], at:
                return lambda: data[a[0] * fa + at]
            case [(a, fa), (b, fb)], at:
                return lambda: data[a[0] * fa + b[0] * fb + at]
            case [(a, fa), (b, fb), (c, fc)], at:
                return lambda: data[a[0] * fa + b[0] * fb + c[0] * fc + at]
            case [(a, fa), (b, fb), (c, fc), (d, fd)], at:
                return lambda: data[a[0] * fa + b[0] * fb + c[0] * fc + d[0] * fd + at]
        position = self._linear(flat)
        return lambda: data[position()]

    def position(self, buffer: Buffer, indices: Sequence[Expr]) -> Thunk:
        """A closure that computes the row-major position of the element `indices` of a buffer, with each index checked
        against the shape."""
        memory = self.memory.get(buffer)
        if memory is None:
            raise InterpretError(f"the buffer {buffer.name!r} is not declared", where=self.where)
        flat = self.flat(buffer, indices)
        if flat is not None:
            return self._linear(flat)
        index = [self.expr(i) for i in indices]
        if not self.is_fixed(buffer) or len(index) > 4:
            return lambda: memory.position(tuple([i() for i in index]))
        if not index:
            return lambda: 0
        return position_in(memory, index)

    def is_fixed(self, buffer: Buffer) -> bool:
        """Whether a buffer's shape depends on symbols alone, so that it is known before the function runs."""
        return all(v in self.fixed for extent in buffer.shape for v in variables(extent))
