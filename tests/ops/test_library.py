"""Operators as functions on tensors: the numbers of their references, users' schedules around them, and refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops, te
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops import registry
from tilewright.ops.library import library, listing
from tilewright.support.errors import DTypeError, ExpressionError, ShapeError, UnsupportedError, VerifyError

POOL = {"kernel": (3, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (1, 0, 1, 1), "ceil_mode": False}

CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("softmax", [(3, 7)], {"axis": 1}),
    ("matmul", [(5, 6), (6, 7)], {}),
    ("matmul", [(2, 6, 5), (2, 7, 6)], {"transpose_a": True, "transpose_b": True}),
    ("layer_norm", [(3, 8), (8,), (8,)], {"axis": 1, "epsilon": 1e-5}),
    ("reduce_sum", [(3, 4, 5)], {"axes": (0, 2), "keepdims": False}),
    ("transpose", [(2, 3, 4)], {"perm": (2, 0, 1)}),
    ("gelu", [(13,)], {}),
    ("add", [(3, 1), (4,)], {}),
    (
        "max_pool",
        [(1, 2, 7, 7)],
        {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "ceil_mode": False},
    ),
    (
        "conv",
        [(1, 3, 6, 6), (4, 3, 3, 3)],
        {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1},
    ),
    ("layout_transform", [(2, 13, 3, 5)], {"source": "NCHW", "target": "NHCW8c", "value": 7}),
    ("layout_transform", [(2, 2, 3, 5, 8)], {"source": "NCHW8c", "target": "NHWC", "extents": (2, 3, 5, 13)}),
    ("layout_transform", [(1, 2, 3, 16)], {"source": "NCW16c", "target": "NCW4c"}),
    ("space_to_depth", [(2, 3, 4, 6)], {"block": 2}),
    ("depth_to_space", [(1, 24, 3, 1, 2)], {"block": 2, "mode": "CRD"}),
    ("lp_normalize", [(3, 7, 1)], {"axes": (1, 2), "epsilon": 1e-6}),
    ("lp_normalize", [(3, 7)], {"axes": (0,), "p": 3.0}),
    ("max_pool_grad", [(1, 2, 7, 6), (1, 2, 4, 3)], POOL),
    ("avg_pool_grad", [(1, 2, 4, 3)], POOL | {"extents": (7, 6)}),
    ("adaptive_avg_pool", [(1, 2, 7, 5)], {"size": (3, 5)}),
    ("adaptive_max_pool", [(2, 1, 11)], {"size": (4,)}),
    ("slice", [(5, 6, 7)], {"begin": (1, 0, 3), "size": (3, 6, 2), "step": (1, 1, 2)}),  # a crop
]


@pytest.mark.daily(5)
@pytest.mark.costly(2)
@pytest.mark.parametrize("planned", [False, True], ids=["as written", "planned"])
@pytest.mark.parametrize(("name", "shapes", "values"), CASES, ids=[f"{n}{k}" for k, (n, *_) in enumerate(CASES)])
def test_a_function_computes_what_its_reference_does(
    name: str, shapes: list[tuple[int, ...]], values: dict[str, Any], planned: bool
) -> None:
    operator = getattr(tw.operators, name)
    tensors = [te.placeholder(s, name=f"x{k}") for k, s in enumerate(shapes)]
    out = operator(*tensors, **values)
    arrays = [np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate(shapes)]
    wanted = operator.reference(*arrays, **values)
    got = np.full(wanted.shape, np.nan, np.float32)
    args = [*tensors, out]
    f = tw.build(tw.plan(args)) if planned else tw.build(te.create_schedule(out), args)
    f(*arrays, got)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_layouts_back_and_forth() -> None:
    """A layout and its inverse are the identity, also where blocks are not full; the element at each place is the one
    meant."""
    a = np.random.default_rng(0).standard_normal((2, 11, 3)).astype(np.float32)
    there = tw.operators.layout_transform.reference(a, source="NCW", target="NCW4c")
    assert there.shape == (2, 3, 3, 4)
    for i, c, w in np.ndindex(a.shape):
        assert there[i, c // 4, w, c % 4] == a[i, c, w]
    assert (there[:, 2, :, 3] == 0).all()
    n = te.var("n")
    x = te.placeholder((n, 11, 3), name="x")
    blocked = tw.operators.layout_transform(x, source="NCW", target="NCW4c")
    y = tw.operators.layout_transform(blocked, source="NCW4c", target="NCW", extents=(n, 11, 3))
    b = np.empty_like(a)
    tw.build(te.create_schedule(y), [x, y])(a, b)
    np.testing.assert_array_equal(b, a)


def test_layouts_that_do_not_fit_are_refused() -> None:
    x = te.placeholder((2, 11, 3), name="x")
    for attrs, message in (
        ({"source": "NCW", "target": "NCH"}, "other dimensions"),
        ({"source": "NCHW", "target": "NCHW4c"}, "another rank"),
        ({"source": "NCW", "target": "N4cCW"}, "stands before its dimension"),
        ({"source": "NCW", "target": "NCWC"}, "once"),
        ({"source": "NCW", "target": "NCW-"}, "such as NCHW8c"),
        ({"source": "NCW", "target": "NCW4c", "extents": (2, 12, 3)}, "shape is not that of NCW"),
        ({"source": "NCW", "target": "NCW4c", "extents": (2, 11)}, "one extent is needed"),
    ):
        with pytest.raises(ShapeError, match=message):
            tw.operators.layout_transform(x, **attrs)
    for name in ("space_to_depth", "depth_to_space"):
        with pytest.raises(ShapeError, match="cannot be divided"):
            getattr(tw.operators, name)(x, block=2)


@pytest.mark.daily(3)
@pytest.mark.costly(3)
@pytest.mark.parametrize("planned", [False, True], ids=["as written", "planned"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int64"])
@pytest.mark.parametrize("largest", [False, True])
def test_topk_by_stages(dtype: str, largest: bool, planned: bool) -> None:
    """Ties by index, NaN as the largest, zeros alike with their signs; the values that stand are the input's."""
    rng = np.random.default_rng(3)
    a = rng.integers(0, 4, (3, 9)).astype(dtype)
    if a.dtype.kind == "f":
        a[0, :4], a[1, 2:5] = [np.nan, -np.inf, np.nan, np.inf], [0.0, -0.0, 0.0]
    for values in ({"axis": 1, "k": 9}, {"axis": 0, "k": 1}, {"axis": -1, "k": 4}):
        x = te.placeholder(a.shape, dtype, name="x")
        outs = tw.operators.topk(x, largest=largest, **values)
        wanted = tw.operators.topk.reference(a, largest=largest, **values)
        got = [np.ones(w.shape, w.dtype) for w in wanted]
        args = [x, *outs]
        f = tw.build(tw.plan(args)) if planned else tw.build(te.create_schedule(list(outs)), args)
        f(a, *got)
        np.testing.assert_array_equal(got[1], wanted[1])
        np.testing.assert_array_equal(got[0], wanted[0])
        if a.dtype.kind == "f":
            for zeros in (got[0], wanted[0]):
                zeros[np.isnan(zeros)] = 1  # the sign of a NaN means nothing
            np.testing.assert_array_equal(np.signbit(got[0]), np.signbit(wanted[0]))


