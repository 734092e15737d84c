"""Products in registers that hold matrices: operators and intrinsics against NumPy, native code against both, and the
code for targets that have such registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import check
from tests.plans.test_dot_convolution import expected, split
from tests.plans.test_dots import values
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import graph_passes
from tilewright.ir.dtype import DType, bf16, f32, i8, i32, u8
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ops.lowered.by_rows import MatmulByRowsAttrs, versions
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.plans.matmul.dots import panel_multiple
from tilewright.schedule.dot_intrinsics import find_dot, find_tile_dot
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
CASES: dict[str, dict[str, Any]] = {
    "padded": {"x": (2, 20, 6, 7), "filters": 19, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "strided": {"x": (1, 5, 9, 8), "filters": 40, "window": (3, 2), "strides": (2, 2), "pads": (0, 1, 2, 0)},
    "columns apart": {"x": (1, 17, 7, 50), "filters": 16, "window": (1, 5), "strides": (1, 3), "dilations": (1, 2)},
    "one pixel": {"x": (3, 33, 1, 5), "filters": 65, "window": (1, 1)},
    "odd lines": {"x": (1, 70, 7, 17), "filters": 64, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "many": {"x": (1, 64, 14, 32), "filters": 64, "window": (3, 3), "pads": (1, 1, 1, 1)},
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


def convolution(case: dict[str, Any]) -> Graph:
    shape, filters, window, around = split(case)
    builder = GraphBuilder("convolution")
    x = builder.input("x", TensorType(u8, tuple(map(const, shape))))
    w = builder.param("w", TensorType(i8, tuple(map(const, (filters, shape[1], *window)))))
    zero = builder.param("zero", TensorType(u8, ()))
    deep, panels = shape[1] + -shape[1] % 64, panel_multiple(filters, 16)
    packed = ops.emit1(builder, "lowered.pack_conv_dot", w, block=deep, width=16, group=4, panels=panels)
    blocked = ops.emit1(builder, "lowered.block_channels", x, block=16)
    total = ops.emit1(builder, "lowered.conv_tiles", blocked, packed, zero, channels=filters, rows=16, **around)
    return builder.finish((ops.emit1(builder, "lowered.unblock_channels", total, channels=filters),))


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
    shape, filters, window, around = split(case)
    w, zero = values(i8, (filters, shape[1], *window)), values(u8, ())
    (packed,) = check("lowered.pack_conv_dot", w, block=16, width=16, group=4, panels=1)
    x = values(u8, (2, 2, 7, 4, 4))  # what stands past the channels counts for nothing
    real = np.moveaxis(x, -1, 2).reshape(2, 8, 7, 4)[:, : shape[1]]
    for given in ([x, packed, zero], [x, packed]):
        (y,) = check("lowered.conv_tiles", *given, channels=filters, rows=4, **around)
        want = expected(case, real, w, zero if len(given) == 3 else 0)
        np.testing.assert_array_equal(np.moveaxis(y, -1, 2).reshape(2, -1, *want.shape[2:])[:, :filters], want)


@pytest.mark.parametrize("m,k,n", SIZES)
def test_native_products(m: int, k: int, n: int) -> None:
    x, w = values(u8, (m, k)), values(i8, (k, n))
    for threads in (1, 2):
        got = np.asarray(tw.compile((product(m, k, n), {"w": w}), threads=threads)(x))
        np.testing.assert_array_equal(got, x.astype(np.int64) @ w.astype(np.int64))


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(bf16.numpy)


@pytest.mark.parametrize("m,k,n", SIZES)
def test_native_products_of_halves(m: int, k: int, n: int) -> None:
    """Products of bf16 are exact in f32; so many of them are summed with a rounding each."""
    x, w = halves(m, k), halves(k, n)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    for threads in (1, 2):
        got = np.asarray(tw.compile((product(m, k, n, (bf16, bf16)), {"w": w}), threads=threads)(x))
        assert got.dtype == np.float32 and (np.abs(got - exact) <= k * 2.0**-24 * size).all()


@pytest.mark.parametrize("name", CASES)
def test_native_convolutions(name: str) -> None:
    shape, filters, window, _ = split(CASES[name])
    x, w, zero = values(u8, shape), values(i8, (filters, shape[1], *window)), values(u8, ())
    for threads in (1, 2):
        model = tw.compile((convolution(CASES[name]), {"w": w, "zero": np.asarray(zero)}), threads=threads)
        np.testing.assert_array_equal(np.asarray(model(x)), expected(CASES[name], x, w, zero))


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
    given = {u8: x, i8: packed, i32: np.zeros((m, n), np.int32)}
    arrays = [
        given[b.dtype] if b.name != "pad" else np.zeros([int(d.value) for d in b.shape], np.uint8) for b in func.params
    ]
    interpret(func, arrays)
    assert name == "tile dots"
    np.testing.assert_array_equal(given[i32], x.astype(np.int64) @ w.astype(np.int64))


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
    assert find_tile_dot(u8, i8, AMX) is x86.DOTS[-2] and find_tile_dot(bf16, bf16, AMX) is x86.DOTS[-1]
    assert find_dot(u8, i8, AMX) is x86.DOTS[1]
    for name in ("x86-64-v3", "x86-64-v4", "znver4", "sapphirerapids", "generic-aarch64"):
        assert find_tile_dot(u8, i8, Target.parse(name)) is None
        assert find_tile_dot(bf16, bf16, Target.parse(name)) is None
    assert AMX.kind != Target.parse("sapphirerapids").kind
    assert AMX.fingerprint != Target.parse("sapphirerapids").fingerprint


def test_intrinsics_say_what_they_compute() -> None:
    a, b, sums = values(u8, (16, 64)), values(i8, (16, 16, 4)), np.ones((16, 16), np.int32)
    intrinsic = find_intrinsic(x86.DOTS[-2].name)
    interpret(intrinsic.description, [a, b, sums])
    flat = b.transpose(0, 2, 1).reshape(64, 16).astype(np.int64)
    np.testing.assert_array_equal(sums, a.astype(np.int64) @ flat + 1)
    copy = np.zeros((16, 16), np.int32)
    interpret(STORE[i32].description, [sums, copy])
    np.testing.assert_array_equal(copy, sums)
    interpret(ZERO[i32].description, [sums])
    assert not sums.any()


def test_the_intrinsic_of_halves_says_what_it_computes() -> None:
    a, b, sums = halves(16, 32), halves(16, 16, 2), np.ones((16, 16), np.float32)
    interpret(find_intrinsic(x86.DOTS[-1].name).description, [a, b, sums])
    flat = b.astype(np.float64).transpose(0, 2, 1).reshape(32, 16)
    np.testing.assert_allclose(sums, a.astype(np.float64) @ flat + 1, rtol=1e-5, atol=1e-5)


def test_code_for_halves() -> None:
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
        (64, f32, "fp32", "matmul_packed"),
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
    for given in (w, other):
        model.update({"w": given})
        want = x.astype(np.float64) @ given.astype(np.float64).T
        got = np.asarray(model(x)).astype(np.float64)
        assert 0 < np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) < bound


def test_instructions_that_are_slower_than_single_precision_are_not_taken() -> None:
    assert find_dot(bf16, bf16, Target.parse("znver4")) is x86.DOTS[0]
    assert find_dot(bf16, bf16, Target.parse("sapphirerapids")) is None


def test_sums_that_fit_no_registers_are_refused() -> None:
    _, func = kernel(product(64, 64, 64), AMX)
    larger = parse_func(str(func).replace("tiles: i32[32, 32]", "tiles: i32[112, 32]"))
    with pytest.raises(tw.Error, match="no registers of matrices: expected at most 6, got 14"):
        emit_llvm(larger, AMX)


def test_buffers_are_in_the_registers_one_after_another() -> None:
    """As those of a loop's versions; registers are configured once."""
    head, *body, end = str(kernel(product(32, 64, 32), AMX)[1]).splitlines()
    again = [line.replace("matmul_local_tiles", "second_tiles") for line in body]
    text = emit_llvm(
        parse_func("\n".join([head, "for a in 0..2 {", *body, "}", "for b in 0..2 {", *again, "}", end])), AMX
    )
    assert text.count("call void @llvm.x86.tdpbusd(") == 8 and text.count("call void @llvm.x86.ldtilecfg(") == 1


