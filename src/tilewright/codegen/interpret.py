"""The interpreter: what a loop program means, and the oracle for the native backends.

It takes functions as scheduled (with blocks) and as lowered (flat loops), turns the tree into Python closures once and
runs them. It is strict where native code is fast: an index outside its buffer or a block iterator outside its extent is
an error that names both, memory that nobody wrote holds NaN (or bits that make a wild index), loops of every kind run
in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.codegen.scalars import bitcaster, caster, function, poison, value_of
from tilewright.ir.dtype import DType, dtype, i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.loops import (
    NTHREADS,
    TID,
    TRUE,
    Allocate,
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
from tilewright.ir.rewrite import variables, walk
from tilewright.schedule.intrinsics import expand, is_known
from tilewright.support.errors import CallError, Error

Array = np.ndarray[Any, Any]
Thunk = Callable[[], Any]
Reference = Callable[..., None]
"""What an intrinsic does: takes its output regions, then its input regions, as arrays and writes the outputs."""


class InterpretError(Error):
    """A program that reads or writes outside a buffer, or uses what is not defined."""


def interpret(
    func: PrimFunc,
    arrays: Mapping[str, Array] | Sequence[Array],
    *,
    symbols: Mapping[str, int] | None = None,
    intrinsics: Mapping[str, Reference] | None = None,
    backwards: bool = False,
) -> None:
    """Run `func` on `arrays` in place.

    Args:
        arrays: one array for each parameter, in order or by name, of its dtype and shape. Trailing workspace
            parameters (`func.attrs["workspace"]` of them) may be left out.
        symbols: values of symbols that the shapes do not determine.
        intrinsics: what intrinsics by name do, called with the outputs' regions, then the inputs', as arrays; for
            others their descriptions are run.

    Raises CallError if the arrays do not fit, InterpretError if the program is wrong.
    """
    given = _in_order(func, arrays)
    values = _bind_symbols(func, given, symbols or {})
    machine = _Machine(func, values, intrinsics or {}, backwards)
    written = machine.bind(given)
    with np.errstate(all="ignore"):
        machine.statement(func.body)()
    for array, memory in written:
        array[...] = memory.array(array.shape)


def _in_order(func: PrimFunc, arrays: Mapping[str, Array] | Sequence[Array]) -> list[Array | None]:
    """One array for each parameter (None for workspaces left out), checked for dtype and rank."""
    if isinstance(arrays, Mapping):
        unknown = sorted(set(arrays) - {b.name for b in func.params})
        if unknown:
            raise CallError(f"no parameters named {', '.join(unknown)}", where=f"func {func.name!r}")
        found = [arrays.get(b.name) for b in func.params]
    else:
        found = [*arrays, *[None] * (len(func.params) - len(arrays))]
    if len(found) != len(func.params):
        raise CallError(
            "wrong number of arrays", where=f"func {func.name!r}", expected=len(func.params), got=len(found)
        )
    optional = func.params[len(func.params) - int(func.attr("workspace", 0)) :]
    for buffer, array in zip(func.params, found, strict=True):
        where = f"func {func.name!r}, parameter {buffer.name!r}"
        if array is None:
            if buffer not in optional:
                raise CallError("no array given", where=where)
        elif dtype(array.dtype) is not buffer.dtype:
            raise CallError("wrong element type", where=where, expected=buffer.dtype, got=array.dtype)
        elif array.ndim != len(buffer.shape):
            raise CallError("wrong rank", where=where, expected=len(buffer.shape), got=array.ndim)
    return found


def _bind_symbols(func: PrimFunc, arrays: list[Array | None], given: Mapping[str, int]) -> dict[Var, int]:
    """Values of the symbols, from dimensions that are a symbol; all are checked later."""
    values = {v: given[v.name] for v in func.symbols if v.name in given}
    for buffer, array in zip(func.params, arrays, strict=True):
        for extent, size in zip(buffer.shape, () if array is None else array.shape, strict=array is not None):
            if isinstance(extent, Var):
                values.setdefault(extent, size)
            elif (solved := _solve(extent, size)) is not None:
                values.setdefault(*solved)
    if NTHREADS in func.symbols:
        values.setdefault(NTHREADS, 1)
        values[TID] = 0
    for v, value in values.items():
        where = f"func {func.name!r}, symbol {v.name!r}"
        if (v.lo is not None and value < v.lo) or (v.hi is not None and value > v.hi):
            raise CallError("out of range", where=where, expected=f"{v.lo}..{v.hi}", got=value)
        if value % v.multiple:
            raise CallError("not divisible", where=where, expected=f"a multiple of {v.multiple}", got=value)
    return values


def _solve(extent: Expr, size: int) -> tuple[Var, int] | None:
    """The symbol in `symbol * constant` or `symbol + constant`."""
    match extent:
        case Op("mul", (Var() as v, Const(factor))) if factor and size % factor == 0:
            return v, size // factor
        case Op("add", (Var() as v, Const(offset))):
            return v, size - offset
    return None


@dataclass(slots=True)
class _Memory:
    """A buffer's elements, flat, and its shape. `data` stays one list for life, so that closures may hold it."""

    buffer: Buffer
    data: list[Any]
    shape: tuple[int, ...]

    def array(self, shape: tuple[int, ...]) -> Array:
        """The elements as an array."""
        kind = self.buffer.dtype
        wide = kind.numpy if kind.bits >= 8 else np.dtype(np.int8)
        return np.array(self.data, wide).astype(kind.numpy, copy=False).reshape(shape)

    def fill(self, shape: tuple[int, ...]) -> None:
        """New unwritten content."""
        self.shape = shape
        self.data[:] = [poison(self.buffer.dtype)] * max(0, math.prod(shape))

    def position(self, index: tuple[int, ...]) -> int:
        """The flat position of an index, checked."""
        at = 0
        for i, extent in zip(index, self.shape, strict=True):
            if not 0 <= i < extent:
                raise self.outside(index)
            at = at * extent + i
        return at

    def outside(self, index: tuple[int, ...]) -> InterpretError:
        inside = ", ".join(str(i) for i in index)
        return InterpretError(f"index [{inside}] outside", where=f"buffer {self.buffer.name!r} {list(self.shape)}")


