"""Random functions of tensor expressions whose accesses may leave small arrays, under random schedules."""

# ruff: noqa: B023  stages are made where they are written
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tests.schedule.programs import PROGRAMS
from tests.schedule.random_steps import random_schedule
from tilewright import te
from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import substitute

Random = random.Random


def index(rng: Random, i: Any, n: Any, m: Any) -> Any:
    """A place along n that may be outside."""
    k = rng.randint(0, 4)
    return rng.choice(
        (
            lambda: i,
            lambda: i + k,
            lambda: i - k,
            lambda: n - 1 - i,
            lambda: i * rng.choice((2, 3)) - k,
            lambda: i // rng.choice((2, 3)),
            lambda: (i + k) % te.maximum(n, 1),
            lambda: (i + k) % rng.choice((2, 5)),
            lambda: i + m - k,
            lambda: te.minimum(i + k, n - 1),
            lambda: te.maximum(te.minimum(i - k, n - 1), 0),
            lambda: te.const(k, "i64"),
        )
    )()


def element(rng: Random, a: Any, i: Any, j: Any, n: Any, m: Any, width: int) -> Any:
    """A number of a: f32[n, width]."""
    place = index(rng, i, n, m)
    result = a[place, j if rng.random() < 0.7 else te.minimum(j + 1, width - 1)]
    kind = rng.randrange(5)
    if kind == 0:
        return te.if_then_else(te.all_of([place >= 0, place < n]), result, 0.0)
    if kind == 1:
        return te.if_then_else(i >= rng.randint(0, 3), result, 1.0)
    return result


def stages(rng: Random) -> PrimFunc:
    """Stages one after the other along n or m, each of which reads those before."""
    lo = rng.choice((0, 0, 1))
    n, m = te.var("n", lo=lo), te.var("m", lo=lo)
    width = rng.choice((1, 3, 8, 17))
    a, b = te.placeholder((n, width), name="A"), te.placeholder((m, width), name="B")
    pool = [(a, n), (b, m)]
    for k in range(rng.randint(1, 3)):
        extent = rng.choice((n, n, m, te.maximum(n, m), te.minimum(n, m), n + 2, n // 2))
        (p, rows), (q, others) = rng.choice(pool[-2:]), rng.choice(pool)
        kind = rng.choice(("pointwise", "two", "window", "rows", "square"))
        if kind == "pointwise":
            tensor = te.compute((extent, width), lambda i, j: element(rng, p, i, j, rows, m, width) * 2.0, name=f"S{k}")
        elif kind == "two":
            tensor = te.compute(
                (extent, width),
                lambda i, j: element(rng, p, i, j, rows, m, width) + element(rng, q, i, j, others, n, width),
                name=f"S{k}",
            )
        elif kind == "window":
            r = te.reduce_axis(rng.randint(1, 4), "r")
            tensor = te.compute(
                (extent, width), lambda i, j: te.sum(element(rng, p, i + r.var, j, rows, m, width), r), name=f"S{k}"
            )
        elif kind == "rows":
            r = te.reduce_axis(rng.choice((rows, m, n)), "r")
            tensor = te.compute(
                (extent, width), lambda i, j: te.max(element(rng, p, r.var, j, rows, m, width), r), name=f"S{k}"
            )
        else:
            r = te.reduce_axis(width, "r")
            tensor = te.compute(
                (extent, width), lambda i, j: te.sum(p[index(rng, i, rows, m), r] * q[0, j], r), name=f"S{k}"
            )
        pool.append((tensor, extent))
    return te.create_prim_func([a, b, pool[-1][0]], "stages")


def program(seed: int) -> PrimFunc:
    """The function of a seed, under its schedule."""
    rng = Random(seed)
    func = stages(rng) if rng.random() < 0.75 else rng.choice(PROGRAMS)(rng)
    if rng.random() < 0.8:
        func = random_schedule(func, rng, rng.randint(1, 6)).func
    return func


def text(seed: int) -> str:
    """The text of a function."""
    return str(program(seed))


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the function of a seed where the first symbol is n and the second m. CompileError or ExpressionError
    where it is refused."""
    func = program(seed)
    built = tw.build(func, threads=threads)

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        values = {s: te.const((n, m)[k % 2]) for k, s in enumerate(func.symbols)}
        arrays = []
        for p in func.params:
            shape = [max(as_int(substitute(d, values)) or 0, 0) for d in p.shape]
            low = 0 if p.dtype.kind == "uint" else -3
            arrays.append(rng.integers(low, 4, shape).astype(p.dtype.numpy))
        built(*arrays)
        return arrays

    return call
