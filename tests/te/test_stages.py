"""The language, case by case: reductions, chains of stages, and every schedule primitive on them, against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.te.conformance import close, evaluate, random
from tilewright import te
from tilewright.ir.dtype import f32
from tilewright.schedule.intrinsics import TensorIntrin, describe, register
from tilewright.schedule.trace import parse_trace
from tilewright.support.errors import ScheduleError

N = te.var("n")


def axis(extent: Any, name: str = "k") -> te.IterVar:
    return te.reduce_axis(extent, name)


# --- reductions -----------------------------------------------------------------------------------------------------

REDUCERS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "sum": (te.sum, np.sum),
    "prod": (te.prod, np.prod),
    "max": (te.max, np.max),
    "min": (te.min, np.min),
}


@pytest.mark.parametrize("name", REDUCERS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "float64"])
def test_rows(name: str, dtype: str) -> None:
    reducer, meaning = REDUCERS[name]
    x = random((5, 13), dtype)
    a, k = te.placeholder(x.shape, dtype, name="A"), axis(13)
    b = te.compute((5,), lambda i: reducer(a[i, k], axis=k), name="B")
    close(evaluate(b, [(a, x)])[0], meaning(x, axis=1).astype(dtype))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_sets_of_axes(axes: tuple[int, ...]) -> None:
    shape = (3, 4, 5)
    a = te.placeholder(shape, name="A")
    reduced = {d: axis(shape[d], f"k{d}") for d in axes}

    def body(*point: Any) -> Any:
        rest = iter(point)
        return te.sum(a[tuple(reduced[d] if d in axes else next(rest) for d in range(3))], axis=list(reduced.values()))

    retained = tuple(n for d, n in enumerate(shape) if d not in axes) or (1,)
    x = random(shape)
    b = te.compute(retained, lambda *i: body(*(i if len(axes) < 3 else ())), name="B")
    close(evaluate(b, [(a, x)])[0], x.sum(axis=axes).reshape(retained))


def test_where() -> None:
    a, k = te.placeholder((4, 9), name="A"), axis(9)
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k, where=a[i, k] > 0), name="B")
    x = random((4, 9))
    close(evaluate(b, [(a, x)])[0], np.where(x > 0, x, 0).sum(1))


def largest(x: Any, y: Any) -> Any:
    """The greater value and the first place where it is."""
    takes = (y[0] > x[0]) | ((y[0] == x[0]) & (y[1] < x[1]))
    return te.if_then_else(takes, y[0], x[0]), te.if_then_else(takes, y[1], x[1])


def product(x: Any, y: Any) -> Any:
    """The product of complex numbers."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def moments(x: Any, y: Any) -> Any:
    """Count, mean, and sum of squares around it (Chan, Golub, LeVeque 1979)."""
    count = te.maximum(x[0] + y[0], 1.0)
    separate = y[1] - x[1]
    return x[0] + y[0], x[1] + separate * y[0] / count, x[2] + y[2] + separate * separate * x[0] * y[0] / count


def hypotenuse(x: Any, y: Any) -> Any:
    return (te.sqrt(x[0] * x[0] + y[0] * y[0]),)


Several = tuple[Callable[..., Any], tuple[Any, ...], Callable[..., Any], Callable[[Any], Any]]
SEVERAL: dict[str, Several] = {
    "largest": (largest, (-np.inf, 1 << 40), lambda x, k: (x, k.as_expr()), lambda x: (x.max(1), x.argmax(1))),
    "product": (
        product,
        (1, 0),
        lambda x, k: (x, x + 1.0),
        lambda x: ((z := (x + 1j * (x + 1)).prod(1)).real, z.imag),
    ),
    "moments": (
        moments,
        (0, 0, 0),
        lambda x, k: (te.const(1.0), x, te.const(0.0)),
        lambda x: (np.full(len(x), x.shape[1]), x.mean(1), ((x - x.mean(1, keepdims=True)) ** 2).sum(1)),
    ),
    "hypotenuse": (hypotenuse, (0,), lambda x, k: (x,), lambda x: (np.sqrt((x * x).sum(1)),)),
}
PARTS: dict[str, Callable[[Any, te.Tensor], Any]] = {
    "as it is": lambda s, b: None,
    "inner": lambda s, b: s[b].rfactor(s[b].split(b.op.reduce_axis[0], 4)[1]),
    "vectorized": lambda s, b: s[b].rfactor(inner := s[b].split(b.op.reduce_axis[0], 4)[1], -1).vectorize(inner),
    "parallel": lambda s, b: s[b].rfactor(outer := s[b].split(b.op.reduce_axis[0], nparts=3)[0]).parallel(outer),
    "decomposed": lambda s, b: s[b].decompose_reduction(s[b].split(b.op.reduce_axis[0], 4)[0]),
    "all of it": lambda s, b: s[b].rfactor(b.op.reduce_axis[0]),
}