@pytest.mark.parametrize(("name", "shapes", "values"), CASES, ids=[f"{n}{k}" for k, (n, *_) in enumerate(CASES)])
def test_an_input_more_than_it_takes_is_refused(
    name: str, shapes: list[tuple[int, ...]], values: dict[str, Any]
) -> None:
    tensors = [te.placeholder(s, name=f"x{k}") for k, s in enumerate([*shapes, (1,)])]
    more = tensors if name != "layer_norm" else [*tensors[:3], te.placeholder((8,), name="x3")]
    with pytest.raises((ExpressionError, DTypeError, ShapeError), match=r"takes no input|wrong number of operands"):
        getattr(tw.operators, name)(*more, **values)


def test_an_input_that_is_not_used_is_named() -> None:
    x, w, b = (te.placeholder(s, name=n) for n, s in (("x", (1, 3, 6, 6)), ("w", (4, 3, 3, 3)), ("bias", (4,))))
    with pytest.raises(ExpressionError, match=r"max_pool: with kernel = .* it takes no input 1: got 'bias'"):
        tw.operators.max_pool(x, b, **POOL)
    tw.operators.max_pool(x, None, **POOL)
    values = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    tw.operators.conv(x, w, None, **values)


def test_operators_and_stages_of_ones_own_together() -> None:
    n = te.var("n")
    x = te.placeholder((n, 16), name="x")
    scaled = te.compute((n, 16), lambda i, j: x[i, j] * 0.5, name="scaled")
    y = tw.operators.softmax(scaled, axis=1)
    s = te.create_schedule(y)
    s[scaled].compute_inline()
    f = tw.build(s, [x, y])
    a = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    b = np.empty_like(a)
    f(a, b)
    np.testing.assert_allclose(b, tw.operators.softmax.reference(a * 0.5, axis=1), rtol=1e-5)


