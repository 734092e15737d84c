"""Text to expressions, loop programs and graphs: the inverse of `ir.printer`, by recursive descent.

The grammar stands in docs/ir.md. Nothing is executed or evaluated; every failure is a ParseError with line and column.
The constructors of `ir` check arity and types on the way; scopes and uniqueness are the verifier's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tilewright.ir import exprparser, graphparser, loopparser
from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.graph import Graph
from tilewright.ir.lexer import Cursor, Kinds, Scope
from tilewright.ir.loops import PrimFunc, Stmt

T = TypeVar("T")


def parse_expr(
    text: str, variables: Iterable[Var] = (), buffers: Iterable[Buffer] = (), *, source: str = "<text>"
) -> Expr:
    """The expression that `text` prints. Names that are not among `variables` are i64 variables without bounds; every
    buffer must be among `buffers`. Raises ParseError."""
    return _whole(Cursor(text, source, _scope(variables, buffers)), exprparser.expr)


def parse_stmt(
    text: str, variables: Iterable[Var] = (), buffers: Iterable[Buffer] = (), *, source: str = "<text>"
) -> Stmt:
    """Parse a statement, or a sequence of them, as printed. Free names in `text` are those of `variables` and
    `buffers`, as in `parse_expr`."""
    return _whole(Cursor(text, source, _scope(variables, buffers)), loopparser.statements)


def parse_func(text: str, kinds: Kinds | None = None, *, source: str = "<text>") -> PrimFunc:
    """The loop program that `text` prints; `kinds` is needed where blocks have origins (`ops.parse_func` knows it).
    Raises ParseError."""
    return _whole(Cursor(text, source, kinds=kinds), loopparser.func)


def parse_graph(text: str, kinds: Kinds, *, source: str = "<text>") -> Graph:
    """The graph that `text` prints; `kinds` says what attributes an operator has (`ops.parse_graph` knows them). Raises
    ParseError."""
    return _whole(Cursor(text, source, kinds=kinds), graphparser.graph)


def _scope(variables: Iterable[Var], buffers: Iterable[Buffer]) -> Scope:
    return Scope({v.name: v for v in variables}, {b.name: b for b in buffers})


def _whole(cursor: Cursor, rule: Callable[[Cursor], T]) -> T:
    """Parse the whole text by `rule`. Raises ParseError if text remains."""
    try:
        result = rule(cursor)
    except RecursionError:
        cursor.fail("nested too deeply")
    if cursor.token.kind != "end":
        cursor.fail("text after the end", expected="nothing more")
    return result
