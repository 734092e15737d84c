"""Numbers that make no sense, such as an axis that a tensor does not have: ONNX Runtime refuses them, so do we.

Each row of the table is an operator whose numbers are constants of the file in one model and come with each call in the
other one. Constants are refused by the import, numbers of a call by an error of the call that names the operator, which
leaves the model as it was. What ONNX Runtime says of each is asked of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.codegen.onnx import onnx_model
from tilewright.codegen.stablehlo import stablehlo_text
from tilewright.frontend.onnx import import_onnx
from tilewright.ops.interpret import run_graph
from tilewright.ops.require import RequireAttrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, ModelError

F, I = np.float32, np.int64
X = np.arange(24, dtype=F).reshape(4, 6)
IMAGE = X.reshape(1, 1, 4, 6)
STEPS, NAN, INF = np.ones((5, 2, 3), F), float("nan"), float("inf")
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
LSTM = (STEPS, np.ones((1, 8, 3), F), np.ones((1, 8, 2), F), None)
GRU = (STEPS, np.ones((1, 6, 3), F), np.ones((1, 6, 2), F), None)
NUMBER = object()
"""Where numbers stand among an operator's inputs; after all others where it is nowhere."""
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5]]], F), np.array([[[0.9, 0.8]]], F), I([2])

Bad = dict[Any, str]
"""Numbers that are refused, with what the error of a call says; what it says of a constant may be less."""