def _elements(array: Array, kind: DType) -> list[Any]:
    flat = array.ravel()
    if kind.is_float:
        return list(flat)
    return flat.astype(np.int8).tolist() if kind.bits < 8 else flat.tolist()


class _Machine:
    """Compiles statements and expressions to closures over variables (one-element lists) and memory."""

    def __init__(
        self, func: PrimFunc, values: Mapping[Var, int], intrinsics: Mapping[str, Reference], backwards: bool
    ) -> None:
        self.func = func
        self.intrinsics = intrinsics
        self.backwards = backwards
        self.cells: dict[Var, list[Any]] = {v: [value] for v, value in values.items()}
        self.fixed: set[Var] = set(values)
        self.loops: dict[Var, Expr] = {}
        self.memory: dict[Buffer, _Memory] = {}
        self.exprs: dict[Expr, Thunk] = {}

    def bind(self, arrays: list[Array | None]) -> list[tuple[Array, _Memory]]:
        """Give parameters and buffers their memory; returns what to write back at the end."""
        stored = {s.buffer for s in walk(self.func.body) if isinstance(s, Store)}
        stored |= {r.buffer for s in walk(self.func.body) if isinstance(s, Intrinsic) for r in s.outputs}
        shared: list[tuple[Array, _Memory]] = []
        written = []
        for buffer, array in zip(self.func.params, arrays, strict=True):
            shape = self._shape(buffer)
            if array is None:
                self._allocate(buffer, shape)
                continue
            if array.shape != shape:
                where = f"func {self.func.name!r}, parameter {buffer.name!r}"
                raise CallError("wrong shape", where=where, expected=list(shape), got=list(array.shape))
            twin = next((m for other, m in shared if _same_place(array, other)), None)
            memory = twin or _Memory(buffer, _elements(array, buffer.dtype), shape)
            self.memory[buffer] = _Memory(buffer, memory.data, shape)
            shared.append((array, memory))
            if buffer in stored:
                written.append((array, self.memory[buffer]))
        for buffer in self.func.buffers:
            self._allocate(buffer, self._shape(buffer))
        return written

    def _shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(int(self.expr(extent)()) for extent in buffer.shape)

    def _allocate(self, buffer: Buffer, shape: tuple[int, ...]) -> None:
        self.memory[buffer] = _Memory(buffer, [], shape)
        self.memory[buffer].fill(shape)

    # Expressions

    def expr(self, e: Expr) -> Thunk:
        """A closure that gives the value of `e`."""
        done = self.exprs.get(e)
        if done is None:
            done = self.exprs[e] = self._affine(e) or self._expr(e)
        return done

    def _expr(self, e: Expr) -> Thunk:
        match e:
            case Const():
                value = value_of(e.dtype)(e.value)
                return lambda: value
            case Var():
                cell = self._cell(e)
                return lambda: cell[0]
            case Load():
                return self._load(e)
            case Op():
                return self._op(e)
        raise InterpretError(f"{type(e).__name__} cannot be interpreted; lower it first", where=str(e))

    def _cell(self, v: Var) -> list[Any]:
        cell = self.cells.get(v)
        if cell is None:
            raise InterpretError(f"the variable {v.name!r} is not defined", where=f"func {self.func.name!r}")
        return cell

    def _op(self, e: Op) -> Thunk:
        args = [self.expr(a) for a in e.args]
        match e.name:
            case "select":
                condition, then, orelse = args
                return lambda: then() if condition() else orelse()
            case "and":
                left, right = args
                return lambda: left() and right()
            case "or":
                left, right = args
                return lambda: left() or right()
            case "lookup":
                position, *entries = args
                table, last = [entry() for entry in entries], len(entries) - 1
                return lambda: table[min(max(position(), 0), last)]
            case "cast" | "bitcast":
                convert = (caster if e.name == "cast" else bitcaster)(e.args[0].dtype, e.dtype)
                (only,) = args
                return lambda: convert(only())
        f = function(e.name, e.args[0].dtype)
        if len(args) == 1:
            (only,) = args
            return lambda: f(only())
        if len(args) == 2:
            left, right = args
            return lambda: f(left(), right())
        first, second, third = args
        return lambda: f(first(), second(), third())

    def _affine(self, e: Expr) -> Thunk | None:
        """Sums of loop variables with constant factors, the usual indices, in one closure."""
        if e.dtype is not i64 or not isinstance(e, Op):
            return None
        terms = self._terms(e)
        if terms is None:
            return None
        constant = terms.pop(None, 0)
        match [(self.cells[v], factor) for v, factor in terms.items() if v is not None]:
            case []:
                return lambda: constant
            case [(a, fa)]:
                return lambda: a[0] * fa + constant
            case [(a, fa), (b, fb)]:
                return lambda: a[0] * fa + b[0] * fb + constant
            case [(a, fa), (b, fb), (c, fc)]:
                return lambda: a[0] * fa + b[0] * fb + c[0] * fc + constant
            case several:
                return lambda: sum([cell[0] * factor for cell, factor in several]) + constant

    def _terms(self, e: Expr) -> dict[Var | None, int] | None:
        """Factors of loop variables and symbols in a linear expression (of None: the constant), else None. Variables
        of `let` are left out, since what was loaded may overflow."""
        match e:
            case Const(value) if abs(value) < 1 << 31:
                return {None: value}
            case Var() if e in self.loops:
                return {e: 1}
            case Var() if e in self.fixed:
                return {None: self.cells[e][0]}
            case Op("add" | "sub" | "mul" as name, (left, right)):
                a, b = self._terms(left), self._terms(right)
                if a is None or b is None:
                    return None
                if name != "mul":
                    sign = 1 if name == "add" else -1
                    return {v: a.get(v, 0) + sign * b.get(v, 0) for v in {**a, **b}}
                if set(b) <= {None}:
                    return {v: factor * b.get(None, 0) for v, factor in a.items()}
                if set(a) <= {None}:
                    return {v: factor * a.get(None, 0) for v, factor in b.items()}
        return None

    def _load(self, e: Load) -> Thunk:
        position = self._position(e.buffer, e.indices)
        data = self.memory[e.buffer].data
        return lambda: data[position()]

    def _position(self, buffer: Buffer, indices: Sequence[Expr]) -> Thunk:
        """A closure that gives the flat position of an index in a buffer, checked against its shape."""
        memory = self.memory.get(buffer)
        if memory is None:
            raise InterpretError(f"the buffer {buffer.name!r} is not declared", where=f"func {self.func.name!r}")
        index = [self.expr(i) for i in indices]
        if not self._is_fixed(buffer) or len(index) > 4:
            return lambda: memory.position(tuple([i() for i in index]))
        if not index:
            return lambda: 0
        return _position_in(memory, index)

    def _is_fixed(self, buffer: Buffer) -> bool:
        """Does the shape depend on symbols alone, so that it is known already?"""
        return all(v in self.fixed for extent in buffer.shape for v in variables(extent))

    # Statements

    def statement(self, s: Stmt) -> Thunk:
        """A closure that runs `s`."""
        match s:
            case Seq(stmts):
                return _sequence([self.statement(child) for child in stmts])
            case Store():
                return self._store(s)
            case For():
                return self._for(s)
            case Block():
                return self._block(s)
            case Let():
                return self._let(s)
            case If():
                return self._if(s)
            case Allocate():
                return self._alloc(s)
            case Intrinsic():
                return self._intrinsic(s)
        raise InterpretError(f"{type(s).__name__} cannot be interpreted", where=f"func {self.func.name!r}")

    def _store(self, s: Store) -> Thunk:
        value = self.expr(s.value)
        position = self._position(s.buffer, s.indices)
        data = self.memory[s.buffer].data

        def store() -> None:
            data[position()] = value()

        return store

    def _for(self, s: For) -> Thunk:
        extent = self.expr(s.extent)
        cell = self.cells.setdefault(s.var, [0])
        self.loops[s.var] = s.extent
        body = self.statement(s.body)

        def loop() -> None:
            for cell[0] in range(extent()):
                body()

        def reverse() -> None:
            for cell[0] in range(extent() - 1, -1, -1):
                body()

        return reverse if self.backwards and s.kind == "parallel" else loop

    def _let(self, s: Let) -> Thunk:
        value = self.expr(s.value)
        cell = self.cells.setdefault(s.var, [0])
        body = self.statement(s.body)

        def let() -> None:
            cell[0] = value()
            body()

        return let

    def _if(self, s: If) -> Thunk:
        condition = self.expr(s.condition)
        then = self.statement(s.then)
        orelse = _sequence([]) if s.orelse is None else self.statement(s.orelse)

        def branch() -> None:
            if condition():
                then()
            else:
                orelse()

        return branch

    def _alloc(self, s: Allocate) -> Thunk:
        buffer = s.buffer
        memory = self.memory.setdefault(buffer, _Memory(buffer, [], (0,) * len(buffer.shape)))
        extents = [self.expr(extent) for extent in buffer.shape]
        if self._is_fixed(buffer):
            memory.shape = tuple([extent() for extent in extents])
        body = self.statement(s.body)

        def allocate() -> None:
            memory.fill(tuple([extent() for extent in extents]))
            body()

        return allocate

    def _block(self, s: Block) -> Thunk:
        bindings = []
        for it in s.iters:
            if isinstance(it.binding, Var) and self.loops.get(it.binding) is it.extent:
                # The usual case: the iterator is the loop's variable, so they share the cell and need no check.
                self.cells[it.var] = self._cell(it.binding)
            else:
                cell = self.cells.setdefault(it.var, [0])
                bindings.append((cell, self.expr(it.binding), self.expr(it.extent), it.var.name))
            self.loops[it.var] = it.extent
        steps = [self.cells[it.var] for it in s.iters if it.kind == "reduce"]
        init = None if s.init is None else self.statement(s.init)
        body = self.statement(s.body)
        predicate = None if s.predicate is TRUE else self.expr(s.predicate)
        where = f"block {s.name!r}"

        def block() -> None:
            if predicate is not None and not predicate():
                return
            for cell, binding, extent, name in bindings:
                cell[0] = value = binding()
                if not 0 <= value < extent():
                    raise InterpretError(f"{name} = {value} is outside 0..{extent()}", where=where)
            if init is not None and not any(step[0] for step in steps):
                init()
            body()

        return block if bindings or predicate or init else body

    # Intrinsics

    def _intrinsic(self, s: Intrinsic) -> Thunk:
        reference = self.intrinsics.get(s.name)
        if reference is None and is_known(s.name):
            return self.statement(expand(s))
        if reference is None:
            raise InterpretError("no reference is given for this intrinsic", where=f"intrinsic {s.name!r}")
        outputs = [self._region(r) for r in s.outputs]
        inputs = [self._region(r) for r in s.inputs]

        def call() -> None:
            positions = [region() for region in outputs]
            results = [_gather(memory, place) for memory, place in positions]
            reference(*results, *[_gather(*region()) for region in inputs])
            for (memory, place), result in zip(positions, results, strict=True):
                for at, value in zip(place.ravel().tolist(), _elements(result, memory.buffer.dtype), strict=True):
                    memory.data[at] = value

        return call

    def _region(self, region: Region) -> Callable[[], tuple[_Memory, Array]]:
        """A closure that gives a region's memory and the flat positions of its elements, as an array of its shape."""
        memory = self.memory[region.buffer]
        ranges = [(self.expr(start), self.expr(extent)) for start, extent in region.ranges]

        def positions() -> tuple[_Memory, Array]:
            total: Array = np.zeros((), np.int64)
            corner = [(start(), extent()) for start, extent in ranges]
            memory.position(tuple(start for start, _ in corner))
            memory.position(tuple(start + extent - 1 for start, extent in corner))
            for (start, extent), size in zip(corner, memory.shape, strict=True):
                total = total[..., None] * size + np.arange(start, start + extent)
            return memory, total

        return positions


