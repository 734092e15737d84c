"""Errors of the written-out functions in units in the last place (ulp), against double precision.

`make ulp` sweeps all 2^32 arguments of float32 for every function of one argument and checks the stated bounds (about a
minute each); `python -m tests.transform.math.ulp exp tanh` takes those only. `tests/transform/math/test_math.py` does
the same on a dense sample.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.codegen.llvm.llvm_run import call, native
from tilewright import te
from tilewright.ir.dtype import DType, f32
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.ir.rewrite import map_expr
from tilewright.ir.scalar_ops import OPS
from tilewright.ops.registry import attributes, get
from tilewright.targets.target import Target
from tilewright.transform.math.expand import ACCURACY, OF_ARGUMENT, expand_math

Array = np.ndarray[Any, Any]
CHUNK = 1 << 14
N = Var("n", lo=0)


def kernel(name: str, arity: int, dtype: DType = f32, target: Target | None = None) -> PrimFunc:
    """`out[i] = name(x0[i], ...)`, written out."""
    i = Var("i")
    inputs = [Buffer(f"x{k}", dtype, (N,)) for k in range(arity)]
    out = Buffer("out", dtype, (N,))
    body = For(i, N, Store(out, (i,), expression(name, [b[i] for b in inputs])), "vectorized")
    return expand_math(PrimFunc(f"{name}_of_arrays", (*inputs, out), body), target or Target.host())


def expression(name: str, x: Sequence[Expr]) -> Expr:
    """A scalar operator, or the expression of a graph's activation."""
    if name in OPS:
        return Op(name, tuple(x))
    attrs = attributes(name, {"alpha": 1.0} if name == "swish" else {})
    compute = get(name).compute
    assert compute is not None
    (result,) = compute([te.placeholder((N,), x[0].dtype)], attrs, (TensorType(x[0].dtype, (N,)),))
    return map_expr(result.op.bodies[0], lambda e: x[0] if isinstance(e, Load) else None)


def compiled(name: str, arity: int = 1, dtype: DType = f32, target: Target | None = None) -> Callable[..., Array]:
    """The function on arrays."""
    code = native(kernel(name, arity, dtype, target), target)

    def run(*x: Array) -> Array:
        out = np.zeros_like(x[0])
        call(code, [*x, out], [x[0].size])
        return out

    return run


def _erf(x: Array) -> Array:
    """erf where it is not a line or 1; `math.erf` takes one number at a time."""
    size = np.abs(x)
    curved = (size > 2.0**-30) & (size < 6.0)
    result = np.where(size < 1.0, x * x.dtype.type("1.1283791670955125738961589"), np.sign(x))
    result[curved] = [math.erf(v) for v in x[curved].tolist()]
    return result


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Array) -> Array:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


REFERENCE: dict[str, Callable[..., Array]] = {
    "erf": _erf,
    "exp_nonpositive": np.exp,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "swish": lambda x: x * _sigmoid(x),
}

COMPOSED: dict[str, float] = {"rsqrt": 1.5, "sqrt": 0.5, "softplus": 2.0}
"""Errors in f32 of what the machine has instructions for, and of activations made of the functions."""
RELATIVE_TO_ARGUMENT: dict[str, float] = {**OF_ARGUMENT, "mish": 3e-7, "swish": 2e-7}
"""Activations whose results cancel where they are small: their errors are in units of the argument's size."""


def reference(name: str) -> Callable[..., Array]:
    """The function in double precision."""
    is_there: Callable[..., Array] = REFERENCE.get(name) or getattr(np, name)
    return is_there


def errors(got: Array, want: Array) -> Array:
    """Distance of f32 `got` from the real values `want` in ulp of the f32 next to those; 0 where both are NaN,
    infinite where one is. Infinity counts as 2^128, so that overflow may come an ulp early or late."""
    if np.abs(want).max(initial=0.0) < 2.0**127 and np.isfinite(got).all():
        rounded = want.astype(np.float32)
        # 2^-23 of the power of two below: what np.spacing gives, but in a third of the time.
        power = (rounded.view(np.int32) & 0x7F800000).view(np.float32).astype(np.float64)
        return np.abs(got - want) / np.maximum(power * 2.0**-23, 2.0**-149)
    with np.errstate(all="ignore"):
        real = np.clip(want, -(2.0**128), 2.0**128)
        rounded = real.astype(np.float32)
        unit = np.where(np.isinf(rounded), 2.0**104, np.spacing(np.abs(rounded)).astype(np.float64))
        value = np.clip(got.astype(np.float64), -(2.0**128), 2.0**128)
        error = np.abs(value - real) / unit
    undefined = np.isnan(error)
    if undefined.any():
        error[undefined] = np.where(np.isnan(got[undefined]) & np.isnan(want[undefined]), 0.0, np.inf)
    return error