@dataclass(frozen=True)
class Row:
    """An operator's other inputs (None: left out), numbers that are taken, those that are refused, and its attributes.
    Numbers are arrays of these types and this rank."""

    op: str
    tensors: tuple[Any, ...]
    good: tuple[Any, ...]
    bad: Bad
    attributes: dict[str, Any]
    dtypes: tuple[Any, ...]
    rank: int
    outputs: int
    opset: int

    def arrays(self, numbers: Any) -> list[Any]:
        """The numbers, each as an array of its type."""
        several = numbers if len(self.dtypes) > 1 else (numbers,)
        return [np.array(v, t).reshape((-1,) if self.rank else ()) for v, t in zip(several, self.dtypes, strict=True)]

    def model(self, numbers: Any, *, constant: bool) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """The operator, with its numbers as constants or as inputs, and the inputs of a call."""
        arrays = self.arrays(numbers)
        values = {f"n{k}": a for k, a in enumerate(arrays)}
        tensors = self.tensors if any(t is NUMBER for t in self.tensors) else (*self.tensors, NUMBER)
        names, inputs = list[str](), dict[str, Any]()
        for k, tensor in enumerate(tensors):
            if tensor is NUMBER:
                names += values
            else:
                names.append("" if tensor is None else f"x{k}")
                inputs |= {} if tensor is None else {f"x{k}": tensor}
        outputs = [f"y{k}" for k in range(self.outputs)]
        arguments = inputs if constant else inputs | values
        infos = [info(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in arguments.items()]
        single = node(self.op, names, outputs, **self.attributes)
        float_, int_ = TensorProto.FLOAT, TensorProto.INT64
        code = int_ if self.op == "NonMaxSuppression" or (self.op == "Range" and arrays[0].dtype == I) else float_
        types = [info(y, None, code if k == 0 else int_ if self.op == "TopK" else code) for k, y in enumerate(outputs)]
        return model([single], infos, types, values if constant else {}, opset=self.opset), arguments


def row(
    op: str,
    tensors: Sequence[Any],
    good: Sequence[Any],
    bad: Bad,
    dtypes: Any = I,
    *,
    rank: int = 1,
    outputs: int = 1,
    opset: int = 21,
    **attributes: Any,
) -> Row:
    types = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    return Row(op, tuple(tensors), tuple(good), bad, attributes, types, rank, outputs, opset)


OUTSIDE, TWICE, LENGTH = "axis is outside the tensor", "an axis is named twice", "a length is outside the sequence"
REFLECTED = "there is too little to reflect"
ROWS = [
    row("CumSum", [X], [0, 1, -1, -2], {2: OUTSIDE, -3: f"{OUTSIDE}: expected -2 to 1, got -3"}, rank=0),
    row("CumSum", [X.ravel()], [0, -1], {1: OUTSIDE, -2: OUTSIDE, I64_MIN: OUTSIDE}, rank=0),
    row("CumProd", [X[:, :2]], [1, -2], {2: OUTSIDE}, rank=0, opset=26),
    row("ReduceSum", [X.reshape(2, 3, 4)], [[0, 1], [-1, 0]], {(0, 3): OUTSIDE, (-4, 1): OUTSIDE}),
    row("ReduceSum", [X], [[1, 0], [-1, 0]], {(0, 2): OUTSIDE}, keepdims=0),
    row("ReduceMax", [X], [0, -1], {2: f"{OUTSIDE}: expected -2 to 1, got 2"}, keepdims=0),
    row("ReduceMean", [X], [1], {-3: OUTSIDE}),
    row("ReduceLogSumExp", [X.reshape(2, 3, 4)], [[0, 1]], {(1, 5): OUTSIDE}),
    row(
        "Slice",
        [X],
        [([0, 1], [3, 9], [0, 1], [1, 2]), ([-1, -1], [I64_MIN, 0], [1, -2], [-2, -1])],
        {
            ((0, 0), (3, 3), (0, 1), (1, 0)): "the step of a slice is 0",
            ((0, 0), (3, 3), (0, 2), (1, 1)): f"{OUTSIDE}: expected -2 to 1, got 2",
            ((0, 0), (3, 3), (-3, 0), (1, 1)): OUTSIDE,
            ((0, 0), (3, 3), (1, 1), (1, 1)): TWICE,
            ((0, 0), (3, 3), (0, -2), (1, 1)): f"{TWICE}: got 0",
        },
        (I, I, I, I),
    ),
    row("TopK", [X], [6, 3, 0], {7: "k is outside the dimension: expected 0 to 6, got 7", -1: "k is out"}, outputs=2),
    row("TopK", [X], [4, 1], {5: "k is outside the dimension"}, outputs=2, axis=0, largest=0),
    row(
        "Split",
        [X],
        [[2, 4], [6, 0]],
        {
            (2, 3): "the parts do not make up the dimension: expected 6 to 6, got 5",
            (3, 4): "the parts do not make up",
            (7, -1): "a part does not fit the dimension: expected 0 to 6, got 7",
            (-1, 7): "a part does not fit",
            (1 << 62, 6 - (1 << 62)): "a part does not fit",
        },
        outputs=2,
        axis=1,
    ),
    row("Split", [X[:, :0]], [[0, 0]], {(1, -1): "a part does not fit", (0, 1): "part"}, outputs=2, axis=1),
    row(
        "Range",
        [],
        [(0, 5, 1), (5, -6, -3), (-5, -1, 2), (3, 3, 1), (-(1 << 62), 1 << 62, 1 << 60), (0, I64_MIN, I64_MIN)],
        {
            (0, 5, 0): "the delta is 0",
            (I64_MIN, I64_MAX, 1): "too many elements",
            (I64_MAX, I64_MIN, -1): "too many elements",
            (-3, I64_MAX, 1): "too many elements",
        },
        (I, I, I),
        rank=0,
    ),
    row(
        "Range",
        [],
        [(0, 3, 0.5), (1, 0, 1), (1, -1, -0.25)],
        {
            (0, 5, 0): "the delta is 0",
            (0, NAN, 1): "NaN",
            (NAN, 1, 1): "NaN",
            (0, 1, NAN): "NaN",
            (0, INF, 1): "too many elements",
            (0, 1e30, 1): "too many elements",
            (0, -INF, -1): "too many elements",
        },
        (F, F, F),
        rank=0,
    ),
    row("Pad", [X], [[0, 2, 1, 0], [-1, 0, -1, 0], [-2, 0, -2, 0]], {(-3, 0, -2, 0): "more is cut away than there is"}),
    row(
        "Pad",
        [X],
        [[3, 5, 3, 5], [2, 0, -1, 0], [0, 0, 0, 0]],
        {
            (4, 0, 0, 0): REFLECTED,
            (0, 0, 0, 6): f"{REFLECTED}: got 6",
            (3, 0, -1, 0): REFLECTED,
            (9, 0, 0, 0): REFLECTED,
        },
        mode="reflect",
    ),
    row("Pad", [X], [[9, 0, 0, 13]], {(0, -9, 0, 0): "more is cut away"}, mode="wrap"),
    row("Expand", [X], [[4, 6], [1, 6], [1, 1]], {(3, 6): "do not broadcast: expected 1 or 4, got 3", (0, 6): "got 0"}),
    row("Expand", [X], [[2, 1, 1]], {(2, 4, -1): "do not broadcast", (2, 5, 1): "do not broadcast"}),
    row("OneHot", [I([0, 2, -1]), NUMBER, F([0, 1])], [3, 1], {0: "at least 1, got 0", -1: "is not positive"}, rank=0),
    row(
        "Resize", [IMAGE, None, None, NUMBER], [[1, 1, 3, 6]], {(1, 1, 0, 6): "a size is not", (1, 1, 2, -1): "a size"}
    ),
    row(
        "Resize",
        [IMAGE, None, NUMBER],
        [[1, 1, 0.5, 2], [1, 1, 0.1, 1]],
        {
            (1, 1, 0, 1): "a scale makes no sense",
            (1, 1, NAN, 1): "a scale",
            (1, 1, 1, -2): "a scale",
            (1, 1, INF, 1): "got inf",
        },
        F,
        mode="linear",
    ),
    row("Squeeze", [X.reshape(1, 4, 6)], [0, -3], {1: "only dimensions of 1 can be squeezed", 3: OUTSIDE, -4: OUTSIDE}),
    row("Unsqueeze", [X], [[0, 1], [3, -4]], {(0, 4): OUTSIDE, (0, 0): TWICE, (0, -4): TWICE, (-5, 0): OUTSIDE}),
    row(
        "Reshape", [X], [[2, 12], [-1, 3], [0, 6]], {(5, 5): "another number", (-1, 5): "another", (-2, 12): "another"}
    ),
    row("ReverseSequence", [X], [[4, 0, 1, 2, 3, 4]], {(5, 0, 1, 2, 3, 4): f"{LENGTH}: expected 0 to 4, got 5"}),
    row("ReverseSequence", [X.T], [[6, 0, 1, 2]], {(1, 1, 1, -1): f"{LENGTH}: expected 0 to 6, got -1"}),
    row(
        "LSTM", LSTM, [[5, 0]], {(6, 5): LENGTH, (-1, 5): f"{LENGTH}: expected 0 to 5, got -1"}, np.int32, hidden_size=2
    ),
    row("GRU", GRU, [[5, 2]], {(6, 5): LENGTH, (5, -2): LENGTH}, np.int32, hidden_size=2),
    row(
        "TensorScatter",
        [np.zeros((2, 4, 3), F), np.ones((2, 2, 3), F)],
        [[2, 0]],
        {
            (3, 0): "does not lie inside the tensor: expected 0 to 2, got 3",
            (0, -1): "does not lie",
            (0, 1 << 40): "got",
        },
        axis=1,
        opset=24,
    ),
    row(
        "TensorScatter",
        [np.zeros((2, 4, 3), F), np.ones((2, 2, 3), F)],
        [[3, 9]],
        {(0, -1): "does not lie inside the tensor"},
        axis=1,
        opset=24,
        mode="circular",
    ),
    row("Upsample", [IMAGE], [[1, 1, 2, 1.5]], {(1, 1, 0, 1): "a scale", (1, 1, 0.5, 1): "1 or more"}, F, opset=9),
    row("Dropout", [X], [0.5, 0], {1.5: "the ratio", 1: "the ratio", -0.5: "the ratio", NAN: "got nan"}, F, rank=0),
    row("HannWindow", [], [5], {-1: "the size of a window is not positive"}, rank=0),
    row("BlackmanWindow", [], [3], {-3: "the size of a window is not positive"}, rank=0),
    row("NonMaxSuppression", BOXES, [0.5, 1.0], {1.5: "the overlap", -0.5: "the overlap"}, F),
    row("ConstantOfShape", [], [[2, 3]], {(-1, 3): "impossible size"}),
    row("Tile", [X], [[2, 1], [0, 3]], {(-1, 2): "impossible size"}),
    row("ReduceSum", [X], [[0]], {2: OUTSIDE}, noop_with_empty_axes=1),
]


@dataclass(frozen=True)
class Door:
    """A model in ONNX Runtime and here."""

    m: onnx.ModelProto

    def peer(self, inputs: dict[str, Any]) -> list[Any]:
        """The results of ONNX Runtime, whose errors have no common class."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        text = self.m.SerializeToString()
        session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
        return list(session.run(None, inputs))

    def refused_by_peer(self, inputs: dict[str, Any]) -> bool:
        try:
            self.peer(inputs)
        except Exception:  # of several classes
            return True
        return False


@pytest.mark.daily(5)
@pytest.mark.parametrize("case", ROWS, ids=lambda r: r.op)
def test_numbers_of_a_call(case: Row) -> None:
    m, _ = case.model(case.good[0], constant=False)
    door, compiled, imported = Door(m), tw.compile(m, fallback="never", threads=2), import_onnx(m)
    names = [o.name for o in m.graph.output]

    def check_good() -> None:
        for numbers in case.good:
            _, inputs = case.model(numbers, constant=False)
            for name, want, got in zip(names, door.peer(inputs), compiled.run(inputs).values(), strict=True):
                assert (got.shape, got.dtype) == (want.shape, want.dtype), (numbers, name)
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=str(numbers))

    check_good()
    for numbers, words in case.bad.items():
        _, inputs = case.model(numbers, constant=False)
        assert door.refused_by_peer(inputs), numbers
        with pytest.raises(CallError, match=rf"{case.op}: .*{re.escape(words)}"):
            compiled.run(inputs)
        with pytest.raises(CallError, match=rf"{case.op}: .*{re.escape(words)}"):
            run_graph(imported.graph, inputs, imported.weights)
    check_good()


@pytest.mark.parametrize("case", ROWS, ids=lambda r: r.op)
def test_constants(case: Row) -> None:
    for numbers in case.good:
        import_onnx(case.model(numbers, constant=True)[0])
    for numbers in case.bad:
        m, inputs = case.model(numbers, constant=True)
        assert Door(m).refused_by_peer(inputs), numbers
        with pytest.raises(ModelError, match=case.op):
            import_onnx(m)


def test_where_there_is_no_reason_a_call_checks_nothing() -> None:
    """Numbers that are known cost nothing, and those of the data are looked at once."""
    constant = tw.compile(row("CumSum", [X], [1], {}, rank=0).model(1, constant=True)[0])
    assert constant.manifest.checks == ()
    asked = tw.compile(row("CumSum", [X], [1], {}, rank=0).model(1, constant=False)[0])
    assert [c.expected for c in asked.manifest.checks] == ["-2 to 1"]


def test_a_check_in_a_branch_is_created_where_the_branch_is_selected() -> None:
    def body(inner: onnx.NodeProto, name: str) -> onnx.GraphProto:
        return helper.make_graph([inner], name, [], [info("r", [4, 6])])

    then = body(node("Dropout", ["x", "a"], ["r"]), "then")
    other = body(node("Relu", ["x"], ["r"]), "other")
    branch = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = [info("c", [], TensorProto.BOOL), info("x", [4, 6]), info("a", [])]
    compiled = tw.compile(model([branch], inputs, ["y"]), fallback="never")
    np.testing.assert_array_equal(compiled(np.array(False), X, F(7)), X)
    np.testing.assert_array_equal(compiled(np.array(True), X, F(0.5)), X)
    with pytest.raises(CallError, match="Dropout: the ratio is not from 0 to below 1: got 7"):
        compiled(np.array(True), X, F(7))


def test_a_check_in_a_loop() -> None:
    """A check ends the loop and the call, and the outputs of the next call are whole."""
    inputs = [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("s", [4, 6])]
    nodes = [
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Div", ["f", "two"], ["ratio"]),
        node("Dropout", ["s", "ratio"], ["u"]),
        node("Add", ["u", "u"], ["t"]),
        node("Identity", ["c"], ["d"]),
    ]
    body = helper.make_graph(nodes, "body", inputs, [info("d", [], TensorProto.BOOL), info("t", [4, 6])])
    arguments = [info("n", [], TensorProto.INT64), info("x", [4, 6])]
    m = model([node("Loop", ["n", "", "x"], ["y"], body=body)], arguments, ["y"], {"two": F(2)})
    for threads in (1, 2):
        compiled = tw.compile(m, fallback="never", threads=threads)
        for _ in range(2):
            np.testing.assert_array_equal(compiled(I(2), X), 4 * X)
            with pytest.raises(CallError, match="Dropout: the ratio is not from 0 to below 1: got 1"):
                compiled(I(3), X)


def test_other_faces_say_it_too() -> None:
    m, inputs = row("CumSum", [X], [1], {}, rank=0).model(1, constant=False)
    compiled = tw.compile(m)
    wrong = {**inputs, "n0": I(5)}
    with pytest.raises(CallError, match="got 5"):
        compiled.run(wrong, out={"y0": np.empty((4, 6), F)})
    with pytest.raises(CallError, match="got 5"):
        compiled.call_async(*wrong.values()).result()
    with pytest.raises(CallError, match="make no sense"):
        compiled.profile(*wrong.values(), repeat=1)
    assert compiled.profile(*inputs.values(), repeat=1).kernels


def test_what_other_compilers_are_passed() -> None:
    """ONNX's operators check their numbers themselves; StableHLO has no word for it."""
    imported = import_onnx(row("CumSum", [X], [1], {}, rank=0).model(1, constant=False)[0])
    assert any(isinstance(n.attrs, RequireAttrs) for n in imported.graph.nodes)
    exported = onnx_model(imported.graph, imported.weights)
    (got,) = Door(exported).peer({"x0": X, "n0": np.array(1)})
    np.testing.assert_array_equal(got, np.cumsum(X, 1))
    dropout = import_onnx(row("Dropout", [X], [0.5], {}, F, rank=0).model(0.5, constant=False)[0])
    assert "return %arg0 : tensor<4x6xf32>" in stablehlo_text(dropout.graph)
