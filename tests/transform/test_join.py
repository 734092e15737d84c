"""Joined dimensions: the same elements at the same places, in fewer loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tilewright import ops, te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Var, as_expr, cast, const, select
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ir.loops import Block, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.ir.verify import verify_func
from tilewright.te import Tensor
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.join import join_dimensions
from tilewright.transform.lower import lower_group

Shape = Sequence[int]


def function(build: Callable[..., Tensor], *shapes: Shape) -> PrimFunc:
    inputs = [te.placeholder(shape, "f32", f"x{k}") for k, shape in enumerate(shapes)]
    return te.create_prim_func([*inputs, build(*inputs)])


def ranks(func: PrimFunc) -> list[int]:
    """Iterators of each block."""
    return [len(s.iters) for s in walk(func.body) if isinstance(s, Block)]


def tensor(*shape: int) -> TensorType:
    return TensorType(f32, tuple(map(as_expr, shape)))


def same(a: Tensor) -> Tensor:
    return te.compute(a.shape, lambda *i: a[i] * 2.0)


CASES: list[tuple[str, Callable[..., Tensor], list[Shape], list[int]]] = [
    ("pointwise", same, [(2, 3, 5, 7)], [1]),
    ("scalar", same, [()], [0]),
    ("two stages", lambda a: same(same(a)), [(4, 3, 5)], [1, 1]),
    ("row added", lambda a, b: te.compute(a.shape, lambda i, j, k: a[i, j, k] + b[j, k]), [(4, 3, 5), (3, 5)], [2]),
    ("column added", lambda a, b: te.compute(a.shape, lambda i, j, k: a[i, j, k] + b[i]), [(4, 3, 5), (4,)], [2]),
    ("blocks", lambda a: te.compute((2, 5, 7, 4), lambda c, h, w, k: a[c * 4 + k, h, w]), [(8, 5, 7)], [3]),
    ("swapped", lambda a: te.compute((5, 3, 4), lambda j, k, i: a[i, j, k]), [(4, 5, 3)], [2]),
    ("part of a line", lambda a: te.compute((4, 3), lambda i, j: a[i, j]), [(4, 5)], [2]),
    ("shifted", lambda a: te.compute((4, 3, 2), lambda i, j, k: a[i, j, k + 1]), [(4, 3, 3)], [2]),
    ("diagonal", lambda a: te.compute((4, 4), lambda i, j: a[i, i] + a[i, j]), [(4, 4)], [2]),
    ("place", lambda a: te.compute((4, 3), lambda i, j: a[i, j] + cast(i, f32)), [(4, 3)], [2]),
    ("condition", lambda a: te.compute((4, 3), lambda i, j: select(i < j, a[i, j], const(0.0, f32))), [(4, 3)], [2]),
    (
        "read in two ways",
        lambda a: te.compute((3, 3, 2), lambda i, j, k: same(a)[i, j, k] + same(a)[j, i, k]),
        [(3, 3, 2)],
        [3, 3, 3],
    ),
]


@pytest.mark.parametrize(("build", "shapes", "want"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_elements_stay_where_they_are(build: Callable[..., Tensor], shapes: list[Shape], want: list[int]) -> None:
    func = function(build, *shapes)
    joined = join_dimensions(func)
    verify_func(joined)
    assert ranks(joined) == want
    arrays = [np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate(shapes)]
    results = []
    for version in (func, joined):
        sizes = [tuple(int(str(d)) for d in p.shape) for p in version.params]
        out = np.full(sizes[-1], np.nan, np.float32)
        interpret(version, [*(a.reshape(s) for a, s in zip(arrays, sizes, strict=False)), out])
        results.append(out.reshape(-1))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("mask", [False, True])
def test_rows_of_products_are_joined(mask: bool) -> None:
    """Rows that share their weights are one dimension, with the bias after them; not where something of the epilogue
    differs between a batch's elements."""
    b = GraphBuilder("g")
    x, w = b.input("x", tensor(3, 4, 8)), b.input("w", tensor(1, 8, 16))
    other = b.input("m", tensor(3, 1, 16) if mask else tensor(16))
    product = ops.emit1(b, "lowered.matmul_packed", x, w, columns=16)
    (group,) = fuse(b.finish((ops.emit1(b, "add", product, other),)))
    func = lower_group(group, "k").func
    verify_func(func)
    assert ranks(func) == ([4, 3] if mask else [3, 2])
    sizes = [[int(str(d)) for d in v.shape] for v in group.inputs]
    arrays = [np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate(sizes)]
    out = np.full((3, 4, 16), np.nan, np.float32)
    flat = [a.reshape([int(str(d)) for d in p.shape]) for a, p in zip([*arrays, out], func.params, strict=True)]
    interpret(func, flat)
    x_, w_, m_ = (dict(zip(group.inputs, arrays, strict=True))[v] for v in (x, w, other))
    np.testing.assert_allclose(out, x_ @ w_[0] + m_, rtol=1e-5, atol=1e-5)


