"""The interpreter: it defines the meaning of loop programs, and is the oracle for the native backends.

It takes functions as scheduled (with blocks) and as lowered (flat loops), turns the tree into Python closures once and
runs them. It is strict where native code is fast: an index outside its buffer or a block iterator outside its extent is
an error that names both, memory that was not written holds NaN (or bits that make a wild index), loops of every kind
run in order. Statements are here, expressions in `expr.py`, buffers in `memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.codegen import external
from tilewright.codegen.interpret.expr import Scope
from tilewright.codegen.interpret.memory import Array, InterpretError, Memory, Thunk, elements_of, gather, same_place
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Buffer, Const, Expr, Op, Var
from tilewright.ir.loops import (
    NTHREADS,
    TID,
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
from tilewright.ir.rewrite import variables, walk
from tilewright.schedule.intrinsics import expand, is_known
from tilewright.support.errors import CallError

Reference = Callable[..., None]
"""The meaning of an intrinsic: takes its output regions, then its input regions, as arrays and writes the outputs."""


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
            parameters (`func.workspaces`) may be left out.
        symbols: values of symbols that the shapes do not determine.
        intrinsics: functions that replace intrinsics, by name, called with the regions of outputs, then of inputs, as
            arrays; for others their descriptions are run.

    Raises CallError if the arrays do not fit, InterpretError if the program is wrong.
    """
    supplied = arrays_in_order(func, arrays)
    values = bind_symbols(func, supplied, symbols or {})
    machine = _Machine(func, values, intrinsics or {}, backwards)
    written = machine.bind(supplied)
    with np.errstate(all="ignore"):
        machine.statement(func.body)()
    for array, memory in written:
        array[...] = memory.array(array.shape)


def arrays_in_order(func: PrimFunc, arrays: Mapping[str, Array] | Sequence[Array]) -> list[Array | None]:
    """One array for each parameter (None for workspaces left out), checked for dtype and rank."""
    if isinstance(arrays, Mapping):
        unknown = sorted(set(arrays) - {b.name for b in func.params})
        if unknown:
            raise CallError(f"no parameters named {', '.join(unknown)}", where=f"func {func.name!r}")
        results = [arrays.get(b.name) for b in func.params]
    else:
        results = [*arrays, *[None] * (len(func.params) - len(arrays))]
    if len(results) != len(func.params):
        raise CallError(
            "wrong number of arrays", where=f"func {func.name!r}", expected=len(func.params), got=len(results)
        )
    optional = func.workspaces
    for buffer, array in zip(func.params, results, strict=True):
        where = f"func {func.name!r}, parameter {buffer.name!r}"
        if array is None:
            if buffer not in optional:
                raise CallError("no array given", where=where)
        elif dtype(array.dtype) is not buffer.dtype:
            raise CallError("wrong element type", where=where, expected=buffer.dtype, got=array.dtype)
        elif array.ndim != len(buffer.shape):
            raise CallError("wrong rank", where=where, expected=len(buffer.shape), got=array.ndim)
    return results


def bind_symbols(func: PrimFunc, arrays: list[Array | None], sizes: Mapping[str, int]) -> dict[Var, int]:
    """The values of the symbols: those in `sizes`, then what the shapes of the arrays say.

    Raises CallError for a value outside its symbol's range or multiple. Whether all dimensions agree is not checked
    here.
    """
    values = {v: sizes[v.name] for v in func.symbols if v.name in sizes}
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
    """The symbol and its value if `extent` is `symbol * constant` or `symbol + constant` and equals `size`; else
    None."""
    match extent:
        case Op("mul", (Var() as v, Const(factor))) if factor and size % factor == 0:
            return v, size // factor
        case Op("add", (Var() as v, Const(offset))):
            return v, size - offset
    return None


