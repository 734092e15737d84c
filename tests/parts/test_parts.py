"""Models that the compiler does not take whole: right answers, few parts, and a report that names what is missing."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import tilewright as tw
from tilewright.frontend.onnx.registry import RULES
from tilewright.frontend.onnx.rules import usual  # noqa: F401  fills RULES
from tilewright.parts import hosts, part
from tilewright.parts.composite import Composite
from tilewright.parts.context import FallbackWarning
from tilewright.support.errors import CallError, DTypeError, ShapeError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
F = np.float32
rng = np.random.default_rng(0)

Inputs = dict[str, tuple[int, list[Any] | None]]


@pytest.fixture(autouse=True)
def _no_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Unique` stands for any operator that Tilewright lacks, whose results have a size that data decides."""
    monkeypatch.delitem(RULES, "Unique")


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), **attributes)


class Fancy(OpRun):  # type: ignore[misc]
    """An operator that only this file knows."""

    op_domain = "com.example"

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.flip(x, -1) * F(2),)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Inputs,
    outputs: Sequence[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "example",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compiled(m: onnx.ModelProto, **options: Any) -> Composite:
    """A model of parts; the warnings that go with it are looked at by tests of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        result = tw.compile(m, **options)
    assert isinstance(result, Composite)
    return result


def whole(m: onnx.ModelProto) -> tw.Model:
    """A model that is one program, whatever its data says."""
    result = tw.compile(m, fallback="never")
    assert isinstance(result, tw.Model)
    return result


def check(m: onnx.ModelProto, result: Composite | tw.Model, feeds: dict[str, Any], ops: Sequence[type] = ()) -> None:
    """The outputs are those of ONNX's reference, with its types and shapes."""
    want = ReferenceEvaluator(m, new_ops=list(ops) or None).run(None, feeds)
    got = result.run(feeds)
    for o, w in zip(m.graph.output, want, strict=True):
        if isinstance(w, list):
            assert isinstance(got[o.name], list) and len(w) == len(got[o.name])
        else:
            w = np.asarray(w)
            assert got[o.name].dtype == w.dtype and got[o.name].shape == w.shape, o.name
        for a, b in zip(w, got[o.name], strict=True) if isinstance(w, list) else [(w, got[o.name])]:
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def custom_in_the_middle() -> onnx.ModelProto:
    nodes = [
        node("MatMul", "x w1", "h"),
        node("Relu", "h", "a"),
        node("Fancy", "a", "b", domain="com.example", name="decorate"),
        node("MatMul", "b w2", "c"),
        node("Add", "c z", "y"),
    ]
    weights = {"w1": rng.standard_normal((4, 8)).astype(F), "w2": rng.standard_normal((8, 3)).astype(F)}
    return model(nodes, {"x": (T.FLOAT, ["batch", 4]), "z": (T.FLOAT, ["batch", 3])}, ["y"], weights)


def feeds_of(batch: int) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((batch, 4)).astype(F), "z": rng.standard_normal((batch, 3)).astype(F)}


def test_custom_operator_in_the_middle() -> None:
    m = custom_in_the_middle()
    result = compiled(m, custom_ops=[Fancy])
    for batch in (1, 3, 5, 0, 7):
        check(m, result, feeds_of(batch), [Fancy])
    feeds = feeds_of(3)
    by_place = result(*(feeds[i.name] for i in result.inputs))
    for other in (result(**feeds), result.call_async(**feeds).result(60), result.stream()(**feeds)):
        np.testing.assert_array_equal(other, by_place)
    report = result.coverage()
    assert (report.nodes, report.compiled, report.compiled_parts, len(report.parts)) == (5, 4, 2, 3)
    assert [p.runs_by for p in report.parts] == ["Tilewright", "onnx.reference", "Tilewright"]
    [missing] = report.uncompiled
    assert missing.node == "decorate (com.example.Fancy)" and missing.runs_by == "onnx.reference"
    assert "decorate" in str(report)
    after = result._part.forms[0][1].steps[2][1]  # type: ignore[union-attr]
    assert isinstance(after, part.Part) and after.built == 3, "a batch of 1, of any size, of none"


def test_one_warning_names_operator_reason_and_who_runs_it() -> None:
    with pytest.warns(FallbackWarning) as said:
        tw.compile(custom_in_the_middle(), custom_ops=[Fancy])
    [warning] = said
    for text in ("decorate (com.example.Fancy)", "not supported", "runs by onnx.reference", "slower", "1 of 3 parts"):
        assert text in str(warning.message)
    assert warning.filename == __file__


def test_unknown_operators_are_refused_by_name() -> None:
    with pytest.raises(tw.errors.UnsupportedError, match=r"decorate \(com.example.Fancy\).*no host knows"):
        tw.compile(custom_in_the_middle())


def test_never_refuses_as_before() -> None:
    m = custom_in_the_middle()
    m.graph.node.append(node("Unique", "y", "places", name="find"))
    m.graph.output.append(helper.make_empty_tensor_value_info("places"))
    with pytest.raises(tw.errors.UnsupportedError, match="decorate") as caught:
        tw.compile(m, fallback="never", custom_ops=[Fancy])
    assert "Fancy of domain com.example is not supported" in str(caught.value)
    with pytest.raises(tw.errors.ModelError, match="fallback"):
        tw.compile(m, fallback="sometimes")  # type: ignore[arg-type]


