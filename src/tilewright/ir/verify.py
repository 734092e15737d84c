"""The rules of the two IRs, checked: after every pass, and on everything that was parsed.

`verify_func` and `verify_graph` raise one VerifyError that lists all problems. What an operator of a graph accepts is
known above this layer, so it comes as a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import DType, boolean, i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Var
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.loops import (
    NTHREADS,
    TID,
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
from tilewright.ir.notes import THREADS, Origin, Workspaces, find
from tilewright.ir.notetable import BlockNote, FuncNote, LoopNote, Note, problems
from tilewright.ir.printer import buffer_text
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import loads, variables, walk_expr
from tilewright.ir.scopes import GROUPS, known_scopes
from tilewright.support.errors import Problems, VerifyError

NodeCheck = Callable[[Node], Iterable[str]]
"""A function from a node to the problems of its inputs, attributes and output types, in words; none if it is right."""


def verify_func(func: PrimFunc) -> None:
    """Check a loop program, before or after lowering. Raises VerifyError.

    Variables, buffers and blocks have unique names (each kind its own); variables are defined where they are used, in a
    block only its own iterators, symbols and what it binds inside; buffers are declared and used as declared; indices
    and extents are i64, conditions bool. Notes, scopes and hardware indices are those of `ir/notes.py`.
    """
    verifier = _FuncVerifier(func)
    verifier.run()
    verifier.problems.raise_if_any(where=f"func {func.name!r}", kind=VerifyError)


def verify_graph(graph: Graph, check: NodeCheck | None = None, enclosing: Iterable[Var] = ()) -> None:
    """Check a graph and the bodies in it: single assignment in order, agreeing types, known symbols, among them those
    of the graph `enclosing` a body. Raises VerifyError."""
    problems = Problems()
    symbols = {*graph.symbols, *enclosing}
    known: dict[str, Value] = {}

    def define(value: Value, where: str) -> None:
        if value.name in known:
            problems.add(VerifyError("is defined twice", where=f"{where}, value {value.name!r}"))
        known[value.name] = value
        for problem in _type_problems(value.type, symbols):
            problems.add(VerifyError(problem, where=f"{where}, value {value.name!r}"))

    def use(value: Value, where: str) -> None:
        entry = known.get(value.name)
        if entry is None:
            problems.add(VerifyError("is used but not defined before", where=f"{where}, value {value.name!r}"))
        elif entry != value:
            problems.add(
                VerifyError(
                    "is used with another type",
                    where=f"{where}, value {value.name!r}",
                    expected=entry.type,
                    got=value.type,
                )
            )

    for wrong in _assumption_problems(graph):
        problems.add(wrong)
    for value in graph.inputs:
        define(value, "inputs")
    for value in graph.params:
        define(value, "params")
    for i, node in enumerate(graph.nodes):
        where = f"node {i} ({node.op})"
        for used in node.inputs:
            if used is not None:
                use(used, where)
        for body in node.bodies:
            if body.assumptions:
                problems.add(VerifyError("has a body that assumes something", where=where))
            try:
                verify_graph(body, check, symbols)
            except VerifyError as error:
                problems.add(VerifyError("has a body that is not what it must be", where=where, problems=error.each()))
        if check is not None and len(problems) == 0:
            for problem in check(node):
                problems.add(VerifyError(problem, where=where))
        if node.defines is not None:
            if node.defines in symbols:
                problems.add(VerifyError(f"defines {node.defines}, which there is already", where=where))
            symbols.add(node.defines)
        for value in node.outputs:
            define(value, where)
    for value in graph.outputs:
        use(value, "outputs")
    problems.raise_if_any(where=f"graph {graph.name!r}", kind=VerifyError)


def _assumption_problems(graph: Graph) -> Iterable[VerifyError]:
    """Yield the problems of assumptions that are not conditions over the symbols of the inputs."""
    known = set(graph.symbols)
    for a in graph.assumptions:
        where = f"assumption {str(a)[:200]}"
        if a.condition.dtype is not boolean:
            yield VerifyError(f"is {a.condition.dtype}, not bool", where=where)
        leaves = [e for e in walk_expr(a.condition) if not e.children and not isinstance(e, Const)]
        unknown = sorted({str(e) for e in leaves if e not in known})
        if unknown or loads(a.condition):
            yield VerifyError(
                f"mentions {', '.join(unknown) or 'an array'}, which is no symbol of an input", where=where
            )


def _type_problems(type: TensorType, symbols: AbstractSet[Var]) -> list[str]:
    results = []
    for dim in type.shape:
        if dim.dtype is not i64:
            results.append(f"the extent {dim} is {dim.dtype}, not i64")
        unknown = [str(e) for e in walk_expr(dim) if isinstance(e, Var) and e not in symbols]
        if unknown:
            results.append(f"the extent {dim} uses {', '.join(unknown)}, which is no symbol of the graph's inputs")
        if any(isinstance(e, Load | Reduce) for e in walk_expr(dim)):
            results.append(f"the extent {dim} depends on data")
    return results


def _wrong_everywhere(e: Expr) -> list[str]:
    """The problems of an expression that it has at any place, in words."""
    results = []
    for node in walk_expr(e):
        if isinstance(node, Load):
            wrong = [index for index in node.indices if index.dtype is not i64]
            results += [f"{node} is indexed with {index.dtype}, not i64" for index in wrong]
        elif isinstance(node, Reduce):
            results.append("a reduction stands inside a loop program")
    return results


class _FuncVerifier:
    """One walk over a function. `scope` holds the variables that may be used at the place where the walk is."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.problems = Problems()
        self.symbols = frozenset(func.symbols)
        self.buffers: dict[str, Buffer] = {}
        self.declared: set[str] = set()
        self.variables: set[str] = {v.name for v in self.symbols}
        self.blocks: set[str] = set()
        self.used: dict[Expr, tuple[tuple[Var, ...], tuple[Load, ...]]] = {}

    def run(self) -> None:
        if len(self.variables) < len(self.symbols):
            self.report("two symbols have one name", "parameters")
        for buffer in self.func.params:
            self.declare(buffer, "parameters", self.symbols)
        for buffer in self.func.buffers:
            self.declare(buffer, "buffers", self.symbols)
        self.notes(self.func.notes, FuncNote, "notes")
        workspaces = find(self.func.notes, Workspaces)
        if workspaces is not None and workspaces.count > len(self.func.params):
            self.report("more workspaces than parameters", "notes", f"<= {len(self.func.params)}", workspaces.count)
        scope = self.symbols | {TID} if NTHREADS in self.symbols else self.symbols
        self.statement(self.func.body, scope, "body")

    def report(self, what: str, where: str, expected: object = None, got: object = None) -> None:
        self.problems.add(VerifyError(what, where=where, expected=expected, got=got))

    def notes(self, notes: Sequence[Note], place: type[Note], where: str) -> None:
        for problem in problems(notes, place):
            problem.where = where
            self.problems.add(problem)

    def declare(self, buffer: Buffer, where: str, scope: frozenset[Var]) -> None:
        where = f"{where}, buffer {buffer.name!r}"
        if buffer.name in self.declared:
            self.report("is declared twice", where)
        self.declared.add(buffer.name)
        self.buffers[buffer.name] = buffer
        if buffer.scope not in known_scopes():
            self.report("has an unknown scope", where, f"one of {', '.join(known_scopes())}", repr(buffer.scope))
        for extent in buffer.shape:
            self.integer(extent, "an extent", scope, where)

    def bind(self, var: Var, where: str, dtype: DType = i64) -> None:
        if var.name in self.variables:
            self.report(f"the variable {var.name!r} is bound twice", where)
        self.variables.add(var.name)
        if var.dtype is not dtype:
            self.report(f"the variable {var.name!r} has the wrong type", where, dtype, var.dtype)

    # Expressions

    def expr(self, e: Expr, scope: frozenset[Var], where: str) -> None:
        """Report variables of `e` that are not in `scope`, undeclared buffers, and indices that are not i64; `where`
        says which statement has the expression."""
        used = self.used.get(e)
        if used is None:
            used = self.used[e] = self._survey(e, where)
        own, read = used
        for v in own:
            if v not in scope:
                self.report(self._out_of_scope(v, scope), where)
        for load in read:
            self.buffer(load.buffer, where)

    def _survey(self, e: Expr, where: str) -> tuple[tuple[Var, ...], tuple[Load, ...]]:
        """(variables, loads) of `e`; reports, at `where`, its problems that do not depend on its place."""
        for problem in _wrong_everywhere(e):
            self.report(problem, where)
        return variables(e), loads(e)

    def _out_of_scope(self, v: Var, scope: frozenset[Var]) -> str:
        twin = next((other for other in scope if other.name == v.name), None)
        if twin is not None:
            return f"the variable {v.name!r} is used with another type or range than it was bound with"
        return f"the variable {v.name!r} is not defined here"

    def buffer(self, buffer: Buffer, where: str) -> None:
        declared = self.buffers.get(buffer.name)
        if declared is None:
            self.report(f"the buffer {buffer.name!r} is not declared", where)
        elif declared != buffer:
            self.report(
                f"the buffer {buffer.name!r} is used otherwise than declared",
                where,
                buffer_text(declared),
                buffer_text(buffer),
            )

    def integer(self, e: Expr, what: str, scope: frozenset[Var], where: str) -> None:
        self.expr(e, scope, where)
        if e.dtype is not i64:
            self.report(f"{what} is {e.dtype}, not i64: {e}", where)

    def condition(self, e: Expr, scope: frozenset[Var], where: str) -> None:
        self.expr(e, scope, where)
        if e.dtype is not boolean:
            self.report(f"a condition is {e.dtype}, not bool: {e}", where)

    # Statements

    def statement(self, s: Stmt, scope: frozenset[Var], where: str) -> None:
        match s:
            case Seq(stmts):
                if len(stmts) == 1 or any(isinstance(child, Seq) for child in stmts):
                    self.report("a sequence is nested or has one statement", where)
                for child in stmts:
                    self.statement(child, scope, where)
            case Store():
                self.buffer(s.buffer, where)
                for index in s.indices:
                    self.integer(index, f"an index of {s.buffer.name}", scope, where)
                self.expr(s.value, scope, where)
                if s.value.dtype is not s.buffer.dtype:
                    self.report(f"a value stored into {s.buffer.name} has the wrong type", where)
            case For():
                self.loop(s, scope)
            case Block():
                self.block(s, scope)
            case Let():
                self.expr(s.value, scope, where)
                self.bind(s.var, where, s.value.dtype)
                self.statement(s.body, scope | {s.var}, where)
            case If():
                self.condition(s.condition, scope, where)
                for child in s.children:
                    self.statement(child, scope, where)
            case Allocate():
                self.declare(s.buffer, where, scope)
                self.statement(s.body, scope, where)
                self.buffers.pop(s.buffer.name, None)
            case Intrinsic():
                for region in (*s.outputs, *s.inputs):
                    self.region(region, scope, f"{where}, intrinsic {s.name!r}")
            case Barrier(group, pending):
                if group not in GROUPS:
                    self.report("a barrier of an unknown group", where, f"one of {', '.join(GROUPS)}", repr(group))
                if pending < 0 or (pending and group != "block"):
                    self.report("copies under way at a barrier", where, "0 or more, of a block", f"{pending} ({group})")
            case _:
                self.report(f"{type(s).__name__} is not a statement", where)

    def loop(self, s: For, scope: frozenset[Var]) -> None:
        where = f"loop {s.var.name!r}"
        self.integer(s.extent, "the extent", scope, where)
        self.bind(s.var, where)
        if (s.kind == "thread") != (s.thread is not None):
            self.report("a loop names a hardware index exactly if its kind is 'thread'", where)
        if s.thread is not None and s.thread not in THREADS:
            self.report("an unknown hardware index", where, f"one of {', '.join(THREADS)}", repr(s.thread))
        self.notes(s.notes, LoopNote, where)
        self.statement(s.body, scope | {s.var}, where)

    def block(self, s: Block, scope: frozenset[Var]) -> None:
        where = f"block {s.name!r}"
        if s.name in self.blocks:
            self.report("is a second block of this name", where)
        self.blocks.add(s.name)
        self.notes(s.notes, BlockNote, where)
        origin = find(s.notes, Origin)
        for e in origin.attrs.exprs if origin is not None and isinstance(origin.attrs, Attrs) else ():
            self.expr(e, self.symbols, f"{where}, an attribute of its operator")
        self.condition(s.predicate, scope, where)
        for it in s.iters:
            self.integer(it.binding, f"the binding of {it.var.name}", scope, where)
            self.integer(it.extent, f"the extent of {it.var.name}", self.symbols, where)
            self.bind(it.var, where)
        inside = self.symbols | {it.var for it in s.iters}
        if s.init is not None:
            if not s.is_reduction:
                self.report("has an init but no reduction iterator", where)
            self.statement(s.init, inside - {it.var for it in s.iters if it.kind == "reduce"}, f"{where}, init")
        self.statement(s.body, inside, where)

    def region(self, region: Region, scope: frozenset[Var], where: str) -> None:
        self.buffer(region.buffer, where)
        if len(region.ranges) != len(region.buffer.shape):
            self.report(f"a region of {region.buffer.name} has the wrong number of dimensions", where)
        for start, extent in region.ranges:
            self.integer(start, "a region's start", scope, where)
            self.integer(extent, "a region's extent", scope, where)
