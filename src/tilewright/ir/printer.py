"""Expressions, loop programs and graphs as text that `ir.parser` reads back: `parse(print(x)) == x`.

The grammar stands in docs/ir.md. Types are printed where they cannot be inferred: on constants that are neither i64 nor
f32, on buffers and values, and in the `where` clause for variables that are not i64 without bounds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs, ConstantArray
from tilewright.ir.c_functions import PREFIX
from tilewright.ir.dtype import DType, dtype, i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.loops import (
    TRUE,
    Allocate,
    Barrier,
    Block,
    For,
    If,
    Intrinsic,
    Let,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
)
from tilewright.ir.notes import Origin
from tilewright.ir.notetable import Note, find, note_name, stated_fields
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import exprs_of, walk, walk_expr
from tilewright.ir.scalar_ops import OPS, OpInfo
from tilewright.ir.sharing import repeated
from tilewright.ir.text import const_text, element_text, float_text, name_text, value_text

_ATOM = 100
"""The precedence of expressions that never need parentheses."""
_COMPARISON = 50
"""The precedence of comparisons, which do not associate."""
_LISTED_ELEMENTS = 256
"""The largest number of elements with which a constant array is printed as a list; longer ones are printed as
base64."""


def expr_text(e: Expr) -> str:
    """The text of an expression on one line, with the parentheses that it needs and no others."""
    return _ExprPrinter().text(e)


def stmt_text(s: Stmt) -> str:
    """The text of a statement, with two blanks of indentation for each level."""
    return "\n".join(_StmtPrinter().lines(s))


def buffer_text(b: Buffer) -> str:
    """The text of a buffer's declaration: `A: f32[n, 4] in local align 64`."""
    return _StmtPrinter().buffer(b)


def func_text(f: PrimFunc) -> str:
    """The text of a loop program: `func @name(A: f32[n], ...) where n in 1..8 { ... }`."""
    printer = _StmtPrinter()
    params = ", ".join(printer.buffer(b) for b in f.params)
    header = f"func @{name_text(f.name)}({params}){_where(_variables_of_func(f))}{notes_text(f.notes)} {{"
    lines = [header]
    lines += [f"  buffer {printer.buffer(b)}" for b in f.buffers]
    lines += printer.lines(f.body, "  ")
    return "\n".join([*lines, "}"])


def graph_text(g: Graph) -> str:
    """The text of a graph: `graph @name(%x: f32[n]) params(...) where ... { assume n != 3 "why"  %y = op(%x) {attr = 1}
    : f32[n] return %y }`."""
    return _graph_text(g, _ExprPrinter(), _where(_variables_of_graph(g)))


def _graph_text(g: Graph, exprs: _ExprPrinter, where: str = "") -> str:
    """The text of a graph with the clause `where`, which a body inside another graph does not need, as its variables
    are described there."""
    header = f"graph @{name_text(g.name)}({_typed_values(g.inputs, exprs)})"
    if g.params:
        header += f" params({_typed_values(g.params, exprs)})"
    lines = [f"{header}{where} {{"]
    lines += [f"  assume {exprs.text(a.condition)} {json.dumps(a.reason)}" for a in g.assumptions]
    lines += [f"  {_node_text(node, exprs)}" for node in g.nodes]
    results = ", ".join(value_text(v.name) for v in g.outputs)
    # No text of a node but a body has line breaks: strings write them as escapes.
    return "\n".join([*(line.replace("\n", "\n  ") for line in lines), f"  return {results}".rstrip(), "}"])


