"""Activations make no subnormal numbers for machines on which those cost, and are as exact as ever otherwise.

What underflows is known from the flag that a core sets (MXCSR, x86-64), whatever it takes there.
"""

from __future__ import annotations

import ctypes
import platform
from ctypes.util import find_library
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from benchmarks.bench_subnormals import cases, sweep
from tilewright import ops
from tilewright.ir.dtype import DType, f32, f64
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.targets.costs import Origin
from tilewright.targets.target import Target
from tilewright.train.gradient import gradient

UNDERFLOW = 0x10
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "exp": {},
    "exp2": {},
    "sigmoid": {},
    "swish": {"alpha": 1.0},
    "softplus": {},
    "gelu": {"approximate": "none"},
    "elu": {"alpha": 1.0},
    "log1p": {},
    "expm1": {},
    "erf": {},
    "mish": {},
    "selu": {"alpha": 1.67, "gamma": 1.05},
}
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="flags are those of x86-64's MXCSR")


@cache
def machines() -> tuple[Target, Target]:
    """This machine as one on which subnormal results cost nothing, and as one on which they do."""
    host = Target.host()
    free, slow = (host.costs.fitted(Origin("here"), subnormal=cycles) for cycles in (0.0, 150.0))
    return replace(host, costs=free), replace(host, costs=slow)


def activation(name: str, count: int, dtype: DType, *, derivative: bool = False) -> Graph:
    builder = GraphBuilder("activation")
    x = builder.input("x", TensorType(dtype, (const(count),)))
    y = ops.emit1(builder, name, x, **ACTIVATIONS[name])
    if not derivative:
        return builder.finish((y,))
    total = ops.emit1(builder, "reduce_sum", y, axes=(0,), keepdims=False)
    return gradient(builder.finish((total,)), total.name, ("x",))


def arguments(name: str, dtype: DType) -> np.ndarray:
    """From 1e-36 (f64: 1e-18) to 1e30 of both signs, dense where results vanish, and infinities."""
    most, least = (200, -36) if dtype is f32 else (1200, -18)
    sizes = np.concatenate([np.linspace(0, most, 6000), 10.0 ** np.linspace(least, 30, 300), [np.inf]])
    both = np.concatenate([sizes, -sizes]).astype(dtype.numpy)
    return both[both > -1] if name == "log1p" else both


def computed(graph: Graph, x: np.ndarray, target: Target) -> tuple[np.ndarray, bool]:
    """The last output, and whether anything underflowed."""
    model, libm = tw.compile((graph, {}), target=target), ctypes.CDLL(find_library("m"))
    model(x)
    libm.feclearexcept(UNDERFLOW)
    results = model(x)
    flagged = bool(libm.fetestexcept(UNDERFLOW))
    return np.asarray(results[-1] if isinstance(results, tuple | list) else results), flagged


@pytest.mark.daily(5)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_subnormal_results(name: str, dtype: DType) -> None:
    x = arguments(name, dtype)
    results = [computed(activation(name, x.size, dtype), x, machine) for machine in machines()]
    (usual, _), (saturated, underflows) = results
    assert not underflows
    tiny = float(np.finfo(dtype.numpy).tiny)
    with np.errstate(all="ignore"):
        same = np.abs(usual - saturated) <= 2 * np.spacing(np.abs(usual)) if dtype is f32 else usual == saturated
        other = ~((usual == saturated) | same | (np.isnan(usual) & np.isnan(saturated)))
        size = np.where(name in ("swish", "mish"), np.abs(x), 1.0)
    assert np.all(saturated[other] == 0) and np.all(np.abs(usual[other]) <= 1.01 * tiny * size[other])
    assert other.any() == (name in ("exp", "exp2", "sigmoid", "swish", "softplus", "mish"))


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["exp", "sigmoid", "swish", "softplus", "gelu", "elu", "erf"])
def test_no_subnormal_gradients(name: str) -> None:
    x = arguments(name, f32)
    (usual, _), (saturated, underflows) = (
        computed(activation(name, x.size, f32, derivative=True), x, machine) for machine in machines()
    )
    assert not underflows
    np.testing.assert_allclose(saturated, usual, rtol=1e-6, atol=2e-36)


@pytest.mark.parametrize("columns", [3, 7, 8, 11, 16, 23])
def test_exponentials_that_vanish_underflow_at_no_number_of_lanes(columns: int) -> None:
    """Differences of -87 to -103, whose exponentials are subnormal, beside zeros: softmax takes them for zero."""
    x = np.zeros((4, columns), np.float32)
    x[1:] = np.linspace(-103, -88, 3 * columns).reshape(3, columns)
    builder = GraphBuilder("softmax")
    logits = builder.input("x", TensorType(f32, (const(4), const(columns))))
    graph = builder.finish((ops.emit1(builder, "softmax", logits, axis=0),))
    result, underflows = computed(graph, x, machines()[1])
    assert not underflows
    np.testing.assert_array_equal(result, np.repeat([[1.0], [0.0], [0.0], [0.0]], columns, axis=1))


def test_the_flag_tells() -> None:
    """On a machine where subnormal numbers cost nothing, results are subnormal and the flag that the tests above check
    is set."""
    x = np.linspace(-100, -90, 64).astype(np.float32)
    result, underflows = computed(activation("sigmoid", 64, f32), x, machines()[0])
    assert underflows and 0 < result.min() < np.finfo(np.float32).tiny


def test_machines_that_may_be_intels_pay() -> None:
    for name in ("graniterapids", "alderlake", "skylake-avx512", "x86-64-v2", "x86-64-v3", "x86-64-v4"):
        assert Target.parse(name).costs.arithmetic.subnormal == 150.0
    for name in ("znver3", "znver4", "znver5", "generic-aarch64"):
        assert Target.parse(name).costs.arithmetic.subnormal == 0.0


@pytest.mark.daily(3)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "softplus", "elu", "gelu", "mish", "cumulative_logsumexp"])
def test_the_sweep(op: str) -> None:
    """`python -m benchmarks.bench_subnormals`: no result underflows where no operand is subnormal. On a
    machine where that costs nothing, some do; polynomials whose coefficients come from tables in registers (GELU's on
    AVX-512) multiply nothing that vanishes, so this is asked of the machine without such tables."""
    arrays, keywords = cases()[op]
    host = Target.host()
    without = replace(host, isa=replace(host.isa, tables=0, half_tables=0))
    for machine in dict.fromkeys((host, without)):
        rows = list(sweep(op, arrays, keywords, ("ordinary", "vanishing", "steep"), machine))
        assert {row.machine for row in rows} == {"free", "slow"}
        assert not [row for row in rows if row.machine == "slow" and (row.denormal or row.underflow or row.outputs)]
    if op not in ("softmax", "log_softmax"):
        assert any(row.underflow for row in rows if row.machine == "free")


def test_the_sweep_sees_subnormal_numbers() -> None:
    arrays, keywords = cases()["mul"]
    (row, _) = sweep("mul", arrays, keywords, ("subnormal",))
    assert row.denormal
