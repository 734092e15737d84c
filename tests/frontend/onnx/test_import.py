"""The importer on models that are right: what comes out means the same, and shape arithmetic leaves no trace."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from benchmarks import models, policy_suite
from tests.frontend.onnx.build import info, model, node
from tests.ops.oracle import reference
from tilewright.frontend.onnx import Imported, import_onnx
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import ModelError

rng = np.random.default_rng(0)
F = np.float32
I64 = TensorProto.INT64


def ops_of(imported: Imported) -> Counter[str]:
    return Counter(n.op for n in imported.graph.nodes)


def compare(m: onnx.ModelProto, feeds: dict[str, np.ndarray], tolerance: float = 1e-5, **dims: int) -> Imported:
    """The graph, run by its references, gives what ONNX's own evaluator gives."""
    imported = import_onnx(m, dims or None)
    got = run_graph(imported.graph, feeds, imported.weights)
    want = ReferenceEvaluator(m).run(None, feeds)
    assert [v.name for v in imported.graph.outputs] == [o.name for o in m.graph.output]
    for o, w in zip(m.graph.output, want, strict=True):
        assert got[o.name].dtype == w.dtype and got[o.name].shape == w.shape
        np.testing.assert_allclose(got[o.name], w, rtol=tolerance, atol=tolerance)
    return imported


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", ["m64", "m256", "hok1", "dz"])
def test_policy_models_for_every_batch(name: str) -> None:
    m = models.POLICY[name]()
    imported = import_onnx(m)
    evaluator = ReferenceEvaluator(m)
    for batch in (1, 3):
        feeds = models.example_inputs(m, batch)
        got = run_graph(imported.graph, feeds, imported.weights)
        for o, want in zip(m.graph.output, evaluator.run(None, feeds), strict=True):
            np.testing.assert_allclose(got[o.name], want, rtol=1e-4, atol=1e-4)


def test_weights_keep_their_names() -> None:
    m = policy_suite.m64()
    imported = import_onnx(m)
    assert {p.name for p in imported.graph.params} == {i.name for i in m.graph.initializer} == set(imported.weights)


@pytest.mark.parametrize("producer", ["pytorch", "other"])
def test_numbers_that_an_exporter_names_are_constants(producer: str) -> None:
    weights = {"val_3": np.array(2.5, F), "scale": np.array(0.5, F), "val_4": np.ones(4, F)}
    nodes = [node("Mul", ["x", "val_3"], ["a"]), node("Mul", ["a", "scale"], ["b"]), node("Add", ["b", "val_4"], ["y"])]
    m = model(nodes, [info("x", ["n", 4])], ["y"], weights)
    m.producer_name = producer
    imported = compare(m, {"x": rng.standard_normal((2, 4)).astype(F)})
    assert set(weights) - set(imported.weights) == ({"val_3", "val_4"} if producer == "pytorch" else set())


def test_fixed_dimensions() -> None:
    m = model([node("Relu", ["x"], ["y"])], [info("x", ["batch", 4])], ["y"])
    assert str(import_onnx(m).graph.inputs[0].type) == "f32[batch, 4]"
    assert str(import_onnx(m, {"batch": 7}).graph.outputs[0].type) == "f32[7, 4]"


def test_unnamed_dimensions_are_symbols_of_their_own() -> None:
    m = model([node("Relu", ["x"], ["y"])], [info("x", [None, "a b", None])], ["y"])
    shape = import_onnx(m).graph.inputs[0].shape
    assert len({str(d) for d in shape}) == 3 and all(str(d).isidentifier() for d in shape)


def test_shape_arithmetic_leaves_no_trace() -> None:
    """Reshape to [batch, heads, features / heads] as exporters write it."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Gather", ["s", "one"], ["f"], axis=0),
        node("Div", ["f", "heads"], ["d"]),
        node("Unsqueeze", ["b", "axes"], ["b1"]),
        node("Unsqueeze", ["heads", "axes"], ["h1"]),
        node("Unsqueeze", ["d", "axes"], ["d1"]),
        node("Concat", ["b1", "h1", "d1"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"zero": np.int64(0), "one": np.int64(1), "heads": np.int64(4), "axes": np.array([0])}
    imported = compare(
        model(nodes, [info("x", ["batch", 12])], ["y"], weights), {"x": rng.standard_normal((5, 12)).astype(F)}
    )
    assert ops_of(imported) == {"reshape": 1} and not imported.graph.params
    assert str(imported.graph.outputs[0].type) == "f32[batch, 4, 3]"


def test_expand_to_a_shape_that_is_chosen_by_comparison() -> None:
    """Exporters write Where(shape == -1, 1, shape): a dimension is never -1."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Equal", ["s", "minus"], ["e"]),
        node("Where", ["e", "ones", "s"], ["t"]),
        node("Expand", ["w", "t"], ["y"]),
    ]
    weights = {"minus": np.array([-1]), "ones": np.array([1, 1]), "w": np.ones((1, 3), F)}
    imported = compare(model(nodes, [info("x", ["n", 3])], ["y"], weights), {"x": np.zeros((4, 3), F)})
    assert ops_of(imported) == {"broadcast": 1}


