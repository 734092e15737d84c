"""Products in registers that hold matrices: operators and intrinsics against NumPy, native code against both, and the
code for targets that have such registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import check
from tests.plans.convolution.test_dot_convolution import expected, split
from tests.plans.matmul.test_dots import values
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import graph_passes
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, bf16, f16, f32, i8, i32, u8
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ops.lowered.by_rows import MatmulByRowsAttrs, versions
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.plans.matmul.dots import panel_multiple
from tilewright.schedule.dot_intrinsics import find_dot, find_tile_dot, named_dot
from tilewright.schedule.intrinsics import find_intrinsic
from tilewright.schedule.tile_intrinsics import STORE, ZERO
from tilewright.targets import x86
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options, Precision
from tilewright.transform.layout.assign import assign_layouts
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

AMX = x86.processor("sapphirerapids", (*x86.V4_DOTS, "amx-tile", "amx-int8", "amx-bf16"))
TILES = OF_U8, OF_BF16, OF_F16 = "amx_16x16x64_u8i8", "amx_16x16x32_bf16bf16", "amx_16x16x32_f16f16"
CASES: dict[str, dict[str, Any]] = {
    "padded": {"x": (2, 20, 6, 7), "filters": 19, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "strided": {"x": (1, 5, 9, 8), "filters": 40, "window": (3, 2), "strides": (2, 2), "pads": (0, 1, 2, 0)},
    "columns apart": {"x": (1, 17, 7, 50), "filters": 16, "window": (1, 5), "strides": (1, 3), "dilations": (1, 2)},
    "one pixel": {"x": (3, 33, 1, 5), "filters": 65, "window": (1, 1)},
    "odd lines": {"x": (1, 70, 7, 17), "filters": 64, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "many": {"x": (1, 64, 14, 32), "filters": 64, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "small": {"x": (2, 70, 7, 7), "filters": 40, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "lines apart": {"x": (1, 30, 13, 12), "filters": 33, "window": (5, 3), "strides": (3, 2), "pads": (2, 2, 1, 0)},
    "cut": {"x": (1, 9, 12, 14), "filters": 16, "window": (2, 2), "strides": (3, 4), "dilations": (2, 1)},
}
GATHERED: dict[str, dict[str, Any]] = {
    "few channels": {"x": (2, 3, 21, 30), "filters": 32, "window": (7, 7), "strides": (2, 2), "pads": (3, 3, 3, 3)},
    "tall": {"x": (1, 1, 40, 9), "filters": 20, "window": (5, 2), "strides": (3, 1), "pads": (0, 1, 4, 1)},
    "short lines": {"x": (2, 50, 12, 5), "filters": 20, "window": (3, 3)},
    "whole lines": {"x": (1, 64, 9, 30), "filters": 48, "window": (3, 3), "dilations": (2, 2), "pads": (2, 2, 2, 2)},
    "dilated": {"x": (1, 24, 15, 16), "filters": 17, "window": (3, 3), "dilations": (2, 2), "pads": (2, 2, 2, 2)},
}
SIZES = [(1, 64, 16), (32, 64, 32), (5, 7, 5), (17, 100, 40), (48, 130, 97), (64, 64, 64)]


def product(m: int, k: int, n: int, kinds: tuple[DType, DType] = (u8, i8)) -> Graph:
    builder = GraphBuilder("product")
    x = builder.input("x", TensorType(kinds[0], (const(m), const(k))))
    w = builder.param("w", TensorType(kinds[1], (const(k), const(n))))
    group = 4 // kinds[1].itemsize
    whole = ops.emit1(builder, "pad", w, before=(0, 0), after=(-k % (16 * group), 0), mode="constant", value=0)
    attrs = {"width": 16, "group": group, "transpose": False, "panels": panel_multiple(n, 16)}
    packed = ops.emit1(builder, "lowered.pack_dot", whole, **attrs)
    return builder.finish((ops.emit1(builder, "lowered.matmul_tiles", x, packed, columns=n, rows=16),))


def convolution(case: dict[str, Any], *, flat: bool = False, ordinary: bool = True) -> Graph:
    shape, filters, window, enclosing = split(case)
    builder = GraphBuilder("convolution")
    x = builder.input("x", TensorType(u8, tuple(map(const, shape))))
    w = builder.param("w", TensorType(i8, tuple(map(const, (filters, shape[1], *window)))))
    zero = builder.param("zero", TensorType(u8, ()))
    deep, panels = shape[1] + -shape[1] % 64, panel_multiple(filters, 16)
    packed = ops.emit1(builder, "lowered.pack_conv_dot", w, block=deep, width=16, group=4, panels=panels)
    blocked = ops.emit1(builder, "lowered.block_channels", x, block=16)
    how = {"channels": filters, "rows": 16, "flat": flat, **enclosing}
    total = ops.emit1(builder, "lowered.conv_tiles", blocked, packed, zero, **how)
    return builder.finish(
        (ops.emit1(builder, "lowered.unblock_channels", total, channels=filters) if ordinary else total,)
    )


def kernel(graph: Graph, target: Target) -> tuple[str, PrimFunc]:
    """The plan of the graph's product, and its loops."""
    group = next(g for g in fuse(graph) if any("tiles" in n.op for n in g.nodes))
    planned = plan(lower_group(group, "kernel").func, target)
    return planned.plan, lower_loops(planned.func, target)