@pytest.mark.daily(5)
@pytest.mark.costly(3)
@pytest.mark.parametrize("size", [1, 9, 16])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", SEVERAL)
def test_reducers_of_several_values(name: str, parts: str, size: int) -> None:
    """In one piece and in parts, where ties are met in another order."""
    combine, start, values, meant = SEVERAL[name]
    reducer = te.comm_reducer(combine, lambda *types: tuple(map(te.const, start, types)), name)
    a, k = te.placeholder((5, size), name="A"), axis(size)
    result = te.compute((5,), lambda i: reducer(values(a[i, k], k), axis=k), name="B")
    results = list(result) if isinstance(result, tuple) else [result]
    x = random((5, size)).round()
    got = evaluate(results, [(a, x)], schedule=lambda s: PARTS[parts](s, results[0]), threads=2)
    for mine, theirs in zip(got, meant(x.astype(np.float64)), strict=True):
        close(mine, theirs, 1e-4)


def test_any_and_all() -> None:
    some = te.comm_reducer(lambda x, y: x | y, lambda t: te.const(False, t), "any")
    every = te.comm_reducer(lambda x, y: x & y, lambda t: te.const(True, t), "all")
    a, k, j = te.placeholder((6, 3), "bool", name="A"), axis(3), axis(3, "j")
    b = te.compute((6,), lambda i: some(a[i, k], axis=k), name="B")
    c = te.compute((6,), lambda i: every(a[i, j], axis=j), name="C")
    x = random((6, 3), "bool")
    got = evaluate([b, c], [(a, x)])
    close(got[0], x.any(1))
    close(got[1], x.all(1))


def test_narrow_inputs_wide_sums() -> None:
    a, b, k = te.placeholder((4, 300), "int8", name="A"), te.placeholder((300, 3), "int8", name="B"), axis(300)
    c = te.compute((4, 3), lambda i, j: te.sum(te.cast(a[i, k], "int32") * te.cast(b[k, j], "int32"), axis=k), name="C")
    x, y = random((4, 300), "int8"), random((300, 3), "int8", 1)
    close(evaluate(c, [(a, x), (b, y)])[0], x.astype(np.int32) @ y.astype(np.int32))


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_symbolic_reductions(size: int) -> None:
    a, k = te.placeholder((N, N), name="A"), axis(N)
    b = te.compute((N,), lambda i: te.max(a[k, i], axis=k), name="B")
    x = random((size, size))
    close(evaluate(b, [(a, x)], [(size,)])[0], x.max(0))


def test_nothing_to_reduce() -> None:
    a, k = te.placeholder((4, 0), name="A"), axis(0)
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="B")
    close(evaluate(b, [(a, np.zeros((4, 0), np.float32))])[0], np.zeros(4, np.float32))


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_convolutions(stride: int, dilation: int) -> None:
    size, taps = 23, 3
    out = (size - dilation * (taps - 1) - 1) // stride + 1
    a, w = te.placeholder((4, size), name="A"), te.placeholder((5, 4, taps), name="W")
    c, t = axis(4, "c"), axis(taps, "t")
    b = te.compute((5, out), lambda f, i: te.sum(a[c, i * stride + t * dilation] * w[f, c, t], axis=[c, t]), name="B")
    x, y = random((4, size)), random((5, 4, taps), seed=1)
    meant = sum(y[:, :, t] @ x[:, t * dilation : t * dilation + (out - 1) * stride + 1 : stride] for t in range(taps))
    close(evaluate(b, [(a, x), (w, y)])[0], meant, 1e-4)