def _gather(memory: _Memory, positions: Array) -> Array:
    values = [memory.data[at] for at in positions.ravel().tolist()]
    return _Memory(memory.buffer, values, positions.shape).array(positions.shape)


def _same_place(a: Array, b: Array) -> bool:
    if a is b or (a.__array_interface__ == b.__array_interface__ and a.size):
        return True
    if np.may_share_memory(a, b) and a.size and b.size:
        raise CallError("two arrays overlap in part")
    return False


def _sequence(thunks: list[Thunk]) -> Thunk:
    def run() -> None:
        for thunk in thunks:
            thunk()

    return run


def _position_in(memory: _Memory, index: list[Thunk]) -> Thunk:
    """The position in memory of fixed shape; one closure for each rank, since this is where the time goes."""
    shape = memory.shape
    match index:
        case [i0]:
            (n0,) = shape

            def one() -> int:
                a: int = i0()
                if 0 <= a < n0:
                    return a
                raise memory.outside((a,))

            return one
        case [i0, i1]:
            n0, n1 = shape

            def two() -> int:
                a: int = i0()
                b: int = i1()
                if 0 <= a < n0 and 0 <= b < n1:
                    return a * n1 + b
                raise memory.outside((a, b))

            return two
        case [i0, i1, i2]:
            n0, n1, n2 = shape

            def three() -> int:
                a: int = i0()
                b: int = i1()
                c: int = i2()
                if 0 <= a < n0 and 0 <= b < n1 and 0 <= c < n2:
                    return (a * n1 + b) * n2 + c
                raise memory.outside((a, b, c))

            return three
        case [i0, i1, i2, i3]:
            n0, n1, n2, n3 = shape

            def four() -> int:
                a: int = i0()
                b: int = i1()
                c: int = i2()
                d: int = i3()
                if 0 <= a < n0 and 0 <= b < n1 and 0 <= c < n2 and 0 <= d < n3:
                    return ((a * n1 + b) * n2 + c) * n3 + d
                raise memory.outside((a, b, c, d))

            return four
    raise AssertionError(len(index))
