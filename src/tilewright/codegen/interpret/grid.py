"""The grid interpreter: runs loops that are bound to hardware indices, for all threads of some blocks at once.

Each nest with such loops is a kernel: a grid of blocks of threads, which all run the whole nest. A loop bound to
threadIdx distributes its iterations to threads, and a barrier synchronises those of a block. Threads are lanes of
arrays, which take every step together. `races` checks that no other order can give another result: two accesses of
different threads to an element with no barrier between, one of them a write, are an error, and so is a barrier that
only some threads of a block reach. So a run without an error gives the result of every order of threads, and it cannot
deadlock.

It takes flat loops (`transform/loops`), is as strict as `interpret`, and gives the same results, up to the rounding of
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from tilewright.codegen.cuda.private import extents_of_threads, has_threads, of_threads
from tilewright.codegen.interpret.interpreter import arrays_in_order, bind_symbols
from tilewright.codegen.interpret.lanes import LaneMemory, Lanes, LaneScope, Mask
from tilewright.codegen.interpret.memory import Array, InterpretError, same_place
from tilewright.codegen.interpret.races import WARP, Detector, Meetings
from tilewright.codegen.interpret.vectors import Value, storage
from tilewright.ir.expr import Buffer, Var, as_int
from tilewright.ir.loops import Allocate, Barrier, For, If, Intrinsic, Let, PrimFunc, Seq, Stmt, Store
from tilewright.ir.rewrite import buffers_in, walk
from tilewright.schedule.intrinsics import expand, is_known
from tilewright.schedule.mma_intrinsics import is_async
from tilewright.schedule.state import written_buffers
from tilewright.support.errors import CallError

LANES_AT_ONCE = 1 << 13
"""The number of threads that take a step together; a larger grid is run some blocks at a time."""

Run = Callable[[Mask], None]
"""A closure that runs a statement for the threads of a mask, of which there is at least one."""


def interpret_grid(
    func: PrimFunc, arrays: Mapping[str, Array] | Sequence[Array], *, symbols: Mapping[str, int] | None = None
) -> None:
    """Run the kernels of a flat function on `arrays` in place, one kernel after another.

    Args:
        arrays: one array for each parameter, in order or by name, of its dtype and shape. Trailing workspace
            parameters (`func.workspaces`) may be left out.
        symbols: values of symbols that the shapes do not determine.

    Raises CallError if the arrays do not fit, InterpretError if the program is wrong: an index outside of its buffer, a
    race of threads, a barrier where not all threads of a block come, a loop of more iterations than there are threads.
    """
    passed = arrays_in_order(func, arrays)
    values = bind_symbols(func, passed, symbols or {})
    memory = _bound(func, passed, values)
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    with np.errstate(all="ignore"):
        for nest in nests:
            _Kernel(func.with_body(nest), values, memory).run()
    for buffer, array in zip(func.params, passed, strict=True):
        if array is not None and buffer in written_buffers(func.body):
            array[...] = memory[buffer].data.view(buffer.dtype.numpy).reshape(array.shape)


def _bound(func: PrimFunc, arrays: Sequence[Array | None], values: Mapping[Var, int]) -> dict[Buffer, LaneMemory]:
    """The memory of each parameter, with a copy of its array's elements. Parameters that were passed one array share a
    memory. `values`: of the symbols in shapes. Raises CallError for an array of another shape."""
    result: dict[Buffer, LaneMemory] = {}
    known: list[tuple[Array, LaneMemory]] = []
    sizes = _scope_of(func, values, 1)
    for buffer, array in zip(func.params, arrays, strict=True):
        shape = tuple(int(sizes.expr(n)(None)) for n in buffer.shape)
        memory = result[buffer] = LaneMemory(buffer, None)
        memory.reshape(shape)
        if array is None:
            continue
        if array.shape != shape:
            where = f"func {func.name!r}, parameter {buffer.name!r}"
            raise CallError("wrong shape", where=where, expected=list(shape), got=list(array.shape))
        twin = next((m for other, m in known if same_place(array, other)), None)
        kind = storage(buffer.dtype)
        if twin is not None:
            result[buffer] = twin
        elif buffer.dtype.is_minifloat:
            memory.data = np.ascontiguousarray(array).view(kind).ravel().copy()
        else:
            memory.data = np.array(array).astype(kind).ravel()
        known.append((array, result[buffer]))
    return result


def _scope_of(func: PrimFunc, values: Mapping[Var, int], count: int) -> LaneScope:
    scope = LaneScope(f"func {func.name!r}", count)
    scope.cells.update((v, [value]) for v, value in values.items())
    return scope


class _Kernel:
    """One kernel: its grid and block, and the data that all of its blocks share."""

    def __init__(self, func: PrimFunc, values: Mapping[Var, int], memory: dict[Buffer, LaneMemory]) -> None:
        self.func = func
        self.values = values
        self.memory = memory
        if not has_threads(func.body):
            raise InterpretError("no hardware index runs through a loop", where=f"func {func.name!r}")
        threads = extents_of_threads(func)
        self.block = tuple(threads.get(f"threadIdx.{d}", 1) for d in "xyz")
        self.grid = self._grid()
        self.threads, self.blocks = prod(self.block), prod(self.grid)
        total = self.threads * self.blocks
        pending = max((s.pending for s in walk(func.body) if isinstance(s, Barrier)), default=0)
        self.by_block = Meetings(total, self.threads, pending)
        self.by_warp = Meetings(total, self.block[0])
        self.statements: list[str] = []
        for buffer in written_buffers(func.body):
            if buffer in memory:
                self.watch(memory[buffer], self.by_block)

    def _grid(self) -> tuple[int, ...]:
        scope = _scope_of(self.func, self.values, 1)
        known: dict[str, int] = {}
        for s in walk(self.func.body):
            if isinstance(s, For) and s.thread is not None and s.thread.startswith("blockIdx"):
                extent = int(scope.expr(s.extent)(None))
                if known.setdefault(s.thread, extent) != extent:
                    raise InterpretError(f"loops of {s.thread} differ: {known[s.thread]} and {extent}")
        return tuple(known.get(f"blockIdx.{d}", 1) for d in "xyz")

    def run(self) -> None:
        if not self.blocks:
            return
        step = max(1, LANES_AT_ONCE // self.threads)
        for first in range(0, self.blocks, step):
            _Blocks(self, first, min(step, self.blocks - first)).run()
        for memory in self.memory.values():
            memory.detector = None  # kernels wait for each other

    def watch(self, memory: LaneMemory, meetings: Meetings) -> None:
        """Attach a race detector to `memory`. `meetings` counts the barriers that the threads sharing this memory have
        passed."""
        size = memory.count * memory.size
        memory.detector = Detector(size, meetings, memory.element, self.name, self.statements)

    def name(self, who: int) -> str:
        """The name of accessor `who` in errors: a thread by its indices. Numbers past those of threads are whole warps,
        then asynchronous copies."""
        total = self.threads * self.blocks
        what, thread = ("thread", who) if who < total else ("the warp of thread", (who - total) * WARP)
        if who >= 2 * total:
            what, thread = "an asynchronous copy of thread", who - 2 * total
        block, inside = divmod(thread, self.threads)
        place = ", ".join(str(int(i)) for i in reversed(np.unravel_index(inside, self.block[::-1])))
        at = ", ".join(str(int(i)) for i in reversed(np.unravel_index(block, self.grid[::-1])))
        return f"{what} ({place}) of block ({at})"


class _Blocks:
    """Some blocks of a kernel, whose threads take each step together."""

    def __init__(self, kernel: _Kernel, first: int, count: int) -> None:
        self.kernel = kernel
        threads = kernel.threads
        self.scope = _scope_of(kernel.func, kernel.values, threads * count)
        self.scope.memory.update(kernel.memory)
        self.count = count
        self.who: Array = np.arange(first * threads, (first + count) * threads)
        self.scope.who = self.who
        block, inside = np.divmod(self.who, threads)
        self.index: dict[str, Array] = {}
        for what, number, extents in (("blockIdx", block, kernel.grid), ("threadIdx", inside, kernel.block)):
            places = np.unravel_index(number, extents[::-1])
            self.index.update({f"{what}.{d}": place for d, place in zip("zyx", places, strict=True)})
        self.bound = {f"threadIdx.{d}": n for d, n in zip("xyz", kernel.block, strict=True)}
        self.inside: dict[str, None] = {}
        self.expr = self.scope.expr

    def run(self) -> None:
        self.statement(self.kernel.func.body)(None)

    # Statements

    def statement(self, s: Stmt) -> Run:
        """A closure that runs `s` for the threads of a mask."""
        match s:
            case Seq(stmts):
                steps = [self.statement(child) for child in stmts]
                return lambda mask: _in_order(steps, mask)
            case Store():
                self.begin(s)
                return self.scope.store(s.buffer, s.indices, s.value)
            case For():
                return self.hardware(s) if s.thread is not None and s.thread != "vthread" else self.loop(s)
            case If():
                return self.branch(s)
            case Let():
                self.begin(s)
                value, cell = self.expr(s.value), self.scope.cells.setdefault(s.var, [0])
                body = self.statement(s.body)
                return lambda mask: _bind(cell, value, body, mask)
            case Allocate():
                return self.allocate(s)
            case Barrier():
                return self.barrier(s)
            case Intrinsic():
                return self.intrinsic(s)
        raise InterpretError(f"{type(s).__name__} cannot be interpreted; lower it first", where=self.scope.where)

    def begin(self, s: Stmt) -> None:
        self.kernel.statements.append(str(s).splitlines()[0].removesuffix(" {"))
        self.scope.begin(len(self.kernel.statements) - 1)

    def hardware(self, s: For) -> Run:
        """A closure that runs a loop bound to a hardware index: each thread runs the iteration of its own index, if
        there is one."""
        assert s.thread is not None
        index = self.index[s.thread]
        self.scope.cells[s.var] = [index]
        if not of_threads(s):
            return self.statement(s.body)
        extent, known = as_int(s.extent) or 0, self.bound[s.thread]
        if extent > known:
            raise InterpretError(
                f"loop {s.var.name!r} of {s.thread} has {extent} iterations where {known} threads come",
                where=self.scope.where,
            )
        outside, self.inside = self.inside, dict.fromkeys((*self.inside, s.thread))
        self.bound[s.thread] = extent
        body = self.statement(s.body)
        self.bound[s.thread], self.inside = known, outside
        return body if extent == known else lambda mask: _under(index < extent, body, mask)

    def loop(self, s: For) -> Run:
        self.begin(s)
        extent, cell = self.expr(s.extent), self.scope.cells.setdefault(s.var, [0])
        body = self.statement(s.body)

        def run(mask: Mask) -> None:
            times = extent(mask)
            if type(times) is not np.ndarray:
                for cell[0] in range(times):
                    body(mask)
                return
            most = int(times.max() if mask is None else times[mask].max())
            for i in range(most):
                cell[0] = i
                _under(times > i, body, mask)

        return run

    def branch(self, s: If) -> Run:
        self.begin(s)
        condition = self.expr(s.condition)
        then = self.statement(s.then)
        orelse: Run = (lambda mask: None) if s.orelse is None else self.statement(s.orelse)

        def run(mask: Mask) -> None:
            holds = condition(mask)
            if type(holds) is not np.ndarray:
                (then if holds else orelse)(mask)
                return
            _under(holds, then, mask)
            _under(~holds, orelse, mask)

        return run

    def allocate(self, s: Allocate) -> Run:
        self.begin(s)
        memory = self.scope.memory[s.buffer] = self.memory_of(s)
        extents = [self.expr(extent) for extent in s.buffer.shape]
        body = self.statement(s.body)
        meetings = self.kernel.by_warp if s.buffer.scope == "warp" else self.kernel.by_block
        common = memory.count < len(self.who) and s.buffer.scope != "tiles"

        def run(mask: Mask) -> None:
            shape = [extent(mask) for extent in extents]
            if any(type(n) is np.ndarray for n in shape):
                raise InterpretError("its size is not the same for all threads", where=f"buffer {s.buffer.name!r}")
            changed = memory.reshape(tuple(shape))
            # Its memory is the same in each iteration around: who touched it in the last one counts.
            if common and (changed or memory.detector is None):
                self.kernel.watch(memory, meetings)
            body(mask)

        return run

    def memory_of(self, s: Allocate) -> LaneMemory:
        """Memory for the buffer that `s` allocates, with a copy for each unit of threads that its scope gives one: a
        block, a warp or a thread."""
        buffer = s.buffer
        if buffer.scope not in ("shared", "warp", "tiles"):
            exchanged = any(isinstance(x, Intrinsic) and buffer in buffers_in(x) for x in walk(s.body))
            return self.array(buffer) if exchanged else LaneMemory(buffer, self.who - self.who[0], len(self.who))
        unit = {"shared": self.kernel.threads, "warp": self.kernel.block[0], "tiles": WARP}[buffer.scope]
        if buffer.scope == "warp" and WARP % unit:
            raise InterpretError(
                f"rows of {unit} threads are no part of a warp of {WARP}", where=f"buffer {buffer.name!r}"
            )
        return LaneMemory(buffer, (self.who - self.who[0]) // unit, -(-len(self.who) // unit))

    def array(self, buffer: Buffer) -> LaneMemory:
        """Memory for a buffer allocated outside of thread loops, as one array with the elements of all threads: warp
        instructions exchange elements between lanes."""
        group, count = (self.who - self.who[0]) // self.kernel.threads, self.count
        for t in self.inside:
            extent = self.kernel.block["xyz".index(t[-1])]
            group, count = group * extent + self.index[t], count * extent
        return LaneMemory(buffer, group, count)

    def barrier(self, s: Barrier) -> Run:
        meetings = self.kernel.by_warp if s.group == "warp" else self.kernel.by_block
        block = self.kernel.by_block

        def run(mask: Mask) -> None:
            unit = meetings.unit
            here: Array = np.ones(len(self.who) // unit, bool)
            if mask is not None:
                come = mask.reshape(-1, unit)
                here = np.any(come, axis=1)
                partial: Array = here & ~np.all(come, axis=1)
                if partial.any():
                    group = int(np.argmax(partial))
                    missing = self.who[group * unit + int(np.argmin(come[group]))]
                    raise InterpretError(
                        f"a barrier where not all threads come: {self.kernel.name(int(missing))} is missing",
                        where=self.scope.where,
                    )
            first = int(self.who[0])
            meetings.count[first // unit : first // unit + len(here)] += here
            if meetings is block:
                self.kernel.by_warp.count[self.kernel.by_warp.of(self.who if mask is None else self.who[mask])] += 1

        return run

    def intrinsic(self, s: Intrinsic) -> Run:
        """A closure that runs an intrinsic: of single threads, of lanes that exchange elements, or of a whole warp with
        matrix registers."""
        if not is_known(s.name):
            raise InterpretError("no intrinsic of this name is registered", where=f"intrinsic {s.name!r}")
        if is_async(s.name):
            return self.copied(self.statement(expand(s)))
        if all(r.buffer.scope != "tiles" for r in (*s.outputs, *s.inputs)):
            self.scope.together = True
            step = self.statement(expand(s))
            self.scope.together = False
            return step
        total = self.kernel.threads * self.kernel.blocks
        leaders = self.who % WARP == 0
        if self.kernel.threads % WARP:
            raise InterpretError("blocks are not whole warps", where=f"intrinsic {s.name!r}")
        body = self.statement(expand(s))

        def run(mask: Mask) -> None:
            come = np.ones(len(self.who), bool) if mask is None else mask
            warps = come.reshape(-1, WARP)
            if (warps.any(axis=1) & ~warps.all(axis=1)).any():
                raise InterpretError("a warp's instruction where not all of it comes", where=f"intrinsic {s.name!r}")
            self.scope.who = total + self.who // WARP
            body(leaders & come)
            self.scope.who = self.who

        return run

    def copied(self, body: Run) -> Run:
        """A closure that runs `body` as an asynchronous copy: until the barrier that waits for the copy, its accesses
        race even with those of the thread that started it."""
        first = 2 * self.kernel.threads * self.kernel.blocks

        def run(mask: Mask) -> None:
            self.scope.who = first + self.who
            body(mask)
            self.scope.who = self.who

        return run


def _in_order(steps: Sequence[Run], mask: Mask) -> None:
    for step in steps:
        step(mask)


def _bind(cell: list[Value], value: Lanes, body: Run, mask: Mask) -> None:
    cell[0] = value(mask)
    body(mask)


def _under(condition: Array, body: Run, mask: Mask) -> None:
    """Run `body` for the threads of `mask` for which `condition` holds, if there are any."""
    inside = condition if mask is None else condition & mask
    if inside.any():
        body(None if mask is None and inside.all() else inside)


__all__ = ["interpret_grid"]