def test_models_that_are_wrong_are_refused() -> None:
    m = model([node("Add", "x nothing", "y"), node("Unique", "x", "i")], {"x": (T.FLOAT, [3])}, ["y", "i"])
    with pytest.raises(tw.errors.ModelError, match="nothing before it computes"):
        tw.compile(m)


def test_a_value_that_nothing_computes_after_one_that_is_no_tensor() -> None:
    """The importer stops at the strings, which would run elsewhere, and does not come to the missing value."""
    broken = model([node("Add", "gone words", "a"), node("Relu", "a", "y")], {"x": (T.FLOAT, [3])}, ["y"])
    broken.graph.initializer.append(helper.make_tensor("words", T.STRING, [3], [b"a", b"b", b"c"]))
    with pytest.raises(tw.errors.ModelError, match=r"Add.*nothing (before it )?computes.*'gone'"):
        tw.compile(broken)


def test_an_output_that_nothing_computes() -> None:
    broken = model([node("Add", "x words", "a"), node("Relu", "x", "b")], {"x": (T.FLOAT, [3])}, ["b", "gone"])
    broken.graph.initializer.append(helper.make_tensor("words", T.STRING, [3], [b"a", b"b", b"c"]))
    with pytest.raises(tw.errors.ModelError, match="output 'gone': nothing computes the output"):
        tw.compile(broken)


def test_versions_that_no_checker_takes() -> None:
    m = model([node("Unique", "x", "i", axis="far")], {"x": (T.FLOAT, [3])}, ["i"])
    m.ir_version = 1 << 40
    with pytest.raises(tw.errors.ModelError, match="axis"):
        tw.compile(m)


def test_weights_are_updated_in_all_parts() -> None:
    m = custom_in_the_middle()
    m.graph.node.insert(0, node("Unique", "w1", "places"))  # another runtime reads a weight
    m.graph.output.append(helper.make_empty_tensor_value_info("places"))
    result = compiled(m, custom_ops=[Fancy])
    feeds = feeds_of(3)
    check(m, result, feeds, [Fancy])
    new = {"w1": rng.standard_normal((4, 8)).astype(F), "w2": rng.standard_normal((8, 3)).astype(F)}
    new["w1"][1, 2] = 0
    assert result.update(new) == 1 == result.version
    for tensor in m.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(new[tensor.name], tensor.name))
    check(m, result, feeds, [Fancy])
    check(m, result, feeds_of(2), [Fancy])  # a part that is compiled after the update
    np.testing.assert_array_equal(result.weights["w1"], new["w1"])
    with pytest.raises(tw.errors.WeightError, match="w2"):
        result.update({"w1": new["w1"]})
    with pytest.raises(tw.errors.WeightError, match="NaN"):
        result.update(new | {"w2": np.full((8, 3), np.nan, F)})
    check(m, result, feeds, [Fancy])


def test_weights_have_the_names_of_the_exported_module() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_9"], ["h"], name="/fc/MatMul"),
        node("Add", "fc.bias h", "g", name="/fc/Add"),
        node("Fancy", "g", "f", domain="com.example"),
        node("Pow", "f onnx::Pow_3", "y"),
    ]
    weight, bias = rng.standard_normal((4, 3)).astype(F), rng.standard_normal(3).astype(F)
    weights = {"onnx::MatMul_9": weight, "fc.bias": bias, "onnx::Pow_3": np.array(2, F)}
    m = model(nodes, {"x": (T.FLOAT, ["n", 4])}, ["y"], weights)
    m.producer_name = "pytorch"
    result = compiled(m, custom_ops=[Fancy])
    assert {p.name: p.shape for p in result.params} == {"fc.weight": (3, 4), "fc.bias": (3,)}
    np.testing.assert_array_equal(result.weights["fc.weight"], weight.T)
    x = rng.standard_normal((2, 4)).astype(F)
    for w in (weight, weight * 3):
        result.update({"fc.weight": w.T, "fc.bias": bias})
        want = (np.flip(x @ w + bias, -1) * 2) ** 2
        np.testing.assert_allclose(result(x), want, rtol=1e-4, atol=1e-5)


def test_calls_during_updates_see_one_version() -> None:
    """Every output is a sum of weights of both parts: they are of one version in each."""
    nodes = [node("Mul", "x w1", "a"), node("Fancy", "a", "b", domain="com.example"), node("Mul", "x w2", "c")]
    nodes += [node("Add", "b c", "y")]
    one = np.ones(4, F)
    m = model(nodes, {"x": (T.FLOAT, [4])}, ["y"], {"w1": one, "w2": one})
    result = compiled(m, custom_ops=[Fancy])
    result(one)
    stop, wrong = threading.Event(), []

    def call() -> None:
        while not stop.is_set():
            y = result(one)
            if not (y == y[0]).all() or y[0] % 3:
                wrong.append(y)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for t in threads:
        t.start()
    for k in range(2, 30):
        result.update({"w1": one * k, "w2": one * k})
    stop.set()
    for t in threads:
        t.join()
    assert not wrong


