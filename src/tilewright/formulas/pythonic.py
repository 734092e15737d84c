"""Python functions as comprehensions. They are read from their source by `ast` and never run, so indices need no
definition, every error points at the line that was written, and nothing depends on what the function would do.

    @tw.comprehension
    def matmul(A: "f32[M, K]", B: "f32[K, N]"):
        C[m, n] = sum(A[m, k] * B[k, n])
        return C

`sum(x for k in range(lo, hi) if condition)` states a range and a condition.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tilewright.formulas.functions import CONSTANTS
from tilewright.formulas.parser import MAX_DEPTH, MAX_STATEMENTS, called, parse_declaration
from tilewright.formulas.source import At, Source
from tilewright.formulas.syntax import (
    REDUCERS,
    Apply,
    Declaration,
    Name,
    Node,
    Number,
    Program,
    Range,
    Read,
    Reduction,
    Size,
    Statement,
    conjunction,
)
from tilewright.support.errors import ComprehensionError, file_line

_BINARY: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip
_COMPARE: dict[type, str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def read_function(
    function: Callable[..., Any], constants: Mapping[str, bool | int | float]
) -> tuple[Source, Program, tuple[str, ...]]:
    """The source, the program and the inputs of a function. Parameters with a default that is a number are constants.
    Raises ComprehensionError."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        hint = "write it in a file, or give tw.comprehension a text"
        raise ComprehensionError("the function's source cannot be found", got=repr(function), hint=hint) from None
    text = textwrap.dedent("".join(lines))
    file = file_line(inspect.getsourcefile(function) or "function", 0).rpartition(":")[0]
    source = Source(text, file, first)
    tree = ast.parse(text)
    result = tree.body[0]
    if len(tree.body) != 1 or not isinstance(result, ast.FunctionDef):
        source.fail("not a function", (0, 1), expected="def f(A, B): ...")
    return source, *_Reader(source, constants).function(result)