@pytest.mark.parametrize(
    ("shape", "inputs", "wanted"),
    [
        ([-1, 6], ["n", 2, 3], "f32[n, 6]"),
        ([0, -1], ["n", 2, 3], "f32[n, 6]"),
        ([-1, 3], ["n", 6], "f32[n * 2, 3]"),
        ([-1], ["n", "m", 2], None),
        ([2, -1], [4, "n"], "f32[2, n * 2]"),
    ],
)
def test_reshape_solves_its_open_dimension(shape: list[int], inputs: list[int | str], wanted: str | None) -> None:
    m = model([node("Reshape", ["x", "s"], ["y"])], [info("x", inputs)], ["y"], {"s": np.array(shape)})
    sizes = [d if isinstance(d, int) else 5 for d in inputs]
    imported = compare(m, {"x": rng.standard_normal(sizes).astype(F)})
    if wanted is not None:
        assert str(imported.graph.outputs[0].type) == wanted


def test_symbolic_values_can_be_used_at_run_time() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Cast", ["b"], ["f"], to=TensorProto.FLOAT),
        node("Div", ["x", "f"], ["y"]),
    ]
    compare(model(nodes, [info("x", ["n", 3])], ["y"], {"zero": np.int64(0)}), {"x": np.ones((4, 3), F)})


def test_slices_of_symbolic_dimensions() -> None:
    nodes = [
        node("Slice", ["x", "one", "huge", "zero"], ["tail"]),
        node("Slice", ["x", "zero", "minus", "zero"], ["head"]),
        node("Add", ["tail", "head"], ["y"]),
    ]
    weights = {"one": np.array([1]), "zero": np.array([0]), "minus": np.array([-1]), "huge": np.array([2**63 - 1])}
    imported = compare(
        model(nodes, [info("x", ["n", 3])], ["y"], weights), {"x": rng.standard_normal((4, 3)).astype(F)}
    )
    assert str(imported.graph.outputs[0].type) == "f32[n - 1, 3]"


def top(arguments: list[int | str], k: int, *before: onnx.NodeProto) -> onnx.ModelProto:
    """The `k` greatest along axis 0 of x, or of t if nodes make it of x."""
    nodes = [*before, node("TopK", ["t" if before else "x", "k"], ["v", "i"], axis=0)]
    return model(nodes, [info("x", arguments)], ["v", "i"], {"k": np.array([k])})


def test_a_dimension_of_which_k_are_selected_has_k_elements() -> None:
    m = top(["n", 3], 2)
    compare(m, {"x": rng.standard_normal((4, 3)).astype(F)})
    compiled = tw.compile(m)
    (symbol,) = compiled.manifest.symbols
    assert (symbol.name, symbol.lo) == ("n", 2)
    v, i = compiled(np.array([[1.0], [2.0]], F).repeat(3, 1))
    np.testing.assert_array_equal(v, [[2.0] * 3, [1.0] * 3])
    np.testing.assert_array_equal(i, [[1] * 3, [0] * 3])
    with pytest.raises(tw.Error, match="2"):
        compiled(np.ones((1, 3), F))


def test_the_least_sizes_of_several_operations_are_all_retained() -> None:
    nodes = [node("TopK", ["x", k], [f"v{k}", f"i{k}"], axis=axis) for k, axis in (("2", 0), ("5", 0), ("3", 1))]
    m = model(nodes, [info("x", ["n", "m"])], ["v2", "v5", "v3"], {k: np.array([int(k)]) for k in "253"})
    compare(m, {"x": rng.standard_normal((5, 3)).astype(F)})
    assert [(s.name, s.lo) for s in import_onnx(m).graph.symbols] == [("n", 5), ("m", 3)]