class _Machine:
    """The interpreter of one function: compiles its statements to Python closures, which read and write the variables
    and memory of `scope`."""

    def __init__(
        self, func: PrimFunc, values: Mapping[Var, int], intrinsics: Mapping[str, Reference], backwards: bool
    ) -> None:
        self.func = func
        self.intrinsics = intrinsics
        self.backwards = backwards
        self.scope = Scope(f"func {func.name!r}", values)
        self.expr = self.scope.expr
        self.scope.ends = self._ends()

    def _ends(self) -> dict[Var, int]:
        """The largest value of each loop variable and block iterator whose extent is known before the run."""
        ends: dict[Var, int] = {}
        unknown: set[Var] = set()
        for s in walk(self.func.body):
            counted = [(s.var, s.extent)] if isinstance(s, For) else []
            counted += [(it.var, it.extent) for it in s.iters] if isinstance(s, Block) else []
            for var, extent in counted:
                if self.scope.fixed.issuperset(variables(extent)):
                    ends[var] = max(ends.get(var, 0), int(self.expr(extent)()) - 1)
                else:
                    unknown.add(var)
        return {var: end for var, end in ends.items() if var not in unknown}

    def bind(self, arrays: list[Array | None]) -> list[tuple[Array, Memory]]:
        """Give parameters their memory; returns the arrays to write back after the run, each with the memory that holds
        its elements."""
        stored = {s.buffer for s in walk(self.func.body) if isinstance(s, Store)}
        stored |= {r.buffer for s in walk(self.func.body) if isinstance(s, Intrinsic) for r in s.outputs}
        shared: list[tuple[Array, Memory]] = []
        written = []
        for buffer, array in zip(self.func.params, arrays, strict=True):
            shape = self._shape(buffer)
            if array is None:
                self._allocate(buffer, shape)
                continue
            if array.shape != shape:
                where = f"func {self.func.name!r}, parameter {buffer.name!r}"
                raise CallError("wrong shape", where=where, expected=list(shape), got=list(array.shape))
            twin = next((m for other, m in shared if same_place(array, other)), None)
            memory = twin or Memory(buffer, elements_of(array, buffer.dtype), shape)
            self.scope.memory[buffer] = Memory(buffer, memory.data, shape)
            shared.append((array, memory))
            if buffer in stored:
                written.append((array, self.scope.memory[buffer]))
        for buffer in self.func.buffers:
            self._allocate(buffer, self._shape(buffer))
        return written

    def _shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(int(self.expr(extent)()) for extent in buffer.shape)

    def _allocate(self, buffer: Buffer, shape: tuple[int, ...]) -> None:
        self.scope.memory[buffer] = Memory(buffer, [], shape)
        self.scope.memory[buffer].fill(shape)

    # Statements

    def statement(self, s: Stmt) -> Thunk:
        """A closure that runs the statement `s`."""
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
            case Barrier():
                return _sequence([])
        raise InterpretError(f"{type(s).__name__} cannot be interpreted", where=self.scope.where)

    def _store(self, s: Store) -> Thunk:
        value = self.expr(s.value)
        position = self.scope.position(s.buffer, s.indices)
        data = self.scope.memory[s.buffer].data

        def store() -> None:
            data[position()] = value()

        return store

    def _for(self, s: For) -> Thunk:
        extent = self.expr(s.extent)
        cell = self.scope.cells.setdefault(s.var, [0])
        self.scope.loops[s.var] = s.extent
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
        cell = self.scope.cells.setdefault(s.var, [0])
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
        memory = self.scope.memory.setdefault(buffer, Memory(buffer, [], (0,) * len(buffer.shape)))
        extents = [self.expr(extent) for extent in buffer.shape]
        if self.scope.is_fixed(buffer):
            memory.shape = tuple([extent() for extent in extents])
        body = self.statement(s.body)

        def allocate() -> None:
            memory.fill(tuple([extent() for extent in extents]))
            body()

        return allocate

    def _block(self, s: Block) -> Thunk:
        bindings = []
        for it in s.iters:
            if isinstance(it.binding, Var) and self.scope.loops.get(it.binding) is it.extent:
                # The usual case: the iterator is the loop's variable, so they share the cell and need no check.
                self.scope.cells[it.var] = self.scope.cell(it.binding)
            else:
                cell = self.scope.cells.setdefault(it.var, [0])
                bindings.append((cell, self.expr(it.binding), self.expr(it.extent), it.var.name))
            self.scope.loops[it.var] = it.extent
        steps = [self.scope.cells[it.var] for it in s.iters if it.kind == "reduce"]
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
            if init is not None:
                for step in steps:  # a loop takes half the time of any()
                    if step[0]:
                        break
                else:
                    init()
            body()

        return block if bindings or predicate or init else body

    # Intrinsics

    def _intrinsic(self, s: Intrinsic) -> Thunk:
        reference = self.intrinsics.get(s.name) or external.reference(s)
        if reference is None and is_known(s.name):
            return self.statement(expand(s))
        if reference is None:
            raise InterpretError("no reference is given for this intrinsic", where=f"intrinsic {s.name!r}")
        outputs = [self._region(r) for r in s.outputs]
        inputs = [self._region(r) for r in s.inputs]

        def call() -> None:
            positions = [region() for region in outputs]
            results = [gather(memory, place) for memory, place in positions]
            reference(*results, *[gather(*region()) for region in inputs])
            for (memory, place), result in zip(positions, results, strict=True):
                for at, value in zip(place.ravel().tolist(), elements_of(result, memory.buffer.dtype), strict=True):
                    memory.data[at] = value

        return call

    def _region(self, region: Region) -> Callable[[], tuple[Memory, Array]]:
        """A closure that returns the memory of a region's buffer, and the flat positions of the region's elements as an
        array of its shape."""
        memory = self.scope.memory[region.buffer]
        ranges = [(self.expr(start), self.expr(extent)) for start, extent in region.ranges]

        def positions() -> tuple[Memory, Array]:
            total: Array = np.zeros((), np.int64)
            corner = [(start(), extent()) for start, extent in ranges]
            if all(extent for _, extent in corner):
                memory.position(tuple(start for start, _ in corner))
                memory.position(tuple(start + extent - 1 for start, extent in corner))
            for (start, extent), size in zip(corner, memory.shape, strict=True):
                total = total[..., None] * size + np.arange(start, start + extent)
            return memory, total

        return positions


def _sequence(thunks: list[Thunk]) -> Thunk:
    def run() -> None:
        for thunk in thunks:
            thunk()

    return run


__all__ = ["InterpretError", "bind_symbols", "arrays_in_order", "interpret"]
