"""Text to tokens, and the cursor over them that the parsing functions share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Literal, NoReturn, TypeVar

from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.graph import Value
from tilewright.ir.text import DTYPE, IDENTIFIER, KEYWORDS
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ParseError, VerifyError

MAX_DEPTH = 200
"""The largest depth of nested parentheses, braces and brackets in a text."""

T = TypeVar("T")
Kind = Literal["number", "hex", "name", "string", "sign", "end"]

_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    |(?P<hex>0x[0-9a-fA-F]+)
    |(?P<number>(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|(?:inf|nan)(?![A-Za-z0-9_]))(?::(?:{DTYPE})(?![A-Za-z0-9_]))?)
    |(?P<name>{IDENTIFIER.pattern})
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<sign>\.\.|->|\+:|:=|//|==|!=|<=|>=|[-()\[\]{{}},;:=+*/%<>@$&])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, its text, and its offset."""

    kind: Kind
    text: str
    at: int


def tokens_of(text: str, source: str) -> list[Token]:
    """The tokens of a text, with an end token after them. Raises ParseError, which names the text by `source`, at a
    character that begins no token."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ParseError(f"unexpected character {text[at]!r}", where=place(text, at, source))
        if match.lastgroup != "space":
            tokens.append(Token(match.lastgroup, match.group(), at))  # type: ignore[arg-type]
        at = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def place(text: str, at: int, source: str) -> str:
    """The position `at` in a text as `source:line:column`, both counted from 1."""
    line = text.count("\n", 0, at) + 1
    return f"{source}:{line}:{at - (text.rfind(chr(10), 0, at) + 1) + 1}"


@dataclass(slots=True)
class Scope:
    """The meanings of names at the current position of a text: variables, buffers, values, numbered subexpressions."""

    variables: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    numbered: dict[int, Expr] = field(default_factory=dict)


Kinds = Callable[[str], type[Attrs]]
"""A function from the name of an operator to its attribute class; raises an Error for an operator that does not
exist."""


def _no_kinds(op: str) -> type[Attrs]:
    hint = "ops.parse_func and ops.parse_graph know the operators"
    raise VerifyError(f"the attributes of the operator {op!r} are not known", hint=hint)


class Cursor:
    """A position in the tokens of a text, with the basic operations of a recursive descent parser, the meanings of
    names, and the attribute classes of operators."""

    def __init__(self, text: str, source: str, scope: Scope | None = None, kinds: Kinds | None = None) -> None:
        self.text = text
        self.source = source
        self.tokens = tokens_of(text, source)
        self.position = 0
        self.depth = 0
        self.scope = scope or Scope()
        self.kinds = kinds or _no_kinds

    @property
    def token(self) -> Token:
        """The next token, which is not yet taken."""
        return self.tokens[self.position]

    def fail(
        self, what: str, token: Token | None = None, *, expected: str | None = None, got: str | None = None
    ) -> NoReturn:
        """Raise ParseError with the message `what` at `token` (None: the current one), whose text is reported as found
        unless `got` is passed; `expected` says what may stand there."""
        token = token or self.token
        if expected is not None and got is None:
            got = "the end of the text" if token.kind == "end" else repr(token.text[:60])
        raise ParseError(what, where=place(self.text, token.at, self.source), expected=expected, got=got)

    def refuse(self, error: Error, token: Token) -> NoReturn:
        """Raise ParseError with the message of another error about the text at `token`."""
        where = place(self.text, token.at, self.source)
        raise ParseError(error.what, where=where, expected=error.expected, got=error.got, hint=error.hint) from error

    def known(self, find: Callable[[str], T], what: str) -> T:
        """Parse a name, and return the meaning that `find` has for it; `what` says in an error what was expected."""
        token = self.token
        name = self.name(what)
        try:
            return find(name)
        except VerifyError as error:
            self.refuse(error, token)

    def advance(self) -> Token:
        token = self.token
        if token.kind != "end":
            self.position += 1
        return token

    def sees(self, *texts: str) -> bool:
        """Whether one of these signs or keywords comes next."""
        return self.token.text in texts and self.token.kind in ("sign", "name")

    def accept(self, text: str) -> bool:
        """Take the sign or keyword `text` if it comes next; returns whether it did."""
        if self.sees(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.sees(text):
            self.fail("cannot read this", expected=repr(text))
        return self.advance()

    def name(self, what: str = "a name") -> str:
        """Parse an identifier, or any name in quotes."""
        token = self.token
        if token.kind == "string":
            self.position += 1
            return self.unquote(token)
        if token.kind != "name" or token.text in KEYWORDS:
            self.fail("cannot read this", expected=what)
        self.position += 1
        return token.text

    def unquote(self, token: Token) -> str:
        try:
            text: str = json.loads(token.text)
        except ValueError as error:
            self.fail(f"malformed string: {error}", token)
        return text

    def integer(self) -> int:
        """Parse an integer with an optional sign."""
        negative = self.accept("-")
        token = self.token
        if token.kind != "number" or not token.text.isdigit():
            self.fail("cannot read this", expected="an integer")
        self.position += 1
        return -self.digits(token) if negative else self.digits(token)

    def digits(self, token: Token, text: str | None = None) -> int:
        try:
            return int(token.text if text is None else text)
        except ValueError:
            self.fail("an integer with too many digits", token)

    def separated(self, item: Callable[[Cursor], T], end: str, separator: str = ",") -> list[T]:
        """Parse `item` any number of times with separators between, up to and including `end`."""
        items: list[T] = []
        if self.accept(end):
            return items
        while True:
            items.append(item(self))
            if self.accept(end):
                return items
            if not self.sees(separator):
                self.fail("cannot read this", expected=f"{separator!r} or {end!r}")
            self.position += 1

    @contextmanager
    def nested(self) -> Iterator[None]:
        """A context that counts a level of nesting. Raises ParseError beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        try:
            yield
        finally:
            self.depth -= 1
