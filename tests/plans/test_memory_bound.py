"""Memory-bound kernels, natively, against NumPy in double precision: odd sizes, NaN, infinities, threads, every layout
that a plan treats differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import reference
from tilewright import ops, te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Expr, Var, as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.loops import Block, For, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import variables, walk
from tilewright.kernels import KernelTexts
from tilewright.plans import plan
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import passes
from tilewright.transform.loops.merge import merge_loops
from tilewright.transform.lower import lower_group

Array = np.ndarray[Any, Any]
ROWS = Var("rows", lo=1, hi=4096)


def tensor(shape: tuple[Any, ...], t: str = "f32") -> TensorType:
    return TensorType(dtype(t), tuple(const(d) if isinstance(d, int) else d for d in shape))


def run(build: Callable[[GraphBuilder], tuple[Value, ...]], *feeds: Array, threads: int = 1) -> list[Array]:
    b = GraphBuilder("case")
    graph = b.finish(build(b))
    model = tw.compile((graph, {}), threads=threads)
    return [np.asarray(v) for v in model.run({v.name: a for v, a in zip(graph.inputs, feeds, strict=True)}).values()]


def one(op: str, *arrays: Array, symbolic: bool = False, threads: int = 1, **attrs: Any) -> Array:
    def build(b: GraphBuilder) -> tuple[Value, ...]:
        shapes = [(ROWS, *a.shape[1:]) if symbolic else a.shape for a in arrays]
        values = [b.input(f"x{k}", tensor(s, str(dtype(a.dtype)))) for k, (s, a) in enumerate(zip(shapes, arrays))]  # noqa: B905
        return tuple(ops.emit(b, op, *values, **attrs))

    return run(build, *arrays, threads=threads)[0]


def data(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax64(x: Array, axis: int) -> Array:
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


SIZES = (1, 3, 31, 1000, 4097)


@pytest.mark.daily(2)
@pytest.mark.parametrize("size", SIZES)
def test_softmax_and_sums_over_rows_of_any_length(size: int) -> None:
    x = data(3, size)
    np.testing.assert_allclose(one("softmax", x, axis=1), softmax64(x, 1), rtol=2e-6, atol=1e-12)
    np.testing.assert_allclose(one("softmax", x, axis=0, symbolic=True), softmax64(x, 0), rtol=2e-6)
    total = one("reduce_sum", x, axes=(1,), keepdims=False, symbolic=True)
    np.testing.assert_allclose(total, x.astype(np.float64).sum(1), atol=1e-4)
    np.testing.assert_array_equal(one("reduce_max", x, axes=(0, 1), keepdims=True), x.max(keepdims=True))


@pytest.mark.daily(4)
@pytest.mark.parametrize("shape", [(5, 7, 33), (2, 3, 1000), (9, 20, 8)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (1, 2), (0, 1)])
def test_sums_over_any_axes(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = data(*shape)
    keepdims = len(axes) == 1
    got = one("reduce_mean", x, axes=axes, keepdims=keepdims)
    np.testing.assert_allclose(got, x.astype(np.float64).mean(axes, keepdims=keepdims), atol=1e-5)


@pytest.mark.daily(3)
@pytest.mark.parametrize("t", ["f16", "bf16", "f32", "f64", "i32", "u8"])
def test_reductions_of_every_type(t: str) -> None:
    x = (data(6, 37) * 20).astype(dtype(t).numpy) if t != "u8" else (np.abs(data(6, 37)) * 40).astype(np.uint8)
    np.testing.assert_array_equal(one("reduce_max", x, axes=(1,), keepdims=False), x.max(1))
    np.testing.assert_array_equal(one("reduce_min", x, axes=(0,), keepdims=False), x.min(0))
    np.testing.assert_array_equal(one("argmax", x, axis=1, keepdims=False, select_last_index=False), x.argmax(1))


def test_nan_and_infinity_go_through() -> None:
    x = data(5, 40)
    x[0, 17], x[1, 3], x[2, 39], x[3] = np.nan, np.inf, -np.inf, -np.inf
    x[4, 5] = x[4, 30] = np.nan
    with np.errstate(all="ignore"):
        for op, f in (("reduce_max", np.max), ("reduce_min", np.min), ("reduce_sum", np.sum)):
            for axis in (0, 1):
                np.testing.assert_allclose(one(op, x, axes=(axis,), keepdims=False), f(x, axis), rtol=1e-5)
        np.testing.assert_allclose(one("softmax", x, axis=1), softmax64(x, 1), rtol=2e-6)
    for last in (False, True):
        for op, find in (("argmax", np.argmax), ("argmin", np.argmin)):
            want = 39 - find(x[:, ::-1], axis=1) if last else find(x, axis=1)
            np.testing.assert_array_equal(one(op, x, axis=1, keepdims=False, select_last_index=last), want)


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("size", [2, 7, 15, 16, 17, 31, 64, 129, 1000])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_nan_and_infinity(size: int, axis: int) -> None:
    """The maximum of softmax leaves out NaN and its exponential takes no positive numbers; rows are what their formula
    says."""
    x = data(14, size)
    x[1, 1], x[2, 0], x[3], x[4, 1], x[5] = np.nan, np.inf, -np.inf, -np.inf, np.nan
    x[6], x[7, 0], x[8, 0], x[9, :2], x[10, -1] = -3.4e38, 3.4e38, -3e38, (np.nan, np.inf), np.nan
    x[11], x[12, 0], x[13] = np.nan, -1e6, np.inf
    x[11, 0] = 5
    with np.errstate(all="ignore"):
        want = softmax64(x, 1)
        got = [one(op, x if axis else x.T.copy(), axis=axis) for op in ("softmax", "log_softmax")]
        got = [y if axis else y.T for y in got]
        np.testing.assert_allclose(got[0], want, rtol=2e-6, atol=1e-37)
        shifted = x.astype(np.float64) - x.max(1, keepdims=True)
        total = np.exp(shifted).sum(1, keepdims=True)
        np.testing.assert_allclose(got[1], shifted - np.log(total), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", ["znver4", "haswell"])
def test_the_maximum_of_a_softmax_asks_for_no_nan(target: str) -> None:
    b = GraphBuilder("case")
    (group,) = fuse(b.finish(tuple(ops.emit(b, "softmax", b.input("x", tensor((64, 1000))), axis=1))))
    text = KernelTexts(lower_group(group, "k").func, Target.parse(target)).asm()
    assert "vmaxps" in text and "cmpunord" not in text and "vminps" not in text


def test_empty_rows() -> None:
    x = np.zeros((4, 0), np.float32)
    assert one("reduce_sum", x, axes=(1,), keepdims=False).tolist() == [0.0] * 4
    assert one("softmax", x, axis=1).shape == (4, 0)
    assert one("softmax", np.zeros((64, 0), np.float32), axis=1).shape == (64, 0)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = data(300, 1000)
    for op, attrs in (
        ("reduce_sum", {"axes": (0, 1), "keepdims": False}),
        ("reduce_sum", {"axes": (0,), "keepdims": False}),
        ("softmax", {"axis": 1}),
    ):
        assert one(op, x, **attrs).tobytes() == one(op, x, threads=2, **attrs).tobytes()


# norms as exporters write them


def decomposed_norm(b: GraphBuilder, x: Value) -> Value:
    mean = ops.emit1(b, "reduce_mean", x, axes=(1,), keepdims=True)
    d = ops.emit1(b, "sub", x, mean)
    square = ops.emit1(b, "mul", d, d)
    variance = ops.emit1(b, "reduce_mean", square, axes=(1,), keepdims=True)
    return ops.emit1(b, "div", d, ops.emit1(b, "sqrt", variance))


def norm64(x: Array) -> Array:
    wide = x.astype(np.float64)
    d = wide - wide.mean(-1, keepdims=True)
    return np.asarray(d / np.sqrt((d * d).mean(-1, keepdims=True)))


def residual_norm(b: GraphBuilder, shape: tuple[Any, ...]) -> tuple[Value, ...]:
    s = ops.emit1(b, "add", b.input("x", tensor(shape)), b.input("r", tensor(shape)))
    return s, decomposed_norm(b, s)


@pytest.mark.parametrize("size", [2, 17, 1000])
def test_residual_and_norm_are_one_kernel_with_two_outputs(size: int) -> None:
    b = GraphBuilder("case")
    (group,) = fuse(b.finish(residual_norm(b, (7, size))))
    assert len(group.outputs) == 2
    x, r = data(7, size), data(7, size, seed=1)
    for shape in ((7, size), (ROWS, size)):
        total, y = run(lambda b, shape=shape: residual_norm(b, shape), x, r)  # type: ignore[misc]
        np.testing.assert_array_equal(total, x + r)
        np.testing.assert_allclose(y, norm64(x + r), atol=3e-6)


def test_a_row_group_has_no_path_through_others() -> None:
    """sum -> matmul -> back into the normalisation: the group stops before, so that kernels can be put in order."""

    def build(b: GraphBuilder) -> tuple[Value, ...]:
        x = b.input("x", tensor((6, 6)))
        s = ops.emit1(b, "exp", x)
        total = ops.emit1(b, "reduce_sum", s, axes=(1,), keepdims=True)
        other = ops.emit1(b, "matmul", s, s)
        return (ops.emit1(b, "div", other, ops.emit1(b, "mul", total, s)),)

    x = data(6, 6)
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(run(build, x)[0], e @ e / (e.sum(1, keepdims=True) * e), rtol=1e-5)


# moves


@pytest.mark.parametrize("shape", [(17, 31), (100, 1000), (3, 40)])
def test_transpositions(shape: tuple[int, ...]) -> None:
    x = data(*shape)
    np.testing.assert_array_equal(one("transpose", x, perm=(1, 0)), x.T)
    np.testing.assert_array_equal(one("transpose", x, perm=(1, 0), symbolic=True), x.T)


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize(
    "shape",
    [(2, 8, 5, 16), (1, 17, 9, 20), (3, 16, 7, 9), (2, 33, 6, 12), (8, 32, 8, 9), (5, 40, 3, 13), (4, 7, 11, 6)],
)
def test_permutes(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    for t in ("f32", "u8", "i16", "bf16", "bool"):
        x = np.abs(data(*shape) * 9).astype(dtype(t).numpy)
        np.testing.assert_array_equal(one("transpose", x, perm=perm), x.transpose(perm))


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize(
    ("channels", "size"),
    [(16, (5, 17)), (20, (7, 7)), (40, (19, 19)), (32, (1, 1)), (64, (24, 32)), (10, (9, 21)), (5, (8, 8))],
)
def test_blocked_channels_there_and_back(channels: int, size: tuple[int, int], block: int) -> None:
    for x in (data(2, channels, *size), np.abs(data(2, channels, *size) * 40).astype(np.uint8)):
        check_blocked(x, channels, block)


def check_blocked(x: np.ndarray, channels: int, block: int) -> None:
    blocked = one("lowered.block_channels", x, block=block)
    np.testing.assert_array_equal(blocked[1, 0, -1, -1, : min(block, channels)], x[1, :block, -1, -1])
    for threads in (1, 2):
        np.testing.assert_array_equal(one("lowered.unblock_channels", blocked, channels=channels, threads=threads), x)


@pytest.mark.parametrize(("channels", "pixels", "whole"), [(64, 4096, True), (64, 1024, False), (1024, 4096, False)])
def test_short_rows_of_a_large_transposition_are_written_whole(channels: int, pixels: int, whole: bool) -> None:
    """A pass over all pixels for each tile of channels would come back to each page of the destination."""
    b = GraphBuilder("case")
    graph = b.finish((ops.emit1(b, "transpose", b.input("x", tensor((channels, pixels))), perm=(1, 0)),))
    func = plan(lower_group(fuse(graph)[0], "kernel").func, Target.parse("znver4")).func
    (block,) = (stmt for stmt in walk(func.body) if isinstance(stmt, Block) and stmt.name == "transpose")
    pixel, channel = (set(variables(it.binding)) for it in block.iters)
    order = [stmt.var for stmt in walk(func.body) if isinstance(stmt, For) and stmt.var in pixel | channel]
    assert (order[0] in pixel and order[1] in channel) == whole


@pytest.mark.parametrize(("last", "tiles"), [(2, False), (3, True), (4, True), (9, True)])
def test_tiles_of_a_transposition_have_three_rows_at_least(last: int, tiles: bool) -> None:
    b = GraphBuilder("case")
    graph = b.finish((ops.emit1(b, "transpose", b.input("x", tensor((4, 18, 32, last))), perm=(3, 0, 2, 1)),))
    func = plan(lower_group(fuse(graph)[0], "kernel").func, Target.parse("znver4")).func
    assert any(isinstance(s, Block) and s.name == "x_local" for s in walk(func.body)) == tiles


@pytest.mark.parametrize(
    ("rows", "row", "together", "beside"),
    [(520, 8, 8, 2), (516, 8, 6, 2), (514, 8, 2, 2), (515, 8, 1, 2), (520, 16, 1, 1)]
    + [(512, 8, 16, 1), (512, 4, 32, 2), (384, 8, 16, 1), (640, 8, 16, 1), (512, 16, 8, 1), (128, 32, 4, 1)],
)
def test_lines_of_several_rows_are_written_at_once(rows: int, row: int, together: int, beside: int) -> None:
    """Rows of half a line, some lines of them before the next tile; as many as divide all. Where rows begin at a
    distance of a multiple of a page, these are more lines, and fewer tiles `beside` each other, whose rows do not share
    sets."""
    shape = (row, rows, 64)
    b = GraphBuilder("case")
    graph = b.finish((ops.emit1(b, "transpose", b.input("x", tensor(shape)), perm=(2, 1, 0)),))
    func = plan(lower_group(fuse(graph)[0], "kernel").func, Target.parse("znver4")).func
    (block,) = (stmt for stmt in walk(func.body) if isinstance(stmt, Block) and stmt.name == "transpose")
    row_loops = set(variables(block.iters[1].binding))
    sizes = [as_int(stmt.extent) for stmt in walk(func.body) if isinstance(stmt, For) and stmt.var in row_loops]
    assert sizes[1:] == ([] if together == 1 else [together])
    down_loops = set(variables(block.iters[0].binding))
    tiles = [as_int(stmt.extent) for stmt in walk(func.body) if isinstance(stmt, For) and stmt.var in down_loops]
    assert tiles[1:] == [*([] if beside == 1 else [beside]), min(row, 16)]
    x = data(*shape)
    np.testing.assert_array_equal(one("transpose", x, perm=(2, 1, 0)), x.transpose(2, 1, 0))


def unblocked_sum(channels: int, pixels: int, block: int) -> PrimFunc:
    """Two blocked tensors to one unblocked one, with a bias and another unblocked one added."""
    x, y = (te.placeholder((-(-channels // block), pixels, block), "f32", name) for name in "xy")
    bias, z = te.placeholder((channels,), "f32", "bias"), te.placeholder((channels, pixels), "f32", "z")

    def element(c: Expr, p: Expr) -> Expr:
        at = c // block, p, c % block
        return x[at] + y[at] * bias[c] + z[c, p]

    return te.create_prim_func([x, y, bias, z, te.compute((channels, pixels), element, name="total")], "sum")


@pytest.mark.daily(3)
@pytest.mark.parametrize(("name", "block"), [("znver4", 16), ("haswell", 8)])
@pytest.mark.parametrize("pixels", [49, 64, 400])
def test_changes_of_layout_go_through_registers(name: str, block: int, pixels: int) -> None:
    """Also from several tensors, and where the last tiles are not full."""
    channels = 40
    texts = KernelTexts(unblocked_sum(channels, pixels, block), Target.parse(name))
    assert "x_local" in texts.loops() and "y_local" in texts.loops()
    assert texts.asm().count("vinsertps") <= 2 * block  # in the last tiles, of which few columns are wanted
    cost, least = texts.planned.chosen.cost, texts.planned.least
    assert cost is not None and cost.compute > least.compute
    x, y = (data(-(-channels // block), pixels, block, seed=k) for k in (0, 1))
    bias, z, out = data(channels, seed=2), data(channels, pixels, seed=3), np.empty((channels, pixels), np.float32)
    interpret(texts.flat, [x, y, bias, z, out])
    want = (x + y * np.resize(bias, (len(x), 1, block))).transpose(0, 2, 1).reshape(-1, pixels)[:channels] + z
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [5, 56, 70])
def test_pools_with_padding(size: int) -> None:
    x = data(1, 2, size, size + 1)
    x[0, 0, 1, 1] = np.nan
    for k, s, p in ((3, 2, 1), (5, 1, 2)):
        attrs = {"kernel": (k, k), "strides": (s, s), "pads": (p,) * 4, "dilations": (1, 1)}
        for op in ("max_pool", "avg_pool"):
            (want,) = reference(op, [x], attrs)
            np.testing.assert_allclose(one(op, x, **attrs), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shape,k,padding,measured",
    [
        ((1, 128, 1000), 3, 0, 7.2),
        ((1, 128, 1000), 3, 1, 33.7),
        ((1, 128, 1000), 5, 0, 9.4),
        ((1, 128, 1000), 7, 3, 28.7),
        ((1, 64, 112, 112), 3, 0, 60.0),
        ((1, 64, 40, 40), 3, 1, 47.9),
        ((1, 64, 40, 40), 7, 0, 58.5),
    ],
)
def test_windows_side_by_side_take_about_their_estimate(
    shape: tuple[int, ...], k: int, padding: int, measured: float
) -> None:
    """Against microseconds of calls on a Zen 4 of 3.7 GHz, 2026-11-25. The windows do not wait for one another."""
    b, rank = GraphBuilder("case"), len(shape) - 2
    window = {"kernel": (k,) * rank, "strides": (k,) * rank, "pads": (padding,) * 2 * rank, "dilations": (1,) * rank}
    (group,) = fuse(b.finish((ops.emit1(b, "max_pool", b.input("x", tensor(shape)), **window),)))
    machine = {"l2_bandwidth": 32.0, "l3_bandwidth": 27.0, "memory_bandwidth": 8.0, "frequency": 3.7}
    target = Target.parse("znver4").adjusted(**machine)
    cost = plan(lower_group(group, "k").func, target).chosen.cost
    assert cost is not None
    assert 0.5 <= measured / (cost.cycles / target.frequency / 1e3) <= 2


@pytest.mark.parametrize("largest", [True, False])
def test_top_k(largest: bool) -> None:
    x = data(4, 333)
    x[1, 7], x[2, 40:60] = np.nan, 1.5
    for k in (1, 40):
        want = reference("topk", [x], {"axis": 1, "k": k, "largest": largest})

        def build(b: GraphBuilder, k: int = k) -> tuple[Value, ...]:
            return tuple(ops.emit(b, "topk", b.input("x", tensor(x.shape)), axis=1, k=k, largest=largest))

        for a, w in zip(run(build, x), want, strict=True):
            np.testing.assert_array_equal(a, w)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumulative_sums(axis: int) -> None:
    x = np.round(data(5, 33, 70) * 4)
    for reverse, exclusive in ((False, False), (True, False), (False, True), (True, True)):
        attrs = {"axis": axis, "reverse": reverse, "exclusive": exclusive}
        np.testing.assert_array_equal(one("cumsum", x, **attrs), reference("cumsum", [x], attrs)[0])


# larger than the last cache


def large(b: GraphBuilder, target: Target) -> Graph:
    n = target.l3 // 4
    return b.finish((ops.emit1(b, "relu", b.input("x", tensor((n // 1024, 1024)))),))


def test_large_outputs_are_streamed_small_ones_are_not() -> None:
    target = Target.parse("znver4")
    (group,) = fuse(large(GraphBuilder("large"), target))
    text = KernelTexts(lower_group(group, "k").func, target)
    assert "!nontemporal" in text.llvm() and "sfence" in text.asm()
    assert any("vmovntps" in line and "zmm" in line for line in text.asm().splitlines())  # where the output is aligned
    assert any("vmovntps" in line and "xmm" in line for line in text.asm().splitlines())  # where it is so to 16 bytes
    b = GraphBuilder("small")
    (group,) = fuse(b.finish((ops.emit1(b, "relu", b.input("x", tensor((10, 1024)))),)))
    assert "!nontemporal" not in KernelTexts(lower_group(group, "k").func, target).llvm()


def mover(n: int) -> Graph:
    """An optimiser with one mean, of clipped gradients: new parameters and means, one after the other."""
    b = GraphBuilder("mover")
    p, m, g = (b.input(name, tensor((n,))) for name in "pmg")
    norm = ops.emit1(b, "reduce_sum", ops.emit1(b, "mul", g, g), axes=(0,), keepdims=True)
    mean = ops.emit1(b, "add", m, ops.emit1(b, "div", g, norm))
    moved = ops.emit1(b, "sub", p, ops.emit1(b, "mul", mean, mean))
    return b.finish((ops.emit1(b, "concat", moved, mean, axis=0),))


def small_caches() -> Target:
    """This machine with caches of 16 and 128 KiB after the first one."""
    return Target.host().adjusted(l2=16 << 10, l3=128 << 10)


def test_results_that_the_next_call_does_not_find_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of a call, here more than the last cache, leave no room for them. A value that is read in the kernel
    itself comes from registers, not from memory that it was just written to."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    target = small_caches()
    llvm = {n: tw.compile((mover(n), {}), target=target).show("llvm") for n in (2048, 16384)}
    assert "!nontemporal" not in llvm[2048]
    assert "!nontemporal" in llvm[16384] and "llvm.x86.sse.sfence" in llvm[16384]
    vector = f"load <{target.lanes(4)} x float>"
    assert llvm[16384].count(vector) < llvm[2048].count(vector)
    n = 16384 + 24
    arrays = [np.random.default_rng(k).standard_normal(n).astype(np.float32) for k in range(3)]
    p, m, g = arrays
    for threads in (1, 2):
        model = tw.compile((mover(n), {}), target=target, threads=threads)
        got = np.asarray(model(*arrays))
        mean = m + g / (g * g).sum()
        np.testing.assert_allclose(got, np.concatenate([p - mean * mean, mean]), rtol=1e-5, atol=1e-5)


def test_results_that_another_kernel_reads_are_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    b = GraphBuilder("g")
    y = ops.emit1(b, "relu", b.input("x", tensor((128, 256))))
    total = ops.emit1(b, "reduce_sum", y, axes=(0,), keepdims=False)
    graphs = b.finish((y, total)), replace(b.finish((y,)), nodes=tuple(b.nodes[:1]))
    read, alone = (tw.compile((g, {}), target=small_caches()).show("llvm") for g in graphs)
    assert "!nontemporal" not in read and "!nontemporal" in alone


def test_streamed_results_are_right_wherever_the_output_starts() -> None:
    b = GraphBuilder("large")
    graph = large(b, Target.host())
    model = tw.compile((graph, {}), threads=2)
    rows = graph.inputs[0].shape[0].value  # type: ignore[attr-defined]
    x = data(rows, 1024)
    room = np.empty(x.size + 64, np.float32)
    line = -room.ctypes.data % 64 // 4
    for start in (line, line + 1, line + 4, line + 8, line + 12, line + 15):
        y = room[start : start + x.size].reshape(x.shape)
        model(x, out=(y,))
        np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("starts", "place"), [((16,), 0), ((2128,), 2112), ((16, 2128), 2112), ((3000, 40), 2944), ((4092,), 4032)]
)
def test_huge_outputs_start_just_before_the_inputs_in_their_page(starts: tuple[int, ...], place: int) -> None:
    b = GraphBuilder("sum")
    total = b.input("x0", tensor((4096, 1024)))
    for k in range(1, len(starts)):
        total = ops.emit1(b, "add", total, b.input(f"x{k}", tensor((4096, 1024))))
    model = tw.compile((b.finish((ops.emit1(b, "relu", total),)), {}))
    inputs = []
    for k, start in enumerate(starts):
        room = np.empty((4096 + 4) * 1024, np.float32)
        first = (start - room.ctypes.data) % 4096 // 4
        inputs.append(room[first : first + (4096 << 10)].reshape(4096, 1024))
        inputs[-1][...] = k - 0.5
    (buffer,) = model.empty_outputs(*inputs).values()
    assert buffer.ctypes.data % 4096 == place
    model(*inputs, out=(buffer,))
    np.testing.assert_array_equal(buffer, np.maximum(sum(inputs), 0))


def test_large_outputs_start_with_a_line() -> None:
    def build(b: GraphBuilder, rows: int) -> Graph:
        return b.finish((ops.emit1(b, "relu", b.input("x", tensor((rows, 1024)))),))

    for rows in (64, 300, 4096):
        model = tw.compile((build(GraphBuilder("case"), rows), {}))
        x = data(rows, 1024)
        (buffer,) = model.empty_outputs(x).values()
        assert buffer.ctypes.data % 64 == 0 and buffer.flags.c_contiguous
        model(x, out=(buffer,))
        np.testing.assert_array_equal(buffer, np.maximum(x, 0))
        _, (timed,), _ = model.step_clock(x)._keep  # profiles time calls as they are
        assert timed.ctypes.data % 64 == 0


@pytest.mark.daily(2)
@pytest.mark.parametrize("shape", [(600_001,), (3, 200_003), (500, 1111), (2, 3, 100_000)])
def test_loops_that_compute_much_ask_for_their_inputs(shape: tuple[int, ...]) -> None:
    """Inputs beyond the second level, two of them and a small one, in one loop or several, with tails."""

    def build(b: GraphBuilder) -> tuple[Value, ...]:
        x, y, z = (b.input(name, tensor(s)) for name, s in (("x", shape), ("y", shape), ("z", shape[-1:])))
        return (ops.emit1(b, "gelu", ops.emit1(b, "add", ops.emit1(b, "add", x, z), y)),)

    b = GraphBuilder("case")
    (group,) = fuse(b.finish(build(b)))
    text = KernelTexts(lower_group(group, "k").func, Target.parse("haswell")).llvm()
    assert "call void @llvm.prefetch" in text
    feeds = [data(*s, seed=k) for k, s in enumerate((shape, shape, shape[-1:]))]
    x, y, z = feeds
    want = reference("gelu", [((x + z) + y).astype(np.float64)], {})[0]
    for threads in (1, 2):
        np.testing.assert_allclose(run(build, *feeds, threads=threads)[0], want, rtol=3e-6, atol=1e-6)


def test_light_loops_and_small_inputs_ask_for_nothing() -> None:
    for op, rows in (("relu", 4096), ("gelu", 16)):
        b = GraphBuilder("case")
        (group,) = fuse(b.finish((ops.emit1(b, op, b.input("x", tensor((rows, 1024)))),)))
        assert "llvm.prefetch" not in KernelTexts(lower_group(group, "k").func, Target.parse("haswell")).llvm()


def test_long_rows_are_retained_in_the_output() -> None:
    def build(b: GraphBuilder, length: int) -> Graph:
        return b.finish((ops.emit1(b, "softmax", b.input("x", tensor((2, length))), axis=1),))

    for length, retained in ((100, True), (20000, False)):
        (group,) = fuse(build(GraphBuilder("case"), length))
        text = KernelTexts(lower_group(group, "k").func, Target.parse("x86-64-v3")).loops()
        assert ("alloc exponent" in text) == retained
        x = data(2, length)
        model = tw.compile((build(GraphBuilder("case"), length), {}))
        np.testing.assert_allclose(np.asarray(model(x)), softmax64(x, 1), rtol=3e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["haswell", "znver4"])
@pytest.mark.parametrize(("rows", "length"), [(3, 384), (3, 1000), (64, 128)])
def test_a_sum_joins_the_loop_that_makes_its_terms(rows: int, length: int, name: str) -> None:
    b = GraphBuilder("case")
    (group,) = fuse(b.finish((ops.emit1(b, "softmax", b.input("x", tensor((rows, length))), axis=1),)))
    target = Target.parse(name)
    func = plan(lower_group(group, "k").func, target).func
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, length)).astype(np.float32), np.empty((rows, length), np.float32)]
    for pass_name, run_pass in passes(target):
        before, func = func, run_pass(func)
        if pass_name == "merge loops":
            assert func is not before
            results = []
            for version in (before, func):
                copies = [a.copy() for a in arrays]
                interpret(version, dict(zip((p.name for p in version.params), copies, strict=True)))
                results.append(copies[1])
            np.testing.assert_array_equal(*results)
            np.testing.assert_allclose(results[1], softmax64(arrays[0], 1), rtol=3e-6)


def test_windows_beside_one_another_go_alone() -> None:
    """Nothing in one holds up the next, as the fold of a row's lanes does; together they would go through memory."""
    target = Target.parse("x86-64-v3")

    def together(op: str, shape: tuple[int, ...], **attrs: Any) -> int:
        b = GraphBuilder("g")
        x = b.input("x", TensorType(dtype("f32"), tuple(const(n) for n in shape)))
        (group,) = fuse(b.finish((ops.emit1(b, op, x, **attrs),)))
        return plan(lower_group(group, "k").func, target).chosen.knob("together")

    window = {"kernel": (7,), "strides": (7,), "pads": (0, 3), "dilations": (1,), "count_include_pad": False}
    assert together("avg_pool", (1, 32, 2003), **window) == 1
    assert together("softmax", (32, 286, 7), axis=2) > 1


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize(
    "shape",
    [(64, 1), (64, 7), (64, 128), (34, 129), (37, 31), (3, 32, 100), (68, 511), (214, 16), (5, 83, 10), (39, 33)],
)
def test_short_rows_together(shape: tuple[int, ...]) -> None:
    x = data(*shape)
    x[1, ..., 0], x[2, ..., -1], x[3 % len(x)] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        want = softmax64(x, -1)
        np.testing.assert_allclose(one("softmax", x, axis=-1), want, rtol=2e-6, atol=1e-12)
        np.testing.assert_array_equal(one("softmax", x, axis=-1), one("softmax", x, axis=-1, threads=2))
        got = one("log_softmax", x, axis=-1)
        np.testing.assert_allclose(np.exp(got.astype(np.float64)), want, rtol=1e-5, atol=1e-12)
    y = data(*shape)
    centered = y - y.astype(np.float64).mean(-1, keepdims=True)
    normal = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(one("layer_norm", y, axis=len(shape) - 1, epsilon=1e-5), normal, atol=2e-5)


