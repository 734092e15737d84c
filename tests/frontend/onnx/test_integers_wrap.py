"""Arithmetic of i64 numbers that a model is given: it wraps, as NumPy's does, also where its result is compared or
divided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.frontend.onnx.build import info, model, node

Array = np.ndarray[Any, Any]
FACTOR, LARGEST = 6364136223846793005, (1 << 63) - 1  # of a linear congruential generator (Knuth, MMIX)
K = np.int64(FACTOR)
NAMES = {
    np.int8: TensorProto.INT8,
    np.uint8: TensorProto.UINT8,
    np.int32: TensorProto.INT32,
    np.int64: TensorProto.INT64,
    np.uint64: TensorProto.UINT64,
}
Steps = Sequence[tuple[str, ...]]
Formula = Callable[[Array, Array, Array], Array]
CASES: dict[str, tuple[Steps, Formula]] = {
    "x - y < z": ([("Sub", "x", "y"), ("Less", "t", "z")], lambda x, y, z: x - y < z),
    "x - y >= z": ([("Sub", "x", "y"), ("GreaterOrEqual", "t", "z")], lambda x, y, z: x - y >= z),
    "x - y > 0": ([("Sub", "x", "y"), ("Greater", "t", "zero")], lambda x, y, z: x - y > 0),
    "x + 10 < y": ([("Add", "x", "ten"), ("Less", "t", "y")], lambda x, y, z: x + 10 < y),
    "x + 10 > x": ([("Add", "x", "ten"), ("Greater", "t", "x")], lambda x, y, z: x + 10 > x),
    "x - 10 <= x": ([("Sub", "x", "ten"), ("LessOrEqual", "t", "x")], lambda x, y, z: x - 10 <= x),
    "(x + 10) % 10": ([("Add", "x", "ten"), ("Mod", "t", "ten")], lambda x, y, z: (x + 10) % 10),
    "x * 10 % 10": ([("Mul", "x", "ten"), ("Mod", "t", "ten")], lambda x, y, z: x * 10 % 10),
    "(x + y) % 10": ([("Add", "x", "y"), ("Mod", "t", "ten")], lambda x, y, z: (x + y) % 10),
    "x * 3 == 1": ([("Mul", "x", "three"), ("Equal", "t", "one")], lambda x, y, z: x * 3 == 1),
    "x * 2 == y": ([("Add", "x", "x"), ("Equal", "t", "y")], lambda x, y, z: x + x == y),
    "max(x + 10, x)": ([("Add", "x", "ten"), ("Max", "t", "x")], lambda x, y, z: np.maximum(x + 10, x)),
    "min(x - y, x)": ([("Sub", "x", "y"), ("Min", "t", "x")], lambda x, y, z: np.minimum(x - y, x)),
    "abs(x) >= 0": ([("Abs", "x"), ("GreaterOrEqual", "t", "zero")], lambda x, y, z: np.abs(x) >= 0),
    "-x > 0": ([("Mul", "x", "minus"), ("Greater", "t", "zero")], lambda x, y, z: x * x.dtype.type(-1) > 0),
    "x * x >= 0": ([("Mul", "x", "x"), ("GreaterOrEqual", "t", "zero")], lambda x, y, z: x * x >= 0),
}


def edges(t: type) -> list[int]:
    lo, hi = int(np.iinfo(t).min), int(np.iinfo(t).max)
    numbers = [0, 1, 2, 10, -7, -1, hi, hi - 1, hi - 9, hi // 2 + 1, lo, lo + 1, lo + 10, lo // 2, 1 << 32, FACTOR]
    return [v for v in numbers if lo <= v <= hi]


@pytest.mark.daily(2)
@pytest.mark.parametrize("t", NAMES, ids=lambda t: t.__name__)
def test_integers_wrap(t: type) -> None:
    with np.errstate(over="ignore"):
        weights = {name: np.array(v).astype(t) for name, v in [("zero", 0), ("one", 1), ("three", 3), ("ten", 10)]} | {
            "minus": np.array(-1).astype(t)
        }
    signed = np.iinfo(t).min < 0
    cases = {k: c for k, c in CASES.items() if signed or not k.startswith(("-", "abs"))}
    nodes = []
    for k, ((first, second), _) in enumerate(cases.values()):
        nodes.append(node(first[0], [*first[1:]], [f"t{k}"]))
        nodes.append(node(second[0], [f"t{k}" if v == "t" else v for v in second[1:]], [f"out{k}"]))
    m = model(nodes, [info(v, ["n"], NAMES[t]) for v in "xyz"], [f"out{k}" for k in range(len(cases))], weights)
    x, y, z = (g.ravel() for g in np.meshgrid(*[np.array(edges(t), t)] * 3))
    got = tw.compile(m, fallback="never")(x=x, y=y, z=z)
    for (name, (_, wanted)), result in zip(cases.items(), got, strict=True):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(result, wanted(x, y, z), err_msg=name)


def test_products_by_a_factor_wrap() -> None:
    nodes = [
        node("Mul", ["x", "k"], ["t"]),
        node("Greater", ["t", "zero"], ["y"]),
        node("Mod", ["t", "ten"], ["z"]),
        node("Mod", ["x", "least"], ["w"]),
    ]
    weights = {"zero": np.array(0), "ten": np.array(10), "k": np.array(FACTOR), "least": np.array(-LARGEST - 1)}
    m = model(nodes, [info("x", ["n"], TensorProto.INT64)], ["y", "z", "w"], weights)
    x = np.array(edges(np.int64))
    with np.errstate(over="ignore"):
        want = x * K > 0, x * K % 10, x % np.int64(-LARGEST - 1)
    for result, expected in zip(tw.compile(m, fallback="never")(x), want, strict=True):
        np.testing.assert_array_equal(result, expected)
