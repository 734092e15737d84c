"""Plans: what they schedule computes what was meant, by interpretation and natively, on odd and on symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import BATCH, numbers, tensor
from tilewright import ops, te
from tilewright.arith import simplify
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.compiler import graph_passes
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import substitute
from tilewright.ops import parse_func
from tilewright.ops.interpret import run_graph
from tilewright.plans import plan
from tilewright.plans.framework.decision_key import Key
from tilewright.plans.framework.tiles import row_limit
from tilewright.plans.matmul.tiles import matmul_tile
from tilewright.schedule.trace import parse_trace
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.memory import is_alias
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

ZEN4 = Target.parse("znver4")
Build = Callable[[GraphBuilder], Value]


def no_key() -> Key:
    raise AssertionError("nothing is forced")


def graph_of(build: Build) -> Graph:
    b = GraphBuilder("case")
    return b.finish((build(b),))


def conv(c: int, k: int, size: int, window: int = 3, stride: int = 1, pad: int = 1, batch: Any = 1) -> Build:
    def build(b: GraphBuilder) -> Value:
        x, w = b.input("x", tensor(batch, c, size, size + 1)), b.param("w", tensor(k, c, window, window))
        y = ops.emit1(b, "conv", x, w, pads=(pad,) * 4, strides=(stride,) * 2, dilations=(1, 1), groups=1)
        return ops.emit1(b, "relu", ops.emit1(b, "add", y, b.param("bias", tensor(1, k, 1, 1))))

    return build


def matmul(m: Any, k: int, n: int, transpose: bool = False) -> Build:
    def build(b: GraphBuilder) -> Value:
        x, w = b.input("x", tensor(m, k)), b.param("w", tensor(*((n, k) if transpose else (k, n))))
        y = ops.emit1(b, "matmul", x, w, transpose_b=transpose)
        return ops.emit1(b, "tanh", ops.emit1(b, "add", y, b.param("bias", tensor(n))))

    return build


def rows(op: str, *shape: Any, **attrs: Any) -> Build:
    return lambda b: ops.emit1(b, op, b.input("x", tensor(*shape)), **attrs)


def layer_norm(b: GraphBuilder) -> Value:
    x = b.input("x", tensor(BATCH, 5, 100))
    return ops.emit1(b, "layer_norm", x, b.param("s", tensor(100)), b.param("o", tensor(100)), axis=-1, epsilon=1e-5)


def products(b: GraphBuilder) -> Value:
    x, y = b.input("x", tensor(BATCH, 3, 7, 20)), b.input("y", tensor(BATCH, 3, 9, 20))
    return ops.emit1(b, "matmul", x, y, transpose_b=True)


CASES: dict[str, Build] = {
    "conv full blocks": conv(16, 32, 5),
    "conv odd channels": conv(17, 20, 4),
    "conv image": conv(3, 20, 9, window=5, stride=2, pad=2),
    "conv pointwise, symbolic batch": conv(16, 100, 5, window=1, pad=0, batch=BATCH),
    "conv strided": conv(16, 16, 7, stride=2, batch=BATCH),
    "conv one pixel": conv(16, 16, 1),
    "matmul": matmul(15, 20, 100),
    "matmul one row": matmul(1, 50, 130, transpose=True),
    "matmul symbolic rows": matmul(BATCH, 17, 64, transpose=True),
    "matmul few columns": matmul(BATCH, 64, 6),
    "matmul one of everything": matmul(1, 1, 1),
    "products of activations": products,
    "softmax": rows("softmax", BATCH, 4, 37, axis=2),
    "softmax over a middle dimension": rows("softmax", 3, 5, 40, axis=1),
    "layer norm": layer_norm,
    "mean of a plane": rows("reduce_mean", BATCH, 20, 6, 7, axes=(2, 3), keepdims=False),
    "sum of everything": rows("reduce_sum", 7, 50, axes=(0, 1), keepdims=False),
    "max over rows": rows("reduce_max", 50, 33, axes=(0,), keepdims=True),
    "argmax": rows("argmax", BATCH, 50, axis=1, keepdims=False, select_last_index=False),
    "transpose": rows("transpose", BATCH, 9, 33, 5, perm=(0, 3, 1, 2)),
    "pooling": rows("max_pool", 2, 20, 9, 9, kernel=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1)),
    "pointwise": rows("sigmoid", BATCH, 3, 33),
    "slice": lambda b: ops.emit1(
        b, "reshape", ops.emit1(b, "transpose", b.input("x", tensor(4, 6)), perm=(1, 0)), shape=(const(24),)
    ),
}


def kernels(graph: Graph, target: Target) -> list[KernelCall]:
    for _, function in graph_passes(target):
        graph = function(graph)
    split = split_prepare(graph)
    groups = [g for part in (split.prepare, split.run) for g in fuse(part) if not is_alias(g)]
    return [lower_group(g, f"k{i}") for i, g in enumerate(groups)]


def arguments(kernel: KernelCall, batch: int) -> list[Any]:
    rng = np.random.default_rng(0)
    result = []
    for buffer in kernel.func.params:
        shape = [as_int(simplify(substitute(d, {BATCH: const(batch)}))) or 0 for d in buffer.shape]
        result.append(rng.standard_normal(shape).astype(buffer.dtype.numpy))
    return result


def as_declared(func: PrimFunc, arrays: list[Any]) -> list[Any]:
    """The arrays' memory in the shapes of the parameters: packing takes several dimensions of a filter as one."""
    shapes = [[getattr(d, "value", -1) for d in buffer.shape] for buffer in func.params]
    return [a if -1 in shape else a.reshape(shape) for a, shape in zip(arrays, shapes, strict=True)]


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("case", CASES)
def test_scheduled_and_lowered_mean_the_same(case: str) -> None:
    for kernel in kernels(graph_of(CASES[case]), ZEN4):
        scheduled = plan(kernel.func, ZEN4).func
        flat = lower_loops(scheduled, ZEN4)
        for batch in {1, 3} if BATCH in kernel.func.symbols else {1}:
            ordinary, planned = arguments(kernel, batch), arguments(kernel, batch)
            interpret(kernel.func, ordinary)
            interpret(scheduled, as_declared(scheduled, planned))
            lowered = [*arguments(kernel, batch)]
            for buffer in flat.params[len(lowered) :]:
                shape = [batch if d is BATCH else getattr(d, "value", 1) for d in buffer.shape]
                lowered.append(np.full(shape, np.nan, buffer.dtype.numpy))
            interpret(flat, as_declared(flat, lowered))
            for a, b, c in zip(ordinary, planned, lowered, strict=False):
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(c, a, rtol=1e-4, atol=1e-4)