def test_products_are_what_their_reference_says() -> None:
    w = values(i8, (128, 19))
    (packed,) = check("lowered.pack_dot", w, width=16, group=4, transpose=False, panels=2)
    for k in (128, 99):
        x = values(u8, (2, 3, k))
        (y,) = check("lowered.matmul_tiles", x, packed, columns=19, rows=4)
        np.testing.assert_array_equal(y, x.astype(np.int64) @ w[:k].astype(np.int64))


def test_convolutions_are_what_their_reference_says() -> None:
    case = {"x": (2, 6, 7, 4), "filters": 9, "window": (3, 2), "strides": (1, 2), "pads": (1, 0, 1, 1)}
    shape, filters, window, enclosing = split(case)
    w, zero = values(i8, (filters, shape[1], *window)), values(u8, ())
    (packed,) = check("lowered.pack_conv_dot", w, block=16, width=16, group=4, panels=1)
    x = values(u8, (2, 2, 7, 4, 4))  # what stands past the channels counts for nothing
    real = np.moveaxis(x, -1, 2).reshape(2, 8, 7, 4)[:, : shape[1]]
    for item, flat in (([x, packed, zero], False), ([x, packed], False), ([x, packed, zero], True)):
        (y,) = check("lowered.conv_tiles", *item, channels=filters, rows=4, flat=flat, **enclosing)
        want = expected(case, real, w, zero if len(item) == 3 else 0)
        np.testing.assert_array_equal(np.moveaxis(y, -1, 2).reshape(2, -1, *want.shape[2:])[:, :filters], want)