def test_refusals() -> None:
    def infer(op: str, x: TensorType, w: TensorType, **attrs: Any) -> None:
        ops.infer(op, [x, w], ops.attributes(op, attrs))

    packed = TensorType(i8, tuple(map(const, (1, 16, 16, 4))))
    with pytest.raises(tw.Error, match="do not fit the rows"):
        infer("lowered.matmul_tiles", TensorType(u8, (const(3), const(65))), packed, columns=16, rows=16)
    around = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    packed = TensorType(i8, tuple(map(const, (1, 1, 3, 3, 16, 16, 4))))
    with pytest.raises(tw.Error, match="do not fit the blocks"):
        x = TensorType(u8, tuple(map(const, (1, 5, 5, 5, 16))))
        infer("lowered.conv_tiles", x, packed, channels=16, rows=16, **around)


def layer(rows: int | None, shape: tuple[int, ...], weights: tuple[int, ...]) -> Graph:
    """A product of integers, or a convolution if the weights have a window; `rows` None: any number of images."""
    builder = GraphBuilder("layer")
    first = Var("n") if rows is None else const(rows)
    x = builder.input("x", TensorType(u8, (first, *map(const, shape))))
    w = builder.param("w", TensorType(i8, tuple(map(const, weights))))
    wide = [ops.emit1(builder, "cast", v, dtype=i32) for v in (x, w)]
    if len(weights) == 2:
        return builder.finish((ops.emit1(builder, "matmul", *wide),))
    around = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    return builder.finish((ops.emit1(builder, "conv", *wide, **around),))


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
        (layer(1, (64, 28, 28), (64, 64, 3, 3)), ("conv_tiles", "conv_dot")),
        (linear(64, bf16), ("matmul_tiles", "matmul_packed")),
    ],
)
def test_the_choice_is_a_decision(graph: Graph, ways: tuple[str, str]) -> None:
    with deciding() as record:
        assert f"lowered.{ways[0]}(" in str(assign_layouts(graph, AMX))
    (decision,) = [d for d in record.made if d.key.kind == "registers"]
    assert decision.taken.label == "matrices" and decision.estimates[0] < decision.estimates[1]
    with forcing({decision.key.name: "vectors"}):
        assert f"lowered.{ways[1]}(" in str(assign_layouts(graph, AMX))