@pytest.mark.parametrize(
    ("op", "rows", "count"),
    [
        ("log_softmax", 214, 8),  # 26 groups and six rows
        ("log_softmax", 172, 8),  # rather than four
        ("log_softmax", 31, 8),
        ("log_softmax", 5, 5),
        ("log_softmax", 3, 1),  # two or three gain nothing
        ("layer_norm", 131, 8),
        ("rms_norm", 131, 1),  # one reduction, whose chain the next row's hides
        ("rms_norm", 172, 1),
    ],
)
def test_a_last_group_of_rows_may_have_fewer(op: str, rows: int, count: int) -> None:
    """A function of many operations for each row is computed for a vector of rows."""
    b = GraphBuilder("case")
    attrs = {"axis": 1} if op == "log_softmax" else {"axis": 1, "epsilon": 1e-5}
    (group,) = fuse(b.finish(tuple(ops.emit(b, op, b.input("x", tensor((rows, 16))), **attrs))))
    planned = plan(lower_group(group, "k").func, Target.parse("znver4"))
    assert planned.chosen.knob("together") == count
    inner = {s.extent: str(s.body) for s in walk(planned.func.body) if isinstance(s, For) and s.kind == "vectorized"}
    assert any(is_const(n, 8) and " log(" in body for n, body in inner.items()) == (op == "log_softmax" and count == 8)