def wide_errors(got: Array, want: Array) -> Array:
    """Errors in units of the last place for f64 `got`; `want` is in extended precision."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float64)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(np.float64).max)).astype(np.longdouble)
        error = (np.abs(got - want) / unit).astype(np.float64)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same & ~np.isfinite(rounded), 0.0, np.where(np.isnan(error), np.inf, error))


@dataclass(frozen=True)
class Worst:
    """The greatest error found and where."""

    error: float
    x: float
    got: float
    want: float

    def __str__(self) -> str:
        return f"{self.error:.3f} ulp at {self.x!r} ({float(self.x).hex()}): {self.got!r}, not {self.want!r}"


def worst_of(name: str, chunks: Iterable[Array], dtype: DType = f32, target: Target | None = None) -> Worst:
    """The greatest error of a function over chunks of arguments. Where subnormal results are slow, and not made
    (docs/accuracy.md), zero is right for what would be one."""
    function, exact = compiled(name, 1, dtype, target), reference(name)
    saturates = (target or Target.host()).costs.arithmetic.subnormal > 0
    worst = Worst(-1.0, 0.0, 0.0, 0.0)
    for x in chunks:
        with np.errstate(all="ignore"):
            want = exact(x.astype(np.float64 if dtype is f32 else np.longdouble))
        got = function(x)
        if saturates:
            want = np.where((got == 0) & (np.abs(want) < 1.01 * np.finfo(dtype.numpy).tiny), 0, want)
        error = errors(got, want) if dtype is f32 else wide_errors(got, want)
        k = int(np.argmax(error))
        if error[k] > worst.error:
            worst = Worst(float(error[k]), float(x[k]), float(got[k]), float(want[k]))
    return worst


def every_argument(part: int, parts: int) -> Iterator[Array]:
    """All float32 numbers, a part of them."""
    for start in range(part * CHUNK, 1 << 32, parts * CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)


BENDS = (
    *(0.25, 0.5, 0.9, 1.0, 2.0, 3.95, 9.01, 10.0, 16.6, 17.3, 87.33654, 88.02969, 88.72283, 103.2789, 103.97208, 104.0),
    *(126.0, 127.0, 128.0, 149.0, 150.0, math.pi / 2, math.pi, 11 * math.pi, 65536.0, 1e-45, 1.1754944e-38),
)
"""Where functions change their way, overflow, underflow, or have a zero."""


def sample() -> Array:
    """Every exponent and sign with a thousand mantissas, the numbers next to powers of two, and where functions bend,
    overflow, underflow or stop being normal; zeros, infinities and NaN."""
    rng = np.random.default_rng(1)
    exponents = np.arange(256, dtype=np.uint32) << 23
    mantissas = np.concatenate([rng.integers(0, 1 << 23, 1000), [0, 1, 2, (1 << 23) - 1, (1 << 23) - 2]])
    every = (exponents[:, None] | mantissas.astype(np.uint32)[None, :]).ravel().view(np.float32)
    bends = np.array(BENDS)
    close = (bends.astype(np.float32).view(np.uint32)[:, None] + np.arange(-200, 200)).astype(np.uint32)
    rounded = [rng.uniform(0, w, 30_000) for w in (1.0, 4.0, 20.0, 110.0, 1000.0)]
    rest = np.concatenate([*rounded, 1 + rng.uniform(-1e-3, 1e-3, 20_000)]).astype(np.float32)
    positive = np.concatenate([every, close.ravel().view(np.float32), rest])
    return np.concatenate([positive, -positive])


def wide_sample() -> Array:
    """Arguments of float64, with a hundred mantissas for each exponent."""
    rng = np.random.default_rng(2)
    mantissas = np.concatenate([rng.integers(0, 1 << 52, 100), [0, 1, (1 << 52) - 1]]).astype(np.uint64)
    every = ((np.arange(2048, dtype=np.uint64) << 52)[:, None] | mantissas[None, :]).ravel().view(np.float64)
    bends = np.array((*BENDS, 20.0, 22.0, 36.7, 40.0, 708.396, 709.4, 709.78, 745.13, 746.0, 1022.0, 1074.0, 524288.0))
    close = bends[:, None] * (1 + np.arange(-50, 50) * 2.0**-52)
    rounded = [rng.uniform(0, w, 30_000) for w in (1.0, 4.0, 20.0, 110.0, 1000.0)]
    positive = np.concatenate([every, close.ravel(), *rounded, 1 + rng.uniform(-1e-6, 1e-6, 20_000)])
    return np.concatenate([positive, -positive])


def _sweep(job: tuple[str, int, int]) -> Worst:
    name, part, parts = job
    return worst_of(name, every_argument(part, parts))


def main(names: list[str]) -> int:
    """Sweep functions; 1 if one is worse than stated."""
    wrong = 0
    workers = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        stated = {**ACCURACY, **COMPOSED}
        for name in names or [x for x in stated if x != "pow"]:
            start = time.perf_counter()
            worst = max(pool.map(_sweep, [(name, k, workers) for k in range(workers)]), key=lambda w: w.error)
            good = worst.error <= stated[name]
            wrong += not good
            verdict = f"{'ok' if good else 'TOO MUCH'} (stated {stated[name]})"
            print(f"{name:8} {worst} {verdict}, {time.perf_counter() - start:.0f} s", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
