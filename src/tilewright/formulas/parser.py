"""Parses text to a `Program`, by recursive descent. Nothing is executed; every error says where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from tilewright.formulas.functions import ARITY, CONSTANTS, OUTSIDE, is_conversion
from tilewright.formulas.lexer import Token, tokens_of
from tilewright.formulas.source import At, Source
from tilewright.formulas.syntax import (
    ASSIGNMENTS,
    REDUCERS,
    Apply,
    Declaration,
    Name,
    Node,
    Number,
    Program,
    Range,
    Read,
    Reducer,
    Reduction,
    Size,
    Statement,
    conjunction,
)

T = TypeVar("T")

MAX_DEPTH = 64
"""The largest number of levels of nesting, and of operators, in one expression."""
MAX_STATEMENTS = 100
MAX_INDICES = 12
"""The largest number of indices of a tensor."""

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
BINDING: dict[str, int] = {"if": 0, "or": 1, "and": 2, **dict.fromkeys(COMPARISONS, 4), "+": 5, "-": 5}
BINDING |= {"*": 6, "/": 6, "//": 6, "%": 6, "**": 8}
"""How strongly operators bind, as Python's do; "not" is 3, a sign before an operand 7."""
KEYWORDS = frozenset({"where", "in", "if", "else", "and", "or", "not", "return"})


def parse_program(
    source: Source, constants: Mapping[str, bool | int | float] | None = None, limit: int = MAX_DEPTH, terms: int = 0
) -> Program:
    """Parse a program. Raises ComprehensionError.

    Args:
        constants: numbers by the names that stand for them.
        limit: the greatest depth of an expression, and the largest number of operators in one.
        terms: the largest number of operators in an expression if that is more than `limit`.
    """
    return _Parser(source, constants or {}, limit, terms).program()


def parse_declaration(name: str, source: Source) -> Declaration:
    """Parse the declaration of the input `name` that follows a colon: `f32[M, K]`."""
    parser = _Parser(source, {}, MAX_DEPTH, 0)
    result = parser.declared(Name(name))
    if parser.token.kind != "end":
        parser.fail("a type such as f32[M, K]")
    return result