@pytest.mark.parametrize(("length", "vectors"), [(4, True), (8, False), (32, False)])
def test_numbers_of_rows_are_vectors_where_rows_are_summed_in_them(length: int, vectors: bool) -> None:
    """Lanes of a row are folded to a number that is stored: a vector of eight of them would wait for all the stores."""
    b = GraphBuilder("case")
    x = b.input("x", tensor((128, length)))
    (group,) = fuse(b.finish(tuple(ops.emit(b, "layer_norm", x, axis=1, epsilon=1e-5))))
    planned = plan(lower_group(group, "k").func, Target.parse("znver4"))
    assert planned.chosen.knob("together") == 8
    loops = [s for s in walk(planned.func.body) if isinstance(s, For) and s.kind == "vectorized"]
    assert any(is_const(s.extent, 8) and "sqrt(" in str(s.body) for s in loops) == vectors


PIPELINED = [(128, 128), (128, 1024), (20, 610), (8, 1025), (331, 600), (2, 40, 700)]


@pytest.mark.daily(2)
@pytest.mark.costly(3)
@pytest.mark.parametrize(
    ("op", "shape"),
    [*((op, s) for op in ("softmax", "log_softmax") for s in PIPELINED), ("softmax", (3, 64, 192)),
     ("softmax", (2, 8, 16, 256)), ("softmax", (37, 131))],
)  # fmt: skip
def test_stages_go_one_after_the_other(op: str, shape: tuple[int, ...]) -> None:
    """Where there are registers enough, so not with AVX2; with every number of threads the same."""
    b = GraphBuilder("case")
    (group,) = fuse(b.finish(tuple(ops.emit(b, op, b.input("x", tensor(shape)), axis=-1))))
    func = lower_group(group, "k").func
    for name, pipelined in (("znver4", 1), ("haswell", 0)):
        texts = KernelTexts(func, Target.parse(name))
        assert texts.planned.chosen.knob("pipeline") == pipelined
        x = data(*shape) * 5
        y = np.empty_like(x)
        if x.size < 1 << 15:
            interpret(texts.flat, [x, y])
            want = softmax64(x, -1)
            np.testing.assert_allclose(y, want if op == "softmax" else np.log(want), rtol=1e-5, atol=1e-6)
    x = data(*shape)
    np.testing.assert_array_equal(one(op, x, axis=-1), one(op, x, axis=-1, threads=2))


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize(("columns", "fold"), [(64, 1), (128, 8), (256, 1), (768, 1)])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_lanes_of_short_rows_are_folded_together(op: str, columns: int, fold: int) -> None:
    """In vectors to the end: no single element is taken out of one."""
    shape = (512, columns)
    b = GraphBuilder("case")
    (group,) = fuse(b.finish(tuple(ops.emit(b, op, b.input("x", tensor(shape)), axis=-1))))
    texts = KernelTexts(lower_group(group, "k").func, Target.parse("znver4"))
    assert texts.planned.chosen.knob("fold") == fold
    assert ("extractelement" in texts.llvm()) == (fold == 1)
    x = data(*shape) * 5
    x[3, 5], x[4, 7], x[5], x[6, 1], x[9] = -np.inf, np.nan, -np.inf, np.inf, 1e30
    y, odd = one(op, x, axis=-1), ~np.isfinite(x.max(-1))
    assert np.isnan(y[odd]).any(-1).all() and np.isnan(y[[4, 5]]).all()
    want = softmax64(x[~odd], -1)
    want = want if op == "softmax" else np.log(np.maximum(want, 1e-300))
    got, seen = y[~odd], np.isfinite(x[~odd]) & (want > -600)
    np.testing.assert_allclose(got[seen], want[seen], rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(y, one(op, x, axis=-1, threads=2))


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("shape", "count"), [((3, 64, 192), 8), ((7, 200), 7), ((40, 127), 8), ((331, 300), 6), ((12, 9, 150), 8)]
)
def test_what_a_whole_row_takes_is_done_for_rows_together(shape: tuple[int, ...], count: int) -> None:
    """Logarithms of single numbers would take longer than the vectors of their rows."""
    b = GraphBuilder("case")
    (group,) = fuse(b.finish(tuple(ops.emit(b, "log_softmax", b.input("x", tensor(shape)), axis=-1))))
    chosen = plan(lower_group(group, "k").func, Target.parse("znver4")).chosen
    assert chosen.knob("pipeline") == 0 and chosen.knob("together") == count
    x = data(*shape)
    np.testing.assert_array_equal(one("log_softmax", x, axis=-1), one("log_softmax", x, axis=-1, threads=2))


