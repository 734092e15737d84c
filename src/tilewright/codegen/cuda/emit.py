"""Flat loops as CUDA C++: a kernel for each nest that hardware indices run through, and a function that launches them.

    for i in 0..m thread(blockIdx.x) {              extern "C" __global__ void add(...) {
      for j in 0..64 thread(threadIdx.x) {    ->        const int64_t i = blockIdx.x;
        C[i * 64 + j] = ... } }                         const int64_t j = threadIdx.x;
                                                        C[i * 64 + j] = ...; }

A loop bound to threadIdx distributes its iterations to threads; several such loops in a block, nested or in sequence,
are steps of the same threads. Statements between them run in every thread, and barriers of the loops
(`transform/loops/barriers.py`) become `__syncthreads`. Local buffers are private to a thread (`private`), shared ones
belong to the block, and those of scope "warp" have a part of shared memory for each warp. The interpreter, which runs
the loops sequentially, so defines the meaning of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.arith import prove_equal
from tilewright.codegen.c.emit import Emitter, opening
from tilewright.codegen.c.helpers import VALUE_TYPES, helper
from tilewright.codegen.cuda.private import extents_of_threads, has_threads, keep_own_elements, of_threads
from tilewright.ir.expr import Buffer, Expr, Var, as_int
from tilewright.ir.loops import Allocate, Barrier, For, Intrinsic, PrimFunc, Seq, Stmt
from tilewright.ir.rewrite import exprs_of, map_stmt, variables, walk
from tilewright.ir.scopes import sharing
from tilewright.schedule.intrinsics import expand
from tilewright.support.errors import CompileError

SHARED_BYTES = 48 * 1024
"""The bytes of shared memory that a block may use without an attribute."""
WARP = 32
"""The number of threads in a warp."""


def emit_cuda(func: PrimFunc) -> str:
    """The CUDA text of a flat function: its kernels, and `<name>_launch`, which calls them on a stream.

    Raises CompileError for nests without hardware indices, varying thread extents, local buffers that threads would
    share, and barriers that not all threads reach.
    """
    body = map_stmt(func.body, lambda s: expand(s) if isinstance(s, Intrinsic) else None)
    body = keep_own_elements(body)
    nests = body.stmts if isinstance(body, Seq) else (body,)
    names = [func.name if len(nests) == 1 else f"{func.name}_{k}" for k in range(len(nests))]
    kernels = [_Kernel(replace(func.with_body(s), name=name)) for s, name in zip(nests, names, strict=True)]
    texts = [k.kernel() for k in kernels]
    outside = [name for k in kernels for name in k.exprs.externs]
    if outside:
        raise CompileError("kernels cannot call what is no function of CUDA", where=func.name, got=", ".join(outside))
    headers = sorted({h for k in kernels for h in k.exprs.headers})
    helpers = dict.fromkeys(h for k in kernels for h in k.all_helpers())
    parts = ["\n".join(f"#include <{h}>" for h in headers)]
    parts += [helper(h).text.replace("static inline", "static __host__ __device__ inline") for h in helpers]
    return "\n\n".join([*parts, *texts, _launcher(func, kernels)]) + "\n"


class _Kernel(Emitter):
    """Emits one kernel. `bound` maps each direction to the number of threads that reach the current statement, where
    these are fewer than the block's."""

    def __init__(self, func: PrimFunc) -> None:
        super().__init__(func)
        self.block = extents_of_threads(func)
        self.grid: dict[str, Expr] = {}
        self.bound: dict[str, int] = {}
        self.outermost = True
        self.shared_bytes = 0
        if not has_threads(func.body):
            raise CompileError("no hardware index runs through a loop", where=func.name, hint="bind a loop")

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
        if not (isinstance(s, For) and s.thread) and not isinstance(s, Allocate):
            self.outermost = False
        match s:
            case Barrier(group=group):
                self.line("__syncwarp();" if group == "warp" else "__syncthreads();", level)
            case For() if s.thread is not None and s.thread != "vthread":
                self.index(s, level)
            case _:
                super().statement(s, level)

    def index(self, s: For, level: int) -> None:
        """Emit the loop `s`, which is bound to a hardware index: its variable becomes that index, and threads past its
        extent skip the body."""
        assert s.thread is not None
        self.extents[s.var] = s.extent
        if not of_threads(s):
            self.line(f"const int64_t {self.declare(s.var)} = {s.thread};", level)
            self.blocks(s)
            self.statement(s.body, level)
            return
        extent, known = as_int(s.extent), self.bound.get(s.thread, self.block[s.thread])
        assert extent is not None
        if extent > known:
            raise CompileError(
                f"loop {s.var.name!r} of {s.thread} has more iterations than threads come there",
                where=self.func.name,
                expected=f"at most {known}",
                got=extent,
            )
        i = self.declare(s.var)
        if extent > 1 or _mentions(s.body, s.var):
            self.line(f"const int64_t {i} = {s.thread};", level)
        else:
            i = s.thread
        if extent < known:
            self.line(f"if ({i} < {extent}) {{" if extent > 1 else f"if ({i} == 0) {{", level)
        outer, self.bound = self.bound, {**self.bound, s.thread: extent}
        self.statement(s.body, level + (extent < known))
        self.bound = outer
        if extent < known:
            self.line("}", level)

    def blocks(self, s: For) -> None:
        assert s.thread is not None
        if not self.outermost or self.bound:
            raise CompileError(
                f"loop {s.var.name!r} of {s.thread} is inside of others", where=self.func.name, hint="reorder it"
            )
        known = self.grid.setdefault(s.thread, s.extent)
        if not prove_equal(known, s.extent):
            raise CompileError(f"loops of {s.thread} differ", where=self.func.name, expected=known, got=s.extent)

    def allocate(self, s: Allocate, level: int) -> None:
        size = as_int(s.buffer.size)
        if size is None:
            raise CompileError(f"the size of {s.buffer.name!r} varies", where=self.func.name)
        own = self.block.keys() <= self.bound.keys()
        if not sharing(s.buffer.scope):
            if not own and s.buffer.scope != "local":
                hint = 'set_scope(..., "shared"), or "local" for an element of each thread'
                raise CompileError(f"threads share {s.buffer.name!r}, which is no shared memory", hint=hint)
            self.line(f"{self.memory_type(s.buffer)} {self.declare(s.buffer)}[{max(1, size)}];", level)
        else:
            self.share(s.buffer, max(1, size), level)
        self.statement(s.body, level)

    def share(self, buffer: Buffer, size: int, level: int) -> None:
        """Emit the declaration of a buffer of `size` elements in the shared memory of the block. One of scope "warp"
        has a copy for each row of threads in direction x."""
        kind, name = self.memory_type(buffer), self.declare(buffer)
        rows = 1
        if buffer.scope == "warp":
            width = self.block.get("threadIdx.x", 1)
            if WARP % width:
                raise CompileError(
                    f"threads of several warps would share {buffer.name!r}",
                    where=self.func.name,
                    expected=f"threads in direction x that divide {WARP}",
                    got=width,
                )
            rows = prod(n for t, n in self.block.items() if t != "threadIdx.x")
        self.shared_bytes += rows * size * buffer.dtype.itemsize
        if rows == 1:
            self.line(f"__shared__ {kind} {name}[{size}];", level)
            return
        row = "threadIdx.y"
        if "threadIdx.z" in self.block:
            row += f" + threadIdx.z * {self.block.get('threadIdx.y', 1)}"
        memory = self.identifiers.take(f"{name}_rows")
        self.line(f"__shared__ {kind} {memory}[{rows * size}];", level)
        self.line(f"{kind} *const {name} = {memory} + ({row}) * {size};", level)


def _mentions(s: Stmt, var: Var) -> bool:
    return any(var in variables(e) for x in walk(s) for e in exprs_of(x))


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
