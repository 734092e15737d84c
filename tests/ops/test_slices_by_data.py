"""Slices whose bounds data decides: values, shapes, and bounds that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tests.ops.test_extent import compare

I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
BOUNDS = [0, 1, 3, 6, 7, 1000, -1, -3, -6, -7, -1000, 1 << 31, -(1 << 31), I64_MAX, I64_MIN]
rng = np.random.default_rng(5)


def sliced(shape: list[Any], axes: list[int], steps: list[int], code: int = TensorProto.INT64) -> onnx.ModelProto:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Slice", ["r", "s", "e", "axes", "steps"], ["y"]),
        node("Exp", ["y"], ["z"]),
    ]
    arguments = [info("x", shape), info("s", [len(axes)], code), info("e", [len(axes)], code)]
    return model(nodes, arguments, ["z"], {"axes": np.array(axes), "steps": np.array(steps)})


def call(shape: tuple[int, ...], starts: list[int], ends: list[int], kind: Any = np.int64) -> dict[str, Any]:
    return {
        "x": rng.standard_normal(shape).astype(np.float32),
        "s": np.array(starts, kind),
        "e": np.array(ends, kind),
    }


def clamped(axes: list[int], steps: list[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Inputs in which slices to the front begin at least with the first element, as the text says of starts before it;
    the reference takes none of the elements then (docs/disagreements.md)."""

    def inputs(feed: dict[str, Any]) -> dict[str, Any]:
        least = [-feed["x"].shape[a] if s < 0 else I64_MIN for a, s in zip(axes, steps, strict=True)]
        return feed | {"s": np.maximum(feed["s"], np.array(least))}

    return inputs


@pytest.mark.daily(3)
@pytest.mark.parametrize("step", [1, 2, -1, -3, 5000000000, -I64_MAX])
def test_all_bounds(step: int) -> None:
    calls = [call((2, 6), [s], [e]) for s in BOUNDS for e in BOUNDS]
    compiled = compare(sliced([2, 6], [1], [step]), *calls, by_the_text=clamped([1], [step]))
    assert isinstance(compiled, tw.Model)


def test_two_axes_of_open_size() -> None:
    m = sliced([4, "n", "m"], [-1, 1], [1, -1])
    shapes = ((4, 3, 5), (4, 1, 1), (4, 9, 2))
    calls = [call(s, [a, b], [c, d]) for s in shapes for a, b, c, d in rng.integers(-6, 7, (12, 4)).tolist()]
    compare(m, *calls, by_the_text=clamped([-1, 1], [1, -1]))


def test_bounds_of_32_bits_and_an_empty_dimension() -> None:
    for n in (0, 2):
        m = sliced([n, 3], [0], [1], TensorProto.INT32)
        compare(m, *(call((n, 3), [s], [e], np.int32) for s in (-1, 0, 1) for e in (-1, 0, 9)))


def test_one_bound_that_is_known() -> None:
    nodes = [node("Slice", ["x", "s", "e", "axes"], ["y"]), node("ReduceSum", ["y"], ["z"])]
    arguments = [info("x", [7, 2]), info("e", [1], TensorProto.INT64)]
    m = model(nodes, arguments, ["y", "z"], {"axes": np.array([0]), "s": np.array([-5])})
    x = rng.standard_normal((7, 2)).astype(np.float32)
    compare(m, *({"x": x, "e": np.array([e])} for e in BOUNDS))


def test_a_bound_computed_from_data() -> None:
    """A cache: of the rows only those before the number of positions that hold something."""
    nodes = [
        node("ReduceSum", ["mask"], ["count"], keepdims=1),
        node("Slice", ["x", "zero", "count", "zero"], ["y"]),
        node("MatMul", ["y", "w"], ["z"]),
    ]
    arguments = [info("x", [8, 4]), info("mask", [8], TensorProto.INT64)]
    m = model(nodes, arguments, ["z"], {"zero": np.array([0]), "w": rng.standard_normal((4, 5)).astype(np.float32)})
    x = rng.standard_normal((8, 4)).astype(np.float32)
    compare(m, *({"x": x, "mask": np.array([1] * k + [0] * (8 - k))} for k in (8, 5, 1, 0)), threads=(1, 2))