@pytest.mark.parametrize("index", [-1, -2])
def test_one_index_from_the_end_is_a_slice(index: int) -> None:
    """A size that may be smaller is an error of the call."""
    m = model([node("Gather", ["x", "i"], ["y"], axis=1)], [info("x", [2, "n"])], ["y"], {"i": np.array(index)})
    bounded = import_onnx(m, {"n": tw.dim(2, 9)})
    assert "gather" not in ops_of(bounded)
    for n in (2, 3, 9):
        x = rng.standard_normal((2, n)).astype(F)
        (y,) = run_graph(bounded.graph, {"x": x}, bounded.weights).values()
        np.testing.assert_array_equal(y, x[:, index])
    unbounded = import_onnx(m)
    assert "gather" not in ops_of(unbounded) and [s.lo for s in unbounded.graph.symbols] == [-index]


@pytest.mark.parametrize("indices", [5, [5], [2, -1, 5]])
def test_a_dimension_has_the_elements_that_are_gathered(indices: int | list[int]) -> None:
    m = model([node("Gather", ["x", "i"], ["y"])], [info("x", ["n", 3])], ["y"], {"i": np.array(indices)})
    compare(m, {"x": rng.standard_normal((6, 3)).astype(F)})
    assert [s.lo for s in tw.compile(m).manifest.symbols] == [6]


def test_k_of_a_computed_dimension() -> None:
    twice = node("Concat", ["x", "x"], ["t"], axis=0)
    compare(top(["n", 3], 2, twice), {"x": rng.standard_normal((1, 3)).astype(F)})
    with pytest.raises(ModelError, match="k may be outside the dimension: expected 3 elements, got n"):
        import_onnx(top(["n", 3], 3, twice))
    compare(top(["n", 3], 3, twice), {"x": rng.standard_normal((2, 3)).astype(F)}, n=2)


def test_outputs_that_are_inputs_weights_or_each_other() -> None:
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Identity", ["w"], ["b"]),
        node("Relu", ["x"], ["r"]),
        node("Identity", ["r"], ["c"]),
        node("Identity", ["r"], ["d"]),
    ]
    imported = compare(
        model(nodes, [info("x", [2, 2])], ["a", "b", "c", "d", "x"], {"w": np.ones(3, F)}), {"x": -np.eye(2, dtype=F)}
    )
    assert [v.name for v in imported.graph.outputs] == ["a", "b", "c", "d", "x"]


def test_constants_small_and_large() -> None:
    table = rng.standard_normal((20, 20)).astype(F)
    nodes = [
        helper.make_node("Constant", [], ["t"], value=onnx.numpy_helper.from_array(table)),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        node("Mul", ["x", "two"], ["y"]),
        node("Add", ["y", "t"], ["z"]),
    ]
    imported = compare(model(nodes, [info("x", [20])], ["z"]), {"x": np.ones(20, F)})
    assert [p.name for p in imported.graph.params] == ["t"]
    assert ops_of(imported) == {"constant": 1, "mul": 1, "add": 1}