def test_interface_of_a_model(tmp_path: Path) -> None:
    m = custom_in_the_middle()
    result = compiled(m, custom_ops=[Fancy], name="fancy")
    feeds = feeds_of(3)
    y = result(*feeds.values())
    out = np.empty((3, 3), F)
    assert result(*feeds.values(), out=out) is out
    np.testing.assert_array_equal(out, y)
    out[:] = 0
    assert result.run(feeds, out={"y": out})["y"] is out
    np.testing.assert_array_equal(out, y)
    assert [i.name for i in result.inputs] == ["x", "z"] and [o.name for o in result.outputs] == ["y"]
    assert [p.name for p in result.params] == ["w1", "w2"]
    profile = result.profile(*feeds.values(), repeat=3)
    assert [k.label for k in profile.kernels][1] == "com.example.Fancy" and profile.seconds > 0
    assert "matmul" in result.show("graph") and "Fancy" in result.show("parts")
    assert "fancy(x: f32[batch, 4]" in repr(result)
    with pytest.raises(tw.errors.CallError, match=r"several parts cannot be saved.*onnx\.reference"):
        result.save(tmp_path / "m.tw")


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"x": np.ones((2, 4), F)}, "'z': is missing"),
        ({"x": np.ones((2, 4), F), "z": np.ones((2, 3), F), "w1": 1}, "no such input"),
        ({"x": np.ones((2, 4)), "z": np.ones((2, 3), F)}, "wrong element type"),
        ({"x": np.ones((2, 5), F), "z": np.ones((2, 3), F)}, "wrong dimensions"),
        ({"x": np.ones(4, F), "z": np.ones((2, 3), F)}, "wrong rank"),
        ({"x": [1.0], "z": np.ones((2, 3), F)}, "not an array"),
        ({"x": np.ones((2, 4), F), "z": np.ones((3, 3), F)}, "does not run|cannot be run|disagrees"),
    ],
)
def test_wrong_inputs(inputs: dict[str, Any], message: str) -> None:
    result = compiled(custom_in_the_middle(), custom_ops=[Fancy])
    with pytest.raises(tw.errors.CallError, match=message):
        result.run(inputs)
    check(result._part.section.loaded.model, result, feeds_of(2), [Fancy])


# --- values that decide the structure -------------------------------------------------------------------------------


def test_shape_as_an_input() -> None:
    nodes = [node("Reshape", "x s", "h"), node("Relu", "h", "y")]
    m = model(nodes, {"x": (T.FLOAT, ["n", 6]), "s": (T.INT64, [2])}, ["y"])
    result = whole(m)
    for n, shape in [(2, [3, 4]), (2, [4, 3]), (5, [-1, 3]), (10, [-1, 3]), (1, [6, 1])]:
        feeds = {"x": rng.standard_normal((n, 6)).astype(F), "s": np.array(shape)}
        check(m, result, feeds)


def test_a_value_that_decides_how_something_is_computed() -> None:
    m = model(
        [node("DFT", "x s", "h"), node("Relu", "h", "y")], {"x": (T.FLOAT, ["n", 24, 1]), "s": (T.INT64, [])}, ["y"]
    )
    result = compiled(m)
    for n, length in [(2, 24), (2, 6), (5, 8), (10, 8), (1, 31)]:
        check(m, result, {"x": (rng.standard_normal((n, 24, 1)) / 24).astype(F), "s": np.array(length)})
    assert result.coverage().share == 1 and not result.coverage().uncompiled
    built = result._part.forms[0][1].steps[0][1].built  # type: ignore[union-attr]
    assert built == 4, "the batch is no reason to compile anew"


def test_structure_computed_from_inputs() -> None:
    """The values are traced back to the inputs, so that nothing is compiled to compute a shape."""
    nodes = [
        node("Concat", "a b", "s", axis=0),
        node("Reshape", "x s", "h"),
        node("ReduceSum", "h axes", "y", keepdims=0),
    ]
    inputs: Inputs = {"x": (T.FLOAT, [2, 6]), "a": (T.INT64, [1]), "b": (T.INT64, [1]), "axes": (T.INT64, [1])}
    m = model(nodes, inputs, ["y"])
    result = compiled(m)
    x = rng.standard_normal((2, 6)).astype(F)
    for a, b, axis in [(3, 4, 0), (4, 3, -1), (12, 1, 1)]:
        check(m, result, {"x": x, "a": np.array([a]), "b": np.array([b]), "axes": np.array([axis])})
    assert result.coverage().share == 1


def test_a_value_that_changes_always_is_not_compiled_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "OFTEN", 2)
    monkeypatch.setattr(part, "TOO_OFTEN", 3)
    monkeypatch.setattr(part, "MAX_FORMS", 2)
    m = model(
        [node("DFT", "x s", "h"), node("Relu", "h", "y")], {"x": (T.FLOAT, [1, 64, 1]), "s": (T.INT64, [])}, ["y"]
    )
    result = compiled(m)
    x = (rng.standard_normal((1, 64, 1)) / 64).astype(F)  # sums of 64 round by 1e-7 of what is summed
    with pytest.warns(FallbackWarning, match="compiled 2 times.*values of s"):
        for length in (1, 2, 4, 8, 16, 32, 64, 1, 2):
            check(m, result, {"x": x, "s": np.array(length)})
    reshaping = result._part.forms[0][1].steps[0][1]  # type: ignore[union-attr]
    assert isinstance(reshaping, part.Part) and reshaping.built == 4 and len(reshaping.forms) <= 2


