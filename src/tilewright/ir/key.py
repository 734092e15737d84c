"""Digests of programs: equal for programs that are equal up to names, different under any other change.

A program is written as a list of numbers and strings in which every variable, buffer, block and value is the number of
its first appearance, and every sub-expression is written once. The digest is of that list, so it does not depend on the
process, and shared expressions cost nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tilewright.ir.attributes import Attrs, ConstantArray
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.graph import Graph, TensorType, Value
from tilewright.ir.loops import Allocate, Barrier, Block, For, If, Intrinsic, Let, PrimFunc, Region, Seq, Stmt, Store
from tilewright.ir.notetable import Note, fields_of, note_name, renamed
from tilewright.ir.reduce import Reduce, Reducer
from tilewright.ir.scalar_ops import TYPED_BY_ARGUMENTS
from tilewright.ir.selection import Selection
from tilewright.support.digest import blake2b

DIGEST_BYTES = 16
"""The length of a key in bytes."""


def key(x: PrimFunc | Graph | Expr) -> str:
    """The key of a program, 128 bits in hexadecimal: equal for programs that differ only in the names of variables,
    buffers, blocks, values, symbols and of the program itself. A graph's weights are not part of it (their types are),
    constant arrays are."""
    writer = _Writer()
    match x:
        case PrimFunc():
            writer.func(x)
        case Graph():
            writer.graph(x)
        case Expr():
            writer.tokens.append(f"expr {writer.expr(x)}")
        case _:
            raise TypeError(f"no key for a {type(x).__name__}")
    return digest(writer.tokens)


def digest(tokens: list[str]) -> str:
    """A digest of a list of strings that differs for any two different lists."""
    # Lengths first: then no separator inside a string can imitate another list.
    lengths = ",".join([str(len(token)) for token in tokens])
    text = f"{lengths}\n{''.join(tokens)}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()


class _Writer:
    """Writes the tokens of a program, and numbers its names by first appearance."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.exprs: dict[Expr, int] = {}
        self.buffers: dict[Buffer, int] = {}
        self.values: dict[Value, int] = {}
        self.types: dict[TensorType, int] = {}

    # Expressions: the number of an expression is its place among those written.

    def expr(self, e: Expr) -> int:
        number = self.exprs.get(e)
        if number is None:
            text = self._expr(e)
            number = self.exprs[e] = len(self.exprs)
            self.tokens.append(text)
        return number

    def _expr(self, e: Expr) -> str:
        match e:
            case Op():
                args = " ".join([str(self.expr(a)) for a in e.args])
                return f"{e.name} {args}" if e.name in TYPED_BY_ARGUMENTS else f"{e.name} {args} {e.dtype.name}"
            case Var():
                likely = f" {e.likely}" if e.likely else ""
                return f"var {e.dtype.name} {e.lo} {e.hi} {e.multiple}{likely}"
            case Const():
                value = struct.pack("<d", e.value).hex() if e.dtype.is_float else e.value
                return f"const {e.dtype.name} {value}"
            case Load():
                return f"load {self.buffer(e.buffer)} {self.list(e.indices)}"
            case Reduce():
                return self._reduce(e)
        raise TypeError(f"not an expression: {type(e).__name__}")

    def list(self, exprs: tuple[Expr, ...]) -> str:
        return " ".join([str(self.expr(e)) for e in exprs])

    def _reduce(self, e: Reduce) -> str:
        axes = " ".join(f"{self.expr(v)} {self.expr(extent)}" for v, extent in e.axes)
        reducer = self._reducer(e.reducer)
        return f"reduce {reducer} | {axes} | {self.list(e.values)} | {self.expr(e.condition)} {e.index}"

    def _reducer(self, r: Reducer) -> str:
        return " | ".join(self.list(part) for part in (r.lhs, r.rhs, r.result, r.identity))

    def buffer(self, b: Buffer) -> int:
        """The number of a buffer; its type is written at its first appearance."""
        number = self.buffers.get(b)
        if number is None:
            shape = self.list(b.shape)
            number = self.buffers[b] = len(self.buffers)
            self.tokens.append(f"buffer {b.dtype.name} [{shape}] {b.align} {b.scope}")
        return number

    # Loop programs

    def func(self, f: PrimFunc) -> None:
        params = " ".join([str(self.buffer(b)) for b in f.params])
        buffers = " ".join([str(self.buffer(b)) for b in f.buffers])
        self.tokens.append(f"func [{params}] [{buffers}] {len(f.notes)}")
        self.stmt(f.body)
        self.notes(f.notes)

    def stmt(self, s: Stmt) -> None:
        tokens = self.tokens
        match s:
            case Store():
                index, value = self.list(s.indices), self.expr(s.value)
                tokens.append(f"store {self.buffer(s.buffer)} [{index}] {value}")
            case For():
                extent = self.expr(s.extent)
                tokens.append(f"for {self.expr(s.var)} {extent} {s.kind} {len(s.notes)} {s.thread}")
                self.stmt(s.body)
                self.notes(s.notes)
            case Seq():
                tokens.append(f"seq {len(s.stmts)}")
                for child in s.stmts:
                    self.stmt(child)
            case Block():
                self._block(s)
            case Let():
                value = self.expr(s.value)
                tokens.append(f"let {self.expr(s.var)} {value}")
                self.stmt(s.body)
            case If():
                tokens.append(f"if {self.expr(s.condition)} {s.orelse is not None}")
                for child in s.children:
                    self.stmt(child)
            case Allocate():
                tokens.append(f"alloc {self.buffer(s.buffer)}")
                self.stmt(s.body)
            case Intrinsic():
                outputs, inputs = ("; ".join(map(self._region, side)) for side in (s.outputs, s.inputs))
                tokens.append(f"call [{outputs}] [{inputs}] {s.name}")
            case Barrier():
                tokens.append(f"barrier {s.group}" + (f" {s.pending}" if s.pending else ""))
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    def _block(self, s: Block) -> None:
        iters = [f"{self.expr(it.binding)} {self.expr(it.extent)} {self.expr(it.var)} {it.kind}" for it in s.iters]
        self.tokens.append(f"block [{'; '.join(iters)}] {self.expr(s.predicate)} {s.init is not None} {len(s.notes)}")
        for child in s.children:
            self.stmt(child)
        self.notes(s.notes)

    def _region(self, region: Region) -> str:
        ranges = " ".join(f"{self.expr(start)} {self.expr(extent)}" for start, extent in region.ranges)
        return f"{self.buffer(region.buffer)} {ranges}"

    def notes(self, notes: Sequence[Note]) -> None:
        """Write the tokens of notes. They come after those of what the notes are about, so that the buffers they name
        have numbers."""
        if not notes:
            return
        numbers = {b.name: f"buffer {number}" for b, number in self.buffers.items()}
        for note in notes:
            numbered = renamed(note, lambda name: numbers.get(name, f"unknown {name}"))
            values = tuple(getattr(numbered, f.name) for f in fields_of(type(note)))
            self.tokens.append(f"{note_name(type(note))} {self._attr(values)}")

    def attributes(self, attributes: Sequence[tuple[str, Any]]) -> None:
        for name, value in attributes:
            self.tokens.append(name)
            self.tokens.append(self._attr(value))

    # Graphs

    def graph(self, g: Graph) -> None:
        for value in (*g.inputs, *g.params):
            self.define(value)
        self.tokens.append(f"graph {len(g.inputs)} {len(g.params)} {len(g.nodes)}")
        for node in g.nodes:
            inputs = " ".join(["-" if v is None else str(self.values[v]) for v in node.inputs])
            attrs = node.attrs.items()
            self.tokens.append(node.op)
            self.tokens.append(f"[{inputs}] {len(attrs)} {len(node.outputs)}")
            self.attributes(attrs)
            self.selection(node.selected)
            for value in node.outputs:
                self.define(value)
        self.tokens.append("return " + " ".join([str(self.values[v]) for v in g.outputs]))
        if g.assumptions:  # reasons are words about them
            self.tokens.append(f"assume {self.list(tuple(a.condition for a in g.assumptions))}")

    def body(self, g: Graph) -> str:
        """The digest of a graph inside another, whose text is not written itself. Its values are numbered separately;
        expressions share numbers with the enclosing graph."""
        outer, self.values = self.values, {}
        start = len(self.tokens)
        self.graph(g)
        self.values = outer
        written = self.tokens[start:]
        del self.tokens[start:]
        return digest(written)

    def selection(self, selected: Selection | None) -> None:
        if selected is not None:
            chosen = selected.algorithm
            self.tokens.append(f"selected {selected.precision} {None if chosen is None else chosen.name}")
            self.attributes(() if chosen is None else chosen.items())

    def define(self, value: Value) -> None:
        type = value.type
        number = self.types.get(type)
        if number is None:
            shape = self.list(type.shape)
            number = self.types[type] = len(self.types)
            self.tokens.append(f"type {type.dtype.name} [{shape}] {type.layout}")
        self.values[value] = len(self.values)
        self.tokens.append(f"value {number}")

    def _attr(self, value: Any) -> str:
        """The token of an attribute or of a note's field; its first word is the kind of value, so that `1`, `1.0`,
        `true` and "1" differ."""
        match value:
            case None:
                return "none"
            case bool():
                return f"bool {value}"
            case int():
                return f"int {int(value)}"  # a number that a schedule sampled is one like any other
            case float():
                return f"float {struct.pack('<d', value).hex()}"
            case str():
                return f"str {value}"
            case DType():
                return f"dtype {value.name}"
            case Expr():
                return f"expr {self.expr(value)}"
            case ConstantArray():
                array = value.array
                content = blake2b(array.tobytes(), digest_size=DIGEST_BYTES).hexdigest()
                return f"array {dtype(array.dtype).name} {list(array.shape)} {content}"
            case Graph():
                return f"graph {self.body(value)}"
            case tuple():
                return digest([self._attr(v) for v in value])
            case Attrs():
                return digest([part for name, v in value.items() for part in (name, self._attr(v))])
        raise TypeError(f"an attribute cannot hold {type(value).__name__}")
