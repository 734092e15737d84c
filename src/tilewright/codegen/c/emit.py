"""Flat loops as C11 that reads as a person would write it.

The function takes its buffers in order, then its symbols: `void f(const float *restrict A, float *restrict B,
int64_t n)`; its last ones may be workspaces, whose sizes a comment says. It is serial: loops of every kind become
ordinary loops, with a comment that says what they were; it has no thread number and no barrier (a function with the
symbol `nthreads` is called with 1). With OpenMP, parallel loops share their iterations (`nthreads` is how many do), and
those that were vectorised say so to the compiler. The text needs nothing but the C library (-lm) and computes what
`codegen.interpret` does, except that the library's transcendental functions may differ in the last place.
"""

from __future__ import annotations

from tilewright.arith import simplify
from tilewright.codegen.c.expr import COMPARE, UNARY, ExprEmitter
from tilewright.codegen.c.helpers import MEMORY_TYPES, VALUE_TYPES, helper
from tilewright.codegen.c.names import Identifiers
from tilewright.ir.c_functions import linked_name
from tilewright.ir.expr import Buffer, Expr, Var, as_int
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
    Seq,
    Stmt,
    Store,
)
from tilewright.ir.rewrite import buffers_in, c_calls_in, exprs_of, map_stmt, own_loads, variables, walk, walk_expr
from tilewright.ir.sharing import computed_first
from tilewright.schedule.external import externals_in, find_external, sizes_of
from tilewright.schedule.intrinsics import TensorIntrin, expand, find_intrinsic, is_known, values_of
from tilewright.schedule.state import written_buffers
from tilewright.schedule.tensorize import Operand, operands
from tilewright.support.errors import CompileError

STACK_BYTES = 64 * 1024
"""The largest buffer, in bytes, that is declared as a local array; larger ones, and those of symbolic size, are taken
from the heap."""

_LINE = 100
"""The largest length of a line of C, in columns; longer statements are broken."""


def emit_c(func: PrimFunc, *, openmp: bool = False) -> str:
    """The C text of a lowered function, with pragmas of OpenMP where they are wanted. Raises CompileError if it still
    has blocks or has unknown intrinsics."""
    expanded = map_stmt(func.body, lambda s: expand(s) if isinstance(s, Intrinsic) and not _is_call(s) else None)
    return Emitter(func.with_body(expanded), openmp).function()


def _is_call(s: Intrinsic) -> bool:
    """Whether a statement becomes a call of a C function: an external one, or that of an intrinsic."""
    return find_external(s.name) is not None or _intrinsic_of(s) is not None


def _intrinsic_of(s: Intrinsic) -> tuple[TensorIntrin, list[Operand]] | None:
    """(intrinsic with C text, its function's operands) of a statement that calls one; None for other statements."""
    intrin = find_intrinsic(s.name) if is_known(s.name) else None
    result = operands(intrin, s) if intrin is not None and intrin.c is not None else None
    return (intrin, result) if intrin is not None and result is not None else None


