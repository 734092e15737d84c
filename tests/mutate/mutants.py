"""Mutants of a source file: small wrong changes to the bodies of its functions, one at a time.

    a comparison turned      a < b          ->  a <= b
    a constant off by one    x[1:]          ->  x[2:]
    and for or               a and b        ->  a or b
    a lost not               not a          ->  a
    plus for minus           a + b          ->  a - b
    a condition forced       if a:          ->  if True:
    a lost value             return a       ->  return None
    a turned answer          return False   ->  return True
    break for continue       break          ->  continue

Only what a function computes is changed: no annotation, docstring, default or decorator, no `assert` (it narrows a
type), no `raise` (its text is for people), nothing in `__repr__` or `__str__` and no call of a logger.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.support.collection import without_collection

STRICTER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
FOR_PEOPLE = {"__repr__", "__str__"}
LOGGERS = {"log", "logger", "_log"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: `new` stands for the text between two places of a file.

    `before` and `after` are the statement's first line as Python prints it: with path and function they name the mutant
    for as long as that statement stays, wherever it moves to.
    """

    path: str
    function: str
    line: int
    kind: str
    before: str
    after: str
    start: tuple[int, int]
    end: tuple[int, int]
    new: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.function, self.before, self.after

    def apply(self, source: str) -> str:
        """The file's text with this change. Columns count bytes, as `ast` does."""
        lines = source.encode().splitlines(keepends=True)
        (first, left), (last, right) = self.start, self.end
        lines[first - 1 : last] = [lines[first - 1][:left] + self.new.encode() + lines[last - 1][right:]]
        return b"".join(lines).decode()


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    results = [m for scope, body in _functions(_parsed(source)) for s in body for m in _of_statement(path, scope, s)]
    return sorted(results, key=lambda m: (m.start, m.end, m.kind, m.after))


def _parsed(source: str) -> ast.Module:
    """The tree of a file. CPython's parser counts its depth for all threads together (gh-106905, mended in 3.11.8): a
    collection in the middle of it may let another thread parse, and then it raises SystemError."""
    with without_collection():
        return ast.parse(source)


REFUSALS = {"refuse", "refused", "ScheduleError", "ExpressionError"}
"""Names of the functions that build the error of a legality check."""


def checks(path: str, source: str) -> list[Mutant]:
    """The legality checks of a file, each as the mutant without it: `raise refuse(...)` -> `pass`."""
    results = []
    for scope, body in _functions(_parsed(source)):
        for node in (n for s in body for n in ast.walk(s) if isinstance(n, ast.Raise)):
            match node.exc:
                case ast.Call(ast.Name(name)) if name in REFUSALS:
                    results.append(_mutant(path, scope, "a check taken out", node, _header(node), "pass", "pass"))
    return sorted(results, key=lambda m: m.start)