def test_large_filled_tensors_take_no_memory() -> None:
    nodes = [node("ConstantOfShape", ["s"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    imported = import_onnx(model(nodes, [info("x", [1, 10000])], ["y"], {"s": np.array([10000, 10000])}))
    (weight,) = imported.weights.values()
    assert weight.shape == (10000, 10000) and weight.strides == (0, 0)


def test_local_functions_with_attributes() -> None:
    inner = helper.make_function(
        "custom",
        "Leak",
        ["a"],
        ["b"],
        [_reference("LeakyRelu", ["a"], ["b"], "alpha", "slope")],
        [helper.make_opsetid("", 18)],
        ["slope"],
    )
    outer = helper.make_function(
        "custom",
        "Twice",
        ["a"],
        ["c"],
        [_reference("Leak", ["a"], ["b"], "slope", "slope", "custom"), node("Add", ["b", "b"], ["c"])],
        [helper.make_opsetid("", 18), helper.make_opsetid("custom", 1)],
        ["slope"],
    )
    nodes = [
        helper.make_node("Twice", ["x"], ["y"], domain="custom", slope=0.5),
        helper.make_node("Twice", ["y"], ["z"], domain="custom", slope=0.25),
    ]
    m = model(nodes, [info("x", [3])], ["z"], functions=[inner, outer], custom=1)
    imported = import_onnx(m)
    assert ops_of(imported) == {"leaky_relu": 2, "add": 2}
    got = run_graph(imported.graph, {"x": np.array([-1, 0, 2], F)}, imported.weights)
    np.testing.assert_array_equal(got["z"], np.array([-0.5, 0, 8], F))


def _reference(
    op: str, inputs: list[str], outputs: list[str], name: str, outer: str, domain: str = ""
) -> onnx.NodeProto:
    result = helper.make_node(op, inputs, outputs, domain=domain)
    attribute = result.attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = name, outer, onnx.AttributeProto.FLOAT
    return result


def test_if_with_a_known_condition() -> None:
    then = helper.make_graph([node("Relu", ["x"], ["r"])], "then", [], [info("r", None)])
    other = helper.make_graph([node("NoSuchOperator", ["x"], ["r"])], "else", [], [info("r", None)])
    nodes = [
        node("Size", ["x"], ["n"]),
        node("Greater", ["n", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    m = model(nodes, [info("x", ["n", 2])], ["y"], {"zero": np.int64(0)})
    imported = import_onnx(m)
    assert ops_of(imported) == {"relu": 1}


@pytest.mark.parametrize("kind", ["float32", "float64", "int32"])
def test_the_logarithm_of_a_sum_of_exponentials_in_its_own_type(kind: str) -> None:
    """Integers are computed in f32 and cut to their type."""
    m = model(
        [node("ReduceLogSumExp", ["x"], ["y"])],
        [info("x", [2, 3], helper.np_dtype_to_tensor_dtype(np.dtype(kind)))],
        ["y"],
    )
    x = np.array([[1, 2, 4], [-1, 0, 3]], kind)
    (got,) = run_graph(import_onnx(m).graph, {"x": x}).values()
    want = np.log(np.exp(x.astype(np.float64)).sum()).reshape(1, 1)
    assert got.dtype == x.dtype
    rtol = {"float32": 1e-6, "float64": 1e-14, "int32": 0.0}[kind]
    np.testing.assert_allclose(got, np.trunc(want) if kind == "int32" else want, rtol=rtol)


def test_old_operator_sets() -> None:
    """Axes and slices as attributes, softmax over several dimensions."""
    nodes = [
        helper.make_node("Slice", ["x"], ["a"], starts=[0, 1], ends=[2, 3], axes=[0, 2]),
        helper.make_node("Unsqueeze", ["a"], ["b"], axes=[0]),
        helper.make_node("Squeeze", ["b"], ["c"], axes=[0]),
        helper.make_node("Clip", ["c"], ["d"], min=-0.5, max=0.5),
        helper.make_node("Softmax", ["d"], ["y"], axis=1),
    ]
    x = rng.standard_normal((2, 3, 4)).astype(F)
    imported = import_onnx(model(nodes, [info("x", [2, 3, 4])], ["y"], opset=9))
    e = np.exp(np.clip(x[:, :, 1:3], -0.5, 0.5).reshape(2, 6))
    want = (e / e.sum(axis=1, keepdims=True)).reshape(2, 3, 2)
    np.testing.assert_allclose(run_graph(imported.graph, {"x": x})["y"], want, rtol=1e-5)


@pytest.mark.parametrize("time", [3, 20, "t"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_short_long_and_open(kind: str, time: int | str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    hidden, features, batch = 3, 2, 4
    weights = {
        "w": rng.standard_normal((2, gates * hidden, features)).astype(F),
        "r": rng.standard_normal((2, gates * hidden, hidden)).astype(F),
        "b": rng.standard_normal((2, 2 * gates * hidden)).astype(F),
    }
    outputs = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    lstm = helper.make_node(kind, ["x", "w", "r", "b"], outputs, hidden_size=hidden, direction="bidirectional")
    m = model([lstm], [info("x", [time, "batch", features])], outputs, weights)
    steps = time if isinstance(time, int) else 6
    feeds = {"x": rng.standard_normal((steps, batch, features)).astype(F)}
    imported = import_onnx(m)
    got = run_graph(imported.graph, feeds, imported.weights)
    onnxruntime = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")
    del m.graph.output[:]
    m.graph.output.extend(info(name, None) for name in outputs)
    want = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    for name, w in zip(outputs, want, strict=True):
        np.testing.assert_allclose(got[name], w, rtol=1e-4, atol=1e-5)


def test_einsum_becomes_a_matrix_product() -> None:
    m = model(
        [node("Einsum", ["a", "b"], ["y"], equation="bhqd,bhkd->bhqk")],
        [info("a", ["n", 2, 3, 4]), info("b", ["n", 2, 5, 4])],
        ["y"],
    )
    imported = compare(
        m, {"a": rng.standard_normal((2, 2, 3, 4)).astype(F), "b": rng.standard_normal((2, 2, 5, 4)).astype(F)}
    )
    assert "matmul" in ops_of(imported) and "einsum" not in ops_of(imported)


@pytest.mark.parametrize("equation", ["...i->i", "...->", "i...->i", "...i,...j->ij", "...i,...i->"])
def test_einsum_sums_over_an_ellipsis_that_the_result_leaves_out(equation: str) -> None:
    names = ["a", "b"][: 1 + equation.count(",")]
    m = model([node("Einsum", names, ["y"], equation=equation)], [info(n, ["n", 3, 4]) for n in names], ["y"])
    compare(m, {n: rng.standard_normal((2, 3, 4)).astype(F) for n in names})


def test_batch_norm_is_arithmetic_on_weights() -> None:
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])]
    weights = {k: np.abs(rng.standard_normal(3)).astype(F) for k in "sbmv"}
    imported = compare(
        model(nodes, [info("x", ["n", 3, 2, 2])], ["y"], weights), {"x": rng.standard_normal((2, 3, 2, 2)).astype(F)}
    )
    fixed = set(imported.graph.params) | {n.output for n in imported.graph.nodes if n.op == "constant"}
    run = []
    for n in imported.graph.nodes:
        if all(v in fixed for v in n.inputs):
            fixed.update(n.outputs)
        else:
            run.append(n.op)
    assert run == ["mul", "add"]


def test_loops_with_a_known_count_are_unrolled() -> None:
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("Mul", ["state", "two"], ["next"]),
            node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [info("i", [], I64), info("go", [], TensorProto.BOOL), info("state", [3])],
        [info("on", [], TensorProto.BOOL), info("next", [3]), info("seen", [3])],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["last", "all"], body=body)]
    m = model(nodes, [info("x", [3])], ["last", "all"], {"count": np.int64(4), "two": np.array(2, F)})
    imported = import_onnx(m)
    assert ops_of(imported)["mul"] == 4
    got = run_graph(imported.graph, {"x": np.array([1, 2, 3], F)}, imported.weights)
    np.testing.assert_array_equal(got["last"], np.array([16, 32, 48], F))
    np.testing.assert_array_equal(got["all"], np.outer([2, 4, 8, 16], [1, 2, 3]))


def test_scans_are_unrolled() -> None:
    body = helper.make_graph(
        [node("Add", ["sum", "e"], ["next"]), node("Relu", ["next"], ["out"])],
        "body",
        [info("sum", [2]), info("e", [2])],
        [info("next", [2]), info("out", [2])],
    )
    nodes = [helper.make_node("Scan", ["s", "x"], ["total", "partial"], num_scan_inputs=1, body=body)]
    m = model(nodes, [info("x", [5, 2])], ["total", "partial"], {"s": np.zeros(2, F)})
    compare(m, {"x": rng.standard_normal((5, 2)).astype(F)})


def test_transposed_convolutions_of_every_kind() -> None:
    """Most become one convolution with stride 1; all mean what the operator `conv_transpose` means."""
    from tilewright.support.errors import Error

    seen: Counter[str] = Counter()
    for _ in range(60):
        rank, groups = int(rng.integers(1, 3)), int(rng.integers(1, 3))
        kernel, strides = rng.integers(1, 5, rank).tolist(), rng.integers(1, 4, rank).tolist()
        dilations = [int(rng.integers(1, 3)) if s == 1 or rng.random() < 0.3 else 1 for s in strides]
        pads = rng.integers(0, 3, 2 * rank).tolist()
        extra = [int(rng.integers(0, s)) for s in strides]
        x = rng.standard_normal((2, 2 * groups, *rng.integers(2, 5, rank))).astype(F)
        w = rng.standard_normal((2 * groups, 3, *kernel)).astype(F)
        attrs = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": extra}
        m = model(
            [helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=groups, **attrs)],
            [info("x", ["n", *x.shape[1:]])],
            ["y"],
            {"w": w},
        )
        try:
            imported = import_onnx(m)
        except Error:
            continue  # nothing is left of the result
        (want,) = reference("conv_transpose", [x, w], {**attrs, "groups": groups})
        got = run_graph(imported.graph, {"x": x}, imported.weights)["y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        seen.update(op for op in ops_of(imported) if op.startswith("conv"))
    assert seen["conv"] > 20 and seen["conv_transpose"] > 0


def test_bytes_that_name_modules_are_no_text() -> None:
    """PyTorch's exporter writes the names of modules, on lines of their own, into the file."""
    file = model([node("Relu", ["x"], ["y"])], [info("x", (2,))], ["y"])
    onnx.helper.set_model_props(file, {"namespace": "module @main {\n  func.func"})
    np.testing.assert_array_equal(tw.compile(file.SerializeToString())(np.array([-1, 1], np.float32)), [0, 1])
