"""Parsing of expressions and element types, by precedence climbing."""

from __future__ import annotations

from tilewright.ir.c_functions import PREFIX
from tilewright.ir.dtype import BY_NAME, DType, boolean, f32, i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.lexer import Cursor, Token
from tilewright.ir.loops import TRUE
from tilewright.ir.reduce import Reduce, Reducer
from tilewright.ir.scalar_ops import OPS
from tilewright.ir.text import KEYWORDS, nan_of_bits
from tilewright.support.errors import ExpressionError

_INFIX = {info.symbol: info for info in OPS.values() if info.symbol and info.arity == 2}
_FUNCTIONS = {name for name, info in OPS.items() if info.rule != "cast"}
_NEGATION = OPS["neg"].precedence
_NOT = OPS["not"].precedence
_COMPARISON = OPS["eq"].precedence
_MAX_CHAIN = 4000
"""The largest number of binary operators of one precedence in a row that the parser accepts without parentheses."""


def expr(c: Cursor, least: int = 0) -> Expr:
    """Parse an expression whose operators bind at least as strongly as `least`."""
    with c.nested():
        left = _operand(c)
        compared = False
        for _ in range(_MAX_CHAIN):
            token = c.token
            info = _INFIX.get(token.text) if token.kind in ("sign", "name") else None
            if info is None or info.precedence < least:
                return left
            if info.precedence == _COMPARISON and compared:
                c.fail("comparisons do not chain; use parentheses")
            compared = info.precedence == _COMPARISON
            c.position += 1
            left = operator(c, token, info.name, (left, expr(c, info.precedence + 1)))
        c.fail(f"more than {_MAX_CHAIN} operators in a row")


def operator(c: Cursor, token: Token, name: str, args: tuple[Expr, ...], dtype: DType | None = None) -> Expr:
    try:
        return Op(name, args, dtype)
    except ExpressionError as error:
        c.fail(error.what, token)


def _operand(c: Cursor) -> Expr:
    token = c.token
    if token.kind == "number":
        return literal(c)
    if c.accept("&"):
        return _numbered(c)
    if c.accept("("):
        if c.sees("&") and c.tokens[c.position + 2].text == ":=":
            return _define(c)
        inner = expr(c)
        c.expect(")")
        return inner
    if c.accept("-"):
        if c.token.kind == "number":
            return literal(c, negative=True)
        return operator(c, token, "neg", (expr(c, _NEGATION),))
    if c.accept("not"):
        return operator(c, token, "not", (expr(c, _NOT),))
    if token.kind == "name" and token.text in ("true", "false"):
        c.position += 1
        return Const(token.text == "true", boolean)
    if token.kind == "name" and c.tokens[c.position + 1].text == "(":
        if token.text == "reduce":
            return _reduce(c)
        if token.text not in KEYWORDS:
            return _call(c)
    name = c.name("an expression")
    if c.accept("["):
        indices = tuple(c.separated(expr, "]"))
        return _load(c, token, name, indices)
    return variable(c, name)


def _define(c: Cursor) -> Expr:
    """Parse, after `(`, the definition of a numbered subexpression, `&1 := expr)`, which later text refers to as
    `&1`."""
    c.expect("&")
    number = c.integer()
    c.expect(":=")
    inner = c.scope.numbered[number] = expr(c)
    c.expect(")")
    return inner


def _numbered(c: Cursor) -> Expr:
    token = c.token
    entry = c.scope.numbered.get(c.integer())
    if entry is None:
        c.fail("no part of this number came before", token)
    return entry


def literal(c: Cursor, negative: bool = False) -> Const:
    """Parse a number, after a minus sign if `negative`, with an optional type: `3`, `0.5`, `3:i32`,
    `nan(0x7ff8000000000001)`."""
    token = c.advance()
    text, _, suffix = token.text.partition(":")
    is_float = not text.isdigit()
    dtype = BY_NAME[suffix] if suffix else f32 if is_float else i64
    try:
        if dtype.is_float:
            value = nan_payload(c, float(text), token)
            return Const(-value if negative else value, dtype)
        if is_float:
            c.fail(f"{text} is not an integer", token)
        number = c.digits(token, text)
        return Const(-number if negative else number, dtype)
    except ExpressionError as error:
        c.fail(error.what, token)


def nan_payload(c: Cursor, value: float, token: Token) -> float:
    if value == value or not c.accept("("):
        return value
    bits = c.advance()
    if bits.kind != "hex" or len(bits.text) > 18:
        c.fail("cannot read this", bits, expected="the 64 bits of a NaN as 0x...")
    value = nan_of_bits(int(bits.text, 16))
    if value == value:
        c.fail("these bits are not a NaN", bits)
    c.expect(")")
    return value


def _load(c: Cursor, token: Token, name: str, indices: tuple[Expr, ...]) -> Expr:
    try:
        return Load(buffer_named(c, name, token), indices)
    except ExpressionError as error:
        c.fail(error.what, token)


def buffer_named(c: Cursor, name: str, token: Token) -> Buffer:
    buffer = c.scope.buffers.get(name)
    if buffer is None:
        c.fail(f"no buffer is named {name!r}", token)
    return buffer