def _functions(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, list[ast.stmt]]]:
    """The bodies of all outermost functions and methods, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in FOR_PEOPLE:
                yield f"{scope}{node.name}", node.body
        else:
            yield from _functions(node, f"{scope}{node.name}." if isinstance(node, ast.ClassDef) else scope)


def _of_statement(path: str, scope: str, statement: ast.stmt | ast.match_case) -> Iterator[Mutant]:
    """The mutants of a statement and of those inside it."""
    if isinstance(statement, ast.Assert | ast.Raise | ast.Import | ast.ImportFrom) or _is_log(statement):
        return
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        scope = f"{scope}.{statement.name}"
    else:
        yield from _own(path, scope, statement)
    for name in ("body", "orelse", "finalbody", "cases", "handlers"):
        for inner in getattr(statement, name, ()):
            yield from _of_statement(path, scope, inner)


def _is_log(statement: ast.AST) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name)))):
            return name in LOGGERS
    return False


def _own(path: str, scope: str, statement: ast.stmt | ast.match_case) -> Iterator[Mutant]:
    """The mutants of what a statement says itself, without the statements inside it."""
    before = _header(statement)
    match statement:
        case ast.Break() | ast.Continue():
            other = "continue" if isinstance(statement, ast.Break) else "break"
            yield _mutant(path, scope, "break for continue", statement, before, other, other)
        case ast.Return(ast.Constant(bool(value))):  # Nothing is as false as False.
            yield _mutant(
                path, scope, "a turned answer", statement, before, f"return {not value}", f"return {not value}"
            )
        case ast.Return(value) if value is not None and not _is_none(value):
            yield _mutant(path, scope, "a lost value", statement, before, "return None", "return None")
        case ast.AugAssign(op=op) if new_op := SWAPPED.get(type(op)):
            statement.op = new_op()
            text = ast.unparse(statement)
            statement.op = op
            yield _mutant(path, scope, "plus for minus", statement, before, text, text)
    for site in _sites(statement):
        for kind, node in _changes(site):
            site.put(node)
            after, text = _header(statement), _print(site.anchor or node)
            site.put(site.node)
            if text is not None and after != before:
                yield _mutant(path, scope, kind, site.anchor or site.node, before, after, f"({text})")


def _mutant(path: str, scope: str, kind: str, node: ast.AST, before: str, after: str, new: str) -> Mutant:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return Mutant(path, scope, start[0], kind, before, after, start, end, new)


@dataclass(frozen=True, slots=True)
class _Site:
    """An expression and where it hangs. `anchor` is the formatted string around it: the places inside one mean nothing
    before Python 3.12, so the whole string is written anew."""

    node: ast.expr
    parent: ast.AST
    field: str
    index: int | None
    anchor: ast.expr | None

    def put(self, node: ast.expr) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    @property
    def is_condition(self) -> bool:
        return self.field == "test" or (self.field, type(self.parent)) == ("ifs", ast.comprehension)


SKIPPED = {"annotation", "pattern", "body", "orelse", "finalbody", "cases", "handlers", "format_spec"}
"""Fields that hold no expression of the statement's own, or one that is never changed."""


def _sites(node: ast.AST, anchor: ast.expr | None = None) -> Iterator[_Site]:
    """The expressions of a statement, outer before inner."""
    for field, value in ast.iter_fields(node):
        if field in SKIPPED and not (field in ("body", "orelse") and isinstance(node, ast.IfExp | ast.Lambda)):
            continue
        children: Sequence[object] = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.expr | ast.comprehension | ast.keyword | ast.withitem):
                continue
            inner = anchor or (child if isinstance(child, ast.JoinedStr) else None)
            if isinstance(child, ast.expr):
                yield _Site(child, node, field, index if isinstance(value, list) else None, anchor)
            yield from _sites(child, inner)


def _changes(site: _Site) -> Iterator[tuple[str, ast.expr]]:
    """The expressions that may stand in an expression's place."""
    node = site.node
    match node:
        case ast.Compare(left, ops, comparators):
            for k, op in enumerate(ops):
                transposed = [*ops[:k], STRICTER[type(op)](), *ops[k + 1 :]]
                yield "a comparison turned", ast.Compare(left, transposed, comparators)
        case ast.Constant(value) if type(value) is int:
            yield "a constant off by one", ast.Constant(value + 1)
        case ast.BoolOp(op, values):
            yield "and for or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "a lost not", operand
        case ast.BinOp(left, op, right) if new_op := SWAPPED.get(type(op)):
            yield "plus for minus", ast.BinOp(left, new_op(), right)
    if site.is_condition and not isinstance(node, ast.Constant):
        yield "a condition forced", ast.Constant(False)
        if not isinstance(site.parent, ast.While):
            yield "a condition forced", ast.Constant(True)


def _print(node: ast.AST) -> str | None:
    """A node as text; none for the formatted strings that Python cannot print back."""
    try:
        return ast.unparse(node)
    except ValueError:
        return None


def _header(statement: ast.AST) -> str:
    """A statement's text without the statements inside it."""
    retained = {name: getattr(statement, name) for name in ("body", "orelse", "finalbody", "cases", "handlers")
            if isinstance(getattr(statement, name, None), list)}  # fmt: skip
    for name in retained:
        setattr(statement, name, [])
    try:
        return _print(statement) or ""
    finally:
        for name, value in retained.items():
            setattr(statement, name, value)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