class _ExprPrinter:
    """Prints expressions, each with the strength of its binding.

    Parts that an expression has more than once are printed once each time, unless that would multiply the text: then
    they are numbered, `(&1 := x * x) + &1`.
    """

    def __init__(self) -> None:
        self.memo: dict[Expr, tuple[str, int]] = {}
        self.shared: frozenset[Expr] | None = None
        self.count = 0

    def text(self, e: Expr, least: int = 0) -> str:
        """The text of `e`, in parentheses if it binds weaker than `least`."""
        if self.shared is None and (parts := repeated(e)):
            return self._numbered(e, parts, least)
        done = self.memo.get(e)
        if done is None:
            done = self._define(e) if self.shared and e in self.shared else self._print(e)
            self.memo.setdefault(e, done)
        text, precedence = done
        return text if precedence >= least else f"({text})"

    def _numbered(self, e: Expr, parts: frozenset[Expr], least: int) -> str:
        outer, self.memo, self.shared, self.count = self.memo, {}, parts, 0
        text = self.text(e, least)
        self.memo, self.shared = outer, None
        return text

    def _define(self, e: Expr) -> tuple[str, int]:
        """The text of a numbered subexpression at its first appearance, which defines the number; later ones find it in
        the memo."""
        text, _ = self._print(e)
        self.count += 1
        self.memo[e] = f"&{self.count}", _ATOM
        return f"(&{self.count} := {text})", _ATOM

    def list(self, exprs: Iterable[Expr]) -> str:
        return ", ".join([self.text(e) for e in exprs])

    def _print(self, e: Expr) -> tuple[str, int]:
        match e:
            case Const():
                return const_text(e.value, e.dtype), _ATOM
            case Var():
                return name_text(e.name), _ATOM
            case Load():
                return f"{name_text(e.buffer.name)}[{self.list(e.indices)}]", _ATOM
            case Op():
                info = OPS[e.name]
                return self._operator(e, info) if info.symbol else (self._call(e), _ATOM)
            case Reduce():
                return self._reduce(e), _ATOM
        raise TypeError(f"not an expression: {type(e).__name__}")

    def _operator(self, e: Op, info: OpInfo) -> tuple[str, int]:
        level = info.precedence
        if info.arity == 1:
            # `-3` is a literal, so the negation of a literal shows its parentheses.
            operand = f"({self.text(e.args[0])})" if isinstance(e.args[0], Const) else self.text(e.args[0], level)
            return (f"not {operand}" if info.name == "not" else f"-{operand}"), level
        if level == _COMPARISON:
            left, right = (self.text(a, level + 1) for a in e.args)
            return f"{left} {info.symbol} {right}", level
        # Down the left side in a loop: sums may be long.
        chain: list[Op] = []
        node: Expr = e
        while isinstance(node, Op) and OPS[node.name].precedence == level and len(node.args) == 2:
            if node is not e and self.shared and node in self.shared:
                break
            chain.append(node)
            node = node.args[0]
        parts = [self.text(node, level)]
        parts += [f"{OPS[op.name].symbol} {self.text(op.args[1], level + 1)}" for op in reversed(chain)]
        return " ".join(parts), level

    def _call(self, e: Op) -> str:
        if e.name == "cast":
            return f"{e.dtype}({self.text(e.args[0])})"
        if e.name == "bitcast":
            return f"bitcast({self.text(e.args[0])}, {e.dtype})"
        if e.name.startswith(PREFIX):
            return (
                f"extern({', '.join([name_text(e.name.removeprefix(PREFIX)), str(e.dtype), *map(self.text, e.args)])})"
            )
        return f"{e.name}({self.list(e.args)})"

    def _reduce(self, e: Reduce) -> str:
        reducer = e.reducer
        lhs, rhs = (", ".join(f"{name_text(v.name)}: {v.dtype}" for v in side) for side in (reducer.lhs, reducer.rhs))
        text = f"reduce({name_text(reducer.name)}({lhs}; {rhs}) -> ({self.list(reducer.result)})"
        text += f" from ({self.list(reducer.identity)})"
        text += " over " + ", ".join(f"{name_text(v.name)} in 0..{self.text(x)}" for v, x in e.axes)
        text += f" of {self.list(e.values)}"
        if e.condition is not TRUE:
            text += f" if {self.text(e.condition)}"
        return text + (f" at {e.index})" if e.index else ")")


