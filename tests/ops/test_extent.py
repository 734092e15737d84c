"""Sizes that data decides: what is not zero, what a condition chooses, boxes that none covers, what a loop collects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import import_onnx
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import CallError, ShapeError, VerifyError
from tilewright.transform.graph.verify import graph_stage

F = np.float32
rng = np.random.default_rng(23)


def compare(
    m: onnx.ModelProto,
    *calls: dict[str, Any],
    threads: tuple[int, ...] = (1,),
    by_the_text: Callable[[dict[str, Any]], dict[str, Any]] = lambda inputs: inputs,
) -> tw.Model:
    """Compiled for these threads and interpreted, against ONNX's reference: values, shapes, types.

    The reference is called with inputs for which it does what the operator's text says of those.
    """
    reference, imported = ReferenceEvaluator(m), import_onnx(m)
    assert parse_graph(str(imported.graph)) == imported.graph
    names = [o.name for o in m.graph.output]
    for n in threads:
        compiled = tw.compile(m, threads=n)
        for inputs in calls:
            want = dict(zip(names, map(np.asarray, reference.run(None, by_the_text(inputs))), strict=True))
            for got in (compiled.run(inputs), run_graph(imported.graph, inputs, imported.weights)):
                for name in names:
                    assert (got[name].shape, got[name].dtype) == (want[name].shape, want[name].dtype), name
                    np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
    return compiled


@pytest.mark.parametrize("kind", ["float32", "bool", "int8", "int64", "float64"])
def test_nonzero(kind: str) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    m = model([node("NonZero", ["x"], ["y"])], [info("x", ["n", 5], code)], ["y"])
    calls = [{"x": (rng.random((n, 5)) < p).astype(kind)} for n, p in ((1, 0.5), (7, 0.3), (3, 0.0), (2, 1.0))]
    compare(m, *calls)


def test_nonzero_of_strange_numbers() -> None:
    x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45], F)
    m = model([node("NonZero", ["x"], ["y"])], [info("x", [6])], ["y"])
    np.testing.assert_array_equal(tw.compile(m)(x), np.array(np.nonzero(x)))


def uniques(x: Any, axis: int | None, ordered: bool) -> list[Any]:
    """NumPy's result, in the order of the first members where none is asked for."""
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not ordered:
        by_place = np.argsort(first)
        y, first, counts = np.take(y, by_place, 0 if axis is None else axis), first[by_place], counts[by_place]
        inverse = np.argsort(by_place)[inverse]
    return [y, first, inverse, counts]


@pytest.mark.daily(5)
@pytest.mark.parametrize("kind", ["float32", "int64", "bool", "uint8"])
@pytest.mark.parametrize("ordered", [1, 0])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_unique(kind: str, ordered: int, axis: int | None) -> None:
    """Compiled and interpreted; ONNX's reference cannot do all of it."""
    code, names = helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["y", "first", "inverse", "counts"]
    more = {} if axis is None else {"axis": axis}
    m = model([node("Unique", ["x"], names, sorted=ordered, **more)], [info("x", ["n", 3], code)], names)
    imported, compiled = import_onnx(m), tw.compile(m)
    for n, top in ((1, 2), (7, 2), (20, 3), (40, 200)):
        x = rng.integers(0, top, (n, 3)).astype(kind)
        want = uniques(x, axis, bool(ordered))
        for got in (compiled.run({"x": x}), run_graph(imported.graph, {"x": x}, imported.weights)):
            for name, w in zip(names, want, strict=True):
                assert got[name].dtype == w.dtype and got[name].shape == w.shape, name
                np.testing.assert_array_equal(got[name], w, name)


def test_unique_of_strange_numbers() -> None:
    """All NaN are one number, and so are both zeros."""
    x = np.array([np.nan, 1.0, -0.0, np.inf, np.nan, 0.0, -np.inf, 1.0], F)
    m = model([node("Unique", ["x"], ["y", "first", "inverse", "counts"])], [info("x", ["n"])], ["y", "inverse"])
    y, inverse = tw.compile(m)(x)
    np.testing.assert_array_equal(y, np.array([-np.inf, 0, 1, np.inf, np.nan], F))
    np.testing.assert_array_equal(inverse, [4, 2, 1, 3, 4, 1, 0, 2])


def test_unique_of_several() -> None:
    """A sort and one pass, not all pairs: 200,000 elements take less than three seconds of any machine."""
    x = rng.integers(0, 5000, 200_000).astype(np.int64)
    m = model([node("Unique", ["x"], ["y", "", "", "counts"])], [info("x", ["n"], TensorProto.INT64)], ["y", "counts"])
    compiled = tw.compile(m)
    start = time.process_time()
    y, counts = compiled(x)
    assert time.process_time() - start < 3
    for got, want in zip((y, counts), np.unique(x, return_counts=True), strict=True):
        np.testing.assert_array_equal(got, want)


def compressed() -> onnx.ModelProto:
    """Rows that a condition chooses, multiplied by a weight, added up; the weight and, in tests, the rows are positive,
    so that sums lose nothing."""
    nodes = [
        node("Greater", ["x", "half"], ["c"]),
        node("Compress", ["w", "c"], ["rows"], axis=0),
        node("MatMul", ["rows", "m"], ["p"]),
        node("ReduceSum", ["p"], ["s"], keepdims=0),
        node("Shape", ["rows"], ["shape"]),
        node("Softmax", ["p"], ["soft"], axis=-1),
    ]
    weights = {"half": F(0.5), "m": rng.random((16, 24)).astype(F)}
    return model(nodes, [info("x", ["n"]), info("w", ["n", 16])], ["soft", "s", "shape"], weights)