@pytest.mark.parametrize("lines,strides", [(1, (1, 2)), (2, (2, 1)), (3, (2, 1))])
def test_gathered_convolutions_are_what_their_reference_says(lines: int, strides: tuple[int, int]) -> None:
    """Lines and columns of the window in the depth; some are none of the window's, and weigh nothing."""
    case = {"x": (2, 6, 7, 5), "filters": 9, "window": (3, 2), "strides": strides, "pads": (1, 0, 1, 1)}
    shape, filters, window, enclosing = split(case)
    w, zero, x = values(i8, (filters, 6, *window)), values(u8, ()), values(u8, (2, 2, 7, 5, 4))
    groups = -(-3 // lines)
    whole = np.pad(w, ((0, 0), (0, 2), (0, groups * lines - 3), (0, 1))).reshape(filters, 8, groups, lines, 3)
    deep = np.ascontiguousarray(whole.transpose(0, 3, 4, 1, 2)).reshape(filters, lines * 3 * 8, groups, 1)
    (packed,) = check("lowered.pack_conv_dot", deep, block=80, width=16, group=4, panels=1)
    how = {"channels": filters, "rows": 4, "flat": True, "gathered": (*window, lines, 3)}
    (y,) = check("lowered.conv_tiles", x, packed, zero, **how, **enclosing)
    want = expected(case, np.moveaxis(x, -1, 2).reshape(2, 8, 7, 5)[:, : shape[1]], w, zero)
    np.testing.assert_array_equal(np.moveaxis(y, -1, 2).reshape(2, -1, *want.shape[2:])[:, :filters], want)


@pytest.mark.daily(3)
@pytest.mark.parametrize("m,k,n", SIZES)
def test_native_products(m: int, k: int, n: int) -> None:
    x, w = values(u8, (m, k)), values(i8, (k, n))
    for threads in (1, 2):
        got = np.asarray(tw.compile((product(m, k, n), {"w": w}), threads=threads)(x))
        np.testing.assert_array_equal(got, x.astype(np.int64) @ w.astype(np.int64))


def bf16_array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(bf16.numpy)


@pytest.mark.daily(3)
@pytest.mark.parametrize("m,k,n", SIZES)
def test_native_products_of_float16(m: int, k: int, n: int) -> None:
    """Products of bf16 are exact in f32; so many of them are summed with a rounding each."""
    x, w = bf16_array(m, k), bf16_array(k, n)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    for threads in (1, 2):
        got = np.asarray(tw.compile((product(m, k, n, (bf16, bf16)), {"w": w}), threads=threads)(x))
        assert got.dtype == np.float32 and (np.abs(got - exact) <= k * 2.0**-24 * size).all()


@pytest.mark.daily(2)
@pytest.mark.costly(4)
@pytest.mark.parametrize("flat", [False, True], ids=["lines", "flat"])
@pytest.mark.parametrize("name", CASES)
def test_native_convolutions(name: str, flat: bool) -> None:
    shape, filters, window, _ = split(CASES[name])
    x, w, zero = values(u8, shape), values(i8, (filters, shape[1], *window)), values(u8, ())
    want = expected(CASES[name], x, w, zero)
    for threads, ordinary in ((1, True), (2, True), (1, False), (2, False)):
        graph = convolution(CASES[name], flat=flat, ordinary=ordinary)
        model = tw.compile((graph, {"w": w, "zero": np.asarray(zero)}), threads=threads)
        got = np.asarray(model(x))
        if not ordinary:
            got = np.moveaxis(got, -1, 2).reshape(shape[0], -1, *want.shape[2:])[:, :filters]
        np.testing.assert_array_equal(got, want)


def numbers(case: dict[str, Any], zero: int) -> Graph:
    """The convolution as importers state it."""
    shape, filters, window, enclosing = split(case)
    builder = GraphBuilder("numbers")
    x = builder.input("x", TensorType(u8, tuple(map(const, shape))))
    w = builder.param("w", TensorType(i8, tuple(map(const, (filters, shape[1], *window)))))
    wide = [ops.emit1(builder, "cast", v, dtype=i32) for v in (x, w)]
    if zero:
        point = ops.emit1(builder, "constant", value=ConstantArray(np.int32(zero)))
        wide[0] = ops.emit1(builder, "sub", wide[0], point)
    return builder.finish((ops.emit1(builder, "conv", *wide, **enclosing, groups=1),))


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("way", ["matrices", "flat", "gathered"])
@pytest.mark.parametrize("name", [*CASES, *GATHERED])
def test_every_way_computes_the_same(name: str, way: str) -> None:
    """By lines, flat, or with several pixels in the depth, as they are decided, with and without a zero point."""
    case = (CASES | GATHERED)[name]
    for zero, threads in ((7, 1), (0, 2)):
        graph = numbers(case, zero)
        with deciding() as record:
            assign_layouts(graph, AMX)
        (decision,) = [d for d in record.decisions if d.key.kind == "registers"]
        if way not in [setting.label for setting in decision.space]:
            deep = case["x"][1] in (33, 50, 64) or case["window"] == (1, 1)
            assert deep if way == "gathered" else name in ("whole lines", "columns apart")
            return
        with forcing({decision.key.name: way}):
            chosen = assign_layouts(graph, AMX)
        assert ("gathered = [" in str(chosen)) == (way == "gathered")
        shape, filters, window, _ = split(case)
        x, w = values(u8, shape), values(i8, (filters, shape[1], *window))
        got = np.asarray(tw.compile((chosen, {"w": w}), threads=threads)(x))
        want = expected(case, x, w, zero) - zero * expected(case, np.ones_like(x), w, 1)
        np.testing.assert_array_equal(got, want)


def test_a_small_number_of_channels_fill_the_depth() -> None:
    """Three channels lie in a block of four: two lines of eight columns are a register's depth."""
    case = {"x": (1, 3, 224, 224), "filters": 64, "window": (7, 7), "strides": (2, 2), "pads": (3, 3, 3, 3)}
    text = str(assign_layouts(numbers(case, 0), AMX))
    assert "gathered = [7, 7, 2, 8]" in text and "i8[4, 1, 4, 1, 16, 16, 4]" in text


def test_a_flat_product_has_fewer_registers() -> None:
    """A map of 7x7 pixels has 8 from a line to the next: four registers, where lines fill eight."""
    for flat, shape in ((False, "i32[1, 4, 8, 16, 16]"), (True, "i32[1, 4, 1, 64, 16]")):
        case = {"x": (1, 64, 7, 7), "filters": 64, "window": (3, 3), "pads": (1, 1, 1, 1)}
        group = next(g for g in fuse(convolution(case, flat=flat)) if any("tiles" in n.op for n in g.nodes))
        func = lower_group(group, "kernel").func
        assert f"conv: {shape}" in str(func)
    # What surrounds the map on the right does so on the left of the next line: eight pixels, not nine. The last
    # register reads two lines and two pixels further than it is long.
    assert "pad: u8[1, 1, 1, 88, 64]" in str(func)


def of_float16(kind: DType, channels: int, *, size: int = 7, filters: int = 48) -> Graph:
    builder = GraphBuilder("halves")
    x = builder.input("x", TensorType(kind, (Var("n"), const(channels), const(size), const(size))))
    w = builder.param("w", TensorType(kind, tuple(map(const, (filters, channels, 3, 3)))))
    enclosing = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    return builder.finish((ops.emit1(builder, "conv", x, w, **enclosing),))


@pytest.mark.parametrize(
    "kind,precision,channels,size,chosen",
    [
        (bf16, "fp32", 64, 7, "conv_tiles"),
        (f32, "bf16", 64, 7, "conv_tiles"),
        (f32, "fp32", 64, 7, ""),
        (bf16, "fp32", 20, 7, ""),  # no whole blocks of channels
    ],
)
def test_convolutions_of_float16_choose(
    kind: DType, precision: Precision, channels: int, size: int, chosen: str
) -> None:
    for target in (AMX, Target.parse("sapphirerapids")):
        graph = of_float16(kind, channels, size=size)
        for name, function in graph_passes(target, Options(precision)):
            graph = function(graph)
            if name == "assign layouts":
                break
        assert ("lowered.conv_tiles(" in str(graph)) == (chosen == "conv_tiles" and target is AMX)
        assert graph.outputs[0].dtype is kind


@pytest.mark.parametrize("kind,precision", [(bf16, "fp32"), (f32, "bf16")])
def test_native_convolutions_of_float16(kind: DType, precision: Precision) -> None:
    """Factors are rounded to bf16, or are of bf16, sums are of f32, and new weights are rounded when they come."""
    for filters, threads in ((48, 1), (20, 2)):
        rng, graph = np.random.default_rng(4), of_float16(kind, 48, filters=filters)
        first, other = (rng.standard_normal((filters, 48, 3, 3)).astype(kind.numpy) for _ in range(2))
        x = rng.standard_normal((3, 48, 7, 7)).astype(kind.numpy)
        model = tw.compile((graph, {"w": first}), precision=precision, threads=threads)
        attrs = ops.attributes("conv", {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1})
        for w in (first, other):
            model.update({"w": w})
            rounded = [a.astype(bf16.numpy).astype(np.float64) for a in (x, w)]
            want = np.asarray(ops.get("conv").reference(rounded, attrs)[0])
            got = np.asarray(model(x)).astype(np.float64)
            # Without registers of matrices factors of f32 stay.
            bound = 2.0**-8 if kind is bf16 or find_tile_dot(bf16, bf16, Target.host()) is None else 1e-5
            assert np.abs(got - want).max() < bound * np.abs(want).max()


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("m,k,n", SIZES)
def test_interpreted_products(m: int, k: int, n: int) -> None:
    """The schedule for such registers, on any machine."""
    name, func = kernel(product(m, k, n), AMX)
    x, w = values(u8, (m, k)), values(i8, (k, n))
    (packed,) = ops.get("lowered.pack_dot").reference(
        [np.pad(w, ((0, -k % 64), (0, 0)))],
        ops.attributes(
            "lowered.pack_dot", {"width": 16, "group": 4, "transpose": False, "panels": panel_multiple(n, 16)}
        ),
    )
    inputs = {u8: x, i8: packed, i32: np.zeros((m, n), np.int32)}
    arrays = [
        inputs[b.dtype] if b.name != "pad" else np.zeros([int(d.value) for d in b.shape], np.uint8) for b in func.params
    ]
    interpret(func, arrays)
    assert name == "tile dots"
    np.testing.assert_array_equal(inputs[i32], x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.parametrize("graph", [product(64, 256, 64), convolution(CASES["many"])], ids=lambda g: g.name)
def test_the_hot_loop_is_products_of_registers(graph: Graph) -> None:
    """Four products share two loads of each side; registers are configured and released once."""
    name, func = kernel(graph, AMX)
    assert name == ("tile dots" if graph.name == "product" else "tile convolution")
    text = assembly(emit_llvm(func, AMX), AMX)
    counts = {word: text.count(f"\t{word}\t") + text.count(f"\t{word}\n") for word in COUNTS}
    assert counts == COUNTS


COUNTS = {"tdpbusd": 4, "tileloadd": 4, "tilezero": 4, "tilestored": 4, "ldtilecfg": 1, "tilerelease": 1}


@pytest.mark.parametrize("graph", [product(64, 256, 64), convolution(CASES["many"])], ids=lambda g: g.name)
def test_work_is_shared(graph: Graph) -> None:
    _, func = kernel(graph, AMX.adjusted(threads=2))
    assert "parallel" in str(func)


def test_targets_without_such_registers_compute_in_memory() -> None:
    """A schedule that was made for another machine."""
    v4 = Target.parse("x86-64-v4")
    _, func = kernel(product(32, 64, 32), AMX)
    assert "tdpbusd" in emit_llvm(func, AMX)
    text = emit_llvm(func, v4)
    assert "llvm.x86.t" not in text and "tilecfg" not in text
    assert assembly(text, v4)


def test_only_machines_that_have_them_are_offered_them() -> None:
    assert find_tile_dot(u8, i8, AMX) is named_dot(OF_U8)
    assert find_tile_dot(bf16, bf16, AMX) is named_dot(OF_BF16)
    assert find_dot(u8, i8, AMX) is named_dot("vnni_16x4_u8i8i32") and find_tile_dot(f16, f16, AMX) is None
    with_fp16 = x86.processor("graniterapids", (*AMX.features, "amx-fp16"))
    assert find_tile_dot(f16, f16, with_fp16) is named_dot(OF_F16)
    for name in ("x86-64-v3", "x86-64-v4", "znver4", "sapphirerapids", "generic-aarch64"):
        assert all(find_tile_dot(dot.a, dot.b, Target.parse(name)) is None for dot in map(named_dot, TILES))
    assert AMX.kind != Target.parse("sapphirerapids").kind
    assert AMX.fingerprint != Target.parse("sapphirerapids").fingerprint


def test_intrinsics_say_what_they_compute() -> None:
    a, b, sums = values(u8, (16, 64)), values(i8, (16, 16, 4)), np.ones((16, 16), np.int32)
    interpret(find_intrinsic(OF_U8).description, [a, b, sums])
    flat = b.transpose(0, 2, 1).reshape(64, 16).astype(np.int64)
    np.testing.assert_array_equal(sums, a.astype(np.int64) @ flat + 1)
    copy = np.zeros((16, 16), np.int32)
    interpret(STORE[i32].description, [sums, copy])
    np.testing.assert_array_equal(copy, sums)
    interpret(ZERO[i32].description, [sums])
    assert not sums.any()


@pytest.mark.parametrize("name", [OF_BF16, OF_F16])
def test_intrinsics_of_float16_say_what_they_compute(name: str) -> None:
    kind = named_dot(name).a.numpy
    a, b = (bf16_array(*shape).astype(kind) for shape in ((16, 32), (16, 16, 2)))
    sums = np.ones((16, 16), np.float32)
    interpret(find_intrinsic(name).description, [a, b, sums])
    flat = b.astype(np.float64).transpose(0, 2, 1).reshape(32, 16)
    np.testing.assert_allclose(sums, a.astype(np.float64) @ flat + 1, rtol=1e-5, atol=1e-5)


def test_code_for_float16() -> None:
    name, func = kernel(product(64, 256, 64, (bf16, bf16)), AMX)
    text = assembly(emit_llvm(func, AMX), AMX)
    assert name == "tile dots" and text.count("\ttdpbf16ps\t") == 4


def linear(rows: int | None, kind: DType) -> Graph:
    builder = GraphBuilder("linear")
    x = builder.input("x", TensorType(kind, (Var("n") if rows is None else const(rows), const(250))))
    w = builder.param("w", TensorType(kind, (const(96), const(250))))
    return builder.finish((ops.emit1(builder, "matmul", x, w, transpose_b=True),))


@pytest.mark.parametrize(
    "rows,kind,precision,chosen",
    [
        (64, bf16, "fp32", "matmul_tiles"),
        (64, f32, "bf16", "matmul_tiles"),
        (64, f32, "int8", "matmul_tiles"),
        (64, f32, "fp32", "matmul_x3"),
        (1, bf16, "fp32", "matmul_packed"),
        (None, bf16, "fp32", "matmul_tiles"),
        (None, f32, "bf16", "matmul_tiles"),
        (None, f32, "int8", "matmul_tiles"),
    ],
)
def test_precisions_choose(rows: int | None, kind: DType, precision: Precision, chosen: str) -> None:
    graph = linear(rows, kind)
    for name, function in graph_passes(AMX, Options(precision)):
        graph = function(graph)
        if name == "assign layouts":
            break
    assert f"lowered.{chosen}(" in str(graph) and graph.outputs[0].dtype is kind


@pytest.mark.parametrize(
    ("kind", "precision", "bound"), [(bf16, "fp32", 4e-3), (f32, "bf16", 4e-3), (f32, "int8", 2e-2)]
)
def test_native_precisions(kind: DType, precision: Precision, bound: float) -> None:
    """A depth that is no whole register, weights that are replaced."""
    rng = np.random.default_rng(3)
    x, w, other = (rng.standard_normal(shape).astype(kind.numpy) for shape in ((64, 250), (96, 250), (96, 250)))
    model = tw.compile((linear(64, kind), {"w": w}), precision=precision)
    for case in (w, other):
        model.update({"w": case})
        want = x.astype(np.float64) @ case.astype(np.float64).T
        got = np.asarray(model(x)).astype(np.float64)
        assert 0 < np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) < bound


def test_instructions_that_are_slower_than_single_precision_are_not_selected() -> None:
    assert find_dot(bf16, bf16, Target.parse("znver4")) is named_dot("dot_16x2_bf16")
    assert find_dot(bf16, bf16, Target.parse("sapphirerapids")) is None


def test_sums_that_fit_no_registers_are_refused() -> None:
    _, func = kernel(product(64, 64, 64), AMX)
    larger = parse_func(str(func).replace("tiles: i32[32, 32]", "tiles: i32[112, 32]"))
    with pytest.raises(tw.Error, match="no registers of matrices: expected at most 6, got 14"):
        emit_llvm(larger, AMX)


def test_buffers_are_in_the_registers_one_after_another() -> None:
    """Buffers of a loop's versions are like this; registers are configured once."""
    head, *body, end = str(kernel(product(32, 64, 32), AMX)[1]).splitlines()
    repeated = [line.replace("matmul_local_tiles", "second_tiles") for line in body]
    text = emit_llvm(
        parse_func("\n".join([head, "for a in 0..2 {", *body, "}", "for b in 0..2 {", *repeated, "}", end])), AMX
    )
    assert text.count("call void @llvm.x86.tdpbusd(") == 8 and text.count("call void @llvm.x86.ldtilecfg(") == 1


def test_refusals() -> None:
    def infer(op: str, x: TensorType, w: TensorType, **attrs: Any) -> None:
        ops.infer(op, [x, w], ops.attributes(op, attrs))

    packed = TensorType(i8, tuple(map(const, (1, 16, 16, 4))))
    with pytest.raises(tw.Error, match="do not fit the rows"):
        infer("lowered.matmul_tiles", TensorType(u8, (const(3), const(65))), packed, columns=16, rows=16)
    enclosing = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    packed = TensorType(i8, tuple(map(const, (1, 1, 3, 3, 16, 16, 4))))
    with pytest.raises(tw.Error, match="do not fit the blocks"):
        x = TensorType(u8, tuple(map(const, (1, 5, 5, 5, 16))))
        infer("lowered.conv_tiles", x, packed, channels=16, rows=16, **enclosing)


def layer(rows: int | None, shape: tuple[int, ...], weights: tuple[int, ...]) -> Graph:
    """A product of integers, or a convolution if the weights have a window; `rows` None: any number of images."""
    builder = GraphBuilder("layer")
    first = Var("n") if rows is None else const(rows)
    x = builder.input("x", TensorType(u8, (first, *map(const, shape))))
    w = builder.param("w", TensorType(i8, tuple(map(const, weights))))
    wide = [ops.emit1(builder, "cast", v, dtype=i32) for v in (x, w)]
    if len(weights) == 2:
        return builder.finish((ops.emit1(builder, "matmul", *wide),))
    enclosing = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    return builder.finish((ops.emit1(builder, "conv", *wide, **enclosing),))


@pytest.mark.parametrize(
    "rows,shape,weights,chosen",
    [
        (128, (256,), (256, 256), "matmul_tiles"),
        (1, (256,), (256, 256), "matmul_dot"),
        (13, (64,), (64, 64), "matmul_dot"),  # which configuring and copying would take longer than
        (13, (256,), (256, 256), "matmul_tiles"),
        (None, (256,), (256, 256), "matmul_by_rows"),
        (None, (32,), (32, 16), "matmul_dot"),
        (1, (64, 28, 28), (64, 64, 3, 3), "conv_tiles"),
        (1, (64, 7, 7), (64, 64, 3, 3), "conv_tiles"),
        (None, (64, 28, 28), (64, 64, 3, 3), "conv_tiles"),
        (1, (4, 112, 112), (16, 4, 3, 3), "conv_dot"),
    ],
)
def test_estimates_choose(rows: int | None, shape: tuple[int, ...], weights: tuple[int, ...], chosen: str) -> None:
    text = str(assign_layouts(layer(rows, shape, weights), AMX))
    assert f"lowered.{chosen}(" in text
    assert "_tiles(" not in str(assign_layouts(layer(rows, shape, weights), Target.parse("sapphirerapids")))


@pytest.mark.parametrize(
    "graph,ways",
    [
        (layer(128, (256,), (256, 256)), ("matmul_tiles", "matmul_dot")),
        (layer(1, (64, 32, 32), (64, 64, 3, 3)), ("conv_tiles", "conv_dot")),
        (linear(64, bf16), ("matmul_tiles", "matmul_packed")),
    ],
)
def test_the_choice_is_a_decision(graph: Graph, ways: tuple[str, str]) -> None:
    with deciding() as record:
        assert f"lowered.{ways[0]}(" in str(assign_layouts(graph, AMX))
    (decision,) = [d for d in record.decisions if d.key.kind == "registers"]
    assert decision.selected.label == "matrices" and decision.estimates[0] < decision.estimates[1]
    with forcing({decision.key.name: "vectors"}):
        assert f"lowered.{ways[1]}(" in str(assign_layouts(graph, AMX))


@pytest.mark.parametrize("size,selected", [(7, "flat"), (28, "flat"), (14, "matrices"), (16, "matrices")])
def test_pixels_of_several_lines_share_registers(size: int, selected: str) -> None:
    """Where these are fewer then: not of maps whose lines fill them."""
    graph = layer(1, (256, size, size), (256, 256, 3, 3))
    with deciding() as record:
        text = str(assign_layouts(graph, AMX))
    (decision,) = [d for d in record.decisions if d.key.kind == "registers"]
    assert decision.selected.label == selected and ("flat = true" in text) == (selected == "flat")
    with forcing({decision.key.name: "matrices"}):
        assert "flat = true" not in str(assign_layouts(graph, AMX))


def test_a_small_number_of_rows_go_by_dot_instructions() -> None:
    """One layout of the weights for both; a number of rows that is said to be likely counts."""
    graph = assign_layouts(layer(None, (256,), (256, 256)), AMX)
    (node,) = [n for n in graph.nodes if n.op == "lowered.matmul_by_rows"]
    least = node.of(MatmulByRowsAttrs).least
    assert 1 < least <= 16
    fewer, several = versions(node)
    assert (
        fewer.node.op == "lowered.matmul_dot"
        and several.node.op == "lowered.matmul_tiles"
        and several.condition is None
    )
    assert fewer.condition is not None and str(fewer.condition) == f"n < {least}"


@pytest.mark.parametrize("likely,chosen", [((64,), "matmul_tiles"), ((1,), "matmul_dot")])
def test_likely_rows(likely: tuple[int, ...], chosen: str) -> None:
    builder = GraphBuilder("layer")
    n = Var("n", lo=1, hi=512, likely=likely)
    x = builder.input("x", TensorType(u8, (n, const(256))))
    w = builder.param("w", TensorType(i8, (const(256), const(256))))
    wide = [ops.emit1(builder, "cast", v, dtype=i32) for v in (x, w)]
    graph = builder.finish((ops.emit1(builder, "matmul", *wide),))
    assert f"lowered.{chosen}(" in str(assign_layouts(graph, AMX))


@pytest.mark.parametrize("k,n", [(256, 256), (64, 40), (320, 33), (100, 64)])
def test_any_number_of_rows(k: int, n: int) -> None:
    w = values(i8, (k, n))
    model = tw.compile((layer(None, (k,), (k, n)), {"w": w}))
    for rows in (0, 1, 2, 5, 15, 16, 17, 31, 33, 70):
        x = values(u8, (rows, k))
        np.testing.assert_array_equal(np.asarray(model(x)), x.astype(np.int32) @ w.astype(np.int32))


def in_parts(lead: tuple[Expr, ...], *, others: bool = True) -> Graph:
    """A product of integers whose rows come in parts, with a factor for each column and a value added after."""
    builder = GraphBuilder("parts")
    x = builder.input("x", TensorType(u8, (*lead, const(256))))
    w = builder.param("w", TensorType(i8, (const(256), const(48))))
    total = ops.emit1(builder, "matmul", *(ops.emit1(builder, "cast", v, dtype=i32) for v in (x, w)))
    y = ops.emit1(builder, "cast", total, dtype=f32)
    if others:
        y = ops.emit1(builder, "mul", y, builder.param("s", TensorType(f32, (const(1), const(1), const(48)))))
        y = ops.emit1(builder, "add", y, builder.input("r", y.type))
    return builder.finish((y,))


def test_rows_in_parts_are_joined() -> None:
    """The following stages of the kernel go along; parts that fill registers stay."""
    fewer = assign_layouts(in_parts((const(96), const(1))), AMX)
    (node,) = [n for n in fewer.nodes if n.op == "lowered.matmul_tiles"]
    assert str(node.output.type) == "i32[96, 48]"
    assert [g.label for g in fuse(fewer) if g.nodes[0].op == "lowered.matmul_tiles"] == [
        "matmul_tiles + cast + mul + add"
    ]
    whole = assign_layouts(in_parts((const(6), const(16))), AMX)
    assert "reshape" not in str(whole) and "i32[6, 16, 48]" in str(whole)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("lead", [(9, 1), (96, 1), (4, 5), (2, 33), ("a", 1), ("a", "b"), (3, "b"), (1, "b")], ids=str)
def test_native_rows_in_parts(lead: tuple[int | str, int | str], others: bool) -> None:
    rng = np.random.default_rng(2)
    w, s = values(i8, (256, 48)), rng.standard_normal((1, 1, 48)).astype(np.float32)
    shape = tuple(Var(d) if isinstance(d, str) else const(d) for d in lead)
    model = tw.compile((in_parts(shape, others=others), {"w": w, "s": s} if others else {"w": w}))
    for case in ((3, 5), (1, 1), (0, 4), (20, 7)):
        sizes = [g if isinstance(d, str) else d for d, g in zip(lead, case, strict=True)]
        x = values(u8, (*sizes, 256))
        want = (x.astype(np.int32) @ w.astype(np.int32)).astype(np.float32)
        rest = rng.standard_normal(want.shape).astype(np.float32)
        want, more = (want * s + rest, (rest,)) if others else (want, ())
        np.testing.assert_allclose(np.asarray(model(x, *more)), want, rtol=1e-6, atol=1e-2)


def test_any_number_of_images() -> None:
    w = values(i8, (32, 32, 3, 3))
    model = tw.compile((layer(None, (32, 9, 20), (32, 32, 3, 3)), {"w": w}))
    for n in (1, 3):
        x = values(u8, (n, 32, 9, 20))
        same = {"x": x.shape, "filters": 32, "window": (3, 3), "pads": (1, 1, 1, 1)}
        np.testing.assert_array_equal(np.asarray(model(x)), expected(same, x, w, 0))