class _Parser:
    def __init__(self, source: Source, constants: Mapping[str, bool | int | float], limit: int, terms: int) -> None:
        self.source = source
        self.limit = limit
        self.most = max(limit, terms)
        self.constants = constants
        self.tokens = tokens_of(source)
        self.position = 0
        self.depth = 0
        self.terms = 0

    # -- tokens --------------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    @property
    def after(self) -> Token:
        """The token after the current one; the last one at the end."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.token
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def fail(self, expected: str, hint: str | None = None) -> NoReturn:
        self.source.fail("this does not parse", self.token.at, expected=expected, got=self.token, hint=hint)

    def is_sign(self, *texts: str) -> bool:
        return self.token.kind == "sign" and self.token.text in texts

    def is_word(self, *words: str) -> bool:
        return self.token.kind == "name" and self.token.text in words

    def sign(self, text: str) -> Token:
        if not self.is_sign(text):
            self.fail(repr(text))
        return self.take()

    def accept(self, text: str) -> bool:
        if self.is_sign(text):
            self.take()
            return True
        return False

    def name(self, what: str) -> Name:
        if self.token.kind != "name" or self.token.text in KEYWORDS:
            self.fail(what)
        token = self.take()
        return Name(token.text, token.at)

    def listed(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Parse items by `item` with commas between, up to the sign `close`."""
        results: list[T] = []
        while not self.is_sign(close):
            results.append(item())
            if not self.is_sign(close):
                if not self.is_sign(","):
                    self.fail(f"',' or {close!r}")
                self.take()
        self.take()
        return tuple(results)

    def span_from(self, start: At) -> At:
        """The offsets from the piece `start` to the end of the token before the current one."""
        return start[0], self.tokens[self.position - 1].at[1]

    # -- statements ----------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        declarations: list[Declaration] = []
        statements: list[Statement] = []
        results: tuple[Name, ...] | None = None
        self.skip_lines()
        while self.token.kind != "end":
            if self.is_word("return"):
                results = self.result()
                self.skip_lines()
                break
            if self.after.kind == "sign" and self.after.text == ":" and self.token.kind == "name":
                declarations.append(self.declaration())
            else:
                statements.append(self.statement())
            if self.token.kind not in ("newline", "end"):
                self.fail("a line end or ';'")
            self.skip_lines()
            if len(declarations) + len(statements) > MAX_STATEMENTS:
                self.source.fail("there are too many statements", self.token.at, expected=f"at most {MAX_STATEMENTS}")
        if self.tokens[self.position].kind != "end":
            self.fail("nothing behind 'return'")
        if not statements:
            hint = 'for example "C[m, n] +! A[m, k] * B[k, n]"'
            self.source.fail("there is no statement", self.token.at, hint=hint)
        return Program(tuple(declarations), tuple(statements), results)

    def skip_lines(self) -> None:
        while self.token.kind == "newline":
            self.take()

    def result(self) -> tuple[Name, ...]:
        self.take()
        names = [self.name("the name of a result")]
        while self.accept(","):
            names.append(self.name("the name of a result"))
        return tuple(names)

    def declaration(self) -> Declaration:
        name = self.name("the name of an input")
        self.sign(":")
        return self.declared(name)

    def declared(self, name: Name) -> Declaration:
        dtype = None if self.is_sign("[") else self.name("a type or '['").name
        self.sign("[")
        sizes = self.listed(self.expression, "]")
        return Declaration(name.name, dtype, sizes, self.span_from(name.at))

    def statement(self) -> Statement:
        target = self.name("the name of a result")
        indices: tuple[Name, ...] = ()
        if self.accept("["):
            indices = self.listed(lambda: self.name("an index: a name"), "]")
        at = self.span_from(target.at)
        reducer = self.assignment()
        self.terms = 0
        body = self.expression()
        ranges, condition = self.clauses()
        return Statement(target.name, indices, reducer, body, ranges, condition, at)

    def assignment(self) -> Reducer | None:
        token = self.token
        if self.accept("="):
            return None
        if token.kind == "assign" and token.text in ASSIGNMENTS:
            return ASSIGNMENTS[self.take().text]
        if token.kind == "assign":
            sign = token.text[0]
            right = f"write {sign}!" if sign in "+*" else "write ="
            hint = f"{right}: a result starts anew; to add to another tensor write it on the right"
            self.source.fail("nothing is updated in place", token.at, got=token, hint=hint)
        self.fail("'=' or a reduction: +! *! max! min! any! all! argmax! argmin!")

    def clauses(self) -> tuple[tuple[Range, ...], Node | None]:
        """Parse the clauses after `where`, which may begin a line; returns the ranges and the conjunction of the
        conditions."""
        if self.token.kind == "newline" and self.token.text == "\n" and self.after.text == "where":
            self.take()
        if not self.is_word("where"):
            return (), None
        self.take()
        ranges: list[Range] = []
        conditions: list[Node] = []
        while True:
            if self.token.kind == "name" and self.after.kind == "name" and self.after.text == "in":
                ranges.append(self.range_of(self.name("an index")))
            else:
                self.terms = 0
                conditions.append(self.expression())
            if not self.accept(","):
                return tuple(ranges), conjunction(conditions)

    def range_of(self, index: Name) -> Range:
        self.take()  # "in"
        self.terms = 0
        lo = self.expression()
        if not self.is_sign(":"):
            self.fail("':', as in k in 0:10")
        self.take()
        hi = self.expression()
        return Range(index.name, lo, hi, self.span_from(index.at))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def expression(self, least: int = 0) -> Node:
        """Parse an expression of operators whose precedence is at least `least`, by precedence climbing."""
        outside = self.depth
        self.deeper()
        start = self.token.at
        left = self.prefix()
        while True:
            token = self.token
            power = BINDING.get(token.text, -1) if token.kind in ("sign", "name") else -1
            if power < least or power < 0:
                break
            if token.text == "if":
                left = self.choice(left, start)
            elif token.text in COMPARISONS:
                left = self.comparison(left, start)
            else:
                self.operator()
                # Powers group from right to left.
                right = self.expression(power if token.text == "**" else power + 1)
                left = Apply(token.text, (left, right), self.span_from(start))
            if self.most > self.limit:
                self.deeper()  # a chain of operators is a tree of as many levels
        self.depth = outside
        return left

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > self.limit:
            self.source.fail("the expression is nested too deeply", self.token.at, expected=f"{self.limit} levels")

    def operator(self) -> Token:
        self.terms += 1
        if self.terms > self.most:
            hint = "give a part of it a statement of its own"
            self.source.fail("the expression is too long", self.token.at, expected=f"{self.most} operators", hint=hint)
        return self.take()

    def prefix(self) -> Node:
        token = self.token
        if self.is_word("not"):
            self.operator()
            return Apply("not", (self.expression(BINDING["and"] + 1),), self.span_from(token.at))
        if not self.is_sign("-", "+"):
            return self.atom()
        self.operator()
        inner = self.expression(BINDING["**"])
        if token.text == "+":
            return inner
        if isinstance(inner, Number) and not isinstance(inner.value, bool):
            return Number(-inner.value, self.span_from(token.at))
        return Apply("neg", (inner,), self.span_from(token.at))

    def choice(self, then: Node, start: At) -> Node:
        """Parse the rest of `then if condition else orelse`, after `then`."""
        self.operator()
        condition = self.expression(BINDING["or"])
        if not self.is_word("else"):
            self.fail("'else'")
        self.take()
        orelse = self.expression()
        return Apply("if", (then, condition, orelse), self.span_from(start))

    def comparison(self, left: Node, start: At) -> Node:
        """Parse the rest of a comparison after `left`: `a < b`, or `a <= b < c`, which means `a <= b and b < c`."""
        parts: list[Node] = []
        while self.is_sign(*COMPARISONS):
            token = self.operator()
            right = self.expression(BINDING["<"] + 1)
            parts.append(Apply(token.text, (left, right), self.span_from(start)))
            left = right
        return conjunction(parts) or left

    def atom(self) -> Node:
        token = self.token
        if token.kind == "number":
            return self.number(self.take())
        if self.accept("("):
            inner = self.expression()
            self.sign(")")
            return inner
        if token.kind == "assign" and token.text in ASSIGNMENTS:
            self.fail("an expression", hint="a reduction inside of an expression is a call: sum(A[m, k] * B[k])")
        name = self.name("an expression")
        if self.is_sign("("):
            return self.call(name)
        if self.is_sign("[") and name.name in REDUCERS:
            self.take()
            return self.reduction(name, self.listed(lambda: self.name("an index: a name"), "]"))
        if self.is_sign("["):
            return self.read(name)
        if self.is_sign("."):
            return self.shape(name)
        value = CONSTANTS.get(name.name, self.constants.get(name.name))
        return name if value is None else Number(value, name.at)

    def number(self, token: Token) -> Number:
        text = token.text
        if text.isdigit():
            if len(text) > 19 or int(text) >= 1 << 63:
                self.source.fail("the number is too large", token.at, expected="less than 2^63")
            return Number(int(text), token.at)
        if len(text) > 64 or float(text) == float("inf"):
            self.source.fail("the number is too large", token.at)
        return Number(float(text), token.at)

    def read(self, name: Name) -> Read:
        self.sign("[")
        indices = self.listed(self.expression, "]")
        if len(indices) > MAX_INDICES:
            self.source.fail("a tensor has too many indices", name.at, expected=f"at most {MAX_INDICES}")
        return Read(name.name, indices, at=self.span_from(name.at))

    def shape(self, name: Name) -> Size:
        self.sign(".")
        if not self.is_word("shape"):
            self.fail("shape, as in A.shape[0]")
        self.take()
        self.sign("[")
        token = self.token
        if token.kind != "number" or not token.text.isdigit() or len(token.text) > 2:
            self.fail("the number of a dimension")
        self.take()
        self.sign("]")
        return Size(name.name, int(token.text), self.span_from(name.at))

    def call(self, name: Name) -> Node:
        self.sign("(")
        args = self.listed(self.expression, ")")
        return called(self.source, name, args, self.span_from(name.at))

    def reduction(self, name: Name, over: tuple[Name, ...]) -> Node:
        self.sign("(")
        (body, *more) = self.listed(self.expression, ")") or (None,)
        at = self.span_from(name.at)
        if body is None or more:
            self.source.fail(f"{name.name} reduces one expression", at)
        return Reduction(name.name, body, over, at=at)  # type: ignore[arg-type]


