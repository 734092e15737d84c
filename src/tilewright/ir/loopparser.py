"""Parsing of statements and loop programs."""

from __future__ import annotations

from typing import Any, TypeVar

from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.exprparser import (
    axis,
    bound_var,
    buffer_named,
    element_type,
    expr,
    number_or_bool,
    skip_group,
    where_clause,
)
from tilewright.ir.graphparser import attribute_values, attributes_of
from tilewright.ir.lexer import Cursor
from tilewright.ir.loops import (
    TRUE,
    Allocate,
    Barrier,
    Block,
    BlockIter,
    For,
    If,
    Intrinsic,
    Let,
    LoopKind,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    seq,
)
from tilewright.ir.notes import (
    BlockNote,
    FuncNote,
    LoopNote,
    Note,
    Origin,
    Thread,
    group_named,
    scope_named,
    thread_named,
)
from tilewright.ir.notetable import find, make, note_name, with_note
from tilewright.support.errors import ExpressionError, VerifyError

_LOOP_KINDS: tuple[LoopKind, ...] = ("parallel", "vectorized", "unrolled", "thread")


def statements(c: Cursor, end: str | None = None) -> Stmt:
    """Parse statements up to (not including) `end`, or to the end of the text."""
    with c.nested():
        stmts: list[Stmt] = []
        while not (c.sees(end) if end else c.token.kind == "end"):
            stmts.append(_statement(c, end))
        return seq(stmts) if stmts else Seq(())


def _braces(c: Cursor) -> Stmt:
    c.expect("{")
    body = statements(c, "}")
    c.expect("}")
    return body


def _statement(c: Cursor, end: str | None) -> Stmt:
    token = c.token
    if token.kind == "name" and token.text in _STATEMENTS:
        c.position += 1
        return _STATEMENTS[token.text](c, end)
    name = c.name("a statement")
    c.expect("[")
    indices = tuple(c.separated(expr, "]"))
    c.expect("=")
    value = expr(c)
    try:
        return Store(buffer_named(c, name, token), indices, value)
    except ExpressionError as error:
        c.fail(error.what, token)


def _for(c: Cursor, end: str | None) -> Stmt:
    var, extent = axis(c)
    kind: LoopKind = "serial"
    thread: Thread | None = None
    for candidate in _LOOP_KINDS:
        if c.accept(candidate):
            kind = candidate
    if kind == "thread" and c.accept("("):
        thread = c.known(thread_named, "a hardware index")
        c.expect(")")
    notes = note_list(c, LoopNote)
    return For(var, extent, _braces(c), kind, thread, notes)


def _block(c: Cursor, end: str | None) -> Stmt:
    name = c.name("the block's name")
    c.expect("(")
    iters = tuple(c.separated(_block_iter, ")"))
    predicate = expr(c) if c.accept("if") else TRUE
    notes = note_list(c, BlockNote)
    c.expect("{")
    init = _braces(c) if c.accept("init") else None
    body = statements(c, "}")
    c.expect("}")
    return Block(name, iters, body, init, predicate, notes)


def _block_iter(c: Cursor) -> BlockIter:
    var = bound_var(c)
    c.expect("=")
    token = c.advance()
    if token.text not in ("spatial", "reduce"):
        c.fail("cannot read this", token, expected="'spatial' or 'reduce'")
    c.expect("(")
    extent = expr(c)
    c.expect(")")
    c.expect(":")
    return BlockIter(var, extent, "spatial" if token.text == "spatial" else "reduce", expr(c))


def _let(c: Cursor, end: str | None) -> Stmt:
    name = c.name("a variable")
    c.expect("=")
    value = expr(c)
    outer = c.scope.variables
    declared = outer.get(name)
    var = declared if declared is not None and declared.dtype is value.dtype else Var(name, value.dtype)
    c.scope.variables = outer | {name: var}
    body = _scope_of(c, end)
    c.scope.variables = outer
    return Let(var, value, body)


def _alloc(c: Cursor, end: str | None) -> Stmt:
    buffer = buffer_declaration(c)
    outer = c.scope.buffers
    c.scope.buffers = outer | {buffer.name: buffer}
    body = _scope_of(c, end)
    c.scope.buffers = outer
    return Allocate(buffer, body)


def _scope_of(c: Cursor, end: str | None) -> Stmt:
    """Parse the statements in which the variable or buffer of a `let` or `alloc` exists: those in braces, or all that
    follow."""
    return _braces(c) if c.sees("{") else statements(c, end)