def test_what_waits_for_memory_stays_row_by_row() -> None:
    b = GraphBuilder("case")
    shape = (24576, 768)
    (group,) = fuse(b.finish(tuple(ops.emit(b, "layer_norm", b.input("x", tensor(shape)), axis=1, epsilon=1e-5))))
    assert plan(lower_group(group, "k").func, Target.parse("znver4")).chosen.knob("pipeline") == 0


def test_rows_that_read_others_stay_separate() -> None:
    """Loops over rows become one only if each row's statements touch that row alone."""
    for read, merges in (("i", True), ("3 - i", False)):
        func = parse_func(f"""
            func @rows(x: f32[4, 64], y: f32[4, 64], total: f32[4, 32]) {{
              for i in 0..4 {{ for j in 0..2 {{ for v in 0..32 vectorized {{
                y[i, j * 32 + v] = exp(x[i, j * 32 + v])
              }} }} }}
              for i in 0..4 {{
                for v in 0..32 vectorized {{ total[i, v] = 0.0 }}
                for j in 0..2 {{ for v in 0..32 vectorized {{
                  total[i, v] = total[i, v] + y[{read}, j * 32 + v]
                }} }}
              }}
            }}
        """)
        merged = merge_loops(func)
        assert (merged is not func) == merges
        results = []
        for version in (func, merged):
            arrays = {"x": data(4, 64), "y": np.empty((4, 64), np.float32), "total": np.empty((4, 32), np.float32)}
            interpret(version, arrays)
            results.append(arrays["total"])
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("shape", [(3, 7), (3, 64), (5, 100)])
def test_a_sum_does_not_join_the_loop_that_takes_the_maximum(shape: tuple[int, int]) -> None:
    """Along an outer dimension the terms read a maximum that is not there before the last row."""
    b = GraphBuilder("case")
    model = tw.compile((b.finish((ops.emit1(b, "log_softmax", b.input("x", tensor(shape)), axis=0),)), {}))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(np.asarray(model(x)), np.log(softmax64(x, 0)), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("width", ["n", "100"])
def test_windows_of_any_width_are_scheduled(width: str) -> None:
    """Results side by side, in steps where their number is not known."""
    func = parse_func(f"""
        func @window(x: f32[{width}], y: f32[n, 1, {width}]) where n in 1..200 {{
          buffer t: f32[2]
          for h in 0..2 {{ for q in 0..3 {{
            block t(e = spatial(2): h, f = reduce(3): q) {{ init {{ t[e] = 0.0 }} t[e] = t[e] + x[0] }}
          }} }}
          for i in 0..n {{ for j in 0..1 {{ for k in 0..{width} {{ for r in 0..2 {{
            block y(a = spatial(n): i, b = spatial(1): j, c = spatial({width}): k, d = reduce(2): r) {{
              init {{ y[a, b, c] = 0.0 }}
              y[a, b, c] = y[a, b, c] + t[d] * x[c]
            }}
          }} }} }} }}
        }}
    """)
    planned = plan(func, Target.host()).func
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    got = np.empty((100, 1, 100), np.float32)
    interpret(planned, {"x": x, "y": got})
    np.testing.assert_allclose(got[:, 0], np.broadcast_to(6 * x[0] * x, (100, 100)), rtol=2e-6)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_maps_go_to_blocks_by_square_tiles(name: str) -> None:
    """Neither as one long vector nor element by element: a tile is as many pixels as a vector has lanes."""
    target = Target.parse(name)
    lanes = target.lanes(4)
    b = GraphBuilder("case")
    (group,) = fuse(
        b.finish((ops.emit1(b, "lowered.block_channels", b.input("x", tensor((1, 48, 7, 8))), block=lanes),))
    )
    text = str(plan(lower_group(group, "k").func, target).func)
    assert text.count(f"in 0..{lanes} vectorized") == 2 and text.count(f"in 0..{lanes} unrolled") == 2


@pytest.mark.parametrize(("length", "loops"), [(40, 0), (56, 0), (640, 1)])
def test_a_lone_fold_stays_in_registers(length: int, loops: int) -> None:
    """One number is left of a row: partial results never go to memory, and a few steps over the row are written out."""
    b = GraphBuilder("case")
    (group,) = fuse(
        b.finish((ops.emit1(b, "reduce_sum", b.input("x", tensor((60, length))), axes=(1,), keepdims=False),))
    )
    planned = plan(lower_group(group, "k").func, Target.parse("znver4"))
    rows = [s for s in walk(planned.func.body) if isinstance(s, For) and is_const(s.extent, 60)]
    assert len(rows) == 1, "each row at once"
    steps = [s for s in walk(rows[0].body) if isinstance(s, For) and s.kind == "serial" and not is_const(s.extent, 1)]
    assert len(steps) == loops


@pytest.mark.parametrize(("rows", "strip"), [(2, 64), (6, 64), (7, 1024), (100, 1024)])
def test_a_small_number_of_rows_are_summed_in_registers(rows: int, strip: int) -> None:
    b = GraphBuilder("case")
    y = ops.emit1(b, "reduce_sum", b.input("x", tensor((rows, 6400))), axes=(0,), keepdims=False)
    (group,) = fuse(b.finish((y,)))
    planned = plan(lower_group(group, "k").func, Target.parse("x86-64-v3"))
    assert planned.chosen.knob("strip") == strip


@pytest.mark.parametrize(
    ("shape", "order", "box"),
    [
        ((2, 64, 43, 8), (3, 2, 1, 0), [2, 16, 4, 4]),  # runs of 32 elements, sixteen rows
        ((3, 500, 40), (2, 1, 0), [3, 10, 16]),  # thirty elements of sixteen rows
        ((2, 12, 64, 2, 20), (4, 3, 2, 1, 0), [2, 12, 1, 2, 4]),
    ],
)
def test_boxes_of_transpositions_stay_in_the_first_level(
    shape: tuple[int, ...], order: tuple[int, ...], box: list[int]
) -> None:
    """Some lines of the destination in a few rows, which may all fall into the same sets."""
    b = GraphBuilder("case")
    (group,) = fuse(b.finish((ops.emit1(b, "transpose", b.input("x", tensor(shape)), perm=order),)))
    planned = plan(lower_group(group, "k").func, Target.parse("znver4"))
    loops = [as_int(s.extent) for s in walk(planned.func.body) if isinstance(s, For)]
    assert loops[-len(box) :] == box
    x = data(*shape)
    np.testing.assert_array_equal(one("transpose", x, perm=order), x.transpose(order))