class _StmtPrinter:
    """Prints statements as lines."""

    def __init__(self) -> None:
        self.exprs = _ExprPrinter()

    def lines(self, s: Stmt, indent: str = "", last: bool = True) -> Iterator[str]:
        """The lines of `s`, each after `indent`. If `s` is the `last` statement of its sequence, a `let` or `alloc`
        needs no braces: its scope is what follows."""
        text = self.exprs.text
        match s:
            case Seq(stmts):
                for i, stmt in enumerate(stmts):
                    yield from self.lines(stmt, indent, last and i == len(stmts) - 1)
            case Store():
                yield f"{indent}{self._store(s)}"
            case For():
                header = f"for {name_text(s.var.name)} in 0..{text(s.extent)}{_kind(s)}"
                yield from self._braces(header + notes_text(s.notes), s.body, indent)
            case Block():
                yield from self._block(s, indent)
            case Let():
                yield from self._scope(f"let {name_text(s.var.name)} = {text(s.value)}", s.body, indent, last)
            case Allocate():
                yield from self._scope(f"alloc {self.buffer(s.buffer)}", s.body, indent, last)
            case If():
                yield from self._if(s, indent)
            case Intrinsic():
                outputs, inputs = (", ".join(map(self._region, side)) for side in (s.outputs, s.inputs))
                yield f"{indent}call {name_text(s.name)}({f'{outputs}; {inputs}'.rstrip()})"
            case Barrier(group, pending):
                about = f"({group}, {pending})" if pending else "" if group == "block" else f"({group})"
                yield f"{indent}barrier{about}"
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    def buffer(self, b: Buffer) -> str:
        text = f"{name_text(b.name)}: {b.dtype}[{self.exprs.list(b.shape)}]"
        if b.scope != "global":
            text += f" in {name_text(b.scope)}"
        return text if b.align is None else f"{text} align {b.align}"

    def _braces(self, header: str, body: Stmt, indent: str) -> Iterator[str]:
        yield f"{indent}{header} {{"
        yield from self.lines(body, indent + "  ")
        yield f"{indent}}}"

    def _scope(self, header: str, body: Stmt, indent: str, last: bool) -> Iterator[str]:
        if not last:
            yield from self._braces(header, body, indent)
            return
        yield f"{indent}{header}"
        yield from self.lines(body, indent)

    def _store(self, s: Store) -> str:
        return f"{name_text(s.buffer.name)}[{self.exprs.list(s.indices)}] = {self.exprs.text(s.value)}"

    def _if(self, s: If, indent: str, lead: str = "if") -> Iterator[str]:
        yield f"{indent}{lead} {self.exprs.text(s.condition)} {{"
        yield from self.lines(s.then, indent + "  ")
        if isinstance(s.orelse, If):
            yield from self._if(s.orelse, indent, "} else if")
            return
        if s.orelse is not None:
            yield f"{indent}}} else {{"
            yield from self.lines(s.orelse, indent + "  ")
        yield f"{indent}}}"

    def _block(self, s: Block, indent: str) -> Iterator[str]:
        text = self.exprs.text
        iters = (f"{name_text(it.var.name)} = {it.kind}({text(it.extent)}): {text(it.binding)}" for it in s.iters)
        header = f"block {name_text(s.name)} ({', '.join(iters)})"
        if s.predicate is not TRUE:
            header += f" if {text(s.predicate)}"
        yield f"{indent}{header}{notes_text(s.notes)} {{"
        inner = indent + "  "
        if isinstance(s.init, Store):
            yield f"{inner}init {{ {self._store(s.init)} }}"
        elif s.init is not None:
            yield from self._braces("init", s.init, inner)
        yield from self.lines(s.body, inner)
        yield f"{indent}}}"

    def _region(self, region: Region) -> str:
        ranges = ", ".join(f"{self.exprs.text(start)} +: {self.exprs.text(extent)}" for start, extent in region.ranges)
        return f"{name_text(region.buffer.name)}[{ranges}]"


def notes_text(notes: Iterable[Note]) -> str:
    """The text of notes after a loop, block or function, with a blank before each."""
    return "".join(f" {note_text(note)}" for note in notes)


def note_text(note: Note) -> str:
    """The text of a note with the fields that differ from their defaults: `@unroll(times=4)`, `@streaming`."""
    fields = ", ".join(f"{name_text(name)}={_field_text(value)}" for name, value in stated_fields(note).items())
    return f"@{name_text(note_name(type(note)))}" + (f"({fields})" if fields else "")


