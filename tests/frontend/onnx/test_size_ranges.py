"""Models whose shapes fit in a range of sizes alone: tables cut at their end, lengths that may be less than nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.reference
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.arith import simplify
from tilewright.frontend.common.equal_sizes import condition, ranges
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Var, maximum, minimum
from tilewright.support.errors import CallError, ShapeError

s, t = Var("s", lo=1), Var("t", lo=1)
even = Var("even", lo=1, multiple=2)
short = Var("short", lo=1, hi=100)
steps = (s + 240) // 320 - 1


@pytest.mark.parametrize(
    ("pairs", "results"),
    [
        ([(minimum(s, 512), s)], {"s": Dim(1, 512)}),
        ([(s, minimum(s, 512)), (t + 1, minimum(t, 7) + 1)], {"s": Dim(1, 512), "t": Dim(1, 7)}),
        ([(minimum(s, 512), s), (minimum(s, 64), s)], {"s": Dim(1, 64)}),
        ([(minimum(s, 512), minimum(s, 64))], {"s": Dim(1, 64)}),
        ([(maximum(steps, 0), steps)], {"s": Dim(80)}),
        ([(maximum(s - 3, 0), s - 3), (minimum(s, 9), s)], {"s": Dim(3, 9)}),
        ([(minimum(2 * s + 1, 77) * 3, 6 * s + 3)], {"s": Dim(1, 38)}),
        ([(minimum(even, 511), even)], {"even": Dim(1, 510)}),
        ([(minimum(short, 512), short)], {}),
        ([(minimum(s, 3), maximum(s, 3))], {"s": Dim(3, 3)}),
        ([(minimum(s, 512), s + 1)], {}),  # for no size
        ([(s // 2 * 2, s)], {}),
        ([(minimum(s, 512), t)], {}),
        ([], {}),
    ],
)
def test_ranges(pairs: list[Any], results: dict[str, Dim]) -> None:
    assert ranges(pairs) == results


past, total = Var("past", lo=1), Var("total", lo=1)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (minimum(past + s, 16) - minimum(past, 16), s, "past + s < 17"),
        (total - minimum(past, total), s, "total == past + s"),
        (maximum(s - 3, 0), t, "s == t + 3"),
        (minimum(s, 512), s, "s < 513"),
        (past + s, total, "past + s == total"),
        (s // 2 * 2, s, "s % 2 == 0"),
        (minimum(s, 77), minimum(t, 77), "None"),  # neither s == t nor both of 77 and more alone
    ],
)
def test_when_two_sizes_are_equal(a: Any, b: Any, said: str) -> None:
    result = condition(a, b)
    assert str(None if result is None else simplify(result)) == said


def cached(slices: bool) -> onnx.ModelProto:
    """Rows after those of a cache: they take their places in a table, and a mask has a size for both."""
    nodes = [
        node("Shape", ["x"], ["seq"], start=1, end=2),
        node("Shape", ["old"], ["past"], start=1, end=2),
        node("Shape", ["mask"], ["all"], start=1, end=2),
        node("Add", ["seq", "past"], ["both"]),
        node("Slice", ["table", "past", "all" if slices else "both", "zero"], ["rows"]),
        node("Add", ["x", "rows"], ["h"]),
        node("Concat", ["old", "h"], ["longer"], axis=1),
        node("Mul", ["longer", "mask"], ["y"]),
    ]
    shapes = {"x": ["n", "seq", 3], "mask": ["n", "total", 1], "old": ["n", "past", 3]}
    table = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    return model(nodes, [info(k, v) for k, v in shapes.items()], ["y"], {"table": table, "zero": np.int64([0])})


@pytest.mark.parametrize("slices", [False, True])
def test_sizes_of_which_one_is_the_sum_of_others(slices: bool) -> None:
    proto = cached(slices)
    built = tw.compile(proto, fallback="never")
    reference = onnx.reference.ReferenceEvaluator(proto)
    rng = np.random.default_rng(0)

    def inputs(n: int, seq: int, past: int, total: int) -> dict[str, Any]:
        shapes = {"x": (n, seq, 3), "mask": (n, total, 1), "old": (n, past, 3)}
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    for n, seq, past in ((1, 2, 3), (2, 5, 11), (3, 1, 1), (1, 1, 15)):
        values = inputs(n, seq, past, seq + past)
        np.testing.assert_allclose(built(*values.values()), reference.run(None, values)[0], rtol=0, atol=1e-6)
    for seq, past, total in ((5, 12, 17), (5, 3, 9), (5, 3, 7), (1, 16, 17)):
        with pytest.raises(CallError):
            built(*inputs(1, seq, past, total).values())


def test_what_is_needed_of_two_sizes_and_cannot_be_said_of_either_is_refused() -> None:
    nodes = [
        *(node("Shape", [x], [f"n{x}"], start=0, end=1) for x in "ab"),
        *(node("Slice", [x, "zero", "end", "zero"], [f"s{x}"]) for x in "ab"),
        node("Add", ["sa", "sb"], ["y"]),
    ]
    proto = model(
        nodes, [info("a", ["m", 2]), info("b", ["n", 2])], ["y"], {"zero": np.int64([0]), "end": np.int64([7])}
    )
    with pytest.raises(ShapeError, match="do not broadcast"):
        import_onnx(proto)


def positions(join: str) -> onnx.ModelProto:
    """A table of 16 rows, of which as many are taken as the input has, is joined with it."""
    nodes = [
        node("Shape", ["x"], ["length"], start=1, end=2),
        node("Slice", ["table", "zero", "length", "zero"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]) if join == "Add" else node("Expand", ["rows", "shape"], ["y"]),
    ]
    if join == "Expand":
        nodes.insert(2, node("Shape", ["x"], ["shape"]))
    table = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    return model(nodes, [info("x", ["n", "seq", 3])], ["y"], {"table": table, "zero": np.int64([0])})


@pytest.mark.parametrize("join", ["Add", "Expand"])
@pytest.mark.parametrize("said", [{}, {"seq": tw.dim(2, 100, likely=[4, 8, 50])}])
def test_a_table_that_is_cut_at_its_end(join: str, said: dict[str, Any]) -> None:
    proto = positions(join)
    built = tw.compile(proto, dims=said, fallback="never")
    reference = onnx.reference.ReferenceEvaluator(proto)
    rng = np.random.default_rng(0)
    for n, seq in ((1, 2), (3, 7), (2, 16)):
        x = rng.standard_normal((n, seq, 3)).astype(np.float32)
        np.testing.assert_allclose(built(x), reference.run(None, {"x": x})[0], rtol=0, atol=1e-6)
    with pytest.raises(CallError, match=r"expected seq in [12]\.\.16, got 17"):
        built(np.zeros((1, 17, 3), np.float32))


def test_a_range_in_which_the_caller_has_no_size() -> None:
    with pytest.raises(ShapeError, match="do not broadcast"):
        import_onnx(positions("Add"), {"seq": tw.dim(20, 40)})


def test_likely_values_outside_the_range_are_left_out() -> None:
    (x,) = import_onnx(positions("Add"), {"seq": tw.dim(2, 100, likely=[4, 8, 50])}).graph.inputs
    seq = x.type.shape[1]
    assert isinstance(seq, Var) and (seq.lo, seq.hi, seq.likely) == (2, 16, (4, 8))


def test_lengths_that_may_be_less_than_nothing() -> None:
    """The expression that an exporter writes for `max(n // 4 - 1, 0)` rows meets the rows that a convolution gives."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w"], ["c"], kernel_shape=[8], strides=[4]),
        node("Shape", ["x"], ["n"], start=2, end=3),
        node("Div", ["n", "four"], ["q"]),
        node("Sub", ["q", "one"], ["less"]),
        node("Max", ["less", "zero"], ["rows"]),
        node("ConstantOfShape", ["rows"], ["ones"], value=onnx.numpy_helper.from_array(np.float32([1.5]))),
        node("Mul", ["c", "ones"], ["y"]),
    ]
    weights = {
        "w": rng.standard_normal((2, 1, 8)).astype(np.float32),
        "four": np.int64([4]),
        "one": np.int64([1]),
        "zero": np.int64([0]),
    }
    proto = model(nodes, [info("x", [1, 1, "n"])], ["y"], weights)
    built = tw.compile(proto, fallback="never")
    for n in (8, 11, 12, 40):
        x = rng.standard_normal((1, 1, n)).astype(np.float32)
        wanted = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
        np.testing.assert_allclose(built(x), wanted, rtol=0, atol=1e-5)