@pytest.mark.daily(5)
@pytest.mark.parametrize("case", CASES)
def test_native_code_agrees_with_the_reference(case: str) -> None:
    graph = graph_of(CASES[case])
    for batch in (1, 2, 5, 8) if BATCH in graph.symbols else (1,):
        inputs, params = numbers(graph, batch)
        model = tw.compile((graph, params))
        (expected,) = run_graph(graph, inputs, params).values()
        (got,) = model.run(inputs).values()
        assert got.shape == expected.shape and got.dtype == expected.dtype
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("case", ["conv odd channels", "matmul symbolic rows", "softmax"])
def test_a_plan_is_a_trace_that_replays(case: str) -> None:
    for kernel in kernels(graph_of(CASES[case]), ZEN4):
        planned = plan(kernel.func, ZEN4)
        trace = parse_trace(str(planned.schedule.trace))
        assert trace == planned.schedule.trace
        assert trace.replay(kernel.func).func == planned.schedule.func
        assert parse_func(str(planned.func)) == planned.func


def test_tiles_fit_the_registers_and_the_work() -> None:
    for rows_, columns in ((1, 64), (128, 768), (7, 512), (19, 128), (1024, 1024), (3, 5)):
        tile = matmul_tile(no_key, const(rows_), columns, 256, tensor(1).dtype, ZEN4)
        vectors = tile.width // 16
        assert tile.rows * vectors + vectors < ZEN4.registers
        assert tile.width < columns + 16


def test_rows_at_the_distance_of_a_cache_way_are_limited() -> None:
    assert row_limit(4096, ZEN4) == 6
    assert row_limit(3072, ZEN4) > 14


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 1), (2, 1, 3), (1, 1, 8)])
def test_products_of_a_small_number_of_elements(shape: tuple[int, ...]) -> None:
    """Sums of products over two dimensions whose results are a few elements, or a single one."""
    x = te.placeholder((shape[-1],), name="x")
    r, s = te.reduce_axis(2, "r"), te.reduce_axis(3, "s")
    y = te.compute(shape, lambda a, b, c: te.sum(x[c] * x[c], axis=(r, s)), name="y")
    arrays = [np.arange(1, shape[-1] + 1, dtype=np.float32), np.zeros(shape, np.float32)]
    interpret(lower_loops(plan(te.create_prim_func([x, y]), Target.host()).func, Target.host()), arrays)
    np.testing.assert_array_equal(arrays[1], np.broadcast_to(6 * arrays[0] ** 2, shape))


def test_what_one_output_makes_of_others_shares_its_vectors() -> None:
    """An optimiser's means and the parameters that they move are such outputs: memory is walked through once after the
    norm."""
    g, m = te.placeholder((1000,), name="g"), te.placeholder((1000,), name="m")
    r = te.reduce_axis(1000, "r")
    norm = te.compute((1,), lambda _: te.sum(g[r] * g[r], r), name="norm")
    mean = te.compute((1000,), lambda i: m[i] * 0.9 + g[i] / norm[0], name="mean")
    square = te.compute((1000,), lambda i: g[i] * g[i] / norm[0], name="square")
    moved = te.compute((1000,), lambda i: mean[i] / te.sqrt(square[i]), name="moved")
    func = te.create_prim_func([g, m, mean, square, moved], "update")
    planned = plan(func, ZEN4)
    enclosing = {name: planned.schedule.loops(name)[0].name for name in ("mean", "square", "moved")}
    assert len(set(enclosing.values())) == 1
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=1000).astype(np.float32) for _ in func.params]
    result = [np.array(a) for a in arrays]
    interpret(func, arrays)
    interpret(planned.func, result)
    for got, expected in zip(result, arrays, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
