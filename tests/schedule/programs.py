"""Random small programs, random legal schedules of them, and a check that both do the same."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.codegen.llvm_run import Native, call
from tilewright import te
from tilewright.codegen.interpret import interpret
from tilewright.codegen.llvm import compile_llvm, emit_llvm, kernel_symbols
from tilewright.ir.expr import Var, as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import substitute
from tilewright.ir.target import Target
from tilewright.schedule import BlockRef, LoopRef, Schedule
from tilewright.schedule.state import written_buffers
from tilewright.support.errors import ScheduleError
from tilewright.transform.loops import lower_loops

Arrays = dict[str, np.ndarray[Any, Any]]


def matmul(rng: random.Random) -> PrimFunc:
    """A product of matrices with a pointwise epilogue; the rows may be symbolic."""
    m: Any = te.var("m", hi=9) if rng.random() < 0.3 else rng.choice([4, 6, 9])
    n, k = rng.choice([4, 5, 8]), rng.choice([3, 4, 6])
    a, b, bias = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), te.placeholder((n,), name="bias")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")
    d = te.compute((m, n), lambda i, j: c[i, j] + bias[j], name="D")
    e = te.compute((m, n), lambda i, j: te.maximum(d[i, j], 0.0), name="E")
    return te.create_prim_func([a, b, bias, e], "matmul")


def batched(rng: random.Random) -> PrimFunc:
    """Two products one after the other, as in attention."""
    b, m, n, k = 2, rng.choice([3, 4]), rng.choice([4, 5]), rng.choice([2, 4])
    q, w, v = (te.placeholder(s, name=x) for s, x in (((b, m, k), "Q"), ((b, n, k), "W"), ((b, n, k), "V")))
    r1, r2 = te.reduce_axis(k, "r"), te.reduce_axis(n, "s")
    scores = te.compute((b, m, n), lambda x, i, j: te.sum(q[x, i, r1] * w[x, j, r1], r1), name="S")
    half = te.compute((b, m, n), lambda x, i, j: scores[x, i, j] * 0.5, name="H")
    out = te.compute((b, m, k), lambda x, i, j: te.sum(half[x, i, r2] * v[x, r2, j], r2), name="O")
    return te.create_prim_func([q, w, v, out], "batched")


def conv(rng: random.Random) -> PrimFunc:
    """A padded, strided, dilated convolution in one dimension or two."""
    two = rng.random() < 0.5
    ci, co, size, kernel = rng.choice([1, 2]), rng.choice([2, 4]), rng.choice([5, 6]), rng.choice([2, 3])
    stride, dilation, pad = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([0, 1, 2])
    span = (kernel - 1) * dilation + 1
    size = max(size, span)
    out = (size + 2 * pad - span) // stride + 1
    height = 1 if two else None
    if height is None:
        x, w = te.placeholder((ci, size), name="X"), te.placeholder((co, ci, kernel), name="W")
        p = te.compute(
            (ci, size + 2 * pad),
            lambda c, i: te.if_then_else(te.all_of([i >= pad, i < size + pad]), x[c, i - pad], 0.0),
            name="P",
        )
        rc, rk = te.reduce_axis(ci, "rc"), te.reduce_axis(kernel, "rk")
        t = te.compute(
            (co, out), lambda o, i: te.sum(p[rc, i * stride + rk * dilation] * w[o, rc, rk], [rc, rk]), name="T"
        )
        u = te.compute((co, out), lambda o, i: te.maximum(t[o, i], 0.0), name="U")
        return te.create_prim_func([x, w, u], "conv1d")
    x, w = te.placeholder((ci, size, size), name="X"), te.placeholder((co, ci, 2, kernel), name="W")
    rows = size + 2 * pad - 1
    p = te.compute(
        (ci, size + 2 * pad, size + 2 * pad),
        lambda c, i, j: te.if_then_else(
            te.all_of([i >= pad, i < size + pad, j >= pad, j < size + pad]), x[c, i - pad, j - pad], 0.0
        ),
        name="P",
    )
    rc, rh, rw = te.reduce_axis(ci, "rc"), te.reduce_axis(2, "rh"), te.reduce_axis(kernel, "rw")
    t = te.compute(
        (co, rows, out),
        lambda o, i, j: te.sum(p[rc, i + rh, j * stride + rw * dilation] * w[o, rc, rh, rw], [rc, rh, rw]),
        name="T",
    )
    u = te.compute((co, rows, out), lambda o, i, j: t[o, i, j] * 2.0 + 1.0, name="U")
    return te.create_prim_func([x, w, u], "conv2d")


def softmax(rng: random.Random) -> PrimFunc:
    """Two reductions over rows with pointwise stages between."""
    m, n = rng.choice([3, 4, 6]), rng.choice([4, 7, 8])
    a = te.placeholder((m, n), name="A")
    r1, r2 = te.reduce_axis(n, "r"), te.reduce_axis(n, "s")
    high = te.compute((m,), lambda i: te.max(a[i, r1], r1), name="M")
    e = te.compute((m, n), lambda i, j: te.exp(a[i, j] - high[i]), name="E")
    total = te.compute((m,), lambda i: te.sum(e[i, r2], r2), name="S")
    out = te.compute((m, n), lambda i, j: e[i, j] / total[i], name="O")
    return te.create_prim_func([a, out], "softmax")


def pointwise(rng: random.Random) -> PrimFunc:
    """Stages that transpose, broadcast, shift, reverse strides and read several neighbours; sizes may be symbolic."""
    n: Any = te.var("n", hi=13) if rng.random() < 0.4 else rng.choice([5, 8, 13])
    m = rng.choice([3, 4, 6])
    a, b = te.placeholder((n, m), name="A"), te.placeholder((m,), name="B")
    stage = te.compute((n, m), lambda i, j: a[i, j] + b[j], name="S0")
    for k in range(rng.randint(1, 3)):
        kind = rng.choice(["square", "neighbours", "twice", "edge"])
        previous = stage
        if kind == "square":
            stage = (
                te.compute((n, m), lambda i, j, p=previous: p[i, j] * p[i, j], name=f"S{k + 1}")
                if False
                else (_square(previous, n, m, f"S{k + 1}"))
            )
        elif kind == "neighbours":
            stage = _neighbours(previous, n, m, f"S{k + 1}")
        elif kind == "twice":
            stage = _double_transpose(previous, n, m, f"S{k + 1}")
        else:
            stage = _edge(previous, n, m, f"S{k + 1}")
    return te.create_prim_func([a, b, stage], "pointwise")


def _square(p: Any, n: Any, m: int, name: str) -> Any:
    return te.compute((n, m), lambda i, j: p[i, j] * p[i, j], name=name)


def _neighbours(p: Any, n: Any, m: int, name: str) -> Any:
    return te.compute((n, m), lambda i, j: p[i, j] + te.if_then_else(i >= 1, p[i - 1, j], 0.0), name=name)


def _double_transpose(p: Any, n: Any, m: int, name: str) -> Any:
    t = te.compute((m, n), lambda j, i: p[i, j] + 1.0, name=f"{name}_t")
    return te.compute((n, m), lambda i, j: t[j, i] * 2.0, name=name)


def _edge(p: Any, n: Any, m: int, name: str) -> Any:
    return te.compute((n, m), lambda i, j: p[i, m - 1 - j] - p[i, j], name=name)


def rows(rng: random.Random) -> PrimFunc:
    """A sum along rows, an argmax along columns (two outputs), both of one input stage."""
    m, n = rng.choice([3, 5]), rng.choice([4, 6])
    a = te.placeholder((m, n), name="A")
    x = te.compute((m, n), lambda i, j: a[i, j] * 3.0, name="X")
    r, s = te.reduce_axis(n, "r"), te.reduce_axis(m, "s")
    total = te.compute((m,), lambda i: te.sum(x[i, r], r), name="T")
    best = te.comm_reducer(
        lambda p, q: (
            te.if_then_else(_beats(q, p), q[0], p[0]),
            te.if_then_else(_beats(q, p), q[1], p[1]),
        ),
        lambda t, u: (te.const(-1e30, t), te.const(1 << 30, u)),
        "argmax",
    )
    value, where = te.compute((n,), lambda j: best((x[s, j], s.var), s), name="best")
    return te.create_prim_func([a, total, value, where], "rows")


def _beats(q: Any, p: Any) -> Any:
    """Greater, or equal and earlier: so the reducer does not depend on the order."""
    return (q[0] > p[0]) | (te.equal(q[0], p[0]) & (q[1] < p[1]))


PROGRAMS: tuple[Callable[[random.Random], PrimFunc], ...] = (matmul, batched, conv, softmax, pointwise, rows)


def random_program(rng: random.Random) -> PrimFunc:
    return rng.choice(PROGRAMS)(rng)


def random_arrays(func: PrimFunc, rng: random.Random) -> Arrays:
    """Small whole numbers, so that sums are exact in any order; symbols get random values."""
    values = {v: te.const(rng.randint(v.lo or 1, v.hi or 12)) for v in func.symbols}
    generator = np.random.default_rng(rng.randrange(1 << 30))
    arrays: Arrays = {}
    for buffer in func.params:
        shape = [as_int(substitute(x, values)) or 0 for x in buffer.shape]
        arrays[buffer.name] = generator.integers(-3, 4, shape).astype(buffer.dtype.numpy)
    return arrays


def assert_same(func: PrimFunc, scheduled: PrimFunc, rng: random.Random, run: Callable[..., None] = interpret) -> None:
    """Both functions give the same arrays."""
    arrays = random_arrays(func, rng)
    copies = {name: a.copy() for name, a in arrays.items()}
    interpret(func, arrays)
    run(scheduled, copies)
    for name, expected in arrays.items():
        np.testing.assert_allclose(copies[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def _aligned(shape: list[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Memory that nobody wrote, as the runtime gives it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.full(size + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _no_barrier(_: Any, threads: int) -> None:
    """One thread never waits."""


_BARRIER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(_no_barrier)
NO_BARRIER = ctypes.cast(_BARRIER, ctypes.c_void_p).value or 0


def run_native(func: PrimFunc, arrays: Arrays, opt: int = 1) -> None:
    """Lower, compile and call with one thread, in place."""
    target = Target.host()
    flat = lower_loops(func, target)
    image = compile_llvm(emit_llvm(flat, target), target, opt)
    kernel = Native(image, flat.name, {"tw_barrier": NO_BARRIER})
    symbols = {v: value for b in func.params for v, value in zip(b.shape, arrays[b.name].shape, strict=True)}
    values = {v: te.const(x) for v, x in symbols.items() if isinstance(v, Var)}
    memory = [arrays[b.name] for b in func.params]
    for b in flat.params[len(func.params) :]:
        shape = [as_int(substitute(x, values)) or 0 for x in b.shape]
        memory.append(_aligned(shape, b.dtype.numpy))
    call(kernel, memory, [symbols[v] for v in kernel_symbols(flat)])


def random_schedule(func: PrimFunc, rng: random.Random, steps: int) -> tuple[Schedule, int]:
    """Try random primitives until `steps` were accepted (or many were refused); how many were accepted."""
    schedule = Schedule(func, rng.randrange(1 << 30))
    accepted = 0
    for _ in range(4 * steps):
        if accepted == steps:
            break
        try:
            random_step(schedule, rng)
        except ScheduleError:
            continue
        accepted += 1
    return schedule, accepted


def random_step(s: Schedule, rng: random.Random) -> None:
    """One primitive with arguments that are often, not always, legal."""
    block = rng.choice(s.blocks())
    loops = s.loops(block)
    name, step = rng.choice(STEPS)
    if loops or name in BLOCK_STEPS:
        step(s, rng, block, loops)


Step = Callable[[Schedule, random.Random, BlockRef, tuple[LoopRef, ...]], Any]


def _split(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    loop = rng.choice(loops)
    match rng.randrange(4):
        case 0:
            s.split(loop, nparts=rng.randint(1, 4))
        case 1:
            s.split(loop, factors=[None, rng.randint(1, 3), rng.randint(1, 3)])
        case 2 if s.extent(loop) is not None:
            s.split(loop, factors=s.sample_perfect_tile(loop, 2, 8))
        case _:
            s.split(loop, factor=rng.randint(1, 6))


def _fuse(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    start = rng.randrange(len(loops))
    s.fuse(*loops[start : start + rng.randint(2, 3)])


def _reorder(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    s.reorder(*rng.sample(loops, rng.randint(1, len(loops))))


def _move(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    consumers = s.consumers(block)
    target = rng.choice(consumers or s.blocks())
    s.compute_at(block, rng.choice(s.loops(target)))


def _reverse_move(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    producers = s.producers(block)
    target = rng.choice(producers or s.blocks())
    s.reverse_compute_at(block, rng.choice(s.loops(target)))


def _cache_read(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    buffers = [*s.func.params, *s.func.buffers]
    s.cache_read(block, rng.choice(buffers).name, rng.choice(["global", "local"]))


def _layout(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    buffer = rng.choice(list(s.func.buffers) or [None])
    if buffer is None:
        return
    writer = next((b for b in s.blocks() if buffer in written_buffers(s.get(b))), block)
    maps: dict[int, list[Callable[..., Any]]] = {
        1: [lambda i: (i // 4, i % 4), lambda i: (i % 3, i // 3)],
        2: [lambda i, j: (j, i), lambda i, j: (i, j // 2, j % 2), lambda i, j: (i // 3, j, i % 3)],
        3: [lambda i, j, k: (k, i, j), lambda i, j, k: (i // 2, j, k, i % 2), lambda i, j, k: (i, j * 16 + k)],
    }
    s.transform_layout(writer, rng.choice(maps[len(buffer.shape)]) if len(buffer.shape) < 4 else lambda *i: i[::-1])


def _pad(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    s.pad(block, [rng.choice([1, 1, 2, 4]) for _ in s.get(block).iters])


STEPS: tuple[tuple[str, Step], ...] = (
    ("split", _split),
    ("split", _split),
    ("fuse", _fuse),
    ("reorder", _reorder),
    ("reorder", _reorder),
    ("unroll", lambda s, rng, block, loops: s.unroll(rng.choice(loops))),
    ("vectorize", lambda s, rng, block, loops: s.vectorize(rng.choice(loops))),
    ("parallel", lambda s, rng, block, loops: s.parallel(rng.choice(loops))),
    ("annotate", lambda s, rng, block, loops: s.annotate(rng.choice(loops), "note", rng.randint(0, 3))),
    ("compute_at", _move),
    ("compute_at", _move),
    ("reverse_compute_at", _reverse_move),
    ("compute_inline", lambda s, rng, block, loops: s.compute_inline(block)),
    ("reverse_compute_inline", lambda s, rng, block, loops: s.reverse_compute_inline(block)),
    ("decompose_reduction", lambda s, rng, block, loops: s.decompose_reduction(block, rng.choice(loops))),
    ("set_scope", lambda s, rng, block, loops: s.set_scope(block, rng.choice(["local", "global"]))),
    ("cache_write", lambda s, rng, block, loops: s.cache_write(block, rng.choice(["local", "global"]))),
    ("cache_read", _cache_read),
    ("rfactor", lambda s, rng, block, loops: s.rfactor(block, rng.choice(loops), rng.randint(-2, 1))),
    ("rfactor", lambda s, rng, block, loops: s.rfactor(block, rng.choice(loops), 0)),
    ("transform_layout", _layout),
    ("pad", _pad),
)
BLOCK_STEPS = frozenset({"compute_inline", "reverse_compute_inline", "set_scope", "cache_write", "cache_read"})

__all__ = ["PROGRAMS", "Var", "assert_same", "random_arrays", "random_program", "random_schedule", "random_step"]