def test_each_says_what_it_takes() -> None:
    assert "axis: int" in (tw.operators.softmax.__doc__ or "")
    assert {"softmax", "conv", "matmul"} <= set(dir(tw.operators))
    assert all((getattr(tw.operators, n).__doc__ or "").startswith(f"{n}(") for n in library())


def test_the_listing_has_each_operator_once_below_its_file() -> None:
    lines = listing().splitlines()
    files = dict(zip(lines[::2], lines[1::2], strict=True))
    result = [name for line in files.values() for name in re.sub(r"\(.*?\)", "", line).split()]
    assert sorted(result) == sorted(library())
    assert "max_pool(ceil_mode, dilations, kernel, pads, skips_nan, strides)" in files["pool"]
    assert "relu" in files["pointwise"].split()


def test_what_does_not_fit_is_refused() -> None:
    x = te.placeholder((3, 4), name="x")
    with pytest.raises(AttributeError, match="no operator named 'sofmax'"):
        _ = tw.operators.sofmax
    with pytest.raises(AttributeError, match="loop program of its own"):
        _ = tw.operators.cholesky
    with pytest.raises(VerifyError, match="softmax: needs the attribute 'axis'"):
        tw.operators.softmax(x)
    with pytest.raises(VerifyError, match="has no attribute 'axes'"):
        tw.operators.softmax(x, axis=1, axes=2)
    with pytest.raises(ExpressionError, match="softmax: input 0: expected a tensor, got ndarray"):
        tw.operators.softmax(np.ones((3, 4)), axis=1)
    with pytest.raises(ExpressionError, match="too few inputs"):
        tw.operators.matmul(x)
    with pytest.raises(ShapeError):
        tw.operators.matmul(x, x)
    with pytest.raises(UnsupportedError):
        registry.get("sofmax")


Shapes = list[tuple[int, ...]]
GRID = {"mode": "linear", "padding": "zeros", "align_corners": False}
FIT: list[tuple[str, dict[str, Any], list[Shapes], list[Shapes]]] = [
    ("slice", {"begin": (2,), "size": (3,), "step": (2,)}, [[(7,)], [(8,)]], [[(6,)], [(8, 1)]]),
    ("slice", {"begin": (4,), "size": (5,), "step": (-1,)}, [[(5,)]], [[(4,)]]),
    ("slice", {"begin": (3,), "size": (5,), "step": (-1,)}, [], [[(5,)]]),
    ("einsum", {"equation": "ij,jk->ik"}, [[(2, 3), (3, 4)]], [[(2, 3, 1), (3, 4)], [(2,), (3, 4)], [(2, 3), (2, 4)]]),
    ("grid_sample", GRID, [[(2, 3, 8), (2, 5, 1)]], [[(2, 3), (2, 0)], [(2, 3, 8), (2, 5, 2)], [(2, 3, 8), (1, 5, 1)]]),
    ("matmul", {}, [[(2, 3), (3, 4)], [(9, 2, 3), (3, 4)]], [[(2, 3), (2, 4)], [(3,), (3, 4)]]),
    ("one_hot", {"axis": -1, "depth": 3}, [[(4,), (2,)], [(), (2,)]], [[(4,), (3,)], [(4,), (1,)], [(4,), (2, 1)]]),
    *(
        ("max_pool", POOL | {name: length * (1,)}, [], [[(1, 2, 7, 6)]])
        for name, fits in (("kernel", 2), ("strides", 2), ("dilations", 2), ("pads", 4))
        for length in (fits - 1, fits + 1)
    ),
    (
        "recurrence",
        {"cell": "rnn", "activations": (("tanh", ()),)},
        [[(5, 3, 4), (4, 4), (3, 4)]],
        [[(5, 3, 4), (4, 4), shape] for shape in ((2, 4), (3, 5), (1, 4))] + [[(5, 3, 4), (4, 5), (3, 4)]],
    ),
]
"""Operators and their attributes, shapes that fit and, next to them, shapes that do not."""


@pytest.mark.parametrize(("op", "attrs", "fitting", "others"), FIT, ids=str)
def test_shapes_that_fit(op: str, attrs: dict[str, Any], fitting: list[Shapes], others: list[Shapes]) -> None:
    def emit(shapes: Shapes) -> None:
        b = GraphBuilder("shapes")
        ops.emit(
            b, op, *(b.input(f"x{k}", TensorType(f32, tuple(map(const, s)))) for k, s in enumerate(shapes)), **attrs
        )

    for shapes in fitting:
        emit(shapes)
    for shapes in others:
        with pytest.raises(ShapeError):
            emit(shapes)