def test_sizes_that_come_from_data() -> None:
    nodes = [node("Unique", "x", "u"), node("Sqrt", "u", "s"), node("Mul", "s u", "y")]
    m = model(nodes, {"x": (T.FLOAT, ["n", 6])}, ["y"])
    result = compiled(m)
    for n in (3, 1, 4):
        x = np.maximum(rng.standard_normal((n, 6)), 0).astype(F)
        check(m, result, {"x": x})
    check(m, result, {"x": np.zeros((2, 6), F)})
    check(m, result, {"x": np.zeros((0, 6), F)})


def test_detector_with_suppression_in_the_middle() -> None:
    """A convolution gives boxes and scores, some are kept, and what is kept is gathered, scaled and sorted: all
    of it is compiled, as shapes bound how many boxes there are."""
    nodes = [
        node("Conv", "x k", "c", strides=[4, 4], kernel_shape=[4, 4]),
        node("Reshape", "c flat", "f"),
        node("Sigmoid", "f", "p"),
        node("Split", "p", "corner size score", axis=1, num_outputs=3),
        node("Add", "corner size", "far"),
        node("Concat", "corner far", "b", axis=1),
        node("Transpose", "b", "boxes", perm=[0, 2, 1]),
        node("NonMaxSuppression", "boxes score most overlap least", "chosen"),
        node("Gather", "chosen two", "rows", axis=1),
        node("Squeeze", "boxes first", "all"),
        node("Gather", "all rows", "kept", axis=0),
        node("Mul", "kept scale", "scaled"),
        node("ReduceMax", "scaled last", "key", keepdims=0),
        node("Shape", "key", "count"),
        node("TopK", "key count", "sorted order"),
        node("Gather", "scaled order", "y", axis=0),
    ]
    weights = {
        "k": rng.standard_normal((6, 3, 4, 4)).astype(F),
        "flat": np.array([1, 6, -1]),
        "most": np.array([8]),
        "overlap": np.array([0.3], F),
        "least": np.array([0.4], F),
        "two": np.array(2),
        "last": np.array([1]),
        "first": np.array([0]),
        "scale": np.array([32], F),
    }
    m = model(nodes, {"x": (T.FLOAT, [1, 3, "h", 32])}, ["y", "sorted"], weights)
    result = tw.compile(m)
    assert isinstance(result, tw.Model)
    for height in (32, 48, 32, 64):
        check(m, result, {"x": rng.standard_normal((1, 3, height, 32)).astype(F)})


# --- bodies, sequences, strings -------------------------------------------------------------------------------------


def graph(name: str, nodes: Sequence[onnx.NodeProto], inputs: Inputs, outputs: Inputs) -> onnx.GraphProto:
    def infos(values: Inputs) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in values.items()]

    return helper.make_graph(list(nodes), name, infos(inputs), infos(outputs))


def test_loop_with_a_count_and_condition_from_data() -> None:
    """A value grows until its sum is large enough; each step is collected."""
    body = graph(
        "body",
        [
            node("Mul", "v w", "grown"),
            node("ReduceSum", "grown", "total", keepdims=0),
            node("Less", "total limit", "again"),
            node("Identity", "total", "seen"),
        ],
        {"k": (T.INT64, []), "go": (T.BOOL, []), "v": (T.FLOAT, [3])},
        {"again": (T.BOOL, []), "grown": (T.FLOAT, [3]), "seen": (T.FLOAT, [])},
    )
    nodes = [node("Loop", "count  x", "last all", body=body), node("Relu", "last", "y")]
    inputs: Inputs = {"x": (T.FLOAT, [3]), "count": (T.INT64, []), "limit": (T.FLOAT, [])}
    m = model(nodes, inputs, ["y", "all"], {"w": np.array([1.5, 2, 0.5], F)})
    result = whole(m)
    x, w = np.array([1, 0.25, -2], F), m.graph.initializer[0]
    for count, limit in [(1, 9.0), (50, 30.0), (3, 1e9)]:
        last, seen = x, []
        while len(seen) < count and (not seen or seen[-1] < limit):
            last = last * onnx.numpy_helper.to_array(w)
            seen.append(last.sum())
        got = result.run({"x": x, "count": np.array(count), "limit": np.array(limit, F)})
        np.testing.assert_allclose(got["y"], np.maximum(last, 0), rtol=1e-5)
        np.testing.assert_allclose(got["all"], seen, rtol=1e-5)


def test_loop_without_iterations() -> None:
    body = graph(
        "body",
        [node("Exp", "v", "grown"), node("Identity", "go", "again"), node("Relu", "v", "seen")],
        {"k": (T.INT64, []), "go": (T.BOOL, []), "v": (T.FLOAT, [3])},
        {"again": (T.BOOL, []), "grown": (T.FLOAT, [3]), "seen": (T.FLOAT, [3])},
    )
    m = model(
        [node("Loop", "n go x", "y all", body=body)],
        {"x": (T.FLOAT, [3]), "n": (T.INT64, []), "go": (T.BOOL, [])},
        ["y", "all"],
    )
    result, x = whole(m), np.ones(3, F)
    for n, go in [(0, True), (5, False)]:
        got = result.run({"x": x, "n": np.array(n), "go": np.array(go)})
        np.testing.assert_array_equal(got["y"], x)
        assert got["all"].shape == (0, 3) and got["all"].dtype == F