def test_a_range_and_a_divisor() -> None:
    """A table cut at its end, in pairs of rows."""
    nodes = [
        node("Shape", ["x"], ["length"], start=0, end=1),
        node("Slice", ["table", "zero", "length", "zero"], ["rows"]),
        node("Add", ["x", "rows"], ["sum"]),
        node("Div", ["length", "two"], ["half"]),
        node("Concat", ["half", "six"], ["shape"], axis=0),
        node("Reshape", ["sum", "shape"], ["y"]),
    ]
    table = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    numbers = {name: np.int64([n]) for name, n in (("zero", 0), ("two", 2), ("six", 6))}
    proto = model(nodes, [info("x", ["seq", 3])], ["y"], {"table": table, **numbers})
    built = tw.compile(proto, fallback="never")
    for seq in (2, 10, 16):
        x = np.random.default_rng(seq).standard_normal((seq, 3)).astype(np.float32)
        wanted = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
        np.testing.assert_allclose(built(x), wanted, rtol=0, atol=1e-6)
    for seq in (7, 18):
        with pytest.raises(CallError):
            built(np.zeros((seq, 3), np.float32))


@pytest.mark.daily(3)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_maps_are_resized_to_symbolic_sizes(mode: str) -> None:
    """A table of 4 columns becomes one of as many as the input has windows."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Shape", ["x"], ["n"], start=1, end=2),
        node("Div", ["n", "eight"], ["q"]),
        node("Concat", ["ones", "q"], ["sizes"], axis=0),
        node("Resize", ["table", "", "", "sizes"], ["r"], mode=mode, coordinate_transformation_mode="asymmetric"),
        node("ReduceMean", ["x"], ["mean"], keepdims=1),
        node("Reshape", ["mean", "three"], ["m"]),
        node("Add", ["r", "m"], ["y"]),
    ]
    weights = {
        "table": rng.standard_normal((1, 2, 4)).astype(np.float32),
        "eight": np.int64([8]),
        "ones": np.int64([1, 2]),
        "three": np.int64([1, 1, 1]),
    }
    proto = model(nodes, [info("x", ["b", "n"])], ["y"], weights)
    built = tw.compile(proto, fallback="never")
    for n in (8, 32, 77):
        x = rng.standard_normal((2, n)).astype(np.float32)
        wanted = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
        np.testing.assert_allclose(built(x), wanted, rtol=0, atol=1e-5)


def test_integer_division_of_what_may_be_negative() -> None:
    """ONNX truncates: (n - 9) / 4 + 3 rows."""
    names = ("nine", "four", "three")
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        *(
            node(op, [a, b], [y])
            for op, a, b, y in zip(("Sub", "Div", "Add"), ("n", "less", "q"), names, ("less", "q", "rows"), strict=True)
        ),
        node("ConstantOfShape", ["rows"], ["ones"], value=onnx.numpy_helper.from_array(np.float32([1.5]))),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Add", ["ones", "sum"], ["y"]),
    ]
    numbers = {name: np.int64([n]) for name, n in zip(names, (9, 4, 3), strict=True)}
    proto = model(nodes, [info("x", ["n"])], ["y"], numbers)
    built = tw.compile(proto, fallback="never")
    for n in (1, 5, 6, 8, 9, 12, 13, 30):
        assert built(np.ones(n, np.float32)).shape == (int((n - 9) / 4) + 3,)


@pytest.mark.parametrize(("op", "shape"), [("Gather", (1,)), ("GatherElements", (1, 3)), ("GatherND", (1, 1))])
def test_places_that_count_from_the_end(op: str, shape: tuple[int, ...]) -> None:
    """Fewer rows than an index counts back are refused, as by ONNX Runtime."""
    m = model([node(op, ["x", "i"], ["y"])], [info("x", ["n", 3])], ["y"], {"i": np.full(shape, -3)})
    compiled = tw.compile(m)
    for size in (3, 5):
        x = np.arange(3 * size, dtype=np.float32).reshape(size, 3)
        np.testing.assert_array_equal(np.asarray(compiled(x)).reshape(-1), x[size - 3])
    for size in (1, 2):
        with pytest.raises(CallError, match=rf"expected n in 3\.\.\d*, got {size}"):
            compiled(np.zeros((size, 3), np.float32))


@pytest.mark.parametrize("least", [0, 1])
def test_blocks_that_end_before_the_elements_may(least: int) -> None:
    """The scales reach for 32 elements, and the caller allows 64: no code is left that reads more scales."""
    file = model(
        [node("DequantizeLinear", ["x", "s"], ["y"], axis=1, block_size=2)],
        [info("x", [3, "n"], onnx.TensorProto.INT8), info("s", [3, "m"])],
        [info("y", None)],
        opset=21,
    )
    compiled = tw.compile(file, dims={"n": tw.dim(least, 64), "m": tw.dim(least, 16)}, fallback="never")
    rng = np.random.default_rng(0)
    for n in (least, 1, 5, 17, 32):
        x = rng.integers(-128, 128, (3, n)).astype(np.int8)
        scales = rng.random((3, -(-n // 2)), np.float32)
        want = x.astype(np.float32) * np.repeat(scales, 2, axis=1)[:, :n]
        np.testing.assert_array_equal(compiled(x, scales), want)
    with pytest.raises(CallError, match="out of range"):
        compiled(np.zeros((3, 33), np.int8), np.zeros((3, 16), np.float32))
    with pytest.raises(CallError, match="lies inside of it"):
        compiled(np.zeros((3, 5), np.int8), np.zeros((3, 1), np.float32))