def _if(c: Cursor, end: str | None) -> Stmt:
    with c.nested():
        condition = expr(c)
        then = _braces(c)
        orelse = None
        if c.accept("else"):
            orelse = _if(c, end) if c.accept("if") else _braces(c)
        return If(condition, then, orelse)


def _intrinsic(c: Cursor, end: str | None) -> Stmt:
    name = c.name("the intrinsic's name")
    c.expect("(")
    outputs = tuple(c.separated(_region, ";"))
    return Intrinsic(name, outputs, tuple(c.separated(_region, ")")))


def _barrier(c: Cursor, end: str | None) -> Stmt:
    if not c.accept("("):
        return Barrier()
    group = c.known(group_named, "a group of threads")
    pending = c.integer() if c.accept(",") else 0
    c.expect(")")
    return Barrier(group, pending)


def _region(c: Cursor) -> Region:
    token = c.token
    name = c.name("a buffer")
    c.expect("[")
    ranges = tuple(c.separated(_range, "]"))
    buffer = buffer_named(c, name, token)
    if len(ranges) != len(buffer.shape):
        c.fail(f"{name} has {len(buffer.shape)} dimensions, not {len(ranges)}", token)
    return Region(buffer, ranges)


def _range(c: Cursor) -> tuple[Expr, Expr]:
    start = expr(c)
    c.expect("+:")
    return start, expr(c)


def func(c: Cursor) -> PrimFunc:
    c.expect("func")
    c.expect("@")
    name = c.name("the function's name")
    start = c.position
    skip_group(c)
    where_clause(c)
    notes = note_list(c, FuncNote)
    after = c.position
    # The `where` clause says what the variables in the parameters' shapes are, so it was read first.
    c.position = start
    c.expect("(")
    params = tuple(c.separated(_declared_buffer, ")"))
    c.position = after
    c.expect("{")
    buffers = []
    while c.accept("buffer"):
        buffers.append(_declared_buffer(c))
    body = statements(c, "}")
    c.expect("}")
    return PrimFunc(name, params, body, tuple(buffers), notes)


def _declared_buffer(c: Cursor) -> Buffer:
    token = c.token
    buffer = buffer_declaration(c)
    if buffer.name in c.scope.buffers:
        c.fail(f"a second buffer named {buffer.name!r}", token)
    c.scope.buffers[buffer.name] = buffer
    return buffer


def buffer_declaration(c: Cursor) -> Buffer:
    """Parse the declaration of a buffer: `A: f32[n, 4] in local align 64`."""
    name = c.name("a buffer")
    c.expect(":")
    dtype = element_type(c)
    c.expect("[")
    shape = tuple(c.separated(expr, "]"))
    scope = c.known(scope_named, "a scope") if c.accept("in") else "global"
    return Buffer(name, dtype, shape, scope, c.integer() if c.accept("align") else None)


N = TypeVar("N", bound=Note)


def note_list(c: Cursor, place: type[N]) -> tuple[N, ...]:
    """Parse notes of the class `place`, `@name(field=value, ...) @name ...`, or nothing."""
    results: tuple[N, ...] = ()
    while c.accept("@"):
        token = c.token
        name = c.name("a note's name")
        fields: dict[str, Any] = {}
        for field, value in c.separated(_field, ")") if c.accept("(") else ():
            if field in fields:
                c.fail(f"{field!r} is given twice", token)
            fields[field] = value
        if isinstance(op := fields.get("op"), str) and name == note_name(Origin):
            arguments = fields.get("attrs", {})
            fields["attrs"] = (
                attributes_of(c, c.kinds, op, token, arguments) if isinstance(arguments, dict) else arguments
            )
        try:
            note = make(name, place, (), fields)
        except VerifyError as error:
            c.refuse(error, token)
        if find(results, type(note)) is not None:
            c.fail(f"a second note {name!r}", token)
        results = with_note(results, note)
    return results


def _field(c: Cursor) -> tuple[str, Any]:
    name = c.name("a field's name")
    c.expect("=")
    return name, _field_value(c)


def _field_value(c: Cursor) -> Any:
    """Parse the value of a note's field: a number, `true`, `none`, a name or a list of those, or an operator's
    attributes in braces."""
    with c.nested():
        if c.accept("{"):
            return attribute_values(c)
        if c.accept("["):
            return tuple(c.separated(_field_value, "]"))
        if c.accept("none"):
            return None
        number = c.token.kind == "number" or c.sees("-", "true", "false")
        return number_or_bool(c) if number else c.name("a number, a name or a list")


_STATEMENTS = {
    "for": _for,
    "block": _block,
    "let": _let,
    "alloc": _alloc,
    "if": _if,
    "call": _intrinsic,
    "barrier": _barrier,
}