def test_what_changes_with_every_iteration_is_not_compiled_for() -> None:
    body = graph(
        "body",
        [
            node("Range", "k end step", "rest"),
            node("Cast", "rest", "numbers", to=T.FLOAT),
            node("ReduceSum", "numbers", "sum", keepdims=0),
            node("Add", "v sum", "grown"),
            node("Less", "sum limit", "again"),
        ],
        {"k": (T.INT64, []), "go": (T.BOOL, []), "v": (T.FLOAT, [3])},
        {"again": (T.BOOL, []), "grown": (T.FLOAT, [3])},
    )
    weights = {"step": np.array(1), "end": np.array(40)}
    inputs: Inputs = {"x": (T.FLOAT, [3]), "n": (T.INT64, []), "limit": (T.FLOAT, [])}
    m = model([node("Loop", "n  x", "y", body=body)], inputs, ["y"], weights)
    result = compiled(m)
    x = np.ones(3, F)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        y = result.run({"x": x, "n": np.array(30), "limit": np.array(1e9, F)})["y"]
    np.testing.assert_allclose(y, x + sum(np.arange(k, 40).sum() for k in range(30)))
    loop = result._part.forms[0][1].steps[0][1].bodies["body"]  # type: ignore[union-attr]
    assert loop.built <= 3
    endless = {"x": x, "n": np.array(1 << 62), "limit": np.array(np.inf, F)}
    result.max_iterations = 20
    with pytest.raises(tw.errors.CallError, match="more than 20 iterations"):
        result.run(endless)
    result.max_iterations, result.time_limit = 1 << 40, 0.2
    with pytest.raises(tw.errors.CallError, match=r"took longer than 0.2 s"):
        result.run(endless)


class Words(OpRun):  # type: ignore[misc]
    """Numbers as text: a type that no file states."""

    op_domain = "com.example"

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.array([str(v) for v in x.tolist()], object),)


def test_what_only_a_call_tells_is_warned_of_then() -> None:
    nodes = [node("Words", "x", "a", domain="com.example"), node("Identity", "a", "y", name="pass")]
    result = compiled(model(nodes, {"x": (T.FLOAT, [2])}, ["y"]), custom_ops=[Words])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            assert result(np.array([1, 2.5], F)).tolist() == ["1.0", "2.5"]
    assert len([w for w in said if "pass (Identity)" in str(w.message) and w.filename == __file__]) == 1


def test_sparse_initializer() -> None:
    m = model([node("Add", "x s", "y")], {"x": (T.FLOAT, [2, 3])}, ["y"])
    values = onnx.numpy_helper.from_array(np.array([5, 7], F), "s")
    places = onnx.numpy_helper.from_array(np.array([1, 5]), "places")
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    np.testing.assert_array_equal(tw.compile(m)(np.zeros((2, 3), F)), [[0, 5, 0], [0, 0, 7]])


def test_if_with_a_condition_from_data() -> None:
    yes = graph("yes", [node("Mul", "x w", "a")], {}, {"a": (T.FLOAT, None)})
    no = graph("no", [node("Concat", "x x", "b", axis=0)], {}, {"b": (T.FLOAT, None)})
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Greater", "sum zero", "c"),
        node("If", "c", "z", then_branch=yes, else_branch=no),
        node("Relu", "z", "y"),
    ]
    m = model(nodes, {"x": (T.FLOAT, ["n"])}, ["y"], {"w": np.array(3, F), "zero": np.array(0, F)})
    result = compiled(m)
    for x in ([1, 2, -1], [1, -2, -1], [1], [-1], [5, 6]):
        check(m, result, {"x": np.array(x, F)})


def test_sequences_are_lists_between_parts() -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("SplitToSequence", "r", "parts", axis=0, keepdims=0),
        node("SequenceAt", "parts k", "one"),
        node("Exp", "one", "y"),
    ]
    m = model(nodes, {"x": (T.FLOAT, ["n", 4]), "k": (T.INT64, [])}, ["y", "parts"])
    result = compiled(m)
    for n, k in [(3, 0), (3, -1), (5, 2)]:
        check(m, result, {"x": rng.standard_normal((n, 4)).astype(F), "k": np.array(k)})


@pytest.mark.parametrize(
    "op, inputs, attributes",
    [
        ("SplitToSequence", "x", {"axis": 1}),
        ("SplitToSequence", "x", {"axis": -1, "keepdims": 0}),
        ("SplitToSequence", "x two", {"axis": 1}),
        ("SplitToSequence", "x sizes", {"axis": 1}),
        ("SequenceInsert", "s x", {}),
        ("SequenceInsert", "s x one", {}),
        ("SequenceInsert", "s x minus", {}),
        ("SequenceErase", "s", {}),
        ("SequenceErase", "s one", {}),
        ("SequenceAt", "s minus", {}),
        ("SequenceConstruct", "x x", {}),
        ("SequenceLength", "s", {}),
        ("ConcatFromSequence", "s", {"axis": -1}),
        ("ConcatFromSequence", "t", {"axis": 0, "new_axis": 1}),
    ],
)
def test_operators_on_sequences(op: str, inputs: str, attributes: dict[str, Any]) -> None:
    weights = {"two": np.array(2), "sizes": np.array([1, 0, 4]), "one": np.array(1), "minus": np.array(-1)}
    values: dict[str, Any] = {
        "x": rng.standard_normal((2, 5)).astype(F),
        "s": [rng.standard_normal((2, k)).astype(F) for k in (1, 3, 2)],
        "t": [rng.standard_normal((2, 3)).astype(F) for _ in range(3)],
    }
    used = {name: values[name] for name in inputs.split(" ") if name in values}
    m = model([node(op, inputs, "y", **attributes)], {}, ["y"], weights)
    for name, value in used.items():
        typed = helper.make_tensor_sequence_value_info if isinstance(value, list) else helper.make_tensor_value_info
        m.graph.input.append(typed(name, T.FLOAT, None))
    result = compiled(m)
    check(m, result, used)
    assert result.coverage().parts[0].runs_by in ("Python", "Tilewright")