def _call(c: Cursor) -> Expr:
    token = c.advance()
    c.expect("(")
    name = token.text
    if name in BY_NAME:
        value = expr(c)
        c.expect(")")
        return operator(c, token, "cast", (value,), BY_NAME[name])
    if name == "bitcast":
        value = expr(c)
        c.expect(",")
        dtype = element_type(c)
        c.expect(")")
        return operator(c, token, name, (value,), dtype)
    if name == "extern":
        return _extern(c, token)
    if name not in _FUNCTIONS:
        c.fail(f"no scalar operator is named {name!r}", token)
    return operator(c, token, name, tuple(c.separated(expr, ")")))


def _extern(c: Cursor, token: Token) -> Expr:
    """Parse, after `extern(`, a C function, the type of its result, and its arguments."""
    name = c.name("the name of a C function")
    c.expect(",")
    dtype = element_type(c)
    args: tuple[Expr, ...] = ()
    if c.accept(","):
        args = tuple(c.separated(expr, ")"))
    else:
        c.expect(")")
    return operator(c, token, PREFIX + name, args, dtype)


def element_type(c: Cursor) -> DType:
    token = c.token
    result = BY_NAME.get(token.text) if token.kind == "name" else None
    if result is None:
        c.fail("cannot read this", expected="an element type")
    c.position += 1
    return result


def _reduce(c: Cursor) -> Expr:
    start = c.advance()
    c.expect("(")
    outer = c.scope.variables
    name = c.name("the reducer's name")
    c.expect("(")
    lhs = tuple(c.separated(_typed_var, ";"))
    rhs = tuple(c.separated(_typed_var, ")"))
    c.scope.variables = outer | {v.name: v for v in (*lhs, *rhs)}
    c.expect("->")
    c.expect("(")
    result = tuple(c.separated(expr, ")"))
    c.scope.variables = outer
    c.expect("from")
    c.expect("(")
    identity = tuple(c.separated(expr, ")"))
    c.expect("over")
    axes = tuple(c.separated(axis, "of"))
    values = [expr(c)]
    while c.accept(","):
        values.append(expr(c))
    condition = expr(c) if c.accept("if") else TRUE
    index = c.integer() if c.accept("at") else 0
    c.expect(")")
    if not 0 <= index < len(values):
        c.fail(f"a reduction of {len(values)} values has no number {index}", start)
    return Reduce(Reducer(name, lhs, rhs, result, identity), tuple(values), axes, condition, index)


def _typed_var(c: Cursor) -> Var:
    name = c.name()
    c.expect(":")
    return Var(name, element_type(c))


def axis(c: Cursor) -> tuple[Var, Expr]:
    var = bound_var(c)
    c.expect("in")
    _zero_to(c)
    return var, expr(c)


def _zero_to(c: Cursor) -> None:
    token = c.advance()
    if token.text != "0":
        c.fail("ranges start at 0", token)
    c.expect("..")


def bound_var(c: Cursor) -> Var:
    """Parse the name of the variable that a loop, block or reduction binds."""
    return variable(c, c.name("a variable"))


def variable(c: Cursor, name: str) -> Var:
    """The variable called `name`: as declared, else an i64 variable without bounds."""
    declared = c.scope.variables.get(name)
    return Var(name) if declared is None else declared


def skip_group(c: Cursor) -> None:
    """Skip a parenthesised group of tokens."""
    start = c.expect("(")
    level = 1
    while level:
        token = c.advance()
        if token.kind == "end":
            c.fail("this parenthesis is not closed", start)
        if token.kind == "sign":
            level += (token.text == "(") - (token.text == ")")


def where_clause(c: Cursor) -> None:
    """Parse `where n in 1..64 % 8 likely 8 32, t: i32`, if it comes next, which declares variables that are not i64
    without bounds."""
    if not c.accept("where"):
        return
    _described_var(c)
    while c.accept(","):
        _described_var(c)


def _described_var(c: Cursor) -> None:
    token = c.token
    name = c.name("a variable")
    dtype = element_type(c) if c.accept(":") else i64
    lo = hi = None
    if c.accept("in"):
        lo = None if c.sees("..") else c.integer()
        c.expect("..")
        hi = c.integer() if c.token.kind == "number" or c.sees("-") else None
    multiple = c.integer() if c.accept("%") else 1
    likely = []
    if c.accept("likely"):
        likely.append(c.integer())
        while c.token.kind == "number" or c.sees("-"):
            likely.append(c.integer())
    if name in c.scope.variables:
        c.fail(f"{name!r} is described twice", token)
    c.scope.variables[name] = Var(name, dtype, lo, hi, multiple, likely=tuple(likely))


def number_or_bool(c: Cursor) -> int | float | bool:
    """Parse a number as Python has it: `3`, `-0.5`, `inf`, `true`."""
    token = c.token
    if token.kind == "name" and token.text in ("true", "false"):
        c.position += 1
        return token.text == "true"
    negative = c.accept("-")
    token = c.token
    if token.kind != "number" or ":" in token.text:
        c.fail("cannot read this", expected="a number, true, false or a string")
    c.position += 1
    if token.text.isdigit():
        number = c.digits(token)
        return -number if negative else number
    value = nan_payload(c, float(token.text), token)
    return -value if negative else value