def test_few_rows_go_by_dot_instructions() -> None:
    """One layout of the weights for both; a number of rows that is said to be likely counts."""
    graph = assign_layouts(layer(None, (256,), (256, 256)), AMX)
    (node,) = [n for n in graph.nodes if n.op == "lowered.matmul_by_rows"]
    least = node.of(MatmulByRowsAttrs).least
    assert 1 < least <= 16
    few, many = versions(node)
    assert few.node.op == "lowered.matmul_dot" and many.node.op == "lowered.matmul_tiles" and many.condition is None
    assert few.condition is not None and str(few.condition) == f"n < {least}"


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
    """A product of integers whose rows come in parts, with a factor for each column and a value added behind."""
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
    """What follows in the same kernel goes along; parts that fill registers stay."""
    few = assign_layouts(in_parts((const(96), const(1))), AMX)
    (node,) = [n for n in few.nodes if n.op == "lowered.matmul_tiles"]
    assert str(node.output.type) == "i32[96, 48]"
    assert [g.label for g in fuse(few) if g.nodes[0].op == "lowered.matmul_tiles"] == [
        "matmul_tiles + cast + mul + add"
    ]
    whole = assign_layouts(in_parts((const(6), const(16))), AMX)
    assert "reshape" not in str(whole) and "i32[6, 16, 48]" in str(whole)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("lead", [(9, 1), (96, 1), (4, 5), (2, 33), ("a", 1), ("a", "b"), (3, "b"), (1, "b")], ids=str)
def test_native_rows_in_parts(lead: tuple[int | str, int | str], others: bool) -> None:
    rng = np.random.default_rng(2)
    w, s = values(i8, (256, 48)), rng.standard_normal((1, 1, 48)).astype(np.float32)
    shape = tuple(Var(d) if isinstance(d, str) else const(d) for d in lead)
    model = tw.compile((in_parts(shape, others=others), {"w": w, "s": s} if others else {"w": w}))
    for given in ((3, 5), (1, 1), (0, 4), (20, 7)):
        sizes = [g if isinstance(d, str) else d for d, g in zip(lead, given, strict=True)]
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