def test_sequences_that_do_not_fit() -> None:
    m = model([node("SequenceAt", "s k", "y", name="pick")], {"k": (T.INT64, [])}, ["y"])
    m.graph.input.append(helper.make_tensor_sequence_value_info("s", T.FLOAT, None))
    result = compiled(m)
    with pytest.raises(tw.errors.CallError, match=r"pick \(SequenceAt\).*position 2 of a sequence of 1"):
        result.run({"k": np.array(2), "s": [np.ones(2, F)]})
    assert result.run({"k": np.array(-1), "s": [np.ones(2, F)]})["y"].tolist() == [1, 1]


@pytest.mark.parametrize("inputs", [None, np.ones(3, F)])
def test_optionals(inputs: np.ndarray | None) -> None:
    yes = graph("yes", [node("OptionalGetElement", "o", "v"), node("Neg", "v", "a")], {}, {"a": (T.FLOAT, None)})
    no = graph("no", [node("Exp", "x", "b")], {}, {"b": (T.FLOAT, None)})
    nodes = [node("OptionalHasElement", "o", "c"), node("If", "c", "y", then_branch=yes, else_branch=no)]
    m = model(nodes, {"x": (T.FLOAT, [2])}, ["y"])
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(T.FLOAT, [3]))
    m.graph.input.append(helper.make_value_info("o", kind))
    x = np.array([1, 2], F)
    y = compiled(m).run({"x": x, "o": inputs})["y"]
    np.testing.assert_allclose(y, np.exp(x) if inputs is None else -inputs, rtol=1e-6)


def test_sequence_map_runs_a_compiled_body() -> None:
    body = graph(
        "body", [node("Exp", "e", "f"), node("Mul", "f w", "g")], {"e": (T.FLOAT, None)}, {"g": (T.FLOAT, None)}
    )
    m = model([node("SequenceMap", "s", "t", body=body)], {}, ["t"], {"w": np.array(2, F)})
    m.graph.input.append(helper.make_tensor_sequence_value_info("s", T.FLOAT, None))
    result = compiled(m)
    rows = [rng.standard_normal(k).astype(F) for k in (2, 3, 5, 3)]
    for got, row in zip(result.run({"s": rows})["t"], rows, strict=True):
        np.testing.assert_allclose(got, np.exp(row) * 2, rtol=1e-6)
    assert len(list(result._part.models())) == 2, "one for the first size, one for any"


def test_sequence_as_input() -> None:
    m = model([node("ConcatFromSequence", "s", "c", axis=0), node("Relu", "c", "y")], {}, ["y"])
    m.graph.input.append(helper.make_tensor_sequence_value_info("s", T.FLOAT, None))
    result = compiled(m)
    rows = [rng.standard_normal((k, 2)).astype(F) for k in (1, 3)]
    check(m, result, {"s": rows})
    np.testing.assert_array_equal(result(rows), np.maximum(np.concatenate(rows), 0))


def test_strings_pass() -> None:
    m = model([node("StringConcat", "a b", "c"), node("Relu", "x", "y")], {"x": (T.FLOAT, [2])}, ["c", "y"], opset=20)
    for name in "ab":
        m.graph.input.append(helper.make_tensor_value_info(name, T.STRING, [2]))
    result = compiled(m)
    x, a, b = np.array([-1, 2], F), np.array(["p", "q"], object), np.array(["r", "s"], object)
    got = result.run({"x": x, "a": a, "b": b})
    assert got["c"].tolist() == ["pr", "qs"] and got["y"].tolist() == [0, 2]


# --- the cut --------------------------------------------------------------------------------------------------------


def test_the_number_of_parts_is_small() -> None:
    """Two branches with a foreign operator each are cut into two compiled parts, not four."""
    nodes = []
    for side in "pq":
        nodes += [
            node("Relu", f"x{side}", f"a{side}"),
            node("Fancy", f"a{side}", f"b{side}", domain="com.example"),
            node("Exp", f"b{side}", f"y{side}"),
        ]
    m = model(nodes, {"xp": (T.FLOAT, [4]), "xq": (T.FLOAT, [4])}, ["yp", "yq"])
    report = tw.coverage(m, custom_ops=[Fancy])
    assert [(p.runs_by, p.nodes) for p in report.parts] == [("Tilewright", 2), ("onnx.reference", 2), ("Tilewright", 2)]