def test_rows_of_products_are_joined_with_symbols() -> None:
    """Eight sequences of any one length are rows of one product, as those of a known length are."""
    b, n = GraphBuilder("g"), Var("n", lo=1, hi=9)
    x = b.input("x", TensorType(f32, (as_expr(8), n, as_expr(8))))
    product = ops.emit1(b, "lowered.matmul_packed", x, b.input("w", tensor(1, 8, 16)), columns=16)
    residual = b.input("r", TensorType(f32, (as_expr(8), n, as_expr(16))))
    (group,) = fuse(b.finish((ops.emit1(b, "add", product, residual),)))
    func = lower_group(group, "k").func
    verify_func(func)
    assert ranks(func) == [3, 2]
    assert [p.shape[0] for p in func.params if len(p.shape) == 2] == [n * 8] * 3


def test_one_run_of_symbols() -> None:
    """The loops of a pointwise function are joined if it is all one run, else where lines are symbols or numbers."""
    n = Var("n", lo=1, hi=50)
    x, c = te.placeholder((3, n, 5), "f32", "x"), te.placeholder((5,), "f32", "c")
    func = te.create_prim_func([x, same(same(x))])
    joined = join_dimensions(func)
    verify_func(joined)
    assert ranks(joined) == [1, 1] and joined.params[0].shape == (n * 15,)
    results = []
    for version in (func, joined):
        arrays = [np.arange(60, dtype=np.float32) for _ in range(2)]
        shape = (-1,) if version is joined else (3, 4, 5)
        interpret(version, [a.reshape(shape) for a in arrays])
        results.append(arrays[1])
    np.testing.assert_array_equal(*results)
    wide = te.create_prim_func([x, c, te.compute(x.shape, lambda i, j, k: x[i, j, k] * c[k])])
    assert ranks(join_dimensions(wide)) == [2] and join_dimensions(wide).params[0].shape == (n * 3, as_expr(5))
    lines = te.placeholder((n, 16), "f32", "x"), te.placeholder((16,), "f32", "c")
    named = te.create_prim_func([*lines, te.compute((n, 16), lambda i, j: lines[0][i, j] * lines[1][j])])
    assert join_dimensions(named) is named
    m = Var("m", lo=1, hi=50)
    maps = te.placeholder((32, n, m), "f32", "x")
    blocks = te.create_prim_func([maps, te.compute((2, n, m, 16), lambda c, h, w, k: maps[c * 16 + k, h, w])])
    joined = join_dimensions(blocks)
    assert ranks(joined) == [3] and joined.params[0].shape == (as_expr(32), m * n)
    images = te.placeholder((n, 2, 16), "f32", "y"), te.placeholder((n, 1), "f32", "d")
    scaled = te.compute((n, 2, 16), lambda i, j, k: images[0][i, j, k] * images[1][i, 0])
    assert ranks(join_dimensions(te.create_prim_func([*images, scaled]))) == [2]
    y = te.placeholder((n, 3, 5), "f32", "y")
    transposed = te.compute((3, 5, n), lambda i, j, k: y[k, i, j])
    assert ranks(join_dimensions(te.create_prim_func([y, transposed]))) == [2]