def test_kernels_read_the_size() -> None:
    """Products, norms and sums of as many rows as a condition chooses, none among them."""
    calls = [
        {"x": x, "w": rng.random((len(x), 16)).astype(F)}
        for x in (np.zeros(3, F), np.ones(1, F), rng.random(9).astype(F), rng.random(200).astype(F))
    ]
    compiled = compare(compressed(), *calls, threads=(2, 1))
    inputs = calls[-1].values()
    kernels = [k for k, step in enumerate(compiled.manifest.run_steps) if step.region is None]
    assert len(compiled.profile(*inputs, repeat=2).kernels) == len(kernels) < len(compiled.manifest.run_steps)
    clock = compiled.step_clock(*inputs)
    clock.samples(1)
    assert clock.counts[kernels].tolist() == [1] * len(kernels), "none is left out behind a size"


def test_models_with_such_outputs_are_saved(tmp_path: Any) -> None:
    compiled = tw.compile(compressed())
    compiled.save(tmp_path / "m.tw")
    x = rng.random(9).astype(F), rng.random((9, 16)).astype(F)
    for a, b in zip(tw.load(tmp_path / "m.tw")(*x), compiled(*x), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [o.name for o in compiled.outputs] == ["soft", "s", "shape"]
    with pytest.raises(CallError, match="none can be given"):
        compiled(*x, out=compiled(*x))


@pytest.mark.daily(3)
@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("most", [0, 4, 10**12])
def test_boxes_that_none_covers(center: int, most: int) -> None:
    inputs = [info("b", [2, "n", 4]), info("s", [2, 3, "n"]), info("t", [1]), info("l", [1])]
    nodes = [node("NonMaxSuppression", ["b", "s", "k", "t", "l"], ["y"], center_point_box=center)]
    m = model(nodes, inputs, ["y"], {"k": np.int64([most])})
    calls = []
    for n, overlap, least in ((30, 0.5, 0.2), (13, 0.1, 0.8), (1, 0.0, 0.0), (5, 0.3, 2.0)):
        arrays = rng.random((2, n, 4)).astype(F), rng.random((2, 3, n)).astype(F), F([overlap]), F([least])
        calls.append(dict(zip("bstl", arrays, strict=True)))
    compare(m, *calls)


def test_equal_boxes_and_scores() -> None:
    """The first of equals is chosen; what has no area covers nothing."""
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 2], [2, 2, 2, 2], [1, 1, 0, 0]]], F)
    m = model(
        [node("NonMaxSuppression", ["b", "s", "k", "t"], ["y"])],
        [info("b", [1, 5, 4]), info("s", [1, 1, 5])],
        ["y"],
        {"k": np.int64([9]), "t": F([0.5])},
    )
    got = tw.compile(m)(boxes, np.full((1, 1, 5), 0.5, F))
    np.testing.assert_array_equal(got, [[0, 0, 0], [0, 0, 2], [0, 0, 3]])


def test_a_loop_collects_the_number_of_values_as_it_has_iterations() -> None:
    empty = [helper.make_empty_tensor_value_info(name) for name in ("on", "y", "y2", "half")]
    body = helper.make_graph(
        [
            node("Add", ["x", "x"], ["y"]),
            node("ReduceSum", ["y"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["on"]),
            node("Identity", ["y"], ["y2"]),
            node("Mul", ["y", "s"], ["half"]),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("x", [3])],
        empty,
    )
    loop = helper.make_node("Loop", ["most", "enter", "x0"], ["last", "all", "halves"], body=body)
    inputs = [info("x0", [3]), info("limit", []), info("enter", [], TensorProto.BOOL)]
    m = model([loop, node("Relu", ["all"], ["r"])], inputs, ["last", "r", "halves"], {"most": np.int64(500)})
    x = rng.random(3).astype(F)
    compare(m, *({"x0": x, "limit": np.array(v, F), "enter": np.array(True)} for v in (0, 20, 1e5)))


def test_a_condition_longer_than_its_dimension_is_refused() -> None:
    with pytest.raises(ShapeError, match="longer than the dimension"):
        nodes = [node("Compress", ["w", "c"], ["y"], axis=0)]
        tw.compile(model(nodes, [info("w", [3]), info("c", [5], TensorProto.BOOL)], ["y"]), fallback="never")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%y = head(%x, %n) {defines = $k} : f32[k]\n%z = head(%x, %n) {defines = $k} : f32[k]", "there is already"),
        ("%y = head(%x, %n) {defines = $a} : f32[a]", "there is already"),
        ("%y = head(%x, %n) {defines = $(k + 1)} : f32[k + 1]", "only a symbol"),
        ("%y = relu(%x) : f32[k]", "no symbol"),
    ],
)
def test_symbols_are_defined_once(text: str, message: str) -> None:
    graph = parse_graph(f"graph @g(%x: f32[a], %n: i64[]) {{\n{text}\nreturn %y\n}}")
    with pytest.raises(VerifyError, match=message):
        graph_stage().begin(graph)
