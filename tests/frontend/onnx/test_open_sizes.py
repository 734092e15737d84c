"""Sizes, pads, bounds and axes that only data says, where nothing bounds them: one compile for all, in rooms that grow.

Against ONNX's reference, compiled and interpreted, at numbers that grow and shrink.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tests.ops.test_extent import compare
from tilewright.codegen.onnx import onnx_model
from tilewright.frontend.onnx import import_onnx
from tilewright.ops.interpret import run_graph
from tilewright.runtime.rooms import FIRST, Rooms
from tilewright.support.errors import CallError, UnsupportedError

F, I = np.float32, np.int64
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
INT = TensorProto.INT64
rng = np.random.default_rng(7)


def x_of(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(F)


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["int64", "int32", "float32", "float64"])
def test_ranges(kind: str) -> None:
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [node("Range", ["a", "b", "c"], ["r"]), node("Mul", ["r", "r"], ["y"])]
    m = model(nodes, [info(name, [], code) for name in "abc"], ["y"])
    numbers = [(0, 5, 1), (3, 500, 2), (10, 0, -3), (0, 0, 1), (5, 3, 1), (0, 3000, 1), (7, 8, 100)]
    compare(m, *(dict(zip("abc", np.array(row, kind), strict=True)) for row in numbers), threads=(1, 2))


@pytest.mark.parametrize(
    "rows", [(-(1 << 62), 1 << 62, 1 << 60), (I64_MAX, -I64_MAX, -(1 << 61)), (0, I64_MIN, I64_MIN)]
)
def test_ranges_whose_length_is_no_i64(rows: tuple[int, int, int]) -> None:
    m = model([node("Range", ["a", "b", "c"], ["y"])], [info(name, [], INT) for name in "abc"], ["y"])
    assert tw.compile(m)(*map(I, rows)).tolist() == [*range(*rows)]


def test_rooms_grow_and_stay() -> None:
    """The first call of a size runs twice, later ones once; other sizes are not cut."""
    m = model([node("Range", ["a", "b", "c"], ["y"])], [info(name, [], INT) for name in "abc"], ["y"])
    compiled = tw.compile(m)
    assert [i.name for i in compiled.inputs] == ["a", "b", "c"] and len(compiled.manifest.inputs) == 4
    rooms = Rooms(compiled.manifest)
    (extent,) = compiled.manifest.extents
    assert rooms.suffice({extent: FIRST}) and not rooms.suffice({extent: 1000})
    assert rooms.suffice({extent: 1000}) and rooms.suffice({extent: 3})
    assert len(compiled(I(0), I(100_000), I(1))) == 100_000
    assert len(compiled(I(0), I(3), I(1))) == 3
    assert len(compiled.profile(I(0), I(70_000), I(1), repeat=1).kernels) >= 1


def test_what_is_measured_has_rooms_that_suffice() -> None:
    """Before any call of this size, too: a kernel that is cut short is not what a call takes."""
    m = model([node("Range", ["a", "b", "c"], ["y"])], [info(name, [], INT) for name in "abc"], ["y"])
    compiled = tw.compile(m)
    assert isinstance(compiled, tw.Model)
    assert max(compiled._measured((I(0), I(70_000), I(1))).dims) >= 70_000


@pytest.mark.parametrize("end", [1 << 39, 1 << 40])
def test_impossible_sizes_are_errors_of_the_call(end: int) -> None:
    m = model([node("Range", ["a", "b", "c"], ["y"])], [info(name, [], INT) for name in "abc"], ["y"])
    compiled = tw.compile(m)
    with pytest.raises(CallError, match="impossible size"):
        compiled(I(0), I(end), I(1))
    with pytest.raises(CallError, match="from Python"):
        compiled.ffi_function()
    assert len(compiled(I(0), I(9), I(1))) == 9


def test_sizes_below_zero_are_errors_of_the_call() -> None:
    """A window that is longer than the part that data cuts out: what has not been written is not given back."""
    nodes = [node("Slice", ["x", "zero", "end", "two"], ["part"]), node("MaxPool", ["part"], ["y"], kernel_shape=[3])]
    weights = {"zero": np.array([0]), "two": np.array([2])}
    m = model(nodes, [info("x", [1, 1, "n"]), info("end", [1], INT)], ["y"], weights)
    compiled, x = tw.compile(m, fallback="never"), x_of(1, 1, 8)
    assert np.asarray(compiled(x, np.array([4]))).tolist() == [[[x[0, 0, :3].max(), x[0, 0, 1:4].max()]]]
    assert np.asarray(compiled(x, np.array([2]))).shape == (1, 1, 0)
    for end in (1, 0):
        with pytest.raises(CallError, match="a size that the data decides is negative"):
            compiled(x, np.array([end]))


def test_such_models_are_saved(tmp_path: Any) -> None:
    m = model([node("Range", ["a", "b", "c"], ["y"])], [info(name, [], INT) for name in "abc"], ["y"])
    tw.compile(m).save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw")
    np.testing.assert_array_equal(loaded(I(2), I(300), I(3)), np.arange(2, 300, 3))


@pytest.mark.daily(2)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads(mode: str) -> None:
    """Batch and channels known, height and width from a computation; then all from an input, cuts among them."""
    nodes = [node("Mul", ["p", "two"], ["q"]), node("Concat", ["zeros", "q", "zeros", "q"], ["pads"], axis=0)]
    nodes.append(node("Pad", ["x", "pads"], ["y"], mode=mode))
    weights = {"two": I([2]), "zeros": I([0, 0, 0])}
    m = model(nodes, [info("x", [2, 3, 5, 9]), info("p", [1], INT)], ["y"], weights)
    compare(m, *({"x": x_of(2, 3, 5, 9), "p": I([k])} for k in (0, 1, 3)))
    m = model([node("Pad", ["x", "p"], ["y"], mode=mode)], [info("x", ["n", 6]), info("p", [4], INT)], ["y"])
    compare(m, *({"x": x_of(4, 6), "p": I(p)} for p in ([0, 0, 0, 0], [1, 2, 0, 3], [2, 0, 1, 0])))


def test_pads_that_cut() -> None:
    m = model([node("Pad", ["x", "p", "v"], ["y"])], [info("x", [4, 6]), info("p", [4], INT), info("v", [])], ["y"])
    compiled, x = tw.compile(m), x_of(4, 6)
    y = compiled(x, I([-1, 2, 1, -3]), F(7))
    np.testing.assert_array_equal(y, np.pad(x[1:, :3], ((0, 1), (2, 0)), constant_values=7))
    with pytest.raises(CallError, match=r"Pad: more is cut away than there is: .*got -2"):
        compiled(x, I([-3, 0, -3, 0]), F(7))


COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes_of_images(mode: str, coordinates: str) -> None:
    """Sizes that are half known, as exporters write them: the batch is that of an input."""
    nodes = [
        node("Shape", ["x"], ["whole"]),
        node("Slice", ["whole", "zero", "two"], ["first"]),
        node("Add", ["s", "s"], ["size"]),
        node("Concat", ["first", "size"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, coordinate_transformation_mode=coordinates),
    ]
    weights = {"zero": I([0]), "two": I([2])}
    m = model(nodes, [info("x", ["n", 2, 7, 5]), info("s", [2], INT)], ["y"], weights)
    (y,) = import_onnx(m).graph.outputs
    assert str(y.shape[0]) == "n" and str(y.shape[1]) == "2", "what is known stays known"
    compiled, x = tw.compile(m), x_of(2, 2, 7, 5)
    for size in ([7, 6], [2, 1], [50, 3]):
        known = import_onnx(model(nodes, [info("x", [2, 2, 7, 5])], ["y"], {**weights, "s": I(size)}))
        want = run_graph(known.graph, {"x": x}, known.weights)["y"]
        for got in (compiled(x, I(size)), run_graph(import_onnx(m).graph, {"x": x, "s": I(size)})["y"]):
            np.testing.assert_allclose(got, want, 1e-5, 1e-6)


@pytest.mark.daily(3)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_of_images(mode: str) -> None:
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode=mode)]
    compiled, x = tw.compile(model(nodes, [info("x", [1, 2, 6, 5]), info("s", [4])], ["y"])), x_of(1, 2, 6, 5)
    for scale in ([2, 2], [0.6, 3.3], [1, 1]):
        known = import_onnx(model(nodes, [info("x", [1, 2, 6, 5])], ["y"], {"s": F([1, 1, *scale])}))
        want = run_graph(known.graph, {"x": x}, known.weights)["y"]
        np.testing.assert_allclose(compiled(x, F([1, 1, *scale])), want, 1e-5, 1e-6)


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel"])
def test_repeated_pixels_of_open_images(coordinates: str) -> None:
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="nearest", coordinate_transformation_mode=coordinates)]
    compiled = tw.compile(model(nodes, [info("x", [1, 2, "h", "w"])], ["y"], {"s": F([1, 1, 2, 3])}))
    for x in (x_of(1, 2, 1, 3), x_of(1, 2, 6, 5)):
        np.testing.assert_array_equal(compiled(x), x.repeat(2, 2).repeat(3, 3))


def test_a_range_by_a_size_is_refused() -> None:
    nodes = [node("Shape", ["x"], ["d"]), node("Squeeze", ["d"], ["by"]), node("Range", ["a", "b", "by"], ["y"])]
    m = model(nodes, [info("x", ["n"])], ["y"], {"a": I(0), "b": I(10)})
    with pytest.raises(UnsupportedError, match="Range with a symbolic delta is not supported"):
        import_onnx(m)


def test_resizing_that_keeps_the_ratio() -> None:
    for policy in ("not_larger", "not_smaller"):
        nodes = [node("Resize", ["x", "", "", "s"], ["y"], axes=[2, 3], keep_aspect_ratio_policy=policy)]
        m = model(nodes, [info("x", [1, 2, 6, 4]), info("s", [2], INT)], ["y"])
        compare(m, *({"x": x_of(1, 2, 6, 4), "s": I(s)} for s in ([12, 12], [3, 9])))


def test_repeated_and_filled() -> None:
    nodes = [
        node("ConstantOfShape", ["s"], ["zeros"]),
        node("Expand", ["row", "s"], ["rows"]),
        node("Tile", ["row", "s"], ["tiles"]),
        node("Add", ["zeros", "rows"], ["y"]),
        node("OneHot", ["at", "depth", "values"], ["z"]),
        node("ReduceSum", ["tiles"], ["t"], keepdims=0),
    ]
    inputs = [info("row", [1, 4]), info("s", [2], INT), info("at", [3], INT), info("depth", [], INT)]
    m = model(nodes[4:5], inputs[2:], ["z"], {"values": F([0, 1])})
    compare(m, *({"at": I([0, 5, -1]), "depth": I(d)} for d in (6, 100)))
    m = model([nodes[1]], inputs[:2], ["rows"])
    compare(m, *({"row": x_of(1, 4), "s": I([k, 4])} for k in (1, 3, 90)))
    m = model([nodes[2], nodes[5]], inputs[:2], ["tiles", "t"])
    compare(m, *({"row": x_of(1, 4), "s": I(s)} for s in ([1, 1], [3, 5], [40, 2])))
    m = model([nodes[0]], inputs[1:2], ["zeros"])
    compare(m, *({"s": I(s)} for s in ([2, 3], [0, 4], [70, 70])))


def test_the_largest_and_the_parts() -> None:
    m = model([node("TopK", ["x", "k"], ["v", "i"], axis=0)], [info("x", ["n", 3]), info("k", [1], INT)], ["v", "i"])
    compare(m, *({"x": x_of(n, 3), "k": I([k])} for n, k in ((8, 3), (8, 8), (5, 0), (200, 150))))
    m = model([node("Split", ["x", "s"], ["a", "b"], axis=1)], [info("x", [3, 9]), info("s", [2], INT)], ["a", "b"])
    compare(m, *({"x": x_of(3, 9), "s": I(s)} for s in ([4, 5], [9, 0], [1, 8])))


def test_no_more_than_there_is() -> None:
    """A request of data beyond the dimension is refused."""
    m = model([node("TopK", ["x", "k"], ["v", "i"])], [info("x", [4]), info("k", [1], INT)], ["v"])
    x = x_of(4)
    with pytest.raises(CallError, match="TopK: k is outside the dimension: expected 0 to 4, got 1099511627776"):
        tw.compile(m)(x, I([1 << 40]))
    m = model([node("Split", ["x", "s"], ["a", "b"])], [info("x", [4]), info("s", [2], INT)], ["a", "b"])
    with pytest.raises(CallError, match="Split: a part does not fit the dimension: expected 0 to 4, got 9"):
        tw.compile(m)(x, I([3, 9]))


REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare".split()


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_over_axes_of_the_data(kind: str, keepdims: int) -> None:
    nodes = [node(f"Reduce{kind}", ["x", "a"], ["y"], keepdims=keepdims)]
    m = model(nodes, [info("x", [3, 4, 2, 5]), info("a", [2], INT)], ["y"])
    x = np.abs(x_of(3, 4, 2, 5)) + F(0.5)
    compare(m, *({"x": x, "a": I(a)} for a in ([0, 1], [3, -3], [2, 0])))


def test_a_whole_and_an_empty_list_of_axes() -> None:
    for count, axes in ((3, [2, 0, 1]), (0, [])):
        m = model([node("ReduceSum", ["x", "a"], ["y"])], [info("x", [3, 4, 2]), info("a", [count], INT)], ["y"])
        graph = compare(m, {"x": x_of(3, 4, 2), "a": I(axes)}).show("graph")
        assert "scatter" not in graph, "all are reduced, whatever their order"


def test_shapes_and_axes_of_the_data() -> None:
    m = model([node("Reshape", ["x", "s"], ["y"])], [info("x", [3, 4, 2]), info("s", [3], INT)], ["y"])
    compiled = compare(m, *({"x": x_of(3, 4, 2), "s": I(s)} for s in ([2, 4, 3], [-1, 2, 6], [0, 0, -1], [24, 1, 1])))
    for wrong in ([5, 5, 5], [-2, 3, 4], [1 << 40, 1 << 40, 1]):
        with pytest.raises(CallError, match="Reshape: the shape is for another number of elements: expected 24"):
            compiled(x_of(3, 4, 2), I(wrong))
    m = model([node("Unsqueeze", ["x", "a"], ["y"])], [info("x", [3, 4]), info("a", [2], INT)], ["y"])
    compare(m, *({"x": x_of(3, 4), "a": I(a)} for a in ([0, 1], [3, -3], [-1, 0])))
    m = model([node("Squeeze", ["x", "a"], ["y"])], [info("x", [1, 4, 1, 2]), info("a", [1], INT)], ["y"])
    compiled = compare(m, *({"x": x_of(1, 4, 1, 2), "a": I(a)} for a in ([0], [-2])))
    with pytest.raises(CallError, match="only dimensions of 1 can be squeezed"):
        compiled(x_of(1, 4, 1, 2), I([1]))


def test_several_sizes_take_little_memory() -> None:
    """The memory of six sizes of the data is the product of six rooms."""
    m = model([node("Unsqueeze", ["x", "a"], ["y"])], [info("x", [3, 4, 5]), info("a", [3], INT)], ["y"])
    compare(m, *({"x": x_of(3, 4, 5), "a": I(axes)} for axes in ([2, 4, 5], [5, 4, 2], [0, 1, -1])))
    m = model(
        [node("Reshape", ["x", "s"], ["h"]), node("Abs", ["h"], ["y"])], [info("x", [360]), info("s", [5], INT)], ["y"]
    )
    compiled = compare(m, *({"x": x_of(360), "s": I(shape)} for shape in ([3, 4, 5, 6, 1], [1, 90, 1, -1, 2])))
    assert compiled.memory().arenas_held < 16 << 20


def test_a_call_that_is_repeated_keeps_its_row_once() -> None:
    """Rooms that were too small make a call anew; caches of the program have its row once all the same."""
    nodes = [
        node("Concat", ["past", "x"], ["present"], axis=1),
        node("ReduceSum", ["present"], ["y"], keepdims=0),
        node("Range", ["zero", "count", "one"], ["r"]),
    ]
    inputs = [info("x", [1, 1, 4]), info("past", [1, "p", 4]), info("count", [], INT)]
    m = model(nodes, inputs, ["y", "r", "present"], {"zero": I(0), "one": I(1)})
    step = tw.compile(m, state={"past": "present"}, fallback="never").state(capacity=16)
    for calls, count in enumerate((3, 1000, 5), start=1):
        y, r = step(np.ones((1, 1, 4), F), I(count))
        assert (float(y), r.tolist()) == (4.0 * calls, [*range(count)])


def test_slices_by_axes_and_steps_of_the_data() -> None:
    inputs = [info("x", [6, 7, 3]), *(info(name, [2], INT) for name in "abcd")]
    m = model([node("Slice", ["x", *"abcd"], ["y"])], inputs, ["y"])
    rows = [
        ([1, 0], [5, 100], [0, 1], [2, 3]),
        ([-1, 5], [-100, 0], [1, -3], [-2, -1]),
        ([4, 0], [2, 3], [2, 0], [1, 1]),
    ]
    compiled = compare(m, *({"x": x_of(6, 7, 3), **dict(zip("abcd", map(I, row), strict=True))} for row in rows))
    with pytest.raises(CallError, match="Slice: the step of a slice is 0"):
        compiled(x_of(6, 7, 3), *map(I, ([0, 0], [6, 7], [0, 1], [0, 1])))


def test_cumulative_along_an_axis_of_the_data() -> None:
    m = model([node("CumSum", ["x", "a"], ["y"], exclusive=1)], [info("x", [3, 4, 2]), info("a", [], INT)], ["y"])
    compare(m, *({"x": x_of(3, 4, 2), "a": I(a)} for a in (0, 1, -1, -3)))
    m = model([node("Trilu", ["x", "k"], ["y"], upper=0)], [info("x", [2, 4, 5]), info("k", [], INT)], ["y"])
    compare(m, *({"x": x_of(2, 4, 5), "k": I(k)} for k in (0, 2, -9, 9)))


@pytest.mark.parametrize("most", [0, 2, 100])
def test_the_number_of_boxes_as_data_says(most: int) -> None:
    inputs = [info("b", [1, 9, 4]), info("s", [1, 2, 9]), info("k", [1], INT)]
    limits = {"t": F([0.5]), "l": F([0.0])}
    m = model([node("NonMaxSuppression", ["b", "s", "k", "t", "l"], ["y"])], inputs, ["y"], limits)
    compare(m, {"b": rng.random((1, 9, 4)).astype(F), "s": rng.random((1, 2, 9)).astype(F), "k": I([most])})


def test_one_size_of_the_data_after_another() -> None:
    """A first room that is too small cuts what the second one is computed from."""
    nodes = [
        node("Range", ["zero", "n", "one"], ["r"]),
        node("ReduceMax", ["r"], ["top"], keepdims=0),
        node("Add", ["top", "top"], ["more"]),
        node("Range", ["zero", "more", "one"], ["y"]),
        node("Shape", ["y"], ["size"]),
    ]
    m = model(nodes, [info("n", [], INT)], ["y", "size", "r"], {"zero": I(0), "one": I(1)})
    compare(m, *({"n": I(n)} for n in (3, 500, 2, 3000)))


def test_what_does_not_fit_after_is_known_at_the_call() -> None:
    """A product with a weight needs the size that data gives to a shape: code is made for it when it comes."""
    nodes = [node("Reshape", ["x", "s"], ["h"]), node("MatMul", ["h", "w"], ["y"])]
    m = model(nodes, [info("x", [12]), info("s", [2], INT)], ["y"], {"w": x_of(4, 5)})
    compiled = tw.compile(m)
    assert not isinstance(compiled, tw.Model)
    assert compiled.coverage().share == 1
    x, w = x_of(12), onnx.numpy_helper.to_array(m.graph.initializer[0])
    rows, columns = x.reshape(3, 4).astype(np.float64), w.astype(np.float64)
    # A sum of four products has at most four roundings, of numbers no larger than the sum of their absolute values.
    bound = 4 * 2.0**-24 * (abs(rows) @ abs(columns))
    assert np.all(abs(compiled(x, I([3, 4])) - rows @ columns) <= bound)


def test_a_count_that_stands_in_a_vector() -> None:
    """Iterations, a branch and a size, each an element after the first of an input."""
    body = onnx.helper.make_graph(
        [node("Add", ["x", "one"], ["y"]), node("Identity", ["go"], ["on"])],
        "body",
        [info("i", [], INT), info("go", [], TensorProto.BOOL), info("x", [])],
        [onnx.helper.make_empty_tensor_value_info(name) for name in ("on", "y")],
    )
    nodes = [
        node("Slice", ["v", "two", "three"], ["part"]),
        node("Reshape", ["part", "none"], ["count"]),
        node("Loop", ["count", "", "x0"], ["y"], body=body),
    ]
    weights = {"two": I([2]), "three": I([3]), "none": I([]), "one": F(1)}
    m = model(nodes, [info("v", [4], INT), info("x0", [])], ["y"], weights)
    compiled = tw.compile(m)
    assert [float(compiled(I([9, 8, k, 7]), F(0.5))) for k in (0, 3, 11)] == [0.5, 3.5, 11.5]
    assert compiled.step_clock(I([9, 8, 3, 7]), F(0)).samples(1) is not None


def test_a_loop_collects_as_often_as_data_says() -> None:
    body = onnx.helper.make_graph(
        [
            node("Mul", ["x", "two"], ["y"]),
            node("Identity", ["y"], ["z"]),
            node("ReduceMax", ["y"], ["most"], keepdims=0),
            node("Less", ["most", "limit"], ["on"]),
        ],
        "body",
        [info("i", [], INT), info("go", [], TensorProto.BOOL), info("x", [3])],
        [onnx.helper.make_empty_tensor_value_info(name) for name in ("on", "y", "z")],
    )
    loop = node("Loop", ["count", "go0", "x0"], ["last", "all"], body=body)
    inputs = [info("count", [], INT), info("x0", [3]), info("limit", [])]
    m = model([loop, node("Neg", ["all"], ["y"])], inputs, ["last", "y"], {"two": F(2), "go0": np.array(True)})
    calls = [(5, 1e9), (100, 50.0), (100, 1e38), (7, 0.0)]
    x = np.ones(3, F)
    compiled = compare(m, *({"count": I(k), "x0": x, "limit": F(limit)} for k, limit in calls))
    last, y = compiled(I(0), x, F(9))  # which ONNX's reference cannot
    assert last.tolist() == [1, 1, 1] and y.shape == (0, 3)


def test_only_the_number_of_rows_is_wanted() -> None:
    m = model([node("NonZero", ["x"], ["z"]), node("Shape", ["z"], ["y"])], [info("x", ["n", 3])], ["y"])
    compare(m, {"x": np.eye(3, dtype=F)}, {"x": np.zeros((9, 3), F)})


def test_written_as_onnx_once_more() -> None:
    """Rooms are not written: ONNX's operators give as many as data says."""
    nodes = [
        node("Range", ["a", "b", "c"], ["r"]),
        node("Pad", ["x", "p"], ["q"]),
        node("Slice", ["x", "b", "b2"], ["t"]),
    ]
    nodes[2] = node("Slice", ["x", "p1", "p2"], ["t"])
    inputs = [*(info(name, [], INT) for name in "abc"), info("x", [4]), info("p", [2], INT)]
    inputs += [info("p1", [1], INT), info("p2", [1], INT)]
    imported = import_onnx(model(nodes, inputs, ["r", "q", "t"]))
    written = onnx_model(imported.graph, imported.weights)
    assert [i.name for i in written.graph.input] == ["a", "b", "c", "x", "p", "p1", "p2"]
    x = x_of(4)
    feeds = {"a": I(1), "b": I(200), "c": I(3), "x": x, "p": I([2, 1]), "p1": I([1]), "p2": I([3])}
    r, q, t = ReferenceEvaluator(written).run(None, feeds)
    np.testing.assert_array_equal(r, np.arange(1, 200, 3))
    np.testing.assert_array_equal(q, np.pad(x, (2, 1)))
    np.testing.assert_array_equal(t, x[1:3])


def test_outputs_whose_size_overflows() -> None:
    """2^63 and 2^66 elements of three dimensions: an error that says so, not NumPy's."""
    nodes = [node("Reshape", ["x", name], [f"x_{name}"]) for name in "abc"]
    nodes += [node("Mul", ["x_a", "x_b"], ["h"]), node("Mul", ["h", "x_c"], ["y"])]
    weights = {"a": I([-1, 1, 1]), "b": I([1, -1, 1]), "c": I([1, 1, -1])}
    compiled = tw.compile(model(nodes, [info("x", ["n"], TensorProto.UINT8)], ["y"], weights))
    assert compiled(np.ones(3, np.uint8)).shape == (3, 3, 3)
    for n in (1 << 21, 1 << 22):
        x = np.ones(n, np.uint8)
        for call in (lambda x=x: compiled(x), lambda x=x: compiled.run({"x": x})):
            with pytest.raises(CallError, match="too large a one"):
                call()
