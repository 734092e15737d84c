"""Floats of 4 and 8 bits: converted bit for bit as `ml_dtypes` and ONNX's reference do, natively and in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import by_expression
from tilewright.ir.dtype import MINIFLOATS, DType, bf16, boolean, dtype, f8e8m0, f16, f32, f64, i2, i4, i8, i32, u2, u8
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.key import key
from tilewright.ops.dims import scalar
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit1, parse_graph

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(6)
FINITE = [t for t in MINIFLOATS if t is not f8e8m0]


def numbers(t: DType) -> Array:
    """All values of a type, the middles between them and their neighbours, and f32s of any bits."""
    values = np.arange(1 << t.bits, dtype=np.uint8).view(t.numpy).astype(np.float32)
    values = np.sort(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / np.float32(2)
    enclosing = [np.nextafter(middles, np.float32(s * np.inf)) for s in (-1, 1)]
    wild = RNG.integers(0, 1 << 32, 2000, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e38], np.float32)
    return np.concatenate([values, middles, *enclosing, wild, special]).astype(np.float32)


def converted(x: Array, source: DType, to: DType, **attrs: Any) -> tuple[Graph, Array]:
    builder = GraphBuilder()
    builder.name = "cast"
    supplied = builder.input("x", TensorType(source, tuple(as_expr(d) for d in x.shape)))
    graph = builder.finish((emit1(builder, "cast", supplied, name="y", dtype=to, **attrs),))
    compiled = tw.compile(graph)
    result: Array = compiled(x)
    assert result.dtype == to.numpy
    wanted = run_graph(graph, {"x": x}, {})["y"]
    np.testing.assert_array_equal(bits(result), bits(wanted))
    return graph, result


def bits(a: Array) -> Array:
    if dtype(a.dtype).is_int:  # NumPy leaves the upper bits of small integers undefined
        return a.astype(np.int64)
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") if a.dtype != np.float32 else nans_alike(a)


def nans_alike(a: Array) -> Array:
    return np.where(np.isnan(a), np.float32(np.nan), a).view(np.uint32)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("t", FINITE, ids=str)
def test_rounding_is_that_of_ml_dtypes(t: DType, saturate: bool) -> None:
    x = numbers(t)
    _, got = converted(x, f32, t, saturate=saturate)
    with np.errstate(all="ignore"):
        want = x.astype(t.numpy)
        if saturate and t.name != "f4e2m1":
            import ml_dtypes

            info = ml_dtypes.finfo(t.numpy)
            want = np.clip(x, np.float32(info.min), np.float32(info.max)).astype(t.numpy)
    np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("t", MINIFLOATS, ids=str)
def test_every_value_is_read_exactly(t: DType) -> None:
    x = np.arange(1 << t.bits, dtype=np.uint8).view(t.numpy)
    _, got = converted(x, t, f32)
    np.testing.assert_array_equal(nans_alike(got), nans_alike(x.astype(np.float32)))


MIN_SCALE, MAX_SCALE = 2.0**-127, 2.0**127
EXPONENTS = {
    # The columns of ONNX's table of Cast to FLOAT8E8M0, and negative numbers, of which it says nothing.
    (True, "up"): {
        0.0: MIN_SCALE,
        math.inf: MAX_SCALE,
        1.2 * MAX_SCALE: MAX_SCALE,
        1e-45: MIN_SCALE,
        -1.5: MIN_SCALE,
        -math.inf: MIN_SCALE,
    },
    (False, "nearest"): {0.0: math.nan, math.inf: math.nan, 1.2 * MAX_SCALE: math.nan, 1e-45: math.nan, -1.5: math.nan},
    # What the table does not have, as ONNX Runtime 1.32 has it.
    (True, "down"): {
        0.0: MIN_SCALE,
        math.inf: MAX_SCALE,
        1.9 * MIN_SCALE: MIN_SCALE,
        -1.0: MIN_SCALE,
        math.nan: math.nan,
    },
    (True, "nearest"): {
        1.2 * MIN_SCALE: MIN_SCALE,
        1.5 * MIN_SCALE: 2 * MIN_SCALE,
        1.5: 2.0,
        1.4: 1.0,
        math.inf: MAX_SCALE,
    },
    (False, "up"): {
        MIN_SCALE: MIN_SCALE,
        1.2 * MIN_SCALE: 2 * MIN_SCALE,
        MAX_SCALE: MAX_SCALE,
        1.2 * MAX_SCALE: math.nan,
        1e-45: math.nan,
    },
    (False, "down"): {1.9 * MIN_SCALE: MIN_SCALE, 1.2 * MAX_SCALE: math.nan, 0.9 * MIN_SCALE: math.nan, 3.0: 2.0},
}


@pytest.mark.parametrize("saturate, rounding", EXPONENTS)
def test_exponents_alone_at_the_ends(saturate: bool, rounding: str) -> None:
    table = EXPONENTS[saturate, rounding]
    _, got = converted(np.array(list(table), np.float32), f32, f8e8m0, saturate=saturate, rounding=rounding)
    np.testing.assert_array_equal(got.astype(np.float32), np.array(list(table.values()), np.float32))


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [True, False])
def test_exponents_alone(saturate: bool, rounding: str) -> None:
    numpy_helper = pytest.importorskip("onnx.numpy_helper", reason="onnx is a dependency; its reference is newer")
    x = np.abs(numbers(f8e8m0))
    x = x[(x >= 2 * MIN_SCALE) & (x <= MAX_SCALE)]  # the reference has another table outside
    _, got = converted(x, f32, f8e8m0, saturate=saturate, rounding=rounding)
    np.testing.assert_array_equal(bits(got), bits(numpy_helper.to_float8e8m0(x, saturate, rounding)))


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.parametrize("other", [f16, bf16, f64, i32, i8, u8, i4, i2, u2, boolean], ids=str)
@pytest.mark.parametrize("t", FINITE, ids=str)
def test_other_types_go_through_f32(t: DType, other: DType) -> None:
    x = RNG.integers(0, 4, 37).astype(np.float32) if other.bits < 8 or other is boolean else 3 * numbers(t)[:37]
    with np.errstate(all="ignore"):
        x = (np.abs(x) if other.kind == "uint" else x).astype(other.numpy)
    _, got = converted(x, other, t)
    back = converted(got, t, other)[1]
    with np.errstate(all="ignore"):
        _, direct = converted(x.astype(np.float32), f32, t)
    np.testing.assert_array_equal(bits(got), bits(direct))
    assert back.shape == x.shape


def test_the_interpreter_and_the_text() -> None:
    t = FINITE[1]
    x = numbers(t)[:19]
    graph, got = converted(x, f32, t)
    reloaded = parse_graph(str(graph))
    assert str(reloaded) == str(graph) and key(reloaded) == key(graph)
    np.testing.assert_array_equal(bits(by_expression("cast", [x], {"dtype": t})[0]), bits(got))
    (moved,) = by_expression("transpose", [got.reshape(1, -1)], {"perm": (1, 0)})
    np.testing.assert_array_equal(bits(moved[:, 0].copy()), bits(got))


def test_arithmetic_is_refused() -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType(FINITE[0], ()))
    with pytest.raises(tw.Error, match="element type"):
        emit1(builder, "add", x, x, name="y")


@pytest.mark.parametrize("t", MINIFLOATS, ids=lambda t: t.name)
def test_a_literal_has_the_bits_of_the_nearest_number(t: DType) -> None:
    for value in (0.5, 1.0, 1.4, 4.0):
        literal = scalar(value, t)
        assert literal.dtype is t
        assert literal.value == int(np.array(value, t.numpy).view(np.uint8))
