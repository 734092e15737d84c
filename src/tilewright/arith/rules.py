"""Rewrite rules as data: `before -> after` patterns, each true for every value of its letters.

In a pattern `x y z` match any expression of the rule's kind, `p q r` booleans, `c c1 c2` integer literals. The tests
evaluate both sides of every rule on sampled values. Rules are tried in order at the root of a node whose arguments are
simplified already. Linear arithmetic, division and comparisons by bounds are not rules but normal forms: see `forms`,
`division` and `compare`.

Floats: only identities that hold for every IEEE value. `x + 0` is not one (-0 + 0 is +0), nor `x * 0`, nor any
reassociation; `min`/`max` propagate NaN, so absorption fails.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import field
from typing import Any

from tilewright.ir.dtype import DType, boolean
from tilewright.ir.expr import Const, Expr, Op, call, const
from tilewright.ir.rewrite import loads
from tilewright.support.classes import dataclass

Guard = Callable[..., bool]
Binding = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern: an operator over patterns, a letter, or a literal."""

    op: str | None
    args: tuple[Pattern, ...] = ()
    letter: str | None = None
    literal: Any = None


@dataclass(frozen=True, slots=True)
class Rule:
    """`before -> after` on operands of `kind` ("int", "float", "bool", "any"; "int" includes unsigned), if `guard`
    holds of what its letters stand for."""

    before: str
    after: str
    kind: str
    guard: Guard | None = None
    pattern: Pattern = field(init=False)
    result: Pattern = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", parse(self.before))
        object.__setattr__(self, "result", parse(self.after))


_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
}  # fmt: skip
_COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}


def parse(text: str) -> Pattern:
    """The pattern of a one-line Python expression."""
    return _pattern(ast.parse(text, mode="eval").body)