# --- chains of stages -----------------------------------------------------------------------------------------------


def chain(n: Any = 37, depth: int = 4) -> list[te.Tensor]:
    """A, then each stage its producer's double plus one."""
    stages = [te.placeholder((n,), name="A")]
    for d in range(depth):
        stages.append(te.compute((n,), lambda i, t=stages[-1]: t[i] * 2.0 + 1.0, name=f"S{d}"))
    return stages


def chained(x: Any, depth: int = 4) -> Any:
    for _ in range(depth):
        x = x * 2 + 1
    return x


@pytest.mark.parametrize("inlined", list(itertools.chain(*(itertools.combinations((1, 2, 3), r) for r in range(4)))))
def test_inline_chains(inlined: tuple[int, ...]) -> None:
    a, *stages = chain()
    x = random((37,))

    def schedule(s: Any) -> None:
        for k in inlined:
            s[stages[k - 1]].compute_inline()

    close(evaluate(stages[-1], [(a, x)], schedule=schedule)[0], chained(x))


@pytest.mark.parametrize("way", ["root", "inline", "reverse inline", "at", "at inner", "reverse at"])
@pytest.mark.parametrize("n", [1, 16, 37])
def test_where_a_producer_is_computed(way: str, n: int) -> None:
    a, b, c = chain(n, 2)
    x = random((n,))

    def schedule(s: Any) -> None:
        outer, inner = s[c].split(c.axis[0], 8)
        match way:
            case "inline":
                s[b].compute_inline()
            case "reverse inline":
                s[c].reverse_compute_inline()
            case "at":
                s[b].compute_at(s[c], outer)
            case "at inner":
                s[b].compute_at(s[c], inner)
            case "reverse at":
                s[c].reverse_compute_at(s[b], s[b].split(b.axis[0], 4)[0])

    close(evaluate(c, [(a, x)], schedule=schedule)[0], chained(x, 2))


def test_diamonds() -> None:
    """Two consumers of one stage, joined again; the stage is computed where both find it."""
    a, b, *_ = chain(33, 1)
    left = te.compute((33,), lambda i: b[i] + 1.0, name="left")
    right = te.compute((33,), lambda i: b[32 - i] * 3.0, name="right")
    c = te.compute((33,), lambda i: left[i] - right[i], name="C")
    x = random((33,))
    y = 2 * x + 1
    for inlined in ((), (b,), (left, right), (b, left, right)):
        got = evaluate(c, [(a, x)], schedule=lambda s, t=inlined: [s[v].compute_inline() for v in t])
        close(got[0], y + 1 - 3 * y[::-1])


@pytest.mark.parametrize("tile", [1, 3, 8, 64])
@pytest.mark.parametrize("place", ["outer", "inner"])
def test_bound_inference_of_stencils(tile: int, place: str) -> None:
    """A tile of the consumer needs a tile and its halo of the producer."""
    n = 41
    a = te.placeholder((n + 4,), name="A")
    b = te.compute((n + 2,), lambda i: a[i] + a[i + 1] + a[i + 2], name="B")
    c = te.compute((n,), lambda i: b[i] * b[i + 2] - b[i + 1], name="C")
    x = random((n + 4,))
    y = x[:-2] + x[1:-1] + x[2:]

    def schedule(s: Any) -> None:
        outer, inner = s[c].split(c.axis[0], tile)
        s[b].compute_at(s[c], outer if place == "outer" else inner)
        s[b].set_scope("local" if tile < 64 else "global")

    close(evaluate(c, [(a, x)], schedule=schedule)[0], y[:-2] * y[2:] - y[1:-1])