class _Reader:
    def __init__(self, source: Source, constants: Mapping[str, bool | int | float]) -> None:
        self.source = source
        self.constants = dict(constants)
        self.starts = [0]
        for line in source.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.depth = 0

    def at(self, node: Any) -> At:
        """The offsets of a node of Python's syntax tree in the source. Python counts columns in bytes."""

        def offset(line: int, column: int) -> int:
            text = self.source.text[self.starts[line - 1] : self.starts[line]]
            return self.starts[line - 1] + len(text.encode()[:column].decode(errors="replace"))

        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    def fail(self, what: str, node: Any, **details: Any) -> NoReturn:
        self.source.fail(what, self.at(node), **details)

    def function(self, f: ast.FunctionDef) -> tuple[Program, tuple[str, ...]]:
        inputs, declarations = self.parameters(f)
        statements: list[Statement] = []
        results: tuple[Name, ...] | None = None
        body = f.body[1:] if ast.get_docstring(f) is not None else f.body
        for line in body:
            if results is not None:
                self.fail("nothing stands after return", line)
            if isinstance(line, ast.Return) and line.value is not None:
                results = self.results(line.value)
            elif isinstance(line, ast.Assign) and len(line.targets) == 1:
                statements.append(self.statement(line))
            else:
                hint = "C[i] = sum(A[i, k]); return C"
                self.fail("not a statement of a comprehension", line, expected="assignments and return", hint=hint)
            if len(statements) > MAX_STATEMENTS:
                self.fail("there are too many statements", line, expected=f"at most {MAX_STATEMENTS}")
        if not statements:
            self.fail("the function computes nothing", f)
        return Program(tuple(declarations), tuple(statements), results), inputs

    def parameters(self, f: ast.FunctionDef) -> tuple[tuple[str, ...], list[Declaration]]:
        a = f.args
        if a.vararg is not None or a.kwarg is not None:
            self.fail("a comprehension has a fixed number of inputs", a.vararg or a.kwarg)
        arguments = [*a.posonlyargs, *a.args]
        defaults = dict(zip([p.arg for p in arguments[len(arguments) - len(a.defaults) :]], a.defaults, strict=True))
        defaults |= {p.arg: d for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None}
        inputs: list[str] = []
        declarations: list[Declaration] = []
        for p in (*arguments, *a.kwonlyargs):
            if p.arg in self.constants:
                continue
            if p.arg in defaults:
                value = self.expression(defaults[p.arg])
                if not isinstance(value, Number):
                    self.fail(f"the default of {p.arg!r} is no number", defaults[p.arg])
                self.constants[p.arg] = value.value
                continue
            inputs.append(p.arg)
            if p.annotation is not None:
                declarations += self.declared(p.arg, p.annotation)
        return tuple(inputs), declarations

    def declared(self, name: str, annotation: ast.expr) -> list[Declaration]:
        """The declarations of the parameter `name` by an annotation such as `"f32[M, K]"`; an annotation that is no
        string, such as np.ndarray, declares nothing. Raises ComprehensionError for other strings."""
        if not isinstance(annotation, ast.Constant) or not isinstance(annotation.value, str):
            return []
        start, end = self.at(annotation)
        inner = Source(annotation.value, self.source.name, self.source.line)
        try:
            created = parse_declaration(name, inner)
        except ComprehensionError as error:
            self.fail(error.what, annotation, expected=error.expected or 'a type such as "f32[M, K]"', got=error.got)
        return [created.moved((start, end))]

    def results(self, value: ast.expr) -> tuple[Name, ...]:
        items = value.elts if isinstance(value, ast.Tuple) else [value]
        for item in items:
            if not isinstance(item, ast.Name):
                self.fail("what is given back is a name", item, hint="compute it in a statement before")
        return tuple(Name(item.id, self.at(item)) for item in items if isinstance(item, ast.Name))

    def statement(self, line: ast.Assign) -> Statement:
        target = line.targets[0]
        indices: tuple[Name, ...] = ()
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            indices = tuple(self.index(n) for n in _items(target.slice))
            name = target.value.id
        elif isinstance(target, ast.Name):
            name = target.id
        else:
            self.fail("not a result", target, expected="C[m, n] = ...")
        return Statement(name, indices, None, self.expression(line.value), at=self.at(target))

    def index(self, node: ast.expr) -> Name:
        if not isinstance(node, ast.Name):
            self.fail("an index on the left is a name", node)
        return Name(node.id, self.at(node))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def expression(self, e: ast.expr) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail("the expression is nested too deeply", e, expected=f"{MAX_DEPTH} levels")
        created = self.node(e)
        self.depth -= 1
        return created

    def node(self, e: ast.expr) -> Node:
        at = self.at(e)
        match e:
            case ast.Constant(value=bool() | int() | float() as value):
                if isinstance(value, int) and abs(value) >= 1 << 63:
                    self.fail("the number is too large", e)
                return Number(value, at)
            case ast.Name(id=name):
                known = CONSTANTS.get(name, self.constants.get(name))
                return Name(name, at) if known is None else Number(known, at)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return Apply(_BINARY[type(op)], (self.expression(left), self.expression(right)), at)
            case ast.BoolOp(op=op, values=values):
                word = "and" if isinstance(op, ast.And) else "or"
                parts = [self.expression(v) for v in values]
                result = parts[0]
                for part in parts[1:]:
                    result = Apply(word, (result, part), at)
                return result
            case ast.UnaryOp(op=op, operand=operand):
                return self.unary(op, self.expression(operand), e)
            case ast.Compare():
                return self.comparison(e)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return Apply("if", (self.expression(body), self.expression(test), self.expression(orelse)), at)
            case ast.Call():
                return self.call(e)
            case ast.Subscript():
                return self.subscript(e)
        hint = "and, or and not join conditions" if isinstance(e, ast.BinOp | ast.UnaryOp) else None
        self.fail("not an expression of a comprehension", e, hint=hint)

    def unary(self, op: ast.unaryop, inner: Node, e: ast.expr) -> Node:
        if isinstance(op, ast.UAdd):
            return inner
        if isinstance(op, ast.Not):
            return Apply("not", (inner,), self.at(e))
        if not isinstance(op, ast.USub):
            self.fail("not an operator of a comprehension", e, hint="not inverts a condition")
        if isinstance(inner, Number) and not isinstance(inner.value, bool):
            return Number(-inner.value, self.at(e))
        return Apply("neg", (inner,), self.at(e))

    def comparison(self, e: ast.Compare) -> Node:
        left = self.expression(e.left)
        parts: list[Node] = []
        for op, other in zip(e.ops, e.comparators, strict=True):
            if type(op) not in _COMPARE:
                self.fail("not a comparison of elements", e, expected="< <= > >= == !=")
            right = self.expression(other)
            parts.append(Apply(_COMPARE[type(op)], (left, right), self.at(e)))
            left = right
        created = conjunction(parts)
        assert created is not None
        return created

    def call(self, e: ast.Call) -> Node:
        over: tuple[Name, ...] | None = None
        function = e.func
        if isinstance(function, ast.Subscript) and isinstance(function.value, ast.Name):
            over = tuple(self.index(n) for n in _items(function.slice))
            function = function.value
        if isinstance(function, ast.Attribute):  # np.exp, math.exp, torch.exp
            word = function.attr
        elif isinstance(function, ast.Name):
            word = function.id
        else:
            self.fail("not a function of elements", e)
        if e.keywords:
            self.fail(f"{word} takes no keywords", e)
        if len(e.args) == 1 and isinstance(e.args[0], ast.GeneratorExp) and word in REDUCERS and over is None:
            return self.generator(word, e.args[0], self.at(e))
        args = tuple(self.expression(a) for a in e.args)
        created = called(self.source, Name(word, self.at(function)), args, self.at(e))
        if over is None:
            return created
        if not isinstance(created, Reduction):
            self.fail(f"{word} is no reduction", e)
        return Reduction(created.reducer, created.body, over, at=created.at)

    def generator(self, word: str, e: ast.GeneratorExp, at: At) -> Node:
        """The reduction `word` of a generator: `sum(x for k in range(lo, hi) if condition)`."""
        ranges: list[Range] = []
        conditions: list[Node] = []
        for g in e.generators:
            target = self.index(g.target)
            call = g.iter
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
                self.fail("an index runs over a range", call, expected="range(lo, hi)")
            if not 1 <= len(call.args) <= 2 or call.keywords:
                self.fail("a range has one end or two", call, expected="range(lo, hi)")
            ends = [self.expression(a) for a in call.args]
            lo = ends[0] if len(ends) == 2 else Number(0, target.at)
            ranges.append(Range(target.name, lo, ends[-1], self.at(g.target)))
            conditions += [self.expression(c) for c in g.ifs]
        over = tuple(self.index(g.target) for g in e.generators)
        body = self.expression(e.elt)
        return Reduction(word, body, over, tuple(ranges), conjunction(conditions), at)  # type: ignore[arg-type]

    def subscript(self, e: ast.Subscript) -> Node:
        """The node of a subscript: the read `A[i, k]`, or the size `A.shape[0]`."""
        at = self.at(e)
        match e.value:
            case ast.Name(id=name):
                return Read(name, tuple(self.expression(n) for n in _items(e.slice)), at=at)
            case ast.Attribute(value=ast.Name(id=name), attr="shape"):
                if isinstance(e.slice, ast.Constant) and isinstance(e.slice.value, int) and 0 <= e.slice.value < 64:
                    return Size(name, e.slice.value, at)
        self.fail("not a read of a tensor", e, expected="A[i, k] or A.shape[0]")


def _items(e: ast.expr) -> list[ast.expr]:
    return list(e.elts) if isinstance(e, ast.Tuple) else [e]
