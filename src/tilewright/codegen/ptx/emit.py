"""Flat loops as LLVM text for NVIDIA's processors: a kernel for each nest with loops bound to hardware indices.

    for i in 0..m thread(blockIdx.x) {              define ptx_kernel void @add(...) {
      for j in 0..64 thread(threadIdx.x) {    ->      %i = ctaid.x
        C[i * 64 + j] = ... } }                       %j = tid.x
                                                      ... }

The meaning is that of `codegen/cuda/emit.py`: loops of threadIdx are steps of the same threads, and threads synchronise
at the barriers of the loops (`transform/loops/barriers.py`). `codegen/llvm/` writes expressions, addresses and the code
of single threads.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from tilewright.arith import prove_equal
from tilewright.codegen.cuda.private import extents_of_threads, has_threads, keep_own_elements, of_threads
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import Pointer, State
from tilewright.codegen.llvm.stmt import allocate, emit, serial
from tilewright.codegen.llvm.values import Value
from tilewright.codegen.ptx.collective import emit_arrival, emit_collective, emit_copy, emit_fence, is_collective
from tilewright.codegen.ptx.module import Launch, Module
from tilewright.codegen.ptx.tensor_maps import MAP_BYTES, TILE_ALIGN, Tiles
from tilewright.codegen.ptx.wgmma import is_wide
from tilewright.codegen.touched import touched
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Buffer, Expr, as_int, const
from tilewright.ir.loops import Allocate, Barrier, For, If, Intrinsic, Let, PrimFunc, Seq, Stmt, Store
from tilewright.ir.rewrite import exprs_of, loads, map_stmt, variables, walk
from tilewright.ir.scopes import sharing
from tilewright.native.text import identifier
from tilewright.schedule.intrinsics import expand
from tilewright.schedule.mma_intrinsics import is_async, is_tile_copy
from tilewright.support.depth import deep_recursion
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target

STATED_BYTES = 48 << 10
"""The largest number of bytes of shared memory that a kernel declares in its text; for more, its launch requests the
memory."""
SHARED_ALIGN = 128
"""The alignment in bytes of buffers in shared memory: a line."""
ARGUMENT_ALIGN = 16
"""The least alignment of arguments in bytes: as many as a thread moves at once."""
DYNAMIC = "@tw_shared"
"""The LLVM name of shared memory that a launch requests."""


def emit_module(func: PrimFunc, target: Target) -> Module:
    """The LLVM text of a flat function's kernels and their launches, in order.

    Raises CompileError for nests without hardware indices, varying thread extents, buffers that threads would share
    outside of shared memory, barriers that not all threads reach, and too much shared memory.
    """
    gpu = target.gpu
    if gpu is None:
        raise CompileError("no GPU", where=func.name, expected="a target such as nvidia-sm_90", got=target.cpu)
    body = map_stmt(func.body, lambda s: expand(s) if isinstance(s, Intrinsic) and not _is_written(s.name) else None)
    body = keep_own_elements(body)
    nests = body.stmts if isinstance(body, Seq) else (body,)
    names = [func.name if len(nests) == 1 else f"{func.name}_{k}" for k in range(len(nests))]
    kernels = [_Kernel(replace(func, body=s), name, target) for s, name in zip(nests, names, strict=True)]
    texts: list[str] = []
    metadata: list[str] = []
    with deep_recursion():
        for k in kernels:
            text = k.text()
            texts.append(_numbered(text, len(metadata)))
            metadata += [_numbered(line, len(metadata)) for line in k.s.out.metadata]
    dynamic = any(k.dynamic for k in kernels)
    head = [f'target triple = "{target.triple}"', ""]
    align = TILE_ALIGN if any(k.by_tiles for k in kernels) else SHARED_ALIGN
    head += [f"{DYNAMIC} = external addrspace(3) global [0 x i8], align {align}", ""] if dynamic else []
    declared = {name: text for k in kernels for name, text in k.s.out.declarations.items()}
    tail = [declared[name] for name in sorted(declared)]
    return Module("\n".join([*head, *texts, *tail, "", *metadata]) + "\n", tuple(k.launch() for k in kernels))


def _numbered(text: str, first: int) -> str:
    """The text of a kernel with its metadata numbers increased by `first`."""
    return re.sub(r"!(\d+)", lambda m: f"!{int(m[1]) + first}", text) if first else text


class _Kernel:
    """Emits one kernel. `bound` maps each direction to the number of threads that reach the current statement, by
    enclosing loops; `partial`: not all threads of the block reach it."""

    def __init__(self, func: PrimFunc, name: str, target: Target) -> None:
        self.func = func
        self.name = name
        self.target = target
        used = _used(func.body)
        self.buffers = tuple(k for k, b in enumerate(func.params) if b.name in used)
        self.params = tuple(func.params[k] for k in self.buffers)
        self.written = touched(func.body).writes | {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate)}
        self.s = State(target, frozenset(self.written), evaluate)
        self.block = extents_of_threads(func)
        self.grid: dict[str, Expr] = {}
        self.bound: dict[str, int] = {}
        self.outermost = True
        self.partial = False
        intrinsics = {s.name for s in walk(func.body) if isinstance(s, Intrinsic)}
        self.by_tiles = any(map(is_tile_copy, intrinsics))
        self.copies, self.wide = any(map(_is_of_thread, intrinsics)), any(map(is_wide, intrinsics))
        self.turns = 1 + max((s.pending for s in walk(func.body) if isinstance(s, Barrier)), default=0)
        self.shared = _shared_offsets(func.body, name, target, self._rows)
        bytes_at = self.shared.size
        if self.by_tiles:
            self.shared.take(-(-8 * self.turns // SHARED_ALIGN) * SHARED_ALIGN, name, target)
        self.dynamic = self.shared.size > STATED_BYTES
        self.tiles = Tiles(self.s, self._memory, bytes_at, self.turns)

    def text(self) -> str:
        s = self.s
        operands = [identifier(f"p.{b.name}", "%") for b in self.params]
        for b, operand in zip(self.params, operands, strict=True):
            align = max(b.align or 0, b.dtype.itemsize, ARGUMENT_ALIGN)
            s.pointers[b.name] = Pointer(operand, align & -align)
        symbols = []
        for v in self.func.symbols:
            s.env[v] = Value(i64, (identifier(f"n.{v.name}", "%"),))
            s.symbolic = True
            symbols.append(f"i64 {s.env[v].scalar}")
        if self.by_tiles:
            self.tiles.begin(self.first)
        self.statement(self.func.body)
        arguments = [self._argument(b, operand) for b, operand in zip(self.params, operands, strict=True)]
        kind = f'ptr byval([{MAP_BYTES} x i8]) align 64 "nvvm.grid_constant"'
        maps = [f"{kind} %map.{k}" for k in range(len(self.tiles.maps))]
        threads = self.launch().threads
        attributes = f'nounwind "nvvm.maxntid"="{threads}" "nvvm.minctasm"="1"'
        memory, name = [], identifier(self.name, "@")
        if self.shared.size and not self.dynamic:
            align = TILE_ALIGN if self.by_tiles else SHARED_ALIGN
            memory = [
                f"{self._memory} = internal addrspace(3) global [{self.shared.size} x i8] undef, align {align}",
                "",
            ]
        tables = [f"{n} = private unnamed_addr constant {c}, align 64" for c, n in s.out.tables.items()]
        return "\n".join(
            [
                *memory,
                *(t.replace("@table.", f"@{self.name}.table.") for t in tables),
                f"define ptx_kernel void {name}({', '.join([*arguments, *symbols, *maps])}) {attributes} {{",
                "entry:",
                *s.out.entry,
                *(line.replace("@table.", f"@{self.name}.table.") for line in s.out.lines),
                "  ret void",
                "}",
                "",
            ]
        )

    def launch(self) -> Launch:
        grid = [self.grid.get(f"blockIdx.{d}", const(1)) for d in "xyz"]
        block = [self.block.get(f"threadIdx.{d}", 1) for d in "xyz"]
        size = self.shared.size
        return Launch(
            self.name,
            self.buffers,
            tuple(range(len(self.func.symbols))),
            (grid[0], grid[1], grid[2]),
            (block[0], block[1], block[2]),
            shared=size if self.dynamic else 0,
            stated=0 if self.dynamic else size,
            maps=tuple(self.tiles.maps),
        )

    @property
    def _memory(self) -> str:
        return DYNAMIC if self.dynamic else identifier(f"{self.name}.shared", "@")

    def _argument(self, b: Buffer, operand: str) -> str:
        words = ["ptr"]
        if b.name not in touched(self.func.body).writes:
            words += ["noalias", "readonly"]
        return " ".join([*words, f"captures(none) align {self.s.pointers[b.name].align}", operand])

    # Statements

    def statement(self, stmt: Stmt) -> None:
        """Emit a statement that all threads reach, except those that enclosing loops exclude."""
        if isinstance(stmt, Barrier):
            self.barrier(stmt)
            return
        if not has_threads(stmt) and not _has_collective(stmt):
            self.by_one(stmt)
            return
        if not (isinstance(stmt, For) and stmt.thread) and not isinstance(stmt, Allocate):
            self.outermost = False
        match stmt:
            case Seq(stmts):
                for child in stmts:
                    self.statement(child)
            case For() if stmt.thread is not None and stmt.thread != "vthread":
                self.index(stmt)
            case For():
                self.repeat(stmt)
            case If():
                self.condition(stmt)
            case Let(var, value, body):
                self.s.env[var] = evaluate(self.s, value)
                self.s.depth[var] = len(self.s.scopes)
                with self.s.scope():
                    self.statement(body)
            case Allocate():
                self.allocate(stmt)
                self.statement(stmt.body)
            case Intrinsic(name) if is_async(name):
                self.by_one(stmt)
            case Intrinsic():
                if self.partial:
                    raise CompileError("a warp would compute where not all of it comes", where=self.name, got=stmt.name)
                emit_collective(self.s, stmt)
            case _:
                raise CompileError(f"no kernel has a {type(stmt).__name__} here", where=self.name)

    def by_one(self, stmt: Stmt) -> None:
        """Emit a statement without thread loops, to be run only by the threads whose index is 0 in each direction that
        no enclosing loop is bound to."""
        if self.outermost and not self.bound and not self.grid:
            raise CompileError("no hardware index runs through a loop", where=self.name, hint="bind a loop")
        s = self.s
        rest = [t for t in self.block if t not in self.bound]

        def write() -> None:
            if isinstance(stmt, Intrinsic) and is_tile_copy(stmt.name):
                names = [b.name for b in self.func.params]
                self.tiles.copy(stmt, names.index(stmt.inputs[0].buffer.name))
            elif isinstance(stmt, Intrinsic):
                emit_copy(s, stmt)
            else:
                emit(s, stmt)

        if not rest:
            write()
            return
        condition = ""
        for t in rest:
            first = s.out.inst(f"icmp eq i64 {self._index(t)}, 0")
            condition = s.out.inst(f"and i1 {condition}, {first}") if condition else first
        self._under(condition, write)

    def _under(self, condition: str, body: object) -> None:
        s = self.s
        then, join = s.out.fresh("then"), s.out.fresh("join")
        s.out.branch(condition, then, join)
        s.out.start(then)
        with s.scope():
            body()  # type: ignore[operator]
        s.out.jump(join)
        s.out.start(join)
        s.forget_loads()

    def condition(self, stmt: If) -> None:
        s = self.s
        outer = self.partial
        self.partial = outer or not self._of_threads.isdisjoint(variables(stmt.condition))
        holds = evaluate(s, stmt.condition).scalar
        self._under(holds, lambda: self.statement(stmt.then))
        if stmt.orelse is not None:
            otherwise = stmt.orelse
            self._under(s.out.inst(f"xor i1 {holds}, true"), lambda: self.statement(otherwise))
        self.partial = outer

    @property
    def _of_threads(self) -> set[Expr]:
        return {s.var for s in walk(self.func.body) if of_threads(s) and isinstance(s, For)}

    def index(self, stmt: For) -> None:
        """Emit the loop `stmt`, which is bound to a hardware index: its variable becomes that index, and threads past
        its extent skip the body."""
        assert stmt.thread is not None
        s = self.s
        s.env[stmt.var] = Value(i64, (self._index(stmt.thread),))
        s.depth[stmt.var] = 0 if not of_threads(stmt) else 1
        s.counters.add(stmt.var)
        if not of_threads(stmt):
            self.blocks(stmt)
            self.statement(stmt.body)
            return
        bound, outer = self.bound, self.partial
        extent, known = as_int(stmt.extent) or 0, bound.get(stmt.thread, self.block[stmt.thread])
        if extent > known:
            raise CompileError(
                f"loop {stmt.var.name!r} of {stmt.thread} has more iterations than threads come there",
                where=self.name,
                expected=f"at most {known}",
                got=extent,
            )
        self.bound = {**bound, stmt.thread: extent}
        if extent < known:
            self.partial = True
            inside = s.out.inst(f"icmp slt i64 {self._index(stmt.thread)}, {s.scalar(stmt.extent)}")
            self._under(inside, lambda: self.statement(stmt.body))
        else:
            self.statement(stmt.body)
        self.bound, self.partial = bound, outer

    def blocks(self, stmt: For) -> None:
        assert stmt.thread is not None
        if not self.outermost or self.bound:
            raise CompileError(f"loop {stmt.var.name!r} of {stmt.thread} is inside of others", where=self.name)
        known = self.grid.setdefault(stmt.thread, stmt.extent)
        if not prove_equal(known, stmt.extent):
            raise CompileError(f"loops of {stmt.thread} differ", where=self.name, expected=known, got=stmt.extent)

    def _index(self, thread: str) -> str:
        """A hardware index as an i64, read at the begin of the kernel."""
        register = {"threadIdx": "tid", "blockIdx": "ctaid"}[thread[:-2]]
        name = f"%{register}.{thread[-1]}"
        if not any(line.startswith(f"  {name} =") for line in self.s.out.entry):
            symbol = self.s.out.declare(f"llvm.nvvm.read.ptx.sreg.{register}.{thread[-1]}", "i32", [])
            self.s.out.entry += [f"  {name}.i32 = call i32 {symbol}()", f"  {name} = zext nneg i32 {name}.i32 to i64"]
        return name

    def repeat(self, stmt: For) -> None:
        """Emit a loop whose iterations all threads run in order."""
        s, extent = self.s, as_int(stmt.extent)
        if extent is not None and (extent == 1 or stmt.kind == "unrolled"):
            for i in range(extent):
                with s.binding(stmt.var, i):
                    self.statement(stmt.body)
            return
        serial(s, stmt, "0", s.scalar(stmt.extent), lambda: self.statement(stmt.body), positive=extent is not None)

    def barrier(self, stmt: Barrier) -> None:
        if self.partial:
            raise CompileError("threads would wait where not all of them come", where=self.name)
        block = ("llvm.nvvm.barrier.cta.sync.aligned.all", 0)
        name, operand = ("llvm.nvvm.bar.warp.sync", -1) if stmt.group == "warp" else block
        if self.copies and stmt.group == "block":
            emit_arrival(self.s, stmt.pending, self.wide)
        elif self.wide and stmt.group == "block" and not self.by_tiles:
            emit_fence(self.s)
        if self.by_tiles and stmt.group == "block":
            self.tiles.meet(stmt.pending, self.first)
        symbol = self.s.out.declare(name, "void", ["i32"], "convergent nounwind")
        self.s.out.effect(f"call void {symbol}(i32 {operand})")
        self.s.forget_loads()

    @property
    def first(self) -> str:
        """Emit the condition that the thread is the first of its block; returns its name."""
        result = "true"
        for t in self.block:
            zero = self.s.out.inst(f"icmp eq i64 {self._index(t)}, 0")
            result = self.s.out.inst(f"and i1 {result}, {zero}")
        return result

    @property
    def _rows(self) -> int:
        """The number of rows of threads in direction x in a block; each row has its own copy of a buffer of scope
        "warp"."""
        return prod(n for t, n in self.block.items() if t != "threadIdx.x")

    def allocate(self, stmt: Allocate) -> None:
        """Emit a buffer: in the block's shared memory, or private to each thread."""
        b, s = stmt.buffer, self.s
        if not sharing(b.scope):
            if b.scope != "local" and not self.bound:
                hint = 'set_scope(..., "shared"), or "local" for an element of each thread'
                raise CompileError(f"threads share {b.name!r}, which is no shared memory", where=self.name, hint=hint)
            allocate(s, stmt)
            return
        offset, name = self.shared.offsets[b.name], "%" + s.out.fresh(b.name)
        place = f"getelementptr (i8, ptr addrspace(3) {self._memory}, i64 {offset})"
        s.out.entry.append(f"  {name} = addrspacecast ptr addrspace(3) {place} to ptr")
        s.pointers[b.name] = Pointer(name, SHARED_ALIGN)
        if b.scope == "warp" and self._rows > 1:
            row = self._index("threadIdx.y") if "threadIdx.y" in self.block else "0"
            if "threadIdx.z" in self.block:
                above = s.out.inst(f"mul i64 {self._index('threadIdx.z')}, {self.block.get('threadIdx.y', 1)}")
                row = s.out.inst(f"add i64 {row}, {above}")
            above = s.out.inst(f"mul i64 {row}, {_bytes(b, self.name)}")
            s.pointers[b.name] = Pointer(s.out.inst(f"getelementptr i8, ptr {name}, i64 {above}"), SHARED_ALIGN)


