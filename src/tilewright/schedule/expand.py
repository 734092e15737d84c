"""expand: a contraction with a small constant matrix becomes straight-line code with shared subexpressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import product

from tilewright.arith.straight import Straight, Terms, straight_line
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Op, Var, as_int, call, const, is_const
from tilewright.ir.loops import Block, BlockIter, For, Let, PrimFunc, Seq, Stmt, Store, seq
from tilewright.ir.rewrite import fresh_name, substitute, variables, walk_expr
from tilewright.schedule.dependence import Update, reduction_update
from tilewright.schedule.primitive import on_block
from tilewright.schedule.state import (
    Path,
    block_path,
    depends_on,
    last_block,
    refuse,
    replace_at,
    stores_in,
    used_names_of,
)

MAX_TERMS = 4096
"""The largest number of elements of a constant matrix that is expanded."""
_SIMPLE = 4096
"""The largest denominator of the fractions that a literal is taken to be a rounding of, such as 1/3 for 0.33333334."""


@on_block
def expand(func: PrimFunc, block: str) -> PrimFunc:
    """Write out a contraction with a constant matrix: no loops over the matrix, no products by 0 or 1.

    Before; the table is the matrix `[[1, 1, 0], [0, 1, -1], [0, 1, 2]]`::

        for t in 0..n:
            for i in 0..3:
                for r in 0..3:
                    block y(vt = t, vi = i, reduce vr = r):
                        init y[vt, vi] = 0
                        y[vt, vi] = y[vt, vi] + lookup(vi * 3 + vr, 1, 1, 0, 0, 1, -1, 0, 1, 2) * x[vt, vr]

    After `expand("y")`; every element that is read is loaded once::

        for t in 0..n:
            block y(vt = t):
                let x_0 = x[vt, 0]
                let x_1 = x[vt, 1]
                y[vt, 0] = x_0 + x_1
                let x_2 = x[vt, 2]
                y[vt, 1] = x_1 - x_2
                y[vt, 2] = fma(x_2, 2, x_1)

    The loops that drive the reduction and the iterators in the table's index go, the others stay (to be vectorized).
    Sums are shared and reassociated as in `arith.straight`. Refuses blocks that are no sums, or have lost their init;
    factors that are not finite; loops that are not whole, serial and the block's own.
    """
    path = block_path(func, block)
    source = last_block(path)
    what = f"cannot expand block {block!r}"
    update = reduction_update(source)
    if update is None or update.op != "add" or not is_const(update.condition, True):
        raise refuse(func, f"{what}: it is not a sum")
    if source.init is None or not all(is_const(s.value, 0) for s in stores_in(source.init)):
        raise refuse(func, f"{what}: it does not start from 0 itself", hint="expand before decompose_reduction")
    gone = _constant_iters(func, source, update, what)
    dropped = _dropped_loops(func, path, gone, what)
    columns, rows, places = _linear(func, source, update, gone, what)
    program = straight_line(rows, whole=not update.target.buffer.dtype.is_float)
    body = _Writer(used_names_of(func), columns, update.target.buffer.dtype).body(program, update, places)
    retained = tuple(it for it in source.iters if it not in gone)
    return replace_at(func, *_without(path, dropped, replace(source, iters=retained, body=body, init=None)))


def _constant_iters(func: PrimFunc, source: Block, update: Update, what: str) -> tuple[BlockIter, ...]:
    """The iterators that `expand` writes out, in the block `source` with the statement `update`: the reduction's, and
    the iterators in the index of a table. Raises ScheduleError, whose text begins with `what`, if there is no table, or
    too many terms."""
    indices = [e.args[0] for e in walk_expr(update.value) if isinstance(e, Op) and e.name == "lookup"]
    if not indices:
        raise refuse(func, f"{what}: it has no constant matrix", hint="te.const_matrix makes one")
    named = {v for index in indices for v in variables(index)}
    gone = tuple(it for it in source.iters if it.kind == "reduce" or it.var in named)
    size = 1
    for it in gone:
        extent = as_int(it.extent)
        if extent is None:
            raise refuse(func, f"{what}: the extent {it.extent} of {it.var.name!r} is not constant")
        size *= extent
    if size > MAX_TERMS:
        raise refuse(func, f"{what}: {size} terms are too many", expected=f"<= {MAX_TERMS}")
    return gone


def _dropped_loops(func: PrimFunc, path: Path, gone: Sequence[BlockIter], what: str) -> list[For]:
    """The loops at the end of `path`, one for each iterator in `gone`, that drive just this iterator over its whole
    extent. Raises ScheduleError, whose text begins with `what`, if there is no such loop."""
    source = last_block(path)
    own: list[For] = []
    for stmt in reversed(path[:-1]):
        if not isinstance(stmt, For):
            break
        own.append(stmt)
    dropped: list[For] = []
    for it in gone:
        if is_const(it.binding, 0) and is_const(it.extent, 1):
            continue
        loop = next((x for x in own if x.var is it.binding), None)
        if loop is None or loop.extent is not it.extent or loop.kind not in ("serial", "unrolled"):
            raise refuse(func, f"{what}: no whole serial loop of its own drives {it.var.name!r}", got=it.binding)
        others = [o.binding for o in source.iters if o is not it]
        inner = [x.extent for x in own]
        if any(depends_on(e, loop.var) for e in (*others, source.predicate, *inner)):
            raise refuse(func, f"{what}: more than {it.var.name!r} depends on loop {loop.var.name!r}")
        dropped.append(loop)
    return dropped


def _without(path: Path, dropped: Sequence[For], new: Block) -> tuple[Path, Stmt]:
    """(path of the statement to replace, its replacement) that turn the block at the end of `path` into `new` and
    remove the loops `dropped` around it."""
    if not dropped:
        return path, new
    first = min(path.index(loop) for loop in dropped)
    body: Stmt = new
    for stmt in reversed(path[first:-1]):
        assert isinstance(stmt, For)
        if not any(stmt is loop for loop in dropped):
            body = replace(stmt, body=body)
    return path[: first + 1], body


def _linear(
    func: PrimFunc, source: Block, update: Update, gone: Sequence[BlockIter], what: str
) -> tuple[tuple[Expr, ...], tuple[tuple[Fraction, ...], ...], list[dict[Var, Expr]]]:
    """The contraction that block `source` computes as a matrix: (loaded elements, one for each column; rows of constant
    factors; for each row the values of the spatial iterators at which it is stored). Iterators `gone` are unrolled.
    Raises ScheduleError, which begins with `what`, if it is no such matrix."""
    spatial = [it for it in gone if it.kind == "spatial"]
    reduce = [it for it in gone if it.kind == "reduce"]
    columns: dict[Expr, int] = {}
    results: list[dict[int, Fraction]] = []
    places = list(_points(spatial))
    for place in places:
        row: dict[int, Fraction] = {}
        for step in _points(reduce):
            factor, element = _term(substitute(update.value, {**place, **step}))
            if factor is None:
                raise refuse(
                    func, f"{what}: its terms are not constants times elements; one is not finite", got=update.value
                )
            if factor:
                column = columns.setdefault(element, len(columns))
                row[column] = row[column] + factor if column in row else factor
        results.append(row)
    matrix = tuple(tuple(row.get(k, Fraction(0)) for k in range(len(columns))) for row in results)
    return tuple(columns), matrix, places


def _points(iters: Sequence[BlockIter]) -> list[dict[Var, Expr]]:
    ranges = [range(as_int(it.extent) or 0) for it in iters]
    return [{it.var: const(k) for it, k in zip(iters, point, strict=True)} for point in product(*ranges)]


def _term(e: Expr) -> tuple[Fraction | None, Expr]:
    """(constant factor, product of the other factors) of the product `e`; the factor is None if it is not finite."""
    factors: list[Expr] = []
    rest: list[Expr] = []
    stack = [e]
    scale = Fraction(1)
    while stack:
        node = stack.pop()
        if isinstance(node, Op) and node.name == "mul":
            stack += reversed(node.args)
        elif isinstance(node, Op) and node.name == "neg":
            scale = -scale
            stack.append(node.args[0])
        else:
            (factors if isinstance(node, Const) else rest).append(node)
    for node in factors:
        assert isinstance(node, Const)
        if node.dtype.is_float and not abs(node.value) < float("inf"):
            return None, e
        scale *= _fraction(node)
    element = rest[0] if rest else const(1, e.dtype)
    for node in rest[1:]:
        element = element * node
    return scale, element


@lru_cache(maxsize=1024)
def _fraction(c: Const) -> Fraction:
    """The simple fraction that literal `c` was probably rounded from, so that equal ratios are found; else its exact
    value."""
    exact = Fraction(c.value)
    simple = exact.limit_denominator(_SIMPLE)
    return simple if simple == exact or _rounded(simple, c.dtype) == _rounded(exact, c.dtype) else exact


def _rounded(x: Fraction, dtype: DType) -> float:
    return float(dtype.numpy.type(float(x))) if dtype.is_float else float(x)


class _Writer:
    """Emits the statements of an expanded contraction: each value is bound to a variable right before the first row
    that needs it."""

    def __init__(self, used_names: set[str], columns: Sequence[Expr], dtype: DType) -> None:
        self.used_names = used_names
        self.columns = columns
        self.dtype = dtype
        self.values: dict[int, Expr] = {}
        self.steps: list[tuple[Var, Expr] | Store] = []

    def body(self, program: Straight, update: Update, places: Sequence[Mapping[Var, Expr]]) -> Stmt:
        target = update.target
        for terms, place in zip(program.rows, places, strict=True):
            for _, number in terms:
                self.bind(program, number)
            indices = tuple(substitute(i, place) for i in target.indices)
            self.steps.append(Store(target.buffer, indices, self.sum(terms)))
        body: list[Stmt] = []
        for step in reversed(self.steps):
            body = [Let(*step, seq(body))] if isinstance(step, tuple) else [step, *body]
        return seq(body) if body else Seq(())

    def bind(self, program: Straight, number: int) -> None:
        """Bind value `number` of `program` to a variable, after the values that it is computed from."""
        if number in self.values:
            return
        value, name = self.columns[number] if number < program.inputs else None, f"x{number}"
        if value is None:
            terms, name = program.variables[number - program.inputs], f"s{number - program.inputs}"
            for _, part in terms:
                self.bind(program, part)
            value = self.sum(terms)
        var = Var(fresh_name(name, self.used_names), self.dtype)
        self.values[number] = var
        self.steps.append((var, value))

    def sum(self, terms: Terms) -> Expr:
        """The expression that sums `terms`; it starts with a term whose factor is 1 if there is one."""
        if not terms:
            return const(0, self.dtype)
        order = sorted(terms, key=lambda term: (term[0] != 1, abs(term[0]) != 1))
        (factor, first), *others = order
        total = self.values[first]
        if factor == -1:
            total = call("neg", total)
        elif factor != 1:
            total = total * self.literal(factor)
        for factor, number in others:
            total = self.added(total, factor, self.values[number])
        return total

    def added(self, total: Expr, factor: Fraction, value: Expr) -> Expr:
        if factor == 1:
            return total + value
        if factor == -1:
            return total - value
        if self.dtype.is_float:
            return call("fma", value, self.literal(factor), total)
        return total + value * self.literal(factor)

    def literal(self, factor: Fraction) -> Const:
        return const(float(factor) if self.dtype.is_float else int(factor), self.dtype)


class ExpandPrimitives:
    """A class with the primitive `expand`, from which `Schedule` and `Stage` inherit."""

    __slots__ = ()
    expand = expand
