"""Files of exporters that saw one run: nothing to pad to whole windows, as many steps as that run had."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.arith import simplify
from tilewright.frontend.common.equal_sizes import condition
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.ir.expr import Expr, Var
from tilewright.support.errors import CallError, ShapeError

b, h, w = Var("b", lo=1), Var("h", lo=1), Var("w", lo=1)


def padded(n: Expr, window: int) -> Expr:
    return simplify(n + -n % window)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (padded(h // 4, 4), h // 4, {"h // 4 * -1 % 4 == 0"}),
        (b * padded(h, 8) * padded(w // 2, 4), b * h * (w // 2), {"h * -1 % 8 == 0", "w // 2 * -1 % 4 == 0"}),
        (padded(h, 4) + w, h + w, {"h * -1 % 4 == 0"}),
        (padded(h, 4) + w, h + 2 * w, {"h + h * -1 % 4 + w == w * 2 + h"}),
        (padded(h, 4) * 2, w * 2, {"h * 2 + h * -1 % 4 * 2 == w * 2"}),
    ],
)
def test_remainders_that_must_be_nothing(a: Expr, b: Expr, said: set[str]) -> None:
    assert set(str(condition(simplify(a), simplify(b))).split(" and ")) == said


def windows() -> onnx.ModelProto:
    """f32[b, 2, s] pooled by 2, padded to windows of 4, each window's sum and its rows, then every second row and the
    ones after them side by side."""
    nodes = [
        node("MaxPool", ["x"], ["pooled"], kernel_shape=[2], strides=[2]),
        node("Shape", ["pooled"], ["rows"], start=2, end=3),
        node("Shape", ["pooled"], ["batch"], start=0, end=1),
        node("Neg", ["rows"], ["less"]),
        node("Mod", ["less", "four"], ["rest"]),
        node("Concat", ["zeros5", "rest"], ["pads"], axis=0),
        node("Pad", ["pooled", "pads"], ["padded"]),
        node("Shape", ["padded"], ["shape"], start=2, end=3),
        node("Div", ["shape", "four"], ["count"]),
        node("Concat", ["batch", "two", "count", "four"], ["split"], axis=0),
        node("Reshape", ["padded", "split"], ["windows"]),
        node("ReduceSum", ["windows", "three"], ["sums"], keepdims=1),
        node("Sub", ["windows", "sums"], ["less_sums"]),
        # One row an image and window; how many images there are is that divided by the windows of one.
        node("Mul", ["batch", "count"], ["all"]),
        node("Div", ["all", "count"], ["images"]),
        node("Mul", ["rows", "two"], ["both"]),
        node("Concat", ["images", "both"], ["flat_shape"], axis=0),
        node("Reshape", ["less_sums", "flat_shape"], ["flat"]),
        node("Concat", ["images", "two", "rows"], ["back_shape"], axis=0),
        node("Reshape", ["flat", "back_shape"], ["back"]),
        node("Slice", ["back", "zero", "rows", "two", "two"], ["even"]),
        node("Slice", ["back", "one", "rows", "two", "two"], ["odd"]),
        node("Concat", ["even", "odd"], ["y"], axis=1),
    ]
    constants = {name: np.array([n]) for name, n in (("zero", 0), ("one", 1), ("two", 2), ("three", 3), ("four", 4))}
    return model(nodes, [info("x", ("b", 2, "s"))], ["y"], {**constants, "zeros5": np.zeros(5, np.int64)})


def test_whole_windows_are_assumed_and_checked() -> None:
    file, rng = windows(), np.random.default_rng(0)
    read = import_onnx(file)
    assert [str(a.condition) for a in read.graph.assumptions] == ["s // 2 * -1 % 4 == 0"]
    compiled = tw.compile(file, fallback="never")
    reference = onnx.reference.ReferenceEvaluator(file)
    for batch, s in ((1, 8), (3, 9), (2, 16), (1, 33)):
        x = rng.standard_normal((batch, 2, s)).astype(np.float32)
        np.testing.assert_allclose(compiled(x), reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(CallError, match=r"s // 2 \* -1 % 4 == 0.*s = 12"):
        compiled(np.zeros((1, 2, 12), np.float32))


def test_a_size_that_may_be_nothing_divides_its_products() -> None:
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Shape", ["x"], ["m"], start=1, end=2),
        node("Div", ["m", "four"], ["windows"]),
        node("Mul", ["n", "windows"], ["all"]),
        node("Div", ["all", "windows"], ["images"]),
        node("Expand", ["row", "images"], ["y"]),
        node("Neg", ["x"], ["z"]),
    ]
    constants = {"four": np.array([4]), "row": np.ones(1, np.float32)}
    read = import_onnx(model(nodes, [info("x", ("n", "m"))], ["y", "z"], constants))
    assert str(read.graph.outputs[0].type) == "f32[n]"


def test_a_loop_that_an_exporter_unrolled_is_refused_with_its_size() -> None:
    """Sums of the rows so far, written as the steps of a run over three rows."""
    nodes = [node("Gather", ["x", f"n{k}"], [f"row{k}"], axis=1) for k in range(3)]
    nodes += [node("Add", [f"sum{k - 1}" if k > 1 else "row0", f"row{k}"], [f"sum{k}"]) for k in (1, 2)]
    nodes += [node("Concat", ["row0", "sum1", "sum2"], ["sums"], axis=1), node("Mul", ["sums", "x"], ["y"])]
    constants = {f"n{k}": np.array([k]) for k in range(3)}
    file = model(nodes, [info("x", ("batch", "seq", 2))], ["y"], constants)
    with pytest.raises(ShapeError, match=r'hint: the file is for .* unrolls loops in Python.*: dims=\{"seq": 3\}'):
        tw.compile(file, fallback="never")
    assert [str(x.type) for x in import_onnx(file, {"seq": 3}).graph.inputs] == ["f32[batch, 3, 2]"]