class _Shared:
    """The offsets of the buffers in shared memory, one after another, and their total size in bytes."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.size = 0

    def take(self, nbytes: int, where: str, target: Target) -> None:
        """Add `nbytes` to the size of shared memory. Raises CompileError if a block of the target cannot have as
        much."""
        assert target.gpu is not None
        self.size += nbytes
        if self.size > target.gpu.shared:
            raise CompileError("too much shared memory", where=where, expected=target.gpu.shared, got=self.size)


def _bytes(b: Buffer, where: str) -> int:
    """The bytes of a buffer in shared memory, rounded up to whole lines."""
    size = as_int(b.size)
    if size is None:
        raise CompileError(f"the size of {b.name!r} varies", where=where)
    return -(-size * b.dtype.itemsize // SHARED_ALIGN) * SHARED_ALIGN


def _shared_offsets(body: Stmt, where: str, target: Target, rows: int) -> _Shared:
    result = _Shared()
    for s in walk(body):
        if isinstance(s, Allocate) and sharing(s.buffer.scope):
            result.offsets[s.buffer.name] = result.size
            result.take(_bytes(s.buffer, where) * (rows if s.buffer.scope == "warp" else 1), where, target)
    return result


def _is_of_thread(name: str) -> bool:
    """Whether the intrinsic `name` is an asynchronous copy that each thread starts for itself."""
    return is_async(name) and not is_tile_copy(name)


def _is_written(name: str) -> bool:
    """Whether this module has instructions for the intrinsic `name`; others are expanded to loops."""
    return is_collective(name) or is_async(name)


def _has_collective(s: Stmt) -> bool:
    """Whether `s` contains a barrier, or an intrinsic that is written as instructions."""
    return any(isinstance(x, Barrier) or (isinstance(x, Intrinsic) and _is_written(x.name)) for x in walk(s))


def _used(body: Stmt) -> set[str]:
    """The names of the buffers that the statement `body` accesses."""
    members: set[str] = set()
    for s in walk(body):
        for e in exprs_of(s):
            members.update(x.buffer.name for x in loads(e))
        if isinstance(s, Store):
            members.add(s.buffer.name)
        if isinstance(s, Intrinsic):
            members.update(r.buffer.name for r in (*s.outputs, *s.inputs))
    return members


__all__ = ["emit_module"]