class Emitter:
    """Writes the C text of one function."""

    def __init__(self, func: PrimFunc, openmp: bool = False) -> None:
        self.func = func
        self.openmp = openmp
        self.identifiers = Identifiers()
        called = {x.linked for x in externals_in(func.body)} | {linked_name(x.name) for x in c_calls_in(func.body)}
        self.identifiers.used_names |= called
        self.names: dict[Var | Buffer, str] = {}
        self.extents: dict[Var, Expr] = {}
        self.exprs = ExprEmitter(self.names, self.extents)
        self.lines: list[str] = []
        self.parts = 0
        self.stored = set(written_buffers(func.body))
        self.prototypes: dict[str, str] = {}

    def function(self) -> str:
        func = self.func
        name = self.identifiers.take(func.name)
        arguments: list[Var | Buffer] = [*func.params, *func.symbols]
        for x in arguments:
            self.declare(x)
        body: Stmt = func.body
        for buffer in reversed(func.buffers):
            body = Allocate(buffer, body)
        if NTHREADS in func.symbols:
            self.declare(TID)
        self.statement(body, 1)
        if self.names.get(TID) in self.exprs.used and not self.openmp:  # else each loop that threads share has it
            self.lines.insert(0, f"    const int64_t {self.names[TID]} = 0;")
        unused = [f"    (void){self.names[x]};" for x in arguments if not self.is_used(x)]
        lines = [*self.workspaces(), *self.signature(name), *unused, *self.lines, "}"]
        outside = ["\n".join(self.exprs.externs.values())] if self.exprs.externs else []
        parts = [self.includes(), *self.helper_texts(), *outside, *self.prototypes.values(), "\n".join(lines)]
        return "\n\n".join(parts) + "\n"

    def workspaces(self) -> list[str]:
        """Comment lines with the sizes of the workspaces that a caller has to pass."""
        sizes = [
            f"// {self.names[b]}: a workspace of {simplify(b.size * b.dtype.itemsize)} bytes"
            for b in self.func.workspaces
        ]
        return [
            f"{line}{'' if b.align is None else f' at a multiple of {b.align}'}"
            for line, b in zip(sizes, self.func.workspaces, strict=True)
        ]

    def signature(self, name: str) -> list[str]:
        params = []
        for b in self.func.params:
            constant = "" if b in self.stored else "const "
            params.append(f"{constant}{self.memory_type(b)} *restrict {self.names[b]}")
        params += [f"{VALUE_TYPES[v.dtype.name]} {self.names[v]}" for v in self.func.symbols]
        return opening(f"void {name}", params)

    def includes(self) -> str:
        for name in self.all_helpers():
            self.exprs.headers.update(helper(name).headers)
        text = "\n".join([*self.lines, *self.helper_texts()])
        if "bool" in text or any(b.dtype.kind == "bool" for b in self.func.params):
            self.exprs.headers.add("stdbool.h")
        return "\n".join(f"#include <{header}>" for header in sorted(self.exprs.headers))

    def all_helpers(self) -> list[str]:
        """The helper functions that the text calls, each after those that it calls itself."""
        order: dict[str, None] = {}

        def add(name: str) -> None:
            for needed in helper(name).needs:
                add(needed)
            order[name] = None

        for name in self.exprs.helpers:
            add(name)
        return list(order)

    def helper_texts(self) -> list[str]:
        return [helper(name).text for name in self.all_helpers()]

    # Names

    def declare(self, x: Var | Buffer) -> str:
        name = self.names[x] = self.identifiers.take(x.name)
        return name

    def is_used(self, x: Var | Buffer) -> bool:
        return self.names[x] in self.exprs.used

    def memory_type(self, b: Buffer) -> str:
        return MEMORY_TYPES[b.dtype.name]

    # Statements

    def line(self, text: str, level: int) -> None:
        self.lines.append("    " * level + text)

    def statement(self, s: Stmt, level: int) -> None:
        text = self.exprs.text
        match s:
            case Seq(stmts):
                for child in stmts:
                    self.statement(child, level)
            case Store():
                self.compute_first(s.value, level)
                self.line(f"{self.exprs.element(s.buffer, s.indices)} = {self.exprs.stored(s.value)};", level)
                self.exprs.computed.clear()
            case For():
                self.loop(s, level)
            case Let():
                self.let(s, level)
            case If():
                self.line(f"if ({text(s.condition)}) {{", level)
                self.statement(s.then, level + 1)
                self.otherwise(s.orelse, level)
            case Allocate():
                self.allocate(s, level)
            case Intrinsic():
                if find_external(s.name) is not None:
                    self.call(s, level)
                else:
                    self.call_intrinsic(s, level)
            case Barrier():
                pass  # iterations run one after another
            case Block():
                raise CompileError("blocks have no C form; lower the function first", where=f"block {s.name!r}")

    def call(self, s: Intrinsic, level: int) -> None:
        """Write a call statement of the external function that `s` names, and record the function's declaration, which
        goes before the text."""
        external = find_external(s.name)
        assert external is not None
        places = [f"&{self.exprs.element(r.buffer, tuple(x for x, _ in r.ranges))}" for r in (*s.inputs, *s.outputs)]
        sizes = [self.exprs.text(size) for size in sizes_of(external, s)]
        kinds = [f"const {self.memory_type(r.buffer)} *" for r in s.inputs]
        kinds += [f"{self.memory_type(r.buffer)} *" for r in s.outputs]
        prototype = f"void {external.linked}({', '.join([*kinds, *['int64_t'] * len(sizes)])});"
        what = " // a Python function has this place" if external.python is not None else ""
        self.prototypes[external.linked] = prototype + what
        self.line(f"{external.linked}({', '.join([*places, *sizes])});", level)

    def call_intrinsic(self, s: Intrinsic, level: int) -> None:
        """Write a call statement of the C function of the intrinsic that `s` names, and record the function's text,
        which goes before."""
        result = _intrinsic_of(s)
        assert result is not None
        intrin, regions = result
        arguments: list[str] = []
        for region, strides in regions:
            arguments.append(f"&{self.exprs.element(region.buffer, tuple(x for x, _ in region.ranges))}")
            arguments += map(self.exprs.text, strides)
        values = values_of(intrin, s) or {}
        arguments += [self.exprs.text(values[symbol]) for symbol in intrin.symbols]
        self.prototypes[intrin.c_symbol] = (intrin.c or "").strip()
        self.line(f"{intrin.c_symbol}({', '.join(arguments)});", level)

    def otherwise(self, s: Stmt | None, level: int) -> None:
        if isinstance(s, If):
            self.line(f"}} else if ({self.exprs.text(s.condition)}) {{", level)
            self.statement(s.then, level + 1)
            self.otherwise(s.orelse, level)
            return
        if s is not None:
            self.line("} else {", level)
            self.statement(s, level + 1)
        self.line("}", level)

    def loop(self, s: For, level: int) -> None:
        end = self.exprs.text(s.extent, COMPARE + 1)
        i = self.declare(s.var)
        self.extents[s.var] = s.extent
        what = s.thread if s.kind == "thread" else s.kind
        pragma = self.pragma(s) if self.openmp else None
        comment = "" if s.kind == "serial" or pragma else f"  // {what}"
        if pragma:
            self.line(f"#pragma omp {pragma}", level)
        self.line(f"for (int64_t {i} = 0; {i} < {end}; ++{i}) {{{comment}", level)
        if pragma and s.kind == "parallel" and NTHREADS in self.func.symbols:
            self.exprs.headers.add("omp.h")
            self.line(f"const int64_t {self.names[TID]} = omp_get_thread_num();", level + 1)
        self.statement(s.body, level + 1)
        self.line("}", level)

    def pragma(self, s: For) -> str | None:
        """The OpenMP pragma for the loop `s`: `parallel for` if it is parallel, `simd` if it is vectorized; None for
        other loops. A vectorized loop that sums gets none, so that its order stays as C has it."""
        if s.kind == "parallel":
            return "parallel for" + (
                f" num_threads((int){self.exprs.name(NTHREADS)})" if NTHREADS in self.func.symbols else ""
            )
        own = {x.buffer for x in walk(s.body) if isinstance(x, Allocate)}
        stores = [x for x in walk(s.body) if isinstance(x, Store) and x.buffer not in own]
        lanes = all(any(s.var in variables(i) for i in x.indices) for x in stores)
        return "simd" if s.kind == "vectorized" and lanes else None

    def compute_first(self, e: Expr, level: int) -> None:
        """Write a constant variable for each subexpression of `e` that its text would otherwise repeat, if `e` is
        long."""
        for part in computed_first(e):
            text = self.exprs.text(part)
            self.parts += 1
            name = self.exprs.computed[part] = self.identifiers.take(f"t{self.parts}")
            self.line(f"const {VALUE_TYPES[part.dtype.name]} {name} = {text};", level)

    def let(self, s: Let, level: int) -> None:
        self.compute_first(s.value, level)
        value = self.exprs.text(s.value)
        self.exprs.computed.clear()
        if not self.exprs.is_index(s.value):
            self.exprs.data_variables.add(s.var)
        name = self.declare(s.var)
        self.line(f"const {VALUE_TYPES[s.var.dtype.name]} {name} = {value};", level)
        if not any(s.var in set(walk_expr(e)) for inner in walk(s.body) for e in exprs_of(inner)):
            self.line(f"(void){name};", level)
        self.statement(s.body, level)

    def allocate(self, s: Allocate, level: int) -> None:
        b = s.buffer
        if b not in buffers_in(s.body):
            self.statement(s.body, level)
            return
        size = as_int(b.size)
        kind = self.memory_type(b)
        # The extents are read before the name is declared, since they are evaluated outside its scope.
        extent = self.exprs.text(b.size, UNARY)
        name = self.declare(b)
        heap = size is None or size * b.dtype.itemsize > STACK_BYTES
        if heap:
            call = self.exprs.call("allocate", f"{extent} * sizeof({kind})")[0]
            self.line(f"{kind} *{name} = {call};", level)
        else:
            align = f"_Alignas({b.align}) " if b.align is not None and b.align > b.dtype.itemsize else ""
            self.line(f"{align}{kind} {name}[{max(1, size or 0)}];", level)
        if not any(load.buffer == b for inner in walk(s.body) for load in own_loads(inner)):
            self.line(f"(void){name};", level)
        self.statement(s.body, level)
        if heap:
            self.line(f"free({name});", level)


def opening(head: str, params: list[str]) -> list[str]:
    """The lines from `head` and `params` to the brace that begin a function's definition: one line, or one a parameter
    where that is too long."""
    line = f"{head}({', '.join(params) or 'void'}) {{"
    if len(line) <= _LINE:
        return [line]
    return [f"{head}(", *[f"    {p}," for p in params[:-1]], f"    {params[-1]}", ") {"]