def test_bound_inference_through_three_stages() -> None:
    n = 20
    a = te.placeholder((n + 6, n + 6), name="A")
    stages, size = [a], n + 6
    for d in range(3):
        size -= 2
        t = stages[-1]
        stages.append(te.compute((size, size), lambda i, j, t=t: t[i, j] + t[i + 1, j + 2] - t[i + 2, j], name=f"B{d}"))
    _, b, c, d = stages
    x = random((n + 6, n + 6))

    def step(v: Any) -> Any:
        return v[:-2, :-2] + v[1:-1, 2:] - v[2:, :-2]

    def schedule(s: Any) -> None:
        i_0, j_0, _, j_1 = s[d].tile(d.axis[0], d.axis[1], 4, 8)
        s[c].compute_at(s[d], j_0)
        s[b].compute_at(s[d], i_0)
        s[d].vectorize(j_1)
        s[b].vectorize(s[b].split(b.axis[1], 8)[1])

    close(evaluate(d, [(a, x)], schedule=schedule)[0], step(step(step(x))))


def test_upsampled_and_downsampled_regions() -> None:
    a = te.placeholder((40,), name="A")
    up = te.compute((80,), lambda i: a[i // 2] * 1.5, name="up")
    down = te.compute((26,), lambda i: up[i * 3] + up[i * 3 + 1], name="down")
    x = random((40,))
    y = np.repeat(x * np.float32(1.5), 2)
    close(
        evaluate(down, [(a, x)], schedule=lambda s: s[up].compute_at(s[down], s[down].split(down.axis[0], 5)[0]))[0],
        y[0:78:3] + y[1:79:3],
    )


def test_broadcast_inline_into_a_reduction() -> None:
    a, v, k = te.placeholder((5, 9), name="A"), te.placeholder((9,), name="V"), axis(9)
    b = te.compute((5, 9), lambda i, j: a[i, j] - v[j], name="B")
    c = te.compute((5, 9), lambda i, j: b[i, j] * b[i, j], name="C")
    d = te.compute((5,), lambda i: te.sum(c[i, k], axis=k), name="D")
    x, y = random((5, 9)), random((9,), seed=1)
    got = evaluate(d, [(a, x), (v, y)], schedule=lambda s: (s[b].compute_inline(), s[c].compute_inline()))
    close(got[0], ((x - y) ** 2).sum(1))


# --- primitives -----------------------------------------------------------------------------------------------------


def product(m: Any = 13, n: Any = 19, k: Any = 11) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b, r = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), axis(k)
    return a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")


def check_product(
    schedule: Callable[[Any, te.Tensor], Any], sizes: tuple[int, int, int] = (13, 19, 11), threads: int = 1
) -> None:
    a, b, c = product(*sizes)
    m, n, k = sizes
    x, y = random((m, k)), random((k, n), seed=1)
    got = evaluate(c, [(a, x), (b, y)], schedule=lambda s: schedule(s, c), threads=threads)
    close(got[0], x @ y, 1e-4)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_orders(order: tuple[int, ...]) -> None:
    def schedule(s: Any, c: te.Tensor) -> None:
        axes = (*c.axis, *c.reduce_axis)
        s[c].reorder(*(axes[k] for k in order))

    check_product(schedule)


@pytest.mark.costly(2)
@pytest.mark.parametrize("factor", [1, 2, 3, 7, 13, 20])
@pytest.mark.parametrize("way", ["factor", "nparts"])
def test_splits(factor: int, way: str) -> None:
    def schedule(s: Any, c: te.Tensor) -> None:
        parts = [s[c].split(x, **{way: factor}) for x in (*c.axis, *c.reduce_axis)]
        s[c].reorder(*(p[0] for p in parts), *(p[1] for p in parts))

    check_product(schedule)


def test_splits_of_splits() -> None:
    def schedule(s: Any, c: te.Tensor) -> None:
        outer, inner = s[c].split(c.axis[1], 8)
        middle, lanes = s[c].split(inner, 4)
        s[c].reorder(outer, c.axis[0], c.reduce_axis[0], middle, lanes)
        s[c].unroll(middle)
        s[c].vectorize(lanes)

    check_product(schedule)


@pytest.mark.parametrize("fused", [(0, 1), (1, 2), (0, 1, 2)])
def test_fusions(fused: tuple[int, ...]) -> None:
    def schedule(s: Any, c: te.Tensor) -> None:
        axes = (*c.axis, *c.reduce_axis)
        s[c].split(s[c].fuse(*(axes[k] for k in fused)), 5)

    check_product(schedule)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 19, 32])
