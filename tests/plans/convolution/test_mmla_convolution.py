"""Convolutions by instructions of two pixels by two filters: operator, schedule and layouts against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import check
from tests.plans.convolution.test_dot_convolution import CASES, expected, split
from tests.plans.matmul.test_mmla import KINDS, V1, laid_out, values
from tests.targets.hot_loops import MIN_ACCUMULATORS, hot_loops
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import bf16, f32, i32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.lowered.packed import BlockAttrs
from tilewright.plans import plan
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group


def grouped(case: dict[str, Any], x: np.ndarray, w: np.ndarray, zero: Any) -> np.ndarray:
    """The results of a convolution in groups, group by group."""
    count = case.get("groups", 1)
    parts = zip(np.split(x, count, 1), np.split(w, count, 0), strict=True)
    return np.concatenate([expected(case, own, filters, zero) for own, filters in parts], 1)


def convolution(case: dict[str, Any], kind: str, block: int) -> Graph:
    a, b, group = KINDS[kind]
    shape, filters, window, enclosing = split(case)
    groups = case.get("groups", 1)
    depth, builder = shape[1] // groups, GraphBuilder("convolution")
    x = builder.input("x", TensorType(a, tuple(map(const, shape))))
    w = builder.param("w", TensorType(b, tuple(map(const, (filters, depth, *window)))))
    zero = builder.param("zero", TensorType(a, ()))
    panels = 1 if groups > 1 else 12
    packed = ops.emit1(builder, "lowered.pack_conv_dot", w, block=group, width=2, group=group, panels=panels)
    blocked = ops.emit1(builder, "lowered.block_channels", x, block=4)
    attrs = {"channels": filters, "block": block, "depth": depth, "groups": groups, **enclosing}
    return builder.finish((ops.emit1(builder, "lowered.conv_mmla", blocked, packed, zero, **attrs),))


def in_blocks(x: np.ndarray) -> np.ndarray:
    return np.asarray(ops.get("lowered.block_channels").reference([x], BlockAttrs(4))[0])


def unblocked(y: np.ndarray, filters: int) -> np.ndarray:
    return np.moveaxis(y, 4, 2).reshape(len(y), -1, *y.shape[2:4])[:, :filters]


ALL = CASES | {
    "groups": {"x": (1, 24, 9, 7), "filters": 32, "window": (3, 3), "pads": (1, 1, 1, 1), "groups": 4},
    "strided pixel": {"x": (2, 16, 9, 7), "filters": 24, "window": (1, 1), "strides": (2, 2)},
    "far": {"x": (1, 8, 9, 17), "filters": 8, "window": (2, 2), "strides": (3, 3), "dilations": (1, 2)},
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ALL)
def test_what_the_reference_says(name: str) -> None:
    case = ALL[name]
    shape, filters, window, enclosing = split(case)
    groups = case.get("groups", 1)
    x, w, zero = values(KINDS["smmla"][0], shape), values(KINDS["smmla"][1], (filters, shape[1] // groups, *window)), 3
    packing = {"block": 8, "width": 2, "group": 8, "panels": 1 if groups > 1 else 2}
    (packed,) = check("lowered.pack_conv_dot", w, **packing)
    (blocked,) = ops.get("lowered.block_channels").reference(
        [x], ops.attributes("lowered.block_channels", {"block": 4})
    )
    attrs = {"channels": filters, "block": 4, "depth": shape[1] // groups, "groups": groups, **enclosing}
    (y,) = check("lowered.conv_mmla", blocked, packed, np.int8(zero), **attrs)
    np.testing.assert_array_equal(unblocked(y, filters), grouped(case, x, w, zero))


@pytest.mark.daily(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [4, 8])
@pytest.mark.parametrize("name", ALL)
def test_the_schedule(kind: str, block: int, name: str) -> None:
    """The loops for such an instruction, on any machine."""
    case = ALL[name]
    a, b, group = KINDS[kind]
    shape, filters, window, _ = split(case)
    graph = convolution(case, kind, block)
    part = next(g for g in fuse(graph) if any("conv_mmla" in node.op for node in g.nodes))
    planned = plan(lower_group(part, "kernel").func, V1)
    assert planned.plan == "mmla convolution"
    func = lower_loops(planned.func, V1)
    x, w, zero = values(a, shape), values(b, (filters, shape[1] // case.get("groups", 1), *window)), values(a, ())
    packing = {"block": group, "width": 2, "group": group, "panels": 1 if case.get("groups", 1) > 1 else 12}
    (packed,) = ops.get("lowered.pack_conv_dot").reference([w], ops.attributes("lowered.pack_conv_dot", packing))
    (blocked,) = ops.get("lowered.block_channels").reference(
        [x], ops.attributes("lowered.block_channels", {"block": 4})
    )
    shapes = [tuple(as_int(d) or 0 for d in param.shape) for param in func.params]
    known = {"block_channels": blocked, "pack_conv_dot": packed, "zero": zero}
    arrays = [known.get(p.name, np.zeros(shape, p.dtype.numpy)) for p, shape in zip(func.params, shapes, strict=True)]
    interpret(func, arrays)
    (out,) = (array for param, array in zip(func.params, arrays, strict=True) if param.name == "conv")
    np.testing.assert_array_equal(unblocked(out, filters), grouped(case, x, w, zero))


def layer(case: dict[str, Any], kind: str, point: int) -> Graph:
    """A convolution of integers `x - point`, or of bf16 that are widened, as importers state them."""
    a, b, _ = KINDS[kind]
    shape, filters, window, enclosing = split(case)
    groups, sums = case.get("groups", 1), f32 if a is bf16 else i32
    builder = GraphBuilder("convolution")
    x = builder.input("x", TensorType(a, tuple(map(const, shape))))
    w = builder.param("w", TensorType(b, tuple(map(const, (filters, shape[1] // groups, *window)))))
    wide = [ops.emit1(builder, "cast", v, dtype=sums) for v in (x, w)]
    zero = ops.emit1(builder, "constant", value=ConstantArray(sums.numpy.type(point)))
    moved = ops.emit1(builder, "sub", wide[0], zero) if point else wide[0]
    return builder.finish((ops.emit1(builder, "conv", moved, wide[1], groups=groups, **enclosing),))


@pytest.mark.daily(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALL)
def test_any_machine(kind: str, name: str) -> None:
    """Code for this machine, whichever that is: Neoverse V1 in an emulator has the instructions."""
    case, (a, b, _) = ALL[name], KINDS[kind]
    shape, filters, window, _ = split(case)
    point = 0 if a is bf16 else 3
    data, weights = values(a, shape), values(b, (filters, shape[1] // case.get("groups", 1), *window))
    got = tw.compile((layer(case, kind, point), {"w": weights}))(data)
    want = grouped(case, data.astype(np.float64) - point, weights, 0)
    if a is bf16:  # which other machines compute by Winograd's transforms
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())
    else:
        np.testing.assert_array_equal(got, want)


LARGE: dict[str, Any] = {"x": (1, 64, 24, 24), "filters": 96, "window": (3, 3), "pads": (1, 1, 1, 1)}


@pytest.mark.parametrize(
    "target,case,kind,chosen",
    [
        ("neoverse-v1", LARGE, "smmla", "conv_mmla"),
        ("neoverse-v1", LARGE, "usmmla", "conv_mmla"),
        ("neoverse-v1", LARGE | {"strides": (2, 2)}, "bfmmla", "conv_mmla"),
        ("neoverse-v1", LARGE | {"strides": (2, 2)}, "smmla", "conv_mmla"),
        ("neoverse-v1", LARGE | {"window": (1, 1), "pads": (0, 0, 0, 0)}, "usmmla", "conv_mmla"),
        ("neoverse-v1", LARGE | {"groups": 4}, "smmla", "conv_mmla"),
        ("neoverse-v1", LARGE | {"groups": 4}, "bfmmla", "conv_mmla"),
        ("neoverse-v1-sve", LARGE, "smmla", "conv_mmla"),
        ("neoverse-v1", CASES["few channels"], "usmmla", "conv_dot"),
        ("neoverse-n1", LARGE, "smmla", "conv_dot"),
        ("znver4", LARGE | {"strides": (2, 2)}, "usmmla", "conv_dot"),
    ],
)
def test_estimates_choose(target: str, case: dict[str, Any], kind: str, chosen: str) -> None:
    graph = layer(case, kind, 0 if kind == "bfmmla" else 3)
    assert f"lowered.{chosen}(" in laid_out(graph, Target.parse(target), Options())


@pytest.mark.parametrize("target", ["neoverse-v1", "neoverse-v1-sve"])
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_fill_the_registers(kind: str, target: str) -> None:
    machine = Target.parse(target)
    graph = convolution(LARGE, kind, machine.lanes(4))
    part = next(g for g in fuse(graph) if any("conv_mmla" in node.op for node in g.nodes))
    func = lower_loops(plan(lower_group(part, "kernel").func, machine).func, machine)
    loop = max(hot_loops(assembly(emit_llvm(func, machine), machine)), key=lambda loop: loop.adds)
    assert loop.kinds == (kind,) and loop.stack == 0
    assert loop.accumulators == loop.adds >= MIN_ACCUMULATORS