def _field_text(value: Any) -> str:
    """The text of the value of a note's field; names of buffers and other strings are written as names are."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_field_text, value))}]"
    if isinstance(value, Attrs):
        return _braced(value, _ExprPrinter())
    return name_text(value) if isinstance(value, str) else attr_text(value)


def _braced(attrs: Attrs, exprs: _ExprPrinter) -> str:
    """The text of attributes in braces: `{axis = 1, sizes = [2, $n]}`."""
    return f"{{{', '.join(f'{name_text(k)} = {attr_text(v, exprs)}' for k, v in attrs.items())}}}"


def attr_text(value: Any, exprs: _ExprPrinter | None = None) -> str:
    """The text of an attribute's value: a number, `true`, a string, a dtype, `$expr`, an array, `none` or a `[list]` of
    those."""
    exprs = exprs or _ExprPrinter()
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return float_text(value)
        case str():
            return json.dumps(value)
        case DType():
            return value.name
        case Expr():
            return f"${exprs.text(value, _ATOM)}"
        case ConstantArray():
            return _array_text(value)
        case Graph():
            return _graph_text(value, exprs)
        case tuple():
            return f"[{', '.join([attr_text(v, exprs) for v in value])}]"
    raise TypeError(f"an attribute cannot hold {type(value).__name__}")


def type_text(t: TensorType) -> str:
    """The text of a tensor type: `f32[batch, 64]`, with a layout `f32[1, 4, 7, 7, 16]:NCHW16c`."""
    return _type_text(t, _ExprPrinter())


def _type_text(t: TensorType, exprs: _ExprPrinter) -> str:
    return f"{t.dtype}[{exprs.list(t.shape)}]" + (f":{name_text(t.layout)}" if t.layout else "")


def _typed_values(values: Sequence[Value], exprs: _ExprPrinter) -> str:
    return ", ".join(f"{value_text(v.name)}: {_type_text(v.type, exprs)}" for v in values)


def _node_text(node: Node, exprs: _ExprPrinter) -> str:
    inputs = ", ".join("none" if v is None else value_text(v.name) for v in node.inputs)
    text = f"{name_text(node.op)}({inputs})"
    text += _attrs_text(node.attrs, exprs)
    if node.selected is not None:
        if node.algorithm is not None:
            text += f" by {node.algorithm.name}{_attrs_text(node.algorithm, exprs)}"
        text += f" in {node.precision}"
    if not node.outputs:
        return text
    outputs = ", ".join(value_text(v.name) for v in node.outputs)
    return f"{outputs} = {text} : {', '.join(_type_text(v.type, exprs) for v in node.outputs)}"


def _attrs_text(attrs: Attrs, exprs: _ExprPrinter) -> str:
    """The text of attributes after a node or an algorithm: a blank and the attributes in braces, or nothing."""
    return f" {_braced(attrs, exprs)}" if attrs.items() else ""


def _array_text(constant: ConstantArray) -> str:
    array = constant.array
    kind = dtype(array.dtype)
    head = f"array {kind}[{', '.join(map(str, array.shape))}]"
    if array.size > _LISTED_ELEMENTS:
        little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
        return f'{head} "{base64.b64encode(little.tobytes()).decode()}"'
    return f"{head} ({', '.join(element_text(x, kind) for x in np.ravel(array))})"


def _kind(loop: For) -> str:
    if loop.kind == "serial":
        return ""
    if loop.kind == "thread" and loop.thread is not None:
        return f" thread({name_text(loop.thread)})"
    return f" {loop.kind}"


def _where(variables: Iterable[Var]) -> str:
    """The text of the clause `where`, which describes every variable that is not an i64 without bounds."""
    entries = [_described(v) for v in dict.fromkeys(variables)]
    return f" where {', '.join(entries)}" if entries else ""


def _is_unbounded(v: Var) -> bool:
    return v.dtype is i64 and v.lo is None and v.hi is None and v.multiple == 1 and not v.likely


def _described(v: Var) -> str:
    text = name_text(v.name)
    if v.dtype is not i64:
        text += f": {v.dtype}"
    if v.lo is not None or v.hi is not None:
        text += f" in {'' if v.lo is None else v.lo}..{'' if v.hi is None else v.hi}"
    text = text if v.multiple == 1 else f"{text} % {v.multiple}"
    return f"{text} likely {' '.join(map(str, v.likely))}" if v.likely else text


def _variables_of_func(f: PrimFunc) -> Iterator[Var]:
    """Yield the variables of a program that the clause `where` has to describe, wherever they are bound. A `let` takes
    its value's type, so it needs no entry unless it has bounds."""
    seen: set[Expr] = set()
    lets: set[Var] = set()
    results: list[Var] = []

    def visit(e: Expr) -> None:
        if e not in seen:
            for node in walk_expr(e):
                if node not in seen:
                    seen.add(node)
                    if isinstance(node, Var):
                        results.append(node)

    for buffer in (*f.params, *f.buffers):
        for extent in buffer.shape:
            visit(extent)
    for stmt in walk(f.body):
        match stmt:
            case For():
                results.append(stmt.var)
            case Let():
                results.append(stmt.var)
                if stmt.var == Var(stmt.var.name, stmt.value.dtype):
                    lets.add(stmt.var)
            case Block():
                results.extend(it.var for it in stmt.iters)
                origin = find(stmt.notes, Origin)
                for e in () if origin is None else origin.attrs.exprs:
                    visit(e)
        for e in exprs_of(stmt):
            visit(e)
    return (v for v in results if not _is_unbounded(v) and v not in lets)


def _variables_of_graph(g: Graph) -> Iterator[Var]:
    values = [*g.inputs, *g.params, *(out for node in g.nodes for out in node.outputs)]
    exprs = [dim for v in values for dim in v.shape]
    exprs += [e for node in g.nodes for e in node.attrs.exprs] + [a.condition for a in g.assumptions]
    yield from (v for e in dict.fromkeys(exprs) for v in walk_expr(e) if isinstance(v, Var) and not _is_unbounded(v))
    for body in (body for node in g.nodes for body in node.bodies):
        yield from _variables_of_graph(body)