def test_shapes_are_known_after_a_border() -> None:
    """Computations of shapes are repeated in each part, so that the batch stays a symbol there."""
    nodes = [
        node("Relu", "x", "a"),
        node("Shape", "a", "s"),
        node("Unique", "a", "i"),
        node("Cast", "i", "f", to=T.FLOAT),
        node("ReduceSum", "f", "t", keepdims=0),
        node("Add", "a t", "b"),
        node("Transpose", "b", "bt"),
        node("Reshape", "bt s", "y"),
    ]
    m = model(nodes, {"x": (T.FLOAT, ["n", 6])}, ["y"])
    result = compiled(m)
    for n in (1, 3, 4):
        check(m, result, {"x": rng.standard_normal((n, 6)).astype(F)})
    last = result._part.forms[0][1].steps[-1][1]  # type: ignore[union-attr]
    assert isinstance(last, part.Part) and len(last.forms) <= 2


def test_inner_functions_of_the_model_run() -> None:
    body = helper.make_function(
        "com.example",
        "Twice",
        ["a"],
        ["c"],
        [node("Unique", "a", "b"), node("Add", "b b", "c")],
        [helper.make_opsetid("", 18)],
    )
    m = model([node("Relu", "x", "r"), node("Twice", "r", "y", domain="com.example")], {"x": (T.FLOAT, [5])}, ["y"])
    m.functions.append(body)
    check(m, compiled(m), {"x": np.array([1, -1, 2, 0, 3], F)})


def test_defects_are_told_and_do_not_cost_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("cannot happen")

    m = custom_in_the_middle()
    result = compiled(m, custom_ops=[Fancy])
    monkeypatch.setattr(part, "import_onnx", broken)
    feeds = feeds_of(3)
    with pytest.warns(FallbackWarning, match="defect of Tilewright.*cannot happen"):
        check(m, result, feeds, [Fancy])
    assert result.coverage().compiled_parts == 1