def test_vectors(lanes: int) -> None:
    check_product(lambda s, c: s[c].vectorize(s[c].split(c.axis[1], lanes)[1]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads: int) -> None:
    check_product(lambda s, c: s[c].parallel(c.axis[0]), threads=threads)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_unrolled(which: int) -> None:
    check_product(lambda s, c: s[c].unroll((*c.axis, *c.reduce_axis)[which]), (5, 6, 7))


@pytest.mark.daily(3)
@pytest.mark.parametrize("scope", ["global", "local"])
@pytest.mark.parametrize("sizes", [(8, 16, 4), (13, 19, 11), (2, 9, 3)])
def test_blocked_products(scope: str, sizes: tuple[int, int, int]) -> None:
    """The course's schedule: a tile in a cache, its init separate, packed operands."""

    def schedule(s: Any, c: te.Tensor) -> None:
        copy = s[c].cache_write(scope)
        i_0, j_0, _, j_1 = copy.tile(*copy.loops, 4, 8)
        s[c].compute_at(copy, j_0)
        i, j, k = s[c].loops[-3:]
        k_0, k_1 = s[c].split(k, 4)
        s[c].reorder(k_0, k_1, i, j)
        s[c].decompose_reduction(k_0)
        s[c].unroll(i)
        s[c].vectorize(j)
        copy.vectorize(j_1)
        copy.parallel(i_0)
        packed = s[c].cache_read("B", "global")
        packed.compute_at(s[c], k_0)

    check_product(schedule, sizes)


@pytest.mark.parametrize("place", [0, 1, 2, -1])
@pytest.mark.parametrize("factor", [2, 4, 11])
def test_rfactor(place: int, factor: int) -> None:
    def schedule(s: Any, c: te.Tensor) -> None:
        _, inner = s[c].split(c.reduce_axis[0], factor)
        partial = s[c].rfactor(inner, place)
        partial.vectorize(inner)
        s[c].parallel(c.axis[0])

    check_product(schedule)


def test_rfactor_of_a_maximum_over_threads() -> None:
    a, k = te.placeholder((3, 101), name="A"), axis(101)
    b = te.compute((3,), lambda i: te.max(a[i, k], axis=k), name="B")

    def schedule(s: Any) -> None:
        outer, inner = s[b].split(k, nparts=4)
        partial = s[b].rfactor(outer)
        partial.reorder(outer, partial.loops[0], inner)
        partial.parallel(outer)

    x = random((3, 101))
    close(evaluate(b, [(a, x)], schedule=schedule, threads=2)[0], x.max(1))


def test_padding_of_a_product() -> None:
    def schedule(s: Any, c: te.Tensor) -> None:
        s[c].pad(4, 8, 4)
        s[c].vectorize(s[c].split(s[c].loops[-2], 8)[1])

    check_product(schedule)


@pytest.mark.parametrize(
    "layout",
    [
        lambda i, j: (j, i),
        lambda i, j: (i, j // 4, j % 4),
        lambda i, j: (j // 8, i, j % 8),
        lambda i, j: (i // 2, j // 4, i % 2, j % 4),
    ],
)
def test_storage_layouts(layout: Callable[..., Any]) -> None:
    """An intermediate stored in another layout: its readers follow."""
    a, b, c = product(8, 16, 5)
    d = te.compute((8, 16), lambda i, j: c[i, j] + c[7 - i, 15 - j], name="D")
    x, y = random((8, 5)), random((5, 16), seed=1)
    z = x @ y
    got = evaluate(d, [(a, x), (b, y)], schedule=lambda s: s[c].transform_layout(layout))
    close(got[0], z + z[::-1, ::-1], 1e-4)


DOT = register(
    TensorIntrin(
        "conformance_dot",
        describe("conformance_dot", {"i": 2, "j": 4, "k": 4}, "k", (f32, f32, f32), {"A": "ik", "B": "kj", "C": "ij"}),
    )
)
"""A small product, for which there is no instruction: its description is its code."""


@pytest.mark.parametrize("sizes", [(4, 8, 8), (3, 7, 5)])
def test_tensorize(sizes: tuple[int, int, int]) -> None:
    def schedule(s: Any, c: te.Tensor) -> None:
        s[c].pad(2, 4, 4)
        i, j, k = s[c].loops
        (j_0, j_1), (k_0, k_1) = s[c].split(j, 4), s[c].split(k, 4)
        i_0, i_1 = s[c].split(i, 2)
        s[c].reorder(i_0, j_0, k_0, i_1, j_1, k_1)
        s[c].decompose_reduction(k_0)
        s[c].tensorize(i_1, "conformance_dot")

    check_product(schedule, sizes)


@pytest.mark.parametrize("scope", ["global", "local"])
def test_copies_of_inputs(scope: str) -> None:
    a, b, *_ = chain(24, 1)
    x = random((24,))

    def schedule(s: Any) -> None:
        outer, _ = s[b].split(b.axis[0], 8)
        copy = s[b].cache_read(a, scope)
        copy.compute_at(s[b], outer)
        copy.vectorize(copy.loops[-1])

    close(evaluate(b, [(a, x)], schedule=schedule)[0], chained(x, 1))


@pytest.mark.parametrize("size", [1, 5, 8, 40])
def test_symbolic_schedules(size: int) -> None:
    a, b, c = chain(N, 2)
    x = random((size,))

    def schedule(s: Any) -> None:
        outer, inner = s[c].split(c.axis[0], 8)
        s[b].compute_at(s[c], outer)
        s[b].vectorize(b.axis[0])
        s[c].vectorize(inner)
        s[c].parallel(outer)

    close(evaluate(c, [(a, x)], [(size,)], schedule=schedule, threads=2)[0], chained(x, 2))


def test_softmax() -> None:
    a, k, j = te.placeholder((6, 17), name="A"), axis(17), axis(17, "j")
    peak = te.compute((6,), lambda i: te.max(a[i, k], axis=k), name="peak")
    e = te.compute((6, 17), lambda i, c: te.exp(a[i, c] - peak[i]), name="e")
    total = te.compute((6,), lambda i: te.sum(e[i, j], axis=j), name="total")
    b = te.compute((6, 17), lambda i, c: e[i, c] / total[i], name="B")
    x = random((6, 17))
    expected = np.exp(x - x.max(1, keepdims=True))

    def schedule(s: Any) -> None:
        for stage in (total, e, peak):
            s[stage].compute_at(s[b], b.axis[0])
            s[stage].set_scope("local")
        s[b].parallel(b.axis[0])

    close(evaluate(b, [(a, x)], schedule=schedule)[0], expected / expected.sum(1, keepdims=True))


REFUSED: dict[str, Callable[[Any, te.Tensor], Any]] = {
    "parallel reduction": lambda s, c: s[c].parallel(c.reduce_axis[0]),
    "a loop twice": lambda s, c: s[c].reorder(c.axis[0], c.axis[0]),
    "vectors twice": lambda s, c: (s[c].vectorize(c.axis[1]), s[c].vectorize(c.axis[0])),
    "split of a vector": lambda s, c: (s[c].vectorize(c.axis[1]), s[c].split(c.axis[1], 4)),
    "factor of 0": lambda s, c: s[c].split(c.axis[0], 0),
    "negative parts": lambda s, c: s[c].split(c.axis[0], nparts=-1),
    "neither": lambda s, c: s[c].split(c.axis[0]),
    "both": lambda s, c: s[c].split(c.axis[0], 2, 2),
    "fusion apart": lambda s, c: s[c].fuse(c.axis[0], c.reduce_axis[0]),
    "inlined reduction": lambda s, c: s[c].compute_inline(),
    "at itself": lambda s, c: s[c].compute_at(s[c], c.axis[0]),
    "rfactor of a spatial axis": lambda s, c: s[c].rfactor(c.axis[0]),
    "init inside": lambda s, c: (
        s[c].reorder(c.reduce_axis[0], c.axis[0]),
        s[c].decompose_reduction(c.axis[0]),
    ),
    "no such scope": lambda s, c: s[c].set_scope("attic"),
    "layout of an output with gaps": lambda s, c: s[c].transform_layout(lambda i, j: (i, j // 5, j % 5)),
    "layout that loses elements": lambda s, c: s[c].transform_layout(lambda i, j: (i, j // 2)),
    "the wrong intrinsic": lambda s, c: s[c].tensorize(c.axis[1], "conformance_dot"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    """A step that would change the meaning is refused, with the loops."""
    *_, c = product()
    s = te.create_schedule(c)
    with pytest.raises(ScheduleError) as caught:
        REFUSED[case](s, c)
    assert "the loops are:" in str(caught.value)


# --- a loop of one iteration ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["alone", "parallel", "vectors inside", "moved to", "moved"])
def test_fusion_of_no_axes(how: str) -> None:
    """A loop of one iteration around all of a stage's own, which is a loop like others."""
    x = random((6,))
    a, k = te.placeholder((6,), name="A"), axis(6)
    b = te.compute((6,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((), lambda: te.sum(b[k], axis=k), name="C")
    d = te.compute((2,), lambda i: c[()] * te.cast(i + 1, "float32"), name="D")

    def schedule(s: Any) -> None:
        unit = s[c].fuse()
        assert s[c].loops[0] == unit and s.schedule.extent(unit) == 1
        match how:
            case "parallel":
                s[c].parallel(unit)
            case "vectors inside":
                s[b].vectorize(b.axis[0])
            case "moved to":
                s[b].compute_at(s[c], unit)
            case "moved":
                s[c].compute_at(s[d], s[d].fuse())

    close(evaluate(d, [(a, x)], schedule=schedule)[0], (x + 1).sum() * np.array([1, 2], np.float32))


def test_fusion_of_no_axes_of_a_single_element() -> None:
    """A stage without dimensions has no loop else."""
    a = te.placeholder((), name="A")
    b = te.compute((), lambda: a[()] * 3.0, name="B")
    c = te.compute((), lambda: b[()] + 1.0, name="C")

    def schedule(s: Any) -> None:
        assert s[c].loops == ()
        s[b].compute_at(s[c], s[c].fuse())
        assert len(s[c].loops) == 1

    close(evaluate(c, [(a, np.float32(2))], schedule=schedule)[0], np.float32(7))


@pytest.mark.daily(5)
@pytest.mark.parametrize("n", [1, 7, 12])
@pytest.mark.parametrize("m", [1, 3, 4, 20])
@pytest.mark.parametrize("how", ["factor", "nparts", "sum", "moved"])
def test_splits_by_a_dimension(how: str, n: int, m: int) -> None:
    """A factor that the arrays of each call give, whether or not it divides the extent."""
    size, factor = te.var("n"), te.var("m")
    a, w = te.placeholder((size,), name="A"), te.placeholder((factor,), name="W")
    k = te.reduce_axis(size, "k")
    b = te.compute((size,), lambda i: a[i] + w[0], name="B")
    c = te.compute((size,), lambda i: b[i] * 2.0, name="C")
    d = te.compute((1,), lambda i: te.sum(c[k], axis=k), name="D")

    def schedule(s: Any) -> None:
        if how == "sum":
            s[d].split(k, factor=factor)
            return
        outer, _ = s[c].split(c.axis[0], **{"nparts" if how == "nparts" else "factor": factor})
        if how == "moved":
            s[b].compute_at(s[c], outer)
        trace = parse_trace(str(s.schedule.trace))
        assert trace.replay(te.create_schedule(d).func).func == s.func

    x, y = random((n,)), random((m,), seed=1)
    close(evaluate(d, [(a, x), (w, y)], schedule=schedule)[0], ((x + y[0]) * 2).sum(keepdims=True), 1e-4)
