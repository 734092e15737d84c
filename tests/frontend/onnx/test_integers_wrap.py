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
NUMBERS = [0, 1, -1, 2, -7, 10, LARGEST, -LARGEST, -LARGEST - 1, LARGEST - 1, 1 << 62, -(1 << 62), 1 << 32, FACTOR]
WEIGHTS = {"zero": np.array(0), "ten": np.array(10), "k": np.array(FACTOR)}
K = np.int64(FACTOR)
Steps = Sequence[tuple[str, str, str]]
CASES: dict[str, tuple[Steps, Callable[[Array, Array, Array], Array]]] = {
    "x - y < z": ([("Sub", "x", "y"), ("Less", "t", "z")], lambda x, y, z: x - y < z),
    "x - y >= z": ([("Sub", "x", "y"), ("GreaterOrEqual", "t", "z")], lambda x, y, z: x - y >= z),
    "x - y > 0": ([("Sub", "x", "y"), ("Greater", "t", "zero")], lambda x, y, z: x - y > 0),
    "x + 10 < y": ([("Add", "x", "ten"), ("Less", "t", "y")], lambda x, y, z: x + 10 < y),
    "x * k > 0": ([("Mul", "x", "k"), ("Greater", "t", "zero")], lambda x, y, z: x * K > 0),
    "x * k % 10": ([("Mul", "x", "k"), ("Mod", "t", "ten")], lambda x, y, z: x * K % 10),
}


@pytest.mark.parametrize("name", CASES)
def test_integers_wrap(name: str) -> None:
    (first, second), wanted = CASES[name]
    nodes = [node(first[0], [*first[1:]], ["t"]), node(second[0], [*second[1:]], ["out"])]
    m = model(nodes, [info(v, ["n"], TensorProto.INT64) for v in "xyz"], ["out"], WEIGHTS)
    x, y, z = (g.ravel() for g in np.meshgrid(*[np.array(NUMBERS)] * 3))
    with np.errstate(over="ignore"):
        want = wanted(x, y, z)
    np.testing.assert_array_equal(tw.compile(m, fallback="never")(x=x, y=y, z=z), want)