def called(source: Source, name: Name, args: tuple[Node, ...], at: At) -> Node:
    """The node of a call of `name`: a reduction, a read that is defined out of bounds, or a function. Raises
    ComprehensionError if there is no such function, or the number of arguments is wrong."""
    word = name.name
    if word in OUTSIDE:
        return _guarded(source, word, args, at)
    if word in REDUCERS and len(args) == 1:
        return Reduction(word, args[0], at=at)
    least, most = ARITY.get(word, (1, 1) if is_conversion(word) else (-1, -1))
    if least < 0:
        known = ", ".join(sorted({*ARITY, *OUTSIDE, *REDUCERS}))
        hint = f"{word}[...] reads a tensor" if not is_conversion(word) else None
        source.fail(
            f"there is no function {word!r}", name.at, expected=f"one of {known}, or a type such as f32", hint=hint
        )
    if not least <= len(args) <= most:
        count = f"{least}" if least == most else f"{least} or more"
        source.fail(f"{word} takes {count} argument{'s' * (count != '1')}", at, got=len(args))
    result = args[0] if len(args) > 2 else Apply(word, args, at)
    for other in args[1:] if len(args) > 2 else ():
        result = Apply(word, (result, other), at)
    return result


def _guarded(source: Source, word: str, args: tuple[Node, ...], at: At) -> Node:
    """The node of a read that is defined out of bounds by `word`: `pad(A[i], 0)`, `clamp(A[i])`, `wrap(A[i])`."""
    wanted = 2 if word == "pad" else 1
    example = "pad(A[i - 1], 0)" if word == "pad" else f"{word}(A[i - 1])"
    if len(args) != wanted or not isinstance(args[0], Read) or args[0].outside:
        source.fail(f"{word} does not fit", at, expected=f"a read of a tensor, as in {example}")
    read = args[0]
    return Read(read.tensor, read.indices, word, args[1] if wanted == 2 else None, at)  # type: ignore[arg-type]
