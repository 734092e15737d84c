"""Simplify a flat program: expressions by the facts about enclosing loops and conditions, and remove dead statements.

    for i in 0..1 { if i < n { A[i*4 // 4] = x } }   ->   A[0] = x                 (n >= 1)

Loops of one iteration are replaced by their body, loops of none are removed. Conditions proven true or false disappear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.ir.expr import Const, Expr, Load, Op, Var, const, is_const
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, PrimFunc, Region, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import exprs_of, loads, substitute_stmt, variables, walk, walk_expr

EMPTY = Seq(())


def simplify_loops(func: PrimFunc) -> PrimFunc:
    """The function with every expression simplified."""
    body = simplify_stmt(func.body)
    return func if body is func.body else func.with_body(body)


def simplify_stmt(stmt: Stmt, analyzer: Analyzer | None = None) -> Stmt:
    """`stmt` simplified; the analyzer knows the extents of its own and of enclosing loops. Returns `Seq(())` if nothing
    remains."""
    return _Simplifier(analyzer or analyzer_of(stmt)).statement(stmt) or EMPTY


def analyzer_of(stmt: Stmt) -> Analyzer:
    """An analyzer with the extents of the loops inside a statement."""
    return Analyzer({s.var: s.extent for s in walk(stmt) if isinstance(s, For)})


class _Simplifier:
    """Rewrites with one analyzer; the branch of a condition is rewritten with a new one that knows the condition."""

    __slots__ = ("an", "facts")

    def __init__(self, analyzer: Analyzer, facts: tuple[Expr, ...] = ()) -> None:
        self.an = analyzer
        self.facts = facts

    def statement(self, s: Stmt) -> Stmt | None:
        match s:
            case For():
                return self.loop(s)
            case Store():
                return self.store(s)
            case Seq(stmts):
                retained = [r for c in stmts if (r := self.statement(c)) is not None]
                return None if not retained else s if _same(retained, stmts) else seq(retained)
            case If():
                return self.branch(s)
            case Let():
                return self.let(s)
            case Allocate():
                inner = self.statement(s.body)
                return None if inner is None else s if inner is s.body else replace(s, body=inner)
            case Intrinsic():
                return replace(s, outputs=tuple(map(self.region, s.outputs)), inputs=tuple(map(self.region, s.inputs)))
        return s

    def store(self, s: Store) -> Stmt | None:
        an = self.an
        indices = tuple([an.simplify(i) for i in s.indices])
        value = an.simplify(s.value)
        if type(value) is Load and value.buffer == s.buffer and value.indices == indices:
            return None
        if value is s.value and _same(indices, s.indices):
            return s
        return Store(s.buffer, indices, value)

    def region(self, r: Region) -> Region:
        return replace(r, ranges=tuple((self.an.simplify(a), self.an.simplify(b)) for a, b in r.ranges))

    def loop(self, s: For) -> Stmt | None:
        extent = self.an.simplify(s.extent)
        most = self.an.bounds(extent).hi
        if most is not None and most <= 0:
            return None
        inside = s.body
        if type(extent) is Const and extent.value == 1 and extent is not self.an.extents.get(s.var):
            # Known only now, so the analyzer does not know yet that the variable is 0.
            inside = substitute_stmt(inside, {s.var: const(0)})
        body = self.statement(inside)
        if body is None:
            return None
        if type(extent) is Const and extent.value == 1 and s.kind != "thread":
            # The analyzer has put 0 for the variable wherever it stood.
            return body
        if extent is s.extent and body is s.body:
            return s
        return replace(s, extent=extent, body=body)

    def branch(self, s: If) -> Stmt | None:
        condition = self.an.simplify(s.condition)
        if type(condition) is Const:
            selected = s.then if condition.value else s.orelse
            return None if selected is None else self.statement(selected)
        if self.excluded(condition):
            return None if s.orelse is None else self.statement(s.orelse)
        fixed = _fixed(condition)
        then = self.under(condition, s.then).statement(substitute_stmt(s.then, fixed) if fixed else s.then)
        orelse = None
        if s.orelse is not None:
            orelse = self.under(self.an.simplify(~condition), s.orelse).statement(s.orelse)
        if then is None:
            return None if orelse is None else If(self.an.simplify(~condition), orelse)
        if condition is s.condition and then is s.then and orelse is s.orelse:
            return s
        return If(condition, then, orelse)

    def excluded(self, condition: Expr) -> bool:
        """Whether an enclosing condition on quotients or remainders contradicts `condition`. It is tested from that
        side: from `i // 3 == 1` follows that `i < 3` is false, while `i < 3` is no fact that excludes `i // 3 == 1`."""
        own = set(variables(condition))
        digits = [f for f in self.facts if _has_digits(f) and not own.isdisjoint(variables(f))]
        return bool(digits) and contradict(digits, (condition,), self.an)

    def under(self, condition: Expr, body: Stmt) -> _Simplifier:
        """The simplifier for `body`, which runs only where `condition` holds."""
        if not _may_decide(condition, body):
            return self
        return _Simplifier(self.an.also(condition), (*self.facts, condition))

    def let(self, s: Let) -> Stmt | None:
        value = self.an.simplify(s.value)
        if type(value) is Const or (type(value) is Var and not _says_more(s.var, value)):
            return self.statement(substitute_stmt(s.body, {s.var: value}))
        body = self.statement(s.body)
        return (
            None if body is None else s if value is s.value and body is s.body else replace(s, value=value, body=body)
        )


def contradict(conditions: Iterable[Expr], others: Iterable[Expr], an: Analyzer) -> bool:
    """Whether one of `conditions` is proven false where `others` hold. Nothing is assumed about values from memory."""
    known = Analyzer(an.extents, [c for c in others if not loads(c)])
    return any(is_const(known.simplify(c), False) for c in conditions if not loads(c))


def _has_digits(e: Expr) -> bool:
    return any(type(x) is Op and x.name in ("floordiv", "mod") for x in walk_expr(e))


def _says_more(name: Var, value: Var) -> bool:
    """Whether the variable `name`, bound to the variable `value`, has a narrower range."""
    higher = name.lo is not None and (value.lo is None or value.lo < name.lo)
    return higher or (name.hi is not None and (value.hi is None or value.hi > name.hi))


_DECIDED = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "min", "max", "floordiv", "mod"))


def _may_decide(condition: Expr, body: Stmt) -> bool:
    """Whether `body` contains an expression that a fact may simplify and that shares a variable with the condition."""
    known = set(variables(condition))
    for s in walk(body):
        for e in exprs_of(s):
            for node in walk_expr(e):
                if type(node) is Op and node.name in _DECIDED:
                    if not known.isdisjoint(variables(node)):
                        return True
    return False


def _fixed(condition: Expr) -> dict[Var, Expr]:
    """`{v: constant}` of a condition `v == constant`; {} for other conditions."""
    if type(condition) is Op and condition.name == "eq":
        a, b = condition.args
        if type(a) is Var and type(b) is Const:
            return {a: b}
    return {}


def _same(a: Sequence[object], b: Sequence[object]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


__all__ = ["EMPTY", "contradict", "simplify_loops", "simplify_stmt"]
