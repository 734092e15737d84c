"""Translate loops over VTA's memories to a program of its instructions.

The loops come from `transform/loops/`, with allocated buffers. The emitter runs outer loops itself, and translates
their bodies to instructions: a copy between DRAM and a buffer is a transfer, a nest around `vta_gemm` a GEMM,
arithmetic on accumulators operations of the ALU. Iterations of virtual threads are interleaved, each with separate
buffers. Double buffers (the note `DoubleBuffer`) have two places: since queues run concurrently, a transfer ahead needs
only a free place. Tokens follow from the rows (`targets/vta/tokens.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.codegen.vta.alu import Alus
from tilewright.codegen.vta.machine import GEMM, LANES, MEMORIES
from tilewright.codegen.vta.nests import nests
from tilewright.codegen.vta.points import grid, offset, sizes, spread, value
from tilewright.codegen.vta.transfers import pictures
from tilewright.codegen.vta.uops import Uops
from tilewright.codegen.vta.work import Item, Work, started_with_biases, with_last_in_pieces
from tilewright.ir.dtype import i8, i32
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Seq, Stmt, Store
from tilewright.ir.notes import DoubleBuffer, find
from tilewright.ir.rewrite import loads, walk
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError
from tilewright.targets.vta.config import DEFAULT, Memory
from tilewright.targets.vta.isa import Instruction, encode
from tilewright.targets.vta.isa import Load as LoadInsn
from tilewright.targets.vta.isa import Store as StoreInsn
from tilewright.targets.vta.tokens import with_tokens

Array = np.ndarray[Any, Any]
Loops = list[tuple[Var, int]]

PAGE = 4096
"""The first address in DRAM that is used, and the alignment of buffers there, in bytes."""


@dataclass(frozen=True, slots=True)
class VtaProgram:
    """A kernel as VTA runs it.

    Args:
        instructions: with their tokens; the last one is FINISH.
        addresses: of the function's parameters in DRAM.
        uops: the micro-operations, uint8[n], and where they lie.
    """

    instructions: tuple[Instruction, ...]
    addresses: tuple[int, ...]
    uops: Array
    uop_address: int

    @property
    def words(self) -> Array:
        return encode(self.instructions)


@dataclass(slots=True)
class _Thread:
    """An iteration of virtual threads: the values of its loop variables, and the first row of each of its buffers."""

    values: dict[Var, int]
    places: dict[Buffer, int]

    def having(self, var: Var, number: int) -> _Thread:
        return _Thread({**self.values, var: number}, self.places)


def emit_vta(func: PrimFunc, floor: int | None = None) -> VtaProgram:
    """The program of a function. `floor`: a lower bound of the rows that are added to sums (`work.py`); None: unknown.

    Raises CompileError for what VTA has no instructions for.
    """
    emitter = _Emitter(func)
    emitter.statement(func.body, [_Thread({}, {})])
    items = emitter.items if floor is None else started_with_biases(emitter.items, floor)
    placed = Uops(addresses(func)[1])
    placed.program_of(with_last_in_pieces(items))
    uops = placed.words()
    instructions = with_tokens(placed.program, {placed.address: uops})
    return VtaProgram(tuple(instructions), tuple(emitter.addresses[b] for b in func.params), uops, placed.address)


def addresses(func: PrimFunc) -> tuple[dict[Buffer, int], int]:
    """The address in DRAM of each parameter of a function, and the first address after them."""
    at, results = PAGE, {}
    for buffer in func.params:
        results[buffer] = at
        nbytes = int(np.prod(sizes(buffer), dtype=np.int64)) * buffer.dtype.itemsize
        at += -(-nbytes // PAGE) * PAGE
    return results, at


@dataclass(slots=True)
class _Emitter:
    func: PrimFunc
    items: list[Item] = field(default_factory=list)
    addresses: dict[Buffer, int] = field(init=False)
    alus: Alus = field(init=False)
    used: dict[Memory, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    doubled: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.addresses, _ = addresses(self.func)
        last: dict[Buffer, Store] = {}
        for s in walk(self.func.body):
            if isinstance(s, Store):
                last |= dict.fromkeys({x.buffer for x in loads(s.value)} - {s.buffer}, s)
        self.alus = Alus(self.items, last)
        notes = (find(s.notes, DoubleBuffer) for s in walk(self.func.body) if isinstance(s, For))
        self.doubled = frozenset(name for note in notes if note is not None for name in note.buffers)

    # Loops that run here

    def statement(self, s: Stmt, threads: list[_Thread]) -> None:
        match s:
            case Seq() if all(map(_is_leaf, s.stmts)):
                # Transfers of one thread, then its arithmetic, beside which the next one's transfers run.
                for thread in threads:
                    for child in s.stmts:
                        self.leaf(child, thread)
            case Seq():
                for child in s.stmts:
                    self.statement(child, threads)
            case Allocate():
                self.allocate(s, threads)
            case For() if not _is_leaf(s) or s.thread is not None:
                self.loop(s, threads)
            case For() | Store() | Intrinsic() | If():
                for thread in threads:
                    self.leaf(s, thread)
            case _:
                raise CompileError("VTA runs no such statement", where=self.func.name, got=type(s).__name__)

    def loop(self, s: For, threads: list[_Thread]) -> None:
        extents = {int(value(s.extent, t.values)) for t in threads}
        if len(extents) != 1:
            raise CompileError("virtual threads run loops of different lengths", where=f"loop {s.var.name!r}")
        (extent,) = extents
        if s.thread is not None:
            each = [t.having(s.var, n) for t in threads for n in range(extent)]
            self.statement(s.body, [_Thread(t.values, {**t.places}) for t in each])
            return
        for n in range(extent):
            self.statement(s.body, [t.having(s.var, n) for t in threads])

    def allocate(self, s: Allocate, threads: list[_Thread]) -> None:
        """Allocate rows for the buffer of `s`: one place for each virtual thread, or two for a double buffer."""
        memory = MEMORIES.get(s.buffer.scope)
        if memory is None:
            raise CompileError("VTA has no such memory", where=f"buffer {s.buffer.name!r}", got=s.buffer.scope)
        shape, lanes = sizes(s.buffer), LANES[memory]
        if shape[-len(lanes) :] != lanes:
            raise CompileError("a row has other lanes", where=f"buffer {s.buffer.name!r}", expected=lanes, got=shape)
        rows = int(np.prod(shape[: -len(lanes)], dtype=np.int64))
        places = 2 if s.buffer.name in self.doubled else 1
        start = self.used.get(memory, 0)
        end = start + rows * places * len(threads)
        if end > DEFAULT.rows(memory):
            what = f"what lives in {s.buffer.scope!r} at once does not fit"
            raise CompileError(what, where=f"buffer {s.buffer.name!r}", expected=DEFAULT.rows(memory), got=end)
        self.used[memory] = end
        turn = self.turns.get(s.buffer.name, 0)
        self.turns[s.buffer.name] = turn + 1
        for k, thread in enumerate(threads):
            thread.places = {**thread.places, s.buffer: start + (k * places + turn % places) * rows}
        self.statement(s.body, threads)
        self.used[memory] = start

    # Nests that become instructions

    def leaf(self, s: Stmt, thread: _Thread) -> None:
        loops: Loops = []
        conditions: list[Expr] = []
        while isinstance(s, For | If):
            if isinstance(s, For):
                loops.append((s.var, int(value(s.extent, thread.values))))
                s = s.body
            else:
                conditions.append(s.condition)
                s = s.then
        if any(n == 0 for _, n in loops):
            return
        if isinstance(s, Intrinsic):
            self.product(s, loops, conditions, thread)
        else:
            assert isinstance(s, Store)
            self.store(s, loops, conditions, thread)

    def product(self, s: Intrinsic, loops: Loops, conditions: list[Expr], thread: _Thread) -> None:
        if s.name != GEMM:
            raise CompileError("VTA has no such instruction", where=f"intrinsic {s.name!r}", expected=GEMM)
        values = {**thread.values, **grid(loops)}
        rows = []
        for region in (*s.outputs, *s.inputs):
            at = offset(region.buffer, [start for start, _ in region.ranges], values)
            rows.append(spread(self.row(region.buffer, at, thread), loops))
        selection = _box(conditions, values, loops)
        for nest in nests([r[selection] for r in rows]):
            self.items.append(Work(nest))

    def store(self, s: Store, loops: Loops, conditions: list[Expr], thread: _Thread) -> None:
        memory = MEMORIES.get(s.buffer.scope)
        lanes, rest = _lanes(s, loops, LANES[memory or Memory.ACC])
        values = {**thread.values, **grid(rest), **dict.fromkeys(lanes, 0)}

        def rows(buffer: Buffer, indices: Sequence[Expr]) -> Array:
            return spread(self.row(buffer, offset(buffer, indices, values), thread), rest)

        from_dram = [x for x in loads(s.value) if x.buffer in self.addresses]
        if memory is not None and from_dram:
            self.load(s, memory, lanes, rest, conditions, thread, values)
            return
        selection = _box(conditions, values, rest)
        self.check_lanes(s, lanes, values)
        target = rows(s.buffer, s.indices)[selection]
        if memory is Memory.ACC and isinstance(s.value, Const):
            self.alus.fill(target, int(s.value.value))
            return

        def read(x: Load) -> Array:
            results: Array = rows(x.buffer, x.indices)[selection]
            return results

        if memory is Memory.ACC:
            self.alus.update(s, target, read)
            return
        if memory is not None:
            raise CompileError("nothing but transfers writes this memory", where=f"buffer {s.buffer.name!r}")
        if s.buffer.dtype is not i8:
            raise CompileError("VTA stores bytes", where=f"buffer {s.buffer.name!r}", got=s.buffer.dtype)
        source = self.alus.in_place(s, read)
        for p in pictures(source, target, np.ones(target.shape, bool)):
            fields = (p.sram_base, p.dram_base, p.y_size, p.x_size, p.x_stride)
            self.items.append(StoreInsn(Memory.OUT, *fields))

    def load(
        self,
        s: Store,
        memory: Memory,
        lanes: Sequence[Var],
        loops: Loops,
        conditions: list[Expr],
        thread: _Thread,
        values: dict[Var, Any],
    ) -> None:
        """Translate a store to `memory` that copies from DRAM, with the innermost loops `lanes` inside a row, within
        `loops` and under `conditions`. Its value is a load, a selection of a load or zero by a condition, or one of
        these widened from bytes. Raises CompileError for others."""
        e: Expr = s.value
        inside: list[Expr] = []
        while isinstance(e, Op) and e.name in ("select", "cast"):
            if e.name == "select":
                condition, e, other = e.args
                if not (isinstance(other, Const) and other.value == 0):
                    raise CompileError("VTA pads with zeros alone", where=f"buffer {s.buffer.name!r}", got=other)
                inside.append(condition)
            else:
                e = e.args[0]
        if not isinstance(e, Load):
            raise CompileError("no copy from DRAM", where=f"buffer {s.buffer.name!r}", got=s.value)
        kind = Memory.ACC8 if memory is Memory.ACC and e.buffer.dtype is i8 else memory
        if e.buffer.dtype is not (i32 if kind is Memory.ACC else i8):
            raise CompileError("other numbers than this memory takes", where=f"buffer {e.buffer.name!r}")
        mask = np.ones([n for _, n in loops], bool)
        for condition in inside:
            mask = mask & np.asarray(value(condition, values), bool)
        self.check_lanes(s, lanes, values, (e, mask))
        size = DEFAULT.dram_bytes(kind)
        at = spread(offset(e.buffer, e.indices, values) * e.buffer.dtype.itemsize, loops) + self.addresses[e.buffer]
        if (at % size).any():
            raise CompileError("rows of DRAM begin inside of others", where=f"buffer {e.buffer.name!r}")
        target = spread(self.row(s.buffer, offset(s.buffer, s.indices, values), thread), loops)
        selection = _box(conditions, values, loops)
        first = self.addresses[e.buffer] // size
        for p in pictures(target[selection], (at // size)[selection], mask[selection], first):
            pads = (p.y_pad_0, p.y_pad_1, p.x_pad_0, p.x_pad_1)
            self.items.append(LoadInsn(kind, p.sram_base, p.dram_base, p.y_size, p.x_size, p.x_stride, *pads))

    def check_lanes(
        self, s: Store, lanes: Sequence[Var], values: dict[Var, Any], source: tuple[Load, Array] | None = None
    ) -> None:
        """Raise CompileError unless all loads of `s` (or the load of `source`) step through memory with the loops
        `lanes` as its store does; `values` are the values of the other variables."""
        extents = dict(zip(lanes, LANES[MEMORIES.get(s.buffer.scope, Memory.ACC)][-len(lanes) :], strict=True))
        step = 1
        for var in reversed(lanes):
            for x in loads(s.value) if source is None else [source[0]]:
                moved = offset(x.buffer, x.indices, {**values, var: 1}) - offset(x.buffer, x.indices, values)
                if source is not None:
                    moved = np.broadcast_to(moved, source[1].shape)[source[1]]
                if not np.all(np.asarray(moved) == step):
                    raise CompileError("lanes are read in another order", where=f"buffer {x.buffer.name!r}", got=x)
            step *= extents[var]

    def row(self, buffer: Buffer, elements: Any, thread: _Thread) -> Any:
        """The row of a buffer in which the flat position `elements` is; in DRAM, counted in rows of results."""
        if buffer in self.addresses:
            at = elements * buffer.dtype.itemsize + self.addresses[buffer]
            return at // DEFAULT.dram_bytes(Memory.OUT)
        memory = MEMORIES[buffer.scope]
        return thread.places[buffer] + elements // int(np.prod(LANES[memory]))


def _is_leaf(s: Stmt) -> bool:
    """Whether `s` is a nest of loops and conditions around one store or intrinsic, without hardware indices."""
    while isinstance(s, For | If):
        if isinstance(s, If) and s.orelse is not None:
            return False
        if isinstance(s, For) and s.thread is not None:
            return False
        s = s.body if isinstance(s, For) else s.then
    return isinstance(s, Store | Intrinsic)


def _lanes(s: Store, loops: Loops, lanes: tuple[int, ...]) -> tuple[list[Var], Loops]:
    """The variables of the loops over the `lanes` of a stored row, and the other loops. Raises CompileError if `s`
    writes only a part of a row."""
    extents = dict(loops)
    results = list(s.indices[-len(lanes) :])
    if not all(isinstance(v, Var) and extents.get(v) == n for v, n in zip(results, lanes, strict=True)):
        raise CompileError("rows are written in parts", where=f"buffer {s.buffer.name!r}", got=results)
    variables = [v for v in results if isinstance(v, Var)]
    return variables, [(v, n) for v, n in loops if v not in variables]


def _box(conditions: list[Expr], values: dict[Var, Any], loops: Loops) -> Any:
    """An index of arrays over the iterations of `loops` that selects the iterations for which all `conditions` hold;
    `values` are the variables' values in all iterations."""
    mask = np.ones([n for _, n in loops], bool)
    for condition in conditions:
        mask = mask & np.asarray(value(condition, values), bool)
    if mask.all():
        return ...
    sides = [np.flatnonzero(mask.any(axis=tuple(k for k in range(mask.ndim) if k != d))) for d in range(mask.ndim)]
    box = np.ix_(*sides)
    return box if mask[box].all() else mask