@pytest.mark.parametrize("lacking", [True, False])
def test_without_onnxruntime(lacking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking:
        monkeypatch.setattr(hosts, "has_onnxruntime", lambda: False)
        hosts._ort_schemas.cache_clear()
    m = model([node("Relu", "x", "r"), node("Unique", "r", "y")], {"x": (T.FLOAT, [5])}, ["y"])
    result = compiled(m)
    check(m, result, {"x": np.array([1, -1, 2, 0, 3], F)})
    assert result.coverage().parts[1].runs_by == ("onnx.reference" if lacking else "ONNX Runtime")
    hosts._ort_schemas.cache_clear()


# --- the report -----------------------------------------------------------------------------------------------------


def test_report_in_advance() -> None:
    report = tw.coverage(custom_in_the_middle())
    assert report.to_dict()["compiled"] == 4 and report.compiled_parts == 2
    assert report.uncompiled[0].runs_by == "no host" and "plug-in" in report.uncompiled[0].help
    assert json.loads(json.dumps(report.to_dict()))["parts"][0]["operators"] == [["MatMul", 1], ["Relu", 1]]
    whole = tw.coverage(model([node("Relu", "x", "y")], {"x": (T.FLOAT, [2])}, ["y"]))
    assert whole.share == 1 and len(whole.parts) == 1 and not whole.uncompiled


# --- what is lacking is no fault of the model -------------------------------------------------------------------------


def attention(q: int, v: int) -> tuple[list[onnx.NodeProto], Inputs, dict[str, np.ndarray]]:
    shape = [1, 2, 3, 4]
    return [node("Attention", "q k v", "y")], {"q": (q, shape), "k": (q, shape), "v": (v, shape)}, {}


LACKING: dict[str, tuple[list[onnx.NodeProto], Inputs, dict[str, np.ndarray]]] = {
    "a scale of integers": (
        [node("QuantizeLinear", "x s", "y")],
        {"x": (T.INT32, [2, 3])},
        {"s": np.array(2, np.int32)},
    ),
    "keys and values of two types": attention(T.FLOAT, T.FLOAT16),
    "a body that ONNX wrote for other types": (
        [node("CenterCropPad", "x s", "y", axes=[0, 1])],
        {"x": (T.FLOAT, [4, 5]), "s": (T.INT32, [2])},
        {},
    ),
    "a fraction of integers": (
        [node("Gemm", "x w", "y", alpha=0.5)],
        {"x": (T.INT64, [2, 3])},
        {"w": np.arange(6).reshape(3, 2)},
    ),
    "a shape that data decides, with inputs that say all sizes": (
        [node("NonZero", "x", "i"), node("Reshape", "i s", "r"), node("MatMul", "r r", "y")],
        {"x": (T.FLOAT, [6])},
        {"s": np.array([2, 2])},
    ),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_is_lacking_is_no_fault_of_the_model(case: str) -> None:
    """Types that ONNX's operators take and ours do not, sizes that fit at the call: other hosts run these."""
    nodes, inputs, weights = LACKING[case]
    with pytest.raises((UnsupportedError, ShapeError)):
        tw.compile(model(nodes, inputs, ["y"], weights, opset=24), fallback="never")
    result = compiled(model(nodes, inputs, ["y"], weights, opset=24))
    assert result.coverage().uncompiled or "NonZero" in {n.op_type for n in nodes}


def test_types_that_onnx_does_not_have_are_a_fault_of_the_model() -> None:
    with pytest.raises(DTypeError):
        tw.compile(model([node("Add", "x w", "y")], {"x": (T.FLOAT, [2])}, ["y"], {"w": np.arange(2)}))


def test_a_list_of_several_sizes() -> None:
    names = " ".join(f"y{k}" for k in range(100))
    m = model([node("Split", "x s", names)], {"x": (T.FLOAT, [100, 2])}, names.split(), {"s": np.ones(100, np.int64)})
    x = rng.random((100, 2)).astype(F)
    np.testing.assert_array_equal(np.concatenate([*whole(m).run({"x": x}).values()]), x)


def test_what_onnxruntime_finds_wrong_is_not_asked_of_the_reference() -> None:
    """NumPy repeats a matrix by one number, and by three."""
    m = model([node("Tile", "x r", "y")], {"x": (T.FLOAT, [2, 3]), "r": (T.INT64, ["n"])}, ["y"])
    result, x = tw.compile(m), rng.random((2, 3)).astype(F)
    np.testing.assert_array_equal(np.asarray(result(x, np.array([1, 2]))), np.tile(x, (1, 2)))
    for repeats in ([2], [1, 1, 1]):
        with pytest.raises(CallError, match="same length"):
            result(x, np.array(repeats))


def test_a_gru_is_never_handed_to_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.32 ends the process for a GRU of an empty sequence."""
    monkeypatch.delitem(RULES, "GRU")
    monkeypatch.setattr(hosts, "_session", lambda *_: pytest.fail("a session was made"))
    weights = {"w": rng.standard_normal((1, 12, 3)).astype(F), "r": rng.standard_normal((1, 12, 4)).astype(F)}
    graph = model([node("GRU", "x w r", "y last", hidden_size=4)], {"x": (T.FLOAT, ["s", 2, 3])}, ["last"], weights)
    compiled = tw.compile(graph)
    x = rng.standard_normal((5, 2, 3)).astype(F)
    (expected,) = ReferenceEvaluator(graph).run(None, {"x": x})
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "says",
    [
        {"activations": ["Relu", "Tanh"]},
        {"clip": 0.5},
        {"direction": "reverse"},
        {"lengths": "n"},
        {"activations": ["Affine", "Tanh"], "activation_alpha": [2.0]},
    ],
)
def test_the_reference_is_not_asked_for_what_it_does_not_look_at(
    says: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`onnx.reference` 1.23 has its own activations for a GRU, without a clip and lengths: other numbers, no error."""
    monkeypatch.delitem(RULES, "GRU")
    weights = {"w": rng.standard_normal((1, 12, 3)).astype(F), "r": rng.standard_normal((1, 12, 4)).astype(F)}
    attributes = {k: v for k, v in says.items() if k != "lengths"}
    layer = helper.make_node(
        "GRU", ["x", "w", "r", "", says.get("lengths", "")], ["y", "last"], hidden_size=4, **attributes
    )
    inputs: Inputs = {"x": (T.FLOAT, ["s", 2, 3]), "n": (T.INT32, [2])}
    with pytest.raises(UnsupportedError, match="GRU"):
        tw.compile(model([layer], inputs, ["last"], weights))


def test_the_reference_is_asked_for_defaults_that_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "GRU")
    weights = {"w": rng.standard_normal((1, 12, 3)).astype(F), "r": rng.standard_normal((1, 12, 4)).astype(F)}
    said = {"activations": ["Sigmoid", "Tanh"], "direction": "forward", "clip": 0.0}
    graph = model(
        [node("GRU", "x w r", "y last", hidden_size=4, **said)], {"x": (T.FLOAT, [5, 2, 3])}, ["last"], weights
    )
    x = rng.standard_normal((5, 2, 3)).astype(F)
    (expected,) = ReferenceEvaluator(graph).run(None, {"x": x})
    np.testing.assert_allclose(tw.compile(graph)(x), expected, rtol=1e-5, atol=1e-6)


def test_an_stft_is_never_handed_to_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.32 ends the process for frames without elements."""
    monkeypatch.setattr(hosts, "_session", lambda *_: pytest.fail("a session was made"))
    inputs: Inputs = {"x": (T.FLOAT, [1, 8, 1]), "step": (T.INT64, []), "n": (T.INT64, [])}
    graph = model([node("STFT", "x step  n", "y")], inputs, ["y"])
    compiled, x = tw.compile(graph), rng.standard_normal((1, 8, 1)).astype(F)
    feeds = {"x": x, "step": np.array(2), "n": np.array(4)}
    (expected,) = ReferenceEvaluator(graph).run(None, feeds)
    np.testing.assert_allclose(compiled(**feeds), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(tw.Error):
        compiled(**{**feeds, "n": np.array(0)})


def test_a_scan_that_no_host_takes() -> None:
    """The reference has no scans backwards, and ONNX Runtime not the operator inside."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.example": 1]>
     g (float[2] h, float[3, 2] x) => (float[2] y) { y = Scan <num_scan_inputs = 1, scan_input_directions = [1],
       body = b (float[2] a, float[2] e) => (float[2] o) { f = com.example.Fancy (e) o = Add (a, f) }> (h, x) }"""
    compiled = tw.compile(onnx.parser.parse_model(text), custom_ops=[Fancy])
    with pytest.raises(CallError, match=r"Scan.*neither ONNX Runtime nor onnx\.reference"):
        compiled(np.zeros(2, F), np.ones((3, 2), F))
