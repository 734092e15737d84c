"""Flat loops as CUDA C++: a kernel for each nest that hardware indices run through, and a function that launches them.

    for i in 0..m thread(blockIdx.x) {              extern "C" __global__ void add(...) {
      for j in 0..64 thread(threadIdx.x) {    ->        const int64_t i = blockIdx.x;
        C[i * 64 + j] = ... } }                         const int64_t j = threadIdx.x;
                                                        C[i * 64 + j] = ...; }

A loop of index threadIdx says which threads do its iterations; several such loops in a block are steps of the same
threads. What stands between them every thread does: loops, and `__syncthreads` where one step reads what another wrote.
What no thread's loop is around, one thread does. Local buffers are each thread's own (`private`), shared ones are the
block's. The loops that the interpreter runs one after another are thus the meaning of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.arith import prove_equal
from tilewright.codegen.c.emit import Emitter, opening
from tilewright.codegen.c.helpers import VALUE_TYPES, helper
from tilewright.codegen.cuda.private import extents_of_threads, has_threads, keep_own_elements, of_threads
from tilewright.codegen.touched import Touched, touched
from tilewright.ir.expr import Buffer, Expr, Var, as_int
from tilewright.ir.loops import Allocate, For, If, Intrinsic, PrimFunc, Seq, Stmt
from tilewright.ir.rewrite import map_stmt, walk
from tilewright.schedule.intrinsics import expand
from tilewright.support.errors import CompileError

SHARED_BYTES = 48 * 1024
"""Bytes of shared memory that a block may have without asking for more."""


def emit_cuda(func: PrimFunc) -> str:
    """The CUDA text of a flat function: its kernels, and `<name>_launch`, which calls them on a stream.

    Raises CompileError for what no kernel can be: nests without hardware indices, extents of threads that vary, local
    buffers that threads would share, barriers where not all threads come.
    """
    body = map_stmt(func.body, lambda s: expand(s) if isinstance(s, Intrinsic) else None)
    body = keep_own_elements(body)
    nests = body.stmts if isinstance(body, Seq) else (body,)
    names = [func.name if len(nests) == 1 else f"{func.name}_{k}" for k in range(len(nests))]
    kernels = [_Kernel(replace(func.with_body(s), name=name)) for s, name in zip(nests, names, strict=True)]
    texts = [k.kernel() for k in kernels]
    headers = sorted({h for k in kernels for h in k.exprs.headers})
    helpers = dict.fromkeys(h for k in kernels for h in k.all_helpers())
    parts = ["\n".join(f"#include <{h}>" for h in headers)]
    parts += [helper(h).text.replace("static inline", "static __host__ __device__ inline") for h in helpers]
    return "\n\n".join([*parts, *texts, _launcher(func, kernels)]) + "\n"


class _Kernel(Emitter):
    """One kernel. `bound` are the indices of threads that the loops around run through; `open` is what threads have
    touched since the last barrier; `apart`: not all threads come here."""

    def __init__(self, func: PrimFunc) -> None:
        super().__init__(func)
        self.block = extents_of_threads(func)
        self.grid: dict[str, Expr] = {}
        self.bound: tuple[str, ...] = ()
        self.open = Touched()
        self.outermost = True
        self.alone = False
        self.apart = False
        self.shared_bytes = 0

    def kernel(self) -> str:
        self.title = self.identifiers.take(self.func.name)
        for x in _arguments(self.func):
            self.declare(x)
        self.statement(self.func.body, 1)
        if self.shared_bytes > SHARED_BYTES:
            raise CompileError(
                "too much shared memory", where=self.func.name, expected=SHARED_BYTES, got=self.shared_bytes
            )
        self.includes()
        return "\n".join([*opening(f'extern "C" __global__ void {self.title}', self.parameters()), *self.lines, "}"])

    def parameters(self) -> list[str]:
        constant = {b: "" if b in self.stored else "const " for b in self.func.params}
        buffers = [f"{constant[b]}{self.memory_type(b)} *__restrict__ {self.names[b]}" for b in self.func.params]
        return buffers + [f"{VALUE_TYPES[v.dtype.name]} {self.names[v]}" for v in self.func.symbols]

    # Statements

    def statement(self, s: Stmt, level: int) -> None:
        if self.alone:
            super().statement(s, level)
        elif not has_threads(s):
            self.by_one(s, level)
        else:
            self.together(s, level)

    def by_one(self, s: Stmt, level: int) -> None:
        """A statement without loops of threads: done by those threads that are 0 where no loop is around it."""
        if self.outermost and not self.bound and not self.grid:
            raise CompileError("no hardware index runs through a loop", where=self.func.name, hint="bind a loop")
        rest = [t for t in self.block if t not in self.bound]
        self.open.include(self.of_block(touched(s)))
        self.alone = True
        if rest:
            self.line(f"if ({' && '.join(f'{t} == 0' for t in rest)}) {{", level)
        super().statement(s, level + bool(rest))
        if rest:
            self.line("}", level)
        self.alone = False

    def together(self, s: Stmt, level: int) -> None:
        """A statement that all threads come to."""
        if not (isinstance(s, For) and s.thread) and not isinstance(s, Allocate):
            self.outermost = False
        match s:
            case Seq(stmts):
                for child in stmts:
                    self.wait(touched(child), level)
                    self.statement(child, level)
            case For() if s.thread is not None and s.thread != "vthread":
                self.index(s, level)
            case For():
                self.repeat(s, level)
            case If():
                separate, self.apart = self.apart, True
                super().statement(s, level)
                self.apart = separate
            case _:
                super().statement(s, level)

    def index(self, s: For, level: int) -> None:
        """A loop that a hardware index runs through."""
        assert s.thread is not None
        i = self.declare(s.var)
        self.extents[s.var] = s.extent
        self.line(f"const int64_t {i} = {s.thread};", level)
        if not of_threads(s):
            self.blocks(s)
            self.statement(s.body, level)
            return
        bound, separate = self.bound, self.apart
        self.bound = (*bound, s.thread)
        partial = as_int(s.extent) != self.block[s.thread]
        if partial:
            self.line(f"if ({i} < {self.exprs.text(s.extent)}) {{", level)
            self.apart = True
        self.statement(s.body, level + partial)
        if partial:
            self.line("}", level)
        self.bound, self.apart = bound, separate

    def blocks(self, s: For) -> None:
        assert s.thread is not None
        if not self.outermost or self.bound:
            raise CompileError(
                f"loop {s.var.name!r} of {s.thread} is inside of others", where=self.func.name, hint="reorder it"
            )
        known = self.grid.setdefault(s.thread, s.extent)
        if not prove_equal(known, s.extent):
            raise CompileError(f"loops of {s.thread} differ", where=self.func.name, expected=known, got=s.extent)

    def repeat(self, s: For, level: int) -> None:
        """A loop that all threads run, each iteration after the one before."""
        inside = self.of_block(touched(s.body))
        end = self.exprs.text(s.extent, 11)
        i = self.declare(s.var)
        self.extents[s.var] = s.extent
        self.line(f"for (int64_t {i} = 0; {i} < {end}; ++{i}) {{", level)
        self.statement(s.body, level + 1)
        if inside.conflicts(inside):
            self.barrier(level + 1)
        self.line("}", level)

    def wait(self, coming: Touched, level: int) -> None:
        """A barrier if what comes touches what other threads may still be at."""
        if self.open.conflicts(self.of_block(coming)):
            self.barrier(level)

    def barrier(self, level: int) -> None:
        if self.block:
            if self.apart:
                raise CompileError("threads would wait where not all of them come", where=self.func.name)
            self.line("__syncthreads();", level)
        self.open = Touched()

    def of_block(self, result: Touched) -> Touched:
        """What is touched of memory that threads have in common."""
        return Touched(result.reads - self.own, result.writes - self.own)

    @property
    def own(self) -> set[str]:
        """The names of buffers that each thread has for itself."""
        return {s.buffer.name for s in walk(self.func.body) if isinstance(s, Allocate) and s.buffer.scope != "shared"}

    def allocate(self, s: Allocate, level: int) -> None:
        size = as_int(s.buffer.size)
        if size is None:
            raise CompileError(f"the size of {s.buffer.name!r} varies", where=self.func.name)
        if s.buffer.scope != "shared" or self.alone:
            if not self.alone and s.buffer.scope != "local":
                hint = 'set_scope(..., "shared"), or "local" for an element of each thread'
                raise CompileError(f"threads share {s.buffer.name!r}, which is no shared memory", hint=hint)
            kind = self.memory_type(s.buffer)
            self.line(f"{kind} {self.declare(s.buffer)}[{max(1, size)}];", level)
        else:
            self.shared_bytes += size * s.buffer.dtype.itemsize
            self.line(f"__shared__ {self.memory_type(s.buffer)} {self.declare(s.buffer)}[{max(1, size)}];", level)
        self.statement(s.body, level)


def _arguments(func: PrimFunc) -> list[Var | Buffer]:
    return [*func.params, *func.symbols]


def _launcher(func: PrimFunc, kernels: list[_Kernel]) -> str:
    """The function that calls the kernels, one after another on a stream."""
    first = kernels[0]
    parameters = [p.replace("__restrict__ ", "") for p in first.parameters()]
    lines = opening(
        f'extern "C" void {first.identifiers.take(func.name + "_launch")}', [*parameters, "cudaStream_t stream"]
    )
    for k in kernels:
        grid = ", ".join(_directions(k, "blockIdx"))
        block = ", ".join(_directions(k, "threadIdx"))
        names = ", ".join(k.names[x] for x in _arguments(func))
        lines.append(f"    {k.title}<<<dim3({grid}), dim3({block}), 0, stream>>>({names});")
    return "\n".join([*lines, "}"])


def _directions(k: _Kernel, index: str) -> Iterator[str]:
    for d in "xyz":
        extent = k.grid.get(f"{index}.{d}") if index == "blockIdx" else k.block.get(f"{index}.{d}", 1)
        yield (
            "1" if extent is None else str(extent) if isinstance(extent, int) else f"(unsigned)({k.exprs.text(extent)})"
        )