def folded(x: Tensor, axes: Sequence[int], *, retained: bool) -> Tensor:
    """The sum over some dimensions, which stay with one element if `retained`."""
    reduced = {a: te.reduce_axis(x.shape[a], f"k{a}") for a in axes}
    shape = [1 if a in reduced else n for a, n in enumerate(x.shape) if retained or a not in reduced]

    def body(*own: Var) -> Expr:
        places = dict(zip((a for a in range(len(x.shape)) if retained or a not in reduced), own, strict=True))
        at = [reduced[a].var if a in reduced else places[a] for a in range(len(x.shape))]
        return te.sum(x[tuple(at)], axis=list(reduced.values()))

    return te.compute(shape, body)


@pytest.mark.parametrize(
    ("shape", "axes", "retained", "expected"),
    [
        ((3, 5, 2, 7), (1, 2, 3), False, 2),
        ((3, 5, 2, 7), (2, 3), False, 2),
        ((3, 5, 2, 7), (0, 2, 3), False, 3),
        ((3, 5, 2, 7), (1, 3), False, 4),
        ((3, 5, 2, 7), (1, 2, 3), True, 2),
        ((1, 5, 1, 7), (1, 2, 3), False, 2),
        ((3, 5, 7), (1,), True, 4),
    ],
)
def test_what_a_fold_reduces(shape: Shape, axes: Sequence[int], retained: bool, expected: int) -> None:
    """Neighbouring dimensions that a fold reduces are one, and so are those that it keeps; those of one element after
    all others go."""
    func = function(lambda x: folded(x, axes, retained=retained), shape)
    joined = join_dimensions(func)
    verify_func(joined)
    assert ranks(joined) == [expected]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    out = np.zeros([int(n) for n in np.sum(x, axis=tuple(axes), keepdims=retained).shape], np.float32)
    interpret(joined, [a.reshape([int(str(n)) for n in p.shape]) for a, p in zip((x, out), joined.params, strict=True)])
    np.testing.assert_allclose(out, np.sum(x, axis=tuple(axes), keepdims=retained), rtol=1e-5, atol=1e-5)


def test_windows_stay_separate() -> None:
    """Two dimensions of a window are read with a stride: no run of memory."""
    x = te.placeholder((3, 6, 6), "f32", "x")
    r, c = te.reduce_axis(2, "r"), te.reduce_axis(2, "c")
    total = te.compute((3, 5, 5), lambda n, i, j: te.sum(x[n, i + r.var, j + c.var], axis=[r, c]))
    func = te.create_prim_func([x, total])
    assert join_dimensions(func) is func


@pytest.mark.parametrize("sides", [(3, 4), (1, 1), (7,)])
def test_places_that_a_fold_gives_keep_their_dimensions(sides: Shape) -> None:
    """Where the largest element lies is counted with all iterators, outside of any index: windows of one element fold
    arrays of which each element is used once."""
    b, rank = GraphBuilder("case"), len(sides)
    each = dict.fromkeys(("kernel", "strides", "dilations"), (1,) * rank)
    places = ops.emit1(b, "max_pool_indices", b.input("x", tensor(2, 5, *sides)), **each, pads=(0, 0) * rank)
    (group,) = fuse(b.finish((places,)))
    joined = join_dimensions(lower_group(group, "kernel").func)
    verify_func(joined)
    x = np.random.default_rng(0).standard_normal((2, 5, *sides)).astype(np.float32)
    result = np.zeros(x.shape, np.int64)
    arrays = zip((x, result), joined.params, strict=True)
    interpret(joined, [a.reshape([int(str(n)) for n in p.shape]) for a, p in arrays])
    np.testing.assert_array_equal(result.ravel(), np.arange(x.size))


def test_no_elements_keep_the_symbol_of_their_shape() -> None:
    """No rows of n columns are no elements, whatever n is: it stays a size that a caller passes."""
    n = Var("n", lo=1, hi=50)
    x = te.placeholder((0, n), "f32", "x")
    func = te.create_prim_func([x, same(x)])
    assert join_dimensions(func).symbols == (n,)