def _pattern(node: ast.expr) -> Pattern:
    match node:
        case ast.Name(id=name):
            return Pattern(None, letter=name)
        case ast.Constant(value=value):
            return Pattern(None, literal=value)
        case ast.BinOp(left=left, op=operator, right=right):
            return Pattern(_BINARY[type(operator)], (_pattern(left), _pattern(right)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Pattern("not", (_pattern(operand),))
        case ast.BoolOp(op=operator, values=values):
            name = "and" if isinstance(operator, ast.And) else "or"
            result = _pattern(values[0])
            for item in values[1:]:
                result = Pattern(name, (result, _pattern(item)))
            return result
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return Pattern(_COMPARE[type(operator)], (_pattern(left), _pattern(right)))
        case ast.Call(func=ast.Name(id=name), args=args):
            return Pattern(name, tuple(_pattern(a) for a in args))
    raise ValueError(f"not a pattern: {ast.unparse(node)}")


# fmt: off
RULES: tuple[Rule, ...] = (
    # Booleans.
    Rule("p and p", "p", "bool"),
    Rule("p or p", "p", "bool"),
    Rule("p and True", "p", "bool"),
    Rule("True and p", "p", "bool"),
    Rule("p and False", "False", "bool"),
    Rule("False and p", "False", "bool"),
    Rule("p or True", "True", "bool"),
    Rule("True or p", "True", "bool"),
    Rule("p or False", "p", "bool"),
    Rule("False or p", "p", "bool"),
    Rule("p and not p", "False", "bool"),
    Rule("(not p) and p", "False", "bool"),
    Rule("p or not p", "True", "bool"),
    Rule("(not p) or p", "True", "bool"),
    Rule("(p and q) and p", "p and q", "bool"),
    Rule("(p and q) and q", "p and q", "bool"),
    Rule("p and (p and q)", "p and q", "bool"),
    Rule("q and (p and q)", "p and q", "bool"),
    Rule("(p or q) or p", "p or q", "bool"),
    Rule("(p or q) or q", "p or q", "bool"),
    Rule("p and (p or q)", "p", "bool"),
    Rule("p or (p and q)", "p", "bool"),
    Rule("(p or q) and p", "p", "bool"),
    Rule("(p and q) or p", "p", "bool"),
    Rule("not not p", "p", "bool"),
    Rule("not True", "False", "bool"),
    Rule("not False", "True", "bool"),
    Rule("eq(p, True)", "p", "bool"),
    Rule("eq(p, False)", "not p", "bool"),
    Rule("ne(p, False)", "p", "bool"),
    Rule("ne(p, True)", "not p", "bool"),
    # Negated comparisons: not for floats, where NaN makes both sides of `<` / `>=` false.
    Rule("not x < y", "y <= x", "int"),
    Rule("not x <= y", "y < x", "int"),
    Rule("not x > y", "x <= y", "int"),
    Rule("not x >= y", "x < y", "int"),
    Rule("not x == y", "x != y", "any"),
    Rule("not x != y", "x == y", "any"),
    # Reflexive comparisons: x == x is false for NaN, so ints only; x < x is false for everything.
    Rule("x == x", "True", "int"),
    Rule("x != x", "False", "int"),
    Rule("x <= x", "True", "int"),
    Rule("x >= x", "True", "int"),
    Rule("x < x", "False", "any"),
    Rule("x > x", "False", "any"),
    # Select.
    Rule("select(p, x, x)", "x", "any"),
    Rule("select(True, x, y)", "x", "any"),
    Rule("select(False, x, y)", "y", "any"),
    Rule("select(not p, x, y)", "select(p, y, x)", "any"),
    Rule("select(p, select(p, x, y), z)", "select(p, x, z)", "any"),
    Rule("select(p, x, select(p, y, z))", "select(p, x, z)", "any"),
    # q is evaluated whatever p is, so it must not load: p may guard its indices.
    Rule("select(p, select(q, x, y), y)", "select(p and q, x, y)", "any", lambda q, **_: not loads(q)),
    Rule("select(p, True, False)", "p", "bool"),
    Rule("select(p, False, True)", "not p", "bool"),
    # Minimum and maximum.
    Rule("min(x, x)", "x", "any"),
    Rule("max(x, x)", "x", "any"),
    Rule("min(min(x, y), y)", "min(x, y)", "int"),
    Rule("min(min(x, y), x)", "min(x, y)", "int"),
    Rule("min(x, min(x, y))", "min(x, y)", "int"),
    Rule("min(y, min(x, y))", "min(x, y)", "int"),
    Rule("max(max(x, y), y)", "max(x, y)", "int"),
    Rule("max(max(x, y), x)", "max(x, y)", "int"),
    Rule("max(x, max(x, y))", "max(x, y)", "int"),
    Rule("max(y, max(x, y))", "max(x, y)", "int"),
    Rule("min(max(x, y), y)", "y", "int"),
    Rule("min(max(x, y), x)", "x", "int"),
    Rule("min(y, max(x, y))", "y", "int"),
    Rule("max(min(x, y), y)", "y", "int"),
    Rule("max(min(x, y), x)", "x", "int"),
    Rule("max(y, min(x, y))", "y", "int"),
    Rule("min(min(x, c1), c2)", "min(x, min(c1, c2))", "int"),
    Rule("max(max(x, c1), c2)", "max(x, max(c1, c2))", "int"),
    Rule("max(min(x, c1), c2)", "c2", "int", lambda c1, c2, **_: c1 <= c2),
    Rule("min(max(x, c1), c2)", "c2", "int", lambda c1, c2, **_: c1 >= c2),
    # Integers that wrap: true modulo any power of two.
    Rule("x + 0", "x", "int"),
    Rule("0 + x", "x", "int"),
    Rule("x - 0", "x", "int"),
    Rule("x - x", "0", "int"),
    Rule("(x + y) - y", "x", "int"),
    Rule("(x + y) - x", "y", "int"),
    Rule("(x - y) + y", "x", "int"),
    Rule("x * 1", "x", "int"),
    Rule("1 * x", "x", "int"),
    Rule("x * 0", "0", "int"),
    Rule("0 * x", "0", "int"),
    Rule("x // 1", "x", "int"),
    Rule("x % 1", "0", "int"),
    Rule("x // 0", "0", "int"),
    Rule("x % 0", "0", "int"),
    Rule("0 // x", "0", "int"),
    Rule("0 % x", "0", "int"),
    Rule("truncdiv(x, 1)", "x", "int"),
    Rule("truncmod(x, 1)", "0", "int"),
    Rule("x % c % c", "x % c", "int"),
    Rule("bitand(x, x)", "x", "int"),
    Rule("bitor(x, x)", "x", "int"),
    Rule("bitxor(x, x)", "0", "int"),
    Rule("bitand(x, 0)", "0", "int"),
    Rule("bitor(x, 0)", "x", "int"),
    Rule("bitxor(x, 0)", "x", "int"),
    Rule("bitnot(bitnot(x))", "x", "int"),
    Rule("shl(x, 0)", "x", "int"),
    Rule("shr(x, 0)", "x", "int"),
    Rule("neg(neg(x))", "x", "int"),
    # Floats: exact for every value, infinities and NaN included.
    Rule("x * 1", "x", "float"),
    Rule("1 * x", "x", "float"),
    Rule("x / 1", "x", "float"),
    Rule("neg(neg(x))", "x", "float"),
    Rule("abs(abs(x))", "abs(x)", "float"),
    Rule("abs(neg(x))", "abs(x)", "float"),
    Rule("x - neg(y)", "x + y", "float"),
    Rule("x + neg(y)", "x - y", "float"),
)
# fmt: on

_BY_OP: dict[str, tuple[Rule, ...]] = {}
for _rule in RULES:
    assert _rule.pattern.op is not None
    _BY_OP[_rule.pattern.op] = (*_BY_OP.get(_rule.pattern.op, ()), _rule)

_KINDS = {
    "any": ("float", "int", "uint", "bool"),
    "int": ("int", "uint"),
    "float": ("float",),
    "bool": ("bool",),
}


def apply(e: Op) -> Expr | None:
    """`e` rewritten by the first rule that matches at its root; None if none does."""
    for rule in _BY_OP.get(e.name, ()):
        binding: Binding = {}
        if match(rule.pattern, e, rule.kind, binding) and (rule.guard is None or rule.guard(**binding)):
            return build(rule.result, binding, _operand_type(e, binding))
    return None


def match(pattern: Pattern, e: Expr, kind: str, binding: Binding) -> bool:
    """Whether `e` has the form of `pattern`, for operands of `kind`. What each letter stands for is added to
    `binding`."""
    if pattern.op is not None:
        if type(e) is not Op or e.name != pattern.op:
            return False
        return all(match(p, a, kind, binding) for p, a in zip(pattern.args, e.args, strict=True))
    letter = pattern.letter
    if letter is None:
        return (
            type(e) is Const
            and e.value == pattern.literal
            and (e.dtype is boolean) == isinstance(pattern.literal, bool)
        )
    bound = binding.get(letter)
    if letter[0] == "c":
        if type(e) is not Const or not e.dtype.is_int:
            return False
        if bound is None:
            binding[letter] = e.value
            return True
        return bool(bound == e.value)
    if bound is not None:
        return bound is e
    if e.dtype is not boolean if letter in "pqr" else e.dtype.kind not in _KINDS[kind]:
        return False
    binding[letter] = e
    return True


def _operand_type(e: Op, binding: Binding) -> DType:
    for letter, bound in binding.items():
        if letter in "xyz":
            result: DType = bound.dtype
            return result
    return e.dtype


def build(pattern: Pattern, binding: Binding, dtype: DType) -> Expr:
    """The expression that `pattern`, the right-hand side of a rule, stands for; its integer literals get type
    `dtype`."""
    if pattern.letter is not None:
        bound = binding[pattern.letter]
        return bound if isinstance(bound, Expr) else const(bound, dtype)
    if pattern.op is None:
        return const(pattern.literal) if isinstance(pattern.literal, bool) else const(pattern.literal, dtype)
    args = tuple(build(p, binding, dtype) for p in pattern.args)
    if pattern.op in ("min", "max") and all(isinstance(a, Const) for a in args):
        values = [a.value for a in args if isinstance(a, Const)]
        return const(min(values) if pattern.op == "min" else max(values), dtype)
    return call(pattern.op, *args)
