"""Convolutions by dot instructions: packing and convolution against NumPy, and the code for targets that have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import check
from tests.plans.matmul.test_dots import KINDS, values
from tilewright import ops
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import DType, bf16, i8, u8
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.plans import plan
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

CASES: dict[str, dict[str, Any]] = {
    "padded": {"x": (2, 20, 6, 7), "filters": 19, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "strided": {"x": (1, 5, 9, 8), "filters": 40, "window": (3, 2), "strides": (2, 2), "pads": (0, 1, 2, 0)},
    "dilated": {"x": (1, 16, 11, 10), "filters": 8, "window": (3, 3), "dilations": (2, 3)},
    "one pixel": {"x": (3, 33, 1, 5), "filters": 65, "window": (1, 1)},
    "few channels": {"x": (1, 3, 21, 30), "filters": 32, "window": (7, 7), "strides": (2, 2), "pads": (3, 3, 3, 3)},
}


def split(case: dict[str, Any]) -> tuple[tuple[int, ...], int, tuple[int, int], dict[str, Any]]:
    enclosing = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    enclosing |= {k: v for k, v in case.items() if k in enclosing}
    return case["x"], case["filters"], case["window"], enclosing


def convolution(case: dict[str, Any], a: DType, b: DType, lanes: int, group: int) -> Graph:
    shape, filters, window, enclosing = split(case)
    block = lanes if shape[1] >= lanes else -(-shape[1] // group) * group
    builder = GraphBuilder("convolution")
    x = builder.input("x", TensorType(a, tuple(map(const, shape))))
    w = builder.param("w", TensorType(b, tuple(map(const, (filters, shape[1], *window)))))
    zero = builder.param("zero", TensorType(a, ()))
    packed = ops.emit1(builder, "lowered.pack_conv_dot", w, block=block, width=lanes, group=group, panels=2)
    blocked = ops.emit1(builder, "lowered.block_channels", x, block=block)
    total = ops.emit1(builder, "lowered.conv_dot", blocked, packed, zero, channels=filters, **enclosing)
    return builder.finish((ops.emit1(builder, "lowered.unblock_channels", total, channels=filters),))


def expected(case: dict[str, Any], x: np.ndarray, w: np.ndarray, zero: Any) -> np.ndarray:
    _, _, _, enclosing = split(case)
    top, left, bottom, right = enclosing["pads"]
    edges = ((0, 0), (0, 0), (top, bottom), (left, right))
    x = np.pad(x.astype(np.float64), edges, constant_values=float(zero))
    attrs = ops.attributes("conv", {**enclosing, "pads": (0, 0, 0, 0), "groups": 1})
    return np.asarray(ops.get("conv").reference([x, w.astype(np.float64)], attrs)[0])


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}")
def test_packing_and_convolution_are_what_their_references_say(kind: tuple[DType, DType, int, int]) -> None:
    a, b, lanes, group = kind
    case = {"x": (2, 6, 5, 4), "filters": 9, "window": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
    shape, filters, window, enclosing = split(case)
    w, zero = values(b, (filters, shape[1], *window)), values(a, ())
    block = -(-shape[1] // group) * group
    (packed,) = check("lowered.pack_conv_dot", w, block=block, width=lanes, group=group, panels=2)
    x = values(a, (2, 1, 5, 4, block))  # what stands past the channels counts for nothing
    for item in ([x, packed, zero], [x, packed]):
        (y,) = check("lowered.conv_dot", *item, channels=filters, **enclosing)
        real = np.moveaxis(x[:, 0], -1, 1)[:, : shape[1]]
        want = expected(case, real, w, zero if len(item) == 3 else 0)
        got = np.moveaxis(y, -1, 2).reshape(2, -1, *want.shape[2:])[:, :filters]
        assert np.abs(got - want).max() < 1e-4


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}")
@pytest.mark.parametrize("name", CASES)
def test_native_code(kind: tuple[DType, DType, int, int], name: str) -> None:
    a, b, lanes, group = kind
    shape, filters, window, _ = split(CASES[name])
    x, w, zero = values(a, shape), values(b, (filters, shape[1], *window)), values(a, ())
    graph = convolution(CASES[name], a, b, lanes, group)
    got = np.asarray(tw.compile((graph, {"w": w, "zero": np.asarray(zero)}))(x))
    want = expected(CASES[name], x, w, zero)
    if a is bf16:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name,lanes", [("znver4", 16), ("alderlake", 8)])
@pytest.mark.parametrize("channels", [64, 3])
def test_the_hot_loop_is_instructions_on_registers(name: str, lanes: int, channels: int) -> None:
    """The loop of few channels is so, too, where neighbouring pixels read the same: nothing of it is kept on the
    stack."""
    target = Target.parse(name)
    enclosing = {"window": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    graph = convolution({"x": (1, channels, 56, 56), "filters": 64, **enclosing}, u8, i8, lanes, 4)
    group = next(g for g in fuse(graph) if any(n.op == "lowered.conv_dot" for n in g.nodes))
    planned = plan(lower_group(group, "kernel").func, target)
    assert planned.plan == "dot convolution"
    text = assembly(emit_llvm(lower_loops(planned.func, target), target), target)
    loop = [line for line in text.splitlines() if "vpdpbusd" in line]
    assert len(loop) >= 16 and not any("(%rsp)" in line or "(%rbp)" in line for line in loop)
    stores = [line for line in text.splitlines() if "vmov" in line and line.rstrip().endswith("(%rsp)")]
    assert len(stores) < len(loop) / 4


def test_refusals() -> None:
    w = TensorType(i8, tuple(map(const, (8, 6, 3, 3))))
    with pytest.raises(tw.Error, match="no multiple of the group"):
        ops.infer(
            "lowered.pack_conv_dot",
            [w],
            ops.attributes("lowered.pack_conv_dot", {"block": 6, "width": 8, "group": 4, "panels": 1}),
        )
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "channels": 8}
    packed = TensorType(i8, tuple(map(const, (1, 2, 3, 3, 2, 8, 4))))
    with pytest.raises(tw.Error, match="do not fit the blocks"):
        x = TensorType(u8, tuple(map(const, (1, 1, 5, 5, 8))))
        ops.infer("lowered.conv_dot", [x, packed], ops.attributes("lowered.conv_dot", attrs))
